"""The MILP as a whole: its windows, the start it is given, and the orders read from it, against simulated schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pulp
import pytest
from hypothesis import assume, example, given, strategies as st
from inputs.problems import make_problem, problems
from inputs.small_problems import small_problem
from suite.example_counts import examples

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import DataParallel, Objective
from schedc.ir.schedule import Schedule
from schedc.models.blocks import NothingAtMost, TimeGrid, blocks_of
from schedc.models.milp.extract import order_values, schedule_of_milp
from schedc.models.milp.model import build
from schedc.models.milp.variables import graph_of
from schedc.models.start_windows import Windows, windows_of
from schedc.solvers.heuristics.greedy import Greedy
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

NANOSECONDS = TimeGrid(1, True)
OBJECTIVES = st.sampled_from(Objective)


def windows(problem: Problem, upper: int) -> Windows:
    blocks = blocks_of(problem, NANOSECONDS)
    return windows_of(problem, blocks, upper)


def greedy_or_skip(problem: Problem) -> Schedule:
    try:
        return Greedy(n_sub=1)(problem)
    except Unsupported:
        assume(False)
        raise


def split(schedule: Schedule) -> bool:
    return all(op.kind is not Kind.BW for order in schedule.orders for op in order)


def test_graph_knows_what_follows() -> None:
    graph = graph_of(blocks_of(make_problem(2, 2), NANOSECONDS))
    f0, f1, b0 = Op(Kind.F, 0, 0), Op(Kind.F, 0, 1), Op(Kind.B, 0, 0)
    assert graph.follows(f0, b0) and graph.follows(f0, f1)
    assert not graph.follows(f1, b0) and not graph.follows(b0, f1) and not graph.follows(f0, f0)


def test_windows_of_the_makespan() -> None:
    """F F B B W of 10 each and two transfers of 5 are the path; all have the 5 that the upper bound leaves, W of rank 1 more."""
    problem = make_problem(2, 1, links={(0, 1): (3, 2), (1, 0): (3, 2)})
    found = windows(problem, 65)
    assert found.least == 60
    assert {op[:2]: (found.earliest[op], found.latest[op]) for op in found.earliest} == {
        (Kind.F, 0): (0, 5),
        (Kind.F, 1): (15, 20),
        (Kind.B, 1): (25, 30),
        (Kind.W, 1): (35, 55),
        (Kind.B, 0): (40, 45),
        (Kind.W, 0): (50, 55),
    }


def test_windows_of_the_stage_span() -> None:
    """The first rank begins at 0 in every schedule; the second with either message, as it arrives, and ends as late as its first F
    allows: at most 85 after it."""
    problem = replace(make_problem(2, 2, links={(0, 1): (3, 2), (1, 0): (3, 2)}), objective=Objective.STAGE_SPAN)
    found = windows(problem, 85)
    assert found.origin == {0: 0, 1: None}
    assert [(first, move and move.consumers[0]) for first, move in found.firsts[1]] == [
        (Op(Kind.F, 1, 0), Op(Kind.F, 1, n)) for n in (0, 1)
    ]
    assert found.latest[Op(Kind.W, 0, 1)] == 75
    assert found.latest[Op(Kind.B, 1, 1)] == 50
    assert found.latest[Op(Kind.F, 1, 0)] == 30
    assert found.latest[Op(Kind.W, 1, 1)] == 105
    assert found.least == 70


@pytest.mark.parametrize(
    ("problem", "at_once", "with_messages", "or_at_0"),
    [
        (make_problem(3, 2, placement="bidirectional"), [], [0, 1, 2], [0, 2]),
        (make_problem(3, 2, placement=[0, 1, 0, 2]), [0], [1, 2], []),
        (make_problem(3, 2), [0], [1, 2], []),
        (
            replace(
                make_problem(3, 2),
                data_parallel=DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(1, 1, 1), all_gather_ns=(1, 1, 1)),
            ),
            [],
            [],
            [],
        ),
    ],
)
def test_when_a_rank_begins(problem: Problem, at_once: list[int], with_messages: list[int], or_at_0: list[int]) -> None:
    """At once where all paths that visit it enter there; else with a message, or at 0 with a path that enters; all-gathers leave it
    open."""
    found = windows(replace(problem, objective=Objective.STAGE_SPAN), 100)
    assert [rank for rank, origin in found.origin.items() if origin == 0] == at_once
    assert [rank for rank, firsts in found.firsts.items() if any(move for _, move in firsts)] == with_messages
    assert [rank for rank, firsts in found.firsts.items() if any(move is None for _, move in firsts)] == or_at_0


@given(problems(), OBJECTIVES)
@examples(60)
def test_windows_hold_a_simulated_schedule(problem: Problem, objective: Objective) -> None:
    problem = replace(problem, objective=objective)
    schedule = greedy_or_skip(problem)
    timeline = simulate(problem, schedule)
    found = windows(problem, timeline.objective_ns(objective))
    assert found.least <= timeline.objective_ns(objective)
    for rank, order in enumerate(schedule.orders):
        for op, start_ns in zip(order, timeline.start_ns(rank), strict=True):
            if op in found.earliest:
                assert found.earliest[op] <= start_ns <= found.latest[op]


@example(381, Objective.STAGE_SPAN, False)
@example(1161, Objective.STAGE_SPAN, True)
@given(st.integers(0, 10_000), OBJECTIVES, st.booleans())
@examples(40)
def test_a_schedule_is_a_solution(seed: int, objective: Objective, shared_trunks: bool) -> None:
    """With all orders as in a schedule the model is feasible, no later than the simulator, and gives the schedule back.

    For a stage span ranks may begin later and microbatches wait longer than the simulator lets them (docs/bounds.md): names of
    alike microbatches may change then, and the model's span may be shorter than that of the schedule, which is valid.
    """
    problem = small_problem(seed, objective=objective, shared_trunks=shared_trunks, may_be_odd=False)
    schedule = greedy_or_skip(problem)
    assume(split(schedule) == problem.split_backward)
    timeline = simulate(problem, schedule)
    upper = timeline.objective_ns(objective)
    variables = build(problem, blocks_of(problem, NANOSECONDS), 0, upper)
    for pair, value in order_values(variables, schedule, timeline).items():
        variables.order[pair].lowBound = variables.order[pair].upBound = value
    assert variables.model.solve(pulp.HiGHS(msg=False)) == pulp.LpStatusOptimal
    assert pulp.value(variables.objective) <= upper + 1e-6
    found = schedule_of_milp(variables, problem, pulp.value)
    assert found == schedule or (objective is Objective.STAGE_SPAN and not verify_schedule(problem, found))


def test_a_fused_backward_stands_for_its_halves() -> None:
    problem = make_problem(2, 3)
    fused = Schedule(
        orders=(
            tuple(Op(kind, 0, m) for kind in (Kind.F, Kind.BW) for m in range(3)),
            tuple(Op(kind, 1, m) for m in range(3) for kind in (Kind.F, Kind.BW)),
        )
    )
    timeline = simulate(problem, fused)
    variables = build(problem, blocks_of(problem, NANOSECONDS), 0, timeline.makespan_ns)
    values = order_values(variables, fused, timeline)
    assert values
    found = schedule_of_milp(
        variables, problem, lambda variable: values[next(p for p, v in variables.order.items() if v is variable)]
    )
    assert found.orders[1] == tuple(Op(kind, 1, m) for m in range(3) for kind in (Kind.F, Kind.B, Kind.W))
    assert found.orders[0][:5] == (*(Op(Kind.F, 0, m) for m in range(3)), Op(Kind.B, 0, 0), Op(Kind.W, 0, 0))


def test_an_upper_bound_below_every_schedule_is_refused() -> None:
    problem = make_problem(2, 1)
    for lower, upper in ((0, 49), (60, 59)):
        with pytest.raises(NothingAtMost, match=f"an objective of at most {upper} ticks; none is below {upper + 1}"):
            build(problem, blocks_of(problem, NANOSECONDS), lower, upper)
