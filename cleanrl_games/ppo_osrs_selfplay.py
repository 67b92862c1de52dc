"""Self-play PPO on Old School RuneScape NH fights, with a league of past selves.

    python cleanrl_games/ppo_osrs_selfplay.py --num-workers 1

    Actor 0 ─┐ (process, or inline, or on a Ray cluster)      ┌───────────────────────────────┐
      fights in Numba, batched inference,                     │ learner: normalise, GAE, PPO  │
      opponents fixed from a fight's start to its end         │ league, Elo, evaluation, logs │
    Actor 1 ─┤                                                └──────┬──────────────▲─────────┘
      …      └─ rollouts in shared-memory slots, only indices cross ──┼──────────────┘
                the queues ◄──── weights by version, snapshots ◄──────┘  (Board, under a lock)

A rollout holds T ticks of F fights with both fighters, so that the critic of one can look into the other's hand.
"""

import contextlib
import copy
import dataclasses
import difflib
import hashlib
import io
import json
import math
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
import tyro
import yaml
from torch.utils.tensorboard import SummaryWriter

from cleanrl_games.envs.osrs import BASELINES, Baseline, NHVecEnv, contract_hash
from cleanrl_games.envs.osrs.contract import CHANGING, FORBIDS, HEAD_OFFSETS, HEAD_SIZES, NEEDS
from cleanrl_games.envs.osrs.contract import NUM_CRITIC_OBS, NUM_HEADS, NUM_LOGITS, NUM_OBS, PARTIAL, REWARD_TERMS
from cleanrl_games.envs.osrs.match import play_fights

# Named sets of values. `core` is what the defaults below say; a flag or a config file overrides a preset.
PRESETS = {
    "core": {},
    "pure": {"self_play": "pure", "self_fraction": 1.0, "self_fraction_final": 1.0},
    "past": {"self_play": "past", "self_fraction": 0.8, "self_fraction_final": 0.2, "fraction_anneal_updates": 200},
    "exploiter": {"self_play": "exploiter", "self_fraction": 0.0, "self_fraction_final": 0.0, "snapshot_frequency": 0},
}


@dataclasses.dataclass
class Args:
    # --- experiment
    exp_name: str = Path(__file__).stem
    """the name of this experiment"""
    preset: Literal["core", "pure", "past", "exploiter"] = "core"
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
    env_id: str = "osrs-nh"
    """name of the game in the run's folder"""
    loadouts: tuple[str, ...] = ("lms_med",)
    """loadouts to fight with; each fight draws one"""
    loadout_file: str = ""
    """a YAML file of your own loadouts, empty = the shipped one"""
    mirror: bool = True
    """both fighters of a fight have the same loadout"""
    max_ticks: int = 1000
    """a fight longer than this is truncated (600 ms a tick)"""
    reward_ko: float = 1.0
    """reward: the target died"""
    reward_death: float = -1.0
    """reward: the agent died"""
    reward_tie: float = -0.2
    """reward: both died"""
    reward_damage_dealt: float = 0.25
    """reward per share of the target's HP, when the hit is rolled"""
    reward_damage_received: float = -0.25
    """reward per share of own HP, when the hit is rolled"""
    reward_healed: float = 0.25
    """reward per share of own HP healed by spells"""
    reward_target_healed: float = -0.25
    """reward per share of the target's HP healed by spells"""
    reward_wasted_food: float = -1.25
    """reward per share of HP that food would have healed above the maximum"""
    reward_food_left: float = -0.25
    """reward at death for what was left to eat: scale × (scale + 1.2)^1.5"""
    reward_target_food_left: float = 0.25
    """the same for the target's"""
    reward_prayer_correct: float = 0.025
    """reward: the right overhead prayer met an attack (× attack speed / 5)"""
    reward_prayer_wrong: float = -0.025
    """reward: the wrong one did"""
    reward_hit_off_prayer: float = 0.025
    """reward: an attack the target did not pray against"""
    reward_hit_on_prayer: float = -0.025
    """reward: one that it did"""
    reward_frozen: float = -0.004
    """reward per new tick of being frozen"""
    reward_target_frozen: float = 0.004
    """reward per new tick of freezing the target"""
    reward_frozen_final_scale: float = 0.75
    """the two freeze rewards shrink to this share of themselves over 300 updates"""
    reward_no_prayer: float = -0.01
    """reward per tick without prayer points"""
    reward_smite_dealt: float = 0.025
    """reward per share of HP dealt under smite"""
    reward_smite_received: float = -0.025
    """the same received"""
    reward_health_preserved: float = 0.0
    """reward per share of HP left at a win"""
    novelty: float = 2.5e-4
    """reward per unit of Σ max(|z| - 1, 0) over the normalised observations"""
    novelty_updates: int = 200
    """updates over which the novelty reward goes to 0"""

    # --- actors
    num_workers: int = 1
    """actor processes; 0 = inline in the learner's process, deterministic"""
    num_envs: int = 256
    """fights per actor"""
    num_steps: int = 100
    """ticks per rollout"""
    ray_address: str = ""
    """run the actors on this Ray cluster ("auto", "127.0.0.1:6379", …)"""

    # --- algorithm
    total_timesteps: int = 50_000_000
    """agent-steps to train for"""
    max_minutes: float = 0.0
    """stop after this many minutes, 0 = no limit"""
    learning_rate: float = 3e-4
    """Adam's step size"""
    learning_rate_final: float = 3e-4
    """its value at total_timesteps (linear)"""
    gamma: float = 0.995
    """discount"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    minibatch_size: int = 2048
    """agent-steps per gradient step"""
    update_epochs: int = 1
    """passes over a rollout"""
    norm_adv: bool = True
    """normalise advantages per minibatch"""
    clip_coef: float = 0.2
    """PPO's clip"""
    ent_coef: float = 0.01
    """entropy bonus"""
    ent_coef_final: float = 0.001
    """its value after ent_coef_updates"""
    ent_coef_updates: int = 1000
    """updates over which the entropy bonus goes to its final value"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """gradient clip"""
    reward_clip: float = 10.0
    """clip of rewards after division by the std of discounted returns"""
    hidden_size: int = 512
    """width of the actor's and the critic's two layers"""
    head_size: int = 128
    """width of each action head's two layers"""

    # --- self-play
    self_play: Literal["pure", "past", "target", "latest", "exploiter"] = "past"
    """who fills the fights that are neither against oneself nor scripted: nobody, the league, a fixed model (--opponent), the newest snapshot; exploiter = a fixed model, and join its league at the end"""
    opponent: str = ""
    """model.zip or run folder to fight for --self-play target and exploiter"""
    self_fraction: float = 0.8
    """share of fights against oneself at the start"""
    self_fraction_final: float = 0.2
    """and after fraction_anneal_updates"""
    fraction_anneal_updates: int = 1000
    """updates over which the share changes"""
    scripted_fraction: float = 0.0
    """share of fights against the scripted NH bot"""
    snapshot_frequency: int = 10
    """updates between snapshots for the league, 0 = none"""
    league_size: int = 32
    """members of the league; beyond that the easiest leaves"""
    guests: int = 3
    """league members an actor fights at a time (one batched forward pass each)"""

    # --- evaluation and checkpoints
    eval_frequency: int = 20
    """updates between evaluations against the scripted players, 0 = only at the end"""
    eval_episodes: int = 200
    """fights per evaluation and opponent"""
    checkpoint_frequency: int = 10
    """updates between checkpoints"""
    capture_video: bool = False
    """a GIF of a fight with each evaluation"""


