"""Bots of other projects as opponents in Rocket League: FILE.pt=ADAPTER.py, a TorchScript network and a small module
that speaks for it.

An adapter has two functions:

    observe(obs)          our observations (M, 201), as docs/rocketleague_env.md lists them → what the network takes, a
      tensor or a tuple
    act(outputs, masks)   what the network gave, and which of the 90 actions do anything now (M, 90) → M action numbers

A bot that remembers has `start(rows)` too, called with the numbers of the cars whose games begin. Its `observe` takes
(obs, rows): which car each row is, since those whose game is over are left out. Both files can run any code, so they
are only loaded with --trust-source.
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch

from cleanrl_games.envs.rocketleague.contract import NUM_ACTIONS
from cleanrl_games.tools.models import ModelError


class ForeignBot(str):
    """The bot's name, with what it takes to play it"""

    game = "rocketleague"

    @classmethod
    def load(cls, word, trust_source):
        """FILE.pt=ADAPTER.py → the bot; a sentence for what cannot be used"""
        file, _, adapter = word.partition("=")
        for path in (file, adapter):
            if not Path(path).is_file():
                raise ModelError(
                    f"{word}: there is no file {path}. Give FILE.pt=ADAPTER.py, a TorchScript network and its adapter."
                )
        if not trust_source:
            raise ModelError(
                f"{word}: such files can run any code. Add --trust-source if you trust where they come from."
            )
        self = cls(Path(file).stem)
        self.name, self.path = str(self), Path(file)
        self.adapter = import_adapter(Path(adapter))
        try:
            self.network = torch.jit.load(file, map_location="cpu").eval()
        except RuntimeError as error:
            raise ModelError(
                f"{file} is not a TorchScript file (torch.jit.save): {str(error).splitlines()[0]}"
            ) from None
        return self


def import_adapter(path):
    spec = importlib.util.spec_from_file_location(f"adapter_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ModelError(f"{path} cannot be imported ({type(error).__name__}: {error}).") from error
    missing = [name for name in ("observe", "act") if not callable(getattr(module, name, None))]
    if missing:
        raise ModelError(
            f"{path} has no function {' and no function '.join(missing)}: an adapter needs observe(obs) and "
            f"act(outputs, masks)."
        )
    return module


class ForeignPlayer:
    """A ForeignBot as a player for `play_kickoffs`"""

    def __init__(self, bot):
        self.bot = bot

    def start(self, rows):
        begin = getattr(self.bot.adapter, "start", None)
        if begin:
            begin(rows)

    @torch.no_grad()
    def act(self, obs, masks, rows, actions):
        if not len(rows):
            return
        adapter = self.bot.adapter
        try:
            inputs = adapter.observe(obs[rows], rows) if hasattr(adapter, "start") else adapter.observe(obs[rows])
            outputs = self.bot.network(*inputs) if isinstance(inputs, tuple) else self.bot.network(inputs)
            chosen = np.asarray(adapter.act(outputs, masks[rows]))
        except Exception as error:  # not ours: most often an input of the wrong shape, which the sentence then says
            last_line = str(error).strip().splitlines()[-1:]
            raise ValueError(
                f"its network or adapter failed with {type(error).__name__}: {' '.join(last_line) or 'no message'}"
            ) from error
        if chosen.shape != (len(rows),) or chosen.min() < 0 or chosen.max() >= NUM_ACTIONS:
            found = f"{chosen.shape} from {chosen.min()} to {chosen.max()}" if chosen.size else str(chosen.shape)
            raise ValueError(
                f"its adapter's act should return {len(rows)} action numbers from 0 to {NUM_ACTIONS - 1}, found "
                f"{found}."
            )
        actions[rows] = chosen
