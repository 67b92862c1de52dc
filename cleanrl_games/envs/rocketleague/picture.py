"""A match as a GIF, seen from the stands: height and pitch show, a shadow lies under ball and cars. Needs no display.

`Viewer` shows it in rlviser instead, where that is installed.
"""

import os
import time
from pathlib import Path

import numpy as np
import RocketSim
from PIL import Image, ImageDraw

from .contract import (
    BACK_WALL,
    BALL_RADIUS,
    BIG_PADS,
    CEILING,
    GOAL_BACK,
    GOAL_HALF_WIDTH,
    GOAL_HEIGHT,
    HITBOX_HALF,
    HITBOX_OFFSET,
    SIDE_WALL,
    TICK_RATE,
)
from .observations import BOOST, DEMOED, FORWARD, POSITION

WIDTH, HEIGHT, HEADER = 720, 400, 24  # pixels
CAMERA = np.array([-9300.0, 0.0, 4700.0])  # above the stands; +y, where blue attacks, is to the right
LOOKS_AT = np.array([0.0, 0.0, 250.0])
ZOOM = 600.0  # pixels that a unit spans at a distance of a unit
CAR_SCALE = 1.7  # a car of true size would be ten pixels long
BACKGROUND, GRASS, LINE, WALL = (15, 15, 20), (34, 60, 40), (150, 165, 150), (70, 80, 95)
SHADOW, PAD, BOOST_COLOUR, WHITE = (18, 34, 22), (240, 220, 80), (255, 200, 50), (255, 255, 255)
TEAM_COLOURS = ((70, 140, 255), (255, 150, 40))
CORNERS = [
    (4096, 3968),
    (2944, 5120),
    (-2944, 5120),
    (-4096, 3968),
    (-4096, -3968),
    (-2944, -5120),
    (2944, -5120),
    (4096, -3968),
]
CIRCLE = np.stack(
    [np.cos(np.linspace(0, 2 * np.pi, 16, endpoint=False)), np.sin(np.linspace(0, 2 * np.pi, 16, endpoint=False))], 1
)
# the faces of a box, as numbers of its corners (binary: nose, right side, roof), and how bright each is
FACES = (
    ((4, 5, 7, 6), 1.0),
    ((0, 1, 3, 2), 0.6),
    ((2, 3, 7, 6), 0.75),
    ((0, 1, 5, 4), 0.75),
    ((1, 3, 7, 5), 0.9),
    ((0, 2, 6, 4), 0.45),
)


def camera_axes():
    """→ (3, 3): right, up and forward of the camera. The world is left-handed: what is right of +x is +y."""
    forward = (LOOKS_AT - CAMERA) / np.linalg.norm(LOOKS_AT - CAMERA)
    right = np.cross([0.0, 0.0, 1.0], forward)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward])


AXES = camera_axes()


def project(points):
    """Points of the field (N, 3) → pixels (N, 2), distances before the camera (N,)"""
    seen = (np.asarray(points, float).reshape(-1, 3) - CAMERA) @ AXES.T
    depth = np.maximum(seen[:, 2], 1.0)
    x, y = WIDTH / 2 + ZOOM * seen[:, 0] / depth, HEADER + (HEIGHT - HEADER) / 2 - ZOOM * seen[:, 1] / depth
    return np.stack([x, y], 1), depth


def pixels(points):
    return [tuple(point) for point in project(points)[0]]


def on_floor(x, y, radius):
    """A circle on the floor, as a polygon of pixels"""
    return pixels(np.column_stack([np.array([x, y]) + radius * CIRCLE, np.full(len(CIRCLE), 1.0)]))


