"""What a player sees, does and is paid for: observation columns, the 90 actions, reward components. Data, no code of
the game.

Positions and velocities are seen from the player's own side: for orange the field is turned by 180 degrees, so that
both teams attack towards +y. Columns with `car frame` are turned further, into the car's own axes (forward, right, up).
"""

import hashlib
import json

import numpy as np

MAX_TEAM = 3
NUM_PADS = 34
TICK_RATE = 120
POSITION_SCALE, VELOCITY_SCALE, SPIN_SCALE = 1 / 2300, 1 / 2300, 1 / np.pi  # those of rlgym's default observation

CAR_MAX_SPEED, BALL_MAX_SPEED = 2300.0, 6000.0
SIDE_WALL, BACK_WALL, CEILING, GOAL_HALF_WIDTH, GOAL_HEIGHT, GOAL_BACK = (
    4096.0,
    5120.0,
    2044.0,
    892.755,
    642.775,
    6000.0,
)
BALL_RADIUS, BALL_REST_HEIGHT, CAR_REST_HEIGHT = 91.25, 93.15, 17.0
CORNER_WALL = 8064.0  # |x| + |y| there
# of the Octane: along nose, right side, roof
HITBOX_HALF, HITBOX_OFFSET = (
    (60.2535, 43.3497, 19.32955),
    (13.8757, 0.0, 20.755),
)
# a second jump is possible so long after the first; a flip turns the car so long
DODGE_DEADLINE, FLIP_SECONDS = (
    1.25,
    0.65,
)
BIG_PADS = (3, 4, 15, 18, 29, 30)


def _xyz(name, note):
    return [(f"{name}_{axis}", note) for axis in "xyz"]


def _frame(name, note):
    return [(f"{name}_{axis}", note + ", car frame") for axis in ("forward", "right", "up")]


_CAR_BLOCK = [
    *_xyz("position", "own side, /2300"),
    *_xyz("forward", "nose, unit vector"),
    *_xyz("up", "roof, unit vector"),
    *_xyz("velocity", "own side, /2300"),
    *_xyz("spin", "angular velocity, own side, /π"),
    ("boost", "0 to 1"),
    ("demo_timer", "seconds until it is back, 0 when alive"),
    ("on_ground", "three wheels or more touch"),
    ("boosting", "0 or 1"),
    ("supersonic", "0 or 1"),
]
_JUMP_BLOCK = [
    ("holding_jump", "0 or 1"),
    ("handbrake", "how far it is pulled, 0 to 1"),
    ("has_jumped", "0 or 1"),
    ("is_jumping", "0 or 1"),
    ("has_flipped", "0 or 1"),
    ("is_flipping", "0 or 1"),
    ("has_double_jumped", "0 or 1"),
    ("can_flip", "0 or 1"),
    ("air_time_since_jump", "seconds"),
    ("jump_time", "seconds since the jump began"),
    ("flip_time", "seconds since the flip began"),
]
_BALL_BLOCK = [
    *_xyz("ball_position", "own side, /2300"),
    *_xyz("ball_velocity", "own side, /2300"),
    *_xyz("ball_spin", "own side, /π"),
]
_FRAME_BLOCK = [
    *_frame("own_velocity", "/2300"),
    *_frame("own_spin", "/π"),
    *_frame("to_ball", "from car to ball, /2300"),
    *_frame("ball_relative_velocity", "ball minus car, /2300"),
    ("ball_distance", "/2300"),
    *_frame("to_goal", "from car to the goal it attacks, /2300"),
    *_frame("to_own_goal", "from car to its own goal, /2300"),
]
_OTHER_BLOCK = [
    ("present", "1 for a player, 0 for padding"),
    *_frame("to", "from car to the other, /2300"),
    *_frame("relative_velocity", "other minus car, /2300"),
    *_frame("nose", "unit vector"),
    *_frame("roof", "unit vector"),
    *_frame("spin", "/π"),
    ("boost", "0 to 1"),
    ("demo_timer", "seconds"),
    ("on_ground", "0 or 1"),
    ("supersonic", "0 or 1"),
]
OTHERS = ("mate_1", "mate_2", "foe_1", "foe_2", "foe_3")
CONTROL_NAMES = ("throttle", "steer", "pitch", "yaw", "roll", "jump", "boost", "handbrake")

