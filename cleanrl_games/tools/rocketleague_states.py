"""Frames of replays or shots of training packs → a file of situations that training begins from (--state-file).

    python cleanrl_games/tools/rocketleague_states.py frames.jsonl more.jsonl --output states.npz --every 30 --mirror
    python cleanrl_games/tools/rocketleague_states.py pack.jsonl --output states.npz --fill

Each line of the input is a JSON object, in the game's own units, with y towards orange's goal:

    {"ball": {"position": [0, 0, 93], "velocity": [0, 500, 0], "angular_velocity": [0, 0, 0]},
     "cars": [{"team": 0, "position": [0, -2000, 17], "velocity": [0, 900, 0], "angular_velocity": [0, 0, 0],
               "rotation": [0, 1.57, 0], "boost": 33}, …]}

`rotation` is pitch, yaw and roll in radians, as RLBot has them; `forward` and `up` (unit vectors) may stand in its
place. `team` is 0 or "blue", 1 or "orange". Velocities, rotation and boost (0 to 100) may be missing and are then zero,
level and 33. A car with "demolished": true, a ball in a goal or outside the arena, or uneven teams leave a frame out,
and the tool says how many it left out and why."""

import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import tyro

from cleanrl_games.envs.rocketleague.contract import (
    BACK_WALL,
    BALL_REST_HEIGHT,
    CEILING,
    CORNER_WALL,
    MAX_TEAM,
    SIDE_WALL,
)
from cleanrl_games.envs.rocketleague.states import KICKOFF_PLACES, SPAWN_BOOST, axes, save_states, spawn
from cleanrl_games.runtime.errors import BadInput, end_in_sentences

TEAMS = {0: 0, 1: 1, "blue": 0, "orange": 1}
TURNED = np.array([-1.0, -1.0, 1.0])


@dataclasses.dataclass
class Args:
    frames: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FRAMES.jsonl…")]
    """files of JSON lines, one situation each"""
    output: str = ""
    """the .npz file to write"""
    every: int = 1
    """take every so manieth line: neighbours in a replay are nearly the same"""
    mirror: bool = False
    """each situation once more with the teams swapped: the field turned by 180 degrees"""
    fill: bool = False
    """fill up the smaller team with cars that wait before their goal, as training packs need it; else uneven teams are
    left out"""


class LeftOut(Exception):
    """The frame is sound, but no game could begin there. The message is the reason."""


def numbers(thing, name, default=None):
    """thing[name] as three finite numbers"""
    values = thing.get(name, default)
    if values is None:
        raise ValueError(f"{name} is missing")
    array = np.asarray(values, float) if isinstance(values, (list, tuple)) and len(values) == 3 else np.full(3, np.nan)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} should be three finite numbers, found {values!r}")
    return array


def unit(vector, name):
    length = np.linalg.norm(vector)
    if length < 0.5:
        raise ValueError(f"{name} should be a unit vector, found {vector.tolist()}")
    return vector / length


def read_axes(car):
    """Nose, right side and roof (9,)"""
    if "forward" in car or "up" in car:
        nose, up = unit(numbers(car, "forward"), "forward"), unit(numbers(car, "up"), "up")
        right = unit(np.cross(up, nose), "the cross product of up and forward")
        return np.concatenate([nose, right, np.cross(nose, right)])
    pitch, yaw, roll = numbers(car, "rotation", (0, 0, 0))
    return axes(yaw, pitch, roll)


def inside(position):
    x, y = np.abs(position[:2])
    return x < SIDE_WALL and y < BACK_WALL and x + y < CORNER_WALL and 0 <= position[2] < CEILING


