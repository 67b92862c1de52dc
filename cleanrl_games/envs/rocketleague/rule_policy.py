"""Scripted players, both of them rating anchors. They see what a policy sees, observations and masks, for many rows at once.

`rule`    goes back between ball and own goal when it is on the wrong side, lines up behind the ball otherwise and drives through
          it towards the goal; boosts on long straight ways, dodges into the ball, turns with the handbrake. Of several
          players only the one nearest to the ball attacks; the others wait between the ball and their goal.
`random`  any action the mask leaves.
"""

import numpy as np

from .contract import ACTION_TABLE, BACK_WALL, FIRST_OTHER, MAX_TEAM, OBS_INDEX, OTHER_SIZE, POSITION_SCALE

PLAYERS = ("rule", "random")
_THROTTLE, _STEER, _PITCH, _, _ROLL, _JUMP, _BOOST, _HANDBRAKE = range(8)


def _columns(name):
    first = OBS_INDEX[f"{name}_x" if f"{name}_x" in OBS_INDEX else f"{name}_forward"]
    return slice(first, first + 3)


_position, _forward, _up, _ball, _ball_velocity = (
    _columns(name) for name in ("position", "forward", "up", "ball_position", "ball_velocity")
)
_own_velocity, _to_ball = _columns("own_velocity"), _columns("to_ball")


def nearest_actions():
    """(3, 3, 3, 3, 2, 2, 2): the action in the table nearest to each combination of controls, made once: a search per call cost
    more than all the rest of the policy"""
    axes = [(-1, 0, 1)] * 4 + [(0, 1)] * 3
    throttle, steer, pitch, roll, jump, boost, handbrake = (grid.reshape(-1) for grid in np.meshgrid(*axes, indexing="ij"))
    wanted = np.stack([np.where(boost, 1, throttle), steer, pitch, steer, roll, jump, boost, handbrake], 1)
    importance = np.array([4, 3, 2, 0, 2, 8, 2, 1])  # yaw follows steering; a wrong jump is the worst mistake
    return ((wanted[:, None] - ACTION_TABLE) ** 2 @ importance).argmin(1).reshape([len(axis) for axis in axes])


_nearest = nearest_actions()


def find_action(throttle, steer, pitch, roll, jump, boost, handbrake):
    """Numbers of the actions in the table that are nearest to the controls wanted, (M,) each, -1, 0 or 1 → (M,)"""
    signed = [np.asarray(control, np.int64) + 1 for control in (throttle, steer, pitch, roll)]
    return _nearest[(*signed, *(np.asarray(control, np.int64) for control in (jump, boost, handbrake)))]


