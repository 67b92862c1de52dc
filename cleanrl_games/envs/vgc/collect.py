"""Scripted players play each other, every core of the machine, and what they saw and did becomes a set of
demonstrations.

process × workers:  VGCVecEnv(opponents=(expert, expert), record=True) ──> Writer ──> shards
                                      └─ battles, rows, finished shards ──> pipe ──> index.json, progress

On a cluster the battles themselves come back, and the Writers are here.
"""

import contextlib
import functools
import itertools
import multiprocessing
import signal
import sys
import time
import traceback
from multiprocessing import connection
from pathlib import Path

import numpy as np

from cleanrl_games.envs.vgc import demonstrations as demos
from cleanrl_games.envs.vgc.match import BASELINES
from cleanrl_games.envs.vgc.teams import team_mix
from cleanrl_games.envs.vgc.vec_env import OPPONENTS, RANDOM_PLAY, VGCVecEnv

TABLES = 32  # battles at a time of one process
GENERATED = 1024  # teams, when generated ones are asked for


def pack(frames: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Frames of VGCVecEnv and what was played → ROWs; a play of dice (RANDOM_PLAY) is nothing to learn from."""
    rows = np.zeros(len(frames), demos.ROW)
    for name in ("ints", "floats", "slots", "pass_rule", "kind"):
        rows[name] = frames[name]
    rows["known"] = np.where(actions == RANDOM_PLAY, 0, demos.FIRST | demos.SECOND)
    rows["action"] = np.maximum(actions, 0)
    return rows


def record(battle_format, teams, experts, num_battles, seed):
    """Plays `num_battles` battles → for each: (number of rows, [(rows, side, source, outcome) of both seats])"""
    tables = min(TABLES, num_battles)
    quota = np.full(tables, num_battles // tables) + (np.arange(tables) < num_battles % tables)
    pairs = list(itertools.islice(itertools.cycle(itertools.product(experts, repeat=2)), tables))
    streams, done = {}, 0
    with VGCVecEnv(tables, 1, battle_format, teams, seed=seed, opponents=pairs, record=True) as env:
        while done < num_battles:
            batch = env.recv()
            seen = sorted(batch.played)
            packed = pack(batch.frames[seen], np.array([batch.played[row] for row in seen], np.int64))
            for row, decision in zip(seen, packed):
                stream = streams.setdefault((batch.battle[row], batch.episode[row], batch.side[row]), [])
                if batch.retry[row]:
                    stream.pop()  # asked again, because the answer was unavailable for a hidden reason
                stream.append(decision)
            for end in batch.finished:
                seats = [streams.pop((end["battle"], end["episode"], side), []) for side in (0, 1)]
                if end["episode"] >= quota[end["battle"]] or end["winner"] < 0:
                    # truncated: counted, so that it cannot go on for ever
                    done += int(end["episode"] < quota[end["battle"]])
                    continue
                done += 1
                yield [
                    (
                        np.array(rows, demos.ROW),
                        side,
                        OPPONENTS[end[f"p{side + 1}"]],
                        demos.outcome(end["winner"], side),
                    )
                    for side, rows in enumerate(seats)
                ]


def worker_main(pipe):
    """The life of a collecting process: it gets its job and sends (battles, decisions, the shard that is full now), and
    "end" at last. Ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        folder, name, job = pipe.recv()
        writer = demos.Writer(folder, name)
        for battle in record(**job):
            pipe.send((1, sum(len(rows) for rows, *_ in battle), writer.add(battle)))
        pipe.send((0, 0, writer.flush()))
        pipe.send("end")
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended
        return
    except Exception:
        pipe.send(traceback.format_exc())


class CollectingView:
    """A progress bar in a terminal, else a line every ten seconds."""

    def __init__(self, battles: int):
        self.battles, self.start, self.shown, self.bar = battles, time.time(), 0.0, None
        if sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            )
            self.task = self.bar.add_task("collecting battles", total=battles)
            self.bar.start()

    def __call__(self, battles: int, rows: int) -> None:
        speed = rows / (time.time() - self.start)
        if self.bar:
            self.bar.update(self.task, completed=battles, description=f"collecting battles, {speed:,.0f} decisions/s")
        elif time.time() - self.shown > 10 or battles == self.battles:
            self.shown = time.time()
            print(f"collected {battles:,} of {self.battles:,} battles, {speed:,.0f} decisions/s", flush=True)

    def close(self) -> None:
        if self.bar:
            self.bar.stop()


