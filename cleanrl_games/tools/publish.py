"""A finished run becomes a model to try: runs/pretrained/<script>/, small enough for the repository.

    python cleanrl_games/tools/publish.py runs/benchmark/<date>/osrs_fast

It keeps the model, the settings, the metrics (thinned), a picture of the curves, and about.yaml: the command, the
commit, the time it took, and what it reached. runs/pretrained/README.md lists all of them. A folder that is there
already is replaced as a whole.
"""

import dataclasses
import itertools
import json
import math
import os
import re
import shlex
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Annotated

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import tyro
import yaml

from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.files import write_atomically
from cleanrl_games.runtime.settings import check_settings, parse_flags, read_settings
from cleanrl_games.tools import curves, models

PRETRAINED = ROOT / "runs" / "pretrained"
FILES = ("model.zip", "config.yaml", "metrics.jsonl", "curve.png", "about.yaml")
MAX_BYTES = 8 << 20
METRICS_BYTES = 200_000
NOT_IN_COMMAND = ("exp_name", "run_dir", "config", "resume")
INTERVAL = ("_low", "_high", "_n")  # of an evaluation's score


@dataclasses.dataclass
class Args:
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """the folder of a finished run"""
    name: str = ""
    """the folder's name in runs/pretrained; empty = the script's"""
    command: str = ""
    """the command that made the run; empty = worked out from its settings"""
    metrics: tuple[str, ...] = ()
    """what curve.png shows; empty = the curves of the script's entry in benchmark.yaml"""
    output: str = str(PRETRAINED)
    """the folder that holds such folders"""


# ------------------------------------------------------------------------------------------------------------ the parts


def command_of(script, settings):
    """The command line that gives these settings: what differs from the defaults of the preset"""
    module = models.import_script(script)
    preset = getattr(module, "PRESETS", {}).get(settings.get("preset"), {})
    defaults = {**dataclasses.asdict(module.Args()), **preset}
    words = ["python", f"cleanrl_games/{script.name}"]
    for name, value in settings.items():
        plain = list(value) if isinstance(value, tuple) else value
        default = list(defaults[name]) if isinstance(defaults[name], tuple) else defaults[name]
        if name in NOT_IN_COMMAND or plain == default:
            continue
        flag = name.replace("_", "-")
        if isinstance(plain, bool):
            words.append(f"--{flag}" if plain else f"--no-{flag}")
        else:
            shown = [f"{item:g}" if isinstance(item, float) else str(item) for item in [plain]]
            words += [f"--{flag}", *(map(str, plain) if isinstance(plain, list) else shown)]
    return shlex.join(words)


def without_own_paths(settings):
    """Settings without this machine's folders: paths of this repository from its root, of others the last name"""

    def short(value):
        if not isinstance(value, str) or not Path(value).is_absolute():
            return value
        path = Path(value)
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name

    kept = {}
    for name, value in settings.items():
        kept[name] = [short(item) for item in value] if isinstance(value, (list, tuple)) else short(value)
    return {**kept, "run_dir": ""}


def thin(history):
    """Every row of an evaluation, the first, the last and as many others as fit into METRICS_BYTES; six digits each"""
    rows = [
        {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in row.items()}
        for row in history
    ]
    sizes = [len(json.dumps(row)) + 1 for row in rows]
    needed = {0, len(rows) - 1, *(at for at, row in enumerate(rows) if any(name.startswith("eval/") for name in row))}
    room = METRICS_BYTES - sum(sizes[at] for at in needed)
    others = [at for at in range(len(rows)) if at not in needed]
    step = max(1, math.ceil(sum(sizes[at] for at in others) / max(room, 1)))
    return [rows[at] for at in sorted(needed | set(others[::step]))]


def minutes_of(history):
    """A resumed run counts from zero again: the times of its parts are added"""
    times = [row["time"] for row in history]
    parts = [before for before, after in itertools.pairwise(times) if after < before]
    return (sum(parts) + times[-1]) / 60


def curves_for(run, script):
    """The curves of the run's entry in benchmark.yaml, found by its folder's name, else of the script's first entry"""
    table = yaml.safe_load((Path(__file__).parent / "benchmark.yaml").read_text())["learn"]
    entries = [(f"{game}_{entry['name']}", entry) for game, entries in table.items() for entry in entries]
    found = [(name, entry["curves"]) for name, entry in entries if entry.get("script") == script and "curves" in entry]
    return dict(found).get(Path(run).name) or (found[0][1] if found else [])


