"""tools/profile.py and profiler.py: what it calls a bottleneck, what it recommends, and one real spell of a real
script."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cleanrl_games import ppo_osrs_selfplay, rnad_vgc_portfolio
from cleanrl_games.runtime.settings import check_settings
from cleanrl_games.tools import profiler

ROOT = Path(__file__).resolve().parents[1]


def test_the_bottleneck_is_who_is_waited_for():
    busy = {"learn_time": 3.0, "wait_time": 0.1, "rollout_time": 3.0, "inference_time": 1.0, "simulator_time": 1.9}
    assert profiler.bottleneck(busy) == "learner"
    waiting = {"learn_time": 1.0, "wait_time": 2.0, "rollout_time": 3.0}
    assert profiler.bottleneck(waiting | {"inference_time": 0.9, "simulator_time": 1.9}) == "simulator"
    assert profiler.bottleneck(waiting | {"inference_time": 1.9, "simulator_time": 0.9}) == "inference"
    assert profiler.bottleneck(waiting | {"inference_time": 0.5, "simulator_time": 0.5}) == "transport"
    late = {"learn_time": 1.0, "wait_time": 6.0, "rollout_time": 2.0, "inference_time": 1.0, "simulator_time": 1.0}
    assert profiler.bottleneck(late) == "transport"  # rollouts are ready long before they arrive


@pytest.mark.parametrize("script, players", [(rnad_vgc_portfolio, "num_battles"), (ppo_osrs_selfplay, "num_envs")])
def test_candidates_are_settings_of_the_script(script, players):
    _, defaults = profiler.script_settings(script.__name__.split(".")[-1])
    found = profiler.candidates(defaults, 4)
    assert len(found) >= 6 and {name for setting in found for name in setting} >= {"num_workers", players}
    for setting in found:
        check_settings(script.Args, setting, "a candidate")
        assert any(defaults[name] != value for name, value in setting.items())


def test_a_recommendation_has_won_twice():
    own = {"setting": {}, "steps_per_second": 100.0}
    faster, slower = (
        {"setting": {"num_workers": n}, "steps_per_second": speed} for n, speed in ((2, 130.0), (1, 80.0))
    )
    duels = []

    def duel(result):
        return lambda setting: duels.append(setting) or result

    assert profiler.choose(own, [slower, faster], duel((120.0, 110.0))) == {"num_workers": 2}
    assert profiler.choose(own, [slower, faster], duel((100.0, 110.0))) == {}  # it was luck
    assert profiler.choose(own, [slower], duel((120.0, 110.0))) == {} and duels == [{"num_workers": 2}] * 2


def test_one_spell_of_a_real_script(tmp_path):
    small = ["num_envs=16", "hidden_size=32", "head_size=16", "minibatch_size=256"]
    words = [
        sys.executable,
        "cleanrl_games/tools/profile.py",
        "ppo_osrs_selfplay",
        "--seconds",
        "1",
        "--output",
        str(tmp_path / "r.json"),
    ]
    done = subprocess.run([*words, "--flags", *small], cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    own = json.loads((tmp_path / "r.json").read_text())["own"]
    assert own["steps_per_second"] > 0 and own["cores_used"] > 0 and own["memory_mb"] > 100
    assert own["bottleneck"] in ("learner", "simulator", "inference", "transport") and own["stats"]["learn_time"] > 0
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {}
    done = subprocess.run([*words, "--flags", "num_envs=none"], cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode != 0 and "ended with exit code" in done.stderr
    done = subprocess.run([*words[:2], "nothing_here"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0 and "ppo_osrs_selfplay" in done.stderr


def test_the_standard_librarys_module_is_still_found():
    """As a tool sees it that is started from tools/: its folder comes first on the path, and torch imports cProfile."""
    code = (
        "import cProfile, profile; import torch._dynamo; print(profile.runctx.__module__, cProfile.runctx.__doc__ is "
        "not None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "cleanrl_games" / "tools", capture_output=True, text=True
    )
    assert done.stdout.split() == ["profile", "True"], done.stderr
