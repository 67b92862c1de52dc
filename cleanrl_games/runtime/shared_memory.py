"""What a learner and its actors hand each other: weights as one flat tensor, an actor's state, and memory that they
share.

Without /dev/shm, for WSL and containers where that is small (--sharing file_system):

    learner: unlinked temporary file ── mapped ──> MappedTensor ── pickled as /proc/<pid>/fd/<n> ──> actor: the same
    pages

PyTorch's own sharing strategies, `file_system` included, both keep their memory in /dev/shm. Here the pages belong to a
file in the temporary folder that has no name: nothing is left behind, however the processes end.
"""

import contextlib
import copy
import json
import math
import multiprocessing
import os
import shutil
import tempfile

import numpy as np
import torch

from cleanrl_games.runtime.errors import BadInput

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


def copy_with_weights(agent, flat):
    """A copy of the network that has these weights."""
    policy = copy.deepcopy(agent)
    from_flat(policy, flat)
    return policy


class Broadcast:
    """What a learner tells its actors, all of one version: its weights, frozen policies, and what the script wants to
    tell of them.

    numbers: {name: float64 tensor}; "version" is always there.
    members: {name: float64 tensor, an entry for each place}; "policy_id" is always there, 0 = nobody has that place.
    The weights of the frozen policy in a place are in `member_weights`; places beyond those are for players without
    weights."""

    def __init__(self, sharing, num_parameters, num_members, numbers=None, member_fields=(), extra_places=0):
        """numbers: {name: how many}, beside "version"; member_fields: names beside "policy_id" """
        self.weights = share(torch.zeros(num_parameters), sharing)
        self.member_weights = share(torch.zeros(num_members, num_parameters), sharing)
        sizes = {"version": 1, **(numbers or {})}
        self.numbers = {name: share(torch.zeros(size, dtype=torch.float64), sharing) for name, size in sizes.items()}
        places = num_members + extra_places
        names = ("policy_id", *member_fields)
        self.members = {name: share(torch.zeros(places, dtype=torch.float64), sharing) for name in names}
        self.lock = multiprocessing.get_context("spawn").Lock()

    @property
    def version(self):
        return int(self.numbers["version"][0])

    def store(self, flat, taken):
        """Keeps the weights of a new frozen policy → its place, none of those in `taken`"""
        place = min(set(range(len(self.member_weights))) - set(taken))
        with self.lock:
            self.member_weights[place] = flat
        return place

    def publish(self, agent, version, numbers=None, members=None):
        """numbers: {name: value or values}; members: {place: {field: value}}"""
        with self.lock:
            self.weights.copy_(to_flat(agent))
            for name, values in {"version": version, **(numbers or {})}.items():
                self.numbers[name][:] = torch.as_tensor(values, dtype=torch.float64)
            for column in self.members.values():
                column.zero_()
            for place, fields in (members or {}).items():
                for name, value in fields.items():
                    self.members[name][place] = value

    def tensors(self):
        """Everything that is told, as {name: tensor}, for those who cannot share this memory"""
        named = {"weights": self.weights, "member_weights": self.member_weights}
        named |= {f"numbers/{name}": tensor for name, tensor in self.numbers.items()}
        return named | {f"members/{name}": tensor for name, tensor in self.members.items()}

    @classmethod
    def from_tensors(cls, tensors):
        """The same, on another machine"""
        self = cls.__new__(cls)
        self.weights, self.member_weights = tensors["weights"], tensors["member_weights"]
        for group in ("numbers", "members"):
            prefix = f"{group}/"
            setattr(
                self,
                group,
                {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)},
            )
        self.lock = contextlib.nullcontext()
        return self


