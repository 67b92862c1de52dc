"""Our environments behind the interfaces of Gymnasium and PettingZoo, judged by those libraries' own checkers."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test

import cleanrl_games  # noqa: F401 (registers the ids)
from cleanrl_games.envs.osrs import NHVecEnv
from cleanrl_games.envs.osrs.contract import HEAD_SIZES, NUM_HEADS, NUM_TERMS
from cleanrl_games.envs.osrs.standard import OSRSParallelEnv
from cleanrl_games.envs.rocketleague.standard import RocketLeagueParallelEnv, RocketLeagueVectorEnv
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
