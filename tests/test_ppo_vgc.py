"""ppo_vgc_mdbo.py: its maths and its update against closed forms, its actor's bookkeeping, and runs as a user starts
them."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
import yaml

from cleanrl_games import ppo_vgc_mdbo as script
from cleanrl_games import rnad_vgc_portfolio
from cleanrl_games.envs.vgc import contract, mdbo
from cleanrl_games.envs.vgc.vec_env import FINISHED
from cleanrl_games.envs.vgc.vec_env import Batch as EnvBatch
from cleanrl_games.envs.vgc.vocabulary import INTS, LAYOUT
from cleanrl_games.runtime import models as runtime_models
from cleanrl_games.runtime import shared_memory
from cleanrl_games.runtime.checkpoints import load_checkpoint
from cleanrl_games.runtime.errors import BadInput

ROOT = Path(__file__).resolve().parents[1]
torch.set_num_threads(1)  # networks this small only wait for a second thread
SMALL = {
    "width": 16, "embedding_width": 16, "lstm_size": 24, "num_battles": 6, "buffer_size": 160,
    "num_minibatches": 4, "update_epochs": 2, "snapshot_frequency": 1, "eval_frequency": 0, "final_battles": 0,
    "teams": "shipped",
}  # fmt: skip
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
NO_SCRIPTED = {"random_fraction": 0.0, "max_power_fraction": 0.0, "heuristics_fraction": 0.0}


def small_args(**changes):
    return script.Args(**{**SMALL, "teams": ("shipped",), "num_workers": 0, "sharing": "shared_memory", **changes})


class AskingTwice:
    """An environment that asks every seventh decision again, as Showdown does when a choice turns out to be
    unavailable."""

    def __init__(self, env):
        self.env, self.asked, self.again, self.count = env, {}, [], 0

    def recv(self):
        frames = [self.asked.pop(key) for key in self.again]
        for frame in frames:
            frame["retry"], frame["reward"] = True, 0.0
        self.again, parts = [], [np.array(frames, self.env.dtype)] if frames else []
        batch = None
        if any(sim.outstanding for sim in self.env.sims):
            batch = self.env.recv()
            parts.append(batch.frames)
        merged = EnvBatch(np.concatenate(parts), batch.finished if batch else np.empty(0, FINISHED), {}, {}, [], {})
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
    """A few rollouts of one policy that is far from uniform → the actor, and all of it as one batch"""
    torch.manual_seed(0)
    actor = script.Actor(args, 0)
    with torch.no_grad():
        for name in ("query", "given_slot_0", "preview_query", "value_out"):
            getattr(actor.agent, name).weight.mul_(20.0)
    broadcast = script.make_broadcast(args, actor.agent)
    league = script.League(args, broadcast)
    if args.past_fraction:
        league.join("past", script.to_flat(actor.agent) + 0.01)
    league.publish(actor.agent, 3)
    actor.env = wrap(actor.env)
    actor.rows = script.make_rows(len(actor.lengths), 2)  # little room: battles have to make more
    actor.decided, step = 0, actor.memory.step

    def counted(policy, batch, rows):
        actor.decided += int((~batch.retry[rows]).sum()) if policy is actor.agent else 0
        return step(policy, batch, rows)

    actor.memory.step = counted
    slots = script.inline_rollouts(args, broadcast, [], actor)
    batch = next(script.gather_batches(slots, broadcast, rollouts, 4))
    actor.env.close()
    return actor, batch


@pytest.fixture(scope="module")
def mixed():
    """Self-play, past selves and scripted opponents, with decisions that are asked twice."""
    fractions = {"random_fraction": 0.2, "max_power_fraction": 0.1, "heuristics_fraction": 0.1, "past_fraction": 0.3}
    return play(small_args(**fractions), 3, AskingTwice)


def evaluate_all(agent, batch):
    return script.evaluate_battles(agent, batch, torch.arange(len(batch.lengths)), "cpu")


def choices_at(batch, rows):
    return script.split_action(batch.rows["is_preview"], batch.rows["actions"])[rows]


def states_before(agent, batch):
    """The memory before each decision, by playing every battle step by step: (N, 2, H)"""
    states = torch.zeros(len(batch.rows["actions"]), *agent.initial_state(1).shape[1:])
    with torch.no_grad():
        for start, length in zip(batch.starts.tolist(), batch.lengths.tolist()):
            state = agent.initial_state(1)
            for row in range(start, start + length):
                states[row] = state[0]
                _, _, state = agent.step(batch.rows["ints"][[row]], batch.rows["floats"][[row]], state)
    return states


# ---------------------------------------------------------------------------------------------------------------- maths


def test_gae_of_two_battles_by_hand():
    """The first ends with a win, the second is truncated: V(last observation) is what follows."""
    gamma, lam = 0.5, 0.8
    rewards, values = torch.tensor([0.0, 0.25, 1.0, 0.0, 0.0]), torch.tensor([0.2, -0.4, 0.6, 0.1, 0.3])
    by_hand = torch.empty(5)
    by_hand[2] = 1.0 - 0.6
    by_hand[1] = 0.25 + 0.5 * 0.6 + 0.4 + 0.4 * by_hand[2]
    by_hand[0] = 0.5 * -0.4 - 0.2 + 0.4 * by_hand[1]
    by_hand[4] = 0.5 * -0.9 - 0.3
    by_hand[3] = 0.5 * 0.3 - 0.1 + 0.4 * by_hand[4]
    advantages = script.gae(rewards, values, torch.tensor([0.0, -0.9]), torch.tensor([3, 2]), gamma, lam)
    torch.testing.assert_close(advantages, by_hand)


def test_returns_are_advantages_plus_values():
    rows = {"rewards": torch.tensor([0.0, 1.0]), "values": torch.tensor([0.5, -0.25])}
    batch = SimpleNamespace(rows=rows, bootstrap_values=torch.tensor([0.0]), lengths=torch.tensor([2]))
    advantages, returns = script.advantages_and_returns(batch, gamma=1.0, gae_lambda=1.0)
    torch.testing.assert_close(advantages, torch.tensor([0.5, 1.25]))
    torch.testing.assert_close(returns, torch.tensor([1.0, 1.0]))  # with λ = 1 what the battle brought, whatever V said


def test_packed_battles_are_a_partition_step_by_step():
    starts, lengths = torch.tensor([0, 2, 7, 8]), torch.tensor([2, 5, 1, 5])
    rows, batch_sizes = script.pack_battles(starts, lengths)
    assert batch_sizes.tolist() == [4, 3, 2, 2, 2]
    assert rows.tolist() == [2, 8, 0, 7, 3, 9, 1, 4, 10, 5, 11, 6, 12]
    rows, batch_sizes = script.pack_battles(starts[2:3], lengths[2:3])  # a minibatch of one battle of one decision
    assert (rows.tolist(), batch_sizes.tolist()) == ([7], [1])


def test_rollouts_become_batches_and_stale_ones_are_left_out():
    args = small_args(num_battles=2)
    broadcast = SimpleNamespace(version=5)

    def rollouts():
        for lengths, version in (([4, 2], 4), ([8], 3), ([5], 5), ([3], 5), ([3], 5)):
            storage = script.make_storage(args)
            for number, length in enumerate(lengths):
                rows = {
                    name: values + (name == "values") * (10 * version + number)
                    for name, values in script.make_rows(length).items()
                }
                rows["versions"] += version
                battle = {name: 0 for name in script.make_battles(0)} | {"lengths": length, "scores": version}
                assert script.add_battle(storage, args.buffer_size, rows, battle | {"bootstrap_values": number - 0.5})
            storage["rollout_time"].fill_(version)
            yield 0, storage, 7
            storage["values"].zero_()  # the actor fills its slot again
            storage["lengths"].zero_()

    batches = script.gather_batches(rollouts(), broadcast, 2, 1)
    batch = next(batches)
    assert batch.rows["values"].tolist() == [40.0] * 4 + [41.0] * 2 + [50.0] * 5
    assert (batch.starts.tolist(), batch.lengths.tolist()) == ([0, 4, 6], [4, 2, 5])
    assert batch.bootstrap_values.tolist() == [-0.5, 0.5, -0.5]
    assert batch.results["scores"].tolist() == [4, 4, 3, 5], (
        "battles of a rollout that is left out have ended nevertheless"
    )
    assert (batch.times["rollout_time"], batch.dropped, batch.queue_size) == (4.5, 1, 7)
    assert next(batches).lengths.tolist() == [3, 3]
    assert list(batches) == []


def test_an_id_is_embedded_where_it_stands():
    """Each id of an observation changes the sums of the Pokémon or event that it belongs to, and of a move of our
    active two."""
    torch.manual_seed(1)
    agent = script.make_agent(vars(small_args()))
    with torch.no_grad():
        before = embedded(agent, torch.zeros(2, INTS, dtype=torch.int16))  # (B, bags, E)
        history, seen = LAYOUT["history"], set()
        for number, group in enumerate((LAYOUT["own"], LAYOUT["opp"], history)):
            for row in range(group.rows):
                for name in group.ints:
                    ints = torch.zeros(2, INTS, dtype=torch.int16)
                    ints[1, group.int_index(row, name)] = 1
                    changed = (embedded(agent, ints) - before).abs().sum(-1)
                    place = 6 * number + row
                    expected = {place}
                    if place < 2 and name.startswith("move_"):
                        expected.add(12 + history.rows + 4 * row + int(name[-1]) - 1)
                    assert not changed[0].any()
                    assert set(changed[1].nonzero().flatten().tolist()) == expected, (number, row, name)
                    seen |= expected
    assert seen == set(range(before.shape[1]))


def embedded(agent, ints):
    """(B, bags, E)"""
    sums, places = agent.embed_ids(ints)
    return torch.cat([script.spread(*part).view(len(ints), -1, part[0].shape[1]) for part in zip(sums, places)], 1)


def test_many_rows_are_embedded_as_few_are(mixed):
    """With many rows only those bags are looked up that differ: same sums, same gradients."""
    actor, batch = mixed
    ints, floats = batch.rows["ints"], batch.rows["floats"]
    assert len(ints) >= script.MANY_ROWS
    sums, places = actor.agent.embed_ids(ints)
    assert all(len(part) == len(place.unique()) < len(place) / 2 for part, place in zip(sums, places))
    found = {}
    for limit in (script.MANY_ROWS, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(script, "MANY_ROWS", limit)
            core, candidates = actor.agent.encode(ints, floats)
            loss = core.square().sum() + candidates.moves.square().sum()
            names = ("embedding.weight", "mon_ids.weight", "move_ids.weight", "history_in.weight")
            weights = [dict(actor.agent.named_parameters())[name] for name in names]
            found[limit] = [embedded(actor.agent, ints), core, *torch.autograd.grad(loss, weights)]
    for many, few in zip(*found.values()):
        assert torch.allclose(many, few, rtol=1e-3, atol=1e-3 * few.abs().max().item()) and few.abs().max() > 0


def test_another_attention_layer_adds_to_what_the_first_made(mixed):
    actor, batch = mixed
    deeper = script.make_agent({**vars(small_args()), "attention_layers": 2})
    missing, unexpected = deeper.load_state_dict(actor.agent.state_dict(), strict=False)
    assert {name.split(".")[1] for name in missing} == {"1"} and not unexpected
    ints, floats = batch.rows["ints"][:64], batch.rows["floats"][:64]
    with torch.no_grad():
        core = actor.agent.encode(ints, floats)[0]
        assert (deeper.encode(ints, floats)[0] - core).abs().max() > 1e-2
        for layer in (deeper.attention[1].attention_out, deeper.attention[1].feed_out):
            layer.weight.zero_()
        assert torch.allclose(deeper.encode(ints, floats)[0], core, atol=1e-6)


def test_masked_actions_have_probability_0_and_no_gradient(mixed):
    actor, batch = mixed
    with torch.no_grad():
        rows, logprobs, *_ = evaluate_all(actor.agent, batch)
    legal = batch.rows["legal"][rows]
    assert (logprobs.exp()[~legal] == 0).all() and (logprobs.exp()[legal] > 0).all()
    assert torch.allclose(logprobs.exp().sum(-1), torch.ones(len(rows), 2), atol=1e-5)
    logits = torch.randn(legal.shape, requires_grad=True)
    tables = script.masked_log_softmax(logits, legal)
    (script.taken_logprob(tables, choices_at(batch, rows)).sum() + script.policy_entropy(tables).sum()).backward()
    assert (logits.grad[~legal] == 0).all() and torch.isfinite(logits.grad).all()
    choosing = legal & (legal.sum(-1, keepdim=True) > 1)
    assert (logits.grad[choosing] != 0).float().mean() > 0.99


def test_unroll_gives_back_the_actors_log_probs_and_values(mixed):
    """Over whole battles of all lengths, over borders of rollouts, and over decisions that were asked twice."""
    actor, batch = mixed
    with torch.no_grad():
        rows, logprobs, hidden, _ = evaluate_all(actor.agent, batch)
    logprob = script.taken_logprob(logprobs, choices_at(batch, rows))
    assert sorted(rows.tolist()) == list(range(len(batch.rows["actions"]))) and actor.env.count > 100
    assert (logprob - batch.rows["logprobs"][rows]).abs().max() < 1e-5
    assert (actor.agent.value(hidden) - batch.rows["values"][rows]).abs().max() < 1e-5
    assert float(batch.rows["logprobs"].std()) > 0.3 and float(batch.rows["values"].std()) > 0.01
    alone = torch.ones_like(batch.rows["actions"])  # every decision as a battle of its own: the memory matters
    forgetful = SimpleNamespace(rows=batch.rows, starts=alone.cumsum(0) - 1, lengths=alone)
    with torch.no_grad():
        rows, logprobs, *_ = evaluate_all(actor.agent, forgetful)
    assert (script.taken_logprob(logprobs, choices_at(batch, rows)) - batch.rows["logprobs"][rows]).abs().max() > 1e-3


def test_joint_policy_is_the_product_of_both_choices(mixed):
    actor, batch = mixed
    rows = torch.arange(0, len(batch.rows["actions"]), 3)
    is_preview, legal, actions = (batch.rows[name][rows] for name in ("is_preview", "legal", "actions"))
    joint = torch.zeros(len(rows), mdbo.NUM_ACTIONS, dtype=torch.bool)
    for index in range(len(rows)):
        if is_preview[index]:
            joint[index, : mdbo.NUM_PREVIEWS] = legal[index, 0]
        else:  # some pairs of the legal first choices, and exactly the legal second ones of the action taken
            table = joint[index].view(45, 45)
            table[legal[index, 0, :45]] = torch.rand(int(legal[index, 0].sum()), 45) < 0.3
            table[legal[index, 0, :45], 44] = True
            table[actions[index] // 45] = legal[index, 1, :45]
    agent = actor.agent
    with torch.no_grad():
        states = states_before(agent, batch)[rows]
        hidden, candidates, _ = agent.step(batch.rows["ints"][rows], batch.rows["floats"][rows], states)
        whole = agent.joint_logprobs(hidden, candidates, is_preview, joint)
        action, logprob, seen = agent.act(hidden, candidates, is_preview, joint, torch.Generator().manual_seed(3))
        again = agent.logprobs(hidden, candidates, is_preview, seen, action)
    assert torch.allclose(whole.exp().sum(1), torch.ones(len(rows)), atol=1e-4) and (whole.exp()[~joint] == 0).all()
    assert joint[torch.arange(len(rows)), action].all()
    assert (whole.gather(1, action[:, None])[:, 0] - logprob).abs().max() < 1e-5
    assert (script.taken_logprob(again, script.split_action(is_preview, action)) - logprob).abs().max() < 1e-5
    taken = whole.gather(1, actions[:, None])[:, 0]
    assert (taken - batch.rows["logprobs"][rows]).abs().max() < 1e-4


def test_entropy_is_the_mean_surprise(mixed):
    """The entropy of the first choice plus that of the second, averaged over samples, is -E[log π] of the joint
    policy."""
    actor, batch = mixed
    legal = batch.rows["legal"]
    row = int(((legal[:, 0].sum(1) > 8) & ~batch.rows["is_preview"]).nonzero()[0])
    count = 8000
    joint = torch.zeros(45, 45, dtype=torch.bool)
    joint[legal[row, 0, :45]] = legal[row, 1, :45]
    agent = actor.agent
    with torch.no_grad():
        state = states_before(agent, batch)[[row]]
        hidden, candidates, _ = agent.step(batch.rows["ints"][[row]], batch.rows["floats"][[row]], state)
        hidden = hidden.expand(count, -1)
        candidates = script.Candidates(*(part.expand(count, *part.shape[1:]) for part in candidates))
        is_preview = torch.zeros(count, dtype=torch.bool)
        generator = torch.Generator().manual_seed(5)
        action, logprob, seen = agent.act(hidden, candidates, is_preview, joint.flatten().expand(count, -1), generator)
        entropy = script.policy_entropy(agent.logprobs(hidden, candidates, is_preview, seen, action))
    spread = 4 * float(logprob.std()) / count**0.5 + 1e-3
    assert float(entropy.mean()) == pytest.approx(-float(logprob.mean()), abs=spread)


# ----------------------------------------------------------------------------------------------------------- the update


def test_clipped_loss_by_hand():
    """A good action gains nothing beyond 1 + ε, a bad one nothing below 1 - ε; on the other sides nothing is
    clipped."""
    ratios, advantages = torch.tensor([1.5, 0.5, 0.5, 1.5]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    logprob = ratios.log().requires_grad_()
    loss, stats = script.clipped_loss(logprob, torch.zeros(4), advantages, 0.2)
    torch.testing.assert_close(loss, torch.tensor([-1.2, -0.5, 0.8, 1.5]).mean())
    loss.backward()
    torch.testing.assert_close(logprob.grad, torch.tensor([0.0, -0.5, 0.0, 1.5]) / 4)
    torch.testing.assert_close(stats["approx_kl"], (ratios - 1 - ratios.log()).mean())
    assert float(stats["clipfrac"]) == 1.0


def test_foe_actions_are_what_the_foes_then_do(mixed):
    """Of every turn it is known what the opponent chose, whoever it is; the next observation shows its moves."""
    _, batch = mixed
    ints, floats = batch.rows["ints"].long(), batch.rows["floats"]
    opp, history, field = LAYOUT["opp"], LAYOUT["history"], LAYOUT["field"]
    answers = script.foe_answers(batch.rows["foe_actions"], batch.rows["is_preview"])
    is_turn = ~batch.rows["is_preview"] & (floats[:, field.float_index(0, "forced")] == 0)
    assert (answers[is_turn] >= 0).any(1).all() and (answers[batch.rows["is_preview"]] == -1).all()
    assert 0.05 < (answers[~is_turn & ~batch.rows["is_preview"]] == -1).all(1).float().mean() < 1.0
    right, seen = np.zeros((2, 5)), np.zeros((2, 5))  # moves and switches, by opponent
    opponents = batch.results["opponents"].repeat_interleave(batch.lengths).tolist()
    last_rows = set((batch.starts + batch.lengths - 1).tolist())
    for row in set(is_turn.nonzero().flatten().tolist()) - last_rows:
        turns = 25 * (floats[row + 1] - floats[row])[field.float_index(0, "turn")]
        for slot, answer in enumerate(answers[row].tolist()):
            events = []  # the moves and switches of this foe in the turn that followed, the first one last
            for event in range(history.rows):
                used, age, is_switch, is_cant = floats[row + 1, history.float_index(event, "used") :][:4].tolist()
                actor, _, move = ints[row + 1, history.int_index(event, "actor") :][:3].tolist()
                if used and not is_cant and actor == 3 + slot and abs(4 * age - turns) < 0.01:
                    events.append((is_switch, move))
            if answer >= 0 and events:
                place = [floats[row, opp.float_index(mon, f"active_{'ab'[slot]}")] for mon in range(6)].index(1.0)
                move = int(ints[row, opp.int_index(place, f"move_{answer // 10 + 1}")]) if answer < 40 else 0
                if events[-1][0] == (answer == 40) or answer == 40:  # a foe may be driven out before its move
                    seen[answer // 40, opponents[row]] += 1
                    right[answer // 40, opponents[row]] += events[-1] == (answer == 40, move)
    assert (seen[0] > 0).all() and right[0].sum() > 0.97 * seen[0].sum() and right[1].sum() > 0.9 * seen[1].sum() > 0


@pytest.mark.parametrize("script", [script, rnad_vgc_portfolio])
def test_foe_head_learns_what_foes_do(script, mixed):
    batch = mixed[1]
    changes = {"aux_coef": 1.0, "update_epochs": 20, "target_kl": 0.0, "vf_coef": 0.0, "learning_rate": 1e-3}
    args = script.Args(**{**SMALL, **changes})
    torch.manual_seed(1)
    agent = script.make_agent(vars(args))
    head = script.make_foe_head(args)
    optimizer = torch.optim.Adam([*agent.parameters(), *head.parameters()], lr=1e-3)
    scaler = torch.amp.GradScaler(enabled=False)
    references = [script.policy_logprobs(agent, batch, "cpu")[None]] if script is rnad_vgc_portfolio else []
    parts = (agent, optimizer, scaler, contextlib.nullcontext, batch, *references)
    update = functools.partial(script.update_agent, *parts, foe_head=head)
    first = update(args=dataclasses.replace(args, update_epochs=1))
    before = {name: tensor.clone() for name, tensor in agent.state_dict().items()}
    update(args=args)
    last = update(args=dataclasses.replace(args, update_epochs=1))
    assert last["losses/foe_loss"] < 0.7 * first["losses/foe_loss"]
    assert last["losses/foe_accuracy"] > 2 * first["losses/foe_accuracy"]
    answers = script.foe_answers(batch.rows["foe_actions"], batch.rows["is_preview"])
    known = float((answers >= 0).any(1).float().mean())
    assert 0.5 < known < 1.0 and 0.5 < last["losses/foe_known"] < 1.0
    # the gradient reaches what the policy is made of
    logits = head(agent, *script.evaluate_battles(agent, batch, torch.arange(4), "cpu")[2:], *rows_of(batch, 4))
    agent.zero_grad()
    script.foe_loss(logits, answers[packed_rows(batch, 4)])[0].backward()
    for name in ("lstm.weight_hh_l0", "embedding.weight", "mon_ids.weight", "attention.0.qkv.weight"):
        assert dict(agent.named_parameters())[name].grad.abs().max() > 0, name
    assert agent.query.weight.grad is None and any(not before[name].equal(agent.state_dict()[name]) for name in before)


def test_no_foe_is_predicted_without_its_sheet():
    """Its choice is numbered by the moves of its sheet."""
    for script_ in (script, rnad_vgc_portfolio):
        assert script_.make_foe_head(script_.Args()) is not None
        assert script_.make_foe_head(script_.Args(open_team_sheets=False)) is None
        assert script_.make_foe_head(script_.Args(aux_coef=0.0)) is None


def packed_rows(batch, battles):
    return script.pack_battles(batch.starts[:battles], batch.lengths[:battles])[0]


def rows_of(batch, battles):
    return [batch.rows[name][packed_rows(batch, battles)] for name in ("ints", "floats")]


def naive_loss(tables, win_logit, choices, old_logprob, advantages, returns, args):
    """The same with loops and Python's numbers, from the formulas"""
    count = len(tables)
    mean = sum(advantages) / count
    std = math.sqrt(sum((a - mean) ** 2 for a in advantages) / count)
    policy = value = entropy = 0.0
    for row in range(count):
        ratio = math.exp(sum(tables[row][head][choices[row][head]] for head in range(2)) - old_logprob[row])
        advantage = (advantages[row] - mean) / (std + 1e-8)
        clipped = min(max(ratio, 1 - args.clip_coef), 1 + args.clip_coef)
        policy -= min(ratio * advantage, clipped * advantage) / count
        p, chance = (min(max(returns[row], -1), 1) + 1) / 2, 1 / (1 + math.exp(-win_logit[row]))
        value -= (p * math.log(chance) + (1 - p) * math.log(1 - chance)) / count
        entropy -= sum(math.exp(x) * x for head in tables[row] for x in head if x > -1e30) / count
    return policy, value, entropy


