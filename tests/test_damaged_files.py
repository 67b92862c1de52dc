"""Damaged files of a run and of its data: whatever is wrong with them is said in a sentence that names the file,
nothing is lost, and nothing that is read differs from what was written.

A flipped bit may lie where it means nothing (the padding of a zip): then what is read must be what was written."""

import functools
import json
import random
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cleanrl_games import ppo_osrs_selfplay as osrs
from cleanrl_games.envs.pokemon import episodes
from cleanrl_games.runtime import exploiter_processes
from cleanrl_games.runtime.checkpoints import load_checkpoint, save_checkpoint
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.files import settings_text
from cleanrl_games.runtime.settings import parse_args
from cleanrl_games.tools import models as tool_models
from tests.test_pokemon_episodes import good, saved

STATE = {"agent": {"weight": torch.arange(600.0)}, "progress": {"update": 3}, "contract_hash": "here"}
SMALL = {"hidden_size": 8, "head_size": 4}


def make_checkpoint(folder):
    save_checkpoint(folder, STATE | {"progress": {"update": 2}})
    save_checkpoint(folder, STATE)
    return folder / "checkpoint.pt", functools.partial(load_checkpoint, folder, "here")


def make_model(folder):
    torch.manual_seed(1)
    args = osrs.Args(**SMALL)
    osrs.save_model(folder / "model.zip", osrs.make_agent(vars(args)), args)
    return folder / "model.zip", lambda: osrs.load_model(folder)[0].state_dict()


def make_model_of_a_tool(folder):
    path, _ = make_model(folder)
    return path, lambda: tool_models.load(path).agent.state_dict()


def make_episode(folder):
    path = folder / "episode_0001.npz"
    saved(path, good())

    def read():
        episode = episodes.read_episode(path)
        frames = [np.array(part) for part in episodes.read_frames(path)]
        return {
            "actions": episode.actions,
            "rewards": episode.rewards,
            "infos": episode.infos,
            "frames": np.concatenate(frames),
        }

    return path, read


BINARY = {
    "checkpoint": make_checkpoint,
    "model": make_model,
    "model, by a tool": make_model_of_a_tool,
    "episode": make_episode,
}


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return one == other


def refused(read, path, content):
    """Reads a damaged file → whether it was refused, in a sentence with its name; it is still there as it was"""
    path.write_bytes(content)
    try:
        read()
    except (BadInput, episodes.EpisodeError) as error:
        assert path.name in str(error), error
        assert "Traceback" not in str(error)
        return True
    finally:
        assert path.read_bytes() == content
    return False


@pytest.mark.parametrize("make", BINARY.values(), ids=BINARY)
def test_truncated_empty_and_foreign(make, tmp_path):
    path, read = make(tmp_path)
    content = path.read_bytes()
    damages = [content[:length] for length in (0, 1, 30, len(content) // 2, len(content) - 1)]
    damages += [b"<html>not found</html>", b"\x80\x04}.", content[: len(content) // 2] + content[len(content) // 3 :]]
    for damage in damages:
        assert refused(read, path, damage), damage[:40]
    path.write_bytes(content)
    read()


@pytest.mark.parametrize("make", BINARY.values(), ids=BINARY)
def test_a_flipped_bit_is_refused_or_harmless(make, tmp_path):
    path, read = make(tmp_path)
    content, written, dice, count = path.read_bytes(), read(), random.Random(1), 0
    for _ in range(50):
        damage = bytearray(content)
        damage[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        if refused(read, path, bytes(damage)):
            count += 1
        else:
            assert same(read(), written), "a damaged file was read as something else"
    assert count >= 25, "hardly anything was noticed"


def test_the_checkpoint_before_is_offered_and_whole(tmp_path):
    path, read = make_checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadInput, match=r"go on with --resume .*previous_checkpoint\.pt"):
        read()
    assert load_checkpoint(tmp_path / "previous_checkpoint.pt", "here")["progress"] == {"update": 2}
    path.unlink()
    with pytest.raises(BadInput, match=r"no checkpoint\.pt in it.*previous_checkpoint\.pt"):
        read()


def test_of_another_contract_network_and_script(tmp_path):
    make_checkpoint(tmp_path)
    with pytest.raises(BadInput, match="sees and does other things"):
        load_checkpoint(tmp_path, "elsewhere")
    save_checkpoint(tmp_path, STATE | {"network_hash": "old"})
    with pytest.raises(BadInput, match="is of another network"):
        load_checkpoint(tmp_path, "here", "new")
    save_checkpoint(tmp_path, [1, 2])
    with pytest.raises(BadInput, match="not a run's state"):
        load_checkpoint(tmp_path, "here")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"contract_hash": "0" * 16}, "was trained on contract 0000000000000000"),
        ({"game": "chess"}, "is a model of 'chess'"),
        ({"network_hash": "0" * 16}, "no script in cleanrl_games/ has that network"),
        ({"args": []}, "metadata.json should have 'args' as a dict"),
    ],
)
def test_a_model_of_another_game_or_contract(change, sentence, tmp_path):
    path, _ = make_model(tmp_path)
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    parts["metadata.json"] = json.dumps(json.loads(parts["metadata.json"]) | change).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)
    with pytest.raises(BadInput, match=sentence):
        tool_models.load(tmp_path)


