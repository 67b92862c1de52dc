"""The environment against rlgym, the field's own gym, on the same states and actions. Its packages are unpacked, not
installed."""

import sys

import numpy as np
import pytest

from cleanrl_games.envs.rocketleague import ACTION_TABLE, RocketLeagueVecEnv, contract
from cleanrl_games.envs.rocketleague.contract import (
    FIRST_BALL,
    FIRST_JUMP,
    FIRST_OTHER,
    FIRST_PAD,
    OBS_INDEX,
    OTHER_SIZE,
)
from cleanrl_games.envs.rocketleague.meshes import PACKAGES, fetch_package, load_meshes
from cleanrl_games.envs.rocketleague.observations import BOOST, FORWARD, POSITION, SPIN, UP, VELOCITY
from cleanrl_games.envs.rocketleague.states import SETTERS
from cleanrl_games.envs.rocketleague.states import car as car_row


@pytest.fixture(scope="module")
def rlgym():
    """The modules of rlgym.rocket_league, found by path for these tests only"""
    load_meshes()  # before rlgym does, which would hide the error of a second start
    folders = [str(fetch_package(name)) for name in PACKAGES]
    sys.path[:0] = folders
    from rlgym import rocket_league
    from rlgym.rocket_league import action_parsers, obs_builders, sim, state_mutators  # noqa: F401 (loads them)

    yield rocket_league
    sys.path[:] = [path for path in sys.path if path not in folders]


