"""ppo_osrs_selfplay.py: its maths against closed forms, its actor's bookkeeping, and runs as a user starts them."""

import copy
import io
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
import yaml
from osrs_server import Server

from cleanrl_games import ppo_osrs_selfplay as script
from cleanrl_games.envs.osrs import NHVecEnv, contract, evaluation
from cleanrl_games.envs.osrs.contract import HEAD_OFFSETS, HEAD_SIZES, NUM_HEADS, NUM_LOGITS, NUM_OBS
from cleanrl_games.runtime import exploiter_processes
from cleanrl_games.runtime import models as runtime_models
from cleanrl_games.runtime.checkpoints import load_checkpoint
from cleanrl_games.runtime.device import maybe_compile
from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.runtime.files import make_run_folder, write_atomically
from cleanrl_games.runtime.metrics import wilson
from cleanrl_games.runtime.settings import check_settings, parse_args

ROOT = Path(__file__).resolve().parents[1]
SMALL = {
    "hidden_size": 32,
    "head_size": 16,
    "num_envs": 8,
    "num_steps": 24,
    "minibatch_size": 128,
    "eval_episodes": 4,
    "final_episodes": 6,
    "eval_frequency": 0,
}
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
FLAGS += ["--max-ticks", "40"]  # most of a tiny run is its last evaluation, against thirteen players


def start(folder, *flags, **options):
    """Its output goes into a file: a pipe that nobody reads is full after some 300 updates, and the run stops."""
    words = [sys.executable, "cleanrl_games/ppo_osrs_selfplay.py", *FLAGS, *map(str, flags), "--run-dir", str(folder)]
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115  (`finish` reads it)
    process = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True, **options)
    process.output = output
    return process


