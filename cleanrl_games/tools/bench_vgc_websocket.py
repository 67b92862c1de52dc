"""The path that everyone takes, measured: stock poke-env players over a websocket on a real local Showdown server.

Two players, both in this process as poke-env has it, play random valid orders; before each order they compute
poke-env's own action mask and an observation about as wide as ours, written the way poke-env's users write theirs
(plain loops into an array)."""

import asyncio
import random
import socket
import time

import numpy as np
import psutil
from poke_env import AccountConfiguration, ServerConfiguration
from poke_env.battle import DoubleBattle, Field, PokemonType, SideCondition, Status, Weather
from poke_env.environment import DoublesEnv
from poke_env.player import RandomPlayer
from poke_env.teambuilder import Teambuilder

from cleanrl_games.envs.vgc.install import ensure_showdown
from cleanrl_games.envs.vgc.servers import Server

WIDTH = 1200  # ours has 1236 floats and 196 ids
MON, MOVE = 94, 9
BOOSTS = ("atk", "def", "spa", "spd", "spe", "accuracy", "evasion")
STATS = ("hp", "atk", "def", "spa", "spd", "spe")


def write_mon(out: np.ndarray, at: int, mon, foes) -> None:
    out[at : at + 6] = [
        mon.current_hp_fraction,
        mon.active,
        mon.fainted,
        mon.first_turn,
        mon.level / 100,
        mon.is_terastallized,
    ]
    at += 6
    for stat in STATS:
        out[at] = mon.base_stats[stat] / 255
        at += 1
    for boost in BOOSTS:
        out[at] = mon.boosts[boost] / 6
        at += 1
    for kind in mon.types:
        if kind is not None:
            out[at + kind.value - 1] = 1
    at += len(PokemonType)
    if mon.status is not None:
        out[at + mon.status.value - 1] = 1
    at += len(Status)
    out[at] = hash(mon.species) % 1500
    out[at + 1] = hash(mon.item) % 500
    out[at + 2] = hash(mon.ability) % 400
    at += 3
    for move in list(mon.moves.values())[:4]:
        multipliers = [foe.damage_multiplier(move) if foe is not None else 0 for foe in foes]
        out[at : at + MOVE] = [
            hash(move.id) % 1000, move.base_power / 100, move.accuracy, move.priority,
            move.current_pp / max(1, move.max_pp),
            move.type.value, move.category.value, *multipliers,
        ]  # fmt: skip
        at += MOVE


def embed(battle: DoubleBattle) -> np.ndarray:
    out = np.zeros(WIDTH, np.float32)
    at = 0
    for team, foes in ((battle.team, battle.opponent_active_pokemon), (battle.opponent_team, battle.active_pokemon)):
        for index, mon in enumerate(list(team.values())[:6]):
            write_mon(out, at + index * MON, mon, foes)
        at += 6 * MON
    out[at] = battle.turn / 20
    at += 1
    for table, seen in ((Weather, battle.weather), (Field, battle.fields)):
        for key in seen:
            out[at + key.value - 1] = 1
        at += len(table)
    for conditions in (battle.side_conditions, battle.opponent_side_conditions):
        for key, value in conditions.items():
            out[at + key.value - 1] = value
        at += len(SideCondition)
    return out


class Pool(Teambuilder):
    def __init__(self, teams: list[str]):
        self.teams = teams

    def yield_team(self) -> str:
        return random.choice(self.teams)


class Watched(RandomPlayer):
    """RandomPlayer that sees what a learner would see, and counts its decisions."""

    decisions = 0

    def choose_move(self, battle):
        self.decisions += 1
        self.seen = (embed(battle), DoublesEnv.get_action_mask(battle))
        return super().choose_move(battle)

    def teampreview(self, battle):
        self.decisions += 1
        self.seen = (embed(battle), DoublesEnv.get_action_mask(battle))
        return super().teampreview(battle)


def tree_cpu(pid: int) -> float:
    root = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:2]) for process in [root, *root.children(recursive=True)])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure_websocket(battle_format: str, teams: list[str], battles: int, concurrent: int) -> dict:
    """CPU seconds of the server's processes and of Python for `battles` battles, after as many to warm the server."""
    server = Server(free_port())
    try:
        server.start(ensure_showdown())
        server.wait_until_ready()
        configuration = ServerConfiguration(server.address, None)
        players = [
            Watched(
                AccountConfiguration(f"bench {name}", None), battle_format=battle_format, team=Pool(teams),
                log_level=50,
                server_configuration=configuration, max_concurrent_battles=concurrent, accept_open_team_sheet=True,
            )
            for name in "ab"
        ]  # fmt: skip

        async def play(count: int) -> None:
            await asyncio.wait_for(players[0].battle_against(players[1], n_battles=count), timeout=900)

        asyncio.run(play(battles))
        before = sum(player.decisions for player in players)
        node, python, wall = tree_cpu(server.process.pid), time.process_time(), time.perf_counter()
        asyncio.run(play(battles))
        return {
            "decisions": sum(player.decisions for player in players) - before,
            "node_s": tree_cpu(server.process.pid) - node,
            "python_s": time.process_time() - python,
            "wall_s": time.perf_counter() - wall,
        }
    finally:
        server.stop()
