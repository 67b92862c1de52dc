"""Plays a VGC model on a Showdown server: accepts challenges, sends them, or climbs the ladder. Every battle's replay
is kept.

    python cleanrl_games/tools/play_showdown.py runs/<run> --server ws://127.0.0.1:8000 --accept --battles 10

    server ◄── websocket ──► VGCPlayer (envs/vgc/player.py) ──► observation, mask ──► the model's network ──► choice
                                └──► --replays: a .log and an .html for each battle

A local server: `python -m cleanrl_games.envs.vgc servers`. A public one needs an account (--username, and its password
in the environment variable SHOWDOWN_PASSWORD) and its rules allow bots or not: ask first.
"""

import asyncio
import dataclasses
import json
import os
import random
import sys
import time
import urllib.request
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode, urlsplit

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import tyro
import websockets
from poke_env import AccountConfiguration, ServerConfiguration
from poke_env.teambuilder import Teambuilder

from cleanrl_games.envs.vgc import PREVIEW, TeamPool, VGCPlayer, require_format
from cleanrl_games.envs.vgc.search import Asked, Search, choose, parse_search
from cleanrl_games.envs.vgc.teams import TeamError
from cleanrl_games.runtime.errors import BadInput, RunFailed, first_line
from cleanrl_games.runtime.settings import Positive, Size, parse_flags
from cleanrl_games.tools import models

AUTHENTICATION = "https://play.pokemonshowdown.com/action.php?"  # only ever asked when there is a password
LOGIN_SECONDS = 60.0
SEARCH_SECONDS = 5.0  # for one decision; a server's timer gives some ten times that


class PlayError(BadInput):
    """Battles cannot be played. The message is a sentence for the user."""


@dataclasses.dataclass
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """a model.zip or run folder of a VGC script"""
    server: str = "ws://127.0.0.1:8000"
    """address of the server's websocket; /showdown/websocket is added when it has no path"""
    accept: bool = False
    """accept challenges, from anybody"""
    challenge: str = ""
    """challenge this player"""
    wait_seconds: Positive = 300.0
    """a challenge that nobody has taken up after so many seconds is given up"""
    ladder: bool = False
    """play on the ladder"""
    battles: Size = 1
    """battles to play"""
    battle_format: str = ""
    """the VGC format, empty = the one the model was trained in"""
    teams: str = "shipped"
    """teams to play with, drawn anew for each battle: shipped (the training ones), or a folder of PokePaste files"""
    open_team_sheets: bool = True
    """agree to open team sheets where the format asks"""
    username: str = ""
    """name on the server, empty = made from the model's; the password of a registered one is read from
    SHOWDOWN_PASSWORD"""
    replays: str = "replays"
    """folder for the replays"""
    deterministic: bool = True
    """play the likeliest action instead of sampling"""
    search: str = ""
    """look one turn ahead, e.g. "worlds=4 actions=8"; `seconds` is 5 if it is not named (docs/search.md)"""
    seed: int = 1
    """seed of teams and dice"""
    trust_source: bool = False
    """rebuild a model with the script.py beside it when no script here has its hash; this runs that file's code"""


class Policy:
    """The model as `policy(ints, floats, mask, kind, state) -> action, state` of VGCPlayer; the state is the LSTM's
    memory."""

    def __init__(self, agent, deterministic, seed):
        self.agent, self.deterministic = agent, deterministic
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def __call__(self, ints, floats, mask, kind, state):
        is_preview, joint_mask = torch.tensor([kind == PREVIEW]), torch.from_numpy(mask)[None]
        if state is None or kind == PREVIEW:
            state = self.agent.initial_state(1)
        hidden, candidates, state = self.agent.step(torch.as_tensor(ints)[None], torch.as_tensor(floats)[None], state)
        if self.deterministic:
            action = self.agent.joint_logprobs(hidden, candidates, is_preview, joint_mask).argmax(1)
        else:
            action = self.agent.act(hidden, candidates, is_preview, joint_mask, self.generator)[0]
        return int(action), state


class SearchingPolicy(Policy):
    """The same, looking one turn ahead."""

    needs_protocol = True

    def __init__(self, agent, deterministic, seed, settings, battle_format):
        super().__init__(agent, deterministic, seed)
        self.search = Search(agent, settings, battle_format, seed)
        self.rng = np.random.default_rng(seed)

    @torch.no_grad()
    def __call__(self, ints, floats, mask, kind, state, told):
        is_preview, legal = torch.tensor([kind == PREVIEW]), torch.from_numpy(mask)[None]
        if state is None or kind == PREVIEW:
            state = self.agent.initial_state(1)
        hidden, candidates, state = self.agent.step(torch.as_tensor(ints)[None], torch.as_tensor(floats)[None], state)
        logprobs = self.agent.joint_logprobs(hidden, candidates, is_preview, legal)[0]
        asked = Asked.of(
            logprobs,
            mask,
            key=told.battle,
            role=told.role,
            lines=told.lines,
            fresh=kind == PREVIEW,
            retry=told.retry,
            memory=state[0],
        )
        (mixture,) = self.search.run([asked])
        return choose(asked.policy if mixture is None else mixture, self.deterministic, self.rng), state

    def forget(self, battle):
        self.search.forget([battle])


class DrawnTeams(Teambuilder):
    def __init__(self, pool, seed):
        self.pool, self.rng = pool, random.Random(seed)

    def yield_team(self):
        return self.pool.sample(self.rng).packed


def websocket_address(server):
    parts = urlsplit(server)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise PlayError(
            f"--server {server} is no websocket address: it should look like ws://127.0.0.1:8000 or "
            f"wss://host/showdown/websocket."
        )
    return server if parts.path.strip("/") else f"{server.rstrip('/')}/showdown/websocket"


