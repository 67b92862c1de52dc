"""Looking one turn ahead: any VGC policy, with a search of the real simulator on top.

    lines, requests of one seat ──> showdown/search.js: W worlds, each a real Battle in this position
    policy ──> its k likeliest actions for us; for the opponent, from what it sees in each world, k for each world
    every pair played in every world, the same dice for all ──> frames of both seats ──> the policy's value head
    k × k values in W worlds ──> equilibrium ──> mixed with the policy ──> the action

    player = SearchPlayer(script.Player(agent, seed), SearchSettings(worlds=4, actions=8), battle_format)
    play_battles(player, "heuristics", 100, battle_format)

The search sees what the player sees: its own lines and requests. What it cannot see is drawn, the opponent is taken for
a copy of the policy. Where a position cannot be rebuilt the policy answers alone; `player.counts` says how often and
why. The policy is any `Player` of the VGC scripts: it has an `agent`, a `memory` by seat and a `generator`.
"""

import contextlib
import json
import os
import select
import struct
import subprocess
import tempfile
import time
import weakref
from collections import Counter
from dataclasses import dataclass, fields

import numpy as np
import torch

from cleanrl_games.envs.vgc import install, mdbo
from cleanrl_games.envs.vgc.teams import TeamPool
from cleanrl_games.envs.vgc.vec_env import PREVIEW
from cleanrl_games.envs.vgc.views import FRAME, close_process
from cleanrl_games.runtime.errors import BadInput

TIMEOUT = 120.0  # seconds for one answer of a process; it takes a second at most
ITERATIONS = 300  # of regret matching
MAX_RESTARTS = 3  # of the processes, in the life of a search
ROWS_AT_ONCE = 512  # positions valued in one forward pass


@dataclass(frozen=True)
class SearchSettings:
    worlds: int = 4
    """worlds that are drawn for a decision"""
    actions: int = 8
    """likeliest actions of each side that are tried"""
    weight: float = 0.5
    """share of the equilibrium in the mixture; the rest is the policy"""
    seconds: float = 0.0
    """no further world is begun after so many seconds, 0 = no limit"""
    processes: int = 2
    """Node processes that the worlds are spread over"""
    preview: int = 1
    """1: also look ahead from team preview"""


def parse_search(text: str, seconds: float = 0.0) -> SearchSettings | None:
    """ "worlds=4 actions=8" → settings; "" → None. seconds: the limit if the text names none"""
    if not text.strip():
        return None
    kinds = {field.name: type(field.default) for field in fields(SearchSettings)}
    found: dict = {"seconds": seconds}
    for word in text.replace(",", " ").split():
        name, _, value = word.partition("=")
        if name not in kinds:
            raise BadInput(f"--search: {word!r} is no setting; write NAME=NUMBER with {', '.join(kinds)}.")
        try:
            found[name] = kinds[name](value)
        except ValueError:
            kind = "a whole number" if kinds[name] is int else "a number"
            raise BadInput(f"--search: {name} should be {kind}, found {value!r}.") from None
    settings = SearchSettings(**found)
    for name, low, high in (
        ("worlds", 1, 256),
        ("actions", 1, 64),
        ("weight", 0.0, 1.0),
        ("seconds", 0.0, 3600.0),
        ("processes", 1, 64),
        ("preview", 0, 1),
    ):
        if not low <= getattr(settings, name) <= high:
            raise BadInput(f"--search: {name} should be {low:g} to {high:g}, found {getattr(settings, name):g}.")
    return settings


# --------------------------------------------------------------------------------------------------------- pure maths


def solve(payoffs: np.ndarray, iterations: int = ITERATIONS) -> np.ndarray:
    """Equilibrium of a game with W worlds that only the opponent can tell apart: regret matching⁺ against itself, the
    later iterations counting more. payoffs (W, k, m), ours → our mixture (k,)"""
    worlds, ours, theirs = payoffs.shape
    regret, regrets = np.zeros(ours), np.zeros((worlds, theirs))
    total = np.zeros(ours)
    for step in range(1, iterations + 1):
        x = regret / regret.sum() if regret.sum() > 0 else np.full(ours, 1 / ours)
        sums = regrets.sum(1, keepdims=True)
        y = np.where(sums > 0, regrets / np.where(sums > 0, sums, 1), 1 / theirs)
        gains = np.einsum("wij,wj->i", payoffs, y) / worlds
        losses = np.einsum("wij,i->wj", payoffs, x)
        regret = np.maximum(0, regret + gains - x @ gains)
        regrets = np.maximum(0, regrets - losses + (y * losses).sum(1, keepdims=True))
        total += step * x
    return total / total.sum()


