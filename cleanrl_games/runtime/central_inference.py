"""One process that computes for many actors (--inference central): on a GPU a batch of all actors costs little more than that of one.

actor: rows into its shared memory ── their number ──► inference process: all actors that wait, in one batch
       rows out of its shared memory ◄── their number ──
"""

import contextlib
import multiprocessing
import signal
from multiprocessing import connection

import torch

from cleanrl_games.envs import actors
from cleanrl_games.runtime.shared_memory import from_flat


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


def settle(args, device):
    """What --inference means here: "central" or "worker" """
    possible = args.num_workers and not args.ray_address
    if args.inference == "central" and not possible:
        print("--inference central falls back to worker: it needs actor processes on this machine.", flush=True)
    wanted = args.inference == "central" or (args.inference == "auto" and device.type == "cuda")
    return "central" if wanted and possible else "worker"


class CentralAgent:
    """An actor's recurrent policy when another process computes it: the same calls, answered there."""

    def __init__(self, seat):
        self.seat = seat

    def act(self, obs, masks, state, generator=None):
        return self.seat.ask(obs, masks, state)

    def value(self, obs, state):
        everything = torch.ones(len(obs), self.seat.questions[1].shape[1], dtype=torch.bool)
        return self.seat.ask(obs, everything, state)[2]


def seats_of(args, make_storage):
    """→ the actors' sides and the inference process's, of the shapes of a rollout's first step"""
    names = ("obs", "masks", "states"), ("actions", "logprobs", "values", "states")
    step = {name: tensor[0] for name, tensor in make_storage(args).items()}
    return make_seats(args.num_workers, *(lambda side=side: [torch.zeros_like(step[name]) for name in side] for side in names))


def inference_main(args, board, make_agent, device, seats):
    """The life of the inference process: the newest weights for every batch, so that each log-prob is one version's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the learner's to handle
    torch.set_num_threads(args.actor_threads)
    agent, version = make_agent(vars(args)).to(device).eval(), -1.0
    generator = torch.Generator(device).manual_seed(args.seed)

    @torch.no_grad()
    def forward(obs, masks, states):
        nonlocal version
        with board.lock:
            if board.version != version:
                version = board.version
                from_flat(agent, board.weights)
        return agent.act(obs, masks, states, generator)

    serve(seats, forward, device)


def rollouts(args, board, actor_class, make_storage, make_agent, device):
    """As actors.rollouts, with the policy of all actor processes in one process on the learner's device."""
    board.seats, others = seats_of(args, make_storage)
    with process_of(inference_main, (args, board, make_agent, device), others):
        yield from actors.process_rollouts(args, board, actor_class, make_storage)
