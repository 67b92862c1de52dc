"""Self-play PPO on Old School RuneScape NH fights, with a league of past selves.

    python cleanrl_games/ppo_osrs_selfplay.py --num-workers 1

    ┌ actor (process × num_workers, inline, or Ray) ┐   slot numbers   ┌ learner ─────────────────────────────┐
    │ fights in Numba, batched inference; opponents │ ───────────────► │ rewards, GAE, PPO, normalisation     │
    │ are fixed from a fight's start to its end     │  2 shared-memory │ league, Elo, evaluation, checkpoints │
    └───────────────────────▲───────────────────────┘  slots per actor └────────┬───────────┬───▲─────────────┘
                            └── Broadcast: weights by version, league, shares ◄─┘   frozen  ▼   │ what it won
                                                                      exploiter: this script, --targets

A rollout holds T ticks of F fights with both fighters, so that the critic of one can look into the other's hand.
"""

import contextlib
import dataclasses
import difflib
import functools
import math
import os
import signal
import sys
import time
import traceback
from itertools import pairwise
from multiprocessing import connection
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, NamedTuple

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

from cleanrl_games.envs.osrs import Baseline, NHVecEnv, contract
from cleanrl_games.envs.osrs.baselines import BASELINES, ELO, LADDER
from cleanrl_games.envs.osrs.contract import (
    HEAD_OFFSETS,
    HEAD_SIZES,
    NUM_CRITIC_OBS,
    NUM_HEADS,
    NUM_LOGITS,
    NUM_OBS,
    REWARD_TERMS,
)
from cleanrl_games.envs.osrs.evaluation import Player, evaluate  # noqa: F401 (for the tools)
from cleanrl_games.envs.osrs.loadouts import find_loadouts
from cleanrl_games.runtime import exploiter_processes, models, ray_actors, shared_memory
from cleanrl_games.runtime.checkpoints import load_checkpoint, restore, save_checkpoint, say_how_to_go_on
from cleanrl_games.runtime.device import maybe_compile, set_up
from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.runtime.files import file_hash, keep_models, make_run_folder, script_source
from cleanrl_games.runtime.logger import Logger
from cleanrl_games.runtime.metrics import time_metrics
from cleanrl_games.runtime.settings import Count, Fraction, NonNegative, Positive, Size, parse_args
from cleanrl_games.runtime.shared_memory import Broadcast, from_flat, load_members, share_all, to_flat
from cleanrl_games.runtime.stopping import check_finite, progress, stop_on_signals, until_stopped

# Named sets of values; a flag or a config file overrides them. `fast`, the default, is what the defaults below say: a
# network small enough that two CPU cores play and learn tens of thousands of ticks a second. `core` is the public
# project's preset.
PRESETS = {
    "fast": {},
    "core": {
        "hidden_size": 512, "head_size": 128, "num_envs": 50, "num_steps": 1024, "minibatch_size": 2048,
        "learning_rate": 3e-4, "learning_rate_final": 3e-4, "guess_ent_coef": 0.0, "past_taste": 0.0,
        "self_fraction": 0.8, "self_fraction_final": 0.2, "scripted_fraction": 0.0,
    },
    "pure": {"self_play": "pure", "scripted_fraction": 0.0},
    "past": {"self_play": "past", "self_fraction": 0.8, "self_fraction_final": 0.2, "scripted_fraction": 0.0},
    "exploiter": {
        "self_play": "exploiter", "self_fraction": 0.0, "self_fraction_final": 0.0, "scripted_fraction": 0.0,
        "guess_ent_coef": 0.0, "past_taste": 0.0,
    },
}  # fmt: skip

ALIASES = {"opponent": "targets"}  # other words for a setting

# What each of the environment's reward terms (contract.REWARD_TERMS) is worth, as in the public project's preset.
REWARDS = {
    "ko": 1.0,
    "death": -1.0,
    "tie": -0.2,
    "damage_dealt": 0.25,
    "damage_received": -0.25,
    "healed": 0.25,
    "target_healed": -0.25,
    "wasted_food": -1.25,
    "food_left": -0.25,
    "target_food_left": 0.25,
    "prayer_correct": 0.025,
    "prayer_wrong": -0.025,
    "hit_off_prayer": 0.025,
    "hit_on_prayer": -0.025,
    "frozen": -0.004,
    "target_frozen": 0.004,
    "no_prayer": -0.01,
    "smite_dealt": 0.025,
    "smite_received": -0.025,
    "health_preserved": 0.0,
}
REWARD_CLIP = 10.0  # of rewards after division by the std of discounted returns
FREEZE_SHRINKS_TO = 0.75  # the two freeze rewards shrink to this share of themselves …
FREEZE_UPDATES = 300  # … over so many updates
NOVELTY_UPDATES = 200  # over which the novelty reward goes to 0
ANNEAL_UPDATES = 1000  # over which entropy bonus and share of self-play go to their final values


@dataclasses.dataclass
class Args:
    env_id = "osrs-nh"  # in the name of the run's folder
    # --- experiment
    exp_name: str = Path(__file__).stem
    """the name of this experiment"""
    preset: Literal["fast", "core", "pure", "past", "exploiter"] = "fast"
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
    server: str = ""
    """HOST:PORT of a simulation server to train on, instead of the simulator; --loadouts are then the server's builds
    of these names"""
    loadouts: tuple[str, ...] = ("lms_med",)
    """loadouts to fight with; each fight draws one. all = every one of the file"""
    loadout_file: str = ""
    """a YAML file of your own loadouts, empty = the shipped one"""
    mirror: bool = True
    """both fighters of a fight have the same loadout"""
    max_ticks: Size = 1000
    """a fight longer than this is truncated (600 ms a tick)"""
    reward_weights: tuple[str, ...] = ()
    """weights that override REWARDS, as in ko=2 tie=0"""
    novelty: NonNegative = 2.5e-4
    """reward per unit of Σ max(|z| - 1, 0) over the normalised observations; goes to 0"""

    # --- actors
    num_workers: Count = 1
    """actor processes; 0 = inline in the learner's process, deterministic"""
    num_envs: Size = 512
    """fights per actor"""
    num_steps: Size = 32
    """ticks per rollout; short ones keep the update that a rollout is behind small"""
    ray_address: str = ""
    """run the actors on this Ray cluster ("auto", "127.0.0.1:6379", …)"""

    # --- algorithm
    total_timesteps: Size = 100_000_000
    """agent-steps to train for"""
    max_minutes: NonNegative = 0.0
    """stop after this many minutes, 0 = no limit"""
    learning_rate: Positive = 5e-4
    """Adam's step size"""
    learning_rate_final: NonNegative = 1e-4
    """its value at the end of the run (linear)"""
    gamma: Fraction = 0.995
    """discount"""
    gae_lambda: Fraction = 0.95
    """lambda of generalised advantage estimation"""
    minibatch_size: Size = 2048
    """agent-steps per gradient step"""
    update_epochs: Size = 1
    """passes over a rollout"""
    norm_adv: bool = True
    """normalise advantages per minibatch"""
    clip_coef: Positive = 0.2
    """PPO's clip"""
    ent_coef: NonNegative = 0.01
    """entropy bonus"""
    ent_coef_final: NonNegative = 0.001
    """its value after ANNEAL_UPDATES"""
    guess_ent_coef: NonNegative = 0.05
    """entropy bonus of the prayer, and of the attack's style in ticks with an attack, at least: which style against
    which prayer is a guessing game, and who always does the same is read. Not against scripted players, who do not
    learn to read"""
    vf_coef: NonNegative = 0.5
    """weight of the value loss"""
    max_grad_norm: Positive = 0.5
    """gradient clip"""
    hidden_size: Size = 128
    """width of the actor's and the critic's two layers"""
    head_size: Size = 32
    """width of each action head's two layers"""

    # --- self-play
    self_play: Literal["pure", "past", "target", "latest", "exploiter"] = "past"
    """who fills the fights that are neither against oneself nor scripted: nobody; the league; --targets; the newest
    model of the run in --targets, which is watched; exploiter = --targets, and join their league at the end"""
    targets: tuple[str, ...] = ()
    """models or run folders to train against; with --self-play latest, the one folder of another run"""
    start_model: str = ""
    """a model.zip or run folder whose weights the run starts from"""
    self_fraction: Fraction = 0.4
    """share of fights against oneself at the start"""
    self_fraction_final: Fraction = 0.4
    """and after ANNEAL_UPDATES"""
    scripted_fraction: Fraction = 0.2
    """share of fights against scripted players"""
    opponents: tuple[str, ...] = ("ladder",)
    """scripted players to fight, by name; ladder = all rungs. Whom the agent rarely beats is met more often"""
    snapshot_frequency: Count = 40
    """updates between snapshots for the league, 0 = none"""
    league_size: Size = 32
    """members of the league; beyond that the easiest leaves"""
    opponents_at_once: Size = 1
    """league members an actor draws at a time (up to twice as many are in use, with a batched forward pass each)"""
    past_taste: NonNegative = 2.0
    """with --self-play past, standard deviation of what is added to a league member's logits of style, gear and prayer,
    drawn anew for each fight with a place to stand: opponents who fight as nobody else does; 0 = as they are"""
    train_exploiters: bool = False
    """train an exploiter of the present model in the background now and then"""
    exploiter_check_interval: Size = 500
    """updates between exploiters"""
    exploiter_train_steps: Size = 5_000_000
    """agent-steps that an exploiter trains for"""
    exploiter_win_threshold: Fraction = 0.6
    """an exploiter that wins this share joins the league"""

    # --- evaluation and checkpoints
    eval_frequency: Count = 400
    """updates between evaluations against the scripted players, each with a model in the run's folder; 0 = only at the
    end"""
    eval_episodes: Size = 200
    """fights per evaluation and opponent"""
    final_episodes: Size = 1000
    """the same for the last evaluation"""
    checkpoint_frequency: Size = 100
    """updates between checkpoints"""
    capture_video: bool = False
    """a GIF of a fight with each evaluation"""
    keep_models: Count = 50
    """the newest so many models/*.zip and exploiters of a run are kept, and the best; 0 = all"""


