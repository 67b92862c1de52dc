"""Cloning an expert from pixels on a Game Boy Advance: behaviour cloning, DAgger, and Q-learning from demonstrations.

    python cleanrl_games/bc_pokemon_impala.py --preset dagger

    ┌ actor (process × num_workers, or inline) ┐  jobs: worlds, weights   ┌ learner ─────────────────────────────────┐
    │ several emulators, batched inference;    │ ◄─────────────────────── │ batches from memory-mapped 84×84 frames, │
    │ the expert names its action in every     │ ───────────────────────► │ cross-entropy or TD + margin; hands out  │
    │ state the student comes to               │  results; frames by file │ rounds and evaluations, never waits      │
    └──────────────────────────────────────────┘                          └───────────────────▲──────────────────────┘
                                                  expert_data/*.npz ── checked, resized once ─┘

Worlds of the quest that evaluation uses are never trained on, and validation is split by episode, not by frame.
"""

import collections
import contextlib
import copy
import dataclasses
import functools
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing import connection
from pathlib import Path
from typing import Literal

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

from cleanrl_games.envs.pokemon import ACTIONS, QUEST_SEEDS, PokemonEnv, contract_hash
from cleanrl_games.envs.pokemon.cache import Frames, open_undamaged, progress_bar, resize
from cleanrl_games.envs.pokemon.env import parse_timing
from cleanrl_games.envs.pokemon.episodes import EpisodeError, episodes_hash, load_episodes
from cleanrl_games.envs.pokemon.experts import ExpertError, Noise, ask_all, load_expert
from cleanrl_games.envs.pokemon.picture import save_gif
from cleanrl_games.runtime import models, ray_actors
from cleanrl_games.runtime.checkpoints import load_checkpoint, restore, save_checkpoint, say_how_to_go_on
from cleanrl_games.runtime.device import maybe_compile, set_up
from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.runtime.files import choose_run_folder, keep_models, make_run_folder, write_atomically
from cleanrl_games.runtime.logger import Logger
from cleanrl_games.runtime.metrics import wilson
from cleanrl_games.runtime.settings import Count, Fraction, NonNegative, Positive, Size, parse_args
from cleanrl_games.runtime.shared_memory import from_flat, to_flat
from cleanrl_games.runtime.stopping import check_finite, stop_on_signals

SIZE = 84
NUM_ACTIONS = len(ACTIONS)
QUEST_DATA = "expert_data/pokemon_quest"

# Named sets of values; a flag or a config file overrides them. `plan`, the default, trains at once on the episodes that
# come along; the others first have the scripted expert play, and are what the learning benchmark compares in the same
# time. Small batches: what bounds a CPU is samples, and 9,000 updates of 32 teach more than 4,500 of 64. bf16 trains
# 1.7 times as many in a second of a processor that has AVX512-BF16; on an older one --amp off is faster.
COLLECT = {
    "expert_episodes": 160, "batch_size": 32, "learning_rate": 5e-4, "learning_rate_final": 2e-5,
    "total_training_steps": 1_000_000,
    "prioritized": True, "eval_frequency": 4000, "eval_episodes": 16, "final_eval_episodes": 64,
    "log_frequency": 500, "amp": "bf16",
}  # fmt: skip
# With a student at the buttons fewer episodes of the expert are needed to begin with. The better it is, the fewer of
# its buttons the expert presses.
STUDENT_PLAYS = {
    **COLLECT, "expert_episodes": 64, "dagger_rounds": 1000, "dagger_frequency": 500,
    "dagger_mixing": "agreement", "dagger_beta": 0.9,
}  # fmt: skip
PRESETS = {"plan": {}, "cloning": COLLECT, "dagger": STUDENT_PLAYS, "dqn_bc": {**STUDENT_PLAYS, "algo": "dqn_bc"}}


@dataclasses.dataclass
class Args:
    # --- experiment
    exp_name: str = Path(__file__).stem
    """the name of this experiment"""
    preset: Literal["plan", "cloning", "dagger", "dqn_bc"] = "plan"
    """a named set of values from PRESETS; flags and --config override it"""
    config: str = ""
    """a YAML file of these settings; flags override it"""
    seed: Count = 1
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
    threads: Size = 1
    """torch threads of the learner"""
    actor_threads: Size = 1
    """torch threads of each actor"""
    debug: bool = False
    """show the traceback of what goes wrong, of actors too"""

    # --- environment
    env_id: str = "pokemon-quest"
    """name of the game in the run's folder"""
    rom_path: str = ""
    """a .gba file of your own; empty = the quest that comes along"""
    backend: Literal["auto", "libretro", "libmgba"] = "auto"
    """the emulator's door; has to be the one the data was recorded with"""
    timing: str = ""
    """fast, normal, slow, or frames held/released like 10/8; empty = as the episodes were recorded"""
    compass: Literal["none", "bearing", "path"] = "none"
    """the quest's needle: none, straight to the goal, or the next step of the way"""
    start_state: str = ""
    """a save state where episodes of a ROM of your own start"""
    start_states: str = ""
    """a folder of save states (*.state), one per milestone: training and evaluation start from each of them"""
    max_steps: Count = 600
    """an episode longer than this is truncated"""
    held_out_worlds: Size = 64
    """the last so many of the quest's 65,536 worlds are for evaluation only"""

    # --- data
    expert_data_dir: str = QUEST_DATA
    """folder of .npz episodes; empty = none, the actors have the expert play"""
    skip_bad_episodes: bool = False
    """go on without files that are damaged or break a rule"""
    validation_fraction: Fraction = 0.05
    """share of the episodes that only measure"""
    expert: str = "scripted"
    """whom actors ask: scripted, a model (a run's folder or model.zip), module:callable (observation, info → action),
    milestones:module"""
    expert_timeout: Positive = 60.0
    """seconds that callable experts have for an answer, all emulators together"""
    expert_episodes: Count = 0
    """episodes the expert plays at the start, beside those of expert_data_dir"""
    noise: Fraction = 0.2
    """share of random actions in them, four in a row on average; the label stays the expert's"""
    max_played_gb: NonNegative = 20.0
    """disk for what actors play; beyond it the oldest rounds are deleted. 0 = no limit"""

    # --- actors
    num_workers: Count = 1
    """actor processes; 0 = inline in the learner's process, deterministic"""
    num_emulators: Size = 8
    """emulators per actor, one batch of inference"""
    ray_address: str = ""
    """run the actors on this Ray cluster ("auto", "127.0.0.1:6379", …); a ROM, start states and an expert of your own
    have to be on every machine, at the same path"""
    dagger_rounds: Count = 0
    """rounds of playing with the student at the buttons and the expert naming its action"""
    dagger_episodes: Size = 16
    """episodes per round"""
    dagger_frequency: Count = 0
    """updates from the start of a round to the next one's, 0 = as soon as it is over"""
    dagger_mixing: Literal["rounds", "agreement"] = "rounds"
    """how the expert's share of the steps falls: beta^n in round n, or beta × (1 - agreement of the round before)"""
    dagger_beta: Fraction = 0.8
    """beta of dagger_mixing"""

    # --- algorithm
    algo: Literal["bc", "dqn_bc"] = "bc"
    """bc = cross-entropy on the expert's actions; dqn_bc = double DQN on what was played + demo_loss on the expert's
    actions"""
    total_training_steps: Size = 20_000
    """updates to train for"""
    max_minutes: NonNegative = 0.0
    """stop after this many minutes, 0 = no limit"""
    batch_size: Size = 64
    """transitions per update"""
    learning_rate: Positive = 1e-4
    """Adam's step size"""
    learning_rate_final: NonNegative = 1e-5
    """its value at the end of the run (linear)"""
    weight_decay: NonNegative = 1e-5
    """AdamW's"""
    max_grad_norm: Positive = 1.0
    """gradient clip"""
    hidden_dim: Size = 256
    """width of the layer after the convolutions"""
    frame_stack: Size = 1
    """pictures the network sees at once"""
    recurrent: Count = 0
    """pictures over which a GRU remembers, 0 = none (bc only)"""
    gamma: Fraction = 0.99
    """discount"""
    demo_loss: Literal["margin", "ce"] = "ce"
    """dqn_bc: large margin on Q, or cross-entropy of softmax(Q / q_temperature)"""
    demo_weight: NonNegative = 1.0
    """dqn_bc: weight of demo_loss"""
    distill: bool = False
    """dqn_bc: demo_loss is also weighed by 1 - (milestones of the student / of the expert), as of the last
    evaluation"""
    margin: NonNegative = 0.8
    """dqn_bc: by how much the expert's action should be better than any other"""
    q_temperature: Positive = 0.1
    """dqn_bc: sampled play is softmax(Q / q_temperature)"""
    target_network_frequency: Size = 250
    """dqn_bc: updates between copies of the weights to the target network"""
    prioritized: bool = False
    """draw transitions by their error: 1 - probability of the label (bc), TD error (dqn_bc)"""

    # --- evaluation and checkpoints
    eval_frequency: Count = 2000
    """updates between evaluations in held-out worlds; 0 = only at the end"""
    eval_episodes: Size = 32
    """episodes per evaluation, sampled and argmax each"""
    final_eval_episodes: Count = 128
    """the same for the last evaluation, which ends with --max-minutes; 0 = none"""
    save_frequency: Size = 1000
    """updates between checkpoints, each with a model in models/"""
    keep_models: Count = 50
    """the newest so many of models/ are kept, and best.zip; 0 = all"""
    log_frequency: Size = 100
    """updates between lines of the log"""
    capture_video: bool = False
    """a GIF of an episode with each evaluation"""