# ------------------------------------------------------------------------------------------------------------- networks


def layer_init(layer, std=math.sqrt(2)):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """A policy that chooses twelve actions one after another, and a critic that also sees what the opponent hides.

    Head k reads the trunk's hidden state and the normalised one-hots of the heads before it. All first layers are one
    matrix product; in training, where the actions are known, so are the second and third layers of all heads.
    """

    def __init__(self, hidden_size, head_size):
        super().__init__()
        self.head_size = head_size
        self.trunk = nn.Sequential(
            layer_init(nn.Linear(NUM_OBS, hidden_size)), nn.ReLU(), layer_init(nn.Linear(hidden_size, hidden_size)), nn.ReLU()
        )
        self.critic = nn.Sequential(
            layer_init(nn.Linear(NUM_CRITIC_OBS, hidden_size)), nn.ReLU(),
            layer_init(nn.Linear(hidden_size, hidden_size)), nn.ReLU(), layer_init(nn.Linear(hidden_size, 1), std=1.0),
        )  # fmt: skip
        self.head_in = layer_init(nn.Linear(hidden_size, NUM_HEADS * head_size))
        self.head_earlier = nn.Parameter(torch.randn(NUM_LOGITS, NUM_HEADS, head_size) * 0.05)
        self.head_hidden = nn.Parameter(torch.stack([nn.init.orthogonal_(torch.empty(head_size, head_size), math.sqrt(2)) for _ in HEAD_SIZES]))
        self.head_hidden_bias = nn.Parameter(torch.zeros(NUM_HEADS, 1, head_size))
        self.head_out = nn.Parameter(torch.stack([nn.init.orthogonal_(torch.empty(head_size, max(HEAD_SIZES)), 0.01) for _ in HEAD_SIZES]))
        self.head_out_bias = nn.Parameter(torch.zeros(NUM_HEADS, 1, max(HEAD_SIZES)))

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
            "pad": torch.tensor([[offset + i if i < size else NUM_LOGITS for i in range(max(HEAD_SIZES))] for offset, size in zip(HEAD_OFFSETS, HEAD_SIZES)]),
            "needs": torch.tensor(np.where(NEEDS < 0, NUM_LOGITS, NEEDS)),
            "forbids": torch.tensor(np.where(FORBIDS < 0, NUM_LOGITS, FORBIDS)),
            "offsets": torch.tensor(HEAD_OFFSETS),
            "partial": torch.tensor(PARTIAL),
        }
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)

    def normalise(self, obs):
        return ((obs - self.obs_mean) / self.obs_std).clamp(-5, 5)

    def value(self, obs, target_obs):
        """obs, target_obs: (B, 176), normalised → (B,)"""
        return self.critic(torch.cat([obs, target_obs[:, self.partial]], -1)).squeeze(-1)

    def evaluate_actions(self, obs, masks, actions):
        """obs (B, 176) normalised, masks (B, 45), actions (B, 12) → log-prob (B,), entropy (B,)"""
        batch = len(obs)
        chosen = torch.zeros(batch, NUM_LOGITS, device=obs.device).scatter_(1, actions + self.offsets, 1.0)
        weights = self.head_earlier * self.earlier[:, :, None]
        hidden = self.head_in(self.trunk(obs)) + ((chosen - self.rate) / self.rate_std) @ weights.flatten(1)
        hidden = F.relu(hidden).view(batch, NUM_HEADS, self.head_size).transpose(0, 1)  # (12, B, H)
        hidden = F.relu(torch.baddbmm(self.head_hidden_bias, hidden, self.head_hidden))
        logits = torch.baddbmm(self.head_out_bias, hidden, self.head_out).transpose(0, 1).float()  # (B, 12, 7)
        yes, no = torch.ones(batch, 1, dtype=torch.bool, device=obs.device), torch.zeros(batch, 1, dtype=torch.bool, device=obs.device)
        taken = chosen.bool()
        legal = masks & torch.cat([taken, yes], 1)[:, self.needs] & ~torch.cat([taken, no], 1)[:, self.forbids]
        legal = torch.cat([legal, no], 1)[:, self.pad]  # (B, 12, 7)
        legal[:, :, 0] |= ~legal.any(-1)  # a head with nothing legal takes action 0
        logprobs = logits.masked_fill(~legal, torch.finfo(logits.dtype).min).log_softmax(-1)
        logprob = logprobs.gather(-1, actions[:, :, None]).squeeze(-1).sum(-1)
        entropy = -(logprobs.exp() * logprobs.clamp(min=-1e4)).sum((-1, -2))
        return logprob, entropy

    def act(self, obs, masks, generator=None, deterministic=False):
        """Samples head after head. obs (B, 176) normalised, masks (B, 45) → actions (B, 12), log-prob (B,)"""
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
            forbidden = chosen[:, self.forbids[span]].bool() & (self.forbids[span] < NUM_LOGITS)  # … and forbids nothing
            legal = masks[:, span] & chosen[:, self.needs[span]].bool() & ~forbidden
            legal[:, 0] |= ~legal.any(-1)
            logprobs = logits.masked_fill(~legal, torch.finfo(logits.dtype).min).log_softmax(-1)
            if deterministic:
                action = logprobs.argmax(-1, keepdim=True)
            else:
                noise = torch.empty_like(logprobs).exponential_(generator=generator)
                action = (logprobs.exp() / noise).argmax(-1, keepdim=True)
            logprob += logprobs.gather(-1, action).squeeze(-1)
            actions[:, head] = action.squeeze(-1)
            chosen.scatter_(1, action + offset, 1.0)
            scaled[:, span] = (chosen[:, span] - self.rate[span]) / self.rate_std[span]
        return actions, logprob


