"""Ctrl-C is heard at once, whatever a run is at: evaluations and collections that would take hours, the first start.

What is trained so far is in the checkpoint, what was half done is left out, and --resume goes on."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cleanrl_games.runtime import stopping as stopping_module
from cleanrl_games.runtime.checkpoints import load_checkpoint
from cleanrl_games.runtime.stopping import stop_on_signals, until_stopped
from tests import test_bc_pokemon, test_bc_vgc

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 8.0  # two to be heard, the rest for checkpoint and processes on a machine that has other work


# ------------------------------------------------------------ in process


@pytest.fixture
def stopping():
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    yield stop_on_signals()
    for sign, handler in before.items():
        signal.signal(sign, handler)


def test_a_signal_in_the_middle_of_a_print_is_heard():
    """Python refuses to print then (reentrant call). A run that prints all the time gets its Ctrl-C somewhere in it."""
    program = (
        "import io, os, signal, sys\n"
        "from cleanrl_games.runtime.stopping import stop_on_signals\n"
        "class Raw(io.RawIOBase):\n"
        "    sent = False\n"
        "    def writable(self): return True\n"
        "    def write(self, data):\n"
        "        if not self.sent:\n"
        "            self.sent = True\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        return os.write(1, data)\n"
        "stopping = stop_on_signals()\n"
        "sys.stdout = io.TextIOWrapper(io.BufferedWriter(Raw()))\n"
        "print('a line', flush=True)\n"
        "assert stopping == [True]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Stopping after this update" in done.stdout and "a line" in done.stdout


def test_work_that_may_be_left_is_left_at_once(stopping, capsys):
    steps = []

    def work(count):
        for step in range(count):
            steps.append(step)
            if step == 3:
                os.kill(os.getpid(), signal.SIGINT)
        return {"eval/done": 1.0}

    assert until_stopped(stopping, work, 3) == {"eval/done": 1.0} and not stopping
    assert until_stopped(stopping, work, 100) == {} and stopping
    assert steps == [0, 1, 2, 0, 1, 2, 3]
    assert "left out" in capsys.readouterr().out
    assert until_stopped(stopping, work, 3) == {} and len(steps) == 7, "a run that stops begins nothing more"


def test_other_work_is_finished_and_a_second_signal_ends_it(stopping, capsys):
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopping and "Stopping after this update" in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_foreign_code_swallows_is_remembered(monkeypatch):
    """Before a run has begun; ctypes prints the exception of a callback and goes on."""
    monkeypatch.setattr(stopping_module, "heard_early", [])
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stopping_module.listen_early()
        callback = ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGINT))
        callback()
        assert stop_on_signals() == [True], "the run ends as soon as it looks"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


# ------------------------------------------------------------ whole runs

VGC = ["--battle-format", test_bc_vgc.FORMAT, "--width", "16", "--embedding-width", "16", "--lstm-size", "24"]
TINY = [*VGC, "--teams", "shipped", "--num-battles", "4", "--buffer-size", "64", "--num-workers", "1"]
EVALUATION = ["--eval-frequency", "1", "--eval-battles", "100000", "--checkpoint-frequency", "100"]
FINAL = ["--total-timesteps", "1", "--final-battles", "100000"]
CARS = ["--num-agents", "12", "--rollout-steps", "32", "--sequence-length", "16", "--minibatch-size", "128"]
CARS += ["--rnn-size", "16", "--num-workers", "1", "--eval-frequency", "1", "--eval-episodes", "6000"]
FIGHTS = ["--num-envs", "8", "--num-steps", "16", "--num-workers", "1", "--eval-frequency", "1"]
FIGHTS += ["--hidden-size", "32", "--head-size", "16", "--eval-episodes", "20000"]
COLLECT = [*VGC, "--collect", "100000", "--collect-teams", "shipped"]
LEARN = [*VGC, "--collect", "24", "--collect-teams", "shipped", "--epochs", "1", "--minibatch-size", "48"]
LEARN += ["--valid-fraction", "0.3", "--final-battles", "100000", "--num-workers", "0"]
EXPERT = [*test_bc_pokemon.FLAGS, "--num-workers", "0", "--expert-episodes", "100000", "--max-steps", "300"]
EMULATORS = [*test_bc_pokemon.FLAGS, "--num-workers", "0", "--total-training-steps", "1", "--max-steps", "300"]
EMULATORS += ["--final-eval-episodes", "100000", "--save-frequency", "1"]

# {name: (script, flags, a file that is there once the long work has begun, or text that has been said, in the suite)}
CASES = {
    "evaluation of ppo_vgc": ("ppo_vgc_mdbo", [*TINY, *EVALUATION], "models/*.zip", False),
    "last evaluation of ppo_vgc": ("ppo_vgc_mdbo", [*TINY, *FINAL], "models/*.zip", True),
    "evaluation of rnad": ("rnad_vgc_portfolio", [*TINY, *EVALUATION], "models/*.zip", False),
    "last evaluation of rnad": ("rnad_vgc_portfolio", [*TINY, *FINAL], "models/*.zip", False),
    "evaluation of rocketleague": ("recurrent_ppo_rocketleague", CARS, "models/*.zip", False),
    "evaluation of osrs": ("ppo_osrs_selfplay", FIGHTS, "models/*.zip", False),
    "collection of bc_vgc": ("bc_vgc_mdbo", [*COLLECT, "--num-workers", "1"], "last.zip", False),
    "inline collection of bc_vgc": ("bc_vgc_mdbo", [*COLLECT, "--num-workers", "0"], "last.zip", False),
    "last evaluation of bc_vgc": ("bc_vgc_mdbo", LEARN, "model.zip", False),
    "inline collection of bc_pokemon": ("bc_pokemon_impala", EXPERT, "played", True),
    "inline last evaluation of bc_pokemon": ("bc_pokemon_impala", EMULATORS, "models/final.zip", False),
}


def begin(script, flags, folder):
    words = [sys.executable, f"cleanrl_games/{script}.py", "--run-dir", str(folder), *flags]
    if script == "ppo_vgc_mdbo":
        words += ["--checkpoint-dir", str(folder.parent / "checkpoints")]
    if script == "bc_vgc_mdbo":
        words += ["--collect-set", str(folder.parent / "set")]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(
    ("script", "flags", "sign"),
    [
        pytest.param(script, flags, sign, id=name, marks=[] if in_suite else [pytest.mark.slow])
        for name, (script, flags, sign, in_suite) in CASES.items()
    ],
)
def test_long_work_ends(script, flags, sign, tmp_path):
    folder = tmp_path / "run"
    process = begin(script, flags, folder)
    try:
        end = time.time() + 120
        while not list(folder.glob(sign)):
            assert process.poll() is None, process.communicate()[0]
            assert time.time() < end, f"{sign} did not come"
            time.sleep(0.1)
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        asked = time.time()
        output, _ = process.communicate(timeout=120)
        took = time.time() - asked
    finally:
        process.kill()
    print(f"{took:.1f} s")
    assert process.returncode == 0 and "Stopping" in output, output
    assert took < SECONDS, output
    assert load_checkpoint(folder)
    rows = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    names = {name for row in rows for name in json.loads(row) if name.startswith("eval/")}
    assert names <= {"eval/expert_milestones"}, "half an evaluation is none"


SCRIPTS = ("bc_pokemon_impala", "bc_vgc_mdbo", "ppo_vgc_mdbo", "recurrent_ppo_rocketleague", "rnad_vgc_portfolio")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1.0, 2.5, 4.0, 6.0])
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_first_start_can_be_interrupted(script, seconds, tmp_path):
    """While it imports, looks for Node, compiles, loads data, or starts its actors; nothing stays behind."""
    flags = {"bc_vgc_mdbo": ["--collect", "100000"], "ppo_vgc_mdbo": ["--tensorboard"]}.get(script, [])
    process = begin(script, flags, tmp_path / "run")
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    asked = time.time()
    output, _ = process.communicate(timeout=120)  # until nobody holds the pipe any more
    print(f"{time.time() - asked:.1f} s", output)
    assert time.time() - asked < SECONDS, output
    assert process.returncode in (0, 130, -signal.SIGINT), output
