"""One match for `tools/watch.py`: what a page needs to draw it in 3-D, what the policies think, and a person's keys."""

import numpy as np
import torch

from .contract import ACTION_TABLE, BIG_PADS, CONTROL_NAMES, NO_OP, TICK_RATE
from .observations import (
    BALL_POSITION,
    BALL_SPIN,
    BALL_VELOCITY,
    BOOST,
    DEMOED,
    FORWARD,
    ON_GROUND,
    POSITION,
    UP,
    VELOCITY,
)
from .scripted import PLAYERS, ScriptedPlayer, find_action
from .vec_env import RocketLeagueVecEnv

OPPONENTS, DEFAULT_OPPONENT = PLAYERS, "rule"
KEYS = {
    "throttle": (-1, 1),
    "steer": (-1, 1),
    "pitch": (-1, 1),
    "roll": (-1, 1),
    "jump": (0, 1),
    "boost": (0, 1),
    "handbrake": (0, 1),
}
_BOOSTING = CONTROL_NAMES.index("boost")
_JUMPING = CONTROL_NAMES.index("jump")


def rounded(values, digits=0):
    return [round(float(value), digits) if digits else round(float(value)) for value in values]


def pads_of(env, arena):
    """Places and sizes of the boost pads: [x, y, is big]"""
    return [
        [*rounded(pad.get_pos().as_tuple()[:2]), int(i in BIG_PADS)] for i, pad in enumerate(env.pad_objects[arena])
    ]


def scene_of(env, arena, actions):
    """Positions in game units; a car is [x y z, forward, up, boost, flags] with flags 1 boosting, 2 on the ground, 4
    demolished."""
    cars = []
    for row, action in zip(env.cars[env._rows(arena)], actions[env._rows(arena)], strict=True):
        boosting = bool(ACTION_TABLE[action][_BOOSTING]) and row[BOOST] > 0
        flags = int(boosting) + 2 * int(row[ON_GROUND] > 0) + 4 * int(row[DEMOED] > 0)
        place = rounded(row[POSITION : POSITION + 3])
        axes = rounded([*row[FORWARD : FORWARD + 3], *row[UP : UP + 3]], 3)
        cars.append(
            [*place, *axes, round(float(row[BOOST])), flags, round(float(np.linalg.norm(row[VELOCITY : VELOCITY + 3])))]
        )
    ball = env.balls[arena]
    return {
        "ball": rounded(ball[BALL_POSITION : BALL_POSITION + 3]),
        "velocity": rounded(ball[BALL_VELOCITY : BALL_VELOCITY + 3]),
        "spin": rounded(ball[BALL_SPIN : BALL_SPIN + 3], 2),
        "cars": cars,
        "pads": "".join("1" if timer == 0 else "0" for timer in env.pad_timers[arena]),
        "seconds": round(int(env.lengths[arena]) * env.action_repeat / TICK_RATE, 2),
    }


def last_scene(env, scene, goal):
    """After the last step, when a new kickoff has begun: the ball flies on into the goal."""
    seconds = env.action_repeat / TICK_RATE
    ball = [place + speed * seconds for place, speed in zip(scene["ball"], scene["velocity"])]
    if goal:
        ball[1] = goal * max(abs(ball[1]), 5230)
    return scene | {"ball": rounded(ball), "seconds": round(scene["seconds"] + seconds, 2), "goal": goal}


class SceneRecorder:
    """Scenes of one arena of a batch: `start(env)`, then `frame(actions)` after every step and `goal(who)` at the
    end."""

    def __init__(self, index=0):
        self.index, self.scenes = index, []

    def start(self, env):
        self.env, self.pads = env, pads_of(env, self.index)
        self.frame(np.full(env.num_agents, NO_OP, np.int64))

    def frame(self, actions):
        self.scenes.append(scene_of(self.env, self.index, actions))

    def goal(self, who):
        """`who` is 1 when blue scored, -1 when orange did, 0 when time ran out"""
        self.scenes.append(last_scene(self.env, self.scenes[-1], int(who)))


def action_words(action):
    """What an action of the table does, in words"""
    controls = dict(zip(CONTROL_NAMES, ACTION_TABLE[action]))
    found = []
    if controls["boost"]:
        found.append("boost")
    elif controls["throttle"]:
        found.append("forward" if controls["throttle"] > 0 else "back")
    for name, low, high in (
        ("steer", "left", "right"),
        ("pitch", "nose down", "nose up"),
        ("roll", "roll left", "roll right"),
    ):
        if controls[name]:
            found.append(high if controls[name] > 0 else low)
    for name, word in (("jump", "jump"), ("handbrake", "slide")):
        if controls[name]:
            found.append(word)
    return " + ".join(found) or "nothing"


