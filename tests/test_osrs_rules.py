"""Formulas and rules of an NH fight against values computed by hand."""

import numpy as np
import pytest

from cleanrl_games.envs.osrs import movement, rules, simulator
from cleanrl_games.envs.osrs.loadouts import MAGE, MELEE, RANGED, SPECIAL, TANK
from cleanrl_games.envs.osrs.rules import STYLE_MAGE, STYLE_MELEE, STYLE_RANGED
from cleanrl_games.envs.osrs.vec_env import NHVecEnv

MAGE_BOOST, RANGED_BOOST, MELEE_BOOST = 1, 2, 3


class Duel:
    """Two fighters of a loadout, beside each other, that a test bends into shape."""

    def __init__(self, loadout="lms_med", seed=1):
        self.env = NHVecEnv(1, loadouts=(loadout,), seed=seed)
        self.fight, self.me, self.foe = self.env.fights[0], self.env.fighters[0, 0], self.env.fighters[0, 1]
        self.kit = self.env.loadouts[self.me.loadout]
        self.foe.x, self.foe.y = 1, 0

    def wear(self, outfit, boost):
        self.me.worn, self.me.boost = outfit, boost
        return self

    def attack(self, special=0, spell=0):
        self.me.attacking, self.me.special, self.me.spell = 1, special, spell
        simulator.attack(self.fight, self.me, self.foe, self.kit, self.kit)

    def take_hits(self):
        simulator.take_hits(self.fight, self.foe, self.me, self.kit, self.kit)

    def attacks(self, count, **how):
        """Many first attacks: the lists of rolled hits, each from a fresh queue and full energy."""
        seen = []
        for _ in range(count):
            self.me.energy, self.me.attack_timer, self.foe.hit_count = 100, 0, 0
            self.foe.immunity_timer, self.foe.hp, self.foe.defence = 0, 99, self.kit.defence_level
            self.attack(**how)
            seen.append(self.foe.hit_damage[: self.foe.hit_count].tolist())
        return seen


# ------------------------------------------------------------------------------------------------------------ formulas


def test_accuracy():
    assert rules.effective_level(99, 120, 0) == 118 + 8
    duel = Duel()
    assert rules.attack_roll(duel.wear(MAGE, 0).me, duel.kit, STYLE_MAGE, MAGE) == (99 + 9) * (81 + 64)
    assert rules.attack_roll(duel.wear(MAGE, MAGE_BOOST).me, duel.kit, STYLE_MAGE, MAGE) == (123 + 9) * 145  # augury
    assert rules.attack_roll(duel.wear(RANGED, RANGED_BOOST).me, duel.kit, STYLE_RANGED, RANGED) == 126 * (131 + 64)
    # it stabs
    assert rules.attack_roll(duel.wear(MELEE, MELEE_BOOST).me, duel.kit, STYLE_MELEE, SPECIAL) == 126 * (87 + 64)
    # a boost prayer of another style gives nothing to the attack, but its defence counts: ⌊75 · 1.25⌋ + 8 = 101
    # a whip: +3
    assert rules.attack_roll(duel.wear(MELEE, RANGED_BOOST).me, duel.kit, STYLE_MELEE, MELEE) == 110 * (128 + 64)
    assert rules.defence_roll(duel.wear(RANGED, RANGED_BOOST).me, duel.kit, STYLE_MELEE) == 101 * (177 + 64)
    assert rules.defence_roll(duel.wear(RANGED, 0).me, duel.kit, STYLE_RANGED) == 83 * (189 + 64)
    # against magic: ⌊.7 · 99⌋ + ⌊.3 · 101⌋ = 69 + 30; augury lifts the magic part to ⌊.7 · 123⌋ = 86
    assert rules.defence_roll(duel.wear(RANGED, RANGED_BOOST).me, duel.kit, STYLE_MAGE) == 99 * (69 + 64)
    assert rules.defence_roll(duel.wear(TANK, MAGE_BOOST).me, duel.kit, STYLE_MAGE) == (86 + 30) * (84 + 64)


def test_chance_to_hit():
    assert rules.hit_probability(19140, 13167) == pytest.approx(1 - 13169 / 38282)
    assert rules.hit_probability(10000, 10000) == pytest.approx(10000 / 20002)
    assert rules.hit_probability(500, 9999) == pytest.approx(0.025)
    duel = Duel().wear(MAGE, MAGE_BOOST)
    duel.foe.worn, duel.foe.boost = RANGED, RANGED_BOOST
    hits = 0
    for _ in range(4000):
        damage = simulator.swing(duel.fight, duel.me, duel.foe, duel.kit, duel.kit, STYLE_MAGE, 100, 0, 30, 100)
        hits += damage >= 0
    assert abs(hits / 4000 - 0.656) < 0.03  # four standard errors


