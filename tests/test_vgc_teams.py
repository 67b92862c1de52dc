"""The shipped teams, and what TeamPool says about good, bad and missing ones."""

import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from cleanrl_games.envs.vgc import teams as teams_module
from cleanrl_games.envs.vgc.install import formats
from cleanrl_games.envs.vgc.teams import SHIPPED, TeamError, TeamPool, export_teams, main, markdown_table, read_folder
from cleanrl_games.envs.vgc.vec_env import TURN, VGCVecEnv
from cleanrl_games.envs.vgc.vocabulary import LAYOUT

FORMATS = ("gen9vgc2023regc", "gen9vgc2024regg", "gen9vgc2025regi")
REGG = SHIPPED / "gen9vgc2024regg"
DOCS = Path(__file__).parents[1] / "docs" / "vgc_teams.md"
GENERATED = 24


def species_of(packed: str) -> list[str]:
    return sorted(part.split("|")[1] or part.split("|")[0] for part in packed.split("]"))


def write_team(folder: Path, name: str, change=lambda text: text, source: str = "koraidon_sun_flutter") -> None:
    path = folder / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(change((REGG / f"{source}.txt").read_text(encoding="utf-8")), encoding="utf-8")


@pytest.fixture
def no_node(monkeypatch):
    """Fails the test if anything starts a process: what is cached must be served from the cache."""

    def refuse(*args, **kwargs):
        raise AssertionError("a process was started")

    return lambda: monkeypatch.setattr(teams_module.subprocess, "run", refuse)


@pytest.mark.parametrize("battle_format", FORMATS)
def test_shipped_teams(battle_format):
    everything = TeamPool("shipped", battle_format, split="all")  # raises, naming the file, if the validator objects
    train, held_out = TeamPool("shipped", battle_format), TeamPool("shipped", battle_format, split="eval")
    assert len(everything) >= 24
    assert len(train) + len(held_out) == len(everything)
    assert len(held_out) * 3 >= len(everything)
    assert len(list((SHIPPED / battle_format).rglob("*.txt"))) == len(everything)
    assert all(len(team.species) == 6 and team.title for team in everything)
    # Diverse: many species, and no two teams that share five of six.
    assert len({species for team in everything for species in team.species}) >= 45
    for i, one in enumerate(everything):
        for two in everything.teams[:i]:
            assert len(set(one.species) & set(two.species)) <= 4, (one.name, two.name)


@pytest.mark.parametrize(("battle_format", "limit"), zip(FORMATS, (0, 1, 2)))
def test_shipped_teams_use_what_the_regulation_allows(battle_format, limit):
    restricted = re.compile(
        "Miraidon|Koraidon|Calyrex-|Zamazenta|Zacian|Terapagos|Kyogre|Groudon|Rayquaza|Lunala|Solgaleo|Necrozma-|"
        "Kyurem-|Mewtwo|Dialga|Palkia|Giratina|Eternatus|Ho-Oh|Lugia|Reshiram|Zekrom"
    )
    counts = [
        sum(bool(restricted.match(s)) for s in team.species) for team in TeamPool("shipped", battle_format, "all")
    ]
    assert max(counts) == limit
    assert counts.count(limit) >= 23


def test_second_start_needs_no_node(no_node):
    first = TeamPool("shipped", "gen9vgc2024regg")
    no_node()
    assert TeamPool("shipped", "gen9vgc2024regg").packed == first.packed


def test_old_spelling_and_unknown_format():
    assert TeamPool("shipped", "gen9vgc2023regulationc").battle_format == "gen9vgc2023regc"
    with pytest.raises(ValueError, match=r"gen9vgc9999.*gen9vgc2024regg"):
        TeamPool("shipped", "gen9vgc9999")
    with pytest.raises(ValueError, match=r"gen9vgc2024regq' \(did you mean gen9vgc2024reg"):
        TeamPool("shipped", "gen9vgc2024regq")


