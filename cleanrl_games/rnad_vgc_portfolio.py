"""Regularised self-play on VGC doubles: PPO with a KL magnet to a reference, a portfolio of references or an average of its past.

    python cleanrl_games/rnad_vgc_portfolio.py --num-workers 4

    ┌ actor (process × num_workers, inline, or Ray) ┐   slot numbers   ┌ learner ────────────────────────────────────┐
    │ battles in a Node process of its own, batched │ ───────────────► │ loss = policy + β value − γ entropy         │
    │ inference; whom to meet is drawn when a       │  2 shared-memory │        + α min KL(π‖references)             │
    │ battle starts and stays to its end            │  slots per actor │ references, pool, evaluation, checkpoints   │
    └───────────────────────▲───────────────────────┘                  └────┬───────────────────▲────────────────────┘
                            └── Board: weights by version, the pool ◄───────┤                   │ exploiter_registry.json
                                                                            └─► exploiter: this script, --opponent … --alpha 0

An exploiter is the honest measure: what a fresh learner with the same budget wins against the frozen model.
"""

import dataclasses
import functools
import math
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

from cleanrl_games.envs import actors
from cleanrl_games.envs.vgc import PREVIEW, VGCVecEnv, contract, require_format, team_mix
from cleanrl_games.envs.vgc.choices import choices_of, masked_log_softmax
from cleanrl_games.envs.vgc.evaluation import Player, evaluate  # noqa: F401 (tools play a model as its script's Player)
from cleanrl_games.envs.vgc.layers import NUM_IDS, PointingHeads, embed_ids, linear
from cleanrl_games.envs.vgc.match import BASELINES
from cleanrl_games.envs.vgc.pool import Records
from cleanrl_games.envs.vgc.seats import Seats, make_rows, make_storage
from cleanrl_games.envs.vgc.sequences import cut_chunks, evaluate_chunks, gather, tables_of, values_after
from cleanrl_games.envs.vgc.vocabulary import LAYOUT, columns_of
from cleanrl_games.runtime import exploiter_processes, models, shared_memory
from cleanrl_games.runtime.checkpoints import load_checkpoint, restore
from cleanrl_games.runtime.device import set_up
from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.runtime.files import make_run_folder, write_atomically
from cleanrl_games.runtime.logger import Logger
from cleanrl_games.runtime.metrics import loss_metrics, result_metrics, time_metrics
from cleanrl_games.runtime.settings import parse_args
from cleanrl_games.runtime.shared_memory import copy_with_weights, from_flat, invite, to_flat
from cleanrl_games.runtime.stopping import check_finite, progress, stop_on_signals

# Names that users of similar trainers type, and what they are called here.
ALIASES = {
    "lr": "learning_rate", "players_per_worker": "num_battles", "team_pool_path": "teams", "checkpoint": "resume",
}  # fmt: skip


