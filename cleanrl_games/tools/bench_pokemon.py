"""How fast the GBA environment is, and what bounds it. The last line is one JSON object.

    python cleanrl_games/tools/bench_pokemon.py [--seconds 20]

env_steps_per_s              one core, the default timing (9 frames a step), the expert's own actions on several worlds; observation,
                             reward and info of every step included, resets too, the expert's thinking not
env_frames_per_s             the same in frames of the console (60 a second on the real one)
bare_core_frames_per_s       the same keys through the core alone, in the way the environment runs it (frames nobody sees are not
                             drawn): no picture taken, no RAM read, no info
emulator_fraction_of_limit   the last two, divided; in seconds of the processor, so that what else runs on the machine does not count
drawn_core_frames_per_s      the core alone when it draws every frame, as a plain frontend would
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from cleanrl_games.envs.pokemon import PokemonEnv, QuestExpert
from cleanrl_games.envs.pokemon.env import ACTION_KEYS


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure")
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
        print(f"env {env_rates[-1]:,.0f} steps/s   core {core_rates[-1]:,.0f} frames/s   fraction {fractions[-1]:.3f}", flush=True)
    env.close()
    figures = {
        "env_steps_per_s": round(statistics.median(env_rates), 1),
        "env_frames_per_s": round(statistics.median(env_rates) * per_step, 1),
        "bare_core_frames_per_s": round(statistics.median(core_rates), 1),
        "emulator_fraction_of_limit": round(statistics.median(fractions), 4),
        "drawn_core_frames_per_s": round(statistics.median(drawn_rates), 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
