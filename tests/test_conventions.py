"""The conventions: what all scripts promise to have in common, and where the line runs between script, game and
runtime.

A script that benchmark.yaml does not list is somebody's experiment: none of this is asked of it."""

import ast
import dataclasses
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "cleanrl_games"
TABLE = yaml.safe_load((PACKAGE / "tools" / "benchmark.yaml").read_text())
SCRIPTS = sorted(PACKAGE / name for name in TABLE["smoke"])
PLAIN = {
    "Count": "int",
    "Size": "int",
    "NonNegative": "float",
    "Positive": "float",
    "Fraction": "float",
}  # without their ranges


def names(paths):
    return [path.name for path in paths]


def fences(path):
    """{name: text} of the snippets between `# --8<-- [start:name]` and `# --8<-- [end:name]`"""
    text = path.read_text()
    starts, ends = (re.findall(rf"# --8<-- \[{word}:(\w+)\]", text) for word in ("start", "end"))
    assert starts == ends, f"{path.name}: fences {starts} do not close in order: {ends}"
    return {
        name: re.search(rf"# --8<-- \[start:{name}\]\n(.*?)# --8<-- \[end:{name}\]", text, re.S).group(1)
        for name in starts
    }


def fields_of(path):
    """{field: (type, docstring, section)} of the script's Args, read from its source; a section begins with `# --- its
    name`"""
    source = path.read_text()
    (args,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    lines = source.splitlines()
    found = {}
    for field, following in zip(args.body, [*args.body[1:], None]):
        if isinstance(field, ast.AnnAssign):
            is_doc = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            headers = [line.split("# --- ")[1] for line in lines[: field.lineno] if line.startswith("    # --- ")]
            section = headers[-1].split(" (")[0] if headers else ""
            found[field.target.id] = (ast.unparse(field.annotation), following.value.value if is_doc else "", section)
    return found


def test_the_scripts_are_listed():
    listed = (
        "bc_pokemon_impala bc_vgc_mdbo ppo_osrs_selfplay ppo_vgc_mdbo recurrent_ppo_rocketleague rnad_vgc_portfolio"
    )
    assert {path.stem for path in SCRIPTS} >= set(listed.split())
    assert all(path.is_file() for path in SCRIPTS)


def test_fenced_snippets_are_equal():
    seen = {}
    for path in SCRIPTS:
        for name, text in fences(path).items():
            first, other = seen.setdefault(name, (path.name, text))
            assert text == other, f"the fenced snippet {name!r} of {path.name} differs from that of {first}"
    assert seen


def test_same_field_same_type_and_docstring():
    """What a field of the environment means is its game's to say."""
    seen = {}
    for path in SCRIPTS:
        for field, (kind, docstring, section) in fields_of(path).items():
            first, (kind_there, docstring_there) = seen.setdefault(field, (path.name, (kind, docstring)))
            kind, kind_there = PLAIN.get(kind, kind), PLAIN.get(kind_there, kind_there)
            # a preset's or mode's options may differ between scripts, and what a number may be
            assert kind == kind_there or "Literal" in kind, (
                f"Args.{field}: {path.name} says {kind}, {first} says {kind_there}"
            )
            if section == "experiment":
                assert docstring == docstring_there, (
                    f"Args.{field}: {path.name} says {docstring!r}, {first} {docstring_there!r}"
                )


@pytest.mark.parametrize("path", SCRIPTS, ids=names(SCRIPTS))
def test_no_script_imports_another_or_a_tool(path):
    stems = {script.stem for script in SCRIPTS}
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        for module in modules:
            parts = module.split(".")
            assert not stems & set(parts), f"{path.name} imports the script {module}"
            assert parts[:2] != ["cleanrl_games", "tools"], f"{path.name} imports the tool {module}"


@pytest.mark.parametrize("path", SCRIPTS, ids=names(SCRIPTS))
def test_help_explains_every_field(path):
    done = subprocess.run(
        [sys.executable, path, "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.replace("│", " ").split())
    for field, (_, docstring, _) in fields_of(path).items():
        assert docstring, f"{path.name}: Args.{field} has no docstring"
        assert f"--{field.replace('_', '-')}" in text, f"--help of {path.name} does not show {field}"
        assert " ".join(docstring.split())[:40] in text, f"--help of {path.name} does not explain {field}"


@pytest.mark.parametrize("path", SCRIPTS, ids=names(SCRIPTS))
def test_presets_name_real_fields(path):
    spec = importlib.util.spec_from_file_location(f"conventions_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    defaults = module.Args()
    for preset, values in getattr(module, "PRESETS", {}).items():
        for field in values:
            assert hasattr(defaults, field), f"{path.name}: preset {preset} sets {field}, which Args does not have"
        dataclasses.replace(defaults, **values)


def test_lines_that_ruff_does_not_read_end_at_120():
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.split()
    sources = [ROOT / name for name in listed if name.endswith((".js", ".c", ".h", ".sh"))]
    assert len(sources) > 30
    long = [
        f"{path.name}:{n}"
        for path in sources
        for n, line in enumerate(path.read_text().split("\n"), 1)
        if len(line) > 120
    ]
    assert not long


@pytest.mark.parametrize("path", SCRIPTS, ids=names(SCRIPTS))
def test_one_statement_a_line_and_named_arguments(path):
    """No `a, b = x, y` inside a loop, and no call of ours with more than four arguments by position. A published model
    hangs on its script's network section, so that stays as it is."""
    source = path.read_text()
    network = next(text for name, text in fences(path).items() if name.endswith("_network"))
    first = source[: source.index(network)].count("\n") + 1
    frozen = range(first, first + network.count("\n") + 1)
    tree = ast.parse(source)
    theirs = {"view", "permute", "reshape"}  # torch's
    with_varargs = {"until_stopped", "partial"}
    found = []
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For | ast.While):
            found += [
                f"{node.lineno}: {ast.unparse(node)}"
                for node in ast.walk(loop)
                if isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Tuple)
                and isinstance(node.value, ast.Tuple)
                and node.lineno not in frozen
            ]
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and len(call.args) > 4 and call.lineno not in frozen:
            called = ast.unparse(call.func).split(".")[-1]
            if called not in theirs | with_varargs:
                found.append(f"{call.lineno}: {ast.unparse(call)}")
    assert not found, f"{path.name}, one statement a line and keywords, please: {found}"


def test_ruff():
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, "."], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_the_readme_command():
    """The README's test command is a line of its own in a code block, and .ci/run runs that very line."""
    ci = (ROOT / ".ci" / "run").read_text().strip().splitlines()
    commands = [
        line
        for line in (ROOT / "README.md").read_text().splitlines()
        if "-m pytest" in line and line.startswith("python3 ")
    ]
    assert len(commands) == 1, commands
    assert ci[-1] == commands[0]
    assert [line for line in ci if not line.startswith("#")][:-1] == ["set -euo pipefail", 'cd "$(dirname "$0")/.."']


def test_requirements_are_pinned():
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    assert "torch==2.13.0" in lines


def test_every_script_has_a_page_and_a_smoke_line():
    table = (PACKAGE / "tools" / "benchmark.yaml").read_text()
    for path in SCRIPTS:
        assert (ROOT / "docs" / f"{path.stem}.md").exists(), f"docs/{path.stem}.md is missing"
        assert path.name in table, f"{path.name} has no smoke line in benchmark.yaml"
        assert path.name in (ROOT / "README.md").read_text(), f"the README does not name {path.name}"
