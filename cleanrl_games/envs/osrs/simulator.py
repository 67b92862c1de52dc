"""The rules of an NH fight, one function per rule, on one fight at a time: two fighters, one tick after another.

A fight is a record and so is a fighter: `me.hp -= 3` reads like the game and compiles to one store. Numba turns this
file into machine code on first import (cached on disk afterwards); with NUMBA_DISABLE_JIT=1 the same functions run as
plain Python, for a debugger. Every die is thrown with the fight's own generator, so a fight depends on nothing but its
seed and its actions.

A tick:  timers ──► both fighters' clicks ──► in PID order: move, take due hits, attack, regenerate ──► PID may change
"""

from numba import njit

from .loadouts import MAGE, MELEE, RANGED, SPECIAL, TANK
from .movement import attack_style, click_movement, distance_between, in_reach, move, sign
from .rules import (
    AGS,
    ANGLERFISH,
    ARENA,
    BALLISTA,
    BLOOD,
    BLOOD_SPELLS,
    CLAWS,
    DARK_BOW,
    DDS,
    DIAMOND,
    DIAMOND_CHANCE,
    DRAGON_KNIFE,
    DRAGONSTONE,
    DRIFT_TICKS,
    ENERGY_TICKS,
    FIGHTS_PER_LOGIN,
    FREEZE_IMMUNITY,
    FULL_RUN_ENERGY,
    GMAUL,
    ICE,
    ICE_SPELLS,
    KARAMBWAN_HEAL,
    LMS,
    LONG_AGO,
    LOST,
    MAX_QUEUED,
    MELEE_ENERGY,
    NIGHTMARE_ENERGY,
    NO_PRAYER,
    OPAL,
    PID_SPREAD,
    PID_TICKS,
    RANGED_ENERGY,
    REDEMPTION,
    SMITE,
    SPLASH,
    START_DISTANCES,
    STYLE_MAGE,
    STYLE_MELEE,
    STYLE_RANGED,
    SWH,
    TICKS_BETWEEN_FIGHTS,
    TIED,
    VENGEANCE_COOLDOWN,
    VLS,
    WON,
    ZARYTE,
    attack_roll,
    brew_heal,
    chance,
    defence_roll,
    food_heal,
    hit_delay,
    hit_probability,
    roll,
    style_max_hit,
)

# ---------------------------------------------------------------------------------------------------------- new fights


@njit(cache=True)
def reset_fighter(me, loadout, kit, x, y):
    me.loadout, me.hp, me.prayer_points, me.prayer_drain = loadout, kit.hitpoints_level, kit.prayer_level, 0
    me.attack, me.strength, me.defence = kit.attack_level, kit.strength_level, kit.defence_level
    me.ranged, me.magic, me.energy = kit.ranged_level, kit.magic_level, 100
    me.worn, me.boost, me.overhead, me.attacking, me.spell, me.special, me.vengeance = MAGE, 0, 0, 0, 0, 0, 0
    me.attack_timer, me.food_timer, me.potion_timer, me.karambwan_timer = LONG_AGO, 0, 0, 0
    me.freeze_timer, me.immunity_timer, me.vengeance_timer = 0, 0, 0
    me.brew, me.restore, me.combat, me.ranging = kit.brew, kit.restore, kit.combat, kit.ranging
    me.karambwan, me.food, me.free_slots = kit.karambwan, kit.food, 0
    me.x, me.y, me.has_destination, me.destination_x, me.destination_y, me.moved = x, y, 0, x, y, 0
    me.hit_count, me.splat_count, me.received_total, me.attack_count, me.foe_correct_count = 0, 0, 0, 0, 0
    me.shown_lunar, me.recent_attacks, me.recent_prayers, me.shown_health = 0, 0, 0, 0.0
    for style in range(3):
        me.style_count[style] = 0
        me.foe_prayer_count[style] = 0
        me.shown_accuracy[style] = -1
        me.shown_strength[style] = -1
    for i in range(5):
        me.recent_style[i] = -1
        me.recent_correct[i] = 0
        me.recent_foe_prayer[i] = -1
    clear_tick(me)