def train_here(*flags):
    """A run from its first line to its last in this process, which has loaded everything already."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script.__file__, *map(str, flags)])
        patch.setattr(sys, "excepthook", sys.excepthook)  # put back afterwards
        try:
            runpy.run_path(script.__file__, run_name="__main__")
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def finish(process, code=0, seconds=150):
    process.wait(timeout=seconds)
    process.output.seek(0)
    output = process.output.read()
    assert process.returncode == code, output
    return output


def metrics_of(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def real_observations(count, seed=3):
    """Observations and masks of real fights, a hundred ticks in."""
    env, bot = NHVecEnv(count, seed=seed), script.Baseline("random", 2 * count)
    actions = np.zeros((2 * count, NUM_HEADS), np.int64)
    for _ in range(100):
        bot.act(env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS), np.arange(2 * count), actions)
        env.step(actions.reshape(-1, 2, NUM_HEADS))
    return torch.from_numpy(env.obs.reshape(-1, NUM_OBS).copy()), torch.from_numpy(
        env.masks.reshape(-1, NUM_LOGITS).copy()
    )


@pytest.fixture
def agent():
    torch.manual_seed(0)
    agent = script.Agent(32, 16)
    with torch.no_grad():
        agent.head_out.normal_(0, 0.5)  # far from uniform
    return agent


# ---------------------------------------------------------------------------------------------------------------- maths


def test_gae_is_the_weighted_sum_of_n_step_returns():
    """Against the definition: (1 - λ) Σ λ^(n-1) G^(n), computed separately for each start."""
    torch.manual_seed(1)
    T, gamma, lam = 9, 0.9, 0.7
    rewards, values, next_value = torch.randn(T, 2), torch.randn(T, 2), torch.randn(2)
    terminated, truncated, bootstrap = (
        torch.zeros(T, 2, dtype=torch.bool),
        torch.zeros(T, 2, dtype=torch.bool),
        torch.zeros(T, 2),
    )
    terminated[4, 0], truncated[6, 1], bootstrap[6, 1] = True, True, 1.7
    advantages = script.gae(rewards, values, next_value, terminated, truncated, bootstrap, gamma, lam)
    for column in range(2):
        for t in range(T):
            end = next((k for k in range(t, T) if terminated[k, column] or truncated[k, column]), T - 1)
            n_step, total = 0.0, []
            for k in range(t, end + 1):
                n_step += gamma ** (k - t) * float(rewards[k, column])
                tail = float(values[k + 1, column]) if k + 1 < T else float(next_value[column])
                if k == end:
                    tail = (
                        0.0 if terminated[k, column] else float(bootstrap[k, column]) if truncated[k, column] else tail
                    )
                total.append(n_step + gamma ** (k - t + 1) * tail)
            weights = [(1 - lam) * lam**i for i in range(len(total) - 1)] + [lam ** (len(total) - 1)]
            expected = sum(w * g for w, g in zip(weights, total)) - float(values[t, column])
            assert float(advantages[t, column]) == pytest.approx(expected, abs=1e-5)


def test_actor_and_learner_agree_on_log_probs(agent):
    obs, masks = real_observations(64)
    with torch.no_grad():
        actions, logprob = agent.act(agent.normalise(obs), masks)
        again, _ = agent.evaluate_actions(agent.normalise(obs), masks, actions)
    assert (logprob - again).abs().max() < 1e-5
    assert float(logprob.std()) > 0.1


def test_only_legal_actions_are_chosen(agent):
    obs, masks = real_observations(256)
    for deterministic in (None, torch.ones(len(obs), NUM_HEADS, dtype=torch.bool)):
        with torch.no_grad():
            actions, _ = agent.act(agent.normalise(obs), masks, deterministic=deterministic)
        for row in range(len(obs)):
            chosen = {HEAD_OFFSETS[head] + int(actions[row, head]) for head in range(NUM_HEADS)}
            for head in range(NUM_HEADS):
                span = range(HEAD_OFFSETS[head], HEAD_OFFSETS[head] + HEAD_SIZES[head])
                legal = [
                    logit
                    for logit in span
                    if masks[row, logit]
                    and contract.FORBIDS[logit] not in chosen
                    and (contract.NEEDS[logit] < 0 or contract.NEEDS[logit] in chosen)
                ]
                assert HEAD_OFFSETS[head] + int(actions[row, head]) in (legal or [HEAD_OFFSETS[head]])


def test_entropy_is_the_mean_surprise(agent):
    """The sum of conditional entropies, averaged over samples, is -E[log π]: an identity that breaks with any wrong
    mask."""
    obs, masks = real_observations(1)
    obs, masks = obs[:1].expand(20000, -1), masks[:1].expand(20000, -1)
    with torch.no_grad():
        actions, logprob = agent.act(agent.normalise(obs), masks, torch.Generator().manual_seed(5))
        _, entropy = agent.evaluate_actions(agent.normalise(obs), masks, actions)
    assert float(entropy.sum(-1).mean()) == pytest.approx(
        -float(logprob.mean()), abs=4 * float(logprob.std()) / 20000**0.5 + 1e-3
    )


def test_every_loss_term_has_a_finite_gradient_and_masked_actions_none(agent):
    obs, masks = real_observations(32)
    with torch.no_grad():
        actions, old = agent.act(agent.normalise(obs), masks)
    for term in range(3):
        agent.zero_grad()
        logprob, entropy = agent.evaluate_actions(agent.normalise(obs), masks, actions)
        values = agent.value(agent.normalise(obs), agent.normalise(obs[np.arange(len(obs)) ^ 1]))
        losses = script.ppo_losses(
            logprob, old + 0.1, torch.linspace(-1, 1, len(obs)), values, torch.ones(len(obs)), 0.2
        )
        (losses[0], losses[1], entropy.mean())[term].backward()
        gradients = torch.cat([p.grad.flatten() for p in agent.parameters() if p.grad is not None])
        assert torch.isfinite(gradients).all() and gradients.abs().sum() > 0
    # prayer's no-op (logit 39) is never legal: nothing may push it
    agent.zero_grad()
    logprob, entropy = agent.evaluate_actions(agent.normalise(obs), masks, actions)
    (logprob.mean() + entropy.mean()).backward()
    assert not masks[:, 39].any() and agent.head_out.grad[11, :, 0].abs().max() == 0
    assert agent.head_out.grad[11, :, 1:4].abs().max() > 0


def test_minibatches_are_a_partition_into_nearly_equal_parts():
    for count in (1, 127, 128, 129, 1000, 2049):
        parts = script.minibatches(torch.arange(count) * 3, 128)
        assert sorted(torch.cat(parts).tolist()) == list(range(0, 3 * count, 3))
        sizes = [len(part) for part in parts]
        assert max(sizes) <= 128 and max(sizes) - min(sizes) <= 1


def test_running_statistics_equal_numpys():
    data = torch.randn(1000, 3, dtype=torch.float64) * 5 + 2
    rms = script.RunningMeanStd(3)
    for part in data.split(170):
        rms.update(part)
    assert torch.allclose(rms.mean, data.mean(0), atol=1e-4) and torch.allclose(
        rms.var, data.var(0, unbiased=False), rtol=1e-4
    )


def league_of(**changes):
    args = script.Args(**{**SMALL, "league_size": 3, **changes})
    return script.League(args, script.make_broadcast(args, 4))


def test_league_qualities_follow_the_rule():
    league = league_of()
    for name in "abc":
        league.join(name, torch.zeros(4))
    assert league.probabilities() == pytest.approx([1 / 3] * 3)
    league.record(script.LEAGUE, league.members[1]["policy_id"], 1.0)
    assert league.members[1]["quality"] == pytest.approx(-0.01 / (3 * (1 / 3)))
    saved = io.BytesIO()
    torch.save(league.members, saved)  # part of a checkpoint, which a NumPy number would make unreadable
    saved.seek(0)
    assert torch.load(saved, weights_only=True) == league.members
    league.record(script.LEAGUE, league.members[2]["policy_id"], 0.0)
    assert league.members[2]["quality"] == 0.0
    league.join("d", torch.ones(4))  # full: the easiest, b, leaves; d gets the highest quality
    assert [member["name"] for member in league.members] == ["a", "c", "d"]
    assert league.broadcast.member_weights[league.members[2]["place"]].tolist() == [1.0] * 4
    assert league_of(self_play="latest").probabilities() == []


def test_elo_moves_the_agent_only():
    assert script.elo_update(1500, 1500, 1.0) == pytest.approx(1508)
    assert script.elo_update(1500, 1900, 0.0) == pytest.approx(1500 - 16 / 11)
    league = league_of(past_taste=0.0)
    league.join("a", torch.zeros(4))
    before = league.members[0]["elo"]
    league.record(script.LEAGUE, league.members[0]["policy_id"], 1.0)
    assert league.elo == pytest.approx(1508) and league.members[0]["elo"] == before


def test_past_selves_with_tastes_do_not_rate_the_agent():
    """A taste makes a past self weaker than the rating that it was frozen with. Targets have none."""
    for self_play, rated in (("past", False), ("target", True)):
        league = league_of(self_play=self_play, past_taste=2.0)
        league.join("a", torch.zeros(4))
        league.record(script.LEAGUE, league.members[0]["policy_id"], 1.0)
        assert (league.elo != script.ELO["nh"]) == rated and league.members[0]["games"] == 1


def test_wilson_interval():
    rate, low, high = wilson(0.5, 100)
    assert (rate, low, high) == (0.5, pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4))
    assert wilson(1.0, 50)[2] == 1.0 and wilson(0.0, 50)[1] == 0.0


# ---------------------------------------------------------------------------------------------------------------- actor


def test_opponents_stay_for_a_whole_fight_and_only_own_rows_are_trained():
    args = script.Args(
        **{**SMALL, "num_envs": 16, "num_steps": 40, "max_ticks": 25, "scripted_fraction": 0.3, "self_fraction": 0.3}
    )
    actor = script.Actor(args, 0)
    broadcast = script.make_broadcast(args, len(script.to_flat(actor.agent)))
    league = script.League(args, broadcast)
    for name in "ab":
        league.join(name, script.to_flat(actor.agent) + 0.01)
    storage, seen = script.make_storage(args), []
    step = actor.env.step

    def watched(actions):
        seen.append((actor.kind.copy(), actor.opponent.copy(), actor.side.copy()))
        return step(actions)

    actor.env.step = watched
    for version in range(3):
        league.publish(actor.agent, version, 0.3)
        seen.clear()
        actor.rollout(broadcast, storage)
        ended = (storage["terminated"] | storage["truncated"])[..., 0].numpy()
        for t in range(1, args.num_steps):
            for before, after in zip(seen[t - 1], seen[t]):
                assert (before == after)[~ended[t - 1]].all(), "an opponent changed in mid-fight"
        for t, (kind, _, side) in enumerate(seen):
            trained = storage["trained"][t].numpy()
            assert trained[kind == script.SELF].all()
            assert (storage["guessing"][t].numpy() == (kind != script.SCRIPTED)[:, None]).all()
            others = np.flatnonzero(kind != script.SELF)
            assert (trained[others].sum(1) == 1).all() and trained[others, side[others]].all()
        assert {script.SELF, script.LEAGUE, script.SCRIPTED} == set(np.concatenate([kind for kind, _, _ in seen]))
        assert int(storage["version"]) == version
    # the learner's unroll of the rollout gives back the actor's log-probs
    obs, own = storage["obs"][:-1].view(-1, NUM_OBS), storage["trained"].view(-1)
    with torch.no_grad():
        logprob, _ = actor.agent.evaluate_actions(
            actor.agent.normalise(obs),
            storage["masks"].view(-1, NUM_LOGITS),
            storage["actions"].view(-1, NUM_HEADS).long(),
        )
    assert (logprob - storage["logprobs"].view(-1))[own].abs().max() < 1e-5
    # fights truncated at 25 ticks carry the value of their last observation
    truncated = storage["truncated"].expand(-1, -1, 2)
    assert (
        truncated.any()
        and (storage["bootstrap"][truncated] != 0).all()
        and (storage["bootstrap"][~truncated] == 0).all()
    )


def test_a_taste_is_of_style_gear_prayer_and_place():
    agent = script.make_agent(SMALL).eval()
    obs, masks = torch.randn(64, NUM_OBS), torch.ones(64, NUM_LOGITS, dtype=torch.bool)
    taste = torch.zeros(64, NUM_LOGITS)
    wanted = contract.LOGIT["move_under_target"]
    taste[:, wanted] = 50.0
    actions, _ = agent.act(obs, masks, taste=taste)
    head = contract.HEAD_NAMES.index("movement")
    assert (actions[:, head] == wanted - HEAD_OFFSETS[head]).all()

    rng, head_of = np.random.default_rng(1), np.repeat(contract.HEAD_NAMES, HEAD_SIZES)
    always, between = (np.array(rows) for rows in zip(*(script.draw_taste(rng, 2.0) for _ in range(2000))))
    assert set(head_of[(always != 0).any(0)]) == {"attack", "gear", "prayer"}
    styles = always[:, script.STYLE_LOGITS]
    others = script.TASTE_LOGITS.copy()
    others[script.STYLE_LOGITS] = False
    assert always[:, others].std() == pytest.approx(2.0, rel=0.02)
    assert styles.mean() == pytest.approx(4.0 / 6, abs=0.1)  # every second one prefers one of three by 4
    assert set(head_of[(between != 0).any(0)]) == {"movement", "farcast_distance"}
    for place, share in script.PLACES.items():
        wished = (between[:, contract.LOGIT[place]] > 0).mean()
        assert wished == pytest.approx(0.0 if place == "dont_move" else share, abs=0.05)
    far = between[between[:, contract.LOGIT["move_to_farcast_tile"]] > 0][:, script.FARCAST_LOGITS]
    assert (far > 0).sum(1).tolist() == [1] * len(far)
    assert (far > 0).mean(0) == pytest.approx([1 / 6] * 6, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "has_taste"), [({}, True), ({"past_taste": 0.0}, False), ({"self_play": "target"}, False)]
)
def test_past_selves_have_a_taste_of_their_own_in_each_fight(settings, has_taste, monkeypatch):
    """It is drawn when a fight begins and stays until it ends; targets, and past selves without it, have none. A place
    is gone to in the ticks without an attack only."""
    args = script.Args(**SMALL | {"num_envs": 16, "max_ticks": 25, "scripted_fraction": 0.0} | settings)
    actor = script.Actor(args, 0)
    broadcast = script.make_broadcast(args, len(script.to_flat(actor.agent)))
    league = script.League(args, broadcast)
    league.join("a", script.to_flat(actor.agent))
    league.publish(actor.agent, 1, 0.0)
    act, tastes, waits = script.Agent.act, [], []

    def watched(agent, obs, masks, generator=None, deterministic=None, taste=None):
        if taste is not None:
            tastes.append(taste.clone())
            waits.append(masks[:, contract.LOGIT["no_op_attack"]])
        return act(agent, obs, masks, generator, deterministic, taste)

    monkeypatch.setattr(script.Agent, "act", watched)
    storage = script.make_storage(args)
    for _ in range(2):  # ticks 0 to 47; all fights are against the one member, and end after tick 24
        actor.rollout(broadcast, storage)
    tastes, waits = torch.stack(tastes), torch.stack(waits)  # (48, 16, 45), (48, 16)
    assert storage["truncated"].any() and waits.any() and not waits.all()
    place = torch.from_numpy(np.isin(np.repeat(contract.HEAD_NAMES, HEAD_SIZES), ("movement", "farcast_distance")))
    style, where = tastes[..., ~place], tastes[..., place]
    assert (style[:24] == style[0]).all() and (style[26:46] == style[26]).all()
    assert bool((style != 0).any()) == bool((where != 0).any()) == has_taste
    assert not where[~waits].any(), "nobody is led away from an attack"
    for ticks in (slice(0, 24), slice(26, 46)):  # in all other ticks of a fight the same place
        for fight in range(16):
            waiting = where[ticks, fight][waits[ticks, fight]]
            assert (waiting == waiting[0]).all()
    if has_taste:
        assert not (style[26] == style[0]).all(-1).any()
        assert len({tuple(row.tolist()) for row in style[0]}) == 16


def test_few_league_members_are_in_use_at_a_time_and_all_are_met():
    """Each costs a forward pass in every tick, so the next ones come when the ones before have left."""
    changes = {"num_envs": 12, "num_steps": 4, "max_ticks": 25, "scripted_fraction": 0.0, "opponents_at_once": 2}
    args = script.Args(**SMALL | changes)
    actor = script.Actor(args, 0)
    broadcast = script.make_broadcast(args, len(script.to_flat(actor.agent)))
    league = script.League(args, broadcast)
    for name in "abcdefgh":
        league.join(name, script.to_flat(actor.agent) + 0.01)
    storage, met = script.make_storage(args), set()
    for version in range(200):
        league.publish(actor.agent, version, 0.0)
        actor.rollout(broadcast, storage)
        in_use = set(actor.opponent.tolist())
        assert in_use <= set(actor.members) and len(actor.members) <= 4, "two now, two that fights go on against"
        met |= in_use
    assert len(met) == 8


def test_training_on_a_server_leaves_out_who_waits(tmp_path):
    """Through the same Actor: fighters that are on their way into a fight are no rows to learn from."""
    with Server(hp=8) as server:
        args = script.Args(
            **SMALL | {"num_envs": 3, "num_steps": 300},
            server=f"127.0.0.1:{server.port}",
            scripted_fraction=0.0,
            num_workers=0,
        )
        actor = script.Actor(args, 0)
        broadcast = script.make_broadcast(args, len(script.to_flat(actor.agent)))
        league = script.League(args, broadcast)
        league.publish(actor.agent, 0, 1.0)
        storage = script.make_storage(args)
        waited = []
        original = actor.env.step

        def step(actions):
            waited.append(actor.env.waiting.copy())
            return original(actions)

        actor.env.step = step
        storage["values"].fill_(torch.nan)
        actor.rollout(broadcast, storage)
        actor.env.close()
    waited = torch.from_numpy(np.stack(waited))
    assert waited.any() and not (storage["trained"] & waited).any() and storage["trained"].sum() > 300
    assert (storage["terms"][waited] == 0).all() and storage["terminated"].any()
    assert storage["values"].isfinite().all(), "who waits is worth something, too: the tick before is judged by it"


def test_a_server_that_is_not_there_is_told_in_a_sentence():
    with pytest.raises(BadInput, match="should look like 127"):
        script.make_env(script.Args(server="nowhere"), 1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_workers": 2}, "has one world, for one actor: --num-workers 2 would block it"),
        ({"mirror": False}, "no --no-mirror there"),
        ({"loadouts": ("obby_maul",)}, "no account build like the loadout 'obby_maul'"),
        ({}, "nobody answers there"),
    ],
)
def test_settings_that_a_server_does_not_allow(settings, sentence):
    with pytest.raises(BadInput, match=sentence):
        script.check_args(script.Args(server="127.0.0.1:1", **settings))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_run_on_a_server_logs_its_agents_out(number, tmp_path):
    """The world of others who play there would stand still. A learner that is killed takes its actor with it."""
    folder = tmp_path / "run"
    with Server(hp=20) as server:
        process = start(folder, "--server", f"127.0.0.1:{server.port}", "--num-workers", 1, "--num-envs", 2)
        wait_for(lambda: updates_in(folder) >= 1)
        assert len(server.players) == 4
        process.send_signal(number)
        finish(process, code=-number if number == signal.SIGKILL else 0)
        wait_for(lambda: not server.players, 30)


def test_scripted_players_are_met_the_more_the_more_rarely_they_are_beaten():
    args = script.Args(opponents=("nh", "ladder", "random"))
    names = script.scripted_players(args)
    assert names[0] == "nh" and len(names) == len(set(names)) == 13
    with pytest.raises(BadInput, match=r"no scripted player 'zezima'\. There are: ladder, random"):
        script.scripted_players(script.Args(opponents=("zezima",)))
    league = script.League(
        script.Args(opponents=("nh", "seer_30")), script.make_broadcast(script.Args(league_size=2), 3)
    )
    assert league.bot_chances() == [0.5, 0.5]
    for _ in range(400):
        league.record(script.SCRIPTED, 0, 1.0)
        league.record(script.SCRIPTED, 1, 0.0)
    easy, hard = league.bot_chances()
    assert hard / easy == pytest.approx(1.05 / 0.05, rel=0.05)


def test_a_member_that_is_replaced_in_the_league_stays_itself_in_its_fight():
    args = script.Args(**{**SMALL, "league_size": 1, "self_fraction": 0.0})
    actor = script.Actor(args, 0)
    broadcast = script.make_broadcast(args, len(script.to_flat(actor.agent)))
    league = script.League(args, broadcast)
    league.join("a", script.to_flat(actor.agent))
    league.publish(actor.agent, 0, 0.0)
    storage = script.make_storage(args)
    actor.rollout(broadcast, storage)
    policy_id = league.members[0]["policy_id"]
    copied = script.to_flat(actor.members[policy_id])
    league.join("b", torch.zeros_like(copied))
    league.publish(actor.agent, 1, 0.0)
    actor.rollout(broadcast, storage)
    assert (actor.opponent == policy_id).any() and torch.equal(script.to_flat(actor.members[policy_id]), copied)


# ----------------------------------------------------------------------------------------------------------------- runs


# With a constant learning rate nothing depends on where a run is going to end, so half a run is the half of a whole
# one.
LEAGUE_RUN = (
    "--num-workers 0 --snapshot-frequency 2 --self-fraction 0.5 --scripted-fraction 0.2 --learning-rate-final 5e-4"
).split()


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """An inline run of some six updates with a league, uninterrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train_here(*FLAGS, *LEAGUE_RUN, "--total-timesteps", 1850, "--run-dir", folder)
    return folder