@dataclasses.dataclass
class Args:
    # --- experiment
    exp_name: str = Path(__file__).stem
    """the name of this experiment"""
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
    threads: int = 1
    """torch threads of the learner"""
    actor_threads: int = 1
    """torch threads of each actor"""
    sharing: Literal["auto", "shared_memory", "file_system"] = "auto"
    """where rollouts and weights are shared: /dev/shm, or unnamed files in the temporary folder (auto = when /dev/shm is too small)"""

    # --- environment
    env_id: str = "vgc"
    """name of the game in the run's folder"""
    battle_format: str = "gen9vgc2023regulationc"
    """the VGC format; old spellings are understood"""
    teams: tuple[str, ...] = ("shipped", "generated")
    """training teams, each source equally often: shipped, generated, or folders of PokePaste files"""
    open_team_sheets: bool = True
    """both sheets are known from team preview on, as in official play"""
    turn_cap: int = 100
    """a battle longer than this is truncated"""

    # --- actors
    num_workers: int = 4
    """actor processes; 0 = inline in the learner's process, deterministic"""
    num_battles: int = 32
    """battles under way per actor"""
    num_sims: int = 1
    """Node processes per actor; with 2 an actor decides for one half while the other half is simulated"""
    buffer_size: int = 2048
    """decisions per rollout"""
    actor_nice: int = 10
    """niceness of actor processes and their simulators: where cores are few, the learner comes first and is less behind"""
    train_batch_size: int = 0
    """decisions that one update learns from, in whole rollouts; 0 = one of each actor"""
    max_policy_lag: int = 4
    """rollouts that are more updates behind than this are thrown away"""
    ray_address: str = ""
    """run the actors on this Ray cluster ("auto", "127.0.0.1:6379", …)"""

    # --- algorithm
    total_timesteps: int = 100_000_000
    """agent-steps to train for"""
    max_updates: int = 0
    """stop after this many updates, 0 = no limit"""
    max_minutes: float = 0.0
    """stop after this many minutes, 0 = no limit"""
    bc_model: str = ""
    """a model.zip or run folder of bc_vgc_mdbo.py (or of this script) to start from"""
    value_warmup_updates: int = 4
    """with --bc-model: updates that train the value head only, since a clone's predicts the games of others"""
    learning_rate: float = 3e-4
    """Adam's step size"""
    learning_rate_final: float = 1e-4
    """its value at the end of the run (linear)"""
    gamma: float = 0.999
    """discount"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    off_policy: Literal["clip", "vtrace"] = "clip"
    """rollouts of older versions: PPO's clip around the policy that played, or V-trace and the clip around the present one"""
    num_minibatches: int = 32
    """gradient steps per pass over them"""
    update_epochs: int = 10
    """passes over a rollout"""
    target_kl: float = 0.01
    """no further pass once the policy has moved this far from the one that played (mean KL), 0 = always all passes"""
    sequence_length: int = 16
    """steps through which gradients flow back (truncated BPTT); the state before each chunk is stored"""
    norm_adv: bool = True
    """normalise advantages per minibatch"""
    clip_coef: float = 0.2
    """PPO's clip"""
    ent_coef: float = 0.01
    """entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """gradient clip"""
    width: int = 64
    """width of a Pokémon's token"""
    embedding_width: int = 128
    """width of an id's embedding"""
    lstm_size: int = 192
    """units of the LSTM"""
    attention_heads: int = 4
    """attention heads over the twelve Pokémon"""

    # --- regularisation
    alpha: float = 0.2
    """weight of the magnet, min over references of KL(π‖reference); with normalised advantages .01 does nothing"""
    magnet: Literal["ref", "portfolio", "ema", "uniform"] = "ema"
    """what the policy is drawn to: a frozen snapshot, the nearest of several, an average of its past weights, uniform legal play"""
    ref_update_interval: int = 50
    """ref: updates until the snapshot is renewed"""
    max_portfolio_size: int = 2
    """portfolio: references at most"""
    portfolio_add_interval: int = 50
    """portfolio: updates between candidates"""
    portfolio_strategy: Literal["diverse", "best", "recent"] = "recent"
    """portfolio: which to keep: the set with the largest pairwise KL, the highest rated in the pool, the newest"""
    ema_decay: float = 0.98
    """ema: share of the average that an update keeps"""
    rollout_kl: float = 0.0
    """weight of KL(π‖the policy before this update)"""

    # --- self-play (base shares; the curriculum moves them toward whom it loses to, and battles that are none of these are against oneself)
    random_fraction: float = 0.05
    """share of battles against poke-env's RandomPlayer"""
    max_power_fraction: float = 0.1
    """share of battles against MaxBasePowerPlayer"""
    heuristics_fraction: float = 0.25
    """share of battles against SimpleHeuristicsPlayer"""
    bc_fraction: float = 0.05
    """share of battles against the model of --bc-model"""
    past_fraction: float = 0.15
    """share of battles against past selves, once there are some"""
    exploiter_fraction: float = 0.15
    """share of battles against registered exploiters, once there are some"""
    opponent: str = ""
    """model.zip or run folder of a fixed opponent, for training against it"""
    snapshot_frequency: int = 40
    """updates between snapshots for the league, 0 = none"""
    league_size: int = 16
    """members of the league; beyond that the easiest leaves"""
    guests: int = 2
    """league members an actor fights at a time (one batched forward pass each)"""
    train_exploiters: bool = False
    """train an exploiter of the present model in the background now and then"""
    exploiter_check_interval: int = 500
    """updates between exploiters"""
    exploiter_train_steps: int = 200_000
    """agent-steps that an exploiter trains for"""
    exploiter_win_threshold: float = 0.6
    """an exploiter that wins this share joins the pool"""
    exploiter_battles: int = 200
    """battles that decide it"""
    exploiter_start: Literal["clone", "fresh"] = "clone"
    """what an exploiter starts from: its target's weights, or none"""

    # --- evaluation and checkpoints
    eval_frequency: int = 40
    """updates between evaluations against the scripted players, each with a model in the run's folder; 0 = only at the end"""
    eval_battles: int = 100
    """battles per evaluation and scripted player"""
    final_battles: int = 400
    """battles per scripted player at the end"""
    deterministic: bool = True
    """evaluations play the likeliest action instead of sampling"""
    checkpoint_frequency: int = 25
    """updates between checkpoints"""


# ------------------------------------------------------------------------------------------------------------- networks


