"""Names as the protocol spells them -> ids of vocab.json, and the table of columns.json as offsets.

Both files are data that Node and Python read alike: `showdown/vocab.js` writes the first from the installed package,
the second is the one place where a column of the observation is defined.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from poke_env.data import to_id_str

FOLDER = Path(__file__).resolve().parent
NONE = 1  # known to be absent; 0 is unknown
STATUSES = ("", "brn", "par", "slp", "frz", "psn", "tox")
STATS = ("hp", "atk", "def", "spa", "spd", "spe")
BOOSTS = ("atk", "def", "spa", "spd", "spe", "accuracy", "evasion")


@dataclass(frozen=True)
class Group:
    name: str
    rows: int
    ints: tuple[str, ...]  # names of the columns of one row
    floats: tuple[str, ...]
    int_at: int  # where the group starts in the whole observation
    float_at: int

    def int_index(self, row: int, column: str) -> int:
        return self.int_at + row * len(self.ints) + self.ints.index(column)

    def float_index(self, row: int, column: str) -> int:
        return self.float_at + row * len(self.floats) + self.floats.index(column)


def load_columns() -> dict:
    return json.loads((FOLDER / "columns.json").read_text(encoding="utf-8"))


def layout(columns: dict) -> dict[str, Group]:
    groups, ints, floats = {}, 0, 0
    for group in columns["groups"]:
        shared = columns["shared"][group["shared"]] if "shared" in group else {"ints": [], "floats": []}
        int_names = tuple(column["name"] for column in shared["ints"] + group["ints"])
        float_names = tuple(column["name"] for column in shared["floats"] + group["floats"])
        groups[group["name"]] = Group(group["name"], group["rows"], int_names, float_names, ints, floats)
        ints += len(int_names) * group["rows"]
        floats += len(float_names) * group["rows"]
    return groups


COLUMNS = load_columns()
LAYOUT = layout(COLUMNS)
INTS = sum(len(group.ints) * group.rows for group in LAYOUT.values())
FLOATS = sum(len(group.floats) * group.rows for group in LAYOUT.values())


def columns_of(array, name: str, kind: str = "floats"):
    """A group's columns in the ints or floats of a batch, an array or a tensor: (B, all columns) → (B, rows,
    columns)"""
    group = LAYOUT[name]
    at, columns = (group.int_at, group.ints) if kind == "ints" else (group.float_at, group.floats)
    return array[:, at : at + group.rows * len(columns)].reshape(len(array), group.rows, -1)


VOCAB = json.loads((FOLDER / "vocab.json").read_text(encoding="utf-8"))
SIZES = {name: len(VOCAB[name]) for name in ("species", "abilities", "items", "moves", "types")}
SPECIES_FACTS = VOCAB["speciesFacts"]  # type, type, base stats, abilities, dex number
MOVE_FACTS = VOCAB["moveFacts"]  # type, category, power, accuracy, priority, PP
TABLES = {name: {entry: index for index, entry in enumerate(VOCAB[name])} for name in SIZES}
TABLES["species"].update({look: TABLES["species"][species] for look, species in VOCAB["looks"].items()})


@functools.cache
def find(kind: str, name: str) -> int:
    """Id of a name in a vocabulary, 0 if there is no such entry."""
    return TABLES[kind].get(to_id_str(name), 0)


@functools.cache
def parse_details(details: str) -> tuple[int, int, bool]:
    """Species id, level, and whether team preview hides the forme ("Urshifu-*")."""
    name, *rest = details.split(", ")
    hidden = name.endswith("-*")
    level = next((int(part[1:]) for part in rest if part[0] == "L" and part[1:].isdigit()), 100)
    return find("species", name.removesuffix("-*")), level, hidden


def same_species(first: int, second: int) -> bool:
    """Formes of one Pokémon share a dex number, and Species Clause allows a number once a team."""
    return SPECIES_FACTS[first][4] == SPECIES_FACTS[second][4]


@functools.cache
def formes_of(species: int) -> tuple[int, ...]:
    return tuple(index for index, facts in enumerate(SPECIES_FACTS) if facts[4] == SPECIES_FACTS[species][4])


def abilities_of(species: int) -> list[int]:
    return SPECIES_FACTS[species][3]