def results_of(figures):
    """What a run reached: the figures of its last evaluation that have an interval, or all where none has"""
    results = {
        name: round(value, 4)
        for name, value in figures.items()
        if name.startswith("eval/") and not name.endswith(INTERVAL)
    }
    return {name: value for name, value in results.items() if f"{name}_low" in figures} or results


def copy_model(source, path, settings):
    """model.zip with these settings in its metadata; the weights byte for byte"""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "metadata.json":
                metadata = json.loads(data)
                data = json.dumps({**metadata, "args": settings(metadata["args"])}, indent=1)
            new.writestr(name, data)


def index_page(folder):
    """README.md of all the models there"""
    rows = []
    for path in sorted(folder.glob("*/about.yaml")):
        about = yaml.safe_load(path.read_text())
        results = ", ".join(f"{name} {value:.3g}" for name, value in about["results"].items())
        rows.append(
            f"| `{path.parent.name}` | `{about['command']}` | {about['commit']} | {about['minutes']:.0f} | "
            f"{about['steps']:,} | {results} |"
        )
    return (
        "# Models to try\n\nEach folder holds one run's model, settings, metrics and curve. All tools take such a "
        "folder as a run, for example `python cleanrl_games/tools/evaluate.py runs/pretrained/<name>`.\n"
        "`tools/publish.py` made the folders and this page; `tests/test_pretrained.py` plays every model.\n\n"
        "| folder | command | commit | minutes | steps | at the end |\n|---|---|---|---|---|---|\n"
        + "".join(f"{row}\n" for row in rows)
    )


# ------------------------------------------------------------------------------------------------------------- the tool


def publish(args):
    run, model = Path(args.run), models.load(args.run)
    history = curves.read_history(run)
    script = models.SCRIPTS / model.metadata["script"]
    if not script.is_file():
        raise BadInput(f"{run} was made by {script.name}, which is no script of cleanrl_games/.")
    settings = check_settings(model.script.Args, read_settings(run / "config.yaml"), run / "config.yaml")
    paths = [str(item) for value in settings.values() for item in (value if isinstance(value, tuple) else [value])]
    own = [path for path in paths if Path(path).is_absolute() and path != settings["run_dir"]]
    if own and not args.command:
        raise BadInput(f"{run} was made with {own[0]}, which others do not have: say with --command how it is made.")
    name = args.name or script.stem
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise BadInput(f"--name should be the name of a folder, found {name!r}.")
    figures = {key: value for row in history for key, value in row.items()}  # the last of each
    about = {
        "script": script.name,
        "game": model.game,
        "command": args.command or command_of(script, settings),
        "commit": model.metadata.get("commit", ""),
        "network_hash": model.metadata["network_hash"],
        "contract_hash": model.metadata["contract_hash"],
        "steps": history[-1]["global_step"],
        "minutes": round(minutes_of(history), 1),
        "results": results_of(figures),
    }
    logged = [key for key in args.metrics or curves_for(run, script.name) if any(key in row for row in history)]
    drawn = logged or curves.usual_metrics([history])
    if not drawn:
        raise BadInput(f"{run} has logged nothing to draw: name some with --metrics.")

    output = Path(args.output)
    temporary = output / f".{name}.{os.getpid()}"
    temporary.mkdir(parents=True)
    try:
        copy_model(model.path, temporary / "model.zip", without_own_paths)
        text = yaml.safe_dump(without_own_paths(settings), sort_keys=False)
        (temporary / "config.yaml").write_text(text)
        (temporary / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in thin(history)))
        title = f"{about['command']}\n{about['steps']:,} steps in {about['minutes']:.0f} minutes"
        curves.plot({script.stem: [history]}, drawn, temporary / "curve.png", title)
        (temporary / "about.yaml").write_text(yaml.safe_dump(about, sort_keys=False, width=1000))
        size = sum(path.stat().st_size for path in temporary.iterdir())
        if size > MAX_BYTES:
            raise BadInput(f"{run} would take {size >> 20} MB in the repository; {MAX_BYTES >> 20} are allowed.")
        if (output / name).exists():
            shutil.rmtree(output / name)
        temporary.rename(output / name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    write_atomically(output / "README.md", lambda path: path.write_text(index_page(output)))
    return output / name, about, size


def main(argv=None):
    args = parse_flags(Args, __doc__, argv)
    folder, about, size = publish(args)
    print(f"{folder}: {size / 2**20:.1f} MB, made by {about['command']} at {about['commit'] or 'no commit'}")
    if "dirty" in about["commit"]:
        print("The run's code had changes that were not committed: nobody else can make this run.", file=sys.stderr)


if __name__ == "__main__":
    main()
