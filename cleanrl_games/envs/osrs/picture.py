"""A fight from above, as a GIF: tiles, gear, overhead prayers, HP and special bars, hitsplats, freezes, spells in the
air.

python -m cleanrl_games.envs.osrs.picture docs/media/osrs.gif    # the scripted NH player against itself
"""

import math
import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .loadouts import MAGE, MELEE, RANGED, SPECIAL, TANK
from .rules import REDEMPTION, SMITE, TIED

WIDTH, HEIGHT, HUD, TILE = 480, 330, 60, 30
COLUMNS, ROWS = WIDTH // TILE, (HEIGHT - HUD) // TILE
SCALE = 2  # drawn twice as large and shrunk, which rounds every edge
FIGURE = 1.5  # figures are drawn in units of their own
COLORS = 127  # one more index of the GIF's palette means: as in the frame before

GRASS, GRASS_DARK, PANEL, INK, DIM = "#5b7f4c", "#557847", "#23272f", "#f3efe0", "#9aa0a8"
SIDES = ("#4f9dff", "#ff6a5c")
GEAR = {MAGE: "#5b4bb5", RANGED: "#2f8a4a", MELEE: "#a8662c", SPECIAL: "#c8952d", TANK: "#7d8590"}
GEAR_NAMES = {MAGE: "mage", RANGED: "ranged", MELEE: "melee", SPECIAL: "special", TANK: "tank"}
STYLE_COLORS = ("#7fe7ff", "#c9f27b", "#ffffff")
PRAYER_COLORS = {1: "#5b7cff", 2: "#39b35a", 3: "#e0503c", SMITE: "#b061d8", REDEMPTION: "#e6b93a"}
FULL, EMPTY, ENERGY, ICE_BLUE, BLOOD_RED, MISS_BLUE = "#3fcf4a", "#c3302b", "#e3b341", "#bfeaff", "#b3201c", "#2f6fd0"


class _Pen:
    """ImageDraw in the picture's own coordinates, or, after `at`, in those of a figure."""

    def __init__(self, image):
        self.draw = ImageDraw.Draw(image, "RGBA")
        self.fonts, self.unit, self.x, self.y = {}, SCALE, 0, 0

    def at(self, x, y, unit=1.0):
        self.x, self.y, self.unit = x * SCALE, y * SCALE, unit * SCALE
        return self

    def _pixels(self, points):
        return [(self.x + x * self.unit, self.y + y * self.unit) for x, y in points]

    def _width(self, width):
        return max(round(width * self.unit), 1)

    def box(self, x, y, w, h, fill, radius=0, outline=None, width=1):
        corners = self._pixels([(x, y), (x + w, y + h)])
        self.draw.rounded_rectangle(corners, radius * self.unit, fill=fill, outline=outline, width=self._width(width))

    def disc(self, x, y, r, fill, outline=None, width=1):
        self.draw.ellipse(
            self._pixels([(x - r, y - r), (x + r, y + r)]), fill=fill, outline=outline, width=self._width(width)
        )

    def line(self, points, fill, width=1.0):
        self.draw.line(self._pixels(points), fill=fill, width=self._width(width), joint="curve")

    def shape(self, points, fill):
        self.draw.polygon(self._pixels(points), fill=fill)

    def arc(self, x, y, r, start, end, fill, width):
        self.draw.arc(self._pixels([(x - r, y - r), (x + r, y + r)]), start, end, fill=fill, width=self._width(width))

    def text(self, x, y, words, size, fill=INK, anchor="mm", outline=None):
        size = round(size * self.unit)
        if size not in self.fonts:
            self.fonts[size] = ImageFont.load_default(size)
        stroke = SCALE if outline else 0
        place = self._pixels([(x, y)])[0]
        self.draw.text(place, words, fill, self.fonts[size], anchor, stroke_width=stroke, stroke_fill=outline)


