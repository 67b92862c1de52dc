"""Looking one turn ahead in VGC: battles rebuilt from a view, worlds drawn from it, the search on top of a policy."""

import asyncio
import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from poke_env import AccountConfiguration, ServerConfiguration
from poke_env.player import RandomPlayer, SimpleHeuristicsPlayer

from cleanrl_games import ppo_vgc_mdbo as script
from cleanrl_games.envs.vgc import VGCPlayer, mdbo, search
from cleanrl_games.envs.vgc.match import play_battles
from cleanrl_games.envs.vgc.parity import trace
from cleanrl_games.envs.vgc.rebuild import compare_positions
from cleanrl_games.envs.vgc.search import Asked, Search, SearchPlayer, SearchSettings, parse_search, solve
from cleanrl_games.envs.vgc.servers import HOST, local_servers
from cleanrl_games.envs.vgc.teams import TeamPool
from cleanrl_games.envs.vgc.vocabulary import LAYOUT
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.tools import arena, evaluate, play_showdown
from tests.test_vgc_features import LEADS_12, edited, nothing, other_secrets_in_the_back, other_spread_in_the_back, told
from tests.test_vgc_player import free_port, play

FORMAT = "gen9vgc2024regg"


@pytest.fixture(scope="module")
def agent():
    torch.manual_seed(1)
    return script.make_agent({"width": 16, "embedding_width": 16, "lstm_size": 16, "attention_layers": 1}).eval()


