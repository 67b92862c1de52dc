"""recurrent_ppo_rocketleague.py: its maths against closed forms, its actor's bookkeeping, and runs as a user starts
them."""

import contextlib
import csv
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import RocketSim
import torch

from cleanrl_games import recurrent_ppo_rocketleague as script
from cleanrl_games.envs.rocketleague import NUM_ACTIONS, NUM_OBS, contract, states
from cleanrl_games.envs.rocketleague.observations import POSITION
from cleanrl_games.runtime import central_inference
from cleanrl_games.runtime.checkpoints import load_checkpoint
from cleanrl_games.runtime.errors import BadInput

ROOT = Path(__file__).resolve().parents[1]
SMALL = {
    "rnn_size": 32, "num_agents": 24, "rollout_steps": 64, "sequence_length": 16, "minibatch_size": 512,
    "eval_episodes": 4,
    "eval_seconds": 3.0, "eval_frequency": 0,
}  # fmt: skip
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def start(folder, *flags, resume=False):
    where = ["--resume", str(folder)] if resume else [*FLAGS, "--run-dir", str(folder)]
    words = [sys.executable, "cleanrl_games/recurrent_ppo_rocketleague.py", *where, *map(str, flags)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process, code=0, seconds=600):
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == code, output
    return output


def metrics_of(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


# ---------------------------------------------------------------------------------------------------------------- maths


def test_gae_is_the_discounted_sum_of_td_errors_within_a_game():
    """Against its definition, Σ (γλ)^k δ, each start by itself; a goal leaves no value behind, a time-out the
    bootstrap's."""
    torch.manual_seed(1)
    T, gamma, lam = 10, 0.9, 0.7
    rewards, values, next_value = torch.randn(T, 3), torch.randn(T, 3), torch.randn(3)
    terminated, truncated, bootstrap = (
        torch.zeros(T, 3, dtype=torch.bool),
        torch.zeros(T, 3, dtype=torch.bool),
        torch.zeros(T, 3),
    )
    terminated[4, 0], truncated[6, 1], bootstrap[6, 1] = True, True, 1.7
    advantages = script.gae(rewards, values, next_value, terminated, truncated, bootstrap, gamma, lam)
    for column in range(3):
        for t in range(T):
            expected = 0.0
            for k in range(t, T):
                following = values[k + 1, column] if k + 1 < T else next_value[column]
                if terminated[k, column]:
                    following = 0.0
                if truncated[k, column]:
                    following = bootstrap[k, column]
                expected += (gamma * lam) ** (k - t) * float(rewards[k, column] + gamma * following - values[k, column])
                if terminated[k, column] or truncated[k, column]:
                    break
            assert float(advantages[t, column]) == pytest.approx(expected, abs=1e-5)


def test_ppo_loss_clips_only_the_side_that_would_go_further():
    logratio = torch.tensor([0.5, -0.5, 0.5, -0.5])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    policy, value, stats = script.ppo_losses(logratio, torch.zeros(4), advantages, torch.ones(4), torch.zeros(4), 0.2)
    expected = np.mean([-1.2, -np.exp(-0.5), np.exp(0.5), 0.8])
    assert float(policy) == pytest.approx(expected, abs=1e-6) and float(value) == 0.5 and float(stats[2]) == 1.0


@pytest.mark.parametrize("recurrent", ["lstm", "gru"])
def test_a_new_game_begins_with_an_empty_memory(recurrent):
    torch.manual_seed(0)
    agent = script.Agent(recurrent, 16)
    obs, keep, full = torch.randn(8, 3, NUM_OBS), torch.ones(8, 3, 1), torch.randn(3, agent.state_size)
    keep[5, 1] = 0.0
    with torch.no_grad():
        features, _ = agent.unroll(obs, full, keep)
        again, _ = agent.unroll(obs[5:], torch.zeros_like(full), keep[5:])
        never, _ = agent.unroll(obs, full, torch.ones_like(keep))
    assert torch.allclose(features[5:, 1], again[:, 1], atol=1e-6)
    assert not torch.allclose(features[5:, 1], never[5:, 1], atol=1e-3) and torch.allclose(
        features[:, 2], never[:, 2], atol=1e-6
    )


# ----------------------------------------------------------------------------------------------------------- the update


def learner_of(agent):
    device = torch.device("cpu")
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return SimpleNamespace(
        unroll=agent.unroll, scaler=scaler, autocast=contextlib.nullcontext, device=device, ent_coef=0.01
    )


def small_rollout(args, **changes):
    """A rollout of random rows that the agent's own policy might have played"""
    torch.manual_seed(5)
    s = SimpleNamespace(**script.make_storage(args))
    s.obs.normal_()
    s.values.normal_()
    s.rewards.normal_()
    s.actions.random_(NUM_ACTIONS)
    s.logprobs.fill_(-np.log(NUM_ACTIONS))
    s.masks[:] = s.trained[:] = True
    vars(s).update(changes)
    return s


def minibatch(args, s, advantages=None, returns=None):
    zero = torch.zeros_like(s.rewards)
    chunks, own = script.cut_into_chunks(
        s, zero if advantages is None else advantages, zero if returns is None else returns, args.sequence_length
    )
    return script.take_minibatch(chunks, s.states, own, torch.device("cpu")), own


TINY = {
    "rnn_size": 8,
    "num_agents": 12,
    "rollout_steps": 8,
    "sequence_length": 4,
    "minibatch_size": 48,
    "norm_adv": False,
}


def test_the_loss_is_policy_minus_entropy_plus_value():
    """By hand: with the agent's own log-probs the ratio is 1, so that the policy's part is -mean(advantage)."""
    args = script.Args(**TINY, ent_coef=0.3, vf_coef=0.7)
    agent, s = script.make_agent(vars(args)), small_rollout(args)
    advantages, returns = torch.randn_like(s.rewards), torch.randn_like(s.rewards)
    mb, _ = minibatch(args, s, advantages, returns)
    features, _ = agent.unroll(mb.obs, mb.states, mb.keep)
    logprobs, values = agent.logprobs(features, mb.masks), agent.critic(features).squeeze(-1)
    mb.logprobs = logprobs.gather(-1, mb.actions[..., None]).squeeze(-1).detach()
    entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
    expected = -mb.advantages.mean() - 0.3 * entropy + 0.7 * 0.5 * (values - mb.returns).square().mean()
    loss, parts = script.minibatch_loss(agent, agent.unroll, mb, args, args.ent_coef)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    assert float(parts[2]) == pytest.approx(float(entropy.detach()), abs=1e-5) and float(entropy.detach()) > 0
    more, _ = script.minibatch_loss(agent, agent.unroll, mb, args, 1.3)
    assert float(more.detach()) < float(loss.detach())  # what is more random is better


@pytest.mark.parametrize("ent_coef, advantage", [(0.0, 1.0), (1.0, 0.0)])
def test_a_step_makes_good_actions_likelier_and_a_bonus_more_random(ent_coef, advantage):
    args = script.Args(**TINY, ent_coef=ent_coef, vf_coef=0.0, max_grad_norm=10.0)
    torch.manual_seed(1)
    agent, s = script.make_agent(vars(args)), small_rollout(args)
    torch.nn.init.normal_(agent.policy.weight, 0, 0.5)
    mb, _ = minibatch(args, s, torch.full_like(s.rewards, advantage))

    def measure():
        with torch.no_grad():
            logprobs = agent.logprobs(agent.unroll(mb.obs, mb.states, mb.keep)[0], mb.masks)
        return float(logprobs.gather(-1, mb.actions[..., None]).mean()), float(
            -(logprobs.exp() * logprobs).sum(-1).mean()
        )

    before = measure()
    mb.logprobs = torch.full_like(mb.logprobs, before[0])
    loss, _ = script.minibatch_loss(agent, agent.unroll, mb, args, args.ent_coef)
    optimizer = torch.optim.SGD(agent.parameters(), lr=0.05)
    script.gradient_step(loss, agent, optimizer, learner_of(agent).scaler, args.max_grad_norm)
    likelihood, entropy = measure()
    assert likelihood > before[0] if advantage else entropy > before[1]


def test_only_the_learners_own_rows_are_trained():
    args = script.Args(**{**TINY, "num_agents": 24})
    agent, s = script.make_agent(vars(args)), small_rollout(args)
    s.trained[:, 12:] = False  # cars of an opponent
    s.trained[4:, 0] = False  # a chunk that is not the learner's, of a car that was
    s.trained[2:4, 1] = False  # half a chunk
    gradients = []
    for foreign in (1.0, 1e6):
        advantages, returns = torch.ones_like(s.rewards), torch.ones_like(s.rewards)
        advantages[~s.trained] = returns[~s.trained] = foreign
        s.logprobs[~s.trained] = -foreign
        mb, own = minibatch(args, s, advantages, returns)
        assert {(0, 0), (0, 1), (1, 1)} <= set(map(tuple, own.tolist())) and (1, 0) not in set(map(tuple, own.tolist()))
        assert own[:, 1].max() < 12
        agent.zero_grad()
        script.minibatch_loss(agent, agent.unroll, mb, args, args.ent_coef)[0].backward()
        gradients.append([parameter.grad.clone() for parameter in agent.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients))


def test_returns_are_advantages_and_values():
    args = script.Args(**TINY, learning_rate=0.0)
    agent, s = script.make_agent(vars(args)), small_rollout(args)
    optimizer = torch.optim.SGD(agent.parameters(), lr=0.0)
    losses, returns = script.update_policy(args, agent, optimizer, s, s.rewards, learner_of(agent))
    advantages = script.gae(
        s.rewards, s.values[:-1], s.values[-1], s.terminated, s.truncated, s.bootstrap, args.gamma, args.gae_lambda
    )
    assert torch.allclose(returns, advantages + s.values[:-1]) and not torch.allclose(returns, advantages)
    with torch.no_grad():
        keep, length = script.memory_kept(s.terminated, args.sequence_length), args.sequence_length
        features = torch.cat(
            [agent.unroll(s.obs[i : i + length], s.states[i // length], keep[i : i + length])[0] for i in (0, length)]
        )
        expected = 0.5 * (agent.critic(features).squeeze(-1) - returns).square().mean()
    assert float(torch.stack(losses)[:, 1].mean()) == pytest.approx(float(expected), rel=1e-4)
    assert len(losses) == 2 and len(losses[0]) == len(script.LOSS_NAMES.split())


def test_memory_is_kept_within_a_game_and_within_a_chunk_begins_as_stored():
    ended = torch.zeros(8, 2, dtype=torch.bool)
    ended[1, 0] = ended[3, 1] = True  # in mid-chunk; at the end of the first chunk
    keep = script.memory_kept(ended, 4)[..., 0]
    assert keep[:, 0].tolist() == [1, 1, 0, 1, 1, 1, 1, 1] and keep[:, 1].tolist() == [1] * 8


def test_rewards_are_divided_by_the_std_of_discounted_returns():
    """By hand, on one car: sums run on through a rollout's end and stop at a game's; rows of opponents do not count."""
    scale = script.RewardScale(1, 2)
    rewards = torch.tensor([[1.0, 100.0], [2.0, 100.0], [4.0, 100.0]])
    ended, trained = torch.tensor([[False], [True], [False]]).expand(3, 2), torch.tensor([[True, False]]).expand(3, 2)
    scaled, returns = scale(0, rewards, ended, trained, 0.5)
    sums = np.array([1.0, 2.5, 4.0])
    assert float(scaled[0, 0]) == pytest.approx(1 / np.sqrt(sums.var()), rel=1e-3) and returns.tolist() == [3.0]
    scaled, returns = scale(0, rewards, ended, trained, 0.5)
    sums = np.array([*sums, 3.0, 3.5, 4.0])
    assert float(scaled[0, 0]) == pytest.approx(1 / np.sqrt(sums.var()), rel=1e-3) and returns.tolist() == [7.0]
    scale.start_anew(0)
    again = script.RewardScale(1, 2)
    again.load_state_dict(scale.state_dict())
    for one in (scale, again):
        scaled, returns = one(0, rewards, ended, trained, 0.5)
        assert returns.tolist() == [3.0]
    assert float(scaled[0, 0]) == pytest.approx(1 / np.sqrt(np.array([*sums, 1.0, 2.5, 4.0]).var()), rel=1e-3)


def test_actions_are_drawn_by_their_probabilities_and_never_masked():
    torch.manual_seed(3)
    agent, obs = script.Agent("lstm", 16), torch.randn(1, NUM_OBS).expand(40_000, -1)
    torch.nn.init.normal_(agent.policy.weight, 0, 1.0)
    masks = torch.rand(1, NUM_ACTIONS).expand(40_000, -1) < 0.4
    with torch.no_grad():
        actions, logprob, _, _ = agent.act(
            obs, masks, torch.zeros(len(obs), agent.state_size), torch.Generator().manual_seed(1)
        )
        best, _, _, _ = agent.act(obs[:1], masks[:1], torch.zeros(1, agent.state_size), deterministic=True)
        chances = agent.logprobs(agent.step(obs[:1], torch.zeros(1, agent.state_size))[0], masks[:1])[0].exp()
    seen = torch.bincount(actions, minlength=NUM_ACTIONS) / len(actions)
    spread = (chances * (1 - chances) / len(actions)).sqrt()
    assert ((seen - chances).abs() <= 5 * spread + 1e-4).all() and (seen[~masks[0]] == 0).all()
    assert torch.allclose(logprob.exp(), chances[actions], atol=1e-6) and int(best) == int(chances.argmax())


# ------------------------------------------------------------------------------------------- opponents, ratings, stages


def test_samplers_follow_their_formulas():
    elos, ages, elo = [1500.0, 900.0, 1000.0, 1400.0], [3, 2, 1, 0], 1400.0

    def chances(sampler, elos=elos, ages=ages, **changes):
        settings = {"sampler_temperature": 0.5, "elo_window": 200.0, "target_win_rate": 0.5} | changes
        found = script.opponent_chances(elos, ages, elo, script.Args(opponent_sampler=sampler, **settings))
        assert found.sum() == pytest.approx(1.0) and (found > 0).all()
        return found

    assert chances("uniform") == pytest.approx([0.25] * 4)
    assert chances("elo_weighted")[3] / chances("elo_weighted")[2] == pytest.approx(np.exp(400 / 200 / 0.5))
    assert chances("recent_weighted")[3] / chances("recent_weighted")[0] == pytest.approx(np.exp(1 / 0.5))
    assert chances("difficulty_adjusted").argmax() == 3
    assert chances("difficulty_adjusted", target_win_rate=10 / 11).argmax() == 2  # expected against 1000
    assert chances("elo_weighted", sampler_temperature=1e6) == pytest.approx([0.25] * 4, abs=1e-4)
    for sampler in ("uniform", "elo_weighted", "recent_weighted", "difficulty_adjusted"):
        assert chances(sampler, [1500.0], [0]) == pytest.approx([1.0]), sampler


def league_of(**changes):
    args = script.Args(**{**SMALL, "league_size": 3, **changes})
    return script.League(args, script.make_broadcast(args, 4))


def test_weak_members_leave_and_anchors_never():
    league = league_of(min_elo_diff=300.0)
    for number, elo in enumerate((1000.0, 1350.0, 1600.0)):
        league.agent["elo"] = elo
        league.join(f"s{number}", torch.full((4,), float(number)))
    league.prune()
    assert [member["name"] for member in league.members] == [*script.PLAYERS, "s1", "s2"]
    league.agent["elo"] = 9999.0
    league.join("s3", torch.zeros(4))
    league.join("s4", torch.full((4,), 4.0))  # full: the weakest past self makes room, not a weaker anchor
    assert [member["name"] for member in league.members] == [*script.PLAYERS, "s2", "s3", "s4"]
    assert len({member["row"] for member in league.members[script.FIRST_MEMBER :]}) == 3
    assert league.broadcast.member_weights[league.members[-1]["row"]].tolist() == [4.0] * 4
    league.prune()
    assert [member["name"] for member in league.members] == [*script.PLAYERS, "s3", "s4"]


def test_the_newest_models_and_the_best_are_kept(tmp_path, monkeypatch):
    args = script.Args(**TINY, sharing="shared_memory", league_size=2, keep_models=2)
    agent, now = script.make_agent(vars(args)), script.Progress()
    league = script.League(args, script.make_broadcast(args, len(script.to_flat(agent))))
    monkeypatch.setattr(script, "rating_match", lambda *_, **__: np.zeros(1))
    monkeypatch.setattr(script, "touch_metrics", lambda *_: {})
    for now.global_step, elo in enumerate([700.0, 900.0, 800.0, 850.0, 600.0]):
        league.agent["elo"] = elo
        script.evaluate(args, agent, league, now, tmp_path)
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["1.zip", "3.zip", "4.zip"]
    assert (now.best_model, now.best_elo) == ("1.zip", 900.0)


def test_scripted_players_are_rated_as_in_the_matches_of_the_stage():
    league, agent = league_of(), torch.nn.Linear(1, 2)
    for stage, team_size in ((0, 1), (2, 1), (3, 2), (4, 3)):
        league.publish(agent, 0, stage, np.zeros(len(script.REWARD_NAMES)), 1.0)
        found = {member["name"]: member["elo"] for member in league.members}
        assert found == script.PINNED[team_size] and found["rule"] == 1500.0
    script.rate_match(league.agent, league.members[2], [1.0, 1.0], 3)
    assert league.members[2]["elo"] == script.PINNED[3]["aerial"] != script.PINNED[1]["aerial"]


def test_scripted_players_are_still_met_by_an_agent_with_many_equals():
    """The sampler alone leaves them nothing; of their share the strongest gets most, and past selves keep the rest."""
    chances = {}
    for share in (0.0, 0.5):
        league = league_of(league_size=30, scripted_share=share)
        league.agent["elo"] = 1850.0
        for number in range(30):
            league.join(f"s{number}", torch.zeros(4))
        chances[share] = dict(zip((member["name"] for member in league.members), league.probabilities()))
        assert sum(chances[share].values()) == pytest.approx(1.0)
    assert chances[0.0]["rule"] < 1e-3
    scripted = [chances[0.5][name] for name in ("aerial", "positional", "rule", "chaser", "random")]
    assert scripted == sorted(scripted, reverse=True) and chances[0.5]["rule"] > 0.05
    assert sum(scripted) == pytest.approx(0.5 + 0.5 * sum(chances[0.0][name] for name in script.PLAYERS))
    assert chances[0.5]["s3"] == pytest.approx(0.5 * chances[0.0]["s3"])


def test_ratings_move_and_anchors_hold(tmp_path):
    agent, rule, other = (
        script.new_rating(name, elo) for name, elo in (("agent", 1500.0), ("rule", 1500.0), ("past", 1900.0))
    )
    assert script.rate_match(agent, rule, [1.0], 1) == [(1508.0, 1500.0)]
    assert rule["elo"] == 1500.0 and agent["mu"] > rule["mu"] and agent["sigma"] < 25 / 3
    before = agent["elo"]
    course = script.rate_match(agent, other, [0.0, 1.0], 2)
    assert agent["elo"] - before == pytest.approx(1900.0 - other["elo"]) and course[-1] == (agent["elo"], other["elo"])
    assert course[0][0] - before == pytest.approx(-16 * float(script.expected_score(before, 1900.0)))
    assert (agent["games"], agent["wins"], other["wins"]) == (3, 2.0, 1.0)
    script.append_games(tmp_path / "games.csv", 7, "1v1", 2, "agent", "past", [0.0, 0.5], [3.0, 60.0], course)
    script.append_games(tmp_path / "games.csv", 8, "1v1", 2, "agent", "rule", [1.0], [3.0], [(1.0, 2.0)])
    rows = list(csv.DictReader((tmp_path / "games.csv").open()))
    assert [row["side"] for row in rows] == ["blue", "orange", "blue"] and [row["score"] for row in rows] == [
        "0.0",
        "0.5",
        "1.0",
    ]


def test_ties_move_no_rating():
    agent, rule = script.new_rating("agent", 850.0), script.new_rating("rule", 1500.0)
    course = script.rate_match(agent, rule, [0.5] * 68, 1)
    assert (
        agent["elo"] == 850.0 and agent["mu"] == rule["mu"] and agent["games"] == 0 and course == [(850.0, 1500.0)] * 68
    )
    script.rate_match(agent, rule, [0.5, 1.0, 0.5], 1)
    assert agent["elo"] == 850.0 + 16 * (1 - float(script.expected_score(850.0, 1500.0)))


def test_a_stage_is_passed_by_a_confident_measure():
    args = script.Args(transition_win_rate=0.6, transition_games=100)
    assert not script.stage_passed([1.0] * 99, args)  # too few
    assert script.stage_passed([1.0] * 70 + [0.0] * 30, args)  # 0.70 ± 0.09
    assert not script.stage_passed([1.0] * 68 + [0.0] * 32, args)  # better than 0.6, but not surely
    assert script.stage_passed([0.0] * 500 + [1.0] * 100, args)  # only the last games count


def test_cars_are_divided_among_team_sizes_by_their_shares():
    for stage in script.STAGES:
        for num_agents in range(12, 400, 12):
            sizes = script.arena_sizes(num_agents, stage.team_sizes)
            assert 2 * sum(sizes) == num_agents and set(sizes) == set(stage.team_sizes)
        sizes = script.arena_sizes(192, stage.team_sizes)
        for size, share in stage.team_sizes.items():
            assert 2 * size * sizes.count(size) / 192 == pytest.approx(share, abs=0.02)
    with pytest.raises(ValueError, match="come out even"):
        script.arena_sizes(12, {2: 0.5, 3: 0.5})


def test_a_new_stage_remembers_a_little_of_the_scale_of_rewards():
    args = script.Args(**TINY)
    scale, now = script.RewardScale(1, args.num_agents), script.Progress(stage=1, stage_update=70, stage_scores=[1.0])
    scale.rms.var, scale.rms.count = torch.tensor([4.0], dtype=torch.float64), 1e9
    script.begin_next_stage(now, scale, args)
    assert (now.stage, now.stage_update, now.stage_scores) == (2, 0, [])
    rows = args.rollout_steps * args.num_agents
    assert float(scale.rms.var) == 4.0 and scale.rms.count == script.SCALE_ROLLOUTS * rows
    for _ in range(3 * script.SCALE_ROLLOUTS):
        scale.rms.update(100.0 * torch.tensor([-1.0, 1.0]).repeat(rows // 2)[:, None])
    assert 0.7 * 100**2 < float(scale.rms.var) < 100**2
    scale.rms.count = 5.0  # a stage that was passed at once
    script.begin_next_stage(now, scale, args)
    assert scale.rms.count == 5.0


def test_presets_pay_what_they_say():
    assert {name for name, weight in script.REWARD_PRESETS["sparse"].items() if weight} == {"goal", "concede", "save"}
    assert set(script.REWARD_PRESETS["dense"]) == set(script.REWARD_NAMES) and all(
        script.REWARD_PRESETS["dense"].values()
    )
    weights = script.reward_weights("hybrid", ("touch=7", "air=0"))
    assert weights[script.REWARD_NAMES.index("touch")] == 7 and weights[script.REWARD_NAMES.index("goal")] == 10
    for flags, sentence in (
        (("tuch=7",), "did you mean 'touch'"),
        (("touch",), "name=value"),
        (("touch=nan",), "finite"),
    ):
        with pytest.raises(ValueError, match=sentence):
            script.reward_weights("hybrid", flags)


def test_the_page_has_every_presets_weights():
    page = (ROOT / "docs" / "recurrent_ppo_rocketleague.md").read_text()
    for name in script.REWARD_NAMES:
        cells = [f"{script.REWARD_PRESETS[preset].get(name, 0):g}" for preset in ("sparse", "dense", "hybrid")]
        line = (
            f"| `{name}` | {' | '.join(cell if cell != '0' else '' for cell in cells)} | "
            f"{contract.REWARD_TERMS[name]} |"
        )
        assert line in page, f"the page should have this line:\n{line}"


def test_rewards_are_mixed_within_and_between_the_teams(monkeypatch):
    """By hand, for one arena of 2v2, with a reward of one's own as a copy of the script would have it"""

    def height(env, info):
        return np.float32(env.cars[:, POSITION + 2] / 1000)

    rewards = {"ball_speed_to_goal": script.measured("ball_speed_to_goal"), "height": height}
    monkeypatch.setattr(script, "REWARDS", rewards)
    monkeypatch.setattr(script, "REWARD_NAMES", tuple(rewards))
    env = script.RocketLeagueVecEnv(1, (2,), states={"near_ball": 1.0})
    stage = dataclasses.replace(script.STAGES[3], zero_sum=True, team_spirit=0.3)
    for _ in range(5):
        info = env.step([40, 3, 16, 30])[5]
        terms = np.stack([reward(env, info) for reward in rewards.values()], 1)
        own = 3.0 * terms[:, 0] + 0.5 * terms[:, 1]
        team = np.repeat([own[:2].mean(), own[2:].mean()], 2)
        charged = np.repeat([3 * terms[2:, 0].mean(), 3 * terms[:2, 0].mean()], 2)
        mixed = script.mix_rewards(terms, np.float32([3.0, 0.5]), env, stage)
        np.testing.assert_allclose(mixed, 0.7 * own + 0.3 * team - charged, atol=1e-5)
        plain = script.mix_rewards(
            terms, np.float32([3.0, 0.5]), env, dataclasses.replace(stage, zero_sum=False, team_spirit=0.0)
        )
        np.testing.assert_allclose(plain, own, atol=1e-5)
    assert terms[:, 1].max() > 0.01 and np.abs(terms[:, 0]).max() > 0


def test_rewards_go_over_from_one_stage_to_the_next():
    args = script.Args()
    touch, goal = contract.TERM_INDEX["touch"], contract.TERM_INDEX["goal"]
    base = script.reward_weights("hybrid")
    first, second, third = (
        script.STAGE_NAMES.index("touch"),
        script.STAGE_NAMES.index("score"),
        script.STAGE_NAMES.index("1v1"),
    )
    assert script.stage_rewards(args, first, 0)[goal] == 0
    assert script.stage_rewards(args, first, 0)[touch] == pytest.approx(base[touch] * script.DRIVING["touch"])
    assert script.stage_rewards(args, second, 0)[goal] == 0
    assert script.stage_rewards(args, second, script.ANNEAL_UPDATES // 2)[goal] == pytest.approx(base[goal] / 2)
    assert script.stage_rewards(args, second, 1000)[goal] == base[goal]
    assert script.stage_rewards(args, third, 1000)[touch] == pytest.approx(base[touch] * script.STAGES[third].dense)
    begun_there = dataclasses.replace(args, stage="1v1")
    assert script.stage_rewards(begun_there, third, 0)[goal] == base[goal]
    high = dataclasses.replace(args, aerial_focus=0.5, reward_weights=("touch=7",))
    assert script.stage_rewards(high, second, 1000)[touch] == 7
    assert script.stage_rewards(high, first, 0)[contract.TERM_INDEX["touch_height"]] > 0


# ---------------------------------------------------------------------------------------------------------------- actor


def short_games(monkeypatch, seconds=1.5):
    """The curriculum with games of so many seconds, so that many end within a rollout."""
    monkeypatch.setattr(script, "STAGES", tuple(dataclasses.replace(stage, seconds=seconds) for stage in script.STAGES))


def actor_of(**changes):
    args = script.Args(**{**SMALL, "num_workers": 0, **changes})
    torch.manual_seed(0)
    actor = script.Actor(args, 0)
    torch.nn.init.normal_(actor.agent.policy.weight, 0, 0.5)  # far from uniform
    broadcast = script.make_broadcast(args, len(script.to_flat(actor.agent)))
    return args, actor, broadcast, script.League(args, broadcast), script.make_storage(args)


@pytest.mark.parametrize(
    "recurrent, where", [("lstm", "worker"), ("gru", "worker"), ("none", "worker"), ("lstm", "central")]
)
def test_the_learners_unroll_gives_the_actors_log_probs(recurrent, where, monkeypatch):
    short_games(monkeypatch)
    args, actor, broadcast, league, s = actor_of(recurrent=recurrent, inference=where, num_workers=1)
    with contextlib.ExitStack() as stack:
        if where == "central":
            broadcast.channels, theirs = script.make_channels(args)
            job = (args, broadcast, torch.device("cpu"))
            stack.enter_context(central_inference.running(script.inference_main, job, theirs))
        for _ in range(2):
            league.join("past", script.to_flat(actor.agent) + 0.01)
        for version in range(2):  # the second begins in the middle of games, with memories that are not empty
            league.publish(actor.agent, version, 4, script.stage_rewards(args, 4, 0), 0.5)
            actor.rollout(broadcast, s)
    assert isinstance(actor.policy, script.CentralPolicy if where == "central" else script.Agent)
    ended = s["terminated"] | s["truncated"]
    assert ended.any() and (s["states"][0].abs().sum() > 0 or recurrent == "none")
    chunks, length = args.rollout_steps // args.sequence_length, args.sequence_length
    keep = script.memory_kept(ended, length)
    for chunk in range(chunks):
        rows = slice(chunk * length, (chunk + 1) * length)
        with torch.no_grad():
            features, _ = actor.agent.unroll(s["obs"][rows], s["states"][chunk], keep[rows])
            logprobs = (
                actor.agent.logprobs(features, s["masks"][rows]).gather(-1, s["actions"][rows][..., None]).squeeze(-1)
            )
            values = actor.agent.critic(features).squeeze(-1)
        own = s["trained"][rows]
        assert 0 < own.sum() < own.numel()
        assert (logprobs - s["logprobs"][rows])[own].abs().max() < 1e-5 and (values - s["values"][rows])[
            own
        ].abs().max() < 1e-4


def test_opponents_stay_for_a_game_play_whole_teams_and_are_not_trained(monkeypatch):
    short_games(monkeypatch)
    args, actor, broadcast, league, s = actor_of(opponents_at_once=60, opponent_sampler="uniform", scripted_share=0.5)
    league.join("past", script.to_flat(actor.agent))
    league.publish(actor.agent, 3, 4, script.stage_rewards(args, 4, 0), 0.4)
    actor.pull_weights(broadcast)
    seen, step = [], actor.env.step

    def watched(actions):
        seen.append((actor.opponent.copy(), actor.side.copy()))
        return step(actions)

    actor.env.step = watched
    actor.rollout(broadcast, s)
    env, ended = actor.env, (s["terminated"] | s["truncated"]).numpy()
    assert sorted(set(env.sizes)) == [1, 2, 3] and env.num_agents == args.num_agents
    for t in range(1, len(seen)):
        going_on = ~ended[t - 1][env.first]
        for before, after in zip(seen[t - 1], seen[t]):
            assert (before == after)[going_on].all(), "an opponent changed in mid-game"
    for t, (opponent, side) in enumerate(seen):
        alone = opponent[env.agent_arena] == script.SELF
        assert (s["trained"][t].numpy() == (alone | (env.agent_team == side[env.agent_arena]))).all()
    met = set(np.concatenate([opponent for opponent, _ in seen]).tolist())
    assert {script.SELF, script.FIRST_MEMBER} < met <= {script.SELF, *range(script.FIRST_MEMBER + 1)} and len(met) >= 5
    truncated = s["truncated"]
    assert truncated.any() and (s["bootstrap"][truncated] != 0).all() and (s["bootstrap"][~truncated] == 0).all()
    assert int(s["num_episodes"]) == int(ended[:, env.first].sum()) and int(s["version"]) == 3
    assert 0 < s["episode_length"][: int(s["num_episodes"])].max() <= 23


def test_results_are_seen_from_the_learners_side():
    _, actor, broadcast, league, _ = actor_of()
    league.publish(actor.agent, 0, 2, script.stage_rewards(actor.args, 2, 0), 1.0)
    actor.pull_weights(broadcast)
    actor.opponent[:4], actor.side[:4] = [0, 0, script.SELF, 5], [0, 1, 0, 1]
    own, _ = actor.rows()
    actor.touched[:] = False
    actor.touched[actor.env.first[2]] = True
    info = {"goal": np.array([1, 1, -1, 0] + [0] * 8), "length": np.full(12, 9)}
    found = actor.results(np.arange(4), info, own)
    assert [script.KINDS[int(kind)] for kind in found["kind"]] == ["rule", "rule", "self", "past"]
    assert found["score"].tolist() == [1.0, 0.0, 0.0, 0.5]  # won, lost, (against itself: blue's score), time out
    assert found["touched"].tolist() == [0.0, 0.0, 0.5, 0.0] and found["scored"].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert tuple(found) == script.EPISODE_FIELDS


def test_an_actor_follows_the_curriculum():
    args, actor, broadcast, league, s = actor_of(rollout_steps=16)
    for stage, sizes in ((0, {1}), (3, {1, 2}), (4, {1, 2, 3})):
        rewards = script.stage_rewards(args, stage, 10**6)
        league.publish(actor.agent, 0, stage, rewards, 1.0)
        actor.rollout(broadcast, s)
        assert (
            (int(s["stage"]), int(s["steps_in_stage"])) == (stage, 0)
            and set(actor.env.sizes) == sizes
            and actor.env.num_agents == args.num_agents
        )
        assert torch.equal(s["states"][0], torch.zeros_like(s["states"][0])) and np.array_equal(
            actor.reward_weights, rewards
        )
        actor.rollout(broadcast, s)
        assert (int(s["stage"]), int(s["steps_in_stage"])) == (stage, 16)
    with pytest.raises(ValueError, match="multiple of 12"):
        script.make_env(dataclasses.replace(args, num_agents=20), script.STAGES[4], 1)


def test_a_broken_arena_costs_its_game_and_nothing_else(capfd):
    args, actor, broadcast, league, s = actor_of(rollout_steps=16)
    league.publish(actor.agent, 0, 0, script.stage_rewards(args, 0, 0), 1.0)
    actor.rollout(broadcast, s)
    ball = RocketSim.BallState()
    ball.vel = RocketSim.Vec(float("nan"), 0.0, 0.0)
    actor.env.arenas[5].ball.set_state(ball)
    actor.rollout(broadcast, s)
    assert "not finite in arena 5" in capfd.readouterr().err
    for name, tensor in s.items():
        assert torch.isfinite(tensor.float()).all(), name
    rows = actor.env._rows(5)
    assert s["truncated"][0, rows].all() and s["truncated"][0].sum() == 2


# ----------------------------------------------------------------------------------------------------------------- runs


# A constant learning rate, so that nothing depends on where a run is going to end; checkpoints and rating matches at
# the same updates, since both leave traces (rebuilt arenas, ratings). Every game counts as success, so that the run
# passes two stages.
WHOLE = (
    "--num-workers 0 --num-agents 12 --final-stage 1v1 --transition-win-rate 0 --transition-games 2 --self-share 0.5 "
    "--opponent-update-freq 1 "
    "--action-repeat 48 "  # a game is soon over
    "--eval-frequency 4 --checkpoint-frequency 4 --learning-rate 5e-4 --learning-rate-final 5e-4 --opponent-sampler "
    "uniform --ent-coef-final 0.01 --final-eval-episodes 4 --capture-video"
).split()


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(start(folder, *WHOLE, "--total-timesteps", 9_000))
    return folder


def test_resumed_inline_run_equals_the_uninterrupted_one(whole_run, tmp_path):
    folder, course = tmp_path / "run", metrics_of(whole_run)
    stages = [row["charts/stage"] for row in course]
    assert stages[0] == 0 and stages[7] == 2 and stages == sorted(stages) and len(course) >= 10
    finish(start(folder, *WHOLE, "--total-timesteps", course[7]["global_step"]))
    assert len(metrics_of(folder)) == 8
    finish(start(folder, "--total-timesteps", 9_000, resume=True))
    ours, theirs = (load_checkpoint(path) for path in (folder, whole_run))
    assert {**ours["progress"], "seconds": 0} == {**theirs["progress"], "seconds": 0}
    assert ours["league"] == theirs["league"] and len(theirs["league"]["members"]) > 6
    for name, tensor in theirs["agent"].items():
        assert torch.equal(ours["agent"][name], tensor), f"{name} differs"
    for name, array in theirs["actor"]["arrays"].items():
        assert torch.equal(ours["actor"]["arrays"][name], array), f"the actor's {name} differ"
    assert torch.equal(ours["actor"]["memory"], theirs["actor"]["memory"]) and theirs["actor"]["memory"].abs().sum() > 0
    games = [(path / "games.csv").read_text() for path in (folder, whole_run)]
    assert games[0] == games[1] and games[0].count("\n") > 8


def test_a_stage_counts_no_game_before_the_longest_could_have_ended(tmp_path):
    """Games that begin together end shortest first; the first stage's last 20 s, which is 300 steps."""
    flags = ("--num-workers", 0, "--transition-win-rate", 0, "--transition-games", 4, "--total-timesteps", 24 * 64 * 12)
    finish(start(tmp_path / "run", *flags))
    steps = [row["global_step"] / 24 for row in metrics_of(tmp_path / "run") if row["charts/stage"] == 0]
    ended = [row["global_step"] / 24 for row in metrics_of(tmp_path / "run") if "charts/episodic_length" in row]
    assert ended[0] < 300 < steps[-1] and len(steps) < 12, (ended, steps)


def test_run_folder_has_everything(whole_run):
    present = {path.name for path in whole_run.iterdir()}
    assert {"config.yaml", "script.py", "metrics.jsonl", "checkpoint.pt", "model.zip", "games.csv", "models"} <= present
    last = metrics_of(whole_run)[-1]
    names = "losses/policy_loss stats/policy_lag_max elo/agent elo/sigma eval/rule eval/touch_ratio rewards/touch"
    for name in [*names.split(), "charts/stage"]:
        assert name in last
    assert last["eval/rule_1v1_n"] == last["eval/rule_1v1_deterministic_n"] == 4 and "eval/rule_2v2" not in last
    assert not any("eval/rule_1v1" in row for row in metrics_of(whole_run)[:-1])
    pictures = sorted((whole_run / "videos").glob("*.gif"), key=lambda path: int(path.stem.split("_")[0]))
    stages = [path.stem.split("_")[1] for path in pictures]
    assert list(dict.fromkeys(stages)) == ["touch", "score", "1v1"], "a picture of each stage"
    agent, metadata = script.load_model(whole_run)
    assert (metadata["game"], metadata["stage"], metadata["contract_hash"]) == (
        "rocketleague",
        "1v1",
        contract.contract_hash(),
    )
    checkpoint = load_checkpoint(whole_run)
    assert all(torch.equal(checkpoint["agent"][name], tensor) for name, tensor in agent.state_dict().items())


def test_other_versions_and_senseless_settings_get_a_sentence(whole_run, tmp_path, monkeypatch):
    monkeypatch.setattr(contract, "contract_hash", lambda: "other")
    with pytest.raises(BadInput, match="it cannot play here"):
        script.load_model(whole_run)
    (tmp_path / "config.yaml").write_text((whole_run / "config.yaml").read_text())
    checkpoint = load_checkpoint(whole_run)
    torch.save({**checkpoint, "contract_hash": "0123456789abcdef"}, tmp_path / "checkpoint.pt")
    rows = np.array([states.spawn(states.KICKOFF_PLACES[0], team) for team in (0, 1)])
    # enough for the first three stages
    states.save_states(tmp_path / "states.npz", [(np.array([0, 0, 93.15, 0, 0, 0, 0, 0, 0]), rows)])
    runs = [
        (start(tmp_path, resume=True), "sees and does other things (contract 0123456789abcdef"),
        (start(tmp_path / "a", "--rollout-steps", 60), "multiple of --sequence-length"),
        (start(tmp_path / "b", "--stage", "3v3", "--final-stage", "1v1"), "comes after"),
        (start(tmp_path / "c", "--reward-mode", "sparse"), "begin with --stage score"),
        (
            start(tmp_path / "d", "--state-file", tmp_path / "states.npz"),
            "no state for 2 cars per team and 3 cars per team",
        ),
    ]
    for process, sentence in runs:
        output = finish(process, code=2)
        assert sentence in output and "Traceback" not in output
    assert not any((tmp_path / name).exists() for name in "abcd")
    finish(
        start(
            tmp_path / "e",
            "--state-file",
            tmp_path / "states.npz",
            "--final-stage",
            "1v1",
            "--num-workers",
            0,
            "--total-timesteps",
            1,
        )
    )


def test_a_run_that_diverges_ends_in_a_sentence_and_keeps_its_last_good_state(tmp_path):
    output = finish(
        start(
            tmp_path / "run",
            "--num-workers",
            0,
            "--learning-rate",
            1e-9,
            "--learning-rate-final",
            1e35,
            "--checkpoint-frequency",
            1,
        ),
        code=1,
    )
    assert "The loss is not finite" in output and "Traceback" not in output
    kept = load_checkpoint(tmp_path / "run")["agent"].values()
    assert all(torch.isfinite(tensor).all() for tensor in kept)


def processes_after_updates(process, folder, updates=2):
    """Waits for so many updates → the run's own processes, in the order of their start"""
    path, end = folder / "metrics.jsonl", time.time() + 600
    while not path.exists() or path.read_text().count("\n") < updates:
        assert time.time() < end and process.poll() is None, "waited too long"
        time.sleep(0.2)
    children = psutil.Process(process.pid).children(recursive=True)
    return sorted(
        (child for child in children if "spawn_main" in " ".join(child.cmdline())), key=lambda child: child.pid
    )


def test_central_inference_serves_all_actors_and_its_death_ends_the_run(tmp_path):
    folder = tmp_path / "run"
    process = start(
        folder, "--num-workers", 2, "--num-agents", 12, "--inference", "central", "--stage", "1v1", "--self-share", 0.5
    )
    server, *actors = processes_after_updates(process, folder, 6)
    assert len(actors) == 2
    rows = metrics_of(folder)
    # one actor's first rollout has one version from end to end, and its log-probs are the learner's
    assert abs(rows[0]["losses/old_approx_kl"]) < 0.01 and all(np.isfinite(list(row.values())).all() for row in rows)
    server.send_signal(signal.SIGKILL)
    output = finish(process, code=1)
    assert "The inference process has ended" in output and "--resume" in output
    assert load_checkpoint(folder)["progress"]["update"] >= 6
    assert "falls back to worker" in finish(
        start(tmp_path / "b", "--num-workers", 0, "--inference", "central", "--total-timesteps", 1)
    )


def test_a_killed_actor_is_replaced_and_reported(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--num-workers", 1, "--num-agents", 12, "--sharing", "file_system")
    (worker,) = processes_after_updates(process, folder)
    worker.send_signal(signal.SIGKILL)
    seen = len(metrics_of(folder))
    (other,) = processes_after_updates(process, folder, seen + 3)
    assert other.pid != worker.pid
    process.send_signal(signal.SIGINT)
    output = finish(process)
    assert f"pid {worker.pid}, exit code -9" in output and "a new one takes its place" in output
    assert load_checkpoint(folder)["progress"]["update"] >= seen + 3


def test_resume_checks_everything_before_it_writes(whole_run, tmp_path):
    shutil.copytree(whole_run, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    checkpoint = load_checkpoint(whole_run)
    cases = [({}, ("--rnn-size", 16), "is not of the sizes"), ({"network_hash": "other"}, (), "another network")]
    for change, flags, sentence in cases:
        torch.save({**checkpoint, **change}, tmp_path / "run" / "checkpoint.pt")
        before["checkpoint.pt"] = (tmp_path / "run" / "checkpoint.pt").read_bytes()
        output = finish(start(tmp_path / "run", *flags, resume=True), code=2)
        assert sentence in output and "Traceback" not in output
        assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before
