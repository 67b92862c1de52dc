"""A battle's protocol log, told as a list of events: what happened in words, and how the board looked afterwards.

    protocol lines ──> Board.line() ──> events: {turn, kind, text, changes}
                                                     │         └ only the parts of the board that are new
                                                     └ pieces: plain strings and [side, name of a Pokémon]

Understands the log of a spectator, of a player, and the simulator's own with its `|split|` lines (the public half is
taken, as Showdown's saved replays do). A kind of line that is not known is told as it stands, never dropped.
"""

import copy
import json
import re

from cleanrl_games.envs.vgc.replay_files import spectator_lines
from cleanrl_games.envs.vgc.replay_words import (
    CANNOT,
    CURES,
    GUARDS,
    STATS,
    STATUSES,
    WEATHERS,
    effect_name,
    game_data,
    move_name,
    spaced,
    to_id,
    types_of,
)

# Bookkeeping of the server, chat, clocks: nothing of the battle is lost without them.
SILENT = set(
    "|t:|j|J|l|L|n|N|c|c:|chat|inactive|inactiveoff|request|debug|error|bigerror|upkeep|rule|gen|gametype|clearpoke"
    "|start|teamsize|rated|seed|title|init|deinit|sentchoice|badge|uhtml|uhtmlchange|html|raw|join|leave|teampreview"
    "|-anim|-hitcount|-center|-message-silent|tempnotify|tempnotifyoff|noinit|-nothing|done|-candynamax".split("|")
)


