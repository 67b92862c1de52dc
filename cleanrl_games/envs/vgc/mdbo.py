"""MDBO: the action space of a doubles decision as one number, and what is legal, from the player's own request.

    slot action   10·move + 5·tera + (target + 2)   0–39   move 0–3; target −2, −1 own slots, 0 none, 1, 2 the
      opponent's
                  40–43                              switch to position 1–4 of the request's side.pokemon
                  44                                 pass
    joint action  45·slot0 + slot1                   0–2024
    preview       a line-up of four                  0–89   (leads ascending, back pair ascending, in itertools order)

A factored policy (45-way slot 0, then 45-way slot 1 given slot 0) and a flat 2025-way head speak of the same number.
`showdown/mdbo.js` is the same table in the simulator's process; a test compares the two on every request of many
battles."""

from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np

SLOT_ACTIONS = 45
SWITCH = 40
PASS = 44
NUM_ACTIONS = SLOT_ACTIONS * SLOT_ACTIONS
NUM_PREVIEWS = 90
DEFAULT = -1  # leaves the choice to the simulator
NO_PASS_RULE = 255
PREVIEWS = np.array([p for p in permutations(range(6), 4) if p[0] < p[1] and p[2] < p[3]])  # (90, 4)
PAIRS_OF_SIX = np.array(list(combinations(range(6), 2)))  # (15, 2)
# A preview is a pair that leads and a pair behind it: their numbers among the fifteen. (90, 2)
PREVIEW_PAIRS = (PREVIEWS.reshape(90, 2, 1, 2) == PAIRS_OF_SIX).all(-1).argmax(-1)

FOES, ALLY, SELF = "foes", "ally", "self"
TARGETS = {
    "normal": (FOES, ALLY),
    "any": (FOES, ALLY),
    "adjacentFoe": (FOES,),
    "adjacentAlly": (ALLY,),
    "adjacentAllyOrSelf": (ALLY, SELF),
}


class SlotAction(NamedTuple):
    """One slot's half of a decision: exactly one of move, switch (positions from 0), or neither (pass)."""

    move: int | None = None
    target: int = 0
    tera: bool = False
    switch: int | None = None


def pair_table() -> np.ndarray:
    """Which two slot actions may stand side by side: one tera a turn, and nobody switches in twice."""
    action = np.arange(SLOT_ACTIONS)
    tera = (action < SWITCH) & (action % 10 >= 5)
    switch = (action >= SWITCH) & (action < PASS)
    same_switch = (action[:, None] == action) & switch[:, None]
    return ~(tera[:, None] & tera) & ~same_switch


PAIRS = pair_table()  # (45, 45)
# How many of the two slots pass: a forced double switch with one Pokémon left must pass exactly once.
PASSES = (np.arange(SLOT_ACTIONS)[:, None] == PASS).astype(np.uint8) + (np.arange(SLOT_ACTIONS) == PASS)  # (45, 45)


# -------------------------------------------------------------------------------------------- numbers and their meaning


def encode_slot(slot: SlotAction) -> int:
    if slot.switch is not None:
        return SWITCH + slot.switch
    if slot.move is None:
        return PASS
    return 10 * slot.move + 5 * slot.tera + slot.target + 2


