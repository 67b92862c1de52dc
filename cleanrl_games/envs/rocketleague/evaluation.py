"""A script's policy as a player, and how often it touches the ball. Nothing here is seen by a learner.

A policy has `state_size` and `act`, as the `Agent` of recurrent_ppo_rocketleague.py.
"""

import torch

from .match import touches_per_minute
from .scripted import ScriptedPlayer


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
            torch.from_numpy(obs[rows]),
            torch.from_numpy(masks[rows]),
            self.memory[rows],
            self.generator,
            self.deterministic,
        )
        actions[rows] = chosen.numpy()


def touch_metrics(agent, make_env, seed):
    """In the same half minute for the agent and for random play: games begin near the ball, so its length matters"""
    touches, random_touches = (
        touches_per_minute(player, make_env(), 30.0) for player in (Player(agent, seed), ScriptedPlayer("random", seed))
    )
    return {"eval/touches_per_minute": touches, "eval/touch_ratio": touches / max(random_touches, 1e-3)}
