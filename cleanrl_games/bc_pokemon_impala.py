"""Cloning an expert from pixels on a Game Boy Advance: behaviour cloning, DAgger, and Q-learning from demonstrations.

    python cleanrl_games/bc_pokemon_impala.py --dagger-rounds 20

    ┌ actor (process × num_workers, or inline) ┐  jobs: worlds, weights   ┌ learner ─────────────────────────────────┐
    │ several emulators, batched inference;    │ ◄─────────────────────── │ batches from memory-mapped 84×84 frames, │
    │ the expert names its action in every     │ ───────────────────────► │ cross-entropy or TD + margin; hands out  │
    │ state the student comes to               │  results; frames by file │ rounds and evaluations, never waits      │
    └──────────────────────────────────────────┘                          └───────────────────▲──────────────────────┘
                                                  expert_data/*.npz ── checked, resized once ─┘

Worlds of the quest that evaluation uses are never trained on, and validation is split by episode, not by frame.
"""

import collections
import copy
import dataclasses
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Literal

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from cleanrl_games.envs.pokemon import ACTIONS, QUEST_SEEDS, PokemonEnv, contract_hash
from cleanrl_games.envs.pokemon.cache import Frames, open_cache, progress_bar, resize
from cleanrl_games.envs.pokemon.episodes import EpisodeError, load_episodes
from cleanrl_games.envs.pokemon.experts import ExpertError, Noise, load_expert
from cleanrl_games.envs.pokemon.picture import save_gif
from cleanrl_games.envs.pokemon.workers import Inline, Workers
from cleanrl_games.runtime import models
from cleanrl_games.runtime.checkpoints import load_checkpoint, restore
from cleanrl_games.runtime.device import maybe_compile, set_up
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.files import make_run_folder, write_atomically
from cleanrl_games.runtime.logger import Logger
from cleanrl_games.runtime.metrics import loss_metrics, wilson
from cleanrl_games.runtime.settings import parse_args
from cleanrl_games.runtime.shared_memory import from_flat, to_flat
from cleanrl_games.runtime.stopping import check_finite, stop_on_signals

SIZE, NUM_ACTIONS = 84, len(ACTIONS)

# Named sets of values; a flag or a config file overrides them. `plan`, the default, trains at once on the episodes that come along;
# the others first have the scripted expert play, and are what the learning benchmark compares in the same time.
# Small batches: what bounds a CPU is samples, and 9,000 updates of 32 teach more than 4,500 of 64. bf16 trains 1.7 times as many
# in a second of a processor that has AVX512-BF16; on an older one --amp off is faster.
COLLECT = {
    "expert_episodes": 160, "batch_size": 32, "learning_rate": 5e-4, "learning_rate_final": 2e-5, "total_training_steps": 1_000_000,
    "prioritized": True, "eval_frequency": 1500, "eval_episodes": 16, "amp": "bf16",
}  # fmt: skip
# With a student at the buttons fewer episodes of the expert are needed to begin with, and it takes over early.
TAKE_OVER = {**COLLECT, "expert_episodes": 64, "dagger_rounds": 1000, "dagger_beta": 0.5}
PRESETS = {"plan": {}, "cloning": COLLECT, "dagger": TAKE_OVER, "dqn_bc": {**TAKE_OVER, "algo": "dqn_bc"}}


