"""Updates of ppo_osrs_selfplay.py against a second implementation of them, written from the formulas with plain loops.

It pays every tick by name, divides by the spread of discounted returns, sums advantages by their definition and takes
gradient steps by hand. What the learner does with rows, signs, old log-probs, clips or statistics shows in the weights.
"""

import contextlib
import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cleanrl_games import ppo_osrs_selfplay as script
from cleanrl_games.envs.osrs import contract
from cleanrl_games.envs.osrs.contract import NUM_HEADS, REWARD_TERMS

STEP, UPDATES = 0.2, 4  # the first update only feeds the statistics
SETTINGS = {"hidden_size": 16, "head_size": 8, "num_envs": 6, "num_steps": 20, "minibatch_size": 4096, "max_ticks": 13}
SETTINGS |= {"gamma": 0.9, "gae_lambda": 0.8, "ent_coef": 0.3, "guess_ent_coef": 0.35, "vf_coef": 0.7}
SETTINGS |= {"clip_coef": 0.05, "max_grad_norm": 0.4}
SETTINGS |= {"novelty": 0.02, "self_fraction": 0.3, "self_fraction_final": 0.3, "scripted_fraction": 0.3}
SETTINGS |= {"num_workers": 0, "sharing": "shared_memory", "reward_weights": ("ko=0.5", "frozen=-0.1")}
CLIP = 0.5  # instead of ±10, which so few ticks do not reach


def make_learner(args, agent):
    return SimpleNamespace(
        evaluate_actions=agent.evaluate_actions,
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        autocast=contextlib.nullcontext,
        device=torch.device("cpu"),
        reward_weights=script.reward_weights(args.reward_weights),
        reward_scale=script.RewardScale(1, args.num_envs, 2),
        obs_statistics=script.ObservationStatistics(),
    )


@pytest.fixture(scope="module")
def learned():
    """Four updates of the learner with a league and scripted players: weights before and after each, rollouts,
    metrics."""
    patch = pytest.MonkeyPatch()
    patch.setattr(script, "REWARD_CLIP", CLIP)
    torch.manual_seed(2)
    args = script.Args(**SETTINGS)
    agent = script.make_agent(vars(args))
    with torch.no_grad():
        agent.head_out.normal_(0, 0.3)  # with opinions
    start = copy.deepcopy(agent.state_dict())
    broadcast = script.make_broadcast(args, len(script.to_flat(agent)))
    league, actor, learner = script.League(args, broadcast), script.Actor(args, 0), make_learner(args, agent)
    league.join("other", script.to_flat(script.make_agent(vars(args))))
    optimizer = torch.optim.SGD(agent.parameters(), lr=STEP)
    rollouts, metrics, states = [], [], []
    behind = copy.deepcopy(agent)  # what the actor plays with is an update old
    for update in range(1, UPDATES + 1):
        league.publish(behind, update - 1, league.self_share(update))
        storage = script.make_storage(args)
        actor.rollout(broadcast, storage)
        behind.load_state_dict(agent.state_dict())
        rollouts.append({name: tensor.clone() for name, tensor in storage.items()})
        s = SimpleNamespace(**storage)
        metrics.append(script.learn_from(s, 0, update, agent, optimizer, args, learner)[0])
        states.append(copy.deepcopy(agent.state_dict()))
    patch.undo()
    return SimpleNamespace(args=args, start=start, rollouts=rollouts, metrics=metrics, states=states)


