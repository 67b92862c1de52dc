"""Regression runs: benchmark.sh smoke | speed [game] | learn [game] | all | --compare A B. What is run, and what is
expected, is in benchmark.yaml. Each leaves runs/benchmark/<date>/results.json and, made of it by report.py,
report.html.

learn and all take --minutes N: the learning runs are shortened so that everything fits, and are then not judged by what
they reach. learn takes --seeds N: each script's run with N seeds, whose curves are drawn as a mean with a band."""

import glob
import json
import math
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from cleanrl_games.runtime.errors import BadInput, end_in_sentences
from cleanrl_games.runtime.files import write_atomically
from cleanrl_games.tools import curves, report

TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
RUNS = ROOT / "runs" / "benchmark"
BUDGETS = "max-minutes total-timesteps total-training-steps collect seeds".split()
BUDGETS += "episodes eval-episodes final-episodes final-eval-episodes final-battles worlds".split()
SHORTENED = "_shortened"  # ends the name of a folder whose learning runs had less than their budgets
LEAST_SHARE = 0.05  # of its budget: with less, a run may end before its first update


def execute(words, minutes):
    """Runs Python with these words and shows what it prints → (what went wrong or "", its last line, {command,
    seconds})"""
    words = [str(word) for word in words]
    print("$ python", shlex.join(words), flush=True)
    start, last, late = time.time(), "", []
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def stop():
        late.append(True)
        process.send_signal(signal.SIGINT)  # scripts leave a checkpoint and end their actors

    # Twice the stated time, since neighbours on the same cores slow a run down; then it counts as hanging.
    timers = [threading.Timer(120 * minutes, stop), threading.Timer(120 * minutes + 120, process.kill)]
    for timer in timers:
        timer.start()
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line if line.strip() else last
        process.wait()
    finally:
        for timer in timers:
            timer.cancel()
        if process.poll() is None:
            process.wait()  # Ctrl-C reaches it too: it saves and ends by itself
    problem = f"ended with exit code {process.returncode}" if process.returncode else ""
    problem = f"took more than twice its {minutes:g} minutes and was stopped" if late else problem
    return problem, last, {"command": f"python {shlex.join(words)}", "seconds": round(time.time() - start, 1)}


def metrics_of(folder):
    """→ [{name: value}] as a run or a tool logged them"""
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def unsound(folder):
    """What is wrong with what a script's run has left: a file is missing, or a metric is not finite. Else "" """
    files = ("checkpoint.pt", "model.zip", "config.yaml", "script.py", "metrics.jsonl")
    missing = [name for name in files if not (folder / name).exists()]
    if missing:
        return f"left no {' and no '.join(missing)}"
    values = [value for row in metrics_of(folder) for value in row.values()]
    return "" if values and all(math.isfinite(value) for value in values) else "logged no or no finite metrics"


def json_of(line):
    """The JSON object in a tool's last line, or None."""
    try:
        figures = json.loads(line)
    except ValueError:
        return None
    return figures if isinstance(figures, dict) else None


def judge(name, figures, expect):
    """Figures against their ranges, None = open → ([{measure, value, low, high, ok}], problems)"""
    judged, problems = [], []
    for measure, (low, high) in expect.items():
        value = figures.get(measure)
        ok = isinstance(value, (int, float)) and (low is None or low <= value) and (high is None or value <= high)
        judged.append({"measure": measure, "value": value, "low": low, "high": high, "ok": ok})
        if value is None:
            problems.append(f"{name}: there is no {measure}")
        elif not ok:
            problems.append(f"{name}: {report.judgement(judged[-1])}")
    return judged, problems


# ---------------------------------------------------------------------------------------------------------------- modes


def smoke(names, folder):
    """Every script for a few steps: it must end by itself and leave a model, a checkpoint and finite metrics."""
    for script, flags in TABLE["smoke"].items():
        if names and script not in names and Path(script).stem not in names:
            continue
        run_dir = folder / f"smoke_{Path(script).stem}"
        words = [Path("cleanrl_games") / script, *shlex.split(flags), "--run-dir", run_dir]
        problem, _, said = execute(words, TABLE["minutes"]["smoke"])
        problem = problem or unsound(run_dir)
        yield {"script": script, **said, "problems": [f"{script} {problem}"] if problem else []}


def speed(games, folder):
    """Each game's bench; its figures are compared with their floors and ceilings."""
    for game, entry in TABLE["speed"].items():
        if games and game not in games:
            continue
        problem, last, said = execute([entry["bench"]], TABLE["minutes"]["speed"])
        figures = json_of(last)
        if figures is None and not problem:
            problem = "did not end with a line that is a JSON object"
        expect = {name: (floor, None) for name, floor in entry.get("floors", {}).items()}
        expect |= {name: (None, ceiling) for name, ceiling in entry.get("ceilings", {}).items()}
        judged, problems = judge(game, figures, expect) if not problem else ([], [f"{entry['bench']} {problem}"])
        yield {"game": game, **said, "figures": figures or {}, "judged": judged, "problems": problems}


