"""Rocket League on RocketSim: many arenas in one batch, meshes found by themselves, scripted players, pictures."""

from pathlib import Path


def _drop_stale_machine_code():
    """Numba's cache watches the file of a function, not the files of the functions it calls.

    So that an edited rule is played everywhere, code compiled before the newest source of this package is thrown away.
    """
    here = Path(__file__).parent
    newest = max(source.stat().st_mtime for source in here.glob("*.py"))
    for compiled in here.glob("__pycache__/*.nb[ic]"):
        try:
            if compiled.stat().st_mtime < newest:
                compiled.unlink()
        except FileNotFoundError:  # another process was faster
            pass


_drop_stale_machine_code()

from .contract import ACTION_TABLE, NUM_ACTIONS, NUM_OBS, TERM_NAMES, contract_hash
from .meshes import MeshError, load_meshes
from .rewards import REWARD_PRESETS, reward_weights
from .states import load_states, save_states
from .vec_env import RocketLeagueVecEnv

__all__ = [
    "ACTION_TABLE",
    "NUM_ACTIONS",
    "NUM_OBS",
    "REWARD_PRESETS",
    "TERM_NAMES",
    "MeshError",
    "RocketLeagueVecEnv",
    "contract_hash",
    "load_meshes",
    "load_states",
    "reward_weights",
    "save_states",
]
