"""CP-SAT against brute force: equal optima where the model is exact, valid bounds everywhere."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from inputs.claim_problems import claim_problem
from inputs.problems import m70, make_problem, with_fused_backward
from inputs.tiny_problems import random_schedule, tiny_problem
from oracles.bounds import models_are_exact
from oracles.brute_force import SearchTooLarge, optimum

from schedc.analysis.bounds.lower_bounds import best_bound, lower_bounds
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Defect, Unsupported
from schedc.ir import BoundName, Kind, Op, Schedule
from schedc.ir.problem import Objective
from schedc.models.blocks import grid_of
from schedc.solvers.common.base import Limits, SearchSettings, SolverStatus
from schedc.solvers.common.incumbent import Incumbent
from schedc.solvers.driver.portfolio import solve
from schedc.solvers.driver.registry import constructive
from schedc.solvers.exact.cpsat import NEAR, seek_near, solve_cpsat
from schedc.solvers.exact.cpsat_solver import for_narrow, run
from schedc.solvers.exact.milp import solve_milp
from schedc.solvers.heuristics.greedy import Greedy
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortools.sat.python import cp_model

    from schedc.solvers.common.base import Solved


MOST_STATES = 1_000
"""Brute force gives up on larger searches, and where the model is a relaxation, and only bounds can be compared, much earlier."""


def check(seed: int) -> bool:
    """One random tiny problem; returns whether its optimum was compared for equality."""
    random = Random(seed)
    problem = tiny_problem(random, most_ops=18)
    equal = models_are_exact(problem)
    incumbent = constructive("greedy{n_sub=1}")(problem)
    try:
        best_ns = optimum(problem, most_states=MOST_STATES if equal else MOST_STATES // 5)
    except SearchTooLarge:
        return False
    assert best_ns is not None
    solved = solve_cpsat(problem, incumbent, limits=Limits(time_s=200, workers=1))
    assert not verify_schedule(problem, solved.schedule)
    assert simulate(problem, solved.schedule).objective_ns(problem.objective) == solved.objective_ns
    assert solved.lower_bound_ns <= best_ns <= solved.objective_ns
    if equal:
        assert solved.lower_bound_ns == solved.objective_ns == best_ns
    return equal


@pytest.mark.slow
def test_equals_brute_force_on_two_hundred_tiny_problems() -> None:
    """Of some it is only known that the bound is one; these do not count."""
    compared = tried = 0
    for seed in count(1000):
        compared += check(seed)
        tried += 1
        if compared == 200:
            break
    assert tried < 950


@pytest.mark.slow
@pytest.mark.parametrize(
    ("latency", "occupancy", "optimum_ms"), [(0, 0, 2128), (2, 0.25, 2470), (2, 2, 2736)], ids=["none", "latency", "both"]
)
def test_the_known_optima_of_m70_are_proven(latency: float, occupancy: float, optimum_ms: int) -> None:
    """Design notes: ZB-H1 is optimal without delay, and 2736 ms is with a slow middle link of (2, 2)."""
    problem = m70(latency, occupancy)
    solved = solve_cpsat(problem, constructive("greedy{n_sub=1}")(problem), limits=Limits())
    assert solved.objective_ns == solved.lower_bound_ns == optimum_ms * 1_000_000
    assert all(bound.value_ns <= solved.objective_ns for bound in lower_bounds(problem))


def test_a_schedule_with_fused_backwards_is_a_hint() -> None:
    problem = make_problem(3, 4, costs_ns=(3, 4, 5), links={(0, 1): (2, 3), (1, 0): (2, 3)})
    solved = solve_cpsat(problem, constructive("1f1b")(problem), limits=Limits(workers=1))
    assert solved.objective_ns <= simulate(problem, constructive("zb-h2")(problem)).makespan_ns
    assert solved.objective_ns == solved.lower_bound_ns


SWAPS = 32
"""The number of a problem of claims where messages would change places on a link, if they could: 55 instead of 56."""


@pytest.mark.parametrize("solve", [solve_cpsat, solve_milp])
def test_messages_leave_in_the_order_in_which_they_are_ready(solve: Callable[..., Solved]) -> None:
    problem = replace(claim_problem(SWAPS)[0], objective=Objective.MAKESPAN)
    assert models_are_exact(problem)
    solved = solve(problem, constructive("greedy{n_sub=1}")(problem), limits=Limits(workers=1))
    assert (solved.status, solved.lower_bound_ns, solved.objective_ns) == ("OPTIMAL", 56, 56)


@pytest.mark.parametrize("solve", [solve_cpsat, solve_milp])
def test_a_fused_backward_lets_the_message_of_another_rank_go_first(solve: Callable[..., Solved]) -> None:
    """Where the last rank splits its first backward, the gradient is on the wire into rank 1 before the second activation: 99."""
    links = {(0, 1): (1, 12), (1, 2): (1, 1), (2, 1): (0, 9), (1, 0): (2, 1)}
    wires = {pair: f"into{pair[1]}" for pair in links}
    problem = make_problem(3, 2, costs_ns=[(26, 1, 1), (1, 1, 2), (4, 2, 20)], links=links, trunks=wires)
    orders = "F0 F1 B0 B1 W0 W1", "F0 F1 B0 B1 W0 W1", "F0 BW0 F1 B1 W1"
    best = Schedule(
        orders=tuple(
            tuple(Op(Kind[token[:-1]], stage, int(token[-1])) for token in order.split()) for stage, order in enumerate(orders)
        )
    )
    assert simulate(problem, best).makespan_ns == 94
    assert solve(problem, constructive("greedy{n_sub=1}")(problem), limits=Limits(workers=1)).lower_bound_ns <= 94
    assert solve(problem, best, limits=Limits(workers=1)).objective_ns == 94


@pytest.mark.parametrize("below_ns", [12, 24, 31, 36])
def test_a_stage_span_in_which_no_op_has_a_window_is_impossible(below_ns: int) -> None:
    """The way there and back takes longer, though no rank's own ops do; brute force agrees."""
    links = {(0, 1): (1, 6), (1, 0): (6, 6)}
    costs = [(8, 1, 1), (1, 1, 6), (8, 1, 1), (1, 1, 3)]
    problem = make_problem(2, 1, placement="bidirectional", costs_ns=costs, links=links)
    problem = replace(problem, objective=Objective.STAGE_SPAN)
    assert optimum(problem) == 31
    start = constructive("sequential")(problem)
    solved = solve_cpsat(problem, start, limits=Limits(workers=1), below_ns=below_ns)
    assert solved.lower_bound_ns == min(below_ns, 31)


