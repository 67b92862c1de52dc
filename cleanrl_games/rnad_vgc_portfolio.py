"""Regularised self-play on VGC doubles: PPO with a KL magnet to a reference, several of them, or its own average.

    python cleanrl_games/rnad_vgc_portfolio.py --num-workers 4

    ┌ actor (process × num_workers, inline, or Ray) ┐   slot numbers   ┌ learner ─────────────────────────────────┐
    │ battles in a Node process of its own, batched │ ───────────────► │ loss = policy + β value − γ entropy      │
    │ inference; whom to meet is drawn when a       │  2 shared-memory │        + α min KL(π‖references)          │
    │ battle starts and stays to its end            │  slots per actor │ references, pool, evaluation             │
    └───────────────────────▲───────────────────────┘                  └────┬───────────────────▲─────────────────┘
                            └── Broadcast: weights by version, the pool ◄───┤                   │ registry of exploiters
                                                                            └─► exploiter: --opponent … --alpha 0

A slot holds whole battles. An exploiter is this script against the frozen model: what it wins is the honest measure.
"""

import copy
import dataclasses
import functools
import json
import math
import os
import signal
import sys
import time
import traceback
from itertools import accumulate
from multiprocessing import connection
from pathlib import Path
from typing import Literal, NamedTuple

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import PackedSequence

from cleanrl_games.envs.vgc import PREVIEW, VGCVecEnv, contract, require_format, team_mix
from cleanrl_games.envs.vgc.match import BASELINES, play_battles, replay_battles
from cleanrl_games.envs.vgc.mdbo import (
    NUM_ACTIONS,
    NUM_PREVIEWS,
    PAIRS_OF_SIX,
    PASS,
    PREVIEW_PAIRS,
    SLOT_ACTIONS,
    SLOT_PARTS,
    SWITCH,
)
from cleanrl_games.envs.vgc.vocabulary import FLOATS, INTS, LAYOUT, SIZES, columns_of
from cleanrl_games.runtime import exploiter_processes, models, ray_actors, shared_memory
from cleanrl_games.runtime.checkpoints import load_checkpoint, restore, save_checkpoint, say_how_to_go_on
from cleanrl_games.runtime.device import set_up
from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.runtime.files import keep_models, make_run_folder, script_source
from cleanrl_games.runtime.logger import Logger
from cleanrl_games.runtime.metrics import score_metrics, time_metrics
from cleanrl_games.runtime.settings import Count, Fraction, NonNegative, Positive, Size, parse_args
from cleanrl_games.runtime.shared_memory import Broadcast, copy_with_weights, from_flat, share_all, to_flat
from cleanrl_games.runtime.stopping import check_finite, progress, stop_on_signals, until_stopped

# Names that users of similar trainers type, and what they mean here.
ALIASES = {
    "lr": "learning_rate",
    "players_per_worker": "num_battles",
    "team_pool_path": "teams",
    "checkpoint": "resume",
    "checkpoint_path": "bc_model",  # there: the clone that a run starts from
    "checkpoint_interval": "checkpoint_frequency",
    "save_dir": "run_dir",
    "rnad_alpha": "alpha",
    "gradient_clip": "max_grad_norm",
    "portfolio_update_strategy": "portfolio_strategy",
    "use_portfolio_regularization": {True: {"magnet": "portfolio"}, False: {"magnet": "ref"}},
    "use_mixed_precision": {True: {"amp": "auto"}, False: {"amp": "off"}},
    "use_wandb": "track",
    "wandb_project": "wandb_project_name",
}


@dataclasses.dataclass
class Args:
    env_id = "vgc"  # in the name of the run's folder
    # --- experiment
    exp_name: str = Path(__file__).stem
    """the name of this experiment"""
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
    wandb_entity: str = ""
    """the W&B team, empty = your own"""
    wandb_run_name: str = ""
    """the run's name in W&B; empty = that of its folder"""
    tensorboard: bool = False
    """start TensorBoard beside the run, on 127.0.0.1, and print its address"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where the learner computes; actors stay on the CPU"""
    amp: Literal["auto", "off", "bf16", "fp16"] = "auto"
    """mixed precision of the learner; auto = on CUDA only"""
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
    battle_format: str = "gen9vgc2023regulationc"
    """the VGC format: gen9vgc2023rega to rege, gen9vgc2024regf to regh, gen9vgc2025regi, gen9vgc2025regj,
    gen9championsvgc2026regma, gen9championsvgc2026regmb; other spellings are understood"""
    teams: tuple[str, ...] = ("shipped", "generated")
    """training teams, each source equally often: shipped, generated, or folders of PokePaste files"""
    open_team_sheets: bool = True
    """both sheets are known from team preview on, as in official play"""
    turn_cap: Size = 100
    """a battle longer than this is truncated"""

    # --- actors
    num_workers: Count = 4
    """actor processes; 0 = inline in the learner's process, deterministic"""
    num_battles: Size = 32
    """battles under way per actor"""
    buffer_size: Size = 2048
    """decisions per rollout, in whole battles: one that would not fit goes to the next"""
    actor_nice: Count = 10
    """niceness of actor processes and their simulators: where cores are few, the learner comes first and is less
    behind"""
    train_batch_size: Count = 0
    """decisions that one update learns from, in whole rollouts; 0 = one of each actor"""
    max_policy_lag: Count = 4
    """rollouts that are more updates behind than this are thrown away"""
    ray_address: str = ""
    """run the actors on this Ray cluster ("auto", "127.0.0.1:6379", …)"""

    # --- algorithm
    total_timesteps: Size = 100_000_000
    """agent-steps to train for"""
    max_updates: Count = 0
    """stop after this many updates, 0 = no limit"""
    max_minutes: NonNegative = 0.0
    """stop after this many minutes, 0 = no limit"""
    bc_model: str = ""
    """a model.zip or run folder of bc_vgc_mdbo.py (or of this script) to start from"""
    value_warmup_updates: Count = 4
    """with --bc-model: updates that train the value head only, since a clone's predicts the games of others"""
    learning_rate: Positive = 3e-4
    """Adam's step size"""
    learning_rate_final: NonNegative = 1e-4
    """its value at the end of the run (linear)"""
    gamma: Fraction = 0.999
    """discount"""
    gae_lambda: Fraction = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: Size = 32
    """gradient steps per pass over them"""
    update_epochs: Size = 10
    """passes over a rollout"""
    target_kl: NonNegative = 0.01
    """no further pass once the policy has moved this far from the one that played (mean KL), 0 = always all passes"""
    clip_coef: Positive = 0.2
    """PPO's clip"""
    ent_coef: NonNegative = 0.01
    """entropy bonus"""
    vf_coef: NonNegative = 0.5
    """weight of the value loss"""
    aux_coef: NonNegative = 0.2
    """weight of predicting what both foes do this turn, as an auxiliary loss; 0 = none, as without open team sheets"""
    max_grad_norm: Positive = 0.5
    """gradient clip"""
    width: Size = 64
    """width of a Pokémon's token, a multiple of 4"""
    embedding_width: Size = 128
    """width of an id's embedding"""
    lstm_size: Size = 192
    """units of the LSTM"""
    attention_layers: Size = 1
    """transformer layers over the twelve Pokémon"""

    # --- regularisation
    alpha: NonNegative = 0.2
    """weight of the magnet, min over references of KL(π‖reference); with normalised advantages .01 does nothing"""
    magnet: Literal["ref", "portfolio", "ema", "uniform"] = "ema"
    """what the policy is drawn to: a frozen snapshot, the nearest of several, its average, uniform play"""
    ref_update_interval: Size = 50
    """ref: updates until the snapshot is renewed"""
    max_portfolio_size: Size = 2
    """portfolio: references at most"""
    portfolio_add_interval: Size = 50
    """portfolio: updates between candidates"""
    portfolio_strategy: Literal["diverse", "best", "recent"] = "recent"
    """portfolio: which to keep: the set with the largest pairwise KL, the highest rated in the pool, the newest"""
    ema_decay: Fraction = 0.98
    """ema: share of the average that an update keeps"""

    # --- self-play: base shares, moved toward whom it loses to; battles that are none of these are against oneself
    random_fraction: Fraction = 0.05
    """share of battles against poke-env's RandomPlayer"""
    max_power_fraction: Fraction = 0.1
    """share of battles against MaxBasePowerPlayer"""
    heuristics_fraction: Fraction = 0.25
    """share of battles against SimpleHeuristicsPlayer"""
    bc_fraction: Fraction = 0.05
    """share of battles against the model of --bc-model"""
    past_fraction: Fraction = 0.15
    """share of battles against past selves, once there are some"""
    exploiter_fraction: Fraction = 0.15
    """share of battles against registered exploiters, once there are some"""
    opponent: str = ""
    """model.zip or run folder of a fixed opponent, for training against it"""
    snapshot_frequency: Count = 40
    """updates between snapshots for the league, 0 = none"""
    league_size: Size = 16
    """members of the league; beyond that the easiest leaves"""
    train_exploiters: bool = False
    """train an exploiter of the present model in the background now and then"""
    exploiter_check_interval: Size = 500
    """updates between exploiters"""
    exploiter_train_steps: Size = 200_000
    """agent-steps that an exploiter trains for"""
    exploiter_win_threshold: Fraction = 0.6
    """an exploiter that wins this share joins the pool"""

    # --- evaluation and checkpoints
    eval_frequency: Count = 40
    """updates between evaluations against the scripted players, each with a model in the run's folder; 0 = only at the
    end"""
    eval_battles: Count = 100
    """battles per evaluation and scripted player"""
    final_battles: Count = 400
    """battles per scripted player at the end"""
    checkpoint_frequency: Size = 25
    """updates between checkpoints"""
    keep_models: Count = 50
    """the newest so many models/*.zip and exploiters of a run are kept, and the best; 0 = all"""


# -------------------------------------------------------------------------------------------------------------- network


# --8<-- [start:vgc_network]
ATTENTION_HEADS = 4
NUM_HIT_FEATURES = 32  # what a move does to a foe is told in so many numbers
IDS_PER_BAG = (len(LAYOUT["own"].ints), len(LAYOUT["history"].ints), 1)  # of a Pokémon, an event, a move
NUM_IDS = (12 * IDS_PER_BAG[0], LAYOUT["history"].rows * IDS_PER_BAG[1], 8)
MANY_ROWS = 128  # from here on it pays to find out which bags are the same


def linear(fan_in, fan_out, std=2**0.5):
    layer = nn.Linear(fan_in, fan_out)
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


def masked_log_softmax(logits, legal):
    """In float32; illegal entries get probability 0 exactly, and no gradient."""
    logits = logits.float()
    return logits.masked_fill(~legal, torch.finfo(logits.dtype).min).log_softmax(-1)


def sample(logprobs, generator=None):
    """Draws an action (B,) from log-probs (B, A), never one of probability 0."""
    # The largest of log p - log Exp(1) is a sample of p. There is no exp(log p) in it, which takes ten times as long
    # where actions are illegal: torch.distributions.Categorical takes 2.2 times as long for a sample and its log-prob.
    return (logprobs - torch.empty_like(logprobs).exponential_(generator=generator).log()).argmax(-1)


