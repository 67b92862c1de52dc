"""Behaviour cloning on VGC doubles: whole battles as sequences, from scripted players or Showdown replays.

    python cleanrl_games/bc_vgc_mdbo.py --collect 12000

    scripted players on all cores ─┐   expert_data/vgc_<format>/<set>/      ┌ learner ────────────────────────────────┐
                                   ├─► shards of decisions, mapped into ──► │ batches of whole battles, LSTM unrolled │
    folder of replays ─────────────┘   memory, checked, split by battle     │ cross-entropy and win prediction        │
                                                                            └──► held-out battles: accuracy           │
                                                                                 held-out teams: win rates, model.zip ┘

The model.zip is what `ppo_vgc_mdbo.py --bc-model` starts from.
"""

import dataclasses
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

from cleanrl_games.envs.vgc import PREVIEW, contract, demonstrations, mdbo, require_format
from cleanrl_games.envs.vgc.choices import NUM_PREVIEW, NUM_SLOT, choices_of
from cleanrl_games.envs.vgc.collect import CollectingView, collect
from cleanrl_games.envs.vgc.evaluation import Player, evaluate  # noqa: F401 (tools play a model as its script's Player)
from cleanrl_games.envs.vgc.layers import NUM_IDS, PointingHeads, embed_ids, linear
from cleanrl_games.envs.vgc.replay_actions import collect_replays
from cleanrl_games.envs.vgc.vocabulary import LAYOUT, columns_of
from cleanrl_games.runtime import models
from cleanrl_games.runtime.checkpoints import load_checkpoint, restore
from cleanrl_games.runtime.device import set_up
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.files import make_run_folder, write_atomically
from cleanrl_games.runtime.logger import Logger
from cleanrl_games.runtime.metrics import loss_metrics
from cleanrl_games.runtime.settings import parse_args
from cleanrl_games.runtime.stopping import check_finite, stop_on_signals


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

    # --- environment
    env_id: str = "vgc"
    """name of the game in the run's folder"""
    battle_format: str = "gen9vgc2023regulationc"
    """the VGC format; old spellings are understood"""

    # --- demonstrations
    data: tuple[str, ...] = ()
    """sets of demonstrations to learn from, beside the ones this run makes; empty and none made = all there are of the format"""
    data_dir: str = "expert_data"
    """where sets of demonstrations are kept"""
    collect: int = 0
    """battles that scripted players play for this run"""
    collect_experts: tuple[str, ...] = ("heuristics",)
    """who plays them, every pairing equally often: heuristics, max_power, random"""
    collect_teams: tuple[str, ...] = ("shipped", "generated")
    """training teams, each source equally often: shipped, generated, or folders of PokePaste files"""
    collect_set: str = ""
    """folder of the set this run makes (replays go to {it}__replays); empty = {data_dir}/vgc_{format}/{exp_name}__{seed}__{time}"""
    replays: str = ""
    """a folder of Showdown replays (.log, .html, .json) to learn from"""
    num_workers: int = os.cpu_count() or 1
    """actor processes; 0 = inline in the learner's process, deterministic"""

    # --- algorithm
    epochs: int = 30
    """passes over the demonstrations; 0 = only collect"""
    max_minutes: float = 0.0
    """stop after this many minutes, 0 = no limit"""
    learning_rate: float = 1e-3
    """Adam's step size"""
    learning_rate_final: float = 0.0
    """its value at the end of the run (linear)"""
    minibatch_size: int = 1024
    """agent-steps per gradient step"""
    weight_decay: float = 0.01
    """AdamW's"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 1.0
    """gradient clip"""
    shuffle_teams: bool = True
    """show the Pokémon of a team preview, and the opponent's, in random order"""
    valid_fraction: float = 0.05
    """share of the battles kept for validation"""
    width: int = 64
    """width of a Pokémon's token"""
    embedding_width: int = 128
    """width of an id's embedding"""
    lstm_size: int = 192
    """units of the LSTM"""
    attention_heads: int = 4
    """attention heads over the twelve Pokémon"""

    # --- evaluation and checkpoints
    eval_epochs: int = 5
    """epochs between evaluations against the scripted players; 0 = only at the end"""
    eval_battles: int = 100
    """battles per evaluation and scripted player"""
    final_battles: int = 400
    """battles per scripted player at the end"""
    deterministic: bool = True
    """evaluations play the likeliest action instead of sampling"""


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


# ------------------------------------------------------------------------------------------------------------- sequences


