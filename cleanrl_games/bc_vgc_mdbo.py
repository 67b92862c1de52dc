"""Behaviour cloning on VGC doubles: whole battles as sequences, from scripted players or Showdown replays.

    python cleanrl_games/bc_vgc_mdbo.py --collect 12000

    scripted players on all cores ─┐   expert_data/vgc_<format>/<set>/      ┌ learner ────────────────────────────────┐
                                   ├─► shards of decisions, mapped into ──► │ batches of whole battles, LSTM unrolled │
    folder of replays ─────────────┘   memory, checked, split by battle     │ cross-entropy and win prediction        │
                                                                            └──► held-out battles: accuracy           │
                                                                                 held-out teams: win rates, model.zip ┘

The model.zip is what `ppo_vgc_mdbo.py --bc-model` starts from.
"""

import copy
import dataclasses
import functools
import math
import os
import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import PackedSequence

from cleanrl_games.envs.vgc import PREVIEW, TURN, contract, demonstrations, require_format, team_mix
from cleanrl_games.envs.vgc.collect import CollectingView, collect
from cleanrl_games.envs.vgc.match import BASELINES, play_battles
from cleanrl_games.envs.vgc.mdbo import (
    NUM_ACTIONS,
    NUM_PREVIEWS,
    PAIRS_OF_SIX,
    PREVIEW_PAIRS,
    PREVIEWS,
    SLOT_ACTIONS,
    SLOT_PARTS,
)
from cleanrl_games.envs.vgc.replay_actions import collect_replays
from cleanrl_games.envs.vgc.vocabulary import LAYOUT, SIZES, columns_of
from cleanrl_games.runtime import models, ray_actors
from cleanrl_games.runtime.checkpoints import load_checkpoint, restore, save_checkpoint, say_how_to_go_on
from cleanrl_games.runtime.device import set_up
from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.runtime.files import keep_models, make_run_folder, script_source
from cleanrl_games.runtime.logger import Logger
from cleanrl_games.runtime.metrics import score_metrics
from cleanrl_games.runtime.settings import Count, Fraction, NonNegative, Positive, Size, parse_args
from cleanrl_games.runtime.stopping import check_finite, stop_on_signals, until_stopped


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
    threads: Size = 1
    """torch threads of the learner"""
    debug: bool = False
    """show the traceback of what goes wrong, of actors too"""

    # --- environment
    battle_format: str = "gen9vgc2023regulationc"
    """the VGC format: gen9vgc2023rega to rege, gen9vgc2024regf to regh, gen9vgc2025regi, gen9vgc2025regj,
    gen9championsvgc2026regma, gen9championsvgc2026regmb; other spellings are understood"""

    # --- demonstrations
    data: tuple[str, ...] = ()
    """sets of demonstrations to learn from, beside the ones this run makes; empty and none made = all there are of the
    format"""
    data_dir: str = "expert_data"
    """where sets of demonstrations are kept"""
    collect: Count = 0
    """battles that scripted players play for this run"""
    collect_experts: tuple[str, ...] = ("heuristics",)
    """who plays them, every pairing equally often: heuristics, max_power, random"""
    collect_teams: tuple[str, ...] = ("shipped", "generated")
    """training teams, each source equally often: shipped, generated, or folders of PokePaste files"""
    collect_set: str = ""
    """folder of the set this run makes (replays go to {it}__replays); empty =
    {data_dir}/vgc_{format}/{exp_name}__{seed}__{time}"""
    replays: str = ""
    """a folder of Showdown replays (.log, .txt, .html, .json) to learn from"""
    num_workers: Count = os.cpu_count() or 1
    """actor processes; 0 = inline in the learner's process, deterministic"""
    ray_address: str = ""
    """collect and evaluate on this Ray cluster ("auto", "127.0.0.1:6379", …), on num_workers of its cores"""

    # --- algorithm
    epochs: Count = 30
    """passes over the demonstrations; 0 = only collect"""
    max_minutes: NonNegative = 0.0
    """stop after this many minutes, 0 = no limit"""
    learning_rate: Positive = 1e-3
    """Adam's step size"""
    learning_rate_final: NonNegative = 0.0
    """its value at the end of the run (linear)"""
    minibatch_size: Size = 1024
    """agent-steps per gradient step"""
    weight_decay: NonNegative = 0.01
    """AdamW's"""
    vf_coef: NonNegative = 0.5
    """weight of the value loss"""
    max_grad_norm: Positive = 1.0
    """gradient clip"""
    shuffle_teams: bool = True
    """show the Pokémon of a team preview, and the opponent's, in random order"""
    shuffle_labels: bool = False
    """the control of a small set: each action to learn is exchanged for another decision's that is legal there"""
    valid_fraction: Fraction = 0.05
    """share of the battles kept for validation"""
    width: Size = 64
    """width of a Pokémon's token, a multiple of 4"""
    embedding_width: Size = 128
    """width of an id's embedding"""
    lstm_size: Size = 192
    """units of the LSTM"""
    attention_layers: Size = 1
    """transformer layers over the twelve Pokémon"""

    # --- evaluation and checkpoints
    eval_epochs: Count = 5
    """epochs between evaluations against the scripted players, each with a model in the run's folder; 0 = only at the
    end"""
    eval_battles: Count = 100
    """battles per evaluation and scripted player"""
    final_battles: Count = 400
    """battles per scripted player at the end"""
    keep_models: Count = 50
    """the newest so many models/*.zip of a run are kept, and the best; 0 = all"""


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


