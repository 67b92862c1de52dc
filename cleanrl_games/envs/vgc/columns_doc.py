"""Writes the table of every column of the observation into docs/vgc_features.md, from columns.json.

python -m cleanrl_games.envs.vgc columns [--check]
"""

import argparse
from pathlib import Path

from cleanrl_games.envs.vgc.vocab_file import renew
from cleanrl_games.envs.vgc.vocabulary import COLUMNS, FLOATS, INTS, LAYOUT, SIZES

DOC = Path(__file__).resolve().parents[3] / "docs" / "vgc_features.md"
START, END = "<!-- columns: start -->", "<!-- columns: end -->"


def table() -> str:
    """The generated part of the document: a summary of the groups, then every column with its place in the first
    row."""
    lines = [
        f"{INTS} ids (int) and {FLOATS} floats. A column of row r stands at `start + r · width + column`.",
        "",
        "| group | rows | ids: start, width | floats: start, width | |",
        "|---|---|---|---|---|",
    ]
    docs = {group["name"]: group for group in COLUMNS["groups"]}
    for group in LAYOUT.values():
        ids = f"{group.int_at}, {len(group.ints)}" if group.ints else "–"
        values = f"{group.float_at}, {len(group.floats)}"
        lines.append(f"| `{group.name}` | {group.rows} | {ids} | {values} | {docs[group.name]['doc']} |")
    sizes = ", ".join(f"{name} {size}" for name, size in SIZES.items())
    lines += ["", f"Sizes of the vocabularies (0 unknown, 1 known to be absent, entries from 2): {sizes}."]
    for group in COLUMNS["groups"]:
        shared = COLUMNS["shared"].get(group.get("shared"), {"ints": [], "floats": []})
        lines += ["", f"### `{group['name']}`, {group['rows']} row{'s' if group['rows'] > 1 else ''}"]
        ints = shared["ints"] + group["ints"]
        if ints:
            lines += ["", "| id | column | vocabulary | |", "|---|---|---|---|"]
            lines += [f"| {i} | `{c['name']}` | {c['vocabulary']} | {c['doc']} |" for i, c in enumerate(ints)]
        lines += ["", "| float | column | |", "|---|---|---|"]
        floats = shared["floats"] + group["floats"]
        lines += [f"| {i} | `{c['name']}` | {c['doc']} |" for i, c in enumerate(floats)]
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    before, rest = text.split(START)
    return f"{before}{START}\n\n{table()}\n{END}{rest.split(END)[1]}"


def add_arguments(parser: argparse.ArgumentParser):
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit with 1 if the table is not up to date"
    )


def run(args: argparse.Namespace) -> int:
    return renew(DOC, with_table(DOC.read_text(encoding="utf-8")), args.check, "columns.json")
