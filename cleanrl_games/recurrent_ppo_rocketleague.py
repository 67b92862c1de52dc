"""Recurrent PPO with self-play on Rocket League (RocketSim's physics): from the first touch of the ball to 3v3.

    python cleanrl_games/recurrent_ppo_rocketleague.py --num-workers 1

    ┌ actor (process × num_workers, inline, or Ray) ┐   slot numbers   ┌ learner ──────────────────────────────┐
    │ arenas in RocketSim, batched inference, one   │ ───────────────► │ GAE, PPO over chunks of L steps, each │
    │ memory per car, emptied when a game ends      │  2 shared-memory │ unrolled from its stored state        │
    └───────────────────────▲───────────────────────┘  slots per actor │ curriculum, league, rating matches    │
                            └── Board: weights by version, stage and   └──────────────────┬────────────────────┘
                                rewards, league snapshots and their chances ◄─────────────┘

An actor plays the same number of cars in every stage, so that 1v1, 2v2 and 3v3 fill the same buffers.
"""

import dataclasses
import json
import math
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn as nn

from cleanrl_games.envs import actors
from cleanrl_games.envs.normalise import RewardScale, RunningMeanStd
from cleanrl_games.envs.recurrence import LSTMUnroll, gru_unroll
from cleanrl_games.envs.rocketleague import NUM_ACTIONS, NUM_OBS, TERM_NAMES, RocketLeagueVecEnv, contract, reward_weights
from cleanrl_games.envs.rocketleague.evaluation import Player, rating_match, touch_metrics  # noqa: F401 (tools play a model as its script's Player)
from cleanrl_games.envs.rocketleague.ratings import PINNED, expected_score, new_rating
from cleanrl_games.envs.rocketleague.scripted import PLAYERS, ScriptedPlayer
from cleanrl_games.envs.rocketleague.states import check_team_sizes
from cleanrl_games.runtime import central_inference, models, shared_memory
from cleanrl_games.runtime.checkpoints import load_checkpoint, restore, say_how_to_go_on
from cleanrl_games.runtime.device import maybe_compile, set_up, to_device
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.files import make_run_folder, write_atomically
from cleanrl_games.runtime.logger import Logger
from cleanrl_games.runtime.metrics import loss_metrics, result_metrics, score_metrics, time_metrics, wilson
from cleanrl_games.runtime.settings import Count, Size, parse_args
from cleanrl_games.runtime.shared_memory import copy_with_weights, from_flat, to_flat
from cleanrl_games.runtime.stopping import check_finite, progress, stop_on_signals

