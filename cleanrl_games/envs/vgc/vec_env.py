"""VGCVecEnv: many real Showdown battles in few Node processes, every pending decision in one numpy batch.

    script                    VGCVecEnv                          num_sims × node showdown/sim.js
    batch = env.recv()  <──   one np.frombuffer-like read   <──  frames: header, mask, ints, floats (fixed size)
    env.send(keys, act) ──>   16 bytes a decision           ──>  Battle.choose() … until both sides have answered

A *key* is 2·battle + side, the name of a seat. Both seats of every battle are open to the caller unless a poke-env
player holds one (`opponents`). A battle that ends is reported to each seat (kind END) and restarts by itself; teams and
dice depend on (seed, battle, episode) only, so the same seed and the same actions give the same frames whatever
num_sims is."""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import weakref
from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from cleanrl_games.envs.vgc import install, mdbo

PREVIEW, TURN, END = 0, 1, 2
NO_WINNER, TIE = -1, 2
OPPONENTS = ("open", "random", "max_power", "heuristics")  # a seat's code -> who answers it
JOB, START, ACTIONS, MIX = 0, 1, 2, 3  # message types, as in sim.js
MAGIC = 0x56474331
RANDOM_PLAY = -1
HEADER = 32
# a reply of 32 battles is 270 KB: through a pipe of 64 KB both processes wake each other again and again
PIPE_BYTES = 1 << 20
# Room for the young objects of many battles (Node starts with 1 MB of it): what a turn made is dead before a collection
# looks at it, and with 128 MB most battles end before they are copied twice. 32 battles took 0.292 ms a decision so,
# 0.303 with 64 MB; the simulator alone, one battle after another, has little to copy and does not care. In return a
# full collection comes whenever the old objects have grown by a fifth, not only when they are sixfold, V8's own rule:
# 590 MB for a process that trains, 670 when they had to double, and no slower.
NODE_FLAGS = ("--max-semi-space-size=128", "--min-semi-space-size=128", "--heap-growing-percent=20")
FINISHED = np.dtype(
    [(name, np.int32) for name in ("battle", "episode", "winner", "turns", "truncated", "p1", "p2", "team1", "team2")]
)


class SimDied(Exception):
    """A Node process ended; VGCVecEnv turns this into truncated battles and a new process, or into an error."""


def frame_dtype(ints: int, floats: int) -> np.dtype:
    """One frame; sim.js writes the same table."""
    fields = [
        (name, "<i4") for name in ("battle", "side", "kind", "episode", "turn", "winner", "team", "opponent_team")
    ]
    fields += [("reward", "<f4"), ("terminated", "?"), ("truncated", "?"), ("retry", "?"), ("opponent", "u1")]
    fields += [("slots", "u1", (2, mdbo.SLOT_ACTIONS)), ("pass_rule", "u1"), ("", "u1"), ("ints", "<i2", (ints,))]
    fields += [("", "<i2")] if ints % 2 else []
    return np.dtype([*fields, ("floats", "<f4", (floats,))])


def head_dtype(frame: np.dtype) -> np.dtype:
    """The part of a frame before its observation."""
    names = [name for name in frame.names if name not in ("ints", "floats")]
    kinds, offsets = [frame.fields[name][0] for name in names], [frame.fields[name][1] for name in names]
    return np.dtype({"names": names, "formats": kinds, "offsets": offsets, "itemsize": frame.fields["ints"][1]})


