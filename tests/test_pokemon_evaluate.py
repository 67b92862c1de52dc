"""tools/evaluate.py and tools/arena.py on the GBA: who gets farther in the same held-out worlds."""

import json

import pytest
import torch

from cleanrl_games import bc_pokemon_impala as script
from cleanrl_games.tools import arena, evaluate, models

# a second thread costs more than it gives on networks this small, the more so on a busy machine
torch.set_num_threads(1)
SMALL = {"hidden_dim": 16, "max_steps": 60}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    args = script.Args(**SMALL)
    path = tmp_path_factory.mktemp("run") / "model.zip"
    script.save_model(path, script.make_agent(vars(args)).state_dict(), args)
    return path


def matches(player, opponent, episodes, save="", **changes):
    args = evaluate.Args(players=(), **changes)
    done = []
    scores = evaluate.pokemon_matches(player, opponent, episodes, args, save, done.append)
    assert done == list(range(1, episodes + 1))
    return scores.tolist()


def test_who_gets_farther_has_won(model, tmp_path, capsys):
    player = models.load(model, "pokemon")
    assert matches("expert", player, 2) == [1.0, 1.0] and matches(
        player, "expert", 2, save=str(tmp_path / "a.gif")
    ) == [0.0, 0.0]
    assert "expert: finished 0 of 2 (0.0%)" in capsys.readouterr().out, "sixty steps are too few even for the expert"
    assert (tmp_path / "a.gif").read_bytes().startswith(b"GIF8")
    with pytest.raises(ValueError, match=r"saved as a \.gif"):
        matches("expert", "random", 1, save="a.html")


def test_two_that_finish_are_told_apart_by_steps(monkeypatch):
    results = iter([(True, 13, 200, 0), (True, 13, 240, 0), (False, 9, 600, 0), (False, 9, 600, 0)])
    monkeypatch.setattr("cleanrl_games.envs.pokemon.baselines.play", lambda *_: next(results))
    assert matches("expert", "walker", 2) == [1.0, 0.5]


def test_the_tool_and_the_arena(model, tmp_path, capsys):
    evaluate.main(
        [str(model), "--against", "expert", "masher", "--episodes", "1", "--json", str(tmp_path / "results.json")]
    )
    results = json.loads((tmp_path / "results.json").read_text())
    assert {row["opponent"]: row["game"] for row in results["results"]} == {"expert": "pokemon", "masher": "pokemon"}
    arena.main([str(model), "expert", "random", "--episodes", "1", "--output", str(tmp_path / "arena"), "--jobs", "1"])
    assert "expert" in (tmp_path / "arena" / "arena.md").read_text()


def test_a_model_of_another_cartridge_is_refused(model, monkeypatch):
    player = models.load(model, "pokemon")
    monkeypatch.setitem(player.metadata["args"], "rom_path", "emerald.gba")
    with pytest.raises(ValueError, match="a cartridge of its own"):
        matches(player, "expert", 1)
