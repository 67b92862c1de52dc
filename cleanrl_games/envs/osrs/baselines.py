"""Scripted opponents: random play, and a ladder of players of growing skill.

They see what a policy sees, observations and masks, so they play on the server too. Everything is read and chosen by
name: `obs[HEALTH]`, `mask[EAT_FOOD]`, `choose(action, EAT_FOOD)`. A rung of the ladder is a few named numbers (`RUNGS`)
for one set of rules (`rung_action`).
"""

import numpy as np
from numba import njit

from .contract import FORBIDS, HEAD_NAMES, HEAD_OFFSETS, HEAD_SIZES, LOGIT, NEEDS, NUM_HEADS, OBS
from .rules import FIGHT, chance, roll

_SIZES, _OFFSETS = np.array(HEAD_SIZES), np.array(HEAD_OFFSETS)
_HEAD_OF = np.repeat(np.arange(NUM_HEADS), HEAD_SIZES)

# --------------------------------------------------------------------------------------------- names, for compiled code

HEALTH, TARGET_HEALTH = OBS["player_health_percent"], OBS["target_health_percent"]
TARGET_USING_MELEE, TARGET_USING_RANGED = OBS["target_using_melee"], OBS["target_using_ranged"]
TARGET_USING_MAGE = OBS["target_using_mage"]
MELEE_PRAYER_UP, RANGED_PRAYER_UP = OBS["player_melee_prayer"], OBS["player_ranged_prayer"]
MAGE_PRAYER_UP = OBS["player_magic_prayer"]
TARGET_PRAYS_MELEE, TARGET_PRAYS_RANGED = OBS["target_melee_prayer"], OBS["target_ranged_prayer"]
TARGET_PRAYS_MAGE = OBS["target_magic_prayer"]
PRAYER_POINTS = OBS["prayer_points"]
TARGET_FROZEN_TICKS = OBS["target_frozen_ticks"]
BESIDE_TARGET, DISTANCE = OBS["player_location_can_melee"], OBS["player_to_target_distance"]
STRENGTH_LEVEL, RANGED_LEVEL, MAGIC_LEVEL = OBS["strength_level"], OBS["ranged_level"], OBS["magic_level"]
ATTACK_COOLDOWN, TARGET_ATTACK_COOLDOWN = OBS["attack_cycle_ticks"], OBS["target_attack_cycle_ticks"]
DAMAGE_ON_TARGET, ATTACKS_SO_FAR = OBS["damage_on_target_tick"], OBS["target_prayer_confidence"]
PENDING_DAMAGE = OBS["pending_damage_on_target"]
MAGIC_ACCURACY, MAGIC_STRENGTH = OBS["magic_accuracy"], OBS["magic_strength"]
RANGED_ACCURACY, RANGED_STRENGTH = OBS["ranged_accuracy"], OBS["ranged_strength"]
MELEE_ACCURACY, MELEE_STRENGTH = OBS["melee_accuracy"], OBS["melee_strength"]
RANGED_SPEED, MELEE_SPEED = OBS["ranged_attack_speed"], OBS["melee_attack_speed"]
TARGET_RANGED_DEFENCE = OBS["target_current_gear_ranged_defence"]
TARGET_MAGE_DEFENCE = OBS["target_current_gear_mage_defence"]
TARGET_MELEE_DEFENCE = OBS["target_current_gear_melee_defence"]

NO_ATTACK, MAGE_ATTACK = LOGIT["no_op_attack"], LOGIT["mage_attack"]
RANGED_ATTACK, MELEE_ATTACK = LOGIT["ranged_attack"], LOGIT["melee_attack"]
BASIC_MELEE, MELEE_SPECIAL = LOGIT["basic_melee_attack"], LOGIT["melee_special_attack"]
BASIC_RANGED = LOGIT["basic_ranged_attack"]
ICE, BLOOD = LOGIT["use_ice_spell"], LOGIT["use_blood_spell"]
BREW, RESTORE = LOGIT["use_brew"], LOGIT["use_restore_potion"]
COMBAT_POTION, RANGED_POTION = LOGIT["use_combat_potion"], LOGIT["use_ranged_potion"]
EAT_FOOD, EAT_KARAMBWAN, VENGEANCE = LOGIT["eat_primary_food"], LOGIT["eat_karambwan"], LOGIT["use_veng"]
TANK_GEAR = LOGIT["use_tank_gear"]
MOVE_UNDER, MOVE_AWAY, FOUR_TILES = LOGIT["move_under_target"], LOGIT["move_to_farcast_tile"], LOGIT["farcast_4_tiles"]
PRAY_MAGE, PRAY_RANGED, PRAY_MELEE = LOGIT["mage_prayer"], LOGIT["ranged_prayer"], LOGIT["melee_prayer"]
ATTACK_HEAD, POTION_HEAD = HEAD_NAMES.index("attack"), HEAD_NAMES.index("potion")
FOOD_HEAD, KARAMBWAN_HEAD = HEAD_NAMES.index("food"), HEAD_NAMES.index("karambwan")
PRAYER_HEAD = HEAD_NAMES.index("prayer")
# In both heads the styles stand in this order, after the no-op.
MAGE, RANGED, MELEE = 1, 2, 3

