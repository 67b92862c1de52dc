"""rnad_vgc_portfolio.py: its terms on real battles, its pool and tables, and runs as a user starts them, killed in every part."""

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
    "width": 16, "embedding_width": 16, "lstm_size": 32, "attention_heads": 2, "num_battles": 4, "buffer_size": 64, "num_minibatches": 2,
    "update_epochs": 2, "sequence_length": 8, "eval_frequency": 0, "eval_battles": 2, "final_battles": 2,
}  # fmt: skip
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))] + ["--teams", "shipped"]
SMALL["teams"] = ("shipped",)


def command(*flags):
    return [sys.executable, "cleanrl_games/rnad_vgc_portfolio.py", *map(str, flags)]


def start(folder, *flags):
    words = command(*FLAGS, *flags, "--run-dir", folder)
    # A run that nobody listens to writes a line an update, and stands still when the pipe is full: on a busy core that was before its
    # exploiter had got to its end.
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, pipesize=1 << 20)


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


@pytest.fixture(scope="module")
def played():
    """An inline actor with the pool's every kind in it, and one rollout of it."""
    torch.manual_seed(0)
    args = script.Args(**(SMALL | {"buffer_size": 256}), num_workers=0, bc_fraction=0.2, past_fraction=0.2, exploiter_fraction=0.0)
    actor = script.Actor(args, 0)
    board = script.make_board(args, len(script.to_flat(actor.agent)))
    pool = script.Pool(args, board, script.KINDS)
    pool.join(script.BC, "bc", script.to_flat(script.make_agent(vars(args))))
    pool.join(script.PAST, "old", script.to_flat(script.make_agent(vars(args))))
    pool.publish(actor.agent, 0)
    storage, seen, send = script.make_storage(args), defaultdict(set), actor.env.send

    def watched_send(keys, actions):
        for table in (keys // 2).tolist():
            holders = actor.seats.holder[2 * table : 2 * table + 2].tolist()
            seen[table, int(actor.env.episodes[table])].add((int(actor.seats.kind[table]), max(actor.env.players[table]), *holders))
        send(keys, actions)

    actor.env.send = watched_send
    actor.rollout(board, storage)
    rows, episodes = (int(storage["info"][i]) for i in (0, 1))
    b = SimpleNamespace(**{name: tensor[:rows].clone() for name, tensor in storage.items() if name not in ("episodes", "info")})
    yield SimpleNamespace(args=args, actor=actor, pool=pool, b=b, episodes=storage["episodes"][:episodes], seen=seen)
    actor.env.close()


# -------------------------------------------------------------------------------------------------- terms on real battles


def test_tables_are_those_of_the_policy_that_played(played):
    """The learner's unroll gives the actor's log-probs and values; so the KL to a frozen copy of oneself is 0 on real decisions."""
    b, agent = played.b, played.actor.agent
    cut = script.cut_chunks(b.key.numpy(), 8)
    table, values = script.tables_of(agent, b, *cut, torch.device("cpu"))
    taken = script.taken_logprob(table, script.choices_of(b.first, b.actions))
    assert (taken - b.logprobs).abs().max() < 1e-5 and (values - b.values).abs().max() < 1e-5
    assert b.first.any() and (~b.first).sum() > 100
    nearest, chosen, kls = script.magnet_kl(table, torch.stack([table.roll(1, 0), table]))
    assert nearest.abs().max() < 1e-6 and kls[0].max() > 0.1 and (chosen[kls[0] > 1e-3] == 1).all()


def test_each_term_alone_moves_the_network(played):
    b, agent = played.b, played.actor.agent
    order, starts, lengths = script.cut_chunks(b.key.numpy(), 8)
    references = torch.stack(
        [script.tables_of(script.make_agent(vars(played.args)), b, order, starts, lengths, "cpu")[0] for _ in range(2)]
    )
    advantages = torch.randn(len(b.key), generator=torch.Generator().manual_seed(1))
    rows, logprobs, hidden = script.evaluate_chunks(agent, b, order, starts, lengths, "cpu")
    logprob = script.taken_logprob(logprobs, script.choices_of(b.first, b.actions)[rows])
    terms = {
        "policy": script.clipped_loss(logprob, b.logprobs[rows], advantages[rows], 0.2)[0],
        "value": script.value_loss(agent.win_logit(hidden), torch.ones(len(rows))),
        "entropy": script.policy_entropy(logprobs).mean(),
        "magnet": script.magnet_kl(logprobs, references[:, rows])[0].mean(),
        "rollout": script.policy_kl(logprobs, references[0, rows]).mean(),
    }
    for name, term in terms.items():
        gradients = torch.autograd.grad(term, agent.parameters(), retain_graph=True, allow_unused=True)
        assert all(torch.isfinite(gradient).all() for gradient in gradients if gradient is not None), name
        assert sum(float(gradient.abs().sum()) for gradient in gradients if gradient is not None) > 1e-3, name


def test_values_after_are_the_next_rows():
    key, ended = np.array([0, 1, 0, 0, 1]), np.array([False, False, True, False, False])
    after = script.values_after(key, np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([9.0, 9.0, 0.0, 0.7, 0.8]), ended)
    assert after.tolist() == [3.0, 5.0, 0.0, 0.7, 0.8]


# --------------------------------------------------------------------------------------------------------------- the pool


def test_who_holds_a_seat_holds_it_to_the_end(played):
    assert all(len(holders) == 1 for holders in played.seen.values())
    kinds = {kind for holders in played.seen.values() for kind, *_ in holders}
    assert {script.SELF, script.BC, script.PAST} <= kinds and any(kind >= script.SCRIPTED for kind in kinds)
    for holders in played.seen.values():
        ((kind, code, *seats),) = holders
        assert code == max(kind - script.SCRIPTED + 1, 0)
        assert (max(seats) > 0) == (script.SELF < kind < script.SCRIPTED)
    assert set(played.episodes[:, 0].int().tolist()) <= kinds and len(played.episodes) > 4


def test_the_curriculum_is_what_the_actor_draws():
    """Of battles that are not scripted the kinds are met in the proportions on the board, those without a guest as self-play."""
    wanted = np.zeros(len(script.KINDS))
    wanted[[script.SELF, script.BC, script.PAST, script.KINDS.index("heuristics")]] = 0.4, 0.1, 0.3, 0.2
    args = script.Args(**SMALL, num_workers=0)
    seats = script.Seats(script.make_rows(args, 2 * 4000), script.SCRIPTED)
    actor = SimpleNamespace(rng=np.random.default_rng(1), shares=wanted, seats=seats)
    heuristics = len(script.BASELINES)  # its code
    batch = SimpleNamespace(battle=np.arange(4000).repeat(2), opponent=np.where(np.arange(8000) // 2 % 5 == 0, heuristics, 0))
    script.Actor.choose_opponents(actor, batch, np.arange(8000), {script.PAST: [7, 9]})
    counts = np.bincount(seats.kind, minlength=len(script.KINDS)) / 4000
    assert counts[script.KINDS.index("heuristics")] == 0.2 and counts[script.BC] == 0
    assert abs(counts[script.PAST] - 0.3) < 0.03 and abs(counts[script.SELF] - 0.5) < 0.03
    holders = seats.holder.reshape(-1, 2)
    assert ((holders > 0).sum(1) == (seats.kind == script.PAST)).all() and set(holders.flatten().tolist()) == {0, 7, 9}
    assert abs((holders[:, 0] > 0).sum() / (holders > 0).sum() - 0.5) < 0.05, "either side"


def test_pool_is_bounded_and_turns_to_whom_it_loses_to():
    args = script.Args(**SMALL, league_size=4)
    board = script.make_board(args, 3)
    pool = script.Pool(args, board, script.KINDS)
    clone = pool.join(script.BC, "bc", torch.zeros(3))
    strong = pool.join(script.EXPLOITER, "strong", torch.ones(3))
    easy = pool.join(script.PAST, "easy", torch.full((3,), 2.0))
    hard = pool.join(script.PAST, "hard", torch.full((3,), 3.0))
    scores = {clone["serial"]: 0.9, strong["serial"]: 0.1, easy["serial"]: 0.8, hard["serial"]: 0.4}
    rows = [[member["kind"], member["serial"], float(i < 50 * scores[member["serial"]]), 9] for member in pool.members for i in range(50)]
    pool.record(torch.tensor(rows))
    assert strong["elo"] > hard["elo"] > easy["elo"] > clone["elo"]
    shares, base = pool.probabilities(), script.base_shares(args)
    assert abs(shares.sum() - 1) < 1e-9 and shares[script.EXPLOITER] > base[script.EXPLOITER] and shares[script.BC] < base[script.BC]
    pool.publish(torch.nn.Linear(2, 1), 5)
    members = board.league
    assert float(board.numbers[0]) == 5 and members[2, hard["row"]] > members[2, easy["row"]] and members[2, clone["row"]] == 1.0
    newest = pool.join(script.PAST, "newest", torch.full((3,), 4.0))
    assert [member["name"] for member in pool.members] == ["bc", "strong", "hard", "newest"]
    assert newest["row"] == easy["row"] and torch.equal(board.snapshots[newest["row"]], torch.full((3,), 4.0))


def test_who_is_absent_leaves_its_share_to_self_play_and_scripted_shares_never_grow():
    pool = script.Pool(script.Args(**SMALL), SimpleNamespace(snapshots=None), script.KINDS)
    base, heuristics = script.base_shares(pool.args), script.KINDS.index("heuristics")
    shares = pool.probabilities()
    np.testing.assert_allclose(shares[script.SCRIPTED :], base[script.SCRIPTED :])
    np.testing.assert_allclose(shares[script.SELF], 1 - base[script.SCRIPTED :].sum())
    pool.record(torch.tensor([[heuristics, 0, 0.0, 9]] * 500))  # hopeless
    np.testing.assert_allclose(pool.probabilities(), shares)
    pool.record(torch.tensor([[heuristics, 0, 1.0, 9]] * 5000))  # and beaten
    assert pool.probabilities()[heuristics] < 0.4 * base[heuristics]


def test_words_and_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def parsed(*words):
        return parse_args(script.Args, {}, words, script.ALIASES)

    args = parsed("--lr", "1e-3", "--players-per-worker=8", "--team-pool-path", "x")
    assert (args.learning_rate, args.num_battles, args.teams) == (1e-3, 8, ("x",))
    with pytest.raises(BadInput, match="no run of rnad_vgc_portfolio"):
        parsed("--resume")
    for number, name in enumerate(("vgc__rnad_vgc_portfolio__1__100", "vgc__rnad_vgc_portfolio__1__200", "vgc__other__1__300")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "checkpoint.pt").write_text("")
        (tmp_path / "runs" / name / "config.yaml").write_text("seed: 3\nnum_battles: 5\n")
        subprocess.run(["touch", "-d", f"@{1000 + number}", tmp_path / "runs" / name / "checkpoint.pt"], check=True)
    args = parsed("--resume", "--seed", "2")
    assert (args.resume, args.seed, args.num_battles) == ("runs/vgc__rnad_vgc_portfolio__1__200", 2, 5)
    assert parsed("--checkpoint", "runs/vgc__rnad_vgc_portfolio__1__100").resume == "runs/vgc__rnad_vgc_portfolio__1__100"
    with pytest.raises(BadInput, match="sum to more than 1"):
        script.check_args(script.Args(heuristics_fraction=0.9))
    with pytest.raises(BadInput, match="--buffer-size 16"):
        script.check_args(script.Args(buffer_size=16))
    with pytest.raises(BadInput, match="Unknown battle format 'gen9vgc1999'"):
        script.check_args(script.Args(battle_format="gen9vgc1999"))
    (tmp_path / "exploiter_registry.json").write_text('{"exploiters": [')
    with pytest.raises(BadInput, match="not a readable registry"):
        exploiter_processes.read_registry(tmp_path)


# ------------------------------------------------------------------------------------------------------------------- runs

PORTFOLIO = ["--num-workers", 0, "--magnet", "portfolio", "--portfolio-add-interval", 1, "--max-portfolio-size", 2]
PORTFOLIO += ["--portfolio-strategy", "diverse", "--snapshot-frequency", 2, "--off-policy", "vtrace", "--rollout-kl", 0.1]
PORTFOLIO += ["--learning-rate-final", 3e-4]  # constant: nothing depends on where a run is going to end


def test_resumed_inline_run_equals_the_uninterrupted_one(tmp_path):
    whole, half = start(tmp_path / "whole", *PORTFOLIO, "--max-updates", 5), start(tmp_path / "half", *PORTFOLIO, "--max-updates", 2)
    finish(half)
    done = subprocess.run(command("--resume", tmp_path / "half", "--max-updates", 5), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    finish(whole)
    ours, theirs = (load_checkpoint(tmp_path / name) for name in ("half", "whole"))
    assert ours["progress"][:3] == theirs["progress"][:3] and ours["progress"][0] == 5
    assert ours["pool"][:3] == theirs["pool"][:3] and torch.equal(ours["pool"][4], theirs["pool"][4])
    assert [reference["name"] for reference in ours["references"]] == [reference["name"] for reference in theirs["references"]]
    for key in ("agent", "average"):
        assert all(torch.equal(ours[key][name], tensor) for name, tensor in theirs[key].items()), key
    assert all(torch.equal(one["policy"], other["policy"]) for one, other in zip(ours["references"], theirs["references"]))
    assert all(torch.equal(ours[key], theirs[key]) for key in ("snapshots", "torch_rng"))
    rows = metrics_of(tmp_path / "whole")
    sizes = [sum(name.startswith("portfolio/") and name.endswith("_chosen") for name in row) for row in rows]
    assert sizes == [1, 2, 2, 2, 2]  # and never more than --max-portfolio-size
    for name in ("losses/magnet_kl", "losses/rollout_kl", "curriculum/self", "portfolio/1_kl", "stats/policy_lag_max", "elo/agent"):
        assert all(np.isfinite(row[name]) for row in rows[1:]), name
    assert {"eval/random", "eval/past_worst", "eval/heuristics_low"} <= rows[-1].keys()


def test_whatever_is_killed_nothing_hangs_and_nothing_registered_is_lost(tmp_path):
    """One run, and kill -9 of its Node process, of its exploiter, of the learner (then --resume), of a worker."""
    folder = tmp_path / "run"
    registry = folder / "exploiter_registry.json"
    hunting = ["--train-exploiters", "--exploiter-check-interval", 1, "--exploiter-train-steps", 60, "--exploiter-battles", 2]
    hunting += ["--exploiter-win-threshold", 0.0, "--checkpoint-frequency", 1]
    process = start(folder, "--num-workers", 1, *hunting)

    def family(word):
        """The run's own children (the exploiter has a family of its own) whose command has this word in it."""
        direct = psutil.Process(process.pid).children()
        below = [child for parent in direct if "spawn_main" in " ".join(parent.cmdline()) for child in [parent, *parent.children()]]
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
    (worker,) = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    worker.send_signal(signal.SIGKILL)
    output = finish(process, code=1)
    assert f"pid {worker.pid}) died" in output and "--resume" in output
    checkpoint = load_checkpoint(folder)
    assert {entry["model"] for entry in kept if entry["in_pool"]} <= {member["name"] for member in checkpoint["pool"][0]}


def test_exploiter_by_hand(tmp_path):
    """--opponent CKPT --alpha 0, against a model of another size."""
    args = script.Args(**(SMALL | {"width": 8}))
    script.save_model(tmp_path / "target.zip", script.make_agent(vars(args)), args)
    output = finish(start(tmp_path / "run", "--num-workers", 0, "--opponent", tmp_path / "target.zip", "--alpha", 0), code=1)
    assert "--width 8" in output and not (tmp_path / "run" / "checkpoint.pt").exists()
    args = script.Args(**SMALL)
    script.save_model(tmp_path / "target.zip", script.make_agent(vars(args)), args)
    finish(start(tmp_path / "run", "--num-workers", 0, "--opponent", tmp_path / "target.zip", "--alpha", 0, "--max-updates", 2))
    rows = metrics_of(tmp_path / "run")
    assert {name for row in rows for name in row if name.startswith("win_rate/")} == {"win_rate/opponent", "win_rate/opponent_n"}
    assert rows[-1]["eval/opponent_n"] == 2 and rows[-1]["curriculum/opponent"] == 1.0
