"""From RocketSim's rows to observations and masks, for all players of a batch at once. Compiled: one pass, no
temporaries."""

import numpy as np
from numba import njit

from .contract import (
    ACTION_TABLE,
    BACK_WALL,
    CORNER_WALL,
    DODGE_DEADLINE,
    FIRST_BALL,
    FIRST_FRAME,
    FIRST_JUMP,
    FIRST_LAST,
    FIRST_OTHER,
    FIRST_PAD,
    FLIP_SECONDS,
    GOAL_HEIGHT,
    HITBOX_HALF,
    HITBOX_OFFSET,
    MAX_TEAM,
    NO_OP,
    NUM_OBS,
    NUM_PADS,
    OTHER_SIZE,
    POSITION_SCALE,
    SIDE_WALL,
    SPIN_SCALE,
    VELOCITY_SCALE,
)

# Columns of a car's row in `Arena.get_gym_state()`: found by experiment, pinned by the tests.
GOALS, SAVES, SHOTS, DEMOS, PICKUPS, DEMOED, ON_GROUND, TOUCHED, BOOST = 2, 3, 4, 5, 6, 7, 8, 9, 10
POSITION, VELOCITY, SPIN, FORWARD, RIGHT, UP = 11, 18, 21, 24, 27, 30
BALL_POSITION, BALL_VELOCITY, BALL_SPIN = 0, 7, 10
BLUE_SCORE = 2  # in the game's row; orange's follows

# What the gym state leaves out, read from each car's own state.
CAR_FIELDS = (
    "last_controls.jump", "handbrake_val", "has_jumped", "is_jumping", "has_flipped", "has_double_jumped",
    "air_time_since_jump", "jump_time", "flip_time", "demo_respawn_timer", "time_spent_boosting", "supersonic_time",
)  # fmt: skip
(HOLDING_JUMP, HANDBRAKE, HAS_JUMPED, IS_JUMPING, HAS_FLIPPED, HAS_DOUBLE_JUMPED, AIR_TIME, JUMP_TIME, FLIP_TIME,
    DEMO_TIMER, BOOSTING,
 SUPERSONIC) = range(12)  # fmt: skip

_table = ACTION_TABLE
_PITCH, _ROLL, _JUMP, _BOOST = 2, 4, 5, 6


@njit(cache=True)
def dot(row, first, x, y, z):
    return row[first] * x + row[first + 1] * y + row[first + 2] * z


@njit(cache=True)
def to_frame(car, x, y, z, scale, out, at):
    """A world vector in the car's axes. The 180-degree turn of orange cancels out here, so no sign is needed."""
    out[at] = dot(car, FORWARD, x, y, z) * scale
    out[at + 1] = dot(car, RIGHT, x, y, z) * scale
    out[at + 2] = dot(car, UP, x, y, z) * scale


@njit(cache=True)
def own_side(row, first, side, scale, out, at):
    out[at] = row[first] * side * scale
    out[at + 1] = row[first + 1] * side * scale
    out[at + 2] = row[first + 2] * scale


@njit(cache=True)
def can_flip(car, field):
    spent = field[HAS_DOUBLE_JUMPED] > 0 or field[HAS_FLIPPED] > 0 or field[AIR_TIME] >= DODGE_DEADLINE
    return not spent and car[ON_GROUND] == 0 and field[HOLDING_JUMP] == 0


@njit(cache=True)
def observe_other(car, other, field, out, at):
    out[at] = 1.0
    dx, dy, dz = (
        other[POSITION] - car[POSITION],
        other[POSITION + 1] - car[POSITION + 1],
        other[POSITION + 2] - car[POSITION + 2],
    )
    to_frame(car, dx, dy, dz, POSITION_SCALE, out, at + 1)
    dx, dy, dz = (
        other[VELOCITY] - car[VELOCITY],
        other[VELOCITY + 1] - car[VELOCITY + 1],
        other[VELOCITY + 2] - car[VELOCITY + 2],
    )
    to_frame(car, dx, dy, dz, VELOCITY_SCALE, out, at + 4)
    to_frame(car, other[FORWARD], other[FORWARD + 1], other[FORWARD + 2], 1.0, out, at + 7)
    to_frame(car, other[UP], other[UP + 1], other[UP + 2], 1.0, out, at + 10)
    to_frame(car, other[SPIN], other[SPIN + 1], other[SPIN + 2], SPIN_SCALE, out, at + 13)
    out[at + 16] = other[BOOST] * 0.01
    out[at + 17] = field[DEMO_TIMER]
    out[at + 18] = other[ON_GROUND]
    out[at + 19] = field[SUPERSONIC] > 0


