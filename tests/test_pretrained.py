"""The models to try in runs/pretrained: each fits the code as it is now, and every tool knows it. Where a network or a
game's contract has changed, its test here fails, and the model is to be trained again with the command in its
about.yaml."""

import importlib
import json
import re
import shlex
import shutil
import subprocess
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.files import settings_text
from cleanrl_games.runtime.settings import parse_args, read_settings
from cleanrl_games.tools import arena, curves, evaluate, models, publish, watch

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests/data/benchmark/metrics.jsonl"
SCRIPTS = sorted(yaml.safe_load((ROOT / "cleanrl_games/tools/benchmark.yaml").read_text())["smoke"])
PRETRAINED = sorted(path.parent for path in publish.PRETRAINED.glob("*/model.zip"))
OPPONENT = {"osrs": "nh", "vgc": "random", "rocketleague": "rule", "pokemon": "random"}
MAX_BYTES_IN_ALL = 24 << 20


def check(folder, tmp_path):
    """Everything that is promised of such a folder"""
    assert sorted(path.name for path in folder.iterdir()) == sorted(publish.FILES)
    about = yaml.safe_load((folder / "about.yaml").read_text())
    _, metadata = models.read_metadata(folder)
    for name in ("game", "script", "commit", "network_hash", "contract_hash"):
        assert about[name] == metadata[name], name
    text = (folder / "config.yaml").read_text() + json.dumps(metadata["args"])
    assert "/root/" not in text and "/home/" not in text and "/tmp/" not in text, "somebody's own folders"

    # the command and the settings are the present script's
    last = [part.strip() for part in about["command"].split("&&")][-1]
    python, script, *flags = shlex.split(last)
    assert python == "python" and script == f"cleanrl_games/{about['script']}" and (ROOT / script).is_file()
    module = importlib.import_module(f"cleanrl_games.{Path(script).stem}")
    presets, aliases = getattr(module, "PRESETS", {}), getattr(module, "ALIASES", None)
    given = vars(parse_args(module.Args, presets, flags, aliases=aliases))
    settings = read_settings(folder / "config.yaml")
    for name in ("seed", "max_minutes", "total_timesteps"):
        assert settings.get(name) == given.get(name), (
            f"{name} is {settings[name]} in config.yaml, {given[name]} in about"
        )

    # the metrics are a run's, and the results the last of them
    history = curves.read_history(folder)
    assert (folder / "metrics.jsonl").stat().st_size < 400_000
    figures = {name: value for row in history for name, value in row.items()}
    assert about["results"] and all(abs(figures[name] - value) < 1e-3 for name, value in about["results"].items())

    # it plays, in every tool
    model = models.load(folder)
    assert isinstance(model.agent, torch.nn.Module)
    opponent, output = OPPONENT[model.game], tmp_path / "results.json"
    (result,) = evaluate.main([str(folder), "--against", opponent, "--episodes", "4", "--json", str(output)])
    assert result["won"] + result["tied"] + result["lost"] == 4 and result["player"] == folder.name
    watch.main([str(folder), "--save", str(tmp_path / "game.html")])
    assert (tmp_path / "game.html").stat().st_size > 10_000
    return about


@pytest.mark.parametrize("folder", PRETRAINED, ids=lambda folder: folder.name)
def test_a_pretrained_model_fits_the_code(folder, tmp_path):
    about = check(folder, tmp_path)
    assert about["commit"] and "dirty" not in about["commit"], "nobody else can make this run"


def test_which_scripts_have_a_model():
    """Their folders are small, listed on one page, and not ignored by git. What is missing is said aloud."""
    have = {models.read_metadata(folder)[1]["script"] for folder in PRETRAINED}
    missing = [script for script in SCRIPTS if script not in have]
    if missing:
        warnings.warn(
            f"runs/pretrained has no model of {', '.join(missing)}: nothing of them was played.", stacklevel=1
        )
    assert have <= set(SCRIPTS)
    size = sum(path.stat().st_size for path in publish.PRETRAINED.rglob("*") if path.is_file())
    assert size < MAX_BYTES_IN_ALL
    ignored = subprocess.run(["git", "check-ignore", "-q", "runs/pretrained/x/model.zip"], cwd=ROOT)
    assert ignored.returncode == 1
    if PRETRAINED:
        assert (publish.PRETRAINED / "README.md").read_text() == publish.index_page(publish.PRETRAINED)


