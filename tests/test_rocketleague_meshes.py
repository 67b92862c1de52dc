"""Meshes: the order in which they are looked for, and a sentence for whatever can be wrong with them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cleanrl_games.envs.rocketleague import meshes
from cleanrl_games.envs.rocketleague.meshes import (
    MESHES_IN_PACKAGE,
    MeshError,
    check_meshes,
    fetch_package,
    find_meshes,
    load_meshes,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def real(tmp_path):
    """A copy of the real meshes, to be damaged"""
    shutil.copytree(fetch_package("rlgym-rocket-league") / MESHES_IN_PACKAGE, tmp_path / "meshes")
    return tmp_path / "meshes"


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_order(real, monkeypatch, tmp_path):
    monkeypatch.setenv("RS_COLLISION_MESHES", str(real))
    assert find_meshes() == (real, "RS_COLLISION_MESHES")
    other = shutil.copytree(real, tmp_path / "other")
    assert find_meshes(str(other)) == (other, "mesh_dir")
    monkeypatch.delenv("RS_COLLISION_MESHES")
    assert find_meshes()[1].startswith("rlgym-rocket-league")


def test_missing_meshes_are_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(MeshError, match="there are no collision meshes in"):
        find_meshes(str(tmp_path / "nowhere"))
    monkeypatch.setenv("RS_COLLISION_MESHES", str(tmp_path))
    with pytest.raises(MeshError, match="RS_COLLISION_MESHES names"):
        find_meshes()


def test_damaged_meshes_are_a_sentence(real):
    file = real / "soccar" / "mesh_3.cmf"
    content = file.read_bytes()
    file.write_bytes(content[:-5])
    with pytest.raises(MeshError, match=r"mesh_3.cmf is not a collision mesh"):
        check_meshes(real, "mesh_dir")
    broken = bytearray(content)
    broken[8:12] = np.array([10**6], "<i4").tobytes()
    file.write_bytes(broken)
    with pytest.raises(MeshError, match=r"mesh_3.cmf is damaged"):
        check_meshes(real, "mesh_dir")
    moved = bytearray(content)
    moved[-4:] = np.array([1.5], "<f4").tobytes()
    file.write_bytes(moved)
    with pytest.raises(MeshError, match="15 of its 16 files are there, and 1 others"):
        check_meshes(real, "mesh_dir")


def test_second_start_in_one_process(real):
    folder = load_meshes()
    assert load_meshes() == folder  # the same again is no error
    with pytest.raises(MeshError, match="one process cannot change to"):
        load_meshes(str(real))


def test_start_by_other_code_is_a_sentence(real):
    code = (
        f"import RocketSim; RocketSim.init({str(real)!r})\nfrom cleanrl_games.envs.rocketleague import load_meshes; "
        f"load_meshes({str(real)!r})"
    )
    done = python(code)
    assert done.returncode == 1 and "If other code in this process initialised it" in done.stderr


def test_generated_meshes_play_and_are_announced(tmp_path):
    """Only on request, said on every start, and no hole in them"""
    code = """
import numpy as np
from cleanrl_games.envs.rocketleague import RocketLeagueVecEnv
from cleanrl_games.tools.bench_rocketleague import outside
for _ in range(2):
    env = RocketLeagueVecEnv(4, (1, 2), states={"random": 1.0}, max_seconds=10.0, generated_meshes=True)
rng, worst = np.random.default_rng(1), -1e9
for _ in range(400):
    env.step(rng.integers(0, 90, env.num_agents))
    worst = max(worst, outside(env))
print(worst)
"""
    done = python(code, CLEANRL_GAMES_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 0
    assert done.stderr.count("These are approximate") == 2
    # nothing fetched, nothing left over
    assert sorted(path.name for path in tmp_path.iterdir()) == ["generated-meshes"]


def test_wrong_archive_is_refused(tmp_path, monkeypatch):
    """pip downloads from a folder instead of a registry; the archive there is not the pinned one"""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "rlgym-rocket-league-2.0.1.tar.gz").write_bytes(b"something else")
    monkeypatch.setenv("CLEANRL_GAMES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shop"))
    with pytest.raises(MeshError, match=r"pip could not fetch rlgym-rocket-league[\s\S]*hash"):
        fetch_package("rlgym-rocket-league")
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["rlgym-rocket-league-2.0.1.lock"]


def test_two_processes_fetch_once(tmp_path, monkeypatch):
    """Processes that start together: one works, the others wait, all see a whole folder"""
    code = """
import sys, time
from pathlib import Path
from cleanrl_games.envs.rocketleague import meshes
def fetch(final, name, version, digest):
    (final.parent / "count").open("a").write("x")
    work = final.with_name("work"); work.mkdir(); time.sleep(1.0); (work / "whole").touch(); work.rename(final)
meshes.fetch_into = fetch
print((meshes.fetch_package("rlgym-api") / "whole").exists())
"""
    environment = {**os.environ, "CLEANRL_GAMES_CACHE": str(tmp_path)}
    running = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate(timeout=120)[0].strip() for process in running] == ["True"] * 3
    assert (tmp_path / "count").read_text() == "x"


def test_unwritable_cache_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLEANRL_GAMES_CACHE", str(tmp_path / "file"))
    with pytest.raises(MeshError, match="cannot be written"):
        fetch_package("rlgym-rocket-league")
    assert meshes.cache_folder() == tmp_path / "file"
