"""Bounds and proofs of problems of 20 to 60 ops, held against models that share no file with them, and attacked by all methods.

Run it as `python benchmarks/compiler/claims.py --problems 2000 --first 0 --processes 2`. The problems are
`tests/support/inputs/claim_problems.py`, half of them in odd nanoseconds of seconds and odd bytes of GiB; the checks are
`tests/support/oracles/claim_checks.py`: what is claimed of all schedules, of those whose F and B are whole, and of whole blocks,
fused and split, each against a model of these. Problem number n is the same everywhere and always, and so is the work of each
method. A line for each defect, then what was checked; the exit status is 1 if there was a defect.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from benches.numbered_checks import run_numbered
from oracles.claim_checks import check_claims

if __name__ == "__main__":
    sys.exit(run_numbered(check_claims, "problems", __doc__.splitlines()[0] if __doc__ else ""))