def to_flat(agent):
    return torch.cat([tensor.detach().flatten().cpu() for tensor in agent.state_dict().values()])


def from_flat(agent, flat):
    offset = 0
    for tensor in agent.state_dict().values():
        tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
        offset += tensor.numel()


# ----------------------------------------------------------------------------------------------------------- pure maths


def gae(rewards, values, next_value, terminated, truncated, bootstrap, gamma, gae_lambda):
    """All (T, B), next_value (B,). A terminated fight is worth nothing more, a truncated one V(its last observation)."""
    advantages, last = torch.zeros_like(rewards), torch.zeros_like(next_value)
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
        stats = torch.stack([-logratio.mean(), (ratio - 1 - logratio).mean(), ((ratio - 1).abs() > clip_coef).float().mean()])
    return policy_loss, value_loss, stats


class RunningMeanStd:
    """Mean and variance of all that was seen, merged batch by batch (Chan et al.), in double precision."""

    def __init__(self, size):
        self.mean, self.var, self.count = torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64), 1e-4

    def update(self, batch):
        mean, var, count = batch.mean(0).double(), batch.var(0, unbiased=False).double(), len(batch)
        delta, total = mean - self.mean, self.count + count
        self.mean = self.mean + delta * count / total
        self.var = (self.var * self.count + var * count + delta.square() * self.count * count / total) / total
        self.count = total


def anneal(start, final, update, updates):
    return start + (final - start) * min(update / max(updates, 1), 1.0)


def league_probabilities(qualities):
    """Prioritised sampling as in OpenAI Five: softmax of the qualities."""
    exp = np.exp(np.asarray(qualities) - np.max(qualities))
    return exp / exp.sum()


def league_won(qualities, index):
    """A beaten member is worth less, the more so the more rarely it was drawn: q -= 0.01 / (N p)."""
    qualities[index] -= 0.01 / (len(qualities) * league_probabilities(qualities)[index])


def elo_update(rating, reference, score, k=16.0):
    """Only the agent's rating moves: references are frozen."""
    return rating + k * (score - 1.0 / (1.0 + 10.0 ** ((reference - rating) / 400.0)))


# --------------------------------------------------------------------------------------------------------------- actors

SELF, LEAGUE, SCRIPTED = range(3)
KINDS = ("self", "past", "scripted")
MAX_EPISODES = 4096  # per rollout


def make_env(args, num_fights, seed):
    return NHVecEnv(num_fights, args.loadouts, args.loadout_file or None, args.mirror, seed, args.max_ticks)


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
        "terminated": torch.zeros(args.num_steps, args.num_envs, dtype=torch.bool),
        "truncated": torch.zeros(args.num_steps, args.num_envs, dtype=torch.bool),
        "trained": torch.zeros(shape, dtype=torch.bool),  # whether the learner's own policy acted here
        "episodes": torch.zeros(MAX_EPISODES, 4),  # kind, league member, score, length
        "info": torch.zeros(5, dtype=torch.float64),  # version, episodes, seconds of: rollout, inference, simulator
    }


class Board:
    """What the learner tells its actors: weights by version, the league's snapshots, whom to fight. In shared memory."""

    def __init__(self, args, num_parameters):
        self.weights = torch.zeros(num_parameters).share_memory_()
        self.snapshots = torch.zeros(args.league_size, num_parameters).share_memory_()
        # [version, share self, share scripted, then per league row: its serial number and its probability]
        self.numbers = torch.zeros(3 + 2 * args.league_size, dtype=torch.float64).share_memory_()
        self.lock = mp.get_context("spawn").Lock()


