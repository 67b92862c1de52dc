"""An oracle for the observation: where poke-env is right, the frames of VGCVecEnv say the same.

    VGCVecEnv(protocol=True), random legal actions ──> each player's lines and requests ──> poke-env's DoubleBattle ──>
    Oracle
                     └──> its frames, written by PlayerView in Node ──────────────────────── equal where it speaks?
                     ──────┘

The oracle speaks of health, faints, status, who stands where and who was shown, stages, effects that the protocol
starts and ends, weather, terrain, rooms, conditions of the sides, the turn. Where poke-env is known to be wrong
(docs/vgc_features.md) it is silent. And no line may tell a player the opponent's exact HP.

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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from poke_env.battle import DoubleBattle, Effect, Field, Pokemon, Weather

from cleanrl_games.envs.vgc.baselines import feed
from cleanrl_games.envs.vgc.install import ensure_showdown, node_command, node_env, normalize_format
from cleanrl_games.envs.vgc.teams import TeamPool
from cleanrl_games.envs.vgc.vec_env import END, VGCVecEnv
from cleanrl_games.envs.vgc.vocabulary import BOOSTS, LAYOUT, abilities_of, find, parse_details, same_species

FORMATS = ("gen9vgc2023regc", "gen9vgc2024regg", "gen9vgc2025regi")
TRACE_JS = Path(__file__).resolve().parent / "showdown" / "trace.js"
TOLERANCE = 1e-6
INT_NAMES = [(g.name, row, c) for g in LAYOUT.values() for row in range(g.rows) for c in g.ints]
ILLUSION = find("abilities", "illusion")
WEATHERS = {
    Weather.SUNNYDAY: "sun",
    Weather.RAINDANCE: "rain",
    Weather.SANDSTORM: "sand",
    Weather.SNOWSCAPE: "snow",
    Weather.SNOW: "snow",
    Weather.HAIL: "snow",
    Weather.DESOLATELAND: "harsh_sun",
    Weather.PRIMORDIALSEA: "heavy_rain",
    Weather.DELTASTREAM: "strong_winds",
}
TERRAINS = {Field[f"{name.upper()}_TERRAIN"]: name for name in ("electric", "grassy", "misty", "psychic")}
ROOMS = (Field.TRICK_ROOM, Field.GRAVITY, Field.MAGIC_ROOM, Field.WONDER_ROOM)
LAYERS = {"spikes": 3, "toxic_spikes": 2}
SPANS = ("reflect", "light_screen", "aurora_veil")  # two columns each: how long it lasts at least and at most
CONDITIONS = (
    "tailwind",
    "safeguard",
    "mist",
    "stealth_rock",
    "sticky_web",
    "fire_pledge",
    "water_pledge",
    "grass_pledge",
)
# Effects that poke-env starts and ends when the protocol does.
EFFECTS = {
    name: (Effect[name.upper()],)
    for name in (
        "confusion taunt encore disable torment leech_seed yawn imprison heal_block attract throat_chop salt_cure "
        "smack_down "
        "magnet_rise syrup_bomb curse uproar slow_start substitute commander"
    ).split()
} | {
    f"paradox_{stat}": (Effect[f"PROTOSYNTHESIS{stat.upper()}"], Effect[f"QUARKDRIVE{stat.upper()}"])
    for stat in ("atk", "def", "spa", "spd", "spe")
}


@dataclass
class Report:
    decisions: int = 0  # frames compared
    battles: int = 0
    values: int = 0  # of which the oracle spoke
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


class Oracle:
    """One seat's lines and requests in poke-env's DoubleBattle, and what it says about the columns of a frame."""

    def __init__(self, side: int):
        self.role = f"p{side + 1}"
        self.battle = DoubleBattle("battle-0", self.role, logging.getLogger("poke-env"), gen=9)
        self.request: dict = {}
        self.previewed: list[int] = []  # species of the opponent's team, in order
        self.deceivers = {"p1": False, "p2": False}  # sides with an Illusion: poke-env credits the wrong Pokémon
        # slots whose stages or effects were passed on or copied, which poke-env does not follow
        self.misread: set[str] = set()

    def hear(self, line: str) -> None:
        feed(self.battle, [line])
        kind, *parts = line[1:].split("|")
        if kind == "request":
            self.request = json.loads("|".join(parts))
        elif kind == "poke":
            species = parse_details(parts[1])[0]
            self.deceivers[parts[0]] |= ILLUSION in abilities_of(species)
            if parts[0] != self.role:
                self.previewed.append(species)
        elif kind in ("switch", "drag"):
            self.misread.discard(parts[0][:3])
            if "[from] Baton Pass" in parts or "[from] Shed Tail" in parts:
                self.misread.add(parts[0][:3])
        elif kind == "-copyboost":
            self.misread |= {parts[0][:3], parts[1][:3]}
        elif kind in ("swap", "-transform"):
            self.misread |= {f"{parts[0][:2]}a", f"{parts[0][:2]}b"}

    def expected(self) -> Iterator[tuple[str, int, str, float]]:
        """(group, row, column, value) of everything it can be sure of"""
        yield from self.own_rows()
        yield from self.opponents_rows()
        yield from self.slots()
        yield from self.field()

    def mon(self, group: str, row: int, known: Pokemon, fainted: bool) -> Iterator[tuple[str, int, str, float]]:
        status = known.status.name.lower() if known.status and not fainted else ""
        yield group, row, "present", 1.0
        yield group, row, "fainted", float(fainted)
        for name in ("brn", "par", "slp", "frz", "psn", "tox"):
            yield group, row, f"status_{name}", float(name == status)

    def own_rows(self) -> Iterator[tuple[str, int, str, float]]:
        preview = bool(self.request.get("teamPreview"))
        for row, entry in enumerate(self.request["side"]["pokemon"]):
            known = self.battle.team[entry["ident"]]
            condition = entry["condition"].split(" ")[0]
            left, _, most = condition.partition("/")
            fainted = entry["condition"].endswith(" fnt")
            yield "own", row, "hp", int(left) / int(most) if most else 0.0
            stands = entry["active"] and not preview and not fainted and row < 2
            yield "own", row, "active_a", float(stands and row == 0)
            yield "own", row, "active_b", float(stands and row == 1)
            if not self.deceivers[self.role]:
                yield from self.mon("own", row, known, fainted)

    def opponents_rows(self) -> Iterator[tuple[str, int, str, float]]:
        if self.deceivers["p2" if self.role == "p1" else "p1"]:
            return
        team = [*self.battle._opponent_team.values()]
        standing = self.battle.opponent_active_pokemon
        for row, species in enumerate(self.previewed):
            known = next((mon for mon in team if same_species(find("species", mon.species), species)), None)
            if known is None:  # nobody has seen it come in
                yield "opp", row, "shown", 0.0
                yield "opp", row, "hp", 1.0
                continue
            yield from self.mon("opp", row, known, known.fainted)
            yield "opp", row, "shown", float(known.revealed)
            if known.max_hp and known.ability != "regenerator":  # poke-env guesses what that has healed
                yield "opp", row, "hp", known.current_hp_fraction
            for slot, letter in enumerate("ab"):
                yield "opp", row, f"active_{letter}", float(standing[slot] is known and not known.fainted)

    def slots(self) -> Iterator[tuple[str, int, str, float]]:
        everybody = self.battle.active_pokemon + self.battle.opponent_active_pokemon
        if self.request.get("teamPreview"):
            return
        for index, known in enumerate(everybody):
            role = self.role if index < 2 else ("p2" if self.role == "p1" else "p1")
            if known is None or known.fainted or self.deceivers[role] or f"{role}{'ab'[index % 2]}" in self.misread:
                continue
            for stat in BOOSTS:
                yield "active", index, f"boost_{stat}", known.boosts[stat] / 6
            for column, effects in EFFECTS.items():
                yield "active", index, column, float(any(effect in known.effects for effect in effects))

    def field(self) -> Iterator[tuple[str, int, str, float | None]]:
        battle = self.battle
        yield "field", 0, "preview", float(bool(self.request.get("teamPreview")))
        yield "field", 0, "forced", float("forceSwitch" in self.request)
        yield "field", 0, "turn", battle.turn / 25
        weather = {WEATHERS[name] for name in battle.weather}
        for name in set(WEATHERS.values()):
            yield "field", 0, f"weather_{name}", float(name in weather)
        for terrain, name in TERRAINS.items():
            yield "field", 0, f"terrain_{name}", float(terrain in battle.fields)
        # Of what lasts some turns the oracle only says whether it is there; poke-env counts from the wrong turn.
        for room in ROOMS:
            yield "field", 0, room.name.lower(), None if room in battle.fields else 0.0
        for side, conditions in (("own", battle.side_conditions), ("opp", battle.opponent_side_conditions)):
            found = {condition.name.lower(): layers for condition, layers in conditions.items()}
            for name in SPANS:
                yield "field", 0, f"{side}_{name}_max", None if name in found else 0.0
            for name in CONDITIONS:
                yield "field", 0, f"{side}_{name}", None if name in found else 0.0
            for name, most in LAYERS.items():
                yield "field", 0, f"{side}_{name}", found.get(name, 0) / most


def compare(oracle: Oracle, floats: np.ndarray, report: Report, where: str) -> None:
    """`None` of the oracle: something above zero."""
    report.decisions += 1
    for group, row, column, value in oracle.expected():
        seen = float(floats[LAYOUT[group].float_index(row, column)])
        report.values += 1
        if (seen > 0) if value is None else abs(seen - value) <= TOLERANCE:
            continue
        report.differing[group, column] += 1
        if len(report.examples) < 20:
            said = "something" if value is None else value
            report.examples.append(f"{where}: {group}[{row}].{column} is {seen} in the frame, and poke-env says {said}")


def compare_battle(battle: dict, report: Report) -> None:
    """A battle of trace.js."""
    report.battles += 1
    for side, entries in enumerate(battle["sides"]):
        oracle = Oracle(side)
        for entry in entries:
            for line in entry.get("lines", ()):
                oracle.hear(line)
            if "request" in entry:
                oracle.hear(f"|request|{json.dumps(entry['request'])}")
            elif "floats" in entry:
                where = f"battle {battle['battle']}, p{side + 1}, turn {oracle.battle.turn}"
                compare(oracle, frame(entry)[1], report, where)


def exact_hp(line: str, side: int) -> bool:
    """Whether a line tells a player the opponent's HP in points: 57/100 is what a player sees, 103/181 is a secret."""
    parts = line.split("|")
    place = {"switch": 4, "drag": 4, "replace": 4, "-damage": 3, "-heal": 3, "-sethp": 3}.get(
        parts[1] if len(parts) > 1 else ""
    )
    if place is None or len(parts) <= place or not parts[2].startswith(f"p{2 - side}"):
        return False
    health = parts[place].split(" ")[0]
    # 50/100y: the colour of the bar, where two are possible
    return "/" in health and health.split("/")[1].rstrip("gyr") != "100"


