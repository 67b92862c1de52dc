"""The actors of a script on a Ray cluster (--ray-address): the same Actor class, on as many machines as the cluster
has.

ray_rollouts   rollouts without end, with the newest weights each
RayJobs        jobs that are handed out one by one, with a result each
ray_streams    iterators, each on a core of its own, of which a few items at a time are fetched
run_all        a few functions at once
"""

import collections
import itertools
import os
import signal
import socket
from pathlib import Path

import torch

from cleanrl_games.runtime.errors import BadInput, RunFailed, first_line


def check_address(address):
    """Refuses an address where nobody answers, at once: Ray itself would try for minutes. "" and "auto" are left to
    Ray."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address in ("", "auto", "local"):
        return
    if not colon or not port.isdigit():
        raise BadInput(
            f"--ray-address {address}: give host:port as `ray start` prints it, or auto for the cluster of this "
            f"machine."
        )
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(
            f"--ray-address {address}: nobody answers there ({reason}). Is the head started (`ray start --head`)?"
        ) from None


def connect(address):
    """Joins the cluster, where this package is sent to; once is enough → the module ray"""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray  # takes a second and starts threads: only for those who ask for it

    if ray.is_initialized():
        return ray
    package = str(Path(__file__).resolve().parents[1])  # cleanrl_games
    environment = {"py_modules": [package], "excludes": ["__pycache__"]}
    handler = signal.getsignal(signal.SIGTERM)
    check_address(address)
    try:
        ray.init(address, log_to_driver=False, logging_level="error", runtime_env=environment)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BadInput(f"--ray-address {address}: Ray cannot join that cluster ({first_line(error)}).") from None
    signal.signal(signal.SIGTERM, handler)  # Ray has put its own there
    return ray


def lost_errors(ray):
    """What Ray raises when a machine, a process on it, or a result that it held is gone"""
    return ray.exceptions.RayActorError, ray.exceptions.ObjectLostError


def say_lost(index, error):
    """An actor that was playing is replaced; one that could not even start would never get further."""
    if getattr(error, "actor_init_failed", False):
        reason = str(error).strip().splitlines()[-1]
        raise RunFailed(f"Ray actor {index} cannot start on the cluster: {reason}") from None
    print(f"Ray actor {index} was lost ({type(error).__name__}): a new one takes its place.", flush=True)


def ray_rollouts(args, broadcast, stopping, actor_class, make_storage):
    """Yields (actor's index, storage, rollouts under way), like the script's own generators.

    `broadcast` holds shared tensors; each rollout is sent a copy of them, frozen policies only when they have changed.
    A lost actor is reported and replaced by a new one with the same index.
    """
    ray, broadcast_class = connect(args.ray_address), type(broadcast)

    @ray.remote(num_cpus=1)
    class RemoteActor:
        def __init__(self, index):
            torch.set_num_threads(args.actor_threads)
            self.actor, self.storage = actor_class(args, index), make_storage(args)

        def rollout(self, **arrays):
            tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
            self.actor.rollout(broadcast_class.from_tensors(tensors), self.storage)
            return {name: tensor.numpy() for name, tensor in self.storage.items()}

    actors, pending, sent = {}, {}, {}

    def dispatch(index):
        if index not in actors:
            actors[index] = RemoteActor.remote(index)
        with broadcast.lock:
            for name, tensor in broadcast.tensors().items():
                if name not in sent or not torch.equal(sent[name][0], tensor):
                    sent[name] = (tensor.clone(), ray.put(tensor.numpy().copy()))
        pending[actors[index].rollout.remote(**{name: reference for name, (_, reference) in sent.items()})] = index

    try:
        for index in range(args.num_workers):
            dispatch(index)
        while not stopping:
            for ready in ray.wait(list(pending), timeout=1.0)[0]:
                index, storage = pending.pop(ready), None
                try:
                    storage = ray.get(ready)
                except lost_errors(ray) as error:  # it, or its finished rollout
                    say_lost(index, error)
                    del actors[index]
                dispatch(index)
                if storage is not None:
                    yield index, {name: torch.from_numpy(array.copy()) for name, array in storage.items()}, len(pending)
    finally:
        ray.shutdown()


class RayJobs:
    """`submit` jobs; `poll` → [(job, result)] of those that ended, result None where its actor was lost over it. A new
    actor takes the place of a lost one."""

    def __init__(self, address, count, make_player, threads=1):
        """make_player(index) → what has play(job) → result; threads: torch's, of each of `count` actors"""
        self.ray, self.count = connect(address), count

        @self.ray.remote(num_cpus=1)
        class RemotePlayer:
            def __init__(self, index):
                torch.set_num_threads(threads)
                self.player = make_player(index)

            def ready(self):
                return None

            def play(self, job):
                return self.player.play(job)

        self.remote_class, self.actors, self.idle = RemotePlayer, {}, []
        # running: {answer to come: (actor's index, its job)}; none while it starts. Only who has started is given one:
        # a cluster that has become smaller may have no core for the rest.
        self.backlog, self.running = collections.deque(), {}
        for index in range(count):
            self.start(index)

    def start(self, index):
        self.actors[index] = self.remote_class.remote(index)
        self.running[self.actors[index].ready.remote()] = (index, None)

    @property
    def pending(self):
        """Jobs that were submitted and have not come back"""
        return len(self.backlog) + sum(job is not None for _, job in self.running.values())

    def submit(self, job):
        self.backlog.append(job)
        self.feed()

    def feed(self):
        while self.idle and self.backlog:
            index, job = self.idle.pop(0), self.backlog.popleft()
            self.running[self.actors[index].play.remote(job)] = (index, job)

    def poll(self, timeout=0.0):
        """Waits for the first answer for at most `timeout` seconds."""
        ended = []
        for answer in self.ray.wait(list(self.running), timeout=timeout)[0] if self.running else []:
            index, job = self.running.pop(answer)
            result = None
            try:
                result = self.ray.get(answer)
                self.idle.append(index)
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, BadInput) else error from None
            except lost_errors(self.ray) as error:
                say_lost(index, error)
                self.start(index)
            if job is not None:
                ended.append((job, result))
        self.feed()
        return ended

    def close(self):
        for actor in self.actors.values():
            self.ray.kill(actor)


