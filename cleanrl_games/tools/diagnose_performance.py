"""How fast Rocket League training can be on this machine, where its time would go, what bounds it, and which flags to
use.

    python cleanrl_games/tools/diagnose_performance.py [--test env|inference|learn|gpu|all] [--seconds 2]

env        the arenas alone: agent-steps/s by the number of cars per actor, and the share of them that is RocketSim's
  own physics
inference  the policy alone: agent-steps/s by batch and by torch threads
learn      PPO updates on data in memory: agent-steps/s by kind of memory, minibatch and torch threads
gpu        inference and updates on CUDA, if there is one
all        everything, and recommended flags

Two threads are slower than one when the other core is busy, so the figures are those of the machine as it is now. The
last line is one JSON object.
"""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Literal

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from cleanrl_games import recurrent_ppo_rocketleague as script
from cleanrl_games.envs.rocketleague import NUM_ACTIONS, NUM_OBS, RocketLeagueVecEnv
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.settings import Positive, Size, parse_flags
from cleanrl_games.tools.bench_rocketleague import environment, learner, physics


@dataclasses.dataclass
class Args:
    test: Literal["env", "inference", "learn", "gpu", "all"] = "all"
    """what to measure"""
    seconds: Positive = 2.0
    """time per figure"""
    agents: tuple[int, ...] = (48, 96, 192, 384)
    """cars per actor to try"""
    minibatches: tuple[Size, ...] = (1024, 2048, 4096)
    """minibatch sizes to try"""


def rate(work, seconds):
    """work() → agent-steps, over and over → agent-steps per second"""
    work()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        steps += work()
    return steps / (time.perf_counter() - start)


def threads_to_try():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return sorted({1, *(count for count in (2, 4, 8) if count <= cores)}), cores


