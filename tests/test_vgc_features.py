"""The observation: what poke-env says where it is right, nothing hidden in it, beliefs that are never wrong, a table
that is true."""

import json
import logging
import zlib
from collections import Counter

import numpy as np
import pytest
from poke_env.battle import DoubleBattle, Effect, PokemonType, Weather
from poke_env.data import GenData

from cleanrl_games.envs.vgc import TeamPool, VGCVecEnv, columns_doc, mdbo, vocab_file
from cleanrl_games.envs.vgc.baselines import feed
from cleanrl_games.envs.vgc.parity import FORMATS, INT_NAMES, Report, check, compare_battle, exact_hp, frame, trace
from cleanrl_games.envs.vgc.truth import check_beliefs
from cleanrl_games.envs.vgc.views import Views
from cleanrl_games.envs.vgc.vocabulary import (
    COLUMNS,
    FLOATS,
    INTS,
    LAYOUT,
    MOVE_FACTS,
    SIZES,
    SPECIES_FACTS,
    VOCAB,
    find,
)
from cleanrl_games.tools.bench_vgc import adversarial_teams


def teams_of(battle_format: str) -> list[str]:
    shipped = TeamPool("shipped", battle_format, split="all").packed
    return [*shipped, *TeamPool("generated", battle_format, size=60, seed=3).packed]


# ------------------------------------------------------------------------------------------------ poke-env as an oracle


@pytest.mark.parametrize("open_team_sheets", [True, False])
@pytest.mark.parametrize("battle_format", [*FORMATS, "gen9championsvgc2026regma"])
def test_frames_say_what_poke_env_says(battle_format, open_team_sheets):
    report = check(battle_format, open_team_sheets, 160, seed=11, teams=teams_of(battle_format))
    assert report.decisions >= 160 and report.values > 150 * report.decisions
    assert not report.differing, "\n".join(report.examples)


def test_frames_say_what_poke_env_says_on_adversarial_teams():
    """Imposter, Commander, Revival Blessing, Ally Switch, locked and disabled moves, odd names, short teams."""
    report = check("gen9vgc2024regg", False, 400, seed=5, teams=adversarial_teams())
    assert report.values > 50 * report.decisions
    assert not report.differing, "\n".join(report.examples)


def test_parity_notices_a_difference():
    job = {
        "format": FORMATS[1],
        "openTeamSheets": True,
        "teams": teams_of(FORMATS[1]),
        "seed": 1,
        "battles": 1,
        "turnCap": 3,
    }
    (battle,) = trace(job)
    turned = [[{**entry} for entry in side] for side in battle["sides"]]
    lines = next(entry["lines"] for entry in turned[0] if any("|turn|1" in line for line in entry.get("lines", [])))
    lines.append("|-weather|RainDance|[from] ability: Drizzle|[of] p2a: Nobody")
    report = Report()
    compare_battle({"battle": 0, "sides": [turned[0], []]}, report)
    assert ("field", "weather_rain") in report.differing
    assert exact_hp("|-damage|p2a: Urshifu|103/181", side=0) and not exact_hp(
        "|-damage|p2a: Urshifu|57/100 brn", side=0
    )
    assert not exact_hp("|switch|p1b: Urshifu|Urshifu, L50, M|181/181", side=0)


def test_ids_stay_inside_their_vocabularies():
    vocabulary = {}
    for group in COLUMNS["groups"]:
        shared = COLUMNS["shared"].get(group.get("shared"), {"ints": []})["ints"]
        vocabulary |= {(group["name"], column["name"]): column["vocabulary"] for column in shared + group["ints"]}
    limits = np.array([{**SIZES, "slot": 5, "row": 7}[vocabulary[group, column]] for group, _, column in INT_NAMES])
    highest = np.zeros(INTS, int)
    job = {
        "format": FORMATS[2],
        "openTeamSheets": True,
        "teams": adversarial_teams(),
        "seed": 2,
        "battles": 12,
        "turnCap": 30,
    }
    for battle in trace(job | {"quiet": True}):
        for entry in (entry for side in battle["sides"] for entry in side):
            ints, floats = frame(entry)
            assert ints.shape == (INTS,) and floats.shape == (FLOATS,) and (ints >= 0).all()
            assert np.isfinite(floats).all() and np.abs(floats).max() < 4
            highest = np.maximum(highest, ints)
    assert (highest < limits).all()
    assert highest[LAYOUT["opp"].int_index(0, "move_4")] > 1 and highest[LAYOUT["own"].int_index(5, "species")] > 1


