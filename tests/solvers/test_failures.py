"""A method that fails costs what it does and no more; an answer that contradicts a known schedule is a failure, never a proof."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inputs.problems import m70, make_problem
from inputs.small_problems import small_problem
from oracles.brute_force import optimum

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.gap import relative_gap
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.driver import compile_problem, time_methods
from schedc.errors import Defect, InvalidInput, Unsupported
from schedc.ir.ops import Kind, Op
from schedc.ir.plan import BoundName
from schedc.ir.problem import Objective
from schedc.ir.schedule import Parts, Schedule
from schedc.models.cpsat import model as cpsat_model
from schedc.models.milp import model as milp_model, variables as milp
from schedc.solvers.common.base import NO_LIMITS, Limits, SearchSettings, Solved, SolverStatus
from schedc.solvers.common.incumbent import Incumbent
from schedc.solvers.driver.registry import search_of
from schedc.solvers.exact.cpsat import CpSat, solve_cpsat
from schedc.solvers.exact.milp import solve_milp
from schedc.solvers.exact.refute import refute
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.heuristics.pipemorph import PipeMorph

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.problem import Problem
    from schedc.models.cpsat.variables import CpSatVariables as CpsatVariables
    from schedc.solvers.common.base import Improvement

PROBLEM = make_problem(3, 4, costs_ns=[(1, 2, 2), (6, 3, 5), (5, 4, 1)], in_flight=2, links={(0, 1): (4, 2), (1, 0): (4, 2)})
"""No analytic bound meets its optimum, so that `auto` comes to CP-SAT."""
LIMITS = Limits(workers=2)


def crossing() -> Problem:
    """Two paths share both stages: whoever takes each stage's microbatches in the order of their numbers loses something."""
    links = {(0, 1): (9, 0), (1, 0): (9, 0)}
    problem = make_problem(2, 3, costs_ns=[(1, 8, 1), (9, 2, 1)], memory_limit_bytes=[4, 4], links=links)
    return replace(problem, paths=((0, 1), (1, 0)), path_of=(0, 1, 0))


def failing(*_: object) -> None:
    raise ZeroDivisionError("out of\nluck")


@pytest.mark.parametrize("method", ["auto", "cpsat", "milp"])
def test_a_schedule_whose_microbatches_cross_is_proven(method: str) -> None:
    """Both ranks begin at once, with a microbatch of their own; in microbatch order, rank 1 would wait for microbatch 0 (77)."""
    problem = crossing()
    compiled = compile_problem(problem, SearchSettings(method=method, limits=LIMITS))
    assert compiled.failures == ()
    assert best_bound(problem).value_ns < 60
    assert compiled.plan.certificate.makespan_ns == compiled.plan.certificate.lower_bound_ns == 60
    assert compiled.plan.certificate.bound.is_solvers


def test_polish_refuses_paths_that_share_stages() -> None:
    """Its kernel knows one way of a stage's microbatches: it timed orders that wait for each other indefinitely."""
    with pytest.raises(Unsupported, match=r"^polish needs stages with one path each; here paths share some$"):
        compile_problem(crossing(), SearchSettings(method="polish", limits=LIMITS))


def test_the_bound_of_a_stage_span_whose_microbatches_cross() -> None:
    """Microbatches of two paths pass each other, and either rank may begin with one of the other's."""
    problem = replace(crossing(), objective=Objective.STAGE_SPAN)
    found = solve_cpsat(problem, Greedy(n_sub=1)(problem), limits=LIMITS)
    best_ns = optimum(problem)
    assert best_ns is not None
    assert 0 < found.lower_bound_ns <= best_ns <= found.objective_ns


@pytest.mark.parametrize("method", ["auto", "cpsat"])
def test_a_search_that_fails_does_not_lose_the_schedule(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpSat, "improve", failing)
    compiled = compile_problem(PROBLEM, SearchSettings(method=method, limits=LIMITS))
    (failure,) = compiled.failures
    assert (failure.method, failure.error, failure.message) == ("cpsat", "ZeroDivisionError", "out of\nluck")
    assert failure.place.startswith("schedc.solvers.driver.portfolio:")
    assert str(failure) == f"method cpsat failed with ZeroDivisionError at {failure.place}: out of luck"
    assert compiled.plan.certificate.bound != "cpsat"
    assert not compiled.plan.made_by.reproducible
    (tried,) = (entry for entry in compiled.candidates if entry.method == "cpsat")
    assert tried.why_not == "failed"


def test_what_a_search_found_before_it_failed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(method: CpSat, incumbent: Incumbent, limits: Limits) -> None:
        improve(method, incumbent, limits)
        failing()

    improve, problem = CpSat.improve, small_problem(13)
    monkeypatch.setattr(CpSat, "improve", lambda *_: None)
    before = compile_problem(problem, SearchSettings(method="cpsat", limits=LIMITS)).plan
    monkeypatch.setattr(CpSat, "improve", half)
    compiled = compile_problem(problem, SearchSettings(method="cpsat", limits=LIMITS))
    assert len(compiled.failures) == 1
    assert compiled.plan.made_by.method == "cpsat"
    assert compiled.plan.certificate.makespan_ns < before.certificate.makespan_ns
    assert compiled.plan.certificate.bound != "cpsat"  # what a failed search said is not trusted


