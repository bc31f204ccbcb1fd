"""Bounds and proofs of the period held against brute force over all orders and steps of tiny problems.

Run it as `python benchmarks/asynchronous/tiny_periods.py --problems 700 --first 0 --processes 2`. The checks, and what the problems
are, is `tests/support/oracles/period_checks.py`. Problem number n is the same everywhere and always. A line for each defect, then
what was checked; the exit status is 1 if there was a defect.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from benches.numbered_checks import run_numbered
from oracles.period_checks import check_period

if __name__ == "__main__":
    sys.exit(run_numbered(check_period, "problems", __doc__.splitlines()[0] if __doc__ else ""))