class Board:
    """Both sides as the log has shown them so far."""

    def __init__(self):
        self.turn = 0
        self.tier = ""
        self.winner = ""
        self.players = {"p1": "Player 1", "p2": "Player 2"}
        self.mons: dict[str, list[dict]] = {"p1": [], "p2": []}
        self.by_name: dict[str, int] = {}  # "p1: nickname" -> place in self.mons["p1"]
        self.slots: dict[str, int | None] = {"p1a": None, "p1b": None, "p2a": None, "p2b": None}
        self.weather: dict[str, int] = {}  # at most one; like the conditions below: name -> turn it began
        self.field: dict[str, int] = {}
        self.sides: dict[str, dict[str, int]] = {"p1": {}, "p2": {}}
        self.before_illusion: dict[str, dict] = {}
        self.before_forme: dict[tuple[str, int], str] = {}  # who changed its forme only until it leaves -> its own one
        self.events: list[dict] = []
        self.shown: dict = {}
        self.quiet = False

    # ------------------------------------------------------------ Pokémon

    def new_mon(self, side: str, details: str) -> dict:
        mon = {"name": "", "species": "", "level": 50, "gender": "", "types": [], "hp": 100.0, "hp_text": ""}
        mon |= {"status": "", "boosts": {}, "item": "", "ability": "", "tera": "", "sheet_tera": "", "moves": []}
        mon |= {"effects": [], "brief": [], "fainted": False, "seen": False}
        self.set_details(mon, details)
        mon["name"] = mon["species"].removesuffix("-*")
        self.mons[side].append(mon)
        return mon

    def set_details(self, mon: dict, details: str) -> None:
        species, *rest = details.split(", ")
        mon["species"] = species
        mon["types"] = types_of(species.removesuffix("-*"))
        for part in rest:
            if re.fullmatch(r"L\d+", part):
                mon["level"] = int(part[1:])
            elif part in ("M", "F"):
                mon["gender"] = part
            elif part.startswith("tera:"):
                mon["tera"] = part[5:]

    def mon_at(self, ident: str) -> dict | None:
        """The Pokémon of an ident such as `p1a: Nick`; by slot first, since Illusion lends names."""
        slot, side, name = ident[:3], ident[:2], ident.partition(": ")[2]
        if slot in self.slots and self.slots[slot] is not None:
            return self.mons[side][self.slots[slot]]
        index = self.by_name.get(f"{side}: {name}")
        return self.mons[side][index] if index is not None else None

    def find(self, ident: str, details: str) -> int:
        """Which of the six enters: known by its nickname, else the preview entry of that species that nobody took
        yet."""
        side, name = ident[:2], ident.partition(": ")[2]
        key = f"{side}: {name}"
        if key not in self.by_name:
            taken = {index for known, index in self.by_name.items() if known.startswith(side)}
            species = details.split(", ")[0]
            free = [index for index in range(len(self.mons[side])) if index not in taken]

            def fits(index: int) -> int:
                shown = self.mons[side][index]["species"]
                if shown == species:
                    return 3
                # Preview hides some formes (Urshifu-*), and others only come to be in battle (Palafin-Hero).
                if shown.endswith("-*") and species.startswith(shown[:-2]):
                    return 2
                return int(species.split("-")[0] == shown.split("-")[0])

            best = max(free, key=fits, default=None)
            if best is None or not fits(best):
                self.new_mon(side, details)
                best = len(self.mons[side]) - 1
            self.by_name[key] = best
            self.mons[side][best]["name"] = name
        return self.by_name[key]

    def set_condition(self, mon: dict, condition: str) -> None:
        health, _, status = condition.partition(" ")
        if health == "0" or status == "fnt":
            mon |= {"hp": 0.0, "hp_text": "0", "status": "", "fainted": True}
            return
        left, _, full = health.rstrip("gyr").partition("/")  # 50/100y: the colour of the bar, where two are possible
        if not re.fullmatch(r"\d+(\.\d+)?", left) or not re.fullmatch(r"\d+", full) or int(full) == 0:
            return
        mon["hp"] = round(100 * float(left) / int(full), 1)
        mon["hp_text"] = f"{left}%" if full == "100" else f"{left}/{full}"
        mon["status"] = status if status in STATUSES else ""
        mon["fainted"] = False

    def enter(self, ident: str, details: str, condition: str, keep_boosts: bool = False) -> dict:
        slot, side = ident[:3], ident[:2]
        leaving = self.mons[side][self.slots[slot]] if self.slots.get(slot) is not None else None
        index = self.find(ident, details)
        mon = self.mons[side][index]
        self.before_illusion[slot] = copy.deepcopy(mon)
        boosts = dict(leaving["boosts"]) if leaving and keep_boosts else {}
        if leaving is not None:
            leaving |= {"boosts": {}, "effects": [], "brief": []}
            self.set_details(leaving, self.before_forme.pop((side, self.slots[slot]), leaving["species"]))
        for other, place in self.slots.items():
            # Revived and back in the other slot; if it had not fainted, one of the two is an Illusion: show both.
            if other.startswith(side) and other != slot and place == index and mon["fainted"]:
                self.slots[other] = None
        self.slots[slot] = index
        self.set_details(mon, details)
        mon |= {"boosts": boosts, "effects": [], "brief": [], "seen": True}
        self.set_condition(mon, condition)
        return mon

    # ------------------------------------------------------------ telling

    def who(self, ident: str) -> list[str]:
        mon = self.mon_at(ident)
        side = ident[:2] if ident[:2] in ("p1", "p2") else ""
        return [side, mon["name"] if mon else ident.partition(": ")[2] or ident]

    def side_name(self, ident: str) -> list[str]:
        side = ident[:2] if ident[:2] in ("p1", "p2") else ""
        return [side, self.players.get(side, ident)]

    def snapshot(self) -> dict:
        board = {f"{side}.{i}": mon for side in self.mons for i, mon in enumerate(self.mons[side])}
        board |= {"slots": self.slots, "weather": self.weather, "field": self.field}
        return board | {f"{side}.side": self.sides[side] for side in self.sides}

    def tell(self, kind: str, *pieces) -> None:
        if self.quiet:  # `[silent]`: the board changes, and the next event shows it
            return
        board = {key: json.dumps(value) for key, value in self.snapshot().items()}
        changes = {key: json.loads(value) for key, value in board.items() if self.shown.get(key) != value}
        self.shown = board
        self.events.append({"turn": self.turn, "kind": kind, "text": list(pieces), "changes": changes})

    # ------------------------------------------------------------ one line of the protocol

    def line(self, line: str) -> None:
        if not line.startswith("|"):
            return
        kind, *parts = line[1:].split("|")
        if kind in SILENT:
            return
        args, tags = [], {}
        for part in parts:
            tag = re.match(r"\[(\w+)\] ?(.*)", part)
            if tag and kind not in ("player", "poke", "win", "-message", "message", "showteam"):
                tags[tag[1]] = tag[2]
            else:
                args.append(part)
        args += [""] * (4 - len(args))
        method = getattr(self, "on_" + kind.replace("-", "minor_"), None)
        if method is None:
            self.tell("minor", f"{kind}: {' '.join(part for part in parts if part)}")
            return
        self.learn(args[0], tags)
        self.quiet = "silent" in tags
        method(args, tags)
        self.quiet = False

    def learn(self, ident: str, tags: dict) -> None:
        """`[from] item: Leftovers` shows what the one it happened to, or `[of]`, carries."""
        kind, _, name = tags.get("from", "").partition(": ")
        mon = self.mon_at(tags.get("of") or ident)
        if mon is not None and kind in ("item", "ability"):
            mon[kind] = name

    def because(self, tags: dict) -> list:
        cause = effect_name(tags.get("from", ""))
        if not cause:
            return ["."]
        cause = {"psn": "poison", "tox": "poison", "brn": "its burn", "Recoil": "recoil"}.get(cause, cause)
        if tags.get("of"):
            return [" (", self.who(tags["of"]), f": {cause})."]
        return [f" ({cause})."]

    # The battle as a whole

    def on_player(self, args, tags):
        if args[0] in self.players and args[1]:
            self.players[args[0]] = args[1]

    def on_tier(self, args, tags):
        self.tier = args[0]

    def on_poke(self, args, tags):
        if args[0] in self.mons:
            self.new_mon(args[0], args[1])

    def on_showteam(self, args, tags):
        """An open team sheet: a packed team without EVs; what it names is known from now on."""
        for packed in "|".join(args[1:]).rstrip("|").split("]"):
            fields = packed.split("|") + [""] * 12
            species = fields[1] or fields[0]
            for mon in self.mons.get(args[0], []):
                wild = mon["species"].endswith("-*") and to_id(species).startswith(to_id(mon["species"]))
                if (wild or to_id(species) == to_id(mon["species"])) and not mon["moves"]:
                    if wild:  # the sheet names the forme that the preview hid
                        entry = game_data().pokedex.get(to_id(species), {})
                        mon["species"], mon["types"] = entry.get("name", mon["species"]), types_of(species)
                    mon["item"], mon["ability"] = spaced(fields[2]), spaced(fields[3])
                    mon["moves"] = [move_name(move) for move in fields[4].split(",") if move]
                    mon["sheet_tera"] = (fields[11].split(",") + [""] * 6)[5]
                    break

    def on_turn(self, args, tags):
        self.turn = int(args[0]) if args[0].isdigit() else self.turn + 1
        for mons in self.mons.values():
            for mon in mons:
                mon["brief"] = []
        self.tell("turn", f"Turn {self.turn}")

    def on_win(self, args, tags):
        self.winner = args[0]
        side = next((side for side, name in self.players.items() if name == args[0]), "")
        self.tell("end", [side, args[0]], " won the battle!")

    def on_tie(self, args, tags):
        self.tell("end", "The battle ended in a tie.")

    def on_message(self, args, tags):
        self.tell("minor", args[0])

    on_minor_message = on_minor_hint = on_message

    # What Pokémon do

    def on_switch(self, args, tags):
        mon = self.enter(args[0], args[1], args[2], tags.get("from") == "Baton Pass")
        self.tell("switch", self.side_name(args[0]), " sent out ", [args[0][:2], mon["name"]], self.forme(mon) + ".")

    def on_drag(self, args, tags):
        mon = self.enter(args[0], args[1], args[2])
        self.tell("switch", [args[0][:2], mon["name"]], self.forme(mon) + " was dragged out.")

    def on_replace(self, args, tags):
        slot, side = args[0][:3], args[0][:2]
        place = self.slots.get(slot)
        disguise = self.mons[side][place] if place is not None else None
        worn = copy.deepcopy(disguise)
        index = self.find(args[0], args[1])
        mon = self.mons[side][index]
        self.slots[slot] = index
        if worn is not None and disguise is not mon:
            for key in ("hp", "hp_text", "status", "boosts", "effects", "brief", "tera", "fainted"):
                mon[key] = worn[key]
            before = self.before_illusion.get(slot, {})
            mon["moves"] += [move for move in worn["moves"] if move not in before.get("moves", []) + mon["moves"]]
            disguise |= before  # it never left the bench
        self.set_details(mon, args[1])
        mon["seen"] = True
        self.tell("switch", [side, mon["name"]], "'s illusion wore off.")

    def forme(self, mon: dict) -> str:
        return f" ({mon['species']})" if mon["species"] != mon["name"] else ""

    def on_move(self, args, tags):
        mon = self.mon_at(args[0])
        known = "from" in tags and effect_name(tags["from"]).lower() not in ("lockedmove", "")
        if mon is not None and args[1] not in mon["moves"] and not known and args[1] != "Struggle":
            mon["moves"].append(args[1])
        target = []
        if args[2] and args[2][:3] != args[0][:3] and "spread" not in tags:
            target = [" on ", self.who(args[2])]
        why = [f" ({effect_name(tags['from'])})"] if known else []
        self.tell("move", self.who(args[0]), " used ", ["move", args[1]], *target, *why, ".")

    def on_cant(self, args, tags):
        reason = CANNOT.get(args[1])
        if reason is None:
            reason = f" cannot use {args[2] or 'its move'} ({effect_name(args[1])})"
        self.tell("minor", self.who(args[0]), reason + ".")

    def on_faint(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None:
            mon |= {"hp": 0.0, "hp_text": "0", "fainted": True, "status": "", "boosts": {}, "effects": [], "brief": []}
        self.tell("faint", self.who(args[0]), " fainted.")

    def on_swap(self, args, tags):
        slot, side = args[0][:3], args[0][:2]
        other = f"{side}{'ab'[int(args[1])]}" if args[1] in ("0", "1") else None
        if other and slot in self.slots:
            self.slots[slot], self.slots[other] = self.slots[other], self.slots[slot]
        self.tell("minor", [side, args[0].partition(": ")[2]], " changed places.")

    def on_detailschange(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None:
            self.set_details(mon, args[1])
        self.tell("minor", self.who(args[0]), f" is now {args[1].split(', ')[0]}.")

    def on_minor_formechange(self, args, tags):
        slot, mon = args[0][:3], self.mon_at(args[0])
        if mon is not None and self.slots.get(slot) is not None:
            self.before_forme.setdefault((args[0][:2], self.slots[slot]), mon["species"])
        self.on_detailschange(args, tags)

    def on_minor_terastallize(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None:
            mon["tera"] = args[1]
        self.tell("tera", self.who(args[0]), f" terastallised into the {args[1]} type!")

    def on_minor_mega(self, args, tags):
        self.tell("tera", self.who(args[0]), f" Mega Evolved with {args[2] or args[1]}.")

    def on_minor_transform(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None:
            mon["effects"].append(f"as {self.who(args[1])[1]}")
        self.tell("minor", self.who(args[0]), " transformed into ", self.who(args[1]), ".")

    # Health and status

    def change_health(self, args, tags, verb):
        mon = self.mon_at(args[0])
        before = mon["hp"] if mon else 0.0
        if mon is not None:
            self.set_condition(mon, args[1])
        change = abs((mon["hp"] if mon else 0.0) - before)
        amount = f" {change:.0f}%" if change else ""
        self.tell(
            "minor", self.who(args[0]), f" {verb}{amount}" + (" of its HP" if amount else " HP"), *self.because(tags)
        )

    def on_minor_damage(self, args, tags):
        self.change_health(args, tags, "lost")

    def on_minor_heal(self, args, tags):
        self.change_health(args, tags, "recovered")

    def on_minor_sethp(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None:
            self.set_condition(mon, args[1])
            self.tell("minor", self.who(args[0]), f" is now at {mon['hp_text'] or args[1]}", *self.because(tags))

    def on_minor_status(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None and args[1] in STATUSES:
            mon["status"] = args[1]
        self.tell("minor", self.who(args[0]), f" {STATUSES.get(args[1], args[1])}", *self.because(tags))

    def on_minor_curestatus(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None:
            mon["status"] = ""
        self.tell("minor", self.who(args[0]), f": {CURES.get(args[1], args[1])}.")

    def on_minor_cureteam(self, args, tags):
        for mon in self.mons.get(args[0][:2], []):
            mon["status"] = ""
        self.tell("minor", self.who(args[0]), " cured its team's statuses.")

    # Stat stages

    def boost(self, args, tags, sign):
        mon = self.mon_at(args[0])
        amount = int(args[2]) if args[2].isdigit() else 0
        if mon is not None and amount:
            stage = max(-6, min(6, mon["boosts"].get(args[1], 0) + sign * amount))
            self.set_stage(mon, args[1], stage)
        how = {0: "cannot change further", 1: "rose", 2: "rose sharply"}.get(amount, "rose drastically")
        if sign < 0:
            how = {0: "cannot change further", 1: "fell", 2: "fell harshly"}.get(amount, "fell severely")
        self.tell("minor", self.who(args[0]), f"'s {STATS.get(args[1], args[1])} {how}", *self.because(tags))

    def set_stage(self, mon: dict, stat: str, stage: int) -> None:
        mon["boosts"][stat] = stage
        if not stage:
            del mon["boosts"][stat]

    def on_minor_boost(self, args, tags):
        self.boost(args, tags, 1)

    def on_minor_unboost(self, args, tags):
        self.boost(args, tags, -1)

    def on_minor_setboost(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None and re.fullmatch(r"-?\d", args[2]):
            self.set_stage(mon, args[1], int(args[2]))
        self.tell(
            "minor", self.who(args[0]), f"'s {STATS.get(args[1], args[1])} is now at {args[2]}", *self.because(tags)
        )

    def on_minor_swapboost(self, args, tags):
        one, two = self.mon_at(args[0]), self.mon_at(args[1])
        if one is not None and two is not None:
            for stat in args[2].split(", ") if args[2] else STATS:
                a, b = one["boosts"].get(stat, 0), two["boosts"].get(stat, 0)
                self.set_stage(one, stat, b)
                self.set_stage(two, stat, a)
        self.tell("minor", self.who(args[0]), " swapped stat changes with ", self.who(args[1]), ".")

    def on_minor_copyboost(self, args, tags):
        one, two = self.mon_at(args[0]), self.mon_at(args[1])
        if one is not None and two is not None:
            one["boosts"] = dict(two["boosts"])
        self.tell("minor", self.who(args[0]), " copied the stat changes of ", self.who(args[1]), ".")

    def clear(self, args, keep, words):
        mon = self.mon_at(args[0])
        if mon is not None:
            mon["boosts"] = {stat: stage for stat, stage in mon["boosts"].items() if keep(stage)}
        self.tell("minor", self.who(args[0]), f"'s {words} were removed.")

    def on_minor_clearboost(self, args, tags):
        self.clear(args, lambda stage: False, "stat changes")

    def on_minor_clearpositiveboost(self, args, tags):
        self.clear(args, lambda stage: stage < 0, "raised stats")

    def on_minor_clearnegativeboost(self, args, tags):
        self.clear(args, lambda stage: stage > 0, "lowered stats")

    def on_minor_clearallboost(self, args, tags):
        for mons in self.mons.values():
            for mon in mons:
                mon["boosts"] = {}
        self.tell("minor", "All stat changes were removed.")

    def on_minor_invertboost(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None:
            mon["boosts"] = {stat: -stage for stat, stage in mon["boosts"].items()}
        self.tell("minor", self.who(args[0]), "'s stat changes were inverted.")

    # Weather, field, sides

    def on_minor_weather(self, args, tags):
        name = "" if args[0] == "none" else WEATHERS.get(args[0], args[0])
        before = next(iter(self.weather), "The weather")
        if "upkeep" in tags and name == before:
            return
        self.weather = {name: self.turn} if name else {}
        self.tell("field", f"{name} set in" if name else f"{before} ended", *self.because(tags))

    def on_minor_fieldstart(self, args, tags):
        name = effect_name(args[0])
        if name.endswith("Terrain"):
            self.field = {kept: turn for kept, turn in self.field.items() if not kept.endswith("Terrain")}
        self.field[name] = self.turn
        self.tell("field", f"{name} began", *self.because(tags))

    def on_minor_fieldend(self, args, tags):
        self.field.pop(effect_name(args[0]), None)
        self.tell("field", f"{effect_name(args[0])} ended.")

    def on_minor_fieldactivate(self, args, tags):
        self.tell("field", f"{effect_name(args[0])}!")

    def on_minor_sidestart(self, args, tags):
        name = effect_name(args[1])
        self.sides.get(args[0][:2], {})[name] = self.turn
        self.tell("field", f"{name} began on the side of ", self.side_name(args[0]), ".")

    def on_minor_sideend(self, args, tags):
        name = effect_name(args[1])
        self.sides.get(args[0][:2], {}).pop(name, None)
        self.tell("field", f"{name} ended on the side of ", self.side_name(args[0]), ".")

    def on_minor_swapsideconditions(self, args, tags):
        self.sides["p1"], self.sides["p2"] = self.sides["p2"], self.sides["p1"]
        self.tell("field", "The sides swapped their conditions.")

    # Effects on one Pokémon

    def on_minor_start(self, args, tags):
        mon, name = self.mon_at(args[0]), effect_name(args[1])
        paradox = re.fullmatch(r"(protosynthesis|quarkdrive)(\w+)", name)
        if paradox:
            ability = "Protosynthesis" if paradox[1] == "protosynthesis" else "Quark Drive"
            name = f"{ability} ({STATS.get(paradox[2], paradox[2])})"
        count = re.fullmatch(r"perish(\d)", name)
        if count:
            name = f"Perish {count[1]}"
        if mon is not None:
            # A perish count, a Protosynthesis or a type change replaces the one before it.
            family = name.split(" ")[0]
            mon["effects"] = [kept for kept in mon["effects"] if kept.split(" ")[0] != family]
            mon["effects"].append(name)
            if name == "typechange":
                mon["types"] = [kind for kind in args[2].split("/") if kind]
                mon["effects"][-1] = f"type: {args[2]}"
        self.tell("minor", self.who(args[0]), f": {name}" + (f" ({args[2]})" if args[2] else ""), *self.because(tags))

    def on_minor_end(self, args, tags):
        mon, name = self.mon_at(args[0]), effect_name(args[1])
        if mon is not None:
            mon["effects"] = [kept for kept in mon["effects"] if not kept.startswith(name)]
        self.tell("minor", self.who(args[0]), f": {name} ended.")

    def on_minor_singleturn(self, args, tags):
        mon, name = self.mon_at(args[0]), effect_name(args[1])
        if mon is not None and name not in mon["brief"]:
            mon["brief"].append(name)
        self.tell("minor", self.who(args[0]), f": {name}.")

    def on_minor_singlemove(self, args, tags):
        self.on_minor_singleturn(args, tags)

    def on_minor_activate(self, args, tags):
        mon, name = self.mon_at(args[0]), effect_name(args[1])
        if mon is not None and args[1].startswith(("ability: ", "item: ")):
            mon[args[1].partition(": ")[0]] = name
        if mon is not None and name == "Commander":
            mon["effects"].append("commanding")
        if args[1].startswith("move: ") and name in GUARDS:
            self.tell("minor", self.who(args[0]), f" was guarded by {name}.")
            return
        detail = f" ({effect_name(args[2])})" if args[2] else ""
        self.tell("minor", *([self.who(args[0]), ": "] if args[0] else []), name + detail, ".")

    def on_minor_ability(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None:
            mon["ability"] = args[1]
        self.tell("minor", self.who(args[0]), f"'s ability: {args[1]}", *self.because(tags))

    def on_minor_endability(self, args, tags):
        self.tell("minor", self.who(args[0]), "'s ability was suppressed", *self.because(tags))

    def on_minor_item(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None:
            mon["item"] = args[1]
        self.tell("minor", self.who(args[0]), f" holds {args[1]}", *self.because(tags))

    def on_minor_enditem(self, args, tags):
        mon = self.mon_at(args[0])
        if mon is not None:
            mon["item"] = f"{args[1]} (gone)"
        verb = "ate its" if "eat" in tags else "lost its" if "from" in tags else "used up its"
        self.tell("minor", self.who(args[0]), f" {verb} {args[1]}", *self.because(tags))

    def say(words):  # a line that is one Pokémon and a fixed phrase
        return lambda self, args, tags: self.tell("minor", self.who(args[0]), words)

    on_minor_supereffective = say(": super effective!")
    on_minor_resisted = say(": not very effective.")
    on_minor_crit = say(": a critical hit!")
    on_minor_immune = say(" is not affected.")
    on_minor_mustrecharge = say(" must recharge.")
    on_minor_notarget = say(": but there was no target.")
    on_minor_ohko = say(": a one-hit KO!")
    on_minor_zpower = say(" surrounded itself with Z-Power.")
    on_minor_combine = say(" combined the moves.")
    del say

    def on_minor_miss(self, args, tags):
        self.tell("minor", self.who(args[0]), " missed", *([" ", self.who(args[1])] if args[1] else []), ".")

    def on_minor_fail(self, args, tags):
        if args[1] == "unboost":
            self.tell("minor", self.who(args[0]), "'s stats were not lowered", *self.because(tags))
            return
        what = f" ({effect_name(args[1])})" if args[1] else ""
        self.tell("minor", self.who(args[0]), f": it failed{what}", *self.because(tags))

    def on_minor_block(self, args, tags):
        self.tell("minor", self.who(args[0]), f" was protected by {effect_name(args[1])}.")

    def on_minor_prepare(self, args, tags):
        self.tell("minor", self.who(args[0]), f" prepares {args[1]}.")

    def on_minor_waiting(self, args, tags):
        self.tell("minor", self.who(args[0]), " waits for ", self.who(args[1]), ".")


def read_log(text: str) -> Board:
    """The whole battle; the first event shows both teams before anybody is sent out."""
    board = Board()
    opened = False
    for number, line in enumerate(spectator_lines(text), 1):
        if not opened and line.startswith(("|switch|", "|drag|")):
            opened = True
            board.tell("turn", "The leads")
        try:
            board.line(line)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"Line {number} of the log is not of a doubles battle: {line[:120]!r}.") from error
    if not opened:
        raise ValueError("There is no battle in this log: no Pokémon is ever sent out (a `|switch|` line).")
    return board
