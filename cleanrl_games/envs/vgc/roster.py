"""Who is where, in what state, as one player's protocol lines tell it: the half of `tracker.py` about Pokémon and slots."""

from dataclasses import dataclass, field, replace

from cleanrl_games.envs.vgc.beliefs import Belief, Beliefs
from cleanrl_games.envs.vgc.vocabulary import (
    BOOSTS,
    NONE,
    SPECIES_FACTS,
    STATUSES,
    abilities_of,
    find,
    parse_details,
    same_species,
)

ILLUSION = find("abilities", "illusion")
STELLAR = find("types", "stellar")

PASSED = (
    "substitute",
    "confusion",
    "leech_seed",
    "perish",
    "heal_block",
    "focus_energy",
    "magnet_rise",
    "no_escape",
    "curse",
)


def tag(message: list[str], start: int, prefix: str) -> str:
    """What follows a tag such as "[from] " in the message; the last one counts, as the simulator writes at most one."""
    return next((part[len(prefix) :] for part in reversed(message[start:]) if part.startswith(prefix)), "")


@dataclass
class Mon:
    name: str
    species: int
    level: int
    hp: float = 1.0
    status: int = 0
    status_turns: int = 0
    fainted: bool = False
    shown: bool = False
    hidden_forme: bool = False
    ability: int = 0
    item: int = 0
    lost_item: int = 0
    lost_event: object = None  # the action in which it lost that
    tera: int = 0
    terastallized: bool = False
    uses: dict[int, int] = field(default_factory=dict)  # move -> times seen, in the order of the sheet or of revelation
    pp_left: dict[int, float] = field(default_factory=dict)  # own side, as told by requests
    entry: dict | None = None  # own side: the request's
    max_hp: int = 0  # own side
    belief: Belief | None = None

    def __post_init__(self):
        self.learn_ability()

    def learn_ability(self):
        if len(abilities_of(self.species)) == 1:  # no secret about it
            self.ability = abilities_of(self.species)[0]

    def reveal(self, move: int) -> bool:
        if move not in self.uses and len(self.uses) < 4:
            self.uses[move] = 0
        return move in self.uses

    def set_status(self, status: int):
        if status != self.status:
            self.status, self.status_turns = status, 0

    def set_condition(self, condition: str):
        health, _, status = condition.partition(" ")
        if "/" not in health:
            self.hp, self.fainted, self.status = 0.0, True, 0
            return
        now, full = health.split("/")
        self.hp, self.fainted = int(now) / int("".join(filter(str.isdigit, full))), False
        self.set_status(STATUSES.index(status) if status in STATUSES else 0)


class Slot:
    def __init__(self):
        self.mon: Mon | None = None
        self.snapshot: Mon | None = None  # what was known of this Pokémon when it came in, should it be an Illusion
        self.announces = False
        self.hp_at_pause = -1.0
        self.clear()

    def clear(self):
        self.boosts = dict.fromkeys(BOOSTS, 0)
        self.effects: dict[str, float] = {}
        self.species = 0
        self.types: tuple[int, int] | None = None
        self.type_3 = 0
        self.ability = 0  # differs from the Pokémon's own; -1: swapped, and nobody said what it is
        self.suppressed = False
        self.last_move = 0
        self.disabled_move = 0
        self.ends = 0
        self.actions = 0
        self.protects = 0
        self.protects_before = 0
        self.hit_by: Event | None = None
        self.odd = False
        self.dancing = False  # the next move line is Dancer's copy
        self.handed_over = False  # poke-env knows neither Baton Pass and Shed Tail nor who copies whose stages

    @property
    def looks(self) -> int:
        return self.species or (self.mon.species if self.mon else 0)

    @property
    def shown_ability(self) -> int:
        return 0 if self.ability < 0 else self.ability or self.mon.ability

    def current_types(self) -> tuple[int, int, int]:
        if self.mon.terastallized and self.mon.tera != STELLAR:
            return self.mon.tera, 0, 0
        first, second = self.types or SPECIES_FACTS[self.looks][:2]
        return first, second, self.type_3


@dataclass
class Event:
    actor: int
    species: int
    move: int
    target: int
    target_species: int
    turn: int
    is_switch: bool = False
    is_cant: bool = False
    damage: list[float] = field(default_factory=lambda: [0.0, 0.0])
    no_effect: int = 0
    faints: int = 0