@dataclasses.dataclass
class Args:
    # --- experiment
    exp_name: str = Path(__file__).stem
    """the name of this experiment"""
    preset: Literal["plan", "cloning", "dagger", "dqn_bc"] = "plan"
    """a named set of values from PRESETS; flags and --config override it"""
    config: str = ""
    """a YAML file of these settings; flags override it"""
    seed: int = 1
    """seed of the experiment"""
    run_dir: str = ""
    """folder of this run; empty = runs/{env}__{exp_name}__{seed}__{time}"""
    resume: str = ""
    """a run folder or checkpoint to go on from, as if nothing had happened"""
    track: bool = False
    """also log to Weights and Biases (WANDB_MODE=offline works without an account)"""
    wandb_project_name: str = "cleanrl_games"
    """the W&B project"""
    wandb_run_name: str = ""
    """the run's name in W&B; empty = that of its folder"""
    wandb_entity: str = ""
    """the W&B team, empty = your own"""
    tensorboard: bool = False
    """start TensorBoard beside the run, on 127.0.0.1, and print its address"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where the learner computes; actors stay on the CPU"""
    amp: Literal["auto", "off", "bf16", "fp16"] = "auto"
    """mixed precision of the learner; auto = on CUDA only"""
    compile: bool = False
    """torch.compile the learner's forward pass"""
    threads: int = 1
    """torch threads of the learner"""
    actor_threads: int = 1
    """torch threads of each actor"""

    # --- environment
    env_id: str = "pokemon-quest"
    """name of the game in the run's folder"""
    rom_path: str = ""
    """a .gba file of your own; empty = the quest that comes along"""
    backend: Literal["auto", "libretro", "libmgba"] = "auto"
    """the emulator's door; has to be the one the data was recorded with"""
    max_steps: int = 600
    """an episode longer than this is truncated"""
    held_out_worlds: int = 64
    """the last so many of the quest's 256 worlds are for evaluation only"""

    # --- data
    expert_data_dir: str = "expert_data/pokemon_quest"
    """folder of .npz episodes; empty = none, the actors have the expert play"""
    skip_bad_episodes: bool = False
    """go on without files that are damaged or break a rule"""
    cache_dir: str = ""
    """where resized frames are kept; empty = $CLEANRL_GAMES_CACHE or ~/.cache/cleanrl_games"""
    validation_fraction: float = 0.05
    """share of the episodes that only measure"""
    expert: str = "scripted"
    """whom actors ask: scripted, or module:callable (observation, info → action)"""
    expert_timeout: float = 60.0
    """seconds that a callable expert has for an answer"""
    expert_episodes: int = 0
    """episodes the expert plays at the start, beside those of expert_data_dir"""
    noise: float = 0.2
    """share of random actions in them; the label stays the expert's"""
    noise_length: float = 4.0
    """random actions in a row, on average"""

    # --- actors
    num_workers: int = 1
    """actor processes; 0 = inline in the learner's process, deterministic"""
    num_emulators: int = 8
    """emulators per actor, one batch of inference"""
    dagger_rounds: int = 0
    """rounds of playing with the student at the buttons and the expert naming its action"""
    dagger_episodes: int = 16
    """episodes per round"""
    dagger_frequency: int = 0
    """updates from the start of a round to the next one's, 0 = as soon as it is over"""
    dagger_beta: float = 0.8
    """mixing: in round n the expert presses the buttons in a share beta^n of the steps"""

    # --- algorithm
    algo: Literal["bc", "dqn_bc"] = "bc"
    """bc = cross-entropy on the expert's actions; dqn_bc = double DQN on what was played + demo_loss on the expert's actions"""
    total_training_steps: int = 20_000
    """updates to train for"""
    max_minutes: float = 0.0
    """stop after this many minutes, 0 = no limit"""
    batch_size: int = 64
    """transitions per update"""
    learning_rate: float = 1e-4
    """Adam's step size"""
    learning_rate_final: float = 1e-5
    """its value at the end of the run (linear)"""
    weight_decay: float = 1e-5
    """AdamW's"""
    max_grad_norm: float = 1.0
    """gradient clip"""
    hidden_dim: int = 256
    """width of the layer after the convolutions"""
    frame_stack: int = 1
    """pictures the network sees; the quest shows all that matters in one"""
    gamma: float = 0.99
    """discount"""
    demo_loss: Literal["margin", "ce"] = "ce"
    """dqn_bc: large margin on Q, or cross-entropy of softmax(Q / q_temperature)"""
    demo_weight: float = 1.0
    """dqn_bc: weight of demo_loss"""
    td_weight: float = 1.0
    """dqn_bc: weight of the TD loss"""
    margin: float = 0.8
    """dqn_bc: by how much the expert's action should be better than any other"""
    q_temperature: float = 0.1
    """dqn_bc: sampled play is softmax(Q / q_temperature)"""
    target_network_frequency: int = 250
    """dqn_bc: updates between copies of the weights to the target network"""
    prioritized: bool = False
    """draw transitions by their error: 1 - probability of the label (bc), TD error (dqn_bc)"""

    # --- evaluation and checkpoints
    eval_frequency: int = 2000
    """updates between evaluations against the scripted players, each with a model in the run's folder; 0 = only at the end"""
    eval_episodes: int = 32
    """fights per evaluation and opponent"""
    final_eval_episodes: int = 128
    """the same for the last evaluation; 0 = none"""
    save_frequency: int = 1000
    """updates between checkpoints, each with a model in model_dir"""
    model_dir: str = ""
    """where models go; empty = models/ in the run's folder"""
    save_best: bool = True
    """keep the model with the best sampled success as best.zip"""
    log_frequency: int = 100
    """updates between lines of the log"""
    capture_video: bool = False
    """a GIF of a fight with each evaluation"""


# ------------------------------------------------------------------------------------------------------------- networks


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv1(F.relu(self.conv0(F.relu(x))))


