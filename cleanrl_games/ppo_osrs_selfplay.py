"""Self-play PPO on Old School RuneScape NH fights, with a league of past selves.

    python cleanrl_games/ppo_osrs_selfplay.py --num-workers 1

    ┌ actor (process × num_workers, inline, or Ray) ┐   slot numbers   ┌ learner ─────────────────────────────┐
    │ fights in Numba, batched inference; opponents │ ───────────────► │ rewards, GAE, PPO, normalisation     │
    │ are fixed from a fight's start to its end     │  2 shared-memory │ league, Elo, evaluation, checkpoints │
    └───────────────────────▲───────────────────────┘  slots per actor └──────────────────┬───────────────────┘
                            └── Broadcast: weights by version, league, shares ◄───────────┘

A rollout holds T ticks of F fights with both fighters, so that the critic of one can look into the other's hand.
"""

import dataclasses
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
from typing import Literal

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

from cleanrl_games.envs.osrs import Baseline, NHVecEnv, contract
from cleanrl_games.envs.osrs.baselines import BASELINES, ELO, LADDER
from cleanrl_games.envs.osrs.evaluation import Player, evaluate  # noqa: F401 (for the tools)
from cleanrl_games.runtime import models, ray_actors, shared_memory
from cleanrl_games.runtime.checkpoints import load_checkpoint, restore, save_checkpoint, say_how_to_go_on
from cleanrl_games.runtime.device import maybe_compile, set_up
from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.runtime.files import make_run_folder
from cleanrl_games.runtime.logger import Logger
from cleanrl_games.runtime.metrics import loss_metrics, result_metrics, time_metrics
from cleanrl_games.runtime.settings import Count, Size, parse_args
from cleanrl_games.runtime.shared_memory import Broadcast, from_flat, load_members, share_all, to_flat
from cleanrl_games.runtime.stopping import check_finite, progress, stop_on_signals

NUM_OBS, NUM_CRITIC_OBS, NUM_HEADS, NUM_LOGITS = (
    contract.NUM_OBS,
    contract.NUM_CRITIC_OBS,
    contract.NUM_HEADS,
    contract.NUM_LOGITS,
)
HEAD_SIZES, HEAD_OFFSETS, REWARD_TERMS = contract.HEAD_SIZES, contract.HEAD_OFFSETS, contract.REWARD_TERMS

# Named sets of values; a flag or a config file overrides them. `fast`, the default, is what the defaults below say: a
# network small enough that two CPU cores play and learn tens of thousands of ticks a second. `core` is the public
# project's preset.
PRESETS = {
    "fast": {},
    "core": {
        "hidden_size": 512, "head_size": 128, "num_envs": 50, "num_steps": 1024, "minibatch_size": 2048,
        "learning_rate": 3e-4,
        "learning_rate_final": 3e-4, "self_fraction": 0.8, "self_fraction_final": 0.2, "scripted_fraction": 0.0,
    },
    "pure": {"self_play": "pure", "scripted_fraction": 0.0},
    "past": {"self_play": "past", "self_fraction": 0.8, "self_fraction_final": 0.2, "scripted_fraction": 0.0},
    "exploiter": {"self_play": "exploiter", "self_fraction": 0.0, "self_fraction_final": 0.0, "scripted_fraction": 0.0},
}  # fmt: skip


