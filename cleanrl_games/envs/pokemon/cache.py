"""Frames at the size the network sees, in a memory-mapped file that is made once and shared by all runs.

    frames = open_cache(episodes, size=84)        # episodes of load_episodes; builds what is not there yet, in parallel
    frames[[0, 5, 7]]                             # (3, 84, 84, 3) uint8

    <cache>/<key>/frames.bin                      # (frames of all episodes, 84, 84, 3) uint8, one after the other
    <cache>/<key>/header.json                     # written last: what is in there, and by which function it was resized

The key is made of the episodes' content, the resizing function and the size. The folder is built under another name and
renamed when it is whole, so a build that was interrupted leaves nothing that could be taken for a cache.
`$CLEANRL_GAMES_CACHE` moves it."""

import concurrent.futures
import contextlib
import hashlib
import json
import mmap
import multiprocessing
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cleanrl_games.runtime.cache import cache_folder

from .episodes import EpisodeError, read_frames

RESIZE = "torch-bilinear-antialias-uint8"  # in the header: resizers differ by some grey levels, and a network notices
FEW = 1500  # frames: resized here before a first process would have started
# bytes read before pages are given back; whole pages and large folios count for more than what was read of them
FORGET_AFTER = 256 << 20


def resize(frames, size=84):
    """(N, 160, 240, 3) uint8 → (N, size, size, 3) uint8. The one function for cache, actors and evaluation."""
    pixels = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)  # NCHW, channels last in memory
    small = F.interpolate(pixels, (size, size), mode="bilinear", antialias=True, align_corners=False)
    return np.ascontiguousarray(small.permute(0, 2, 3, 1).numpy())


class DamagedEpisodes(EpisodeError):
    """Files whose pixels turned out to be damaged when they were read. `paths` names all of them."""

    def __init__(self, failures):
        self.paths = list(failures)
        more = f" So are {len(failures) - 1} other files." if len(failures) > 1 else ""
        super().__init__(f"{next(iter(failures.values()))}{more}")


class Frames:
    """(N, size, size, 3) of one or several memory-mapped files, read by index.

    Pages that were read count as this process's memory until they are given back, so they are, every quarter of a
    gigabyte; the system keeps them as long as it has room, and a second look costs no disk.
    """

    def __init__(self, size=84):
        self.size, self.maps, self.arrays, self.starts, self.unreturned = size, [], [], [0], 0
        self.frame_bytes = size * size * 3

    def __len__(self):
        return self.starts[-1]

    def add(self, path, count):
        """Takes the first `count` frames of a file → the index of the first of them"""
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < count * self.frame_bytes:
                raise EpisodeError(
                    f"{path} should hold {count:,} frames of {self.frame_bytes:,} bytes, but is shorter. Delete it."
                )
            self.maps.append(mmap.mmap(file.fileno(), count * self.frame_bytes, access=mmap.ACCESS_READ))
        self.maps[-1].madvise(mmap.MADV_RANDOM)
        self.arrays.append(np.frombuffer(self.maps[-1], np.uint8).reshape(count, self.size, self.size, 3))
        self.starts.append(self.starts[-1] + count)
        return self.starts[-2]

    def forget(self, first):
        """Gives up the file whose first frame has this index; nobody may ask for its frames any more, all others stay
        where they are."""
        number = self.starts.index(first)
        self.arrays[number] = None
        self.maps[number].close()
        self.maps[number] = None

    def __getitem__(self, indices):
        indices = np.asarray(indices)
        out = np.empty((*indices.shape, self.size, self.size, 3), np.uint8)
        rows = out.reshape(-1, self.size, self.size, 3)
        files = np.searchsorted(self.starts, indices.ravel(), side="right") - 1
        for row, (file, index) in enumerate(zip(files, indices.ravel())):
            rows[row] = self.arrays[file][index - self.starts[file]]
        self.unreturned += len(rows) * self.frame_bytes
        if self.unreturned > FORGET_AFTER:
            self.unreturned = 0
            for mapped in filter(None, self.maps):
                mapped.madvise(mmap.MADV_DONTNEED)
        return out


# ------------------------------------------------------------------------------------------------------------- building


def cache_root():
    return cache_folder() / "pokemon_frames"


def cache_key(episodes, size):
    words = [RESIZE, torch.__version__.split("+")[0], str(size), *(episode.key for episode in episodes)]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:24]


