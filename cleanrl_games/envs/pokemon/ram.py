"""What a game's RAM means: the quest's documented struct, and Emerald's flags and maps.

A reader is made for an emulator and has `milestones` (names, in order), `reached()` → bits of those that RAM shows right now, and
`info()` → what `info` of the environment adds. Bytes of both games are described in docs/pokemon_env.md.
"""

import struct
from dataclasses import dataclass

import numpy as np

EWRAM = 0x02000000
QUEST_MAGIC = b"QST1"
MAP_SIZE = 32
TILES_AT = 0x100
QUEST_FIELDS = (
    *"magic version seed mode map x y facing moving milestones objective starter hp max_hp enemy enemy_element enemy_hp enemy_max_hp".split(),
    *"cursor tonics talked_to_mother leader_element target_x target_y width height grass_steps losses frames rng".split(),
)
QUEST_FORMAT = struct.Struct("<4s8BH18BII")
NUM_PEOPLE, PEOPLE_AT, WAY_AT, COMPASS_AT = 8, 0x28, 0x48, 0x49
# What distinguishes worlds, from 0x49 on
WORLD_FIELDS = "compass route_turn forest_turn pass_house rival_element scout_element enemy_blow".split()
COMPASSES = ("none", "bearing", "path")
TURNS = ("north", "east", "west")
MODES = ("title", "walk", "talk", "menu", "message", "finished", "map")
FACINGS = ("down", "up", "left", "right")
QUEST_MAPS = ("home", "emberly", "lab", "gold_house", "route_1", "glow_wood", "highmoor", "gym", "green_house")
ELEMENTS = ("none", "fire", "water", "leaf", "plain", "shade")
QUEST_OBJECTIVES = (
    *("", "talk to mother", "go outside", "go to the blue lab", "take the red orb", "take the blue orb", "take the green orb"),
    *("beat Rex in the lab", "get the pass under the golden roof", "to Route 1", "search the tall grass", "beat the scout"),
    *("to Glow Wood", "find the star charm", "to Highmoor", "go into the gym", "beat leader Onyxa"),
    "get the pass under the green roof",
)
QUEST_MILESTONES = (
    *("LEFT_HOME", "LAB_ENTERED", "STARTER_CHOSEN", "RIVAL_BEATEN", "PASS_RECEIVED", "ROUTE_ENTERED", "WILD_BEATEN", "SCOUT_BEATEN"),
    *("FOREST_ENTERED", "CHARM_FOUND", "HIGHMOOR_REACHED", "GYM_ENTERED", "LEADER_BEATEN"),
)
KINDS = (
    *("nobody", "mother", "professor", "rival", "neighbour", "guard", "scout", "leader", "folk", "folk_2"),
    *("orb_red", "orb_blue", "orb_green", "charm", "thorn"),
)

EMERALD_SHA1 = "f3ae088181bf583e55daf962a92bb46f4f1d07b7"
EMERALD_SIZE = 16 * 1024 * 1024
SAVE_BLOCK_1, SAVE_BLOCK_2 = 0x03005D8C, 0x03005D90
FLAGS_AT, MONEY_AT, MONEY_KEY_AT = 0x1270, 0x490, 0xAC
PARTY_COUNT, IN_BATTLE = 0x020244E9, 0x030026F9
SYSTEM_FLAGS = 0x860
EMERALD_MAPS = {
    (0, 0): "PETALBURG_CITY",
    (0, 3): "RUSTBORO_CITY",
    (0, 9): "LITTLEROOT_TOWN",
    (0, 10): "OLDALE_TOWN",
    (0, 16): "ROUTE_101",
    (0, 17): "ROUTE_102",
    (0, 18): "ROUTE_103",
    (0, 19): "ROUTE_104",
    (1, 0): "BRENDANS_HOUSE_1F",
    (1, 1): "BRENDANS_HOUSE_2F",
    (1, 2): "MAYS_HOUSE_1F",
    (1, 3): "MAYS_HOUSE_2F",
    (1, 4): "PROFESSORS_LAB",
    (8, 1): "PETALBURG_GYM",
    (11, 3): "RUSTBORO_GYM",
    (24, 11): "PETALBURG_WOODS",
    (25, 40): "TRUCK",
}


@dataclass(frozen=True)
class EmeraldRule:
    """A milestone is reached when its flag is set or one of its maps has been entered, once `after` (another milestone) is."""

    name: str
    flag: int | None = None
    maps: tuple = ()
    after: str | None = None


# Route 104 is one map on both sides of the woods: which side is told by whether the woods have been crossed.
EMERALD_RULES = (
    EmeraldRule("LITTLEROOT_TOWN", SYSTEM_FLAGS + 0xF, ((0, 9),)),
    EmeraldRule("ROUTE_101", maps=((0, 16),)),
    EmeraldRule("STARTER_CHOSEN", SYSTEM_FLAGS),
    EmeraldRule("OLDALE_TOWN", SYSTEM_FLAGS + 0x10, ((0, 10),)),
    EmeraldRule("RIVAL_BATTLE_WON", 0x82),
    EmeraldRule("RECEIVED_POKEDEX", SYSTEM_FLAGS + 1),
    EmeraldRule("ROUTE_102", maps=((0, 17),)),
    EmeraldRule("PETALBURG_CITY", SYSTEM_FLAGS + 0x16, ((0, 0),)),
    EmeraldRule("DAD_FIRST_MEETING", maps=((8, 1),)),
    EmeraldRule("ROUTE_104_SOUTH", maps=((0, 19),)),
    EmeraldRule("PETALBURG_WOODS", maps=((24, 11),)),
    EmeraldRule("ROUTE_104_NORTH", maps=((0, 19),), after="PETALBURG_WOODS"),
    EmeraldRule("RUSTBORO_CITY", SYSTEM_FLAGS + 0x19, ((0, 3),)),
    EmeraldRule("RUSTBORO_GYM_ENTERED", maps=((11, 3),)),
    EmeraldRule("ROXANNE_DEFEATED", SYSTEM_FLAGS + 7),
)


