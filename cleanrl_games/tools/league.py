"""Ratings of a Rocket League run that people can read: who was in its league, how strong they were over time, who beat
whom.

    python cleanrl_games/tools/league.py runs/<run> [--output FOLDER]
    python cleanrl_games/tools/league.py --pin 200 --team-size 1    # what the scripted players' ratings should be

Everything comes from the run's games.csv, one line per rating match. FOLDER (the run's league/ unless given) gets
members.csv, ratings.csv (Elo and openskill after every evaluation), wins.csv (goals won, tied and lost of each pair)
and league.png. The last line printed is a JSON object.
"""

import csv
import dataclasses
import io
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Annotated

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import tyro

from cleanrl_games.envs.rocketleague.scripted import PLAYERS
from cleanrl_games.recurrent_ppo_rocketleague import GAME_COLUMNS, TIE, new_rating, rate_match
from cleanrl_games.runtime.errors import BadInput, end_in_sentences
from cleanrl_games.runtime.files import write_atomically

MOST_SHOWN = 24  # members in the picture


@dataclasses.dataclass
class Args:
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ""
    """the folder of a Rocket League run"""
    output: str = ""
    """where to write; empty = league/ in the run's folder"""
    pin: int = 0
    """instead: play so many kickoffs of each pair of scripted players and print the ratings they should be pinned at"""
    team_size: int = 1
    """cars per team in --pin"""
    seed: int = 1
    """seed of --pin"""


# -------------------------------------------------------------------------------------------------------- a run's games


def fit_elo(wins, fixed, elo=1500.0):
    """Most likely Elos of players who won so many goals of each other (wins[i, j]: of i against j), with player number
    `fixed` at `elo`.

    Zermelo's iteration. Half a goal for either side is added to each pair that met, so that one who never scored is
    rated as far down as so many games can show, not infinitely."""
    met = (wins + wins.T) > 0
    wins = wins + 0.5 * met
    games, strength = wins + wins.T, np.ones(len(wins))
    for _ in range(10_000):
        before = strength
        strength = wins.sum(1) / (games / (strength[:, None] + strength)).sum(1)
        strength /= strength[fixed]
        if np.abs(np.log(strength / before)).max() < 1e-10:
            break
    return elo + 400 * np.log10(strength)


def read_games(path):
    """games.csv → [{column: value}], numbers as numbers; a sentence for what is not such a file"""
    if not path.is_file():
        raise BadInput(
            f"There is no {path}: give the folder of a Rocket League run that has been evaluated at least once."
        )
    kinds = {
        "global_step": int,
        "team_size": int,
        "score": float,
        "seconds": float,
        "player_elo": float,
        "opponent_elo": float,
    }
    games = []
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != GAME_COLUMNS:
            raise BadInput(
                f"{path} has the columns {reader.fieldnames}, not those of games.csv: {', '.join(GAME_COLUMNS)}."
            )
        for line in reader:
            try:
                game = {name: kinds.get(name, str)(line[name]) for name in GAME_COLUMNS}
            except (TypeError, ValueError):
                raise BadInput(f"Line {reader.line_num} of {path} is not a game: {line}.") from None
            if game["score"] not in (0.0, TIE, 1.0) or not 1 <= game["team_size"] <= 3:
                raise BadInput(f"Line {reader.line_num} of {path} has a score or team size that no game has: {line}.")
            games.append(game)
    if not games:
        raise BadInput(f"{path} has no game yet.")
    return games