@dataclasses.dataclass
class Args:
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
    env_id: str = "osrs-nh"
    """name of the game in the run's folder"""
    server: str = ""
    """HOST:PORT of a simulation server to train on, instead of the simulator; its loadouts are the server's business"""
    loadouts: tuple[str, ...] = ("lms_med",)
    """loadouts to fight with; each fight draws one. all = every one of the file"""
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
    num_envs: int = 512
    """fights per actor"""
    num_steps: int = 32
    """ticks per rollout; short ones keep the update that a rollout is behind small"""
    ray_address: str = ""
    """run the actors on this Ray cluster ("auto", "127.0.0.1:6379", …)"""

    # --- algorithm
    total_timesteps: int = 100_000_000
    """agent-steps to train for"""
    max_minutes: float = 0.0
    """stop after this many minutes, 0 = no limit"""
    learning_rate: float = 5e-4
    """Adam's step size"""
    learning_rate_final: float = 1e-4
    """its value at the end of the run (linear)"""
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
    hidden_size: int = 128
    """width of the actor's and the critic's two layers"""
    head_size: int = 32
    """width of each action head's two layers"""

    # --- self-play
    self_play: Literal["pure", "past", "target", "latest", "exploiter"] = "past"
    """who fills the fights that are neither against oneself nor scripted: nobody, the league, a fixed model
    (--opponent), the newest snapshot; exploiter = a fixed model, and join its league at the end"""
    opponent: str = ""
    """model.zip or run folder of a fixed opponent, for training against it"""
    self_fraction: float = 0.4
    """share of fights against oneself at the start"""
    self_fraction_final: float = 0.3
    """and after fraction_anneal_updates"""
    fraction_anneal_updates: int = 1000
    """updates over which the share changes"""
    scripted_fraction: float = 0.4
    """share of fights against scripted players"""
    opponents: tuple[str, ...] = ("ladder",)
    """scripted players to fight, by name; ladder = all rungs. Whom the agent rarely beats is met more often"""
    snapshot_frequency: int = 40
    """updates between snapshots for the league, 0 = none"""
    league_size: int = 32
    """members of the league; beyond that the easiest leaves"""
    guests: int = 3
    """league members an actor fights at a time (one batched forward pass each)"""

    # --- evaluation and checkpoints
    eval_frequency: int = 200
    """updates between evaluations against the scripted players, each with a model in the run's folder; 0 = only at the
    end"""
    eval_episodes: int = 200
    """fights per evaluation and opponent"""
    checkpoint_frequency: int = 100
    """updates between checkpoints"""
    capture_video: bool = False
    """a GIF of a fight with each evaluation"""


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
        logits = torch.baddbmm(self.head_out_bias, hidden, self.head_out).transpose(0, 1).float()  # (B, 12, 7)
        yes, no = (
            torch.ones(batch, 1, dtype=torch.bool, device=obs.device),
            torch.zeros(batch, 1, dtype=torch.bool, device=obs.device),
        )
        taken = chosen.bool()
        legal = masks & torch.cat([taken, yes], 1)[:, self.needs] & ~torch.cat([taken, no], 1)[:, self.forbids]
        legal = torch.cat([legal, no], 1)[:, self.pad]  # (B, 12, 7)
        legal[:, :, 0] |= ~legal.any(-1)  # a head with nothing legal takes action 0
        return logits.masked_fill(~legal, torch.finfo(logits.dtype).min).log_softmax(-1)

    def evaluate_actions(self, obs, masks, actions):
        """→ log-prob of the twelve actions (B,), entropy summed over the heads (B,)"""
        logprobs = self.head_logprobs(obs, masks, actions)
        logprob = logprobs.gather(-1, actions[:, :, None]).squeeze(-1).sum(-1)
        logprobs = logprobs.clamp(
            min=-80.0
        )  # nothing, but not 0 · (-inf), for illegal ones; of less exp takes ten times as long
        return logprob, -(logprobs.exp() * logprobs).sum((-1, -2))

    def act(self, obs, masks, generator=None, deterministic=None):
        """Samples head after head, or takes the likeliest action where deterministic (B, 12) says so.
        obs (B, 176) normalised, masks (B, 45) → actions (B, 12), log-prob (B,)"""
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
            forbidden = chosen[:, self.forbids[span]].bool() & (
                self.forbids[span] < NUM_LOGITS
            )  # … and forbids nothing
            legal = masks[:, span] & chosen[:, self.needs[span]].bool() & ~forbidden
            legal[:, 0] |= ~legal.any(-1)
            logprobs = logits.masked_fill(~legal, torch.finfo(logits.dtype).min).log_softmax(-1)
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
    advantages, last = torch.zeros_like(rewards), torch.zeros_like(next_value)
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
        self.mean, self.var, self.count = (
            torch.zeros(size, dtype=torch.float64),
            torch.ones(size, dtype=torch.float64),
            1e-4,
        )

    def update(self, batch):
        mean, var, count = batch.mean(0).double(), batch.var(0, unbiased=False).double(), len(batch)
        delta, total = mean - self.mean, self.count + count
        self.mean = self.mean + delta * count / total
        self.var = (self.var * self.count + var * count + delta.square() * self.count * count / total) / total
        self.count = total


