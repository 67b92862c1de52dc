"""RemoteNHVecEnv against a server with the public one's manners (tests/osrs_server.py), well and badly behaved."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from osrs_server import Server

from cleanrl_games.envs.osrs import remote
from cleanrl_games.envs.osrs.baselines import Baseline
from cleanrl_games.envs.osrs.contract import NUM_LOGITS, NUM_OBS, NUM_TERMS, REWARD_TERMS
from cleanrl_games.envs.osrs.match import play_on_server
from cleanrl_games.envs.osrs.observations import FACTS, reward_terms
from cleanrl_games.envs.osrs.remote import (
    MAX_LINE,
    RemoteError,
    RemoteNHVecEnv,
    _Agent,
    facts_from_meta,
    parse_address,
    server_params,
)
from cleanrl_games.envs.osrs.vec_env import NHVecEnv

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "tests" / "data" / "osrs_traces_rows.npz"
WEIGHTS = np.linspace(-1, 1, NUM_TERMS)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Loading compiled code takes seconds on a busy machine, and the server's first fight would count them."""
    env, bot, actions = NHVecEnv(1), Baseline("nh", 2), np.zeros((2, 12), np.int64)
    bot.act(env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS), np.arange(2), actions)
    env.step(actions.reshape(1, 2, 12))


def connect(server, num_fights=1, **settings):
    settings = {"timeout": 20.0, "attempts": 3, "backoff": 0.01, "reward_weights": WEIGHTS, **settings}
    return RemoteNHVecEnv(num_fights, port=server.port, **settings)


@contextlib.contextmanager
def within(seconds):
    """Whatever hangs is a failure."""

    def fail(*_):
        raise AssertionError(f"It hangs: {seconds} s.")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)  # again after five seconds: leaving may hang, too
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def random_player(env):
    """Acts for whoever is not waiting; the others' actions are nonsense, which must not matter."""
    player = Baseline("random", 2 * env.num_fights, seed=3)

    def act():
        actions = np.full((env.num_fights, 2, 12), -99)
        rows = np.flatnonzero(~env.waiting.reshape(-1))
        player.act(env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS), rows, actions.reshape(-1, 12))
        return actions

    return act


def test_a_remote_fight_is_the_local_fight():
    """The server's fights are NHVecEnv's: observations, masks, ends and rewards come through unchanged. Fighter 1 is
    told of the fight at its tick 1, so its first action is nothing; the end is told one tick after the death."""
    local = NHVecEnv(1, seed=1, reward_weights=WEIGHTS)
    with Server() as server, connect(server) as env:
        act, fights = random_player(env), 0
        for _ in range(600):
            assert env.waiting.tolist() in ([[False, True]], [[False, False]])
            np.testing.assert_array_equal(env.obs, local.obs)
            np.testing.assert_array_equal(env.masks, local.masks)
            actions = act()
            sent = np.where(env.waiting[:, :, None], 0, actions)
            mine = local.step(sent.copy())
            theirs = env.step(actions)
            assert not theirs[3].any() and not theirs[4].any()
            played = ~(actions == -99).all(2)
            if mine[3].any():
                np.testing.assert_array_equal(theirs[0], mine[5]["final_obs"])
                theirs = env.step(np.where(env.waiting[:, :, None], 0, act()))  # the tick after the death
                assert theirs[3].all() and (theirs[5]["result"] == mine[5]["result"]).all()
                np.testing.assert_array_equal(theirs[5]["final_obs"], mine[5]["final_obs"])
                assert theirs[5]["length"] == mine[5]["length"] + 1
                fights += 1
            else:
                np.testing.assert_allclose(mine[2][played], theirs[2][played], atol=1e-5)
                assert (theirs[2][~played] == 0).all()
        assert fights >= 1 and not env.events