# ------------------------------------------------------------------------------------------------- nothing leaks


def edited(packed: str, change) -> str:
    """A packed team with `change(fields, index)` applied to each Pokémon's list of fields."""
    mons = [mon.split("|") for mon in packed.split("]")]
    for index, fields in enumerate(mons):
        change(fields, index)
    return "]".join("|".join(fields) for fields in mons)


def other_spread(fields, index):
    fields[5] = "Modest" if fields[5] != "Modest" else "Adamant"
    fields[6] = "4,0,252,0,252,0" if index % 2 else "0,252,4,0,0,252"


def other_spread_in_the_back(fields, index):
    if index > 1:
        other_spread(fields, index)


def other_secrets(fields, index):
    """Items, tera types, last moves and, behind the leads, abilities, exchanged for others that say nothing when a
    Pokémon comes in."""
    if index > 1:  # a lead's Intimidate or weather that is missing would be told in the first lines
        fields[3] = "Run Away" if fields[3] != "Run Away" else "Honey Gather"
    fields[2] = ("Expert Belt", "Wide Lens", "Muscle Band", "Wise Glasses", "Scope Lens", "Zoom Lens")[index]
    moves = fields[4].split(",")
    # The target stays what it was, so the same choices are legal and the same dice give the same choices.
    target = GenData.from_gen(9).moves[VOCAB["moves"][find("moves", moves[-1])]]["target"]
    like = {"normal": "Tackle", "allAdjacentFoes": "Swift", "self": "Meditate", "allySide": "Safeguard"}
    fields[4] = ",".join([*moves[:-1], like.get(target, moves[-1])])
    fields[11] = ",,,,," + ("Bug", "Poison")[index % 2]


def other_secrets_in_the_back(fields, index):
    if index > 1:
        other_secrets(fields, index)


def nothing(fields, index):
    pass


def streams(job: dict) -> list[list[dict]]:
    return [battle["sides"] for battle in trace(job)]


def told(entry: dict) -> dict:
    """What an entry tells its player; the clock is not part of the game."""
    return {"lines": [line for line in entry["lines"] if not line.startswith("|t:|")]} if "lines" in entry else entry


def same_until_told(first: list[dict], second: list[dict]) -> tuple[int, int]:
    """(decisions in a game, decisions with different frames) while one player was told the same in two battles."""
    compared = different = 0
    for a, b in zip(first, second):
        if "ints" in a and "ints" in b:
            compared += 1
            different += (a["ints"], a["floats"]) != (b["ints"], b["floats"])
        elif told(a) != told(b):
            break
    return compared, different


LEADS_12 = [index for index, line_up in enumerate(mdbo.PREVIEWS) if tuple(line_up[:2]) == (0, 1)]


@pytest.mark.parametrize(
    "change, open_team_sheets",
    [
        (other_spread, True),
        (other_spread, False),
        (other_spread_in_the_back, True),
        (other_spread_in_the_back, False),
        (nothing, True),
        (nothing, False),
        (other_secrets, False),
        (other_secrets_in_the_back, False),
    ],
)
def test_hidden_things_change_no_frame_before_they_are_told(change, open_team_sheets):
    teams = TeamPool("shipped", FORMATS[1], split="all").packed[:12]
    pairs = [[teams[i], teams[i + 1]] for i in range(11)]
    altered = [[mine, edited(theirs, change)] for mine, theirs in pairs]
    # Where nothing else is changed, the opponent brings other Pokémon behind the same leads.
    line_ups = [LEADS_12[0], LEADS_12[0]], [LEADS_12[0], LEADS_12[-1 if change is nothing else 0]]
    job = {"format": FORMATS[1], "openTeamSheets": open_team_sheets, "seed": 9, "battles": 22, "turnCap": 12}
    first = streams(job | {"pairs": pairs, "previews": line_ups[0]})
    second = streams(job | {"pairs": altered, "previews": line_ups[1]})
    compared, different = np.array([same_until_told(a[0], b[0]) for a, b in zip(first, second)]).T
    assert different.sum() == 0
    # Not an empty promise: most battles were compared beyond team preview (a changed Speed may turn the first lines).
    assert (compared >= 2).mean() > 0.6 and compared.sum() >= 40
    # And the comparison does see the change where it is no secret: on its owner's side it is told at once.
    owner, _ = np.array([same_until_told(a[1], b[1]) for a, b in zip(first, second)]).T
    assert owner.sum() < compared.sum()


