"""Where fighters go: clicked tiles, paths, chasing a target, and from where an attack reaches it."""

from numba import njit

from .loadouts import MELEE, RANGED, SPECIAL
from .rules import FULL_RUN_ENERGY, RUN_COST, RUN_FREE_TILES, RUN_RECOVERY, STYLE_MAGE, STYLE_MELEE, STYLE_RANGED, roll


@njit(cache=True)
def sign(value):
    return 1 if value > 0 else -1 if value < 0 else 0


@njit(cache=True)
def coin(fight):
    return 1 - 2 * roll(fight, 2)


@njit(cache=True)
def distance_between(me, foe):
    return max(abs(me.x - foe.x), abs(me.y - foe.y))


@njit(cache=True)
def attack_style(me):
    if me.worn == RANGED:
        return STYLE_RANGED
    if me.worn == MELEE or me.worn == SPECIAL:
        return STYLE_MELEE
    return STYLE_MAGE


@njit(cache=True)
def in_reach(me, foe, kit, style):
    gap = distance_between(me, foe)
    if gap == 0:
        return False
    if style == STYLE_MAGE:
        return gap <= 10
    if style == STYLE_RANGED:
        return gap <= kit.ranged_range
    if gap == 1:
        return me.x == foe.x or me.y == foe.y or foe.moved == 1
    return gap == 2 and me.moved == 1 and foe.moved == 1  # both running


@njit(cache=True)
def walk_to(me, x, y):
    """A click on the ground ends the attack, and the walk before it."""
    me.moved = 0
    me.has_destination, me.destination_x, me.destination_y = 1, x, y
    me.attacking = 0


@njit(cache=True)
def click_movement(fight, me, foe, movement, farcast):
    """1 next to the target, 2 under it, 3 to a tile at a distance, 4 diagonal to it; one of the nearest such tiles."""
    dx, dy = me.x - foe.x, me.y - foe.y
    gap = max(abs(dx), abs(dy))
    ring = farcast + 1 if movement == 3 else 1
    if movement == 2:
        walk_to(me, foe.x, foe.y)
        return
    beside, diagonal = abs(dx) + abs(dy) == 1, abs(dx) == 1 and abs(dy) == 1
    if (movement == 1 and beside) or (movement == 4 and diagonal) or (movement == 3 and gap == ring):
        return
    # The nearest tiles of the ring are those of its side towards the fighter that can be reached in the same time.
    along_x = abs(dx) > abs(dy) or (abs(dx) == abs(dy) and roll(fight, 2) == 0)
    ahead, aside = (dx, dy) if along_x else (dy, dx)
    ahead = ring * (sign(ahead) if ahead != 0 else coin(fight))
    slack = max(abs(gap - ring), 1)
    low, high = max(aside - slack, -ring), min(aside + slack, ring)
    if movement == 1:
        aside = 0
    elif movement == 3:
        aside = low + roll(fight, high - low + 1)
    elif low == -1 and high == 1:
        aside = coin(fight)
    else:
        aside = 1 if high == 1 else -1
    tx, ty = (ahead, aside) if along_x else (aside, ahead)
    walk_to(me, foe.x + tx, foe.y + ty)


@njit(cache=True)
def step_towards(me, x, y):
    """One tile of the shortest path: straight while one axis is ahead of the other, diagonal from then on."""
    dx, dy = x - me.x, y - me.y
    if abs(dx) >= abs(dy):
        me.x += sign(dx)
    if abs(dy) >= abs(dx):
        me.y += sign(dy)
    me.moved = 1


@njit(cache=True)
def chase(fight, me, foe, kit, style):
    """Where an attacker that is out of reach walks: beside its target, which a ground click could ask for as well."""
    gap = distance_between(me, foe)
    me.has_destination, me.destination_x, me.destination_y = 0, me.x, me.y
    if gap == 0:
        me.has_destination, me.destination_x = 1, me.x + coin(fight)
    elif not in_reach(me, foe, kit, style):
        dx, dy = me.x - foe.x, me.y - foe.y
        along_x = abs(dx) >= abs(dy)
        me.has_destination = 1
        me.destination_x = foe.x + sign(dx) if along_x else foe.x
        me.destination_y = foe.y if along_x else foe.y + sign(dy)


@njit(cache=True)
def move(fight, me, foe, kit):
    """After the target while attacking it, else to where was clicked: two tiles a tick, or one without run energy.

    The game takes run energy for two tiles, the server for a single one too.

    `moved` is cleared here and not at the tick's start: whoever is processed first meets a target that still counts as
    moving if it moved in the tick before.
    """
    me.moved = 0
    if me.freeze_timer > 0 or (me.attacking and foe.hp <= 0):
        me.has_destination = 0
    elif me.attacking:
        chase(fight, me, foe, kit, attack_style(me))
    steps = walk(me, foe, kit) if me.has_destination else 0
    if steps > RUN_FREE_TILES[fight.quirks]:
        me.run_energy = max(me.run_energy - RUN_COST[fight.quirks], 0)
    else:
        me.run_energy = min(me.run_energy + RUN_RECOVERY[fight.quirks], FULL_RUN_ENERGY)


@njit(cache=True)
def walk(me, foe, kit):
    """→ the tiles that were walked"""
    style = attack_style(me)
    tiles = 2 if me.run_energy > 0 else 1
    for step in range(tiles):
        step_towards(me, me.destination_x, me.destination_y)
        arrived = me.x == me.destination_x and me.y == me.destination_y
        if arrived or (me.attacking and style != STYLE_MELEE and in_reach(me, foe, kit, style)):
            me.has_destination = 0
            return step + 1
    return tiles
