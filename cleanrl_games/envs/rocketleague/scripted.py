"""Scripted players: the fixed points of the ratings. They see what a policy sees, observations and masks, for many rows
at once.

`rule`        drives back between ball and own goal when it is on the wrong side, else lines up behind the ball and
  drives through it
              towards the goal; boosts on long straight ways, dodges into the ball, turns with the handbrake. Of several
              players only the one nearest to the ball attacks; the others wait between the ball and their goal.
`aerial`      as `rule`, and flies to a ball that it can reach in the air.
`positional`  as `rule`, but leaves its place between ball and goal only when it is at the ball before its opponents or
must defend.
`chaser`      drives at the ball wherever it is, a little on the side of its own goal; neither boosts nor jumps nor
  waits for a mate.
`random`      any action the mask leaves.
"""

from types import SimpleNamespace

import numpy as np

from .contract import ACTION_TABLE, BACK_WALL, FIRST_OTHER, MAX_TEAM, OBS_INDEX, OTHER_SIZE, OTHERS, POSITION_SCALE

UNIT = 1 / POSITION_SCALE  # game units per unit of an observation
GRAVITY, BOOST_PUSH = 650.0, 991.0  # game units per second²
BOOST_PER_SECOND = 1 / 3  # of the tank
JUMP_SPEED = 500.0  # upwards, of a jump that is held
FLIGHT_SECONDS = np.array([0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 1.8, 2.1])  # meetings in the air that `aerial` considers
AERIAL_HEIGHT = 280.0  # a lower ball is hit from the ground


def nearest_actions():
    """(3, 3, 3, 3, 2, 2, 2): the action in the table nearest to each combination of controls, made once: a search per
    call cost more than all the rest of a player"""
    axes = [(-1, 0, 1)] * 4 + [(0, 1)] * 3
    throttle, steer, pitch, roll, jump, boost, handbrake = (
        grid.reshape(-1) for grid in np.meshgrid(*axes, indexing="ij")
    )
    wanted = np.stack([np.where(boost, 1, throttle), steer, pitch, steer, roll, jump, boost, handbrake], 1)
    importance = np.array([4, 3, 2, 0, 2, 8, 2, 1])  # yaw follows steering; a wrong jump is the worst mistake
    return ((wanted[:, None] - ACTION_TABLE) ** 2 @ importance).argmin(1).reshape([len(axis) for axis in axes])


_nearest = nearest_actions()


def find_action(throttle, steer, pitch, roll, jump, boost, handbrake):
    """Numbers of the actions in the table that are nearest to the controls wanted, (M,) each, -1, 0 or 1 → (M,)"""
    signed = [np.asarray(control, np.int64) + 1 for control in (throttle, steer, pitch, roll)]
    return _nearest[(*signed, *(np.asarray(control, np.int64) for control in (jump, boost, handbrake)))]


# --------------------------------------------------------------------------------------------------- what a player sees


def vector(obs, name):
    """(M, 3): the columns name_x … or name_forward …"""
    first = OBS_INDEX[f"{name}_x" if f"{name}_x" in OBS_INDEX else f"{name}_forward"]
    return obs[:, first : first + 3]


def number(obs, name):
    return obs[:, OBS_INDEX[name]]


