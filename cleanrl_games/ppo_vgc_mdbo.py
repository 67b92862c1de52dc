"""Self-play PPO on VGC doubles, from scratch or from a clone (bc_vgc_mdbo.py), with scripted opponents and past selves.

    python cleanrl_games/ppo_vgc_mdbo.py --num-workers 4 --bc-model runs/CLONE

    ┌ actor (process × num_workers, inline, or Ray) ┐   slot numbers   ┌ learner ─────────────────────────────────┐
    │ battles in a Node process of its own, batched │ ───────────────► │ one slot of each actor: GAE by seat, PPO │
    │ inference; who holds a seat holds it to the   │  2 shared-memory │ over chunks of sequences; league,        │
    │ battle's end                                  │  slots per actor │ evaluation, checkpoints                  │
    └───────────────────────▲───────────────────────┘                  └──────────────────┬───────────────────────┘
                            └── Board: weights by version, league snapshots, shares ◄─────┘

A slot holds decisions in the order in which they were closed: a decision is closed by the next one of its seat, or by the end.
"""

import dataclasses
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
from cleanrl_games.envs.vgc.choices import choices_of
from cleanrl_games.envs.vgc.evaluation import Player, evaluate  # noqa: F401 (tools play a model as its script's Player)
from cleanrl_games.envs.vgc.layers import NUM_IDS, PointingHeads, embed_ids, linear
from cleanrl_games.envs.vgc.match import BASELINES
from cleanrl_games.envs.vgc.seats import Seats, make_rows, make_storage
from cleanrl_games.envs.vgc.sequences import cut_chunks, evaluate_chunks, gather
from cleanrl_games.envs.vgc.vocabulary import LAYOUT, columns_of
from cleanrl_games.runtime import models, shared_memory
from cleanrl_games.runtime.checkpoints import load_checkpoint, restore
from cleanrl_games.runtime.device import set_up
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.files import make_run_folder, write_atomically
from cleanrl_games.runtime.logger import Logger
from cleanrl_games.runtime.metrics import loss_metrics, result_metrics, time_metrics
from cleanrl_games.runtime.settings import parse_args
from cleanrl_games.runtime.shared_memory import from_flat, invite, to_flat
from cleanrl_games.runtime.stopping import check_finite, progress, stop_on_signals


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
    reward_faint: float = 0.0
    """reward for each faint of the opponent's minus one's own, beside +1 for a win and -1 for a loss"""
    reward_hp: float = 0.0
    """reward for each full bar of HP that the opponent loses minus one's own"""

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
    max_policy_lag: int = 4
    """rollouts that are more updates behind than this are thrown away"""
    ray_address: str = ""
    """run the actors on this Ray cluster ("auto", "127.0.0.1:6379", …)"""

    # --- algorithm
    total_timesteps: int = 100_000_000
    """agent-steps to train for"""
    max_minutes: float = 0.0
    """stop after this many minutes, 0 = no limit"""
    bc_model: str = ""
    """a model.zip or run folder of bc_vgc_mdbo.py (or of this script) to start from"""
    freeze_shared: bool = False
    """train the heads only: what stands behind the LSTM"""
    value_warmup_updates: int = 4
    """with --bc-model: updates that train the value head only, since a clone's predicts the games of others"""
    learning_rate: float = 3e-4
    """Adam's step size"""
    learning_rate_final: float = 1e-4
    """its value at the end of the run (linear)"""
    gamma: float = 0.99
    """discount"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    rollouts_per_update: int = 0
    """rollouts that one update learns from, 0 = one of each actor"""
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

    # --- self-play (battles that are none of these are against oneself, and both sides learn)
    random_fraction: float = 0.05
    """share of battles against poke-env's RandomPlayer"""
    max_power_fraction: float = 0.1
    """share of battles against MaxBasePowerPlayer"""
    heuristics_fraction: float = 0.25
    """share of battles against SimpleHeuristicsPlayer"""
    past_fraction: float = 0.15
    """share of battles against past selves, once there are some"""
    snapshot_frequency: int = 40
    """updates between snapshots for the league, 0 = none"""
    league_size: int = 16
    """members of the league; beyond that the easiest leaves"""
    guests: int = 2
    """league members an actor fights at a time (one batched forward pass each)"""

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
    checkpoint_dir: str = "./checkpoints"
    """models of every checkpoint go to a folder of the run's name in here, for play, comparison and --bc-model"""
    keep_checkpoints: int = 5
    """the newest so many of them are kept, 0 = all"""


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


