"""Which settings are best? A search with Optuna over runs of one script.

    python cleanrl_games/tools/tune.py ppo_osrs_selfplay --metric win_rate/nh --trials 20 \\
        --search learning_rate=1e-4:1e-3:log ent_coef=0.001:0.05:log update_epochs=2|4 \\
        --seeds 1 2 -- --total-timesteps 500000 --num-workers 1

Flags behind -- go to every run. A trial is one run of the script for each seed, one after the other. Its value is the
mean over the seeds of the metric as it was logged last. A trial whose curve is below the median of the others at the
same point is stopped (--no-prune lets all end). Ctrl-C stops; the same command goes on, and so does a larger --trials.
The folder holds every run, the trials as trials.csv, and index.html, which shows all of it.
"""

import csv
import dataclasses
import importlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from html import escape
from pathlib import Path
from typing import Annotated

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
import optuna
import tyro
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from cleanrl_games.runtime.errors import BadInput, RunFailed
from cleanrl_games.runtime.files import write_atomically
from cleanrl_games.runtime.settings import Size, check_settings, parse_flags
from cleanrl_games.tools import report

RESERVED = {"seed", "run_dir", "resume", "config"}  # this tool's own
FAILURES_IN_A_ROW = 3
FIRST_TRIALS = 4  # which are never stopped early: a median needs something to be the median of


@dataclasses.dataclass
class Args:
    script: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SCRIPT")]
    """the script's name, with or without cleanrl_games/ and .py; a copy of yours too"""
    search: tuple[str, ...] = ()
    """what is searched: name=low:high, name=low:high:log, or name=a|b|c"""
    space: str = ""
    """the same as a YAML file: `learning_rate: {low: 1e-4, high: 1e-3, log: true}`, `update_epochs: [2, 4]`"""
    metric: str = ""
    """the logged metric to judge by, for example eval/heuristics"""
    minimize: bool = False
    """the lowest value is the best"""
    trials: Size = 20
    """trials in all, those of an earlier call included"""
    seeds: tuple[int, ...] = (1,)
    """seeds of each trial"""
    prune: bool = True
    """stop a trial that is below the median of the others at the same point; only its first seed is looked at"""
    folder: str = ""
    """where it all goes; empty = runs/tune_<script>"""
    sampler_seed: int = 1
    """seed of the search"""


# ----------------------------------------------------------------------------------------------------- what is searched


def read_search(text):
    """name=low:high[:log] or name=a|b|c → (name, {low, high, log} or [choices])"""
    name, equals, rest = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    if not equals or not name or not rest:
        raise BadInput(f"--search {text!r}: write name=low:high, name=low:high:log, or name=a|b|c.")
    if "|" in rest:
        return name, [yaml.safe_load(word) for word in rest.split("|")]
    low, colon, high = rest.partition(":")
    high, log, word = high.partition(":")
    if not colon or (log and word != "log"):
        raise BadInput(f"--search {text!r}: write name=low:high, name=low:high:log, or name=a|b|c.")
    return name, {"low": low, "high": high, "log": bool(log)}


def read_space(args, script_args):
    """→ {setting: {low, high, log} or [choices]}, every bound and choice checked as the script itself would"""
    found = {}
    if args.space:
        try:
            found = yaml.safe_load(Path(args.space).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise BadInput(f"--space {args.space}: {str(error).splitlines()[0]}") from None
        if not isinstance(found, dict):
            raise BadInput(f"--space {args.space} should be a YAML mapping of settings.")
    found |= dict(map(read_search, args.search))
    if not found:
        raise BadInput("There is nothing to search: give --search or --space.")
    space = {}
    for name, what in found.items():
        where = f"the search for {name}"
        if name in RESERVED:
            raise BadInput(f"{name} cannot be searched: this tool sets it for every run.")
        if isinstance(what, list) and len(what) > 1:
            space[name] = [check_settings(script_args, {name: value}, where)[name] for value in what]
            continue
        if not isinstance(what, dict) or not {"low", "high"} <= set(what) <= {"low", "high", "log"}:
            raise BadInput(f"{name}: give a list of choices, or low and high (and log: true).")
        low, high = (check_settings(script_args, {name: what[key]}, where)[name] for key in ("low", "high"))
        log = bool(what.get("log"))
        if isinstance(low, bool) or not isinstance(low, (int, float)):
            raise BadInput(f"{name} is no number: give its choices as a|b|c.")
        if not low < high or (log and low <= 0):
            raise BadInput(f"{name}: low should be below high{', and above 0 on a log scale' if log else ''}.")
        space[name] = {"low": low, "high": high, "log": log}
    return space


def suggest(trial, space):
    values = {}
    for name, what in space.items():
        if isinstance(what, list):
            values[name] = what[trial.suggest_categorical(name, range(len(what)))]
        elif isinstance(what["low"], int) and isinstance(what["high"], int):
            values[name] = trial.suggest_int(name, what["low"], what["high"], log=what["log"])
        else:
            values[name] = trial.suggest_float(name, what["low"], what["high"], log=what["log"])
    return values


def in_words(params, space):
    """Optuna's numbers of choices → the choices"""
    return {name: space[name][value] if isinstance(space[name], list) else value for name, value in params.items()}


def as_flags(values):
    words = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, (tuple, list)):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return words


