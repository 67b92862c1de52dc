"""Three updates of a learner against a second implementation of them, written from the formulas and with plain loops.

The second one plays every battle step by step, sums advantages by their definition, and takes a gradient step by hand.
What the learner does with rows, signs, minibatches, old log-probs, clipping or gradients that were not cleared shows in
the weights."""

import contextlib
import copy
import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cleanrl_games import (
    bc_pokemon_impala,
    bc_vgc_mdbo,
    ppo_osrs_selfplay,
    ppo_vgc_mdbo,
    recurrent_ppo_rocketleague,
    rnad_vgc_portfolio,
)
from tests import test_bc_pokemon, test_bc_vgc, test_ppo_vgc, test_recurrent_ppo_rocketleague, test_rnad_vgc

mixed, played = test_ppo_vgc.mixed, test_rnad_vgc.played
folder, data = test_bc_vgc.folder, test_bc_vgc.data
STEP = 0.2
SETTINGS = {"gamma": 0.9, "gae_lambda": 0.8, "ent_coef": 0.05, "vf_coef": 0.7, "clip_coef": 0.1, "max_grad_norm": 0.4}
SETTINGS |= {"update_epochs": 1, "num_minibatches": 1, "target_kl": 0.0}


def learn(agent, update, times=3):
    """The agent's weights after some updates of the learner, by gradient descent without momentum"""
    agent = copy.deepcopy(agent).train()
    optimizer = torch.optim.SGD(agent.parameters(), lr=STEP)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(times):
        update(agent, optimizer, scaler, contextlib.nullcontext)
    return agent.state_dict()


def learn_by_hand(agent, loss_of, max_grad_norm, times=3):
    agent = copy.deepcopy(agent).train()
    for _ in range(times):
        parameters = dict(agent.named_parameters())
        gradients = torch.autograd.grad(loss_of(agent), parameters.values(), allow_unused=True)
        norm = math.sqrt(sum(float((gradient.double() ** 2).sum()) for gradient in gradients if gradient is not None))
        assert norm > max_grad_norm, "so that clipping matters"
        with torch.no_grad():
            for parameter, gradient in zip(parameters.values(), gradients):
                if gradient is not None:
                    parameter -= STEP * gradient * max_grad_norm / norm
    return agent.state_dict()


def assert_same(learned, by_hand, start, tolerance=0.003):
    moved = math.sqrt(
        sum(
            float(((by_hand[name] - start[name]).double() ** 2).sum())
            for name in start
            if start[name].is_floating_point()
        )
    )
    apart = math.sqrt(
        sum(
            float(((learned[name] - by_hand[name]).double() ** 2).sum())
            for name in start
            if start[name].is_floating_point()
        )
    )
    assert moved > 0.03 and apart < tolerance * moved, (
        f"the weights moved by {moved:.4f}, and are {apart:.5f} from those computed by hand"
    )


def few(batch, count=6):
    """The first battles of a batch: by hand every decision is a pass of its own."""
    rows = int(batch.lengths[:count].sum())
    names = ("starts", "lengths", "bootstrap_values")
    parts = {name: getattr(batch, name)[:count].clone() for name in names}
    parts["bootstrap_values"][0] = 0.4  # as if it had been truncated
    return dataclasses.replace(batch, rows={name: values[:rows] for name, values in batch.rows.items()}, **parts)


def walk(agent, rows, starts, lengths):
    """Every battle step by step → log-prob tables (N, 2, 90) and win logits (N,), in the order of rows"""
    tables, logits = {}, {}
    for start, length in zip(starts, lengths):
        state = agent.initial_state(1)
        for row in range(start, start + length):
            hidden, candidates, state = agent.step(rows["ints"][[row]], rows["floats"][[row]], state)
            tables[row] = agent.logprobs(
                hidden, candidates, rows["is_preview"][[row]], rows["legal"][[row]], rows["actions"][[row]]
            )[0]
            logits[row] = agent.win_logit(hidden)[0]
    return torch.stack([tables[row] for row in sorted(tables)]), torch.stack([logits[row] for row in sorted(logits)])