class Roster:
    def __init__(self, role: str):
        self.role = role
        self.slots = [Slot() for _ in range(4)]  # own a, own b, opponent's a, opponent's b
        self.own: dict[str, Mon] = {}
        self.opp: list[Mon] = []
        self.request: dict = {}
        self.turn = 0
        self.picks = 4
        self.sheets = self.own_tera = self.opp_tera = False
        self.deceivers = False
        self.weather, self.weather_ends = "", 0
        self.terrain, self.terrain_ends = "", 0
        self.rooms: dict[str, int] = {}  # ends of turn since it began
        self.sides: list[dict[str, int]] = [{}, {}]  # the same; layers for what is laid
        self.history: list[Event] = []
        self.beliefs = Beliefs(self)

    # ------------------------------------------------------------------------------------------- who is meant

    def index_of(self, ident: str) -> int:
        """Slot of "p1a: Name"; -1 for a Pokémon off the field ("p1: Name")."""
        if not ident.startswith("p") or ident[3:4] != ":":
            return -1
        return (0 if ident[:2] == self.role else 2) + "ab".index(ident[2])

    def mon_of(self, ident: str) -> Mon | None:
        index = self.index_of(ident)
        if index >= 0:
            return self.slots[index].mon
        name = ident.split(": ", 1)[1]
        mons = self.own.values() if ident[:2] == self.role else self.opp
        return next((mon for mon in mons if mon.name == name), None)

    @property
    def event(self) -> Event | None:
        return self.history[0] if self.history else None

    # ------------------------------------------------------------------------------------------- who is where

    def poke(self, message):
        if message[2] == self.role:
            return
        species, level, hidden = parse_details(message[3])
        mon = Mon("", species, level, hidden_forme=hidden)
        self.opp.append(mon)
        self.beliefs.adopt(mon)
        self.deceivers |= ILLUSION in abilities_of(species)

    def showteam(self, message):
        if message[2] == self.role:
            return
        self.sheets = True
        for packed in "|".join(message[3:]).split("]"):
            name, species, item, ability, moves, *_, last = packed.split("|")
            known = find("species", species or name)
            mon = next(mon for mon in self.opp if same_species(mon.species, known))
            mon.species, mon.hidden_forme = known, False
            mon.item = find("items", item) if item else NONE
            mon.ability = find("abilities", ability)
            mon.uses = dict.fromkeys((find("moves", move) for move in moves.split(",") if move), 0)
            mon.tera = find("types", (last.split(",") + [""] * 6)[5])
            self.beliefs.adopt(mon)

    def find_mon(self, ident: str, details: str) -> Mon:
        species, level, _ = parse_details(details)
        name = ident.split(": ", 1)[1]
        if ident[:2] == self.role:
            return self.own.setdefault(name, Mon(name, species, level))
        mon = next((mon for mon in self.opp if same_species(mon.species, species)), None)
        named = next((mon for mon in self.opp if mon.name == name), None)
        if mon is None and named is not None:
            return named  # an Illusion of somebody who has transformed shows a species that is not on the team
        if mon is None:
            mon = Mon(name, species, level)
            self.opp.append(mon)
            self.beliefs.adopt(mon)
        mon.name = name
        if mon.species != species:
            self.change_species(mon, species)
        return mon

    def change_species(self, mon: Mon, species: int):
        mon.species = species
        mon.learn_ability()
        if mon.belief:
            self.beliefs.adopt(mon)

    def switch(self, message):
        index = self.index_of(message[2])
        slot = self.slots[index]
        mon = self.find_mon(message[2], message[3])
        how = tag(message, 5, "[from] ")
        boosts, effects = dict(slot.boosts), dict(slot.effects)
        self.leave(index)
        slot.mon = mon
        slot.clear()
        species = parse_details(message[3])[0]
        slot.species = species if index > 1 and species != mon.species else 0
        slot.handed_over = how in ("Baton Pass", "Shed Tail")
        if how == "Baton Pass":
            slot.boosts = boosts
            slot.effects = {name: value for name, value in effects.items() if name in PASSED}
        elif how == "Shed Tail" and "substitute" in effects:
            slot.effects["substitute"] = 1
        if STATUSES[mon.status] == "tox":
            mon.status_turns = 0
        slot.snapshot = None
        if index > 1 and self.deceivers:
            slot.snapshot = replace(mon, uses=dict(mon.uses), belief=replace(mon.belief))
        first = not mon.shown
        mon.shown = True
        if first and mon.hidden_forme:
            self.beliefs.adopt(mon)
        mon.set_condition(message[4])
        if index > 1 and ", tera:" in message[3]:
            mon.tera, mon.terastallized = find("types", message[3].split(", tera:")[1]), True
        self.record(index, is_switch=True)
        self.beliefs.entered(index)

    def leave(self, index: int):
        self.slots[index ^ 1].effects.pop("commander", None)  # a Commander comes out when its Dondozo is gone

    def replaced(self, message):
        """An Illusion ended: what was seen since this Pokémon came in belongs to it, not to the one it posed as."""
        index = self.index_of(message[2])
        slot = self.slots[index]
        real = self.find_mon(message[2], message[3])
        posed, before = slot.mon, slot.snapshot
        slot.mon = real
        real.shown = True
        if index < 2 or posed is real or before is None:
            return
        slot.snapshot = None
        twin = self.slots[index ^ 1].mon is posed  # the true one stands beside it: whose item was it?
        real.hp, real.status, real.status_turns, real.fainted = (
            posed.hp,
            posed.status,
            posed.status_turns,
            posed.fainted,
        )
        if not twin and posed.item != before.item:
            real.item = posed.item
        if not twin and posed.lost_item != before.lost_item:
            real.lost_item = posed.lost_item
        if posed.terastallized and not before.terastallized:
            real.terastallized, real.tera = True, posed.tera
        for move, uses in posed.uses.items():
            seen = uses - before.uses.get(move, 0)
            if seen > 0 and real.reveal(move):
                real.uses[move] += seen
        real.ability = ILLUSION
        if not twin:
            vars(posed).update(vars(before))

    def swap(self, message):
        index = self.index_of(message[2])
        if index % 2 == int(message[3]):
            return
        base = index & 2
        self.slots[base], self.slots[base + 1] = self.slots[base + 1], self.slots[base]
        self.beliefs.disturb()

    def faint(self, message):
        index = self.index_of(message[2])
        slot = self.slots[index]
        slot.mon.hp, slot.mon.fainted, slot.mon.status = 0.0, True, 0
        slot.mon.terastallized = False  # and should it be revived, it is not any more
        if slot.hit_by:
            slot.hit_by.faints += 1
        self.leave(index)
        slot.clear()

    def details_change(self, message):
        index, mon = self.index_of(message[2]), self.mon_of(message[2])
        if index >= 0:
            self.slots[index].species = self.slots[index].ability = 0
        if mon:  # off the field too: Terapagos changes back when it faints
            self.change_species(mon, parse_details(message[3])[0])

    def forme_change(self, message):
        slot = self.slots[self.index_of(message[2])]
        species = parse_details(message[3])[0]
        slot.species = 0 if species == slot.mon.species else species
        self.cause(message, 4)

    def transform(self, message):
        index = self.index_of(message[2])
        slot, into = self.slots[index], self.slots[self.index_of(message[3])]
        if message[4:5] == ["[from] ability: Imposter"]:
            self.show_ability(index, "Imposter")
        slot.species, slot.ability = into.looks, into.shown_ability or -1
        slot.boosts = dict(into.boosts)
        slot.effects["transformed"] = 1
        slot.types, slot.type_3 = into.types, into.type_3

    # ------------------------------------------------------------------------------------------- health and stages

    def health(self, message):
        mon, index = self.mon_of(message[2]), self.index_of(message[2])
        before = mon.hp
        mon.set_condition(message[3])
        if len(message) > 4:
            self.cause(message, 4)
        elif message[1] == "-damage" and index >= 0 and self.event:
            self.event.damage[index >> 1] += before - mon.hp
            self.slots[index].hit_by = None if mon.hp else self.event
        self.beliefs.health(index, mon, message, before)

    def status(self, message):
        mon, index = self.mon_of(message[2]), self.index_of(message[2])
        mon.set_status(STATUSES.index(message[3]))
        if message[3] == "slp" and index >= 0:
            self.slots[index].effects.pop("yawn", None)
        self.cause(message, 4)

    def cure(self, message):
        mon = self.mon_of(message[2])
        if mon:
            mon.set_status(0)
        self.cause(message, 4)

    def cure_team(self, message):
        for mon in self.own.values() if message[2][:2] == self.role else self.opp:
            mon.set_status(0)

    def boost(self, message):
        boosts, stat = self.slots[self.index_of(message[2])].boosts, message[3]
        change = int(message[4]) if message[1] == "-boost" else -int(message[4])
        boosts[stat] = max(-6, min(6, boosts[stat] + change))

    def other_boost(self, message):
        kind = message[1]
        if kind == "-clearallboost":
            for slot in self.slots:
                slot.boosts = dict.fromkeys(BOOSTS, 0)
            return
        slot = self.slots[self.index_of(message[2])]
        if kind == "-setboost":
            slot.boosts[message[3]] = int(message[4])
        elif kind == "-clearboost":
            slot.boosts = dict.fromkeys(BOOSTS, 0)
        elif kind == "-clearpositiveboost":
            slot.boosts = {stat: min(0, stage) for stat, stage in slot.boosts.items()}
        elif kind == "-clearnegativeboost":
            slot.boosts = {stat: max(0, stage) for stat, stage in slot.boosts.items()}
        elif kind == "-invertboost":
            slot.boosts = {stat: -stage for stat, stage in slot.boosts.items()}
        elif kind == "-copyboost":
            other = self.slots[self.index_of(message[3])]
            slot.boosts = dict(other.boosts)
            slot.handed_over = other.handed_over = True
        elif kind == "-swapboost":
            other = self.slots[self.index_of(message[3])]
            named = message[4] if len(message) > 4 and not message[4].startswith("[") else ", ".join(BOOSTS)
            for stat in named.split(", "):
                slot.boosts[stat], other.boosts[stat] = other.boosts[stat], slot.boosts[stat]
        self.cause(message, 3)
