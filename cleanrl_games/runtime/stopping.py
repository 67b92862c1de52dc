"""When a run ends: a signal, a limit, a loss that is not finite."""

import signal

import torch

from cleanrl_games.runtime.errors import RunFailed


def stop_on_signals(after="update"):
    """Ctrl-C or SIGTERM fills the list that is returned, and the run stops when it next looks; a second one stops it at
    once."""
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
        raise RunFailed(
            "The loss is not finite. The last good state is in the checkpoint; try a smaller --learning-rate."
        )
