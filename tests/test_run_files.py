"""A run's files: which models stay, which exploiters are named, what the last line promises, and W&B's id."""

import dataclasses
import json
import os
import re
import subprocess
from types import SimpleNamespace

from cleanrl_games.runtime import exploiter_processes
from cleanrl_games.runtime.checkpoints import save_checkpoint, say_how_to_go_on
from cleanrl_games.runtime.files import commit_of, keep_models, make_run_folder
from cleanrl_games.runtime.logger import wandb_id


def test_old_models_go_and_the_best_stays(tmp_path):
    (tmp_path / "models").mkdir()
    for number in range(6):
        path = tmp_path / "models" / f"{number}.zip"
        path.write_text("")
        os.utime(path, (1000 + number, 1000 + number))

    def left():
        return sorted(path.name for path in (tmp_path / "models").iterdir())

    keep_models(tmp_path, 0)
    assert len(left()) == 6
    keep_models(tmp_path, 2, tmp_path / "models" / "1.zip")
    assert left() == ["1.zip", "4.zip", "5.zip"]
    keep_models(tmp_path, 2)
    assert left() == ["4.zip", "5.zip"]


def test_only_exploiters_that_won_are_named_and_only_once(tmp_path):
    entries = [
        {"model": "a.zip", "in_pool": True, "win_rate": 0.7},
        {"model": "b.zip", "in_pool": False, "win_rate": 0.3},
    ]
    (tmp_path / "exploiter_registry.json").write_text(json.dumps({"exploiters": entries}))
    for entry in entries:
        (tmp_path / entry["model"]).write_text("")
    runs = exploiter_processes.ExploiterRuns(tmp_path, "script.py")
    assert runs.unseen_models() == ["a.zip"] and runs.unseen_models() == [] and runs.best_win_rate() == 0.7
    assert exploiter_processes.ExploiterRuns(tmp_path, "script.py", ["a.zip"]).unseen_models() == []


def test_old_exploiters_go(tmp_path):
    """All but the newest, the one that won most, the one that trains and those that the pool does not know yet."""

    def make(name, age, win_rate=None, in_pool=False):
        place = tmp_path / "exploiters" / name
        (place / "run").mkdir(parents=True)
        (place / "run" / "model.zip").write_text("")
        os.utime(place, (2000 - age, 2000 - age))
        return {"model": f"exploiters/{name}/run/model.zip", "in_pool": in_pool, "win_rate": win_rate}

    entries = [
        make("1", 90, 0.5), make("2", 80, 0.9, True), make("3", 70, 0.7, True), make("4", 60, 0.8, True),
        make("7", 30, 0.1), make("8", 20, 0.7, True),
    ]  # fmt: skip
    make("5", 50)  # killed before its end
    make("6", 40)  # still trains
    (tmp_path / "exploiter_registry.json").write_text(json.dumps({"exploiters": entries}))
    for name, age in (("known.zip", 85), ("unknown.zip", 75), ("writing.partial", 95)):
        (tmp_path / "exploiters" / name).write_text("")
        os.utime(tmp_path / "exploiters" / name, (2000 - age, 2000 - age))
    known = [entries[number]["model"] for number in (1, 2, 5)] + ["exploiters/known.zip"]
    runs = exploiter_processes.ExploiterRuns(tmp_path, "script.py", known)
    runs.job = SimpleNamespace(place=tmp_path / "exploiters" / "6")

    def left():
        return sorted(path.name for path in (tmp_path / "exploiters").iterdir())

    everything = left()
    runs.keep_newest(0)
    assert left() == everything
    runs.keep_newest(1)
    assert left() == ["2", "4", "6", "8", "unknown.zip", "writing.partial"]
    assert len(exploiter_processes.read_registry(tmp_path)) == 6 and runs.best_win_rate() == 0.9
    assert runs.unseen_models() == [entries[3]["model"]]
    runs.known.add("exploiters/unknown.zip")
    runs.job = None
    runs.keep_newest(1)
    assert left() == ["2", "8", "writing.partial"]
    forgetful = exploiter_processes.ExploiterRuns(tmp_path, "script.py")  # of an older checkpoint
    assert forgetful.unseen_models() == [entries[1]["model"], entries[5]["model"]], "what is gone is not named"


def test_the_last_line_promises_only_what_is_there(tmp_path, capsys):
    say_how_to_go_on(tmp_path)
    assert "ended before its first checkpoint" in capsys.readouterr().out
    save_checkpoint(tmp_path, {"a": 1})
    say_how_to_go_on(tmp_path)
    assert f"go on with --resume {tmp_path}" in capsys.readouterr().out


def test_a_resumed_run_goes_on_in_the_same_wandb_run(tmp_path):
    first = wandb_id(tmp_path)
    assert re.fullmatch("[0-9a-f]{8}", first) and wandb_id(tmp_path) == first
    assert wandb_id(tmp_path / "..") != first


def test_a_model_is_of_the_commit_that_the_run_began_with(tmp_path):
    """An edit while a run goes on does not make its models somebody's unknown code."""

    def git(*words):
        identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    script = tmp_path / "script.py"
    script.write_text("x = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    make_run_folder(Settings(run_dir=str(tmp_path / "run")), str(script))
    script.write_text("x = 2\n")
    assert re.fullmatch("[0-9a-f]{12}", commit_of(str(script)))
    commit_of.cache_clear()
    assert commit_of(str(script)).endswith("-dirty"), "a run that begins now is"


@dataclasses.dataclass
class Settings:
    exp_name: str = "x"
    env_id: str = "y"
    seed: int = 1
    run_dir: str = ""
    resume: str = ""
