"""Are the beliefs ever wrong? Seeded battles whose hidden side is known afterwards: no bound may exclude the true
value.

    python -m cleanrl_games.envs.vgc beliefs --battles 3000

Speed bounds must hold the true stat, an item or ability that is said to be known must be the true one, and no item that
is held may be ruled out. Sides on which an Illusion could be at work are left out: there the view shows what the player
was shown. The last line is JSON; the exit code is 1 if a belief was wrong.
"""

import argparse
import json
from collections import Counter
from dataclasses import dataclass, field

from cleanrl_games.envs.vgc.parity import FORMATS, frame, trace
from cleanrl_games.envs.vgc.teams import TeamPool
from cleanrl_games.envs.vgc.vocabulary import LAYOUT, NONE, SPECIES_FACTS, VOCAB, abilities_of, find

OPP, ACTIVE, BELIEF = LAYOUT["opp"], LAYOUT["active"], LAYOUT["belief"]
ILLUSION, SCARF = find("abilities", "illusion"), find("items", "choicescarf")


def items(*names: str) -> set[int]:
    return {find("items", name) for name in names}


SLOWING = items(
    "ironball", "machobrace", "poweranklet", "powerband", "powerbelt", "powerbracer", "powerlens", "powerweight"
)
TOUCHES_SPEED = SLOWING | items("choicescarf", "quickpowder", "laggingtail", "fullincense", "quickclaw", "custapberry")
RULED_OUT = {  # column -> items it speaks of
    "no_choice": items("choiceband", "choicescarf", "choicespecs"),
    "no_assault_vest": items("assaultvest"),
    "no_life_orb": items("lifeorb"),
    "no_leftovers": items("leftovers"),
    "no_focus_sash": items("focussash"),
    "no_boots": items("heavydutyboots"),
    "no_balloon": items("airballoon"),
}


@dataclass
class Verdict:
    battles: int = 0
    rows: int = 0
    narrowed: int = 0  # rows whose Speed bounds are tighter than the species alone allows
    said: Counter = field(default_factory=Counter)  # column -> rows on which something was ruled out or implied
    wrong: list[str] = field(default_factory=list)


def judge_row(ints, floats, row: int, hidden: dict, verdict: Verdict, where: str):
    belief = dict(zip(BELIEF.floats, floats[BELIEF.float_at + row * len(BELIEF.floats) :]))
    item, held = ints[OPP.int_index(row, "item")], find("items", hidden["item"]) if hidden["item"] else NONE
    low, high, low_plain, high_plain = (
        round(float(belief[name]) * 250) for name in ("speed_min", "speed_max", "speed_min_plain", "speed_max_plain")
    )
    verdict.rows += 1
    problems = []
    if not low <= hidden["speed"] <= high:
        problems.append(f"Speed {hidden['speed']} outside {low}–{high}")
    if (
        held not in TOUCHES_SPEED
        and hidden["firstItem"] == hidden["item"]
        and not low_plain <= hidden["speed"] <= high_plain
    ):
        problems.append(f"Speed {hidden['speed']} outside {low_plain}–{high_plain} without any item at work")
    # On the field an ability may be borrowed; off it, a known one is the Pokémon's own.
    ability = VOCAB["abilities"][ints[OPP.int_index(row, "ability")]]
    on_field = any(floats[OPP.float_index(row, column)] for column in ("active_a", "active_b"))
    if ability and not on_field and ability != hidden["ability"]:
        problems.append(f"ability {ability} instead of {hidden['ability']}")
    if item and item != held:
        problems.append(f"item {item} instead of {held}")
    if not item:
        for column, about in RULED_OUT.items():
            verdict.said[column] += int(belief[column])
            if belief[column] and held in about:
                problems.append(f"{column}, but it holds one")
        verdict.said["scarf_implied"] += int(belief["scarf_implied"])
        if belief["scarf_implied"] and held != SCARF:
            problems.append("scarf_implied, but it holds none")
    base = SPECIES_FACTS[ints[OPP.int_index(row, "species")]][2][5]
    verdict.narrowed += high - low < ((2 * base + 94) // 2 + 5) * 110 // 100 - (base + 5) * 90 // 100
    verdict.wrong += [f"{where}: {hidden['species']}: {problem}" for problem in problems]


def judge(battle: dict, verdict: Verdict):
    verdict.battles += 1
    for side, entries in enumerate(battle["sides"]):
        for number, entry in enumerate(entries):
            ints, floats = frame(entry)
            shown = [ints[OPP.int_index(row, "species")] for row in range(6)]
            if any(ILLUSION in abilities_of(species) for species in shown):
                continue
            for slot in (2, 3):  # Transform shows somebody else's species
                if floats[ACTIVE.float_index(slot, "transformed")]:
                    shown[ints[ACTIVE.int_index(slot, "row")] - 1] = 0
            for row, species in enumerate(shown):
                # By number: formes are one Pokémon. After a forme change the stat is another one, hence the base stats.
                hidden = next(
                    (mon for mon in entry["truth"] if species and mon["num"] == SPECIES_FACTS[species][4]), None
                )
                if hidden is None or hidden["transformed"]:
                    continue
                if SPECIES_FACTS[find("species", hidden["species"])][2] == SPECIES_FACTS[species][2]:
                    where = f"battle {battle['battle']}, p{side + 1}, decision {number}"
                    judge_row(ints, floats, row, hidden, verdict, where)


def check_beliefs(battle_format: str, open_team_sheets: bool, battles: int, seed: int, teams: list[str]) -> Verdict:
    job = {
        "format": battle_format,
        "openTeamSheets": open_team_sheets,
        "teams": teams,
        "seed": seed,
        "battles": battles,
        "turnCap": 60,
        "truth": True,
        "quiet": True,
    }
    verdict = Verdict()
    for battle in trace(job):
        judge(battle, verdict)
    return verdict


def add_arguments(parser: argparse.ArgumentParser):
    parser.add_argument("--battles", type=int, default=3000, help="in all, spread over formats and kinds of sheets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--generated-teams", type=int, default=1000, help="generated teams beside the shipped ones")


def run(args: argparse.Namespace) -> int:
    total, rows, wrong = 0, 0, 0
    for battle_format in FORMATS:
        teams = list(TeamPool("shipped", battle_format, split="all").packed)
        if args.generated_teams:
            teams += TeamPool("generated", battle_format, size=args.generated_teams, seed=args.seed).packed
        for open_team_sheets in (True, False):
            verdict = check_beliefs(battle_format, open_team_sheets, -(-args.battles // 6), args.seed, teams)
            sheets = "open" if open_team_sheets else "closed"
            print(
                f"{battle_format}, {sheets} sheets: {verdict.battles} battles, {verdict.rows} rows, Speed narrowed on "
                f"{verdict.narrowed}, {dict(verdict.said)}, {len(verdict.wrong)} wrong",
                flush=True,
            )
            for line in verdict.wrong[:10]:
                print(f"  {line}")
            total, rows, wrong = total + verdict.battles, rows + verdict.rows, wrong + len(verdict.wrong)
    print(json.dumps({"battles": total, "rows": rows, "wrong": wrong}))
    return int(wrong > 0)
