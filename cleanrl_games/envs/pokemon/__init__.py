"""A Game Boy Advance by the real mGBA core: our own quest by default, a user's Emerald by path, an expert that plays the quest."""

from .emulator import Emulator
from .env import ACTIONS, QUEST_ROM, QUEST_SEEDS, TIMINGS, PokemonEnv
from .ram import QUEST_MILESTONES

__all__ = ["ACTIONS", "QUEST_MILESTONES", "QUEST_ROM", "QUEST_SEEDS", "TIMINGS", "Emulator", "PokemonEnv", "QuestExpert"]


def __getattr__(name):
    """The expert is a module one can also run (`python -m …expert`), so it is loaded when somebody asks for it."""
    if name == "QuestExpert":
        from .expert import QuestExpert

        return QuestExpert
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
