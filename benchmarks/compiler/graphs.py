"""Bounds, CP-SAT and MILP of tiny graphs and of slices, held against brute force: what is proven, and that nothing is too high.

Run it as `python benchmarks/compiler/graphs.py --problems 350 --first 0 --processes 2`. The checks, and what the problems are, is
`tests/support/oracles/graph_checks.py`. Problem number n is the same everywhere and always. A line for each defect, then what was
checked; the exit status is 1 if there was a defect.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from benches.numbered_checks import run_numbered
from oracles.graph_checks import check_graph

if __name__ == "__main__":
    sys.exit(run_numbered(check_graph, "problems", __doc__.splitlines()[0] if __doc__ else ""))
