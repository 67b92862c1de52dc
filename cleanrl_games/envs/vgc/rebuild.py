"""Is a battle that is rebuilt from a player's view the battle? Seeded battles, position by position.

    python -m cleanrl_games.envs.vgc rebuild --positions 2000 --seed 7

At every decision showdown/rebuild.js makes a second battle from one player's lines and requests, with the hidden truth
filled in (spreads, picks, exact HP, PP, counters that nobody is told). Both battles play the same random choices with
the same dice. Then HP, faints, status, stages, items, field, sides, who stands where and what is asked next must be
equal. What is not rebuilt or not equal is listed with its share. The last line is JSON; the exit code is 1 if fewer
than 95 % are equal.
"""

import argparse
import json
import subprocess
from collections import Counter
from dataclasses import dataclass, field

from cleanrl_games.envs.vgc.install import SHOWDOWN_SOURCES, ensure_showdown, node_command, node_env
from cleanrl_games.envs.vgc.parity import FORMATS
from cleanrl_games.envs.vgc.teams import TeamPool

ENOUGH = 0.95


@dataclass
class Rebuilt:
    positions: int = 0
    equal: int = 0
    missing: Counter = field(default_factory=Counter)  # what could not be rebuilt → positions
    different: Counter = field(default_factory=Counter)  # what differed → positions
    examples: list[dict] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.equal / self.positions

    def add(self, other: "Rebuilt") -> None:
        self.positions += other.positions
        self.equal += other.equal
        self.missing += other.missing
        self.different += other.different
        self.examples += other.examples


def compare_positions(
    battle_format: str, open_team_sheets: bool, positions: int, seed: int, teams: list[str], examples: int = 0
) -> Rebuilt:
    job = {
        "format": battle_format,
        "openTeamSheets": open_team_sheets,
        "teams": teams,
        "seed": seed,
        "positions": positions,
        "turnCap": 60,
        "details": examples,
    }
    command = node_command(SHOWDOWN_SOURCES / "rebuild_check.js")
    done = subprocess.run(
        command, env=node_env(ensure_showdown()), input=json.dumps(job), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"rebuild_check.js failed:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout)
    return Rebuilt(
        positions=found["positions"],
        equal=found["equal"],
        missing=Counter(found["not"]),
        different=Counter(found["different"]),
        examples=found["examples"],
    )


def add_arguments(parser: argparse.ArgumentParser):
    parser.add_argument(
        "--positions", type=int, default=2000, help="in all, spread over formats, half with open sheets"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=0, help="print so many positions that differ, of each kind")


def run(args: argparse.Namespace) -> int:
    total = Rebuilt()
    each = -(-args.positions // (2 * len(FORMATS)))
    for battle_format in FORMATS:
        teams = list(TeamPool("shipped", battle_format, split="all").packed)
        for open_team_sheets in (True, False):
            found = compare_positions(battle_format, open_team_sheets, each, args.seed, teams, args.examples)
            sheets = "open" if open_team_sheets else "closed"
            print(f"{battle_format}, {sheets} sheets: {found.share:.2%} of {found.positions} equal", flush=True)
            total.add(found)
    for title, table in (("not rebuilt", total.missing), ("rebuilt, but the turn differs", total.different)):
        print(f"{title}:" if table else f"{title}: none")
        for what, count in table.most_common():
            print(f"  {what}: {count}, {count / total.positions:.2%} of all")
    for example in total.examples:
        print(json.dumps(example, indent=1))
    figures = {"positions": total.positions, "equal": round(total.share, 4), "not_rebuilt": total.missing.total()}
    print(json.dumps(figures))
    return int(total.share < ENOUGH)
