"""What a fighter sees after a tick (176 numbers), what it may do next (45 bits), and what the tick was worth to it.

The numbers are raw, in the server's order and with the server's quirks; the policy normalises them. Timers read
`max(t - 1, 0)`: they count down before the next click is taken, so 0 means "free at the next click".
"""

import numpy as np
from numba import njit

from . import contract
from .contract import OBS
from .loadouts import MAGE, MELEE, RANGED, SPECIAL
from .movement import attack_style, distance_between
from .rules import (
    AGS,
    ANGLERFISH,
    ARENA,
    BALLISTA,
    BLOOD_SPELLS,
    CLAWS,
    DARK_BOW,
    DDS,
    DIAMOND,
    DRAGON_KNIFE,
    DRAGONSTONE,
    GMAUL,
    ICE_SPELLS,
    KARAMBWAN_HEAL,
    LMS,
    LOST,
    MELEE_ENERGY,
    NIGHTMARE_ENERGY,
    OPAL,
    RANGED_ENERGY,
    REDEMPTION,
    SMITE,
    SWH,
    TIED,
    VLS,
    WON,
    ZARYTE,
    brew_heal,
    food_heal,
)
from .simulator import boosted_by_combat, boosted_by_ranging

# What the server calls environment parameters.
PARAMS = np.dtype(
    [("quirks", np.int32), ("allow_smite", np.int32), ("allow_redemption", np.int32), ("move_if_can_attack", np.int32)],
    align=True,
)

# The facts of a tick that rewards are made of. The simulator fills it from its fighters, the remote environment from
# the server's meta data; `reward_terms` turns it into the row of REWARD_TERMS for both.
FACTS = np.dtype(
    [
        ("result", np.int32),
        ("damage_dealt", np.float32),  # all as shares of the sufferer's HP
        ("damage_received", np.float32),
        ("extra_dealt", np.float32),
        ("extra_received", np.float32),
        ("healed", np.float32),
        ("target_healed", np.float32),
        ("wasted_food", np.float32),
        ("food_left", np.float32),
        ("target_food_left", np.float32),
        ("prayed_correctly", np.int32),  # -1 = was not attacked
        ("target_attack_speed", np.float32),
        ("hit_off_prayer", np.int32),  # -1 = did not attack
        ("attack_speed", np.float32),
        ("new_freeze", np.float32),
        ("target_new_freeze", np.float32),
        ("no_prayer", np.int32),
        ("smite", np.int32),
        ("target_smite", np.int32),
        ("health", np.float32),
    ],
    align=True,
)


@njit(cache=True)
def remaining(timer):
    return max(timer - 1, 0)


@njit(cache=True)
def can_melee(me, foe):
    return remaining(me.freeze_timer) == 0 or (abs(me.x - foe.x) + abs(me.y - foe.y)) == 1


@njit(cache=True)
def can_hold(me, kit, outfit):
    """A two-handed weapon needs a free slot for the shield, unless no shield is worn."""
    return not kit.two_handed[outfit] or me.free_slots > 0 or (me.worn != 4 and kit.two_handed[me.worn] == 1)