def loss_inputs(seed=0, rows=16):
    generator = torch.Generator().manual_seed(seed)
    legal = torch.rand(rows, 2, 90, generator=generator) < 0.2
    legal[:, :, 0] = True
    tables = script.masked_log_softmax(torch.randn(rows, 2, 90, generator=generator), legal)
    choices = legal.float().flatten(0, 1).multinomial(1, generator=generator).view(rows, 2)
    old_logprob = script.taken_logprob(tables, choices) + 0.3 * torch.randn(rows, generator=generator)
    numbers = [torch.randn(rows, generator=generator) for _ in range(3)]
    return {
        "logprobs": tables, "choices": choices, "old_logprob": old_logprob, "win_logit": numbers[0],
        "advantages": numbers[1], "returns": numbers[2],
    }  # fmt: skip


def test_loss_is_the_sum_of_its_terms_by_a_naive_implementation():
    inputs = loss_inputs()
    args = small_args(ent_coef=0.3, vf_coef=0.7)
    loss, stats = script.ppo_loss(**inputs, args=args)
    lists = {name: tensor.tolist() for name, tensor in inputs.items()}
    tables = lists.pop("logprobs")
    policy, value, entropy = naive_loss(tables, args=args, **lists)
    assert float(stats["policy_loss"]) == pytest.approx(policy, abs=1e-5)
    assert float(stats["value_loss"]) == pytest.approx(value, abs=1e-5)
    assert float(stats["entropy"]) == pytest.approx(entropy, abs=1e-4)
    assert float(loss) == pytest.approx(policy + 0.7 * value - 0.3 * entropy, abs=1e-4)  # an entropy bonus, not a fine
    loss, _ = script.ppo_loss(**inputs, args=args, value_only=True)
    assert float(loss) == pytest.approx(0.7 * value, abs=1e-5)


