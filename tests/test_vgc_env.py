"""VGCVecEnv: reproducible, zero-sum, complete: every seat's stream is a sequence of decisions that ends in a result."""

import hashlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cleanrl_games.envs.vgc import END, PREVIEW, TeamPool, VGCVecEnv
from cleanrl_games.envs.vgc.vec_env import NO_WINNER, OPPONENTS
from cleanrl_games.envs.vgc.views import Views
from cleanrl_games.tools.bench_vgc import adversarial_teams, random_actions

FORMAT = "gen9vgc2024regg"


@pytest.fixture(scope="module")
def teams():
    return TeamPool("shipped", FORMAT).packed


def policy(key: int, count: int, mask: np.ndarray) -> int:
    """A legal action that depends on the seat and its own history length only, never on the order of rows."""
    legal = np.flatnonzero(mask)
    return int(legal[int.from_bytes(hashlib.sha256(f"{key} {count}".encode()).digest()[:4], "little") % len(legal)])


def play(rounds: int, num_sims: int, subsets: bool = False, seed: int = 7, **options) -> dict[int, list[bytes]]:
    """Every frame of every seat, in order."""
    stream, held = {}, []
    with VGCVecEnv(6, num_sims, FORMAT, seed=seed, **options) as env:
        for _ in range(rounds):
            batch = env.recv()
            masks = batch.mask
            for row in range(len(batch)):
                seen = stream.setdefault(int(batch.key[row]), [])
                seen.append(batch.frames[row].tobytes())
                if batch.kind[row] != END:
                    held.append((int(batch.key[row]), policy(int(batch.key[row]), len(seen), masks[row])))
            # With subsets, side 1 and side 0 answer in different calls, and some answers wait for a round.
            parts = (
                [held]
                if not subsets
                else [[seat for seat in held if seat[0] % 2], [seat for seat in held if not seat[0] % 2]]
            )
            for part in parts:
                if part:
                    env.send([key for key, _ in part], [action for _, action in part])
            held = []
    return stream


def shared_prefix(a: dict, b: dict) -> int:
    """How many frames two runs have in common on every seat; all of the shorter run must be."""
    total = 0
    assert a.keys() == b.keys()
    for key in a:
        length = min(len(a[key]), len(b[key]))
        assert length > 10 and a[key][:length] == b[key][:length], f"seat {key} differs"
        total += length
    return total


def test_same_seed_and_actions_give_the_same_frames(teams):
    one = play(40, 1, teams=teams)
    assert shared_prefix(one, play(40, 1, teams=teams)) == sum(map(len, one.values()))
    assert shared_prefix(one, play(40, 2, teams=teams)) > 400, "num_sims must not matter"
    assert shared_prefix(one, play(60, 1, subsets=True, teams=teams)) > 400, "who answers first must not matter"
    assert play(3, 1, seed=8, teams=teams)[0][:2] != one[0][:2], "another seed, other battles"


def test_a_view_that_served_other_battles_gives_the_frames_of_a_new_one():
    """Views are used again for the next battle of a table: nothing may be left in them. The adversarial teams leave the
    most."""

    def streams(first: int, last: int) -> dict[tuple[int, int], list[bytes]]:
        seen, count = {}, {}
        with VGCVecEnv(3, 1, FORMAT, adversarial_teams(), seed=5, open_team_sheets=False, episodes=[first] * 3) as env:
            while len(count) < 3 or min(count.values()) <= last:
                batch = env.recv()
                masks = batch.mask
                for row in range(len(batch)):
                    seen.setdefault((int(batch.key[row]), int(batch.episode[row])), []).append(
                        batch.frames[row].tobytes()
                    )
                    count[int(batch.battle[row])] = int(batch.episode[row])
                rows = batch.decisions
                steps = [len(seen[int(batch.key[row]), int(batch.episode[row])]) for row in rows]
                env.send(
                    batch.key[rows], [policy(int(batch.key[row]), step, masks[row]) for row, step in zip(rows, steps)]
                )
        return seen

    used, new = streams(0, 4), streams(4, 4)
    for key in range(6):
        assert used[key, 4] == new[key, 4]