# ------------------------------------------------------------------------------------------------------------- networks


# --8<-- [start:osrs_network]
def mlp(*sizes, last_std=None):
    layers = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        last = last_std is not None and i == len(sizes) - 2
        linear = nn.Linear(fan_in, fan_out)
        nn.init.orthogonal_(linear.weight, last_std if last else math.sqrt(2))
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, nn.ReLU()]
    return nn.Sequential(*layers)


def masked_log_softmax(logits, legal):
    """In float32, over the last dimension; illegal entries get probability 0 exactly, and no gradient."""
    logits = logits.float().masked_fill(~legal, torch.finfo(torch.float32).min)
    # Over the first dimension: over a last one of seven entries log_softmax alone takes 18 times as long.
    return logits.movedim(-1, 0).contiguous().log_softmax(0).movedim(0, -1)


class Agent(nn.Module):
    """A policy that chooses twelve actions one after another, and a critic that also sees what the opponent hides.

    Head k reads the trunk's hidden state and the normalised one-hots of the heads before it. All first layers are one
    matrix product; in training, where the actions are known, so are the second and third layers of all heads.
    """

    def __init__(self, hidden_size, head_size):
        super().__init__()
        self.head_size, widest = head_size, max(HEAD_SIZES)
        self.trunk = mlp(NUM_OBS, hidden_size, hidden_size)
        self.critic = mlp(NUM_CRITIC_OBS, hidden_size, hidden_size, 1, last_std=1.0)
        self.head_in = mlp(hidden_size, NUM_HEADS * head_size)[0]
        self.head_earlier = nn.Parameter(torch.randn(NUM_LOGITS, NUM_HEADS, head_size) * 0.05)
        self.head_hidden = nn.Parameter(torch.stack([mlp(head_size, head_size)[0].weight.data for _ in HEAD_SIZES]))
        self.head_hidden_bias = nn.Parameter(torch.zeros(NUM_HEADS, 1, head_size))
        self.head_out = nn.Parameter(
            torch.stack([mlp(widest, head_size, last_std=0.01)[0].weight.data for _ in HEAD_SIZES])
        )
        self.head_out_bias = nn.Parameter(torch.zeros(NUM_HEADS, 1, widest))

        # Running statistics travel with the weights: a policy without its own normalisation is another policy.
        self.register_buffer("obs_mean", torch.zeros(NUM_OBS))
        self.register_buffer("obs_std", torch.ones(NUM_OBS))
        head_of = np.repeat(np.arange(NUM_HEADS), HEAD_SIZES)  # (45,)
        rate = torch.tensor([1.0 / HEAD_SIZES[head] for head in head_of])
        constants = {
            "earlier": torch.tensor(head_of[:, None] < np.arange(NUM_HEADS)[None, :]),  # (45, 12)
            "rate": rate,
            "rate_std": (rate * (1 - rate)).sqrt(),
            # (12, 7): the logit at a place of the padded layout, 45 = none
            "pad": torch.tensor(
                [[o + i if i < n else NUM_LOGITS for i in range(widest)] for o, n in zip(HEAD_OFFSETS, HEAD_SIZES)]
            ),
            "needs": torch.tensor(np.where(contract.NEEDS < 0, NUM_LOGITS, contract.NEEDS)),
            "forbids": torch.tensor(np.where(contract.FORBIDS < 0, NUM_LOGITS, contract.FORBIDS)),
            "offsets": torch.tensor(HEAD_OFFSETS),
            "partial": torch.tensor(contract.PARTIAL),
        }
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)

    def normalise(self, obs):
        return ((obs - self.obs_mean) / self.obs_std).clamp(-5, 5)

    def value(self, obs, target_obs):
        """obs, target_obs: (B, 176), normalised → (B,)"""
        return self.critic(torch.cat([obs, target_obs[:, self.partial]], -1)).squeeze(-1)

    def head_logprobs(self, obs, masks, actions):
        """Log-probs of every action of each head, given the actions before it. obs (B, 176) normalised, masks (B, 45) →
        (B, 12, 7)"""
        batch = len(obs)
        chosen = torch.zeros(batch, NUM_LOGITS, device=obs.device).scatter_(1, actions + self.offsets, 1.0)
        weights = self.head_earlier * self.earlier[:, :, None]
        hidden = self.head_in(self.trunk(obs)) + ((chosen - self.rate) / self.rate_std) @ weights.flatten(1)
        hidden = F.relu(hidden).view(batch, NUM_HEADS, self.head_size).transpose(0, 1)  # (12, B, H)
        hidden = F.relu(torch.baddbmm(self.head_hidden_bias, hidden, self.head_hidden))
        logits = torch.baddbmm(self.head_out_bias, hidden, self.head_out).transpose(0, 1)  # (B, 12, 7)
        yes, no = (
            torch.ones(batch, 1, dtype=torch.bool, device=obs.device),
            torch.zeros(batch, 1, dtype=torch.bool, device=obs.device),
        )
        taken = chosen.bool()
        legal = masks & torch.cat([taken, yes], 1)[:, self.needs] & ~torch.cat([taken, no], 1)[:, self.forbids]
        legal = torch.cat([legal, no], 1)[:, self.pad]  # (B, 12, 7)
        legal[:, :, 0] |= ~legal.any(-1)  # a head with nothing legal takes action 0
        return masked_log_softmax(logits, legal)

    def evaluate_actions(self, obs, masks, actions):
        """→ log-prob of the twelve actions (B,), entropy of each head (B, 12)"""
        logprobs = self.head_logprobs(obs, masks, actions)
        logprob = logprobs.gather(-1, actions[:, :, None]).squeeze(-1).sum(-1)
        # nothing, but not 0 · (-inf), for illegal ones; of less exp takes ten times as long
        logprobs = logprobs.clamp(min=-80.0)
        return logprob, -(logprobs.exp() * logprobs).sum(-1)

    def act(self, obs, masks, generator=None, deterministic=None, taste=None):
        """Samples head after head, or takes the likeliest action where deterministic (B, 12) says so.
        obs (B, 176) normalised, masks (B, 45), taste (B, 45) is added to the logits → actions (B, 12), log-prob (B,)"""
        batch = len(obs)
        first = self.head_in(self.trunk(obs)).view(batch, NUM_HEADS, self.head_size)
        chosen = torch.zeros(batch, NUM_LOGITS + 1)
        chosen[:, NUM_LOGITS] = 1.0  # "needs nothing" is always fulfilled …
        actions, logprob = torch.zeros(batch, NUM_HEADS, dtype=torch.long), torch.zeros(batch)
        scaled = torch.zeros(batch, NUM_LOGITS)
        for head, (offset, size) in enumerate(zip(HEAD_OFFSETS, HEAD_SIZES)):
            hidden = first[:, head] + scaled[:, :offset] @ self.head_earlier[:offset, head]
            hidden = F.relu(F.relu(hidden) @ self.head_hidden[head] + self.head_hidden_bias[head])
            logits = (hidden @ self.head_out[head] + self.head_out_bias[head])[:, :size]
            span = slice(offset, offset + size)
            if taste is not None:
                logits = logits + taste[:, span]
            # … and forbids nothing
            forbidden = chosen[:, self.forbids[span]].bool() & (self.forbids[span] < NUM_LOGITS)
            legal = masks[:, span] & chosen[:, self.needs[span]].bool() & ~forbidden
            legal[:, 0] |= ~legal.any(-1)
            logprobs = masked_log_softmax(logits, legal)
            noise = torch.empty_like(logprobs).exponential_(generator=generator)
            action = (logprobs - noise.log()).argmax(-1, keepdim=True)
            if deterministic is not None:
                action = torch.where(deterministic[:, head, None], logprobs.argmax(-1, keepdim=True), action)
            logprob += logprobs.gather(-1, action).squeeze(-1)
            actions[:, head] = action.squeeze(-1)
            chosen.scatter_(1, action + offset, 1.0)
            scaled[:, span] = (chosen[:, span] - self.rate[span]) / self.rate_std[span]
        return actions, logprob