@pytest.mark.parametrize("target", ["peer", "baseline"])
@pytest.mark.parametrize("num_fights", [1, 2, 8])
def test_twenty_fights_with_an_agent_killed_in_between(num_fights, target):
    with Server(hp=30) as server:
        with within(400), connect(server, num_fights, target=target, reset_params={"randomizeGear": True}) as env:
            act, finished, cut_off, killed = random_player(env), 0, 0, False
            for _ in range(8000):
                _, _, _, terminated, truncated, info = env.step(act())
                finished, cut_off = finished + terminated.sum(), cut_off + truncated.sum()
                assert (info["result"][terminated] > 0).all() and not (terminated & truncated).any()
                if not killed and finished >= 5 and not env.waiting[-1].all():
                    env.fights[-1][0].writer.transport.abort()
                    killed = True
                if finished >= 20:
                    break
            assert finished >= 20 and cut_off == 1 == len(env.events), (finished, cut_off, env.events)
            assert env.waiting[:, 1].all() == (target == "baseline") or target == "peer"
        assert not server.players, "everybody has been logged out"
        resets = [request["body"] for request in server.requests if request["action"] == "reset"]
        assert all(reset["resetParams"]["randomizeGear"] for reset in resets)
        assert all((reset["target"] == "baseline") == (target == "baseline") for reset in resets)


@pytest.mark.parametrize("target", ["peer", "baseline"])
def test_no_action_is_sent_before_the_policy_acts(target):
    with Server() as server, connect(server, target=target) as env:
        assert not [request for request in server.requests if request["action"] == "step"]
        assert env.waiting.tolist() == [[False, True]]
        assert env.obs[0, 1].any(), "who does not answer for itself is seen through the other's eyes"


def test_the_server_is_told_to_play_as_the_simulator_does():
    """Its own defaults are a PURE whose prayer head is empty on most ticks. `test_a_remote_fight_is_the_local_fight`
    sees the rest."""
    with Server() as server, connect(server, loadouts=("zerker",)) as env:
        local = NHVecEnv(1, loadouts=("zerker",), seed=1)
        np.testing.assert_array_equal(env.obs, local.obs)
        np.testing.assert_array_equal(env.masks, local.masks)
    with Server() as server, connect(server, reset_params={"onlySwitchPrayerWhenAboutToAttack": True}) as env:
        act, empty = random_player(env), 0
        for _ in range(60):
            env.step(act())
            empty += not env.masks[0, 0, -6:].any()
        assert 20 < empty < 60, "a user's own parameters count; a head that is empty takes action 0"
    assert server_params(["lms_med", "pure"])["randomBuildOptions"] == ["LMS_MED", "PURE"]
    with pytest.raises(ValueError, match=r"no account build like the loadout 'obby_maul'\. It has: lms_med, "):
        server_params(["lms_med", "obby_maul"])


def test_ids_survive_the_servers_name_formatting():
    """With an id like agent-ab12 the reset never finds its peer."""
    with Server() as server:
        agents = [_Agent("127.0.0.1", server.port, 5.0) for _ in range(50)]
        assert len({agent.id for agent in agents}) == 50 and all(
            agent.id.isdigit() and agent.id[0] != "0" for agent in agents
        )
        original = _Agent.__init__

        def named_badly(self, *address):
            original(self, *address)
            self.id = f"agent-ab{self.id}"

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_Agent, "__init__", named_badly)
            with pytest.raises(RemoteError, match=r"no answer to 'reset' within 0\.5 s"):
                connect(server, timeout=0.5, attempts=1)


def test_an_error_reply_is_raised_with_the_servers_words():
    with Server(lambda agent, count, action: "error" if count == 5 else None) as server, connect(server) as env:
        act = random_player(env)
        with pytest.raises(RemoteError, match=r"refused 'step' of \d{9}: Attack type missing"):
            for _ in range(10):
                env.step(act())


@pytest.mark.parametrize(("fault", "message"), [("garbage", "is not JSON: b'<html>502"), ("endless", "is longer than")])
def test_an_answer_that_is_not_the_protocol(fault, message):
    with Server(lambda agent, count, action: fault if count == 4 else None) as server, connect(server) as env:
        act = random_player(env)
        with pytest.raises(RemoteError, match=message):
            for _ in range(10):
                env.step(act())


