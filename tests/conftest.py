"""What holds for all tests."""

import signal

# A runner that was started in the background ignores Ctrl-C, and so would every process that a test starts and
# interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