def test_maximum_hits():
    assert rules.max_hit(132, 115) == 37  # (132 · 179 + 320) / 640 = 37.4
    duel = Duel()
    # a whip cannot be used aggressively: (129 · 179 + 320) / 640
    assert rules.style_max_hit(duel.wear(MELEE, MELEE_BOOST).me, duel.kit, STYLE_MELEE, MELEE) == 36
    assert rules.style_max_hit(duel.me, duel.kit, STYLE_MELEE, SPECIAL) == 28  # (132 · 137 + 320) / 640
    assert rules.style_max_hit(duel.wear(MELEE, 0).me, duel.kit, STYLE_MELEE, MELEE) == 30  # (107 · 179 + 320) / 640
    assert rules.style_max_hit(duel.wear(RANGED, RANGED_BOOST).me, duel.kit, STYLE_RANGED, RANGED) == 34  # 129 · 169
    duel.me.ranged = 112
    assert rules.style_max_hit(duel.me, duel.kit, STYLE_RANGED, RANGED) == 38  # (145 · 169 + 320) / 640


def test_dharoks_hits_harder_the_lower_its_wearer():
    duel = Duel("dharoks").wear(MELEE, MELEE_BOOST)
    assert rules.style_max_hit(duel.me, duel.kit, STYLE_MELEE, MELEE) == 43  # (132 · 207 + 320) / 640
    duel.me.hp = 1
    assert rules.style_max_hit(duel.me, duel.kit, STYLE_MELEE, MELEE) == 43 + 41  # 43 · 98 · 99 / 10,000
    assert rules.style_max_hit(duel.me, duel.kit, STYLE_MELEE, SPECIAL) == 37  # the maul is not of the set: 132 · 181
    duel.me.hp = 115
    assert rules.style_max_hit(duel.me, duel.kit, STYLE_MELEE, MELEE) == 43


@pytest.mark.parametrize(
    ("style", "weapon", "delays"),
    [
        (STYLE_MELEE, rules.CROSSBOW, [0] * 10),
        (STYLE_MAGE, rules.CROSSBOW, [1, 2, 2, 2, 3, 3, 3, 4, 4, 4]),  # 1 + ⌊(1 + d) / 3⌋
        (STYLE_RANGED, rules.CROSSBOW, [1, 1, 2, 2, 2, 2, 2, 2, 3, 3]),  # 1 + ⌊(3 + d) / 6⌋
        (STYLE_RANGED, rules.BOW, [1, 1, 2, 2, 2, 2, 2, 2, 3, 3]),
        (STYLE_RANGED, rules.THROWN, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]),  # 1 + ⌊d / 6⌋
        (STYLE_RANGED, rules.BALLISTA_WEAPON, [2, 2, 2, 2, 3, 3, 3, 3, 3, 3]),  # 2 + ⌊(1 + d) / 6⌋
    ],
)
def test_hit_delays_by_distance(style, weapon, delays):
    assert [rules.hit_delay(style, weapon, distance) for distance in range(1, 11)] == delays


# ------------------------------------------------------------------------------------------------------ food, potions


def test_food_delays_the_next_attack():
    duel = Duel()
    duel.me.hp, duel.me.attack_timer = 50, 2
    simulator.eat(duel.me, duel.kit, rules.food_heal(duel.kit), 3, False)
    assert (duel.me.hp, duel.me.attack_timer, duel.me.food_timer, duel.me.wasted) == (70, 5, 3, 0)
    duel.me.hp, duel.me.attack_timer = 90, -3
    simulator.eat(duel.me, duel.kit, 20, 3, False)
    assert (duel.me.hp, duel.me.attack_timer, duel.me.wasted) == (99, -3, 11)  # long past: nothing to delay
    duel.me.attack_timer = -2
    simulator.eat(duel.me, duel.kit, 20, 3, False)
    assert duel.me.attack_timer == 1