def likeliest(logprobs: np.ndarray, legal: np.ndarray, count: int) -> np.ndarray:
    """The numbers of at most `count` legal actions, the likeliest first; ties by number"""
    order = np.argsort(-logprobs, kind="stable")
    return order[legal[order]][:count]


# ------------------------------------------------------------------------------------------------------ Node processes


class SearchError(RuntimeError):
    """A process of the search failed; the message has what it said."""


class Simulator:
    """One Node process that rebuilds battles and plays turns in them."""

    def __init__(self, battle_format: str, library: list[str]):
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            install.node_command(install.SHOWDOWN_SOURCES / "search.js", flags=("--max-semi-space-size=64",)),
            env=install.node_env(install.ensure_showdown()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            process_group=0,
        )
        self.close = weakref.finalize(self, close_process, self.process, self.errors)
        self.send({"job": {"format": battle_format, "library": library}})

    def send(self, message: dict) -> None:
        data = json.dumps(message).encode()
        try:
            self.process.stdin.write(struct.pack("<i", len(data)) + data)
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise SearchError(f"A process of the search ended. It said: {self.said()}") from None

    def fill(self, count: int) -> bytearray:
        data, at = bytearray(count), 0
        output = self.process.stdout.fileno()
        while at < count:
            if not select.select([output], [], [], TIMEOUT)[0]:
                raise SearchError(
                    f"A process of the search (pid {self.process.pid}) gave no answer for {TIMEOUT:.0f} s."
                )
            got = os.readv(output, [memoryview(data)[at:]])
            if not got:
                raise SearchError(f"A process of the search ended. It said: {self.said()}")
            at += got
        return data

    def read(self) -> tuple[dict, np.ndarray]:
        text, size = struct.unpack("<ii", self.fill(8))
        answer = json.loads(self.fill(text))
        frames = np.frombuffer(self.fill(size), FRAME)
        if "error" in answer:
            raise SearchError(f"A process of the search failed: {answer['error']}")
        return answer, frames

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-2000:] or "nothing"


# -------------------------------------------------------------------------------------------------------- the decision


@dataclass
class Asked:
    """One decision to search, by one seat of one battle."""

    key: str
    role: str  # p1 or p2
    lines: list[str]  # what the seat was sent since its last decision, requests as |request|JSON
    fresh: bool  # a battle begins here
    retry: bool  # the last answer could not be carried out: the same decision again
    policy: np.ndarray  # (2025,) probabilities
    memory: torch.Tensor  # (2, H) of the policy, after this decision

    @classmethod
    def of(cls, logprobs: torch.Tensor, legal: np.ndarray, **rest):
        """logprobs, legal (2025,): of the whole policy"""
        shares = np.where(legal, logprobs.double().exp().numpy(), 0.0)
        return cls(policy=shares / shares.sum(), **rest)


def choose(mixture: np.ndarray, deterministic: bool, rng: np.random.Generator) -> int:
    return int(mixture.argmax()) if deterministic else int(rng.choice(len(mixture), p=mixture))


@dataclass
class World:
    number: int
    process: int
    frame: np.ndarray  # what the opponent sees
    asked: bool  # whether the opponent decides too
    actions: np.ndarray | None = None
    memory: torch.Tensor | None = None  # the opponent's, after its decision
    values: np.ndarray | None = None  # (k, m), ours


