"""What the quest's RAM means. emerald.py has the same for Emerald.

A reader is made for an emulator and has `milestones` (names, in order), `reached(before)` → bits of those that RAM
shows right now, `reached_at_start()` → the same when an episode begins, and `info()` → what `info` of the environment
adds. The quest's bytes are described in docs/pokemon_env.md.
"""

import struct

import numpy as np

EWRAM = 0x02000000
QUEST_MAGIC = b"QST1"
MAP_SIZE = 32
TILES_AT = 0x100
QUEST_FIELDS = (
    *"magic version spare mode map x y facing moving milestones objective".split(),
    *"starter hp max_hp enemy enemy_element enemy_hp enemy_max_hp".split(),
    *"cursor tonics talked_to_mother leader_element target_x target_y width height".split(),
    *"grass_steps losses frames rng".split(),
)
QUEST_FORMAT = struct.Struct("<4s8BH18BII")
NUM_PEOPLE, PEOPLE_AT, WAY_AT, COMPASS_AT, SEED_AT = 8, 0x28, 0x48, 0x49, 0x56
# What distinguishes worlds, from 0x49 on
WORLD_FIELDS = "compass route_turn forest_turn pass_house rival_element scout_element enemy_blow".split()
COMPASSES = ("none", "bearing", "path")
TURNS = ("north", "east", "west")
MODES = ("title", "walk", "talk", "menu", "message", "finished", "map")
FACINGS = ("down", "up", "left", "right")
QUEST_MAPS = ("home", "emberly", "lab", "gold_house", "route_1", "glow_wood", "highmoor", "gym", "green_house")
ELEMENTS = ("none", "fire", "water", "leaf", "plain", "shade")
QUEST_OBJECTIVES = (
    *(
        "",
        "talk to mother",
        "go outside",
        "go to the blue lab",
        "take the red orb",
        "take the blue orb",
        "take the green orb",
    ),
    *(
        "beat Rex in the lab",
        "get the pass under the golden roof",
        "to Route 1",
        "search the tall grass",
        "beat the scout",
    ),
    *("to Glow Wood", "find the star charm", "to Highmoor", "go into the gym", "beat leader Onyxa"),
    "get the pass under the green roof",
)
QUEST_MILESTONES = (
    *(
        "LEFT_HOME",
        "LAB_ENTERED",
        "STARTER_CHOSEN",
        "RIVAL_BEATEN",
        "PASS_RECEIVED",
        "ROUTE_ENTERED",
        "WILD_BEATEN",
        "SCOUT_BEATEN",
    ),
    *("FOREST_ENTERED", "CHARM_FOUND", "HIGHMOOR_REACHED", "GYM_ENTERED", "LEADER_BEATEN"),
)
KINDS = (
    *("nobody", "mother", "professor", "rival", "neighbour", "guard", "scout", "leader", "folk", "folk_2"),
    *("orb_red", "orb_blue", "orb_green", "charm", "thorn"),
)


class QuestReader:
    game, milestones = "quest", QUEST_MILESTONES

    def __init__(self, emulator, rom=b""):
        self.emulator = emulator

    def fields(self):
        return dict(zip(QUEST_FIELDS, QUEST_FORMAT.unpack(self.emulator.read(EWRAM, QUEST_FORMAT.size))))

    def tiles(self):
        """→ (32, 32) numbers of the tiles; 0 and everything from 16 on is solid"""
        return np.frombuffer(self.emulator.read(EWRAM + TILES_AT, MAP_SIZE * MAP_SIZE), np.uint8).reshape(
            MAP_SIZE, MAP_SIZE
        )

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

    def reached_at_start(self):
        return self.reached(0)

    def is_finished(self, bits):
        return bits == (1 << len(self.milestones)) - 1

    def info(self):
        ram = self.fields()
        world = self.emulator.read(EWRAM + COMPASS_AT, SEED_AT + 2 - COMPASS_AT)
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
            "quest_seed": int.from_bytes(world[-2:], "little"),
            "compass": COMPASSES[world[0]],
            "losses": ram["losses"],
        }


class UnknownReader:
    """Any other cartridge: it can be played and recorded, but nobody knows what its RAM means."""

    game, milestones = "unknown", ()

    def __init__(self, emulator, rom=b""):
        pass

    def reached(self, before):
        return 0

    def reached_at_start(self):
        return 0

    def is_finished(self, bits):
        return False

    def info(self):
        return {"player": {}, "map": "UNKNOWN", "map_id": (-1, -1), "mode": "unknown"}
