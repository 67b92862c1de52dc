"""`PokemonEnv`: the gymnasium contract, timing, rewards, seeds, save states, other cartridges, Emerald's documented
RAM."""

import importlib.util
import struct
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cleanrl_games.envs.pokemon import ACTIONS, QUEST_MILESTONES, QUEST_ROM, TIMINGS, PokemonEnv, QuestExpert, episodes
from cleanrl_games.envs.pokemon import emerald as emerald_module
from cleanrl_games.envs.pokemon import env as env_module
from cleanrl_games.envs.pokemon.emerald import SYSTEM_FLAGS, EmeraldReader
from cleanrl_games.envs.pokemon.emerald_maps import MAP_NAMES
from cleanrl_games.envs.pokemon.emulator import KEYS


@pytest.fixture(scope="module")
def env():
    made = PokemonEnv(max_steps=400)
    yield made
    made.close()


def act(name):
    return ACTIONS.index(name)


def test_gymnasium_checks_it():
    env = PokemonEnv(render_mode="rgb_array", max_steps=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)
    assert isinstance(env, gym.Env) and np.array_equal(env.render(), env.observation)
    env.close()


def test_spaces_and_order_of_actions(env):
    assert ACTIONS == ("A", "B", "START", "SELECT", "UP", "DOWN", "LEFT", "RIGHT", "L", "R")
    assert env.action_space == gym.spaces.Discrete(10)
    assert env.observation_space == gym.spaces.Box(0, 255, (160, 240, 3), np.uint8)
    pressed, press = [], env.emulator.press
    try:
        env.emulator.press = lambda *arguments: (pressed.append(arguments), press(*arguments))
        env.reset(seed=1)
        for action in range(10):
            env.step(action)
    finally:
        env.emulator.press = press
    assert pressed == [(KEYS[name], 6, 3) for name in ACTIONS]


def test_every_direction_moves_the_player_one_tile(env):
    """The world's own answer, so that a swapped key is noticed; the room of world 3 has space around its rug."""
    for name, dx, dy in (("LEFT", -1, 0), ("RIGHT", 1, 0), ("DOWN", 0, 1), ("UP", 0, -1)):
        _, info = env.reset(options={"quest_seed": 3})
        x, y = info["player"]["x"], info["player"]["y"]
        *_, info = env.step(act(name))
        assert (info["player"]["x"] - x, info["player"]["y"] - y, info["player"]["facing"]) == (dx, dy, name.lower())


@pytest.mark.parametrize("timing", [*TIMINGS, (7, 4)])
def test_one_action_is_one_tile_in_every_timing(timing):
    env, expert = PokemonEnv(timing=timing, max_steps=120), QuestExpert()
    assert (env.hold, env.release) == TIMINGS.get(timing, timing)
    _, info = env.reset(options={"quest_seed": 11})
    before, frames = None, env.reader.fields()["frames"]
    done = False
    while not done:
        action = expert.act(env)
        *_, terminated, truncated, info = env.step(action)
        ram = env.reader.fields()
        assert ram["frames"] - frames == env.hold + env.release, "the game keeps up with the screen"
        assert not ram["moving"], "a step is over when the action is"
        here = info["map"], info["player"]["x"], info["player"]["y"]
        if before and before[0] == here[0]:
            assert abs(here[1] - before[1]) + abs(here[2] - before[2]) <= 1
        before, frames, done = here, ram["frames"], terminated or truncated
    assert info["milestones_reached"] >= 6
    env.close()


def test_bad_arguments_are_sentences(env):
    for arguments, words in (
        ({"timing": "turbo"}, "choose one of fast, normal, slow"),
        ({"timing": (0, 3)}, "above 0"),
        ({"render_mode": "ansi"}, "choose rgb_array or human"),
        ({"quest_seeds": []}, "at least one"),
        ({"quest_seeds": [65536]}, "from 0 to 65535"),
    ):
        with pytest.raises(ValueError, match=words):
            PokemonEnv(**arguments)
    env.reset(seed=1)
    for action in (-1, 10):
        with pytest.raises(ValueError, match="from 0 to 9"):
            env.step(action)
    with pytest.raises(ValueError, match="from 0 to 65535"):
        env.reset(options={"quest_seed": 65536})
    with pytest.raises(ValueError, match="found \\['sed'\\]"):
        env.reset(options={"sed": 3})


