"""Everybody against everybody: models and scripted players of one game, and what their results say together.

    python cleanrl_games/tools/arena.py runs/<run> runs/<other run>/models/*.zip --output runs/arena

Its folder has arena.json with the results, written after every pairing: the same command goes on where it was stopped,
and plays again only what a changed model or game has made stale. At the end there are arena.md, ratings.csv,
pairings.csv and heatmap.png, and the last line is a JSON object.
"""

import contextlib
import csv
import dataclasses
import hashlib
import importlib
import io
import itertools
import json
import multiprocessing
import os
import queue
import signal
import sys
import time
import traceback
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import tyro
from scipy import optimize

from cleanrl_games.runtime.errors import first_line
from cleanrl_games.runtime.files import file_hash, write_atomically
from cleanrl_games.runtime.metrics import wilson
from cleanrl_games.runtime.settings import Count, parse_flags
from cleanrl_games.tools import evaluate, models

ELO = 400 / np.log(10)  # rating points per unit of log-odds
CENTRE = 1500.0


@dataclasses.dataclass
class Args(evaluate.Args):
    """The settings of evaluate.py, a game's own ones among them, and:"""

    against: tyro.conf.Suppress[tuple[str, ...]] = ()
    json: tyro.conf.Suppress[str] = ""
    server: tyro.conf.Suppress[str] = ""
    search: str = ""
    """VGC: every model takes part a second time, looking one turn ahead, e.g. "worlds=4 actions=8" (docs/search.md)"""
    output: str = ""
    """the arena's folder; one that has results goes on; empty = runs/arena__{game}__{time}"""
    baselines: bool = True
    """every scripted player of the game takes part too"""
    anchor: str = ""
    """the player whose Elo is 1500; empty = the mean of all is"""
    jobs: Count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    """pairings played at once, each in a process of its own; 0 = one after another in this one"""


# ----------------------------------------------------------------------------------------------------------- pure maths


def bradley_terry(scores, games):
    """Maximum-likelihood Elo, a tie counting half → (ratings with mean 0 (n,), covariance (n, n)), in Elo points.

    scores, games: (n, n), points of the row's player and games played. One tie per pairing is added, so that a player
    who won all games is rated as far up as so many games can show, not infinitely.
    """
    games, scores = games + (games > 0), scores + 0.5 * (games > 0)

    def loss(theta):
        logits = theta[:, None] - theta[None, :]
        expected = 1 / (1 + np.exp(-logits))
        return (scores * np.logaddexp(0, -logits)).sum(), (games * expected - scores).sum(1)

    found = optimize.minimize(
        loss, np.zeros(len(games)), jac=True, method="L-BFGS-B", options={"gtol": 1e-9, "ftol": 1e-15}
    )
    theta = found.x - found.x.mean()
    expected = 1 / (1 + np.exp(theta[None, :] - theta[:, None]))
    information = games * expected * (1 - expected)
    information = np.diag(information.sum(1)) - information
    # Only differences of ratings are measured: the pseudo-inverse is the covariance of ratings whose mean is fixed.
    return ELO * theta, ELO**2 * np.linalg.pinv(information)


def anchored(ratings, covariance, anchor=None):
    """Ratings with a player (or the mean) at 1500 → (ratings, 95 % half-widths). The anchor's own is 0 by
    definition."""
    if anchor is None:
        return CENTRE + ratings, 1.96 * np.sqrt(np.diag(covariance).clip(0))
    variance = np.diag(covariance) + covariance[anchor, anchor] - 2 * covariance[anchor]
    return CENTRE + ratings - ratings[anchor], 1.96 * np.sqrt(variance.clip(0))