class ByHand:
    """The same learner, one tick of one fighter at a time."""

    def __init__(self, args, start):
        self.args = args
        self.agent = script.make_agent(vars(args))
        self.agent.load_state_dict(start)
        self.seen, self.sums = [], []  # all observations of own rows, all discounted sums of own rows
        self.running = np.zeros((args.num_envs, 2))  # discounted sums under way

    def pay(self, storage, update):
        """→ (T, F, 2) rewards, by name"""
        worth = dict(script.REWARDS) | {"ko": 0.5, "frozen": -0.1}
        for term in ("frozen", "target_frozen"):
            worth[term] *= 1 - 0.25 * min(update / 300, 1)
        novelty = 0.02 * (1 - update / 200) if update > 1 else 0.0
        ticks, fights = self.args.num_steps, self.args.num_envs
        paid = np.zeros((ticks, fights, 2))
        mean, std = self.agent.obs_mean.double().numpy(), self.agent.obs_std.double().numpy()
        for t in range(ticks):
            for fight in range(fights):
                over = bool(storage["terminated"][t, fight] or storage["truncated"][t, fight])
                for side in range(2):
                    terms = storage["terms"][t, fight, side].tolist()
                    paid[t, fight, side] = sum(worth[name] * term for name, term in zip(REWARD_TERMS, terms))
                    if not over:
                        led_to = storage["obs"][t + 1, fight, side].double().numpy()
                        z = np.abs((led_to - mean) / std)[contract.CHANGING]
                        paid[t, fight, side] += novelty * np.clip(z - 1, 0, 9).sum()
        return paid

    def scale(self, paid, storage):
        """Divided by the standard deviation of all discounted sums so far, which begin anew with each fight."""
        ticks, fights, _ = paid.shape
        for t in range(ticks):
            for fight in range(fights):
                over = bool(storage["terminated"][t, fight] or storage["truncated"][t, fight])
                for side in range(2):
                    self.running[fight, side] = 0.9 * self.running[fight, side] + paid[t, fight, side]
                    if storage["trained"][t, fight, side]:
                        self.sums.append(self.running[fight, side])
                    if over:
                        self.running[fight, side] = 0.0
        return np.clip(paid / mean_and_std(self.sums)[1], -CLIP, CLIP)

    def advantage(self, rewards, storage, t, fight, side):
        """Σ_k (γλ)^(k-t) (r_k + γ V_{k+1} - V_k), until the fight or the rollout ends"""
        total, weight = 0.0, 1.0
        for k in range(t, self.args.num_steps):
            value, after = (float(storage["values"][moment, fight, side]) for moment in (k, k + 1))
            if storage["terminated"][k, fight]:
                after = 0.0
            if storage["truncated"][k, fight]:
                after = float(storage["bootstrap"][k, fight, side])
            total += weight * (rewards[k, fight, side] + 0.9 * after - value)
            weight *= 0.9 * 0.8
            if storage["terminated"][k, fight] or storage["truncated"][k, fight]:
                break
        return total

    def update(self, storage, update):
        rewards = self.scale(self.pay(storage, update), storage)
        rows = [tuple(place) for place in storage["trained"].nonzero().tolist()]
        advantages = torch.tensor([self.advantage(rewards, storage, *row) for row in rows])
        returns = advantages + torch.tensor([float(storage["values"][row]) for row in rows])
        if update > 1:
            self.gradient_step(self.loss(storage, rows, advantages, returns, update))
        self.seen += [storage["obs"][row].double().numpy() for row in rows]
        mean, std = mean_and_std(self.seen)
        self.agent.obs_mean.copy_(torch.from_numpy(mean))
        self.agent.obs_std.copy_(torch.from_numpy(np.maximum(std, 0.01)))

    def loss(self, storage, rows, advantages, returns, update):
        agent = self.agent
        spread = math.sqrt(sum((a - advantages.mean()) ** 2 for a in advantages) / (len(rows) - 1))
        ent_coef = 0.3 + (0.001 - 0.3) * update / 1000
        total = 0.0
        for (t, fight, side), advantage, wanted in zip(rows, advantages, returns):
            own = ((storage["obs"][t, fight, [side]] - agent.obs_mean) / agent.obs_std).clip(-5, 5)
            other = ((storage["obs"][t, fight, [1 - side]] - agent.obs_mean) / agent.obs_std).clip(-5, 5)
            actions = storage["actions"][t, fight, [side]].long()
            tables = agent.head_logprobs(own, storage["masks"][t, fight, [side]], actions)[0]  # (12, 7)
            logprob = sum(tables[head, int(actions[0, head])] for head in range(NUM_HEADS))
            # attack is head 0, prayer head 11: their weight does not fall; that of attack only where one has to
            may_wait = bool(storage["masks"][t, fight, side, contract.LOGIT["no_op_attack"]])
            guesses = (11,) if may_wait else (0, 11)
            if not storage["guessing"][t, fight, side]:  # scripted players do not learn to read
                guesses = ()
            weights = [0.35 if i in guesses else ent_coef for i in range(NUM_HEADS)]
            entropy = [-sum(p.exp() * p for p in table if p > -50) for table in tables]
            bonus = sum(weight * one for weight, one in zip(weights, entropy))
            ratio = (logprob - storage["logprobs"][t, fight, side]).exp()
            scaled = (advantage - advantages.mean()) / spread
            gain = torch.minimum(ratio * scaled, ratio.clip(0.95, 1.05) * scaled)
            if scaled < 0:
                gain = torch.maximum(gain, 3 * scaled)
            value = agent.value(own, other)[0]
            total = total - gain + 0.7 * 0.5 * (value - wanted) ** 2 - bonus
        return total / len(rows)

    def gradient_step(self, loss):
        parameters = dict(self.agent.named_parameters())
        gradients = torch.autograd.grad(loss, parameters.values())
        norm = math.sqrt(sum(float((gradient.double() ** 2).sum()) for gradient in gradients))
        assert norm > 0.4, "so that clipping matters"
        with torch.no_grad():
            for parameter, gradient in zip(parameters.values(), gradients):
                parameter -= STEP * gradient * 0.4 / norm