def split_action(is_preview, actions):
    """Joint numbers (N,) → what was chosen first and second (N, 2). After a preview it is entry 0, for nothing."""
    first = torch.where(is_preview, actions, actions // SLOT_ACTIONS)
    second = torch.where(is_preview, 0, actions % SLOT_ACTIONS)
    return torch.stack([first, second], 1)


def pack_battles(starts, lengths):
    """Whole battles (B,) as nn.LSTM takes them: all first decisions, then all second ones, …, the longest battle first
    → their rows (N,), and how many battles have a decision at each step (T,)"""
    order = lengths.argsort(descending=True, stable=True)
    steps = torch.arange(int(lengths.max()))[:, None]
    inside = steps < lengths[order]  # (T, B)
    return (starts[order] + steps)[inside], inside.sum(1)


def id_bags():
    """The ids of an observation as bags whose embeddings are summed: twelve Pokémon, the last turns' events, the eight
    moves of our active two. → columns of the ids, where the vocabulary of each starts in one table of all, the table's
    length

    Columns that mean different things have rows of their own in the table."""
    sizes = {
        "species": SIZES["species"],
        "ability": SIZES["abilities"],
        "item": SIZES["items"],
        "lost_item": SIZES["items"],
        "type": SIZES["types"],
        "tera_type": SIZES["types"],
        "move": SIZES["moves"],
        "actor": 5,
        "target": 5,
    }
    table_starts = dict(zip(sizes, accumulate([0, *sizes.values()])))
    same = {"actor_species": "species", "target_species": "species"}
    same |= {f"type_{i}": "type" for i in (1, 2, 3)} | {f"move_{i}": "move" for i in (1, 2, 3, 4)}
    own = LAYOUT["own"]
    bags = []
    for group in (own, LAYOUT["opp"], LAYOUT["history"]):
        bags += [[(group.int_index(row, name), name) for name in group.ints] for row in range(group.rows)]
    bags += [[(own.int_index(row, f"move_{i}"), "move")] for row in (0, 1) for i in (1, 2, 3, 4)]
    columns = [column for bag in bags for column, _ in bag]
    offsets = [table_starts[same.get(name, name)] for bag in bags for _, name in bag]
    return columns, offsets, sum(sizes.values())


def spread(values, places):
    """(U, W), (N,) or None → (N, W)"""
    return values if places is None else values.index_select(0, places)


class Candidates(NamedTuple):
    """What a decision can choose from, as the encoder sees it."""

    own: torch.Tensor  # (B, 6, W) our six
    standing: torch.Tensor  # (B, 2, W) the two of them that stand
    bench: torch.Tensor  # (B, 2, W) the two that may come in
    foes: torch.Tensor  # (B, 2, W) the foes that stand
    moves: torch.Tensor  # (B, 2, 4, W) the moves of our two
    hits: torch.Tensor  # (B, 2, 4, 2, K) each move on each foe


class AttentionLayer(nn.Module):
    """A pre-norm transformer layer over the Pokémon. (B, 12, W) → (B, 12, W)"""

    # By hand: nn.TransformerEncoderLayer takes 1.17 times as long in training (256 rows), 1.37 times in inference.
    def __init__(self, width):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = linear(width, 3 * width, 1.0)
        self.attention_out = linear(width, width, 0.5)
        self.norm_feed = nn.LayerNorm(width)
        self.feed_in = linear(width, 2 * width)
        self.feed_out = linear(2 * width, width, 0.5)

    def forward(self, x):
        q, k, v = self.qkv(self.norm_attention(x)).view(len(x), 12, 3, ATTENTION_HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(x), 12, -1)
        x = x + self.attention_out(attended)
        return x + self.feed_out(F.relu(self.feed_in(self.norm_feed(x))))


class Agent(nn.Module):
    """Embeddings for ids, a token per Pokémon, attention over the twelve, an LSTM over a battle's decisions, heads.

    A decision is two choices, the second given the first: slot 0 and slot 1 (45 actions each, joint number 45 · slot 0
    + slot 1), or a team preview (90) and nothing. So a policy is a table of log-probs (B, 2, 90), padded with illegal
    entries.

    The heads point at what there is to choose from. A move's logit is made of what the situation asks for, of the move,
    of its target and of both together; a switch's of the Pokémon that would come in. So what is learned about a move
    holds in every slot of every team.
    """

    def __init__(self, width=64, embedding_width=128, lstm_size=192, attention_layers=1):
        super().__init__()
        self.width = width
        own, opp, active, history, damage = (LAYOUT[name] for name in ("own", "opp", "active", "history", "damage"))
        self.common = len(opp.floats)  # columns that own and opposing Pokémon share
        self.active_at = opp.floats.index("active_a")
        self.move_numbers_at = opp.floats.index("move_1_power")
        self.versus_at = active.floats.index("move_1_vs_a")

        # ids
        columns, offsets, num_ids = id_bags()
        self.register_buffer("id_columns", torch.tensor(columns), persistent=False)
        self.register_buffer("id_offsets", torch.tensor(offsets, dtype=torch.int32), persistent=False)
        random_numbers = torch.randint(2**62, (max(IDS_PER_BAG),), generator=torch.Generator().manual_seed(0))
        self.register_buffer("id_mix", 2 * random_numbers + 1, persistent=False)
        self.embedding = nn.EmbeddingBag(num_ids, embedding_width, mode="sum")
        nn.init.normal_(self.embedding.weight, std=0.1)

        # a token per Pokémon
        self.mon_ids = linear(embedding_width, width, 1.0)
        self.mon_numbers = linear(self.common, width, 1.0)
        self.own_numbers = linear(len(own.floats) - self.common, width)
        self.belief_numbers = linear(len(LAYOUT["belief"].floats), width)
        # a slot's effects, what its four moves do, what the eight opposing ones do to it
        self.active_numbers = linear(len(active.floats) + 4 * len(damage.floats) + 8 * 4, width, 1.0)

        self.attention = nn.Sequential(*(AttentionLayer(width) for _ in range(attention_layers)))
        self.norm_out = nn.LayerNorm(width)

        # the battle
        self.history_in = linear(embedding_width + len(history.floats), width)
        self.field_in = linear(len(LAYOUT["field"].floats), width)
        self.core_in = linear(8 * width, lstm_size)
        self.lstm = nn.LSTM(lstm_size, lstm_size)
        for name, parameter in self.lstm.named_parameters():
            nn.init.orthogonal_(parameter) if "weight" in name else nn.init.zeros_(parameter)
        with torch.no_grad():
            self.lstm.bias_ih_l0[lstm_size : 2 * lstm_size] = 1.0  # remember, until there is a reason to forget

        # policy heads
        self.register_buffer("slot_parts", torch.from_numpy(SLOT_PARTS), persistent=False)
        self.register_buffer("pairs_of_six", torch.from_numpy(PAIRS_OF_SIX), persistent=False)
        self.register_buffer("preview_pairs", torch.from_numpy(PREVIEW_PAIRS), persistent=False)
        self.move_ids = linear(embedding_width, width, 1.0)
        self.move_numbers = linear(6 + 2 + len(damage.floats), width, 1.0)
        self.move_owner = linear(width, width, 1.0)
        self.target_key = linear(width, width, 1.0)
        self.switch_key = linear(width, width, 1.0)
        self.hit_move = linear(width, NUM_HIT_FEATURES, 1.0)
        self.hit_foe = linear(width, NUM_HIT_FEATURES, 1.0)
        self.hit_numbers = linear(1 + 4, NUM_HIT_FEATURES, 4.0)
        self.no_target = nn.Parameter(torch.zeros(1, 1, width))
        self.passing = nn.Parameter(torch.zeros(1, 1, width))
        self.tera_key = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        # What a slot asks of a move, a target, terastallizing, who comes in, a hit; and how much it wants to pass.
        self.query_sizes = [width] * 4 + [NUM_HIT_FEATURES, 1]
        self.query = linear(lstm_size + width, sum(self.query_sizes), 0.1)
        self.given_slot_0 = linear(width, sum(self.query_sizes), 0.1)
        self.preview_key = linear(width, 2 * width, 1.0)
        self.preview_query = linear(lstm_size, 2 * width, 0.1)

        self.value_out = linear(lstm_size, 1, 0.1)

    # -------------------------------------------------------------------------------------- from observations to memory

    def embed_ids(self, ints):
        """ints (B, INTS) → of the twelve Pokémon, of the last turns' events and of our active two's moves: the sums of
        embeddings of those that differ (U, E), and which of them stands where (12 · B,), (8 · B,), (8 · B,); None: each
        in its own place"""
        # A battle's Pokémon have the same ids in nearly all of its decisions. In many rows, only those that differ are
        # looked up and get a gradient, one Pokémon in thirteen: the learner takes 0.89 times as long. What has the same
        # sum of ids times random numbers, of 64 bits, is the same.
        ids = ints[:, self.id_columns].int() + self.id_offsets
        bags = []
        starts = []
        places = []
        end = 0
        for part, size in zip(ids.split(NUM_IDS, 1), IDS_PER_BAG):
            part = part.reshape(-1, size)
            place = None
            if len(ints) >= MANY_ROWS:
                different, place = (part * self.id_mix[:size]).sum(1).unique(return_inverse=True)
                where = torch.empty_like(different)
                where[place] = torch.arange(len(place), device=place.device)
                part = part[where]
            bags.append(part.flatten())
            starts.append(torch.arange(end, end + len(bags[-1]), size, device=ids.device, dtype=torch.int32))
            places.append(place)
            end += len(bags[-1])
        # One look-up for everything: each would write a gradient as large as the table.
        sums = self.embedding(torch.cat(bags), torch.cat(starts))
        return sums.split([len(part) for part in starts]), places

    def encode(self, ints, floats):
        """ints (B, INTS), floats (B, FLOATS) → the LSTM's input (B, H), and what the heads point at"""
        own, opp, active, field, history, belief, damage = (columns_of(floats, name) for name in LAYOUT)
        (mon_sums, event_sums, move_sums), (mon_at, event_at, move_at) = self.embed_ids(ints)

        stands = slice(self.active_at, self.active_at + 2)  # columns active_a, active_b
        # (B, side, eight moves, target, numbers): low and high roll, chance of a knock-out, who is first
        on_foes = damage[..., :8].reshape(len(own), 2, 8, 2, 4)
        suffered = on_foes.flip(1).transpose(2, 3).reshape(len(own), 4, -1)
        slots = torch.cat([active, damage.reshape(len(own), 4, -1), suffered], -1)
        our_slots, their_slots = self.active_numbers(slots).split(2, 1)  # (B, 2, W)
        ours = torch.baddbmm(self.own_numbers(own[..., self.common :]), own[..., stands], our_slots)
        theirs = torch.baddbmm(self.belief_numbers(belief), opp[..., stands], their_slots)
        numbers = self.mon_numbers(torch.cat([own[..., : self.common], opp], 1))
        mons = spread(self.mon_ids(mon_sums), mon_at).view(len(own), 12, -1)
        tokens = mons + numbers + torch.cat([ours, theirs], 1)
        tokens = self.norm_out(self.attention(tokens))  # (B, 12, W)

        our_tokens, their_tokens = tokens.split(6, 1)  # not slices: their gradients are zeros with a window each
        standing, bench, _ = our_tokens.split(2, 1)
        foes = opp[..., stands].mT @ their_tokens  # (B, 2, W), zero where nobody stands
        of_ids, of_numbers = self.history_in.weight.split([event_sums.shape[1], history.shape[2]], 1)
        events = spread(F.linear(event_sums, of_ids), event_at).view(len(own), history.shape[1], -1)
        events = F.relu(events + F.linear(history, of_numbers, self.history_in.bias)).sum(1)
        field = F.relu(self.field_in(field.squeeze(1)))
        everything = [standing.flatten(1), foes.flatten(1), our_tokens.mean(1), their_tokens.mean(1), events, field]
        core = F.relu(self.core_in(torch.cat(everything, 1)))

        move_numbers = own[:, :2, self.move_numbers_at : self.move_numbers_at + 24].reshape(len(own), 2, 4, 6)
        versus = active[:, :2, self.versus_at : self.versus_at + 8].reshape(len(own), 2, 4, 2)
        our_damage = damage[:, :8].reshape(len(own), 2, 4, -1)
        move_numbers = torch.cat([move_numbers, versus, our_damage], -1)
        moves = spread(self.move_ids(move_sums), move_at).view(len(own), 2, 4, -1)
        moves = moves + self.move_numbers(move_numbers)
        moves = F.relu(moves + self.move_owner(standing)[:, :, None])
        hits = self.hit_move(moves)[:, :, :, None] + self.hit_foe(foes)[:, None, None]
        on_their_slots = on_foes[:, 0].reshape(len(own), 2, 4, 2, 4)
        hits = F.relu(hits + self.hit_numbers(torch.cat([versus[..., None], on_their_slots], -1)))
        return core, Candidates(our_tokens, standing=standing, bench=bench, foes=foes, moves=moves, hits=hits)

    def initial_state(self, count):
        """The memory before a battle's first decision, for so many battles: (B, 2, H), hidden and cell"""
        return torch.zeros(count, 2, self.lstm.hidden_size)

    def step(self, ints, floats, state):
        """One decision in each of B battles → the LSTM's output (B, H), candidates, the memory after it"""
        core, candidates = self.encode(ints, floats)
        hidden, cell = state.transpose(0, 1).contiguous().split(1)
        output, (hidden, cell) = self.lstm(core[None], (hidden, cell))
        return output[0], candidates, torch.cat([hidden, cell]).transpose(0, 1)

    def unroll(self, ints, floats, batch_sizes):
        """All decisions of whole battles in the order of `pack_battles` → the LSTM's outputs (N, H), candidates"""
        core, candidates = self.encode(ints, floats)
        # Packed: 1.5 times as fast as a loop over padded steps, within 3 % of a loop over packed ones.
        return self.lstm(PackedSequence(core, batch_sizes))[0].data, candidates

    # ----------------------------------------------------------------------------------------------------------- heads

    def win_logit(self, hidden):
        """The log-odds of winning (B,)"""
        return self.value_out(hidden).float().squeeze(-1)

    def value(self, hidden):
        return 2 * self.win_logit(hidden).sigmoid() - 1

    def slot_logits(self, query, moves, hits, targets, switches):
        """query (B, Q, …), moves (B, 4, W), hits (B, 4, 2, K) of this slot → (B, Q, 45)"""
        move_query, target_query, tera_query, switch_query, hit_query, pass_logit = query.split(self.query_sizes, -1)
        scale = self.width**-0.5
        plain = (move_query @ moves.mT)[..., None] + (target_query @ targets.mT)[:, :, None]
        plain = plain + (moves @ targets.mT)[:, None]
        hit = (hit_query @ hits.flatten(1, 2).mT).unflatten(-1, (4, 2))
        # (B, Q, 4, 5): a foe's column of target is 3 or 4; column 2 is no target, a move on both foes or on none
        plain = plain * scale + F.pad(torch.cat([hit.sum(-1, keepdim=True), hit], -1), (2, 0))
        tera = plain + (tera_query @ moves.mT)[..., None] * scale
        return torch.cat([torch.cat([plain, tera], -1).flatten(2), switch_query @ switches.mT * scale, pass_logit], -1)

    def preview_logits(self, hidden, own):
        """hidden (P, H), our tokens (P, 6, W) → (P, 90): a pair of leads and a pair behind them"""
        lead_key, back_key = self.preview_key(own).chunk(2, -1)
        lead_query, back_query = self.preview_query(hidden).chunk(2, -1)
        first, second = self.pairs_of_six.T
        scale = self.width**-0.5
        lead = (F.relu(lead_key[:, first] + lead_key[:, second]) @ lead_query[..., None]).squeeze(-1) * scale  # (P, 15)
        back = (F.relu(back_key[:, first] + back_key[:, second]) @ back_query[..., None]).squeeze(-1) * scale
        return lead[:, self.preview_pairs[:, 0]] + back[:, self.preview_pairs[:, 1]]

    def choice_logits(self, hidden, candidates, is_preview):
        """→ logits of the first choice (B, 90): slot 0's 45, or the preview's; and a function: what slot 0 does, told
        in the parts of mdbo.SLOT_PARTS (B or 1, Q, 15) → logits of slot 1 given that (B, Q, 45)"""
        own, standing, bench, foes, moves, hits = candidates
        count = len(hidden)
        query_0, query_1 = self.query(torch.cat([hidden[:, None].expand(-1, 2, -1), standing], -1)).split(1, 1)
        ours, theirs = self.target_key(torch.cat([standing.flip(1), foes], 1)).split(2, 1)
        # (B, 5, W): own b, own a, none, foe a, foe b
        targets = torch.cat([ours, self.no_target.expand(count, 1, -1), theirs], 1)
        switches = self.switch_key(torch.cat([standing, bench], 1))  # (B, 4, W)
        first = self.slot_logits(
            query_0, moves=moves[:, 0], hits=hits[:, 0], targets=targets, switches=switches
        ).squeeze(1)
        first = F.pad(first, (0, NUM_PREVIEWS - SLOT_ACTIONS))
        previews = is_preview.nonzero().squeeze(1)
        if len(previews):  # one decision in nine
            logits = self.preview_logits(hidden[previews], own[previews])
            first = first.index_copy(0, previews, logits.to(first.dtype))
        tera = self.tera_key.expand(count, 1, -1)
        passing = self.passing.expand(count, 1, -1)
        # (B, 15, W): slot 0's action is the sum of some of these
        action_parts = torch.cat([moves[:, 0], targets, tera, switches, passing], 1)

        def second_given(parts):
            query = query_1 + self.given_slot_0(parts @ action_parts)
            return self.slot_logits(query, moves=moves[:, 1], hits=hits[:, 1], targets=targets, switches=switches)

        return first, second_given

    def logprobs(self, hidden, candidates, is_preview, legal, actions):
        """Log-probs of both choices, the second given the first that was taken.
        hidden (B, H), is_preview (B,), legal (B, 2, 90) given the action, actions (B,) → (B, 2, 90)"""
        first, second_given = self.choice_logits(hidden, candidates, is_preview)
        slot_0 = actions.clamp(max=NUM_ACTIONS - 1) // SLOT_ACTIONS
        second = second_given(self.slot_parts[slot_0][:, None]).squeeze(1)
        return masked_log_softmax(torch.stack([first, F.pad(second, (0, NUM_PREVIEWS - SLOT_ACTIONS))], 1), legal)

    def act(self, hidden, candidates, is_preview, joint_mask, generator=None):
        """Samples slot 0 (or the preview), then slot 1 given it. joint_mask (B, 2025): what is legal
        → actions (B,), log-probs (B,), what was legal of both choices, the second given the first (B, 2, 90)"""
        pairs = joint_mask.view(-1, SLOT_ACTIONS, SLOT_ACTIONS)
        first, second_given = self.choice_logits(hidden, candidates, is_preview)
        legal = joint_mask.new_zeros(len(joint_mask), 2, NUM_PREVIEWS)
        legal[:, 0, :SLOT_ACTIONS] = pairs.any(2)
        legal[is_preview, 0] = joint_mask[is_preview, :NUM_PREVIEWS]
        first = masked_log_softmax(first, legal[:, 0])
        action_0 = sample(first, generator)
        slot_0 = action_0.clamp(max=SLOT_ACTIONS - 1)
        legal[:, 1, :SLOT_ACTIONS] = pairs[torch.arange(len(pairs), device=pairs.device), slot_0]
        legal[is_preview, 1] = torch.arange(NUM_PREVIEWS, device=pairs.device) == 0
        second = second_given(self.slot_parts[slot_0][:, None]).squeeze(1)
        second = masked_log_softmax(second, legal[:, 1, :SLOT_ACTIONS])
        action_1 = sample(second, generator)
        logprob = first.gather(1, action_0[:, None]) + second.gather(1, action_1[:, None])
        return torch.where(is_preview, action_0, SLOT_ACTIONS * action_0 + action_1), logprob.squeeze(1), legal

    def joint_logprobs(self, hidden, candidates, is_preview, joint_mask):
        """The whole policy: (B, 2025), of a preview in the first 90, finfo.min where illegal. Greedy play is argmax."""
        pairs = joint_mask.view(-1, SLOT_ACTIONS, SLOT_ACTIONS)
        first, second_given = self.choice_logits(hidden, candidates, is_preview)
        of_slot_0 = F.pad(pairs.any(2), (0, NUM_PREVIEWS - SLOT_ACTIONS))
        first = masked_log_softmax(first, torch.where(is_preview[:, None], joint_mask[:, :NUM_PREVIEWS], of_slot_0))
        second = masked_log_softmax(second_given(self.slot_parts), pairs)  # (B, 45, 45)
        both = (first[:, :SLOT_ACTIONS, None] + second).flatten(1)
        both = torch.where(is_preview[:, None], F.pad(first, (0, NUM_ACTIONS - NUM_PREVIEWS)), both)
        return both.masked_fill(~joint_mask, torch.finfo(both.dtype).min)


def make_agent(settings):
    return Agent(
        width=settings["width"],
        embedding_width=settings["embedding_width"],
        lstm_size=settings["lstm_size"],
        attention_layers=settings["attention_layers"],
    )


class Memory:
    """What the policies in the seats of many battles remember, before and after the last decision of each seat."""

    def __init__(self, agent, seats):
        self.before = agent.initial_state(seats)
        self.after = agent.initial_state(seats)

    def step(self, policy, batch, rows):
        """Moves the memories of these rows' seats on → the LSTM's output (B, H), candidates"""
        keys = torch.from_numpy(batch.key[rows]).long()
        retry = torch.from_numpy(batch.retry[rows])
        # A choice that could not be carried out is asked for again: the memory of it is undone.
        before = torch.where(retry[:, None, None], self.before[keys], self.after[keys])
        before[torch.from_numpy(batch.kind[rows] == PREVIEW)] = 0.0
        ints = torch.from_numpy(batch.ints[rows])
        floats = torch.from_numpy(batch.floats[rows])
        hidden, candidates, after = policy.step(ints, floats, before)
        self.before[keys] = before
        self.after[keys] = after
        return hidden, candidates


class Player:
    """A policy as a player for `play_battles` and for tools: `act(batch, rows)` → actions"""

    def __init__(self, agent, seed=1, deterministic=False):
        self.agent = agent
        self.deterministic = deterministic
        self.memory = Memory(agent, 0)
        self.generator = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def act(self, batch, rows):
        missing = int(batch.key[rows].max(initial=-1)) + 1 - len(self.memory.after)
        if missing > 0:
            self.memory.before = torch.cat([self.memory.before, self.agent.initial_state(missing)])
            self.memory.after = torch.cat([self.memory.after, self.agent.initial_state(missing)])
        hidden, candidates = self.memory.step(self.agent, batch, rows)
        is_preview = torch.from_numpy(batch.kind[rows] == PREVIEW)
        joint_mask = torch.from_numpy(batch.mask[rows])
        if self.deterministic:
            return self.agent.joint_logprobs(hidden, candidates, is_preview, joint_mask).argmax(1).numpy()
        return self.agent.act(
            hidden, candidates=candidates, is_preview=is_preview, joint_mask=joint_mask, generator=self.generator
        )[0].numpy()


# --8<-- [end:vgc_network]


# --8<-- [start:vgc_foe_head]
class FoeHead(nn.Module):
    """Predicts what the foes in both slots choose at the same time as we do. The learner's alone, as an auxiliary loss:
    the tokens and the LSTM should know whatever tells a foe's choice.

    Answers of a slot: its 40 moves with target and tera, numbered as its own player numbers them, or any switch."""

    NUM_ANSWERS = SWITCH + 1

    def __init__(self, width, embedding_width, lstm_size):
        super().__init__()
        self.scale = width**-0.5
        self.move_ids = linear(embedding_width, width, 1.0)
        self.move_numbers = linear(6 + len(LAYOUT["damage"].floats), width, 1.0)
        self.move_owner = linear(width, width, 1.0)
        self.target_key = linear(width, width, 1.0)
        self.no_target = nn.Parameter(torch.zeros(1, 1, width))
        self.query_sizes = [width, width, width, 1]  # what is asked of a move, a target, a tera; how much of a switch
        self.query = linear(lstm_size + width, sum(self.query_sizes), 0.1)

    def forward(self, agent, hidden, candidates, ints, floats):
        """hidden (B, H), ints (B, INTS), floats (B, FLOATS) → logits (B, 2, 41)"""
        count = len(hidden)
        foes = candidates.foes
        standing = candidates.standing
        opp = columns_of(floats, "opp")
        damage = columns_of(floats, "damage")
        slots = opp[..., agent.active_at : agent.active_at + 2].mT  # (B, 2, 6): which of the six stands there
        numbers = (slots @ opp[..., agent.move_numbers_at : agent.move_numbers_at + 24]).view(count, 2, 4, 6)
        first_move = LAYOUT["opp"].ints.index("move_1")
        move_ids = columns_of(ints, "opp", "ints")[..., first_move : first_move + 4].long()
        rows = slots.argmax(-1)[..., None].expand(-1, -1, 4)
        # Detached: a gradient as large as the table would be most of this loss's time.
        move_ids = move_ids.gather(1, rows) + agent.id_offsets[-1]
        moves = self.move_ids(F.embedding(move_ids, agent.embedding.weight.detach()))
        moves = moves + self.move_numbers(torch.cat([numbers, damage[:, 8:].reshape(count, 2, 4, -1)], -1))
        moves = F.relu(moves + self.move_owner(foes)[:, :, None])  # (B, 2, 4, W)
        theirs, ours = self.target_key(torch.cat([foes.flip(1), standing], 1)).split(2, 1)
        targets = torch.cat([theirs, self.no_target.expand(count, 1, -1), ours], 1)[:, None]  # (B, 1, 5, W)
        query = self.query(torch.cat([hidden[:, None].expand(-1, 2, -1), foes], -1))[:, :, None]
        move_query, target_query, tera_query, switch = query.split(self.query_sizes, -1)
        plain = (moves @ move_query.mT + target_query @ targets.mT + moves @ targets.mT) * self.scale  # (B, 2, 4, 5)
        tera = plain + moves @ tera_query.mT * self.scale
        return torch.cat([torch.cat([plain, tera], -1).flatten(2), switch.squeeze(2)], -1).float()


def make_foe_head(args):
    """None without open team sheets: a foe's choice is numbered by the moves of its sheet."""
    if args.aux_coef and args.open_team_sheets:
        return FoeHead(args.width, args.embedding_width, args.lstm_size)
    return None


# --8<-- [end:vgc_foe_head]


# ---------------------------------------------------------------------------------------------------------------- maths


# A policy is given as the log-probs of H heads that are chosen one after another: (..., H, A), head h given what was
# chosen in the heads before it. VGC has two (slot 0, slot 1), a poker table one; padding is illegal actions.


# --8<-- [start:vgc_maths]
def gae(rewards, values, bootstrap_values, lengths, gamma, gae_lambda):
    """Generalised advantages (N,) of the decisions of whole battles, the rows of one after those of another.

    bootstrap_values (B,): of what follows a battle's last decision: V(last observation) if it was truncated, else 0"""
    rewards = rewards.tolist()
    values = values.tolist()
    advantages = [0.0] * len(values)
    end = 0
    for length, next_value in zip(lengths.tolist(), bootstrap_values.tolist()):
        start = end
        end = end + length
        advantage = 0.0
        for row in reversed(range(start, end)):
            delta = rewards[row] + gamma * next_value - values[row]
            advantage = delta + gamma * gae_lambda * advantage
            advantages[row] = advantage
            next_value = values[row]
    return torch.tensor(advantages)


def normalise(advantages):
    return (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)


def taken_logprob(logprobs, choices):
    """Log-prob of what was chosen in all heads. (..., H, A), (..., H) → (...)"""
    return logprobs.gather(-1, choices[..., None]).squeeze(-1).sum(-1)


def policy_entropy(logprobs):
    """Of the joint choice; later heads are estimated at the choices taken, exact in the mean over those.
    (..., H, A) → (...)"""
    # Not below -80: no 0 · (-inf) for illegal actions, and of less exp takes ten times as long. Log-prob, entropy and
    # their gradient take 2.8 times as long with torch.distributions.Categorical.
    logprobs = logprobs.clamp(min=-80.0)
    return -(logprobs.exp() * logprobs).sum((-1, -2))


def value_loss(win_logit, returns):
    """Cross-entropy of the win prediction: a return in [-1, 1] is a chance of (return + 1) / 2."""
    return F.binary_cross_entropy_with_logits(win_logit, ((returns + 1) / 2).clamp(0, 1))


def anneal(start, final, done):
    """Linear over the run, of which the share `done` is done"""
    return start + (final - start) * min(done, 1.0)


def foe_answers(foe_actions, is_preview):
    """Joint numbers (N,), -1 = not asked → what to predict of each slot (N, 2): FoeHead's answers, -1 = nothing"""
    slots = torch.stack([foe_actions // SLOT_ACTIONS, foe_actions % SLOT_ACTIONS], 1)
    known = (foe_actions >= 0) & ~is_preview
    return slots.clamp(max=SWITCH).where(known[:, None] & (slots != PASS), -1)


def foe_loss(logits, answers):
    """Cross-entropy where there is something to predict. (N, 2, 41), (N, 2) → loss, statistics"""
    known = answers >= 0
    count = known.sum().clamp(min=1)
    loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=-1, reduction="sum") / count
    right = ((logits.argmax(-1) == answers) & known).sum() / count
    return loss, {"foe_loss": loss, "foe_accuracy": right, "foe_known": known.any(1).float().mean()}


# --8<-- [end:vgc_maths]


def policy_kl(logprobs, reference):
    """KL(π‖ref) = KL of head 0 + E[KL of head 1 given head 0] + …, expectations estimated at the choices taken →
    (...)"""
    logprobs = logprobs.clamp(min=-80.0)
    reference = reference.clamp(min=-80.0)
    return (logprobs.exp() * (logprobs - reference)).sum((-1, -2))


def magnet_kl(logprobs, references):
    """min_i KL(π‖ref_i), decision by decision. (B, H, A), (R, B, H, A)
    → KL to the nearest (B,), which it is (B,), all KLs (R, B)"""
    kls = policy_kl(logprobs[None], references)
    nearest, chosen = kls.min(0)
    return nearest, chosen, kls.detach()


def clipped_loss(logprob, old_logprob, advantages, clip_coef):
    """PPO's clipped loss with Ye et al.'s second clip: a bad action that has become likelier (heads multiply to large
    ratios, the more so in a rollout that is a version old) pushes no harder than three times its advantage.
    → loss, statistics"""
    logratio = logprob - old_logprob
    ratio = logratio.exp()
    loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip_coef, 1 + clip_coef))
    loss = torch.where(advantages < 0, torch.min(loss, -3 * advantages), loss).mean()
    with torch.no_grad():
        clipfrac = ((ratio - 1).abs() > clip_coef).float().mean()
        stats = {"old_approx_kl": -logratio.mean(), "approx_kl": (ratio - 1 - logratio).mean(), "clipfrac": clipfrac}
    return loss, stats