def test_every_loss_term_alone_has_a_finite_policy_gradient(mixed):
    actor, batch = mixed
    agent = actor.agent
    for term in ("policy_loss", "value_loss", "entropy"):
        agent.zero_grad()
        rows, logprobs, hidden, _ = evaluate_all(agent, batch)
        advantages = torch.linspace(-1, 1, len(rows))
        _, stats = script.ppo_loss(
            logprobs=logprobs,
            win_logit=agent.win_logit(hidden),
            choices=choices_at(batch, rows),
            old_logprob=batch.rows["logprobs"][rows] + 0.1,
            advantages=advantages,
            returns=-advantages,
            args=small_args(),
        )
        stats[term].backward()
        gradients = {name: p.grad for name, p in agent.named_parameters() if p.grad is not None}
        assert all(torch.isfinite(gradient).all() for gradient in gradients.values())
        reached = {name for name, gradient in gradients.items() if gradient.abs().sum() > 0}
        assert {"embedding.weight", "attention.0.qkv.weight", "lstm.weight_hh_l0", "core_in.weight"} <= reached, term
        assert ("value_out.weight" in reached) == (term == "value_loss")
        for head in (
            "query.weight",
            "given_slot_0.weight",
            "preview_query.weight",
            "hit_numbers.weight",
            "switch_key.weight",
        ):
            assert (head in reached) == (term != "value_loss"), f"{term} and {head}"


