"""VGCPlayer: any policy as a poke-env Player, on a real Showdown server.

    server ──> websocket ──> poke-env ──> lines, requests ──> Views (Node) ──> frame ──> policy ──> "/choose move 2 1,
    switch 3"

    player = VGCPlayer(policy, battle_format="gen9vgc2024regg", team=packed)
    await player.battle_against(RandomPlayer(battle_format="gen9vgc2024regg", team=packed), n_battles=20)

poke-env speaks with the server; what the policy sees comes from the view that VGCVecEnv uses, bit by bit the same.
`policy(ints, floats, mask, kind, state) -> action, state` gets the columns of VGCVecEnv, the legal actions as (2025,)
bool, kind PREVIEW or TURN, and the state it returned at its last decision of this battle (None at the first): an LSTM's
memory, or nothing. A policy with `needs_protocol` also gets `told`, a `Told`: what it was sent since its last decision;
`forget(battle)` tells it that a battle is over.
Choices go out by index with the request's id, so a late answer never counts for another turn."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from poke_env.battle import DoubleBattle
from poke_env.player import Player
from poke_env.player.battle_order import BattleOrder, ForfeitBattleOrder

from cleanrl_games.envs.vgc import mdbo
from cleanrl_games.envs.vgc.vec_env import PREVIEW, TURN
from cleanrl_games.envs.vgc.views import Views, mask_of

RETRIES = 4  # answers to one and the same request before the server's own default is asked for


class Choice(BattleOrder):
    def __init__(self, text: str, request_id: int | None):
        self.text = f"/choose {text}" + (f"|{request_id}" if request_id is not None else "")

    @property
    def message(self) -> str:
        return self.text


@dataclass
class Told:
    """What one seat was sent since its last decision, requests as |request|JSON."""

    battle: str
    role: str
    lines: list[str]
    retry: bool


@dataclass
class Seat:
    """What the player keeps of one battle."""

    # what the server said since the last decision, as `Views.follow` takes it
    unheard: list[dict] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    state: object = None
    request: dict | None = None
    tries: int = 0
    told: list[dict] = field(default_factory=list)  # entries behind the newest frame


class VGCPlayer(Player):
    """Plays `policy` on a server; `save_logs` names a folder for each battle's log and page."""

    def __init__(
        self,
        policy: Callable,
        *,
        battle_format: str = "gen9vgc2024regg",
        open_team_sheets: bool = True,
        save_logs: str | Path | None = None,
        **player_arguments,
    ):
        self.policy = policy
        self.save_logs = Path(save_logs) if save_logs is not None else None
        self.seats: dict[str, Seat] = {}
        self.views = Views()
        self.failure: Exception | None = None
        super().__init__(battle_format=battle_format, accept_open_team_sheet=open_team_sheets, **player_arguments)

    # ------------------------------------------------------------------------------------------- what is heard

    async def _handle_battle_message(self, split_messages: list[list[str]]):
        tag = split_messages[0][0][1:]
        if tag.startswith("battle") and split_messages[1][1:2] == ["init"]:
            self.seats[tag] = Seat()
        if tag in self.seats:  # a battle that is over still says goodbye
            seat = self.seats[tag]
            for message in split_messages[1:]:
                self.hear(seat, message)
        await super()._handle_battle_message(split_messages)

    def hear(self, seat: Seat, message: list[str]) -> None:
        line = "|".join(message)
        if message[1:2] != ["request"]:
            seat.unheard.append({"line": line})
            if self.save_logs is not None:
                seat.log.append(line)
        elif message[2]:
            request = json.loads("|".join(message[2:]))
            seat.unheard.append({"request": request})
            seat.tries = 0 if request != seat.request else seat.tries
            seat.request = request

    def observe(self, battle: DoubleBattle) -> np.ndarray:
        """The frame of this moment, as VGCVecEnv would give it. A request speaks of what its lines have told: it comes
        after them."""
        seat = self.seats[battle.battle_tag]
        entries, seat.unheard = seat.unheard, []
        if "request" not in (entries or [{}])[-1]:
            entries.append({"request": seat.request})
        seat.told = entries
        return self.views.follow(battle.battle_tag, battle.player_role, [*entries, {"observe": True}])[0]

    # ------------------------------------------------------------------------------------------- what is decided

    def decide(self, battle: DoubleBattle) -> BattleOrder:
        """The policy's order. If it fails the battle is given up, and the failure is raised where the battles were
        asked for."""
        try:
            seat = self.seats[battle.battle_tag]
            request = seat.request
            seat.tries += 1
            if seat.tries > RETRIES:
                self.logger.warning("%s: %d answers refused, leaving it to the server", battle.battle_tag, RETRIES)
                return Choice("default", request.get("rqid"))
            kind = PREVIEW if request.get("teamPreview") else TURN
            frame = self.observe(battle)
            legal = mask_of(frame, kind == PREVIEW)
            seen = (frame["ints"], frame["floats"], legal, kind, seat.state)
            if getattr(self.policy, "needs_protocol", False):
                lines = [
                    entry["line"] if "line" in entry else f"|request|{json.dumps(entry['request'])}"
                    for entry in seat.told
                ]
                told = Told(battle.battle_tag, battle.player_role, lines, retry=seat.tries > 1)
                action, seat.state = self.policy(*seen, told=told)
            else:
                action, seat.state = self.policy(*seen)
            if not legal[action]:
                raise ValueError(
                    f"The policy chose action {action} in {battle.battle_tag}, turn {battle.turn}, where the mask "
                    f"forbids it; "
                    "sample among the actions whose mask is True."
                )
            return Choice(mdbo.choice(int(action), request), request.get("rqid"))
        except Exception as error:
            self.failure = error
            self.logger.exception("%s is given up", battle.battle_tag)
            return ForfeitBattleOrder()

    def choose_move(self, battle: DoubleBattle) -> BattleOrder:
        return self.decide(battle)

    def teampreview(self, battle: DoubleBattle) -> str:
        return self.decide(battle).message

    def _battle_finished_callback(self, battle: DoubleBattle):
        seat = self.seats.pop(battle.battle_tag)
        self.views.follow(battle.battle_tag, battle.player_role, [], close=True)
        if getattr(self.policy, "needs_protocol", False):
            self.policy.forget(battle.battle_tag)
        if self.save_logs is not None:
            from cleanrl_games.envs.vgc.replay import write_replay

            write_replay("\n".join(seat.log), self.save_logs / battle.battle_tag)

    # ------------------------------------------------------------------------------------------- ways to play

    def raise_failure(self):
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise RuntimeError("A battle was given up because the policy failed; its error is above.") from failure

    async def battle_against(self, *opponents: Player, n_battles: int = 1):
        await super().battle_against(*opponents, n_battles=n_battles)
        self.raise_failure()

    async def ladder(self, n_games: int):
        await super().ladder(n_games)
        self.raise_failure()

    async def accept_challenges(self, opponent, n_challenges: int, packed_team: str | None = None):
        await super().accept_challenges(opponent, n_challenges, packed_team)
        self.raise_failure()

    async def send_challenges(self, *arguments, **keywords):
        await super().send_challenges(*arguments, **keywords)
        self.raise_failure()
