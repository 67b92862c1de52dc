"""ppo_vgc_mdbo.py: its maths against closed forms, its actor's bookkeeping, and runs as a user starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
import yaml

from cleanrl_games import ppo_vgc_mdbo as script
from cleanrl_games.envs.vgc import choices, contract, layers, mdbo
from cleanrl_games.envs.vgc.vec_env import FINISHED, Batch
from cleanrl_games.envs.vgc.vocabulary import INTS, LAYOUT
from cleanrl_games.runtime import models as runtime_models
from cleanrl_games.runtime import shared_memory
from cleanrl_games.runtime.checkpoints import load_checkpoint
from cleanrl_games.runtime.errors import BadInput

ROOT = Path(__file__).resolve().parents[1]
torch.set_num_threads(1)  # networks this small only wait for a second thread
SMALL = {
    "width": 16, "embedding_width": 16, "lstm_size": 24, "attention_heads": 2, "num_battles": 6, "buffer_size": 160, "num_minibatches": 4,
    "update_epochs": 2, "sequence_length": 5, "snapshot_frequency": 1, "eval_frequency": 0, "final_battles": 0, "teams": "shipped",
}  # fmt: skip
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def small_args(**changes):
    return script.Args(**{**SMALL, "teams": ("shipped",), "num_workers": 0, **changes})


class AskingTwice:
    """An environment that asks every seventh decision again, as Showdown does when a choice turns out to be unavailable."""

    def __init__(self, env):
        self.env, self.asked, self.again, self.count = env, {}, [], 0

    def recv(self, wait):
        frames = [self.asked.pop(key) for key in self.again]
        for frame in frames:
            frame["retry"], frame["reward"] = True, 0.0
        self.again, parts = [], [np.array(frames, self.env.dtype)] if frames else []
        batch = None
        if any(sim.outstanding for sim in self.env.sims):
            batch = self.env.recv(wait)
            parts.append(batch.frames)
        merged = Batch(np.concatenate(parts), batch.finished if batch else np.empty(0, FINISHED), {}, {}, [], {})
        for row in merged.decisions:
            self.asked[int(merged.key[row])] = merged.frames[row].copy()
        return merged

    def send(self, keys, actions):
        sent = []
        for key, action in zip(keys, actions):
            self.count += not self.asked[int(key)]["retry"]
            if self.count % 7 == 0 and not self.asked[int(key)]["retry"]:
                self.again.append(int(key))
            else:
                sent.append((key, action))
        if sent:
            self.env.send(*zip(*sent))

    def __getattr__(self, name):
        return getattr(self.env, name)


def play(args, rollouts, wrap=lambda env: env):
    """A few rollouts of one policy that is far from uniform → the actor, its closed rows, results"""
    torch.manual_seed(0)
    actor = script.Actor(args, 0)
    with torch.no_grad():
        for name in ("query", "given_slot_0", "preview_query", "value_out"):
            getattr(actor.agent, name).weight.mul_(20.0)
    board = script.make_board(args, len(script.to_flat(actor.agent)))
    league = script.League(args, board)
    if args.past_fraction:
        league.join("past", script.to_flat(actor.agent) + 0.01)
    league.publish(actor.agent, 3)
    actor.env, parts, results = wrap(actor.env), [], []
    for _ in range(rollouts):
        storage = script.make_storage(args)
        actor.rollout(board, storage)
        rows, episodes = storage["info"][:2].int().tolist()
        parts.append({name: tensor[:rows] for name, tensor in storage.items() if name not in ("episodes", "info")})
        results.append(storage["episodes"][:episodes])
    actor.env.close()
    return actor, SimpleNamespace(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]}), torch.cat(results)


@pytest.fixture(scope="module")
def mixed():
    """Self-play, past selves and scripted opponents, with decisions that are asked twice."""
    args = small_args(random_fraction=0.2, max_power_fraction=0.1, heuristics_fraction=0.1, past_fraction=0.3)
    return play(args, 3, AskingTwice)


def evaluate_all(agent, b, length):
    order, starts, lengths = script.cut_chunks(b.key.numpy(), length)
    return script.evaluate_chunks(agent, b, order, starts, lengths, "cpu")


# ---------------------------------------------------------------------------------------------------------------- maths


def test_gae_of_interleaved_players_by_hand():
    """Seat 4 plays two battles, the second goes on after the rollout; seat 1's only battle is truncated."""
    gamma, lam = 0.5, 0.8
    key = np.array([4, 1, 4, 4, 1, 4])
    rewards = np.array([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    values = np.array([0.2, -0.4, 0.6, 0.1, 0.3, 0.5])
    next_values = np.array([0.6, 0.3, 0.0, 0.5, -0.2, 0.9])
    ended = np.array([False, False, True, False, True, False])
    by_hand = np.empty(6)
    by_hand[2] = 1.0 - 0.6
    by_hand[0] = 0.5 * 0.6 - 0.2 + 0.4 * by_hand[2]
    by_hand[5] = 0.5 * 0.9 - 0.5
    by_hand[3] = 0.5 * 0.5 - 0.1 + 0.4 * by_hand[5]
    by_hand[4] = 0.5 * -0.2 - 0.3
    by_hand[1] = 0.5 * 0.3 + 0.4 + 0.4 * by_hand[4]
    assert script.gae(key, rewards, values, next_values, ended, gamma, lam) == pytest.approx(by_hand)


def test_chunks_are_a_partition_in_order_of_play():
    key = np.random.default_rng(1).integers(0, 9, 400)
    order, starts, lengths = script.cut_chunks(key, 7)
    rows = [order[start : start + length] for start, length in zip(starts, lengths)]
    assert sorted(np.concatenate(rows)) == list(range(400)) and lengths.max() <= 7
    for chunk in rows:
        assert len(set(key[chunk])) == 1 and (np.diff(chunk) > 0).all()
    for seat in range(9):
        sizes = [len(chunk) for chunk in rows if key[chunk[0]] == seat]
        assert max(sizes) - min(sizes) <= 1


def test_rollouts_become_batches_and_stale_ones_are_left_out():
    args, board = small_args(num_battles=2, max_policy_lag=1), SimpleNamespace(numbers=torch.tensor([5.0]))

    def rollout(rows, version):
        storage = script.make_storage(args)
        storage["key"][:rows], storage["version"][:rows], storage["rewards"][:rows] = torch.arange(rows) % 4, version, float(version)
        storage["episodes"][0] = torch.tensor([0, 0, version, 9])
        storage["info"][:] = torch.tensor([rows, 1, version, 0, 0])
        return 0, storage, 7

    def rollouts():
        for rows, version in ((6, 4), (8, 3), (5, 5), (3, 5), (3, 5)):
            index, storage, queue_size = rollout(rows, version)
            yield index, storage, queue_size
            storage["rewards"].zero_()  # the actor fills its slot again

    stopping = []
    batches = script.gather(rollouts(), board, 2, args, stopping)
    b, results, seconds, dropped, queue_size = next(batches)
    assert b.rewards.tolist() == [4.0] * 6 + [5.0] * 5 and b.key.tolist() == [0, 1, 2, 3, 0, 1, 4, 5, 6, 7, 4]
    assert results[:, 2].tolist() == [4, 3, 5], "battles of a rollout that is left out have ended nevertheless"
    assert (seconds[0], dropped, queue_size) == (4.5, 1, 7)
    stopping.append(True)
    assert list(batches) == []


def test_an_id_is_embedded_where_it_stands():
    """Each id of an observation changes the sums of the Pokémon or event that it belongs to, and of a move of our active two."""
    table = torch.randn(layers.NUM_IDS, 8, generator=torch.Generator().manual_seed(1))
    before = torch.cat(layers.embed_ids(table, torch.zeros(2, INTS, dtype=torch.int16)), 1)  # (B, bags, 8)
    history, seen = LAYOUT["history"], set()
    for number, group in enumerate((LAYOUT["own"], LAYOUT["opp"], history)):
        for row in range(group.rows):
            for name in group.ints:
                ints = torch.zeros(2, INTS, dtype=torch.int16)
                ints[1, group.int_index(row, name)] = 1
                changed = (torch.cat(layers.embed_ids(table, ints), 1) - before).abs().sum(-1)
                place = 6 * number + row
                expected = {place} | (
                    {12 + history.rows + 4 * row + int(name[-1]) - 1} if place < 2 and name.startswith("move_") else set()
                )
                assert not changed[0].any() and set(changed[1].nonzero().flatten().tolist()) == expected, (number, row, name)
                seen |= expected
    assert seen == set(range(before.shape[1]))


def test_every_loss_term_alone_has_a_finite_policy_gradient(mixed):
    actor, b, _ = mixed
    agent = actor.agent
    for term in ("policy_loss", "value_loss", "entropy"):
        agent.zero_grad()
        rows, logprobs, hidden = evaluate_all(agent, b, 5)
        logprob, entropy = script.logprob_and_entropy(logprobs, b.first[rows], b.actions[rows])
        advantages = torch.linspace(-1, 1, len(rows))
        policy, value, _ = script.ppo_losses(logprob, b.logprobs[rows] + 0.1, advantages, agent.win_logit(hidden), -advantages, 0.2)
        {"policy_loss": policy, "value_loss": value, "entropy": entropy.mean()}[term].backward()
        gradients = {name: p.grad for name, p in agent.named_parameters() if p.grad is not None}
        assert all(torch.isfinite(gradient).all() for gradient in gradients.values())
        reached = {name for name, gradient in gradients.items() if gradient.abs().sum() > 0}
        assert {"table", "qkv.weight", "lstm_hidden.weight", "core_in.weight"} <= reached, term
        assert ("value_out.weight" in reached) == (term == "value_loss")
        for head in ("query.weight", "given_slot_0.weight", "preview_query.weight", "hit_versus", "switch_key.weight"):
            assert (head in reached) == (term != "value_loss"), f"{term} and {head}"


def test_masked_actions_have_probability_0_and_no_gradient(mixed):
    actor, b, _ = mixed
    with torch.no_grad():
        rows, logprobs, _ = evaluate_all(actor.agent, b, 5)
    legal = b.legal[rows]
    assert (logprobs.exp()[~legal] == 0).all() and (logprobs.exp()[legal] > 0).all()
    assert torch.allclose(logprobs.exp().sum(-1), torch.ones(len(rows), 2), atol=1e-5)
    logits = torch.randn(legal.shape, requires_grad=True)
    logprob, entropy = script.logprob_and_entropy(choices.masked_log_softmax(logits, legal), b.first[rows], b.actions[rows])
    (logprob.sum() + entropy.sum()).backward()
    assert (logits.grad[~legal] == 0).all() and torch.isfinite(logits.grad).all()
    choosing = legal & (legal.sum(-1, keepdim=True) > 1)
    assert (logits.grad[choosing] != 0).float().mean() > 0.99


def test_unroll_gives_back_the_actors_log_probs_and_values(mixed):
    """Over chunks that begin in mid-battle, past battles that end, and past decisions that were asked twice."""
    actor, b, _ = mixed
    with torch.no_grad():
        rows, logprobs, hidden = evaluate_all(actor.agent, b, 5)
        logprob, _ = script.logprob_and_entropy(logprobs, b.first[rows], b.actions[rows])
        values = 2 * actor.agent.win_logit(hidden).sigmoid() - 1
    assert len(rows) == len(b.key) and actor.env.count > 100
    assert (logprob - b.logprobs[rows]).abs().max() < 1e-5
    assert (values - b.values[rows]).abs().max() < 1e-5
    assert float(b.logprobs.std()) > 0.3 and float(b.values.std()) > 0.01
    forgetful = SimpleNamespace(**{**vars(b), "states": torch.zeros_like(b.states)})
    with torch.no_grad():
        rows, logprobs, _ = evaluate_all(actor.agent, forgetful, 5)
    assert (script.logprob_and_entropy(logprobs, b.first[rows], b.actions[rows])[0] - b.logprobs[rows]).abs().max() > 1e-3


def test_joint_policy_is_the_product_of_both_choices(mixed):
    actor, b, _ = mixed
    rows = torch.arange(0, len(b.key), 3)
    preview = b.first[rows]
    joint = torch.zeros(len(rows), mdbo.NUM_ACTIONS, dtype=torch.bool)
    for index, row in enumerate(rows):
        if preview[index]:
            joint[index, : mdbo.NUM_PREVIEWS] = b.legal[row, 0]
        else:  # some pairs of the legal first choices, and exactly the legal second ones of the action taken
            table = joint[index].view(45, 45)
            table[b.legal[row, 0, :45]] = torch.rand(int(b.legal[row, 0].sum()), 45) < 0.3
            table[b.legal[row, 0, :45], 44] = True
            table[b.actions[row] // 45] = b.legal[row, 1, :45]
    with torch.no_grad():
        core, things = actor.agent.encode(b.ints[rows], b.floats[rows])
        hidden, _ = actor.agent.unroll(core[None], b.states[rows].transpose(0, 1), preview[None])
        whole = actor.agent.joint_logprobs(hidden[0], things, preview, joint)
        action, logprob, legal = actor.agent.act(hidden[0], things, preview, joint, torch.Generator().manual_seed(3))
        again = actor.agent.logprobs(hidden[0], things, preview, legal, action)
    assert torch.allclose(whole.exp().sum(1), torch.ones(len(rows)), atol=1e-4) and (whole.exp()[~joint] == 0).all()
    assert joint[torch.arange(len(rows)), action].all()
    assert (whole.gather(1, action[:, None])[:, 0] - logprob).abs().max() < 1e-5
    assert (script.logprob_and_entropy(again, preview, action)[0] - logprob).abs().max() < 1e-5
    taken = whole.gather(1, b.actions[rows, None])[:, 0]
    assert (taken - b.logprobs[rows]).abs().max() < 1e-4


def test_entropy_is_the_mean_surprise(mixed):
    """The entropy of the first choice plus that of the second, averaged over samples, is -E[log π] of the joint policy."""
    actor, b, _ = mixed
    row = int(((b.legal[:, 0].sum(1) > 8) & ~b.first).nonzero()[0])
    count = 8000
    joint = torch.zeros(45, 45, dtype=torch.bool)
    joint[b.legal[row, 0, :45]] = b.legal[row, 1, :45]
    with torch.no_grad():
        core, things = actor.agent.encode(b.ints[[row]], b.floats[[row]])
        hidden, _ = actor.agent.unroll(core[None], b.states[[row]].transpose(0, 1), torch.zeros(1, 1, dtype=torch.bool))
        hidden, things = hidden[0].expand(count, -1), tuple(thing.expand(count, *thing.shape[1:]) for thing in things)
        preview = torch.zeros(count, dtype=torch.bool)
        action, logprob, legal = actor.agent.act(
            hidden, things, preview, joint.flatten().expand(count, -1), torch.Generator().manual_seed(5)
        )
        _, entropy = script.logprob_and_entropy(actor.agent.logprobs(hidden, things, preview, legal, action), preview, action)
    assert float(entropy.mean()) == pytest.approx(-float(logprob.mean()), abs=4 * float(logprob.std()) / count**0.5 + 1e-3)


# ---------------------------------------------------------------------------------------------------------------- actor


def test_streams_of_seats_are_whole(mixed):
    """A seat's rows are PREVIEW, TURN, …, and each knows the value of the next, also over the borders of rollouts."""
    _, b, results = mixed
    seen = 0
    for key in b.key.unique():
        rows = (b.key == key).nonzero()[:, 0]
        for row, following in pairwise(rows):
            if b.ended[row]:
                assert b.next_values[row] == 0 and b.rewards[row].abs() == 1
            elif not b.first[following]:  # else a past self held the seat in between
                assert b.next_values[row] == pytest.approx(float(b.values[following]), abs=1e-5) and b.rewards[row] == 0
                seen += 1
            assert b.first[following] == b.ended[row]
    assert seen > 200 and (b.version == 3).all()
    assert set(results[:, 0].tolist()) >= {0.0, 1.0, 2.0}, "self-play, past selves and scripted opponents have been met"
    assert set(results[results[:, 0] == 1, 1].tolist()) == {1.0} and (results[results[:, 0] != 1, 1] == 0).all()
    assert set(results[:, 2].tolist()) <= {0.0, 0.5, 1.0}


def test_rewards_and_results_say_the_same(mixed):
    """The learner's score against others is the reward of the battle's last row."""
    _, b, results = mixed
    ends = b.rewards[b.ended]
    own = results[results[:, 0] == 0]  # both seats of these are the learner's: +1 and -1
    others = results[results[:, 0] != 0]
    assert len(ends) == 2 * len(own) + len(others)
    assert float(ends.sum()) == float((2 * others[:, 2] - 1).sum())


def test_truncated_battles_bootstrap():
    args = small_args(turn_cap=2, random_fraction=0.0, max_power_fraction=0.0, heuristics_fraction=0.0, past_fraction=0.0)
    _, b, results = play(args, 1)
    assert b.ended.sum() > 10 and (b.rewards == 0).all() and (b.next_values[b.ended] != 0).all()
    assert (results[:, 2] == 0.5).all()


def test_holders_keep_their_seats(monkeypatch):
    """Who holds a seat changes at previews only, even when the member leaves the league in mid-battle."""
    args = small_args(past_fraction=0.8, random_fraction=0.0, max_power_fraction=0.0, heuristics_fraction=0.0, league_size=1)
    actor = script.Actor(args, 0)
    board = script.make_board(args, len(script.to_flat(actor.agent)))
    league, storage, held = script.League(args, board), script.make_storage(args), {}
    league.join("a", script.to_flat(actor.agent))
    recv, changes = actor.env.recv, []

    def watched(wait):
        """Before each answer: the seats' holders as they were at the last one, unless a battle has begun since."""
        batch = recv(wait)
        for row in batch.decisions:
            key = int(batch.key[row])
            if batch.kind[row] != script.PREVIEW and held.setdefault(key, actor.seats.holder[key]) != actor.seats.holder[key]:
                changes.append(key)
            if batch.kind[row] == script.PREVIEW:
                held.pop(key, None)
        return batch

    monkeypatch.setattr(actor.env, "recv", watched)
    league.publish(actor.agent, 0)
    actor.rollout(board, storage)
    assert (actor.seats.holder == 1).any()
    copied = script.to_flat(actor.members[1])
    league.join("b", torch.zeros_like(copied))  # takes the only row of the league
    league.publish(actor.agent, 1)
    actor.rollout(board, storage)
    actor.env.close()
    assert not changes and (actor.seats.holder == 2).any()
    assert all(torch.equal(script.to_flat(policy), copied) for serial, policy in actor.members.items() if serial == 1)
    assert set(np.unique(storage["version"][: int(storage["info"][0])])) == {0, 1}, "open rows keep the version that made them"


def test_league_qualities_follow_the_rule():
    args = small_args(league_size=3)
    league = script.League(args, script.make_board(args, 4))
    for name in "abc":
        league.join(name, torch.zeros(4))
    assert league.probabilities() == pytest.approx([1 / 3] * 3)
    league.record(league.members[1]["serial"], 1.0)
    assert league.members[1]["quality"] == pytest.approx(-0.01)
    league.record(league.members[2]["serial"], 0.0)
    assert league.members[2]["quality"] == 0.0
    league.join("d", torch.ones(4))  # full: the easiest, b, leaves
    assert [member["name"] for member in league.members] == ["a", "c", "d"]
    assert league.board.snapshots[league.members[2]["row"]].tolist() == [1.0] * 4


# ---------------------------------------------------------------------------------------------------------- sharing, models


def test_sharing_chooses_files_when_shared_memory_is_small(monkeypatch, capsys):
    assert shared_memory.choose_sharing("shared_memory", 1 << 60) == "shared_memory"
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    assert shared_memory.choose_sharing("auto", 1 << 19) == "shared_memory"
    assert shared_memory.choose_sharing("auto", 1 << 20) == "file_system" and "--sharing file_system" in capsys.readouterr().out


def test_mapped_tensors_are_shared_and_a_full_disk_is_a_sentence(monkeypatch):
    tensor = shared_memory.mapped(torch.zeros(5, 3, dtype=torch.int16))
    make, arguments = tensor.__reduce_ex__(2)
    other = make(*arguments)
    other[2] = 7
    assert tensor[2].tolist() == [7] * 3 and type(tensor + 1) is torch.Tensor and other.dtype == torch.int16

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(BadInput, match="no room for"):
        shared_memory.mapped(torch.zeros(5))


def save(path, args, **metadata):
    agent = script.make_agent(vars(args))
    script.save_model(path, agent, args)
    if metadata:
        weights, found = runtime_models.read_model(path)
        found.pop("args")
        runtime_models.save_model(path, weights, {}, {**found, **metadata}, args, script.__file__)
    return agent


def take_over(agent, path):
    runtime_models.load_matching_weights(agent, path, "--bc-model", script.contract.contract_hash(), script.contract.ACTION_SPACE)


def test_bc_model_reports_every_tensor_and_refuses_other_games(tmp_path, capsys):
    args = small_args()
    model = save(tmp_path / "same.zip", args)
    agent = script.make_agent(vars(args))
    take_over(agent, tmp_path / "same.zip")
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(agent.state_dict().values(), model.state_dict().values()))
    said = capsys.readouterr().out
    assert said.count("taken over") == len(agent.state_dict()) and "left as it was" not in said

    wider = script.make_agent({**vars(args), "lstm_size": 32})
    before = {name: tensor.clone() for name, tensor in wider.state_dict().items()}
    take_over(wider, tmp_path / "same.zip")
    said = capsys.readouterr().out
    assert "core_in.weight (32, 128) left as it was, the model's is (24, 128)" in said and "table" in said.split("taken over")[0]
    for name, tensor in wider.state_dict().items():
        fits = tensor.shape == model.state_dict()[name].shape
        assert torch.equal(tensor, model.state_dict()[name] if fits else before[name])

    save(tmp_path / "actions.zip", args, action_space="flat-2025")
    with pytest.raises(BadInput, match="action space is flat-2025, not mdbo-2025-90"):
        take_over(agent, tmp_path / "actions.zip")
    save(tmp_path / "columns.zip", args, contract_hash="0123")
    with pytest.raises(BadInput, match="contract 0123"):
        take_over(agent, tmp_path / "columns.zip")
    (tmp_path / "broken.zip").write_bytes((tmp_path / "same.zip").read_bytes()[:3000])
    with pytest.raises(BadInput, match="not a readable model"):
        take_over(agent, tmp_path / "broken.zip")
    with pytest.raises(BadInput, match="There is no model"):
        script.load_model(tmp_path / "nowhere.zip")


def test_bad_settings_get_a_sentence():
    with pytest.raises(BadInput, match="sum to more than 1"):
        script.check_args(small_args(random_fraction=0.5, heuristics_fraction=0.6))
    with pytest.raises(BadInput, match="12 seats"):
        script.check_args(small_args(buffer_size=11))


# ----------------------------------------------------------------------------------------------------------------- runs


def start(folder, *flags, **options):
    words = [sys.executable, "cleanrl_games/ppo_vgc_mdbo.py", *FLAGS, *map(str, flags), "--run-dir", str(folder)]
    words += ["--checkpoint-dir", str(Path(folder).parent / "checkpoints")]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def finish(process, code=0, seconds=400):
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == code, output
    return output


def metrics_of(folder):
    path = Path(folder) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition, process, seconds=300):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end and process.poll() is None, f"waited too long, or it ended: {process.poll()}"
        time.sleep(0.2)


def alive(member):
    try:
        return member.is_running() and member.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_gone(family, seconds=60):
    end = time.time() + seconds
    while left := [member for member in family if alive(member)]:
        assert time.time() < end, f"still there: {left}"
        time.sleep(0.2)


# With a constant learning rate nothing depends on where a run is going to end, so half a run is the half of a whole one.
LEAGUE_RUN = "--num-workers 0 --past-fraction 0.4 --random-fraction 0.15 --heuristics-fraction 0.15 --checkpoint-frequency 1".split()
LEAGUE_RUN += ["--learning-rate-final", "3e-4"]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """An inline run of five updates with all kinds of opponents, uninterrupted, with a battle played for evaluation at the end."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(start(folder, *LEAGUE_RUN, "--keep-checkpoints", 2, "--total-timesteps", 750, "--final-battles", 1))
    return folder


def test_resumed_inline_run_equals_the_uninterrupted_one(whole_run, tmp_path):
    folder = tmp_path / "run"
    finish(start(folder, *LEAGUE_RUN, "--total-timesteps", 400))
    half = len(metrics_of(folder))
    words = [sys.executable, "cleanrl_games/ppo_vgc_mdbo.py", "--resume", str(folder), "--total-timesteps", "750"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(metrics_of(folder)) > half >= 2
    ours, theirs = (load_checkpoint(path) for path in (folder, whole_run))
    assert ours["progress"][:3] == theirs["progress"][:3] and ours["league"] == theirs["league"]
    for name, tensor in theirs["agent"].items():
        assert torch.equal(ours["agent"][name], tensor), f"{name} differs"
    for key in ("snapshots", "torch_rng"):
        assert torch.equal(ours[key], theirs[key])
    assert ours["actor"]["seats"]["played"] == theirs["actor"]["seats"]["played"] and ours["actor"]["rng"] == theirs["actor"]["rng"]
    assert torch.equal(ours["actor"]["seats"]["states"], theirs["actor"]["seats"]["states"])


def test_run_folder_has_everything(whole_run):
    present = {path.name for path in whole_run.iterdir()}
    assert {"config.yaml", "script.py", "metrics.jsonl", "checkpoint.pt", "model.zip", "models"} <= present
    assert yaml.safe_load((whole_run / "config.yaml").read_text())["total_timesteps"] == 750
    last = metrics_of(whole_run)[-1]
    for name in (
        "charts/SPS",
        "losses/approx_kl",
        "losses/passes",
        "stats/policy_lag_max",
        "eval/heuristics_low",
        "eval/random_n",
        "win_rate/self",
    ):
        assert name in last
    kept = sorted((whole_run.parent / "checkpoints" / "run").iterdir())
    assert len(kept) == 2 and int(kept[1].stem) == last["global_step"]
    agent, metadata = script.load_model(whole_run)
    assert (metadata["game"], metadata["action_space"], metadata["battle_format"]) == ("vgc", contract.ACTION_SPACE, "gen9vgc2023regc")
    checkpoint = load_checkpoint(whole_run)
    assert all(torch.equal(checkpoint["agent"][name], tensor) for name, tensor in agent.state_dict().items())


def test_checkpoint_of_another_network_and_frozen_layers(whole_run, tmp_path):
    words = [sys.executable, "cleanrl_games/ppo_vgc_mdbo.py", "--resume", str(whole_run), "--lstm-size", "32"]
    settings = (whole_run / "config.yaml").read_bytes()
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    (whole_run / "config.yaml").write_bytes(settings)
    assert done.returncode == 1 and "another network" in done.stderr
    flags = ["--num-workers", 0, "--total-timesteps", 300, "--bc-model", whole_run, "--value-warmup-updates", 1, "--freeze-shared"]
    output = finish(start(tmp_path / "run", *flags, "--lr", "0.01", "--amp", "bf16"))
    assert f"table {tuple(script.make_agent(vars(small_args())).table.shape)} taken over" in output
    before, after = (script.load_model(path)[0].state_dict() for path in (whole_run, tmp_path / "run"))
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == set(script.HEADS)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["learning_rate"] == 0.01


def test_a_killed_simulator_is_replaced_and_a_killed_worker_ends_the_run(tmp_path):
    """And both work over files instead of /dev/shm."""
    folder = tmp_path / "run"
    process = start(folder, "--num-workers", 1, "--sharing", "file_system")
    wait_for(lambda: len(metrics_of(folder)) >= 1, process)
    family = psutil.Process(process.pid).children(recursive=True)
    (node,) = [child for child in family if "sim.js" in " ".join(child.cmdline())]
    (worker,) = [child for child in family if "spawn_main" in " ".join(child.cmdline())]
    node.kill()
    before = len(metrics_of(folder))
    wait_for(lambda: len(metrics_of(folder)) >= before + 3, process)
    family = psutil.Process(process.pid).children(recursive=True)
    worker.kill()
    output = finish(process, code=1, seconds=60)
    assert f"Node process {node.pid} ended (killed by SIGKILL)" in output and f"pid {worker.pid}) died" in output and "--resume" in output
    assert load_checkpoint(folder)["progress"][0] >= before + 3
    assert_gone(family)


def test_ctrl_c_leaves_a_checkpoint_and_no_process(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--num-workers", 1, start_new_session=True)
    wait_for(lambda: len(metrics_of(folder)) >= 2, process)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    output = finish(process, seconds=90)
    assert "Stopping after this update" in output and "Node process" not in output
    assert load_checkpoint(folder)["progress"][0] == len(metrics_of(folder))
    assert_gone(family)