def check(battle_format: str, open_team_sheets: bool, decisions: int, seed: int, teams: list[str]) -> Report:
    """Plays at least that many decisions in a VGCVecEnv and asks the oracle about every frame."""
    report, oracles = Report(), {}
    rng = np.random.default_rng(seed)
    options = {"teams": teams, "open_team_sheets": open_team_sheets, "seed": seed, "turn_cap": 60, "protocol": True}
    with VGCVecEnv(8, 1, battle_format, **options) as env:
        while report.decisions < decisions:
            batch = env.recv()
            for row in range(len(batch)):
                seat, side = int(batch.key[row]), int(batch.side[row])
                oracle = oracles.setdefault(seat, Oracle(side))
                for line in batch.protocol[row]:
                    oracle.hear(line)
                    if exact_hp(line, side):
                        report.differing["protocol", "exact HP"] += 1
                        report.examples.append(f"p{side + 1} was told the opponent's exact HP: {line}")
                if batch.kind[row] == END:
                    del oracles[seat]
                    report.battles += side == 0
                    continue
                where = f"battle {seat // 2}.{batch.episode[row]}, p{side + 1}, turn {batch.turn[row]}"
                compare(oracle, batch.floats[row], report, where)
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
            said = f"{report.decisions} decisions, {report.values} values, {differing} differing"
            print(f"{battle_format}, {sheets} sheets: {said}", flush=True)
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
