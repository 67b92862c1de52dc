"""Loadouts as data: reads `loadouts.yaml` (or a user's file of the same form) into the record array the simulator
uses."""

import functools
from pathlib import Path

import numpy as np
import yaml

# Outfits, in the order of the columns of every outfit field below.
MAGE, RANGED, MELEE, SPECIAL, TANK = range(5)
OUTFITS = ("mage", "ranged", "melee", "special", "tank")
FIGHTS = ("lms", "wilderness", "arena")
SPELLBOOKS = ("ancient", "lunar")
PRAYERS = {"mage": ("augury", "mystic_might"), "ranged": ("rigour", "eagle_eye"), "melee": ("piety", "fifteens")}
FOODS = ("anglerfish", "shark", "manta")
RANGED_WEAPONS = ("crossbow", "bow", "thrown", "ballista")
BOLTS = ("none", "diamond", "opal", "dragonstone")
MELEE_SPECIALS = ("none", "dds", "ags", "claws", "gmaul", "vls", "swh")
RANGED_SPECIALS = ("none", "ballista", "zaryte", "dark_bow", "dragon_knife")
MAGE_SPECIALS = ("none", "nightmare")
STANCES = ("aggressive", "accurate")
LEVELS = ("attack", "strength", "defence", "hitpoints", "ranged", "magic", "prayer")
SUPPLIES = ("brew", "restore", "combat", "ranging", "karambwan", "food")

LOADOUT = np.dtype(
    [(f"{level}_level", np.int32) for level in LEVELS]
    + [(supply, np.int32) for supply in SUPPLIES]
    + [("fight", np.int32), ("lunar", np.int32), ("food_type", np.int32), ("strong_prayers", np.int32, (3,))]
    # bonuses per outfit: accuracy and strength of its own style, then defences
    + [(name, np.int32, (5,)) for name in ("accuracy", "rolled_accuracy", "strength", "visible_strength", "accurate")]
    + [(name, np.int32, (5,)) for name in ("ranged_defence", "mage_defence", "melee_defence", "speed", "two_handed")]
    + [("ranged_range", np.int32), ("ranged_weapon", np.int32), ("bolts", np.int32)]
    + [("melee_special", np.int32), ("ranged_special", np.int32), ("mage_special", np.int32)]
    + [("blood_fury", np.int32), ("dharoks", np.int32)],
    align=True,
)


# What a special weapon, a prayer and a full set ask for: (level, at least).
WEAPON_LEVELS = {
    "dds": ("attack", 60), "ags": ("attack", 75), "claws": ("attack", 60), "gmaul": ("attack", 50),
    "vls": ("attack", 75),
    "swh": ("attack", 75), "ballista": ("ranged", 75), "zaryte": ("ranged", 80), "dark_bow": ("ranged", 60),
    "dragon_knife": ("ranged", 60), "nightmare": ("magic", 72),
}  # fmt: skip
PRAYER_LEVELS = {"augury": 77, "mystic_might": 45, "rigour": 74, "eagle_eye": 44, "piety": 70, "fifteens": 31}
PRAYER_DEFENCE = {"augury": 70, "rigour": 70, "piety": 70}
BAG_SLOTS = 28
# A fighter carries the parts of outfits that it does not wear.
SLOTS_FOR_GEAR = 6


class _Block:
    """A mapping of the file that is read key by key; every complaint names the file, the loadout and the field."""

    def __init__(self, value, where):
        if not isinstance(value, dict):
            raise ValueError(f"{where}: expected a block of fields, found {value!r}.")
        self.value, self.where, self.unread = value, where, set(value)

    def _read(self, key):
        if key not in self.value:
            raise ValueError(f"{self.where}.{key}: this field is missing.")
        self.unread.discard(key)
        return self.value[key]

    def number(self, key, low, high):
        value = self._read(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{self.where}.{key}: expected a whole number from {low} to {high}, found {value!r}.")
        return value

    def choice(self, key, options):
        value = self._read(key)
        if value not in options:
            raise ValueError(f"{self.where}.{key}: expected one of {', '.join(options)}, found {value!r}.")
        return list(options).index(value)

    def truth(self, key):
        value = self._read(key)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}.{key}: expected true or false, found {value!r}.")
        return value

    def block(self, key):
        return _Block(self._read(key), f"{self.where}.{key}")

    def done(self):
        if self.unread:
            raise ValueError(
                f"{self.where}: unknown field {sorted(self.unread)[0]!r}; remove it or correct its spelling."
            )


