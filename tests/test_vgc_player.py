"""VGCPlayer on real local servers: battles without an error, the same observation as in Node, servers that come and go
cleanly."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from poke_env import AccountConfiguration, ServerConfiguration
from poke_env.player import MaxBasePowerPlayer, RandomPlayer, SimpleHeuristicsPlayer

from cleanrl_games.envs.vgc import TeamPool, VGCPlayer, replay_check, servers
from cleanrl_games.envs.vgc.match import play_battles
from cleanrl_games.envs.vgc.parity import frame, trace
from cleanrl_games.envs.vgc.servers import HOST, ServerError, local_servers, start_servers
from cleanrl_games.envs.vgc.teams import export_teams
from cleanrl_games.envs.vgc.views import ViewError
from cleanrl_games.envs.vgc.vocabulary import LAYOUT
from cleanrl_games.tools import evaluate

FORMAT = "gen9vgc2024regg"
ROOT = Path(__file__).resolve().parents[1]


def free_port(count: int = 1) -> int:
    """First of `count` neighbouring ports that nobody uses."""
    for first in range(18000 + os.getpid() % 1000 * 10, 60000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind((HOST, port))
            return first
        except OSError:
            continue
    raise RuntimeError("no free port")


@pytest.fixture(scope="module")
def server():
    """One that also notes each battle's seed, teams and choices"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            servers,
            "server_config",
            lambda port, plain=servers.server_config: f"{plain(port)}exports.logchallenges = true;\n",
        )
        with local_servers(1, free_port()) as (address,):
            yield ServerConfiguration(address, f"http://{HOST}:1/")


@pytest.fixture(scope="module")
def teams():
    return TeamPool("shipped", FORMAT, split="all").packed


