"""A saved Showdown battle, read back as two streams of decisions: what each player saw, could do, and did.

    log ──> Board (who stands where) ──┬─> requests as the player may have got them ──> Views (Node) ──> observation,
    mask
                                       └─> what each Pokémon then did ──> MDBO action, or "not known"

A spectator does not see everything. Not known, and so left out of the loss: what a Pokémon would have done that
fainted, flinched or slept first; a target behind Follow Me, Lightning Rod, a fainted foe or a single move that hit
both; the choice behind Encore or Struggle; team preview, unless all four were seen; everything of a side whose Illusion
may be at work. Not known and guessed in the observation: a player's own stats (31 IVs, EVs spread evenly), exact HP
(from per cent), moves and items that no sheet and no line showed, picks that never came in (absent). Everything else is
as in VGCVecEnv."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from poke_env.teambuilder import Teambuilder

from cleanrl_games.envs.vgc import demonstrations as demos
from cleanrl_games.envs.vgc import mdbo
from cleanrl_games.envs.vgc.baselines import LINEUP
from cleanrl_games.envs.vgc.install import normalize_format, same_regulation
from cleanrl_games.envs.vgc.replay_files import SUFFIXES, ReplayError, battle_lines, read_battle
from cleanrl_games.envs.vgc.replay_log import Board, read_log
from cleanrl_games.envs.vgc.replay_words import game_data, to_id
from cleanrl_games.envs.vgc.vec_env import NO_WINNER, PREVIEW, TIE, TURN
from cleanrl_games.envs.vgc.views import Views, mask_of
from cleanrl_games.envs.vgc.vocabulary import MOVE_FACTS, SPECIES_FACTS, abilities_of, find

SIDES = ("p1", "p2")
BOTH = demos.FIRST | demos.SECOND
REDIRECTING = ("followme", "ragepowder", "spotlight")
DRAWING = ("ability: Lightning Rod", "ability: Storm Drain")
EJECTING = ("ejectbutton", "ejectpack")
LEAVING = ("emergencyexit", "wimpout")
ILLUSION = find("abilities", "illusion")
NATURAL_EVS = 84  # 508 of them over six stats
MAJOR = ("move", "cant", "switch", "drag", "turn", "upkeep", "win", "tie")
FORCES_AN_END = ("move", "cant", "turn", "upkeep", "win", "tie")
CHAT = ("c", "c:", "chat", "j", "J", "l", "L", "n", "N", "join", "leave", "raw", "html", "uhtml", "uhtmlchange")
CLOCKS = ("t:", "inactive", "inactiveoff", "debug", "error", "bigerror")


def check_format(board: Board, lines: list[str], battle_format: str) -> None:
    if "|gen|9" not in lines:
        said = next((line.strip("|").replace("|", " ") for line in lines if line.startswith("|gen|")), "no generation")
        raise ReplayError(f"it is of {said}, not of gen 9")
    if not same_regulation(board.tier, battle_format):
        raise ReplayError(f"it is of the format {board.tier or 'unknown'}, not of {normalize_format(battle_format)}")
    if not all(board.mons.values()) or not any(line.startswith("|teampreview") for line in lines):
        raise ReplayError("it has no team preview")


def guessed_stats(species: str, level: int) -> dict[str, int]:
    found = find("species", species)
    if not found:
        raise ReplayError(f"{species!r} is no Pokémon of this simulator")
    inner = {
        stat: (2 * value + 31 + NATURAL_EVS // 4) * level // 100
        for stat, value in zip(("hp", "atk", "def", "spa", "spd", "spe"), SPECIES_FACTS[found][2])
    }
    return {stat: value + (level + 10 if stat == "hp" else 5) for stat, value in inner.items()}


class Decision:
    """One decision of one side while its action is being read: by slot, what was chosen (None = not known) and the tera
    or mega bit."""

    def __init__(self, request: dict, order: list[int], turn: int):
        self.request, self.order, self.turn = request, list(order), turn
        self.slots: list[mdbo.SlotAction | None] = [None, None]
        self.gimmick = [False, False]
        self.closed = [False, False]  # something happened that says no more can be learned about this slot
        self.doubtful = False  # who stands there may be an Illusion
        self.action, self.known = 0, 0

    @property
    def preview(self) -> bool:
        return "teamPreview" in self.request

    def choose(self, slot: int, action: mdbo.SlotAction | None) -> None:
        if self.slots[slot] is None and not self.closed[slot]:
            self.slots[slot], self.closed[slot] = action, True

    def had_no_choice(self, slot: int, move: str) -> None:
        """The request offered this move and nothing else (a locked move, or having to recharge): nobody chose it."""
        self.request["active"][slot] = {"moves": [{"move": move, "id": to_id(move)}], "trapped": True}
        self.closed[slot] = True

    def finish(self, frame: np.ndarray) -> None:
        """From slots to the joint number, if the frame's mask allows it. The second choice is learned given the first:
        it needs both."""
        if self.doubtful:
            self.known = 0
        if self.preview or self.doubtful:
            return
        table = mask_of(frame, preview=False).reshape(mdbo.SLOT_ACTIONS, mdbo.SLOT_ACTIONS)
        numbers = []
        for slot, gimmick in zip(self.slots, self.gimmick):
            if slot is not None and slot.move is not None:
                slot = slot._replace(tera=gimmick)
            numbers.append(None if slot is None else mdbo.encode_slot(slot))
        if numbers[0] is None or not table[numbers[0]].any():
            return
        self.known, self.action = demos.FIRST, mdbo.SLOT_ACTIONS * numbers[0]
        if numbers[1] is not None and table[numbers[0], numbers[1]]:
            self.known, self.action = BOTH, self.action + numbers[1]

    def row(self, frame: np.ndarray) -> np.ndarray:
        row = np.zeros((), demos.ROW)
        for name in ("ints", "floats", "slots", "pass_rule"):
            row[name] = frame[name]
        row["kind"] = PREVIEW if self.preview else TURN
        row["known"] = self.known
        row["action"] = self.action
        return row

    def words(self, names: list[str]) -> str:
        """The action with names in place of positions: "move fakeout +2 terastallize, switch Incineroar"; "?" where it
        is not known."""
        if self.preview:
            return "team " + ", ".join(names[place] for place in mdbo.PREVIEWS[self.action]) if self.known else "team ?"
        said = []
        for slot, half in enumerate(divmod(self.action, mdbo.SLOT_ACTIONS)):
            if not self.known & (demos.FIRST, demos.SECOND)[slot]:
                said.append("?")
                continue
            action = mdbo.decode_slot(half)
            if action.switch is not None:
                said.append(f"switch {names[self.order[action.switch]]}")
            elif action.move is None:
                said.append("pass")
            else:
                active = self.request["active"][slot]
                target = f" {action.target:+d}" if action.target else ""
                gimmick = f" {mdbo.gimmick(active)}" if action.tera else ""
                said.append(f"move {active['moves'][action.move]['id']}{target}{gimmick}")
        return ", ".join(said)


class Seat:
    """One side of a battle that is being read: its six, the order of its requests, and its decisions so far."""

    def __init__(self, side: str, ended: Board, lines: list[str]):
        self.side, self.number = side, SIDES.index(side)
        self.entries: list[dict] = []  # what this player was sent, for its view
        self.decisions: list[Decision] = []
        self.open: Decision | None = None
        self.gimmick_used = False
        self.champions = "Champions" in ended.tier  # where nobody terastallizes
        mons = ended.mons[side]
        self.names, self.details, self.sheets = [mon["name"] for mon in mons], [], []
        # not as used: that would tell what comes first
        self.moves = [sorted(to_id(move) for move in mon["moves"][:4]) for mon in mons]
        self.abilities, self.teras = [""] * len(mons), [""] * len(mons)
        self.items = ["unknown"] * len(mons)
        self.stones = [""] * len(mons)  # what each was seen to mega evolve with
        self.uses: list[dict[str, int]] = [{} for _ in mons]
        self.commands: dict[int, int] = {}  # who sits in whose mouth (Commander)
        self.charging: dict[int, tuple[Decision, int, str]] = {}  # who prepares a move whose target nobody saw yet
        self.reviving = -1
        self.previewed: list[str] = []  # their details as the preview shows them
        entered = []
        for line in lines:
            kind, *parts = line[1:].split("|")
            if kind == "poke" and parts[0] == side:
                self.details.append(parts[1])
                self.previewed.append(parts[1])
            elif kind == "showteam" and parts[0] == side:
                self.sheets = Teambuilder.parse_packed_team("|".join(parts[1:]))
            elif kind in ("switch", "drag", "replace") and parts[0][:2] == side:
                place = ended.find(parts[0], parts[1])
                if place not in entered:
                    entered.append(place)
                    if place < len(self.details) and "-*" in self.details[place]:
                        self.details[place] = parts[1]  # the forme that the preview hides, and its owner knows
            elif kind == "-mega" and parts[0][:2] == side:
                self.stones[ended.by_name[f"{side}: {parts[0].partition(': ')[2]}"]] = to_id(parts[2])
        for place, mon in enumerate(mons[: len(self.details)]):
            base = to_id(self.details[place].split(", ")[0].removesuffix("-*").split("-")[0])
            sheet = next(
                (entry for entry in self.sheets if to_id(entry.species or entry.nickname).startswith(base)), None
            )
            self.abilities[place] = to_id(sheet.ability or "") if sheet else to_id(mon["ability"])
            self.teras[place] = (sheet.tera_type if sheet else None) or mon["sheet_tera"] or ""
            if sheet:
                self.items[place] = to_id(sheet.item or "")
                self.moves[place] = [to_id(move) for move in sheet.moves][:4]
            elif self.stones[place]:
                self.items[place] = self.stones[place]
            if not mon["seen"]:  # lines call a Pokémon without a nickname by its species without the forme
                self.names[place] = game_data().pokedex.get(to_id(mon["name"]), {}).get("baseSpecies", mon["name"])
        # Leads first, then who came in later, in the order of the preview: as MDBO's line-ups have it.
        self.order = [*entered[:2], *sorted(entered[2:])]
        species = [find("species", details.split(", ")[0].removesuffix("-*")) for details in self.details]
        self.trickster = any(ILLUSION in abilities_of(found) for found in species)

    def where(self, place: int) -> int:
        if place not in self.order:
            self.order.append(place)
        return self.order.index(place)

    # ---------------------------------------------------------------------------------------- what the player was asked

    def entry(self, board: Board, place: int, active: bool, preview: bool) -> dict:
        mon = board.mons[self.side][place]
        shown = self.previewed[place] if preview and not self.sheets else self.details[place]
        details = (
            shown if not mon["seen"] else ", ".join(filter(None, [mon["species"], f"L{mon['level']}", mon["gender"]]))
        )
        stats = guessed_stats(details.split(", ")[0].removesuffix("-*"), mon["level"])
        most = stats.pop("hp")
        left = max(1, round(mon["hp"] / 100 * most))
        condition = "0 fnt" if mon["fainted"] else f"{left}/{most}" + (f" {mon['status']}" if mon["status"] else "")
        # Without a sheet only those who came in have shown anything: at team preview that would tell who is brought.
        told = bool(self.sheets) or not preview
        ability = self.abilities[place] if told else ""
        return {
            "ident": f"{self.side}: {self.names[place]}",
            "details": details + (f", tera:{mon['tera']}" if mon["tera"] else ""),
            "condition": condition, "active": active, "stats": stats, "moves": self.moves[place] if told else [],
            "baseAbility": ability,
            "ability": ability, "item": self.items[place] if told else "unknown", "pokeball": "pokeball",
            "teraType": self.teras[place] or mon["tera"],
            "terastallized": "" if mon["fainted"] else mon["tera"], "commanding": place in self.commands,
            "reviving": place == self.reviving,
        }  # fmt: skip

    def ask(self, board: Board, forced=None, preview=False) -> Decision:
        """The request of this moment, as the player's view hears it; from now on the lines tell how it was answered."""
        places = range(len(self.details)) if preview else self.order
        request = {"side": {"name": board.players[self.side], "id": self.side}}
        request["side"]["pokemon"] = [
            self.entry(board, place, not preview and at < 2, preview) for at, place in enumerate(places)
        ]
        if preview:
            request |= {"teamPreview": True, "maxChosenTeamSize": 4}
        elif forced:
            request["forceSwitch"] = forced
        else:
            request["active"] = [self.offer(board, place) for place in self.order[:2]]
        self.entries += [{"request": request}, {"observe": True}]
        self.open = Decision(request, self.order, board.turn)
        self.decisions.append(self.open)
        # even after it fell: who stood there before is in doubt, and so who stands where
        self.open.doubtful = self.trickster
        if not preview and not forced:
            for slot, place in enumerate(self.order[:2]):
                if board.mons[self.side][place]["fainted"] or place in self.commands:
                    self.open.choose(slot, mdbo.SlotAction())
        return self.open

    def offer(self, board: Board, place: int) -> dict:
        moves = []
        for move in self.moves[place]:
            most = MOVE_FACTS[find("moves", move)][5] or 1
            left = max(0, most - self.uses[place].get(move, 0))
            target = offered_target(move, board.mons[self.side][place])
            moves.append({"move": move, "id": move, "pp": left, "maxpp": most, "target": target, "disabled": False})
        offer = {"moves": moves}
        if self.stones[place]:
            offer["canMegaEvo"] = not self.gimmick_used
        elif not self.gimmick_used and not self.champions:
            offer["canTerastallize"] = self.teras[place] or "unknown"
        return offer


