#!/usr/bin/env bash
# benchmark.sh smoke [script]   every script for a few steps
# benchmark.sh speed [game]     ratios against the alternative in the same run; the last line is one JSON object
# benchmark.sh learn [game]     fixed seeds and budgets against committed expected ranges; also learn game/entry
# benchmark.sh all              these three and the slow tests; says how long it may take
# … --minutes N                 learn, all: shortens the learning runs to fit; their results are then shown, not judged
# … --seeds N                   learn: each script's run with N seeds; their curves are a mean with a band
# … --skip proof                all: without the slow tests; also smoke, speed
# benchmark.sh mutants          puts small faults into a copy of the code, one at a time: do the tests notice?
# benchmark.sh --compare A B    two folders of runs/benchmark side by side
# Each writes runs/benchmark/<date>/report.html; exit code 1 names each regression.
set -euo pipefail
cd "$(dirname "$0")"
if [ ! -x .venv/bin/python ]; then
  python3 -m venv .venv && .venv/bin/pip install -q --disable-pip-version-check -r requirements.txt
fi
if [ "${1:-}" = mutants ]; then
  exec .venv/bin/python cleanrl_games/tools/mutants.py "${@:2}"
fi
exec .venv/bin/python cleanrl_games/tools/benchmark.py "$@"
