"""What follows about the opponent's hidden side from what was seen: bounds on the raw Speed stat, items ruled out.

A bound is only drawn where nothing unseen could have turned the order of moves. What depends on an unseen item (a Choice
Scarf, an Iron Ball, a Lagging Tail) has its own "plain" columns; the certain ones allow for it.
"""

from dataclasses import dataclass, replace
from math import floor, trunc

from cleanrl_games.envs.vgc.vocabulary import (
    MOVE_FACTS,
    NONE,
    SPECIES_FACTS,
    STATUSES,
    abilities_of,
    find,
    formes_of,
    parse_details,
)


def items(*names: str) -> frozenset[int]:
    return frozenset(find("items", name) for name in names)


def abilities(*names: str) -> frozenset[int]:
    return frozenset(find("abilities", name) for name in names)


SCARF = find("items", "choicescarf")
CHOICE = items("choiceband", "choicescarf", "choicespecs")
POWER_ITEMS = ("poweranklet", "powerband", "powerbelt", "powerbracer", "powerlens", "powerweight")
SLOW = items("ironball", "machobrace", *POWER_ITEMS)
LATE = items("laggingtail", "fullincense")
ORDER = LATE | items("quickclaw", "custapberry")  # they move their holder inside its bracket
TOUCHES_SPEED = SLOW | ORDER | items("choicescarf", "quickpowder")
WEATHER_SPEED = {
    find("abilities", name): weathers
    for name, weathers in {
        "chlorophyll": ("sun", "harsh_sun"),
        "swiftswim": ("rain", "heavy_rain"),
        "sandrush": ("sand",),
        "slushrush": ("snow",),
    }.items()
}
ILLUSION, KLUTZ, GAS = (find("abilities", name) for name in ("illusion", "klutz", "neutralizinggas"))
SURGE_SURFER, UNBURDEN, QUICK_FEET = (find("abilities", name) for name in ("surgesurfer", "unburden", "quickfeet"))
STATUS_ORDER = abilities("prankster", "myceliummight")
GALE_WINGS = find("abilities", "galewings")
NEVER = abilities("triage", "stall", "quickdraw")  # the bracket of their moves is not to be read off the line
NO_RECOIL = abilities("sheerforce", "magicguard", "klutz")
TURNS_ORDER = frozenset(
    find("moves", name)
    for name in (
        "afteryou",
        "quash",
        "round",
        "firepledge",
        "grasspledge",
        "waterpledge",
        "shelltrap",
        "instruct",
        "allyswitch",
    )
)
GRASSY_GLIDE, STRUGGLE = find("moves", "grassyglide"), find("moves", "struggle")
FLYING = find("types", "flying")
PAR = STATUSES.index("par")
RULED_OUT = {  # column -> items it speaks of
    "no_choice": CHOICE,
    "no_assault_vest": items("assaultvest"),
    "no_life_orb": items("lifeorb"),
    "no_leftovers": items("leftovers"),
    "no_focus_sash": items("focussash"),
    "no_boots": items("heavydutyboots"),
    "no_balloon": items("airballoon"),
}


@dataclass
class Belief:
    bottom: int  # what the species allows
    top: int
    low: int
    high: int
    low_plain: int
    high_plain: int
    ruled_out: frozenset[str] = frozenset()
    swapped: bool = False  # an item came from somebody else


@dataclass(frozen=True)
class Speed:
    """A slot's Speed at one moment: the raw stat (own side only), its stage, and the factors between which it lies."""

    mon: object
    species: int
    mine: bool
    raw: int
    stage: int
    unknown_item: bool
    low: float
    high: float
    low_plain: float
    high_plain: float
    low_halved: bool
    high_halved: bool


def effective(raw: int, stage: int, factor: float, halved: bool) -> int:
    """The simulator's arithmetic: stages, then all factors chained in 4096ths, then paralysis."""
    stages = (2 + abs(stage)) / 2
    speed = floor(raw * stages if stage >= 0 else raw / stages)
    speed = trunc((speed * factor * 4096 + 2047) / 4096)
    return speed // 2 if halved else speed


