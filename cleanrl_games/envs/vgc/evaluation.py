"""A script's policy as a player, and what it wins. Nothing here is seen by a learner.

A policy has `hidden_size`, `encode`, `unroll`, `act` and `joint_logprobs`, as the `Agent` of the VGC scripts.
"""

import copy

import torch

from cleanrl_games.envs.vgc.match import BASELINES, play_battles
from cleanrl_games.envs.vgc.seats import Memory
from cleanrl_games.envs.vgc.vec_env import PREVIEW
from cleanrl_games.runtime.metrics import score_metrics


class Player(Memory):
    """A policy as a player for `play_battles`; its memory of a battle is kept by seat."""

    def __init__(self, agent, seed=1, deterministic=False):
        super().__init__(0, agent.hidden_size)
        self.agent, self.deterministic = agent, deterministic
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def act(self, batch, rows):
        missing = int(batch.key[rows].max(initial=-1)) + 1 - len(self.states)
        self.states = torch.cat([self.states, torch.zeros(max(missing, 0), *self.states.shape[1:])])
        hidden, things, _ = self.forward(self.agent, batch, rows)
        preview, joint = torch.from_numpy(batch.kind[rows] == PREVIEW), torch.from_numpy(batch.mask[rows])
        if self.deterministic:
            return self.agent.joint_logprobs(hidden, things, preview, joint).argmax(1).numpy()
        return self.agent.act(hidden, things, preview, joint, self.generator)[0].numpy()


def evaluate(args, agent, battles, opponents=None):
    """On held-out teams, against scripted players (by name, None = all of them) and policies: the share of battles won, as eval/*."""
    policy, metrics = copy.deepcopy(agent).cpu().eval(), {}
    for name, other in (opponents or dict(zip(BASELINES, BASELINES))).items():
        player = Player(policy, args.seed, args.deterministic)
        opponent = other if isinstance(other, str) else Player(other, args.seed + 1, args.deterministic)
        scores, _ = play_battles(player, opponent, battles, args.battle_format, seed=args.seed + 7919)  # not the seed of any actor
        metrics |= score_metrics(name, scores)
    return metrics
