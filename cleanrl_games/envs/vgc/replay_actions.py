"""A saved Showdown battle, read back as two streams of decisions: what each player saw, could do, and did.

    log ──> Board (who stands where) ──┬─> requests as the player may have got them ──> DoubleBattle + Observer ──> observation
                                       └─> what each Pokémon then did ──> MDBO action, or "not known"

A spectator does not see everything. Not known, and so masked out of the loss: what a Pokémon would have done that fainted, flinched or
slept first; a target behind Follow Me, Lightning Rod or a fainted foe; the choice behind Encore, a locked move or Struggle; team
preview, unless all four were seen. Not known and guessed in the observation: a player's own stats (31 IVs, EVs spread evenly), exact HP
(from per cent), moves and items that no sheet and no line showed, picks that never came in (absent). Everything else is as in VGCVecEnv.
"""

import html
import json
import logging
import re
from pathlib import Path

import numpy as np
from poke_env.battle import DoubleBattle
from poke_env.teambuilder import Teambuilder

from cleanrl_games.envs.vgc import demonstrations as demos
from cleanrl_games.envs.vgc import mdbo
from cleanrl_games.envs.vgc.baselines import LINEUP, feed
from cleanrl_games.envs.vgc.features import Observer
from cleanrl_games.envs.vgc.install import normalize_format
from cleanrl_games.envs.vgc.replay_log import Board, read_log, spectator_lines
from cleanrl_games.envs.vgc.replay_words import game_data, to_id
from cleanrl_games.envs.vgc.vec_env import NO_WINNER, PREVIEW, TIE, TURN
from cleanrl_games.envs.vgc.vocabulary import MOVE_FACTS, find

SUFFIXES = (".log", ".html", ".json")
MAX_BYTES = 8 << 20  # a long battle has some 100 kB
SIDES = ("p1", "p2")
REDIRECTING = ("followme", "ragepowder", "spotlight")
EJECTING = ("ejectbutton", "ejectpack")
LEAVING = ("emergencyexit", "wimpout")
NATURAL_EVS = 84  # 508 of them over six stats


class ReplayError(ValueError):
    """A replay cannot be learned from; the message says why."""


def read_text(path: Path) -> str:
    """The protocol log in a .log, in a saved page (.html) or in what a server's replay API gives (.json)."""
    if path.stat().st_size > MAX_BYTES:
        raise ReplayError(f"it has more than {MAX_BYTES >> 20} MB: that is no battle")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ReplayError(f"it is no UTF-8 text ({error.reason})") from None
    if path.suffix == ".json":
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ReplayError(f"it is no JSON ({error})") from None
        log = content.get("log") if isinstance(content, dict) else None
        if not isinstance(log, str):
            raise ReplayError("its JSON has no text under 'log'")
        return log
    if path.suffix == ".html":
        found = re.search(r'<script[^>]*class="battle-log-data"[^>]*>(.*?)</script>', text, re.S)
        if not found:
            raise ReplayError("the page has no battle log in it (a script of class battle-log-data)")
        return html.unescape(found[1]).replace("<\\/", "</").strip()
    return text


def check_format(board: Board, lines: list[str], battle_format: str) -> None:
    if "|gen|9" not in lines:
        raise ReplayError(
            f"it is of {next((line.strip('|').replace('|', ' ') for line in lines if line.startswith('|gen|')), 'no generation')}, not of gen 9"
        )
    tier = re.sub(r"\(.*?\)|\[rated\]", "", board.tier, flags=re.I)
    played = re.sub(r"[^a-z0-9]", "", tier.lower()).replace("regulation", "reg").removesuffix("bo3")
    if played != normalize_format(battle_format).removesuffix("bo3"):
        raise ReplayError(f"it is of the format {board.tier or 'unknown'}, not of {normalize_format(battle_format)}")
    if not all(board.mons.values()) or not any(line.startswith("|teampreview") for line in lines):
        raise ReplayError("it has no team preview")
    if any(to_id(mon["species"]).startswith(("zoroark", "zorua")) for mons in board.mons.values() for mon in mons):
        raise ReplayError("a Zoroark takes part, and who stands behind a name is not certain")
    if any(line.startswith("|replace|") for line in lines):
        raise ReplayError("an Illusion takes part, and who stands behind a name is not certain")


