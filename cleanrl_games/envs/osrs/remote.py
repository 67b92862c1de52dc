"""`RemoteNHVecEnv`: the contract of `NHVecEnv` on a running simulation server, for training and evaluation on the real
rules.

JSON lines over TCP, one connection per agent:

    → {"action": "step", "body": {"action": [12 numbers]}, "meta": {"id": ID}}
    ← {"body": {"obs", "actionMasks", "meta", "terminalState"?}}   or   {}   or   {"error": true, "message"}

The server has one world, and it stands still until every agent that is logged in has spoken. From this follows:

- an agent sends its first `reset` right after its login, without waiting for its peer;
- while a fight resets, the others go on. A fighter that has nothing to decide yet is *waiting* (`info["waiting"]`);
- whoever is dropped is logged out at once, over a connection of its own. So is everybody at the end of the process.

A fight whose connection breaks, falls silent or gets out of step is truncated, and fresh agents take its place.
"""

import asyncio
import contextlib
import json
import logging
import multiprocessing.util
import secrets
import socket
import uuid

import gymnasium as gym
import numpy as np

from cleanrl_games.runtime.errors import RunFailed

from . import contract
from .observations import FACTS, reward_terms
from .rules import LOST, TIED, WON
from .vec_env import read_weights

MAX_LINE = 8192  # what the server reads; its own lines are about 4,000 bytes
BASELINE = "baseline"  # the server's own bot, as a target
_RESULTS = {"WON": WON, "LOST": LOST, "TIED": TIED}
_BROKEN = {"TARGET_LOST", "DESYNC"}
# Answers of one tick of the world arrive together. So long is waited for the last of them …
_GRACE = 0.005
# … and so long for an answer that is still missing when the world already waits for another agent.
_PATIENCE = 0.5

# The simulator's rules about choices, in the words of a reset. The server's own defaults are others: an account of the
# build PURE, whose prayer head is empty on four ticks of five.
SERVER_PARAMS = {
    "onlySwitchPrayerWhenAboutToAttack": False,
    "onlySwitchGearWhenAttackSoon": False,
    "allowMovingIfCanAttack": False,
    "allowSmite": False,
    "allowRedemption": False,
}
# Loadout → account build of the server. The gear of LMS_MED is the same in both; the others differ in some pieces.
SERVER_BUILDS = {"lms_med": "LMS_MED", "max_main": "MAXED", "pure": "PURE", "zerker": "ZERKER"}


class RemoteError(RunFailed):
    """The server is gone, refused a request, or answered with something that is not the protocol."""


class _Lost(Exception):
    """A connection that broke or fell silent: the fight is over, the run is not."""


def facts_from_meta(meta, previous_meta, result, facts):
    """The server's meta data of a tick, in the words of the simulator's facts, so that both are rewarded by one
    function."""
    facts.result = result
    facts.damage_dealt, facts.damage_received = (
        meta["damageGeneratedOnTargetScale"],
        meta["damageGeneratedOnPlayerScale"],
    )
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


def parse_address(address):
    """ "HOST:PORT" → (host, port)"""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"A server's address should look like 127.0.0.1:7070, found {address!r}.")
    return host, int(port)


def check_server(address):
    """Refuses an address where nobody listens, at once."""
    try:
        socket.create_connection(parse_address(address), timeout=10.0).close()
    except OSError as error:
        raise ValueError(f"nobody answers there ({error.strerror or error}): start the simulation server.") from None


def server_params(loadouts):
    """Names of loadouts → what a reset tells the server. Of several builds it takes one for each pair of agents."""
    for name in loadouts:
        if name not in SERVER_BUILDS:
            raise ValueError(
                f"The server has no account build like the loadout {name!r}. It has: {', '.join(SERVER_BUILDS)}."
            )
    builds = [SERVER_BUILDS[name] for name in loadouts]
    if len(builds) == 1:
        return SERVER_PARAMS | {"accountBuild": builds[0]}
    return SERVER_PARAMS | {"randomizeBuild": True, "randomBuildOptions": builds}