def read_scene(obs):
    """(M, NUM_OBS) → what the players decide by, in game units, seen from the own side. Columns of three, else (M,)"""
    s = SimpleNamespace()
    s.position = vector(obs, "position") * UNIT
    s.velocity = vector(obs, "velocity") * UNIT
    s.ball = vector(obs, "ball_position") * UNIT
    s.ball_velocity = vector(obs, "ball_velocity") * UNIT
    s.forward = vector(obs, "forward")
    s.up = vector(obs, "up")
    s.to_ball = vector(obs, "to_ball") * UNIT  # in the car's frame, as the next two
    s.speed = vector(obs, "own_velocity")[:, 0] * UNIT
    s.spin = vector(obs, "own_spin") * np.pi  # radians per second
    s.distance = np.linalg.norm(s.to_ball, axis=1)
    s.boost = number(obs, "boost")
    s.ground = number(obs, "on_ground") > 0
    s.can_flip = number(obs, "can_flip") > 0
    s.is_jumping = number(obs, "is_jumping") > 0
    s.air_time = number(obs, "air_time_since_jump")

    # how far each other car is from the ball; nobody is infinitely far
    far = {}
    for place, other in enumerate(OTHERS):
        first = FIRST_OTHER + place * OTHER_SIZE
        gap = np.linalg.norm(s.to_ball - obs[:, first + 1 : first + 4] * UNIT, axis=1)
        far[other] = np.where(obs[:, first] > 0, gap, np.inf)
    s.mate_distance = np.minimum.reduce([far[other] for other in OTHERS[: MAX_TEAM - 1]])
    s.foe_distance = np.minimum.reduce([far[other] for other in OTHERS[MAX_TEAM - 1 :]])

    # where the ball will be when the car gets there, never behind a wall
    seconds = np.clip(s.distance / np.maximum(np.abs(s.speed), 800), 0, 1.5)[:, None]
    s.meeting = np.clip(s.ball + s.ball_velocity * seconds, (-3900, -5000, 0), (3900, 5000, 2000))
    s.behind = s.position[:, 1] < s.meeting[:, 1] - 60  # between the own goal and the ball
    s.ahead = np.abs(np.arctan2(s.to_ball[:, 1], s.to_ball[:, 0])) < 0.35  # the ball is before the nose
    s.waits = s.mate_distance < s.distance
    return s


# ------------------------------------------------------------------------------------------------------- where to drive


def through_the_ball(s):
    """A point behind the ball, from which the way through it leads to the goal"""
    goal = np.array([0, BACK_WALL + 200, 0])
    aim = goal - s.meeting
    aim /= np.linalg.norm(aim[:, :2], axis=1, keepdims=True) + 1e-6
    gap = np.linalg.norm((s.meeting - s.position)[:, :2], axis=1)[:, None]
    return s.meeting - aim * np.clip(gap * 0.35, 60, 700)


def attack_or_retreat(s):
    """Through the ball towards the goal; from the wrong side round it, towards the own goal"""
    gap = np.linalg.norm((s.meeting - s.position)[:, :2], axis=1)[:, None]
    sideways = np.where(s.position[:, :1] > s.meeting[:, :1], 1, -1) * np.where(gap < 900, 700, 0)
    back = np.maximum(s.meeting[:, 1:2] - 1800, -4900)
    retreat = np.concatenate([s.meeting[:, :1] * 0.6 + sideways, back, np.zeros_like(gap)], 1)
    return np.where(s.behind[:, None], through_the_ball(s), retreat)


def home(s):
    """Half way between the ball and the own goal"""
    return np.stack([s.ball[:, 0] * 0.5, (s.ball[:, 1] - BACK_WALL) / 2, np.zeros(len(s.ball))], 1)


# ---------------------------------------------------------------------------------------------------------- how to move


def drive(s, target, stops):
    """Controls of a car that drives to `target`, and halts there where `stops` is true"""
    # In this left-handed world +1, to the right, turns from +x towards +y.
    dx, dy = target[:, 0] - s.position[:, 0], target[:, 1] - s.position[:, 1]
    angle = np.arctan2(dy, dx) - np.arctan2(s.forward[:, 1], s.forward[:, 0])
    angle = (angle + np.pi) % (2 * np.pi) - np.pi
    far = np.hypot(dx, dy)
    c = SimpleNamespace()
    c.steer = np.where(np.abs(angle) < 0.08, 0, np.sign(angle))
    c.throttle = np.where(stops & (far < 500), -np.sign(s.speed), 1)
    c.throttle = np.where(stops & (far < 500) & (np.abs(s.speed) < 200), 0, c.throttle)
    c.boost = s.ground & (s.boost > 0) & (np.abs(angle) < 0.25) & (s.speed < 2200) & (far > 400) & ~stops
    c.handbrake = (np.abs(angle) > 1.7) & s.ground & (s.speed > 500)
    return c


