"""rnad_vgc_portfolio.py: its terms on real battles, its pool and tables, and runs as a user starts them, killed in
every part."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from cleanrl_games import rnad_vgc_portfolio as script
from cleanrl_games.runtime import exploiter_processes
from cleanrl_games.runtime.checkpoints import load_checkpoint
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.settings import parse_args

ROOT = Path(__file__).resolve().parents[1]
SMALL = {
    "width": 16, "embedding_width": 16, "lstm_size": 32, "num_battles": 4, "buffer_size": 64,
    "num_minibatches": 2, "update_epochs": 2, "eval_frequency": 0, "eval_battles": 2, "final_battles": 2,
}  # fmt: skip
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))] + [
    "--teams",
    "shipped",
]
SMALL["teams"] = ("shipped",)


def command(*flags):
    return [sys.executable, "cleanrl_games/rnad_vgc_portfolio.py", *map(str, flags)]


def start(folder, *flags):
    words = command(*FLAGS, *flags, "--run-dir", folder)
    # A run that nobody listens to writes a line an update, and stands still when the pipe is full: on a busy core that
    # was before its exploiter had got to its end.
    return subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, pipesize=1 << 20
    )


def finish(process, code=0, seconds=900):
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == code, output
    return output


def metrics_of(folder):
    path = Path(folder) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition, process, seconds=900):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, "waited too long"
        assert process is None or process.poll() is None, process.stdout.read()
        time.sleep(0.2)


def is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def small_args(**changes):
    return script.Args(**(SMALL | {"num_workers": 0, "sharing": "shared_memory"} | changes))


@pytest.fixture(scope="module")
def played():
    """An inline actor with the pool's every kind in it, and one rollout of it."""
    torch.manual_seed(0)
    args = small_args(buffer_size=256, bc_fraction=0.2, past_fraction=0.2, exploiter_fraction=0.0)
    actor = script.Actor(args, 0)
    broadcast = script.make_broadcast(args, actor.agent)
    pool = script.Pool(args, broadcast)
    pool.join(script.BC, "bc", script.to_flat(script.make_agent(vars(args))))
    pool.join(script.PAST, "old", script.to_flat(script.make_agent(vars(args))))
    pool.publish(actor.agent, 0)
    seen, send = defaultdict(set), actor.env.send

    def watched_send(keys, actions):
        for table in (keys // 2).tolist():
            holders = actor.policy_ids[2 * table : 2 * table + 2].tolist()
            code = max(actor.env.players[table])
            seen[table, int(actor.env.episodes[table])].add((int(actor.opponents[table]), code, *holders))
        send(keys, actions)

    actor.env.send = watched_send
    slots = script.inline_rollouts(args, broadcast, [], actor)
    batch = next(script.gather_batches(slots, broadcast, 1, 4))
    yield SimpleNamespace(args=args, actor=actor, pool=pool, batch=batch, seen=seen)
    actor.env.close()


def choices_at(batch, rows):
    return script.split_action(batch.rows["is_preview"], batch.rows["actions"])[rows]


# ------------------------------------------------------------------------------------------------ terms on real battles


def test_tables_are_those_of_the_policy_that_played(played):
    """The learner's pass gives the actor's log-probs; so the KL to a frozen copy of oneself is 0 on real decisions."""
    batch, agent = played.batch, played.actor.agent
    table = script.policy_logprobs(agent, batch, "cpu")
    taken = script.taken_logprob(table, choices_at(batch, slice(None)))
    assert (taken - batch.rows["logprobs"]).abs().max() < 1e-5
    assert batch.rows["is_preview"].any() and (~batch.rows["is_preview"]).sum() > 100
    nearest, chosen, kls = script.magnet_kl(table, torch.stack([table.roll(1, 0), table]))
    assert nearest.abs().max() < 1e-6 and kls[0].max() > 0.1 and (chosen[kls[0] > 1e-3] == 1).all()


def test_a_reference_remembers_the_battle_itself(played):
    """Played step by step from the preview on, with its own memory, it says what it says to the learner."""
    batch, other = played.batch, script.make_agent(vars(played.args))
    table, start, length = script.policy_logprobs(other, batch, "cpu"), int(batch.starts[1]), int(batch.lengths[1])
    state = other.initial_state(1)
    with torch.no_grad():
        for row in range(start, start + length):
            rows = {name: values[[row]] for name, values in batch.rows.items()}
            hidden, candidates, state = other.step(rows["ints"], rows["floats"], state)
            alone = other.logprobs(hidden, candidates, rows["is_preview"], rows["legal"], rows["actions"])
            torch.testing.assert_close(alone[0], table[row], atol=1e-5, rtol=0)


def learner_inputs(played, agent):
    batch = played.batch
    rows, logprobs, hidden, _ = script.evaluate_battles(agent, batch, torch.arange(len(batch.lengths)), "cpu")
    references = [script.policy_logprobs(script.make_agent(vars(played.args)), batch, "cpu") for _ in range(2)]
    generator = torch.Generator().manual_seed(1)
    return {
        "logprobs": logprobs,
        "win_logit": agent.win_logit(hidden),
        "choices": choices_at(batch, rows),
        "old_logprob": batch.rows["logprobs"][rows],
        "advantages": torch.randn(len(rows), generator=generator),
        "returns": torch.randn(len(rows), generator=generator),
        "references": torch.stack(references)[:, rows],
    }


def test_each_term_alone_moves_the_network(played):
    agent = played.actor.agent
    _, stats, _, _ = script.rnad_loss(**learner_inputs(played, agent), args=played.args)
    for name in ("policy_loss", "value_loss", "entropy", "magnet_kl"):
        gradients = torch.autograd.grad(stats[name], agent.parameters(), retain_graph=True, allow_unused=True)
        assert all(torch.isfinite(gradient).all() for gradient in gradients if gradient is not None), name
        assert sum(float(gradient.abs().sum()) for gradient in gradients if gradient is not None) > 1e-3, name


def test_loss_is_the_sum_of_its_terms_with_their_signs(played):
    """An entropy bonus, and a pull to the nearest reference: each against the terms computed one by one."""
    with torch.no_grad():
        inputs = learner_inputs(played, played.actor.agent)
    args = small_args(alpha=0.7, ent_coef=0.3, vf_coef=0.9)
    loss, _, kls, chosen = script.rnad_loss(**inputs, args=args)
    p, count = inputs["logprobs"].exp(), len(inputs["returns"])
    logp = torch.where(p > 0, inputs["logprobs"], 0.0)
    entropy = -(p * logp).sum() / count
    by_hand = []
    for reference in inputs["references"]:
        by_hand.append((p * (logp - torch.where(p > 0, reference, 0.0))).sum((1, 2)))
    magnet = torch.stack(by_hand).min(0).values.mean()
    torch.testing.assert_close(kls, torch.stack(by_hand), atol=1e-4, rtol=1e-4)
    assert torch.equal(chosen, torch.stack(by_hand).argmin(0))
    advantages = inputs["advantages"] - inputs["advantages"].mean()
    advantages = advantages / (advantages**2).mean().sqrt()
    policy = -advantages.mean()  # the policy is the one that played: every ratio is 1
    chance, wins = inputs["win_logit"].sigmoid(), ((inputs["returns"] + 1) / 2).clamp(0, 1)
    value = -(wins * chance.log() + (1 - wins) * (1 - chance).log()).mean()
    torch.testing.assert_close(loss, policy + 0.9 * value - 0.3 * entropy + 0.7 * magnet, atol=1e-4, rtol=1e-4)
    loss, _, _, _ = script.rnad_loss(**inputs, args=args, value_only=True)
    torch.testing.assert_close(loss, 0.9 * value)


def test_a_huge_magnet_pulls_to_its_reference_and_a_huge_bonus_raises_entropy(played):
    batch = played.batch
    reference = script.policy_logprobs(script.make_agent(vars(played.args)), batch, "cpu")

    def updated(**changes):
        args = small_args(update_epochs=8, target_kl=0.0, num_minibatches=1, **changes)
        agent = script.make_agent(vars(args))
        agent.load_state_dict(played.actor.agent.state_dict())
        optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        metrics = script.update_agent(agent, optimizer, scaler, contextlib.nullcontext, batch, reference[None], args)
        return script.policy_logprobs(agent, batch, "cpu"), metrics

    before = script.policy_logprobs(played.actor.agent, batch, "cpu")
    after, metrics = updated(alpha=100.0)
    assert float(script.policy_kl(after, reference).mean()) < 0.8 * float(script.policy_kl(before, reference).mean())
    assert metrics["losses/passes"] == 8 and metrics["portfolio/0_chosen"] == 1.0
    after, _ = updated(alpha=0.0, ent_coef=100.0)
    assert float(script.policy_entropy(after).mean()) > float(script.policy_entropy(before).mean())


def test_what_the_policy_is_drawn_to_follows_it(played):
    """ema moves every update, ref at its interval, a portfolio by its candidates; none of them by itself."""
    agent, batch = script.make_agent(vars(played.args)), played.batch

    def step(magnet, update):
        with torch.no_grad():
            for parameter in agent.parameters():
                parameter.add_(1.0)
        magnet.move(agent, update, 1300.0)

    args = small_args(magnet="ema", ema_decay=0.75)
    magnet, start = script.Magnet(args, agent, 1300.0), script.to_flat(agent)
    step(magnet, 1)
    torch.testing.assert_close(script.to_flat(magnet.average), start + 0.25)
    expected = script.policy_logprobs(magnet.average, batch, "cpu")
    torch.testing.assert_close(magnet.logprobs(batch, "cpu"), expected[None])
    assert torch.equal(script.to_flat(magnet.references[0]["policy"]), start), "an average leaves the snapshot alone"

    magnet, start = script.Magnet(small_args(magnet="ref", ref_update_interval=2), agent, 1300.0), script.to_flat(agent)
    step(magnet, 1)
    assert torch.equal(script.to_flat(magnet.references[0]["policy"]), start)
    step(magnet, 2)
    assert torch.equal(script.to_flat(magnet.references[0]["policy"]), script.to_flat(agent))

    args = small_args(magnet="portfolio", portfolio_add_interval=3, max_portfolio_size=2, portfolio_strategy="best")
    magnet = script.Magnet(args, agent, 1300.0)
    assert [magnet.wants_candidate(update) for update in (1, 2, 3, 6)] == [False, False, True, True]
    members = [
        {"name": name, "policy_id": number, "elo": elo}
        for number, (name, elo) in enumerate((("a", 1250.0), ("b", 1400.0)), 1)
    ]
    magnet.add_candidate(agent, members[0], members[:1], batch, "cpu")
    members[0]["elo"] = 1200.0  # it has lost since
    magnet.add_candidate(agent, members[1], members, batch, "cpu")
    assert [reference["name"] for reference in magnet.references] == ["start", "b"]
    assert magnet.logprobs(batch, "cpu").shape[0] == 2
    args = small_args(magnet="portfolio", max_portfolio_size=1, portfolio_strategy="diverse")
    magnet = script.Magnet(args, agent, 1300.0)
    magnet.add_candidate(agent, members[0], members, batch, "cpu")
    assert len(magnet.references) == 1

    again = script.Magnet(args, script.make_agent(vars(args)), 0.0)
    again.load_state_dict(magnet.state_dict())
    assert again.references[0]["name"] == magnet.references[0]["name"]
    assert torch.equal(script.to_flat(again.references[0]["policy"]), script.to_flat(magnet.references[0]["policy"]))
    uniform = script.Magnet(small_args(magnet="uniform"), agent, 0.0).logprobs(batch, "cpu")
    legal = batch.rows["legal"]
    torch.testing.assert_close(uniform[0].exp().amax(-1), 1.0 / legal.sum(-1))


# ------------------------------------------------------------------------------------------------------------- the pool


def test_who_holds_a_seat_holds_it_to_the_end(played):
    assert all(len(holders) == 1 for holders in played.seen.values())
    opponents = {opponent for holders in played.seen.values() for opponent, *_ in holders}
    assert {script.SELF, script.BC, script.PAST} <= opponents and any(
        opponent >= script.SCRIPTED for opponent in opponents
    )
    for holders in played.seen.values():
        ((opponent, code, *seats),) = holders
        assert code == max(opponent - script.SCRIPTED + 1, 0)
        assert (max(seats) > 0) == (script.SELF < opponent < script.SCRIPTED)
    results = played.batch.results
    assert set(results["opponents"].tolist()) <= opponents and len(results["opponents"]) > 4


def test_the_curriculum_is_what_the_actor_draws():
    """Of battles that are not scripted all are met in the proportions broadcast, those without a policy as
    self-play."""
    wanted = np.zeros(len(script.OPPONENTS))
    heuristics = script.OPPONENTS.index("heuristics")
    wanted[[script.SELF, script.BC, script.PAST, heuristics]] = 0.4, 0.1, 0.3, 0.2
    actor = SimpleNamespace(
        rng=np.random.default_rng(1),
        shares=wanted,
        to_meet={script.PAST: [7, 9]},
        opponents=np.zeros(4000, np.int64),
        policy_ids=np.zeros(8000, np.int64),
        played=[[] for _ in range(4000)],
    )
    code = len(script.BASELINES)  # of heuristics
    codes = np.where(np.arange(8000) // 2 % 5 == 0, code, 0)
    batch = SimpleNamespace(battle=np.arange(4000).repeat(2), opponent=codes)
    script.Actor.choose_opponents(actor, batch, np.arange(8000))
    counts = np.bincount(actor.opponents, minlength=len(script.OPPONENTS)) / 4000
    assert counts[heuristics] == 0.2 and counts[script.BC] == 0
    assert abs(counts[script.PAST] - 0.3) < 0.03 and abs(counts[script.SELF] - 0.5) < 0.03
    holders = actor.policy_ids.reshape(-1, 2)
    assert ((holders > 0).sum(1) == (actor.opponents == script.PAST)).all()
    assert set(holders.flatten().tolist()) == {0, 7, 9}
    assert abs((holders[:, 0] > 0).sum() / (holders > 0).sum() - 0.5) < 0.05, "either side"


def results_of(*rows):
    """(opponent, policy_id, score) of each battle"""
    return {name: torch.tensor(column) for name, column in zip(("opponents", "policy_ids", "scores"), zip(*rows))}


def test_pool_is_bounded_and_turns_to_whom_it_loses_to():
    args = small_args(league_size=4)
    agent = torch.nn.Linear(2, 1)
    broadcast = script.make_broadcast(args, agent)
    pool = script.Pool(args, broadcast)
    clone = pool.join(script.BC, "bc", torch.zeros(3))
    strong = pool.join(script.EXPLOITER, "strong", torch.ones(3))
    easy = pool.join(script.PAST, "easy", torch.full((3,), 2.0))
    hard = pool.join(script.PAST, "hard", torch.full((3,), 3.0))
    scores = {clone["policy_id"]: 0.9, strong["policy_id"]: 0.1, easy["policy_id"]: 0.8, hard["policy_id"]: 0.4}
    rows = []
    for member in pool.members:
        wins = 50 * scores[member["policy_id"]]
        rows += [(member["opponent"], member["policy_id"], float(i < wins)) for i in range(50)]
    pool.record(results_of(*rows))
    assert strong["elo"] > hard["elo"] > easy["elo"] > clone["elo"]
    shares, base = pool.shares(), script.base_shares(args)
    assert abs(shares.sum() - 1) < 1e-9
    assert shares[script.EXPLOITER] > base[script.EXPLOITER] and shares[script.BC] < base[script.BC]
    pool.publish(agent, 5)
    chances = broadcast.members["probability"]
    assert broadcast.version == 5 and chances[hard["place"]] > chances[easy["place"]] and chances[clone["place"]] == 1.0
    np.testing.assert_allclose(broadcast.numbers["shares"].numpy(), shares)
    newest = pool.join(script.PAST, "newest", torch.full((3,), 4.0))
    assert [member["name"] for member in pool.members] == ["bc", "strong", "hard", "newest"]
    assert newest["place"] == easy["place"]
    assert torch.equal(broadcast.member_weights[newest["place"]], torch.full((3,), 4.0))
    again = script.Pool(args, broadcast)
    again.load_state_dict(pool.state_dict())
    assert again.state_dict() == pool.state_dict() and again.members[0] is not pool.members[0]


def test_who_is_absent_leaves_its_share_to_self_play_and_scripted_shares_never_grow():
    pool = script.Pool(small_args(), None)
    base, heuristics = script.base_shares(pool.args), script.OPPONENTS.index("heuristics")
    shares = pool.shares()
    np.testing.assert_allclose(shares[script.SCRIPTED :], base[script.SCRIPTED :])
    np.testing.assert_allclose(shares[script.SELF], 1 - base[script.SCRIPTED :].sum())
    pool.record(results_of(*[(heuristics, 0, 0.0)] * 500))  # hopeless
    np.testing.assert_allclose(pool.shares(), shares)
    pool.record(results_of(*[(heuristics, 0, 1.0)] * 5000))  # and beaten
    assert pool.shares()[heuristics] < 0.4 * base[heuristics]


def test_an_exploiter_is_this_learner_without_a_magnet_against_one_opponent(tmp_path):
    args = script.Args(**SMALL, alpha=0.3, track=True, bc_model="x", seed=3)
    settings = script.exploiter_settings(args, tmp_path / "target.zip", 40)
    exploiter = script.Args(**settings)
    assert (exploiter.alpha, exploiter.seed, exploiter.track, exploiter.num_workers) == (0.0, 43, False, 1)
    assert exploiter.opponent == exploiter.bc_model == str(tmp_path / "target.zip")
    assert script.base_shares(exploiter)[script.OPPONENT] == 1.0


def test_words_and_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def parsed(*words):
        return parse_args(script.Args, {}, words, script.ALIASES)

    args = parsed("--lr", "1e-3", "--players-per-worker=8", "--team-pool-path", "x")
    assert (args.learning_rate, args.num_battles, args.teams) == (1e-3, 8, ("x",))
    with pytest.raises(BadInput, match="no run of rnad_vgc_portfolio"):
        parsed("--resume")
    for number, name in enumerate(
        ("vgc__rnad_vgc_portfolio__1__100", "vgc__rnad_vgc_portfolio__1__200", "vgc__other__1__300")
    ):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "checkpoint.pt").write_text("")
        (tmp_path / "runs" / name / "config.yaml").write_text("seed: 3\nnum_battles: 5\n")
        subprocess.run(["touch", "-d", f"@{1000 + number}", tmp_path / "runs" / name / "checkpoint.pt"], check=True)
    args = parsed("--resume", "--seed", "2")
    assert (args.resume, args.seed, args.num_battles) == ("runs/vgc__rnad_vgc_portfolio__1__200", 2, 5)
    assert (
        parsed("--checkpoint", "runs/vgc__rnad_vgc_portfolio__1__100").resume == "runs/vgc__rnad_vgc_portfolio__1__100"
    )
    with pytest.raises(BadInput, match="sum to more than 1"):
        script.check_args(script.Args(heuristics_fraction=0.9))
    with pytest.raises(BadInput, match="--league-size 2"):
        script.check_args(script.Args(league_size=2))
    with pytest.raises(BadInput, match="Unknown battle format 'gen9vgc1999'"):
        script.check_args(script.Args(battle_format="gen9vgc1999"))
    (tmp_path / "exploiter_registry.json").write_text('{"exploiters": [')
    with pytest.raises(BadInput, match="not a readable registry"):
        exploiter_processes.read_registry(tmp_path)


# ----------------------------------------------------------------------------------------------------------------- runs

PORTFOLIO = ["--num-workers", 0, "--magnet", "portfolio", "--portfolio-add-interval", 1, "--max-portfolio-size", 2]
PORTFOLIO += ["--portfolio-strategy", "diverse", "--snapshot-frequency", 2]
PORTFOLIO += ["--learning-rate-final", 3e-4]  # constant: nothing depends on where a run is going to end


def test_resumed_inline_run_equals_the_uninterrupted_one(tmp_path):
    whole, half = (
        start(tmp_path / "whole", *PORTFOLIO, "--max-updates", 5),
        start(tmp_path / "half", *PORTFOLIO, "--max-updates", 2),
    )
    finish(half)
    done = subprocess.run(
        command("--resume", tmp_path / "half", "--max-updates", 5), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    finish(whole)
    ours, theirs = (load_checkpoint(tmp_path / name) for name in ("half", "whole"))
    names = ("update", "global_step", "version")
    assert [ours["progress"][name] for name in names] == [theirs["progress"][name] for name in names]
    assert ours["progress"]["update"] == 5 and ours["pool"] == theirs["pool"]
    assert all(torch.equal(ours["agent"][name], tensor) for name, tensor in theirs["agent"].items())
    assert torch.equal(ours["magnet"]["average"], theirs["magnet"]["average"])
    for one, other in zip(ours["magnet"]["references"], theirs["magnet"]["references"], strict=True):
        assert one["name"] == other["name"] and torch.equal(one["policy"], other["policy"])
    assert all(torch.equal(ours[key], theirs[key]) for key in ("member_weights", "torch_rng"))
    rows = metrics_of(tmp_path / "whole")
    sizes = [sum(name.startswith("portfolio/") and name.endswith("_chosen") for name in row) for row in rows]
    assert sizes == [1, 2, 2, 2, 2]  # and never more than --max-portfolio-size
    for name in ("losses/magnet_kl", "curriculum/self", "portfolio/1_kl", "stats/policy_lag_max", "elo/agent"):
        assert all(np.isfinite(row[name]) for row in rows[1:]), name
    assert {"eval/random", "eval/past_worst", "eval/heuristics_low"} <= rows[-1].keys()


def test_whatever_is_killed_nothing_hangs_and_nothing_registered_is_lost(tmp_path):
    """One run, and kill -9 of its Node process, of its exploiter, of the learner, then --resume. All kinds of
    processes, several times each, are in test_kills.py."""
    folder = tmp_path / "run"
    registry = folder / "exploiter_registry.json"
    hunting = ["--train-exploiters", "--exploiter-check-interval", 1, "--exploiter-train-steps", 60]
    hunting += ["--exploiter-win-threshold", 0.0, "--checkpoint-frequency", 1]
    process = start(folder, "--num-workers", 1, *hunting)

    def family(word):
        """The run's own children (the exploiter has a family of its own) whose command has this word in it."""
        direct = psutil.Process(process.pid).children()
        below = [
            child
            for parent in direct
            if "spawn_main" in " ".join(parent.cmdline())
            for child in [parent, *parent.children()]
        ]
        return [child for child in direct + below if word in " ".join(child.cmdline()) and is_alive(child)]

    wait_for(lambda: len(metrics_of(folder)) >= 1 and family("--config"), process)
    nodes, (exploiter,) = family("showdown"), family("--config")
    assert nodes
    nodes[0].send_signal(signal.SIGKILL)
    exploiter.send_signal(signal.SIGKILL)
    updates = len(metrics_of(folder))
    wait_for(lambda: len(metrics_of(folder)) >= updates + 2, process)
    assert not is_alive(exploiter)
    wait_for(registry.exists, process)  # the next exploiter gets to its end
    wait_for(lambda: metrics_of(folder)[-1].get("win_rate/exploiter_n"), process)  # and is met
    registered = json.loads(registry.read_text())["exploiters"]
    assert registered[0]["battles"] == 2 and (folder / registered[0]["model"]).exists() and registered[0]["in_pool"]

    everybody = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    output = process.communicate()[0]
    assert "ended early" in output and "joins the pool" in output
    wait_for(lambda: not [child for child in everybody if is_alive(child)], None, 300)
    kept = json.loads(registry.read_text())["exploiters"]
    assert kept[: len(registered)] == registered

    words = command("--resume", folder, "--no-train-exploiters")
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    updates = len(metrics_of(folder))
    wait_for(lambda: len(metrics_of(folder)) >= updates + 1, process)
    process.send_signal(signal.SIGINT)
    finish(process)
    checkpoint = load_checkpoint(folder)
    assert {entry["model"] for entry in kept if entry["in_pool"]} <= {
        member["name"] for member in checkpoint["pool"]["members"]
    }


def test_exploiter_by_hand(tmp_path):
    """--opponent CKPT --alpha 0, against a model of another size."""
    args = script.Args(**(SMALL | {"width": 8}))
    script.save_model(tmp_path / "target.zip", script.make_agent(vars(args)), args)
    output = finish(
        start(tmp_path / "run", "--num-workers", 0, "--opponent", tmp_path / "target.zip", "--alpha", 0), code=2
    )
    assert "--width 8" in output and not (tmp_path / "run").exists()
    args = script.Args(**SMALL)
    script.save_model(tmp_path / "target.zip", script.make_agent(vars(args)), args)
    finish(
        start(
            tmp_path / "run",
            "--num-workers",
            0,
            "--opponent",
            tmp_path / "target.zip",
            "--alpha",
            0,
            "--max-updates",
            2,
        )
    )
    rows = metrics_of(tmp_path / "run")
    assert {name for row in rows for name in row if name.startswith("win_rate/")} == {
        "win_rate/opponent",
        "win_rate/opponent_n",
    }
    assert rows[-1]["eval/opponent_n"] == 2 and rows[-1]["curriculum/opponent"] == 1.0
