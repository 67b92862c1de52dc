"""What the RAM of Emerald (US) means: milestones, and what a code agent or a language model wants to know about the
moment.

Addresses and layouts are the public ones of the decompilation's symbol table. Save blocks move about in memory, so
their pointers are followed on every read. A game has begun when the player has a name and a place: on the title screen
both are zero."""

import struct
from dataclasses import dataclass

from .emerald_maps import map_name

EWRAM, ROM = 0x02000000, 0x08000000
EMERALD_SHA1 = "f3ae088181bf583e55daf962a92bb46f4f1d07b7"
EMERALD_SIZE = 16 * 1024 * 1024
SAVE_BLOCK_1, SAVE_BLOCK_2 = 0x03005D8C, 0x03005D90
SAVE_BLOCK_1_SIZE = 0x3D88
FLAGS_AT, FLAGS_SIZE, MONEY_AT, KEY_AT = 0x1270, 300, 0x490, 0xAC
PARTY_COUNT, PARTY, MEMBER_SIZE, MAX_PARTY = 0x020244E9, 0x020244EC, 100, 6
IN_BATTLE = 0x030026F9
FIELD_LOCK = 0x03000F2C  # 1 while a script holds the player: text boxes, scenes
GRID = 0x03005DC0  # width, height, pointer to the entries; the map lies 7 tiles inside its border
GRID_BORDER, VIEW_X, VIEW_Y = 7, 7, 5
SYSTEM_FLAGS = 0x860
BADGES = ("STONE", "KNUCKLE", "DYNAMO", "HEAT", "BALANCE", "FEATHER", "MIND", "RAIN")
# pocket: offset in save block 1, number of slots
POCKETS = {
    "items": (0x560, 30),
    "key_items": (0x5D8, 30),
    "balls": (0x650, 16),
    "machines": (0x690, 64),
    "berries": (0x790, 46),
}
# names in the cartridge: address, bytes of an entry, bytes of its name
SPECIES_NAMES, MOVE_NAMES, ITEM_NAMES = (0x083185C8, 11, 10), (0x0831977C, 13, 12), (0x085839A0, 44, 14)
# the four 12-byte parts of a member (growth, attacks, condition, misc) lie in one of 24 orders
PART_ORDERS = (
    *("GAEM", "GAME", "GEAM", "GEMA", "GMAE", "GMEA", "AGEM", "AGME", "AEGM", "AEMG", "AMGE", "AMEG"),
    *("EGAM", "EGMA", "EAGM", "EAMG", "EMGA", "EMAG", "MGAE", "MGEA", "MAGE", "MAEG", "MEGA", "MEAG"),
)


@dataclass(frozen=True)
class EmeraldRule:
    """A milestone is reached when its flag is set or one of its maps has been entered, once `after` (another milestone)
    is."""

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
EMERALD_MILESTONES = tuple(rule.name for rule in EMERALD_RULES)


def decode_text(data):
    """Bytes in the game's own letters → text, up to the end mark 0xFF"""
    letters = []
    for byte in data:
        if byte == 0xFF:
            break
        if 0xBB <= byte <= 0xD4:
            letters.append(chr(byte - 0xBB + ord("A")))
        elif 0xD5 <= byte <= 0xEE:
            letters.append(chr(byte - 0xD5 + ord("a")))
        elif 0xA1 <= byte <= 0xAA:
            letters.append(chr(byte - 0xA1 + ord("0")))
        else:
            letters.append(
                {0x00: " ", 0x1B: "é", 0xAB: "!", 0xAC: "?", 0xAD: ".", 0xAE: "-", 0xB4: "'", 0xB5: "♂", 0xB6: "♀"}.get(
                    byte, "?"
                )
            )
    return "".join(letters).strip()


def decode_member(data):
    """100 bytes of the party → numbers by name; None for an empty place or a damaged one (its checksum is wrong)"""
    personality, trainer = struct.unpack_from("<II", data)
    if not personality and not trainer:
        return None
    key = personality ^ trainer
    parts = struct.pack("<12I", *(word ^ key for word in struct.unpack_from("<12I", data, 32)))
    if sum(struct.unpack("<24H", parts)) & 0xFFFF != struct.unpack_from("<H", data, 28)[0]:
        return None
    order = PART_ORDERS[personality % 24]
    growth, attacks = (parts[12 * order.index(part) :][:12] for part in "GA")
    species, item, experience = struct.unpack_from("<HHI", growth)
    moves, points = struct.unpack_from("<4H", attacks), struct.unpack_from("<4B", attacks, 8)
    status, level, _, hp, max_hp = struct.unpack_from("<IBBHH", data, 80)
    return {
        "species_id": species, "item_id": item, "experience": experience, "level": level, "hp": hp, "max_hp": max_hp,
        "status": status,
        "moves": [{"move_id": move, "pp": pp} for move, pp in zip(moves, points) if move],
    }  # fmt: skip