def level_out(s, c):
    """In the air: wheels down"""
    airborne, left = ~s.ground, np.cross(s.up, s.forward)
    c.pitch = np.where(airborne & (np.abs(s.forward[:, 2]) > 0.15), -np.sign(s.forward[:, 2]), 0)
    tilted = (np.abs(left[:, 2]) > 0.15) | (s.up[:, 2] < 0)
    c.roll = np.where(airborne & tilted, np.where(left[:, 2] > 0, 1, -1), 0)


def turn_in_the_air(s, c):
    """Off the ground throttle does nothing, but the table has no tilting action with throttle and without boost, so the
    nearest one would not tilt. `rule` is without this: its play must stay what it was when it became the scale's fixed
    point."""
    c.throttle = np.where(s.ground, c.throttle, c.boost)


def dodge(s, c, allowed):
    """Into the ball: jump when it is near and ahead, flip once in the air"""
    strike = allowed & s.ahead & (s.to_ball[:, 2] < 250) & (s.speed > 600)
    reach = np.maximum(s.speed, 0) * 0.28 + 150
    jump = strike & s.ground & (s.distance < reach)
    flip = ~s.ground & s.can_flip & s.ahead & (s.distance < 450) & (s.air_time > 0.02)
    c.pitch = np.where(flip, -1, c.pitch)
    c.roll = np.where(flip, 0, c.roll)
    c.steer = np.where(flip | jump, 0, c.steer)
    c.jump = jump | flip
    c.boost = c.boost & ~c.jump


def flight_plan(s):
    """The easiest meeting with the ball in the air that boost can reach → whether there is one, the push it takes (M,
    3), its seconds

    Without boost a car falls along its own parabola, and so does the ball: the push that makes them meet after t
    seconds is the gap between both at that time, · 2 / (t − the time it takes to turn)². From the ground a jump comes
    first."""
    t = FLIGHT_SECONDS[:, None, None]  # (S, 1, 1)
    fall = np.array([0, 0, -0.5 * GRAVITY]) * t**2
    ball = s.ball + s.ball_velocity * t + fall  # (S, M, 3)
    speed = s.velocity + np.where(s.ground, JUMP_SPEED, np.where(s.is_jumping, JUMP_SPEED / 3, 0))[:, None] * s.up
    turning = np.where(s.ground, 0.3, 0.12)[:, None]
    push = (ball - np.array([0, 60, 0]) - s.position - speed * t - fall) * 2 / (t - turning) ** 2
    strength = np.linalg.norm(push, axis=2)
    inside = (np.abs(ball[..., 0]) < 3900) & (np.abs(ball[..., 1]) < 5000) & (ball[..., 2] < 1900)
    # A flight begins when it can be made with something to spare, and is not given up for a little that is missing.
    possible = inside & (ball[..., 2] > AERIAL_HEIGHT) & (strength < np.where(s.ground, 0.85, 1.3) * BOOST_PUSH)
    possible &= strength / BOOST_PUSH * t[..., 0] * BOOST_PER_SECOND < s.boost + 0.1
    chosen, rows = np.where(possible, strength, np.inf).argmin(0), np.arange(len(s.ball))
    return possible.any(0), push[chosen, rows], FLIGHT_SECONDS[chosen]