def test_stock_dispatch_gives_the_same_frames(teams):
    assert shared_prefix(play(15, 1, teams=teams), play(15, 1, teams=teams, fast_dispatch=False)) > 100


@pytest.mark.parametrize("sheets", [True, False])
def test_lines_that_nobody_reads_as_text_tell_a_view_the_same(sheets):
    """With logs=True the simulator writes text and views cut it up; without, it hands over the parts."""
    options = {"teams": adversarial_teams(), "open_team_sheets": sheets}
    assert play(60, 1, **options) == play(60, 1, logs=True, **options)


def test_rewards_ends_and_shaping(teams):
    rng, shaped, results = np.random.default_rng(0), {}, 0
    with VGCVecEnv(8, 1, FORMAT, teams=teams, seed=3, reward_faint=0.1, reward_hp=0.05) as env:
        batch = env.recv()
        while results < 24:
            for row in range(len(batch)):
                seat = (int(batch.battle[row]), int(batch.episode[row]), int(batch.side[row]))
                reward = float(batch.reward[row])
                if batch.kind[row] == PREVIEW:
                    assert reward == 0 and batch.turn[row] == 0
                if batch.kind[row] == END:
                    assert batch.terminated[row] and not batch.truncated[row] and not batch.slots[row].any()
                    assert np.abs(batch.floats[row]).sum() > 0, "the last observation is part of the end"
                    won = {0: 1 - 2 * seat[2], 1: 2 * seat[2] - 1}.get(int(batch.winner[row]), 0)
                    reward -= won
                shaped[seat] = shaped.get(seat, 0.0) + reward
            for done in batch.finished:
                mine, other = (shaped[int(done["battle"]), int(done["episode"]), side] for side in (0, 1))
                assert mine == pytest.approx(-other, abs=1e-5), "zero-sum"
                if done["winner"] < 2:
                    # The winner's foe lost all four: at least 4·0.1 + 4·0.05, less what the winner lost itself.
                    better = (mine, other)[done["winner"]]
                    assert 0 < better <= 0.6 + 1e-6
                results += 1
            rows = batch.decisions
            env.send(batch.key[rows], random_actions(batch.mask[rows], rng))
            batch = env.recv()


def test_terminal_reward_only_by_default_and_turn_cap(teams):
    rng, ends = np.random.default_rng(0), 0
    with VGCVecEnv(8, 1, FORMAT, teams=teams, seed=3, turn_cap=3) as env:
        batch = env.recv()
        for _ in range(12):
            inside = batch.kind != END
            assert (batch.reward[inside] == 0).all()
            for row in batch.ends:
                ends += bool(batch.truncated[row])
                assert batch.truncated[row] != batch.terminated[row]
                assert (batch.winner[row] == NO_WINNER) == batch.truncated[row]
                if batch.truncated[row]:
                    assert batch.reward[row] == 0 and batch.turn[row] == 4 and np.abs(batch.floats[row]).sum() > 0
            rows = batch.decisions
            env.send(batch.key[rows], random_actions(batch.mask[rows], rng))
            batch = env.recv()
    assert ends >= 8


def test_scripted_seats_play_and_only_theirs_are_closed(teams):
    rng, wins, seats = np.random.default_rng(0), {}, set()
    pairs = [("heuristics", "random")] * 6 + [("open", "max_power")] * 2
    with VGCVecEnv(8, 2, FORMAT, teams=teams, seed=5, opponents=pairs) as env:
        while sum(wins.values()) < 24 or len(seats) < 2:
            batch = env.recv()
            seats |= {int(key) for key in batch.key}
            assert all(OPPONENTS[code] == "max_power" for code in batch.opponent)
            for done in batch.finished:
                if done["battle"] < 6:
                    wins[int(done["winner"])] = wins.get(int(done["winner"]), 0) + 1
            rows = batch.decisions
            env.send(batch.key[rows], random_actions(batch.mask[rows], rng))
        assert env.stats()["invalid"] == 0
    assert seats == {12, 14}, "only p1 of the last two battles is the caller's"
    # 56–4 over 60 games elsewhere: 16 of 24 would be a 1 in 10,000 accident.
    assert wins.get(0, 0) > 16