def test_a_model_of_other_sizes_cannot_join(tmp_path):
    make_model(tmp_path)
    with pytest.raises(BadInput, match="--hidden-size 8 --head-size 4"):
        osrs.load_model(tmp_path, osrs.Args())


def test_a_registry_that_is_damaged(tmp_path):
    entry = {"name": "1", "model": "exploiters/1/run/model.zip", "in_pool": True, "win_rate": 0.75}
    path = tmp_path / "exploiter_registry.json"
    path.write_text(json.dumps({"exploiters": [entry]}))
    assert exploiter_processes.read_registry(tmp_path) == [entry]
    content, read, dice = (
        path.read_bytes(),
        functools.partial(exploiter_processes.read_registry, tmp_path),
        random.Random(1),
    )
    for length in (0, 1, len(content) // 2, len(content) - 1):
        assert refused(read, path, content[:length])
    for change in ({"win_rate": 7}, {"win_rate": "often"}, {"in_pool": "yes"}, {"model": None}):
        assert refused(read, path, json.dumps({"exploiters": [entry | change]}).encode())
    for text in ("[]", '{"exploiters": 3}', '{"exploiters": [1]}', '{"exploiters": [{}]}'):
        assert refused(read, path, text.encode())
    # it is text for people and has no checksum: what is read has at least the right kinds of values
    for _ in range(50):
        damage = bytearray(content)
        damage[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        if not refused(read, path, bytes(damage)):
            assert [set(map(type, found.values())) for found in read()] == [{str, bool, float}]


def test_settings_that_are_damaged(tmp_path):
    path = tmp_path / "config.yaml"
    args = osrs.Args()
    path.write_text(settings_text(args))
    content, dice, kinds = (
        path.read_bytes(),
        random.Random(1),
        {name: type(value) for name, value in vars(args).items()},
    )

    def read():
        return parse_args(osrs.Args, osrs.PRESETS, ["--resume", str(tmp_path)])

    assert read() == osrs.Args(resume=str(tmp_path))
    for damage in (
        b"\xff\xfe\x00",
        b"- a\n- b\n",
        b"a: [",
        content.replace(b"num_envs", b"num_evns"),
        content.replace(b"seed: 1", b"seed: x"),
    ):
        assert refused(read, path, damage), damage[:20]
    for _ in range(50):
        damage = bytearray(content)
        damage[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        if not refused(read, path, bytes(damage)):
            assert {name: type(value) for name, value in vars(read()).items()} == kinds


def test_demonstrations_that_are_damaged(tmp_path):
    """Of two decisions, written as the collector writes them."""
    from cleanrl_games.envs.vgc import demonstrations

    assert issubclass(demonstrations.DemonstrationError, ValueError)
    with pytest.raises(demonstrations.DemonstrationError, match=r"has no index\.json"):
        demonstrations.Demonstrations([tmp_path], "gen9vgc2023regc")
    for text in ("", "[]", "{", '{"version": 0}', '{"shards": 3}'):
        Path(tmp_path, "index.json").write_text(text)
        with pytest.raises(demonstrations.DemonstrationError, match=r"index\.json"):
            demonstrations.Demonstrations([tmp_path], "gen9vgc2023regc")


def test_a_finished_exploiter_with_a_damaged_log_is_only_spoken_of(tmp_path, capsys):
    place = tmp_path / "exploiters" / "1"
    (place / "run").mkdir(parents=True)
    (place / "run" / "metrics.jsonl").write_text('{"global_step": 3}\n')
    job = SimpleNamespace(place=place, process=SimpleNamespace(returncode=0), update=1)
    exploiter_processes.finish(tmp_path, job, 0.6)
    assert "ended early" in capsys.readouterr().out and not (tmp_path / "exploiter_registry.json").exists()