def divergences(tables):
    """Mean KL between all pairs of references on the same decisions. (R, B, H, A) → (R, R)"""
    return torch.stack([policy_kl(table[None], tables).mean(-1) for table in tables])


def portfolio_drop(strategy, tables, ratings):
    """Which of the references, oldest first, leaves a portfolio that is too large. tables (R, B, H, A), ratings (R,)"""
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
    """Whom to play: the base shares, moved toward those it loses to. All (K,) → (K,)

    Whoever was never met counts as even. Whoever is always beaten keeps `floor` of its weight, so that a weakness that
    comes back is noticed; none gets more than `ceiling` times it."""
    estimate = (np.asarray(win_rates) * games + 0.5 * prior) / (np.asarray(games) + prior)
    weights = np.asarray(shares) * np.clip(2.0 * (1.0 - estimate), floor, ceiling)
    return weights / weights.sum()


def elo_update(rating, reference, score, k=8.0):
    return rating + k * (score - 1.0 / (1.0 + 10.0 ** ((reference - rating) / 400.0)))


# -------------------------------------------------------------------------------------------------------------- storage

OPPONENTS = ("self", "bc", "past", "exploiter", "opponent", *BASELINES)  # who holds the other seat
SELF, BC, PAST, EXPLOITER, OPPONENT = range(5)