def fill(flags, game, folder):
    """Words of an entry's flags. {name} is the folder of the game's entry of that name, {game/name} of another game's,
    made in this run or else in the newest of full length that has it; {folder} is the entry's own; a word with * stands
    for the files it matches."""
    words = []
    for word in shlex.split(flags):
        for name in re.findall(r"\{([\w/]+)\}", word):
            stem = name.replace("/", "_") if "/" in name else f"{game}_{name}"
            earlier = [path for path in RUNS.glob(f"*/{stem}") if not path.parent.name.endswith(SHORTENED)]
            earlier.sort(key=lambda path: path.stat().st_mtime, reverse=True)
            done = [path for path in (folder.with_name(stem), *earlier) if (path / "measures.json").exists()]
            if name != "folder" and not done:
                raise FileNotFoundError(f"needs {name}, and no run of that has ended well")
            word = word.replace(f"{{{name}}}", str(folder if name == "folder" else done[0]))
        matches = sorted(glob.glob(word)) if "*" in word else [word]
        if not matches:
            raise FileNotFoundError(f"found nothing at {word}")
        words += matches
    return words


def shorten(flags, share):
    """An entry's flags with `share` of its budgets; of what is counted at least 1"""

    def scaled(match):
        value = share * float(match[2])
        return match[1] + (f"{value:.4g}" if match[1].startswith("--max-minutes") else f"{max(round(value), 1)}")

    return re.sub(rf"(--(?:{'|'.join(BUDGETS)})[ =])([\d.]+)", scaled, flags)


def entries_of(names, seeds=1):
    """[(game, entry)] of what is to be learnt; no names = everything. seeds: so many of each script's entries, one
    after the other; those after the first are called name_seed2, …, and `of` is what all of them are seeds of"""
    found = [(game, entry) for game, entries in TABLE["learn"].items() for entry in entries]
    found = [(game, entry) for game, entry in found if not names or game in names or f"{game}/{entry['name']}" in names]
    return [(game, copy) for game, entry in found for copy in with_seeds(entry, seeds)]


def with_seeds(entry, seeds):
    given = re.search(r"--seed[ =](\d+)", entry["flags"])
    if seeds == 1 or "script" not in entry or not given:
        return [entry]
    name, first, copies = entry["name"], int(given[1]), []
    for number in range(1, seeds + 1):
        flags = entry["flags"].replace(given[0], f"--seed {first + number - 1}")
        own = name if number == 1 else f"{name}_seed{number}"
        copies.append({**entry, "name": own, "flags": flags, "of": name})
    return copies


def learn(names, folder, share=1.0, seeds=1):
    """Learning runs with a fixed seed and budget, and tools that judge what came out, in the table's order. With less
    than the whole of their budgets they must still end well, but what they reach is only shown."""
    for game, entry in entries_of(names, seeds):
        name, own = f"{game}/{entry['name']}", folder / f"{game}_{entry['name']}"
        result = {
            "game": game,
            "name": entry["name"],
            "folder": own.name,
            "curves": {},
            "judged": [],
            "command": "",
            "seconds": 0.0,
        }
        result |= {"share": share} if share < 1 else {}
        result |= {"of": entry["of"]} if "of" in entry else {}
        try:
            flags = fill(shorten(entry["flags"], share) if share < 1 else entry["flags"], game, own)
        except FileNotFoundError as error:
            yield {**result, "problems": [f"{name} {error}"]}
            continue
        if "tool" in entry:
            own.mkdir()
            problem, last, said = execute([entry["tool"], *flags], minutes_of(entry, share))
            logged = (own / "metrics.jsonl").exists()
            figures = {key: value for row in metrics_of(own) for key, value in row.items()} if logged else json_of(last)
            problem = problem or (
                "" if figures is not None else "left no metrics.jsonl and no JSON object as its last line"
            )
        else:
            problem, _, said = execute(
                [Path("cleanrl_games") / entry["script"], *flags, "--run-dir", own], minutes_of(entry, share)
            )
            problem = problem or unsound(own)
            if not problem:
                history = metrics_of(own)
                figures = {key: value for row in history for key, value in row.items()}  # the last of each
                result["curves"] = curves_of(history, entry.get("curves", ()))
                result["steps"], result["minutes"] = history[-1]["global_step"], history[-1]["time"] / 60
                draw(entry, [own], f"{game} · {entry['name']}", own.with_suffix(".png"))
                if "of" in entry:
                    stem = f"{game}_{entry['of']}"
                    runs = [path for path in sorted(folder.glob(f"{stem}*/")) if is_seed(path.name, stem)]
                    draw(entry, runs, f"{game} · {entry['of']}", folder / f"{stem}_seeds.png")
        if problem:
            yield {**result, **said, "problems": [f"{name} {problem}"]}
            continue
        expect = dict(entry.get("expect", {}))
        if "quarter" in entry:
            figures["against itself at a quarter"] = play_quarter(own, history, share)
            expect["against itself at a quarter"] = entry["quarter"]
        judged, problems = judge(name, figures, expect)
        if share < 1:
            strange = [row for row in judged if isinstance(row["value"], float) and not math.isfinite(row["value"])]
            judged, problems = (
                [{**row, "ok": None} for row in judged],
                [f"{name}: {row['measure']} is not finite" for row in strange],
            )
        write_atomically(
            own / "measures.json", lambda path, figures=figures: path.write_text(json.dumps(figures, indent=1) + "\n")
        )
        result["figures"] = figures if "tool" in entry else {}
        yield {**result, **said, "judged": judged, "problems": problems}