def rule_actions(obs):
    """(M, NUM_OBS) → (M,) action numbers"""
    unit = 1 / POSITION_SCALE
    position, ball, ball_velocity = obs[:, _position] * unit, obs[:, _ball] * unit, obs[:, _ball_velocity] * unit
    forward, to_ball, speed = obs[:, _forward], obs[:, _to_ball] * unit, obs[:, _own_velocity][:, 0] * unit
    distance = np.linalg.norm(to_ball, axis=1)

    # aim where the ball will be when the car gets there, never behind a wall
    seconds = np.clip(distance / np.maximum(np.abs(speed), 800), 0, 1.5)[:, None]
    meeting = np.clip(ball + ball_velocity * seconds, (-3900, -5000, 0), (3900, 5000, 2000))
    goal = np.array([0, BACK_WALL + 200, 0])
    aim = goal - meeting
    aim /= np.linalg.norm(aim[:, :2], axis=1, keepdims=True) + 1e-6

    # attack from behind the ball; from the wrong side go round it, towards the own goal
    behind = position[:, 1] < meeting[:, 1] - 60
    gap = np.linalg.norm((meeting - position)[:, :2], axis=1)[:, None]
    attack = meeting - aim * np.clip(gap * 0.35, 60, 700)
    sideways = np.where(position[:, :1] > meeting[:, :1], 1, -1) * np.where(gap < 900, 700, 0)
    retreat = np.concatenate([meeting[:, :1] * 0.6 + sideways, np.maximum(meeting[:, 1:2] - 1800, -4900), np.zeros_like(gap)], 1)
    target = np.where(behind[:, None], attack, retreat)

    # rotate back while a mate is nearer to the ball
    waits = np.zeros(len(obs), bool)
    for mate in range(MAX_TEAM - 1):
        at = FIRST_OTHER + mate * OTHER_SIZE
        way = (to_ball - obs[:, at + 1 : at + 4] * unit) if obs.size else to_ball
        waits |= (obs[:, at] > 0) & (np.linalg.norm(way, axis=1) < distance)
    home = np.concatenate([ball[:, :1] * 0.5, (ball[:, 1:2] - BACK_WALL) / 2, np.zeros_like(gap)], 1)
    target = np.where(waits[:, None], home, target)

    # steer by the angle seen from above: in this left-handed world +1, to the right, turns from +x towards +y
    dx, dy = target[:, 0] - position[:, 0], target[:, 1] - position[:, 1]
    angle = np.arctan2(dy, dx) - np.arctan2(forward[:, 1], forward[:, 0])
    angle = (angle + np.pi) % (2 * np.pi) - np.pi
    far = np.hypot(dx, dy)
    steer = np.where(np.abs(angle) < 0.08, 0, np.sign(angle))
    sharp = np.abs(angle) > 1.7
    throttle = np.where(waits & (far < 500), -np.sign(speed), 1)
    throttle = np.where(waits & (far < 500) & (np.abs(speed) < 200), 0, throttle)
    tank, ground = obs[:, OBS_INDEX["boost"]] > 0, obs[:, OBS_INDEX["on_ground"]] > 0
    boost = ground & tank & (np.abs(angle) < 0.25) & (speed < 2200) & (far > 400) & ~waits
    handbrake = sharp & ground & (speed > 500)

    # a dodge into the ball: jump when it is near and ahead, flip once in the air
    ahead = np.abs(np.arctan2(to_ball[:, 1], to_ball[:, 0])) < 0.35
    strike = behind & ahead & ~waits & (to_ball[:, 2] < 250) & (speed > 600)
    reach = np.maximum(speed, 0) * 0.28 + 150
    jump = strike & ground & (distance < reach)
    can_flip, airborne = obs[:, OBS_INDEX["can_flip"]] > 0, ~ground
    flip = airborne & can_flip & ahead & (distance < 450) & (obs[:, OBS_INDEX["air_time_since_jump"]] > 0.02)

    # in the air: level out, wheels down
    up, left = obs[:, _up], np.cross(obs[:, _up], forward)
    pitch = np.where(airborne, np.where(np.abs(forward[:, 2]) > 0.15, -np.sign(forward[:, 2]), 0), 0)
    roll = np.where(airborne, np.where((np.abs(left[:, 2]) > 0.15) | (up[:, 2] < 0), np.where(left[:, 2] > 0, 1, -1), 0), 0)
    pitch, roll, steer = np.where(flip, -1, pitch), np.where(flip, 0, roll), np.where(flip | jump, 0, steer)
    return find_action(throttle, steer, pitch, roll, jump | flip, boost & ~jump & ~flip, handbrake)


class RulePolicy:
    """`act(obs, masks, rows, actions)` writes the actions of the rows named. `kind` is one of PLAYERS."""

    def __init__(self, kind="rule", seed=1):
        if kind not in PLAYERS:
            raise ValueError(f"Unknown scripted player {kind!r}. There are: {', '.join(PLAYERS)}.")
        self.kind, self.rng = kind, np.random.default_rng(seed)

    def act(self, obs, masks, rows, actions):
        if self.kind == "rule":
            actions[rows] = rule_actions(obs[rows])
        else:
            # the largest of independent uniform numbers is uniform over the legal actions
            actions[rows] = np.where(masks[rows], self.rng.random((len(rows), masks.shape[1])), -1.0).argmax(1)
