"""A script's policy as a player, and what it wins. Nothing here is seen by a learner.

A policy has `hidden_size`, `encode`, `unroll`, `act` and `joint_logprobs`, as the `Agent` of the VGC scripts.
"""

import copy

import torch

from cleanrl_games.envs import run
from cleanrl_games.envs.vgc.match import BASELINES, play_battles
from cleanrl_games.envs.vgc.vec_env import PREVIEW


class Player:
    """A policy as a player for `play_battles`; its memory of a battle is kept by seat."""

    def __init__(self, agent, seed=1, deterministic=False):
        self.agent, self.deterministic = agent, deterministic
        self.generator = torch.Generator().manual_seed(seed)
        self.states = torch.zeros(0, 2, 2, agent.hidden_size)  # by key: before and after the seat's last decision

    @torch.no_grad()
    def act(self, batch, rows):
        keys, preview = torch.from_numpy(batch.key[rows]).long(), torch.from_numpy(batch.kind[rows] == PREVIEW)
        if len(keys) and keys.max() >= len(self.states):
            self.states = torch.cat([self.states, torch.zeros(int(keys.max()) + 1 - len(self.states), *self.states.shape[1:])])
        retry = torch.from_numpy(batch.retry[rows].copy())
        before = torch.where(retry[:, None, None], self.states[keys, 0], self.states[keys, 1])  # (B, 2, H)
        core, things = self.agent.encode(torch.from_numpy(batch.ints[rows]), torch.from_numpy(batch.floats[rows]))
        hidden, after = self.agent.unroll(core[None], before.transpose(0, 1), preview[None])
        self.states[keys, 0], self.states[keys, 1] = before, after.transpose(0, 1)
        joint = torch.from_numpy(batch.mask[rows])
        if self.deterministic:
            return self.agent.joint_logprobs(hidden[0], things, preview, joint).argmax(1).numpy()
        return self.agent.act(hidden[0], things, preview, joint, self.generator)[0].numpy()


def evaluate(args, agent, battles, opponents=None):
    """On held-out teams, against scripted players (by name, None = all of them) and policies: the share of battles won, as eval/*."""
    policy, metrics = copy.deepcopy(agent).cpu().eval(), {}
    for name, other in (opponents or dict(zip(BASELINES, BASELINES))).items():
        player = Player(policy, args.seed, args.deterministic)
        opponent = other if isinstance(other, str) else Player(other, args.seed + 1, args.deterministic)
        scores, _ = play_battles(player, opponent, battles, args.battle_format, seed=args.seed + 7919)  # not the seed of any actor
        metrics |= run.score_metrics(name, scores)
    return metrics
