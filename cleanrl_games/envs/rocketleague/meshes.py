"""Collision meshes: found, fetched, checked, and handed to RocketSim once per process.

    mesh_dir argument  →  $RS_COLLISION_MESHES  →  the pinned rlgym-rocket-league package  →  generated, only when asked
    for

The package is fetched by pip on first use and unpacked into the cache; nothing of it is installed:

    <cache>/rlgym-rocket-league-2.0.1.lock       one process fetches, the others wait
    <cache>/rlgym-rocket-league-2.0.1.tmp-<pid>  pip works here …
    <cache>/rlgym-rocket-league-2.0.1            … and a rename makes it visible, whole or not at all

The cache is `$CLEANRL_GAMES_CACHE`, else `~/.cache/cleanrl_games`. A mesh folder holds `soccar/*.cmf`.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import RocketSim

from cleanrl_games.runtime.cache import cache_folder, one_at_a_time

FETCH_TIMEOUT = 600
# name: (version, SHA-256 of the source archive). The first brings the meshes; the second makes it importable, for tests
# and benches.
PACKAGES = {
    "rlgym-rocket-league": ("2.0.1", "3be8e9d2f1cfb6514e0e3d455fb33ff95e26eb7c399f819fff0258025cf4d501"),
    "rlgym-api": ("2.0.0", "f1ac4ac742dd93bb7fe8c08c2af2a5b11320ff5eec2936650febb2f7baf24c83"),
}
MESHES_IN_PACKAGE = Path("rlgym/rocket_league/sim/collision_meshes")
# SHA-256 of the 16 soccar files, each cut to 16 digits. Names differ between dumps, contents do not.
SOCCAR_HASHES = frozenset(
    """
    8764d43b87ba134c 9d42e5db7cde5c7b 762ec145db3c317d 0db5c559287bcd25
    92c3224da44f1a35 776c24b1231b4f7a a2262bfa2bfacca3 c887df022d6a2b33
    3350567082d9a133 4864911a7f0a3add 36cc44e14a0e500a 7f4468be0b0835a4
    952a90a0ff27c273 b441f782f07e81c2 085f7533c53a73da 21c1d1eb450f9e09
    """.split()
)

_loaded = None  # the folder this process gave to RocketSim, which takes one and keeps it


class MeshError(RuntimeError):
    """Collision meshes are missing, damaged or not the ones meant; the message says what to do."""


# ---------------------------------------------------------------------------------------------------------------- check


def check_mesh_file(path):
    """Raises unless the file is a triangle mesh: counts, size, corner numbers and finite points agree. → its hash"""
    data = path.read_bytes()
    triangles, vertices = np.frombuffer(data, "<i4", 2) if len(data) >= 8 else (-1, -1)
    if triangles <= 0 or vertices <= 0 or len(data) != 8 + 12 * int(triangles) + 12 * int(vertices):
        raise MeshError(
            f"{path} is not a collision mesh: its size is {len(data)} bytes, its header says otherwise. Dump or fetch "
            f"it again."
        )
    corners = np.frombuffer(data, "<i4", 3 * triangles, 8)
    points = np.frombuffer(data, "<f4", 3 * vertices, 8 + 12 * int(triangles))
    if corners.min() < 0 or corners.max() >= vertices or not np.isfinite(points).all():
        raise MeshError(
            f"{path} is damaged: a triangle names a missing corner, or a point is not finite. Dump or fetch it again."
        )
    return hashlib.sha256(data).hexdigest()[:16]


def check_meshes(folder, source):
    """Raises a sentence unless `folder` holds the soccar meshes. RocketSim itself is silent until the first arena."""
    folder = Path(folder)
    files = sorted((folder / "soccar").glob("*.cmf"))
    advice = "Name a folder that holds soccar/*.cmf, or leave it out to have the meshes fetched."
    if not files:
        raise MeshError(f"{source} names {folder}, but there are no collision meshes in {folder / 'soccar'}. {advice}")
    found = {check_mesh_file(path) for path in files}
    if found != SOCCAR_HASHES:
        known = len(found & SOCCAR_HASHES)
        raise MeshError(
            f"The meshes in {folder / 'soccar'} ({source}) are not Rocket League's soccar arena: "
            f"{known} of its 16 files are there, and {len(found) - known} others. {advice}"
        )
    return folder


# ---------------------------------------------------------------------------------------------------------------- fetch


def fetch_package(name):
    """The folder of an unpacked, pinned source archive; fetched by pip if this is the first use on this machine."""
    version, digest = PACKAGES[name]
    final = cache_folder() / f"{name}-{version}"
    if final.is_dir():
        return final
    with one_at_a_time(final, FETCH_TIMEOUT + 60, f"fetching {final.name} into {final.parent}", MeshError):
        if not final.is_dir():  # otherwise another process did the work while this one waited
            fetch_into(final, name, version, digest)
    return final


def fetch_into(final, name, version, digest):
    work = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    print(f"Fetching {name} {version} into {final} (once, ~0.1 MB) …", file=sys.stderr, flush=True)
    try:
        work.mkdir()
        # pip checks the hash before it looks into the archive. It is only unpacked: installing it would pull numpy
        # below 2.
        (work / "pin.txt").write_text(f"{name}=={version} --hash=sha256:{digest}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--no-binary", name]
        run_pip([*command, "-d", str(work), "-r", str(work / "pin.txt")], name)
        (archive,) = work.glob("*.tar.gz")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != digest:
            raise MeshError(
                f"{archive.name} is not the archive this project was tested with: its hash differs. Nothing was "
                f"unpacked."
            )
        with tarfile.open(archive) as file:
            file.extractall(work, filter="data")
        (unpacked,) = [path for path in work.iterdir() if path.is_dir()]
        unpacked.rename(final)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise MeshError(
                f"The disk of {final.parent} is full. Free some, or set CLEANRL_GAMES_CACHE to another disk."
            ) from error
        raise MeshError(f"Fetching {name} into {final} failed: {error}.") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run_pip(command, name):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise MeshError(f"pip could not fetch {name}: no end after {FETCH_TIMEOUT} s. Is the network up?") from error
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise MeshError(
            f"pip could not fetch {name}. The first use needs a network; or give a folder of meshes (mesh_dir, "
            f"RS_COLLISION_MESHES). "
            f"It said:\n{tail}"
        )


# ----------------------------------------------------------------------------------------------------------------- load


def find_meshes(mesh_dir="", generated=False):
    """→ (folder, where it comes from), checked. Generated meshes are never a silent fallback."""
    if generated:
        from .generated import write_meshes

        return write_meshes(cache_folder()), "generated, approximate"
    if mesh_dir:
        return check_meshes(mesh_dir, "mesh_dir"), "mesh_dir"
    if os.environ.get("RS_COLLISION_MESHES"):
        return check_meshes(os.environ["RS_COLLISION_MESHES"], "RS_COLLISION_MESHES"), "RS_COLLISION_MESHES"
    package = fetch_package("rlgym-rocket-league")
    try:
        return check_meshes(package / MESHES_IN_PACKAGE, "the fetched package"), "rlgym-rocket-league 2.0.1"
    except MeshError as error:
        raise MeshError(f"{error} The cached copy is damaged: remove {package} and start again.") from None


def load_meshes(mesh_dir="", generated=False):
    """Starts RocketSim with the meshes found, once per process; later calls must mean the same folder. → the folder"""
    global _loaded
    folder, source = find_meshes(mesh_dir, generated)
    folder = folder.resolve()
    if generated or _loaded is None:
        warning = (
            " These are approximate: corners and ramps differ from the game, a policy may not carry over."
            if generated
            else ""
        )
        print(f"Collision meshes: {folder} ({source}).{warning}", file=sys.stderr, flush=True)
    if _loaded == folder:
        return folder
    if _loaded is not None:
        raise MeshError(
            f"RocketSim already runs with the meshes in {_loaded}; one process cannot change to {folder}. Start a new "
            f"process."
        )
    try:
        RocketSim.init(str(folder))
    except RuntimeError as error:
        raise MeshError(
            f"RocketSim would not start with {folder}: {error}. If other code in this process initialised it, make "
            f"this environment first."
        ) from error
    _loaded = folder
    return folder
