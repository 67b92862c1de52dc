"""The quest itself: its bytes come from its sources, the expert finishes it, chance does not, worlds differ, ways are
locked."""

import hashlib
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from cleanrl_games.envs.pokemon import (
    ACTIONS,
    QUEST_MILESTONES,
    QUEST_ROM,
    PokemonEnv,
    QuestExpert,
    baselines,
    expert,
    ram,
)

SOURCES = QUEST_ROM.parent / "quest"


@pytest.fixture(scope="module")
def env():
    made = PokemonEnv(max_steps=400)
    yield made
    made.close()


def press(env, *names):
    for name in names:
        result = env.step(ACTIONS.index(name))
    return result


def test_bytes_are_those_of_the_sources(tmp_path):
    """Rebuilt where the toolchain is; elsewhere the hash of the sources that `make` recorded speaks."""
    rom = QUEST_ROM.read_bytes()
    assert hashlib.sha1(rom).hexdigest() == (QUEST_ROM.parent / "quest.gba.sha1").read_text().strip()
    listed = re.findall(r"^(?:SOURCES|HEADERS)\s*=(.*)$", (SOURCES / "Makefile").read_text(), re.M)
    names = sorted([*" ".join(listed).split(), "quest.ld", "Makefile"])
    assert names == sorted(path.name for path in SOURCES.iterdir())
    joined = b"".join((SOURCES / name).read_bytes() for name in names)
    recorded = (QUEST_ROM.parent / "quest.gba.sources").read_text().strip()
    assert hashlib.sha1(joined).hexdigest() == recorded, (
        "the quest's sources changed: run make in their folder and commit what it builds"
    )
    compiler = shutil.which("arm-none-eabi-gcc")
    version = (
        subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True).stdout.strip() if compiler else None
    )
    # another version of the compiler may rightly build other bytes
    if version == "12.2.1":
        folder = tmp_path / "quest"
        shutil.copytree(SOURCES, folder)
        subprocess.run(
            ["make", "--no-print-directory", "-C", folder, f"OUT={tmp_path}/built.gba"], check=True, capture_output=True
        )
        assert (tmp_path / "built.gba").read_bytes() == rom


def test_python_and_c_agree_on_names():
    state, quest = (SOURCES / "state.h").read_text(), (SOURCES / "quest.h").read_text()

    def names_of(text, first):
        return re.findall(r"\w+", re.search(rf"enum \{{\s*({first}\b[^}}]*)\}}", text).group(1))

    assert tuple(names_of(state, "LEFT_HOME")[:-1]) == QUEST_MILESTONES
    assert [name.removeprefix("MODE_").lower() for name in names_of(state, "MODE_TITLE")] == list(ram.MODES)
    assert [name.lower() for name in names_of(state, "DOWN")] == list(ram.FACINGS)
    assert [name.lower() for name in names_of(state, "NONE")] == list(ram.ELEMENTS)
    assert [name.lower() for name in names_of(quest, "NOBODY")] == list(ram.KINDS)
    assert len(names_of(state, "HOME")[:-1]) == len(ram.QUEST_MAPS)
    assert [name.removeprefix("COMPASS_").lower() for name in names_of(state, "COMPASS_NONE")] == list(ram.COMPASSES)
    assert [name.lower() for name in names_of(state, "NORTH")] == list(ram.TURNS)
    ground = names_of(quest, "T_VOID")
    assert [ground.index(name) for name in ("T_MAT", "T_DOOR", "T_GATE")] == list(expert.EXITS) and ground.index(
        "T_TREE"
    ) == 16
    goals = re.search(r"goals\[\] = \{(.*?)\};", (SOURCES / "people.c").read_text(), re.S).group(1)
    assert len(re.findall(r'"[^"]*"', goals)) == len(ram.QUEST_OBJECTIVES)


@pytest.mark.parametrize("quest_seed", range(0, 65536, 4000))
def test_expert_finishes_within_400_steps(env, quest_seed):
    player = QuestExpert()
    _, info = env.reset(options={"quest_seed": quest_seed})
    total, terminated, truncated, order = 0.0, False, False, []
    while not (terminated or truncated):
        _, reward, terminated, truncated, info = env.step(player.act(env))
        total += reward
        order += [name for name, reached in info["milestones"].items() if reached and name not in order]
    assert terminated and not truncated and total == len(QUEST_MILESTONES) and info["steps"] <= 400
    assert tuple(order) == QUEST_MILESTONES and info["mode"] == "finished"


