"""Episode files and the frame cache: every rule broken once, each refusal with the file's name and the reason."""

import io
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cleanrl_games.envs.pokemon import ACTIONS, cache
from cleanrl_games.envs.pokemon import episodes as room
from cleanrl_games.envs.pokemon.episodes import EpisodeError

ROOT = Path(__file__).resolve().parents[1]
STEPS = 6


def good(steps=STEPS, seed=0, extra=1):
    rng = np.random.default_rng(seed)
    meta = {
        "schema": room.SCHEMA,
        "backend": "libretro",
        "rom_sha1": "0" * 40,
        "hold": 6,
        "release": 3,
        "action_names": list(ACTIONS),
    }
    rewards = rng.integers(0, 2, steps).astype(np.float32)
    ends = np.zeros(steps, bool)
    ends[-1] = True
    return {
        # blocks of colour: compressible like a game's picture
        "observations": np.repeat(
            np.repeat(rng.integers(0, 256, (steps + extra, 20, 30, 3), dtype=np.uint8), 8, 1), 8, 2
        ),
        "actions": rng.integers(0, 10, steps).astype(np.int32),
        "executed_actions": rng.integers(0, 10, steps).astype(np.int32),
        "rewards": rewards,
        "terminated": ends,
        "truncated": np.zeros(steps, bool),
        "infos_json": np.asarray(json.dumps([{"step": step} for step in range(steps)])),
        "episode_return": np.float32(rewards.sum()),
        "episode_length": np.int32(steps),
        "meta_json": np.asarray(json.dumps({**meta, "quest_seed": 7})),
    }


def saved(path, arrays):
    room.write_arrays(path, arrays)
    return path


def meta_of(arrays, **changes):
    return np.asarray(json.dumps({**json.loads(str(arrays["meta_json"])), **changes}))


def test_a_good_file_comes_back(tmp_path):
    arrays = good()
    path = saved(tmp_path / "episode_0001.npz", arrays)
    episode = room.read_episode(path)
    assert len(episode) == STEPS and episode.num_frames == STEPS + 1 and episode.world == 7
    for name in ("actions", "executed_actions", "rewards", "terminated", "truncated"):
        assert np.array_equal(getattr(episode, name), arrays[name])
    assert episode.infos == [{"step": step} for step in range(STEPS)]
    assert np.array_equal(np.concatenate(list(room.read_frames(path, chunk=4))), arrays["observations"])
    with np.load(path, allow_pickle=False) as file:  # and numpy reads it like any other
        assert np.array_equal(file["observations"], arrays["observations"])


def test_what_others_write_is_read_too(tmp_path):
    """savez_compressed, T observations, int64 and float64, `dones`, infos as a row of texts."""
    arrays = good(extra=0)
    arrays |= {
        "actions": arrays["actions"].astype(np.int64),
        "rewards": arrays["rewards"].astype(np.float64),
        "dones": arrays["terminated"],
    }
    arrays["infos_json"] = np.array([json.dumps({"step": step}) for step in range(STEPS)])
    for name in ("terminated", "truncated", "executed_actions"):
        del arrays[name]
    np.savez_compressed(tmp_path / "other.npz", **arrays)
    episode = room.read_episode(tmp_path / "other.npz")
    assert (
        episode.num_frames == STEPS
        and episode.terminated[-1]
        and np.array_equal(episode.executed_actions, arrays["actions"])
    )
    assert len(episode.infos) == STEPS and episode.rewards.dtype == np.float32


def test_the_public_guides_format_is_read_as_it_is(tmp_path, capsys):
    """observations, actions, rewards, dones, episode_return, episode_length and nothing else"""
    arrays = good(extra=0)
    arrays["dones"] = arrays["terminated"]
    for name in ("infos_json", "meta_json", "terminated", "truncated", "executed_actions"):
        del arrays[name]
    np.savez_compressed(tmp_path / "episode_0001.npz", **arrays)
    saved(tmp_path / "episode_0002.npz", good())
    first, second = room.load_episodes(tmp_path)
    assert not first.is_described and second.is_described and first.world is None and first.infos == [{}] * STEPS
    assert np.array_equal(first.actions, arrays["actions"]) and first.terminated[-1]
    said = capsys.readouterr().out
    assert "1 of 2 episodes" in said and "Taken for granted" in said and "A B START SELECT" in said