@dataclass
class Batch:
    """What became pending; n rows, numpy views that stay valid as long as they are kept."""

    frames: np.ndarray
    """(n,) structured: every field below, as it came over the pipe"""
    finished: np.ndarray
    """battles that ended, one row each: battle, episode, winner, turns, truncated, who held p1 and p2, teams"""
    logs: dict[tuple[int, int], str]
    """(battle, episode) -> the spectator's log, with logs=True"""
    protocol: dict[int, list[str]]
    """row -> the protocol lines behind it as a server would have sent them, with protocol=True"""
    errors: list[str]
    """sentences about battles or processes that broke off"""
    played: dict[int, int]
    """row -> what the scripted player that holds its seat played, with record=True; RANDOM_PLAY if its order was not
    legal"""

    def __post_init__(self):
        frames = self.frames
        self.battle, self.side, self.kind = frames["battle"], frames["side"], frames["kind"]
        self.episode, self.turn, self.winner = frames["episode"], frames["turn"], frames["winner"]
        self.team, self.opponent_team, self.opponent = frames["team"], frames["opponent_team"], frames["opponent"]
        self.reward, self.terminated, self.truncated = frames["reward"], frames["terminated"], frames["truncated"]
        # the last answer was unavailable for a hidden reason: the same step is asked again
        self.retry = frames["retry"]
        self.slots, self.pass_rule = frames["slots"], frames["pass_rule"]  # (n, 2, 45), (n,)
        self.ints, self.floats = frames["ints"], frames["floats"]  # (n, INTS) int16, (n, FLOATS) float32
        self.key = 2 * self.battle + self.side
        self.scripted = np.zeros(len(frames), bool)  # rows of scripted seats, to be looked at only
        self.scripted[list(self.played)] = True
        self.decisions = np.flatnonzero((self.kind != END) & ~self.scripted)  # rows to answer
        self.ends = np.flatnonzero(self.kind == END)  # rows that close an episode and carry its last observation

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def mask(self) -> np.ndarray:
        """(n, 2025) bool; of a preview only the first 90 can be set, of an end none."""
        joint = mdbo.joint_mask(self.slots, self.pass_rule)
        preview = self.kind == PREVIEW
        if preview.any():
            joint[preview] = False
            joint[preview, : mdbo.NUM_PREVIEWS] = self.slots[preview].reshape(-1, 2 * mdbo.SLOT_ACTIONS).astype(bool)
        return joint


