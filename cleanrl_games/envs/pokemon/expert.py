"""A scripted expert: it reads the quest's RAM, plans its way over the map (breadth first) and fights by the numbers.

    env, expert = PokemonEnv(), QuestExpert()
    obs, info = env.reset()
    while not (terminated or truncated):
        obs, reward, terminated, truncated, info = env.step(expert.act(env))

It keeps nothing between calls, so it can be asked in any state (a student's, say) and answers for that one.
"""

from collections import deque

from .env import ACTIONS
from .ram import ELEMENTS, QuestReader

A, UP, DOWN, LEFT, RIGHT = (ACTIONS.index(name) for name in ("A", "UP", "DOWN", "LEFT", "RIGHT"))
WAYS = {UP: (0, -1), DOWN: (0, 1), LEFT: (-1, 0), RIGHT: (1, 0)}
FACING_ACTION = (DOWN, UP, LEFT, RIGHT)
EXITS = (6, 7, 13)  # mat, door, gate
TALL_GRASS = 3
ELEMENT_MOVE, TONIC = 0, 2


def first_action(tiles, people, start, goal, avoid_grass):
    """→ the first action of a shortest way from start to goal (which may be solid: then beside it), None if there is none"""
    solid = {(x, y) for _, x, y in people}
    best, queue = {start: (0, None)}, deque([start])
    # grass costs a battle's worth of steps now and then: a relaxed search, since costs are small and maps tiny
    while queue:
        here = queue.popleft()
        cost, first = best[here]
        for action, (dx, dy) in WAYS.items():
            there = here[0] + dx, here[1] + dy
            tile = tiles[there[1], there[0]] if 0 <= there[0] < 32 and 0 <= there[1] < 32 else 0
            if there != goal and (tile == 0 or tile >= 16 or there in solid or tile in EXITS):
                continue
            price = cost + (2 if avoid_grass and tile == TALL_GRASS else 1)
            if there not in best or price < best[there][0]:
                best[there] = price, first if first is not None else action
                if there != goal:
                    queue.append(there)
    return best[goal][1] if goal in best else None


class QuestExpert:
    def act(self, env):
        """→ the action it would take in the environment's present state"""
        reader = env.unwrapped.reader
        if not isinstance(reader, QuestReader):
            raise ValueError(f"The scripted expert plays the quest only; this environment runs {reader.game!r}.")
        ram = reader.fields()
        if ram["mode"] == 1:
            return self._walk(reader, ram)
        if ram["mode"] == 3:
            return self._fight(ram)
        return A

    def _walk(self, reader, ram):
        here, goal = (ram["x"], ram["y"]), (ram["target_x"], ram["target_y"])
        people = reader.people()
        dx, dy = goal[0] - here[0], goal[1] - here[1]
        if any((x, y) == goal for _, x, y in people) and abs(dx) + abs(dy) == 1:
            towards = next(action for action, way in WAYS.items() if way == (dx, dy))
            return A if FACING_ACTION[ram["facing"]] == towards else towards
        seeks_grass = ram["objective"] == 10
        action = first_action(reader.tiles(), people, here, goal, avoid_grass=not seeks_grass)
        if action is None:
            raise RuntimeError(f"The expert sees no way from {here} to {goal} on map {ram['map']} of world {ram['seed']}.")
        return action

    def _fight(self, ram):
        """Its element's move, unless the next blow could be the last one and a tonic is left."""
        blow = 8 if ELEMENTS[ram["enemy_element"]] == "plain" else 12
        wanted = TONIC if ram["hp"] <= blow and ram["tonics"] and ram["enemy_hp"] > 8 else ELEMENT_MOVE
        wrong = ram["cursor"] ^ wanted
        if wrong & 2:
            return UP if ram["cursor"] & 2 else DOWN
        if wrong & 1:
            return LEFT if ram["cursor"] & 1 else RIGHT
        return A
