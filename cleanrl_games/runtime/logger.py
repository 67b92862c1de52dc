"""Scalars to TensorBoard, metrics.jsonl and W&B; a live view in a terminal, plain lines elsewhere."""

import dataclasses
import json
import secrets
import subprocess
import sys
import time

from cleanrl_games.runtime import jit
from cleanrl_games.runtime.files import write_atomically

# TensorBoard, which ends when its standard input does: with the run, however that ends.
TENSORBOARD = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
from tensorboard.main import run_main
run_main()
"""


def wandb_id(folder):
    """The run's W&B id, kept in its folder: a run that is resumed goes on in the same W&B run."""
    path = folder / "wandb_id.txt"
    if not path.exists():
        write_atomically(path, lambda temporary: temporary.write_text(secrets.token_hex(4)))
    return path.read_text().strip()


def first_words(args):
    """What a run does before it has anything to show"""
    workers = getattr(args, "num_workers", 0)
    doing = f"Starting {workers} actor{'s' * (workers > 1)}." if workers else "The actor plays in this process."
    if jit.uncompiled:
        doing += " The game's rules are compiled first (half a minute, once)."
    return f"{doing} The first figures come with the first update. Ctrl-C ends the run and leaves a checkpoint."


class Logger:
    """Scalars to TensorBoard, metrics.jsonl and, under --track, W&B; a live view in a terminal, else plain lines."""

    def __init__(self, args, folder, start_step=0, starting=""):
        """starting: what is said until there are figures; empty = that actors are starting"""
        from torch.utils.tensorboard import SummaryWriter  # here, so that actors need not load TensorBoard

        self.args, self.start, self.live, self.wandb, self.tensorboard, self.last = (
            args,
            time.time(),
            None,
            None,
            None,
            {},
        )
        self.writer = SummaryWriter(folder, purge_step=start_step or None)
        self.file = open(folder / "metrics.jsonl", "a", buffering=1)  # noqa: SIM115 (open as long as the run)
        if args.track:
            import wandb  # takes seconds

            self.wandb = wandb.init(
                project=args.wandb_project_name,
                entity=args.wandb_entity or None,
                name=args.wandb_run_name or folder.name,
                id=wandb_id(folder),
                resume="allow",
                dir=folder,
                config=dataclasses.asdict(args),
            )
            self.wandb.define_metric("*", step_metric="global_step")
        if args.tensorboard:
            self._start_tensorboard(folder)
        if sys.stdout.isatty():
            from rich.live import Live

            self.live = Live(starting or first_words(args), refresh_per_second=4)
            self.live.start()
        else:
            print(starting or first_words(args), flush=True)

    def _start_tensorboard(self, folder):
        flags = ["--logdir", str(folder), "--host", "127.0.0.1", "--port", "0"]
        self.tensorboard = subprocess.Popen(
            [sys.executable, "-c", TENSORBOARD, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,  # a terminal's Ctrl-C is the run's to handle
        )
        for line in self.tensorboard.stderr:
            if "http://" in line:
                print(f"TensorBoard: {line[line.index('http://') :].split()[0]}", flush=True)
                return
        print("TensorBoard did not start; the events are in the run's folder all the same.", flush=True)

    def write(self, metrics, step, done):
        """`done`: the finished share of the run."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.file.write(json.dumps({"global_step": step, "time": round(time.time() - self.start, 2), **metrics}) + "\n")
        if self.wandb:
            self.wandb.log({"global_step": step, **metrics})
        self.last |= metrics
        if self.live:
            self.live.update(self._view(step, done))
        else:
            groups = ("charts/", "win_rate/", "elo/", "eval/")
            shown = [
                f"{name} {value:.4g}"
                for name, value in metrics.items()
                if name.startswith(groups) and not name.endswith("_n")
            ]
            print(f"{step:>12,} steps {done:>4.0%}  {'  '.join(shown)}", flush=True)

    def _view(self, step, done):
        from rich.columns import Columns
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        panels = []
        groups = {
            "progress": ("charts/",),
            "games": ("win_rate/", "elo/", "eval/"),
            "time": ("stats/",),
            "losses": ("losses/",),
        }
        for title, prefixes in groups.items():
            shown = {
                name: value
                for name, value in self.last.items()
                if name.startswith(prefixes) and not name.endswith("_n")
            }
            lines = [f"{name:<26}[bold]{value:>9,.4g}[/]" for name, value in shown.items()]
            panels.append(Panel("\n".join(lines), title=title))
        minutes = (time.time() - self.start) / 60
        rows = Table.grid(expand=True)
        rows.add_row(ProgressBar(total=1.0, completed=min(done, 1.0)))
        rows.add_row(Columns(panels))
        title = (
            f"{self.args.exp_name} · {self.args.env_id} · seed {self.args.seed} · {step:,} steps · {minutes:.1f} min "
            f"· {done:.0%}"
        )
        return Panel(rows, title=title)

    def close(self):
        if self.live:
            self.live.stop()
        if self.wandb:
            self.wandb.finish()
        if self.tensorboard:
            self.tensorboard.terminate()
            self.tensorboard.wait()
        self.writer.close()
        self.file.close()
