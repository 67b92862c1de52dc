"""Rollouts as batches to learn from, and a batch's decisions as sequences: each seat's, in the order in which it made them, cut into
chunks through which gradients flow back.

The actor's side is seats.py, where rows are written in whatever order battles came to them. A batch `b` has the rows of make_storage.
"""

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import torch

from .mdbo import NUM_PREVIEWS as NUM_PREVIEW


def gather(rollouts, board, count, args, stopping):
    """Puts every `count` rollouts together; those more than --max-policy-lag versions behind the board are left out. Ends when it is to
    stop between two batches.

    Yields a batch, the results of battles that ended (E, 4), mean seconds of a rollout, rollouts left out so far, rollouts that wait."""
    parts, episodes, times, dropped = [], [], [], 0
    for _, storage, queue_size in rollouts:
        rows, ends, *seconds = storage["info"].tolist()
        episodes.append(storage["episodes"][: int(ends)].clone())
        if int(board.numbers[0]) - int(storage["version"][: int(rows)].max()) > args.max_policy_lag:
            dropped += 1
        else:  # copied out of its slot, which its actor fills again
            part = {name: tensor[: int(rows)].clone() for name, tensor in storage.items() if name not in ("episodes", "info")}
            part["key"] += len(parts) * 2 * args.num_battles  # seats of different rollouts are different seats
            parts.append(part)
            times.append(seconds)
        if len(parts) == count:
            b = SimpleNamespace(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})
            yield b, torch.cat(episodes), np.mean(times, 0).tolist(), dropped, queue_size
            parts, episodes, times = [], [], []
        elif stopping:
            return


def cut_chunks(key, length):
    """Cuts every seat's rows into chunks of at most `length`, all of a seat's nearly equal
    → order (N,): rows seat after seat; starts, lengths (C,): the chunks in that order"""
    order = np.argsort(key, kind="stable")
    seats = [0, *(np.flatnonzero(np.diff(key[order])) + 1).tolist(), len(key)]
    cuts = [np.linspace(begin, end, math.ceil((end - begin) / length) + 1).astype(np.int64) for begin, end in pairwise(seats)]
    starts, ends = np.concatenate([cut[:-1] for cut in cuts]), np.concatenate([cut[1:] for cut in cuts])
    return order, starts, ends - starts


def evaluate_chunks(agent, b, order, starts, lengths, device):
    """The learner's unroll of some chunks of batch b → their rows (R,), log-probs (R, 2, 90), the LSTM's outputs (R, H)

    Chunks stand side by side in a (T, B) grid. Only the LSTM sees the grid: encoder and heads never compute a padded row."""
    steps = np.arange(lengths.max())[:, None]
    inside = steps < lengths  # (T, B)
    rows, places = torch.from_numpy(order[(starts + steps)[inside]]), torch.from_numpy(np.flatnonzero(inside)).to(device)
    preview = b.first[rows].to(device)
    core, things = agent.encode(b.ints[rows].to(device), b.floats[rows].to(device))
    grid = core.new_zeros(inside.size, core.shape[1]).index_copy(0, places, core).view(*inside.shape, -1)
    first = preview.new_zeros(inside.size).index_copy(0, places, preview).view(inside.shape)
    hidden, _ = agent.unroll(grid, b.states[order[starts]].to(device).transpose(0, 1), first)
    hidden = hidden.flatten(0, 1)[places]
    return rows, agent.logprobs(hidden, things, preview, b.legal[rows].to(device), b.actions[rows].to(device)), hidden


@torch.no_grad()
def tables_of(agent, b, order, starts, lengths, device):
    """A policy's log-probs (N, 2, 90) and values (N,) at all decisions of the batch.

    The memory before each chunk is that of the policy that played: another policy would remember the battle a little differently."""
    table, values = torch.empty(len(b.key), 2, NUM_PREVIEW), torch.empty(len(b.key))
    for chunks in np.array_split(np.arange(len(starts)), max(len(b.key) // 1024, 1)):
        if len(chunks):
            rows, logprobs, hidden = evaluate_chunks(agent, b, order, starts[chunks], lengths[chunks], device)
            table[rows], values[rows] = logprobs.cpu(), agent.value(hidden).cpu()
    return table, values


def values_after(key, values, next_values, ended):
    """What follows each row by new values: those of the seat's next row; where that is not in the batch, what the actor said."""
    order, result = np.argsort(key, kind="stable"), next_values.copy()
    goes_on = np.append(key[order][1:] == key[order][:-1], False) & ~ended[order]
    result[order[goes_on]] = values[order[np.flatnonzero(goes_on) + 1]]
    return result
