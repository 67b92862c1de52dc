"""The real game, by way of RLBot v5: its packets become the very rows that the simulator gives, so that one code makes
all observations.

Needs no RLBot to be installed: a packet is anything with the attributes of `rlbot_flatbuffers.GamePacket`. What a
packet leaves out (how far the handbrake is pulled, how long ago a jump began) is counted here from tick to tick, by
RocketSim's own rules."""

import numpy as np

from .contract import ACTION_TABLE, FIRST_OTHER, MAX_TEAM, NO_OP, NUM_ACTIONS, NUM_OBS, NUM_PADS, OTHER_SIZE, TICK_RATE
from .observations import (
    AIR_TIME,
    BALL_POSITION,
    BALL_SPIN,
    BALL_VELOCITY,
    BOOST,
    BOOSTING,
    CAR_FIELDS,
    DEMO_TIMER,
    DEMOED,
    FLIP_TIME,
    FORWARD,
    HANDBRAKE,
    HAS_DOUBLE_JUMPED,
    HAS_FLIPPED,
    HAS_JUMPED,
    HOLDING_JUMP,
    IS_JUMPING,
    JUMP_TIME,
    ON_GROUND,
    POSITION,
    SPIN,
    SUPERSONIC,
    VELOCITY,
    mask_player,
    observe_player,
)
from .states import axes

# Where RocketSim has its pads, in its order; RLBot's may be another.
PAD_PLACES = np.array([
    (0, -4240), (-1792, -4184), (1792, -4184), (-3072, -4096), (3072, -4096), (-940, -3308), (940, -3308), (0, -2816),
    (-3584, -2484),
    (3584, -2484), (-1788, -2300), (1788, -2300), (-2048, -1036), (0, -1024), (2048, -1036), (-3584, 0), (-1024, 0),
    (1024, 0), (3584, 0),
    (-2048, 1036), (0, 1024), (2048, 1036), (-1788, 2300), (1788, 2300), (-3584, 2484), (3584, 2484), (0, 2816),
    (-940, 3308), (940, 3308),
    (-3072, 4096), (3072, 4096), (-1792, 4184), (1792, 4184), (0, 4240),
])  # fmt: skip
ON_GROUND_STATE, JUMPING_STATE = 0, 1  # of AirState
KICKOFF_PHASE, ACTIVE_PHASE = 2, 3  # of MatchPhase; in all others nobody plays
HANDBRAKE_RISE, HANDBRAKE_FALL = 5.0, 2.0  # per second
LEAST_BOOST = 0.1  # seconds that a boost lasts, however short the button was pressed


def xyz(vector):
    return vector.x, vector.y, vector.z


