"""Teams as the simulator takes them: read from a folder of PokePaste files, shipped with the repo, or generated.

    TeamPool("shipped", "gen9vgc2024regg")                    the 16 training teams of this repo; generated ones for
      other formats
    TeamPool("shipped", "gen9vgc2024regg", split="eval")      the 8 held-out ones
    TeamPool("my_teams/", "gen9vgc2025regi", skip_bad=True)   a folder of .txt files, searched with its subfolders
    TeamPool("generated", "gen9vgc2023regc", size=500, seed=7)

    *.txt ──> one Node call (showdown/teams.js: Showdown's own TeamValidator) ──> packed strings
                    └── <cache>/teams/<hash of everything that went in>.json

A team is held out when a folder named `heldout` is on its way. Check a folder, or print it as a Markdown table:

    python -m cleanrl_games.envs.vgc.teams my_teams/ --battle-format gen9vgc2024regg [--table]
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from cleanrl_games.envs.vgc.install import (
    InstallError,
    cache_folder,
    ensure_showdown,
    lock_hash,
    node_command,
    node_env,
    normalize_format,
    same_regulation,
)

SHIPPED = Path(__file__).resolve().parent / "teams"
TEAMS_JS = Path(__file__).resolve().parent / "showdown" / "teams.js"
HELD_OUT = "heldout"
SPLITS = ("train", "eval", "all")
NODE_TIMEOUT = 600
STAND_INS = 64  # generated teams where a format has no shipped ones


class TeamError(ValueError):
    """A team, or a place to find teams, is not usable; the message names it and says why."""


@dataclass(frozen=True)
class Team:
    name: str  # path inside its folder without .txt, e.g. "heldout/perish_trap"
    packed: str
    species: tuple[str, ...]
    title: str  # the file's `=== … ===` line, if it has one
    held_out: bool


class TeamPool:
    """An ordered, immutable list of legal teams. `packed` is what the simulator takes, `names` what a log should
    say."""

    def __init__(
        self,
        source: str | os.PathLike = "shipped",
        battle_format: str = "gen9vgc2024regg",
        split: str = "train",
        *,
        skip_bad: bool = False,
        size: int = 256,
        seed: int = 1,
    ):
        if split not in SPLITS:
            raise TeamError(f"Unknown split {split!r} of a team pool: it is one of {', '.join(SPLITS)}.")
        self.battle_format = normalize_format(battle_format)
        self.split = split
        self.skipped: list[str] = []  # "file: reason", only ever filled with skip_bad
        if source == "generated":
            self.teams = generate_teams(self.battle_format, split, size, seed)
            return
        folder = shipped_folder(self.battle_format) if source == "shipped" else Path(source).expanduser()
        if folder is None:
            self.teams = generate_teams(self.battle_format, split, STAND_INS, seed=1)
            return
        teams, bad = read_folder(folder, self.battle_format)
        if bad and not skip_bad:
            raise TeamError(
                f"{len(bad)} of {len(bad) + len(teams)} teams in {folder} cannot be played in {self.battle_format}:\n  "
                + "\n  ".join(bad)
                + "\nCorrect or remove these files, or pass skip_bad=True to go on without them."
            )
        if bad:
            self.skipped = bad
            warnings.warn(f"Teams left out of {folder}:\n  " + "\n  ".join(bad), stacklevel=2)
        refuse_leaks(teams, folder)
        self.teams = [team for team in teams if split == "all" or team.held_out == (split == "eval")]
        if not self.teams:
            raise TeamError(empty_reason(teams, bad, folder, split))

    @property
    def packed(self) -> list[str]:
        return [team.packed for team in self.teams]

    @property
    def names(self) -> list[str]:
        return [team.name for team in self.teams]

    def sample(self, rng: random.Random) -> Team:
        return self.teams[rng.randrange(len(self.teams))]

    def __len__(self) -> int:
        return len(self.teams)

    def __getitem__(self, index: int) -> Team:
        return self.teams[index]

    def __repr__(self) -> str:
        return f"TeamPool({len(self)} {self.split} teams for {self.battle_format})"


def team_mix(sources, battle_format: str, **settings) -> list[str]:
    """Packed training teams of all sources; each source is drawn equally often, however many teams it has."""
    pools = [TeamPool(source, battle_format, **settings).packed for source in sources]
    most = max(map(len, pools))
    return [team for pool in pools for team in (pool * (most // len(pool) + 1))[:most]]


def shipped_folder(battle_format: str) -> Path | None:
    """The teams of this repo for a format, or for its regulation in another year; None if there are none: generated
    ones stand in."""
    for name in (battle_format, *sorted(path.name for path in SHIPPED.iterdir() if path.is_dir())):
        if (SHIPPED / name).is_dir() and same_regulation(name, battle_format):
            return SHIPPED / name
    print(
        f"No teams are shipped for {battle_format}: {STAND_INS} generated ones stand in.", file=sys.stderr, flush=True
    )
    return None


def read_folder(folder: Path, battle_format: str) -> tuple[list[Team], list[str]]:
    """Every legal team below `folder`, and a line "file: reason" for every other one."""
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise TeamError(f"{folder} {found}: give a folder of PokePaste .txt files, or 'shipped', or 'generated'.")
    files = sorted(path for path in folder.rglob("*.txt") if path.is_file() and not path.name.startswith("."))
    if not files:
        raise TeamError(f"There is no team in {folder}: put PokePaste files there, one team each, named *.txt.")
    entries, bad = [], []
    for path in files:
        name = path.relative_to(folder).with_suffix("").as_posix()
        try:
            entries.append({"name": name, "text": path.read_text(encoding="utf-8")})
        except (OSError, UnicodeDecodeError) as error:
            bad.append(f"{name}.txt: cannot be read as UTF-8 text ({error})")
    teams = []
    for answer in ask_node({"command": "validate", "format": battle_format, "teams": entries})["teams"]:
        if answer["problems"]:
            bad.append(f"{answer['name']}.txt: {'; '.join(answer['problems'])}")
            continue
        held_out = HELD_OUT in answer["name"].split("/")[:-1]
        teams.append(Team(answer["name"], answer["packed"], tuple(answer["species"]), answer["title"], held_out))
    return teams, bad


def refuse_leaks(teams: list[Team], folder: Path) -> None:
    trained = {team.packed: team.name for team in teams if not team.held_out}
    for team in teams:
        if team.held_out and team.packed in trained:
            raise TeamError(
                f"{team.name}.txt in {folder} is held out, but equal to {trained[team.packed]}.txt, which is trained "
                f"on: "
                "remove one of the two."
            )


def empty_reason(teams: list[Team], bad: list[str], folder: Path, split: str) -> str:
    if not teams:
        return f"Not one of the {len(bad)} teams in {folder} is legal:\n  " + "\n  ".join(bad)
    if split == "eval":
        return (
            f"{folder} has {len(teams)} teams but none held out: move some into {folder / HELD_OUT}, or use "
            f"split='all'."
        )
    return f"All {len(teams)} teams in {folder} are held out: move some out of '{HELD_OUT}', or use split='all'."


def generate_teams(battle_format: str, split: str, size: int, seed: int) -> list[Team]:
    """Legal teams from Showdown's random-doubles sets; train and eval never share six species, whatever the seeds."""
    if size < 1:
        raise TeamError(f"A pool of {size} generated teams was asked for: it needs at least one.")
    request = {"command": "generate", "format": battle_format, "size": size, "seed": seed, "split": split}
    return [
        Team(answer["name"], answer["packed"], tuple(answer["species"]), "", split == "eval")
        for answer in ask_node(request)["teams"]
    ]


