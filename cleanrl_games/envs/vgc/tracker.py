"""What the protocol says and poke-env's `DoubleBattle` does not keep, or keeps wrongly: see docs/vgc_features.md.

A `Tracker` hears one player's protocol lines (split at "|") and requests. `features.py` takes from poke-env what poke-env
has right and from here the rest: durations, effects across Baton Pass, items and abilities by who owns them, what an
Illusion hid, the last actions. `beliefs.py` draws its conclusions from here.
"""

from cleanrl_games.envs.vgc.roster import Event, Roster, Slot, tag
from cleanrl_games.envs.vgc.vocabulary import LAYOUT, NONE, STATUSES, abilities_of, find, parse_details

HISTORY = LAYOUT["history"].rows

# Effects as the protocol spells them, without "move: " or "ability: " -> column of the active slot.
EFFECTS = {
    "Substitute": "substitute",
    "confusion": "confusion",
    "Taunt": "taunt",
    "Encore": "encore",
    "Disable": "disable",
    "Torment": "torment",
    "Leech Seed": "leech_seed",
    "Yawn": "yawn",
    "Imprison": "imprison",
    "Heal Block": "heal_block",
    "Attract": "attract",
    "Throat Chop": "throat_chop",
    "Focus Energy": "focus_energy",
    "Dragon Cheer": "focus_energy",
    "Charge": "charge",
    "Flash Fire": "flash_fire",
    "Salt Cure": "salt_cure",
    "Smack Down": "smack_down",
    "Magnet Rise": "magnet_rise",
    "Syrup Bomb": "syrup_bomb",
    "No Retreat": "no_escape",
    "Octolock": "no_escape",
    "Ingrain": "no_escape",
    "Curse": "curse",
    "Uproar": "uproar",
    "Slow Start": "slow_start",
}
BINDING = {
    "Bind",
    "Clamp",
    "Fire Spin",
    "Infestation",
    "Magma Storm",
    "Sand Tomb",
    "Snap Trap",
    "Thunder Cage",
    "Whirlpool",
    "Wrap",
}
STALLS = {"Protect", "Endure", "Wide Guard", "Quick Guard"}
SHIELDS = STALLS - {"Endure"}
UNTIL_IT_MOVES = ("destiny_bond", "glaive_rush", "preparing", "recharge")
WEATHERS = {
    "SunnyDay": "sun",
    "RainDance": "rain",
    "Sandstorm": "sand",
    "Snowscape": "snow",
    "Snow": "snow",
    "Hail": "snow",
    "DesolateLand": "harsh_sun",
    "PrimordialSea": "heavy_rain",
    "DeltaStream": "strong_winds",
}
TERRAINS = {f"{name.title()} Terrain": name for name in ("electric", "grassy", "misty", "psychic")}
ROOMS = ("Trick Room", "Gravity", "Magic Room", "Wonder Room")
TIMED = ("Tailwind", "Reflect", "Light Screen", "Aurora Veil", "Safeguard", "Mist")
LAID = ("Spikes", "Toxic Spikes", "Stealth Rock", "Sticky Web", "Fire Pledge", "Water Pledge", "Grass Pledge")
SPEAKING_ITEMS = {  # they name themselves when they work, and their holder keeps them
    "Leftovers",
    "Black Sludge",
    "Shell Bell",
    "Life Orb",
    "Sticky Barb",
    "Flame Orb",
    "Toxic Orb",
    "Clear Amulet",
    "Focus Band",
    "Quick Claw",
    "Safety Goggles",
    "Protective Pads",
    "Ability Shield",
}
OF_SOURCE = {"-damage", "-status", "-weather", "-fieldstart", "-block", "-start", "-clearboost"}
TAKEN = {
    "[from] ability: Magician",
    "[from] ability: Pickpocket",
    "[from] move: Thief",
    "[from] move: Covet",
    "[from] move: Bestow",
}
AS_ONE = {find("abilities", "asoneglastrier"), find("abilities", "asonespectrier")}


def bare(effect: str) -> str:
    return effect.removeprefix("move: ").removeprefix("ability: ")


