"""RemoteNHVecEnv against a small server in this file that speaks the simulation server's protocol, well and badly."""

import asyncio
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cleanrl_games.envs.osrs.baselines import Baseline
from cleanrl_games.envs.osrs.contract import HEAD_OFFSETS, HEAD_SIZES, NUM_LOGITS, NUM_OBS, NUM_TERMS, REWARD_TERMS
from cleanrl_games.envs.osrs.observations import FACTS, reward_terms
from cleanrl_games.envs.osrs.remote import MAX_LINE, RemoteError, RemoteNHVecEnv, _Agent, facts_from_meta, first_legal_action
from cleanrl_games.envs.osrs.vec_env import NHVecEnv

ROWS = Path(__file__).parent / "data" / "osrs_traces_rows.npz"
WEIGHTS = np.linspace(-1, 1, NUM_TERMS)


def meta_of(facts, fighter, foe):
    """What the server would say about a tick of the simulator."""
    meta = {
        "damageGeneratedOnTargetScale": facts.damage_dealt, "damageGeneratedOnPlayerScale": facts.damage_received,
        "extraDamageDealtOnTargetScale": facts.extra_dealt, "extraDamageDealtOnPlayerScale": facts.extra_received,
        "playerHealedScale": facts.healed, "targetHealedScale": facts.target_healed, "wastedFoodScale": facts.wasted_food,
        "remainingFoodScale": facts.food_left, "remainingBrewScale": 0.0,
        "targetRemainingFoodScale": facts.target_food_left, "targetRemainingBrewScale": 0.0,
        "playerFrozenTicks": fighter.freeze_timer, "targetFrozenTicks": foe.freeze_timer,
        "currentPrayerPercent": 1 - facts.no_prayer, "currentHealthPercent": facts.health,
    }  # fmt: skip
    if facts.hit_off_prayer >= 0:
        meta.update(hitOffPrayer=bool(facts.hit_off_prayer), playerHitAttackSpeed=facts.attack_speed, hitWithSmite=bool(facts.smite))
    if facts.prayed_correctly >= 0:
        meta.update(protectedPrayer=bool(facts.prayed_correctly), targetHitAttackSpeed=facts.target_attack_speed)
    return {key: value if isinstance(value, bool) else float(value) for key, value in meta.items()}


class Server:
    """Fights of NHVecEnv behind the protocol. `fault(agent_number, request_number, action)` may name a misbehaviour."""

    def __init__(self, fault=lambda *_: None, late_joins=False, seed=1):
        self.fault, self.late_joins, self.seed = fault, late_joins, seed
        self.players, self.used_ids, self.requests, self.connections = {}, set(), [], 0
        self.loop, started = asyncio.new_event_loop(), threading.Event()
        self.thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self.thread.start()
        assert started.wait(10)

    def _serve(self, started):
        asyncio.set_event_loop(self.loop)
        self.server = self.loop.run_until_complete(asyncio.start_server(self._talk, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]
        started.set()
        self.loop.run_forever()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.01))
        self.loop.close()

    async def _talk(self, reader, writer):
        number, count = self.connections, 0
        self.connections += 1
        try:
            while line := await reader.readline():
                request = json.loads(line)
                self.requests.append(request)
                fault = self.fault(number, count, request["action"])
                count += 1
                if fault == "drop":
                    break
                if fault == "silence":
                    continue
                if fault == "garbage":
                    writer.write(b"<html>502</html>\n")
                    continue
                if fault == "endless":
                    writer.write(b"x" * (4 * MAX_LINE) + b"\n")
                    continue
                if fault == "error":
                    answer = {"error": True, "message": "Attack type missing"}
                else:
                    answer = await self._answer(request, fault)
                writer.write(json.dumps(answer).encode() + b"\n")
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, request, fault):
        me, action, body = request["meta"]["id"], request["action"], request["body"]
        if action == "login":
            if me in self.used_ids:
                return {"error": True, "message": f"Player {me} has different target than before"}
            self.used_ids.add(me)
            return {}
        if action == "logout":
            return {}
        if action == "reset" and me not in self.players:
            peer = body["target"]
            fight = self.players[peer].fight if peer in self.players else SimpleNamespace(env=None, asked={})
            if fight.env is None:
                fight.env = NHVecEnv(1, seed=self.seed, reward_weights=WEIGHTS)
            self.players[me] = SimpleNamespace(fight=fight, side=0 if peer not in self.players else 1)
        player = self.players[me]
        fight, side = player.fight, player.side
        if action == "reset" and side == 0 and self.late_joins:
            return {"body": self._view(fight, side, False)}
        # The tick comes when both have spoken; two resets are answered without one.
        fight.asked[side] = (action, body, asyncio.get_running_loop().create_future())
        if len(fight.asked) == 2:
            asked, fight.asked = fight.asked, {}
            ended = False
            if any(what == "step" for what, _, _ in asked.values()):
                moves = [asked[k][1].get("action", [0] * 12) for k in range(2)]
                _, _, _, terminated, _, _ = fight.env.step(np.array([moves]))
                ended = terminated[0]
            for k in range(2):
                asked[k][2].set_result(self._view(fight, k, ended))
            mine = asked[side][2]
        else:
            mine = fight.asked[side][2]
        view = dict(await mine)
        if fault in ("DESYNC", "TARGET_LOST"):
            view["terminalState"] = fault
        return {"body": view}

    def _view(self, fight, side, ended):
        env = fight.env
        bits = env.masks[0, side].tolist()
        view = {
            "obs": (env.final_obs if ended else env.obs)[0, side].tolist(),
            "actionMasks": [bits[a : a + n] for a, n in zip(HEAD_OFFSETS, HEAD_SIZES, strict=True)],
            "meta": meta_of(env.facts[0, side], env.fighters[0, side], env.fighters[0, 1 - side]),
        }
        if ended:
            result = env.ended[0, 0]
            view["terminalState"] = "TIED" if result == 3 else "WON" if result == side + 1 else "LOST"
        return view


