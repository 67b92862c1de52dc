"""What benchmark.sh found, as files: results.json, and one self-contained page made of it."""

import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path

from cleanrl_games.envs import run

MODES = ("smoke", "speed", "learn", "proof")


def describe_machine(root):
    """What a figure depends on besides the code. The load says whether the cores were idle."""
    import psutil
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True)
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "graphics": torch.cuda.get_device_name() if torch.cuda.is_available() else "none that torch can use",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("torch", "numpy", "numba", "rocketsim", "ray")},
        "commit": commit.stdout.strip() or "not a git repository",
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }


def judgement(judged):
    """One measure against its range, as a sentence."""
    low, high, value = judged["low"], judged["high"], judged["value"]
    limits = f"at least {low:g}" if high is None else f"at most {high:g}" if low is None else f"{low:g} – {high:g}"
    return f"{judged['measure']} is {value:.3g}, expected {limits}" if value is not None else f"there is no {judged['measure']}"


def problems_of(results):
    problems = [problem for mode in MODES for row in results.get(mode, []) for problem in row["problems"]]
    return problems if results["complete"] else [*problems, "the benchmark did not run to its end"]


def save(folder, results, root):
    run.write_atomically(folder / "results.json", lambda path: path.write_text(json.dumps(results, indent=1) + "\n"))
