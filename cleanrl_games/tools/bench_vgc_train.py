"""What the VGC scripts train per second, beside what their environment alone plays on the same cores, and the memory
they take.

    python cleanrl_games/tools/bench_vgc_train.py          also the last part of `benchmark.sh speed vgc`

    1. num_workers processes, each with ppo_vgc_mdbo.py's own environment (same format, teams, opponents), random play
    2. each script with its defaults; the first updates are not counted. rnad_vgc_portfolio.py's figures: rnad_…

train_fraction_of_env compares processor seconds per decision over all processes, so that neighbours do not count: 0.5
means that inference and learning together cost as much as the simulator, its features and the scripted opponents.
train_fraction_of_env_wall is the same in wall-clock time, and includes what idles. Memory is the proportional set size
of all processes at its highest."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
import psutil

from cleanrl_games.runtime.errors import RunFailed, end_in_sentences
from cleanrl_games.runtime.settings import Positive, Size, flag_type

SKIPPED_UPDATES = 4  # processes start, code gets warm, and the slots that were filled meanwhile are used up
WARM_UP_DECISIONS = 4000  # V8 compiles what it has seen often; in decisions, since a busy machine takes longer
SCRIPTS = {"": "ppo_vgc_mdbo.py", "rnad_": "rnad_vgc_portfolio.py"}


def cpu_seconds(processes):
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def family(process):
    return [process, *process.children(recursive=True)]


def pss_mb(processes):
    """Memory with shared pages counted once: each process has its share of them."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue  # it ended between the listing and the look
    return total / 2**20


def play_env(index, seconds):
    """One worker of part 1: random legal play in the script's environment → decisions, wall and CPU seconds, as JSON"""
    from cleanrl_games import ppo_vgc_mdbo as script

    rng = np.random.default_rng(index)
    with script.make_env(script.Args(), index, script.base_shares(script.Args())) as env:
        processes, decisions, start = None, 0, time.perf_counter()
        while True:
            batch = env.recv()
            rows, mask = batch.decisions, batch.mask
            # The largest of independent uniform numbers, among the legal ones.
            actions = (rng.random((len(rows), mask.shape[1]), dtype=np.float32) * mask[rows]).argmax(1)
            env.send(batch.key[rows], actions)
            decisions += len(rows)
            now = time.perf_counter()
            if processes is None and decisions > WARM_UP_DECISIONS:
                processes = [psutil.Process(), *map(psutil.Process, env.pids())]
                start, before, decisions = now, cpu_seconds(processes), 0
            elif processes and now - start > seconds:
                print(json.dumps({"decisions": decisions, "wall": now - start, "cpu": cpu_seconds(processes) - before}))
                return


def bench_env(workers, seconds):
    words = [sys.executable, __file__, "--seconds", str(seconds), "--env-worker"]
    running = [
        subprocess.Popen([*words, str(index)], stdout=subprocess.PIPE, text=True, cwd=ROOT) for index in range(workers)
    ]
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise RunFailed("A process that plays the environment alone failed; its error is above.")
    results = [json.loads(text.splitlines()[-1]) for text in said]
    decisions = sum(result["decisions"] for result in results)
    return sum(result["decisions"] / result["wall"] for result in results), 1000 * sum(
        result["cpu"] for result in results
    ) / decisions


def bench_training(script, workers, seconds):
    """→ decisions/s, CPU ms per decision over all processes, MB"""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, f"cleanrl_games/{script}", "--num-workers", str(workers), "--run-dir", f"{folder}/run"]
        words += ["--eval-frequency", "0", "--final-battles", "0"]
        words += ["--checkpoint-dir", f"{folder}/checkpoints"] if script == "ppo_vgc_mdbo.py" else []
        log, process = open(f"{folder}/log", "w+"), None  # noqa: SIM115 (open as long as the process)
        try:
            process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            first, memory, seen = None, 0.0, 0
            while True:
                time.sleep(0.25)
                if process.poll() is not None:
                    raise RunFailed(f"{script} ended early:\n{Path(log.name).read_text()}")
                metrics = Path(folder, "run", "metrics.jsonl")
                lines = metrics.read_text().splitlines() if metrics.exists() else []
                if len(lines) < SKIPPED_UPDATES:
                    continue
                now, processes, last = time.perf_counter(), family(psutil.Process(process.pid)), json.loads(lines[-1])
                memory = max(memory, pss_mb(processes))
                if first is None:
                    first = (last["global_step"], now, cpu_seconds(processes))
                # right after an update: half of one would count as idle time
                elif now - first[1] > seconds and len(lines) > seen:
                    steps = last["global_step"] - first[0]
                    return steps / (now - first[1]), 1000 * (cpu_seconds(processes) - first[2]) / steps, memory
                seen = len(lines)
        finally:
            if process and process.poll() is None:
                process.terminate()
                process.wait(120)
            log.close()


def bench(workers=4, seconds=60.0, rounds=2):
    """They take turns, and of each the median counts (of two the mean): a machine's speed drifts."""
    env, training = [], {prefix: [] for prefix in SCRIPTS}
    for _ in range(rounds):
        env.append(bench_env(workers, seconds / 2))
        for prefix, script in SCRIPTS.items():
            speed, train_ms, memory = bench_training(script, workers, seconds)
            training[prefix].append((speed, train_ms, memory))
            print(
                f"{script}: {speed:,.0f} decisions/s, {train_ms:.3f} ms each over all processes; random play "
                f"{env[-1][1]:.3f} ms",
                flush=True,
            )
    env_speed, env_ms = np.median(env, 0)
    figures = {"env_decisions_per_s": round(env_speed, 1), "env_cpu_ms": round(env_ms, 4)}
    for prefix, results in training.items():
        speed, train_ms, _ = np.median(results, 0)
        figures |= {
            f"{prefix}train_decisions_per_s": round(speed, 1),
            f"{prefix}train_cpu_ms": round(train_ms, 4),
            f"{prefix}train_fraction_of_env": round(env_ms / train_ms, 3),
            f"{prefix}train_fraction_of_env_wall": round(speed / env_speed, 3),
            f"{prefix}rss_mb_{workers}_workers": round(max(memory for _, _, memory in results)),
        }
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=flag_type(Size), default=4)
    parser.add_argument(
        "--seconds",
        type=flag_type(Positive),
        default=60.0,
        help="of training in each turn; the environment alone plays half as long",
    )
    parser.add_argument("--rounds", type=flag_type(Size), default=2, help="turns")
    parser.add_argument("--env-worker", type=int, default=-1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    end_in_sentences()
    if args.env_worker >= 0:
        play_env(args.env_worker, args.seconds)
    else:
        print(json.dumps(bench(args.num_workers, args.seconds, args.rounds)))


if __name__ == "__main__":
    main()