def connect(server, num_fights=1, **settings):
    settings = {"timeout": 10.0, "attempts": 2, "backoff": 0.01, "join_patience": 20.0, "reward_weights": WEIGHTS, **settings}
    return RemoteNHVecEnv(num_fights, port=server.port, **settings)


def random_player(env):
    player, rows = Baseline("random", 2 * env.num_fights, seed=3), np.arange(2 * env.num_fights)
    actions = np.zeros((env.num_fights, 2, 12), np.int64)

    def act():
        player.act(env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS), rows, actions.reshape(-1, 12))
        return actions

    return act


def test_a_remote_fight_is_the_local_fight():
    """The server's fights are NHVecEnv's: observations, masks, ends and rewards have to come through unchanged."""
    local = NHVecEnv(1, seed=1, reward_weights=WEIGHTS)
    with Server() as server, connect(server) as remote:
        act, fights, rewarded = random_player(remote), 0, 0.0
        assert (remote.obs == local.obs).all() and (remote.masks == local.masks).all()
        for _ in range(500):
            actions = act()
            mine = local.step(actions.copy())
            theirs = remote.step(actions)
            np.testing.assert_array_equal(mine[0], theirs[0])
            np.testing.assert_array_equal(mine[1], theirs[1])
            np.testing.assert_allclose(mine[2], theirs[2], atol=1e-5)
            assert (mine[3] == theirs[3]).all() and (mine[4] == theirs[4]).all()
            for key in ("result", "length"):
                assert (mine[5][key] == theirs[5][key]).all() or not theirs[3].any()
            if theirs[3].any():
                np.testing.assert_array_equal(mine[5]["final_obs"], theirs[5]["final_obs"])
                fights += 1
            rewarded += np.abs(theirs[2]).sum()
        assert fights >= 1 and rewarded > 0 and not remote.events


def test_several_fights_run_side_by_side_and_log_out():
    with Server() as server:
        with connect(server, 4, reset_params={"accountBuild": "LMS_MED"}) as env:
            act = random_player(env)
            for _ in range(30):
                obs, masks, rewards, terminated, truncated, info = env.step(act())
            assert obs.shape == (4, 2, 176) and masks.shape == (4, 2, 45) and rewards.shape == (4, 2)
            assert terminated.shape == truncated.shape == (4,) and info["terms"].shape == (4, 2, 20)
            ids = [agent.id for pair in env.agents for agent in pair]
            assert len(set(ids)) == 8
            env.reset()
            assert not set(ids) & {agent.id for pair in env.agents for agent in pair}
        resets = [request["body"] for request in server.requests if request["action"] == "reset"]
        assert all(reset["resetParams"]["accountBuild"] == "LMS_MED" for reset in resets)
        assert all(reset["target"] in server.used_ids for reset in resets)
        assert sum(request["action"] == "logout" for request in server.requests) == 8


def test_the_second_agent_may_join_a_tick_late():
    with Server(late_joins=True) as server, connect(server, join_patience=0.2) as env:
        act = random_player(env)
        for _ in range(20):
            env.step(act())
        steps = [request["body"]["action"] for request in server.requests if request["action"] == "step"]
        assert len(steps) == 41 and steps[0][0] == 1 and steps[0][3] == 1  # one tick alone, with something legal


