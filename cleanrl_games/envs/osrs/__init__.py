"""Old School RuneScape NH fights: a batch simulator, the same contract against a real server, scripted players,
pictures."""

from pathlib import Path

from cleanrl_games.runtime.jit import drop_stale_machine_code

drop_stale_machine_code(
    Path(__file__).parent,
    ("baselines", "contract", "loadouts", "movement", "observations", "rules", "simulator", "vec_env"),
)

from .baselines import BASELINES, Baseline
from .contract import contract_hash
from .loadouts import load_loadouts
from .vec_env import NHVecEnv

__all__ = ["BASELINES", "Baseline", "FightRecorder", "NHVecEnv", "RemoteNHVecEnv", "contract_hash", "load_loadouts"]


def __getattr__(name):
    """asyncio and Pillow are loaded only by those who fight on a server or draw."""
    if name == "RemoteNHVecEnv":
        from .remote import RemoteNHVecEnv

        return RemoteNHVecEnv
    if name == "FightRecorder":
        from .picture import FightRecorder

        return FightRecorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