def openskill_ratings(counts, seed=1):
    """Plackett–Luce ratings from the games in a random order, as a ladder would see them. counts (n, n, 3): won, tied,
    lost of i against j for i < j → (mu, sigma)"""
    from openskill.models import PlackettLuce

    model = PlackettLuce()
    ratings = [model.rating() for _ in counts]
    pairs = [(i, j) for i, j in itertools.combinations(range(len(counts)), 2)]
    games = np.concatenate(
        [np.repeat([[i, j, 0], [i, j, 1], [i, j, 2]], counts[i, j], axis=0) for i, j in pairs]
        or [np.zeros((0, 3), int)]
    )
    for i, j, outcome in np.random.default_rng(seed).permutation(games).tolist():
        ((ratings[i],), (ratings[j],)) = model.rate(
            [[ratings[i]], [ratings[j]]], ranks=[[0, 1], [0, 0], [1, 0]][outcome]
        )
    return np.array([rating.mu for rating in ratings]), np.array([rating.sigma for rating in ratings])


def nash_vertex(payoffs):
    """One equilibrium of the symmetric game, by linear programming: max v with x·payoffs ≥ v in every column."""
    n = len(payoffs)
    return linear_programme(
        c=np.append(np.zeros(n), -1.0),
        A_ub=np.column_stack([-payoffs.T, np.ones(n)]),
        b_ub=np.zeros(n),
        A_eq=[[1.0] * n + [0.0]],
        b_eq=[1.0],
        bounds=[(0, None)] * n + [(None, None)],
    )[:n]


def linear_programme(**problem):
    found = optimize.linprog(**problem)
    if not found.success:
        raise RuntimeError(f"The linear programme of the equilibrium was not solved: {found.message}")
    return found.x


