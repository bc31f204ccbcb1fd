"""Every family of constraints of the CP-SAT model: a tiny problem whose optimum, derived by hand, would be another without it.

Blocks are 10 long where nothing else is said. Windows are open (0 to the end, whatever needs what), so that they do not replace
the constraint in question; they have a test of their own. "Else" is the optimum of the model without the constraint.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inputs.fused_problems import with_fused
from inputs.problems import make_problem
from ortools.sat.python import cp_model

from schedc.ir.ops import Kind, Op
from schedc.ir.problem import DataParallel, Objective, Problem
from schedc.models.blocks import NothingAtMost, TimeGrid, blocks_of
from schedc.models.cpsat.model import build
from schedc.models.start_windows import Windows, windows_of

if TYPE_CHECKING:
    from schedc.models.cpsat.variables import CpSatVariables

END = 1000
NANOSECONDS = TimeGrid(1, True)


def solved(variables: CpSatVariables) -> int | None:
    """The least objective; None if there is no schedule."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(variables.model)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return solver.value(variables.objective) if status == cp_model.OPTIMAL else None


def optimum(problem: Problem) -> int | None:
    """The least objective with open windows."""
    blocks = blocks_of(problem, NANOSECONDS)
    nothing = dict.fromkeys(blocks.duration, 0)
    latest = {op: END - blocks.least(op) for op in blocks.duration}
    origin: dict[int, int | None] = dict.fromkeys(range(problem.ranks), 0)
    windows = Windows(earliest=nothing, latest=latest, tail=nothing, end=END, origin=origin, firsts={}, least=0)
    return solved(build(problem, blocks, windows, 0, END))


def test_precedences_on_a_rank() -> None:
    """F F B, and on the first rank B W: 50. Else the last rank's B does not wait for its F: B, F, W there and F, B, W here, 30."""
    assert optimum(make_problem(2, 1)) == 50


def test_a_rank_runs_one_op_at_a_time() -> None:
    """Six blocks: 60. Else F1, B1 and W1 wait for F0 only: 40."""
    assert optimum(make_problem(1, 2)) == 60


@pytest.mark.parametrize(("there", "back", "expected"), [((0, 0), (0, 0), 50), ((3, 0), (4, 0), 57), ((3, 2), (4, 5), 64)])
def test_needs_across_ranks(there: tuple[int, int], back: tuple[int, int], expected: int) -> None:
    """F F B B W and each transfer's occupancy and latency. Else both ranks start at once: 30."""
    assert optimum(make_problem(2, 1, links={(0, 1): there, (1, 0): back})) == expected


def test_a_link_carries_one_message_at_a_time() -> None:
    """Rank 0 has the first and the last of three stages, so forwards and gradients share the link from 0 to 1; blocks are 1 long.

    The first message is ready at 1; four of 20, one after the other, are there at 81; B, B, W follow: 84. Else the first gradient,
    ready at 24, leaves beside the second forward, and the second one at 44: it is there at 64, and 67 is the end.
    """
    assert optimum(make_problem(2, 2, placement=[0, 1, 0], costs_ns=(1, 1, 1), links={(0, 1): (0, 20)})) == 84


@pytest.mark.parametrize(("trunk", "expected"), [("both", 83), (None, 65)])
def test_a_trunk_carries_one_message_at_a_time(trunk: str | None, expected: int) -> None:
    """Blocks are 1 long, two forwards and two gradients take 20 each. On one trunk: 1 + 4 × 20, then B and W.

    On two links the forwards are there at 21 and 41; the gradients leave at 23 and 43: 63, then B and W.
    """
    trunks = {(0, 1): trunk, (1, 0): trunk} if trunk else {}
    links = {(0, 1): (0, 20), (1, 0): (0, 20)}
    assert optimum(make_problem(2, 2, costs_ns=(1, 1, 1), links=links, trunks=trunks)) == expected


@pytest.mark.parametrize(("in_order", "expected"), [(True, 23), (False, 15)])
def test_microbatch_order(in_order: bool, expected: int) -> None:
    """Forwards of 9 and 1 on the first rank, 1 and 9 on the last; all else is 1 long.

    In order, the last rank starts at 9 and has 14 to do: 23. Else it starts with microbatch 1 at 1: 15.
    """
    problem = make_problem(2, 2, costs_ns=(1, 1, 1))
    first, last = problem.stages
    problem = replace(problem, stages=(replace(first, forward_ns=(9, 1)), replace(last, forward_ns=(1, 9))))
    assert optimum(replace(problem, in_order=in_order)) == expected