# -------------------------------------------------------------------------------------------------------------- storage

LINEUP_NUMBER = np.full((6, 6, 6, 6), -1, np.int16)  # four of six → the preview's number
LINEUP_NUMBER[tuple(PREVIEWS.T)] = np.arange(len(PREVIEWS))


def shuffle_teams(rows, stream_of_row, num_streams, rng):
    """Permutes, in place, the own six at team preview with its label, and the opponent's six through the whole battle.

    In a turn the order of the own ones is part of the question (slot a, slot b, who may come in), so it stays."""
    order = rng.permuted(np.tile(np.arange(6), (num_streams, 1)), axis=1)[stream_of_row]  # (N, 6): old place of new row
    for name, kind in (("opp", "ints"), ("opp", "floats"), ("belief", "floats")):
        view = columns_of(rows[kind], name, kind)
        view[:] = np.take_along_axis(view, order[:, :, None], 1)
    place = np.argsort(order, 1)  # new place of each old row
    standing = columns_of(rows["ints"], "active", "ints")[:, 2:, LAYOUT["active"].ints.index("row")]  # 1–6, 0 nobody
    standing[:] = np.where(standing > 0, np.take_along_axis(place, np.maximum(standing - 1, 0), 1) + 1, 0)

    preview = np.flatnonzero(rows["kind"] == PREVIEW)
    preview = preview[rows["slots"][preview].all((1, 2))]  # a team of fewer than six stays: some of its rows are empty
    order = rng.permuted(np.tile(np.arange(6), (len(preview), 1)), axis=1)
    for kind in ("ints", "floats"):
        part = rows[kind][preview]
        view = columns_of(part, "own", kind)
        view[:] = np.take_along_axis(view, order[:, :, None], 1)
        rows[kind][preview] = part
    place = np.argsort(order, 1)
    lineup = np.take_along_axis(place, PREVIEWS[rows["action"][preview]], 1).reshape(-1, 2, 2)
    rows["action"][preview] = LINEUP_NUMBER[tuple(np.sort(lineup, 2).reshape(-1, 4).T)]


class ShuffledLabels:
    """Exchanges each known action for one of another decision of the same kind that is legal here, the same in every
    epoch.

    What a network then gets right on unseen battles it owes to which actions are common and legal, not to what it
    sees."""

    TRIES = 64  # other decisions that are asked for a legal action; the own one stays if none has one

    def __init__(self, demos, numbers, seed):
        rows = demos.rows(numbers)
        known = rows["known"] == demonstrations.FIRST | demonstrations.SECOND
        self.seed = seed
        self.actions = {kind: rows["action"][known & (rows["kind"] == kind)] for kind in (PREVIEW, TURN)}

    def exchange(self, rows, stream_of_row, numbers):
        legal = demonstrations.joint_mask(rows)
        dice = [np.random.default_rng([self.seed, number]) for number in numbers]
        for row in range(len(rows)):
            actions = self.actions[int(rows["kind"][row])]
            if rows["known"][row] and len(actions):
                others = dice[stream_of_row[row]].choice(actions, self.TRIES)
                possible = others[legal[row, others]]
                rows["action"][row] = possible[0] if len(possible) else rows["action"][row]