@njit(cache=True)
def clear_tick(me):
    me.received, me.splatted = 0, 0
    me.attacked, me.rolled, me.last_roll, me.extra, me.healed, me.wasted = 0, 0, 0, 0, 0, 0
    me.attack_speed, me.hit_off_prayer, me.new_freeze, me.smited = 0, -1, 0, 0


@njit(cache=True)
def log_in(fight, me):
    me.energy_timer, me.run_energy, me.logged_in = 0, FULL_RUN_ENERGY, 1
    draw_pid(fight, me)
    me.pid_timer = 1 + roll(fight, me.pid_timer)  # it was drawn some time before the fight


@njit(cache=True)
def draw_pid(fight, me):
    me.pid_draw = roll(fight, 1 << 30)
    me.pid_timer = PID_TICKS[fight.quirks] + roll(fight, PID_SPREAD[fight.quirks])


@njit(cache=True)
def count_clocks(fight, me):
    """The two clocks that no reset stops: special energy and the place in the order."""
    if me.energy_timer > 0:
        me.energy_timer -= 1
        if me.energy_timer == 0:
            me.energy = min(me.energy + 10, 100)
            me.energy_timer = ENERGY_TICKS if me.energy < 100 else 0
    me.pid_timer -= 1
    if me.pid_timer <= 0:
        draw_pid(fight, me)


@njit(cache=True)
def reset_fight(fight, a, b, loadouts, loadout_a, loadout_b):
    """Both stand one to five tiles apart, in mage gear, with no prayer up. What the server keeps from fight to fight is
    kept: whether a fighter can run, the phase of special energy, the draws that decide who is processed first."""
    new_agents = a.logged_in == 0 or fight.quirks == 0 or roll(fight, FIGHTS_PER_LOGIN) == 0
    for me in (a, b):
        if new_agents:
            log_in(fight, me)
        else:
            for _ in range(TICKS_BETWEEN_FIGHTS):
                count_clocks(fight, me)
            if me.run_energy > 0:  # at 0 the server has switched running off, and a new fight does not switch it on
                me.run_energy = FULL_RUN_ENERGY
    fight.tick, fight.result = 0, 0
    fight.pid = 0 if a.pid_draw > b.pid_draw else 1
    # a tile of the ring at that distance: its four sides have 2 · distance tiles each
    distance = START_DISTANCES[roll(fight, len(START_DISTANCES))]
    along = roll(fight, 2 * distance) - distance
    side = roll(fight, 4)
    x, y = (distance, along) if side % 2 == 0 else (-along, distance)
    if side >= 2:
        x, y = -x, -y
    reset_fighter(a, loadout_a, loadouts[loadout_a], 0, 0)
    reset_fighter(b, loadout_b, loadouts[loadout_b], x, y)


# -------------------------------------------------------------------------------------------------------------- clicks


@njit(cache=True)
def wear(me, kit, outfit, boost):
    me.worn = outfit
    if me.prayer_points > 0:
        me.boost = boost


