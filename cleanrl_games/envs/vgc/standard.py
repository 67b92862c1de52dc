"""VGC behind the interfaces that other libraries know: Gymnasium's VectorEnv, and PettingZoo's ParallelEnv, one battle
at a time.

They are made for trying things and for libraries that need them. Training at speed is what `VGCVecEnv` is for."""

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space
from pettingzoo import ParallelEnv

from .mdbo import NUM_ACTIONS
from .vec_env import VGCVecEnv
from .vocabulary import FLOATS, INTS

SIDES = ("p1", "p2")


class VGCVectorEnv(gym.vector.VectorEnv):
    """Every player is one of `num_envs` environments; 2·i and 2·i + 1 play the same battle.

    `infos` has `action_mask` (num_envs, 2025) and `waiting` (num_envs,): who is not asked sees the last observation
    again, may only take action 0, and is not heard. A battle that ends starts anew in the same step; `final_obs` and
    `_final_obs` then hold what it ended with."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, num_envs=2, **settings):
        """num_envs: players in all; settings: those of VGCVecEnv, such as battle_format, teams, turn_cap, num_sims"""
        if num_envs < 2 or num_envs % 2:
            raise ValueError(f"num_envs is {num_envs}: give an even number, two for each battle.")
        if settings.get("opponents"):
            raise ValueError("opponents: here both players of every battle are open; VGCVecEnv has scripted ones.")
        self.env, self.num_envs, self.fresh = VGCVecEnv(num_envs // 2, **settings), num_envs, True
        self.single_observation_space = self.env.single_observation_space
        self.single_action_space = self.env.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.obs = {
            "ints": np.zeros((num_envs, self.env.num_ints), np.int16),
            "floats": np.zeros((num_envs, self.env.num_floats), np.float32),
        }
        self.asked = np.zeros(num_envs, bool)

    def _read(self):
        """Takes what became pending → (the batch, its masks by seat)"""
        batch = self.env.recv()
        rows, masks = batch.decisions, np.zeros((self.num_envs, NUM_ACTIONS), bool)
        keys = batch.key[rows]
        self.asked[:] = False
        self.asked[keys] = True
        self.obs["ints"][keys], self.obs["floats"][keys] = batch.ints[rows], batch.floats[rows]
        masks[keys] = batch.mask[rows]
        masks[~self.asked, 0] = True
        return batch, masks

    def _shown(self, masks):
        obs = {name: array.copy() for name, array in self.obs.items()}
        return obs, {"action_mask": masks, "waiting": ~self.asked}

    def reset(self, *, seed=None, options=None):
        """With a seed the battles are that seed's first ones. Without, they are the next battles."""
        if seed is not None or not self.fresh:
            self.env.reset(seed)
        self.fresh = False
        return self._shown(self._read()[1])

    def step(self, actions):
        chosen = np.asarray(actions)
        if chosen.shape != (self.num_envs,) or chosen.dtype.kind not in "iu":
            raise ValueError(f"step expects {self.num_envs} whole numbers, found {chosen.dtype} of {chosen.shape}.")
        keys = np.flatnonzero(self.asked)
        self.env.send(keys, chosen[keys])
        batch, masks = self._read()
        rewards, over, cut = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), bool)
        ended = batch.key[batch.ends]
        rewards[ended] = batch.reward[batch.ends]
        over[ended], cut[ended] = batch.terminated[batch.ends], batch.truncated[batch.ends]
        obs, infos = self._shown(masks)
        if len(ended):
            final = {name: np.zeros_like(array) for name, array in self.obs.items()}
            final["ints"][ended], final["floats"][ended] = batch.ints[batch.ends], batch.floats[batch.ends]
            infos |= {"final_obs": final, "_final_obs": over | cut}
        return obs, rewards, over, cut, infos

    def close_extras(self, **_):
        self.env.close()