@njit(cache=True)
def write_mask(me, foe, kit, params, mask):
    """The 45 bits, in the order of the heads. Dependencies between heads are the policy's business."""
    free_to_attack = remaining(me.attack_timer) == 0
    frozen, foe_frozen = remaining(me.freeze_timer) > 0, remaining(foe.freeze_timer) > 0
    melee = can_melee(me, foe) and can_hold(me, kit, MELEE)
    energy_needed = MELEE_ENERGY[kit.melee_special]
    melee_special = (
        kit.melee_special > 0 and me.energy >= energy_needed and can_melee(me, foe) and can_hold(me, kit, SPECIAL)
    )
    ranged = can_hold(me, kit, RANGED)
    ranged_special = ranged and kit.ranged_special > 0 and me.energy >= RANGED_ENERGY[kit.ranged_special]
    ice = kit.lunar == 0 and me.magic >= ICE_SPELLS[-1, 0]
    blood = kit.lunar == 0 and me.magic >= BLOOD_SPELLS[-1, 0] and me.hp < kit.hitpoints_level
    mage_special = kit.mage_special > 0 and me.energy >= NIGHTMARE_ENERGY
    mask[0], mask[1], mask[2], mask[3] = (
        not free_to_attack,
        ice or blood or mage_special,
        ranged or ranged_special,
        melee or melee_special,
    )
    mask[4], mask[5], mask[6] = True, melee, melee_special
    mask[7], mask[8], mask[9] = True, ranged, ranged_special
    mask[10], mask[11], mask[12], mask[13] = True, ice, blood, mage_special

    can_drink = remaining(me.potion_timer) == 0
    brew_ceiling = kit.defence_level + kit.defence_level // 5 + 2
    brew_helps = me.defence < brew_ceiling - 1 or me.hp <= kit.hitpoints_level
    restore_helps = (
        me.attack < kit.attack_level
        or me.strength < kit.strength_level
        or me.defence < kit.defence_level
        or me.ranged < kit.ranged_level
        or me.magic < kit.magic_level
        or me.prayer_points < kit.prayer_level
    )
    combat_helps = (
        boosted_by_combat(kit.attack_level) > me.attack + 1
        or boosted_by_combat(kit.strength_level) > me.strength + 1
        or boosted_by_combat(kit.defence_level) > me.defence + 1
    )
    ranging_helps = boosted_by_ranging(kit.ranged_level) > me.ranged + 1
    mask[14] = True
    mask[15] = can_drink and me.brew > 0 and brew_helps
    mask[16] = can_drink and me.restore > 0 and restore_helps
    mask[17] = can_drink and me.combat > 0 and combat_helps
    mask[18] = can_drink and me.ranging > 0 and ranging_helps
    hungry = me.hp < kit.hitpoints_level or (kit.food_type == ANGLERFISH and me.hp == kit.hitpoints_level)
    mask[19], mask[20] = True, remaining(me.food_timer) == 0 and me.food > 0 and hungry
    mask[21] = True
    mask[22] = remaining(me.karambwan_timer) == 0 and me.karambwan > 0 and me.hp < kit.hitpoints_level
    mask[23], mask[24] = True, kit.lunar == 1 and remaining(me.vengeance_timer) == 0
    mask[25], mask[26] = True, remaining(foe.attack_timer) == 0

    gap = distance_between(me, foe)
    may_move = not frozen and (params.move_if_can_attack == 1 or not free_to_attack)
    mask[27] = True
    mask[28] = may_move and abs(me.x - foe.x) + abs(me.y - foe.y) != 1
    mask[29] = may_move and foe_frozen and gap > 0
    mask[30] = may_move
    mask[31] = may_move and not (abs(me.x - foe.x) == 1 and abs(me.y - foe.y) == 1)
    mask[32] = True
    for ring in range(2, 8):
        mask[31 + ring] = gap != ring

    prays = me.prayer_points > 0
    mask[39] = False
    mask[40] = prays and foe.shown_lunar == 0
    mask[41] = prays
    mask[42] = prays and (not frozen or not foe_frozen or abs(me.x - foe.x) + abs(me.y - foe.y) == 1)
    mask[43] = prays and params.allow_smite == 1 and kit.fight != LMS and free_to_attack
    threatened = foe.attack_timer <= 1 or me.hit_count + me.splat_count > 0
    empty = me.food + me.karambwan + me.brew == 0
    mask[44] = prays and params.allow_redemption == 1 and kit.fight != LMS and empty and threatened


@njit(cache=True)
def share(count, total):
    return count / total if total > 0 else 0.0


@njit(cache=True)
def ticks_until_hit(me):
    """-1 when nothing is on the way, 0 when it lands in the next turn."""
    if me.splat_count > 0:
        return 0
    return me.hit_delay[0] if me.hit_count > 0 else -1


