"""Where a run computes: threads, seed, device, mixed precision, compilation."""

import functools
import shutil
import subprocess
import sys

import torch


def choose_amp(amp, device):
    """→ (dtype, enabled). bf16 on a CPU can kill the process, so a subprocess tries it first."""
    if amp == "auto":
        amp = "off" if device.type == "cpu" else "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    if amp == "bf16" and device.type == "cpu":
        trial = (
            "import torch; m = torch.nn.Linear(64, 64)\nwith torch.autocast('cpu', torch.bfloat16): m(torch.randn(64, "
            "64)).sum().backward()"
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


def maybe_compile(args, function, device, obstacle=""):
    """The learner's forward pass under --compile; where that would have no effect, says why and leaves it as it is."""
    if args.compile and device.type == "cpu" and not shutil.which("g++"):
        obstacle = obstacle or "there is no C++ compiler"
    if args.compile and obstacle:
        print(f"--compile falls back to off: {obstacle}.", flush=True)
    return torch.compile(function) if args.compile and not obstacle else function


def to_device(tensor, device):
    """On CUDA through pinned memory, so that the copy need not be waited for."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