class QuestReader:
    game, milestones = "quest", QUEST_MILESTONES

    def __init__(self, emulator):
        self.emulator = emulator

    def fields(self):
        return dict(zip(QUEST_FIELDS, QUEST_FORMAT.unpack(self.emulator.read(EWRAM, QUEST_FORMAT.size))))

    def tiles(self):
        """→ (32, 32) numbers of the tiles; 0 and everything from 16 on is solid"""
        return np.frombuffer(self.emulator.read(EWRAM + TILES_AT, MAP_SIZE * MAP_SIZE), np.uint8).reshape(MAP_SIZE, MAP_SIZE)

    def people(self):
        """→ [(kind, x, y)] of the map"""
        found = struct.iter_unpack("4B", self.emulator.read(EWRAM + PEOPLE_AT, 4 * NUM_PEOPLE))
        return [(KINDS[kind], x, y) for x, y, kind, _ in found if kind]

    def world(self):
        """→ what distinguishes this world from others, by name"""
        return dict(zip(WORLD_FIELDS, self.emulator.read(EWRAM + COMPASS_AT, len(WORLD_FIELDS))))

    def way(self):
        """→ where the compass on the screen points: down, up, left, right, or None"""
        number = self.emulator.read(EWRAM + WAY_AT, 1)[0]
        return FACINGS[number] if number < len(FACINGS) else None

    def reached(self, before):
        return self.fields()["milestones"]

    def is_finished(self, bits):
        return bits == (1 << len(self.milestones)) - 1

    def info(self):
        ram = self.fields()
        return {
            "player": {
                "x": ram["x"],
                "y": ram["y"],
                "facing": FACINGS[ram["facing"]],
                "hp": ram["hp"],
                "starter": ELEMENTS[ram["starter"]],
            },
            "map": QUEST_MAPS[ram["map"]],
            "map_id": (0, ram["map"]),
            "mode": MODES[ram["mode"]],
            "objective": QUEST_OBJECTIVES[ram["objective"]],
            "target": (ram["target_x"], ram["target_y"]),
            "quest_seed": ram["seed"],
            "compass": COMPASSES[self.emulator.read(EWRAM + COMPASS_AT, 1)[0]],
            "losses": ram["losses"],
        }


class EmeraldReader:
    game, milestones = "emerald", tuple(rule.name for rule in EMERALD_RULES)

    def __init__(self, emulator):
        self.emulator = emulator

    def _pointer(self, at):
        """Save blocks move about, so pointers are followed on every read; 0 or nonsense means that no game is loaded yet."""
        address = int.from_bytes(self.emulator.read(at, 4), "little")
        return address if EWRAM <= address <= EWRAM + 0x40000 - 0x3D88 else 0

    def _location(self, block):
        x, y, group, number = struct.unpack("<hhBB", self.emulator.read(block, 6))
        return x, y, (group, number)

    def reached(self, before):
        block = self._pointer(SAVE_BLOCK_1)
        if not block:
            return before
        flags, here = self.emulator.read(block + FLAGS_AT, 300), self._location(block)[2]
        bits = before
        for bit, rule in enumerate(EMERALD_RULES):
            # "after" asks for an earlier moment than this one: leaving the woods is what makes Route 104 its northern half
            allowed = rule.after is None or before >> self.milestones.index(rule.after) & 1
            flagged = rule.flag is not None and flags[rule.flag // 8] >> rule.flag % 8 & 1
            if allowed and (flagged or here in rule.maps):
                bits |= 1 << bit
        return bits

    def is_finished(self, bits):
        return bits == (1 << len(self.milestones)) - 1

    def info(self):
        block, keys = self._pointer(SAVE_BLOCK_1), self._pointer(SAVE_BLOCK_2)
        if not block or not keys:
            return {"player": {}, "map": "NOT_LOADED", "map_id": (-1, -1), "mode": "title"}
        x, y, here = self._location(block)
        money, key = (int.from_bytes(self.emulator.read(at, 4), "little") for at in (block + MONEY_AT, keys + MONEY_KEY_AT))
        player = {"x": x, "y": y, "money": money ^ key, "party": self.emulator.read(PARTY_COUNT, 1)[0]}
        in_battle = bool(self.emulator.read(IN_BATTLE, 1)[0] & 2)
        return {
            "player": player,
            "map": EMERALD_MAPS.get(here, f"MAP_{here[0]}_{here[1]}"),
            "map_id": here,
            "mode": "battle" if in_battle else "walk",
        }


class UnknownReader:
    """Any other cartridge: it can be played and recorded, but nobody knows what its RAM means."""

    game, milestones = "unknown", ()

    def __init__(self, emulator):
        pass

    def reached(self, before):
        return 0

    def is_finished(self, bits):
        return False

    def info(self):
        return {"player": {}, "map": "UNKNOWN", "map_id": (-1, -1), "mode": "unknown"}