@njit(cache=True)
def write_habits(me, foe, obs):
    """Who attacks with what and prays against what: over the whole fight, and over the last five attacks."""
    obs[66] = min(foe.attack_count / 20.0, 1.0)
    obs[67] = share(foe.style_count[2], foe.attack_count)
    obs[68] = share(foe.style_count[0], foe.attack_count)
    obs[69] = share(foe.style_count[1], foe.attack_count)
    obs[70] = share(me.style_count[2], me.attack_count)
    obs[71] = share(me.style_count[0], me.attack_count)
    obs[72] = share(me.style_count[1], me.attack_count)
    obs[73] = share(foe.attack_count - foe.foe_correct_count, foe.attack_count)
    obs[74] = min(me.attack_count / 20.0, 1.0)
    for style in range(3):
        obs[75 + style] = share(me.foe_prayer_count[style], me.attack_count)
        obs[78 + style] = share(foe.foe_prayer_count[style], foe.attack_count)
    obs[81] = share(me.foe_correct_count, me.attack_count)
    for column in range(82, 96):
        obs[column] = 0.0
    for i in range(5):
        # melee, mage, ranged: the order of columns 82-87
        if foe.recent_style[i] >= 0:
            obs[82 + (foe.recent_style[i] + 1) % 3] += 0.2
            obs[88] += 0.2 * (1 - foe.recent_correct[i])
        if me.recent_style[i] >= 0:
            obs[85 + (me.recent_style[i] + 1) % 3] += 0.2
            obs[95] += 0.2 * me.recent_correct[i]
        if me.recent_foe_prayer[i] >= 0:
            obs[89 + me.recent_foe_prayer[i]] += 0.2
        if foe.recent_foe_prayer[i] >= 0:
            obs[92 + foe.recent_foe_prayer[i]] += 0.2


@njit(cache=True)
def write_gear_of_target(foe, kit, obs):
    """The target's gear as last seen attacking with each style; until then, one's own as a guess."""
    for style in range(3):
        seen = foe.shown_accuracy[style] >= 0
        obs[145 + 2 * style] = foe.shown_accuracy[style] if seen else kit.accuracy[style]
        obs[146 + 2 * style] = foe.shown_strength[style] if seen else kit.strength[style]
        obs[151 + 3 * style] = foe.shown_ranged_defence[style] if seen else kit.ranged_defence[style]
        obs[152 + 3 * style] = foe.shown_mage_defence[style] if seen else kit.mage_defence[style]
        obs[153 + 3 * style] = foe.shown_melee_defence[style] if seen else kit.melee_defence[style]


@njit(cache=True)
def write_constants(me, foe, kit, params, obs):
    """The columns that keep their value until somebody attacks, most of them for the whole fight: written at its
    start."""
    obs[OBS_LEVELS] = kit.attack_level
    obs[OBS_LEVELS + 1] = kit.strength_level
    obs[OBS_LEVELS + 2] = kit.defence_level
    obs[OBS_LEVELS + 3] = kit.ranged_level
    obs[OBS_LEVELS + 4] = kit.magic_level
    obs[OBS_LEVELS + 5] = kit.prayer_level
    obs[OBS_LEVELS + 6] = kit.hitpoints_level
    obs[103], obs[104], obs[105] = kit.bolts == DRAGONSTONE, kit.bolts == OPAL, kit.bolts == DIAMOND
    obs[106], obs[107], obs[108] = kit.mage_special > 0, kit.ranged_special > 0, kit.mage_special > 0
    obs[109], obs[110] = kit.ranged_special == ZARYTE, kit.ranged_special == BALLISTA
    obs[111], obs[112], obs[113] = 0, kit.ranged_special == DRAGON_KNIFE, kit.ranged_special == DARK_BOW
    obs[114], obs[115], obs[116] = kit.melee_special == CLAWS, kit.melee_special == DDS, kit.melee_special == AGS
    obs[117], obs[118], obs[119] = kit.melee_special == VLS, kit.melee_special == SWH, 0
    obs[120], obs[121], obs[122], obs[123] = kit.melee_special == GMAUL, kit.blood_fury, kit.dharoks, 0
    obs[124], obs[125], obs[126], obs[127] = (
        kit.accuracy[MAGE],
        kit.strength[MAGE],
        kit.accuracy[RANGED],
        kit.strength[RANGED],
    )
    obs[128], obs[129] = kit.speed[RANGED], kit.ranged_range
    obs[130], obs[131], obs[132] = kit.accuracy[MELEE], kit.strength[MELEE], kit.speed[MELEE]
    for outfit in range(3):
        obs[133 + 3 * outfit] = kit.ranged_defence[outfit]
        obs[134 + 3 * outfit] = kit.mage_defence[outfit]
        obs[135 + 3 * outfit] = kit.melee_defence[outfit]
    obs[160], obs[161], obs[164] = kit.fight == LMS, kit.fight == ARENA, kit.lunar
    obs[175] = kit.food_type == ANGLERFISH and kit.food > 0
    write_gear_of_target(foe, kit, obs)
    write_habits(me, foe, obs)


