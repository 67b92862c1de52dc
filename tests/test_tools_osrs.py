"""The tools around a model: what rebuilds it, what serves it, what judges it. The model is tiny and untrained."""

import asyncio
import contextlib
import copy
import dataclasses
import io
import json
import os
import pickle
import py_compile
import shutil
import signal
import socket
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from osrs_server import Server

from cleanrl_games.envs.osrs import Baseline, NHVecEnv, match
from cleanrl_games.envs.osrs.contract import HEAD_OFFSETS, HEAD_SIZES, NUM_HEADS, NUM_LOGITS, NUM_OBS
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.models import network_hash
from cleanrl_games.tools import evaluate, models, serve_osrs

ROOT = Path(__file__).parents[1]
SCRIPT = models.SCRIPTS / "ppo_osrs_selfplay.py"
SPANS = [slice(offset, offset + size) for offset, size in zip(HEAD_OFFSETS, HEAD_SIZES)]


def make_model(path, script, states, seed, **settings):
    """An untrained policy with opinions: the last layers start near zero, where every action is as likely."""
    torch.manual_seed(seed)
    agent = script.Agent(32, 16)
    with torch.no_grad():
        agent.head_out.mul_(100)
        agent.obs_mean.copy_(torch.from_numpy(states[0].mean(0)))
        agent.obs_std.copy_(torch.from_numpy(states[0].std(0).clip(0.01)))
    script.save_model(path, agent, script.Args(hidden_size=32, head_size=16, **settings))


@pytest.fixture(scope="module")
def script():
    return models.import_script(SCRIPT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, script, states):
    """A run's folder, as training leaves it, and a second model."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    folder.mkdir()
    make_model(folder / "model.zip", script, states, 1)
    make_model(folder / "other.zip", script, states, 2)
    shutil.copy(SCRIPT, folder / "script.py")
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return models.load(folder)


@pytest.fixture(scope="module")
def states():
    """Observations and masks from the middle of fights: (64, 176), (64, 45)"""
    env, bot = NHVecEnv(32, seed=5), Baseline("random", 64, 5)
    actions = np.zeros((64, NUM_HEADS), np.int64)
    for _ in range(20):
        bot.act(env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS), np.arange(64), actions)
        env.step(actions.reshape(32, 2, NUM_HEADS))
    return env.obs.reshape(-1, NUM_OBS).copy(), env.masks.reshape(-1, NUM_LOGITS).copy()


def body(states, row=0, **more):
    obs, masks = states
    return {
        "obs": [obs[row].tolist()],
        "actionMasks": [masks[row, span].tolist() for span in SPANS],
        "deterministic": True,
        **more,
    }


# --------------------------------------------------------------------------------------------------------------- models


def rewrite(source, target, **parts):
    """A copy of a model with some parts replaced (bytes), or left out (None)."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = parts.get(name.split(".")[0], old.read(name))
            if content is not None:
                new.writestr(name, content)
    return target


def metadata_of(path, **changes):
    with zipfile.ZipFile(path) as file:
        return json.dumps({**json.loads(file.read("metadata.json")), **changes}).encode()


def weights_of(path, change):
    with zipfile.ZipFile(path) as file:
        weights = torch.load(io.BytesIO(file.read("policy.pth")), weights_only=True)
    change(weights)
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    return buffer.getvalue()


def test_a_model_is_rebuilt_by_the_script_of_its_hash(folder, script, model):
    assert model.script is script
    assert model.name == "tiny"
    assert models.load(folder / "other.zip").name == "other"
    with zipfile.ZipFile(folder / "model.zip") as file:
        saved = torch.load(io.BytesIO(file.read("policy.pth")), weights_only=True)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.agent.state_dict().items())
    assert not model.agent.training


