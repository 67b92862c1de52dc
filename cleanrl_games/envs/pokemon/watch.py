"""One episode for `tools/watch.py`: the screen, what the network would press, and a person's buttons, recorded on
request."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from .env import ACTIONS, QUEST_SEEDS, PokemonEnv
from .episodes import Recording, describe, write_episode
from .expert import QuestExpert

OPPONENTS, DEFAULT_OPPONENT = (), ""
SCRIPTED = ("expert",)
HELD_OUT = 64  # worlds from the end that the script never trains in


def png(picture):
    """(160, 240, 3) uint8 → PNG in base64. The console shows few colours at once, so a palette loses nothing."""
    colours = np.unique(picture.reshape(-1, 3), axis=0)
    image = Image.fromarray(picture)
    if len(colours) <= 256:
        image = image.quantize(len(colours), dither=Image.Dither.NONE)
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=6)
    return base64.b64encode(stream.getvalue()).decode()


class Episode:
    """One episode after another in worlds that no training has seen. There is one seat: a model, the expert, or a
    person."""

    def __init__(self, seats, seed=1, deterministic=False, record_dir="expert_data/mine", adviser=None, **env_settings):
        self.seats, self.seed, self.deterministic, self.record_dir = seats, seed, deterministic, Path(record_dir)
        self.env = PokemonEnv(**env_settings)
        self.is_quest = self.env.reader.game == "quest"
        self.frame_seconds = (self.env.hold + self.env.release) / 60
        self.expert = QuestExpert()
        self.adviser = adviser  # a model that says what it would press while a person plays
        self.generator = torch.Generator().manual_seed(seed)
        self.recording, self.record = None, False
        self.number = -1

    @property
    def waits(self):
        """The game stands still until a button is pressed."""
        return self.seats[0].kind == "person"

    def info(self):
        return {"buttons": list(ACTIONS), "milestones": list(self.env.milestones), "record_dir": str(self.record_dir)}

    def scene(self, pressed=None):
        reached = [bool(self.env.bits >> bit & 1) for bit in range(len(self.env.milestones))]
        scene = {"png": png(self.observation), "step": self.env.steps, "reached": reached, "pressed": pressed}
        return scene | {"world": self.world, "recording": self.record}

    def begin(self):
        self.number += 1
        self.world = QUEST_SEEDS - HELD_OUT + (self.seed + self.number) % HELD_OUT if self.is_quest else None
        self.observation, self.last_info = self.env.reset(options={"quest_seed": self.world} if self.is_quest else None)
        self.memory = None
        self.recording = Recording([self.observation]) if self.waits else None
        return [{"scene": self.scene()}]

    def skip(self):
        """The next `begin` is in the next world."""

    def check(self, answer):
        if not isinstance(answer, dict) or answer.get("button") not in ACTIONS:
            raise ValueError(f"A button is one of {', '.join(ACTIONS)}.")
        return answer

    def question(self):
        return {} if self.waits else None

    @torch.no_grad()
    def think(self, model):
        """The network's ten outputs → (its action, what it thinks)"""
        agent, settings = model.agent, model.args
        if self.memory is None:
            self.memory = model.script.Memory(agent)
        self.memory.see(model.script.resize(self.observation[None])[0])
        temperature = settings["q_temperature"] if settings.get("algo") == "dqn_bc" else 1.0
        (taken,), outputs = model.script.choose_actions(
            agent, [self.memory], temperature, self.generator, self.deterministic
        )
        outputs = outputs[0]
        is_q = settings.get("algo") == "dqn_bc"
        chances = (outputs / temperature).softmax(-1)
        order = chances.argsort(descending=True)[:6].tolist()
        options = [[ACTIONS[i], round(float(chances[i]), 3), i == taken] for i in order]
        value = round(float(outputs.max()), 4) if is_q else None
        return taken, {"value": value, "groups": [{"name": "button", "options": options}]}

    def step(self, answer=None):
        seat, mind = self.seats[0], None
        if seat.kind == "model":
            action, mind = self.think(seat.model)
        elif seat.kind == "scripted":
            action = self.expert.act(self.env)
        else:
            action = ACTIONS.index(answer["button"])
            if self.adviser is not None:
                _, mind = self.think(self.adviser)
                for option in mind["groups"][0]["options"]:
                    option[2] = option[0] == answer["button"]
        step = self.env.step(action)
        self.observation, _, terminated, truncated, self.last_info = step
        if self.recording is not None:
            self.recording.add(action, action, step)
        frame = {"scene": self.scene(ACTIONS[action]), "minds": [mind]}
        if terminated or truncated:
            reached = self.last_info["milestones_reached"]
            text = "finished" if terminated else f"out of time, {reached} of {len(self.env.milestones)} milestones"
            if self.record and self.recording is not None:
                text += f"; recorded as {self.write()}"
            frame["over"] = {"winner": 0 if terminated else None, "text": text}
        return [frame]

    def write(self):
        """Keeps the person's episode for cloning → its file"""
        self.record_dir.mkdir(parents=True, exist_ok=True)
        taken = [
            int(found[1])
            for path in self.record_dir.glob("episode_*.npz")
            if (found := re.fullmatch(r"episode_(\d+)", path.stem))
        ]
        path = self.record_dir / f"episode_{max(taken, default=0) + 1:04d}.npz"
        more = {"quest_seed": self.world} if self.is_quest else {}
        write_episode(path, self.recording, describe(self.env, expert="human", noise=0.0, **more))
        return path

    def close(self):
        self.env.close()