def nash(payoffs):
    """The equilibrium of largest entropy (Balduzzi et al. 2018): copies of a player share its mass instead of one
    taking all.

    Equilibria form a polytope. Its point with the most of player i is a linear programme for each i; their mean lies
    inside, with mass on everybody who can have any, and from there entropy is climbed by sequential quadratic
    programming."""
    n, vertex = len(payoffs), nash_vertex(payoffs)
    value = (vertex @ payoffs).min()
    polytope = {"A_ub": -payoffs.T, "b_ub": np.full(n, 1e-9 - value), "A_eq": np.ones((1, n)), "b_eq": [1.0]}
    centre = np.mean([linear_programme(c=-most, **polytope) for most in np.eye(n)], axis=0).clip(0)
    support = np.flatnonzero(centre > 1e-6)
    start, rows = centre[support] / centre[support].sum(), payoffs[support]
    found = optimize.minimize(
        lambda x: (x * np.log(x)).sum(),
        start,
        jac=lambda x: np.log(x) + 1,
        method="SLSQP",
        bounds=[(1e-9, 1)] * len(support),
        constraints=[
            {"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: np.ones(len(support))},
            {"type": "ineq", "fun": lambda x: x @ rows - value, "jac": lambda x: rows.T},
        ],
        options={"maxiter": 500, "ftol": 1e-12},
    )
    climbed = found.x / found.x.sum()
    better = (
        np.isfinite(climbed).all()
        and (climbed @ rows).min() > value - 1e-6
        and found.fun <= (start * np.log(start)).sum() + 1e-9
    )
    mixture = np.zeros(n)
    mixture[support] = climbed if better else start  # both are equilibria
    return mixture


def nash_interval(counts, draws=200, seed=1):
    """How much of the equilibrium is chance: the 95 % interval of each player's mass over games drawn anew from the
    results."""
    rng, n, masses = np.random.default_rng(seed), len(counts), []
    pairs = [(i, j) for i, j in itertools.combinations(range(n), 2) if counts[i, j].sum()]
    for _ in range(draws):
        payoffs = np.full((n, n), 0.5)
        for i, j in pairs:
            total = counts[i, j].sum()
            payoffs[i, j] = rng.multinomial(total, counts[i, j] / total) @ [1, 0.5, 0] / total
            payoffs[j, i] = 1 - payoffs[i, j]
        masses.append(nash_vertex(payoffs))
    return np.quantile(masses, [0.025, 0.975], axis=0)


def analyse(counts, anchor=None):
    """counts (n, n, 3): won, tied, lost of i against j for i < j → everything the tables say, as arrays"""
    n = len(counts)
    counts = counts * ~np.eye(n, dtype=bool)[:, :, None]
    counts = np.where(np.triu(np.ones((n, n), bool), 1)[:, :, None], counts, counts.transpose(1, 0, 2)[:, :, ::-1])
    games, scores = counts.sum(-1), counts @ [1, 0.5, 0]
    payoffs = np.divide(scores, games, out=np.full((n, n), 0.5), where=games > 0)
    elo, spread = anchored(*bradley_terry(scores, games), anchor)
    low, high = np.zeros((n, n)), np.ones((n, n))
    for i, j in np.argwhere(games > 0):
        _, low[i, j], high[i, j] = wilson(payoffs[i, j], games[i, j])
    mixture, (mass_low, mass_high) = nash(payoffs), nash_interval(counts)
    against = np.where(np.eye(n, dtype=bool) | (games == 0), 2.0, payoffs)  # nobody is a response to himself
    mu, sigma = openskill_ratings(counts)
    return {
        "payoffs": payoffs, "low": low, "high": high, "games": games, "elo": elo, "elo_spread": spread, "mu": mu,
        "sigma": sigma,
        "nash": mixture, "nash_low": mass_low, "nash_high": mass_high, "nash_score": payoffs @ mixture,
        "response": against.argmin(1),
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- playing


def play(args, game, player, opponent, progress):
    """One pairing → (won, tied, lost, seconds)"""
    start = time.perf_counter()
    names = [side.name if isinstance(side, models.Model) else side for side in (player, opponent)]
    save = evaluate.save_path(args.save, *names, several=True)
    scores = evaluate.GAMES[game].matches(player, opponent, args.episodes, args, save, progress)
    return int((scores == 1).sum()), int((scores == 0.5).sum()), int((scores == 0).sum()), time.perf_counter() - start


def worker_main(args, game, sources, tasks, done, progress):
    """The life of a process that plays: take a pairing, play it, say so. Ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    # an exit that unwinds, so that a game's own processes are ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    torch.set_num_threads(args.threads)
    parent, loaded = multiprocessing.parent_process(), {}  # not getppid: it may have died before this line

    def tell(slot, games):
        progress[slot] = games
        if not parent.is_alive():
            sys.exit(1)  # a pairing may take hours: nobody waits for it any more

    try:
        while parent.is_alive():
            with contextlib.suppress(queue.Empty):
                number, names = tasks.get(timeout=1.0)
                for name in names:
                    if name not in loaded:
                        path, searches = sources[name]
                        loaded[name] = models.load(path, game, args.trust_source) if path else name
                        if searches:
                            loaded[name] = evaluate.with_search(loaded[name])
                result = play(
                    args, game, *(loaded[name] for name in names), lambda games, slot=number: tell(slot, games)
                )
                done.put((names, result, ""))
    except (models.ModelError, ValueError, OSError) as error:  # a loadout that is not there, a file that has vanished
        done.put((names, None, f"{' against '.join(names)}: {error}"))
    except Exception:
        done.put((names, None, f"{' against '.join(names)}:\n{traceback.format_exc()}"))


def play_in_processes(args, game, players, pairs, show):
    """Yields (pair, result) as they are finished, in any order."""
    context = multiprocessing.get_context("spawn")
    tasks, done, progress = context.Queue(), context.Queue(), context.Array("q", len(pairs))
    sources = {
        name: (str(player.path), player.searches) if isinstance(player, models.Model) else ("", False)
        for name, player in players.items()
    }
    workers = [
        context.Process(
            target=worker_main, args=(args, game, sources, tasks, done, progress), name=f"arena-{i}", daemon=True
        )
        for i in range(min(args.jobs, len(pairs)))
    ]
    for number, pair in enumerate(pairs):
        tasks.put((number, pair))
    finished = 0
    try:
        for worker in workers:
            worker.start()
        while finished < len(pairs):
            with contextlib.suppress(queue.Empty):
                names, result, error = done.get(timeout=0.25)
                if error:
                    raise models.ModelError(error)
                finished += 1
                yield names, result
            show(sum(progress))
            for worker in workers:
                if worker.exitcode is not None and done.empty():
                    raise models.ModelError(
                        f"A process that played (pid {worker.pid}) died with exit code {worker.exitcode}."
                    )
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.terminate()
        for worker in workers:
            if worker.pid is not None:
                worker.join()


def play_here(args, game, players, pairs, show):
    for number, (first, second) in enumerate(pairs):
        try:
            result = play(
                args,
                game,
                players[first],
                players[second],
                lambda games, before=number: show(before * args.episodes + games),
            )
        except (ValueError, OSError) as error:
            raise models.ModelError(f"{first} against {second}: {error}") from None
        yield (first, second), result


# -------------------------------------------------------------------------------------------------------------- results


def game_hash(game):
    """Changes with any file of the game's shim: old results were played by other rules, or by other scripted
    players."""
    digest = hashlib.sha256()
    if game in models.SHIMS:
        folder = Path(importlib.import_module(models.SHIMS[game]).__file__).parent
        for path in sorted(
            path for path in folder.rglob("*") if path.suffix in (".py", ".js", ".yaml", ".json", ".txt")
        ):
            if "node_modules" not in path.parts:
                digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def identities(players):
    """Who a name is: a model by the hash of its file and whether it searches, a scripted player by its name."""
    return {
        name: file_hash(player.path) + (" + search" if player.searches else "")
        if isinstance(player, models.Model)
        else f"scripted {name}"
        for name, player in players.items()
    }


class Book:
    """The results in arena.json. A result counts only as long as both players, the game and the settings are what they
    were."""

    def __init__(self, folder, game, args, who):
        ignored = (
            "players",
            "against",
            "json",
            "save",
            "output",
            "baselines",
            "anchor",
            "jobs",
            "threads",
            "trust_source",
            "game",
        )
        self.path, self.who, self.game = folder / "arena.json", who, game
        self.settings = {name: value for name, value in dataclasses.asdict(args).items() if name not in ignored}
        self.results, self.known, self.changed = {}, {}, []
        conditions = json.dumps([game, game_hash(game), self.settings], sort_keys=True)
        self.conditions = hashlib.sha256(conditions.encode()).hexdigest()[:16]
        if self.path.exists():
            try:
                stored = json.loads(self.path.read_text())
                self.known = {entry["key"]: entry for entry in stored["pairings"]}
                told, before = stored["game"], stored["players"]
                if not all(
                    {"player", "opponent", "won", "tied", "lost", "seconds"} <= entry.keys()
                    for entry in self.known.values()
                ):
                    raise KeyError("a pairing's results")
                self.changed = [name for name in who if name in before and before[name] != who[name]]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise models.ModelError(
                    f"{self.path} is not an arena's results ({first_line(error)}): choose another --output."
                ) from None
            if told != game:
                raise models.ModelError(
                    f"{folder} is an arena of {told}, these players are of {game}: choose another --output."
                )

    def key(self, pair):
        return f"{self.conditions} {' '.join(self.who[name] for name in pair)}"

    def missing(self, pairs):
        """Takes over what is known of these pairings → those still to be played"""
        for pair in pairs:
            if self.key(pair) in self.known:
                self.results[pair] = self.known[self.key(pair)]
        return [pair for pair in pairs if pair not in self.results]

    def add(self, pair, result):
        won, tied, lost, seconds = result
        entry = {
            "player": pair[0],
            "opponent": pair[1],
            "won": won,
            "tied": tied,
            "lost": lost,
            "seconds": round(seconds, 2),
        }
        self.results[pair] = self.known[self.key(pair)] = {"key": self.key(pair), **entry}

    def save(self):
        # Results of other settings and of players left out this time stay in the file, for when they are wanted again.
        content = {
            "game": self.game,
            "settings": self.settings,
            "players": self.who,
            "pairings": list(self.known.values()),
        }
        write_atomically(self.path, lambda path: path.write_text(json.dumps(content, indent=1) + "\n"))

    def counts(self, names):
        counts = np.zeros((len(names), len(names), 3), np.int64)
        for i, j in itertools.combinations(range(len(names)), 2):
            if (names[i], names[j]) in self.results:
                counts[i, j] = [self.results[names[i], names[j]][key] for key in ("won", "tied", "lost")]
        return counts


def order(found):
    """Best first."""
    return np.argsort(-found["elo"], kind="stable")


def ratings_table(names, found):
    """→ rows of {column: value}, best first"""
    rows = []
    for i in order(found):
        beaten_by = found["response"][i]
        rate, low = 1 - found["payoffs"][i, beaten_by], 1 - found["high"][i, beaten_by]
        # a stopped arena may not have shown one yet
        responder = names[beaten_by] if found["games"][i, beaten_by] else ""
        rows.append(
            {
                "player": names[i], "elo": round(found["elo"][i], 1), "elo_spread": round(found["elo_spread"][i], 1),
                "openskill_mu": round(found["mu"][i], 2), "openskill_sigma": round(found["sigma"][i], 2),
                "nash_mass": round(found["nash"][i], 4), "nash_mass_low": round(found["nash_low"][i], 4),
                "nash_mass_high": round(found["nash_high"][i], 4),
                "score_against_nash": round(found["nash_score"][i], 4),
                "mean_score": round(np.delete(found["payoffs"][i], i).mean(), 4), "best_response": responder,
                "best_response_score": round(rate, 4), "best_response_low": round(low, 4),
            }
        )  # fmt: skip
    return rows


def markdown(names, found, title):
    rows, best = ratings_table(names, found), order(found)
    lines = [
        f"# {title}",
        "",
        "| | player | Elo | openskill | in the equilibrium | against it | mean | best response |",
        "|---:|---|---|---|---|---|---|---|",
    ]
    for number, row in enumerate(rows, 1):
        response = f"{row['best_response']}: {row['best_response_score']:.1%}"
        if not row["best_response"]:
            response = "–"
        elif row["best_response_score"] <= 0.5:
            response = f"nobody ({response})"
        elif row["best_response_low"] <= 0.5:
            response += ", perhaps no more than even"
        lines.append(
            f"| {number} | {row['player']} | {row['elo']:.0f} ± {row['elo_spread']:.0f} | {row['openskill_mu']:.1f} ± "
            f"{1.96 * row['openskill_sigma']:.1f} | {row['nash_mass']:.1%} ({row['nash_mass_low']:.0%} – "
            f"{row['nash_mass_high']:.0%}) | "
            f"{row['score_against_nash']:.1%} | {row['mean_score']:.1%} | {response} |"
        )
    lines += [
        "",
        "Score of the row's player against the column's, a tie counting half, with its 95 % interval (Wilson):",
        "",
    ]
    lines += [
        "| | | " + " | ".join(str(number) for number in range(1, len(names) + 1)) + " |",
        "|---:|---|" + "---|" * len(names),
    ]
    for number, i in enumerate(best, 1):
        cells = [
            f"{found['payoffs'][i, j]:.1%} ({found['low'][i, j]:.0%} – {found['high'][i, j]:.0%})" if i != j else ""
            for j in best
        ]
        lines.append(f"| {number} | {names[i]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_csv(path, rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, lambda temporary: temporary.write_text(text.getvalue()))


def shorten(name, length=28):
    """Run names differ at both ends: the middle goes."""
    return name if len(name) <= length else f"{name[: length // 2 - 1]}…{name[-length // 2 :]}"


def heatmap(path, names, found, title):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    best, n = order(found), len(names)
    figure, axis = plt.subplots(figsize=(4.5 + 0.62 * n, 2.2 + 0.5 * n))
    shown = axis.imshow(found["payoffs"][np.ix_(best, best)], cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    axis.set_yticks(range(n), [f"{shorten(names[i])}  {number}" for number, i in enumerate(best, 1)], fontsize=9)
    axis.set_xticks(range(n), range(1, n + 1), fontsize=9)
    for row, i in enumerate(best):
        for column, j in enumerate(best):
            if i != j:
                rate = found["payoffs"][i, j]
                axis.text(
                    column,
                    row,
                    f"{100 * rate:.0f}",
                    ha="center",
                    va="center",
                    color="w" if abs(rate - 0.5) > 0.3 else "k",
                    fontsize=9,
                )
    axis.set_title(title, fontsize=10)
    figure.colorbar(shown, ax=axis, label="score of the row's player")
    figure.tight_layout()
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=110))
    plt.close(figure)


def write_results(folder, names, book, args):
    """Everything but arena.json → (ratings, Markdown)"""
    found = analyse(book.counts(names), names.index(args.anchor) if args.anchor else None)
    best = order(found)
    title = f"{book.game}: {len(names)} players, {args.episodes:,} games a pairing, seed {args.seed}"
    total = len(names) * (len(names) - 1) // 2
    title += "" if len(book.results) == total else f" ({len(book.results)} of {total} pairings)"
    rows, text = ratings_table(names, found), markdown(names, found, title)
    write_atomically(folder / "arena.md", lambda path: path.write_text(text))
    write_csv(folder / "ratings.csv", rows)
    pairs = [(i, j) for i in best for j in best if i != j and found["games"][i, j]]
    columns = {"score": "payoffs", "low": "low", "high": "high"}
    write_csv(
        folder / "pairings.csv",
        [
            {"player": names[i], "opponent": names[j], "games": found["games"][i, j]}
            | {name: round(found[key][i, j], 5) for name, key in columns.items()}
            for i, j in pairs
        ],
    )
    heatmap(folder / "heatmap.png", names, found, title)
    return rows, text


# ------------------------------------------------------------------------------------------------------------- the tool


def gather(args):
    """→ (game, {name: Model or scripted player's name})"""
    game, players, _ = evaluate.find_players(dataclasses.replace(args, search=""))
    if args.search:
        if game != "vgc":
            raise models.ModelError(f"--search is for VGC, these are players of {game}.")
        modelled = {name: player for name, player in players.items() if isinstance(player, models.Model)}
        players |= {f"{name} + search": evaluate.with_search(player) for name, player in modelled.items()}
    if args.baselines:
        players |= {name: name for name in evaluate.GAMES[game].baselines()}
    if len(players) < 2:
        raise models.ModelError(f"An arena needs at least two players, found {len(players)}.")
    if args.anchor and args.anchor not in players:
        raise models.ModelError(
            f"--anchor should name one of the players ({', '.join(players)}), found {args.anchor!r}."
        )
    return game, players


def main(argv=None):
    args = parse_flags(Args, __doc__, argv)
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    stopped = False
    evaluate.check(args)
    torch.set_num_threads(args.threads)
    game, players = gather(args)
    folder = Path(args.output or f"runs/arena__{game}__{int(time.time())}")
    if folder.exists() and not folder.is_dir():
        raise models.ModelError(f"--output {folder} is a file; it should be a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    book = Book(folder, game, args, identities(players))
    names = list(players)
    pairs = list(itertools.combinations(names, 2))
    todo = book.missing(pairs)
    for name in book.changed:
        print(f"{name} has changed since it last played here: its games are played again.", file=sys.stderr)
    print(
        f"{folder}: {len(pairs) - len(todo)} of {len(pairs)} pairings are known, {len(todo)} to play",
        file=sys.stderr,
        flush=True,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("games", total=len(todo) * args.episodes)
        playing = (play_in_processes if args.jobs and todo else play_here)(
            args, game, players, todo, lambda done: bar.update(task, completed=done)
        )
        try:
            with contextlib.closing(playing):
                for pair, result in playing:
                    book.add(pair, result)
                    book.save()
                    if bar.disable:  # no terminal: a line per pairing says that it is alive
                        print(f"{len(book.results)} of {len(pairs)} pairings done", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            stopped = True
    if not book.results:
        raise SystemExit("Stopped before a pairing was finished.")
    rows, text = write_results(folder, names, book, args)
    Console(width=None if sys.stdout.isatty() else 200).print(Markdown(text) if sys.stdout.isatty() else text)
    print(f"tables and heat map: {folder}")
    if stopped:
        raise SystemExit(
            f"Stopped: {len(book.results)} of {len(pairs)} pairings are finished; the same command with --output "
            f"{folder} goes on."
        )
    figures = {"players": len(names), "pairings": len(pairs)}
    print(
        json.dumps(
            figures
            | {
                f"{key}/{row['player']}": float(row[key])
                for row in rows
                for key in ("elo", "nash_mass", "score_against_nash")
            }
        )
    )
    return rows


if __name__ == "__main__":
    # as Ctrl-C: what is finished is written, what plays is ended
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
