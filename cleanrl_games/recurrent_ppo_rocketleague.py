"""Recurrent PPO with self-play on Rocket League (RocketSim's physics): from the first touch of the ball to 3v3.

    python cleanrl_games/recurrent_ppo_rocketleague.py --num-workers 2

    ┌ actor (process × num_workers, inline, or Ray) ┐   slot numbers   ┌ learner ──────────────────────────────┐
    │ arenas in RocketSim, batched inference, one   │ ───────────────► │ GAE, PPO over chunks of L steps, each │
    │ memory per car, emptied when a game ends      │  2 shared-memory │ unrolled from its stored state        │
    └───────────────────────▲───────────────────────┘  slots per actor │ curriculum, league, rating matches    │
                            └── Broadcast: weights by version, stage   └──────────────────┬────────────────────┘
                                and rewards, past selves, their chances ◄─────────────────┘

An actor plays the same number of cars in every stage, so that 1v1, 2v2 and 3v3 fill the same buffers.
"""

import contextlib
import csv
import dataclasses
import difflib
import json
import math
import os
import signal
import sys
import time
import traceback
from functools import cache
from itertools import pairwise
from multiprocessing import connection
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn as nn

from cleanrl_games.envs.rocketleague import NUM_ACTIONS, NUM_OBS, RocketLeagueVecEnv, contract
from cleanrl_games.envs.rocketleague.evaluation import Player, touch_metrics
from cleanrl_games.envs.rocketleague.match import play_kickoffs
from cleanrl_games.envs.rocketleague.scripted import PINNED, PLAYERS, ScriptedPlayer
from cleanrl_games.envs.rocketleague.states import check_team_sizes
from cleanrl_games.runtime import central_inference, models, ray_actors, shared_memory
from cleanrl_games.runtime.checkpoints import load_checkpoint, restore, save_checkpoint, say_how_to_go_on
from cleanrl_games.runtime.device import maybe_compile, set_up, to_device
from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.runtime.files import choose_run_folder, keep_models, make_run_folder, script_source
from cleanrl_games.runtime.logger import Logger
from cleanrl_games.runtime.metrics import loss_metrics, result_metrics, score_metrics, time_metrics, wilson
from cleanrl_games.runtime.settings import Count, Fraction, NonNegative, Positive, Size, parse_args
from cleanrl_games.runtime.shared_memory import (
    Broadcast,
    copy_with_weights,
    from_flat,
    load_members,
    share_all,
    to_flat,
)
from cleanrl_games.runtime.stopping import check_finite, progress, stop_on_signals, until_stopped

