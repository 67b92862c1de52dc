"""The README's two commands, as they stand there, on a machine that has nothing yet: what is committed, cloned into an
empty folder, with an empty home and empty caches. Only how this machine reaches its package index (PIP_*, proxies) is
taken along."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
TAKEN_ALONG = re.compile(
    r"PIP_(?!CACHE)|(HTTPS?|NO|ALL)_PROXY$|SSL_CERT|npm_config_(?!cache)|NODE_EXTRA_CA|REQUESTS_CA|LANG$|LC_", re.I
)


def command_of(word):
    """The README's one command line with this word in it."""
    lines = [
        line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("python3 ") and word in line
    ]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """→ (a clone, the environment to run in). Gigabytes: removed at the end."""
    # short: Ray's sockets are in it
    folder, temporary = (
        tmp_path_factory.mktemp("machine"),
        tempfile.mkdtemp(prefix="m"),
    )
    (folder / "home").mkdir()
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(folder / "clone")], check=True)
    kept = {name: value for name, value in os.environ.items() if TAKEN_ALONG.match(name)}
    path = f"{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"  # Python's own, not a virtual environment's
    yield folder / "clone", {**kept, "HOME": str(folder / "home"), "TMPDIR": temporary, "PATH": path}
    shutil.rmtree(folder)
    shutil.rmtree(temporary)


def alive_in(group):
    """Processes of a group; one that has ended and that nobody has asked about yet does not count."""
    found = []
    for process in psutil.process_iter(["status", "cmdline"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append((process.pid, process.info["cmdline"]))
    return found


def test_train(machine):
    """Until the first win rates are there, then Ctrl-C: a checkpoint, a model, exit code 0, and nobody left behind."""
    clone, environment = machine
    process = subprocess.Popen(
        ["bash", "-c", command_of("cleanrl_games/")], cwd=clone, env=environment, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said, deadline = [], time.time() + 3600
    try:
        for line in process.stdout:
            said.append(line)
            assert time.time() < deadline, "".join(said)
            # a line is printed per update
            if any('"win_rate/' in path.read_text() for path in clone.glob("runs/*/metrics.jsonl")):
                break
        else:
            pytest.fail("it ended before there was a win rate:\n" + "".join(said))
        os.killpg(process.pid, signal.SIGINT)
        said += process.stdout.readlines()
        assert process.wait(timeout=300) == 0, "".join(said)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert "Stopping after this update" in "".join(said)
    (folder,) = [path for path in (clone / "runs").iterdir() if path.is_dir() and path.name != "pretrained"]
    assert {"checkpoint.pt", "model.zip", "metrics.jsonl", "config.yaml", "script.py"} <= {
        path.name for path in folder.iterdir()
    }
    deadline = time.time() + 60
    while (left := alive_in(process.pid)) and time.time() < deadline:
        time.sleep(0.5)
    assert not left, f"processes are left: {left}"


def test_test(machine):
    clone, environment = machine
    done = subprocess.run(
        ["bash", "-c", command_of("-m pytest")],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=7200,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\d{3,} passed", done.stdout) and "failed" not in done.stdout.splitlines()[-1]