def seat_streams(teams: tuple[list[str], list[str]], rounds: int) -> dict[int, list[dict]]:
    """What each seat of a VGCVecEnv was told and saw; actions depend on seat and count alone, as far as the mask
    allows."""
    streams, counts = {}, Counter()
    with VGCVecEnv(6, 1, FORMATS[1], teams=teams, open_team_sheets=True, seed=3, protocol=True) as env:
        for _ in range(rounds):
            batch = env.recv()
            rows, legal = [row for row in batch.decisions if batch.episode[row] == 0], batch.mask
            actions = []
            for row in rows:
                seat = int(batch.key[row])
                stream = streams.setdefault(seat, [])
                stream.append({"lines": batch.protocol[row]})
                stream.append({"ints": batch.ints[row].tobytes(), "floats": batch.floats[row].tobytes()})
                allowed = np.flatnonzero(legal[row])
                actions.append(
                    LEADS_12[0]
                    if batch.kind[row] == 0
                    else allowed[zlib.crc32(f"{seat} {counts[seat]}".encode()) % len(allowed)]
                )
                counts[seat] += 1
            if not rows:
                break
            env.send(batch.key[rows], actions)
    return streams


def test_vec_env_frames_do_not_know_the_opponents_spread():
    mine, theirs = TeamPool("shipped", FORMATS[1], split="all").packed[:2]
    first = seat_streams(([mine], [theirs]), 8)
    second = seat_streams(([mine], [edited(theirs, other_spread_in_the_back)]), 8)
    compared, different = np.array([same_until_told(first[seat], second[seat]) for seat in first if seat % 2 == 0]).T
    assert different.sum() == 0 and (compared >= 2).all() and compared.max() >= 3


def test_node_sees_only_lines_and_requests():
    """Frames are a function of what the player was sent: feeding the recorded stream to a new PlayerView gives the
    same."""
    job = {
        "format": FORMATS[0],
        "openTeamSheets": False,
        "teams": teams_of(FORMATS[0]),
        "seed": 4,
        "battles": 2,
        "turnCap": 20,
    }
    for battle in trace(job):
        recorded = [[{"observe": True} if "ints" in entry else entry for entry in side] for side in battle["sides"]]
        replays = trace(
            {"format": FORMATS[0], "openTeamSheets": False, "replay": [["p1", recorded[0]], ["p2", recorded[1]]]}
        )
        for side, replay in zip(battle["sides"], replays):
            seen = [(entry["ints"], entry["floats"]) for entry in side if "ints" in entry]
            assert seen == [(entry["ints"], entry["floats"]) for entry in replay["frames"]]


# ------------------------------------------------------------------------------------------------- beliefs


@pytest.mark.parametrize("open_team_sheets", [True, False])
@pytest.mark.parametrize("battle_format, battles", [(FORMATS[2], 60), ("gen9championsvgc2026regma", 20)])
def test_beliefs_never_exclude_the_truth(battle_format, battles, open_team_sheets):
    verdict = check_beliefs(battle_format, open_team_sheets, battles, seed=21, teams=teams_of(battle_format))
    assert not verdict.wrong, "\n".join(verdict.wrong[:20])
    assert verdict.narrowed > verdict.rows / 10, "the order of moves must teach something"
    if not open_team_sheets:
        assert all(verdict.said[column] for column in ("no_choice", "no_assault_vest", "no_life_orb", "no_leftovers"))


