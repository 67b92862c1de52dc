"""The page that shows games: what it draws, what it says about the policies, who may talk to it, and what a person can
play.

What needs a browser runs in apt's chromium, headless; where that is absent the tests say so. Models here are untrained
networks."""

import asyncio
import contextlib
import http.client
import importlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from browser import Browser, find_chromium
from PIL import Image
from websockets.sync.client import connect

from cleanrl_games.envs.osrs import watch as osrs_watch
from cleanrl_games.envs.pokemon import watch as pokemon_watch
from cleanrl_games.envs.pokemon.episodes import read_episode
from cleanrl_games.envs.rocketleague import watch as rocketleague_watch
from cleanrl_games.envs.vgc import watch as vgc_watch
from cleanrl_games.tools import arena, evaluate, watch, watch_pages, watch_server

ROOT = Path(__file__).resolve().parents[1]
GAMES = ("osrs", "rocketleague", "pokemon", "vgc")
SCRIPTS = {
    "osrs": "ppo_osrs_selfplay",
    "rocketleague": "recurrent_ppo_rocketleague",
    "pokemon": "bc_pokemon_impala",
    "vgc": "ppo_vgc_mdbo",
}
SMALL = {
    "osrs": {"hidden_size": 32, "head_size": 16},
    "rocketleague": {"rnn_size": 32},
    "pokemon": {"hidden_dim": 16, "max_steps": 40},
    "vgc": {"width": 16, "embedding_width": 16, "lstm_size": 16},
}
needs_chromium = pytest.mark.skipif(
    find_chromium() is None, reason="chromium is not installed: apt-get install chromium"
)