def course_of(games):
    """[{global_step, player, opponent, elo, mu, sigma}]: everybody's ratings after each evaluation they played in.

    Elo is what the run itself had. openskill is computed again, goal by goal: a line of games.csv has no room for
    it."""
    ratings, course = {}, []
    for (step, stage), evaluation in itertools.groupby(games, key=lambda game: (game["global_step"], game["stage"])):
        seen = set()
        for game in evaluation:
            sides = []
            for side in ("player", "opponent"):
                name = game[side]
                rating = ratings.setdefault(name, new_rating(name, game[f"{side}_elo"]))
                sides.append(rating)
                seen.add(name)
            rate_match(*sides, [game["score"]], game["team_size"])
            for side, rating in zip(("player", "opponent"), sides):
                rating["elo"] = game[f"{side}_elo"]
        for name in sorted(seen):
            rating = ratings[name]
            numbers = {"elo": round(rating["elo"], 1), "mu": round(rating["mu"], 3), "sigma": round(rating["sigma"], 3)}
            course.append({"global_step": step, "stage": stage, "member": name, **numbers, "games": rating["games"]})
    return course


def count_results(games):
    """{(player, opponent): [won, tied, lost]}, seen from both sides"""
    results = {}
    for game in games:
        column = {1.0: 0, TIE: 1, 0.0: 2}[game["score"]]
        results.setdefault((game["player"], game["opponent"]), [0, 0, 0])[column] += 1
        results.setdefault((game["opponent"], game["player"]), [0, 0, 0])[2 - column] += 1
    return results


def members_table(course, results):
    """The last rating of each, with all its games: the strongest first"""
    last = {row["member"]: row for row in course}
    rows = []
    for name, row in last.items():
        won, tied, lost = np.sum([counts for (player, _), counts in results.items() if player == name], axis=0).tolist()
        rows.append(
            {
                "member": name,
                "elo": row["elo"],
                "mu": row["mu"],
                "sigma": row["sigma"],
                "won": won,
                "tied": tied,
                "lost": lost,
            }
            | {"last_played": row["global_step"]}
        )
    return sorted(rows, key=lambda row: -row["elo"])


# ---------------------------------------------------------------------------------------------------------------- files


def write_csv(path, rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, lambda temporary: temporary.write_text(text.getvalue()))


def draw(path, course, members, results, title):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [row["member"] for row in members][:MOST_SHOWN]
    figure, (over_time, matrix) = plt.subplots(1, 2, figsize=(15, 6), width_ratios=(3, 2))
    agent = [row for row in course if row["member"] == "agent"]
    steps = [row["global_step"] / 1e6 for row in agent]
    over_time.plot(steps, [row["elo"] for row in agent], color="black", label="agent: Elo")
    for name in PLAYERS:  # pinned, in each team size at another place
        course_of_one = [row for row in course if row["member"] == name]
        if name in names:
            places = [row["global_step"] / 1e6 for row in course_of_one], [row["elo"] for row in course_of_one]
            over_time.step(*places, where="post", linestyle=":", color="grey")
            over_time.text(places[0][0], places[1][0], f" {name}", va="bottom", fontsize=8, color="grey")
    stages = [row for before, row in zip([{"stage": ""}, *agent], agent) if before["stage"] != row["stage"]]
    for row in stages:
        over_time.axvline(row["global_step"] / 1e6, linewidth=0.5, color="tab:green")
        over_time.annotate(
            row["stage"],
            (row["global_step"] / 1e6, 0.01),
            xycoords=("data", "axes fraction"),
            fontsize=8,
            color="tab:green",
        )
    skill = over_time.twinx()
    middle, spread = np.array([row["mu"] for row in agent]), np.array([row["sigma"] for row in agent])
    skill.plot(steps, middle, color="tab:blue", alpha=0.6)
    if agent:
        skill.fill_between(steps, middle - 2 * spread, middle + 2 * spread, color="tab:blue", alpha=0.12)
    skill.set_ylabel("agent: openskill (mu ± 2 sigma)", color="tab:blue")
    over_time.set_xlabel("million steps")
    over_time.set_ylabel("Elo")
    over_time.set_title(title, fontsize=10)

    share = np.full((len(names), len(names)), np.nan)
    for i, j in itertools.product(range(len(names)), repeat=2):
        won, _, lost = results.get((names[i], names[j]), (0, 0, 0))
        if won + lost:
            share[i, j] = won / (won + lost)
            matrix.text(j, i, f"{100 * share[i, j]:.0f}", ha="center", va="center", fontsize=7)
    matrix.imshow(share, cmap="RdBu", vmin=0, vmax=1)
    matrix.set_yticks(range(len(names)), names, fontsize=7)
    matrix.set_xticks(range(len(names)), names, fontsize=7, rotation=90)
    matrix.set_title("goals won by the row against the column, %", fontsize=10)
    figure.tight_layout()
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=110))
    plt.close(figure)