# ----------------------------------------------------------------------------------------------------------------- runs


def logged(folder, metric):
    """→ the metric's values so far, and the names of all that is logged"""
    path, values, names = folder / "metrics.jsonl", [], set()
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            names |= set(row)
            if metric in row:
                values.append(float(row[metric]))
    return values, names


def run_script(script, folder, words, metric, report_values):
    """One run to its end, or until `report_values(values)` says that it should stop → (its values, stopped early)"""
    with open(folder.with_suffix(".log"), "w+") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), "--run-dir", str(folder), *words],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes from here, once
        )
        stop = False
        try:
            while process.poll() is None:
                time.sleep(0.2)
                stop = stop or report_values(logged(folder, metric)[0])
                if stop:
                    process.send_signal(signal.SIGINT)
                    process.wait(120)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(120)
        log.seek(0)
        said = log.read().strip().splitlines()
    if process.returncode and not stop:
        raise RunFailed(f"a run failed with code {process.returncode}: {said[-1] if said else 'it said nothing'}")
    return logged(folder, metric)[0], stop


def play_trial(trial, args, script, run_flags, space, folder):
    values = suggest(trial, space)
    place = folder / f"trial_{trial.number}"
    place.mkdir(exist_ok=True)
    results = []
    for seed in args.seeds:
        first = seed == args.seeds[0]

        reported = 0

        def below_the_others(curve, first=first):
            nonlocal reported
            if not first or not args.prune:
                return False
            for step in range(reported, len(curve)):
                trial.report(curve[step], step)
            reported = len(curve)
            return reported > 0 and trial.should_prune()

        words = [*run_flags, *as_flags(values), "--seed", str(seed)]
        run = place / f"seed_{seed}"
        curve, stopped = run_script(script, run, words, args.metric, below_the_others)
        if stopped:
            raise optuna.TrialPruned
        if not curve:
            names = ", ".join(sorted(logged(run, args.metric)[1])) or "nothing"
            raise BadInput(f"--metric {args.metric} was never logged by {script.name}. It logged: {names}.")
        results.append(curve[-1])
    trial.set_user_attr("by_seed", results)
    return float(np.mean(results))


# ---------------------------------------------------------------------------------------------------------------- pages


def picture(trials, space, metric):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(space), figsize=(3.2 * len(space), 2.8), squeeze=False, sharey=True)
    for axis, (name, what) in zip(axes[0], space.items()):
        values = [in_words(trial.params, space)[name] for trial in trials]
        axis.scatter([str(v) for v in values] if isinstance(what, list) else values, [t.value for t in trials], s=18)
        if isinstance(what, dict) and what["log"]:
            axis.set_xscale("log")
        axis.set_xlabel(name)
    axes[0][0].set_ylabel(metric)
    figure.tight_layout()
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    plt.close(figure)
    return data.getvalue()


def write_results(study, args, space, folder):
    ended = [trial for trial in study.trials if trial.state.is_finished()]
    complete = [trial for trial in ended if trial.state == TrialState.COMPLETE]
    complete.sort(key=lambda trial: trial.value if args.minimize else -trial.value)
    others = [trial for trial in ended if trial.state != TrialState.COMPLETE]
    columns = ["trial", "state", args.metric, "by_seed", *space]
    rows = []
    for trial in complete + others:
        values = in_words(trial.params, space)
        seeds = " ".join(f"{value:.4g}" for value in trial.user_attrs.get("by_seed", ()))
        rows.append([trial.number, trial.state.name.lower(), trial.value, seeds, *(values.get(name) for name in space)])
    text = io.StringIO()
    csv.writer(text).writerows([columns, *rows])
    write_atomically(folder / "trials.csv", lambda path: path.write_text(text.getvalue()))
    body = f"<p><code>python {escape(shlex.join(['cleanrl_games/tools/tune.py', *sys.argv[1:]]))}</code></p>\n"
    if complete:
        write_atomically(folder / "tune.png", lambda path: path.write_bytes(picture(complete, space, args.metric)))
        best = " ".join(as_flags(in_words(complete[0].params, space)))
        body += f"<p>The best: <code>{escape(best)}</code></p>\n{report.image(folder / 'tune.png')}"
    cells = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    for row in rows:
        shown = (f"{cell:.4g}" if isinstance(cell, float) else "" if cell is None else str(cell) for cell in row)
        cells += "</tr><tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in shown)
    body += f"<table><tr>{cells}</tr></table>\n"
    page = report.page(f"{Path(args.script).stem}: {args.metric}", body)
    write_atomically(folder / "index.html", lambda path: path.write_text(page, encoding="utf-8"))
    return complete


