"""What all tools share: a run's folder or a model.zip → a policy, rebuilt by the script that trained it.

A model names the network section of its script by hash, and a network is code, so a model is only as safe as the script
that rebuilds it: the scripts of this repository are used freely, the copy beside a model only when its user says
`--trust-source`. Weights are never unpickled.
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.models import network_hash
from cleanrl_games.runtime.settings import check_settings

SCRIPTS = Path(__file__).resolve().parents[1]
PARTS = ("metadata.json", "policy.pth", "obs_rms.npz")
FIELDS = {"game": str, "script": str, "network_hash": str, "contract_hash": str, "args": dict}
MAX_BYTES = 2 << 30  # unpacked; a zip can claim far more than it weighs
# zipfile has many ways to stumble over bytes that only look like a zip: bad deflate streams, passwords, odd methods.
UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, ValueError)

# The games that tools know, and the shim whose `contract_hash()` says what its policies see and do.
SHIMS = {
    "osrs": "cleanrl_games.envs.osrs",
    "vgc": "cleanrl_games.envs.vgc",
    "pokemon": "cleanrl_games.envs.pokemon",
    "rocketleague": "cleanrl_games.envs.rocketleague",
}


class ModelError(BadInput):
    """Something is wrong with a model, or with what a tool was told to do with it."""


@dataclasses.dataclass
class Model:
    name: str
    path: Path
    metadata: dict[str, Any]
    script: ModuleType
    agent: Any
    searches: bool = False
    """VGC: it looks one turn ahead (--search)"""

    @property
    def game(self):
        return self.metadata["game"]

    @property
    def args(self):
        return self.metadata["args"]

    def settings(self):
        """What it was trained with, checked. Settings that its script no longer has decide nothing about how it
        plays."""
        known = {field.name for field in dataclasses.fields(self.script.Args)}
        kept = {name: value for name, value in self.args.items() if name in known}
        return check_settings(self.script.Args, kept, f"{self.path}, args in metadata.json")


def zip_path(path):
    """A run's folder means its model.zip."""
    path = Path(path)
    if path.is_dir():
        path = path / "model.zip"
        if not path.is_file():
            raise ModelError(
                f"{path.parent} holds no model.zip: give a run's folder that has one, or a model's zip file."
            )
    if not path.is_file():
        raise ModelError(f"There is no model at {path}: give a run's folder or its model.zip.")
    return path


def model_name(path):
    """A name for people: of the run for its model.zip, of the file otherwise."""
    path = zip_path(path).resolve()
    return path.parent.name if path.name == "model.zip" else path.stem


def read_metadata(path):
    """What a model says about itself, checked part by part before any of its contents are used."""
    path = zip_path(path)
    try:
        with zipfile.ZipFile(path) as file:
            missing = [part for part in PARTS if part not in file.namelist()]
            if missing:
                raise ModelError(
                    f"{path} has no {' and no '.join(missing)}: this is not a whole model.zip. Save it again."
                )
            if sum(info.file_size for info in file.infolist()) > MAX_BYTES:
                raise ModelError(
                    f"{path} unpacks to more than {MAX_BYTES >> 30} GiB: that is no model of these scripts."
                )
            damaged = file.testzip()
            if damaged:
                raise ModelError(f"{path} is damaged: the checksum of {damaged} is wrong. Copy or save it again.")
            metadata = json.loads(file.read("metadata.json"))
    except UNREADABLE as error:
        raise ModelError(f"{path} is not a readable model.zip ({type(error).__name__}: {error}).") from None
    if not isinstance(metadata, dict):
        raise ModelError(f"{path}: metadata.json should be a JSON object, found a {type(metadata).__name__}.")
    for field, kind in FIELDS.items():
        if not isinstance(metadata.get(field), kind):
            raise ModelError(
                f"{path}: metadata.json should have {field!r} as a {kind.__name__}, found {metadata.get(field)!r}."
            )
    return path, metadata


