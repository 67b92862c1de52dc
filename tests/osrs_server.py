"""A simulation server for tests: fights of `NHVecEnv` behind the public server's protocol and with its manners.

    python tests/osrs_server.py --port 7070

- There is one world. It ticks when every agent that is logged in has spoken, and stands still otherwise.
- A login is answered by a tick of the world; a logout at once, from any connection. A broken connection logs nobody
  out, and a logout that overtakes its login is refused: the agent then stands in the world for good.
- A reset looks its target up by name: names are formatted (words are capitalised), the target's id is taken as it came.
- Without `resetParams` the account is a PURE, and prayers and weapons can be changed only when an attack is due.
- The target's view is told to those only who ask for it (`maintainTargetEnvironment`).
- An attack without its type, a step outside of a fight and a second request at once are errors. A line longer than 8192
  bytes closes the connection.
- A fight begins some ticks after both have asked for it. One of them is told at its tick 0, the other at its tick 1.
- The end of a fight is told one tick after the death.
- The target "baseline" is a bot of the server's own.
"""

import argparse
import asyncio
import contextlib
import json
import re
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from cleanrl_games.envs.osrs.baselines import Baseline
from cleanrl_games.envs.osrs.contract import (
    HEAD_NAMES,
    HEAD_OFFSETS,
    HEAD_SIZES,
    LOGIT,
    NUM_HEADS,
    NUM_LOGITS,
    NUM_OBS,
    OBS,
)
from cleanrl_games.envs.osrs.vec_env import NHVecEnv

TICKS_BEFORE_A_FIGHT = 3
MAX_LINE = 8192
BUILDS = {"LMS_MED": "lms_med", "MAXED": "max_main", "PURE": "pure", "ZERKER": "zerker"}
DEFAULTS = {
    "accountBuild": "PURE", "onlySwitchPrayerWhenAboutToAttack": True, "onlySwitchGearWhenAttackSoon": True,
    "allowSmite": True, "allowRedemption": True, "allowMovingIfCanAttack": False,
    "randomizeBuild": False, "randomBuildOptions": ["PURE", "ZERKER"],
}  # fmt: skip
ATTACKS = ("attack", "mage_attack_type", "ranged_attack_type", "melee_attack_type")  # by the attack head's numbers
ATTACK_HEADS = [HEAD_NAMES.index(name) for name in ATTACKS]


def refusal(action):
    """What the server says to an action that it does not understand, or nothing."""
    if len(action) != NUM_HEADS or any(not 0 <= a < size for a, size in zip(action, HEAD_SIZES, strict=False)):
        return f"Not an action: {action}"
    attack = action[ATTACK_HEADS[0]]
    return "Attack type missing" if attack and action[ATTACK_HEADS[attack]] == 0 else ""


def meta_of(facts, fighter, foe):
    """What the server would say about a tick of the simulator."""
    meta = {
        "damageGeneratedOnTargetScale": facts.damage_dealt, "damageGeneratedOnPlayerScale": facts.damage_received,
        "extraDamageDealtOnTargetScale": facts.extra_dealt, "extraDamageDealtOnPlayerScale": facts.extra_received,
        "playerHealedScale": facts.healed, "targetHealedScale": facts.target_healed,
        "wastedFoodScale": facts.wasted_food,
        "remainingFoodScale": facts.food_left, "remainingBrewScale": 0.0,
        "targetRemainingFoodScale": facts.target_food_left, "targetRemainingBrewScale": 0.0,
        "playerFrozenTicks": fighter.freeze_timer, "targetFrozenTicks": foe.freeze_timer,
        "currentPrayerPercent": 1 - facts.no_prayer, "currentHealthPercent": facts.health,
    }  # fmt: skip
    if facts.hit_off_prayer >= 0:
        meta.update(
            hitOffPrayer=bool(facts.hit_off_prayer),
            playerHitAttackSpeed=facts.attack_speed,
            hitWithSmite=bool(facts.smite),
        )
    if facts.prayed_correctly >= 0:
        meta.update(protectedPrayer=bool(facts.prayed_correctly), targetHitAttackSpeed=facts.target_attack_speed)
    return {key: value if isinstance(value, bool) else float(value) for key, value in meta.items()}


def heads_of(bits):
    return [bits[a : a + n].tolist() for a, n in zip(HEAD_OFFSETS, HEAD_SIZES, strict=True)]


