"""Plans with a split head: losses and gradients are those of one process with the whole head, in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from inputs.graphs import plan_in_any_order
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import split_head_runs
from runs.harness import assert_exact

from schedc.ir import Edge
from schedc.ir.network import Link
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runs.processes import Ranks

    from schedc.ir.problem import Problem


def with_parts(ranks: int, parts: int, microbatches: int, slices: Sequence[int] = (), **options: Any) -> Problem:
    """A block on each rank, parts of the head on the ranks in turn, and the join on the last."""
    places = [*range(ranks), *(part % ranks for part in range(parts)), ranks - 1]
    count = microbatches * max(1, len(slices))
    join = len(places) - 1
    ends = [(at, at + 1) for at in range(ranks - 1)]
    ends += [(ranks - 1, at) for at in range(ranks, join)] + [(at, join) for at in range(ranks, join)]
    edges = tuple(Edge(source=a, destination=b, message_bytes=8, gradient_message_bytes=8) for a, b in ends)
    stages = make_problem(len(places), 1, **options).stages
    return replace(
        make_problem(ranks, count, **options),
        stages=tuple(replace(stage, rank=rank) for stage, rank in zip(stages, places, strict=True)),
        paths=(tuple(range(len(places))),),
        edges=edges,
        links=tuple(Link(source=a, destination=b, latency_ns=3, transfer_ns=1) for a, b in permutations(range(ranks), 2)),
        slices=tuple(slices),
    )


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("rows", [(6, 5), (1, 7, 3, 0), (4, 4, 4)], ids=str)
def test_two_ranks(two: Ranks, rows: Sequence[int], split: bool, recompute: bool) -> None:
    """Two parts, or more on two ranks; the plan is swapped for another order."""
    problem = with_parts(2, len(rows), 3, split_backward=split)
    plans = [plan_in_any_order(Random(seed), problem) for seed in (1, 2)]
    assert_exact(two.run(split_head_runs.errors_of, plans, rows, recompute=recompute, smoothing=0.1))


@pytest.mark.parametrize("slices", [(), (2, 2, 2), (1, 4, 2)], ids=str)
def test_four_ranks(four: Ranks, slices: Sequence[int]) -> None:
    """With the sequence in slices, too."""
    problem = with_parts(4, 4, 2, slices)
    assert_exact(four.run(split_head_runs.errors_of, [plan_in_any_order(Random(3), problem)], (3, 3, 3, 2), recompute={1, 5}))


def test_slices_and_split_head_as_compiled(two: Ranks) -> None:
    """Swapped for another order of the same slices."""
    problem = with_parts(2, 2, 2, (5, 3))
    plans = [plan_of(problem, constructive(method)(problem)) for method in ("greedy", "gpipe")]
    assert_exact(two.run(split_head_runs.errors_of, plans, (6, 5)))
