"""The arena: its mathematics on games with known answers, its memory, and a real small arena of scripted players."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.tools import arena, evaluate, models

ROOT = Path(__file__).parents[1]
ROCK_PAPER_SCISSORS = np.array([[0.5, 0.0, 1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.5]])


def counts_of(payoffs, games):
    """Results that show exactly these payoffs: (n, n, 3) won, tied, lost"""
    won = np.rint(np.asarray(payoffs) * games).astype(int)
    return np.stack([won, np.zeros_like(won), games - won], -1)


# ----------------------------------------------------------------------------------------------------------- pure maths


def test_nash_of_rock_paper_scissors():
    assert arena.nash(ROCK_PAPER_SCISSORS) == pytest.approx([1 / 3] * 3, abs=1e-6)
    # A rock that beats scissors by less is worth less than paper's prey: solve the 3×3 by hand, x ∝ (a_ps, a_rs, a_rp).
    biased = ROCK_PAPER_SCISSORS.copy()
    biased[0, 2], biased[2, 0] = 0.75, 0.25
    assert arena.nash(biased) == pytest.approx([0.4, 0.2, 0.4], abs=1e-6)


def test_the_dominated_get_nothing_and_copies_share():
    transitive = np.array([[0.5, 0.6, 0.9], [0.4, 0.5, 0.8], [0.1, 0.2, 0.5]])
    assert arena.nash(transitive) == pytest.approx([1, 0, 0], abs=1e-6)
    even = np.full((3, 3), 0.5)
    assert arena.nash(even) == pytest.approx([1 / 3] * 3, abs=1e-6), "of all the equilibria the one of largest entropy"
    # Two rocks: the linear programme may give all of rock's share to one of them, the largest entropy halves it.
    two_rocks = ROCK_PAPER_SCISSORS[np.ix_([0, 0, 1, 2], [0, 0, 1, 2])]
    assert arena.nash(two_rocks) == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3], abs=1e-4)
    for payoffs in (transitive, even, two_rocks):
        vertex = arena.nash_vertex(payoffs)
        assert (vertex @ payoffs).min() == pytest.approx(0.5, abs=1e-8) and vertex.sum() == pytest.approx(1)


def test_nash_of_many_random_games_is_an_equilibrium():
    rng = np.random.default_rng(7)
    for n in (2, 5, 12, 20):
        noise = rng.uniform(-0.5, 0.5, (n, n))
        payoffs = 0.5 + (noise - noise.T) / 2
        mixture = arena.nash(payoffs)
        assert mixture.min() >= 0 and mixture.sum() == pytest.approx(1)
        assert (mixture @ payoffs).min() > 0.5 - 1e-5, "no pure strategy beats it"


def test_elo_of_simulated_games_is_recovered():
    truth = np.array([1300.0, 1450.0, 1500.0, 1600.0, 1650.0])
    rng, games, inside = np.random.default_rng(3), 400, []
    for _ in range(40):
        rate = 1 / (1 + 10 ** ((truth[None, :] - truth[:, None]) / 400))
        won = np.triu(rng.binomial(games, rate), 1)
        counts = np.stack([won, np.zeros_like(won), np.triu(games - won, 1)], -1)
        wins = counts[:, :, 0] + counts[:, :, 2].T
        ratings, covariance = arena.bradley_terry(wins, wins + wins.T)
        assert ratings.mean() == pytest.approx(0, abs=1e-6)
        elo, spread = arena.anchored(ratings, covariance, anchor=2)
        assert elo[2] == 1500 and spread[2] < 1e-6
        inside.append(np.abs(elo - truth)[[0, 1, 3, 4]] < spread[[0, 1, 3, 4]])
        assert np.abs(elo - truth).max() < 4 * spread.max()
    assert 0.88 < np.mean(inside) < 0.99, "160 intervals of 95 %"
    assert 10 < spread.max() < 60


def test_elo_of_somebody_who_won_all():
    counts = counts_of([[0.5, 1.0], [0.0, 0.5]], 100)
    found = arena.analyse(counts)
    # 100.5 of 101 with the added tie
    assert found["elo"][0] - found["elo"][1] == pytest.approx(400 * np.log10(100.5 / 0.5), abs=0.1)


def test_analysis_of_a_cycle_and_a_weak_player():
    payoffs = np.full((4, 4), 0.9)
    payoffs[:3, :3] = ROCK_PAPER_SCISSORS
    payoffs[3] = [0.1, 0.1, 0.1, 0.5]
    found = arena.analyse(counts_of(payoffs, 200))
    assert found["nash"] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=1e-4)
    assert found["nash_high"][3] == 0 and (found["nash_low"][:3] > 0.2).all()
    assert list(found["response"][:3]) == [1, 2, 0], "paper beats rock, scissors paper, rock scissors"
    assert np.ptp(found["elo"][:3]) < 1 and found["elo"][3] < found["elo"][0] - 200
    assert found["mu"][3] < found["mu"][:3].min() - 5 and (found["sigma"] > 0).all()
    assert found["nash_score"] == pytest.approx([0.5, 0.5, 0.5, 0.1], abs=1e-3)
    assert found["low"][0, 3] < 0.9 < found["high"][0, 3] and found["high"][0, 3] - found["low"][0, 3] < 0.1
    assert found["payoffs"] + found["payoffs"].T == pytest.approx(np.ones((4, 4)))


# --------------------------------------------------------------------------------------------------------------- memory


class Table:
    """A game without rules: results from a table, and a list of the pairings that were really played."""

    def __init__(self):
        self.played, self.stop_after = [], 99

    def matches(self, player, opponent, episodes, args, video, progress):
        if len(self.played) == self.stop_after:
            raise KeyboardInterrupt
        self.played.append((player, opponent))
        progress(episodes)
        names = ("rock", "paper", "scissors")
        won = round(episodes * ROCK_PAPER_SCISSORS[names.index(player), names.index(opponent)])
        return np.repeat([1.0, 0.0], [won, episodes - won])


@pytest.fixture
def table(monkeypatch):
    table = Table()
    monkeypatch.setitem(evaluate.GAMES, "table", evaluate.Game(lambda: ("rock", "paper", "scissors"), table.matches))
    return table


def run_arena(folder, *words):
    return arena.main(["rock", "--game", "table", "--episodes", "20", "--jobs", "0", "--output", str(folder), *words])


def test_a_stopped_arena_plays_only_what_is_missing(table, tmp_path, capsys):
    table.stop_after = 2
    with pytest.raises(SystemExit, match="2 of 3 pairings are finished"):
        run_arena(tmp_path)
    assert "2 of 3 pairings" in (tmp_path / "arena.md").read_text()
    table.stop_after = 99
    rows = run_arena(tmp_path)
    assert table.played == [("rock", "paper"), ("rock", "scissors"), ("paper", "scissors")]
    assert [row["nash_mass"] for row in rows] == pytest.approx([1 / 3] * 3, abs=1e-3)
    figures = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert figures["pairings"] == 3 and figures["elo/rock"] == pytest.approx(1500, abs=1)
    run_arena(tmp_path)
    assert len(table.played) == 3, "nothing is missing any more"
    run_arena(tmp_path, "--seed", "2")
    assert len(table.played) == 6, "other settings are other games"
    run_arena(tmp_path)
    assert len(table.played) == 6, "and the old ones are not forgotten"


def test_stopped_before_anything(table, tmp_path):
    table.stop_after = 0
    with pytest.raises(SystemExit, match="before a pairing was finished"):
        run_arena(tmp_path)


def test_a_changed_player_plays_again(table, tmp_path, monkeypatch, capsys):
    run_arena(tmp_path)
    monkeypatch.setattr(
        arena, "identities", lambda players: {name: f"{name} {'new' * (name == 'paper')}" for name in players}
    )
    run_arena(tmp_path)
    assert len(table.played) == 6, "first time under these identities"
    capsys.readouterr()
    monkeypatch.setattr(
        arena, "identities", lambda players: {name: f"{name} {'newer' * (name == 'paper')}" for name in players}
    )
    run_arena(tmp_path)
    assert table.played[6:] == [("rock", "paper"), ("paper", "scissors")]
    assert "paper has changed since it last played here" in capsys.readouterr().err


def test_identities_and_the_hash_of_a_game(tmp_path, monkeypatch):
    path = tmp_path / "model.zip"
    path.write_bytes(b"weights")
    model = models.Model("mine", path, {}, None, None)
    before = arena.identities({"mine": model, "nh": "nh"})
    path.write_bytes(b"Weights")
    after = arena.identities({"mine": model, "nh": "nh"})
    assert before["nh"] == after["nh"] and before["mine"] != after["mine"]

    shim = tmp_path / "some_shim"
    shim.mkdir()
    (shim / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(models.SHIMS, "some", "some_shim")
    first = arena.game_hash("some")
    (shim / "rules.yaml").write_text("damage: 3\n")
    assert arena.game_hash("some") != first


def test_what_is_wrong_is_said(table, tmp_path):
    for words, sentence in (
        (["rock", "--game", "table", "--no-baselines"], "at least two players"),
        (["rock", "--game", "table", "--anchor", "well"], "--anchor should name one of"),
        (["rock", "--game", "table", "--jobs", "-1"], "--jobs should be 0 or more"),
        (["rock", "--game", "table", "--output", __file__], "is a file"),
    ):
        with pytest.raises(BadInput, match=sentence):
            arena.main(words)
    run_arena(tmp_path)
    (tmp_path / "arena.json").write_text((tmp_path / "arena.json").read_text().replace('"table"', '"chess"'))
    with pytest.raises(BadInput, match="is an arena of chess"):
        run_arena(tmp_path)
    for damage in ("{", "[]", '{"game": "table", "players": {}, "pairings": [{"key": "x"}]}'):
        (tmp_path / "arena.json").write_text(damage)
        with pytest.raises(BadInput, match="is not an arena's results"):
            run_arena(tmp_path)


# ----------------------------------------------------------------------------------------------------------- real games


def start(*words, **settings):
    return subprocess.Popen(
        [sys.executable, ROOT / "cleanrl_games/tools/arena.py", *map(str, words)],
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def test_a_real_arena_of_scripted_players_in_processes(tmp_path):
    """Two processes and two games apart: the second time from the results in the folder, whose pictures it makes
    anew."""
    words = (
        "nh",
        "random",
        "--no-baselines",
        "--game",
        "osrs",
        "--episodes",
        "50",
        "--anchor",
        "nh",
        "--output",
        tmp_path / "arena",
    )
    done = start(*words, stdout=subprocess.PIPE)
    out, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    figures = json.loads(out.strip().splitlines()[-1])
    assert figures["elo/nh"] == 1500 and figures["elo/random"] < 1300 and figures["nash_mass/nh"] == 1.0
    (pairing,) = json.loads((tmp_path / "arena/arena.json").read_text())["pairings"]
    assert pairing["won"] + pairing["tied"] + pairing["lost"] == 50 and pairing["won"] > 38
    with open(tmp_path / "arena/pairings.csv") as file:
        rows = {row["player"]: row for row in csv.DictReader(file)}
    assert float(rows["nh"]["score"]) == pytest.approx((pairing["won"] + pairing["tied"] / 2) / 50)
    assert float(rows["nh"]["score"]) + float(rows["random"]["score"]) == pytest.approx(1)
    assert (tmp_path / "arena/heatmap.png").read_bytes()[:4] == b"\x89PNG"
    assert re.search(r"\| 2 \| random \| .* \| nh: (9\d|100)\.\d% \|", (tmp_path / "arena/arena.md").read_text())
    assert not list((tmp_path / "arena").glob(".*")), "no temporary file is left"
    played = shutil.copy(tmp_path / "arena/arena.json", tmp_path / "before.json")
    arena.main([str(word) for word in words])
    assert json.loads(Path(played).read_text()) == json.loads((tmp_path / "arena/arena.json").read_text())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left(tmp_path, how):
    """A pairing far too long to finish: Ctrl-C ends the arena and the processes that play for it; so does the arena's
    death."""
    words = (
        "nh",
        "random",
        "--no-baselines",
        "--game",
        "osrs",
        "--episodes",
        10**7,
        "--output",
        tmp_path,
        "--jobs",
        "1",
    )
    process = start(*words, stdout=subprocess.DEVNULL, start_new_session=True)
    children, deadline = [], time.time() + 120
    try:
        assert "0 of 1 pairings are known" in process.stderr.readline()
        while len(children) < 2 and time.time() < deadline:  # the one that plays, and multiprocessing's own tracker
            children = psutil.Process(process.pid).children()
            time.sleep(0.2)
        assert len(children) == 2, "no process came up"
        os.kill(process.pid, how)
        err = process.stderr.read()
        assert process.wait(timeout=60) == (1 if how == signal.SIGINT else -how)
        assert ("Stopped before a pairing was finished" in err) == (how == signal.SIGINT) and "Traceback" not in err
        assert psutil.wait_procs(children, timeout=60)[1] == [], "processes are left"
    finally:
        for left in (process, *(child for child in children if child.is_running())):
            left.kill()