def load_members(members, agent, broadcast, wanted, in_use):
    """Frozen policies by id: those that are wanted are copied when first needed, those that nobody needs any more are
    dropped.

    members: {policy_id: policy} as it was; agent: a network of the same kind → {policy_id: policy}"""
    ids = broadcast.members["policy_id"].tolist()
    members = dict(members)
    for policy_id in set(wanted) - set(members):
        members[policy_id] = copy_with_weights(agent, broadcast.member_weights[ids.index(policy_id)])
    return {policy_id: policy for policy_id, policy in members.items() if policy_id in {*wanted, *in_use}}


def actor_state(actor, arrays):
    """What every actor has to remember for an exact resume: these arrays, its frozen opponents and its dice."""
    return {
        "arrays": {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()},
        "members": {serial: to_flat(policy) for serial, policy in actor.members.items()},
        "rng": json.dumps(actor.rng.bit_generator.state),
        "generator": actor.generator.get_state(),
    }


def load_actor_state(actor, state):
    """Gives an actor its frozen opponents and its dice back → the arrays"""
    actor.members = {serial: copy_with_weights(actor.agent, flat) for serial, flat in state["members"].items()}
    actor.rng.bit_generator.state = json.loads(state["rng"])
    actor.generator.set_state(state["generator"])
    return {name: tensor.numpy() for name, tensor in state["arrays"].items()}


# -------------------------------------------------------------------------------------------------------- shared memory


class MappedTensor(torch.Tensor):
    """A tensor over a mapped file. What is computed with it is a plain tensor; sent to another process it is mapped
    there too."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def share_memory_(self):
        return self

    def __reduce_ex__(self, protocol):
        return map_file, (f"/proc/{os.getpid()}/fd/{self.file.fileno()}", tuple(self.shape), self.dtype)


def map_file(path, shape, dtype):
    return torch.from_file(path, shared=True, size=math.prod(shape), dtype=dtype).view(shape)


def mapped(tensor):
    """A zeroed MappedTensor of the same shape and type; its room on the disk is taken at once, so that no later write
    can fail."""
    file = tempfile.TemporaryFile(prefix="cleanrl_games-")  # noqa: SIM115 (open as long as the tensor)
    try:
        os.posix_fallocate(file.fileno(), 0, max(tensor.nbytes, 1))
    except OSError as error:
        raise BadInput(
            f"{tempfile.gettempdir()} has no room for {tensor.nbytes / 2**20:.0f} MB of shared memory "
            f"({error.strerror}): "
            "free some, set TMPDIR to a larger disk, or take fewer --num-workers or a smaller --buffer-size."
        ) from None
    result = map_file(f"/proc/{os.getpid()}/fd/{file.fileno()}", tensor.shape, tensor.dtype).as_subclass(MappedTensor)
    result.file = file
    return result


def share_all(tensors, how):
    """{name: zeroed tensor} → the same in shared memory"""
    return {name: share(tensor, how) for name, tensor in tensors.items()}


def share(tensor, how):
    """A zeroed tensor, so that other processes see what is written to it. how: "shared_memory" or "file_system" """
    return mapped(tensor) if how == "file_system" else tensor.share_memory_()


def resolve_sharing(args, make_storage, num_parameters):
    """What --sharing means on this machine, given what is shared: two rollouts of each actor, weights of the learner
    and its league."""
    slot = sum(tensor.nbytes for tensor in make_storage(args).values())
    weights = 4 * (args.league_size + 1) * num_parameters
    return choose_sharing(args.sharing, 2 * args.num_workers * slot + weights)


def choose_sharing(sharing, needed):
    """ "auto" → "file_system" if /dev/shm cannot hold `needed` bytes, else "shared_memory"; what was asked for
    stays."""
    if sharing != "auto":
        return sharing
    free = shutil.disk_usage(SHM).free if os.path.isdir(SHM) else 0
    if free > 1.1 * needed:
        return "shared_memory"
    print(
        f"{SHM} has {free / 2**20:.0f} MB left of the {needed / 2**20:.0f} MB that are needed: --sharing file_system.",
        flush=True,
    )
    return "file_system"