@njit(cache=True)
def observe(fight, index, me, foe, kit, foe_kit, params, obs, mask):
    write_mask(me, foe, kit, params, mask)
    style, foe_style = attack_style(me), attack_style(foe)
    obs[0], obs[1], obs[2], obs[3] = style == 2, style == 1, style == 0, me.worn == SPECIAL
    obs[4] = me.energy
    obs[5], obs[6], obs[7] = me.overhead == 3, me.overhead == 2, me.overhead == 1
    obs[8], obs[9] = me.overhead == SMITE, me.overhead == REDEMPTION
    obs[10] = me.hp / kit.hitpoints_level
    obs[11] = foe.shown_health
    obs[12], obs[13], obs[14], obs[15] = foe_style == 2, foe_style == 1, foe_style == 0, foe.worn == SPECIAL
    obs[16], obs[17], obs[18] = foe.overhead == 3, foe.overhead == 2, foe.overhead == 1
    obs[19], obs[20], obs[21] = foe.overhead == SMITE, foe.overhead == REDEMPTION, foe.energy
    obs[22], obs[23], obs[24], obs[25] = me.ranging, me.combat, me.restore, me.brew
    obs[26] = me.food if kit.food_type == ANGLERFISH or params.quirks == 0 else 0
    obs[27] = me.karambwan
    obs[28] = me.prayer_points / kit.prayer_level
    obs[29], obs[30] = remaining(me.freeze_timer), remaining(foe.freeze_timer)
    obs[31], obs[32] = remaining(me.immunity_timer), remaining(foe.immunity_timer)
    obs[33] = abs(me.x - foe.x) + abs(me.y - foe.y) == 1
    obs[34] = me.strength / boosted_by_combat(kit.strength_level)
    obs[35] = me.attack / boosted_by_combat(kit.attack_level)
    obs[36] = me.defence / boosted_by_combat(kit.defence_level)
    # The server divides by ⌊.1 · level⌋ + 4 above the base, one dose of ranging potion.
    obs[37] = me.ranged / boosted_by_ranging(kit.ranged_level)
    obs[38] = me.magic / kit.magic_level
    obs[39], obs[40] = remaining(me.attack_timer), remaining(me.food_timer)
    obs[41], obs[42] = remaining(me.potion_timer), remaining(me.karambwan_timer)
    obs[43] = min(max(me.attack_timer - 1, -3), 0) + 3
    obs[44] = remaining(foe.attack_timer)
    obs[45] = remaining(foe.food_timer if params.quirks == 1 else foe.potion_timer)
    pending = 0
    for i in range(foe.hit_count):
        pending += foe.hit_damage[i]
    for i in range(foe.splat_count):
        pending += foe.splats[i]
    obs[46] = pending / foe_kit.hitpoints_level
    obs[47], obs[48] = ticks_until_hit(foe), ticks_until_hit(me)
    obs[49], obs[50] = me.attacked, foe.attacked
    obs[51] = me.last_roll / foe_kit.hitpoints_level
    obs[52], obs[53] = me.received / kit.hitpoints_level, foe.received / foe_kit.hitpoints_level
    obs[54], obs[55], obs[56] = me.attacking, me.moved, foe.moved
    obs[57] = fight.pid == index
    obs[58] = kit.lunar == 0 and me.magic >= ICE_SPELLS[0, 0]
    obs[59] = kit.lunar == 0 and me.magic >= BLOOD_SPELLS[0, 0]
    gap = distance_between(me, foe)
    obs[60], obs[61], obs[62] = min(gap, 7), 0, min(gap, 7)
    if me.has_destination:
        obs[60] = min(max(abs(me.destination_x - foe.x), abs(me.destination_y - foe.y)), 7)
        obs[61] = min(max(abs(me.destination_x - me.x), abs(me.destination_y - me.y)), 7)
    obs[63] = foe.attacked and foe.hit_off_prayer == 0
    obs[64] = me.attacked and me.hit_off_prayer == 0
    dealt, received = foe.received_total / foe_kit.hitpoints_level, me.received_total / kit.hitpoints_level
    obs[65] = min(max((dealt + 1.0) / (received + 1.0), 0.5), 2.0)
    if me.attacked or foe.attacked:
        write_gear_of_target(foe, kit, obs)
        write_habits(me, foe, obs)
    obs[142] = foe_kit.ranged_defence[foe.worn]
    obs[143] = foe_kit.mage_defence[foe.worn]
    obs[144] = foe_kit.melee_defence[foe.worn]
    obs[162], obs[163], obs[165] = me.vengeance, foe.vengeance, foe.shown_lunar
    obs[166], obs[167] = remaining(me.vengeance_timer), remaining(foe.vengeance_timer)
    obs[168], obs[169], obs[170] = mask[12], mask[11], mask[13]
    obs[171], obs[172], obs[173], obs[174] = mask[8], mask[9], mask[5], mask[6]


