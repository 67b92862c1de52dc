"""Battles of people: every wrapping, every order of lines, and labels that are right or marked as unknown.

tests/data/vgc_human.log is written by us in the form of a ladder replay of January 2025: nicknames, chat, joins,
timers, a forfeit, `|teamsize|` before `|poke|`, `[from]lockedmove` without a space.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from cleanrl_games.envs.vgc import demonstrations as demos
from cleanrl_games.envs.vgc import replay_check
from cleanrl_games.envs.vgc.replay import main, replay_html
from cleanrl_games.envs.vgc.replay_actions import BOTH, Reader, collect_replays, read_replay
from cleanrl_games.envs.vgc.replay_files import ReplayError, battle_lines, in_per_cent, read_battle
from cleanrl_games.envs.vgc.teams import TeamPool
from cleanrl_games.envs.vgc.vec_env import PREVIEW
from cleanrl_games.envs.vgc.views import Views
from cleanrl_games.envs.vgc.vocabulary import LAYOUT, find

FORMAT = "gen9vgc2024regh"
LOG = (Path(__file__).parent / "data" / "vgc_human.log").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def views():
    with Views() as views:
        yield views


def decisions(text: str, views: Views) -> dict[str, list[str]]:
    """Every decision of both sides in words, and how it is known"""
    reader = Reader(text, FORMAT)
    reader.streams(views)
    return {side: [decision.words(seat.names) for decision in seat.decisions] for side, seat in reader.seats.items()}


def test_a_humans_battle_decision_by_decision(views):
    found = decisions(LOG, views)
    assert found["p1"] == [
        "team Lady D, Knight, Zoom, Tower",
        "move followme, ?",  # Expanding Force in Psychic Terrain hits both: nobody knows at whom it was aimed
        "switch Zoom, move energyball +2 terastallize",
        "move dragondarts +1, move armorcannon +2",
        "move phantomforce +2, switch Tower",  # its target is seen a turn later
        "?, ?",  # a locked move is nobody's choice, and the second choice is only learned given the first
        "?, ?",  # forfeited
    ]
    assert found["p2"] == ["team ?"] + ["?, ?"] * (len(found["p2"]) - 1), "a Zoroark may stand there under any name"


def test_without_an_illusion_the_other_side_is_known(views):
    found = decisions(LOG.replace("Zoroark-Hisui, L50, M", "Rillaboom, L50, M"), views)
    assert found["p2"] == [
        "team Raffi, Sparky, Gary, Pelly",
        "move hypervoice, ?",  # Thunderbolt at Lady D, who draws it by Follow Me
        "move helpinghand -2, move protect",  # Armor Tail stopped the other side's move: its line names the holder
        "switch Gary, move thunderbolt +1",
        "pass, switch Pelly",
        "move waterfall +2, move uturn +1",
        "pass, switch Raffi",
        "?, ?",  # Gyarados fell first
        "switch Pelly, pass",
        "?, ?",  # forfeited
    ]


def test_the_outcome_and_the_kinds(views):
    (first, side_1, _, won), (_, side_2, _, lost) = Reader(LOG, FORMAT).streams(views)
    assert (side_1, won, side_2, lost) == (0, 1.0, 1, 0.0)
    assert [row["kind"] == PREVIEW for row in first] == [True] + [False] * 6
    species = [first[0]["ints"][LAYOUT["own"].int_index(row, "species")] for row in range(6)]
    assert species == [
        find("species", name) for name in "indeedeef armarouge dragapult archaludon incineroar mausholdfour".split()
    ]
    # What is not known may not be what is learned: the mask of every known decision allows it.
    legal = demos.joint_mask(first)
    assert all(legal[row, first["action"][row]] for row in np.flatnonzero(first["known"] == BOTH))


def test_a_decision_does_not_see_what_only_the_future_told(views):
    """Moves are known from their use: neither who has some at team preview nor their order may tell what will be
    chosen."""
    text = LOG.replace("Zoroark-Hisui, L50, M", "Rillaboom, L50, M")
    own = LAYOUT["own"]
    for rows, *_ in Reader(text, FORMAT).streams(views):
        preview, turn = rows[0], rows[1]
        for column in ("ability", "item", "lost_item", "tera_type", "move_1", "move_2"):
            assert len({int(preview["ints"][own.int_index(row, column)]) for row in range(6)} - {0}) <= 1, column
        for row in range(2):
            moves = [int(turn["ints"][own.int_index(row, f"move_{number}")]) for number in (1, 2, 3, 4)]
            assert [move for move in moves if move] == sorted(move for move in moves if move)
        tera = turn["slots"][:, :40].reshape(2, 4, 2, 5)
        assert (tera[:, :, 0] == tera[:, :, 1]).all(), "everybody may terastallize, not only who did"


def wrapped(text: str) -> dict[str, str]:
    """The same battle as people have it on disk"""
    newer = [line for line in text.split("\n") if not line.startswith("|teamsize|")]
    at = newer.index("|teampreview|4")
    newer[at:at] = ["|teamsize|p1|6", "|teamsize|p2|6"]
    escaped = text.replace("/", "\\/")
    return {
        "newer.log": "\n".join(newer),
        "windows.txt": text.replace("\n", "\r\n"),
        "api.json": json.dumps({"id": "gen9vgc2024regh-1", "players": ["Ana Lucía", "BENten"], "log": text}),
        "server.json": json.dumps({"log": text.split("\n"), "inputLog": [">p1 team 1234"]}),
        "saved.html": f'<!DOCTYPE html>\n<script type="text/plain" class="battle-log-data">{escaped}</script>\n',
        "ours.html": replay_html(text),
    }


def test_every_wrapping_is_the_same_battle(views, tmp_path):
    plain = read_replay(LOG, FORMAT, views)
    for name, text in wrapped(LOG).items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
        for ours, theirs in zip(plain, read_replay(read_battle(tmp_path / name).text, FORMAT, views)):
            assert ours[0].tobytes() == theirs[0].tobytes(), name
            assert ours[1:] == theirs[1:], name


def test_a_servers_own_log_tells_no_more_than_a_replay():
    assert [in_per_cent(text) for text in ("103/181 brn", "180/181", "1/250", "181/181 slp", "0 fnt", "57/100",
        "")] == [
        "57/100 brn", "99/100", "1/100", "100/100 slp", "0 fnt", "57/100", ""]  # fmt: skip
    told = ["|split|p1", "|-damage|p1a: X|103/181|[from]item: Life Orb", "|-damage|p1a: X|57/100|[from]item: Life Orb"]
    assert battle_lines("\n".join(told)) == ["|-damage|p1a: X|57/100|[from] item: Life Orb"]
    assert battle_lines("|-damage|p1a: X|103/181|[from]item: Life Orb") == [
        "|-damage|p1a: X|57/100|[from] item: Life Orb"
    ]
    assert battle_lines("|c|me|[from]nowhere") == ["|c|me|[from]nowhere"]


def test_choices_that_were_really_made_judge_the_reader(views, tmp_path):
    """`inputLog` with one choice that differs from what the log shows: one decision is called wrong, and named."""
    p1 = ["team 1, 2, 3, 4", "move followme, move expandingforce +1", "switch 3, move energyball +2 terastallize"]
    p1 += [
        "move dragondarts +1, move armorcannon +2",
        "move phantomforce +2, switch 4",
        "move phantomforce +2, move electroshot +1",
    ]
    files = {"good.json": p1, "bad.json": [*p1[:3], "move dragondarts +2, move armorcannon +2", *p1[4:]]}
    for name, choices in files.items():
        (tmp_path / name).write_text(json.dumps({"log": LOG, "inputLog": [f">p1 {choice}" for choice in choices]}))
    score = replay_check.check(tmp_path, FORMAT)
    assert (score.read, score.made, score.right) == (2, 12, 4 + 3)
    assert score.wrong == [
        "bad.json, p1, turn 3: read move dragondarts +1, move armorcannon +2, chosen move dragondarts +2, move "
        "armorcannon +2"
    ]


def test_what_cannot_be_used_is_a_sentence(tmp_path):
    early = LOG[: LOG.index("|start")] + "|-message|BENten forfeited.\n|\n|win|Ana Lucía\n"
    old_page = replay_html(LOG).replace('"log":', '"lag":')
    bad = {
        "early.log": (early, "There is no battle in this log"),
        "page.html": (old_page, "the page was made before pages kept their log"),
    }
    bad |= {
        "i.log": (LOG.replace("Reg H", "Reg I"), "it is of the format [Gen 9] VGC 2024 Reg I, not of gen9vgc2024regh")
    }
    bad |= {"odd.log": (LOG.replace("Dragapult", "Dragaput"), "'Dragaput' is no Pokémon of this simulator")}
    for name, (text, _) in bad.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ReplayError, match="Not one of the 4 replays"):
        collect_replays(tmp_path, tmp_path / "set", FORMAT)
    (tmp_path / "later.log").write_text(LOG.replace("VGC 2024 Reg H", "VGC 2025 Reg H (Bo3)"), encoding="utf-8")
    found = collect_replays(tmp_path, tmp_path / "set", FORMAT)
    assert found.battles == 1, "the same letter of another year is the same game"
    for name, (_, reason) in bad.items():
        assert any(line.startswith(f"{name}: {reason}") for line in found.left_out), (name, found.left_out)


def test_any_saved_battle_becomes_a_page(tmp_path, capsys):
    for name, text in wrapped(LOG).items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
        assert main([str(tmp_path / name), "--output", str(tmp_path / "page.html")]) == 0
        assert "Ana Luc\\u00eda" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert main([str(tmp_path / "ours.html")]) == 1
    assert "would be written over" in capsys.readouterr().err


@pytest.mark.parametrize("battle_format", ["gen9vgc2024regh", "gen9championsvgc2026regma"])
def test_our_own_battles_are_read_back_as_they_were_played(battle_format):
    teams = TeamPool("generated", battle_format, size=40, seed=4).packed
    score = replay_check.check_own(battle_format, 10, seed=3, teams=teams)
    assert score.read == 10 and not score.left_out
    assert not score.wrong, "\n".join(score.wrong)
    assert score.known > 0.55 * score.decisions > 100


def test_a_mega_evolution_is_part_of_the_choice(views):
    """The bit that is tera elsewhere: set where somebody mega evolved, and nowhere else."""
    battle_format, seen = "gen9championsvgc2026regma", 0
    teams = TeamPool("generated", battle_format, size=40, seed=4).packed
    for log, *_ in replay_check.play(battle_format, 8, True, 5, teams):
        reader = Reader(log, battle_format)
        reader.streams(views)
        for side, seat in reader.seats.items():
            evolved = [line for line in reader.lines if line.startswith(f"|-mega|{side}")]
            bits = sum(any(decision.gimmick) for decision in seat.decisions)
            assert bits == len(evolved) <= 1
            said = [
                word
                for decision in seat.decisions
                for word in decision.words(seat.names).split(", ")
                if word.endswith(" mega")
            ]
            seen += len(said)
    assert seen >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "battle_format",
    [
        "gen9vgc2023regc",
        "gen9vgc2024regg",
        "gen9vgc2024regh",
        "gen9vgc2025regi",
        "gen9championsvgc2026regma",
        "gen9championsvgc2026regmb",
    ],
)
def test_no_label_of_500_battles_is_wrong(battle_format):
    score = replay_check.check_own(battle_format, 500, seed=11, teams=replay_check.own_teams(battle_format, 11))
    assert score.read == 500 and not score.wrong, "\n".join(score.wrong)