# -------------------------------------------------------------------------------------------------------------- network


# --8<-- [start:pokemon_network]
class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv1(F.relu(self.conv0(F.relu(x))))


class Agent(nn.Module):
    """IMPALA's deep network (Espeholt et al. 2018): three stages of convolution, pooling and two residual blocks.
    Its ten outputs are logits of a policy (bc) or Q-values (dqn_bc). With `recurrent` a GRU reads so many pictures one
    after another."""

    def __init__(self, frame_stack, hidden_dim, recurrent=0, channels=(16, 32, 32)):
        super().__init__()
        stages, fan_in, side = [], 3 * frame_stack, 84
        for fan_out in channels:
            pool = nn.MaxPool2d(3, stride=2, padding=1)
            stages += [nn.Conv2d(fan_in, fan_out, 3, padding=1), pool, ResidualBlock(fan_out), ResidualBlock(fan_out)]
            fan_in, side = fan_out, (side + 1) // 2
        self.frame_stack, self.recurrent = frame_stack, recurrent
        self.stages = nn.Sequential(*stages, nn.ReLU(), nn.Flatten())
        self.hidden = nn.Linear(fan_in * side * side, hidden_dim)
        self.memory = nn.GRU(hidden_dim, hidden_dim, batch_first=True) if recurrent else None
        self.head = nn.Linear(hidden_dim, 10)
        nn.init.orthogonal_(self.head.weight, 0.01)
        nn.init.zeros_(self.head.bias)
        self.to(memory_format=torch.channels_last)  # a third faster on a CPU, and what the frames are in memory anyway

    def encode(self, obs):
        """obs (B, frame_stack, 84, 84, 3) uint8 → features (B, hidden_dim)"""
        batch, stack = obs.shape[:2]
        x = obs.permute(0, 1, 4, 2, 3).reshape(batch, 3 * stack, 84, 84)
        x = x.to(torch.float32, memory_format=torch.channels_last) / 255.0
        return F.relu(self.hidden(self.stages(x)))

    def read(self, features):
        """features (B, T, hidden_dim), oldest first → outputs (B, T, 10), each with what came before it in the row"""
        return self.head(self.memory(features)[0]) if self.memory else self.head(features)

    def forward(self, obs):
        """obs (B, frame_stack, 84, 84, 3) → (B, 10); of a recurrent one (B, T, frame_stack, 84, 84, 3) → (B, T, 10)"""
        if self.memory is None:
            return self.head(self.encode(obs))
        batch, length = obs.shape[:2]
        return self.read(self.encode(obs.flatten(0, 1)).view(batch, length, -1))


class Memory:
    """What a policy remembers of the episode it plays: the last pictures, and with a GRU the features of those
    before."""

    def __init__(self, agent):
        self.frames = collections.deque(maxlen=agent.frame_stack)
        self.features = collections.deque(maxlen=agent.recurrent or 1)

    def see(self, frame):
        """frame (84, 84, 3) uint8; at an episode's start it stands in for the ones before it"""
        self.frames.extend([frame] * (1 if self.frames else self.frames.maxlen))


@torch.no_grad()
def choose_actions(agent, memories, temperature=1.0, generator=None, deterministic=False):
    """One action for each memory → (actions, outputs (B, 10)). The GRU reads the same window of pictures as it is
    trained on."""
    features = agent.encode(torch.from_numpy(np.stack([np.stack(memory.frames) for memory in memories])))
    for memory, feature in zip(memories, features):
        memory.features.append(feature)
    if agent.memory is None:
        outputs = agent.head(features)
    else:
        outputs = torch.stack([agent.read(torch.stack(list(memory.features))[None])[0, -1] for memory in memories])
    logits = outputs / temperature
    if deterministic:
        return logits.argmax(-1).tolist(), outputs
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1).tolist(), outputs


def make_agent(settings):
    return Agent(settings["frame_stack"], settings["hidden_dim"], settings.get("recurrent", 0))


# --8<-- [end:pokemon_network]


# ---------------------------------------------------------------------------------------------------------------- maths


def td_targets(rewards, terminated, next_q, next_q_target, gamma):
    """Double DQN: the network chooses, its older copy judges. Only a real end is worth nothing more; all (B,), next_q*
    (B, 10)."""
    best = next_q.argmax(-1, keepdim=True)
    return rewards + gamma * ~terminated * next_q_target.gather(-1, best).squeeze(-1)


def margin_loss(q, labels, margin):
    """max over a of [Q(a) + margin · (a ≠ expert's)] - Q(expert's), of DQfD (Hester et al. 2018) → (B,)"""
    raised = q + margin * (1 - F.one_hot(labels, q.shape[-1]).to(q.dtype))
    return raised.max(-1).values - q.gather(-1, labels[:, None]).squeeze(-1)


def mixing(how, beta, round_number, agreement):
    """The share of steps in which the expert presses the buttons. rounds: beta^n (Ross et al. 2011). agreement: the
    less, the more often the student would have done the same in the round before (0 before there is one)."""
    return beta**round_number if how == "rounds" else beta * (1.0 - agreement)


def distill_coefficient(student, expert):
    """1 while the student reaches nothing, 0 when it reaches what the expert does (Agarwal et al. 2022, with milestones
    as returns)"""
    return min(max(1.0 - student / expert, 0.0), 1.0) if expert else 1.0


def anneal(start, final, share):
    return start + (final - start) * min(share, 1.0)


class Priorities:
    """Proportional prioritised replay (Schaul et al. 2016). One cumulative sum per batch: a fraction of a percent of an
    update."""

    ALPHA = 0.6
    BETA = 0.4
    LEAST = 0.05  # what is known by heart comes up at least a sixth as often as what is all wrong

    def __init__(self):
        self.values = np.zeros(0)

    def grow(self, size, errors=None):
        """New transitions are as urgent as the most urgent one, or as their errors (N,) say where those are known."""
        highest = self.values.max(initial=0.0) or 1.0
        added = np.full(size - len(self.values), highest) if errors is None else self.urgency(errors)
        self.values = np.concatenate([self.values, added])

    def urgency(self, errors):
        return (np.abs(errors) + self.LEAST) ** self.ALPHA

    def keep(self, kept):
        """Forgets all transitions but these; kept (N,) bool"""
        self.values = self.values[kept]

    def sample(self, rng, count, allowed):
        """allowed (N,) bool → indices, weights that make up for how often they are drawn"""
        total = np.cumsum(np.where(allowed, self.values, 0.0))
        indices = np.searchsorted(total, rng.random(count) * total[-1], side="right")
        weights = (allowed.sum() * self.values[indices] / total[-1]) ** -self.BETA
        return indices, (weights / weights.max()).astype(np.float32)

    def update(self, indices, errors):
        self.values[indices] = self.urgency(errors)