@njit(cache=True)
def observe_player(me, first, size, cars, fields, ball, timers, last_action, out):
    """Writes one player's row. `first` is the arena's first player; blue players come before orange ones."""
    car, field = cars[me], fields[me]
    blue = me - first < size
    side = 1.0 if blue else -1.0
    own_side(car, POSITION, side, POSITION_SCALE, out, 0)
    own_side(car, FORWARD, side, 1.0, out, 3)
    own_side(car, UP, side, 1.0, out, 6)
    own_side(car, VELOCITY, side, VELOCITY_SCALE, out, 9)
    own_side(car, SPIN, side, SPIN_SCALE, out, 12)
    out[15] = car[BOOST] * 0.01
    out[16] = field[DEMO_TIMER]
    out[17] = car[ON_GROUND]
    out[18] = field[BOOSTING] > 0
    out[19] = field[SUPERSONIC] > 0

    at = FIRST_JUMP
    out[at] = field[HOLDING_JUMP]
    out[at + 1] = field[HANDBRAKE]
    out[at + 2] = field[HAS_JUMPED]
    out[at + 3] = field[IS_JUMPING]
    out[at + 4] = field[HAS_FLIPPED]
    out[at + 5] = field[HAS_FLIPPED] > 0 and field[FLIP_TIME] < FLIP_SECONDS
    out[at + 6] = field[HAS_DOUBLE_JUMPED]
    out[at + 7] = can_flip(car, field)
    out[at + 8] = field[AIR_TIME]
    out[at + 9] = field[JUMP_TIME]
    out[at + 10] = field[FLIP_TIME]

    own_side(ball, BALL_POSITION, side, POSITION_SCALE, out, FIRST_BALL)
    own_side(ball, BALL_VELOCITY, side, VELOCITY_SCALE, out, FIRST_BALL + 3)
    own_side(ball, BALL_SPIN, side, SPIN_SCALE, out, FIRST_BALL + 6)

    at = FIRST_FRAME
    x, y, z = car[POSITION], car[POSITION + 1], car[POSITION + 2]
    to_frame(car, car[VELOCITY], car[VELOCITY + 1], car[VELOCITY + 2], VELOCITY_SCALE, out, at)
    to_frame(car, car[SPIN], car[SPIN + 1], car[SPIN + 2], SPIN_SCALE, out, at + 3)
    dx, dy, dz = ball[BALL_POSITION] - x, ball[BALL_POSITION + 1] - y, ball[BALL_POSITION + 2] - z
    to_frame(car, dx, dy, dz, POSITION_SCALE, out, at + 6)
    out[at + 12] = np.sqrt(dx * dx + dy * dy + dz * dz) * POSITION_SCALE
    dx, dy, dz = (
        ball[BALL_VELOCITY] - car[VELOCITY],
        ball[BALL_VELOCITY + 1] - car[VELOCITY + 1],
        ball[BALL_VELOCITY + 2] - car[VELOCITY + 2],
    )
    to_frame(car, dx, dy, dz, VELOCITY_SCALE, out, at + 9)
    to_frame(car, -x, side * BACK_WALL - y, GOAL_HEIGHT / 2 - z, POSITION_SCALE, out, at + 13)
    to_frame(car, -x, -side * BACK_WALL - y, GOAL_HEIGHT / 2 - z, POSITION_SCALE, out, at + 16)

    # the pads are listed so that the turned field has them in reverse order
    for pad in range(NUM_PADS):
        out[FIRST_PAD + pad] = timers[pad if blue else NUM_PADS - 1 - pad] * 0.1
    for control in range(8):
        out[FIRST_LAST + control] = _table[last_action, control]

    out[FIRST_OTHER:] = 0.0
    mates, foes = 0, 0
    for other in range(first, first + 2 * size):
        if other == me:
            continue
        if (other - first < size) == blue:
            slot = mates
            mates += 1
        else:
            slot = MAX_TEAM - 1 + foes
            foes += 1
        observe_other(car, cars[other], fields[other], out, FIRST_OTHER + slot * OTHER_SIZE)


