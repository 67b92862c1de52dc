"""A policy for others, one zip: weights, normalisation, and what it takes to know what this is.

A model is tied to the code that plays it, and to nothing else: the network section of its script (`network_hash`), and
what the game lets it see and do (`contract_hash`). A changed comment, or another learner, makes no other model.
"""

import ast
import dataclasses
import hashlib
import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import torch

from cleanrl_games.runtime.errors import BadInput, first_line
from cleanrl_games.runtime.files import commit_of, script_source, write_atomically

SECTION = re.compile(r"^# --8<-- \[start:(\w*network)\]\n(.*?)^# --8<-- \[end:\1\]", re.S | re.M)


def network_hash(source):
    """Of the network section of a script's text, without its comments and docstrings; of the whole text where none is
    marked."""
    section = SECTION.search(source)
    tree = ast.parse(section[2] if section else source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and body and is_text(body[0]):
            node.body = body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def is_text(statement):
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def save_model(path, weights, statistics, metadata, args, script):
    """Writes the zip and makes the folder it goes to."""
    metadata = {
        **metadata,
        "script": Path(script).name,
        "network_hash": network_hash(script_source(script)),
        "commit": commit_of(script),
        "args": dataclasses.asdict(args),
    }
    policy, rms = io.BytesIO(), io.BytesIO()
    torch.save({name: tensor.cpu() for name, tensor in weights.items()}, policy)
    np.savez(rms, **statistics)

    def write(temporary):
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("policy.pth", policy.getvalue())
            file.writestr("obs_rms.npz", rms.getvalue())
            file.writestr("metadata.json", json.dumps(metadata, indent=1))

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write)


def read_model(path):
    """A run's folder or a model.zip → (weights, metadata)"""
    path = Path(path) / "model.zip" if Path(path).is_dir() else Path(path)
    try:
        with zipfile.ZipFile(path) as file:
            weights = torch.load(io.BytesIO(file.read("policy.pth")), map_location="cpu", weights_only=True)
            metadata = json.loads(file.read("metadata.json"))
            if not isinstance(weights, dict) or not isinstance(metadata, dict):
                raise ValueError("it holds something else than weights and what they are for")
            return weights, metadata
    except FileNotFoundError:
        raise BadInput(f"There is no model at {path}.") from None
    except Exception as error:  # zip, JSON and torch each have their own ways to say that a file is damaged
        raise BadInput(f"{path} is not a readable model: {first_line(error)}") from None


def load_agent(path, contract_hash, make_agent, args=None, sizes=()):
    """A run's folder or a model.zip → (agent, metadata). `make_agent(settings)` builds the network that the weights are
    for.

    `args`: of the run whose league it is to join, where all networks are alike in the settings named by `sizes`."""
    weights, metadata = read_model(path)
    if metadata.get("contract_hash") != contract_hash:
        raise BadInput(
            f"{path} was trained on contract {metadata.get('contract_hash')}, not {contract_hash}: it cannot play here."
        )
    try:
        if args and any(getattr(args, name) != metadata["args"][name] for name in sizes):
            flags = " ".join(f"--{name.replace('_', '-')} {metadata['args'][name]}" for name in sizes)
            raise BadInput(
                f"{path} is a network of other sizes than this run's, and cannot stand in its pool: start this run "
                f"with {flags}."
            )
        agent = make_agent(metadata["args"]).eval()
        agent.load_state_dict(weights)
    except (RuntimeError, KeyError) as error:
        raise BadInput(f"{path} is of another network than this script's: {error}") from None
    return agent, metadata


def load_matching_weights(agent, path, flag, contract_hash, action_space):
    """Copies the tensors of a model that fit, and says of each whether it did. `flag` is what the user gave the path
    to."""
    weights, metadata = read_model(path)
    if metadata.get("action_space") != action_space:
        raise BadInput(
            f"{flag} {path}: its action space is {metadata.get('action_space', 'not named')}, not {action_space}: its "
            f"heads mean other "
            "actions. Give a model of this game's scripts."
        )
    if metadata.get("contract_hash") != contract_hash:
        raise BadInput(
            f"{flag} {path}: its observations are of contract {metadata.get('contract_hash')}, not {contract_hash}: "
            f"the same columns would "
            "mean other things. Train it again."
        )
    own = agent.state_dict()
    fits = {name: name in weights and weights[name].shape == tensor.shape for name, tensor in own.items()}
    for name, tensor in own.items():
        found = f"the model's is {tuple(weights[name].shape)}" if name in weights else "the model has none"
        print(
            f"{flag}: {name} {tuple(tensor.shape)} {'taken over' if fits[name] else f'left as it was, {found}'}",
            flush=True,
        )
    for name in weights.keys() - own.keys():
        print(f"{flag}: {name} {tuple(weights[name].shape)} of the model has no place here", flush=True)
    if not any(fits.values()):
        raise BadInput(
            f"{flag} {path}: no tensor of it fits this network; the flags of its size (--help) must be those it was "
            f"made with."
        )
    agent.load_state_dict({name: weights[name] if fits[name] else tensor for name, tensor in own.items()})
