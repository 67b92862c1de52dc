"""One process that computes for many actors (--inference central): on a GPU a batch of all actors costs little more than that of one.

actor: rows into its shared memory ── their number ──► inference process: all actors that wait, in one batch
       rows out of its shared memory ◄── their number ──
"""

import contextlib
import multiprocessing
from multiprocessing import connection

import torch


class Seat:
    """One side of one actor's table: the tensors both sides share, and this side's end of the pipe between them."""

    def __init__(self, questions, answers, end):
        self.questions, self.answers, self.end = questions, answers, end

    def ask(self, *rows):
        """Tensors with as many rows each → the answers' tensors, which the next question overwrites"""
        count, parent = len(rows[0]), multiprocessing.parent_process()
        for shared, tensor in zip(self.questions, rows):
            shared[:count] = tensor
        try:
            self.end.send(count)
            while not self.end.poll(1.0):
                if parent and not parent.is_alive():
                    raise EOFError
            self.end.recv()
        except (EOFError, OSError):  # nobody holds the other end any more
            raise RuntimeError("The inference process has ended; what it said stands above. --inference worker does without it.") from None
        return [shared[:count] for shared in self.answers]


def make_seats(num_actors, make_questions, make_answers):
    """→ (the actors' sides, the inference process's sides). make_…() → tensors with a row for each car of one actor"""
    sides = []
    for _ in range(num_actors):
        tensors = [[tensor.share_memory_() for tensor in make()] for make in (make_questions, make_answers)]
        sides.append([Seat(*tensors, end) for end in multiprocessing.get_context("spawn").Pipe()])
    return zip(*sides)


def serve(seats, forward, device):
    """Answers until the parent process ends. forward(*questions) → answers, for the rows of all actors that wait."""
    waiting, parent = {seat.end: seat for seat in seats}, multiprocessing.parent_process()
    while parent.is_alive():
        asked = [waiting[end] for end in connection.wait(list(waiting), timeout=1.0)]
        if not asked:
            continue
        counts = [seat.end.recv() for seat in asked]
        rows = zip(*([tensor[:count] for tensor in seat.questions] for seat, count in zip(asked, counts)))
        answers = [tensor.cpu().split(counts) for tensor in forward(*(torch.cat(parts).to(device) for parts in rows))]
        for i, (seat, count) in enumerate(zip(asked, counts)):
            for shared, parts in zip(seat.answers, answers):
                shared[:count] = parts[i]
            seat.end.send(count)


@contextlib.contextmanager
def process_of(target, args, seats):
    """Runs target(*args, seats) in a process meanwhile. Nobody else keeps its ends of the pipes, so that actors notice its death."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=(*args, seats), name="inference", daemon=True)
    process.start()
    for seat in seats:
        seat.end.close()
    try:
        yield
    finally:
        process.terminate()
        process.join()