def test_resumed_inline_run_equals_the_uninterrupted_one(whole_run, tmp_path):
    folder = tmp_path / "run"
    train_here(*FLAGS, *LEAGUE_RUN, "--total-timesteps", 900, "--run-dir", folder)
    half = metrics_of(folder)
    train_here("--resume", folder, "--total-timesteps", 1850)
    assert len(metrics_of(folder)) > len(half) >= 2
    ours, theirs = (load_checkpoint(path) for path in (folder, whole_run))
    for name in ("update", "global_step", "version"):
        assert ours["progress"][name] == theirs["progress"][name]
    assert ours["league"] == theirs["league"]
    for name, tensor in theirs["agent"].items():
        assert torch.equal(ours["agent"][name], tensor), f"{name} differs"
    for key in ("member_weights", "torch_rng"):
        assert torch.equal(ours[key], theirs[key])
    assert torch.equal(ours["reward_scale"]["discounted"], theirs["reward_scale"]["discounted"])
    assert torch.equal(ours["obs_statistics"]["var"], theirs["obs_statistics"]["var"])
    for name, array in theirs["actor"]["arrays"].items():
        assert torch.equal(ours["actor"]["arrays"][name], array), f"the actor's {name} differ"


def test_run_folder_has_everything(whole_run):
    present = {path.name for path in whole_run.iterdir()}
    assert {"config.yaml", "script.py", "metrics.jsonl", "checkpoint.pt", "model.zip"} <= present
    assert any(name.startswith("events.out.tfevents") for name in present)
    assert (whole_run / "script.py").read_bytes() == (ROOT / "cleanrl_games" / "ppo_osrs_selfplay.py").read_bytes()
    assert yaml.safe_load((whole_run / "config.yaml").read_text())["total_timesteps"] == 1850
    last = metrics_of(whole_run)[-1]
    for name in (
        "charts/SPS",
        "losses/policy_loss",
        "losses/approx_kl",
        "stats/policy_lag_max",
        "elo/agent",
        "eval/nh",
        "eval/random_low",
        "rewards/ko",
    ):
        assert name in last
    agent, metadata = script.load_model(whole_run)
    assert (
        metadata["game"] == "osrs"
        and metadata["script"] == "ppo_osrs_selfplay.py"
        and metadata["contract_hash"] == contract.contract_hash()
    )
    checkpoint = load_checkpoint(whole_run)
    assert all(torch.equal(checkpoint["agent"][name], tensor) for name, tensor in agent.state_dict().items())


