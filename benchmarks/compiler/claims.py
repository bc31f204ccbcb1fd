"""Bounds and proofs of problems of 20 to 60 ops, held against models that share no file with them, and attacked by all methods.

Run it as `python benchmarks/compiler/claims.py --problems 2000 --first 0 --processes 2`. The problems are
`tests/support/inputs/claim_problems.py`, half of them in odd nanoseconds of seconds and odd bytes of GiB, half on trunks that links
share; the checks are `tests/support/oracles/claim_checks.py`: what is claimed of all schedules, of those whose F and B are whole,
and of whole blocks, fused and split, each against a model of these. Problem number n is the same everywhere and always, and so is
the work of each method. A line for each defect, then what was checked; the exit status is 1 if there was a defect.

`python benchmarks/compiler/claims.py --bounds 2000` prints how often each analytic bound is the largest, and by how much it is
above the second where it is so alone, on such problems of 20 to 288 ops, by kind.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from statistics import mean
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from benches.numbered_checks import run_numbered
from inputs.claim_problems import drawn_problem
from oracles.claim_checks import check_claims

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.ir import Kind
from schedc.solvers.common.method import fusing_saves_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir import Problem


def kinds_of(problem: Problem) -> Iterator[str]:
    """The rows of the table in which the problem counts."""
    longest_ns = max(max(stage.durations_ns(Kind.F)) for stage in problem.stages)
    is_slow = any(link.latency_ns + link.occupancy_ns(0) > longest_ns for link in problem.links)
    yield "all"
    yield "one stage on each rank" if len(problem.stages) == problem.ranks else "several stages on a rank"
    yield "memory limits" if any(limit is not None for limit in problem.memory_limit_bytes) else "no memory limits"
    yield "a message slower than any F" if is_slow else "fast links"
    yield "fused takes less" if fusing_saves_time(problem) else "fused takes no less"
    yield f"minimize {problem.objective}"


def print_bounds(count: int) -> None:
    """The table, in Markdown."""
    found: dict[str, list[dict[str, int]]] = {}
    for number in range(count):
        problem = drawn_problem(Random(number), least_ops=20, most_ops=300, most_units=10**6)
        values = {str(bound.name): bound.value_ns for bound in lower_bounds(problem)}
        for kind in kinds_of(problem):
            found.setdefault(kind, []).append(values)
    names = [*found["all"][0]]
    print("| problems | |", " | ".join(f"`{name}`" for name in names), "|")
    print("|---|---:|" + "---:|" * len(names))
    for kind in ("all", *sorted(set(found) - {"all"})):
        print(f"| {kind} | {len(found[kind])} |", " | ".join(cell(name, found[kind]) for name in names), "|")


def cell(name: str, found: list[dict[str, int]]) -> str:
    """In how many problems no bound is larger; in how many each other one is less, and by how much in the mean and at most."""
    largest = sum(values[name] == max(values.values()) for values in found)
    over = [1 - max(value for other, value in values.items() if other != name) / max(1, values[name]) for values in found]
    alone = [each for each in over if each > 0]
    return f"{largest / len(found):.0%}" + (
        f"; {len(alone) / len(found):.0%} by {mean(alone):.1%}, {max(alone):.0%}" if alone else ""
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bounds"]:
        print_bounds(int(sys.argv[2]))
        sys.exit()
    sys.exit(run_numbered(check_claims, "problems", __doc__.splitlines()[0] if __doc__ else ""))
