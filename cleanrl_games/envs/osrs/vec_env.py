"""`NHVecEnv`: many fights in one batch. Both fighters of each are agents, and who answers for them is the caller's
choice."""

import gymnasium as gym
import numpy as np
from numba import njit

from . import contract
from .loadouts import find_loadouts
from .observations import FACTS, PARAMS, gather_facts, observe, reward_terms, write_constants
from .rules import (
    FIGHT,
    FIGHTER,
    LOST,
    WON,
    roll,
)
from .simulator import (
    reset_fight,
    tick,
)


@njit(cache=True)
def start_fight(i, fights, fighters, loadouts, pool, mirror, params, obs, masks):
    fight, a, b = fights[i], fighters[i, 0], fighters[i, 1]
    loadout_a = pool[roll(fight, len(pool))]
    loadout_b = loadout_a if mirror else pool[roll(fight, len(pool))]
    fight.quirks = params.quirks
    reset_fight(fight, a, b, loadouts, loadout_a, loadout_b)
    kit_a, kit_b = loadouts[loadout_a], loadouts[loadout_b]
    if params.quirks == 0:
        a.shown_health = b.shown_health = 1.0
    write_constants(a, b, kit_a, params, obs[i, 0])
    write_constants(b, a, kit_b, params, obs[i, 1])
    observe(fight, 0, a, b, kit_a, kit_b, params, obs[i, 0], masks[i, 0])
    observe(fight, 1, b, a, kit_b, kit_a, params, obs[i, 1], masks[i, 1])


@njit(cache=True)
def start_all(fights, fighters, loadouts, pool, mirror, params, obs, masks):
    for i in range(len(fights)):
        start_fight(i, fights, fighters, loadouts, pool, mirror, params[0], obs, masks)


@njit(cache=True)
def step_all(
    actions, fights, fighters, loadouts, pool, mirror, params, max_ticks, obs, masks, facts, terms, ended, final_obs
):
    """One tick of every fight. An ended fight leaves its last observation in `final_obs` and starts anew at once."""
    for i in range(len(fights)):
        fight, a, b = fights[i], fighters[i, 0], fighters[i, 1]
        kit_a, kit_b = loadouts[a.loadout], loadouts[b.loadout]
        tick(fight, a, b, kit_a, kit_b, actions[i, 0], actions[i, 1])
        for me, kit in ((a, kit_a), (b, kit_b)):
            if params[0].quirks == 0:  # otherwise health is seen on hitsplats only
                me.shown_health = me.hp / kit.hitpoints_level
        observe(fight, 0, a, b, kit_a, kit_b, params[0], obs[i, 0], masks[i, 0])
        observe(fight, 1, b, a, kit_b, kit_a, params[0], obs[i, 1], masks[i, 1])
        result = fight.result
        gather_facts(result, a, b, kit_a, kit_b, facts[i, 0])
        gather_facts(WON + LOST - result if result in (WON, LOST) else result, b, a, kit_b, kit_a, facts[i, 1])
        reward_terms(facts[i, 0], terms[i, 0])
        reward_terms(facts[i, 1], terms[i, 1])
        ended[i, 0], ended[i, 1], ended[i, 2] = result, result == 0 and fight.tick >= max_ticks, fight.tick
        if result != 0 or fight.tick >= max_ticks:
            final_obs[i] = obs[i]
            start_fight(i, fights, fighters, loadouts, pool, mirror, params[0], obs, masks)


@njit(cache=True)
def in_range(actions, sizes):
    for fight in range(actions.shape[0]):
        for fighter in range(2):
            for head in range(len(sizes)):
                if actions[fight, fighter, head] < 0 or actions[fight, fighter, head] >= sizes[head]:
                    return False
    return True


def read_weights(weights):
    """{term: weight} or one weight a term → (NUM_TERMS,)"""
    if weights is None:
        weights = {"ko": 1.0, "death": -1.0}
    if isinstance(weights, dict):
        for name in weights:
            if name not in contract.REWARD_TERMS:
                raise ValueError(f"Unknown reward term {name!r}. There are: {', '.join(contract.REWARD_TERMS)}.")
        weights = [weights.get(name, 0.0) for name in contract.REWARD_TERMS]
    weights = np.asarray(weights, np.float32)
    if weights.shape != (contract.NUM_TERMS,):
        raise ValueError(f"reward_weights should be {contract.NUM_TERMS} numbers, found shape {weights.shape}.")
    return weights


HEAD_SIZES = np.array(contract.HEAD_SIZES)