def make_agent(settings):
    return Agent(settings["hidden_size"], settings["head_size"])


# --8<-- [end:osrs_network]


# ----------------------------------------------------------------------------------------------------------- pure maths


def gae(rewards, values, next_value, terminated, truncated, bootstrap, gamma, gae_lambda):
    """All (T, B), next_value (B,). A terminated fight is worth nothing more, a truncated one V(its last
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


def ppo_losses(logprob, old_logprob, advantages, values, returns, clip_coef):
    """PPO's clipped loss, and Ye et al.'s second clip: a bad action that has become likelier (twelve heads multiply to
    large ratios, the more so when the rollout is a version old) pushes no harder than three times its advantage."""
    logratio = logprob - old_logprob
    ratio = logratio.exp()
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip_coef, 1 + clip_coef))
    policy_loss = torch.where(advantages < 0, torch.min(policy_loss, -3 * advantages), policy_loss).mean()
    value_loss = 0.5 * (values - returns).square().mean()
    with torch.no_grad():
        stats = torch.stack(
            [-logratio.mean(), (ratio - 1 - logratio).mean(), ((ratio - 1).abs() > clip_coef).float().mean()]
        )
    return policy_loss, value_loss, stats


def reward_weights(overrides=()):
    """REWARDS and `name=value` overrides → (20,)"""
    chosen = dict(REWARDS)
    for text in overrides:
        name, _, value = text.partition("=")
        if name not in REWARDS:
            close = difflib.get_close_matches(name, REWARDS, n=1)
            said = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(REWARDS)}."
            raise BadInput(f"--reward-weights: unknown reward {name!r}, {said}")
        try:
            chosen[name] = float(value)
        except ValueError:
            chosen[name] = math.nan
        if not math.isfinite(chosen[name]):
            raise BadInput(f"--reward-weights: write name=value with a finite number, as in ko=2; found {text!r}.")
    return torch.tensor([chosen[term] for term in REWARD_TERMS])


def minibatches(indices, size):
    """In random order, in parts of nearly equal size: a lone row left over would have no standard deviation to divide
    by."""
    return indices[torch.randperm(len(indices))].tensor_split(math.ceil(len(indices) / size))


def anneal(start, final, update, updates):
    return start + (final - start) * min(update / max(updates, 1e-8), 1.0)


def league_probabilities(qualities):
    """Prioritised sampling as in OpenAI Five: softmax of the qualities."""
    exp = np.exp(np.asarray(qualities) - np.max(qualities))
    return (exp / exp.sum()).tolist()  # Python's numbers: checkpoints are read without unpickling


def elo_update(rating, reference, score, k=16.0):
    """Only the agent's rating moves: references are frozen."""
    return rating + k * (score - 1.0 / (1.0 + 10.0 ** ((reference - rating) / 400.0)))


# --------------------------------------------------------------------------------------------------------------- actors

SELF, LEAGUE, SCRIPTED = range(3)  # whom a fight is against
NO_ATTACK = contract.LOGIT["no_op_attack"]  # legal only while one can't attack
# Past selves have tastes in these heads. Without them an exploiter wins by a way to fight that nobody in training has:
# it uses one style for two thirds of its attacks, and the agent's prayers do not follow, though observations tell how
# often each style was used. When to eat and drink is no question of taste.
TASTE_LOGITS = np.repeat([name in ("attack", "gear", "prayer") for name in contract.HEAD_NAMES], HEAD_SIZES)  # (45,)
# Most of them also have a place where they stand between two attacks, whatever they think of it: their own logits for
# going away are so low that no random number moves them. The first has none.
PLACES = {
    "dont_move": 0.3,
    "move_next_to_target": 0.1,
    "move_under_target": 0.1,
    "move_diagonal_to_target": 0.1,
    "move_to_farcast_tile": 0.4,
}
FARCAST_LOGITS = [contract.LOGIT[f"farcast_{tiles}_tiles"] for tiles in range(2, 8)]
PLACE_TASTE = 30.0
STYLE_LOGITS = [contract.LOGIT[name] for name in ("mage_attack", "ranged_attack", "melee_attack")]
SCORES = np.array([0.5, 1.0, 0.0, 0.5])  # of fighter 0, by the simulator's result: truncated, won, lost, tied
MAX_EPISODES = 4096  # per rollout
# Of each fight that ended: SELF, LEAGUE or SCRIPTED; the league member's id or the scripted player's number; the score
# as the learner sees it; ticks
EPISODE_FIELDS = ("kind", "opponent", "score", "length")
TIMES = ("rollout_time", "inference_time", "simulator_time")  # of a rollout, in seconds