def letter_swapped(slot: str) -> str:
    return slot[:2] + {"a": "b", "b": "a"}[slot[2]]


def offered_target(move: str, mon: dict) -> str:
    """Whom a move may be aimed at, as a request says it: three moves depend on their user."""
    if move == "curse" and "Ghost" not in ([mon["tera"]] if mon["tera"] and mon["tera"] != "Stellar" else mon["types"]):
        return "self"
    if move == "terastarstorm" and mon["species"] == "Terapagos-Stellar":
        return "allAdjacentFoes"
    if move == "pollenpuff" and "Heal Block" in mon["effects"]:
        return "adjacentFoe"
    return game_data().moves.get(move, {}).get("target", "normal")


class Reader:
    """Both seats, and the rules by which lines become choices."""

    def __init__(self, text: str, battle_format: str):
        self.lines = battle_lines(text)
        try:
            ended = read_log("\n".join(self.lines))
        except ValueError as error:
            raise ReplayError(str(error)) from None
        check_format(ended, self.lines, battle_format)
        self.board = Board()
        self.seats = {side: Seat(side, ended, self.lines) for side in SIDES}
        if any(len(seat.order) < 2 for seat in self.seats.values()):
            raise ReplayError("it ended before both sides had sent out two Pokémon")
        self.started = self.acted = False
        self.empty: set[str] = set()  # slots whose Pokémon fell and was not replaced
        self.upkept = False  # between a turn's end and the next turn: the fallen are replaced
        self.forget_the_turn()
        self.winner, self.mover, self.revived = NO_WINNER, "", None
        self.history: list[tuple] = []  # (side, Decision) and (side, slot, place that came in), in order
        self.read()

    def forget_the_turn(self) -> None:
        self.acted = False
        self.switched: set[str] = set()  # slots that were filled in this turn
        self.ejected: set[str] = set()
        self.redirecting: set[str] = set()  # slots that draw moves
        self.swapped: set[str] = set()  # sides that used Ally Switch
        self.encored: set[str] = set()
        self.not_their_own: set[str] = set()  # slots whose next move (or "cant") is Instruct's or Dancer's

    def read(self) -> None:
        for at, line in enumerate(self.lines):
            kind, *parts = line[1:].split("|")
            parts += [""] * (3 - len(parts))
            if kind == "start" and not self.started:
                self.preview()
            if kind == "switch":
                self.switch(at, parts)
            elif kind in ("-terastallize", "-mega"):
                self.mark_gimmick(parts)
            elif kind in ("move", "cant"):
                self.act(at, kind, parts)
            elif kind == "-heal" and "|[from] move: Revival Blessing" in line:
                self.revive(parts)
            self.hear(kind, line)
            self.note(kind, parts)
            if kind == "turn":
                self.turn()
            elif kind == "move" and parts[1] == "Revival Blessing" and "[from]" not in line:
                self.revive_unseen(at, parts)
        if not self.started:
            raise ReplayError("it ended at team preview")

    def hear(self, kind: str, line: str) -> None:
        if kind in CHAT or kind in CLOCKS:
            return
        self.board.line(line)
        for seat in self.seats.values():
            seat.entries.append({"line": line})

    def ask(self, side: str, **question) -> Decision:
        decision = self.seats[side].ask(self.board, **question)
        self.history.append((side, decision))
        return decision

    def streams(self, views: Views) -> list[tuple[np.ndarray, int, str, float]]:
        """→ (rows, side, "replay", outcome) of both seats"""
        result = []
        for side, seat in self.seats.items():
            frames = views.follow(side, side, seat.entries, close=True)
            for decision, frame in zip(seat.decisions, frames, strict=True):
                decision.finish(frame)
            rows = np.array([decision.row(frame) for decision, frame in zip(seat.decisions, frames)], demos.ROW)
            result.append((rows, seat.number, "replay", demos.outcome(self.winner, seat.number)))
        return result

    # ------------------------------------------------------------------------------------------- when players are asked

    def preview(self) -> None:
        self.started = True
        for side, seat in self.seats.items():
            decision = self.ask(side, preview=True)
            if len(seat.order) == 4:
                leads, back = sorted(seat.order[:2]), sorted(seat.order[2:])
                decision.action, decision.known = LINEUP[(*leads, *back)], BOTH

    def turn(self) -> None:
        self.forget_the_turn()
        for side in SIDES:
            self.ask(side)

    def forced(self, slot: str) -> bool:
        """Whether a switch answers a forced one: after somebody acted, by an item or ability that throws out, or a
        second one."""
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
        for line in self.until(at, FORCES_AN_END):
            kind, *parts = line[1:].split("|")
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
                decision = self.ask(side, forced=flags)
                for slot, flag in enumerate(flags):
                    came = any(line.startswith(f"|switch|{side}{'ab'[slot]}") for line in self.until(at, FORCES_AN_END))
                    if not flag or not came:
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
        decision = self.ask(side, forced=[slot == 0, slot == 1])
        seat.reviving = -1
        decision.choose(slot, mdbo.SlotAction(switch=seat.where(place)))
        decision.choose(1 - slot, mdbo.SlotAction())

    def revive_unseen(self, at: int, parts: list[str]) -> None:
        """It was asked whom to revive, and no line says whom: the question is kept, its answer is not known."""
        told = self.until(at + 1, MAJOR)
        if any(line.startswith("|-fail|") or "Revival Blessing" in line for line in told):
            return
        seat, place = self.seats[parts[0][:2]], self.board.slots.get(parts[0][:3])
        if place not in seat.order[:2] or not any(self.board.mons[seat.side][other]["fainted"] for other in seat.order):
            return
        slot = seat.where(place)
        seat.reviving = place
        decision = self.ask(seat.side, forced=[slot == 0, slot == 1])
        seat.reviving = -1
        decision.closed = [True, True]

    def until(self, at: int, ends: tuple[str, ...]) -> list[str]:
        """The lines from here to the next of these kinds."""
        lines = []
        for line in self.lines[at:]:
            if line.split("|")[1] in ends:
                break
            lines.append(line)
        return lines

    # ----------------------------------------------------------------------------------------------- what they answered

    def acting(self, ident: str):
        """(seat, its turn decision, slot there) of a Pokémon that was asked at the start of this turn, or None"""
        seat, place = self.seats.get(ident[:2]), self.board.slots.get(ident[:3])
        decision = self.turn_decision(seat) if seat else None
        if decision is None or place not in decision.order[:2]:
            return None
        return seat, decision, decision.order.index(place)

    def turn_decision(self, seat: Seat) -> Decision | None:
        """The newest decision about moves: a forced switch in the middle of a turn comes after it."""
        return next((decision for decision in reversed(seat.decisions) if "active" in decision.request), None)

    def mark_gimmick(self, parts: list[str]) -> None:
        found = self.acting(parts[0])
        if found:
            found[1].gimmick[found[2]] = True
        self.seats[parts[0][:2]].gimmick_used = True

    def act(self, at: int, kind: str, parts: list[str]) -> None:
        self.acted, self.revived = True, None
        actor, tags = parts[0], [part for part in parts[1:] if re.match(r"\[\w+\]", part)]
        if kind == "cant" and parts[1].startswith("ability: ") and parts[1] != "ability: Truant":
            # Damp, Armor Tail …: the line names the holder, and the one it stops behind it
            actor = next((tag.removeprefix("[of] ") for tag in tags if tag.startswith("[of] ")), "")
        self.mover = actor
        found = self.acting(actor)
        if found is None:
            return
        seat, decision, slot = found
        if actor[:3] in self.not_their_own:
            self.not_their_own.discard(actor[:3])
            return
        caller = next((tag.removeprefix("[from] ") for tag in tags if tag.startswith("[from] ")), "")
        if kind == "move" and caller == "lockedmove":
            decision.had_no_choice(slot, parts[1])
            self.release(at, seat, decision.order[slot], to_id(parts[1]), parts[2])
            return
        if kind == "cant" and parts[1] == "recharge":
            decision.had_no_choice(slot, "Recharge")
            return
        if kind == "move" and caller:
            return  # called by another move or an ability: nobody chose it
        place = decision.order[slot]
        move = to_id(parts[2] if kind == "cant" else parts[1])
        known = None
        if move in seat.moves[place] and not self.transformed(seat, place):
            if actor[:3] not in self.encored:
                target = self.target(at, decision, slot, seat, move, parts[2] if kind == "move" else "")
                known = None if target is None else mdbo.SlotAction(seat.moves[place].index(move), target)
            if kind == "move":
                seat.uses[place][move] = seat.uses[place].get(move, 0) + 1
            if (
                kind == "move"
                and known is None
                and any(line.startswith("|-prepare|") for line in self.until(at + 1, MAJOR))
            ):
                seat.charging[place] = (decision, slot, move)
        decision.choose(slot, known)
        decision.closed[slot] = True

    def release(self, at: int, seat: Seat, place: int, move: str, aimed: str) -> None:
        """A move that took a turn to prepare: only now its target is seen, which was chosen in the turn before."""
        decision, slot, prepared = seat.charging.pop(place, (None, 0, ""))
        if decision is None or prepared != move or decision.turn != self.board.turn - 1:
            return
        target = self.target(at, decision, slot, seat, move, aimed)
        if target is not None:
            decision.slots[slot] = mdbo.SlotAction(seat.moves[place].index(move), target)

    def transformed(self, seat: Seat, place: int) -> bool:
        """Its moves are somebody else's."""
        return any(effect.startswith("as ") for effect in self.board.mons[seat.side][place]["effects"])

    def target(self, at: int, decision: Decision, slot: int, seat: Seat, move: str, aimed: str) -> int | None:
        """The target that was chosen, 0 if the move takes none, None if the line does not tell"""
        fact = game_data().moves.get(move, {})
        offered = decision.request["active"][slot]["moves"][seat.moves[decision.order[slot]].index(move)]["target"]
        who = mdbo.TARGETS.get(offered)
        if who is None:
            return 0
        if who == (mdbo.ALLY,):
            return slot - 2  # nobody else can be meant
        minor = self.until(at + 1, MAJOR)
        told = [line[1:].split("|") for line in minor]
        if not aimed:  # a move that is prepared and done at once names its target in the end
            aimed = next((parts[3] for parts in told if parts[0] == "-anim" and len(parts) > 3), "")
        # What hits both names one of them at random. Dragon Darts go for one, then the other; if one of them cannot be
        # hit, both for the other.
        if "[spread]" in self.lines[at] or self.hits_both(move, seat, decision.order[slot]):
            return None
        hit = {parts[1][:3] for parts in told if parts[0] == "-damage" and len(parts) == 3}
        if fact.get("smartTarget") and (len(hit) < 2 or {f"{seat.side}a", f"{seat.side}b"} & self.empty):
            return None
        if any(parts[0] == "-activate" and len(parts) > 2 and parts[2] in DRAWING for parts in told):
            return None
        side = aimed[:2]
        if (
            aimed[:3] not in self.board.slots
            or side in self.swapped
            or seat.side in self.swapped
            or aimed[:3] in self.redirecting
        ):
            return None
        index = "ab".index(aimed[2])
        if f"{side}{'ba'[index]}" in self.empty:
            return None  # a move that was meant for an empty place goes to the one beside it
        return -index - 1 if side == seat.side else index + 1

    def hits_both(self, move: str, seat: Seat, place: int) -> bool:
        if move == "expandingforce":
            return "Psychic Terrain" in self.board.field
        return move == "terastarstorm" and self.board.mons[seat.side][place]["species"] == "Terapagos-Stellar"

    # ------------------------------------------------------------------------------------------------ what has happened

    def note(self, kind: str, parts: list[str]) -> None:
        """What later lines are judged by."""
        slot, side = parts[0][:3], parts[0][:2]
        effect = re.sub(r"^(move|ability): ", "", parts[1])
        if kind in ("switch", "drag", "replace"):
            self.enter(parts)
        elif kind == "swap":
            self.swapped.add(side)
            self.empty = {letter_swapped(other) if other[:2] == side else other for other in self.empty}
            for seat in self.seats.values():
                seat.charging.clear()
            order = self.seats[side].order
            order[0], order[1] = order[1], order[0]
        elif kind == "-singleturn" and to_id(effect) in REDIRECTING:
            self.redirecting.add(slot)
        elif (kind == "-singleturn" and effect == "Instruct") or (
            kind == "-activate" and parts[1] == "ability: Dancer"
        ):
            self.not_their_own.add(slot)
        elif kind == "-start" and effect == "Encore":
            self.encored.add(slot)
        elif kind in ("-enditem", "-item") and slot in self.board.slots:
            self.carry(kind, parts)
        elif kind == "-activate" and parts[1] == "ability: Commander":
            seat, place = self.seats[side], self.board.slots.get(slot)
            seat.commands[place] = next(other for other in seat.order[:2] if other != place)
        elif kind == "faint":
            self.empty.add(slot)
            seat, place = self.seats[side], self.board.slots.get(slot)
            seat.commands = {who: mouth for who, mouth in seat.commands.items() if place not in (who, mouth)}
        elif kind in ("-ability", "-activate") and to_id(effect) in LEAVING:
            self.ejected.add(slot)
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
        side, index = parts[0][:2], "ab".index(parts[0][2])
        self.empty.discard(parts[0][:3])
        seat, place = self.seats[side], self.board.slots[parts[0][:3]]
        at = seat.where(place)
        seat.order[index], seat.order[at] = seat.order[at], seat.order[index]
        self.history.append((side, index, place))

    def carry(self, kind: str, parts: list[str]) -> None:
        place = self.board.slots[parts[0][:3]]
        if place is not None:
            self.seats[parts[0][:2]].items[place] = to_id(parts[1]) if kind == "-item" else ""
        if kind == "-enditem" and to_id(parts[1]) in EJECTING:
            self.ejected.add(parts[0][:3])