def test_damaged_pixels_are_skipped_like_any_damage(tmp_path, capsys):
    for number in (1, 2, 3):
        saved(tmp_path / f"episode_{number:04d}.npz", good(seed=number))
    bad = tmp_path / "episode_0002.npz"
    bad.write_bytes(flip_a_pixel(bad.read_bytes()))
    episodes = room.load_episodes(tmp_path)
    assert len(episodes) == 3, "headers and numbers are whole"
    with pytest.raises(EpisodeError, match=r"episode_0002.npz: its pixels are damaged.*--skip-bad-episodes"):
        cache.open_undamaged(episodes, root=tmp_path / "cache")
    kept, frames = cache.open_undamaged(episodes, root=tmp_path / "cache", skip_bad=True)
    assert [episode.path.name for episode in kept] == ["episode_0001.npz", "episode_0003.npz"] and len(frames) == 2 * (
        STEPS + 1
    )
    assert "Skipped" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------------- twenty kinds


def change(**changes):
    """→ a maker of files whose arrays are changed so"""

    def make(path):
        arrays = good()
        for name, value in changes.items():
            if value is None:
                del arrays[name]
            else:
                arrays[name] = value(arrays) if callable(value) else value
        saved(path, arrays)

    return make


def with_bytes(edit):
    def make(path):
        saved(path, good())
        path.write_bytes(edit(path.read_bytes()))

    return make


def at(name, index, value):
    def edit(arrays):
        array = arrays[name].copy()
        array[index] = value
        return array

    return edit


def flip_a_pixel(data):
    """One bit in the middle of the compressed pixels"""
    middle = len(data) // 3
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


def flip_a_reward(data):
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        info = file.getinfo("rewards.npy")
    # behind the local header: 30 bytes, the name, the zip64 field
    at = info.header_offset + 30 + len(info.filename) + 20 + info.compress_size - 8
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def lie(path):
    """A header that claims 10^12 frames"""
    arrays = good()
    saved(path, arrays)
    with zipfile.ZipFile(path) as file:
        parts = {info.filename: file.read(info) for info in file.infolist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 160, 240, 3)}
    )
    parts["observations.npy"] = header.getvalue() + b"\0" * 1000
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in parts.items():
            file.writestr(name, data)


def object_infos(path):
    arrays = good()
    del arrays["infos_json"]
    np.savez_compressed(path, **arrays, infos_json=np.array([{"step": 1}] * STEPS, object))