def proof(_, folder):
    """The tests that take minutes: the README's commands on a machine that has nothing yet."""
    words = ["-m", "pytest", "-n0", "-m", "slow", "-p", "no:cacheprovider"]
    problem, last, said = execute(words, TABLE["minutes"]["proof"])
    yield {
        **said,
        "outcome": last.strip(),
        "problems": [f"the slow tests: pytest {problem} ({last.strip()})"] if problem else [],
    }


def minutes_of(entry, share=1.0):
    """The stated time of a learn entry: its `minutes`, or its --max-minutes and half of that for what comes after it. A
    share of that is what it takes to start, and that share."""
    budget = re.search(r"--max-minutes[ =]([\d.]+)", entry["flags"])
    stated = entry.get("minutes", 1.5 * float(budget[1]) if budget else TABLE["minutes"]["learn"])
    return stated if share == 1 else round(TABLE["minutes"]["start"] + share * stated, 3)


def play_quarter(folder, history, share):
    """The final model against the run's own model from a quarter of the way, 1,000 games."""
    models = {int(path.stem): path for path in (folder / "models").glob("*.zip")}
    quarter = models[min(models, key=lambda step: abs(step - history[-1]["global_step"] / 4))]
    output = folder / "quarter.json"
    words = [
        "cleanrl_games/tools/evaluate.py",
        folder,
        "--against",
        quarter,
        "--episodes",
        round(1000 * share),
        "--json",
        output,
    ]
    problem, _, _ = execute(words, TABLE["minutes"]["learn"])
    return None if problem else json.loads(output.read_text())["results"][0]["score"]


