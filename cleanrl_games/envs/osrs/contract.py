"""The NH contract: names, sizes, dependencies and reward terms that simulator, server and policy agree on.

Everything here is a table. The order of the observations and heads is the wire order of the public simulation server,
so a policy trained on `NHVecEnv` can be served to its clients and evaluated on it.
"""

import hashlib
import json

import numpy as np

# One observation a line, then its flags.
# P = partial: hidden from the opponent's view, so the critic also gets the target's own copy of it.
# C = constant within a fight: left out of the novelty reward.
_OBSERVATIONS = """
player_using_melee
player_using_ranged
player_using_mage
player_spec_equipped
special_energy_percent
player_melee_prayer
player_ranged_prayer
player_magic_prayer
player_smite_prayer
player_redemption_prayer
player_health_percent P
target_health_percent P
target_using_melee
target_using_ranged
target_using_mage
target_spec_equipped
target_melee_prayer
target_ranged_prayer
target_magic_prayer
target_smite_prayer
target_redemption_prayer
target_special_percent
range_potion_doses P
combat_potion_doses P
super_restore_doses P
brew_doses P
food_count P
karambwan_count P
prayer_points P
player_frozen_ticks
target_frozen_ticks
player_frozen_immunity_ticks
target_frozen_immunity_ticks
player_location_can_melee
strength_level P
attack_level P
defense_level P
ranged_level P
magic_level P
attack_cycle_ticks P
food_cycle_ticks P
potion_cycle_ticks
karambwan_cycle_ticks P
food_attack_delay P
target_attack_cycle_ticks
target_potion_cycle_ticks
pending_damage_on_target P
ticks_until_hit_on_target
ticks_until_hit_on_player
player_just_attacked
target_just_attacked
tick_new_attack_damage P
damage_on_player_tick
damage_on_target_tick
player_attacking_target P
player_is_moving
target_is_moving
player_has_pid
ice_barrage_usable P
blood_barrage_usable P
destination_to_target_distance P
player_to_destination_distance P
player_to_target_distance P
player_prayer_correct
target_prayer_correct
total_damage_dealt_scale P
target_attack_confidence
target_melee_hit_percent
target_magic_hit_percent
target_ranged_hit_percent
player_melee_hit_percent
player_magic_hit_percent
player_ranged_hit_percent
target_number_of_hits_off_prayer
target_prayer_confidence
target_magic_prayer_percent
target_ranged_prayer_percent
target_melee_prayer_percent
player_magic_prayer_percent
player_ranged_prayer_percent
player_melee_prayer_percent
target_correct_pray_percent
recent_target_melee_hit_percent
recent_target_magic_hit_percent
recent_target_ranged_hit_percent
recent_player_melee_hit_percent
recent_player_magic_hit_percent
recent_player_ranged_hit_percent
recent_target_number_of_hits_off_prayer
recent_target_magic_prayer_percent
recent_target_ranged_prayer_percent
recent_target_melee_prayer_percent
recent_player_magic_prayer_percent
recent_player_ranged_prayer_percent
recent_player_melee_prayer_percent
recent_target_correct_pray_percent
absolute_attack_level C
absolute_strength_level C
absolute_defense_level C
absolute_ranged_level C
absolute_magic_level C
absolute_prayer_level C
absolute_hitpoints_level C
is_enchanted_dragon_bolt PC
is_enchanted_opal_bolt PC
is_enchanted_diamond_bolt PC
is_mage_spec_weapon_loadout PC
is_ranged_spec_weapon_loadout PC
is_mage_spec_weapon_nightmare_staff PC
is_ranged_spec_weapon_zaryte_cbow PC
is_ranged_spec_weapon_ballista PC
is_ranged_spec_weapon_morrigans_javelin PC
is_ranged_spec_weapon_dragon_knife PC
is_ranged_spec_weapon_dark_bow PC
is_melee_spec_dclaws PC
is_melee_spec_dds PC
is_melee_spec_ags PC
is_melee_spec_vls PC
is_melee_spec_stat_hammer PC
is_melee_spec_ancient_godsword PC
is_melee_spec_gmaul PC
is_blood_fury PC
is_dharoks_set PC
is_zuriel_staff PC
magic_accuracy PC
magic_strength PC
ranged_accuracy PC
ranged_strength PC
ranged_attack_speed PC
ranged_attack_range PC
melee_accuracy PC
melee_strength PC
melee_attack_speed PC
magic_gear_ranged_defence PC
magic_gear_mage_defence PC
magic_gear_melee_defence PC
ranged_gear_ranged_defence PC
ranged_gear_mage_defence PC
ranged_gear_melee_defence PC
melee_gear_ranged_defence PC
melee_gear_mage_defence PC
melee_gear_melee_defence PC
target_current_gear_ranged_defence PC
target_current_gear_mage_defence PC
target_current_gear_melee_defence PC
target_magic_accuracy PC
target_magic_strength PC
target_ranged_accuracy PC
target_ranged_strength PC
target_melee_accuracy PC
target_melee_strength PC
target_magic_gear_ranged_defence PC
target_magic_gear_mage_defence PC
target_magic_gear_melee_defence PC
target_ranged_gear_ranged_defence PC
target_ranged_gear_mage_defence PC
target_ranged_gear_melee_defence PC
target_melee_gear_ranged_defence PC
target_melee_gear_mage_defence PC
target_melee_gear_melee_defence PC
is_lms_restrictions C
is_pvp_arena_rules C
is_veng_active
is_target_veng_active
is_player_lunar_spellbook C
is_target_lunar_spellbook PC
player_veng_cooldown_ticks
target_veng_cooldown_ticks
is_blood_magic_attack_available P
is_ice_magic_attack_available P
is_magic_spec_attack_available P
is_range_attack_available P
is_range_spec_attack_available P
is_melee_attack_available P
is_melee_spec_attack_available P
is_food_anglerfish PC
"""

