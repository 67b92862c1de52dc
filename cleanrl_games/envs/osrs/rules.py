"""Constants, records, dice and formulas of the game: what `simulator.py` plays with, each checkable by hand."""

import numpy as np
from numba import njit

from .loadouts import MELEE

# Styles of an attack; a protection prayer is the style it stops plus one, as in the prayer head.
STYLE_MAGE, STYLE_RANGED, STYLE_MELEE = 0, 1, 2
SPLASH = 3  # a spell that missed: it travels like one that hit, but leaves no hitsplat
NO_PRAYER, SMITE, REDEMPTION = 0, 4, 5
ICE, BLOOD = 1, 2
DDS, AGS, CLAWS, GMAUL, VLS, SWH = range(1, 7)
BALLISTA, ZARYTE, DARK_BOW, DRAGON_KNIFE = range(1, 5)
DIAMOND, OPAL, DRAGONSTONE = 1, 2, 3
CROSSBOW, BOW, THROWN, BALLISTA_WEAPON = range(4)
LMS, WILDERNESS, ARENA = range(3)
ANGLERFISH, SHARK, MANTA = range(3)
WON, LOST, TIED = 1, 2, 3
LONG_AGO = -100  # the attack timer counts on below zero, because food adds its delay to where it stands

MELEE_ENERGY = np.array([0, 25, 50, 50, 50, 25, 35])
RANGED_ENERGY = np.array([0, 65, 75, 55, 25])
NIGHTMARE_ENERGY = 55
# Strongest spell first: level needed, maximum hit, ticks of freeze.
ICE_SPELLS = np.array([[94, 30, 32], [82, 26, 24], [70, 22, 16], [58, 16, 8]])
BLOOD_SPELLS = np.array([[92, 29], [80, 25], [68, 21], [56, 15]])
FREEZE_IMMUNITY = 5
FOOD_HEAL = np.array([22, 20, 22])  # anglerfish: see anglerfish_heal
KARAMBWAN_HEAL = 18
VENGEANCE_COOLDOWN = 50
ENERGY_TICKS, DRIFT_TICKS = 50, 100
# Numbers that the public server has otherwise than the game itself, as [game, server]: `fight.quirks` is the index.
PID_TICKS = np.array([100, 40])  # each player draws its place in the order anew after at least so many ticks …
PID_SPREAD = np.array([51, 21])  # … and at most so many more (exclusive)
DIAMOND_CHANCE = np.array([5, 10])  # per cent, against players
# Run energy in 1/10,000. The server takes 1 % for each tick in which a fighter moves. At 0 it switches running off and
# never on again: the next fight fills up the energy, but that agent walks until it logs in anew.
FULL_RUN_ENERGY = 10_000
RUN_COST = np.array([67, 100])
RUN_FREE_TILES = np.array([1, 0])  # so many tiles a tick cost nothing
RUN_RECOVERY = np.array([24, 0])  # per tick without running
# A new fight of the same two agents begins so many ticks after a death on the server, and the clocks of special energy
# and PID go on meanwhile. Once in so many fights the agents of a place log in anew, and run again.
TICKS_BETWEEN_FIGHTS = 8
FIGHTS_PER_LOGIN = 4
START_DISTANCES = np.array([1, 2, 3, 3, 4, 5])
MAX_QUEUED = 12

# Boost prayers in per cent, by [style][strong prayer known]: accuracy, strength, defence.
BOOSTS = np.array(
    [[[115, 100, 100], [125, 100, 125]], [[115, 115, 100], [120, 123, 125]], [[115, 115, 100], [120, 123, 125]]]
)

FIGHT = np.dtype(
    [
        ("rng", np.int64),
        ("tick", np.int32),
        ("pid", np.int32),  # which fighter is processed first
        ("quirks", np.int32),  # 1 = as the public server, 0 = as the game, where the two differ
        ("result", np.int32),  # 0 while it goes on, else WON, LOST or TIED as fighter 0 sees it
    ],
    align=True,
)

FIGHTER = np.dtype(
    [
        (name, np.int32)
        for name in (
            # body
            "loadout hp prayer_points prayer_drain attack strength defence ranged magic energy "
            # clocks that go on from fight to fight: ticks until special energy comes back (0 = stopped), run energy,
            # and the draw that decides who is processed first, with the ticks until it is drawn anew
            "energy_timer run_energy pid_draw pid_timer logged_in "
            # what it wears, prays and is about to do
            "worn boost overhead attacking spell special vengeance "
            # timers, in ticks
            "attack_timer food_timer potion_timer karambwan_timer freeze_timer immunity_timer vengeance_timer "
            # bag
            "brew restore combat ranging karambwan food free_slots "
            # ground
            "x y has_destination destination_x destination_y moved "
            # hits on the way to this fighter, and hitsplats waiting because a tick shows two at most
            "hit_count splat_count "
            # what happened to it in this tick
            "received splatted "
            # what it did in this tick
            "attacked rolled last_roll extra healed wasted attack_speed hit_off_prayer new_freeze smited "
            # what its opponent has seen of it so far
            "received_total attack_count foe_correct_count shown_lunar recent_attacks recent_prayers"
        ).split()
    ]
    + [
        ("shown_health", np.float32),
        ("hit_damage", np.int32, (MAX_QUEUED,)),
        ("hit_delay", np.int32, (MAX_QUEUED,)),
        ("hit_style", np.int32, (MAX_QUEUED,)),
        ("splats", np.int32, (MAX_QUEUED,)),
        ("style_count", np.int32, (3,)),
        ("foe_prayer_count", np.int32, (3,)),
        # the last five attacks: their style, whether the foe's prayer stopped them, and the foe's last five prayers
        ("recent_style", np.int32, (5,)),
        ("recent_correct", np.int32, (5,)),
        ("recent_foe_prayer", np.int32, (5,)),
        # gear as last seen attacking with each style; accuracy -1 = not yet
        ("shown_accuracy", np.int32, (3,)),
        ("shown_strength", np.int32, (3,)),
        ("shown_ranged_defence", np.int32, (3,)),
        ("shown_mage_defence", np.int32, (3,)),
        ("shown_melee_defence", np.int32, (3,)),
    ],
    align=True,
)


