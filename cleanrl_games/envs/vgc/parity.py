"""Proof that the observations of VGCVecEnv hold nothing but what the player was sent: they are computed a second time in Python.

    VGCVecEnv(protocol=True), random legal actions ──> each player's lines and requests ──> DoubleBattle + Observer ──> observation
                     └──> its frames, written by PlayerView in Node ──────────────────────────── equal? ────────────────────┘

Ids must be equal, floats equal to 1e-6, at every decision and every truncated end, for both players, with open and with closed team
sheets; and no line may show a player the opponent's exact HP.

    python -m cleanrl_games.envs.vgc parity --decisions 2000

The last line is JSON; the exit code is 1 if anything differed.
"""

import argparse
import base64
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from poke_env.battle import DoubleBattle

from cleanrl_games.envs.vgc.baselines import feed
from cleanrl_games.envs.vgc.features import LAYOUT, Observer
from cleanrl_games.envs.vgc.install import ensure_showdown, node_command, node_env, normalize_format
from cleanrl_games.envs.vgc.teams import TeamPool
from cleanrl_games.envs.vgc.vec_env import END, VGCVecEnv

FORMATS = ("gen9vgc2023regc", "gen9vgc2024regg", "gen9vgc2025regi")
TRACE_JS = Path(__file__).resolve().parent / "showdown" / "trace.js"
TOLERANCE = 1e-6
INT_NAMES = [(g.name, row, c) for g in LAYOUT.values() for row in range(g.rows) for c in g.ints]
FLOAT_NAMES = [(g.name, row, c) for g in LAYOUT.values() for row in range(g.rows) for c in g.floats]


@dataclass
class Report:
    decisions: int = 0  # frames compared: decisions and truncated ends
    battles: int = 0
    observe_seconds: float = 0.0  # CPU time of Observer.observe()
    differing: Counter = field(default_factory=Counter)  # (group, column) -> decisions
    examples: list[str] = field(default_factory=list)


def trace(job: dict) -> Iterator[dict]:
    """Battles as trace.js plays them: for each side what it was sent, and what PlayerView saw at its decisions."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            node_command(TRACE_JS),
            env=node_env(ensure_showdown()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            process.stdin.write(json.dumps(job).encode())
            process.stdin.close()
            for line in process.stdout:
                yield json.loads(line)
            if process.wait():
                errors.seek(0)
                raise RuntimeError(f"trace.js failed:\n{errors.read().decode(errors='replace')[-3000:]}")
        finally:
            process.kill()
            process.wait()


def frame(entry: dict) -> tuple[np.ndarray, np.ndarray]:
    """The observation PlayerView made: int32 ids, float32 values."""
    ints, floats = (base64.b64decode(entry[name]) for name in ("ints", "floats"))
    return np.frombuffer(ints, np.int32), np.frombuffer(floats, np.float32)


def replayed(entries: list[dict], side: int, tag: str) -> Iterator[tuple[dict, Observer]]:
    """Gives a fresh DoubleBattle what this player was sent; yields (entry, Observer) at each of its decisions."""
    battle = DoubleBattle(tag, f"p{side + 1}", logging.getLogger("poke-env"), gen=9)
    observer = Observer(battle)
    for entry in entries:
        if "lines" in entry:
            for line in entry["lines"]:
                feed(battle, [line])
                observer.hear(line.split("|"))
        elif "request" in entry:
            battle.parse_request(entry["request"])
            observer.hear_request(entry["request"])
        else:
            yield entry, observer


def compare(ours, theirs, report: Report, where: str):
    """Two observations, (ints, floats) each: `ours` from Python, `theirs` from Node."""
    report.decisions += 1
    for python, node, names in zip(ours, theirs, (INT_NAMES, FLOAT_NAMES)):
        for index in np.flatnonzero(np.abs(python.astype(np.float64) - node) > TOLERANCE):
            group, row, column = names[index]
            report.differing[group, column] += 1
            if len(report.examples) < 20:
                values = f"is {node[index]} in Node and {python[index]} in Python"
                report.examples.append(f"{where}: {group}[{row}].{column} {values}")


def compare_battle(battle: dict, report: Report):
    """A battle of trace.js."""
    report.battles += 1
    for side, entries in enumerate(battle["sides"]):
        for entry, observer in replayed(entries, side, f"battle-{battle['battle']}"):
            where = f"battle {battle['battle']}, p{side + 1}, turn {observer.tracker.turn}"
            compare(observer.observe(), frame(entry), report, where)


def exact_hp(line: str, side: int) -> bool:
    """Whether a line tells a player the opponent's HP in points: 57/100 is what a player sees, 103/181 is a secret."""
    parts = line.split("|")
    place = {"switch": 4, "drag": 4, "replace": 4, "-damage": 3, "-heal": 3, "-sethp": 3}.get(parts[1] if len(parts) > 1 else "")
    if place is None or len(parts) <= place or not parts[2].startswith(f"p{2 - side}"):
        return False
    health = parts[place].split(" ")[0]
    return "/" in health and health.split("/")[1] != "100"