# ---------------------------------------------------------------------------------------------------------- random play


@njit(cache=True)
def legal(mask, chosen, logit):
    """Whether an action may be taken now, given the actions chosen in earlier heads."""
    if not mask[logit] or (FORBIDS[logit] >= 0 and chosen[FORBIDS[logit]]):
        return False
    return NEEDS[logit] < 0 or chosen[NEEDS[logit]]


@njit(cache=True)
def random_action(dice, mask, chosen, action):
    """Uniform over the legal actions of each head; a head with nothing legal takes action 0."""
    chosen[:] = False
    for head in range(NUM_HEADS):
        action[head], count = 0, 0
        for i in range(_SIZES[head]):
            if legal(mask, chosen, _OFFSETS[head] + i):
                count += 1
                if roll(dice, count) == 0:  # the k-th legal action replaces the pick with chance 1/k
                    action[head] = i
        chosen[_OFFSETS[head] + action[head]] = True


# ----------------------------------------------------------------------------------------------------------- the ladder

SKILL = np.dtype(
    [
        ("prays", np.float32),  # chance in a tick to look at the target's weapon and pray against it
        ("mixes", np.float32),  # chance that an attack's style is chosen; otherwise it is a spell
        ("off_prayer", np.float32),  # chance to choose a style that the target does not pray against; otherwise any
        ("reads_gear", np.float32),  # chance to choose the style that hurts most through what the target wears
        ("eats_below", np.float32),  # health below which it eats
        ("combo_below", np.float32),  # health below which it eats a karambwan on top, or drinks a brew
        ("drinks", np.float32),  # 1: restores and boosts its levels
        ("specs_below", np.float32),  # the target's health below which it uses its special attack
        ("tanks", np.float32),  # chance to wait for its next attack in tank gear, instead of weapon in hand
        ("steps", np.float32),  # 1: steps under a frozen target, keeps away from a free one
        ("sees", np.float32),  # chance to know what the target does in this very tick
    ]
)

# From the bottom up. name: (what it is, what it does otherwise than the rung below); what nobody has named is 0
RUNGS = {
    "mage_only": ("casts ice, leaves one prayer on, eats late", {"eats_below": 0.35}),
    "no_prayer": (
        "attacks with any style, leaves one prayer on",
        {"mixes": 1, "eats_below": 0.40, "specs_below": 0.3},
    ),
    "late_prayer": ("prays against the target's weapon, slowly", {"prays": 0.3, "eats_below": 0.45}),
    "off_prayer": (
        "attacks past the target's prayer, too",
        {"off_prayer": 0.8, "combo_below": 0.20, "specs_below": 0.4},
    ),
    "drinker": ("keeps its levels up and combo-eats when low", {"prays": 0.4, "combo_below": 0.25, "drinks": 1}),
    "quick_prayer": ("prays in time", {"prays": 0.7, "off_prayer": 1, "eats_below": 0.50, "combo_below": 0.30}),
    "tank": (
        "prays at once, waits in tank gear, eats well",
        {"prays": 1, "eats_below": 0.60, "combo_below": 0.40, "tanks": 1},
    ),
    "nh": (
        "steps under a frozen target, kills with its special attack",
        {"combo_below": 0.45, "specs_below": 0.5, "steps": 0.5},
    ),
    "gear_reader": ("also picks the style that hurts most", {"reads_gear": 0.7}),
    "seer_10": ("also sees every tenth action before it is made", {"sees": 0.10}),
    "seer_20": ("sees every fifth action", {"sees": 0.20}),
    "seer_30": ("sees three actions of ten", {"sees": 0.30}),
}


def skill_of(name):
    """A rung's row of SKILL: its own numbers on those of all rungs below"""
    skill = np.zeros(1, SKILL).view(np.recarray)
    for rung, (_, numbers) in RUNGS.items():
        for rule, number in numbers.items():
            skill[rule] = number
        if rung == name:
            break
    return skill


@njit(cache=True)
def choose(action, logit):
    action[_HEAD_OF[logit]] = logit - _OFFSETS[_HEAD_OF[logit]]


@njit(cache=True)
def threat(obs):
    """The style of the weapon in the target's hands."""
    return MAGE if obs[TARGET_USING_MAGE] == 1 else RANGED if obs[TARGET_USING_RANGED] == 1 else MELEE