class NHVecEnv:
    """N fights, tick by tick.

    `step(actions)` takes (N, 2, 12) whole numbers and returns (obs, masks, rewards, terminated, truncated, info):
    obs (N, 2, 176) float32 and masks (N, 2, 45) bool are the environment's own buffers, overwritten by the next step;
    rewards (N, 2); terminated, truncated (N,). A fight that ended starts anew in the same step (same-step autoreset):
    obs then belongs to the new fight, info["final_obs"][i] to the old one. info also has `terms` (N, 2, 20), `result`
    (1 = fighter 0 won, 2 = fighter 1 won, 3 = tie) and `length`.
    """

    def __init__(
        self,
        num_fights,
        loadouts=("lms_med",),
        loadout_file=None,
        mirror=True,
        seed=1,
        max_ticks=1000,
        reward_weights=None,  # {term: weight} or (NUM_TERMS,); None = 1 for a kill, -1 for a death
        quirks=True,
        allow_smite=False,
        allow_redemption=False,
        move_if_can_attack=False,
    ):
        self.loadouts, self.pool = find_loadouts(loadouts, loadout_file)
        self.num_fights = num_fights
        self.mirror, self.max_ticks = mirror, max_ticks
        self.params = np.zeros(1, PARAMS).view(np.recarray)
        self.params[0] = (quirks, allow_smite, allow_redemption, move_if_can_attack)
        self.reward_weights = read_weights(reward_weights)
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (contract.NUM_OBS,), np.float32)
        self.single_action_space = gym.spaces.MultiDiscrete(contract.HEAD_SIZES)

        self.fights = np.zeros(num_fights, FIGHT).view(np.recarray)
        self.fighters = np.zeros((num_fights, 2), FIGHTER).view(np.recarray)
        self.facts = np.zeros((num_fights, 2), FACTS).view(np.recarray)
        self.obs = np.zeros((num_fights, 2, contract.NUM_OBS), np.float32)
        self.masks = np.zeros((num_fights, 2, contract.NUM_LOGITS), np.bool_)
        self.final_obs = np.zeros_like(self.obs)
        self.terms = np.zeros((num_fights, 2, contract.NUM_TERMS), np.float32)
        self.ended = np.zeros((num_fights, 3), np.int32)  # result, truncated, length
        self.waiting = np.zeros((num_fights, 2), np.bool_)  # as RemoteNHVecEnv has it: here nobody ever waits
        self.reset(seed)

    def reset(self, seed=None):
        """Starts all fights anew. A seed seeds every fight's own generator; without one they go on."""
        if seed is not None:
            self.fights["rng"] = np.random.SeedSequence(seed).generate_state(self.num_fights) | 1  # never 0
        self.fighters["logged_in"] = 0  # nothing is carried over from fights before
        start_all(self.fights, self.fighters, self.loadouts, self.pool, self.mirror, self.params, self.obs, self.masks)
        return self.obs, self.masks

    def step(self, actions):
        actions = np.ascontiguousarray(actions)
        shape = (self.num_fights, 2, contract.NUM_HEADS)
        if actions.shape != shape or actions.dtype.kind not in "iu":  # compiled code would read beyond their end
            raise ValueError(f"step expects whole numbers of shape {shape}, found {actions.dtype} of {actions.shape}.")
        if not in_range(actions, HEAD_SIZES):
            raise ValueError(f"step expects actions below their heads' sizes, {contract.HEAD_SIZES}.")
        step_all(
            actions, self.fights, self.fighters, self.loadouts, self.pool, self.mirror, self.params, self.max_ticks,
            self.obs, self.masks, self.facts, self.terms, self.ended, self.final_obs,
        )  # fmt: skip
        result, truncated = self.ended[:, 0], self.ended[:, 1].astype(bool)
        info = {"terms": self.terms, "result": result, "length": self.ended[:, 2], "final_obs": self.final_obs}
        return self.obs, self.masks, self.terms @ self.reward_weights, result != 0, truncated, info

    def close(self):
        """Does nothing: fights are memory. RemoteNHVecEnv has connections to close."""

    def state_dict(self):
        """Everything a fight depends on, as plain arrays: a run that is resumed goes on with the very same fights."""
        return {
            "fights": self.fights.view(np.uint8).reshape(-1).copy(),
            "fighters": self.fighters.view(np.uint8).reshape(-1).copy(),
        }

    def load_state_dict(self, state):
        for name, array in (("fights", self.fights), ("fighters", self.fighters)):
            saved = np.asarray(state[name], np.uint8)
            if saved.nbytes != array.nbytes:
                raise ValueError(
                    f"The saved {name} are {saved.nbytes} bytes, this environment's {array.nbytes}: other size or "
                    f"version."
                )
            array.view(np.uint8).reshape(-1)[:] = saved
        for i in range(self.num_fights):
            self._observe_again(i)

    def _observe_again(self, i):
        fight, a, b = self.fights[i], self.fighters[i, 0], self.fighters[i, 1]
        kit_a, kit_b = self.loadouts[a.loadout], self.loadouts[b.loadout]
        for index, me, foe, kit, foe_kit in ((0, a, b, kit_a, kit_b), (1, b, a, kit_b, kit_a)):
            write_constants(me, foe, kit, self.params[0], self.obs[i, index])
            observe(fight, index, me, foe, kit, foe_kit, self.params[0], self.obs[i, index], self.masks[i, index])
