"""The README's commands on a machine that has nothing yet: what is committed, cloned into an empty folder, with an
empty home and empty caches. Only how this machine reaches its package index (PIP_*, proxies) is taken along. The two
commands of its top run as they stand there; those that train for a while are cut to a minute or two."""

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

from cleanrl_games.tools.benchmark import TABLE, shorten, unsound

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ROWS = re.findall(r"^\| \[`\w+\.py`\].*\| `(python cleanrl_games/[^`]*)` \|$", README, re.M)
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
            if any('"win_rate/' in path.read_text() for path in clone.glob("runs/*__rnad*/metrics.jsonl")):
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
    (folder,) = [path for path in (clone / "runs").glob("*__rnad_vgc_portfolio__*") if path.is_dir()]
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


def run(machine, command, minutes):
    """A line of the README in the clone, with its environment active → what it said. It must end by itself, well."""
    clone, environment = machine
    if not (clone / ".venv/bin/python").exists():
        install = next(line for line in README.splitlines() if line.endswith("-r requirements.txt"))
        subprocess.run(["bash", "-c", install], cwd=clone, env=environment, check=True, timeout=3600)
    done = subprocess.run(
        ["bash", "-c", f"source .venv/bin/activate && {command}"],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60 * minutes,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("command", ROWS, ids=lambda command: Path(command.split()[1]).stem)
def test_every_row_of_the_table(machine, command):
    """Cut to two minutes of training; its model plays."""
    limit = re.search(r"--max-minutes ([\d.]+)", command)
    share = 2 / float(limit[1]) if limit else 0.2  # of the steps, where the row has no minutes
    folder = f"runs/row_{Path(command.split()[1]).stem}"
    run(machine, f"{shorten(command, share)} --run-dir {folder}", 30)
    assert unsound(machine[0] / folder) == ""
    said = run(machine, f"python cleanrl_games/tools/evaluate.py {folder} --episodes 4", 20)
    assert "95 % interval" in said


def test_every_script_has_a_row():
    assert sorted(Path(command.split()[1]).name for command in ROWS) == sorted(TABLE["smoke"])


def test_the_first_fifteen_minutes(machine):
    """The section's commands one after the other, training cut to a minute. Pages are written to files, not opened."""
    section = README.partition("## Your first fifteen minutes")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```bash\n(.*?)^```", section, re.M | re.S)
    lines = [line for block in blocks[1:] for line in block.splitlines()]
    assert len(lines) > 8 and all(line.startswith(("python ", "cp ")) for line in lines)
    for line in lines:
        if "tools/watch.py" in line:
            line = line.replace(" --play", "") + " --save game.html"
        if "--max-minutes" in line:
            line = re.sub(r"--max-minutes \d+", "--max-minutes 2" if "--resume" in line else "--max-minutes 1", line)
        if "--against" in line or "tools/arena.py" in line:
            line = line.replace("--episodes 200", "--episodes 8")
        said = run(machine, line, 20)
        if "--resume" in line:
            assert "run folder: runs/first" in said
    assert (machine[0] / "game.html").stat().st_size > 10_000
    assert (machine[0] / "runs/mine/model.zip").exists()