class RandomPolicy:
    """Legal random actions; the state counts a battle's decisions, so a mixed-up state shows."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.kinds = []

    def __call__(self, ints, floats, mask, kind, state):
        assert (kind == 0) == (state is None), "team preview is the first decision of a battle, and only that"
        self.kinds.append(kind)
        return self.rng.choice(np.flatnonzero(mask)), (state or 0) + 1


def players(server, teams, policy, opponent, name, open_team_sheets=True, **options):
    common = {"battle_format": FORMAT, "server_configuration": server, "max_concurrent_battles": 4, "log_level": 30}
    ours = VGCPlayer(
        policy,
        team=teams[0],
        account_configuration=AccountConfiguration(f"ours {name}", None),
        open_team_sheets=open_team_sheets,
        **common,
        **options,
    )
    theirs = opponent(
        team=teams[1],
        account_configuration=AccountConfiguration(f"theirs {name}", None),
        accept_open_team_sheet=open_team_sheets,
        **common,
    )
    return ours, theirs


async def play(ours, theirs, battles, seconds=300):
    try:
        await asyncio.wait_for(ours.battle_against(theirs, n_battles=battles), seconds)
    finally:
        for player in (ours, theirs):
            await player.ps_client.stop_listening()


def test_twenty_battles_against_poke_envs_players(server, teams, tmp_path, caplog):
    """20 battles, a third of them with closed sheets, against the three stock players; nothing may be logged as an
    error."""
    total = 0
    for number, (opponent, battles, sheets) in enumerate(
        [(RandomPlayer, 7, True), (MaxBasePowerPlayer, 7, False), (SimpleHeuristicsPlayer, 6, True)]
    ):
        policy = RandomPolicy(number)
        ours, theirs = players(server, teams[2 * number :], policy, opponent, f"{number}", sheets, save_logs=tmp_path)
        # Messages of level 25 and above name refused choices; ours must never be refused as invalid.
        asyncio.run(play(ours, theirs, battles))
        assert (
            ours.n_finished_battles == battles
            and ours.n_won_battles + ours.n_lost_battles + ours.n_tied_battles == battles
        )
        assert policy.kinds.count(0) == battles and policy.kinds.count(1) >= 2 * battles
        assert ours.failure is None and not ours.seats, "a finished battle leaves nothing behind"
        total += battles
    assert total == 20
    assert len(list(tmp_path.glob("*.log"))) == 20 and len(list(tmp_path.glob("*.html"))) == 20
    errors = [r for r in caplog.records if r.levelno >= 40 and "ours" in r.name and "close frame" not in r.getMessage()]
    assert not errors, errors


@pytest.mark.parametrize("open_team_sheets", [True, False])
def test_a_servers_battle_looks_as_it_would_in_the_environment(server, teams, open_team_sheets):
    """The server notes seed, teams and choices; the same battle, played again without a server, gives the same frames
    bit by bit."""
    seen = {}

    class Recorder(VGCPlayer):
        def observe(self, battle):
            frame = super().observe(battle)
            frames = seen.setdefault(battle.battle_tag, [])
            if self.seats[battle.battle_tag].tries > 1:
                frames.pop()  # the same step, asked again: the server notes only the choice that it took
            frames.append((frame["ints"].astype(np.int32).tobytes(), frame["floats"].tobytes()))
            return frame

    policy = RandomPolicy(7)
    name = f"sees {open_team_sheets}"
    _, theirs = players(server, teams[4:], policy, RandomPlayer, name, open_team_sheets)
    account = AccountConfiguration(f"rec {open_team_sheets}", None)
    options = {
        "battle_format": FORMAT,
        "team": teams[4],
        "server_configuration": server,
        "account_configuration": account,
    }
    ours = Recorder(policy, open_team_sheets=open_team_sheets, **options)
    asyncio.run(play(ours, theirs, 3))
    compared = 0
    column = LAYOUT["field"].float_index(0, "open_sheets")
    for tag, frames in seen.items():
        (again,) = trace({"inputLog": noted(tag)["inputLog"], "openTeamSheets": open_team_sheets})
        side = int(ours.battles[tag].player_role[1]) - 1
        expected = [frame(entry) for entry in again["sides"][side] if "ints" in entry]
        same = [(ints.tobytes(), floats.tobytes()) == ours for (ints, floats), ours in zip(expected, frames)]
        assert len(expected) >= len(frames) and all(same), same
        assert all(floats[column] == open_team_sheets for _, floats in expected)
        compared += len(frames)
    assert len(seen) == 3 and compared > 20


def noted(tag: str) -> dict:
    """What the server wrote about a battle that has ended"""
    deadline = time.monotonic() + 30
    while not (
        found := list(Path(tempfile.gettempdir()).glob(f"showdown-*/logs/*/*/*/{tag.removeprefix('battle-')}.log.json"))
    ):
        assert time.monotonic() < deadline, f"the server did not write down {tag}"
        time.sleep(0.1)
    newest = max(found, key=lambda path: path.stat().st_mtime)
    return json.loads(newest.read_text(encoding="utf-8"))


def test_poke_env_forgets_the_own_stats_when_the_own_sheet_is_opened(server, teams):
    """Why own stats are read from the request: with open sheets poke-env puts those of a Pokémon without EVs in their
    place."""
    stats = []

    class Watcher(VGCPlayer):
        def observe(self, battle):
            frame = super().observe(battle)
            for row, entry in enumerate(battle.last_request["side"]["pokemon"]):
                own = frame["floats"][LAYOUT["own"].float_index(row, "stat_spe")]
                stats.append((entry["stats"]["spe"], battle.team[entry["ident"]].stats["spe"], round(float(own) * 250)))
            return frame

    policy = RandomPolicy(5)
    _, theirs = players(server, teams[4:], policy, RandomPlayer, "stats")
    account = AccountConfiguration("watcher", None)
    options = {
        "battle_format": FORMAT,
        "team": teams[0],
        "server_configuration": server,
        "account_configuration": account,
    }
    asyncio.run(play(Watcher(policy, **options), theirs, 1))
    assert all(ours == told for told, _, ours in stats)
    assert any(poke_env != told for told, poke_env, _ in stats[:6]), "team preview comes right after the sheets"


@pytest.mark.parametrize("battle_format", ["gen9vgc2024regh", "gen9championsvgc2026regma"])
def test_a_server_knows_every_regulation(server, battle_format, tmp_path):
    """Also those that Showdown does not list; their logs can be learned from."""
    teams = TeamPool("generated", battle_format, size=4, seed=2).packed
    common = {"battle_format": battle_format, "server_configuration": server, "log_level": 30}
    accounts = [AccountConfiguration(f"{name} {battle_format[-4:]}", None) for name in ("ours", "theirs")]
    ours = VGCPlayer(RandomPolicy(3), team=teams[0], account_configuration=accounts[0], save_logs=tmp_path, **common)
    theirs = RandomPlayer(team=teams[1], account_configuration=accounts[1], accept_open_team_sheet=True, **common)
    asyncio.run(play(ours, theirs, 2))
    assert ours.n_finished_battles == 2
    score = replay_check.check(tmp_path, battle_format)
    assert (score.read, score.files) == (4, 4), score.left_out  # a log and a page of each
    assert score.known > 0


def test_a_view_that_dies_is_named(server, teams):
    ours, theirs = players(server, teams, RandomPolicy(1), RandomPlayer, "dies")
    ours.views.process.kill()
    with pytest.raises(RuntimeError) as caught:
        asyncio.run(play(ours, theirs, 1))
    assert isinstance(caught.value.__cause__, ViewError) and "exit code -9" in str(caught.value.__cause__)


def test_a_failing_policy_gives_up_and_says_so(server, teams):
    def policy(ints, floats, mask, kind, state):
        if kind:
            raise ZeroDivisionError("the network is broken")
        return np.flatnonzero(mask)[0], None

    ours, theirs = players(server, teams, policy, RandomPlayer, "fails")
    with pytest.raises(RuntimeError, match="policy failed") as caught:
        asyncio.run(play(ours, theirs, 1))
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and ours.n_lost_battles == 1


def test_a_forbidden_action_is_named(server, teams):
    ours, theirs = players(
        server, teams, lambda i, f, mask, k, s: (int(np.argmin(mask)), None), RandomPlayer, "forbids"
    )
    with pytest.raises(RuntimeError) as caught:
        asyncio.run(play(ours, theirs, 1))
    assert "where the mask forbids it" in str(caught.value.__cause__)


# ------------------------------------------------------------------------------------------------- servers


def group_members(group: int) -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and process_group(p.name) == group]


def process_group(pid: str) -> int | None:
    try:
        return os.getpgid(int(pid))
    except ProcessLookupError:
        return None


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_the_command_starts_servers_and_leaves_nothing_behind(sign, tmp_path):
    port = free_port(2)
    command = [
        sys.executable,
        "-m",
        "cleanrl_games.envs.vgc",
        "servers",
        "--num-servers",
        "2",
        "--first-port",
        str(port),
    ]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[:2] == [f"ready ws://{HOST}:{port + i}/showdown/websocket\n" for i in range(2)]
        groups = {
            process_group(pid.name)
            for pid in Path("/proc").iterdir()
            if pid.name.isdigit() and parent(pid) == process.pid
        }
        assert len(groups) == 2 and all(len(group_members(group)) >= 2 for group in groups)
        assert len(list(tmp_path.glob("showdown-*"))) == 2, "each server works in a folder of its own"
        process.send_signal(sign)
        assert process.wait(30) == 0
        assert "stopped 2 servers" in process.stdout.read()
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    while any(group_members(group) for group in groups) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(group_members(group) for group in groups)
    assert not list(tmp_path.glob("showdown-*"))


def parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def test_servers_listen_on_loopback_only(server):
    port = int(server.websocket_url.split(":")[2].split("/")[0])
    table = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    listening = {row[1].split(":")[0] for row in table if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}
    assert listening == {"0100007F"}


def test_a_taken_port_is_named_and_nothing_stays(tmp_path, monkeypatch):
    port = free_port(2)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.socket() as other:
        other.bind((HOST, port + 1))
        other.listen()
        with pytest.raises(ServerError, match=f"Port {port + 1} on {HOST} cannot be used"):
            start_servers(2, port)
    assert not list(tmp_path.iterdir())


def test_a_server_that_dies_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "cleanrl_games.envs.vgc.servers.server_config", lambda port: "throw new Error('a bad config');\n"
    )
    with pytest.raises(ServerError, match="has stopped") as caught:
        start_servers(1, free_port())
    assert "a bad config" in str(caught.value)


# ------------------------------------------------------------------------------------------------- my team in evaluate


class Recorder:
    """Takes the first legal action, and notes where it sat and what its six Pokémon were."""

    def __init__(self):
        self.sides, self.species = set(), set()

    def act(self, batch, rows):
        self.sides |= set(batch.side[rows].tolist())
        places = [LAYOUT["own"].int_index(row, "species") for row in range(6)]
        self.species |= set(batch.ints[rows][:, places].ravel().tolist()) - {0}  # 0: stayed at home
        return batch.mask[rows].argmax(1)


def test_my_team_plays_against_the_field(tmp_path):
    """The judged player has --team in every battle, and the others those of --teams."""
    mine, theirs = TeamPool("shipped", "gen9vgc2024regg", split="eval").packed[:2]
    (tmp_path / "mine.txt").write_text(export_teams([mine])[0], encoding="utf-8")
    (tmp_path / "field").mkdir()
    (tmp_path / "field" / "theirs.txt").write_text(export_teams([theirs])[0], encoding="utf-8")
    args = evaluate.Args((), team=str(tmp_path / "mine.txt"), teams=str(tmp_path / "field"))
    judged, other = Recorder(), Recorder()
    teams = evaluate.vgc_teams(args, "gen9vgc2024regg")
    scores, _ = play_battles(judged, other, 3, "gen9vgc2024regg", teams, turn_cap=3)
    assert len(scores) == 3 and judged.sides == {0} and other.sides == {1}
    assert len(judged.species) == len(other.species) == 6 and judged.species != other.species
