"""Writes vocab.json, the vocabularies behind the ids of the observation, from the installed simulator's own dex.

    python -m cleanrl_games.envs.vgc vocab [--check]

The order is alphabetical, so the same package gives the same file; a new package moves ids, and policies trained on the
old ones no longer fit. --check only says whether the committed file is what the package gives.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from cleanrl_games.envs.vgc.install import ensure_showdown, node_command, node_env

FOLDER = Path(__file__).resolve().parent


def build() -> str:
    command = node_command(FOLDER / "showdown" / "vocab.js")
    return subprocess.run(command, env=node_env(ensure_showdown()), check=True, capture_output=True, text=True).stdout


def add_arguments(parser: argparse.ArgumentParser):
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 if the file is not up to date")


def renew(path, text: str, check: bool, source: str) -> int:
    """Writes the file if it is not what its source gives, or with `check` only says so → exit code"""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        print(f"{path} is up to date")
        return 0
    if check:
        print(f"{path} is not what {source} gives; run this command without --check.", file=sys.stderr)
        return 1
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    print(f"wrote {path}")
    return 0


def run(args: argparse.Namespace) -> int:
    return renew(FOLDER / "vocab.json", build(), args.check, "the installed package")
