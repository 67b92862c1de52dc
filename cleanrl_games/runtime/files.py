"""Files of a run: written under a temporary name and then renamed, in a folder that keeps what it takes to understand
the run later.

runs/<run>/  config.yaml, script.py (as it ran first), script_resumed_<n>.py (where a resumed run used another),
metrics.jsonl,
             TensorBoard events, checkpoint.pt, previous_checkpoint.pt, model.zip, models/
"""

import dataclasses
import errno
import functools
import hashlib
import os
import subprocess
import time
from pathlib import Path

import yaml

from cleanrl_games.runtime.errors import BadInput, RunFailed


def write_atomically(path, write):
    """`write(temporary path)`, then rename: a reader never sees half a file, and a full disk leaves the old one."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch.save says RuntimeError when the disk is full
        if disk_is_full(error, path.parent):
            raise RunFailed(
                f"The disk of {path.parent} is full: {path.name} could not be written, the last good one is kept."
            ) from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def disk_is_full(error, folder):
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    if isinstance(error, RuntimeError) and folder.is_dir():
        space = os.statvfs(folder)
        return space.f_bavail * space.f_frsize < 1 << 20
    return False


@functools.cache
def script_source(script):
    """The script's text as it was when its run began: whoever edits the file meanwhile does not change what runs."""
    return Path(script).read_text()


def file_hash(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def run_folder(path):
    """A run's folder, from itself or from a checkpoint in it."""
    return Path(path) if Path(path).is_dir() else Path(path).parent


def choose_run_folder(args):
    """Where this run's files go. Refuses what cannot be used, and makes nothing."""
    if args.resume:
        return run_folder(args.resume)
    folder = Path(args.run_dir or f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}")
    if (folder / "checkpoint.pt").exists():
        raise BadInput(f"{folder} holds a run already: go on with --resume {folder}, or choose another --run-dir.")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"--run-dir {folder} is a file: give the name of a folder.")
    return folder


def settings_text(args):
    """All settings as YAML; `config` and `resume` name files, not settings."""
    settings = {
        name: value
        for name, value in dataclasses.asdict(args).items()
        if name not in ("config", "resume", "print_config")
    }
    settings = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    return yaml.safe_dump(settings, sort_keys=False)


@functools.cache
def commit_of(script):
    """The commit that the script's folder stands at, for people; "" outside of a repository. A change on top of it is
    said too."""
    try:
        words = [
            "git",
            "-C",
            str(Path(script).resolve().parent),
            "describe",
            "--always",
            "--dirty",
            "--abbrev=12",
            "--exclude=*",
        ]
        return subprocess.run(words, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):  # no git on this machine
        return ""


def make_run_folder(args, script):
    """Makes the folder with the settings and the script in it; --resume goes on in the old one, whose script is never
    replaced.

    Call it when everything is checked: what is written here is the run's from then on."""
    folder, source = choose_run_folder(args), script_source(script)
    commit_of(script)  # remembered from here on: models are of this code, whatever is edited while the run goes on
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = settings_text(args)
        write_atomically(folder / "config.yaml", lambda path: path.write_text(text))
    except OSError as error:
        raise BadInput(
            f"The run's folder {folder} cannot be written ({error.strerror}): choose another --run-dir."
        ) from None
    if Path(script).resolve().parent != folder.resolve():
        kept = folder / "script.py"
        number = 0
        while kept.exists() and kept.read_text() != source:
            number += 1
            kept = folder / f"script_resumed_{number}.py"
        if not kept.exists():
            write_atomically(kept, lambda path: path.write_text(source))
    print(f"run folder: {folder}", flush=True)
    return folder


def keep_models(folder, count, best=None):
    """Deletes all but the newest `count` of a run's models/*.zip and `best` (a path). 0 = keeps all of them."""
    models = sorted(Path(folder, "models").glob("*.zip"), key=lambda path: path.stat().st_mtime)
    for path in models[: -count if count else 0]:
        if best is None or path != Path(best):
            path.unlink()
