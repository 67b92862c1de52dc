"""Old School RuneScape NH fights: a batch simulator, the same contract against a real server, scripted players, pictures."""

from pathlib import Path


def _drop_stale_machine_code():
    """Numba's cache watches the file of a function, not the files of the functions it calls.

    So that an edited rule is played everywhere, code compiled before the newest of its sources is thrown away.
    """
    here = Path(__file__).parent
    sources = ("baselines", "contract", "loadouts", "movement", "observations", "rules", "simulator", "vec_env")
    newest = max((here / f"{name}.py").stat().st_mtime for name in sources)
    for compiled in here.glob("__pycache__/*.nb[ic]"):
        try:
            if compiled.stat().st_mtime < newest:
                compiled.unlink()
        except FileNotFoundError:  # another process was faster
            pass


_drop_stale_machine_code()

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