def test_gradient_step_clips_and_goes_downhill():
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=8.0)
    norm = script.gradient_step((weight**2).sum() / 2, optimizer, scaler, max_grad_norm=0.5)
    assert float(norm) == pytest.approx(5.0), "of the gradient itself, not of the scaled one"
    torch.testing.assert_close(weight.detach(), torch.tensor([3.0, 4.0]) * 0.9)


def updated(mixed, learning_rate=1e-3, value_only=False, **changes):
    """A copy of the agent after one update of the batch → before, after, metrics"""
    actor, batch = mixed
    args = small_args(**changes)
    agent = script.make_agent(vars(args))
    agent.load_state_dict(actor.agent.state_dict())
    optimizer = torch.optim.Adam(agent.parameters(), lr=learning_rate)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    torch.manual_seed(1)
    metrics = script.update_agent(agent, optimizer, scaler, contextlib.nullcontext, batch, args, value_only=value_only)
    return actor.agent.state_dict(), agent.state_dict(), metrics


def test_passes_stop_once_the_policy_has_moved_far_enough(mixed):
    assert updated(mixed, learning_rate=1e-2, update_epochs=4, target_kl=1e-4)[2]["losses/passes"] == 1
    assert updated(mixed, learning_rate=1e-9, update_epochs=4, target_kl=1e-4)[2]["losses/passes"] == 4
    assert updated(mixed, learning_rate=1e-2, update_epochs=4, target_kl=0.0)[2]["losses/passes"] == 4


