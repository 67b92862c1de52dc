"""How fast, and how true, the VGC environment is. The last line of every mode is one JSON object.

    python cleanrl_games/tools/bench_vgc.py               speed: ours, the bare simulator, poke-env on a websocket
    python cleanrl_games/tools/bench_vgc.py --ratios      of that, only ours against the bare simulator
    python cleanrl_games/tools/bench_vgc.py --against DIR ours in this checkout against ours in another, side by side
    python cleanrl_games/tools/bench_vgc.py --masks       20,000 masked-random decisions, adversarial teams; the reverse
    python cleanrl_games/tools/bench_vgc.py --identity    200 seeded battles per format, faster dispatch against stock
    python cleanrl_games/tools/bench_vgc.py --endurance   5,000 battles: memory and speed, first tenth against last

Speed is CPU time per decision (a player's answer to a request, preview included), summed over all processes involved:
on a busy machine it is the only figure that two runs can share. All three parts play the same teams with random legal
choices."""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from cleanrl_games.envs.vgc import TeamPool, VGCVecEnv, install
from cleanrl_games.envs.vgc.vec_env import NODE_FLAGS
from cleanrl_games.runtime.errors import BadInput, RunFailed, end_in_sentences
from cleanrl_games.runtime.settings import Size, flag_type
from cleanrl_games.tools import bench_vgc_train

FORMATS = ("gen9vgc2023regc", "gen9vgc2024regg", "gen9vgc2025regi")
ADVERSARIAL = Path(__file__).resolve().parent / "vgc_adversarial_teams.txt"
CONCURRENT = 16
IN_FLIGHT = 32  # battles of one simulator process
# battles before a measurement: Node goes on compiling, and the simulator alone is done with it sooner than we are
WARM = 600
PAIRS = 5  # Node compiles each process in its own way, which moves a ratio by some hundredths: so several are started


def adversarial_teams() -> list[str]:
    """Packed teams of vgc_adversarial_teams.txt; its head says how it is written."""
    teams = []
    for block in re.split(r"\n\s*\n", ADVERSARIAL.read_text()):
        sets = []
        for row in block.splitlines():
            if not row or row.startswith("#"):
                continue
            who, item, ability, moves, tera = (part.strip() for part in row.split("|"))
            nickname, species = re.fullmatch(r"(.+?)(?: \((.+)\))?", who).groups()
            sets.append(
                f"{nickname}|{species or ''}|{item}|{ability}|{moves.replace(' ', '')}|Serious|||||50|,,,,,{tera}"
            )
        if sets:
            teams.append("]".join(sets))
    return teams


class Bare:
    """showdown/selfdrive.js: the simulator alone, playing itself with random legal choices. One process, as many jobs
    as wanted."""

    def __init__(self):
        command = install.node_command(install.SHOWDOWN_SOURCES / "selfdrive.js", flags=NODE_FLAGS)
        environment = install.node_env(install.ensure_showdown())
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def play(self, **job) -> dict:
        job = {"format": "gen9vgc2024regg", "openTeamSheets": True, "seed": 1, "dispatch": True, "turnCap": 100, **job}
        self.process.stdin.write(json.dumps(job) + "\n")  # ASCII: selfdrive.js counts on one byte a character
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"selfdrive.js failed in {job['format']} with code {self.process.wait()}; its stack is above."
            )
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def selfdrive(**job) -> dict:
    """One job in a process of its own: the dispatch, once changed, stays so for the life of a process."""
    bare = Bare()
    try:
        return bare.play(**job)
    finally:
        bare.close()