class Actor:
    """Plays fights and writes them down. Knows nothing of processes or Ray: the same class runs inline and anywhere else."""

    def __init__(self, args, index):
        self.args = args
        self.rng = np.random.default_rng([args.seed, index])
        self.generator = torch.Generator().manual_seed(args.seed * 1000 + index)
        self.env = make_env(args, args.num_envs, args.seed * 1000 + index)
        self.bot = Baseline("nh", 2 * args.num_envs, args.seed * 1000 + index)
        self.agent = Agent(args.hidden_size, args.head_size).eval()
        self.members = {}  # serial number of a league member → its policy, copied when first needed
        self.kind = np.full(args.num_envs, -1)  # per fight
        self.member = np.full(args.num_envs, -1)
        self.side = np.zeros(args.num_envs, np.int64)  # which fighter the learner is, unless it is both
        self.actions = np.zeros((2 * args.num_envs, NUM_HEADS), np.int64)

    def choose_opponents(self, fights, shares, guests):
        """Only ever called for fights that start."""
        for fight in fights:
            kind = self.rng.choice(3, p=shares) if guests or shares[LEAGUE] == 0 else SELF
            self.kind[fight], self.side[fight] = kind, self.rng.integers(2)
            self.member[fight] = guests[self.rng.integers(len(guests))] if kind == LEAGUE else -1

    def rows(self):
        """Flat rows (2 · fight + side) of the learner's policy, of the bot, and of each league member."""
        foe = 2 * np.arange(len(self.kind)) + 1 - self.side
        own = np.ones(2 * len(self.kind), bool)
        own[foe[self.kind != SELF]] = False
        members = {int(member): foe[self.member == member] for member in np.unique(self.member[self.kind == LEAGUE])}
        return np.flatnonzero(own), foe[self.kind == SCRIPTED], members

    @torch.no_grad()
    def rollout(self, board, storage):
        """Plays num_steps ticks of all fights into `storage`, with the weights that are on the board now."""
        start, inference_time, simulator_time = time.perf_counter(), 0.0, 0.0
        args, env, episodes = self.args, self.env, 0
        with board.lock:
            from_flat(self.agent, board.weights)
            version, self_share, scripted_share = board.numbers[:3].tolist()
            serials, probabilities = board.numbers[3:].view(2, -1).numpy().copy()
            guests = []
            if probabilities.sum() > 0:
                guests = [int(g) for g in np.unique(self.rng.choice(serials, args.guests, p=probabilities / probabilities.sum()))]
            for serial in guests:
                if serial not in self.members:
                    self.members[serial] = copy.deepcopy(self.agent)
                    from_flat(self.members[serial], board.snapshots[int(np.flatnonzero(serials == serial)[0])])
        shares = np.array([self_share, 1.0 - self_share - scripted_share, scripted_share]).clip(0)
        shares /= shares.sum()
        if (self.kind < 0).any():
            self.choose_opponents(np.flatnonzero(self.kind < 0), shares, guests)
        in_use = {*guests, *self.member.tolist()}
        self.members = {serial: policy for serial, policy in self.members.items() if serial in in_use}

        own, scripted, members = self.rows()
        for t in range(args.num_steps):
            storage["obs"][t] = torch.from_numpy(env.obs)
            storage["masks"][t] = torch.from_numpy(env.masks)
            obs, masks = storage["obs"][t].view(-1, NUM_OBS), storage["masks"][t].view(-1, NUM_LOGITS)
            tick = time.perf_counter()
            normalised = self.agent.normalise(obs)
            actions, logprobs = self.agent.act(normalised[own], masks[own], self.generator)
            self.actions[own] = actions.numpy()
            storage["logprobs"][t].view(-1)[own] = logprobs
            storage["values"][t].view(-1)[own] = self.agent.value(normalised[own], normalised[own ^ 1])
            for serial, rows in members.items():
                member = self.members[serial]
                self.actions[rows] = member.act(member.normalise(obs[rows]), masks[rows], self.generator)[0].numpy()
            self.bot.act(env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS), scripted, self.actions)
            inference_time += time.perf_counter() - tick

            storage["actions"][t].view(-1, NUM_HEADS)[:] = torch.from_numpy(self.actions)
            storage["trained"][t].view(-1)[:] = False
            storage["trained"][t].view(-1)[own] = True
            tick = time.perf_counter()
            _, _, _, terminated, truncated, info = env.step(self.actions.reshape(-1, 2, NUM_HEADS))
            simulator_time += time.perf_counter() - tick
            storage["terms"][t] = torch.from_numpy(info["terms"])
            storage["terminated"][t], storage["truncated"][t] = torch.from_numpy(terminated), torch.from_numpy(truncated)
            storage["bootstrap"][t] = 0.0
            if truncated.any():
                last = self.agent.normalise(torch.from_numpy(info["final_obs"][truncated]).view(-1, NUM_OBS))
                rows = np.arange(len(last))
                storage["bootstrap"][t][torch.from_numpy(truncated)] = self.agent.value(last, last[rows ^ 1]).view(-1, 2)
            ended = np.flatnonzero(terminated | truncated)
            for fight in ended[: MAX_EPISODES - episodes]:
                won = {0: 0.5, 1: 1.0, 2: 0.0, 3: 0.5}[int(info["result"][fight])]
                score = won if self.side[fight] == 0 else 1.0 - won
                storage["episodes"][episodes] = torch.tensor([self.kind[fight], self.member[fight], score, info["length"][fight]])
                episodes += 1
            if len(ended):
                self.choose_opponents(ended, shares, guests)
                own, scripted, members = self.rows()
        storage["obs"][args.num_steps] = torch.from_numpy(env.obs)
        normalised = self.agent.normalise(torch.from_numpy(env.obs).view(-1, NUM_OBS))
        storage["values"][args.num_steps] = self.agent.value(normalised, normalised[np.arange(len(normalised)) ^ 1]).view(-1, 2)
        storage["info"][:] = torch.tensor([version, episodes, time.perf_counter() - start, inference_time, simulator_time])

    def state_dict(self):
        """All that the next rollout depends on, so that an inline run resumes exactly."""
        arrays = {**self.env.state_dict(), "kind": self.kind, "member": self.member, "side": self.side, "dice": self.bot.dice["rng"].copy()}
        return {
            "arrays": {name: torch.from_numpy(array.copy()) for name, array in arrays.items()},
            "members": {serial: to_flat(policy) for serial, policy in self.members.items()},
            "rng": json.dumps(self.rng.bit_generator.state),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state):
        arrays = {name: tensor.numpy() for name, tensor in state["arrays"].items()}
        self.env.load_state_dict(arrays)
        self.kind[:], self.member[:], self.side[:] = arrays["kind"], arrays["member"], arrays["side"]
        self.bot.dice["rng"] = arrays["dice"]
        for serial, flat in state["members"].items():
            self.members[serial] = copy.deepcopy(self.agent)
            from_flat(self.members[serial], flat)
        self.rng.bit_generator.state = json.loads(state["rng"])
        self.generator.set_state(state["generator"])


# --8<-- [start:actor_main]
def actor_main(args, index, board, slots, free, full):
    """The life of an actor process: take a free slot, fill it, say so. Ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the learner's to handle
    torch.set_num_threads(args.actor_threads)
    parent = os.getppid()
    try:
        actor = Actor(args, index)
        while os.getppid() == parent:
            with contextlib.suppress(queue.Empty):
                slot = free.get(timeout=1.0)
                actor.rollout(board, slots[slot])
                full.put((index, slot, ""))
    except Exception:
        full.put((index, -1, traceback.format_exc()))


def inline_rollouts(args, board, actor):
    storage = make_storage(args)
    while True:
        actor.rollout(board, storage)
        yield 0, storage, 0


def process_rollouts(args, board):
    """Two slots per actor, so that it fills one while the learner reads the other. Only integers cross the queues."""
    context = mp.get_context("spawn")
    slots = [{name: tensor.share_memory_() for name, tensor in make_storage(args).items()} for _ in range(2 * args.num_workers)]
    free, full = [context.Queue() for _ in range(args.num_workers)], context.Queue()
    workers = [
        context.Process(target=actor_main, args=(args, i, board, slots, free[i], full), name=f"actor-{i}", daemon=True)
        for i in range(args.num_workers)
    ]
    try:
        for index, worker in enumerate(workers):
            worker.start()
            free[index].put(2 * index)
            free[index].put(2 * index + 1)
        while True:
            try:
                index, slot, error = full.get(timeout=1.0)
            except queue.Empty:
                index, slot, error = -1, -1, ""
            if error:
                raise RuntimeError(f"Actor process {index} failed:\n{error}")
            for i, worker in enumerate(workers):
                if worker.exitcode is not None:
                    raise RuntimeError(f"Actor process {i} (pid {worker.pid}) died with exit code {worker.exitcode}.")
            if slot >= 0:
                yield index, slots[slot], full.qsize()
                free[index].put(slot)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def ray_rollouts(args, board):
    """The same Actor on a Ray cluster. An actor that is lost is replaced by a new one with the same index."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    package = str(Path(__file__).resolve().parent)
    ray.init(args.ray_address, ignore_reinit_error=True, log_to_driver=False, runtime_env={"py_modules": [package]})

    @ray.remote(num_cpus=1)
    class RemoteActor:
        def __init__(self, args, index):
            torch.set_num_threads(args.actor_threads)
            self.actor, self.storage = Actor(args, index), make_storage(args)

        def rollout(self, weights, snapshots, numbers):
            tensors = {"weights": weights, "snapshots": snapshots, "numbers": numbers}
            copies = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
            self.actor.rollout(SimpleNamespace(lock=contextlib.nullcontext(), **copies), self.storage)
            return {name: tensor.numpy() for name, tensor in self.storage.items()}

    def dispatch(index):
        nonlocal snapshots, serials
        if snapshots is None or not torch.equal(serials, board.numbers[3:]):  # large, so sent only when the league changed
            snapshots, serials = ray.put(board.snapshots.numpy()), board.numbers[3:].clone()
        pending[actors[index].rollout.remote(board.weights.numpy(), snapshots, board.numbers.numpy())] = index

    snapshots, serials, pending = None, None, {}
    actors = [RemoteActor.remote(args, i) for i in range(args.num_workers)]
    try:
        for index in range(args.num_workers):
            dispatch(index)
        while True:
            for done in ray.wait(list(pending), timeout=5.0)[0]:
                index = pending.pop(done)
                try:
                    storage = ray.get(done)
                except ray.exceptions.RayActorError as error:
                    print(f"Ray actor {index} was lost ({type(error).__name__}); a new one takes its place.", flush=True)
                    actors[index] = RemoteActor.remote(args, index)
                    dispatch(index)
                    continue
                dispatch(index)
                yield index, {name: torch.from_numpy(array.copy()) for name, array in storage.items()}, len(pending)
    finally:
        ray.shutdown()


