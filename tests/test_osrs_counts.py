"""What --counts counts, against the simulator's own books."""

import numpy as np
import pytest

from cleanrl_games.envs.osrs import Baseline, NHVecEnv
from cleanrl_games.envs.osrs.contract import NUM_HEADS, NUM_LOGITS, NUM_OBS, OBS
from cleanrl_games.envs.osrs.counts import STYLES, Counted
from cleanrl_games.tools import evaluate, models

FIGHTS = 24


@pytest.fixture(scope="module")
def fights():
    """Two scripted players, each fight until its end; beside them the simulator's attacks, damage and freezes, of all
    ticks but the last of each fight"""
    env = NHVecEnv(FIGHTS, seed=3)
    players = [Counted(Baseline(name, 2 * FIGHTS, 4), FIGHTS) for name in ("tank", "nh")]
    actions = np.zeros((2 * FIGHTS, NUM_HEADS), np.int64)
    going_on = np.ones(FIGHTS, bool)
    attacks = np.zeros((FIGHTS, 2, 3))
    total = np.zeros((FIGHTS, 2))
    damage = np.zeros((FIGHTS, 2))
    frozen = np.zeros((FIGHTS, 2))
    ticks = np.zeros(FIGHTS)
    while going_on.any():
        for side, player in enumerate(players):
            rows = 2 * np.flatnonzero(going_on) + side
            player.act(env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS), rows, actions)
        was_frozen = env.obs[:, :, OBS["player_frozen_ticks"]] > 0
        _, _, _, terminated, truncated, _ = env.step(actions.reshape(FIGHTS, 2, NUM_HEADS))
        going_on &= ~(terminated | truncated)
        ticks += going_on
        total += env.fighters["attacked"] * going_on[:, None]
        attacks[going_on, :, :2] = env.fighters["style_count"][going_on, :, :2]  # since the fight began: mage, ranged
        attacks[..., 2] = total - attacks[..., 0] - attacks[..., 1]  # the simulator counts both hits of a dagger
        damage += env.fighters["received"][:, ::-1] / env.loadouts["hitpoints_level"][0] * going_on[:, None]
        frozen += was_frozen * going_on[:, None]
    return players, attacks, damage, frozen, ticks


def test_attacks_damage_and_freezes_are_the_simulators(fights):
    players, attacks, damage, frozen, ticks = fights
    for side, player in enumerate(players):
        rows = 2 * np.arange(FIGHTS) + side
        assert (player.ticks[rows] == ticks).all() and not player.ticks[rows ^ 1].any()
        assert (player.attacks[rows] == attacks[:, side]).all() and (player.attacks.sum(0) > 0).all()
        np.testing.assert_allclose(player.damage[rows], damage[:, side], atol=1e-4)
        assert (player.frozen[rows] == frozen[:, side]).all()
        assert (player.stopped <= player.attacks).all() and 0 < player.stopped.sum() < player.attacks.sum()
    assert players[1].under_frozen.sum() > 0 == players[0].under_frozen.sum(), "only nh steps under its target"
    assert players[0].held.sum() > 0 == players[1].held.sum(), "who then cannot attack"


def test_the_summary_is_of_the_counts(fights):
    player, attacks = fights[0][1], fights[1][:, 1]
    found = player.summary(FIGHTS)
    assert found["attacks"] == pytest.approx(attacks.sum() / FIGHTS)
    shares = [found[f"{style}: share of attacks"] for style in STYLES]
    assert shares == pytest.approx((attacks.sum(0) / attacks.sum()).tolist()) and sum(shares) == pytest.approx(1.0)
    assert found["damage of an attack, in hitpoints of 1"] == pytest.approx(fights[2][:, 1].sum() / attacks.sum())
    assert all(value == 0 for value in Counted(None, 2).summary(2).values() if value < 0.4), "a fight of no tick"


def test_evaluate_prints_them(capsys):
    evaluate.main(["tank", "--against", "nh", "--game", "osrs", "--episodes", "6", "--counts"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["tank", "nh"] and lines[1].split()[0] == "ticks"
    assert any(line.startswith("ticks held below the target") for line in lines)
    with pytest.raises(models.ModelError, match="--counts is for OSRS, these are players of vgc"):
        evaluate.main(["random", "--against", "heuristics", "--game", "vgc", "--counts"])
    with pytest.raises(models.ModelError, match="--counts is for fights in the simulator"):
        evaluate.main(["nh", "--game", "osrs", "--counts", "--server", "127.0.0.1:7070"])
