"""tools/play_showdown.py on a real local server: two models play each other, and what can go wrong is said in a
sentence."""

import asyncio
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path
from types import SimpleNamespace

import pytest

from cleanrl_games import ppo_vgc_mdbo as script
from cleanrl_games.envs.vgc.servers import HOST, start_servers
from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.tools import play_showdown
from tests.test_vgc_player import free_port

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.zip"
    args = script.Args(width=16, embedding_width=16, lstm_size=16)
    script.save_model(path, script.make_agent(vars(args)), args)
    return path


def start(model, folder, *flags):
    # Sampled: two untrained networks that always take the likeliest action switch in and out for ever.
    words = [sys.executable, "cleanrl_games/tools/play_showdown.py", str(model), "--no-deterministic"]
    words += ["--replays", str(folder), *map(str, flags)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process, code, seconds=300):
    output, error = process.communicate(timeout=seconds)
    assert process.returncode == code, output + error
    return output + error


def test_two_models_play_one_is_stopped_and_a_server_that_dies_is_named(model, tmp_path):
    (server,) = start_servers(1, free_port())
    try:
        address = f"ws://{HOST}:{server.port}"
        host = start(
            model, tmp_path / "host", "--server", address, "--accept", "--battles", 3, "--username", "host bot"
        )
        assert "waits for challenges" in host.stdout.readline()
        guest = start(model, tmp_path / "guest", "--server", address, "--challenge", "host bot", "--battles", 2)
        bored = start(model, tmp_path / "bored", "--server", address, "--accept", "--username", "bored bot")
        output = said(guest, 0)
        assert "replays in" in output and " won, " in output and "0 won, 0 lost, 0 tied" not in output
        end = time.time() + 120
        while len(list((tmp_path / "host").glob("*.log"))) < 2:
            assert time.time() < end
            time.sleep(0.2)
        for side in ("host", "guest"):
            logs = sorted((tmp_path / side).glob("*.log"))
            assert len(logs) == 2 == len(list((tmp_path / side).glob("*.html")))
            assert all("|win|" in log.read_text() or "|tie" in log.read_text() for log in logs)
        assert "waits for challenges" in bored.stdout.readline()
        os.kill(bored.pid, signal.SIGINT)
        assert "Stopped" in said(bored, 130)
    finally:
        server.stop()
    assert "was lost after 2 of 3 battles" in said(host, 1, 60)


def test_what_cannot_work_is_said(model, tmp_path, capsys):
    nobody = f"ws://{HOST}:{free_port()}"
    cases = {
        "No Showdown server answers at": [str(model), "--server", nobody, "--accept"],
        "one of: --accept": [str(model), "--server", nobody],
        "is no websocket address": [str(model), "--server", "http://here", "--ladder"],
    }
    for sentence, words in cases.items():
        assert play_showdown.main([*words, "--replays", str(tmp_path / "replays")]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "replays").exists()


def test_a_password_is_tried_before_anything_else(monkeypatch):
    """On a login server of our own, which answers as the real one does."""
    asked = []

    class LoginServer(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            words = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            asked.append(words["name"][0])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"]" + json.dumps({"actionsuccess": words["pass"] == ["secret"]}).encode())

        def log_message(self, *words):
            pass

    server = http.server.HTTPServer((HOST, 0), LoginServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(play_showdown, "AUTHENTICATION", f"http://{HOST}:{server.server_port}/action.php?")
    monkeypatch.setenv("SHOWDOWN_PASSWORD", "secret")
    play_showdown.check_password("somebody")
    monkeypatch.setenv("SHOWDOWN_PASSWORD", "guess")
    with pytest.raises(BadInput, match="SHOWDOWN_PASSWORD is not that of 'somebody'"):
        play_showdown.check_password("somebody")
    with pytest.raises(BadInput, match="no --username"):
        play_showdown.check_password("")
    assert asked == ["somebody", "somebody"]
    server.shutdown()
    server.server_close()
    with pytest.raises(BadInput, match="does not answer"):
        play_showdown.check_password("somebody")


def test_nobody_takes_up_the_challenge():
    """A stand-in for poke-env's player, whose challenge is never answered."""

    async def for_ever(*_):
        await asyncio.Event().wait()

    client = SimpleNamespace(_listening_coroutine=SimpleNamespace(done=lambda: False), websocket_url="ws://here")
    player = SimpleNamespace(ps_client=client, send_challenges=for_ever, battles={}, n_finished_battles=0)
    args = SimpleNamespace(challenge="ghost", ladder=False, battles=2, wait_seconds=0.1)
    with pytest.raises(
        RunFailed, match=r"ghost has not taken up the challenge within 0.1 seconds .--wait-seconds.: 0 of 2"
    ):
        asyncio.run(play_showdown.play(player, args))
