"""Episode files: one played episode as an .npz that anybody may have made, so nothing in it is believed unchecked.

    write_episode(path, recording, meta)      # a Recording, whole or not at all
    episode = read_episode(path)              # everything but the pixels, checked rule by rule; EpisodeError names file
      and reason
    for frames in read_frames(path): ...      # the pixels, a few at a time: an episode never has to fit into memory
    episodes = load_episodes(folder)          # all of a folder, of one game and one emulator backend

Keys: `observations` (T or T + 1, 160, 240, 3) u8, `actions` i32 (what the expert says, the label), `executed_actions`
i32 (what was pressed, if that differs), `rewards` f32, `dones` or `terminated` and `truncated`, `infos_json`,
`episode_return`, `episode_length`, `meta_json`. An observation is stored once: the next one is at index + 1.

A file with neither `infos_json` nor `meta_json` is in the format of the public guide (`observations, actions, rewards,
dones, episode_return, episode_length`). It is read as it is; what it does not say is taken for granted, and
`load_episodes` says what that was."""

import dataclasses
import hashlib
import json
import math
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from cleanrl_games.runtime.errors import first_line
from cleanrl_games.runtime.files import write_atomically

from .emulator import HEIGHT, WIDTH
from .env import ACTIONS, QUEST_SEEDS

SCHEMA = "cleanrl_games/gba-episode/1"
REQUIRED = ("observations", "actions", "rewards", "episode_return", "episode_length")
DESCRIBED = ("infos_json", "meta_json")  # both, or neither: the public guide's format
ASSUMED = ("backend", "rom_sha1", "hold", "release")  # what a file of the guide does not say
MAX_STEPS = 1_000_000  # 41 hours of play; what claims more is no episode
MAX_META, MAX_INFO = 100_000, 16_000  # letters of text that are unpacked: of the description, of the info of one step
MAX_TIMING = 600  # frames: ten seconds
# zipfile and numpy stumble over bytes that only look like an archive in all these ways
UNREADABLE = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    RuntimeError,
    NotImplementedError,
    SyntaxError,
)


class EpisodeError(ValueError):
    """An episode file that cannot be used. The message names the file and the reason."""


@dataclasses.dataclass
class Recording:
    """An episode while it is played. `observations` has one more than the rest: what was seen after the last action."""

    observations: list
    actions: list = dataclasses.field(default_factory=list)
    executed_actions: list = dataclasses.field(default_factory=list)
    rewards: list = dataclasses.field(default_factory=list)
    infos: list = dataclasses.field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    def add(self, label, executed, step):
        """`step`: what env.step returned."""
        observation, reward, self.terminated, self.truncated, info = step
        self.observations.append(observation)
        self.actions.append(label)
        self.executed_actions.append(executed)
        self.rewards.append(reward)
        self.infos.append(info)


@dataclasses.dataclass
class Episode:
    """A checked file, without its pixels."""

    path: Path
    key: str  # of the content, not of the name
    num_frames: int  # T or T + 1
    actions: np.ndarray  # (T,) int64: labels
    executed_actions: np.ndarray  # (T,) int64
    rewards: np.ndarray  # (T,) float32
    terminated: np.ndarray  # (T,) bool
    truncated: np.ndarray  # (T,) bool
    infos: list
    meta: dict

    def __len__(self):
        return len(self.actions)

    @property
    def is_described(self):
        """Whether the file says what it was recorded with; those of the public guide do not"""
        return self.meta["schema"] is not None

    @property
    def world(self):
        """The quest's seed byte, None for other games"""
        return self.meta.get("quest_seed")


# -------------------------------------------------------------------------------------------------------------- writing


def describe(env, **more):
    """→ the `meta_json` of the environment's present episode"""
    start = {} if env.reader.game == "quest" else {"start": env.start}
    return {
        "schema": SCHEMA, "game": env.reader.game, "backend": env.emulator.backend, "rom_sha1": env.emulator.rom_sha1,
        "hold": env.hold, "release": env.release, "max_steps": env.max_steps, "start_state": env.start_hash(),
        "compass": env.compass, "action_names": list(ACTIONS), **start, **more,
    }  # fmt: skip


def to_arrays(recording, meta):
    steps = len(recording.actions)
    ends = np.zeros((2, steps), bool)
    # an episode somebody stopped has no end of its own: the value of its last moment is not zero
    ends[:, -1] = recording.terminated, not recording.terminated
    return {
        "observations": np.stack(recording.observations),
        "actions": np.asarray(recording.actions, np.int32),
        "executed_actions": np.asarray(recording.executed_actions, np.int32),
        "rewards": np.asarray(recording.rewards, np.float32),
        "terminated": ends[0],
        "truncated": ends[1],
        "infos_json": np.asarray(json.dumps(recording.infos, separators=(",", ":"))),
        "episode_return": np.float32(np.sum(recording.rewards)),
        "episode_length": np.int32(steps),
        "meta_json": np.asarray(json.dumps(meta)),
    }