def test_expert_recovers_from_chance(env):
    """A student's states: half of the actions are random for a while, then the expert takes over."""
    player, rng = QuestExpert(), np.random.default_rng(3)
    made = PokemonEnv(max_steps=1200)
    for quest_seed in (8, 99):
        made.reset(options={"quest_seed": quest_seed})
        done = False
        while not done:
            noisy = made.steps < 300 and rng.random() < 0.5
            *_, terminated, truncated, info = made.step(int(rng.integers(10)) if noisy else player.act(made))
            done = terminated or truncated
        assert terminated, info
    made.close()


@pytest.mark.parametrize("quest_seed", [0, 7])
def test_no_orb_is_a_dead_end(quest_seed):
    """The two orbs that the top bar does not name: much harder, but every defeat makes such a friend stronger."""
    made, player = PokemonEnv(max_steps=4000), QuestExpert()
    for wrong in (1, 2):
        _, info = made.reset(options={"quest_seed": quest_seed})
        while info["milestones_reached"] < 2:
            *_, info = made.step(player.act(made))
        named = made.reader.fields()["objective"] - 4
        kind = ("orb_red", "orb_blue", "orb_green")[(named + wrong) % 3]
        (x, y) = next((x, y) for name, x, y in made.reader.people() if name == kind)
        walk_to(made, (x, y + 1))
        press(made, "UP", "A", "A")
        assert made.reader.fields()["starter"] == (named + wrong) % 3 + 1
        terminated = truncated = False
        while not (terminated or truncated):
            *_, terminated, truncated, info = made.step(player.act(made))
        assert terminated, info
        assert made.reader.fields()["max_hp"] == min(82, 30 + 4 * info["losses"])
    made.close()


def test_chance_does_not_get_far():
    made, rng, reached = PokemonEnv(max_steps=400), np.random.default_rng(0), []
    for episode in range(8):
        made.reset(seed=episode)
        for _ in range(400):
            *_, info = made.step(int(rng.integers(10)))
        reached.append(info["milestones_reached"])
    made.close()
    assert np.mean(reached) / len(QUEST_MILESTONES) < 0.1, reached


def test_battles_are_not_won_by_a_alone(env):
    """Whoever walks like the expert and only presses A in battles loses them, and finishes no world."""
    results = [baselines.play(env, baselines.Walker(), world) for world in (192, 193, 194)]
    assert not any(finished for finished, *_ in results), results
    assert all(losses >= 1 for *_, losses in results), results


def fight(env, quest_seed, until):
    """Plays on with the expert to the first battle of which `until` holds → the fields of RAM there"""
    player = QuestExpert()
    env.reset(options={"quest_seed": quest_seed})
    for _ in range(400):
        fields = env.reader.fields()
        if fields["mode"] == 3 and until(fields):
            return fields
        env.step(player.act(env))
    return None


def choose(env, wanted):
    """Moves the cursor to an entry of the menu and takes it."""
    while wrong := env.reader.fields()["cursor"] ^ wanted:
        press(env, "DOWN" if wrong & 2 else "RIGHT")
    press(env, "A")


@pytest.mark.parametrize("quest_seed", range(0, 12))
def test_types_decide_what_a_blow_is_worth(env, quest_seed):
    fields = fight(env, quest_seed, lambda fields: True)
    own, enemy = ram.ELEMENTS[fields["starter"]], ram.ELEMENTS[fields["enemy_element"]]
    choose(env, expert.ELEMENT_MOVE)
    dealt = fields["enemy_hp"] - env.reader.fields()["enemy_hp"]
    assert dealt in ((12, 13, 14) if expert.BEATS[own] == enemy else (2, 3)), (own, enemy)
    press(env, "A")
    before = env.reader.fields()["enemy_hp"]
    choose(env, expert.TACKLE)
    assert before - env.reader.fields()["enemy_hp"] in (6, 7)


def test_a_shade_is_something_to_run_from(env):
    fields = fight(env, 4, lambda fields: ram.ELEMENTS[fields["enemy_element"]] == "shade")
    for move in (expert.ELEMENT_MOVE, expert.TACKLE):
        before = env.reader.fields()
        choose(env, move)
        after = env.reader.fields()
        assert before["enemy_hp"] - after["enemy_hp"] == 1 and before["hp"] - after["hp"] >= 9
        press(env, "A")
    choose(env, expert.RUN)
    press(env, "A")
    after = env.reader.fields()
    assert (
        after["mode"] == 1
        and after["hp"] == after["max_hp"]
        and not after["losses"]
        and fields["milestones"] == after["milestones"]
    )


