"""Saved battles in every wrapping that people have them in, as the lines that a spectator saw.

.log, .txt   the protocol itself, or the log that `play_showdown.py` writes
.html        a page saved by Showdown's "Download replay", or one of our own pages
.json        what a server's replay API gives (`log` a text), or a server's own log (`log` a list of lines, perhaps with
  `inputLog`)
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".log", ".txt", ".html", ".json")
MAX_BYTES = 8 << 20  # a long battle has some 100 kB
CONDITION_AT = {
    "switch": 3,
    "drag": 3,
    "replace": 3,
    "-damage": 2,
    "-heal": 2,
    "-sethp": 2,
}  # part of a line that tells HP


class ReplayError(ValueError):
    """A replay cannot be read or learned from; the message says why."""


@dataclass
class SavedBattle:
    text: str
    """the protocol log, as it was saved"""
    choices: list[str] | None = None
    """`inputLog`: the choices that were really made, where the file has them"""


def read_battle(path: Path) -> SavedBattle:
    if path.stat().st_size > MAX_BYTES:
        raise ReplayError(f"it has more than {MAX_BYTES >> 20} MB: that is no battle")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ReplayError(f"it is no UTF-8 text ({error.reason})") from None
    if path.suffix == ".json":
        return read_json(text)
    if path.suffix == ".html":
        return SavedBattle(text_of_page(text))
    return SavedBattle(text)


def read_json(text: str) -> SavedBattle:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ReplayError(f"it is no JSON ({error})") from None
    log = content.get("log") if isinstance(content, dict) else None
    if isinstance(log, list) and all(isinstance(line, str) for line in log):
        log = "\n".join(log)
    if not isinstance(log, str):
        raise ReplayError("its JSON has no text and no list of lines under 'log'")
    choices = content.get("inputLog")
    if isinstance(choices, str):
        choices = choices.split("\n")
    if not (isinstance(choices, list) and all(isinstance(line, str) for line in choices)):
        choices = None
    return SavedBattle(log, choices)


def text_of_page(page: str) -> str:
    """The log in a page of Showdown's (as text) or of ours (with the events, as JSON)."""
    ours = re.search(r'<script type="application/json" id="battle">(.*?)</script>', page, re.S)
    if ours:
        try:
            log = json.loads(ours[1]).get("log")
        except (ValueError, AttributeError) as error:
            raise ReplayError(f"the page's battle is damaged ({error})") from None
        if not isinstance(log, str):
            raise ReplayError("the page was made before pages kept their log: give the .log that was written beside it")
        return log
    found = re.search(r'<script[^>]*class="[^"]*\bbattle-log-data\b[^"]*"[^>]*>(.*?)</script>', page, re.S)
    if not found:
        raise ReplayError("the page has no battle log in it (a script of class battle-log-data)")
    # A script's text has no entities; so that no line can end the script, Showdown puts a backslash before each slash.
    return found[1].replace("\\/", "/").strip("\r\n")


def spectator_lines(text: str) -> list[str]:
    """The lines a spectator sees: of every `|split|` pair the second, public one."""
    lines = text.replace("\r\n", "\n").split("\n")
    public, index = [], 0
    while index < len(lines):
        if lines[index].startswith("|split|"):
            public.extend(line for line in lines[index + 2 : index + 3] if line)
            index += 3
        else:
            public.append(lines[index])
            index += 1
    return public


def battle_lines(text: str) -> list[str]:
    """A spectator's lines in today's spelling: HP in per cent (a server's own log has points), `[from] x` for older
    logs' `[from]x`."""
    lines = []
    for line in spectator_lines(text):
        if not line.startswith("|"):
            continue
        parts = line[1:].split("|")
        at = CONDITION_AT.get(parts[0])
        if at is not None and at < len(parts):
            parts[at] = in_per_cent(parts[at])
        if parts[0] not in ("c", "c:", "chat", "player", "raw", "html"):
            parts = [re.sub(r"^\[(from|of)\](?=\S)", r"[\1] ", part) for part in parts]
        lines.append("|" + "|".join(parts))
    return lines


def in_per_cent(condition: str) -> str:
    """ "103/181 brn" → "57/100 brn", rounded as Showdown does: up, but nobody who was hit is at 100."""
    found = re.fullmatch(r"(\d+)/(\d+)( .*)?", condition)
    if not found or found[2] in ("100", "0"):
        return condition
    left, most = int(found[1]), int(found[2])
    percent = -(-100 * left // most)
    if percent == 100 and left < most:
        percent = 99
    return f"{percent}/100{found[3] or ''}"