def test_env(args):
    found, rng = {}, np.random.default_rng(1)
    for agents in args.agents:
        env, bare = (RocketLeagueVecEnv(agents // 2, seed=seed) for seed in (1, 2))
        speed, limit = rate(environment(env, rng), args.seconds), rate(physics(bare, rng), args.seconds)
        found[agents] = speed
        print(
            f"env        {agents:>4} cars                {speed:>9,.0f} agent-steps/s, {speed / limit:.0%} of the "
            f"bare physics",
            flush=True,
        )
    return found


def acting(agent, batch, device="cpu"):
    obs, masks = (
        torch.randn(batch, NUM_OBS, device=device),
        torch.ones(batch, NUM_ACTIONS, dtype=torch.bool, device=device),
    )
    memory = torch.zeros(batch, agent.state_size, device=device)

    @torch.no_grad()
    def work():
        features, _ = agent.step(obs, memory)
        agent.logprobs(features, masks).sum().item()  # .item() waits for a GPU
        return batch

    return work


def test_inference(args):
    found, settings = {}, script.Args()
    agent = script.Agent(settings.recurrent, settings.rnn_size).eval()
    for threads in threads_to_try()[0]:
        torch.set_num_threads(threads)
        for batch in args.agents:
            found[threads, batch] = rate(acting(agent, batch), args.seconds)
            print(
                f"inference  {batch:>4} cars, {threads} threads     {found[threads, batch]:>9,.0f} agent-steps/s",
                flush=True,
            )
    torch.set_num_threads(1)
    return found


def test_learn(args):
    found = {}
    for threads in threads_to_try()[0]:
        torch.set_num_threads(threads)
        for recurrent in ("lstm", "gru", "none") if threads == 1 else ("lstm",):
            for minibatch in args.minibatches:
                settings = dataclasses.replace(script.Args(), recurrent=recurrent, minibatch_size=minibatch)
                found[threads, recurrent, minibatch] = rate(learner(settings), args.seconds)
                said = f"learn      {recurrent}, {minibatch:>5}, {threads} threads"
                print(f"{said:<32}{found[threads, recurrent, minibatch]:>9,.0f} agent-steps/s per epoch", flush=True)
    torch.set_num_threads(1)
    return found


def test_gpu(args):
    """→ {name: agent-steps/s}, empty without CUDA"""
    if not torch.cuda.is_available():
        print("gpu        there is no CUDA device: --device auto means cpu, --amp auto means off", flush=True)
        return {}
    settings, found = script.Args(), {}
    agent = script.Agent(settings.recurrent, settings.rnn_size).eval().cuda()
    for batch in args.agents:
        found[f"inference_{batch}"] = rate(acting(agent, batch, "cuda"), args.seconds)
    for minibatch in (*args.minibatches, 16_384, 49_152):
        changed = dataclasses.replace(settings, minibatch_size=minibatch, num_agents=768)
        found[f"learn_{minibatch}"] = rate(learner(changed, "cuda"), args.seconds)
    for name, speed in found.items():
        print(f"gpu        {name:<21}{speed:>9,.0f} agent-steps/s on {torch.cuda.get_device_name()}", flush=True)
    return found


def recommend(env, inference, learn, gpu, cores):
    """Rates in agent-steps/s → (flags, what bounds training, expected agent-steps/s). An actor does physics and
    inference in turn."""
    actors = {agents: 1 / (1 / speed + 1 / inference[1, agents]) for agents, speed in env.items()}
    agents = max(actors, key=actors.get)
    choices = {(threads, size): speed for (threads, kind, size), speed in learn.items() if kind == "lstm"}
    best = max(choices, key=choices.get)
    # a second thread must earn the core that it takes from an actor
    if best[0] > 1 and choices[best] < 1.5 * max(speed for (threads, _), speed in choices.items() if threads == 1):
        best = max((choice for choice in choices if choice[0] == 1), key=choices.get)
    fastest_gpu = max((name for name in gpu if name.startswith("learn_")), key=gpu.get, default="")
    on_gpu = bool(fastest_gpu) and gpu[fastest_gpu] > choices[best]
    learning, minibatch = (gpu[fastest_gpu], int(fastest_gpu.split("_")[1])) if on_gpu else (choices[best], best[1])
    free = max(cores - (1 if on_gpu else best[0]), 1)
    workers = int(min(free, max(np.ceil(learning / actors[agents]), 1)))
    playing = workers * actors[agents] * (1.0 if cores > 1 else 0.5)
    flags = f"--num-workers {workers} --num-agents {agents} --minibatch-size {minibatch}"
    flags += " --device cuda" if on_gpu else f" --device cpu --threads {best[0]}"
    bound = "the learner" if learning < playing else "the actors (physics and inference)"
    return flags, bound, min(learning, playing)


def main(argv=None):
    args = parse_flags(Args, __doc__, argv)
    if not args.agents or any(agents < 12 or agents % 12 for agents in args.agents):
        raise BadInput(f"--agents are {args.agents}: each must be a multiple of 12, as --num-agents of the script.")
    tests = {"env": test_env, "inference": test_inference, "learn": test_learn, "gpu": test_gpu}
    found = {name: test(args) for name, test in tests.items() if args.test in (name, "all")}
    keys = {
        name: {"_".join(map(str, key)) if isinstance(key, tuple) else str(key): round(v) for key, v in values.items()}
        for name, values in found.items()
    }
    if args.test == "all":
        cores = threads_to_try()[1]
        flags, bound, speed = recommend(**found, cores=cores)
        env, inference = (
            max(found["env"].values()),
            max(speed for (threads, _), speed in found["inference"].items() if threads == 1),
        )
        share = {"physics and observations": 1 / env, "inference": 1 / inference}
        print(
            f"An actor spends {share['inference'] / sum(share.values()):.0%} of its time in inference, the rest in "
            f"its arenas."
        )
        print(
            f"{cores} cores: {bound} will bound training, at about {speed:,.0f} agent-steps/s with one "
            f"epoch.\nRecommended: {flags}"
        )
        keys |= {"recommended": flags, "bound": bound, "expected_agent_steps_per_s": round(speed)}
    print(json.dumps(keys))
    return keys


if __name__ == "__main__":
    main()