class Player:
    """An agent that is logged in."""

    def __init__(self, agent_id):
        self.id = agent_id
        self.name = re.sub(r"[a-z]+", lambda word: word[0].capitalize(), agent_id)  # "agent-ab12" → "Agent-Ab12"
        self.request = (
            None  # (action, body, future) that the world has not answered; None = the world waits for this one
        )
        self.fight, self.side = None, 0


class Fight:
    """Two players, or one and the server's bot (None)."""

    def __init__(self, players, seed, hp):
        self.players, self.bot, self.hp = players, Baseline("nh", 2, seed), hp
        self.body = players[0].request[1]
        self.params = params = DEFAULTS | self.body["resetParams"]
        build = params["accountBuild"]
        if params["randomizeBuild"]:
            number = min(int(player.id) for player in players if player)
            build = params["randomBuildOptions"][number % len(params["randomBuildOptions"])]
        self.env = NHVecEnv(
            1,
            loadouts=(BUILDS[build],),
            seed=seed,
            allow_smite=params["allowSmite"],
            allow_redemption=params["allowRedemption"],
            move_if_can_attack=params["allowMovingIfCanAttack"],
        )
        self.rest, self.tick, self.result = TICKS_BEFORE_A_FIGHT, -1, 0

    def masks(self, side):
        bits = self.env.masks[0, side].copy()
        if self.params["onlySwitchPrayerWhenAboutToAttack"] and self.env.obs[0, side, OBS["attack_cycle_ticks"]] > 0:
            bits[HEAD_OFFSETS[HEAD_NAMES.index("prayer")] :] = False
        if self.params["onlySwitchGearWhenAttackSoon"] and bits[LOGIT["no_op_attack"]]:
            bits[LOGIT["no_op_attack"] + 1 : HEAD_OFFSETS[1]] = False
        return heads_of(bits)

    def view(self, side, terminal=""):
        over = self.result != 0  # the environment has started anew meanwhile
        obs, env = (self.env.final_obs if over else self.env.obs)[0], self.env
        answer = {
            "obs": obs[side].tolist(),
            "actionMasks": self.masks(side),
            "meta": meta_of(env.facts[0, side], env.fighters[0, side], env.fighters[0, 1 - side]),
        }
        answer["meta"]["episodeTicks"] = self.tick
        if self.body["maintainTargetEnvironment"]:
            answer["meta"] |= {"targetObs": obs[1 - side].tolist(), "targetActionMasks": self.masks(1 - side)}
        if terminal:
            answer["terminalState"] = terminal
        return answer


