"""What a run goes on from. Two are kept: when the newest is damaged, the one before it is offered."""

import os
import zipfile
from pathlib import Path

import torch

from cleanrl_games.runtime.errors import BadInput, first_line
from cleanrl_games.runtime.files import write_atomically


def save_checkpoint(folder, state):
    """Writes checkpoint.pt; the one that was there becomes previous_checkpoint.pt. Killed at any line, one whole one is
    left."""
    path = Path(folder) / "checkpoint.pt"

    write_atomically(path.with_name("next_checkpoint.pt"), lambda temporary: torch.save(state, temporary))
    if path.exists():
        os.replace(path, path.with_name("previous_checkpoint.pt"))
    os.replace(path.with_name("next_checkpoint.pt"), path)


def read_checkpoint(path):
    """→ the state; raises what is wrong with the file. Its checksums are compared: torch itself does not look at
    them."""
    with zipfile.ZipFile(path) as file:
        damaged = file.testzip()
    if damaged:
        raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
    return torch.load(path, map_location="cpu", weights_only=True)


def load_checkpoint(path, contract_hash="", network_hash=""):
    """The state of a run, from its folder or a file; one that saw and did other things than the game does now is
    refused."""
    given = Path(path)
    path = given / "checkpoint.pt" if given.is_dir() else given
    previous = path.with_name("previous_checkpoint.pt")
    offer = (
        f" The one before it is whole: go on with --resume {previous}."
        if previous.exists() and previous != path
        else ""
    )
    if not path.exists():
        missing = (
            f"--resume {given}: there is no such file or folder."
            if not given.exists()
            else f"--resume {given}: there is no checkpoint.pt in it."
        )
        raise BadInput(missing + (offer or " Give a run's folder or its checkpoint.pt."))
    try:
        checkpoint = read_checkpoint(path)
        if not isinstance(checkpoint, dict):
            raise ValueError(f"it holds a {type(checkpoint).__name__}, not a run's state")
    except Exception as error:  # zipfile and torch raise many kinds for a damaged file; each means the same to the user
        raise BadInput(f"{path} is not a readable checkpoint: {first_line(error)}.{offer}") from None
    if contract_hash and checkpoint.get("contract_hash", contract_hash) != contract_hash:
        raise BadInput(
            f"{path} sees and does other things (contract {checkpoint['contract_hash']}, here {contract_hash}): go on "
            f"with the commit "
            "that it was made with, or start a new run."
        )
    if network_hash and checkpoint.get("network_hash", network_hash) != network_hash:
        raise BadInput(
            f"{path} is of another network than this script's (the lines of its network have changed): go on with the "
            f"script that the "
            "run kept, script.py beside it, or start a new run."
        )
    return checkpoint


def say_how_to_go_on(folder):
    """The last line of a run. It promises nothing that is not there."""
    if (Path(folder) / "checkpoint.pt").exists():
        print(f"The checkpoint is in {folder}; go on with --resume {folder}", flush=True)
    else:
        print(f"The run ended before its first checkpoint: there is nothing in {folder} to go on from.", flush=True)


def restore(checkpoint, **parts):
    """Modules, optimizers and tensors get back what the checkpoint has under their names."""
    for name, part in parts.items():
        if name not in checkpoint:
            raise BadInput(f"The checkpoint has no {name!r}: it is of another script or an older version of this one.")
        try:
            if isinstance(part, torch.Tensor):
                part.copy_(checkpoint[name])
            else:
                part.load_state_dict(checkpoint[name])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"The checkpoint's {name} is not of the sizes that these settings describe: {first_line(error)}"
            ) from None
