"""Rocket League behind the interfaces that other libraries know: Gymnasium's VectorEnv and PettingZoo's ParallelEnv."""

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space
from pettingzoo import ParallelEnv

from .contract import NUM_ACTIONS, NUM_OBS
from .vec_env import RocketLeagueVecEnv


class RocketLeagueVectorEnv(gym.vector.VectorEnv):
    """Every car of every arena is one of `num_envs` environments; who plays against whom is `agent_arena`.

    An arena that ends starts anew in the same step. `infos` has `action_mask` (num_envs, 90), and where an arena ended
    `final_obs` and `_final_obs`."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, num_envs=2, **settings):
        """num_envs: cars in all; settings: those of RocketLeagueVecEnv, `team_sizes` of one number only"""
        team_size = settings.pop("team_sizes", (1,))
        if len(team_size) != 1 or num_envs < 1 or num_envs % (2 * team_size[0]):
            raise ValueError(
                f"num_envs is {num_envs} with team_sizes {team_size}: give one team size, and a multiple of both teams."
            )
        self.env = RocketLeagueVecEnv(num_envs // (2 * team_size[0]), team_sizes=team_size, **settings)
        self.num_envs, self.agent_arena = num_envs, self.env.agent_arena
        self.single_observation_space = self.env.single_observation_space
        self.single_action_space = self.env.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        """With a seed the games are that seed's first ones. Without, they are the next games."""
        obs, masks = self.env.reset(seed)
        return obs.copy(), {"action_mask": masks.copy()}

    def step(self, actions):
        obs, masks, rewards, terminated, truncated, info = self.env.step(actions)
        ended = (terminated | truncated)[self.agent_arena]
        infos = {"action_mask": masks.copy(), "goal": info["goal"][self.agent_arena]}
        if ended.any():
            infos |= {"final_obs": info["final_obs"].copy(), "_final_obs": ended}
        return obs.copy(), rewards, terminated[self.agent_arena], truncated[self.agent_arena], infos

    def close_extras(self, **_):
        self.env.close()


class RocketLeagueParallelEnv(ParallelEnv):
    """One arena. Agents are blue_0 … and orange_0 …; an observation is {"observation", "action_mask"}."""

    metadata = {"name": "rocketleague_v0", "render_modes": []}  # noqa: RUF012 (PettingZoo's own convention)
    render_mode = None

    def __init__(self, team_size=1, seed=1, **settings):
        self.env = RocketLeagueVecEnv(1, team_sizes=(team_size,), seed=seed, **settings)
        self.possible_agents = [f"{team}_{i}" for team in ("blue", "orange") for i in range(team_size)]
        self.agents = []
        self._observation_space = gym.spaces.Dict(
            {
                "observation": gym.spaces.Box(-np.inf, np.inf, (NUM_OBS,), np.float32),
                "action_mask": gym.spaces.Box(0, 1, (NUM_ACTIONS,), np.int8),
            }
        )
        self.observation_spaces = {agent: self._observation_space for agent in self.possible_agents}
        self.action_spaces = {agent: gym.spaces.Discrete(NUM_ACTIONS) for agent in self.possible_agents}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def _observations(self, obs):
        masks = self.env.masks.astype(np.int8)
        return {
            agent: {"observation": obs[i].copy(), "action_mask": masks[i]}
            for i, agent in enumerate(self.possible_agents)
        }

    def reset(self, seed=None, options=None):
        """With a seed the game is that seed's first one. Without, it is the next game."""
        obs, _ = self.env.reset(seed)
        self.agents = list(self.possible_agents)
        return self._observations(obs), {agent: {} for agent in self.agents}

    def step(self, actions):
        if set(actions) != set(self.agents):
            raise ValueError(f"step expects an action of each of {self.agents}, found {list(actions)}.")
        obs, _, rewards, terminated, truncated, info = self.env.step([actions[agent] for agent in self.agents])
        over, cut = bool(terminated[0]), bool(truncated[0])
        agents = self.agents
        observations = self._observations(info["final_obs"] if over or cut else obs)
        if over or cut:
            self.agents = []
        goal = int(info["goal"][0])
        return (
            observations,
            {agent: float(rewards[i]) for i, agent in enumerate(agents)},
            dict.fromkeys(agents, over),
            dict.fromkeys(agents, cut),
            {name: {"goal": -goal if "orange" in name else goal} for name in agents},
        )

    def close(self):
        self.env.close()
