"""Starts what a training run on a simulation server needs, and stops all of it together.

    python cleanrl_games/tools/train_osrs.py --server-command "./gradlew run" -- --num-envs 8 --preset core

    launcher ── the server, by your own command, until it answers at --server
             ├─ ppo_osrs_selfplay.py --server HOST:PORT --tensorboard, and what stands behind `--`
             └─ whoever ends first, and Ctrl-C: the others are ended as well

Without --server-command, the server at --server is yours to start; without both, fights are in the simulator.
"""

import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cleanrl_games.envs.osrs.remote import check_server, parse_address
from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.runtime.settings import Positive, parse_flags

SCRIPT = Path(__file__).resolve().parents[1] / "ppo_osrs_selfplay.py"


@dataclasses.dataclass
class Args:
    server_command: str = ""
    """the command that starts your simulation server, in quotes; it runs in --server-folder"""
    server_folder: str = "."
    """the folder that the command is run in"""
    server: str = ""
    """HOST:PORT of the server; with --server-command 127.0.0.1:7070 unless you say otherwise"""
    server_seconds: Positive = 120.0
    """how long to wait for the server's first answer"""
    server_log: str = "runs/osrs_server.log"
    """where the server's output goes"""
    tensorboard: bool = True
    """start TensorBoard beside the run and print its address"""


def start_server(args):
    """→ its process, once it answers. It is the first of a group of its own, so that all it starts can be ended."""
    try:
        words = shlex.split(args.server_command)
    except ValueError as error:  # a quotation mark without its partner
        raise BadInput(f"--server-command {args.server_command}: {error}.") from None
    if not Path(args.server_folder).is_dir():
        raise BadInput(f"--server-folder {args.server_folder}: there is no such folder.")
    # As Popen looks for it: a name with a slash from the folder on, any other among the programs.
    program = words[0] if words else ""
    if not shutil.which(os.path.join(args.server_folder, program) if "/" in program else program):
        raise BadInput(f"--server-command: there is no program {program!r}.")
    with contextlib.suppress(OSError), socket.create_connection(parse_address(args.server), timeout=1.0):
        raise BadInput(f"Somebody listens on {args.server} already: end it, or leave --server-command out to use it.")
    Path(args.server_log).parent.mkdir(parents=True, exist_ok=True)
    with open(args.server_log, "w") as log:
        process = subprocess.Popen(
            words,
            cwd=args.server_folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    end = time.monotonic() + args.server_seconds
    try:
        while True:
            if process.poll() is not None:
                raise RunFailed(f"The server ended at once (exit code {process.returncode}): {last_line(args)}")
            with contextlib.suppress(ValueError):
                check_server(args.server)
                return process
            if time.monotonic() > end:
                raise RunFailed(
                    f"The server does not answer at {args.server} after {args.server_seconds:g} s: {last_line(args)}"
                )
            time.sleep(0.2)
    except BaseException:
        end_group(process)
        raise


def last_line(args):
    lines = Path(args.server_log).read_text(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return f"{said[-1]!r} is the last line of {args.server_log}." if said else f"{args.server_log} is empty."


def end_group(process, seconds=20.0):
    """Asks a process and all that it has started to end, and makes them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def train(args, flags, server):
    """Runs the script until it ends, somebody stops it, or the server dies → exit code"""
    words = [sys.executable, str(SCRIPT), *flags]
    words += ["--server", args.server] if args.server else []
    words += ["--tensorboard"] if args.tensorboard else []
    training = subprocess.Popen(words, start_new_session=True)  # Ctrl-C is handed on below, once
    stops = []

    def stop(*_):
        stops.append(True)
        training.send_signal(signal.SIGTERM)  # once: ends after the update, with a checkpoint; twice: at once

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while training.poll() is None:
            if server and server.poll() is not None and not stops:
                print(f"The server has ended (exit code {server.returncode}): {last_line(args)}", file=sys.stderr)
                stop()
            time.sleep(0.2)
    finally:
        end_group(training)
        for number, handler in before.items():
            signal.signal(number, handler)
    return training.returncode or int(bool(server and server.poll() is not None))


def main(argv=None):
    words = sys.argv[1:] if argv is None else list(argv)
    flags = words[words.index("--") + 1 :] if "--" in words else []
    args = parse_flags(Args, __doc__, words[: words.index("--")] if "--" in words else words)
    if args.server_command and not args.server:
        args.server = "127.0.0.1:7070"
    if args.server:
        try:
            parse_address(args.server)
        except ValueError as error:
            raise BadInput(f"--server {args.server}: {error}") from None
    server = start_server(args) if args.server_command else None
    try:
        return train(args, flags, server)
    finally:
        if server:
            end_group(server)


if __name__ == "__main__":
    sys.exit(main())
