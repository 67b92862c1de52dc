"""`RemoteNHVecEnv`: the contract of `NHVecEnv` against a running simulation server, for evaluation on the real rules.

JSON lines over TCP, one connection per agent:

    → {"action": "step", "body": {"action": [12 numbers]}, "meta": {"id": ID}}
    ← {"body": {"obs", "actionMasks", "meta", "terminalState"?}}   or   {}   or   {"error": true, "message"}

The server's world ticks when every agent that is logged in has spoken, so all of them are asked at once. A fight whose
connection breaks, falls silent or gets out of step is truncated, and its two agents come back under fresh ids.
"""

import asyncio
import json
import uuid

import gymnasium as gym
import numpy as np

from . import contract
from .observations import FACTS, reward_terms
from .rules import LOST, TIED, WON

MAX_LINE = 8192  # what the server reads; its own lines are about 4,000 bytes
_RESULTS = {"WON": WON, "LOST": LOST, "TIED": TIED}
_BROKEN = {"TARGET_LOST", "DESYNC"}


class RemoteError(RuntimeError):
    """The server refused a request, or answered with something that is not the protocol."""


class _Lost(Exception):
    """A connection that broke or fell silent: the fight is over, the run is not."""


def facts_from_meta(meta, previous_meta, result, facts):
    """The server's meta data of a tick, in the words of the simulator's facts, so that both are rewarded by one function."""
    facts.result = result
    facts.damage_dealt, facts.damage_received = meta["damageGeneratedOnTargetScale"], meta["damageGeneratedOnPlayerScale"]
    facts.extra_dealt = meta["extraDamageDealtOnTargetScale"]
    facts.extra_received = meta["extraDamageDealtOnPlayerScale"]
    facts.healed, facts.target_healed = meta["playerHealedScale"], meta["targetHealedScale"]
    facts.wasted_food = meta.get("wastedFoodScale", 0.0)
    facts.food_left = meta["remainingFoodScale"] + meta["remainingBrewScale"]
    facts.target_food_left = meta["targetRemainingFoodScale"] + meta["targetRemainingBrewScale"]
    facts.prayed_correctly = int(meta["protectedPrayer"]) if "protectedPrayer" in meta else -1
    facts.target_attack_speed = meta.get("targetHitAttackSpeed", 0)
    facts.hit_off_prayer = int(meta["hitOffPrayer"]) if "hitOffPrayer" in meta else -1
    facts.attack_speed = meta.get("playerHitAttackSpeed", 0)
    # A freeze timer that went up instead of down is a new freeze.
    for name, key in (("new_freeze", "playerFrozenTicks"), ("target_new_freeze", "targetFrozenTicks")):
        setattr(facts, name, meta[key] if meta[key] > previous_meta[key] else 0)
    facts.no_prayer = meta["currentPrayerPercent"] <= 0
    facts.smite, facts.target_smite = bool(meta.get("hitWithSmite")), bool(meta.get("targetAttackedWithSmite"))
    facts.health = meta["currentHealthPercent"]


def first_legal_action(mask):
    """Something to send while a peer is still joining: in each head the first action that is legal."""
    chosen, action = set(), []
    for offset, size in zip(contract.HEAD_OFFSETS, contract.HEAD_SIZES, strict=True):
        legal = [
            i
            for i in range(size)
            if mask[offset + i]
            and contract.FORBIDS[offset + i] not in chosen
            and (contract.NEEDS[offset + i] < 0 or contract.NEEDS[offset + i] in chosen)
        ]
        action.append(legal[0] if legal else 0)
        chosen.add(offset + action[-1])
    return action


class _Agent:
    """One fighter: a connection and an id that no other agent has had."""

    def __init__(self, host, port, timeout):
        self.host, self.port, self.timeout = host, port, timeout
        self.id, self.reader, self.writer, self.meta = f"agent-{uuid.uuid4().hex}", None, None, None

    async def connect(self):
        try:
            opening = asyncio.open_connection(self.host, self.port, limit=2 * MAX_LINE)
            self.reader, self.writer = await asyncio.wait_for(opening, self.timeout)
        except (OSError, TimeoutError) as error:
            raise _Lost(f"cannot connect ({error or 'no answer'})") from None

    async def ask(self, action, body):
        line = json.dumps({"action": action, "body": body, "meta": {"id": self.id}}, separators=(",", ":")).encode() + b"\n"
        if len(line) > MAX_LINE:
            raise RemoteError(f"The request {action!r} of {self.id} has {len(line)} bytes; the server reads {MAX_LINE} a line.")
        try:
            self.writer.write(line)
            await asyncio.wait_for(self.writer.drain(), self.timeout)
            answer = await asyncio.wait_for(self.reader.readline(), self.timeout)
        except TimeoutError:
            raise _Lost(f"no answer to {action!r} within {self.timeout:g} s") from None
        except (ConnectionError, OSError) as error:
            raise _Lost(f"connection broke during {action!r} ({error})") from None
        except ValueError:  # asyncio's word for a line that does not end
            raise RemoteError(f"The server's answer to {action!r} of {self.id} is longer than {2 * MAX_LINE} bytes.") from None
        if not answer.endswith(b"\n"):
            raise _Lost(f"connection closed during {action!r}")
        try:
            answer = json.loads(answer)
        except ValueError:
            raise RemoteError(f"The server's answer to {action!r} of {self.id} is not JSON: {answer[:80]!r}") from None
        if not isinstance(answer, dict):
            raise RemoteError(f"The server's answer to {action!r} of {self.id} is not an object: {str(answer)[:80]}")
        if answer.get("error"):
            raise RemoteError(f"The server refused {action!r} of {self.id}: {answer.get('message', 'without a reason')}")
        return answer.get("body")

    def close(self):
        if self.writer is not None:
            self.writer.close()


