"""What is fetched once per machine lies in the cache folder, `$CLEANRL_GAMES_CACHE` or `~/.cache/cleanrl_games`. One
process fetches, the others wait for its lock."""

import contextlib
import fcntl
import os
import shutil
import sys
import time
from pathlib import Path


def cache_folder():
    return Path(os.environ.get("CLEANRL_GAMES_CACHE") or Path.home() / ".cache" / "cleanrl_games").expanduser()


@contextlib.contextmanager
def one_at_a_time(final, seconds, doing, error_class):
    """Holds the lock of the folder `final`, which is still to be made, for at most one process; `doing` tells the
    others what they wait for, at most so many seconds. What a killed process left of its work is removed first."""
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        lock = open(final.with_name(f"{final.name}.lock"), "w")  # noqa: SIM115 (held until the end of the block below)
    except OSError as error:
        raise error_class(
            f"The cache folder {final.parent} cannot be written ({error.strerror}). Set CLEANRL_GAMES_CACHE to a "
            f"folder that can."
        ) from error
    deadline, told = time.monotonic() + seconds, False
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    print(f"Another process is {doing}; waiting for it.", file=sys.stderr, flush=True)
                    told = True
                if time.monotonic() > deadline:
                    raise error_class(
                        f"Waited too long for {lock.name}: another process holds it. End that process and retry."
                    ) from None
                time.sleep(0.2)
        for stale in final.parent.glob(f"{final.name}.tmp-*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield
