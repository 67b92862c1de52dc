"""How fast the Rocket League environment is, against rlgym and against its own physics. The last line is one JSON
object.

    python cleanrl_games/tools/bench_rocketleague.py [--seconds 18] [--arenas 48] [--ticks 200000] [--train-seconds 60]

ratio_vs_rlgym_NvN               agent-steps per CPU-second against rlgym with the same information in its observation,
  the same reward
                                 components, lookup-table actions and tick skip, on the same kind of episodes
ratio_vs_rlgym_default_NvN       the same against rlgym's own default observation and its goal and touch rewards alone
fraction_of_physics_limit_NvN    the same steps against ticking arenas and setting controls, with nothing read and
  nothing computed
fraction_of_same_physics_NvN     stricter: against ticking the environment's own arenas. Those above are left to
  themselves, and tick a
                                 tenth slower after half a minute of game time than arenas that begin anew
agent_steps_per_cpu_s_NvN        the environment itself, one core
train_agent_steps_per_s          recurrent_ppo_rocketleague.py with its two actor processes, from its third update on
train_bound_agent_steps_per_s    its updates on data already in memory, while a second process does nothing but the
  inference that such
                                 data needs: the slower of the two, since training does both at once
train_fraction_of_bound          the last two, divided
ticks_inside                     ticks of random play, after each step of which every car and ball was checked to be
  inside the arena

The parts of each comparison take turns in short slices, so that a machine that slows down slows all of them.
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
from types import SimpleNamespace

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch

from cleanrl_games import recurrent_ppo_rocketleague as script
from cleanrl_games.envs.rocketleague import NUM_ACTIONS, NUM_OBS, RocketLeagueVecEnv, contract
from cleanrl_games.envs.rocketleague.meshes import PACKAGES, fetch_package
from cleanrl_games.envs.rocketleague.observations import BALL_POSITION, POSITION
from cleanrl_games.runtime.settings import Positive, Size, flag_type

REPEAT = 8


def slices(work, seconds):
    """Runs work() → agent-steps until the CPU-seconds are used up → (agent-steps, CPU-seconds)"""
    steps, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        steps += work()
    return np.array([steps, time.process_time() - start])


def environment(env, rng):
    """Arenas, observations, masks, and the rewards as the script mixes them"""
    weights = script.reward_weights("hybrid")

    def work():
        info = env.step(rng.integers(0, NUM_ACTIONS, env.num_agents))[5]
        terms = np.stack([reward(env, info) for reward in script.REWARDS.values()], 1)
        script.mix_rewards(terms, weights, env, script.STAGES[-1])
        return env.num_agents

    return work


def physics(env, rng):
    """Arenas and controls alone"""
    controls = env._controls

    def work():
        actions = rng.integers(0, NUM_ACTIONS, env.num_agents).tolist()
        agent = 0
        for arena, bodies in zip(env.arenas, env.bodies):
            arena.step(1)
            for body in bodies:
                body.set_controls(controls[actions[agent]])
                agent += 1
            arena.step(REPEAT - 1)
        return env.num_agents

    return work


def equivalents(rlgym):
    """What users write for rlgym: an observation builder in the car's frame and rewards, per agent, in NumPy →
    (builder, rewards)"""

    class CarFrameObs(rlgym.obs_builders.DefaultObs):
        """The default observation plus this project's columns in the car's frame and the previous action"""

        def _build_obs(self, agent, state, shared_info):
            car = state.cars[agent]
            turned = car.team_num == 1
            physics, ball = (car.inverted_physics, state.inverted_ball) if turned else (car.physics, state.ball)
            axes = physics.rotation_mtx
            to_ball = ball.position - physics.position
            parts = [
                super()._build_obs(agent, state, shared_info),
                physics.linear_velocity @ axes * self.LIN_VEL_COEF,
                physics.angular_velocity @ axes * self.ANG_VEL_COEF,
                to_ball @ axes * self.POS_COEF,
                (ball.linear_velocity - physics.linear_velocity) @ axes * self.LIN_VEL_COEF,
                [np.linalg.norm(to_ball) * self.POS_COEF, car.jump_time, car.flip_time],
                (OWN_GOAL - physics.position) @ axes * self.POS_COEF,
                (THEIR_GOAL - physics.position) @ axes * self.POS_COEF,
                shared_info.get("last_actions", {}).get(agent, NO_CONTROLS),
            ]
            for other, other_car in state.cars.items():
                if other != agent:
                    seen = other_car.inverted_physics if turned else other_car.physics
                    parts += [
                        (seen.position - physics.position) @ axes * self.POS_COEF,
                        (seen.linear_velocity - physics.linear_velocity) @ axes * self.LIN_VEL_COEF,
                        seen.forward @ axes,
                        seen.up @ axes,
                        seen.angular_velocity @ axes * self.ANG_VEL_COEF,
                    ]
            return np.concatenate(parts)

    class Components(RewardBase()):
        """The dense components; goals and touches come from rlgym's own functions"""

        def reset(self, agents, initial_state, shared_info):
            self.boost = {agent: initial_state.cars[agent].boost_amount for agent in agents}
            self.ball_velocity = initial_state.ball.linear_velocity

        def get_rewards(self, agents, state, is_terminated, is_truncated, shared_info):
            change = np.linalg.norm(state.ball.linear_velocity - self.ball_velocity) / 6000
            self.ball_velocity = state.ball.linear_velocity
            return {agent: self.reward(agent, state.cars[agent], state.ball, change) for agent in agents}

        def reward(self, agent, car, ball, change):
            to_ball = ball.position - car.physics.position
            to_ball = to_ball / np.linalg.norm(to_ball)
            to_goal = (OWN_GOAL if car.team_num == 1 else THEIR_GOAL) - ball.position
            to_goal = to_goal / np.linalg.norm(to_goal)
            gained = np.sqrt(car.boost_amount / 100) - np.sqrt(self.boost[agent] / 100)
            self.boost[agent] = car.boost_amount
            return (
                0.02 * (car.physics.linear_velocity @ to_ball) / 2300
                + 0.003 * (car.physics.forward @ to_ball)
                + 0.1 * (ball.linear_velocity @ to_goal) / 6000
                + 0.001 * (not car.on_ground)
                + 0.3 * max(gained, 0)
                + 0.005 * np.sqrt(car.boost_amount / 100)
                + (2.0 * change if car.ball_touches else 0.0)
                - 1.0 * car.is_demoed
            )

    return CarFrameObs(zero_padding=3), Components()