def test_value_warm_up_trains_the_value_head_only(mixed):
    before, after, _ = updated(mixed, value_only=True)
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"value_out"}
    before, after, _ = updated(mixed)
    assert {"value_out", "query", "embedding", "lstm"} <= {
        name.split(".")[0] for name in before if not torch.equal(before[name], after[name])
    }


def test_directions_of_an_update(mixed):
    """A huge entropy weight raises the entropy; what had a large advantage gains on what had a small one."""
    actor, batch = mixed
    _, after, _ = updated(mixed, ent_coef=100.0, update_epochs=6, target_kl=0.0)
    agent = script.make_agent(vars(small_args()))
    agent.load_state_dict(after)
    with torch.no_grad():
        rows, logprobs, *_ = evaluate_all(agent, batch)
        _, before, *_ = evaluate_all(actor.agent, batch)
    assert float(script.policy_entropy(logprobs).mean()) > float(script.policy_entropy(before).mean()) + 0.05
    _, after, _ = updated(mixed, learning_rate=1e-4, ent_coef=0.0, vf_coef=0.0, update_epochs=1, num_minibatches=1)
    agent.load_state_dict(after)
    with torch.no_grad():
        rows, logprobs, *_ = evaluate_all(agent, batch)
    gain = script.taken_logprob(logprobs, choices_at(batch, rows)) - batch.rows["logprobs"][rows]
    advantages = script.advantages_and_returns(batch, 0.99, 0.95)[0][rows]
    assert float((gain * script.normalise(advantages)).mean()) > 1e-4


