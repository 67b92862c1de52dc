"""Who may be asked what to do: the scripted expert, any callable of one's own, one callable per milestone.

    expert = load_expert("scripted")                            # plays the quest, reads RAM
    expert = load_expert("my_agents:choose", timeout=60)        # choose(observation, info) → 0 … 9
    expert = load_expert("my_agents:Agent")                     # a class: one object per emulator; reset() at the start
      of an episode
    expert = load_expert("milestones:my_agents")                # my_agents.route_101(observation, info) until ROUTE_101
      is reached, and so on
    answers = ask_all(experts, envs, observations, infos)       # all at once; an answer is an action or an ExpertError

Callables are asked in threads, those of all emulators at the same time: a language model that takes two seconds takes
two seconds for all of them. One that does not answer in time is left behind. A callable with `cache_by_state = True` is
asked once per screen and place: the answer is kept, for all that share `answers` (those of an actor do). A callable may
count what it costs in a dict `cost` ({"tokens": 1200}); the sums are in the metrics."""

import collections
import concurrent.futures
import hashlib
import importlib
import json
import sys
import threading
import time
from pathlib import Path

from cleanrl_games.runtime.errors import BadInput

from .emerald import EMERALD_MILESTONES
from .env import ACTIONS
from .expert import QuestExpert
from .ram import QUEST_MILESTONES

MAX_CACHED = 100_000


class ExpertError(RuntimeError):
    """The expert gave no usable answer. The message says which one and why; the episode is lost, not the program."""


class Scripted:
    name = "scripted"

    def __init__(self):
        self.expert = QuestExpert()
        self.cost = {}

    def reset(self):
        pass

    def ask(self, env, observation, info):
        """→ a function that waits until a moment (time.monotonic) and gives the action"""
        action = self.expert.act(env)
        return lambda deadline: action

    def act(self, env, observation, info):
        return self.expert.act(env)


def check_action(name, action):
    try:
        is_action = int(action) == action and 0 <= action < len(ACTIONS)
    except (TypeError, ValueError):
        is_action = False
    if not is_action:
        raise ExpertError(
            f"The expert {name} answered {action!r}; an action is a whole number from 0 to {len(ACTIONS) - 1}."
        )
    return int(action)


def state_key(observation, info):
    """→ the screen, the place and what has been reached, as text; steps and the like do not count"""
    place = json.dumps([info.get(name) for name in ("map_id", "player", "mode", "milestones_reached")], default=str)
    return hashlib.sha1(observation.tobytes() + place.encode()).hexdigest()


class Called:
    """Somebody's function. It is asked in a thread: one that never answers is left behind, and the program goes on."""

    def __init__(self, name, function, timeout, answers=None):
        self.name, self.timeout = name, timeout
        try:
            self.function = function() if isinstance(function, type) else function
        except Exception as error:  # whatever it was, it is theirs to mend
            raise BadInput(f"The expert {name} cannot be made: {type(error).__name__}: {error}") from error
        shared = collections.OrderedDict() if answers is None else answers  # key → Future, also of one that is awaited
        self.answers = shared if getattr(self.function, "cache_by_state", False) else None
        self.requests, self.cached = 0, 0

    @property
    def cost(self):
        """→ sums so far: requests, answers out of the cache, and what the callable itself counts"""
        counted = getattr(self.function, "cost", None)
        return {"requests": self.requests, "cached": self.cached, **(counted if isinstance(counted, dict) else {})}

    def reset(self):
        if hasattr(self.function, "reset"):
            self.function.reset()

    def ask(self, env, observation, info):
        key = (self.name, state_key(observation, info)) if self.answers is not None else None
        if key is not None and key in self.answers:
            self.cached += 1
            self.answers.move_to_end(key)
            answer = self.answers[key]
            return lambda deadline: self._wait(answer, deadline, key)
        self.requests += 1
        answer = concurrent.futures.Future()
        if key is not None:
            self.answers[key] = answer
            if len(self.answers) > MAX_CACHED:
                self.answers.popitem(last=False)

        def run():
            try:
                answer.set_result(self.function(observation, info))
            except BaseException as error:  # whatever it was, it happened in their code and is reported as theirs
                answer.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return lambda deadline: self._wait(answer, deadline, key)

    def _wait(self, answer, deadline, key):
        try:
            return self._result(answer, deadline)
        except ExpertError:
            if key is not None and self.answers.get(key) is answer:
                del self.answers[key]  # the next one who comes to this state asks again
            raise

    def _result(self, answer, deadline):
        try:
            action = answer.result(max(deadline - time.monotonic(), 0.0))
        except concurrent.futures.TimeoutError:
            if not answer.done():
                raise ExpertError(
                    f"The expert {self.name} gave no answer within {self.timeout:g} s (--expert-timeout)."
                ) from None
            raise ExpertError(f"The expert {self.name} failed: {answer.exception()!r}") from answer.exception()
        except Exception as error:
            raise ExpertError(f"The expert {self.name} failed: {type(error).__name__}: {error}") from error
        return check_action(self.name, action)

    def act(self, env, observation, info):
        return self.ask(env, observation, info)(time.monotonic() + self.timeout)


