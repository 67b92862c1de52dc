"""Save a battle: as a Showdown log, and as one HTML page that shows it turn by turn without a network.

    write_replay(log_text, "battle.html")    the page
    write_replay(log_text, "battle.log")     the log, as a spectator of a server would have saved it
    write_replay(log_text, "battle")         both
    python -m cleanrl_games.envs.vgc replay battle.log --output battle.html

The command reads every wrapping that people have battles in (.log, .html, .json: see `replay_files.py`), whoever played
them. The page is `replay_page.html` with `replay_page.js` and the battle's events (see `replay_log.py`) put in, and the
log itself, so that a page can be learned from as well. Names come from strangers: they travel as escaped JSON, are
shown as text only, and the page's own policy runs no script but its own."""

import argparse
import base64
import contextlib
import hashlib
import html
import json
import os
import sys
import tempfile
from pathlib import Path

from cleanrl_games.envs.vgc.replay_files import ReplayError, read_battle, spectator_lines
from cleanrl_games.envs.vgc.replay_log import Board, read_log

PAGE = Path(__file__).with_name("replay_page.html")
SCRIPT = Path(__file__).with_name("replay_page.js")


def replay_html(log_text: str) -> str:
    board = read_log(log_text)
    script = SCRIPT.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "TITLE": html.escape(f"{board.players['p1']} vs {board.players['p2']} – {board.tier or 'battle'}"),
        "SCRIPT_HASH": f"sha256-{digest}",
        "SCRIPT": script,
        "DATA": json_for_html(battle_data(board) | {"log": replay_log(log_text)}),
    }
    # Split at the marks first and join once: a name that contains "{{SCRIPT}}" stays a name.
    page = PAGE.read_text(encoding="utf-8").split("{{")
    return page[0] + "".join(parts[mark] + rest for mark, rest in (piece.split("}}", maxsplit=1) for piece in page[1:]))


def battle_data(board: Board) -> dict:
    return {
        "players": board.players,
        "tier": board.tier,
        "winner": board.winner,
        "turns": board.turn,
        "events": board.events,
    }


def json_for_html(value: dict) -> str:
    """JSON that no HTML parser can leave: `</script>` and `<!--` need a `<`."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def replay_log(log_text: str) -> str:
    return "\n".join(spectator_lines(log_text)).rstrip("\n") + "\n"


def write_replay(log_text: str, path: str | os.PathLike) -> list[Path]:
    """Write what the suffix asks for (`.html`, `.log`; neither: both) and return the files. A file is whole or
    absent."""
    path = Path(path)
    if path.suffix == ".html":
        wanted = {path: replay_html(log_text)}
    elif path.suffix == ".log":
        wanted = {path: replay_log(log_text)}
    else:
        page = replay_html(log_text)
        wanted = {path.with_name(path.name + ".log"): replay_log(log_text), path.with_name(path.name + ".html"): page}
    for target, text in wanted.items():
        write_whole(target, text)
    return list(wanted)


def write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would keep a web server from showing it
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", type=Path, help="a saved battle: .log, .html or .json")
    parser.add_argument(
        "--output", type=Path, default=None, help="OUT.html or OUT.log; default: the battle's name with .html"
    )


def run(args: argparse.Namespace) -> int:
    output = args.output or args.log.with_suffix(".html")
    if output.resolve() == args.log.resolve():
        print(f"{args.log} would be written over: name another file with --output.", file=sys.stderr)
        return 1
    try:
        log_text = read_battle(args.log).text
    except (OSError, ReplayError) as error:
        print(f"{args.log} cannot be read as a battle log: {error}.", file=sys.stderr)
        return 1
    try:
        written = write_replay(log_text, output)
    except ValueError as error:
        print(f"{args.log}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"The replay could not be written: {error}.", file=sys.stderr)
        return 1
    for path in written:
        print(f"Wrote {path}")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cleanrl_games.envs.vgc replay", description="Show a battle in a browser."
    )
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
