"""Where an episode begins. A setter draws one situation: `setter(rng, size)` → ball (9,), cars (2 · size, 19).

Ball: position, velocity, angular velocity. Car: the same, then nose, right side, roof (unit vectors) and boost (0 to
100). Blue cars come first. "file" takes situations that `save_states` wrote.
"""

import zipfile
from pathlib import Path

import numpy as np
import RocketSim

from .contract import BACK_WALL, BALL_REST_HEIGHT, CAR_REST_HEIGHT, MAX_TEAM

BALL_SIZE, CAR_SIZE = 9, 19
CLEARANCE = 300.0  # between any two cars, and between a car and the ball


def inside(rng, low_z, high_z):
    """A point well away from walls, corners and ramps"""
    while True:
        x, y = rng.uniform(-3500, 3500), rng.uniform(-4500, 4500)
        if abs(x) + abs(y) < 6800:
            return np.array([x, y, rng.uniform(low_z, high_z)])


def axes(yaw, pitch=0.0, roll=0.0):
    """Nose, right side and roof of a car so turned → (9,)"""
    cy, sy, cp, sp, cr, sr = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch), np.cos(roll), np.sin(roll)
    nose = [cp * cy, cp * sy, sp]
    right = [cy * sp * sr - cr * sy, sy * sp * sr + cr * cy, -cp * sr]
    roof = [-cr * cy * sp - sr * sy, -cr * sy * sp + sr * cy, cp * cr]
    return np.array(nose + right + roof)


def car(position, yaw, velocity=(0, 0, 0), spin=(0, 0, 0), boost=33.3, pitch=0.0, roll=0.0):
    return np.concatenate([position, velocity, spin, axes(yaw, pitch, roll), [boost]])


def bearing(origin, target):
    return np.arctan2(target[1] - origin[1], target[0] - origin[0])


def free(point, taken):
    return all(np.linalg.norm(point - other) > CLEARANCE for other in taken)


def place(draw, taken):
    """Draws points until one keeps clear of those taken"""
    for _ in range(1000):
        point = draw()
        if free(point, taken):
            taken.append(point)
            return point
    raise RuntimeError(
        "No free place was found for a car in 1,000 draws: the state setter draws from too small a space."
    )


def ground(point):
    """The nearest place on the floor that is clear of walls and corners"""
    x, y = np.clip(point[0], -3500, 3500), np.clip(point[1], -4600, 4600)
    shrink = min(1.0, 7200 / (abs(x) + abs(y) + 1e-6))
    return np.array([x * shrink, y * shrink, CAR_REST_HEIGHT])


# Places of a kickoff for blue: x, y, half turns. Orange's are turned by 180 degrees.
KICKOFF_PLACES = ((-2048, -2560, 0.25), (2048, -2560, 0.75), (-256, -3840, 0.5), (256, -3840, 0.5), (0, -4608, 0.5))
SPAWN_BOOST = 100 / 3


def spawn(place, team):
    x, y, half_turns = place
    side = 1 if team == 0 else -1
    return car((side * x, side * y, CAR_REST_HEIGHT), np.pi * (half_turns + team), boost=SPAWN_BOOST)


def kickoff_state(rng, size):
    """The ball in the middle, the teams on mirrored places"""
    places = rng.permutation(len(KICKOFF_PLACES))[:size]
    ball = np.array([0, 0, BALL_REST_HEIGHT, 0, 0, 0, 0, 0, 0], np.float64)
    return ball, np.array([spawn(KICKOFF_PLACES[i], team) for team in (0, 1) for i in places])


def random_state(rng, size):
    """Ball and cars anywhere, half of the cars in the air, any speed"""
    ball = inside(rng, BALL_REST_HEIGHT, 1600)
    taken, cars = [ball], []
    for _ in range(2 * size):
        flying = rng.random() < 0.5
        point = place(lambda flying=flying: inside(rng, 150, 1600) if flying else ground(inside(rng, 0, 0)), taken)
        yaw, boost = rng.uniform(-np.pi, np.pi), rng.uniform(0, 100)
        if flying:
            turn = {"pitch": rng.uniform(-1.5, 1.5), "roll": rng.uniform(-3, 3), "spin": rng.uniform(-3, 3, 3)}
            cars.append(car(point, yaw, rng.uniform(-1200, 1200, 3), boost=boost, **turn))
        else:
            cars.append(car(point, yaw, axes(yaw)[:3] * rng.uniform(0, 2000), boost=boost))
    return np.concatenate([ball, rng.uniform(-1500, 1500, 3), rng.uniform(-4, 4, 3)]), np.array(cars)