class _Agent:
    """One fighter: a connection, and an id that no other agent has had.

    The server capitalises names and compares them with ids as they were sent: a plain number survives that.
    """

    def __init__(self, host, port, timeout):
        self.host, self.port, self.timeout = host, port, timeout
        self.id = str(10**8 + secrets.randbelow(9 * 10**8))
        self.reader = self.writer = None
        self.meta = self.meta_before = None
        self.request = None  # the task that waits for the server's answer; None = the server waits for this agent
        self.request_name = ""
        self.waited = 0.0  # seconds that this environment has spent waiting for it
        self.doing = "connect"
        self.state = ""  # the terminal state that the last answer told

    async def connect(self):
        try:
            opening = asyncio.open_connection(self.host, self.port, limit=2 * MAX_LINE)
            self.reader, self.writer = await asyncio.wait_for(opening, self.timeout)
            self.host = self.writer.get_extra_info("peername")[0]  # at the process's end no name is looked up any more
        except (OSError, TimeoutError) as error:
            raise _Lost(f"cannot connect ({error or 'no answer'})") from None

    async def enter(self, reset_body, delay):
        """Connects, logs in and asks for its fight. Nothing may come between login and reset: the world waits."""
        await asyncio.sleep(delay)
        await self.connect()
        await self.ask("login", {"agentType": "NhEnv"})
        return await self.ask("reset", reset_body)

    async def ask(self, action, body):
        line = (
            json.dumps({"action": action, "body": body, "meta": {"id": self.id}}, separators=(",", ":")).encode()
            + b"\n"
        )
        if len(line) > MAX_LINE:
            raise RemoteError(
                f"The request {action!r} of {self.id} has {len(line)} bytes; the server reads {MAX_LINE} a line."
            )
        self.doing = action
        try:
            self.writer.write(line)
            await self.writer.drain()
            answer = await self.reader.readline()
        except (ConnectionError, OSError) as error:
            raise _Lost(f"connection broke during {action!r} ({error})") from None
        except ValueError:  # asyncio's word for a line that does not end
            raise RemoteError(
                f"The server's answer to {action!r} of {self.id} is longer than {2 * MAX_LINE} bytes."
            ) from None
        if not answer.endswith(b"\n"):
            raise _Lost(f"connection closed during {action!r}")
        try:
            answer = json.loads(answer)
        except ValueError:
            raise RemoteError(f"The server's answer to {action!r} of {self.id} is not JSON: {answer[:80]!r}") from None
        if not isinstance(answer, dict):
            raise RemoteError(f"The server's answer to {action!r} of {self.id} is not an object: {str(answer)[:80]}")
        if answer.get("error"):
            raise RemoteError(
                f"The server refused {action!r} of {self.id}: {answer.get('message', 'without a reason')}"
            )
        return answer.get("body")

    async def log_out(self):
        """Over a fresh connection: this one may be broken, or busy with a request that nobody answers any more."""
        if self.request is not None:
            self.request.cancel()
            await asyncio.wait([self.request])
        if self.writer is None:
            return
        heard_of_login = self.doing != "login"
        if not heard_of_login:
            # The server refuses a logout that overtakes its login, and the world would wait for the agent for good.
            with contextlib.suppress(ConnectionError, OSError, TimeoutError, ValueError):
                heard_of_login = bool(await asyncio.wait_for(self.reader.readline(), self.timeout))
        self.writer.close()
        for pause in (0.0, 1.0, 2.0):
            await asyncio.sleep(pause)
            if await self._say_farewell() and heard_of_login:
                return

    async def _say_farewell(self):
        """→ whether that is all: the server has answered, if only that it knows no such agent, or it is gone."""
        farewell = _Agent(self.host, self.port, min(self.timeout, 2.0))
        farewell.id = self.id
        try:
            await farewell.connect()
        except _Lost:
            return True
        try:
            await asyncio.wait_for(farewell.ask("logout", {}), farewell.timeout)
        except (_Lost, TimeoutError):
            return False
        except RemoteError:
            return True
        finally:
            farewell.writer.close()
        return True


