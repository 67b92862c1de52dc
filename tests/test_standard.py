"""Our environments behind the interfaces of Gymnasium and PettingZoo, judged by those libraries' own checkers."""

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test

import cleanrl_games  # noqa: F401 (registers the ids)
from cleanrl_games.envs.osrs import NHVecEnv
from cleanrl_games.envs.osrs.contract import HEAD_SIZES, NUM_HEADS, NUM_TERMS
from cleanrl_games.envs.osrs.standard import OSRSParallelEnv
from cleanrl_games.envs.rocketleague import RocketLeagueVecEnv
from cleanrl_games.envs.rocketleague.standard import RocketLeagueParallelEnv, RocketLeagueVectorEnv
from cleanrl_games.envs.vgc import VGCVecEnv
from cleanrl_games.envs.vgc.standard import VGCParallelEnv

PARALLEL = {
    "rocketleague": lambda: RocketLeagueParallelEnv(team_size=2, max_seconds=2.0),
    "vgc": lambda: VGCParallelEnv(turn_cap=4),
    "osrs": lambda: OSRSParallelEnv(max_ticks=40),
}


def test_pokemon_passes_gymnasiums_checker():
    env = gymnasium.make("cleanrl_games/Pokemon-v0", max_steps=20)
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=3)
    assert env.step(0)[0].shape == (160, 240, 3)
    env.close()


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_environments_pass_pettingzoos_checker(name):
    env = PARALLEL[name]()
    try:
        parallel_api_test(env, num_cycles=40)
    finally:
        env.close()


def choose(space, mask, dice):
    """A legal action; of several heads, one of each head's"""
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(dice.choice(np.flatnonzero(mask)))
    return np.array([dice.choice(np.flatnonzero(head)) if head.any() else 0 for head in mask])


def play(env, seed, dice):
    """One episode of masked random play → everything that was seen"""
    seen, (observations, _) = [], env.reset(seed=seed)
    while env.agents:
        actions = {
            agent: choose(env.action_space(agent), observations[agent]["action_mask"], dice) for agent in env.agents
        }
        observations, rewards, terminated, truncated, _ = env.step(actions)
        assert all(env.observation_space(agent).contains(seen) for agent, seen in observations.items())
        seen.append((observations, rewards, terminated, truncated))
    assert all(terminated[agent] or truncated[agent] for agent in terminated)
    return seen


@pytest.mark.parametrize("name", PARALLEL)
def test_a_seed_is_an_episode(name):
    """The same seed and actions show the same; without a seed the next episode is another one."""
    env = PARALLEL[name]()
    try:
        first = play(env, 5, np.random.default_rng(1))
        other = play(env, None, np.random.default_rng(1))
        again = play(env, 5, np.random.default_rng(1))
        np.testing.assert_equal(first, again)
        with pytest.raises(AssertionError):
            np.testing.assert_equal(first, other)
        env.reset(seed=6)
        with pytest.raises(ValueError, match="an action of each of"):
            env.step({env.agents[0]: 0})
    finally:
        env.close()


def test_who_is_not_asked_waits():
    """A forced switch is one player's: the other one may only do nothing, and what it answers is ignored."""
    env, dice, waited = VGCParallelEnv(), np.random.default_rng(2), 0
    try:
        observations, infos = env.reset(seed=4)
        while env.agents:
            for agent in env.agents:
                if infos[agent]["waiting"]:
                    waited += 1
                    assert observations[agent]["action_mask"].sum() == observations[agent]["action_mask"][0] == 1
            actions = {a: int(dice.choice(np.flatnonzero(observations[a]["action_mask"]))) for a in env.agents}
            observations, rewards, terminated, truncated, infos = env.step(actions)
            assert any(terminated.values()) == (not env.agents), "terminated tells that the battle is over"
        assert waited and sorted(rewards.values()) == [-1.0, 1.0]
        assert all(terminated.values()) and not any(truncated.values())
    finally:
        env.close()


def test_rocket_league_as_gymnasiums_vector_environment():
    env = gymnasium.make_vec("cleanrl_games/RocketLeague-v0", num_envs=4, max_seconds=0.5)
    assert isinstance(env.unwrapped, RocketLeagueVectorEnv) and env.num_envs == 4
    obs, infos = env.reset(seed=3)
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(obs, again)
    assert env.observation_space.contains(obs) and infos["action_mask"].shape == (4, 90)
    for _ in range(8):
        before = obs
        obs, rewards, terminated, truncated, infos = env.step(np.zeros(4, np.int64))
        assert rewards.shape == terminated.shape == truncated.shape == (4,) and obs is not before
        if truncated.any():
            break
    assert truncated.all() and infos["_final_obs"].all()
    assert not np.array_equal(infos["final_obs"], obs), "the next episode has begun"
    with pytest.raises(ValueError, match="num_envs is 3"):
        gymnasium.make_vec("cleanrl_games/RocketLeague-v0", num_envs=3)


VECTOR = {"RocketLeague": {"max_seconds": 1.0}, "VGC": {"turn_cap": 3}, "OSRS": {"max_ticks": 30}}