# The layers behind the LSTM; --freeze-shared trains nothing else.
HEADS = {
    "query", "given_slot_0", "target_key", "switch_key", "no_target", "passing", "tera_key", "preview_key", "preview_query", "value_out",
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- pure maths


def gae(key, rewards, values, next_values, ended, gamma, gae_lambda):
    """Advantages (N,) of rows in order of arrival; a seat (key) sees its own rows only, however others come in between.

    next_values are those of the seat's next row, even if that row is in no rollout yet; of a truncated battle's last row V(last
    observation), of a terminated one's 0.
    """
    order = np.argsort(key, kind="stable")
    deltas = rewards + gamma * next_values - values
    goes_on = np.append(key[order][1:] == key[order][:-1], False) & ~ended[order]
    advantages, last = np.empty_like(deltas), 0.0
    for row, followed in zip(order[::-1], goes_on[::-1]):
        last = deltas[row] + gamma * gae_lambda * followed * last
        advantages[row] = last
    return advantages


def logprob_and_entropy(logprobs, preview, actions):
    """logprobs (B, 2, 90) → of the decision taken: its log-prob (B,), and the entropy (B,): of the first choice plus of the second
    given the first, which is that of the joint policy in the mean over first choices"""
    logprob = logprobs.gather(2, choices_of(preview, actions)[..., None]).sum((1, 2))
    logprobs = logprobs.clamp(min=-80.0)  # nothing, but not 0 · (-inf), for illegal ones; of less exp takes ten times as long
    return logprob, -(logprobs.exp() * logprobs).sum((-1, -2))


def ppo_losses(logprob, old_logprob, advantages, win_logit, returns, clip_coef):
    """PPO's clipped loss, and the cross-entropy of the win prediction: a return in [-1, 1] is a chance of (return + 1) / 2."""
    logratio = logprob - old_logprob
    ratio = logratio.exp()
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip_coef, 1 + clip_coef)).mean()
    value_loss = F.binary_cross_entropy_with_logits(win_logit, ((returns + 1) / 2).clamp(0, 1))
    with torch.no_grad():
        stats = torch.stack([-logratio.mean(), (ratio - 1 - logratio).mean(), ((ratio - 1).abs() > clip_coef).float().mean()])
    return policy_loss, value_loss, stats


def anneal(start, final, update, updates):
    return start + (final - start) * min(update / max(updates, 1e-8), 1.0)


def league_probabilities(qualities):
    """Prioritised sampling as in OpenAI Five: softmax of the qualities."""
    exp = np.exp(np.asarray(qualities) - np.max(qualities))
    return (exp / exp.sum()).tolist()  # Python's numbers: checkpoints are read without unpickling


# --------------------------------------------------------------------------------------------------------------- actors

KINDS = ("self", "past", *BASELINES)  # who holds the other seat; the scripted ones in the order of the environment's codes, from 1
SELF, PAST = 0, 1


def scripted_shares(args):
    return {name: getattr(args, f"{name}_fraction") for name in BASELINES}


def make_env(args, index, episodes=None):
    # Sixteen shipped teams are soon known by heart; the generated ones keep held-out teams from being a shock.
    teams = team_mix(args.teams, args.battle_format)
    return VGCVecEnv(
        args.num_battles, args.num_sims, args.battle_format, teams, args.open_team_sheets,
        args.seed * 1000 + index, args.turn_cap, args.reward_faint, args.reward_hp,
        {name: share for name, share in scripted_shares(args).items() if share > 0}, episodes=episodes,
    )  # fmt: skip