def random_actions(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A uniformly random legal action for each row of a (n, 2025) mask."""
    rows, actions = np.nonzero(mask)
    counts = np.bincount(rows, minlength=len(mask))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return actions[starts + (rng.random(len(mask)) * counts).astype(np.int64)]


def random_answers(batch, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each decision of a batch the first legal action of one random order of all: uniform, and what a bench's
    policy costs should not count."""
    order = rng.permutation(mask.shape[1])
    return order[mask.take(order, 1).argmax(1)[batch.decisions]]


def cpu_seconds(pids: list[int]) -> float:
    """Time of all threads by the scheduler's count in nanoseconds: ticks of 10 ms are too coarse for short turns."""
    threads = [thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def rss_mb(pids: list[int]) -> float:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20


# ---------------------------------------------------------------------------------------------------------------- speed


class Ours:
    """VGCVecEnv played by random legal choices; `play` measures a window of it."""

    def __init__(
        self, teams: list[str], battle_format: str, num_battles: int = IN_FLIGHT, num_sims: int = 1, **options
    ):
        self.env = VGCVecEnv(num_battles, num_sims, battle_format, teams=teams, **options)
        self.rng = np.random.default_rng(1)
        self.batch = self.env.recv()

    def play(self, battles: int) -> dict:
        env, pids, stop = self.env, self.env.pids(), self.env.stats()["battles"] + battles
        before, node, python, wall = env.stats(), cpu_seconds(pids), time.process_time(), time.perf_counter()
        while env.stats()["battles"] < stop:
            mask = self.batch.mask  # a learner needs it, so it is part of the price
            env.send(self.batch.key[self.batch.decisions], random_answers(self.batch, mask, self.rng))
            self.batch = env.recv()
        wall, python, node = time.perf_counter() - wall, time.process_time() - python, cpu_seconds(pids) - node
        done = {name: count - before[name] for name, count in env.stats().items()}
        return {**done, "node_s": node, "python_s": python, "wall_s": wall, "rss_mb": rss_mb([*pids, os.getpid()])}


def per_decision(node: float, python: float, decisions: int) -> str:
    return f"{1000 * node / decisions:.3f} ms Node + {1000 * python / decisions:.3f} ms Python a decision"


def damage_ms(battle_format: str, teams: list[str]) -> float:
    """What the columns of damage and order cost a decision, in milliseconds: showdown/bench_features.js writes the
    observations of traced battles in turns with and without them."""
    job = {"format": battle_format, "openTeamSheets": True, "teams": teams, "seed": 1, "battles": 60, "turnCap": 60}
    environment = install.node_env(install.ensure_showdown())
    trace = subprocess.run(
        install.node_command(install.SHOWDOWN_SOURCES / "trace.js"),
        input=json.dumps(job).encode(),
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
    )
    bench = subprocess.run(
        install.node_command(install.SHOWDOWN_SOURCES / "bench_features.js", flags=NODE_FLAGS),
        input=trace.stdout,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(bench.stdout)["ms_of_damage"]


# The simulator alone in three ways: one battle at a time, as many in flight as ours, one at a time with stock dispatch.
JOBS = {"single": {}, "limit": {"concurrent": IN_FLIGHT}, "stock": {"dispatch": False}}
RATIO_JOBS = {name: JOBS[name] for name in ("single", "limit")}


def measure_in_turns(battle_format: str, rounds: int, battles: int, jobs: dict) -> tuple[dict, dict, list[dict]]:
    """Ours and the bare simulator in short turns → totals of ours, totals of the bare ones, seconds a decision by turn

    A neighbour's load falls on all of a turn's parts alike, so each turn has its own ratio, and their median counts."""
    teams = TeamPool("shipped", battle_format, split="all").packed
    ours, bare = Ours(teams, battle_format, IN_FLIGHT), {name: Bare() for name in jobs}
    ours.play(WARM)
    for name, job in jobs.items():
        bare[name].play(format=battle_format, teams=teams, battles=WARM, first=10_000, **job)
    total = dict.fromkeys(("decisions", "battles", "node_s", "python_s", "wall_s", "rss_mb"), 0.0)
    alone = {name: {"decisions": 0, "cpu_s": 0.0} for name in jobs}
    turns = []
    for index in range(rounds):
        part = ours.play(battles)
        highest = max(total["rss_mb"], part["rss_mb"])
        total = {name: total[name] + part[name] for name in total} | {"rss_mb": highest}
        turn = {"ours": (part["node_s"] + part["python_s"]) / part["decisions"]}
        for name, job in jobs.items():
            part = bare[name].play(format=battle_format, teams=teams, battles=battles, first=index * battles, **job)
            alone[name] = {key: alone[name][key] + part[key] for key in alone[name]}
            turn[name] = part["cpu_s"] / part["decisions"]
        turns.append(turn)
    ours.env.close()
    for process in bare.values():
        process.close()
    return total, alone, turns


def ratios(pairs: list[list[dict]]) -> dict:
    """The turns of several pairs of processes → each pair's median turn, then the median pair"""
    figures = {}
    # The strict one: no policy to wait for, one battle in the caches. The steady one: as many battles as ours.
    for name, key in (("single", "fraction_of_sim_limit"), ("limit", "fraction_of_in_flight_limit")):
        found = sorted(float(np.median([turn[name] / turn["ours"] for turn in turns])) for turns in pairs)
        print(f"{key}, by pair of processes: " + " ".join(f"{ratio:.3f}" for ratio in found))
        figures |= {key: round(found[len(found) // 2], 3), f"{key}_range": [round(found[0], 3), round(found[-1], 3)]}
    return figures


# One process of `against`: a checkout's own environment, warm, then measured.
PLAY_OURS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from cleanrl_games.envs.vgc import TeamPool
from cleanrl_games.tools.bench_vgc import Ours
ours = Ours(TeamPool("shipped", sys.argv[2], split="all").packed, sys.argv[2])
ours.play(800)
print(json.dumps(ours.play(1500)))
ours.env.close()
"""


def against(other: Path, battle_format: str, turns: int) -> dict:
    """CPU time a decision here over that in `other`, a checkout of another commit. Both play at the same time, each on
    a core, and exchange cores at every turn: a machine's speed drifts by more than what is looked for."""
    folders = [Path(__file__).resolve().parents[2], other.resolve()]
    if not (folders[1] / "cleanrl_games/tools/bench_vgc.py").is_file():
        raise BadInput(
            f"--against {other}: this is no checkout of cleanrl_games; `git worktree add DIR COMMIT` makes one."
        )
    cores, found = sorted(os.sched_getaffinity(0))[:2], []
    if len(cores) < 2:
        raise BadInput("--against needs two cores, one for each checkout.")
    for turn in range(turns):
        running = [
            subprocess.Popen(
                ["taskset", "-c", str(core), sys.executable, "-c", PLAY_OURS, str(folder), battle_format],
                stdout=subprocess.PIPE,
                text=True,
                cwd=folder,
            )
            for folder, core in zip(folders, cores if turn % 2 else cores[::-1], strict=True)
        ]
        said = [process.communicate()[0] for process in running]
        for folder, process in zip(folders, running, strict=True):
            if process.returncode:
                raise RunFailed(f"The environment of {folder} failed; its error is above.")
        parts = [json.loads(text.splitlines()[-1]) for text in said]
        here, there = (1000 * (part["node_s"] + part["python_s"]) / part["decisions"] for part in parts)
        found.append(here / there)
        print(f"turn {turn + 1}: {here:.3f} ms a decision here, {there:.3f} there", flush=True)
    low, middle, high = np.percentile(found, (25, 50, 75))
    return {"cost_over_other": round(float(middle), 3), "quartiles": [round(float(low), 3), round(float(high), 3)]}


def speed(battle_format: str, rounds: int, battles: int, websocket_battles: int) -> dict:
    from cleanrl_games.tools.bench_vgc_websocket import measure_websocket

    total, alone, turns = measure_in_turns(battle_format, rounds, battles, JOBS)
    more = [measure_in_turns(battle_format, rounds, battles, RATIO_JOBS)[2] for _ in range(PAIRS - 1)]
    limit, single, stock = (alone[name]["cpu_s"] / alone[name]["decisions"] for name in ("limit", "single", "stock"))
    print(
        f"ours: {per_decision(total['node_s'], total['python_s'], total['decisions'])}, one process, features and "
        f"masks included"
    )
    print(f"bare simulator, same dispatch, {IN_FLIGHT} battles in flight as ours: {1000 * limit:.3f} ms a decision")
    print(f"bare simulator, same dispatch, one battle at a time: {1000 * single:.3f} ms a decision")
    print(f"bare simulator, stock dispatch, one battle at a time: {1000 * stock:.3f} ms a decision")
    teams = TeamPool("shipped", battle_format, split="all").packed
    websocket = measure_websocket(battle_format, teams, websocket_battles, CONCURRENT)
    print(
        f"poke-env over a websocket: {per_decision(websocket['node_s'], websocket['python_s'], websocket['decisions'])}"
    )
    fractions = ratios([turns, *more])
    mine = (total["node_s"] + total["python_s"]) / total["decisions"]
    damage = damage_ms(battle_format, teams)
    print(f"damage and order of moves: {damage:.4f} ms a decision, {damage / 1000 / mine:.1%} of ours")
    theirs = (websocket["node_s"] + websocket["python_s"]) / websocket["decisions"]
    return {
        "ratio_vs_websocket": round(theirs / mine, 2),
        **fractions,
        "damage_columns_share": round(damage / 1000 / mine, 3),
        "decisions_per_s": round(total["decisions"] / total["wall_s"]),
        "battles_per_s": round(total["battles"] / total["wall_s"], 1),
        "rss_mb": round(total["rss_mb"]),
        "ms_per_decision": round(1000 * mine, 3),
        "websocket_ms_per_decision": round(1000 * theirs, 3),
        "dispatch_speedup": round(stock / single, 2),
        "format": battle_format,
    }


# ---------------------------------------------------------------------------------------------------------------- truth


def masks(decisions: int) -> dict:
    """Adversarial teams, and shipped ones of every format, until there are enough decisions."""
    total = dict.fromkeys(("decisions", "invalid", "unavailable", "refused", "accepted"), 0)
    seen: dict[str, int] = {}
    pools = {
        "adversarial": adversarial_teams(),
        **{name: TeamPool("shipped", name, split="all").packed for name in FORMATS},
    }
    for number, (name, teams) in enumerate(pools.items()):
        share = decisions if number == 0 else decisions // 4
        first, before = 0, total["decisions"]
        while total["decisions"] - before < share:
            battle_format = FORMATS[first // 100 % 3] if number == 0 else name
            done = selfdrive(format=battle_format, teams=teams, battles=100, first=first, reverse=True)
            total = {key: total[key] + done[key] for key in total}
            for what, count in done["seen"].items():
                seen[what] = seen.get(what, 0) + count
            for failure in done["failures"]:
                print(failure)
            first += 100
        print(f"{name}: {total['decisions'] - before} decisions, {total['invalid']} invalid so far")
    print("traps met: " + ", ".join(f"{what} {count}" for what, count in sorted(seen.items())))
    return total


def identity(battles: int) -> dict:
    """The same seeded battles with the stock and with the faster dispatch: logs, inputs and dice must agree."""
    different = {}
    for name in FORMATS:
        job = {
            "format": name,
            "teams": TeamPool("shipped", name, split="all").packed,
            "battles": battles,
            "hashes": True,
        }
        fast, stock = selfdrive(**job), selfdrive(**job, dispatch=False)
        different[name] = sum(a != b for a, b in zip(fast["hashes"], stock["hashes"], strict=True))
        print(f"{name}: {battles} battles, {fast['decisions']} decisions, {different[name]} logs differ")
    job = {"teams": adversarial_teams(), "battles": battles, "hashes": True}
    fast, stock = selfdrive(**job), selfdrive(**job, dispatch=False)
    different["adversarial"] = sum(a != b for a, b in zip(fast["hashes"], stock["hashes"], strict=True))
    return {"battles": battles, "different": different, "identical": not any(different.values())}


def endurance(battles: int, battle_format: str) -> dict:
    """Speed in CPU time, which a busy machine does not bend, and memory after the first tenth (caches filled) and at
    the end."""
    ours = Ours(TeamPool("shipped", battle_format, split="all").packed, battle_format)
    ours.play(WARM)  # compiled code, filled caches, a first full collection
    tenths = []
    for index in range(10):
        part = ours.play(battles // 10)
        tenths.append({"ms": 1000 * (part["node_s"] + part["python_s"]) / part["decisions"], "rss_mb": part["rss_mb"]})
        print(f"tenth {index + 1}: {tenths[-1]['ms']:.3f} ms a decision, {part['rss_mb']:.0f} MB", flush=True)
    ours.env.close()
    return {
        "battles": battles,
        "speed_last_over_first": round(tenths[0]["ms"] / tenths[-1]["ms"], 3),
        "rss_first_mb": round(tenths[0]["rss_mb"]),
        "rss_last_mb": round(tenths[-1]["rss_mb"]),
        "rss_growth_mb": round(tenths[-1]["rss_mb"] - tenths[0]["rss_mb"]),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratios", action="store_true")
    parser.add_argument("--against", type=Path, metavar="DIR", help="a checkout of another commit; --rounds turns (20)")
    parser.add_argument("--masks", action="store_true")
    parser.add_argument("--identity", action="store_true")
    parser.add_argument("--endurance", action="store_true")
    parser.add_argument("--battle-format", default="gen9vgc2024regg")
    parser.add_argument(
        "--rounds",
        type=flag_type(Size),
        default=20,
        help="speed: turns that ours and the bare simulator take, in each pair of processes",
    )
    parser.add_argument(
        "--battles",
        type=flag_type(Size),
        help="speed: per turn (16); identity: per format (200); endurance: in all (5000)",
    )
    parser.add_argument(
        "--websocket-battles",
        type=flag_type(Size),
        default=96,
        help="speed: measured ones, after as many to warm the server",
    )
    parser.add_argument(
        "--decisions", type=flag_type(Size), default=20_000, help="masks: decisions with adversarial teams"
    )
    args = parser.parse_args()
    end_in_sentences()
    battle_format = install.require_format(args.battle_format)
    if args.ratios:
        battles = args.battles or 16
        result = ratios([measure_in_turns(battle_format, args.rounds, battles, RATIO_JOBS)[2] for _ in range(PAIRS)])
    elif args.against:
        result = against(args.against, battle_format, args.rounds)
    elif args.masks:
        result = masks(args.decisions)
    elif args.identity:
        result = identity(args.battles or 200)
    elif args.endurance:
        result = endurance(args.battles or 5000, battle_format)
    else:
        result = speed(battle_format, args.rounds, args.battles or 16, args.websocket_battles) | bench_vgc_train.bench()
    print(json.dumps(result))