def near_ball_state(rng, size):
    """A slow ball on or near the ground and all cars around it, roughly facing it: the easiest way to a first touch"""
    ball = inside(rng, BALL_REST_HEIGHT, 300)
    taken, cars = [ball], []
    for _ in range(2 * size):

        def draw():
            angle, distance = rng.uniform(-np.pi, np.pi), rng.uniform(400, 1600)
            return ground(ball + distance * np.array([np.cos(angle), np.sin(angle), 0]))

        point = place(draw, taken)
        yaw = bearing(point, ball) + rng.normal(0, 0.4)
        cars.append(car(point, yaw, axes(yaw)[:3] * rng.uniform(0, 1000), boost=rng.uniform(10, 100)))
    return np.concatenate([ball, rng.uniform(-300, 300, 3), np.zeros(3)]), np.array(cars)


def goal_approach_state(rng, size):
    """The ball before one goal, the attackers behind it, the defenders between it and their goal; either team
    attacks"""
    end = rng.choice([-1.0, 1.0])  # +1: blue attacks
    goal = np.array([rng.uniform(-500, 500), end * BACK_WALL, 200.0])
    ball = np.array([rng.uniform(-2000, 2000), end * rng.uniform(1500, 3600), rng.uniform(BALL_REST_HEIGHT, 500)])
    speed = (goal - ball) / np.linalg.norm(goal - ball) * rng.uniform(0, 1000)
    taken, cars = [ball], []
    for i in range(2 * size):
        attacks = (i < size) == (end > 0)

        def draw(attacks=attacks):
            if attacks:
                return ground([ball[0] + rng.uniform(-800, 800), ball[1] - end * rng.uniform(500, 1800), 0])
            return ground([rng.uniform(-1200, 1200), end * rng.uniform(abs(ball[1]) + 600, 4600), 0])

        point = place(draw, taken)
        yaw = bearing(point, ball) + rng.normal(0, 0.2)
        cars.append(car(point, yaw, axes(yaw)[:3] * rng.uniform(0, 1400), boost=rng.uniform(20, 100)))
    return np.concatenate([ball, speed, np.zeros(3)]), np.array(cars)


def aerial_state(rng, size):
    """A ball high in the air, cars below it with boost, some of them already flying towards it"""
    ball = inside(rng, 700, 1500)
    taken, cars = [ball], []
    for _ in range(2 * size):
        flying = rng.random() < 0.4

        def draw(flying=flying):
            offset = rng.uniform(-1500, 1500, 2)
            point = ground([ball[0] + offset[0], ball[1] + offset[1], 0])
            point[2] = rng.uniform(200, ball[2] - 200) if flying else CAR_REST_HEIGHT
            return point

        point = place(draw, taken)
        yaw, boost = bearing(point, ball) + rng.normal(0, 0.3), rng.uniform(50, 100)
        if flying:
            way = (ball - point) / np.linalg.norm(ball - point)
            cars.append(car(point, yaw, way * rng.uniform(300, 1200), boost=boost, pitch=np.arcsin(way[2])))
        else:
            cars.append(car(point, yaw, axes(yaw)[:3] * rng.uniform(0, 1200), boost=boost))
    return np.concatenate([ball, rng.uniform(-600, 600, 2), [rng.uniform(0, 700)], np.zeros(3)]), np.array(cars)


SETTERS = {
    "kickoff": kickoff_state,
    "random": random_state,
    "near_ball": near_ball_state,
    "goal_approach": goal_approach_state,
    "aerial": aerial_state,
}
STATE_NAMES = (*SETTERS, "file")


# ---------------------------------------------------------------------------------------------------------------- files