@njit(cache=True)
def prayer_up(obs):
    return MAGE if obs[MAGE_PRAYER_UP] == 1 else RANGED if obs[RANGED_PRAYER_UP] == 1 else MELEE


@njit(cache=True)
def prays_against(obs, style):
    if style == MAGE:
        return obs[TARGET_PRAYS_MAGE] == 1
    return obs[TARGET_PRAYS_RANGED] == 1 if style == RANGED else obs[TARGET_PRAYS_MELEE] == 1


@njit(cache=True)
def expected_damage(obs, style):
    """About what a tick with this style is worth, through what the target wears now."""
    if style == MAGE:
        accuracy, defence = obs[MAGIC_ACCURACY], obs[TARGET_MAGE_DEFENCE]
        damage = 30 * (1 + obs[MAGIC_STRENGTH] / 100) / 5
    elif style == RANGED:
        accuracy, defence = obs[RANGED_ACCURACY], obs[TARGET_RANGED_DEFENCE]
        damage = 0.2 * (obs[RANGED_STRENGTH] + 64) / obs[RANGED_SPEED]
    else:
        accuracy, defence = obs[MELEE_ACCURACY], obs[TARGET_MELEE_DEFENCE]
        damage = 0.2 * (obs[MELEE_STRENGTH] + 64) / obs[MELEE_SPEED]
    ratio = 1.25 * (accuracy + 64) / (defence + 64)
    return damage * (1 - 0.5 / ratio if ratio > 1 else 0.5 * ratio)


@njit(cache=True)
def can_use(obs, mask, style):
    """Melee counts only where the target can be reached soon."""
    if style == MAGE:
        return mask[MAGE_ATTACK] and (mask[ICE] or mask[BLOOD])
    if style == RANGED:
        return mask[BASIC_RANGED]
    return mask[BASIC_MELEE] and (obs[BESIDE_TARGET] == 1 or obs[DISTANCE] <= 3)


@njit(cache=True)
def pick_style(dice, obs, mask, prayed, skill):
    """A style for the next attack; `prayed`: the one that the target's prayer stops, 0 = look."""
    if not chance(dice, skill.mixes):
        return MAGE if can_use(obs, mask, MAGE) else RANGED
    past_prayer = chance(dice, skill.off_prayer)
    by_damage = chance(dice, skill.reads_gear)
    best, best_worth = 0, -1.0
    for style in range(1, 4):
        if not can_use(obs, mask, style):
            continue
        worth = expected_damage(obs, style) if by_damage else 0.5 + roll(dice, 1024) / 1024
        stopped = style == prayed if prayed > 0 else prays_against(obs, style)
        if past_prayer and stopped:
            worth *= 0.6 if by_damage else 0.1
        if worth > best_worth:
            best, best_worth = style, worth
    return best


@njit(cache=True)
def attack_with(dice, obs, mask, style, action):
    if style == MAGE:
        frozen = obs[TARGET_FROZEN_TICKS] > 0
        wants_blood = mask[BLOOD] and obs[HEALTH] < 0.75 and (frozen or roll(dice, 2) == 0)
        choose(action, MAGE_ATTACK)
        choose(action, BLOOD if wants_blood or not mask[ICE] else ICE)
    elif style == RANGED:
        choose(action, RANGED_ATTACK)
        choose(action, BASIC_RANGED)
    else:
        choose(action, MELEE_ATTACK)
        choose(action, BASIC_MELEE)


@njit(cache=True)
def eat_and_drink(obs, mask, skill, action):
    """Food first, a karambwan on top when in danger, a brew when that is all there is; then potions for drained
    levels."""
    danger = obs[HEALTH] < skill.combo_below
    if obs[HEALTH] < skill.eats_below and mask[EAT_FOOD]:
        choose(action, EAT_FOOD)
    if danger and mask[EAT_KARAMBWAN] and (action[FOOD_HEAD] == 1 or not mask[EAT_FOOD]):
        choose(action, EAT_KARAMBWAN)
    elif danger and mask[BREW]:
        choose(action, BREW)
    if action[POTION_HEAD] == 0 and action[KARAMBWAN_HEAD] == 0 and skill.drinks > 0:
        if mask[RESTORE] and (obs[MAGIC_LEVEL] < 0.95 or obs[PRAYER_POINTS] < 0.25):
            choose(action, RESTORE)
        elif mask[COMBAT_POTION] and obs[STRENGTH_LEVEL] < 0.9:
            choose(action, COMBAT_POTION)
        elif mask[RANGED_POTION] and obs[RANGED_LEVEL] < 0.92:
            choose(action, RANGED_POTION)


