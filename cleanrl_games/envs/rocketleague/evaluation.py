"""A script's policy as a player, and its rating matches. Nothing here is seen by a learner.

A policy has `state_size` and `act`, as the `Agent` of recurrent_ppo_rocketleague.py.
"""

import torch

from .match import play_kickoffs
from .rule_policy import RulePolicy


class Player:
    """A policy as a player for `play_kickoffs`; each row has its own memory."""

    def __init__(self, agent, seed=1, deterministic=False):
        self.agent, self.deterministic, self.memory = agent, deterministic, torch.zeros(0, agent.state_size)
        self.generator = torch.Generator().manual_seed(seed)

    def start(self, rows):
        """Empties the memory of these rows: a game begins there."""
        missing = int(rows.max()) + 1 - len(self.memory)
        self.memory = torch.cat([self.memory, torch.zeros(max(missing, 0), self.agent.state_size)])
        self.memory[rows] = 0.0

    @torch.no_grad()
    def act(self, obs, masks, rows, actions):
        chosen, _, _, self.memory[rows] = self.agent.act(
            torch.from_numpy(obs[rows]), torch.from_numpy(masks[rows]), self.memory[rows], self.generator, self.deterministic
        )
        actions[rows] = chosen.numpy()


def rating_match(args, agent, opponent, team_size, seed, video=""):
    """Kickoffs with sides swapped, against a scripted player (by name) or another agent → (scores, lengths in steps)"""
    other = RulePolicy(opponent, seed) if isinstance(opponent, str) else Player(opponent, seed + 1)
    settings = {"action_repeat": args.action_repeat, "max_seconds": args.eval_seconds, "no_touch_seconds": args.eval_seconds}
    settings |= {"mesh_dir": args.mesh_dir, "generated_meshes": args.generated_meshes}
    return play_kickoffs(Player(agent, seed), other, args.eval_episodes, seed, team_size, video, **settings)
