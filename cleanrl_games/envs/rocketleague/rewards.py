"""What a step brought each player, as a matrix of named components (contract.REWARD_TERMS). What they are paid is the
caller's choice."""

import numpy as np
from numba import njit

from .contract import BACK_WALL, BALL_MAX_SPEED, CAR_MAX_SPEED, CEILING, GOAL_HEIGHT, NUM_TERMS, TERM_INDEX
from .observations import (
    BALL_POSITION,
    BALL_VELOCITY,
    BLUE_SCORE,
    BOOST,
    DEMOED,
    DEMOS,
    FORWARD,
    GOALS,
    ON_GROUND,
    PICKUPS,
    POSITION,
    SAVES,
    SHOTS,
    TOUCHED,
    VELOCITY,
)

HIGH_TOUCH = 250.0  # where a ball is out of reach from the ground

(GOAL_T, CONCEDE_T, SCORER_T, SHOT_T, SAVE_T, DEMO_T, DEMOED_T, TOUCH_T, STRENGTH_T, HEIGHT_T, TO_BALL_T, TO_GOAL_T,
    FACE_T, AIR_T, PICKUP_T,
 GAINED_T, KEPT_T, LOST_T) = range(NUM_TERMS)  # fmt: skip
assert TERM_INDEX["boost_lost"] == LOST_T and TERM_INDEX["touch"] == TOUCH_T and TERM_INDEX["face_ball"] == FACE_T


@njit(cache=True)
def towards(vx, vy, vz, dx, dy, dz):
    """Length of v along the direction d"""
    length = np.sqrt(dx * dx + dy * dy + dz * dz)
    return (vx * dx + vy * dy + vz * dz) / length if length > 1e-6 else 0.0


@njit(cache=True)
def score_arenas(first, sizes, cars, balls, games, old_cars, old_balls, old_games, terms):
    """Writes the components of every player. Counters of RocketSim run on, so an event is a difference between two
    steps.

    A goal shows in the score once, though the simulator reports it on every tick the ball lies in the net.
    """
    terms[:] = 0.0
    for i in range(len(sizes)):
        ball, old_ball = balls[i], old_balls[i]
        bx, by, bz = ball[BALL_POSITION], ball[BALL_POSITION + 1], ball[BALL_POSITION + 2]
        vx, vy, vz = ball[BALL_VELOCITY], ball[BALL_VELOCITY + 1], ball[BALL_VELOCITY + 2]
        change = np.sqrt(
            (vx - old_ball[BALL_VELOCITY]) ** 2
            + (vy - old_ball[BALL_VELOCITY + 1]) ** 2
            + (vz - old_ball[BALL_VELOCITY + 2]) ** 2
        )
        for me in range(first[i], first[i] + 2 * sizes[i]):
            car, old, row = cars[me], old_cars[me], terms[me]
            team = 0 if me - first[i] < sizes[i] else 1
            row[GOAL_T] = games[i, BLUE_SCORE + team] > old_games[i, BLUE_SCORE + team]
            row[CONCEDE_T] = games[i, BLUE_SCORE + 1 - team] > old_games[i, BLUE_SCORE + 1 - team]
            row[SCORER_T] = car[GOALS] - old[GOALS]
            row[SHOT_T] = car[SHOTS] - old[SHOTS]
            row[SAVE_T] = car[SAVES] - old[SAVES]
            row[DEMO_T] = car[DEMOS] - old[DEMOS]
            row[PICKUP_T] = car[PICKUPS] - old[PICKUPS]
            row[DEMOED_T] = car[DEMOED] > 0 and old[DEMOED] == 0
            if car[TOUCHED] > 0:
                row[STRENGTH_T] = change / BALL_MAX_SPEED
                if old[TOUCHED] == 0:  # one hit may last into the next step
                    row[TOUCH_T] = 1.0
                    row[HEIGHT_T] = bz / CEILING if bz > HIGH_TOUCH else 0.0
            goal_y = (BACK_WALL if team == 0 else -BACK_WALL) - by
            row[TO_GOAL_T] = towards(vx, vy, vz, -bx, goal_y, GOAL_HEIGHT / 2 - bz) / BALL_MAX_SPEED
            if car[DEMOED] > 0:  # a wreck neither drives nor looks nor burns boost
                continue
            dx, dy, dz = bx - car[POSITION], by - car[POSITION + 1], bz - car[POSITION + 2]
            row[TO_BALL_T] = towards(car[VELOCITY], car[VELOCITY + 1], car[VELOCITY + 2], dx, dy, dz) / CAR_MAX_SPEED
            row[FACE_T] = towards(car[FORWARD], car[FORWARD + 1], car[FORWARD + 2], dx, dy, dz)
            row[AIR_T] = car[ON_GROUND] == 0
            kept = np.sqrt(max(car[BOOST], 0.0) * 0.01)
            row[KEPT_T] = kept
            if old[DEMOED] == 0:  # coming back with new boost is no pickup
                gained = kept - np.sqrt(max(old[BOOST], 0.0) * 0.01)
                row[GAINED_T] = max(gained, 0.0)
                row[LOST_T] = max(-gained, 0.0)
