"""A whole arena as plain numbers, for runs that are resumed.

RocketSim keeps contacts of the last tick that no field shows, so an arena that runs on and one rebuilt from its fields
differ after a step. Two rebuilt from the same fields do not. A run that saves therefore goes on in rebuilt arenas as
well."""

import numpy as np
import RocketSim

from .contract import CONTROL_NAMES

SCALARS = (
    "is_on_ground", "has_jumped", "has_double_jumped", "has_flipped", "is_flipping", "is_jumping", "air_time",
    "air_time_since_jump",
    "jump_time", "flip_time", "is_auto_flipping", "auto_flip_timer", "auto_flip_torque_scale", "boost",
    "time_spent_boosting",
    "is_supersonic", "supersonic_time", "handbrake_val", "is_demoed", "demo_respawn_timer", "has_world_contact",
    "car_contact_cooldown_timer", "car_contact_id",
)  # fmt: skip
VECTORS = ("pos", "vel", "ang_vel", "flip_rel_torque", "world_contact_normal")
BOOLEANS = {name for name in SCALARS if name.startswith(("is_", "has_"))}
CAR_NUMBERS = len(SCALARS) + 3 * len(VECTORS) + 9 + 4 + 2 * len(CONTROL_NAMES)
BALL_NUMBERS = 9


def controls_of(numbers):
    # by name: RocketSim takes positional controls in another order than its stub file says
    values = [float(value) for value in numbers[:5]] + [bool(value) for value in numbers[5:]]
    return RocketSim.CarControls(**dict(zip(CONTROL_NAMES, values)))


def read_controls(controls):
    return [float(getattr(controls, name)) for name in CONTROL_NAMES]


def read_car(body):
    """→ (CAR_NUMBERS,) float64, which holds every float32 exactly"""
    state = body.get_state()
    numbers = [float(getattr(state, name)) for name in SCALARS]
    for name in VECTORS:
        numbers += getattr(state, name).as_tuple()
    for axis in (state.rot_mat.forward, state.rot_mat.right, state.rot_mat.up):
        numbers += axis.as_tuple()
    numbers += [float(touches) for touches in state.wheels_with_contact]
    return np.array(numbers + read_controls(state.last_controls) + read_controls(body.get_controls()))


def write_car(body, numbers):
    state, at = RocketSim.CarState(), len(SCALARS)
    for name, value in zip(SCALARS, numbers):
        setattr(
            state, name, bool(value) if name in BOOLEANS else int(value) if name == "car_contact_id" else float(value)
        )
    for name in VECTORS:
        setattr(state, name, RocketSim.Vec(*map(float, numbers[at : at + 3])))
        at += 3
    state.rot_mat = RocketSim.RotMat(*(RocketSim.Vec(*map(float, numbers[at + i : at + i + 3])) for i in (0, 3, 6)))
    state.wheels_with_contact = tuple(bool(value) for value in numbers[at + 9 : at + 13])
    state.last_controls = controls_of(numbers[at + 13 : at + 21])
    body.set_state(state)
    body.set_controls(controls_of(numbers[at + 21 : at + 29]))


def read_arena(arena, bodies):
    """→ ball (9,), cars (n, CAR_NUMBERS), pads (34, 2): cooldown and the car that holds the pad"""
    ball = arena.ball.get_state()
    pads = [pad.get_state() for pad in arena.get_boost_pads()]
    return (
        np.array([*ball.pos.as_tuple(), *ball.vel.as_tuple(), *ball.ang_vel.as_tuple()]),
        np.array([read_car(body) for body in bodies]),
        np.array([[pad.cooldown, pad.is_active, pad.prev_locked_car_id] for pad in pads], np.float64),
    )


def write_arena(arena, bodies, ball, cars, pads):
    state = RocketSim.BallState()
    state.pos, state.vel, state.ang_vel = (RocketSim.Vec(*map(float, ball[i : i + 3])) for i in (0, 3, 6))
    arena.ball.set_state(state)
    for body, numbers in zip(bodies, cars):
        write_car(body, numbers)
    for pad, (cooldown, active, locked) in zip(arena.get_boost_pads(), pads):
        state = RocketSim.BoostPadState()
        state.cooldown, state.is_active, state.prev_locked_car_id = float(cooldown), bool(active), int(locked)
        pad.set_state(state)
