"""A run's paperwork: settings, files, logs and the live view. Nothing here can change a learning curve.

Settings:  defaults < preset < the resumed run's config.yaml < --config FILE < flags
Folder:    runs/<run>/ config.yaml, script.py (as it ran), metrics.jsonl, TensorBoard events, checkpoint.pt, model.zip
"""

import dataclasses
import difflib
import functools
import hashlib
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
import tyro
import yaml

# ------------------------------------------------------------------------------------------------------------- settings


def check_settings(cls, values, source):
    """Settings from a file, checked key by key: a misspelt one is an error that suggests the right one."""
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    if not isinstance(values, dict):
        raise SystemExit(f"{source} should be a YAML mapping of settings, found {type(values).__name__}.")
    checked = {}
    for name, value in values.items():
        if name not in defaults:
            close = difflib.get_close_matches(str(name), defaults, n=1)
            raise SystemExit(f"{source}: unknown setting {name!r}" + (f", did you mean {close[0]!r}?" if close else "."))
        default = defaults[name]
        if isinstance(default, tuple) and isinstance(value, list):
            value = tuple(value)
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise SystemExit(f"{source}: {name} should be a {type(default).__name__}, found {value!r}.")
        checked[name] = value
    return checked


def latest_run(exp_name):
    """The run of this name whose checkpoint is the newest, for a bare --resume."""
    found = sorted(Path("runs").glob(f"*__{exp_name}__*/checkpoint.pt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SystemExit(f"There is no run of {exp_name} in ./runs to go on with: give --resume a run's folder.")
    return str(found[-1].parent)


def parse_args(cls, presets, argv=None, aliases=None):
    """Reads flags into the script's Args. What was said more specifically wins. `aliases`: what else a flag may be called."""
    argv = list(sys.argv[1:] if argv is None else argv)
    words = [word for flag in argv for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
    words = [(aliases or {}).get(word, word) for word in words]
    for at, word in enumerate(words):
        if word == "--resume" and (at + 1 == len(words) or words[at + 1].startswith("--")):
            words.insert(at + 1, latest_run(cls.exp_name))
    said = {name: words[words.index(f"--{name}") + 1] for name in ("preset", "resume", "config") if f"--{name}" in words[:-1]}
    files = []
    if "resume" in said:
        files.append(run_folder(said["resume"]) / "config.yaml")
    if "config" in said:
        files.append(Path(said["config"]))
    values = {}
    for file in files:
        try:
            content = yaml.safe_load(file.read_text()) or {}
        except (OSError, yaml.YAMLError) as error:
            raise SystemExit(f"Cannot read the settings in {file}: {error}") from None
        values |= check_settings(cls, content, file)
    preset = presets.get(said.get("preset", values.get("preset")), {})
    description = sys.modules[cls.__module__].__doc__
    return tyro.cli(cls, default=cls(**{**preset, **values}), args=words, description=description)


def choose_amp(amp, device):
    """→ (dtype, enabled). bf16 on a CPU can kill the process, so a subprocess tries it first."""
    if amp == "auto":
        amp = "off" if device.type == "cpu" else "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    if amp == "bf16" and device.type == "cpu":
        trial = (
            "import torch; m = torch.nn.Linear(64, 64)\nwith torch.autocast('cpu', torch.bfloat16): m(torch.randn(64, 64)).sum().backward()"
        )
        if subprocess.run([sys.executable, "-c", trial], capture_output=True).returncode != 0:
            print("This CPU cannot compute in bf16: --amp falls back to off.", flush=True)
            amp = "off"
    if amp == "fp16" and device.type == "cpu":
        print("fp16 is for CUDA: --amp falls back to off on the CPU.", flush=True)
        amp = "off"
    return torch.float16 if amp == "fp16" else torch.bfloat16, amp != "off"


def set_up(args):
    """Threads, seed and --device, --amp → (device, autocast, scaler); `with autocast():` is for forward passes."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device)
    dtype, enabled = choose_amp(args.amp, device)
    autocast = functools.partial(torch.autocast, device.type, dtype, enabled=enabled)
    return device, autocast, torch.amp.GradScaler(device.type, enabled=enabled and dtype == torch.float16)


def compiled(args, function, device, obstacle=""):
    """The learner's forward pass under --compile; where that would have no effect, says why and leaves it as it is."""
    if args.compile and device.type == "cpu" and not shutil.which("g++"):
        obstacle = obstacle or "there is no C++ compiler"
    if args.compile and obstacle:
        print(f"--compile falls back to off: {obstacle}.", flush=True)
    return torch.compile(function) if args.compile and not obstacle else function


def stop_on_signals(after="update"):
    """Ctrl-C or SIGTERM fills the list that is returned, and the run stops when it next looks; a second one stops it at once."""
    stopping = []

    def stop(*_):
        if stopping:
            raise KeyboardInterrupt
        stopping.append(True)
        print(f"Stopping after this {after}; Ctrl-C again to stop at once.", flush=True)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return stopping


def progress(args, global_step, seconds, update=0):
    """How much of a run is done, by whichever of its limits comes first."""
    shares = [global_step / args.total_timesteps]
    if args.max_minutes:
        shares.append(seconds / 60 / args.max_minutes)
    if getattr(args, "max_updates", 0):
        shares.append(update / args.max_updates)
    return max(shares)


def check_finite(losses):
    """Ends a run that has diverged, before its weights are saved or handed to anybody."""
    if losses and not torch.isfinite(torch.stack(losses)).all():
        raise SystemExit("The loss is not finite. The last good state is in the checkpoint; try a smaller --learning-rate.")


# ---------------------------------------------------------------------------------------------------------------- files


def write_atomically(path, write):
    """`write(temporary path)`, then rename: a reader never sees half a file, and a full disk leaves the old one."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def run_folder(path):
    """A run's folder, from itself or from a checkpoint in it."""
    return Path(path) if Path(path).is_dir() else Path(path).parent


def make_run_folder(args, script):
    """Makes runs/{env}__{exp}__{seed}__{time} with the settings and the script in it; --resume goes on in the old one."""
    if args.resume:
        folder = run_folder(args.resume)
    else:
        folder = Path(args.run_dir or f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}")
        if (folder / "checkpoint.pt").exists():
            raise SystemExit(f"{folder} holds a run already: go on with --resume {folder}, or choose another --run-dir.")
    folder.mkdir(parents=True, exist_ok=True)
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(args).items() if k not in ("config", "resume")}
    write_atomically(folder / "config.yaml", lambda path: path.write_text(yaml.safe_dump(settings, sort_keys=False)))
    running_hash(script)
    if Path(script).resolve() != (folder / "script.py").resolve():
        write_atomically(folder / "script.py", lambda path: shutil.copyfile(script, path))
    print(f"run folder: {folder}", flush=True)
    return folder


def first_line(error):
    return f"{type(error).__name__}: {str(error).strip() or 'empty file'}".splitlines()[0]


def load_checkpoint(path, contract_hash=""):
    """What a run has to go on from; one that saw and did other things than the game does now is refused."""
    path = Path(path) / "checkpoint.pt" if Path(path).is_dir() else Path(path)
    if not path.exists():
        raise SystemExit(f"There is no checkpoint at {path}. Give --resume a run's folder or its checkpoint.pt.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file; each means the same to the user
        raise SystemExit(f"{path} is not a readable checkpoint: {first_line(error)}") from None
    if contract_hash and checkpoint.get("contract_hash", contract_hash) != contract_hash:
        raise SystemExit(
            f"{path} sees and does other things (contract {checkpoint['contract_hash']}, here {contract_hash}): go on with the commit "
            "that it was made with, or start a new run."
        )
    return checkpoint


def restore(checkpoint, **parts):
    """Modules, optimizers and tensors get back what the checkpoint has under their names."""
    try:
        for name, part in parts.items():
            if isinstance(part, torch.Tensor):
                part.copy_(checkpoint[name])
            else:
                part.load_state_dict(checkpoint[name])
    except (RuntimeError, ValueError) as error:
        what = "network or league" if "snapshots" in parts else "network"
        raise SystemExit(f"The checkpoint is of another {what} than these settings describe: {error}") from None


def file_hash(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


@functools.cache
def running_hash(script):
    """Of the script as it was when its run began: whoever edits the file meanwhile does not change what runs."""
    return file_hash(script)


def save_model(path, weights, statistics, metadata, args, script):
    """A policy for others, one zip: weights, normalisation, and what it takes to know what this is. Makes the folder it goes to."""
    metadata = {**metadata, "script": Path(script).name, "script_hash": running_hash(script), "args": dataclasses.asdict(args)}
    policy, rms = io.BytesIO(), io.BytesIO()
    torch.save({name: tensor.cpu() for name, tensor in weights.items()}, policy)
    np.savez(rms, **statistics)

    def write(temporary):
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("policy.pth", policy.getvalue())
            file.writestr("obs_rms.npz", rms.getvalue())
            file.writestr("metadata.json", json.dumps(metadata, indent=1))

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write)


def read_model(path):
    """A run's folder or a model.zip → (weights, metadata)"""
    path = Path(path) / "model.zip" if Path(path).is_dir() else Path(path)
    try:
        with zipfile.ZipFile(path) as file:
            weights = torch.load(io.BytesIO(file.read("policy.pth")), map_location="cpu", weights_only=True)
            return weights, json.loads(file.read("metadata.json"))
    except FileNotFoundError:
        raise SystemExit(f"There is no model at {path}.") from None
    except Exception as error:  # zip, JSON and torch each have their own ways to say that a file is damaged
        raise SystemExit(f"{path} is not a readable model: {first_line(error)}") from None


def load_agent(path, contract_hash, make_agent, args=None, sizes=()):
    """A run's folder or a model.zip → (agent, metadata). `make_agent(settings)` builds the network that the weights are for.

    `args`: of the run whose league it is to join, where all networks are alike in the settings named by `sizes`."""
    weights, metadata = read_model(path)
    if metadata.get("contract_hash") != contract_hash:
        raise SystemExit(f"{path} was trained on contract {metadata.get('contract_hash')}, not {contract_hash}: it cannot play here.")
    try:
        if args and any(getattr(args, name) != metadata["args"][name] for name in sizes):
            flags = " ".join(f"--{name.replace('_', '-')} {metadata['args'][name]}" for name in sizes)
            raise SystemExit(
                f"{path} is a network of other sizes than this run's, and cannot stand in its pool: start this run with {flags}."
            )
        agent = make_agent(metadata["args"]).eval()
        agent.load_state_dict(weights)
    except (RuntimeError, KeyError) as error:
        raise SystemExit(f"{path} is of another network than this script's: {error}") from None
    return agent, metadata


def take_over(agent, path, flag, contract_hash, action_space):
    """Copies the tensors of a model that fit, and says of each whether it did. `flag` is what the user gave the path to."""
    weights, metadata = read_model(path)
    if metadata.get("action_space") != action_space:
        raise SystemExit(
            f"{flag} {path}: its action space is {metadata.get('action_space', 'not named')}, not {action_space}: its heads mean other "
            "actions. Give a model of this game's scripts."
        )
    if metadata.get("contract_hash") != contract_hash:
        raise SystemExit(
            f"{flag} {path}: its observations are of contract {metadata.get('contract_hash')}, not {contract_hash}: the same columns would "
            "mean other things. Train it again."
        )
    own = agent.state_dict()
    fits = {name: name in weights and weights[name].shape == tensor.shape for name, tensor in own.items()}
    for name, tensor in own.items():
        found = f"the model's is {tuple(weights[name].shape)}" if name in weights else "the model has none"
        print(f"{flag}: {name} {tuple(tensor.shape)} {'taken over' if fits[name] else f'left as it was, {found}'}", flush=True)
    for name in weights.keys() - own.keys():
        print(f"{flag}: {name} {tuple(weights[name].shape)} of the model has no place here", flush=True)
    if not any(fits.values()):
        raise SystemExit(
            f"{flag} {path}: no tensor of it fits this network; the flags of its size (--help) must be those it was made with."
        )
    agent.load_state_dict({name: weights[name] if fits[name] else tensor for name, tensor in own.items()})


# ----------------------------------------------------------------------------------------------------------------- logs


def wilson(rate, games, z=1.96):
    """A rate seen in so many games → (rate, low, high) of its 95 % interval."""
    spread = z * math.sqrt(rate * (1 - rate) / games + (z / games / 2) ** 2)
    low, high = ((rate + z * z / games / 2 + sign * spread) / (1 + z * z / games) for sign in (-1, 1))
    return rate, max(low, 0.0), min(high, 1.0)


def score_metrics(name, scores):
    """Scores of an evaluation's games → their mean as eval/<name>, its 95 % interval (Wilson) and how many they were."""
    rate, low, high = wilson(float(scores.mean()), len(scores))
    return {f"eval/{name}": rate, f"eval/{name}_low": low, f"eval/{name}_high": high, f"eval/{name}_n": len(scores)}


def to_device(tensor, device):
    """On CUDA through pinned memory, so that the copy need not be waited for."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def result_metrics(results, kinds):
    """Rows of (kind of opponent, member, score, length) of the games that ended → win_rate/<kind>, how many, their mean length."""
    metrics = {"charts/episodic_length": float(results[:, 3].mean())} if len(results) else {}
    for kind, name in enumerate(kinds):
        scores = results[results[:, 0] == kind, 2]
        if len(scores):
            metrics |= {f"win_rate/{name}": float(scores.mean()), f"win_rate/{name}_n": len(scores)}
    return metrics


def loss_metrics(names, losses):
    """Rows of losses in the order of `names` (words) → losses/<name>, their means; none if there are no rows."""
    means = torch.stack(losses).mean(0).tolist() if losses else []
    return {f"losses/{name}": mean for name, mean in zip(names.split(), means)}


def time_metrics(lag, queue_size, seconds, learn_time, wait_time):
    """stats/*: how many versions the rollouts were behind (a tensor), and where the time went: `seconds` are of rollout, inference and
    simulator."""
    rollout_time, inference_time, simulator_time = seconds
    return {
        "stats/policy_lag_mean": float(lag.mean()),
        "stats/policy_lag_max": float(lag.max()),
        "stats/queue_size": queue_size,
        "stats/rollout_time": rollout_time,
        "stats/inference_time": inference_time,
        "stats/simulator_time": simulator_time,
        "stats/learn_time": learn_time,
        "stats/wait_time": wait_time,
    }


class Logger:
    """Scalars to TensorBoard, metrics.jsonl and, under --track, W&B; a live view in a terminal, else plain lines."""

    def __init__(self, args, folder, start_step=0):
        from torch.utils.tensorboard import SummaryWriter  # here, so that actors need not load TensorBoard

        self.args, self.start, self.live, self.wandb, self.tensorboard, self.last = args, time.time(), None, None, None, {}
        self.writer = SummaryWriter(folder, purge_step=start_step or None)
        self.file = open(folder / "metrics.jsonl", "a", buffering=1)  # noqa: SIM115 (open as long as the run)
        if args.track:
            import wandb  # takes seconds

            settings = {"project": args.wandb_project_name, "entity": args.wandb_entity or None, "config": dataclasses.asdict(args)}
            self.wandb = wandb.init(name=folder.name, dir=folder, **settings)
            self.wandb.define_metric("*", step_metric="global_step")
        if args.tensorboard:
            self._start_tensorboard(folder)
        if sys.stdout.isatty():
            from rich.live import Live

            self.live = Live(refresh_per_second=4)
            self.live.start()

    def _start_tensorboard(self, folder):
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1", "--port", "0"]
        self.tensorboard = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
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
                f"{name.split('/')[-1]} {value:.4g}"
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
        groups = {"progress": ("charts/",), "games": ("win_rate/", "elo/", "eval/"), "time": ("stats/",), "losses": ("losses/",)}
        for title, prefixes in groups.items():
            shown = {name: value for name, value in self.last.items() if name.startswith(prefixes) and not name.endswith("_n")}
            lines = [f"{name.replace('eval/', 'eval ').split('/')[-1]:<19}[bold]{value:>9,.4g}[/]" for name, value in shown.items()]
            panels.append(Panel("\n".join(lines), title=title))
        minutes = (time.time() - self.start) / 60
        rows = Table.grid(expand=True)
        rows.add_row(ProgressBar(total=1.0, completed=min(done, 1.0)))
        rows.add_row(Columns(panels))
        title = f"{self.args.exp_name} · {self.args.env_id} · seed {self.args.seed} · {step:,} steps · {minutes:.1f} min · {done:.0%}"
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