class Oracle:
    """rlgym's engine and default observation, put into a state of ours"""

    def __init__(self, rlgym, ball, cars):
        self.engine, self.builder = rlgym.sim.RocketSimEngine(), rlgym.obs_builders.DefaultObs(zero_padding=3)
        self.table = rlgym.action_parsers.LookupTableAction.make_lookup_table()
        state = self.engine.create_base_state()
        state.config.boost_consumption = (100 / 3) / 33.3  # rlgym rounds what the game burns
        rlgym.state_mutators.FixedTeamSizeMutator(len(cars) // 2, len(cars) // 2).apply(state, {})
        state.ball.position, state.ball.linear_velocity, state.ball.angular_velocity = (
            np.asarray(ball[i : i + 3]) for i in (0, 3, 6)
        )
        state.ball.rotation_mtx = np.eye(3)
        for car, row in zip(state.cars.values(), cars):
            car.physics.position, car.physics.linear_velocity, car.physics.angular_velocity = (
                row[i : i + 3] for i in (0, 3, 6)
            )
            car.physics.rotation_mtx = row[9:18].reshape(3, 3).T
            car.boost_amount, car.on_ground = row[18], True
        self.state = self.engine.set_state(state, {})
        self.agents = list(state.cars)
        self.builder.reset(self.agents, self.state, {})

    def step(self, actions):
        controls = {agent: np.repeat(self.table[action][None], 8, 0) for agent, action in zip(self.agents, actions)}
        self.state = self.engine.step(controls, {})

    def physics(self):
        rows = []
        for agent in self.agents:
            car = self.state.cars[agent]
            p = car.physics
            rows.append(
                np.concatenate([p.position, p.linear_velocity, p.angular_velocity, p.forward, p.up, [car.boost_amount]])
            )
        return np.array(rows)

    def observations(self):
        return np.array(list(self.builder.build_obs(self.agents, self.state, {}).values()))


def our_physics(env):
    parts = [env.cars[:, first : first + 3] for first in (POSITION, VELOCITY, SPIN, FORWARD, UP)]
    return np.concatenate([*parts, env.cars[:, BOOST : BOOST + 1]], 1)


@pytest.mark.parametrize(
    "size, kind, steps", [(1, "kickoff", 150), (1, "goal_approach", 80), (2, "random", 60), (3, "random", 60)]
)
def test_same_states_and_actions_same_game(rlgym, size, kind, steps):
    env = RocketLeagueVecEnv(1, (size,), max_seconds=1000.0, no_touch_seconds=1000.0)
    ball, cars = (np.float32(part) for part in SETTERS[kind](np.random.default_rng(5), size))
    env.set_arena(0, ball, cars)
    oracle = Oracle(rlgym, ball, cars)
    rng, touched = np.random.default_rng(3), False
    for step in range(steps):
        actions = rng.integers(0, 24, env.num_agents) if rng.random() < 0.7 else rng.integers(0, 90, env.num_agents)
        oracle.step(actions)
        obs, _, _, terminated, _, info = env.step(actions)
        if terminated[0]:
            assert oracle.state.goal_scored and oracle.state.scoring_team == (0 if info["goal"][0] > 0 else 1)
            break
        touched |= bool((env.balls[0, 7:10] != 0).any())
        np.testing.assert_allclose(our_physics(env), oracle.physics(), rtol=0, atol=1e-3, err_msg=f"step {step}")
        np.testing.assert_allclose(env.balls[0, :3], oracle.state.ball.position, rtol=0, atol=1e-3)
        np.testing.assert_allclose(env.balls[0, 7:10], oracle.state.ball.linear_velocity, rtol=0, atol=1e-3)
        np.testing.assert_allclose(env.pad_timers[0], oracle.state.boost_pad_timers, rtol=0, atol=1e-3)
        compare_observations(obs, oracle.observations(), size)
    assert step > 20
    assert touched or kind == "kickoff"  # at a kickoff random drivers may miss the ball


def compare_observations(ours, theirs, size):
    """Ball, pads, jump and flip columns, the own car; then the others, turned back from the car's frame into the
    field's"""
    close = dict(rtol=0, atol=2e-4)
    np.testing.assert_allclose(ours[:, FIRST_BALL : FIRST_BALL + 9], theirs[:, :9], **close)
    np.testing.assert_allclose(ours[:, FIRST_PAD : FIRST_PAD + 34], theirs[:, 9:43], **close)
    np.testing.assert_allclose(ours[:, FIRST_JUMP : FIRST_JUMP + 9], theirs[:, 43:52], **close)
    np.testing.assert_allclose(ours[:, :20], theirs[:, 52:72], **close)
    for agent in range(2 * size):
        forward, up = ours[agent, 3:6].astype(float), ours[agent, 6:9].astype(float)
        frame = np.stack([forward, np.cross(up, forward), up])  # rows: the car's axes on its own side of the field
        for slot in range(5):
            mine, other = (
                ours[agent, FIRST_OTHER + slot * OTHER_SIZE :][:OTHER_SIZE],
                theirs[agent, 72 + 20 * slot :][:20],
            )
            assert mine[0] == other.any()
            if mine[0]:
                np.testing.assert_allclose(mine[1:4] @ frame, other[:3] - theirs[agent, 52:55], rtol=0, atol=1e-3)
                np.testing.assert_allclose(mine[4:7] @ frame, other[9:12] - theirs[agent, 61:64], rtol=0, atol=1e-3)
                np.testing.assert_allclose(mine[7:10] @ frame, other[3:6], rtol=0, atol=1e-3)
                np.testing.assert_allclose(mine[16:19], other[15:18], rtol=0, atol=1e-3)
        to_ball = ours[agent, OBS_INDEX["to_ball_forward"] :][:3]
        np.testing.assert_allclose(to_ball @ frame, theirs[agent, :3] - theirs[agent, 52:55], rtol=0, atol=1e-3)


def test_action_table_is_the_fields(rlgym):
    theirs = rlgym.action_parsers.LookupTableAction.make_lookup_table()
    assert theirs.shape == (90, 8)
    assert np.array_equal(ACTION_TABLE, theirs)


def test_pads_stand_where_rlgym_says(rlgym):
    from rlgym.rocket_league import common_values

    env = RocketLeagueVecEnv(1)
    ours = np.array([pad.get_pos().as_tuple() for pad in env.pad_objects[0]])
    assert np.abs(ours - np.array(common_values.BOOST_LOCATIONS)).max() <= 2  # rlgym has one of them two units off
    assert [i for i, pad in enumerate(env.pad_objects[0]) if pad.is_big] == list(contract.BIG_PADS)
    assert np.array_equal(-ours[::-1, :2], ours[:, :2])  # why orange reads the list backwards


def test_a_wreck_is_seen_as_rlgym_sees_it(rlgym):
    """Its body goes on turning in the physics; what is seen stays as it was hit."""
    env = RocketLeagueVecEnv(1, no_touch_seconds=1000.0)
    ball = np.float32([3000, 3000, 93.15, 0, 0, 0, 0, 0, 0])
    cars = np.float32([car_row((-1000, -1500, 17), np.pi / 2, (0, 2300, 0), boost=100), car_row((-1000, 0, 17), 0.3)])
    env.set_arena(0, ball, cars)
    oracle, wrecked = Oracle(rlgym, ball, cars), 0
    for _ in range(25):
        actions = np.array([19, contract.NO_OP])  # full throttle and boost
        oracle.step(actions)
        env.step(actions)
        if env.obs[1, OBS_INDEX["demo_timer"]] > 0:
            wrecked += 1
            np.testing.assert_allclose(our_physics(env)[1, 9:15], oracle.physics()[1, 9:15], rtol=0, atol=1e-5)
            compare_observations(env.obs, oracle.observations(), 1)
    assert wrecked > 10