def process_reports(folder, name, jobs, stopping):
    """A process for each job → what they report, until all have ended. One that is killed is replaced: its full shards
    stay, the rest of its battles are played anew. Each has a pipe of its own, so that it leaves no lock behind."""
    context = multiprocessing.get_context("spawn")
    processes, pipes, deaths = {}, {}, []
    left = [job["num_battles"] for job in jobs]  # not in a shard yet
    unsaved = [[0, 0] for _ in jobs]  # battles and decisions that were reported and are in no shard

    def start(number):
        pipes[number], theirs = context.Pipe()
        anew = f"{len(deaths)}_" if deaths else ""
        job = {**jobs[number], "num_battles": left[number], "seed": jobs[number]["seed"] + 100_003 * len(deaths)}
        process = context.Process(target=worker_main, args=(theirs,), name=f"collect-{number}", daemon=True)
        process.start()
        processes[number] = process
        theirs.close()  # so that its death is noticed here
        with contextlib.suppress(OSError):  # it is dead already: the loop below will see that
            pipes[number].send((folder, f"{name}{number}_{anew}", job))

    def replace(number):
        process = processes[number]
        process.join()
        deaths.append(time.monotonic())
        cause = f"pid {process.pid}, exit code {process.exitcode}"
        print(f"Collecting process {number} died ({cause}): a new one takes its place.", flush=True)
        if len(deaths) >= 3 and deaths[-1] - deaths[-3] < 60.0:
            raise demos.DemonstrationError(
                f"Three collecting processes died within a minute, the last one of: {cause}."
            )
        del pipes[number]
        if left[number]:
            start(number)

    try:
        for number in range(len(jobs)):
            start(number)
        while pipes and not stopping:
            ready = connection.wait(pipes.values(), timeout=1.0)
            for number, pipe in list(pipes.items()):
                if pipe not in ready:
                    continue
                try:
                    report = pipe.recv()
                except (EOFError, OSError):  # nobody holds the other end any more
                    replace(number)
                    yield -unsaved[number][0], -unsaved[number][1], None
                    unsaved[number] = [0, 0]
                    continue
                if report == "end":
                    del pipes[number]
                elif isinstance(report, str):
                    raise RuntimeError(f"A collecting process failed:\n{report}")
                else:
                    battles, decisions, shard = report
                    unsaved[number] = [unsaved[number][0] + battles, unsaved[number][1] + decisions]
                    if shard:
                        left[number] -= shard["battles"]
                        unsaved[number] = [0, 0]
                    yield battles, decisions, shard
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join()


def inline_reports(folder, name, jobs, stopping):
    for number, job in enumerate(jobs):
        writer = demos.Writer(folder, f"{name}{number}_")
        for battle in record(**job):
            yield 1, sum(len(rows) for rows, *_ in battle), writer.add(battle)
            if stopping:
                return
        yield 0, 0, writer.flush()


def cluster_reports(folder, name, jobs, stopping, streams):
    """A core of the cluster for each job. The dice are in the job, so a lost one plays the same battles again."""
    writers = [demos.Writer(folder, f"{name}{number}_") for number in range(len(jobs))]
    makers = [functools.partial(record, **job) for job in jobs]
    for number, battle in streams(makers, stopping):
        yield 1, sum(len(rows) for rows, *_ in battle), writers[number].add(battle)
    if not stopping:
        yield from ((0, 0, writer.flush()) for writer in writers)


def collect(
    folder, battle_format, experts, team_sources, num_battles, seed, workers, progress, stopping=(), streams=None
):
    """Brings the set in `folder` to `num_battles` battles, in `workers` processes or, with 0, in this one.
    `progress(battles, rows)` is called after each; ends early once `stopping` is not empty.

    streams(functions that make iterators, stopping) → (number, item): runs them elsewhere, on a cluster."""
    unknown = sorted(set(experts) - set(BASELINES))
    if unknown or not experts:
        raise demos.DemonstrationError(
            f"There is no expert {', '.join(unknown) or 'given'}: choose from {', '.join(BASELINES)}."
        )
    folder = Path(folder)
    index = (
        demos.read_index(folder, battle_format) if (folder / "index.json").exists() else demos.new_index(battle_format)
    )
    there = sum(shard["battles"] for shard in index["shards"])
    missing, done, rows = num_battles - there, 0, 0
    if missing <= 0:
        return
    settings = {
        "battle_format": battle_format,
        "teams": team_mix(team_sources, battle_format, size=GENERATED),
        "experts": tuple(experts),
    }
    count = max(1, min(workers, missing))
    jobs = [
        {
            **settings,
            "num_battles": missing // count + (number < missing % count),
            "seed": seed * 1000 + 7 * there + number,
        }
        for number in range(count)
    ]
    names = folder, f"{there:06d}_", jobs, stopping
    if workers and streams:
        reports = cluster_reports(*names, streams)
    else:
        reports = process_reports(*names) if workers else inline_reports(*names)
    for battles, decisions, shard in reports:
        done, rows = done + battles, rows + decisions
        if shard:
            index["shards"].append(shard)
            demos.write_index(folder, index)
        progress(there + done, rows)