def shuffle_teams(rows, stream_of_row, num_streams, rng):
    """Permutes, in place, the own six at team preview with its label, and the opponent's six through the whole battle.

    In a turn the order of the own ones is part of the question (slot a, slot b, who may come in), so it stays."""
    order = rng.permuted(np.tile(np.arange(6), (num_streams, 1)), axis=1)[stream_of_row]  # (N, 6): old place of each new row
    for name, kind in (("opp", "ints"), ("opp", "floats"), ("belief", "floats")):
        view = columns_of(rows[kind], name, kind)
        view[:] = np.take_along_axis(view, order[:, :, None], 1)
    place = np.argsort(order, 1)  # new place of each old row
    standing = columns_of(rows["ints"], "active", "ints")[:, 2:, LAYOUT["active"].ints.index("row")]  # 1–6, 0 nobody
    standing[:] = np.where(standing > 0, np.take_along_axis(place, np.maximum(standing - 1, 0), 1) + 1, 0)

    preview = np.flatnonzero(rows["kind"] == PREVIEW)
    preview = preview[rows["slots"][preview].all((1, 2))]  # a team of fewer than six stays: its missing rows are no Pokémon
    order = rng.permuted(np.tile(np.arange(6), (len(preview), 1)), axis=1)
    for kind in ("ints", "floats"):
        part = rows[kind][preview]
        view = columns_of(part, "own", kind)
        view[:] = np.take_along_axis(view, order[:, :, None], 1)
        rows[kind][preview] = part
    place = np.argsort(order, 1)
    lineup = np.take_along_axis(place, mdbo.PREVIEWS[rows["action"][preview]], 1).reshape(-1, 2, 2)
    rows["action"][preview] = LINEUP_NUMBER[tuple(np.sort(lineup, 2).reshape(-1, 4).T)]


LINEUP_NUMBER = np.full((6, 6, 6, 6), -1, np.int16)
LINEUP_NUMBER[tuple(mdbo.PREVIEWS.T)] = np.arange(len(mdbo.PREVIEWS))


