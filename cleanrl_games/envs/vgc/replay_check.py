"""What can be learned from a folder of replays: how many can be read, and how many of their decisions are known.

    python -m cleanrl_games.envs.vgc replays my_replays/ --battle-format gen9vgc2024regh

Where a file also has the choices that were really made (`inputLog`, in a server's own logs), each known decision is
compared with them: the exit code is 1 if one is wrong. The last line is JSON. `--list` prints every decision in words.

    python -m cleanrl_games.envs.vgc replays --own-battles 500 --battle-format gen9championsvgc2026regma

plays random battles of our own environment, reads their logs back and compares every decision with what was played.
"""

import argparse
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cleanrl_games.envs.vgc import demonstrations as demos
from cleanrl_games.envs.vgc import mdbo
from cleanrl_games.envs.vgc.install import InstallError, normalize_format
from cleanrl_games.envs.vgc.replay_actions import BOTH, Decision, Reader, read_replay
from cleanrl_games.envs.vgc.replay_files import SUFFIXES, ReplayError, read_battle
from cleanrl_games.envs.vgc.replay_words import to_id
from cleanrl_games.envs.vgc.teams import TeamPool
from cleanrl_games.envs.vgc.vec_env import PREVIEW, VGCVecEnv
from cleanrl_games.envs.vgc.views import Views
from cleanrl_games.envs.vgc.vocabulary import LAYOUT

GIMMICKS = ("terastallize", "mega", "megax", "megay")


@dataclass
class Score:
    files: int = 0
    read: int = 0
    decisions: int = 0
    known: int = 0  # both choices
    partly: int = 0  # the first one only
    made: int = 0  # choices of `inputLog`
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def count(self, decision: Decision) -> None:
        self.decisions += 1
        self.known += decision.known == BOTH
        self.partly += 0 < decision.known < BOTH


def real_choices(input_log: list[str]) -> dict[str, list[str]]:
    """`>p1 move protect, move fakeout +2` … → by side, in order; an undone choice was none"""
    choices = {"p1": [], "p2": []}
    for line in input_log:
        found = re.match(r">(p[12]) (.*)", line)
        if found and found[2] == "undo":
            choices[found[1]].pop()
        elif found:
            choices[found[1]].append(found[2])
    return choices


def read_choice(text: str, order: list[int], names: list[str], offers: list | None) -> list[str]:
    """A choice with names in place of positions, a slot each, as `Decision.words` has them"""
    said = []
    for slot, part in enumerate(text.split(",")):
        word, *rest = part.strip().split(" ")
        if word == "switch":
            said.append(f"switch {names[order[int(rest[0]) - 1]] if rest[0].isdigit() else rest[0]}")
        elif word == "move":
            move = rest[0]
            if move.isdigit() and offers:
                move = offers[slot]["moves"][int(move) - 1]["id"]
            target = next((f" {int(token):+d}" for token in rest[1:] if re.fullmatch(r"[+-]?[12]", token)), "")
            gimmick = next((f" {token}" for token in rest[1:] if token in GIMMICKS), "")
            said.append(f"move {to_id(move)}{target}{gimmick}")
        else:
            said.append(word)
    return said


def compare(reader: Reader, input_log: list[str], score: Score, where: str) -> None:
    """Walks through the battle with the true order of each team, which only its player's choice at team preview
    tells."""
    real = real_choices(input_log)
    orders: dict[str, list[int]] = {}
    for choices in real.values():
        score.made += len(choices)
    for side, *event in reader.history:
        if len(event) == 2:  # somebody came in
            slot, place = event
            order = orders.get(side)
            if order and place in order:
                at = order.index(place)
                order[slot], order[at] = order[at], order[slot]
            continue
        (decision,) = event
        names = reader.seats[side].names
        if not real[side]:  # the battle ended before this one was answered
            if decision.known:
                score.wrong.append(
                    f"{where}, {side}, turn {decision.turn}: {decision.words(names)}, but nothing was chosen"
                )
            continue
        choice = real[side].pop(0)
        if decision.preview:
            orders[side] = [int(number) - 1 for number in re.findall(r"\d", choice)]
            lineup = sorted(orders[side][:2]) + sorted(orders[side][2:4])
            agree = lineup == mdbo.PREVIEWS[decision.action].tolist()
        else:
            truth = read_choice(choice, orders[side], names, decision.request.get("active"))
            ours = decision.words(names).split(", ")
            agree = all(one in ("?", other) for one, other in zip(ours, truth)) and len(ours) == len(truth)
        if decision.known and not agree:
            score.wrong.append(f"{where}, {side}, turn {decision.turn}: read {decision.words(names)}, chosen {choice}")
        score.right += agree and decision.known == BOTH


def check(folder: Path, battle_format: str, show=None) -> Score:
    score = Score()
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    with Views() as views:
        for path in files:
            score.files += 1
            name = str(path.relative_to(folder))
            try:
                saved = read_battle(path)
                reader = Reader(saved.text, battle_format)
                reader.streams(views)
            except ReplayError as error:
                score.left_out.append(f"{name}: {error}")
                continue
            score.read += 1
            for side, seat in reader.seats.items():
                for decision in seat.decisions:
                    score.count(decision)
                    if show:
                        show(f"{name}, {side}, turn {decision.turn}: {decision.words(seat.names)}")
            if saved.choices is not None:
                compare(reader, saved.choices, score, name)
    return score


# ------------------------------------------------------------------------------------------------- battles of our own