def make_storage(args):
    """One rollout. Fights are the second dimension, the two fighters of a fight the third."""
    shape = (args.num_steps, args.num_envs, 2)
    return {
        "obs": torch.zeros(args.num_steps + 1, args.num_envs, 2, NUM_OBS),
        "masks": torch.zeros(*shape, NUM_LOGITS, dtype=torch.bool),
        "actions": torch.zeros(*shape, NUM_HEADS, dtype=torch.int8),
        "logprobs": torch.zeros(shape),
        "values": torch.zeros(args.num_steps + 1, args.num_envs, 2),
        "bootstrap": torch.zeros(shape),  # V(last observation) of truncated fights
        "terms": torch.zeros(*shape, len(REWARD_TERMS)),
        "terminated": torch.zeros(args.num_steps, args.num_envs, 1, dtype=torch.bool),
        "truncated": torch.zeros(args.num_steps, args.num_envs, 1, dtype=torch.bool),
        "trained": torch.zeros(shape, dtype=torch.bool),  # whether the learner's own policy acted here …
        "guessing": torch.zeros(shape, dtype=torch.bool),  # … against somebody who is not scripted
        **{f"episode_{name}": torch.zeros(MAX_EPISODES) for name in EPISODE_FIELDS},
        **{name: torch.zeros((), dtype=torch.float64) for name in ("version", "num_episodes", *TIMES)},
    }


def scripted_players(args):
    """The names behind --opponents."""
    names = [name for word in args.opponents for name in (LADDER if word == "ladder" else (word,))]
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise BadInput(
            f"--opponents: there is no scripted player {unknown[0]!r}. There are: ladder, {', '.join(BASELINES)}."
        )
    return list(dict.fromkeys(names))


def draw_taste(rng, spread):
    """What is added to an opponent's logits in all ticks, and in ticks in which it can't attack → (45,), (45,)"""
    taste = rng.normal(0.0, spread, NUM_LOGITS) * TASTE_LOGITS
    if rng.random() < 0.5:
        taste[rng.choice(STYLE_LOGITS)] += 2 * spread  # a style for nearly all of its attacks
    between = np.zeros(NUM_LOGITS)
    place = rng.choice(list(PLACES), p=list(PLACES.values()))
    if place != "dont_move":
        between[contract.LOGIT[place]] = PLACE_TASTE
        between[rng.choice(FARCAST_LOGITS)] = PLACE_TASTE  # legal only with move_to_farcast_tile
    return taste, between


def past_taste(args):
    """--past-taste, where the opponents are past selves: --targets are met as they are."""
    return args.past_taste if args.self_play == "past" else 0.0


def make_broadcast(args, num_parameters):
    numbers = {"self_share": 1, "scripted_share": 1, "bot_chances": len(scripted_players(args))}
    return Broadcast(
        args.sharing,
        num_parameters=num_parameters,
        num_members=args.league_size,
        numbers=numbers,
        member_fields=("chance",),
    )


def make_env(args, seed):
    if not args.server:
        return NHVecEnv(
            args.num_envs,
            loadouts=args.loadouts,
            loadout_file=args.loadout_file or None,
            mirror=args.mirror,
            seed=seed,
            max_ticks=args.max_ticks,
        )
    from cleanrl_games.envs.osrs.remote import RemoteError, RemoteNHVecEnv, parse_address

    if mp.parent_process():  # an actor that is told to end leaves by the door: the environment logs its agents out
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        host, port = parse_address(args.server)
        return RemoteNHVecEnv(args.num_envs, host, port, loadouts=args.loadouts, max_ticks=args.max_ticks)
    except (ValueError, RemoteError) as error:
        raise BadInput(f"--server {args.server}: {error}") from None


class Matchmaking(NamedTuple):
    """Whom the fights of a rollout are against."""

    shares: np.ndarray  # (3,) of SELF, LEAGUE, SCRIPTED
    members: list[int]  # ids of the league members that may be met
    bot_chances: np.ndarray  # of each scripted player