def test_the_incumbent_is_kept_where_nothing_is_better() -> None:
    problem = make_problem(2, 2, costs_ns=(3, 4, 5), in_flight=2)
    start = random_schedule(Random(1), problem)
    assert start is not None
    first = solve_cpsat(problem, start, limits=Limits(workers=1))
    again = solve_cpsat(problem, first.schedule, limits=Limits(workers=1))
    assert again.objective_ns == again.lower_bound_ns == first.objective_ns


def test_a_coarse_grid_does_not_bound_the_stage_span() -> None:
    """Rounding every duration down can shorten how late a rank begins more than how late it ends, and so lengthen its span."""
    second_ns = 1_000_000_000_007
    problem = make_problem(2, 2, costs_ns=[(second_ns + 1, second_ns, second_ns + 3), (second_ns + 7, second_ns + 2, second_ns)])
    problem = replace(problem, objective=Objective.STAGE_SPAN)
    start = constructive("greedy{n_sub=1}")(problem)
    assert not grid_of(problem, simulate(problem, start).makespan_ns).exact
    assert solve_cpsat(problem, start, limits=Limits(workers=1)).lower_bound_ns == 0
    problem = make_problem(2, 2, costs_ns=[(4, 3, 6), (10, 5, 3)])
    assert solve_cpsat(replace(problem, objective=Objective.STAGE_SPAN), start, limits=Limits(workers=1)).lower_bound_ns > 0


def test_stages_that_two_paths_share() -> None:
    """Microbatches of two paths are not alike on a stage of both, so their order there is open."""
    problem = make_problem(2, 2, links={(0, 1): (9, 0), (1, 0): (9, 0)})
    shared = replace(problem, paths=((0, 1), (1, 0)), path_of=(0, 1))
    solved = solve_cpsat(shared, constructive("greedy{n_sub=1}")(shared), limits=Limits(workers=1))
    assert solved.objective_ns == solved.lower_bound_ns == optimum(shared)