def RewardBase():
    from rlgym.api import RewardFunction

    return RewardFunction


OWN_GOAL, THEIR_GOAL, NO_CONTROLS = np.array([0, -5120, 321.4]), np.array([0, 5120, 321.4]), np.zeros(8)


def make_rlgym(size, equivalent):
    """rlgym as its users build it, with the columns and rewards of this project or with its defaults"""
    sys.path[:0] = [path for path in (str(fetch_package(name)) for name in PACKAGES) if path not in sys.path]
    from rlgym import rocket_league
    from rlgym.api import RLGym
    from rlgym.rocket_league import action_parsers, done_conditions, obs_builders, reward_functions, sim, state_mutators

    builder, rewards = (
        obs_builders.DefaultObs(zero_padding=3),
        [(reward_functions.GoalReward(), 10.0), (reward_functions.TouchReward(), 0.1)],
    )
    if equivalent:
        builder, components = equivalents(rocket_league)
        rewards.append((components, 1.0))
    return RLGym(
        state_mutator=state_mutators.MutatorSequence(
            state_mutators.FixedTeamSizeMutator(blue_size=size, orange_size=size), state_mutators.KickoffMutator()
        ),
        obs_builder=builder,
        action_parser=action_parsers.RepeatAction(action_parsers.LookupTableAction(), repeats=REPEAT),
        reward_fn=reward_functions.CombinedReward(*rewards),
        transition_engine=sim.RocketSimEngine(),
        termination_cond=done_conditions.GoalCondition(),
        truncation_cond=done_conditions.AnyCondition(
            done_conditions.NoTouchTimeoutCondition(30.0), done_conditions.TimeoutCondition(300.0)
        ),
    )


def rlgym(env, rng):
    agents = list(env.reset())

    def work():
        actions = rng.integers(0, NUM_ACTIONS, (len(agents), 1))
        _, _, terminated, truncated = env.step(dict(zip(agents, actions)))
        if any(terminated.values()) or any(truncated.values()):
            env.reset()
        return len(agents)

    return work