def test_formats_without_shipped_teams(capsys):
    """The same regulation in another year has them; others get generated ones, split as those are."""
    assert TeamPool("shipped", "gen9vgc2025regg").packed == TeamPool("shipped", "gen9vgc2024regg").packed
    train, held_out = (TeamPool("shipped", "gen9vgc2023regd", split) for split in ("train", "eval"))
    assert "No teams are shipped for gen9vgc2023regd: 64 generated ones stand in." in capsys.readouterr().err
    assert len(train) == len(held_out) == 64 and not set(train.packed) & set(held_out.packed)


BANNED = {  # of those that the listed format below a regulation would allow
    "gen9vgc2023rega": {"Flutter Mane", "Chi-Yu", "Iron Hands"},
    "gen9vgc2023regb": {"Chi-Yu", "Ting-Lu"},
    "gen9vgc2023rege": {"Incineroar", "Raging Bolt", "Kyogre", "Archaludon"},
    "gen9vgc2024regf": {"Kyogre", "Miraidon", "Calyrex-Ice"},
    "gen9vgc2024regh": {"Flutter Mane", "Raging Bolt", "Urshifu", "Ogerpon", "Kyogre"},
    "gen9vgc2025regj": set(),
}
ALLOWED = {  # and these are what it is about
    "gen9vgc2023rega": set(),
    "gen9vgc2023regb": {"Flutter Mane", "Iron Hands", "Iron Bundle"},
    "gen9vgc2023rege": {"Chi-Yu", "Ogerpon-Wellspring", "Sinistcha"},
    "gen9vgc2024regf": {"Raging Bolt", "Incineroar", "Archaludon"},
    "gen9vgc2024regh": {"Ursaluna-Bloodmoon", "Incineroar", "Archaludon"},
    "gen9vgc2025regj": {"Mew", "Pecharunt", "Darkrai", "Hoopa-Unbound"},
}


@pytest.mark.parametrize("battle_format", BANNED)
def test_regulations_that_showdown_does_not_list(battle_format):
    pool = TeamPool("generated", battle_format, size=150, seed=3)
    used = {species for team in pool for species in team.species}
    assert not used & BANNED[battle_format]
    assert len(used & ALLOWED[battle_format]) >= min(1, len(ALLOWED[battle_format]))
    with VGCVecEnv(2, 1, battle_format, pool, logs=True) as env:
        finished, rng = 0, np.random.default_rng(1)
        while finished < 2:
            batch = env.recv()
            finished += len(batch.finished)
            for log in batch.logs.values():
                assert f"|tier|{formats()[battle_format]}\n" in log
            rows, legal = batch.decisions, batch.mask
            env.send(batch.key[rows], [rng.choice(np.flatnonzero(legal[row])) for row in rows])


@pytest.mark.parametrize("battle_format", ["gen9championsvgc2026regma", "gen9championsvgc2026regmb"])
def test_generated_champions_teams_hold_mega_stones_as_people_do(battle_format):
    """One in 55 % of people's teams, two in 45 %; and battles use them."""
    pool = TeamPool("generated", battle_format, size=150, seed=3)
    counts = np.array(
        [sum(bool(re.search(r"ite[XY]?$", mon.split("|")[2])) for mon in team.packed.split("]")) for team in pool]
    )
    assert set(counts) == {1, 2} and 1.3 < counts.mean() < 1.6
    evolved, can = 0, LAYOUT["active"].float_index(0, "can_tera")
    with VGCVecEnv(4, 1, battle_format, pool, logs=True) as env:
        finished, rng = 0, np.random.default_rng(1)
        while finished < 6:
            batch = env.recv()
            finished += len(batch.finished)
            evolved += sum(log.count("|-mega|") for log in batch.logs.values())
            rows, legal = batch.decisions, batch.mask
            for row in rows[batch.kind[rows] == TURN]:
                offered = batch.slots[row, 0, :40].reshape(4, 2, 5)[:, 1].any()
                assert offered == batch.floats[row, can], "the column says what the mask allows"
            env.send(batch.key[rows], [rng.choice(np.flatnonzero(legal[row])) for row in rows])
        assert env.stats()["invalid"] == 0
    assert evolved >= 3