def make_board(args, num_parameters):
    """numbers: version; league: serial numbers, probabilities"""
    return shared_memory.Board(args, num_parameters, 1, 2)


class Actor:
    """Plays battles and writes them down. Knows nothing of processes or Ray: the same class runs inline and anywhere else."""

    def __init__(self, args, index):
        seed = args.seed * 1000 + index
        self.args, self.index = args, index
        self.rng, self.generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        if args.num_workers:
            os.nice(args.actor_nice)
        self.env, self.resumed = make_env(args, index), None
        self.agent = make_agent(vars(args)).eval()
        self.members = {}  # serial number of a league member → its policy, copied when first needed
        self.seats = Seats(make_rows(args, 2 * args.num_battles), PAST + 1)

    def read_board(self, board):
        """Takes over weights and draws the league members to meet in this rollout → (version, guests)"""
        with board.lock:
            from_flat(self.agent, board.weights)
            version, (serials, probabilities) = int(board.numbers[0]), board.league.numpy().copy()
            guests = []
            if probabilities.sum() > 0:
                guests = np.unique(self.rng.choice(serials, self.args.guests, p=probabilities / probabilities.sum())).astype(int).tolist()
            invite(self, board, guests, self.seats.holder.tolist())
        return version, guests

    def choose_opponents(self, batch, rows, guests):
        """Only ever called for battles that start: who holds a seat holds it until the battle ends."""
        past_share = self.args.past_fraction / max(1.0 - sum(scripted_shares(self.args).values()), 1e-8)  # of those not scripted
        for battle, code in dict(zip(batch.battle[rows].tolist(), batch.opponent[rows].tolist())).items():
            past = not code and guests and self.rng.random() < past_share
            self.seats.begin(battle, PAST + code if code else PAST if past else SELF)
            if past:
                self.seats.holder[2 * battle + self.rng.integers(2)] = guests[self.rng.integers(len(guests))]

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
        return shared_memory.actor_state(self, {"episodes": self.env.episodes}) | {"seats": self.seats.state_dict()}

    def load_state_dict(self, state):
        arrays = shared_memory.load_actor_state(self, state)
        self.env.close()
        self.env = make_env(self.args, self.index, arrays["episodes"])
        self.resumed = self.seats.load_state_dict(state["seats"], self.env)


# ----------------------------------------------------------------------------------------------- evaluation, checkpoints


def save_model(path, agent, args):
    models.save_model(path, agent.state_dict(), {}, contract.metadata(args.battle_format), args, __file__)


def load_model(path):
    """A run's folder or a model.zip → (agent, metadata)"""
    return models.load_agent(path, contract.contract_hash(), make_agent)


class League:
    """Past selves. Members are rows of `board.snapshots`."""

    def __init__(self, args, board):
        self.args, self.board, self.members, self.next_serial = args, board, [], 1

    def join(self, name, flat):
        """A new member gets the highest quality; when the league is full, the easiest member leaves."""
        if len(self.members) == self.args.league_size:
            self.members.remove(min(self.members, key=lambda member: member["quality"]))
        row = self.board.keep(flat, self.members)
        quality = max([member["quality"] for member in self.members], default=0.0)
        self.members.append({"serial": self.next_serial, "row": row, "name": name, "quality": quality, "wins": 0.0, "games": 0})
        self.next_serial += 1

    def probabilities(self):
        return league_probabilities([member["quality"] for member in self.members]) if self.members else []

    def record(self, serial, score):
        """A beaten member is worth less, the more so the more rarely it is drawn: q -= 0.01 / (N p)."""
        for index, member in enumerate(self.members):
            if member["serial"] == serial:  # it may have left while the battle went on
                if score == 1.0:
                    member["quality"] -= 0.01 / (len(self.members) * max(self.probabilities()[index], 1e-8))
                member["games"], member["wins"] = member["games"] + 1, member["wins"] + score

    def publish(self, agent, version):
        """Hands weights, snapshots and sampling probabilities to the actors, all of one version."""
        columns = {member["row"]: (member["serial"], chance) for member, chance in zip(self.members, self.probabilities())}
        self.board.publish(agent, [version], columns)