# head: its actions in order; `needs=x` is legal only with action x chosen in an earlier head, `not=x` only without it.
_HEADS = """
attack: no_op_attack | mage_attack | ranged_attack | melee_attack
melee_attack_type: no_melee_attack not=melee_attack | basic_melee_attack needs=melee_attack | \
melee_special_attack needs=melee_attack
ranged_attack_type: no_ranged_attack not=ranged_attack | basic_ranged_attack needs=ranged_attack | \
ranged_special_attack needs=ranged_attack
mage_attack_type: no_mage_attack not=mage_attack | use_ice_spell needs=mage_attack | \
use_blood_spell needs=mage_attack | use_magic_spec needs=mage_attack
potion: no_potion | use_brew | use_restore_potion | use_combat_potion | use_ranged_potion
food: dont_eat_food | eat_primary_food
karambwan: dont_karambwan | eat_karambwan
veng: dont_use_veng | use_veng
gear: no_gear not=no_op_attack | use_tank_gear needs=no_op_attack
movement: dont_move | move_next_to_target | move_under_target | move_to_farcast_tile | move_diagonal_to_target
farcast_distance: no_op_farcast not=move_to_farcast_tile | farcast_2_tiles needs=move_to_farcast_tile | \
farcast_3_tiles needs=move_to_farcast_tile | farcast_4_tiles needs=move_to_farcast_tile | \
farcast_5_tiles needs=move_to_farcast_tile | farcast_6_tiles needs=move_to_farcast_tile | \
farcast_7_tiles needs=move_to_farcast_tile
prayer: no_op_prayer | mage_prayer | ranged_prayer | melee_prayer | smite_prayer | redemption_prayer
"""

_rows = [line.split() for line in _OBSERVATIONS.strip().splitlines()]
OBSERVATION_NAMES = tuple(row[0] for row in _rows)
OBS = {name: index for index, name in enumerate(OBSERVATION_NAMES)}
NUM_OBS = len(OBSERVATION_NAMES)  # 176
PARTIAL = np.array([i for i, row in enumerate(_rows) if "P" in row[1:2] or "PC" in row[1:2]])  # 93 indices
CONSTANT = np.array([i for i, row in enumerate(_rows) if row[1:2] in (["C"], ["PC"])])  # 69 indices
CHANGING = np.setdiff1d(np.arange(NUM_OBS), CONSTANT)
NUM_CRITIC_OBS = NUM_OBS + len(PARTIAL)  # 269

_heads = [line.split(": ") for line in _HEADS.strip().splitlines()]
HEAD_NAMES = tuple(name for name, _ in _heads)
_actions = [[action.split() for action in actions.split(" | ")] for _, actions in _heads]
HEAD_SIZES = tuple(len(actions) for actions in _actions)  # [4, 3, 3, 4, 5, 2, 2, 2, 2, 5, 7, 6]
NUM_HEADS = len(HEAD_SIZES)
HEAD_OFFSETS = tuple(int(offset) for offset in np.cumsum((0, *HEAD_SIZES))[:-1])
NUM_LOGITS = sum(HEAD_SIZES)  # 45
ACTION_NAMES = tuple(action[0] for actions in _actions for action in actions)
LOGIT = {name: index for index, name in enumerate(ACTION_NAMES)}


def _dependency(prefix):
    """For each of the 45 actions the action that `prefix` names, as a logit index, or -1."""
    flat = [action for actions in _actions for action in actions]
    found = [[word[len(prefix) :] for word in action[1:] if word.startswith(prefix)] for action in flat]
    return np.array([LOGIT[names[0]] if names else -1 for names in found], dtype=np.int64)


NEEDS = _dependency("needs=")  # (45,)
FORBIDS = _dependency("not=")  # (45,)

# What a tick gives to an agent. A reward is the dot product of this row and a vector of weights.
REWARD_TERMS = (
    "ko",  # 1 when the target died
    "death",  # 1 when the agent died
    "tie",  # 1 when both died in the same tick
    "damage_dealt",  # share of the target's HP, counted when the hit is rolled; vengeance included
    "damage_received",
    "healed",  # share of own HP healed by spells
    "target_healed",
    "wasted_food",  # share of HP that food would have healed above the maximum
    "food_left",  # at death: scale * (scale + 1.2)^1.5 of what was left to eat
    "target_food_left",
    "prayer_correct",  # attack speed / 5 when the target's attack met the right overhead prayer
    "prayer_wrong",
    "hit_off_prayer",  # the same for the agent's own attacks
    "hit_on_prayer",
    "frozen",  # new ticks of freeze
    "target_frozen",
    "no_prayer",  # 1 for a tick without prayer points
    "smite_dealt",  # damage dealt under smite
    "smite_received",
    "health_preserved",  # share of HP left at a win
)
NUM_TERMS = len(REWARD_TERMS)

# Ends of a fight, as the server spells them. DESYNC and TARGET_LOST are truncations.
TERMINAL_STATES = ("", "WON", "LOST", "TIED", "TARGET_LOST", "DESYNC")


def contract_hash():
    """Names the contract a policy was trained on: two policies with the same hash speak the same language."""
    tables = [_rows, _heads]
    return hashlib.sha256(json.dumps(tables).encode()).hexdigest()[:16]


def critic_observation(obs, target_obs):
    """(…, 176) of the agent and of its target → (…, 269): the critic also sees what the target hides."""
    return np.concatenate([obs, target_obs[..., PARTIAL]], axis=-1)
