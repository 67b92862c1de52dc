"""Two players against each other. A player is the name of a scripted one or anything with `act(batch, rows) ->
actions`.

`batch` is a `Batch` of VGCVecEnv, `rows` the decisions in it that this player has to answer; a policy with a memory
keeps it by `batch.key[rows]`, starts anew where `batch.kind[rows] == PREVIEW` and goes back one step where
`batch.retry[rows]`. A player with `needs_protocol` also finds each decision's lines in `batch.protocol`."""

from dataclasses import replace

import numpy as np

from cleanrl_games.envs.vgc.teams import TeamPool
from cleanrl_games.envs.vgc.vec_env import OPPONENTS, VGCVecEnv

BASELINES = OPPONENTS[1:]


def play_battles(
    player,
    opponent,
    num_battles,
    battle_format="gen9vgc2024regg",
    teams=None,
    seed=1,
    at_once=64,
    num_sims=1,
    progress=None,
    first_log=None,
    **env_settings,
):
    """Plays `num_battles` battles, each counted exactly once → (scores, turns) as `player` sees them, by table and
    episode.

    A score is 1 for a win, 0.5 for a tie or a truncated battle, 0 for a loss. `player` is side 0 at even tables and
    side 1 at odd ones. `teams` are what VGCVecEnv takes, None the shipped held-out ones; a pair is the player's teams
    and the opponent's, and then `player` is always side 0. `progress(battles done)` is called now and then,
    `first_log(log)` with the log of the first table's first battle, in which `player` is p1.
    """
    teams = TeamPool("shipped", battle_format, split="eval") if teams is None else teams
    tables = min(at_once, num_battles)
    # Each table plays its share to the end: to stop at the first `num_battles` that end would favour short ones.
    quota = np.full(tables, num_battles // tables) + (np.arange(tables) < num_battles % tables)
    side = np.arange(tables) % 2 if not isinstance(teams, tuple) else np.zeros(tables, np.int64)
    scores, turns, played = [[] for _ in quota], [[] for _ in quota], np.zeros(tables, np.int64)
    names = [who if isinstance(who, str) else "open" for who in (player, opponent)]
    scripted = {"opponents": [tuple(names[:: 1 - 2 * place]) for place in side]} if names != ["open", "open"] else {}
    extras = {"logs": True} if first_log else {}
    if any(getattr(who, "needs_protocol", False) for who in (player, opponent)):
        extras["protocol"] = True
    env = VGCVecEnv(
        tables, min(num_sims, tables), battle_format, teams, seed=seed, **scripted, **extras, **env_settings
    )
    with env:
        while (played < quota).any():
            batch = env.recv()
            if first_log and (0, 0) in batch.logs:
                first_log(batch.logs[0, 0])
            for end in batch.finished:
                table = end["battle"]
                if played[table] < quota[table]:
                    decided = end["winner"] in (0, 1)
                    scores[table].append(float(end["winner"] == side[table]) if decided else 0.5)
                    turns[table].append(int(end["turns"]))
                    played[table] += 1
            rows = batch.decisions
            # A table that has played its share is left alone with its next preview.
            rows = rows[(played < quota)[batch.battle[rows]]]
            mine = batch.side[rows] == side[batch.battle[rows]]
            for who, asked in ((player, rows[mine]), (opponent, rows[~mine])):
                if len(asked):
                    env.send(batch.key[asked], who.act(batch, asked))
            if progress:
                progress(int(played.sum()))
    return np.concatenate(scores), np.concatenate(turns)


def replay_battles(env, played):
    """Plays battles again up to where they stood: same seed and episodes, same moves → what they ask next, as one
    batch.

    `played`: for each battle of `env`, which has just begun, its (key, action) in order; empty = it stays at its
    preview."""
    left = {key: [] for key in range(2 * len(played))}
    for key, action in (move for moves in played for move in moves):
        left[key].append(action)
    frames, finished = [], []
    while True:
        batch = env.recv()
        arrived = np.array([not left[2 * battle] and not left[2 * battle + 1] for battle in range(len(played))])
        frames.append(batch.frames[arrived[batch.battle]])
        finished.append(batch.finished[arrived[batch.finished["battle"]]])
        keys = [key for key in batch.key[batch.decisions].tolist() if left[key]]
        if not keys:
            return replace(batch, frames=np.concatenate(frames), finished=np.concatenate(finished))
        env.send(keys, [left[key].pop(0) for key in keys])