class Search:
    """Searches decisions, many at once. Keeps what the opponents of its seats may remember."""

    def __init__(self, agent, settings: SearchSettings, battle_format: str, seed: int = 1, library=None):
        self.agent, self.settings, self.seed = agent, settings, seed
        battle_format = install.normalize_format(battle_format)
        if library is None:
            library = list(TeamPool("shipped", battle_format).packed)
        self.battle_format, self.library = battle_format, library
        self.simulators: list[Simulator] = []
        self.start()
        self.before, self.after = {}, {}  # key → the opponent's memory before and after its last decision
        self.decisions = Counter()  # key → decisions so far, for the dice
        self.counts = Counter()  # searched, and why others were not
        self.seconds = 0.0

    def start(self) -> None:
        count = min(self.settings.processes, self.settings.worlds)
        self.simulators = [Simulator(self.battle_format, self.library) for _ in range(count)]
        for simulator in self.simulators:
            width = simulator.read()[0]["bytes"]
            if width != FRAME.itemsize:
                raise SearchError(f"search.js writes frames of {width} bytes, views.py reads {FRAME.itemsize}.")

    def close(self) -> None:
        for simulator in self.simulators:
            simulator.close()

    def report(self) -> str:
        """One sentence: how many decisions were searched, what they cost, why others were not"""
        counts = self.counts
        each = self.seconds / max(1, counts["decisions"])
        others = [f"{what} {count:,}" for what, count in counts.most_common() if what not in ("searched", "decisions")]
        return (
            f"search: {counts['searched']:,} of {counts['decisions']:,} decisions, {1000 * each:.0f} ms each"
            f"{'; ' if others else ''}{', '.join(others)}"
        )

    def forget(self, keys: list[str]) -> None:
        """Battles that are over."""
        with contextlib.suppress(SearchError):  # a process that is gone has forgotten; the next decision starts it anew
            self.ask([{"forget": keys}] * len(self.simulators))
        for key in keys:
            for table in (self.before, self.after, self.decisions):
                table.pop(key, None)

    def ask(self, messages: list[dict]) -> list[tuple[dict, np.ndarray]]:
        for simulator, message in zip(self.simulators, messages):
            simulator.send(message)
        return [simulator.read() for simulator in self.simulators]

    def run(self, asked: list[Asked]) -> list[np.ndarray | None]:
        """The mixture to play in each decision (2025,), None where the policy is left alone"""
        started = time.perf_counter()
        try:
            found = self.look_ahead(asked, started)
        except SearchError:
            # New processes know nothing of battles under way: those go on without search.
            self.counts["processes that ended"] += 1
            if self.counts["processes that ended"] > MAX_RESTARTS:
                raise
            self.close()
            self.start()
            found = [None] * len(asked)
        self.counts["searched"] += sum(mixture is not None for mixture in found)
        self.counts["decisions"] += len(asked)
        self.seconds += time.perf_counter() - started
        return found

    @torch.no_grad()
    def look_ahead(self, asked: list[Asked], started: float) -> list[np.ndarray | None]:
        worlds = self.draw(asked)
        self.opponents(asked, worlds)
        own = []
        for row, decision in enumerate(asked):
            count = int((decision.policy > 0).sum())
            own.append(likeliest(decision.policy, decision.policy > 0, self.settings.actions))
            if count < 2 and worlds[row]:
                self.counts["only one action"] += 1
                worlds[row] = []
        limit = len(asked) * self.settings.seconds
        left = limit and max(0.05, limit - (time.perf_counter() - started))
        self.play(asked, worlds, own, left)
        found = []
        for decision, drawn, actions in zip(asked, worlds, own):
            played = [world.values for world in drawn if world.values is not None]
            found.append(self.mixture(decision.policy, actions, played) if played else None)
        return found

    # ------------------------------------------------------------------------------------------------------- its steps

    def draw(self, asked: list[Asked]) -> list[list[World]]:
        """The worlds of each decision that could be rebuilt."""
        messages = [{"see": []} for _ in self.simulators]
        for decision in asked:
            if decision.fresh:
                self.decisions[decision.key] = 0
            self.decisions[decision.key] += 1
            for number, message in enumerate(messages):
                mine = list(range(number, self.settings.worlds, len(messages)))
                dice = np.random.SeedSequence([self.seed, hash_of(decision.key), self.decisions[decision.key]])
                seeds = dice.generate_state(4 * self.settings.worlds).reshape(-1, 4) & 0xFFFF
                message["see"].append(
                    {
                        "key": decision.key,
                        "role": decision.role,
                        "lines": decision.lines,
                        "fresh": decision.fresh,
                        "worlds": mine if self.settings.preview or not decision.fresh or decision.retry else mine[:1],
                        "seeds": [",".join(map(str, seeds[world])) for world in mine],
                    }
                )
        found: list[list[World]] = [[] for _ in asked]
        reasons: list[list[str]] = [[] for _ in asked]
        for process, (answer, frames) in enumerate(self.ask(messages)):
            for row, (drawn, sent) in enumerate(zip(answer["rows"], messages[process]["see"])):
                for number, world in zip(sent["worlds"], drawn):
                    if "failed" in world:
                        reasons[row].append(world["failed"])
                    else:
                        found[row].append(World(number, process, frames[world["frame"]], world["asked"]))
        for row, drawn in enumerate(found):
            drawn.sort(key=lambda world: world.number)
            if not drawn:
                self.counts[f"not rebuilt: {reasons[row][0]}"] += 1
        return found

    def opponents(self, asked: list[Asked], worlds: list[list[World]]) -> None:
        """What the opponent is likely to do in each world, and what it then remembers."""
        places = [(decision, world) for decision, drawn in zip(asked, worlds) for world in drawn]
        if not places:
            return
        before = []
        for decision, _ in places:
            blank = self.agent.initial_state(1)[0]
            known = self.before if decision.retry else self.after
            before.append(blank if decision.fresh else known.get(decision.key, blank))
        frames = np.array([world.frame for _, world in places], FRAME)
        preview = np.array([decision.fresh for decision, _ in places])
        logprobs, legal, memory = self.policy(frames, torch.stack(before), preview)
        for row, (_, world) in enumerate(places):
            if world.asked:
                world.actions = likeliest(logprobs[row], legal[row], self.settings.actions)
                world.memory = memory[row]
            else:
                world.actions, world.memory = np.array([-1]), before[row]
        for decision, drawn in zip(asked, worlds):
            if drawn:  # what the first world's opponent remembers stands for all of them
                row = next(i for i, (_, world) in enumerate(places) if world is drawn[0])
                self.before[decision.key] = before[row]
                self.after[decision.key] = drawn[0].memory

    def policy(self, frames, memory, preview):
        """→ log-probs (B, 2025), legal (B, 2025), memory after (B, 2, H)"""
        legal = mdbo.joint_mask(frames["slots"], frames["pass_rule"])
        legal[preview] = False
        slots = frames["slots"][preview].reshape(-1, 2 * mdbo.SLOT_ACTIONS).astype(bool)
        legal[preview, : mdbo.NUM_PREVIEWS] = slots
        legal[~legal.any(1), 0] = True  # who waits has no action; its row is not looked at
        hidden, candidates, after = self.agent.step(
            torch.from_numpy(frames["ints"].copy()), torch.from_numpy(frames["floats"].copy()), memory
        )
        logprobs = self.agent.joint_logprobs(hidden, candidates, torch.from_numpy(preview), torch.from_numpy(legal))
        return logprobs.float().numpy(), legal, after

    def play(self, asked: list[Asked], worlds: list[list[World]], own: list[np.ndarray], seconds: float) -> None:
        """Fills the worlds' values: every pair of actions, played in Node, valued here."""
        messages = [{"play": [], "seconds": seconds} for _ in self.simulators]
        sent: list[list[tuple[int, list[World]]]] = [[] for _ in self.simulators]
        for row, (decision, drawn) in enumerate(zip(asked, worlds)):
            if decision.fresh and not self.settings.preview:
                if drawn:
                    self.counts["team preview"] += 1
                continue
            for process, message in enumerate(messages):
                mine = [world for world in drawn if world.process == process]
                if mine:
                    jobs = [
                        {"world": world.number, "own": own[row].tolist(), "opp": world.actions.tolist()}
                        for world in mine
                    ]
                    message["play"].append({"key": decision.key, "worlds": jobs})
                    sent[process].append((row, mine))
        for process, (answer, frames) in enumerate(self.ask(messages)):
            memories = torch.empty(len(frames), *self.agent.initial_state(1).shape[1:])
            sign = np.ones(len(frames))
            done = []
            for (row, drawn), results in zip(sent[process], answer["rows"]):
                for world, result in zip(drawn, results):
                    if "failed" in result:
                        self.counts[f"a world was left out: {result['failed']}"] += 1
                    elif "late" in result:
                        self.counts["a world was left out: no time"] += 1
                    else:
                        table = np.array(result["results"])  # our frame, theirs, value at the end
                        for column, memory in ((0, asked[row].memory), (1, world.memory)):
                            at = table[table[:, column] >= 0, column].astype(int)
                            memories[at] = memory
                            sign[at] = 1 - 2 * column
                        done.append((row, world, table))
            values = self.value(frames, memories) * sign
            for row, world, table in done:
                ours, theirs = table[:, 0].astype(int), table[:, 1].astype(int)
                seen = (ours >= 0).astype(float) + (theirs >= 0)
                both = np.where(ours >= 0, values[ours] if len(values) else 0, 0.0)
                both = both + np.where(theirs >= 0, values[theirs] if len(values) else 0, 0.0)
                world.values = np.where(seen > 0, both / np.maximum(1, seen), table[:, 2])
                world.values = world.values.reshape(len(own[row]), len(world.actions))

    def value(self, frames: np.ndarray, memories: torch.Tensor) -> np.ndarray:
        """(N,) in −1 … 1, as the seat sees it whose frame it is"""
        found = np.zeros(len(frames))
        for start in range(0, len(frames), ROWS_AT_ONCE):
            part = frames[start : start + ROWS_AT_ONCE]
            ints, floats = torch.from_numpy(part["ints"].copy()), torch.from_numpy(part["floats"].copy())
            hidden, _, _ = self.agent.step(ints, floats, memories[start : start + ROWS_AT_ONCE])
            found[start : start + ROWS_AT_ONCE] = self.agent.value(hidden).numpy()
        return found

    def mixture(self, policy: np.ndarray, actions: np.ndarray, values: list[np.ndarray]) -> np.ndarray:
        widest = max(table.shape[1] for table in values)
        # A world where the opponent has fewer actions repeats its last one, which changes no equilibrium.
        tables = [np.pad(table, ((0, 0), (0, widest - table.shape[1])), mode="edge") for table in values]
        mixed = (1 - self.settings.weight) * policy
        mixed[actions] += self.settings.weight * solve(np.stack(tables))
        return mixed / mixed.sum()