def test_bad_teams_are_named_with_the_reason(tmp_path):
    write_team(tmp_path, "good")
    write_team(tmp_path, "sub/two_items", lambda text: text.replace("Focus Sash", "Life Orb"))
    write_team(tmp_path, "learns", lambda text: text.replace("- Moonblast", "- Surf"))
    write_team(tmp_path, "misspelt", lambda text: text.replace("Tera Type: Fairy", "Tera Tpye: Fairy"))
    write_team(tmp_path, "many_evs", lambda text: text.replace("252 SpA", "252 SpAtk"))
    write_team(
        tmp_path,
        "two_restricted",
        lambda text: re.sub(r"(?s)Raging Bolt.*", "Kyogre\nAbility: Drizzle\n- Surf\n", text),
    )
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(TeamError) as error:
        TeamPool(tmp_path, "gen9vgc2024regg")
    lines = {line.split(":")[0].strip(): line for line in str(error.value).splitlines()}
    assert "limited to 1 of each item" in lines["sub/two_items.txt"]
    assert "Flutter Mane can't learn Surf" in lines["learns.txt"]
    assert 'line 17 is not part of the PokePaste format: "Tera Tpye: Fairy"' in lines["misspelt.txt"]
    assert '"252 SpAtk" is not a number and a stat' in lines["many_evs.txt"]
    assert "only use one restricted" in lines["two_restricted.txt"]
    assert "cannot be read as UTF-8" in lines["binary.txt"]
    assert "no Pokémon" in lines["empty.txt"]
    assert "good.txt" not in lines

    with pytest.warns(UserWarning, match=r"two_items\.txt"):
        pool = TeamPool(tmp_path, "gen9vgc2024regg", skip_bad=True)
    assert pool.names == ["good"]
    assert len(pool.skipped) == 7


def test_places_without_teams(tmp_path):
    with pytest.raises(TeamError, match=r"nowhere does not exist: give a folder"):
        TeamPool(tmp_path / "nowhere", "gen9vgc2024regg")
    with pytest.raises(TeamError, match=r"There is no team in .*named \*\.txt"):
        TeamPool(tmp_path, "gen9vgc2024regg")
    write_team(tmp_path, "alone")
    with pytest.raises(TeamError, match=r"alone\.txt is a file: give a folder"):
        TeamPool(tmp_path / "alone.txt", "gen9vgc2024regg")
    with pytest.raises(TeamError, match=r"1 teams but none held out"):
        TeamPool(tmp_path, "gen9vgc2024regg", split="eval")
    with pytest.raises(TeamError, match=r"Unknown split 'test'.*train, eval, all"):
        TeamPool(tmp_path, "gen9vgc2024regg", split="test")
    (tmp_path / "alone.txt").write_text("Pikachu\n")
    with pytest.warns(UserWarning), pytest.raises(TeamError, match=r"Not one of the 1 teams"):
        TeamPool(tmp_path, "gen9vgc2024regg", skip_bad=True)


def test_held_out_mark_and_leak(tmp_path):
    write_team(tmp_path, "mine/a")
    write_team(tmp_path, "mine/heldout/b", source="lunala_semi_room")
    write_team(tmp_path, "heldout_notes/c", source="rayquaza_ascent")  # a folder that only begins like the mark
    assert TeamPool(tmp_path, "gen9vgc2024regg").names == ["heldout_notes/c", "mine/a"]
    assert TeamPool(tmp_path, "gen9vgc2024regg", split="eval").names == ["mine/heldout/b"]
    write_team(tmp_path, "heldout/same_as_a")
    with pytest.raises(TeamError, match=r"heldout/same_as_a\.txt .* equal to mine/a\.txt"):
        TeamPool(tmp_path, "gen9vgc2024regg")


