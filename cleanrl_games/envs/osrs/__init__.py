"""Old School RuneScape NH fights: a batch simulator, the same contract against a real server, scripted players, pictures."""

from .baselines import BASELINES, Baseline
from .contract import contract_hash
from .loadouts import load_loadouts
from .vec_env import NHVecEnv

__all__ = ["BASELINES", "Baseline", "NHVecEnv", "contract_hash", "load_loadouts"]
