"""What the losses of rnad_vgc_portfolio.py do on games whose exploitability is exact: Kuhn, Leduc, liar's dice,
dark hex, rock-paper-scissors.

    python cleanrl_games/tools/study_small_games.py --study verify     what the maths must reach
    python cleanrl_games/tools/study_small_games.py --study full       every table of docs/rnad_small_games.md

A game of OpenSpiel becomes arrays over the nodes of its tree, so that hundreds of games are played in a few NumPy
steps. The learner is the script's: its functions, a small network over the information states, self-play, last iterate.
"""

import concurrent.futures
import copy
import dataclasses
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import pyspiel
import torch
import torch.nn as nn

from cleanrl_games.rnad_vgc_portfolio import (
    clipped_loss,
    ema_update,
    gae,
    magnet_kl,
    masked_log_softmax,
    normalise,
    policy_entropy,
    portfolio_drop,
    taken_logprob,
    value_loss,
)
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.files import write_atomically
from cleanrl_games.runtime.settings import Size, parse_flags

GAMES = {
    "kuhn": "kuhn_poker",
    "leduc": "leduc_poker",
    "liars_dice": "liars_dice(numdice=1,dice_sides=4)",
    "dark_hex": "dark_hex(num_rows=2,num_cols=3,gameversion=adh)",
    "rps": "turn_based_simultaneous_game(game=matrix_rps())",
}
UPDATES = {"kuhn": 600, "leduc": 300, "liars_dice": 300, "dark_hex": 300, "rps": 300}


# ------------------------------------------------------------------------------------------------------------ the games

CHANCE, TERMINAL = 2, 3


