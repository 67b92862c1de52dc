"""What holds for all tests."""

import os
import signal

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch, as in the scripts

import torch

# A runner that was started in the background ignores Ctrl-C, and so would every process that a test starts and
# interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests compute little at a time. With more threads, a test beside other work waits for the slowest of them: the same
# rollout of 20 ticks took 3 to 12 s instead of 0.2.
torch.set_num_threads(1)
