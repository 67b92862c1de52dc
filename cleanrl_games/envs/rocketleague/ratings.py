"""Ratings from kickoff matches: Elo with the scripted players pinned, openskill's mu and sigma beside it, and games.csv.

A rating is a dict: name, elo, mu, sigma, games, wins. Elo says who is stronger; openskill also says how sure that is, and counts
a team as its players.
"""

import csv
from functools import cache

import numpy as np

# `rule` is the fixed point of the scale. `random` got 2.2 % of the points in 200 kickoffs against it in 1v1, some 650 below (docs).
ANCHORS = {"rule": 1500.0, "random": 850.0}
COLUMNS = ("global_step", "stage", "team_size", "player", "opponent", "side", "score", "seconds", "player_elo", "opponent_elo")
K = 16.0


@cache
def skill_model():
    from openskill.models import PlackettLuce  # takes a while, and actors never rate

    return PlackettLuce()


def new_rating(name, elo):
    return {"name": name, "elo": elo, "mu": skill_model().mu, "sigma": skill_model().sigma, "games": 0, "wins": 0.0}


def expected_score(elo, opponent_elo):
    return 1.0 / (1.0 + 10.0 ** ((np.asarray(opponent_elo) - elo) / 400.0))


def rate_match(player, opponent, scores, team_size):
    """Moves both ratings by these scores of `player`, game by game; anchors keep their Elo → [(Elo, opponent's Elo)] after each"""
    model, course = skill_model(), []
    for score in scores:
        change = K * (float(score) - float(expected_score(player["elo"], opponent["elo"])))
        teams = [[model.rating(side["mu"], side["sigma"]) for _ in range(team_size)] for side in (player, opponent)]
        rated = model.rate(teams, scores=[float(score), 1 - float(score)])
        for side, team, sign, points in zip((player, opponent), rated, (1, -1), (score, 1 - score)):
            if side["name"] not in ANCHORS:
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