def check_args(args):
    require_format(args.battle_format)
    if sum(scripted_shares(args).values()) + args.past_fraction > 1 + 1e-9:
        raise BadInput("The fractions of opponents sum to more than 1: what they leave is self-play, so lower some of them.")
    if args.buffer_size < 2 * args.num_battles:
        raise BadInput(f"--buffer-size {args.buffer_size} is less than one decision of each of the {2 * args.num_battles} seats.")


if __name__ == "__main__":
    args = parse_args(Args, {}, aliases={"lr": "learning_rate"})  # what users of similar trainers type
    check_args(args)
    checkpoint = load_checkpoint(args.resume, contract.contract_hash()) if args.resume else None
    run_dir = make_run_folder(args, __file__)
    device, autocast, scaler = set_up(args)

    agent = make_agent(vars(args)).to(device)
    if args.bc_model and not checkpoint:
        models.load_matching_weights(agent, args.bc_model, "--bc-model", contract.contract_hash(), contract.ACTION_SPACE)
    for name, parameter in agent.named_parameters():
        parameter.requires_grad_(not args.freeze_shared or name.split(".")[0] in HEADS)
    trained = [parameter for parameter in agent.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=args.learning_rate, eps=1e-5, fused=True)
    num_rollouts = args.rollouts_per_update or max(args.num_workers, 1)
    args.sharing = shared_memory.resolve_sharing(args, make_storage, len(to_flat(agent)))
    board = make_board(args, len(to_flat(agent)))
    league = League(args, board)
    update, global_step, version, elapsed = 0, 0, 0, 0.0
    actor = Actor(args, 0) if args.num_workers == 0 else None

    if checkpoint:
        restore(checkpoint, agent=agent, optimizer=optimizer, scaler=scaler, snapshots=board.snapshots)
        league.members, league.next_serial = checkpoint["league"]
        update, global_step, version, elapsed = checkpoint["progress"]
        torch.set_rng_state(checkpoint["torch_rng"])
        if actor and checkpoint["actor"]:
            actor.load_state_dict(checkpoint["actor"])

    def save_checkpoint():
        state = {
            "agent": agent.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(),
            "league": [league.members, league.next_serial], "snapshots": board.snapshots.clone(),
            "progress": [update, global_step, version, elapsed + time.time() - start_time], "contract_hash": contract.contract_hash(),
            "torch_rng": torch.get_rng_state(), "actor": actor.state_dict() if actor else None,
        }  # fmt: skip
        write_atomically(run_dir / "checkpoint.pt", lambda path: torch.save(state, path))
        save_model(run_dir / "model.zip", agent, args)
        folder = Path(args.checkpoint_dir) / run_dir.name
        save_model(folder / f"{global_step:012d}.zip", agent, args)
        if args.keep_checkpoints:
            for old in sorted(folder.glob("*.zip"))[: -args.keep_checkpoints]:
                old.unlink()

    def evaluate_all(battles):
        """The models beside the results let a run be compared with its own past."""
        save_model(run_dir / "models" / f"{global_step}.zip", agent, args)
        return evaluate(args, agent, battles) if battles else {}

    stopping = stop_on_signals()
    logger = Logger(args, run_dir, global_step)
    league.publish(agent, version)
    rollouts = actors.rollouts(args, board, Actor, make_storage, actor)
    start_time, first_step, consistent, done = time.time(), global_step, True, progress(args, global_step, elapsed)

    try:
        wait_start = time.perf_counter()
        for b, results, seconds, dropped, queue_size in gather(rollouts, board, num_rollouts, args, stopping):
            wait_time, learn_start = time.perf_counter() - wait_start, time.perf_counter()
            consistent, update = False, update + 1

            # --- advantages by seat, chunks of sequences
            by_row = (getattr(b, name).numpy() for name in ("key", "rewards", "values", "next_values", "ended"))
            b_advantages = torch.from_numpy(gae(*by_row, args.gamma, args.gae_lambda))
            b_returns = b_advantages + b.values
            order, starts, lengths = cut_chunks(b.key.numpy(), args.sequence_length)
            global_step += len(b.key)
            lag = (version - b.version).float()

            # --- PPO, until the policy has moved far enough
            lr = anneal(args.learning_rate, args.learning_rate_final, done, 1.0)
            optimizer.param_groups[0]["lr"] = lr
            warming_up, losses, passes = bool(args.bc_model) and update <= args.value_warmup_updates, [], 0
            for _ in range(args.update_epochs):
                kl_sum = 0.0
                for chunks in torch.randperm(len(starts)).tensor_split(min(args.num_minibatches, len(starts))):
                    with autocast():
                        mb_inds, logprobs, hidden = evaluate_chunks(agent, b, order, starts[chunks], lengths[chunks], device)
                        win_logit = agent.win_logit(hidden.detach() if warming_up else hidden)
                    logprob, entropy = logprob_and_entropy(logprobs, b.first[mb_inds].to(device), b.actions[mb_inds].to(device))
                    mb_advantages = b_advantages[mb_inds].to(device)
                    if args.norm_adv:
                        mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std(unbiased=False) + 1e-8)
                    old_logprob, mb_returns = b.logprobs[mb_inds].to(device), b_returns[mb_inds].to(device)
                    policy_loss, value_loss, stats = ppo_losses(logprob, old_logprob, mb_advantages, win_logit, mb_returns, args.clip_coef)
                    loss = args.vf_coef * value_loss
                    if not warming_up:
                        loss = loss + policy_loss - args.ent_coef * entropy.mean()
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    grad_norm = nn.utils.clip_grad_norm_(trained, args.max_grad_norm)
                    scaler.step(optimizer)
                    scaler.update()
                    losses.append(torch.stack([policy_loss, value_loss, entropy.mean(), grad_norm, *stats]).detach())
                    kl_sum += float(stats[1]) * len(mb_inds)
                passes += 1
                if args.target_kl and kl_sum / len(b.key) > args.target_kl:
                    break
            check_finite(losses)
            version += 1

            # --- the league: results of the battles that ended, a snapshot now and then
            for _, serial, score, _ in results.tolist():
                league.record(serial, score)  # serial 0 is nobody's
            if args.snapshot_frequency and update % args.snapshot_frequency == 0:
                league.join(f"snapshot_{global_step}", to_flat(agent))
            league.publish(agent, version)
            consistent, learn_time = True, time.perf_counter() - learn_start

            # --- logs, evaluation, checkpoint
            done = progress(args, global_step, elapsed + time.time() - start_time)
            metrics = {
                "charts/SPS": (global_step - first_step) / (time.time() - start_time),
                "charts/learning_rate": lr,
                **loss_metrics("policy_loss value_loss entropy grad_norm old_approx_kl approx_kl clipfrac", losses),
                "losses/explained_variance": 1 - float((b_returns - b.values).var() / b_returns.var().clamp(min=1e-8)),
                "losses/passes": passes,
                **time_metrics(lag, queue_size, seconds, learn_time, wait_time),
                "stats/dropped_rollouts": dropped,
                **result_metrics(results, KINDS),
                "league/size": len(league.members),
            }
            if len(scores := results[results[:, 0] != SELF, 2]):
                metrics["charts/episodic_return"] = float(2 * scores.mean() - 1)
            finished = done >= 1.0
            if finished or (args.eval_frequency and update % args.eval_frequency == 0):
                metrics |= evaluate_all(args.final_battles if finished else args.eval_battles)
            logger.write(metrics, global_step, done)
            if finished or stopping:
                break
            if update % args.checkpoint_frequency == 0:
                save_checkpoint()
            wait_start = time.perf_counter()
    finally:
        rollouts.close()
        logger.close()
        if consistent:  # not in the middle of an update, whose half would be neither the old nor the new policy
            save_checkpoint()
        print(f"Checkpoint and model are in {run_dir}; go on with --resume {run_dir}", flush=True)
