"""Serves OSRS policies to game clients: one JSON object a line over TCP, one line back.

    python cleanrl_games/tools/serve_osrs.py --model runs/<run> --port 5555

    client ──line──► handle(): read, check ──► submit() ─┐            ┌► Agent.act, head_logprobs, value
    client ──line──► handle(): read, check ──► submit() ─┼► flush() ──┤  once per model for all who wait
    client ──line──► handle(): read, check ──► submit() ─┘            └► futures ──► handle(): write the reply

A batch leaves when every open connection has asked, when it is full, or a few milliseconds after its first request.
What is wrong with a request is said in the reply, {"error": true, "message": …}; the connection and the server go on.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import traceback
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import tyro

from cleanrl_games.envs.osrs.contract import HEAD_SIZES, NUM_HEADS, NUM_OBS
from cleanrl_games.runtime.settings import NonNegative, Range, Size, parse_flags, ranged
from cleanrl_games.tools import models


@dataclasses.dataclass
class Args:
    model: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """a model.zip or run folder, or NAME=PATH to choose the name clients ask for; repeat it to serve several, the first
    is for requests that name none"""
    host: str = "127.0.0.1"
    """address to listen on; there is no password, so leave this on loopback unless the network is yours"""
    port: ranged(int, "INT", Range(0, 65535)) = 5555
    """port to listen on, 0 = any free one; older clients expect 9999"""
    batch_window_ms: NonNegative = 2.0
    """how long a request may wait for others to share its forward pass"""
    max_batch: Size = 256
    """requests in one forward pass at most"""
    max_line_bytes: ranged(int, "INT", Range(1024)) = 262_144
    """longest request line; a request with one frame has 1 to 4 kB"""
    max_connections: Size = 512
    """clients at once; one more is told so and disconnected"""
    idle_timeout: NonNegative = 600.0
    """seconds after which a client that sends no whole line, or reads no reply, is disconnected; 0 = never"""
    threads: Size = 1
    """torch threads"""
    seed: int = 1
    """seed of the dice for sampled actions"""
    trust_source: bool = False
    """rebuild a model with the script.py beside it when no script here has its hash; this runs that file's code"""


# ------------------------------------------------------------------------------------------------------------- requests

FLAGS = ("returnLogProb", "returnEntropy", "returnValue", "returnProbs")
KEYS = ("model", "obs", "actionMasks", "deterministic", "targetObs", "extensions", *FLAGS)


class RequestError(Exception):
    """What was wrong with a request, as a sentence for whoever wrote the client."""


@dataclasses.dataclass
class Request:
    model: models.Model
    obs: np.ndarray  # (176,), raw
    masks: np.ndarray  # (45,)
    deterministic: np.ndarray  # (12,)
    target_obs: np.ndarray | None
    flags: frozenset[str]


def observation(name, frames):
    """[frames][176] or [176] → the newest frame, which by the protocol is the first."""
    try:
        array = np.array(frames)
    except ValueError:
        array = np.array(None)  # rows of unequal length
    if array.dtype.kind not in "biuf":  # NumPy would read "1.5" and null as numbers
        raise RequestError(f"{name} should be a list of frames with {NUM_OBS} numbers each, all of them numbers.")
    if array.ndim not in (1, 2) or array.shape[-1] != NUM_OBS:
        raise RequestError(
            f"{name} should be a list of frames with {NUM_OBS} numbers each, found the shape {list(array.shape)}."
        )
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        index = int(np.flatnonzero(~np.isfinite(array))[0]) % NUM_OBS
        raise RequestError(f"{name} has a number that is not finite (or too large for 32 bits) at index {index}.")
    return array if array.ndim == 1 else array[0]


def action_masks(value):
    """A head may be empty: the public server's prayer head is, on most ticks. The policy then takes its action 0."""
    if not isinstance(value, list) or [len(head) if isinstance(head, list) else -1 for head in value] != list(
        HEAD_SIZES
    ):
        sizes = ", ".join(map(str, HEAD_SIZES))
        raise RequestError(f"actionMasks should be {NUM_HEADS} lists of the lengths {sizes}, one per head.")
    if any(entry not in (0, 1) for head in value for entry in head):
        raise RequestError("actionMasks should hold true and false only.")
    return np.array([entry for head in value for entry in head], np.bool_)


def no_constant(name):
    raise RequestError(f"{name} is not a number in JSON: observations must be finite.")