class Agent(nn.Module):
    """IMPALA's deep network (Espeholt et al. 2018): three stages of convolution, pooling and two residual blocks.
    Its ten outputs are logits of a policy (bc) or Q-values (dqn_bc)."""

    def __init__(self, frame_stack, hidden_dim, channels=(16, 32, 32)):
        super().__init__()
        stages, fan_in, side = [], 3 * frame_stack, SIZE
        for fan_out in channels:
            pool = nn.MaxPool2d(3, stride=2, padding=1)
            stages += [nn.Conv2d(fan_in, fan_out, 3, padding=1), pool, ResidualBlock(fan_out), ResidualBlock(fan_out)]
            fan_in, side = fan_out, (side + 1) // 2
        self.stages = nn.Sequential(*stages, nn.ReLU(), nn.Flatten())
        self.hidden = nn.Linear(fan_in * side * side, hidden_dim)
        self.head = nn.Linear(hidden_dim, NUM_ACTIONS)
        nn.init.orthogonal_(self.head.weight, 0.01)
        nn.init.zeros_(self.head.bias)
        self.to(memory_format=torch.channels_last)  # a third faster on a CPU, and what the frames are in memory anyway

    def forward(self, obs):
        """obs (B, frame_stack, 84, 84, 3) uint8 → (B, 10)"""
        batch, stack = obs.shape[:2]
        x = obs.permute(0, 1, 4, 2, 3).reshape(batch, 3 * stack, SIZE, SIZE)
        x = x.to(torch.float32, memory_format=torch.channels_last) / 255.0
        return self.head(F.relu(self.hidden(self.stages(x))))


def make_agent(settings):
    return Agent(settings["frame_stack"], settings["hidden_dim"])


# ----------------------------------------------------------------------------------------------------------- pure maths


def td_targets(rewards, terminated, next_q, next_q_target, gamma):
    """Double DQN: the network chooses, its older copy judges. Only a real end is worth nothing more; all (B,), next_q* (B, 10)."""
    best = next_q.argmax(-1, keepdim=True)
    return rewards + gamma * ~terminated * next_q_target.gather(-1, best).squeeze(-1)


def margin_loss(q, labels, margin):
    """max over a of [Q(a) + margin · (a ≠ expert's)] - Q(expert's), of DQfD (Hester et al. 2018) → (B,)"""
    raised = q + margin * (1 - F.one_hot(labels, q.shape[-1]).to(q.dtype))
    return raised.max(-1).values - q.gather(-1, labels[:, None]).squeeze(-1)


def mixing(beta, round_number):
    """The share of steps in which the expert presses the buttons (Ross et al. 2011): nearly always at first, hardly ever later."""
    return beta**round_number


def anneal(start, final, update, updates):
    return start + (final - start) * min(update / max(updates, 1e-8), 1.0)


class Priorities:
    """Proportional prioritised replay (Schaul et al. 2016). One cumulative sum per batch: a fraction of a percent of an update."""

    ALPHA, BETA, LEAST = 0.6, 0.4, 0.05  # LEAST: what is known by heart comes up at least a sixth as often as what is all wrong

    def __init__(self):
        self.values = np.zeros(0)

    def grow(self, size):
        """New transitions are as urgent as the most urgent one."""
        highest = self.values.max(initial=0.0) or 1.0
        self.values = np.concatenate([self.values, np.full(size - len(self.values), highest)])

    def sample(self, rng, count, allowed):
        """allowed (N,) bool → indices, weights that make up for how often they are drawn"""
        total = np.cumsum(np.where(allowed, self.values, 0.0))
        indices = np.searchsorted(total, rng.random(count) * total[-1], side="right")
        weights = (allowed.sum() * self.values[indices] / total[-1]) ** -self.BETA
        return indices, (weights / weights.max()).astype(np.float32)

    def update(self, indices, errors):
        self.values[indices] = (np.abs(errors) + self.LEAST) ** self.ALPHA


# ----------------------------------------------------------------------------------------------------------------- data

FIELDS = {"actions": np.int64, "executed_actions": np.int64, "rewards": np.float32, "terminated": bool}