class MatchRecorder:
    """`frame()` before each step, `goal(who)` at the end, then `save(path)`. names: of blue and orange."""

    def __init__(self, env, arena, names=("blue", "orange"), every=2):
        self.env, self.arena, self.names, self.every = env, arena, [str(name)[:24] for name in names], every
        self.steps, self.frames, self.score = 0, [], [0, 0]
        self.pad_places = [pad.get_pos().as_tuple()[:2] for pad in env.pad_objects[arena]]
        self.stadium = self.draw_stadium()

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
            self.draw_header(ImageDraw.Draw(last), "GOAL" if who else "TIME")
            self.frames += [last] * 8

    def draw_header(self, draw, word=""):
        draw.rectangle((0, 0, WIDTH, HEADER), fill=BACKGROUND)
        seconds = self.steps * self.env.action_repeat / TICK_RATE
        blue, orange = self.names
        draw.text((10, 6), f"{blue} {self.score[0]}", fill=TEAM_COLOURS[0])
        draw.text((WIDTH / 2, 6), f"{seconds:.1f} s  {word}", fill=WHITE, anchor="ma")
        draw.text((WIDTH - 10, 6), f"{self.score[1]} {orange}", fill=TEAM_COLOURS[1], anchor="ra")

    def draw_stadium(self):
        """What does not move: floor, lines, walls, goals"""
        image = Image.new("RGB", (WIDTH, HEIGHT), BACKGROUND)
        draw = ImageDraw.Draw(image)
        draw.polygon(pixels([(*corner, 0) for corner in CORNERS]), fill=GRASS, outline=LINE)
        draw.line(pixels([(-SIDE_WALL, 0, 0), (SIDE_WALL, 0, 0)]), fill=LINE)
        draw.polygon(on_floor(0, 0, 900), outline=LINE)
        far = [corner for corner in CORNERS if corner[0] > 0]
        for corner in far:  # the far walls, as lines, so that a ball up there has something behind it
            draw.line(pixels([(*corner, 0), (*corner, CEILING)]), fill=WALL)
        draw.line(pixels([(*corner, CEILING) for corner in sorted(far, key=lambda corner: corner[1])]), fill=WALL)
        for end, colour in ((-1, TEAM_COLOURS[0]), (1, TEAM_COLOURS[1])):
            mouth, back = (
                [
                    (x, end * y, z)
                    for x, z in (
                        (-GOAL_HALF_WIDTH, 0),
                        (-GOAL_HALF_WIDTH, GOAL_HEIGHT),
                        (GOAL_HALF_WIDTH, GOAL_HEIGHT),
                        (GOAL_HALF_WIDTH, 0),
                    )
                ]
                for y in (BACK_WALL, GOAL_BACK)
            )
            for front_point, back_point in zip(mouth, back):
                draw.line(pixels([front_point, back_point]), fill=tuple(part // 2 for part in colour))
            draw.line(pixels(back), fill=tuple(part // 2 for part in colour))
            draw.line(pixels(mouth), fill=colour, width=2)
        return image

    def draw(self):
        env, i = self.env, self.arena
        image = self.stadium.copy()
        draw = ImageDraw.Draw(image)
        for pad, (x, y) in enumerate(self.pad_places):
            if env.pad_timers[i, pad] == 0:
                draw.polygon(on_floor(x, y, 130 if pad in BIG_PADS else 60), fill=PAD)
        cars = [
            (row, team) for row, team in zip(env.cars[env._rows(i)], env.agent_team[env._rows(i)]) if row[DEMOED] == 0
        ]
        ball = env.balls[i, :3]
        draw.polygon(on_floor(*ball[:2], 1.3 * BALL_RADIUS), fill=SHADOW)
        for row, _ in cars:
            draw.polygon(on_floor(*row[POSITION : POSITION + 2], 110), fill=SHADOW)
        # what is farther away is drawn first
        things = [(row[POSITION], lambda row=row, team=team: self.draw_car(draw, row, team)) for row, team in cars]
        things.append((ball[0], lambda: self.draw_ball(draw, ball)))
        for _, paint in sorted(things, key=lambda thing: -thing[0]):
            paint()
        self.draw_header(draw)
        return image

    def draw_ball(self, draw, ball):
        (centre, floor), (depth, _) = project([ball, (*ball[:2], 0)])
        radius = 1.25 * BALL_RADIUS * ZOOM / depth
        draw.line([tuple(centre), tuple(floor)], fill=LINE)
        (x, y), grey = centre, (60, 60, 60)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=(235, 235, 235), outline=grey)

    def draw_car(self, draw, row, team):
        # nose, right side, roof
        position, axes = (
            row[POSITION : POSITION + 3],
            row[FORWARD : FORWARD + 9].reshape(3, 3),
        )
        signs = np.array([(a, b, c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)])
        corners = position + CAR_SCALE * (signs * HITBOX_HALF + HITBOX_OFFSET) @ axes
        places, depths = project(corners)
        for face, brightness in sorted(FACES, key=lambda face: -depths[list(face[0])].mean()):
            fill = tuple(int(part * brightness) for part in TEAM_COLOURS[team])
            draw.polygon([tuple(places[corner]) for corner in face], fill=fill, outline=BACKGROUND)
        x, y = project([position + np.array([0, 0, 260])])[0][0]
        draw.rectangle((x - 13, y, x + 13, y + 3), fill=(60, 60, 60))
        draw.rectangle((x - 13, y, x - 13 + 26 * row[BOOST] / 100, y + 3), fill=BOOST_COLOUR)
        draw.text((x, y - 3), self.names[team][:12], fill=TEAM_COLOURS[team], anchor="ms", font_size=9)

    def save(self, path):
        if not self.frames:
            raise ValueError(f"There is no frame to save to {path}: call frame() before each step.")
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.gif")
        frames = [frame.quantize(64) for frame in self.frames]
        milliseconds = 1000 * self.env.action_repeat * self.every // TICK_RATE
        frames[0].save(temporary, save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
        os.replace(temporary, path)


class Viewer:
    """Shows an arena live, in 3-D, in rlviser, where the package rlviser-py and its viewer are installed. Used like
    MatchRecorder."""

    def __init__(self, env, arena):
        try:
            import rlviser_py  # optional: it fails on many machines
        except ImportError as error:
            raise ValueError(
                f"rlviser is not installed ({error}): install rlviser-py and its viewer, or ask for a .gif instead."
            ) from None
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