def measure(size, num_arenas, seconds):
    """→ agent-steps per CPU-second of environment, physics alone, rlgym with the same columns and rewards, rlgym by
    default; of an environment and physics alone in the same arenas"""
    rng = np.random.default_rng(1)
    env, bare, same = (RocketLeagueVecEnv(num_arenas, (size,), seed=seed) for seed in (1, 2, 3))
    for _ in range(150):  # past the kickoffs, memory mapped, code compiled
        for one in (env, bare, same):
            one.step(rng.integers(0, NUM_ACTIONS, one.num_agents))
    workers = [
        environment(env, rng),
        physics(bare, rng),
        *(rlgym(make_rlgym(size, equivalent), rng) for equivalent in (True, False)),
    ]
    workers += [environment(same, rng), physics(same, rng)]
    totals = np.zeros((len(workers), 2))
    rounds = max(round(seconds / 1.5), 2)
    for _ in range(rounds):
        for i, work in enumerate(workers):
            totals[i] += slices(work, seconds / rounds / len(workers))
        bare.step(rng.integers(0, NUM_ACTIONS, bare.num_agents))  # balls that lie in a net start anew
    return totals[:, 0] / totals[:, 1]


def outside(env):
    """How far anything is outside of the arena, in game units; a car's middle or a ball's may touch a wall, not pass
    it"""
    cars, balls = env.cars[:, POSITION : POSITION + 3], env.balls[:, BALL_POSITION : BALL_POSITION + 3]
    worst = -np.inf
    for points in (cars, balls):
        x, y, z = np.abs(points[:, 0]), np.abs(points[:, 1]), points[:, 2]
        in_goal = x < contract.GOAL_HALF_WIDTH
        depth = np.where(in_goal, contract.GOAL_BACK, contract.BACK_WALL)
        corner = np.where(in_goal, -np.inf, (x + y - 8064) / np.sqrt(2))
        worst = max(
            worst, (x - contract.SIDE_WALL).max(), (y - depth).max(), corner.max(), (z - 2048).max(), (-z).max()
        )
    return worst


def random_ticks(ticks, seed=1):
    """Random play from all kinds of situations in mixed team sizes → (arena-ticks played, furthest point outside)"""
    states = {"kickoff": 1, "random": 2, "near_ball": 1, "goal_approach": 1, "aerial": 1}
    env = RocketLeagueVecEnv(24, (1, 2, 3), seed=seed, states=states, max_seconds=20.0)
    rng, worst, played = np.random.default_rng(seed), -np.inf, 0
    while played < ticks:
        env.step(rng.integers(0, NUM_ACTIONS, env.num_agents))
        worst, played = max(worst, outside(env)), played + env.num_arenas * REPEAT
    return played, worst


# ------------------------------------------------------------------------------------------------------------- training


def infer(args, rates, stop):
    """Does what an actor does for its cars, over and over, without any arena."""
    torch.set_num_threads(args.actor_threads)
    agent = script.Agent(args.recurrent, args.rnn_size).eval()
    obs, masks = torch.randn(args.num_agents, NUM_OBS), torch.ones(args.num_agents, NUM_ACTIONS, dtype=torch.bool)
    memory, steps, start = torch.zeros(args.num_agents, agent.state_size), 0, time.perf_counter()
    with torch.no_grad():
        while not stop.is_set():
            _, _, _, memory = agent.act(obs, masks, memory)
            steps += len(obs)
            if time.perf_counter() - start > 1.0:
                rates.put(steps / (time.perf_counter() - start))
                steps, start = 0, time.perf_counter()