class RemoteNHVecEnv:
    """N fights on a simulation server: the arrays, rewards and autoreset of `NHVecEnv`, a connection per agent.

    `target="peer"`: both fighters are agents of ours. `target="baseline"`: fighter 1 is the server's own bot, whose
    actions are not asked for. `waiting` (N, 2) says which fighters decide nothing in the next step: the server's bot,
    and whoever is still on the way into a fight. Their actions are ignored and their rewards are 0.
    `loadouts` are names of SERVER_BUILDS; `reset_params` are handed to the server on top (`randomizeGear`, …).
    The server's dice cannot be seeded.
    """

    def __init__(
        self,
        num_fights,
        host="127.0.0.1",
        port=7070,
        target="peer",
        loadouts=("lms_med",),
        reward_weights=None,  # as in NHVecEnv
        max_ticks=1000,
        reset_params=None,
        timeout=10.0,
        attempts=5,
        backoff=0.5,
    ):
        if target not in ("peer", BASELINE):
            raise ValueError(f"target should be 'peer' or {BASELINE!r}, found {target!r}.")
        self.num_fights, self.host, self.port, self.target, self.max_ticks = num_fights, host, port, target, max_ticks
        self.reset_params, self.timeout = server_params(loadouts) | (reset_params or {}), timeout
        self.attempts, self.backoff = attempts, backoff
        self.reward_weights = read_weights(reward_weights)
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (contract.NUM_OBS,), np.float32)
        self.single_action_space = gym.spaces.MultiDiscrete(contract.HEAD_SIZES)

        self.obs = np.zeros((num_fights, 2, contract.NUM_OBS), np.float32)
        self.masks = np.zeros((num_fights, 2, contract.NUM_LOGITS), np.bool_)
        self.waiting = np.ones((num_fights, 2), np.bool_)
        self.final_obs = np.zeros_like(self.obs)
        self.terms = np.zeros((num_fights, 2, contract.NUM_TERMS), np.float32)
        self.facts = np.zeros((num_fights, 2), FACTS).view(np.recarray)
        self.length = np.zeros(num_fights, np.int32)
        self.failures = np.zeros(num_fights, np.int32)  # attempts to enter that failed, since the last one that did not
        self.events = []  # sentences about fights that were lost, for whoever wants to show them
        self.fights = [[] for _ in range(num_fights)]  # per fight its agents: two, or one against the server's bot
        # What the next step has still to tell: fights that broke, and who got an answer to a `step`.
        self.lost = set()
        self.answered = np.zeros((num_fights, 2), np.bool_)
        self.farewells = set()
        self.loop = asyncio.new_event_loop()
        # Also in a process that is told to end: agents that stay logged in would stop the world for everybody.
        self.at_exit = multiprocessing.util.Finalize(None, self.close, exitpriority=10)
        try:
            self.reset()
        except BaseException:
            self.close()
            raise

    # ----------------------------------------------------------------------------------------------- as NHVecEnv has it

    def reset(self, seed=None):
        """Starts all fights anew, under fresh ids. `seed` is there for the interface: a server's dice cannot be
        seeded."""
        self.failures[:] = 0
        self.lost.clear()
        self.answered[:] = False
        self._run(self._reset_all())
        return self.obs, self.masks

    def step(self, actions):
        """As `NHVecEnv.step`. Returns when everybody who acted has an answer, and somebody can act again."""
        actions = np.asarray(actions)
        self.terms[:] = 0
        acted = ~self.waiting
        self.length += acted.any(1)
        result, truncated, length = self._run(self._step_all(actions, acted))
        info = {
            "terms": self.terms, "result": result, "length": length, "final_obs": self.final_obs,
            "waiting": self.waiting,
        }  # fmt: skip
        return self.obs, self.masks, self.terms @ self.reward_weights, result != 0, truncated, info

    def state_dict(self):
        """Nothing: the server's fights cannot be stopped and taken up again. A run that is resumed begins new ones."""
        return {}

    def load_state_dict(self, state):
        pass

    def close(self):
        """Logs everybody out, as far as the server still listens, and closes every connection."""
        if self.loop.is_closed():
            return
        self.at_exit.cancel()
        self._run(self._leave())
        self.loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _run(self, job):
        task = self.loop.create_task(job)
        try:
            return self.loop.run_until_complete(task)
        except BaseException:  # Ctrl-C in the middle: what is half done must not go on while everybody leaves
            task.cancel()
            raise

    # ------------------------------------------------------------------------------------------------- coming and going

    async def _leave(self):
        for i in range(self.num_fights):
            self._drop(i)
        while self.farewells:
            await asyncio.wait(self.farewells)
        await asyncio.sleep(0)  # lets the transports close

    async def _reset_all(self):
        for i in range(self.num_fights):
            self._drop(i)
            self._enter(i)
        await self._answers()
        self._look_who_waits()

    def _drop(self, i):
        """Logs the agents of fight i out, at once: the world would wait for them."""
        for agent in self.fights[i]:
            farewell = self.loop.create_task(agent.log_out())
            self.farewells.add(farewell)
            farewell.add_done_callback(self.farewells.discard)
        self.fights[i] = []

    def _enter(self, i):
        """Fresh agents for fight i, each on its own way in; each failure before has doubled the pause."""
        count = 1 if self.target == BASELINE else 2
        agents = [_Agent(self.host, self.port, self.timeout) for _ in range(count)]
        self.fights[i] = agents
        self.length[i] = 0
        delay = self.backoff * 2 ** (self.failures[i] - 1) if self.failures[i] else 0.0
        for k, agent in enumerate(agents):
            self._ask(agent, "enter", agent.enter(self._reset_body(agents, k), delay))
            agent.waited = -delay  # the pause is not the server's

    def _reset_fight(self, i):
        """The same agents once more."""
        self.length[i] = 0
        for k, agent in enumerate(self.fights[i]):
            self._ask(agent, "reset", agent.ask("reset", self._reset_body(self.fights[i], k)))

    def _ask(self, agent, name, job):
        agent.request, agent.request_name, agent.waited = self.loop.create_task(job), name, 0.0

    def _reset_body(self, agents, k):
        target = BASELINE if self.target == BASELINE else agents[1 - k].id
        params = {"agent": agents[k].id, "target": target, "episodeId": uuid.uuid4().hex, **self.reset_params}
        return {
            "target": target,
            "training": True,
            "maintainTargetEnvironment": True,  # tells each of its target's view, which a critic is trained with
            "deathMatch": True,
            "resetParams": params,
        }

    def _look_who_waits(self):
        self.waiting[:] = True
        for i, agents in enumerate(self.fights):
            news = i in self.lost or self.answered[i].any()  # the next step tells them, before anybody acts
            for k, agent in enumerate(agents):
                self.waiting[i, k] = news or agent.request is not None

    # ----------------------------------------------------------------------------------------------------------- a tick

    async def _step_all(self, actions, acted):
        for i, k in np.argwhere(acted):
            agent = self.fights[i][k]
            agent.meta_before = agent.meta
            self._ask(agent, "step", agent.ask("step", {"action": [int(x) for x in actions[i, k]]}))
        await self._answers()

        result, truncated = np.zeros(self.num_fights, np.int32), np.zeros(self.num_fights, bool)
        for i in range(self.num_fights):
            if i in self.lost:
                truncated[i] = True
            elif self.answered[i].any():
                self._judge(i, result, truncated)
        length, ended, lost = self.length.copy(), (result != 0) | truncated, self.lost.copy()
        self.lost.clear()
        self.answered[:] = False
        for i in np.flatnonzero(ended):
            if i in lost:
                self.length[i] = 0  # its fresh agents are on their way
            elif truncated[i] or any(agent.request is not None for agent in self.fights[i]):
                self.final_obs[i] = self.obs[i]
                self._drop(i)
                self._enter(i)
            else:
                self.final_obs[i] = self.obs[i]
                self._reset_fight(i)
        if ended.any():
            await self._answers()
        self._look_who_waits()
        return result, truncated, length

    async def _answers(self):
        """Reads answers until everybody who acted has one and somebody can act."""
        while True:
            agents = [agent for fight in self.fights for agent in fight]
            requests = {agent.request for agent in agents if agent.request is not None}
            somebody_can_act = any(agent.request is None for agent in agents)
            steps_missing = any(agent.request is not None and agent.request_name == "step" for agent in agents)
            if not requests:
                return
            busy = [agent for agent in agents if agent.request is not None]
            limit = max(self.timeout - max(agent.waited for agent in busy), 0.0)
            if somebody_can_act:
                # Nothing that is still missing comes before the next tick of the world, which waits for whoever can
                # act.
                limit = min(limit, _PATIENCE if steps_missing else _GRACE)
            start = self.loop.time()
            done, _ = await asyncio.wait(requests, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            # A request's time is what was spent here: while the policy thinks or learns, nobody reads answers.
            for agent in busy:
                agent.waited += self.loop.time() - start
            silent = any(agent.waited >= self.timeout and not agent.request.done() for agent in busy)
            if not done and not silent:
                return
            for i in range(self.num_fights):
                self._take_answers(i)

    def _take_answers(self, i):
        for k, agent in enumerate(self.fights[i]):
            if agent.request is None:
                continue
            if not agent.request.done():
                if agent.waited >= self.timeout:
                    self._lose(i, f"no answer to {agent.doing!r} within {self.timeout:g} s")
                    return
                continue
            request, agent.request = agent.request, None
            error = request.exception()
            if isinstance(error, _Lost):
                self._lose(i, str(error))
                return
            if error is not None:
                raise error
            agent.state = self._read(i, k, request.result())
            self.answered[i, k] = agent.request_name == "step"
            self.failures[i] = 0
            if agent.state in _BROKEN:
                self._lose(i, f"the server said {agent.state}")
                return

    def _lose(self, i, reason):
        """Fresh agents for a fight that broke. In the middle of a fight that is a truncation; on the way into one it is
        a failure, and so many in a row end the environment."""
        if self.length[i] > 0 and i not in self.lost:
            self.events.append(f"Fight {i} was lost after {self.length[i]} ticks: {reason}.")
            logging.getLogger(__name__).warning(self.events[-1])
            self.final_obs[i] = self.obs[i]
            self.answered[i] = False
            self.lost.add(i)
        else:
            self.failures[i] += 1
            if self.failures[i] >= self.attempts:
                raise RemoteError(
                    f"No fight on the simulation server at {self.host}:{self.port} after {self.attempts} attempts: "
                    f"{reason}. "
                    "Is it running, and does it answer?"
                )
        length = self.length[i]
        self._drop(i)
        self._enter(i)
        self.length[i] = length if i in self.lost else 0

    def _judge(self, i, result, truncated):
        """Who won, and what the tick was worth to whom. One of the two that hears of the end is enough."""
        agents = self.fights[i]
        told = [_RESULTS.get(agent.state, 0) for agent in agents]
        mine = told[0]
        theirs = told[1] if len(told) == 2 else 0
        result[i] = mine or (WON + LOST - theirs if theirs in (WON, LOST) else theirs)
        truncated[i] = result[i] == 0 and self.length[i] >= self.max_ticks
        for k, agent in enumerate(agents):
            if not self.answered[i, k]:
                continue
            outcome = result[i] if k == 0 or result[i] not in (WON, LOST) else WON + LOST - result[i]
            facts_from_meta(agent.meta, agent.meta_before, outcome, self.facts[i, k])
            reward_terms(self.facts[i, k], self.terms[i, k])

    def _read(self, i, k, body):
        """Writes an answer into the buffers and returns its terminal state. The view of a fighter that does not answer
        for itself (the server's bot, a peer that is still joining) is in the answer to the other one."""
        agents = self.fights[i]
        agent = agents[k]
        alone = len(agents) == 1 or agents[1 - k].request is not None
        try:
            obs, masks, agent.meta = body["obs"], body["actionMasks"], body["meta"]
            state = body.get("terminalState") or ""
            if len(obs) != contract.NUM_OBS or tuple(map(len, masks)) != contract.HEAD_SIZES:
                raise ValueError(f"{len(obs)} observations and masks of sizes {[len(head) for head in masks]}")
            if state not in contract.TERMINAL_STATES:
                raise ValueError(f"the terminal state {state!r}")
            self.obs[i, k] = obs
            self.masks[i, k] = [bit for head in masks for bit in head]
            if alone and "targetObs" in agent.meta:
                self.obs[i, 1 - k] = agent.meta["targetObs"]
                self.masks[i, 1 - k] = [bit for head in agent.meta["targetActionMasks"] for bit in head]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RemoteError(f"The server's answer to {agent.id} does not follow the contract: {error}.") from None
        return state