class Listener:
    """One seat of a VGCVecEnv: its stream goes into a DoubleBattle and an Observer."""

    def __init__(self, side: int):
        self.side = side
        self.battle = DoubleBattle("battle-0", f"p{side + 1}", logging.getLogger("poke-env"), gen=9)
        self.observer = Observer(self.battle)

    def hear(self, lines: list[str], report: Report):
        for line in lines:
            feed(self.battle, [line])
            if line.startswith("|request|"):
                self.observer.hear_request(json.loads(line[9:]))
            else:
                self.observer.hear(line.split("|"))
                if exact_hp(line, self.side):
                    report.differing["protocol", "exact HP"] += 1
                    report.examples.append(f"p{self.side + 1} was told the opponent's exact HP: {line}")


def check(battle_format: str, open_team_sheets: bool, decisions: int, seed: int, teams: list[str]) -> Report:
    """Plays at least that many decisions in a VGCVecEnv and compares every frame."""
    report, listeners = Report(), {}
    rng = np.random.default_rng(seed)
    options = {"teams": teams, "open_team_sheets": open_team_sheets, "seed": seed, "turn_cap": 60, "protocol": True}
    with VGCVecEnv(8, 1, battle_format, **options) as env:
        while report.decisions < decisions:
            batch = env.recv()
            for row in range(len(batch)):
                seat, side = int(batch.key[row]), int(batch.side[row])
                listener = listeners.setdefault(seat, Listener(side))
                listener.hear(batch.protocol[row], report)
                where = f"battle {seat // 2}.{batch.episode[row]}, p{side + 1}, turn {batch.turn[row]}"
                if not batch.terminated[row]:  # after a battle's end nobody is asked, and no request tells the own side
                    before = time.process_time()
                    ours = listener.observer.observe()
                    report.observe_seconds += time.process_time() - before
                    compare(ours, (batch.ints[row], batch.floats[row]), report, where)
                if batch.kind[row] == END:
                    del listeners[seat]
                    report.battles += side == 0
            rows, legal = batch.decisions, batch.mask
            env.send(batch.key[rows], [rng.choice(np.flatnonzero(legal[row])) for row in rows])
    return report


def add_arguments(parser: argparse.ArgumentParser):
    parser.add_argument("--decisions", type=int, default=2000, help="decisions per format, half with open sheets")
    parser.add_argument("--battle-format", nargs="*", default=list(FORMATS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--generated-teams", type=int, default=300, help="generated teams beside the shipped ones")


def run(args: argparse.Namespace) -> int:
    result, failed = {}, False
    for name in args.battle_format:
        battle_format = normalize_format(name)
        teams = list(TeamPool("shipped", battle_format, split="all").packed)
        if args.generated_teams:
            teams += TeamPool("generated", battle_format, size=args.generated_teams, seed=args.seed).packed
        total = 0
        for open_team_sheets in (True, False):
            report = check(battle_format, open_team_sheets, (args.decisions + 1) // 2, args.seed, teams)
            sheets = "open" if open_team_sheets else "closed"
            differing = sum(report.differing.values())
            cost = 1000 * report.observe_seconds / report.decisions
            print(
                f"{battle_format}, {sheets} sheets: {report.decisions} decisions, {differing} differing values, "
                f"{cost:.2f} ms per observe()",
                flush=True,
            )
            for example in report.examples:
                print(f"  {example}")
            failed |= differing > 0
            total += report.decisions
        result[battle_format] = total
    print(json.dumps({"decisions": result, "equal": not failed}))
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    sys.exit(run(parser.parse_args()))