# Named sets of values; a flag or a config file overrides them. `fast`, the default, is what the defaults below say: it
# learns on two CPU cores. `field` is what public bots are trained with on a GPU: a wider network, large batches, small
# steps.
PRESETS = {
    "fast": {},
    "field": {
        "rnn_size": 512, "num_agents": 384, "rollout_steps": 256, "minibatch_size": 49_152, "update_epochs": 2,
        "learning_rate": 2e-4,
        "learning_rate_final": 8e-5,
    },
    "aerial": {"aerial_focus": 0.4},
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of the curriculum."""

    name: str
    team_sizes: dict[int, float]  # cars per team: the share of all cars that plays so
    states: dict[str, float]  # how games begin, with weights
    seconds: float  # a game longer than this is truncated …
    idle_seconds: float  # … and one in which nobody touches the ball for so long
    events: float  # scale of what happens in a match: goals, shots, saves, demolitions
    dense: float  # scale of all other rewards
    zero_sum: bool
    team_spirit: float
    opponents: bool  # whether past selves and scripted players are met at all
    terms: dict[str, float]  # the reward components that count, with factors; empty = all
    # the share of cars that touch, of games with a goal, of rating matches won against `rule`
    measure: Literal["touch", "goal", "win"]


# Boost and the like would be paid before the ball is ever hit; the way to the ball and a mere touch are paid more than
# later.
DRIVING = {"touch": 3.0, "touch_strength": 1.0, "touch_height": 1.0, "speed_to_ball": 3.0, "face_ball": 3.0}
MATCH_STATES = {"kickoff": 3, "random": 1, "goal_approach": 1, "near_ball": 1}
STAGES = (
    Stage(
        name="touch",
        team_sizes={1: 1.0},
        states={"near_ball": 2, "random": 1, "kickoff": 1},
        seconds=20,
        idle_seconds=10,
        events=0.0,
        dense=1.0,
        zero_sum=False,
        team_spirit=0.0,
        opponents=False,
        terms=DRIVING,
        measure="touch",
    ),
    Stage(
        name="score",
        team_sizes={1: 1.0},
        states={"goal_approach": 2, "near_ball": 1, "random": 1, "kickoff": 1},
        seconds=60,
        idle_seconds=15,
        events=1.0,
        dense=1.0,
        zero_sum=True,
        team_spirit=0.0,
        opponents=False,
        terms={},
        measure="goal",
    ),
    Stage(
        name="1v1",
        team_sizes={1: 1.0},
        states=MATCH_STATES,
        seconds=120,
        idle_seconds=20,
        events=1.0,
        dense=0.5,
        zero_sum=True,
        team_spirit=0.0,
        opponents=True,
        terms={},
        measure="win",
    ),
    Stage(
        name="2v2",
        team_sizes={1: 0.4, 2: 0.6},
        states=MATCH_STATES,
        seconds=180,
        idle_seconds=20,
        events=1.0,
        dense=0.3,
        zero_sum=True,
        team_spirit=0.3,
        opponents=True,
        terms={},
        measure="win",
    ),
    Stage(
        name="3v3",
        # Most of a run is spent here. With equal numbers of arenas a sixth of the cars would play 1v1.
        team_sizes={1: 0.4, 2: 0.3, 3: 0.3},
        states=MATCH_STATES,
        seconds=300,
        idle_seconds=30,
        events=1.0,
        dense=0.2,
        zero_sum=True,
        team_spirit=0.6,
        opponents=True,
        terms={},
        measure="win",
    ),
)
STAGE_NAMES = tuple(stage.name for stage in STAGES)
ANNEAL_UPDATES = 200  # over which the rewards change from the last stage's to this one's
SCALE_ROLLOUTS = 20  # of the last stage's, which the scale of rewards remembers when the next begins
REWARD_CLIP = 10.0  # of rewards after division by the std of discounted returns
KICKOFFS_AT_ONCE = 200  # in an evaluation, some 2 MB each
# Of actor processes: where cores are few the learner comes first. With two actors on two cores a rollout is then two
# updates behind instead of four.
ACTOR_NICE = 10
RATING_OPPONENTS = 2  # past selves to play rating matches with at each evaluation, drawn as opponents are


@dataclasses.dataclass
class Args:
    # --- experiment
    exp_name: str = Path(__file__).stem
    """the name of this experiment"""
    preset: Literal["fast", "field", "aerial"] = "fast"
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
    sharing: Literal["auto", "shared_memory", "file_system"] = "auto"
    """where rollouts and weights are shared: /dev/shm, or unnamed files in the temporary folder (auto = when /dev/shm
    is too small)"""

    # --- environment
    env_id: str = "rocketleague"
    """name of the game in the run's folder"""
    mesh_dir: str = ""
    """folder of the arena's collision meshes; empty = $RS_COLLISION_MESHES, else fetched once"""
    generated_meshes: bool = False
    """play in an arena made from its measures (corners and ramps are approximate)"""
    action_repeat: Size = 8
    """physics ticks (of 1/120 s) that an action is held"""
    reward_mode: Literal["sparse", "dense", "hybrid"] = "hybrid"
    """preset of reward weights"""
    reward_weights: tuple[str, ...] = ()
    """weights that override the preset, as in touch=0.5"""
    state_file: str = ""
    """situations to begin a third of the games from, as tools/rocketleague_states.py writes them"""

    # --- curriculum
    stage: Literal["touch", "score", "1v1", "2v2", "3v3"] = "touch"
    """where the curriculum begins"""
    final_stage: Literal["touch", "score", "1v1", "2v2", "3v3"] = "3v3"
    """where it stays"""
    transition_win_rate: Fraction = 0.5
    """the next stage begins when the lower bound of this stage's measure passes this (95 %, Wilson)"""
    transition_games: Size = 100
    """over the last so many games, and not with fewer"""
    aerial_focus: NonNegative = 0.0
    """share of games that begin with a ball in the air; touches above the ground are then paid as well"""

    # --- actors
    num_workers: Count = 2
    """actor processes; 0 = inline in the learner's process, deterministic"""
    num_agents: Size = 192
    """cars per actor, a multiple of 12; the stage's team sizes decide how many arenas that is"""
    rollout_steps: Size = 64
    """decisions per rollout, a multiple of sequence_length"""
    inference: Literal["auto", "worker", "central"] = "auto"
    """who computes the actors' policy: each for itself, or one process on the learner's device for all; auto = central
    on CUDA only"""
    ray_address: str = ""
    """run the actors on this Ray cluster ("auto", "127.0.0.1:6379", …)"""

    # --- algorithm
    total_timesteps: Size = 100_000_000
    """agent-steps to train for"""
    max_minutes: NonNegative = 0.0
    """stop after this many minutes, 0 = no limit"""
    learning_rate: Positive = 7e-4
    """Adam's step size"""
    learning_rate_final: NonNegative = 5e-5
    """its value at the end of the run (linear)"""
    gamma: Fraction = 0.99
    """discount"""
    gae_lambda: Fraction = 0.95
    """lambda of generalised advantage estimation"""
    minibatch_size: Size = 1536
    """agent-steps per gradient step"""
    update_epochs: Size = 1
    """passes over a rollout"""
    norm_adv: bool = True
    """normalise advantages per minibatch"""
    clip_coef: Positive = 0.2
    """PPO's clip"""
    ent_coef: NonNegative = 0.01
    """entropy bonus"""
    ent_coef_final: NonNegative = 0.002
    """its value at the end of the run (linear)"""
    vf_coef: NonNegative = 0.5
    """weight of the value loss"""
    max_grad_norm: Positive = 0.5
    """gradient clip"""
    recurrent: Literal["lstm", "gru", "none"] = "lstm"
    """the policy's memory; none = an MLP of as many layers"""
    rnn_size: Size = 256
    """width of the encoder and of the memory"""
    sequence_length: Size = 16
    """steps through which gradients flow back (truncated BPTT); the state before each chunk is stored"""

    # --- self-play
    self_share: Fraction = 0.7
    """share of games against the current self in stages with opponents"""
    opponent_sampler: Literal["uniform", "elo_weighted", "recent_weighted", "difficulty_adjusted"] = (
        "difficulty_adjusted"
    )
    """how the other opponents are drawn: past selves and the scripted players"""
    scripted_share: Fraction = 0.7
    """of the games against other opponents at least this share is against scripted players, the likelier they win the
    more often"""
    opponent_update_freq: Count = 200
    """updates between snapshots of the agent for the league, 0 = none"""
    sampler_temperature: Positive = 0.5
    """the higher, the more even the chances of the opponents"""
    target_win_rate: Fraction = 0.5
    """difficulty_adjusted prefers opponents against whom this is expected"""
    elo_window: Positive = 200.0
    """elo_weighted: a distance in Elo that counts as one unit"""
    min_elo_diff: NonNegative = 300.0
    """past selves that are so much weaker than the agent leave the league; scripted players never do"""
    league_size: Size = 32
    """members of the league; beyond that the easiest leaves"""
    opponents_at_once: Size = 3
    """league members an actor plays in one rollout (one batched forward pass each)"""

    # --- evaluation and checkpoints
    eval_frequency: Count = 400
    """updates between evaluations against the scripted players, each with a model in the run's folder; the end of a
    stage is one too. 0 = only at the run's end"""
    eval_episodes: Count = 50
    """kickoffs per evaluation and opponent"""
    final_eval_episodes: Count = 0
    """kickoffs against `rule` at the end of the run in each team size, sampled and with the likeliest actions; 0 =
    none"""
    eval_seconds: Positive = 60.0
    """a rating match without a goal ends as a tie after so long"""
    checkpoint_frequency: Size = 100
    """updates between checkpoints"""
    capture_video: bool = False
    """a GIF of a kickoff against `rule` with each evaluation, so at least one of each stage"""
    keep_models: Count = 50
    """the newest so many models/*.zip of a run are kept, and the best; 0 = all"""


# ------------------------------------------------------------------------------------------------------------- network


# --8<-- [start:rocketleague_network]
def linear(fan_in, fan_out, std=2**0.5):
    layer = nn.Linear(fan_in, fan_out)
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Encoder, memory, and two heads on their sum: what needs no memory has a short way to the heads. The environment
    scales observations."""

    def __init__(self, recurrent, size):
        super().__init__()
        self.recurrent, self.size = recurrent, size
        self.state_size = {"lstm": 2, "gru": 1, "none": 0}[recurrent] * size
        self.encoder = linear(NUM_OBS, size)
        if recurrent == "none":
            self.memory = linear(size, size)
        else:
            self.memory = {"lstm": nn.LSTM, "gru": nn.GRU}[recurrent](size, size)
            for weight in (self.memory.weight_ih_l0, self.memory.weight_hh_l0):
                for gate in weight.data.split(size):
                    nn.init.orthogonal_(gate)
            nn.init.zeros_(self.memory.bias_ih_l0)
            nn.init.zeros_(self.memory.bias_hh_l0)
        if recurrent == "lstm":
            nn.init.ones_(self.memory.bias_ih_l0.data[size : 2 * size])  # remembers until it has learned to forget
        self.policy, self.critic = linear(size, NUM_ACTIONS, 0.01), linear(size, 1, 1.0)
        # On the ground 18 of 42 actions jump: a car that draws evenly is in the air nine tenths of the time and learns
        # little about driving.
        self.policy.bias.data -= 2.5 * torch.from_numpy(contract.ACTION_TABLE[:, contract.CONTROL_NAMES.index("jump")])

    def unroll(self, obs, state, keep):
        """obs (L, B, 201), state before the first step (B, S), keep (L, B, 1): 0 where a new game begins → features (L,
        B, H), state

        torch's memories cannot be emptied in mid-sequence, so they run from one step at which a game begins to the
        next: in seven parts, say, of a minibatch of 96 × 16. An LSTM and its gradient written out by hand, in one go,
        saved 0 to 4 % of an update."""
        encoded = torch.relu(self.encoder(obs))
        if self.recurrent == "none":
            return encoded + torch.relu(self.memory(encoded)), state
        begins = (keep[1:] == 0).flatten(1).any(1).nonzero().flatten() + 1
        outputs = []
        with torch.autocast(obs.device.type, enabled=False):  # a memory adds up its own rounding
            for first, last in pairwise([0, *begins.tolist(), len(obs)]):
                part, state = self.remember(encoded[first:last].float(), state * keep[first])
                outputs.append(part)
        return encoded + torch.cat(outputs), state

    def remember(self, inputs, state):
        """The memory over steps of one game each: (L, B, H), (B, S) → outputs (L, B, H), state"""
        if self.recurrent == "gru":
            outputs, hidden = self.memory(inputs, state[None])
            return outputs, hidden[0]
        hidden, cell = state[None].split(self.size, -1)
        outputs, (hidden, cell) = self.memory(inputs, (hidden.contiguous(), cell.contiguous()))
        return outputs, torch.cat([hidden[0], cell[0]], 1)

    def logprobs(self, features, masks):
        """(…, H), (…, 90) → log-probs of all actions, in fp32"""
        logits = self.policy(features).float()
        return logits.masked_fill(~masks, torch.finfo(logits.dtype).min).log_softmax(-1)

    def step(self, obs, state):
        """One decision of B cars: (B, 201), (B, S) → features (B, H), state after it"""
        features, state = self.unroll(obs[None], state, obs.new_ones(1, len(obs), 1))
        return features[0], state

    def act(self, obs, masks, state, generator=None, deterministic=False):
        """→ actions (B,), their log-probs, values, states after them"""
        features, state = self.step(obs, state)
        logprobs = self.logprobs(features, masks)
        if deterministic:
            actions = logprobs.argmax(-1)
        # the first action whose cumulated probability passes a random number; the factor keeps it below 1 when rounded
        else:
            cumulated = logprobs.exp().cumsum(-1)
            dice = torch.rand(len(obs), 1, generator=generator, device=obs.device) * (1 - 1e-6) * cumulated[:, -1:]
            actions = (cumulated <= dice).sum(-1)
        return actions, logprobs.gather(-1, actions[:, None]).squeeze(-1), self.critic(features).squeeze(-1), state

    def value(self, obs, state):
        """(B, 201), (B, S) → V, (B,)"""
        return self.critic(self.step(obs, state)[0]).squeeze(-1)


def make_agent(settings):
    return Agent(settings["recurrent"], settings["rnn_size"])


# --8<-- [end:rocketleague_network]


# ----------------------------------------------------------------------------------------------------------- pure maths


def gae(rewards, values, next_value, terminated, truncated, bootstrap, gamma, gae_lambda):
    """All (T, B), next_value (B,). After a goal nothing more is worth anything, a truncated game is worth V(its last
    observation)."""
    advantages = torch.zeros_like(rewards)
    last = torch.zeros_like(next_value)
    for t in reversed(range(len(rewards))):
        following = values[t + 1] if t + 1 < len(rewards) else next_value
        following = torch.where(truncated[t], bootstrap[t], torch.where(terminated[t], 0.0, following))
        delta = rewards[t] + gamma * following - values[t]
        last = delta + gamma * gae_lambda * last * ~(terminated[t] | truncated[t])
        advantages[t] = last
    return advantages


def ppo_losses(logprob, old_logprob, advantages, values, returns, clip_coef):
    logratio = logprob - old_logprob
    ratio = logratio.exp()
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip_coef, 1 + clip_coef)).mean()
    value_loss = 0.5 * (values - returns).square().mean()
    with torch.no_grad():
        stats = torch.stack(
            [-logratio.mean(), (ratio - 1 - logratio).mean(), ((ratio - 1).abs() > clip_coef).float().mean()]
        )
    return policy_loss, value_loss, stats


def minibatches(indices, size):
    """In random order, in parts of nearly equal size: a lone row left over would have no standard deviation to divide
    by."""
    return indices[torch.randperm(len(indices))].tensor_split(math.ceil(len(indices) / size))


def anneal(start, final, update, updates):
    return start + (final - start) * min(update / max(updates, 1e-8), 1.0)


# --8<-- [start:reward_scale]
class RunningMeanStd:
    """Mean and variance of all that was seen, merged batch by batch (Chan et al.), in double precision."""

    def __init__(self, size):
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.var = torch.ones(size, dtype=torch.float64)
        self.count = 1e-4

    def update(self, batch):
        # About the first row, which makes constants exact; batch.mean(0) and batch.var(0) take 3 times as long.
        centred = batch - batch[0]
        count = len(batch)
        shift = centred.mean(0).double()
        mean = batch[0] + shift
        var = (centred.square().mean(0).double() - shift.square()).clamp(min=0)
        delta = mean - self.mean
        total = self.count + count
        self.mean = self.mean + delta * count / total
        self.var = (self.var * self.count + var * count + delta.square() * self.count * count / total) / total
        self.count = total


class RewardScale:
    """Divides rewards by the std of discounted returns, as gymnasium's NormalizeReward does, here over the rollouts of
    several actors and over the learner's own rows only. Sums run on from one rollout of an actor to the next:
    discounted for the scale, plain to log."""

    def __init__(self, *shape):
        """shape: (actors, …) as one step of an actor's rewards"""
        self.rms = RunningMeanStd(1)
        self.discounted = torch.zeros(shape)
        self.episodic = torch.zeros(shape)

    def __call__(self, index, rewards, ended, trained, gamma):
        """One rollout of actor `index`, all (T, …) → scaled rewards, the returns of its own episodes that ended"""
        sums = torch.empty_like(rewards)
        returns = []
        for t in range(len(rewards)):
            self.discounted[index] = gamma * self.discounted[index] + rewards[t]
            self.episodic[index] += rewards[t]
            sums[t] = self.discounted[index]
            returns.append(self.episodic[index][ended[t] & trained[t]])
            self.discounted[index] *= ~ended[t]
            self.episodic[index] *= ~ended[t]
        self.rms.update(sums[trained][:, None])
        return rewards / math.sqrt(float(self.rms.var) + 1e-8), torch.cat(returns)

    def start_anew(self, index):
        """All episodes of this actor begin anew."""
        self.discounted[index] = 0.0
        self.episodic[index] = 0.0

    def state_dict(self):
        return {"return_rms": vars(self.rms), "discounted": self.discounted, "episodic": self.episodic}

    def load_state_dict(self, state):
        vars(self.rms).update(state["return_rms"])
        if state["discounted"].shape == self.discounted.shape:  # else the number of actors has changed
            self.discounted.copy_(state["discounted"])
            self.episodic.copy_(state["episodic"])


# --8<-- [end:reward_scale]


def opponent_chances(elos, ages, elo, args):
    """Chances of opponents with these Elos and ages (0 = the newest) for an agent of this Elo: softmax of −distance /
    temperature"""
    elos = np.asarray(elos, float)
    ages = np.asarray(ages, float)
    distance = {
        "uniform": np.zeros(len(elos)),
        "elo_weighted": np.abs(elos - elo) / args.elo_window,
        "recent_weighted": ages / max(ages.max(), 1),  # at temperature 1 the oldest is e times rarer than the newest
        # An opponent who never loses teaches as little as one who always does.
        "difficulty_adjusted": np.square((expected_score(elo, elos) - args.target_win_rate) / 0.2),
    }[args.opponent_sampler]
    chances = np.exp((distance.min() - distance) / args.sampler_temperature)
    return chances / chances.sum()


def stage_passed(scores, args):
    """Whether the curriculum goes on: surely, by the stage's measure over its last games"""
    recent = scores[-args.transition_games :]
    return (
        len(recent) >= args.transition_games
        and wilson(float(np.mean(recent)), len(recent))[1] >= args.transition_win_rate
    )


def stage_rewards(args, stage, update):
    """Weights of the reward components, `update` updates into stage number `stage`"""
    before = STAGES[max(stage - 1, 0)]
    now = STAGES[stage]
    share = 1.0 if stage == STAGE_NAMES.index(args.stage) else anneal(0.0, 1.0, update, ANNEAL_UPDATES)
    scales = [
        np.where(np.isin(REWARD_NAMES, EVENTS), one.events, one.dense)
        * [one.terms.get(name, 0.0) if one.terms else 1.0 for name in REWARD_NAMES]
        for one in (before, now)
    ]
    weights = reward_weights(args.reward_mode, args.reward_weights)
    if args.aerial_focus:
        weights[REWARD_NAMES.index("touch_height")] += 2.0 * args.aerial_focus
    return weights * (scales[0] + (scales[1] - scales[0]) * share).astype(np.float32)


# -------------------------------------------------------------------------------------------------------------- rewards


def measured(name):
    """A reward that the environment has measured already: see contract.REWARD_TERMS"""
    column = contract.TERM_INDEX[name]
    return lambda env, info: info["terms"][:, column]


# A reward is a function of the environment after a step, and of its info → one number per car (A,). One of your own
# reads `env.cars`, `env.balls` and their `old_` versions, whose columns have names in
# envs/rocketleague/observations.py:
#     def high(env, info): return np.float32(env.cars[:, POSITION + 2] > 500)
# It takes its place in REWARDS and a weight in a preset.
REWARDS = {name: measured(name) for name in contract.TERM_NAMES}
REWARD_NAMES = tuple(REWARDS)
EVENTS = (
    "goal",
    "concede",
    "scorer",
    "shot",
    "save",
    "demo",
    "demoed",
)  # what happens in a match; all others are dense
# What an opponent should prevent: of these one team pays what the other gets, where a stage is zero-sum. Goals pay both
# sides already.
ZERO_SUM = ("touch_strength", "ball_speed_to_goal", "shot", "save", "demo")
# Presets of --reward-mode. Conceding costs a fifth less than scoring brings, so that attacking is worth its risk.
REWARD_PRESETS = {
    "sparse": {"goal": 10.0, "concede": -8.0, "save": 2.0},
    "dense": {
        "goal": 10.0, "concede": -8.0, "scorer": 1.0, "shot": 1.0, "save": 2.0, "demo": 1.0, "demoed": -1.0,
        "touch": 1.0,
        "touch_strength": 4.0, "touch_height": 1.0, "speed_to_ball": 0.1, "ball_speed_to_goal": 0.2, "face_ball": 0.02,
        "air": 0.003,
        "pickup": 0.1, "boost_gained": 0.5, "boost_kept": 0.005, "boost_lost": -0.2,
    },
    "hybrid": {
        "goal": 10.0, "concede": -8.0, "touch": 0.1, "touch_strength": 2.0, "speed_to_ball": 0.02, "face_ball": 0.003,
        "air": 0.001,
        "ball_speed_to_goal": 0.1, "boost_gained": 0.3, "boost_kept": 0.005, "save": 2.0, "demo": 1.0, "demoed": -1.0,
    },
}  # fmt: skip


def reward_weights(mode, overrides=()):
    """A preset and `name=value` overrides → (R,) float32"""
    chosen = dict(REWARD_PRESETS[mode])
    for text in overrides:
        name, _, value = text.partition("=")
        if name not in REWARDS:
            close = difflib.get_close_matches(name, REWARD_NAMES, n=1)
            raise ValueError(
                f"unknown reward {name!r}"
                + (f", did you mean {close[0]!r}?" if close else f" ({', '.join(REWARD_NAMES)}).")
            )
        try:
            chosen[name] = float(value)
        except ValueError:
            raise ValueError(f"a reward's weight is written name=value, as in touch=0.5; found {text!r}.") from None
        if not math.isfinite(chosen[name]):
            raise ValueError(f"a reward's weight must be finite; found {text!r}.")
    return np.array([chosen.get(name, 0.0) for name in REWARD_NAMES], np.float32)


def mix_rewards(terms, weights, env, stage):
    """(1 − spirit) · own + spirit · the team's mean − the opponents' mean of the zero-sum rewards. terms (A, R) →
    (A,)"""
    paid = (terms * weights).astype(np.float64)
    own = paid.sum(1)
    size = env.sizes[env.agent_arena]
    team = 2 * env.agent_arena + env.agent_team
    charged = paid[:, np.isin(REWARD_NAMES, ZERO_SUM)].sum(1) if stage.zero_sum else np.zeros(len(own))
    team_total, team_charge = (np.bincount(team, values) for values in (own, charged))
    mixed = (1 - stage.team_spirit) * own + stage.team_spirit * team_total[team] / size - team_charge[team ^ 1] / size
    return mixed.astype(np.float32)


# --------------------------------------------------------------------------------------------------------------- actors

# Who plays the other side of an arena: a serial number of the league. The scripted players have the first ones, in
# their own order.
NOBODY = -2
SELF = -1
FIRST_MEMBER = len(PLAYERS)
KINDS = ("self", *PLAYERS, "past")
MAX_EPISODES = 4096  # per rollout
# Of each game that ended: the kind of opponent, its serial number, the score and length, the share of own cars that
# touched the ball, whether a learner scored
EPISODE_FIELDS = ("kind", "opponent", "score", "length", "touched", "scored")
# Of the rollout: steps_in_stage counts those before it, the times are seconds
ROLLOUT_NUMBERS = (
    "version",
    "stage",
    "steps_in_stage",
    "num_episodes",
    "rollout_time",
    "inference_time",
    "simulator_time",
)


def arena_sizes(num_agents, shares):
    """Team sizes of the arenas that hold so many cars, of which each size gets about its share"""
    sizes = []
    left = num_agents
    for size in sorted(shares, reverse=True):
        arenas = left // (2 * size) if size == min(shares) else max(round(num_agents * shares[size] / (2 * size)), 1)
        sizes += [size] * arenas
        left -= 2 * size * arenas
    if left or num_agents % 12:
        raise ValueError(
            f"--num-agents is {num_agents}: it must be a multiple of 12, so that every stage's teams come out even."
        )
    return tuple(sizes)


def make_env(args, stage, seed):
    states = dict(stage.states)
    if args.state_file:
        states["file"] = sum(stage.states.values()) / 2
    if args.aerial_focus:
        states["aerial"] = sum(states.values()) * args.aerial_focus / (1 - args.aerial_focus)
    sizes = arena_sizes(args.num_agents, stage.team_sizes)
    return RocketLeagueVecEnv(
        len(sizes),
        team_sizes=sizes,
        seed=seed,
        action_repeat=args.action_repeat,
        states=states,
        state_file=args.state_file,
        max_seconds=stage.seconds,
        no_touch_seconds=stage.idle_seconds,
        mesh_dir=args.mesh_dir,
        generated_meshes=args.generated_meshes,
    )


def make_storage(args):
    """One rollout: T steps of A cars."""
    shape = (args.rollout_steps, args.num_agents)
    chunks = args.rollout_steps // args.sequence_length
    state_size = {"lstm": 2, "gru": 1, "none": 0}[args.recurrent] * args.rnn_size
    return {
        "obs": torch.zeros(*shape, NUM_OBS),
        "masks": torch.zeros(*shape, NUM_ACTIONS, dtype=torch.bool),
        "states": torch.zeros(chunks, args.num_agents, state_size),  # before the first step of each chunk
        "actions": torch.zeros(shape, dtype=torch.int64),
        "logprobs": torch.zeros(shape),
        "values": torch.zeros(args.rollout_steps + 1, args.num_agents),
        "bootstrap": torch.zeros(shape),  # V(last observation) of truncated games
        "rewards": torch.zeros(shape),
        "terminated": torch.zeros(shape, dtype=torch.bool),
        "truncated": torch.zeros(shape, dtype=torch.bool),
        "trained": torch.zeros(shape, dtype=torch.bool),  # whether the learner's own policy acted here
        # what REWARDS gave, summed over the learner's rows
        "terms": torch.zeros(len(REWARD_NAMES), dtype=torch.float64),
        **{f"episode_{name}": torch.zeros(MAX_EPISODES) for name in EPISODE_FIELDS},
        **{name: torch.zeros(1, dtype=torch.float64) for name in ROLLOUT_NUMBERS},
    }


def make_broadcast(args, num_parameters):
    """What the actors are told. The scripted players have places of their own behind those of the past selves."""
    numbers = {"stage": 1, "self_share": 1, "reward_weights": len(REWARD_NAMES)}
    return Broadcast(
        args.sharing,
        num_parameters=num_parameters,
        num_members=args.league_size,
        numbers=numbers,
        member_fields=("chance",),
        extra_places=FIRST_MEMBER,
    )


class Actor:
    """Plays games and writes them down. Knows nothing of processes or Ray: the same class runs inline and anywhere
    else."""

    def __init__(self, args, index):
        self.args = args
        self.index = index
        self.seed = args.seed * 1000 + index
        self.stage = -1
        self.rng = np.random.default_rng(self.seed)
        self.generator = torch.Generator().manual_seed(self.seed)
        if args.num_workers:
            os.nice(ACTOR_NICE)
        self.agent = self.policy = make_agent(vars(args)).eval()
        self.bots = {serial: ScriptedPlayer(name, self.seed) for serial, name in enumerate(PLAYERS)}
        self.members = {}  # serial number of a past self → its policy, copied when first needed
        self.opponent = np.full(0, NOBODY)  # of each arena; there are none before the first stage

    def enter_stage(self, stage):
        self.stage = stage
        self.steps = 0
        self.env = make_env(self.args, STAGES[stage], self.seed)
        self.opponent = np.full(self.env.num_arenas, NOBODY)
        self.side = np.zeros(self.env.num_arenas, np.int64)  # which team the learner is, unless it is both
        self.memory = torch.zeros(self.env.num_agents, self.agent.state_size)  # of whoever plays the row
        self.touched = np.zeros(self.env.num_agents, bool)  # in this game so far
        self.actions = np.full(self.env.num_agents, contract.NO_OP, np.int64)

    def pull_weights(self, broadcast):
        """Takes the newest weights, stage and rewards, and draws the opponents of this rollout → (version, share of
        self, opponents)"""
        if self.args.inference == "central":
            self.policy = CentralPolicy(broadcast.channels[self.index])
        with broadcast.lock:
            from_flat(self.agent, broadcast.weights)
            version = broadcast.version
            stage = int(broadcast.numbers["stage"])
            self_share = float(broadcast.numbers["self_share"])
            weights = broadcast.numbers["reward_weights"].numpy()
            self.reward_weights = np.float32(weights)
            serials, chances = (broadcast.members[name].numpy().copy() for name in ("policy_id", "chance"))
            opponents = []
            if chances.sum() > 0 and self_share < 1:
                drawn = self.rng.choice(serials, self.args.opponents_at_once, p=chances / chances.sum())
                opponents = np.unique(drawn).astype(int).tolist()
            wanted = set(opponents) - set(self.bots)
            self.members = load_members(
                self.members, agent=self.agent, broadcast=broadcast, wanted=wanted, in_use=self.opponent.tolist()
            )
        if stage != self.stage:
            self.enter_stage(stage)
        return version, self_share, opponents

    def choose_opponents(self, arenas, self_share, opponents):
        """Only ever called for games that start: an opponent stays until its game ends."""
        for i in arenas:
            alone = not opponents or self.rng.random() < self_share
            self.opponent[i] = SELF if alone else opponents[self.rng.integers(len(opponents))]
            self.side[i] = self.rng.integers(2)

    def rows(self):
        """Rows of the learner's policy, and of each opponent."""
        opponent = self.opponent[self.env.agent_arena]
        own = (opponent == SELF) | (self.env.agent_team == self.side[self.env.agent_arena])
        return np.flatnonzero(own), {
            int(who): np.flatnonzero(~own & (opponent == who)) for who in np.unique(opponent[~own])
        }

    @torch.no_grad()
    def rollout(self, broadcast, storage):
        """Plays rollout_steps decisions of all cars into `storage`, with the newest weights."""
        start = time.perf_counter()
        inference_time = 0.0
        simulator_time = 0.0
        num_episodes = 0
        version, self_share, opponents = self.pull_weights(broadcast)
        env = self.env
        s = SimpleNamespace(**storage)
        self.choose_opponents(np.flatnonzero(self.opponent == NOBODY), self_share, opponents)
        own, others = self.rows()
        s.terms.zero_()
        for t in range(self.args.rollout_steps):
            obs = s.obs[t].copy_(torch.from_numpy(env.obs))
            masks = s.masks[t].copy_(torch.from_numpy(env.masks))
            if t % self.args.sequence_length == 0:
                s.states[t // self.args.sequence_length] = self.memory
            clock = time.perf_counter()
            # most rollouts have no other opponents: then nothing need be gathered
            index = own if others else slice(None)
            s.actions[t, index], s.logprobs[t, index], s.values[t, index], self.memory[index] = self.policy.act(
                obs[index], masks[index], self.memory[index], self.generator
            )
            self.actions[own] = s.actions[t].numpy()[own]
            for who, rows in others.items():
                if who in self.bots:
                    self.bots[who].act(env.obs, env.masks, rows, self.actions)
                else:
                    actions, _, _, self.memory[rows] = self.members[who].act(
                        obs[rows], masks[rows], self.memory[rows], self.generator
                    )
                    self.actions[rows] = actions.numpy()
            inference_time += time.perf_counter() - clock

            s.trained[t] = False
            s.trained[t, own] = True
            clock = time.perf_counter()
            _, _, _, terminated, truncated, info = env.step(self.actions)
            simulator_time += time.perf_counter() - clock
            terms = np.stack([reward(env, info) for reward in REWARDS.values()], 1)  # (A, R)
            s.rewards[t] = torch.from_numpy(mix_rewards(terms, self.reward_weights, env, STAGES[self.stage]))
            s.terms += torch.from_numpy(terms[own].sum(0, dtype=np.float64))
            self.touched |= info["terms"][:, contract.TERM_INDEX["touch"]] > 0
            s.terminated[t] = torch.from_numpy(terminated[env.agent_arena])
            s.truncated[t] = torch.from_numpy(truncated[env.agent_arena])
            s.bootstrap[t] = 0.0
            if truncated.any():
                rows = np.flatnonzero(truncated[env.agent_arena])
                s.bootstrap[t, rows] = self.policy.value(torch.from_numpy(info["final_obs"][rows]), self.memory[rows])
            ended = np.flatnonzero(terminated | truncated)
            if len(ended):
                count = min(len(ended), MAX_EPISODES - num_episodes)
                for name, column in self.results(ended, info, own).items():
                    storage[f"episode_{name}"][num_episodes : num_episodes + count] = torch.from_numpy(column[:count])
                num_episodes += count
                over = (terminated | truncated)[env.agent_arena]
                self.memory[over] = 0.0
                self.touched[over] = False
                self.choose_opponents(ended, self_share, opponents)
                own, others = self.rows()
        s.values[-1] = self.policy.value(torch.from_numpy(env.obs), self.memory)
        s.version[0] = version
        s.stage[0] = self.stage
        s.steps_in_stage[0] = self.steps
        s.num_episodes[0] = num_episodes
        s.rollout_time[0] = time.perf_counter() - start
        s.inference_time[0] = inference_time
        s.simulator_time[0] = simulator_time
        self.steps += self.args.rollout_steps

    def results(self, ended, info, own):
        """EPISODE_FIELDS of the arenas that ended, as the learner sees them."""
        goal = info["goal"][ended]
        arena = self.env.agent_arena[own]
        score = np.where(goal == 0, 0.5, (goal < 0) == self.side[ended])
        cars = np.bincount(arena, minlength=self.env.num_arenas)[ended]
        touched = np.bincount(arena, self.touched[own], self.env.num_arenas)[ended] / cars
        scored = np.where(self.opponent[ended] == SELF, goal != 0, score == 1.0)
        kind = np.minimum(self.opponent[ended], FIRST_MEMBER) - SELF
        columns = {"kind": kind, "opponent": self.opponent[ended], "score": score, "length": info["length"][ended]}
        return {name: np.float32(column) for name, column in (columns | {"touched": touched, "scored": scored}).items()}

    def state_dict(self):
        """All that the next rollout depends on, so that an inline run resumes exactly."""
        if self.stage < 0:
            return None
        arrays = {
            **self.env.state_dict(),
            "opponent": self.opponent,
            "side": self.side,
            "touched_in_game": self.touched,
        }
        bots = {who: json.dumps(bot.rng.bit_generator.state) for who, bot in self.bots.items()}
        return shared_memory.actor_state(self, arrays) | {
            "stage": self.stage,
            "steps": self.steps,
            "memory": self.memory.clone(),
            "bots": bots,
        }

    def load_state_dict(self, state):
        self.enter_stage(state["stage"])
        arrays = shared_memory.load_actor_state(self, state)
        self.env.load_state_dict(arrays)
        self.opponent[:], self.side[:], self.touched[:] = (
            arrays[name] for name in ("opponent", "side", "touched_in_game")
        )
        self.memory.copy_(state["memory"])
        self.steps = state["steps"]
        for who, dice in state["bots"].items():
            self.bots[who].rng.bit_generator.state = json.loads(dice)


# ------------------------------------------------------------------------------------------------------ actor processes


# --8<-- [start:actor_processes]
#
#    learner ── number of a free slot ──► actor process: Actor.rollout(broadcast, slot)
#            ◄── number of a full slot ──
#
# Rollouts lie in shared memory, two slots per actor, so that it fills one while the learner reads the other. Only
# integers cross a pipe. Each actor has a pipe of its own: one that is killed cannot leave a lock behind that others
# wait for.


def make_rollouts(args, broadcast, stopping, actor=None):
    """Yields (actor's index, its rollout, rollouts that wait) until the list `stopping` has something in it. A rollout
    is the actor's again when the next is asked for.

    actor: the one that plays in this process, if there are no others."""
    if actor:
        return inline_rollouts(args, broadcast, stopping, actor)
    if args.ray_address:
        return ray_actors.ray_rollouts(
            args, broadcast=broadcast, stopping=stopping, actor_class=Actor, make_storage=make_storage
        )
    return process_rollouts(args, broadcast, stopping)


def inline_rollouts(args, broadcast, stopping, actor):
    storage = make_storage(args)
    while not stopping:
        actor.rollout(broadcast, storage)
        yield 0, storage, 0


def process_rollouts(args, broadcast, stopping):
    context = mp.get_context("spawn")
    slots = [[share_all(make_storage(args), args.sharing) for _ in range(2)] for _ in range(args.num_workers)]
    workers = {}
    pipes = {}
    deaths = []

    def start(index):
        pipes[index], theirs = context.Pipe()
        setup = (args, index, broadcast, slots[index], theirs)
        workers[index] = context.Process(target=actor_main, args=setup, name=f"actor-{index}", daemon=True)
        workers[index].start()
        theirs.close()  # so that its death is noticed here
        for slot in range(len(slots[index])):
            pipes[index].send(slot)

    def replace(index, error):
        """An actor has died. A new one takes its place; at the third death within a minute the run ends."""
        if isinstance(error, BadInput):
            raise error
        workers[index].join()
        error = error or f"pid {workers[index].pid}, exit code {workers[index].exitcode}"
        deaths.append(time.monotonic())
        last_line = error.strip().splitlines()[-1]
        print(
            f"Actor process {index} died ({error if args.debug else last_line}): a new one takes its place.", flush=True
        )
        if len(deaths) >= 3 and deaths[-1] - deaths[-3] < 60.0:
            raise RunFailed(
                f"Three actor processes died within a minute, the last one of: {last_line}. --debug shows more."
            )
        start(index)

    try:
        for index in range(args.num_workers):
            start(index)
        while not stopping:
            ready = connection.wait(pipes.values(), timeout=1.0)
            for index, pipe in list(pipes.items()):
                if pipe not in ready:
                    continue
                try:
                    slot, error = pipe.recv()
                    if slot is not None:
                        yield index, slots[index][slot], len(ready) - 1
                        pipe.send(slot)
                except (EOFError, OSError):  # nobody holds the other end any more
                    slot = None
                    error = ""
                if slot is None:
                    replace(index, error)
    finally:
        for worker in workers.values():
            worker.terminate()
        for worker in workers.values():
            worker.join()


def actor_main(args, index, broadcast, slots, pipe):
    """The life of an actor process: take a free slot, fill it, say so. Ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the learner's to handle
    torch.set_num_threads(args.actor_threads)
    try:
        actor = Actor(args, index)
        while True:
            slot = pipe.recv()
            actor.rollout(broadcast, slots[slot])
            pipe.send((slot, ""))
    except (EOFError, ConnectionError):  # the learner has ended
        return
    except BadInput as error:
        pipe.send((None, error))
    except Exception:
        pipe.send((None, traceback.format_exc()))


# --8<-- [end:actor_processes]


# ---------------------------------------------------------------------------------------------------- central inference


class CentralPolicy:
    """An actor's policy when one process computes for all actors (--inference central): the same calls, answered
    there."""

    def __init__(self, channel):
        self.channel = channel

    def act(self, obs, masks, state, generator=None):
        return self.channel.ask(obs, masks, state)

    def value(self, obs, state):
        everything = torch.ones(len(obs), NUM_ACTIONS, dtype=torch.bool)
        return self.channel.ask(obs, everything, state)[2]


def make_channels(args):
    """→ the actors' sides and the inference process's: `act`'s arguments one way, its results the other, a row for each
    car"""
    storage = make_storage(args)

    def rows(names):
        return [torch.zeros_like(storage[name][0]) for name in names]

    questions = ("obs", "masks", "states")
    answers = ("actions", "logprobs", "values", "states")
    return central_inference.make_channels(args.num_workers, lambda: rows(questions), lambda: rows(answers))


def inference_main(args, broadcast, device, channels):
    """The life of the inference process: the newest weights for every batch, so that each log-prob is one version's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the learner's to handle
    torch.set_num_threads(args.actor_threads)
    agent = make_agent(vars(args)).to(device).eval()
    version = -1
    generator = torch.Generator(device).manual_seed(args.seed)

    @torch.no_grad()
    def act(obs, masks, states):
        nonlocal version
        with broadcast.lock:
            if broadcast.version != version:
                version = broadcast.version
                from_flat(agent, broadcast.weights)
        return agent.act(obs, masks, states, generator)

    central_inference.serve(channels, act, device)


# -------------------------------------------------------------------------------------------------------------- ratings
#
# A rating is a dict: name, elo, mu, sigma, games, wins. Elo says who is stronger; openskill also says how sure that is,
# and counts a team as its players. A goal is rated and a tie is not: were it worth half, one who keeps far from the
# ball would be rated towards its opponent, however strong that is.

ELO_K = 16.0
TIE = 0.5
GAME_COLUMNS = (
    "global_step",
    "stage",
    "team_size",
    "player",
    "opponent",
    "side",
    "score",
    "seconds",
    "player_elo",
    "opponent_elo",
)


@cache
def skill_model():
    from openskill.models import PlackettLuce  # takes a while, and actors never rate

    return PlackettLuce()


def new_rating(name, elo):
    return {"name": name, "elo": elo, "mu": skill_model().mu, "sigma": skill_model().sigma, "games": 0, "wins": 0.0}


def expected_score(elo, opponent_elo):
    return 1.0 / (1.0 + 10.0 ** ((np.asarray(opponent_elo) - elo) / 400.0))


def rate_match(player, opponent, scores, team_size):
    """Moves both ratings by these scores of `player`, goal by goal; scripted players keep their Elo, and a tie (0.5)
    moves nothing → [(Elo, opponent's Elo)] after each game"""
    model = skill_model()
    course = []
    for score in scores:
        if score == TIE:
            course.append((player["elo"], opponent["elo"]))
            continue
        change = ELO_K * (float(score) - float(expected_score(player["elo"], opponent["elo"])))
        teams = [[model.rating(side["mu"], side["sigma"]) for _ in range(team_size)] for side in (player, opponent)]
        rated = model.rate(teams, scores=[float(score), 1 - float(score)])
        for side, team, sign, points in zip((player, opponent), rated, (1, -1), (score, 1 - score)):
            if side["name"] not in PLAYERS:
                side["elo"] += sign * change
            side["mu"] = team[0].mu
            side["sigma"] = team[0].sigma
            side["games"] += 1
            side["wins"] += float(points)
        course.append((player["elo"], opponent["elo"]))
    return course


def append_games(path, global_step, stage, team_size, player, opponent, scores, seconds, course):
    """One line per game. Even games are played as blue, odd ones as orange, as `play_kickoffs` has it."""
    with open(path, "a", newline="") as file:
        writer = csv.writer(file)
        if not file.tell():
            writer.writerow(GAME_COLUMNS)
        for i, (score, time, elos) in enumerate(zip(scores, seconds, course)):
            side = "orange" if i % 2 else "blue"
            numbers = [float(score), round(float(time), 2), *(round(elo, 1) for elo in elos)]
            writer.writerow([global_step, stage, team_size, player, opponent, side, *numbers])


def match_settings(args):
    return {
        "action_repeat": args.action_repeat,
        "max_seconds": args.eval_seconds,
        "no_touch_seconds": args.eval_seconds,
        "mesh_dir": args.mesh_dir,
        "generated_meshes": args.generated_meshes,
    }


def rating_match(args, agent, rating, opponent, opponent_rating, team_size, seed, folder, global_step, stage):
    """Kickoffs with sides swapped, against a scripted player (by name) or another agent → scores

    Both ratings move; every game is a line in the folder's games.csv, and one against `rule` a GIF under
    --capture-video."""
    other = ScriptedPlayer(opponent, seed) if isinstance(opponent, str) else Player(opponent, seed + 1)
    video = folder / "videos" / f"{global_step}_{stage}.gif" if args.capture_video and opponent == "rule" else ""
    if video:
        video.parent.mkdir(exist_ok=True)
    names = rating["name"], opponent_rating["name"]
    scores, lengths = play_kickoffs(
        Player(agent, seed),
        opponent=other,
        num_kickoffs=args.eval_episodes,
        seed=seed,
        team_size=team_size,
        video=video,
        names=names,
        **match_settings(args),
    )
    course = rate_match(rating, opponent_rating, scores, team_size)
    seconds = lengths * args.action_repeat / contract.TICK_RATE
    append_games(
        folder / "games.csv",
        global_step=global_step,
        stage=stage,
        team_size=team_size,
        player=names[0],
        opponent=names[1],
        scores=scores,
        seconds=seconds,
        course=course,
    )
    return scores


# --------------------------------------------------------------------------------------------------------------- league


class League:
    """Opponents: the scripted players, whose ratings are pinned, and past selves. Ratings move in rating matches
    only."""

    def __init__(self, args, broadcast):
        self.args = args
        self.broadcast = broadcast
        self.next_serial = FIRST_MEMBER
        self.members = [
            {**new_rating(name, PINNED[1][name]), "serial": serial, "row": -1} for serial, name in enumerate(PLAYERS)
        ]
        self.agent = new_rating("agent", PINNED[1]["random"])  # which an untrained network plays like

    def join(self, name, flat):
        """A snapshot gets the agent's ratings. When the league is full, the weakest past self leaves."""
        if len(self.members) == self.args.league_size + FIRST_MEMBER:
            self.members.remove(min(self.members[FIRST_MEMBER:], key=lambda member: member["elo"]))
        row = self.broadcast.store(flat, [member["row"] for member in self.members])
        self.members.append(
            {**self.agent, "serial": self.next_serial, "row": row, "name": name, "games": 0, "wins": 0.0}
        )
        self.next_serial += 1

    def prune(self):
        """Past selves far below the agent leave; the scripted players stay whatever happens, or the scale would lose
        its hold."""
        floor = self.agent["elo"] - self.args.min_elo_diff
        self.members = [member for member in self.members if member["serial"] < FIRST_MEMBER or member["elo"] >= floor]

    def probabilities(self):
        """Chances of all members as opponents: the sampler's, of which `scripted_share` goes to the scripted players.
        Past selves are many and as strong as the agent: a sampler by strength would leave nothing to the others."""
        elos = [member["elo"] for member in self.members]
        ages = list(reversed(range(len(self.members))))
        share = self.args.scripted_share
        losses = 1 - expected_score(self.agent["elo"], elos[:FIRST_MEMBER])
        chances = (1 - share) * opponent_chances(elos, ages, self.agent["elo"], self.args)
        chances[:FIRST_MEMBER] += share * losses / losses.sum()
        return chances

    def rating_opponents(self, update):
        """Whom to play rating matches with: `rule` always, the other scripted players in turn (all of them would take
        longer than the training in between), and some past selves, drawn as opponents are"""
        turn = 1 + update // max(self.args.eval_frequency, 1) % (FIRST_MEMBER - 1)
        chances = self.probabilities()[FIRST_MEMBER:]
        past = self.members[FIRST_MEMBER:]
        chosen = []
        if len(past):
            count = min(RATING_OPPONENTS, int((chances > 0).sum()))
            dice = np.random.default_rng([self.args.seed, update])
            chosen = sorted(dice.choice(len(past), count, replace=False, p=chances / chances.sum()))
        return [self.members[0], self.members[turn], *(past[i] for i in chosen)]

    def publish(self, agent, version, stage, rewards, self_share):
        """Hands weights, stage, past selves and chances to the actors, all of one version. The scripted players are
        rated as in the matches of this stage: a team of them is not as strong as one of them."""
        for member in self.members[:FIRST_MEMBER]:
            member["elo"] = PINNED[max(STAGES[stage].team_sizes)][member["name"]]
        numbers = {"stage": stage, "self_share": self_share, "reward_weights": rewards}
        members = {}
        for member, chance in zip(self.members, self.probabilities()):
            place = member["row"] if member["row"] >= 0 else self.args.league_size + member["serial"]
            members[place] = {"policy_id": member["serial"], "chance": chance}
        self.broadcast.publish(agent, version, numbers, members)

    def state_dict(self):
        return {"members": self.members, "next_serial": self.next_serial, "agent": self.agent}

    def load_state_dict(self, state):
        if [member["name"] for member in state["members"][:FIRST_MEMBER]] != list(PLAYERS):
            raise ValueError("its league has other scripted players")
        self.members = state["members"]
        self.next_serial = state["next_serial"]
        self.agent = state["agent"]


# ----------------------------------------------------------------------------------------------------------- the update


def memory_kept(ended, length):
    """(T, A): whether the memory of before a step is still that of its game, as (T, A, 1) of 0 and 1. The first step of
    a chunk begins with a stored state, which the actor has emptied where a game had just begun."""
    keep = torch.ones(*ended.shape, 1)
    keep[1:] = (~ended[:-1, :, None]).float()
    keep[::length] = 1.0
    return keep


def cut_into_chunks(s, advantages, returns, length):
    """A rollout → {name: (C, L, A, …)}, chunks of `length` steps, and the (chunk, car) of those with a row of the
    learner's own (M, 2)"""
    fields = {
        "obs": s.obs,
        "masks": s.masks,
        "keep": memory_kept(s.terminated | s.truncated, length),
        "actions": s.actions,
        "logprobs": s.logprobs,
        "advantages": advantages,
        "returns": returns,
        "trained": s.trained,
    }
    chunks = {name: tensor.view(-1, length, *tensor.shape[1:]) for name, tensor in fields.items()}
    return chunks, chunks["trained"].any(1).nonzero()


def take_minibatch(chunks, states, mb_chunks, device):
    """The chunks named by (chunk, car) → each field (L, B, …), and `states` before their first steps (B, S)"""
    which, car = mb_chunks.T
    fields = {name: to_device(tensor[which, :, car], device).transpose(0, 1) for name, tensor in chunks.items()}
    return SimpleNamespace(**fields, states=to_device(states[which, car], device))


def minibatch_loss(agent, unroll, mb, args, ent_coef, autocast=contextlib.nullcontext):
    """PPO's loss on the rows that the learner's own policy played → loss, its parts and statistics as one detached
    vector"""
    with autocast():
        features, _ = unroll(mb.obs, mb.states, mb.keep)
        masks = mb.masks
        actions = mb.actions
        old_logprobs = mb.logprobs
        advantages = mb.advantages
        returns = mb.returns
        if not mb.trained.all():
            features = features[mb.trained]
            masks = masks[mb.trained]
            actions = actions[mb.trained]
            old_logprobs = old_logprobs[mb.trained]
            advantages = advantages[mb.trained]
            returns = returns[mb.trained]
        logprobs = agent.logprobs(features, masks)
        values = agent.critic(features).squeeze(-1).float()
    logprob = logprobs.gather(-1, actions[..., None]).squeeze(-1)
    logprobs = logprobs.clamp(min=-80.0)  # nothing, but not 0 · (-inf), for masked ones; of less exp takes longer
    entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
    policy_loss, value_loss, stats = ppo_losses(
        logprob,
        old_logprob=old_logprobs,
        advantages=advantages,
        values=values,
        returns=returns,
        clip_coef=args.clip_coef,
    )
    loss = policy_loss - ent_coef * entropy + args.vf_coef * value_loss
    return loss, torch.stack([policy_loss, value_loss, entropy, *stats]).detach()


LOSS_NAMES = "policy_loss value_loss entropy old_approx_kl approx_kl clipfrac grad_norm"


def gradient_step(loss, agent, optimizer, scaler, max_grad_norm):
    """→ the gradient's norm before it was clipped"""
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), max_grad_norm)
    scaler.step(optimizer)
    scaler.update()
    return grad_norm


