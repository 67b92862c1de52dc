"""A match from above, as a GIF: cars with their boost, the ball with its height, the pads, the score. Needs no display.

`Viewer` shows it in rlviser instead, where that is installed.
"""

import os
import time
from pathlib import Path

import numpy as np
import RocketSim
from PIL import Image, ImageDraw

from .contract import BIG_PADS, GOAL_HALF_WIDTH, TICK_RATE
from .observations import BOOST, DEMOED, FORWARD, ON_GROUND, POSITION

SCALE, MARGIN, HEADER = 0.036, 12, 22  # pixels per game unit; pixels
WIDTH, HEIGHT = int(2 * 6000 * SCALE) + 2 * MARGIN, int(2 * 4096 * SCALE) + 2 * MARGIN + HEADER
GRASS, LINE, COLOURS = (34, 60, 40), (200, 210, 200), ((70, 140, 255), (255, 150, 40))
CORNERS = [(4096, 3968), (2944, 5120), (-2944, 5120), (-4096, 3968), (-4096, -3968), (-2944, -5120), (2944, -5120), (4096, -3968)]


def pixel(x, y):
    """The field lies on its side: blue defends the left goal and attacks to the right."""
    return MARGIN + (y + 6000) * SCALE, HEADER + MARGIN + (x + 4096) * SCALE


class MatchRecorder:
    """`frame()` before each step, `goal(who)` at the end, then `save(path)`."""

    def __init__(self, env, arena, every=2):
        self.env, self.arena, self.every, self.steps, self.frames, self.score = env, arena, every, 0, [], [0, 0]
        self.pad_places = [pad.get_pos().as_tuple()[:2] for pad in env.pad_objects[arena]]

    def frame(self):
        if self.steps % self.every == 0:
            self.frames.append(self.draw())
        self.steps += 1

    def goal(self, who):
        """`who` is 1 for blue, -1 for orange, 0 for time out"""
        if who:
            self.score[0 if who > 0 else 1] += 1
        if self.frames:
            last = self.frames[-1].copy()
            self.header(ImageDraw.Draw(last), "GOAL" if who else "TIME")
            self.frames += [last] * 8

    def header(self, draw, word=""):
        draw.rectangle((0, 0, WIDTH, HEADER), fill=(15, 15, 20))
        seconds = self.steps * self.env.action_repeat / 120
        draw.text((MARGIN, 5), f"blue {self.score[0]} : {self.score[1]} orange   {seconds:5.1f} s   {word}", fill=(255, 255, 255))

    def draw(self):
        env, i = self.env, self.arena
        image = Image.new("RGB", (WIDTH, HEIGHT), (15, 15, 20))
        draw = ImageDraw.Draw(image)
        draw.polygon([pixel(*point) for point in CORNERS], fill=GRASS, outline=LINE)
        draw.line([pixel(-4096, 0), pixel(4096, 0)], fill=LINE)
        for end, colour in ((-1, COLOURS[0]), (1, COLOURS[1])):
            corners = sorted([pixel(-GOAL_HALF_WIDTH, end * 5120), pixel(GOAL_HALF_WIDTH, end * 6000)])
            (left, a), (right, b) = corners
            draw.rectangle((left, min(a, b), right, max(a, b)), outline=colour)
        for pad, (x, y) in enumerate(self.pad_places):
            (px, py), radius = pixel(x, y), 4 if pad in BIG_PADS else 2
            if env.pad_timers[i, pad] == 0:
                draw.ellipse((px - radius, py - radius, px + radius, py + radius), fill=(240, 220, 80))
        for row, team in zip(env.cars[env._rows(i)], env.agent_team[env._rows(i)]):
            if row[DEMOED] == 0:
                self.draw_car(draw, row, COLOURS[team])
        x, y, z = env.balls[i, :3]
        (px, py), radius = pixel(x, y), 4 + z / 350  # a ball that is higher is drawn larger
        draw.ellipse((px - radius, py - radius, px + radius, py + radius), fill=(235, 235, 235), outline=(60, 60, 60))
        self.header(draw)
        return image

    def draw_car(self, draw, row, colour):
        x, y = row[POSITION], row[POSITION + 1]
        nose = row[FORWARD : FORWARD + 2]
        side = np.array([-nose[1], nose[0]])
        # about twice its size: a car of true size is five pixels long
        corners = [(x, y) + 220 * a * nose + 130 * b * side for a, b in ((1, 0.4), (1, -0.4), (-1, -1), (-1, 1))]
        draw.polygon([pixel(*corner) for corner in corners], fill=colour, outline=None if row[ON_GROUND] else (255, 255, 255))
        px, py = pixel(x, y)
        draw.rectangle((px - 8, py - 12, px - 8 + 16 * row[BOOST] / 100, py - 10), fill=(255, 210, 60))

    def save(self, path):
        if not self.frames:
            raise ValueError(f"There is no frame to save to {path}: call frame() before each step.")
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.gif")
        frames = [frame.quantize(64) for frame in self.frames]
        milliseconds = 1000 * self.env.action_repeat * self.every // 120
        frames[0].save(temporary, save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
        os.replace(temporary, path)


class Viewer:
    """Shows an arena live, in 3-D, in rlviser, where the package rlviser-py and its viewer are installed. Used like MatchRecorder."""

    def __init__(self, env, arena):
        try:
            import rlviser_py  # optional: it fails on many machines
        except ImportError as error:
            raise ValueError(f"rlviser is not installed ({error}): install rlviser-py and its viewer, or ask for a .gif instead.") from None
        self.env, self.arena, self.rlviser, self.steps = env, arena, rlviser_py, 0
        rlviser_py.set_boost_pad_locations([pad.get_pos().as_tuple() for pad in env.pad_objects[arena]])

    def frame(self):
        env, i = self.env, self.arena
        self.steps += 1
        self.rlviser.render(
            tick_count=self.steps * env.action_repeat,
            tick_rate=TICK_RATE / env.action_repeat,
            game_mode=RocketSim.GameMode.SOCCAR,
            boost_pad_states=[bool(timer == 0) for timer in env.pad_timers[i]],
            ball=env.arenas[i].ball.get_state(),
            cars=[(body.id, int(body.team), body.get_config(), body.get_state()) for body in env.bodies[i]],
        )
        time.sleep(env.action_repeat / TICK_RATE)  # at the game's own pace

    def goal(self, who):
        """Nothing to write down"""

    def save(self, path):
        self.rlviser.quit()