def readme_row(script, text):
    """(what is measured, command) of the script's row in the README's table"""
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith(f"| [`{script}`]")]
    assert len(rows) == 1, f"the README has {len(rows)} rows of {script}"
    return rows[0][3], rows[0][4].strip(" |").strip("`")


def wrong_figures(about, measured, command):
    """What the README says of a run against what the run says of itself → sentences"""
    wrong = [] if command == about["command"] else [f"its command is {about['command']}, the README says {command}"]
    figures = re.findall(r"(eval/\w+) ([\d.]*\d)", measured)
    minutes = re.findall(r"(\d+) minutes", measured)
    wrong += [] if figures else ["the README names no figure of it (like: eval/nh .97)"]
    wrong += [] if minutes == [f"{about['minutes']:.0f}"] else [f"it took {about['minutes']:.0f} minutes"]
    for name, said in figures:
        digits = len(said.partition(".")[2])
        value = about["results"].get(name)
        if value is None or abs(value - float(said)) > 0.5001 * 10**-digits:
            wrong.append(f"its {name} is {value}, the README says {said}")
    return wrong


@pytest.mark.parametrize("folder", PRETRAINED, ids=lambda folder: folder.name)
def test_the_readme_says_what_the_run_says(folder):
    about = yaml.safe_load((folder / "about.yaml").read_text())
    if folder.name == Path(about["script"]).stem:  # others are further models of a script
        assert not wrong_figures(about, *readme_row(about["script"], (ROOT / "README.md").read_text()))


def test_a_readme_that_says_something_else_is_noticed():
    about = {"command": "python a.py --x 1", "minutes": 20.4, "results": {"eval/nh": 0.9664, "eval/seer": 1.0}}
    text = "| [`a.py`](docs/a.md) | game | how | eval/nh {} and eval/seer 1.0 in {} minutes | `python a.py --x {}` |"
    assert wrong_figures(about, *readme_row("a.py", text.format(".966", 20, 1))) == []
    assert wrong_figures(about, *readme_row("a.py", text.format(".97", 20, 1))) == []
    for row in ((".98", 20, 1), (".966", 30, 1), (".966", 20, 2)):
        assert len(wrong_figures(about, *readme_row("a.py", text.format(*row)))) == 1
    assert len(wrong_figures(about, "not measured yet", about["command"])) == 2