def base_shares(args):
    """(K,): whom to play before anything is known; what fractions leave is self-play. With --opponent nobody else."""
    if args.opponent:
        return np.eye(len(OPPONENTS))[OPPONENT]
    scripted = [getattr(args, f"{name}_fraction") for name in BASELINES]
    shares = np.array([0.0, args.bc_fraction, args.past_fraction, args.exploiter_fraction, 0.0, *scripted])
    shares[SELF] = 1.0 - shares.sum()
    return shares


# --8<-- [start:vgc_storage]
DECISIONS_PER_TURN = 5  # of one seat, more than there are in any long battle: faints and U-turns ask besides
TIMES = ("rollout_time", "inference_time", "simulator_time")


def make_rows(*shape):
    """What is written down of a decision."""
    return {
        "ints": torch.zeros(*shape, INTS, dtype=torch.int16),
        "floats": torch.zeros(*shape, FLOATS),
        "legal": torch.zeros(*shape, 2, NUM_PREVIEWS, dtype=torch.bool),  # of both choices, the second given the first
        "slots": torch.zeros(*shape, 2, SLOT_ACTIONS, dtype=torch.uint8),  # of each slot alone, for mdbo.joint_mask
        "pass_rule": torch.zeros(*shape, dtype=torch.uint8),
        "is_preview": torch.zeros(*shape, dtype=torch.bool),
        "actions": torch.zeros(*shape, dtype=torch.int64),
        "logprobs": torch.zeros(*shape),
        "values": torch.zeros(*shape),
        "rewards": torch.zeros(*shape),  # what came after the decision
        "versions": torch.zeros(*shape, dtype=torch.int32),  # of the policy that decided
        # What the opponent chose at the same time, -1 = it was not asked. A loss may know it, an observation never.
        "foe_actions": torch.zeros(*shape, dtype=torch.int64),
    }