class Actor:
    """Plays fights and writes them down. Knows nothing of processes or Ray: the same class runs inline and anywhere
    else."""

    def __init__(self, args, index):
        seed = args.seed * 1000 + index
        self.args = args
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.env = make_env(args, seed)
        self.bots = [Baseline(name, 2 * args.num_envs, seed) for name in scripted_players(args)]
        self.agent = make_agent(vars(args)).eval()
        self.members = {}  # id of a league member → its policy, copied when first needed
        self.to_meet = []  # ids of those that fights which begin are against
        self.kind = np.full(args.num_envs, -1)  # per fight; -1 = none chosen yet
        self.opponent = np.full(args.num_envs, -1)  # the id of a league member, or the number of a scripted player
        self.side = np.zeros(args.num_envs, np.int64)  # which fighter the learner is, unless it is both
        # What a league member's logits are shifted by in all ticks, and in those in which it can't attack
        self.taste = np.zeros((2, args.num_envs, NUM_LOGITS), np.float32)
        self.actions = np.zeros((2 * args.num_envs, NUM_HEADS), np.int64)

    def pull_weights(self, broadcast):
        """Takes the newest weights, and draws league members to fight now and then → (version, Matchmaking)"""
        with broadcast.lock:
            from_flat(self.agent, broadcast.weights)
            version = broadcast.version
            self_share = float(broadcast.numbers["self_share"])
            scripted_share = float(broadcast.numbers["scripted_share"])
            bot_chances = broadcast.numbers["bot_chances"].numpy().copy()
            ids = broadcast.members["policy_id"].numpy().copy()
            chances = broadcast.members["chance"].numpy().copy()
            in_use = set(self.opponent[self.kind == LEAGUE].tolist())
            # A policy in use costs a forward pass in every tick, and a fight lasts nine rollouts. New ones are drawn
            # when the last fight against those before the present ones has ended: with new ones in every rollout, more
            # than twenty were in use, and a rollout took three times as long.
            if chances.sum() > 0 and in_use <= set(self.to_meet):
                drawn = self.rng.choice(ids, self.args.opponents_at_once, p=chances / chances.sum())
                self.to_meet = np.unique(drawn).astype(int).tolist()
            self.members = load_members(self.members, self.agent, broadcast, wanted=self.to_meet, in_use=in_use)
        shares = np.array([self_share, 1.0 - self_share - scripted_share, scripted_share]).clip(0)
        return version, Matchmaking(shares / shares.sum(), self.to_meet, bot_chances)

    def choose_opponents(self, fights, matchmaking):
        """Only ever called for fights that start: an opponent stays until its fight ends."""
        for fight in fights:
            self.kind[fight] = self.rng.choice(3, p=matchmaking.shares)
            self.side[fight] = self.rng.integers(2)
            self.opponent[fight] = -1
            if self.kind[fight] == LEAGUE:
                self.opponent[fight] = matchmaking.members[self.rng.integers(len(matchmaking.members))]
                if spread := past_taste(self.args):
                    self.taste[:, fight] = draw_taste(self.rng, spread)
            elif self.kind[fight] == SCRIPTED:
                alone = len(self.bots) == 1
                self.opponent[fight] = 0 if alone else self.rng.choice(len(self.bots), p=matchmaking.bot_chances)

    def rows(self):
        """Flat rows (2 · fight + side) of the learner's policy, of each scripted player, and of each league member."""
        foe = 2 * np.arange(len(self.kind)) + 1 - self.side
        own = np.ones(2 * len(self.kind), bool)
        own[foe[self.kind != SELF]] = False
        members = {
            int(member): foe[(self.kind == LEAGUE) & (self.opponent == member)]
            for member in np.unique(self.opponent[self.kind == LEAGUE])
        }
        scripted = {bot: foe[(self.kind == SCRIPTED) & (self.opponent == bot)] for bot in range(len(self.bots))}
        return np.flatnonzero(own), scripted, members

    @torch.no_grad()
    def rollout(self, broadcast, storage):
        """Plays num_steps ticks of all fights into `storage`, with the newest weights."""
        start = time.perf_counter()
        inference_time = 0.0
        simulator_time = 0.0
        num_episodes = 0
        env = self.env
        s = SimpleNamespace(**storage)
        version, matchmaking = self.pull_weights(broadcast)
        self.choose_opponents(np.flatnonzero(self.kind < 0), matchmaking)
        own, scripted, members = self.rows()
        for t in range(self.args.num_steps):
            s.obs[t] = torch.from_numpy(env.obs)
            s.masks[t] = torch.from_numpy(env.masks)
            obs = s.obs[t].view(-1, NUM_OBS)
            masks = s.masks[t].view(-1, NUM_LOGITS)
            clock = time.perf_counter()
            normalised = self.agent.normalise(obs)
            acting = own[~env.waiting.reshape(-1)[own]]  # on a server some are still on their way into a fight
            actions, logprobs = self.agent.act(normalised[acting], masks[acting], self.generator)
            self.actions[acting] = actions.numpy()
            s.logprobs[t].view(-1)[acting] = logprobs
            s.values[t].view(-1)[own] = self.agent.value(normalised[own], normalised[own ^ 1])
            for policy_id, rows in members.items():
                member = self.members[policy_id]
                always, between = torch.from_numpy(self.taste[:, rows // 2])
                taste = always + between * masks[rows, NO_ATTACK, None]
                actions, _ = member.act(member.normalise(obs[rows]), masks[rows], self.generator, taste=taste)
                self.actions[rows] = actions.numpy()
            for bot, rows in scripted.items():  # after the agent: some of them see its action
                self.bots[bot].act(env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS), rows, self.actions)
            inference_time += time.perf_counter() - clock

            s.actions[t].view(-1, NUM_HEADS).copy_(torch.from_numpy(self.actions))
            s.trained[t] = False
            s.trained[t].view(-1)[acting] = True
            s.guessing[t] = torch.from_numpy(self.kind != SCRIPTED)[:, None]
            clock = time.perf_counter()
            _, _, _, terminated, truncated, info = env.step(self.actions.reshape(-1, 2, NUM_HEADS))
            simulator_time += time.perf_counter() - clock
            s.terms[t] = torch.from_numpy(info["terms"])
            s.terminated[t, :, 0] = torch.from_numpy(terminated)
            s.truncated[t, :, 0] = torch.from_numpy(truncated)
            s.bootstrap[t] = 0.0
            if truncated.any():
                s.bootstrap[t][torch.from_numpy(truncated)] = self.values_of_both(info["final_obs"][truncated])
            ended = np.flatnonzero(terminated | truncated)
            if len(ended):
                count = min(len(ended), MAX_EPISODES - num_episodes)
                for name, column in self.results(ended, info).items():
                    storage[f"episode_{name}"][num_episodes : num_episodes + count] = torch.from_numpy(column[:count])
                num_episodes += count
                self.choose_opponents(ended, matchmaking)
                own, scripted, members = self.rows()
        s.obs[-1] = torch.from_numpy(env.obs)
        s.values[-1] = self.values_of_both(env.obs)
        s.version.fill_(version)
        s.num_episodes.fill_(num_episodes)
        s.rollout_time.fill_(time.perf_counter() - start)
        s.inference_time.fill_(inference_time)
        s.simulator_time.fill_(simulator_time)

    def values_of_both(self, obs):
        """What both fighters of each fight expect. obs (F, 2, 176) → (F, 2)"""
        normalised = self.agent.normalise(torch.from_numpy(obs).view(-1, NUM_OBS))
        return self.agent.value(normalised, normalised[np.arange(len(normalised)) ^ 1]).view(-1, 2)

    def results(self, ended, info):
        """EPISODE_FIELDS of the fights that ended"""
        score = np.abs(SCORES[info["result"][ended]] - self.side[ended])  # as the learner sees it
        columns = (self.kind[ended], self.opponent[ended], score, info["length"][ended])
        return {name: np.float32(column) for name, column in zip(EPISODE_FIELDS, columns)}

    def state_dict(self):
        """All that the next rollout depends on, so that an inline run resumes exactly."""
        arrays = {**self.env.state_dict(), "kind": self.kind, "opponent": self.opponent, "side": self.side}
        arrays["taste"] = self.taste
        arrays |= {f"dice_{number}": bot.dice["rng"] for number, bot in enumerate(self.bots)}
        arrays["to_meet"] = np.array(self.to_meet, np.int64)
        return shared_memory.actor_state(self, arrays)

    def load_state_dict(self, state):
        arrays = shared_memory.load_actor_state(self, state)
        self.env.load_state_dict(arrays)
        self.kind[:] = arrays["kind"]
        self.opponent[:] = arrays["opponent"]
        self.side[:] = arrays["side"]
        self.taste[:] = arrays["taste"]
        self.to_meet = arrays["to_meet"].tolist()
        for number, bot in enumerate(self.bots):
            bot.dice["rng"] = arrays[f"dice_{number}"]


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


# --------------------------------------------------------------------------------------------------------------- league


class League:
    """Past selves and other frozen policies. Their weights are in `broadcast.member_weights`; they keep the Elo they
    were frozen with."""

    def __init__(self, args, broadcast):
        self.args = args
        self.broadcast = broadcast
        self.members = []
        self.next_policy_id = 1
        self.elo = ELO["nh"]
        self.bots = [{"name": name, "score": 0.5} for name in scripted_players(args)]  # the agent's, a running mean

    def join(self, name, flat):
        """A new member gets the highest quality; when the league is full, the easiest member leaves."""
        if len(self.members) == self.args.league_size:
            self.members.remove(min(self.members, key=lambda member: member["quality"]))
        place = self.broadcast.store(flat, [member["place"] for member in self.members])
        quality = max([member["quality"] for member in self.members], default=0.0)
        member = {"policy_id": self.next_policy_id, "place": place, "name": name, "quality": quality}
        self.members.append(member | {"elo": self.elo, "wins": 0.0, "games": 0})
        self.next_policy_id += 1

    def probabilities(self):
        if self.args.self_play == "latest":
            return [float(member is self.members[-1]) for member in self.members]
        return league_probabilities([member["quality"] for member in self.members]) if self.members else []

    def bot_chances(self):
        """A scripted player is met the more often, the more rarely it is beaten; none is forgotten."""
        weights = np.array([1.05 - bot["score"] for bot in self.bots])
        return (weights / weights.sum()).tolist()

    def record(self, kind, opponent, score):
        """A beaten member is worth less, the more so the more rarely it is drawn: q -= 0.01 / (N p). The agent's Elo
        moves."""
        if kind == SCRIPTED:
            bot = self.bots[int(opponent)]
            bot["score"] += 0.02 * (score - bot["score"])
            self.elo = elo_update(self.elo, ELO[bot["name"]], score)
        for index, member in enumerate(self.members):
            if kind == LEAGUE and member["policy_id"] == opponent:  # it may have left while the fight went on
                if score == 1.0:
                    member["quality"] -= 0.01 / (len(self.members) * max(self.probabilities()[index], 1e-8))
                member["games"] += 1
                member["wins"] += score
                if not past_taste(self.args):  # with a taste it is weaker than the rating that it was frozen with
                    self.elo = elo_update(self.elo, member["elo"], score)

    def self_share(self, update):
        """Of fights; who has nobody else to meet meets itself more often."""
        if not self.members or self.args.self_play == "pure":
            return 1.0 - self.args.scripted_fraction
        return anneal(self.args.self_fraction, self.args.self_fraction_final, update, ANNEAL_UPDATES)

    def publish(self, agent, version, self_share):
        """Hands weights, snapshots and sampling probabilities to the actors, all of one version."""
        numbers = {
            "self_share": self_share,
            "scripted_share": self.args.scripted_fraction,
            "bot_chances": self.bot_chances(),
        }
        members = {}
        for member, chance in zip(self.members, self.probabilities()):
            members[member["place"]] = {"policy_id": member["policy_id"], "chance": chance}
        self.broadcast.publish(agent, version, numbers, members)

    def state_dict(self):
        names = ("members", "next_policy_id", "elo", "bots")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state):
        if [bot["name"] for bot in state["bots"]] != [bot["name"] for bot in self.bots]:
            raise ValueError("it met other scripted players; give the same --opponents")
        self.members = [dict(member) for member in state["members"]]
        self.next_policy_id = state["next_policy_id"]
        self.elo = state["elo"]
        self.bots = [dict(bot) for bot in state["bots"]]


