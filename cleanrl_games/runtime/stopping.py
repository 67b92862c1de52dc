"""When a run ends: a signal, a limit, a loss that is not finite."""

import os
import signal

from cleanrl_games.runtime.errors import RunFailed


class Interrupted(BaseException):
    """Ends the work of `until_stopped`; nobody else sees it."""


class Stopping(list):
    """Empty until Ctrl-C or SIGTERM comes."""

    interrupts = False  # whether what is done at the moment may be left in the middle


heard_early = []


def listen_early():
    """From now on a Ctrl-C that is lost on its way is remembered for `stop_on_signals`. Python drops the exception
    where it comes up inside a callback of foreign code, like an emulator's."""

    def hear(*_):
        heard_early.append(True)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if the shell says to ignore it
        signal.signal(signal.SIGINT, hear)


def say(text):
    """In a signal's handler. A signal that comes in the middle of a print() cannot print: Python raises RuntimeError
    (reentrant call), and the run would end with a traceback."""
    try:
        print(text, flush=True)
    except RuntimeError:
        os.write(1, f"{text}\n".encode())


def stop_on_signals(after="update"):
    """Ctrl-C or SIGTERM fills the list that is returned, and the run stops when it next looks; a second one stops it at
    once."""
    stopping = Stopping(heard_early)

    def stop(*_):
        if stopping:
            raise KeyboardInterrupt
        stopping.append(True)
        if stopping.interrupts:
            say("Stopping; what is half done here is left out.")
            raise Interrupted
        say(f"Stopping after this {after}; Ctrl-C again to stop at once.")

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return stopping


def until_stopped(stopping, work, *arguments, **settings):
    """work(…) → what it returns, {} if a signal has come before or comes meanwhile. For what takes long and may be left
    in the middle, like an evaluation: training's next look at `stopping` would be minutes away."""
    if stopping:
        return {}
    try:
        try:
            stopping.interrupts = True
            return work(*arguments, **settings)
        finally:
            stopping.interrupts = False
    except Interrupted:
        return {}


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
    import torch  # not above: settings are read without it

    if losses and not torch.isfinite(torch.stack(losses)).all():
        raise RunFailed(
            "The loss is not finite. The last good state is in the checkpoint; try a smaller --learning-rate."
        )