# --8<-- [start:vgc_network]
class Agent(PointingHeads):
    """Embeddings for ids, a token per Pokémon, attention over the twelve, an LSTM over a battle's decisions, three heads.

    A decision is two choices, one after the other, the second given the first: heads for them are in envs/vgc/layers.py.
    """

    def __init__(self, width=64, embedding_width=128, hidden_size=192, attention_heads=4):
        super().__init__()
        self.hidden_size, self.attention_heads = hidden_size, attention_heads
        own, opp, active, history = (LAYOUT[name] for name in ("own", "opp", "active", "history"))
        self.common, self.active_at = len(opp.floats), opp.floats.index("active_a")

        self.table = nn.Parameter(torch.randn(NUM_IDS, embedding_width) * 0.1)
        self.mon_ids, self.mon_numbers = linear(embedding_width, width, 1.0), linear(self.common, width, 1.0)
        self.own_numbers, self.belief_numbers = linear(len(own.floats) - self.common, width), linear(len(LAYOUT["belief"].floats), width)
        self.active_numbers = linear(len(active.floats), width, 1.0)
        self.norm_attention, self.norm_feed, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.attention_out = linear(width, 3 * width, 1.0), linear(width, width, 0.5)
        self.feed_in, self.feed_out = linear(width, 2 * width), linear(2 * width, width, 0.5)
        self.history_in = linear(embedding_width + len(history.floats), width)
        self.field_in = linear(len(LAYOUT["field"].floats), width)
        self.core_in = linear(8 * width, hidden_size)
        self.lstm_in, self.lstm_hidden = linear(hidden_size, 4 * hidden_size, 1.0), linear(hidden_size, 4 * hidden_size, 1.0)
        with torch.no_grad():
            self.lstm_in.bias[hidden_size : 2 * hidden_size] = 1.0  # remember, until there is a reason to forget
        self.add_heads(width, embedding_width, hidden_size)
        self.value_out = linear(hidden_size, 1, 0.1)

    def encode(self, ints, floats):
        """ints (B, 196), floats (B, 1048) → the core's input (B, H), and what the heads point at"""
        batch, common = len(ints), self.common
        own, opp, active, field, history, belief = (columns_of(floats, name) for name in LAYOUT)
        mons, events, moves = embed_ids(self.table, ints)

        where = slice(self.active_at, self.active_at + 2)  # columns active_a, active_b
        our_slots, their_slots = self.active_numbers(active).split(2, 1)  # (B, 2, W)
        ours = torch.baddbmm(self.own_numbers(own[..., common:]), own[..., where], our_slots)
        theirs = torch.baddbmm(self.belief_numbers(belief), opp[..., where], their_slots)
        x = self.mon_ids(mons) + self.mon_numbers(torch.cat([own[..., :common], opp], 1)) + torch.cat([ours, theirs], 1)  # (B, 12, W)
        q, k, v = self.qkv(self.norm_attention(x)).view(batch, 12, 3, self.attention_heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.attention_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, 12, -1))
        x = self.norm_out(x + self.feed_out(F.relu(self.feed_in(self.norm_feed(x)))))

        our_tokens, their_tokens = x.split(6, 1)  # split, not slices: a slice's gradient is a tensor of zeros with a window
        standing, bench, _ = our_tokens.split(2, 1)
        foes = opp[..., where].mT @ their_tokens  # (B, 2, W), zero where nobody stands
        events = F.relu(self.history_in(torch.cat([events, history], -1))).sum(1)
        everything = [standing.flatten(1), foes.flatten(1), our_tokens.mean(1), their_tokens.mean(1), events]
        core = F.relu(self.core_in(torch.cat([*everything, F.relu(self.field_in(field.squeeze(1)))], 1)))
        return core, self.point_at(own, active, moves, our_tokens, standing, bench, foes)

    def unroll(self, core, state, first):
        """core (T, B, H), state (2, B, H), first (T, B): where a battle begins → (T, B, H), state"""
        hidden, cell = state
        outputs = []
        for gates_in, keep in zip(self.lstm_in(core).unbind(0), (~first).float()[..., None].unbind(0)):
            hidden, cell = hidden * keep, cell * keep
            i, f, g, o = (gates_in + self.lstm_hidden(hidden)).chunk(4, -1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs), torch.stack([hidden, cell])

    def win_logit(self, hidden):
        """The log-odds of winning (B,)"""
        return self.value_out(hidden).squeeze(-1).float()

    def value(self, hidden):
        return 2 * self.win_logit(hidden).sigmoid() - 1


def make_agent(settings):
    return Agent(settings["width"], settings["embedding_width"], settings["lstm_size"], settings["attention_heads"])


# --8<-- [end:vgc_network]


# ----------------------------------------------------------------------------------------------------------- pure maths
#
# A policy is given as the log-probs of H heads that are chosen one after another: (..., H, A), head h given the actions taken
# in the heads before it. A turn in VGC has two (slot 0, slot 1), a decision at a poker table one; padding is illegal actions.


def taken_logprob(logprobs, actions):
    """Log-prob of what was chosen in all heads. (..., H, A), (..., H) → (...)"""
    return logprobs.gather(-1, actions[..., None]).squeeze(-1).sum(-1)


def policy_entropy(logprobs):
    """Of the joint choice, later heads estimated at the actions taken. (..., H, A) → (...)"""
    logprobs = logprobs.clamp(min=-80.0)  # nothing, but not 0 · (-inf), for illegal actions; of less exp takes ten times as long
    return -(logprobs.exp() * logprobs).sum((-1, -2))


def policy_kl(logprobs, reference):
    """KL(π‖ref) = KL of head 0 + E[KL of head 1 given head 0] + …, the expectation estimated at the actions taken → (...)"""
    logprobs, reference = logprobs.clamp(min=-80.0), reference.clamp(min=-80.0)
    return (logprobs.exp() * (logprobs - reference)).sum((-1, -2))


def magnet_kl(logprobs, references):
    """min_i KL(π‖ref_i), decision by decision. (B, H, A), (R, B, H, A) → KL to the nearest (B,), which it is (B,), all KLs (R, B)"""
    kls = policy_kl(logprobs[None], references)
    nearest, chosen = kls.min(0)
    return nearest, chosen, kls.detach()