def test_a_share_of_battles_is_drawn_anew(teams):
    rng, drawn = np.random.default_rng(0), []
    with VGCVecEnv(8, 1, FORMAT, teams=teams, seed=5, turn_cap=2, opponents={"random": 0.5}) as env:
        while len(drawn) < 60:
            batch = env.recv()
            drawn += [(int(done["p1"]), int(done["p2"])) for done in batch.finished]
            rows = batch.decisions
            env.send(batch.key[rows], random_actions(batch.mask[rows], rng))
    assert set(drawn) == {(0, 0), (0, 1), (1, 0)}
    assert 15 < sum(pair == (0, 0) for pair in drawn) < 45


def test_shares_change_for_battles_that_begin_and_players_bring_a_battle_back(teams):
    rng, drawn = np.random.default_rng(0), []
    with VGCVecEnv(8, 1, FORMAT, teams=teams, seed=5, turn_cap=2, opponents={"random": 1.0}) as env:
        while len(drawn) < 40:
            batch = env.recv()
            rows = batch.decisions
            assert (env.players[batch.battle[rows], batch.side[rows]] == 0).all()
            assert (env.players[batch.battle[rows], 1 - batch.side[rows]] == batch.opponent[rows]).all()
            drawn += [(int(done["p1"]), int(done["p2"])) for done in batch.finished]
            env.set_shares({})
            env.send(batch.key[rows], random_actions(batch.mask[rows], rng))
        episodes = env.episodes.copy()
    assert all(1 in pair for pair in drawn[:8]) and all(pair == (0, 0) for pair in drawn[8:]), (
        "those under way are played to their end"
    )
    players = [(2, 0), (0, 0)] * 4
    with VGCVecEnv(
        8, 1, FORMAT, teams=teams, seed=5, opponents={"random": 0.5}, episodes=episodes, players=players
    ) as env:
        batch = env.recv()
        assert (batch.opponent[batch.side == 1] == np.tile([2, 0], 4)).all() and set(batch.battle[batch.side == 0]) == {
            1,
            3,
            5,
            7,
        }
        assert env.players.tolist() == [list(pair) for pair in players]
    with (
        VGCVecEnv(2, 1, FORMAT, teams=teams, opponents=[("open", "random")] * 2) as env,
        pytest.raises(ValueError, match="set_shares"),
    ):
        env.set_shares({"random": 0.1})


def test_logs_and_protocol_lines(teams):
    rng, logs = np.random.default_rng(0), {}
    with VGCVecEnv(2, 1, FORMAT, teams=teams, seed=5, logs=True, protocol=True) as env:
        while not logs:
            batch = env.recv()
            assert set(batch.protocol) == set(range(len(batch)))
            for row in batch.decisions:
                assert batch.protocol[row][-1].startswith("|request|{")
            logs |= batch.logs
            rows = batch.decisions
            env.send(batch.key[rows], random_actions(batch.mask[rows], rng))
    log = next(iter(logs.values())).split("\n")
    assert any(line.startswith("|win|") or line == "|tie" for line in log) and "|turn|1" in log
    assert not any(line.startswith("|split|") for line in log)
    # A spectator sees percentages of the opponent's HP, never its exact points.
    assert all(re.fullmatch(r"\d+/100( \w+)?", line.split("|")[4]) for line in log if line.startswith("|switch|"))