# -------------------------------------------------------------------------------------------------------------- storage

FIELDS = {"actions": np.int64, "executed_actions": np.int64, "rewards": np.float32, "terminated": bool}
PLACES = {
    "frame": np.int64,
    "first_frame": np.int64,
    "episode": np.int64,
    "segment": np.int64,
    "has_next": bool,
    "validation": bool,
}


class Demonstrations:
    """All transitions, by index: numbers in memory, pictures in memory-mapped files. The next picture is at index + 1.

    `columns` {name: (N,)}: the fields of a step; `frame`, the index of its picture; `first_frame` of its episode;
    `segment`, the number of the file that an actor wrote (-1: from the folder of episodes); `has_next`, whether there
    is a picture after it; `validation`."""

    def __init__(self, args, is_quest=True):
        self.args = args
        self.is_quest = is_quest
        self.frames = Frames(SIZE)
        self.episodes = 0
        self.columns = {name: np.zeros(0, kind) for name, kind in {**FIELDS, **PLACES}.items()}
        # {"name", "number", "first_episode", "first_frame", "bytes"} of what actors played, oldest first
        self.segments = []

    def __len__(self):
        return len(self.columns["actions"])

    def add(self, first_frame, num_frames, world, segment=-1, **fields):
        """One episode. It measures instead of teaching if a die says so, or if its world is held out."""
        steps = len(fields["actions"])
        index = self.episodes
        is_drawn = np.random.default_rng([self.args.seed, 11, index]).random() < self.args.validation_fraction
        is_held_out = self.is_quest and world is not None and world >= QUEST_SEEDS - self.args.held_out_worlds
        added = {
            **fields,
            "frame": first_frame + np.arange(steps),
            "first_frame": np.full(steps, first_frame),
            "episode": np.full(steps, index),
            "segment": np.full(steps, segment),
            "has_next": np.arange(1, steps + 1) < num_frames,
            "validation": np.full(steps, is_drawn or is_held_out),
        }
        for name, column in self.columns.items():
            self.columns[name] = np.concatenate([column, np.asarray(added[name]).astype(column.dtype)])
        self.episodes += 1

    def add_files(self, episodes, frames):
        self.frames = frames
        first = 0
        for episode in episodes:
            fields = {name: getattr(episode, name) for name in FIELDS}
            self.add(first, episode.num_frames, episode.world, **fields)
            first += episode.num_frames

    def add_segment(self, path, first_episode=None):
        """What an actor has written: path.bin (frames) and path.npz (numbers). first_episode: as it was when it was
        first added."""
        with np.load(f"{path}.npz", allow_pickle=False) as file:
            numbers = dict(file)
        if first_episode is not None:
            self.episodes = first_episode
        start = self.frames.add(f"{path}.bin", int(numbers["lengths"].sum() + len(numbers["lengths"])))
        number = self.segments[-1]["number"] + 1 if self.segments else 0
        size = os.path.getsize(f"{path}.bin")
        entry = {
            "name": Path(path).name,
            "number": number,
            "first_episode": self.episodes,
            "first_frame": start,
            "bytes": size,
        }
        self.segments.append(entry)
        step = 0
        for length, world in zip(numbers["lengths"], numbers["worlds"]):
            fields = {name: numbers[name][step : step + length] for name in FIELDS}
            self.add(start, length + 1, world if world >= 0 else None, segment=number, **fields)
            start = start + int(length) + 1
            step = step + length
        return int(numbers["lengths"].sum())

    def drop_oldest(self, folder, most_bytes):
        """Deletes the oldest files of actors until the rest is small enough → which transitions stay (N,) bool, None if
        all do"""
        total = sum(entry["bytes"] for entry in self.segments)
        dropped = []
        while most_bytes and total > most_bytes and len(self.segments) > 1:
            entry = self.segments.pop(0)
            dropped.append(entry["number"])
            total -= entry["bytes"]
            self.frames.forget(entry["first_frame"])
            for suffix in (".bin", ".npz"):
                (folder / f"{entry['name']}{suffix}").unlink(missing_ok=True)
        if not dropped:
            return None
        kept = ~np.isin(self.columns["segment"], dropped)
        self.columns = {name: column[kept] for name, column in self.columns.items()}
        return kept

    def observations(self, indices, ahead=0):
        """→ (B, frame_stack, 84, 84, 3) uint8; at an episode's start its first picture stands in for the ones before
        it"""
        frames = self.columns["frame"][indices][:, None] + ahead - np.arange(self.args.frame_stack)[::-1]
        return torch.from_numpy(self.frames[np.maximum(frames, self.columns["first_frame"][indices][:, None])])

    def windows(self, indices):
        """The steps of their episode up to each of these, oldest first, for a GRU → (indices (B, T), real (B, T)).
        Short ones are filled up behind their end, where a GRU has passed all that counts."""
        since_start = self.columns["frame"][indices] - self.columns["first_frame"][indices]
        first = indices - np.minimum(since_start, self.args.recurrent - 1)
        steps = first[:, None] + np.arange(self.args.recurrent)
        return np.minimum(steps, indices[:, None]), steps <= indices[:, None]

    def tensor(self, name, indices, device):
        return torch.from_numpy(self.columns[name][indices]).to(device)


# ---------------------------------------------------------------------------------------------------------------- actor


@dataclasses.dataclass
class Job:
    """Episodes to play, one in each of `starts`: worlds of the quest, or names of start states."""

    kind: Literal["expert", "dagger", "sampled", "argmax"]
    starts: list
    seed: list  # of everything in it
    beta: float = 0.0  # the expert's share of the steps
    noise: float = 0.0
    weights: np.ndarray | None = None
    segment: str = ""  # where transitions are written to
    video: str = ""  # a GIF of the first episode
    evaluation: int | None = None  # the update whose weights are evaluated
    attempts: int = 1


@dataclasses.dataclass
class Played:
    """An episode that ended."""

    start: int | str
    milestones: dict  # {name: reached}
    at_start: int  # how many of them were behind the player when it began
    length: int
    episodic_return: float
    success: bool


@dataclasses.dataclass
class Result:
    episodes: list  # of Played
    steps: int
    seconds: float
    inference_time: float
    agreement: float  # how often the student would have done what the expert said
    value: float  # the largest output, on average: a Q-value in dqn_bc
    entropy: float
    expert_cost: dict  # sums since the actor began
    errors: np.ndarray | None = None  # (steps,) of DAgger: 1 - the student's probability of the label


def make_env(args):
    try:
        return PokemonEnv(
            args.rom_path or None,
            timing=parse_timing(args.timing),
            max_steps=args.max_steps,
            backend=args.backend,
            compass=args.compass,
            start_state=args.start_state or None,
            start_states=args.start_states or None,
        )
    except (ValueError, OSError) as error:
        raise BadInput(str(error)) from None


class ModelExpert:
    """A trained network as expert: it sees the same pictures as a student."""

    def __init__(self, path, deterministic=True, seed=0):
        agent, metadata = load_model(path)
        temperature = metadata["args"]["q_temperature"] if metadata["args"]["algo"] == "dqn_bc" else 1.0
        self.take(agent, name=Path(path).name, temperature=temperature, deterministic=deterministic, seed=seed)

    def take(self, agent, name, temperature, deterministic, seed):
        self.agent = agent
        self.name = name
        self.temperature = temperature
        self.deterministic = deterministic
        self.cost = {}
        self.generator = torch.Generator().manual_seed(seed)
        self.memory = Memory(agent)

    def reset(self):
        self.memory = Memory(self.agent)

    def act(self, env, observation, info):
        self.memory.see(resize(observation[None], SIZE)[0])
        actions, _ = choose_actions(
            self.agent,
            memories=[self.memory],
            temperature=self.temperature,
            generator=self.generator,
            deterministic=self.deterministic,
        )
        return actions[0]

    def ask(self, env, observation, info):
        action = self.act(env, observation, info)
        return lambda deadline: action


