"""docs/copy_a_file.md, second example: its commands and its change make a VGC experiment that runs and does what the
page says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cleanrl_games.tools import models

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "copy_a_file.md").read_text()
SECTION = PAGE.split("## A second example: VGC\n")[1]
MAKE, RUN = re.findall(r"^```bash\n(.*?)^```", SECTION, re.M | re.S)
SMALL = (
    "--num-workers 0 --num-battles 4 --buffer-size 64 --num-minibatches 2 --update-epochs 1 --total-timesteps 400 "
    "--width 16 "
    "--embedding-width 16 --lstm-size 24 --snapshot-frequency 1 --past-fraction 0.5 --eval-frequency 0 "
    "--final-battles 2 --teams shipped"
)


def bash(tree, command):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A checkout whose games, runtime and tools are this one's, with the experiment made and run in it"""
    tree = tmp_path_factory.mktemp("checkout")
    (tree / "cleanrl_games").mkdir()
    (tree / "docs").mkdir()
    (tree / "docs" / "copy_a_file.md").write_text(PAGE)
    for name in ("envs", "runtime", "tools"):
        (tree / "cleanrl_games" / name).symlink_to(ROOT / "cleanrl_games" / name)
    for name in ("__init__.py", "ppo_vgc_mdbo.py"):
        shutil.copy(ROOT / "cleanrl_games" / name, tree / "cleanrl_games" / name)
    bash(tree, MAKE)
    bash(tree, f"{RUN.splitlines()[0].replace(' --num-workers 2', '')} {SMALL} --run-dir run")
    return tree


def test_the_experiment_runs_with_its_field_and_its_league(tree):
    rows = [json.loads(line) for line in (tree / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["charts/legal_actions"] > 1 for row in rows), "the new field reaches the learner"
    assert rows[-1]["league/size"] >= 3 and "eval/heuristics" in rows[-1]


def test_its_model_has_a_gru_and_is_its_own(tree):
    model = models.load(tree / "run", trust_source=True)
    assert isinstance(model.agent.lstm, torch.nn.GRU)
    with pytest.raises(models.ModelError, match="no script in cleanrl_games/ has that network"):
        models.load(tree / "run")


def test_it_meets_whom_it_rarely_beats(tree):
    script = models.import_script(tree / "cleanrl_games" / "gru_vgc_mdbo.py")
    args = script.Args(league_size=2, sharing="shared_memory")
    agent = torch.nn.Linear(2, 1)
    league = script.League(args, script.make_broadcast(args, agent))
    for name in ("easy", "hard"):
        league.join(name, script.to_flat(agent))
    results = {"policy_ids": torch.tensor([1] * 8 + [2] * 8), "scores": torch.tensor([1.0] * 8 + [0.0] * 8)}
    league.record(results)
    easy, hard = league.probabilities()
    assert hard / easy == pytest.approx((0.9**2 + 1e-3) / (0.1**2 + 1e-3))
