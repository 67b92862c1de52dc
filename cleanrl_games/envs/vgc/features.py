"""The observation of one player, computed in Python from poke-env's `DoubleBattle`: what a policy sees on a real server.

    server ──> lines, requests ──> DoubleBattle (poke-env) ──┐
                        └────────> Tracker ──────────────────┴──> Observer.observe() ──> ints (INTS,), floats (FLOATS,)

The columns are those of columns.json and equal, bit for bit in the ids and to 1e-6 in the floats, to what
`showdown/features.js` writes inside `VGCVecEnv`: `python -m cleanrl_games.envs.vgc parity` checks it. Where poke-env does
not keep a thing or keeps it wrongly the column comes from the Tracker; docs/vgc_features.md lists them with an example.
"""

import numpy as np
from poke_env.battle import DoubleBattle, Effect, Field, Pokemon, PokemonType, Weather
from poke_env.data import GenData

from cleanrl_games.envs.vgc.roster import ILLUSION, STELLAR, Mon, Slot
from cleanrl_games.envs.vgc.tracker import TIMED, Tracker
from cleanrl_games.envs.vgc.vocabulary import (
    BOOSTS,
    FLOATS,
    INTS,
    LAYOUT,
    MOVE_FACTS,
    NONE,
    SIZES,
    SPECIES_FACTS,
    STATS,
    STATUSES,
    VOCAB,
    find,
    same_species,
)

__all__ = ["FLOATS", "INTS", "LAYOUT", "SIZES", "Observer"]

POKEDEX = GenData.from_gen(9).pokedex
TYPE_CHART = GenData.from_gen(9).type_chart
TERA_BLAST = find("moves", "terablast")
SCALE = {0: -1.0, 0.125: -0.5, 0.25: -0.5, 0.5: -0.25, 1: 0.0, 2: 0.5, 4: 1.0, 8: 1.0}  # multiplier -> column
LASTS_OF = {"Tailwind": 4, "Safeguard": 5, "Mist": 5}
LAYERS = {"Spikes": 3, "Toxic Spikes": 2}
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
ROOMS = {Field.TRICK_ROOM: "Trick Room", Field.GRAVITY: "Gravity", Field.MAGIC_ROOM: "Magic Room", Field.WONDER_ROOM: "Wonder Room"}
# Effects that poke-env starts and ends when the protocol does.
EFFECTS = {
    name: (Effect[name.upper()],)
    for name in (
        "confusion",
        "taunt",
        "encore",
        "disable",
        "torment",
        "leech_seed",
        "yawn",
        "imprison",
        "heal_block",
        "attract",
        "throat_chop",
        "salt_cure",
        "smack_down",
        "magnet_rise",
        "syrup_bomb",
        "curse",
        "uproar",
        "slow_start",
        "substitute",
        "commander",
    )
} | {
    f"paradox_{stat}": (Effect[f"PROTOSYNTHESIS{stat.upper()}"], Effect[f"QUARKDRIVE{stat.upper()}"])
    for stat in ("atk", "def", "spa", "spd", "spe")
}


def type_multiplier(attack: int, defence: tuple[int, ...]) -> float:
    """By poke-env's type chart."""
    product = 1.0
    for kind in defence:
        if attack > NONE and kind > NONE:
            names = (PokemonType.from_name(VOCAB["types"][index]) for index in (attack, kind))
            product *= next(names).damage_multiplier(next(names), type_chart=TYPE_CHART)
    return product


class Row:
    """Writes one row of a group by column names."""

    def __init__(self, ints: np.ndarray, floats: np.ndarray, group: str, row: int):
        self.group = LAYOUT[group]
        self.ints = ints[self.group.int_at + row * len(self.group.ints) :]
        self.floats = floats[self.group.float_at + row * len(self.group.floats) :]

    def id(self, column: str, value: int):
        self.ints[self.group.ints.index(column)] = value

    def set(self, column: str, value: float):
        self.floats[self.group.floats.index(column)] = value