def test_anglerfish_heals_above_the_maximum():
    assert [rules.anglerfish_heal(level) for level in (10, 49, 50, 75, 93, 99)] == [5, 8, 11, 15, 22, 22]
    duel = Duel("max_main")
    simulator.eat(duel.me, duel.kit, rules.food_heal(duel.kit), 3, True)
    assert duel.me.hp == 121
    simulator.eat(duel.me, duel.kit, rules.food_heal(duel.kit), 3, True)
    assert (duel.me.hp, duel.me.wasted) == (121, 22)


def test_karambwan_blocks_potions_and_comes_on_top_of_food():
    duel, action = Duel(), np.zeros(12, np.int64)
    action[5] = action[6] = 1
    duel.me.hp, duel.me.attack_timer = 40, 4
    simulator.click(duel.fight, duel.me, duel.foe, duel.kit, action)
    assert (duel.me.hp, duel.me.attack_timer) == (40 + 20 + 18, 4 + 3 + 2)
    assert (duel.me.food, duel.me.karambwan) == (13, 1)
    assert (duel.me.food_timer, duel.me.potion_timer, duel.me.karambwan_timer) == (3, 3, 3)
    action[:] = 0
    action[4] = 1
    simulator.click(duel.fight, duel.me, duel.foe, duel.kit, action)
    assert duel.me.brew == 4


def test_brew_heals_and_drains():
    duel = Duel()
    me = duel.me
    me.hp, me.attacking = 50, 1
    simulator.drink(me, duel.kit, 1)
    assert (me.hp, me.defence) == (50 + 16, 75 + 17)  # ⌊99 · .15⌋ + 2; ⌊75 / 5⌋ + 2
    assert (me.attack, me.strength, me.ranged, me.magic) == (88, 88, 88, 88)
    assert (me.brew, me.potion_timer, me.food_timer, me.attacking) == (3, 3, 3, 0)
    simulator.drink(me, duel.kit, 1)
    assert me.brew == 3  # the timer still runs
    me.potion_timer = 0
    simulator.drink(me, duel.kit, 1)
    # the server drains attack by its base, the rest by what is left
    assert (me.attack, me.strength) == (
        88 - 11,
        88 - 10,
    )
    me.hp, me.potion_timer = 110, 0
    simulator.drink(me, duel.kit, 1)
    assert me.hp == 115


def test_restore_combat_and_ranging_potions():
    duel = Duel()
    me = duel.me
    me.attack, me.magic, me.prayer_points = 60, 95, 10
    simulator.drink(me, duel.kit, 2)
    assert (me.attack, me.magic, me.prayer_points) == (60 + 32, 99, 10 + 32)  # 99 / 4 + 8
    me.potion_timer, me.attack, me.strength = 0, 99, 88
    simulator.drink(me, duel.kit, 3)
    assert (me.attack, me.strength, me.defence) == (118, 107, 91)  # ⌊99 · .15⌋ + 5 = 19; from a drained 88 only to 107
    me.potion_timer, me.ranged = 0, 88
    simulator.drink(me, duel.kit, 4)
    assert me.ranged == 101
    me.potion_timer = 0
    simulator.drink(me, duel.kit, 4)
    assert me.ranged == 112
    assert (me.restore, me.combat, me.ranging) == (7, 3, 2)


# ------------------------------------------------------------------------------------------------------------ attacks


def test_a_protection_prayer_counts_when_the_attack_is_made():
    duel = Duel()
    duel.foe.overhead = STYLE_MAGE + 1
    assert simulator.launch(duel.fight, duel.me, duel.foe, duel.kit, STYLE_MAGE, 32, 2) == 19
    assert simulator.launch(duel.fight, duel.me, duel.foe, duel.kit, STYLE_RANGED, 32, 2) == 32
    duel.foe.overhead = STYLE_RANGED + 1
    assert duel.foe.hit_damage[:2].tolist() == [19, 32]
    assert (duel.me.attack_count, duel.me.foe_correct_count) == (2, 1)


def test_ice_freezes_once_then_leaves_immunity():
    duel = Duel().wear(MAGE, MAGE_BOOST)
    while duel.foe.freeze_timer == 0:
        duel.me.attack_timer = duel.foe.hit_count = 0
        duel.attack(spell=rules.ICE)
    assert (duel.foe.freeze_timer, duel.foe.immunity_timer, duel.me.new_freeze) == (32, 37, 32)
    for _ in range(33):
        simulator.count_timers(duel.foe)
    duel.me.new_freeze = 0
    for _ in range(40):
        duel.me.attack_timer = duel.foe.hit_count = 0
        duel.attack(spell=rules.ICE)
    assert (duel.foe.freeze_timer, duel.foe.immunity_timer, duel.me.new_freeze) == (0, 4, 0)
    damages = [hit for hits in duel.attacks(1500, spell=rules.ICE) for hit in hits]
    assert max(damages) == 32  # 30 · 1.07


