"""A scripted expert: it reads the quest's RAM, plans its way over the map (breadth first) and fights by the numbers.

    env, expert = PokemonEnv(), QuestExpert()
    obs, info = env.reset()
    while not (terminated or truncated):
        obs, reward, terminated, truncated, info = env.step(expert.act(env))

It keeps nothing between calls, so it can be asked in any state (a student's, say) and answers for that one.

    python -m cleanrl_games.envs.pokemon.expert [--worlds 256] [--random] [--max-steps 400]    # how far it gets
"""

import argparse
from collections import deque

import numpy as np

from .env import ACTIONS, QUEST_SEEDS, PokemonEnv
from .ram import ELEMENTS, QuestReader

A, B, UP, DOWN, LEFT, RIGHT = (ACTIONS.index(name) for name in ("A", "B", "UP", "DOWN", "LEFT", "RIGHT"))
WAYS = {UP: (0, -1), DOWN: (0, 1), LEFT: (-1, 0), RIGHT: (1, 0)}
FACING_ACTION = (DOWN, UP, LEFT, RIGHT)
EXITS = (6, 7, 13)  # mat, door, gate
TALL_GRASS = 3
ELEMENT_MOVE, TACKLE, TONIC, RUN = range(4)
BEATS = {"fire": "leaf", "leaf": "water", "water": "fire"}
WALK, BATTLE_MENU, MAP = 1, 3, 6


def first_action(tiles, people, start, goal, avoid_grass, shown=None):
    """→ the first action of a cheapest way from start to goal (which may be solid: then up to it), None if there is
    none. Of equally good ones it is the one that the compass on the screen shows: a student can see that reason."""
    solid = {(x, y) for _, x, y in people}

    def price(place):
        """Of stepping on a tile; 0 if one cannot. Grass costs double, for what may jump out of it."""
        tile = tiles[place[1], place[0]] if 0 <= place[0] < 32 and 0 <= place[1] < 32 else 0
        if place != goal and (tile == 0 or tile >= 16 or place in solid or tile in EXITS):
            return 0
        return 2 if avoid_grass and tile == TALL_GRASS else 1

    # backwards from the goal; a place is looked at again when a cheaper way to it turns up
    distance, queue = {goal: 0}, deque([goal])
    while queue:
        here = queue.popleft()
        cost = distance[here] + price(here)
        for dx, dy in WAYS.values():
            there = here[0] + dx, here[1] + dy
            if (there == start or price(there)) and cost < distance.get(there, 1 << 30):
                distance[there] = cost
                queue.append(there)
    if start not in distance:
        return None
    for action in sorted(WAYS, key=lambda action: action != shown):
        there = start[0] + WAYS[action][0], start[1] + WAYS[action][1]
        if price(there) and distance.get(there, 1 << 30) + price(there) == distance[start]:
            return action
    return None


def straight(dx, dy):
    """→ the action that shortens the longer side of the way, as the crow flies"""
    if abs(dx) > abs(dy):
        return LEFT if dx < 0 else RIGHT
    return DOWN if dy > 0 else UP


class QuestExpert:
    def act(self, env):
        """→ the action it would take in the environment's present state"""
        reader = env.unwrapped.reader
        if not isinstance(reader, QuestReader):
            raise ValueError(f"The scripted expert plays the quest only; this environment runs {reader.game!r}.")
        ram = reader.fields()
        if ram["mode"] == WALK:
            return self._walk(reader, ram)
        if ram["mode"] == BATTLE_MENU:
            return self._fight(ram, reader.world()["enemy_blow"])
        return B if ram["mode"] == MAP else A

    def _walk(self, reader, ram):
        here, goal = (ram["x"], ram["y"]), (ram["target_x"], ram["target_y"])
        people = reader.people()
        dx, dy = goal[0] - here[0], goal[1] - here[1]
        if any((x, y) == goal for _, x, y in people) and abs(dx) + abs(dy) == 1:
            towards = next(action for action, way in WAYS.items() if way == (dx, dy))
            return A if FACING_ACTION[ram["facing"]] == towards else towards
        seeks_grass = ram["objective"] == 10
        way = reader.way()
        # of equally good steps: the needle's, if there is one, else the one along the longer side of what is left
        shown = ACTIONS.index(way.upper()) if way else straight(dx, dy)
        action = first_action(reader.tiles(), people, here, goal, not seeks_grass, shown)
        if action is None:
            raise RuntimeError(
                f"The expert sees no way from {here} to {goal} on map {ram['map']} of world {ram['seed']}."
            )
        return action

    def _fight(self, ram, blow):
        """Runs from a shade. Takes the tonic when the next blow could be the last one and its own would not be.
        Otherwise the move that hurts: its element's against what that beats and against plain creatures, a tackle
        against the others."""
        enemy, own = ELEMENTS[ram["enemy_element"]], ELEMENTS[ram["starter"]]
        strong = BEATS[own] == enemy
        move, least = (ELEMENT_MOVE, 12 if strong else 8) if strong or enemy == "plain" else (TACKLE, 6)
        if enemy == "shade":
            wanted = RUN
        elif ram["hp"] <= blow and ram["tonics"] and ram["enemy_hp"] > least:
            wanted = TONIC
        else:
            wanted = move
        wrong = ram["cursor"] ^ wanted
        if wrong & 2:
            return UP if ram["cursor"] & 2 else DOWN
        if wrong & 1:
            return LEFT if ram["cursor"] & 1 else RIGHT
        return A


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=256, help="how many worlds, spread over all of them")
    parser.add_argument("--max-steps", type=int, default=400)
    parser.add_argument("--random", action="store_true", help="random buttons instead of the expert's")
    args = parser.parse_args()
    env, expert, rng = PokemonEnv(max_steps=args.max_steps), QuestExpert(), np.random.default_rng(0)
    finished, steps, milestones, losses = [], [], [], []
    for world in np.linspace(0, QUEST_SEEDS - 1, args.worlds).astype(int):
        env.reset(options={"quest_seed": world})
        done = False
        while not done:
            action = int(rng.integers(len(ACTIONS))) if args.random else expert.act(env)
            _, _, terminated, truncated, info = env.step(action)
            done = terminated or truncated
        finished.append(terminated)
        steps.append(info["steps"])
        milestones.append(info["milestones_reached"])
        losses.append(info["losses"])
    env.close()
    print(
        f"{'random' if args.random else 'expert'}: {sum(finished)} of {args.worlds} worlds finished within "
        f"{args.max_steps} steps"
    )
    print(f"steps: mean {np.mean(steps):.1f}, from {min(steps)} to {max(steps)}; battles lost: {sum(losses)}")
    print(
        f"milestones: mean {np.mean(milestones):.2f} of {len(env.milestones)} "
        f"({np.mean(milestones) / len(env.milestones):.1%}), most {max(milestones)}"
    )


if __name__ == "__main__":
    main()