def play(env, actions, **reset):
    obs, info = env.reset(**reset)
    seen = [(obs, 0.0, info)]
    for action in actions:
        obs, reward, _, _, info = env.step(action)
        seen.append((obs, reward, info))
    return seen


def assert_same(first, second):
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        assert np.array_equal(a[0], b[0]) and a[1:] == b[1:], index


def test_same_seed_and_actions_same_frames(env):
    actions = np.random.default_rng(5).integers(10, size=120)
    other = PokemonEnv(max_steps=400)
    first = play(env, actions, seed=7)
    env.reset(seed=8)  # another world in between leaves no trace
    assert_same(first, play(env, actions, seed=7))
    assert_same(first, play(other, actions, seed=7))
    other.close()


def test_a_saved_state_restores_exactly(env):
    expert, actions = QuestExpert(), np.random.default_rng(6).integers(10, size=40)
    env.reset(options={"quest_seed": 5})
    for _ in range(60):
        env.step(expert.act(env))
    state, bits = env.save_state(), env.bits
    first = play(env, actions, options={"state": state})
    assert env.bits >= bits and first[0][2]["milestones_reached"] == bits.bit_count(), (
        "milestones come back with the state"
    )
    other = PokemonEnv(max_steps=400)
    assert_same(first, play(other, actions, options={"state": state}))
    other.close()


def test_states_kept_for_resets_change_nothing(env):
    fresh = PokemonEnv()
    for seed in (40, 41, 40):
        obs, _ = env.reset(options={"quest_seed": seed})
        again, info = fresh.reset(options={"quest_seed": seed})
        assert np.array_equal(obs, again) and info["quest_seed"] == seed
    assert len(fresh.states) == 2
    fresh.close()


def test_seeds_are_drawn_from_those_allowed():
    env = PokemonEnv(quest_seeds=(4, 9))
    assert {env.reset(seed=seed)[1]["quest_seed"] for seed in range(12)} == {4, 9}
    assert len({env.reset()[1]["quest_seed"] for _ in range(12)}) == 2, "without a seed, worlds go on changing"
    env.close()


def test_info_and_reward(env):
    expert = QuestExpert()
    _, info = env.reset(options={"quest_seed": 2})
    assert tuple(info["milestones"]) == QUEST_MILESTONES and not any(info["milestones"].values())
    assert (
        info["game"] == "quest"
        and info["backend"] == "libretro"
        and info["map"] == "home"
        and info["objective"] == "talk to mother"
    )
    total, before = 0.0, 0
    while info["milestones_reached"] < 4:
        _, reward, _, _, info = env.step(expert.act(env))
        assert reward == info["milestones_reached"] - before
        total, before = total + reward, info["milestones_reached"]
    assert total == 4 and info["milestones"]["RIVAL_BEATEN"] and not info["milestones"]["PASS_RECEIVED"]


