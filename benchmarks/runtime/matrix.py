"""Kinds of stages × ways to run them, every pair once: each trains as without a pipeline does, or is refused in one line.

Run it as `python benchmarks/runtime/matrix.py --seed 0`. The cells are those of `tests/support/runs/matrix.py`, each on four
processes. A line for each that is wrong, fails, hangs, or is refused on some ranks only; then what is right, and what is refused
with which words. The exit status is 1 if a cell is wrong.

With `--sharded`, instead: plans with ZeRO 3 whose ranks gather stages again and again, by four processes of FSDP2, in float64. A
line for each process: the largest error of losses, gradients and clipping; how many ops find those stages gathered that the plan
says; and the most that FSDP's weights and gradients hold, beside what the plan says.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from inputs.sharded_problems import plan_that_gathers_again
from runs import wrapped_runs
from runs.matrix import cells, check_cell
from runs.processes import rank_processes

LARGEST_ERROR, LARGEST_SHARE = 1e-12, 0.05


def check_sharded() -> int:
    """Print a line for each process; 1 if a step is wrong, or not as planned."""
    wrong = 0
    for backwards in ("fused", "split"):
        plan = plan_that_gathers_again(split=backwards == "split")
        with tempfile.TemporaryDirectory() as name, rank_processes(4, Path(name), "runs.wrapped_runs") as ranks:
            results = ranks.run(wrapped_runs.gathered_as_planned, plan)
        for number, found in enumerate(results):
            if not isinstance(found, list):
                print(f"{backwards} backwards, process {number}: FAILED: {' '.join(str(found).split())[:400]}")
                wrong += 1
                continue
            error, held, planned = found
            most, said = (max(own for _, own in each) for each in (held, planned))
            places = sum(one == other for (one, _), (other, _) in zip(held, planned, strict=True))
            is_right = error < LARGEST_ERROR and places == len(planned) and abs(most / said - 1) <= LARGEST_SHARE
            wrong += not is_right
            print(
                f"{backwards} backwards, process {number}: largest error {error:.1e}; {places} of {len(planned)} ops find the"
                f" stages gathered that are planned; holds {most:,} B at most, planned {said:,} B: {most / said:.3f}"
                f"{'' if is_right else ' WRONG'}"
            )
    return 1 if wrong else 0


def main() -> int:
    """Run the cells; after one that is wrong in processes of their own, as these may be anywhere."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=0, help="which cells")
    parser.add_argument("--first", type=int, default=0, help="the first cell's number")
    parser.add_argument("--cells", type=int, default=1000, help="at most this many")
    parser.add_argument("--sharded", action="store_true", help="weights that plans gather and release, instead of cells")
    options = parser.parse_args()
    if options.sharded:
        return check_sharded()
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