class WatchedRun:
    """The newest model of another run, for --self-play latest. `seen`: the hash of the last one that was taken."""

    def __init__(self, folder, seen=""):
        self.path = Path(folder) / "model.zip"
        self.seen = seen
        self.time = None

    def new_model(self):
        """→ the path of a model that has not been named yet, else None. Models are replaced whole, never written to."""
        if not self.path.exists() or self.path.stat().st_mtime_ns == self.time:
            return None
        self.time = self.path.stat().st_mtime_ns
        content = file_hash(self.path)
        if content == self.seen:
            return None
        self.seen = content
        return self.path


def exploiter_settings(args, target, update):
    """What an exploiter is: this run's learner, which starts from its target and fights nobody else."""
    settings = (
        dataclasses.asdict(args)
        | PRESETS["exploiter"]
        | {
            "preset": "exploiter",
            "exp_name": f"{args.exp_name}_exploiter",
            "seed": args.seed + update,
            "targets": (str(target),),
            "start_model": str(target),
            "total_timesteps": args.exploiter_train_steps,
            "max_minutes": 0.0,
            "num_workers": 1,
            "eval_frequency": 0,
            "train_exploiters": False,
            "track": False,
            "tensorboard": False,
            "capture_video": False,
            "ray_address": "",
            "server": "",  # two runs in one world would wait for each other
        }
    )
    return {name: value for name, value in settings.items() if name not in ("config", "resume")}


# ----------------------------------------------------------------------------------------------------------- the update

ATTACK_HEAD = contract.HEAD_NAMES.index("attack")
PRAYER_HEAD = contract.HEAD_NAMES.index("prayer")
CHANGING = torch.zeros(NUM_OBS).index_fill_(0, torch.from_numpy(contract.CHANGING), 1.0)  # observations that can change


def annealed_weights(weights, update):
    """The weights of the reward terms at an update: those of freezing shrink."""
    weights = weights.clone()
    freezing = [REWARD_TERMS.index("frozen"), REWARD_TERMS.index("target_frozen")]
    weights[freezing] *= anneal(1.0, FREEZE_SHRINKS_TO, update, FREEZE_UPDATES)
    return weights


def novelty_rewards(agent, obs, ended):
    """Σ max(|z| - 1, 0) of what an action led to, 0 where it ended the fight. obs (T + 1, F, 2, 176) → (T, F, 2)"""
    z = (obs[1:] - agent.obs_mean.cpu()).div_(agent.obs_std.cpu()).abs_()
    return (z.sub_(1).clamp_(0, 9) @ CHANGING) * ~ended


def rollout_rewards(agent, s, weights, novelty):
    """Named terms × their weights, and novelty, before any scaling → (T, F, 2)"""
    rewards = s.terms @ weights
    if novelty > 0:
        rewards += novelty * novelty_rewards(agent, s.obs, s.terminated | s.truncated)
    return rewards


def advantages_and_returns(s, rewards, args):
    """rewards: scaled → (T, F, 2) each"""
    advantages = gae(
        rewards=rewards,
        values=s.values[:-1],
        next_value=s.values[-1],
        terminated=s.terminated,
        truncated=s.truncated,
        bootstrap=s.bootstrap,
        gamma=args.gamma,
        gae_lambda=args.gae_lambda,
    )
    return advantages, advantages + s.values[:-1]


def flat_batch(s, advantages, returns):
    """A rollout as rows: {name: (T · F · 2, …)}. Row i ^ 1 is the other fighter of row i at the same tick."""
    return {
        "obs": s.obs[:-1].view(-1, NUM_OBS),
        "masks": s.masks.view(-1, NUM_LOGITS),
        "actions": s.actions.view(-1, NUM_HEADS),
        "guessing": s.guessing.view(-1),
        "logprobs": s.logprobs.view(-1),
        "advantages": advantages.view(-1),
        "returns": returns.view(-1),
    }


def trained_rows(trained):
    """Rows that the learner's own policy played: nobody else's actions are learnt from."""
    return torch.from_numpy(np.flatnonzero(trained.numpy()))


def take_minibatch(batch, rows, device):
    mb = {name: tensor[rows].to(device, non_blocking=True) for name, tensor in batch.items()}
    mb["target_obs"] = batch["obs"][rows ^ 1].to(device, non_blocking=True)
    return SimpleNamespace(**mb)


def entropy_bonus(entropy, masks, guessing, ent_coef, guess_ent_coef):
    """entropy (B, 12) of each head → their weighted sum, averaged: the heads of a guessing game have a weight of their
    own, unless the opponent is scripted. The style of an attack is a guess only in the ticks in which one can attack: a
    bonus in between pays for changing into other clothes every tick, and the clothes decide who is hit."""
    guess_ent_coef = max(ent_coef, guess_ent_coef)
    weights = torch.full_like(entropy, ent_coef)
    weights[:, PRAYER_HEAD] = torch.where(guessing, guess_ent_coef, ent_coef)
    weights[:, ATTACK_HEAD] = torch.where(guessing & ~masks[:, NO_ATTACK], guess_ent_coef, ent_coef)
    return (entropy * weights).sum(-1).mean()


def minibatch_loss(agent, evaluate_actions, mb, args, ent_coef, autocast=contextlib.nullcontext):
    """policy - entropy bonus + vf_coef · value → loss, its parts and statistics"""
    obs = agent.normalise(mb.obs)
    target_obs = agent.normalise(mb.target_obs)
    with autocast():
        logprob, entropy = evaluate_actions(obs, mb.masks, mb.actions.long())
        values = agent.value(obs, target_obs).float()
    advantages = mb.advantages
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss, value_loss, stats = ppo_losses(
        logprob,
        old_logprob=mb.logprobs,
        advantages=advantages,
        values=values,
        returns=mb.returns,
        clip_coef=args.clip_coef,
    )
    bonus = entropy_bonus(
        entropy,
        masks=mb.masks,
        guessing=mb.guessing,
        ent_coef=ent_coef,
        guess_ent_coef=args.guess_ent_coef,
    )
    entropy = entropy.sum(-1).mean()
    loss = policy_loss - bonus + args.vf_coef * value_loss
    old_approx_kl, approx_kl, clipfrac = stats
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "old_approx_kl": old_approx_kl,
        "approx_kl": approx_kl,
        "clipfrac": clipfrac,
    }


def gradient_step(loss, agent, optimizer, scaler, max_grad_norm):
    """→ the gradient's norm before it was clipped"""
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), max_grad_norm)
    scaler.step(optimizer)
    scaler.update()
    return grad_norm


def explained_variance(values, returns):
    return 1 - float((returns - values).var() / returns.var().clamp(min=1e-8))


LOSS_NAMES = ("policy_loss", "value_loss", "entropy", "grad_norm", "old_approx_kl", "approx_kl", "clipfrac")


