"""Every Python and shell snippet of every page runs as it stands there, or says why not.

Python blocks are run: those of a page one after the other, in a process of their own. Shell commands are not run, which
would take days: the program reads its own flags and stops. So a command with a flag or a value that its program does
not know fails here. What cannot be done here has a mark in the line above the block:

    <!-- not run: needs your own ROM -->
    <!-- run by tests/test_copy_a_file.py -->
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- *([^\n]*?) *-->\n+)?```(\w*)[^\n]*\n(.*?)^```$", re.S | re.M)
SHELL = ("bash", "sh", "console")
STARTS = ("python", ".venv/bin/python", "./benchmark.sh")
NOT_ASKED = ("cleanrl_games.envs.pokemon.picture",)  # has no flags: it would draw its picture
PYTHON_PAGES = [page for page in PAGES if re.search(r"^```python", page.read_text(), re.M)]


def blocks_of(text):
    """→ [(line, mark, language, block)]"""
    found = []
    for match in BLOCK.finditer(text):
        mark, language, block = match.groups()
        # a plain block with commands in it is one, too
        if not language and block.lstrip().startswith(STARTS):
            language = "bash"
        found.append((text.count("\n", 0, match.start(2)) + 1, mark or "", language, block))
    return found


def commands_of(block):
    """The commands of a shell block, those over several lines joined"""
    lines = block.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def inline_commands(text):
    """Whole commands within a line, `like this`; not those that leave something out"""
    text = BLOCK.sub("", text)
    found = re.findall(r"`((?:python cleanrl_games/|python -m cleanrl_games|\./benchmark\.sh )[^`\n]*)`", text)
    whole = [command for command in found if not re.search(r"…|\b[A-Z]{2,}\b|\[|\|", command)]
    return [command for command in whole if not any(name in command for name in NOT_ASKED)]


def wrong_marks(name, blocks):
    wrong = []
    for line, mark, _, _ in blocks:
        by = re.fullmatch(r"run by (tests/\w+\.py)", mark)
        if by and not (ROOT / by[1]).is_file():
            wrong.append(f"{name}:{line}: there is no {by[1]}")
        elif mark and not by and not re.fullmatch(r"not run: .{8,}", mark):
            wrong.append(f"{name}:{line}: the mark {mark!r} should say `not run: why` or `run by tests/test_x.py`")
    return wrong


def ask(kind, snippets, folder, seconds):
    """The child's answers, one a snippet"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/snippet_child.py"), kind],
        input=json.dumps(snippets),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=seconds,
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder as a reader has it who has trained once: a team, a battle's log, and runs under the pages' own names"""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "my_teams").mkdir()
    team = sorted((ROOT / "cleanrl_games/envs/vgc/teams/gen9vgc2025regi").rglob("*.txt"))[0]
    shutil.copy(team, folder / "my_teams/mine.txt")
    shutil.copy(sorted((ROOT / "tests/data").rglob("*.log"))[0], folder / "battle.log")
    scripts = yaml.safe_load((ROOT / "cleanrl_games/tools/benchmark.yaml").read_text())["smoke"]
    for name in ("run", "RUN", "first", *(f"game__{Path(script).stem}__1__1" for script in scripts)):
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "config.yaml").write_text("{}\n")
        (folder / "runs" / name / "checkpoint.pt").write_text("")
        shutil.copy(ROOT / "tests/data/benchmark/metrics.jsonl", folder / "runs" / name)
    pretrained = ROOT / "runs/pretrained"
    if pretrained.is_dir():
        (folder / "runs/pretrained").symlink_to(pretrained)
    return folder


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.stem)
def test_python_blocks_run_as_they_stand(page, desk):
    blocks = [block for block in blocks_of(page.read_text()) if block[2] == "python"]
    assert not wrong_marks(page.name, blocks)
    blocks = [(line, text) for line, mark, _, text in blocks if not mark]
    said = ask("python", [text for _, text in blocks], desk, 300) if blocks else []
    assert len(said) == len(blocks)
    wrong = [f"{page.name}:{line}: {sentence}" for (line, _), sentence in zip(blocks, said) if sentence]
    assert not wrong, "\n".join(wrong)


def test_programs_know_the_flags_of_every_command(desk):
    places, commands, wrong = [], [], []
    for page in PAGES:
        text = page.read_text()
        blocks = [block for block in blocks_of(text) if block[2] in SHELL]
        wrong += wrong_marks(page.name, blocks)
        found = [(line, command) for line, mark, _, block in blocks if not mark for command in commands_of(block)]
        for line, command in found + [(0, command) for command in inline_commands(text)]:
            places.append(f"{page.name}:{line or 'in the text'}: {command}")
            commands.append(command)
    assert len(commands) > 80
    said = ask("shell", commands, desk, 300)
    wrong += [f"{place}\n    {sentence}" for place, sentence in zip(places, said) if sentence]
    assert not wrong, "\n".join(wrong)


PAGE = """
```python
a = 1
```

<!-- not run: needs a server that is yours -->
```python
nothing_there()
```
```bash
python cleanrl_games/ppo_osrs_selfplay.py --seed 3 \\
    --resume runs/<run>   # a comment
```
<!-- because -->
```python
b = a + 1
```
"""


def test_what_does_not_run_is_found(desk):
    blocks = blocks_of(PAGE)
    assert [(line, mark[:7], language) for line, mark, language, _ in blocks] == [
        (2, "", "python"), (7, "not run", "python"), (10, "", "bash"), (15, "because", "python")
    ]  # fmt: skip
    assert wrong_marks("page", blocks) == [
        "page:15: the mark 'because' should say `not run: why` or `run by tests/test_x.py`"
    ]
    assert ask("python", ["a = 1", "assert a == 2", "b = a + 1", "c"], desk, 60) == [
        "", "AssertionError", "", "NameError: name 'c' is not defined"
    ]  # fmt: skip
    good = [
        *commands_of(blocks[2][3]),
        "python cleanrl_games/tools/tune.py ppo_osrs_selfplay --search a=1:2 --metric eval/nh -- --seed 3",
        "python -m cleanrl_games.envs.vgc replays my_replays/ --list",
        "./benchmark.sh speed osrs",
        "python -m pytest tests/test_docs.py",
    ]
    bad = {
        "python cleanrl_games/ppo_osrs_selfplay.py --sed 3": "exit code 2",
        "python cleanrl_games/ppo_osrs_selfplay.py --num-workers -1": "--num-workers should be 0 or more",
        "python cleanrl_games/tools/evaluate.py runs/<run> --team-size x": "exit code 2",
        "python cleanrl_games/tools/tune.py ppo_osrs_selfplay -- --sed 3": "exit code 2",
        "python -m cleanrl_games.envs.vgc replays --lost": "exit code 2",
        "python -m cleanrl_games.envs.vgc replais": "exit code 2",
        "./benchmark.sh speed chess": "knows no 'chess'",
        "python cleanrl_games/nothing.py": "there is no cleanrl_games/nothing.py",
        "python -m pytest tests/test_nothing.py": "there is no tests/test_nothing.py",
        "rm -r runs": "mark the block",
    }
    said = ask("shell", [*good, *bad], desk, 120)
    assert said[: len(good)] == [""] * len(good)
    for (command, expected), sentence in zip(bad.items(), said[len(good) :]):
        assert expected in sentence, f"{command}: {sentence!r}"
    assert inline_commands("`python cleanrl_games/x.py --a 1` and `python cleanrl_games/SCRIPT.py`") == [
        "python cleanrl_games/x.py --a 1"
    ]