# ------------------------------------------------------------------------------------------------- how they are made


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder: an untrained OSRS network, and metrics that were recorded in a real run"""
    folder = tmp_path_factory.mktemp("somewhere") / "osrs_fast"
    script = importlib.import_module("cleanrl_games.ppo_osrs_selfplay")
    sizes = {"hidden_size": 32, "head_size": 16}
    args = script.Args(**sizes, run_dir=str(folder), max_minutes=20.0, loadouts=("pure", "zerker"), mirror=False)
    torch.manual_seed(1)
    script.save_model(folder / "model.zip", script.make_agent(vars(args)), args)
    (folder / "config.yaml").write_text(settings_text(args))
    shutil.copy(RECORDED, folder / "metrics.jsonl")
    return folder


@pytest.fixture(scope="module")
def published(run, tmp_path_factory):
    output = tmp_path_factory.mktemp("pretrained")
    publish.main([str(run), "--output", str(output)])
    return output / "ppo_osrs_selfplay"


def test_a_run_becomes_a_model_to_try(run, published, tmp_path):
    about = check(published, tmp_path)
    flags = "--loadouts pure zerker --no-mirror --max-minutes 20 --hidden-size 32 --head-size 16"
    assert about["command"] == f"python cleanrl_games/ppo_osrs_selfplay.py {flags}"
    rows, thinned = curves.read_history(run), curves.read_history(published)
    assert about["steps"] == thinned[-1]["global_step"] == rows[-1]["global_step"] and len(thinned) <= len(rows)
    assert about["minutes"] == pytest.approx(rows[-1]["time"] / 60, abs=0.1)
    with zipfile.ZipFile(run / "model.zip") as old, zipfile.ZipFile(published / "model.zip") as new:
        assert old.read("policy.pth") == new.read("policy.pth") and old.read("obs_rms.npz") == new.read("obs_rms.npz")
    assert not list(published.parent.glob(".*"))
    assert f"`{about['command']}`" in (published.parent / "README.md").read_text()
    # again: the folder is replaced
    (published / "old").write_text("")
    publish.main([str(run), "--output", str(published.parent)])
    assert not (published / "old").exists()
    arena.main(
        [str(published), "nh", "--no-baselines", "--episodes", "2", "--jobs", "0", "--output", str(tmp_path / "a")]
    )


@pytest.mark.parametrize("field", ["contract_hash", "network_hash"])
def test_a_model_of_other_code_is_noticed(published, field, tmp_path):
    other = tmp_path / published.name
    shutil.copytree(published, other)
    with zipfile.ZipFile(other / "model.zip") as file:
        parts = {name: file.read(name) for name in file.namelist()}
    parts["metadata.json"] = json.dumps({**json.loads(parts["metadata.json"]), field: "0" * 16})
    with zipfile.ZipFile(other / "model.zip", "w") as file:
        for name, data in parts.items():
            file.writestr(name, data)
    about = yaml.safe_load((other / "about.yaml").read_text())
    (other / "about.yaml").write_text(yaml.safe_dump({**about, field: "0" * 16}))
    with pytest.raises(models.ModelError, match="was trained on contract" if "contract" in field else "no script in"):
        check(other, tmp_path)


def test_results_are_the_figures_with_an_interval():
    scores = {"eval/success": 0.98437, "eval/success_low": 0.92, "eval/success_high": 1.0, "eval/success_n": 64}
    assert publish.results_of({**scores, "eval/length": 252.0, "losses/entropy": 1.0}) == {"eval/success": 0.9844}
    assert publish.results_of({"eval/touch_ratio": 5.0, "charts/SPS": 1.0}) == {"eval/touch_ratio": 5.0}


def test_metrics_are_thinned_and_times_of_a_resumed_run_are_added():
    history = [{"global_step": step, "time": float(step % 6000), "losses/entropy": 1 / 3} for step in range(20_000)]
    history[777]["eval/nh"] = 0.5
    kept = publish.thin(history)
    assert kept[0]["global_step"] == 0 and kept[-1]["global_step"] == 19_999
    assert {"global_step": 777, "time": 777.0, "losses/entropy": 0.333333, "eval/nh": 0.5} in kept
    size = sum(len(json.dumps(row)) + 1 for row in kept)
    assert 0.5 * publish.METRICS_BYTES < size < 1.1 * publish.METRICS_BYTES
    assert publish.minutes_of(history) == pytest.approx((3 * 5999 + 1999) / 60)
    assert publish.thin(history[:3]) == [{**row, "losses/entropy": 0.333333} for row in history[:3]]


def test_a_command_gives_the_settings_it_was_made_of(tmp_path):
    for script in SCRIPTS:
        module = importlib.import_module(f"cleanrl_games.{Path(script).stem}")
        presets = getattr(module, "PRESETS", {})
        for preset in ("", *presets):
            wanted = parse_args(module.Args, presets, ["--preset", preset] if preset else [])
            wanted.seed, wanted.max_minutes, wanted.debug = 7, 2.5, True
            words = shlex.split(publish.command_of(ROOT / "cleanrl_games" / script, vars(wanted)))
            assert parse_args(module.Args, presets, words[2:]) == wanted, words


def test_what_cannot_be_published_is_a_sentence(run, tmp_path):
    output = tmp_path / "out"
    other = tmp_path / "other"
    shutil.copytree(run, other)
    settings = read_settings(other / "config.yaml")
    (other / "config.yaml").write_text(yaml.safe_dump({**settings, "start_model": "/root/secret/model.zip"}))
    with pytest.raises(BadInput, match="say with --command how it is made"):
        publish.main([str(other), "--output", str(output)])
    for words, sentence in (
        ([str(tmp_path / "nowhere")], "There is no model at"),
        ([str(run), "--name", "../x"], "should be the name of a folder"),
    ):
        with pytest.raises(BadInput, match=sentence):
            publish.main([*words, "--output", str(output)])
    (other / "metrics.jsonl").unlink()
    with pytest.raises(BadInput, match=r"metrics\.jsonl cannot be read"):
        publish.main([str(other), "--output", str(output)])
    assert not output.exists()
