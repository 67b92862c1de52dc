"""What bounds a script on this machine, and which numbers of workers, players and decisions per rollout suit it.

    python cleanrl_games/tools/profile.py rnad_vgc_portfolio                 a spell with the script's own settings
    python cleanrl_games/tools/profile.py rnad_vgc_portfolio --sweep         and with others; keeps the fastest

Each spell starts the script as a user would, waits until it has learned for a while, reads what it logs (metrics.jsonl)
and what its processes use, and stops it with SIGTERM. A setting is recommended only if it beats the script's own in a
second duel. (profile.py is the door to this file: Python's standard library has a module of that name, too.)
"""

import dataclasses
import importlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import psutil
import tyro
import yaml

from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.runtime.files import write_atomically
from cleanrl_games.runtime.settings import Positive

# One idea, a name in each script: battles, fights, cars, emulators that one worker plays at a time; decisions of a
# rollout.
PLAYERS = ("num_battles", "num_envs", "num_agents", "num_emulators")
DECISIONS = ("buffer_size", "num_steps", "rollout_steps", "batch_size")
QUIET = {"eval_frequency": 0, "final_battles": 0, "snapshot_frequency": 0, "checkpoint_frequency": 10**9}


@dataclasses.dataclass
class Args:
    script: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SCRIPT")]
    """a script of cleanrl_games/, by name or path"""
    sweep: bool = False
    """also try other numbers of workers, players and decisions per rollout"""
    output: str = ""
    """results as JSON; config.yaml goes beside it. Empty = runs/profile__<script>__<time>/results.json"""
    seconds: Positive = 20.0
    """what is measured of each spell, after its first update"""
    start_seconds: Positive = 300.0
    """a script that has not finished its first update by then is given up"""
    flags: tuple[str, ...] = ()
    """further flags for every spell, as the script knows them but without dashes: bc_model=runs/CLONE width=32"""