class VGCParallelEnv(ParallelEnv):
    """Agents are p1 and p2. An observation is {"ints", "floats", "action_mask"}; docs/vgc_features.md has the columns.

    Sometimes only one player is asked, for a forced switch. The other one sees its last observation again, has
    info["waiting"], and a mask that allows action 0 only, which is then ignored. A reward of 1, 0 or -1 comes with the
    end."""

    metadata = {"name": "vgc_v0", "render_modes": []}  # noqa: RUF012 (PettingZoo's own convention)
    render_mode = None

    def __init__(self, battle_format="gen9vgc2024regg", seed=1, **settings):
        """settings: those of VGCVecEnv, such as teams, open_team_sheets, turn_cap"""
        self.battle_format, self.seed, self.settings, self.env = battle_format, seed, settings, None
        self.possible_agents, self.agents, self.asked, self.fresh = list(SIDES), [], {}, False
        space = gym.spaces.Dict(
            {
                "ints": gym.spaces.Box(-(2**15), 2**15 - 1, (INTS,), np.int16),
                "floats": gym.spaces.Box(-np.inf, np.inf, (FLOATS,), np.float32),
                "action_mask": gym.spaces.Box(0, 1, (NUM_ACTIONS,), np.int8),
            }
        )
        self.observation_spaces = dict.fromkeys(SIDES, space)
        self.action_spaces = {agent: gym.spaces.Discrete(NUM_ACTIONS) for agent in SIDES}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        """With a seed the battle is that seed's first one. Without, it is the next battle."""
        if not (self.env and self.fresh and seed is None):
            if seed is not None:
                self.seed = int(seed)
            elif self.env:  # in the middle of a battle
                self.seed += 1
            self.close()
            self.env = VGCVecEnv(1, 1, self.battle_format, seed=self.seed, **self.settings)
            self.frames, self.asked = {}, {}
            self._read()
        self.agents, self.fresh = list(SIDES), False
        return self._observations(), {agent: {"waiting": agent not in self.asked} for agent in SIDES}

    def _read(self):
        """Takes what became pending → the rows that close the battle, by agent"""
        batch = self.env.recv()
        ends = {SIDES[batch.side[row]]: batch.frames[row] for row in batch.ends}
        masks = batch.mask
        for row in batch.decisions:
            agent = SIDES[batch.side[row]]
            self.asked[agent] = int(batch.key[row])
            self.frames[agent] = {
                "ints": batch.ints[row].copy(),
                "floats": batch.floats[row].copy(),
                "action_mask": masks[row].astype(np.int8),
            }
        return ends

    def _observations(self):
        waiting = np.zeros(NUM_ACTIONS, np.int8)
        waiting[0] = 1
        return {
            agent: self.frames[agent] if agent in self.asked else {**self.frames[agent], "action_mask": waiting.copy()}
            for agent in SIDES
        }

    def step(self, actions):
        if set(actions) != set(self.agents):
            raise ValueError(f"step expects an action of each of {self.agents}, found {list(actions)}.")
        answered = list(self.asked)
        self.env.send([self.asked[agent] for agent in answered], [int(actions[agent]) for agent in answered])
        self.asked = {}
        before = dict(self.frames)
        ends = self._read()
        if not ends:
            nothing = dict.fromkeys(SIDES, False)
            infos = {agent: {"waiting": agent not in self.asked} for agent in SIDES}
            return self._observations(), dict.fromkeys(SIDES, 0.0), nothing, dict(nothing), infos
        # The next battle's previews came along; they are what reset() shows.
        self.agents, self.fresh = [], True
        last = {
            agent: {
                "ints": ends[agent]["ints"].copy(),
                "floats": ends[agent]["floats"].copy(),
                "action_mask": np.zeros_like(before[agent]["action_mask"]),
            }
            for agent in SIDES
        }
        return (
            last,
            {agent: float(ends[agent]["reward"]) for agent in SIDES},
            {agent: bool(ends[agent]["terminated"]) for agent in SIDES},
            {agent: bool(ends[agent]["truncated"]) for agent in SIDES},
            {agent: {"waiting": False, "winner": int(ends[agent]["winner"])} for agent in SIDES},
        )

    def close(self):
        if self.env:
            self.env.close()
            self.env = None
