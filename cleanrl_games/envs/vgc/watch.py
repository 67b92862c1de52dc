"""One battle for `tools/watch.py`: the events of the replay page as they happen, what the policies think, and a
person's choices.

env.recv() ─> protocol lines of one seat ─> replay_log.Board ─> events ─> frames
           └> requests ─> names of the legal actions, for a person and for what a policy thinks
"""

import json
import re
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch

from . import mdbo
from .match import BASELINES
from .replay import PAGE
from .replay_log import Board, read_log
from .teams import TeamPool
from .vec_env import PREVIEW, VGCVecEnv

OPPONENTS, DEFAULT_OPPONENT = BASELINES, "heuristics"
EVENT_SECONDS = 0.8
MAX_TEAM_BYTES = 20_000


def read_team(text, battle_format):
    """A PokePaste text → its packed team. A fault is a ValueError that names it."""
    if len(text) > MAX_TEAM_BYTES:
        raise ValueError(f"A team is a PokePaste text of a few hundred characters, found {len(text):,}.")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "yours.txt").write_text(text, encoding="utf-8")
        try:
            return TeamPool(folder, battle_format, split="all").packed[0]
        except ValueError as error:
            raise ValueError(str(error).replace(folder, "your team")) from None


@cache
def glyphs():
    """The signs of the types, as the replay page draws them: type → the path of an SVG"""
    return dict(re.findall(r'data-type="([^"]+)"><path[^>]* d="([^"]+)"', PAGE.read_text(encoding="utf-8")))


def named(line, names):
    """A line of the protocol with the players' names: the simulator calls them p1 and p2."""
    kind, *parts = line[1:].split("|") if line.startswith("|") else [""]
    if kind == "player" and parts[0] in ("p1", "p2"):
        parts[1] = names[int(parts[0][1]) - 1]
    elif kind == "win" and parts[0] in ("p1", "p2"):
        parts[0] = names[int(parts[0][1]) - 1]
    else:
        return line
    return "|".join(["", kind, *parts])


def page_of(log_text, names=None):
    """A whole battle's log → (info, frames), for a page or a GIF. `names`: of the players, where the log has none."""
    if names:
        log_text = "\n".join(named(line, names) for line in log_text.split("\n"))
    board = read_log(log_text)
    frames = [{"scene": {"event": event}} for event in board.events]
    winner = next((side for side, name in enumerate(board.players.values()) if name == board.winner), None)
    frames[-1]["over"] = {"winner": winner, "text": f"{board.winner} wins" if board.winner else "nobody wins"}
    info = {"game": "vgc", "names": list(board.players.values()), "detail": board.tier, "frame_seconds": EVENT_SECONDS}
    return info | {"tier": board.tier, "view": 0, "glyphs": glyphs(), "value_means": ""}, frames


class Speaker:
    """Says an MDBO action in the words of the seat's own request."""

    def __init__(self, request, board, side):
        self.request, self.board, self.side = request, board, side
        self.team = [mon["ident"].partition(": ")[2] for mon in request["side"]["pokemon"]]

    def place(self, side, slot):
        index = self.board.slots[f"p{side + 1}{'ab'[slot]}"]
        return self.board.mons[f"p{side + 1}"][index]["name"] if index is not None else f"slot {'ab'[slot]}"

    def slot(self, slot, action):
        chosen = mdbo.decode_slot(action)
        if chosen.switch is not None:
            return f"switch to {self.team[chosen.switch]}"
        if chosen.move is None:
            return "pass"
        active = self.request["active"][slot]
        words = active["moves"][chosen.move]["move"]
        if chosen.target > 0:
            words += f" → {self.place(1 - self.side, chosen.target - 1)}"
        elif chosen.target < 0:
            words += f" → {self.place(self.side, -chosen.target - 1)}"
        return f"Tera, {words}" if chosen.tera else words

    def joint(self, action):
        return " / ".join(self.slot(slot, half) for slot, half in enumerate(divmod(action, mdbo.SLOT_ACTIONS)))

    def preview(self, action):
        first, second, third, fourth = (self.team[place] for place in mdbo.PREVIEWS[action])
        return f"{first} + {second}, then {third}, {fourth}"

    def slot_title(self, slot):
        return f"{'ab'[slot]}: {self.team[slot]}"