@pytest.mark.parametrize(("limit_bytes", "expected"), [(1, None), (2, 100), (3, 90), (4, 70)])
def test_memory_of_one_stage_as_precedences(limit_bytes: int, expected: int | None) -> None:
    """The first rank holds 2 bytes from F, 1 of them until W ends. One microbatch alone takes 50 (F F B B W).

    2 bytes: the second starts when the first is done: 100. 3: when its B is, at 40, so 90. 4 hold both: the last rank starts at
    10 and has 60 to do: 70, as without a limit.
    """
    assert optimum(make_problem(2, 2, memory_limit_bytes=[limit_bytes, None])) == expected


@pytest.mark.parametrize(("weight_ns", "expected"), [(10, 500), (30, 530)])
def test_memory_is_released_by_w_or_by_the_next_b(weight_ns: int, expected: int) -> None:
    """4 bytes on the first rank, 2 for each activation, 1 until W; links of 100. The third F waits for B W or for B B.

    The first gradient is there at 230, the second at 250. W of 10: B W, third F from 250 to 260, and 240 for 100, F, B, 100, B, W:
    500; else, after both B, 510. W of 30: after both B, third F from 260 to 270 and 260 more: 530; else, after B W, 540.
    """
    links = {(0, 1): (100, 0), (1, 0): (100, 0)}
    costs = [(10, 10, weight_ns), (10, 10, 10)]
    assert optimum(make_problem(2, 3, costs_ns=costs, links=links, memory_limit_bytes=[4, None])) == expected


@pytest.mark.parametrize(("limit_bytes", "expected"), [(3, None), (4, 160), (8, 120)])
def test_memory_of_several_stages_as_cumulative(limit_bytes: int, expected: int | None) -> None:
    """Rank 0 has the first and the last of three stages, 2 bytes each until the fused backward, 20 long, ends.

    With 4 bytes the second microbatch reaches the last stage only when the first is gone, after F F F BW BW BW, at 90; F BW BW BW
    follow: 160. 8 bytes hold both, as without a limit: rank 0 works without a gap, 2 × (F F BW BW).
    """
    problem = make_problem(2, 2, placement=[0, 1, 0], split_backward=False, memory_limit_bytes=[limit_bytes, None])
    assert optimum(problem) == expected


@pytest.mark.parametrize(("limit_bytes", "expected"), [(5, 130), (6, 120)])
def test_what_is_held_for_w_counts_in_the_cumulative(limit_bytes: int, expected: int) -> None:
    """The same with B and W apart; 1 of the 2 bytes is held until W ends. Rank 0 has 120 to do.

    With 5 bytes it idles while rank 1 has the first F: a second F before the first B would leave 1 byte for the first microbatch's
    last stage, and nothing would ever be released. 6 bytes hold three activations: no gap, as with 5 if W held nothing.
    """
    assert optimum(make_problem(2, 2, placement=[0, 1, 0], memory_limit_bytes=[limit_bytes, None])) == expected


@pytest.mark.parametrize(("trunk", "expected"), [(None, 67), ("t", 71)])
def test_collectives(trunk: str | None, expected: int) -> None:
    """All-gathers of 4 and 20. Each on its rank: F0 4 to 14, F1 20 to 30, B B W to 60, the first rank's reduce-scatter of 7: 67.

    On a trunk they follow each other, so F1 starts at 24: 71. Else, without collectives, 50.
    """
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(7, 8), all_gather_ns=(4, 20), trunk=trunk)
    assert optimum(replace(make_problem(2, 1), data_parallel=parallel)) == expected


def test_the_reduce_scatter_of_a_rank_that_ends_early_counts() -> None:
    """The last rank's W ends at 40, its reduce-scatter of 35 at 75; all else is done by 51."""
    parallel = DataParallel(size=2, zero_stage=0, reduce_scatter_ns=(1, 35))
    assert optimum(replace(make_problem(2, 1), data_parallel=parallel)) == 75