class Demonstrations:
    """All transitions, by index: numbers in memory, pictures in memory-mapped files. The next picture is at index + 1."""

    def __init__(self, args):
        self.args, self.frames, self.episodes, self.segments = args, None, 0, []
        self.columns = {name: np.zeros(0, kind) for name, kind in FIELDS.items()}
        self.columns |= {name: np.zeros(0, np.int64) for name in ("frame", "first_frame", "episode")}
        self.columns |= {name: np.zeros(0, bool) for name in ("has_next", "validation")}

    def __len__(self):
        return len(self.columns["actions"])

    def add(self, first_frame, num_frames, world, **fields):
        """One episode. It measures instead of teaching if a die says so, or if its world is held out."""
        steps, index = len(fields["actions"]), self.episodes
        drawn = np.random.default_rng([self.args.seed, 11, index]).random() < self.args.validation_fraction
        is_validation = drawn or (world is not None and world >= QUEST_SEEDS - self.args.held_out_worlds)
        added = {
            **fields,
            "frame": first_frame + np.arange(steps),
            "first_frame": np.full(steps, first_frame),
            "episode": np.full(steps, index),
            "has_next": np.arange(1, steps + 1) < num_frames,
            "validation": np.full(steps, is_validation),
        }
        for name, column in self.columns.items():
            self.columns[name] = np.concatenate([column, np.asarray(added[name]).astype(column.dtype)])
        self.episodes += 1

    def add_files(self, episodes, frames):
        self.frames, first = frames, 0
        for episode in episodes:
            fields = {name: getattr(episode, name) for name in FIELDS}
            self.add(first, episode.num_frames, episode.world, **fields)
            first += episode.num_frames

    def add_segment(self, path):
        """What an actor has written: path.bin (frames) and path.npz (numbers)."""
        with np.load(f"{path}.npz", allow_pickle=False) as file:
            numbers = dict(file)
        start = self.frames.add(f"{path}.bin", int(numbers["lengths"].sum() + len(numbers["lengths"])))
        step = 0
        for length, world in zip(numbers["lengths"], numbers["worlds"]):
            fields = {name: numbers[name][step : step + length] for name in FIELDS}
            self.add(start, length + 1, world if world >= 0 else None, **fields)
            start, step = start + int(length) + 1, step + length
        self.segments.append(Path(path).name)
        return int(numbers["lengths"].sum())

    def observations(self, indices, ahead=0):
        """→ (B, frame_stack, 84, 84, 3) uint8; at an episode's start its first picture stands in for the ones before it"""
        frames = self.columns["frame"][indices][:, None] + ahead - np.arange(self.args.frame_stack)[::-1]
        return torch.from_numpy(self.frames[np.maximum(frames, self.columns["first_frame"][indices][:, None])])

    def tensor(self, name, indices, device):
        return torch.from_numpy(self.columns[name][indices]).to(device)


# --------------------------------------------------------------------------------------------------------------- actors


def make_env(args):
    return PokemonEnv(args.rom_path or None, max_steps=args.max_steps, backend=args.backend)


class Game:
    """One emulator's current episode."""

    def __init__(self, env, expert, number, world, noise, frame_stack):
        self.env, self.expert, self.number, self.world, self.noise = env, expert, number, world, noise
        observation, self.info = env.reset(options={"quest_seed": world} if env.reader.game == "quest" else None)
        expert.reset()
        self.observation, self.rows, self.small, self.pictures = observation, [], [], []
        self.stack = collections.deque(maxlen=frame_stack)

    def see(self, small, keep):
        """Takes in the resized picture of the present moment."""
        self.stack.extend([small] * (self.stack.maxlen if not self.stack else 1))
        if keep:
            self.small.append(small)


