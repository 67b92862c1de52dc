"""RocketLeagueVecEnv: events found once each, nothing leaves the arena, seeds, mixed teams, resuming, broken states,
players."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import RocketSim

from cleanrl_games.envs.rocketleague import ACTION_TABLE, NUM_OBS, RocketLeagueVecEnv, contract, match, save_states
from cleanrl_games.envs.rocketleague.contract import NO_OP, OBS_INDEX, TERM_INDEX
from cleanrl_games.envs.rocketleague.match import play_kickoffs
from cleanrl_games.envs.rocketleague.observations import BALL_POSITION, POSITION
from cleanrl_games.envs.rocketleague.scripted import PLAYERS, ScriptedPlayer
from cleanrl_games.envs.rocketleague.states import SETTERS, car, load_states
from cleanrl_games.tools.bench_rocketleague import random_ticks

ROOT = Path(__file__).resolve().parents[1]
NORTH, SOUTH = np.pi / 2, -np.pi / 2


def action(**controls):
    """Number of the action with just these controls"""
    wanted = np.zeros(8)
    for name, value in controls.items():
        wanted[contract.CONTROL_NAMES.index(name)] = value
    (number,) = np.flatnonzero((wanted == ACTION_TABLE).all(1))
    return int(number)


DRIVE, BOOST = action(throttle=1), action(throttle=1, boost=1)


def play(env, actions, steps):
    """The components of every step, of all agents, added up, until the episode ends or the steps are over"""
    total = np.zeros((env.num_agents, contract.NUM_TERMS))
    for _ in range(steps):
        _, _, _, terminated, truncated, info = env.step(np.array(actions))
        total += info["terms"]
        if terminated.any() or truncated.any():
            break
    return total, info


def ball(position, velocity=(0, 0, 0)):
    return np.array([*position, *velocity, 0, 0, 0], np.float64)


AWAY = car((-3000, -3000, 17), NORTH), car((3000, 3000, 17), SOUTH)


# -------------------------------------------------------------------------------------------------------------- events


def test_goal_counts_once_and_ends_the_episode():
    env = RocketLeagueVecEnv(1, reward_weights={"goal": 10, "concede": -8})
    for side, scorer in ((1, 0), (-1, 1)):
        env.set_arena(0, ball((0, side * 4000, 200), (0, side * 3000, 0)), AWAY)
        rewards = np.zeros(2)
        for _ in range(100):
            before = env.obs.copy()
            obs, _, reward, terminated, truncated, info = env.step([NO_OP, NO_OP])
            rewards += reward
            if terminated[0]:
                break
        assert terminated[0] and not truncated[0] and info["goal"][0] == side
        assert rewards[scorer] == 10 and rewards[1 - scorer] == -8
        # the last observation belongs to the old episode, the buffer to the new one
        ball_y = OBS_INDEX["ball_position_y"]
        assert (
            abs(info["final_obs"][0, ball_y]) * 2300 > 5120
            and abs(before[0, ball_y] - info["final_obs"][0, ball_y]) < 0.2
        )
        assert obs[0, ball_y] == 0


def test_goal_is_not_counted_again_while_the_ball_lies_in_the_net():
    env = RocketLeagueVecEnv(1)
    env.set_arena(0, ball((0, 4000, 200), (0, 3000, 0)), AWAY)
    env._start = lambda i: None  # leave the ball in the net
    goals = sum(env.step([NO_OP, NO_OP])[5]["goal"][0] for _ in range(40))
    assert goals == 1 and env.arenas[0].blue_score == 1


def test_touch_counts_once_with_its_strength():
    env = RocketLeagueVecEnv(1)
    env.set_arena(0, ball((0, 0, 93.15)), (car((0, -1000, 17), NORTH, (0, 1500, 0)), AWAY[1]))
    total, _ = play(env, [DRIVE, NO_OP], 10)
    speed = np.linalg.norm(env.balls[0, 7:10])
    assert total[0, TERM_INDEX["touch"]] == 1 and total[1, TERM_INDEX["touch"]] == 0
    assert 0.5 < total[0, TERM_INDEX["touch_strength"]] * 6000 / speed < 1.5
    assert total[1, TERM_INDEX["touch_strength"]] == 0


def test_demolition_counts_once_and_the_wreck_comes_back():
    env = RocketLeagueVecEnv(1, no_touch_seconds=100.0)
    env.set_arena(
        0,
        ball((3000, 3000, 93.15)),
        (car((-1000, -1500, 17), NORTH, (0, 2300, 0), boost=100), car((-1000, 0, 17), 0.0)),
    )
    total, _ = play(env, [BOOST, NO_OP], 20)
    assert total[0, TERM_INDEX["demo"]] == 1 and total[1, TERM_INDEX["demoed"]] == 1
    assert total[1, TERM_INDEX["demo"]] == 0 and total[0, TERM_INDEX["demoed"]] == 0
    assert total[1, TERM_INDEX["boost_lost"]] == 0  # a wreck does not burn boost
    assert env.masks[1].sum() == 1 and env.masks[1, NO_OP]
    assert 0 < env.obs[1, OBS_INDEX["demo_timer"]] < 3
    after, _ = play(env, [NO_OP, NO_OP], 45)
    assert env.obs[1, OBS_INDEX["demo_timer"]] == 0 and env.masks[1].sum() > 1
    assert after[:, TERM_INDEX["demo"]].sum() == after[:, TERM_INDEX["demoed"]].sum() == 0
    assert abs(env.cars[1, POSITION + 1] - 4608) < 50 and env.cars[1, POSITION + 2] < 50


def test_save_counts_once():
    env = RocketLeagueVecEnv(1)
    # orange shoots from the middle; blue falls from the air into the ball's way, 1.3 seconds later
    keeper, shooter = car((0, -3950, 1268), NORTH, boost=0), car((0, 0, 17), SOUTH, (0, -2200, 0), boost=0)
    env.set_arena(0, ball((0, -300, 93.15), (0, -1, 0)), (keeper, shooter))
    total, info = play(env, [NO_OP, NO_OP], 45)
    assert info["goal"][0] == 0
    assert total[1, TERM_INDEX["shot"]] == 1 and total[0, TERM_INDEX["shot"]] == 0
    assert total[0, TERM_INDEX["save"]] == 1 and total[1, TERM_INDEX["save"]] == 0
    # without the keeper the same shot is a goal, credited to the shooter once
    env.set_arena(0, ball((0, -300, 93.15), (0, -1, 0)), (AWAY[0], shooter))
    total, info = play(env, [NO_OP, NO_OP], 45)
    assert info["goal"][0] == -1 and total[1, TERM_INDEX["scorer"]] == 1 and total[0, TERM_INDEX["save"]] == 0


def test_boost_pickup_counts_once_and_its_clock_runs():
    env = RocketLeagueVecEnv(1)
    # a small pad at y = -2816
    env.set_arena(0, ball((3000, 3000, 93.15)), (car((0, -3200, 17), NORTH, (0, 1000, 0), boost=10), AWAY[1]))
    total, _ = play(env, [DRIVE, NO_OP], 10)
    assert total[0, TERM_INDEX["pickup"]] == 1 and total[1, TERM_INDEX["pickup"]] == 0
    assert np.isclose(total[0, TERM_INDEX["boost_gained"]], np.sqrt(0.22) - np.sqrt(0.10), atol=1e-5)
    for _ in range(60):
        truth = [pad.get_state().cooldown for pad in env.pad_objects[0]]
        np.testing.assert_allclose(env.pad_timers[0], truth, atol=1e-3)
        env.step([NO_OP, NO_OP])
    assert env.pad_timers[0, 7] == 0  # back after 4 seconds


def test_dense_terms_have_the_right_sign():
    env = RocketLeagueVecEnv(1)
    env.set_arena(
        0,
        ball((0, 0, 93.15), (0, 500, 0)),
        (car((0, -2500, 17), NORTH, (0, 1000, 0)), car((0, 2500, 17), NORTH, (0, 1000, 0))),
    )
    _, _, _, _, _, info = env.step([DRIVE, DRIVE])
    blue, orange = info["terms"]
    for name, sign in (("speed_to_ball", 1), ("face_ball", 1), ("ball_speed_to_goal", 1)):
        assert blue[TERM_INDEX[name]] * sign > 0 > orange[TERM_INDEX[name]] * sign, name
    assert blue[TERM_INDEX["face_ball"]] > 0.99 and abs(blue[TERM_INDEX["speed_to_ball"]] - 1000 / 2300) < 0.05
    assert blue[TERM_INDEX["air"]] == 0


# -------------------------------------------------------------------------------------------------------------- batches


def test_random_play_stays_inside():
    played, worst = random_ticks(30_000)  # the bench plays 200,000
    assert played >= 30_000 and worst <= 0


def fingerprint(seed, steps=60):
    env = RocketLeagueVecEnv(4, seed=seed, states={name: 1.0 for name in SETTERS}, max_seconds=3.0)
    rng, digest = np.random.default_rng(0), hashlib.sha256()
    for _ in range(steps):
        for array in env.step(rng.integers(0, 90, env.num_agents))[:5]:
            digest.update(array.tobytes())
    return digest.hexdigest()


def test_seeds_are_bit_identical():
    """In another process too. In 1v1: with more cars RocketSim itself was seen to play equal arenas differently
    (docs)."""
    first = fingerprint(7)
    assert fingerprint(7) == first and fingerprint(8) != first
    code = "import sys; sys.path[:0] = ['tests', '.']; import test_rocketleague_env as t; print(t.fingerprint(7))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == first


def test_reset_starts_as_a_new_environment_would():
    env, rng = RocketLeagueVecEnv(2, seed=3), np.random.default_rng(0)
    for _ in range(40):
        env.step(rng.integers(0, 90, env.num_agents))
    env.reset(3)
    fresh = RocketLeagueVecEnv(2, seed=3)
    for _ in range(40):
        actions = rng.integers(0, 90, env.num_agents)
        assert np.array_equal(env.step(actions)[0], fresh.step(actions)[0])


def test_mixed_team_sizes_do_not_disturb_each_other():
    """An arena's game is the same whatever stands beside it in the batch, and its padding is zero"""
    mixed = RocketLeagueVecEnv(3, (1, 2, 3), seed=4, states={"near_ball": 1.0})
    assert mixed.num_agents == 12 and mixed.agent_arena.tolist() == [0] * 2 + [1] * 4 + [2] * 6
    assert mixed.agent_team.tolist() == [0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1]
    single = RocketLeagueVecEnv(1, (1,), seed=4, states={"near_ball": 1.0})
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = rng.integers(0, 90, 12)
        obs = mixed.step(actions)[0]
        assert np.array_equal(obs[:2], single.step(actions[:2])[0])
        for agent in range(12):
            size = mixed.sizes[mixed.agent_arena[agent]]
            present = [obs[agent, OBS_INDEX[f"{other}_present"]] for other in contract.OTHERS]
            assert present == [float(i < size - 1) for i in range(2)] + [float(i < size) for i in range(3)]
    assert not obs[0, OBS_INDEX["mate_1_present"] : OBS_INDEX["foe_1_present"]].any()