class Explosive:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_broken_models_are_refused_in_a_sentence(folder, tmp_path):
    good = folder / "model.zip"
    content, marker = good.read_bytes(), tmp_path / "executed"
    damaged = bytearray(content)
    damaged[content.index(b"policy.pth") + 200] ^= 0xFF

    def file(name, data):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    def zipped(name, **parts):
        return rewrite(good, tmp_path / name, **parts)

    cases = [
        (tmp_path / "nowhere.zip", "There is no model at"),
        (tmp_path, "holds no model.zip"),
        (file("text.zip", b"not a zip"), "not a readable model.zip"),
        (file("empty.zip", b""), "not a readable model.zip"),
        (file("half.zip", content[: len(content) // 2]), "not a readable model.zip"),
        (file("damaged.zip", bytes(damaged)), "damaged|not a readable"),
        (zipped("a.zip", policy=None), "has no policy.pth"),
        (zipped("b.zip", metadata=None, obs_rms=None), "has no metadata.json and no obs_rms.npz"),
        (zipped("c.zip", metadata=b"{"), "not a readable model.zip"),
        (zipped("d.zip", metadata=b"[]"), "should be a JSON object"),
        (zipped("e.zip", metadata=metadata_of(good, network_hash=7)), "'network_hash' as a str, found 7"),
        (zipped("f.zip", metadata=metadata_of(good, game="chess")), "model of 'chess'"),
        (zipped("g.zip", metadata=metadata_of(good, contract_hash="0" * 16)), "trained on contract 0000"),
        (zipped("h.zip", policy=pickle.dumps(Explosive(marker))), "h.zip"),
        (zipped("i.zip", policy=b""), "i.zip"),
        (zipped("j.zip", policy=weights_of(good, lambda weights: weights.pop("obs_std"))), "obs_std"),
        (
            zipped("k.zip", policy=weights_of(good, lambda weights: weights["obs_mean"].fill_(torch.nan))),
            "not finite .obs_mean",
        ),
        (zipped("l.zip", metadata=metadata_of(good, args={})), "l.zip"),
    ]
    for path, sentence in cases:
        with pytest.raises(models.ModelError, match=sentence) as caught:
            models.load(path)
        assert "\n\n" not in str(caught.value), path
        for tool in (serve_osrs, evaluate):
            flag = ["--model"] if tool is serve_osrs else []
            with pytest.raises(BadInput, match=sentence):
                tool.main([*flag, str(path)])
    assert not marker.exists()


def test_another_scripts_code_runs_only_when_trusted(folder, tmp_path, monkeypatch):
    marker = tmp_path / "executed"
    source = SCRIPT.read_text().replace("clamp(-5, 5)", "clamp(-6, 6)") + f"\nPath({str(marker)!r}).touch()\n"
    copy, path = tmp_path / "script.py", tmp_path / "model.zip"
    copy.write_text(source)
    rewrite(
        folder / "model.zip",
        path,
        metadata=metadata_of(folder / "model.zip", network_hash=network_hash(copy.read_text())),
    )

    with pytest.raises(
        models.ModelError,
        match=r"no script in cleanrl_games/ has that network.*add --trust-source.*or check out the commit",
    ):
        models.load(path)
    assert not marker.exists()

    # Bytecode that Python would prefer to the source has no say: only what was hashed runs.
    planted, hostile = tmp_path / "planted", tmp_path / "hostile.py"
    hostile.write_text(f"import pathlib; pathlib.Path({str(planted)!r}).touch()")
    cache = Path(tmp_path / "__pycache__" / f"script.{sys.implementation.cache_tag}.pyc")
    py_compile.compile(
        str(hostile), str(cache), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )

    search_path = list(sys.path)
    trusted = models.load(tmp_path, trust_source=True)
    assert marker.exists() and not planted.exists()
    assert Path(trusted.script.__file__) == copy
    assert sys.path == search_path
    assert models.load(tmp_path, trust_source=True).script is trusted.script
    (tmp_path / "models").mkdir()
    earlier = Path(shutil.copy(path, tmp_path / "models" / "100.zip"))
    assert models.load(earlier, trust_source=True).script is trusted.script, (
        "a run's earlier models have their script one folder up"
    )
    monkeypatch.chdir(earlier.parent)
    assert models.load("100.zip", trust_source=True).script is trusted.script

    copy.write_text(source.replace("clamp(-6, 6)", "clamp(-7, 7)"))
    marker.unlink()
    with pytest.raises(models.ModelError, match="is not it either"):
        models.load(path, trust_source=True)
    copy.unlink()
    with pytest.raises(models.ModelError, match=r"no script\.py beside the model"):
        models.load(path, trust_source=True)
    assert not marker.exists()

    copy.write_text("import a_shim_that_is_gone")
    rewrite(
        folder / "model.zip",
        path,
        metadata=metadata_of(folder / "model.zip", network_hash=network_hash(copy.read_text())),
    )
    with pytest.raises(models.ModelError, match=r"cannot be imported here \(ModuleNotFoundError"):
        models.load(path, trust_source=True)


# --------------------------------------------------------------------------------------------------------------- server


@contextlib.asynccontextmanager
async def serving(served, **settings):
    """The server in this process, on a free port."""
    server = serve_osrs.Server(serve_osrs.Args(port=0, **settings), served)
    started = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(server.run(started.set_result))
    address = await asyncio.wait_for(started, 10)
    try:
        yield server, address[1]
    finally:
        server.stop.set()
        await asyncio.wait_for(task, 20)


class Client:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port):
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    async def ask(self, request):
        line = request if isinstance(request, bytes) else json.dumps(request).encode()
        self.writer.write(line + b"\n")
        await self.writer.drain()
        return json.loads(await asyncio.wait_for(self.reader.readline(), 30))


def own_actions(model, states):
    obs, masks = torch.from_numpy(states[0]), torch.from_numpy(states[1])
    with torch.no_grad():
        return model.agent.act(
            model.agent.normalise(obs), masks, None, torch.ones(len(obs), NUM_HEADS, dtype=torch.bool)
        )[0]


def test_replies_are_the_policys_own(model, states):
    agent, rows = model.agent, range(len(states[0]))
    everything = {"returnLogProb": True, "returnEntropy": True, "returnValue": True, "returnProbs": True}
    snake = {"return_log_prob": True, "return_entropy": True, "return_value": True, "return_probs": True}

    async def play():
        async with serving({"tiny": model}) as (_, port):
            client = await Client.connect(port)
            replies = [await client.ask(body(states, row, **everything)) for row in rows]
            known = [
                await client.ask(body(states, row, returnValue=True, targetObs=states[0][row ^ 1].tolist()))
                for row in rows
            ]
            older = []  # snake case, a model's name, the newest frame first, null for what is not wanted
            for row in rows:
                request = body(states, row, model="tiny", extensions=[], targetObs=None, **snake)
                request["action_masks"] = request.pop("actionMasks")
                request["obs"].append([0.0] * NUM_OBS)
                older.append(await client.ask(request))
            return replies, known, older

    replies, known, older = asyncio.run(play())
    obs, masks = agent.normalise(torch.from_numpy(states[0])), torch.from_numpy(states[1])
    actions = own_actions(model, states)
    assert len({tuple(row) for row in actions.tolist()}) > 3, "the fixture's policy should not always do the same"
    assert [reply["action"] for reply in replies] == actions.tolist()
    for reply, other in zip(replies, older):
        assert reply["action"] == other["action"]
        assert np.allclose(reply["entropy"], other["entropy"], atol=1e-5)
    with torch.no_grad():
        logprob, entropy = agent.evaluate_actions(obs, masks, actions)
        blind = agent.value(obs, torch.zeros_like(obs))
        seeing = agent.value(obs, obs[[row ^ 1 for row in rows]])
    assert np.allclose([reply["logProb"] for reply in replies], logprob, atol=1e-4)
    assert np.allclose([reply["entropy"] for reply in replies], entropy, atol=1e-4)
    assert np.allclose([reply["values"] for reply in replies], blind[:, None], atol=1e-4)
    assert np.allclose([reply["values"] for reply in known], seeing[:, None], atol=1e-4)
    assert not np.allclose(blind, seeing, atol=1e-2)
    assert set(known[0]) == {"action", "values"}, "only what was asked for"
    for row, reply in enumerate(replies):
        assert [len(head) for head in reply["probs"]] == list(HEAD_SIZES)
        flat = np.concatenate(reply["probs"])
        assert np.allclose([sum(head) for head in reply["probs"]], 1, atol=1e-5)
        first = np.isin(np.arange(NUM_LOGITS), HEAD_OFFSETS)  # what a head does that dependencies leave nothing
        assert (flat[~states[1][row] & ~first] == 0).all()
        assert [int(np.argmax(head)) for head in reply["probs"]] == reply["action"]
        product = np.prod([head[action] for head, action in zip(reply["probs"], reply["action"])])
        assert np.isclose(product, np.exp(reply["logProb"]), rtol=1e-3)


def test_a_head_that_dependencies_leave_empty_takes_action_0(model, states):
    """Only a mage attack is legal, and the mask of the melee types does not allow "none": nothing is left for them."""
    request = body(
        states, 0, returnProbs=True, returnEntropy=True, returnLogProb=True, deterministic=[True] * 6 + [False] * 6
    )
    request["actionMasks"][:2] = [[False, True, False, False], [False, True, True]]
    parsed = serve_osrs.parse_request(json.dumps(request), {"tiny": model})
    (reply,) = serve_osrs.answer(model, [parsed], torch.Generator().manual_seed(1))
    assert reply["action"][:2] == [1, 0]
    assert reply["probs"][:2] == [[0, 1, 0, 0], [1, 0, 0]] and reply["entropy"][:2] == [0, 0]
    assert np.isfinite(reply["logProb"])


def test_empty_heads_are_answered_with_action_0(model, states):
    """With the public server's default parameters the prayer head is empty on most ticks."""
    for empty in ([11], range(12)):
        request = body(states, 0, returnProbs=True, returnLogProb=True)
        for head in empty:
            request["actionMasks"][head] = [False] * HEAD_SIZES[head]
        parsed = serve_osrs.parse_request(json.dumps(request), {"tiny": model})
        (reply,) = serve_osrs.answer(model, [parsed], torch.Generator().manual_seed(1))
        assert all(reply["action"][head] == 0 and reply["probs"][head][0] == 1 for head in empty)
        assert np.isfinite(reply["logProb"])


def test_each_head_is_sampled_or_not_as_asked(model, states):
    """One state, asked 3,000 times in one batch, odd heads deterministic."""
    odd = [head % 2 == 1 for head in range(NUM_HEADS)]
    request = serve_osrs.parse_request(
        json.dumps(body(states, 3, deterministic=odd, returnProbs=True)), {"tiny": model}
    )
    replies = serve_osrs.answer(model, [request] * 3000, torch.Generator().manual_seed(1))
    actions = np.array([reply["action"] for reply in replies])
    for reply in replies:
        for head in np.flatnonzero(odd):
            assert reply["action"][head] == int(np.argmax(reply["probs"][head]))
    expected = np.array(replies[0]["probs"][0])
    seen = np.bincount(actions[:, 0], minlength=HEAD_SIZES[0]) / len(actions)
    assert (expected > 0.05).sum() >= 2, "the fixture's policy should have a choice here"
    assert np.abs(seen - expected).max() < 5 * np.sqrt(0.25 / len(actions))
    sampled = serve_osrs.parse_request(json.dumps(body(states, 3, deterministic=False)), {"tiny": model})
    free = {
        tuple(reply["action"]) for reply in serve_osrs.answer(model, [sampled] * 300, torch.Generator().manual_seed(1))
    }
    assert len(free) > len({tuple(action) for action in actions[:300].tolist()})


def bad_requests(states):
    good = body(states)
    masks = good["actionMasks"]
    number = good["obs"][0]
    return [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 50_000, "not JSON"),
        (b'{"obs": 1' + b"0" * 5000 + b"}", "not JSON"),
        (b"[]", "should be a JSON object, found a list"),
        (b"{}", "has no obs and no actionMasks"),
        ({**good, "obs": None}, "has no obs"),
        ({**good, "obs": [number[:-1]]}, "found the shape [1, 175]"),
        ({**good, "obs": [[*number, 0]]}, "found the shape [1, 177]"),
        ({**good, "obs": [number, number[:-1]]}, "obs should be"),
        ({**good, "obs": []}, "obs should be"),
        ({**good, "obs": [[[number]]]}, "found the shape [1, 1, 1, 176]"),
        ({**good, "obs": "1" * NUM_OBS}, "obs should be"),
        ({**good, "obs": [["1.5", *number[1:]]]}, "all of them numbers"),
        ({**good, "obs": [[None, *number[1:]]]}, "all of them numbers"),
        ({**good, "obs": [[10**400, *number[1:]]]}, "all of them numbers"),
        ({**good, "obs": [[float("nan"), *number[1:]]]}, "NaN is not a number"),
        ({**good, "obs": [[*number[:-1], float("-inf")]]}, "-Infinity is not a number"),
        (json.dumps({**good, "obs": [[0.125, *number[1:]]]}).replace("0.125", "1e999").encode(),
            "not finite (or too large for 32 bits) at index 0"),
        ({**good, "obs": [[*number[:7], 1e39, *number[8:]]]}, "at index 7"),
        ({**good, "targetObs": number[:3]}, "targetObs should be"),
        ({**good, "actionMasks": masks[:-1]}, "12 lists of the lengths 4, 3, 3, 4, 5"),
        ({**good, "actionMasks": [[True], *masks[1:]]}, "12 lists of the lengths"),
        ({**good, "actionMasks": {"attack": True}}, "12 lists of the lengths"),
        ({**good, "actionMasks": [*masks[:-1], [0.5] * 6]}, "true and false only"),
        ({**good, "deterministic": "yes"}, "deterministic should be"),
        ({**good, "deterministic": [True] * 11}, "deterministic should be"),
        ({**good, "returnProbs": 1}, "returnProbs should be"),
        ({**good, "model": "unknown"}, "Unknown model 'unknown'. Served here: tiny"),
        ({**good, "model": ["tiny"]}, "Unknown model"),
        ({**good, "determinstic": True}, "Unknown key 'determinstic'"),
        ({**good, "action_masks": masks}, "twice"),
        ({**good, "extensions": ["win_rate"]}, "no extensions"),
        (b"x" * 10_000_000, "The line has 10,000,001 bytes, the limit is 65,536"),
        ({**good, "obs": [number] * 60}, "the limit is 65,536"),
    ]  # fmt: skip


def test_bad_requests_get_a_sentence_and_the_connection_goes_on(model, states, caplog):
    async def play():
        async with serving({"tiny": model}, max_line_bytes=65_536) as (server, port):
            client, bystander = await Client.connect(port), await Client.connect(port)
            requests = bad_requests(states)
            for number, (request, sentence) in enumerate(requests):
                reply = await client.ask(request)
                assert reply.get("error") is True and sentence in reply["message"], (str(request)[:60], reply)
                if number % 8 == 0:
                    assert "action" in await bystander.ask(body(states))
            assert "action" in await client.ask(body(states))
            assert server.refused == len(requests)

    asyncio.run(play())
    assert not caplog.records, "asyncio has nothing to complain about"


def test_clients_that_vanish_or_stay_silent_hold_nobody_up(model, states, caplog):
    line = json.dumps(body(states)).encode()

    async def play():
        async with serving({"tiny": model}, idle_timeout=1.0) as (server, port):
            for sent in (b"", line[:500], line + b"\n", (line + b"\n") * 20, b"x" * 300_000):
                gone = socket.create_connection(("127.0.0.1", port))
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell
                gone.sendall(sent)
                await asyncio.sleep(0.02)
                gone.close()
            client = await Client.connect(port)
            assert "action" in await client.ask(line)
            # Without a newline the last line counts once the client has finished sending.
            last = await Client.connect(port)
            last.writer.write(line)
            last.writer.write_eof()
            assert "action" in json.loads(await asyncio.wait_for(last.reader.readline(), 10))
            silent, slow = await Client.connect(port), await Client.connect(port)
            slow.writer.write(line[:100])
            for quiet in (silent, slow, client):
                assert await asyncio.wait_for(quiet.reader.read(), 10) == b""
            assert "action" in await (await Client.connect(port)).ask(line)
            assert server.refused == 0 or server.refused == 1  # the half line, if its end came before the reset

    asyncio.run(play())
    assert not caplog.records, "asyncio has nothing to complain about"


def test_a_client_that_never_reads_is_dropped(model, states):
    """Replies pile up in the kernel first, then writing stalls until the time-out."""
    line = json.dumps(body(states)).encode() + b"\n"

    async def play():
        async with serving({"tiny": model}, idle_timeout=0.5) as (server, port):
            server.write_once = server.write

            async def flood(writer, reply):
                await server.write_once(writer, {"padding": "x" * 20_000_000, **reply})

            server.write = flood
            deaf = await Client.connect(port)
            deaf.writer.write(line)
            for _ in range(200):
                await asyncio.sleep(0.05)
                if server.requests and not server.connections:
                    break
            assert server.requests == 1 and not server.connections
            server.write = server.write_once
            assert "action" in await (await Client.connect(port)).ask(line)
            deaf.writer.close()

    asyncio.run(play())


def test_two_hundred_clients_share_forward_passes(model, states):
    rounds, expected = 3, own_actions(model, states).tolist()

    async def play():
        async with serving({"tiny": model}) as (server, port):
            clients = await asyncio.gather(*[Client.connect(port) for _ in range(200)])

            async def converse(number, client):
                for turn in range(rounds):
                    row = (number + turn) % len(expected)
                    reply = await client.ask(body(states, row))
                    assert reply["action"] == expected[row], "everyone gets the answer to its own question"

            await asyncio.gather(*[converse(number, client) for number, client in enumerate(clients)])
            assert server.requests == 200 * rounds
            assert server.forward_passes < server.requests / 4
            for client in clients[1:]:
                client.writer.close()
            await asyncio.sleep(0.2)
            before = server.forward_passes
            for _ in range(5):  # alone again: nobody to wait for, a pass for each
                await clients[0].ask(body(states))
            assert server.forward_passes == before + 5

    asyncio.run(play())


def test_nobody_waits_when_everybody_has_asked(model, states):
    async def play():
        async with serving({"tiny": model}, batch_window_ms=3_600_000) as (server, port):
            first = await Client.connect(port)
            assert "action" in await first.ask(body(states)), "alone, there is nobody to wait for"
            second = await Client.connect(port)
            replies = await asyncio.gather(first.ask(body(states, 1)), second.ask(body(states, 2)))
            assert all("action" in reply for reply in replies)
            assert (server.requests, server.forward_passes) == (3, 2)

    asyncio.run(play())


def test_one_client_too_many_is_told_so(model, states):
    async def play():
        async with serving({"tiny": model}, max_connections=2) as (_, port):
            first, second = await Client.connect(port), await Client.connect(port)
            assert "action" in await first.ask(body(states)) and "action" in await second.ask(body(states))
            third = await Client.connect(port)
            assert (
                "2 clients are connected" in json.loads(await asyncio.wait_for(third.reader.readline(), 10))["message"]
            )
            assert await third.reader.read() == b""
            second.writer.close()
            await asyncio.sleep(0.2)
            assert "action" in await (await Client.connect(port)).ask(body(states))
            assert "action" in await first.ask(body(states))

    asyncio.run(play())


def test_several_models_by_name(folder, model, states):
    served = serve_osrs.load_models([str(folder), f"rival={folder / 'other.zip'}"], False)
    assert list(served) == ["tiny", "rival"]
    own = {name: own_actions(served[name], states).tolist() for name in served}
    assert own["tiny"] != own["rival"]

    async def play():
        async with serving(served, batch_window_ms=50) as (server, port):
            clients = await asyncio.gather(*[Client.connect(port) for _ in range(8)])
            names = ["tiny", "rival"] * 4
            replies = await asyncio.gather(
                *[client.ask(body(states, row, model=names[row])) for row, client in enumerate(clients)]
            )
            assert [reply["action"] for reply in replies] == [own[name][row] for row, name in enumerate(names)]
            assert server.forward_passes < 8
            assert (await clients[0].ask(body(states, 9)))["action"] == own["tiny"][9], "the first model is the default"

    asyncio.run(play())
    with pytest.raises(models.ModelError, match="Two models are called 'tiny'"):
        serve_osrs.load_models([str(folder), str(folder / "model.zip")], False)


def test_a_fault_of_the_server_reaches_one_batch_only(model, states, monkeypatch, capfd):
    async def play():
        async with serving({"tiny": model}) as (_, port):
            client = await Client.connect(port)
            with monkeypatch.context() as patch:
                patch.setattr(model.agent, "act", lambda *_: 1 / 0)
                assert "The server failed" in (await client.ask(body(states)))["message"]
            assert "action" in await client.ask(body(states))

    asyncio.run(play())
    assert "ZeroDivisionError" in capfd.readouterr().err, "a fault must not go unseen"


def test_ctrl_c_stops_it_with_clients_connected(model, states, caplog):
    async def play():
        async with serving({"tiny": model}) as (server, port):
            client = await Client.connect(port)
            assert "action" in await client.ask(body(states))
            os.kill(os.getpid(), signal.SIGINT)
            assert await asyncio.wait_for(client.reader.read(), 10) == b""
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", port)
            assert server.stop.is_set()

    asyncio.run(play())
    assert not caplog.records, "asyncio has nothing to complain about"


def test_wrong_settings_are_named(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, sentence in (
            (["--port", str(port)], f"Cannot listen on 127.0.0.1:{port}"),
            (["--port", "70000"], "--port should be 0 to 65535"),
            (["--max-batch", "0"], "--max-batch should be 1 or more"),
            (["--batch-window-ms", "nan"], "--batch-window-ms should be a finite number"),
        ):
            with pytest.raises(BadInput, match=sentence):
                serve_osrs.main(["--model", str(folder), *words])
    with pytest.raises(BadInput, match="nothing to serve"):
        serve_osrs.main([])


def test_serve_from_the_command_line(folder, model, states):
    command = [
        sys.executable,
        str(ROOT / "cleanrl_games/tools/serve_osrs.py"),
        "--model",
        f"champion={folder}",
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving champion on 127.0.0.1:"), line + process.stderr.read()
        port = int(line.split(":")[1].split(";")[0])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(json.dumps(body(states, 4, model="champion")).encode() + b"\n")
            reply = json.loads(connection.makefile().readline())
            assert reply == {"action": own_actions(model, states)[4].tolist()}
            # The client in the docs, as it stands there.
            example = {}
            code = (ROOT / "docs/tools_osrs.md").read_text().split("```python\n")[1].split("```")[0]
            exec(code.replace("5555", str(port)), example)
            action, value = example["act"](states[0][5].tolist(), body(states, 5)["actionMasks"])
            assert action == own_actions(model, states)[5].tolist() and np.isfinite(value)
            example["connection"].close()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "Stopped after 2 requests in 2 forward passes" in out
        assert "Traceback" not in err
    finally:
        process.kill()
        process.wait()


# ------------------------------------------------------------------------------------------------------------- evaluate


def test_evaluate_models_and_scripted_players(folder, tmp_path, capsys):
    out = tmp_path / "results.json"
    words = [str(folder), "nh", "--against", "random", str(folder / "other.zip"), "--episodes", "100", "--seed", "3"]
    results = evaluate.main([*words, "--json", str(out)])
    table = capsys.readouterr().out
    assert json.loads(out.read_text())["results"] == results
    assert [(result["player"], result["opponent"]) for result in results] == [
        ("tiny", "random"), ("tiny", "other"), ("nh", "random"), ("nh", "other"),
    ]  # fmt: skip
    for result in results:
        assert result["won"] + result["tied"] + result["lost"] == result["episodes"] == 100
        assert result["score"] == (result["won"] + result["tied"] / 2) / 100
        assert result["win_rate"] == result["won"] / 100
        assert 0 <= result["low"] <= result["score"] <= result["high"] + 1e-9 and result["high"] <= 1
        assert f"{result['score']:.1%}" in table
    assert results[2]["score"] > 0.9, "the scripted bot beats random play"
    # An independent Wilson interval: the rates at which the observed one is 1.96 standard errors away.
    rate = results[2]["score"]
    for end in (results[2]["low"], results[2]["high"]):
        assert abs(rate - end) == pytest.approx(1.96 * np.sqrt(end * (1 - end) / 100), rel=1e-6)


def test_evaluate_on_a_server_and_in_the_simulator(folder, tmp_path, capsys):
    with Server(hp=20) as server:
        words = [str(folder), "--against", "baseline", "nh", "--server", f"127.0.0.1:{server.port}", "--episodes", "5"]
        results = evaluate.main([*words, "--json", str(tmp_path / "results.json")])
        assert not server.players, "everybody is logged out"
    where = [(result["opponent"], result["where"].split(":")[0], result["episodes"]) for result in results]
    assert where == [("baseline", "127.0.0.1", 5), ("nh", "127.0.0.1", 5), ("nh", "simulator", 5)]
    assert "where" in capsys.readouterr().out
    for flags, message in (
        (["--server", "7070"], "should look like"),
        (["--against", "baseline"], "no model at baseline"),
    ):
        with pytest.raises((BadInput, SystemExit), match=message):
            evaluate.main([str(folder), *flags])


def test_the_same_seed_plays_the_same_fights(folder, model):
    def scores(seed):
        args = evaluate.Args((str(folder),), episodes=40, seed=seed)
        return evaluate.osrs_matches(model, "random", 40, args, "", lambda done: None).tolist()

    assert scores(3) == scores(3) != scores(4)


def test_evaluate_plays_as_the_model_was_trained(folder, model, monkeypatch):
    seen = []
    original = match.play_fights

    def spy(player, opponent, fights, seed, video, scenes=None, **settings):
        seen.append((fights, seed, settings, player.player.deterministic))
        return original(player, opponent, fights, seed, video, scenes, **settings)

    monkeypatch.setattr(match, "play_fights", spy)
    monkeypatch.setattr(evaluate, "OSRS_FIGHTS_AT_ONCE", 16)
    progress = []
    args = evaluate.Args((str(folder),), episodes=40, deterministic=True)
    scores = evaluate.osrs_matches(model, "random", 40, args, "", progress.append)
    assert [fights for fights, *_ in seen] == [16, 16, 8] and len(scores) == 40
    assert len({seed for _, seed, *_ in seen}) == 3, "no batch repeats another"
    assert (
        seen[0][2] == {"mirror": True, "max_ticks": 1000, "loadouts": ("lms_med",), "loadout_file": None} and seen[0][3]
    )
    assert progress == sorted(progress) and progress[-1] == 40 and len(set(progress)) > 5
    seen.clear()
    evaluate.main([str(folder), "--against", "random", "--episodes", "8", "--loadouts", "pure", "zerker"])
    assert seen[0][2]["loadouts"] == ("pure", "zerker") and not seen[0][3]


def test_settings_that_a_script_no_longer_has_do_not_matter(model):
    model = dataclasses.replace(model, metadata=copy.deepcopy(model.metadata))
    model.args["reward_ko"] = 2.0
    assert model.settings()["max_ticks"] == 1000 and "reward_ko" not in model.settings()
    model.args["max_ticks"] = 0
    with pytest.raises(BadInput, match=r"args in metadata\.json: max_ticks should be 1 or more"):
        model.settings()


def test_another_game_joins_with_one_entry(monkeypatch, capsys):
    def matches(player, opponent, episodes, args, video, progress):
        assert (player, opponent) == ("heads", "tails")
        progress(episodes)
        return np.repeat([1.0, 0.5, 0.0], [episodes - 3, 1, 2])

    monkeypatch.setitem(evaluate.GAMES, "coin", evaluate.Game(lambda: ("heads", "tails"), matches))
    (result,) = evaluate.main(["heads", "--against", "tails", "--game", "coin", "--episodes", "10"])
    assert (result["won"], result["tied"], result["lost"]) == (7, 1, 2)
    assert (result["score"], result["win_rate"]) == (0.75, 0.7), "a tie counts half in the score, and is no win"
    assert "coin, 10 games each" in capsys.readouterr().out


def test_evaluate_says_what_is_wrong(folder, tmp_path):
    for words, sentence in (
        ([], "nobody to judge"),
        (["nh"], "say which game with --game"),
        (["nh", "--game", "chess"], "--game should be one of osrs"),
        ([str(folder), "--episodes", "0"], "--episodes should be 1 or more"),
        ([str(folder), "--loadouts", "bronze"], "tiny against random: Unknown loadout 'bronze'"),
        ([str(folder), "--against", "nobody"], "There is no model at nobody"),
        ([str(folder), "--json", str(tmp_path / "no/such.json")], "there is no folder"),
        ([str(folder), "--save", "fight.mp4"], "should name a .html or .gif"),
    ):
        with pytest.raises(BadInput, match=sentence):
            evaluate.main(words)


def test_evaluate_from_the_command_line(folder, tmp_path):
    out = tmp_path / "results.json"
    command = [
        sys.executable,
        str(ROOT / "cleanrl_games/tools/evaluate.py"),
        str(folder),
        "--episodes",
        "16",
        "--json",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [result["opponent"] for result in json.loads(out.read_text())["results"]] == list(evaluate.osrs_baselines())
    assert "95 % interval" in done.stdout
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"PK")
    done = subprocess.run([*command[:2], str(broken)], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 2
    assert done.stderr.strip().startswith(str(broken)) and "Traceback" not in done.stderr


def test_evaluate_makes_a_gif_per_pairing(script, states, tmp_path):
    from PIL import Image

    make_model(tmp_path / "tiny.zip", script, states, 1, max_ticks=15)  # drawing a tick takes longer than playing it
    words = [str(tmp_path / "tiny.zip"), "--against", "nh", "tank", "--episodes", "2"]
    evaluate.main([*words, "--save", str(tmp_path / "fight.gif")])
    for name in ("nh", "tank"):
        with Image.open(tmp_path / f"fight_tiny_vs_{name}.gif") as picture:
            assert picture.format == "GIF" and picture.n_frames > 5
