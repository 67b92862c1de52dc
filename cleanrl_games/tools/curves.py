"""Learning curves of runs as one picture. Several seeds are a line, their mean, and a band from the lowest to the
highest.

    python cleanrl_games/tools/curves.py runs/a runs/b runs/c --metrics eval/nh eval/seer_30 --output curves.png
    python cleanrl_games/tools/curves.py dagger=runs/a dagger=runs/b cloning=runs/c --output curves.png

Runs of one label are seeds of one thing; without a label the script's name is the label.
"""

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cleanrl_games.runtime.errors import BadInput, first_line
from cleanrl_games.runtime.files import write_atomically
from cleanrl_games.runtime.settings import parse_flags, read_settings

COLOURS = ("#1f6fb4", "#d1602b", "#2e8b57", "#8a4fbf", "#b8860b", "#4a5560")
POINTS = 200  # of a curve; what is logged more often is averaged over that many parts of the run


@dataclasses.dataclass
class Args:
    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[LABEL=]RUN…")]
    """run folders; those with the same label are seeds of one thing"""
    metrics: tuple[str, ...] = ()
    """names of logged metrics, one picture each; empty = every eval/ metric, and the return of episodes"""
    output: str = "curves.png"
    """the PNG file to write"""
    title: str = ""
    """stands above the pictures"""


# ------------------------------------------------------------------------------------------------------------ the maths


def read_history(folder):
    """A run's metrics.jsonl → [{name: value}], a dictionary an update"""
    path = Path(folder) / "metrics.jsonl"
    try:
        history = [json.loads(line) for line in path.read_text().splitlines()]
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): give the folder of a run.") from None
    except ValueError as error:
        raise BadInput(f"{path} is not a run's metrics ({first_line(error)}).") from None
    if not history or not all(isinstance(row, dict) and "global_step" in row for row in history):
        raise BadInput(f"{path} is not a run's metrics: each line should be an object with global_step.")
    return history


def points_of(history, name):
    """One metric of one run → (steps, values), finite ones only, at most POINTS of them"""
    rows = [(row["global_step"], row[name]) for row in history if name in row]
    steps, values = np.array([row for row in rows if math.isfinite(row[1])], float).reshape(-1, 2).T
    if len(steps) <= POINTS:
        return steps, values
    edges = np.linspace(steps[0], steps[-1], POINTS + 1)[1:-1]
    part = np.digitize(steps, edges)  # (N,) which part of the run a point lies in
    counts = np.bincount(part, minlength=POINTS)
    means = [np.bincount(part, of, POINTS)[counts > 0] / counts[counts > 0] for of in (steps, values)]
    return means[0], means[1]


def band_of(histories, name):
    """One metric of several seeds → (steps, mean, lowest, highest), over the steps that all of them have. Seeds log at
    steps of their own, so each is read off its curve at the same steps."""
    curves = [points_of(history, name) for history in histories]
    curves = [(steps, values) for steps, values in curves if len(steps)]
    if not curves:
        return (np.zeros(0),) * 4
    if len(curves) == 1:
        steps, values = curves[0]
        return steps, values, values, values
    first = max(steps[0] for steps, _ in curves)
    last = min(steps[-1] for steps, _ in curves)
    if last < first:
        raise BadInput(f"{name}: the runs have no steps in common, the shortest ends at {last:,.0f}.")
    steps = np.unique(np.concatenate([[first, last], *(own[(own >= first) & (own <= last)] for own, _ in curves)]))
    if len(steps) > POINTS:
        steps = np.linspace(first, last, POINTS)
    values = np.stack([np.interp(steps, *curve) for curve in curves])  # (seeds, P)
    return steps, values.mean(0), values.min(0), values.max(0)


# ---------------------------------------------------------------------------------------------------------- the picture


def usual_metrics(histories):
    """The scores of evaluations, without their intervals and counts, and the return where it is logged"""
    logged = sorted({name for history in histories for row in history for name in row})
    ends = ("_low", "_high", "_n")
    found = [name for name in logged if name.startswith("eval/") and not name.endswith(ends)]
    return found + [name for name in ("charts/episodic_return",) if name in logged]


def plot(groups, names, path, title=""):
    """groups: {label: [a history for each seed]}; names: metrics, one picture each. Writes a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(len(names), 4)
    rows = math.ceil(len(names) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.8 * columns, 2.9 * rows + 0.5), squeeze=False)
    last = max(row["global_step"] for histories in groups.values() for history in histories for row in history[-1:])
    unit, word = (1e6, " (millions)") if last >= 1e6 else (1e3, " (thousands)") if last >= 1e4 else (1, "")
    for axis, name in zip(axes.flat, names):
        for (label, histories), colour in zip(groups.items(), COLOURS):
            steps, mean, low, high = band_of(histories, name)
            seeds = f" ({len(histories)} seeds)" if len(histories) > 1 else ""
            marker = "o" if len(steps) <= 30 else None  # few evaluations are shown as what they are
            axis.plot(steps / unit, mean, color=colour, linewidth=1.4, marker=marker, ms=3, label=f"{label}{seeds}")
            if len(histories) > 1:
                axis.fill_between(steps / unit, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_xlabel(f"global_step{word}", fontsize=8)
        axis.set_ylabel(name, fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    if len(groups) > 1 or any(len(histories) > 1 for histories in groups.values()):
        axes.flat[0].legend(fontsize=7, frameon=False)
    if title:
        figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=100))
    plt.close(figure)


# ------------------------------------------------------------------------------------------------------------- the tool


def read_groups(words):
    """[LABEL=]RUN… → {label: [history]}"""
    groups = {}
    for word in words:
        label, equals, folder = word.partition("=")
        if not equals:
            folder = word
            config = Path(word) / "config.yaml"
            label = str(read_settings(config).get("exp_name", Path(word).name)) if config.exists() else Path(word).name
        groups.setdefault(label, []).append(read_history(folder))
    if len(groups) > len(COLOURS):
        raise BadInput(f"There are {len(groups)} labels, and colours for {len(COLOURS)}.")
    return groups


def main(argv=None):
    args = parse_flags(Args, __doc__, argv)
    if not args.runs:
        raise BadInput("There is nothing to draw: give run folders.")
    if Path(args.output).suffix != ".png" or not Path(args.output).absolute().parent.is_dir():
        raise BadInput(f"--output {args.output} should be a .png file in a folder that exists.")
    groups = read_groups(args.runs)
    histories = [history for histories in groups.values() for history in histories]
    names = args.metrics or usual_metrics(histories)
    for name in names:
        if not any(name in row for history in histories for row in history):
            raise BadInput(f"No run has logged {name}.")
    plot(groups, names, args.output, args.title)
    print(f"{args.output}: {len(names)} metrics of {len(histories)} runs")


if __name__ == "__main__":
    main()