def test_both_sides_see_the_same_game():
    """A position that looks the same from both ends gives both players the same observation"""
    env = RocketLeagueVecEnv(1)
    blue = car((500, -2000, 17), 1.0, (300, 800, 0), boost=40)
    orange = car((-500, 2000, 17), 1.0 + np.pi, (-300, -800, 0), boost=40)
    env.set_arena(0, ball((0, 0, 93.15)), (blue, orange))
    env.step([DRIVE, DRIVE])
    np.testing.assert_allclose(env.obs[0], env.obs[1], atol=2e-3)
    assert env.obs.shape == (2, NUM_OBS) and np.array_equal(env.masks[0], env.masks[1])


def test_time_truncates():
    env = RocketLeagueVecEnv(2, max_seconds=1.0)
    for _ in range(14):
        assert not env.step([NO_OP] * 4)[4].any()
    _, _, _, terminated, truncated, info = env.step([NO_OP] * 4)
    assert truncated.all() and not terminated.any() and info["length"].tolist() == [15, 15]
    env = RocketLeagueVecEnv(1, no_touch_seconds=0.4)
    assert [bool(env.step([NO_OP] * 2)[4][0]) for _ in range(7)] == [False] * 5 + [True, False]


def test_resume_goes_on_with_the_same_ticks():
    settings = dict(num_arenas=3, seed=2, states={"near_ball": 1.0, "kickoff": 1.0}, max_seconds=4.0)
    env, rng = RocketLeagueVecEnv(**settings), np.random.default_rng(1)
    for _ in range(25):
        env.step(rng.integers(0, 90, env.num_agents))
    before = env.obs.copy()
    saved = env.state_dict()
    np.testing.assert_allclose(env.obs, before, atol=1e-3)  # saving moves nothing that can be seen
    other = RocketLeagueVecEnv(**{**settings, "seed": 99})
    other.load_state_dict(saved)
    for step in range(60):  # past the ends of these episodes
        actions = rng.integers(0, 90, env.num_agents)
        for a, b in zip(env.step(actions)[:5], other.step(actions)[:5]):
            assert np.array_equal(a, b), f"step {step}"
    with pytest.raises(ValueError, match="other size or version"):
        RocketLeagueVecEnv(1).load_state_dict(saved)