# --8<-- [end:actor_main]


# ----------------------------------------------------------------------------------------------- evaluation, checkpoints


class Player:
    """A policy as a player for `play_fights`."""

    def __init__(self, agent, seed=1, deterministic=False):
        self.agent, self.deterministic = agent, deterministic
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def act(self, obs, masks, rows, actions):
        normalised = self.agent.normalise(torch.from_numpy(obs[rows]))
        actions[rows] = self.agent.act(normalised, torch.from_numpy(masks[rows]), self.generator, self.deterministic)[0].numpy()


def evaluate(args, agent, opponent, episodes, seed, video=""):
    """The share of fights won (a tie counts half), with its 95 % interval (Wilson)."""
    settings = {"loadouts": args.loadouts, "loadout_file": args.loadout_file or None, "mirror": args.mirror, "max_ticks": args.max_ticks}
    scores, _ = play_fights(Player(agent, seed), opponent, episodes, seed, video, **settings)
    rate, z = float(scores.mean()), 1.96
    spread = z * math.sqrt(rate * (1 - rate) / episodes + (z / episodes / 2) ** 2)
    low, high = ((rate + z * z / episodes / 2 + sign * spread) / (1 + z * z / episodes) for sign in (-1, 1))
    return rate, low, high


# --8<-- [start:files]
def write_atomically(path, write):
    """A reader never sees half a file, and a full disk leaves the old one."""
    temporary = Path(path).with_suffix(".tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path):
    path = Path(path) / "checkpoint.pt" if Path(path).is_dir() else Path(path)
    if not path.exists():
        raise SystemExit(f"There is no checkpoint at {path}. Give --resume a run's folder or its checkpoint.pt.")
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:
        raise SystemExit(f"{path} is not a readable checkpoint ({error}).") from None


def script_hash():
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]


# --8<-- [end:files]


def save_model(path, agent, args):
    """A policy for others: weights, normalisation, and what it takes to know what this is."""
    metadata = {"game": "osrs", "script": Path(__file__).name, "script_hash": script_hash(), "contract_hash": contract_hash(), "args": dataclasses.asdict(args)}
    weights, statistics = io.BytesIO(), io.BytesIO()
    torch.save(agent.state_dict(), weights)
    np.savez(statistics, mean=agent.obs_mean.cpu().numpy(), std=agent.obs_std.cpu().numpy())

    def write(temporary):
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("policy.pth", weights.getvalue())
            file.writestr("obs_rms.npz", statistics.getvalue())
            file.writestr("metadata.json", json.dumps(metadata, indent=1))

    write_atomically(path, write)


def load_model(path):
    """A run's folder or a model.zip → (agent, metadata)"""
    path = Path(path) / "model.zip" if Path(path).is_dir() else Path(path)
    try:
        with zipfile.ZipFile(path) as file:
            metadata = json.loads(file.read("metadata.json"))
            weights = torch.load(io.BytesIO(file.read("policy.pth")), weights_only=True)
        if metadata["contract_hash"] != contract_hash():
            raise SystemExit(f"{path} was trained on contract {metadata['contract_hash']}, this is {contract_hash()}: it cannot play here.")
        agent = Agent(metadata["args"]["hidden_size"], metadata["args"]["head_size"]).eval()
        agent.load_state_dict(weights)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, RuntimeError) as error:
        raise SystemExit(f"{path} is not a model of this script ({type(error).__name__}: {error}).") from None
    return agent, metadata


# --8<-- [start:settings]
def check_settings(values, source):
    """Settings from a file, checked key by key: a misspelt one is an error that suggests the right one."""
    fields = {field.name: field.default for field in dataclasses.fields(Args)}
    if not isinstance(values, dict):
        raise SystemExit(f"{source} should be a YAML mapping of settings, found {type(values).__name__}.")
    for name, value in values.items():
        if name not in fields:
            close = difflib.get_close_matches(str(name), fields, n=1)
            raise SystemExit(f"{source}: unknown setting {name!r}" + (f", did you mean {close[0]!r}?" if close else "."))
        default = fields[name]
        if isinstance(default, tuple) and isinstance(value, list):
            values[name] = value = tuple(value)
        if isinstance(default, float) and type(value) is int:
            values[name] = value = float(value)
        if type(value) is not type(default):
            raise SystemExit(f"{source}: {name} should be a {type(default).__name__}, found {value!r}.")
    return values