def update_agent(agent, optimizer, s, rewards, args, learner, ent_coef, passes):
    """`passes` of PPO over the rows of a rollout that are the learner's own → losses/*. rewards: scaled, (T, F, 2)"""
    advantages, returns = advantages_and_returns(s, rewards, args)
    batch = flat_batch(s, advantages, returns)
    rows = trained_rows(s.trained)
    steps = []  # LOSS_NAMES of each gradient step
    for _ in range(passes):
        for mb_rows in minibatches(rows, args.minibatch_size):
            mb = take_minibatch(batch, mb_rows, learner.device)
            loss, stats = minibatch_loss(
                agent,
                evaluate_actions=learner.evaluate_actions,
                mb=mb,
                args=args,
                ent_coef=ent_coef,
                autocast=learner.autocast,
            )
            stats["grad_norm"] = gradient_step(
                loss, agent=agent, optimizer=optimizer, scaler=learner.scaler, max_grad_norm=args.max_grad_norm
            )
            steps.append(torch.stack([stats[name].detach() for name in LOSS_NAMES]))
    metrics = {"losses/explained_variance": explained_variance(s.values[:-1][s.trained], returns[s.trained])}
    check_finite(steps)
    if steps:
        means = torch.stack(steps).mean(0).tolist()
        metrics |= {f"losses/{name}": mean for name, mean in zip(LOSS_NAMES, means)}
    return metrics


class ObservationStatistics:
    """Mean and std of the learner's observations. They move after an update, so that it saw what the actor saw."""

    def __init__(self):
        self.rms = RunningMeanStd(NUM_OBS)

    def start_from(self, agent, count=1e6):
        """A policy that was trained before keeps its own statistics for a while, as if of so many rows."""
        self.rms.mean = agent.obs_mean.double().cpu()
        self.rms.var = agent.obs_std.double().square().cpu()
        self.rms.count = count

    def move(self, agent, obs):
        """obs: (N, 176) of the rollout's trained rows"""
        self.rms.update(obs)
        agent.obs_mean.copy_(self.rms.mean)
        agent.obs_std.copy_(self.rms.var.sqrt().clamp(min=1e-2))

    def state_dict(self):
        return dict(vars(self.rms))

    def load_state_dict(self, state):
        self.rms.mean = state["mean"]
        self.rms.var = state["var"]
        self.rms.count = state["count"]


def learn_from(s, index, update, agent, optimizer, args, learner):
    """One update: rewards, PPO, then the statistics → losses/* and rewards/*, returns of own fights that ended

    s: a rollout of actor `index`. learner: what the learner has beside its network, as it is made below"""
    first = update == 1  # played without normalisation, when everything is novel: it only feeds the statistics
    weights = annealed_weights(learner.reward_weights, update)
    novelty = 0.0 if first else anneal(args.novelty, 0.0, update, NOVELTY_UPDATES)
    rewards = rollout_rewards(agent, s, weights, novelty)
    scaled, returns = learner.reward_scale(
        index, rewards=rewards, ended=s.terminated | s.truncated, trained=s.trained, gamma=args.gamma
    )
    metrics = update_agent(
        agent,
        optimizer,
        s,
        rewards=scaled.clamp(-REWARD_CLIP, REWARD_CLIP),
        args=args,
        learner=learner,
        ent_coef=anneal(args.ent_coef, args.ent_coef_final, update, ANNEAL_UPDATES),
        passes=0 if first else args.update_epochs,
    )
    learner.obs_statistics.move(agent, s.obs[:-1][s.trained])
    paid = (s.terms[s.trained].mean(0) * weights).tolist()
    return metrics | {f"rewards/{term}": mean for term, mean in zip(REWARD_TERMS, paid)}, returns


def fight_results(s):
    """Fights that ended in a rollout → {field of EPISODE_FIELDS: (N,)}"""
    return {name: getattr(s, f"episode_{name}")[: int(s.num_episodes)] for name in EPISODE_FIELDS}


def fight_metrics(results, names, returns):
    """→ win_rate/<name> with how many, length and return. names: of SELF, LEAGUE and SCRIPTED"""
    if not len(results["score"]):
        return {}
    metrics = {
        "charts/episodic_length": float(results["length"].mean()),
        "charts/episodic_return": float(returns.mean()),
    }
    for kind, name in enumerate(names):
        scores = results["score"][results["kind"] == kind]
        if len(scores):
            metrics |= {f"win_rate/{name}": float(scores.mean()), f"win_rate/{name}_n": len(scores)}
    return metrics


# ---------------------------------------------------------------------------------------------- evaluation, checkpoints


def save_model(path, agent, args):
    statistics = {"mean": agent.obs_mean.cpu().numpy(), "std": agent.obs_std.cpu().numpy()}
    metadata = {"game": "osrs", "contract_hash": contract.contract_hash()}
    models.save_model(path, agent.state_dict(), statistics=statistics, metadata=metadata, args=args, script=__file__)


def load_model(path, args=None):
    """A run's folder or a model.zip → (agent, metadata); `args`: of the run whose league it is to join"""
    return models.load_agent(
        path,
        contract_hash=contract.contract_hash(),
        make_agent=make_agent,
        args=args,
        sizes=("hidden_size", "head_size"),
    )


@dataclasses.dataclass
class Progress:
    """How far a run is, over all its resumptions."""

    update: int = 0
    global_step: int = 0
    version: int = 0
    seconds: float = 0.0
    best_score: float = -1.0  # the highest mean of an evaluation
    best_model: str = ""


def check_args(args):
    """Refuses settings that make no sense together, before anything is written."""
    scripted_players(args)
    reward_weights(args.reward_weights)
    if args.self_play in ("target", "exploiter") and not args.targets:
        raise BadInput(f"--self-play {args.self_play} needs --targets: models or run folders.")
    if args.self_play == "latest" and (len(args.targets) != 1 or not Path(args.targets[0]).is_dir()):
        raise BadInput("--self-play latest needs one folder in --targets: that of a run, whose newest model is met.")
    if args.targets and args.self_play in ("pure", "past"):
        raise BadInput(f"--targets are not met with --self-play {args.self_play}: add --self-play target.")
    if len(args.targets) > args.league_size:
        raise BadInput(f"--league-size {args.league_size} is too small for {len(args.targets)} --targets.")
    if args.train_exploiters and args.self_play != "past":
        raise BadInput(f"--train-exploiters needs a league: --self-play past, not {args.self_play}.")
    for flag, share in (("--self-fraction", args.self_fraction), ("--self-fraction-final", args.self_fraction_final)):
        if share + args.scripted_fraction > 1 + 1e-9 and args.self_play != "pure":
            raise BadInput(f"{flag} {share:g} and --scripted-fraction {args.scripted_fraction:g} sum to more than 1.")
    try:
        find_loadouts(args.loadouts, args.loadout_file)
    except (ValueError, FileNotFoundError) as error:
        raise BadInput(f"--loadouts: {error}") from None
    if args.server:
        from cleanrl_games.envs.osrs.remote import check_server, server_params  # asyncio is only needed here

        if args.num_workers > 1:
            raise BadInput(f"--server has one world, for one actor: --num-workers {args.num_workers} would block it.")
        if args.loadout_file or not args.mirror:
            raise BadInput("--server has its own gear, the same for both: no --loadout-file and no --no-mirror there.")
        try:
            server_params(args.loadouts)
            check_server(args.server)
        except ValueError as error:
            raise BadInput(f"--server {args.server}: {error}") from None
    ray_actors.check_address(args.ray_address)