class EmeraldReader:
    game, milestones = "emerald", EMERALD_MILESTONES

    def __init__(self, emulator, rom=b""):
        self.emulator, self.rom = emulator, rom

    # --- pieces of memory

    def _word(self, at):
        return int.from_bytes(self.emulator.read(at, 4), "little")

    def _blocks(self):
        """→ addresses of the two save blocks, None before a game has begun"""
        one, two = self._word(SAVE_BLOCK_1), self._word(SAVE_BLOCK_2)
        if not all(EWRAM <= address <= EWRAM + 0x40000 - SAVE_BLOCK_1_SIZE for address in (one, two)):
            return None
        has_name = self.emulator.read(two, 1)[0] not in (0x00, 0xFF)
        has_place = any(self.emulator.read(one, 6))
        return (one, two) if has_name and has_place else None

    def _location(self, block):
        x, y, group, number = struct.unpack("<hhBB", self.emulator.read(block, 6))
        return x, y, (group, number)

    def _name(self, table, index):
        """→ a name out of the cartridge, else the number as text"""
        address, size, letters = table
        start = address - ROM + index * size
        name = decode_text(self.rom[start : start + letters]) if len(self.rom) == EMERALD_SIZE else ""
        return name or f"#{index}"

    # --- milestones

    def reached(self, before):
        blocks = self._blocks()
        if blocks is None:
            return before
        flags, here = self.emulator.read(blocks[0] + FLAGS_AT, FLAGS_SIZE), self._location(blocks[0])[2]
        bits = before
        for bit, rule in enumerate(EMERALD_RULES):
            # "after" asks for an earlier moment than this one: leaving the woods is what makes Route 104 its northern
            # half
            is_allowed = rule.after is None or before >> self.milestones.index(rule.after) & 1
            is_flagged = rule.flag is not None and flags[rule.flag // 8] >> rule.flag % 8 & 1
            if is_allowed and (is_flagged or here in rule.maps):
                bits |= 1 << bit
        return bits

    def reached_at_start(self):
        """The same for the first moment of an episode. The story up to the first badge is one line: where a save state
        shows a milestone, all before it are behind the player, even those that leave no flag."""
        bits = self.reached(0)
        return (1 << bits.bit_length()) - 1

    def is_finished(self, bits):
        return bits == (1 << len(self.milestones)) - 1

    # --- what info tells

    def party(self):
        count = min(self.emulator.read(PARTY_COUNT, 1)[0], MAX_PARTY)
        data = self.emulator.read(PARTY, MEMBER_SIZE * count)
        members = []
        for place in range(count):
            member = decode_member(data[MEMBER_SIZE * place :][:MEMBER_SIZE])
            if member is None:
                continue
            member["species"] = self._name(SPECIES_NAMES, member["species_id"])
            member["item"] = self._name(ITEM_NAMES, member["item_id"]) if member["item_id"] else ""
            for move in member["moves"]:
                move["move"] = self._name(MOVE_NAMES, move["move_id"])
            members.append(member)
        return members

    def bag(self, block, key):
        """→ {pocket: [{item_id, item, count}]} of what is not empty"""
        pockets = {}
        for pocket, (offset, slots) in POCKETS.items():
            pairs = struct.iter_unpack("<HH", self.emulator.read(block + offset, 4 * slots))
            found = [(item, count ^ key & 0xFFFF) for item, count in pairs if item]
            pockets[pocket] = [
                {"item_id": item, "item": self._name(ITEM_NAMES, item), "count": count} for item, count in found
            ]
        return {pocket: items for pocket, items in pockets.items() if items}

    def surroundings(self, x, y):
        """→ 11 rows of 15 letters around the player, who is in the middle: . free, # blocked, space outside of the
        map"""
        width, height, entries = struct.unpack("<iiI", self.emulator.read(GRID, 12))
        if not (0 < width <= 512 and 0 < height <= 512 and EWRAM <= entries <= EWRAM + 0x40000 - 2 * width * height):
            return []
        left = max(x + GRID_BORDER - VIEW_X, 0)
        right = min(x + GRID_BORDER + VIEW_X + 1, width)
        before = " " * (left - (x + GRID_BORDER - VIEW_X))
        rows = []
        for grid_y in range(y + GRID_BORDER - VIEW_Y, y + GRID_BORDER + VIEW_Y + 1):
            row = ""
            if 0 <= grid_y < height and left < right:
                words = struct.unpack(
                    f"<{right - left}H", self.emulator.read(entries + 2 * (left + width * grid_y), 2 * (right - left))
                )
                row = before + "".join(" " if word & 0x3FF == 0x3FF else "#" if word & 0xC00 else "." for word in words)
            rows.append(row.ljust(2 * VIEW_X + 1))
        return rows

    def info(self):
        blocks = self._blocks()
        if blocks is None:
            nothing = {"party": [], "badges": [], "bag": {}, "surroundings": [], "dialogue": False}
            return {"player": {}, "map": "NOT_LOADED", "map_id": (-1, -1), "mode": "title", **nothing}
        block, second = blocks
        x, y, here = self._location(block)
        key, flags = self._word(second + KEY_AT), self.emulator.read(block + FLAGS_AT, FLAGS_SIZE)
        badges = [name for bit, name in enumerate(BADGES, SYSTEM_FLAGS + 7) if flags[bit // 8] >> bit % 8 & 1]
        is_battle, is_locked = bool(self.emulator.read(IN_BATTLE, 1)[0] & 2), bool(self.emulator.read(FIELD_LOCK, 1)[0])
        return {
            "player": {
                "x": x,
                "y": y,
                "money": self._word(block + MONEY_AT) ^ key,
                "name": decode_text(self.emulator.read(second, 8)),
            },
            "party": self.party(),
            "badges": badges,
            "bag": self.bag(block, key),
            "map": map_name(*here),
            "map_id": here,
            "surroundings": self.surroundings(x, y),
            "dialogue": is_locked and not is_battle,
            "mode": "battle" if is_battle else "dialogue" if is_locked else "walk",
        }