def endless_text(path):
    """240 MB of one letter in a small file, by a stream so that this process does not need them either"""
    saved(path, good())
    with zipfile.ZipFile(path) as file:
        parts = {info.filename: file.read(info) for info in file.infolist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<U60000000", "fortran_order": False, "shape": ()})
    del parts["infos_json.npy"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, data in parts.items():
            file.writestr(name, data)
        with file.open("infos_json.npy", "w", force_zip64=True) as stream:
            stream.write(header.getvalue())
            for _ in range(60):
                stream.write(b" \0\0\0" * 1_000_000)


BAD = {
    "empty": (lambda path: path.write_bytes(b""), "the file is empty"),
    "cut short": (with_bytes(lambda data: data[: len(data) // 2]), "cut short or damaged"),
    "a bit of the pixels flipped": (with_bytes(flip_a_pixel), "pixels are damaged"),
    "a bit of the rewards flipped": (with_bytes(flip_a_reward), "'rewards' is damaged"),
    "an HTML page": (lambda path: path.write_text("<!DOCTYPE html><html>404</html>"),
        r"no .npz archive \(it starts with b'<!DOCTYP'\)"),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps({"actions": [1]})), "no .npz archive"),
    "a single array": (lambda path: np.save(open(path, "wb"), np.zeros(3)), "no .npz archive"),  # noqa: SIM115
    "infos as objects": (object_infos, "'infos_json' holds Python objects, which are never unpickled"),
    "a header that claims 10^12 frames": (lie, r"claims the shape \(1000000000000, 160, 240, 3\)"),
    "no observations": (change(observations=None), "it has no 'observations'"),
    "no actions and no meta": (change(actions=None, meta_json=None), "it has no 'actions' and no 'meta_json'"),
    "no end": (change(terminated=None), "neither 'dones' nor both of 'terminated' and 'truncated'"),
    "float pictures": (change(observations=lambda a: a["observations"] / np.float32(255)),
        r"found \(7, 160, 240, 3\) of float32"),
    "pictures of another size": (change(observations=lambda a: a["observations"][:, :84, :84]),
        r"found \(7, 84, 84, 3\) of uint8"),
    "too few pictures": (change(observations=lambda a: a["observations"][:-2]), "5 observations for 6 actions"),
    "no steps": (change(actions=np.zeros(0, np.int32)), "a row of 1 to"),
    "rewards of another length": (change(rewards=lambda a: a["rewards"][:-1]),
        r"'rewards' should have the shape \(6,\), found \(5,\)"),
    "an action of 10": (change(actions=at("actions", 2, 10)), "the action 10 at step 2"),
    "an action of -1": (change(executed_actions=at("executed_actions", 1, -1)),
        "'executed_actions' has the action -1 at step 1"),
    "actions with a fraction": (change(actions=lambda a: a["actions"] + 0.5), "should hold whole numbers"),
    "a reward that is no number": (change(rewards=at("rewards", 3, np.nan)), "the reward at step 3 is nan"),
    "an endless reward": (change(rewards=at("rewards", 0, np.inf)), "the reward at step 0 is inf"),
    "done in the middle": (change(terminated=at("terminated", 2, True)), "ended at step 2, but 6 steps are recorded"),
    "two stories of the end": (change(dones=np.zeros(STEPS, bool)), "'dones' says something else"),
    "another length": (change(episode_length=np.int32(7)), "'episode_length' is 7, but there are 6 actions"),
    "another return": (change(episode_return=np.float32(99)), "'episode_return' is 99.0, but the rewards sum to"),
    "infos that are not JSON": (change(infos_json=np.asarray("[{'step': 1}]")), "'infos_json' is not JSON"),
    "infos of another length": (change(infos_json=np.asarray("[{}]")), "a list of 6 JSON objects"),
    "meta that is a list": (change(meta_json=np.asarray("[]")), "should be a JSON object, found a list"),
    "another schema": (change(meta_json=lambda a: meta_of(a, schema="x/9")), "its schema is 'x/9'"),
    "a reward beyond 32 bits": (change(rewards=lambda a: at("rewards", 2,
        1e300)({"rewards": a["rewards"].astype(np.float64)})), "the reward at step 2 is inf as a 32-bit number"),
    "a text of 240 MB": (lambda path: endless_text(path), "'infos_json' has 60,000,000 letters"),
    "a long description": (change(meta_json=lambda a: meta_of(a, note="x" * 200_000)), "'meta_json' has 200,"),
    "a world of 65536": (change(meta_json=lambda a: meta_of(a, quest_seed=65536)),
        "'quest_seed' as a whole number from 0 to 65535, found 65536"),
    "a world that is true": (change(meta_json=lambda a: meta_of(a, quest_seed=True)), "'quest_seed' as a whole number"),
    "a world in words": (change(meta_json=lambda a: meta_of(a, quest_seed="7")), "'quest_seed' as a whole number"),
    "a button held for no time": (change(meta_json=lambda a: meta_of(a, hold=0)),
        "'hold' as a whole number from 1 to 600, found 0"),
    "a button held for 1.5 frames": (change(meta_json=lambda a: meta_of(a, hold=1.5)), "'hold' as a whole number"),
    "a button let go for ever": (change(meta_json=lambda a: meta_of(a, release=10**9)), "'release' as a whole number"),
    "no backend": (change(meta_json=lambda a: meta_of(a, backend=None)), "should have 'backend' as a str"),
    "other buttons": (change(meta_json=lambda a: meta_of(a, action_names=["A", "B"])),
        "its actions are A B, not A B START"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_refused_with_name_and_reason(kind, tmp_path):
    make, reason = BAD[kind]
    path = tmp_path / "episode_0002.npz"
    make(path)
    with pytest.raises(EpisodeError, match=reason) as refusal:
        room.read_episode(path)
        # damage of the pixels shows when they are read, which is before anything is trained on
        for _ in room.read_frames(path):
            pass
    assert "episode_0002.npz" in str(refusal.value) and "allow_pickle" not in str(refusal.value)


def test_a_folder_with_a_bad_file(tmp_path, capsys):
    saved(tmp_path / "episode_0001.npz", good())
    BAD["an action of 10"][0](tmp_path / "episode_0002.npz")
    saved(tmp_path / "episode_0003.npz", good(seed=3))
    with pytest.raises(EpisodeError, match=r"episode_0002.npz.*--skip-bad-episodes"):
        room.load_episodes(tmp_path)
    found = room.load_episodes(tmp_path, skip_bad=True)
    assert [episode.path.name for episode in found] == ["episode_0001.npz", "episode_0003.npz"]
    assert "Skipped" in capsys.readouterr().out


def test_backends_and_roms_are_not_mixed(tmp_path):
    for field, value in (("backend", "libmgba"), ("rom_sha1", "1" * 40), ("hold", 10)):
        arrays = good()
        saved(tmp_path / "a.npz", arrays)
        saved(tmp_path / "b.npz", {**arrays, "meta_json": meta_of(arrays, **{field: value})})
        with pytest.raises(EpisodeError, match=rf"b.npz: its {field} is .*keep such data apart"):
            room.load_episodes(tmp_path)
        assert len(room.load_episodes(tmp_path, skip_bad=True)) == 1


def test_folders_without_episodes(tmp_path):
    with pytest.raises(EpisodeError, match="There is no folder"):
        room.load_episodes(tmp_path / "nowhere")
    with pytest.raises(EpisodeError, match=r"has no .npz episodes"):
        room.load_episodes(tmp_path)


def test_shipped_episodes_are_good():
    found = room.load_episodes(ROOT / "expert_data" / "pokemon_quest")
    assert len(found) >= 4 and all(episode.terminated[-1] and episode.rewards.sum() == 13 for episode in found)
    assert any((episode.actions != episode.executed_actions).any() for episode in found)


# ---------------------------------------------------------------------------------------------------------------- cache


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for number in range(3):
        saved(data / f"episode_{number:04d}.npz", good(seed=number, steps=STEPS + number))
    return data


def test_cache_holds_the_resized_frames(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FEW", 0)  # so that processes do it
    episodes, told = room.load_episodes(folder), []
    frames = cache.open_cache(episodes, 84, tmp_path / "cache", progress=told.append)
    whole = np.concatenate([np.concatenate(list(room.read_frames(episode.path))) for episode in episodes])
    expected = cache.resize(whole, 84)
    assert len(frames) == len(whole) == told[-1]
    order = np.random.default_rng(0).permutation(len(whole)).reshape(-1, 3)
    assert np.array_equal(frames[order], expected[order])
    header = json.loads(next((tmp_path / "cache").glob("*/header.json")).read_text())
    assert header["resize"] == cache.RESIZE and header["size"] == 84

    def forbidden(*_):
        raise AssertionError("a cache that is whole was built again")

    monkeypatch.setattr(cache, "build", forbidden)
    assert np.array_equal(cache.open_cache(episodes, 84, tmp_path / "cache")[[0]], expected[:1])


def test_cache_key_is_content_and_resizing_not_name(folder, monkeypatch):
    episodes = room.load_episodes(folder)
    key = cache.cache_key(episodes, 84)
    (folder / "episode_0000.npz").rename(folder / "episode_0000b.npz")
    assert cache.cache_key(room.load_episodes(folder), 84) == key
    assert cache.cache_key(episodes, 64) != key and cache.cache_key(episodes[::-1], 84) != key
    monkeypatch.setattr(cache, "RESIZE", "another")
    assert cache.cache_key(episodes, 84) != key
    monkeypatch.undo()
    arrays = good(seed=0)
    arrays["observations"][3, 50, 50, 0] ^= 1
    saved(folder / "episode_0000b.npz", arrays)
    assert cache.cache_key(room.load_episodes(folder), 84) != key


@pytest.mark.parametrize("damage", ["no header", "half a header", "cut frames"])
def test_half_written_cache_is_rebuilt(folder, tmp_path, damage):
    episodes, root = room.load_episodes(folder), tmp_path / "cache"
    expected = cache.open_cache(episodes, 84, root)[np.arange(5)]
    (made,) = root.glob("[!.]*")
    if damage == "no header":
        (made / "header.json").unlink()
        (made / "frames.bin").write_bytes(b"\0" * 100)
    elif damage == "half a header":
        (made / "header.json").write_text((made / "header.json").read_text()[:40])
    else:
        os.truncate(made / "frames.bin", 84 * 84 * 3)
    assert np.array_equal(cache.open_cache(episodes, 84, root)[np.arange(5)], expected)


def test_a_killed_build_leaves_no_cache(folder, tmp_path):
    """Killed for good while it resizes; the next build removes what it left and makes a whole one."""
    root = tmp_path / "cache"
    code = f"""
    import sys, time
    sys.path.insert(0, {str(ROOT)!r})
    from cleanrl_games.envs.pokemon import cache, episodes
    def slow(*part):
        print("begun", flush=True)
        time.sleep(60)
    cache.write_part = slow
    cache.open_cache(episodes.load_episodes({str(folder)!r})[:1], 84, {str(root)!r})
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = list(root.iterdir())
    assert len(left) == 1 and left[0].name.endswith(".tmp") and not list(root.glob("[!.]*"))
    frames = cache.open_cache(room.load_episodes(folder)[:1], 84, root)
    assert len(frames) == STEPS + 1 and [path.name for path in root.iterdir()] == [
        cache.cache_key(room.load_episodes(folder)[:1], 84)
    ]


def test_damaged_pixels_end_the_build_with_the_files_name(folder, tmp_path):
    path = folder / "episode_0001.npz"
    path.write_bytes(flip_a_pixel(path.read_bytes()))
    with pytest.raises(EpisodeError, match=r"episode_0001.npz: its pixels are damaged"):
        cache.open_cache(room.load_episodes(folder), 84, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def read_a_million(path, count, sender):
    """Draws 1.3 GB of frames from a file of a million, and reports the most memory it ever had."""
    import psutil

    from cleanrl_games.envs.pokemon.cache import Frames

    frames, rng, most = Frames(84), np.random.default_rng(0), 0
    frames.add(path, count)
    for _ in range(30):
        frames[rng.integers(count, size=2048)]
        most = max(most, psutil.Process().memory_info().rss)
    sender.send(most)


def test_a_million_transitions_take_less_than_two_gigabytes(tmp_path):
    count, path = 1_000_000, tmp_path / "frames.bin"
    with open(path, "wb") as file:
        file.truncate(count * 84 * 84 * 3)  # 21 GB of holes: they are mapped and read like any other pages
    receiver, sender = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=read_a_million, args=(path, count, sender))
    process.start()
    assert receiver.poll(120)
    most = receiver.recv()
    process.join()
    shutil.rmtree(tmp_path, ignore_errors=True)
    assert 100e6 < most < 1e9  # 1.3 GB were read


def test_resizing_takes_no_notice_of_its_neighbours():
    """One frame or many, the same bytes: actors resize what they see, the cache resizes whole files."""
    frames = good(steps=5)["observations"]
    together = cache.resize(frames)
    assert together.shape == (6, 84, 84, 3) and together.dtype == np.uint8
    for frame, small in zip(frames, together):
        assert np.array_equal(cache.resize(frame[None])[0], small)
