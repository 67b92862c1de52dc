"""The picture of a fight: what is drawn is what happened, and a GIF is whole or not there."""

import numpy as np
import pytest
from PIL import Image

from cleanrl_games.envs.osrs import FightRecorder, NHVecEnv
from cleanrl_games.envs.osrs.baselines import Baseline
from cleanrl_games.envs.osrs.contract import NUM_LOGITS, NUM_OBS
from cleanrl_games.envs.osrs.picture import (
    BLOOD_RED,
    FULL,
    GEAR,
    HEIGHT,
    HUD,
    ICE_BLUE,
    MISS_BLUE,
    PRAYER_COLORS,
    SIDES,
    WIDTH,
)


def play(env, recorder, ticks):
    players, rows = Baseline("nh", 2 * env.num_fights), np.arange(2 * env.num_fights)
    actions = np.zeros((env.num_fights, 2, 12), np.int64)
    for _ in range(ticks):
        players.act(env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS), rows, actions.reshape(-1, 12))
        _, _, _, terminated, _, _ = env.step(actions)
        recorder.frame()
        if terminated[recorder.index]:
            return


def count(image, color, box=None):
    """Pixels of about this colour."""
    want = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
    pixels = np.asarray((image.crop(box) if box else image).convert("RGB")).astype(int)
    return int((np.abs(pixels - want).max(axis=2) < 24).sum())


def test_what_is_drawn_is_what_is():
    env = NHVecEnv(2, seed=3)
    recorder = FightRecorder(env, 1, ("left", "right"))
    blue, red = recorder.frames[0]["fighters"]
    arena = (0, HUD, WIDTH, HEIGHT)
    blue.worn, red.worn, blue.overhead, red.overhead = 1, 3, 3, 0
    plain = recorder.draw(0)
    assert plain.size == (WIDTH, HEIGHT)
    assert count(plain, SIDES[0], arena) > 30 and count(plain, SIDES[1], arena) > 30
    assert count(plain, GEAR[1], arena) > 30 and count(plain, GEAR[3], arena) > 30
    assert count(plain, PRAYER_COLORS[3], arena) > 10

    red.splatted, red.received = 1, 23
    hit = recorder.draw(0)
    assert count(hit, BLOOD_RED, arena) > count(plain, BLOOD_RED, arena) + 100
    red.received = 0
    assert count(recorder.draw(0), MISS_BLUE, arena) > count(plain, MISS_BLUE, arena) + 100
    red.splatted, red.freeze_timer = 0, 20
    assert count(recorder.draw(0), ICE_BLUE, arena) > count(plain, ICE_BLUE, arena) + 15
    blue.hp = 20
    left_panel = (0, 0, WIDTH // 2 - 20, HUD)
    assert count(recorder.draw(0), FULL, left_panel) < 0.5 * count(plain, FULL, left_panel)


def test_every_frame_of_a_fight_ends_up_in_the_file(tmp_path):
    env = NHVecEnv(2, seed=3)
    for name, value in (("hp", 25), ("food", 0), ("karambwan", 0), ("brew", 0)):  # a short fight
        env.fighters[name][0] = value
    recorder = FightRecorder(env, 0)
    play(env, recorder, 60)
    last = recorder.frames[-1]
    assert last["result"] in (1, 2) and min(me.hp for me in last["fighters"]) == 0
    assert [frame["tick"] for frame in recorder.frames] == list(range(len(recorder.frames)))
    path = tmp_path / "videos" / "fight.gif"
    recorder.save(path)
    drawn = [recorder.draw(number) for number in range(len(recorder.frames))]
    with Image.open(path) as gif:
        assert gif.size == (WIDTH, HEIGHT) and gif.n_frames == len(recorder.frames)
        for number in (1, gif.n_frames // 2, gif.n_frames - 1):
            gif.seek(number)
            difference = np.abs(np.asarray(gif.convert("RGB")).astype(int) - np.asarray(drawn[number]).astype(int))
            assert difference.mean() < 4, number  # a palette's rounding
        assert gif.info["duration"] > 1000  # the end is held
    assert [entry.name for entry in path.parent.iterdir()] == ["fight.gif"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    env = NHVecEnv(1, seed=3)
    recorder = FightRecorder(env, 0)
    path = tmp_path / "fight.gif"
    path.write_bytes(b"old")

    def full_disk(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(Image.Image, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        recorder.save(path)
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_only_simulated_fights_can_be_drawn():
    with pytest.raises(TypeError, match="pictures are made of NHVecEnv"):
        FightRecorder(object(), 0)