class RewardScale:
    """Divides rewards by the std of discounted returns, as gymnasium's NormalizeReward does, here over the rollouts of
    several actors and over the learner's own rows only. Sums run on from one rollout of an actor to the next:
    discounted for the scale, plain to log."""

    def __init__(self, *shape):
        """shape: (actors, …) as one step of an actor's rewards"""
        self.rms, self.discounted, self.episodic = RunningMeanStd(1), torch.zeros(shape), torch.zeros(shape)

    def __call__(self, index, rewards, ended, trained, gamma):
        """One rollout of actor `index`, all (T, …) → scaled rewards, the returns of its own episodes that ended"""
        sums, returns = torch.empty_like(rewards), []
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
        self.discounted[index], self.episodic[index] = 0.0, 0.0

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

SELF, LEAGUE, SCRIPTED = range(3)
SCORES = np.array([0.5, 1.0, 0.0, 0.5])  # of fighter 0, by the simulator's result: truncated, won, lost, tied
MAX_EPISODES = 4096  # per rollout


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
        "trained": torch.zeros(shape, dtype=torch.bool),  # whether the learner's own policy acted here
        "episodes": torch.zeros(MAX_EPISODES, 4),  # kind, league member, score, length
        "info": torch.zeros(5, dtype=torch.float64),  # version, episodes, seconds of: rollout, inference, simulator
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


def make_broadcast(args, num_parameters):
    numbers = {"self_share": 1, "scripted_share": 1, "bot_chances": len(scripted_players(args))}
    return Broadcast(args.sharing, num_parameters, args.league_size, numbers, ("chance",))


def make_env(args, seed):
    if not args.server:
        return NHVecEnv(args.num_envs, args.loadouts, args.loadout_file or None, args.mirror, seed, args.max_ticks)
    from cleanrl_games.envs.osrs.remote import RemoteNHVecEnv, parse_address

    try:
        host, port = parse_address(args.server)
        return RemoteNHVecEnv(args.num_envs, host, port, max_ticks=args.max_ticks)
    except (ValueError, ConnectionError) as error:
        raise BadInput(f"--server {args.server}: {error}") from None


