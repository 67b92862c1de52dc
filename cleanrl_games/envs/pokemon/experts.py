"""Who may be asked what to do: the scripted expert, or any callable of one's own (`module:callable`), with a time-out.

    expert = load_expert("scripted")                            # plays the quest, reads RAM
    expert = load_expert("my_agents.llm:choose", timeout=60)    # choose(observation, info) → 0 … 9
    expert.act(env, observation, info)

A class (`module:Class`) is instantiated once per emulator and may keep what it likes between calls; a method `reset()`, if there is one, is
called at the start of each episode.
"""

import concurrent.futures
import importlib
import sys
import threading
from pathlib import Path

from cleanrl_games.runtime.errors import BadInput

from .env import ACTIONS
from .expert import QuestExpert


class ExpertError(RuntimeError):
    """The expert gave no usable answer. The message says which one and why; the episode is lost, not the program."""


class Scripted:
    name = "scripted"

    def __init__(self):
        self.expert = QuestExpert()

    def reset(self):
        pass

    def act(self, env, observation, info):
        return self.expert.act(env)


class Called:
    """Somebody's function. It is asked in a thread: one that never answers is left behind, and the program goes on."""

    def __init__(self, name, function, timeout):
        self.name, self.timeout = name, timeout
        self.function = function() if isinstance(function, type) else function

    def reset(self):
        if hasattr(self.function, "reset"):
            self.function.reset()

    def act(self, env, observation, info):
        answer = concurrent.futures.Future()

        def ask():
            try:
                answer.set_result(self.function(observation, info))
            except BaseException as error:  # whatever it was, it happened in their code and is reported as theirs
                answer.set_exception(error)

        threading.Thread(target=ask, daemon=True).start()
        try:
            action = answer.result(self.timeout)
        except concurrent.futures.TimeoutError:
            if not answer.done():
                raise ExpertError(f"The expert {self.name} gave no answer within {self.timeout:g} s (--expert-timeout).") from None
            raise ExpertError(f"The expert {self.name} failed: {answer.exception()!r}") from answer.exception()
        except Exception as error:
            raise ExpertError(f"The expert {self.name} failed: {type(error).__name__}: {error}") from error
        try:
            is_action = int(action) == action and 0 <= action < len(ACTIONS)
        except (TypeError, ValueError):
            is_action = False
        if not is_action:
            raise ExpertError(f"The expert {self.name} answered {action!r}; an action is a whole number from 0 to {len(ACTIONS) - 1}.")
        return int(action)


def find_callable(spec):
    """'module:callable' → the object, also from the folder one is in"""
    module, _, name = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise BadInput(f"The expert {spec} cannot be imported: {error}. Give module:callable, importable from here.") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadInput(f"The module {module} has no {name!r}: give module:callable.")
        found = getattr(found, part)
    if not callable(found):
        raise BadInput(f"{spec} is a {type(found).__name__}, which cannot be called: give module:callable.")
    return found


def load_expert(spec, timeout=60.0):
    if spec == "scripted":
        return Scripted()
    if ":" not in spec:
        raise BadInput(f"There is no expert {spec!r}: give scripted or module:callable.")
    return Called(spec, find_callable(spec), timeout)


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