# ------------------------------------------------------------------------------------------------------- states, faults


def test_setters_draw_what_they_say():
    rng = np.random.default_rng(0)
    for name, setter in SETTERS.items():
        for size in (1, 2, 3):
            for _ in range(20):
                position, cars = setter(rng, size)
                assert np.isfinite(cars).all() and cars.shape == (2 * size, 19)
                # corners begin at 8064
                assert (np.abs(cars[:, :2]).sum(1) < 7900).all() and np.abs(position[:2]).sum() < 7900, name
                places = [position[:3], *cars[:, :3]]
                gaps = [np.linalg.norm(a - b) for i, a in enumerate(places) for b in places[:i]]
                assert min(gaps) > 250, name
                if name == "aerial":
                    assert position[2] > 600
                if name == "near_ball":
                    assert max(np.linalg.norm(row[:2] - position[:2]) for row in cars) < 1700
                if name == "goal_approach":
                    assert abs(position[1]) >= 1500


def test_states_are_replayed_from_a_file(tmp_path):
    env = RocketLeagueVecEnv(1, (2,), states={"random": 1.0})
    env.step([NO_OP] * 4)
    recorded = env.get_arena(0)
    save_states(tmp_path / "states.npz", [recorded])
    again = RocketLeagueVecEnv(1, (2,), seed=50, states={"file": 1.0}, state_file=tmp_path / "states.npz")
    np.testing.assert_allclose(again.get_arena(0)[0], recorded[0], atol=1e-2)
    np.testing.assert_allclose(again.get_arena(0)[1], recorded[1], atol=1e-2)
    with pytest.raises(ValueError, match="no state for 1 cars per team"):
        RocketLeagueVecEnv(1, (1,), states={"file": 1.0}, state_file=tmp_path / "states.npz")
    (tmp_path / "other.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="is not a file of states"):
        load_states(tmp_path / "other.npz")
    with pytest.raises(ValueError, match="There is no file of states"):
        load_states(tmp_path / "missing.npz")


def test_a_state_with_nan_is_refused(tmp_path):
    env = RocketLeagueVecEnv(1)
    good = ball((0, 0, 93.15))
    broken = np.array(AWAY)
    broken[1, 4] = np.nan
    with pytest.raises(ValueError, match="car 1 has a value that is not finite"):
        env.set_arena(0, good, broken)
    with pytest.raises(ValueError, match="the ball has a value that is not finite"):
        save_states(tmp_path / "states.npz", [(good * np.inf, np.array(AWAY))])
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="A state for 2 cars was given to an arena of 4"):
        RocketLeagueVecEnv(1, (2,)).set_arena(0, good, np.array(AWAY))