def test_a_tonic_heals_once(env):
    fight(env, 2, lambda fields: True)
    choose(env, expert.RUN)  # nobody runs from a duel, and the enemy strikes
    press(env, "A")
    choose(env, expert.RUN)
    press(env, "A")
    hurt, blow = env.reader.fields(), env.reader.world()["enemy_blow"]
    choose(env, expert.TONIC)
    press(env, "A")
    healed = env.reader.fields()
    assert healed["tonics"] == 0 and healed["hp"] >= min(hurt["hp"] + 15, hurt["max_hp"]) - blow
    choose(env, expert.TONIC)
    assert env.reader.fields()["hp"] < healed["hp"]


def test_worlds_differ_in_roads_houses_and_layout(env):
    """Not only in dice: where roads lead, who has the pass, what has to be crossed in which order."""
    player, starts, people, towns, mazes, routes = QuestExpert(), set(), set(), set(), set(), set()
    kinds = {
        name: set()
        for name in ("route_turn", "forest_turn", "pass_house", "rival_element", "scout_element", "leader_element")
    }
    for quest_seed in range(20, 32):
        _, info = env.reset(options={"quest_seed": quest_seed})
        starts.add((info["player"]["x"], info["player"]["y"]))
        fields = env.reader.fields() | env.reader.world()
        for name, values in kinds.items():
            values.add(fields[name])
        while info["map"] != "glow_wood":
            *_, info = env.step(player.act(env))
            if info["map"] == "emberly" and info["milestones_reached"] == 1:
                towns.add(env.reader.tiles().tobytes())
                people.add(tuple(env.reader.people()))
            if info["map"] == "route_1":
                routes.add(env.reader.tiles().tobytes())
        mazes.add((env.reader.tiles() >= 16).tobytes())
    assert len(starts) >= 3 and len(people) >= 10 and len(towns) >= 10 and len(mazes) == 12 and len(routes) == 12
    assert {name: len(values) for name, values in kinds.items()} == {**dict.fromkeys(kinds, 3), "pass_house": 2}


def test_the_same_world_twice_is_the_same(env):
    tiles = []
    for _ in range(2):
        env.reset(options={"quest_seed": 77})
        press(env, *["LEFT"] * 3)
        tiles.append((env.reader.tiles().tobytes(), env.reader.people()))
    assert tiles[0] == tiles[1]


def walk_to(env, goal):
    """Straight to a tile by the expert's planner, whatever the objective is."""
    for _ in range(60):
        fields = env.reader.fields()
        here = fields["x"], fields["y"]
        if here == goal or fields["mode"] != 1:
            return
        env.step(expert.first_action(env.reader.tiles(), env.reader.people(), here, goal, avoid_grass=False))


def find(env, tile):
    y, x = np.argwhere(env.reader.tiles() == tile)[0]
    return int(x), int(y)


def test_locked_ways(env):
    _, info = env.reset(options={"quest_seed": 6})
    walk_to(env, find(env, 6))
    assert env.reader.fields()["mode"] == 2, "the door of home says: talk to mother first"
    *_, info = press(env, "A")
    assert info["map"] == "home" and info["milestones_reached"] == 0
    player = QuestExpert()
    while info["milestones_reached"] < 1:
        *_, info = env.step(player.act(env))
    gate = find(env, 13)
    ((x, y),) = [(x, y) for kind, x, y in env.reader.people() if kind == "guard"]
    assert abs(gate[0] - x) + abs(gate[1] - y) == 1, "no pass, no route"
    assert (
        expert.first_action(
            env.reader.tiles(), env.reader.people(), (info["player"]["x"], info["player"]["y"]), gate, False
        )
        is None
    )


def first_bars(env, quest_seed):
    """→ {(objective, map): the top bar when it is first seen} of the expert's run"""
    player, bars = QuestExpert(), {}
    obs, info = env.reset(options={"quest_seed": quest_seed})
    while info["milestones_reached"] < len(QUEST_MILESTONES):
        if info["mode"] == "walk":
            bars.setdefault((info["objective"], info["map"]), obs[:16].copy())
        obs, *_, info = env.step(player.act(env))
    return bars