class Tracker(Roster):
    def line(self, message: list[str]):
        """One protocol line of this player's own channel, split at "|"."""
        kind = message[1] if len(message) > 1 else None
        if kind == "":
            self.beliefs.pause()
            return
        handler = HANDLERS.get(kind)
        if handler:
            handler(self, message)

    # ------------------------------------------------------------------------------------------- actions

    def record(self, index: int, move: int = 0, target: int = -1, is_switch: bool = False, is_cant: bool = False):
        seen = self.slots[target].looks if target >= 0 else 0
        event = Event(index + 1, self.slots[index].looks, move, target + 1, seen, self.turn, is_switch, is_cant)
        self.history = [event, *self.history[: HISTORY - 1]]

    def move(self, message):
        index = self.index_of(message[2])
        slot = self.slots[index]
        move = find("moves", message[3])
        how = "ability: Dancer" if slot.dancing else tag(message, 5, "[from] ")  # a copy that fails loses its tag
        slot.dancing = False
        spread = any(part.startswith("[spread]") for part in message[5:])
        aimed = message[4] if len(message) > 4 and not spread else ""
        self.record(index, move, self.index_of(aimed) if aimed else -1)
        if how.startswith("ability: "):
            self.show_ability(index, how[9:])
        chosen = how in ("", "lockedmove")
        self.beliefs.moved(index, move, chosen)
        if not chosen and how != "move: Sleep Talk":
            return
        if index > 1 and "transformed" not in slot.effects and message[3] != "Struggle" and slot.mon.reveal(move):
            slot.mon.uses[move] += how != "lockedmove"
        if not chosen:
            return
        self.acted(slot)
        slot.last_move = move
        slot.protects_before, slot.protects = slot.protects, 0

    def acted(self, slot: Slot):
        slot.actions += 1
        for effect in UNTIL_IT_MOVES:
            slot.effects.pop(effect, None)

    def cant(self, message):
        index = self.index_of(message[2])
        slot = self.slots[index]
        if message[3].startswith("ability: "):
            self.show_ability(index, message[3][9:])
            if message[3] != "ability: Truant":  # Damp, Armor Tail …: the line names the holder, the other one is stopped
                if self.event:
                    self.event.no_effect += 1
                return
        self.record(index, find("moves", message[4]) if len(message) > 4 else 0, is_cant=True)
        self.beliefs.stopped(index)
        self.acted(slot)
        slot.dancing = False
        slot.protects = 0
        slot.mon.status_turns += message[3] == "slp"

    def no_effect(self, message):
        if self.event:
            self.event.no_effect += 1
        if message[1] == "-miss" or not message[2].startswith("p"):
            return
        if message[1] == "-block" and len(message) > 3:
            self.effect_named(message)
        self.cause(message, 3)

    def single_turn(self, message):
        slot = self.slots[self.index_of(message[2])]
        if bare(message[3]) in STALLS:
            slot.protects = slot.protects_before + 1

    def single_move(self, message):
        if message[3] in ("Destiny Bond", "Glaive Rush"):
            self.slots[self.index_of(message[2])].effects[message[3].lower().replace(" ", "_")] = 1

    def upkeep(self, message):
        for slot in self.slots:
            slot.ends += 1
            if slot.mon and not slot.mon.fainted and STATUSES[slot.mon.status] == "tox":
                slot.mon.status_turns += 1
        self.weather_ends += 1
        self.terrain_ends += 1
        self.rooms = {room: ends + 1 for room, ends in self.rooms.items()}
        self.sides = [{name: value + (name in TIMED) for name, value in side.items()} for side in self.sides]
        self.beliefs.upkeep()

    def new_turn(self, message):
        self.turn = int(message[2])
        self.beliefs.turn()

    # ------------------------------------------------------------------------------------------- effects on one Pokémon

    def start(self, message):
        index = self.index_of(message[2])
        slot, effect = self.slots[index], bare(message[3])
        if effect in EFFECTS:
            slot.effects[EFFECTS[effect]] = 1
            if effect == "Disable":
                slot.disabled_move = find("moves", message[4])
        elif effect == "typechange":
            if message[4].startswith("[from] move: Reflect Type"):
                slot.types = self.slots[self.index_of(message[5][5:])].current_types()[:2]
            else:
                names = [*message[4].split("/"), ""]
                slot.types = find("types", names[0]), find("types", names[1])
            slot.type_3 = 0
        elif effect == "typeadd":
            slot.type_3 = find("types", message[4])
        elif effect.startswith("perish"):
            slot.effects["perish"] = (4 - int(effect[6])) / 4
        elif effect.startswith("stockpile"):
            slot.effects["stockpile"] = int(effect[9]) / 3
        elif effect.startswith(("protosynthesis", "quarkdrive")):
            slot.effects[f"paradox_{effect[-3:]}"] = 1
        if message[3].startswith("ability: "):
            self.show_ability(index, effect)
        self.cause(message, 4)

    def end(self, message):
        index = self.index_of(message[2])
        if index < 0:
            return
        slot, effect = self.slots[index], bare(message[3])
        if effect in EFFECTS:
            slot.effects.pop(EFFECTS[effect], None)
            if effect == "Disable":
                slot.disabled_move = 0
        elif effect == "typechange":
            slot.types = None
        elif effect == "Stockpile":
            slot.effects.pop("stockpile", None)
        elif effect in ("Protosynthesis", "Quark Drive"):
            slot.effects = {name: value for name, value in slot.effects.items() if not name.startswith("paradox")}
        elif effect in BINDING:
            slot.effects.pop("bound", None)
        if message[3].startswith("ability: "):
            self.show_ability(index, effect)

    def activate(self, message):
        index = self.index_of(message[2])
        if index < 0:
            return
        slot, effect = self.slots[index], bare(message[3])
        if message[3].startswith("ability: "):
            if effect == "Symbiosis":  # |-activate|GIVER|ability: Symbiosis|ITEM|[of] RECEIVER
                item = find("items", message[4])
                self.lose(slot.mon, item)
                receiver = self.mon_of(message[5][5:])
                receiver.item = item
                self.beliefs.item_changed(receiver, "")
            elif effect in ("Mummy", "Lingering Aroma"):  # |-activate|HOLDER|ability: Mummy|VICTIM|[ability] OLD
                victim = self.index_of(message[4])
                self.show_ability(victim, message[5].removeprefix("[ability] "))
                self.slots[victim].ability = find("abilities", effect)
            elif effect == "Commander":
                slot.effects["commander"] = 1
            elif effect == "Dancer":
                slot.dancing = True
            self.show_ability(index, effect)
        elif effect in BINDING:
            slot.effects["bound"] = 1
        elif effect == "trapped":
            slot.effects["no_escape"] = 1
        elif effect in SHIELDS:
            if self.event:
                self.event.no_effect += 1
        elif effect == "Skill Swap":
            self.skill_swap(message, index)
        else:
            self.effect_named(message)
        self.beliefs.activated(index, message[3])

    def skill_swap(self, message, index: int):
        other = self.index_of(message[-1].removeprefix("[of] "))
        if other < 0:
            return
        user, target = self.slots[index], self.slots[other]
        names = [name for name in message[4:-1] if name and not name.startswith("[")]
        if len(names) >= 2:  # the target's, then the user's: said aloud only between opponents
            self.show_ability(other, names[0])
            self.show_ability(index, names[1])
            user.ability, target.ability = find("abilities", names[0]), find("abilities", names[1])
        else:
            user.ability, target.ability = target.shown_ability or -1, user.shown_ability or -1

    def terastallize(self, message):
        index = self.index_of(message[2])
        slot = self.slots[index]
        slot.mon.tera, slot.mon.terastallized = find("types", message[3]), True
        slot.types, slot.type_3 = None, 0
        if index < 2:
            self.own_tera = True
        else:
            self.opp_tera = True

    def prepare(self, message):
        index = self.index_of(message[2])
        if index < 0:
            return
        effects = self.slots[index].effects
        if message[1] == "-anim":
            effects.pop("preparing", None)
        else:
            effects["preparing" if message[1] == "-prepare" else "recharge"] = 1

    # ------------------------------------------------------------------------------------------- items and abilities

    def set_item(self, message):
        mon, item = self.mon_of(message[2]), find("items", message[3])
        how = message[4] if len(message) > 4 else ""
        # A White Herb that comes by Trick can be used up before the line that announces it.
        swap = how in ("[from] move: Trick", "[from] move: Switcheroo")
        if not (swap and mon.lost_item == item and mon.lost_event is self.event):
            mon.item = item
        if how in TAKEN and len(message) > 5:
            self.lose(self.mon_of(message[5][5:]), item)
        self.beliefs.item_changed(mon, how)
        self.cause(message, 4)

    def lose(self, mon, item: int):
        if mon:
            mon.item, mon.lost_item, mon.lost_event = NONE, item, self.event
            self.beliefs.item_changed(mon, "")

    def end_item(self, message):
        self.lose(self.mon_of(message[2]), find("items", message[3]))
        index = self.index_of(message[2])
        if message[3] == "Power Herb" and index >= 0:
            self.slots[index].effects.pop("preparing", None)

    def set_ability(self, message):
        index = self.index_of(message[2])
        if not (len(message) > 5 and message[5].startswith("[from] ")):
            self.show_ability(index, message[3])
            return
        if message[4]:  # the one it had before
            self.show_ability(index, message[4])
        slot = self.slots[index]
        slot.ability, slot.suppressed = find("abilities", message[3]), False
        if message[5] == "[from] ability: Trace" and len(message) > 6:
            self.show_ability(self.index_of(message[6][5:]), message[3])

    def end_ability(self, message):
        slot = self.slots[self.index_of(message[2])]
        slot.suppressed = True
        slot.effects["ability_suppressed"] = 1

    def show_ability(self, index: int, name: str):
        if index < 0:
            return
        slot, ability = self.slots[index], find("abilities", name)
        if name in (
            "As One",
            "Unnerve",
            "Chilling Neigh",
            "Grim Neigh",
        ):  # two abilities in one, announced piece by piece
            ability = next((pair for pair in abilities_of(slot.mon.species) if pair in AS_ONE), ability)
        if not ability:
            return
        if slot.ability or (slot.mon.ability and slot.mon.ability != ability):
            slot.ability = ability
        else:
            slot.mon.ability = ability

    def effect_named(self, message):
        effect = message[3]
        if effect.startswith("item: "):
            if effect[6:] in SPEAKING_ITEMS:
                self.mon_of(message[2]).item = find("items", effect[6:])
        elif effect.startswith("ability: "):
            holder = message[4][5:] if len(message) > 4 and message[4].startswith("[of] ") else message[2]
            self.show_ability(self.index_of(holder), effect[9:])

    def cause(self, message, start: int):
        """ "[from] item: …" and "[from] ability: …" say whose item or ability was at work."""
        how, source = tag(message, start, "[from] "), tag(message, start, "[of] ")
        if how.startswith("item: "):
            name = how[6:]
            if name in SPEAKING_ITEMS:
                self.mon_of(message[2]).item = find("items", name)
            elif name == "Rocky Helmet" and source:
                self.mon_of(source).item = find("items", name)
        elif how.startswith("ability: "):
            name = how[9:]
            by_source = source and (message[1] in OF_SOURCE or name in ("Hospitality", "Frisk"))
            owner = source if by_source or not message[2].startswith("p") else message[2]
            if owner:
                self.show_ability(self.index_of(owner), name)

    # ------------------------------------------------------------------------------------------- field and sides

    def set_weather(self, message):
        if message[3:4] == ["[upkeep]"]:
            return
        self.weather, self.weather_ends = WEATHERS.get(message[2], ""), 0
        self.cause(message, 3)

    def field_start(self, message):
        name = bare(message[2])
        if name in TERRAINS:
            self.terrain, self.terrain_ends = TERRAINS[name], 0
        elif name in ROOMS:
            self.rooms[name] = 0
        self.cause(message, 3)

    def field_end(self, message):
        name = bare(message[2])
        if name in TERRAINS:
            self.terrain = ""
        self.rooms.pop(name, None)

    def side_start(self, message):
        name = bare(message[3])
        side = self.sides[message[2][:2] != self.role]
        if name in TIMED:
            side[name] = 0
        elif name in LAID:
            side[name] = side.get(name, 0) + 1

    def side_end(self, message):
        self.sides[message[2][:2] != self.role].pop(bare(message[3]), None)

    def swap_sides(self, message):
        self.sides.reverse()

    def team_preview(self, message):
        if len(message) > 2 and message[2]:
            self.picks = int(message[2])

    # ------------------------------------------------------------------------------------------- the player's own side

    def heard_request(self, request: dict):
        """The request is the truth about one's own side: who is where (also under an own Illusion), health, items, moves."""
        self.request = request
        for position, entry in enumerate(request["side"]["pokemon"]):
            mon = self.find_mon(entry["ident"], entry["details"])
            mon.species = parse_details(entry["details"])[0]
            mon.set_condition(entry["condition"])
            if "/" in entry["condition"]:  # the fainted keep the last maximum
                mon.max_hp = int(entry["condition"].split(" ")[0].split("/")[1])
            mon.item = find("items", entry["item"]) if entry["item"] else NONE
            mon.ability = find("abilities", entry.get("ability") or entry["baseAbility"])
            mon.tera = find("types", entry.get("teraType", ""))
            mon.terastallized = bool(entry.get("terastallized"))
            self.own_tera |= mon.terastallized
            mon.entry = entry
            if position < 2 and entry["active"] and not request.get("teamPreview"):
                self.slots[position].mon = mon
        for entry, active in zip(request["side"]["pokemon"], request.get("active", [])):
            mon = self.own[entry["ident"].split(": ", 1)[1]]
            mon.pp_left |= {find("moves", m["id"]): m["pp"] / m["maxpp"] for m in active["moves"] if m.get("maxpp")}