class Observer:
    """Hears what a player hears and makes the observation at its decisions."""

    def __init__(self, battle: DoubleBattle):
        self.battle = battle
        self.tracker: Tracker | None = None

    def hear(self, message: list[str]):
        """One protocol line, split at "|", that the battle has been given too."""
        if self.tracker is None and self.battle.player_role:
            self.tracker = Tracker(self.battle.player_role)
        if self.tracker is not None:
            self.tracker.line(message)

    def hear_request(self, request: dict):
        if self.tracker is None:
            self.tracker = Tracker(self.battle.player_role)
        self.tracker.heard_request(request)

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        ints, floats = np.zeros(INTS, np.int32), np.zeros(FLOATS, np.float64)
        self.write_own(ints, floats)
        self.write_opp(ints, floats)
        for index in range(4):
            self.write_active(Row(ints, floats, "active", index), index)
        self.write_field(Row(ints, floats, "field", 0))
        self.write_history(ints, floats)
        return ints, floats.astype(np.float32)

    # ------------------------------------------------------------------------------------------- Pokémon

    def doubtful(self, mine: bool) -> bool:
        """Whether an Illusion may be about: poke-env then credits the wrong Pokémon, the Tracker goes by slots."""
        if mine:
            return any(mon.ability == ILLUSION for mon in self.tracker.own.values())
        return self.tracker.deceivers

    def poke_env_mon(self, mon: Mon) -> Pokemon:
        battle = self.battle
        if mon.entry:
            return battle.team[mon.entry["ident"]]
        known = [*battle._opponent_team.values(), *battle.teampreview_opponent_team]
        return next(other for other in known if same_species(find("species", other.species), mon.species))

    def slot_of(self, mon: Mon, indices: tuple[int, ...]) -> int:
        return next((index for index in indices if self.tracker.slots[index].mon is mon), -1)

    def write_mon(self, row: Row, mon: Mon, index: int):
        tracker = self.tracker
        mine = mon.entry is not None
        slot = tracker.slots[index] if index >= 0 else None
        known = self.poke_env_mon(mon)
        species = slot.looks if slot else mon.species
        row.id("species", species)
        if mine:  # of the opponent's items and abilities poke-env misses what a line says in passing
            row.id("ability", NONE if slot and slot.suppressed else find("abilities", known.ability))
            row.id("item", find("items", known.item) if known.item else NONE)
        else:
            row.id("ability", NONE if slot and slot.suppressed else slot.shown_ability if slot else mon.ability)
            row.id("item", mon.item)
        row.id("lost_item", mon.lost_item)
        if slot:
            types = slot.current_types()
        elif mon.terastallized and mon.tera != STELLAR:
            types = (mon.tera, 0, 0)
        else:
            types = (*SPECIES_FACTS[species][:2], 0)
        for column, value in zip(("type_1", "type_2", "type_3"), types):
            row.id(column, value)
        row.id("tera_type", mon.tera)
        row.set("present", 1)
        if self.doubtful(mine):
            hp, fainted, status, shown = mon.hp, mon.fainted, STATUSES[mon.status], mon.shown
        else:
            fainted, shown = known.fainted, known.revealed
            status = known.status.name.lower() if known.status and not fainted else ""
            # poke-env guesses what Regenerator healed off the field; a Pokémon it has not met has no HP at all.
            guessed = not mine and (not known.max_hp or known.ability == "regenerator")
            hp = mon.hp if guessed else known.current_hp_fraction
        row.set("hp", hp)
        row.set("fainted", fainted)
        if status:
            row.set(f"status_{status}", 1)
        row.set("status_turns", min(1, mon.status_turns / 8))
        if slot and not mon.fainted:
            row.set("active_b" if index & 1 else "active_a", 1)
        row.set("shown", shown)
        row.set("terastallized", mon.terastallized)  # ends with fainting; poke-env keeps it
        base = POKEDEX[VOCAB["species"][species]]["baseStats"]  # poke-env's Pokémon keeps a forme it has changed back from
        for stat in STATS:
            row.set(f"base_{stat}", base[stat] / 255)

    def write_move(self, row: Row, number: int, move: int, left: float, usable: bool):
        _, category, power, accuracy, priority, _ = MOVE_FACTS[move]
        row.id(f"move_{number}", move)
        values = (power / 150, accuracy / 100, priority / 5, category, left, usable)
        for column, value in zip(("power", "accuracy", "priority", "category", "pp", "usable"), values):
            row.set(f"move_{number}_{column}", value)

    def write_own(self, ints, floats):
        request = self.tracker.request
        for position, entry in enumerate(request["side"]["pokemon"]):
            row = Row(ints, floats, "own", position)
            mon = self.tracker.own[entry["ident"].split(": ", 1)[1]]
            active = position < 2 and entry["active"] and not request.get("teamPreview")
            self.write_mon(row, mon, position if active else -1)
            offered = request["active"][position]["moves"] if active and "active" in request else None
            for number, name in enumerate(entry["moves"][:4], 1):
                move = find("moves", name)
                usable = offered is None or any(m["id"] == name and not m.get("disabled") for m in offered)
                self.write_move(row, number, move, mon.pp_left.get(move, 1), usable)
            # poke-env overwrites the own stats with those of a Pokémon without EVs when the own sheet is opened.
            for stat, value in ({"hp": mon.max_hp} | entry["stats"]).items():
                row.set(f"stat_{stat}", value / 250)
            row.set("commanding", entry.get("commanding", False))
            row.set("reviving", entry.get("reviving", False))

    def write_opp(self, ints, floats):
        tracker = self.tracker
        picks = min(tracker.picks, len(tracker.opp))
        everyone_shown = sum(mon.shown for mon in tracker.opp) >= picks
        for position, mon in enumerate(tracker.opp[:6]):
            row = Row(ints, floats, "opp", position)
            index = self.slot_of(mon, (2, 3))
            self.write_mon(row, mon, index)
            off = tracker.slots[index].disabled_move if index >= 0 else 0
            for number, (move, uses) in enumerate(mon.uses.items(), 1):
                self.write_move(row, number, move, max(0, 1 - uses / MOVE_FACTS[move][5]), move != off)
            row.set("not_picked", everyone_shown and not mon.shown)
            beliefs = Row(ints, floats, "belief", position)
            for column, value in tracker.beliefs.columns(mon, tracker.slots[index] if index >= 0 else None).items():
                beliefs.set(column, value)

    # ------------------------------------------------------------------------------------------- slots and field

    def write_active(self, row: Row, index: int):
        tracker = self.tracker
        slot, request = tracker.slots[index], tracker.request
        if index < 2:
            row.set("force_switch", request.get("forceSwitch", [False, False])[index])
        if slot.mon is None or slot.mon.fainted:
            return
        row.id("row", index + 1 if index < 2 else next(i for i, mon in enumerate(tracker.opp, 1) if mon is slot.mon))
        row.id("last_move", slot.last_move)
        row.id("disabled_move", slot.disabled_move)
        known = (self.battle.active_pokemon + self.battle.opponent_active_pokemon)[index]
        trusted = known is not None and not self.doubtful(index < 2) and not slot.handed_over
        boosts = known.boosts if trusted else slot.boosts
        for stat in BOOSTS:
            row.set(f"boost_{stat}", boosts[stat] / 6)
        row.set("turns_active", min(1, slot.ends / 10))
        row.set("first_turn", slot.actions == 0)
        row.set("protect_count", min(1, slot.protects / 3))
        for effect, value in slot.effects.items():
            row.set(effect, value)
        for column, effects in EFFECTS.items() if trusted else ():
            row.set(column, any(effect in known.effects for effect in effects))
        self.write_matchup(row, slot, index)
        if index < 2 and "active" in request:
            offer = request["active"][index]
            row.set("can_tera", bool(offer.get("canTerastallize")))
            row.set("trapped", bool(offer.get("trapped")))
            row.set("maybe_trapped", bool(offer.get("maybeTrapped")))

    def write_matchup(self, row: Row, slot: Slot, index: int):
        """The type chart alone: the move's type (Tera Blast of the terastallized has the tera type) against what a hit meets."""
        if index < 2:
            moves = [find("moves", name) for name in self.tracker.request["side"]["pokemon"][index]["moves"]]
        else:
            moves = list(slot.mon.uses)
        for letter, other in zip("ab", self.tracker.slots[2:] if index < 2 else self.tracker.slots[:2]):
            if other.mon is None or other.mon.fainted:
                continue
            for number, move in enumerate(moves[:4], 1):
                kind, category = MOVE_FACTS[move][:2]
                if category:
                    attack = slot.mon.tera if move == TERA_BLAST and slot.mon.terastallized else kind
                    row.set(f"move_{number}_vs_{letter}", SCALE[type_multiplier(attack, other.current_types())])

    def write_field(self, row: Row):
        battle, tracker, request = self.battle, self.tracker, self.tracker.request
        picks = min(tracker.picks, len(tracker.opp))
        row.set("preview", bool(request.get("teamPreview")))
        row.set("forced", "forceSwitch" in request)
        row.set("turn", battle.turn / 25)
        row.set("open_sheets", tracker.sheets)
        row.set("own_left", sum(not e["condition"].endswith(" fnt") for e in request["side"]["pokemon"]) / 6)
        row.set("opp_left", (picks - sum(mon.fainted for mon in tracker.opp)) / 6)
        row.set("opp_unseen", max(0, picks - sum(mon.shown for mon in tracker.opp)) / 4)
        row.set("own_tera_left", not tracker.own_tera)
        row.set("opp_tera_left", not tracker.opp_tera)
        for weather in battle.weather:
            row.set(f"weather_{WEATHERS[weather]}", 1)
            if WEATHERS[weather] in ("sun", "rain", "sand", "snow"):
                self.write_span(row, "weather_left", tracker.weather_ends)
        for effect in battle.fields:
            if effect in TERRAINS:
                row.set(f"terrain_{TERRAINS[effect]}", 1)
                self.write_span(row, "terrain_left", tracker.terrain_ends)
            elif effect in ROOMS:
                row.set(effect.name.lower(), max(0, 5 - tracker.rooms[ROOMS[effect]]) / 5)
        for side, conditions, ends in (
            ("own", battle.side_conditions, tracker.sides[0]),
            ("opp", battle.opponent_side_conditions, tracker.sides[1]),
        ):
            for condition, layers in conditions.items():
                self.write_condition(row, f"{side}_{condition.name.lower()}", condition.name.replace("_", " ").title(), layers, ends)

    def write_condition(self, row: Row, column: str, name: str, layers: int, ends: dict[str, int]):
        if name in LASTS_OF:
            row.set(column, max(0, LASTS_OF[name] - ends[name]) / LASTS_OF[name])
        elif name in TIMED:
            self.write_span(row, column, ends[name])
        elif name in LAYERS:
            row.set(column, layers / LAYERS[name])
        elif column in row.group.floats:
            row.set(column, 1)

    def write_span(self, row: Row, column: str, passed: int):
        """Five ends of turn, or eight if an item that was not shown prolongs it: past the fifth, eight is certain."""
        row.set(f"{column}_min", max(0, 5 - passed if passed < 5 else 8 - passed) / 8)
        row.set(f"{column}_max", max(0, 8 - passed) / 8)

    def write_history(self, ints, floats):
        for position, event in enumerate(self.tracker.history):
            row = Row(ints, floats, "history", position)
            row.id("actor", event.actor)
            row.id("actor_species", event.species)
            row.id("move", event.move)
            row.id("target", event.target)
            row.id("target_species", event.target_species)
            row.set("used", 1)
            row.set("age", min(1, (self.tracker.turn - event.turn) / 4))
            row.set("is_switch", event.is_switch)
            row.set("is_cant", event.is_cant)
            row.set("damage_own", event.damage[0])
            row.set("damage_opp", event.damage[1])
            row.set("no_effect", min(1, event.no_effect / 2))
            row.set("faints", event.faints / 2)