def lowest(goal: int, stage: int, factor: float, halved: bool) -> int:
    """The lowest raw stat that reaches a goal."""
    low, high = 1, 1000
    while low < high:
        middle = (low + high) // 2
        if effective(middle, stage, factor, halved) >= goal:
            high = middle
        else:
            low = middle + 1
    return low


def stat_range(base: int, level: int) -> tuple[int, int]:
    worst = 2 * base * level // 100 + 5
    best = (2 * base + 31 + 63) * level // 100 + 5
    return worst * 90 // 100, best * 110 // 100


class Beliefs:
    def __init__(self, tracker):
        self.tracker = tracker
        self.pairs: list[tuple[int, int, Speed, Speed, bool]] = []  # second, priority, earlier, later, Trick Room
        self.acted: set[int] = set()
        self.flagged: set[int] = set()
        self.dirty = False
        self.swing: list | None = None  # slot, Pokémon, whether it hit: a move whose recoil is still to come

    def adopt(self, mon):
        formes = formes_of(mon.species) if mon.hidden_forme and not mon.shown else (mon.species,)
        ranges = [stat_range(SPECIES_FACTS[forme][2][5], mon.level) for forme in formes]
        low, high = min(bounds[0] for bounds in ranges), max(bounds[1] for bounds in ranges)
        if mon.belief is None:
            mon.belief = Belief(low, high, low, high, low, high)
        elif (mon.belief.bottom, mon.belief.top) != (low, high):
            bounds = {"bottom": low, "top": high, "low": low, "high": high, "low_plain": low, "high_plain": high}
            mon.belief = replace(mon.belief, **bounds)

    # ------------------------------------------------------------------------------------------- Speed

    def turn(self):
        self.pairs.clear()
        self.acted.clear()
        self.flagged.clear()
        self.dirty = False
        for slot in self.tracker.slots[2:]:
            if slot.announces and slot.mon and not slot.mon.item:
                self.rule_out(slot.mon, "no_balloon")
            slot.announces = False

    def disturb(self):
        self.dirty = True

    def candidates(self, index: int) -> list[int]:
        """Abilities the slot may have now; empty if nothing can be said."""
        slot = self.tracker.slots[index]
        if slot.ability < 0:
            return []
        return [slot.shown_ability] if slot.shown_ability else abilities_of(slot.mon.species)

    def masked(self, mine: bool) -> bool:
        """An Illusion makes every line about its side doubtful, unless the opponent's bearer is in plain sight."""
        tracker = self.tracker
        if mine:
            return any(mon.ability == ILLUSION and not mon.fainted for mon in tracker.own.values()) or any(
                slot.mon is not None and slot.mon.ability == ILLUSION for slot in tracker.slots[:2]
            )
        visible = [slot.mon for slot in tracker.slots[2:]]
        return tracker.deceivers and any(
            ILLUSION in ([mon.ability] if mon.ability else abilities_of(mon.species))
            for mon in tracker.opp
            if not mon.fainted and not any(mon is other for other in visible)
        )

    def speed(self, index: int) -> Speed | None:
        tracker = self.tracker
        slot = tracker.slots[index]
        mon, mine = slot.mon, index < 2
        if mon is None or mon.fainted or "transformed" in slot.effects or slot.odd:
            return None
        base = SPECIES_FACTS[mon.species][2][5]
        if SPECIES_FACTS[slot.looks][2][5] != base:
            return None
        if mine and (not mon.entry or SPECIES_FACTS[parse_details(mon.entry["details"])[0]][2][5] != base):
            return None
        could = self.candidates(index)
        if not could or mon.item in LATE:
            return None
        side = tracker.sides[not mine]
        low = high = (2 if "Tailwind" in side else 1) * (0.25 if "Grass Pledge" in side else 1)
        if "paradox_spe" in slot.effects:
            high *= 1.5
            alive = [other for other in tracker.slots if other.mon and not other.mon.fainted]
            if not slot.suppressed and not any((other.ability or other.mon.ability) == GAS for other in alive):
                low *= 1.5
        if "slow_start" in slot.effects:
            low *= 0.5
        for ability in could:
            in_weather = tracker.weather in WEATHER_SPEED.get(ability, ())
            on_terrain = ability == SURGE_SURFER and tracker.terrain == "electric"
            if in_weather or on_terrain or (ability == UNBURDEN and mon.item in (0, NONE)):
                high *= 2
            if ability == QUICK_FEET and mon.status:
                high *= 1.5
        low_item = high_item = 1.0
        if mon.item == SCARF:
            low_item, high_item = 1.0 if self.idle(index) else 1.5, 1.5
        elif mon.item in SLOW:
            low_item = 0.5
        elif not mon.item:
            low_item, high_item = 0.5, 1.5
        known = bool(mon.item)
        halved = mon.status == PAR
        return Speed(
            mon=mon,
            species=mon.species,
            mine=mine,
            raw=mon.entry["stats"]["spe"] if mine else 0,
            stage=slot.boosts["spe"],
            unknown_item=not known,
            low=low * low_item,
            high=high * high_item,
            low_plain=low * low_item if known else low,
            high_plain=high * high_item if known else high,
            low_halved=halved,
            high_halved=halved and QUICK_FEET not in could,
        )

    def bracket(self, index: int, move: int) -> int | None:
        """The priority a move line shows, or None where an ability may have changed it."""
        could = self.candidates(index)
        if not could or not move or move == GRASSY_GLIDE or "encore" in self.tracker.slots[index].effects:
            return None
        kind, category, _, _, priority, _ = MOVE_FACTS[move]
        if NEVER.intersection(could) or (category == 0 and STATUS_ORDER.intersection(could)):
            return None
        return None if GALE_WINGS in could and kind == FLYING else priority

    def moved(self, index: int, move: int, chosen: bool):
        self.settle()
        self.dirty |= move in TURNS_ORDER
        if chosen and index > 1:
            self.saw_move(index, move)
        if not chosen or index in self.acted or not self.tracker.turn:
            return
        self.acted.add(index)
        if self.dirty or index in self.flagged:
            return
        priority = self.bracket(index, move)
        if priority is None or self.masked(True) or self.masked(False):
            return
        for second, bracket, earlier, later, reverse in self.pairs:
            unchanged = all(speed.mon.species == speed.species for speed in (earlier, later))
            here = second == index and later.mon is self.tracker.slots[index].mon
            if here and unchanged and bracket == priority:
                self.compare(earlier, later, reverse)
        earlier = self.speed(index)
        if earlier is None:
            return
        for second in (2, 3) if index < 2 else (0, 1):
            if second in self.acted or second in self.flagged:
                continue
            later = self.speed(second)
            if later is not None:
                self.pairs.append((second, priority, earlier, later, "Trick Room" in self.tracker.rooms))

    def compare(self, earlier: Speed, later: Speed, reverse: bool):
        """`earlier` moved first in the same bracket: it was not slower (in Trick Room not faster)."""
        fast, slow = (later, earlier) if reverse else (earlier, later)
        theirs = later if earlier.mine else earlier
        belief = theirs.mon.belief
        # Lagging Tail and Full Incense make their holder late without a word.
        certain = theirs is earlier or not theirs.unknown_item
        if theirs is fast:
            goal = effective(slow.raw, slow.stage, slow.low, slow.low_halved)
            if certain:
                belief.low = max(belief.low, lowest(goal, fast.stage, fast.high, fast.high_halved))
            belief.low_plain = max(belief.low_plain, lowest(goal, fast.stage, fast.high_plain, fast.high_halved))
        else:
            goal = effective(fast.raw, fast.stage, fast.high, fast.high_halved) + 1
            if certain:
                belief.high = min(belief.high, lowest(goal, slow.stage, slow.low, slow.low_halved) - 1)
            belief.high_plain = min(belief.high_plain, lowest(goal, slow.stage, slow.low_plain, slow.low_halved) - 1)

    def stopped(self, index: int):
        self.settle()
        self.acted.add(index)

    def activated(self, index: int, effect: str):
        if effect in ("item: Quick Claw", "item: Custap Berry", "ability: Quick Draw"):
            self.flagged.add(index)
        elif effect == "move: Speed Swap":
            for slot in self.tracker.slots:
                slot.odd = True
        elif effect in ("move: After You", "move: Quash"):
            self.dirty = True

    # ------------------------------------------------------------------------------------------- items

    def rule_out(self, mon, column: str):
        mon.belief.ruled_out |= {column}

    def idle(self, index: int) -> bool:
        """Whether an item may be at rest: Magic Room, Klutz, or nobody knows."""
        could = self.candidates(index)
        return "Magic Room" in self.tracker.rooms or not could or KLUTZ in could

    def entered(self, index: int):
        self.settle()
        self.acted.add(index)  # who comes in during a turn does not move in it
        slot = self.tracker.slots[index]
        slot.hp_at_pause = -1.0
        slot.announces = index > 1 and not self.idle(index) and "Gravity" not in self.tracker.rooms

    def saw_move(self, index: int, move: int):
        slot = self.tracker.slots[index]
        if self.idle(index) or self.masked(False) or move == STRUGGLE:
            return
        if slot.last_move not in (0, move, STRUGGLE):
            self.rule_out(slot.mon, "no_choice")
        if MOVE_FACTS[move][1] == 0:
            self.rule_out(slot.mon, "no_assault_vest")
        elif not NO_RECOIL.intersection(self.candidates(index)):
            self.swing = [slot, slot.mon, False]

    def settle(self):
        """The next action has begun: recoil that has not come will not come."""
        if self.swing:
            slot, mon, hit = self.swing
            if hit and slot.mon is mon and not mon.fainted:
                self.rule_out(mon, "no_life_orb")
        self.swing = None

    def health(self, index: int, mon, message: list[str], before: float):
        if index < 0:
            return
        damage = message[1] == "-damage"
        direct = damage and len(message) == 4
        if direct and self.swing and self.tracker.slots[index].mon is not self.swing[1]:
            self.swing[2] = True
        if message[1] == "-heal" and mon.hp == 1:
            self.tracker.slots[index].hp_at_pause = -1.0  # full before Leftovers had their turn
        if index < 2 or not damage or self.idle(index) or self.masked(False):
            return
        if direct and before == 1 and mon.hp == 0:
            self.rule_out(mon, "no_focus_sash")
        if message[4:5] in (["[from] Stealth Rock"], ["[from] Spikes"]):
            self.rule_out(mon, "no_boots")

    def pause(self):
        """An empty line stands before the moves and before the end of a turn."""
        self.settle()
        for slot in self.tracker.slots:
            slot.hp_at_pause = slot.mon.hp if slot.mon else -1.0

    def upkeep(self):
        self.settle()
        for index in (2, 3):
            slot = self.tracker.slots[index]
            if slot.mon is None or slot.mon.fainted or self.masked(False) or self.idle(index):
                continue
            if "heal_block" not in slot.effects and 0 < slot.hp_at_pause < 1:
                self.rule_out(slot.mon, "no_leftovers")

    def item_changed(self, mon, how: str):
        self.swing = None  # Red Card, Knock Off …: too much may have changed for a conclusion about recoil
        if mon.belief and how.startswith("[from] ") and how != "[from] ability: Frisk":
            mon.belief.swapped = True
        if mon.item in ORDER or mon.lost_item in ORDER:
            self.flagged |= {index for index, slot in enumerate(self.tracker.slots) if slot.mon is mon}

    # ------------------------------------------------------------------------------------------- the columns

    def columns(self, mon, slot) -> dict[str, float]:
        """One row of the group `belief`; `slot` is where the Pokémon stands, or None."""
        belief, item = mon.belief, mon.item
        low, high = belief.low, belief.high
        first = mon.lost_item or item
        if first > NONE and not belief.swapped and first not in TOUCHES_SPEED:
            low, high = (
                max(low, belief.low_plain),
                min(high, belief.high_plain),
            )  # known by now: it never touched the Speed
        row = {
            "speed_min": low / 250,
            "speed_max": high / 250,
            "speed_min_plain": min(belief.low_plain, belief.top) / 250,
            "speed_max_plain": max(belief.high_plain, belief.bottom) / 250,
            "scarf_implied": not item and belief.low_plain > belief.top,
            "item_known": item > 0,
            "ability_known": (slot.shown_ability if slot else mon.ability) > 0,
            "moves_known": len(mon.uses) / 4,
            "tera_known": mon.tera > 0,
        }
        for column, about in RULED_OUT.items():
            row[column] = item not in about if item else column in belief.ruled_out
        return row