def _parse(name, value, path):
    root = _Block(value, f"{path}: {name}")
    record = np.zeros((), LOADOUT)
    title = root._read("title")
    if not isinstance(title, str):
        raise ValueError(f"{root.where}.title: expected a sentence, found {title!r}.")
    record["fight"] = root.choice("fight", FIGHTS)
    record["lunar"] = root.choice("spellbook", SPELLBOOKS)
    record["blood_fury"], record["dharoks"] = root.truth("blood_fury"), root.truth("dharoks")

    levels = root.block("levels")
    for level in LEVELS:
        record[f"{level}_level"] = levels.number(level, 10 if level == "hitpoints" else 1, 99)
    prayers = root.block("prayers")
    for column, style in enumerate(("mage", "ranged", "melee")):
        record["strong_prayers"][column] = prayers.choice(style, PRAYERS[style]) == 0
    supplies = root.block("supplies")
    for supply in SUPPLIES:
        record[supply] = supplies.number(supply, 0, 112)
    record["food_type"] = supplies.choice("food_type", FOODS)

    hidden = root.block("ring_and_ammo")
    hidden_strength = {
        f"{style}_strength": hidden.number(f"{style}_strength", 0, 200)
        for style in ("mage", "ranged", "melee")
        if f"{style}_strength" in hidden.value
    }
    outfits = root.block("outfits")
    for column, outfit in enumerate(OUTFITS):
        block = outfits.block(outfit)
        for defence in ("ranged_defence", "mage_defence", "melee_defence"):
            record[defence][column] = block.number(defence, -100, 600)
        if outfit != "tank":
            record["accuracy"][column] = block.number("accuracy", -100, 400)
            record["strength"][column] = block.number("strength", 0, 400)
            record["speed"][column] = block.number("speed", 1, 10)
            record["two_handed"][column] = block.truth("two_handed")
            record["rolled_accuracy"][column] = record["accuracy"][column]
            if "rolled_accuracy" in block.value:
                record["rolled_accuracy"][column] = block.number("rolled_accuracy", -100, 400)
            if outfit in ("melee", "special"):
                record["accurate"][column] = block.choice("stance", STANCES)
            style = "melee" if outfit == "special" else outfit
            record["visible_strength"][column] = record["strength"][column] - hidden_strength.get(
                f"{style}_strength", 0
            )
        if outfit == "mage":
            record["mage_special"] = block.choice("special", MAGE_SPECIALS)
        if outfit == "special":
            record["melee_special"] = block.choice("special", MELEE_SPECIALS)
        if outfit == "ranged":
            record["ranged_range"] = block.number("range", 1, 10)
            record["ranged_weapon"] = block.choice("weapon", RANGED_WEAPONS)
            record["bolts"] = block.choice("bolts", BOLTS)
            record["ranged_special"] = block.choice("special", RANGED_SPECIALS)
        block.done()
    for block in (levels, prayers, supplies, hidden, outfits, root):
        block.done()
    _check_build(value, root.where)
    return record


def _check_build(value, where):
    """Whether an account of these levels may do what the loadout says, and whether its bag can hold it."""
    levels, outfits = value["levels"], value["outfits"]
    for outfit in ("mage", "ranged", "special"):
        weapon = outfits[outfit]["special"]
        if weapon in WEAPON_LEVELS:
            level, needed = WEAPON_LEVELS[weapon]
            if levels[level] < needed:
                raise ValueError(
                    f"{where}.outfits.{outfit}.special: {weapon} needs {needed} {level}, the build has {levels[level]}."
                )
    for style, prayer in value["prayers"].items():
        if levels["prayer"] < PRAYER_LEVELS[prayer]:
            raise ValueError(
                f"{where}.prayers.{style}: {prayer} needs {PRAYER_LEVELS[prayer]} prayer, the build has "
                f"{levels['prayer']}."
            )
        if levels["defence"] < PRAYER_DEFENCE.get(prayer, 1):
            raise ValueError(f"{where}.prayers.{style}: {prayer} needs 70 defence, the build has {levels['defence']}.")
    if value["dharoks"] and min(levels["attack"], levels["strength"], levels["defence"]) < 70:
        raise ValueError(f"{where}.dharoks: the set needs 70 attack, strength and defence.")
    bag = value["supplies"]
    potions = sum(-(-bag[potion] // 4) for potion in ("brew", "restore", "combat", "ranging"))
    slots = potions + bag["karambwan"] + bag["food"] + SLOTS_FOR_GEAR
    if slots > BAG_SLOTS:
        raise ValueError(
            f"{where}.supplies: with {SLOTS_FOR_GEAR} slots of gear this takes {slots} slots, a bag has {BAG_SLOTS}."
        )


def load_loadouts(path=None):
    """Reads a file of loadouts → (names, record array). `path=None` reads the one that is shipped."""
    path = Path(path) if path else Path(__file__).with_name("loadouts.yaml")
    try:
        names, records = _read(path.read_text(), path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"No loadout file at {path}. Give a YAML file like {Path(__file__).with_name('loadouts.yaml')}."
        ) from None
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    return names, records.copy()


@functools.lru_cache(maxsize=8)  # parsing takes longer than making an environment
def _read(text, path):
    content = yaml.safe_load(text)
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path} holds no loadout: expected a mapping from name to fields.")
    records = np.zeros(len(content), LOADOUT).view(np.recarray)
    for index, (name, value) in enumerate(content.items()):
        records[index] = _parse(name, value, path)
    return tuple(content), records


def find_loadouts(wanted, path=None):
    """Names of a file's loadouts, or ("all",) → (record array of the file, the wanted ones' places in it)"""
    names, records = load_loadouts(path)
    wanted = names if tuple(wanted) == ("all",) else wanted
    for name in wanted:
        if name not in names:
            raise ValueError(f"Unknown loadout {name!r}. There are: {', '.join(names)}.")
    return records, np.array([names.index(name) for name in wanted])