def show(members):
    print(f"{'member':<28}{'Elo':>8}{'openskill':>18}{'won':>7}{'tied':>7}{'lost':>7}{'last played':>15}")
    for row in members:
        skill = f"{row['mu']:.1f} ± {2 * row['sigma']:.1f}"
        numbers = "".join(f"{row[name]:>7,}" for name in ("won", "tied", "lost"))
        print(f"{row['member']:<28}{row['elo']:>8.0f}{skill:>18}{numbers}{row['last_played']:>15,}")


# ----------------------------------------------------------------------------------------------------- scripted players


def pin(kickoffs, team_size, seed):
    """Every pair of scripted players over so many kickoffs → {name: Elo}, from goals only, with `rule` at 1500"""
    from cleanrl_games.envs.rocketleague.match import play_kickoffs
    from cleanrl_games.envs.rocketleague.scripted import ScriptedPlayer

    wins = np.zeros((len(PLAYERS), len(PLAYERS)))
    for i, j in itertools.combinations(range(len(PLAYERS)), 2):
        scores = []
        for done in range(0, kickoffs, 200):
            players = ScriptedPlayer(PLAYERS[i], seed + done), ScriptedPlayer(PLAYERS[j], seed + done + 1)
            limits = {"max_seconds": 60.0, "no_touch_seconds": 60.0}
            batch, _ = play_kickoffs(*players, min(200, kickoffs - done), seed + done, team_size, **limits)
            scores.append(batch)
        scores = np.concatenate(scores)
        wins[i, j], wins[j, i] = (scores == 1).sum(), (scores == 0).sum()
        told = f"{int(wins[i, j])} won, {int((scores == TIE).sum())} tied, {int(wins[j, i])} lost"
        print(f"{PLAYERS[i]} against {PLAYERS[j]}: {told}", flush=True)
    return dict(zip(PLAYERS, fit_elo(wins, PLAYERS.index("rule")).round(1).tolist()))


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    if args.pin < 0 or bool(args.pin) == bool(args.run):
        raise BadInput("Give either the folder of a run or --pin with a number of kickoffs.")
    if args.team_size not in (1, 2, 3):
        raise BadInput(f"--team-size should be 1, 2 or 3, found {args.team_size}.")
    if args.pin:
        found = pin(args.pin, args.team_size, args.seed)
        print(json.dumps({f"elo/{name}": elo for name, elo in found.items()}))
        return found
    folder = Path(args.run)
    games = read_games(folder / "games.csv")
    output = Path(args.output) if args.output else folder / "league"
    if output.exists() and not output.is_dir():
        raise BadInput(f"--output {output} is a file; it should be a folder.")
    course, results = course_of(games), count_results(games)
    members = members_table(course, results)
    output.mkdir(parents=True, exist_ok=True)
    write_csv(output / "members.csv", members)
    write_csv(output / "ratings.csv", course)
    pairs = [
        {"player": player, "opponent": opponent} | dict(zip(("won", "tied", "lost"), counts))
        for (player, opponent), counts in results.items()
    ]
    write_csv(output / "wins.csv", pairs)
    draw(output / "league.png", course, members, results, folder.resolve().name)
    show(members)
    print(f"tables and picture: {output}")
    figures = {"games": len(games), "members": len(members)}
    print(json.dumps(figures | {f"elo/{row['member']}": row["elo"] for row in members}))
    return members


if __name__ == "__main__":
    end_in_sentences()
    main()