@pytest.mark.parametrize("fault", ["drop", "silence", "DESYNC", "TARGET_LOST"])
def test_a_lost_fight_is_truncated_and_the_others_go_on(fault):
    with Server(lambda agent, count, action: fault if (agent, count) == (2, 9) else None) as server:
        with connect(server, 2, timeout=4.0) as env:
            act, seen = random_player(env), []
            for _ in range(40):
                _, _, rewards, terminated, truncated, info = env.step(act())
                seen.append(truncated.copy())
                for lost in np.flatnonzero(truncated):
                    assert not terminated.any() and (rewards[lost] == 0).all() and info["result"][lost] == 0
            assert np.sum(seen) == 1 and len(env.events) == 1 and "was lost after" in env.events[0], env.events
            assert len(server.players) == 4, "whoever was dropped is logged out"


def test_a_fight_that_breaks_while_another_resets_is_told_in_the_next_step():
    with within(60), Server() as server, connect(server, 2) as env:
        act = random_player(env)
        for _ in range(4):
            env.step(act())
        env._lose(1, "as if its answer had come with the others' resets")
        env._run(env._answers())
        env._look_who_waits()
        assert env.waiting[1].all() and not env.waiting[0].any(), "nobody acts before it is told"
        _, _, rewards, terminated, truncated, info = env.step(act())
        assert truncated.tolist() == [False, True] and not terminated.any() and info["length"][1] in (3, 4)
        assert (rewards[1] == 0).all() and env.length[1] == 0
        ends = [env.step(act())[4] for _ in range(20)]
        assert not np.any(ends) and 0 < env.length[1] <= 20


def test_a_silent_server_is_given_up_with_its_address():
    with Server(lambda *_: "silence") as server:
        with pytest.raises(
            RemoteError, match=rf"127\.0\.0\.1:{server.port} after 2 attempts: no answer to 'login' within 0.2 s"
        ):
            connect(server, timeout=0.2, attempts=2)
    with pytest.raises(RemoteError, match="cannot connect"):
        connect(server, timeout=0.2, attempts=2)


@pytest.mark.parametrize("num_fights", [1, 3])
def test_a_server_that_dies_in_the_middle_of_a_fight_is_given_up(num_fights):
    dead = []
    with within(60), Server(lambda *_: "drop" if dead else None) as server, connect(server, num_fights) as env:
        act = random_player(env)
        for _ in range(5):
            env.step(act())
        dead.append(True)
        with pytest.raises(RemoteError, match=r"after 3 attempts: connection closed during 'login'"):
            for _ in range(5):
                env.step(act())
        assert 1 <= len(env.events) <= num_fights, env.events


def test_an_evaluation_on_a_server_that_loses_every_fight_ends():
    with within(60), Server(lambda agent, count, action: "DESYNC" if count == 4 else None) as server:
        with pytest.raises(
            RemoteError, match=r"lost 1[12] fights\. Fight \d was lost after \d+ ticks: the server said"
        ):
            play_on_server(Baseline("nh", 4), None, 2, f"127.0.0.1:{server.port}")


def test_a_logout_does_not_overtake_its_login():
    """The server would refuse it, and then the world would wait for an agent that nobody plays."""

    class Slow(Server):
        async def live(self):
            await asyncio.sleep(1.5)
            await super().live()

    with within(60), Slow() as server, connect(server, timeout=0.5, attempts=8, backoff=0.2) as env:
        assert [request["action"] for request in server.requests[:4]].count("login") >= 2
        act = random_player(env)
        for _ in range(20):
            env.step(act())
        assert len(server.players) == 2, "of those who came too late nobody is left"


