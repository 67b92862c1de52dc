"""Names for a replay: what the protocol abbreviates, and what poke-env's data knows about species and moves."""

import re
from functools import cache

STATS = {
    "atk": "Attack",
    "def": "Defense",
    "spa": "Sp. Atk",
    "spd": "Sp. Def",
    "spe": "Speed",
    "accuracy": "accuracy",
    "evasion": "evasion",
}
STATUSES = {
    "brn": "was burned",
    "par": "was paralysed",
    "slp": "fell asleep",
    "frz": "was frozen",
    "psn": "was poisoned",
    "tox": "was badly poisoned",
}
CURES = {
    "brn": "burn healed",
    "par": "paralysis wore off",
    "slp": "woke up",
    "frz": "thawed out",
    "psn": "poison wore off",
    "tox": "poison wore off",
}
WEATHERS = {
    "RainDance": "Rain",
    "SunnyDay": "Harsh sun",
    "Sandstorm": "Sandstorm",
    "Snow": "Snow",
    "Snowscape": "Snow",
    "Hail": "Hail",
    "DesolateLand": "Extremely harsh sun",
    "PrimordialSea": "Heavy rain",
    "DeltaStream": "Strong winds",
}
CANNOT = {
    "par": " is paralysed and cannot move",
    "slp": " is fast asleep",
    "frz": " is frozen solid",
    "flinch": " flinched",
    "recharge": " must recharge",
    "nopp": " has no PP left",
}
GUARDS = ("Protect", "Wide Guard", "Quick Guard", "Endure", "Crafty Shield", "Mat Block")


@cache
def game_data():
    from poke_env.data import GenData  # read only when a replay is written: it holds every learnset

    return GenData.from_gen(9)


def to_id(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def types_of(species: str) -> list[str]:
    entry = game_data().pokedex.get(to_id(species))
    return list(entry["types"]) if entry else []


def move_name(packed: str) -> str:
    entry = game_data().moves.get(to_id(packed))
    return entry["name"] if entry else spaced(packed)


def effect_name(effect: str) -> str:
    """`move: Trick Room` and `ability: Drought` as people write them."""
    return effect.split(": ", 1)[1] if re.match(r"(move|ability|item|condition|pokemon): ", effect) else effect


def spaced(packed: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", packed)