def play(battle_format: str, battles: int, open_team_sheets: bool, seed: int, teams: list[str]):
    """Random legal battles → (log, winner, {side: [(kind, action, ints)]}) of each"""
    dice, streams, done = np.random.default_rng(seed), {}, 0
    options = {"teams": teams, "open_team_sheets": open_team_sheets, "seed": seed, "logs": True}
    with VGCVecEnv(min(16, battles), 1, battle_format, **options) as env:
        while done < battles:
            batch = env.recv()
            actions = []
            for row in batch.decisions:
                place = (int(batch.battle[row]), int(batch.episode[row]))
                stream = streams.setdefault(place, ([], []))[batch.side[row]]
                if batch.retry[row]:
                    stream.pop()  # asked again, because the answer was unavailable for a hidden reason
                action = int(dice.choice(np.flatnonzero(batch.mask[row])))
                actions.append(action)
                stream.append((int(batch.kind[row]), action, batch.ints[row].copy()))
            for end in batch.finished:
                place = (int(end["battle"]), int(end["episode"]))
                if not end["truncated"] and done < battles:
                    done += 1
                    yield batch.logs[place], int(end["winner"]), streams.pop(place)
            env.send(batch.key[batch.decisions], actions)


def meaning(action: int, slot: int, ints: np.ndarray):
    """A slot's action with ids in place of positions, since closed sheets leave gaps in what a spectator can number"""
    own = LAYOUT["own"]
    half = mdbo.decode_slot(action)
    if half.switch is not None:
        return "switch", int(ints[own.int_index(half.switch, "species")])
    if half.move is None:
        return ("pass",)
    return "move", int(ints[own.int_index(slot, f"move_{half.move + 1}")]), half.target, half.tera


def compare_own(log: str, winner: int, truth, battle_format: str, views: Views, score: Score, where: str) -> None:
    score.files += 1
    try:
        streams = read_replay(log, battle_format, views)
    except ReplayError as error:
        score.left_out.append(f"{where}: {error}")
        return
    score.read += 1
    for rows, side, _, outcome in streams:
        if outcome != demos.outcome(winner, side):
            score.wrong.append(f"{where}: the outcome of p{side + 1} is read as {outcome}")
        if [row["kind"] for row in rows] != [kind for kind, _, _ in truth[side]]:
            score.wrong.append(f"{where}: {len(rows)} decisions of p{side + 1} were read, {len(truth[side])} were made")
            continue
        for number, (row, (kind, action, ints)) in enumerate(zip(rows, truth[side])):
            score.decisions += 1
            score.known += int(row["known"] == BOTH)
            score.partly += int(0 < row["known"] < BOTH)
            if kind == PREVIEW:
                agree = not row["known"] or row["action"] == action
            else:
                agree = True
                for slot, bit in enumerate((demos.FIRST, demos.SECOND)):
                    halves = [divmod(int(number), mdbo.SLOT_ACTIONS)[slot] for number in (row["action"], action)]
                    agree &= not row["known"] & bit or meaning(halves[0], slot, row["ints"]) == meaning(
                        halves[1], slot, ints
                    )
            if not agree:
                score.wrong.append(f"{where}, p{side + 1}, decision {number}: read {row['action']}, played {action}")


def check_own(battle_format: str, battles: int, seed: int, teams: list[str]) -> Score:
    """Half of the battles with open sheets, half with closed ones."""
    score = Score()
    with Views() as views:
        for open_team_sheets, count in ((True, battles - battles // 2), (False, battles // 2)):
            for number, battle in enumerate(play(battle_format, count, open_team_sheets, seed, teams) if count else ()):
                where = f"battle {number} with {'open' if open_team_sheets else 'closed'} sheets"
                compare_own(*battle, battle_format, views, score, where)
    return score


def own_teams(battle_format: str, seed: int) -> list[str]:
    generated = TeamPool("generated", battle_format, size=200, seed=seed).packed
    return [*TeamPool("shipped", battle_format, split="all").packed, *generated]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", help="replays, searched with its subfolders")
    parser.add_argument(
        "--own-battles", type=int, default=0, help="instead of a folder: this many random battles, read back"
    )
    parser.add_argument("--seed", type=int, default=1, help="of those battles")
    parser.add_argument("--battle-format", default="gen9vgc2024regg")
    parser.add_argument("--list", action="store_true", help="print every decision")


def run(args: argparse.Namespace) -> int:
    try:
        battle_format = normalize_format(args.battle_format)
    except (ValueError, InstallError) as error:
        print(error, file=sys.stderr)
        return 2
    if args.own_battles:
        score = check_own(battle_format, args.own_battles, args.seed, own_teams(battle_format, args.seed))
    elif args.folder is None or not args.folder.is_dir():
        print(
            f"{args.folder} is no folder: give one with Showdown replays ({', '.join(SUFFIXES)}) in it.",
            file=sys.stderr,
        )
        return 2
    else:
        score = check(args.folder, battle_format, print if args.list else None)
    for line in (*score.left_out, *score.wrong):
        print(line)
    result = {
        "files": score.files,
        "read": score.read,
        "decisions": score.decisions,
        "known": score.known,
        "first_only": score.partly,
    }
    if score.made:
        result |= {"choices": score.made, "recovered": score.right}
    if score.made or args.own_battles:
        result["wrong"] = len(score.wrong)
    print(json.dumps(result))
    return int(bool(score.wrong))
