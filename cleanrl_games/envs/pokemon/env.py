"""`PokemonEnv`: a GBA cartridge as a gymnasium environment; observations are what the screen shows, rewards are
milestones."""

import hashlib
import warnings
from collections import OrderedDict
from pathlib import Path

import gymnasium as gym
import numpy as np

from cleanrl_games.runtime.errors import BadInput

from .emerald import EMERALD_SHA1, EMERALD_SIZE, EmeraldReader
from .emulator import HEIGHT, KEYS, WIDTH, Emulator, read_rom
from .ram import COMPASS_AT, COMPASSES, EWRAM, QUEST_MAGIC, SEED_AT, QuestReader, UnknownReader

ACTIONS = ("A", "B", "START", "SELECT", "UP", "DOWN", "LEFT", "RIGHT", "L", "R")
ACTION_KEYS = tuple(KEYS[name] for name in ACTIONS)
TIMINGS = {"fast": (6, 3), "normal": (10, 8), "slow": (16, 16)}  # frames a button is held, frames it is let go
QUEST_ROM = Path(__file__).parent / "quest.gba"
QUEST_SHA1 = (Path(__file__).parent / "quest.gba.sha1").read_text().split()[0]
QUEST_SEEDS = 65536
KEPT_STATES = 64  # 400 kB each


def identify(rom, sha1, path):
    """→ reader of this cartridge. A damaged copy of a known one is refused: the core would run it and die somewhere on
    the way."""
    if sha1 == QUEST_SHA1:
        return QuestReader
    if sha1 == EMERALD_SHA1:
        return EmeraldReader
    title = rom[0xA0:0xAC]
    if title.startswith(b"EMBERQUEST"):
        raise ValueError(
            f"{path} is the quest, but its SHA-1 is {sha1} instead of {QUEST_SHA1}: it is damaged, or built from "
            f"other sources "
            "(`make` in the quest's folder records the hash of what it builds)."
        )
    if rom[0xAC:0xB0] == b"BPEE" and len(rom) != EMERALD_SIZE:
        raise ValueError(
            f"{path} calls itself Emerald (BPEE) but has {len(rom):,} bytes instead of {EMERALD_SIZE:,}: it is "
            f"truncated."
        )
    warnings.warn(
        f"{path} (SHA-1 {sha1}) is neither the quest nor the US Emerald ({EMERALD_SHA1}): it runs, but there are no "
        f"milestones and no reward.",
        stacklevel=3,
    )
    return UnknownReader


def parse_timing(text):
    """'fast' or '10/8' → what PokemonEnv takes, None for the default"""
    if not text or text in TIMINGS:
        return text or None
    held, slash, released = text.partition("/")
    if not (slash and held.isdigit() and released.isdigit() and int(held) and int(released)):
        raise BadInput(
            f"--timing should be one of {', '.join(TIMINGS)}, or frames held/released like 10/8, found {text!r}."
        )
    return int(held), int(released)


