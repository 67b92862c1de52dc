"""What a run says while it runs: before there is anything to show, and then line by line."""

import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from cleanrl_games.runtime import jit, logger

ARGS = {"track": False, "tensorboard": False, "exp_name": "ppo", "env_id": "game", "seed": 1}
METRICS = {"charts/SPS": 50.0, "eval/random": 0.5, "eval/random_n": 8, "win_rate/random": 0.25, "losses/entropy": 1.0}


@pytest.mark.parametrize(
    ("workers", "words"), [(0, "plays in this process."), (1, "Starting 1 actor."), (4, "Starting 4 actors.")]
)
def test_the_first_line_says_what_is_going_on(workers, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(jit, "uncompiled", [])
    logger.Logger(SimpleNamespace(**ARGS, num_workers=workers), tmp_path).close()
    said = capsys.readouterr().out
    assert words in said and "first update" in said and "Ctrl-C" in said and "compiled" not in said
    monkeypatch.setattr(jit, "uncompiled", ["envs/game"])
    logger.Logger(SimpleNamespace(**ARGS, num_workers=workers), tmp_path).close()
    assert "compiled first (half a minute, once)" in capsys.readouterr().out
    logger.Logger(SimpleNamespace(**ARGS, num_workers=workers), tmp_path, starting="Learning.").close()
    assert capsys.readouterr().out == "Learning.\n"


def test_lines_and_view_show_full_names(tmp_path, capsys, monkeypatch):
    plain = logger.Logger(SimpleNamespace(**ARGS, num_workers=0), tmp_path)
    plain.write(METRICS, 1200, 0.5)
    line = capsys.readouterr().out.splitlines()[-1]
    assert "1,200 steps  50%" in line and "eval/random 0.5" in line and "win_rate/random 0.25" in line
    assert "random_n" not in line
    console = Console(width=160)
    with console.capture() as shown:
        console.print(plain._view(1200, 0.5))
    plain.close()
    for name in ("charts/SPS", "eval/random", "win_rate/random", "losses/entropy"):
        assert name in shown.get()
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert row["global_step"] == 1200 and row["eval/random_n"] == 8


def test_a_terminal_is_told_at_once(tmp_path, monkeypatch, capsys):
    """The live view is not empty while actors start."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    live = logger.Logger(SimpleNamespace(**ARGS, num_workers=3), tmp_path)
    try:
        assert "Starting 3 actors." in str(live.live.get_renderable())
        live.write(METRICS, 1200, 0.5)
        assert "Starting" not in str(live.live.get_renderable())
    finally:
        live.close()


def test_rules_without_machine_code_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "uncompiled", [])
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "rules.py").write_text("")
    jit.drop_stale_machine_code(tmp_path, ["rules"])
    assert jit.uncompiled == [str(tmp_path)]
    (tmp_path / "__pycache__" / "rules.nbi").write_text("")
    jit.drop_stale_machine_code(tmp_path, ["rules"])
    assert jit.uncompiled == [str(tmp_path)], "compiled after the newest source: it will be used"
