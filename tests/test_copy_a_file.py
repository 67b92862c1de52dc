"""docs/copy_a_file.md: its commands and its change, taken from the page, make an experiment that runs and does what the
page says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cleanrl_games.tools import models

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "copy_a_file.md").read_text()
FEW_STEPS = (
    "--num-workers 0 --num-envs 16 --num-steps 128 --total-timesteps 24000 --snapshot-frequency 1 --self-fraction 0.2"
)
SMALL = (
    "--self-fraction-final 0.2 --scripted-fraction 0 --hidden-size 32 --head-size 16 --minibatch-size 2048 "
    "--eval-episodes 4 --final-episodes 4"
)


def commands(step):
    """The lines of the bash blocks under `## step`."""
    section = re.search(rf"^## {step}$(.*?)^## ", PAGE, re.M | re.S).group(1)
    return "\n".join(re.findall(r"^```bash\n(.*?)^```", section, re.M | re.S)).strip()


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A checkout to work in: its shims and tools are this one's, so that what Numba has compiled is found."""
    tree = tmp_path_factory.mktemp("checkout")
    (tree / "cleanrl_games").mkdir()
    (tree / "docs").mkdir()
    (tree / "docs" / "copy_a_file.md").write_text(PAGE)
    for name in ("envs", "runtime", "tools"):
        (tree / "cleanrl_games" / name).symlink_to(ROOT / "cleanrl_games" / name)
    for name in ("__init__.py", "ppo_osrs_selfplay.py"):
        shutil.copy(ROOT / "cleanrl_games" / name, tree / "cleanrl_games" / name)
    for step in ("1. Copy", "2. Change"):
        bash(tree, commands(step))
    return tree


def bash(tree, command):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_change_is_as_small_as_the_page_says(tree):
    (diff,) = re.findall(r"^```diff\n(.*?)^```", PAGE, re.M | re.S)
    changed = [line for line in diff.splitlines() if re.match(r"[+-](?![+-])", line)]
    assert f"{len(changed)} lines" in PAGE and len(changed) < 50
    old, new = (
        (tree / "cleanrl_games" / f"{name}_osrs_selfplay.py").read_text().splitlines() for name in ("ppo", "pfsp")
    )
    assert len(set(new) - set(old)) == sum(line.startswith("+") for line in changed), "nothing but what the page shows"


def test_the_experiment_runs(tree):
    bash(tree, f"{commands('3. Run')} {FEW_STEPS} {SMALL} --run-dir run")
    rows = [json.loads(line) for line in (tree / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["league/easiest"] == 0.5 != rows[-1]["league/easiest"], "results move the qualities"
    assert rows[-1]["league/size"] >= 3 and "eval/nh" in rows[-1]
    assert "pfsp_power: 2.0" in (tree / "run" / "config.yaml").read_text()
    model = models.load(tree / "run", trust_source=True)
    assert model.metadata["script"] == "pfsp_osrs_selfplay.py" and model.args["pfsp_power"] == 2.0


def test_it_draws_whom_the_agent_rarely_beats(tree):
    script = models.import_script(tree / "cleanrl_games" / "pfsp_osrs_selfplay.py")
    league = script.League(script.Args(pfsp_power=2.0), script.make_broadcast(script.Args(league_size=2), 3))
    for name in ("easy", "hard"):
        league.join(name, script.torch.zeros(3))
    for _ in range(8):
        league.record(script.LEAGUE, 1, 1.0)
        league.record(script.LEAGUE, 2, 0.0)
    easy, hard = league.probabilities()
    assert hard / easy == pytest.approx((0.9**2 + 1e-3) / (0.1**2 + 1e-3))
