"""tools/train_osrs.py: server, TensorBoard and training start and end together."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cleanrl_games.runtime.checkpoints import load_checkpoint
from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.tools import train_osrs

ROOT = Path(__file__).resolve().parents[1]
TINY = "--num-envs 2 --num-steps 8 --hidden-size 16 --head-size 8 --opponents nh --eval-frequency 0 --num-workers 1"


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def launch(folder, port):
    """The launcher as a user starts it, with our test server in the place of the user's."""
    server = shlex.join([sys.executable, str(ROOT / "tests" / "osrs_server.py"), "--port", str(port)])
    words = ["--server-command", server, "--server", f"127.0.0.1:{port}", "--server-log", str(folder / "server.log")]
    words = [sys.executable, str(ROOT / "cleanrl_games/tools/train_osrs.py"), *words]
    words += ["--", *TINY.split(), "--run-dir", str(folder / "run")]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_updates(process, folder, count, seconds=120):
    end = time.monotonic() + seconds
    metrics = folder / "run" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "no update"
        time.sleep(0.2)
    return psutil.Process(process.pid).children(recursive=True)


def alive(family, seconds=20):
    left = psutil.wait_procs(family, timeout=seconds)[1]
    return [member for member in left if member.status() != psutil.STATUS_ZOMBIE]


def test_all_of_it_ends_together(tmp_path):
    process = launch(tmp_path, free_port())
    family = wait_for_updates(process, tmp_path, 2)
    names = " ".join(word for member in family for word in member.cmdline())
    assert "osrs_server.py" in names and "ppo_osrs_selfplay.py" in names and "tensorboard" in names
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "TensorBoard: http://127.0.0.1:" in output and "Stopping after this update" in output
    assert load_checkpoint(tmp_path / "run")["progress"]["update"] >= 2
    assert not alive(family)


@pytest.mark.slow
def test_a_server_that_dies_ends_the_training(tmp_path):
    process = launch(tmp_path, free_port())
    family = wait_for_updates(process, tmp_path, 1)
    (server,) = [member for member in family if any("osrs_server.py" in word for word in member.cmdline())]
    os.kill(server.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "The server has ended (exit code -9)" in output, output
    assert (tmp_path / "run" / "checkpoint.pt").exists() and not alive(family)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("-c \"print('no licence'); raise SystemExit(3)\"", r"ended at once \(exit code 3\): 'no licence' is the last"),
        ('-c "import time; time.sleep(60)"', "does not answer at 127.0.0.1"),
    ],
)
def test_a_server_that_does_not_start(command, sentence, tmp_path):
    words = ["--server-command", f"{sys.executable} {command}", "--server", f"127.0.0.1:{free_port()}"]
    before = psutil.Process().children(recursive=True)
    with pytest.raises(RunFailed, match=sentence):
        train_osrs.main([*words, "--server-seconds", "0.5", "--server-log", str(tmp_path / "log.txt")])
    assert not [child for child in psutil.Process().children(recursive=True) if child not in before]


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BadInput, match="Somebody listens on"):
            train_osrs.main(["--server-command", sys.executable, "--server", address])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ('java -jar "server.jar', "No closing quotation"),
        ("''", "there is no program ''"),
        ("no-such-program run", "there is no program 'no-such-program'"),
        ("README.md", "there is no program 'README.md'"),  # in the folder, but not among the programs
        ("./README.md", "there is no program './README.md'"),  # there, but no program
    ],
)
def test_a_command_that_is_none(command, sentence, tmp_path):
    (tmp_path / "README.md").write_text("")
    words = ["--server-command", command, "--server-folder", str(tmp_path), "--server", f"127.0.0.1:{free_port()}"]
    with pytest.raises(BadInput, match=f"--server-command.*{sentence}"):
        train_osrs.main([*words, "--server-log", str(tmp_path / "log.txt")])
    assert not (tmp_path / "log.txt").exists()


def test_flags_and_exit_code_are_the_scripts(tmp_path, monkeypatch, capfd):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(*sys.argv[1:]); sys.exit(7)")
    monkeypatch.setattr(train_osrs, "SCRIPT", script)
    assert train_osrs.main(["--server", "127.0.0.1:1", "--", "--num-envs", "3"]) == 7
    assert capfd.readouterr().out == "--num-envs 3 --server 127.0.0.1:1 --tensorboard\n"
    assert train_osrs.main(["--no-tensorboard", "--", "--seed", "2"]) == 7
    assert capfd.readouterr().out == "--seed 2\n"