class Actor:
    """Plays fights and writes them down. Knows nothing of processes or Ray: the same class runs inline and anywhere
    else."""

    def __init__(self, args, index):
        seed = args.seed * 1000 + index
        self.args = args
        self.rng, self.generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        self.env = make_env(args, seed)
        self.bots = [Baseline(name, 2 * args.num_envs, seed) for name in scripted_players(args)]
        self.agent = make_agent(vars(args)).eval()
        self.members = {}  # serial number of a league member → its policy, copied when first needed
        self.kind = np.full(args.num_envs, -1)  # per fight; -1 = none chosen yet
        self.member = np.full(args.num_envs, -1)  # the id of a league member, or the number of a scripted player
        self.side = np.zeros(args.num_envs, np.int64)  # which fighter the learner is, unless it is both
        self.actions = np.zeros((2 * args.num_envs, NUM_HEADS), np.int64)

    def pull_weights(self, broadcast):
        """Takes the newest weights and draws the league members to fight in this rollout → (version, shares of kinds,
        guests)"""
        with broadcast.lock:
            from_flat(self.agent, broadcast.weights)
            version = broadcast.version
            self_share, scripted_share = (float(broadcast.numbers[name]) for name in ("self_share", "scripted_share"))
            ids, chances = (broadcast.members[name].numpy().copy() for name in ("policy_id", "chance"))
            bot_chances = broadcast.numbers["bot_chances"].numpy().copy()
            guests = []
            if chances.sum() > 0:
                guests = (
                    np.unique(self.rng.choice(ids, self.args.guests, p=chances / chances.sum())).astype(int).tolist()
                )
            self.members = load_members(
                self.members, self.agent, broadcast, guests, self.member[self.kind == LEAGUE].tolist()
            )
        shares = np.array([self_share, 1.0 - self_share - scripted_share, scripted_share]).clip(0)
        return version, shares / shares.sum(), guests, bot_chances

    def choose_opponents(self, fights, shares, guests, bot_chances):
        """Only ever called for fights that start: an opponent stays until its fight ends."""
        for fight in fights:
            self.kind[fight], self.side[fight] = self.rng.choice(3, p=shares), self.rng.integers(2)
            self.member[fight] = guests[self.rng.integers(len(guests))] if self.kind[fight] == LEAGUE else -1
            if self.kind[fight] == SCRIPTED:
                self.member[fight] = self.rng.choice(len(self.bots), p=bot_chances) if len(self.bots) > 1 else 0

    def rows(self):
        """Flat rows (2 · fight + side) of the learner's policy, of the bot, and of each league member."""
        foe = 2 * np.arange(len(self.kind)) + 1 - self.side
        own = np.ones(2 * len(self.kind), bool)
        own[foe[self.kind != SELF]] = False
        members = {
            int(member): foe[(self.kind == LEAGUE) & (self.member == member)]
            for member in np.unique(self.member[self.kind == LEAGUE])
        }
        scripted = {bot: foe[(self.kind == SCRIPTED) & (self.member == bot)] for bot in range(len(self.bots))}
        return np.flatnonzero(own), scripted, members

    @torch.no_grad()
    def rollout(self, broadcast, storage):
        """Plays num_steps ticks of all fights into `storage`, with the newest weights."""
        start, inference_time, simulator_time, episodes = time.perf_counter(), 0.0, 0.0, 0
        env, s = self.env, SimpleNamespace(**storage)
        version, shares, guests, bot_chances = self.pull_weights(broadcast)
        self.choose_opponents(np.flatnonzero(self.kind < 0), shares, guests, bot_chances)
        own, scripted, members = self.rows()
        for t in range(self.args.num_steps):
            s.obs[t], s.masks[t] = torch.from_numpy(env.obs), torch.from_numpy(env.masks)
            obs, masks = s.obs[t].view(-1, NUM_OBS), s.masks[t].view(-1, NUM_LOGITS)
            clock = time.perf_counter()
            normalised = self.agent.normalise(obs)
            acting = own[~env.waiting.reshape(-1)[own]]  # on a server some are still on their way into a fight
            actions, logprobs = self.agent.act(normalised[acting], masks[acting], self.generator)
            self.actions[acting] = actions.numpy()
            s.logprobs[t].view(-1)[acting] = logprobs
            s.values[t].view(-1)[acting] = self.agent.value(normalised[acting], normalised[acting ^ 1])
            for serial, rows in members.items():
                member = self.members[serial]
                self.actions[rows] = member.act(member.normalise(obs[rows]), masks[rows], self.generator)[0].numpy()
            for bot, rows in scripted.items():  # after the agent: some of them see its action
                self.bots[bot].act(env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS), rows, self.actions)
            inference_time += time.perf_counter() - clock

            s.actions[t].view(-1, NUM_HEADS).copy_(torch.from_numpy(self.actions))
            s.trained[t] = False
            s.trained[t].view(-1)[acting] = True
            clock = time.perf_counter()
            _, _, _, terminated, truncated, info = env.step(self.actions.reshape(-1, 2, NUM_HEADS))
            simulator_time += time.perf_counter() - clock
            s.terms[t] = torch.from_numpy(info["terms"])
            s.terminated[t, :, 0], s.truncated[t, :, 0] = torch.from_numpy(terminated), torch.from_numpy(truncated)
            s.bootstrap[t] = 0.0
            if truncated.any():
                last = self.agent.normalise(torch.from_numpy(info["final_obs"][truncated]).view(-1, NUM_OBS))
                s.bootstrap[t][torch.from_numpy(truncated)] = self.agent.value(
                    last, last[np.arange(len(last)) ^ 1]
                ).view(-1, 2)
            ended = np.flatnonzero(terminated | truncated)
            if len(ended):
                scores = np.abs(SCORES[info["result"][ended]] - self.side[ended])  # as the learner sees them
                rows = np.stack([self.kind[ended], self.member[ended], scores, info["length"][ended]], 1)[
                    : MAX_EPISODES - episodes
                ]
                s.episodes[episodes : episodes + len(rows)] = torch.from_numpy(rows)
                episodes += len(rows)
                self.choose_opponents(ended, shares, guests, bot_chances)
                own, scripted, members = self.rows()
        s.obs[-1] = torch.from_numpy(env.obs)
        normalised = self.agent.normalise(s.obs[-1].view(-1, NUM_OBS))
        s.values[-1] = self.agent.value(normalised, normalised[np.arange(len(normalised)) ^ 1]).view(-1, 2)
        s.info[:] = torch.tensor([version, episodes, time.perf_counter() - start, inference_time, simulator_time])

    def state_dict(self):
        """All that the next rollout depends on, so that an inline run resumes exactly."""
        arrays = {**self.env.state_dict(), "kind": self.kind, "member": self.member, "side": self.side}
        arrays |= {f"dice_{number}": bot.dice["rng"] for number, bot in enumerate(self.bots)}
        return shared_memory.actor_state(self, arrays)

    def load_state_dict(self, state):
        arrays = shared_memory.load_actor_state(self, state)
        self.env.load_state_dict(arrays)
        self.kind[:], self.member[:], self.side[:] = (arrays[name] for name in ("kind", "member", "side"))
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
        return ray_actors.ray_rollouts(args, broadcast, stopping, Actor, make_storage)
    return process_rollouts(args, broadcast, stopping)