ACTION_WORDS = [action_words(action) for action in range(len(ACTION_TABLE))]


class Match:
    """One kickoff after another. Seat 0 is blue and seat 1 orange; a person drives the only car of its team."""

    waits = False

    def __init__(self, seats, seed=1, deterministic=False, team_size=1, max_seconds=60.0, **env_settings):
        self.seats, self.seed, self.deterministic = seats, seed, deterministic
        if any(seat.kind == "person" for seat in seats) and team_size != 1:
            raise ValueError(f"A person drives one car: play with --team-size 1, not {team_size}.")
        self.env = RocketLeagueVecEnv(
            1, (team_size,), seed=seed, max_seconds=max_seconds, no_touch_seconds=max_seconds, **env_settings
        )
        self.rows = [np.flatnonzero(self.env.agent_team == team) for team in range(2)]
        self.generators = [torch.Generator().manual_seed(seed + 1 + side) for side in range(2)]
        self.scripted = [
            ScriptedPlayer(seat.name, seed + 3 + side) if seat.kind == "scripted" else None
            for side, seat in enumerate(seats)
        ]
        self.frame_seconds = self.env.action_repeat / TICK_RATE
        self.actions = np.full(self.env.num_agents, NO_OP, np.int64)
        self.held = {}

    def info(self):
        return {
            "pads": pads_of(self.env, 0),
            "team_size": int(self.env.sizes[0]),
            "hertz": round(1 / self.frame_seconds),
        }

    def begin(self):
        self.states = [
            torch.zeros(len(rows), seat.model.agent.state_size) if seat.kind == "model" else None
            for rows, seat in zip(self.rows, self.seats)
        ]
        self.actions[:] = NO_OP
        self.scene = scene_of(self.env, 0, self.actions)
        return [{"scene": self.scene}]

    def skip(self):
        self.seed += 1
        self.env.reset(self.seed)

    def check(self, answer):
        known = isinstance(answer, dict) and all(name in KEYS for name in answer)
        if not known or not all(value in (-1, 0, 1) and value >= KEYS[name][0] for name, value in answer.items()):
            raise ValueError(f"A person's controls are {', '.join(KEYS)}, each -1, 0 or 1.")
        return answer

    def question(self):
        return {} if any(seat.kind == "person" for seat in self.seats) else None

    @torch.no_grad()
    def think(self, side):
        agent, rows = self.seats[side].model.agent, self.rows[side]
        obs, masks = torch.from_numpy(self.env.obs[rows]), torch.from_numpy(self.env.masks[rows])
        before = self.states[side]
        actions, _, values, self.states[side] = agent.act(obs, masks, before, self.generators[side], self.deterministic)
        features, _ = agent.step(obs[:1], before[:1])
        chances = agent.logprobs(features, masks[:1])[0].exp()
        best = chances.argsort(descending=True)[:6].tolist()
        taken = int(actions[0])
        options = [[ACTION_WORDS[i], round(float(chances[i]), 3), i == taken] for i in best]
        if taken not in best:
            options.append([ACTION_WORDS[taken], round(float(chances[taken]), 3), True])
        return actions.numpy(), {
            "value": round(float(values[0]), 4),
            "groups": [{"name": "controls", "options": options}],
        }

    def drive(self, answer):
        held = dict.fromkeys(KEYS, 0) | (answer or {})
        return find_action(**{name: np.array([value]) for name, value in held.items()})

    def step(self, answer=None):
        minds = [None, None]
        for side, seat in enumerate(self.seats):
            if seat.kind == "model":
                self.actions[self.rows[side]], minds[side] = self.think(side)
            elif seat.kind == "scripted":
                self.scripted[side].act(self.env.obs, self.env.masks, self.rows[side], self.actions)
            else:
                self.actions[self.rows[side]] = self.drive(answer)
        _, _, _, terminated, truncated, info = self.env.step(self.actions)
        if not (terminated[0] or truncated[0]):
            self.scene = scene_of(self.env, 0, self.actions)
            return [{"scene": self.scene, "minds": minds}]
        goal = int(info["goal"][0])
        winner = {1: 0, -1: 1, 0: None}[goal]
        text = f"{self.seats[winner].name} scores" if winner is not None else "time is up"
        return [
            {"scene": last_scene(self.env, self.scene, goal), "minds": minds, "over": {"winner": winner, "text": text}}
        ]

    def close(self):
        pass