def mean_and_std(rows):
    """Of everything seen, and of 1e-4 of a row with mean 0 and variance 1, which the statistics begin with."""
    rows = np.array(rows)
    count = len(rows) + 1e-4
    mean = rows.sum(0) / count
    return mean, np.sqrt((1e-4 + (rows**2).sum(0)) / count - mean**2)


def distance(one, other):
    return math.sqrt(sum(float(((one[name] - other[name]).double() ** 2).sum()) for name in one))


def test_three_updates_by_hand(learned):
    """Each from the weights that the learner had before it, so that no error hides behind another."""
    by_hand, before = ByHand(learned.args, learned.start), learned.start
    for update, (storage, after) in enumerate(zip(learned.rollouts, learned.states), 1):
        by_hand.agent.load_state_dict(before)
        by_hand.update(storage, update)
        ours = by_hand.agent.state_dict()
        parameters = [name for name, _ in by_hand.agent.named_parameters()]
        moved = distance(*({name: state[name] for name in parameters} for state in (before, after)))
        apart = distance(*({name: state[name] for name in parameters} for state in (ours, after)))
        assert (moved == 0) == (update == 1), "the first rollout only feeds the statistics"
        assert moved == 0 or (moved > 0.05 and apart < 0.003 * moved), f"update {update}: moved {moved}, {apart} apart"
        for name in ("obs_mean", "obs_std"):
            torch.testing.assert_close(ours[name], after[name], rtol=1e-3, atol=1e-3)
        before = after


def test_the_rollouts_of_these_updates_hold_what_matters(learned):
    """Fights that end both ways, opponents' rows, clipped rewards, ratios beyond the clip."""
    rollouts = {name: torch.stack([storage[name] for storage in learned.rollouts]) for name in learned.rollouts[0]}
    assert rollouts["truncated"].any() and not rollouts["trained"].all()
    kinds = {int(k) for storage in learned.rollouts for k in storage["episode_kind"][: int(storage["num_episodes"])]}
    assert kinds == {script.SELF, script.LEAGUE, script.SCRIPTED}
    assert (rollouts["trained"] & ~rollouts["guessing"]).any() and (rollouts["trained"] & rollouts["guessing"]).any()
    assert any(0 < row["losses/clipfrac"] < 1 for row in learned.metrics[1:])


def test_metrics_of_an_update_by_hand(learned):
    storage, metrics = learned.rollouts[2], learned.metrics[2]
    own = storage["trained"]
    term = REWARD_TERMS.index("target_frozen")
    expected = float(storage["terms"][..., term][own].mean()) * 0.004 * (1 - 0.25 * 3 / 300)
    assert metrics["rewards/target_frozen"] == pytest.approx(expected, rel=1e-4)
    assert "losses/policy_loss" not in learned.metrics[0] and metrics["losses/grad_norm"] > 0.4
    values, returns = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.5, 2.0, 5.0])
    assert script.explained_variance(values, returns) == pytest.approx(1 - np.var([0.5, 0, 1]) / np.var([1.5, 2, 5]))
    assert script.explained_variance(returns, returns) == 1.0


def play_once(**changes):
    torch.manual_seed(4)
    args = script.Args(**SETTINGS | {"self_fraction": 1.0, "scripted_fraction": 0.0} | changes)
    agent = script.make_agent(vars(args))
    with torch.no_grad():
        agent.head_out.normal_(0, 0.5)
    broadcast, actor = script.make_broadcast(args, len(script.to_flat(agent))), script.Actor(args, 0)
    script.League(args, broadcast).publish(agent, 0, 1.0)
    storage = script.make_storage(args)
    actor.rollout(broadcast, storage)
    return args, agent, SimpleNamespace(**storage)