def test_a_weaker_ice_spell_at_a_lower_level():
    duel = Duel().wear(MAGE, MAGE_BOOST)
    duel.me.magic = 90  # blitz: 26 · 1.07 = 27, 24 ticks
    damages = [hit for hits in duel.attacks(1500, spell=rules.ICE) for hit in hits]
    assert max(damages) == 27 and duel.me.new_freeze == 24


def test_blood_heals_a_quarter_at_the_cast():
    duel = Duel().wear(MAGE, MAGE_BOOST)
    best = 0
    for _ in range(1500):
        duel.me.hp, duel.me.attack_timer, duel.foe.hit_count = 40, 0, 0
        duel.attack(spell=rules.BLOOD)
        assert duel.me.hp == 40 + duel.foe.hit_damage[0] // 4
        best = max(best, duel.foe.hit_damage[0])
    assert best == 31  # 29 · 1.07


def test_a_spell_that_misses_leaves_no_hitsplat():
    duel = Duel()
    simulator.launch(duel.fight, duel.me, duel.foe, duel.kit, STYLE_MAGE, 0, 0)
    duel.foe.hit_style[0] = rules.SPLASH
    duel.take_hits()
    assert (duel.foe.splatted, duel.foe.hit_count) == (0, 0)
    simulator.launch(duel.fight, duel.me, duel.foe, duel.kit, STYLE_MELEE, 0, 0)
    duel.take_hits()
    assert duel.foe.splatted == 1


@pytest.mark.parametrize(
    ("loadout", "energy", "hits", "low", "high"),
    [
        ("lms_med", 25, 2, 0, 32),  # dragon dagger: 28 · 1.15
        ("max_main", 50, 1, 0, 63),  # Armadyl godsword: ⌊132 · 222 / 640 + ½⌋ = 46, · 1.375
        ("vesta_arena", 25, 1, 9, 54),  # longsword: (132 · 217 + 320) / 640 = 45; 20 % to 120 %
        ("hammer_ballista", 35, 1, 11, 56),  # warhammer: the same 45; 25 % to 125 %
    ],
)
def test_melee_specials(loadout, energy, hits, low, high):
    duel = Duel(loadout).wear(SPECIAL, MELEE_BOOST)
    seen = duel.attacks(3000, special=1)
    assert duel.me.energy == 100 - energy
    assert {len(rolls) for rolls in seen} == {hits}
    damages = [roll for rolls in seen for roll in rolls if roll > 0]
    assert min(damages) == max(low, 1) and max(damages) == high
    assert duel.me.attack_timer == duel.kit.speed[SPECIAL]
    duel.me.energy, duel.me.attack_timer, duel.foe.hit_count = energy - 1, 0, 0
    duel.attack(special=1)
    assert duel.foe.hit_count == 0


def test_the_warhammer_lowers_defence():
    duel = Duel("hammer_ballista").wear(SPECIAL, MELEE_BOOST)
    duel.foe.hit_count = 0
    while not duel.foe.hit_damage[0]:
        duel.me.energy, duel.me.attack_timer, duel.foe.hit_count, duel.foe.defence = 100, 0, 0, 99
        duel.attack(special=1)
    assert duel.foe.defence == 99 - 29