def curves_of(history, names, points=400):
    """{name: [(step, value)]}, thinned to what a picture can show; the last point stays."""
    curves = {name: [(row["global_step"], row[name]) for row in history if name in row] for name in names}
    return {name: curve[:: -max(1, len(curve) // points)][::-1] for name, curve in curves.items()}


def is_seed(name, stem):
    return re.fullmatch(rf"{re.escape(stem)}(_seed\d+)?", name)


def draw(entry, runs, title, path):
    """The entry's curves of one run, or of its seeds that have left metrics so far"""
    histories = [metrics_of(run) for run in runs if (run / "metrics.jsonl").exists()]
    names = [name for name in entry.get("curves", ()) if any(name in row for row in histories[0])]
    if names:
        last = histories[-1][-1]
        title = f"{title} · {last['global_step']:,} steps in {last['time'] / 60:.1f} minutes"
        curves.plot({entry["script"].removesuffix(".py"): histories}, names, path, title)


MODES = {"smoke": smoke, "speed": speed, "learn": learn, "proof": proof}


def stated_minutes(modes, names, share=1.0, seeds=1):
    """What each of the modes may take on two idle cores."""
    table, smoke, speed = TABLE["minutes"], len(TABLE["smoke"]), len(TABLE["speed"])
    learnt = sum(minutes_of(entry, share) for _, entry in entries_of(names, seeds))
    stated = {
        "smoke": table["smoke"] * smoke,
        "speed": table["speed"] * speed,
        "learn": learnt,
        "proof": table["proof"],
    }
    return {mode: stated[mode] for mode in modes}


def share_for(minutes, modes, names, seeds=1):
    """The share of their budgets that leaves the learning runs within so many minutes, beside the other modes; at most
    1"""
    whole, entries = stated_minutes(modes, names, seeds=seeds), entries_of(names, seeds)
    if minutes >= sum(whole.values()):
        return 1.0
    fixed = sum(whole.values()) - whole["learn"] + TABLE["minutes"]["start"] * len(entries)
    share = (minutes - fixed) / whole["learn"]
    if share < LEAST_SHARE:
        others = ", ".join(f"{mode} {taken:g}" for mode, taken in whole.items() if mode != "learn")
        raise BadInput(
            f"--minutes {minutes:g} are too few: {f'{others}, ' if others else ''}starting {len(entries)} learning "
            f"runs "
            f"{TABLE['minutes']['start'] * len(entries):g}, and {LEAST_SHARE:.0%} of their {whole['learn']:g}. Give "
            f"at least "
            f"{math.ceil(fixed + LEAST_SHARE * whole['learn'])}{', or --skip some of these' if others else ''}."
        )
    return share


def benchmark(words, modes, names, share=1.0, seeds=1):
    """Runs the modes; results.json and the report grow with every step, so a run that was stopped leaves what it
    has."""
    folder = RUNS / (time.strftime("%Y%m%d_%H%M%S") + (SHORTENED if share < 1 else ""))
    folder.mkdir(parents=True)
    results = {
        "command": shlex.join(["./benchmark.sh", *words]),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "complete": False,
    }
    stated = stated_minutes(modes, names, share, seeds) if words[0] == "all" or share < 1 or seeds > 1 else {}
    results |= {"stated_minutes": stated, "machine": report.describe_machine(ROOT), "seconds": 0.0}
    if stated:
        print(f"On two idle cores this takes up to {sum(stated.values()):.0f} minutes.", flush=True)
    if share < 1:
        print(
            f"Learning runs are shortened to {share:.1%} of their budgets, and what they reach is not judged.",
            flush=True,
        )
    start = time.time()
    try:
        for mode in modes:
            results[mode] = []
            for result in MODES[mode](names, folder, **({"share": share, "seeds": seeds} if mode == "learn" else {})):
                results[mode].append(result)
                results["seconds"] = round(time.time() - start, 1)
                report.save(folder, results, ROOT)
                for problem in result["problems"]:
                    print(f"REGRESSION {problem}", file=sys.stderr, flush=True)
        results["complete"] = True
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
    report.save(folder, results, ROOT)
    for row in results.get("learn", []):
        for judged in row["judged"]:
            print(f"{row['game']}/{row['name']}: {report.judgement(judged)}")
    print(f"report: {folder / 'report.html'}", flush=True)
    if modes == ["speed"]:
        figures = {row["game"]: row["figures"] for row in results["speed"]}
        print(json.dumps(figures[names[0]] if len(names) == 1 else figures))
    problems = report.problems_of(results)
    if words[0] == "all":
        print("\n".join([f"REGRESSION {problem}" for problem in problems] or ["No regression."]), file=sys.stderr)
    return 1 if problems or not results["complete"] else 0


def main(words):
    if words[:1] == ["--compare"] and len(words) == 3:
        print(f"report: {report.compare(*words[1:], ROOT)}")
        return 0
    known = {mode: ", ".join(TABLE[mode]) for mode in ("smoke", "speed", "learn")}
    usage = (
        "usage: benchmark.sh smoke [script] | speed [game] | learn [game or game/entry] [--minutes N] [--seeds N] | "
        "all [--minutes N] [--skip MODE] | mutants | "
        f"--compare A B. Known: {known}"
    )
    if not words or words[0] not in (*known, "all"):
        raise BadInput(usage)
    names, minutes, seeds, skipped, rest = [], math.inf, 1, [], iter(words[1:])
    for word in rest:
        value = next(rest, "") if word.startswith("--") else ""
        if word == "--minutes" and words[0] in ("learn", "all") and re.fullmatch(r"\d+(\.\d+)?", value):
            minutes = float(value)
        elif word == "--seeds" and words[0] == "learn" and re.fullmatch(r"[1-9]\d?", value):
            seeds = int(value)
        elif word == "--skip" and words[0] == "all" and value in ("smoke", "speed", "proof"):
            skipped.append(value)
        elif word.startswith("--") or words[0] == "all":
            raise BadInput(usage)
        else:
            names.append(word)
    modes = [mode for mode in MODES if mode not in skipped] if words[0] == "all" else words[:1]
    entries = {f"{game}/{entry['name']}" for game, entry in entries_of(())} if words[0] == "learn" else set()
    stems = {Path(script).stem for script in TABLE["smoke"]} if words[0] == "smoke" else set()
    for name in names:
        if name not in {*TABLE[words[0]], *entries, *stems}:
            raise BadInput(
                f"{words[0]} knows no {name!r}. There are: {', '.join([*TABLE[words[0]], *sorted(entries)])}."
            )
    return benchmark(words, modes, names, share_for(minutes, modes, names, seeds), seeds)


if __name__ == "__main__":
    end_in_sentences()
    raise SystemExit(main(sys.argv[1:]))
