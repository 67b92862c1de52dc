"""What benchmark.sh found, as files: results.json, and one self-contained page made of it, report.html.

A page holds its tables, curves (SVG), heat maps and GIFs itself, runs no code, and tells the browser to load nothing
from anywhere."""

import base64
import html
import importlib.metadata
import json
import math
import os
import platform
import subprocess
from pathlib import Path

from cleanrl_games.runtime.errors import BadInput, first_line
from cleanrl_games.runtime.files import write_atomically
from cleanrl_games.tools import curves as bands

MODES = ("smoke", "speed", "learn", "proof")
IMAGES = {".png": "image/png", ".gif": "image/gif"}
MAX_IMAGE_BYTES = 6 << 20
COLOURS = ("#1f6fb4", "#d1602b")  # of the first and the second run of a comparison
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em; color: #1b1f24 }
table { border-collapse: collapse; margin: .6em 0 1.2em }
td, th { padding: .22em .8em; text-align: left; border-bottom: 1px solid #d8dde3 }
td.number { text-align: right; font-variant-numeric: tabular-nums }
code { background: #f1f3f5; padding: .1em .3em; overflow-wrap: anywhere }
.good { color: #1a7f37 } .bad { color: #b42318; font-weight: 600 } .curves { display: flex; flex-wrap: wrap; gap: 10px }
figure { margin: 0 } figcaption { font-size: 12px; color: #4a5560 } img { max-width: 100% }
svg text { font: 10px system-ui, sans-serif; fill: #4a5560 }
"""


# -------------------------------------------------------------------------------------------------------------- results


def describe_machine(root):
    """What a figure depends on besides the code. The load says whether the cores were idle."""
    import psutil
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        if cpuinfo.exists()
        else []
    )
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


def number(value):
    """For people: few digits, and a dash for what is not there."""
    if not isinstance(value, (int, float)):
        return "–" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def limits(judged):
    low, high = judged["low"], judged["high"]
    return f"at least {low:g}" if high is None else f"at most {high:g}" if low is None else f"{low:g} – {high:g}"


def judgement(judged):
    """One measure against its range, as a sentence."""
    if judged["value"] is None:
        return f"there is no {judged['measure']}"
    return (
        f"{judged['measure']} is {number(judged['value'])}, expected "
        f"{limits(judged)}{', not judged' if judged['ok'] is None else ''}"
    )


def problems_of(results):
    problems = [problem for mode in MODES for row in results.get(mode, []) for problem in row["problems"]]
    return problems if results["complete"] else [*problems, "the benchmark did not run to its end"]


def read_results(folder):
    path = Path(folder) / "results.json"
    try:
        results = json.loads(path.read_text())
        problems_of(results), results["machine"], results["started"]
    except OSError:
        raise BadInput(f"There is no benchmark in {folder}: it should have a results.json.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not a benchmark's results ({first_line(error)}).") from None
    return results


def save(folder, results, root):
    """Both files, after every step of the benchmark."""
    write_atomically(folder / "results.json", lambda path: path.write_text(json.dumps(results, indent=1) + "\n"))
    text = report_page(folder, results, Path(root) / "docs" / "media")
    write_atomically(folder / "report.html", lambda path: path.write_text(text))


# --------------------------------------------------------------------------------------------------------------- pieces


def escape(value):
    return html.escape(str(value))


def table(header, rows):
    """Cells are HTML; a cell given as (class, HTML) gets that class."""
    if not rows:
        return ""

    def cell(content):
        kind, content = content if isinstance(content, tuple) else ("", content)
        return f'<td class="{kind}">{content}</td>' if kind else f"<td>{content}</td>"

    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join(f"<tr>{''.join(cell(content) for content in row)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>\n"


def verdict(ok):
    return ("", "not judged") if ok is None else ("good", "ok") if ok else ("bad", "regression")


def judged_table(rows):
    cells = [
        (escape(row["measure"]), ("number", number(row["value"])), escape(limits(row)), verdict(row["ok"]))
        for row in rows
    ]
    return table(("measure", "value", "expected", ""), cells)


def figures_table(figures):
    return table(
        ("measure", "value"), [(escape(name), ("number", escape(number(value)))) for name, value in figures.items()]
    )


def problems_list(problems):
    if not problems:
        return '<p class="good">No regression.</p>\n'
    return '<ul class="bad">' + "".join(f"<li>{escape(problem)}</li>" for problem in problems) + "</ul>\n"


def curve_svg(name, curves, band=(), width=320, height=170):
    """One metric over steps; `curves` is one or two lists of (step, value), for one run or a comparison. `band`: the
    outline of an area behind them"""
    curves = [[(x, y) for x, y in curve if y is not None and math.isfinite(y)] for curve in curves]
    points = [*band, *(point for curve in curves for point in curve)]
    if not points:
        return f"<figure><figcaption>{escape(name)}: nothing was logged</figcaption></figure>\n"
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*points))
    across, up = (right - left) or 1, (high - low) or 1

    def places(curve):
        return " ".join(
            f"{42 + (width - 52) * (x - left) / across:.1f},{height - 24 - (height - 40) * (y - low) / up:.1f}"
            for x, y in curve
        )

    lines = [f'<polygon points="{places(band)}" fill="{COLOURS[0]}" opacity="0.2"/>'] if len(band) else []
    for curve, colour in zip(curves, COLOURS):
        if curve:
            lines.append(f'<polyline points="{places(curve)}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
    last = ", ".join(number(curve[-1][1]) if curve else "–" for curve in curves)
    return (
        f'<figure><svg role="img" aria-label="{escape(name)}" width="{width}" height="{height}" viewBox="0 0 {width} '
        f'{height}">'
        f'<rect x="42" y="16" width="{width - 52}" height="{height - 40}" fill="none" '
        f'stroke="#d8dde3"/>{"".join(lines)}'
        f'<text x="38" y="22" text-anchor="end">{number(high)}</text><text x="38" y="{height - 24}" '
        f'text-anchor="end">{number(low)}</text>'
        f'<text x="{width / 2 + 16:.0f}" y="{height - 8}" text-anchor="middle">global_step</text>'
        f'<text x="42" y="{height - 8}">{number(left)}</text><text x="{width - 10}" y="{height - 8}" '
        f'text-anchor="end">{number(right)}</text>'
        f"</svg><figcaption>{escape(name)}: at the end {last}</figcaption></figure>\n"
    )


def curves_block(names, curves_of_runs):
    drawn = "".join(curve_svg(name, [curves.get(name, []) for curves in curves_of_runs]) for name in names)
    return f'<div class="curves">{drawn}</div>\n' if drawn else ""


def band_svg(name, curves):
    """One metric of several seeds: their mean, and a band from the lowest to the highest"""
    histories = [[{"global_step": step, name: value} for step, value in curve] for curve in curves]
    steps, mean, low, high = (part.tolist() for part in bands.band_of(histories, name))
    outline = [*zip(steps, high), *reversed([*zip(steps, low)])]
    return curve_svg(name, [[*zip(steps, mean)]], outline)


def image(path):
    if path.stat().st_size > MAX_IMAGE_BYTES:
        return f"<p>{escape(path.name)} is too large for this page: {path.stat().st_size >> 20} MiB.</p>\n"
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><img alt="{escape(path.stem)}" '
        f'src="data:{IMAGES[path.suffix]};base64,{data}"><figcaption>{escape(path.name)}</figcaption></figure>\n'
    )


def images_in(folder):
    """A tool's pictures, and of a run's videos the last of each kind: <step>.gif, or <step>_<kind>.gif."""
    found = sorted(path for path in folder.glob("*") if path.suffix in IMAGES) if folder.is_dir() else []
    videos = sorted((folder / "videos").glob("*.gif"), key=lambda path: path.stat().st_mtime)
    last = {path.stem.partition("_")[2]: path for path in videos}
    return found + sorted(last.values(), key=videos.index)


def page(title, body):
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLE}</style></head>\n'
        f"<body>\n<h1>{escape(title)}</h1>\n{body}</body></html>\n"
    )


def summary(results):
    taken = f"{results['seconds'] / 60:.1f} minutes"
    stated = sum(results.get("stated_minutes", {}).values())
    taken += f" of the {stated:.0f} stated for two idle cores" if stated else ""
    return f"<p><code>{escape(results['command'])}</code>, {escape(results['started'])}, {taken}</p>\n"


# ---------------------------------------------------------------------------------------------------------------- pages


def learn_section(folder, row):
    said = f"{row['steps']:,} steps in {row['minutes']:.1f} minutes" if "steps" in row else f"{row['seconds']:.0f} s"
    body = (
        f"<h3>{escape(row['game'])} · {escape(row['name'])}</h3>\n<p><code>{escape(row['command'])}</code>, "
        f"{said}</p>\n"
    )
    body += f"<p>shortened to {100 * row['share']:.3g} %: not judged</p>\n" if "share" in row else ""
    body += problems_list(row["problems"]) if row["problems"] else ""
    body += judged_table(row["judged"]) + curves_block(row["curves"], [row["curves"]])
    if row.get("figures"):
        body += (
            f"<details><summary>all {len(row['figures'])} figures</summary>{figures_table(row['figures'])}</details>\n"
        )
    return body + "".join(image(path) for path in images_in(folder / row["folder"]))


def seeds_section(rows):
    """The learning runs of one entry that differ in their seed only, drawn together"""
    groups = {}
    for row in rows:
        if "of" in row and row["curves"]:
            groups.setdefault((row["game"], row["of"]), []).append(row["curves"])
    body = ""
    for (game, name), runs in groups.items():
        drawn = "".join(band_svg(metric, [curves[metric] for curves in runs]) for metric in runs[0])
        body += f'<h3>{escape(game)} · {escape(name)}, {len(runs)} seeds</h3>\n<div class="curves">{drawn}</div>\n'
    said = "<p>The line is the mean, the band goes from the lowest seed to the highest.</p>\n"
    return f"<h2>Several seeds</h2>\n{said}{body}" if body else ""


def report_page(folder, results, media):
    body = summary(results) + "<h2>Regressions</h2>\n" + problems_list(problems_of(results))
    body += "<h2>Machine</h2>\n" + table(
        ("", ""), [(escape(name), escape(value)) for name, value in results["machine"].items()]
    )
    if results.get("smoke"):
        cells = [
            (escape(row["script"]), ("number", f"{row['seconds']:.0f} s"), verdict(not row["problems"]))
            for row in results["smoke"]
        ]
        body += "<h2>Smoke: every script for a few steps</h2>\n" + table(("script", "time", ""), cells)
    if results.get("speed"):
        body += "<h2>Speed</h2>\n"
    for row in results.get("speed", []):
        body += (
            f"<h3>{escape(row['game'])}</h3>\n<p><code>{escape(row['command'])}</code>, {row['seconds']:.0f} s</p>\n"
        )
        body += (
            (problems_list(row["problems"]) if row["problems"] else "")
            + judged_table(row["judged"])
            + figures_table(row["figures"])
        )
    if results.get("learn"):
        body += "<h2>Learning</h2>\n" + "".join(learn_section(Path(folder), row) for row in results["learn"])
        body += seeds_section(results["learn"])
    if results.get("proof"):
        cells = [
            (escape(row["outcome"]), ("number", f"{row['seconds']:.0f} s"), verdict(not row["problems"]))
            for row in results["proof"]
        ]
        body += "<h2>Slow tests: the README's commands on a machine that has nothing yet</h2>\n" + table(
            ("pytest", "time", ""), cells
        )
    pictures = "".join(image(path) for path in sorted(Path(media).glob("*.gif")))
    body += f'<h2>The games</h2>\n<div class="curves">{pictures}</div>\n' if pictures else ""
    return page(f"cleanrl_games benchmark, {results['started']}", body)


def measures_of(results):
    """{(what, measure): value} of everything that two runs can be compared by"""
    found = {("smoke", f"{row['script']}, seconds"): row["seconds"] for row in results.get("smoke", [])}
    for row in results.get("speed", []):
        found |= {
            (f"speed {row['game']}", name): value
            for name, value in row["figures"].items()
            if isinstance(value, (int, float))
        }
    for row in results.get("learn", []):
        what = f"learn {row['game']}/{row['name']}"
        found |= {(what, judged["measure"]): judged["value"] for judged in row["judged"]}
        found |= {
            (what, name): value for name, value in row.get("figures", {}).items() if isinstance(value, (int, float))
        }
        found |= {(what, "steps"): row["steps"]} if "steps" in row else {}
    return found


def compare(first, second, root):
    """Two benchmarks side by side → the page's path, in the second's folder. Names are folders, or their dates in
    runs/benchmark."""
    folders = [
        path if (path := Path(word)).is_dir() else Path(root) / "runs" / "benchmark" / word for word in (first, second)
    ]
    both = [read_results(folder) for folder in folders]
    names = [folder.name for folder in folders]
    heads = [f'<span style="color:{colour}">{escape(name)}</span>' for name, colour in zip(names, COLOURS)]
    body = "".join(summary(results) for results in both)
    for head, results in zip(heads, both):
        body += f"<h2>Regressions of {head}</h2>\n" + problems_list(problems_of(results))
    machines = [results["machine"] for results in both]
    cells = [
        (escape(key), *(escape(machine.get(key, "–")) for machine in machines))
        for key in {**machines[0], **machines[1]}
    ]
    body += "<h2>Machines</h2>\n" + table(("", *heads), cells)
    measures, rows = [measures_of(results) for results in both], []
    for what, measure in {**measures[0], **measures[1]}:
        old, new = (found.get((what, measure)) for found in measures)
        change = f"{(new - old) / abs(old):+.1%}" if old and new is not None else "–"
        rows.append(
            (escape(what), escape(measure), ("number", number(old)), ("number", number(new)), ("number", change))
        )
    body += "<h2>Measures</h2>\n" + table(("", "measure", *heads, "change"), rows)
    learnt = [{(row["game"], row["name"]): row["curves"] for row in results.get("learn", [])} for results in both]
    for game, name in {**learnt[0], **learnt[1]}:
        curves = [found.get((game, name), {}) for found in learnt]
        body += f"<h3>{escape(game)} · {escape(name)}</h3>\n" + curves_block({**curves[0], **curves[1]}, curves)
    path = folders[1] / f"compare_with_{names[0]}.html"
    text = page(f"cleanrl_games benchmarks, {names[0]} and {names[1]}", body)
    write_atomically(path, lambda temporary: temporary.write_text(text))
    return path