def read_car(car):
    """→ team, row of states.py"""
    if not isinstance(car, dict) or car.get("team") not in TEAMS:
        raise ValueError(f"a car should be an object with a team (0, 1, blue or orange), found {car!r}")
    boost = car.get("boost", SPAWN_BOOST)
    if not isinstance(boost, (int, float)) or not 0 <= boost <= 100:
        raise ValueError(f"boost should be 0 to 100, found {boost!r}")
    if car.get("demolished"):
        raise LeftOut("a car was demolished")
    parts = numbers(car, "position"), numbers(car, "velocity", (0, 0, 0)), numbers(car, "angular_velocity", (0, 0, 0))
    if not inside(parts[0]):
        raise LeftOut("a car was in a goal or outside the arena")
    return TEAMS[car["team"]], np.concatenate([*parts, read_axes(car), [boost]])


def read_state(frame, fill):
    """One line's object → (ball, cars)"""
    if (
        not isinstance(frame, dict)
        or not isinstance(frame.get("ball"), dict)
        or not isinstance(frame.get("cars"), list)
    ):
        raise ValueError("a line should be an object with a ball and a list of cars")
    ball = np.concatenate(
        [
            numbers(frame["ball"], "position"),
            *(numbers(frame["ball"], name, (0, 0, 0)) for name in ("velocity", "angular_velocity")),
        ]
    )
    if not inside(ball[:3]):
        raise LeftOut("the ball was in a goal or outside the arena")
    ball[2] = max(ball[2], BALL_REST_HEIGHT)
    teams = [], []
    for car in frame["cars"]:
        team, row = read_car(car)
        teams[team].append(row)
    size = max(map(len, teams))
    if not 1 <= size <= MAX_TEAM:
        raise LeftOut(f"a team had {size} cars")
    if len(teams[0]) != len(teams[1]) and not fill:
        raise LeftOut("the teams were uneven")
    for team, rows in enumerate(teams):
        places = [spawn(place, team) for place in reversed(KICKOFF_PLACES)]  # the one before the goal first
        free = [
            place
            for place in places
            if all(np.linalg.norm(place[:3] - other[:3]) > 300 for other in (*teams[0], *teams[1], ball))
        ]
        rows += free[: size - len(rows)]
    return ball, np.array([*teams[0], *teams[1]])


def turned(ball, cars):
    """The same situation with the teams swapped"""
    ball = np.concatenate([part * TURNED for part in np.split(ball, 3)])
    rows = np.array([np.concatenate([*(part * TURNED for part in np.split(row[:18], 6)), row[18:]]) for row in cars])
    return ball, np.concatenate([rows[len(rows) // 2 :], rows[: len(rows) // 2]])


def convert(args):
    """→ (states, {reason: how many were left out for it})"""
    states, left_out = [], Counter()
    for path in map(Path, args.frames):
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{path} cannot be read: {error}.") from None
        for number, line in enumerate(lines):
            if not line.strip() or number % args.every:
                continue
            try:
                state = read_state(json.loads(line), args.fill)
            except LeftOut as reason:
                left_out[str(reason)] += 1
                continue
            except ValueError as error:
                raise BadInput(f"Line {number + 1} of {path}: {error}.") from None
            states += [state, turned(*state)] if args.mirror else [state]
    return states, left_out


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    if not args.frames or not args.output:
        raise BadInput("Give at least one file of JSON lines, and with --output the .npz file to write.")
    if args.every < 1:
        raise BadInput(f"--every should be at least 1, found {args.every}.")
    output = Path(args.output)
    if not output.absolute().parent.is_dir():
        raise BadInput(f"--output {output}: there is no folder {output.absolute().parent} to write to.")
    states, left_out = convert(args)
    if not states:
        reasons = "; ".join(f"{reason} ({count})" for reason, count in left_out.most_common())
        raise BadInput(f"No situation is left to write. {reasons or 'The files are empty'}.")
    save_states(output, states)
    sizes = Counter(len(cars) // 2 for _, cars in states)
    for reason, count in left_out.most_common():
        print(f"left out {count:,}: {reason}")
    told = ", ".join(f"{count:,} of {size}v{size}" for size, count in sorted(sizes.items()))
    print(f"{output}: {len(states):,} situations ({told})")
    return sizes


if __name__ == "__main__":
    end_in_sentences()
    main()