def guessed_stats(species: str, level: int) -> dict[str, int]:
    base = game_data().pokedex.get(to_id(species), {}).get("baseStats")
    if base is None:
        raise ReplayError(f"{species!r} is no Pokémon of this simulator")
    inner = {stat: (2 * value + 31 + NATURAL_EVS // 4) * level // 100 for stat, value in base.items()}
    return {stat: value + (level + 10 if stat == "hp" else 5) for stat, value in inner.items()}


class Decision:
    """One decision of one side while its action is being read: by slot, what was chosen (None = not seen yet) and the tera bit."""

    def __init__(self, request: dict, order: list[int], observation):
        self.request, self.order, self.observation = request, list(order), observation
        self.slots: list[mdbo.SlotAction | None] = [None, None]
        self.tera = [False, False]
        self.closed = [False, False]  # something happened that says no more can be learned about this slot
        self.action, self.known = 0, 0

    def choose(self, slot: int, action: mdbo.SlotAction | None) -> None:
        if self.slots[slot] is None and not self.closed[slot]:
            self.slots[slot], self.closed[slot] = action, True

    def finish(self) -> None:
        """From slots to the joint number. The second choice is learned given the first, so it needs both."""
        if "teamPreview" in self.request:
            return
        slots = [slot._replace(tera=self.tera[i]) if slot and slot.move is not None else slot for i, slot in enumerate(self.slots)]
        table = mdbo.mask(self.request).reshape(mdbo.SLOT_ACTIONS, mdbo.SLOT_ACTIONS)
        numbers = [None if slot is None else mdbo.encode_slot(slot) for slot in slots]
        if numbers[0] is None or not table[numbers[0]].any():
            return
        self.known, self.action = demos.FIRST, mdbo.SLOT_ACTIONS * numbers[0]
        if numbers[1] is not None and table[numbers[0], numbers[1]]:
            self.known, self.action = demos.FIRST | demos.SECOND, self.action + numbers[1]

    def row(self) -> np.ndarray:
        row, preview = np.zeros((), demos.ROW), "teamPreview" in self.request
        row["ints"], row["floats"] = self.observation
        row["kind"], row["known"], row["action"] = PREVIEW if preview else TURN, self.known, self.action
        if preview:
            row["slots"] = mdbo.mask(self.request)[: mdbo.NUM_PREVIEWS].reshape(2, mdbo.SLOT_ACTIONS)
            row["pass_rule"] = mdbo.NO_PASS_RULE
        else:
            row["slots"], row["pass_rule"] = mdbo.slot_masks(self.request)
        return row


class Seat:
    """One side of a battle that is being read: its six, the order of its requests, and its decisions so far."""

    def __init__(self, side: str, ended: Board, lines: list[str]):
        self.side, self.number = side, SIDES.index(side)
        self.battle = DoubleBattle(f"replay-{side}", side, logging.getLogger("poke-env"), gen=9)
        self.observer, self.decisions, self.open, self.tera_used = Observer(self.battle), [], None, False
        self.names, self.details, self.sheets = [mon["name"] for mon in ended.mons[side]], [], []
        self.moves = [[to_id(move) for move in mon["moves"]][:4] for mon in ended.mons[side]]
        self.items, self.abilities, self.teras = ([""] * len(self.names) for _ in range(3))
        self.uses: list[dict[str, int]] = [{} for _ in self.names]
        self.commands: dict[int, int] = {}  # who sits in whose mouth (Commander)
        self.reviving = -1
        entered = []
        for line in lines:
            kind, *parts = line[1:].split("|")
            if kind == "poke" and parts[0] == side:
                self.details.append(parts[1])
            elif kind == "showteam" and parts[0] == side:
                self.sheets = Teambuilder.parse_packed_team("|".join(parts[1:]))
            elif kind in ("switch", "drag") and parts[0][:2] == side:
                place = ended.find(parts[0], parts[1])
                if place not in entered:
                    entered.append(place)
        for place, mon in enumerate(ended.mons[side][: len(self.details)]):
            sheet = next((s for s in self.sheets if to_id(s.species or s.nickname).startswith(to_id(mon["species"].split("-")[0]))), None)
            self.items[place] = to_id(sheet.item or "") if sheet else "unknown"
            self.abilities[place] = to_id(sheet.ability or "") if sheet else to_id(mon["ability"])
            self.teras[place] = (sheet.tera_type if sheet else None) or mon["sheet_tera"] or mon["tera"] or ""
            if sheet:
                self.moves[place] = [to_id(move) for move in sheet.moves][:4]
            if not mon["seen"]:  # lines call a Pokémon without a nickname by its species without the forme
                self.names[place] = game_data().pokedex.get(to_id(mon["name"]), {}).get("baseSpecies", mon["name"])
        # Leads first, then who came in later, in the order of the preview: as MDBO's line-ups have it.
        self.order = [*entered[:2], *sorted(entered[2:])]

    def where(self, place: int) -> int:
        return self.order.index(place)

    # ---------------------------------------------------------------------------------------- what the player was asked

    def entry(self, board: Board, place: int, active: bool) -> dict:
        mon = board.mons[self.side][place]
        details = self.details[place] if not mon["seen"] else ", ".join(filter(None, [mon["species"], f"L{mon['level']}", mon["gender"]]))
        stats = guessed_stats(mon["species"].removesuffix("-*"), mon["level"])
        most = stats.pop("hp")
        left = max(1, round(mon["hp"] / 100 * most))
        condition = "0 fnt" if mon["fainted"] else f"{left}/{most}" + (f" {mon['status']}" if mon["status"] else "")
        ability = self.abilities[place]
        return {
            "ident": f"{self.side}: {self.names[place]}", "details": details + (f", tera:{mon['tera']}" if mon["tera"] else ""),
            "condition": condition, "active": active, "stats": stats, "moves": self.moves[place], "baseAbility": ability, "ability": ability,
            "item": self.items[place], "pokeball": "pokeball", "teraType": self.teras[place], "terastallized": "" if mon["fainted"] else mon["tera"],
            "commanding": place in self.commands, "reviving": place == self.reviving,
        }  # fmt: skip

    def ask(self, board: Board, forced=None, preview=False) -> Decision:
        """The request of this moment, given to poke-env and the Observer; from now on the lines tell how it was answered."""
        places = range(len(self.details)) if preview else self.order
        request = {"side": {"name": board.players[self.side], "id": self.side}}
        request["side"]["pokemon"] = [self.entry(board, place, not preview and at < 2) for at, place in enumerate(places)]
        if preview:
            request |= {"teamPreview": True, "maxChosenTeamSize": 4}
        elif forced:
            request["forceSwitch"] = forced
        else:
            request["active"] = [self.offer(board, place) for place in self.order[:2]]
        self.battle.parse_request(request)
        self.observer.hear_request(request)
        self.close()
        self.open = Decision(request, self.order, self.observer.observe())
        if not preview and not forced:
            for slot, place in enumerate(self.order[:2]):
                if board.mons[self.side][place]["fainted"] or place in self.commands:
                    self.open.choose(slot, mdbo.SlotAction())
        return self.open

    def offer(self, board: Board, place: int) -> dict:
        moves = []
        for move in self.moves[place]:
            target = game_data().moves.get(move, {}).get("target", "normal")
            most = MOVE_FACTS[find("moves", move)][5] or 1
            left = max(0, most - self.uses[place].get(move, 0))
            moves.append({"move": move, "id": move, "pp": left, "maxpp": most, "target": target, "disabled": False})
        offer = {"moves": moves}
        if not self.tera_used and self.teras[place]:
            offer["canTerastallize"] = self.teras[place]
        return offer

    def close(self) -> None:
        if self.open is not None:
            self.decisions.append(self.open)
            self.open = None


class Reader:
    """Both seats, and the rules by which lines become choices."""

    def __init__(self, text: str, battle_format: str):
        self.lines = [line for line in spectator_lines(text) if line.startswith("|")]
        try:
            ended = read_log("\n".join(self.lines))
        except ValueError as error:
            raise ReplayError(str(error)) from None
        check_format(ended, self.lines, battle_format)
        self.board = Board()
        self.seats = {side: Seat(side, ended, self.lines) for side in SIDES}
        if any(len(seat.order) < 2 for seat in self.seats.values()):
            raise ReplayError("it ended before both sides had sent out two Pokémon")
        self.standing = {side: [False, False] for side in SIDES}  # foes that stood when the turn began
        self.started = self.acted = False
        self.switched: set[str] = set()  # slots that were filled in this turn
        self.ejected: set[str] = set()
        self.redirected: set[str] = set()  # sides whose targets are not what was chosen
        self.encored: set[str] = set()
        self.instructed: set[str] = set()  # their next move is not their own
        self.winner, self.mover, self.revived = NO_WINNER, "", None

    def streams(self) -> list[tuple[np.ndarray, int, str, float]]:
        for at, line in enumerate(self.lines):
            kind, *parts = line[1:].split("|")
            parts += [""] * (3 - len(parts))
            if kind in ("teamsize", "start") and not self.started:
                self.preview()
            if kind == "switch":
                self.switch(at, parts)
            elif kind == "-terastallize":
                self.mark_tera(parts)
            elif kind in ("move", "cant"):
                self.act(kind, parts)
            elif kind == "-heal" and "|[from] move: Revival Blessing" in line:
                self.revive(parts)
            self.hear(line)
            self.note(kind, parts)
            if kind == "turn":
                self.turn()
        if not self.started:
            raise ReplayError("it ended at team preview")
        result = []
        for side, seat in self.seats.items():
            seat.close()
            for decision in seat.decisions:
                decision.finish()
            rows = np.array([decision.row() for decision in seat.decisions], demos.ROW)
            result.append((rows, seat.number, "replay", demos.outcome(self.winner, SIDES.index(side))))
        return result

    def hear(self, line: str) -> None:
        self.board.line(line)
        for seat in self.seats.values():
            feed(seat.battle, [line])
            seat.observer.hear(line.split("|"))

    # ---------------------------------------------------------------------------------------------- when players are asked

    def preview(self) -> None:
        self.started = True
        for seat in self.seats.values():
            decision = seat.ask(self.board, preview=True)
            if len(seat.order) == 4:
                leads, back = sorted(seat.order[:2]), sorted(seat.order[2:])
                decision.action, decision.known = LINEUP[(*leads, *back)], demos.FIRST | demos.SECOND

    def turn(self) -> None:
        self.acted, self.switched, self.ejected, self.redirected, self.encored, self.instructed = False, *(set() for _ in range(5))
        for side, seat in self.seats.items():
            mons = self.board.mons[side]
            self.standing[side] = [not mons[place]["fainted"] for place in seat.order[:2]]
            seat.ask(self.board)

    def forced(self, slot: str) -> bool:
        """Whether a switch answers a forced one: after somebody acted, by an item or ability that throws out, or a second one."""
        if self.board.turn == 0:
            return slot in self.switched
        return self.acted or slot in self.switched or slot in self.ejected

    def switch(self, at: int, parts: list[str]) -> None:
        slot, side = parts[0][:3], parts[0][:2]
        seat = self.seats[side]
        place, index = self.board.find(parts[0], parts[1]), "ab".index(slot[2])
        if self.board.turn == 0 and slot not in self.switched:
            self.switched.add(slot)
            return
        if (side, place) == self.revived and seat.order[index] == place:
            return  # back in the slot it fell in, which nobody is asked about
        if self.forced(slot) and not (seat.open and "forceSwitch" in seat.open.request and not seat.open.closed[index]):
            self.ask_forced(at)
        # A chosen switch may come after an Eject Pack's forced one: it still answers the turn.
        decision = seat.open if self.forced(slot) else self.turn_decision(seat)
        if decision is not None and place in decision.order:
            decision.choose(index, mdbo.SlotAction(switch=decision.order.index(place)))
        self.switched.add(slot)

    def ask_forced(self, at: int) -> None:
        """The forced switches that are answered before anything else happens were asked together, of both sides."""
        wanted = {side: [False, False] for side in SIDES}
        for line in self.lines[at:]:
            kind, *parts = line[1:].split("|")
            if kind in ("move", "cant", "turn", "upkeep", "win", "tie"):
                break
            if kind == "switch":
                side, index = parts[0][:2], "ab".index(parts[0][2])
                if wanted[side][index]:
                    break
                wanted[side][index] = self.upkept or self.forced(parts[0][:3])
        for side, flags in wanted.items():
            seat, mons = self.seats[side], self.board.mons[side]
            if any(flags):
                fainted = [mons[place]["fainted"] for place in seat.order[:2]]
                flags = [flag or gone for flag, gone in zip(flags, fainted)] if self.upkept else flags
                decision = seat.ask(self.board, forced=flags)
                for slot, flag in enumerate(flags):
                    if not flag or not any(line.startswith(f"|switch|{side}{'ab'[slot]}") for line in self.until_next(at)):
                        decision.choose(slot, mdbo.SlotAction())

    def revive(self, parts: list[str]) -> None:
        """Revival Blessing asks through a forced switch, and what it heals is the answer."""
        side = parts[0][:2]
        seat, place = self.seats[side], self.board.by_name.get(f"{side}: {parts[0].partition(': ')[2]}")
        reviver = self.board.slots.get(self.mover[:3])
        if self.mover[:2] != side or reviver not in seat.order[:2] or place not in seat.order:
            return
        slot, self.revived = seat.where(reviver), (side, place)
        seat.reviving = reviver
        decision = seat.ask(self.board, forced=[slot == 0, slot == 1])
        seat.reviving = -1
        decision.choose(slot, mdbo.SlotAction(switch=seat.where(place)))
        decision.choose(1 - slot, mdbo.SlotAction())

    def until_next(self, at: int) -> list[str]:
        lines = []
        for line in self.lines[at:]:
            if line.split("|")[1] in ("move", "cant", "turn", "upkeep", "win", "tie"):
                break
            lines.append(line)
        return lines

    # -------------------------------------------------------------------------------------------------- what they answered

    def acting(self, ident: str):
        """(seat, its open turn decision, slot there) of a Pokémon that was asked at the start of this turn, or None"""
        seat, place = self.seats.get(ident[:2]), self.board.slots.get(ident[:3])
        decision = self.turn_decision(seat) if seat else None
        if decision is None or place not in decision.order[:2]:
            return None
        return seat, decision, decision.order.index(place)

    def turn_decision(self, seat: Seat) -> Decision | None:
        """The newest decision about moves: a forced switch in the middle of a turn comes after it."""
        for decision in [*([seat.open] if seat.open else []), *reversed(seat.decisions)]:
            if "active" in decision.request:
                return decision
        return None

    def mark_tera(self, parts: list[str]) -> None:
        found = self.acting(parts[0])
        if found:
            found[1].tera[found[2]] = True
        self.seats[parts[0][:2]].tera_used = True

    def act(self, kind: str, parts: list[str]) -> None:
        self.acted, self.mover, self.revived = True, parts[0], None
        found = self.acting(parts[0])
        if found is None:
            return
        seat, decision, slot = found
        if kind == "move" and parts[0][:3] in self.instructed:
            self.instructed.discard(parts[0][:3])
            return
        tags = [part for part in parts if part.startswith("[from]")]
        if kind == "move" and tags and "lockedmove" not in tags[0].replace(" ", ""):
            return  # called by another move or an ability: nobody chose it
        known, place = None, decision.order[slot]
        move = to_id(parts[2] if kind == "cant" else parts[1])
        if not tags and move in seat.moves[place] and parts[0][:3] not in self.encored:
            target = self.target(seat, slot, place, move, parts[2] if kind == "move" else "")
            known = None if target is None else mdbo.SlotAction(seat.moves[place].index(move), target)
        if kind == "move" and move in seat.moves[place]:
            seat.uses[place][move] = seat.uses[place].get(move, 0) + 1
        decision.choose(slot, known)
        decision.closed[slot] = True

    def target(self, seat: Seat, slot: int, place: int, move: str, aimed: str) -> int | None:
        """The target that was chosen, 0 if the move takes none, None if the line does not tell"""
        fact = game_data().moves[move]
        if mdbo.TARGETS.get(fact["target"]) is None:
            return 0
        if fact.get("smartTarget"):  # Dragon Darts hit whom they can
            return None
        if aimed[:3] not in self.board.slots or (seat.side in self.redirected and aimed[:2] == seat.side):
            return None
        index, drawing = "ab".index(aimed[2]), {"electric": "lightningrod", "water": "stormdrain"}.get(fact["type"].lower(), "none")
        standing = [(side, place) for side, other in self.seats.items() for place in other.order[:2]]
        effects = [effect for side, place in standing for effect in self.board.mons[side][place]["effects"]]
        transformed = any(effect.startswith("as ") for effect in effects)  # and took the ability with the looks
        if transformed or any(self.seats[side].abilities[place] == drawing for side, place in standing):  # an ally's draws as well
            return None
        if aimed[:2] == seat.side:
            return -index - 1
        foe = aimed[:2]
        mons, order = self.board.mons[foe], [self.board.slots[f"{foe}{letter}"] for letter in "ab"]
        if foe in self.redirected:
            return None
        # With one foe gone since the turn began the move may have been meant for the other one.
        fell = any(stood and (other is None or mons[other]["fainted"]) for stood, other in zip(self.standing[foe], order))
        return None if fell else index + 1

    # --------------------------------------------------------------------------------------------------- what has happened

    upkept = False  # between a turn's end and the next turn: the fallen are replaced

    def note(self, kind: str, parts: list[str]) -> None:
        """What later lines are judged by."""
        if kind in ("switch", "drag"):
            self.enter(parts)
        elif kind == "swap":
            side = parts[0][:2]
            self.redirected.add(side)
            order = self.seats[side].order
            order[0], order[1] = order[1], order[0]
        elif kind == "-singleturn" and to_id(parts[1].removeprefix("move: ")) in REDIRECTING:
            self.redirected.add(parts[0][:2])
        elif kind == "-singleturn" and parts[1] == "move: Instruct":
            self.instructed.add(parts[0][:3])
        elif kind == "-start" and to_id(parts[1].removeprefix("move: ")) == "encore":
            self.encored.add(parts[0][:3])
        elif kind in ("-enditem", "-item") and parts[0][:3] in self.board.slots:
            self.carry(kind, parts)
        elif kind == "-activate" and parts[1] == "ability: Commander":
            seat, place = self.seats[parts[0][:2]], self.board.slots.get(parts[0][:3])
            seat.commands[place] = next(other for other in seat.order[:2] if other != place)
        elif kind == "faint":
            seat, place = self.seats[parts[0][:2]], self.board.slots.get(parts[0][:3])
            seat.commands = {who: mouth for who, mouth in seat.commands.items() if place not in (who, mouth)}
        elif kind in ("-ability", "-activate") and to_id(parts[1].removeprefix("ability: ")) in LEAVING:
            self.ejected.add(parts[0][:3])
        elif kind == "upkeep":
            self.upkept = self.acted = True
        elif kind == "turn":
            self.upkept = False
        elif kind == "tie":
            self.winner = TIE
        elif kind == "win":
            names = [self.board.players[side] for side in SIDES]
            self.winner = names.index(parts[0]) if names.count(parts[0]) == 1 else NO_WINNER

    def enter(self, parts: list[str]) -> None:
        seat, index = self.seats[parts[0][:2]], "ab".index(parts[0][2])
        place = self.board.slots[parts[0][:3]]
        at = seat.where(place)
        seat.order[index], seat.order[at] = seat.order[at], seat.order[index]

    def carry(self, kind: str, parts: list[str]) -> None:
        place = self.board.slots[parts[0][:3]]
        if place is not None:
            self.seats[parts[0][:2]].items[place] = to_id(parts[1]) if kind == "-item" else ""
        if kind == "-enditem" and to_id(parts[1]) in EJECTING:
            self.ejected.add(parts[0][:3])


def read_replay(text: str, battle_format: str) -> list[tuple[np.ndarray, int, str, float]]:
    """A log → (rows, side, "replay", outcome) of both seats"""
    return Reader(text, battle_format).streams()


def collect_replays(source, folder, battle_format: str, progress=None) -> tuple[int, list[str]]:
    """Every replay below `source` becomes part of the set in `folder` → (battles, what was left out and why, a line each)."""
    source = Path(source)
    if not source.is_dir():
        raise ReplayError(f"{source} is no folder: give one with Showdown replays ({', '.join(SUFFIXES)}) in it.")
    files = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise ReplayError(f"There is no replay in {source}: put {', '.join(SUFFIXES)} files there.")
    writer, index, left_out, read = demos.Writer(folder, "replays_"), demos.new_index(battle_format), [], 0
    for path in files:
        try:
            shard = writer.add(read_replay(read_text(path), battle_format))
        except ReplayError as error:
            left_out.append(f"{path.relative_to(source)}: {error}")
            continue
        except Exception as error:  # strangers' files hold what nobody thought of; one of them must not end the others
            left_out.append(f"{path.relative_to(source)}: it cannot be followed ({type(error).__name__}: {error})")
            continue
        read += 1
        if shard:
            index["shards"].append(shard)
        if progress:
            progress(read, len(files))
    shard = writer.flush()
    if shard:
        index["shards"].append(shard)
    if not read:
        raise ReplayError(f"Not one of the {len(files)} replays in {source} can be learned from:\n  " + "\n  ".join(left_out[:20]))
    demos.write_index(folder, index)
    return read, left_out