class Sim:
    """One Node process and the two pipes to it. Every message gets one reply; `outstanding` counts those not yet
    read."""

    def __init__(self, number: int, job: dict, timeout: float):
        self.number, self.timeout, self.outstanding = number, timeout, 0
        self.dtype: np.dtype | None = None
        self.counters = np.zeros(5, np.int64)  # decisions, battles, invalid, unavailable, errors
        folder = install.ensure_showdown()
        to_node, self.write_fd = os.pipe()
        self.read_fd, from_node = os.pipe()
        if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux
            # this user's share of pipe memory is used up: a small pipe works as well
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(from_node, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        # not a pipe: one that nobody reads would stop the process one day
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115
        script = install.SHOWDOWN_SOURCES / "sim.js"
        command = install.node_command(script, str(to_node), str(from_node), flags=NODE_FLAGS)
        self.process = subprocess.Popen(
            command,
            pass_fds=(to_node, from_node),
            env=install.node_env(folder),
            stdin=subprocess.DEVNULL,
            stdout=self.stderr,
            stderr=self.stderr,
            process_group=0,  # a terminal's Ctrl-C is the script's to handle
        )
        os.close(to_node)
        os.close(from_node)
        os.set_blocking(self.read_fd, False)
        self.closer = weakref.finalize(self, close_process, self.process, self.write_fd, self.read_fd, self.stderr)
        self.poll = select.poll()
        self.poll.register(self.read_fd, select.POLLIN)
        self.send(JOB, json.dumps(job).encode())

    def send(self, kind: int, payload: bytes) -> None:
        self.outstanding += 1
        data = memoryview(np.array([kind, len(payload)], "<i4").tobytes() + payload)
        try:
            while data:
                data = data[os.write(self.write_fd, data) :]
        except BrokenPipeError:
            pass  # the process is gone: the read that follows every send says so

    def fill(self, buffer: memoryview) -> None:
        while buffer:
            try:
                got = os.readv(self.read_fd, [buffer])
            except BlockingIOError:
                if self.poll.poll(1000 * self.timeout):
                    continue
                raise TimeoutError(
                    f"Node process {self.process.pid} of VGCVecEnv gave no answer for {self.timeout:.0f} s. "
                    f"It said: {self.said() or 'nothing'}"
                ) from None
            if not got:
                raise SimDied
            buffer = buffer[got:]

    def read(self) -> tuple[np.ndarray, list[dict]]:
        header = np.empty(HEADER // 4, "<i4")
        self.fill(memoryview(header).cast("B"))
        if header[0] != MAGIC:
            raise RuntimeError(
                f"Node process {self.process.pid} sent something that is no reply. It said: {self.said()}"
            )
        self.outstanding -= 1
        self.counters = header[3:].astype(np.int64)
        frames = np.empty(header[1], self.dtype or np.dtype("u1"))
        self.fill(memoryview(frames.view("u1")).cast("B"))
        text = bytearray(header[2])
        self.fill(memoryview(text))
        return frames, json.loads(text) if text else []

    def said(self) -> str:
        size = os.fstat(self.stderr.fileno()).st_size
        return os.pread(self.stderr.fileno(), 4000, max(0, size - 4000)).decode(errors="replace").strip()

    def close(self) -> None:
        self.closer()


def close_process(process: subprocess.Popen, write_fd: int, read_fd: int, stderr) -> None:
    os.close(write_fd)  # the process ends by itself when its pipe closes
    os.close(read_fd)
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    stderr.close()


class VGCVecEnv:
    """
    num_battles: battles played at the same time, spread over num_sims Node processes (some 32 to a process play
    fastest) battle_format: a VGC format of the installed simulator; old spellings (gen9vgc2023regulationc) are
    understood teams: a TeamPool, a list of packed teams, or a pair of those (one for each side); None takes the shipped
    training teams open_team_sheets: both sheets are known from preview on, as in official play; else only what a battle
    reveals turn_cap: a battle that goes on after this many turns ends as truncated
    reward_faint, reward_hp: optional shaping, zero-sum: for each faint, and for each full bar of HP, of the opponent
    minus one's own opponents: seats held by poke-env's players. {"heuristics": 0.25, …}: the share of battles, drawn
    anew (with the seat) for
        each battle, `set_shares` changes it; or one pair a battle, e.g. [("open", "random"), …]. Names: random,
        max_power, heuristics
    protocol, logs: also hand over each decision's protocol lines, each battle's log
    record: also hand over the decisions of scripted seats, with what they played: rows in `batch.played`, not in
    `batch.decisions` episodes, players: of each battle to begin with, as the attributes of these names were; the same
    actions then bring it to the same place"""

    def __init__(
        self,
        num_battles: int = 32,
        num_sims: int = 1,
        battle_format: str = "gen9vgc2024regg",
        teams=None,
        open_team_sheets: bool = True,
        seed: int = 1,
        turn_cap: int = 100,
        reward_faint: float = 0.0,
        reward_hp: float = 0.0,
        opponents=None,
        fast_dispatch: bool = True,
        protocol: bool = False,
        logs: bool = False,
        record: bool = False,
        episodes=None,
        players=None,
        timeout: float = 300.0,
    ):
        if num_battles < 1 or not 1 <= num_sims <= num_battles:
            raise ValueError(
                f"VGCVecEnv needs 1 <= num_sims <= num_battles, not num_sims={num_sims}, num_battles={num_battles}."
            )
        self.sims: list[Sim] = []
        self.num_battles, self.num_sims, self.timeout = num_battles, num_sims, timeout
        self.battle_format = install.normalize_format(battle_format)
        self.restarts = 0
        fixed, shares = read_opponents(opponents, num_battles)
        self.job = {
            "format": self.battle_format,
            "teams": read_teams(teams, self.battle_format),
            "openTeamSheets": open_team_sheets,
            "seed": seed,
            "turnCap": turn_cap,
            "rewardFaint": reward_faint,
            "rewardHp": reward_hp,
            "dispatch": fast_dispatch,
            "protocol": protocol,
            "logs": logs,
            "record": record,
            "fixed": fixed,
            "mix": shares,
        }
        self.episodes = np.zeros(num_battles, np.int32)
        self.episodes[:] = 0 if episodes is None else episodes
        self.players = np.zeros((num_battles, 2), np.int32)  # codes of who holds each seat
        # By key: what a scripted player answers to what it was asked together with the other seat, -1 = nothing.
        self.scripted_actions = np.full(2 * num_battles, -1)
        self.first_players = players if players is None else np.asarray(players).tolist()
        self.start()
        self.single_observation_space = gym.spaces.Dict(
            {
                "ints": gym.spaces.Box(-(2**15), 2**15 - 1, (self.num_ints,), np.int16),
                "floats": gym.spaces.Box(-np.inf, np.inf, (self.num_floats,), np.float32),
            }
        )
        self.single_action_space = gym.spaces.Discrete(mdbo.NUM_ACTIONS)

    # -------------------------------------------------------------------------------------------------------- processes

    def start(self) -> None:
        """Starts the processes, and in them all battles."""
        self.baselines = None
        self.read_baselines()
        self.backlog: list[np.ndarray] = []
        self.backlog_finished: list[list[int]] = []
        self.backlog_errors: list[str] = []
        self.deferred: list[list[tuple]] = [[] for _ in range(self.num_sims)]
        self.pending = np.zeros(2 * self.num_battles, bool)
        self.sims = [self.spawn(number) for number in range(self.num_sims)]
        try:
            for sim in self.sims:
                self.begin(sim)
        except BaseException:
            self.close()
            raise
        self.dtype = self.sims[0].dtype
        self.num_ints, self.num_floats = self.dtype["ints"].shape[0], self.dtype["floats"].shape[0]
        # Of the newest frame of every seat: what comes before its observation, and where it is.
        self.heads = np.zeros(2 * self.num_battles, head_dtype(self.dtype))
        self.heads["kind"] = END
        self.newest: list[tuple[np.ndarray, int] | None] = [None] * (2 * self.num_battles)

    def reset(self, seed: int | None = None) -> None:
        """Ends all battles and begins others in new processes: a seed's first ones, or without a seed each battle's
        next. What they ask comes with recv()."""
        self.close()
        self.episodes += 1
        if seed is not None:
            self.job["seed"], self.episodes[:] = seed, 0
        self.players[:], self.first_players = 0, None
        self.start()

    def spawn(self, number: int) -> Sim:
        battles = list(range(number, self.num_battles, self.num_sims))
        return Sim(number, {**self.job, "battles": battles}, self.timeout)

    def begin(self, sim: Sim) -> None:
        """Waits until a fresh process knows its job, then lets its battles start."""
        try:
            _, texts = sim.read()
        except SimDied:
            raise RuntimeError(f"Showdown's simulator did not start. {self.cause(sim)}") from None
        if texts[0]["problems"]:
            shown = "; ".join(texts[0]["problems"][:5])
            raise ValueError(
                f"These teams cannot be played: {shown}. Read them through TeamPool, which names every fault."
            )
        sim.dtype = frame_dtype(texts[0]["ints"], texts[0]["floats"])
        if sim.dtype.itemsize != texts[0]["frame"]:
            raise RuntimeError(
                f"sim.js writes frames of {texts[0]['frame']} bytes, vec_env.py reads {sim.dtype.itemsize}: their "
                f"tables differ."
            )
        battles = range(sim.number, self.num_battles, self.num_sims)
        first = [
            [battle, int(self.episodes[battle]), self.first_players and self.first_players[battle]]
            for battle in battles
        ]
        sim.send(START, json.dumps(first).encode())

    def cause(self, sim: Sim) -> str:
        """How a process ended, in words; its cache may be at fault, which deleting the folder repairs."""
        code = sim.process.wait(10)
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        said = sim.said()
        hint = (
            f" Delete {install.showdown_path()} to install it anew."
            if "Cannot find module" in said or "SyntaxError" in said
            else ""
        )
        return f"Node process {sim.process.pid} ended ({ended}).{hint} It said: {said or 'nothing'}"

    def bury(self, sim: Sim) -> None:
        """A process is gone: its battles are truncated where they stood, and a new process plays on with new
        episodes."""
        cause = self.cause(sim)
        if sim.process.returncode >= 0:  # not killed: it threw, and would throw again
            raise RuntimeError(f"A simulator process failed. {cause}")
        self.restarts += 1
        if self.restarts > 3 * self.num_sims and self.restarts > self.stats()["battles"]:
            raise RuntimeError(
                f"Simulator processes die faster than they play: {self.restarts} ended. The last: {cause}"
            )
        battles = np.arange(sim.number, self.num_battles, self.num_sims)
        keys = np.concatenate([2 * battles, 2 * battles + 1])
        newest = [self.newest[key] for key in keys[self.heads["kind"][keys] != END]]
        frames = np.array([frames[row] for frames, row in newest], self.dtype)
        frames["kind"], frames["truncated"], frames["terminated"], frames["retry"] = END, True, False, False
        frames["reward"], frames["winner"], frames["slots"] = 0.0, NO_WINNER, 0
        self.backlog.append(frames)
        for battle in battles:
            self.backlog_finished.append([battle, self.episodes[battle], NO_WINNER, 0, 1, 0, 0, -1, -1])
        self.backlog_errors.append(f"{cause} Its {len(battles)} battles are truncated; a new process plays on.")
        print(self.backlog_errors[-1], file=sys.stderr, flush=True)
        self.pending[keys], self.deferred[sim.number] = False, []
        self.episodes[battles] += 1
        self.first_players = None
        sim.close()
        self.sims[sim.number] = self.spawn(sim.number)
        self.begin(self.sims[sim.number])

    # ---------------------------------------------------------------------------------------------------- recv and send

    def recv(self, wait: str = "all") -> Batch:
        """Every decision that became pending. wait="all" lets each process finish what it was sent first, so that the
        order of rows depends on nothing but the seed and the actions; wait="any" returns as soon as one process has
        answered."""
        frames, finished, errors, protocol, logs, played = (
            self.backlog,
            self.backlog_finished,
            self.backlog_errors,
            {},
            {},
            {},
        )
        self.backlog, self.backlog_finished, self.backlog_errors = [], [], []
        self.resume_scripted()
        while True:
            busy = [sim for sim in self.sims if sim.outstanding]
            if (frames or finished) and (wait == "any" or not busy):
                break
            if not busy and self.resume_scripted():
                continue
            if not busy:
                raise RuntimeError(
                    f"Nothing to wait for: {self.pending.sum()} decisions are pending and none was answered with "
                    f"send()."
                )
            for sim in self.ready(busy):
                try:
                    got, texts = sim.read()
                except SimDied:
                    # Of what this process asked in this very call nobody will want an answer; ends that it told stay
                    # told.
                    before = np.concatenate([np.empty(0, self.dtype), *frames])
                    keep = (before["battle"] % self.num_sims != sim.number) | (before["kind"] == END)
                    self.remember(before[keep & (before["kind"] == END)])
                    place = np.cumsum(keep) - 1
                    protocol = {int(place[row]): lines for row, lines in protocol.items() if keep[row]}
                    played = {int(place[row]): action for row, action in played.items() if keep[row]}
                    self.bury(sim)
                    frames, finished, errors = (
                        [before[keep], *self.backlog],
                        finished + self.backlog_finished,
                        errors + self.backlog_errors,
                    )
                    self.backlog, self.backlog_finished, self.backlog_errors = [], [], []
                    continue
                offset = sum(map(len, frames))
                if len(got):
                    frames.append(got)
                    self.episodes[got["battle"]] = got["episode"]
                    asked = got[~got["retry"]]
                    self.scripted_actions[2 * asked["battle"] + 1 - asked["side"]] = -1
                self.note(sim, texts, offset, finished, errors, protocol, logs, played)
        joined = frames[0] if len(frames) == 1 else np.concatenate([np.empty(0, self.dtype), *frames])
        batch = Batch(joined, np.array([tuple(row) for row in finished], FINISHED), logs, protocol, errors, played)
        self.remember(joined)
        begun = np.flatnonzero(batch.kind == PREVIEW)
        self.players[batch.battle[begun]] = 0
        self.players[batch.battle[begun], 1 - batch.side[begun]] = batch.opponent[begun]
        self.pending[batch.key] = (
            batch.kind != END
        ) & ~batch.scripted  # a battle's end and its successor's preview come in this order
        return batch

    def remember(self, frames: np.ndarray) -> None:
        keys, size = 2 * frames["battle"] + frames["side"], self.heads.itemsize
        heads = np.ndarray(len(frames), f"V{size}", frames, strides=frames.strides)
        self.heads.view(heads.dtype)[keys] = heads  # as bytes: field by field it takes three times as long
        for row, key in enumerate(keys.tolist()):
            self.newest[key] = (frames, row)

    def ready(self, busy: list[Sim]) -> list[Sim]:
        poll = select.poll()
        for sim in busy:
            poll.register(sim.read_fd, select.POLLIN | select.POLLHUP)
        events = {fd for fd, _ in poll.poll(1000 * self.timeout)}
        if not events:
            names = ", ".join(str(sim.process.pid) for sim in busy)
            raise TimeoutError(
                f"Node processes {names} of VGCVecEnv gave no answer for {self.timeout:.0f} s. They said: "
                f"{busy[0].said()}"
            )
        return [sim for sim in busy if sim.read_fd in events]

    def note(self, sim: Sim, texts: list[dict], offset: int, finished, errors, protocol, logs, played) -> None:
        """Files a reply's text: finished battles, logs, protocol lines, and what scripted players are asked."""
        answers = []
        for text in texts:
            if "finished" in text:
                row = text["finished"]
                finished.append(row)
                self.episodes[row[0]] = row[1] + 1
                if "log" in text:
                    logs[row[0], row[1]] = text["log"]
                if "error" in text:
                    errors.append(f"Battle {row[0]}, episode {row[1]} broke off inside the simulator: {text['error']}")
            elif text["player"]:
                action = self.baselines.answer(text, OPPONENTS[text["player"]])
                if action is not None:
                    self.scripted_actions[2 * text["battle"] + text["side"]] = action
                    if self.job["record"]:
                        played[offset + text["row"]] = RANDOM_PLAY if self.baselines.was_random else action
                    # Between two scripted players a battle never waits for the caller: it moves one step a recv().
                    queue = self.deferred[sim.number] if text["opponent"] else answers
                    queue.append((text["battle"], text["side"], action, text["episode"]))
            else:
                protocol[offset + text["row"]] = text["lines"]
        if answers:
            sim.send(ACTIONS, np.array(answers, "<i4").tobytes())

    def resume_scripted(self) -> bool:
        waiting = [sim for sim in self.sims if self.deferred[sim.number]]
        for sim in waiting:
            sim.send(ACTIONS, np.array(self.deferred[sim.number], "<i4").tobytes())
            self.deferred[sim.number] = []
        return bool(waiting)

    def send(self, keys, actions) -> None:
        """Answers any subset of the pending decisions: keys are `batch.key` rows, actions MDBO numbers (previews:
        0–89)."""
        keys, actions = np.asarray(keys, np.int64).reshape(-1), np.asarray(actions, np.int64).reshape(-1)
        if len(keys) != len(actions):
            raise ValueError(
                f"send() got {len(keys)} keys and {len(actions)} actions; every decision takes one action."
            )
        self.check(keys, actions)
        self.pending[keys] = False
        rows = np.empty((len(keys), 4), "<i4")
        rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = keys // 2, keys % 2, actions, self.heads["episode"][keys]
        for sim in self.sims:
            mine = rows if self.num_sims == 1 else rows[rows[:, 0] % self.num_sims == sim.number]
            if len(mine):
                sim.send(ACTIONS, mine.tobytes())

    def check(self, keys: np.ndarray, actions: np.ndarray) -> None:
        known = (keys >= 0) & (keys < len(self.pending))
        if not known.all() or not self.pending[keys].all() or np.bincount(keys).max(initial=0) > 1:
            bad = (
                [int(key) for key in keys[~known]]
                or sorted({int(key) for key in keys if not self.pending[key]})
                or "some twice"
            )
            raise ValueError(
                f"send() got keys without a pending decision: {bad}. Answer rows `batch.decisions` of a recv(), once "
                f"each."
            )
        slots, preview = self.heads["slots"][keys], self.heads["kind"][keys] == PREVIEW
        inside = (actions >= 0) & (actions < np.where(preview, mdbo.NUM_PREVIEWS, mdbo.NUM_ACTIONS))
        first, second = np.divmod(np.where(inside, actions, 0), mdbo.SLOT_ACTIONS)
        row, rule = np.arange(len(keys)), self.heads["pass_rule"][keys]
        legal = (slots[row, 0, first] & slots[row, 1, second]).astype(bool) & mdbo.PAIRS[first, second]
        legal &= (rule == mdbo.NO_PASS_RULE) | (rule == mdbo.PASSES[first, second])
        legal = np.where(
            preview, slots.reshape(len(keys), -1)[row, np.where(inside & preview, actions, 0)].astype(bool), legal
        )
        if not (legal & inside).all():
            at = int(np.flatnonzero(~(legal & inside))[0])
            kind = "preview" if preview[at] else "turn"
            raise ValueError(
                f"Action {actions[at]} is not legal in the {kind} decision of battle {keys[at] // 2}, side "
                f"{keys[at] % 2}: "
                "sample from batch.mask."
            )

    # ------------------------------------------------------------------------------------------------------------- rest

    def set_shares(self, shares: dict[str, float]) -> None:
        """The shares of battles against scripted players, for battles that begin from now on. Said between recv() and
        send(), it holds for what this send() leads to."""
        if self.job["fixed"]:
            raise ValueError(
                "set_shares() changes shares, but this environment was given a pair of players for each battle."
            )
        _, shares = read_opponents(shares, self.num_battles)
        if shares != self.job["mix"]:
            self.job["mix"] = shares
            self.read_baselines()
            for sim in self.sims:
                sim.send(MIX, json.dumps(shares).encode())

    def read_baselines(self) -> None:
        """Only for those who need them: poke-env's data take a while."""
        if self.baselines is None and (self.job["fixed"] or self.job["mix"]):
            from cleanrl_games.envs.vgc.baselines import Baselines

            self.baselines = Baselines(self.battle_format, self.job["seed"])

    def stats(self) -> dict[str, int]:
        """Counters of the processes that live now: decisions, battles, invalid and unavailable choices, broken
        battles."""
        total = sum((sim.counters for sim in self.sims), np.zeros(5, np.int64))
        return dict(zip(("decisions", "battles", "invalid", "unavailable", "errors"), map(int, total)))

    def pids(self) -> list[int]:
        return [sim.process.pid for sim in self.sims]

    def close(self) -> None:
        for sim in self.sims:
            sim.close()
        self.sims = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def read_teams(teams, battle_format: str) -> list[list[str]]:
    """Packed teams for each side from whatever the caller gave."""
    if teams is None:
        from cleanrl_games.envs.vgc.teams import TeamPool

        teams = TeamPool("shipped", battle_format)
    pair = teams if isinstance(teams, tuple) and len(teams) == 2 else (teams, teams)
    packed = [list(getattr(pool, "packed", pool)) for pool in pair]
    for side, pool in enumerate(packed):
        if not pool:
            raise ValueError(
                f"Side {side} has no teams: give VGCVecEnv a TeamPool with at least one team, or a list of packed "
                f"teams."
            )
        if not all(isinstance(team, str) and team for team in pool):
            raise ValueError(
                "A team given to VGCVecEnv must be a packed team (one line of text); TeamPool reads PokePaste files."
            )
    return packed


def read_opponents(opponents, num_battles: int) -> tuple[list | None, list]:
    """-> (a pair of codes for each battle, or None), (a share for each code)."""
    codes = {name: code for code, name in enumerate(OPPONENTS)}
    names = list(opponents) if isinstance(opponents, dict) else [name for pair in opponents or [] for name in pair]
    unknown = sorted({str(name) for name in names if name is not None and name not in codes})
    if unknown:
        raise ValueError(f"Unknown opponents {', '.join(unknown)}: choose from {', '.join(OPPONENTS)}.")
    if not opponents:
        return None, []
    if isinstance(opponents, dict):
        if sum(opponents.values()) > 1 + 1e-9:
            raise ValueError(f"The shares of opponents sum to {sum(opponents.values())}, more than every battle.")
        return None, [[codes[name], share] for name, share in opponents.items() if codes[name]]
    if len(opponents) != num_battles:
        raise ValueError(f"opponents has {len(opponents)} pairs for {num_battles} battles; give one pair for each.")
    return [[codes[name or "open"] for name in pair] for pair in opponents], []