HANDLERS = {
    "move": Tracker.move,
    "-damage": Tracker.health,
    "-heal": Tracker.health,
    "-sethp": Tracker.health,
    "switch": Tracker.switch,
    "drag": Tracker.switch,
    "faint": Tracker.faint,
    "upkeep": Tracker.upkeep,
    "turn": Tracker.new_turn,
    "-boost": Tracker.boost,
    "-unboost": Tracker.boost,
    "-weather": Tracker.set_weather,
    "-start": Tracker.start,
    "-end": Tracker.end,
    "-activate": Tracker.activate,
    "-singleturn": Tracker.single_turn,
    "-enditem": Tracker.end_item,
    "-item": Tracker.set_item,
    "-ability": Tracker.set_ability,
    "-status": Tracker.status,
    "-curestatus": Tracker.cure,
    "-sidestart": Tracker.side_start,
    "-sideend": Tracker.side_end,
    "-fieldstart": Tracker.field_start,
    "-fieldend": Tracker.field_end,
    "cant": Tracker.cant,
    "-immune": Tracker.no_effect,
    "-fail": Tracker.no_effect,
    "-block": Tracker.no_effect,
    "-miss": Tracker.no_effect,
    "-terastallize": Tracker.terastallize,
    "detailschange": Tracker.details_change,
    "-formechange": Tracker.forme_change,
    "-transform": Tracker.transform,
    "-setboost": Tracker.other_boost,
    "-clearboost": Tracker.other_boost,
    "-clearallboost": Tracker.other_boost,
    "-clearpositiveboost": Tracker.other_boost,
    "-clearnegativeboost": Tracker.other_boost,
    "-copyboost": Tracker.other_boost,
    "-swapboost": Tracker.other_boost,
    "-invertboost": Tracker.other_boost,
    "-singlemove": Tracker.single_move,
    "-prepare": Tracker.prepare,
    "-anim": Tracker.prepare,
    "-mustrecharge": Tracker.prepare,
    "-cureteam": Tracker.cure_team,
    "-endability": Tracker.end_ability,
    "-swapsideconditions": Tracker.swap_sides,
    "swap": Tracker.swap,
    "replace": Tracker.replaced,
    "poke": Tracker.poke,
    "teampreview": Tracker.team_preview,
    "showteam": Tracker.showteam,
}
