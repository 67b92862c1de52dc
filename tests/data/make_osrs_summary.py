"""Boils recorded responses of the public NH simulation server down to what the parity test compares.

    python tests/data/make_osrs_summary.py TRACES.jsonl.gz               # osrs_traces_summary.json,
      osrs_traces_rows.npz
    python tests/data/make_osrs_summary.py --long TRACES.jsonl.gz        # osrs_traces_long_rows.npz

A trace is a gzip file of JSON lines {id, kind: reset | step, action, resp}; agents 0 and 1 fight each other, and so do
2 and 3, 4 and 5, …, all with masked random actions. The summary has ranges, means, mask frequencies and transitions;
the rows are what the replay needs of each tick. Fights of one pair of agents follow each other: `pair_<i>` says which
pair."""

import gzip
import json
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from cleanrl_games.envs.osrs.contract import ACTION_NAMES, NUM_LOGITS, NUM_OBS, OBSERVATION_NAMES

HERE = Path(__file__).parent
FLAGS = ("protectedPrayer", "hitOffPrayer", "hitWithSmite", "targetAttackedWithSmite")  # absent = no attack
NUMBERS = (
    "currentHealthPercent currentTargetHealthPercent currentPrayerPercent damageReceived damageDealt episodeTicks "
    "playerFrozenTicks targetFrozenTicks remainingFoodScale remainingBrewScale targetRemainingFoodScale "
    "targetRemainingBrewScale damageGeneratedOnPlayerScale damageGeneratedOnTargetScale extraDamageDealtOnPlayerScale "
    "extraDamageDealtOnTargetScale playerHealedScale targetHealedScale wastedFoodScale eatenFoodScale "
    "playerHitAttackSpeed targetHitAttackSpeed"
).split()


def read_fights(path):
    """Per pair of agents, its fights in order: [({tick: entry of one side}, {tick: entry of the other}), …]."""
    agents = {}
    with gzip.open(path, "rt") as lines:
        for line in lines:
            entry = json.loads(line)
            fights = agents.setdefault(entry["id"], [])
            if entry["kind"] == "reset":
                fights.append({})
            fights[-1][entry["resp"]["meta"]["episodeTicks"]] = entry
    pairs = [(agents[str(k)], agents[str(k + 1)]) for k in range(0, len(agents), 2)]
    return [list(zip(*pair, strict=True)) for pair in pairs]


def flatten(masks):
    return [bit for head in masks for bit in head]


def rows_of(fight_a, fight_b):
    """Arrays over the ticks of a fight: obs (T, 2, 176), masks (T, 2, 45), actions (T, 2, 12), meta (T, 2, K)."""
    # The server says who won one tick after the death, with that tick's clicks ignored: such a row is left out.
    last = max(fight_a)
    ticks = last + 1 - ("terminalState" in fight_a[last]["resp"])
    obs, masks = np.zeros((ticks, 2, NUM_OBS)), np.zeros((ticks, 2, NUM_LOGITS), bool)
    actions, meta = np.zeros((ticks, 2, 12), np.int8), np.full((ticks, 2, len(FLAGS) + len(NUMBERS)), np.nan)
    for tick in range(ticks):
        # One of the two joins a tick late; the answer to the other has both fighters' views. Later each one's own view
        # counts: at a death the two answers differ in the health that is seen.
        for side, (own, other) in enumerate(((fight_a, fight_b), (fight_b, fight_a))):
            if tick in own:
                response = own[tick]["resp"]
                obs[tick, side], masks[tick, side] = response["obs"], flatten(response["actionMasks"])
            else:
                seen = other[tick]["resp"]["meta"]
                obs[tick, side], masks[tick, side] = seen["targetObs"], flatten(seen["targetActionMasks"])
        for side, fight in enumerate((fight_a, fight_b)):
            if tick in fight:
                actions[tick, side] = fight[tick].get("action", [0] * 12)
                values = fight[tick]["resp"]["meta"]
                meta[tick, side] = [values.get(name, np.nan) for name in (*FLAGS, *NUMBERS)]
    return obs.astype(np.float32), masks, actions, meta.astype(np.float32)