@pytest.fixture(scope="module")
def model(agent, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.zip"
    args = script.Args(width=16, embedding_width=16, lstm_size=16, battle_format=FORMAT)
    script.save_model(path, agent, args)
    return path


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


# ---------------------------------------------------------------------------------------------------------- the maths


def test_the_mixture_is_an_equilibrium():
    """Rock, paper, scissors where rock against scissors wins twice as much: the known mixture."""
    payoffs = np.array([[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])
    assert np.allclose(solve(payoffs[None], 3000), [0.25, 0.5, 0.25], atol=0.02)
    dominated = np.array([[1.0, 0.2], [0.1, 0.0]])
    assert solve(dominated[None])[0] > 0.99


def test_only_the_opponent_knows_the_world():
    """Two worlds, in each another column punishes a row. Against an opponent who knows the world the third row, which
    is safe in both, is the best. An average over the worlds would prefer the first two."""
    first = np.array([[1.0, -1.0], [1.0, 1.0], [0.3, 0.3]])
    second = np.array([[1.0, 1.0], [-1.0, 1.0], [0.3, 0.3]])
    assert solve(np.stack([first, second]), 2000)[2] > 0.95


def test_weight_is_the_share_of_the_equilibrium():
    policy, values = np.array([0.5, 0.3, 0.2]), [np.array([[1.0, 0.9], [-1.0, -0.8]])]  # the first action is the best
    for weight, expected in ((0.0, [0.5, 0.3, 0.2]), (0.25, [0.625, 0.225, 0.15]), (1.0, [1.0, 0.0, 0.0])):
        searching = SimpleNamespace(settings=SearchSettings(weight=weight))
        assert np.allclose(Search.mixture(searching, policy, np.array([0, 1]), values), expected, atol=0.01)


def test_what_the_opponent_values_counts_against_us():
    """Two pairs of actions. After the first only we are asked and value it .6; after the second both are, and value it
    .4 and .8, each from its own side; a third one ends the battle."""
    world = SimpleNamespace(process=0, number=0, actions=np.array([7, 8, 9]), memory=torch.full((2, 1), 2.0))
    results = [[0, -1, 0.0], [1, 2, 0.0], [-1, -1, -1.0]]
    heard = []
    searching = SimpleNamespace(
        settings=SearchSettings(),
        simulators=[None],
        counts=Counter(),
        agent=SimpleNamespace(initial_state=lambda count: torch.zeros(count, 2, 1)),
        ask=lambda messages: [({"rows": [[{"results": results}]]}, np.zeros(3))],
        value=lambda frames, memories: heard.append(memories[:, 0, 0].tolist()) or np.array([0.6, 0.4, 0.8]),
    )
    asked = SimpleNamespace(key="a", fresh=False, memory=torch.full((2, 1), 1.0))
    Search.play(searching, [asked], [[world]], [np.array([5])], 0.0)
    assert np.allclose(world.values, [[0.6, -0.2, -1.0]])
    assert heard == [[1.0, 1.0, 2.0]], "each seat's frame is judged with that seat's memory"


# ----------------------------------------------------------------------------------------------------- nothing leaks


def distributions(stream: list[dict], looking: Search, decisions: int) -> list:
    """What one seat was told, and what the search would play at its first decisions."""
    found, lines, request = [], [], None
    for entry in stream:
        if "lines" in entry:
            lines += entry["lines"]
            found.append(told(entry))
        elif "request" in entry:
            request = entry["request"]
            lines.append(f"|request|{json.dumps(request)}")
            found.append(entry)
        else:
            legal = mdbo.mask(request)
            fresh = bool(request.get("teamPreview"))
            asked = Asked(
                key="0",
                role="p1",
                lines=lines,
                fresh=fresh,
                retry=False,
                policy=legal / legal.sum(),
                memory=looking.agent.initial_state(1)[0],
            )
            found.append(looking.run([asked])[0])
            lines, decisions = [], decisions - 1
            if not decisions:
                break
    return found


@pytest.mark.parametrize(
    "change, open_team_sheets",
    [(other_spread_in_the_back, True), (nothing, True), (other_secrets_in_the_back, False)],
)
def test_hidden_things_change_no_searched_distribution_before_they_are_told(agent, change, open_team_sheets):
    """As the frames are tested: hidden things exchanged, and as long as a player is told the same, it plays the
    same."""
    teams = TeamPool("shipped", FORMAT, split="all").packed[:6]
    pairs = [[teams[i], teams[i + 1]] for i in range(4)]
    altered = [[mine, edited(theirs, change)] for mine, theirs in pairs]
    line_ups = [LEADS_12[0], LEADS_12[0]], [LEADS_12[0], LEADS_12[-1 if change is nothing else 0]]
    job = {"format": FORMAT, "openTeamSheets": open_team_sheets, "seed": 9, "battles": 4, "turnCap": 12}
    battles = zip(
        trace(job | {"pairs": pairs, "previews": line_ups[0]}), trace(job | {"pairs": altered, "previews": line_ups[1]})
    )
    looking = Search(agent, SearchSettings(worlds=2, actions=3, weight=1.0, processes=1), FORMAT, seed=5)
    compared = 0
    for first, second in battles:
        a, b = (distributions(battle["sides"][0], looking, 3) for battle in (first, second))
        for one, other in zip(a, b):
            if isinstance(one, dict):
                if one != other:
                    break
            else:
                assert (one is None) == (other is None)
                assert one is None or np.array_equal(one, other)
                compared += one is not None
    looking.close()
    assert compared >= 6
    assert looking.counts["searched"] > compared / 2


# --------------------------------------------------------------------------------------------------------- the player


class HealthSearch(Search):
    """Values a position by what both sides have left: no network has to be trained to see whether the search works."""

    def value(self, frames, memories):
        field, at = LAYOUT["field"], LAYOUT["field"].floats.index
        left = frames["floats"][:, field.float_at : field.float_at + len(field.floats)]
        own, opp = LAYOUT["own"], LAYOUT["opp"]
        hp = [
            sum(frames["floats"][:, group.float_index(row, "hp")] for row in range(rows))
            for group, rows in ((own, 4), (opp, 6))
        ]
        return np.tanh(0.2 * (hp[0] - hp[1]) + 2 * (left[:, at("own_left")] - left[:, at("opp_left")]))


@pytest.mark.slow
def test_search_makes_a_player_of_a_policy_that_knows_nothing(agent):
    """An untrained network beats nobody; with every position valued by health, its search beats it."""
    player = SearchPlayer(
        script.Player(agent, 2), SearchSettings(worlds=1, actions=10, weight=1.0, preview=0), FORMAT, seed=3
    )
    player.search.__class__ = HealthSearch
    scores, _ = play_battles(player, script.Player(agent, 4), 8, FORMAT, seed=11, at_once=8, turn_cap=30)
    player.close()
    assert scores.mean() >= 0.75, scores  # 0.5 without search
    counts = player.counts
    assert counts["searched"] > 0.7 * counts["decisions"]
    assert not any("error" in what for what in counts), counts


def test_what_cannot_be_rebuilt_is_left_to_the_policy_and_counted(agent, monkeypatch):
    """Lines of a battle whose preview the search never saw, and a process that is gone: it plays on, and says so."""
    player = SearchPlayer(script.Player(agent, 2), SearchSettings(worlds=2, actions=2, processes=1), FORMAT, seed=3)
    plain = Search.run

    def without_previews(self, asked):
        for decision in asked:
            decision.lines = [line for line in decision.lines if '"teamPreview"' not in line]
        if self.counts["decisions"] > 10 and not self.counts["processes that ended"]:
            self.simulators[0].process.kill()
        return plain(self, asked)

    monkeypatch.setattr(Search, "run", without_previews)
    scores, _ = play_battles(player, "random", 3, FORMAT, seed=2, at_once=3, turn_cap=12)
    player.close()
    assert len(scores) == 3
    assert player.counts["searched"] == 0
    assert player.counts["not rebuilt: a battle that was joined after its preview"] > 3
    assert player.counts["processes that ended"] == 1


def test_a_time_limit_leaves_worlds_out(agent):
    settings = SearchSettings(worlds=6, actions=6, processes=1, seconds=0.001)
    player = SearchPlayer(script.Player(agent, 2), settings, FORMAT, seed=3)
    play_battles(player, "random", 1, FORMAT, seed=2, turn_cap=4)
    player.close()
    assert player.counts["a world was left out: no time"] > 0 and player.counts["searched"] > 0


# ----------------------------------------------------------------------------------------------------------- the tools


@pytest.mark.parametrize(
    "text, said",
    [
        ("worlds=0", "worlds should be 1 to 256"),
        ("world=3", "'world=3' is no setting"),
        ("worlds=many", "worlds should be a whole number"),
        ("weight=2", "weight should be 0 to 1"),
        ("actions", "actions should be a whole number"),
    ],
)
def test_a_bad_search_is_a_sentence(text, said, model):
    with pytest.raises(BadInput, match=said):
        parse_search(text)
    with pytest.raises(BadInput, match=said):
        evaluate.main([str(model), "--search", text])


def test_a_good_search_is_read():
    assert parse_search("") is None
    assert parse_search("worlds=2 actions=3, weight=0.25") == SearchSettings(worlds=2, actions=3, weight=0.25)
    assert parse_search("worlds=2", seconds=5.0).seconds == 5.0 and parse_search("seconds=1", seconds=5.0).seconds == 1


def test_evaluate_and_arena_search(model, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(search, "ITERATIONS", 20)
    words = ["--episodes", "2", "--search", "worlds=1 actions=2"]
    (result,) = evaluate.main([str(model), "--against", "random", *words])
    assert result["player"] == "small + search" and result["episodes"] == 2
    assert "search: " in capfd.readouterr().err
    rows = arena.main([str(model), "--no-baselines", "--jobs", "0", "--output", str(tmp_path / "arena"), *words])
    assert {row["player"] for row in rows} == {"small", "small + search"}


def test_other_games_have_no_search():
    with pytest.raises(BadInput, match="--search is for VGC"):
        evaluate.main(["nh", "--game", "osrs", "--search", "worlds=1"])


@pytest.mark.parametrize(
    ("opponent", "battles", "settings"),
    [
        (RandomPlayer, 2, "worlds=2 actions=3"),
        pytest.param(SimpleHeuristicsPlayer, 20, "worlds=4 actions=8", marks=pytest.mark.slow),
    ],
)
def test_search_on_a_server(agent, caplog, opponent, battles, settings):
    """Over a websocket: no choice is refused as invalid, battles end, and what they left behind is forgotten."""
    teams = TeamPool("shipped", FORMAT).packed[:2]
    policy = play_showdown.SearchingPolicy(
        agent, False, 1, parse_search(settings, seconds=play_showdown.SEARCH_SECONDS), FORMAT
    )
    with local_servers(1, free_port()) as (address,):
        server = ServerConfiguration(address, f"http://{HOST}:1/")
        options = {"battle_format": FORMAT, "server_configuration": server}
        ours = VGCPlayer(policy, team=teams[0], account_configuration=AccountConfiguration("ours", None), **options)
        theirs = opponent(
            team=teams[1],
            account_configuration=AccountConfiguration("theirs", None),
            accept_open_team_sheet=True,
            **options,
        )
        asyncio.run(play(ours, theirs, battles, seconds=300 * battles))
    assert ours.n_finished_battles == battles and ours.failure is None
    assert policy.search.counts["searched"] > 2 * battles and not policy.search.after
    assert not any("error" in what for what in policy.search.counts), policy.search.counts
    errors = [r for r in caplog.records if r.levelno >= 25 and "ours" in r.name and "close frame" not in r.getMessage()]
    assert not errors, errors
    policy.search.close()