_columns = [
    *_CAR_BLOCK,
    *_JUMP_BLOCK,
    *_BALL_BLOCK,
    *_FRAME_BLOCK,
    *[(f"pad_{i}", "seconds until it is back, /10; own side's order") for i in range(NUM_PADS)],
    *[(f"last_{name}", "control of the previous action") for name in CONTROL_NAMES],
    *[(f"{other}_{name}", note) for other in OTHERS for name, note in _OTHER_BLOCK],
]
OBS_COLUMNS = tuple(_columns)  # ((name, meaning), …)
OBS_NAMES = tuple(name for name, _ in _columns)
OBS_INDEX = {name: i for i, name in enumerate(OBS_NAMES)}
NUM_OBS = len(OBS_NAMES)
OTHER_SIZE = len(_OTHER_BLOCK)
FIRST_JUMP, FIRST_BALL, FIRST_FRAME = (
    OBS_INDEX["holding_jump"],
    OBS_INDEX["ball_position_x"],
    OBS_INDEX["own_velocity_forward"],
)
FIRST_PAD, FIRST_LAST, FIRST_OTHER = OBS_INDEX["pad_0"], OBS_INDEX["last_throttle"], OBS_INDEX["mate_1_present"]


def make_action_table():
    """(90, 8): the field's table. Ground actions first (throttle, steer, boost, handbrake), then aerial ones."""
    ground = [
        (throttle, steer, 0, steer, 0, 0, boost, handbrake)
        for throttle in (-1, 0, 1)
        for steer in (-1, 0, 1)
        for boost in ((0, 1) if throttle == 1 else (0,))
        for handbrake in (0, 1)
    ]
    aerial = []
    for pitch in (-1, 0, 1):
        for yaw in (-1, 0, 1):
            for roll in (-1, 0, 1):
                for jump in (0, 1):
                    # a jump with yaw turns as one with roll does; without pitch, roll and jump it is a ground action
                    if (jump and yaw) or not (pitch or roll or jump):
                        continue
                    slide = int(jump and (pitch != 0 or roll != 0))  # lets a flip near the ground end in a wavedash
                    aerial += [(boost, yaw, pitch, yaw, roll, jump, boost, slide) for boost in (0, 1)]
    return np.array(ground + aerial, np.float32)


ACTION_TABLE = make_action_table()
NUM_ACTIONS = len(ACTION_TABLE)
NO_OP = int(np.flatnonzero((ACTION_TABLE == 0).all(1))[0])

# What a step brings a player, as the environment measures it. What it is paid for is its caller's choice.
REWARD_TERMS = {
    "goal": "1 to each player of the team that scored",
    "concede": "1 to each player of the other team",
    "scorer": "1 to the player the goal is credited to",
    "shot": "1 for a touch that sends the ball towards the goal, as RocketSim counts shots",
    "save": "1 for a touch that keeps a shot out, as RocketSim counts saves",
    "demo": "1 for demolishing an opponent",
    "demoed": "1 for being demolished",
    "touch": "1 when a contact with the ball begins",
    "touch_strength": "change of the ball's velocity in a step with contact, / 6000",
    "touch_height": "height of the ball at a contact that begins above 250, / 2044",
    "speed_to_ball": "velocity towards the ball, / 2300",
    "ball_speed_to_goal": "the ball's velocity towards the opponents' goal, / 6000",
    "face_ball": "cosine between the nose and the way to the ball",
    "air": "1 while off the ground",
    "pickup": "boost pads picked up",
    "boost_gained": "increase of √(boost)",
    "boost_kept": "√(boost)",
    "boost_lost": "decrease of √(boost), not counted while demolished",
}
TERM_NAMES = tuple(REWARD_TERMS)
TERM_INDEX = {name: i for i, name in enumerate(TERM_NAMES)}
NUM_TERMS = len(TERM_NAMES)


def contract_hash():
    """Names the contract a policy was trained on: two policies with the same hash speak the same language."""
    return hashlib.sha256(json.dumps([OBS_NAMES, ACTION_TABLE.tolist()]).encode()).hexdigest()[:16]