def summarise(rows):
    """Ranges, means and frequencies over all ticks of both fighters, and the transitions that were seen."""
    everything = np.concatenate([row[0].reshape(-1, NUM_OBS) for row in rows])
    # Means over whole fights only: the two that were cut short would weigh the first ticks twice.
    whole = [row for row in rows if len(row[0]) > 100]
    obs = np.concatenate([row[0].reshape(-1, NUM_OBS) for row in whole])
    masks = np.concatenate([row[1].reshape(-1, NUM_LOGITS) for row in whole])
    ready = obs[:, 39] == 0
    return {
        "responses": len(everything),
        "observations": {
            name: [round(float(f(obs[:, i])), 5) for f in (np.min, np.max, np.mean)]
            for i, name in enumerate(OBSERVATION_NAMES)
        },
        "masks": {name: round(float(masks[:, i].mean()), 5) for i, name in enumerate(ACTION_NAMES)},
        "masks_when_ready_to_attack": {
            name: round(float(masks[ready, i].mean()), 5) for i, name in enumerate(ACTION_NAMES)
        },
        **{
            name: {key: sorted(values) for key, values in sorted(table.items())}
            for name, table in transitions(rows).items()
        },
    }


def transitions(rows):
    """What follows what, as {table: {"situation": {outcomes}}}. The parity test makes the same tables of the
    simulator."""
    tables = {name: {} for name in ("timers", "attacking", "hit_delay", "damage")}

    def note(table, situation, outcome):
        tables[table].setdefault(" ".join(str(int(x)) for x in situation), set()).add(int(outcome))

    for obs, _, actions, _ in rows:
        for before, after, action in zip(obs[:-1], obs[1:], actions[1:], strict=True):
            if after[:, 10].min() <= 0:  # a death ends everything
                continue
            for me in range(2):
                b, a, act, foe_attacked = before[me], after[me], action[me], after[me][50]
                attacked, style = a[49], 2 * a[0] + a[1]
                ate, drank, karambwan = act[5], act[4] > 0, act[6]
                note("timers", (39, b[39], b[43], ate, karambwan, attacked, attacked * style), a[39])
                note("timers", (40, b[40], ate, drank, karambwan), a[40])
                note("timers", (41, b[41], drank, karambwan), a[41])
                note("timers", (42, b[42], karambwan), a[42])
                for timer in (29, 31):  # freeze and immunity; a cast of the foe may start them
                    note("timers", (timer, b[timer], b[31], foe_attacked * a[14]), a[timer])
                note("attacking", (b[54], act[0] > 0, drank, act[8], act[9] > 0, attacked * a[2]), a[54])
                if attacked and not a[0] and b[47] == -1 and a[62] > 0:
                    note("hit_delay", (style, a[62], a[57]), a[47])
                if attacked:
                    note("damage", (style, a[64], a[3]), round(float(a[51]) * 99))
    return tables


def replace(path, write):
    """Writes beside the target and renames, so that a reader never meets half a file."""
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        write(file)
    os.replace(partial, path)


if __name__ == "__main__":
    words = sys.argv[1:]
    if len(words) not in (1, 2) or (len(words) == 2 and words[0] != "--long"):
        sys.exit("Give the trace file: python tests/data/make_osrs_summary.py [--long] TRACES.jsonl.gz")
    name = "osrs_traces_long" if len(words) == 2 else "osrs_traces"
    fights = [(pair, rows_of(*fight)) for pair, fights in enumerate(read_fights(words[-1])) for fight in fights]
    arrays = {"meta_names": np.array([*FLAGS, *NUMBERS])}
    for i, (pair, rows) in enumerate(fights):
        arrays |= {f"{field}_{i}": rows[k] for k, field in enumerate(("obs", "masks", "actions", "meta"))}
        arrays[f"pair_{i}"] = np.array(pair)
    replace(HERE / f"{name}_rows.npz", lambda file: np.savez_compressed(file, **arrays))
    if len(words) == 1:
        summary = json.dumps(summarise([rows for _, rows in fights]), indent=1)
        replace(HERE / f"{name}_summary.json", lambda file: file.write((summary + "\n").encode()))