# Named sets of values; a flag or a config file overrides them. `fast`, the default, is what the defaults below say: it learns on
# two CPU cores. `field` is what public bots are trained with on a GPU: a wider network, large batches, small steps.
PRESETS = {
    "fast": {},
    "field": {
        "rnn_size": 512, "num_agents": 384, "rollout_steps": 256, "minibatch_size": 49_152, "update_epochs": 2, "learning_rate": 2e-4,
        "learning_rate_final": 8e-5,
    },
    "aerial": {"aerial_focus": 0.4},
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of the curriculum. Arena i plays with team_sizes[i % len] cars per team."""

    name: str
    team_sizes: tuple[int, ...]
    states: dict[str, float]  # how games begin, with weights
    seconds: float  # a game longer than this is truncated …
    idle_seconds: float  # … and one in which nobody touches the ball for so long
    events: float  # scale of what happens in a match: goals, shots, saves, demolitions
    dense: float  # scale of all other rewards
    zero_sum: bool
    team_spirit: float
    opponents: bool  # whether past selves and scripted players are met at all
    terms: dict[str, float]  # the reward components that count, with factors; empty = all
    measure: Literal["touch", "goal", "win"]  # the share of cars that touch, of games with a goal, of rating matches won against `rule`


# Boost and the like would be paid before the ball is ever hit; the way to the ball and a mere touch are paid more than later.
DRIVING = {"touch": 3.0, "touch_strength": 1.0, "touch_height": 1.0, "speed_to_ball": 3.0, "face_ball": 3.0}
STAGES = (
    Stage("touch", (1,), {"near_ball": 2, "random": 1, "kickoff": 1}, 20, 10, 0.0, 1.0, False, 0.0, False, DRIVING, "touch"),
    Stage("score", (1,), {"goal_approach": 2, "near_ball": 1, "random": 1, "kickoff": 1}, 60, 15, 1.0, 1.0, True, 0.0, False, {}, "goal"),
    Stage("1v1", (1,), {"kickoff": 3, "random": 1, "goal_approach": 1, "near_ball": 1}, 120, 20, 1.0, 0.5, True, 0.0, True, {}, "win"),
    Stage("2v2", (1, 2), {"kickoff": 3, "random": 1, "goal_approach": 1, "near_ball": 1}, 180, 20, 1.0, 0.3, True, 0.3, True, {}, "win"),
    Stage("3v3", (1, 2, 3), {"kickoff": 3, "random": 1, "goal_approach": 1, "near_ball": 1}, 300, 30, 1.0, 0.2, True, 0.6, True, {}, "win"),
)
STAGE_NAMES = tuple(stage.name for stage in STAGES)
EVENTS = np.isin(TERM_NAMES, ("goal", "concede", "scorer", "shot", "save", "demo", "demoed"))


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
    sharing: Literal["auto", "shared_memory", "file_system"] = "auto"
    """where rollouts and weights are shared: /dev/shm, or unnamed files in the temporary folder (auto = when /dev/shm is too small)"""

    # --- environment
    env_id: str = "rocketleague"
    """name of the game in the run's folder"""
    mesh_dir: str = ""
    """folder of the arena's collision meshes; empty = $RS_COLLISION_MESHES, else fetched once"""
    generated_meshes: bool = False
    """play in an arena made from its measures (corners and ramps are approximate)"""
    action_repeat: int = 8
    """physics ticks (of 1/120 s) that an action is held"""
    reward_mode: Literal["sparse", "dense", "hybrid"] = "hybrid"
    """preset of reward weights"""
    reward_weights: tuple[str, ...] = ()
    """weights that override the preset, as in touch=0.5"""
    state_file: str = ""
    """situations to begin a third of the games from, as save_states writes them"""

    # --- curriculum
    stage: Literal["touch", "score", "1v1", "2v2", "3v3"] = "touch"
    """where the curriculum begins"""
    final_stage: Literal["touch", "score", "1v1", "2v2", "3v3"] = "3v3"
    """where it stays"""
    transition_win_rate: float = 0.6
    """the next stage begins when the lower bound of this stage's measure passes this (95 %, Wilson)"""
    transition_games: int = 100
    """over the last so many games, and not with fewer"""
    transition_elo: float = 0.0
    """or, with as many rating matches, when the agent's Elo passes this; 0 = never"""
    dense_anneal_updates: int = 200
    """updates over which the rewards change from the last stage's to this one's"""
    aerial_focus: float = 0.0
    """share of games that begin with a ball in the air; touches above the ground are then paid as well"""

    # --- actors
    num_workers: int = 1
    """actor processes; 0 = inline in the learner's process, deterministic"""
    num_agents: int = 192
    """cars per actor, a multiple of 12; the stage's team sizes decide how many arenas that is"""
    rollout_steps: int = 64
    """decisions per rollout, a multiple of sequence_length"""
    inference: Literal["auto", "worker", "central"] = "auto"
    """who computes the actors' policy: each for itself, or one process on the learner's device for all; auto = central on CUDA only"""
    ray_address: str = ""
    """run the actors on this Ray cluster ("auto", "127.0.0.1:6379", …)"""

    # --- algorithm
    total_timesteps: int = 100_000_000
    """agent-steps to train for"""
    max_minutes: float = 0.0
    """stop after this many minutes, 0 = no limit"""
    learning_rate: float = 7e-4
    """Adam's step size"""
    learning_rate_final: float = 2e-4
    """its value at the end of the run (linear)"""
    gamma: float = 0.99
    """discount"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    minibatch_size: int = 1536
    """agent-steps per gradient step"""
    update_epochs: int = 1
    """passes over a rollout"""
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
    reward_clip: float = 10.0
    """clip of rewards after division by the std of discounted returns"""
    recurrent: Literal["lstm", "gru", "none"] = "lstm"
    """the policy's memory; none = an MLP of as many layers"""
    rnn_size: int = 256
    """width of the encoder and of the memory"""
    sequence_length: int = 16
    """steps through which gradients flow back (truncated BPTT); the state before each chunk is stored"""

    # --- self-play
    self_share: float = 0.8
    """share of games against the current self in stages with opponents"""
    opponent_sampler: Literal["uniform", "elo_weighted", "recent_weighted", "difficulty_adjusted"] = "difficulty_adjusted"
    """how the other opponents are drawn: past selves and the scripted players"""
    opponent_update_freq: int = 200
    """updates between snapshots of the agent for the league, 0 = none"""
    sampler_temperature: float = 0.5
    """the higher, the more even the chances of the opponents"""
    target_win_rate: float = 0.5
    """difficulty_adjusted prefers opponents against whom this is expected"""
    elo_window: float = 200.0
    """elo_weighted: a distance in Elo that counts as one unit"""
    min_elo_diff: float = 300.0
    """past selves that are so much weaker than the agent leave the league; scripted players never do"""
    league_size: int = 32
    """members of the league; beyond that the easiest leaves"""
    guests: int = 3
    """league members an actor fights at a time (one batched forward pass each)"""

    # --- evaluation and checkpoints
    eval_frequency: int = 200
    """updates between evaluations against the scripted players, each with a model in the run's folder; 0 = only at the end"""
    eval_episodes: int = 40
    """fights per evaluation and opponent"""
    eval_seconds: float = 60.0
    """a rating match without a goal ends as a tie after so long"""
    rating_opponents: int = 2
    """past selves to play rating matches with, drawn as opponents are, at each evaluation"""
    checkpoint_frequency: int = 100
    """updates between checkpoints"""
    capture_video: bool = False
    """a GIF of a fight with each evaluation"""


# ------------------------------------------------------------------------------------------------------------- networks


def linear(fan_in, fan_out, std=2**0.5):
    layer = nn.Linear(fan_in, fan_out)
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Encoder, memory, and two heads on their sum: what needs no memory has a short way to the heads. Observations are scaled by the shim."""

    def __init__(self, recurrent, size):
        super().__init__()
        self.recurrent, self.size = recurrent, size
        self.state_size = {"lstm": 2, "gru": 1, "none": 0}[recurrent] * size
        self.encoder = linear(NUM_OBS, size)
        gates = {"lstm": 4, "gru": 3, "none": 1}[recurrent]
        self.inputs = linear(size, gates * size, math.sqrt(2) if recurrent == "none" else 1.0)
        if recurrent != "none":
            self.memory = nn.Parameter(torch.cat([linear(size, size, 1.0).weight.data for _ in range(gates)]))
        if recurrent == "lstm":
            nn.init.ones_(self.inputs.bias.data[size : 2 * size])  # remembers until it has learned to forget
        self.policy, self.critic = linear(size, NUM_ACTIONS, 0.01), linear(size, 1, 1.0)
        # On the ground 18 of 42 actions jump: a car that draws evenly is in the air nine tenths of the time and learns little about driving.
        self.policy.bias.data -= 2.5 * torch.from_numpy(contract.ACTION_TABLE[:, contract.CONTROL_NAMES.index("jump")])

    def unroll(self, obs, state, keep):
        """obs (L, B, 201), state before the first step (B, S), keep (L, B, 1): 0 where a new game begins → features (L, B, H), state"""
        encoded = torch.relu(self.encoder(obs))
        gates = self.inputs(encoded)
        if self.recurrent == "none":
            return encoded + torch.relu(gates), state
        with torch.autocast(obs.device.type, enabled=False):  # a memory adds up its own rounding
            gates = gates.float()
            if self.recurrent == "lstm":
                outputs, state = LSTMUnroll.apply(gates, self.memory, state, keep)
            else:
                outputs, state = gru_unroll(gates, self.memory, state, keep)
        return encoded + outputs, state

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
        else:  # the first action whose cumulated probability passes a random number; the factor keeps it below 1 when rounded
            cumulated = logprobs.exp().cumsum(-1)
            dice = torch.rand(len(obs), 1, generator=generator, device=obs.device) * (1 - 1e-6) * cumulated[:, -1:]
            actions = (cumulated <= dice).sum(-1)
        return actions, logprobs.gather(-1, actions[:, None]).squeeze(-1), self.critic(features).squeeze(-1), state

    def value(self, obs, state):
        """(B, 201), (B, S) → V, (B,)"""
        return self.critic(self.step(obs, state)[0]).squeeze(-1)


def make_agent(settings):
    return Agent(settings["recurrent"], settings["rnn_size"])


# ----------------------------------------------------------------------------------------------------------- pure maths


def gae(rewards, values, next_value, terminated, truncated, bootstrap, gamma, gae_lambda):
    """All (T, B), next_value (B,). After a goal nothing more is worth anything, a truncated game is worth V(its last observation)."""
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


def minibatches(indices, size):
    """In random order, in parts of nearly equal size: a lone row left over would have no standard deviation to divide by."""
    return indices[torch.randperm(len(indices))].tensor_split(math.ceil(len(indices) / size))


def anneal(start, final, update, updates):
    return start + (final - start) * min(update / max(updates, 1e-8), 1.0)


def opponent_chances(elos, ages, elo, args):
    """Chances of opponents with these Elos and ages (0 = the newest) for an agent of this Elo: softmax of −distance / temperature"""
    elos, ages = np.asarray(elos, float), np.asarray(ages, float)
    distance = {
        "uniform": np.zeros(len(elos)),
        "elo_weighted": np.abs(elos - elo) / args.elo_window,
        "recent_weighted": ages / max(ages.max(), 1),  # at temperature 1 the oldest is e times rarer than the newest
        # An opponent who never loses teaches as little as one who always does.
        "difficulty_adjusted": np.square((expected_score(elo, elos) - args.target_win_rate) / 0.2),
    }[args.opponent_sampler]
    chances = np.exp((distance.min() - distance) / args.sampler_temperature)
    return chances / chances.sum()


def stage_passed(scores, elo, rated, args):
    """Whether the curriculum goes on: the stage's measure over its last games, or the agent's Elo after enough rating matches"""
    recent = scores[-args.transition_games :]
    sure = len(recent) >= args.transition_games and wilson(float(np.mean(recent)), len(recent))[1] >= args.transition_win_rate
    return sure or bool(args.transition_elo and rated >= args.transition_games and elo >= args.transition_elo)


def stage_rewards(args, stage, update):
    """Weights of the reward components, `update` updates into stage number `stage`"""
    before, now = STAGES[max(stage - 1, 0)], STAGES[stage]
    share = 1.0 if stage == STAGE_NAMES.index(args.stage) else anneal(0.0, 1.0, update, args.dense_anneal_updates)
    scales = [
        np.where(EVENTS, one.events, one.dense) * [one.terms.get(term, 0.0) if one.terms else 1.0 for term in TERM_NAMES]
        for one in (before, now)
    ]
    weights = reward_weights(args.reward_mode, args.reward_weights)
    if args.aerial_focus:
        weights[contract.TERM_INDEX["touch_height"]] += 2.0 * args.aerial_focus
    return weights * (scales[0] + (scales[1] - scales[0]) * share).astype(np.float32)


# --------------------------------------------------------------------------------------------------------------- actors

# Who plays the other side of an arena: a serial number of the league. The scripted players have the first ones, in their own order.
NOBODY, SELF, FIRST_MEMBER = -2, -1, len(PLAYERS)
KINDS = ("self", *PLAYERS, "past")
MAX_EPISODES = 4096  # per rollout


def make_env(args, stage, seed):
    states = dict(stage.states)
    if args.state_file:
        states["file"] = sum(stage.states.values()) / 2
    if args.aerial_focus:
        states["aerial"] = sum(states.values()) * args.aerial_focus / (1 - args.aerial_focus)
    arenas, rest = divmod(args.num_agents * len(stage.team_sizes), 2 * sum(stage.team_sizes))
    if rest or args.num_agents % 12:
        raise ValueError(f"--num-agents is {args.num_agents}: it must be a multiple of 12, so that every stage's teams come out even.")
    return RocketLeagueVecEnv(
        arenas, stage.team_sizes, seed, args.action_repeat, states, args.state_file, args.reward_mode, args.reward_weights, stage.zero_sum,
        stage.team_spirit, stage.seconds, stage.idle_seconds, mesh_dir=args.mesh_dir, generated_meshes=args.generated_meshes,
    )  # fmt: skip


def make_storage(args):
    """One rollout: T steps of A cars."""
    shape, chunks = (args.rollout_steps, args.num_agents), args.rollout_steps // args.sequence_length
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
        "terms": torch.zeros(len(TERM_NAMES), dtype=torch.float64),  # reward components, summed over the learner's rows
        "episodes": torch.zeros(MAX_EPISODES, 6),  # kind, opponent, score, length, share of own cars that touched, whether a learner scored
        # version, stage, steps in the stage before this rollout, episodes, seconds of: rollout, inference, simulator
        "info": torch.zeros(7, dtype=torch.float64),
    }


def make_board(args, num_parameters):
    """numbers: version, stage, share of self, reward weights; league: serial numbers, chances, and two places more for scripted players"""
    return shared_memory.Board(args, num_parameters, 3 + len(TERM_NAMES), 2, extra_places=FIRST_MEMBER)


class Actor:
    """Plays games and writes them down. Knows nothing of processes or Ray: the same class runs inline and anywhere else."""

    def __init__(self, args, index):
        self.args, self.index, self.seed, self.stage = args, index, args.seed * 1000 + index, -1
        self.rng, self.generator = np.random.default_rng(self.seed), torch.Generator().manual_seed(self.seed)
        self.agent = self.policy = make_agent(vars(args)).eval()
        self.bots = {serial: ScriptedPlayer(name, self.seed) for serial, name in enumerate(PLAYERS)}
        self.members = {}  # serial number of a league member → its policy, copied when first needed
        self.opponent = np.full(0, NOBODY)  # of each arena; there are none before the first stage

    def enter_stage(self, stage):
        self.stage, self.steps, self.env = stage, 0, make_env(self.args, STAGES[stage], self.seed)
        self.opponent = np.full(self.env.num_arenas, NOBODY)
        self.side = np.zeros(self.env.num_arenas, np.int64)  # which team the learner is, unless it is both
        self.memory = torch.zeros(self.env.num_agents, self.agent.state_size)  # of whoever plays the row
        self.touched = np.zeros(self.env.num_agents, bool)  # in this game so far
        self.actions = np.full(self.env.num_agents, contract.NO_OP, np.int64)

    def read_board(self, board):
        """Takes over weights, stage and rewards, and draws the guests of this rollout → (version, share of self, guests)"""
        if self.args.inference == "central":
            self.policy = central_inference.CentralAgent(board.seats[self.index])
        with board.lock:
            from_flat(self.agent, board.weights)
            version, stage, self_share, *rewards = board.numbers.tolist()
            serials, chances = board.league.numpy().copy()
            guests = []
            if chances.sum() > 0 and self_share < 1:
                guests = np.unique(self.rng.choice(serials, self.args.guests, p=chances / chances.sum())).astype(int).tolist()
            shared_memory.invite(self, board, set(guests) - set(self.bots), self.opponent.tolist())
        if int(stage) != self.stage:
            self.enter_stage(int(stage))
        self.env.reward_weights[:] = rewards
        return version, self_share, guests

    def choose_opponents(self, arenas, self_share, guests):
        """Only ever called for games that start: an opponent stays until its game ends."""
        for i in arenas:
            alone = not guests or self.rng.random() < self_share
            self.opponent[i], self.side[i] = SELF if alone else guests[self.rng.integers(len(guests))], self.rng.integers(2)

    def rows(self):
        """Rows of the learner's policy, and of each opponent."""
        opponent = self.opponent[self.env.agent_arena]
        own = (opponent == SELF) | (self.env.agent_team == self.side[self.env.agent_arena])
        return np.flatnonzero(own), {int(who): np.flatnonzero(~own & (opponent == who)) for who in np.unique(opponent[~own])}

    @torch.no_grad()
    def rollout(self, board, storage):
        """Plays rollout_steps decisions of all cars into `storage`, with the weights that are on the board now."""
        start, inference_time, simulator_time, episodes = time.perf_counter(), 0.0, 0.0, 0
        version, self_share, guests = self.read_board(board)
        env, s = self.env, SimpleNamespace(**storage)
        self.choose_opponents(np.flatnonzero(self.opponent == NOBODY), self_share, guests)
        own, others = self.rows()
        s.terms.zero_()
        for t in range(self.args.rollout_steps):
            obs, masks = s.obs[t].copy_(torch.from_numpy(env.obs)), s.masks[t].copy_(torch.from_numpy(env.masks))
            if t % self.args.sequence_length == 0:
                s.states[t // self.args.sequence_length] = self.memory
            clock = time.perf_counter()
            # most rollouts have no guests: then nothing need be gathered
            index = own if others else slice(None)
            s.actions[t, index], s.logprobs[t, index], s.values[t, index], self.memory[index] = self.policy.act(
                obs[index], masks[index], self.memory[index], self.generator
            )
            self.actions[own] = s.actions[t].numpy()[own]
            for who, rows in others.items():
                if who in self.bots:
                    self.bots[who].act(env.obs, env.masks, rows, self.actions)
                else:
                    actions, _, _, self.memory[rows] = self.members[who].act(obs[rows], masks[rows], self.memory[rows], self.generator)
                    self.actions[rows] = actions.numpy()
            inference_time += time.perf_counter() - clock

            s.trained[t] = False
            s.trained[t, own] = True
            clock = time.perf_counter()
            _, _, rewards, terminated, truncated, info = env.step(self.actions)
            simulator_time += time.perf_counter() - clock
            s.rewards[t] = torch.from_numpy(rewards)
            s.terms += torch.from_numpy(info["terms"][own].sum(0, dtype=np.float64))
            self.touched |= info["terms"][:, contract.TERM_INDEX["touch"]] > 0
            s.terminated[t], s.truncated[t] = torch.from_numpy(terminated[env.agent_arena]), torch.from_numpy(truncated[env.agent_arena])
            s.bootstrap[t] = 0.0
            if truncated.any():
                rows = np.flatnonzero(truncated[env.agent_arena])
                s.bootstrap[t, rows] = self.policy.value(torch.from_numpy(info["final_obs"][rows]), self.memory[rows])
            ended = np.flatnonzero(terminated | truncated)
            if len(ended):
                results = self.results(ended, info, own)[: MAX_EPISODES - episodes]
                s.episodes[episodes : episodes + len(results)] = torch.from_numpy(results)
                episodes += len(results)
                over = (terminated | truncated)[env.agent_arena]
                self.memory[over], self.touched[over] = 0.0, False
                self.choose_opponents(ended, self_share, guests)
                own, others = self.rows()
        s.values[-1] = self.policy.value(torch.from_numpy(env.obs), self.memory)
        s.info[:] = torch.tensor([version, self.stage, self.steps, episodes, time.perf_counter() - start, inference_time, simulator_time])
        self.steps += self.args.rollout_steps

    def results(self, ended, info, own):
        """Rows of `episodes` for the arenas that ended, as the learner sees them."""
        goal, arena = info["goal"][ended], self.env.agent_arena[own]
        score = np.where(goal == 0, 0.5, (goal < 0) == self.side[ended])
        cars = np.bincount(arena, minlength=self.env.num_arenas)[ended]
        touched = np.bincount(arena, self.touched[own], self.env.num_arenas)[ended] / cars
        scored = np.where(self.opponent[ended] == SELF, goal != 0, score == 1.0)
        kind = np.minimum(self.opponent[ended], FIRST_MEMBER) - SELF
        return np.stack([kind, self.opponent[ended], score, info["length"][ended], touched, scored], 1)

    def state_dict(self):
        """All that the next rollout depends on, so that an inline run resumes exactly."""
        if self.stage < 0:
            return None
        arrays = {**self.env.state_dict(), "opponent": self.opponent, "side": self.side, "touched_in_game": self.touched}
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
        self.opponent[:], self.side[:], self.touched[:] = (arrays[name] for name in ("opponent", "side", "touched_in_game"))
        self.memory.copy_(state["memory"])
        self.steps = state["steps"]
        for who, dice in state["bots"].items():
            self.bots[who].rng.bit_generator.state = json.loads(dice)


# ------------------------------------------------------------------------------------------------ evaluation, checkpoints


def save_model(path, agent, args, stage):
    statistics = {"mean": np.zeros(NUM_OBS, np.float32), "std": np.ones(NUM_OBS, np.float32)}  # the shim scales observations
    metadata = {"game": "rocketleague", "contract_hash": contract.contract_hash(), "stage": STAGE_NAMES[stage]}
    models.save_model(path, agent.state_dict(), statistics, metadata, args, __file__)


def load_model(path):
    """A run's folder or a model.zip → (agent, metadata)"""
    return models.load_agent(path, contract.contract_hash(), make_agent)


class League:
    """Opponents: the scripted players, who anchor the scale, and past selves. Ratings move in rating matches only."""

    def __init__(self, args, board):
        self.args, self.board, self.next_serial = args, board, FIRST_MEMBER
        self.members = [{**new_rating(name, PINNED[name]), "serial": serial, "row": -1} for serial, name in enumerate(PLAYERS)]
        self.agent = new_rating("agent", PINNED["random"])  # which an untrained network plays like

    def join(self, name, flat):
        """A snapshot takes over the agent's ratings. When the league is full, the weakest past self leaves."""
        if len(self.members) == self.args.league_size + FIRST_MEMBER:
            self.members.remove(min(self.members[FIRST_MEMBER:], key=lambda member: member["elo"]))
        row = self.board.keep(flat, self.members)
        self.members.append({**self.agent, "serial": self.next_serial, "row": row, "name": name, "games": 0, "wins": 0.0})
        self.next_serial += 1

    def prune(self):
        """Past selves far below the agent leave; the scripted players stay whatever happens, or the scale would lose its hold."""
        floor = self.agent["elo"] - self.args.min_elo_diff
        self.members = [member for member in self.members if member["serial"] < FIRST_MEMBER or member["elo"] >= floor]

    def probabilities(self):
        elos, ages = [member["elo"] for member in self.members], list(reversed(range(len(self.members))))
        return opponent_chances(elos, ages, self.agent["elo"], self.args)

    def publish(self, agent, version, stage, rewards, self_share):
        """Hands weights, stage, snapshots and chances to the actors, all of one version."""
        places = [member["row"] if member["row"] >= 0 else self.args.league_size + member["serial"] for member in self.members]
        columns = {place: (member["serial"], chance) for place, member, chance in zip(places, self.members, self.probabilities())}
        self.board.publish(agent, [version, stage, self_share, *rewards.tolist()], columns)


if __name__ == "__main__":
    args = parse_args(Args, PRESETS)
    checkpoint = load_checkpoint(args.resume, contract.contract_hash()) if args.resume else None
    if args.rollout_steps % args.sequence_length or args.num_agents % 12:
        raise BadInput("--rollout-steps must be a multiple of --sequence-length, and --num-agents one of 12.")
    stage, last_stage = STAGE_NAMES.index(args.stage), STAGE_NAMES.index(args.final_stage)
    if stage > last_stage:
        raise BadInput(f"--stage {args.stage} comes after --final-stage {args.final_stage}.")
    if args.state_file:
        try:
            check_team_sizes(args.state_file, [size for one in STAGES[stage : last_stage + 1] for size in one.team_sizes])
        except ValueError as error:
            raise BadInput(f"--state-file: {error}") from None
    if not stage_rewards(args, stage, 0).any():
        raise BadInput(f"With --reward-mode {args.reward_mode} nothing is paid for in stage {args.stage}: begin with --stage score.")
    run_dir = make_run_folder(args, __file__)
    device, autocast, scaler = set_up(args)

    agent = make_agent(vars(args)).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    args.inference = central_inference.settle(args, device)
    unroll = maybe_compile(args, agent.unroll, device, "the LSTM is unrolled by hand" if args.recurrent == "lstm" else "")
    scale_rewards = RewardScale(max(args.num_workers, 1), args.num_agents)
    args.sharing = shared_memory.resolve_sharing(args, make_storage, len(to_flat(agent)))
    board = make_board(args, len(to_flat(agent)))
    league = League(args, board)
    update, global_step, version, elapsed, stage_update = 0, 0, 0, 0.0, 0
    stage_scores, stage_rated = [], 0
    actor = Actor(args, 0) if args.num_workers == 0 else None

    if checkpoint:
        restore(checkpoint, agent=agent, optimizer=optimizer, scaler=scaler, snapshots=board.snapshots)
        scale_rewards.load_state_dict(checkpoint)
        league.members, league.next_serial, league.agent = checkpoint["league"]
        update, global_step, version, elapsed = checkpoint["progress"]
        stage, stage_update, stage_scores, stage_rated = checkpoint["curriculum"]
        torch.set_rng_state(checkpoint["torch_rng"])
        if actor and checkpoint["actor"]:
            actor.load_state_dict(checkpoint["actor"])

    def save_checkpoint():
        state = {
            "agent": agent.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(),
            **scale_rewards.state_dict(), "curriculum": [stage, stage_update, stage_scores, stage_rated],
            "league": [league.members, league.next_serial, league.agent], "snapshots": board.snapshots.clone(),
            "progress": [update, global_step, version, elapsed + time.time() - start_time], "contract_hash": contract.contract_hash(),
            "torch_rng": torch.get_rng_state(), "actor": actor.state_dict() if actor else None,
        }  # fmt: skip
        write_atomically(run_dir / "checkpoint.pt", lambda path: torch.save(state, path))
        save_model(run_dir / "model.zip", agent, args, stage)

    def evaluate_all():
        """Rating matches, all of them in games.csv, and the touch rate. The models let a run be compared with its own past."""
        global stage_rated
        policy, seed = copy_with_weights(agent, to_flat(agent)).cpu().eval(), args.seed + 7919 * (update + 1)  # not the seed of any actor
        save_model(run_dir / "models" / f"{global_step}.zip", policy, args, stage)
        size, chances = max(STAGES[stage].team_sizes), league.probabilities()[FIRST_MEMBER:]
        # `rule` always, the other scripted players in turn: all of them would take longer than the training in between
        turn = 1 + update // max(args.eval_frequency, 1) % (FIRST_MEMBER - 1)
        opponents, drawn = [league.members[serial] for serial in (0, turn)], np.random.default_rng([args.seed, update])
        if len(chances) and args.rating_opponents:
            count = min(args.rating_opponents, int((chances > 0).sum()))
            chosen = drawn.choice(len(chances), count, replace=False, p=chances / chances.sum())
            opponents = opponents + [league.members[FIRST_MEMBER + i] for i in sorted(chosen)]
        results = {}
        for member in opponents:
            other = copy_with_weights(policy, board.snapshots[member["row"]]) if member["serial"] >= FIRST_MEMBER else member["name"]
            scores = rating_match(args, policy, league.agent, other, member, size, seed, run_dir, global_step, STAGE_NAMES[stage])
            if member["name"] in PINNED:
                results |= score_metrics(member["name"], scores)
            if member["name"] == "rule" and STAGES[stage].measure == "win":
                stage_scores.extend((scores == 1.0).tolist())  # a tie is not a win
            stage_rated += len(scores)
        small = dataclasses.replace(args, num_agents=12 * math.ceil(args.eval_episodes / 6), state_file="", aerial_focus=0.0)
        return results | touch_metrics(policy, lambda: make_env(small, STAGES[0], args.seed + 7919), args.seed)

    def publish():
        self_share = args.self_share if STAGES[stage].opponents else 1.0
        league.publish(agent, version, stage, stage_rewards(args, stage, stage_update), self_share)

    stopping = stop_on_signals()
    logger = Logger(args, run_dir, global_step)
    publish()
    rollouts = actors.rollouts(args, board, Actor, make_storage, actor)
    if args.inference == "central":
        rollouts = central_inference.rollouts(args, board, Actor, make_storage, make_agent, device)
    length, chunks = args.sequence_length, args.rollout_steps // args.sequence_length
    start_time, first_step, consistent, done = time.time(), global_step, True, progress(args, global_step, elapsed)

    try:
        wait_start = time.perf_counter()
        for index, storage, queue_size in rollouts:
            wait_time, learn_start = time.perf_counter() - wait_start, time.perf_counter()
            consistent, s, update, stage_update = False, SimpleNamespace(**storage), update + 1, stage_update + 1
            rollout_version, rollout_stage, steps_in_stage, episodes, *seconds = s.info.tolist()
            ended = s.terminated | s.truncated  # (T, A)

            # --- rewards, scaled by the std of discounted returns
            if steps_in_stage == 0:
                scale_rewards.forget(index)
            scaled, returns_seen = scale_rewards(index, s.rewards, ended, s.trained, args.gamma)
            scaled = scaled.clamp(-args.reward_clip, args.reward_clip)
            advantages = gae(scaled, s.values[:-1], s.values[-1], s.terminated, s.truncated, s.bootstrap, args.gamma, args.gae_lambda)
            returns = advantages + s.values[:-1]

            # --- PPO over chunks with a row that the learner's own policy played. A chunk is (which, car), its rows are `length` steps.
            keep = torch.ones(args.rollout_steps, args.num_agents, 1)
            keep[1:] = (~ended[:-1, :, None]).float()
            keep[::length] = 1.0  # the stored states are as the actor had them, emptied where a game has just begun
            c_obs, c_masks, c_keep, c_actions, c_logprobs, c_advantages, c_returns, c_trained = (
                tensor.view(chunks, length, *tensor.shape[1:])
                for tensor in (s.obs, s.masks, keep, s.actions, s.logprobs, advantages, returns, s.trained)
            )
            b_chunks = c_trained.any(1).nonzero()  # (M, 2)
            global_step += int(s.trained.sum())
            lr = anneal(args.learning_rate, args.learning_rate_final, done, 1.0)
            optimizer.param_groups[0]["lr"] = lr
            losses = []
            for _ in range(args.update_epochs):
                for mb_chunks in minibatches(b_chunks, max(args.minibatch_size // length, 1)):
                    which, car = mb_chunks.T
                    mb_obs, mb_masks, mb_keep, mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_trained = (
                        to_device(tensor[which, :, car], device).transpose(0, 1)  # (L, B, …)
                        for tensor in (c_obs, c_masks, c_keep, c_actions, c_logprobs, c_advantages, c_returns, c_trained)
                    )
                    with autocast():
                        features, _ = unroll(mb_obs, to_device(s.states[which, car], device), mb_keep)
                        if not mb_trained.all():
                            features, mb_masks, mb_actions, mb_logprobs, mb_advantages, mb_returns = (
                                tensor[mb_trained] for tensor in (features, mb_masks, mb_actions, mb_logprobs, mb_advantages, mb_returns)
                            )
                        logprobs, values = agent.logprobs(features, mb_masks), agent.critic(features).squeeze(-1).float()
                    logprob = logprobs.gather(-1, mb_actions[..., None]).squeeze(-1)
                    logprobs = logprobs.clamp(min=-80.0)  # nothing, but not 0 · (-inf), for masked ones; of less exp takes longer
                    entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
                    if args.norm_adv:
                        mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
                    policy_loss, value_loss, stats = ppo_losses(logprob, mb_logprobs, mb_advantages, values, mb_returns, args.clip_coef)
                    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                    scaler.step(optimizer)
                    scaler.update()
                    losses.append(torch.stack([policy_loss, value_loss, entropy, grad_norm, *stats]).detach())
            check_finite(losses)
            lag, version = torch.tensor(version - rollout_version), version + 1

            # --- the stage's measure, a snapshot for the league now and then
            results = s.episodes[: int(episodes)]
            # Of games that begin together the short ones end first: none counts until the longest would have ended.
            settled = steps_in_stage * args.action_repeat / contract.TICK_RATE >= STAGES[stage].seconds
            if STAGES[stage].measure != "win" and rollout_stage == stage and settled:
                stage_scores += results[:, 4 if STAGES[stage].measure == "touch" else 5].tolist()
            del stage_scores[: -args.transition_games]
            if args.opponent_update_freq and STAGES[stage].opponents and update % args.opponent_update_freq == 0:
                league.join(f"snapshot_{global_step}", to_flat(agent))
            publish()
            consistent, learn_time = True, time.perf_counter() - learn_start

            # --- logs, evaluation, the next stage, checkpoint
            done = progress(args, global_step, elapsed + time.time() - start_time)
            means = s.terms.numpy() / int(s.trained.sum())
            unexplained = (returns - s.values[:-1])[s.trained].var() / returns[s.trained].var().clamp(min=1e-8)
            metrics = {
                "charts/SPS": (global_step - first_step) / (time.time() - start_time),
                "charts/learning_rate": lr,
                "charts/stage": stage,
                "charts/touches_per_minute": float(means[contract.TERM_INDEX["touch"]]) * 60 * contract.TICK_RATE / args.action_repeat,
                "losses/explained_variance": 1 - float(unexplained),
                **loss_metrics("policy_loss value_loss entropy grad_norm old_approx_kl approx_kl clipfrac", losses),
                **time_metrics(lag, queue_size, seconds, learn_time, wait_time),
                **result_metrics(results, KINDS),
            }
            if len(results):
                metrics["charts/episodic_return"] = float(returns_seen.mean())
            metrics |= {f"rewards/{term}": value for term, value in zip(TERM_NAMES, (means * board.numbers[3:].numpy()).tolist())}
            finished = done >= 1.0
            if finished or (args.eval_frequency and update % args.eval_frequency == 0):
                metrics |= evaluate_all()
                league.prune()
            if stage_scores:
                metrics |= {f"charts/measure_{STAGES[stage].measure}": float(np.mean(stage_scores))}
            metrics |= {"elo/agent": league.agent["elo"], "elo/mu": league.agent["mu"], "elo/sigma": league.agent["sigma"]}
            metrics |= {"league/size": len(league.members)}
            if stage < last_stage and stage_passed(stage_scores, league.agent["elo"], stage_rated, args):
                stage, stage_update, stage_rated, scale_rewards.rms = stage + 1, 0, 0, RunningMeanStd(1)
                stage_scores.clear()
                print(f"Stage {STAGE_NAMES[stage]} begins after {global_step:,} steps.", flush=True)
            if stage_update == 0 or "eval/rule" in metrics:  # another stage, or other ratings and so other opponents
                publish()
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
        say_how_to_go_on(run_dir)