def clipped_loss(logprob, old_logprob, advantages, clip_coef):
    """PPO's clipped loss with Ye et al.'s second clip: a bad action that has become likelier (heads multiply to large ratios, the
    more so when the rollout is a version old) pushes no harder than three times its advantage. → loss, statistics"""
    logratio = logprob - old_logprob
    ratio = logratio.exp()
    loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip_coef, 1 + clip_coef))
    loss = torch.where(advantages < 0, torch.min(loss, -3 * advantages), loss).mean()
    with torch.no_grad():
        stats = torch.stack([-logratio.mean(), (ratio - 1 - logratio).mean(), ((ratio - 1).abs() > clip_coef).float().mean()])
    return loss, stats


def value_loss(win_logit, returns):
    """Cross-entropy of the win prediction: a return in [-1, 1] is a chance of (return + 1) / 2."""
    return F.binary_cross_entropy_with_logits(win_logit, ((returns + 1) / 2).clamp(0, 1))


def vtrace(key, rewards, values, next_values, ended, ratios, gamma, gae_lambda):
    """Advantages (N,) of rows in order of arrival: GAE over a seat's (key's) own rows, with V-trace's clipped π/μ at each of them.

    next_values are those of the seat's next row, 0 after the end of a game, V(last observation) after a truncation. With
    ρ̄ = c̄ = 1 V-trace's advantage (Espeholt et al. 2018) is also its correction of the value: targets are values + advantages.
    """
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[order], prepend=key[order][:1] - 1))  # where a seat's rows begin
    seat = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(key)))
    position = np.arange(len(key)) - begins[seat]
    deltas, rhos = rewards + gamma * next_values - values, np.minimum(ratios, 1.0)
    advantages, last = np.zeros_like(deltas), np.zeros(len(begins), deltas.dtype)
    for step in reversed(range(position.max(initial=-1) + 1)):
        here = position == step
        rows, seats = order[here], seat[here]
        last[seats] = rhos[rows] * (deltas[rows] + gamma * gae_lambda * ~ended[rows] * last[seats])
        advantages[rows] = last[seats]
    return advantages


def divergences(tables):
    """Mean KL between all pairs of references on the same decisions. (R, B, H, A) → (R, R)"""
    return torch.stack([policy_kl(table[None], tables).mean(-1) for table in tables])


def portfolio_drop(strategy, tables, ratings):
    """Which of the references, oldest first, leaves a portfolio that has become too large. tables (R, B, H, A), ratings (R,)"""
    if strategy == "recent":
        return 0
    if strategy == "best":
        return int(np.argmin(ratings))
    if strategy == "diverse":
        pairwise = divergences(tables)
        return int((pairwise.sum(0) + pairwise.sum(1)).argmin())  # what remains has the largest sum of pairwise KLs
    raise ValueError(f"There is no portfolio strategy {strategy!r}: choose diverse, best or recent.")


def ema_update(average, module, decay):
    """In place: average ← decay · average + (1 - decay) · module; buffers are copied."""
    with torch.no_grad():
        for mean, tensor in zip(average.state_dict().values(), module.state_dict().values()):
            mean.copy_(torch.lerp(tensor, mean, decay) if tensor.is_floating_point() else tensor)


def pool_probabilities(shares, win_rates, games, ceiling=2.0, floor=0.25, prior=20.0):
    """Whom to play: the base shares, moved toward those it loses to. A kind never seen counts as even, one always beaten keeps
    `floor` of its weight, so that a weakness that comes back is noticed; none gets more than `ceiling` times it. All (K,) → (K,)"""
    estimate = (np.asarray(win_rates) * games + 0.5 * prior) / (np.asarray(games) + prior)
    weights = np.asarray(shares) * np.clip(2.0 * (1.0 - estimate), floor, ceiling)
    return weights / weights.sum()


def anneal(start, final, update, updates):
    return start + (final - start) * min(update / max(updates, 1e-8), 1.0)


# --------------------------------------------------------------------------------------------------------------- actors

KINDS = ("self", "bc", "past", "exploiter", "opponent", *BASELINES)  # who holds the other seat
SELF, BC, PAST, EXPLOITER, OPPONENT, SCRIPTED = range(6)


def base_shares(args):
    """(K,): whom to play before anything is known; what is left is self-play. With --opponent nobody else."""
    if args.opponent:
        return np.eye(len(KINDS))[OPPONENT]
    scripted = [getattr(args, f"{name}_fraction") for name in BASELINES]
    shares = np.array([0.0, args.bc_fraction, args.past_fraction, args.exploiter_fraction, 0.0, *scripted])
    shares[SELF] = 1.0 - shares.sum()
    return shares


def make_env(args, index, shares, episodes=None, players=None):
    # Sixteen shipped teams are soon known by heart; the generated ones keep held-out teams from being a shock.
    teams = team_mix(args.teams, args.battle_format)
    return VGCVecEnv(
        args.num_battles, args.num_sims, args.battle_format, teams, args.open_team_sheets,
        args.seed * 1000 + index, args.turn_cap, opponents=scripted(shares), episodes=episodes, players=players,
    )  # fmt: skip


def scripted(shares):
    """(K,) → shares of scripted players by name"""
    return {name: float(share) for name, share in zip(BASELINES, shares[SCRIPTED:]) if share > 0}


def make_board(args, num_parameters):
    """numbers: version, the kinds' probabilities; league: serial numbers, kinds, probabilities within the kind"""
    return shared_memory.Board(args, num_parameters, 1 + len(KINDS), 3)


