"""Kinds of stages × ways to run them, every pair once: each trains as without a pipeline does, or is refused in one line.

Run it as `python benchmarks/runtime/matrix.py --seed 0`. The cells are those of `tests/support/runs/matrix.py`, each on four
processes. A line for each that is wrong, fails, hangs, or is refused on some ranks only; then what is right, and what is refused
with which words. The exit status is 1 if a cell is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from runs.matrix import cells, check_cell
from runs.processes import rank_processes


def main() -> int:
    """Run the cells; after one that is wrong in processes of their own, as these may be anywhere."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=0, help="which cells")
    parser.add_argument("--first", type=int, default=0, help="the first cell's number")
    parser.add_argument("--cells", type=int, default=1000, help="at most this many")
    options = parser.parse_args()
    counts, defects = Counter[str](), 0
    waiting = list(enumerate(cells(options.seed)))[options.first :][: options.cells]
    while waiting:
        with tempfile.TemporaryDirectory() as name, rank_processes(4, Path(name), "runs.matrix_runs") as ranks:
            while waiting:
                number, cell = waiting.pop(0)
                folder = Path(name) / str(number)
                folder.mkdir()
                try:
                    said = [f"{finding.kind}: {finding.message}" for finding in check_cell(cell, ranks, folder, counts)]
                except AssertionError as error:
                    said = [f"hangs: {cell}: {error}"]
                for line in said:
                    print(f"FAILED {number}: {' '.join(line.split())[:400]}", flush=True)
                defects += len(said)
                if said:
                    break
    for what, count in sorted(counts.items()):
        print(f"{count:5}  {what}")
    print(f"{defects} defects")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