# ------------------------------------------------------------------------------------------------------- dice, formulas


@njit(cache=True)
def roll(fight, sides):
    """A whole number from 0 to sides - 1 (xorshift32 in 64 bits, so that plain Python computes the same)."""
    x = fight.rng
    x ^= (x << 13) & 0xFFFFFFFF
    x ^= x >> 17
    x ^= (x << 5) & 0xFFFFFFFF
    fight.rng = x
    return (x * sides) >> 32


@njit(cache=True)
def chance(fight, probability):
    return roll(fight, 1 << 24) < probability * (1 << 24)


@njit(cache=True)
def effective_level(level, boost_percent, stance):
    return level * boost_percent // 100 + stance + 8


@njit(cache=True)
def effective_magic_defence(magic_level, boost_percent, effective_defence):
    return 7 * (magic_level * boost_percent // 100) // 10 + 3 * effective_defence // 10


@njit(cache=True)
def hit_probability(attack_roll, defence_roll):
    if attack_roll > defence_roll:
        return 1.0 - (defence_roll + 2.0) / (2.0 * (attack_roll + 1.0))
    return attack_roll / (2.0 * (defence_roll + 1.0))


@njit(cache=True)
def max_hit(effective_strength, strength_bonus):
    return (effective_strength * (strength_bonus + 64) + 320) // 640


@njit(cache=True)
def hit_delay(style, ranged_weapon, distance):
    """Ticks from the attack to its hitsplat."""
    if style == STYLE_MELEE:
        return 0
    if style == STYLE_MAGE:
        return 1 + (1 + distance) // 3
    if ranged_weapon == THROWN:
        return 1 + distance // 6
    if ranged_weapon == BALLISTA_WEAPON:
        return 2 + (1 + distance) // 6
    return 1 + (3 + distance) // 6


@njit(cache=True)
def anglerfish_heal(hitpoints_level):
    base = 13 if hitpoints_level >= 93 else 8 if hitpoints_level >= 75 else 6 if hitpoints_level >= 50 else 4
    return min(hitpoints_level // 10 + base, 22)


@njit(cache=True)
def food_heal(kit):
    return anglerfish_heal(kit.hitpoints_level) if kit.food_type == ANGLERFISH else FOOD_HEAL[kit.food_type]


@njit(cache=True)
def brew_heal(kit):
    return kit.hitpoints_level * 15 // 100 + 2


@njit(cache=True)
def boost_percent(me, kit, column):
    """What the boost prayer that is up gives: column 0 accuracy, 1 strength, 2 defence; of its own style only for 0,
    1."""
    if me.boost == 0:
        return 100
    return BOOSTS[me.boost - 1, kit.strong_prayers[me.boost - 1], column]


@njit(cache=True)
def attack_roll(me, kit, style, outfit):
    if style == STYLE_MAGE:
        boost = boost_percent(me, kit, 0) if me.boost == 1 else 100
        effective = me.magic * boost // 100 + 9
    elif style == STYLE_RANGED:
        effective = effective_level(me.ranged, boost_percent(me, kit, 0) if me.boost == 2 else 100, 0)
    else:
        stance = 3 if kit.accurate[outfit] else 0
        effective = effective_level(me.attack, boost_percent(me, kit, 0) if me.boost == 3 else 100, stance)
    return effective * (kit.rolled_accuracy[outfit] + 64)


@njit(cache=True)
def defence_roll(me, kit, style):
    effective = effective_level(me.defence, boost_percent(me, kit, 2), 0)
    if style == STYLE_MAGE:
        boost = boost_percent(me, kit, 0) if me.boost == 1 else 100
        return effective_magic_defence(me.magic, boost, effective) * (kit.mage_defence[me.worn] + 64)
    if style == STYLE_RANGED:
        return effective * (kit.ranged_defence[me.worn] + 64)
    return effective * (kit.melee_defence[me.worn] + 64)


@njit(cache=True)
def style_max_hit(me, kit, style, outfit):
    """Ranged rapid has no stance bonus; melee is fought aggressively (+3 strength) if the weapon can be. Spells: see
    cast."""
    if style == STYLE_RANGED:
        strength = effective_level(me.ranged, boost_percent(me, kit, 1) if me.boost == 2 else 100, 0)
        return max_hit(strength, kit.strength[outfit])
    stance = 0 if kit.accurate[outfit] else 3
    strength = effective_level(me.strength, boost_percent(me, kit, 1) if me.boost == 3 else 100, stance)
    damage = max_hit(strength, kit.strength[outfit])
    if kit.dharoks and outfit == MELEE:
        missing = max(kit.hitpoints_level - me.hp, 0)
        damage += damage * missing * kit.hitpoints_level // 10000
    return damage