class RemoteNHVecEnv:
    """N fights on a simulation server: the same arrays, rewards and autoreset as `NHVecEnv`, 2 N connections.

    `reset_params` are handed to the server (`accountBuild`, `randomizeGear`, …). The server's dice cannot be seeded.
    """

    def __init__(
        self,
        num_fights,
        host="127.0.0.1",
        port=7070,
        reward_weights=None,
        max_ticks=1000,
        reset_params=None,
        timeout=10.0,
        attempts=5,
        backoff=0.5,
        join_patience=1.0,
    ):
        self.num_fights, self.host, self.port, self.max_ticks = num_fights, host, port, max_ticks
        self.reset_params, self.timeout = dict(reset_params or {}), timeout
        self.attempts, self.backoff, self.join_patience = attempts, backoff, join_patience
        weights = np.zeros(contract.NUM_TERMS) if reward_weights is None else reward_weights
        self.reward_weights = np.asarray(weights, np.float32)
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (contract.NUM_OBS,), np.float32)
        self.single_action_space = gym.spaces.MultiDiscrete(contract.HEAD_SIZES)

        self.obs = np.zeros((num_fights, 2, contract.NUM_OBS), np.float32)
        self.masks = np.zeros((num_fights, 2, contract.NUM_LOGITS), np.bool_)
        self.final_obs = np.zeros_like(self.obs)
        self.terms = np.zeros((num_fights, 2, contract.NUM_TERMS), np.float32)
        self.facts = np.zeros((num_fights, 2), FACTS).view(np.recarray)
        self.length = np.zeros(num_fights, np.int32)
        self.events = []  # sentences about connections that were lost, for whoever wants to show them
        self.agents = [None] * num_fights
        self.loop = asyncio.new_event_loop()
        try:
            self.reset()
        except BaseException:
            self.close()
            raise

    def reset(self, seed=None):
        """Starts all fights anew, under fresh ids. `seed` is there for the interface: a server's dice cannot be seeded."""
        self.length[:] = 0
        self._run(*(self._enter(i) for i in range(self.num_fights)))
        return self.obs, self.masks

    def step(self, actions):
        actions = np.asarray(actions)
        result, truncated = np.zeros(self.num_fights, np.int32), np.zeros(self.num_fights, bool)
        self.terms[:] = 0
        self.length += 1
        self._run(*(self._step_fight(i, actions[i], result, truncated) for i in range(self.num_fights)))
        length, ended = self.length.copy(), (result != 0) | truncated
        self.final_obs[ended] = self.obs[ended]
        self.length[ended] = 0
        again = [self._enter(i) if truncated[i] else self._reset_fight(i) for i in np.flatnonzero(ended)]
        self._run(*again)
        info = {"terms": self.terms, "result": result, "length": length, "final_obs": self.final_obs}
        return self.obs, self.masks, self.terms @ self.reward_weights, result != 0, truncated, info

    def close(self):
        """Logs out as far as the server still listens, and closes every connection."""
        if self.loop.is_closed():
            return
        agents = [agent for pair in self.agents if pair for agent in pair]
        for agent in agents:
            agent.timeout = min(agent.timeout, 1.0)

        async def leave():
            farewells = [agent.ask("logout", {}) for agent in agents if agent.writer is not None]
            await asyncio.gather(*farewells, return_exceptions=True)
            for agent in agents:
                agent.close()
            await asyncio.sleep(0)  # lets the transports close

        self.loop.run_until_complete(leave())
        self.loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _run(self, *jobs):
        """All at once, because the server's world waits for the last one; the first failure is the caller's."""

        async def together():
            results = await asyncio.gather(*jobs, return_exceptions=True)
            for outcome in results:
                if isinstance(outcome, BaseException):
                    raise outcome

        self.loop.run_until_complete(together())

    async def _enter(self, i):
        """Two fresh agents for fight i: connect, log in, face each other. Tries again, waiting twice as long each time."""
        for attempt in range(self.attempts):
            for agent in self.agents[i] or ():
                agent.close()
            self.agents[i] = [_Agent(self.host, self.port, self.timeout) for _ in range(2)]
            try:
                for agent in self.agents[i]:
                    await agent.connect()
                    await agent.ask("login", {"agentType": "NhEnv"})
                await self._face_each_other(i)
                return
            except _Lost as loss:
                reason = loss
                await asyncio.sleep(self.backoff * 2**attempt)
        raise ConnectionError(
            f"No fight on the simulation server at {self.host}:{self.port} after {self.attempts} attempts: {reason}. "
            "Is it running, and does it answer?"
        )

    async def _reset_fight(self, i):
        try:
            await self._face_each_other(i)
        except _Lost as loss:
            self.events.append(f"Fight {i} was lost between fights: {loss}.")
            await self._enter(i)

    async def _face_each_other(self, i):
        """Both agents ask for each other. The server may admit the second only at its next tick, for which it wants a
        step of the first: whoever is in already plays something legal until its peer has joined."""
        pair = self.agents[i]
        asked = [asyncio.ensure_future(pair[k].ask("reset", self._reset_body(pair, k))) for k in range(2)]
        try:
            await asyncio.wait(asked, timeout=self.join_patience)
            while not all(task.done() for task in asked):
                inside = [k for k in range(2) if asked[k].done()]
                for k in inside:
                    self._read(i, k, asked[k].result())
                    step = {"action": first_legal_action(self.masks[i, k])}
                    asked[k] = asyncio.ensure_future(pair[k].ask("step", step))
                await asyncio.wait(asked, timeout=max(self.join_patience, self.timeout / 2))
                if not inside and not any(task.done() for task in asked):
                    await asyncio.wait(asked)  # each request ends by itself at its time-out
            for k in range(2):
                self._read(i, k, asked[k].result())
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    def _reset_body(self, pair, k):
        me, peer = pair[k], pair[1 - k]
        params = {"agent": me.id, "target": peer.id, "episodeId": uuid.uuid4().hex, **self.reset_params}
        return {
            "target": peer.id,
            "training": True,
            "maintainTargetEnvironment": False,
            "deathMatch": True,
            "resetParams": params,
        }

    async def _step_fight(self, i, actions, result, truncated):
        pair = self.agents[i]
        before = [agent.meta for agent in pair]
        steps = [
            asyncio.ensure_future(agent.ask("step", {"action": [int(x) for x in action]}))
            for agent, action in zip(pair, actions, strict=True)
        ]
        # One that is lost is enough: its peer would wait in vain for the tick.
        await asyncio.wait(steps, return_when=asyncio.FIRST_EXCEPTION)
        for step in steps:
            step.cancel()
        bodies = await asyncio.gather(*steps, return_exceptions=True)
        failures = [body for body in bodies if isinstance(body, Exception)]
        for failure in failures:
            if not isinstance(failure, _Lost):
                raise failure
        if failures:
            self.events.append(f"Fight {i} was lost after {self.length[i]} ticks: {failures[0]}.")
            truncated[i] = True
            return
        states = [self._read(i, k, bodies[k]) for k in range(2)]
        if _BROKEN & set(states):
            self.events.append(f"Fight {i} ended after {self.length[i]} ticks with {' and '.join(filter(None, states))}.")
            truncated[i] = True
            return
        # The two may hear of the end in different words or ticks: one of them is enough.
        mine, theirs = _RESULTS.get(states[0], 0), _RESULTS.get(states[1], 0)
        result[i] = mine or (WON + LOST - theirs if theirs in (WON, LOST) else theirs)
        truncated[i] = result[i] == 0 and self.length[i] >= self.max_ticks
        for k, outcome in enumerate((result[i], WON + LOST - result[i] if result[i] in (WON, LOST) else result[i])):
            facts_from_meta(pair[k].meta, before[k], outcome, self.facts[i, k])
            reward_terms(self.facts[i, k], self.terms[i, k])

    def _read(self, i, k, body):
        """Writes an answer into the buffers and returns its terminal state."""
        agent = self.agents[i][k]
        try:
            obs, masks, agent.meta = body["obs"], body["actionMasks"], body["meta"]
            state = body.get("terminalState") or ""
            if len(obs) != contract.NUM_OBS or tuple(map(len, masks)) != contract.HEAD_SIZES:
                raise ValueError(f"{len(obs)} observations and masks of sizes {[len(head) for head in masks]}")
            if state not in contract.TERMINAL_STATES:
                raise ValueError(f"the terminal state {state!r}")
            self.obs[i, k] = obs
            self.masks[i, k] = [bit for head in masks for bit in head]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RemoteError(f"The server's answer to {agent.id} does not follow the contract: {error}.") from None
        return state