class Actor:
    """Plays battles and writes them down. Knows nothing of processes or Ray: the same class runs inline and anywhere else."""

    def __init__(self, args, index):
        seed = args.seed * 1000 + index
        self.args, self.index = args, index
        self.rng, self.generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        if args.num_workers:
            os.nice(args.actor_nice)
        self.shares = base_shares(args)  # by which battles begin
        self.env, self.resumed = make_env(args, index, self.shares), None
        self.agent = make_agent(vars(args)).eval()
        self.members = {}  # serial number of a pool's member → its policy, copied when first needed
        self.seats = Seats(make_rows(args, 2 * args.num_battles), SCRIPTED)

    def read_board(self, board):
        """Takes over weights and shares and draws the members to meet in this rollout → (version, guests by kind)"""
        with board.lock:
            from_flat(self.agent, board.weights)
            version, self.shares = int(board.numbers[0]), board.numbers[1:].numpy().copy()
            serials, kinds, shares = board.league.numpy().copy()
            guests = {}
            for kind in np.unique(kinds[shares > 0]).astype(int).tolist():
                p = shares * (kinds == kind)
                guests[kind] = np.unique(self.rng.choice(serials, self.args.guests, p=p / p.sum())).astype(int).tolist()
            drawn = [serial for serials_of_kind in guests.values() for serial in serials_of_kind]
            invite(self, board, drawn, self.seats.holder.tolist())
        return version, guests

    def choose_opponents(self, batch, rows, guests):
        """Only ever called for battles that start: who holds a seat holds it until the battle ends. Whether it is a scripted player
        the environment has drawn, by the same shares."""
        shares = self.shares[:SCRIPTED].clip(min=0.0)  # self-play's may be a rounding error below
        shares = shares / shares.sum() if shares.any() else np.eye(SCRIPTED)[SELF]
        for battle, code in dict(zip(batch.battle[rows].tolist(), batch.opponent[rows].tolist())).items():
            kind = SCRIPTED + code - 1 if code else int(self.rng.choice(SCRIPTED, p=shares))
            kind = kind if code or kind in guests else SELF
            self.seats.begin(battle, kind)
            if SELF < kind < SCRIPTED:
                self.seats.holder[2 * battle + self.rng.integers(2)] = self.rng.choice(guests[kind])

    @torch.no_grad()
    def rollout(self, board, storage):
        """Plays until buffer_size decisions are closed in `storage`, with the weights that are on the board now."""
        start, inference_time, simulator_time, closed, episodes = time.perf_counter(), 0.0, 0.0, 0, 0
        version, guests = self.read_board(board)
        seats = self.seats
        while closed < self.args.buffer_size:
            clock = time.perf_counter()
            batch = self.resumed or self.env.recv("any" if self.args.num_sims > 1 else "all")
            self.resumed = None
            simulator_time += time.perf_counter() - clock
            clock = time.perf_counter()

            # --- battles that ended
            episodes = seats.note_results(batch.finished, storage["episodes"], episodes)
            closed = seats.close_ended(storage, closed, batch, self.agent)
            self.env.set_shares(scripted(self.shares))  # of battles that follow those which the next actions end

            # --- decisions, in the order of seats: what is drawn must not depend on who answered first
            rows = batch.decisions[np.argsort(batch.key[batch.decisions])]
            self.choose_opponents(batch, rows[batch.kind[rows] == PREVIEW], guests)
            keys, actions, masks = batch.key[rows].astype(np.int64), np.zeros(len(rows), np.int64), torch.from_numpy(batch.mask[rows])
            preview = torch.from_numpy(batch.kind[rows] == PREVIEW)
            for holder in np.unique(seats.holder[keys]):
                chosen = np.flatnonzero(seats.holder[keys] == holder)
                policy = self.members[holder] if holder else self.agent
                hidden, things, before = seats.forward(policy, batch, rows[chosen])
                action, logprob, legal = policy.act(hidden, things, preview[chosen], masks[chosen], self.generator)
                actions[chosen] = action.numpy()
                if holder:
                    continue
                values, mine, follows = self.agent.value(hidden), keys[chosen], ~batch.retry[rows[chosen]] & seats.is_open[keys[chosen]]
                closed = seats.close(storage, closed, mine[follows], batch.reward[rows[chosen[follows]]], values[follows], False)
                known = (batch.ints[rows[chosen]], batch.floats[rows[chosen]], legal, action, logprob, values, preview[chosen], before)
                seats.decide(mine, *known, torch.tensor(version, dtype=torch.int32))
            self.env.send(keys, actions)
            if self.args.num_workers == 0:
                seats.remember_moves(keys, actions)
            inference_time += time.perf_counter() - clock
        storage["info"][:] = torch.tensor([closed, episodes, time.perf_counter() - start, inference_time, simulator_time])

    def state_dict(self):
        """All that the next rollout depends on, so that an inline run resumes exactly."""
        arrays = {"shares": self.shares, "episodes": self.env.episodes, "players": self.env.players}
        return shared_memory.actor_state(self, arrays) | {"seats": self.seats.state_dict()}

    def load_state_dict(self, state):
        arrays = shared_memory.load_actor_state(self, state)
        self.env.close()
        self.env = make_env(self.args, self.index, arrays["shares"], arrays["episodes"], arrays["players"])
        self.resumed = self.seats.load_state_dict(state["seats"], self.env)


