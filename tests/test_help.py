"""What --help of the tools shows."""

import ast
import importlib
from pathlib import Path

import pytest
import tyro

TOOLS = Path(__file__).resolve().parents[1] / "cleanrl_games" / "tools"


def positionals(path):
    """Fields of a tool's Args that are words without a flag"""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
            return [field.target.id for field in fields if "Positional" in ast.unparse(field.annotation)]
    return []


@pytest.mark.parametrize("path", [path for path in TOOLS.glob("*.py") if positionals(path)], ids=lambda path: path.stem)
def test_words_without_a_flag_have_names(path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    module = importlib.import_module(f"cleanrl_games.tools.{path.stem}")
    with pytest.raises(SystemExit):
        tyro.cli(module.Args, args=["--help"])
    words = capsys.readouterr().out.partition("positional arguments")[2].partition("options")[0]
    assert words and "STR" not in words, words
