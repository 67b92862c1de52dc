"""Battles that somebody else has played, on disk: what each player saw, what was legal, what was played and who won.

    expert_data/vgc_<format>/<set>/index.json      format, contract, and of each file its rows and checksum
                                  0000.rows.npy    (rows,) of ROW: one decision after another, a stream's in order
                                  0000.streams.npy (streams,) of STREAM: one seat of one battle, from preview to its end

A shard is two plain npy files without objects, written under another name, renamed, and only then put into the index:
an interrupted set is a shorter set. `Demonstrations` maps them into memory, so a set may be larger than it.
"""

import json
import zlib
from pathlib import Path

import numpy as np

from cleanrl_games.envs.vgc import mdbo
from cleanrl_games.envs.vgc.contract import contract_hash
from cleanrl_games.envs.vgc.install import normalize_format
from cleanrl_games.envs.vgc.vec_env import NO_WINNER, PREVIEW, TIE
from cleanrl_games.envs.vgc.vocabulary import FLOATS, INTS
from cleanrl_games.runtime.files import write_atomically

VERSION = 1
FIRST, SECOND = 1, 2  # bits of `known`: which of a decision's two choices may be learned from
SOURCES = ("replay", "random", "max_power", "heuristics")  # a stream's code -> who played it
ROW = np.dtype(
    [
        ("ints", "<i2", (INTS,)),
        ("floats", "<f2", (FLOATS,)),  # half precision: columns are of order 1, and three digits decide no battle
        ("slots", "u1", (2, mdbo.SLOT_ACTIONS)),
        ("pass_rule", "u1"),
        ("kind", "u1"),  # PREVIEW or TURN
        ("known", "u1"),
        ("action", "<i2"),
    ]
)
STREAM = np.dtype(
    [("start", "<i4"), ("length", "<i4"), ("battle", "<i4"), ("side", "u1"), ("source", "u1"), ("outcome", "<f4")]
)


class DemonstrationError(ValueError):
    """A set of demonstrations cannot be used; the message says which file and why."""


def joint_mask(rows: np.ndarray) -> np.ndarray:
    """(n, 2025) bool of ROWs, as `Batch.mask`: of a preview only the first 90 can be set"""
    joint = mdbo.joint_mask(rows["slots"], rows["pass_rule"])
    preview = rows["kind"] == PREVIEW
    joint[preview] = False
    joint[preview, : mdbo.NUM_PREVIEWS] = rows["slots"][preview].reshape(-1, mdbo.NUM_PREVIEWS).astype(bool)
    return joint


def outcome(winner: int, side: int) -> float:
    """1 won, 0 lost, 0.5 tied, not a number if nobody can say"""
    return float("nan") if winner == NO_WINNER else 0.5 if winner == TIE else float(winner == side)


def file_checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


class Writer:
    """Writes a set shard by shard; several may write to one folder if their names differ and one process keeps the
    index."""

    def __init__(self, folder, name: str, shard_rows: int = 16384):
        self.folder, self.name, self.shard_rows, self.serial = Path(folder), name, shard_rows, 0
        self.rows, self.streams, self.count, self.battles = [], [], 0, 0
        self.folder.mkdir(parents=True, exist_ok=True)

    def add(self, streams: list[tuple[np.ndarray, int, str, float]]) -> dict | None:
        """One battle: (rows, side, source, outcome) of each seat that is known → the shard's index entry, if it is full
        now."""
        for rows, side, source, result in streams:
            if len(rows):
                self.streams.append((self.count, len(rows), self.battles, side, SOURCES.index(source), result))
                self.rows.append(rows)
                self.count += len(rows)
        self.battles += 1
        return self.flush() if self.count >= self.shard_rows else None

    def flush(self) -> dict | None:
        if not self.count:
            return None
        parts = {"rows": np.concatenate(self.rows), "streams": np.array(self.streams, STREAM)}
        entry = {"name": f"{self.name}{self.serial:04d}", "battles": self.battles, "files": {}}
        for part, array in parts.items():
            path = self.folder / f"{entry['name']}.{part}.npy"
            write_atomically(path, lambda temporary, array=array: save_array(temporary, array))
            entry["files"][part] = {"count": len(array), "bytes": path.stat().st_size, "crc32": file_checksum(path)}
        self.rows, self.streams, self.count, self.battles, self.serial = [], [], 0, 0, self.serial + 1
        return entry


def save_array(path: Path, array: np.ndarray) -> None:
    with open(path, "wb") as file:  # a file, because np.save puts .npy behind a name that has none
        np.save(file, array, allow_pickle=False)


