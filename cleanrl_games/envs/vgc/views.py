"""Views: what a player sees, for battles that this process does not play: on a websocket, or in a saved replay.

    lines and requests of one seat ──> showdown/views.js: PlayerView, as in VGCVecEnv ──> FRAME: mask, ints, floats

There is one implementation of the observation, in Node. Whoever has a player's protocol lines and requests gets the
frame that VGCVecEnv would have given at that point, bit by bit.
"""

import base64
import contextlib
import json
import os
import select
import subprocess
import tempfile
import weakref

import numpy as np

from cleanrl_games.envs.vgc import install, mdbo
from cleanrl_games.envs.vgc.vocabulary import FLOATS, INTS

TIMEOUT = 60.0  # seconds for one answer; it takes milliseconds
FRAME = np.dtype(
    [("slots", "u1", (2, mdbo.SLOT_ACTIONS)), ("pass_rule", "u1"), ("", "u1"), ("ints", "<i2", (INTS,))]
    + ([("", "<i2")] if INTS % 2 else [])
    + [("floats", "<f4", (FLOATS,))]
)


class ViewError(RuntimeError):
    """A stream could not be followed, or the process that follows it is gone; the message says which."""


def close_process(process: subprocess.Popen, errors) -> None:
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()  # the process ends by itself when its pipe closes
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    errors.close()


class Views:
    """One Node process with a view for each seat that is being followed. Not for two threads at a time."""

    def __init__(self):
        # not a pipe: one that nobody reads would stop the process one day
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            install.node_command(install.SHOWDOWN_SOURCES / "views.js"),
            env=install.node_env(install.ensure_showdown()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            process_group=0,  # a terminal's Ctrl-C is the script's to handle
        )
        self.close = weakref.finalize(self, close_process, self.process, self.errors)
        self.unread = b""
        width = self.read()["bytes"]
        if width != FRAME.itemsize:
            self.close()
            raise ViewError(
                f"views.js writes frames of {width} bytes, views.py reads {FRAME.itemsize}: their tables differ."
            )

    def follow(self, key: str, role: str, entries: list[dict], close: bool = False) -> np.ndarray:
        """Tells one seat what it was sent: {"line": text}, {"request": dict}, {"observe": True} → (n,) FRAME, one for
        each `observe`.

        role: p1 or p2. close: nothing more will come for this key."""
        message = json.dumps({"key": key, "role": role, "entries": entries, "close": close})
        try:
            self.process.stdin.write(message.encode() + b"\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise ViewError(self.cause()) from None
        answer = self.read()
        if "error" in answer:
            raise ViewError(f"The battle of {key} cannot be followed: {answer['error']}")
        # that can be written to
        return np.frombuffer(bytearray(b"".join(map(base64.b64decode, answer["frames"]))), FRAME)

    def read(self) -> dict:
        output = self.process.stdout.fileno()
        while b"\n" not in self.unread:
            ready, _, _ = select.select([output], [], [], TIMEOUT)
            if not ready:
                raise ViewError(
                    f"The process that follows battles (pid {self.process.pid}) gave no answer for {TIMEOUT:.0f} s."
                )
            got = os.read(output, 1 << 20)
            if not got:
                raise ViewError(self.cause())
            self.unread += got
        line, self.unread = self.unread.split(b"\n", 1)
        return json.loads(line)

    def cause(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip()[-2000:]
        return (
            f"The process that follows battles ended (exit code {self.process.returncode}). It said: "
            f"{said or 'nothing'}"
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def mask_of(frame: np.ndarray, preview: bool) -> np.ndarray:
    """(2025,) bool of one FRAME; of a preview only the first 90 can be set"""
    if not preview:
        return mdbo.joint_mask(frame["slots"], frame["pass_rule"])
    legal = np.zeros(mdbo.NUM_ACTIONS, bool)
    legal[: mdbo.NUM_PREVIEWS] = frame["slots"].reshape(-1)[: mdbo.NUM_PREVIEWS]
    return legal
