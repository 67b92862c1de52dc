"""The mGBA core behind `Emulator`: cartridges that are none, RAM, save states, several at once, files it leaves."""

import importlib.util
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from cleanrl_games.envs.pokemon import QUEST_ROM, Emulator
from cleanrl_games.envs.pokemon import emulator as emulator_module
from cleanrl_games.envs.pokemon.emulator import KEYS, libretro_core, read_rom


@pytest.fixture
def emulator():
    made = Emulator(QUEST_ROM)
    made.run(30)
    yield made
    made.close()


def start(emulator, seed):
    emulator.write(0x02000056, bytes([seed]))
    emulator.run(2, KEYS["START"])
    emulator.run(10)


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "is empty"),
        (bytes(100), "less than a GBA header"),
        (np.random.default_rng(0).bytes(4096), "no GBA header"),
        (b"<!DOCTYPE html>" + b" " * 4096, "no GBA header"),
        (QUEST_ROM.read_bytes()[:0xC0] + bytes((1 << 20) + 512), "truncated"),
        (QUEST_ROM.read_bytes()[:0xC0] + bytes(33 << 20), "at most"),
    ],
    ids=["empty", "short", "random", "html", "odd size", "too large"],
)
def test_bad_rom_is_a_sentence(tmp_path, content, words):
    path = tmp_path / "bad.gba"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        Emulator(path)
    assert str(path) in str(caught.value)


def test_missing_rom_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no ROM at"):
        Emulator(tmp_path / "none.gba")
    with pytest.raises(ValueError, match="is a folder"):
        Emulator(tmp_path)


def test_unknown_backend():
    with pytest.raises(ValueError, match="choose one of auto, libretro, libmgba"):
        Emulator(QUEST_ROM, "visualboy")


def test_a_backend_that_is_not_there_is_an_error_not_another_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "mgba", None)
    with pytest.raises(RuntimeError, match="needs the package mgba"):
        Emulator(QUEST_ROM, "libmgba")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="needs stable-retro"):
        Emulator(QUEST_ROM)


def test_libmgba_shows_the_same_or_says_what_it_needs(emulator):
    """Where the system has libmgba, both doors lead to the same game: RAM is equal, colours to the bits that RGB565
    drops."""
    try:
        other = Emulator(QUEST_ROM, "libmgba")
    except RuntimeError as error:
        assert "pip install mgba" in str(error) and "libretro" in str(error)
        return
    assert other.backend == "libmgba"
    other.run(30)
    for player in (emulator, other):
        start(player, 3)
        player.load(player.save())
        player.run(5, KEYS["DOWN"])
    assert emulator.read(0x02000000, 0x500) == other.read(0x02000000, 0x500)
    assert np.abs(emulator.frame().astype(int) - other.frame()).max() < 8
    other.close()


def test_closed_is_closed():
    closed = Emulator(QUEST_ROM)
    closed.close()
    closed.close()  # twice is fine
    for use in (
        lambda: closed.run(1),
        closed.frame,
        closed.save,
        lambda: closed.read(0x02000000, 4),
        lambda: closed.write(0x02000000, b"1"),
    ):
        with pytest.raises(RuntimeError, match="is closed"):
            use()


def test_core_is_the_one_in_the_wheel_and_is_named(emulator):
    assert libretro_core().name.startswith("mgba_libretro")
    assert emulator.backend == "libretro"
    assert emulator.rom_sha1 == read_rom(QUEST_ROM)[1]


def test_ram_of_both_regions(emulator):
    assert emulator.read(0x02000000, 4) == b"QST1"
    for address in (0x02030000, 0x03005000):
        emulator.write(address, b"\x01\x02\x03")
        emulator.run(3)  # the game does not use these bytes
        assert emulator.read(address, 3) == b"\x01\x02\x03"
    for address, size in ((0x02040000, 1), (0x0203FFFF, 2), (0x08000000, 4), (0x03007FFF, 2), (0x01FFFFFF, 2)):
        with pytest.raises(ValueError, match="not in the work RAM"):
            emulator.read(address, size)


def test_frame_has_the_documented_form(emulator):
    frame = emulator.frame()
    assert frame.shape == (160, 240, 3) and frame.dtype == np.uint8 and len(np.unique(frame.reshape(-1, 3), axis=0)) > 8
    before = frame.copy()
    start(emulator, 3)
    assert np.array_equal(frame, before), "a frame is the caller's own"
    assert not np.array_equal(emulator.frame(), before)