def test_truncation():
    env = PokemonEnv(max_steps=3)
    env.reset(seed=0)
    assert [env.step(1)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    env.close()


def test_window_only_when_asked_for(monkeypatch):
    env = PokemonEnv(render_mode="human")
    if importlib.util.find_spec("pygame") is None:
        with pytest.raises(RuntimeError, match="pip install pygame"):
            env.reset(seed=0)
    else:
        monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
        obs, _ = env.reset(seed=0)
        surface = env.window[1]
        assert tuple(surface.get_at((300, 300)))[:3] == tuple(obs[100, 100])
    env.close()


def test_damaged_quest_is_refused(tmp_path):
    path, rom = tmp_path / "quest.gba", bytearray(QUEST_ROM.read_bytes())
    rom[5000] ^= 1
    path.write_bytes(rom)
    with pytest.raises(ValueError, match="is the quest, but its SHA-1 is"):
        PokemonEnv(path)
    path.write_bytes(rom[: len(rom) // 2])  # a truncated ROM loads and runs silently in the core
    with pytest.raises(ValueError, match="is the quest, but its SHA-1 is"):
        PokemonEnv(path)


def test_other_rom_warns_and_gives_no_reward(tmp_path):
    path, rom = tmp_path / "other.gba", bytearray(QUEST_ROM.read_bytes())
    rom[0xA0:0xAC] = b"SOMETHINGELS"
    path.write_bytes(rom)
    with pytest.warns(UserWarning, match="no milestones and no reward"):
        env = PokemonEnv(path)
    _, info = env.reset(seed=0)
    assert info["game"] == "unknown" and info["milestones"] == {} and (env.hold, env.release) == TIMINGS["normal"]
    steps = [env.step(act("START")) for _ in range(3)]
    assert [step[1] for step in steps] == [0.0, 0.0, 0.0] and not any(step[2] for step in steps)
    assert not np.array_equal(steps[-1][0], env.reset()[0]), "the cartridge runs, and a reset goes back to its start"
    with pytest.raises(ValueError, match="plays the quest only"):
        QuestExpert().act(env)
    env.close()


def test_truncated_emerald_is_named(tmp_path):
    path, rom = tmp_path / "emerald.gba", bytearray(QUEST_ROM.read_bytes()[:0xC0] + bytes((8 << 20) - 0xC0))
    rom[0xA0:0xB0] = b"POKEMON EMERBPEE"
    path.write_bytes(rom)
    with pytest.raises(ValueError, match=r"8,388,608 bytes instead of 16,777,216: it is truncated"):
        PokemonEnv(path)


# --- Emerald, without the game: its documented layout is written into the RAM while the quest runs
# -------------------------------

BLOCK_1, BLOCK_2, ENTRIES = 0x02025A00, 0x02024A54, 0x02032318


def letters(text):
    """ASCII capitals → the game's letters"""
    return bytes(ord(letter) - ord("A") + 0xBB for letter in text) + b"\xff"


def party_member(
    personality=1234567, trainer=7654321, species=277, level=5, hp=19, moves=((1, 35), (43, 30)), item=0, status=0
):
    """A member as the game stores it: four parts in the order of its personality, encrypted, with a checksum"""
    moves = [*moves, *[(0, 0)] * (4 - len(moves))]
    parts = {
        "G": struct.pack("<HHIBBH", species, item, 135, 0, 70, 0),
        "A": struct.pack("<4H4B", *(move for move, _ in moves), *(pp for _, pp in moves)),
        "E": bytes(range(12)),
        "M": bytes(range(20, 32)),
    }
    plain = b"".join(parts[part] for part in emerald_module.PART_ORDERS[personality % 24])
    checksum = sum(struct.unpack("<24H", plain)) & 0xFFFF
    hidden = struct.pack("<12I", *(word ^ personality ^ trainer for word in struct.unpack("<12I", plain)))
    return (
        struct.pack("<II20xHH", personality, trainer, checksum, 0)
        + hidden
        + struct.pack("<IBBHH10x", status, level, 0, hp, 20)
    )


class FakeEmerald:
    """The bytes of a game, as the cartridge would have them in RAM."""

    def __init__(self, env):
        self.emulator, self.flags = env.emulator, bytearray(300)

    def title_screen(self):
        """Pointers are set before a game is loaded; the blocks themselves are zero."""
        self.emulator.write(BLOCK_1, bytes(0x3D88))
        self.emulator.write(BLOCK_2, bytes(0xF2C))
        self.emulator.write(0x03005D8C, struct.pack("<II", BLOCK_1, BLOCK_2))

    def write(self, map_id=(25, 40), flag=None, block=BLOCK_1, x=5, y=3, money=3000, key=0xDEADBEEF, name="MAY"):
        if flag is not None:
            self.flags[flag // 8] |= 1 << flag % 8
        self.emulator.write(block, struct.pack("<hhBB", x, y, *map_id))
        self.emulator.write(block + 0x490, struct.pack("<I", money ^ key))
        self.emulator.write(block + 0x1270, self.flags)
        self.emulator.write(BLOCK_2, letters(name).ljust(8, b"\xff"))
        self.emulator.write(BLOCK_2 + 0xAC, struct.pack("<I", key))
        self.emulator.write(0x03005D8C, struct.pack("<II", block, BLOCK_2))

    def party(self, *members):
        self.emulator.write(0x020244E9, bytes([len(members)]))
        self.emulator.write(0x020244EC, b"".join(members))

    def bag(self, offset, *items, key=0xDEADBEEF):
        self.emulator.write(
            BLOCK_1 + offset, b"".join(struct.pack("<HH", item, count ^ key & 0xFFFF) for item, count in items)
        )

    def grid(self, width, height, is_blocked):
        """A map of this size inside its border of seven tiles (eight on the right)"""
        entries = []
        for y in range(height + 14):
            for x in range(width + 15):
                inside = 7 <= x < width + 7 and 7 <= y < height + 7
                entries.append(0x3FF if not inside else 0x0C01 if is_blocked(x - 7, y - 7) else 0x3001)
        self.emulator.write(ENTRIES, struct.pack(f"<{len(entries)}H", *entries))
        self.emulator.write(0x03005DC0, struct.pack("<iiI", width + 15, height + 14, ENTRIES))


@pytest.fixture
def emerald(monkeypatch):
    """An environment that takes the quest's bytes for Emerald's."""
    sha1 = env_module.QUEST_SHA1
    monkeypatch.setattr(env_module, "QUEST_SHA1", "0" * 40)
    monkeypatch.setattr(env_module, "EMERALD_SHA1", sha1)
    env = PokemonEnv(max_steps=0)
    assert isinstance(env.reader, EmeraldReader) and (env.hold, env.release) == TIMINGS["normal"]
    env.reset(seed=0)
    yield env, FakeEmerald(env)
    env.close()


WALKTHROUGH = (
    ("LITTLEROOT_TOWN", (0, 9), None),
    ("ROUTE_101", (0, 16), None),
    ("STARTER_CHOSEN", (0, 16), SYSTEM_FLAGS),
    ("OLDALE_TOWN", (0, 10), None),
    ("RIVAL_BATTLE_WON", (0, 18), 0x82),
    ("RECEIVED_POKEDEX", (1, 4), SYSTEM_FLAGS + 1),
    ("ROUTE_102", (0, 17), None),
    ("PETALBURG_CITY", (0, 0), None),
    ("DAD_FIRST_MEETING", (8, 1), None),
    ("ROUTE_104_SOUTH", (0, 19), None),
    ("PETALBURG_WOODS", (24, 11), None),
    ("ROUTE_104_NORTH", (0, 19), None),
    ("RUSTBORO_CITY", (0, 3), None),
    ("RUSTBORO_GYM_ENTERED", (11, 3), None),
    ("ROXANNE_DEFEATED", (11, 3), SYSTEM_FLAGS + 7),
)


def test_emerald_milestones_one_by_one(emerald):
    env, game = emerald
    assert env.step(1)[1] == 0.0, "no game is loaded yet"
    game.write()
    *_, info = env.step(1)
    assert info["map"] == "TRUCK" and not any(info["milestones"].values())
    for count, (name, map_id, flag) in enumerate(WALKTHROUGH, 1):
        game.write(map_id, flag)
        _, reward, terminated, _, info = env.step(1)
        assert (reward, info["milestones_reached"], info["milestones"][name]) == (1.0, count, True), name
        assert info["map"] == MAP_NAMES[map_id] and terminated == (count == 15)
        assert env.step(1)[1] == 0.0, "a milestone pays once"
    assert tuple(info["milestones"]) == tuple(name for name, _, _ in WALKTHROUGH)


def test_emerald_title_screen_pays_nothing(emerald):
    """Save blocks of zeros are map (0, 0), which is Petalburg's number; a name alone is not a game either."""
    env, game = emerald
    game.title_screen()
    _, reward, _, _, info = env.step(1)
    assert (
        reward == 0.0
        and info["mode"] == "title"
        and info["map"] == "NOT_LOADED"
        and not any(info["milestones"].values())
    )
    assert info["player"] == {} and info["map_id"] == (-1, -1) and info["dialogue"] is False
    assert (info["party"], info["badges"], info["bag"], info["surroundings"]) == ([], [], {}, []), (
        "an agent may ask for them before a game has begun"
    )
    game.write((0, 0), x=0, y=0)
    _, reward, _, _, info = env.step(1)
    assert reward == 0.0 and info["mode"] == "title", "the player is being named"
    game.write((0, 0), name="")
    assert env.step(1)[4]["mode"] == "title"
    game.write((0, 0))
    assert env.step(1)[1] == 1.0, "Petalburg, once one is there"


def test_emerald_later_start_counts_what_lies_behind(emerald):
    """A start in the woods: the first route left no flag, and counts all the same. None of it is paid."""
    env, game = emerald
    game.write((24, 11), SYSTEM_FLAGS + 0x16)
    _, info = env.reset(options={"state": env.save_state()})
    names = [name for name, reached in info["milestones"].items() if reached]
    assert names == [name for name, _, _ in WALKTHROUGH[:11]]
    game.write((0, 19))
    _, reward, _, _, info = env.step(1)
    assert reward == 1.0 and info["milestones"]["ROUTE_104_NORTH"]


@pytest.mark.parametrize(
    "name, flag", [("LITTLEROOT_TOWN", 0xF), ("OLDALE_TOWN", 0x10), ("PETALBURG_CITY", 0x16), ("RUSTBORO_CITY", 0x19)]
)
def test_emerald_visited_flags_count_without_the_map(emerald, name, flag):
    env, game = emerald
    game.write(flag=SYSTEM_FLAGS + flag)
    _, reward, _, _, info = env.step(1)
    assert reward == 1.0 and info["milestones"][name]


def test_emerald_blocks_move_and_nonsense_is_not_followed(emerald):
    env, game = emerald
    game.write((0, 9))
    *_, info = env.step(1)
    assert info["player"] == {"x": 5, "y": 3, "money": 3000, "name": "MAY"} and info["map_id"] == (0, 9)
    game.write((0, 10), block=BLOCK_1 + 0x40)
    assert env.step(1)[4]["map"] == "OLDALE_TOWN"
    for pointer in (0, 0x01FFF000, 0x08000000, 0x0203FFF0, 0xFFFFFFFF):
        env.emulator.write(0x03005D8C, struct.pack("<I", pointer))
        _, reward, _, _, info = env.step(1)
        assert (reward, info["map"], info["milestones_reached"]) == (0.0, "NOT_LOADED", 2)
    game.write((0, 77))
    assert env.step(1)[4]["map"] == "MAP_0_77"


def test_emerald_new_game_has_nothing(emerald):
    env, game = emerald
    game.title_screen()
    game.write()
    game.party()
    *_, info = env.step(1)
    assert (
        info["party"] == []
        and info["badges"] == []
        and info["bag"] == {}
        and info["mode"] == "walk"
        and not info["dialogue"]
    )


@pytest.mark.parametrize("personality", range(24))
def test_emerald_party_in_all_24_orders(emerald, personality):
    env, game = emerald
    game.write()
    game.party(party_member(24 * 100 + personality, species=283, level=12, hp=7, item=139, status=8))
    *_, info = env.step(1)
    (member,) = info["party"]
    assert (member["species_id"], member["level"], member["hp"], member["max_hp"]) == (283, 12, 7, 20)
    assert (member["experience"], member["status"], member["item_id"], member["item"]) == (135, 8, 139, "#139")
    assert [(move["move_id"], move["pp"]) for move in member["moves"]] == [(1, 35), (43, 30)]
    assert member["species"] == "#283" and member["moves"][0]["move"] == "#1", (
        "names are read from the cartridge, which is not here"
    )


def test_emerald_damaged_member_is_left_out(emerald):
    env, game = emerald
    game.write()
    damaged = bytearray(party_member())
    damaged[40] ^= 1
    game.party(party_member(), bytes(damaged), bytes(100))
    (member,) = env.step(1)[4]["party"]
    assert member["item"] == "" and member["item_id"] == 0


def test_emerald_names_come_from_the_cartridge(emerald):
    """Species, moves and items, each from a table of its own: addresses and sizes of entries are the cartridge's"""
    env, game = emerald
    game.title_screen()
    game.write()
    rom = bytearray(emerald_module.EMERALD_SIZE)
    for start, text in (
        (0x3185C8 + 11 * 277, "TREECKO"),
        (0x31977C + 13 * 1, "POUND"),
        (0x5839A0 + 44 * 13, "POTION"),
    ):
        rom[start : start + len(text) + 1] = letters(text)
    game.party(party_member(item=13))
    game.bag(0x560, (13, 5))
    env.reader.rom = bytes(rom)
    *_, info = env.step(1)
    (member,) = info["party"]
    assert (member["species"], member["item"]) == ("TREECKO", "POTION")
    assert [move["move"] for move in member["moves"]] == ["POUND", "#43"], "a name that is not there is its number"
    assert info["bag"] == {"items": [{"item_id": 13, "item": "POTION", "count": 5}]}


def test_emerald_badges_bag_dialogue_and_battle(emerald):
    env, game = emerald
    game.title_screen()
    game.write((11, 3), SYSTEM_FLAGS + 7)
    game.bag(0x560, (13, 5), (14, 1))
    game.bag(0x650, (4, 20))
    game.bag(0x5D8, (259, 1))
    game.bag(0x690, (327, 1))
    game.bag(0x790, (139, 3))
    *_, info = env.step(1)
    assert info["badges"] == ["STONE"] and info["map"] == "RUSTBORO_CITY_GYM"
    counts = {
        pocket: [(entry["item_id"], entry["count"]) for entry in entries] for pocket, entries in info["bag"].items()
    }
    assert counts == {
        "items": [(13, 5), (14, 1)],
        "key_items": [(259, 1)],
        "balls": [(4, 20)],
        "machines": [(327, 1)],
        "berries": [(139, 3)],
    }
    for bit in range(1, 8):
        game.write((11, 3), SYSTEM_FLAGS + 7 + bit)
    assert env.step(1)[4]["badges"] == "STONE KNUCKLE DYNAMO HEAT BALANCE FEATHER MIND RAIN".split()
    env.emulator.write(0x03000F2C, b"\x01")
    *_, info = env.step(1)
    assert info["mode"] == "dialogue" and info["dialogue"]
    env.emulator.write(0x030026F9, b"\x02")
    *_, info = env.step(1)
    assert info["mode"] == "battle" and not info["dialogue"]


def test_emerald_surroundings(emerald):
    """Eleven rows of fifteen around the player: walls, free ground, and what is no part of the map."""
    env, game = emerald
    assert env.reader.surroundings(3, 3) == [], "no grid yet"
    game.grid(20, 12, lambda x, y: x == 4 or (x, y) == (3, 0))
    game.write(x=3, y=1)
    rows = env.step(1)[4]["surroundings"]
    assert len(rows) == 11 and all(len(row) == 15 for row in rows)
    assert rows[5] == "    ....#......"
    assert rows[4][7] == "#" and rows[4][6] == "." and rows[3].strip() == "" and rows[5][7] == "."
    game.write(x=19, y=11)
    rows = env.step(1)[4]["surroundings"]
    assert rows[5][7] == "." and rows[5][8:].strip() == "" and rows[6].strip() == ""


def test_start_states_of_a_folder(emerald, tmp_path):
    env, game = emerald
    for name, map_id in (("02_OLDALE_TOWN", (0, 10)), ("01_ROUTE_101", (0, 16))):
        game.write(map_id)
        (tmp_path / f"{name}.state").write_bytes(env.save_state())
    made = PokemonEnv(max_steps=5, start_states=tmp_path)
    assert (
        list(made.starts) == ["01_ROUTE_101", "02_OLDALE_TOWN"]
        and len(made.start_hash()) == 16
        and env.start_hash() == ""
    )
    _, info = made.reset(options={"start": "02_OLDALE_TOWN"})
    assert info["map"] == "OLDALE_TOWN" and info["start"] == "02_OLDALE_TOWN" and info["milestones_reached"] == 4
    assert episodes.describe(made)["start"] == "02_OLDALE_TOWN", "a recording says where it begins"
    assert made.reset(options={"state": made.save_state()})[1]["start"] == "", "none of the folder's"
    assert {made.reset(seed=seed)[1]["map"] for seed in range(8)} == {"OLDALE_TOWN", "ROUTE_101"}
    with pytest.raises(ValueError, match="no start state 'x'"):
        made.reset(options={"start": "x"})
    made.close()
    (tmp_path / "03_bad.state").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="03_bad"):
        PokemonEnv(start_states=tmp_path)
    with pytest.raises(ValueError, match="no save states"):
        (tmp_path / "empty").mkdir()
        PokemonEnv(start_states=tmp_path / "empty")


def test_quest_takes_no_start_state(env):
    with pytest.raises(ValueError, match="quest starts in its worlds"):
        PokemonEnv(start_state=env.save_state())
