"""Do the tests notice a wrong line? Puts one small fault at a time into a copy of the project and runs the tests that
should see it.

    python cleanrl_games/tools/mutants.py                 all of tests/mutants.yaml, as ./benchmark.sh mutants
    python cleanrl_games/tools/mutants.py --only rnad     those whose file or name has this in it

A mutant is {name, file, old, new, tests}: `old` stands exactly once in the file. It is noticed if one of its tests
fails. One that survives should have a `reason`: it then counts as a survivor, and the reason is shown. The last line is
one JSON object."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from cleanrl_games.runtime.errors import BadInput, RunFailed, end_in_sentences
from cleanrl_games.runtime.settings import Positive, flag_type

TABLE = ROOT / "tests" / "mutants.yaml"
FIELDS = {"name", "file", "old", "new", "tests"}
LEFT_OUT = (".git", ".venv", "runs", "wandb", "node_modules", ".pytest_cache", ".ruff_cache", ".hypothesis")


def read_mutants(path=TABLE):
    """→ the mutants, each checked against the code: a fault that cannot be put in any more would seem to be noticed"""
    mutants = yaml.safe_load(Path(path).read_text())
    names = [mutant["name"] for mutant in mutants]
    problems = [f"{name} is there twice" for name in set(names) if names.count(name) > 1]
    for mutant in mutants:
        missing = FIELDS - set(mutant)
        if missing:
            problems.append(f"{mutant['name']} has no {', '.join(sorted(missing))}")
            continue
        count = (ROOT / mutant["file"]).read_text().count(mutant["old"]) if (ROOT / mutant["file"]).is_file() else 0
        if count != 1:
            problems.append(f"{mutant['name']}: its text is {count} times in {mutant['file']}, not once")
        if mutant["old"] == mutant["new"]:
            problems.append(f"{mutant['name']} changes nothing")
        for test in mutant["tests"]:
            if not (ROOT / test.split("::")[0]).is_file():
                problems.append(f"{mutant['name']}: there is no {test.split('::')[0]}")
    return mutants, problems


def run_tests(folder, tests, seconds):
    """→ "passed", "failed" or "hung" """
    words = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider", "--durations=0", *tests]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "hung"
    if done.returncode not in (0, 1, 2):  # 2: the module could not even be imported
        raise RunFailed(
            f"pytest could not run {' '.join(tests)} (exit code {done.returncode}):\n{done.stdout}\n{done.stderr}"
        )
    return "passed" if done.returncode == 0 else "failed"


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose file or name has this in it")
    parser.add_argument(
        "--seconds",
        type=flag_type(Positive),
        default=300.0,
        help="after which tests count as hanging, which is noticing too",
    )
    args = parser.parse_args(words)
    mutants, problems = read_mutants()
    if problems:
        raise BadInput("tests/mutants.yaml does not fit the code:\n" + "\n".join(problems))
    mutants = [mutant for mutant in mutants if args.only in mutant["file"] or args.only in mutant["name"]]
    if not mutants:
        raise BadInput(f"--only {args.only}: there is no such mutant.")
    survivors = []
    with tempfile.TemporaryDirectory(prefix="cleanrl_games-mutants-") as temporary:
        folder = Path(temporary) / "project"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for number, mutant in enumerate(mutants, 1):
            start, path = time.time(), folder / mutant["file"]
            text = path.read_text()
            path.write_text(text.replace(mutant["old"], mutant["new"]))
            result = run_tests(folder, mutant["tests"], args.seconds)
            path.write_text(text)
            if result == "passed":
                survivors.append(mutant)
            seen = {"passed": "SURVIVED", "failed": "noticed", "hung": "noticed (the tests hung)"}[result]
            print(f"{number:3d}/{len(mutants)} {mutant['name']}: {seen} ({time.time() - start:.0f} s)", flush=True)
    for mutant in survivors:
        print(f"survivor {mutant['name']} ({mutant['file']}): {mutant.get('reason', 'no reason is known')}")
    noticed = len(mutants) - len(survivors)
    figures = {"mutants": len(mutants), "noticed": noticed, "share_noticed": round(noticed / len(mutants), 3)}
    print(json.dumps(figures | {"survivors": [mutant["name"] for mutant in survivors]}))
    return 0 if noticed >= 0.95 * len(mutants) else 1


if __name__ == "__main__":
    end_in_sentences()
    raise SystemExit(main())
