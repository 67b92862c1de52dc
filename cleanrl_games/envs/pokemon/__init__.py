"""A Game Boy Advance by the real mGBA core: our own quest by default, a user's Emerald by path, an expert that plays
the quest."""

import hashlib

from .emulator import HEIGHT, WIDTH, Emulator
from .env import ACTIONS, QUEST_ROM, QUEST_SEEDS, TIMINGS, PokemonEnv
from .ram import QUEST_MILESTONES

__all__ = [
    "ACTIONS",
    "QUEST_MILESTONES",
    "QUEST_ROM",
    "QUEST_SEEDS",
    "TIMINGS",
    "Emulator",
    "PokemonEnv",
    "QuestExpert",
    "contract_hash",
]


def contract_hash():
    """Of what a policy sees and does: a model of another contract would read pictures and press buttons it was not made
    for."""
    return hashlib.sha256(f"{HEIGHT}x{WIDTH}x3 uint8, buttons {' '.join(ACTIONS)}".encode()).hexdigest()[:16]


def __getattr__(name):
    """The expert is a module one can also run (`python -m …expert`), so it is loaded when somebody asks for it."""
    if name == "QuestExpert":
        from .expert import QuestExpert

        return QuestExpert
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
