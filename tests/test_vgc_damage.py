"""What a player works out in the head: damage and order of moves, by hand and against the real simulator."""

import pytest

from cleanrl_games.envs.vgc import TeamPool, damage
from cleanrl_games.envs.vgc.parity import FORMATS, frame, trace
from cleanrl_games.envs.vgc.vocabulary import LAYOUT, columns_of
from tests.test_vgc_features import Table, teams_of

# ------------------------------------------------------------------------------------------------ the simulator judges


def test_real_hits_lie_within_the_rolls_and_sure_orders_are_true():
    found = damage.compare_hits(FORMATS[1], True, 500, seed=2, teams=teams_of(FORMATS[1]))
    assert found.hits >= 500 and found.share >= damage.ENOUGH, damage.explain(found)
    assert found.sure > 500 and not found.wrong, found.wrong
    assert found.likely > 100 and found.likely_right > 0.6 * found.likely


def test_sure_orders_are_true_with_closed_sheets():
    found = damage.compare_hits(FORMATS[0], False, 250, seed=3, teams=teams_of(FORMATS[0]))
    assert found.sure > 100 and not found.wrong, found.wrong
    assert found.likely > found.sure, "an item that is not known leaves most orders open"


@pytest.mark.slow
@pytest.mark.parametrize("battle_format", FORMATS)
def test_twenty_thousand_real_hits(battle_format):
    teams = [*TeamPool("shipped", battle_format, split="all").packed]
    teams += TeamPool("generated", battle_format, size=600, seed=1).packed
    found = damage.compare_hits(battle_format, True, 7000, seed=1, teams=teams)
    assert found.share >= damage.ENOUGH and not found.wrong, (damage.explain(found), found.wrong)


def test_misses_are_put_down_to_what_they_have_in_common():
    about = [["move avalanche", "user's item leftovers"], ["move avalanche"], ["move tackle", "user's item leftovers"]]
    found = damage.Hits(hits=20, within=17, misses=[{"about": what} for what in about])
    found.seen.update({"move avalanche": 2, "user's item leftovers": 9, "move tackle": 9})
    assert damage.explain(found) == [("move avalanche", 2, 2), ("move tackle", 1, 9)]


def test_most_frames_have_damage_in_them():
    """So that the tests of what is hidden compare more than zeros."""
    job = {"format": FORMATS[0], "openTeamSheets": True, "teams": teams_of(FORMATS[0]), "seed": 4, "battles": 4}
    frames = [
        frame(entry)[1]
        for battle in trace(job | {"turnCap": 20, "quiet": True})
        for side in battle["sides"]
        for entry in side
    ]
    turns = [floats for floats in frames if not floats[LAYOUT["field"].float_index(0, "preview")]]
    values = columns_of(turns[0][None], "damage")
    assert values.shape == (1, 16, 11)
    filled = [columns_of(floats[None], "damage")[0] for floats in turns]
    assert sum((rows[:8] > 0).any() and (rows[8:] > 0).any() for rows in filled) > 0.8 * len(filled)


# -------------------------------------------------------------------------------------------------------------- by hand

# Our Torkoal and Regieleki have 145 HP, 100 in all stats but Speed (40 and 150), Drought and Charcoal, and no sun yet.
# The opponent's Whimsicott (base 60 67 85 77 75 116) is assumed to have 155 HP, 112 Def, 124 SpA, 102 SpD.


def hit(table: Table, slot: int, move: int, where: str = "a") -> tuple[float, float]:
    """Low and high roll of a move in HP of a target that is unhurt: Whimsicott or our own"""
    most = 145 if slot > 1 else 155
    row = 4 * slot + move - 1
    return tuple(round(float(table.value("damage", row, f"{name}_{where}")) * most, 2) for name in ("low", "high"))


def first(table: Table, slot: int, where: str = "a") -> float:
    return round(float(table.value("active", slot, f"first_vs_{where}")), 4)


def physical(table: Table, **more) -> None:
    """Regieleki with Wild Charge and Extreme Speed"""
    entry = table.request["side"]["pokemon"][1]
    entry.update({"moves": ["wildcharge", "extremespeed", "protect", "swift"]} | more)
    table.ask(table.request)


def test_a_plain_hit_and_a_screen():
    table = Table()
    # 22 · 90 · 100 / 102 / 50 + 2 = 40; rolls 34 and 40; STAB 51 and 60; Grass resists: 25 and 30
    assert hit(table, 1, 1) == (25, 30) and table.value("damage", 4, "ko_a") == 0
    table.say("|-sidestart|p2: p2|move: Light Screen")
    assert hit(table, 1, 1) == (17, 20)  # · 2732 / 4096
    table.say("|-sideend|p2: p2|move: Light Screen", "|-sidestart|p2: p2|Reflect")
    assert hit(table, 1, 1) == (25, 30)


def test_a_spread_move_in_the_sun_and_its_chance_of_a_knock_out():
    table = Table()
    # Heat Wave with Charcoal has 114: 22 · 114 · 100 / 102 / 50 + 2 = 51, on two 38; 32 and 38; STAB 48 and 57; double
    assert hit(table, 0, 1) == (96, 114)
    table.say("|-weather|SunnyDay|[from] ability: Drought|[of] p1a: Torkoal")
    # 38 · 1.5 = 57; 48 and 57; STAB 72 and 85; double. 155 HP need a roll of 92 or more: nine of sixteen.
    assert hit(table, 0, 1) == (144, 170) and table.value("damage", 0, "ko_a") == 9 / 16
    table.say("|-weather|none", "|faint|p2b: Amoonguss")
    assert hit(table, 0, 1) == (128, 152)  # alone, no quarter is lost
    table.say("|-item|p2a: Whimsicott|Focus Sash", "|-damage|p2a: Whimsicott|50/100", "|-heal|p2a: Whimsicott|100/100")
    table.say("|-weather|SunnyDay|[from] ability: Drought|[of] p1a: Torkoal")
    assert table.value("damage", 0, "low_a") > 1 and table.value("damage", 0, "ko_a") == 0  # the sash holds