def hash_of(script):
    """Of the network in a script; "" where the file cannot be read as one"""
    try:
        return network_hash(script.read_text())
    except (OSError, SyntaxError, ValueError):
        return ""


def find_script(path, metadata, trust_source=False):
    """The file whose code rebuilds the policy: of this repository, or with `trust_source` a copy that the model's run
    kept."""
    wanted = metadata["network_hash"]
    own = SCRIPTS / Path(metadata["script"]).name
    # several scripts may have the same network: its own is asked first
    for script in [
        own,
        *sorted(SCRIPTS.glob("*.py")),
    ]:
        if script.is_file() and hash_of(script) == wanted:
            return script
    made = f" of commit {metadata['commit']}" if metadata.get("commit") else ""
    said = (
        f"{path} was made by {metadata['script']}{made}, whose network has hash {wanted}; no script in "
        f"{SCRIPTS.name}/ has that network."
    )
    commit = f"check out the commit that has it (git log -- {SCRIPTS.name}/{metadata['script']})"
    folders = path.resolve().parents[:2]  # the second for the models/ of a run
    copies = [copy for folder in folders for copy in sorted(folder.glob("script*.py"))]
    if not copies:
        raise ModelError(
            f"{said} There is no script.py beside the model either: {commit}, or put the run's script.py there."
        )
    fitting = [copy for copy in copies if hash_of(copy) == wanted]
    if not fitting:
        raise ModelError(f"{said} {copies[0]} is not it either (hash {hash_of(copies[0])}): {commit}.")
    if not trust_source:
        raise ModelError(f"{said} Its run kept a copy, {fitting[0]}: add --trust-source to run that code, or {commit}.")
    return fitting[0]


def import_script(script):
    """The module of a script, under a name made of its hash so that two versions can be loaded side by side."""
    source = script.read_bytes()
    name = f"cleanrl_games_script_{hashlib.sha256(source).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, script))
    sys.modules[name] = module  # dataclasses look their own module up while it is being imported
    search_path = list(sys.path)
    try:
        # The very bytes that were hashed: a stale or planted .pyc beside the file has no say.
        exec(compile(source, str(script), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        raise ModelError(
            f"{script} cannot be imported here ({type(error).__name__}: {error}): it needs the shims of its own commit."
        ) from error
    finally:
        sys.path[:] = search_path  # a script puts the folder above its own first, which for a run's copy is runs/
    return module


def load(path, game=None, trust_source=False):
    """A run's folder or model.zip → Model. `game` refuses models of other games."""
    path, metadata = read_metadata(path)
    if game is not None and metadata["game"] != game:
        raise ModelError(f"{path} is a model of {metadata['game']!r}; here only models of {game!r} can play.")
    if metadata["game"] not in SHIMS:
        raise ModelError(f"{path} is a model of {metadata['game']!r}; these tools know: {', '.join(SHIMS)}.")
    contract = importlib.import_module(SHIMS[metadata["game"]]).contract_hash()
    if metadata["contract_hash"] != contract:
        raise ModelError(
            f"{path} was trained on contract {metadata['contract_hash']}, this is {contract}: it sees and does other "
            f"things than the game here. Check out the commit it was trained with."
        )
    script = import_script(find_script(path, metadata, trust_source))
    try:
        agent, _ = script.load_model(path)
    except BadInput as error:
        raise ModelError(str(error)) from None
    except (
        Exception
    ) as error:  # weights are a file from outside: whatever they break, the user wants to know which file
        raise ModelError(f"The weights in {path} cannot be loaded ({type(error).__name__}: {error}).") from None
    broken = [name for name, tensor in agent.state_dict().items() if not bool(tensor.isfinite().all())]
    if broken:
        raise ModelError(
            f"{path} has weights that are not finite ({', '.join(broken[:3])}): its training had diverged."
        )
    return Model(model_name(path), path, metadata, script, agent.eval())