def test_nan_in_the_simulator_is_said_and_the_arena_rebuilt(capfd):
    env = RocketLeagueVecEnv(2)
    env.step([DRIVE] * 4)
    before = env.obs.copy()
    state = env.arenas[1].ball.get_state()
    state.ang_vel = RocketSim.Vec(float("nan"), 0.0, 0.0)
    env.arenas[1].ball.set_state(state)
    obs, masks, rewards, terminated, truncated, info = env.step([DRIVE] * 4)
    assert "not finite in arena 1" in capfd.readouterr().err
    assert truncated.tolist() == [False, True] and not terminated.any()
    assert np.isfinite(obs).all() and np.isfinite(rewards).all() and np.isfinite(info["terms"]).all()
    assert masks.any(1).all()
    position = slice(OBS_INDEX["position_x"], OBS_INDEX["position_x"] + 3)
    assert np.array_equal(info["final_obs"][2:, position], before[2:, position])  # the last sound state
    for _ in range(5):
        obs, _, _, _, truncated, _ = env.step([DRIVE] * 4)
        assert np.isfinite(obs).all() and not truncated.any()


def test_settings_are_checked():
    for settings, sentence in (
        ({"team_sizes": (4,)}, "each must be 1 to 3"),
        ({"action_repeat": 0}, "at least 1"),
        ({"states": {"kickof": 1}}, "Unknown start state 'kickof'"),
        ({"states": {"kickoff": 0}}, "not all zero"),
        ({"reward_weights": {"tuch": 1}}, "Unknown reward component 'tuch'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            RocketLeagueVecEnv(1, **settings)
    with pytest.raises(ValueError, match="2 action numbers from 0 to 89"):
        RocketLeagueVecEnv(1).step([0, 90])


def test_masks_leave_what_matters():
    env = RocketLeagueVecEnv(1)
    env.set_arena(0, ball((0, 0, 93.15)), (car((0, -2000, 17), NORTH, boost=0), car((0, 2000, 800), SOUTH, boost=50)))
    play(env, [NO_OP, NO_OP], 3)
    ground, air = env.masks
    jumps, boosts = ACTION_TABLE[:, 5] > 0, ACTION_TABLE[:, 6] > 0
    tilts = ((ACTION_TABLE[:, 2] != 0) | (ACTION_TABLE[:, 4] != 0)) & ~jumps
    assert not ground[boosts].any() and not ground[tilts].any() and ground[jumps & ~boosts].all()
    assert air[tilts].all() and air[boosts].all() and air[jumps].all()  # it never jumped: the flip is still there


def spend_flip(env, arena, agent):
    """As after a flip in the air: no jump is left"""
    body = env.bodies[arena][agent]
    state = body.get_state()
    state.has_jumped = state.has_flipped = True
    state.air_time_since_jump = 2.0
    body.set_state(state)


def test_a_car_on_its_roof_may_jump_and_gets_up_by_it():
    env = RocketLeagueVecEnv(1, no_touch_seconds=100.0)
    env.set_arena(
        0,
        ball((3000, 3000, 93.15)),
        (car((0, -2000, 45), NORTH, roll=np.pi, boost=0), car((0, 2000, 900), SOUTH, boost=50)),
    )
    for agent in (0, 1):
        spend_flip(env, 0, agent)
    play(env, [NO_OP, NO_OP], 12)
    jumps = (ACTION_TABLE[:, 5] > 0) & (ACTION_TABLE[:, 6] == 0)
    up = OBS_INDEX["up_z"]
    assert env.obs[0, up] < -0.9 and env.obs[0, OBS_INDEX["can_flip"]] == 0
    assert env.masks[0, jumps].all(), "the only way up is masked"
    assert not env.masks[1, jumps].any(), "a car in mid-air without its flip has no jump"
    play(env, [action(jump=1), NO_OP], 1)
    play(env, [NO_OP, NO_OP], 15)
    assert env.obs[0, up] > 0.9


def test_no_jump_is_masked_that_the_game_would_answer():
    """RocketSim rights a car by a jump when its body touches something flat enough; the mask knows it by the hitbox
    alone."""
    env, rng = RocketLeagueVecEnv(24, states={"random": 1.0}, seed=3), np.random.default_rng(0)
    jumps, touching, open_air, masked = ACTION_TABLE[:, 5] > 0, 0, 0, 0
    for _ in range(500):
        env.step(rng.integers(0, 90, env.num_agents))
        for agent in range(env.num_agents):
            arena = env.agent_arena[agent]
            state = env.bodies[arena][agent - env.first[arena]].get_state()
            if state.is_on_ground or state.is_demoed:
                continue
            if state.has_world_contact and state.world_contact_normal.z > 0.7071:
                touching += 1
                assert (env.masks[agent] & jumps).any()
            elif state.pos.z > 300 and abs(state.pos.x) < 3500 and state.has_flipped and not state.is_jumping:
                open_air += 1
                masked += not (env.masks[agent] & jumps).any()
    assert touching > 300 and open_air > 300 and masked == open_air


# ----------------------------------------------------------------------------------------------------- players, picture


def test_aerial_player_meets_a_ball_in_the_air():
    """A ball at 900, from several distances and speeds; `rule` waits until it comes down."""
    heights = {}
    for name in ("aerial", "rule"):
        situations = [
            (distance, rise, speed) for distance in (900, 1300, 1700) for rise in (0, 300, 600) for speed in (0, 700)
        ]
        env, player, reached = (
            RocketLeagueVecEnv(len(situations), no_touch_seconds=100.0),
            ScriptedPlayer(name),
            np.zeros(len(situations)),
        )
        for i, (distance, rise, speed) in enumerate(situations):
            flier = car((0, 500 - distance, 17), NORTH, (0, speed, 0), boost=100)
            env.set_arena(i, ball((0, 500, 900), (0, 0, rise)), (flier, car((-3000, 4000, 17), SOUTH)))
        actions, blue = np.full(env.num_agents, NO_OP), np.arange(0, env.num_agents, 2)
        for _ in range(36):
            player.act(env.obs, env.masks, blue, actions)
            _, _, _, _, _, info = env.step(actions)
            reached = np.maximum(reached, 2044 * info["terms"][blue, TERM_INDEX["touch_height"]])
        heights[name] = reached
    assert (heights["aerial"] > 300).sum() >= 5 > 2 >= (heights["rule"] > 300).sum(), heights


def test_positional_player_holds_its_place_and_chaser_does_not():
    """The ball is nearer to the opponent, in its half"""
    for name, leaves in (("positional", False), ("chaser", True)):
        env, player = RocketLeagueVecEnv(1, no_touch_seconds=100.0), ScriptedPlayer(name)
        env.set_arena(0, ball((0, 2500, 93.15)), (car((0, -1300, 17), NORTH), car((0, 3300, 17), SOUTH)))
        actions = np.full(2, NO_OP)
        for _ in range(20):
            player.act(env.obs, env.masks, np.array([0]), actions)
            env.step(actions)
        assert (env.cars[0, POSITION + 1] > -500) == leaves, name


def test_scripted_players_stand_in_the_order_of_their_ratings():
    from cleanrl_games.envs.rocketleague.scripted import PINNED

    assert set(PINNED) == {1, 2, 3}
    for ratings in PINNED.values():
        assert set(ratings) == set(PLAYERS) and ratings["rule"] == 1500.0 and min(ratings, key=ratings.get) == "random"
    order = sorted(PINNED[1], key=PINNED[1].get)
    for weaker, stronger in (("random", "chaser"), ("chaser", "rule"), ("rule", "aerial")):
        assert order.index(weaker) < order.index(stronger)
        scores, _ = play_kickoffs(ScriptedPlayer(stronger), ScriptedPlayer(weaker), 24, seed=4, max_seconds=40.0)
        assert scores.mean() > 0.5, (stronger, weaker, scores.mean())


def test_pictures_show_height_and_names(tmp_path):
    from cleanrl_games.envs.rocketleague import picture

    shots = {}
    for height in (93.15, 1500):
        env = RocketLeagueVecEnv(1)
        env.set_arena(0, ball((0, 0, height)), AWAY)
        shots[height] = np.asarray(picture.MatchRecorder(env, 0, names=("north", "south")).draw(), np.int64)
    # of its white pixels
    balls = {height: np.argwhere((shot[40:] > 225).all(2))[:, 0].mean() + 40 for height, shot in shots.items()}
    (_, low), (_, high) = picture.project([(0, 0, 93.15), (0, 0, 1500)])[0]
    assert abs(balls[93.15] - low) < 8 and abs(balls[1500] - high) < 8 and high < low - 50
    x, y = (int(value) for value in picture.project([(0, 0, 1.0)])[0][0])
    assert tuple(shots[1500][y, x + 3]) == picture.SHADOW and tuple(shots[93.15][y, x + 3]) != picture.GRASS
    env = RocketLeagueVecEnv(1)
    one, other = (
        np.asarray(picture.MatchRecorder(env, 0, names=names).draw()) for names in (("north", "b"), ("a", "b"))
    )
    assert (one[:, : picture.WIDTH // 2] != other[:, : picture.WIDTH // 2]).any(), "the names do not show"


def test_rule_player_beats_random_from_both_sides(tmp_path):
    scores, lengths = play_kickoffs(
        ScriptedPlayer("rule"), ScriptedPlayer("random"), 12, seed=2, max_seconds=60.0, video=tmp_path / "match.gif"
    )
    assert scores[::2].mean() > 0.75 and scores[1::2].mean() > 0.75
    assert (lengths > 0).all() and (lengths <= 900).all()
    from PIL import Image

    with Image.open(tmp_path / "match.gif") as picture:
        assert picture.n_frames > 10
    swapped, _ = play_kickoffs(ScriptedPlayer("random"), ScriptedPlayer("rule"), 12, seed=2, max_seconds=60.0)
    assert swapped.mean() < 0.25


def test_a_kickoff_that_is_over_costs_no_more_ticks(monkeypatch):
    """Arenas whose game is over rest, and the games beside them are the same as if they did not."""
    made = []

    class Kept(RocketLeagueVecEnv):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            made.append(self)

    class Restless(Kept):
        resting = property(lambda self: np.zeros(self.num_arenas, bool), lambda self, value: None)

    results = []
    for kind in (Kept, Restless):
        monkeypatch.setattr(match, "RocketLeagueVecEnv", kind)
        results.append(play_kickoffs(ScriptedPlayer("aerial"), ScriptedPlayer("chaser"), 6, seed=2, max_seconds=40.0))
    assert np.array_equal(results[0], results[1])
    lengths = results[0][1]
    ticks, all_ticks = (np.array([arena.tick_count for arena in env.arenas]) for env in made)
    assert np.array_equal(ticks, 8 * lengths) and (all_ticks == 8 * lengths.max()).all() and lengths.min() < 200
    made[0].reset(1)
    assert not made[0].resting.any()


def test_random_player_keeps_to_the_mask():
    env, player = RocketLeagueVecEnv(4, (2,), states={"random": 1.0}), ScriptedPlayer("random")
    actions, seen = np.zeros(env.num_agents, np.int64), set()
    for _ in range(40):
        player.act(env.obs, env.masks, np.arange(env.num_agents), actions)
        assert env.masks[np.arange(env.num_agents), actions].all()
        seen |= set(actions.tolist())
        env.step(actions)
    assert len(seen) > 70
    with pytest.raises(ValueError, match="Unknown scripted player"):
        ScriptedPlayer("clever")


def test_rocketsim_rows_mean_what_the_code_takes_them_for():
    """The gym state's columns are nowhere documented: held against the objects' own words"""
    env, rng = RocketLeagueVecEnv(1, (2,), states={"random": 1.0}), np.random.default_rng(0)
    for _ in range(20):
        env.step(rng.integers(0, 90, 4))
        for row, body in zip(env.cars, env.bodies[0]):
            state = body.get_state()
            assert tuple(row[POSITION : POSITION + 3]) == tuple(np.float32(state.pos.as_tuple()))
            assert (
                bool(row[8]) == state.is_on_ground
                and row[10] == np.float32(state.boost)
                and bool(row[7]) == state.is_demoed
            )
            axes = [*state.rot_mat.forward.as_tuple(), *state.rot_mat.right.as_tuple(), *state.rot_mat.up.as_tuple()]
            np.testing.assert_allclose(row[24:33], axes, atol=1e-6)
            np.testing.assert_allclose(
                [row[2], row[3], row[4], row[5], row[6]],
                [body.goals, body.saves, body.shots, body.demos, body.boost_pickups],
            )
        assert tuple(env.balls[0, BALL_POSITION : BALL_POSITION + 3]) == tuple(
            np.float32(env.arenas[0].ball.get_state().pos.as_tuple())
        )
    assert RocketSim.Team.BLUE == 0
