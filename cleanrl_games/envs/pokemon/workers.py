"""Processes that each do one job after the other, and what happens when one of them dies: a new one takes its place.

    workers = Workers(2, Actor, args)         # in each process: player = Actor(args, index); then player.play(job) for every job
    workers.submit({"worlds": [1, 2]})
    for job, result in workers.poll(): ...    # result is None when the process died over this job

An emulator is foreign machine code that can take its process with it; that costs the job it was at, said once, and never the run. An
exception is another matter: it is a fault of ours and ends the run with the worker's traceback. Each worker has a pipe of its own,
because a process that dies while it holds the lock of a shared queue would silence all others.
"""

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import signal
import traceback

MAX_DEATHS = 5  # in a row, without a finished job in between: then something is wrong that restarting does not mend


def worker_main(connection, player_class, arguments, index):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone: so are we
        try:
            player = player_class(*arguments, index)
            while parent.is_alive():
                if connection.poll(1.0):
                    connection.send((player.play(connection.recv()), ""))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception:
            connection.send((None, traceback.format_exc()))


class Workers:
    def __init__(self, count, player_class, *arguments):
        self.context = multiprocessing.get_context("spawn")
        self.count, self.player_class, self.arguments = count, player_class, arguments
        self.backlog, self.deaths, self.has_said = collections.deque(), 0, False
        self.processes, self.connections, self.jobs = [None] * count, [None] * count, [None] * count
        for index in range(count):
            self._start(index)

    def _start(self, index):
        here, there = self.context.Pipe()
        process = self.context.Process(
            target=worker_main, args=(there, self.player_class, self.arguments, index), name=f"actor-{index}", daemon=True
        )
        process.start()
        there.close()  # so that a death shows as the end of the pipe
        self.processes[index], self.connections[index], self.jobs[index] = process, here, None

    @property
    def pending(self):
        """Jobs that were submitted and have not come back"""
        return len(self.backlog) + sum(job is not None for job in self.jobs)

    def submit(self, job):
        self.backlog.append(job)
        self._feed()

    def _feed(self):
        for index, job in enumerate(self.jobs):
            if job is None and self.backlog:
                job = self.backlog.popleft()
                self.jobs[index] = job
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is dead: `poll` will see that
                    self.connections[index].send(job)

    def _bury(self, index):
        """→ the job that the dead worker was at"""
        process, job = self.processes[index], self.jobs[index]
        self.connections[index].close()
        process.join(5.0)
        self.deaths += 1
        if self.deaths > MAX_DEATHS:
            raise RuntimeError(
                f"Emulator process {index} died with exit code {process.exitcode}, the {self.deaths}th in a row without a finished job: "
                "restarting does not help. Look for the reason in the system's log (out of memory?)."
            )
        if not self.has_said:
            self.has_said = True
            print(
                f"Emulator process {index} (pid {process.pid}) died with exit code {process.exitcode}: a new one takes its place, what it was "
                "playing is dropped. Further deaths are not announced.",
                flush=True,
            )
        self._start(index)
        return job

    def poll(self, timeout=0.0):
        """→ [(job, result)] of the jobs that ended by now, after at most `timeout` seconds of waiting for one"""
        ended = []
        for connection in multiprocessing.connection.wait(self.connections, timeout):
            index = self.connections.index(connection)
            try:
                result, error = connection.recv()
            except (EOFError, ConnectionResetError):
                job = self._bury(index)
                if job is not None:
                    ended.append((job, None))
                continue
            if error:
                raise RuntimeError(f"Actor process {index} failed:\n{error}")
            ended.append((self.jobs[index], result))
            self.jobs[index], self.deaths = None, 0
        self._feed()
        return ended

    def close(self):
        for process in self.processes:
            process.terminate()
        for process, connection in zip(self.processes, self.connections):
            process.join()
            connection.close()


class Inline:
    """The same without processes: a job is done when it is submitted. For a debugger, and for runs that repeat to the bit."""

    def __init__(self, player_class, *arguments):
        self.count, self.player, self.ended, self.pending = 1, player_class(*arguments, 0), [], 0

    def submit(self, job):
        self.ended.append((job, self.player.play(job)))
        self.pending += 1

    def poll(self, timeout=0.0):
        ended, self.ended, self.pending = self.ended, [], 0
        return ended

    def close(self):
        pass