def test_a_constructive_method_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PipeMorph, "construct", failing)
    compiled = compile_problem(m70(2, 2), SearchSettings(limits=Limits(gap=0.5)))
    assert [failure.method for failure in compiled.failures] == ["pipemorph", "pipemorph{policy=initial}"]
    assert compiled.plan.made_by.method.startswith("greedy")


def test_a_failure_that_leaves_no_schedule_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PipeMorph, "construct", failing)
    with pytest.raises(ZeroDivisionError):
        compile_problem(m70(2, 2), SearchSettings(method="pipemorph"))
    with pytest.raises(ZeroDivisionError):
        time_methods(m70(2, 2), ("gpipe", "pipemorph"))


@pytest.mark.parametrize("error", [Unsupported, InvalidInput])
def test_what_speaks_of_the_job_is_no_failure(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise error("not this one")

    monkeypatch.setattr(CpSat, "improve", refuse)
    with pytest.raises(error, match="not this one"):
        compile_problem(PROBLEM, SearchSettings(method="cpsat"))


def test_a_mistake_in_building_a_model_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: object) -> None:
        raise ValueError("a mistake")

    for module, solve in ((milp_model, solve_milp), (cpsat_model, solve_cpsat)):
        monkeypatch.setattr(module, "add_transfers", mistaken)
        with pytest.raises(ValueError, match="a mistake"):
            solve(PROBLEM, Greedy(n_sub=1)(PROBLEM), limits=LIMITS)