@njit(cache=True)
def larder(me, kit):
    """What is left to eat and brew, as a share of HP."""
    food = me.food * food_heal(kit) + me.karambwan * KARAMBWAN_HEAL + me.brew * brew_heal(kit)
    return food / kit.hitpoints_level


@njit(cache=True)
def gather_facts(result, me, foe, kit, foe_kit, facts):
    facts.result = result
    facts.damage_dealt, facts.damage_received = me.rolled / foe_kit.hitpoints_level, foe.rolled / kit.hitpoints_level
    facts.extra_dealt, facts.extra_received = me.extra / foe_kit.hitpoints_level, foe.extra / kit.hitpoints_level
    facts.healed, facts.target_healed = me.healed / kit.hitpoints_level, foe.healed / foe_kit.hitpoints_level
    facts.wasted_food = me.wasted / kit.hitpoints_level
    facts.food_left, facts.target_food_left = larder(me, kit), larder(foe, foe_kit)
    facts.prayed_correctly = -1 if foe.attacked == 0 else 1 - foe.hit_off_prayer
    facts.target_attack_speed, facts.attack_speed = foe.attack_speed, me.attack_speed
    facts.hit_off_prayer = me.hit_off_prayer
    facts.new_freeze, facts.target_new_freeze = foe.new_freeze, me.new_freeze
    facts.no_prayer = me.prayer_points == 0
    facts.smite, facts.target_smite = me.smited, foe.smited
    facts.health = me.hp / kit.hitpoints_level


@njit(cache=True)
def reward_terms(facts, terms):
    """One row of REWARD_TERMS. The only place where a tick is turned into something worth rewarding."""
    terms[0], terms[1], terms[2] = facts.result == WON, facts.result == LOST, facts.result == TIED
    terms[3] = facts.damage_dealt + facts.extra_dealt
    terms[4] = facts.damage_received + facts.extra_received
    terms[5], terms[6], terms[7] = facts.healed, facts.target_healed, facts.wasted_food
    # Food is worth the more the more of it was left: who dies with a full bag has made the bigger mistake.
    terms[8] = facts.food_left * (facts.food_left + 1.2) ** 1.5 if facts.result == LOST else 0.0
    terms[9] = facts.target_food_left * (facts.target_food_left + 1.2) ** 1.5 if facts.result == WON else 0.0
    terms[10] = facts.target_attack_speed / 5.0 if facts.prayed_correctly == 1 else 0.0
    terms[11] = facts.target_attack_speed / 5.0 if facts.prayed_correctly == 0 else 0.0
    terms[12] = facts.attack_speed / 5.0 if facts.hit_off_prayer == 1 else 0.0
    terms[13] = facts.attack_speed / 5.0 if facts.hit_off_prayer == 0 else 0.0
    terms[14], terms[15], terms[16] = facts.new_freeze, facts.target_new_freeze, facts.no_prayer
    terms[17] = facts.damage_dealt if facts.smite == 1 else 0.0
    terms[18] = facts.damage_received if facts.target_smite == 1 else 0.0
    terms[19] = facts.health if facts.result == WON else 0.0


OBS_LEVELS = OBS["absolute_attack_level"]  # 96: seven base levels follow
assert OBS["target_health_percent"] == 11 and OBS["is_food_anglerfish"] == 175 and contract.NUM_TERMS == 20