def test_windows_lines_and_export(tmp_path):
    write_team(tmp_path, "crlf", lambda text: "\ufeff" + text.replace("\n", "  \r\n"))
    write_team(tmp_path, "plain")
    crlf, plain = TeamPool(tmp_path, "gen9vgc2024regg").teams
    assert crlf.packed == plain.packed
    (tmp_path / "again.txt").write_text(export_teams([plain.packed])[0])
    assert TeamPool(tmp_path, "gen9vgc2024regg")[0].packed == plain.packed


def test_broken_and_unwritable_cache(tmp_path, monkeypatch):
    pool = tmp_path / "pool"
    write_team(pool, "one")
    kept = tmp_path / "cache"
    monkeypatch.setattr(teams_module, "cache_folder", lambda: kept)
    first = TeamPool(pool, "gen9vgc2024regg").packed
    (file,) = (kept / "teams").iterdir()
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    assert TeamPool(pool, "gen9vgc2024regg").packed == first
    assert json.loads(file.read_text()) == json.loads(whole)  # and it was mended
    shutil.rmtree(kept)
    kept.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="could not be kept in"):
        assert TeamPool(pool, "gen9vgc2024regg").packed == first


@pytest.mark.parametrize("battle_format", [*FORMATS, "gen9championsvgc2026regma"])
def test_generated_teams(battle_format, tmp_path, monkeypatch):
    monkeypatch.setattr(teams_module, "cache_folder", lambda: tmp_path / "cache")
    train = TeamPool("generated", battle_format, size=GENERATED, seed=5)
    held_out = TeamPool("generated", battle_format, split="eval", size=GENERATED // 2, seed=5)
    assert len(set(train.packed)) == GENERATED
    assert len({species for team in train for species in team.species}) >= 60
    assert not {tuple(species_of(p)) for p in train.packed} & {tuple(species_of(p)) for p in held_out.packed}
    # Legal by a second look: exported to text, read and judged like any folder of teams.
    folder = tmp_path / "exported"
    folder.mkdir()
    for i, text in enumerate(export_teams(train.packed + held_out.packed)):
        (folder / f"{i:03}.txt").write_text(text, encoding="utf-8")
    legal, bad = read_folder(folder, battle_format)
    assert not bad
    assert [team.packed for team in legal] == train.packed + held_out.packed
    # The same seed gives the same teams, without the cache too; a longer pool begins with the shorter one.
    monkeypatch.setattr(teams_module, "cache_folder", lambda: tmp_path / "other")
    assert TeamPool("generated", battle_format, size=GENERATED - 10, seed=5).packed == train.packed[:-10]
    assert TeamPool("generated", battle_format, size=5, seed=6).packed != train.packed[:5]


def test_generated_teams_are_cached_and_sized(no_node):
    pool = TeamPool("generated", "gen9vgc2024regg", size=3, seed=11)
    no_node()
    assert TeamPool("generated", "gen9vgc2024regg", size=3, seed=11).packed == pool.packed
    assert pool.sample(random.Random(0)) in pool.teams
    with pytest.raises(TeamError, match="pool of 0 generated teams"):
        TeamPool("generated", "gen9vgc2024regg", size=0)


def test_command_line(tmp_path, capsys):
    write_team(tmp_path, "fine")
    assert main([str(tmp_path)]) == 0
    assert "1 teams, all legal in gen9vgc2024regg, 0 held out." in capsys.readouterr().out
    (tmp_path / "bad.txt").write_text("Pikachu\n")
    assert main([str(tmp_path)]) == 1
    assert "bad.txt: " in capsys.readouterr().err


@pytest.mark.parametrize("battle_format", FORMATS)
def test_docs_list_the_shipped_teams(battle_format):
    assert markdown_table(TeamPool("shipped", battle_format, split="all").teams) in DOCS.read_text(encoding="utf-8")