def save_untrained(game, path, seed=1):
    torch.manual_seed(seed)
    script = importlib.import_module(f"cleanrl_games.{SCRIPTS[game]}")
    args = script.Args(**SMALL[game])
    agent = script.make_agent(vars(args))
    path.parent.mkdir(parents=True, exist_ok=True)
    if game == "pokemon":
        script.save_model(path, agent.state_dict(), args)
    elif game == "rocketleague":
        script.save_model(path, agent, args, 0)
    else:
        script.save_model(path, agent, args)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with one run of each game, by the game's name"""
    folder = tmp_path_factory.mktemp("runs")
    for game in GAMES:
        save_untrained(game, folder / game / "model.zip")
    rows = [
        {"global_step": 100 * i, "charts/SPS": 50.0 + i, "eval/nh": i / 40, "eval/nh_n": 20, "stats/queue_size": 1}
        for i in range(20)
    ]
    (folder / "osrs" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def table_of(runs, game, *flags):
    import tyro

    args = tyro.cli(watch.Args, args=[str(runs / game), *flags])
    return watch.Table(args, *watch.find_seats(args))


@contextlib.contextmanager
def page(*flags):
    """The tool as a process → (its address, the process)"""
    command = [sys.executable, "-u", str(ROOT / "cleanrl_games/tools/watch.py"), *map(str, flags), "--no-browser"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = None
        while address is None:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            address = found and found[0]
        yield address, process
    finally:
        process.terminate()
        assert process.wait(30) == 0, process.stderr.read()


@contextlib.contextmanager
def talk(address):
    """A page's websocket, from its own origin → (send, receive a message of a type)"""
    with connect(address.replace("http", "ws") + "ws", origin=address[:-1], max_size=None) as socket:

        def receive(kind, seconds=60):
            deadline = time.monotonic() + seconds
            while True:
                message = json.loads(socket.recv(timeout=max(0.01, deadline - time.monotonic())))
                if message["type"] == kind:
                    return message

        yield lambda message: socket.send(message if isinstance(message, str | bytes) else json.dumps(message)), receive


# --------------------------------------------------------------------------------------------------------- in a browser

FINGERPRINT = """(() => { const c = document.getElementById('canvas');
const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
let s = 0; for (let i = 0; i < d.length; i += 97) s = (s * 31 + d[i]) % 1000000007; return s; })()"""


@needs_chromium
@pytest.mark.parametrize("game", GAMES)
def test_a_browser_shows_the_game_and_what_the_policy_thinks(runs, game):
    with page(runs / game, "--speed", "4") as (address, _), Browser() as browser:
        browser.open(address)
        browser.wait("document.body.dataset.frame > 3")
        seen = set()
        for frame in range(5, 12):
            browser.wait(f"document.body.dataset.frame > {frame} || state.score.games > 0")
            seen.add(browser.evaluate(FINGERPRINT))
        assert len(seen) > 3, "the picture stands still"
        assert browser.wait("document.querySelectorAll('#mind-0 .option').length") > 1
        chances = browser.evaluate(
            "[...document.querySelectorAll('#mind-0 .group:first-of-type .option b')].map(b => "
            "parseFloat(b.textContent))"
        )
        assert 0 < sum(chances) < 101
        if game != "pokemon":  # a cloned network has no value
            assert re.fullmatch(
                r"-?\d+\.\d{3}", browser.evaluate("document.querySelector('#mind-0 .value').textContent")
            )
            browser.wait("document.querySelector('#mind-0 svg').dataset.points > 1")
            browser.wait(
                "document.querySelector('#mind-0 svg polyline:last-child').getAttribute('points').split(' ').length > 1"
            )
        if game == "osrs":
            assert browser.evaluate("[...document.querySelectorAll('.chart span')].map(s => s.textContent)") == [
                "eval/nh",
                "charts/SPS",
            ]
        browser.evaluate("document.getElementById('pause').click()")
        browser.wait("state.paused")
        browser.resize(390, 844, mobile=True)
        browser.wait("document.getElementById('canvas').clientWidth < 390")
        assert browser.evaluate("document.scrollingElement.scrollWidth") <= 390, "a phone would have to scroll sideways"
        elsewhere = [
            url for url in browser.requests if not url.startswith(("data:", address, address.replace("http", "ws")))
        ]
        assert not elsewhere and not browser.errors


@needs_chromium
def test_pause_step_speed_next_and_looking_back(runs):
    with page(runs / "osrs", "--speed", "16") as (address, _), Browser() as browser:
        browser.open(address)
        browser.wait("document.body.dataset.frame > 5")
        browser.evaluate("document.getElementById('pause').click()")
        browser.wait("state.paused && document.getElementById('pause').textContent.includes('Go on')")
        frames = browser.evaluate("new Promise(r => setTimeout(() => r(state.frames.length), 300))")
        assert browser.evaluate("new Promise(r => setTimeout(() => r(state.frames.length), 500))") == frames, (
            "a pause goes on"
        )
        browser.evaluate("document.getElementById('step').click()")
        browser.wait(f"state.frames.length === {frames + 1}")
        tick = browser.evaluate("state.frames[state.shown].scene.tick")
        browser.evaluate(
            "{ const s = document.getElementById('slider'); s.value = 2; s.dispatchEvent(new Event('input')); }"
        )
        browser.wait("document.body.dataset.frame === '2'")
        assert browser.evaluate("state.frames[state.shown].scene.tick") < tick
        browser.evaluate("document.getElementById('next').click()")
        browser.evaluate("document.getElementById('pause').click()")
        browser.wait("state.frames.length && state.frames[0].scene.tick === 0 && !state.paused")
        assert browser.evaluate("state.score.games") == 0, "a game that was left does not count"
        assert not browser.errors


CHOOSE = """(() => { const at = id => document.getElementById(id);
if (!state.question) return state.score.games || 0;
const buttons = [...document.querySelectorAll('#person .option-button:not(.chosen)')];
const free = buttons.filter(b => b.style.opacity !== '0.45');
const go = document.querySelector('#person .go');
if (go && !go.disabled) { window.gone = (window.gone || 0) + 1; go.click(); }
else if (state.question.kind === 'preview') free[0].click();
else { const columns = [...document.querySelectorAll('#person .columns > div')];
  const open = columns.findIndex((c, i) => state.plan.slots[i] === null);
  [...columns[open].querySelectorAll('.option-button')].filter(b => b.style.opacity !== '0.45')[0].click(); }
return state.score.games || 0; })()"""


@needs_chromium
def test_a_person_plays_a_vgc_battle_to_its_end(runs):
    with page(runs / "vgc", "--play", "--speed", "0") as (address, _), Browser() as browser:
        browser.open(address)
        browser.wait("state.question && state.question.kind === 'preview'")
        assert (
            len(browser.evaluate("[...document.querySelectorAll('#person .option-button')].map(b => b.textContent)"))
            == 6
        )
        browser.wait(CHOOSE, 240)
        assert browser.evaluate("state.score.games") == 1
        assert browser.evaluate("window.gone") > 3, "the choices were not the person's"
        assert browser.evaluate("state.info.you") == 1 and not browser.errors


@needs_chromium
def test_keys_drive_a_car_and_press_buttons(runs):
    with page(runs / "rocketleague", "--play", "--speed", "4") as (address, _), Browser() as browser:
        browser.open(address)
        browser.wait("state.frames.length > 3 && state.info.you === 1")
        assert "late" in browser.evaluate("document.getElementById('person').textContent"), (
            "the page says how the keys feel"
        )
        start = browser.evaluate("state.frames[0].scene.cars[1].slice(0, 2)")
        browser.evaluate("document.dispatchEvent(new KeyboardEvent('keydown', {code: 'KeyW', bubbles: true}))")
        browser.wait(
            f"(c => Math.hypot(c[0] - {start[0]}, c[1] - {start[1]}) > 300)(state.frames[state.frames.length - "
            f"1].scene.cars[1])"
        )
        assert not browser.errors
    with page(runs / "pokemon", "--play") as (address, _), Browser() as browser:
        browser.open(address)
        browser.wait("state.info && state.question !== null")
        assert browser.evaluate("state.frames.length") == 1, "nobody pressed a button"
        browser.evaluate(
            "document.body.dispatchEvent(new KeyboardEvent('keydown', {code: 'ArrowDown', bubbles: true}))"
        )
        browser.wait("state.frames.length > 3")
        assert browser.evaluate("state.frames[1].scene.pressed") == "DOWN"
        assert not browser.errors


@needs_chromium
def test_a_saved_page_needs_no_server(runs, tmp_path):
    watch.main([str(runs / "osrs"), "--save", str(tmp_path / "game.html")])
    with Browser() as browser:
        browser.open((tmp_path / "game.html").as_uri())
        browser.wait("document.body.dataset.frame > 1")
        first = browser.evaluate(FINGERPRINT)
        browser.wait(f"{FINGERPRINT} !== {first}")
        assert browser.evaluate("document.querySelectorAll('#mind-0 .option').length") > 1
        assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == [] and not browser.errors


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("game", ("osrs", "vgc"))
def test_memory_stays_level_over_two_hundred_games(runs, game):
    against = ["--against", "random"]
    with page(runs / game, "--speed", "0", *against) as (address, process), Browser() as browser:
        browser.open(address)
        heap, memory = {}, {}
        for games in (50, 100, 150, 200):
            browser.wait(f"state.score.games >= {games}", 900)
            heap[games] = browser.heap() / 1e6
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            memory[games] = sum(each.memory_info().rss for each in family) / 1e6
        print(f"{game}: browser's heap {heap} MB, server {memory} MB")
        assert heap[200] < 1.3 * heap[50] + 5
        assert memory[200] < 1.1 * memory[50] + 20


# --------------------------------------------------------------------------------------------- who may talk to the page


def ask(address, path, **headers):
    host = address.split("/")[2]
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
    for name, value in ({"Host": host} | headers).items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())


def test_other_origins_paths_and_bad_messages_are_refused_and_the_page_lives_on(runs):
    with page(runs / "osrs", "--speed", "16") as (address, process):
        status, body, headers = ask(address, "/")
        assert status == 200 and b"canvas" in body and "connect-src 'self'" in headers["Content-Security-Policy"]
        assert ask(address, "/page/page.js")[0] == 200
        for path in (
            "/page/../watch.py",
            "/page/%2e%2e/watch.py",
            "/page/gif.js",
            "/page/package.json",
            "/etc/passwd",
            "//etc/passwd",
            "/page/",
        ):
            assert ask(address, path)[0] == 404, path
        assert ask(address, "/", Host="evil.example")[0] == 403, "another name for this address is DNS rebinding"
        assert ask(address, "/", Origin="http://evil.example")[0] == 403
        assert ask(address, "/", Origin="null")[0] == 403
        for origin in ("http://evil.example", "https://127.0.0.1", None):
            with pytest.raises(Exception, match="403"), connect(address.replace("http", "ws") + "ws", origin=origin):
                pass
        with talk(address) as (send, receive):
            receive("frame")
            bad = [
                "no json", "[]", "{}", '{"type": 3}', '{"type": "shutdown"}', '{"type": "speed", "value": 1e9}',
                '{"type": "speed", "value": true}',
                '{"type": "seat", "person": "yes"}', '{"type": "answer", "answer": {}}',
                '{"type": "team", "text": "x"}',
                '{"type": "record", "on": true}', "[" * 5000, b"\x00\x01",
            ]  # fmt: skip
            for message in bad:
                send(message)
                assert receive("error")["text"], message
            receive("frame")
        with contextlib.suppress(Exception), talk(address) as (send, receive):
            send("x" * 100_000)  # more than a message may have: this page is closed
            receive("never", 5)
        with talk(address) as (_, receive):
            receive("frame")
        assert process.poll() is None
        sockets = [c for c in psutil.Process(process.pid).net_connections() if c.status == psutil.CONN_LISTEN]
        assert {c.laddr.ip for c in sockets} == {"127.0.0.1"}


def test_a_game_that_breaks_off_is_said_and_played_again(runs):
    """The session's own thread, with a game that fails once"""
    told, table = [], table_of(runs, "osrs", "--speed", "0")

    class Broken:
        failed = False

        def open(self, person, team):
            game = table.open(person, team)
            if not Broken.failed:
                Broken.failed = True
                game.step = lambda answer=None: (_ for _ in ()).throw(RuntimeError("the simulator is gone."))
            return game

    session = watch_server.Session(Broken().open, list, told.append, table.info(), speed=0)
    session.set_pages(1)
    session.start()
    try:
        wait_for(lambda: any(message["type"] == "error" for message in told))
        assert "the simulator is gone" in next(message["text"] for message in told if message["type"] == "error")
        session.hear({"type": "next"})
        wait_for(lambda: session.score["games"] > 0)
    finally:
        session.close()
        session.join(30)
    assert not session.is_alive()


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this did not happen in time"
        time.sleep(0.01)


def test_nothing_is_played_without_a_page(runs):
    told, table = [], table_of(runs, "osrs")
    session = watch_server.Session(table.open, list, told.append, table.info(), speed=0)
    session.start()
    wait_for(lambda: told)
    time.sleep(0.3)
    assert [message["type"] for message in told] == ["begin"]
    session.set_pages(1)
    wait_for(lambda: session.score["games"] > 1)
    session.close()
    session.join(30)
    assert len(session.frames) <= 1001, "frames of an earlier game are kept"


# ---------------------------------------------------------------------------------------------------- a run that trains


def test_a_newer_model_is_taken_up_and_a_broken_one_is_not(runs, tmp_path):
    save_untrained("osrs", tmp_path / "run" / "model.zip", seed=1)
    table = table_of(tmp_path, "run")
    seats = table.seats
    before = seats[0].model.agent.head_in.weight.clone()
    assert watch.take_up(seats, False) == []
    save_untrained("osrs", tmp_path / "run" / "model.zip", seed=2)
    os.utime(tmp_path / "run" / "model.zip", ns=(1, 1))
    assert "newest model plays" in watch.take_up(seats, False)[0]
    newer = seats[0].model.agent.head_in.weight
    assert not torch.equal(before, newer)
    (tmp_path / "run" / "model.zip").write_bytes(b"half a zip")
    assert "cannot be taken up" in watch.take_up(seats, False)[0]
    assert seats[0].model.agent.head_in.weight is newer and watch.take_up(seats, False) == []


def test_curves_are_read_on_line_by_line_and_stay_small(tmp_path):
    path = tmp_path / "metrics.jsonl"
    curves = watch_server.Curves(path)
    assert not curves.read() and curves.shown() == {}
    path.write_text('{"global_step": 1, "eval/nh": 0.5, "stats/x": 1}\n{"global_step": 2, "ev')
    assert curves.read() and curves.shown() == {"eval/nh": [[1, 0.5]]}
    with open(path, "a") as file:
        file.write('al/nh": 0.75}\nnot json\n{"global_step": 3, "eval/nh": NaN}\n')
    assert curves.read() and curves.shown()["eval/nh"] == [[1, 0.5], [2, 0.75]]
    assert not curves.read()
    with open(path, "a") as file:
        file.writelines(json.dumps({"global_step": step, "charts/SPS": step}) + "\n" for step in range(3, 5000))
    curves.read()
    points = curves.shown()["charts/SPS"]
    assert len(points) <= watch_server.MAX_POINTS + 1 and points[0][0] == 3 and points[-1][0] == 4999
    gaps = np.diff([step for step, _ in points[:-1]])
    assert gaps.max() == gaps.min(), "an old part of a curve is coarser than a new one"


# ------------------------------------------------------------------------------------------------------- games as files


@pytest.mark.parametrize("game", GAMES)
def test_a_game_is_saved_as_a_page_and_as_a_gif(runs, game, tmp_path, capsys):
    table = table_of(runs, game, "--save", "x.gif")
    info, frames = watch.play_game(table)
    assert "over" in frames[-1] and all("over" not in frame for frame in frames[:-1])
    thoughts = [mind for frame in frames for mind in frame.get("minds") or () if mind]
    assert thoughts and all(
        0 < sum(chance for _, chance, _ in group["options"]) < 1.02 for mind in thoughts for group in mind["groups"]
    )
    watch_pages.write_game(tmp_path / "game.html", info, frames)
    text = (tmp_path / "game.html").read_text()
    assert not re.search(
        r'(src|href)="(?!data:)', re.sub(r"<script.*?</script>", "", text, flags=re.S).replace('href="save.html"', "")
    )
    data = json.loads(re.search(r'id="game">(.*?)</script>', text, re.S)[1])
    assert data["info"]["names"] == info["names"] and len(data["frames"]) == len(frames)
    few = watch.end_of(info, frames, 12 * info["frame_seconds"])
    assert len(few) == min(12, len(frames))
    watch_pages.write_game(tmp_path / "game.gif", info, few, width=240)
    with Image.open(tmp_path / "game.gif") as picture:
        assert picture.size[0] == 240 and picture.n_frames > 5
        first, last = np.asarray(picture.convert("RGB")), None
        picture.seek(picture.n_frames - 1)
        last = np.asarray(picture.convert("RGB"))
    assert (first != last).any() and len(np.unique(last.reshape(-1, 3), axis=0)) > 20
    assert not list(tmp_path.glob(".*")), "a temporary file is left"


def test_a_name_cannot_become_markup(tmp_path):
    info = {
        "game": "osrs",
        "names": ["</script><script>alert(1)</script>", "<b>&"],
        "frame_seconds": 0.6,
        "outfits": [],
    }
    text = watch_pages.replay_html(info, [])
    assert "<script>alert" not in text and "<b>&" not in text
    assert json.loads(re.search(r'id="game">(.*?)</script>', text, re.S)[1])["info"]["names"] == info["names"]


def test_any_showdown_log_becomes_a_page(tmp_path, capsys):
    log = "\n".join([
        "|player|p1|Ann|", "|player|p2|Ben|", "|tier|[Gen 9] VGC 2024 Reg G", "|poke|p1|Miraidon, L50|",
        "|poke|p2|Incineroar, L50, M|", "|start",
        "|switch|p1a: Miraidon|Miraidon, L50|100/100", "|switch|p2a: Inci|Incineroar, L50, M|100/100", "|turn|1",
        "|move|p1a: Miraidon|Electro Drift|p2a: Inci", "|-damage|p2a: Inci|0 fnt", "|faint|p2a: Inci", "|win|Ann",
    ])  # fmt: skip
    (tmp_path / "battle.log").write_text(log)
    watch.main([str(tmp_path / "battle.log")])
    assert "Ann wins" in capsys.readouterr().out
    data = json.loads(re.search(r'id="game">(.*?)</script>', (tmp_path / "battle.html").read_text(), re.S)[1])
    assert data["info"]["names"] == ["Ann", "Ben"] and data["frames"][-1]["over"]["winner"] == 0
    watch.main([str(tmp_path / "battle.log"), "--save", str(tmp_path / "battle.gif"), "--width", "320"])
    with Image.open(tmp_path / "battle.gif") as picture:
        assert picture.n_frames > 5


def test_the_end_of_a_battle_keeps_the_board_before_it(runs):
    info, frames = watch.play_game(table_of(runs, "vgc"))
    kept = watch.end_of(info, frames, 8 * info["frame_seconds"])

    def board(frames):
        whole = {}
        for frame in frames:
            whole |= frame["scene"]["event"]["changes"]
        return whole

    assert len(kept) == 8 and board(kept) == board(frames)


@pytest.mark.parametrize("game", ("osrs", "rocketleague", "vgc"))
def test_evaluate_and_arena_save_the_games_they_play(runs, game, tmp_path, monkeypatch):
    baseline = {"osrs": "random", "rocketleague": "random", "vgc": "random"}[game]
    evaluate.main([str(runs / game), "--against", baseline, "--episodes", "2", "--save", str(tmp_path / "game.html")])
    data = json.loads(re.search(r'id="game">(.*?)</script>', (tmp_path / "game.html").read_text(), re.S)[1])
    assert data["info"]["names"] == [game, baseline] and len(data["frames"]) > 5 and "over" in data["frames"][-1]
    if game == "osrs":
        words = [str(runs / game), "random", "nh", "--no-baselines", "--episodes", "2", "--jobs", "0"]
        arena.main([*words, "--output", str(tmp_path / "arena"), "--save", str(tmp_path / "all.html")])
        assert sorted(path.name for path in tmp_path.glob("all_*.html")) == [
            "all_osrs_vs_nh.html", "all_osrs_vs_random.html", "all_random_vs_nh.html",
        ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- a person


def person(name="you"):
    return SimpleNamespace(kind="person", name=name)


def scripted(name):
    return SimpleNamespace(kind="scripted", name=name)


def test_a_persons_clicks_are_the_ticks_actions():
    game = osrs_watch.Fight([scripted("random"), person()], seed=3)
    game.begin()
    answer = game.check({"attack": "ranged", "pray against": "melee", "eat": "food"})
    before = int(game.env.fighters[0, 1].karambwan)
    game.step(answer)
    me = game.env.fighters[0, 1]
    assert osrs_watch.OUTFITS[me.worn] == "ranged" and me.overhead == 3 and me.karambwan == before
    assert game.rest(answer) == {"attack": "ranged", "pray against": "melee"}, "what is eaten is eaten once"
    for bad in ({"attack": "fly"}, {"jump": "high"}, [], None, {"attack": 1}):
        with pytest.raises(ValueError, match="row"):
            game.check(bad)
    assert set(game.question()["possible"]) == set(osrs_watch.CLICKS)


def test_a_persons_keys_are_the_nearest_action():
    game = rocketleague_watch.Match([scripted("random"), person()], seed=3)
    game.begin()
    for held, words in (
        ({}, "nothing"),
        ({"throttle": 1, "steer": -1}, "forward + left"),
        ({"boost": 1}, "boost"),
        ({"jump": 1}, "jump"),
    ):
        assert rocketleague_watch.ACTION_WORDS[int(game.drive(game.check(held))[0])] == words
    for bad in ({"throttle": 2}, {"boost": -1}, {"fly": 1}, [1], {"throttle": "1"}):
        with pytest.raises(ValueError, match="controls"):
            game.check(bad)
    with pytest.raises(ValueError, match="one car"):
        rocketleague_watch.Match([scripted("rule"), person()], team_size=2)


def test_a_persons_episode_is_recorded_for_cloning(tmp_path):
    game = pokemon_watch.Episode([person()], seed=0, record_dir=tmp_path / "mine", max_steps=5)
    try:
        for record in (False, True):
            game.record = record
            game.begin()
            for _ in range(5):
                frames = game.step(game.check({"button": "DOWN"}))
            assert "over" in frames[-1] and (tmp_path / "mine").exists() == record
        episode = read_episode(tmp_path / "mine" / "episode_0001.npz")
        assert len(episode) == 5 and episode.meta["expert"] == "human" and episode.world == game.world
        with pytest.raises(ValueError, match="button"):
            game.check({"button": "JUMP"})
    finally:
        game.close()


TEAM = (ROOT / "cleanrl_games/envs/vgc/teams/gen9vgc2024regg/calyrex_ice_room.txt").read_text()


def test_a_person_chooses_among_the_legal_actions_with_an_own_team():
    team = vgc_watch.read_team(TEAM, "gen9vgc2024regg")
    game = vgc_watch.Battle([scripted("random"), person()], seed=5, team=team)
    try:
        game.begin()
        question = game.question()
        assert question["kind"] == "preview" and question["team"][0] in TEAM
        for bad in (
            {"team": [0, 1, 2]},
            {"team": [0, 1, 2, 2]},
            {"team": [0, 1, 2, 9]},
            {"slots": [1, 2]},
            {"team": "0123"},
            None,
            {"team": [0, 1, 2, True]},
        ):
            with pytest.raises(ValueError, match="choice"):
                game.check(bad)
        game.step(game.check({"team": [3, 0, 5, 1]}))
        question = game.question()
        assert question["kind"] == "turn" and len(question["slots"]) == 2
        row = game.row_of(1)
        legal = {45 * int(first) + second for first, seconds in question["pairs"].items() for second in seconds}
        assert legal == set(np.flatnonzero(game.batch.mask[row]).tolist())
        names = [name for slot in question["slots"] for _, name in slot["options"]]
        assert all(names) and any("→" in name for name in names) and any(name.startswith("switch to") for name in names)
        with pytest.raises(ValueError, match="not legal"):
            game.check({"slots": [44, 44]})
    finally:
        game.close()
    with pytest.raises(ValueError, match="cannot be played"):
        vgc_watch.read_team(TEAM.replace("Calyrex-Ice", "Calyrex-Fire"), "gen9vgc2024regg")
    with pytest.raises(ValueError, match="characters"):
        vgc_watch.read_team("x" * 30_000, "gen9vgc2024regg")


def test_what_a_policy_thinks_is_what_it_plays(runs):
    """The chances shown are those of the network, and the action taken is marked among them."""
    table = table_of(runs, "rocketleague", "--deterministic")
    game = table.open(False)
    game.begin()
    for _ in range(5):
        obs, masks = torch.from_numpy(game.env.obs[:1]), torch.from_numpy(game.env.masks[:1])
        features, _ = table.seats[0].model.agent.step(obs, game.states[0])
        chances = table.seats[0].model.agent.logprobs(features, masks)[0].exp().detach()
        (frame,) = game.step()
        (taken,) = [option for option in frame["minds"][0]["groups"][0]["options"] if option[2]]
        assert (
            taken[1] == pytest.approx(float(chances.max()), abs=1e-3)
            and taken[0] == rocketleague_watch.ACTION_WORDS[int(chances.argmax())]
        )


def test_both_players_thoughts_are_shown_when_both_are_models(runs):
    game = table_of(runs, "vgc", "--against", "self").open(False)
    try:
        frames = game.begin()
        frames += game.step()
        minds = next(frame["minds"] for frame in frames if "minds" in frame)
        assert [mind["groups"][0]["name"] for mind in minds] == ["four of six"] * 2
    finally:
        game.close()


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["nowhere"], "There is no model at nowhere"),
        (["{osrs}", "--against", "heuristics"], "There is no model at heuristics"),
        (["{osrs}", "--save", "game.mp4"], "should name a file that ends in .html or .gif"),
        (["{osrs}", "--save", "no/such/folder/game.html"], "there is no folder"),
        (["{osrs}", "--speed", "3"], "--speed should be one of"),
        (["{osrs}", "--port", "99999"], "--port should be from 0"),
        (["{osrs}", "--team", "team.txt"], "--team is for VGC"),
        (["{pokemon}", "--against", "self"], "there is no opponent"),
        (["{osrs}", "--loadouts", "naked", "--save", "x.html"], "Unknown loadout 'naked'"),
        (["rule", "--game", "osrs"], "is a scripted player of another game"),
        (["rule", "--game", "chess"], "--game should be one of"),
        (["none.log"], "cannot be read as a battle log"),
        (["heuristics", "--game", "vgc", "--against", "random", "--save", "x.html"], "must be a model or a person"),
    ],
)
def test_bad_input_is_one_sentence(runs, flags, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = [flag.format(osrs=runs / "osrs", pokemon=runs / "pokemon") for flag in flags]
    with pytest.raises(SystemExit) as ended:
        watch.main(flags)
    assert ended.value.code == 2 and sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_port_that_is_taken_is_said(runs, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SystemExit):
            watch.main([str(runs / "osrs"), "--no-browser", "--port", str(taken.getsockname()[1])])
    assert "choose another with --port" in capsys.readouterr().err


def test_a_real_client_is_told_where_to_connect():
    """`python -m cleanrl_games.envs.vgc servers` prints an address, and a server answers there with the way to
    Showdown's client."""
    from cleanrl_games.envs.vgc.servers import client_words, start_servers

    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (server,) = start_servers(1, port)
    try:
        address = re.search(r"http://\S+", client_words(port))[0]
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b"psim.us" in answer.read()
    finally:
        server.stop()


def test_every_file_of_the_page_is_served_and_no_other():
    wanted = set(re.findall(r'"page/([\w.]+)"', watch_pages.index_html()))
    assert wanted == set(watch_pages.FILES) and all((watch_pages.FOLDER / name).is_file() for name in wanted)


def test_a_page_can_be_opened_while_the_first_game_is_made(runs):
    """The server answers before the session has a game."""

    async def main():
        server = watch_server.Server()
        table, go = table_of(runs, "osrs"), threading.Event()

        def slow(person, team):
            go.wait(30)
            return table.open(person, team)

        session = watch_server.Session(slow, list, server.publish, table.info(), speed=0)
        told = []

        def look(address):
            with talk(address) as (_, receive):
                told.append(receive("hello"))
                go.set()
                told.append(receive("begin"))
                told.append(receive("frame"))

        def ready(address):
            threading.Thread(target=look, args=(address,), daemon=True).start()

        task = asyncio.create_task(server.serve(session, ready))
        while len(told) < 3 and not task.done():
            await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return told

    hello, begin, _ = asyncio.run(asyncio.wait_for(main(), 120))
    assert hello["info"] is None and hello["curves"] == {"series": {}, "note": ""} and begin["info"]["game"] == "osrs"
