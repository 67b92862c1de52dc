"""The actors of a script on a Ray cluster (--ray-address): the same Actor class, on as many machines as the cluster has."""

import os
import signal
from pathlib import Path

import torch


def ray_rollouts(args, broadcast, stopping, actor_class, make_storage):
    """Yields (actor's index, storage, rollouts under way), like the script's own generators.

    `broadcast` holds shared tensors; each rollout is sent a copy of them, frozen policies only when they have changed. A lost actor is
    reported and replaced by a new one with the same index.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray  # takes a second and starts threads: only for those who ask for it

    package = str(Path(__file__).resolve().parents[1])  # cleanrl_games
    handler = signal.getsignal(signal.SIGTERM)
    environment = {"py_modules": [package], "excludes": ["__pycache__"]}
    ray.init(args.ray_address, log_to_driver=False, logging_level="error", runtime_env=environment)
    signal.signal(signal.SIGTERM, handler)  # Ray has put its own there

    broadcast_class = type(broadcast)

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
                except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:  # it, or its finished rollout
                    print(f"Ray actor {index} was lost ({type(error).__name__}): a new one takes its place.", flush=True)
                    del actors[index]
                dispatch(index)
                if storage is not None:
                    yield index, {name: torch.from_numpy(array.copy()) for name, array in storage.items()}, len(pending)
    finally:
        ray.shutdown()
