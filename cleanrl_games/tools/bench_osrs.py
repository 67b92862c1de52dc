"""How fast OSRS training is, and what bounds it. The last line is one JSON object.

    python cleanrl_games/tools/bench_osrs.py [--seconds 60] [--preset fast]

sim_agent_steps_per_s             one core, N = 1024, masked random actions; observations, masks and rewards included
ratio_vs_plain_python             the same rules without the compiler (NUMBA_DISABLE_JIT=1), in the same run
learner_bound_agent_steps_per_s   the script's updates on data already in memory, while a second process does nothing
  but the
                                  inference that such data needs: the slower of the two, since training does both at
                                  once
train_agent_steps_per_s           the script itself with one actor process, from its second update on
train_fraction_of_bound           the last two, divided
sim_fraction_of_time              simulator seconds per second of training
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch

from cleanrl_games import ppo_osrs_selfplay as script
from cleanrl_games.envs.osrs import Baseline, NHVecEnv
from cleanrl_games.envs.osrs.contract import NUM_HEADS, NUM_LOGITS, NUM_OBS
from cleanrl_games.runtime.settings import Positive, flag_type


def simulator(num_fights=1024, seconds=5.0):
    """→ agent-steps per second of the simulator alone, and with the choice of the random actions"""
    env, bot = NHVecEnv(num_fights, reward_weights=np.ones(20)), Baseline("random", 2 * num_fights)
    rows, actions = np.arange(2 * num_fights), np.zeros((2 * num_fights, NUM_HEADS), np.int64)
    obs, masks = env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS)
    bot.act(obs, masks, rows, actions)
    env.step(actions.reshape(-1, 2, NUM_HEADS))  # compiled by now
    steps, inside, start = 0, 0.0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        bot.act(obs, masks, rows, actions)
        clock = time.perf_counter()
        env.step(actions.reshape(-1, 2, NUM_HEADS))
        inside += time.perf_counter() - clock
        steps += 2 * num_fights
    return steps / inside, steps / (time.perf_counter() - start)


def plain_python():
    """The simulator without the compiler, in a process of its own."""
    code = (
        "import sys; sys.path.insert(0, '.'); from cleanrl_games.tools.bench_osrs import simulator; "
        "print(simulator(4, 4.0)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def infer(args, rates, stop):
    """Does what an actor does for its fights, over and over, without any fight."""
    torch.set_num_threads(args.actor_threads)
    agent = script.Agent(args.hidden_size, args.head_size).eval()
    obs, masks = torch.randn(2 * args.num_envs, NUM_OBS), torch.ones(2 * args.num_envs, NUM_LOGITS, dtype=torch.bool)
    steps, start = 0, time.perf_counter()
    with torch.no_grad():
        while not stop.is_set():
            normalised = agent.normalise(obs)
            agent.act(normalised, masks)
            agent.value(normalised, normalised)
            steps += len(obs)
            if time.perf_counter() - start > 1.0:
                rates.put(steps / (time.perf_counter() - start))
                steps, start = 0, time.perf_counter()


def learner_bound(args, seconds):
    """→ agent-steps per second of updates on a rollout in memory and of inference beside it, both at once"""
    context = multiprocessing.get_context("spawn")
    rates, stop = context.Queue(), context.Event()
    worker = context.Process(target=infer, args=(args, rates, stop), daemon=True)
    worker.start()
    torch.set_num_threads(args.threads)
    agent = script.Agent(args.hidden_size, args.head_size)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    rows = args.num_steps * args.num_envs * 2
    obs, masks = torch.randn(rows, NUM_OBS), torch.ones(rows, NUM_LOGITS, dtype=torch.bool)
    with torch.no_grad():
        actions, logprobs = agent.act(agent.normalise(obs), masks)
    advantages, returns = torch.randn(rows), torch.randn(rows)
    rates.get()  # the other process is at work
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for mb in torch.randperm(rows).split(args.minibatch_size):
            normalised, target = agent.normalise(obs[mb]), agent.normalise(obs[mb ^ 1])
            logprob, entropy = agent.evaluate_actions(normalised, masks[mb], actions[mb])
            values = agent.value(normalised, target)
            policy_loss, value_loss, _ = script.ppo_losses(
                logprob, logprobs[mb], advantages[mb], values, returns[mb], args.clip_coef
            )
            optimizer.zero_grad()
            (policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy.sum(-1).mean()).backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
            steps += len(mb)
            if time.perf_counter() - start > seconds:
                break
    learn = steps / (time.perf_counter() - start)
    inference = np.median([rates.get() for _ in range(max(rates.qsize(), 1))])
    stop.set()
    worker.terminate()
    worker.join()
    return learn, float(inference)


def training(seconds, preset):
    """The script itself → agent-steps per second from the second update on, simulator seconds per second, its
    metrics"""
    with tempfile.TemporaryDirectory() as folder:
        flags = (
            f"--preset {preset} --num-workers 1 --max-minutes {seconds / 60} --eval-frequency 0 --eval-episodes 2 "
            f"--run-dir {folder}/run"
        )
        subprocess.run(
            [sys.executable, "cleanrl_games/ppo_osrs_selfplay.py", *flags.split()],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    rows = rows[1:-1]  # the first update only feeds the statistics, the last waits for the evaluation
    span = rows[-1]["time"] - rows[0]["time"]
    simulator_seconds = sum(row["stats/simulator_time"] for row in rows[1:])
    return (rows[-1]["global_step"] - rows[0]["global_step"]) / span, simulator_seconds / span, rows[1:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds",
        type=flag_type(Positive),
        default=60.0,
        help="length of the training run; the bound gets half of it",
    )
    parser.add_argument("--preset", choices=script.PRESETS, default="fast", help="the script's preset to train with")
    seconds, preset = vars(parser.parse_args()).values()
    args = script.Args(**script.PRESETS[preset])
    sim, sim_with_choice = simulator()
    print(f"simulator: {sim:,.0f} agent-steps/s ({sim_with_choice:,.0f} with the choice of random actions)", flush=True)
    ratio = sim / plain_python()
    print(f"the same rules without the compiler: {ratio:,.0f} times slower", flush=True)
    learn, inference = learner_bound(args, seconds / 4)
    print(f"bound: learning {learn:,.0f}/s beside inference {inference:,.0f}/s", flush=True)
    train, sim_share, rows = training(seconds, preset)
    for name in ("rollout_time", "inference_time", "simulator_time", "learn_time", "wait_time"):
        print(f"  {name}: {np.mean([row['stats/' + name] for row in rows]):.3f} s per update", flush=True)
    # before and after: the machine may have changed meanwhile
    again, inference_again = learner_bound(args, seconds / 4)
    bound = min((learn + again) / 2, (inference + inference_again) / 2)
    figures = {
        "sim_agent_steps_per_s": round(sim),
        "ratio_vs_plain_python": round(ratio, 1),
        "learner_bound_agent_steps_per_s": round(bound),
        "train_agent_steps_per_s": round(train),
        "train_fraction_of_bound": round(train / bound, 3),
        "sim_fraction_of_time": round(sim_share, 4),
        "sim_steps_over_train_steps": round(sim / train, 1),
    }
    print(json.dumps(figures))
