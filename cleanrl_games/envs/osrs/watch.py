"""One fight for `tools/watch.py`: what a page needs to draw it, what the policies think, and a person's clicks.

A scene is plain JSON. `Fight` plays tick by tick; `SceneRecorder` takes the same scenes from a fight of a batch.
"""

import numpy as np
import torch

from .baselines import BASELINES, Baseline
from .contract import ACTION_NAMES, HEAD_NAMES, HEAD_OFFSETS, HEAD_SIZES, LOGIT, NUM_HEADS, NUM_LOGITS, NUM_OBS
from .loadouts import OUTFITS
from .match import in_order
from .vec_env import NHVecEnv

TICK_SECONDS = 0.6
OPPONENTS, DEFAULT_OPPONENT = BASELINES, "nh"
FIELDS = (
    "x", "y", "hp", "prayer_points", "energy", "overhead", "boost", "worn", "vengeance", "freeze_timer", "attack_timer",
    "brew", "restore", "combat", "ranging", "karambwan", "food", "attacked", "special", "spell", "splatted", "received",
    "healed", "has_destination", "destination_x", "destination_y", "moved",
)  # fmt: skip

# A person's click: the heads it sets. Each group is one row of buttons; the first of a row is what is clicked by
# nobody.
CLICKS = {
    "attack": {
        "none": {},
        "ice spell": {"attack": "mage_attack", "mage_attack_type": "use_ice_spell"},
        "blood spell": {"attack": "mage_attack", "mage_attack_type": "use_blood_spell"},
        "magic special": {"attack": "mage_attack", "mage_attack_type": "use_magic_spec"},
        "ranged": {"attack": "ranged_attack", "ranged_attack_type": "basic_ranged_attack"},
        "ranged special": {"attack": "ranged_attack", "ranged_attack_type": "ranged_special_attack"},
        "melee": {"attack": "melee_attack", "melee_attack_type": "basic_melee_attack"},
        "melee special": {"attack": "melee_attack", "melee_attack_type": "melee_special_attack"},
        "tank gear": {"gear": "use_tank_gear"},
    },
    "pray against": {
        "as it is": {},
        "magic": {"prayer": "mage_prayer"},
        "ranged": {"prayer": "ranged_prayer"},
        "melee": {"prayer": "melee_prayer"},
    },
    "move": {
        "stay": {},
        "next to": {"movement": "move_next_to_target"},
        "under": {"movement": "move_under_target"},
        "diagonal": {"movement": "move_diagonal_to_target"},
        **{
            f"{tiles} tiles away": {"movement": "move_to_farcast_tile", "farcast_distance": f"farcast_{tiles}_tiles"}
            for tiles in range(2, 8)
        },
    },
    "eat": {"nothing": {}, "food": {"food": "eat_primary_food"}},
    "karambwan": {"nothing": {}, "karambwan": {"karambwan": "eat_karambwan"}},
    "drink": {
        "nothing": {},
        "brew": {"potion": "use_brew"},
        "restore": {"potion": "use_restore_potion"},
        "combat": {"potion": "use_combat_potion"},
        "ranging": {"potion": "use_ranged_potion"},
    },
    "vengeance": {"no": {}, "cast": {"veng": "use_veng"}},
}
STICKY = ("attack", "pray against")  # what stays clicked from tick to tick


def scene_of(env, index, fighters, tick, result=0):
    """`result`: 0 while it goes on, 1 or 2 = that fighter won, 3 = tie, -1 = time is up"""
    shown = []
    for me in fighters:
        values = {name: int(me[name]) for name in FIELDS}
        shown.append(values | {"max_hp": int(env.loadouts[me["loadout"]].hitpoints_level)})
    return {"tick": tick, "fighters": shown, "result": result}


def last_scene(env, index, fighters):
    """The tick in which a fight ended, rebuilt from the one before it, since a new fight has begun by then."""
    result, _, length = (int(number) for number in env.ended[index])
    fighters = fighters.copy()
    for me, obs in zip(fighters, env.final_obs[index], strict=True):
        base = env.loadouts[me["loadout"]].hitpoints_level
        me["hp"] = round(float(obs[10]) * base)
        me["received"] = round(float(obs[52]) * base)
        me["splatted"] = me["received"] > 0
        me["attacked"] = 0
    return scene_of(env, index, fighters, length, result or -1)


class SceneRecorder:
    """Scenes of fight `index` of a batch: `start(env)`, then `frame()` after every step until it is over."""

    def __init__(self, index=0):
        self.index, self.scenes = index, []

    def start(self, env):
        self.env = env
        self.note()

    def note(self):
        self.fighters = self.env.fighters[self.index].copy()
        self.scenes.append(scene_of(self.env, self.index, self.fighters, int(self.env.fights[self.index].tick)))

    def frame(self):
        result, truncated, _ = self.env.ended[self.index]
        if result or truncated:
            self.scenes.append(last_scene(self.env, self.index, self.fighters))
        else:
            self.note()


def words(action):
    return action.replace("use_", "").replace("_", " ")