def parse_request(line, served):
    """One line → Request. `served` is a dict of models by name, the first of them the default."""
    try:
        body = json.loads(line, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The line is not JSON in UTF-8 ({error}).") from None
    if not isinstance(body, dict):
        raise RequestError(f"A request should be a JSON object, found a {type(body).__name__}.")
    fields = {}
    for key, value in body.items():
        camel = re.sub("_([a-z])", lambda found: found[1].upper(), key)  # both spellings: action_masks, actionMasks
        if camel not in KEYS:
            raise RequestError(f"Unknown key {key[:40]!r}. There are: {', '.join(KEYS)}.")
        if camel in fields:
            raise RequestError(f"{camel!r} is there twice, in two spellings.")
        if value is not None:
            fields[camel] = value
    missing = [key for key in ("obs", "actionMasks") if key not in fields]
    if missing:
        raise RequestError(f"The request has no {' and no '.join(missing)}.")

    name = fields.get("model", next(iter(served)))
    if not isinstance(name, str) or name not in served:
        raise RequestError(f"Unknown model {str(name)[:80]!r}. Served here: {', '.join(served)}.")
    if fields.get("extensions"):
        raise RequestError("There are no extensions here: leave the key out or send an empty list.")
    deterministic = fields.get("deterministic", False)
    per_head = deterministic if isinstance(deterministic, list) else [deterministic] * NUM_HEADS
    if len(per_head) != NUM_HEADS or not all(isinstance(entry, bool) for entry in per_head):
        raise RequestError(f"deterministic should be true, false, or a list of {NUM_HEADS} of them.")
    for flag in FLAGS:
        if not isinstance(fields.get(flag, False), bool):
            raise RequestError(f"{flag} should be true or false.")
    return Request(
        served[name],
        observation("obs", fields["obs"]),
        action_masks(fields["actionMasks"]),
        np.array(per_head),
        observation("targetObs", fields["targetObs"]) if "targetObs" in fields else None,
        frozenset(flag for flag in FLAGS if fields.get(flag)),
    )


# -------------------------------------------------------------------------------------------------------------- answers


@torch.inference_mode()
def answer(model, requests, generator):
    """All requests to one model in one go → replies, ready for JSON."""
    agent = model.agent
    obs = agent.normalise(torch.from_numpy(np.stack([request.obs for request in requests])))  # (B, 176)
    masks = torch.from_numpy(np.stack([request.masks for request in requests]))  # (B, 45)
    greedy = torch.from_numpy(np.stack([request.deterministic for request in requests]))  # (B, 12)
    actions, logprobs = agent.act(obs, masks, generator, greedy)
    replies = [{"action": action} for action in actions.tolist()]

    def asking(*flags):
        return [row for row, request in enumerate(requests) if request.flags.intersection(flags)]

    if rows := asking("returnLogProb"):
        for row in rows:
            replies[row]["logProb"] = float(logprobs[row])
    if rows := asking("returnEntropy", "returnProbs"):
        probs = agent.head_logprobs(obs[rows], masks[rows], actions[rows]).exp()  # (B, 12, 7), padded
        entropy = torch.special.entr(probs).sum(-1)
        for row, row_probs, row_entropy in zip(rows, probs.tolist(), entropy.tolist()):
            if "returnEntropy" in requests[row].flags:
                replies[row]["entropy"] = row_entropy
            if "returnProbs" in requests[row].flags:
                replies[row]["probs"] = [head[:size] for head, size in zip(row_probs, HEAD_SIZES)]
    if rows := asking("returnValue"):
        # The critic also sees what the target hides. Unknown, that is 0 after normalisation: a target like the mean
        # one.
        target_obs = torch.zeros(len(rows), NUM_OBS)
        for i, row in enumerate(rows):
            if requests[row].target_obs is not None:
                target_obs[i] = agent.normalise(torch.from_numpy(requests[row].target_obs))
        for row, number in zip(rows, agent.value(obs[rows], target_obs).tolist()):
            replies[row]["values"] = [number]
    return replies


# --------------------------------------------------------------------------------------------------------------- server


class Server:
    """Reads lines, gathers requests of all connections, answers them together. One thread, one event loop."""

    def __init__(self, args, served):
        self.args, self.served = args, served
        self.generator = torch.Generator().manual_seed(args.seed)
        self.pending, self.timer = [], None  # [(request, future)], and the clock that ends their wait
        self.connections, self.stop = set(), asyncio.Event()
        self.requests, self.refused, self.forward_passes = 0, 0, 0

    def submit(self, request):
        future = asyncio.get_running_loop().create_future()
        self.pending.append((request, future))
        if len(self.pending) >= min(self.args.max_batch, len(self.connections)):
            self.flush()  # nobody is left to wait for: a client has one request under way
        elif self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(self.args.batch_window_ms / 1000, self.flush)
        return future

    def flush(self):
        batch, self.pending = self.pending, []
        if self.timer:
            self.timer.cancel()
            self.timer = None
        for model in self.served.values():
            group = [(request, future) for request, future in batch if request.model is model and not future.done()]
            if not group:
                continue
            self.forward_passes += 1
            try:
                replies = answer(model, [request for request, _ in group], self.generator)
            except Exception as error:  # a fault of ours must not take the other connections down, nor go unseen
                traceback.print_exc()
                replies = [failure(f"The server failed on this request ({type(error).__name__}: {error}).")] * len(
                    group
                )
            for (_, future), reply in zip(group, replies):
                future.set_result(reply)

    def deadline(self):
        return asyncio.timeout(self.args.idle_timeout or None)

    async def read_line(self, reader):
        """The next line; b"" at the end. One that is too long is read to its end without being kept."""
        too_long = 0
        while True:
            try:
                line = await reader.readuntil(b"\n")
                break
            except asyncio.LimitOverrunError as error:
                too_long += len(await reader.readexactly(error.consumed))
            except asyncio.IncompleteReadError as error:
                line = error.partial  # the last line may lack its newline
                break
        if too_long:
            raise RequestError(
                f"The line has {too_long + len(line):,} bytes, the limit is {self.args.max_line_bytes:,}."
            )
        return line

    async def write(self, writer, reply):
        writer.write(json.dumps(reply).encode() + b"\n")
        async with self.deadline():  # a client that never reads fills its buffers, not ours
            await writer.drain()

    async def handle(self, reader, writer):
        """The life of one connection."""
        self.connections.add(asyncio.current_task())
        try:
            if len(self.connections) > self.args.max_connections:
                await self.write(
                    writer,
                    failure(f"{self.args.max_connections} clients are connected, which is the limit. Try again later."),
                )
                return
            while True:
                try:
                    async with self.deadline():
                        line = await self.read_line(reader)
                    if not line:
                        return
                    reply = await self.submit(parse_request(line, self.served))
                    self.requests += 1
                except RequestError as error:
                    self.refused += 1
                    reply = failure(str(error))
                await self.write(writer, reply)
        except (TimeoutError, ConnectionError):
            pass  # too quiet, or gone: the others are not concerned
        except asyncio.CancelledError:
            if not self.stop.is_set():  # the server's own farewell is no fault for asyncio to report
                raise
        finally:
            self.connections.discard(asyncio.current_task())
            writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()
            writer.transport.abort()  # whoever leaves its last reply unread for a second holds nobody up

    async def run(self, ready=None):
        """Serves until SIGINT, SIGTERM or `stop`. `ready(address)` is called once clients can connect."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.stop.set)
        try:
            listener = await asyncio.start_server(
                self.handle,
                self.args.host,
                self.args.port,
                limit=self.args.max_line_bytes,
                backlog=self.args.max_connections,
            )
        except OSError as error:
            raise models.ModelError(
                f"Cannot listen on {self.args.host}:{self.args.port} ({error}). Choose another --port or --host."
            ) from None
        if ready:
            ready(listener.sockets[0].getsockname())
        await self.stop.wait()
        listener.close()
        self.flush()  # who has asked gets an answer
        await asyncio.sleep(0)
        for task in list(self.connections):
            task.cancel()
        await asyncio.gather(*self.connections, return_exceptions=True)


def failure(message):
    return {"error": True, "message": message}


def load_models(arguments, trust_source):
    """--model words → models by the names clients ask for."""
    served = {}
    for word in arguments:
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            name, path = "", word
        model = models.load(path, "osrs", trust_source)
        name = name or model.name
        if name in served:
            raise models.ModelError(f"Two models are called {name!r}: give one another name with --model NAME={path}.")
        served[name] = model
    if not served:
        raise models.ModelError("There is nothing to serve: give --model a model.zip or a run's folder.")
    return served


def main(argv=None):
    args = parse_flags(Args, __doc__, argv)
    torch.set_num_threads(args.threads)
    server = Server(args, load_models(args.model, args.trust_source))
    names = ", ".join(server.served)
    asyncio.run(
        server.run(lambda address: print(f"Serving {names} on {address[0]}:{address[1]}; Ctrl-C stops.", flush=True))
    )
    print(
        f"Stopped after {server.requests:,} requests in {server.forward_passes:,} forward passes; {server.refused:,} "
        f"were refused.",
        flush=True,
    )


if __name__ == "__main__":
    main()
