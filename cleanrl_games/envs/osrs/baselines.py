"""Scripted opponents. They see what a policy sees, observations and masks, so they play on the server too."""

import numpy as np
from numba import njit

from .contract import FORBIDS, HEAD_OFFSETS, HEAD_SIZES, NEEDS, NUM_HEADS
from .rules import FIGHT, roll

_SIZES, _OFFSETS = np.array(HEAD_SIZES), np.array(HEAD_OFFSETS)


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


@njit(cache=True)
def nh_action(dice, obs, mask, action):
    """How a decent NH player fights, as rules a reader can follow.

    Attack with a style the target does not pray against; pray against the weapon it holds; eat by HP and combo-eat when
    low; spec when the target is low enough to die; freeze it when it is free; stay away while waiting.
    """
    action[:] = 0
    health, target_health = obs[10], obs[11] if obs[53] > 0.0 or obs[74] > 0.0 else 1.0

    # overhead prayer: the style of the weapon in the target's hands; melee only if it can reach
    prayer = 1 if obs[14] == 1 else 2 if obs[13] == 1 else 3
    if not mask[39 + prayer]:
        prayer = 2 if mask[41] else 0
    action[11] = prayer if mask[39 + prayer] else 0

    # eating: food first, a karambwan on top when in danger, a brew when that is all there is
    danger = health < 0.45
    if health < 0.60 and mask[20]:
        action[5] = 1
    if danger and mask[22] and (action[5] == 1 or not mask[20]):
        action[6] = 1
    elif danger and mask[15]:
        action[4] = 1
    # potions: restore what brews drained, then boost, when there is nothing better to do with the sip
    if action[4] == 0 and action[6] == 0:
        if mask[16] and (obs[38] < 0.95 or obs[28] < 0.25):
            action[4] = 2
        elif mask[17] and obs[34] < 0.9:
            action[4] = 3
        elif mask[18] and obs[37] < 0.92:
            action[4] = 4
    if mask[24] and roll(dice, 3) == 0:
        action[7] = 1

    can_attack = not mask[0]
    if can_attack:
        prays_melee, prays_ranged, prays_mage = obs[16] == 1, obs[17] == 1, obs[18] == 1
        melee_ok, spec_ok = mask[5] and (obs[33] == 1 or obs[62] <= 3), mask[6] and (obs[33] == 1 or obs[62] <= 3)
        kill = target_health < 0.5
        if spec_ok and not prays_melee and kill:
            action[0], action[1] = 3, 2
        elif mask[1] and not prays_mage and (obs[30] == 0 or roll(dice, 2) == 0 or prays_ranged):
            wants_blood = mask[12] and health < 0.75 and (obs[30] > 0 or roll(dice, 2) == 0)
            action[0], action[3] = 1, 2 if wants_blood or not mask[11] else 1
        elif mask[8] and not prays_ranged:
            action[0], action[2] = 2, 1
        elif melee_ok and not prays_melee:
            action[0], action[1] = 3, 1
        elif mask[11]:
            action[0], action[3] = 1, 1
        elif mask[8]:
            action[0], action[2] = 2, 1
        elif mask[5]:
            action[0], action[1] = 3, 1
    elif mask[26]:
        action[8] = 1  # wait in tank gear when the target is about to hit
    if not can_attack and mask[29] and obs[39] >= 2:
        action[9] = 2  # under a frozen target it cannot hit back
    elif not can_attack and mask[30] and obs[62] < 4 and obs[30] == 0 and mask[35]:
        action[9], action[10] = 3, 3


@njit(cache=True)
def random_batch(dice, masks, rows, chosen, actions):
    for row in rows:
        random_action(dice[row], masks[row], chosen, actions[row])


@njit(cache=True)
def nh_batch(dice, obs, masks, rows, actions):
    for row in rows:
        nh_action(dice[row], obs[row], masks[row], actions[row])


class Baseline:
    """A scripted player for a batch: `act(obs, masks, rows, actions)` fills the rows of flat (M, 12) actions it answers for.

    One die per row, so that what a row does depends on its own past only.
    """

    def __init__(self, name, num_rows, seed=1):
        if name not in BASELINES:
            raise ValueError(f"Unknown baseline {name!r}. There are: {', '.join(BASELINES)}.")
        self.name = name
        self.dice = np.zeros(num_rows, FIGHT).view(np.recarray)
        self.dice["rng"] = np.random.SeedSequence(seed).generate_state(num_rows) | 1
        self.chosen = np.zeros(sum(HEAD_SIZES), np.bool_)

    def act(self, obs, masks, rows, actions):
        if self.name == "random":
            random_batch(self.dice, masks, rows, self.chosen, actions)
        else:
            nh_batch(self.dice, obs, masks, rows, actions)


BASELINES = ("random", "nh")