def header_of(episodes, size):
    return {
        "resize": RESIZE,
        "torch": torch.__version__.split("+")[0],
        "size": size,
        "frames": [episode.num_frames for episode in episodes],
        "episodes": [episode.key for episode in episodes],
    }


def is_whole(folder, header):
    """Whether this folder is the finished cache of just these episodes."""
    try:
        said = json.loads((folder / "header.json").read_text())
        return (
            said == header and (folder / "frames.bin").stat().st_size == sum(header["frames"]) * header["size"] ** 2 * 3
        )
    except (OSError, ValueError):
        return False


def write_part(path, source, first, count, size):
    """One episode's frames, resized, to their place in the file. Runs in a process of its own."""
    frame_bytes, done = size * size * 3, 0
    with open(path, "r+b") as file:
        file.seek(first * frame_bytes)
        for frames in read_frames(source):
            file.write(resize(frames, size).tobytes())
            done += len(frames)
    if done != count:
        raise EpisodeError(
            f"{source}: it had {count} frames when it was checked and {done} now. Do not change files while they are "
            f"read."
        )


def sweep(root):
    """Removes what builds of processes that are gone have left behind."""
    for folder in root.glob(".*.tmp"):
        owner = folder.name.split(".")[-2]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def build(folder, episodes, size, workers=0, progress=None):
    """Writes the cache into `folder`; `progress(frames done)` is told after each episode."""
    header, path = header_of(episodes, size), folder / "frames.bin"
    total = sum(header["frames"])
    need = total * size * size * 3
    if shutil.disk_usage(folder).free < need:
        raise EpisodeError(
            f"The cache needs {need / 1e9:.1f} GB in {folder.parent}: free some, or set CLEANRL_GAMES_CACHE to "
            f"another disk."
        )
    with open(path, "wb") as file:
        file.truncate(need)
    firsts = np.cumsum([0, *header["frames"]])
    parts = [(path, episode.path, int(first), episode.num_frames, size) for episode, first in zip(episodes, firsts)]
    done, failures = 0, {}
    if len(parts) == 1 or total <= FEW:
        for part in parts:
            try:
                write_part(*part)
            except EpisodeError as error:
                failures[part[1]] = str(error)
            done += part[3]
            if progress:
                progress(done)
    else:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(
            min(workers or os.cpu_count(), len(parts)), context, torch.set_num_threads, (1,)
        ) as pool:
            futures = {pool.submit(write_part, *part): part for part in parts}
            try:
                for future in concurrent.futures.as_completed(futures):
                    part = futures[future]
                    try:
                        future.result()
                    except EpisodeError as error:
                        failures[part[1]] = str(error)
                    done += part[3]
                    if progress:
                        progress(done)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    if failures:
        raise DamagedEpisodes(failures)
    (folder / "header.json").write_text(json.dumps(header))


def open_cache(episodes, size=84, root=None, workers=0, progress=None):
    """→ Frames of these episodes, one after the other, from the cache; a missing or half-written one is built first."""
    root = Path(root) if root else cache_root()
    header, folder = header_of(episodes, size), root / cache_key(episodes, size)
    if not is_whole(folder, header):
        root.mkdir(parents=True, exist_ok=True)
        sweep(root)
        temporary = root / f".{folder.name}.{os.getpid()}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            build(temporary, episodes, size, workers, progress)
            if not is_whole(folder, header):  # another run may have been faster
                shutil.rmtree(folder, ignore_errors=True)
                temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    frames = Frames(size)
    frames.add(folder / "frames.bin", sum(header["frames"]))
    return frames


def open_undamaged(episodes, size=84, root=None, progress=None, skip_bad=False):
    """→ (episodes, their frames). Damage of pixels shows when they are read: with `skip_bad` such files are left out
    with a sentence."""
    try:
        return episodes, open_cache(episodes, size, root, progress=progress)
    except DamagedEpisodes as error:
        kept = [episode for episode in episodes if episode.path not in error.paths]
        if not skip_bad:
            raise EpisodeError(f"{error} (--skip-bad-episodes goes on without such files.)") from None
        if not kept:
            raise EpisodeError(f"{error} No episode is left.") from None
        print(f"Skipped: {error}", flush=True)
        return kept, open_cache(kept, size, root, progress=progress)


@contextlib.contextmanager
def progress_bar(total, label):
    """Gives a function that is told how much is done: a bar in a terminal, silence elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