def test_near_the_bound_blocks_of_no_time_prove_nothing_false() -> None:
    """With strong propagation CP-SAT refutes all below 195,022,440 ns on this grid, where two of the blocks take no tick."""
    costs_ns = [(10_000_003, 2_000_000, 50_000_015), (1, 2_000, 5_000_000), (3_000, 20_000_006, 2_000), (3_000, 2, 20_000_006)]
    links = {(0, 1): (1, 0), (1, 0): (2, 0)}
    problem = make_problem(2, 3, placement=[1, 1, 0, 0], costs_ns=costs_ns, links=links, in_flight=3)
    first = replace(problem.stages[0], backward_ns=(50_000_015,))
    problem, limits = replace(problem, stages=(first, *problem.stages[1:])), Limits(workers=1, time_s=100)
    start = Greedy(n_sub=1)(problem)
    assert solve_cpsat(problem, start, limits=limits).objective_ns == 195_012_060
    for proves in (False, True):
        solver = for_narrow(limits, 3.0, proves=proves)
        found = solve_cpsat(problem, start, limits=limits, most_ticks=1 << 14, below_ns=195_012_061, solver=solver, fuses=proves)
        assert found.lower_bound_ns <= 195_012_060


@pytest.mark.parametrize("most_ticks", [1 << 14, 40, 9])
@pytest.mark.parametrize("limits", [Limits(deterministic=1.0, workers=2), Limits(time_s=100, workers=2)], ids=["work", "threads"])
def test_near_the_bound_it_refutes_nothing_possible(limits: Limits, most_ticks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a poor start and no bound, or the best one: what it refutes is below the optimum of whole blocks; brute force agrees.

    On the coarsest grid most blocks take no time, or one tick.
    """
    monkeypatch.setattr("schedc.solvers.exact.cpsat.NEAR_TICKS", most_ticks)
    better = 0
    for seed in range(40):
        problem = tiny_problem(Random(seed), most_ops=12)
        try:
            best_ns = optimum(problem, most_states=3_000)
        except SearchTooLarge:
            continue
        assert best_ns is not None
        known, best = [(constructive("sequential")(problem), "sequential")], best_bound(problem)
        settings = SearchSettings(method="cpsat{near=true}", limits=limits)
        for bound_ns in (1, best.value_ns):
            found = solve(problem, settings, bound_ns=bound_ns, bound_by=best.name, known=known)
            assert found.bound_ns <= best_ns <= found.objective_ns, seed
            better += found.found_by == "cpsat"
    assert better >= 10


@pytest.mark.parametrize(("limits", "at_once"), [(Limits(deterministic=0.1), 1), (Limits(), 2)])
def test_near_the_bound_two_questions_are_asked_at_once(limits: Limits, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins only when the other has, too; under a limit of work one comes after the other, and the result is the same."""
    both, asked = threading.Barrier(at_once), list[int]()

    def met(solver: cp_model.CpSolver, *rest: Any) -> tuple[SolverStatus, BaseException | None]:
        asked.append(solver.parameters.random_seed)
        if len(asked) <= at_once:
            both.wait(60)
        return run(solver, *rest)

    monkeypatch.setattr("schedc.solvers.exact.cpsat.run", met)
    links = {(0, 1): (5, 20), (1, 0): (5, 20)}
    problem = make_problem(2, 4, placement="loop", chunks=2, costs_ns=(4, 5, 3), links=links, in_flight=3)
    settings = SearchSettings(method="cpsat{near=true}", limits=limits)
    known = [(Greedy(n_sub=1)(problem), "greedy")]
    found = [solve(problem, settings, bound_ns=1, bound_by=BoundName.WORK, known=known) for _ in range(2)]
    assert found[0].cut_short is (at_once == 2)
    if at_once == 1:
        assert asked[: len(asked) // 2] == asked[len(asked) // 2 :]
        assert (found[0].schedule, found[0].bound_ns, found[0].work) == (found[1].schedule, found[1].bound_ns, found[1].work)


NEAR_LINKS = make_problem(
    2, 4, placement="loop", chunks=2, costs_ns=(4, 5, 3), links={(0, 1): (5, 20), (1, 0): (5, 20)}, in_flight=3
)
"""Nothing fuses, so a round is of as many questions as there are widths."""


def near_the_bound() -> Incumbent:
    incumbent = Incumbent(problem=NEAR_LINKS, bound_ns=1, bound_by=BoundName.WORK)
    incumbent.offer(Greedy(n_sub=1)(NEAR_LINKS), "greedy")
    return incumbent


@pytest.mark.parametrize("workers", [1, 2])
def test_near_the_bound_it_goes_on_while_a_question_is_open(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two threads one settles all others before the first answer, which says nothing."""
    asked, others = list[int](), threading.Event()

    def answer(solve: Any, name: str, known: Incumbent, limits: Limits) -> SolverStatus:
        number = solve.keywords["solver"].parameters.random_seed
        asked.append(number)
        if number == len(NEAR) - 1 or workers == 1:
            others.set()
        if len(asked) > 4 * len(NEAR):
            known.raise_bound(known.objective_ns, BoundName.CPSAT, ())
        assert number or others.wait(60)
        return SolverStatus.INFEASIBLE if number % len(NEAR) else SolverStatus.UNKNOWN

    monkeypatch.setattr("schedc.solvers.exact.cpsat.improve_by", answer)
    seek_near(near_the_bound(), Limits(workers=workers))
    assert len(asked) > 4 * len(NEAR)


@pytest.mark.parametrize("fails", [False, True])
def test_near_the_bound_a_proof_or_an_error_of_one_thread_stops_the_other(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again: the other may still build its model, and CP-SAT does not stop before it has begun."""
    both, stopped, heard = threading.Barrier(2), threading.Semaphore(0), list[bool]()

    def answer(solve: Any, name: str, known: Incumbent, limits: Limits) -> SolverStatus:
        if both.wait(60):
            heard.extend(stopped.acquire(timeout=60) for _ in range(3))
            return SolverStatus.UNKNOWN
        if fails:
            raise Defect("a bound is wrong")
        known.raise_bound(known.objective_ns, BoundName.CPSAT, ())
        return SolverStatus.INFEASIBLE

    def narrow(*_: object, proves: bool) -> Mock:
        return Mock(stop_search=stopped.release)

    monkeypatch.setattr("schedc.solvers.exact.cpsat.improve_by", answer)
    monkeypatch.setattr("schedc.solvers.exact.cpsat.for_narrow", narrow)
    with pytest.raises(Defect) if fails else nullcontext():
        seek_near(near_the_bound(), Limits(workers=2))
    assert heard == [True] * 3


def test_near_the_bound_odd_times_take_few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One width after another, each refuted at no work, would be 1,748 questions."""
    asked: list[float] = []

    def counted(solver: cp_model.CpSolver, *rest: Any) -> tuple[SolverStatus, BaseException | None]:
        answer = run(solver, *rest)
        asked.append(solver.response_proto.deterministic_time)
        return answer

    random = Random(5)
    costs_ns = [
        (random.randint(10**6, 9 * 10**6), random.randint(10**6, 9 * 10**6), random.randint(10**6, 9 * 10**6)) for _ in range(4)
    ]
    links = dict.fromkeys(((0, 1), (1, 0)), (1_000_003, 3_000_017))
    problem = make_problem(2, 4, placement="loop", chunks=2, costs_ns=costs_ns, links=links, in_flight=3)
    monkeypatch.setattr("schedc.solvers.exact.cpsat.run", counted)
    settings = SearchSettings(method="cpsat{near=true}", limits=Limits(workers=1, deterministic=0.6))
    found = solve(problem, settings, bound_ns=1, bound_by=BoundName.WORK, known=[(Greedy(n_sub=1)(problem), "greedy")])
    assert found.bound_ns <= found.objective_ns
    assert 0 < len(asked) < 100


@pytest.mark.parametrize("seed", range(40))
def test_what_it_seeks_without_fusing_says_nothing_of_bounds(seed: int) -> None:
    """Nor is there a better schedule than the optimum, which may fuse; brute force agrees."""
    problem = with_fused_backward(replace(tiny_problem(Random(seed), most_ops=12), objective=Objective.MAKESPAN), 8)
    try:
        best_ns, start = optimum(problem, most_states=3_000), Greedy(n_sub=1)(problem)
    except (SearchTooLarge, Unsupported):
        return
    assert best_ns is not None
    for below_ns in (None, best_ns, best_ns + 1):
        solved = solve_cpsat(problem, start, limits=Limits(workers=1), below_ns=below_ns, fuses=False)
        assert solved.lower_bound_ns <= best_ns <= solved.objective_ns
    found = solve(problem, SearchSettings(method="cpsat{near=true}"), bound_ns=1, bound_by=BoundName.WORK)
    assert found.bound_ns <= best_ns <= found.objective_ns
    assert best_ns == found.objective_ns or not models_are_exact(problem)