class Actor:
    """Plays jobs: one episode in each of a list of worlds, on several emulators at once. Knows nothing of processes: the same
    class runs inline. Nothing is kept from job to job, so a job's seed says all about it."""

    def __init__(self, args, index):
        if multiprocessing.parent_process() is not None:
            torch.set_num_threads(args.actor_threads)
            os.nice(5)  # the learner's core is the learner's
        self.args, self.agent = args, make_agent(vars(args)).eval()
        self.envs = [make_env(args) for _ in range(args.num_emulators)]
        self.experts = [load_expert(args.expert, args.expert_timeout) for _ in self.envs]

    def begin(self, seat, job, number):
        """The number-th episode of the job; its noise has dice of its own, so that it does not matter which emulator plays it."""
        rng = np.random.default_rng([*job["seed"], number])
        return Game(
            self.envs[seat],
            self.experts[seat],
            number,
            job["worlds"][number],
            Noise(job["noise"], self.args.noise_length, rng),
            self.args.frame_stack,
        )

    def choose(self, games, job, generator):
        """→ the student's actions, its outputs (n, 10)"""
        obs = torch.from_numpy(np.stack([np.stack(game.stack) for game in games]))
        outputs = self.agent(obs)
        logits = outputs / self.args.q_temperature if self.args.algo == "dqn_bc" else outputs
        if job["kind"] == "argmax":
            return logits.argmax(-1).tolist(), outputs
        return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1).tolist(), outputs

    @torch.no_grad()
    def play(self, job):
        """job: kind (expert | dagger | sampled | argmax), worlds, seed, beta (the expert's share of the steps), noise, weights;
        `segment`: a path to write transitions to; `video`: a GIF of the first episode → what happened"""
        start, inference_time, ticks = time.perf_counter(), 0.0, 0
        if job["weights"] is not None:
            from_flat(self.agent, torch.from_numpy(job["weights"]))
        seed = np.random.SeedSequence(job["seed"])
        rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(int(seed.generate_state(1)[0]))
        keep, asks, played, told = bool(job["segment"]), job["kind"] in ("expert", "dagger"), [], {"agree": 0, "value": 0.0, "entropy": 0.0}
        waiting = collections.deque(range(len(job["worlds"])))
        seats = {seat: self.begin(seat, job, waiting.popleft()) for seat in range(min(len(self.envs), len(waiting)))}
        while seats:
            games = list(seats.values())
            for game, small in zip(games, resize(np.stack([game.observation for game in games]), SIZE)):
                game.see(small, keep)
            actions, clock = [None] * len(games), time.perf_counter()
            if job["beta"] < 1:
                actions, outputs = self.choose(games, job, generator)
                told["value"] += float(outputs.max(-1).values.sum())
                told["entropy"] += float(torch.distributions.Categorical(logits=outputs).entropy().sum())
            inference_time += time.perf_counter() - clock
            for seat, game, action in zip(list(seats), games, actions):
                if job["video"] and game.number == 0:
                    game.pictures.append(game.observation)
                label = -1
                try:
                    if asks:
                        label = game.expert.act(game.env, game.observation, game.info)
                except ExpertError as error:
                    print(f"{error} The episode is dropped.", flush=True)
                    self.replace(seats, seat, job, waiting)
                    continue
                told["agree"] += action == label
                executed = label if asks and rng.random() < job["beta"] else action
                executed = game.noise.disturb(executed)
                game.observation, reward, terminated, truncated, game.info = game.env.step(executed)
                game.rows.append((label, executed, reward, terminated))
                ticks += 1
                if terminated or truncated:
                    played.append(self.finish(game, job, keep, terminated))
                    self.replace(seats, seat, job, waiting)
        if keep and played:
            self.write_segment(job["segment"], played)
        episodes = [{name: value for name, value in episode.items() if name not in ("small", "rows")} for episode in played]
        seconds = time.perf_counter() - start
        told = {name: value / max(ticks, 1) for name, value in told.items()}
        return {"episodes": episodes, "steps": ticks, "seconds": seconds, "inference_time": inference_time, **told}

    def replace(self, seats, seat, job, waiting):
        """The next episode of the job takes the emulator, if there is one."""
        del seats[seat]
        if waiting:
            seats[seat] = self.begin(seat, job, waiting.popleft())

    def finish(self, game, job, keep, terminated):
        if keep:
            game.small.append(resize(game.observation[None], SIZE)[0])
        if game.pictures:
            save_gif(job["video"], [*game.pictures, *[game.observation] * 12], milliseconds=110)
        return {
            "world": game.world if game.env.reader.game == "quest" else -1,
            "milestones": list(game.info["milestones"].values()),
            "names": list(game.info["milestones"]),
            "length": len(game.rows),
            "return": float(sum(reward for _, _, reward, _ in game.rows)),
            "success": bool(terminated),
            "small": game.small,
            "rows": game.rows,
        }

    def write_segment(self, path, played):
        def write_frames(temporary):
            with open(temporary, "wb") as file:
                for episode in played:
                    file.write(np.stack(episode["small"]).tobytes())

        def write_numbers(temporary):
            rows = [row for episode in played for row in episode["rows"]]
            columns = {name: np.array(column, kind) for (name, kind), column in zip(FIELDS.items(), zip(*rows))}
            lengths, worlds = ([episode[name] for episode in played] for name in ("length", "world"))
            with open(temporary, "wb") as file:
                np.savez(file, lengths=np.array(lengths), worlds=np.array(worlds), **columns)

        write_atomically(f"{path}.bin", write_frames)
        write_atomically(f"{path}.npz", write_numbers)


# ----------------------------------------------------------------------------------------------- evaluation, checkpoints


def summarise(kind, episodes, expert_milestones=None):
    """Episodes of one kind of evaluation → metrics: success with its 95 % interval (Wilson), milestones one by one, return, length."""
    reached = np.array([episode["milestones"] for episode in episodes], float).reshape(len(episodes), -1)
    rate, low, high = wilson(float(np.mean([episode["success"] for episode in episodes])), len(episodes))
    counts = reached.sum(-1)
    metrics = {
        f"eval/{kind}_success": rate,
        f"eval/{kind}_success_low": low,
        f"eval/{kind}_success_high": high,
        f"eval/{kind}_success_n": len(episodes),
        f"eval/{kind}_milestones": float(counts.mean()),
        f"eval/{kind}_milestones_error": float(1.96 * counts.std() / np.sqrt(len(episodes))),
        f"eval/{kind}_return": float(np.mean([episode["return"] for episode in episodes])),
        f"eval/{kind}_length": float(np.mean([episode["length"] for episode in episodes])),
    }
    if expert_milestones:
        metrics[f"eval/{kind}_milestones_of_expert"] = float(counts.mean()) / expert_milestones
    return metrics | {f"milestones/{kind}_{name}": float(share) for name, share in zip(episodes[0]["names"], reached.mean(0))}


def save_model(path, weights, args):
    path.parent.mkdir(parents=True, exist_ok=True)
    models.save_model(path, weights, {}, {"game": "pokemon", "contract_hash": contract_hash()}, args, __file__)


