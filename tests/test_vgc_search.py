"""Looking one turn ahead in VGC: battles rebuilt from a view, worlds drawn from it, the search on top of a policy."""

import pytest

from cleanrl_games.envs.vgc.rebuild import compare_positions
from cleanrl_games.envs.vgc.teams import TeamPool

FORMAT = "gen9vgc2024regg"


# ------------------------------------------------------------------------------------------------- rebuilt battles


@pytest.mark.parametrize("open_team_sheets", [True, False])
def test_a_rebuilt_battle_plays_the_same_turn(open_team_sheets):
    """Positions of seeded battles, the hidden truth filled in: the same choices and dice lead to the same place."""
    teams = list(TeamPool("shipped", FORMAT, split="all").packed)
    found = compare_positions(FORMAT, open_team_sheets, 400, seed=7, teams=teams)
    assert found.positions == 400
    assert found.share >= 0.95, (found.missing, found.different)
    assert not any(what.startswith("error") for what in found.missing), found.missing


def test_generated_teams_are_rebuilt_too():
    """Hundreds of other moves, abilities and items than tournament teams have."""
    teams = list(TeamPool("generated", FORMAT, size=200, seed=1).packed)
    found = compare_positions(FORMAT, True, 400, seed=3, teams=teams)
    assert found.share >= 0.95, (found.missing, found.different)
    assert not any(what.startswith("error") for what in found.missing), found.missing