@njit(cache=True)
def rung_action(dice, obs, mask, target_action, skill, action):
    """How a rung of the ladder plays. `target_action` is what the target does in this tick, for those who see it."""
    action[:] = 0
    sees = chance(dice, skill.sees)

    # overhead prayer: against the weapon that is held, or the attack that is coming
    prayer = threat(obs) if chance(dice, skill.prays) else prayer_up(obs)
    if sees and target_action[ATTACK_HEAD] > 0:
        prayer = target_action[ATTACK_HEAD]
    if mask[PRAY_MAGE - 1 + prayer]:
        choose(action, PRAY_MAGE - 1 + prayer)
    elif mask[PRAY_RANGED]:
        choose(action, PRAY_RANGED)
    eat_and_drink(obs, mask, skill, action)
    if mask[VENGEANCE] and skill.drinks > 0 and roll(dice, 3) == 0:
        choose(action, VENGEANCE)

    can_attack = not mask[NO_ATTACK]
    if can_attack or not chance(dice, skill.tanks):
        prayed = target_action[PRAYER_HEAD] if sees and target_action[PRAYER_HEAD] > 0 else 0
        known = obs[DAMAGE_ON_TARGET] > 0.0 or obs[ATTACKS_SO_FAR] > 0.0  # before that the server shows a health of 0
        weak = known and obs[TARGET_HEALTH] - obs[PENDING_DAMAGE] < skill.specs_below
        melee_stopped = prayed == MELEE if prayed > 0 else prays_against(obs, MELEE)
        if weak and mask[MELEE_SPECIAL] and not melee_stopped and (obs[BESIDE_TARGET] == 1 or obs[DISTANCE] <= 3):
            choose(action, MELEE_ATTACK)
            choose(action, MELEE_SPECIAL)
        else:
            style = pick_style(dice, obs, mask, prayed, skill)
            if style > 0:
                attack_with(dice, obs, mask, style, action)
            elif mask[BASIC_MELEE]:
                attack_with(dice, obs, mask, MELEE, action)
    elif mask[TANK_GEAR]:
        choose(action, TANK_GEAR)
    if not can_attack and chance(dice, skill.steps):
        if mask[MOVE_UNDER] and obs[ATTACK_COOLDOWN] >= 2:
            choose(action, MOVE_UNDER)  # under a frozen target it cannot hit back
        elif mask[MOVE_AWAY] and obs[DISTANCE] < 4 and obs[TARGET_FROZEN_TICKS] == 0 and mask[FOUR_TILES]:
            choose(action, MOVE_AWAY)
            choose(action, FOUR_TILES)


# ----------------------------------------------------------------------------------------------------------- in batches


@njit(cache=True)
def random_batch(dice, masks, rows, chosen, actions):
    for row in rows:
        random_action(dice[row], masks[row], chosen, actions[row])


@njit(cache=True)
def rung_batch(dice, obs, masks, rows, skill, actions):
    for row in rows:
        rung_action(dice[row], obs[row], masks[row], actions[row ^ 1], skill, actions[row])


class Baseline:
    """A scripted player for a batch: `act(obs, masks, rows, actions)` fills the rows of flat (M, 12) actions it answers
    for.

    One die per row, so that what a row does depends on its own past only. A player that `sees` reads its target's row
    of `actions` (row ^ 1), which has to be filled before.
    """

    def __init__(self, name, num_rows, seed=1):
        if name not in BASELINES:
            raise ValueError(f"Unknown baseline {name!r}. There are: {', '.join(BASELINES)}.")
        self.name = name
        self.skill = skill_of(name) if name in RUNGS else np.zeros(1, SKILL).view(np.recarray)
        self.sees = bool(self.skill[0].sees > 0)
        self.dice = np.zeros(num_rows, FIGHT).view(np.recarray)
        self.dice["rng"] = np.random.SeedSequence(seed).generate_state(num_rows) | 1
        self.chosen = np.zeros(sum(HEAD_SIZES), np.bool_)

    def act(self, obs, masks, rows, actions):
        if self.name == "random":
            random_batch(self.dice, masks, rows, self.chosen, actions)
        else:
            rung_batch(self.dice, obs, masks, rows, self.skill[0], actions)


LADDER = tuple(RUNGS)
BASELINES = ("random", *LADDER)
# Of 300 fights of each against each, with `nh` as the fixed point; their 95 % intervals are ±22 to ±38 points:
# python cleanrl_games/tools/arena.py random --game osrs --episodes 300 --anchor nh
ELO = {
    "random": 707.0, "mage_only": 404.0, "no_prayer": 494.0, "late_prayer": 543.0, "off_prayer": 682.0,
    "drinker": 999.0, "quick_prayer": 1070.0, "tank": 1367.0, "nh": 1500.0, "gear_reader": 1528.0,
    "seer_10": 1596.0, "seer_20": 1613.0, "seer_30": 1646.0,
}  # fmt: skip