def test_bad_files_get_a_sentence(whole_run, tmp_path):
    for content in (b"", b"not a zip", (whole_run / "model.zip").read_bytes()[:5000]):
        (tmp_path / "model.zip").write_bytes(content)
        with pytest.raises(BadInput, match="not a readable model"):
            script.load_model(tmp_path / "model.zip")
        (tmp_path / "checkpoint.pt").write_bytes(content)
        with pytest.raises(BadInput, match="not a readable checkpoint"):
            load_checkpoint(tmp_path)
    with pytest.raises(BadInput, match="no such file or folder"):
        load_checkpoint(tmp_path / "nowhere")
    torch.save(load_checkpoint(whole_run) | {"contract_hash": "0123"}, tmp_path / "checkpoint.pt")
    with pytest.raises(BadInput, match="contract 0123"):
        load_checkpoint(tmp_path, contract.contract_hash())
    with pytest.raises(BadInput, match="start this run with --hidden-size"):
        script.load_model(whole_run, script.Args(**{**SMALL, "hidden_size": 8}))
    other = copy.deepcopy(script.Agent(16, 8))
    script.save_model(tmp_path / "small.zip", other, script.Args(**SMALL))  # settings of another network
    with pytest.raises(BadInput, match="another network"):
        script.load_model(tmp_path / "small.zip")


