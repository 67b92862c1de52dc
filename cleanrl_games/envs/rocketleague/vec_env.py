"""`RocketLeagueVecEnv`: many arenas in one process. Every car is an agent, and who answers for it is the caller's
choice."""

import struct
import sys
from operator import attrgetter

import gymnasium as gym
import numpy as np
import RocketSim

from . import contract
from .meshes import load_meshes
from .observations import (
    BALL_POSITION,
    BALL_SPIN,
    BALL_VELOCITY,
    BLUE_SCORE,
    BOOST,
    CAR_FIELDS,
    DEMO_TIMER,
    DEMOED,
    FORWARD,
    POSITION,
    SPIN,
    TOUCHED,
    VELOCITY,
    all_finite,
    observe_arenas,
    run_pad_clocks,
)
from .rewards import score_arenas
from .snapshot import BALL_NUMBERS, CAR_NUMBERS, controls_of, read_arena, write_arena
from .states import SETTERS, STATE_NAMES, apply_state, check_team_sizes

read_fields = attrgetter(*CAR_FIELDS)


class RocketLeagueVecEnv:
    """N arenas, `action_repeat` ticks per step. The agents of all arenas are the rows of one batch, blue cars first in
    each.

    `step(actions)` takes (A,) action numbers and returns (obs, masks, rewards, terminated, truncated, info): obs (A,
    201) float32 and masks (A, 90) bool are the environment's own buffers, overwritten by the next step; rewards (A,);
    terminated, truncated (N,), for agents `terminated[env.agent_arena]`. A goal terminates; `max_seconds` and
    `no_touch_seconds` truncate. An ended arena starts anew in the same step (same-step autoreset): obs then belongs to
    the new episode, info["final_obs"] rows to the old one. info also has `terms` (A, 18), `goal` (N,: 1 blue, -1 orange
    scored, 0 neither) and `length` (N,, steps).
    """

    def __init__(
        self,
        num_arenas,
        team_sizes=(1,),  # arena i plays with team_sizes[i % len] cars per team
        seed=1,
        action_repeat=8,
        states=None,  # {"kickoff": 1.0} or any of STATE_NAMES with weights
        state_file="",
        reward_weights=None,  # {component: weight}; None = 1 for a goal, -1 for one conceded
        max_seconds=300.0,
        no_touch_seconds=30.0,
        action_delay=True,  # as under RLBot: the first tick of a step still obeys the previous action
        mesh_dir="",
        generated_meshes=False,
    ):
        if action_repeat < 1 or (action_delay and action_repeat < 2):
            raise ValueError(f"action_repeat is {action_repeat}: it must be at least 1, or 2 with action_delay.")
        if not team_sizes or not all(1 <= size <= contract.MAX_TEAM for size in team_sizes):
            raise ValueError(f"team_sizes is {team_sizes}: each must be 1 to {contract.MAX_TEAM} cars per team.")
        load_meshes(mesh_dir, generated_meshes)
        self.num_arenas, self.action_repeat, self.action_delay = num_arenas, action_repeat, action_delay
        self.sizes = np.array([team_sizes[i % len(team_sizes)] for i in range(num_arenas)])
        ends = np.cumsum(2 * self.sizes)
        self.first, self.num_agents = ends - 2 * self.sizes, int(ends[-1])
        self.agent_arena = np.repeat(np.arange(num_arenas), 2 * self.sizes)  # (A,)
        self.agent_team = (
            np.arange(self.num_agents) - self.first[self.agent_arena] >= self.sizes[self.agent_arena]
        ).astype(np.int64)
        self.set_states(states or {"kickoff": 1.0}, state_file)
        self.reward_weights = np.zeros(contract.NUM_TERMS, np.float32)
        for name, weight in (reward_weights or {"goal": 1.0, "concede": -1.0}).items():
            if name not in contract.TERM_INDEX:
                raise ValueError(f"Unknown reward component {name!r}. There are: {', '.join(contract.TERM_NAMES)}.")
            self.reward_weights[contract.TERM_INDEX[name]] = weight
        self.max_steps = round(max_seconds * contract.TICK_RATE / action_repeat)
        self.max_idle_steps = round(no_touch_seconds * contract.TICK_RATE / action_repeat)
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (contract.NUM_OBS,), np.float32)
        self.single_action_space = gym.spaces.Discrete(contract.NUM_ACTIONS)

        # RocketSim gives each row twice, the second time turned for orange; the views leave those out.
        self._buffers = [
            [np.zeros((2 * rows, width), np.float32) for rows, width in ((self.num_agents, 36), (num_arenas, 25))]
            for _ in "ab"
        ]
        self.games, self.old_games = np.zeros((2, num_arenas, 4), np.float32)
        self.fields = np.zeros((self.num_agents, len(CAR_FIELDS)), np.float32)
        self._pack = struct.Struct(f"{self.fields.size}f").pack
        self.pads = np.ones((2 * num_arenas, contract.NUM_PADS), np.float32)
        self.pad_timers = np.zeros((num_arenas, contract.NUM_PADS), np.float32)
        self.last_actions = np.full(self.num_agents, contract.NO_OP, np.int64)
        self.obs = np.zeros((self.num_agents, contract.NUM_OBS), np.float32)
        self.masks = np.zeros((self.num_agents, contract.NUM_ACTIONS), np.bool_)
        self.final_obs = np.zeros_like(self.obs)
        self.terms = np.zeros((self.num_agents, contract.NUM_TERMS), np.float32)
        self.lengths, self.idle, self.episodes = np.zeros((3, num_arenas), np.int64)
        self.resting = np.zeros(num_arenas, bool)  # arenas that a caller has done with: they do not tick
        self._all, self._first = np.arange(num_arenas), self.first.tolist()
        self._controls = [controls_of(row) for row in contract.ACTION_TABLE]
        self.reset(seed)

    # ----------------------------------------------------------------------------------------------------- construction

    def set_states(self, states, state_file=""):
        """Chooses how later episodes begin: names of situations and their weights."""
        for name in states:
            if name not in STATE_NAMES:
                raise ValueError(f"Unknown start state {name!r}. There are: {', '.join(STATE_NAMES)}.")
        weights = np.array([float(weight) for weight in states.values()])
        if not len(weights) or (weights < 0).any() or weights.sum() <= 0:
            raise ValueError(f"The weights of start states must not be negative and not all zero; found {states}.")
        self.state_names, self.state_chances = tuple(states), weights / weights.sum()
        self.recorded = {}
        if "file" in states:
            self.recorded = check_team_sizes(state_file, self.sizes.tolist())

    def _build_arena(self, i):
        arena = RocketSim.Arena(RocketSim.GameMode.SOCCAR)  # its memory-hungry default is the fastest in the long run
        size = int(self.sizes[i])
        bodies = [arena.add_car(team) for team in (RocketSim.Team.BLUE, RocketSim.Team.ORANGE) for _ in range(size)]
        arena.reset_kickoff(1)
        # `_advance` relies on RocketSim listing the cars in this order.
        assert [int(row[0, 0]) for row in arena.get_gym_state()[3:]] == [body.id for body in bodies]
        self.arenas[i], self.bodies[i], self.pad_objects[i] = arena, bodies, arena.get_boost_pads()

    def reset(self, seed=None):
        """Starts all arenas anew: a seed's first episodes, or without a seed the next ones. Arenas are rebuilt, since a
        used one keeps traces of its last contacts."""
        if seed is not None:
            self.seed = seed
            self.episodes[:] = 0
        self.resting[:] = False
        self.arenas, self.bodies, self.pad_objects = ([None] * self.num_arenas for _ in range(3))
        for i in range(self.num_arenas):
            self._build_arena(i)
            self._start(i)
        self._advance(None)
        self._observe(self._all)
        return self.obs, self.masks

    def close(self):
        """Frees the arenas, some 2 MB each."""
        self.arenas, self.bodies, self.pad_objects = [], [], []

    def _start(self, i):
        """A new episode in arena i, drawn from (seed, arena, episode) alone: no other arena and no earlier episode
        matters."""
        rng = np.random.default_rng([self.seed, i, int(self.episodes[i])])
        self.episodes[i] += 1
        arena, bodies, size = self.arenas[i], self.bodies[i], int(self.sizes[i])
        name = self.state_names[rng.choice(len(self.state_names), p=self.state_chances)]
        # brings back pads and wrecks; its choice of places differs between runs, so ours follows
        arena.reset_kickoff(1)
        if name == "file":
            choices = self.recorded[size]
            apply_state(arena, bodies, *choices[rng.integers(len(choices))])
        else:
            apply_state(arena, bodies, *SETTERS[name](rng, size))
        self._forget(i)

    def _forget(self, i):
        for body in self.bodies[i]:
            body.set_controls(self._controls[contract.NO_OP])
        self.last_actions[self._rows(i)] = contract.NO_OP
        self.pad_timers[i] = self.lengths[i] = self.idle[i] = 0

    def set_arena(self, i, ball, cars):
        """Puts arena i into a given situation (see states.py) at the beginning of a new episode."""
        self.arenas[i].reset_kickoff(1)
        apply_state(self.arenas[i], self.bodies[i], ball, np.asarray(cars))
        self._forget(i)
        self._pull_one(i)
        self._observe(self._all[i : i + 1])

    def get_arena(self, i):
        """The situation in arena i, as `set_arena` and `save_states` take it"""
        cars, ball = self.cars[self._rows(i)], self.balls[i]
        columns = [
            range(POSITION, POSITION + 3),
            range(VELOCITY, VELOCITY + 3),
            range(SPIN, SPIN + 3),
            range(FORWARD, FORWARD + 9),
            [BOOST],
        ]
        parts = [ball[first : first + 3] for first in (BALL_POSITION, BALL_VELOCITY, BALL_SPIN)]
        return np.concatenate(parts), cars[:, np.concatenate([np.array(part) for part in columns])]

    def _rows(self, i):
        return slice(self.first[i], self.first[i] + 2 * self.sizes[i])

    # --------------------------------------------------------------------------------------------------------- stepping

    def step(self, actions):
        actions = np.asarray(actions)
        if actions.shape != (self.num_agents,) or actions.min() < 0 or actions.max() >= contract.NUM_ACTIONS:
            raise ValueError(
                f"step expects {self.num_agents} action numbers from 0 to {contract.NUM_ACTIONS - 1}; found "
                f"{actions!r}."
            )
        self.last_actions[:] = actions
        timers = self.fields[:, DEMO_TIMER]
        for agent in np.flatnonzero((timers > 0) & (timers < self.action_repeat / contract.TICK_RATE)):
            self._respawn(agent)
        self._buffers.reverse()
        self.games, self.old_games = self.old_games, self.games
        self._advance(actions.tolist())
        broken = self._mend()
        self._time_pads()

        score_arenas(
            self.first,
            self.sizes,
            self.cars,
            self.balls,
            self.games,
            self.old_cars,
            self.old_balls,
            self.old_games,
            self.terms,
        )
        rewards = self.terms @ self.reward_weights
        self._observe(self._all)

        self.lengths += 1
        self.idle += 1
        self.idle[self.agent_arena[self.cars[:, TOUCHED] > 0]] = 0
        scored = self.games[:, BLUE_SCORE:] > self.old_games[:, BLUE_SCORE:]
        goal = scored[:, 0].astype(np.int64) - scored[:, 1]
        terminated = goal != 0
        truncated = ~terminated & ((self.lengths >= self.max_steps) | (self.idle >= self.max_idle_steps))
        truncated[broken] = True
        info = {"terms": self.terms, "goal": goal, "length": self.lengths.copy(), "final_obs": self.final_obs}
        ended = np.flatnonzero(terminated | truncated)
        for i in ended:
            self.final_obs[self._rows(i)] = self.obs[self._rows(i)]
            self._start(i)
            self._pull_one(i)
        if len(ended):
            self._observe(ended)
        return self.obs, self.masks, rewards, terminated, truncated, info

    def _advance(self, actions):
        """Ticks all arenas and reads them into the buffers, each while it is still in the CPU's cache; None only
        reads."""
        controls, delay, rest = self._controls, self.action_delay, self.action_repeat - self.action_delay
        games, pads, balls, cars, fields, self._failed = [], [], [], [], [], []
        resting = self.resting.tolist()
        for arena, bodies, first, rests in zip(self.arenas, self.bodies, self._first, resting):
            try:
                if actions is not None and not rests:
                    if delay:
                        arena.step(1)
                    for agent, body in enumerate(bodies, first):
                        body.set_controls(controls[actions[agent]])
                    arena.step(rest)
                game, pad, ball, *rows = arena.get_gym_state()
            # RocketSim found a NaN in its own state: `_mend` says so, a new arena fills the rows until then
            except RuntimeError:
                self._failed.append(self.agent_arena[first])
                self._build_arena(self._failed[-1])
                bodies = self.bodies[self._failed[-1]]
                game, pad, ball, *rows = self.arenas[self._failed[-1]].get_gym_state()
            games.append(game)
            pads.append(pad)
            balls.append(ball)
            cars += rows
            for body in bodies:
                fields += read_fields(body.get_state())
        car_buffer, ball_buffer = self._buffers[0]
        np.concatenate(cars, out=car_buffer)
        np.concatenate(balls, out=ball_buffer)
        np.concatenate(pads, out=self.pads)
        np.concatenate(games, out=self.games.reshape(-1))
        # a third less time than np.fromiter
        self.fields.reshape(-1)[:] = np.frombuffer(self._pack(*fields), np.float32)
        (cars, balls), (old_cars, old_balls) = self._buffers
        self.cars, self.balls, self.old_cars, self.old_balls = (
            cars[::2],
            balls[::2],
            old_cars[::2],
            old_balls[::2],
        )  # (A, 36), (N, 25)
        for agent in np.flatnonzero(self.cars[:, DEMOED] > 0):
            # a wreck's body goes on turning in the physics, though nobody sees it; its own state, as rlgym reads it,
            # stays as it was hit
            i = self.agent_arena[agent]
            rotation = self.bodies[i][agent - self.first[i]].get_state().rot_mat
            axes = (rotation.forward, rotation.right, rotation.up)
            self.cars[agent, FORWARD : FORWARD + 9] = [number for axis in axes for number in axis.as_tuple()]

    def _respawn(self, agent):
        """Brings a wreck back less than a step early: RocketSim would choose the place by dice that nobody can seed."""
        i = self.agent_arena[agent]
        rng = np.random.default_rng([self.seed, i, int(self.episodes[i]), int(self.lengths[i]), int(agent)])
        self.bodies[i][agent - self.first[i]].respawn(seed=int(rng.integers(2**31 - 1)))

    def _pull_one(self, i):
        """Reads arena i after a new beginning, whose counters are the base of later differences"""
        game, pad, ball, *rows = self.arenas[i].get_gym_state()
        self.games[i], self.pads[2 * i : 2 * i + 2], self.balls[i] = game, pad, ball[0]
        for agent, row, body in zip(range(self.first[i], self.num_agents), rows, self.bodies[i]):
            self.cars[agent] = row[0]
            self.fields[agent] = read_fields(body.get_state())

    def _time_pads(self):
        """Seconds until each pad is back. The gym state only says whether it is there, and asking all 34 would cost
        more than the rest.

        A pad is asked when it has just gone; then its clock runs here. One taken again in the very tick it came back
        shows as a clock that has run out while the pad is away, and is asked again.
        """
        for i, pad in run_pad_clocks(self.pads, self.pad_timers, self.action_repeat / contract.TICK_RATE):
            self.pad_timers[i, pad] = self.pad_objects[i][pad].get_state().cooldown

    def _mend(self):
        """An arena whose physics went wrong is said aloud, truncated at its last sound state, and rebuilt. → its
        number, as a list"""
        if not self._failed and all_finite(self.cars) and all_finite(self.balls) and all_finite(self.fields):
            return []
        sound = np.isfinite(self.balls).all(1)
        np.logical_and.at(sound, self.agent_arena, np.isfinite(self.cars).all(1) & np.isfinite(self.fields).all(1))
        sound[self._failed] = False
        broken = np.flatnonzero(~sound)
        for i in broken:
            print(
                f"RocketSim returned a value that is not finite in arena {i} (seed {self.seed}, episode "
                f"{self.episodes[i] - 1}, "
                f"step {self.lengths[i]}): the episode is truncated at its last sound state and the arena rebuilt.",
                file=sys.stderr,
                flush=True,
            )
            rows = self._rows(i)
            self.cars[rows], self.balls[i], self.games[i] = self.old_cars[rows], self.old_balls[i], self.old_games[i]
            self.fields[rows] = 0
            self._build_arena(i)
        return broken

    def _observe(self, arenas):
        observe_arenas(
            arenas,
            self.first,
            self.sizes,
            self.cars,
            self.fields,
            self.balls,
            self.pad_timers,
            self.last_actions,
            self.obs,
            self.masks,
        )

    # --------------------------------------------------------------------------------------------------------- resuming

    def state_dict(self):
        """Everything an episode depends on, as plain arrays. The arenas are rebuilt from it here as well (see
        snapshot.py), so that this run and one that loads it go on with the very same ticks."""
        saved = [read_arena(arena, bodies) for arena, bodies in zip(self.arenas, self.bodies)]
        state = {
            "balls": np.stack([ball for ball, _, _ in saved]),
            "cars": np.concatenate([cars for _, cars, _ in saved]),
            "pads": np.stack([pads for _, _, pads in saved]),
            "touched": self.cars[:, TOUCHED].copy(),
            "counters": np.stack([self.lengths, self.idle, self.episodes]),
            "last_actions": self.last_actions.copy(),
            "pad_timers": self.pad_timers.copy(),
            "seed": np.array(self.seed),
        }
        self.load_state_dict(state)
        return state

    def load_state_dict(self, state):
        shapes = {
            "balls": (self.num_arenas, BALL_NUMBERS),
            "cars": (self.num_agents, CAR_NUMBERS),
            "counters": (3, self.num_arenas),
        }
        for name, shape in shapes.items():
            if np.shape(state[name]) != shape:
                raise ValueError(
                    f"The saved {name} are {np.shape(state[name])}, this environment's {shape}: other size or version."
                )
            if not np.isfinite(state[name]).all():
                raise ValueError(f"The saved {name} hold a value that is not finite: the checkpoint is damaged.")
        self.seed = int(state["seed"])
        self.lengths[:], self.idle[:], self.episodes[:] = np.asarray(state["counters"])
        self.last_actions[:], self.pad_timers[:] = np.asarray(state["last_actions"]), np.asarray(state["pad_timers"])
        for i in range(self.num_arenas):
            self._build_arena(i)
            write_arena(
                self.arenas[i],
                self.bodies[i],
                *(np.asarray(part) for part in (state["balls"][i], state["cars"][self._rows(i)], state["pads"][i])),
            )
        self._advance(None)
        self.cars[:, TOUCHED] = np.asarray(state["touched"])
        self._observe(self._all)