def parse_args(argv=None):
    """Defaults < preset < the resumed run's settings < --config < flags."""
    argv = list(sys.argv[1:] if argv is None else argv)
    words = [word for flag in argv for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
    early = {name: words[words.index(f"--{name}") + 1] for name in ("preset", "resume", "config") if f"--{name}" in words[:-1]}
    files = [Path(early["resume"]) / "config.yaml" if Path(early["resume"]).is_dir() else Path(early["resume"]).with_name("config.yaml")] if "resume" in early else []
    files += [Path(early["config"])] if "config" in early else []
    values = {}
    for file in files:
        try:
            values.update(check_settings(yaml.safe_load(file.read_text()) or {}, file))
        except (OSError, yaml.YAMLError) as error:
            raise SystemExit(f"Cannot read the settings in {file}: {error}") from None
    preset = early.get("preset", values.get("preset", "core"))
    return tyro.cli(Args, default=Args(**{**PRESETS.get(preset, {}), **values}), args=argv, description=__doc__.split("\n\n")[0])


def choose_amp(amp, device):
    """→ (dtype, enabled). bf16 on a CPU can kill the process, so a subprocess tries it first."""
    if amp == "auto":
        amp = "off" if device.type == "cpu" else "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    if amp == "bf16" and device.type == "cpu":
        trial = "import torch; m = torch.nn.Linear(64, 64)\nwith torch.autocast('cpu', torch.bfloat16): m(torch.randn(64, 64)).sum().backward()"
        if subprocess.run([sys.executable, "-c", trial], capture_output=True).returncode != 0:
            print("This CPU cannot compute in bf16; --amp falls back to off.", flush=True)
            amp = "off"
    if amp == "fp16" and device.type == "cpu":
        print("fp16 is for CUDA; --amp falls back to off on the CPU.", flush=True)
        amp = "off"
    return (torch.float16 if amp == "fp16" else torch.bfloat16), amp != "off"


# --8<-- [end:settings]


# --8<-- [start:logging]
class Logger:
    """Scalars to TensorBoard, metrics.jsonl and, under --track, W&B; a live view if this is a terminal, else plain lines."""

    def __init__(self, args, run_dir, start_step):
        self.writer = SummaryWriter(run_dir, purge_step=start_step or None)
        self.file = open(run_dir / "metrics.jsonl", "a", buffering=1)  # noqa: SIM115 (open as long as the run)
        self.args, self.start, self.start_step, self.live, self.wandb = args, time.time(), start_step, None, None
        if args.track:
            import wandb  # takes seconds to import

            self.wandb = wandb
            wandb.init(project=args.wandb_project_name, entity=args.wandb_entity or None, config=dataclasses.asdict(args), name=run_dir.name, dir=run_dir)
            wandb.define_metric("*", step_metric="global_step")
        if sys.stdout.isatty():
            from rich.live import Live

            self.live = Live(refresh_per_second=4)
            self.live.start()

    def write(self, metrics, step):
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.file.write(json.dumps({"global_step": step, **metrics}) + "\n")
        if self.wandb:
            self.wandb.log({"global_step": step, **metrics})
        done = step / self.args.total_timesteps
        if self.args.max_minutes:
            done = max(done, (time.time() - self.start) / 60 / self.args.max_minutes)
        if self.live:
            self.live.update(self.view(metrics, step, done))
        else:
            shown = " ".join(f"{name.split('/')[-1]}={value:.3g}" for name, value in metrics.items() if name.startswith(("charts/", "win_rate/", "elo/", "eval/")))
            print(f"step {step:,} ({done:.0%}) {shown}", flush=True)

    def view(self, metrics, step, done):
        """Progress, speed, where the time goes, how it plays."""
        from rich.columns import Columns
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar

        minutes = (time.time() - self.start) / 60
        panels = []
        for title, prefixes in (("speed, returns", ("charts/",)), ("time", ("stats/",)), ("games", ("win_rate/", "elo/", "eval/")), ("losses", ("losses/",))):
            rows = [f"{name.split('/')[1]:<24}[bold]{value:>12,.4g}[/]" for name, value in metrics.items() if name.startswith(prefixes) and not name.endswith("_n")]
            panels.append(Panel("\n".join(rows), title=title))
        title = f"{self.args.exp_name} · {self.args.env_id} · seed {self.args.seed} · {step:,} steps · {minutes:.1f} min · {done:.0%}"
        return Panel(Group(ProgressBar(total=1.0, completed=min(done, 1.0)), Columns(panels)), title=title)

    def close(self):
        if self.live:
            self.live.stop()
        if self.wandb:
            self.wandb.finish()
        self.writer.close()
        self.file.close()


def start_tensorboard(run_dir):
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run_dir), "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "http://" in line:
            print(f"TensorBoard: {line[line.index('http://') :].split()[0]}", flush=True)
            break
    return process


# --8<-- [end:logging]


