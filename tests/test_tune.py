"""tools/tune.py: what is searched, runs of each seed, pruning, going on, and its pages.

The script that is searched is a stand-in of twenty lines with a script's manners: an `Args` read by `parse_args`, a run
folder with metrics.jsonl, a quiet end on Ctrl-C. Its curve is known, so that the best settings are.
"""

import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.tools import tune

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = '''
import dataclasses, json, sys, time
from pathlib import Path
from typing import Literal
sys.path.insert(0, {root!r})
from cleanrl_games.runtime.settings import Positive, Size, parse_args


@dataclasses.dataclass
class Args:
    run_dir: str = ""
    """where"""
    seed: int = 1
    """seed"""
    rate: Positive = 0.1
    """a number"""
    steps: Size = 3
    """lines"""
    kind: Literal["plain", "broken"] = "plain"
    """which"""
    pause: float = 0.0
    """seconds a line"""


if __name__ == "__main__":
    args = parse_args(Args, {{}})
    if args.kind == "broken":
        raise SystemExit("It cannot be done.")
    folder = Path(args.run_dir)
    folder.mkdir(parents=True)
    with open(folder / "metrics.jsonl", "w", buffering=1) as file:
        for step in range(args.steps):
            file.write(json.dumps({{"global_step": step, "eval/x": (step + 1) * args.rate + args.seed}}) + "\\n")
            time.sleep(args.pause)
'''


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "stand_in_script.py"
    path.write_text(SCRIPT.format(root=str(ROOT)))
    sys.modules.pop("stand_in_script", None)
    yield path
    sys.path[:] = [place for place in sys.path if place != str(tmp_path)]


def search(script, *words):
    return tune.main([str(script), "--metric", "eval/x", "--folder", str(script.parent / "study"), *words])


def test_the_best_settings_are_found_over_seeds_and_a_later_call_goes_on(script, capsys):
    words = ["--search", "rate=0.1:1.0:log", "steps=2|5", "--seeds", "1", "3", "--no-prune"]
    best = search(script, *words, "--trials", "3")
    folder = script.parent / "study"
    rows = list(csv.DictReader((folder / "trials.csv").open()))
    for row in rows:  # a trial is the mean over its seeds of what was logged last
        assert float(row["eval/x"]) == pytest.approx(int(row["steps"]) * float(row["rate"]) + 2)
        assert [float(value) for value in row["by_seed"].split()] == pytest.approx(
            [float(row["eval/x"]) - 1, float(row["eval/x"]) + 1], abs=0.01
        )
    assert len(rows) == 3 and best["value"] == max(float(row["eval/x"]) for row in rows)
    assert best["settings"]["steps"] in (2, 5) and best["settings"]["rate"] == pytest.approx(float(rows[0]["rate"]))
    page = (folder / "index.html").read_text()
    assert "data:image/png" in page and f"--steps {best['settings']['steps']}" in page
    search(script, *words, "--trials", "4")
    assert len(list(csv.DictReader((folder / "trials.csv").open()))) == 4, "the first three count"
    with pytest.raises(BadInput, match="holds another search"):
        search(script, "--search", "rate=0.1:2.0", "--trials", "6")


def test_a_hopeless_trial_is_stopped(script, capsys):
    """Four trials end; then one whose curve lies below all of theirs is stopped, long before its end."""
    space = script.parent / "space.yaml"
    space.write_text("rate: {low: 1e-3, high: 1.0}\n")  # PyYAML reads 1e-3 as text
    study_words = ["--space", str(space), "--trials", "9", "--", "--steps", "4", "--pause", "0.2"]
    start = time.time()
    search(script, *study_words)
    rows = sorted(csv.DictReader((script.parent / "study" / "trials.csv").open()), key=lambda row: int(row["trial"]))
    states = [row["state"] for row in rows]
    for number, row in enumerate(rows):
        if row["state"] == "pruned":  # its curve was below the median of those before it
            before = [float(other["rate"]) for other in rows[:number] if other["state"] == "complete"]
            assert float(row["rate"]) <= statistics.median(before)
    assert states.count("pruned") >= 1 and states.count("complete") >= 4 and len(states) == 9, time.time() - start
    assert "below the median" in capsys.readouterr().out


def test_ctrl_c_loses_nothing(script):
    words = [sys.executable, "cleanrl_games/tools/tune.py", str(script), "--metric", "eval/x", "--search", "rate=0.1:1"]
    words += ["--folder", str(script.parent / "study"), "--trials", "2", "--", "--steps", "200", "--pause", "0.1"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    run = script.parent / "study" / "trial_0" / "seed_1" / "metrics.jsonl"
    while not run.exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "the same command goes on" in output and "Traceback" not in output
    first = json.loads((script.parent / "study" / "search.json").read_text())
    assert first["metric"] == "eval/x"
    text = script.read_text().replace("time.sleep(args.pause)", "pass")
    script.write_text(text)  # so that it ends now
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((script.parent / "study" / "trials.csv").open()))
    assert sorted(row["state"] for row in rows) == ["complete", "complete", "fail"]
    again = [row["rate"] for row in rows if row["state"] == "complete"]
    assert next(row["rate"] for row in rows if row["state"] == "fail") in again, "what was stopped is tried again"


def test_three_broken_runs_end_the_search(script):
    with pytest.raises(RunFailed, match="3 trials failed one after the other"):
        search(script, "--search", "rate=0.1:1", "--", "--kind", "broken")


@pytest.mark.parametrize(
    "words, sentence",
    [
        ("--search rate", "write name=low:high"),
        ("--search rate=1", "write name=low:high"),
        ("--search rate=1:2:lin", "write name=low:high"),
        ("--search rait=0.1:1", "rait"),
        ("--search rate=-1:1", "more than 0"),
        ("--search rate=1:0.1", "low should be below high"),
        ("--search kind=plain:broken", "kind"),
        ("--search seed=1:5", "seed cannot be searched"),
        ("--space nowhere.yaml", "--space nowhere.yaml"),
        ("", "nothing to search"),
    ],
)
def test_a_bad_search_is_one_sentence(script, words, sentence):
    with pytest.raises(BadInput, match=sentence):
        search(script, *words.split())
    assert not (script.parent / "study").exists()


def test_a_metric_that_is_not_logged_names_those_that_are(script):
    with pytest.raises(BadInput, match=r"eval/y was never logged .* eval/x, global_step"):
        tune.main(
            [str(script), "--metric", "eval/y", "--search", "rate=0.1:1", "--folder", str(script.parent / "study")]
        )
    with pytest.raises(BadInput, match="There is no script nothing"):
        tune.main(["nothing", "--metric", "x", "--search", "rate=0.1:1"])