def test_a_full_disk_leaves_the_old_file(tmp_path):
    (tmp_path / "file").write_text("old")

    def write(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunFailed, match="is full"):
        write_atomically(tmp_path / "file", write)
    assert (tmp_path / "file").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_settings_files_and_presets(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("learning_rate: 1\nloadouts: [pure, zerker]\npreset: pure\n")
    args = parse_args(script.Args, script.PRESETS, ["--config", str(config), "--seed", "7"])
    assert (args.learning_rate, args.loadouts, args.seed, args.self_play) == (1.0, ("pure", "zerker"), 7, "pure")
    assert (
        parse_args(script.Args, script.PRESETS, ["--config", str(config), "--learning-rate", "0.5"]).learning_rate
        == 0.5
    )
    assert (
        parse_args(script.Args, script.PRESETS, ["--preset", "exploiter", "--self-fraction", "0.1"]).self_fraction
        == 0.1
    )
    assert parse_args(script.Args, script.PRESETS, ["--preset=core"]).hidden_size == 512
    for text, message in (
        ("learning_rte: 1", "did you mean 'learning_rate'"),
        ("seed: one", "seed should be a whole number"),
        ("track: 1", "track should be true or false"),
        ("- a", "mapping"),
        ("a: [", "Cannot read"),
    ):
        config.write_text(text)
        with pytest.raises(BadInput, match=message):
            parse_args(script.Args, script.PRESETS, ["--config", str(config)])


def children_of(process):
    return psutil.Process(process.pid).children(recursive=True)


def wait_for(condition, seconds=90):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, "waited too long"
        time.sleep(0.2)


def updates_in(folder):
    path = Path(folder) / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_compile_says_when_it_has_no_effect(monkeypatch, capsys):
    function, device = lambda x: x, torch.device("cpu")
    assert maybe_compile(script.Args(), function, device) is function and not capsys.readouterr().out
    assert maybe_compile(script.Args(compile=True), function, device, "the LSTM is unrolled by hand") is function
    assert "--compile falls back to off: the LSTM is unrolled by hand." in capsys.readouterr().out
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert (
        maybe_compile(script.Args(compile=True), function, device) is function
        and "C++ compiler" in capsys.readouterr().out
    )


def test_a_killed_actor_is_replaced_and_the_third_within_a_minute_ends_the_run(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--num-workers", 2, "--sharing", "file_system")

    def is_actor(child):
        try:
            return "spawn_main" in " ".join(child.cmdline())
        except psutil.NoSuchProcess:  # killed, and not waited for yet
            return False

    def workers():
        return [child for child in children_of(process) if is_actor(child)]

    wait_for(lambda: updates_in(folder) >= 2)
    assert len(workers()) == 2
    for _ in range(2):
        before = workers()
        before[-1].send_signal(signal.SIGKILL)
        wait_for(lambda before=before: len(workers()) == 2 and before[-1] not in workers())
        seen = updates_in(folder)
        wait_for(lambda seen=seen: updates_in(folder) >= seen + 2)
    pid = workers()[0].pid
    workers()[0].send_signal(signal.SIGKILL)
    output = finish(process, code=1, seconds=60)
    assert output.count("died (pid") == 3 and f"died (pid {pid}" in output
    assert "Three actor processes died within a minute" in output and "--resume" in output and "Traceback" not in output
    assert load_checkpoint(folder)["progress"]["update"] >= 2


def test_ctrl_c_leaves_a_checkpoint_and_no_process(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--num-workers", 1, "--tensorboard", start_new_session=True)
    wait_for(lambda: updates_in(folder) >= 2)
    family = children_of(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    output = finish(process, seconds=60)
    assert "Stopping after this update" in output and "TensorBoard: http://127.0.0.1:" in output
    checkpoint = load_checkpoint(folder)
    assert checkpoint["progress"]["update"] == updates_in(folder)
    alive = psutil.wait_procs(family, timeout=30)[1]  # TensorBoard's last process takes a moment
    assert not [member for member in alive if member.status() != psutil.STATUS_ZOMBIE]


def test_an_actor_ends_with_its_learner(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--num-workers", 1)
    wait_for(lambda: updates_in(folder) >= 1)
    family = children_of(process)
    process.kill()
    process.wait()
    wait_for(
        lambda: not [member for member in family if member.is_running() and member.status() != psutil.STATUS_ZOMBIE], 30
    )


def test_an_actors_error_is_shown(tmp_path, capfd):
    bad = tmp_path / "loadouts.yaml"  # written after a run's settings were checked
    bad.write_text("mine: {title: x}")
    args = script.Args(**SMALL, loadout_file=str(bad), loadouts=("mine",), debug=True, sharing="file_system")
    with pytest.raises(
        RunFailed, match=r"Three actor processes died within a minute.*mine\.fight: this field is missing"
    ):
        next(script.process_rollouts(args, script.make_broadcast(args, 4), []))
    assert "Actor process 0 died (Traceback" in capfd.readouterr().out


def test_amp_compute_and_tracking_offline(tmp_path):
    folder = tmp_path / "run"
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    output = finish(start(folder, "--num-workers", 0, "--total-timesteps", 1200, "--amp", "bf16", "--track", env=env))
    assert list((folder / "wandb").glob("offline-run-*")), output
    assert "losses/policy_loss" in metrics_of(folder)[-1]


INLINE = [*FLAGS, "--num-workers", "0"]


@pytest.fixture(scope="module")
def other_run(tmp_path_factory):
    """A run of somebody else: a folder with a model that is replaced now and then."""
    folder = tmp_path_factory.mktemp("other") / "other"
    for step in (1, 2):
        torch.manual_seed(step)
        args = script.Args(**SMALL)
        script.save_model(folder / f"{step}.zip", script.make_agent(vars(args)), args)
    shutil.copy(folder / "1.zip", folder / "model.zip")
    return folder


def names_in(folder):
    return [member["name"] for member in load_checkpoint(folder)["league"]["members"]]


def test_an_exploiter_that_wins_often_enough_joins_the_league_of_its_target(tmp_path):
    target = tmp_path / "target"
    train_here(*INLINE, "--total-timesteps", 400, "--league-size", 2, "--run-dir", target)
    for threshold in (1, 0):  # nobody wins all fights of these; everybody wins none or more
        flags = ["--preset", "exploiter", "--opponent", target, "--exploiter-win-threshold", threshold]
        train_here(*INLINE, *flags, "--total-timesteps", 800, "--run-dir", tmp_path / f"exploiter_{threshold}")
    (member,) = load_checkpoint(tmp_path / "exploiter_0")["league"]["members"]
    assert member["name"] == "target" and member["games"] > 0
    assert [path.name for path in (target / "exploiters").iterdir()] == ["exploiter_0.zip"]

    def members_at(steps):
        train_here("--resume", target, "--total-timesteps", steps, "--snapshot-frequency", 1)
        return names_in(target)

    first = load_checkpoint(target)["progress"]["global_step"]
    assert members_at(first + 1)[1:] == ["exploiters/exploiter_0.zip"]
    assert "exploiters/exploiter_0.zip" not in members_at(first + 1600), "it left for newer ones, and did not come back"


def test_each_evaluation_draws_other_fights(monkeypatch):
    seeds = []

    def play(player, opponent, episodes, seed, *rest, **settings):
        seeds.append((seed, int(opponent.dice["rng"][0])))
        return np.ones(episodes), np.ones(episodes)

    monkeypatch.setattr(evaluation, "play_fights", play)
    args = script.Args(**SMALL)
    for seed in (1, 1, 2):
        script.evaluate(args, script.make_agent(vars(args)), 4, seed=seed)
    players = len(seeds) // 3
    assert seeds[:players] == seeds[players : 2 * players], "a run repeats itself"
    assert not set(seeds[players : 2 * players]) & set(seeds[2 * players :])


def test_several_targets(other_run, tmp_path):
    flags = ["--self-play", "target", "--targets", other_run / "1.zip", other_run / "2.zip", "--self-fraction", 0]
    flags += ["--self-fraction-final", 0, "--scripted-fraction", 0, "--total-timesteps", 500, "--opponents-at-once", 3]
    train_here(*INLINE, *flags, "--run-dir", tmp_path / "run")
    members = load_checkpoint(tmp_path / "run")["league"]["members"]
    assert [member["name"] for member in members] == ["1.zip", "2.zip"]
    assert all(member["games"] > 0 for member in members)
    rows = metrics_of(tmp_path / "run")
    assert rows[-1]["eval/opponent_n"] == 2 * SMALL["final_episodes"]
    assert any("win_rate/target" in row for row in rows)


def test_the_newest_model_of_another_run_is_met(other_run, tmp_path):
    other = shutil.copytree(other_run, tmp_path / "other")
    watched = script.WatchedRun(other)
    assert watched.new_model() == other / "model.zip" and watched.new_model() is None
    os.utime(other / "model.zip", (1, 1))
    assert watched.new_model() is None, "written again, and the same"
    shutil.copy(other / "2.zip", other / "model.zip")
    assert script.WatchedRun(other, seen=watched.seen).new_model(), "another one since the checkpoint"
    assert watched.new_model() and watched.new_model() is None
    assert script.WatchedRun(tmp_path / "empty").new_model() is None, "a run that has no model yet"

    shutil.copy(other / "1.zip", other / "model.zip")
    flags = ["--self-play", "latest", "--targets", other, "--self-fraction", 0, "--self-fraction-final", 0]
    train_here(*INLINE, *flags, "--scripted-fraction", 0, "--total-timesteps", 300, "--run-dir", tmp_path / "run")
    (first,) = names_in(tmp_path / "run")
    train_here("--resume", tmp_path / "run", "--total-timesteps", 600)
    assert names_in(tmp_path / "run") == [first], "the same model is no other member"
    shutil.copy(other / "2.zip", other / "model.zip")
    train_here("--resume", tmp_path / "run", "--total-timesteps", 1500)
    members = load_checkpoint(tmp_path / "run")["league"]["members"]
    assert [member["name"].split("_")[0] for member in members] == ["other", "other"] and members[1]["games"] > 0
    league = script.League(script.Args(self_play="latest", league_size=2), script.make_broadcast(script.Args(), 4))
    league.members = members
    assert league.probabilities() == [0.0, 1.0]


def test_what_an_exploiter_is_told():
    args = script.Args(**SMALL, track=True, seed=3, train_exploiters=True, max_minutes=5.0, exploiter_train_steps=77)
    settings = script.exploiter_settings(args, "x/target.zip", 40)
    exploiter = script.Args(**check_settings(script.Args, settings, "settings"))
    assert exploiter.targets == (exploiter.start_model,) == ("x/target.zip",) and exploiter.self_play == "exploiter"
    assert exploiter.self_fraction == exploiter.self_fraction_final == exploiter.scripted_fraction == 0.0
    assert exploiter.total_timesteps == 77 and exploiter.max_minutes == 0 and exploiter.seed == 43
    assert not exploiter.track and not exploiter.train_exploiters and exploiter.hidden_size == args.hidden_size


def test_exploiters_start_by_themselves_are_judged_and_join(tmp_path, monkeypatch, capsys):
    """Here each trains in this process, at once; the slow test has the real ones."""
    started = []

    def train_at_once(path, settings, target, update):
        settings = settings | {"num_workers": 0, "run_dir": str(target.parent / "run")}
        settings = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
        (target.parent / "config.yaml").write_text(yaml.safe_dump(settings))
        rng = torch.get_rng_state()
        train_here("--config", target.parent / "config.yaml")
        torch.set_rng_state(rng)
        started.append(update)
        process = SimpleNamespace(poll=lambda: 0, returncode=0, terminate=lambda: None, wait=lambda seconds: 0)
        return SimpleNamespace(place=target.parent, process=process, update=update)

    monkeypatch.setattr(exploiter_processes, "start", train_at_once)
    flags = ["--train-exploiters", "--exploiter-check-interval", 3, "--exploiter-train-steps", 300]
    flags += ["--snapshot-frequency", 0, "--total-timesteps", 2000]
    train_here(*INLINE, *flags, "--exploiter-win-threshold", 0, "--run-dir", tmp_path / "run")
    assert started[0] == 3 and len(started) >= 2
    names = names_in(tmp_path / "run")
    assert names[0] == "exploiters/0000003/run/model.zip" and len(set(names)) == len(names)
    entries = exploiter_processes.read_registry(tmp_path / "run")
    assert [entry["target_update"] for entry in entries] == started[: len(entries)]
    assert all(entry["in_pool"] and entry["battles"] == SMALL["final_episodes"] for entry in entries)
    assert "exploiter/best_win_rate" in metrics_of(tmp_path / "run")[-1] and "joins the pool" in capsys.readouterr().out
    model, target = (tmp_path / "run" / "exploiters" / "0000003" / name for name in ("run/model.zip", "target.zip"))
    ours, theirs = (script.to_flat(script.load_model(path)[0]) for path in (model, target))
    apart = (ours - theirs).abs().max()
    assert 0 < apart < 0.2, "it starts from its target"

    killed = tmp_path / "run" / "exploiters" / "0000001"
    killed.mkdir()
    os.utime(killed, (1, 1))
    train_here("--resume", tmp_path / "run", "--no-train-exploiters", "--keep-models", 1)
    assert not killed.exists() and (killed.parent / f"{started[-1]:07d}").exists()


@pytest.mark.slow
def test_an_exploiter_in_the_background(tmp_path):
    folder = tmp_path / "run"
    flags = ["--train-exploiters", "--exploiter-check-interval", 5, "--exploiter-train-steps", 500]
    process = start(folder, *flags, "--exploiter-win-threshold", 0, "--snapshot-frequency", 0, "--num-workers", 1)
    try:
        # ten seconds on an idle machine; on a busy one minutes, since an exploiter makes way for everybody
        wait_for(lambda: (folder / "exploiter_registry.json").exists(), 1200)
        seen = updates_in(folder)
        wait_for(lambda: updates_in(folder) >= seen + 10)
        family = children_of(process)
    finally:
        process.terminate()
        output = finish(process, seconds=90)
    assert "An exploiter of update 5 trains in" in output and names_in(folder)[0].startswith("exploiters/0000005")
    alive = psutil.wait_procs(family, timeout=30)[1]
    assert not [member for member in alive if member.status() != psutil.STATUS_ZOMBIE]


def test_ray_cluster_loses_a_node_and_training_goes_on(tmp_path):
    code = """
import os, subprocess, sys, time
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
folder, flags = sys.argv[1], sys.argv[2:]
script = "cleanrl_games/ppo_osrs_selfplay.py"
flags = ["--ray-address", cluster.address, "--num-workers", "2", "--run-dir", folder, *flags]
words = [sys.executable, script, *flags]
output = open(folder + ".log", "w+")
process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
metrics = os.path.join(folder, "metrics.jsonl")
rows = lambda: open(metrics).read().count("\\n") if os.path.exists(metrics) else 0
said = lambda: open(folder + ".log").read()
def wait(condition):
    end = time.time() + 120
    while not condition():
        assert process.poll() is None and time.time() < end, f"stuck at {rows()} updates: {said()}"
        time.sleep(0.5)
wait(lambda: rows() >= 4)
print("killing a node", flush=True)
cluster.remove_node(second, allow_graceful=False)
cluster.add_node(num_cpus=1)
wait(lambda: "was lost" in said())  # Ray takes its time to believe that a node is dead
before = rows()
wait(lambda: rows() >= before + 8)
process.terminate()
print("exit", process.wait(60), flush=True)
print(said(), flush=True)
cluster.shutdown()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run"), *FLAGS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert "exit 0" in done.stdout, done.stdout + done.stderr
    assert "was lost" in done.stdout, done.stdout


def test_a_model_names_the_script_as_it_was_when_the_run_began(tmp_path):
    """Somebody edits the file while it trains: what runs is what was read at the start, and so is the script beside the
    model."""
    file, args = tmp_path / "experiment.py", script.Args(run_dir=str(tmp_path / "run"))
    file.write_text("first = 1\n")
    folder = make_run_folder(args, file)
    file.write_text("second = 2\n")
    runtime_models.save_model(folder / "model.zip", {}, {}, {}, args, file)
    assert (folder / "script.py").read_text() == "first = 1\n"
    assert runtime_models.read_model(folder)[1]["network_hash"] == runtime_models.network_hash("first = 1")


def test_a_model_is_tied_to_its_network_and_to_nothing_else():
    source = Path(script.__file__).read_text()
    own = runtime_models.network_hash(source)
    start, end = source.index("# --8<-- [start:osrs_network]"), source.index("# --8<-- [end:osrs_network]")
    assert runtime_models.network_hash(source[:end] + source[end:].replace("ent_coef", "entropy")) == own, (
        "the learner may change"
    )
    assert runtime_models.network_hash(source[:start].replace("0.995", "0.9") + source[start:]) == own, (
        "so may settings"
    )
    commented = source[:end].replace("def value(", "# what the fight is worth\n    def value(") + source[end:]
    assert runtime_models.network_hash(commented) == own, "a comment makes no other network"
    for old, new in (
        ("nn.ReLU()", "nn.Tanh()"),
        ("clamp(-5, 5)", "clamp(-9, 9)"),
        ("argmax(-1, keepdim=True)", "argmin(-1, keepdim=True)"),
    ):
        assert old in source[start:end]
        changed = source[:start] + source[start:end].replace(old, new) + source[end:]
        assert runtime_models.network_hash(changed) != own, f"{old} plays another policy"
