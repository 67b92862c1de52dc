"""A script's policy as a player, and what it wins. Nothing here is seen by a learner.

A policy has `normalise` and `act`, as the `Agent` of ppo_osrs_selfplay.py.
"""

import copy

import numpy as np
import torch

from cleanrl_games.runtime.metrics import score_metrics

from .baselines import BASELINES, Baseline
from .contract import NUM_HEADS
from .match import play_fights


class Player:
    """A policy as a player for `play_fights`."""

    def __init__(self, agent, seed=1, deterministic=False):
        self.agent, self.deterministic = agent, deterministic
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def act(self, obs, masks, rows, actions):
        normalised = self.agent.normalise(torch.from_numpy(obs[rows]))
        greedy = torch.ones(len(rows), NUM_HEADS, dtype=torch.bool) if self.deterministic else None
        actions[rows] = self.agent.act(normalised, torch.from_numpy(masks[rows]), self.generator, greedy)[0].numpy()


def evaluate(args, agent, episodes, video="", targets=(), seed=0):
    """Against the scripted players: the share of fights won (a tie counts half), as eval/*; against policies, each as
    often, as eval/opponent. `video`: a GIF of a fight with the NH bot.

    seed: whoever looks often at the same fights sees the luck of those, so each evaluation has its own."""
    settings = {
        "loadouts": args.loadouts,
        "loadout_file": args.loadout_file or None,
        "mirror": args.mirror,
        "max_ticks": args.max_ticks,
    }
    policy, metrics = copy.deepcopy(agent).cpu().eval(), {}
    seed = int(np.random.default_rng([args.seed, 7919, seed]).integers(2**31))  # not the seed of any actor
    for name in BASELINES:
        opponent = Baseline(name, 2 * episodes, seed)
        scores, _ = play_fights(
            Player(policy, seed), opponent, episodes, seed, video if name == "nh" else "", **settings
        )
        metrics |= score_metrics(name, scores)
    scores = [
        play_fights(Player(policy, seed), Player(target, seed + 1), episodes, seed, **settings)[0] for target in targets
    ]
    if scores:
        metrics |= score_metrics("opponent", np.concatenate(scores))
    return metrics