def fly(s, c, allowed):
    """Takes over the controls of cars that can meet the ball in the air"""
    found, push, seconds = flight_plan(s)
    # A push away from the ball would take a turn over the roof: then the nose stays on the ball, and waits.
    to_ball = s.ball - s.position
    wrong = (push * to_ball).sum(1) < 0
    way = np.where(wrong[:, None], to_ball, push)
    way = way / (np.linalg.norm(way, axis=1, keepdims=True) + 1e-6)
    flat = np.hypot(push[:, 0], push[:, 1]) + 1e-6
    facing = (s.forward[:, :2] * push[:, :2]).sum(1) / flat  # of the nose and the push, seen from above
    starts = found & allowed & s.ground & (s.up[:, 2] > 0.9) & ((facing > 0.9) | (flat < 250)) & (seconds > 0.5)
    flies = found & allowed & ~s.ground & (s.position[:, 2] > 30)
    # The push in the car's frame. A turn is stopped in time: what the car will have turned by soon counts too.
    right = np.cross(s.up, s.forward)
    nose, side, roof = ((way * axis).sum(1) for axis in (s.forward, right, s.up))
    up_angle, right_angle = np.arctan2(roof, nose), np.arctan2(side, np.abs(nose))
    c.pitch = np.where(flies, turn(up_angle + 0.18 * s.spin[:, 1]), c.pitch)
    c.steer = np.where(flies, turn(right_angle - 0.18 * s.spin[:, 2]), c.steer)
    c.roll = np.where(flies, 0, c.roll)
    c.boost = np.where(flies, (nose > 0.5) & (np.linalg.norm(push, axis=1) > 100) & ~wrong, c.boost & ~starts)
    held = s.is_jumping & flies  # a jump that is held goes higher
    c.jump = np.where(flies, held, c.jump) | starts
    c.steer = np.where(starts | held, 0, c.steer)  # no action jumps and yaws
    c.pitch = np.where(held & (push[:, 2] > 0), 1, c.pitch)
    c.handbrake = c.handbrake & ~flies & ~starts


def turn(angle):
    return np.where(np.abs(angle) < 0.1, 0, np.sign(angle))


# -------------------------------------------------------------------------------------------------------------- players


def rule(s):
    c = drive(s, np.where(s.waits[:, None], home(s), attack_or_retreat(s)), stops=s.waits)
    level_out(s, c)
    dodge(s, c, allowed=s.behind & ~s.waits)
    return c


def aerial(s):
    c = rule(s)
    fly(s, c, allowed=s.behind & ~s.waits)
    turn_in_the_air(s, c)
    return c


def positional(s):
    kickoff = (np.abs(s.ball[:, :2]).max(1) < 50) & (np.abs(s.ball_velocity).max(1) < 50)
    first = s.behind & (s.distance < s.foe_distance)
    danger = s.behind & (s.ball[:, 1] < -2500)
    stays = s.waits | (s.behind & ~kickoff & ~first & ~danger)
    c = drive(s, np.where(stays[:, None], home(s), attack_or_retreat(s)), stops=stays)
    level_out(s, c)
    dodge(s, c, allowed=s.behind & ~stays)
    turn_in_the_air(s, c)
    return c


def chaser(s):
    nobody = np.zeros(len(s.ball), bool)
    c = drive(s, through_the_ball(s), stops=nobody)
    level_out(s, c)
    c.jump = c.boost = nobody
    turn_in_the_air(s, c)
    return c


MOVES = {"rule": rule, "aerial": aerial, "positional": positional, "chaser": chaser}
PLAYERS = ("rule", "random", "aerial", "positional", "chaser")
# Their Elo, for each number of cars per team: who is strong alone need not be so in a team. `rule` is the fixed point,
# the others by `tools/league.py --pin 200 --team-size N` (100 for 3v3): every pair, goals only.
PINNED = {
    1: {"rule": 1500.0, "aerial": 1706.4, "positional": 1594.0, "chaser": 1185.5, "random": 609.4},
    2: {"rule": 1500.0, "aerial": 1462.0, "positional": 1213.3, "chaser": 1302.7, "random": 678.6},
    3: {"rule": 1500.0, "aerial": 1472.9, "positional": 1301.0, "chaser": 1536.4, "random": 810.1},
}


class ScriptedPlayer:
    """`act(obs, masks, rows, actions)` writes the actions of the rows named. `name` is one of PLAYERS."""

    def __init__(self, name="rule", seed=1):
        if name not in PLAYERS:
            raise ValueError(f"Unknown scripted player {name!r}. There are: {', '.join(PLAYERS)}.")
        self.name, self.rng = name, np.random.default_rng(seed)

    def act(self, obs, masks, rows, actions):
        if self.name in MOVES:
            c = MOVES[self.name](read_scene(obs[rows]))
            actions[rows] = find_action(c.throttle, c.steer, c.pitch, c.roll, c.jump, c.boost, c.handbrake)
        else:
            # the largest of independent uniform numbers is uniform over the legal actions
            actions[rows] = np.where(masks[rows], self.rng.random((len(rows), masks.shape[1])), -1.0).argmax(1)