if __name__ == "__main__":
    args = parse_args(Args, PRESETS, aliases=ALIASES)
    check_args(args)
    network_hash = models.network_hash(script_source(__file__))
    checkpoint = load_checkpoint(args.resume, contract.contract_hash(), network_hash) if args.resume else None
    learner_pid = exploiter_processes.learner_pid()
    device, autocast, scaler = set_up(args)

    agent = make_agent(vars(args)).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    learner = SimpleNamespace(
        evaluate_actions=maybe_compile(args, agent.evaluate_actions, device),
        scaler=scaler,
        autocast=autocast,
        device=device,
        reward_weights=reward_weights(args.reward_weights),
        reward_scale=RewardScale(max(args.num_workers, 1), args.num_envs, 2),
        obs_statistics=ObservationStatistics(),
    )
    if args.start_model and not checkpoint:
        agent.load_state_dict(load_model(args.start_model, args)[0].state_dict())
        learner.obs_statistics.start_from(agent)
    settings = dataclasses.replace(args)  # for config.yaml, where "auto" stays "auto"
    args.sharing = shared_memory.resolve_sharing(args, make_storage, len(to_flat(agent)))
    broadcast = make_broadcast(args, len(to_flat(agent)))
    league = League(args, broadcast)
    targets = {}
    if args.self_play in ("target", "exploiter"):
        targets = {path: load_model(path, args)[0] for path in args.targets}
    for path, policy in targets.items():
        league.join(Path(path).name, to_flat(policy))
    actor = Actor(args, 0) if args.num_workers == 0 else None
    now = Progress()
    if checkpoint:
        restore(checkpoint, agent=agent, optimizer=optimizer, scaler=scaler)
        restore(checkpoint, obs_statistics=learner.obs_statistics, reward_scale=learner.reward_scale)
        restore(checkpoint, league=league, member_weights=broadcast.member_weights)
        now = Progress(**checkpoint["progress"])
        torch.set_rng_state(checkpoint["torch_rng"])
        if actor and checkpoint["actor"]:
            restore(checkpoint, actor=actor)
    watched = None
    if args.self_play == "latest":
        watched = WatchedRun(args.targets[0], seen=checkpoint["watched"] if checkpoint else "")
        if watched.path.exists():
            load_model(watched.path, args)  # one of other sizes is refused now
    run_dir = make_run_folder(settings, __file__)  # not before everything is known to fit
    known_exploiters = set(checkpoint["known_exploiters"]) if checkpoint else set()
    exploiter_runs = exploiter_processes.ExploiterRuns(run_dir, __file__, known_exploiters)

    def save_all():
        state = {
            "agent": agent.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "obs_statistics": learner.obs_statistics.state_dict(),
            "reward_scale": learner.reward_scale.state_dict(),
            "league": league.state_dict(),
            "member_weights": broadcast.member_weights.clone(),
            "known_exploiters": sorted(exploiter_runs.known),
            "watched": watched.seen if watched else "",
            "progress": dataclasses.asdict(now),
            "torch_rng": torch.get_rng_state(),
            "actor": actor.state_dict() if actor else None,
            "contract_hash": contract.contract_hash(),
            "network_hash": network_hash,
        }
        save_checkpoint(run_dir, state)
        save_model(run_dir / "model.zip", agent, args)
        exploiter_runs.keep_newest(args.keep_models)

    def evaluate_all(episodes):
        """The models beside the results let a run be compared with its own past."""
        path = run_dir / "models" / f"{now.global_step}.zip"
        save_model(path, agent, args)
        video = run_dir / "videos" / f"{now.global_step}.gif" if args.capture_video else ""
        metrics = evaluate(
            args, agent=agent, episodes=episodes, video=video, targets=tuple(targets.values()), seed=now.update
        )
        judges = ["opponent"] if targets else BASELINES
        score = float(np.mean([metrics[f"eval/{name}"] for name in judges]))
        if score > now.best_score:
            now.best_score = score
            now.best_model = path.name
        keep_models(run_dir, args.keep_models, run_dir / "models" / now.best_model)
        return metrics

    def new_exploiters():
        """Models that won often enough, each named once: of exploiters of this run's own, and of others' against it."""
        others = {f"exploiters/{path.name}" for path in run_dir.glob("exploiters/*.zip")}
        found = exploiter_runs.unseen_models() + sorted(others - exploiter_runs.known)
        exploiter_runs.known |= others
        return found

    def grow_league():
        """A snapshot of the agent now and then; exploiters that won often enough; the watched run's newest model."""
        if args.self_play == "past":
            if args.snapshot_frequency and now.update % args.snapshot_frequency == 0:
                league.join(f"snapshot_{now.global_step}", to_flat(agent))
            for model in new_exploiters():
                league.join(model, to_flat(load_model(run_dir / model, args)[0]))
        if watched and (model := watched.new_model()):
            league.join(f"{model.parent.name}_{watched.seen}", to_flat(load_model(model, args)[0]))

    def train_exploiters():
        """One at a time, in the background."""
        exploiter_runs.finish_ended(args.exploiter_win_threshold)
        due = args.train_exploiters and now.update % args.exploiter_check_interval == 0
        if due and not exploiter_runs.job:
            make_settings = functools.partial(exploiter_settings, args, update=now.update)
            exploiter_runs.start_one(now.update, lambda path: save_model(path, agent, args), make_settings)

    stopping = stop_on_signals()
    logger = Logger(args, run_dir, now.global_step)
    if watched:
        grow_league()
    league.publish(agent, now.version, league.self_share(now.update))
    rollouts = make_rollouts(args, broadcast, stopping, actor)
    start_time = time.time()
    first_step = now.global_step
    seconds_before = now.seconds
    consistent = True
    finished = False
    done = progress(args, now.global_step, now.seconds)

    try:
        wait_start = time.perf_counter()
        for index, storage, queue_size in rollouts:
            if learner_pid and os.getppid() != learner_pid:
                raise RunFailed("The run whose exploiter this is has ended.")
            wait_time = time.perf_counter() - wait_start
            learn_start = time.perf_counter()
            s = SimpleNamespace(**storage)
            consistent = False
            now.update += 1
            now.global_step += int(s.trained.sum())
            lag = torch.tensor(now.version - float(s.version))

            lr = anneal(args.learning_rate, args.learning_rate_final, done, 1.0)
            optimizer.param_groups[0]["lr"] = lr
            learnt, returns = learn_from(
                s, index=index, update=now.update, agent=agent, optimizer=optimizer, args=args, learner=learner
            )
            now.version += 1

            # --- the league: results of the fights that ended, newcomers
            results = fight_results(s)
            for kind, opponent, score in zip(*(results[name].tolist() for name in ("kind", "opponent", "score"))):
                league.record(kind, opponent, score)
            train_exploiters()
            grow_league()
            self_share = league.self_share(now.update)
            league.publish(agent, now.version, self_share)
            now.seconds = seconds_before + time.time() - start_time
            consistent = True
            learn_time = time.perf_counter() - learn_start

            # --- logs, evaluation, checkpoint
            done = progress(args, now.global_step, now.seconds)
            seconds = [float(storage[name]) for name in TIMES]
            metrics = {
                "charts/SPS": (now.global_step - first_step) / (time.time() - start_time),
                "charts/learning_rate": lr,
                "charts/self_fraction": self_share,
                **learnt,
                **time_metrics(lag, queue_size=queue_size, seconds=seconds, learn_time=learn_time, wait_time=wait_time),
                **fight_metrics(results, ("self", args.self_play, "scripted"), returns),
                "elo/agent": league.elo,
                "league/size": len(league.members),
            }
            if best := exploiter_runs.best_win_rate():
                metrics["exploiter/best_win_rate"] = best
            finished = done >= 1.0
            if finished or (args.eval_frequency and now.update % args.eval_frequency == 0):
                episodes = args.final_episodes if finished else args.eval_episodes
                metrics |= until_stopped(stopping, evaluate_all, episodes)
            logger.write(metrics, now.global_step, done)
            if finished or stopping:
                break
            if now.update % args.checkpoint_frequency == 0:
                save_all()
            wait_start = time.perf_counter()
    finally:
        rollouts.close()
        logger.close()
        exploiter_runs.close()
        if consistent:  # not in the middle of an update, whose half would be neither the old nor the new policy
            save_all()
        say_how_to_go_on(run_dir)
    if args.self_play == "exploiter" and finished and metrics["eval/opponent"] >= args.exploiter_win_threshold:
        for target in args.targets:
            if (Path(target) / "checkpoint.pt").is_file():  # a run, which may go on and whose league it joins
                save_model(Path(target) / "exploiters" / f"{run_dir.name}.zip", agent, args)
