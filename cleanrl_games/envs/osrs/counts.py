"""What both fighters of a fight do, counted from what they see: why one beats the other."""

import numpy as np

from .contract import LOGIT, OBS

STYLES = ("mage", "ranged", "melee")
WEAPONS = ("player_using_mage", "player_using_ranged", "player_using_melee")
PRAYERS = ("target_magic_prayer", "target_ranged_prayer", "target_melee_prayer")


class Counted:
    """A player as another, whose ticks and attacks are counted. The tick in which a fight ends is not: nobody sees what
    comes after it. Two hits of one special attack are one attack."""

    def __init__(self, player, num_fights):
        self.player = player
        self.sees = getattr(player, "sees", False)
        rows = 2 * num_fights
        self.ticks = np.zeros(rows, np.int64)
        self.frozen = np.zeros(rows, np.int64)
        self.under_frozen = np.zeros(rows, np.int64)  # ticks on the tile of a frozen target, who can't attack then
        self.held = np.zeros(rows, np.int64)  # ticks ready to attack, but frozen with the target on its tile
        self.attacks = np.zeros((rows, 3), np.int64)
        self.stopped = np.zeros((rows, 3), np.int64)  # by the target's prayer
        self.damage = np.zeros(rows)  # that has landed, as a share of the target's hitpoints
        self.before = None  # rows, observations and masks of the last tick

    def act(self, obs, masks, rows, actions):
        self.player.act(obs, masks, rows, actions)
        if self.before is not None:
            self.count(obs, rows)
        self.before = (rows, obs[rows].copy(), masks[rows].copy())

    def count(self, obs, rows):
        """The last tick of the fights that still go on."""
        last_rows, last_obs, last_masks = self.before
        there = np.isin(last_rows, rows)
        last_rows = last_rows[there]
        last_obs = last_obs[there]
        now = obs[last_rows]
        attacked = now[:, OBS["player_just_attacked"]] > 0
        frozen = last_obs[:, OBS["player_frozen_ticks"]] > 0
        same_tile = last_obs[:, OBS["player_to_target_distance"]] == 0
        free = ~last_masks[there][:, LOGIT["no_op_attack"]]
        self.ticks[last_rows] += 1
        self.frozen[last_rows] += frozen
        self.under_frozen[last_rows] += same_tile & (last_obs[:, OBS["target_frozen_ticks"]] > 0)
        self.held[last_rows] += free & ~attacked & frozen & same_tile
        self.damage[last_rows] += now[:, OBS["damage_on_target_tick"]]
        for style, (weapon, prayer) in enumerate(zip(WEAPONS, PRAYERS)):
            # Not by what was clicked: who has to walk to its target hits in a later tick.
            with_it = attacked & (now[:, OBS[weapon]] > 0)
            self.attacks[last_rows, style] += with_it
            self.stopped[last_rows, style] += with_it & (now[:, OBS[prayer]] > 0)

    def summary(self, num_fights):
        """{what: number}, a fight where nothing else is said"""
        ticks = max(int(self.ticks.sum()), 1)
        attacks = self.attacks.sum(0)
        stopped = self.stopped.sum(0)
        found = {
            "ticks": ticks / num_fights,
            "attacks": attacks.sum() / num_fights,
            "damage of an attack, in hitpoints of 1": self.damage.sum() / max(attacks.sum(), 1),
            "attacks that a prayer stopped": stopped.sum() / max(attacks.sum(), 1),
        }
        for style, name in enumerate(STYLES):
            found |= {
                f"{name}: share of attacks": attacks[style] / max(attacks.sum(), 1),
                f"{name}: stopped": stopped[style] / max(attacks[style], 1),
            }
        return found | {
            "share of ticks frozen": self.frozen.sum() / ticks,
            "share of ticks on a frozen target's tile": self.under_frozen.sum() / ticks,
            "ticks held below the target, ready to attack": self.held.sum() / num_fights,
        }