def inline_rollouts(args, broadcast, stopping, actor):
    storage = make_storage(args)
    while not stopping:
        actor.rollout(broadcast, storage)
        yield 0, storage, 0


def process_rollouts(args, broadcast, stopping):
    context = mp.get_context("spawn")
    slots = [[share_all(make_storage(args), args.sharing) for _ in range(2)] for _ in range(args.num_workers)]
    workers, pipes, deaths = {}, {}, []

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
                    slot, error = None, ""
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
    except (EOFError, BrokenPipeError):  # the learner has ended
        return
    except BadInput as error:
        pipe.send((None, error))
    except Exception:
        pipe.send((None, traceback.format_exc()))


# --8<-- [end:actor_processes]


# ---------------------------------------------------------------------------------------------- evaluation, checkpoints


def save_model(path, agent, args):
    statistics = {"mean": agent.obs_mean.cpu().numpy(), "std": agent.obs_std.cpu().numpy()}
    metadata = {"game": "osrs", "contract_hash": contract.contract_hash()}
    models.save_model(path, agent.state_dict(), statistics, metadata, args, __file__)


def load_model(path, args=None):
    """A run's folder or a model.zip → (agent, metadata); `args`: of the run whose league it is to join"""
    return models.load_agent(path, contract.contract_hash(), make_agent, args, ("hidden_size", "head_size"))