def export_teams(packed: list[str]) -> list[str]:
    """Packed teams as PokePaste text."""
    return ask_node({"command": "export", "teams": packed})["texts"]


def ask_node(request: dict) -> dict:
    """One request to teams.js. The answer depends on nothing but the request and the pinned package, so it is kept."""
    text = json.dumps(request, sort_keys=True)
    digest = hashlib.sha256(b"\0".join([text.encode(), TEAMS_JS.read_bytes(), lock_hash().encode()])).hexdigest()
    kept = cache_folder() / "teams" / f"{digest[:32]}.json"
    # A cache that is missing, cut short or garbled is no loss: the question is asked again and the file replaced.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(kept.read_text(encoding="utf-8"))
        if stored["digest"] == digest:
            return stored["answer"]
    command = node_command(TEAMS_JS)
    try:
        done = subprocess.run(
            command, input=text, env=node_env(ensure_showdown()), capture_output=True, text=True, timeout=NODE_TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise TeamError(f"Checking teams took longer than {NODE_TIMEOUT} s: give fewer of them.") from error
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise RuntimeError(f"{' '.join(command)} ended with code {done.returncode}:\n{tail}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise TeamError(f"{answer['error']}.")
    keep(kept, {"digest": digest, "answer": answer})
    return answer


def keep(path: Path, content: dict) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        # The answer itself is in hand; only the next start will be slower.
        warnings.warn(f"Checked teams could not be kept in {path.parent} ({error.strerror}).", stacklevel=2)


def markdown_table(teams: list[Team]) -> str:
    lines = ["| team | split | idea | six |", "|---|---|---|---|"]
    for team in sorted(teams, key=lambda team: (team.held_out, team.name)):
        name = team.name.rsplit("/", 1)[-1]
        lines.append(
            f"| `{name}` | {'eval' if team.held_out else 'train'} | {team.title} | {', '.join(team.species)} |"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cleanrl_games.envs.vgc.teams", description="Check a folder of teams."
    )
    parser.add_argument("source", help="a folder of PokePaste .txt files, or 'shipped'")
    parser.add_argument("--battle-format", default="gen9vgc2024regg")
    parser.add_argument("--table", action="store_true", help="print the teams as a Markdown table")
    args = parser.parse_args(argv)
    try:
        pool = TeamPool(args.source, args.battle_format, split="all")
    except (ValueError, InstallError) as error:
        print(error, file=sys.stderr)
        return 1
    if args.table:
        print(markdown_table(pool.teams))
    else:
        for team in pool.teams:
            print(f"{team.name}: {', '.join(team.species)}")
        held_out = sum(team.held_out for team in pool.teams)
        print(f"{len(pool)} teams, all legal in {pool.battle_format}, {held_out} held out.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
