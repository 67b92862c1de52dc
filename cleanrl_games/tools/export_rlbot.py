"""A trained model as a bot for the real game: a folder that RLBot v5 starts. Nothing else of this repository is needed
there.

    python cleanrl_games/tools/export_rlbot.py runs/<run> my_bot [--name "My bot"] [--deterministic]

    my_bot/ bot.toml (what RLBot reads), bot.py, model.zip, requirements.txt, cleanrl_games/ (the script and shim that
    rebuild the policy)

On the machine with the game: `python -m venv venv`, install requirements.txt into it, add the folder in RLBot's GUI.
Only standard maps and teams of up to three cars: that is what the policy was trained with.
"""

import dataclasses
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import tyro

from cleanrl_games.runtime.settings import parse_flags
from cleanrl_games.tools import models

# Of requirements.txt: the versions that the tests ran with, the packets' types among them.
NEEDED = ("gymnasium", "numba", "numpy", "PyYAML", "rlbot_flatbuffers", "rocketsim", "torch", "tyro")
RLBOT = "rlbot==2.0.0b56"  # the version that takes those packets' types

BOT = '''"""A policy of cleanrl_games under RLBot v5. Made by tools/export_rlbot.py; {source}."""

import os
import sys
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

import torch

from cleanrl_games import {script} as script
from cleanrl_games.envs.rocketleague.rlbot import Pilot

CONTROLS = ("throttle", "steer", "pitch", "yaw", "roll", "jump", "boost", "handbrake")


def make_pilot(field_info, index):
    torch.set_num_threads(1)
    agent, metadata = script.load_model(FOLDER / "model.zip")
    player = script.Player(agent, seed=index + 1, deterministic={deterministic})
    pilot = Pilot(player, field_info, index, metadata["args"]["action_repeat"])
    pilot.warm_up()
    return pilot


if __name__ == "__main__":
    from rlbot import flat
    from rlbot.managers import Bot

    class PolicyBot(Bot):
        def initialize(self):
            self.pilot = make_pilot(self.field_info, self.index)

        def get_output(self, packet):
            numbers = self.pilot.controls(packet).tolist()
            values = [*numbers[:5], *(number > 0 for number in numbers[5:])]
            return flat.ControllerState(**dict(zip(CONTROLS, values)))

    PolicyBot({agent_id}).run()
'''
TOML = """[settings]
agent_id = {agent_id}
name = {name}
root_dir = ""
run_command = "venv\\\\Scripts\\\\python bot.py"
run_command_linux = "venv/bin/python bot.py"
hivemind = false

[details]
description = {description}
developer = ""
language = "Python"
tags = []
"""


@dataclasses.dataclass
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """a run's folder or a model.zip of Rocket League"""
    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="BOT_FOLDER")]
    """the bot's folder, which must not exist yet"""
    name: str = ""
    """the bot's name in the game; empty = the model's"""
    deterministic: bool = False
    """take the likeliest action instead of sampling"""
    trust_source: bool = False
    """rebuild a model with the script.py beside it when no script here has its hash; this runs that file's code"""


def export(args):
    """→ the folder, complete or not there at all"""
    target = Path(args.folder)
    if target.exists():
        raise models.ModelError(f"{target} exists already: choose another folder for the bot.")
    if not target.absolute().parent.is_dir():
        raise models.ModelError(f"There is no folder {target.absolute().parent} to put the bot into.")
    model = models.load(args.model, "rocketleague", args.trust_source)
    name, script = args.name or model.name, Path(model.metadata["script"]).stem
    if not script.isidentifier():
        raise models.ModelError(
            f"{model.path} says its script is {model.metadata['script']!r}: that is no name of a Python module."
        )
    agent_id = "cleanrl_games/" + (re.sub(r"[^\w.-]+", "_", name) or "bot")
    pins = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line.split("==")[0] in NEEDED]
    source = f"model of {script}.py {model.metadata['network_hash']}"
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.absolute().parent))
    try:
        package = temporary / "cleanrl_games"
        shutil.copytree(
            models.SCRIPTS / "envs/rocketleague",
            package / "envs/rocketleague",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        shutil.copytree(models.SCRIPTS / "runtime", package / "runtime", ignore=shutil.ignore_patterns("__pycache__"))
        # what the games share, not the other games
        for file in (
            models.SCRIPTS / "__init__.py",
            *(models.SCRIPTS / "envs").glob("*.py"),
        ):
            shutil.copyfile(file, package / file.relative_to(models.SCRIPTS))
        shutil.copyfile(models.find_script(model.path, model.metadata, args.trust_source), package / f"{script}.py")
        shutil.copyfile(model.path, temporary / "model.zip")
        words = {
            "agent_id": json.dumps(agent_id),
            "name": json.dumps(name),
            "description": json.dumps(f"cleanrl_games, {source}"),
        }
        (temporary / "bot.py").write_text(
            BOT.format(source=source, script=script, deterministic=args.deterministic, agent_id=json.dumps(agent_id))
        )
        (temporary / "bot.toml").write_text(TOML.format(**words))
        (temporary / "requirements.txt").write_text("\n".join([*pins, RLBOT]) + "\n")
        temporary.chmod(0o755)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # it is gone when all went well
    return target


if __name__ == "__main__":
    folder = export(parse_flags(Args, __doc__))
    print(
        f"The bot is in {folder}: install its requirements.txt into a venv beside bot.py and add the folder in RLBot."
    )