def save_states(path, states):
    """Writes situations [(ball, cars), …] into one .npz, to be replayed by `state_file=`"""
    balls, cars, sizes = [], np.zeros((len(states), 2 * MAX_TEAM, CAR_SIZE), np.float32), []
    for i, (ball, rows) in enumerate(states):
        check_state(ball, rows, f"State {i}")
        balls.append(ball)
        cars[i, : len(rows)] = rows
        sizes.append(len(rows) // 2)
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp.npz")
    np.savez_compressed(temporary, ball=np.array(balls, np.float32), cars=cars, team_size=np.array(sizes, np.int64))
    temporary.replace(path)


def load_states(path):
    """→ {team size: [(ball, cars), …]}, checked"""
    try:
        with np.load(path, allow_pickle=False) as file:
            balls, cars, sizes = file["ball"], file["cars"], file["team_size"]
    except FileNotFoundError:
        raise ValueError(f"There is no file of states at {path}.") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a file of states that save_states wrote: {error}.") from None
    if balls.shape != (len(sizes), BALL_SIZE) or cars.shape != (len(sizes), 2 * MAX_TEAM, CAR_SIZE):
        raise ValueError(
            f"{path} holds balls {balls.shape} and cars {cars.shape} for {len(sizes)} states: another version of the "
            f"format."
        )
    found = {}
    for i, size in enumerate(sizes):
        if not 1 <= size <= MAX_TEAM:
            raise ValueError(f"State {i} of {path} says {size} players per team; there are 1 to {MAX_TEAM}.")
        check_state(balls[i], cars[i, : 2 * size], f"State {i} of {path}")
        found.setdefault(int(size), []).append((balls[i], cars[i, : 2 * size]))
    return found


def check_team_sizes(path, sizes):
    """Raises a sentence unless the file has situations for all these numbers of cars per team → its states, as
    load_states"""
    found = load_states(path)
    missing = sorted(set(sizes) - set(found))
    if missing:
        words = " and ".join(f"{size} cars per team" for size in missing)
        raise ValueError(f"{path} has no state for {words}; it has some for {', '.join(map(str, sorted(found)))}.")
    return found


def check_state(ball, cars, name):
    """A value that is not finite would spread through the whole arena, and RocketSim would not say so."""
    if (
        np.shape(ball) != (BALL_SIZE,)
        or np.ndim(cars) != 2
        or np.shape(cars)[1] != CAR_SIZE
        or len(cars) % 2
        or not len(cars)
    ):
        raise ValueError(
            f"{name} has a ball {np.shape(ball)} and cars {np.shape(cars)}; expected (9,) and (2 · team size, 19)."
        )
    if not np.isfinite(ball).all():
        raise ValueError(f"{name} is broken: the ball has a value that is not finite: {np.asarray(ball).tolist()}.")
    for i, row in enumerate(cars):
        if not np.isfinite(row).all():
            raise ValueError(f"{name} is broken: car {i} has a value that is not finite: {np.asarray(row).tolist()}.")


# ---------------------------------------------------------------------------------------------------------------- arena


def vector(values):
    return RocketSim.Vec(*(float(value) for value in values))


def apply_state(arena, cars, ball, rows):
    """Puts ball and cars of an arena where the state says"""
    check_state(ball, rows, "A state")
    if len(rows) != len(cars):
        raise ValueError(f"A state for {len(rows)} cars was given to an arena of {len(cars)}.")
    state = RocketSim.BallState()
    state.pos, state.vel, state.ang_vel = vector(ball[:3]), vector(ball[3:6]), vector(ball[6:9])
    if ball[2] > BALL_REST_HEIGHT + 1 and not np.any(ball[3:6]):
        state.vel = RocketSim.Vec(0.0, 0.0, -1e-3)  # a ball set without any velocity would hang in the air
    arena.ball.set_state(state)
    for body, row in zip(cars, rows):
        state = RocketSim.CarState()
        state.pos, state.vel, state.ang_vel = vector(row[:3]), vector(row[3:6]), vector(row[6:9])
        state.rot_mat = RocketSim.RotMat(vector(row[9:12]), vector(row[12:15]), vector(row[15:18]))
        state.boost = float(row[18])
        body.set_state(state)