def make_masks():
    """(8, 90): what is left of the actions on the ground (+4), with an empty tank (+2), without a jump to spare (+1)"""
    jump, boost = _table[:, _JUMP] > 0, _table[:, _BOOST] > 0
    tilt = ((_table[:, _PITCH] != 0) | (_table[:, _ROLL] != 0)) & ~jump
    cases = [(ground, empty, spent) for ground in (0, 1) for empty in (0, 1) for spent in (0, 1)]
    return np.array(
        [~((tilt & bool(ground)) | (boost & bool(empty)) | (jump & bool(spent))) for ground, empty, spent in cases]
    )


_masks = make_masks()
FLOOR_CONTACT = 8.0  # how near the lowest point of a hitbox is to the floor when the car lies on it, bounces included
RAMP_HEIGHT, RAMP_WIDTH = 120.0, 400.0  # where a car may lie on a ramp: so low, so near to a wall


@njit(cache=True)
def lies_on_the_world(car):
    """Whether the body may touch the floor or a ramp, from which a jump rights a car that lies on its roof. The
    simulator has a word for it and RLBot's packets have none, so both go by the hitbox. It errs on the side of yes: a
    jump that does nothing costs little, one that is missing leaves the car on its roof."""
    low = car[POSITION + 2]
    for axis in range(3):
        z = car[FORWARD + 3 * axis + 2]
        low += HITBOX_OFFSET[axis] * z - HITBOX_HALF[axis] * abs(z)
    if low < FLOOR_CONTACT:
        return True
    x, y = abs(car[POSITION]), abs(car[POSITION + 1])
    wall = min(SIDE_WALL - x, BACK_WALL - y, (CORNER_WALL - x - y) * 0.7071)
    return low < RAMP_HEIGHT and wall < RAMP_WIDTH


@njit(cache=True)
def mask_player(car, field, mask):
    """Leaves out what cannot do anything now: the game forbids nothing, so a masked action is a wasted one, not an
    illegal one."""
    if car[DEMOED] > 0:
        mask[:] = False
        mask[NO_OP] = True
        return
    ground, empty = car[ON_GROUND] > 0, car[BOOST] <= 0
    spent = field[HAS_DOUBLE_JUMPED] > 0 or field[HAS_FLIPPED] > 0 or field[AIR_TIME] >= DODGE_DEADLINE
    helpless = not ground and spent and field[IS_JUMPING] == 0 and not lies_on_the_world(car)
    mask[:] = _masks[4 * ground + 2 * empty + helpless]


@njit(cache=True)
def all_finite(rows):
    """A sum is finite only if everything in it is: infinities that cancel leave a NaN."""
    total = 0.0
    for row in rows:
        for value in row:
            total += value
    return np.isfinite(total)


@njit(cache=True)
def run_pad_clocks(pads, timers, seconds):
    """Lets the clocks of absent pads run on → [(arena, pad)] whose clock is unknown"""
    unknown = [(0, 0) for _ in range(0)]
    for i in range(len(timers)):
        for pad in range(NUM_PADS):
            if pads[2 * i, pad] > 0:
                timers[i, pad] = 0.0
            else:
                timers[i, pad] -= seconds
                if timers[i, pad] <= 1e-4:
                    unknown.append((i, pad))
    return unknown


@njit(cache=True)
def observe_arenas(arenas, first, sizes, cars, fields, balls, timers, last_actions, obs, masks):
    """Writes the rows of all players of the arenas named"""
    for i in arenas:
        for me in range(first[i], first[i] + 2 * sizes[i]):
            observe_player(me, first[i], sizes[i], cars, fields, balls[i], timers[i], last_actions[me], obs[me])
            mask_player(cars[me], fields[me], masks[me])


assert FIRST_OTHER + 5 * OTHER_SIZE == NUM_OBS
