"""MDBO: every number means what its table says, and the masks are exact: nothing legal missing, nothing illegal
offered."""

import json

import numpy as np
import pytest
from poke_env.battle import DoubleBattle

from cleanrl_games.envs.vgc import VGCVecEnv, mdbo
from cleanrl_games.envs.vgc.baselines import feed
from cleanrl_games.tools.bench_vgc import adversarial_teams, random_actions, selfdrive

TRAPS = [
    "preview of 4", "preview of 5", "preview of 6", "trapped", "maybe trapped", "maybe disabled", "maybe locked",
    "disabled move",
    "struggle", "commanding", "locked into outrage", "locked into uproar", "locked into recharge", "locked into fly",
    "faint",
    "fainted slot", "switch in mid-turn", "both forced", "both forced, one left", "revival, bench of some",
    "revival, bench of none",
]  # fmt: skip


def test_codec_is_a_bijection():
    for action in range(mdbo.NUM_ACTIONS):
        assert mdbo.encode(*mdbo.decode(action)) == action
    assert mdbo.encode(mdbo.SlotAction(move=2, tera=True, target=-1), mdbo.SlotAction(switch=3)) == 45 * 26 + 43
    assert mdbo.decode_slot(44) == mdbo.SlotAction()


def test_preview_table():
    lineups = [tuple(lineup) for lineup in mdbo.PREVIEWS.tolist()]
    assert len(set(lineups)) == mdbo.NUM_PREVIEWS == 90
    assert lineups == sorted(lineups) and lineups[0] == (0, 1, 2, 3) and lineups[-1] == (4, 5, 2, 3)
    assert [int(mdbo.preview_mask(size).sum()) for size in (4, 5, 6)] == [6, 30, 90]


def test_no_invalid_choice_and_nothing_legal_is_masked():
    done = selfdrive(teams=adversarial_teams(), battles=120, seed=6, reverse=True)
    assert done["decisions"] > 3500 and done["unavailable"] > 0
    assert done["invalid"] == 0 and done["accepted"] == 0, done["failures"][:3]
    assert done["refused"] > 5000
    missing = [trap for trap in TRAPS if not done["seen"].get(trap)]
    assert not missing, f"the battles never met: {missing}"


def requests_of(seed: int, rounds: int):
    """(Node's mask, the request it was made from, the poke-env battle that saw the same lines) of many decisions."""
    rng, battles = np.random.default_rng(seed), {}
    with VGCVecEnv(16, teams=adversarial_teams(), seed=seed, protocol=True) as env:
        batch = env.recv()
        for _ in range(rounds):
            masks = batch.mask
            for row in range(len(batch)):
                seat = (batch.key[row], batch.episode[row])
                if seat not in battles:
                    battles[seat] = DoubleBattle(f"battle-{seat}", f"p{batch.side[row] + 1}", None, gen=9)
                feed(battles[seat], batch.protocol[row])
                if row in batch.decisions:
                    yield masks[row], battles[seat].last_request, battles[seat]
                else:
                    del battles[seat]
            rows = batch.decisions
            env.send(batch.key[rows], random_actions(masks[rows], rng))
            batch = env.recv()


def test_python_and_node_agree_on_every_mask():
    kinds = set()
    for node, request, _ in requests_of(seed=3, rounds=50):
        assert (node == mdbo.mask(request)).all(), json.dumps(request)
        assert node.any()
        kinds.add("preview" if request.get("teamPreview") else "forced" if request.get("forceSwitch") else "turn")
    assert kinds == {"preview", "forced", "turn"}


def test_orders_of_poke_env_round_trip():
    rng, seen = np.random.default_rng(1), 0
    for mask, request, battle in requests_of(seed=4, rounds=25):
        if request.get("teamPreview"):
            continue
        action = int(rng.choice(np.flatnonzero(mask)))
        order = mdbo.to_order(action, battle)
        assert mdbo.from_order(order, battle) == action, (order.message, mdbo.choice(action, request))
        seen += 1
    assert seen > 300


def test_choice_strings_go_by_index():
    moves = [{"id": "outrage"}]
    request = {"active": [{"moves": moves, "canTerastallize": "Fire"}, {"moves": moves}], "side": {"pokemon": []}}
    assert (
        mdbo.choice(mdbo.encode(mdbo.SlotAction(0, tera=True, target=2), mdbo.SlotAction(switch=2)), request)
        == "move 1 terastallize 2, switch 3"
    )
    assert mdbo.choice(0, {"teamPreview": True, "side": {"pokemon": []}}) == "team 1234"


def test_double_faint_with_one_left_passes_exactly_once():
    def mon(condition, **more):
        return {"condition": condition, **more}

    team = [mon("0 fnt"), mon("0 fnt"), mon("100/100"), mon("0 fnt")]
    legal = mdbo.mask({"forceSwitch": [True, True], "side": {"pokemon": team}})
    expected = {
        mdbo.encode(mdbo.SlotAction(switch=2), mdbo.SlotAction()),
        mdbo.encode(mdbo.SlotAction(), mdbo.SlotAction(switch=2)),
    }
    assert set(np.flatnonzero(legal).tolist()) == expected
    team[0]["reviving"] = True
    team[0]["condition"] = "50/100"
    legal = mdbo.mask({"forceSwitch": [True, False], "side": {"pokemon": team}})
    revived = {mdbo.decode(action)[0].switch for action in np.flatnonzero(legal).tolist()}
    assert revived == {1, 3}


def test_unavailable_choices_are_asked_again_without_counting():
    rng = np.random.default_rng(0)
    with VGCVecEnv(16, teams=adversarial_teams(), seed=11) as env:
        batch, asked, retries = env.recv(), 0, 0
        for _ in range(80):
            rows = batch.decisions
            asked += len(rows)
            env.send(batch.key[rows], random_actions(batch.mask[rows], rng))
            before = {int(key): (batch.episode[row], batch.turn[row]) for row, key in zip(rows, batch.key[rows])}
            batch = env.recv()
            for row in np.flatnonzero(batch.retry):
                retries += 1
                assert before[int(batch.key[row])] == (batch.episode[row], batch.turn[row])
                assert batch.reward[row] == 0
        stats = env.stats()
        assert retries == stats["unavailable"] > 0 and stats["invalid"] == 0
        assert stats["decisions"] == asked - retries


def test_the_env_refuses_what_the_mask_forbids():
    with VGCVecEnv(1, teams=adversarial_teams()[:1], seed=1) as env:
        batch = env.recv()
        with pytest.raises(ValueError, match="not legal in the preview decision of battle 0, side 1"):
            env.send(batch.key, [0, 90])
        env.send(batch.key, [0, 0])
        batch = env.recv()
        forbidden = [int(np.flatnonzero(~mask)[0]) for mask in batch.mask]
        with pytest.raises(ValueError, match=r"Action \d+ is not legal in the turn decision"):
            env.send(batch.key, forbidden)
        with pytest.raises(ValueError, match="keys without a pending decision"):
            env.send([7], [0])