# ----------------------------------------------------------------------------------------------- evaluation, checkpoints


def save_model(path, agent, args):
    models.save_model(path, agent.state_dict(), {}, contract.metadata(args.battle_format), args, __file__)


def load_model(path, args=None):
    """A run's folder or a model.zip → (agent, metadata); `args`: of the run whose pool it is to join"""
    return models.load_agent(path, contract.contract_hash(), make_agent, args, ("width", "embedding_width", "lstm_size", "attention_heads"))


class Pool(Records):
    """Frozen policies to play against, the clone, past selves, exploiters, and whom to meet next."""

    def probabilities(self):
        """(K,) of the kinds; a kind without members leaves its share to self-play. A scripted player's never grows: a decision against
        it costs four times one against oneself, and who wins 2 % of such battles learns more from its equals."""
        shares, ceiling = base_shares(self.args), np.where(np.arange(len(KINDS)) < SCRIPTED, 2.0, 1.0)
        for kind in {BC, PAST, EXPLOITER} - {member["kind"] for member in self.members}:
            shares[SELF], shares[kind] = shares[SELF] + shares[kind], 0.0
        return pool_probabilities(shares, self.win_rates(), self.games, ceiling)

    def publish(self, agent, version):
        """Hands weights, policies and sampling probabilities to the actors, all of one version."""
        columns = {}
        for kind in (BC, PAST, EXPLOITER, OPPONENT):
            members = [member for member in self.members if member["kind"] == kind]
            rates, games = [self.rate(member) for member in members], np.array([member["games"] for member in members])
            for member, share in zip(members, pool_probabilities(np.ones(len(members)), rates, games)):
                columns[member["row"]] = (member["serial"], kind, share)
        self.board.publish(agent, [version, *self.probabilities()], columns)


def exploiter_settings(args, target, update):
    """The run's settings, but against the model at `target` and without a magnet."""
    settings = dataclasses.asdict(args) | {
        "exp_name": f"{args.exp_name}_exploiter", "opponent": str(target), "alpha": 0.0, "bc_model": str(target) if args.exploiter_start == "clone" else "",
        "total_timesteps": args.exploiter_train_steps, "max_updates": 0, "max_minutes": 0.0, "final_battles": args.exploiter_battles,
        "seed": args.seed + update, "num_workers": 1, "train_batch_size": 0, "eval_frequency": 0, "snapshot_frequency": 0,
        "train_exploiters": False, "track": False, "tensorboard": False, "ray_address": "",
    }  # fmt: skip
    return {name: value for name, value in settings.items() if name not in ("config", "resume")}


def check_args(args):
    require_format(args.battle_format)
    if base_shares(args).min() < -1e-9:
        raise BadInput("The fractions of opponents sum to more than 1: what they leave is self-play, so lower some of them.")
    if args.buffer_size < 2 * args.num_battles:
        raise BadInput(f"--buffer-size {args.buffer_size} is less than one decision of each of the {2 * args.num_battles} seats.")
    if args.max_portfolio_size < 1 or args.league_size < 3:
        raise BadInput("--max-portfolio-size must be at least 1 and --league-size at least 3: the clone, a past self, an exploiter.")