def make_battles(count):
    """What is written down of a battle, as one seat of the learner's saw it."""
    return {
        "lengths": torch.zeros(count, dtype=torch.int64),  # decisions
        "bootstrap_values": torch.zeros(count),  # V(last observation) of a truncated battle, else 0
        "opponents": torch.zeros(count, dtype=torch.int64),  # which of OPPONENTS
        "policy_ids": torch.zeros(count, dtype=torch.int64),  # of the frozen policy in the other seat, 0 = none
        "scores": torch.zeros(count),  # 1 for a win, 0.5 for a tie or a truncated battle
        "turns": torch.zeros(count, dtype=torch.int64),
        "sides": torch.zeros(count, dtype=torch.int64),
    }


def make_storage(args):
    """One rollout: whole battles, the rows of one after those of another. Only counts and times are told besides."""
    rows = max(args.buffer_size, DECISIONS_PER_TURN * args.turn_cap)
    counts = {name: torch.zeros((), dtype=torch.int64) for name in ("num_rows", "num_battles")}
    times = {name: torch.zeros((), dtype=torch.float64) for name in TIMES}
    return {**make_rows(rows), **make_battles(rows), **counts, **times}


def add_battle(storage, buffer_size, rows, battle):
    """Writes a battle to a rollout, unless it would fill it beyond buffer_size; any fits into an empty one.
    → whether it was written"""
    start = int(storage["num_rows"])
    number = int(storage["num_battles"])
    length = battle["lengths"]
    if start and start + length > buffer_size:
        return False
    if start + length > len(storage["actions"]):
        raise RunFailed(f"A battle of {length} decisions does not fit into a rollout: give a larger --buffer-size.")
    for name, values in rows.items():
        storage[name][start : start + length] = values
    for name, value in battle.items():
        storage[name][number] = value
    storage["num_rows"] += length
    storage["num_battles"] += 1
    return True


@dataclasses.dataclass
class Batch:
    """What an update learns from: whole battles of several rollouts."""

    rows: dict[str, torch.Tensor]  # as in make_rows, (N, …), battle after battle
    starts: torch.Tensor  # (B,) where the rows of each battle begin
    lengths: torch.Tensor  # (B,)
    bootstrap_values: torch.Tensor  # (B,)
    results: dict[str, torch.Tensor]  # as in make_battles, also of rollouts that were too old to learn from
    times: dict[str, float]  # mean seconds of a rollout
    queue_size: int  # rollouts that wait
    dropped: int  # rollouts left out so far

    def seconds(self):
        return [self.times[name] for name in TIMES]


def gather_batches(rollouts, broadcast, rollouts_per_update, max_policy_lag):
    """Puts rollouts together; those more than `max_policy_lag` versions old are left out."""
    parts = []
    battles = []
    times = []
    results = []
    dropped = 0
    for _, storage, queue_size in rollouts:
        num_rows = int(storage["num_rows"])
        num_battles = int(storage["num_battles"])
        # Copied out of its slot, which its actor fills again.
        played = {name: storage[name][:num_battles].clone() for name in make_battles(0)}
        results.append(played)
        if broadcast.version - int(storage["versions"][:num_rows].max()) > max_policy_lag:
            dropped += 1
        else:
            parts.append({name: storage[name][:num_rows].clone() for name in make_rows(0)})
            battles.append(played)
            times.append({name: float(storage[name]) for name in TIMES})
        if len(parts) == rollouts_per_update:
            lengths = torch.cat([played["lengths"] for played in battles])
            yield Batch(
                rows={name: torch.cat([part[name] for part in parts]) for name in parts[0]},
                starts=lengths.cumsum(0) - lengths,
                lengths=lengths,
                bootstrap_values=torch.cat([played["bootstrap_values"] for played in battles]),
                results={name: torch.cat([played[name] for played in results]) for name in results[0]},
                times={name: float(np.mean([time_of[name] for time_of in times])) for name in times[0]},
                queue_size=queue_size,
                dropped=dropped,
            )
            parts = []
            battles = []
            times = []
            results = []


def battle_metrics(results):
    """Battles that ended → win_rate/<opponent> with how many, return, length; against oneself as side 0 saw it"""
    others = results["opponents"] != SELF
    counted = others | (results["sides"] == 0)
    metrics = {}
    if counted.any():
        metrics["charts/episodic_length"] = float(results["turns"][counted].float().mean())
    if others.any():
        metrics["charts/episodic_return"] = float(2 * results["scores"][others].mean() - 1)
    for opponent, name in enumerate(OPPONENTS):
        scores = results["scores"][counted & (results["opponents"] == opponent)]
        if len(scores):
            metrics |= {f"win_rate/{name}": float(scores.mean()), f"win_rate/{name}_n": len(scores)}
    return metrics


# --8<-- [end:vgc_storage]


# --------------------------------------------------------------------------------------------------------------- actors


# --8<-- [start:vgc_actor]
SCRIPTED = len(OPPONENTS) - len(BASELINES)  # from here on they are scripted, as the environment's codes from 1 on
POLICIES_AT_ONCE = 2  # frozen policies of a kind that an actor meets in a rollout: each costs forward passes of its own


def scripted_shares(shares):
    """(K,) of all opponents → of scripted players, by name"""
    return {name: float(share) for name, share in zip(BASELINES, shares[SCRIPTED:]) if share > 0}


def make_env(args, index, shares, episodes=None, players=None):
    return VGCVecEnv(
        num_battles=args.num_battles,
        battle_format=args.battle_format,
        # Sixteen shipped teams are soon known by heart; the generated ones keep held-out teams from being a shock.
        teams=team_mix(args.teams, args.battle_format),
        open_team_sheets=args.open_team_sheets,
        seed=args.seed * 1000 + index,
        turn_cap=args.turn_cap,
        opponents=scripted_shares(shares),
        episodes=episodes,
        players=players,
    )


def make_broadcast(args, agent):
    """What the learner tells its actors: its weights, the shares of opponents, and of each frozen policy which of
    OPPONENTS it is and how probable among those"""
    return Broadcast(
        args.sharing,
        num_parameters=len(to_flat(agent)),
        num_members=args.league_size,
        numbers={"shares": len(OPPONENTS)},
        member_fields=("opponent", "probability"),
    )