def test_the_screen_shows_objective_and_progress(env):
    """The top bar (16 rows) changes with the objective and the milestones: in words, and as a picture."""
    bars = first_bars(env, 12)
    objectives = {objective for objective, _ in bars}
    assert len({bar[:8, 8:184].tobytes() for bar in bars.values()}) == len(objectives) >= 13, (
        "every objective reads differently"
    )
    assert len({bar[:, 192:208].tobytes() for bar in bars.values()}) == len(objectives), "and has a picture of its own"
    assert all(baselines.read_needle(np.concatenate([bar] * 10)) is None for bar in bars.values()), (
        "no needle at the default"
    )


def test_needle_is_an_option():
    """path: a cheapest step, wherever a student has gone. bearing: the longer side of the way, through walls. none:
    nothing."""
    rng, player, seen = np.random.default_rng(5), QuestExpert(), {name: set() for name in ram.COMPASSES}
    for compass in ram.COMPASSES:
        made = PokemonEnv(max_steps=500, compass=compass)
        _, info = made.reset(options={"quest_seed": 5})
        assert info["compass"] == compass
        done = False
        while not done:
            fields = made.reader.fields()
            if fields["mode"] == 1:
                here, goal = (fields["x"], fields["y"]), (fields["target_x"], fields["target_y"])
                needle = baselines.read_needle(made.observation)
                seen[compass].add(needle)
                if compass == "path":
                    way = expert.first_action(
                        made.reader.tiles(), made.reader.people(), here, goal, fields["objective"] != 10, needle
                    )
                    assert way == needle, fields
                elif compass == "bearing":
                    assert needle == expert.straight(goal[0] - here[0], goal[1] - here[1]), fields
            noisy = made.steps < 150 and rng.random() < 0.4
            *_, terminated, truncated, _ = made.step(int(rng.integers(10)) if noisy else player.act(made))
            done = terminated or truncated
        assert terminated
        made.close()
    assert seen["none"] == {None} and len(seen["path"]) == len(seen["bearing"]) == 4
    with pytest.raises(ValueError, match="no compass 'north'"):
        PokemonEnv(compass="north")


def trail(env):
    return {(int(x), int(y)) for y, x in np.argwhere(env.reader.tiles() == 9)}


def test_mushrooms_are_picked_so_what_is_left_leads_on(env):
    """They mark the way from the entrance to the charm, then from there to the way out. Each step on the trail takes
    one, and nothing else does; whoever comes back finds it grown again."""
    player = QuestExpert()
    _, info = env.reset(options={"quest_seed": 5})
    while info["map"] != "glow_wood":
        *_, info = env.step(player.act(env))
    whole, found = trail(env), False
    assert len(whole) > 10
    while info["map"] == "glow_wood":
        before = trail(env)
        *_, info = env.step(player.act(env))
        here = (info["player"]["x"], info["player"]["y"])
        if info["map"] == "glow_wood" and info["milestones"]["CHARM_FOUND"] == found:
            assert trail(env) == before - {here}
        if info["milestones"]["CHARM_FOUND"] and not found:
            found = True
            assert len(before) == 1 and len(trail(env)) > 3, "one grows under the charm; the second trail begins"
    assert len(before) <= 1, "the last step leaves the wood"

    _, info = env.reset(options={"quest_seed": 5})
    while info["map"] != "glow_wood":
        *_, info = env.step(player.act(env))
    inside = info["player"]["facing"]
    back = {"up": "DOWN", "left": "RIGHT", "right": "LEFT"}[inside]
    *_, info = env.step(player.act(env))
    assert len(trail(env)) == len(whole) - 1
    while info["map"] == "glow_wood":
        *_, info = press(env, back)
    *_, info = press(env, inside.upper())
    assert info["map"] == "glow_wood" and trail(env) == whole


