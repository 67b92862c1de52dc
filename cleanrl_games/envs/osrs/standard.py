"""OSRS fights behind the interfaces that other libraries know: Gymnasium's VectorEnv, and PettingZoo's ParallelEnv, one
fight at a time."""

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space
from pettingzoo import ParallelEnv

from .contract import HEAD_SIZES, NUM_OBS
from .vec_env import NHVecEnv

FIGHTERS = ("fighter_0", "fighter_1")


class OSRSVectorEnv(gym.vector.VectorEnv):
    """Every fighter is one of `num_envs` environments; 2·i and 2·i + 1 fight each other.

    A fight that ends starts anew in the same step. `infos` has `action_mask` (num_envs, 45), all heads in a row, and
    where a fight ended `final_obs` and `_final_obs`."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, num_envs=2, **settings):
        """num_envs: fighters in all; settings: those of NHVecEnv"""
        if num_envs < 2 or num_envs % 2:
            raise ValueError(f"num_envs is {num_envs}: give an even number, two for each fight.")
        self.env, self.num_envs = NHVecEnv(num_envs // 2, **settings), num_envs
        self.single_observation_space = self.env.single_observation_space
        self.single_action_space = self.env.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def _flat(self, array):
        """(fights, 2, …) → (num_envs, …), a copy"""
        return array.reshape(self.num_envs, *array.shape[2:]).copy()

    def reset(self, *, seed=None, options=None):
        """With a seed the fights are that seed's first ones. Without, they are the next fights."""
        obs, masks = self.env.reset(seed)
        return self._flat(obs), {"action_mask": self._flat(masks)}

    def step(self, actions):
        chosen = np.asarray(actions)
        if chosen.shape != self.action_space.shape:
            raise ValueError(f"step expects actions of shape {self.action_space.shape}, found {chosen.shape}.")
        obs, masks, rewards, terminated, truncated, info = self.env.step(chosen.reshape(-1, 2, chosen.shape[1]))
        over, cut = np.repeat(terminated, 2), np.repeat(truncated, 2)
        infos = {"action_mask": self._flat(masks), "result": np.repeat(info["result"], 2)}
        if (over | cut).any():
            infos |= {"final_obs": self._flat(info["final_obs"]), "_final_obs": over | cut}
        return self._flat(obs), self._flat(rewards), over, cut, infos


class OSRSParallelEnv(ParallelEnv):
    """Agents are fighter_0 and fighter_1. An action has twelve numbers, one for each head.

    An observation is {"observation", "action_mask"}; the mask has an array for each head, as MultiDiscrete.sample takes
    it. An action that the mask forbids does nothing on the server, and nothing here."""

    metadata = {"name": "osrs_v0", "render_modes": []}  # noqa: RUF012 (PettingZoo's own convention)
    render_mode = None

    def __init__(self, seed=1, **settings):
        """settings: those of NHVecEnv, such as loadouts, max_ticks, reward_weights"""
        self.env, self.seed = NHVecEnv(1, seed=seed, **settings), seed
        self.possible_agents, self.agents, self.fresh = list(FIGHTERS), [], True
        space = gym.spaces.Dict(
            {
                "observation": gym.spaces.Box(-np.inf, np.inf, (NUM_OBS,), np.float32),
                "action_mask": gym.spaces.Tuple([gym.spaces.Box(0, 1, (size,), np.int8) for size in HEAD_SIZES]),
            }
        )
        self.observation_spaces = dict.fromkeys(FIGHTERS, space)
        self.action_spaces = {agent: gym.spaces.MultiDiscrete(HEAD_SIZES) for agent in FIGHTERS}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def _observations(self, obs):
        ends = np.cumsum(HEAD_SIZES)[:-1]
        masks = [tuple(np.split(mask, ends)) for mask in self.env.masks[0].astype(np.int8)]
        return {agent: {"observation": obs[0, i].copy(), "action_mask": masks[i]} for i, agent in enumerate(FIGHTERS)}

    def reset(self, seed=None, options=None):
        """With a seed the fight is that seed's first one. Without, it is the next fight."""
        if seed is not None or not self.fresh:
            self.seed = self.seed + 1 if seed is None else int(seed)
            self.env.reset(self.seed)
        self.agents, self.fresh = list(FIGHTERS), False
        return self._observations(self.env.obs), {agent: {} for agent in FIGHTERS}

    def step(self, actions):
        if set(actions) != set(self.agents):
            raise ValueError(f"step expects an action of each of {self.agents}, found {list(actions)}.")
        chosen = np.array([[actions[agent] for agent in FIGHTERS]])
        obs, _, rewards, terminated, truncated, info = self.env.step(chosen)
        over, cut = bool(terminated[0]), bool(truncated[0])
        observations = self._observations(info["final_obs"] if over or cut else obs)
        if over or cut:
            self.agents, self.fresh = [], True
        return (
            observations,
            {agent: float(rewards[0, i]) for i, agent in enumerate(FIGHTERS)},
            dict.fromkeys(FIGHTERS, over),
            dict.fromkeys(FIGHTERS, cut),
            {agent: {"result": int(info["result"][0])} for agent in FIGHTERS},
        )

    def close(self):
        self.env.close()