@pytest.mark.parametrize("num_minibatches", [1, 7, 1000])
def test_minibatches_hold_every_battle_once(num_minibatches):
    parts = script.minibatches(23, num_minibatches)
    assert sorted(torch.cat(parts).tolist()) == list(range(23)) and all(len(part) for part in parts)
    assert len(parts) == min(num_minibatches, 23)


# ---------------------------------------------------------------------------------------------------------------- actor


def test_only_the_learners_own_decisions_are_written_down(mixed):
    """Each decision of its policy once, however often it was asked; none of a past self's or a scripted player's."""
    actor, batch = mixed
    under_way = int(actor.lengths.sum()) + sum(battle["lengths"] for _, battle in actor.waiting)
    assert actor.decided == len(batch.rows["actions"]) + under_way and under_way
    assert set(batch.results["opponents"].tolist()) >= {script.SELF, script.PAST, script.SCRIPTED}
    past = batch.results["opponents"] == script.PAST
    assert (batch.results["policy_ids"][past] == 1).all() and (batch.results["policy_ids"][~past] == 0).all()


def test_battles_are_whole(mixed):
    """PREVIEW, TURN, …, TURN, and the reward of the last one is the battle's."""
    _, batch = mixed
    first = torch.zeros_like(batch.rows["is_preview"])
    first[batch.starts] = True
    assert torch.equal(batch.rows["is_preview"], first) and (batch.lengths > 1).all()
    last = batch.starts + batch.lengths - 1
    rewards = batch.rows["rewards"].clone()
    assert torch.equal(rewards[last], 2 * batch.results["scores"] - 1) and (rewards[last].abs() == 1).all()
    rewards[last] = 0.0
    assert not rewards.any() and not batch.bootstrap_values.any() and (batch.rows["versions"] == 3).all()
    own = batch.results["opponents"] == script.SELF  # both seats of these are the learner's
    assert abs(float(batch.results["scores"][own].mean()) - 0.5) < 0.35
    metrics = script.battle_metrics(batch.results)
    assert metrics["win_rate/self_n"] == int((own & (batch.results["sides"] == 0)).sum())
    assert metrics["charts/episodic_return"] == pytest.approx(float(2 * batch.results["scores"][~own].mean() - 1))


def test_truncated_battles_bootstrap():
    _, batch = play(small_args(turn_cap=2, past_fraction=0.0, **NO_SCRIPTED), 1)
    assert len(batch.lengths) > 10 and not batch.rows["rewards"].any() and (batch.results["scores"] == 0.5).all()
    assert (batch.bootstrap_values != 0).all()