class Battle:
    """One battle after another. Seat 0 is p1. `team`: packed, what the person plays with; `teams`: what everybody else
    draws from."""

    frame_seconds = EVENT_SECONDS
    waits = True

    def __init__(
        self, seats, seed=1, deterministic=False, battle_format="gen9vgc2024regg", teams=None, team="", **env_settings
    ):
        self.seats, self.deterministic = seats, deterministic
        if all(seat.kind == "scripted" for seat in seats):
            raise ValueError(
                "Somebody in a VGC battle must be a model or a person: scripted players alone are what evaluate.py "
                "plays."
            )
        self.pool = TeamPool("shipped", battle_format, split="eval") if teams is None else teams
        self.settings = {"seed": seed >> 1, "battle_format": battle_format, "protocol": True, **env_settings}
        self.names = [seat.name for seat in seats]
        self.person = next((side for side, seat in enumerate(seats) if seat.kind == "person"), None)
        # The board is told from one seat: the person's, else the first that is not scripted.
        self.eyes = self.person if self.person is not None else int(seats[0].kind == "scripted")
        self.generators = [torch.Generator().manual_seed(seed + 1 + side) for side in range(2)]
        self.team, self.env, self.batch, self.episode = team, None, None, 0

    def open_env(self):
        pools = [[self.team] if side == self.person and self.team else self.pool for side in range(2)]
        scripted = [tuple(seat.name if seat.kind == "scripted" else "open" for seat in self.seats)]
        opponents = {"opponents": scripted} if any(seat.kind == "scripted" for seat in self.seats) else {}
        self.env = VGCVecEnv(1, 1, teams=tuple(pools), episodes=[self.episode], **opponents, **self.settings)

    def info(self):
        return {
            "tier": self.settings["battle_format"],
            "own_team": bool(self.team),
            "view": self.eyes,
            "glyphs": glyphs(),
        }

    # ------------------------------------------------------------------------------------------------ what is heard

    def hear(self, side, lines):
        """Lines of the protocol of one seat: the request is that seat's, the rest is told once, by the seat `eyes`."""
        for line in lines:
            if line.startswith("|request|"):
                self.requests[side] = json.loads(line.removeprefix("|request|"))
            elif side == self.eyes:
                self.board.line(named(line, self.names))

    def new_frames(self):
        events = self.board.events[self.told :]
        self.told = len(self.board.events)
        return [{"scene": {"event": event}} for event in events]

    def begin(self):
        if self.env is None:
            self.open_env()
        self.board, self.told, self.requests = Board(), 0, [None, None]
        self.states = [None, None]
        if self.batch is None:
            self.batch = self.env.recv()
        for row in self.batch.decisions:
            self.hear(int(self.batch.side[row]), self.batch.protocol.get(int(row), []))
        self.board.tell("minor", "Both players choose four of their six.")
        return self.new_frames()

    def skip(self):
        """Leaves a battle that is not over: the simulator knows no way to give up, so it starts anew with the next."""
        self.episode += 1
        if self.env is not None:
            self.env.close()
        self.env = self.batch = None

    # ---------------------------------------------------------------------------------------------- what is decided

    def row_of(self, side):
        rows = [int(row) for row in self.batch.decisions if self.batch.side[row] == side]
        return rows[0] if rows else None

    def speaker(self, side):
        return Speaker(self.requests[side], self.board, side)

    def question(self):
        row = self.row_of(self.person) if self.person is not None else None
        if row is None:
            return None
        says, again = self.speaker(self.person), bool(self.batch.retry[row])
        if self.batch.kind[row] == PREVIEW:
            return {"kind": "preview", "team": says.team, "again": again}
        legal = self.batch.mask[row].reshape(mdbo.SLOT_ACTIONS, mdbo.SLOT_ACTIONS)
        slots = []
        for slot in range(2):
            allowed = np.flatnonzero(legal.any(1 - slot)).tolist()
            slots.append(
                {"name": says.slot_title(slot), "options": [[action, says.slot(slot, action)] for action in allowed]}
            )
        pairs = {str(first): np.flatnonzero(legal[first]).tolist() for first in np.flatnonzero(legal.any(1)).tolist()}
        return {"kind": "turn", "slots": slots, "pairs": pairs, "again": again}

    def check(self, answer):
        """A person's answer → the MDBO action, or a ValueError"""
        row = self.row_of(self.person) if self.person is not None else None
        if row is None:
            raise ValueError("No choice is asked for now.")
        parts = answer.get("team" if self.batch.kind[row] == PREVIEW else "slots") if isinstance(answer, dict) else None
        if not isinstance(parts, list) or not all(
            type(part) is int and 0 <= part < mdbo.SLOT_ACTIONS for part in parts
        ):
            raise ValueError('A choice is {"slots": [action, action]}, at the preview {"team": [four places]}.')
        if self.batch.kind[row] == PREVIEW:
            wanted = [*sorted(parts[:2]), *sorted(parts[2:])]
            found = np.flatnonzero((wanted == mdbo.PREVIEWS).all(1)) if len(parts) == 4 else []
            action = int(found[0]) if len(found) else None
        else:
            action = mdbo.SLOT_ACTIONS * parts[0] + parts[1] if len(parts) == 2 else None
        if action is None or not self.batch.mask[row][action]:
            raise ValueError("This choice is not legal now.")
        return action

    @torch.no_grad()
    def think(self, side, row):
        agent, batch = self.seats[side].model.agent, self.batch
        if self.states[side] is None:
            self.states[side] = (agent.initial_state(1), agent.initial_state(1))
        # A choice that could not be carried out is asked for again: the memory of it is undone.
        before = self.states[side][0] if batch.retry[row] else self.states[side][1]
        preview = torch.tensor([bool(batch.kind[row] == PREVIEW)])
        ints, floats = torch.from_numpy(batch.ints[row : row + 1]), torch.from_numpy(batch.floats[row : row + 1])
        hidden, candidates, after = agent.step(ints, floats, before)
        self.states[side] = (before, after)
        logprobs = agent.joint_logprobs(hidden, candidates, preview, torch.from_numpy(batch.mask[row : row + 1]))[0]
        chances = logprobs.exp()
        action = int(
            chances.argmax() if self.deterministic else torch.multinomial(chances, 1, generator=self.generators[side])
        )
        groups = self.say(side, bool(preview), chances.numpy(), action)
        return action, {"value": round(float(agent.value(hidden)[0]), 4), "groups": groups}

    def say(self, side, is_preview, chances, action):
        says = self.speaker(side)

        def options(probabilities, words, taken, most=5):
            best = [int(i) for i in probabilities.argsort()[::-1][:most] if probabilities[i] > 0.001]
            best += [taken] if taken not in best else []
            return [[words(i), round(float(probabilities[i]), 3), i == taken] for i in best]

        if is_preview:
            return [{"name": "four of six", "options": options(chances, says.preview, action)}]
        joint = chances.reshape(mdbo.SLOT_ACTIONS, mdbo.SLOT_ACTIONS)
        groups = []
        for slot, taken in enumerate(divmod(action, mdbo.SLOT_ACTIONS)):
            alone = joint.sum(1 - slot)
            if (alone > 0.001).sum() > 1:
                words = options(alone, lambda half, slot=slot: says.slot(slot, half), taken)
                groups.append({"name": says.slot_title(slot), "options": words})
        if len(groups) == 2:
            groups.append({"name": "both together", "options": options(chances, says.joint, action, 3)})
        return groups

    def step(self, answer=None):
        """`answer`: what `check` made of the person's. Everybody who is asked answers, then the simulator plays on."""
        minds, keys, actions = [None, None], [], []
        for side, seat in enumerate(self.seats):
            row = self.row_of(side)
            if row is None:
                continue
            if seat.kind == "model":
                action, minds[side] = self.think(side, row)
            else:
                action = answer
            keys.append(int(self.batch.key[row]))
            actions.append(action)
        self.env.send(keys, actions)
        self.batch = self.env.recv()
        ended = len(self.batch.finished) > 0
        rows = self.batch.ends if ended else self.batch.decisions
        for row in rows:
            self.hear(int(self.batch.side[row]), self.batch.protocol.get(int(row), []))
        if ended and not any(event["kind"] == "end" for event in self.board.events):
            self.board.tell("end", "The battle was stopped at its last turn.")
        if self.told == len(self.board.events):  # a choice that is asked for again
            self.board.tell("minor", "The choice was not possible and is asked for again.")
        frames = self.new_frames()
        frames[0]["minds"] = minds
        if ended:
            self.episode += 1
            winner = int(self.batch.finished["winner"][0])
            text = f"{self.names[winner]} wins" if winner in (0, 1) else "a tie"
            frames[-1]["over"] = {"winner": winner if winner in (0, 1) else None, "text": text}
        return frames

    def close(self):
        if self.env is not None:
            self.env.close()