@njit(cache=True)
def drain(level, base):
    return level - (base // 10 + 2)


@njit(cache=True)
def drink(me, kit, potion):
    """1 brew, 2 restore, 3 combat, 4 ranging. A sip interrupts the attack and delays the next bite."""
    if potion == 1:
        doses = me.brew
    elif potion == 2:
        doses = me.restore
    elif potion == 3:
        doses = me.combat
    else:
        doses = me.ranging
    if me.potion_timer > 0 or doses == 0:
        return
    if doses % 4 == 1:
        me.free_slots += 1
    if potion == 1:
        me.brew -= 1
        me.hp = max(me.hp, min(me.hp + brew_heal(kit), kit.hitpoints_level + brew_heal(kit)))
        me.defence = max(
            me.defence, min(me.defence + kit.defence_level // 5 + 2, kit.defence_level + kit.defence_level // 5 + 2)
        )
        # The server drains attack by a tenth of its base, the other three by a tenth of where they stand.
        me.attack = max(drain(me.attack, kit.attack_level), 0)
        me.strength = max(drain(me.strength, me.strength), 0)
        me.ranged = max(drain(me.ranged, me.ranged), 0)
        me.magic = max(drain(me.magic, me.magic), 0)
    elif potion == 2:
        me.restore -= 1
        me.attack = restored(me.attack, kit.attack_level)
        me.strength = restored(me.strength, kit.strength_level)
        me.defence = restored(me.defence, kit.defence_level)
        me.ranged = restored(me.ranged, kit.ranged_level)
        me.magic = restored(me.magic, kit.magic_level)
        me.prayer_points = min(me.prayer_points + kit.prayer_level // 4 + 8, kit.prayer_level)
    elif potion == 3:
        me.combat -= 1
        me.attack = raised(me.attack, kit.attack_level, boosted_by_combat(kit.attack_level))
        me.strength = raised(me.strength, kit.strength_level, boosted_by_combat(kit.strength_level))
        me.defence = raised(me.defence, kit.defence_level, boosted_by_combat(kit.defence_level))
    else:
        me.ranging -= 1
        me.ranged = raised(me.ranged, kit.ranged_level, boosted_by_ranging(kit.ranged_level))
    me.potion_timer = 3
    me.food_timer = max(me.food_timer, 3)
    me.attacking = 0


@njit(cache=True)
def restored(level, base):
    return level if level >= base else min(level + base // 4 + 8, base)


@njit(cache=True)
def raised(level, base, ceiling):
    """A sip lifts a level from where it stands, so a drained one does not reach the ceiling at once."""
    return max(level, min(level + ceiling - base, ceiling))


@njit(cache=True)
def boosted_by_combat(base):
    return base + base * 15 // 100 + 5


@njit(cache=True)
def boosted_by_ranging(base):
    return base + base // 10 + 4


@njit(cache=True)
def eat(me, kit, heal, attack_delay, overheal):
    ceiling = kit.hitpoints_level + (heal if overheal else 0)
    me.wasted += max(me.hp + heal - ceiling, 0)  # as the server counts: above a brewed-up HP even more than the bite
    me.hp = max(me.hp, min(me.hp + heal, ceiling))
    me.free_slots += 1
    me.food_timer = max(me.food_timer, 3)
    if me.attack_timer + attack_delay > 0:
        me.attack_timer += attack_delay


@njit(cache=True)
def click(fight, me, foe, kit, action):
    """One fighter's clicks of a tick, in the order the server takes them."""
    if action[11] != 0 and me.prayer_points > 0:
        me.overhead = action[11]
    if action[5] == 1 and me.food_timer <= 0 and me.food > 0:
        me.food -= 1
        eat(me, kit, food_heal(kit), 3, kit.food_type == ANGLERFISH)
    if action[4] != 0:
        drink(me, kit, action[4])
    if action[6] == 1 and me.karambwan_timer <= 0 and me.karambwan > 0:
        me.karambwan -= 1
        eat(me, kit, KARAMBWAN_HEAL, 2, False)
        me.karambwan_timer, me.potion_timer = 3, 3
    if action[8] == 1:
        wear(me, kit, TANK, 1)
        me.attacking = 0
    if action[7] == 1 and kit.lunar and me.vengeance_timer <= 0 and me.magic >= 94:
        me.vengeance, me.vengeance_timer = 1, VENGEANCE_COOLDOWN
    if action[0] == 1:
        wear(me, kit, MAGE, 1)
        me.spell = action[3] if action[3] != 3 else 0
        me.special = action[3] == 3
        me.attacking = action[3] != 0
    elif action[0] == 2:
        wear(me, kit, RANGED, 2)
        me.spell, me.special, me.attacking = 0, action[2] == 2, 1
    elif action[0] == 3:
        wear(me, kit, SPECIAL if action[1] == 2 else MELEE, 3)
        me.spell, me.special, me.attacking = 0, action[1] == 2, 1
    if action[9] != 0:
        click_movement(fight, me, foe, action[9], action[10])


# ---------------------------------------------------------------------------------------------------------------- hits


@njit(cache=True)
def add_splat(me, damage):
    if me.splat_count < MAX_QUEUED:
        me.splats[me.splat_count] = damage
        me.splat_count += 1


@njit(cache=True)
def take_hits(fight, me, foe, kit, foe_kit):
    """Hits whose time has come turn into hitsplats; two of them are shown and suffered, the rest wait."""
    if me.hp <= 0:
        me.hit_count = me.splat_count = 0
        return
    kept = 0
    for i in range(me.hit_count):
        if foe.hp <= 0:
            continue  # the hits of the dead vanish
        damage, style = me.hit_damage[i], me.hit_style[i]
        if me.hit_delay[i] > 0:
            me.hit_damage[kept], me.hit_delay[kept], me.hit_style[kept] = damage, me.hit_delay[i] - 1, style
            kept += 1
            continue
        if style == SPLASH:
            continue
        add_splat(me, damage)
        if me.vengeance and damage > 0:
            me.vengeance = 0
            add_splat(foe, damage * 3 // 4)
            me.extra += damage * 3 // 4
        if foe.overhead == SMITE:
            me.prayer_points = max(me.prayer_points - damage // 4, 0)
        if foe_kit.blood_fury and style == STYLE_MELEE and damage > 0 and roll(fight, 5) == 0:
            heal(foe, foe_kit, damage * 3 // 10)
    me.hit_count = kept

    shown = min(me.splat_count, 2)
    for i in range(shown):
        damage = min(me.splats[i], me.hp)
        me.hp -= damage
        me.received += damage
        me.splatted = 1
    for i in range(shown, me.splat_count):
        me.splats[i - shown] = me.splats[i]
    me.splat_count -= shown
    me.received_total += me.received
    if me.overhead == REDEMPTION and me.prayer_points > 0 and 0 < me.hp < kit.hitpoints_level // 10:
        heal(me, kit, kit.prayer_level // 4)
        me.prayer_points, me.overhead, me.boost = 0, NO_PRAYER, 0


@njit(cache=True)
def heal(me, kit, amount):
    if me.hp < kit.hitpoints_level:
        healed = min(amount, kit.hitpoints_level - me.hp)
        me.hp += healed
        me.healed += healed


# ------------------------------------------------------------------------------------------------------------- attacks


@njit(cache=True)
def launch(fight, me, foe, kit, style, damage, delay):
    """A rolled hit leaves for the target. Its prayer is looked at now, not when the hit lands."""
    stopped = foe.overhead == style + 1
    if stopped:
        damage = damage * 6 // 10
    if foe.hit_count < MAX_QUEUED:
        foe.hit_damage[foe.hit_count], foe.hit_delay[foe.hit_count] = damage, delay
        foe.hit_style[foe.hit_count] = style
        foe.hit_count += 1
    me.attacked = 1
    me.rolled += damage
    me.last_roll = damage
    me.hit_off_prayer = 0 if stopped else 1
    me.smited = 1 if me.overhead == SMITE else me.smited

    me.attack_count += 1
    me.style_count[style] += 1
    slot = me.recent_attacks % 5
    me.recent_style[slot] = style
    me.recent_correct[slot] = 1 if stopped else 0
    me.recent_attacks += 1
    me.foe_correct_count += 1 if stopped else 0
    if 1 <= foe.overhead <= 3:
        me.foe_prayer_count[foe.overhead - 1] += 1
        me.recent_foe_prayer[me.recent_prayers % 5] = foe.overhead - 1
        me.recent_prayers += 1
    # A special weapon with less strength than the main one does not spoil what was seen of the main one.
    if style != STYLE_MELEE or kit.visible_strength[me.worn] >= me.shown_strength[style]:
        me.shown_accuracy[style] = kit.accuracy[me.worn]
        me.shown_strength[style] = kit.visible_strength[me.worn]
        me.shown_ranged_defence[style] = kit.ranged_defence[me.worn]
        me.shown_mage_defence[style] = kit.mage_defence[me.worn]
        me.shown_melee_defence[style] = kit.melee_defence[me.worn]
    return damage


@njit(cache=True)
def swing(fight, me, foe, kit, foe_kit, style, accuracy_percent, low, high, defence_percent):
    """One accuracy roll, then a damage uniform from low to high; 0 for a miss."""
    attack = attack_roll(me, kit, style, me.worn) * accuracy_percent // 100
    defence = defence_roll(foe, foe_kit, style) * defence_percent // 100
    if not chance(fight, hit_probability(attack, defence)):
        return -1
    return low + roll(fight, high - low + 1)


@njit(cache=True)
def spend_energy(me, cost):
    me.energy -= cost
    if me.energy_timer == 0:
        me.energy_timer = ENERGY_TICKS


@njit(cache=True)
def cast(fight, me, foe, kit, foe_kit, delay):
    """Ice freezes and blood heals the moment the spell is cast; the damage travels. The caster stands afterwards, even
    if it came out from under its target in this tick."""
    best, spell = 0, me.spell
    spells = len(ICE_SPELLS)
    if spell == ICE:
        while best < spells - 1 and me.magic < ICE_SPELLS[best, 0]:
            best += 1
        high = ICE_SPELLS[best, 1]
    elif spell == BLOOD:
        while best < spells - 1 and me.magic < BLOOD_SPELLS[best, 0]:
            best += 1
        high = BLOOD_SPELLS[best, 1]
    else:  # the nightmare staff's special
        high = 58 * me.magic // 99 + 1
        spend_energy(me, NIGHTMARE_ENERGY)
    high = high * (100 + kit.strength[MAGE]) // 100
    damage = swing(fight, me, foe, kit, foe_kit, STYLE_MAGE, 150 if spell == 0 else 100, 0, high, 100)
    if spell == ICE and damage >= 0 and foe.immunity_timer <= 0:
        foe.freeze_timer = ICE_SPELLS[best, 2]
        foe.immunity_timer = ICE_SPELLS[best, 2] + FREEZE_IMMUNITY
        foe.has_destination = foe.moved = 0
        me.new_freeze = ICE_SPELLS[best, 2]
    missed = damage < 0
    damage = launch(fight, me, foe, kit, STYLE_MAGE, max(damage, 0), delay)
    if missed and foe.hit_count > 0:
        foe.hit_style[foe.hit_count - 1] = SPLASH
    if spell == BLOOD:
        heal(me, kit, damage // 4)
    me.spell, me.attacking, me.moved, me.has_destination = 0, 0, 0, 0


@njit(cache=True)
def shoot(fight, me, foe, kit, foe_kit, delay):
    high = style_max_hit(me, kit, STYLE_RANGED, RANGED)
    accuracy, shots, low = 100, 1, 0
    special = kit.ranged_special if me.special else 0
    if special:
        spend_energy(me, RANGED_ENERGY[special])
    if special == BALLISTA:
        accuracy, high = 125, high * 125 // 100
    elif special == ZARYTE:
        accuracy = 200
    elif special == DARK_BOW:
        shots, high, low = 2, min(high * 150 // 100, 48), 8
    elif special == DRAGON_KNIFE:
        shots = 2
    for _ in range(shots):
        damage = swing(fight, me, foe, kit, foe_kit, STYLE_RANGED, accuracy, min(low, high), high, 100)
        sure = special == ZARYTE and damage >= 0
        if kit.bolts == DIAMOND and (sure or roll(fight, 100) < DIAMOND_CHANCE[fight.quirks]):
            if fight.quirks:
                damage = damage * 115 // 100 if damage > 0 else damage  # a miss stays one
            else:
                damage = roll(fight, high * 115 // 100 + 1)  # the effect pierces armour
        elif kit.bolts == OPAL and damage >= 0 and (sure or roll(fight, 20) == 0):
            damage += me.ranged // 10
        elif kit.bolts == DRAGONSTONE and damage >= 0 and (sure or roll(fight, 100) < 6):
            damage += me.ranged // 5
        if special == DARK_BOW:
            damage = max(damage, 8)
        launch(fight, me, foe, kit, STYLE_RANGED, max(damage, 0), delay)


@njit(cache=True)
def claw(fight, me, foe, kit, foe_kit, high):
    """Four accuracy rolls; the first that succeeds decides how the damage is spread over the four hits."""
    first = swing(fight, me, foe, kit, foe_kit, STYLE_MELEE, 135, high // 2, max(high - 1, high // 2), 100)
    if first >= 0:
        return first, first // 2, first // 4, first // 4 + 1
    second = swing(fight, me, foe, kit, foe_kit, STYLE_MELEE, 135, 3 * high // 8, 7 * high // 8, 100)
    if second >= 0:
        return 0, second, second // 2, second // 2 + 1
    third = swing(fight, me, foe, kit, foe_kit, STYLE_MELEE, 135, high // 4, 3 * high // 4, 100)
    if third >= 0:
        return 0, 0, third, third + 1
    fourth = swing(fight, me, foe, kit, foe_kit, STYLE_MELEE, 135, high // 4, 5 * high // 4, 100)
    if fourth >= 0:
        return 0, 0, 0, fourth
    scratch = 1 if roll(fight, 3) < 2 else 0
    return 0, 0, scratch, scratch


@njit(cache=True)
def strike(fight, me, foe, kit, foe_kit):
    high = style_max_hit(me, kit, STYLE_MELEE, me.worn)
    special = kit.melee_special if me.special else 0
    if special:
        spend_energy(me, MELEE_ENERGY[special])
    if special == CLAWS:
        for damage in claw(fight, me, foe, kit, foe_kit, high):
            launch(fight, me, foe, kit, STYLE_MELEE, damage, 0)
        return
    swings, accuracy, low, defence = 1, 100, 0, 100
    if special == DDS:
        swings, accuracy, high = 2, 120, high * 115 // 100
    elif special == AGS:
        accuracy, high = 200, high * 1375 // 1000
    elif special == VLS:
        low, high, defence = high * 20 // 100, high * 120 // 100, 25
    elif special == SWH:
        low, high = high * 25 // 100, high * 125 // 100
    for _ in range(swings):
        damage = swing(fight, me, foe, kit, foe_kit, STYLE_MELEE, accuracy, low, high, defence)
        if special == SWH and damage > 0:
            foe.defence -= foe.defence * 30 // 100
        launch(fight, me, foe, kit, STYLE_MELEE, max(damage, 0), 0)


@njit(cache=True)
def attack(fight, me, foe, kit, foe_kit):
    if me.hp <= 0 or foe.hp <= 0:
        me.attacking = 0
    if not me.attacking:
        return
    style = attack_style(me)
    if not in_reach(me, foe, kit, style):
        return
    if style == STYLE_MELEE and me.special and kit.melee_special == GMAUL:
        # The maul's special asks for no cooldown and leaves none: all the energy goes into it at once.
        me.attack_speed = kit.speed[me.worn]
        while me.energy >= MELEE_ENERGY[GMAUL]:
            strike(fight, me, foe, kit, foe_kit)
        me.special = 0
        return
    if me.attack_timer > 0:
        return
    if me.special:
        cost = NIGHTMARE_ENERGY
        if style == STYLE_RANGED:
            cost = RANGED_ENERGY[kit.ranged_special]
        elif style == STYLE_MELEE:
            cost = MELEE_ENERGY[kit.melee_special]
        if me.energy < cost:
            me.special = me.attacking = 0
            return
    delay = hit_delay(style, kit.ranged_weapon, distance_between(me, foe))
    if style == STYLE_MAGE:
        cast(fight, me, foe, kit, foe_kit, delay)
    elif style == STYLE_RANGED:
        shoot(fight, me, foe, kit, foe_kit, delay)
    else:
        strike(fight, me, foe, kit, foe_kit)
    me.special = 0
    me.attack_speed = kit.speed[me.worn]
    me.attack_timer = me.attack_speed


# ---------------------------------------------------------------------------------------------------------------- tick


@njit(cache=True)
def count_timers(me):
    me.attack_timer = max(me.attack_timer - 1, LONG_AGO)
    me.food_timer = max(me.food_timer - 1, 0)
    me.potion_timer = max(me.potion_timer - 1, 0)
    me.karambwan_timer = max(me.karambwan_timer - 1, 0)
    me.freeze_timer = max(me.freeze_timer - 1, 0)
    me.immunity_timer = max(me.immunity_timer - 1, 0)
    me.vengeance_timer = max(me.vengeance_timer - 1, 0)


@njit(cache=True)
def drift(level, base):
    return level + sign(base - level)


@njit(cache=True)
def drift_levels(fight, me, kit):
    """Levels drift to their base and HP regenerate, after the hits of the tick: the dead stay dead."""
    if fight.tick % DRIFT_TICKS == 0 and me.hp > 0:
        me.attack, me.strength = drift(me.attack, kit.attack_level), drift(me.strength, kit.strength_level)
        me.defence, me.ranged = drift(me.defence, kit.defence_level), drift(me.ranged, kit.ranged_level)
        me.magic = drift(me.magic, kit.magic_level)
        if me.hp < kit.hitpoints_level:
            me.hp += 1


@njit(cache=True)
def drain_prayer(me, kit):
    """Outside of LMS."""
    if kit.fight != LMS:
        if me.overhead == SMITE:
            me.prayer_drain += 18
        elif me.overhead == REDEMPTION:
            me.prayer_drain += 6
        elif me.overhead != NO_PRAYER:
            me.prayer_drain += 12
        if me.boost > 0:
            me.prayer_drain += 24 if kit.strong_prayers[me.boost - 1] else 12
        while me.prayer_drain > 90:  # 60 plus twice a prayer bonus of 15
            me.prayer_drain -= 90
            me.prayer_points = max(me.prayer_points - 1, 0)
        if me.prayer_points == 0:
            me.overhead, me.boost = NO_PRAYER, 0


@njit(cache=True)
def turn(fight, me, foe, kit, foe_kit):
    move(fight, me, foe, kit)
    take_hits(fight, me, foe, kit, foe_kit)
    attack(fight, me, foe, kit, foe_kit)
    drift_levels(fight, me, kit)


@njit(cache=True)
def tick(fight, a, b, kit_a, kit_b, action_a, action_b):
    fight.tick += 1
    for me, kit in ((a, kit_a), (b, kit_b)):
        if me.splatted:  # the health bar over a fighter follows its hitsplat a tick late
            me.shown_health = me.hp / kit.hitpoints_level
        clear_tick(me)
        count_timers(me)
        count_clocks(fight, me)
    click(fight, a, b, kit_a, action_a)
    click(fight, b, a, kit_b, action_b)
    drain_prayer(a, kit_a)
    drain_prayer(b, kit_b)
    if fight.pid == 0:
        turn(fight, a, b, kit_a, kit_b)
        turn(fight, b, a, kit_b, kit_a)
    else:
        turn(fight, b, a, kit_b, kit_a)
        turn(fight, a, b, kit_a, kit_b)
    for me in (a, b):
        if me.vengeance:
            me.shown_lunar = 1
    if kit_a.fight != ARENA:
        fight.pid = 0 if a.pid_draw > b.pid_draw else 1
    if a.hp <= 0 or b.hp <= 0:
        for me, kit in ((a, kit_a), (b, kit_b)):
            if me.splatted:  # of the last hitsplats the health bar is not late
                me.shown_health = me.hp / kit.hitpoints_level
        fight.result = TIED if a.hp <= 0 and b.hp <= 0 else LOST if a.hp <= 0 else WON