def is_model(spec):
    return Path(spec).suffix == ".zip" or Path(spec).is_dir()


def make_expert(args, answers=None):
    """answers: kept answers of a callable, which experts of one actor share"""
    if is_model(args.expert):
        return ModelExpert(args.expert)
    return load_expert(args.expert, args.expert_timeout, answers)


class Game:
    """One emulator's current episode."""

    def __init__(self, env, expert, number, start, noise, agent):
        self.env = env
        self.expert = expert
        self.number = number
        self.start = start
        self.noise = noise
        option = "quest_seed" if env.reader.game == "quest" else "start"
        self.observation, self.info = env.reset(options={option: start})
        self.at_start = self.info["milestones_reached"]
        expert.reset()
        self.memory = Memory(agent)
        self.rows = []
        self.small = []
        self.pictures = []
        self.errors = []  # of the student, where the expert was asked


class Actor:
    """Plays jobs: one episode from each of a list of starts, on several emulators at once. Knows nothing of processes:
    the same class runs inline. Nothing is kept from job to job, so a job's seed says all about it."""

    NOISE_LENGTH = 4.0  # random actions in a row, on average: single ones hardly leave the path

    def __init__(self, args, index):
        self.args = args
        self.agent = make_agent(vars(args)).eval()
        self.temperature = args.q_temperature if args.algo == "dqn_bc" else 1.0
        self.envs = [make_env(args) for _ in range(args.num_emulators)]
        answers = collections.OrderedDict()
        self.experts = [make_expert(args, answers) for _ in self.envs]

    def begin(self, seat, job, number):
        """The number-th episode of the job; its noise has dice of its own, so that it does not matter which emulator
        plays it."""
        noise = Noise(job.noise, self.NOISE_LENGTH, np.random.default_rng([*job.seed, number]))
        return Game(
            self.envs[seat],
            expert=self.experts[seat],
            number=number,
            start=job.starts[number],
            noise=noise,
            agent=self.agent,
        )

    @torch.no_grad()
    def play(self, job, is_over=lambda: False):
        """→ Result; transitions are in the file `job.segment` when this returns. None if `is_over` says so meanwhile"""
        begin = time.perf_counter()
        inference_time = 0.0
        steps = 0
        agreed = 0
        value = 0.0
        entropy = 0.0
        if job.weights is not None:
            from_flat(self.agent, torch.from_numpy(job.weights))
        seed = np.random.SeedSequence(job.seed)
        rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(int(seed.generate_state(1)[0]))
        asks = job.kind in ("expert", "dagger")
        waiting = collections.deque(range(len(job.starts)))
        seats = {seat: self.begin(seat, job, waiting.popleft()) for seat in range(min(len(self.envs), len(waiting)))}
        played = []
        while seats:
            if is_over():
                return None
            games = list(seats.values())
            for game, small in zip(games, resize(np.stack([game.observation for game in games]), SIZE)):
                game.memory.see(small)
                if job.segment:
                    game.small.append(small)
                if job.video and game.number == 0:
                    game.pictures.append(game.observation)
            actions = [None] * len(games)
            if job.kind != "expert":  # with beta 1, too: the agreement decides about the next beta
                clock = time.perf_counter()
                memories = [game.memory for game in games]
                actions, outputs = choose_actions(
                    self.agent,
                    memories=memories,
                    temperature=self.temperature,
                    generator=generator,
                    deterministic=job.kind == "argmax",
                )
                inference_time += time.perf_counter() - clock
                probs = (outputs / self.temperature).softmax(-1).numpy()
                value += float(outputs.max(-1).values.sum())
                entropy += float(torch.distributions.Categorical(logits=outputs / self.temperature).entropy().sum())
            labels = [-1] * len(games)
            if asks:
                experts = [game.expert for game in games]
                envs = [game.env for game in games]
                observations = [game.observation for game in games]
                infos = [game.info for game in games]
                labels = ask_all(
                    experts, envs=envs, observations=observations, infos=infos, timeout=self.args.expert_timeout
                )
            for row, (seat, game, action, label) in enumerate(zip(list(seats), games, actions, labels)):
                if isinstance(label, ExpertError):
                    print(f"{label} The episode is dropped.", flush=True)
                    self.replace(seats, seat, job, waiting)
                    continue
                agreed += action == label
                executed = label if asks and rng.random() < job.beta else action
                executed = game.noise.disturb(executed)
                game.observation, reward, terminated, truncated, game.info = game.env.step(executed)
                game.rows.append(
                    {"actions": label, "executed_actions": executed, "rewards": reward, "terminated": terminated}
                )
                if job.kind == "dagger":
                    game.errors.append(1.0 - probs[row, label])
                steps += 1
                if terminated or truncated:
                    self.finish(game, job)
                    played.append(game)
                    self.replace(seats, seat, job, waiting)
        if job.segment and played:
            self.write_segment(job.segment, played)
        costs = collections.Counter()
        for expert in self.experts:
            costs.update(expert.cost)
        return Result(
            episodes=[self.summary(game) for game in played],
            steps=steps,
            seconds=time.perf_counter() - begin,
            inference_time=inference_time,
            agreement=agreed / max(steps, 1),
            value=value / max(steps, 1),
            entropy=entropy / max(steps, 1),
            expert_cost=dict(costs),
            errors=np.array([error for game in played for error in game.errors], np.float32),
        )

    def replace(self, seats, seat, job, waiting):
        """The next episode of the job takes the emulator, if there is one."""
        del seats[seat]
        if waiting:
            seats[seat] = self.begin(seat, job, waiting.popleft())

    def finish(self, game, job):
        """The picture after the last action, and the GIF."""
        if job.segment:
            game.small.append(resize(game.observation[None], SIZE)[0])
        if game.pictures:
            save_gif(job.video, [*game.pictures, *[game.observation] * 12], milliseconds=110)

    def summary(self, game):
        return Played(
            start=game.start,
            milestones=game.info["milestones"],
            at_start=game.at_start,
            length=len(game.rows),
            episodic_return=float(sum(row["rewards"] for row in game.rows)),
            success=bool(game.rows[-1]["terminated"]),
        )

    def write_segment(self, path, played):
        def write_frames(temporary):
            with open(temporary, "wb") as file:
                for game in played:
                    file.write(np.stack(game.small).tobytes())

        def write_numbers(temporary):
            rows = [row for game in played for row in game.rows]
            columns = {name: np.array([row[name] for row in rows], kind) for name, kind in FIELDS.items()}
            worlds = [game.start if game.env.reader.game == "quest" else -1 for game in played]
            with open(temporary, "wb") as file:
                np.savez(
                    file, lengths=np.array([len(game.rows) for game in played]), worlds=np.array(worlds), **columns
                )

        write_atomically(f"{path}.bin", write_frames)
        write_atomically(f"{path}.npz", write_numbers)


# ------------------------------------------------------------------------------------------------------ actor processes
#
#    learner ── Job ──► actor process: Actor.play(job)
#            ◄── Result ──
#
# Frames cross by file, everything else is small. Each actor has a pipe of its own: one that is killed cannot leave a
# lock behind that others wait for. An emulator is foreign machine code that can take its process with it: that costs a
# job, not the run.