def test_speed_bounds_of_a_known_case():
    table = Table()
    table.say("|move|p2a: Whimsicott|Moonblast|p1a: Torkoal", "|-damage|p1a: Torkoal|100/145")
    table.say("|move|p1a: Torkoal|Heat Wave|p2a: Whimsicott", "|-damage|p2a: Whimsicott|40/100")
    row = table.belief(0)
    # Whimsicott outsped a raw 40: certainly 27 with a Choice Scarf, 40 without; both below what the species allows at
    # least.
    assert (round(row["speed_min"] * 250), round(row["speed_max"] * 250)) == (108, 184)
    table.say("|upkeep", "|turn|2", "|move|p1b: Regieleki|Thunderbolt|p2b: Amoonguss", "|-damage|p2b: Amoonguss|40/100")
    table.say("|move|p2a: Whimsicott|Tackle|p1a: Torkoal", "|-damage|p1a: Torkoal|95/145")
    row = table.belief(0)
    # Lagging Tail is not excluded
    assert round(row["speed_max_plain"] * 250) == 150 and round(row["speed_max"] * 250) == 184
    assert row["no_choice"] == 1


# ---------------------------------------------------------------------------------------------- where poke-env is wrong


def own(name, details, moves, stats, **more):
    entry = {"ident": f"p1: {name}", "details": details, "condition": "145/145", "active": True, "stats": stats}
    entry |= {
        "moves": moves,
        "baseAbility": "drought",
        "item": "charcoal",
        "ability": "drought",
        "pokeball": "pokeball",
    }
    return entry | {"commanding": False, "reviving": False, "teraType": "Fire", "terastallized": ""} | more


class Table:
    """A battle told line by line: what poke-env makes of it, and what our view does."""

    def __init__(self):
        self.battle = DoubleBattle("battle-0", "p1", logging.getLogger("test"), gen=9)
        self.views, self.unheard = Views(), []
        self.say("|player|p1|p1||", "|player|p2|p2||", "|teamsize|p1|2", "|teamsize|p2|4", "|gen|9", "|clearpoke")
        self.say("|poke|p2|Whimsicott, L50, F|", "|poke|p2|Amoonguss, L50, M|", "|poke|p2|Scream Tail, L50|")
        self.say("|poke|p2|Armarouge, L50, M|", "|teampreview|4")
        speed = dict.fromkeys(("atk", "def", "spa", "spd"), 100)
        torkoal = own("Torkoal", "Torkoal, L50, M", ["heatwave", "solarbeam", "protect", "yawn"], speed | {"spe": 40})
        regieleki = own(
            "Regieleki", "Regieleki, L50", ["thunderbolt", "hyperbeam", "protect", "swift"], speed | {"spe": 150}
        )
        self.request = {"side": {"name": "p1", "id": "p1", "pokemon": [torkoal, regieleki]}}
        moves = [
            {"moves": [{"move": m, "id": m, "pp": 8, "maxpp": 8, "target": "normal"} for m in mon["moves"]]}
            for mon in (torkoal, regieleki)
        ]
        self.ask(self.request | {"teamPreview": True})
        self.say(
            "|start", "|switch|p1a: Torkoal|Torkoal, L50, M|145/145", "|switch|p1b: Regieleki|Regieleki, L50|145/145"
        )
        self.say(
            "|switch|p2a: Whimsicott|Whimsicott, L50, F|100/100", "|switch|p2b: Amoonguss|Amoonguss, L50, M|100/100"
        )
        self.request["active"] = moves
        self.say("|turn|1")
        self.ask(self.request)

    def say(self, *lines):
        feed(self.battle, lines)
        self.unheard += [{"line": line} for line in lines]

    def ask(self, request):
        self.battle.parse_request(json.loads(json.dumps(request)))
        self.unheard.append({"request": request})

    def value(self, group: str, row: int, column: str):
        (frame,) = self.views.follow("table", "p1", [*self.unheard, {"observe": True}])
        self.unheard = []
        table = LAYOUT[group]
        return (
            frame["ints"][table.int_index(row, column)]
            if column in table.ints
            else frame["floats"][table.float_index(row, column)]
        )

    def belief(self, row: int) -> dict[str, float]:
        return {column: float(self.value("belief", row, column)) for column in LAYOUT["belief"].floats}


def test_poke_env_restarts_the_weather_every_turn():
    table = Table()
    table.say(
        "|-weather|SunnyDay|[from] ability: Drought|[of] p1a: Torkoal",
        "|-weather|SunnyDay|[upkeep]",
        "|upkeep",
        "|turn|2",
    )
    table.say("|-weather|SunnyDay|[upkeep]", "|upkeep", "|turn|3")
    assert table.battle.weather == {Weather.SUNNYDAY: 2}  # it began in turn 1
    assert table.value("field", 0, "weather_left_min") * 8 == 3 and table.value("field", 0, "weather_left_max") * 8 == 6


