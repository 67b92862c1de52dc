"""How a run ends when something is wrong: with one sentence that says what, where, and what to do. No traceback unless
--debug.

BadInput    a flag, a file or a folder that cannot be used as it is; nothing has been written. Exit code 2
RunFailed   a run that had begun and cannot go on: it diverged, the disk is full, its actors keep dying. Exit code 1
"""

import sys
import traceback


class BadInput(Exception):
    exit_code = 2


class RunFailed(Exception):
    exit_code = 1


def first_line(error):
    """A foreign error in one line, for the end of a sentence."""
    return f"{type(error).__name__}: {str(error).strip() or 'empty file'}".splitlines()[0]


def end_in_sentences(debug=False):
    """From now on an uncaught BadInput or RunFailed is its sentence and its exit code, and so is a Ctrl-C that nobody
    handles. debug: with the traceback before it."""

    def report(kind, error, trace):
        if isinstance(error, KeyboardInterrupt) and not debug:
            print("Interrupted.", file=sys.stderr, flush=True)
            raise SystemExit(130)  # as a shell counts a death by SIGINT
        if not isinstance(error, BadInput | RunFailed):
            sys.__excepthook__(kind, error, trace)
            return
        if debug:
            traceback.print_exception(error)
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code)

    sys.excepthook = report
