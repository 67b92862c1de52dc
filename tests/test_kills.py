"""kill -9 of every kind of process of every script: nothing hangs, nobody stays behind, --resume goes on.

Each case is a series: a run is started, one of its processes is killed, the run goes on (or ends with a sentence where
it cannot), is stopped, and is resumed for the next kill. All of it takes about half an hour."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cleanrl_games.runtime.checkpoints import load_checkpoint
from tests import test_bc_pokemon, test_bc_vgc, test_ppo_osrs

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
KILLS = int(os.environ.get("KILLS", 5))
WAIT = 180.0  # seconds, for a busy machine; then it counts as hanging

VGC = ["--battle-format", test_bc_vgc.FORMAT, "--width", "16", "--embedding-width", "16", "--lstm-size", "24"]
TRAIN = [*VGC, "--teams", "shipped", "--num-battles", "4", "--buffer-size", "64", "--num-workers", "1"]
TRAIN += ["--num-minibatches", "1", "--update-epochs", "1", "--eval-frequency", "0", "--checkpoint-frequency", "1"]
EXPLOITERS = ["--train-exploiters", "--exploiter-check-interval", "1", "--exploiter-train-steps", "100000"]
CARS = ["--num-agents", "12", "--rollout-steps", "32", "--sequence-length", "16", "--minibatch-size", "128"]
CARS += ["--rnn-size", "16", "--num-workers", "2", "--eval-frequency", "0", "--checkpoint-frequency", "1"]
FIGHTS = [*test_ppo_osrs.FLAGS, "--num-workers", "1", "--eval-frequency", "0"]
EMULATORS = [*test_bc_pokemon.FLAGS, "--num-workers", "2", "--dagger-rounds", "100000", "--log-frequency", "5"]
EMULATORS += ["--save-frequency", "5", "--eval-frequency", "0", "--total-training-steps", "1000000"]
COLLECT = [*VGC, "--collect", "5000", "--collect-teams", "shipped", "--num-workers", "2"]
SCRIPTS = {
    "ppo_vgc_mdbo": [*TRAIN, "--tensorboard"],
    "rnad_vgc_portfolio": [*TRAIN, *EXPLOITERS],
    "recurrent_ppo_rocketleague": [*CARS, "--inference", "central"],
    "ppo_osrs_selfplay": [*FIGHTS, "--checkpoint-frequency", "1"],
    "bc_pokemon_impala": EMULATORS,
    "bc_vgc_mdbo": COLLECT,
}


def words_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


def spawned(run):
    """Processes of Python's multiprocessing, the oldest first"""
    children = [child for child in run.children() if "spawn_main" in words_of(child)]
    return sorted(children, key=lambda child: child.create_time())


def named(run, word):
    return [child for child in run.children(recursive=True) if word in words_of(child)]


# {script: {kind: (how to find it, whether the run goes on without it)}}
KINDS = {
    "ppo_vgc_mdbo": {
        "actor": (spawned, True),
        "simulator": (lambda run: named(run, "sim.js"), True),
        "TensorBoard": (lambda run: named(run, "tensorboard"), True),
    },
    "rnad_vgc_portfolio": {
        "actor": (spawned, True),
        "simulator": (lambda run: [node for actor in spawned(run) for node in named(actor, "sim.js")], True),
        "exploiter": (lambda run: named(run, "--config"), True),
    },
    "recurrent_ppo_rocketleague": {
        "actor": (lambda run: spawned(run)[1:], True),
        "inference": (lambda run: spawned(run)[:1], False),
    },
    "ppo_osrs_selfplay": {"actor": (spawned, True)},
    "bc_pokemon_impala": {"actor": (spawned, True)},
    "bc_vgc_mdbo": {"collecting process": (spawned, True), "simulator": (lambda run: named(run, "sim.js"), True)},
}
CASES = [(script, kind) for script, kinds in KINDS.items() for kind in (*kinds, "learner")]


class Run:
    """A script that is started, or resumed if it has a checkpoint."""

    def __init__(self, script, folder):
        self.folder, self.said = folder, Path(f"{folder}.log")
        words = [sys.executable, f"cleanrl_games/{script}.py"]
        if (folder / "checkpoint.pt").exists():
            words += ["--resume", str(folder)]
        else:
            words += ["--run-dir", str(folder), *SCRIPTS[script]]
            words += ["--checkpoint-dir", f"{folder}_checkpoints"] if script == "ppo_vgc_mdbo" else []
            words += ["--collect-set", f"{folder}_set"] if script == "bc_vgc_mdbo" else []
        with open(self.said, "w") as log:
            self.process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)
        self.family = {}

    def steps(self):
        """Lines of metrics, or reports of a collection in this run's own output"""
        metrics = self.folder / "metrics.jsonl"
        rows = metrics.read_text().count("\n") if metrics.exists() else 0
        return rows + self.said.read_text().count("collected ")

    def look(self):
        """Whoever is seen once must be gone in the end."""
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.family[child.pid, child.create_time()] = child

    def wait_for(self, condition, what):
        end = time.time() + WAIT
        while not condition():
            self.look()
            assert self.process.poll() is None, f"it ended before {what}: {self.said.read_text()}"
            assert time.time() < end, f"it hangs: no {what}. {self.said.read_text()}"
            time.sleep(0.1)

    def check_nobody_stays(self):
        end = time.time() + 60
        while alive := [child for child in self.family.values() if is_alive(child)]:
            assert time.time() < end, f"left behind: {[words_of(child) for child in alive]}"
            time.sleep(0.2)


def is_alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(("script", "kind"), CASES)
def test_kill(script, kind, tmp_path):
    find, goes_on = KINDS[script].get(kind, (lambda run: [run], False))
    for _ in range(KILLS):
        run = Run(script, tmp_path / "run")
        try:
            before, learner = run.steps(), psutil.Process(run.process.pid)
            run.wait_for(lambda run=run, before=before: run.steps() > before, "first step")
            run.wait_for(lambda: (tmp_path / "run" / "checkpoint.pt").exists(), "first checkpoint")
            run.wait_for(lambda learner=learner: find(learner), kind)
            find(learner)[0].kill()
            before = run.steps()
            if goes_on:
                more = 1 if script == "bc_vgc_mdbo" else 2  # which says something every ten seconds
                run.wait_for(lambda run=run, goal=before + more: run.steps() >= goal, "step after the kill")
                run.process.send_signal(signal.SIGINT)
            code = run.process.wait(WAIT)
            said = run.said.read_text()
            expected = 0 if goes_on else -signal.SIGKILL if kind == "learner" else 1
            assert code == expected and "Traceback" not in said, said
            run.check_nobody_stays()
            assert load_checkpoint(tmp_path / "run")
        finally:
            run.process.kill()
            run.process.wait()