def test_poke_env_guesses_what_regenerator_healed():
    table = Table()
    table.say("|-damage|p2b: Amoonguss|50/100", "|-ability|p2b: Amoonguss|Regenerator")
    table.say("|switch|p2b: Scream Tail|Scream Tail, L50|100/100")
    assert table.battle.opponent_team["p2: Amoonguss"].current_hp == 83  # it may be 83 or 84: nobody has said so
    assert table.value("opp", 1, "hp") == 0.5


def test_poke_env_forgets_stages_that_are_passed_on():
    table = Table()
    table.say("|-boost|p2a: Whimsicott|spe|2", "|move|p2a: Whimsicott|Baton Pass|p2a: Whimsicott")
    table.say("|switch|p2a: Scream Tail|Scream Tail, L50|100/100|[from] Baton Pass")
    assert table.battle.opponent_active_pokemon[0].boosts["spe"] == 0
    assert table.value("active", 2, "boost_spe") == np.float32(2 / 6)


def test_poke_env_copies_stages_the_wrong_way():
    table = Table()
    table.say("|-boost|p1a: Torkoal|def|2", "|-copyboost|p2a: Whimsicott|p1a: Torkoal|[from] move: Psych Up")
    assert (
        table.battle.opponent_active_pokemon[0].boosts["def"] == 0 and table.battle.active_pokemon[0].boosts["def"] == 0
    )
    assert table.value("active", 2, "boost_def") == table.value("active", 0, "boost_def") == np.float32(2 / 6)


def test_poke_env_puts_out_flash_fire():
    table = Table()
    table.say("|switch|p2a: Armarouge|Armarouge, L50, M|100/100", "|-start|p2a: Armarouge|ability: Flash Fire")
    table.say(
        "|move|p2a: Armarouge|Armor Cannon|p1a: Torkoal", "|-resisted|p1a: Torkoal", "|-damage|p1a: Torkoal|120/145"
    )
    assert Effect.FLASH_FIRE not in table.battle.opponent_active_pokemon[0].effects
    assert table.value("active", 2, "flash_fire") == 1


def test_poke_env_waits_for_a_beam_that_was_fired_at_once():
    table = Table()
    table.say("|move|p1a: Torkoal|Solar Beam||[still]", "|-prepare|p1a: Torkoal|Solar Beam")
    table.say("|-anim|p1a: Torkoal|Solar Beam|p2a: Whimsicott", "|-damage|p2a: Whimsicott|90/100")
    assert table.battle.active_pokemon[0].preparing and table.value("active", 0, "preparing") == 0


def test_poke_env_keeps_the_recharge_that_was_done():
    table = Table()
    table.say("|-mustrecharge|p1b: Regieleki", "|cant|p1b: Regieleki|recharge")
    assert table.battle.active_pokemon[1].must_recharge and table.value("active", 1, "recharge") == 0


def test_poke_env_lets_damp_stop_its_holder():
    table = Table()
    table.say("|move|p2a: Whimsicott|Protect|p2a: Whimsicott", "|-singleturn|p2a: Whimsicott|Protect")
    # Regieleki's Explosion, not Whimsicott's
    table.say("|cant|p2a: Whimsicott|ability: Damp|Explosion|[of] p1b: Regieleki")
    assert table.battle.opponent_active_pokemon[0].protect_counter == 0
    assert table.value("active", 2, "protect_count") == np.float32(1 / 3)


def test_poke_env_does_not_know_the_own_tera_type_and_keeps_tera_on_the_fainted():
    table = Table()
    assert table.battle.active_pokemon[0].tera_type is None and table.value("own", 0, "tera_type") == find(
        "types", "fire"
    )
    table.say("|-terastallize|p2a: Whimsicott|Steel", "|-damage|p2a: Whimsicott|0 fnt", "|faint|p2a: Whimsicott")
    assert table.battle.opponent_team["p2: Whimsicott"].is_terastallized
    assert table.value("opp", 0, "terastallized") == 0 and table.value("field", 0, "opp_tera_left") == 0