def test_an_end_that_is_told_late_is_an_end(monkeypatch):
    """Nobody waits for a fighter whose answers come late: its place is told of them in later steps. Nobody acts in a
    fight that is over: the server would refuse it."""
    monkeypatch.setattr(remote, "_PATIENCE", 0.01)
    with Server(lambda agent, count, action: "late" if agent == 0 and action == "step" else None, hp=1) as server:
        with within(100), connect(server, 2, target="baseline", max_ticks=100_000) as env:
            act, ended, waited = random_player(env), np.zeros(2, int), 0
            while not ended.all():
                waited += env.waiting[0, 0] and not env.waiting[1, 0]
                _, _, rewards, terminated, truncated, info = env.step(act())
                ended += terminated
                assert not truncated.any() and (info["result"][terminated] > 0).all()
                assert (rewards[terminated, 0] != 0).all(), "the end is paid for"
            assert waited and not env.events


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_a_process_that_ends_logs_its_agents_out(end):
    program = f"""
        import os, signal, sys
        from cleanrl_games.envs.osrs.remote import RemoteNHVecEnv

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        env = RemoteNHVecEnv(2, "localhost", int(sys.argv[1]))
        print(env.waiting.tolist(), flush=True)
        {end}
    """
    with Server() as server:
        words = [sys.executable, "-c", textwrap.dedent(program), str(server.port)]
        found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert found.returncode == 0 and found.stdout, found.stderr
        assert server.requests and not server.players


def test_a_request_that_is_too_long_is_not_sent():
    with Server() as server:
        loop = asyncio.new_event_loop()
        agent = _Agent("127.0.0.1", server.port, 5.0)
        loop.run_until_complete(agent.connect())
        with pytest.raises(RemoteError, match=f"the server reads {MAX_LINE} a line"):
            loop.run_until_complete(agent.ask("step", {"action": [0] * MAX_LINE}))
        agent.writer.close()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()


def test_max_ticks_truncates():
    with Server() as server, connect(server, max_ticks=15) as env:
        act, ends = random_player(env), []
        for _ in range(40):
            _, _, _, _, truncated, info = env.step(act())
            ends += info["length"][truncated].tolist()
        assert ends == [15, 15]


def test_addresses():
    assert parse_address("127.0.0.1:7070") == ("127.0.0.1", 7070)
    for wrong in ("7070", "host:", "host:port", ":7070", "host:70000"):
        with pytest.raises(ValueError, match="should look like"):
            parse_address(wrong)
    with pytest.raises(ValueError, match="target should be"):
        RemoteNHVecEnv(1, target="nh")


def test_facts_of_recorded_meta_data_agree_with_the_simulators_definitions():
    """On the recorded ticks: what is made of `meta` has to be what the observations of the same tick say."""
    facts, terms, checked = np.zeros(1, FACTS).view(np.recarray), np.zeros(NUM_TERMS, np.float32), 0
    with np.load(ROWS, allow_pickle=False) as arrays:
        names = arrays["meta_names"].tolist()
        for fight in range(4):
            obs, values = arrays[f"obs_{fight}"], arrays[f"meta_{fight}"]
            for t in range(2, len(obs)):
                for me in range(2):
                    meta, before = (
                        {name: value for name, value in zip(names, row, strict=True) if not np.isnan(value)}
                        for row in (values[t, me], values[t - 1, me])
                    )
                    facts_from_meta(meta, before, 0, facts[0])
                    fact, o, theirs = facts[0], obs[t, me], obs[t, 1 - me]
                    assert (fact.hit_off_prayer >= 0) == (o[49] == 1) and (fact.prayed_correctly >= 0) == (o[50] == 1)
                    if o[49]:
                        assert fact.hit_off_prayer == 1 - o[64] and fact.attack_speed == (4 if o[0] else 5)
                        # the observation shows the last of two dagger hits only
                        assert fact.damage_dealt >= o[51] - 1e-6
                    if o[50]:
                        assert fact.prayed_correctly == o[63] and fact.target_attack_speed == (4 if o[12] else 5)
                    sharks = (fact.food_left * 99 - o[25] * 16 - o[27] * 18) / 20
                    assert 0 <= round(sharks) <= 14 and abs(sharks - round(sharks)) < 1e-3
                    frozen = o[29] > max(obs[t - 1, me, 29], 0)
                    assert (fact.new_freeze > 0) == frozen and (fact.target_new_freeze > 0) == (
                        theirs[29] > obs[t - 1, 1 - me, 29]
                    )
                    assert fact.health == pytest.approx(o[10], abs=1e-6) and fact.no_prayer == 0
                    reward_terms(facts[0], terms)
                    assert terms[REWARD_TERMS.index("damage_dealt")] == fact.damage_dealt
                    assert fact.new_freeze in (0, 8, 16, 24, 32)
                    checked += 1
    assert checked == 884