def make_batch(demos, numbers, device, rng=None):
    """Streams, longest first → what the network takes. Rows are flat, in the order of streams; `at` is their place in (T, B)."""
    numbers = numbers[np.argsort(-demos.streams["length"][numbers], kind="stable")]
    lengths, rows = demos.streams["length"][numbers], demos.rows(numbers)
    stream = np.repeat(np.arange(len(numbers)), lengths)
    if rng is not None:
        shuffle_teams(rows, stream, len(numbers), rng)
    time_step = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    action, preview = rows["action"].astype(np.int64), rows["kind"] == PREVIEW
    joint = demonstrations.joint_mask(rows)
    table, legal = joint.reshape(-1, NUM_SLOT, NUM_SLOT), np.zeros((len(rows), 2, NUM_PREVIEW), bool)
    legal[:, 0, :NUM_SLOT] = table.any(2)
    legal[:, 1, :NUM_SLOT] = table[np.arange(len(rows)), np.where(preview, 0, action // NUM_SLOT)]
    legal[preview, 0], legal[preview, 1] = joint[preview, :NUM_PREVIEW], np.arange(NUM_PREVIEW) == 0
    arrays = {
        "ints": np.ascontiguousarray(rows["ints"]), "floats": rows["floats"].astype(np.float32), "preview": preview, "legal": legal, "joint": joint,
        "actions": action, "known": (rows["known"][:, None] & np.array([demonstrations.FIRST, demonstrations.SECOND], np.uint8)) > 0,
        "outcome": demos.streams["outcome"][numbers][stream], "at": time_step * len(numbers) + stream,
    }  # fmt: skip
    return int(lengths.max()), len(numbers), {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def forward(agent, length, width, batch):
    """→ hidden (N, H) after each decision of each stream, and what the heads point at"""
    core, things = agent.encode(batch["ints"], batch["floats"])
    padded = core.new_zeros(length * width, core.shape[1]).index_copy(0, batch["at"], core).view(length, width, -1)
    state, first = core.new_zeros(2, width, core.shape[1]), torch.zeros(length, width, dtype=torch.bool, device=core.device)
    hidden, _ = agent.unroll(padded, state, first)
    return hidden.flatten(0, 1)[batch["at"]], things


def cloning_losses(agent, hidden, things, batch):
    """→ cross-entropy of both choices, where they are known, and of the win prediction, where the outcome is"""
    logprobs = agent.logprobs(hidden, things, batch["preview"], batch["legal"], batch["actions"])  # (N, 2, 90)
    taken = logprobs.gather(2, choices_of(batch["preview"], batch["actions"])[:, :, None]).squeeze(2)  # (N, 2)
    # Not a product: what is not known may be illegal, and finfo.min · 0 is fine but finfo.min · 0.5 is not.
    policy_loss = -torch.where(batch["known"], taken, 0.0).sum() / batch["known"].any(1).sum().clamp(min=1)
    decided = ~batch["outcome"].isnan()
    losses = F.binary_cross_entropy_with_logits(agent.win_logit(hidden), batch["outcome"].nan_to_num(0.5), reduction="none")
    return policy_loss, torch.where(decided, losses, 0.0).sum() / decided.sum().clamp(min=1)


def batches_of(demos, numbers, rows, rng):
    """Streams of like length together, about `rows` decisions a batch: little is padding, and the order is random."""
    numbers = numbers[np.argsort(demos.streams["length"][numbers] + rng.random(len(numbers)), kind="stable")]
    ends = np.cumsum(demos.streams["length"][numbers])
    parts = np.split(numbers, np.searchsorted(ends, np.arange(rows, ends[-1], rows)))
    parts = [part for part in parts if len(part)]
    return [parts[i] for i in rng.permutation(len(parts))]


# ----------------------------------------------------------------------------------------------- evaluation, checkpoints


@torch.no_grad()
def validate(agent, demos, numbers, device, minibatch_size):
    """Held-out battles: losses, and how often the expert's action is the likeliest, or among the three likeliest."""
    sums = {}

    def count(name, hits, among):
        good, total = sums.get(name, (0.0, 0.0))
        sums[name] = (good + float(hits[among].float().sum()), total + float(among.sum()))

    for part in batches_of(demos, numbers, minibatch_size, np.random.default_rng(0)):
        length, width, batch = make_batch(demos, part, device)
        hidden, things = forward(agent, length, width, batch)
        policy_loss, value_loss = cloning_losses(agent, hidden, things, batch)
        actions, preview, known = batch["actions"], batch["preview"], batch["known"]
        whole = known.all(1)
        count("losses/valid_policy_loss", policy_loss.expand(len(whole)), known.any(1))
        count("losses/valid_value_loss", value_loss.expand(len(whole)), ~batch["outcome"].isnan())
        best = agent.joint_logprobs(hidden, things, preview, batch["joint"]).topk(3).indices  # (N, 3)
        right, top3 = best[:, 0] == actions, (best == actions[:, None]).any(1)
        for name, among in (("turn", whole & ~preview), ("preview", whole & preview)):
            count(f"charts/{name}_accuracy", right, among)
            count(f"charts/{name}_top3", top3, among)
        count("charts/slot_0_accuracy", best[:, 0] // NUM_SLOT == actions // NUM_SLOT, known[:, 0] & ~preview)
        count("charts/slot_1_accuracy", best[:, 0] % NUM_SLOT == actions % NUM_SLOT, known[:, 1] & ~preview)
        decided = (batch["outcome"] - 0.5).abs() > 0.25
        count("charts/win_accuracy", (agent.win_logit(hidden) > 0) == (batch["outcome"] > 0.5), decided)
    return {name: good / total for name, (good, total) in sums.items() if total}


def save_model(path, agent, args):
    models.save_model(path, agent.state_dict(), {}, contract.metadata(args.battle_format), args, __file__)


def load_model(path):
    """A run's folder or a model.zip → (agent, metadata)"""
    return models.load_agent(path, contract.contract_hash(), make_agent)


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


if __name__ == "__main__":
    start_time = time.time()
    args = parse_args(Args, {})
    checkpoint = load_checkpoint(args.resume, contract.contract_hash()) if args.resume else None
    normal_format = require_format(args.battle_format)
    if (args.collect or args.replays) and not args.collect_set:
        args.collect_set = str(Path(args.data_dir) / f"vgc_{normal_format}" / f"{args.exp_name}__{args.seed}__{int(time.time())}")
    sets = find_sets(args, normal_format)
    run_dir = make_run_folder(args, __file__)
    device, autocast, scaler = set_up(args)

    agent = make_agent(vars(args)).to(device)
    optimizer = torch.optim.AdamW(agent.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay, fused=True)
    epoch, position, global_step, best, elapsed, collect_time = 0, 0, 0, math.inf, 0.0, 0.0
    if checkpoint:
        restore(checkpoint, agent=agent, optimizer=optimizer, scaler=scaler)
        epoch, position, global_step, best, elapsed, collect_time = checkpoint["progress"]

    def save_checkpoint():
        state = {
            "agent": agent.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(),
            "progress": [epoch, position, global_step, best, elapsed + time.time() - start_time, collect_time],
            "contract_hash": contract.contract_hash(),
        }  # fmt: skip
        write_atomically(run_dir / "checkpoint.pt", lambda path: torch.save(state, path))
        save_model(run_dir / "last.zip", agent, args)

    def progress(part=0.0):
        """The finished share of the training; collecting takes its time from --max-minutes, not from the schedule."""
        seconds, limit = elapsed + time.time() - start_time - collect_time, 60 * args.max_minutes - collect_time
        return max((epoch + part) / args.epochs, seconds / max(limit, 1e-8) if args.max_minutes else 0.0)

    stopping = stop_on_signals("step")
    save_checkpoint()
    if args.collect:
        show = CollectingView(args.collect)
        try:
            collect(
                args.collect_set, normal_format, args.collect_experts, args.collect_teams, args.collect, args.seed, args.num_workers,
                show, stopping,
            )  # fmt: skip
        except ValueError as error:
            raise BadInput(str(error)) from None
        finally:
            show.close()
    if args.replays and not stopping and not (Path(sets[args.collect > 0]) / "index.json").exists():
        try:
            read, left_out = collect_replays(args.replays, sets[args.collect > 0], normal_format)
        except ValueError as error:
            raise BadInput(str(error)) from None
        print(f"{read} replays read, {len(left_out)} left out", *left_out, sep="\n  ", flush=True)
    if stopping or not args.epochs:
        save_checkpoint()
        print(f"The demonstrations are in {', '.join(sets)}; go on with --resume {run_dir}", flush=True)
        raise SystemExit(0)

    try:
        demos = demonstrations.Demonstrations(sets, normal_format)
    except ValueError as error:
        raise BadInput(str(error)) from None
    # Split by battle, not by stream: what one player saw tells how the other's battle goes. The split is the same in every epoch.
    held_out = np.random.default_rng(args.seed).random(demos.battles)[demos.streams["game"]] < args.valid_fraction
    train, valid = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    if not len(train) or not len(valid):
        raise BadInput(f"{demos.battles} battles are too few to keep {args.valid_fraction:.0%} for validation: collect more.")
    rows_of_epoch = int(demos.streams["length"][train].sum())
    print(f"{demos.battles:,} battles: {rows_of_epoch:,} decisions to learn from, {len(valid):,} streams held out", flush=True)
    logger = Logger(args, run_dir, global_step)
    collect_time = collect_time or elapsed + time.time() - start_time
    train_start, first_step, losses, log_time = time.time(), global_step, [], time.time()
    loss_names = "policy_loss value_loss grad_norm"

    try:
        while progress() < 1.0 and not stopping:
            batches = batches_of(demos, train, args.minibatch_size, np.random.default_rng([args.seed, epoch]))
            while position < len(batches) and progress(position / len(batches)) < 1.0 and not stopping:
                rng = np.random.default_rng([args.seed, epoch, position]) if args.shuffle_teams else None
                length, width, batch = make_batch(demos, batches[position], device, rng)
                lr = args.learning_rate + (args.learning_rate_final - args.learning_rate) * min(progress(position / len(batches)), 1.0)
                optimizer.param_groups[0]["lr"] = lr
                with autocast():
                    policy_loss, value_loss = cloning_losses(agent, *forward(agent, length, width, batch), batch)
                    loss = policy_loss + args.vf_coef * value_loss
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                scaler.step(optimizer)
                scaler.update()
                losses.append(torch.stack([policy_loss, value_loss, grad_norm]).detach())
                global_step, position = global_step + len(batch["actions"]), position + 1
                if time.time() - log_time > 10:
                    metrics = {"charts/SPS": (global_step - first_step) / (time.time() - train_start), "charts/learning_rate": lr}
                    logger.write(metrics | loss_metrics(loss_names, losses), global_step, progress(position / len(batches)))
                    losses, log_time = [], time.time()
            epoch, position = (epoch + 1, 0) if position == len(batches) else (epoch, position)
            metrics = {"charts/epoch": epoch} | loss_metrics(loss_names, losses)
            metrics |= validate(agent, demos, valid, device, args.minibatch_size)
            check_finite([torch.tensor(metrics["losses/valid_policy_loss"])])
            if metrics["losses/valid_policy_loss"] < best:
                best = metrics["losses/valid_policy_loss"]
                save_model(run_dir / "model.zip", agent, args)
            if args.eval_epochs and position == 0 and epoch % args.eval_epochs == 0 and progress() < 1.0:
                metrics |= evaluate(args, agent, args.eval_battles)
            logger.write(metrics, global_step, progress())
            losses, log_time = [], time.time()
            save_checkpoint()
        if not stopping and args.final_battles:
            metrics = evaluate(args, load_model(run_dir)[0], args.final_battles)
            logger.write(metrics | {"stats/collect_minutes": collect_time / 60}, global_step, 1.0)
    finally:
        logger.close()
        print(f"The best model is in {run_dir}/model.zip, the last one in last.zip; go on with --resume {run_dir}", flush=True)