def test_waiting_for_nothing_is_an_error_and_any_returns_early(teams):
    with VGCVecEnv(4, 2, FORMAT, teams=teams, seed=5) as env:
        seen = set()
        while len(seen) < 8:
            seen |= {int(key) for key in env.recv(wait="any").key}
        with pytest.raises(RuntimeError, match="8 decisions are pending and none was answered"):
            env.recv()
        with pytest.raises(ValueError, match="2 keys and 1 actions"):
            env.send([0, 1], [0])


def test_open_and_closed_sheets_differ_at_preview(teams):
    frames = {}
    for sheets in (True, False):
        with VGCVecEnv(1, 1, FORMAT, teams=teams, seed=5, open_team_sheets=sheets, protocol=True) as env:
            batch = env.recv()
            frames[sheets] = batch.frames[0]
            assert any(line.startswith("|showteam|p2|") for line in batch.protocol[0]) == sheets
    assert (frames[True]["ints"] != frames[False]["ints"]).any()
    assert (frames[True]["team"], frames[True]["opponent_team"]) == (
        frames[False]["team"],
        frames[False]["opponent_team"],
    )


def test_no_process_outlives_a_script_that_forgets_to_close():
    code = (
        "from cleanrl_games.envs.vgc import VGCVecEnv\n"
        "env = VGCVecEnv(2)\nenv.recv()\nprint(env.pids()[0], flush=True)\n"
        "import os; os._exit(1)"  # no destructor runs
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    pid = int(done.stdout)
    status = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 30
    while status.exists() and " Z " not in status.read_text():
        assert time.monotonic() < deadline, "the Node process lives on without its parent"
        time.sleep(0.05)


def test_frames_hold_what_the_seat_was_sent_and_nothing_else(teams):
    """The environment's own frames, computed a second time, in a process that knows nothing but the protocol lines of
    the seat."""
    rng, compared = np.random.default_rng(0), 0
    with VGCVecEnv(4, 1, FORMAT, teams=teams, seed=9, protocol=True, open_team_sheets=False) as env, Views() as views:
        batch = env.recv()
        while compared < 120:
            for row in range(len(batch)):
                key = f"{batch.key[row]} {batch.episode[row]}"
                entries = [as_entry(line) for line in batch.protocol[row]]
                asked = [] if batch.kind[row] == END else [{"observe": True}]
                frames = views.follow(key, f"p{batch.side[row] + 1}", entries + asked, close=not asked)
                for name in ("ints", "floats", "slots", "pass_rule") if asked else ():
                    assert frames[0][name].tobytes() == batch.frames[row][name].tobytes(), name
                compared += len(asked)
            rows = batch.decisions
            env.send(batch.key[rows], random_actions(batch.mask[rows], rng))
            batch = env.recv()


def as_entry(line: str) -> dict:
    return {"request": json.loads(line.removeprefix("|request|"))} if line.startswith("|request|") else {"line": line}


def test_each_seat_hears_its_own_half_of_a_split_line(teams):
    """Exact HP is for the owner; the other side, and a spectator, get percent."""
    rng, exact, percent = np.random.default_rng(0), 0, 0
    with VGCVecEnv(4, 1, FORMAT, teams=teams, seed=9, protocol=True) as env:
        batch = env.recv()
        for _ in range(25):
            for row, lines in batch.protocol.items():
                me = f"p{batch.side[row] + 1}"
                for line in lines:
                    split = line.split("|")
                    if split[1] == "request":
                        assert json.loads("|".join(split[2:]))["side"]["id"] == me
                    if split[1] not in ("switch", "drag", "-damage", "-heal"):
                        continue
                    hp = re.match(r"(\d+)/(\d+)", split[4 if split[1] in ("switch", "drag") else 3])
                    if hp and split[2].startswith(me):
                        exact += hp[2] != "100"
                    elif hp:
                        assert hp[2] == "100" and int(hp[1]) <= 100, line
                        percent += 1
            rows = batch.decisions
            env.send(batch.key[rows], random_actions(batch.mask[rows], rng))
            batch = env.recv()
    assert exact > 100 and percent > 100