def decode_slot(action: int) -> SlotAction:
    if action == PASS:
        return SlotAction()
    if action >= SWITCH:
        return SlotAction(switch=action - SWITCH)
    return SlotAction(move=action // 10, tera=action % 10 >= 5, target=action % 5 - 2)


def encode(slot0: SlotAction, slot1: SlotAction) -> int:
    return SLOT_ACTIONS * encode_slot(slot0) + encode_slot(slot1)


def decode(action: int) -> tuple[SlotAction, SlotAction]:
    return decode_slot(action // SLOT_ACTIONS), decode_slot(action % SLOT_ACTIONS)


def slot_parts() -> np.ndarray:
    """Which words say a slot's action: four moves, five targets, tera, four switches, pass."""
    parts = np.zeros((SLOT_ACTIONS, 4 + 5 + 1 + 4 + 1), np.float32)
    for action in range(SLOT_ACTIONS):
        slot = decode_slot(action)
        if slot.move is not None:
            parts[action, [slot.move, 4 + slot.target + 2]] = 1.0
            parts[action, 9] = slot.tera
        else:
            parts[action, 14 if slot.switch is None else 10 + slot.switch] = 1.0
    return parts


SLOT_PARTS = slot_parts()  # (45, 15)


# ---------------------------------------------------------------------------------------------------------------- masks


def fainted(mon: dict) -> bool:
    return mon["condition"].endswith(" fnt")


def gimmick(active: dict) -> str:
    """The word behind a move when its tera bit is set; formats with mega evolution use the same bit for that."""
    for key, word in (
        ("canTerastallize", "terastallize"),
        ("canMegaEvo", "mega"),
        ("canMegaEvoX", "megax"),
        ("canMegaEvoY", "megay"),
    ):
        if active.get(key):
            return word
    return ""


def move_actions(active: dict, slot: int) -> list[int]:
    actions = []
    for index, move in enumerate(active["moves"][:4]):
        if move.get("disabled"):
            continue
        # A move that chooses its own target (spread, locked, Struggle) takes none.
        who = TARGETS.get(move.get("target"))
        places = {FOES: (1, 2), ALLY: (slot - 2,), SELF: (-slot - 1,)}
        targets = (0,) if who is None else [place for group in who for place in places[group]]
        for tera in (False, True) if gimmick(active) else (False,):
            actions += [encode_slot(SlotAction(index, target, tera)) for target in targets]
    return actions


def slot_masks(request: dict) -> tuple[np.ndarray, int]:
    """Legal actions of each slot, (2, 45) uint8, and the pass rule; `joint_mask` puts them together."""
    slots = np.zeros((2, SLOT_ACTIONS), np.uint8)
    team = request["side"]["pokemon"]
    bench = [position for position in range(2, len(team)) if not fainted(team[position])]
    if "forceSwitch" in request:
        forced = request["forceSwitch"]
        passes = sum(forced) - min(sum(forced), len(bench))
        for slot in range(2):
            if not forced[slot]:
                slots[slot, PASS] = 1
                continue
            # Revival Blessing asks through a forced switch; its targets are the fainted, wherever they stand.
            reviving = team[slot].get("reviving")
            places = [position for position, mon in enumerate(team) if fainted(mon)] if reviving else bench
            slots[slot, [SWITCH + place for place in places]] = 1
            slots[slot, PASS] = passes > 0
        return slots, passes if sum(forced) == 2 and passes else NO_PASS_RULE
    for slot in range(2):
        active = request["active"][slot]
        if active is None or fainted(team[slot]) or team[slot].get("commanding"):
            slots[slot, PASS] = 1
            continue
        slots[slot, move_actions(active, slot)] = 1
        if not active.get("trapped"):
            slots[slot, [SWITCH + position for position in bench]] = 1
    return slots, NO_PASS_RULE


def joint_mask(slots: np.ndarray, pass_rule: np.ndarray | int) -> np.ndarray:
    """(…, 2, 45) slot masks and (…) pass rules -> (…, 2025) bool, the exact set of legal joint actions."""
    slots = np.asarray(slots, bool)
    joint = slots[..., 1, None, :] & PAIRS
    joint &= slots[..., 0, :, None]
    rule = np.asarray(pass_rule)
    bound = rule != NO_PASS_RULE
    if bound.any():  # rare: only a double faint with one Pokémon left
        joint &= ~bound[..., None, None] | (rule[..., None, None] == PASSES)
    return joint.reshape(*joint.shape[:-2], NUM_ACTIONS)


def preview_mask(team_size: int) -> np.ndarray:
    return (team_size > PREVIEWS).all(1)  # (90,)


def mask(request: dict) -> np.ndarray:
    """(2025,) bool for any request that asks something; of a preview only the first 90 can be set."""
    if request.get("teamPreview"):
        legal = np.zeros(NUM_ACTIONS, bool)
        legal[:NUM_PREVIEWS] = preview_mask(len(request["side"]["pokemon"]))
        return legal
    return joint_mask(*slot_masks(request))


# -------------------------------------------------------------------------------------- Showdown's and poke-env's words


def slot_choice(action: int, active: dict | None) -> str:
    slot = decode_slot(action)
    if slot.switch is not None:
        return f"switch {slot.switch + 1}"
    if slot.move is None:
        return "pass"
    tera = f" {gimmick(active or {}) or 'terastallize'}" if slot.tera else ""
    return f"move {slot.move + 1}{tera}{f' {slot.target}' if slot.target else ''}"


def choice(action: int, request: dict) -> str:
    """What a player sends to Showdown: by index, since names fail for locked moves, Ditto, Illusion and odd
    nicknames."""
    if action == DEFAULT:
        return "default"
    if request.get("teamPreview"):
        return "team " + "".join(str(position + 1) for position in PREVIEWS[action])
    active = request.get("active") or [None, None]
    return ", ".join(slot_choice(half, active[slot]) for slot, half in enumerate(divmod(action, SLOT_ACTIONS)))


def to_order(action: int, battle):
    """The action as poke-env's DoubleBattleOrder (or its default order), for the battle's last request."""
    from poke_env.battle import Move
    from poke_env.player.battle_order import DefaultBattleOrder, DoubleBattleOrder, PassBattleOrder, SingleBattleOrder

    if action == DEFAULT:
        return DefaultBattleOrder()
    request, orders = battle.last_request, []
    for index, slot in enumerate(decode(action)):
        if slot.switch is not None:
            orders.append(SingleBattleOrder(battle.team[request["side"]["pokemon"][slot.switch]["ident"]]))
        elif slot.move is None:
            orders.append(PassBattleOrder())
        else:
            active = request["active"][index]
            move_id, word = active["moves"][slot.move]["id"], gimmick(active)
            mon = battle.active_pokemon[index]
            move = (mon.moves.get(move_id) if mon else None) or Move(move_id, gen=battle.gen)
            tera, mega = slot.tera and word == "terastallize", slot.tera and word.startswith("mega")
            orders.append(SingleBattleOrder(move, terastallize=tera, mega=mega, move_target=slot.target))
    return DoubleBattleOrder(*orders)


def from_order(order, battle) -> int:
    """The action of poke-env's order; DEFAULT if it is the default order or names what the request does not offer."""
    from poke_env.battle import Move, Pokemon
    from poke_env.player.battle_order import DoubleBattleOrder

    if not isinstance(order, DoubleBattleOrder):
        return DEFAULT
    request, halves = battle.last_request, []
    for slot, half in enumerate((order.first_order, order.second_order)):
        if isinstance(half.order, Pokemon):
            team = [battle.team[mon["ident"]] for mon in request["side"]["pokemon"]]
            places = [position for position, mon in enumerate(team) if mon is half.order]
            halves.append(SlotAction(switch=places[0]) if places else None)
        elif isinstance(half.order, Move):
            moves = [move["id"] for move in ((request.get("active") or [None, None])[slot] or {"moves": []})["moves"]]
            known = half.order.id in moves
            halves.append(
                SlotAction(moves.index(half.order.id), half.move_target, half.terastallize or half.mega)
                if known
                else None
            )
        else:
            halves.append(SlotAction() if half.message == "/choose pass" else None)
    return DEFAULT if None in halves else encode(*halves)
