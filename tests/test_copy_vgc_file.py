"""docs/copy_a_vgc_file.md: its commands and its change, taken from the page, make an experiment that runs and does what it says."""

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
PAGE = (ROOT / "docs" / "copy_a_vgc_file.md").read_text()
FEW_STEPS = "--num-workers 0 --num-battles 4 --buffer-size 64 --total-timesteps 120 --snapshot-frequency 1 --past-fraction 0.5"
SMALL = "--teams shipped --width 16 --embedding-width 16 --lstm-size 24 --num-minibatches 2 --final-battles 1"


def commands(step):
    """The lines of the bash blocks under `## step`."""
    section = re.search(rf"^## {step}$(.*?)^## ", PAGE, re.M | re.S).group(1)
    return "\n".join(re.findall(r"^```bash\n(.*?)^```", section, re.M | re.S)).strip()


def bash(tree, command):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A checkout to work in: its game, its runtime and its tools are this one's."""
    tree = tmp_path_factory.mktemp("checkout")
    (tree / "cleanrl_games").mkdir()
    (tree / "docs").mkdir()
    (tree / "docs" / "copy_a_vgc_file.md").write_text(PAGE)
    for name in ("envs", "runtime", "tools"):
        (tree / "cleanrl_games" / name).symlink_to(ROOT / "cleanrl_games" / name)
    for name in ("__init__.py", "ppo_vgc_mdbo.py"):
        shutil.copy(ROOT / "cleanrl_games" / name, tree / "cleanrl_games" / name)
    for step in ("1. Copy", "2. Change"):
        bash(tree, commands(step))
    return tree


def test_the_change_is_as_small_as_the_page_says(tree):
    (diff,) = re.findall(r"^```diff\n(.*?)^```", PAGE, re.M | re.S)
    changed = [line for line in diff.splitlines() if re.match(r"[+-](?![+-])", line)]
    assert f"{len(changed)} lines" in PAGE and len(changed) < 50
    old, new = ((tree / "cleanrl_games" / f"{name}_vgc_mdbo.py").read_text().splitlines() for name in ("ppo", "gru"))
    assert len(set(new) - set(old)) == len({line for line in changed if line.startswith("+")}), "nothing but what the page shows"


def test_the_experiment_runs_and_its_model_is_its_own(tree):
    bash(tree, f"{commands('3. Run')} {FEW_STEPS} {SMALL} --run-dir run --checkpoint-dir checkpoints")
    rows = [json.loads(line) for line in (tree / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(0.5 < row["charts/choices"] < 1.0 for row in rows) and rows[-1]["league/size"] == len(rows)
    with pytest.raises(models.ModelError, match="--trust-source"):
        models.load(tree / "run")
    model = models.load(tree / "run", trust_source=True)
    assert isinstance(model.agent.gru, torch.nn.GRU) and model.agent.initial_state(3).shape == (3, 1, 24)


def test_past_selves_that_score_are_met_more_often(tree):
    script = models.import_script(tree / "cleanrl_games" / "gru_vgc_mdbo.py")
    agent = torch.nn.Linear(2, 1)
    args = script.Args(league_size=2, sharing="shared_memory")
    league = script.League(args, script.make_broadcast(args, agent))
    for name in ("easy", "hard"):
        league.join(name, torch.zeros(3))
    league.record({"policy_ids": torch.tensor([1, 2] * 40), "scores": torch.tensor([1.0, 0.0] * 40)})
    easy, hard = league.probabilities()
    assert hard > 20 * easy > 0