class ActorProcesses:
    """`submit` jobs; `poll` → [(job, result)] of those that ended, result None where the process died over it."""

    def __init__(self, count, make_player, args):
        self.context = mp.get_context("spawn")
        self.count = count
        self.make_player = make_player
        self.args = args
        self.backlog = collections.deque()
        self.deaths = []
        self.processes = {}
        self.pipes = {}
        self.jobs = {}
        for index in range(count):
            self.start(index)

    def start(self, index):
        self.pipes[index], theirs = self.context.Pipe()
        setup = (self.make_player, self.args, index, theirs)
        self.processes[index] = self.context.Process(target=actor_main, args=setup, name=f"actor-{index}", daemon=True)
        self.processes[index].start()
        theirs.close()  # so that its death is noticed here
        self.jobs[index] = None

    @property
    def pending(self):
        """Jobs that were submitted and have not come back"""
        return len(self.backlog) + sum(job is not None for job in self.jobs.values())

    def submit(self, job):
        self.backlog.append(job)
        self.feed()

    def feed(self):
        for index, job in self.jobs.items():
            if job is None and self.backlog:
                self.jobs[index] = self.backlog.popleft()
                with contextlib.suppress(OSError):  # it is dead: `poll` will see that
                    self.pipes[index].send(self.jobs[index])

    def replace(self, index, error):
        """An actor has died. A new one takes its place; at the third death within a minute the run ends."""
        process = self.processes[index]
        process.join()
        error = error or f"pid {process.pid}, exit code {process.exitcode}"
        last_line = error.strip().splitlines()[-1]
        self.deaths.append(time.monotonic())
        print(
            f"Actor process {index} died ({error if self.args.debug else last_line}): a new one takes its place.",
            flush=True,
        )
        if len(self.deaths) >= 3 and self.deaths[-1] - self.deaths[-3] < 60.0:
            raise RunFailed(
                f"Three actor processes died within a minute, the last one of: {last_line}. --debug shows more."
            )
        self.pipes[index].close()
        self.start(index)

    def poll(self, timeout=0.0):
        """Waits for the first result for at most `timeout` seconds."""
        ended = []
        ready = connection.wait(self.pipes.values(), timeout)
        for index, pipe in list(self.pipes.items()):
            if pipe not in ready:
                continue
            job = self.jobs[index]
            result = None
            error = ""
            with contextlib.suppress(EOFError, OSError):  # nobody holds the other end any more
                result, error = pipe.recv()
            if isinstance(error, BadInput):
                raise error
            self.jobs[index] = None
            if result is None:
                self.replace(index, error)
            if job is not None:
                ended.append((job, result))
        self.feed()
        return ended

    def close(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join()


def actor_main(make_player, args, index, pipe):
    """The life of an actor process: take a job, play it, hand over what happened. Ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the learner's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(getattr(args, "actor_threads", 1))
    os.nice(5)  # the learner's core is the learner's
    try:
        player = make_player(args, index)
        while True:
            pipe.send((player.play(pipe.recv()), ""))
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the learner has ended
        return
    except BadInput as error:
        pipe.send((None, error))
    except Exception:
        pipe.send((None, traceback.format_exc()))


OWN_FILES = ("rom_path", "start_state", "start_states")  # settings that name files which actors read


class TravellingActor:
    """An actor on a machine that does not share the learner's disk: what a job writes comes back with its result."""

    def __init__(self, args, index):
        self.actor = Actor(args, index)

    def play(self, job):
        """→ Result, {"segment.bin": its bytes, …}"""
        with tempfile.TemporaryDirectory(prefix="cleanrl_games-") as folder:
            segment = job.segment and f"{folder}/segment"
            video = job.video and f"{folder}/video.gif"
            result = self.actor.play(dataclasses.replace(job, segment=segment, video=video))
            return result, {path.name: path.read_bytes() for path in Path(folder).iterdir()}


class ClusterActors:
    """The same on a Ray cluster (--ray-address)."""

    def __init__(self, count, args):
        absolute = {name: str(Path(path).absolute()) for name in OWN_FILES if (path := getattr(args, name))}
        if is_model(args.expert):
            absolute["expert"] = str(Path(args.expert).absolute())
        make_player = functools.partial(TravellingActor, dataclasses.replace(args, **absolute))
        self.jobs = ray_actors.RayJobs(args.ray_address, count, make_player, args.actor_threads)
        self.count = count
        self.submit = self.jobs.submit
        self.close = self.jobs.close

    @property
    def pending(self):
        return self.jobs.pending

    def poll(self, timeout=0.0):
        ended = []
        for job, answer in self.jobs.poll(timeout):
            result, files = answer or (None, {})
            places = {"segment.bin": f"{job.segment}.bin", "segment.npz": f"{job.segment}.npz", "video.gif": job.video}
            for name, content in files.items():
                write_atomically(places[name], lambda path, content=content: path.write_bytes(content))
            ended.append((job, result))
        return ended


class InlineActor:
    """The same without processes: a job is done when it is submitted, or left when the run stops. For a debugger, and
    for runs that repeat to the bit."""

    def __init__(self, make_player, args, stopping):
        self.count = 1
        self.player = make_player(args, 0)
        self.ended = []
        self.pending = 0
        self.is_over = lambda: bool(stopping)

    def submit(self, job):
        if not self.is_over():
            self.ended.append((job, self.player.play(job, self.is_over)))
            self.pending += 1

    def poll(self, timeout=0.0):
        ended = self.ended
        self.ended = []
        self.pending = 0
        return ended

    def close(self):
        pass


def make_actors(args, count, stopping=()):
    """Where the episodes are played: in this process, in processes of this machine, or on a cluster"""
    if not count:
        return InlineActor(Actor, args, stopping)
    return ClusterActors(count, args) if args.ray_address else ActorProcesses(count, Actor, args)


# --------------------------------------------------------------------------------------------------------------- update


@dataclasses.dataclass
class Loss:
    """What an update is about: the scalar that is made smaller, its parts for the log, errors (B,) that steer what is
    drawn next"""

    total: torch.Tensor
    parts: dict
    errors: torch.Tensor
    accuracy: torch.Tensor


def draw(args, data, priorities, rng):
    """→ indices of the batch, and its importance weights (None where all count alike). Validation episodes are never
    drawn."""
    count = max(args.batch_size // (args.recurrent or 1), 1)  # a window of a GRU is as much work as its pictures
    if args.prioritized:
        return priorities.sample(rng, count, ~data.columns["validation"])
    teaching = np.flatnonzero(~data.columns["validation"])
    return teaching[rng.integers(len(teaching), size=count)], None


def bc_loss(outputs, labels):
    """Cross-entropy on the expert's actions. No weights make up for how often a state is drawn: its label is the same
    every time, so nothing is biased."""
    loss = F.cross_entropy(outputs, labels)
    errors = 1 - outputs.softmax(-1).gather(-1, labels[:, None]).squeeze(-1)
    accuracy = (outputs.argmax(-1) == labels).float().mean()
    return Loss(total=loss, parts={"policy_loss": loss}, errors=errors, accuracy=accuracy)


def dqn_loss(args, q, targets, known, played, labels, importance, distill):
    """Huber loss of Q(played) to its targets, plus the demonstration loss on the expert's actions.

    known (B,): whether there is a target; a recording that was cut off without its last picture has nothing to
    bootstrap from."""
    q_played = q.gather(-1, played[:, None]).squeeze(-1)
    errors = (q_played - targets) * known
    td_loss = (importance * F.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none")).mean()
    if args.demo_loss == "margin":
        demo = margin_loss(q, labels, args.margin)
    else:
        demo = F.cross_entropy(q / args.q_temperature, labels, reduction="none")
    demo_loss = (importance * demo).mean()
    loss = td_loss + distill * args.demo_weight * demo_loss
    parts = {
        "td_loss": td_loss,
        "demo_loss": demo_loss,
        "q_values": q_played.mean(),
        "q_values_std": q_played.std(unbiased=False),  # of a batch of one, too
        "q_max": q.max(),
    }
    accuracy = (q.argmax(-1) == labels).float().mean()
    return Loss(total=loss, parts=parts, errors=errors, accuracy=accuracy)


def read_windows(args, data, steps, forward, device, autocast):
    """steps (B, T) → outputs (B, T, 10) of a recurrent network"""
    obs = data.observations(steps.ravel()).to(device).view(*steps.shape, args.frame_stack, SIZE, SIZE, 3)
    with autocast():
        return forward(obs).float()


def batch_loss(args, data, indices, weights, networks, device, autocast, distill):
    """networks: {"forward": the learner's, "target": its older copy} → Loss of these transitions"""
    forward = networks["forward"]
    if args.recurrent:
        steps, real = data.windows(indices)
        outputs = read_windows(args, data=data, steps=steps, forward=forward, device=device, autocast=autocast)
        kept = torch.from_numpy(real).to(device)
        loss = bc_loss(outputs[kept], data.tensor("actions", steps, device)[kept])
        errors = torch.zeros(real.shape, device=device).masked_scatter(kept, loss.errors)
        ends = torch.from_numpy(real.sum(-1) - 1).to(device)
        return dataclasses.replace(loss, errors=errors.gather(-1, ends[:, None]).squeeze(-1))
    labels = data.tensor("actions", indices, device)
    obs = data.observations(indices).to(device, non_blocking=True)
    with autocast():
        outputs = forward(obs).float()
    if args.algo == "bc":
        return bc_loss(outputs, labels)
    has_next = data.columns["has_next"][indices]
    with torch.no_grad(), autocast():
        next_obs = data.observations(indices, ahead=has_next.astype(int)[:, None]).to(device)
        next_q = forward(next_obs).float()
        next_q_target = networks["target"](next_obs).float()
    terminated = data.tensor("terminated", indices, device)
    importance = torch.ones(len(indices), device=device) if weights is None else torch.from_numpy(weights).to(device)
    return dqn_loss(
        args,
        q=outputs,
        targets=td_targets(
            data.tensor("rewards", indices, device),
            terminated=terminated,
            next_q=next_q,
            next_q_target=next_q_target,
            gamma=args.gamma,
        ),
        known=data.tensor("has_next", indices, device) | terminated,
        played=data.tensor("executed_actions", indices, device),
        labels=labels,
        importance=importance,
        distill=distill,
    )


def gradient_step(agent, optimizer, scaler, loss, max_grad_norm):
    """→ norm of the gradient before it was clipped"""
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), max_grad_norm)
    scaler.step(optimizer)
    scaler.update()
    return grad_norm


def move_target(args, agent, target, update):
    """The target network becomes the network every target_network_frequency updates, and stays where it is in
    between."""
    if args.algo == "dqn_bc" and update % args.target_network_frequency == 0:
        target.load_state_dict(agent.state_dict())


@torch.no_grad()
def validate(args, agent, data, rng, device, count=256):
    """→ accuracy and loss on episodes that are never trained on; nothing without any"""
    validation = np.flatnonzero(data.columns["validation"])
    if not len(validation):
        return {}
    indices = validation[rng.integers(len(validation), size=max(count // (args.recurrent or 1), 1))]
    if args.recurrent:
        steps, real = data.windows(indices)
        outputs = read_windows(
            args, data=data, steps=steps, forward=agent, device=device, autocast=contextlib.nullcontext
        )[np.arange(len(steps)), real.sum(-1) - 1]
    else:
        outputs = agent(data.observations(indices).to(device))
    outputs = outputs / (args.q_temperature if args.algo == "dqn_bc" else 1.0)
    labels = data.tensor("actions", indices, device)
    return {
        "losses/validation_accuracy": float((outputs.argmax(-1) == labels).float().mean()),
        "losses/validation_loss": float(F.cross_entropy(outputs, labels)),
    }


# ---------------------------------------------------------------------------------------------- evaluation, checkpoints


def summarise(kind, episodes, expert_milestones=None):
    """Played episodes of one kind of evaluation → metrics: success with its 95 % interval (Wilson), milestones one by
    one, return, length. From several start states: the same for each of them."""
    counts = np.array([sum(episode.milestones.values()) for episode in episodes], float)
    rate, low, high = wilson(float(np.mean([episode.success for episode in episodes])), len(episodes))
    metrics = {
        f"eval/{kind}_success": rate,
        f"eval/{kind}_success_low": low,
        f"eval/{kind}_success_high": high,
        f"eval/{kind}_success_n": len(episodes),
        f"eval/{kind}_milestones": float(counts.mean()),
        f"eval/{kind}_milestones_error": float(1.96 * counts.std() / np.sqrt(len(episodes))),
        f"eval/{kind}_return": float(np.mean([episode.episodic_return for episode in episodes])),
        f"eval/{kind}_length": float(np.mean([episode.length for episode in episodes])),
    }
    if expert_milestones:
        metrics[f"eval/{kind}_milestones_of_expert"] = float(counts.mean()) / expert_milestones
    for name in episodes[0].milestones:
        metrics[f"milestones/{kind}_{name}"] = float(np.mean([episode.milestones[name] for episode in episodes]))
    for start in sorted({episode.start for episode in episodes if isinstance(episode.start, str) and episode.start}):
        gained = [sum(episode.milestones.values()) - episode.at_start for episode in episodes if episode.start == start]
        metrics[f"splits/{kind}_{start}_milestones"] = float(np.mean(gained))
        # how often the split's own milestone was reached
        metrics[f"splits/{kind}_{start}_next"] = float(np.mean(np.array(gained) >= 1))
    return metrics


def save_model(path, weights, args):
    metadata = {"game": "pokemon", "contract_hash": contract_hash()}
    models.save_model(path, weights=weights, statistics={}, metadata=metadata, args=args, script=__file__)


def load_model(path):
    """A run's folder or a model.zip → (agent, metadata)"""
    return models.load_agent(path, contract_hash(), make_agent)


# ----------------------------------------------------------------------------------------------- what a run starts from


def load_data(args):
    """→ episodes and their frames; none without a folder. The quest's own data is not another cartridge's."""
    if not args.expert_data_dir or (args.rom_path and args.expert_data_dir == QUEST_DATA):
        return [], Frames(SIZE)
    folder = Path(args.expert_data_dir)
    try:
        episodes = load_episodes(
            folder if folder.exists() else Path(__file__).parents[1] / folder, args.skip_bad_episodes
        )
        with progress_bar(sum(episode.num_frames for episode in episodes), "resizing") as bar:
            return open_undamaged(episodes, SIZE, progress=bar, skip_bad=args.skip_bad_episodes)
    except EpisodeError as error:
        raise BadInput(str(error)) from None


def timing_of(episodes):
    """→ frames held/released as the episodes say, "" if none does"""
    described = [episode.meta for episode in episodes if episode.is_described]
    return f"{described[0]['hold']}/{described[0]['release']}" if described else ""


def differences(env, episodes):
    """→ sentences about what the data was recorded with and the environment is not"""
    present = {
        "ROM": env.emulator.rom_sha1,
        "emulator backend": env.emulator.backend,
        "timing": f"{env.hold}/{env.release}",
        "start state": env.start_hash(),
        "compass": env.compass,
    }
    recorded = {name: collections.Counter() for name in present}
    for meta in (episode.meta for episode in episodes if episode.is_described):
        recorded["ROM"][meta["rom_sha1"]] += 1
        recorded["emulator backend"][meta["backend"]] += 1
        recorded["timing"][f"{meta['hold']}/{meta['release']}"] += 1
        recorded["start state"][meta.get("start_state", "")] += 1
        recorded["compass"][meta.get("compass", env.compass)] += 1
    return [
        f"{count} of {len(episodes)} episodes were recorded with the {name} {there or 'none'}, this run plays with "
        f"{present[name] or 'none'}: what is learnt may not fit."
        for name, counts in recorded.items()
        for there, count in counts.items()
        if there != present[name]
    ]


def find_starts(args, env):
    """→ where training episodes start, where those of evaluations do: worlds of the quest, or names of start states"""
    if env.reader.game == "quest":
        worlds = range(QUEST_SEEDS)
        return worlds[: -args.held_out_worlds], worlds[-args.held_out_worlds :]
    return list(env.starts), list(env.starts)


def check(args):
    if not args.expert_data_dir and not args.expert_episodes and not args.dagger_rounds:
        raise BadInput("There is nothing to learn from: give --expert-data-dir, --expert-episodes or --dagger-rounds.")
    if args.held_out_worlds >= QUEST_SEEDS:
        raise BadInput(
            f"--held-out-worlds should leave worlds on both sides: 1 to {QUEST_SEEDS - 1}, found "
            f"{args.held_out_worlds}."
        )
    if args.recurrent and args.algo == "dqn_bc":
        raise BadInput("--recurrent is for --algo bc: Q-learning here looks at single pictures and stacks of them.")
    if args.rom_path and args.expert == "scripted" and (args.expert_episodes or args.dagger_rounds):
        raise BadInput(
            "The scripted expert plays the quest only: give --expert module:callable, milestones:module or a model "
            "for this ROM."
        )
    parse_timing(args.timing)
    ray_actors.check_address(args.ray_address)
    if args.expert_episodes or args.dagger_rounds:
        make_expert(args)  # one that cannot be had would fail in every actor


# ------------------------------------------------------------------------------------------------ what the actors do


class ActorJobs:
    """What the actors are asked to play, and what becomes of it: transitions go into the data, evaluations into
    metrics, the best model into models/best.zip."""

    def __init__(self, args, run_dir, agent, data, priorities, state, eval_starts, stopping):
        self.args = args
        self.run_dir = run_dir
        self.agent = agent
        self.state = state
        self.data = data
        self.priorities = priorities
        self.eval_starts = eval_starts
        self.stopping = stopping
        self.played_dir = run_dir / "played"
        self.actors = make_actors(args, args.num_workers, stopping)
        self.evaluations = {}  # update → {"weights", "jobs" under way, "episodes" by kind, "stats"}

    def submit(self, kind, starts, pieces=0, video="", **more):
        """In pieces, by default one per actor, so that all of them work on it → how many"""
        parts = np.array_split(np.arange(len(starts)), min(pieces or self.actors.count, len(starts)))
        for part in parts:
            self.state["jobs"] += 1
            segment = str(self.played_dir / f"{self.state['jobs']:05d}") if more.get("segment") else ""
            chosen = [starts[index] for index in part]
            job = Job(kind, chosen, [self.args.seed, self.state["jobs"]], **{**more, "segment": segment}, video=video)
            self.actors.submit(job)
            video = ""
        return len(parts)

    def start_evaluation(self, count, pieces=0):
        """Sampled and argmax play of the present weights in held-out worlds, each world equally often."""
        entry = {
            "weights": copy.deepcopy(self.agent.state_dict()),
            "jobs": 0,
            "episodes": collections.defaultdict(list),
            "stats": {},
        }
        self.evaluations[self.state["update"]] = entry
        starts = [self.eval_starts[index % len(self.eval_starts)] for index in range(count)]
        for kind in ("sampled", "argmax"):
            video = self.run_dir / "videos" / f"{self.state['update']}_{kind}.gif" if self.args.capture_video else ""
            if video:
                video.parent.mkdir(exist_ok=True)
            entry["jobs"] += self.submit(
                kind, starts, pieces, str(video), weights=to_flat(self.agent).numpy(), evaluation=self.state["update"]
            )

    def finish_evaluation(self, number):
        """→ metrics of what has been played of it; keeps the best model"""
        entry = self.evaluations.pop(number)
        metrics = {"eval/update": number, **entry["stats"]}
        for kind, found in entry["episodes"].items():
            metrics |= summarise(kind, found, self.state["expert_milestones"])
        if "eval/sampled_success" not in metrics:
            return {}
        self.state["distill"] = distill_coefficient(metrics["eval/sampled_milestones"], self.state["expert_milestones"])
        score = metrics["eval/sampled_success"], metrics["eval/sampled_milestones"]
        if score > (self.state["best_success"], self.state["best_milestones"]):
            self.state["best_success"], self.state["best_milestones"] = score
            save_model(self.run_dir / "models" / "best.zip", entry["weights"], self.args)
        return metrics

    def take_result(self, job, result):
        """What an actor has finished: transitions into the data, evaluations into metrics."""
        if result is None or (not result.episodes and job.evaluation is not None):
            if job.evaluation is None and job.kind != "expert":
                return {}
            if job.attempts == 3:
                raise RunFailed(f"The emulator died three times over the same job: {job.kind} from {job.starts}.")
            self.actors.submit(dataclasses.replace(job, attempts=job.attempts + 1))
            return {}
        metrics = {
            "stats/actor_steps_per_s": result.steps / result.seconds,
            "stats/inference_time": result.inference_time,
        }
        metrics |= {f"expert/{name}": float(value) for name, value in result.expert_cost.items()}
        if not result.episodes:
            return metrics
        milestones = float(np.mean([sum(episode.milestones.values()) for episode in result.episodes]))
        if job.segment:
            metrics["charts/transitions_added"] = self.data.add_segment(job.segment)
            self.state["expert_episodes"] += len(job.starts) if job.kind == "expert" else 0
            # bc draws by the very error that the actor has measured; a TD error is not known yet
            is_known = job.kind == "dagger" and self.args.algo == "bc"
            self.priorities.grow(len(self.data), result.errors if is_known else None)
            kept = self.data.drop_oldest(self.played_dir, self.args.max_played_gb * 1e9)
            if kept is not None:
                self.priorities.keep(kept)
        if job.kind == "dagger":
            self.state["agreement"] = result.agreement
            metrics |= {
                "dagger/agreement": result.agreement,
                "dagger/milestones": milestones,
                "dagger/beta": job.beta,
                "charts/episodic_return": float(np.mean([episode.episodic_return for episode in result.episodes])),
                "charts/episodic_length": float(np.mean([episode.length for episode in result.episodes])),
            }
        if job.kind == "expert" and not job.segment:
            self.state["expert_milestones"] = milestones
            self.state["expert_measured"] = True
            metrics["eval/expert_milestones"] = milestones
        if job.evaluation in self.evaluations:
            entry = self.evaluations[job.evaluation]
            entry["episodes"][job.kind] += result.episodes
            entry["stats"] |= {f"eval/{job.kind}_value": result.value, f"eval/{job.kind}_entropy": result.entropy}
            entry["jobs"] -= 1
            if not entry["jobs"]:
                metrics |= self.finish_evaluation(job.evaluation)
        return metrics

    def take_results(self, timeout=0.0):
        metrics = {}
        for job, result in self.actors.poll(timeout):
            metrics |= self.take_result(job, result)
        return metrics

    def final_evaluation(self, seconds_so_far):
        """→ metrics. What is still being played is not waited for, the last evaluation is: until --max-minutes or the
        first Ctrl-C. A part of it that is cut off does not count: its successes would have ended first."""

        def is_late():
            return bool(self.args.max_minutes) and seconds_so_far() > 60 * self.args.max_minutes

        if not self.args.num_workers:
            self.actors.is_over = lambda: bool(self.stopping) or is_late()
        else:
            self.actors.close()
            self.actors = make_actors(
                self.args,
                self.args.num_workers if self.args.ray_address else max(self.args.num_workers, os.cpu_count()),
            )
        self.evaluations.clear()
        self.start_evaluation(
            self.args.final_eval_episodes, pieces=-(-self.args.final_eval_episodes // self.args.num_emulators)
        )
        number = self.state["update"]
        total = self.evaluations[self.state["update"]]["jobs"]
        metrics = {}
        left = total
        while self.evaluations and not self.stopping:
            if is_late():
                count = sum(len(found) for found in self.evaluations[number]["episodes"].values())
                print(f"--max-minutes is over: the last evaluation ends with {count} episodes played.", flush=True)
                break
            metrics |= self.take_results(timeout=1.0)
            if self.evaluations and self.evaluations[number]["jobs"] != left:
                left = self.evaluations[number]["jobs"]
                print(f"last evaluation: {total - left} of {total} parts played", flush=True)
        if self.evaluations:
            metrics |= self.finish_evaluation(number)
        return metrics


def final_minutes(args):
    """→ what the last evaluation has of --max-minutes: a tenth, but a minute at the least, and half at the most"""
    return min(max(0.1 * args.max_minutes, 1.0), 0.5 * args.max_minutes) if args.final_eval_episodes else 0.0


if __name__ == "__main__":
    start_time = time.time()
    args = parse_args(Args, PRESETS)

    # --- everything is checked before anything is written
    check(args)
    checkpoint = (
        load_checkpoint(args.resume, contract_hash(), models.network_hash(Path(__file__).read_text()))
        if args.resume
        else None
    )
    run_dir = choose_run_folder(args)
    episodes, frames = load_data(args)
    args.timing = args.timing or timing_of(episodes)
    if checkpoint and checkpoint["episodes_hash"] != episodes_hash(episodes):
        raise BadInput(
            f"The episodes in {args.expert_data_dir or 'no folder'} are not those that the run in {args.resume} began "
            f"with: give the same "
            "--expert-data-dir, or start a new run."
        )
    env = make_env(args)
    for sentence in differences(env, episodes):
        print(sentence, flush=True)
    train_starts, eval_starts = find_starts(args, env)
    is_quest = env.reader.game == "quest"
    env.close()
    device, autocast, scaler = set_up(args)
    agent = make_agent(vars(args)).to(device)
    target = copy.deepcopy(agent)
    optimizer = torch.optim.AdamW(agent.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)
    networks = {"forward": maybe_compile(args, agent, device), "target": target}
    rng = np.random.default_rng(args.seed)
    data = Demonstrations(args, is_quest)
    priorities = Priorities()
    data.add_files(episodes, frames)
    state = {
        "update": 0, "seconds": 0.0, "rounds": 0, "next_round": 0, "jobs": 0, "best_success": -1.0,
        "best_milestones": -1.0,
        "expert_episodes": 0, "expert_measured": False, "expert_milestones": 0.0, "agreement": 0.0, "distill": 1.0,
    }  # fmt: skip
    if checkpoint:
        restore(checkpoint, agent=agent, target=target, optimizer=optimizer, scaler=scaler)
        for entry in checkpoint["segments"]:
            try:
                data.add_segment(run_dir / "played" / entry["name"], entry["first_episode"])
            except (OSError, ValueError, KeyError, EpisodeError) as error:
                raise BadInput(
                    f"What actors played is missing or damaged: {run_dir / 'played' / entry['name']} ({error})."
                ) from None
        data.episodes = checkpoint["episodes"]
        state |= checkpoint["state"]
        priorities.values = checkpoint["priorities"].numpy()
        torch.set_rng_state(checkpoint["torch_rng"])
        rng.bit_generator.state = json.loads(checkpoint["rng"])
    priorities.grow(len(data))
    seconds_before = state["seconds"]
    make_run_folder(args, __file__)
    (run_dir / "played").mkdir(exist_ok=True)
    model_dir = run_dir / "models"
    logger = Logger(args, run_dir, state["update"])
    stopping = stop_on_signals()

    def seconds_so_far():
        return seconds_before + time.time() - start_time

    def progress():
        """How much of the training is done; the last evaluation has its share of the time, too."""
        minutes = args.max_minutes - final_minutes(args)
        return max(state["update"] / args.total_training_steps, seconds_so_far() / 60 / minutes if minutes else 0.0)

    def save_all():
        state["seconds"] = seconds_so_far()
        whole = {
            "agent": agent.state_dict(), "target": target.state_dict(), "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "segments": [{name: entry[name] for name in ("name", "first_episode")} for entry in data.segments],
            "episodes": data.episodes,
            "episodes_hash": episodes_hash(episodes), "state": dict(state),
            "priorities": torch.from_numpy(priorities.values.copy()),
            "torch_rng": torch.get_rng_state(), "rng": json.dumps(rng.bit_generator.state),
            "contract_hash": contract_hash(),
            "network_hash": models.network_hash(Path(__file__).read_text()),
        }  # fmt: skip
        save_checkpoint(run_dir, whole)
        save_model(run_dir / "model.zip", agent.state_dict(), args)

    jobs = ActorJobs(
        args,
        run_dir=run_dir,
        agent=agent,
        data=data,
        priorities=priorities,
        state=state,
        eval_starts=eval_starts,
        stopping=stopping,
    )
    losses = []
    metrics = {}
    clock = time.perf_counter()
    wait_time = 0.0
    learn_time = 0.0
    is_due = False
    is_consistent = True

    try:
        missing = args.expert_episodes - state["expert_episodes"]  # all of them, unless it was interrupted before
        if missing > 0:
            starts = [train_starts[index] for index in rng.integers(len(train_starts), size=missing)]
            jobs.submit("expert", starts, pieces=-(-len(starts) // 16), beta=1.0, noise=args.noise, segment=True)
        if is_quest and args.expert == "scripted" and not state["expert_measured"]:
            # what there is to reach in the worlds of the evaluation
            jobs.submit("expert", eval_starts[: args.eval_episodes], beta=1.0)
        while not stopping and progress() < 1.0:
            # --- the actors: the next round, an evaluation that is due, results
            wait_start = time.perf_counter()
            if (
                state["rounds"] < args.dagger_rounds
                and state["update"] >= state["next_round"]
                and not jobs.actors.pending
            ):
                state["rounds"] += 1
                state["next_round"] = state["update"] + args.dagger_frequency
                starts = [train_starts[index] for index in rng.integers(len(train_starts), size=args.dagger_episodes)]
                beta = mixing(args.dagger_mixing, args.dagger_beta, state["rounds"], state["agreement"])
                jobs.submit("dagger", starts, weights=to_flat(agent).numpy(), beta=beta, segment=True)
            is_due = is_due or bool(
                args.eval_frequency and state["update"] and state["update"] % args.eval_frequency == 0
            )
            if is_due and not jobs.evaluations:
                is_due = False
                jobs.start_evaluation(args.eval_episodes)
            # an inline actor has them already, so that no checkpoint falls between a job and its result
            metrics |= jobs.take_results()
            can_learn = not data.columns["validation"].all()
            if not can_learn:
                metrics |= jobs.take_results(timeout=1.0)
            wait_time += time.perf_counter() - wait_start
            if not can_learn:
                continue

            # --- one update
            learn_start = time.perf_counter()
            is_consistent = False
            lr = anneal(args.learning_rate, args.learning_rate_final, progress())
            optimizer.param_groups[0]["lr"] = lr
            distill = state["distill"] if args.distill else 1.0
            mb_inds, weights = draw(args, data, priorities, rng)
            loss = batch_loss(
                args,
                data=data,
                indices=mb_inds,
                weights=weights,
                networks=networks,
                device=device,
                autocast=autocast,
                distill=distill,
            )
            grad_norm = gradient_step(
                agent, optimizer=optimizer, scaler=scaler, loss=loss.total, max_grad_norm=args.max_grad_norm
            )
            state["update"] += 1
            if args.prioritized:
                priorities.update(mb_inds, loss.errors.detach().cpu().numpy())
            move_target(args, agent, target, state["update"])
            names = ("loss", "grad_norm", "accuracy", *loss.parts)
            losses.append(torch.stack([loss.total, grad_norm, loss.accuracy, *loss.parts.values()]).detach())
            check_finite(losses[-1:])
            is_consistent = True
            learn_time += time.perf_counter() - learn_start

            # --- logs, validation, checkpoint
            update = state["update"]
            if update % args.log_frequency == 0 or metrics or progress() >= 1.0:
                metrics |= dict(zip((f"losses/{name}" for name in names), torch.stack(losses).mean(0).tolist()))
                if update % args.log_frequency == 0:
                    metrics |= validate(args, agent=agent, data=data, rng=rng, device=device)
                metrics |= {
                    "charts/SPS": len(losses) * args.batch_size / (time.perf_counter() - clock),
                    "charts/learning_rate": lr,
                    "charts/transitions": len(data),
                    "charts/dagger_rounds": state["rounds"],
                    "charts/distill_coeff": distill,
                    "stats/learn_time": learn_time,
                    "stats/wait_time": wait_time,
                    "stats/queue_size": jobs.actors.pending,
                }
                logger.write(metrics, update, progress())
                losses = []
                metrics = {}
                clock = time.perf_counter()
                learn_time = 0.0
                wait_time = 0.0
            if update % args.save_frequency == 0:
                save_all()
                save_model(model_dir / f"{update}.zip", agent.state_dict(), args)
                keep_models(run_dir, args.keep_models, model_dir / "best.zip")
        if not stopping:
            save_all()
            save_model(model_dir / "final.zip", agent.state_dict(), args)
            if args.final_eval_episodes and (metrics := jobs.final_evaluation(seconds_so_far)):
                logger.write(metrics, state["update"], 1.0)
    finally:
        jobs.actors.close()
        logger.close()
        if is_consistent:  # not in the middle of an update, whose half would be neither the old nor the new network
            save_all()
        say_how_to_go_on(run_dir)