class FightRecorder:
    """Records fight `index` of an `NHVecEnv`: `frame()` after every step, `save(path)` at the end.

    A frame is only a note of the two fighters; the drawing is done when the GIF is saved.
    """

    def __init__(self, env, index, names=("blue", "red")):
        if not hasattr(env, "fighters"):
            raise TypeError(
                f"{type(env).__name__} does not tell where its fighters stand; pictures are made of NHVecEnv."
            )
        self.env, self.index, self.names = env, index, names
        self.frames, self.camera, self.grounds, self.places = [], None, {}, {}
        self._note(0)

    def _note(self, result):
        fighters = self.env.fighters[self.index].copy()
        self.frames.append({"tick": int(self.env.fights[self.index].tick), "fighters": fighters, "result": result})

    def frame(self):
        """Notes the tick that was just played. The last one of a fight is rebuilt, since a new fight has begun by
        then."""
        result, truncated, length = (int(x) for x in self.env.ended[self.index])
        if not result and not truncated:
            self._note(0)
            return
        fighters = self.frames[-1]["fighters"].copy()
        for me, obs in zip(fighters, self.env.final_obs[self.index], strict=True):
            base = self.env.loadouts[me.loadout].hitpoints_level
            me.hp, me.received = round(float(obs[10]) * base), round(float(obs[52]) * base)
            me.splatted, me.attacked = me.received > 0, 0
        self.frames.append({"tick": length, "fighters": fighters, "result": result or -1})

    def save(self, path, milliseconds=170):
        """Writes the GIF, whole or not at all; the end of a fight is held for a while."""
        if not self.frames:
            raise ValueError("No frame was recorded: call frame() after each step of the environment.")
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        images = [self.draw(number) for number in range(len(self.frames))]
        # One palette for all frames, made of what happens rather than of grass: colours neither fade nor flicker.
        sample = Image.new("RGB", (WIDTH, 24 * HUD))
        for row, number in enumerate(np.linspace(0, len(images) - 1, 12).astype(int)):
            sample.paste(images[number].crop((0, 0, WIDTH, HUD)), (0, 2 * row * HUD))
            for side in range(2):
                x, y = self.places[number][side]
                crop = images[number].crop((round(x) - 30, round(y) - 40, round(x) + 30, round(y) + 20))
                for copy in range(4):
                    sample.paste(crop, (240 * side + 60 * copy, (2 * row + 1) * HUD))
        palette = sample.quantize(COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
        durations = [2500 if frame["result"] else milliseconds for frame in self.frames]
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            images[0].save(
                partial,
                "GIF",
                save_all=True,
                append_images=images[1:],
                duration=durations,
                loop=0,
                optimize=True,
                disposal=1,
            )
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------------------- drawing

    def draw(self, number):
        """The picture of one recorded frame, as a Pillow image."""
        frame = self.frames[number]
        fighters = frame["fighters"]
        self._aim_camera(fighters)
        image = self._ground().copy()
        pen = _Pen(image)
        places = [self._tile_center(me.x, me.y) for me in fighters]
        if places[0] == places[1]:  # one under the other: both stay visible
            places = [(places[0][0] - 6, places[0][1]), (places[1][0] + 6, places[1][1])]
        self.places[number] = places
        for side, me in enumerate(fighters):
            if me.freeze_timer > 1:
                self._draw_ice(pen.at(*places[side], FIGURE))
            if me.has_destination:
                pen.at(*self._tile_center(me.destination_x, me.destination_y))
                pen.line([(-5, -5), (5, 5)], SIDES[side], 1.5)
                pen.line([(-5, 5), (5, -5)], SIDES[side], 1.5)
        for side in sorted(range(2), key=lambda k: places[k][1]):
            facing = places[1 - side][0] - places[side][0]
            self._draw_fighter(
                pen.at(*places[side], FIGURE),
                fighters[side],
                side,
                1 if facing > 0 or (facing == 0 and side == 0) else -1,
            )
        for side, me in enumerate(fighters):
            if me.attacked:
                self._draw_attack(pen.at(0, 0), me, places[side], places[1 - side])
        for side, me in enumerate(fighters):
            if me.splatted:
                self._draw_hitsplat(pen.at(*places[side], FIGURE), int(me.received))
        self._draw_panels(pen.at(0, 0), frame)
        return image.reduce(SCALE)

    def _aim_camera(self, fighters):
        """Follows only when somebody comes near the edge, so that most frames differ in a few tiles."""
        xs, ys = [int(me.x) for me in fighters], [int(me.y) for me in fighters]
        middle = ((min(xs) + max(xs)) // 2 - COLUMNS // 2, (min(ys) + max(ys)) // 2 - ROWS // 2)
        if self.camera is None:
            self.camera = middle
        left, top = self.camera
        inside = (
            min(xs) >= left + 1 and max(xs) <= left + COLUMNS - 2 and min(ys) >= top + 1 and max(ys) <= top + ROWS - 3
        )
        if not inside:
            self.camera = middle

    def _tile_center(self, x, y):
        return (int(x) - self.camera[0] + 0.5) * TILE, HUD + (int(y) - self.camera[1] + 0.5) * TILE

    def _ground(self):
        """The meadow under the camera, drawn once per place."""
        if self.camera in self.grounds:
            return self.grounds[self.camera]
        image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), GRASS)
        pen, (left, top) = _Pen(image), self.camera
        for column in range(COLUMNS):
            for row in range(ROWS):
                pen.at(column * TILE, HUD + row * TILE)
                if (column + left + row + top) % 2:
                    pen.box(0, 0, TILE, TILE, GRASS_DARK)
                mark = (
                    (column + left) * 73 + (row + top) * 151
                ) % 23  # tufts and pebbles keep their place in the world
                x, y = 7 + mark % 7 * 2, 10 + mark % 5 * 2
                if mark < 2:
                    pen.line([(x - 2, y - 3), (x, y), (x + 2, y - 4)], "#6c925a", 1)
                elif mark == 2:
                    pen.disc(x, y, 1.8, "#7d8a72")
        self.grounds[self.camera] = image
        return image

    def _draw_ice(self, pen):
        pen.box(-9.5, -9.5, 19, 19, ICE_BLUE + "a0", 4, ICE_BLUE, 0.8)
        for angle in (0.2, 2.3, 4.4):
            dx, dy = 8 * math.cos(angle), 8 * math.sin(angle)
            pen.line([(dx * 0.5, dy * 0.5), (dx, dy)], "#ffffff", 0.8)

    def _draw_attack(self, pen, me, place, target):
        style = {RANGED: 1, MELEE: 2, SPECIAL: 2}.get(int(me.worn), 0)
        (x, y), (tx, ty) = place, target
        if style == 2:
            pen.arc(tx, ty, 17, 200, 330, "#ffd75e" if me.worn == SPECIAL else "#ffffff", 3)
            return
        points = [(x + (tx - x) * k / 8, y + (ty - y) * k / 8 - 18 * math.sin(math.pi * k / 8)) for k in range(1, 8)]
        pen.line(points, STYLE_COLORS[style], 1.5)
        for i, (px, py) in enumerate(points):
            pen.disc(px, py, 1.2 + 0.5 * i, STYLE_COLORS[style])

    def _draw_fighter(self, pen, me, side, ahead):
        """`ahead` is 1 when the target is to the right, else -1."""
        pen.disc(0, 8, 7, "#3f5a35")
        color = GEAR[int(me.worn)]
        pen.shape([(-7, 8), (-5, -3), (5, -3), (7, 8)], SIDES[side])
        pen.shape([(-5.2, 7), (-4, -2), (4, -2), (5.2, 7)], color)
        pen.disc(0, -6, 4.6, "#f0c9a0", SIDES[side], 1.2)
        pen.arc(0, -6.4, 4.2, 180, 360, color, 2.2)
        hand = 7 * ahead
        if me.worn in (MAGE, TANK):
            pen.line([(hand, 9), (hand + 2 * ahead, -8)], "#6b4a2b", 1.6)
            pen.disc(hand + 2 * ahead, -9, 2.6, "#9be7ff", "#2d5fa8", 0.8)
        elif me.worn == RANGED:
            pen.line([(hand - 3 * ahead, 2), (hand + 6 * ahead, 2)], "#6b4a2b", 1.8)
            start = -80 if ahead > 0 else 100
            pen.arc(hand + ahead, 2, 6, start, start + 160, "#d9dde2", 1.6)
        else:
            pen.line([(hand, 5), (hand + 6 * ahead, -9)], "#ffd75e" if me.worn == SPECIAL else "#e6ebf0", 2)
            pen.line([(hand - 2.5, 1), (hand + 3.5, 3.5)], "#6b4a2b", 1.6)
        if me.worn == TANK:
            pen.disc(-6 * ahead, 2, 4.4, "#aeb6c0", "#5c636d", 1)
        self._draw_overhead(pen, 0, -21, int(me.overhead))
        share = min(max(me.hp / self.env.loadouts[me.loadout].hitpoints_level, 0), 1)
        pen.box(-10, -14.2, 20, 2.6, EMPTY)
        if share > 0:
            pen.box(-10, -14.2, 20 * share, 2.6, FULL)
        if me.freeze_timer > 1:
            pen.text(0, 14, str(int(me.freeze_timer) - 1), 6.5, "#ffffff", "mm", "#1b3a52")

    def _draw_overhead(self, pen, x, y, overhead):
        if overhead not in PRAYER_COLORS:
            return
        color = PRAYER_COLORS[overhead]
        pen.disc(x, y, 5.5, "#fbf6dc", color, 1.4)
        if overhead == 1:
            star = [
                (x + r * math.sin(k * math.pi / 5), y - r * math.cos(k * math.pi / 5))
                for k, r in enumerate([4, 1.6] * 5)
            ]
            pen.shape(star, color)
        elif overhead == 2:
            pen.line([(x - 2.6, y + 2.6), (x + 2, y - 2)], color, 1.4)
            pen.shape([(x + 3.4, y - 3.4), (x - 0.8, y - 2.6), (x + 2.6, y + 0.8)], color)
        elif overhead == 3:
            pen.line([(x - 2.6, y + 2.6), (x + 2.8, y - 2.8)], color, 1.6)
            pen.line([(x - 2.8, y - 0.4), (x + 0.4, y + 2.8)], color, 1.2)
        else:
            pen.text(x, y, "S" if overhead == SMITE else "R", 7, color)

    def _draw_hitsplat(self, pen, damage):
        splat = [
            (r * math.cos(k * math.pi / 8), 1 + r * math.sin(k * math.pi / 8)) for k, r in enumerate([9.5, 6.8] * 8)
        ]
        pen.shape(splat, BLOOD_RED if damage else MISS_BLUE)
        pen.text(0, 1, str(damage), 8.5, "#ffffff")

    def _draw_panels(self, pen, frame):
        pen.box(0, 0, WIDTH, HUD, PANEL)
        for side, me in enumerate(frame["fighters"]):
            kit, left = self.env.loadouts[me.loadout], 8 if side == 0 else WIDTH - 208
            pen.box(left, 6, 4, HUD - 12, SIDES[side], 2)
            pen.text(left + 11, 13, self.names[side], 12, SIDES[side], "lm")
            pen.text(left + 200, 13, GEAR_NAMES[int(me.worn)], 10, DIM, "rm")
            self._draw_bar(
                pen,
                left + 11,
                22,
                189,
                12,
                me.hp / kit.hitpoints_level,
                FULL,
                f"{max(int(me.hp), 0)} / {kit.hitpoints_level}",
            )
            self._draw_bar(pen, left + 11, 37, 92, 7, me.energy / 100, ENERGY, "")
            pen.text(left + 107, 40.5, f"spec {int(me.energy)} %", 9, DIM, "lm")
            left_over = (
                f"food {int(me.food)}   karambwan {int(me.karambwan)}   brew {int(me.brew)}   restore {int(me.restore)}"
            )
            pen.text(left + 11, 52, left_over, 9, DIM, "lm")
        pen.text(WIDTH / 2, 18, str(frame["tick"]), 16, INK)
        pen.text(WIDTH / 2, 34, "tick", 9, DIM)
        if frame["result"]:
            words = (
                "time is up"
                if frame["result"] < 0
                else "a tie"
                if frame["result"] == TIED
                else f"{self.names[frame['result'] - 1]} wins"
            )
            color = SIDES[frame["result"] - 1] if frame["result"] in (1, 2) else INK
            pen.box(WIDTH / 2 - 90, HEIGHT - 44, 180, 30, PANEL, 8, color, 1)
            pen.text(WIDTH / 2, HEIGHT - 29, words, 16, color)

    def _draw_bar(self, pen, x, y, w, h, share, color, words):
        pen.box(x, y, w, h, "#3a1a1a" if color == FULL else "#3b3420", 2)
        if share > 0:
            pen.box(x, y, max(w * min(share, 1), 3), h, color if share <= 1 else "#7be0ff", 2)
        if words:
            pen.text(x + w / 2, y + h / 2, words, 9, "#ffffff", "mm", "#1d2a1d")


def main(path, seed=8):
    """Records the scripted NH player against itself."""
    from .baselines import Baseline
    from .contract import NUM_HEADS, NUM_LOGITS, NUM_OBS
    from .vec_env import NHVecEnv

    env = NHVecEnv(1, seed=seed)
    recorder, player = FightRecorder(env, 0, ("nh bot", "nh bot")), Baseline("nh", 2, seed)
    actions, over = np.zeros((1, 2, NUM_HEADS), np.int64), False
    while not over:
        player.act(
            env.obs.reshape(-1, NUM_OBS),
            env.masks.reshape(-1, NUM_LOGITS),
            np.arange(2),
            actions.reshape(-1, NUM_HEADS),
        )
        _, _, _, terminated, truncated, _ = env.step(actions)
        recorder.frame()
        over = bool(terminated[0] or truncated[0])
    recorder.save(path)
    print(f"{path}: {len(recorder.frames)} frames, {Path(path).stat().st_size // 1000} kB")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(
            "Give the file to write and, if you like, a seed: python -m cleanrl_games.envs.osrs.picture FIGHT.gif "
            "[SEED]"
        )
    main(sys.argv[1], *(int(seed) for seed in sys.argv[2:]))
