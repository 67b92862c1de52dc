"""Regression runs: benchmark.sh smoke | speed [game] | learn [game]. What is run, and what is expected, is in benchmark.yaml."""

import json
import math
import shlex
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from cleanrl_games.envs import run

TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def start(arguments):
    print("$ python", shlex.join(str(word) for word in arguments), flush=True)
    return [sys.executable, *map(str, arguments)]


def metrics_of(folder):
    """→ [{name: value}] as the run logged them"""
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def smoke(names):
    """Every script for a few steps: it must end by itself and leave a model, a checkpoint and finite metrics."""
    problems = []
    for script, flags in TABLE["smoke"].items():
        if names and script not in names and Path(script).stem not in names:
            continue
        folder = new_folder(f"smoke_{Path(script).stem}")
        done = subprocess.run(start([f"cleanrl_games/{script}", *shlex.split(flags), "--run-dir", folder]), cwd=ROOT)
        if done.returncode != 0:
            problems.append(f"{script} ended with exit code {done.returncode}")
            continue
        missing = [name for name in ("checkpoint.pt", "model.zip", "config.yaml", "script.py") if not (folder / name).exists()]
        values = [value for row in metrics_of(folder) for value in row.values()]
        if missing or not values or not all(math.isfinite(value) for value in values):
            problems.append(f"{script}: missing {missing}" if missing else f"{script}: metrics are empty or not finite")
    missing = sorted(path.name for path in (ROOT / "cleanrl_games").glob("*_*.py") if path.name not in TABLE["smoke"])
    return problems + [f"{name} has no line under smoke in benchmark.yaml" for name in missing if not names and name != "__init__.py"]


def speed(games):
    """Each game's bench; its figures are compared with their floors, and all of them are printed as one JSON object."""
    problems, figures = [], {}
    for game, entry in TABLE["speed"].items():
        if games and game not in games:
            continue
        process = subprocess.Popen(start([entry["bench"]]), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        last = ""
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line if line.strip() else last
        if process.wait() != 0:
            problems.append(f"{entry['bench']} ended with exit code {process.returncode}")
            continue
        figures[game] = json.loads(last)
        for name, floor in entry.get("floors", {}).items():
            if figures[game][name] < floor:
                problems.append(f"{game}: {name} is {figures[game][name]:.3g}, its floor is {floor}")
        for name, ceiling in entry.get("ceilings", {}).items():
            if figures[game][name] > ceiling:
                problems.append(f"{game}: {name} is {figures[game][name]:.3g}, its ceiling is {ceiling}")
    for problem in problems:
        print(f"REGRESSION {problem}", file=sys.stderr)
    print(json.dumps(figures[games[0]] if len(games) == 1 and games[0] in figures else figures))
    return problems


def learn(games):
    """Learning runs with a fixed seed and budget, their curves, and one table of what came out against what was expected."""
    report = new_folder("learn")
    problems, rows = [], ["| game | run | measure | value | expected | |", "|---|---|---|---|---|---|"]

    def judge(game, name, measure, value, low, high):
        good = low <= value <= high
        rows.append(f"| {game} | {name} | {measure} | {value:.3f} | {low} – {high} | {'ok' if good else '**regression**'} |")
        if not good:
            problems.append(f"{game}/{name}: {measure} is {value:.3f}, expected {low} – {high}")

    for game, entries in TABLE["learn"].items():
        if games and game not in games:
            continue
        for entry in entries:
            folder = report / f"{game}_{entry['name']}"
            done = subprocess.run(start([f"cleanrl_games/{entry['script']}", *shlex.split(entry["flags"]), "--run-dir", folder]), cwd=ROOT)
            if done.returncode != 0:
                problems.append(f"{game}/{entry['name']} ended with exit code {done.returncode}")
                continue
            history = metrics_of(folder)
            plot_curves(history, entry["curves"], folder.with_suffix(".png"), f"{game} · {entry['name']}")
            for measure, (low, high) in entry["expect"].items():
                judge(game, entry["name"], measure, [row[measure] for row in history if measure in row][-1], low, high)
            if "quarter" in entry:
                judge(game, entry["name"], "against itself at a quarter", play_quarter(folder, history), *entry["quarter"])
    table = "\n".join(rows) + "\n"
    run.write_atomically(report / "table.md", lambda path: path.write_text(table))
    print(table, f"\ncurves and table: {report}", sep="")
    return problems


def play_quarter(folder, history):
    """The final model against the run's own model from a quarter of the way, 1,000 games."""
    models = {int(path.stem): path for path in (folder / "models").glob("*.zip")}
    quarter = models[min(models, key=lambda step: abs(step - history[-1]["global_step"] / 4))]
    output = folder / "quarter.json"
    words = ["cleanrl_games/tools/evaluate.py", folder, "--against", quarter, "--episodes", 1000, "--json", output]
    subprocess.run(start(words), cwd=ROOT, check=True)
    return json.loads(output.read_text())["results"][0]["win_rate"]


def plot_curves(history, names, path, title):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, math.ceil(len(names) / 2), figsize=(4.2 * math.ceil(len(names) / 2), 6), squeeze=False)
    for axis, name in zip(axes.flat, names):
        points = [(row["global_step"], row[name]) for row in history if name in row]
        axis.plot([x for x, _ in points], [y for _, y in points])
        axis.set_title(name, fontsize=9)
        axis.grid(alpha=0.3)
        axis.ticklabel_format(axis="x", style="sci", scilimits=(6, 6))
    figure.suptitle(f"{title} · {history[-1]['global_step']:,} steps in {history[-1]['time'] / 60:.1f} minutes")
    figure.tight_layout()
    run.write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=100))
    plt.close(figure)


def new_folder(name):
    folder = ROOT / "runs" / "benchmark" / f"{name}_{time.strftime('%Y%m%d_%H%M%S')}"
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    modes = {"smoke": smoke, "speed": speed, "learn": learn}
    if len(sys.argv) < 2 or sys.argv[1] not in modes:
        known = {mode: ", ".join(TABLE[mode]) for mode in modes}
        raise SystemExit(f"usage: benchmark.sh smoke | speed [game] | learn [game]. Known: {known}")
    for name in sys.argv[2:]:
        if name not in TABLE[sys.argv[1]] and not any(Path(script).stem == name for script in TABLE["smoke"]):
            raise SystemExit(f"{sys.argv[1]} knows no {name!r}. There are: {', '.join(TABLE[sys.argv[1]])}.")
    found = modes[sys.argv[1]](sys.argv[2:])
    if sys.argv[1] != "speed":
        for problem in found:
            print(f"REGRESSION {problem}", file=sys.stderr)
    raise SystemExit(1 if found else 0)
