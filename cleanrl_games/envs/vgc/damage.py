"""Are the foreseen damage and the order of moves the simulator's? Seeded battles, hit by hit.

    python -m cleanrl_games.envs.vgc damage --hits 20000

Every hit that is not a lucky critical one is compared with the low and the high roll that showdown/damage.js foresees
from one player's view, the true spreads given. What explains the misses is listed with its share of all hits. And
whenever the view says of two opponents that one surely moves first, their true Speeds must agree, with open sheets and
with closed ones. The last line is JSON; the exit code is 1 if fewer than 99 % lie within, or if a sure order was wrong.
"""

import argparse
import json
import subprocess
from collections import Counter
from dataclasses import dataclass, field

from cleanrl_games.envs.vgc.install import SHOWDOWN_SOURCES, ensure_showdown, node_command, node_env
from cleanrl_games.envs.vgc.parity import FORMATS
from cleanrl_games.envs.vgc.teams import TeamPool

ENOUGH = 0.99


@dataclass
class Hits:
    hits: int = 0
    within: int = 0  # between the low and the high roll
    misses: list[dict] = field(default_factory=list)  # what it was about, the damage, the rolls
    seen: Counter = field(default_factory=Counter)  # "move x", "target's ability y" → hits
    sure: int = 0  # pairs of opponents of which the view surely knew who is faster
    wrong: list[str] = field(default_factory=list)
    likely: int = 0
    likely_right: int = 0

    @property
    def share(self) -> float:
        return self.within / self.hits

    def add(self, other: "Hits") -> None:
        self.hits += other.hits
        self.within += other.within
        self.misses += other.misses
        self.seen += other.seen
        self.sure += other.sure
        self.wrong += other.wrong
        self.likely += other.likely
        self.likely_right += other.likely_right


def compare_hits(battle_format: str, open_team_sheets: bool, hits: int, seed: int, teams: list[str]) -> Hits:
    job = {
        "format": battle_format,
        "openTeamSheets": open_team_sheets,
        "teams": teams,
        "seed": seed,
        "hits": hits,
        "turnCap": 60,
    }
    command = node_command(SHOWDOWN_SOURCES / "hits.js")
    done = subprocess.run(
        command, env=node_env(ensure_showdown()), input=json.dumps(job), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"hits.js failed:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout)
    found["likely_right"] = found.pop("likelyRight")
    return Hits(**found | {"seen": Counter(found["seen"])})


def explain(found: Hits) -> list[tuple[str, int, int]]:
    """What the misses have in common, the clearest cause first → (what, misses, hits with it)"""
    causes, misses = [], found.misses
    while misses:
        counts = Counter(what for miss in misses for what in dict.fromkeys(miss["about"]))
        what = max(counts, key=lambda what: counts[what] ** 2 / found.seen[what])
        causes.append((what, counts[what], found.seen[what]))
        misses = [miss for miss in misses if what not in miss["about"]]
    return sorted(causes, key=lambda cause: -cause[1])


def add_arguments(parser: argparse.ArgumentParser):
    parser.add_argument("--hits", type=int, default=21_000, help="in all, spread over the formats")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--generated-teams", type=int, default=600, help="generated teams beside the shipped ones")


def run(args: argparse.Namespace) -> int:
    total, closed = Hits(), Hits()
    for battle_format in FORMATS:
        teams = list(TeamPool("shipped", battle_format, split="all").packed)
        if args.generated_teams:
            teams += TeamPool("generated", battle_format, size=args.generated_teams, seed=args.seed).packed
        found = compare_hits(battle_format, True, -(-args.hits // len(FORMATS)), args.seed, teams)
        print(f"{battle_format}: {found.hits} hits, {found.share:.2%} within the rolls", flush=True)
        total.add(found)
        closed.add(compare_hits(battle_format, False, args.hits // 10, args.seed, teams))
    print("outside the rolls, by what they have in common:")
    for what, misses, hits in explain(total):
        print(f"  {what}: {misses} of {hits} hits, {misses / total.hits:.3%} of all")
    for sheets, found in (("open", total), ("closed", closed)):
        print(
            f"order, {sheets} sheets: {found.sure} pairs surely known, {len(found.wrong)} of them wrong; likely on "
            f"{found.likely}, {found.likely_right / max(1, found.likely):.1%} of them right"
        )
        for line in found.wrong[:10]:
            print(f"  {line}")
    wrong = len(total.wrong) + len(closed.wrong)
    print(json.dumps({"hits": total.hits, "within": round(total.share, 4), "sure": total.sure, "wrong_order": wrong}))
    return int(total.share < ENOUGH or wrong > 0)
