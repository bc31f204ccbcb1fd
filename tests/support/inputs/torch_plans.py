"""Plans that torch can express, for tests of its CSVs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from inputs.plans import plan_of
from inputs.problems import make_problem, problems
from inputs.random_schedules import random_schedules
from schedc.ir.ops import WHOLE, Kind, Op
from schedc.ir.schedule import Schedule

if TYPE_CHECKING:
    from typing import Any

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

CHAINS = ("unidirectional", "loop", "wave", "explicit")


def expressible(problem: Problem, schedule: Schedule) -> Schedule:
    """The schedule with whole blocks, each where its last part is, and microbatches numbered as the last stage meets them."""
    count = {(parts.kind, parts.stage): len(parts.shares) for parts in schedule.parts}
    orders = [[op for op in order if op.part == WHOLE or op.part == count[op.kind, op.stage] - 1] for order in schedule.orders]
    last = problem.paths[0][-1]
    met = [op.microbatch for op in orders[problem.stages[last].rank] if op[:2] == (Kind.F, last)]
    number = {microbatch: place for place, microbatch in enumerate(met)}
    return Schedule(orders=tuple(tuple(Op(op.kind, op.stage, number[op.microbatch]) for op in order) for order in orders))


@st.composite
def torch_plans(draw: st.DrawFn, *, ranks: int | None = None, max_microbatches: int = 4) -> Plan:
    """Any valid order of whole blocks on one path: any placement, backwards fused or split, unequal links."""
    small = problems(max_microbatches=max_microbatches, placements=CHAINS, memory=False)
    problem = draw(small if ranks is None else _on(ranks, max_microbatches))
    return plan_of(problem, expressible(problem, draw(random_schedules(problem))))


@st.composite
def _on(draw: st.DrawFn, ranks: int, max_microbatches: int) -> Problem:
    placement: Any = draw(st.sampled_from(CHAINS))
    chunks = 2 if placement in ("loop", "wave") else 1
    if placement == "explicit":
        placement = draw(st.permutations(range(ranks))) + draw(st.lists(st.integers(0, ranks - 1), max_size=3))
    pairs = [(x, y) for x in range(ranks) for y in range(ranks) if x != y]
    links = {pair: draw(st.tuples(st.integers(0, 15), st.integers(0, 8))) for pair in pairs}
    return make_problem(ranks, draw(st.integers(1, max_microbatches)), placement=placement, chunks=chunks, links=links)