def advantages_by_definition(batch, gamma, gae_lambda):
    """A_t = Σ_k (γλ)^(k-t) (r_k + γ V_{k+1} - V_k), within a battle"""
    rewards, values = batch.rows["rewards"].tolist(), batch.rows["values"].tolist()
    found = []
    for start, length, after in zip(batch.starts.tolist(), batch.lengths.tolist(), batch.bootstrap_values.tolist()):
        following = [*values[start + 1 : start + length], after]
        deltas = [rewards[start + t] + gamma * following[t] - values[start + t] for t in range(length)]
        found += [sum((gamma * gae_lambda) ** (k - t) * deltas[k] for k in range(t, length)) for t in range(length)]
    return torch.tensor(found)


def taken(tables, batch):
    """Log-probs of what was played, choice by choice (a preview has one)"""
    total = []
    for table, action, preview in zip(tables, batch.rows["actions"].tolist(), batch.rows["is_preview"].tolist()):
        total.append(table[0, action] if preview else table[0, action // 45] + table[1, action % 45])
    return torch.stack(total)


def policy_gradient_loss(agent, batch, references=None, alpha=0.0):
    tables, logits = walk(agent, batch.rows, batch.starts.tolist(), batch.lengths.tolist())
    advantages = advantages_by_definition(batch, SETTINGS["gamma"], SETTINGS["gae_lambda"])
    returns = advantages + batch.rows["values"]
    scaled = (advantages - advantages.mean()) / advantages.std(unbiased=False)
    ratio = (taken(tables, batch) - batch.rows["logprobs"]).exp()
    gain = torch.minimum(ratio * scaled, ratio.clip(1 - SETTINGS["clip_coef"], 1 + SETTINGS["clip_coef"]) * scaled)
    if references is not None:  # this script bounds what a bad action that has become likelier may push
        gain = torch.where(scaled < 0, torch.maximum(gain, 3 * scaled), gain)
    chance, wins = logits.sigmoid(), ((returns + 1) / 2).clip(0, 1)
    value = -(wins * chance.log() + (1 - wins) * (1 - chance).log()).mean()
    possible = batch.rows["legal"]
    p, logp = torch.where(possible, tables.exp(), 0.0), torch.where(possible, tables, 0.0)
    entropy = -(p * logp).sum((1, 2)).mean()
    loss = -gain.mean() + SETTINGS["vf_coef"] * value - SETTINGS["ent_coef"] * entropy
    if references is not None:
        kls = [(p * (logp - torch.where(possible, reference, 0.0))).sum((1, 2)) for reference in references]
        loss = loss + alpha * torch.stack(kls).min(0).values.mean()
    return loss


def test_three_updates_of_ppo(mixed):
    actor, batch = mixed[0], few(mixed[1])
    args = test_ppo_vgc.small_args(**SETTINGS)
    learned = learn(actor.agent, lambda *parts: ppo_vgc_mdbo.update_agent(*parts, batch, args))
    by_hand = learn_by_hand(actor.agent, lambda agent: policy_gradient_loss(agent, batch), args.max_grad_norm)
    assert_same(learned, by_hand, actor.agent.state_dict())


def test_three_updates_of_rnad(played):
    actor, batch = played.actor, few(played.batch)
    args = test_rnad_vgc.small_args(**SETTINGS, alpha=0.6)
    torch.manual_seed(3)
    others = [rnad_vgc_portfolio.make_agent(vars(args)) for _ in range(2)]
    with torch.no_grad():
        references = torch.stack(
            [walk(other, batch.rows, batch.starts.tolist(), batch.lengths.tolist())[0] for other in others]
        )
    learned = learn(actor.agent, lambda *parts: rnad_vgc_portfolio.update_agent(*parts, batch, references, args))
    by_hand = learn_by_hand(
        actor.agent, lambda agent: policy_gradient_loss(agent, batch, references, args.alpha), args.max_grad_norm
    )
    assert_same(learned, by_hand, actor.agent.state_dict())


@pytest.mark.parametrize("script", [ppo_vgc_mdbo, rnad_vgc_portfolio])
def test_several_minibatches_learn_from_every_row_once(script, mixed):
    """Small steps commute: two halves move the weights about as far as the whole does, and in the same direction."""
    actor, batch = mixed
    agent = script.make_agent(vars(actor.args))
    agent.load_state_dict(actor.agent.state_dict())
    references = script.policy_logprobs(agent, batch, "cpu")[None] if script is rnad_vgc_portfolio else None
    rows_seen, evaluate = [], script.evaluate_battles

    def counted(*parts):
        rows, *others = evaluate(*parts)
        rows_seen.append(rows)
        return rows, *others

    settings = SETTINGS | {"num_minibatches": 3, "update_epochs": 2}
    args = script.Args(**{**test_ppo_vgc.SMALL, **settings})
    parts = [references] if references is not None else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "evaluate_battles", counted)
        learn(agent, lambda *words: script.update_agent(*words, batch, *parts, args), times=1)
    assert len(rows_seen) == 6
    everything = list(range(len(batch.rows["actions"])))
    assert sorted(torch.cat(rows_seen[:3]).tolist()) == everything == sorted(torch.cat(rows_seen[3:]).tolist())


def test_three_updates_of_cloning(data):
    torch.manual_seed(1)
    agent = bc_vgc_mdbo.Agent(**test_bc_vgc.SMALL)
    numbers = np.arange(6)
    batch = bc_vgc_mdbo.make_batch(data, numbers, "cpu")
    batch.known[3, 1] = False  # of one decision only the first choice is known
    args = bc_vgc_mdbo.Args(vf_coef=0.7, max_grad_norm=0.4)
    lengths = data.streams["length"][numbers].tolist()

    def loss_of(agent):
        """From the streams one by one; `batch` only says which decision is known, by the place of its row."""
        place, _ = bc_vgc_mdbo.pack_battles(torch.tensor(np.cumsum(lengths) - lengths), torch.tensor(lengths))
        names = ("ints", "floats", "is_preview", "legal", "actions", "known", "outcome")
        rows = {name: torch.empty_like(getattr(batch, name)) for name in names}
        for name in names:
            rows[name][place] = getattr(batch, name)
        tables, logits = walk(agent, rows, (np.cumsum(lengths) - lengths).tolist(), lengths)
        total, decisions = 0.0, 0
        for table, action, preview, known in zip(
            tables, rows["actions"].tolist(), rows["is_preview"].tolist(), rows["known"].tolist()
        ):
            first, second = (action, 0) if preview else divmod(action, 45)
            total = total - (table[0, first] if known[0] else 0.0) - (table[1, second] if known[1] else 0.0)
            decisions += any(known)
        chance = logits.sigmoid()
        value = -torch.where(rows["outcome"] == 1, chance.log(), (1 - chance).log()).mean()
        return total / decisions + 0.7 * value

    learned = learn(agent, lambda *parts: bc_vgc_mdbo.update_agent(*parts, batch, args))
    by_hand = learn_by_hand(agent, loss_of, args.max_grad_norm)
    assert_same(learned, by_hand, agent.state_dict())


@pytest.mark.parametrize("script", [ppo_osrs_selfplay, recurrent_ppo_rocketleague])
def test_clipped_losses_of_both_signs(script):
    """Ratios beyond the clip on both sides, for good and for bad actions; by Python's own numbers."""
    ratios, advantages, bound = [1.5, 0.5, 0.5, 1.5, 5.0], [1.0, 1.0, -1.0, -1.0, -2.0], script is ppo_osrs_selfplay
    values, returns = [0.3, -0.2, 0.9, 0.0, 1.0], [1.0, 0.0, -1.0, 0.5, 0.25]
    expected = []
    for ratio, advantage in zip(ratios, advantages):
        loss = -min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
        expected.append(min(loss, -3 * advantage) if bound and advantage < 0 else loss)
    logprob = torch.tensor(ratios).log()
    policy_loss, value_loss, stats = script.ppo_losses(
        logprob + 0.7, torch.full((5,), 0.7), *map(torch.tensor, (advantages, values, returns)), 0.2
    )
    assert float(policy_loss) == pytest.approx(sum(expected) / 5, abs=1e-5)
    assert float(value_loss) == pytest.approx(sum((v - r) ** 2 for v, r in zip(values, returns)) / 10, abs=1e-6)
    kl = sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 5
    assert stats.tolist() == pytest.approx([-float(logprob.mean()), kl, 1.0], abs=1e-5)


@pytest.mark.parametrize("script", [ppo_osrs_selfplay, recurrent_ppo_rocketleague])
def test_advantages_by_their_definition(script):
    """Games that end by a goal, by the clock, and not at all within the rollout."""
    gamma, lam, length = 0.9, 0.7, 5
    dice = torch.Generator().manual_seed(1)
    rewards, values, bootstrap = (torch.randn(length, 3, generator=dice) for _ in range(3))
    next_value = torch.randn(3, generator=dice)
    terminated, truncated = torch.zeros(length, 3, dtype=torch.bool), torch.zeros(length, 3, dtype=torch.bool)
    terminated[1, 0] = truncated[2, 1] = True
    expected = torch.zeros(length, 3)
    for game in range(3):
        for start in range(length):
            weight = 1.0
            for t in range(start, length):
                following = float(values[t + 1, game]) if t + 1 < length else float(next_value[game])
                following = (
                    0.0 if terminated[t, game] else float(bootstrap[t, game]) if truncated[t, game] else following
                )
                expected[start, game] += weight * (float(rewards[t, game]) + gamma * following - float(values[t, game]))
                weight *= gamma * lam
                if terminated[t, game] or truncated[t, game]:
                    break
    found = script.gae(rewards, values, next_value, terminated, truncated, bootstrap, gamma, lam)
    torch.testing.assert_close(found, expected)


# ------------------------------------------------------------------------------------------------------- Rocket League


def car_rollout(args):
    """Random rows with everything in them that an update has to mind: ends by a goal and by the clock, in mid-chunk and
    at a chunk's end, cars of opponents, illegal actions, stored memories, old log-probs that are not today's"""
    s = test_recurrent_ppo_rocketleague.small_rollout(args)
    s.states.normal_()
    s.bootstrap.normal_()
    s.logprobs.add_(torch.randn_like(s.logprobs) * 0.3)
    s.terminated[2, 0] = s.terminated[3, 1] = s.truncated[5, 2] = s.truncated[6, 0] = True
    s.trained[:, 3] = s.trained[4:, 4] = s.trained[1:3, 5] = False
    s.masks[:, :, 7:40] = False
    s.actions[s.actions.ge(7) & s.actions.lt(40)] = 3
    return s


def car_loss(agent, s, rewards, args):
    """Car by car and step by step"""
    steps, cars = rewards.shape
    rows, advantages, returns = [], [], []
    for car in range(cars):
        deltas, ends = [], (s.terminated | s.truncated)[:, car].tolist()
        for t in range(steps):
            following = float(s.values[t + 1, car])
            following = (
                0.0 if s.terminated[t, car] else float(s.bootstrap[t, car]) if s.truncated[t, car] else following
            )
            deltas.append(float(rewards[t, car]) + args.gamma * following - float(s.values[t, car]))
        state = None
        for t in range(steps):
            if t % args.sequence_length == 0:
                state = s.states[t // args.sequence_length, car][None]
            elif ends[t - 1]:
                state = torch.zeros_like(state)
            features, state = agent.step(s.obs[t, car][None], state)
            if not s.trained[t, car]:
                continue
            advantage, weight = 0.0, 1.0
            for k in range(t, steps):
                advantage += weight * deltas[k]
                weight *= args.gamma * args.gae_lambda
                if ends[k]:
                    break
            advantages.append(advantage)
            returns.append(advantage + float(s.values[t, car]))
            legal = s.masks[t, car].nonzero().flatten()
            logits = agent.policy(features)[0, legal]
            logp = logits - logits.exp().sum().log()
            taken = logp[legal.tolist().index(int(s.actions[t, car]))]
            rows.append((taken - s.logprobs[t, car], agent.critic(features)[0, 0], -(logp.exp() * logp).sum()))
    advantages = torch.tensor(advantages)
    scaled = (advantages - advantages.mean()) / advantages.std(unbiased=False)
    loss = 0.0
    for (logratio, value, entropy), advantage, result in zip(rows, scaled.tolist(), returns):
        ratio = logratio.exp()
        gain = torch.minimum(ratio * advantage, ratio.clip(1 - args.clip_coef, 1 + args.clip_coef) * advantage)
        loss = loss - gain + args.vf_coef * 0.5 * (value - result) ** 2 - args.ent_coef * entropy
    return loss / len(rows)


def car_args(**changes):
    sizes = {**test_recurrent_ppo_rocketleague.TINY, "norm_adv": True, "minibatch_size": 1000, "update_epochs": 1}
    weights = {
        "gamma": 0.9,
        "gae_lambda": 0.8,
        "ent_coef": 0.05,
        "vf_coef": 0.7,
        "clip_coef": 0.1,
        "max_grad_norm": 0.4,
    }
    return recurrent_ppo_rocketleague.Args(**{**sizes, **weights, **changes})


def update_cars(args, s, rewards):
    def update(agent, optimizer, scaler, autocast):
        learner = SimpleNamespace(unroll=agent.unroll, scaler=scaler, autocast=autocast, device=torch.device("cpu"))
        learner.ent_coef = args.ent_coef
        return recurrent_ppo_rocketleague.update_policy(args, agent, optimizer, s, rewards, learner)

    return update


@pytest.mark.parametrize("recurrent", ["lstm", "gru", "none"])
def test_three_updates_of_recurrent_ppo(recurrent):
    args = car_args(recurrent=recurrent)
    torch.manual_seed(2)
    agent, s = recurrent_ppo_rocketleague.make_agent(vars(args)), car_rollout(args)
    rewards = s.rewards * 0.7
    learned = learn(agent, update_cars(args, s, rewards))
    by_hand = learn_by_hand(agent, lambda agent: car_loss(agent, s, rewards, args), args.max_grad_norm)
    assert_same(learned, by_hand, agent.state_dict())


# ----------------------------------------------------------------------------------------------------- Game Boy Advance


def pictures(args):
    """Four short episodes of random pictures, one of which lacks its last picture"""
    dice = np.random.default_rng(4)
    data = test_bc_pokemon.fill(args, [3, 1, 4, 2])
    data.frames.arrays = [dice.integers(0, 256, data.frames.arrays[0].shape, dtype=np.uint8)]
    count = len(data)
    for name in ("actions", "executed_actions"):
        data.columns[name] = dice.integers(0, 10, count)
    data.columns["rewards"] = dice.normal(size=count).astype(np.float32)
    data.columns["terminated"][-1] = False
    data.columns["has_next"][-1] = False
    return data


def shown(data, row, stack):
    """The last pictures before a decision, as (1, stack, 84, 84, 3); row: (its picture, the first of its episode)"""
    picture, first = row
    frames = [data.frames.arrays[0][max(number, first)] for number in range(picture - stack + 1, picture + 1)]
    return torch.from_numpy(np.stack(frames))[None]


def huber(error):
    return 0.5 * error**2 if abs(error.item()) < 1 else error.abs() - 0.5


def picture_loss(agent, target, data, indices, weights, args, distill):
    """Transition by transition"""
    columns, losses = data.columns, []
    places = list(zip(columns["frame"].tolist(), columns["first_frame"].tolist()))
    for index, weight in zip(indices.tolist(), weights):
        label, played = int(columns["actions"][index]), int(columns["executed_actions"][index])
        picture, first = places[index]
        if args.recurrent:
            window = range(max(first, picture - args.recurrent + 1), picture + 1)
            features = torch.cat([agent.encode(shown(data, (number, first), args.frame_stack)) for number in window])
            for length, number in enumerate(window, start=1):
                outputs = agent.head(agent.memory(features[None, :length])[0][0, -1])
                wanted = int(columns["actions"][index - picture + number])
                losses.append(outputs.logsumexp(0) - outputs[wanted])
            continue
        outputs = agent(shown(data, (picture, first), args.frame_stack))[0]
        if args.algo == "bc":
            losses.append(outputs.logsumexp(0) - outputs[label])
            continue
        wanted = float(columns["rewards"][index])
        if not columns["terminated"][index] and columns["has_next"][index]:
            after = shown(data, (picture + 1, first), args.frame_stack)
            with torch.no_grad():
                wanted += args.gamma * float(target(after)[0, agent(after)[0].argmax()])
        known = columns["terminated"][index] or columns["has_next"][index]
        td = huber(outputs[played] - wanted) if known else 0.0
        if args.demo_loss == "margin":
            raised = [outputs[action] + (0.0 if action == label else args.margin) for action in range(10)]
            demo = torch.stack(raised).max() - outputs[label]
        else:
            scaled = outputs / args.q_temperature
            demo = scaled.logsumexp(0) - scaled[label]
        losses.append(weight * (td + distill * args.demo_weight * demo))
    return torch.stack(losses).mean()


@pytest.mark.parametrize(
    "settings",
    [
        {"algo": "bc", "frame_stack": 2},
        {"algo": "bc", "recurrent": 3},
        {"algo": "dqn_bc", "demo_loss": "margin"},
        {"algo": "dqn_bc", "demo_loss": "ce", "q_temperature": 0.5},
    ],
    ids=["bc", "recurrent bc", "margin", "cross-entropy"],
)
def test_three_updates_of_cloning_from_pictures(settings):
    """The target network is the network of two updates before."""
    script = bc_pokemon_impala
    args = script.Args(
        hidden_dim=8, gamma=0.8, demo_weight=0.7, max_grad_norm=0.1, target_network_frequency=2, **settings
    )
    torch.manual_seed(6)
    agent, data = script.make_agent(vars(args)), pictures(args)
    torch.nn.init.normal_(agent.head.weight)
    indices = np.array([0, 2, 3, 6, 7, 9, 9])
    weights = None if args.algo == "bc" else np.linspace(0.4, 1.0, len(indices)).astype(np.float32)
    targets = [copy.deepcopy(agent), copy.deepcopy(agent)]  # the learner's, and that of the second implementation
    updates = [0, 0]

    def update(learning, optimizer, scaler, autocast):
        networks = {"forward": learning, "target": targets[0]}
        device = torch.device("cpu")
        loss = script.batch_loss(args, data, indices, weights, networks, device, autocast, distill=0.6)
        script.gradient_step(learning, optimizer, scaler, loss.total, args.max_grad_norm)
        updates[0] += 1
        script.move_target(args, learning, targets[0], updates[0])

    def loss_of(learning):
        if updates[1] == 2:  # two updates are done
            targets[1].load_state_dict(learning.state_dict())
        updates[1] += 1
        importance = [1.0] * len(indices) if weights is None else weights.tolist()
        return picture_loss(learning, targets[1], data, indices, importance, args, distill=0.6)

    learned = learn(agent, update)
    by_hand = learn_by_hand(agent, loss_of, args.max_grad_norm)
    # Pictures one by one are rounded otherwise than in a batch, and where two pixels are nearly equal a maximum goes
    # the other way: the gradients of the convolutions are 0.3 % apart.
    assert_same(learned, by_hand, agent.state_dict(), tolerance=0.03)


# ------------------------------------------------------------------------------------- what a weight does to a policy


def trained(agent, update, times=12):
    agent = copy.deepcopy(agent)
    agent.load_state_dict(learn(agent, update, times))
    return agent


@pytest.mark.parametrize("script", [ppo_vgc_mdbo, rnad_vgc_portfolio])
def test_a_huge_entropy_weight_makes_battles_random(script, mixed):
    actor, batch = mixed[0], few(mixed[1], 12)
    agent = script.make_agent(vars(actor.args))
    agent.load_state_dict(actor.agent.state_dict())
    with torch.no_grad():
        for name in ("query", "preview_query"):
            getattr(agent, name).weight.mul_(6.0)  # a policy that has an opinion
    every = torch.arange(len(batch.lengths))
    parts = (script.policy_logprobs(agent, batch, "cpu")[None],) if script is rnad_vgc_portfolio else ()

    def entropy(agent):
        with torch.no_grad():
            return float(script.policy_entropy(script.evaluate_battles(agent, batch, every, "cpu")[1]).mean())

    after = {}
    for ent_coef in (0.0, 20.0):
        args = script.Args(**{**test_ppo_vgc.SMALL, **SETTINGS, "ent_coef": ent_coef})
        updated = trained(agent, lambda *words, args=args: script.update_agent(*words, batch, *parts, args))
        after[ent_coef] = entropy(updated)
    assert after[20.0] > 1.02 * entropy(agent) and after[20.0] > 1.02 * after[0.0]


def test_a_huge_alpha_draws_the_policy_to_its_magnet(played):
    script, batch = rnad_vgc_portfolio, few(played.batch, 12)
    torch.manual_seed(8)
    agent, magnet = played.actor.agent, script.make_agent(vars(played.args))
    with torch.no_grad():
        magnet.query.weight.mul_(6.0)
    references = script.policy_logprobs(magnet, batch, "cpu")[None]

    def distance(agent):
        return float(script.policy_kl(script.policy_logprobs(agent, batch, "cpu"), references[0]).mean())

    after = {}
    for alpha in (0.0, 50.0):
        args = test_rnad_vgc.small_args(**SETTINGS, alpha=alpha)
        updated = trained(agent, lambda *words, args=args: script.update_agent(*words, batch, references, args))
        after[alpha] = distance(updated)
    assert after[50.0] < 0.9 * distance(agent) and after[50.0] < 0.9 * after[0.0]


def test_a_huge_entropy_weight_makes_cars_random():
    torch.manual_seed(2)
    agent, s = recurrent_ppo_rocketleague.make_agent(vars(car_args())), car_rollout(car_args())
    with torch.no_grad():
        agent.policy.weight.normal_(0, 1.0)

    def entropy(agent):
        """As the first minibatch of another update sees it"""
        optimizer, scaler = torch.optim.SGD(agent.parameters(), lr=0.0), torch.amp.GradScaler("cpu", enabled=False)
        losses, _ = update_cars(car_args(), s, s.rewards)(agent, optimizer, scaler, contextlib.nullcontext)
        return float(losses[0][2])

    after = {}
    for ent_coef in (0.0, 20.0):
        after[ent_coef] = entropy(trained(agent, update_cars(car_args(ent_coef=ent_coef), s, s.rewards)))
    assert after[20.0] > 1.02 * entropy(agent) and after[20.0] > 1.02 * after[0.0]
