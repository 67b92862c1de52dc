"""Where a script's actors run: inline, in processes on this machine, or on a Ray cluster. The script's Actor knows nothing of it.

    learner ── number of a free slot ──► actor process: Actor.rollout(board, slot)
            ◄── number of a full slot ──

Rollouts lie in shared memory, two slots per actor, so that it fills one while the learner reads the other. Only integers cross a queue.
"""

import contextlib
import queue
import signal
import traceback

import torch
import torch.multiprocessing as mp

from cleanrl_games.runtime import ray_actors, shared_memory


def rollouts(args, board, actor_class, make_storage, actor=None):
    """Yields (actor's index, its rollout, rollouts that wait) for ever; a rollout is the actor's again when the next one is asked for.

    actor: the one that plays in this process, if there are no others."""
    if actor:
        return inline_rollouts(args, board, actor, make_storage)
    if args.ray_address:
        return ray_actors.ray_rollouts(args, board, [], actor_class, make_storage)
    return process_rollouts(args, board, actor_class, make_storage)


def inline_rollouts(args, board, actor, make_storage):
    storage = make_storage(args)
    while True:
        actor.rollout(board, storage)
        yield 0, storage, 0


def process_rollouts(args, board, actor_class, make_storage):
    context = mp.get_context("spawn")
    slots = [
        {name: shared_memory.share(tensor, args.sharing) for name, tensor in make_storage(args).items()}
        for _ in range(2 * args.num_workers)
    ]
    free, full = [context.Queue() for _ in range(args.num_workers)], context.Queue()
    workers = [
        context.Process(target=actor_main, args=(actor_class, args, i, board, slots, free[i], full), name=f"actor-{i}", daemon=True)
        for i in range(args.num_workers)
    ]
    try:
        for index, worker in enumerate(workers):
            worker.start()
            free[index].put(2 * index)
            free[index].put(2 * index + 1)
        while True:
            with contextlib.suppress(queue.Empty):
                index, slot, error = full.get(timeout=1.0)
                if error:
                    raise RuntimeError(f"Actor process {index} failed:\n{error}")
                yield index, slots[slot], full.qsize()
                free[index].put(slot)
            for index, worker in enumerate(workers):
                if worker.exitcode is not None:
                    raise RuntimeError(f"Actor process {index} (pid {worker.pid}) died with exit code {worker.exitcode}.")
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def actor_main(actor_class, args, index, board, slots, free, full):
    """The life of an actor process: take a free slot, fill it, say so. Ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the learner's to handle
    torch.set_num_threads(args.actor_threads)
    parent = mp.parent_process()  # not getppid: the learner may have died before this line
    try:
        actor = actor_class(args, index)
        while parent.is_alive():
            with contextlib.suppress(queue.Empty):
                slot = free.get(timeout=1.0)
                actor.rollout(board, slots[slot])
                full.put((index, slot, ""))
    except Exception:
        full.put((index, -1, traceback.format_exc()))
