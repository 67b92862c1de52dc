"""The quest itself: its bytes come from its sources, the expert finishes it, chance does not, worlds differ, ways are locked."""

import hashlib
import re
import shutil
import subprocess

import numpy as np
import pytest

from cleanrl_games.envs.pokemon import ACTIONS, QUEST_MILESTONES, QUEST_ROM, PokemonEnv, QuestExpert, expert, ram

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
    assert hashlib.sha1(joined).hexdigest() == recorded, "the quest's sources changed: run make in their folder and commit what it builds"
    compiler = shutil.which("arm-none-eabi-gcc")
    version = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True).stdout.strip() if compiler else None
    # another version of the compiler may rightly build other bytes
    if version == "12.2.1":
        folder = tmp_path / "quest"
        shutil.copytree(SOURCES, folder)
        subprocess.run(["make", "--no-print-directory", "-C", folder, f"OUT={tmp_path}/built.gba"], check=True, capture_output=True)
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
    assert len(names_of(state, "HOME")) == len(ram.QUEST_MAPS)
    ground = names_of(quest, "T_VOID")
    assert [ground.index(name) for name in ("T_MAT", "T_DOOR", "T_GATE")] == list(expert.EXITS) and ground.index("T_TREE") == 16
    goals = re.search(r"goals\[\] = \{(.*?)\};", (SOURCES / "people.c").read_text(), re.S).group(1)
    assert len(re.findall(r'"[^"]*"', goals)) == len(ram.QUEST_OBJECTIVES)


@pytest.mark.parametrize("quest_seed", range(0, 256, 15))
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


@pytest.mark.parametrize("quest_seed", [0, 1, 7])
def test_no_orb_is_a_dead_end(quest_seed):
    """The two orbs that the top bar does not name: harder, but every defeat makes one's friend stronger."""
    made, player = PokemonEnv(max_steps=1500), QuestExpert()
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
        assert made.reader.fields()["max_hp"] == min(80, 30 + 10 * info["losses"])
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


def test_mashing_loses_battles(env):
    """The cursor moves by itself between rounds, so pressing A alone is a coin with four sides."""
    player, lost = QuestExpert(), 0
    for quest_seed in (1, 2, 3, 4):
        env.reset(options={"quest_seed": quest_seed})
        while env.reader.fields()["mode"] != 3:
            env.step(player.act(env))
        while (fields := env.reader.fields())["mode"] in (3, 4):
            press(env, "B" if fields["mode"] == 4 else "A")
        lost += env.reader.fields()["losses"]
    assert lost >= 1


def test_worlds_differ_in_start_people_and_layout(env):
    player, starts, people, towns, mazes, leaders = QuestExpert(), set(), set(), set(), set(), set()
    for quest_seed in range(20, 26):
        _, info = env.reset(options={"quest_seed": quest_seed})
        starts.add((info["player"]["x"], info["player"]["y"]))
        leaders.add(env.reader.fields()["leader_element"])
        while info["map"] != "glow_wood":
            *_, info = env.step(player.act(env))
            if info["map"] == "emberly" and info["milestones_reached"] == 1:
                towns.add(env.reader.tiles().tobytes())
                people.add(tuple(env.reader.people()))
        mazes.add((env.reader.tiles() >= 16).tobytes())
    assert len(starts) >= 3 and len(people) >= 5 and len(towns) >= 5 and len(mazes) == 6 and len(leaders) == 3


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
    assert ("guard", gate[0], 1) in env.reader.people(), "no pass, no route"
    assert expert.first_action(env.reader.tiles(), env.reader.people(), (info["player"]["x"], info["player"]["y"]), gate, False) is None


def test_the_screen_shows_objective_progress_and_direction(env):
    """The top bar (16 rows) changes with the objective and the milestones, and holds the arrow."""
    player, bars = QuestExpert(), {}
    _, info = env.reset(options={"quest_seed": 12})
    obs = env.observation
    while True:
        fields = env.reader.fields()
        if fields["mode"] == 1:
            bars.setdefault((info["objective"], info["map"]), obs[:16].copy())
        if info["milestones_reached"] == len(QUEST_MILESTONES):
            break
        obs, _, _, _, info = env.step(player.act(env))
    texts = {bar[:8, 8:200].tobytes() for bar in bars.values()}
    assert len(texts) == len({objective for objective, _ in bars}) >= 13, "every objective reads differently"
    yellow = (np.abs(bars[("talk to mother", "home")][:, 208:].astype(int) - [255, 235, 120]) < 12).all(-1)
    assert yellow.sum() > 60, "the compass"


def test_compass_trail_and_cursor_tell_the_truth():
    """Whatever a student does: the compass shows a cheapest step, in the wood the only mushroom beside one glows there, and the tile that
    one faces has a frame, always at the same four places of the screen."""
    made, player, rng, seen = PokemonEnv(max_steps=600), QuestExpert(), np.random.default_rng(5), set()
    for quest_seed in (5, 140):
        made.reset(options={"quest_seed": quest_seed})
        done = False
        while not done:
            fields = made.reader.fields()
            if fields["mode"] == 1:
                x, y, way, tiles = fields["x"], fields["y"], made.reader.way(), made.reader.tiles()
                goal, shown = (fields["target_x"], fields["target_y"]), ACTIONS.index(way.upper())
                assert expert.first_action(tiles, made.reader.people(), (x, y), goal, fields["objective"] != 10, shown) == shown
                if fields["map"] == 5:
                    glows = [action for action, (dx, dy) in expert.WAYS.items() if tiles[y + dy, x + dx] == 9]
                    assert glows in ([shown], []) and (glows or abs(goal[0] - x) + abs(goal[1] - y) <= 2)
                dx, dy = expert.WAYS[expert.FACING_ACTION[fields["facing"]]]
                frame = made.observation[80 + 16 * dy :, 112 + 16 * dx :][1, 2:6].astype(int)
                assert (np.abs(frame - [240, 160, 200]) < 12).all(), (fields, frame)
                seen.add((fields["map"], way))
            noisy = made.steps < 300 and rng.random() < 0.4
            *_, terminated, truncated, _ = made.step(int(rng.integers(10)) if noisy else player.act(made))
            done = terminated or truncated
        assert terminated
    assert {area for area, _ in seen} == set(range(8)) and len({way for _, way in seen}) == 4
    made.close()


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