def ray_streams(address, makers, stopping, items_at_once=16):
    """Yields (number, item) of iterators that run on the cluster, until all have ended. makers: functions that make
    them; each must make the same items again, so that a lost one goes on behind what has been taken of it."""
    ray = connect(address)

    @ray.remote(num_cpus=1)
    class Stream:
        def __init__(self, make, skip):
            torch.set_num_threads(1)
            self.items = make()
            collections.deque(itertools.islice(self.items, skip), maxlen=0)

        def take(self):
            return list(itertools.islice(self.items, items_at_once))

    actors, taken, pending = {}, [0] * len(makers), {}

    def dispatch(number):
        if number not in actors:
            actors[number] = Stream.remote(makers[number], taken[number])
        pending[actors[number].take.remote()] = number

    try:
        for number in range(len(makers)):
            dispatch(number)
        while pending and not stopping:
            for ready in ray.wait(list(pending), timeout=1.0)[0]:
                number = pending.pop(ready)
                try:
                    items = ray.get(ready)
                except lost_errors(ray) as error:
                    say_lost(number, error)
                    del actors[number]
                    dispatch(number)
                    continue
                taken[number] += len(items)
                if len(items) == items_at_once:
                    dispatch(number)
                else:
                    ray.kill(actors.pop(number))  # its core is free for another
                yield from ((number, item) for item in items)
    finally:
        for actor in actors.values():
            ray.kill(actor)


def run_all(address, functions):
    """What these functions return, computed on the cluster at the same time. One whose machine is lost is run again."""
    ray = connect(address)

    @ray.remote(num_cpus=1, max_retries=3)
    def run(function):
        torch.set_num_threads(1)
        return function()

    return ray.get([run.remote(function) for function in functions])
