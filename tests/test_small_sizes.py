"""Every script at sizes that are drawn among the smallest: one or two updates, in this process.

A minibatch of one battle, a rollout of one decision, a buffer that holds one transition: what a beginner tries first,
and what nobody thinks of."""

import json
import math
import os
import random
import runpy
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cleanrl_games.envs.vgc import collect
from cleanrl_games.runtime.checkpoints import load_checkpoint
from tests import test_bc_vgc

ROOT = Path(__file__).resolve().parents[1]
DRAWS = 12  # of each script, as slow tests; the suite has the first one

NETWORK = {"width": [4, 8, 16], "embedding-width": [1, 8], "lstm-size": [1, 8]}
BATTLES = {
    **NETWORK,
    "battle-format": [test_bc_vgc.FORMAT],
    "num-battles": [1, 2, 3],
    "buffer-size": [1, 2, 17, 64],
    "num-minibatches": [1, 2, 7],
    "update-epochs": [1, 2],
    "snapshot-frequency": [0, 1],
    "eval-frequency": [0, 1],
    "eval-battles": [0, 1],
    "final-battles": [0, 1],
    "turn-cap": [1, 2, 100],
    "max-policy-lag": [0, 1],
    "checkpoint-frequency": [1, 2],
    "keep-models": [1, 2],
    "total-timesteps": [1, 20],
    "teams": ["shipped"],
}
SIZES = {
    "ppo_vgc_mdbo": {**BATTLES, "league-size": [1, 2]},
    "rnad_vgc_portfolio": {
        **BATTLES,
        "league-size": [3, 4],
        "max-portfolio-size": [1, 2],
        "portfolio-add-interval": [1, 2],
        "portfolio-strategy": ["diverse", "best", "recent"],
        "train-batch-size": [0, 1, 40],
        "magnet": ["ref", "portfolio", "ema", "uniform"],
        "max-updates": [1, 2],
    },
    "recurrent_ppo_rocketleague": {
        "num-agents": [12],
        "rollout-steps": [2, 4, 12],
        "sequence-length": [1, 2],
        "minibatch-size": [1, 3, 40],
        "update-epochs": [1, 2],
        "rnn-size": [1, 8],
        "recurrent": ["none", "gru", "lstm"],
        "league-size": [1, 2],
        "opponent-update-freq": [0, 1],
        "stage": ["touch", "1v1", "3v3"],
        "final-stage": ["3v3"],
        "eval-episodes": [1],
        "eval-seconds": [0.5],
        "keep-models": [1],
        "total-timesteps": [1, 30],
    },
    "bc_pokemon_impala": {
        "algo": ["bc", "dqn_bc"],
        "demo-loss": ["margin", "ce"],
        "batch-size": [1, 2, 9],
        "hidden-dim": [1, 8],
        "frame-stack": [1, 2],
        "recurrent": [0, 1, 3],
        "num-emulators": [1, 2],
        "max-steps": [1, 2, 9],
        "expert-episodes": [0, 1, 3],
        "dagger-rounds": [0, 1],
        "dagger-episodes": [1, 2],
        "validation-fraction": [0.0, 0.5],
        "eval-frequency": [0, 1],
        "eval-episodes": [1],
        "final-eval-episodes": [0, 1],
        "save-frequency": [1],
        "log-frequency": [1, 2],
        "keep-models": [1],
        "target-network-frequency": [1, 2],
        "total-training-steps": [1, 2],
    },
    "bc_vgc_mdbo": {
        **NETWORK,
        "battle-format": [test_bc_vgc.FORMAT],
        "minibatch-size": [1, 9, 1000],
        "epochs": [1, 2],
        "eval-epochs": [0, 1],
        "eval-battles": [0, 1],
        "final-battles": [0, 1],
        "valid-fraction": [0.5],
        "keep-models": [1],
    },
}


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demonstrations") / "set"
    collect.collect(folder, test_bc_vgc.FORMAT, ("random",), ("shipped",), 6, 1, 0, lambda *_: None)
    return folder


def run_here(script, words, monkeypatch):
    """The script as a user starts it, without the seconds that a new process takes"""
    handlers = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    hook, path = sys.excepthook, list(sys.path)
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *map(str, words)])
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(ROOT / "cleanrl_games" / f"{script}.py"), run_name="__main__")
    finally:
        for sign, handler in handlers.items():
            signal.signal(sign, handler)
        sys.excepthook, sys.path[:] = hook, path
        torch.set_num_threads(threads)


def draw(script, number):
    """→ flags; the same for the same number"""
    dice = random.Random(f"{script} {number}")
    sizes = {name: dice.choice(values) for name, values in SIZES[script].items()}
    if sizes.get("algo") == "dqn_bc":
        sizes["recurrent"] = 0
    words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    if script == "bc_pokemon_impala" and dice.random() < 0.5:
        words.append("--prioritized")
    return [*words, "--num-workers", "0"]


CASES = [
    pytest.param(script, number, marks=[pytest.mark.slow] if number else [])
    for script in SIZES
    for number in range(DRAWS)
]


@pytest.mark.parametrize(("script", "number"), CASES)
def test_it_trains(script, number, tmp_path, monkeypatch, demonstrations):
    words = draw(script, number)
    words += {"bc_vgc_mdbo": ["--data", demonstrations], "ppo_vgc_mdbo": ["--checkpoint-dir", tmp_path / "kept"]}.get(
        script, []
    )
    folder = tmp_path / "run"
    run_here(script, [*words, "--run-dir", folder], monkeypatch)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows and all(math.isfinite(value) for row in rows for name, value in row.items() if "losses/" in name), words
    weights = load_checkpoint(folder)["agent"].values()
    assert all(np.isfinite(tensor.float().numpy()).all() for tensor in weights)
    keep = int(words[words.index("--keep-models") + 1])
    models = [path for path in folder.glob("models/*.zip") if path.name not in ("best.zip", "final.zip")]
    assert len(models) <= keep + 1, "the newest ones and the best"
    assert len(list((tmp_path / "kept").rglob("*.zip"))) <= keep


def test_a_tracked_run_that_is_resumed_goes_on_under_the_same_id(tmp_path, monkeypatch):
    """W&B offline, as on a machine without an account"""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    words = ["--num-workers", 0, "--max-steps", 2, "--final-eval-episodes", 0, "--eval-episodes", 1, "--batch-size", 2]
    words += ["--hidden-dim", 1, "--num-emulators", 1, "--log-frequency", 1, "--total-training-steps", 1]
    words += ["--track", "--wandb-run-name", "first"]
    folder = tmp_path / "run"
    run_here("bc_pokemon_impala", [*words, "--run-dir", folder], monkeypatch)
    run_here("bc_pokemon_impala", ["--resume", folder, "--total-training-steps", 2], monkeypatch)
    # offline-run-<time>-<id>, and -1 behind it where both began in the same second
    (number,) = {path.name.split("-")[3] for path in folder.glob("wandb/offline-run-*")}
    assert number == (folder / "wandb_id.txt").read_text().strip()
    assert len(list(folder.glob("wandb/offline-run-*"))) == 2
    assert "WANDB_MODE" in os.environ
