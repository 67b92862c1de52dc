"""A Game Boy Advance by the real mGBA core: our own quest by default, a user's Emerald by path, an expert that plays the quest."""

from .emulator import Emulator
from .env import ACTIONS, QUEST_ROM, QUEST_SEEDS, TIMINGS, PokemonEnv
from .expert import QuestExpert
from .ram import QUEST_MILESTONES

__all__ = ["ACTIONS", "QUEST_MILESTONES", "QUEST_ROM", "QUEST_SEEDS", "TIMINGS", "Emulator", "PokemonEnv", "QuestExpert"]