def update_policy(args, agent, optimizer, s, rewards, learner):
    """Advantages of a rollout with these (scaled) rewards, then update_epochs passes of PPO over its chunks
    → rows of LOSS_NAMES, returns (T, A). learner: unroll, scaler, autocast, device, ent_coef"""
    advantages = gae(
        rewards,
        values=s.values[:-1],
        next_value=s.values[-1],
        terminated=s.terminated,
        truncated=s.truncated,
        bootstrap=s.bootstrap,
        gamma=args.gamma,
        gae_lambda=args.gae_lambda,
    )
    returns = advantages + s.values[:-1]
    chunks, own_chunks = cut_into_chunks(s, advantages, returns, args.sequence_length)
    losses = []
    for _ in range(args.update_epochs):
        for mb_chunks in minibatches(own_chunks, max(args.minibatch_size // args.sequence_length, 1)):
            mb = take_minibatch(chunks, s.states, mb_chunks, learner.device)
            loss, parts = minibatch_loss(
                agent, unroll=learner.unroll, mb=mb, args=args, ent_coef=learner.ent_coef, autocast=learner.autocast
            )
            grad_norm = gradient_step(
                loss, agent=agent, optimizer=optimizer, scaler=learner.scaler, max_grad_norm=args.max_grad_norm
            )
            losses.append(torch.cat([parts, grad_norm.detach().view(1)]))
    return losses, returns


# ---------------------------------------------------------------------------------------------- evaluation, checkpoints


def save_model(path, agent, args, stage):
    # the environment scales observations
    statistics = {
        "mean": np.zeros(NUM_OBS, np.float32),
        "std": np.ones(NUM_OBS, np.float32),
    }
    metadata = {"game": "rocketleague", "contract_hash": contract.contract_hash(), "stage": STAGE_NAMES[stage]}
    models.save_model(path, agent.state_dict(), statistics=statistics, metadata=metadata, args=args, script=__file__)


def load_model(path):
    """A run's folder or a model.zip → (agent, metadata)"""
    return models.load_agent(path, contract.contract_hash(), make_agent)


@dataclasses.dataclass
class Progress:
    """Where a run stands; all of it is in the checkpoint."""

    update: int = 0
    global_step: int = 0
    version: int = 0
    seconds: float = 0.0  # of the run's earlier parts, before it was resumed
    stage: int = 0
    stage_update: int = 0  # updates since the stage began
    stage_scores: list = dataclasses.field(default_factory=list)  # the stage's measure, game by game
    best_elo: float = -math.inf  # the highest after rating matches
    best_model: str = ""

    def state_dict(self):
        return dataclasses.asdict(self)

    def load_state_dict(self, state):
        vars(self).update(vars(Progress(**state)))


def stage_measure(s, now, args):
    """The measure of the stage, of each game that ended in this rollout; none where rating matches are what counts"""
    measure = STAGES[now.stage].measure
    count = int(s.num_episodes)
    # Of games that begin together the short ones end first: none counts until the longest would have ended.
    settled = float(s.steps_in_stage) * args.action_repeat / contract.TICK_RATE >= STAGES[now.stage].seconds
    if measure == "win" or int(s.stage) != now.stage or not settled:
        return []
    column = s.episode_touched if measure == "touch" else s.episode_scored
    return column[:count].tolist()


def begin_next_stage(now, scale_rewards, args):
    """The scale of rewards changes over some rollouts. Begun anew it would be far too small at first: all sums are
    young, and none has a goal in it."""
    now.stage += 1
    now.stage_update = 0
    now.stage_scores.clear()
    remembered = SCALE_ROLLOUTS * args.rollout_steps * args.num_agents
    scale_rewards.rms.count = min(scale_rewards.rms.count, remembered)


def evaluate(args, agent, league, now, run_dir):
    """Rating matches, all of them in games.csv, and the touch rate → metrics. The models let a run be compared with its
    own past."""
    policy = copy_with_weights(agent, to_flat(agent)).cpu().eval()
    path = run_dir / "models" / f"{now.global_step}.zip"
    save_model(path, policy, args, now.stage)
    stage = STAGES[now.stage]
    metrics = {}
    for member in league.rating_opponents(now.update):
        scripted = member["serial"] < FIRST_MEMBER
        scores = rating_match(
            args, policy, league.agent,
            opponent=member["name"] if scripted else copy_with_weights(policy,
                league.broadcast.member_weights[member["row"]]),
            opponent_rating=member, team_size=max(stage.team_sizes),
            seed=args.seed + 7919 * (now.update + 1),  # not the seed of any actor
            folder=run_dir, global_step=now.global_step, stage=stage.name,
        )  # fmt: skip
        if scripted:
            metrics |= score_metrics(member["name"], scores)
        if member["name"] == "rule" and stage.measure == "win":
            now.stage_scores.extend((scores == 1.0).tolist())  # a tie is not a win
    league.prune()
    if league.agent["elo"] > now.best_elo:
        now.best_elo = league.agent["elo"]
        now.best_model = path.name
    keep_models(run_dir, args.keep_models, run_dir / "models" / now.best_model)
    small = dataclasses.replace(
        args, num_agents=12 * math.ceil(args.eval_episodes / 6), state_file="", aerial_focus=0.0
    )
    return metrics | touch_metrics(policy, lambda: make_env(small, STAGES[0], args.seed + 7919), args.seed)


def final_evaluation(args, agent, now):
    """Kickoffs against `rule` in every team size of the stage that the run has reached → eval/rule_1v1 and so on, each
    also with the likeliest actions. Not rated: these games are for the record."""
    policy = copy_with_weights(agent, to_flat(agent)).cpu().eval()
    metrics = {}
    for size in sorted(STAGES[now.stage].team_sizes):
        for suffix in ("", "_deterministic"):
            scores = []
            for first in range(0, args.final_eval_episodes, KICKOFFS_AT_ONCE):
                seed = args.seed + 104_729 + first
                count = min(KICKOFFS_AT_ONCE, args.final_eval_episodes - first)
                players = Player(policy, seed, deterministic=bool(suffix)), ScriptedPlayer("rule", seed)
                scores.append(play_kickoffs(*players, count, seed, size, **match_settings(args))[0])
            metrics |= score_metrics(f"rule_{size}v{size}{suffix}", np.concatenate(scores))
    return metrics


def rollout_metrics(args, s, returns, reward_weights, now):
    """What a rollout tells of itself"""
    count = int(s.num_episodes)
    means = s.terms.numpy() / int(s.trained.sum())
    unexplained = (returns - s.values[:-1])[s.trained].var() / returns[s.trained].var().clamp(min=1e-8)
    results = torch.stack([s.episode_kind, s.episode_opponent, s.episode_score, s.episode_length], 1)[:count]
    return {
        "charts/stage": now.stage,
        "charts/touches_per_minute": float(means[REWARD_NAMES.index("touch")])
        * 60
        * contract.TICK_RATE
        / args.action_repeat,
        "losses/explained_variance": 1 - float(unexplained),
        **result_metrics(results, KINDS),
        **{f"rewards/{term}": value for term, value in zip(REWARD_NAMES, (means * reward_weights.numpy()).tolist())},
    }


def check(args):
    """Refuses settings that make no sense together, before anything is written."""
    if args.rollout_steps % args.sequence_length or args.num_agents % 12:
        raise BadInput("--rollout-steps must be a multiple of --sequence-length, and --num-agents one of 12.")
    ray_actors.check_address(args.ray_address)
    first = STAGE_NAMES.index(args.stage)
    last = STAGE_NAMES.index(args.final_stage)
    if first > last:
        raise BadInput(f"--stage {args.stage} comes after --final-stage {args.final_stage}.")
    if args.state_file:
        try:
            check_team_sizes(args.state_file, [size for stage in STAGES[first : last + 1] for size in stage.team_sizes])
        except ValueError as error:
            raise BadInput(f"--state-file: {error}") from None
    try:
        paid = stage_rewards(args, first, 0).any()
    except ValueError as error:
        raise BadInput(f"--reward-weights: {error}") from None
    if not paid:
        raise BadInput(
            f"With --reward-mode {args.reward_mode} nothing is paid for in stage {args.stage}: begin with --stage "
            f"score."
        )


if __name__ == "__main__":
    args = parse_args(Args, PRESETS)
    network_hash = models.network_hash(script_source(__file__))
    checkpoint = load_checkpoint(args.resume, contract.contract_hash(), network_hash) if args.resume else None
    check(args)
    choose_run_folder(args)
    device, autocast, scaler = set_up(args)

    agent = make_agent(vars(args)).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    settings = dataclasses.replace(args)  # for config.yaml, where "auto" stays "auto"
    args.inference = central_inference.resolve_inference(args, device)
    unroll = maybe_compile(
        args, agent.unroll, device, "a memory runs in parts, from game to game" if args.recurrent != "none" else ""
    )
    learner = SimpleNamespace(unroll=unroll, scaler=scaler, autocast=autocast, device=device, ent_coef=args.ent_coef)
    scale_rewards = RewardScale(max(args.num_workers, 1), args.num_agents)
    args.sharing = shared_memory.resolve_sharing(args, make_storage, len(to_flat(agent)))
    broadcast = make_broadcast(args, len(to_flat(agent)))
    league = League(args, broadcast)
    now = Progress(stage=STAGE_NAMES.index(args.stage))
    last_stage = STAGE_NAMES.index(args.final_stage)
    actor = Actor(args, 0) if args.num_workers == 0 else None

    if checkpoint:
        parts = {
            "agent": agent,
            "optimizer": optimizer,
            "scaler": scaler,
            "member_weights": broadcast.member_weights,
            "league": league,
        }
        restore(checkpoint, **parts, progress=now, reward_scale=scale_rewards)
        torch.set_rng_state(checkpoint["torch_rng"])
        if actor and checkpoint["actor"]:
            restore(checkpoint, actor=actor)
    run_dir = make_run_folder(settings, __file__)

    def save_all():
        spent = now.seconds + time.time() - start_time
        state = {
            "agent": agent.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "reward_scale": scale_rewards.state_dict(),
            "league": league.state_dict(),
            "member_weights": broadcast.member_weights.clone(),
            "progress": {**now.state_dict(), "seconds": spent},
            "torch_rng": torch.get_rng_state(),
            "actor": actor.state_dict() if actor else None,
            "contract_hash": contract.contract_hash(),
            "network_hash": network_hash,
        }
        save_checkpoint(run_dir, state)
        save_model(run_dir / "model.zip", agent, args, now.stage)

    def publish():
        self_share = args.self_share if STAGES[now.stage].opponents else 1.0
        league.publish(
            agent,
            version=now.version,
            stage=now.stage,
            rewards=stage_rewards(args, now.stage, now.stage_update),
            self_share=self_share,
        )

    stopping = stop_on_signals()
    logger = Logger(args, run_dir, now.global_step)
    publish()
    processes = contextlib.ExitStack()
    if args.inference == "central":
        broadcast.channels, theirs = make_channels(args)
        processes.enter_context(central_inference.running(inference_main, (args, broadcast, device), theirs))
    rollouts = make_rollouts(args, broadcast, stopping, actor)
    start_time = time.time()
    first_step = now.global_step
    consistent = True
    done = progress(args, now.global_step, now.seconds)

    try:
        wait_start = time.perf_counter()
        for index, storage, queue_size in rollouts:
            wait_time = time.perf_counter() - wait_start
            learn_start = time.perf_counter()
            s = SimpleNamespace(**storage)
            consistent = False
            now.update += 1
            now.stage_update += 1
            now.global_step += int(s.trained.sum())

            # --- rewards, scaled by the std of discounted returns; then PPO
            if int(s.steps_in_stage) == 0:
                scale_rewards.start_anew(index)
            scaled, returns_seen = scale_rewards(
                index, rewards=s.rewards, ended=s.terminated | s.truncated, trained=s.trained, gamma=args.gamma
            )
            lr = anneal(args.learning_rate, args.learning_rate_final, done, 1.0)
            optimizer.param_groups[0]["lr"] = lr
            learner.ent_coef = anneal(args.ent_coef, args.ent_coef_final, done, 1.0)
            losses, returns = update_policy(
                args,
                agent=agent,
                optimizer=optimizer,
                s=s,
                rewards=scaled.clamp(-REWARD_CLIP, REWARD_CLIP),
                learner=learner,
            )
            check_finite(losses)
            lag = torch.tensor(now.version - float(s.version))
            now.version += 1

            # --- the stage's measure, a snapshot for the league now and then
            now.stage_scores += stage_measure(s, now, args)
            del now.stage_scores[: -args.transition_games]
            if (
                args.opponent_update_freq
                and STAGES[now.stage].opponents
                and now.update % args.opponent_update_freq == 0
            ):
                league.join(f"snapshot_{now.global_step}", to_flat(agent))
            publish()
            consistent = True
            learn_time = time.perf_counter() - learn_start

            # --- logs, evaluation, the next stage, checkpoint
            done = progress(args, now.global_step, now.seconds + time.time() - start_time)
            seconds = float(s.rollout_time), float(s.inference_time), float(s.simulator_time)
            metrics = {
                "charts/SPS": (now.global_step - first_step) / (time.time() - start_time),
                "charts/learning_rate": lr,
                "charts/ent_coef": learner.ent_coef,
                **loss_metrics(LOSS_NAMES, losses),
                **time_metrics(lag, queue_size=queue_size, seconds=seconds, learn_time=learn_time, wait_time=wait_time),
                **rollout_metrics(
                    args, s=s, returns=returns, reward_weights=broadcast.numbers["reward_weights"], now=now
                ),
            }
            if int(s.num_episodes):
                metrics["charts/episodic_return"] = float(returns_seen.mean())
            finished = done >= 1.0
            due = args.eval_frequency and now.update % args.eval_frequency == 0
            # by the games of training; where rating matches count, an evaluation has come before
            ends_stage = args.eval_frequency and now.stage < last_stage and stage_passed(now.stage_scores, args)
            evaluated = finished or due or ends_stage
            if evaluated:
                metrics |= until_stopped(stopping, evaluate, args, agent, league, now, run_dir)
            if finished and args.final_eval_episodes:
                metrics |= until_stopped(stopping, final_evaluation, args, agent, now)
            if now.stage_scores:
                recent = now.stage_scores[-args.transition_games :]
                metrics[f"charts/measure_{STAGES[now.stage].measure}"] = float(np.mean(recent))
            metrics |= {
                f"elo/{name}": league.agent[key] for name, key in (("agent", "elo"), ("mu", "mu"), ("sigma", "sigma"))
            }
            metrics["league/size"] = len(league.members)
            passed = now.stage < last_stage and stage_passed(now.stage_scores, args)
            if passed:
                begin_next_stage(now, scale_rewards, args)
                print(f"Stage {STAGE_NAMES[now.stage]} begins after {now.global_step:,} steps.", flush=True)
            if passed or evaluated:  # another stage, or other ratings and so other opponents
                publish()
            logger.write(metrics, now.global_step, done)
            if finished or stopping:
                break
            if now.update % args.checkpoint_frequency == 0:
                save_all()
            wait_start = time.perf_counter()
    finally:
        rollouts.close()
        processes.close()
        logger.close()
        if consistent:  # not in the middle of an update, whose half would be neither the old nor the new policy
            save_all()
        say_how_to_go_on(run_dir)
