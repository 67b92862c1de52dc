"""How fast the GBA environment is, and what bounds it. The last line is one JSON object.

    python cleanrl_games/tools/bench_pokemon.py [--seconds 20]

env_steps_per_s              one core, the default timing (9 frames a step), the expert's own actions on several worlds;
  observation,
                             reward and info of every step included, resets too, the expert's thinking not
env_frames_per_s             the same in frames of the console (60 a second on the real one)
bare_core_frames_per_s       the same keys through the core alone, in the way the environment runs it (frames nobody
  sees are not
                             drawn): no picture taken, no RAM read, no info
emulator_fraction_of_limit   the last two, divided; in seconds of the processor, so that what else runs on the machine
  does not count
drawn_core_frames_per_s      the core alone when it draws every frame, as a plain frontend would
train_samples_per_s          bc_pokemon_impala.py as a user starts it, one thread, batches of 64 from the memory-mapped
  cache
bound_samples_per_s          the same network, loss and optimizer on one batch that stays in memory
train_fraction_of_bound      the last two, divided; in seconds of the processor (of a long run less a short one, so that
  starting does not count)
cache_build_frames_per_s     checked .npz episodes to resized frames on disk, all cores, the start of their processes
  included
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from cleanrl_games import bc_pokemon_impala as script
from cleanrl_games.envs.pokemon import PokemonEnv, QuestExpert, cache
from cleanrl_games.envs.pokemon.env import ACTION_KEYS
from cleanrl_games.envs.pokemon.episodes import load_episodes
from cleanrl_games.runtime.settings import Positive, flag_type

EPISODES = ROOT / "expert_data" / "pokemon_quest"
SHORT, LONG, BATCH = 20, 140, 64  # updates


def record(env, worlds):
    """→ [(world, its first save state, the expert's actions)]"""
    expert, runs = QuestExpert(), []
    for world in worlds:
        env.reset(options={"quest_seed": world})
        state, actions, done = env.save_state(), [], False
        while not done:
            actions.append(expert.act(env))
            _, _, terminated, truncated, _ = env.step(actions[-1])
            done = terminated or truncated
        runs.append((world, state, actions))
    return runs


def clocks():
    """→ seconds on the wall, seconds of the processor"""
    return np.array([time.perf_counter(), time.process_time()])


def through_env(env, world, actions):
    start = clocks()
    env.reset(options={"quest_seed": world})
    for action in actions:
        env.step(action)
    return clocks() - start


def through_core(env, state, actions, press):
    env.emulator.load(state)
    start = clocks()
    for action in actions:
        press(ACTION_KEYS[action], env.hold, env.release)
    return clocks() - start


def train(folder, updates):
    """The script for so many updates → seconds of the processor, samples per second as it logged them"""
    before, run_dir = resource.getrusage(resource.RUSAGE_CHILDREN), Path(tempfile.mkdtemp(dir=folder)) / "run"
    words = [sys.executable, "cleanrl_games/bc_pokemon_impala.py", "--run-dir", run_dir]
    words += [
        "--num-workers",
        0,
        "--num-emulators",
        1,
        "--batch-size",
        BATCH,
        "--total-training-steps",
        updates,
        "--log-frequency",
        20,
    ]
    words += [
        "--eval-frequency",
        0,
        "--eval-episodes",
        1,
        "--final-eval-episodes",
        0,
        "--max-steps",
        5,
        "--validation-fraction",
        0,
    ]
    own_cache = {**os.environ, "CLEANRL_GAMES_CACHE": str(folder / "cache")}
    subprocess.run([str(word) for word in words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=own_cache)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, statistics.median(row["charts/SPS"] for row in rows[1:] or rows)


def bound(updates):
    """One batch in memory → clocks() of so many updates"""
    torch.set_num_threads(1)
    agent = script.Agent(1, script.Args.hidden_dim)
    optimizer = torch.optim.AdamW(
        agent.parameters(), lr=script.Args.learning_rate, weight_decay=script.Args.weight_decay
    )
    obs = torch.randint(0, 256, (BATCH, 1, script.SIZE, script.SIZE, 3), dtype=torch.uint8)
    labels = torch.randint(0, script.NUM_ACTIONS, (BATCH,))
    for update in range(updates + 3):
        if update == 3:
            start = clocks()
        loss = torch.nn.functional.cross_entropy(agent(obs), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(agent.parameters(), script.Args.max_grad_norm)
        optimizer.step()
    return clocks() - start


def bench_training():
    """→ figures of training and of the cache"""
    folder = Path(tempfile.mkdtemp(prefix="cleanrl_games_bench_"))
    try:
        (folder / "many").mkdir()
        for number in range(4):
            for path in EPISODES.glob("*.npz"):
                shutil.copyfile(path, folder / "many" / f"{path.stem}_{number}.npz")
        episodes = load_episodes(folder / "many")
        start = time.perf_counter()
        frames = cache.open_cache(episodes, script.SIZE, folder / "cache")
        build = len(frames) / (time.perf_counter() - start)
        fractions, rates, bounds = [], [], []
        for _ in range(3):  # the bound before and after, and all of it three times: a machine's speed drifts
            first, (short, _), (long, rate), second = bound(60), train(folder, SHORT), train(folder, LONG), bound(60)
            wall, processor = (first + second) / (2 * 60 * BATCH)
            rates.append(rate)
            bounds.append(1 / wall)
            fractions.append(processor * (LONG - SHORT) * BATCH / (long - short))
            print(
                f"training {rate:,.0f} samples/s   bound {bounds[-1]:,.0f} samples/s   fraction {fractions[-1]:.3f}",
                flush=True,
            )
        return {
            "train_samples_per_s": round(statistics.median(rates), 1),
            "bound_samples_per_s": round(statistics.median(bounds), 1),
            "train_fraction_of_bound": round(statistics.median(fractions), 4),
            "cache_build_frames_per_s": round(build, 1),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=flag_type(Positive), default=20.0, help="how long to measure")
    args = parser.parse_args()
    env = PokemonEnv(max_steps=0)

    def draw_all(keys, hold, release):
        env.emulator.run(hold, keys)
        env.emulator.run(release)

    runs = record(env, range(0, 256, 64))
    per_step, fractions, env_rates, core_rates, drawn_rates = env.hold + env.release, [], [], [], []
    begin = time.perf_counter()
    # they take turns, so that a busy moment of the machine meets all
    while time.perf_counter() - begin < args.seconds or len(fractions) < 3:
        steps = sum(len(actions) for _, _, actions in runs)
        outer = sum(through_env(env, world, actions) for world, _, actions in runs)
        inner = sum(through_core(env, state, actions, env.emulator.press) for _, state, actions in runs)
        drawn = sum(through_core(env, state, actions, draw_all) for _, state, actions in runs)
        env_rates.append(steps / outer[0])
        core_rates.append(steps * per_step / inner[0])
        drawn_rates.append(steps * per_step / drawn[0])
        fractions.append(inner[1] / outer[1])
        print(
            f"env {env_rates[-1]:,.0f} steps/s   core {core_rates[-1]:,.0f} frames/s   fraction {fractions[-1]:.3f}",
            flush=True,
        )
    env.close()
    figures = {
        "env_steps_per_s": round(statistics.median(env_rates), 1),
        "env_frames_per_s": round(statistics.median(env_rates) * per_step, 1),
        "bare_core_frames_per_s": round(statistics.median(core_rates), 1),
        "emulator_fraction_of_limit": round(statistics.median(fractions), 4),
        "drawn_core_frames_per_s": round(statistics.median(drawn_rates), 1),
    }
    print(json.dumps(figures | bench_training()))


if __name__ == "__main__":
    main()
