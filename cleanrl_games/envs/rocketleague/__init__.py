"""Rocket League on RocketSim: many arenas in one batch, meshes found by themselves, scripted players, pictures."""

from pathlib import Path

from cleanrl_games.runtime.jit import drop_stale_machine_code

drop_stale_machine_code(Path(__file__).parent, ("contract", "observations", "rewards", "vec_env"))

from .contract import ACTION_TABLE, NUM_ACTIONS, NUM_OBS, TERM_NAMES, contract_hash
from .meshes import MeshError, load_meshes
from .states import load_states, save_states
from .vec_env import RocketLeagueVecEnv

__all__ = [
    "ACTION_TABLE",
    "NUM_ACTIONS",
    "NUM_OBS",
    "TERM_NAMES",
    "MeshError",
    "RocketLeagueVecEnv",
    "contract_hash",
    "load_meshes",
    "load_states",
    "save_states",
]