def test_an_action_that_is_legal_by_itself_and_with_the_others():
    env = NHVecEnv(1)
    action = first_legal_action(env.masks[0, 0])
    assert action == [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    env.masks[0, 0, 39:] = False
    assert first_legal_action(env.masks[0, 0])[11] == 0


def test_an_error_reply_is_raised_with_the_servers_words():
    with Server(lambda agent, count, action: "error" if count == 5 else None) as server, connect(server) as env:
        act = random_player(env)
        with pytest.raises(RemoteError, match=r"refused 'step' of agent-[0-9a-f]{32}: Attack type missing"):
            for _ in range(10):
                env.step(act())


@pytest.mark.parametrize(("fault", "message"), [("garbage", "is not JSON: b'<html>502"), ("endless", "is longer than")])
def test_an_answer_that_is_not_the_protocol(fault, message):
    with Server(lambda agent, count, action: fault if count == 4 else None) as server, connect(server) as env:
        act = random_player(env)
        with pytest.raises(RemoteError, match=message):
            for _ in range(10):
                env.step(act())


@pytest.mark.parametrize("fault", ["drop", "silence"])
def test_a_lost_connection_truncates_its_fight_only(fault):
    """The third connection's eighth request: fight 1 starts anew under fresh ids, fight 0 goes on."""
    with Server(lambda agent, count, action: fault if (agent, count) == (2, 7) else None) as server:
        with connect(server, 2, timeout=3.0, attempts=4) as env:
            act, seen = random_player(env), []
            first_ids = [agent.id for agent in env.agents[0]]
            for _ in range(12):
                before = env.obs.copy()
                _, _, rewards, terminated, truncated, info = env.step(act())
                seen.append(truncated.copy())
                if truncated.any():
                    lost = int(np.flatnonzero(truncated)[0])
                    np.testing.assert_array_equal(info["final_obs"][lost], before[lost])
                    assert not terminated.any() and (rewards[lost] == 0).all()
            assert np.sum(seen) == 1
            assert len(env.events) == 1 and f"Fight {lost} was lost after 6 ticks" in env.events[0]
            assert lost == 1 or first_ids != [agent.id for agent in env.agents[0]]
            assert len(server.used_ids) == 6


@pytest.mark.parametrize("state", ["DESYNC", "TARGET_LOST"])
def test_a_fight_out_of_step_is_truncated(state):
    with Server(lambda agent, count, action: state if (agent, count) == (0, 9) else None) as server, connect(server) as env:
        act, seen = random_player(env), []
        for _ in range(12):
            _, _, rewards, terminated, truncated, info = env.step(act())
            seen.append(bool(truncated[0]))
            assert not terminated.any()
            if truncated[0]:
                assert info["result"][0] == 0 and info["length"][0] == len(seen) and (rewards == 0).all()
        assert sum(seen) == 1 and state in env.events[0]


def test_a_silent_server_is_given_up_with_its_address():
    with Server(lambda *_: "silence") as server:
        start = time.monotonic()
        with pytest.raises(ConnectionError, match=rf"127\.0\.0\.1:{server.port} after 2 attempts: no answer to 'login' within 0.2 s"):
            connect(server, timeout=0.2)
        assert time.monotonic() - start < 60
    with pytest.raises(ConnectionError, match="cannot connect"):
        connect(server, timeout=0.2)


def test_an_id_is_never_used_twice():
    with Server() as server:
        loop = asyncio.new_event_loop()
        agents = [_Agent("127.0.0.1", server.port, 5.0) for _ in range(2)]
        agents[1].id = agents[0].id
        for agent in agents:
            loop.run_until_complete(agent.connect())
        loop.run_until_complete(agents[0].ask("login", {"agentType": "NhEnv"}))
        with pytest.raises(RemoteError, match="has different target than before"):
            loop.run_until_complete(agents[1].ask("login", {"agentType": "NhEnv"}))
        with pytest.raises(RemoteError, match=f"the server reads {MAX_LINE} a line"):
            loop.run_until_complete(agents[0].ask("step", {"action": [0] * MAX_LINE}))
        for agent in agents:
            agent.close()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()


def test_max_ticks_truncates():
    with Server() as server, connect(server, max_ticks=15) as env:
        act = random_player(env)
        ends = [bool(env.step(act())[4][0]) for _ in range(31)]
        assert [i + 1 for i, end in enumerate(ends) if end] == [15, 30]


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
                        assert fact.damage_dealt >= o[51] - 1e-6  # the observation shows the last of two dagger hits only
                    if o[50]:
                        assert fact.prayed_correctly == o[63] and fact.target_attack_speed == (4 if o[12] else 5)
                    sharks = (fact.food_left * 99 - o[25] * 16 - o[27] * 18) / 20
                    assert 0 <= round(sharks) <= 14 and abs(sharks - round(sharks)) < 1e-3
                    frozen = o[29] > max(obs[t - 1, me, 29], 0)
                    assert (fact.new_freeze > 0) == frozen and (fact.target_new_freeze > 0) == (theirs[29] > obs[t - 1, 1 - me, 29])
                    assert fact.health == pytest.approx(o[10], abs=1e-6) and fact.no_prayer == 0
                    reward_terms(facts[0], terms)
                    assert terms[REWARD_TERMS.index("damage_dealt")] == fact.damage_dealt
                    assert fact.new_freeze in (0, 8, 16, 24, 32)
                    checked += 1
    assert checked == 884
