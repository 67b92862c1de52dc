"""VGC doubles on the real Showdown simulator, at its own speed. The door: everything a script needs, loaded when it is
used.

VGCVecEnv      many battles, both sides open, every pending decision in one batch          vec_env.py
TeamPool       teams from PokePaste files, shipped or generated; team_mix: several of them teams.py
encode, decode, mask, joint_mask, choice, to_order, from_order     the MDBO action space   mdbo.py
VGCPlayer      a policy as a poke-env Player, for real Showdown servers                    player.py
contract_hash  what a policy sees and does, as one hash                                    contract.py
normalize_format, require_format, ensure_showdown                                          install.py
"""

import importlib

DOOR = {
    "VGCVecEnv": "vec_env",
    "Batch": "vec_env",
    "PREVIEW": "vec_env",
    "TURN": "vec_env",
    "END": "vec_env",
    "TeamPool": "teams",
    "team_mix": "teams",
    "VGCPlayer": "player",
    "encode": "mdbo",
    "decode": "mdbo",
    "mask": "mdbo",
    "joint_mask": "mdbo",
    "choice": "mdbo",
    "to_order": "mdbo",
    "from_order": "mdbo",
    "NUM_ACTIONS": "mdbo",
    "NUM_PREVIEWS": "mdbo",
    "contract_hash": "contract",
    "ensure_showdown": "install",
    "normalize_format": "install",
    "require_format": "install",
}
__all__ = list(DOOR)


def __getattr__(name: str):
    # Lazy, because poke-env alone takes a second to import and a rollout worker never needs it.
    if name in DOOR:
        return getattr(importlib.import_module(f"{__name__}.{DOOR[name]}"), name)
    raise AttributeError(f"cleanrl_games.envs.vgc has no {name!r}; it offers {', '.join(DOOR)}.")
