"""Commands of the VGC environment: python -m cleanrl_games.envs.vgc
{servers,parity,beliefs,damage,rebuild,columns,vocab,replay,replays} …

servers   real Showdown servers on loopback, until Ctrl-C
parity    Node's observations against those computed from poke-env's DoubleBattle, decision by decision
beliefs   do the beliefs ever exclude the truth?
damage    are the foreseen damage and the order of moves the simulator's?
rebuild   is a battle that is rebuilt from a player's view the battle?
columns   writes the table of every column into docs/vgc_features.md
vocab     writes vocab.json from the installed package
replay    a battle log as a page that shows it turn by turn
replays   how much can be learned from a folder of replays
"""

import argparse
import importlib
import sys

COMMANDS = {
    "servers": "servers",
    "parity": "parity",
    "beliefs": "truth",
    "damage": "damage",
    "rebuild": "rebuild",
    "columns": "columns_doc",
    "vocab": "vocab_file",
    "replay": "replay",
    "replays": "replay_check",
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="python -m cleanrl_games.envs.vgc",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS)
    command = parser.parse_args(argv[:1]).command
    # Only the command that was asked for is imported: poke-env alone takes a second.
    module = importlib.import_module(f"cleanrl_games.envs.vgc.{COMMANDS[command]}")
    parser = argparse.ArgumentParser(
        prog=f"python -m cleanrl_games.envs.vgc {command}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return module.run(parser.parse_args(argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