@pytest.mark.parametrize(("ent_coef", "direction"), [(30.0, 1), (0.0, 0)])
def test_a_large_entropy_weight_raises_entropy(ent_coef, direction):
    args, agent, s = play_once(ent_coef=ent_coef, guess_ent_coef=0.0, vf_coef=0.0, max_grad_norm=10.0)
    with torch.no_grad():
        agent.head_out.mul_(5)  # far from uniform
    learner, optimizer = make_learner(args, agent), torch.optim.Adam(agent.parameters(), lr=3e-3)
    rows = [script.learn_from(s, 0, update, agent, optimizer, args, learner)[0] for update in range(1, 40)][1:]
    change = rows[-1]["losses/entropy"] - rows[0]["losses/entropy"]
    assert change > 1.0 if direction else change < 0.5, change


def test_values_come_nearer_to_returns():
    args, agent, s = play_once(ent_coef=0.0, guess_ent_coef=0.0, vf_coef=5.0, max_grad_norm=10.0, novelty=0.0)
    learner, optimizer = make_learner(args, agent), torch.optim.Adam(agent.parameters(), lr=3e-3)
    rows = [script.learn_from(s, 0, update, agent, optimizer, args, learner)[0] for update in range(1, 12)][1:]
    assert rows[-1]["losses/value_loss"] < 0.5 * rows[0]["losses/value_loss"]


def test_every_own_row_is_in_one_minibatch_of_a_pass(monkeypatch):
    args, agent, s = play_once(minibatch_size=50, update_epochs=2)
    s.trained[3:5] = False
    taken, take = [], script.take_minibatch
    monkeypatch.setattr(
        script, "take_minibatch", lambda batch, rows, device: taken.append(rows) or take(batch, rows, device)
    )
    script.learn_from(s, 0, 2, agent, torch.optim.SGD(agent.parameters(), lr=0.0), args, make_learner(args, agent))
    own = s.trained.view(-1).nonzero().squeeze(1).tolist()
    half = len(taken) // 2
    assert half == math.ceil(len(own) / 50)
    assert sorted(torch.cat(taken[:half]).tolist()) == own == sorted(torch.cat(taken[half:]).tolist())


def test_a_loss_that_is_not_a_number_ends_the_run():
    args, agent, s = play_once()
    s.terms[2, 1, 0, 0] = math.nan
    with pytest.raises(script.RunFailed, match="not finite"):
        script.learn_from(s, 0, 2, agent, torch.optim.SGD(agent.parameters(), lr=0.0), args, make_learner(args, agent))


def test_rewards_by_name():
    weights = dict(zip(REWARD_TERMS, script.reward_weights(("tie=3",)).tolist()))
    assert weights["tie"] == 3 and weights["ko"] == 1 and set(script.REWARDS) == set(REWARD_TERMS)
    early, late = (script.annealed_weights(script.reward_weights(), update) for update in (0, 300))
    changed = [name for name, a, b in zip(REWARD_TERMS, early.tolist(), late.tolist()) if a != b]
    assert changed == ["frozen", "target_frozen"] and late[REWARD_TERMS.index("frozen")] == pytest.approx(-0.003)


def test_scores_are_the_learners():
    """A fight's score, beside the knock-out and death that the learner's own row was paid for."""
    args = script.Args(**SETTINGS | {"max_ticks": 1000, "num_envs": 8, "num_steps": 400, "opponents": ("nh",)})
    actor = script.Actor(args, 0)
    broadcast = script.make_broadcast(args, len(script.to_flat(actor.agent)))
    league = script.League(args, broadcast)
    league.publish(actor.agent, 0, 0.0)
    broadcast.numbers["scripted_share"].fill_(1.0)
    sides, step, storage = [], actor.env.step, script.make_storage(args)
    actor.env.step = lambda actions: sides.append(actor.side.copy()) or step(actions)
    actor.rollout(broadcast, storage)
    expected = []
    for t in range(args.num_steps):
        for fight in np.flatnonzero((storage["terminated"] | storage["truncated"])[t, :, 0].numpy()):
            ko, death, tie = storage["terms"][t, fight, sides[t][fight], :3].tolist()
            expected.append(1.0 if ko and not tie else 0.0 if death and not tie else 0.5)
    found = storage["episode_score"][: int(storage["num_episodes"])].tolist()
    assert found == expected and len(found) >= 8 and {0, 1} == {side for row in sides for side in row.tolist()}
    assert set(storage["episode_kind"][: len(found)].tolist()) == {script.SCRIPTED}
    results = script.fight_results(SimpleNamespace(**storage))
    metrics = script.fight_metrics(results, ("self", "past", "scripted"), torch.ones(3))
    assert metrics["win_rate/scripted"] == pytest.approx(np.mean(expected))
    assert metrics["win_rate/scripted_n"] == len(expected) and "win_rate/self" not in metrics