def test_state_restores_every_frame(emulator):
    """Sprites too: this core forgets those that have not changed when a state is loaded."""
    start(emulator, 3)
    state = emulator.save()

    def play(player):
        seen = []
        for name in "DOWN LEFT A DOWN RIGHT A UP".split():
            for keys, frames in ((KEYS[name], 6), (0, 3)):
                for _ in range(frames):
                    player.run(1, keys)
                    seen.append((player.frame(), player.read(0x02000000, 0x500)))
        return seen

    first, other = play(emulator), Emulator(QUEST_ROM)
    for player in (emulator, other):
        player.load(state)
        for index, ((frame, ram), (again, ram_again)) in enumerate(zip(first, play(player))):
            assert ram == ram_again, index
            assert np.array_equal(frame, again), index
    other.close()


@pytest.mark.parametrize("hold, release", [(1, 1), (2, 2), (6, 3), (16, 16)])
def test_frames_left_out_change_nothing(emulator, hold, release):
    """`press` draws two frames of a step; its last one, the RAM and every frame after it are those of drawing them
    all."""
    start(emulator, 3)
    other = Emulator(QUEST_ROM)
    other.load(emulator.save())
    for name in "DOWN LEFT A A DOWN RIGHT RIGHT UP A DOWN DOWN LEFT".split():
        emulator.run(hold, KEYS[name])
        emulator.run(release)
        other.press(KEYS[name], hold, release)
        assert np.array_equal(emulator.frame(), other.frame())
        assert emulator.read(0x02000000, 0x500) == other.read(0x02000000, 0x500)
        for player in (emulator, other):
            player.run(1)
        assert np.array_equal(emulator.frame(), other.frame())
    other.close()


def test_the_core_does_leave_frames_out(emulator):
    start(emulator, 3)
    other = Emulator(QUEST_ROM)
    other.load(emulator.save())
    other.core._skip(5)
    same = []
    for _ in range(7):  # a walk: every frame differs from the one before
        for player in (emulator, other):
            player.run(1, KEYS["DOWN"])
        same.append(np.array_equal(emulator.frame(), other.frame()))
    assert same[0] and same[6] and not any(same[2:5]), same
    other.close()


@pytest.mark.parametrize(
    "spoil",
    [lambda state: b"", lambda state: state[:-1], lambda state: b"x" * len(state), lambda state: bytes(8) + state[8:]],
)
def test_foreign_state_is_refused_and_changes_nothing(emulator, spoil):
    before = emulator.read(0x02000000, 64)
    with pytest.raises(ValueError, match="save state"):
        emulator.load(spoil(emulator.save()))
    assert emulator.read(0x02000000, 64) == before


def test_several_emulators_in_one_process_do_not_meet():
    worlds = (1, 2, 3)
    alone = []
    for seed in worlds:
        emulator = Emulator(QUEST_ROM)
        emulator.run(30)
        start(emulator, seed)
        alone.append(emulator.frame())
        emulator.close()
    together = [Emulator(QUEST_ROM) for _ in worlds]
    for emulator in together:
        emulator.run(30)
    for emulator, seed in zip(together, worlds):
        emulator.write(0x02000056, bytes([seed]))
    for _ in range(12):  # frame by frame in turn
        for emulator in together:
            emulator.run(1, KEYS["START"] if emulator.read(0x02000006, 1) == b"\0" else 0)
    for emulator, frame in zip(together, alone):
        assert np.array_equal(emulator.frame(), frame)
        emulator.close()
    assert not np.array_equal(alone[0], alone[1])


def test_threads_may_run_one_emulator_each():
    emulators = [Emulator(QUEST_ROM) for _ in range(2)]
    threads = [threading.Thread(target=emulator.run, args=(60,)) for emulator in emulators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    frames = [int.from_bytes(emulator.read(0x02000020, 4), "little") for emulator in emulators]
    assert frames[0] == frames[1] > 50
    for emulator in emulators:
        emulator.close()


def test_nothing_is_written_beside_the_rom_and_nothing_stays(tmp_path, monkeypatch):
    given, make = [], emulator_module.Libretro.__init__
    monkeypatch.setattr(
        emulator_module.Libretro,
        "__init__",
        lambda core, rom, folder: (given.append((rom, folder)), make(core, rom, folder))[1],
    )
    rom = tmp_path / "game.gba"
    rom.write_bytes(QUEST_ROM.read_bytes())
    emulator = Emulator(rom)
    emulator.run(60)
    # a core writes saves beside the file it was given
    folder = Path(emulator.folder)
    assert given == [(folder / "rom.gba", folder)] and tmp_path not in (folder, *folder.parents)
    assert os.name != "posix" or not folder.exists()  # while it runs: a killed process cannot tidy up
    emulator.close()
    assert not folder.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["game.gba"]