class League:
    """Past selves and other frozen policies. Members are rows of `broadcast.member_weights` and keep the Elo they were
    frozen with."""

    def __init__(self, args, broadcast):
        self.args, self.broadcast, self.members, self.next_serial, self.elo = args, broadcast, [], 1, ELO["nh"]
        self.bots = [
            {"name": name, "score": 0.5} for name in scripted_players(args)
        ]  # score: the agent's, a running mean

    def join(self, name, flat):
        """A new member gets the highest quality; when the league is full, the easiest member leaves."""
        if len(self.members) == self.args.league_size:
            self.members.remove(min(self.members, key=lambda member: member["quality"]))
        row = self.broadcast.store(flat, [member["row"] for member in self.members])
        quality = max([member["quality"] for member in self.members], default=0.0)
        member = {
            "serial": self.next_serial,
            "row": row,
            "name": name,
            "quality": quality,
            "elo": self.elo,
            "wins": 0.0,
            "games": 0,
        }
        self.members.append(member)
        self.next_serial += 1

    def probabilities(self):
        if self.args.self_play == "latest":
            return [float(member is self.members[-1]) for member in self.members]
        return league_probabilities([member["quality"] for member in self.members]) if self.members else []

    def bot_chances(self):
        """A scripted player is met the more often, the more rarely it is beaten; none is forgotten."""
        weights = np.array([1.05 - bot["score"] for bot in self.bots])
        return (weights / weights.sum()).tolist()

    def record(self, kind, serial, score):
        """A beaten member is worth less, the more so the more rarely it is drawn: q -= 0.01 / (N p). The agent's Elo
        moves."""
        if kind == SCRIPTED:
            bot = self.bots[int(serial)]
            bot["score"] += 0.02 * (score - bot["score"])
            self.elo = elo_update(self.elo, ELO[bot["name"]], score)
        for index, member in enumerate(self.members):
            if kind == LEAGUE and member["serial"] == serial:  # it may have left while the fight went on
                if score == 1.0:
                    member["quality"] -= 0.01 / (len(self.members) * max(self.probabilities()[index], 1e-8))
                member["games"], member["wins"] = member["games"] + 1, member["wins"] + score
                self.elo = elo_update(self.elo, member["elo"], score)

    def publish(self, agent, version, self_share):
        """Hands weights, snapshots and sampling probabilities to the actors, all of one version."""
        numbers = {
            "self_share": self_share,
            "scripted_share": self.args.scripted_fraction,
            "bot_chances": self.bot_chances(),
        }
        chances = zip(self.members, self.probabilities())
        members = {member["row"]: {"policy_id": member["serial"], "chance": chance} for member, chance in chances}
        self.broadcast.publish(agent, version, numbers, members)


