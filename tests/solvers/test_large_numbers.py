"""CP-SAT in odd nanoseconds and bytes of GiB: what ortools computes in too few bits is left out, so that no proof rests on it."""

from __future__ import annotations

import pytest
from inputs.claim_problems import claim_problem
from ortools.sat.python import cp_model

from schedc.analysis.simulation.simulate import simulate
from schedc.ir.network import Link
from schedc.ir.problem import Objective, Problem, Stage
from schedc.solvers.common.base import NO_LIMITS, Limits
from schedc.solvers.driver.registry import constructive
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.cpsat_solver import run, solver_of
from schedc.verify.schedule.checks import verify_schedule

# Rank; F, B, W and BW of both microbatches; what is held, and what is left of it for W.
STAGES = (
    (1, (23859734, 47719541), (47719511, 95438981), (95438956, 190877820), (143158408, 286316717), 1414216284, 0),
    (0, (23859746, 47719456), (47719495, 95438974), (71579217, 143158430), (119298618, 238597295), 2828432159, 1414216187),
    (2, (47719450, 95438948), (23859776, 47719496), (23859798, 47719521), (47719542, 95438893), 4242648148, 0),
    (1, (23859733, 47719518), (47719497, 95438962), (95438955, 190877845), (143158398, 286316775), 2828432456, 2828431836),
)
LINKS = (
    (0, 1, 47719522, 95438983, "trunk"),
    (0, 2, 0, 71579222, None),
    (1, 0, 23859757, 71579243, None),
    (1, 2, 23859805, 23859740, None),
    (2, 0, 47719538, 71579243, None),
    (2, 1, 71579236, 23859822, None),
)
LIMITS_BYTES = (4242651355, 5656867258, 5656867258)


def problem() -> Problem:
    """One of which ortools 9.15 ended the process, or claimed 1,861,060,219 ns."""
    stages = tuple(
        Stage(
            rank=rank,
            forward_ns=forward,
            backward_input_ns=backward,
            backward_weight_ns=weight,
            backward_ns=fused,
            activation_bytes=held,
            activation_after_input_bytes=left,
        )
        for rank, forward, backward, weight, fused, held, left in STAGES
    )
    links = tuple(
        Link(source=source, destination=destination, latency_ns=latency, transfer_ns=transfer, trunk=trunk)
        for source, destination, latency, transfer, trunk in LINKS
    )
    return Problem(
        name="large",
        ranks=3,
        microbatches=2,
        stages=stages,
        paths=((0, 1, 2, 3),),
        path_of=(0, 0),
        links=links,
        memory_limit_bytes=LIMITS_BYTES,
        placement="explicit",
        objective=Objective.STAGE_SPAN,
    )


def test_no_proof_is_false_where_areas_overflow() -> None:
    given = problem()
    known = constructive("sorted")(given)
    assert not verify_schedule(given, known)
    start = constructive("greedy{n_sub=1}")(given)
    found = solve_cpsat(given, start, limits=Limits(workers=1, deterministic=0.5, seed=1))
    assert found.lower_bound_ns <= simulate(given, known).stage_span_ns


def test_no_proof_is_1_ns_too_high_where_squares_of_times_are_near_64_bits() -> None:
    """With cuts, ortools 9.15 called 1,906,547,028 ns optimal."""
    large = claim_problem(79)[1]
    assert large is not None
    start = constructive("greedy{n_sub=1}")(large.problem)
    found = solve_cpsat(large.problem, start, limits=Limits(workers=1, deterministic=0.05))
    assert found.lower_bound_ns == found.objective_ns == 1_906_547_027


@pytest.mark.parametrize(
    ("horizon", "capacity", "rows", "cuts"),
    [(100, 9, True, True), ((1 << 27) + 1, 1, False, True), (3, (1 << 27) + 1, False, True), (1 << 20, 1 << 12, True, False)],
)
def test_what_overflows_is_left_out(horizon: int, capacity: int, rows: bool, cuts: bool) -> None:
    model, solver = cp_model.CpModel(), solver_of(NO_LIMITS)
    start = model.new_int_var(3, horizon, "start")
    model.add_cumulative([model.new_fixed_size_interval_var(start, 2, "")], [1], capacity)
    usual = cp_model.CpSolver().parameters
    run(solver, model)
    assert (solver.parameters.presolve_inclusion_work_limit == usual.presolve_inclusion_work_limit) == rows
    assert (solver.parameters.cut_level == usual.cut_level) == cuts
