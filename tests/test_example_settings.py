"""Settings files: the three that ship, and one as users of a similar trainer would bring it along."""

import importlib
from pathlib import Path

import pytest

from cleanrl_games import ppo_vgc_mdbo, rnad_vgc_portfolio
from cleanrl_games.runtime.settings import parse_args

CONFIGS = sorted((Path(__file__).resolve().parents[1] / "cleanrl_games" / "configs").glob("*.yaml"))
THEIRS = """
checkpoint_path: "data/models/clone.zip"
team_pool_path: "data/teams/regulation_c"
learning_rate: 0.0001
num_workers: 4
players_per_worker: 6
use_mixed_precision: true
checkpoint_interval: 1000
save_dir: "data/models/mine"
use_wandb: true
wandb_project: "mine"
wandb_run_name: "first"
"""
RNAD = """
rnad_alpha: 0.01
train_batch_size: 48
use_portfolio_regularization: true
portfolio_update_strategy: "diverse"
max_portfolio_size: 5
portfolio_add_interval: 5000
ref_update_interval: 1000
train_exploiters: true
exploiter_check_interval: 5000
exploiter_train_steps: 50000
exploiter_win_threshold: 0.6
max_updates: 100000
gradient_clip: 0.5
"""


def parse(script, path, *words):
    return parse_args(
        script.Args, getattr(script, "PRESETS", {}), ["--config", str(path), *words], getattr(script, "ALIASES", {})
    )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_file_is_accepted(path):
    args = parse(rnad_vgc_portfolio, path)
    rnad_vgc_portfolio.check_args(args)
    assert args != rnad_vgc_portfolio.Args(), "it says something"
    command = path.read_text().splitlines()[0]
    assert f"--config cleanrl_games/configs/{path.name}" in command


def test_there_are_three():
    assert [path.stem for path in CONFIGS] == ["rnad_constrained", "rnad_fast_test", "rnad_production"]


@pytest.mark.parametrize(("script", "text"), [(rnad_vgc_portfolio, THEIRS + RNAD), (ppo_vgc_mdbo, THEIRS)])
def test_names_of_a_similar_trainer(script, text, tmp_path):
    path = tmp_path / "production.yaml"
    path.write_text(text)
    args = parse(script, path)
    assert (args.bc_model, args.teams, args.run_dir) == (
        "data/models/clone.zip",
        ("data/teams/regulation_c",),
        "data/models/mine",
    )
    assert (args.num_battles, args.amp, args.checkpoint_frequency) == (6, "auto", 1000)
    assert (args.track, args.wandb_project_name, args.wandb_run_name) == (True, "mine", "first")
    if script is rnad_vgc_portfolio:
        assert (args.alpha, args.magnet, args.portfolio_strategy, args.max_portfolio_size) == (
            0.01,
            "portfolio",
            "diverse",
            5,
        )
        assert (args.train_exploiters, args.max_grad_norm, args.max_updates) == (True, 0.5, 100000)
        path.write_text("use_portfolio_regularization: false\nuse_mixed_precision: false\nuse_wandb: false")
        args = parse(script, path)
        assert (args.magnet, args.amp, args.track) == ("ref", "off", False)


@pytest.mark.parametrize("name", ["bc_vgc_mdbo", "ppo_vgc_mdbo", "rnad_vgc_portfolio", "bc_pokemon_impala"])
def test_print_config_is_complete(name, tmp_path, capsys):
    script = importlib.import_module(f"cleanrl_games.{name}")
    with pytest.raises(SystemExit) as ended:
        parse_args(
            script.Args,
            getattr(script, "PRESETS", {}),
            ["--print-config", "--seed", "7"],
            getattr(script, "ALIASES", {}),
        )
    assert ended.value.code == 0
    path = tmp_path / "all.yaml"
    path.write_text(capsys.readouterr().out)
    assert parse(script, path) == script.Args(seed=7, config=str(path))