def new_index(battle_format: str) -> dict:
    return {
        "version": VERSION,
        "battle_format": normalize_format(battle_format),
        "contract_hash": contract_hash(),
        "shards": [],
    }


def write_index(folder, index: dict) -> None:
    write_atomically(Path(folder) / "index.json", lambda path: path.write_text(json.dumps(index, indent=1) + "\n"))


def read_index(folder, battle_format: str) -> dict:
    """A set's index, checked against what this code can read and what the run is about."""
    path = Path(folder) / "index.json"
    if not path.is_file():
        raise DemonstrationError(
            f"{folder} has no index.json: it is no set of demonstrations. Make one with --collect or --replays."
        )
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        shards = [
            (shard["name"], shard["battles"], {k: dict(v) for k, v in shard["files"].items()})
            for shard in index["shards"]
        ]
        if not all(set(files) == {"rows", "streams"} and Path(name).name == name for name, _, files in shards):
            raise ValueError("a shard without its two files")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DemonstrationError(
            f"{path} is damaged ({type(error).__name__}: {error}): collect the set again."
        ) from None
    if index.get("version") != VERSION:
        raise DemonstrationError(
            f"{path} is of version {index.get('version')}, this code reads version {VERSION}: collect the set again."
        )
    if index.get("contract_hash") != contract_hash():
        raise DemonstrationError(
            f"{path} was made with other columns, ids or actions (contract {index.get('contract_hash')}, here "
            f"{contract_hash()}): "
            "collect the set again, or check out the commit that made it."
        )
    if index.get("battle_format") != normalize_format(battle_format):
        raise DemonstrationError(
            f"{folder} holds battles of {index.get('battle_format')}, this run is about "
            f"{normalize_format(battle_format)}: "
            "give another set, or the format with --battle-format."
        )
    return index


class Demonstrations:
    """Sets, mapped into memory and checked. `streams` are those of all shards; `rows(stream numbers)` fetches their
    decisions."""

    def __init__(self, folders, battle_format: str):
        self.shards, streams, self.battles = [], [], 0
        for folder in map(Path, folders):
            for shard in read_index(folder, battle_format)["shards"]:
                rows, found = (
                    open_array(folder, shard, part, dtype) for part, dtype in (("rows", ROW), ("streams", STREAM))
                )
                check_streams(folder / f"{shard['name']}.streams.npy", rows, found)
                numbered = np.zeros(len(found), [*STREAM.descr, ("shard", "<i4"), ("game", "<i8")])
                for name in STREAM.names:
                    numbered[name] = found[name]
                numbered["shard"], numbered["game"] = len(self.shards), self.battles + found["battle"]
                self.battles += shard["battles"]
                self.shards.append(rows)
                streams.append(numbered)
        if not streams:
            raise DemonstrationError(
                f"There is not one battle in {', '.join(map(str, folders)) or 'no folder at all'}: collect some."
            )
        self.streams = np.concatenate(streams)  # (S,)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """The decisions of these streams, one stream after another: (sum of lengths,) of ROW"""
        parts = []
        for stream in self.streams[numbers]:
            parts.append(self.shards[stream["shard"]][stream["start"] : stream["start"] + stream["length"]])
        return np.concatenate(parts)


def open_array(folder: Path, shard: dict, part: str, dtype: np.dtype) -> np.ndarray:
    path, said = folder / f"{shard['name']}.{part}.npy", shard["files"][part]
    again = "copy it again, or take the set out"
    try:
        size = path.stat().st_size
        if size != said["bytes"]:
            raise DemonstrationError(f"{path} has {size} bytes, its index says {said['bytes']}: {again}.")
        if file_checksum(path) != said["crc32"]:
            raise DemonstrationError(f"{path} is damaged (its checksum is not the one in its index): {again}.")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, KeyError, EOFError, ValueError) as error:
        if isinstance(error, DemonstrationError):
            raise
        raise DemonstrationError(f"{path} cannot be read ({type(error).__name__}: {error}): {again}.") from None
    if array.dtype != dtype or array.shape != (said["count"],):
        raise DemonstrationError(
            f"{path} holds {array.shape} of other fields than this code writes: collect the set again."
        )
    return array


def check_streams(path: Path, rows: np.ndarray, streams: np.ndarray) -> None:
    """Streams follow one another and cover the shard, so that no index can lead outside of it."""
    ends = np.cumsum(streams["length"])
    fits = len(streams) and (streams["length"] > 0).all() and (streams["start"] == ends - streams["length"]).all()
    if not fits or ends[-1] != len(rows) or (streams["source"] >= len(SOURCES)).any():
        raise DemonstrationError(f"{path} does not fit the rows beside it: collect the set again.")