@pytest.mark.parametrize(("num_battles", "buffer_size"), [(1, 1), (1, 30), (3, 64), (8, 20)])
def test_small_rollouts_hold_whole_battles_and_lose_none(num_battles, buffer_size):
    args = small_args(num_battles=num_battles, buffer_size=buffer_size, past_fraction=0.0, **NO_SCRIPTED)
    actor = script.Actor(args, 0)
    broadcast = script.make_broadcast(args, actor.agent)
    script.League(args, broadcast).publish(actor.agent, 0)
    storage, rows, seen = script.make_storage(args), 0, set()
    for _ in range(4):
        actor.rollout(broadcast, storage)
        lengths = storage["lengths"][: int(storage["num_battles"])]
        assert int(lengths.sum()) == int(storage["num_rows"]) and len(lengths)
        assert int(lengths.sum()) <= buffer_size or len(lengths) == 1
        starts = (lengths.cumsum(0) - lengths).tolist()
        assert storage["is_preview"][: int(lengths.sum())].nonzero()[:, 0].tolist() == starts
        seen |= {
            tuple(logprobs.tolist()) for logprobs in storage["logprobs"][: int(lengths.sum())].split(lengths.tolist())
        }
        rows += len(lengths)
    actor.env.close()
    assert len(seen) == rows, "no battle is handed over twice"


def test_who_holds_a_seat_holds_it_to_the_end(monkeypatch):
    """Even when the member leaves the league in mid-battle."""
    args = small_args(past_fraction=0.8, league_size=1, **NO_SCRIPTED)
    actor = script.Actor(args, 0)
    broadcast = script.make_broadcast(args, actor.agent)
    league, storage, held = script.League(args, broadcast), script.make_storage(args), {}
    league.join("a", script.to_flat(actor.agent))
    recv, changes = actor.env.recv, []

    def watched():
        """Before each answer: the seats' holders as they were at the last one, unless a battle has begun since."""
        batch = recv()
        for row in batch.decisions:
            key = int(batch.key[row])
            holder = actor.policy_ids[key]
            if batch.kind[row] != script.PREVIEW and held.setdefault(key, holder) != holder:
                changes.append(key)
            if batch.kind[row] == script.PREVIEW:
                held.pop(key, None)
        return batch

    monkeypatch.setattr(actor.env, "recv", watched)
    league.publish(actor.agent, 0)
    actor.rollout(broadcast, storage)
    assert (actor.policy_ids == 1).any()
    copied = script.to_flat(actor.frozen_policies[1])
    league.join("b", torch.zeros_like(copied))  # takes the only place of the league
    league.publish(actor.agent, 1)
    actor.rollout(broadcast, storage)
    actor.env.close()
    assert not changes and (actor.policy_ids == 2).any()
    kept = [policy for policy_id, policy in actor.frozen_policies.items() if policy_id == 1]
    assert all(torch.equal(script.to_flat(policy), copied) for policy in kept)
    versions = storage["versions"][: int(storage["num_rows"])]
    assert set(versions.tolist()) == {0, 1}, "a battle keeps the versions that decided in it"


def test_league_qualities_follow_the_rule():
    args = small_args(league_size=3)
    agent = torch.nn.Linear(3, 1)
    league = script.League(args, script.make_broadcast(args, agent))
    for name in "abc":
        league.join(name, torch.zeros(4))
    assert league.probabilities() == pytest.approx([1 / 3] * 3)

    def record(index, score):
        policy_id = league.members[index]["policy_id"]
        league.record({"policy_ids": torch.tensor([0, policy_id]), "scores": torch.tensor([1.0, score])})

    record(1, 1.0)
    assert league.members[1]["quality"] == pytest.approx(-0.01)
    record(2, 0.0)
    assert league.members[2]["quality"] == 0.0
    league.join("d", torch.ones(4))  # full: the easiest, b, leaves
    assert [member["name"] for member in league.members] == ["a", "c", "d"]
    place = league.members[2]["place"]
    assert league.broadcast.member_weights[place].tolist() == [1.0] * 4
    league.publish(agent, 7)
    told = league.broadcast.members
    assert league.broadcast.version == 7 and int(told["policy_id"][place]) == 4
    assert int(told["opponent"][place]) == script.PAST and float(told["probability"].sum()) == pytest.approx(1.0)
    np.testing.assert_allclose(league.broadcast.numbers["shares"].numpy(), script.base_shares(args))


def test_evaluations_draw_other_battles(monkeypatch):
    seeds = []

    def played(player, opponent, battles, battle_format, seed):
        seeds.append(seed)
        return np.ones(battles), np.ones(battles)

    monkeypatch.setattr(script, "play_battles", played)
    args, agent = small_args(), script.make_agent(vars(small_args()))
    for step in (100, 200, 100):
        metrics = script.evaluate(args, agent, 2, {"random": "random", "heuristics": "heuristics"}, seed=step)
    assert metrics["eval/random"] == 1.0 and metrics["eval/heuristics_n"] == 2
    assert len(set(seeds[:4])) == 4 and seeds[:2] == seeds[4:], "the same only at the same step"


# ------------------------------------------------------------------------------------------------------ sharing, models


def test_sharing_chooses_files_when_shared_memory_is_small(monkeypatch, capsys):
    assert shared_memory.choose_sharing("shared_memory", 1 << 60) == "shared_memory"
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    assert shared_memory.choose_sharing("auto", 1 << 19) == "shared_memory"
    assert (
        shared_memory.choose_sharing("auto", 1 << 20) == "file_system"
        and "--sharing file_system" in capsys.readouterr().out
    )


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
    contract_hash, action_space = script.contract.contract_hash(), script.contract.ACTION_SPACE
    runtime_models.load_matching_weights(agent, path, "--bc-model", contract_hash, action_space)