if __name__ == "__main__":
    args = parse_args()
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    np_rng = np.random.default_rng(args.seed)
    checkpoint = load_checkpoint(args.resume) if args.resume else None

    # --- the run's folder
    if args.resume:
        run_dir = Path(args.resume) if Path(args.resume).is_dir() else Path(args.resume).parent
    else:
        run_dir = Path(args.run_dir or f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}")
        if (run_dir / "checkpoint.pt").exists():
            raise SystemExit(f"{run_dir} holds a run already: go on with --resume {run_dir}, or choose another --run-dir.")
    run_dir.mkdir(parents=True, exist_ok=True)
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(args).items() if k not in ("config", "resume")}
    write_atomically(run_dir / "config.yaml", lambda path: path.write_text(yaml.safe_dump(settings, sort_keys=False)))
    if Path(__file__).resolve() != (run_dir / "script.py").resolve():
        shutil.copy(__file__, run_dir / "script.py")
    print(f"run folder: {run_dir}", flush=True)

    # --- learner
    agent = Agent(args.hidden_size, args.head_size).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    amp_dtype, amp_enabled = choose_amp(args.amp, device)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_enabled and amp_dtype == torch.float16)
    evaluate_actions = torch.compile(agent.evaluate_actions) if args.compile else agent.evaluate_actions
    obs_rms, return_rms = RunningMeanStd(NUM_OBS), RunningMeanStd(1)
    num_actors = max(args.num_workers, 1)
    discounted = torch.zeros(num_actors, args.num_envs, 2)  # running discounted return of every fighter
    update, global_step, version, elo, elapsed = 0, 0, 0, 1500.0, 0.0

    # --- league: members are rows of board.snapshots; references for Elo keep the rating they were frozen with
    board = Board(args, len(to_flat(agent)))
    league, next_serial = [], 1  # {serial, row, name, quality, elo, wins, games}
    NH_ELO = 1500.0

    def join_league(name, flat, rating):
        """A new member gets the highest quality; when the league is full, the easiest member leaves."""
        global next_serial
        if len(league) == args.league_size:
            league.remove(min(league, key=lambda member: member["quality"]))
        row = min(set(range(args.league_size)) - {member["row"] for member in league})
        quality = max([member["quality"] for member in league], default=0.0)
        league.append({"serial": next_serial, "row": row, "name": name, "quality": quality, "elo": rating, "wins": 0.0, "games": 0})
        next_serial += 1
        with board.lock:
            board.snapshots[row] = flat

    def publish():
        """Hands weights, snapshots and sampling probabilities to the actors, all of one version."""
        share = anneal(args.self_fraction, args.self_fraction_final, update, args.fraction_anneal_updates)
        if not league:
            share = 1.0 - args.scripted_fraction
        probabilities = league_probabilities([m["quality"] for m in league]) if league else []
        if args.self_play == "latest":
            probabilities = [float(member is league[-1]) for member in league]
        with board.lock:
            board.weights.copy_(to_flat(agent))
            board.numbers.zero_()
            board.numbers[:3] = torch.tensor([version, share, args.scripted_fraction])
            for member, probability in zip(league, probabilities):
                board.numbers[3 + member["row"]] = member["serial"]
                board.numbers[3 + args.league_size + member["row"]] = probability
        return share

    if args.self_play in ("target", "exploiter"):
        if not args.opponent:
            raise SystemExit(f"--self-play {args.self_play} needs --opponent: a model.zip or a run's folder.")
        opponent_agent, _ = load_model(args.opponent)
        join_league(Path(args.opponent).name, to_flat(opponent_agent), 1500.0)

    actor = Actor(args, 0) if args.num_workers == 0 else None
    if checkpoint:
        try:
            agent.load_state_dict(checkpoint["agent"])
        except RuntimeError as error:
            raise SystemExit(f"The checkpoint is of another network than these settings describe: {error}") from None
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        for rms, saved in ((obs_rms, checkpoint["obs_rms"]), (return_rms, checkpoint["return_rms"])):
            rms.mean, rms.var, rms.count = saved["mean"], saved["var"], saved["count"]
        league, next_serial, elo = checkpoint["league"], checkpoint["next_serial"], checkpoint["elo"]
        board.snapshots.copy_(checkpoint["snapshots"])
        update, global_step, version, elapsed = (checkpoint[name] for name in ("update", "global_step", "version", "elapsed"))
        if checkpoint["discounted"].shape == discounted.shape:
            discounted.copy_(checkpoint["discounted"])
        torch.set_rng_state(checkpoint["torch_rng"])
        np_rng.bit_generator.state = json.loads(checkpoint["numpy_rng"])
        if actor and checkpoint["actor"]:
            actor.load_state_dict(checkpoint["actor"])

    def save_checkpoint():
        state = {
            "agent": agent.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(),
            "obs_rms": vars(obs_rms), "return_rms": vars(return_rms), "discounted": discounted,
            "league": league, "next_serial": next_serial, "snapshots": board.snapshots, "elo": elo,
            "update": update, "global_step": global_step, "version": version, "elapsed": elapsed + time.time() - start_time,
            "torch_rng": torch.get_rng_state(), "numpy_rng": json.dumps(np_rng.bit_generator.state),
            "actor": actor.state_dict() if actor else None,
        }  # fmt: skip
        write_atomically(run_dir / "checkpoint.pt", lambda path: torch.save(state, path))
        save_model(run_dir / "model.zip", agent, args)

    def evaluate_all(episodes):
        metrics = {}
        copy_on_cpu = copy.deepcopy(agent).cpu().eval()
        for name in BASELINES:
            video = run_dir / "videos" / f"{name}_{global_step}.gif" if args.capture_video else ""
            rate, low, high = evaluate(args, copy_on_cpu, Baseline(name, 2 * episodes, args.seed), episodes, args.seed + 7919, video)
            metrics |= {f"eval/{name}": rate, f"eval/{name}_low": low, f"eval/{name}_high": high, f"eval/{name}_n": episodes}
        return metrics

    reward_weights = torch.tensor([getattr(args, f"reward_{term}") for term in REWARD_TERMS])
    freeze_terms = [REWARD_TERMS.index("frozen"), REWARD_TERMS.index("target_frozen")]
    logger = Logger(args, run_dir, global_step)
    tensorboard = start_tensorboard(run_dir) if args.tensorboard else None
    self_share = publish()
    if args.ray_address:
        rollouts = ray_rollouts(args, board)
    else:
        rollouts = process_rollouts(args, board) if args.num_workers else inline_rollouts(args, board, actor)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: the finally below leaves a checkpoint
    start_time, first_step = time.time(), global_step

    try:
        wait_start = time.perf_counter()
        for index, storage, queue_size in rollouts:
            wait_time, learn_start = time.perf_counter() - wait_start, time.perf_counter()
            update += 1
            rollout_version, episodes, rollout_time, inference_time, simulator_time = storage["info"].tolist()

            # --- rewards: named terms × weights, novelty, scaled by the std of discounted returns
            weights = reward_weights.clone()
            weights[freeze_terms] *= anneal(1.0, args.reward_frozen_final_scale, update, 300)
            trained, terminated, truncated = storage["trained"], storage["terminated"][..., None], storage["truncated"][..., None]  # (T, F, 2)
            rewards = storage["terms"] @ weights  # (T, F, 2)
            novelty = anneal(args.novelty, 0.0, update, args.novelty_updates)
            if novelty > 0:
                z = (storage["obs"][1:, ..., CHANGING] - agent.obs_mean.cpu()[CHANGING]) / agent.obs_std.cpu()[CHANGING]
                rewards += novelty * (z.abs() - 1).clamp(0, 9).sum(-1) * ~(terminated | truncated)
            running = torch.empty_like(rewards)
            for t in range(args.num_steps):
                discounted[index] = args.gamma * discounted[index] + rewards[t]
                running[t] = discounted[index]
                discounted[index] *= ~(terminated[t] | truncated[t])
            return_rms.update(running[trained][:, None])
            scaled = (rewards / math.sqrt(float(return_rms.var) + 1e-8)).clamp(-args.reward_clip, args.reward_clip)

            # --- advantages, per fighter
            both = (args.num_steps, args.num_envs, 2)
            advantages = gae(scaled, storage["values"][:-1], storage["values"][-1], terminated.expand(both), truncated.expand(both), storage["bootstrap"], args.gamma, args.gae_lambda)
            returns = advantages + storage["values"][:-1]

            # --- the batch: rows the learner's own policy played
            b_inds = torch.from_numpy(np.flatnonzero(trained.numpy()))
            b_obs = storage["obs"][:-1].view(-1, NUM_OBS)
            b_masks, b_actions = storage["masks"].view(-1, NUM_LOGITS), storage["actions"].view(-1, NUM_HEADS)
            b_logprobs, b_advantages, b_returns = storage["logprobs"].view(-1), advantages.view(-1), returns.view(-1)
            global_step += len(b_inds)

            losses = []
            lr = anneal(args.learning_rate, args.learning_rate_final, global_step, args.total_timesteps)
            ent_coef = anneal(args.ent_coef, args.ent_coef_final, update, args.ent_coef_updates)
            for group in optimizer.param_groups:
                group["lr"] = lr
            # The first rollout only feeds the statistics: it was played without normalisation.
            for _ in range(args.update_epochs if update > 1 else 0):
                for mb_inds in b_inds[torch.randperm(len(b_inds))].split(args.minibatch_size):
                    obs = agent.normalise(b_obs[mb_inds].to(device, non_blocking=True))
                    target_obs = agent.normalise(b_obs[mb_inds ^ 1].to(device, non_blocking=True))  # the other fighter's row
                    with torch.autocast(device.type, amp_dtype, enabled=amp_enabled):
                        logprob, entropy = evaluate_actions(obs, b_masks[mb_inds].to(device), b_actions[mb_inds].to(device).long())
                        values = agent.value(obs, target_obs).float()
                    mb_advantages = b_advantages[mb_inds].to(device)
                    if args.norm_adv:
                        mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
                    policy_loss, value_loss, stats = ppo_losses(logprob, b_logprobs[mb_inds].to(device), mb_advantages, values, b_returns[mb_inds].to(device), args.clip_coef)
                    loss = policy_loss - ent_coef * entropy.mean() + args.vf_coef * value_loss
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                    scaler.step(optimizer)
                    scaler.update()
                    losses.append(torch.stack([policy_loss, value_loss, entropy.mean(), grad_norm, *stats]).detach())

            # --- statistics move after the update, so that it saw the same observations as the actor
            obs_rms.update(b_obs[b_inds])
            agent.obs_mean.copy_(obs_rms.mean)
            agent.obs_std.copy_(obs_rms.var.sqrt().clamp(min=1e-2))
            lag, version = version - rollout_version, version + 1

            # --- results of the fights that ended: league qualities, Elo
            results = storage["episodes"][: int(episodes)]
            metrics = {}
            for kind, serial, score, _ in results.tolist():
                if kind == LEAGUE:
                    member = next((m for m in league if m["serial"] == serial), None)
                    if member:
                        member["games"] += 1
                        member["wins"] += score
                        if score == 1.0:
                            qualities = [m["quality"] for m in league]
                            league_won(qualities, league.index(member))
                            member["quality"] = qualities[league.index(member)]
                        elo = elo_update(elo, member["elo"], score)
                elif kind == SCRIPTED:
                    elo = elo_update(elo, NH_ELO, score)
            for kind, name in enumerate((KINDS[0], args.self_play, KINDS[2])):
                scores = results[results[:, 0] == kind, 2]
                if len(scores):
                    metrics |= {f"win_rate/{name}": scores.mean().item(), f"win_rate/{name}_n": len(scores)}
            if args.snapshot_frequency and update % args.snapshot_frequency == 0 and args.self_play in ("past", "latest"):
                join_league(f"snapshot_{global_step}", to_flat(agent), elo)
                for path in sorted(run_dir.glob("exploiters/*.zip")):  # exploiters of this run that have finished since
                    if path.name not in {member["name"] for member in league}:
                        join_league(path.name, to_flat(load_model(path)[0]), elo)
            self_share = publish()
            learn_time = time.perf_counter() - learn_start

            explained = 1 - (b_returns[b_inds] - storage["values"][:-1].reshape(-1)[b_inds]).var() / b_returns[b_inds].var().clamp(min=1e-8)
            if len(results):
                metrics["charts/episodic_length"] = results[:, 3].mean().item()
            metrics |= {
                "charts/episodic_return": rewards[trained].sum().item() / max(len(results), 1),
                "charts/SPS": (global_step - first_step) / (time.time() - start_time),
                "charts/learning_rate": lr,
                "charts/self_fraction": self_share,
                "losses/explained_variance": explained.item(),
                "stats/policy_lag_mean": lag,
                "stats/policy_lag_max": lag,
                "stats/queue_size": queue_size,
                "stats/rollout_time": rollout_time,
                "stats/inference_time": inference_time,
                "stats/simulator_time": simulator_time,
                "stats/learn_time": learn_time,
                "stats/wait_time": wait_time,
                "elo/agent": elo,
                "league/size": len(league),
            }
            if losses:
                names = ("policy_loss", "value_loss", "entropy", "grad_norm", "old_approx_kl", "approx_kl", "clipfrac")
                metrics |= {f"losses/{name}": value for name, value in zip(names, torch.stack(losses).mean(0).tolist())}
                if not math.isfinite(metrics["losses/policy_loss"]):
                    raise RuntimeError("The loss is not finite. The last good state is in the checkpoint; try a smaller --learning-rate.")
            metrics |= {f"rewards/{term}": value for term, value in zip(REWARD_TERMS, (storage["terms"][trained].mean(0) * weights).tolist())}
            if args.eval_frequency and update % args.eval_frequency == 0:
                metrics |= evaluate_all(args.eval_episodes)
            logger.write(metrics, global_step)
            if update % args.checkpoint_frequency == 0:
                save_checkpoint()
            if global_step >= args.total_timesteps or (args.max_minutes and elapsed + time.time() - start_time >= 60 * args.max_minutes):
                break
            wait_start = time.perf_counter()
        metrics = evaluate_all(args.eval_episodes)
        logger.write(metrics, global_step)
    except KeyboardInterrupt:
        print("Stopped. ", end="", flush=True)
    finally:
        rollouts.close()
        save_checkpoint()
        logger.close()
        if tensorboard:
            tensorboard.terminate()
        print(f"Checkpoint and model are in {run_dir}; go on with --resume {run_dir}", flush=True)
    if args.self_play == "exploiter" and Path(args.opponent).is_dir():
        (Path(args.opponent) / "exploiters").mkdir(exist_ok=True)
        save_model(Path(args.opponent) / "exploiters" / f"{run_dir.name}.zip", agent, args)
