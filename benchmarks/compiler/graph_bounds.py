"""Analytic bounds of tiny graphs and slices held against brute force; and what warm-up and idle gaps add on larger graphs.

Run it as `python benchmarks/compiler/graph_bounds.py --problems 1000 --processes 2`. The checks are `check_bounds` in
`tests/support/oracles/graph_checks.py`. Problem number n is the same everywhere and always. A line for each defect, then what was
checked; gaps are sums over the larger graphs. The exit status is 1 if there was a defect.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from benches.numbered_checks import run_numbered
from oracles.graph_checks import check_bounds

if __name__ == "__main__":
    sys.exit(run_numbered(check_bounds, "problems", __doc__.splitlines()[0] if __doc__ else ""))
