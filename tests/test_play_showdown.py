"""tools/play_showdown.py on a real local server: two models play each other, and what can go wrong is said in a sentence."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cleanrl_games import ppo_vgc_mdbo as script
from cleanrl_games.envs.vgc.servers import HOST, start_servers
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
        host = start(model, tmp_path / "host", "--server", address, "--accept", "--battles", 3, "--username", "host bot")
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
        assert play_showdown.main([*words, "--replays", str(tmp_path / "replays")]) == 1
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "replays").exists()