def test_a_plan_in_the_corner_shows_which_roof_is_where(env):
    """In the town only, in the roofs' colours, also after the large map was looked at."""
    player, roofs = QuestExpert(), {20: (200, 60, 60), 21: (50, 100, 210), 22: (190, 140, 30), 24: (40, 120, 60)}
    for quest_seed in (5, 12):
        obs, info = env.reset(options={"quest_seed": quest_seed})
        assert (obs[16:48, 192:] == obs[16, 192]).all(), "at home there is nothing"
        while info["map"] != "emberly":
            obs, *_, info = env.step(player.act(env))
        press(env, "START")
        again, *_ = press(env, "B")
        assert np.array_equal(again, obs)
        tiles, shown = env.reader.tiles(), {}
        for corner, (x, y) in enumerate(((2, 2), (13, 2), (2, 8), (13, 8))):
            left, top = 200 + 24 * (corner % 2), 16 + 16 * (corner // 2)
            square = obs[top : top + 8, left : left + 16].reshape(-1, 3).astype(int)
            assert (square == square[0]).all()
            shown[int(tiles[y, x])] = square[0]
        assert set(shown) == set(roofs)
        for roof, colour in shown.items():
            nearest = min(roofs, key=lambda other: np.abs(colour - roofs[other]).sum())
            assert nearest == roof, (roof, colour)


def test_the_map_on_start_shows_where_one_is(env):
    before, info = env.reset(options={"quest_seed": 9})
    shown, *_, info = press(env, "START")
    assert info["mode"] == "map" and env.unwrapped.reader.fields()["mode"] == 6
    x, y, width = (env.reader.fields()[name] for name in ("x", "y", "width"))
    left, top = 8 * ((30 - width) // 2 + x), 8 * (2 + y)
    assert (np.abs(shown[top + 3, left + 3].astype(int) - [204, 70, 62]) < 12).all(), "you are the red square"
    assert QuestExpert().act(env) == ACTIONS.index("B")
    press(env, "LEFT", "UP")
    assert env.reader.fields()["mode"] == 6, "only START, A and B close it"
    obs, *_, info = press(env, "B")
    assert info["mode"] == "walk" and np.array_equal(obs[16:], before[16:])


def test_what_one_faces_has_a_frame(env):
    env.reset(options={"quest_seed": 5})
    for button in ("LEFT", "UP", "RIGHT", "DOWN"):
        obs, *_, info = press(env, button)
        dx, dy = expert.WAYS[ACTIONS.index(info["player"]["facing"].upper())]
        frame = obs[80 + 16 * dy :, 112 + 16 * dx :][1, 2:6].astype(int)
        assert (np.abs(frame - [240, 160, 200]) < 12).all(), (info, frame)


def test_baselines_finish_nothing(env):
    for name in ("random", "masher", "follower"):
        finished, milestones, *_ = baselines.play(env, baselines.PLAYERS[name](0), 200)
        assert not finished and milestones <= 4, name


def test_baselines_are_a_table_and_a_line_for_machines(capsys):
    baselines.main(["--worlds", "1", "--max-steps", "30", "--players", "masher", "expert"])
    *table, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    assert set(figures) == {f"{what}/{who}" for what in ("success", "milestones") for who in ("masher", "expert")}
    assert figures["success/expert"] == 0.0 and figures["milestones/expert"] >= 1.0, (
        "thirty steps lead out of the house"
    )
    assert "0 of 1" in table[1] and table[2].split()[-3] == f"{figures['milestones/expert']:.2f}"
    with pytest.raises(SystemExit):
        baselines.main(["--worlds", "0"])


def test_regions_have_colours_of_their_own(env):
    player, colours = QuestExpert(), {}
    obs, info = env.reset(options={"quest_seed": 5})
    while info["map"] != "gym":
        if info["mode"] == "walk":
            colours.setdefault(info["map"], []).append(obs[16:].reshape(-1, 3).mean(0))
        obs, *_, info = env.step(player.act(env))
    means = {
        name: np.mean(rows, 0)
        for name, rows in colours.items()
        if name in ("emberly", "route_1", "glow_wood", "highmoor")
    }
    for name, mean in means.items():
        assert all(np.abs(mean - other).max() > 20 for key, other in means.items() if key != name), name


def test_text_boxes_wait_for_a_and_the_arrow_keys_do_nothing_there(env):
    player = QuestExpert()
    env.reset(options={"quest_seed": 30})
    while env.reader.fields()["mode"] != 2:
        env.step(player.act(env))
    before = env.reader.fields()
    obs = press(env, "LEFT", "UP", "START", "SELECT")[0]
    after = env.reader.fields()
    assert after["mode"] == 2 and (after["x"], after["y"]) == (before["x"], before["y"])
    assert (obs[112:] == obs[-1, 0]).all(-1).mean() > 0.7, "a panel covers the lower part of the screen"
    press(env, "A")
    assert env.reader.fields()["mode"] == 1


def test_nothing_in_the_folder_names_another_owner():
    for path in SOURCES.iterdir():
        text = path.read_text()
        assert not re.search(r"pok[eé]mon|nintendo|game ?freak", text, re.I), path.name
        assert path.suffix in (".ld", "") or "SPDX-License-Identifier: MIT" in text, path.name