def script_settings(name):
    """→ (path, default settings) of a script named by stem or path"""
    path = Path(name) if name.endswith(".py") else ROOT / "cleanrl_games" / f"{name}.py"
    known = sorted(file.stem for file in (ROOT / "cleanrl_games").glob("*_*.py") if file.stem != "__init__")
    if not path.exists():
        raise BadInput(f"There is no script {path}. Known: {', '.join(known)}.")
    spec = importlib.util.spec_from_file_location(f"profiled_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    defaults = dataclasses.asdict(module.Args())
    if "num_workers" not in defaults:
        raise BadInput(f"{path.name} has no --num-workers: there is nothing to sweep and nothing to measure it by.")
    return path, defaults


def candidates(defaults, cores):
    """Settings to try, each a change of one or two numbers; none is the defaults themselves."""
    players, decisions = (next((name for name in names if name in defaults), None) for names in (PLAYERS, DECISIONS))
    workers = sorted({1, max(cores - 1, 1), cores, 2 * cores} - {defaults["num_workers"]})
    found = [{"num_workers": count} for count in workers]
    for name in filter(None, (players, decisions)):
        found += [{name: defaults[name] // 2}, {name: defaults[name] * 2}]
    if players and decisions:
        found.append({"num_workers": cores, players: defaults[players] * 2, decisions: defaults[decisions] * 2})
    return [{name: value for name, value in setting.items() if value >= 1} for setting in found]


def usage_of(process):
    """CPU seconds and resident bytes of a process and all below it."""
    seconds, memory = 0.0, 0
    for member in [process, *process.children(recursive=True)]:
        try:
            times = member.cpu_times()
            seconds, memory = seconds + times.user + times.system, memory + member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return seconds, memory


def gpu_use():
    """Per cent, or None where there is no nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return None
    words = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True)
    return max((float(line) for line in done.stdout.split()), default=None) if done.returncode == 0 else None


def rows_of(folder):
    path = Path(folder) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def spell(path, defaults, setting, args):
    """Runs the script with a setting → its speed, its logged times and its use of the machine"""
    values = {name: value for name, value in QUIET.items() if name in defaults} | setting
    words = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += [
        word
        for flag in args.flags
        for word in (f"--{flag.split('=', 1)[0].replace('_', '-')}", *flag.split("=", 1)[1:])
    ]
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        target = Path(folder) / "run"
        with open(Path(folder) / "log.txt", "w+") as log:
            process = subprocess.Popen(
                [sys.executable, str(path), *words, "--run-dir", str(target)],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                wait(lambda: rows_of(target), process, args.start_seconds, log, "finished its first update")
                first, begin, gpus, peak = len(rows_of(target)), time.time(), [], 0
                member = psutil.Process(process.pid)
                cpu_before, _ = usage_of(member)
                while time.time() - begin < args.seconds or len(rows_of(target)) < first + 2:
                    wait(lambda: True, process, 1.0, log, "")
                    peak, gpu = max(peak, usage_of(member)[1]), gpu_use()
                    gpus += [] if gpu is None else [gpu]
                    if time.time() - begin > args.seconds + args.start_seconds:
                        raise RunFailed(
                            f"{path.name} did not finish two more updates in {args.start_seconds:.0f} seconds."
                        )
                    time.sleep(0.5)
                cpu, elapsed = usage_of(member)[0] - cpu_before, time.time() - begin
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        rows = rows_of(target)[first - 1 :]
    seconds = rows[-1]["time"] - rows[0]["time"]
    times = {
        name.removeprefix("stats/"): statistics.mean(row[name] for row in rows[1:] if name in row)
        for name in rows[-1]
        if name.startswith("stats/")
    }
    return {
        "setting": setting, "steps_per_second": (rows[-1]["global_step"] - rows[0]["global_step"]) / max(seconds, 1e-8),
        "bottleneck": bottleneck(times), "stats": times, "cores_used": cpu / elapsed, "memory_mb": peak / 2**20,
        "gpu_percent": statistics.mean(gpus) if gpus else None,
    }  # fmt: skip


def wait(condition, process, seconds, log, what):
    end = time.time() + seconds
    while True:
        if process.poll() is not None:
            log.seek(0)
            raise RunFailed(
                f"The script ended with exit code {process.returncode} while it was measured:\n{log.read()[-2000:]}"
            )
        if condition():
            return
        if time.time() > end:
            raise RunFailed(f"The script has not {what} within {seconds:.0f} seconds; give more with --start-seconds.")
        time.sleep(0.2)


def bottleneck(times):
    """Who keeps the others waiting: the learner when it hardly waits, else what its actors spend their time on."""
    learn, waited = times.get("learn_time", 0.0), times.get("wait_time", 0.0)
    if learn > 2 * waited:
        return "learner"
    rollout, inference, simulator = (times.get(f"{name}_time", 0.0) for name in ("rollout", "inference", "simulator"))
    parts = {"simulator": simulator, "inference": inference, "transport": max(rollout - simulator - inference, 0.0)}
    # What the learner waits for beyond the actors' own work is on the way between them.
    parts["transport"] += max(waited + learn - rollout, 0.0) if rollout else waited
    return max(parts, key=parts.get)


def describe(result):
    setting = (
        " ".join(f"--{name.replace('_', '-')} {value}" for name, value in result["setting"].items())
        or "the script's own settings"
    )
    gpu = "" if result["gpu_percent"] is None else f", GPU {result['gpu_percent']:.0f} %"
    use = f"{result['cores_used']:.2f} cores, {result['memory_mb']:.0f} MB{gpu}"
    return f"{result['steps_per_second']:>10,.0f} steps/s  bound by the {result['bottleneck']:<10} {use}  {setting}"


def choose(own, results, duel):
    """The fastest setting, if it also wins a duel (alternating spells) against the script's own; else {}"""
    best = max(results, key=lambda result: result["steps_per_second"], default=own)
    if best["steps_per_second"] <= own["steps_per_second"]:
        return {}
    ours, theirs = duel(best["setting"])
    return best["setting"] if ours > theirs else {}


def main(args):
    path, defaults = script_settings(args.script)
    output = Path(args.output or ROOT / "runs" / f"profile__{path.stem}__{int(time.time())}" / "results.json")
    output.parent.mkdir(parents=True, exist_ok=True)

    def measure(setting):
        result = spell(path, defaults, setting, args)
        print(describe(result), flush=True)
        return result

    def duel(setting):
        print("The fastest once more, in turns with the script's own settings:", flush=True)
        pairs = [(measure(setting)["steps_per_second"], measure({})["steps_per_second"]) for _ in range(2)]
        return tuple(statistics.mean(side) for side in zip(*pairs))

    own = measure({})
    results = [measure(setting) for setting in candidates(defaults, os.cpu_count() or 1)] if args.sweep else []
    recommended = choose(own, results, duel) if args.sweep else {}
    content = {"script": path.name, "cores": os.cpu_count(), "own": own, "sweep": results, "recommended": recommended}
    write_atomically(output, lambda file: file.write_text(json.dumps(content, indent=1) + "\n"))
    config = output.with_name("config.yaml")
    write_atomically(config, lambda file: file.write_text(yaml.safe_dump(recommended)))
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in recommended.items())
    print(f"Recommended: {flags or 'the script as it is'}\npython {path} --config {config}\nresults: {output}")