if __name__ == "__main__":
    args = parse_args(Args, {}, aliases=ALIASES)
    check_args(args)
    checkpoint = load_checkpoint(args.resume, contract.contract_hash()) if args.resume else None
    run_dir = make_run_folder(args, __file__)
    learner_pid = exploiter_processes.learner_pid()
    device, autocast, scaler = set_up(args)

    agent = make_agent(vars(args)).to(device)
    if args.bc_model and not checkpoint:
        models.load_matching_weights(agent, args.bc_model, "--bc-model", contract.contract_hash(), contract.ACTION_SPACE)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)
    num_rollouts = math.ceil(args.train_batch_size / args.buffer_size) or max(args.num_workers, 1)
    args.sharing = shared_memory.resolve_sharing(args, make_storage, len(to_flat(agent)))
    board = make_board(args, len(to_flat(agent)))
    pool = Pool(args, board, KINDS)
    update, global_step, version, elapsed = 0, 0, 0, 0.0
    actor = Actor(args, 0) if args.num_workers == 0 else None

    def frozen(flat=None):
        """A copy of the policy, or a policy of these weights, that never learns."""
        return copy_with_weights(agent, to_flat(agent) if flat is None else flat).requires_grad_(False).eval()

    average = frozen()
    references = [{"policy": frozen(), "name": "start", "serial": 0, "elo": pool.elo}]  # oldest first
    if checkpoint:
        restore(checkpoint, agent=agent, optimizer=optimizer, scaler=scaler, snapshots=board.snapshots)
        average.load_state_dict(checkpoint["average"])
        references = [{**reference, "policy": frozen(reference["policy"])} for reference in checkpoint["references"]]
        pool.load_state(checkpoint["pool"])
        update, global_step, version, elapsed = checkpoint["progress"]
        torch.set_rng_state(checkpoint["torch_rng"])
        if actor and checkpoint["actor"]:
            actor.load_state_dict(checkpoint["actor"])
    elif args.opponent:
        pool.join(OPPONENT, Path(args.opponent).name, to_flat(load_model(args.opponent, args)[0]))
    elif args.bc_model:
        pool.join(BC, "bc", to_flat(agent))

    exploiter_runs = exploiter_processes.ExploiterRuns(run_dir, __file__, checkpoint["retired"] if checkpoint else ())

    def take_up_exploiters():
        for model in exploiter_runs.unseen_models() if not args.opponent else ():
            pool.join(EXPLOITER, model, to_flat(load_model(run_dir / model, args)[0]))

    def save_checkpoint():
        state = {
            "agent": agent.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(), "average": average.state_dict(),
            "references": [{**reference, "policy": to_flat(reference["policy"])} for reference in references],
            "pool": pool.state(), "retired": sorted(exploiter_runs.known), "snapshots": board.snapshots.clone(),
            "progress": [update, global_step, version, elapsed + time.time() - start_time], "contract_hash": contract.contract_hash(),
            "torch_rng": torch.get_rng_state(), "actor": actor.state_dict() if actor else None,
        }  # fmt: skip
        write_atomically(run_dir / "checkpoint.pt", lambda path: torch.save(state, path))
        save_model(run_dir / "model.zip", agent, args)

    def evaluate_all(final):
        """The models beside the results let a run be compared with its own past; at the end it is, against every past self."""
        save_model(run_dir / "models" / f"{global_step}.zip", agent, args)
        battles = args.final_battles if final else args.eval_battles
        if not battles:
            return {}
        if args.opponent:
            return evaluate(args, agent, battles, {"opponent": load_model(args.opponent)[0]})
        metrics, past = evaluate(args, agent, battles), []
        for member in pool.members if final else ():
            policy = frozen(board.snapshots[member["row"]]).cpu()
            if member["kind"] == BC:
                metrics |= evaluate(args, agent, battles, {"bc": policy})
            if member["kind"] == PAST:
                past.append(evaluate(args, agent, battles, {"past": policy})["eval/past"])
        if past:
            metrics |= {"eval/past_worst": min(past), "eval/past_mean": float(np.mean(past)), "eval/past_n": len(past)}
        return metrics

    stopping = stop_on_signals()
    logger = Logger(args, run_dir, global_step)
    take_up_exploiters()
    pool.publish(agent, version)
    rollouts = actors.rollouts(args, board, Actor, make_storage, actor)
    start_time, first_step, consistent, done = time.time(), global_step, True, progress(args, global_step, elapsed, update)

    try:
        wait_start = time.perf_counter()
        for b, results, seconds, dropped, queue_size in gather(rollouts, board, num_rollouts, args, stopping):
            if learner_pid and os.getppid() != learner_pid:
                raise RunFailed("The run whose exploiter this is has ended.")
            wait_time, learn_start = time.perf_counter() - wait_start, time.perf_counter()
            consistent, update = False, update + 1
            order, starts, lengths = cut_chunks(b.key.numpy(), args.sequence_length)
            global_step += len(b.key)
            lag = (version - b.version).float()

            # --- what the references would have done, and the policy as it is now
            with autocast():
                if args.alpha == 0 or args.magnet == "uniform":
                    b_references = masked_log_softmax(torch.zeros(1, *b.legal.shape), b.legal)
                else:
                    drawn_to = [average] if args.magnet == "ema" else [reference["policy"] for reference in references]
                    b_references = torch.stack([tables_of(policy, b, order, starts, lengths, device)[0] for policy in drawn_to])
                if args.off_policy == "vtrace" or args.rollout_kl:
                    b_present, present_values = tables_of(agent, b, order, starts, lengths, device)

            # --- advantages by seat
            b_choices = choices_of(b.first, b.actions)
            ratios = torch.ones_like(b.values)
            if args.off_policy == "vtrace":
                present_logprob = taken_logprob(b_present, b_choices)
                ratios = (present_logprob - b.logprobs).exp()
                after = values_after(b.key.numpy(), present_values.numpy(), b.next_values.numpy(), b.ended.numpy())
                b.logprobs, b.values, b.next_values = present_logprob, present_values, torch.from_numpy(after)
            by_row = (getattr(b, name).numpy() for name in ("key", "rewards", "values", "next_values", "ended"))
            b_advantages = torch.from_numpy(vtrace(*by_row, ratios.numpy(), args.gamma, args.gae_lambda))
            b_returns = b_advantages + b.values

            # --- the update, until the policy has moved far enough
            lr = anneal(args.learning_rate, args.learning_rate_final, done, 1.0)
            optimizer.param_groups[0]["lr"] = lr
            warming_up, losses, passes = bool(args.bc_model) and update <= args.value_warmup_updates, [], 0
            nearest_counts, reference_kls = torch.zeros(len(b_references)), []
            for _ in range(args.update_epochs):
                kl_sum = 0.0
                for chunks in torch.randperm(len(starts)).tensor_split(min(args.num_minibatches, len(starts))):
                    with autocast():
                        mb_inds, logprobs, hidden = evaluate_chunks(agent, b, order, starts[chunks], lengths[chunks], device)
                        win_logit = agent.win_logit(hidden.detach() if warming_up else hidden)
                    mb_advantages = b_advantages[mb_inds].to(device)
                    if args.norm_adv:
                        mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std(unbiased=False) + 1e-8)
                    logprob = taken_logprob(logprobs, b_choices[mb_inds].to(device))
                    policy_loss, stats = clipped_loss(logprob, b.logprobs[mb_inds].to(device), mb_advantages, args.clip_coef)
                    v_loss = value_loss(win_logit, b_returns[mb_inds].to(device))
                    entropy = policy_entropy(logprobs).mean()
                    nearest, chosen, kls = magnet_kl(logprobs, b_references[:, mb_inds].to(device))
                    from_rollout = policy_kl(logprobs, b_present[mb_inds].to(device)).mean() if args.rollout_kl else torch.zeros(())
                    loss = args.vf_coef * v_loss
                    if not warming_up:
                        loss = loss + policy_loss - args.ent_coef * entropy + args.alpha * nearest.mean() + args.rollout_kl * from_rollout
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                    scaler.step(optimizer)
                    scaler.update()
                    losses.append(torch.stack([policy_loss, v_loss, entropy, nearest.mean(), from_rollout, grad_norm, *stats]).detach())
                    nearest_counts += torch.bincount(chosen.cpu(), minlength=len(b_references))
                    reference_kls.append(kls.mean(1))
                    kl_sum += float(stats[1]) * len(mb_inds)
                passes += 1
                if args.target_kl and kl_sum / len(b.key) > args.target_kl:
                    break
            check_finite(losses)
            version += 1

            # --- the pool: results of the battles that ended, a snapshot now and then, exploiters that are ready
            pool.record(results)
            is_candidate = args.magnet == "portfolio" and update % args.portfolio_add_interval == 0
            if not args.opponent and (is_candidate or (args.snapshot_frequency and update % args.snapshot_frequency == 0)):
                newest = pool.join(PAST, f"snapshot_{global_step}", to_flat(agent))
            exploiter_runs.finish_ended(args.exploiter_win_threshold)
            if args.train_exploiters and not exploiter_runs.job and update % args.exploiter_check_interval == 0:
                settings = functools.partial(exploiter_settings, args, update=update)
                exploiter_runs.start_one(update, lambda path: save_model(path, agent, args), settings)
            take_up_exploiters()

            # --- the references move
            ema_update(average, agent, args.ema_decay)
            if args.magnet == "ref" and update % args.ref_update_interval == 0:
                references = [{"policy": frozen(), "name": f"update_{update}", "serial": 0, "elo": pool.elo}]
            if is_candidate and not args.opponent:
                references.append({"policy": frozen(), "name": newest["name"], "serial": newest["serial"], "elo": newest["elo"]})
                for reference in references:  # one that has left the pool keeps its last rating
                    reference["elo"] = next((m["elo"] for m in pool.members if m["serial"] == reference["serial"]), reference["elo"])
                if len(references) > args.max_portfolio_size:
                    candidate, _ = tables_of(references[-1]["policy"], b, order, starts, lengths, device)
                    ratings = [reference["elo"] for reference in references]
                    references.pop(portfolio_drop(args.portfolio_strategy, torch.cat([b_references, candidate[None]]), ratings))
            pool.publish(agent, version)
            consistent, learn_time = True, time.perf_counter() - learn_start

            # --- logs, evaluation, checkpoint
            done = progress(args, global_step, elapsed + time.time() - start_time, update)
            loss_names = "policy_loss value_loss entropy magnet_kl rollout_kl grad_norm old_approx_kl approx_kl clipfrac"
            metrics = {
                "charts/SPS": (global_step - first_step) / (time.time() - start_time),
                "charts/learning_rate": lr,
                **loss_metrics(loss_names, losses),
                "losses/explained_variance": 1 - float((b_returns - b.values).var() / b_returns.var().clamp(min=1e-8)),
                "losses/passes": passes,
                **time_metrics(lag, queue_size, seconds, learn_time, wait_time),
                "stats/dropped_rollouts": dropped,
                **result_metrics(results, KINDS),
                "league/size": len(pool.members),
                "elo/agent": pool.elo,
            }
            shares, kls = nearest_counts / nearest_counts.sum(), torch.stack(reference_kls).mean(0)
            for place, (share, kl) in enumerate(zip(shares.tolist(), kls.tolist())):
                metrics |= {f"portfolio/{place}_chosen": share, f"portfolio/{place}_kl": kl}
            metrics |= {f"curriculum/{name}": share for name, share in zip(KINDS, pool.probabilities().tolist()) if share}
            if len(scores := results[results[:, 0] != SELF, 2]):
                metrics["charts/episodic_return"] = float(2 * scores.mean() - 1)
            if best := exploiter_runs.best_win_rate():
                metrics["exploiter/best_win_rate"] = best
            finished = done >= 1.0
            if finished or (args.eval_frequency and update % args.eval_frequency == 0):
                metrics |= evaluate_all(finished)
            logger.write(metrics, global_step, done)
            if finished or stopping:
                break
            if update % args.checkpoint_frequency == 0:
                save_checkpoint()
            wait_start = time.perf_counter()
    finally:
        rollouts.close()
        logger.close()
        exploiter_runs.close()
        if consistent:  # not in the middle of an update, whose half would be neither the old nor the new policy
            save_checkpoint()
        print(f"Checkpoint and model are in {run_dir}; go on with --resume {run_dir}", flush=True)
