"""What a VGC policy sees and does, as one hash: two policies with the same hash speak the same language."""

import hashlib

from cleanrl_games.envs.vgc import mdbo
from cleanrl_games.envs.vgc.install import normalize_format
from cleanrl_games.envs.vgc.vocabulary import FOLDER

ACTION_SPACE = f"mdbo-{mdbo.NUM_ACTIONS}-{mdbo.NUM_PREVIEWS}"


def contract_hash() -> str:
    """Of the columns, the ids behind them and the action space; formats share all three."""
    parts = [(FOLDER / name).read_bytes() for name in ("columns.json", "vocab.json")]
    return hashlib.sha256(b"\0".join([ACTION_SPACE.encode(), *parts])).hexdigest()[:16]


def metadata(battle_format: str) -> dict[str, str]:
    """What a model.zip says of the game its policy plays."""
    return {
        "game": "vgc",
        "contract_hash": contract_hash(),
        "action_space": ACTION_SPACE,
        "battle_format": normalize_format(battle_format),
    }