class SmallGame:
    """A two-player game as arrays over the nodes of its tree (nodes) and over what a player can tell apart
    (infosets)."""

    def __init__(self, name):
        self.game = pyspiel.load_game(GAMES[name])
        self.num_actions = self.game.num_distinct_actions()
        self.infosets, features, legal, nodes = {}, [], [], []

        def visit(state):
            index = len(nodes)
            nodes.append(None)
            if state.is_terminal():
                nodes[index] = (TERMINAL, 0, {}, [], state.returns())
            elif state.is_chance_node():
                outcomes = state.chance_outcomes()
                children = {i: visit(state.child(action)) for i, (action, _) in enumerate(outcomes)}
                nodes[index] = (CHANCE, 0, children, np.cumsum([p for _, p in outcomes]), [0.0, 0.0])
            else:
                key = state.information_state_string()
                if key not in self.infosets:
                    self.infosets[key] = len(self.infosets)
                    features.append(state.information_state_tensor())
                    legal.append(np.isin(np.arange(self.num_actions), state.legal_actions()))
                children = {action: visit(state.child(action)) for action in state.legal_actions()}
                nodes[index] = (state.current_player(), self.infosets[key], children, [], [0.0, 0.0])
            return index

        visit(self.game.new_initial_state())
        width = 1 + max(action for node in nodes for action in node[2])
        self.player, self.infoset = (np.array([node[i] for node in nodes]) for i in (0, 1))
        self.returns = np.array([node[4] for node in nodes], np.float32) / self.game.max_utility()
        self.child, self.chance = np.zeros((len(nodes), width), np.int64), np.ones((len(nodes), width))
        for index, (_, _, children, chance, _) in enumerate(nodes):
            self.child[index, list(children)] = list(children.values())
            self.chance[index, : len(chance)] = chance
        self.features, self.legal = torch.tensor(features), torch.tensor(np.array(legal))  # (I, F), (I, A)
        self.owner = np.zeros(len(self.infosets), np.int64)
        decisions = self.player < CHANCE
        self.owner[self.infoset[decisions]] = self.player[decisions]

    def play(self, probabilities, num_games, rng):
        """Plays with the policy (I, A) → infosets, actions, whether there was a decision, whether it was the last,
        rewards: (T, 2·G)"""
        cumulative = probabilities.cumsum(1)
        cumulative[:, -1] = 1.0 + 1e-9
        node, count, live = np.zeros(num_games, np.int64), np.zeros((num_games, 2), np.int64), np.arange(num_games)
        steps = self.game.max_game_length()
        infosets, actions = (np.zeros((steps, num_games, 2), np.int64) for _ in range(2))
        while len(live := live[self.player[node[live]] != TERMINAL]):
            here, dice = node[live], rng.random((len(live), 1))
            chance = self.player[here] == CHANCE
            choice = (dice >= self.chance[here]).sum(1)
            games, players, states = live[~chance], self.player[here[~chance]], self.infoset[here[~chance]]
            choice[~chance] = (dice[~chance] >= cumulative[states]).sum(1)
            turn = count[games, players]
            infosets[turn, games, players], actions[turn, games, players] = states, choice[~chance]
            count[games, players] += 1
            node[live] = self.child[here, choice]
        order = np.arange(count.max())[:, None, None]
        decided, last = order < count, order == count - 1
        rewards = np.where(last, self.returns[node], np.float32(0.0))
        arrays = infosets[: len(order)], actions[: len(order)], decided, last, rewards
        return [torch.from_numpy(array.reshape(len(order), -1)) for array in arrays]

    def nash_conv(self, logprobs):
        """OpenSpiel's exact value: what both players could gain by a best response, summed."""
        rows = logprobs.exp().double().numpy()
        rows /= rows.sum(1, keepdims=True)
        policy = {
            key: [(a, rows[i, a]) for a in np.flatnonzero(self.legal[i].numpy())] for key, i in self.infosets.items()
        }
        return pyspiel.nash_conv(self.game, policy)

    def payoff(self, first, second, rng, num_games=256):
        """Mean return of the policy `first` against `second`, half of the games in each seat, in units of the largest
        win."""
        total = 0.0
        for seat in (0, 1):
            table = torch.where(torch.from_numpy(self.owner == seat)[:, None], first, second)
            rewards = self.play(table.exp().double().numpy(), num_games // 2, rng)[-1]
            total += float(rewards.view(len(rewards), -1, 2)[:, :, seat].sum())
        return total / num_games


# ---------------------------------------------------------------------------------------------------------- the learner


@dataclasses.dataclass(frozen=True)
class Settings:
    """One learner. What is not said in a table's row is as here."""

    game: str = "kuhn"
    magnet: str = "ref"
    alpha: float = 0.5
    ent_coef: float = 0.0
    ref_update_interval: int = 75
    portfolio_add_interval: int = 50
    max_portfolio_size: int = 2
    portfolio_strategy: str = "recent"
    ema_decay: float = 0.98
    updates: int = 0  # 0 = what UPDATES says
    num_games: int = 512
    learning_rate: float = 3e-3
    update_epochs: int = 2
    num_minibatches: int = 2
    gae_lambda: float = 1.0
    clip_coef: float = 0.2
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    hidden_size: int = 64


class Networks(nn.Module):
    """One small network per seed, side by side: (S, …) parameters, so that all seeds share each of the many tiny
    steps."""

    def __init__(self, seeds, game, hidden_size):
        super().__init__()
        self.game, sizes = game, (game.features.shape[1], hidden_size, hidden_size, game.num_actions + 1)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        for layer in range(3):
            bound = 0.01 if layer == 2 else sizes[layer] ** -0.5
            draws = [
                torch.empty(sizes[layer : layer + 2]).uniform_(-bound, bound, generator=generator)
                for generator in generators
            ]
            self.weights.append(nn.Parameter(torch.stack(draws)))
            self.biases.append(nn.Parameter(torch.zeros(len(seeds), 1, sizes[layer + 1])))

    def forward(self):
        """Log-probs (S·I, A) and log-odds of winning (S·I,) of all infosets: there are fewer of them than decisions in
        a batch."""
        hidden = self.game.features.expand(len(self.weights[0]), -1, -1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            hidden = torch.baddbmm(bias, hidden if layer == 0 else hidden.relu(), weight)
        legal = self.game.legal.repeat(len(self.weights[0]), 1)
        return masked_log_softmax(hidden[:, :, :-1].flatten(0, 1), legal), hidden[:, :, -1].flatten()


def clip_gradients(networks, max_norm):
    """Each seed's own gradient norm."""
    parameters = list(networks.parameters())
    norms = torch.stack([parameter.grad.flatten(1).norm(dim=1) for parameter in parameters]).norm(dim=0)  # (S,)
    for parameter in parameters:
        parameter.grad.mul_((max_norm / (norms + 1e-6)).clamp(max=1.0)[:, None, None])


def train(settings, seeds):
    """→ NashConv of each seed's last policy"""
    torch.set_num_threads(1)
    s, game, num_seeds = settings, SmallGame(settings.game), len(seeds)
    torch.manual_seed(seeds[0])
    rngs, updates = [np.random.default_rng(seed) for seed in seeds], s.updates or UPDATES[s.game]
    num_infosets = len(game.legal)
    networks = Networks(seeds, game, s.hidden_size)
    average = copy.deepcopy(networks)
    optimizer = torch.optim.Adam(networks.parameters(), lr=s.learning_rate, eps=1e-8)
    uniform = masked_log_softmax(
        torch.zeros(num_seeds * num_infosets, game.num_actions), game.legal.repeat(num_seeds, 1)
    )
    references = [networks()[0].detach()]  # oldest first
    for update in range(1, updates + 1):
        optimizer.param_groups[0]["lr"] = s.learning_rate * (1 - (update - 1) / updates)
        with torch.no_grad():
            logprobs, win_logit = networks()
            values = 2 * win_logit.sigmoid() - 1
            batches = []
            for seed, rng in enumerate(rngs):
                rows = slice(seed * num_infosets, (seed + 1) * num_infosets)
                infosets, actions, decided, _, rewards = game.play(
                    logprobs[rows].exp().double().numpy(), s.num_games, rng
                )
                infosets += rows.start
                # A player's decisions in a game are a trajectory: gae takes one after another, rows are step by step.
                lengths, numbers = decided.sum(0), torch.zeros_like(infosets)
                numbers[decided] = torch.arange(int(decided.sum()))
                by_trajectory = numbers.T[decided.T]
                infosets, actions, rewards = infosets[decided], actions[decided], rewards[decided]
                v = values[infosets]
                advantages = torch.empty_like(v)
                ends = torch.zeros(len(lengths))  # every game ends: nothing is bootstrapped
                advantages[by_trajectory] = gae(
                    rewards[by_trajectory], v[by_trajectory], ends, lengths, 1.0, s.gae_lambda
                )
                batches.append((infosets, actions[:, None], normalise(advantages), advantages + v))
            b_infosets, b_actions, b_advantages, b_returns = (torch.cat(parts) for parts in zip(*batches))
            b_logprobs = logprobs[b_infosets][:, None]  # (B, 1, A)
            magnets = (
                [average()[0]] if s.magnet == "ema" else [uniform] if s.magnet in ("uniform", "none") else references
            )
            b_references = torch.stack(magnets)[:, b_infosets][:, :, None]  # (R, B, 1, A)
        for _ in range(s.update_epochs):
            for mb_inds in torch.randperm(len(b_infosets)).tensor_split(s.num_minibatches):
                new_logprobs, new_win_logit = (table[b_infosets[mb_inds]] for table in networks())
                new_logprobs, mb_actions = new_logprobs[:, None], b_actions[mb_inds]
                old_logprob = taken_logprob(b_logprobs[mb_inds], mb_actions)
                loss, _ = clipped_loss(
                    taken_logprob(new_logprobs, mb_actions), old_logprob, b_advantages[mb_inds], s.clip_coef
                )
                loss = (
                    loss
                    + s.vf_coef * value_loss(new_win_logit, b_returns[mb_inds])
                    - s.ent_coef * policy_entropy(new_logprobs).mean()
                )
                if s.magnet != "none":
                    loss = loss + s.alpha * magnet_kl(new_logprobs, b_references[:, mb_inds])[0].mean()
                optimizer.zero_grad()
                (loss * num_seeds).backward()  # the mean over all seeds' rows, as if each seed were alone
                clip_gradients(networks, s.max_grad_norm)
                optimizer.step()
        ema_update(average, networks, s.ema_decay)
        if s.magnet == "ref" and update % s.ref_update_interval == 0:
            references = [networks()[0].detach()]
        if s.magnet == "portfolio" and update % s.portfolio_add_interval == 0:
            references.append(networks()[0].detach())
            if len(references) > s.max_portfolio_size:
                references = drop_references(s, game, references, [batch[0] for batch in batches], rngs)
    final = networks()[0].detach().view(num_seeds, num_infosets, -1)
    return [game.nash_conv(table) for table in final]


def drop_references(settings, game, references, infosets, rngs):
    """Each seed drops one of its own references. references: R × (S·I, A), infosets: S × the decisions of the last
    batch"""
    stacked, kept = torch.stack(references).unflatten(1, (len(rngs), -1)), []  # (R, S, I, A)
    for seed, rng in enumerate(rngs):
        tables = stacked[:, seed]
        ratings = [sum(game.payoff(one, other, rng) for other in tables if other is not one) for one in tables]
        here = tables[:, infosets[seed] - seed * tables.shape[1]][:, :, None]
        drop = portfolio_drop(settings.portfolio_strategy, here, ratings)
        kept.append(torch.cat([tables[:drop], tables[drop + 1 :]]))
    return list(torch.stack(kept, 1).flatten(1, 2))


# ----------------------------------------------------------------------------------------------------------- the tables

ALPHAS = (0.01, 0.2, 0.5, 1.0)
VERIFY = {
    # what is best depends on the game
    "ref": {
        "magnet": "ref",
        "alpha": {"kuhn": 0.3, "leduc": 0.5, "liars_dice": 0.2, "dark_hex": 0.2, "rps": 0.5},
    },
    "portfolio": {"magnet": "portfolio"},
    "ema": {"magnet": "ema"},
    "ppo": {"magnet": "none", "ent_coef": 0.01},
}


def tables_of(study):
    """Title → {label of a row: what differs from the defaults}; a row is trained on each game with each seed."""
    if study == "verify":
        return {"What the maths must reach": VERIFY}
    return {
        "Controls: no magnet": {
            f"entropy {ent_coef:g}": {"magnet": "none", "ent_coef": ent_coef} for ent_coef in (0.01, 0.05, 0.2)
        },
        "Magnet and α": {
            **{
                f"{magnet}, α = {alpha:g}": {"magnet": magnet, "alpha": alpha}
                for magnet in ("ref", "portfolio", "ema")
                for alpha in ALPHAS
            },
            **{f"uniform, α = {alpha:g}": {"magnet": "uniform", "alpha": alpha} for alpha in (0.05, 0.2)},
        },
        "Portfolio: strategy and size": {
            f"{strategy}, {size} references": {
                "magnet": "portfolio",
                "portfolio_strategy": strategy,
                "max_portfolio_size": size,
            }
            for strategy in ("recent", "best", "diverse")
            for size in (2, 4)
        },
        "How fast the magnet moves": {
            **{f"ref, renewed every {n} updates": {"magnet": "ref", "ref_update_interval": n} for n in (25, 75, 150)},
            **{f"ema, decay {decay:g}": {"magnet": "ema", "ema_decay": decay} for decay in (0.9, 0.98, 0.99)},
        },
    }


@dataclasses.dataclass
class Args:
    study: Literal["verify", "full"] = "verify"
    """verify = what the maths must reach, a few minutes; full = the tables of the docs page, about an hour on one
    core"""
    games: tuple[str, ...] = ("kuhn", "leduc", "liars_dice", "rps")
    """which games"""
    seeds: Size = 3
    """how many seeds"""
    first_seed: int = 1
    """the first of them; settings were chosen on 1 to 5, so others are a fairer test"""
    only: str = ""
    """only rows whose label contains this, diverse for example"""
    jobs: Size = 2
    """processes"""
    run_dir: str = ""
    """where results.jsonl, metrics.jsonl and table.md go; results that are there already are not computed again"""


def settings_of(game, row):
    return Settings(
        game=game, **{name: value[game] if isinstance(value, dict) else value for name, value in row.items()}
    )


def show(values):
    return f"**{statistics.median(values):.3f}** ({' '.join(f'{value:.3f}' for value in values)})"


def write_tables(args, folder, tables, results, seconds):
    """table.md for people, metrics.jsonl for benchmark.sh; a row that has not been computed has a dash."""
    lines, measures = [], {}
    for title, rows in tables.items():
        lines += [f"### {title}", "", f"| | {' | '.join(args.games)} |", "|---" * (len(args.games) + 1) + "|"]
        for label, row in rows.items():
            cells = []
            for game in args.games:
                values = results.get(settings_of(game, row))
                cells.append(show(values) if values else "–")
                if not values:
                    continue
                name = f"{game}/{label}"
                measures |= {
                    f"{name}_median": statistics.median(values),
                    f"{name}_min": min(values),
                    f"{name}_max": max(values),
                }
            lines.append(f"| {label} | {' | '.join(cells)} |")
        lines.append("")
    text = "\n".join(lines)
    write_atomically(folder / "table.md", lambda path: path.write_text(text))
    row = {"global_step": len(results), "time": round(seconds, 1), **measures}
    write_atomically(folder / "metrics.jsonl", lambda path: path.write_text(json.dumps(row) + "\n"))
    print(text, f"NashConv, median and each seed; results and tables: {folder}", sep="\n")


def end_with_parent():
    """Ends this worker when the study ends, however that came about; a killed one would leave it at its job."""

    def wait():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(args):
    unknown = sorted(set(args.games) - set(GAMES))
    if unknown:
        raise BadInput(f"--games: there is no game {unknown[0]!r} here. Known: {', '.join(GAMES)}.")
    folder = Path(args.run_dir or f"runs/study_small_games__{args.study}__{int(time.time())}")
    folder.mkdir(parents=True, exist_ok=True)
    results, start, seeds = {}, time.time(), list(range(args.first_seed, args.first_seed + args.seeds))
    if (folder / "results.jsonl").exists():
        for line in (folder / "results.jsonl").read_text().splitlines(keepends=True):
            if not line.endswith("\n"):  # half a line: the study was killed while it wrote
                continue
            entry = json.loads(line)
            if entry["seeds"] == seeds:
                results[Settings(**entry["settings"])] = entry["nash_conv"]
    tables = {
        title: {label: row for label, row in rows.items() if args.only in label}
        for title, rows in tables_of(args.study).items()
    }
    tables = {title: rows for title, rows in tables.items() if rows}
    wanted = [settings_of(game, row) for rows in tables.values() for row in rows.values() for game in args.games]
    missing = [settings for settings in dict.fromkeys(wanted) if settings not in results]
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(args.jobs, mp_context=context, initializer=end_with_parent)
    with open(folder / "results.jsonl", "a", buffering=1) as file:
        try:
            pending = {pool.submit(train, settings, seeds): settings for settings in missing}
            for count, done in enumerate(concurrent.futures.as_completed(pending), 1):
                settings = pending[done]
                results[settings] = done.result()
                entry = {"settings": dataclasses.asdict(settings), "seeds": seeds, "nash_conv": results[settings]}
                file.write(json.dumps(entry) + "\n")
                print(
                    f"{count}/{len(missing)}  {settings.game} {settings.magnet}: {show(results[settings])}", flush=True
                )
        except KeyboardInterrupt:
            print(f"Stopped: the tables are of what there is; --run-dir {folder} goes on.", flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    write_tables(args, folder, tables, results, time.time() - start)


if __name__ == "__main__":
    main(parse_flags(Args, __doc__))