def read_replay(text: str, battle_format: str, views: Views | None = None) -> list[tuple[np.ndarray, int, str, float]]:
    """A log → (rows, side, "replay", outcome) of both seats"""
    if views is not None:
        return Reader(text, battle_format).streams(views)
    with Views() as views:
        return Reader(text, battle_format).streams(views)


@dataclass
class Collected:
    battles: int = 0
    decisions: int = 0
    known: int = 0  # both choices of a decision
    left_out: list[str] = field(default_factory=list)  # a line each: which file, and why


def collect_replays(source, folder, battle_format: str, progress=None) -> Collected:
    """Every replay below `source` becomes part of the set in `folder`."""
    source = Path(source)
    if not source.is_dir():
        raise ReplayError(f"{source} is no folder: give one with Showdown replays ({', '.join(SUFFIXES)}) in it.")
    files = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise ReplayError(f"There is no replay in {source}: put {', '.join(SUFFIXES)} files there.")
    writer, index, found = demos.Writer(folder, "replays_"), demos.new_index(battle_format), Collected()
    with Views() as views:
        for path in files:
            try:
                streams = read_replay(read_battle(path).text, battle_format, views)
            except ReplayError as error:
                found.left_out.append(f"{path.relative_to(source)}: {error}")
                continue
            except (
                Exception
            ) as error:  # strangers' files hold what nobody thought of; one of them must not end the others
                found.left_out.append(
                    f"{path.relative_to(source)}: it cannot be followed ({type(error).__name__}: {error})"
                )
                continue
            found.battles += 1
            found.decisions += sum(len(rows) for rows, *_ in streams)
            found.known += sum(int((rows["known"] == BOTH).sum()) for rows, *_ in streams)
            shard = writer.add(streams)
            if shard:
                index["shards"].append(shard)
            if progress:
                progress(found.battles, len(files))
    shard = writer.flush()
    if shard:
        index["shards"].append(shard)
    if not found.battles:
        reasons = "\n  ".join(found.left_out[:20])
        raise ReplayError(f"Not one of the {len(files)} replays in {source} can be learned from:\n  {reasons}")
    demos.write_index(folder, index)
    return found
