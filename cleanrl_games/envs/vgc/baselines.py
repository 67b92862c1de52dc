"""poke-env's Random, MaxBasePower and SimpleHeuristics as opponents inside VGCVecEnv.

    sim.js ── protocol lines of the scripted seat ──> DoubleBattle ──> Player.choose_move ──> mdbo.from_order ──> sim.js

Only their seats' text crosses the pipe. They are the stock players, fed as a server would feed them, with two
differences: their dice are seeded, and an order that the request does not allow (poke-env proposes some) becomes a
random legal one at once, where a server would refuse it and ask again.
"""

import json
import random
import zlib

import numpy as np
from poke_env.battle import DoubleBattle
from poke_env.data import GenData
from poke_env.player import MaxBasePowerPlayer, Player, RandomPlayer, SimpleHeuristicsPlayer
from poke_env.teambuilder import Teambuilder

from cleanrl_games.envs.vgc import mdbo

PLAYERS = {"random": RandomPlayer, "max_power": MaxBasePowerPlayer, "heuristics": SimpleHeuristicsPlayer}
END = 2
LINEUP = {tuple(map(int, lineup)): index for index, lineup in enumerate(mdbo.PREVIEWS)}


def show_team(battle: DoubleBattle, split: list[str]) -> None:
    """An open team sheet, as poke-env's Player reads it (it does so outside the battle object)."""
    role, sheet = split[2], Teambuilder.parse_packed_team("|".join(split[3:]))
    preview = battle.teampreview_team if role == battle.player_role else battle.teampreview_opponent_team
    for mon in preview:
        known = [entry for entry in sheet if entry.nickname is not None and mon.identifies_as(entry.nickname)]
        if known:
            seat = battle.get_pokemon(f"{role}: {known[0].nickname}", details=mon._last_details)
            seat._update_from_teambuilder(known[0])


def feed(battle: DoubleBattle, lines: list[str]) -> None:
    """Gives a battle the protocol lines of its player, as poke-env's Player does between two requests."""
    for line in lines:
        split = line.split("|")
        if len(split) < 2 or split[1] in Player.MESSAGES_TO_IGNORE:
            continue
        if split[1] == "request":
            battle.parse_request(json.loads("|".join(split[2:])))
        elif split[1] == "showteam":
            show_team(battle, split)
        elif split[1] == "win":
            battle.won_by(split[2])
        elif split[1] == "tie":
            battle.tied()
        else:
            battle.parse_message(split)


def preview_action(message: str, team_size: int) -> int:
    """ "/team 3461" (1-based, leads first) as a preview action; a team of fewer is completed in order."""
    order = [int(digit) - 1 for digit in message.removeprefix("/team ").replace(",", "") if digit.isdigit()]
    order = [position for position in order if position < team_size]
    order += [position for position in range(team_size) if position not in order]
    return LINEUP[(*sorted(order[:2]), *sorted(order[2:4]))]


class Baselines:
    """The scripted players of one VGCVecEnv; `answer` takes what sim.js says about a seat and returns an action or
    None."""

    def __init__(self, battle_format: str, seed: int):
        self.seed, self.gen = seed, GenData.from_format(battle_format).gen
        self.players = {
            name: player(battle_format=battle_format, start_listening=False, log_level=50)
            for name, player in PLAYERS.items()
        }
        self.battles: dict[tuple[int, int], tuple[int, DoubleBattle]] = {}
        self.corrected = 0  # orders that the request did not allow
        self.was_random = False  # whether the last answer was one of those

    def answer(self, text: dict, name: str) -> int | None:
        seat, player = (text["battle"], text["side"]), self.players[name]
        episode, battle = self.battles.get(seat, (-1, None))
        if episode != text["episode"]:
            tag = f"battle-{text['battle']}-{text['episode']}"
            battle = DoubleBattle(tag, f"p{text['side'] + 1}", player.logger, gen=self.gen)
            self.battles[seat] = (text["episode"], battle)
        feed(battle, text["lines"])
        if text["kind"] == END:
            del self.battles[seat]
            return None
        request, self.was_random = battle.last_request, False
        # poke-env rolls the global dice: seeded from the decision's place, so that timing and num_sims change nothing.
        place = f"{self.seed} {seat} {text['episode']} {battle.turn} {json.dumps(request)}"
        before = random.getstate()
        random.seed(zlib.crc32(place.encode()))
        try:
            if request.get("teamPreview"):
                return preview_action(player.teampreview(battle), len(request["side"]["pokemon"]))
            action = mdbo.from_order(player.choose_move(battle), battle)
            legal = mdbo.mask(request)
            if action == mdbo.DEFAULT or not legal[action]:
                self.corrected, self.was_random = self.corrected + 1, True
                action = int(random.choice(np.flatnonzero(legal)))
            return action
        finally:
            random.setstate(before)
