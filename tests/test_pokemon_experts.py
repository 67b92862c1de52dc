"""Whom actors ask: callables with a bound on waiting, all emulators at once, answers kept by state, cost counted; a
language model."""

import collections
import http.server
import json
import sys
import threading

import numpy as np
import pytest

from cleanrl_games import bc_pokemon_impala as script
from cleanrl_games.envs.pokemon import ACTIONS, language_model
from cleanrl_games.envs.pokemon.experts import Called, ExpertError, PerMilestone, ask_all
from cleanrl_games.runtime.errors import BadInput

INFO = {
    "map_id": (0, 1),
    "player": {"x": 1},
    "mode": "walk",
    "milestones_reached": 1,
    "milestones": {"ROUTE_101": False},
}


def screen(shade):
    return np.full((160, 240, 3), shade, np.uint8)


def ask(experts, screens, timeout=5.0):
    return ask_all(experts, [None] * len(experts), screens, [INFO] * len(experts), timeout)


def test_all_are_asked_before_any_is_waited_for():
    """Eight experts that only answer when all eight have been asked"""
    everybody = threading.Barrier(8)

    def choose(observation, info):
        everybody.wait(5.0)
        return 3

    assert ask([Called("x:y", choose, 5.0) for _ in range(8)], [screen(0)] * 8) == [3] * 8


def test_one_bound_on_waiting_holds_for_all():
    release = threading.Event()

    def slow(observation, info):
        release.wait(20.0)
        return 1

    answers = ask(
        [Called("x:slow", slow, 0.2)] * 3 + [Called("x:fast", lambda obs, info: 2, 0.2)], [screen(0)] * 4, 0.2
    )
    release.set()
    assert answers[3] == 2 and all(
        isinstance(answer, ExpertError) and "no answer within 0.2 s" in str(answer) for answer in answers[:3]
    )


@pytest.mark.parametrize("answer", [10, -1, 2.5, "A", None])
def test_what_is_no_action_is_an_error(answer):
    (found,) = ask([Called("x:y", lambda observation, info: answer, 1.0)], [screen(0)])
    assert isinstance(found, ExpertError) and repr(answer) in str(found)


def test_a_failure_is_theirs_and_named():
    (found,) = ask([Called("x:y", lambda observation, info: 1 / 0, 1.0)], [screen(0)])
    assert isinstance(found, ExpertError) and "ZeroDivisionError" in str(found)


class Counting:
    def __init__(self):
        self.cost, self.asked = {"tokens": 0}, 0

    def __call__(self, observation, info):
        self.asked += 1
        self.cost["tokens"] += 7
        return int(observation[0, 0, 0])


class Remembered(Counting):
    cache_by_state = True


def test_answers_are_kept_by_state_and_cost_is_counted():
    expert = Called("x:y", Remembered, 1.0)
    for shade in (1, 2, 1, 1, 2):
        assert ask([expert], [screen(shade)]) == [shade]
    assert expert.function.asked == 2 and expert.cost == {"requests": 2, "cached": 3, "tokens": 14}
    assert ask_all([expert], [None], [screen(1)], [{**INFO, "mode": "battle"}]) == [1] and expert.function.asked == 3, (
        "another state"
    )


def test_nothing_is_kept_unless_the_callable_says_so():
    expert = Called("x:y", Counting, 1.0)
    assert [ask([expert], [screen(1)]) for _ in range(3)] == [[1]] * 3 and expert.cost == {
        "requests": 3,
        "cached": 0,
        "tokens": 21,
    }