def test_no_schedule_beside_a_known_one_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constraint that nothing meets: the solvers say that there is no schedule, while one is known."""

    def late_in_milp(variables: milp.MilpVariables) -> None:
        variables.model += variables.start[Op(Kind.F, 0, 0)] >= variables.objective + 1

    def late_in_cpsat(variables: CpsatVariables) -> None:
        variables.model.add(variables.start[Op(Kind.F, 0, 0)] >= variables.objective + 1)

    monkeypatch.setattr(milp_model, "add_precedences", late_in_milp)
    monkeypatch.setattr(cpsat_model, "add_precedences", late_in_cpsat)
    for solve in (solve_milp, solve_cpsat):
        with pytest.raises(Defect, match="but one that has it is known"):
            solve(PROBLEM, Greedy(n_sub=1)(PROBLEM), limits=LIMITS)
    compiled = compile_problem(PROBLEM, SearchSettings(method="milp"))
    assert [failure.error for failure in compiled.failures] == ["Defect"]
    assert compiled.plan.certificate.gap > 0


@pytest.mark.parametrize("solve", [solve_cpsat, solve_milp])
def test_a_bound_above_the_incumbent_is_refused(solve: Callable[..., Solved]) -> None:
    known = Greedy(n_sub=1)(PROBLEM)
    with pytest.raises(Defect, match="1000 ns is above the objective of a known schedule"):
        solve(PROBLEM, known, limits=LIMITS, known_bound_ns=1000)
    with pytest.raises(Defect, match="is above"):
        Solved(schedule=known, objective_ns=10, lower_bound_ns=11, status=SolverStatus.OPTIMAL)


@pytest.mark.parametrize("solve", [solve_cpsat, solve_milp])
def test_what_is_raised_while_a_solver_runs_ends_it(solve: Callable[..., Solved]) -> None:
    problem = make_problem(3, 4, links={(1, 2): (7, 5), (2, 1): (7, 5)}, split_backward=False)
    one_by_one = Schedule(orders=tuple(tuple(Op(k, s, m) for m in range(4) for k in (Kind.F, Kind.BW)) for s in range(3)))
    with pytest.raises(ZeroDivisionError):
        solve(problem, one_by_one, limits=LIMITS, on_schedule=failing)


@pytest.mark.parametrize("method", ["cpsat", "milp", "refute"])
def test_an_unsound_bound_is_told_and_not_certified(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsound(_search: object, incumbent: Incumbent, _limits: Limits) -> None:
        incumbent.raise_bound(incumbent.objective_ns, BoundName.CPSAT, ("a log",))
        incumbent.raise_bound(incumbent.objective_ns + 1, BoundName.CPSAT, ("a log",))

    monkeypatch.setattr(type(search_of(method)), "improve", unsound)
    compiled = compile_problem(PROBLEM, SearchSettings(method=method))
    assert [failure.error for failure in compiled.failures] == ["Defect"]
    assert compiled.plan.certificate.lower_bound_ns == best_bound(PROBLEM).value_ns
    assert compiled.solver_log == ()


def incumbent_of(problem: Problem) -> Incumbent:
    bound = best_bound(problem)
    return Incumbent(problem=problem, bound_ns=bound.value_ns, bound_by=bound.name)


def test_a_schedule_below_a_solvers_bound_is_taken_and_the_bound_dropped() -> None:
    problem = make_problem(2, 3)
    incumbent, analytic_ns = incumbent_of(problem), best_bound(problem).value_ns
    slow = Schedule(orders=tuple(tuple(Op(kind, s, m) for m in range(3) for kind in (Kind.F, Kind.B, Kind.W)) for s in range(2)))
    incumbent.offer(slow, "slow")
    incumbent.raise_bound(incumbent.objective_ns, BoundName.CPSAT, ("a log",))
    with pytest.raises(Defect, match="cpsat: the lower bound"):
        incumbent.offer(Greedy(n_sub=1)(problem), "greedy")
    assert incumbent.found_by == "greedy"
    assert (incumbent.bound_ns, incumbent.solver_log) == (analytic_ns, ())


def test_a_schedule_that_cuts_blocks_leaves_a_solvers_bound_behind() -> None:
    """The bound holds for whole blocks: better is no contradiction then, and the plan may not name it."""
    problem = make_problem(1, 1)
    incumbent = incumbent_of(problem)
    incumbent.bound_ns = 0
    whole = Schedule(orders=((Op(Kind.F, 0, 0), Op(Kind.BW, 0, 0)),))
    halves = tuple(Op(Kind.W, 0, 0, part) for part in range(2))
    cut = Schedule(orders=((Op(Kind.F, 0, 0), Op(Kind.B, 0, 0), *halves),), parts=(Parts(kind=Kind.W, stage=0, shares=(1, 1)),))
    incumbent.offer(whole, "whole")
    incumbent.objective_ns, incumbent.whole_ns = 31, 31
    incumbent.raise_bound(31, BoundName.CPSAT, ("a log",))
    incumbent.offer(cut, "cut")
    assert (incumbent.found_by, incumbent.objective_ns) == ("cut", 30)
    assert (incumbent.bound_by, incumbent.solver_log) == (best_bound(problem).name, ())
    incumbent.raise_bound(31, BoundName.CPSAT, ("a log",))
    assert incumbent.solver_log == ()


def test_solver_without_limits_still_proves() -> None:
    assert solve_cpsat(PROBLEM, Greedy(n_sub=1)(PROBLEM), limits=NO_LIMITS).status == "OPTIMAL"


@pytest.mark.parametrize(("objective_ns", "bound_ns", "gap"), [(10, 10, 0.0), (10, 9, 0.1), (10, 0, 1.0), (0, 0, 0.0)])
def test_the_gap(objective_ns: int, bound_ns: int, gap: float) -> None:
    assert relative_gap(objective_ns, bound_ns, "work") == gap


def test_an_analytic_bound_above_a_schedule_is_a_defect_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """No verifier would accept the plan, so none is written; the message says which bound it is and by how much."""
    real = best_bound(PROBLEM)
    monkeypatch.setattr("schedc.compile.certify.lower_bounds", lambda _: (replace(real, value_ns=10_000),))
    with pytest.raises(
        Defect, match=f"test: {real.name}: the lower bound of 10000 ns is above the objective of a known schedule, "
    ):
        compile_problem(PROBLEM, SearchSettings(method="greedy"))


def test_a_relaxation_whose_answer_contradicts_a_schedule_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    links = {(0, 1): (5, 20), (1, 0): (5, 20)}
    problem = make_problem(2, 2, placement="loop", chunks=2, costs_ns=(2, 2, 1), in_flight=1, links=links)
    known = simulate(problem, Greedy(n_sub=1)(problem)).makespan_ns
    with pytest.raises(Defect, match="known before refute: the lower bound"):
        refute(problem, bound_ns=known + 1, objective_ns=known, limits=LIMITS)
    with pytest.raises(Defect, match="refute: the lower bound of 170 ns is above the objective of a known schedule, 100 ns"):
        refute(problem, bound_ns=0, objective_ns=100, limits=LIMITS)


def test_offers_from_several_threads_wait_for_each_other() -> None:
    """A solver's threads offer what they find; while one offer is taken and reported, the next one waits."""
    entered, go_on = threading.Event(), threading.Event()

    def report(_: Improvement) -> None:
        if not entered.is_set():
            entered.set()
            go_on.wait(100)

    slow = Schedule(orders=tuple(tuple(Op(kind, s, m) for m in range(4) for kind in (Kind.F, Kind.B, Kind.W)) for s in range(3)))
    incumbent = incumbent_of(PROBLEM)
    incumbent.settings = SearchSettings(report=report)
    first = threading.Thread(target=incumbent.offer, args=(slow, "slow"))
    others = [
        threading.Thread(target=incumbent.offer, args=(Greedy(n_sub=1)(PROBLEM), "fast")),
        threading.Thread(target=incumbent.raise_bound, args=(incumbent.bound_ns + 1, BoundName.CPSAT, ("a log",))),
    ]
    first.start()
    assert entered.wait(100)
    for other in others:
        other.start()
        other.join(0.2)
    assert all(other.is_alive() for other in others)
    assert [step.found_by for step in incumbent.history] == ["slow"]
    go_on.set()
    for thread in (first, *others):
        thread.join(100)
    assert incumbent.found_by == "fast"
    assert [step.objective_ns for step in incumbent.history] == sorted((s.objective_ns for s in incumbent.history), reverse=True)