def hash_of(key: str) -> int:
    """The same in every process, unlike hash()"""
    value = 2166136261
    for byte in key.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


# -------------------------------------------------------------------------------------------------------- the players


class SearchPlayer:
    """A policy with search, as a player for `play_battles`, which then hands over each decision's lines."""

    needs_protocol = True

    def __init__(self, player, settings: SearchSettings, battle_format: str, seed: int = 1, library=None):
        """player: a `Player` of a VGC script; its dice and whether it takes the likeliest action are kept"""
        self.player = player
        self.search = Search(player.agent, settings, battle_format, seed, library)
        self.rng = np.random.default_rng(seed)

    @property
    def counts(self) -> Counter:
        return self.search.counts

    @torch.no_grad()
    def act(self, batch, rows):
        player, agent = self.player, self.player.agent
        missing = int(batch.key[rows].max(initial=-1)) + 1 - len(player.memory.after)
        if missing > 0:
            player.memory.before = torch.cat([player.memory.before, agent.initial_state(missing)])
            player.memory.after = torch.cat([player.memory.after, agent.initial_state(missing)])
        hidden, candidates = player.memory.step(agent, batch, rows)
        preview, legal = batch.kind[rows] == PREVIEW, batch.mask[rows]
        logprobs = agent.joint_logprobs(hidden, candidates, torch.from_numpy(preview), torch.from_numpy(legal))
        asked = [
            Asked.of(
                logprobs[i],
                legal[i],
                key=f"{batch.key[row]}",
                role=f"p{batch.side[row] + 1}",
                lines=batch.protocol[int(row)],
                fresh=bool(preview[i]),
                retry=bool(batch.retry[row]),
                memory=player.memory.after[int(batch.key[row])],
            )
            for i, row in enumerate(rows)
        ]
        mixed = [
            decision.policy if mixture is None else mixture for decision, mixture in zip(asked, self.search.run(asked))
        ]
        return np.array([choose(mixture, player.deterministic, self.rng) for mixture in mixed])

    def close(self) -> None:
        self.search.close()