class PokemonEnv(gym.Env):
    """
    rom_path    None is the quest that comes along; otherwise a .gba file of one's own
    timing      fast | normal | slow, or (frames held, frames released). Default: fast for the quest, normal for others
    max_steps   truncates; 0 never does
    quest_seeds of which worlds `reset` draws one; `reset(options={"quest_seed": 7})` asks for one
    compass     the quest's needle in the top bar: none (the game itself tells the way), bearing (straight to the goal),
      path (the next step)
    start_state bytes of `save_state()` or a file of them: where an episode of a cartridge other than the quest starts
    start_states  a folder of such files (*.state): `reset` draws one, `reset(options={"start": name})` asks for one by
    its file's name
    backend     auto | libretro | libmgba, see emulator.py
    """

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 30}  # noqa: RUF012  (gymnasium's own convention)

    def __init__(self, rom_path=None, timing=None, max_steps=600, render_mode=None, quest_seeds=None, start_state=None,
        backend="auto", compass="none",
                 start_states=None):  # fmt: skip
        if compass not in COMPASSES:
            raise ValueError(f"There is no compass {compass!r}; choose one of {', '.join(COMPASSES)}.")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"There is no render mode {render_mode!r}; choose rgb_array or human.")
        rom_path = QUEST_ROM if rom_path is None else Path(rom_path)
        rom, sha1 = read_rom(rom_path)
        reader = identify(rom, sha1, rom_path)
        self.hold, self.release = self._timing(timing or ("fast" if reader is QuestReader else "normal"))
        self.quest_seeds = range(QUEST_SEEDS) if quest_seeds is None else [int(seed) for seed in quest_seeds]
        if not self.quest_seeds or min(self.quest_seeds) < 0 or max(self.quest_seeds) >= QUEST_SEEDS:
            raise ValueError(
                f"quest_seeds should be at least one whole number from 0 to {QUEST_SEEDS - 1}, found {quest_seeds!r}."
            )
        self.max_steps, self.render_mode, self.compass = max_steps, render_mode, compass
        self.observation_space = gym.spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(len(ACTIONS))
        self.emulator = Emulator(rom_path, backend)
        self.reader = reader(self.emulator, rom)
        self.milestones, self.window = self.reader.milestones, None
        self.start, self.states = "", OrderedDict()  # quest seed → save state of its first moment
        self.emulator.run(30)
        self.title = self.emulator.save()
        self.starts = self._load_starts(start_state, start_states)
        if reader is QuestReader and self.emulator.read(EWRAM, 4) != QUEST_MAGIC:
            raise RuntimeError("The quest did not start: its state is not at 0x02000000 after 30 frames.")
        self.observation = self.emulator.frame()

    def _load_starts(self, start_state, start_states):
        """→ {name: save state} of the moments that episodes may start from"""
        if start_state is None and start_states is None:
            return {"": self.title}
        if isinstance(self.reader, QuestReader):
            raise ValueError("A start state is for a cartridge of your own; the quest starts in its worlds.")
        if start_state is not None and start_states is not None:
            raise ValueError("Give either one start state or a folder of them.")
        if start_state is not None:
            paths = [] if isinstance(start_state, bytes) else [Path(start_state)]
        else:
            paths = sorted(Path(start_states).glob("*.state"))
            if not paths:
                raise ValueError(
                    f"The folder {start_states} has no save states (*.state): make them with save_state()."
                )
        starts = {"": start_state} if not paths else {}
        for path in paths:
            if not path.is_file():
                raise ValueError(f"There is no save state at {path}.")
            starts[path.stem] = path.read_bytes()
        for name, data in starts.items():
            try:
                self.emulator.load(data)
            except ValueError as error:
                raise ValueError(f"The start state {name or 'given as bytes'}: {error}") from None
        return starts

    def start_hash(self):
        """→ of all moments that episodes may start from; the quest's worlds have none"""
        if list(self.starts) == [""] and self.starts[""] is self.title:
            return ""
        return hashlib.sha256(b"".join(self.starts[name] for name in sorted(self.starts))).hexdigest()[:16]

    @staticmethod
    def _timing(timing):
        if isinstance(timing, str):
            if timing not in TIMINGS:
                raise ValueError(
                    f"There is no timing {timing!r}; choose one of {', '.join(TIMINGS)} or give (frames held, frames "
                    f"released)."
                )
            return TIMINGS[timing]
        hold, release = timing
        if not (isinstance(hold, int) and isinstance(release, int) and hold > 0 and release > 0):
            raise ValueError(f"A timing is two whole numbers of frames above 0, found {timing!r}.")
        return hold, release

    def _start_quest(self, quest_seed):
        """The first moment of a world: from memory, or through the title screen."""
        if quest_seed in self.states:
            self.states.move_to_end(quest_seed)
        else:
            self.emulator.load(self.title)
            self.emulator.write(EWRAM + SEED_AT, quest_seed.to_bytes(2, "little"))
            self.emulator.write(EWRAM + COMPASS_AT, bytes([COMPASSES.index(self.compass)]))
            self.emulator.run(2, KEYS["START"])
            self.emulator.run(10)
            self.states[quest_seed] = self.emulator.save()
            if len(self.states) > KEPT_STATES:
                self.states.popitem(last=False)
        self.emulator.load(self.states[quest_seed])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        options = options or {}
        unknown = set(options) - {"quest_seed", "state", "start"}
        if unknown:
            raise ValueError(f"reset knows the options quest_seed, start and state, found {sorted(unknown)}.")
        if "state" in options:
            self.emulator.load(options["state"])
            self.start = ""
        elif isinstance(self.reader, QuestReader):
            drawn = self.quest_seeds[self.np_random.integers(len(self.quest_seeds))]
            quest_seed = int(options.get("quest_seed", drawn))
            if not 0 <= quest_seed < QUEST_SEEDS:
                raise ValueError(f"quest_seed should be from 0 to {QUEST_SEEDS - 1}, found {quest_seed}.")
            self._start_quest(quest_seed)
        else:
            self.start = options.get("start", str(self.np_random.choice(list(self.starts))))
            if self.start not in self.starts:
                raise ValueError(
                    f"There is no start state {self.start!r}; there are {', '.join(map(repr, self.starts))}."
                )
            self.emulator.load(self.starts[self.start])
        # a loaded state has no picture before its next frame
        self.emulator.run(1)
        self.steps, self.bits = 0, self.reader.reached_at_start()
        self.observation = self.emulator.frame()
        if self.render_mode == "human":
            self._show()
        return self.observation, self._info()

    def step(self, action):
        if not 0 <= action < len(ACTIONS):
            raise ValueError(
                f"An action is a whole number from 0 to {len(ACTIONS) - 1} ({' '.join(ACTIONS)}), found {action!r}."
            )
        self.emulator.press(ACTION_KEYS[action], self.hold, self.release)
        bits = self.reader.reached(self.bits)
        reward = float((bits & ~self.bits).bit_count())
        self.bits |= bits
        self.steps += 1
        terminated = self.reader.is_finished(self.bits)
        truncated = bool(self.max_steps) and self.steps >= self.max_steps and not terminated
        self.observation = self.emulator.frame()
        if self.render_mode == "human":
            self._show()
        return self.observation, reward, terminated, truncated, self._info()

    def _info(self):
        return {
            **self.reader.info(),
            "milestones": {name: bool(self.bits >> bit & 1) for bit, name in enumerate(self.milestones)},
            "milestones_reached": self.bits.bit_count(),
            "game": self.reader.game,
            "backend": self.emulator.backend,
            "rom_sha1": self.emulator.rom_sha1,
            "start": self.start,
            "steps": self.steps,
        }

    def save_state(self):
        """→ bytes; `reset(options={"state": …})` goes on from them, in this process or another one"""
        return self.emulator.save()

    def render(self):
        if self.render_mode == "rgb_array":
            return self.observation.copy()
        if self.render_mode == "human":
            self._show()
        return None

    def _show(self):
        if self.window is None:
            try:
                import pygame
            except ImportError:
                raise RuntimeError(
                    'render_mode="human" opens a window with pygame, which is not installed: pip install pygame'
                ) from None
            pygame.display.init()
            pygame.display.set_caption("cleanrl_games: pokemon")
            self.window = pygame, pygame.display.set_mode((3 * WIDTH, 3 * HEIGHT)), pygame.time.Clock()
        pygame, surface, clock = self.window
        picture = pygame.surfarray.make_surface(self.observation.swapaxes(0, 1))
        pygame.transform.scale(picture, surface.get_size(), surface)
        pygame.event.pump()
        pygame.display.flip()
        clock.tick(self.metadata["render_fps"])

    def close(self):
        if self.window is not None:
            self.window[0].display.quit()
            self.window = None
        self.emulator.close()