class Fight:
    """One fight after another between two seats. A seat has `kind` (model, scripted, person), `name` and, of a model,
    `model`."""

    frame_seconds = TICK_SECONDS
    waits = False  # a person's clicks are taken as they are when the tick comes

    def __init__(self, seats, seed=1, deterministic=False, **env_settings):
        self.seats, self.seed, self.deterministic = seats, seed, deterministic
        self.env = NHVecEnv(1, seed=seed, **env_settings)
        self.generators = [torch.Generator().manual_seed(seed + 1 + side) for side in range(2)]
        self.scripted = [
            Baseline(seat.name, 2, seed + 3 + side) if seat.kind == "scripted" else None
            for side, seat in enumerate(seats)
        ]
        self.actions = np.zeros((2, NUM_HEADS), np.int64)

    def info(self):
        rows = [{"name": name, "options": list(options), "sticky": name in STICKY} for name, options in CLICKS.items()]
        return {"outfits": list(OUTFITS), "clicks": rows}

    def begin(self):
        self.fighters = self.env.fighters[0].copy()
        return [{"scene": scene_of(self.env, 0, self.fighters, int(self.env.fights[0].tick))}]

    def skip(self):
        """Gives the fight up: the next one begins."""
        self.seed += 1
        self.env.reset(self.seed)

    def check(self, answer):
        if not isinstance(answer, dict) or any(option not in CLICKS.get(name, {}) for name, option in answer.items()):
            raise ValueError(
                f"A tick's clicks name a row and one of its options; there are the rows {', '.join(CLICKS)}."
            )
        return answer

    def clicks(self, answer):
        """A person's clicks → twelve actions. The simulator ignores what cannot be done in this tick, as the game
        does."""
        action = np.zeros(NUM_HEADS, np.int64)
        for name, option in (answer or {}).items():
            for head, chosen in CLICKS[name][option].items():
                action[HEAD_NAMES.index(head)] = LOGIT[chosen] - HEAD_OFFSETS[HEAD_NAMES.index(head)]
        return action

    def rest(self, answer):
        """What of a person's clicks stays for the next tick"""
        return {name: option for name, option in (answer or {}).items() if name in STICKY}

    def possible(self, side):
        """Which clicks the game would take now: {row: [bool for each option]}"""
        mask = self.env.masks[0, side]
        return {
            name: [all(bool(mask[LOGIT[action]]) for action in heads.values()) for heads in options.values()]
            for name, options in CLICKS.items()
        }

    def question(self):
        side = next((side for side, seat in enumerate(self.seats) if seat.kind == "person"), None)
        return None if side is None else {"possible": self.possible(side)}

    @torch.no_grad()
    def think(self, side):
        """The model's twelve actions → (actions, what it thinks)"""
        agent = self.seats[side].model.agent
        obs = agent.normalise(torch.from_numpy(self.env.obs[0]))
        mine, target = obs[side : side + 1], obs[1 - side : 2 - side]
        masks = torch.from_numpy(self.env.masks[0, side : side + 1])
        greedy = torch.ones(1, NUM_HEADS, dtype=torch.bool) if self.deterministic else None
        actions = agent.act(mine, masks, self.generators[side], greedy)[0]
        chances = agent.head_logprobs(mine, masks, actions)[0].exp()  # (12, 7)
        groups = []
        for head, (name, offset, size) in enumerate(zip(HEAD_NAMES, HEAD_OFFSETS, HEAD_SIZES)):
            taken = int(actions[0, head])
            options = [(words(ACTION_NAMES[offset + i]), float(chances[head, i]), i == taken) for i in range(size)]
            options = sorted((option for option in options if option[1] > 0.005), key=lambda option: -option[1])
            if len(options) > 1 or taken:  # a head that had no choice says nothing
                groups.append(
                    {"name": name.replace("_", " "), "options": [[n, round(p, 3), t] for n, p, t in options[:4]]}
                )
        return actions[0].numpy(), {"value": round(float(agent.value(mine, target)), 4), "groups": groups}

    def step(self, answer=None):
        obs, masks = self.env.obs.reshape(-1, NUM_OBS), self.env.masks.reshape(-1, NUM_LOGITS)
        minds = [None, None]
        for _, side in in_order([(self.scripted[side], side) for side in range(2)], int(self.env.fights[0].tick)):
            seat = self.seats[side]
            if seat.kind == "model":
                self.actions[side], minds[side] = self.think(side)
            elif seat.kind == "scripted":
                self.scripted[side].act(obs, masks, np.array([side]), self.actions)
            else:
                self.actions[side] = self.clicks(answer)
        _, _, _, terminated, truncated, info = self.env.step(self.actions[None])
        if not (terminated[0] or truncated[0]):
            self.fighters = self.env.fighters[0].copy()
            return [{"scene": scene_of(self.env, 0, self.fighters, int(self.env.fights[0].tick)), "minds": minds}]
        result = int(info["result"][0]) if terminated[0] else 0
        winner = result - 1 if result in (1, 2) else None
        text = f"{self.seats[winner].name} wins" if winner is not None else "a tie" if result else "time is up"
        return [
            {"scene": last_scene(self.env, 0, self.fighters), "minds": minds, "over": {"winner": winner, "text": text}}
        ]

    def close(self):
        pass