def test_bc_model_reports_every_tensor_and_refuses_other_games(tmp_path, capsys):
    args = small_args()
    model = save(tmp_path / "same.zip", args)
    agent = script.make_agent(vars(args))
    take_over(agent, tmp_path / "same.zip")
    assert all(
        torch.equal(ours, theirs) for ours, theirs in zip(agent.state_dict().values(), model.state_dict().values())
    )
    said = capsys.readouterr().out
    assert said.count("taken over") == len(agent.state_dict()) and "left as it was" not in said

    wider = script.make_agent({**vars(args), "lstm_size": 32})
    before = {name: tensor.clone() for name, tensor in wider.state_dict().items()}
    take_over(wider, tmp_path / "same.zip")
    said = capsys.readouterr().out
    assert "core_in.weight (32, 128) left as it was, the model's is (24, 128)" in said
    assert f"embedding.weight {tuple(wider.embedding.weight.shape)} taken over" in said
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
    with pytest.raises(BadInput, match="--teams: nowhere does not exist"):
        script.check_args(small_args(teams=("shipped", "nowhere")))
    with pytest.raises(BadInput, match="--width 18 is no multiple of the 4 attention heads"):
        script.check_args(small_args(width=18))


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


# With a constant learning rate nothing depends on where a run is going to end, so half a run is the half of a whole
# one.
LEAGUE_RUN = (
    "--num-workers 0 --past-fraction 0.4 --random-fraction 0.15 --heuristics-fraction 0.15 --checkpoint-frequency 1"
).split()
LEAGUE_RUN += ["--learning-rate-final", "3e-4"]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """An inline run of five updates with all kinds of opponents, uninterrupted, with a battle played for evaluation at
    the end."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(start(folder, *LEAGUE_RUN, "--keep-models", 2, "--total-timesteps", 750, "--final-battles", 1))
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
    for checkpoint in (ours, theirs):  # what depends on the clock, and on an evaluation that only one of them had
        checkpoint["progress"] = {name: checkpoint["progress"][name] for name in ("update", "global_step", "version")}
    assert ours["progress"] == theirs["progress"] and ours["league"] == theirs["league"]
    for name, tensor in theirs["agent"].items():
        assert torch.equal(ours["agent"][name], tensor), f"{name} differs"
    for key in ("member_weights", "torch_rng"):
        assert torch.equal(ours[key], theirs[key])
    ours, theirs = ours["actor"], theirs["actor"]
    assert ours["played"] == theirs["played"] and ours["rng"] == theirs["rng"]
    assert torch.equal(ours["memory_after"], theirs["memory_after"]) and torch.equal(
        ours["generator"], theirs["generator"]
    )
    lengths = theirs["arrays"]["lengths"]
    assert torch.equal(ours["arrays"]["lengths"], lengths) and lengths.any()
    for key, length in enumerate(lengths.tolist()):
        assert torch.equal(ours["rows"]["floats"][key, :length], theirs["rows"]["floats"][key, :length])


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
    assert (metadata["game"], metadata["action_space"], metadata["battle_format"]) == (
        "vgc",
        contract.ACTION_SPACE,
        "gen9vgc2023regc",
    )
    checkpoint = load_checkpoint(whole_run)
    assert all(torch.equal(checkpoint["agent"][name], tensor) for name, tensor in agent.state_dict().items())


def test_checkpoint_of_another_network_and_frozen_layers(whole_run, tmp_path):
    words = [sys.executable, "cleanrl_games/ppo_vgc_mdbo.py", "--resume", str(whole_run), "--lstm-size", "32"]
    files = {path: path.read_bytes() for path in whole_run.iterdir() if path.is_file()}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "not of the sizes that these settings describe" in done.stderr
    assert "Traceback" not in done.stderr
    assert files == {path: path.read_bytes() for path in whole_run.iterdir() if path.is_file()}, "nothing was written"
    flags = [
        "--num-workers",
        0,
        "--total-timesteps",
        300,
        "--bc-model",
        whole_run,
        "--value-warmup-updates",
        1,
        "--freeze-shared",
    ]
    output = finish(start(tmp_path / "run", *flags, "--lr", "0.01", "--amp", "bf16"))
    assert (
        f"embedding.weight {tuple(script.make_agent(vars(small_args())).embedding.weight.shape)} taken over" in output
    )
    before, after = (script.load_model(path)[0].state_dict() for path in (whole_run, tmp_path / "run"))
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == set(script.HEADS)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["learning_rate"] == 0.01


def test_a_killed_simulator_and_a_killed_actor_are_replaced(tmp_path):
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
    worker.kill()
    before = len(metrics_of(folder))
    wait_for(lambda: len(metrics_of(folder)) >= before + 3, process)
    family += psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    output = finish(process, seconds=90)
    assert f"Node process {node.pid} ended (killed by SIGKILL)" in output
    assert f"Actor process 0 died (pid {worker.pid}, exit code -9): a new one takes its place." in output
    assert load_checkpoint(folder)["progress"]["update"] >= before + 3
    assert_gone(family)


def test_the_smallest_sizes_train(tmp_path):
    """What a beginner tries first, and less: minibatches of one battle, rollouts of one."""
    for number, sizes in enumerate(("--num-battles 8 --buffer-size 256", "--num-battles 1 --buffer-size 1")):
        words = [sys.executable, "cleanrl_games/ppo_vgc_mdbo.py", "--num-workers", "0", *sizes.split()]
        words += ["--total-timesteps", "40", "--final-battles", "0", "--teams", "shipped", "--width", "16"]
        words += ["--run-dir", str(tmp_path / str(number)), "--checkpoint-dir", str(tmp_path / "checkpoints")]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert metrics_of(tmp_path / str(number))[-1]["global_step"] >= 40


def test_ctrl_c_leaves_a_checkpoint_and_no_process(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--num-workers", 1, start_new_session=True)
    wait_for(lambda: len(metrics_of(folder)) >= 2, process)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    output = finish(process, seconds=90)
    assert "Stopping after this update" in output and "Node process" not in output
    assert load_checkpoint(folder)["progress"]["update"] == len(metrics_of(folder))
    assert_gone(family)
