"""runtime/settings: flags and files are held to the same types, ranges and choices, and every refusal names what it
refuses."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import yaml

from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.settings import Count, Fraction, NonNegative, Positive, Size, parse_args

ALIASES = {
    "lr": "learning_rate",
    "players_per_worker": "num_envs",
    "use_mixed_precision": {True: {"amp": "auto"}, False: {"amp": "off"}},
}
PRESETS = {"small": {"num_envs": 2}, "large": {"num_envs": 64}}


@dataclasses.dataclass
class Args:
    """An experiment's settings."""

    exp_name: str = "test"
    """the name"""
    preset: Literal["small", "large"] = "small"
    """named values"""
    config: str = ""
    """a YAML file"""
    resume: str = ""
    """a run"""
    num_workers: Count = 4
    """actor processes"""
    num_envs: Size = 8
    """environments"""
    learning_rate: Positive = 3e-4
    """step size"""
    alpha: NonNegative = 0.2
    """magnet"""
    threshold: Fraction = 0.6
    """share of wins"""
    amp: Literal["auto", "off"] = "auto"
    """mixed precision"""
    track: bool = False
    """log elsewhere"""
    teams: tuple[str, ...] = ("shipped",)
    """where teams come from"""


def parse(*words):
    return parse_args(Args, PRESETS, [str(word) for word in words], ALIASES)


def from_file(tmp_path, text):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return parse("--config", path)


def test_numbers_as_people_write_them(tmp_path):
    assert from_file(tmp_path, "learning_rate: 3e-4").learning_rate == 3e-4, "YAML reads 3e-4 as text"
    assert from_file(tmp_path, "learning_rate: 1").learning_rate == 1.0
    assert from_file(tmp_path, "teams: [shipped, generated]").teams == ("shipped", "generated")
    assert from_file(tmp_path, "teams: shipped").teams == ("shipped",)
    assert parse("--learning-rate=1e-3", "--num-envs", 3).learning_rate == 1e-3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("amp: of", "amp should be one of auto, off .did you mean 'off'"),
        ("preset: smal", "preset should be one of small, large .did you mean 'small'"),
        ("num_workers: -1", "num_workers should be 0 or more, found -1"),
        ("num_envs: 0", "num_envs should be 1 or more, found 0"),
        ("learning_rate: 0", "learning_rate should be more than 0"),
        ("learning_rate: fast", "learning_rate should be a number, found 'fast'"),
        ("learning_rate: .nan", "learning_rate should be a finite number"),
        ("learning_rate: .inf", "learning_rate should be a finite number"),
        ("alpha: -1", "alpha should be 0 or more"),
        ("threshold: 1.5", "threshold should be 0 to 1"),
        ("num_envs: 2.5", "num_envs should be a whole number"),
        ("num_envs: true", "num_envs should be a whole number"),
        ("track: 1", "track should be true or false"),
        ("teams: 7", "teams should be a list of str"),
        ("use_mixed_precision: [on]", "use_mixed_precision should be one of true, false"),
        ("learning_rate: 2026-99-99", "Cannot read the settings in"),
        ("exp_name: 7", "exp_name should be a text"),
        ("use_mixed_precision: 3", "use_mixed_precision should be one of true, false"),
        ("lr: -1", "lr should be more than 0"),
        (
            "lerning_rate: 1\nnum_env: 2\nzzz: 3",
            "'lerning_rate' .did you mean 'learning_rate'.*'num_env' .did you mean 'num_envs'.*'zzz'",
        ),
        ("- a", "should be a YAML mapping of settings, found list"),
        ("a: [", "Cannot read the settings in"),
    ],
)
def test_a_file_is_refused_in_a_sentence(tmp_path, text, said):
    with pytest.raises(BadInput, match=said) as caught:
        from_file(tmp_path, text)
    assert "settings.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num-workers", "-1"], "--num-workers should be 0 or more, found -1"),
        (["--num-envs=0"], "--num-envs should be 1 or more"),
        (["--learning-rate", "nan"], "--learning-rate should be a finite number"),
        (["--threshold", "2"], "--threshold should be 0 to 1"),
        (["--alpha", "-0.5"], "--alpha should be 0 or more"),
        (["--resume", "runs/nope"], "--resume runs/nope: there is no such file or folder"),
        (["--config", "nowhere.yaml"], "Cannot read the settings in nowhere.yaml"),
    ],
)
def test_flags_are_held_to_the_same(words, said):
    with pytest.raises(BadInput, match=said):
        parse(*words)


def test_names_of_similar_trainers(tmp_path):
    args = from_file(tmp_path, "lr: 1e-3\nplayers_per_worker: 5\nuse_mixed_precision: false")
    assert (args.learning_rate, args.num_envs, args.amp) == (1e-3, 5, "off")
    args = parse("--lr", "0.1", "--players-per-worker=6", "--no-use-mixed-precision")
    assert (args.learning_rate, args.num_envs, args.amp) == (0.1, 6, "off")
    assert parse("--use-mixed-precision").amp == "auto"


def test_what_is_said_more_specifically_wins(tmp_path):
    assert parse("--preset", "large").num_envs == 64
    assert from_file(tmp_path, "preset: large").num_envs == 64
    assert from_file(tmp_path, "preset: large\nnum_envs: 3").num_envs == 3
    assert parse("--config", tmp_path / "settings.yaml", "--num-envs", 9).num_envs == 9


def test_print_config_is_a_file_that_config_reads(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        parse("--print-config", "--lr", "0.01", "--teams", "a", "b")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert set(yaml.safe_load(text)) == {field.name for field in dataclasses.fields(Args)} - {"config", "resume"}
    args = from_file(tmp_path, text)
    assert args.learning_rate == 0.01 and args.teams == ("a", "b")


def test_help_is_in_groups_and_names_presets_and_aliases():
    for encoding, line in (("utf-8", "├─ self-play "), ("ascii", " --- self-play")):
        done = subprocess.run(
            [sys.executable, "cleanrl_games/ppo_osrs_selfplay.py", "--help"],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": f"{encoding}:replace"},
            stdout=subprocess.PIPE,
            encoding=encoding,
            check=True,
        )
        lines = done.stdout.splitlines()
        (at,) = [number for number, text in enumerate(lines) if text.startswith(line)]
        assert lines[at + 1][1:].startswith(" --self-play "), "the group's first setting follows"
        assert sum(text.startswith(line.split("self")[0]) for text in lines) >= 6
    words = " ".join(done.stdout.split())
    assert "--preset pure: --self-play pure" in words and "opponent = targets" in words


def test_help_shows_ranges(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "0 or more" in text and "more than 0" in text and "0 to 1" in text and "--print-config" in text
