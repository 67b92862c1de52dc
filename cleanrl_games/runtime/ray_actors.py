"""The actors of a script on a Ray cluster (--ray-address): the same Actor class, on as many machines as the cluster
has."""

import os
import signal
import socket
from pathlib import Path

import torch

from cleanrl_games.runtime.errors import BadInput, first_line


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
    """Joins the cluster, where this package is sent to → the module ray"""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray  # takes a second and starts threads: only for those who ask for it

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
                except (
                    ray.exceptions.RayActorError,
                    ray.exceptions.ObjectLostError,
                ) as error:  # it, or its finished rollout
                    print(
                        f"Ray actor {index} was lost ({type(error).__name__}): a new one takes its place.", flush=True
                    )
                    del actors[index]
                dispatch(index)
                if storage is not None:
                    yield index, {name: torch.from_numpy(array.copy()) for name, array in storage.items()}, len(pending)
    finally:
        ray.shutdown()