class Actor:
    """Plays battles and writes them down. Knows nothing of processes or Ray: the same class runs inline and anywhere.

    A seat's number, its key, is 2 · battle + side. Decisions come in whatever order battles ask for them."""

    def __init__(self, args, index):
        seed = args.seed * 1000 + index
        seats = 2 * args.num_battles
        self.args = args
        self.index = index
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        if args.num_workers:
            os.nice(args.actor_nice)
        self.shares = base_shares(args)  # by which battles begin
        self.env = make_env(args, index, self.shares)
        self.resumed = None  # what a resumed environment asks first
        self.agent = make_agent(vars(args)).eval()
        self.version = 0  # of the agent's weights
        self.frozen_policies = {}  # by policy_id, copied when first needed
        self.to_meet = {}  # which of OPPONENTS → the policy_ids to draw from
        self.memory = Memory(self.agent, seats)
        self.rows = make_rows(seats, 32)  # the battles under way; longer ones make room for themselves
        self.lengths = np.zeros(seats, np.int64)  # the learner's decisions so far
        self.policy_ids = np.zeros(seats, np.int64)  # who decides: 0 = the learner's policy, else a frozen one
        self.chosen = np.full(seats, -1)  # what each seat was asked last and chose, -1 = only the other was asked
        self.opponents = np.zeros(args.num_battles, np.int64)  # which of OPPONENTS, by battle
        self.played = [[] for _ in range(args.num_battles)]  # (key, action) of the battles under way, if inline
        self.waiting = []  # battles that have ended and did not fit into a rollout: (rows, battle)

    def pull_weights(self, broadcast):
        """Takes over weights and shares, and draws the frozen policies to meet in this rollout."""
        with broadcast.lock:
            from_flat(self.agent, broadcast.weights)
            self.version = broadcast.version
            self.shares = broadcast.numbers["shares"].numpy().copy()
            policy_ids = broadcast.members["policy_id"].numpy().astype(np.int64)
            opponents = broadcast.members["opponent"].numpy().astype(np.int64)
            probabilities = broadcast.members["probability"].numpy().copy()
            self.to_meet = {}
            for opponent in np.unique(opponents[probabilities > 0]).tolist():
                p = probabilities * (opponents == opponent)
                drawn = self.rng.choice(policy_ids, POLICIES_AT_ONCE, p=p / p.sum())
                self.to_meet[opponent] = np.unique(drawn).tolist()
            wanted = {policy_id for drawn in self.to_meet.values() for policy_id in drawn}
            for policy_id in wanted - set(self.frozen_policies):
                weights = broadcast.member_weights[policy_ids.tolist().index(policy_id)]
                self.frozen_policies[policy_id] = copy_with_weights(self.agent, weights)
        in_use = wanted | set(self.policy_ids.tolist())
        for policy_id in set(self.frozen_policies) - in_use:
            del self.frozen_policies[policy_id]

    @torch.inference_mode()
    def rollout(self, broadcast, storage):
        """Plays until the battles that have ended fill `storage`, with the weights that are broadcast now.

        Battles under way stay here, with the decisions made in them so far, and go to a later rollout."""
        start = time.perf_counter()
        self.inference_time = self.simulator_time = 0.0
        storage["num_rows"].zero_()
        storage["num_battles"].zero_()
        self.pull_weights(broadcast)
        while self.waiting and add_battle(storage, self.args.buffer_size, *self.waiting[0]):
            self.waiting.pop(0)
        while not self.waiting and storage["num_rows"] < self.args.buffer_size:
            batch = self.receive()
            clock = time.perf_counter()
            self.end_battles(batch, storage)
            self.decide(batch)
            self.inference_time += time.perf_counter() - clock
        storage["rollout_time"].fill_(time.perf_counter() - start)
        storage["inference_time"].fill_(self.inference_time)
        storage["simulator_time"].fill_(self.simulator_time)

    def receive(self):
        clock = time.perf_counter()
        batch = self.resumed or self.env.recv()
        self.resumed = None
        self.simulator_time += time.perf_counter() - clock
        return batch

    def end_battles(self, batch, storage):
        """Battles that ended go to the rollout, whole; what does not fit waits for the next one."""
        ends = batch.ends[np.argsort(batch.key[batch.ends])]
        ends = ends[self.lengths[batch.key[ends]] > 0]  # the learner's seats
        bootstrap_values = np.zeros(len(ends), np.float32)
        truncated = batch.truncated[ends]
        if truncated.any():
            hidden, _ = self.memory.step(self.agent, batch, ends[truncated])
            bootstrap_values[truncated] = self.agent.value(hidden).numpy()
        for end, bootstrap_value in zip(ends.tolist(), bootstrap_values.tolist()):
            key = int(batch.key[end])
            side = int(batch.side[end])
            winner = int(batch.winner[end])
            length = int(self.lengths[key])
            self.rows["rewards"][key, length - 1] = float(batch.reward[end])
            battle = {
                "lengths": length,
                "bootstrap_values": bootstrap_value,
                "opponents": int(self.opponents[key // 2]),
                "policy_ids": int(self.policy_ids[key ^ 1]),
                "scores": float(winner == side) if winner in (0, 1) else 0.5,
                "turns": int(batch.turn[end]),
                "sides": side,
            }
            rows = {name: values[key, :length] for name, values in self.rows.items()}
            if self.waiting or not add_battle(storage, self.args.buffer_size, rows, battle):
                self.waiting.append(({name: values.clone() for name, values in rows.items()}, battle))
            self.lengths[key] = 0
        for battle in batch.finished["battle"]:
            self.played[battle] = []
        self.env.set_shares(scripted_shares(self.shares))  # of battles that follow those which the next actions end

    def choose_opponents(self, batch, previews):
        """Only ever called for battles that begin: who holds a seat holds it to the end. Whether it is a scripted
        player the environment has drawn, by the same shares."""
        shares = self.shares[:SCRIPTED].clip(min=0.0)  # self-play's may be a rounding error below
        shares = shares / shares.sum() if shares.any() else np.eye(SCRIPTED)[SELF]
        for battle, code in dict(zip(batch.battle[previews].tolist(), batch.opponent[previews].tolist())).items():
            opponent = SCRIPTED + code - 1 if code else int(self.rng.choice(SCRIPTED, p=shares))
            if not code and opponent not in self.to_meet:
                opponent = SELF
            self.opponents[battle] = opponent
            self.policy_ids[2 * battle : 2 * battle + 2] = 0
            if SELF < opponent < SCRIPTED:
                self.policy_ids[2 * battle + self.rng.integers(2)] = self.rng.choice(self.to_meet[opponent])
            self.played[battle] = []

    def decide(self, batch):
        """Answers all decisions, in the order of seats: what is drawn must not depend on who answered first."""
        rows = batch.decisions[np.argsort(batch.key[batch.decisions])]
        self.choose_opponents(batch, rows[(batch.kind[rows] == PREVIEW) & ~batch.retry[rows]])
        keys = batch.key[rows].astype(np.int64)
        joint_mask = torch.from_numpy(batch.mask[rows])
        is_preview = torch.from_numpy(batch.kind[rows] == PREVIEW)
        actions = np.zeros(len(rows), np.int64)
        for policy_id in np.unique(self.policy_ids[keys]).tolist():
            mine = np.flatnonzero(self.policy_ids[keys] == policy_id)
            policy = self.frozen_policies[policy_id] if policy_id else self.agent
            hidden, candidates = self.memory.step(policy, batch, rows[mine])
            action, logprob, legal = policy.act(
                hidden,
                candidates=candidates,
                is_preview=is_preview[mine],
                joint_mask=joint_mask[mine],
                generator=self.generator,
            )
            actions[mine] = action.numpy()
            if policy_id == 0:  # only what the learner's policy does is learned from
                self.write_down(
                    keys[mine],
                    retry=batch.retry[rows[mine]],
                    reward=batch.reward[rows[mine]],
                    ints=torch.from_numpy(batch.ints[rows[mine]]),
                    floats=torch.from_numpy(batch.floats[rows[mine]]),
                    legal=legal,
                    slots=torch.from_numpy(batch.slots[rows[mine]]),
                    pass_rule=torch.from_numpy(batch.pass_rule[rows[mine]]),
                    is_preview=is_preview[mine],
                    actions=action,
                    logprobs=logprob,
                    values=self.agent.value(hidden),
                    versions=torch.tensor(self.version, dtype=torch.int32),
                )
        self.write_foe_actions(keys, actions, batch.retry[rows])
        self.env.send(keys, actions)
        if self.args.num_workers == 0:  # an inline run resumes exactly: the moves so far lead to the same place
            for key, action in zip(keys.tolist(), actions.tolist()):
                self.played[key // 2].append((key, action))

    def write_down(self, keys, retry, reward, **decision):
        """Adds a decision to each of these seats' battles; one that is asked for again replaces itself.
        reward: for the decision before"""
        at = self.lengths[keys] - retry
        room = self.rows["actions"].shape[1]
        if at.max(initial=0) == room:
            shorter = self.rows
            self.rows = make_rows(len(self.lengths), 2 * room)
            for name, values in shorter.items():
                self.rows[name][:, :room] = values
        follows = ~retry & (at > 0)
        self.rows["rewards"][keys[follows], at[follows] - 1] = torch.from_numpy(reward[follows])
        for name, values in decision.items():
            self.rows[name][keys, at] = values
        self.lengths[keys] = at + 1

    def write_foe_actions(self, keys, actions, retry):
        """Both seats of a battle are asked at the same time, or one of them alone. A seat that is asked again chooses
        anew, and the other seat's row says so."""
        fresh = keys[~retry]
        again = keys[retry]
        self.chosen[fresh ^ 1] = self.env.scripted_actions[fresh ^ 1]
        self.chosen[keys] = actions
        asked = np.concatenate([keys, again ^ 1])
        asked = asked[(self.chosen[asked] >= 0) & (self.lengths[asked] > 0)]  # the learner's seats
        self.rows["foe_actions"][asked, self.lengths[asked] - 1] = torch.from_numpy(self.chosen[asked ^ 1])

    def state_dict(self):
        """All that the next rollout depends on, so that an inline run resumes exactly. Battles are their moves."""
        longest = max(int(self.lengths.max()), 1)
        arrays = {
            "shares": self.shares,
            "episodes": self.env.episodes,
            "players": self.env.players,
            "lengths": self.lengths,
            "policy_ids": self.policy_ids,
            "chosen": self.chosen,
            "opponents": self.opponents,
        }
        return {
            "arrays": {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()},
            "rows": {name: values[:, :longest].clone() for name, values in self.rows.items()},
            "memory_before": self.memory.before,
            "memory_after": self.memory.after,
            "played": self.played,
            "waiting": self.waiting,
            "frozen_policies": {policy_id: to_flat(policy) for policy_id, policy in self.frozen_policies.items()},
            "rng": json.dumps(self.rng.bit_generator.state),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state):
        arrays = {name: tensor.numpy() for name, tensor in state["arrays"].items()}
        for name in ("lengths", "policy_ids", "chosen", "opponents"):
            getattr(self, name)[:] = arrays[name]
        self.shares = arrays["shares"]
        self.rows = {name: values.clone() for name, values in state["rows"].items()}
        self.memory.before.copy_(state["memory_before"])
        self.memory.after.copy_(state["memory_after"])
        self.played = [[tuple(move) for move in moves] for moves in state["played"]]
        self.waiting = list(state["waiting"])
        for policy_id, flat in state["frozen_policies"].items():
            self.frozen_policies[policy_id] = copy_with_weights(self.agent, flat)
        self.rng.bit_generator.state = json.loads(state["rng"])
        self.generator.set_state(state["generator"])
        self.env.close()
        self.env = make_env(
            self.args, index=self.index, shares=self.shares, episodes=arrays["episodes"], players=arrays["players"]
        )
        self.resumed = replay_battles(self.env, self.played)


# --8<-- [end:vgc_actor]


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


# ----------------------------------------------------------------------------------------------------------------- pool

FADE = 0.99  # of counts, an update: win rates are of the last hundred updates or so
HEURISTICS_ELO = 1500.0  # everybody else moves


class OpponentStats:
    """How battles against each of OPPONENTS went, lately."""

    def __init__(self):
        self.wins = np.zeros(len(OPPONENTS))
        self.games = np.zeros(len(OPPONENTS))

    def fade(self):
        self.wins *= FADE
        self.games *= FADE

    def record(self, opponent, score):
        self.wins[opponent] += score
        self.games[opponent] += 1

    def win_rates(self):
        """(K,), even for those who were never met"""
        return np.where(self.games > 0, self.wins / np.maximum(self.games, 1e-8), 0.5)

    def state_dict(self):
        return {"wins": self.wins.tolist(), "games": self.games.tolist()}

    def load_state_dict(self, state):
        self.wins[:] = state["wins"]
        self.games[:] = state["games"]


class Pool:
    """Frozen policies to play against: the clone, past selves, exploiters; and whom to meet next. Their weights are in
    `broadcast.member_weights`."""

    def __init__(self, args, broadcast):
        self.args = args
        self.broadcast = broadcast
        self.stats = OpponentStats()
        self.members = []
        self.next_policy_id = 1
        self.elo = 1300.0  # the agent's

    def join(self, opponent, name, flat):
        """When the pool is full the past self that is beaten most often leaves; an exploiter only if there is none."""
        if len(self.members) == self.args.league_size:
            leavers = [member for member in self.members if member["opponent"] in (PAST, EXPLOITER)]
            self.members.remove(min(leavers, key=lambda member: (member["opponent"], -self.win_rate(member))))
        member = {
            "policy_id": self.next_policy_id,
            "place": self.broadcast.store(flat, [member["place"] for member in self.members]),
            "opponent": opponent,
            "name": name,
            "elo": self.elo,
            "wins": 0.0,
            "games": 0.0,
        }
        self.members.append(member)
        self.next_policy_id += 1
        return member

    @staticmethod
    def win_rate(member):
        return (member["wins"] + 1.0) / (member["games"] + 2.0)

    def record(self, results):
        """results: as in make_battles"""
        self.stats.fade()
        for member in self.members:
            member["wins"] *= FADE
            member["games"] *= FADE
        by_id = {member["policy_id"]: member for member in self.members}
        columns = (results[name].tolist() for name in ("opponents", "policy_ids", "scores"))
        for opponent, policy_id, score in zip(*columns):
            if opponent == SELF:  # always even
                continue
            self.stats.record(opponent, score)
            if OPPONENTS[opponent] == "heuristics":
                self.elo = elo_update(self.elo, HEURISTICS_ELO, score)
            member = by_id.get(policy_id)
            if member is not None:  # it may have left while the battle went on
                member["wins"] += score
                member["games"] += 1
                before = self.elo
                self.elo = elo_update(self.elo, member["elo"], score)
                member["elo"] = elo_update(member["elo"], before, 1.0 - score)

    def shares(self):
        """(K,) of all opponents; who has no members leaves their share to self-play. A scripted player's never grows: a
        decision against it costs four times one against oneself, and who wins 2 % of such battles learns more from its
        equals."""
        shares = base_shares(self.args)
        ceiling = np.where(np.arange(len(OPPONENTS)) < SCRIPTED, 2.0, 1.0)
        for opponent in {BC, PAST, EXPLOITER} - {member["opponent"] for member in self.members}:
            shares[SELF] += shares[opponent]
            shares[opponent] = 0.0
        return pool_probabilities(shares, self.stats.win_rates(), self.stats.games, ceiling)

    def publish(self, agent, version):
        """Hands weights, policies and sampling probabilities to the actors, all of one version."""
        told = {}
        for opponent in (BC, PAST, EXPLOITER, OPPONENT):
            members = [member for member in self.members if member["opponent"] == opponent]
            rates = [self.win_rate(member) for member in members]
            games = np.array([member["games"] for member in members])
            for member, probability in zip(members, pool_probabilities(np.ones(len(members)), rates, games)):
                told[member["place"]] = {
                    "policy_id": member["policy_id"],
                    "opponent": opponent,
                    "probability": probability,
                }
        self.broadcast.publish(agent, version, numbers={"shares": self.shares()}, members=told)

    def state_dict(self):
        return {
            "members": self.members,
            "next_policy_id": self.next_policy_id,
            "elo": self.elo,
            "stats": self.stats.state_dict(),
        }

    def load_state_dict(self, state):
        self.members = [dict(member) for member in state["members"]]
        self.next_policy_id = state["next_policy_id"]
        self.elo = state["elo"]
        self.stats.load_state_dict(state["stats"])


def exploiter_settings(args, target, update):
    """What an exploiter is: this run's learner without the magnet, starts from its target and plays nobody else."""
    settings = dataclasses.asdict(args) | {
        "exp_name": f"{args.exp_name}_exploiter",
        "seed": args.seed + update,
        "opponent": str(target),
        "bc_model": str(target),
        "alpha": 0.0,
        "total_timesteps": args.exploiter_train_steps,
        "max_updates": 0,
        "max_minutes": 0.0,
        "num_workers": 1,
        "train_batch_size": 0,
        "eval_frequency": 0,
        "snapshot_frequency": 0,
        "train_exploiters": False,
        "track": False,
        "tensorboard": False,
        "ray_address": "",
    }
    return {name: value for name, value in settings.items() if name not in ("config", "resume")}


# ----------------------------------------------------------------------------------------------------------- the update


# --8<-- [start:vgc_update]
def advantages_and_returns(batch, gamma, gae_lambda):
    """(N,), (N,)"""
    values = batch.rows["values"]
    advantages = gae(
        batch.rows["rewards"],
        values=values,
        bootstrap_values=batch.bootstrap_values,
        lengths=batch.lengths,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    return advantages, advantages + values


def evaluate_battles(agent, batch, battles, device):
    """The agent's pass over some battles of the batch, from their previews on
    → their rows (R,), log-probs (R, 2, 90), the LSTM's outputs (R, H) and candidates, in the order of rows"""
    rows, batch_sizes = pack_battles(batch.starts[battles], batch.lengths[battles])
    names = ("ints", "floats", "is_preview", "legal", "actions")
    ints, floats, is_preview, legal, actions = (batch.rows[name][rows].to(device) for name in names)
    hidden, candidates = agent.unroll(ints, floats, batch_sizes)
    return (
        rows,
        agent.logprobs(hidden, candidates=candidates, is_preview=is_preview, legal=legal, actions=actions),
        hidden,
        candidates,
    )


def minibatches(num_battles, count):
    """Random parts of about as many battles each, none empty"""
    return torch.randperm(num_battles).tensor_split(min(count, num_battles))


def gradient_step(loss, optimizer, scaler, max_grad_norm):
    """→ the norm of the gradient before it was clipped"""
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    grad_norm = nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_grad_norm)
    scaler.step(optimizer)
    scaler.update()
    return grad_norm


def explained_variance(values, returns):
    return 1 - float((returns - values).var(unbiased=False) / returns.var(unbiased=False).clamp(min=1e-8))


# --8<-- [end:vgc_update]


@torch.no_grad()
def policy_logprobs(policy, batch, device):
    """What a policy would do at all decisions of the batch, its memory its own from the previews on: (N, 2, 90)"""
    table = torch.empty(len(batch.rows["actions"]), 2, NUM_PREVIEWS)
    by_length = batch.lengths.argsort(stable=True)  # battles of like length together: fewer steps
    for battles in by_length.tensor_split(math.ceil(len(table) / 1024)):
        if len(battles):
            rows, logprobs, *_ = evaluate_battles(policy, batch, battles, device)
            table[rows] = logprobs.cpu()
    return table


def freeze_copy(agent, flat=None):
    """A copy of the policy, or a policy of these weights, that never learns"""
    return copy_with_weights(agent, to_flat(agent) if flat is None else flat).requires_grad_(False).eval()


class Magnet:
    """What the policy is drawn to, and how that follows it."""

    def __init__(self, args, agent, elo):
        self.args = args
        self.average = freeze_copy(agent)
        self.references = [{"name": "start", "policy_id": 0, "elo": elo, "policy": freeze_copy(agent)}]  # oldest first

    def logprobs(self, batch, device):
        """(R, N, 2, 90)"""
        if self.args.magnet == "uniform" or self.args.alpha == 0:
            legal = batch.rows["legal"]
            return masked_log_softmax(torch.zeros(1, *legal.shape), legal)
        policies = [reference["policy"] for reference in self.references]
        if self.args.magnet == "ema":
            policies = [self.average]
        return torch.stack([policy_logprobs(policy, batch, device) for policy in policies])

    def wants_candidate(self, update):
        due = update % self.args.portfolio_add_interval == 0
        return due and self.args.magnet == "portfolio" and not self.args.opponent

    def move(self, agent, update, elo):
        """After every update: the average follows, the snapshot is renewed now and then."""
        ema_update(self.average, agent, self.args.ema_decay)
        if self.args.magnet == "ref" and update % self.args.ref_update_interval == 0:
            reference = {"name": f"update_{update}", "policy_id": 0, "elo": elo, "policy": freeze_copy(agent)}
            self.references = [reference]

    def add_candidate(self, agent, member, members, batch, device):
        """portfolio: the policy, which has just become this member of the pool, becomes a reference; one may leave."""
        reference = {"name": member["name"], "policy_id": member["policy_id"], "elo": member["elo"]}
        self.references.append({**reference, "policy": freeze_copy(agent)})
        ratings = {member["policy_id"]: member["elo"] for member in members}
        for reference in self.references:  # one that has left the pool keeps its last rating
            reference["elo"] = ratings.get(reference["policy_id"], reference["elo"])
        if len(self.references) > self.args.max_portfolio_size:
            tables = None
            if self.args.portfolio_strategy == "diverse":
                tables = [policy_logprobs(reference["policy"], batch, device) for reference in self.references]
                tables = torch.stack(tables)
            elos = [reference["elo"] for reference in self.references]
            self.references.pop(portfolio_drop(self.args.portfolio_strategy, tables, elos))

    def state_dict(self):
        references = [{**reference, "policy": to_flat(reference["policy"])} for reference in self.references]
        return {"average": to_flat(self.average), "references": references}

    def load_state_dict(self, state):
        from_flat(self.average, state["average"])
        self.references = []
        for reference in state["references"]:
            self.references.append({**reference, "policy": freeze_copy(self.average, reference["policy"])})


def rnad_loss(*, logprobs, win_logit, choices, old_logprob, advantages, returns, references, args, value_only=False):
    """policy + vf_coef · value − ent_coef · entropy + alpha · min KL of one minibatch
    → loss, statistics, KLs to all references (R, B), which of them is the nearest (B,)

    logprobs (B, 2, 90), references (R, B, 2, 90), choices (B, 2), others (B,). value_only: while the value warms up"""
    logprob = taken_logprob(logprobs, choices)
    policy_loss, stats = clipped_loss(logprob, old_logprob, normalise(advantages), args.clip_coef)
    v_loss = value_loss(win_logit, returns)
    entropy = policy_entropy(logprobs).mean()
    nearest, chosen, kls = magnet_kl(logprobs, references)
    loss = args.vf_coef * v_loss
    if not value_only:
        loss = loss + policy_loss - args.ent_coef * entropy + args.alpha * nearest.mean()
    stats |= {"policy_loss": policy_loss, "value_loss": v_loss, "entropy": entropy, "magnet_kl": nearest.mean()}
    return loss, stats, kls, chosen


def update_agent(agent, optimizer, scaler, autocast, batch, references, args, value_only=False, foe_head=None):
    """Passes over the batch until the policy has moved far enough. references (R, N, 2, 90) → losses/*, portfolio/*"""
    device = next(agent.parameters()).device
    advantages, returns = advantages_and_returns(batch, args.gamma, args.gae_lambda)
    choices = split_action(batch.rows["is_preview"], batch.rows["actions"])
    answers = foe_answers(batch.rows["foe_actions"], batch.rows["is_preview"])
    nearest_counts = torch.zeros(len(references))
    reference_kls = []
    losses = []
    passes = 0
    mean_kl = 0.0
    while passes < args.update_epochs and not 0 < args.target_kl < mean_kl:
        kl_sum = 0.0
        for battles in minibatches(len(batch.lengths), args.num_minibatches):
            with autocast():
                rows, logprobs, hidden, candidates = evaluate_battles(agent, batch, battles, device)
                win_logit = agent.win_logit(hidden.detach() if value_only else hidden)
                if foe_head:
                    ints, floats = (batch.rows[name][rows].to(device) for name in ("ints", "floats"))
                    foe_logits = foe_head(agent, hidden=hidden, candidates=candidates, ints=ints, floats=floats)
            loss, stats, kls, chosen = rnad_loss(
                logprobs=logprobs,
                win_logit=win_logit,
                choices=choices[rows].to(device),
                old_logprob=batch.rows["logprobs"][rows].to(device),
                advantages=advantages[rows].to(device),
                returns=returns[rows].to(device),
                references=references[:, rows].to(device),
                args=args,
                value_only=value_only,
            )
            if foe_head:
                aux_loss, aux_stats = foe_loss(foe_logits, answers[rows].to(device))
                loss = loss if value_only else loss + args.aux_coef * aux_loss
                stats |= aux_stats
            stats["grad_norm"] = gradient_step(loss, optimizer, scaler, args.max_grad_norm)
            losses.append({name: value.detach() for name, value in stats.items()})
            nearest_counts += torch.bincount(chosen.cpu(), minlength=len(references))
            reference_kls.append(kls.mean(1).cpu())
            kl_sum += float(stats["approx_kl"]) * len(rows)
        passes += 1
        mean_kl = kl_sum / len(returns)
    check_finite([torch.stack(list(stats.values())) for stats in losses])
    metrics = {f"losses/{name}": float(torch.stack([stats[name] for stats in losses]).mean()) for name in losses[0]}
    metrics["losses/explained_variance"] = explained_variance(batch.rows["values"], returns)
    metrics["losses/passes"] = passes
    shares = nearest_counts / nearest_counts.sum()
    kls = torch.stack(reference_kls).mean(0)
    for number, (share, kl) in enumerate(zip(shares.tolist(), kls.tolist())):
        metrics |= {f"portfolio/{number}_chosen": share, f"portfolio/{number}_kl": kl}
    return metrics


# ---------------------------------------------------------------------------------------------- evaluation, checkpoints


# --8<-- [start:vgc_evaluation]
def save_model(path, agent, args):
    metadata = contract.metadata(args.battle_format)
    models.save_model(path, agent.state_dict(), statistics={}, metadata=metadata, args=args, script=__file__)


def load_model(path, args=None):
    """A run's folder or a model.zip → (agent, metadata). args: of the run that it is to join as an opponent"""
    sizes = ("width", "embedding_width", "lstm_size", "attention_layers")
    return models.load_agent(path, contract.contract_hash(), make_agent, args=args, sizes=sizes)


def play_match(policy, opponent, battles, battle_format, dice):
    """→ scores (battles,) of the policy's likeliest actions on held-out teams. opponent: a scripted player's name, or a
    policy"""
    player = Player(policy, dice, deterministic=True)
    opponent = opponent if isinstance(opponent, str) else Player(opponent, dice + 1, deterministic=True)
    return play_battles(player, opponent, battles, battle_format, seed=dice)[0]


def play_in_turn(matches):
    return [match() for match in matches]


def evaluate(args, agent, battles, opponents, seed, play_all=play_in_turn):
    """A match with each of these {name: opponent} → eval/*. play_all: how the matches are run

    seed: whoever looks often at the same battles sees the luck of those, so each evaluation has its own."""
    policy = copy.deepcopy(agent).cpu().eval()
    matches = []
    for number, opponent in enumerate(opponents.values()):
        dice = int(np.random.default_rng([args.seed, seed, number]).integers(2**31))
        matches.append(functools.partial(play_match, policy, opponent, battles, args.battle_format, dice))
    metrics = {}
    for name, scores in zip(opponents, play_all(matches)):
        metrics |= score_metrics(name, scores)
    return metrics


# --8<-- [end:vgc_evaluation]


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
    require_format(args.battle_format)
    if base_shares(args)[SELF] < -1e-9:
        raise BadInput("The fractions of opponents sum to more than 1, and what they leave is self-play: lower some.")
    try:
        team_mix(args.teams, args.battle_format)
    except ValueError as error:
        raise BadInput(f"--teams: {error}") from None
    if args.width % ATTENTION_HEADS:
        raise BadInput(f"--width {args.width} is no multiple of the {ATTENTION_HEADS} attention heads.")
    ray_actors.check_address(args.ray_address)
    if args.league_size < 3:
        raise BadInput(f"--league-size {args.league_size} is too small for the clone, a past self and an exploiter.")


if __name__ == "__main__":
    args = parse_args(Args, {}, aliases=ALIASES)
    check_args(args)
    network_hash = models.network_hash(script_source(__file__))
    checkpoint = load_checkpoint(args.resume, contract.contract_hash(), network_hash) if args.resume else None
    learner_pid = exploiter_processes.learner_pid()
    device, autocast, scaler = set_up(args)

    agent = make_agent(vars(args)).to(device)
    if args.bc_model and not checkpoint:
        models.load_matching_weights(
            agent,
            args.bc_model,
            flag="--bc-model",
            contract_hash=contract.contract_hash(),
            action_space=contract.ACTION_SPACE,
        )
    trained = list(agent.parameters())
    foe_head = make_foe_head(args)
    if foe_head:
        foe_head.to(device)
        trained += foe_head.parameters()
    optimizer = torch.optim.Adam(trained, lr=args.learning_rate, eps=1e-5, fused=True)
    settings = dataclasses.replace(args)  # for config.yaml, where "auto" stays "auto"
    args.sharing = shared_memory.resolve_sharing(args, make_storage, len(to_flat(agent)))
    broadcast = make_broadcast(args, agent)
    pool = Pool(args, broadcast)
    magnet = Magnet(args, agent, pool.elo)
    actor = Actor(args, 0) if args.num_workers == 0 else None
    now = Progress()
    if checkpoint:
        restore(checkpoint, agent=agent, optimizer=optimizer, scaler=scaler)
        if foe_head:
            restore(checkpoint, foe_head=foe_head)
        restore(checkpoint, pool=pool, magnet=magnet, member_weights=broadcast.member_weights)
        now = Progress(**checkpoint["progress"])
        torch.set_rng_state(checkpoint["torch_rng"])
        if actor and checkpoint["actor"]:
            restore(checkpoint, actor=actor)
    elif args.opponent:
        pool.join(OPPONENT, Path(args.opponent).name, to_flat(load_model(args.opponent, args)[0]))
    elif args.bc_model:
        pool.join(BC, "bc", to_flat(agent))
    run_dir = make_run_folder(settings, __file__)  # not before everything is known to fit
    known = checkpoint["known_exploiters"] if checkpoint else ()
    exploiter_runs = exploiter_processes.ExploiterRuns(run_dir, __file__, known)

    def add_new_exploiters():
        for model in exploiter_runs.unseen_models() if not args.opponent else ():
            pool.join(EXPLOITER, model, to_flat(load_model(run_dir / model, args)[0]))

    def save_all():
        state = {
            "agent": agent.state_dict(),
            "foe_head": foe_head.state_dict() if foe_head else None,
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "pool": pool.state_dict(),
            "magnet": magnet.state_dict(),
            "known_exploiters": sorted(exploiter_runs.known),
            "member_weights": broadcast.member_weights.clone(),
            "progress": dataclasses.asdict(now),
            "torch_rng": torch.get_rng_state(),
            "actor": actor.state_dict() if actor else None,
            "contract_hash": contract.contract_hash(),
            "network_hash": network_hash,
        }
        save_checkpoint(run_dir, state)
        save_model(run_dir / "model.zip", agent, args)
        exploiter_runs.keep_newest(args.keep_models)

    def evaluate_all(final):
        """The models beside the results let a run be compared with its own past; at the end it is."""
        path = run_dir / "models" / f"{now.global_step}.zip"
        save_model(path, agent, args)
        keep_models(run_dir, args.keep_models, run_dir / "models" / now.best_model)
        battles = args.final_battles if final else args.eval_battles
        if not battles:
            return {}
        if args.opponent:
            opponent, _ = load_model(args.opponent)
            return evaluate(args, agent, battles, {"opponent": opponent}, seed=now.global_step)
        metrics = evaluate(args, agent, battles, dict(zip(BASELINES, BASELINES)), seed=now.global_step)
        score = float(np.mean([metrics[f"eval/{name}"] for name in BASELINES]))
        if score > now.best_score:
            now.best_score = score
            now.best_model = path.name
        past = []
        for member in pool.members if final else ():
            policy = freeze_copy(agent, broadcast.member_weights[member["place"]]).cpu()
            if member["opponent"] == BC:
                metrics |= evaluate(args, agent, battles, {"bc": policy}, seed=now.global_step + 1)
            if member["opponent"] == PAST:
                seed = now.global_step + 1 + member["policy_id"]
                past.append(evaluate(args, agent, battles, {"past": policy}, seed=seed)["eval/past"])
        if past:
            metrics |= {"eval/past_worst": min(past), "eval/past_mean": float(np.mean(past)), "eval/past_n": len(past)}
        return metrics

    stopping = stop_on_signals()
    logger = Logger(args, run_dir, now.global_step)
    add_new_exploiters()
    pool.publish(agent, now.version)
    rollouts = make_rollouts(args, broadcast, stopping, actor)
    start_time = time.time()
    first_step = now.global_step
    seconds_before = now.seconds
    consistent = True
    done = progress(args, now.global_step, now.seconds, now.update)
    rollouts_per_update = math.ceil(args.train_batch_size / args.buffer_size) or max(args.num_workers, 1)

    try:
        wait_start = time.perf_counter()
        for batch in gather_batches(rollouts, broadcast, rollouts_per_update, args.max_policy_lag):
            if learner_pid and os.getppid() != learner_pid:
                raise RunFailed("The run whose exploiter this is has ended.")
            wait_time = time.perf_counter() - wait_start
            learn_start = time.perf_counter()
            consistent = False
            now.update += 1
            now.global_step += len(batch.rows["actions"])
            lag = (now.version - batch.rows["versions"]).float()

            optimizer.param_groups[0]["lr"] = anneal(args.learning_rate, args.learning_rate_final, done)
            value_only = bool(args.bc_model) and now.update <= args.value_warmup_updates
            with autocast():
                references = magnet.logprobs(batch, device)
            losses = update_agent(
                agent,
                optimizer=optimizer,
                scaler=scaler,
                autocast=autocast,
                batch=batch,
                references=references,
                args=args,
                value_only=value_only,
                foe_head=foe_head,
            )
            now.version += 1

            # --- the pool, exploiters, and what the policy is drawn to
            pool.record(batch.results)
            snapshot_due = args.snapshot_frequency and now.update % args.snapshot_frequency == 0 and not args.opponent
            candidate_due = magnet.wants_candidate(now.update)
            if snapshot_due or candidate_due:
                newest = pool.join(PAST, f"snapshot_{now.global_step}", to_flat(agent))
            magnet.move(agent, now.update, pool.elo)
            if candidate_due:
                magnet.add_candidate(agent, member=newest, members=pool.members, batch=batch, device=device)
            exploiter_runs.finish_ended(args.exploiter_win_threshold)
            if args.train_exploiters and not exploiter_runs.job and now.update % args.exploiter_check_interval == 0:
                make_settings = functools.partial(exploiter_settings, args, update=now.update)
                exploiter_runs.start_one(now.update, lambda path: save_model(path, agent, args), make_settings)
            add_new_exploiters()
            pool.publish(agent, now.version)
            now.seconds = seconds_before + time.time() - start_time
            consistent = True
            learn_time = time.perf_counter() - learn_start

            # --- logs, evaluation, checkpoint
            done = progress(args, now.global_step, now.seconds, now.update)
            metrics = {
                "charts/SPS": (now.global_step - first_step) / (time.time() - start_time),
                "charts/learning_rate": optimizer.param_groups[0]["lr"],
                **losses,
                **time_metrics(
                    lag,
                    queue_size=batch.queue_size,
                    seconds=batch.seconds(),
                    learn_time=learn_time,
                    wait_time=wait_time,
                ),
                "stats/dropped_rollouts": batch.dropped,
                **battle_metrics(batch.results),
                "league/size": len(pool.members),
                "elo/agent": pool.elo,
                **{f"curriculum/{name}": share for name, share in zip(OPPONENTS, pool.shares().tolist()) if share},
            }
            if best := exploiter_runs.best_win_rate():
                metrics["exploiter/best_win_rate"] = best
            finished = done >= 1.0
            if finished or (args.eval_frequency and now.update % args.eval_frequency == 0):
                metrics |= until_stopped(stopping, evaluate_all, finished)
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