def test_burn_halves_physical_hits_alone():
    table = Table()
    physical(table)
    # 22 · 90 · 100 / 112 / 50 + 2 = 37; 31 and 37; STAB 46 and 55; half 23 and 27
    assert hit(table, 1, 1) == (23, 27)
    heat_wave = hit(table, 0, 1)
    for entry in table.request["side"]["pokemon"]:
        entry["condition"] = "145/145 brn"
    table.ask(table.request)
    assert hit(table, 1, 1) == (11, 13) and hit(table, 0, 1) == heat_wave


@pytest.mark.parametrize("tera, rolls", [("Electric", (34, 40)), ("Fire", (25, 30)), ("Stellar", (34, 40))])
def test_stab_of_the_terastallized(tera, rolls):
    """Twice in its own type, as before in another; Stellar doubles each own type once."""
    table = Table()
    table.request["side"]["pokemon"][1].update(teraType=tera, terastallized=tera)
    table.ask(table.request)
    assert hit(table, 1, 1) == rolls
    table.say("|move|p1b: Regieleki|Thunderbolt|p2a: Whimsicott", "|-damage|p2a: Whimsicott|81/100")
    table.say("|-heal|p2a: Whimsicott|100/100")
    assert hit(table, 1, 1) == ((25, 30) if tera == "Stellar" else rolls)


def test_a_known_move_of_theirs():
    table = Table()
    assert hit(table, 2, 1) == (0, 0)  # nobody knows its moves
    table.say("|move|p2a: Whimsicott|Moonblast|p1a: Torkoal")
    # 22 · 95 · 124 / 100 / 50 + 2 = 53; 45 and 53; STAB 67 and 79; Fire resists: 33 and 39; Electric does not
    assert hit(table, 2, 1) == (33, 39) and hit(table, 2, 1, "b") == (67, 79)
    table.say("|-terastallize|p1a: Torkoal|Dragon")
    table.request["side"]["pokemon"][0].update(teraType="Dragon", terastallized="Dragon")
    table.ask(table.request)
    assert hit(table, 2, 1) == (134, 158)  # on Dragon


def test_what_does_nothing():
    table = Table()
    physical(table)
    assert hit(table, 1, 2)[0] > 0  # Extreme Speed
    table.say("|-fieldstart|move: Psychic Terrain")
    assert hit(table, 1, 2) == (0, 0) and hit(table, 1, 1) == (23, 27)
    table.say("|-terastallize|p2a: Whimsicott|Ground")
    assert hit(table, 1, 1) == (0, 0)  # Electric on Ground
    table.say("|-start|p2b: Amoonguss|Substitute")
    assert hit(table, 1, 1, "b") == (0, 0)


def test_who_is_first():
    """Whimsicott's Speed lies between 108 and 184; with an item that nobody knows, between 54 and 276."""
    table = Table()
    assert first(table, 0) == -1 and first(table, 2) == 1  # 40
    # likely only: as far above the middle of 108 to 184 as 150 is, of the way that is possible, and never more than .9
    likely = round(0.9 * (2 * 150 - 108 - 184) / (184 - 108), 4)
    assert first(table, 1) == likely and first(table, 2, "b") == -likely
    assert first(table, 0, "ally") == -1 and first(table, 1, "ally") == 1
    table.say("|-fieldstart|move: Trick Room|[of] p2a: Whimsicott")
    assert first(table, 0) == 1 and first(table, 1) == -likely and first(table, 0, "ally") == 1
    table.say("|-fieldend|move: Trick Room", "|-sidestart|p1: p1|move: Tailwind")
    assert first(table, 1) == 1  # 300
    table.say("|-sideend|p1: p1|move: Tailwind", "|-item|p2a: Whimsicott|Choice Scarf|[from] ability: Frisk")
    assert first(table, 1) == -1  # 162 at least
    table.say("|-status|p2a: Whimsicott|par")
    assert first(table, 1) == 1  # 138 at most


def test_priority_comes_before_speed():
    table = Table()
    physical(table)
    table.say("|-item|p2a: Whimsicott|Choice Scarf|[from] ability: Frisk")
    assert first(table, 1) == -1
    assert table.value("damage", 4, "first_a") == -1 and table.value("damage", 5, "first_a") == 1  # Extreme Speed
    table.say("|-fieldstart|move: Trick Room|[of] p2a: Whimsicott", "|-ability|p2a: Whimsicott|Prankster")
    table.say("|move|p2a: Whimsicott|Moonblast|p1a: Torkoal", "|move|p2a: Whimsicott|Taunt|p1a: Torkoal")
    assert first(table, 2) == -1  # in Trick Room Torkoal is first
    # but not before Taunt
    assert table.value("damage", 8, "first_a") == -1 and table.value("damage", 9, "first_a") == 1
    table.say("|move|p2b: Amoonguss|Trick Room|p2b: Amoonguss")
    assert table.value("damage", 12, "first_a") == -1  # priority -7