@pytest.mark.parametrize(("objective", "expected"), [(Objective.MAKESPAN, 110), (Objective.STAGE_SPAN, 100)])
def test_objective(objective: Objective, expected: int) -> None:
    """The last rank, with W of 30, works from 10 to 110 without a gap; the first, with W of 1, spans less."""
    problem = replace(make_problem(2, 2, costs_ns=[(10, 10, 1), (10, 10, 30)]), objective=objective)
    blocks = blocks_of(problem, NANOSECONDS)
    assert solved(build(problem, blocks, windows_of(problem, blocks, END), 0, END)) == expected


@pytest.mark.parametrize(("split", "expected"), [(True, 50), (False, 60)])
def test_split_and_fused_backward(split: bool, expected: int) -> None:
    """Split, the gradient leaves after B: F F B B W. Fused, after BW of 20: F F BW BW."""
    assert optimum(make_problem(2, 1, split_backward=split)) == expected


@pytest.mark.parametrize(("fused_ns", "expected", "count"), [(25, 30, 0), (20, 30, 0), (19, 29, 1), (5, 15, 1)])
def test_a_fused_backward_is_in_the_model_where_it_takes_less_than_its_halves(fused_ns: int, expected: int, count: int) -> None:
    """F and BW, or F, B and W."""
    problem = with_fused(make_problem(1, 1), fused_ns)
    assert optimum(problem) == expected
    assert len(blocks_of(problem, NANOSECONDS).fused) == count


@pytest.mark.parametrize(("fused_ns", "expected"), [((19, 19), 49), ((19, 11), 49), ((11, 19), 41), ((19, 9), 48)])
def test_each_backward_is_fused_or_split(fused_ns: tuple[int, int], expected: int) -> None:
    """F F, B on the last rank, which W follows there, and BW on the first: 49. Fused, the last one would send its gradient late,

    unless BW takes less than B: of 9, 48. Else, all split, 50; if a fused one sent its gradient before its end, less.
    """
    assert optimum(with_fused(make_problem(2, 1), *fused_ns)) == expected


@pytest.mark.parametrize(("limit_bytes", "expected"), [(1, None), (2, 98), (3, 89), (4, 70)])
def test_memory_where_backwards_may_be_fused(limit_bytes: int, expected: int | None) -> None:
    """As with B and W, each rank's BW takes 19. One microbatch alone takes 49 (F F B BW).

    2 bytes: one after the other. 3: the first rank splits the first backward, so that the second forward starts at 40; its
    gradient is there at 70, and BW follows: 89; W of the first is done before. 4: the last rank has 10 to 70 to do, or 69 with
    gradients later.
    """
    assert optimum(with_fused(make_problem(2, 2, memory_limit_bytes=[limit_bytes, None]), 19)) == expected


def test_the_reduce_scatter_follows_a_fused_backward() -> None:
    """F, BW, and 7. Else, where it followed B, 29."""
    parallel = DataParallel(size=2, zero_stage=0, reduce_scatter_ns=(7,))
    assert optimum(replace(with_fused(make_problem(1, 1), 19), data_parallel=parallel)) == 36


def test_windows_hold_the_starts() -> None:
    """F F B B W and two transfers of 5 are the path of 60; all have the 5 that the upper bound leaves, W of rank 1 more."""
    problem = make_problem(2, 1, links={(0, 1): (3, 2), (1, 0): (3, 2)})
    blocks = blocks_of(problem, NANOSECONDS)
    variables = build(problem, blocks, windows_of(problem, blocks, 65), 0, 65)
    assert {op[:2]: tuple(start.proto.domain) for op, start in variables.start.items()} == {
        (Kind.F, 0): (0, 5),
        (Kind.F, 1): (15, 20),
        (Kind.B, 1): (25, 30),
        (Kind.W, 1): (35, 55),
        (Kind.B, 0): (40, 45),
        (Kind.W, 0): (50, 55),
    }
    assert tuple(variables.send[Op(Kind.F, 0, 0)].proto.domain) == (10, 15)
    assert tuple(variables.objective.proto.domain) == (60, 65)
    assert solved(variables) == 60
    with pytest.raises(NothingAtMost, match="an objective of at most 59 ticks; none is below 60"):
        build(problem, blocks, windows_of(problem, blocks, 59), 0, 59)