class PacketReader:
    """`read(packet)` with every packet, then `observe(index, last_action)` for a player's observation and mask."""

    def __init__(self, field_info):
        places = np.array([xyz(pad.location)[:2] for pad in field_info.boost_pads])
        if len(places) != NUM_PADS:
            raise ValueError(
                f"This map has {len(places)} boost pads; the policy was trained on the standard one, which has "
                f"{NUM_PADS}."
            )
        distances = np.linalg.norm(places[:, None] - PAD_PLACES, axis=2)
        self.pad_order = distances.argmin(1)  # (34,): our number of each of the packet's pads
        if len(set(self.pad_order.tolist())) != NUM_PADS or distances.min(1).max() > 200:
            raise ValueError(
                "The boost pads of this map lie elsewhere than those the policy was trained with: choose a standard "
                "map."
            )
        self.pad_seconds = np.array([10.0 if pad.is_full_boost else 4.0 for pad in field_info.boost_pads])
        self.clocks, self.frame = {}, None  # player's index → its clocks

    def read(self, packet):
        ticks = 1 if self.frame is None else max(packet.match_info.frame_num - self.frame, 0)
        self.frame, seconds = packet.match_info.frame_num, ticks / TICK_RATE
        for index, player in enumerate(packet.players):
            handbrake, jump, air, boosting, tank = self.clocks.get(index, (0.0, 0.0, 0.0, 0.0, player.boost))
            handbrake += seconds * (HANDBRAKE_RISE if player.last_input.handbrake else -HANDBRAKE_FALL)
            jumping = int(player.air_state) == JUMPING_STATE
            burns = tank > 0 and (player.last_input.boost or 0 < boosting < LEAST_BOOST - 1e-4)
            self.clocks[index] = (
                min(max(handbrake, 0.0), 1.0),
                jump + seconds if player.has_jumped else 0.0,
                air + seconds if player.has_jumped and not jumping else 0.0,
                boosting + seconds if burns else 0.0,
                player.boost,
            )
        self.packet = packet

    def car(self, index):
        """→ a row as RocketSim's gym state has it, and the fields that it leaves out"""
        player, (handbrake, jump, air, boosting, _) = self.packet.players[index], self.clocks[index]
        row, field = np.zeros(36, np.float32), np.zeros(len(CAR_FIELDS), np.float32)
        physics, wrecked = player.physics, player.demolished_timeout >= 0
        row[POSITION : POSITION + 3], row[VELOCITY : VELOCITY + 3] = xyz(physics.location), xyz(physics.velocity)
        row[SPIN : SPIN + 3] = xyz(physics.angular_velocity)
        row[FORWARD : FORWARD + 9] = axes(physics.rotation.yaw, physics.rotation.pitch, physics.rotation.roll)
        row[BOOST], row[DEMOED], row[ON_GROUND] = (
            player.boost,
            wrecked,
            int(player.air_state) == ON_GROUND_STATE and not wrecked,
        )
        field[HOLDING_JUMP], field[HANDBRAKE], field[HAS_JUMPED] = player.last_input.jump, handbrake, player.has_jumped
        field[IS_JUMPING], field[HAS_FLIPPED] = int(player.air_state) == JUMPING_STATE, player.has_dodged
        field[HAS_DOUBLE_JUMPED], field[AIR_TIME], field[JUMP_TIME] = player.has_double_jumped, air, jump
        field[FLIP_TIME] = player.dodge_elapsed if player.has_dodged else 0.0
        field[DEMO_TIMER] = max(player.demolished_timeout, 0.0)
        field[BOOSTING], field[SUPERSONIC] = boosting, player.is_supersonic
        return row, field

    def observe(self, index, last_action):
        """→ obs (201,), mask (90,), as the environment gives them"""
        packet = self.packet
        teams = [[i for i, player in enumerate(packet.players) if player.team == team] for team in (0, 1)]
        size = max(len(team) for team in teams)
        if size > MAX_TEAM:
            raise ValueError(f"{size} cars are in one team; the policy knows teams of up to {MAX_TEAM}.")
        cars, fields = np.zeros((2 * size, 36), np.float32), np.zeros((2 * size, len(CAR_FIELDS)), np.float32)
        for team, players in enumerate(teams):
            for place, player in enumerate(players):
                cars[team * size + place], fields[team * size + place] = self.car(player)
        ball, physics = np.zeros(25, np.float32), packet.balls[0].physics
        ball[BALL_POSITION : BALL_POSITION + 3], ball[BALL_VELOCITY : BALL_VELOCITY + 3] = (
            xyz(physics.location),
            xyz(physics.velocity),
        )
        ball[BALL_SPIN : BALL_SPIN + 3] = xyz(physics.angular_velocity)
        timers = np.zeros(NUM_PADS, np.float32)
        for pad, state in enumerate(packet.boost_pads):
            timers[self.pad_order[pad]] = 0.0 if state.is_active else max(self.pad_seconds[pad] - state.timer, 0.0)

        own = packet.players[index].team
        me = own * size + teams[own].index(index)
        obs, mask = np.zeros(NUM_OBS, np.float32), np.zeros(NUM_ACTIONS, np.bool_)
        observe_player(me, 0, size, cars, fields, ball, timers, last_action, obs)
        mask_player(cars[me], fields[me], mask)
        # uneven teams: the places that nobody takes are the last ones of their team
        absent = [slot for slot in range(max(len(teams[own]) - 1, 0), MAX_TEAM - 1)]
        absent += [MAX_TEAM - 1 + slot for slot in range(len(teams[1 - own]), MAX_TEAM)]
        for slot in absent:
            obs[FIRST_OTHER + slot * OTHER_SIZE : FIRST_OTHER + (slot + 1) * OTHER_SIZE] = 0.0
        return obs, mask


class Pilot:
    """Drives one car: a player (see match.py) that decides every `action_repeat` ticks. `controls(packet)` → the eight
    controls.

    RLBot itself delays each action by a tick, as the environment does in training. The memory is emptied at every
    kickoff."""

    def __init__(self, player, field_info, index, action_repeat=8):
        self.player, self.index, self.action_repeat, self.reader = (
            player,
            index,
            action_repeat,
            PacketReader(field_info),
        )
        self.actions, self.decided = np.full(1, NO_OP, np.int64), None

    def warm_up(self):
        """Compiles the observation and runs the network once, so that the first answer of a match comes in time."""
        rows, timers = np.zeros((2, 36), np.float32), np.zeros(NUM_PADS, np.float32)
        fields, ball = np.zeros((2, len(CAR_FIELDS)), np.float32), np.zeros(25, np.float32)
        obs, mask = np.zeros(NUM_OBS, np.float32), np.zeros(NUM_ACTIONS, np.bool_)
        observe_player(0, 0, 1, rows, fields, ball, timers, NO_OP, obs)
        mask_player(rows[0], fields[0], mask)
        row = np.zeros(1, np.int64)
        if hasattr(self.player, "start"):
            self.player.start(row)
        self.player.act(obs[None], mask[None], row, self.actions)
        self.actions[0] = NO_OP  # the memory is emptied when the match begins

    def controls(self, packet):
        self.reader.read(packet)
        frame, phase = packet.match_info.frame_num, int(packet.match_info.match_phase)
        if phase not in (KICKOFF_PHASE, ACTIVE_PHASE) or not packet.balls:
            self.actions[0], self.decided = NO_OP, None
        elif self.decided is None or frame - self.decided >= self.action_repeat:
            rows = np.zeros(1, np.int64)
            if self.decided is None and hasattr(self.player, "start"):
                self.player.start(rows)
            obs, mask = self.reader.observe(self.index, int(self.actions[0]))
            self.player.act(obs[None], mask[None], rows, self.actions)
            self.decided = frame
        return ACTION_TABLE[self.actions[0]]