def test_one_function_per_milestone(tmp_path, monkeypatch):
    (tmp_path / "my_splits.py").write_text(
        "def route_101(obs, info):\n    return 4\n\n\ndef default(obs, info):\n    return 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    expert = PerMilestone("my_splits", 1.0)
    reached = {"LITTLEROOT_TOWN": True, "ROUTE_101": False}
    assert expert.act(None, screen(0), {"milestones": reached}) == 4
    assert expert.act(None, screen(0), {"milestones": {**reached, "ROUTE_101": True, "STARTER_CHOSEN": False}}) == 0
    assert expert.cost["requests"] == 2
    # what is no milestone is neither asked nor made: a class that is imported there, say
    (tmp_path / "my_splits_2.py").write_text(
        "class Client:\n    def __init__(self):\n        raise KeyError\n\n\ndef route_101(obs, info):\n    return 4\n"
    )
    with pytest.raises(ExpertError, match="neither 'starter_chosen' nor 'default'"):
        PerMilestone("my_splits_2", 1.0).act(None, screen(0), {"milestones": {"STARTER_CHOSEN": False}})
    (tmp_path / "my_splits_3.py").write_text("def route_1(obs, info):\n    return 4\n")
    with pytest.raises(BadInput, match="no function named like a milestone"):
        PerMilestone("my_splits_3", 1.0)


def test_emulators_of_an_actor_share_answers():
    """Eight of them in the same state: one question, also while its answer is awaited. A failure is not kept."""
    answers, experts = collections.OrderedDict(), []
    for _ in range(8):
        experts.append(Called("x:y", Remembered, 5.0, answers))
    assert ask(experts, [screen(4)] * 8) == [4] * 8 and ask(experts[:1], [screen(4)]) == [4]
    assert sum(expert.function.asked for expert in experts) == 1
    assert [sum(expert.cost[name] for expert in experts) for name in ("requests", "cached", "tokens")] == [1, 8, 7]
    found = ask(experts[:2], [screen(99)] * 2)
    assert all("answered 99" in str(error) for error in found) and len(answers) == 1
    other = Called("x:z", Remembered, 5.0, answers)
    assert ask([other], [screen(4)]) == [4] and other.function.asked == 1, "another expert may think otherwise"


def test_an_actor_shares_them(tmp_path, monkeypatch):
    (tmp_path / "my_counting.py").write_text(
        "calls = []\n\n\ndef choose(obs, info):\n    calls.append(1)\n    return 9\n\n\nchoose.cache_by_state = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    args = script.Args(expert="my_counting:choose", num_emulators=3, max_steps=4, hidden_dim=16)
    actor = script.Actor(args, 0)
    # nothing happens when R is pressed: all that differs from state to state is the world
    result = actor.play(script.Job("expert", [3, 3, 3], seed=[1], beta=1.0))
    for env in actor.envs:
        env.close()
    assert result.steps == 12 and len(sys.modules["my_counting"].calls) == 1
    assert result.expert_cost == {"requests": 1, "cached": 11}


class Unmade:
    def __init__(self):
        raise RuntimeError("set MY_KEY first")


def test_an_expert_that_cannot_be_made_is_a_sentence():
    with pytest.raises(BadInput, match="The expert x:Unmade cannot be made: RuntimeError: set MY_KEY first"):
        Called("x:Unmade", Unmade, 1.0)


class StandIn(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible server that always answers with the same words"""

    answer, seen = "I press UP.", []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        StandIn.seen.append((self.path, self.headers.get("Authorization"), body))
        reply = {"choices": [{"message": {"content": StandIn.answer}}], "usage": {"total_tokens": 11}}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def stand_in(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("LLM_URL", f"http://127.0.0.1:{server.server_port}/v1/")
    monkeypatch.setenv("LLM_MODEL", "small")
    monkeypatch.setenv("LLM_KEY", "secret")
    StandIn.seen.clear()
    StandIn.answer = "I press UP."
    yield server
    server.shutdown()
    server.server_close()


def test_a_language_model_answers(stand_in):
    expert = Called("language_model:Agent", language_model.Agent, 5.0)
    assert ask([expert] * 2, [screen(1), screen(2)]) == [ACTIONS.index("UP")] * 2
    path, key, body = StandIn.seen[0]
    assert path == "/v1/chat/completions" and key == "Bearer secret" and body["model"] == "small"
    parts = body["messages"][1]["content"]
    assert json.loads(parts[0]["text"])["mode"] == "walk" and parts[1]["image_url"]["url"].startswith(
        "data:image/png;base64,"
    )
    assert ask([expert], [screen(1)]) == [ACTIONS.index("UP")] and len(StandIn.seen) == 2, "a screen is paid for once"
    assert expert.cost == {"requests": 2, "cached": 1, "tokens": 22}


def test_a_language_model_without_a_button(stand_in):
    StandIn.answer = "I would rather not."
    (found,) = ask([Called("language_model:Agent", language_model.Agent, 5.0)], [screen(1)])
    assert isinstance(found, ExpertError) and "answered -1" in str(found)


def test_a_language_model_needs_an_address(monkeypatch):
    monkeypatch.delenv("LLM_URL", raising=False)
    with pytest.raises(RuntimeError, match="Set LLM_URL"):
        language_model.Agent()