async def check_server(address):
    """Says at once that nobody is there; poke-env would wait for ever."""
    try:
        async with websockets.connect(address, open_timeout=LOGIN_SECONDS):
            pass
    except (OSError, TimeoutError, websockets.exceptions.WebSocketException) as error:
        raise PlayError(
            f"No Showdown server answers at {address} ({type(error).__name__}: {error}). Start one with "
            "`python -m cleanrl_games.envs.vgc servers`, or correct --server."
        ) from None


def check_password(name):
    """Asks the login server before poke-env does, which would go on for a minute with tracebacks and no login."""
    if not name:
        raise PlayError("SHOWDOWN_PASSWORD is set, but no --username: say whose password it is.")
    words = {"act": "login", "name": name, "pass": os.environ["SHOWDOWN_PASSWORD"], "challstr": "4|0"}
    try:
        with urllib.request.urlopen(AUTHENTICATION, urlencode(words).encode(), timeout=10.0) as answer:
            logged_in = json.loads(answer.read()[1:])["actionsuccess"]
    except OSError as error:
        without = "Without SHOWDOWN_PASSWORD it is not asked."
        raise PlayError(f"The login server {AUTHENTICATION} does not answer ({first_line(error)}). {without}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise PlayError(
            f"The login server {AUTHENTICATION} sent something that is no answer ({first_line(error)})."
        ) from None
    if not logged_in:
        raise PlayError(f"The password in SHOWDOWN_PASSWORD is not that of {name!r}.")


async def log_in(player):
    client = player.ps_client
    deadline = time.monotonic() + LOGIN_SECONDS
    while not client.logged_in.is_set():
        if time.monotonic() > deadline or client._listening_coroutine.done():
            raise PlayError(
                f"{client.websocket_url} did not let {player.username!r} in: the name may be taken or registered. "
                "Choose another --username, or set SHOWDOWN_PASSWORD."
            )
        await asyncio.sleep(0.05)


async def play(player, args):
    """The battles that were asked for, or a PlayError when the server goes away in mid-battle: poke-env would wait for
    ever."""
    client = player.ps_client
    if args.challenge:
        battles = player.send_challenges(args.challenge, args.battles)
    elif args.ladder:
        battles = player.ladder(args.battles)
    else:
        battles = player.accept_challenges(None, args.battles)
    task = asyncio.ensure_future(battles)
    alone_since = time.monotonic()
    while not task.done():
        await asyncio.wait({task}, timeout=0.5)
        if any(not battle.finished for battle in player.battles.values()):
            alone_since = time.monotonic()
        if args.challenge and time.monotonic() - alone_since > args.wait_seconds:
            task.cancel()
            raise RunFailed(
                f"{args.challenge} has not taken up the challenge within {args.wait_seconds:g} seconds "
                f"(--wait-seconds): "
                f"{player.n_finished_battles} of {args.battles} battles were played."
            )
        if client._listening_coroutine.done() and not task.done():
            task.cancel()
            raise RunFailed(
                f"The connection to {client.websocket_url} was lost after {player.n_finished_battles} of "
                f"{args.battles} battles; "
                f"replays of those are in {args.replays}."
            )
    await task


def make_player(args):
    if sum([args.accept, bool(args.challenge), args.ladder]) != 1:
        raise PlayError("Say how to find opponents, one of: --accept, --challenge NAME, --ladder.")
    settings = parse_search(args.search, SEARCH_SECONDS)
    if args.battle_format:
        require_format(args.battle_format)
    address = websocket_address(args.server)
    asyncio.run(check_server(address))
    if os.environ.get("SHOWDOWN_PASSWORD"):
        check_password(args.username)
    model = models.load(args.model, "vgc", args.trust_source)
    battle_format = args.battle_format or model.metadata["battle_format"]
    pool = TeamPool(args.teams, battle_format)
    torch.set_num_threads(1)
    name = args.username or f"cg {model.name}"[:18]
    policy = (
        SearchingPolicy(model.agent, args.deterministic, args.seed, settings, pool.battle_format)
        if settings
        else Policy(model.agent, args.deterministic, args.seed)
    )
    return VGCPlayer(
        policy,
        battle_format=pool.battle_format,
        open_team_sheets=args.open_team_sheets,
        save_logs=args.replays,
        team=DrawnTeams(pool, args.seed),
        account_configuration=AccountConfiguration(name, os.environ.get("SHOWDOWN_PASSWORD") or None),
        server_configuration=ServerConfiguration(address, AUTHENTICATION),
        log_level=40,
        open_timeout=LOGIN_SECONDS,
    )


async def run(player, args):
    what = (
        f"challenges {args.challenge} and waits up to {args.wait_seconds:g} s"
        if args.challenge
        else "plays the ladder"
        if args.ladder
        else "waits for challenges"
    )
    try:
        await log_in(player)
        print(f"{player.username} {what} at {player.ps_client.websocket_url}, {player.format}", flush=True)
        await play(player, args)
    finally:
        if not player.ps_client._listening_coroutine.done():
            await player.ps_client.stop_listening()
    print(
        f"{player.n_won_battles} won, {player.n_lost_battles} lost, {player.n_tied_battles} tied; replays in "
        f"{args.replays}",
        flush=True,
    )
    if args.search:
        print(player.policy.search.report(), flush=True)


def main(argv=None):
    args = parse_flags(Args, __doc__, argv)
    try:
        asyncio.run(run(make_player(args), args))
    except (BadInput, TeamError) as error:
        print(error, file=sys.stderr)
        return 2
    except (RunFailed, RuntimeError) as error:  # the server went away, or the policy failed in mid-battle
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; battles under way are left to the server's timer.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # poke-env's own way out waits for tasks of a connection that may be gone
