"""Cloning on VGC: demonstrations on disk, replays read back, sequences, losses, and whole runs."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cleanrl_games.envs.vgc import PREVIEW, TURN, Batch, VGCVecEnv, collect, mdbo
from cleanrl_games.envs.vgc import demonstrations as demos
from cleanrl_games.envs.vgc.match import play_battles
from cleanrl_games.envs.vgc.replay_actions import collect_replays, read_replay
from cleanrl_games.envs.vgc.replay_files import ReplayError, read_battle
from cleanrl_games.envs.vgc.replay_words import to_id
from cleanrl_games.envs.vgc.teams import TeamPool
from cleanrl_games.envs.vgc.vec_env import FINISHED, RANDOM_PLAY, frame_dtype
from cleanrl_games.envs.vgc.vocabulary import FLOATS, INTS, LAYOUT
from cleanrl_games.tools import evaluate, models

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "cleanrl_games" / "bc_vgc_mdbo.py"
FORMAT = "gen9vgc2023regc"
BATTLES = 14
SMALL = {"width": 16, "embedding_width": 16, "lstm_size": 24}

torch.set_num_threads(1)  # two threads on a busy core wait for each other

spec = importlib.util.spec_from_file_location("bc_vgc_mdbo_under_test", SCRIPT)
bc = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = bc
spec.loader.exec_module(bc)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demonstrations") / "set"
    counted = []
    collect.collect(
        folder, FORMAT, ("heuristics", "random"), ("shipped",), BATTLES, 1, 0, lambda *now: counted.append(now)
    )
    assert counted[-1][0] == BATTLES
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return demos.Demonstrations([folder], FORMAT)


@pytest.fixture(scope="module")
def agent():
    torch.manual_seed(1)
    return bc.Agent(**SMALL).eval()


# ------------------------------------------------------------------------------------------------------- demonstrations


def test_what_is_collected_is_what_was_played(data):
    assert data.battles == BATTLES
    assert len(data.streams) == 2 * BATTLES
    assert set(data.streams["source"]) == {demos.SOURCES.index("heuristics"), demos.SOURCES.index("random")}
    rows = data.rows(np.arange(len(data.streams)))
    known = rows["known"] == demos.FIRST | demos.SECOND
    assert known.mean() > 0.9
    assert demos.joint_mask(rows)[np.flatnonzero(known), rows["action"][known]].all()
    starts = np.cumsum(data.streams["length"]) - data.streams["length"]
    assert (np.flatnonzero(rows["kind"] == PREVIEW) == starts).all()
    for battle in range(BATTLES):  # what one side won the other lost
        assert data.streams["outcome"][data.streams["game"] == battle].sum() == 1


def test_recorded_seats_ask_nobody():
    teams = TeamPool("shipped", FORMAT)
    with VGCVecEnv(
        2, 1, FORMAT, teams, seed=5, opponents=[("open", "random"), ("random", "random")], record=True
    ) as env:
        for _ in range(6):
            batch = env.recv()
            assert {2 * 0} >= set(batch.key[batch.decisions].tolist())
            assert all(
                batch.key[row] != 0 and batch.mask[row, action] for row, action in batch.played.items() if action >= 0
            )
            env.send(batch.key[batch.decisions], [np.flatnonzero(batch.mask[row])[0] for row in batch.decisions])


def test_the_same_seed_collects_the_same(folder, tmp_path):
    collect.collect(tmp_path, FORMAT, ("heuristics", "random"), ("shipped",), BATTLES, 1, 0, lambda *_: None)
    for path in folder.glob("*.npy"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


class OneBattle:
    """A VGCVecEnv of one battle in which side 0 is asked its first turn twice."""

    def __init__(self, *_, **__):
        frames = np.zeros(5, frame_dtype(INTS, FLOATS))
        frames["side"], frames["kind"] = [0, 1, 0, 1, 0], [PREVIEW, PREVIEW, TURN, TURN, TURN]
        frames["retry"] = [False, False, False, False, True]
        end = np.array([(0, 0, 1, 1, 0, 3, 1, 0, 0)], FINISHED)
        self.batches = [
            Batch(frames[:2], end[:0], {}, {}, [], {0: 1, 1: 2}),
            Batch(frames[2:4], end[:0], {}, {}, [], {0: 3, 1: RANDOM_PLAY}),
        ]
        self.batches.append(Batch(frames[4:], end, {}, {}, [], {0: 5}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def recv(self):
        return self.batches.pop(0)


def test_an_answer_that_was_unavailable_is_replaced(monkeypatch):
    monkeypatch.setattr(collect, "VGCVecEnv", OneBattle)
    ((first, second),) = collect.record(FORMAT, [], ("heuristics",), 1, 1)
    assert first[0]["action"].tolist() == [1, 5]
    assert first[1:] == (0, "heuristics", 0.0)
    assert second[0]["known"].tolist() == [demos.FIRST | demos.SECOND, 0]
    assert second[1:] == (1, "random", 1.0)


def damaged(folder, tmp_path, change):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    change(copy)
    return copy


def edit_index(**values):
    def change(folder):
        index = json.loads((folder / "index.json").read_text())
        (folder / "index.json").write_text(json.dumps(index | values))

    return change


def edit_rows(change):
    def edit(folder):
        (path,) = folder.glob("*.rows.npy")
        content = bytearray(path.read_bytes())
        path.write_bytes(change(content))

    return edit


def flip(content):
    content[len(content) // 2] ^= 1
    return content


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (edit_rows(flip), "is damaged .its checksum"),
        (edit_rows(lambda content: content[:-1]), "bytes, its index says"),
        (lambda folder: next(folder.glob("*.streams.npy")).unlink(), "cannot be read"),
        (lambda folder: (folder / "index.json").unlink(), "has no index.json"),
        (lambda folder: (folder / "index.json").write_text("{"), "is damaged"),
        (edit_index(version=0), "is of version 0"),
        (edit_index(contract_hash="0"), "other columns, ids or actions"),
        (
            edit_index(battle_format="gen9vgc2024regg"),
            "holds battles of gen9vgc2024regg, this run is about gen9vgc2023regc",
        ),
        (edit_index(shards=[]), "There is not one battle"),
    ],
)
def test_bad_demonstrations_are_refused(folder, tmp_path, change, sentence):
    with pytest.raises(demos.DemonstrationError, match=sentence):
        demos.Demonstrations([damaged(folder, tmp_path, change)], FORMAT)


def test_streams_cannot_lead_outside_of_their_rows(data):
    streams = np.array([tuple(stream)[: len(demos.STREAM.names)] for stream in data.streams], demos.STREAM)
    streams["length"][-1] += 1
    with pytest.raises(demos.DemonstrationError, match="does not fit the rows"):
        demos.check_streams(Path("x"), data.shards[0], streams)


def test_an_interrupted_set_is_completed(folder, tmp_path):
    stopping = []
    collect.collect(tmp_path, FORMAT, ("random",), ("shipped",), 6, 1, 0, lambda *_: stopping.append(True), stopping)
    assert not (tmp_path / "index.json").exists()  # not one shard was full
    collect.collect(tmp_path, FORMAT, ("random",), ("shipped",), 3, 1, 0, lambda *_: None)
    collect.collect(tmp_path, FORMAT, ("random",), ("shipped",), 5, 1, 0, lambda *_: None)
    assert demos.Demonstrations([tmp_path], FORMAT).battles == 5


def test_unknown_experts_are_named(tmp_path):
    with pytest.raises(ValueError, match="There is no expert genius: choose from random"):
        collect.collect(tmp_path, FORMAT, ("genius",), ("shipped",), 1, 1, 0, lambda *_: None)


# -------------------------------------------------------------------------------------------------------------- replays


@pytest.fixture(scope="module")
def played():
    """Battles of random players: [(log, {side: [(kind, action, ints)]})]"""
    teams, streams, battles = TeamPool("shipped", FORMAT, split="all"), {}, []
    with VGCVecEnv(8, 1, FORMAT, teams, seed=3, opponents=[("random", "random")] * 8, record=True, logs=True) as env:
        while len(battles) < 12:
            batch = env.recv()
            for row, action in sorted(batch.played.items()):
                stream = streams.setdefault((batch.battle[row], batch.episode[row]), {0: [], 1: []})[batch.side[row]]
                if batch.retry[row]:
                    stream.pop()
                stream.append((batch.kind[row], action, batch.ints[row].copy()))
            for end in batch.finished:
                if not end["truncated"]:
                    place = (end["battle"], end["episode"])
                    battles.append((batch.logs[place], streams[place], end["winner"]))
    return battles


def meaning(action, ints):
    """A slot's action, with the Pokémon in place of a switch's position, and a target only where two could be meant"""
    if mdbo.SWITCH <= action < mdbo.PASS:
        return "switch", ints[LAYOUT["own"].int_index(action - mdbo.SWITCH, "species")]
    alone = not all(ints[LAYOUT["active"].int_index(slot, "row")] for slot in (2, 3))
    return (action // 5, "foe") if alone and action < mdbo.SWITCH and action % 5 > 2 else action


def test_replays_are_read_back_as_they_were_played(played):
    decisions = known = first = 0
    opponent = slice(LAYOUT["opp"].int_at, LAYOUT["opp"].int_at + LAYOUT["opp"].rows * len(LAYOUT["opp"].ints))
    for log, truth, winner in played:
        for rows, side, source, outcome in read_replay(log, FORMAT):
            assert source == "replay"
            assert outcome == (winner == side)
            assert len(rows) == len(truth[side])
            for row, (kind, action, ints) in zip(rows, truth[side]):
                assert row["kind"] == kind
                assert (
                    row["ints"][opponent] == ints[opponent]
                ).all()  # what a player knows of the opponent a spectator knows too
                if kind == PREVIEW:
                    assert not row["known"] or row["action"] == action
                    continue
                decisions += 1
                halves = zip(divmod(int(row["action"]), mdbo.SLOT_ACTIONS), divmod(max(action, 0), mdbo.SLOT_ACTIONS))
                for bit, (ours, theirs) in zip((demos.FIRST, demos.SECOND), halves):
                    if row["known"] & bit and action >= 0:
                        first, known = first + (bit == demos.FIRST), known + (bit == demos.SECOND)
                        assert meaning(ours, row["ints"]) == meaning(theirs, ints)
    assert decisions > 200
    assert first > 0.7 * decisions  # random players faint, sleep and hide behind Rage Powder a lot
    assert known > 0.5 * decisions


def test_a_move_that_was_instructed_is_nobodys_choice(played):
    """Instruct makes a Pokémon repeat itself before its own move: the line looks like any other."""
    turn, forced = (LAYOUT["field"].float_index(0, column) for column in ("turn", "forced"))
    for log, _, _ in played:
        found = re.search(
            r"(\|move\|(p1([ab]): ([^|]+))\|([^|]+)\|.*\n)", log.split("|turn|1\n")[1].split("|turn|2\n")[0]
        )
        sheet = re.search(r"\|showteam\|p1\|(.*)", log)[1].split("]")
        moves = next((mon.split("|")[4].split(",") for mon in sheet if found and mon.startswith(f"{found[4]}|")), [])
        other = next((move for move in moves if to_id(move) != to_id(found[5])), None)
        before = read_replay(log, FORMAT)[0][0]
        (row,) = np.flatnonzero((before["floats"][:, turn] == np.float16(1 / 25)) & (before["floats"][:, forced] == 0))
        if other and before["known"][row] & (demos.FIRST if found[3] == "a" else demos.SECOND):
            for repeated in (f"|move|{found[2]}|{other}|{found[2]}", f"|cant|{found[2]}|move: Taunt|{other}"):
                lines = f"|-singleturn|{found[2]}|move: Instruct|[of] {found[2]}\n{repeated}\n"
                after = read_replay(log.replace(found[1], lines + found[1], 1), FORMAT)[0][0]
                assert (after["action"] == before["action"]).all()
                assert (after["known"] == before["known"]).all()
            return
    raise AssertionError("no battle begins with a move of p1 that is known")


def test_a_replay_is_the_same_in_every_wrapping(played, tmp_path):
    log = played[0][0]
    (tmp_path / "a.log").write_text(log)
    (tmp_path / "b.json").write_text(json.dumps({"id": "x", "log": log}))
    escaped = log.replace("</", "<\\/")
    (tmp_path / "c.html").write_text(
        f'<html><script type="text/plain" class="battle-log-data">{escaped}</script></html>'
    )
    first, second, third = (
        read_replay(read_battle(tmp_path / name).text, FORMAT) for name in ("a.log", "b.json", "c.html")
    )
    for one, two, three in zip(first, second, third):
        assert one[0].tobytes() == two[0].tobytes() == three[0].tobytes()


def test_replays_that_cannot_be_used_are_named(played, tmp_path):
    log = played[0][0]
    source = tmp_path / "replays"
    (source / "deep").mkdir(parents=True)
    bad = {
        "gen8.log": (log.replace("|gen|9", "|gen|8"), "it is of gen 8, not of gen 9"),
        "other.log": (
            log.replace("Reg C", "Reg G"),
            "it is of the format [Gen 9] VGC 2023 Reg G, not of gen9vgc2023regc",
        ),
        "short.log": (log[: log.index("|start")], "There is no battle in this log"),
        "no.json": ("{", "it is no JSON"),
        "list.json": ("[]", "its JSON has no text and no list of lines under 'log'"),
        "page.html": ("<html></html>", "the page has no battle log in it"),
        "broken.log": (log.replace("|switch|p1a: ", "|switch|p1z: "), ""),
    }
    for name, (text, _) in bad.items():
        (source / "deep" / name).write_text(text)
    with pytest.raises(ReplayError, match=r"Not one of the 7 replays in .* can be learned from"):
        collect_replays(source, tmp_path / "none", FORMAT)
    assert not (tmp_path / "none" / "index.json").exists()
    (source / "good.log").write_text(log)
    found = collect_replays(source, tmp_path / "set", FORMAT)
    assert found.battles == 1
    assert demos.Demonstrations([tmp_path / "set"], FORMAT).battles == 1
    for name, (_, reason) in bad.items():
        assert any(line.startswith(f"deep/{name}: {reason}") for line in found.left_out), (name, found.left_out)
    (tmp_path / "empty").mkdir()
    for place, sentence in ((tmp_path / "nowhere", "is no folder"), (tmp_path / "empty", "There is no replay in")):
        with pytest.raises(ReplayError, match=sentence):
            collect_replays(place, tmp_path / "none", FORMAT)


# ------------------------------------------------------------------------------------------------------------ sequences


def species(rows, group):
    at, columns = LAYOUT[group].int_at, len(LAYOUT[group].ints)
    return rows["ints"][:, at : at + LAYOUT[group].rows * columns].reshape(len(rows), -1, columns)[:, :, 0]


def test_shuffled_labels_are_legal_common_and_the_same_in_every_epoch(data):
    numbers = np.arange(len(data.streams))
    before, after, again = data.rows(numbers), data.rows(numbers), data.rows(numbers)
    stream = np.repeat(numbers, data.streams["length"])
    labels = bc.ShuffledLabels(data, numbers, seed=1)
    labels.exchange(after, stream, numbers)
    labels.exchange(again, stream, numbers)
    known = before["known"] > 0
    assert (after["action"] == again["action"]).all()
    assert (after["action"][~known] == before["action"][~known]).all()
    assert demos.joint_mask(after)[np.flatnonzero(known), after["action"][known]].all()
    assert (after["action"] != before["action"])[known].mean() > 0.5
    assert set(after["action"][known]) <= set(before["action"][known])


def test_shuffled_teams_mean_the_same(data):
    numbers = np.arange(len(data.streams))
    before, after = data.rows(numbers), data.rows(numbers)
    stream = np.repeat(numbers, data.streams["length"])
    bc.shuffle_teams(after, stream, len(numbers), np.random.default_rng(1))
    preview = before["kind"] == PREVIEW
    assert (before["action"][preview] != after["action"][preview]).any()
    for group in ("own", "opp"):
        assert (np.sort(species(before, group)) == np.sort(species(after, group))).all()
    assert (species(before, "own")[~preview] == species(after, "own")[~preview]).all()
    assert (before["action"][~preview] == after["action"][~preview]).all()
    for old, new, old_own, new_own in zip(
        before[preview], after[preview], species(before, "own")[preview], species(after, "own")[preview]
    ):
        for pair in (slice(0, 2), slice(2, 4)):
            assert set(old_own[mdbo.PREVIEWS[old["action"]][pair]]) == set(new_own[mdbo.PREVIEWS[new["action"]][pair]])
    place = LAYOUT["active"].int_index(2, "row")  # who stands in the opponent's slot a
    standing = np.flatnonzero(before["ints"][:, place] > 0)
    assert len(standing)
    seen = [species(rows, "opp")[standing, rows["ints"][standing, place] - 1] for rows in (before, after)]
    assert (seen[0] == seen[1]).all()
    for number in numbers:  # one order of the opponent's six for the whole battle
        mine = species(after, "opp")[stream == number]
        assert (mine == mine[0]).mean() > 0.9  # a forme may change


def test_batches_hold_every_stream_once(data):
    numbers = np.arange(len(data.streams))
    parts = bc.batches_of(data, numbers, 40, np.random.default_rng(1))
    assert sorted(np.concatenate(parts)) == sorted(numbers)
    lengths = [data.streams["length"][part] for part in parts]
    assert sum(length.sum() for length in lengths) > 0.7 * sum(length.max() * len(length) for length in lengths)


def battles_of(data, numbers, values):
    """What a batch says of each of these streams, out of the order of `pack_battles`"""
    lengths = torch.from_numpy(data.streams["length"][numbers]).long()
    rows, _ = bc.pack_battles(lengths.cumsum(0) - lengths, lengths)
    flat = torch.empty_like(values)
    flat[rows] = values
    return flat.split(lengths.tolist())


@torch.no_grad()
def joint_logprobs(agent, batch):
    hidden, candidates = agent.unroll(batch.ints, batch.floats, batch.batch_sizes)
    return agent.joint_logprobs(hidden, candidates, batch.is_preview, batch.joint_mask)


@torch.no_grad()
def test_a_stream_is_the_same_alone_in_a_batch_and_step_by_step(data, agent):
    numbers = np.argsort(-data.streams["length"], kind="stable")[[3, 0, 5, 1]]
    batch = bc.make_batch(data, numbers, "cpu")
    joint = joint_logprobs(agent, batch)
    together = battles_of(data, numbers, joint.gather(1, batch.actions[:, None]).squeeze(1))
    best = battles_of(data, numbers, joint.argmax(1))
    for number, expected, greedy in zip(numbers, together, best):
        alone = bc.make_batch(data, np.array([number]), "cpu")
        taken = joint_logprobs(agent, alone).gather(1, alone.actions[:, None]).squeeze(1)
        torch.testing.assert_close(taken, expected, atol=1e-5, rtol=0)
        player, rows = bc.Player(agent, deterministic=True), data.rows(np.array([number]))
        for step, row in enumerate(rows):
            seen = SimpleNamespace(
                key=np.array([7]), kind=np.array([row["kind"]]), ints=row["ints"][None],
                floats=row["floats"][None].astype(np.float32),
                mask=demos.joint_mask(rows[step : step + 1]), retry=np.array([False]),
            )  # fmt: skip
            assert player.act(seen, np.array([0])).tolist() == [int(greedy[step])]
            seen.retry[:], memory = True, player.memory.after.clone()  # asked again: the memory goes back one step
            assert player.act(seen, np.array([0])).tolist() == [int(greedy[step])]
            assert torch.equal(player.memory.after, memory)


def losses_of(agent, batch):
    hidden, candidates = agent.unroll(batch.ints, batch.floats, batch.batch_sizes)
    return bc.cloning_losses(agent, hidden, candidates, batch)


def gradients(agent, loss):
    agent.zero_grad()
    loss.backward()
    return {name: parameter.grad for name, parameter in agent.named_parameters() if parameter.grad is not None}


def test_losses_by_hand(data, agent):
    """Mean −log π of the experts' pairs over decisions of which something is known, and of the winner's chance."""
    batch = bc.make_batch(data, np.arange(8), "cpu")
    policy_loss, value_loss = losses_of(agent, batch)
    joint = joint_logprobs(agent, batch).gather(1, batch.actions[:, None]).squeeze(1)
    known = batch.known.all(1)
    assert torch.equal(known, batch.known.any(1)), "the experts' decisions are known whole or not at all"
    torch.testing.assert_close(policy_loss, -joint[known].mean(), atol=1e-5, rtol=0)
    with torch.no_grad():
        hidden, _ = agent.unroll(batch.ints, batch.floats, batch.batch_sizes)
        chance = agent.win_logit(hidden).sigmoid()
    right = torch.where(batch.outcome == 1, chance, 1 - chance)
    torch.testing.assert_close(value_loss, -right.log().mean())
    for number, outcome in zip(range(8), battles_of(data, np.arange(8), batch.outcome)):
        assert (outcome == data.streams["outcome"][number]).all()


def test_each_loss_alone_gives_a_gradient(data, agent):
    batch = bc.make_batch(data, np.arange(8), "cpu")
    for which, head in ((0, "preview_query.weight"), (0, "query.weight"), (1, "value_out.weight")):
        found = gradients(agent, losses_of(agent, batch)[which])
        assert all(gradient.isfinite().all() for gradient in found.values())
        assert found[head].abs().sum() > 0
        assert found["embedding.weight"].abs().sum() > 0


def test_what_is_not_known_teaches_nothing(data, agent):
    batch = bc.make_batch(data, np.arange(8), "cpu")
    batch.known[:] = False
    batch.outcome[:] = float("nan")
    losses = losses_of(agent, batch)
    assert [loss.item() for loss in losses] == [0.0, 0.0]
    assert all(gradient.abs().sum() == 0 for gradient in gradients(agent, sum(losses)).values())
    batch.known[0, 0] = True  # and one known choice is the mean of one
    policy_loss, _ = losses_of(agent, batch)
    assert policy_loss > 0.1


def test_cloning_learns_what_it_is_shown(data):
    torch.manual_seed(1)
    agent, numbers = bc.Agent(**SMALL), np.arange(len(data.streams))
    optimizer = torch.optim.AdamW(agent.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    before = bc.validate(agent, data, numbers, "cpu", 512)
    for _ in range(60):
        batch = bc.make_batch(data, numbers, "cpu")
        bc.update_agent(
            agent, optimizer, scaler, contextlib.nullcontext, batch, SimpleNamespace(vf_coef=1.0, max_grad_norm=10.0)
        )
    after = bc.validate(agent, data, numbers, "cpu", 512)
    assert after["losses/valid_policy_loss"] < 0.6 * before["losses/valid_policy_loss"]
    assert after["charts/turn_accuracy"] > before["charts/turn_accuracy"] + 0.2
    assert after["charts/turn_top3"] >= after["charts/turn_accuracy"]
    assert after["charts/win_accuracy"] > 0.8


# ----------------------------------------------------------------------------------------------------------- whole runs


class Spy:
    """Plays the first legal action and remembers for which seats it was asked."""

    def __init__(self):
        self.keys = set()

    def act(self, batch, rows):
        self.keys |= set(batch.key[rows].tolist())
        return batch.mask[rows].argmax(1)


def test_a_match_counts_every_battle_once():
    player, opponent = Spy(), Spy()
    scores, turns = play_battles(player, opponent, 5, FORMAT, at_once=2, turn_cap=3)
    assert len(scores) == len(turns) == 5
    assert player.keys == {0, 3}  # side 0 at even tables, side 1 at odd ones
    assert opponent.keys == {1, 2}
    assert set(scores) <= {0.0, 0.5, 1.0}
    assert turns.max() <= 4
    # a table that nobody has to answer goes on by itself
    scores, _ = play_battles("random", "random", 3, FORMAT, at_once=2, turn_cap=3)
    assert len(scores) == 3


FLAGS = ["--battle-format", FORMAT, "--width", "16", "--embedding-width", "16", "--lstm-size", "24"]
FLAGS += ["--valid-fraction", "0.2", "--minibatch-size", "48", "--epochs", "3", "--learning-rate", "0.003"]


def start(*words):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=ROOT,
    )


def test_a_run_that_is_interrupted_and_resumed_ends_where_the_other_ends(folder, tmp_path):
    words = ["--data", folder, "--eval-epochs", 0, *FLAGS]
    whole = start(*words, "--run-dir", tmp_path / "whole", "--final-battles", 2)
    broken = start(*words, "--run-dir", tmp_path / "broken", "--final-battles", 0)
    for line in broken.stdout:
        if "steps" in line:
            broken.send_signal(signal.SIGINT)
            break
    broken.communicate(timeout=120)
    assert broken.returncode == 0
    output = whole.communicate(timeout=120)[0]
    assert whole.returncode == 0, output
    resumed = start("--resume", tmp_path / "broken")
    output = resumed.communicate(timeout=120)[0]
    assert resumed.returncode == 0, output
    first, second = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "broken"))
    for name in ("epoch", "position", "global_step", "best_loss"):
        assert first["progress"][name] == second["progress"][name]
    for name, tensor in first["agent"].items():
        assert torch.equal(tensor, second["agent"][name]), name

    history = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert history[-1]["eval/heuristics_n"] == 2
    model = models.load(tmp_path / "whole")
    assert model.metadata["action_space"] == "mdbo-2025-90"
    assert model.metadata["battle_format"] == FORMAT
    (result,) = evaluate.main([str(tmp_path / "whole"), "--against", "random", "--episodes", "3", "--deterministic"])
    assert result["episodes"] == 3
    settings = (tmp_path / "broken" / "config.yaml").read_bytes()
    other = start("--resume", tmp_path / "broken", "--width", "32")
    assert "not of the sizes that these settings describe" in other.communicate(timeout=120)[0]
    assert other.returncode == 2 and settings == (tmp_path / "broken" / "config.yaml").read_bytes()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--battle-format", "gen9ou"], "Unknown battle format 'gen9ou'"),
        (
            ["--data-dir", "nowhere"],
            "There are no demonstrations in nowhere/vgc_gen9vgc2023regc: make some with --collect",
        ),
        (["--data", "nowhere"], "nowhere has no index.json"),
        (["--collect", "4", "--collect-experts", "genius"], "--collect-experts genius: choose from random"),
        (["--collect", "4", "--collect-teams", "nowhere"], "--collect-teams: nowhere does not exist"),
        (["--replays", "nowhere"], "--replays nowhere is no folder"),
    ],
)
def test_a_run_says_what_is_wrong(tmp_path, words, sentence):
    process = start("--run-dir", tmp_path / "run", *words)
    assert sentence in process.communicate(timeout=120)[0]
    assert process.returncode == 2
    assert not (tmp_path / "run").exists()
