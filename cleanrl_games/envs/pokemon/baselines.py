"""Players that understand nothing, and what they reach: the floor that anything trained has to leave behind.

    python -m cleanrl_games.envs.pokemon.baselines [--worlds 64] [--max-steps 600] [--compass none]

| name     | what it does |
|----------|---|
| random   | any of the ten buttons |
| masher   | A half of the time, else a random direction |
| follower | reads the needle on the screen, if there is one, and presses A at whatever stops it and in every battle |
| walker   | walks as the expert does, who reads RAM, and presses A in every battle |
| expert   | the scripted expert |

The last line is one JSON object: the share of worlds that each finished, and its milestones on average.
"""

import argparse
import json

import numpy as np

from .env import ACTIONS, QUEST_SEEDS, PokemonEnv
from .expert import QuestExpert
from .ram import COMPASSES

A, UP, DOWN, LEFT, RIGHT = (ACTIONS.index(name) for name in ("A", "UP", "DOWN", "LEFT", "RIGHT"))
NEEDLE_COLUMNS = slice(206, 240)


def read_needle(obs):
    """(160, 240, 3) → the direction that the needle in the top bar shows, None without one"""
    bar = obs[:16, NEEDLE_COLUMNS].astype(int)
    yellow = (bar[..., 0] > 200) & (bar[..., 1] > 170) & (bar[..., 2] < 140)
    if yellow.sum() < 40:
        return None
    rows, columns = np.nonzero(yellow)
    # upright needles stay in the middle, the others swing to their side
    if abs(columns.mean() - 17.5) > 3:
        return LEFT if columns.mean() < 17.5 else RIGHT
    return UP if rows.mean() > 7.5 else DOWN


class RandomPlayer:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def act(self, env, obs, info):
        return int(self.rng.integers(len(ACTIONS)))


class Masher(RandomPlayer):
    def act(self, env, obs, info):
        return A if self.rng.random() < 0.5 else int(self.rng.choice((UP, DOWN, LEFT, RIGHT)))


class NeedleFollower(RandomPlayer):
    """Sees pixels only. What the button before has not changed is answered with A."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.before, self.action = None, DOWN

    def act(self, env, obs, info):
        is_stuck = self.before is not None and np.array_equal(obs, self.before)
        self.before = obs
        needle = read_needle(obs)
        if is_stuck and self.action != A:
            self.action = A
        elif needle is not None:
            self.action = needle
        elif is_stuck or (self.action == A and self.rng.random() < 0.5):
            self.action = int(self.rng.choice((UP, DOWN, LEFT, RIGHT)))
        return self.action


class Walker:
    """Knows every way, and nothing of battles."""

    def __init__(self, seed=0):
        self.expert = QuestExpert()

    def act(self, env, obs, info):
        return A if info["mode"] in ("menu", "message") else self.expert.act(env)


class Expert(Walker):
    def act(self, env, obs, info):
        return self.expert.act(env)


PLAYERS = {"random": RandomPlayer, "masher": Masher, "follower": NeedleFollower, "walker": Walker, "expert": Expert}


def play(env, player, world, pictures=None):
    """→ finished?, milestones, steps, battles lost. pictures: a list that gets every screen"""
    obs, info = env.reset(options={"quest_seed": world})
    done = False
    while not done:
        if pictures is not None:
            pictures.append(obs)
        obs, _, terminated, truncated, info = env.step(player.act(env, obs, info))
        done = terminated or truncated
    if pictures is not None:
        pictures.append(obs)
    return terminated, info["milestones_reached"], info["steps"], info["losses"]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--worlds", type=int, default=64, help="how many worlds: the last ones, which training leaves out"
    )
    parser.add_argument("--max-steps", type=int, default=600)
    parser.add_argument("--compass", choices=COMPASSES, default="none")
    parser.add_argument("--players", nargs="+", choices=tuple(PLAYERS), default=tuple(PLAYERS))
    args = parser.parse_args(argv)
    if not 1 <= args.worlds <= QUEST_SEEDS:
        parser.error(f"--worlds should be from 1 to {QUEST_SEEDS}, found {args.worlds}.")
    env = PokemonEnv(max_steps=args.max_steps, compass=args.compass)
    figures = {}
    print(f"{'player':<10}{'finished':>12}{'milestones':>12}{'steps':>8}{'losses':>8}")
    for name in args.players:
        rows = [play(env, PLAYERS[name](world), world) for world in range(QUEST_SEEDS - args.worlds, QUEST_SEEDS)]
        finished, milestones, steps, losses = np.array(rows, float).T
        print(
            f"{name:<10}{int(finished.sum()):>5} of "
            f"{args.worlds:<3}{milestones.mean():>12.2f}{steps.mean():>8.1f}{losses.mean():>8.2f}",
            flush=True,
        )
        figures |= {f"success/{name}": finished.mean(), f"milestones/{name}": milestones.mean()}
    env.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