def learner(args, device="cpu"):
    """→ work(): a minibatch of PPO, as the script does it, on chunks drawn from a rollout in memory → agent-steps"""
    agent, device, length = script.make_agent(vars(args)).to(device), torch.device(device), args.sequence_length
    optimizer, scaler = (
        torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5),
        torch.amp.GradScaler(device.type, enabled=False),
    )
    shape = (args.rollout_steps, args.num_agents)
    s = SimpleNamespace(**script.make_storage(args))
    s.obs.normal_()
    s.masks[:] = s.trained[:] = True
    s.actions.random_(NUM_ACTIONS)
    s.logprobs.fill_(-4.5)
    s.truncated[:] = torch.rand(shape) < 1 / 300  # a game of 20 seconds
    chunks, own = script.cut_into_chunks(s, torch.randn(shape), torch.randn(shape), length)

    def work():
        rows = own[torch.randperm(len(own))[: args.minibatch_size // length]]
        mb = script.take_minibatch(chunks, s.states, rows, device)
        loss, _ = script.minibatch_loss(agent, agent.unroll, mb, args, args.ent_coef)
        script.gradient_step(loss, agent, optimizer, scaler, args.max_grad_norm)
        return mb.actions.numel()

    return work


def train_bound(args, seconds):
    """→ agent-steps per second of updates on data in memory and of inference beside it, both at once"""
    context = multiprocessing.get_context("spawn")
    rates, stop = context.Queue(), context.Event()
    worker = context.Process(target=infer, args=(args, rates, stop), daemon=True)
    worker.start()
    torch.set_num_threads(args.threads)
    work, steps = learner(args), 0
    rates.get()  # the other process is at work
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        steps += work()
    learn = steps / (time.perf_counter() - start) / args.update_epochs
    inference = np.median([rates.get() for _ in range(max(rates.qsize(), 1))])
    stop.set()
    worker.terminate()
    worker.join()
    return learn, float(inference)


def training(seconds):
    """The script itself → agent-steps per second from its third update on, its metrics"""
    with tempfile.TemporaryDirectory() as folder:
        flags = (
            f"--final-stage touch --max-minutes {seconds / 60} --eval-frequency 0 --eval-episodes 2 --eval-seconds 1"
        )
        words = [
            sys.executable,
            "cleanrl_games/recurrent_ppo_rocketleague.py",
            *flags.split(),
            "--run-dir",
            f"{folder}/run",
        ]
        subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    rows = rows[2:-1]  # two rollouts wait for the learner at first, and the last update for the evaluation
    return (rows[-1]["global_step"] - rows[0]["global_step"]) / (rows[-1]["time"] - rows[0]["time"]), rows


def train_figures(seconds):
    """Bound, training, bound again: the machine may have changed meanwhile"""
    args = script.Args()
    bounds = [train_bound(args, seconds / 6)]
    train, rows = training(seconds)
    bounds.append(train_bound(args, seconds / 6))
    learn, inference = np.mean(bounds, 0)
    print(
        f"training: {train:,.0f} agent-steps/s; learning alone {learn:,.0f}/s beside inference {inference:,.0f}/s",
        flush=True,
    )
    for name in ("rollout_time", "inference_time", "simulator_time", "learn_time", "wait_time"):
        print(f"  {name}: {np.mean([row['stats/' + name] for row in rows]):.3f} s per update", flush=True)
    bound = min(learn, inference)
    return {
        "train_agent_steps_per_s": round(train),
        "train_bound_agent_steps_per_s": round(bound),
        "train_fraction_of_bound": round(train / bound, 3),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=flag_type(Positive), default=18.0, help="CPU-seconds per team size, shared by the six"
    )
    parser.add_argument("--arenas", type=flag_type(Size), default=48)
    parser.add_argument("--ticks", type=flag_type(Size), default=200_000, help="ticks of random play to check")
    parser.add_argument(
        "--train-seconds",
        type=flag_type(Positive),
        default=60.0,
        help="length of the training run; the bound gets a third of it",
    )
    args = parser.parse_args()
    figures = train_figures(args.train_seconds)
    for size in (1, 2, 3):
        mode = f"{size}v{size}"
        ours, limit, theirs, default, again, same = measure(size, args.arenas, args.seconds)
        print(
            f"{mode}: {ours:,.0f} agent-steps per CPU-second; physics alone {limit:,.0f}; rlgym {theirs:,.0f}, its "
            f"defaults {default:,.0f}",
            flush=True,
        )
        figures[f"agent_steps_per_cpu_s_{mode}"] = round(ours)
        figures[f"ratio_vs_rlgym_{mode}"] = round(ours / theirs, 2)
        figures[f"ratio_vs_rlgym_default_{mode}"] = round(ours / default, 2)
        figures[f"fraction_of_physics_limit_{mode}"] = round(ours / limit, 3)
        figures[f"fraction_of_same_physics_{mode}"] = round(again / same, 3)
    played, worst = random_ticks(args.ticks)
    print(
        f"{played:,} ticks of random play: the furthest point is {worst:.0f} units "
        f"{'outside' if worst > 0 else 'inside'}",
        flush=True,
    )
    figures["ticks_inside"] = played if worst <= 0 else 0
    print(json.dumps(figures))
