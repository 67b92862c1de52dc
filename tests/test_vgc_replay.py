"""A recorded battle, read and shown. tests/data/vgc_battle.log is the simulator's own log of a battle of two shipped
teams."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from cleanrl_games.envs.vgc import TeamPool, VGCVecEnv
from cleanrl_games.envs.vgc import replay as replay_module
from cleanrl_games.envs.vgc.replay import main, replay_html, write_replay
from cleanrl_games.envs.vgc.replay_files import spectator_lines
from cleanrl_games.envs.vgc.replay_log import read_log

LOG = (Path(__file__).parent / "data" / "vgc_battle.log").read_text(encoding="utf-8")
HOSTILE = '</script><img src=x onerror="document.title=1">{{SCRIPT}}&amp;'
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# The opening of a real battle: Zoroark comes in as Ditto, is hit, and Ditto itself comes in later.
ILLUSION = """|player|p1|Ana||
|player|p2|Ben||
|poke|p1|Zoroark-Hisui, L50, F|
|poke|p1|Incineroar, L50, M|
|poke|p1|Amoonguss, L50, F|
|poke|p1|Ditto, L50|
|poke|p2|Terapagos, L50, M|
|poke|p2|Farigiraf, L50, M|
|switch|p1a: Ditto|Ditto, L50|100/100
|switch|p1b: Incineroar|Incineroar, L50, M|100/100
|switch|p2a: Terapagos|Terapagos, L50, M|100/100
|switch|p2b: Farigiraf|Farigiraf, L50, M|100/100
|turn|1
|move|p1a: Ditto|Bitter Malice|p2b: Farigiraf
|-immune|p2b: Farigiraf
|move|p2a: Terapagos|Tera Starstorm|p1b: Incineroar|[spread] p1a,p1b
|-damage|p1a: Ditto|30/100
|-damage|p1b: Incineroar|35/100
|replace|p1a: Zoroark|Zoroark-Hisui, L50, F
|-end|p1a: Zoroark|Illusion
|switch|p1b: Ditto|Ditto, L50|100/100|[from] Parting Shot
"""


def words(event: dict) -> str:
    return "".join(piece if isinstance(piece, str) else piece[1] for piece in event["text"])


def boards_of(events: list[dict]) -> list[dict]:
    return list(itertools.accumulate((event["changes"] for event in events), lambda board, new: {**board, **new}))


def battle_in(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="battle">(.*?)</script>', page, re.S)[1])


def percent(condition: str) -> float:
    left, _, full = condition.split(" ")[0].partition("/")
    return 0.0 if left == "0" else round(100 * float(left) / float(full), 1)


def test_spectator_sees_percent_only():
    public = spectator_lines(LOG)
    assert "|split|" in LOG and re.search(r"\|187/187", LOG)
    conditions = [line.split("|")[4] for line in public if line.startswith("|switch|")]
    assert len(conditions) > 10
    assert all(re.match(r"\d+/100", condition) for condition in conditions)
    assert not any("|split|" in line or "187/187" in line for line in public)


def test_board_follows_the_log():
    board = read_log(LOG)
    # An independent count: the last condition that the log states for each Pokémon.
    stated = {}
    for line in spectator_lines(LOG):
        parts = line.split("|")
        if line.startswith(("|switch|", "|drag|")):
            stated[parts[2][:2], parts[2][5:]] = percent(parts[4])
        elif line.startswith(("|-damage|", "|-heal|", "|-sethp|")):
            stated[parts[2][:2], parts[2][5:]] = percent(parts[3])
    assert len(stated) == 8
    for (side, name), hp in stated.items():
        assert [mon["hp"] for mon in board.mons[side] if mon["name"] == name and mon["seen"]] == [hp], name
    assert board.winner == "Ben"
    assert [mon["name"] for mon in board.mons["p1"] if mon["fainted"]] == [
        "Kyogre",
        "Tornadus",
        "Archaludon",
        "Incineroar",
    ]
    assert {mon["name"]: mon["tera"] for mon in board.mons["p1"] + board.mons["p2"] if mon["tera"]} == {
        "Tornadus": "Ghost",
        "Farigiraf": "Water",
    }
    # The open team sheets named what was never used.
    amoonguss = board.mons["p1"][4]
    assert amoonguss["moves"] == ["Spore", "Rage Powder", "Pollen Puff", "Protect"]
    assert (amoonguss["item"], amoonguss["seen"]) == ("Sitrus Berry", False)
    assert board.mons["p1"][3]["moves"][2] == "Will-O-Wisp"
    # Preview says Urshifu-* only; the sheet, or its coming in, tells the forme.
    assert (board.mons["p1"][5]["species"], board.mons["p1"][5]["types"]) == (
        "Urshifu-Rapid-Strike",
        ["Fighting", "Water"],
    )
    closed = read_log(re.sub(r"(?m)^\|showteam\|.*\n", "", LOG))
    assert [mon["species"] for mon in closed.mons["p2"]] == [mon["species"] for mon in board.mons["p2"]]
    assert closed.mons["p1"][5]["species"] == "Urshifu-*"
    assert closed.mons["p2"][3]["moves"] == ["Wicked Blow", "Sucker Punch", "Detect"]  # those it used


def test_events_tell_what_changed():
    events = read_log(LOG).events
    boards = boards_of(events)
    at = {words(event): board for event, board in zip(events, boards)}
    assert at["Rain set in (Kyogre: Drizzle)."]["weather"] == {"Rain": 13}
    assert at["Trick Room began."]["field"] == {"Trick Room": 3}
    assert at["Trick Room ended."]["field"] == {}
    assert at["Tailwind began on the side of Ana."]["p1.side"] == {"Tailwind": 9}
    assert at["Turn 7"]["p2.0"]["boosts"] == {"spa": 2, "spd": 2, "spe": -1}
    assert at["Turn 4"]["p2.0"]["boosts"] == {}  # it had been switched out
    assert at["Ursaluna was burned (Flame Orb)."]["p2.2"]["status"] == "brn"
    assert at["Turn 13"]["p2.2"]["status"] == "brn"  # as the conditions of later damage repeat
    assert at["Terapagos lost its Leftovers (Incineroar: Knock Off)."]["p2.0"]["item"] == "Leftovers (gone)"
    assert at["Terapagos is now Terapagos-Terastal."]["p2.0"]["species"] == "Terapagos-Terastal"
    assert at["Kyogre: Protect."]["p1.0"]["brief"] == ["Protect"]
    assert at["Turn 12"]["p1.0"]["brief"] == []
    assert boards[-1]["slots"] == {"p1a": 1, "p1b": 0, "p2a": 2, "p2b": 3}
    assert words(events[-1]) == "Ben won the battle!"


def test_illusion_gives_back_what_it_borrowed():
    board = read_log(ILLUSION)
    zoroark, _, _, ditto = board.mons["p1"]
    assert (zoroark["hp"], zoroark["moves"]) == (30.0, ["Bitter Malice"])
    assert (ditto["hp"], ditto["moves"]) == (100.0, [])
    assert board.slots["p1a"] == 0 and board.slots["p1b"] == 3


def test_page_has_every_turn_and_no_address():
    page = replay_html(LOG)
    battle = battle_in(page)
    turns = [int(number) for number in re.findall(r"^\|turn\|(\d+)$", LOG, re.M)]
    assert [event["turn"] for event in battle["events"] if event["kind"] == "turn"] == [0, *turns]
    assert battle["turns"] == turns[-1] == 14
    assert battle["events"] == read_log(LOG).events
    assert not re.search(
        r"https?:|//[a-z]|@import|url\(|<link|<iframe|src=", page.replace(json.dumps(battle), ""), re.I
    )
    assert "{{" not in page


def test_hostile_names_stay_names():
    log = (
        LOG.replace("|Ana|", f"|{HOSTILE}|").replace("Tornadus", "<b>\u202enado</b>").replace("|win|Ben", "|win|<i>Ben")
    )
    page = replay_html(log)
    plain = replay_html(LOG)
    assert battle_in(page)["players"]["p1"] == HOSTILE
    for mark in ("<", ">"):  # not one element, comment or end tag more
        assert page.count(mark) == plain.count(mark)
    assert "<title>&lt;/script&gt;&lt;img" in page


def test_files(tmp_path, monkeypatch):
    both = write_replay(LOG, tmp_path / "deep" / "battle")
    assert [path.name for path in both] == ["battle.log", "battle.html"]
    assert both[0].read_text(encoding="utf-8").splitlines() == spectator_lines(LOG.rstrip("\n"))
    assert (
        write_replay(both[0].read_text(encoding="utf-8"), tmp_path / "again.html")[0].read_text() == both[1].read_text()
    )
    before = both[1].read_bytes()

    def full_disk(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(replay_module.os, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_replay(LOG, both[1])
    assert both[1].read_bytes() == before
    # nothing half written
    assert sorted(path.name for path in both[1].parent.iterdir()) == [
        "battle.html",
        "battle.log",
    ]


@pytest.mark.parametrize("open_team_sheets", [True, False])
def test_any_battle_of_the_env(open_team_sheets, tmp_path):
    env = VGCVecEnv(
        num_battles=2, teams=TeamPool("generated", size=8, seed=2), open_team_sheets=open_team_sheets, logs=True
    )
    dice, logs, finished = np.random.default_rng(3), {}, []
    while len(finished) < 4:
        batch = env.recv()
        finished += list(batch.finished)
        logs |= batch.logs
        rows = batch.decisions
        env.send(batch.key[rows], np.array([dice.choice(np.flatnonzero(mask)) for mask in batch.mask[rows]], int))
    env.close()
    for row in finished:
        log = logs[row["battle"], row["episode"]]
        board = read_log(log)
        # A kind of line without words of its own would stand there as "-kind: …".
        assert not [event for event in board.events if re.match(r"-?[a-z]+: ", words(event))]
        assert board.turn == row["turns"]
        assert [len(board.mons[side]) for side in ("p1", "p2")] == [6, 6]
        loser = f"p{2 - row['winner']}"
        assert sum(mon["fainted"] for mon in board.mons[loser]) == 4
        assert all(mon["moves"] for mon in board.mons["p1"]) == open_team_sheets
        assert battle_in(write_replay(log, tmp_path / "b.html")[0].read_text(encoding="utf-8"))["turns"] == row["turns"]


def test_command_line(tmp_path, capsys):
    (tmp_path / "b.log").write_text(LOG, encoding="utf-8")
    assert main([str(tmp_path / "b.log")]) == 0
    assert (tmp_path / "b.html").read_text(encoding="utf-8") == replay_html(LOG)
    assert main([str(tmp_path / "b.log"), "--output", str(tmp_path / "c.log")]) == 0
    assert "187/187" not in (tmp_path / "c.log").read_text(encoding="utf-8")
    assert main([str(tmp_path / "none.log")]) == 1
    assert "none.log cannot be read as a battle log" in capsys.readouterr().err
    (tmp_path / "empty.log").write_text("|player|p1|Ana||\n")
    assert main([str(tmp_path / "empty.log")]) == 1
    assert "There is no battle in this log" in capsys.readouterr().err
    (tmp_path / "odd.log").write_text(LOG.replace("p2a: Terapagos|Terapagos", "p7a: Terapagos|Terapagos"))
    assert main([str(tmp_path / "odd.log")]) == 1
    assert re.search(r"Line \d+ of the log is not of a doubles battle: .*p7a", capsys.readouterr().err)


class Page:
    """A headless browser on one file, spoken to over its debugging socket."""

    def __init__(self, path: Path, folder: str):
        from websockets.sync.client import connect

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
        self.process = subprocess.Popen(
            [BROWSER, *flags, f"--user-data-dir={folder}", "about:blank"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        spoken = next(line for line in self.process.stderr if "DevTools listening on" in line)
        port = re.search(r":(\d+)/", spoken)[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            target = next(entry for entry in json.load(answer) if entry["type"] == "page")
        self.socket = connect(target["webSocketDebuggerUrl"], max_size=None)
        self.sent, self.heard = 0, []
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("document.readyState === 'complete' && document.body.dataset.event === '0'")

    def call(self, method: str, **params) -> dict:
        self.sent += 1
        self.socket.send(json.dumps({"id": self.sent, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=30))
            if message.get("id") == self.sent:
                return message.get("result", message)
            self.heard.append(message)

    def value(self, expression: str):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait_for(self, expression: str) -> None:
        end = time.monotonic() + 60
        while not self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def close(self) -> None:
        self.socket.close()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.process.stderr.close()


def look_at_it_in_a_browser(tmp_path):
    log = LOG.replace("|Ana|", f"|{HOSTILE}|")
    (path,) = write_replay(log, tmp_path / "battle.html")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = Page(path, folder)
        try:
            assert page.value("document.getElementById('name-p1').textContent") == HOSTILE
            assert page.value("document.querySelectorAll('.mini').length") == 12
            assert page.value("document.querySelectorAll('.card:not(.empty)').length") == 0
            page.press("ArrowRight")
            page.press("ArrowRight")
            assert page.value("document.body.dataset.turn") == "2"
            assert page.value("document.getElementById('turn').textContent") == "Turn 2 of 14"
            assert page.value("document.querySelector('#p1a .name').textContent") == "Kyogre"
            assert page.value("document.querySelector('#p1a .health span').textContent") == "81%"
            assert page.value("document.querySelector('#p1b .type.tera').textContent") == "Tera Ghost"
            assert page.value("document.getElementById('field').dataset.weather") == "Rain"
            assert "Kyogre lost 19% of its HP." in page.value("document.getElementById('lines').innerText")
            page.press("ArrowDown")
            assert page.value("document.getElementById('caption').textContent") == f"{HOSTILE} sent out Archaludon."
            page.press("ArrowLeft")
            page.value("document.getElementById('prev').click()")
            assert page.value("document.body.dataset.turn") == "1"
            assert "Archaludon" not in page.value("document.getElementById('lines').innerText")
            page.press("End")
            assert page.value("document.getElementById('caption').textContent") == "Ben won the battle!"
            assert page.value("document.querySelectorAll('#roster-p1 .fainted').length") == 4
            page.value("document.getElementById('first').click(); document.getElementById('speed').value = '300'")
            page.press(" ")  # play
            page.wait_for("document.body.dataset.event > 1")
            page.press(" ")
            assert page.value("document.getElementById('play').textContent") == "▶ Play"
            assert page.value("document.images.length + document.querySelectorAll('[onerror]').length") == 0
            page.value("1")
            asked = [m["params"]["request"]["url"] for m in page.heard if m["method"] == "Network.requestWillBeSent"]
            assert asked and all(url.startswith("file:") for url in asked)
            assert not [m for m in page.heard if m["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
        finally:
            page.close()


# Only where a Chromium is installed: what the page is made of is tested above without one.
if BROWSER is not None:
    test_in_a_browser = look_at_it_in_a_browser