if __name__ == "__main__":
    args = parse_args(Args, PRESETS)
    checkpoint = load_checkpoint(args.resume, contract.contract_hash()) if args.resume else None
    if args.self_play in ("target", "exploiter") and not args.opponent:
        raise BadInput(f"--self-play {args.self_play} needs --opponent: a model.zip or a run's folder.")
    run_dir = make_run_folder(args, __file__)
    device, autocast, scaler = set_up(args)

    agent = make_agent(vars(args)).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    evaluate_actions = maybe_compile(args, agent.evaluate_actions, device)
    obs_rms, scale_rewards = RunningMeanStd(NUM_OBS), RewardScale(max(args.num_workers, 1), args.num_envs, 2)
    args.sharing = shared_memory.resolve_sharing(args, make_storage, len(to_flat(agent)))
    broadcast = make_broadcast(args, len(to_flat(agent)))
    league = League(args, broadcast)
    fixed_opponent = None
    if args.self_play in ("target", "exploiter"):
        fixed_opponent = load_model(args.opponent, args)[0]
        league.join(Path(args.opponent).name, to_flat(fixed_opponent))
    update, global_step, version, elapsed, exploiters = 0, 0, 0, 0.0, []
    actor = Actor(args, 0) if args.num_workers == 0 else None

    if checkpoint:
        restore(checkpoint, agent=agent, optimizer=optimizer, scaler=scaler, snapshots=broadcast.member_weights)
        vars(obs_rms).update(checkpoint["obs_rms"])
        scale_rewards.load_state_dict(checkpoint)
        league.members, league.next_serial, league.elo, league.bots = checkpoint["league"]
        update, global_step, version, elapsed = checkpoint["progress"]
        exploiters = checkpoint.get("exploiters", [member["name"] for member in league.members])
        torch.set_rng_state(checkpoint["torch_rng"])
        if actor and checkpoint["actor"]:
            actor.load_state_dict(checkpoint["actor"])

    def save_all():
        state = {
            "agent": agent.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(),
            "obs_rms": vars(obs_rms), **scale_rewards.state_dict(),
            "league": [league.members, league.next_serial, league.elo, league.bots],
            "snapshots": broadcast.member_weights.clone(), "exploiters": exploiters,
            "progress": [update, global_step, version, elapsed + time.time() - start_time],
            "contract_hash": contract.contract_hash(),
            "torch_rng": torch.get_rng_state(), "actor": actor.state_dict() if actor else None,
        }  # fmt: skip
        save_checkpoint(run_dir, state)
        save_model(run_dir / "model.zip", agent, args)

    def evaluate_all():
        """The models beside the results let a run be compared with its own past."""
        save_model(run_dir / "models" / f"{global_step}.zip", agent, args)
        video = run_dir / "videos" / f"{global_step}.gif" if args.capture_video else ""
        return evaluate(args, agent, args.eval_episodes, video, fixed_opponent)

    def self_share():
        share = anneal(args.self_fraction, args.self_fraction_final, update, args.fraction_anneal_updates)
        return share if league.members and args.self_play != "pure" else 1.0 - args.scripted_fraction

    stopping = stop_on_signals()
    logger = Logger(args, run_dir, global_step)
    league.publish(agent, version, self_share())
    rollouts = make_rollouts(args, broadcast, stopping, actor)
    reward_weights = torch.tensor([getattr(args, f"reward_{term}") for term in REWARD_TERMS])
    changing = torch.zeros(NUM_OBS).index_fill_(0, torch.from_numpy(contract.CHANGING), 1.0)
    freeze_terms = [REWARD_TERMS.index("frozen"), REWARD_TERMS.index("target_frozen")]
    start_time, first_step, consistent, done = time.time(), global_step, True, progress(args, global_step, elapsed)

    try:
        wait_start = time.perf_counter()
        for index, storage, queue_size in rollouts:
            wait_time, learn_start = time.perf_counter() - wait_start, time.perf_counter()
            consistent, s, update = False, SimpleNamespace(**storage), update + 1
            rollout_version, episodes, *seconds = s.info.tolist()
            ended = s.terminated | s.truncated  # (T, F, 1)

            # --- rewards: named terms × weights, novelty, scaled by the std of discounted returns
            weights = reward_weights.clone()
            weights[freeze_terms] *= anneal(1.0, args.reward_frozen_final_scale, update, 300)
            rewards = s.terms @ weights  # (T, F, 2)
            novelty = anneal(args.novelty, 0.0, update, args.novelty_updates)
            if novelty > 0 and update > 1:  # before there are statistics everything is novel
                z = (s.obs[1:] - agent.obs_mean.cpu()).div_(agent.obs_std.cpu()).abs_()
                rewards += novelty * (z.sub_(1).clamp_(0, 9) @ changing) * ~ended
            scaled, returns_seen = scale_rewards(index, rewards, ended, s.trained, args.gamma)
            scaled = scaled.clamp(-args.reward_clip, args.reward_clip)
            advantages = gae(
                scaled, s.values[:-1], s.values[-1], s.terminated, s.truncated, s.bootstrap, args.gamma, args.gae_lambda
            )

            # --- PPO on the rows the learner's own policy played
            b_inds = torch.from_numpy(np.flatnonzero(s.trained.numpy()))
            b_obs, b_masks, b_actions = (
                s.obs[:-1].view(-1, NUM_OBS),
                s.masks.view(-1, NUM_LOGITS),
                s.actions.view(-1, NUM_HEADS),
            )
            b_logprobs, b_advantages, b_values = s.logprobs.view(-1), advantages.view(-1), s.values[:-1].reshape(-1)
            b_returns = b_advantages + b_values
            global_step += len(b_inds)
            lr = anneal(args.learning_rate, args.learning_rate_final, done, 1.0)
            ent_coef = anneal(args.ent_coef, args.ent_coef_final, update, args.ent_coef_updates)
            optimizer.param_groups[0]["lr"] = lr
            losses = []
            # The first rollout only feeds the statistics: it was played without normalisation.
            for _ in range(args.update_epochs if update > 1 else 0):
                for mb_inds in minibatches(b_inds, args.minibatch_size):
                    obs = agent.normalise(b_obs[mb_inds].to(device, non_blocking=True))
                    target_obs = agent.normalise(
                        b_obs[mb_inds ^ 1].to(device, non_blocking=True)
                    )  # the other fighter's row
                    with autocast():
                        logprob, entropy = evaluate_actions(
                            obs, b_masks[mb_inds].to(device), b_actions[mb_inds].to(device).long()
                        )
                        values = agent.value(obs, target_obs).float()
                    mb_advantages, mb_returns = b_advantages[mb_inds].to(device), b_returns[mb_inds].to(device)
                    if args.norm_adv:
                        mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
                    mb_logprobs = b_logprobs[mb_inds].to(device)
                    policy_loss, value_loss, stats = ppo_losses(
                        logprob, mb_logprobs, mb_advantages, values, mb_returns, args.clip_coef
                    )
                    loss = policy_loss - ent_coef * entropy.mean() + args.vf_coef * value_loss
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                    scaler.step(optimizer)
                    scaler.update()
                    losses.append(torch.stack([policy_loss, value_loss, entropy.mean(), grad_norm, *stats]).detach())
            check_finite(losses)

            # --- statistics move after the update, so that it saw the same observations as the actor
            obs_rms.update(b_obs[b_inds])
            agent.obs_mean.copy_(obs_rms.mean)
            agent.obs_std.copy_(obs_rms.var.sqrt().clamp(min=1e-2))
            lag, version = torch.tensor(version - rollout_version), version + 1

            # --- the league: results of the fights that ended, a snapshot now and then, exploiters that have finished
            results = s.episodes[: int(episodes)]
            for kind, serial, score, _ in results.tolist():
                league.record(kind, serial, score)
            if (
                args.self_play in ("past", "latest")
                and args.snapshot_frequency
                and update % args.snapshot_frequency == 0
            ):
                league.join(f"snapshot_{global_step}", to_flat(agent))
                for path in sorted(run_dir.glob("exploiters/*.zip")):
                    if path.name not in exploiters:  # one that the league has outgrown does not come back
                        league.join(path.name, to_flat(load_model(path, args)[0]))
                        exploiters.append(path.name)
            league.publish(agent, version, self_share())
            consistent, learn_time = True, time.perf_counter() - learn_start

            # --- logs, evaluation, checkpoint
            done = progress(args, global_step, elapsed + time.time() - start_time)
            metrics = {
                "charts/SPS": (global_step - first_step) / (time.time() - start_time),
                "charts/learning_rate": lr,
                "charts/self_fraction": self_share(),
                **loss_metrics("policy_loss value_loss entropy grad_norm old_approx_kl approx_kl clipfrac", losses),
                "losses/explained_variance": 1
                - float((b_returns - b_values)[b_inds].var() / b_returns[b_inds].var().clamp(min=1e-8)),
                **time_metrics(lag, queue_size, seconds, learn_time, wait_time),
                **result_metrics(results, ("self", args.self_play, "scripted")),
                "elo/agent": league.elo,
                "league/size": len(league.members),
            }
            if len(results):
                metrics["charts/episodic_return"] = float(returns_seen.mean())
            metrics |= {
                f"rewards/{term}": value
                for term, value in zip(REWARD_TERMS, (s.terms[s.trained].mean(0) * weights).tolist())
            }
            finished = done >= 1.0
            if finished or (args.eval_frequency and update % args.eval_frequency == 0):
                metrics |= evaluate_all()
            logger.write(metrics, global_step, done)
            if finished or stopping:
                break
            if update % args.checkpoint_frequency == 0:
                save_all()
            wait_start = time.perf_counter()
    finally:
        rollouts.close()
        logger.close()
        if consistent:  # not in the middle of an update, whose half would be neither the old nor the new policy
            save_all()
        say_how_to_go_on(run_dir)
    if args.self_play == "exploiter" and Path(args.opponent).is_dir():
        save_model(Path(args.opponent) / "exploiters" / f"{run_dir.name}.zip", agent, args)