def write_arrays(path, arrays, level=1):
    """What np.savez_compressed does, at a level of compression that keeps up with an emulator (level 6 takes three
    times as long)."""

    def write(temporary):
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as file:
            for name, array in arrays.items():
                # a fixed date: the same episode is the same file
                member = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
                member.compress_type, member._compresslevel = zipfile.ZIP_DEFLATED, level
                with file.open(member, "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)

    write_atomically(path, write)


def write_episode(path, recording, meta, level=1):
    if not recording.actions:
        raise ValueError(f"{path} would hold an episode of no steps: play at least one.")
    write_arrays(path, to_arrays(recording, meta), level)


# -------------------------------------------------------------------------------------------------------------- reading


def read_header(stream):
    """→ (shape, dtype, bytes of the header) of an .npy stream"""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its .npy version is {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if fortran and len(shape) > 1:
        raise ValueError("its array is in Fortran order")
    return shape, dtype, stream.tell()


def open_archive(path):
    """→ ZipFile. numpy would answer an HTML page or a pickle with the advice to load it unsafely."""
    if not path.is_file():
        raise EpisodeError(f"{path}: there is no such file.")
    if not path.stat().st_size:
        raise EpisodeError(f"{path}: the file is empty.")
    try:
        return zipfile.ZipFile(path)
    except UNREADABLE as error:
        with open(path, "rb") as file:
            start = file.read(16)
        is_zip = start.startswith(b"PK")
        what = "is cut short or damaged" if is_zip else f"is no .npz archive (it starts with {start[:8]!r})"
        raise EpisodeError(f"{path}: the file {what}: {first_line(error)}. Record or download it again.") from None


class Archive:
    """The arrays of one file. A member's header is compared with its size before a byte of it is unpacked."""

    def __init__(self, path):
        self.path, self.file = Path(path), open_archive(Path(path))
        self.members = {info.filename.removesuffix(".npy"): info for info in self.file.infolist()}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def fail(self, reason):
        raise EpisodeError(f"{self.path}: {reason}")

    def key(self):
        """Of the content: names, sizes and checksums of all arrays as the archive's directory lists them."""
        content = sorted((info.filename, info.CRC, info.file_size) for info in self.members.values())
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def header(self, name):
        info = self.members[name]
        try:
            with self.file.open(info) as stream:
                shape, dtype, offset = read_header(stream)
        except UNREADABLE as error:
            self.fail(f"the array {name!r} is damaged ({first_line(error)}).")
        if dtype.hasobject:
            self.fail(
                f"the array {name!r} holds Python objects, which are never unpickled. Store text as JSON in a unicode "
                f"array."
            )
        if math.prod(shape) * dtype.itemsize != info.file_size - offset:
            self.fail(
                f"the array {name!r} claims the shape {shape} of {dtype}, but has {info.file_size - offset:,} bytes."
            )
        return shape, dtype, offset

    def read(self, name, kinds, shape=None, most=MAX_STEPS):
        """→ the array, if its kind of numbers and its shape are as they should be"""
        found, dtype, _ = self.header(name)
        if dtype.kind not in kinds:
            self.fail(f"the array {name!r} should hold {' or '.join(KINDS[kind] for kind in kinds)}, found {dtype}.")
        if shape is not None and found != shape:
            self.fail(f"the array {name!r} should have the shape {shape}, found {found}.")
        if math.prod(found) > most:
            self.fail(f"the array {name!r} has {math.prod(found):,} elements, more than an episode can have.")
        try:
            with self.file.open(self.members[name]) as stream:
                array = np.lib.format.read_array(stream, allow_pickle=False)
                stream.read(1)  # the checksum is compared at the end of the stream
                return array
        except UNREADABLE as error:
            self.fail(f"the array {name!r} is damaged ({first_line(error)}).")

    def read_json(self, name, most):
        """→ what a text says. `most` letters are unpacked at the most: a few kilobytes of zeros can be a gigabyte of
        text."""
        shape, dtype, _ = self.header(name)
        found = math.prod(shape) * dtype.itemsize // 4
        if found > most:
            self.fail(
                f"the text {name!r} has {found:,} letters; {most:,} are the most that an episode of its length can "
                f"have."
            )
        array = self.read(name, "U")
        texts = [str(text) for text in array.ravel()]
        try:
            values = [json.loads(text) for text in texts]
        except (json.JSONDecodeError, RecursionError) as error:
            self.fail(f"{name!r} is not JSON ({first_line(error)}).")
        return values if array.ndim else values[0]


KINDS = {
    "i": "whole numbers",
    "u": "unsigned whole numbers",
    "f": "floating-point numbers",
    "b": "booleans",
    "U": "unicode text",
}


def check_actions(archive, name, steps):
    actions = archive.read(name, "iu", (steps,))
    wrong = np.flatnonzero((actions < 0) | (actions >= len(ACTIONS)))
    if len(wrong):
        archive.fail(
            f"{name!r} has the action {actions[wrong[0]]} at step {wrong[0]}; actions are 0 to {len(ACTIONS) - 1} "
            f"({' '.join(ACTIONS)})."
        )
    return actions.astype(np.int64)


def check_ends(archive, steps):
    """→ terminated, truncated (T,). A file with `dones` only does not tell which it was: an end with all done is
    termination."""
    names = [name for name in ("dones", "terminated", "truncated") if name in archive.members]
    if "dones" not in names and names != ["terminated", "truncated"]:
        archive.fail("it has neither 'dones' nor both of 'terminated' and 'truncated'.")
    found = {name: archive.read(name, "biu", (steps,)).astype(bool) for name in names}
    for name, flags in found.items():
        if flags[:-1].any():
            archive.fail(
                f"{name!r} says the episode ended at step {int(flags[:-1].argmax())}, but {steps} steps are recorded."
            )
    if "terminated" in found and "truncated" in found:
        if "dones" in found and found["dones"][-1] != (found["terminated"] | found["truncated"])[-1]:
            archive.fail("'dones' says something else about the last step than 'terminated' and 'truncated'.")
        return found["terminated"], found["truncated"]
    terminated = found.get("terminated", found["dones"] & ~found.get("truncated", np.zeros(steps, bool)))
    return terminated, found["dones"] & ~terminated


def is_whole_number(value, low, high):
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def check_meta(archive):
    meta = archive.read_json("meta_json", MAX_META)
    if not isinstance(meta, dict):
        archive.fail(f"'meta_json' should be a JSON object, found a {type(meta).__name__}.")
    if meta.get("schema") != SCHEMA:
        archive.fail(f"its schema is {meta.get('schema')!r}; this version reads {SCHEMA!r}.")
    for name, kind in {"backend": str, "rom_sha1": str, "action_names": list}.items():
        if not isinstance(meta.get(name), kind):
            archive.fail(f"'meta_json' should have {name!r} as a {kind.__name__}, found {meta.get(name)!r}.")
    for name in ("hold", "release"):
        if not is_whole_number(meta.get(name), 1, MAX_TIMING):
            archive.fail(
                f"'meta_json' should have {name!r} as a whole number from 1 to {MAX_TIMING}, found {meta.get(name)!r}."
            )
    if meta.get("quest_seed") is not None and not is_whole_number(meta["quest_seed"], 0, QUEST_SEEDS - 1):
        archive.fail(
            f"'meta_json' should have 'quest_seed' as a whole number from 0 to {QUEST_SEEDS - 1}, found "
            f"{meta['quest_seed']!r}."
        )
    if meta["action_names"] != list(ACTIONS):
        archive.fail(
            f"its actions are {' '.join(map(str, meta['action_names']))}, not {' '.join(ACTIONS)}: the numbers mean "
            f"other buttons."
        )
    return meta


def check_numbers(archive, name, shape):
    """→ float32, finite after the cast: 1e300 is a number until then"""
    with np.errstate(over="ignore"):
        values = archive.read(name, "fiu", shape).astype(np.float32)
    if not np.isfinite(values).all():
        step = int(np.argmin(np.isfinite(values)))
        where = f"the reward at step {step}" if name == "rewards" else f"{name!r}"
        archive.fail(f"{where} is {values.ravel()[step]} as a 32-bit number.")
    return values


def check_infos(archive, steps):
    infos = archive.read_json("infos_json", MAX_INFO * (steps + 1))
    if (
        not isinstance(infos, list)
        or len(infos) not in (steps, steps + 1)
        or not all(isinstance(info, dict) for info in infos)
    ):
        archive.fail(f"'infos_json' should be a list of {steps} JSON objects.")
    return infos


def read_episode(path):
    with Archive(path) as archive:
        described = [name for name in DESCRIBED if name in archive.members]
        required = REQUIRED if not described and "dones" in archive.members else (*REQUIRED, *DESCRIBED)
        missing = [name for name in required if name not in archive.members]
        if missing:
            archive.fail(f"it has no {' and no '.join(map(repr, missing))}.")
        shape, dtype, _ = archive.header("observations")
        if dtype != np.uint8 or len(shape) != 4 or shape[1:] != (HEIGHT, WIDTH, 3):
            archive.fail(f"'observations' should be (frames, {HEIGHT}, {WIDTH}, 3) of uint8, found {shape} of {dtype}.")
        length, _, _ = archive.header("actions")
        if len(length) != 1 or not 0 < length[0] <= MAX_STEPS:
            archive.fail(f"'actions' should be a row of 1 to {MAX_STEPS:,} actions, found the shape {length}.")
        (steps,) = length
        if shape[0] not in (steps, steps + 1):
            archive.fail(f"it has {shape[0]} observations for {steps} actions; {steps} or {steps + 1} would fit.")
        actions = check_actions(archive, "actions", steps)
        executed = (
            check_actions(archive, "executed_actions", steps) if "executed_actions" in archive.members else actions
        )
        rewards = check_numbers(archive, "rewards", (steps,))
        terminated, truncated = check_ends(archive, steps)
        said = int(archive.read("episode_length", "iu", ()))
        if said != steps:
            archive.fail(f"'episode_length' is {said}, but there are {steps} actions.")
        total, summed = float(check_numbers(archive, "episode_return", ())), float(rewards.sum(dtype=np.float64))
        if not math.isclose(total, summed, rel_tol=1e-3, abs_tol=1e-3):
            archive.fail(f"'episode_return' is {total}, but the rewards sum to {summed:g}.")
        return Episode(
            path=archive.path,
            key=archive.key(),
            num_frames=shape[0],
            actions=actions,
            executed_actions=executed,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            infos=check_infos(archive, steps) if described else [{}] * steps,
            meta=check_meta(archive) if described else {"schema": None, **dict.fromkeys(ASSUMED)},
        )


def read_frames(path, chunk=64):
    """Yields (n, 160, 240, 3) uint8. The archive's checksum is compared when the last of them has been read."""
    with Archive(path) as archive:
        shape, _, offset = archive.header("observations")
        size = HEIGHT * WIDTH * 3
        try:
            with archive.file.open(archive.members["observations"]) as stream:
                stream.read(offset)
                for first in range(0, shape[0], chunk):
                    count = min(chunk, shape[0] - first)
                    data = bytearray(stream.read(count * size))  # a copy, because torch wants arrays it could write to
                    yield np.frombuffer(data, np.uint8).reshape(count, HEIGHT, WIDTH, 3)
                stream.read(1)
        except UNREADABLE as error:
            archive.fail(f"its pixels are damaged ({first_line(error)}).")


def find_episodes(folder):
    """→ paths of the .npz files of a folder, in order"""
    folder = Path(folder)
    if not folder.is_dir():
        raise EpisodeError(
            f"There is no folder {folder}: collect episodes with tools/collect_expert_data.py, or give the right one."
        )
    paths = sorted(path for path in folder.glob("*.npz") if not path.name.startswith("."))
    if not paths:
        raise EpisodeError(f"The folder {folder} has no .npz episodes: collect some with tools/collect_expert_data.py.")
    return paths


def same_kind(episodes):
    """Pixels of two emulator backends or two ROMs, or buttons held for another time, do not belong into one training
    set."""
    described = [episode for episode in episodes if episode.is_described]
    for episode in described:
        first = described[0]
        for name in ("backend", "rom_sha1", "hold", "release"):
            if episode.meta[name] != first.meta[name]:
                raise EpisodeError(
                    f"{episode.path}: its {name} is {episode.meta[name]!r}, that of {first.path} is "
                    f"{first.meta[name]!r}: keep such data apart."
                )


def load_episodes(folder, skip_bad=False):
    """→ all episodes of a folder. A bad one is an error, or with `skip_bad` a sentence."""
    episodes, first = [], None
    for path in find_episodes(folder):
        try:
            episode = read_episode(path)
            same_kind([kept for kept in (first, episode) if kept is not None])
        except EpisodeError as error:
            if not skip_bad:
                raise EpisodeError(f"{error} (--skip-bad-episodes goes on without such files.)") from None
            print(f"Skipped: {error}", flush=True)
            continue
        episodes.append(episode)
        first = first or (episode if episode.is_described else None)
    if not episodes:
        raise EpisodeError(f"No episode of {folder} can be used.")
    undescribed = sum(not episode.is_described for episode in episodes)
    if undescribed:
        print(
            f"{undescribed} of {len(episodes)} episodes in {folder} are in the public guide's format, without "
            f"metadata. Taken for granted: "
            f"buttons in the order {' '.join(ACTIONS)}, pressed as labelled, and emulator, ROM and timing of this "
            f"run; 'dones' at the end "
            "means that the game was finished.",
            flush=True,
        )
    return episodes


def episodes_hash(episodes):
    """→ of what is in them, in order: a run that goes on has to find the same"""
    return hashlib.sha256("\n".join(episode.key for episode in episodes).encode()).hexdigest()[:16]
