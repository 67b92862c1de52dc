"""Runs the snippets that tests/test_snippets.py sends (JSON on standard input), in a process of its own. The last line
of its output is a JSON list: for each snippet "" or what is wrong.

    python tests/snippet_child.py python     blocks of one page: one after the other, in one namespace
    python tests/snippet_child.py shell      commands: the program reads its own flags, and is stopped there
"""

import argparse
import importlib
import json
import re
import runpy
import shlex
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]


class Parsed(BaseException):
    """The program has read its flags, which is all that it was started for."""


def stop_after_parsing():
    """From now on whoever reads flags does so, and then raises Parsed."""
    import tyro

    from cleanrl_games.runtime import settings

    own = {"inside": False}

    def stopping(parse):
        def parsed(*arguments, **keywords):
            outermost = not own["inside"]
            own["inside"] = True
            try:
                result = parse(*arguments, **keywords)
            finally:
                own["inside"] = not outermost
            if outermost:
                raise Parsed
            return result

        return parsed

    settings.parse_args, settings.parse_flags = stopping(settings.parse_args), stopping(settings.parse_flags)
    tyro.cli = stopping(tyro.cli)
    read = argparse.ArgumentParser.parse_args

    def parse_args(parser, *arguments, **keywords):
        result = read(parser, *arguments, **keywords)
        if parser.prog != "python -m cleanrl_games.envs.vgc":  # this one only looks which of its commands is meant
            raise Parsed
        return result

    argparse.ArgumentParser.parse_args = parse_args


def run_program(words, module=False):
    before, modules = sys.argv, set(sys.modules)
    try:
        if module:
            sys.argv = [words[0], *words[1:]]
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            path = ROOT / words[0]
            if not path.is_file():
                return f"there is no {words[0]}"
            sys.argv = [str(path), *words[1:]]
            runpy.run_path(str(path), run_name="__main__")
    except Parsed:
        return ""
    finally:
        sys.argv = before
        for name in set(sys.modules) - modules:
            if name.startswith("cleanrl_games.envs.vgc.__main__"):
                del sys.modules[name]
    return "it ended before it had read its flags"


def check_benchmark(words):
    """benchmark.sh reads its words by itself."""
    if words[:1] == ["mutants"]:
        return run_program(["cleanrl_games/tools/mutants.py", *words[1:]])
    if words[:1] == ["--compare"]:
        return "" if len(words) == 3 else "--compare takes two folders"
    benchmark = importlib.import_module("cleanrl_games.tools.benchmark")

    def stop(*_):
        raise Parsed

    benchmark.benchmark = stop
    try:
        benchmark.main(words)
    except Parsed:
        return ""
    return "it ended before it had read its words"


def check_command(words):
    """→ "" or what is wrong"""
    program, *rest = words
    if program in ("python", "python3", ".venv/bin/python") and rest[:2] == ["-m", "pytest"]:
        files = [word for word in rest[2:] if word.startswith("tests/")]
        return "; ".join(f"there is no {file}" for file in files if not (ROOT / file).is_file())
    if program in ("python", "python3", ".venv/bin/python"):
        if "--" in rest:  # flags of the script that the tool starts
            at = rest.index("--")
            script = rest[1] if rest[0].endswith("tune.py") else "ppo_osrs_selfplay"
            wrong = check_command(["python", f"cleanrl_games/{script}.py", *rest[at + 1 :]])
            if wrong:
                return wrong
        return run_program(rest[1:], module=True) if rest[0] == "-m" else run_program(rest)
    if program == "./benchmark.sh":
        return check_benchmark(rest)
    return f"{program} is no program that this test can ask: mark the block"


def guarded(work, *arguments):
    try:
        return work(*arguments)
    except SystemExit as error:
        return f"it ended with exit code {error.code}"
    except Exception as error:
        return "".join(traceback.format_exception_only(error)).strip()


def run_block(text, namespace):
    exec(compile(text, "<snippet>", "exec"), namespace)
    return ""


def main():
    snippets = json.loads(sys.stdin.read())
    if sys.argv[1] == "python":
        namespace = {"__name__": "__main__"}
        said = [guarded(run_block, text, namespace) for text in snippets]
    else:
        stop_after_parsing()
        said = []
        for command in snippets:
            words = shlex.split(re.sub(r"<([^<>]+)>", lambda hit: hit[1].replace(" ", "_"), command), comments=True)
            said.append(guarded(check_command, words))
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
