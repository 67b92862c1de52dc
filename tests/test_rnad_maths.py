"""The losses of regularised self-play: each against a closed form, then all together on games with an exact
exploitability."""

import itertools
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch

from cleanrl_games.rnad_vgc_portfolio import (
    clipped_loss,
    divergences,
    ema_update,
    gae,
    magnet_kl,
    masked_log_softmax,
    policy_entropy,
    policy_kl,
    pool_probabilities,
    portfolio_drop,
    taken_logprob,
    value_loss,
)
from cleanrl_games.tools import study_small_games as study


def two_heads(seed, batch=6, actions=5):
    """A policy over pairs: logits of the first choice (B, A), of the second given the first (B, A, A), what is legal of
    each."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (
        torch.randn(batch, actions, generator=generator),
        torch.randn(batch, actions, actions, generator=generator),
    )
    legal_generator = torch.Generator().manual_seed(7)  # the rules are the same for every policy
    legal_first = torch.rand(batch, actions, generator=legal_generator) < 0.7
    legal_second = torch.rand(batch, actions, actions, generator=legal_generator) < 0.7
    legal_first[:, 0] = legal_second[:, :, 0] = True
    return masked_log_softmax(first, legal_first), masked_log_softmax(second, legal_second)


def joint(policy):
    return policy[0][:, :, None] + policy[1]  # (B, A, A)


def at(policy, taken):
    """The two tables a learner sees: of the first choice, and of the second given the first that was taken. (B, 2,
    A)"""
    return torch.stack([policy[0], policy[1][torch.arange(len(taken)), taken]], 1)


def test_kl_and_entropy_of_two_choices_are_those_of_the_pair():
    """Averaged over first choices the estimates are exact: KL and entropy of the joint distribution."""
    policy, reference = two_heads(1), two_heads(2)
    p, q = joint(policy), joint(reference)
    possible = p > -1e30
    exact_kl = torch.where(possible, p.exp() * (p - q), 0.0).sum((1, 2))
    exact_entropy = -torch.where(possible, p.exp() * p, 0.0).sum((1, 2))
    estimate_kl, estimate_entropy = torch.zeros(len(p)), torch.zeros(len(p))
    for choice in range(p.shape[1]):
        taken = torch.full((len(p),), choice)
        weight = policy[0][:, choice].exp()
        estimate_kl += weight * policy_kl(at(policy, taken), at(reference, taken))
        estimate_entropy += weight * policy_entropy(at(policy, taken))
    torch.testing.assert_close(estimate_kl, exact_kl)
    torch.testing.assert_close(estimate_entropy, exact_entropy)
    assert (exact_kl > 0.01).all()


def test_kl_to_oneself_is_zero_and_has_no_gradient():
    logits = torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(3), requires_grad=True)
    logprobs = masked_log_softmax(logits, torch.ones(4, 2, 5, dtype=torch.bool))
    kl = policy_kl(logprobs, logprobs.detach())
    kl.sum().backward()
    torch.testing.assert_close(kl, torch.zeros(4))
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-6, rtol=0)


def test_each_term_has_a_finite_gradient_and_illegal_actions_have_none():
    generator = torch.Generator().manual_seed(4)
    legal = torch.rand(64, 2, 7, generator=generator) < 0.6
    legal[:, :, 0], legal[:, :, 6] = True, False
    reference = masked_log_softmax(torch.randn(3, 64, 2, 7, generator=generator), legal)
    start, actions = torch.randn(64, 2, 7, generator=generator), torch.zeros(64, 2, dtype=torch.long)
    advantages, values = torch.randn(64, generator=generator), torch.randn(64, generator=generator, requires_grad=True)
    old = taken_logprob(masked_log_softmax(start, legal), actions)
    terms = {
        "policy": lambda logprobs: clipped_loss(taken_logprob(logprobs, actions), old, advantages, 0.2)[0],
        "entropy": lambda logprobs: policy_entropy(logprobs).mean(),
        "magnet": lambda logprobs: magnet_kl(logprobs, reference)[0].mean(),
        "rollout": lambda logprobs: policy_kl(logprobs, reference[0]).mean(),
    }
    for name, term in terms.items():
        logits = start.clone().requires_grad_()
        term(masked_log_softmax(logits, legal)).backward()
        assert torch.isfinite(logits.grad).all() and logits.grad.abs().sum() > 1e-3, name
        assert logits.grad[~legal].abs().max() == 0.0, name
    value_loss(values, torch.zeros(64)).backward()
    assert torch.isfinite(values.grad).all() and values.grad.abs().sum() > 1e-3


def test_magnet_takes_the_nearest_reference_of_each_decision():
    legal = torch.ones(3, 1, 2, dtype=torch.bool)
    policy = masked_log_softmax(torch.tensor([[[0.0, 0.0]], [[2.0, 0.0]], [[0.0, 5.0]]]), legal)
    references = torch.stack(
        [masked_log_softmax(torch.tensor([[[shift, 0.0]]]).expand(3, 1, 2), legal) for shift in (0.1, 1.9, -4.0)]
    )
    nearest, chosen, kls = magnet_kl(policy, references)
    assert chosen.tolist() == [0, 1, 2]
    torch.testing.assert_close(nearest, kls.min(0).values)
    p, q = policy[1, 0].exp(), references[1, 1, 0]
    torch.testing.assert_close(nearest[1], (p * (policy[1, 0] - q)).sum())


def test_clipped_loss_by_hand():
    old = torch.zeros(4)
    logprob = torch.tensor([1.5, 1.1, 0.5, 5.0]).log().requires_grad_()
    advantages = torch.tensor([1.0, 1.0, -1.0, -2.0])
    loss, stats = clipped_loss(logprob, old, advantages, 0.2)
    # clip, none, clip, three times its advantage
    torch.testing.assert_close(loss, torch.tensor([-1.2, -1.1, 0.8, 6.0]).mean())
    loss.backward()
    assert (logprob.grad != 0).tolist() == [False, True, False, False]
    torch.testing.assert_close(stats["clipfrac"], torch.tensor(0.75))


def test_gae_by_its_definition():
    """Sums over what is left of each game; the second is truncated, and V(last observation) follows its last
    decision."""
    rng = np.random.default_rng(5)
    gamma, lam, lengths, bootstrap = 0.9, 0.8, [4, 3, 1], [0.0, 0.7, 0.0]
    rewards, values = rng.normal(size=8), rng.normal(size=8)
    expected = []
    for start, length, after in zip((0, 4, 7), lengths, bootstrap):
        following = np.append(values[start + 1 : start + length], after)
        deltas = rewards[start : start + length] + gamma * following - values[start : start + length]
        expected += [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, length)) for t in range(length)]
    tensors = (torch.tensor(numbers) for numbers in (rewards, values, bootstrap, lengths))
    np.testing.assert_allclose(gae(*tensors, gamma, lam), expected, rtol=1e-5)


def test_portfolio_drops_the_right_one():
    """Three references: two near each other, one far. Of the near ones the one nearer to the far one is the less
    different."""
    legal = torch.ones(8, 1, 2, dtype=torch.bool)
    tables = torch.stack(
        [masked_log_softmax(torch.tensor([[[shift, 0.0]]]).expand(8, 1, 2), legal) for shift in (3.0, 0.4, 0.0, -3.0)]
    )
    pairwise = divergences(tables)
    assert pairwise.diagonal().abs().max() < 1e-6 and (pairwise + torch.eye(4) > 0).all()
    drop = portfolio_drop("diverse", tables, [0, 0, 0, 0])
    sums = {
        left: sum(float(pairwise[i, j]) for i, j in itertools.permutations(set(range(4)) - {left}, 2))
        for left in range(4)
    }
    assert drop == max(sums, key=sums.get) and drop in (1, 2)
    assert portfolio_drop("best", tables, [1300.0, 1200.0, 900.0, 1250.0]) == 2
    assert portfolio_drop("recent", tables, [0, 0, 0, 0]) == 0
    with pytest.raises(ValueError, match="newest"):
        portfolio_drop("newest", tables, [0, 0, 0, 0])


def test_ema_follows():
    average, module = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    expected = 0.9 * average.weight.detach() + 0.1 * module.weight.detach()
    ema_update(average, module, 0.9)
    torch.testing.assert_close(average.weight.detach(), expected)


def test_the_pool_turns_to_those_it_loses_to():
    shares, games = [0.5, 0.25, 0.25], np.array([400, 400, 400])
    even = pool_probabilities(shares, [0.5, 0.5, 0.5], games)
    np.testing.assert_allclose(even, shares)
    turned = pool_probabilities(shares, [0.5, 0.9, 0.2], games)
    assert turned[2] > shares[2] and turned[1] < shares[1] and abs(turned.sum() - 1) < 1e-9
    assert pool_probabilities(shares, [0.5, 1.0, 0.5], games)[1] > 0.05  # beaten for good, and still met
    np.testing.assert_allclose(pool_probabilities(shares, [0.0, 1.0, 0.0], np.zeros(3)), shares)  # nothing known yet


def test_games_are_what_openspiel_says():
    """Known values: NashConv of uniform play is 11/12 at Kuhn's table and 4.747 at Leduc's; play agrees with the
    tree."""
    for name, value in (("kuhn", 11 / 12), ("leduc", 4.747), ("rps", 0.0)):
        game = study.SmallGame(name)
        uniform = masked_log_softmax(torch.zeros(game.legal.shape), game.legal)
        assert game.nash_conv(uniform) == pytest.approx(value, abs=1e-3)
    game = study.SmallGame("kuhn")
    always_bet = masked_log_softmax(torch.tensor([[-50.0, 50.0]]).expand(12, 2), game.legal)
    infosets, actions, decided, last, rewards = game.play(
        always_bet.exp().double().numpy(), 4000, np.random.default_rng(1)
    )
    # bet, call: one decision each
    assert decided.shape[0] == 1 and decided.all() and last.all() and (actions == 1).all()
    # two chips of at most two, three cards for either
    assert rewards.abs().eq(1.0).all() and len(infosets.unique()) == 6
    assert abs(float(rewards[0, ::2].mean())) < 0.06
    never = masked_log_softmax(torch.tensor([[50.0, -50.0]]).expand(12, 2), game.legal)
    assert game.payoff(always_bet, never, np.random.default_rng(1)) == 0.5  # who never calls loses the ante of one


def test_regularised_self_play_finds_the_equilibrium_and_plain_self_play_does_not():
    """The short form of `benchmark.sh learn rnad`: Kuhn, two seeds side by side."""
    results = {
        magnet: study.train(study.Settings(magnet=magnet, updates=300), (1, 2))
        for magnet in ("ref", "portfolio", "ema")
    }
    control = study.train(study.Settings(magnet="none", ent_coef=0.01, updates=300), (1, 2))
    for magnet, values in results.items():
        assert max(values) < 0.2, (magnet, values)
    assert np.mean(control) > 0.4, control
    assert max(study.train(study.Settings(game="rps", updates=150), (1, 2))) < 0.15


def test_a_killed_study_leaves_no_worker(tmp_path):
    words = ("--games", "leduc", "--seeds", "1", "--jobs", "1", "--run-dir", str(tmp_path))
    process = subprocess.Popen([sys.executable, study.__file__, *words], start_new_session=True)
    children = []
    deadline = time.time() + 120
    try:
        # the worker, and multiprocessing's own tracker, until the worker is at its job
        while not any(child.cpu_times().user > 2.0 for child in children) and time.time() < deadline:
            time.sleep(0.2)
            children = psutil.Process(process.pid).children()
        assert len(children) == 2, "no worker came up"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert psutil.wait_procs(children, timeout=20)[1] == [], "processes are left"
    finally:
        for left in (process, *(child for child in children if child.is_running())):
            left.kill()
