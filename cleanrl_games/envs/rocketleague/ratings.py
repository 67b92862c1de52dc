"""Ratings from kickoff matches: Elo with the scripted players pinned, openskill's mu and sigma beside it, and
games.csv.

A rating is a dict: name, elo, mu, sigma, games, wins. Elo says who is stronger; openskill also says how sure that is,
and counts a team as its players. A goal is rated and a tie is not: were it worth half, one who keeps far from the ball
would be rated towards its opponent, however strong that is.
"""

import csv
from functools import cache

import numpy as np

# The scripted players. `rule` is the fixed point; the others by `tools/league.py --pin 200`: every pair in 1v1, goals
# only.
PINNED = {"rule": 1500.0, "aerial": 1706.4, "positional": 1594.0, "chaser": 1185.5, "random": 609.4}
COLUMNS = (
    "global_step",
    "stage",
    "team_size",
    "player",
    "opponent",
    "side",
    "score",
    "seconds",
    "player_elo",
    "opponent_elo",
)
K = 16.0
TIE = 0.5


@cache
def skill_model():
    from openskill.models import PlackettLuce  # takes a while, and actors never rate

    return PlackettLuce()


def new_rating(name, elo):
    return {"name": name, "elo": elo, "mu": skill_model().mu, "sigma": skill_model().sigma, "games": 0, "wins": 0.0}


def expected_score(elo, opponent_elo):
    return 1.0 / (1.0 + 10.0 ** ((np.asarray(opponent_elo) - elo) / 400.0))


def rate_match(player, opponent, scores, team_size):
    """Moves both ratings by these scores of `player`, goal by goal; scripted players keep their Elo, and a tie (0.5)
    moves nothing → [(Elo, opponent's Elo)] after each game"""
    model, course = skill_model(), []
    for score in scores:
        if score == TIE:
            course.append((player["elo"], opponent["elo"]))
            continue
        change = K * (float(score) - float(expected_score(player["elo"], opponent["elo"])))
        teams = [[model.rating(side["mu"], side["sigma"]) for _ in range(team_size)] for side in (player, opponent)]
        rated = model.rate(teams, scores=[float(score), 1 - float(score)])
        for side, team, sign, points in zip((player, opponent), rated, (1, -1), (score, 1 - score)):
            if side["name"] not in PINNED:
                side["elo"] += sign * change
            side["mu"], side["sigma"] = team[0].mu, team[0].sigma
            side["games"], side["wins"] = side["games"] + 1, side["wins"] + float(points)
        course.append((player["elo"], opponent["elo"]))
    return course


def append_games(path, global_step, stage, team_size, player, opponent, scores, seconds, course):
    """One line per game. Even games are played as blue, odd ones as orange, as `play_kickoffs` has it."""
    with open(path, "a", newline="") as file:
        writer = csv.writer(file)
        if not file.tell():
            writer.writerow(COLUMNS)
        for i, (score, time, elos) in enumerate(zip(scores, seconds, course)):
            side = "orange" if i % 2 else "blue"
            numbers = [float(score), round(float(time), 2), *(round(elo, 1) for elo in elos)]
            writer.writerow([global_step, stage, team_size, player, opponent, side, *numbers])


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
