"""The simulator against recorded responses of the public server: masked-random play with LMS_MED, 4 and 16 fights.

The server's dice cannot be seeded, so the fights are *explained* instead of repeated: the simulator plays the recorded
actions tick by tick; wherever dice decide (accuracy, damage, which of several tiles is walked to), it may throw as
often as it needs to arrive at what the server showed. What no dice can change has to be equal, column by column, bit by
bit. On top, means and frequencies of the recording have to look like a sample of the simulator's own play.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from data.make_osrs_summary import transitions
from numba import njit

from cleanrl_games.envs.osrs.baselines import Baseline
from cleanrl_games.envs.osrs.contract import ACTION_NAMES, NUM_LOGITS, NUM_OBS, OBS, OBSERVATION_NAMES
from cleanrl_games.envs.osrs.loadouts import SPECIAL
from cleanrl_games.envs.osrs.movement import attack_style
from cleanrl_games.envs.osrs.observations import observe, write_constants
from cleanrl_games.envs.osrs.rules import (
    DIAMOND_CHANCE,
    FULL_RUN_ENERGY,
    RUN_COST,
    SPLASH,
    STYLE_MAGE,
    TICKS_BETWEEN_FIGHTS,
    attack_roll,
    defence_roll,
    hit_probability,
    style_max_hit,
)
from cleanrl_games.envs.osrs.simulator import count_clocks, tick
from cleanrl_games.envs.osrs.vec_env import NHVecEnv

DATA = Path(__file__).parent / "data"
SUMMARY = json.loads((DATA / "osrs_traces_summary.json").read_text())
HP = 99
MOST_RESTED = 3  # points of run energy that the wall clock may give back in a fight; the recordings need three

# Columns that damage dice decide: compared after the server's damage has been written into the simulator's state.
DAMAGE_COLUMNS = [10, 11, 46, 51, 52, 53, 65, 168]
# Columns that tiles and freezes decide: some throw of the dice has to arrive at them.
THROWN_COLUMNS = [29, 30, 31, 32, 33, 55, 56, 60, 61, 62]
FIXED_COLUMNS = [i for i in range(NUM_OBS) if i not in DAMAGE_COLUMNS + THROWN_COLUMNS + [173, 174]]


def load_fights(name):
    """→ per pair of agents, its fights in order: [(obs, masks, actions), …]"""
    pairs = {}
    with np.load(DATA / name, allow_pickle=False) as arrays:
        for i in range(sum(key.startswith("obs_") for key in arrays.files)):
            rows = tuple(arrays[f"{field}_{i}"] for field in ("obs", "masks", "actions"))
            pairs.setdefault(int(arrays[f"pair_{i}"]), []).append(rows)
    return list(pairs.values())


@njit
def throw(fight, seeds, pids, tick_number, before, after, kit, params, actions, want, columns, obs, masks, matched):
    """Plays one tick of every hypothesis with dice of its own; `matched` says which arrive at what the server
    showed."""
    for h in range(len(before)):
        after[h, 0] = before[h, 0]
        after[h, 1] = before[h, 1]
        a, b = after[h, 0], after[h, 1]
        fight.rng, fight.tick, fight.pid = seeds[h], tick_number - 1, pids[0]
        tick(fight, a, b, kit, kit, actions[0], actions[1])
        fight.pid = pids[1]  # when it changes is dice as well
        write_constants(a, b, kit, params, obs[h, 0])
        write_constants(b, a, kit, params, obs[h, 1])
        observe(fight, 0, a, b, kit, kit, params, obs[h, 0], masks[h, 0])
        observe(fight, 1, b, a, kit, kit, params, obs[h, 1], masks[h, 1])
        matched[h] = True
        for i in range(2):
            # damage is written in afterwards, but who dies of it acts otherwise in the same tick
            if (after[h, i].hp <= 0) != (want[i, 10] <= 0):
                matched[h] = False
            for column in columns:
                if abs(obs[h, i, column] - want[i, column]) > 1e-4:
                    matched[h] = False


class Replay:
    """Plays one recorded fight with a set of hypotheses about what the observations hide (tiles, run energy).

    `previous` is the replay of the same agents' fight before: special energy keeps its phase and run energy its value.
    """

    def __init__(self, obs, masks, actions, previous=None):
        self.obs, self.masks, self.actions = obs, masks, actions
        self.env = NHVecEnv(1)
        self.kit, self.fight = self.env.loadouts[0], self.env.fights[0]
        self.dice = np.random.default_rng(1)
        self.unexplained, self.wrong, self.attacks = [], {}, []
        start = self.env.fighters[0].copy()
        self.fight.pid = 0 if obs[0, 0, OBS["player_has_pid"]] else 1
        for me in range(2):  # hits of the fight before may land on the first tick
            start[me].received_total = round(float(obs[0, 1 - me, 53]) * HP)
            start[me].splatted = obs[0, :, 53].any()
            start[me].shown_health = obs[0, 1 - me, 11]
            if previous:
                last = previous.hypotheses[0][me]
                for _ in range(TICKS_BETWEEN_FIGHTS):
                    count_clocks(self.fight, last)
                start[me].energy_timer = last.energy_timer
        self.hypotheses = []
        distance = int(obs[0, 0, OBS["player_to_target_distance"]])
        carried = previous.run_energies() if previous else {(FULL_RUN_ENERGY, FULL_RUN_ENERGY)}
        energies = [sorted({FULL_RUN_ENERGY if pair[me] else 0 for pair in carried}) for me in range(2)]
        for y, first, second in itertools.product(range(distance + 1), *energies):
            fighters = start.copy()
            fighters[1].x, fighters[1].y = distance, y
            fighters[0].run_energy, fighters[1].run_energy = first, second
            if not self.differences(OBSERVATION_NAMES, THROWN_COLUMNS, self.look(fighters)[0], obs[0]):
                self.hypotheses.append(fighters)

    def look(self, fighters):
        obs, masks = np.zeros((2, NUM_OBS), np.float32), np.zeros((2, NUM_LOGITS), np.bool_)
        for i in range(2):
            me, foe, params = fighters[i], fighters[1 - i], self.env.params[0]
            write_constants(me, foe, self.kit, params, obs[i])
            observe(self.fight, i, me, foe, self.kit, self.kit, params, obs[i], masks[i])
        return obs, masks

    def throw(self, t, first):
        """One throw of the dice for every hypothesis → [(fighters, obs, before)] of those that arrive, and at the first
        throw one of each run energy."""
        # np.stack compares 150 types field by field
        rows = b"".join(fighters.tobytes() for fighters in self.hypotheses)
        before = np.frombuffer(rows, self.env.fighters.dtype).reshape(-1, 2)
        after, count = before.copy(), len(before)
        obs, masks = np.zeros((count, 2, NUM_OBS), np.float32), np.zeros((count, 2, NUM_LOGITS), np.bool_)
        matched = np.zeros(count, np.bool_)
        pids = [0 if self.obs[moment, 0, OBS["player_has_pid"]] else 1 for moment in (t - 1, t)]
        throw(
            self.fight, self.dice.integers(1, 2**32, count), np.array(pids), t, before.view(np.recarray),
            after.view(np.recarray),
            self.kit, self.env.params[0], self.actions[t].astype(np.int64), self.obs[t], np.array(THROWN_COLUMNS), obs,
            masks, matched,
        )  # fmt: skip
        self.fight.pid = pids[1]

        def outcome(h):
            return after[h].view(np.recarray), obs[h], self.hypotheses[h]

        energies = [tuple(pair) for pair in after["run_energy"].tolist()] if first else []
        last = {pair: h for h, pair in enumerate(energies)}  # in the order in which each was first met
        return [outcome(h) for h in np.flatnonzero(matched)], {pair: outcome(h) for pair, h in last.items()}

    def write_damage(self, t, fighters, before):
        """The server's damage replaces the simulator's throws."""
        for i in range(2):
            me, foe, seen, foe_seen = fighters[i], fighters[1 - i], self.obs[t, i], self.obs[t, 1 - i]
            me.received = round(float(seen[52]) * HP)
            me.received_total, me.hp = before[i].received_total + me.received, round(float(seen[10]) * HP)
            last = me.hit_count - 1
            if foe.attacked:
                foe.last_roll = round(float(foe_seen[51]) * HP)
                if last >= 0:
                    me.hit_damage[last] = foe.last_roll
            rest = round(float(foe_seen[46]) * HP)
            rest -= int(me.hit_damage[: me.hit_count].sum() + me.splats[: me.splat_count].sum())
            if foe.attacked and last >= 1:  # of two dagger hits the server shows the second and the sum
                me.hit_damage[last - 1] += rest
            elif me.splat_count:
                me.splats[me.splat_count - 1] += rest
            elif last >= 0:
                me.hit_damage[last] += rest

    def settle_splashes(self, t, fighters):
        """A spell that did nothing has missed, or has hit for 0: the health bar tells, the tick after it lands."""
        for i in range(2):
            me, foe = fighters[i], fighters[1 - i]
            last = me.hit_count - 1
            if foe.attacked and last >= 0 and me.hit_style[last] in (STYLE_MAGE, SPLASH):
                lands = t + me.hit_delay[last] + 1
                seen = lands + 1 < len(self.obs) and self.obs[lands + 1, 1 - i, 11] == self.obs[lands, i, 10]
                me.hit_style[last] = STYLE_MAGE if me.hit_damage[last] > 0 or seen else SPLASH

    def advance(self, t):
        want, want_masks = self.obs[t], self.masks[t]
        thrown = self.actions[t][:, 9].any() or (self.obs[t - 1][:, 62] == 0).any() or want[:, 49].any()
        explained, attempt, nearest = {}, 0, None
        while attempt < 200 and not (explained and attempt >= (16 if thrown else 1)):
            attempt += 1
            arrived, by_energy = self.throw(t, first=nearest is None)
            nearest = nearest or by_energy
            for outcome in arrived:
                explained.setdefault(self.hidden(outcome[0]), outcome)
        if not explained:
            self.unexplained.append(t)
            for outcome in nearest.values():
                self.move_to_where_the_server_is(outcome[0], want)
            explained = nearest
        judged = []
        for fighters, obs, before in explained.values():
            wrong = self.differences(OBSERVATION_NAMES, FIXED_COLUMNS, obs, want)
            self.write_damage(t, fighters, before)
            self.settle_splashes(t, fighters)
            after, masks = self.look(fighters)
            wrong += self.differences(OBSERVATION_NAMES, [*DAMAGE_COLUMNS, 173, 174], after, want)
            wrong += self.differences(ACTION_NAMES, range(NUM_LOGITS), masks, want_masks)
            judged.append((wrong, fighters, before))
        fewest = min(len(wrong) for wrong, _, _ in judged)
        kept = [(fighters, before) for wrong, fighters, before in judged if len(wrong) == fewest]
        self.hypotheses = [fighters for fighters, _ in kept]
        self.hypotheses += [
            rested for pair in kept for me in range(2) if (rested := self.rested(*pair, me)) is not None
        ]
        self.dice.shuffle(self.hypotheses)
        del self.hypotheses[150:]
        for name in next(wrong for wrong, _, _ in judged if len(wrong) == fewest):
            self.wrong.setdefault(name, []).append(t)
        if not fewest:
            self.note_attacks(self.hypotheses[0], want)

    def rested(self, fighters, before, me):
        """The same, if a point of run energy had come back meanwhile: the server gives one for each 1.7 seconds of the
        wall clock to who stands. `logged_in`, which a tick does not read, counts them."""
        ran_out = before[me].run_energy > 0 and fighters[me].run_energy == 0
        if not ran_out or fighters[me].logged_in > MOST_RESTED:
            return None
        fighters = fighters.copy()
        fighters[me].run_energy = RUN_COST[1]
        fighters[me].logged_in += 1
        return fighters

    def note_attacks(self, fighters, want):
        """What each attack of this tick did, beside the simulator's chance that an attack like it does damage."""
        for i in range(2):
            me, foe = fighters[i], fighters[1 - i]
            if not want[i, OBS["player_just_attacked"]]:
                continue
            style = attack_style(me)
            special = me.worn == SPECIAL
            attack = attack_roll(me, self.kit, style, me.worn) * (120 if special else 100) // 100
            high = style_max_hit(me, self.kit, style, me.worn) * (115 if special else 100) // 100
            if style == STYLE_MAGE:
                high = (30 if me.spell == 1 else 29) * (100 + self.kit.strength[0]) // 100
            hit = hit_probability(attack, defence_roll(foe, self.kit, style))
            stopped = bool(want[i, OBS["target_prayer_correct"]])
            nothing = 2 if stopped else 1  # of high + 1 rolls: 0, and behind a prayer also 1
            above = sum(roll * 115 // 100 > high for roll in range(high + 1)) / (high + 1)
            self.attacks.append(
                {
                    "weapon": "special" if special else ("mage", "ranged", "melee")[style],
                    "damage": round(float(want[i, OBS["tick_new_attack_damage"]]) * HP),
                    "chance": hit * (1 - nothing / (high + 1)),
                    "max_hit": int(high),
                    "stopped": stopped,
                    "above": hit * DIAMOND_CHANCE[1] / 100 * above,
                }
            )

    def run_energies(self):
        return {tuple(int(fighter.run_energy) for fighter in fighters) for fighters in self.hypotheses}

    def hidden(self, fighters):
        """What tells hypotheses apart: tiles seen from fighter 0, destinations, run energy."""
        x, y, key = fighters[0].x, fighters[0].y, []
        for f in fighters:
            going = (f.destination_x - x, f.destination_y - y) if f.has_destination else None
            key += [f.x - x, f.y - y, going, int(f.run_energy), int(f.logged_in)]
        return tuple(key)

    def differences(self, names, columns, have, want):
        columns = list(columns)
        unequal = np.abs(have[:, columns].astype(np.float32) - want[:, columns].astype(np.float32)) > 1e-4
        return [names[columns[j]] for i in range(2) for j in np.nonzero(unequal[i])[0]]

    def move_to_where_the_server_is(self, fighters, want):
        gap, beside = int(want[0, 62]), bool(want[0, 33])
        fighters[1].x, fighters[1].y = fighters[0].x + gap, fighters[0].y + (gap if gap == 1 and not beside else 0)
        for i in range(2):
            fighters[i].has_destination = 0
            fighters[i].freeze_timer = want[i, 29] + 1 if want[i, 29] else 0
            fighters[i].immunity_timer = want[i, 31] + 1 if want[i, 31] else 0

    def run(self):
        for t in range(1, len(self.obs)):
            self.advance(t)
        return self


def replay_all(name):
    replays = []
    for fights in load_fights(name):
        previous = None
        for rows in fights:
            previous = Replay(*rows, previous=previous).run()
            replays.append(previous)
    return replays


LONG = pytest.param("osrs_traces_long_rows.npz", marks=pytest.mark.slow)  # 16 fights, minutes


@pytest.fixture(scope="module", params=["osrs_traces_rows.npz", LONG])
def replays(request):
    return replay_all(request.param)


def test_every_tick_of_the_recorded_fights_is_explained(replays):
    """All 176 observations and 45 mask bits of both fighters, at every tick, given the tick before and the actions."""
    ticks = sum(len(replay.obs) - 1 for replay in replays)
    wrong = [{name: found[:3] for name, found in replay.wrong.items()} for replay in replays if replay.wrong]
    unexplained = sum(
        len({*replay.unexplained, *(t for found in replay.wrong.values() for t in found)}) for replay in replays
    )
    print(f"{unexplained} of {ticks:,} ticks are unexplained")
    assert unexplained <= 0.01 * ticks, (unexplained, ticks, [replay.unexplained for replay in replays], wrong)
    energies = ("special_energy_percent", "target_special_percent")
    assert not any(name in replay.wrong for replay in replays for name in energies), wrong


def test_accuracy_over_all_recorded_attacks(replays):
    """How often attacks did damage, by weapon, beside the sum of the simulator's own chances; dice may not be thrown
    again here."""
    attacks = [attack for replay in replays for attack in replay.attacks]
    for weapon in ("mage", "ranged", "melee", "special"):
        chances = np.array([attack["chance"] for attack in attacks if attack["weapon"] == weapon])
        hits = sum(attack["damage"] > 0 for attack in attacks if attack["weapon"] == weapon)
        spread = np.sqrt((chances * (1 - chances)).sum())
        within = f"{chances.sum() - 3.3 * spread:.0f} to {chances.sum() + 3.3 * spread:.0f}"
        print(f"{weapon}: {hits} of {len(chances)} attacks did damage; the simulator's chances allow {within}")
        assert len(chances) >= 10 and abs(hits - chances.sum()) < 3.3 * spread, (
            weapon,
            len(chances),
            hits,
            chances.sum(),
            spread,
        )


def test_diamond_bolts_go_off_as_often_as_recorded(replays):
    shots = [
        attack
        for replay in replays
        for attack in replay.attacks
        if attack["weapon"] == "ranged" and not attack["stopped"]
    ]
    above = sum(shot["damage"] > shot["max_hit"] for shot in shots)
    expected = sum(shot["above"] for shot in shots)
    print(f"bolts: {above} of {len(shots)} shots above the maximum hit; the simulator expects {expected:.1f}")
    assert abs(above - expected) <= 3.3 * np.sqrt(max(expected, 1.0)), (above, expected, len(shots))
    assert all(shot["damage"] <= shot["max_hit"] * 115 // 100 for shot in shots)


@pytest.mark.parametrize("name", ["osrs_traces_rows.npz", "osrs_traces_long_rows.npz"])
def test_the_order_changes_as_often_as_recorded(name):
    """Each player draws anew every 40 to 60 ticks, and every third draw changes the order: 4/3 in 100 ticks."""
    changes = ticks = 0
    for fights in load_fights(name):
        for obs, _, _ in fights:
            pid = obs[:, 0, OBS["player_has_pid"]]
            changes += int((pid[1:] != pid[:-1]).sum())
            ticks += len(pid) - 1
    expected = ticks * 4 / 300
    allowed = [100 * (expected + sign * 3.3 * np.sqrt(expected)) / ticks for sign in (-1, 1)]
    print(f"order: {100 * changes / ticks:.2f} changes in 100 ticks; allowed are {allowed[0]:.2f} to {allowed[1]:.2f}")
    assert abs(changes - expected) < 3.3 * np.sqrt(expected), (changes, expected)


@pytest.fixture(scope="module")
def play():
    """2,048 masked-random fights as the recording has them: per fight the sums over its ticks, and some whole rows."""
    num_fights, ticks = 2048, 420
    env = NHVecEnv(num_fights, seed=5)
    policy, rows = Baseline("random", 2 * num_fights, seed=6), np.arange(2 * num_fights)
    actions = np.zeros((num_fights, 2, 12), np.int64)
    running = np.ones(num_fights, bool)
    sums, ready_sums = np.zeros((num_fights, NUM_OBS + NUM_LOGITS)), np.zeros((num_fights, NUM_LOGITS))
    counts, ready_counts = np.zeros(num_fights), np.zeros(num_fights)
    low, high = np.full(NUM_OBS, np.inf), np.full(NUM_OBS, -np.inf)
    kept = 250
    recorded = [np.zeros((ticks + 1, kept, 2, size)) for size in (NUM_OBS, 12)]
    recorded[0][0] = env.obs[:kept]
    lengths = np.full(num_fights, ticks)
    for t in range(ticks):
        both = np.concatenate([env.obs, env.masks], axis=2)[running]
        sums[running] += both.sum(axis=1)
        counts[running] += 2
        ready = env.obs[running][:, :, 39] == 0
        ready_sums[running] += (env.masks[running] * ready[:, :, None]).sum(axis=1)
        ready_counts[running] += ready.sum(axis=1)
        low, high = np.minimum(low, env.obs[running].min((0, 1))), np.maximum(high, env.obs[running].max((0, 1)))
        policy.act(env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS), rows, actions.reshape(-1, 12))
        _, _, _, terminated, truncated, info = env.step(actions)
        ended = terminated | truncated
        last = info["final_obs"][ended]
        low, high = (
            np.minimum(low, last.min((0, 1), initial=np.inf)),
            np.maximum(high, last.max((0, 1), initial=-np.inf)),
        )
        recorded[0][t + 1] = np.where(ended[:kept, None, None], info["final_obs"][:kept], env.obs[:kept])
        recorded[1][t + 1] = actions[:kept]
        lengths[running & ended] = t + 1
        running &= ~ended
        if not running.any():
            break
    fights = [(recorded[0][: n + 1, i], None, recorded[1][: n + 1, i], None) for i, n in enumerate(lengths[:kept])]
    return {
        "sums": sums, "counts": counts, "ready_sums": ready_sums, "ready_counts": ready_counts, "low": low,
        "high": high,
        "tables": transitions(fights), "lengths": lengths,
    }  # fmt: skip


def assert_plausible(names, seen, sums, counts, what):
    """A mean of the recording, two fights and a bit, must lie among the means of the simulator's own pairs of fights.

    Tolerance: the range of 1,024 pairs, so a column would fail by chance in about 1 of 500 cases, widened by 2 % of
    that range."""
    pairs = sums.reshape(-1, 2, sums.shape[1]).sum(axis=1) / counts.reshape(-1, 2).sum(axis=1)[:, None]
    low, high = pairs.min(axis=0), pairs.max(axis=0)
    slack = 0.02 * (high - low) + 1e-4
    wrong = {
        name: (seen[i], low[i], high[i])
        for i, name in enumerate(names)
        if not low[i] - slack[i] <= seen[i] <= high[i] + slack[i]
    }
    assert not wrong, f"{what} of the server outside of the simulator's range (server, low, high): {wrong}"


def test_means_and_mask_frequencies_look_like_a_sample_of_the_simulator(play):
    means = [SUMMARY["observations"][name][2] for name in OBSERVATION_NAMES]
    bits = [SUMMARY["masks"][name] for name in ACTION_NAMES]
    ready_bits = [SUMMARY["masks_when_ready_to_attack"][name] for name in ACTION_NAMES]
    sums, counts = play["sums"], play["counts"]
    assert_plausible(OBSERVATION_NAMES, means, sums[:, :NUM_OBS], counts, "means")
    assert_plausible(ACTION_NAMES, bits, sums[:, NUM_OBS:], counts, "mask frequencies")
    assert_plausible(
        ACTION_NAMES, ready_bits, play["ready_sums"], play["ready_counts"], "mask frequencies when ready to attack"
    )
    assert np.quantile(play["lengths"], 0.02) < 202 < np.quantile(play["lengths"], 0.98)


def test_ranges_cover_the_recording(play):
    """Many more fights than the recording has: its ranges lie within, and constants are equal."""
    for i, name in enumerate(OBSERVATION_NAMES):
        low, high, _ = SUMMARY["observations"][name]
        assert play["low"][i] <= low + 1e-4 and high - 1e-4 <= play["high"][i], (name, play["low"][i], play["high"][i])
        if 96 <= i <= 141 or i in (160, 161, 164, 175):
            assert play["low"][i] == play["high"][i] == low == high, name


def test_timers_and_the_attacking_flag_follow_the_recorded_transitions(play):
    """Where a situation has one outcome on the server and it was seen here too, it has that one outcome here."""
    known = 0
    for table in ("timers", "attacking"):
        for situation, outcomes in SUMMARY[table].items():
            mine = play["tables"][table].get(situation)
            if mine is not None:
                known += 1
                assert set(outcomes) <= mine, (table, situation, outcomes, mine)
                if len(outcomes) == 1 and situation.split()[0] not in ("29", "31"):
                    assert mine == set(outcomes), (table, situation, outcomes, mine)
    assert known >= 0.9 * (len(SUMMARY["timers"]) + len(SUMMARY["attacking"])), known


def test_hit_delays_and_damage_cover_the_recording(play):
    """By style, distance and PID; damage by style, protection prayer and special."""
    for situation, outcomes in SUMMARY["hit_delay"].items():
        assert set(outcomes) <= play["tables"]["hit_delay"][situation], situation
    for situation, outcomes in SUMMARY["damage"].items():
        mine = play["tables"]["damage"][situation]
        assert max(outcomes) <= max(mine), (situation, max(outcomes), max(mine))
    # By hand: ice barrage hits 30 · 1.07 = 32, and 19 through the right prayer.
    spells = play["tables"]["damage"]["0 0 0"]
    assert max(spells) == 30 * 107 // 100
    stopped = play["tables"]["damage"]["0 1 0"]
    assert max(stopped) == 32 * 6 // 10