@dataclasses.dataclass
class Batch:
    """Whole battles as they were seen and played from one seat, in the order of `pack_battles`."""

    batch_sizes: torch.Tensor  # (T,) how many battles have a decision at each step
    ints: torch.Tensor  # (N, INTS)
    floats: torch.Tensor  # (N, FLOATS)
    is_preview: torch.Tensor  # (N,)
    joint_mask: torch.Tensor  # (N, 2025)
    legal: torch.Tensor  # (N, 2, 90) of both choices, the second given the first
    actions: torch.Tensor  # (N,)
    known: torch.Tensor  # (N, 2) which of the two choices is known
    outcome: torch.Tensor  # (N,) of the battle: 1 won, 0 lost, NaN not known


def make_batch(demos, numbers, device, rng=None, shuffled_labels=None):
    """Streams of the demonstrations, by their numbers; rng shuffles their teams."""
    lengths = demos.streams["length"][numbers]
    rows = demos.rows(numbers)
    stream = np.repeat(np.arange(len(numbers)), lengths)
    if shuffled_labels is not None:
        shuffled_labels.exchange(rows, stream, numbers)
    if rng is not None:
        shuffle_teams(rows, stream, len(numbers), rng)
    starts = np.cumsum(lengths) - lengths
    packed, batch_sizes = pack_battles(torch.from_numpy(starts).long(), torch.from_numpy(lengths).long())
    rows = rows[packed.numpy()]
    stream = stream[packed.numpy()]

    actions = rows["action"].astype(np.int64)
    is_preview = rows["kind"] == PREVIEW
    joint_mask = demonstrations.joint_mask(rows)
    pairs = joint_mask.reshape(-1, SLOT_ACTIONS, SLOT_ACTIONS)
    legal = np.zeros((len(rows), 2, NUM_PREVIEWS), bool)
    legal[:, 0, :SLOT_ACTIONS] = pairs.any(2)
    legal[:, 1, :SLOT_ACTIONS] = pairs[np.arange(len(rows)), np.where(is_preview, 0, actions // SLOT_ACTIONS)]
    legal[is_preview, 0] = joint_mask[is_preview, :NUM_PREVIEWS]
    legal[is_preview, 1] = np.arange(NUM_PREVIEWS) == 0
    bits = np.array([demonstrations.FIRST, demonstrations.SECOND], np.uint8)
    arrays = {
        "ints": np.ascontiguousarray(rows["ints"]),
        "floats": rows["floats"].astype(np.float32),
        "is_preview": is_preview,
        "joint_mask": joint_mask,
        "legal": legal,
        "actions": actions,
        "known": (rows["known"][:, None] & bits) > 0,
        "outcome": demos.streams["outcome"][numbers][stream],
    }
    return Batch(batch_sizes, **{name: torch.from_numpy(array).to(device) for name, array in arrays.items()})


def batches_of(demos, numbers, rows, rng):
    """Streams of like length together, about `rows` decisions a batch: the LSTM takes few steps. In random order."""
    numbers = numbers[np.argsort(demos.streams["length"][numbers] + rng.random(len(numbers)), kind="stable")]
    ends = np.cumsum(demos.streams["length"][numbers])
    parts = np.split(numbers, np.searchsorted(ends, np.arange(rows, ends[-1], rows)))
    parts = [part for part in parts if len(part)]
    return [parts[i] for i in rng.permutation(len(parts))]


# ----------------------------------------------------------------------------------------------------------- the update


def cloning_losses(agent, hidden, candidates, batch):
    """→ cross-entropy of both choices, where they are known, and of the win prediction, where the outcome is"""
    logprobs = agent.logprobs(
        hidden, candidates=candidates, is_preview=batch.is_preview, legal=batch.legal, actions=batch.actions
    )  # (N, 2, 90)
    taken = logprobs.gather(2, split_action(batch.is_preview, batch.actions)[:, :, None]).squeeze(2)  # (N, 2)
    # Not a product: what is not known may be illegal, and finfo.min · 0 is fine but finfo.min · 0.5 is not.
    policy_loss = -torch.where(batch.known, taken, 0.0).sum() / batch.known.any(1).sum().clamp(min=1)
    decided = ~batch.outcome.isnan()
    target = batch.outcome.nan_to_num(0.5)
    losses = F.binary_cross_entropy_with_logits(agent.win_logit(hidden), target, reduction="none")
    return policy_loss, torch.where(decided, losses, 0.0).sum() / decided.sum().clamp(min=1)


def update_agent(agent, optimizer, scaler, autocast, batch, args):
    """One gradient step → statistics"""
    with autocast():
        hidden, candidates = agent.unroll(batch.ints, batch.floats, batch.batch_sizes)
        policy_loss, value_loss = cloning_losses(agent, hidden, candidates, batch)
        loss = policy_loss + args.vf_coef * value_loss
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
    scaler.step(optimizer)
    scaler.update()
    stats = {"policy_loss": policy_loss, "value_loss": value_loss, "grad_norm": grad_norm}
    return {name: value.detach() for name, value in stats.items()}


def loss_metrics(losses):
    """Means of the statistics of several steps, as losses/*"""
    names = losses[0] if losses else ()
    return {f"losses/{name}": float(torch.stack([stats[name] for stats in losses]).mean()) for name in names}


def anneal(start, final, done):
    """Linear over the run, of which the share `done` is done"""
    return start + (final - start) * min(done, 1.0)


# ---------------------------------------------------------------------------------------------- evaluation, checkpoints


@torch.no_grad()
def validate(agent, demos, numbers, device, minibatch_size):
    """Held-out battles: losses, and how often the expert's action is the likeliest, or among the three likeliest."""
    sums = {}

    def count(name, hits, among):
        good, total = sums.get(name, (0.0, 0.0))
        sums[name] = (good + float(hits[among].float().sum()), total + float(among.sum()))

    for part in batches_of(demos, numbers, minibatch_size, np.random.default_rng(0)):
        batch = make_batch(demos, part, device)
        hidden, candidates = agent.unroll(batch.ints, batch.floats, batch.batch_sizes)
        policy_loss, value_loss = cloning_losses(agent, hidden, candidates, batch)
        actions = batch.actions
        is_preview = batch.is_preview
        known = batch.known
        whole = known.all(1)
        count("losses/valid_policy_loss", policy_loss.expand(len(whole)), known.any(1))
        count("losses/valid_value_loss", value_loss.expand(len(whole)), ~batch.outcome.isnan())
        best = agent.joint_logprobs(hidden, candidates, is_preview, batch.joint_mask).topk(3).indices  # (N, 3)
        right = best[:, 0] == actions
        top3 = (best == actions[:, None]).any(1)
        for name, among in (("turn", whole & ~is_preview), ("preview", whole & is_preview)):
            count(f"charts/{name}_accuracy", right, among)
            count(f"charts/{name}_top3", top3, among)
        slot_0 = best[:, 0] // SLOT_ACTIONS
        slot_1 = best[:, 0] % SLOT_ACTIONS
        count("charts/slot_0_accuracy", slot_0 == actions // SLOT_ACTIONS, known[:, 0] & ~is_preview)
        count("charts/slot_1_accuracy", slot_1 == actions % SLOT_ACTIONS, known[:, 1] & ~is_preview)
        decided = (batch.outcome - 0.5).abs() > 0.25
        count("charts/win_accuracy", (agent.win_logit(hidden) > 0) == (batch.outcome > 0.5), decided)
    return {name: good / total for name, (good, total) in sums.items() if total}


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

    epoch: int = 0
    position: int = 0  # batches of this epoch that are done
    global_step: int = 0
    best_loss: float = math.inf  # on held-out battles
    best_score: float = -1.0  # the highest mean of an evaluation
    best_model: str = ""
    seconds: float = 0.0
    collect_seconds: float = 0.0


def check_args(args):
    require_format(args.battle_format)
    if args.width % ATTENTION_HEADS:
        raise BadInput(f"--width {args.width} is no multiple of the {ATTENTION_HEADS} attention heads.")
    if args.collect:
        unknown = sorted(set(args.collect_experts) - set(BASELINES))
        if unknown or not args.collect_experts:
            raise BadInput(f"--collect-experts {' '.join(unknown)}: choose from {', '.join(BASELINES)}.")
        try:
            team_mix(args.collect_teams, args.battle_format)
        except ValueError as error:
            raise BadInput(f"--collect-teams: {error}") from None
    if args.replays and not Path(args.replays).is_dir():
        raise BadInput(f"--replays {args.replays} is no folder: give one with .log, .txt, .html or .json files in it.")
    ray_actors.check_address(args.ray_address)


def find_sets(args, battle_format):
    """The folders to learn from: the run's own, the ones that were named, or all of the format."""
    own = [args.collect_set] * bool(args.collect) + [f"{args.collect_set}__replays"] * bool(args.replays)
    if own or args.data:
        return [*own, *args.data]
    everything = Path(args.data_dir) / f"vgc_{battle_format}"
    found = sorted(str(path.parent) for path in everything.glob("*/index.json"))
    if not found:
        raise BadInput(f"There are no demonstrations in {everything}: make some with --collect N or --replays DIR.")
    return found


def collect_demonstrations(args, battle_format, stopping):
    """Battles of scripted players and replays, as far as they are not there already"""
    try:
        if args.collect:
            show = CollectingView(args.collect)
            streams = functools.partial(ray_actors.ray_streams, args.ray_address) if args.ray_address else None
            try:
                collect(
                    args.collect_set,
                    battle_format=battle_format,
                    experts=args.collect_experts,
                    team_sources=args.collect_teams,
                    num_battles=args.collect,
                    seed=args.seed,
                    workers=args.num_workers,
                    progress=show,
                    stopping=stopping,
                    streams=streams,
                )
            finally:
                show.close()
        replay_set = Path(f"{args.collect_set}__replays")
        if args.replays and not stopping and not (replay_set / "index.json").exists():
            found = collect_replays(args.replays, replay_set, battle_format)
            known = f"{found.known:,} of {found.decisions:,} decisions known"
            print(
                f"{found.battles} replays read, {known}; {len(found.left_out)} left out",
                *found.left_out,
                sep="\n  ",
                flush=True,
            )
    except ValueError as error:
        raise RunFailed(str(error)) from None


def load_demonstrations(sets, battle_format):
    try:
        return demonstrations.Demonstrations(sets, battle_format)
    except ValueError as error:
        raise BadInput(str(error)) from None


def split_battles(demos, seed, valid_fraction):
    """→ streams to learn from, streams held out. By battle: what one player saw tells how the other's battle goes. The
    split is the same in every epoch."""
    held_out = np.random.default_rng(seed).random(demos.battles)[demos.streams["game"]] < valid_fraction
    train = np.flatnonzero(~held_out)
    valid = np.flatnonzero(held_out)
    if not len(train) or not len(valid):
        raise BadInput(f"{demos.battles} battles are too few to hold {valid_fraction:.0%} of them out: collect more.")
    return train, valid


def share_done(args, now, started, part=0.0):
    """The finished share of the training; collecting takes its time from --max-minutes, not from the schedule."""
    seconds = now.seconds + time.time() - started - now.collect_seconds
    limit = 60 * args.max_minutes - now.collect_seconds
    return max((now.epoch + part) / args.epochs, seconds / max(limit, 1e-8) if args.max_minutes else 0.0)


if __name__ == "__main__":
    start_time = time.time()
    args = parse_args(Args, {})
    check_args(args)
    battle_format = require_format(args.battle_format)
    network_hash = models.network_hash(script_source(__file__))
    checkpoint = load_checkpoint(args.resume, contract.contract_hash(), network_hash) if args.resume else None
    if (args.collect or args.replays) and not args.collect_set:
        name = f"{args.exp_name}__{args.seed}__{int(time.time())}"
        args.collect_set = str(Path(args.data_dir) / f"vgc_{battle_format}" / name)
    sets = find_sets(args, battle_format)
    demos = None if args.collect or args.replays else load_demonstrations(sets, battle_format)
    device, autocast, scaler = set_up(args)

    agent = make_agent(vars(args)).to(device)
    optimizer = torch.optim.AdamW(agent.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay, fused=True)
    now = Progress()
    if checkpoint:
        restore(checkpoint, agent=agent, optimizer=optimizer, scaler=scaler)
        now = Progress(**checkpoint["progress"])
    run_dir = make_run_folder(args, __file__)  # not before everything is known to fit

    def save_all():
        state = {
            "agent": agent.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "progress": dataclasses.asdict(now) | {"seconds": now.seconds + time.time() - start_time},
            "contract_hash": contract.contract_hash(),
            "network_hash": network_hash,
        }
        save_checkpoint(run_dir, state)
        save_model(run_dir / "last.zip", agent, args)

    opponents = dict(zip(BASELINES, BASELINES))
    play_all = functools.partial(ray_actors.run_all, args.ray_address) if args.ray_address else play_in_turn

    def evaluate_now(battles):
        """The models beside the results let a run be compared with its own past."""
        path = run_dir / "models" / f"{now.global_step}.zip"
        save_model(path, agent, args)
        metrics = evaluate(args, agent, battles, opponents, seed=now.global_step, play_all=play_all)
        score = float(np.mean([metrics[f"eval/{name}"] for name in BASELINES]))
        if score > now.best_score:
            now.best_score = score
            now.best_model = path.name
        keep_models(run_dir, args.keep_models, run_dir / "models" / now.best_model)
        return metrics

    def judge(done):
        """Held-out battles, now and then battles with the scripted players; keeps the best model → metrics"""
        metrics = validate(agent, demos=demos, numbers=valid, device=device, minibatch_size=args.minibatch_size)
        check_finite([torch.tensor(metrics["losses/valid_policy_loss"])])
        if metrics["losses/valid_policy_loss"] < now.best_loss:
            now.best_loss = metrics["losses/valid_policy_loss"]
            save_model(run_dir / "model.zip", agent, args)
        evaluation_due = args.eval_epochs and now.position == 0 and now.epoch % args.eval_epochs == 0
        if evaluation_due and args.eval_battles and done < 1.0:
            metrics |= evaluate_now(args.eval_battles)
        return metrics

    stopping = stop_on_signals("step")
    save_all()
    until_stopped(stopping, collect_demonstrations, args, battle_format, stopping)
    if stopping or not args.epochs:
        save_all()
        print(f"The demonstrations are in {', '.join(sets)}; go on with --resume {run_dir}", flush=True)
        raise SystemExit(0)
    demos = demos or until_stopped(stopping, load_demonstrations, sets, battle_format)
    if stopping:
        raise SystemExit(0)
    train, valid = split_battles(demos, args.seed, args.valid_fraction)
    shuffled_labels = ShuffledLabels(demos, train, args.seed) if args.shuffle_labels else None
    num_rows = int(demos.streams["length"][train].sum())
    print(f"{demos.battles:,} battles: {num_rows:,} decisions to learn from, {len(valid):,} streams held out")
    logger = Logger(args, run_dir, now.global_step, starting="Learning; the first figures come within ten seconds.")
    now.collect_seconds = now.collect_seconds or now.seconds + time.time() - start_time
    train_start = time.time()
    first_step = now.global_step
    losses = []
    log_time = time.time()

    try:
        while share_done(args, now, start_time) < 1.0 and not stopping:
            batches = batches_of(demos, train, args.minibatch_size, np.random.default_rng([args.seed, now.epoch]))
            while now.position < len(batches) and not stopping:
                done = share_done(args, now, start_time, now.position / len(batches))
                if done >= 1.0:
                    break
                rng = np.random.default_rng([args.seed, now.epoch, now.position]) if args.shuffle_teams else None
                batch = make_batch(
                    demos, numbers=batches[now.position], device=device, rng=rng, shuffled_labels=shuffled_labels
                )
                optimizer.param_groups[0]["lr"] = anneal(args.learning_rate, args.learning_rate_final, done)
                losses.append(
                    update_agent(agent, optimizer=optimizer, scaler=scaler, autocast=autocast, batch=batch, args=args)
                )
                now.global_step += len(batch.actions)
                now.position += 1
                if time.time() - log_time > 10:
                    metrics = {
                        "charts/SPS": (now.global_step - first_step) / (time.time() - train_start),
                        "charts/learning_rate": optimizer.param_groups[0]["lr"],
                        **loss_metrics(losses),
                    }
                    logger.write(metrics, now.global_step, done)
                    losses = []
                    log_time = time.time()
            before = dataclasses.replace(now)
            if now.position == len(batches):
                now.epoch += 1
                now.position = 0
            done = share_done(args, now, start_time)
            metrics = {"charts/epoch": now.epoch, **loss_metrics(losses)}
            metrics |= until_stopped(stopping, judge, done)
            if stopping:  # whoever resumes goes on here: with the rest of the epoch, or with judging it
                now = before
                break
            logger.write(metrics, now.global_step, done)
            losses = []
            log_time = time.time()
            save_all()
        if stopping:
            save_all()
        if not stopping and args.final_battles:
            best, _ = load_model(run_dir)
            seed = now.global_step + 1  # not the battles of an evaluation before
            metrics = until_stopped(
                stopping, evaluate, args, best, args.final_battles, opponents, seed=seed, play_all=play_all
            )
            logger.write(metrics | {"stats/collect_minutes": now.collect_seconds / 60}, now.global_step, 1.0)
    finally:
        logger.close()
        if (run_dir / "model.zip").exists():
            print(f"The best model is {run_dir}/model.zip, the last is last.zip.")
        say_how_to_go_on(run_dir)
