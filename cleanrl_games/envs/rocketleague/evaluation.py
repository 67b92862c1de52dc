"""A script's policy as a player, its rating matches, how often it touches the ball. Nothing here is seen by a learner.

A policy has `state_size` and `act`, as the `Agent` of recurrent_ppo_rocketleague.py.
"""

import torch

from .contract import TICK_RATE
from .match import play_kickoffs, touches_per_minute
from .ratings import append_games, rate_match
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


def rating_match(args, agent, rating, opponent, opponent_rating, team_size, seed, folder, global_step, stage):
    """Kickoffs with sides swapped, against a scripted player (by name) or another agent → scores

    Both ratings move; every game is a line in the folder's games.csv, and one against `rule` a GIF under
    --capture-video."""
    other = ScriptedPlayer(opponent, seed) if isinstance(opponent, str) else Player(opponent, seed + 1)
    video = folder / "videos" / f"{global_step}.gif" if args.capture_video and opponent == "rule" else ""
    if video:
        video.parent.mkdir(exist_ok=True)
    settings = {
        "action_repeat": args.action_repeat,
        "max_seconds": args.eval_seconds,
        "no_touch_seconds": args.eval_seconds,
    }
    settings |= {"mesh_dir": args.mesh_dir, "generated_meshes": args.generated_meshes}
    scores, lengths = play_kickoffs(Player(agent, seed), other, args.eval_episodes, seed, team_size, video, **settings)
    course, seconds = rate_match(rating, opponent_rating, scores, team_size), lengths * args.action_repeat / TICK_RATE
    names = rating["name"], opponent_rating["name"]
    append_games(folder / "games.csv", global_step, stage, team_size, *names, scores, seconds, course)
    return scores


def touch_metrics(agent, make_env, seed):
    """In the same half minute for the agent and for random play: games begin near the ball, so its length matters"""
    touches, random_touches = (
        touches_per_minute(player, make_env(), 30.0) for player in (Player(agent, seed), ScriptedPlayer("random", seed))
    )
    return {"eval/touches_per_minute": touches, "eval/touch_ratio": touches / max(random_touches, 1e-3)}
