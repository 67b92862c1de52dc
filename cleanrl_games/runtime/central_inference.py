"""One process that computes for many actors (--inference central): on a GPU a batch of all actors costs little more
than that of one.

actor: rows into its shared memory ── their number ──► inference process: all actors that wait, in one batch
       rows out of its shared memory ◄── their number ──

What is computed is the script's own function; here are only the ways there and back.
"""

import contextlib
import multiprocessing
import os
from multiprocessing import connection

import torch


class Channel:
    """One side of the way between an actor and the inference process: the tensors both sides share, and this side's end
    of a pipe."""

    def __init__(self, questions, answers, end):
        self.questions, self.answers, self.end, self.asked = questions, answers, end, 0

    def ask(self, *rows):
        """Tensors with as many rows each → the answers' tensors, which the next question overwrites"""
        count, parent = len(rows[0]), multiprocessing.parent_process()
        for shared, tensor in zip(self.questions, rows):
            shared[:count] = tensor
        self.asked += 1
        # Its name: an answer may be waiting for an actor that has been killed, in whose place this one asks.
        name, answered = (os.getpid(), self.asked), None
        try:
            self.end.send((name, count))
            while answered != name:
                while not self.end.poll(1.0):
                    if parent and not parent.is_alive():
                        raise EOFError
                answered = self.end.recv()
        except (EOFError, OSError):  # nobody holds the other end any more
            if parent and not parent.is_alive():
                raise EOFError from None  # the learner has ended, and the inference process with it
            raise RuntimeError(
                "The inference process has ended; what it said stands above. --inference worker does without it."
            ) from None
        return [shared[:count] for shared in self.answers]


def make_channels(num_actors, make_questions, make_answers):
    """→ (the actors' sides, the inference process's sides). make_…() → tensors with a row for each car of one actor"""
    sides = []
    for _ in range(num_actors):
        tensors = [[tensor.share_memory_() for tensor in make()] for make in (make_questions, make_answers)]
        sides.append([Channel(*tensors, end) for end in multiprocessing.get_context("spawn").Pipe()])
    return zip(*sides)


def serve(channels, function, device):
    """Answers until the parent process ends. function(*questions) → answers, for the rows of all actors that wait."""
    waiting, parent = {channel.end: channel for channel in channels}, multiprocessing.parent_process()
    while parent.is_alive():
        asked = [waiting[end] for end in connection.wait(list(waiting), timeout=1.0)]
        if not asked:
            continue
        names, counts = zip(*(channel.end.recv() for channel in asked))
        rows = zip(*([tensor[:count] for tensor in channel.questions] for channel, count in zip(asked, counts)))
        answers = [tensor.cpu().split(counts) for tensor in function(*(torch.cat(parts).to(device) for parts in rows))]
        for i, (channel, count) in enumerate(zip(asked, counts)):
            for shared, parts in zip(channel.answers, answers):
                shared[:count] = parts[i]
            channel.end.send(names[i])


@contextlib.contextmanager
def running(target, args, channels):
    """Runs target(*args, channels) in a process meanwhile. Nobody else keeps its ends of the pipes, so that actors
    notice its death."""
    process = multiprocessing.get_context("spawn").Process(
        target=target, args=(*args, channels), name="inference", daemon=True
    )
    process.start()
    for channel in channels:
        channel.end.close()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def resolve_inference(args, device):
    """What --inference means here: "central" or "worker" """
    possible = args.num_workers and not args.ray_address
    if args.inference == "central" and not possible:
        print("--inference central falls back to worker: it needs actor processes on this machine.", flush=True)
    wanted = args.inference == "central" or (args.inference == "auto" and device.type == "cuda")
    return "central" if wanted and possible else "worker"
