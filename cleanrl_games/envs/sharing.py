"""What a learner and its actors hand each other: weights as one flat tensor, an actor's state, and memory that they share.

Without /dev/shm, for WSL and containers where that is small (--sharing file_system):

    learner: unlinked temporary file ── mapped ──> MappedTensor ── pickled as /proc/<pid>/fd/<n> ──> actor: the same pages

PyTorch's own sharing strategies, `file_system` included, both keep their memory in /dev/shm. Here the pages belong to a file in
the temporary folder that has no name: nothing is left behind, however the processes end.
"""

import copy
import json
import math
import multiprocessing
import os
import shutil
import tempfile

import numpy as np
import torch

SHM = "/dev/shm"

# --------------------------------------------------------------------------------------------------- weights and states


def to_flat(agent):
    """All weights and statistics of a network, one after another."""
    return torch.cat([tensor.detach().flatten().cpu() for tensor in agent.state_dict().values()])


def from_flat(agent, flat):
    offset = 0
    for tensor in agent.state_dict().values():
        tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
        offset += tensor.numel()


def with_weights(agent, flat):
    """A copy of the network that has these weights."""
    policy = copy.deepcopy(agent)
    from_flat(policy, flat)
    return policy


class Board:
    """What a learner tells its actors: weights by version, frozen policies, numbers. In shared memory.

    numbers: the version, then what the script puts there. league: a column for each frozen policy, its serial number first (0 = none),
    with the same place in `snapshots`; places beyond those are for players without weights."""

    def __init__(self, args, num_parameters, numbers, rows, extra_places=0):
        self.weights = share(torch.zeros(num_parameters), args.sharing)
        self.snapshots = share(torch.zeros(args.league_size, num_parameters), args.sharing)
        self.numbers = share(torch.zeros(numbers, dtype=torch.float64), args.sharing)
        self.league = share(torch.zeros(rows, args.league_size + extra_places, dtype=torch.float64), args.sharing)
        self.lock = multiprocessing.get_context("spawn").Lock()

    def keep(self, flat, members):
        """Keeps the weights of one who joins these members → its place"""
        place = min(set(range(len(self.snapshots))) - {member["row"] for member in members})
        with self.lock:
            self.snapshots[place] = flat
        return place

    def publish(self, agent, numbers, columns):
        """Hands weights, numbers and {place: its column} to the actors, all of one version."""
        with self.lock:
            self.weights.copy_(to_flat(agent))
            self.numbers.copy_(torch.as_tensor(numbers))
            self.league.zero_()
            for place, column in columns.items():
                self.league[:, place] = torch.tensor(column, dtype=torch.float64)


def invite(actor, board, guests, in_use):
    """Gives an actor the policies of these serial numbers, copied when first needed, and takes those that are not in use any more."""
    serials = board.league[0].tolist()
    for serial in set(guests) - set(actor.members):
        actor.members[serial] = with_weights(actor.agent, board.snapshots[serials.index(serial)])
    actor.members = {serial: policy for serial, policy in actor.members.items() if serial in {*guests, *in_use}}


def actor_state(actor, arrays):
    """What every actor has to remember for an exact resume: these arrays, its guests and its dice."""
    return {
        "arrays": {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()},
        "members": {serial: to_flat(policy) for serial, policy in actor.members.items()},
        "rng": json.dumps(actor.rng.bit_generator.state),
        "generator": actor.generator.get_state(),
    }


def load_actor_state(actor, state):
    """Gives an actor its guests and its dice back → the arrays"""
    actor.members = {serial: with_weights(actor.agent, flat) for serial, flat in state["members"].items()}
    actor.rng.bit_generator.state = json.loads(state["rng"])
    actor.generator.set_state(state["generator"])
    return {name: tensor.numpy() for name, tensor in state["arrays"].items()}


# -------------------------------------------------------------------------------------------------------- shared memory


class MappedTensor(torch.Tensor):
    """A tensor over a mapped file. What is computed with it is a plain tensor; sent to another process it is mapped there too."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def share_memory_(self):
        return self

    def __reduce_ex__(self, protocol):
        return map_file, (f"/proc/{os.getpid()}/fd/{self.file.fileno()}", tuple(self.shape), self.dtype)


def map_file(path, shape, dtype):
    return torch.from_file(path, shared=True, size=math.prod(shape), dtype=dtype).view(shape)


def mapped(tensor):
    """A zeroed MappedTensor of the same shape and type; its room on the disk is taken at once, so that no later write can fail."""
    file = tempfile.TemporaryFile(prefix="cleanrl_games-")  # noqa: SIM115 (open as long as the tensor)
    try:
        os.posix_fallocate(file.fileno(), 0, max(tensor.nbytes, 1))
    except OSError as error:
        raise SystemExit(
            f"{tempfile.gettempdir()} has no room for {tensor.nbytes / 2**20:.0f} MB of shared memory ({error.strerror}): "
            "free some, set TMPDIR to a larger disk, or take fewer --num-workers or a smaller --buffer-size."
        ) from None
    result = map_file(f"/proc/{os.getpid()}/fd/{file.fileno()}", tensor.shape, tensor.dtype).as_subclass(MappedTensor)
    result.file = file
    return result


def share(tensor, how):
    """A zeroed tensor, so that other processes see what is written to it. how: "shared_memory" or "file_system" """
    return mapped(tensor) if how == "file_system" else tensor.share_memory_()


def settle(args, make_storage, num_parameters):
    """What --sharing means on this machine, given what is shared: two rollouts of each actor, the board's weights and snapshots."""
    slot = sum(tensor.nbytes for tensor in make_storage(args).values())
    board = 4 * (args.league_size + 1) * num_parameters
    return choose_sharing(args.sharing, 2 * args.num_workers * slot + board)


def choose_sharing(sharing, needed):
    """ "auto" → "file_system" if /dev/shm cannot hold `needed` bytes, else "shared_memory"; what was asked for stays."""
    if sharing != "auto":
        return sharing
    free = shutil.disk_usage(SHM).free if os.path.isdir(SHM) else 0
    if free > 1.1 * needed:
        return "shared_memory"
    print(f"{SHM} has {free / 2**20:.0f} MB left of the {needed / 2**20:.0f} MB that are needed: --sharing file_system.", flush=True)
    return "file_system"