# ------------------------------------------------------------------------------------------------------------- the tool


def find_script(name):
    path = Path(name if name.endswith(".py") else f"{name}.py")
    for candidate in (path, ROOT / path, ROOT / "cleanrl_games" / path.name):
        if candidate.is_file():
            return candidate.resolve()
    scripts = sorted(path.stem for path in (ROOT / "cleanrl_games").glob("*.py") if path.stem != "__init__")
    raise BadInput(f"There is no script {name}: give a file, or one of {', '.join(scripts)}.")


def load_args(script):
    sys.path.insert(0, str(script.parent))
    return importlib.import_module(script.stem).Args


def main(argv=None):
    words = sys.argv[1:] if argv is None else argv
    at = words.index("--") if "--" in words else len(words)
    args, run_flags = parse_flags(Args, __doc__, words[:at]), words[at + 1 :]
    script = find_script(args.script)
    if not args.metric:
        raise BadInput("--metric is missing: name what the script logs, for example eval/heuristics.")
    space = read_space(args, load_args(script))
    folder = Path(args.folder or f"runs/tune_{script.stem}").absolute()
    asked = {"script": script.name, "metric": args.metric, "minimize": args.minimize, "space": space}
    asked |= {"flags": run_flags, "seeds": list(args.seeds)}
    asked = json.loads(json.dumps(asked))
    before = folder / "search.json"
    if before.exists() and json.loads(before.read_text()) != asked:
        raise BadInput(f"--folder {folder} holds another search (see its search.json): give another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(before, lambda path: path.write_text(json.dumps(asked, indent=1) + "\n"))

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS) if args.prune else optuna.pruners.NopPruner()
    study = optuna.create_study(
        study_name="tune",
        storage=JournalStorage(JournalFileBackend(str(folder / "journal.log"))),
        sampler=optuna.samplers.TPESampler(seed=args.sampler_seed),
        pruner=pruner,
        direction="minimize" if args.minimize else "maximize",
        load_if_exists=True,
    )
    for trial in study.trials:
        if trial.state == TrialState.RUNNING:  # an earlier call was stopped in the middle of it
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)
    failures = 0
    counted = (TrialState.COMPLETE, TrialState.PRUNED)
    while sum(trial.state in counted for trial in study.trials) < args.trials:
        trial = study.ask()
        try:
            value = play_trial(trial, args, script, run_flags, space, folder)
        except optuna.TrialPruned:
            study.tell(trial, state=TrialState.PRUNED)
            said, failures = "stopped: below the median of the others", 0
        except RunFailed as error:
            study.tell(trial, state=TrialState.FAIL)
            said, failures = str(error), failures + 1
        except KeyboardInterrupt:
            write_results(study, args, space, folder)
            raise SystemExit(f"Stopped in trial {trial.number}; the same command goes on. See {folder}.") from None
        else:
            study.tell(trial, value)
            said, failures = f"{args.metric} {value:.4g}", 0
        flags = " ".join(as_flags(in_words(trial.params, space)))
        print(f"trial {trial.number}: {said}  ({flags})", flush=True)
        complete = write_results(study, args, space, folder)
        if failures == FAILURES_IN_A_ROW:
            raise RunFailed(f"{failures} trials failed one after the other: see the .log files in {folder}.")
    complete = write_results(study, args, space, folder)
    if not complete:
        print(f"Every trial was stopped early or failed; see {folder}/index.html.")
        return None
    best = {"value": complete[0].value, "settings": in_words(complete[0].params, space), "folder": str(folder)}
    print(f"The best of {len(complete)}: {' '.join(as_flags(best['settings']))}. All of them: {folder}/index.html")
    print(json.dumps(best))
    return best


if __name__ == "__main__":
    main()