class PerMilestone:
    """A module with a function per milestone, named like it in small letters; `default` for those without one. What
    else is in the module (helpers, imports) is left alone."""

    def __init__(self, name, timeout, answers=None):
        self.name, self.timeout, module = name, timeout, import_module(name)
        names = [*(milestone.lower() for milestone in (*EMERALD_MILESTONES, *QUEST_MILESTONES)), "default"]
        functions = {key: value for key in names if callable(value := getattr(module, key, None))}
        if not functions:
            raise BadInput(f"The module {name} has no function named like a milestone, and no 'default'.")
        self.experts = {key: Called(f"{name}:{key}", function, timeout, answers) for key, function in functions.items()}

    @property
    def cost(self):
        totals = collections.Counter()
        for expert in self.experts.values():
            totals.update(expert.cost)
        return dict(totals)

    def reset(self):
        for expert in self.experts.values():
            expert.reset()

    def _next(self, info):
        goal = next((name.lower() for name, reached in info["milestones"].items() if not reached), "default")
        expert = self.experts.get(goal, self.experts.get("default"))
        if expert is None:
            raise ExpertError(
                f"The module {self.name} has neither {goal!r} nor 'default': write the one that is missing."
            )
        return expert

    def ask(self, env, observation, info):
        return self._next(info).ask(env, observation, info)

    def act(self, env, observation, info):
        return self._next(info).act(env, observation, info)


def ask_all(experts, envs, observations, infos, timeout=60.0):
    """→ for each an action, or the ExpertError that says why there is none. All are asked before any is waited for, and
    one bound on waiting holds for all of them together."""
    deadline, waiting = time.monotonic() + timeout, []
    for expert, env, observation, info in zip(experts, envs, observations, infos):
        try:
            waiting.append(expert.ask(env, observation, info))
        except ExpertError as error:
            waiting.append(error)
    answers = []
    for wait in waiting:
        try:
            answers.append(wait if isinstance(wait, ExpertError) else wait(deadline))
        except ExpertError as error:
            answers.append(error)
    return answers


def import_module(name, spec=None):
    """A module, also from the folder one is in"""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadInput(
            f"The expert {spec or name} cannot be imported: {error}. Give module:callable, importable from here."
        ) from None


def find_callable(spec):
    """'module:callable' → the object"""
    module, _, name = spec.partition(":")
    found = import_module(module, spec)
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadInput(f"The module {module} has no {name!r}: give module:callable.")
        found = getattr(found, part)
    if not callable(found):
        raise BadInput(f"{spec} is a {type(found).__name__}, which cannot be called: give module:callable.")
    return found


def load_expert(spec, timeout=60.0, answers=None):
    """answers: an OrderedDict that several experts of the same spec may share"""
    if spec == "scripted":
        return Scripted()
    if ":" not in spec:
        raise BadInput(f"There is no expert {spec!r}: give scripted, module:callable or milestones:module.")
    kind, _, name = spec.partition(":")
    if kind == "milestones":
        return PerMilestone(name, timeout, answers)
    return Called(spec, find_callable(spec), timeout, answers)


class Noise:
    """Random buttons in between, so that data shows how to come back from where an expert never goes.

    share    of the actions that are random
    length   of a run of random actions, on average: single ones hardly leave the path
    """

    def __init__(self, share, length, rng):
        if not 0 <= share < 1 or length < 1:
            raise ValueError(f"Noise is a share from 0 to below 1 and a length from 1 on, found {share} and {length}.")
        self.rng, self.end, self.is_on = rng, 1.0 / length, False
        # the chance to begin that makes `share` the long-run share of random actions
        self.begin = min(share / (1 - share) * self.end, 1.0)

    def disturb(self, action):
        """→ the action to take instead of this one"""
        self.is_on = self.rng.random() >= self.end if self.is_on else self.rng.random() < self.begin
        return int(self.rng.integers(len(ACTIONS))) if self.is_on else action