def test_poke_env_misses_what_a_line_says_in_passing():
    table = Table()
    table.say("|-weather|RainDance|[from] ability: Drizzle|[of] p2a: Whimsicott", "|-damage|p2b: Amoonguss|80/100")
    table.say(
        "|-heal|p2b: Amoonguss|86/100|[from] item: Leftovers",
        "|-start|p2b: Amoonguss|typechange|Water|[from] ability: Libero",
    )
    assert table.battle.opponent_active_pokemon[0].ability is None
    assert table.value("opp", 0, "ability") == find("abilities", "drizzle")
    assert table.value("opp", 1, "ability") == find("abilities", "libero")
    assert table.value("opp", 1, "item") == find("items", "leftovers")


def test_an_item_used_up_before_it_is_announced():
    table = Table()
    table.say("|move|p1a: Torkoal|Trick|p2a: Whimsicott", "|-activate|p1a: Torkoal|move: Trick|[of] p2a: Whimsicott")
    table.say("|-enditem|p2a: Whimsicott|White Herb", "|-clearnegativeboost|p2a: Whimsicott|[silent]")
    table.say(
        "|-item|p2a: Whimsicott|White Herb|[from] move: Trick", "|-item|p1a: Torkoal|Choice Scarf|[from] move: Trick"
    )
    assert table.value("opp", 0, "item") == 1 and table.value("opp", 0, "lost_item") == find("items", "whiteherb")


# ------------------------------------------------------------------------------------------------- data and documents


def test_vocabularies_are_those_of_the_installed_package():
    assert vocab_file.build() == (vocab_file.FOLDER / "vocab.json").read_text(encoding="utf-8")


def test_dex_facts_equal_poke_env():
    data = GenData.from_gen(9)
    checked = 0
    for index, name in enumerate(VOCAB["species"]):
        entry = data.pokedex.get(name)
        if entry is None or entry.get("isNonstandard"):
            continue
        first, second, stats, _, number = SPECIES_FACTS[index]
        types = [VOCAB["types"][kind] for kind in (first, second) if kind]
        assert [kind.lower() for kind in entry["types"]] == types, name
        assert [entry["baseStats"][stat] for stat in ("hp", "atk", "def", "spa", "spd", "spe")] == stats, name
        assert entry["num"] == number
        checked += 1
    for index, name in enumerate(VOCAB["moves"]):
        entry = data.moves.get(name)
        if entry is not None and not entry.get("isNonstandard"):
            assert (entry["basePower"], entry["priority"]) == (MOVE_FACTS[index][2], MOVE_FACTS[index][4]), name
            checked += 1
    assert checked > 1500
    for attack, name in enumerate(VOCAB["types"][2:], 2):
        for defence in range(2, len(VOCAB["types"])):
            if "stellar" not in (name, VOCAB["types"][defence]):
                ours, theirs = (PokemonType.from_name(VOCAB["types"][index]) for index in (attack, defence))
                assert VOCAB["chart"][attack][defence] == ours.damage_multiplier(theirs, type_chart=data.type_chart), (
                    ours,
                    theirs,
                )


def test_match_up_of_a_known_case():
    table = Table()
    table.say("|move|p2a: Whimsicott|Moonblast|p1a: Torkoal", "|move|p2b: Amoonguss|Earth Power|p1b: Regieleki")
    assert table.value("active", 0, "move_1_vs_a") == 0.5  # Heat Wave on Grass/Fairy
    assert table.value("active", 0, "move_2_vs_b") == -0.5  # Solar Beam on Grass/Poison
    assert table.value("active", 0, "move_3_vs_a") == 0  # Protect
    assert table.value("active", 2, "move_1_vs_a") == -0.25 and table.value("active", 3, "move_1_vs_b") == 0.5
    table.say("|-terastallize|p2b: Amoonguss|Ground")
    assert table.value("active", 1, "move_1_vs_b") == -1  # Thunderbolt on Ground


def test_the_documented_table_is_up_to_date():
    text = columns_doc.DOC.read_text(encoding="utf-8")
    assert columns_doc.with_table(text) == text, "run: python -m cleanrl_games.envs.vgc columns"
    for group in COLUMNS["groups"]:
        for column in group["ints"] + group["floats"]:
            assert column["doc"] and f"`{column['name']}`" in text