def load_model(path):
    """A run's folder or a model.zip → (agent, metadata)"""
    return models.load_agent(path, contract_hash(), make_agent)


if __name__ == "__main__":
    start_time = time.time()
    args = parse_args(Args, PRESETS)
    checkpoint = load_checkpoint(args.resume, contract_hash()) if args.resume else None
    if not args.expert_data_dir and not args.expert_episodes and not args.dagger_rounds:
        raise BadInput("There is nothing to learn from: give --expert-data-dir, --expert-episodes or --dagger-rounds.")
    if not 1 <= args.held_out_worlds < QUEST_SEEDS:
        raise BadInput(f"--held-out-worlds should leave worlds on both sides: 1 to {QUEST_SEEDS - 1}, found {args.held_out_worlds}.")
    run_dir = make_run_folder(args, __file__)
    model_dir = Path(args.model_dir) if args.model_dir else run_dir / "models"
    (run_dir / "played").mkdir(exist_ok=True)
    device, autocast, scaler = set_up(args)
    rng = np.random.default_rng(args.seed)

    agent = make_agent(vars(args)).to(device)
    target = copy.deepcopy(agent)
    optimizer = torch.optim.AdamW(agent.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)
    forward = maybe_compile(args, agent, device)
    data, priorities = Demonstrations(args), Priorities()
    update, elapsed, rounds, next_round, jobs_made, best_score, expert_milestones = 0, 0.0, 0, 0, 0, [-1.0, -1.0], 0.0

    # --- data: files first, then what actors had written before a resume
    episodes = []
    if args.expert_data_dir:
        folder = Path(args.expert_data_dir)
        try:
            episodes = load_episodes(folder if folder.exists() else Path(__file__).parents[1] / folder, args.skip_bad_episodes)
            with progress_bar(sum(episode.num_frames for episode in episodes), "resizing") as bar:
                frames = open_cache(episodes, SIZE, args.cache_dir or None, progress=bar)
        except EpisodeError as error:
            raise BadInput(str(error)) from None
    else:
        frames = Frames(SIZE)
    data.add_files(episodes, frames)
    if checkpoint:
        restore(checkpoint, agent=agent, target=target, optimizer=optimizer, scaler=scaler)
        for name in checkpoint["segments"]:
            data.add_segment(run_dir / "played" / name)
        update, elapsed, rounds, next_round, jobs_made, best_score, expert_milestones = checkpoint["progress"]
        priorities.values = checkpoint["priorities"].numpy()
        torch.set_rng_state(checkpoint["torch_rng"])
        rng.bit_generator.state = json.loads(checkpoint["rng"])

    def save_checkpoint():
        state = {
            "agent": agent.state_dict(), "target": target.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(),
            "segments": data.segments, "progress": [update, elapsed + time.time() - start_time, rounds, next_round, jobs_made, best_score, expert_milestones],
            "priorities": torch.from_numpy(priorities.values), "torch_rng": torch.get_rng_state(), "rng": json.dumps(rng.bit_generator.state),
            "contract_hash": contract_hash(),
        }  # fmt: skip
        write_atomically(run_dir / "checkpoint.pt", lambda path: torch.save(state, path))
        save_model(run_dir / "model.zip", agent.state_dict(), args)

    def progress():
        seconds = elapsed + time.time() - start_time
        return max(update / args.total_training_steps, seconds / 60 / args.max_minutes if args.max_minutes else 0.0)

    # --- jobs for the actors
    actors = Workers(args.num_workers, Actor, args) if args.num_workers else Inline(Actor, args)
    train_worlds, held_out = np.split(np.arange(QUEST_SEEDS), [QUEST_SEEDS - args.held_out_worlds])
    evaluations = {}  # number → {"weights", "jobs" under way, "episodes" by kind, "stats"}

    def submit(kind, worlds, weights=None, beta=0.0, noise=0.0, keep=False, video="", evaluation=None):
        """In parts, one per actor, so that all of them work on it."""
        global jobs_made
        parts = np.array_split(worlds, min(actors.count, len(worlds)))
        for worlds_part in parts:
            jobs_made += 1
            actors.submit({
                "kind": kind, "worlds": worlds_part.tolist(), "seed": [args.seed, jobs_made], "beta": beta, "noise": noise,
                "weights": weights, "segment": str(run_dir / "played" / f"{jobs_made:05d}") if keep else "", "video": str(video),
                "evaluation": evaluation, "attempts": 1,
            })  # fmt: skip
            video = ""
        return len(parts)

    def start_evaluation(count):
        """Sampled and argmax play of the present weights in held-out worlds, each world equally often."""
        weights = to_flat(agent).numpy()
        entry = {"weights": copy.deepcopy(agent.state_dict()), "jobs": 0, "episodes": collections.defaultdict(list), "stats": {}}
        evaluations[update] = entry
        worlds = np.tile(held_out, -(-count // len(held_out)))[:count]
        for kind in ("sampled", "argmax"):
            video = run_dir / "videos" / f"{update}_{kind}.gif" if args.capture_video else ""
            if video:
                video.parent.mkdir(exist_ok=True)
            entry["jobs"] += submit(kind, worlds, weights, video=video, evaluation=update)

    def finish_evaluation(number):
        """→ metrics; keeps the best model"""
        global best_score
        entry = evaluations.pop(number)
        metrics = {"eval/update": number, **entry["stats"]}
        for kind, episodes in entry["episodes"].items():
            metrics |= summarise(kind, episodes, expert_milestones)
        score = [metrics["eval/sampled_success"], metrics["eval/sampled_milestones"]]
        if args.save_best and score > best_score:
            best_score = score
            save_model(model_dir / "best.zip", entry["weights"], args)
        return metrics

    def take_results(timeout=0.0):
        """What the actors have finished: transitions into the data, evaluations into metrics."""
        global expert_milestones
        metrics = {}
        for job, result in actors.poll(timeout):
            if result is None and (job["evaluation"] is not None or job["kind"] == "expert"):
                if job["attempts"] == 3:
                    raise RuntimeError(f"The emulator died three times over the same job: worlds {job['worlds']}.")
                actors.submit({**job, "attempts": job["attempts"] + 1})
                continue
            if not result or not result["episodes"]:
                continue
            if job["segment"]:
                metrics["charts/transitions_added"] = metrics.get("charts/transitions_added", 0) + data.add_segment(job["segment"])
                priorities.grow(len(data))
            if job["kind"] == "dagger":
                milestones = [sum(episode["milestones"]) for episode in result["episodes"]]
                metrics |= {
                    "dagger/agreement": result["agree"],
                    "dagger/milestones": float(np.mean(milestones)),
                    "dagger/beta": job["beta"],
                }
            if job["evaluation"] is None and job["kind"] == "expert" and not job["segment"]:
                expert_milestones = float(np.mean([sum(episode["milestones"]) for episode in result["episodes"]]))
                metrics["eval/expert_milestones"] = expert_milestones
            if job["evaluation"] is not None:
                entry = evaluations[job["evaluation"]]
                entry["episodes"][job["kind"]] += result["episodes"]
                entry["stats"] |= {f"eval/{job['kind']}_{name}": result[name] for name in ("value", "entropy")}
                entry["jobs"] -= 1
                if not entry["jobs"]:
                    metrics |= finish_evaluation(job["evaluation"])
            metrics |= {"stats/actor_steps_per_s": result["steps"] / result["seconds"], "stats/inference_time": result["inference_time"]}
        return metrics

    stopping = stop_on_signals()
    logger = Logger(args, run_dir, update)
    priorities.grow(len(data))
    first_update, losses, clock, due, consistent = update, [], time.perf_counter(), False, True
    wait_time, learn_time, metrics = 0.0, 0.0, {}

    try:
        if not checkpoint and args.expert_episodes:
            for part in np.array_split(rng.choice(train_worlds, args.expert_episodes), -(-args.expert_episodes // 16)):
                submit("expert", part, beta=1.0, noise=args.noise, keep=True)
        if not checkpoint and args.expert == "scripted" and not args.rom_path:
            submit("expert", held_out[: args.eval_episodes], beta=1.0)  # what there is to reach in the worlds of the evaluation
        while not stopping and progress() < 1.0:
            # --- the actors: the next round, an evaluation that is due, results
            wait_start = time.perf_counter()
            if rounds < args.dagger_rounds and update >= next_round and not actors.pending:
                rounds, next_round = rounds + 1, update + args.dagger_frequency
                worlds = rng.choice(train_worlds, args.dagger_episodes)
                submit("dagger", worlds, to_flat(agent).numpy(), mixing(args.dagger_beta, rounds), keep=True)
            due = due or bool(args.eval_frequency and update and update % args.eval_frequency == 0)
            if due and not evaluations:
                due = False
                start_evaluation(args.eval_episodes)
            metrics |= take_results()  # an inline actor has them already, so that no checkpoint falls between a job and its result
            teaching = np.flatnonzero(~data.columns["validation"])
            if not len(teaching):
                metrics |= take_results(timeout=1.0)
                wait_time += time.perf_counter() - wait_start
                continue
            wait_time += time.perf_counter() - wait_start

            # --- one update
            learn_start, consistent = time.perf_counter(), False
            lr = anneal(args.learning_rate, args.learning_rate_final, progress(), 1.0)
            optimizer.param_groups[0]["lr"] = lr
            weights = None
            if args.prioritized:
                mb_inds, weights = priorities.sample(rng, args.batch_size, ~data.columns["validation"])
            else:
                mb_inds = teaching[rng.integers(len(teaching), size=args.batch_size)]
            labels = data.tensor("actions", mb_inds, device)
            obs = data.observations(mb_inds).to(device, non_blocking=True)
            with autocast():
                outputs = forward(obs).float()
            if args.algo == "bc":
                # no weights make up for how often a state is drawn: its label is the same every time, so nothing is biased
                loss = F.cross_entropy(outputs, labels)
                errors = 1 - outputs.softmax(-1).gather(-1, labels[:, None]).squeeze(-1)
                parts = {"policy_loss": loss}
            else:
                with torch.no_grad(), autocast():
                    next_obs = data.observations(mb_inds, ahead=data.columns["has_next"][mb_inds].astype(int)[:, None]).to(device)
                    next_q, next_q_target = forward(next_obs).float(), target(next_obs).float()
                rewards, terminated = (data.tensor(name, mb_inds, device) for name in ("rewards", "terminated"))
                # a recording that was cut off without its last picture has nothing to bootstrap from
                known = data.tensor("has_next", mb_inds, device) | terminated
                expected = td_targets(rewards, terminated, next_q, next_q_target, args.gamma)
                played = outputs.gather(-1, data.tensor("executed_actions", mb_inds, device)[:, None]).squeeze(-1)
                errors = (played - expected) * known
                importance = torch.ones_like(errors) if weights is None else torch.from_numpy(weights).to(device)
                td_loss = (importance * F.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none")).mean()
                if args.demo_loss == "margin":
                    demo = margin_loss(outputs, labels, args.margin)
                else:
                    demo = F.cross_entropy(outputs / args.q_temperature, labels, reduction="none")
                demo_loss = (importance * demo).mean()
                loss = args.td_weight * td_loss + args.demo_weight * demo_loss
                parts = {"td_loss": td_loss, "demo_loss": demo_loss, "q_values": played.mean(), "q_max": outputs.max()}
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            scaler.step(optimizer)
            scaler.update()
            update += 1
            if args.prioritized:
                priorities.update(mb_inds, errors.detach().cpu().numpy())
            if args.algo == "dqn_bc" and update % args.target_network_frequency == 0:
                target.load_state_dict(agent.state_dict())
            accuracy = (outputs.argmax(-1) == labels).float().mean()
            losses.append(torch.stack([loss, grad_norm, accuracy, *parts.values()]).detach())
            check_finite(losses[-1:])
            consistent = True
            learn_time += time.perf_counter() - learn_start

            # --- logs, validation, checkpoint
            if update % args.log_frequency == 0 or metrics or progress() >= 1.0:
                metrics |= loss_metrics(" ".join(("loss", "grad_norm", "accuracy", *parts)), losses)
                validation = np.flatnonzero(data.columns["validation"])
                if len(validation) and update % args.log_frequency == 0:
                    chosen = validation[rng.integers(len(validation), size=256)]
                    with torch.no_grad():
                        outputs = agent(data.observations(chosen).to(device)) / (args.q_temperature if args.algo == "dqn_bc" else 1.0)
                    labels = data.tensor("actions", chosen, device)
                    metrics["losses/validation_accuracy"] = float((outputs.argmax(-1) == labels).float().mean())
                    metrics["losses/validation_loss"] = float(F.cross_entropy(outputs, labels))
                seconds = time.perf_counter() - clock
                metrics |= {
                    "charts/SPS": len(losses) * args.batch_size / seconds, "charts/learning_rate": lr, "charts/transitions": len(data),
                    "charts/dagger_rounds": rounds, "stats/learn_time": learn_time, "stats/wait_time": wait_time,
                    "stats/queue_size": actors.pending,
                }  # fmt: skip
                logger.write(metrics, update, progress())
                losses, metrics, clock, learn_time, wait_time = [], {}, time.perf_counter(), 0.0, 0.0
            if update % args.save_frequency == 0:
                save_checkpoint()
                save_model(model_dir / f"{update}.zip", agent.state_dict(), args)
        if not stopping:
            # --- the end: what is still being played is not waited for, the last evaluation is
            save_checkpoint()
            if args.num_workers:
                actors.close()
                actors = Workers(max(args.num_workers, os.cpu_count()), Actor, args)
            evaluations.clear()
            if args.final_eval_episodes:
                start_evaluation(args.final_eval_episodes)
                while evaluations:
                    metrics = take_results(timeout=1.0)
                    if "eval/sampled_success" in metrics:
                        logger.write(metrics, update, 1.0)
            save_model(model_dir / "final.zip", agent.state_dict(), args)
    finally:
        actors.close()
        logger.close()
        if consistent:  # not in the middle of an update, whose half would be neither the old nor the new network
            save_checkpoint()
        print(f"Checkpoint and model are in {run_dir}; go on with --resume {run_dir}", flush=True)