def play_vector(env, seed, steps):
    """Masked random play → everything that was seen"""
    dice = np.random.default_rng(1)
    obs, infos = env.reset(seed=seed)
    seen = [obs]
    for _ in range(steps):
        if isinstance(env.single_action_space, gymnasium.spaces.Discrete):
            actions = np.array([dice.choice(np.flatnonzero(mask)) for mask in infos["action_mask"]])
        else:
            heads = [np.split(mask, np.cumsum(HEAD_SIZES)[:-1]) for mask in infos["action_mask"]]
            actions = np.array([choose(None, mask, dice) for mask in heads])
        assert env.action_space.contains(actions)
        obs, rewards, over, cut, infos = env.step(actions)
        assert env.observation_space.contains(obs) and rewards.shape == over.shape == cut.shape == (env.num_envs,)
        ended = over | cut
        assert ended.any() == ("final_obs" in infos) and not (over & cut).any()
        if ended.any():
            np.testing.assert_array_equal(infos["_final_obs"], ended)
            np.testing.assert_array_equal(ended[0::2], ended[1::2])  # both sides of a game end together
        seen.append((obs, rewards, over, cut, infos))
    return seen


@pytest.mark.parametrize("name", VECTOR)
def test_vector_environments(name):
    """Every id can be made by Gymnasium; a seed is a course of games, reset() goes on to others, and close() closes."""
    env = gymnasium.make_vec(f"cleanrl_games/{name}-v0", num_envs=4, **VECTOR[name])
    try:
        assert isinstance(env.unwrapped, gymnasium.vector.VectorEnv) and env.num_envs == 4
        assert env.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.SAME_STEP
        first, other, again = (play_vector(env, seed, 40) for seed in (5, None, 5))
        np.testing.assert_equal(first, again)
        with pytest.raises(AssertionError):
            np.testing.assert_equal(first[0], other[0])
        assert sum(step[3].sum() for step in first[1:]) > 0, "games are cut, and go on"
        rewards = np.sum([step[1] for step in first[1:]], axis=0)
        np.testing.assert_allclose(rewards[0::2], -rewards[1::2])
        with pytest.raises(ValueError, match="step expects"):
            env.step(np.zeros(3, np.int64))
    finally:
        env.close()
    with pytest.raises(ValueError, match="num_envs is 3"):
        gymnasium.make_vec(f"cleanrl_games/{name}-v0", num_envs=3)


def test_who_is_not_asked_waits_in_the_vector_environment():
    env = gymnasium.make_vec("cleanrl_games/VGC-v0", num_envs=4)
    try:
        steps = play_vector(env, 4, 60)[1:]
        waiting = np.array([infos["waiting"] for *_, infos in steps])
        assert waiting.any() and not waiting.all(1).any()
        for before, after in itertools.pairwise(steps):
            masks, still = after[4]["action_mask"], after[4]["waiting"]
            assert (masks[still].sum(1) == 1).all() and masks[still, 0].all() and masks.any(1).all()
            np.testing.assert_array_equal(after[0]["ints"][still], before[0]["ints"][still])
        ends = [(rewards[over], over) for _, rewards, over, _, _ in steps if over.any()]
        assert ends and all(set(paid) <= {-1.0, 0.0, 1.0} for paid, _ in ends)
    finally:
        env.close()


@pytest.mark.parametrize("make", [lambda: NHVecEnv(2), lambda: RocketLeagueVecEnv(2)], ids=["osrs", "rocketleague"])
def test_batch_environments_reset_and_close(make):
    """reset(seed) is the seed's start, reset() another one; spaces are there."""
    env = make()
    obs = env.obs.copy()
    np.testing.assert_array_equal(env.reset(1)[0], obs)
    starts = [env.reset()[0].copy() for _ in range(8)]
    assert any((start != obs).any() for start in starts)
    np.testing.assert_array_equal(env.reset(seed=1)[0], obs)
    row = obs.reshape(-1, obs.shape[-1])[0]
    assert env.single_observation_space.contains(row) and env.single_action_space.contains(
        env.single_action_space.sample()
    )
    env.close()


def test_vgc_battles_reset():
    with VGCVecEnv(2, opponents=[("open", "random"), ("open", "open")], seed=3) as env:
        first, pids = env.recv(), env.pids()
        env.reset()
        after = env.recv()
        assert (after.episode == 1).all() and env.pids() != pids
        env.reset(seed=3)
        again = env.recv()
        np.testing.assert_array_equal(first.frames, again.frames)
        frame = {"ints": again.ints[0], "floats": again.floats[0]}
        assert env.single_observation_space.contains(frame) and env.single_action_space.n == 2025
        env.send(again.key[again.decisions], again.mask[again.decisions].argmax(1))
        assert len(env.recv()), "the battles go on"


def test_an_osrs_fight_pays_and_checks_what_it_is_given():
    env = NHVecEnv(2, max_ticks=400)
    dice, paid = np.random.default_rng(1), np.zeros(2)
    for _ in range(400):
        actions = dice.integers(0, HEAD_SIZES, (2, 2, NUM_HEADS))
        _, _, rewards, terminated, _, info = env.step(actions)
        for fight in np.flatnonzero(terminated):
            expected = {1: (1, -1), 2: (-1, 1), 3: (-1, -1)}[int(info["result"][fight])]
            np.testing.assert_array_equal(rewards[fight], expected)
            paid += rewards[fight]
    good = np.zeros((2, 2, NUM_HEADS), np.int64)
    for bad, sentence in (
        (good[:1], "whole numbers of shape"),
        (good[:, :, :11], "whole numbers of shape"),
        (good.astype(float), "whole numbers of shape"),
        (good - 1, "heads' sizes"),
        (good + 9, "heads' sizes"),
    ):
        with pytest.raises(ValueError, match=sentence):
            env.step(bad)
    with pytest.raises(ValueError, match="Unknown reward term 'kos'"):
        NHVecEnv(1, reward_weights={"kos": 1.0})
    with pytest.raises(ValueError, match=f"should be {NUM_TERMS} numbers"):
        NHVecEnv(1, reward_weights=[1.0])