class World:
    """`fault(number of the connection, number of its request, action)` may name a misbehaviour."""

    def __init__(self, fault=lambda *_: None, seed=1, hp=0):
        """hp: what everybody has at a fight's start, for short fights; 0 = what the loadout says"""
        self.fault, self.seed, self.hp = fault, seed, hp
        self.players, self.logins, self.fights = {}, [], {}
        self.target_of_id, self.requests, self.connections, self.ticks = {}, [], 0, 0
        self.talks = set()  # asyncio itself would forget who waits for an answer

    async def talk(self, reader, writer):
        number, count = self.connections, 0
        self.connections += 1
        self.talks.add(asyncio.current_task())
        try:
            while line := await reader.readline():
                request = json.loads(line)
                self.requests.append(request)
                fault = self.fault(number, count, request["action"])
                count += 1
                if fault == "drop":
                    break
                if fault == "garbage":
                    writer.write(b"<html>502</html>\n")
                    continue
                if fault == "endless":
                    writer.write(b"x" * 40_000 + b"\n")
                    continue
                answer = await self.answer(request)
                if fault == "silence":
                    continue
                if fault == "late":
                    await asyncio.sleep(0.04)
                if fault == "error":
                    answer = {"error": True, "message": "Attack type missing"}
                if fault in ("DESYNC", "TARGET_LOST"):
                    answer["body"]["terminalState"] = fault
                writer.write(json.dumps(answer).encode() + b"\n")
        except (ConnectionError, asyncio.CancelledError, ValueError):  # the last: a line that is too long
            pass
        finally:
            self.talks.discard(asyncio.current_task())
            writer.close()

    async def answer(self, request):
        agent_id, action, body = request["meta"]["id"], request["action"], request["body"]
        future = asyncio.get_running_loop().create_future()
        if action == "logout":
            player = self.players.pop(agent_id, None)
            if player is None:
                return {"error": True, "message": f"No player found for: {agent_id}"}
            if player.fight:
                self.fights.pop(id(player.fight), None)
            return {}
        if action == "login":
            if agent_id in self.players:
                return {"error": True, "message": f"Player {agent_id} is logged in already"}
            self.logins.append((agent_id, future))
        else:
            player = self.players.get(agent_id)
            if player is None:
                return {"error": True, "message": f"Player {agent_id} is not logged in"}
            if player.request:
                return {"error": True, "message": "Message already queued"}
            if action == "step":
                fighting = player.fight and player.fight.tick >= 0
                message = refusal(body["action"]) if fighting else f"Player {agent_id} is not in a fight"
                if message:
                    return {"error": True, "message": message}
            if action == "reset":
                kind = "baseline" if body["target"] == "baseline" else "peer"
                if self.target_of_id.setdefault(agent_id, kind) != kind:
                    return {"error": True, "message": f"Player {agent_id} has different target than before"}
            player.request = (action, body, future)
        return await future

    async def live(self):
        while True:
            if all(player.request for player in self.players.values()):
                self.tick()
            await asyncio.sleep(0.0002)

    def tick(self):
        self.ticks += 1
        for agent_id, future in self.logins:
            self.players[agent_id] = Player(agent_id)
            future.set_result({})
        self.logins.clear()
        self.match()
        for fight in list(self.fights.values()):
            self.advance(fight)

    def match(self):
        """Fights for those who ask for each other. A target that has no such name is waited for, for good."""
        by_name = {player.name: player for player in self.players.values()}
        for player in self.players.values():
            if not player.request or player.request[0] != "reset" or player.fight:
                continue
            target = player.request[1]["target"]
            peer = None if target == "baseline" else by_name.get(target)
            if target != "baseline":
                if peer is None or not peer.request or peer.request[0] != "reset" or peer.fight:
                    continue
                if by_name.get(peer.request[1]["target"]) is not player:
                    continue
            fight = Fight([player, peer], self.seed, self.hp)
            self.fights[id(fight)] = fight
            for side, member in enumerate(fight.players):
                if member:
                    member.fight, member.side = fight, side

    def reply(self, player, body):
        player.request[2].set_result({"body": body})
        player.request = None

    def advance(self, fight):
        if fight.tick < 0:
            if not all(player is None or (player.request and player.request[0] == "reset") for player in fight.players):
                return
            fight.rest -= 1
            if fight.rest > 0:
                return
            fight.tick, fight.result = 0, 0
            if fight.hp:
                fight.env.fighters["hp"] = fight.hp
            self.reply(fight.players[0], fight.view(0))
            return
        if fight.result:  # the tick after the death
            fight.tick += 1
            for side, player in enumerate(fight.players):
                if player:
                    self.reply(player, fight.view(side, self.ending(fight, side)))
            fight.tick, fight.result, fight.rest = -1, 0, TICKS_BEFORE_A_FIGHT
            return
        actions = np.zeros((1, 2, NUM_HEADS), np.int64)
        for side, player in enumerate(fight.players):
            if player is None:
                obs, masks = fight.env.obs.reshape(-1, NUM_OBS), fight.env.masks.reshape(-1, NUM_LOGITS)
                fight.bot.act(obs, masks, np.array([side]), actions.reshape(-1, NUM_HEADS))
            elif player.request and player.request[0] == "step":
                actions[0, side] = player.request[1]["action"]
        _, _, _, terminated, _, info = fight.env.step(actions)
        fight.tick += 1
        fight.result = int(info["result"][0]) if terminated[0] else 0
        for side, player in enumerate(fight.players):
            if player:
                self.reply(player, fight.view(side))

    def ending(self, fight, side):
        return "TIED" if fight.result == 3 else "WON" if fight.result == side + 1 else "LOST"


class Server(World):
    """The world in a thread of its own, for a `with` block."""

    def __enter__(self):
        self.loop, started = asyncio.new_event_loop(), threading.Event()
        self.thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self.thread.start()
        assert started.wait(10)
        return self

    def _serve(self, started):
        asyncio.set_event_loop(self.loop)
        self.server = self.loop.run_until_complete(asyncio.start_server(self.talk, "127.0.0.1", 0, limit=MAX_LINE))
        self.port = self.server.sockets[0].getsockname()[1]
        self.loop.create_task(self.live())
        started.set()
        self.loop.run_forever()

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.01))
        self.loop.close()


async def main(port):
    world = World()
    server = await asyncio.start_server(world.talk, "127.0.0.1", port, limit=MAX_LINE)
    print(f"Listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await world.live()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=7070)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(parser.parse_args().port))