def test_claws_cascade():
    """The first of four rolls that succeeds decides how the damage is spread; later successes are worth less."""
    duel = Duel("zerker").wear(SPECIAL, MELEE_BOOST)
    high = rules.style_max_hit(duel.me, duel.kit, STYLE_MELEE, SPECIAL)
    assert high == 31  # fifteen per cent: (⌊99 · 1.15⌋ + 11) = 124; (124 · 162 + 320) / 640
    kinds = set()
    for first, second, third, fourth in duel.attacks(2000, special=1):
        if first:
            kinds.add(1)
            assert 15 <= first <= 30 and (second, third, fourth) == (first // 2, first // 4, first // 4 + 1)
        elif second:
            kinds.add(2)
            assert 11 <= second <= 27 and (third, fourth) == (second // 2, second // 2 + 1)
        elif third > 1:
            kinds.add(3)
            assert 7 <= third <= 23 and fourth == third + 1
        elif fourth > 1:
            kinds.add(4)
            assert 7 <= fourth <= 38
        else:
            kinds.add(5)
            assert third == fourth <= 1
    assert kinds >= {1, 2, 3, 4}
    assert duel.me.energy == 50


def test_the_granite_maul_asks_for_no_cooldown():
    duel = Duel("pure").wear(SPECIAL, MELEE_BOOST)
    duel.me.attack_timer = 4
    duel.attack(special=1)
    assert (duel.foe.hit_count, duel.me.energy, duel.me.attack_timer) == (2, 0, 4)
    duel.foe.hit_count, duel.me.energy = 0, 60
    duel.attack(special=1)
    assert (duel.foe.hit_count, duel.me.energy) == (1, 10)


def test_ranged_specials():
    duel = Duel("hammer_ballista").wear(RANGED, RANGED_BOOST)
    damages = [hit for hits in duel.attacks(3000, special=1) for hit in hits]
    assert max(damages) == 57  # (129 · 229 + 320) / 640 = 46; · 1.25 = 57.5
    assert duel.me.energy == 35


def test_enchanted_bolts():
    diamond = Duel().wear(RANGED, RANGED_BOOST)
    assert max(hit for hits in diamond.attacks(4000) for hit in hits) == 39  # 34 · 1.15
    dragonstone = Duel("pure").wear(RANGED, RANGED_BOOST)
    highest = rules.style_max_hit(dragonstone.me, dragonstone.kit, STYLE_RANGED, RANGED)
    assert max(hit for hits in dragonstone.attacks(6000) for hit in hits) == highest + 99 // 5
    opal = Duel("max_main").wear(RANGED, RANGED_BOOST)
    highest = rules.style_max_hit(opal.me, opal.kit, STYLE_RANGED, RANGED)
    assert max(hit for hits in opal.attacks(3000, special=1) for hit in hits) == highest + 9


# ------------------------------------------------------------------------------- vengeance, prayers, time, hitsplats


def test_vengeance_returns_three_quarters():
    duel, action = Duel("dharoks"), np.zeros(12, np.int64)
    action[7] = 1
    simulator.click(duel.fight, duel.foe, duel.me, duel.kit, action)
    assert (duel.foe.vengeance, duel.foe.vengeance_timer) == (1, 50)
    simulator.launch(duel.fight, duel.me, duel.foe, duel.kit, STYLE_MELEE, 41, 0)
    duel.take_hits()
    assert (duel.foe.hp, duel.foe.vengeance, duel.me.splats[0], duel.foe.extra) == (99 - 41, 0, 30, 30)
    simulator.click(duel.fight, duel.foe, duel.me, duel.kit, action)
    assert duel.foe.vengeance == 0  # still on cooldown


def test_no_vengeance_from_the_ancient_spellbook():
    duel, action = Duel(), np.zeros(12, np.int64)
    action[7] = 1
    simulator.click(duel.fight, duel.me, duel.foe, duel.kit, action)
    assert duel.me.vengeance == 0


def test_two_hitsplats_a_tick():
    duel = Duel("zerker")
    for damage in (10, 5, 2, 3):
        simulator.launch(duel.fight, duel.me, duel.foe, duel.kit, STYLE_MELEE, damage, 0)
    duel.take_hits()
    assert (duel.foe.hp, duel.foe.splat_count) == (97 - 15, 2)
    duel.foe.received = 0
    duel.take_hits()
    assert (duel.foe.hp, duel.foe.splat_count, duel.foe.received_total) == (97 - 20, 0, 20)


def test_damage_never_exceeds_what_is_left_and_the_dead_hit_nobody():
    duel = Duel()
    duel.foe.hp = 7
    simulator.launch(duel.fight, duel.me, duel.foe, duel.kit, STYLE_MELEE, 30, 0)
    duel.take_hits()
    assert (duel.foe.hp, duel.foe.received) == (0, 7)
    other = Duel()
    simulator.launch(other.fight, other.me, other.foe, other.kit, STYLE_MAGE, 30, 0)
    other.me.hp = 0
    other.take_hits()
    assert (other.foe.hp, other.foe.hit_count) == (99, 0)


def test_smite_drains_prayer_and_redemption_saves():
    duel = Duel("max_main")
    duel.me.overhead = rules.SMITE
    simulator.launch(duel.fight, duel.me, duel.foe, duel.kit, STYLE_RANGED, 30, 0)
    duel.take_hits()
    assert (duel.foe.hp, duel.foe.prayer_points) == (69, 99 - 7)
    duel.foe.overhead, duel.foe.boost, duel.foe.hp, duel.me.overhead = rules.REDEMPTION, 1, 15, 0
    simulator.launch(duel.fight, duel.me, duel.foe, duel.kit, STYLE_RANGED, 7, 0)
    duel.take_hits()
    assert (duel.foe.hp, duel.foe.prayer_points, duel.foe.overhead, duel.foe.boost) == (8 + 24, 0, 0, 0)


def test_prayer_drains_outside_of_last_man_standing():
    """Overhead 12 and piety 24 a tick against a resistance of 90: 40 points in 100 ticks."""
    duel = Duel("max_main")
    duel.me.overhead, duel.me.boost = 1, MELEE_BOOST
    for _ in range(100):
        simulator.drain_prayer(duel.me, duel.kit)
    # the fortieth point goes when the counter exceeds 90, not when it reaches it
    assert duel.me.prayer_points == 99 - 39
    duel.me.prayer_points, duel.me.prayer_drain = 1, 80
    simulator.drain_prayer(duel.me, duel.kit)
    assert (duel.me.prayer_points, duel.me.overhead, duel.me.boost) == (0, 0, 0)
    lms = Duel("lms_med")
    lms.me.overhead, lms.me.boost = 1, 1
    for _ in range(100):
        simulator.drain_prayer(lms.me, lms.kit)
    assert lms.me.prayer_points == 99


def test_levels_and_health_come_back_with_time():
    duel = Duel()
    me = duel.me
    me.attack, me.magic, me.hp = 118, 90, 40
    for tick in range(1, 101):
        duel.fight.tick = tick
        simulator.drift_levels(duel.fight, me, duel.kit)
    assert (me.attack, me.magic, me.hp) == (117, 91, 41)


def no_clicks():
    return np.zeros(12, np.int64)


def test_health_comes_back_after_the_hits_of_the_tick():
    """A hit of 40 on 40 HP kills in the tick in which a point would come back, and the levels of the dead stay."""
    duel = Duel()
    duel.foe.hp, duel.foe.attack, duel.fight.tick = 40, 118, rules.DRIFT_TICKS - 1
    simulator.launch(duel.fight, duel.me, duel.foe, duel.kit, STYLE_RANGED, 40, 0)
    simulator.tick(duel.fight, duel.me, duel.foe, duel.kit, duel.kit, no_clicks(), no_clicks())
    assert (duel.foe.hp, duel.foe.attack, duel.fight.result) == (0, 118, rules.WON)


@pytest.mark.parametrize("first", [0, 1])
def test_a_death_ends_the_attack_of_whoever_is_processed_after_it(first):
    """And the last hitsplats are seen at once: 0 over the dead, 92 of 99 over the other."""
    duel = Duel().wear(RANGED, RANGED_BOOST)
    me, foe = duel.me, duel.foe
    # the draws keep the order
    duel.fight.pid, me.pid_timer, foe.pid_timer = first, 100, 100
    me.pid_draw, foe.pid_draw = 1 - first, first
    me.attacking, me.attack_timer, foe.attacking, foe.attack_timer, foe.worn = 1, 4, 1, 4, RANGED
    foe.hp = 5
    simulator.launch(duel.fight, me, foe, duel.kit, STYLE_RANGED, 9, 0)
    simulator.add_splat(me, 7)
    simulator.tick(duel.fight, me, foe, duel.kit, duel.kit, no_clicks(), no_clicks())
    assert duel.fight.result == rules.WON and (foe.attacking, me.attacking) == (0, 1 if first == 0 else 0)
    assert foe.shown_health == 0 and me.shown_health == pytest.approx(92 / 99)


def test_a_caster_stands_after_its_spell():
    """From under its target it steps out, casts, and does not count as moving; an archer does."""
    for outfit, spell, moved in ((MAGE, rules.BLOOD, 0), (RANGED, 0, 1)):
        duel = Duel().wear(outfit, 1)
        duel.foe.x, duel.me.attacking, duel.me.spell, duel.me.attack_timer = 0, 1, spell, 0
        simulator.turn(duel.fight, duel.me, duel.foe, duel.kit, duel.kit)
        assert (duel.me.attacked, abs(duel.me.x), duel.me.moved, duel.me.has_destination) == (1, 1, moved, 0)


def test_special_energy_comes_back_every_50_ticks_from_the_first_special_on():
    duel = Duel()
    simulator.spend_energy(duel.me, 25)
    seen = []
    for tick in range(1, 251):
        simulator.count_clocks(duel.fight, duel.me)
        if tick == 70:
            simulator.spend_energy(duel.me, 25)  # while the clock runs, its phase stays
        seen.append(int(duel.me.energy))
    assert [tick for tick in range(1, 250) if seen[tick] > seen[tick - 1]] == [49, 99, 149, 199, 249]
    assert seen[-1] == 100 and duel.me.energy_timer == 0, "a full bar stops the clock"


def restart(duel, quirks=1):
    duel.fight.quirks = quirks
    simulator.reset_fight(duel.fight, duel.me, duel.foe, duel.env.loadouts, 0, 0)


def test_a_new_fight_keeps_the_phase_of_special_energy_and_who_cannot_run():
    """On the server; once in four fights the agents are new ones. In the game itself a fight starts afresh."""
    kept = 0
    duel = Duel()
    for _ in range(200):
        duel.me.logged_in, duel.me.energy_timer = 1, 0
        simulator.spend_energy(duel.me, 50)
        duel.me.run_energy, duel.foe.run_energy = 0, 300
        restart(duel)
        assert duel.me.energy == 100 and duel.foe.run_energy == 10_000, "what is left of run energy is filled up"
        assert (duel.me.run_energy, duel.me.energy_timer) in ((0, 50 - rules.TICKS_BETWEEN_FIGHTS), (10_000, 0))
        kept += duel.me.run_energy == 0
        restart(duel, quirks=0)
        assert duel.me.run_energy == 10_000 and duel.me.energy_timer == 0
    assert 125 <= kept <= 175  # 150 ± 4 standard deviations of 6.1


def test_fights_start_one_to_five_tiles_apart():
    env = NHVecEnv(6000, seed=2)
    gaps = np.maximum(abs(env.fighters["x"][:, 1]), abs(env.fighters["y"][:, 1]))
    shares = np.bincount(gaps, minlength=6) / 6000
    assert shares[0] == 0 and abs(shares[3] - 1 / 3) < 0.03 and (abs(shares[[1, 2, 4, 5]] - 1 / 6) < 0.03).all()
    corners = (abs(env.fighters["x"][:, 1]) == gaps) & (abs(env.fighters["y"][:, 1]) == gaps)
    assert abs(corners[gaps == 1].mean() - 0.5) < 0.1  # four of the eight tiles around


def test_each_player_draws_its_place_in_the_order():
    """Server: anew after 40 to 60 ticks, and every third draw of one changes the order: 4/3 changes in 100 ticks."""
    changes = {}
    for quirks in (True, False):
        env, before, count = NHVecEnv(200, seed=3, quirks=quirks), None, 0
        for _ in range(300):
            env.step(np.zeros((200, 2, 12), np.int64))
            count += 0 if before is None else int((env.fights["pid"] != before).sum())
            before = env.fights["pid"].copy()
        changes[quirks] = count / (200 * 299) * 100
    assert changes[True] == pytest.approx(4 / 3, abs=0.12) and changes[False] == pytest.approx(2 / 3 * 0.8, abs=0.12)
    arena = NHVecEnv(50, loadouts=("vesta_arena",), seed=3)
    before = arena.fights["pid"].copy()
    for _ in range(200):
        arena.step(np.zeros((50, 2, 12), np.int64))
    assert (arena.fights["pid"] == before).all()


def test_running_takes_energy_and_without_it_one_walks():
    duel = Duel()
    for quirks, cost in ((1, 100), (0, 67)):
        duel.fight.quirks, duel.me.run_energy, duel.me.x, duel.me.y = quirks, 10_000, 0, 0
        movement.walk_to(duel.me, 5, 0)
        movement.move(duel.fight, duel.me, duel.foe, duel.kit)
        assert duel.me.x == 2 and duel.me.run_energy == 10_000 - cost
        duel.me.run_energy = 0
        movement.move(duel.fight, duel.me, duel.foe, duel.kit)
        assert duel.me.x == 3 and duel.me.run_energy == (0 if quirks else 24)
        duel.me.run_energy = 5_000  # a single tile: the server takes as much, the game nothing
        movement.walk_to(duel.me, 4, 0)
        movement.move(duel.fight, duel.me, duel.foe, duel.kit)
        assert duel.me.x == 4 and duel.me.run_energy == (4_900 if quirks else 5_024)


def test_whoever_is_first_meets_a_target_that_still_counts_as_moving():
    duel = Duel().wear(MELEE, MELEE_BOOST)
    duel.foe.x, duel.foe.y, duel.foe.moved = 1, 1, 1
    assert movement.in_reach(duel.me, duel.foe, duel.kit, STYLE_MELEE)
    movement.walk_to(duel.foe, 9, 9)  # a click ends the walk before it
    assert not movement.in_reach(duel.me, duel.foe, duel.kit, STYLE_MELEE)


def test_diamond_bolts_on_the_server_and_in_the_game():
    """Server: one in ten, what was rolled × 1.15, a miss stays one. Game: one in twenty, through any armour."""
    damage = {}
    for quirks in (1, 0):
        duel = Duel().wear(RANGED, RANGED_BOOST)
        duel.fight.quirks = quirks
        duel.foe.worn, duel.foe.boost = TANK, RANGED_BOOST
        duel.foe.defence = 99
        damage[quirks] = np.array(duel.attacks(8000))[:, 0]
    # more than the maximum of 34: rolls of 31 … 34 of 35, 35 … 39 of 40 in the game
    hit = rules.hit_probability(126 * 195, 101 * 253)
    assert (damage[1] > 34).mean() == pytest.approx(hit * 0.10 * 4 / 35, abs=0.004)
    assert (damage[0] > 34).mean() == pytest.approx(0.05 * 5 / 40, abs=0.004)


# ------------------------------------------------------------------------------------------------------------ movement


def test_paths_are_straight_first_then_diagonal():
    for goal, halfway in (((4, 1), (2, 0)), ((1, 4), (0, 2)), ((-3, -4), (-1, -2)), ((4, -4), (2, -2))):
        duel = Duel()
        movement.walk_to(duel.me, *goal)
        movement.move(duel.fight, duel.me, duel.foe, duel.kit)
        assert (duel.me.x, duel.me.y, duel.me.has_destination) == (*halfway, 1)
        movement.move(duel.fight, duel.me, duel.foe, duel.kit)
        assert (duel.me.x, duel.me.y, duel.me.has_destination) == (*goal, 0)


def test_reach():
    duel = Duel()
    me, foe = duel.me, duel.foe
    for x, y, melee, ranged, mage in (
        (1, 0, True, True, True), (1, 1, False, True, True), (0, 0, False, False, False), (7, 3, False, True, True),
        (8, 0, False, False, True), (10, 9, False, False, True), (11, 0, False, False, False),
    ):  # fmt: skip
        foe.x, foe.y = x, y
        reach = [movement.in_reach(me, foe, duel.kit, style) for style in (STYLE_MELEE, STYLE_RANGED, STYLE_MAGE)]
        assert reach == [melee, ranged, mage], (x, y)


@pytest.mark.parametrize("kind", [1, 3, 4])
def test_clicked_tiles_are_the_nearest_of_their_kind(kind):
    duel = Duel()
    me, foe = duel.me, duel.foe
    for seed in range(400):
        place = np.random.default_rng(seed)
        me.x, me.y, foe.x, foe.y = place.integers(-8, 9, 4)
        farcast, me.has_destination = int(place.integers(1, 7)), 0
        movement.click_movement(duel.fight, me, foe, kind, farcast)
        ring = farcast + 1 if kind == 3 else 1
        tiles = [(x, y) for x in range(-ring, ring + 1) for y in range(-ring, ring + 1) if max(abs(x), abs(y)) == ring]
        if kind != 3:
            tiles = [(x, y) for x, y in tiles if (x != 0 and y != 0) == (kind == 4)]
        here = (me.x - foe.x, me.y - foe.y)
        if here in tiles:
            assert not me.has_destination
            continue
        steps = {(x, y): max(abs(x - here[0]), abs(y - here[1])) for x, y in tiles}
        there = (me.destination_x - foe.x, me.destination_y - foe.y)
        assert there in steps and steps[there] == min(steps.values()), (here, there, ring)


def test_the_frozen_stand_still():
    duel = Duel()
    movement.walk_to(duel.me, 4, 1)
    duel.me.freeze_timer = 5
    movement.move(duel.fight, duel.me, duel.foe, duel.kit)
    assert (duel.me.x, duel.me.moved, duel.me.has_destination) == (0, 0, 0)
