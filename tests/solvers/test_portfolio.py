"""The portfolio: what ends it, what it keeps, and what it says about it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inputs.asynchronous_plans import period_plan
from inputs.problems import m70, make_problem, with_fused_backward

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.certify import check_plan
from schedc.compile.driver import compile_problem
from schedc.errors import InvalidInput, Unsupported
from schedc.formats.plan.plan_file import plan_json
from schedc.ir.plan import BoundName, MadeBy
from schedc.ir.problem import Objective, Versions
from schedc.solvers.common.base import Climbing, Limits, SearchSettings
from schedc.solvers.common.incumbent import Ended, Incumbent, mixture_of
from schedc.solvers.driver import portfolio
from schedc.solvers.driver.portfolio import candidate_names, solve, try_methods
from schedc.solvers.driver.registry import constructive, search_of
from schedc.solvers.driver.turns import AFTERWARDS, TURNS, afterwards_of, turns_of
from schedc.solvers.heuristics import greedy
from schedc.solvers.heuristics.greedy import ONE_RULE
from schedc.solvers.heuristics.steady import SteadyList
from schedc.solvers.kernel.list_scheduler import ListScheduler
from schedc.solvers.templates import TEMPLATES
from schedc.verify.schedule.checks import verify_schedule
from schedc.view.terminal.results import compiled_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.problem import Problem
    from schedc.solvers.common.base import Improvement
    from schedc.solvers.common.method import LocalSearch, Search
    from schedc.solvers.kernel.list_scheduler import ListSchedule
    from schedc.solvers.kernel.scheduler_state import Rule

MS = 1_000_000


def test_auto_proves_the_known_optimum() -> None:
    certificate = compile_problem(m70(2, 2)).plan.certificate
    assert certificate.makespan_ns == certificate.lower_bound_ns == 2736 * MS
    assert certificate.bound in ("idle-gaps", "cpsat")


def test_where_steps_overlap_and_nothing_else_is_done_in_time_one_by_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> None:
        while True:  # until the alarm
            time.sleep(0.01)

    problem = period_plan(2, 2, Versions.TWO_BUFFERED, wave=True).problem
    monkeypatch.setattr(SteadyList, "construct", late)
    settings = SearchSettings(limits=Limits(time_s=0.1))
    with settings.interruption.listening():
        found = solve(problem, settings, bound_ns=0, bound_by=BoundName.WORK, least_s=0.1)
    assert found.found_by == "one-by-one" and found.schedule is not None
    assert verify_schedule(problem, found.schedule) == ()


@pytest.mark.parametrize(("method", "gap", "ended"), [("steady", 0.0, Ended.OUT_OF_TIME), ("auto", 1.0, Ended.WITHIN_GAP)])
def test_what_a_method_keeps_where_the_time_ends_another_run_may_not_find(
    method: str, gap: float, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`steady` climbs without end here, and has a plan then, at least all ops one by one; also where no search follows it."""

    def climb(*_: object) -> None:
        while True:  # until the alarm
            time.sleep(0.01)

    problem = period_plan(2, 2, Versions.TWO_BUFFERED, wave=True).problem
    monkeypatch.setattr("schedc.solvers.heuristics.steady.swap_climb", climb)
    settings = SearchSettings(method=method, limits=Limits(time_s=1.0, gap=gap))
    with settings.interruption.listening():
        found = solve(problem, settings, bound_ns=0, bound_by=BoundName.WORK, least_s=1.0)
    assert found.schedule is not None
    assert (found.ended, found.cut_short) == (ended, True)
    assert found.seconds < 30


def test_a_solvers_bound_is_marked_with_what_it_rests_on() -> None:
    """No analytic bound is tight on these unequal stages, so only CP-SAT can prove the optimum."""
    links = {(0, 1): (4, 2), (1, 0): (4, 2)}
    problem = make_problem(3, 4, costs_ns=[(1, 2, 2), (6, 3, 5), (5, 4, 1)], in_flight=2, links=links)
    compiled = compile_problem(problem)
    certificate = compiled.plan.certificate
    assert certificate.gap == 0
    assert certificate.bound == "cpsat"
    assert len(certificate.solver_log_sha256) == 64
    assert "ortools" in compiled.solver_log[0]


@pytest.mark.slow
def test_the_history_only_improves_and_ends_at_the_plan() -> None:
    heard: list[Improvement] = []
    compiled = compile_problem(m70(0.25, 0.25), SearchSettings(report=heard.append))
    assert compiled.history == tuple(heard)
    makespans = [step.makespan_ns for step in heard]
    bounds = [step.lower_bound_ns for step in heard]
    assert makespans == sorted(makespans, reverse=True)
    assert bounds == sorted(bounds)
    assert makespans[-1] == compiled.plan.certificate.makespan_ns == 2204 * MS
    assert [step.seconds for step in heard] == sorted(step.seconds for step in heard)


def test_the_history_of_a_stage_span_is_of_the_stage_span() -> None:
    """Ranks that start late have spans shorter than the makespan; the gap shown is the certificate's, of the objective."""
    problem = replace(make_problem(2, 4, costs_ns=[(3, 1, 1), (5, 5, 9)]), objective=Objective.STAGE_SPAN)
    compiled = compile_problem(problem, SearchSettings(limits=Limits(workers=2)))
    certificate, last = compiled.plan.certificate, compiled.history[-1]
    assert certificate.stage_span_ns < certificate.makespan_ns
    assert (last.objective, last.objective_ns, last.makespan_ns) == (
        "stage-span",
        certificate.stage_span_ns,
        certificate.makespan_ns,
    )
    assert last.gap == certificate.gap == 0
    assert compiled_json(compiled)["history"][-1]["objective_ns"] == compiled_json(compiled)["objective_ns"] == last.objective_ns


def test_a_gap_that_is_met_at_once_ends_the_search() -> None:
    compiled = compile_problem(m70(2, 2), SearchSettings(limits=Limits(gap=0.5)))
    assert compiled.plan.certificate.bound != "cpsat"
    assert compiled.plan.made_by.method.startswith("greedy")
    assert compiled.plan.made_by.reproducible


def test_no_time_leaves_the_constructive_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "CONSTRUCTIVE_S", 900.0)  # on a machine that stalls they may need all of it
    compiled = compile_problem(m70(2, 2), SearchSettings(limits=Limits(time_s=0)))
    assert all(step.found_by != "cpsat" for step in compiled.history)
    assert {entry.method for entry in compiled.candidates} >= {"1f1b", "zb-h1", "greedy", "pipemorph"}


def test_an_interruption_keeps_the_best_plan_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    replace_search(monkeypatch, "cpsat", interrupted)
    compiled = compile_problem(m70(2, 0.25, microbatches=32, in_flight=12), SearchSettings(method="cpsat"))
    assert compiled.plan.certificate.makespan_ns < 4000 * MS
    assert not compiled.plan.made_by.reproducible


def test_an_interruption_before_any_schedule_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("schedc.solvers.driver.portfolio.try_methods", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_problem(m70(2, 2))


@pytest.mark.parametrize(
    ("limits", "first"), [(Limits(time_s=60), "cpsat"), (Limits(deterministic=1), "local{rounds=3}"), (Limits(), "local{rounds=3}")]
)
def test_only_a_clock_lets_others_go_before_what_is_not_compiled_yet(
    limits: Limits, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the plan depended on whether the machine is fresh."""
    begun: list[str] = []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("local", "cpsat"):
        replace_search(monkeypatch, name, interrupted)
    monkeypatch.setattr(portfolio, "at_hand", lambda _: False)
    monkeypatch.setattr(portfolio, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(portfolio, "try_methods", lambda incumbent, *_, **__: try_methods(incumbent, ("1f1b",)))
    compile_problem(m70(2, 0.25, microbatches=8), SearchSettings(limits=limits, on_method=begun.append))
    assert [each for each in begun if each != "1f1b"] == [first]


@pytest.mark.parametrize(
    "problem",
    [
        m70(2, 0.25, microbatches=8),
        pytest.param(with_fused_backward(m70(2, 0.25, microbatches=8), 9), marks=pytest.mark.slow),
    ],
)
def test_a_deterministic_limit_gives_the_same_bytes_twice(problem: Problem) -> None:
    limits = Limits(deterministic=0.5, seed=3)
    plans = [plan_json(compile_problem(problem, SearchSettings(limits=limits)).plan) for _ in range(2)]
    assert plans[0] == plans[1]


SEVERAL_CHUNKS = make_problem(
    2,
    6,
    placement="loop",
    chunks=2,
    costs_ns=[(3, 4, 2), (5, 3, 4), (2, 6, 1), (4, 4, 3)],
    in_flight=2,
    links={(0, 1): (9, 6), (1, 0): (9, 6)},
)
"""What `auto` hands to `cpsat` and `refute` in turns, as no analytic bound meets what it finds."""


@pytest.mark.parametrize(("spent", "total"), [(1.0, 8.0), (0.0, None)])
def test_the_searches_share_a_deterministic_limit(spent: float, total: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one leaves, the others get; together they never get more than there is."""
    given: list[float] = []

    def spend(_search: Search, incumbent: Incumbent, limits: Limits) -> None:
        assert limits.deterministic is not None
        given.append(limits.deterministic)
        incumbent.work += spent * limits.deterministic

    for name in ("cpsat", "refute"):
        replace_search(monkeypatch, name, spend)
    without_local_search(monkeypatch)
    compile_problem(SEVERAL_CHUNKS, SearchSettings(limits=Limits(deterministic=8.0)))
    assert len(given) == 4
    assert given[-1] > 0
    assert sum(given) == pytest.approx(total) if total else given[-1] == 8.0


def without_local_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long, and ends by its rounds, not by a limit."""

    for name in ("local", "polish"):
        replace_search(monkeypatch, name, lambda *_: None)


def replace_search(monkeypatch: pytest.MonkeyPatch, name: str, improve: Callable[..., None]) -> None:
    monkeypatch.setattr(type(search_of(name)), "improve", improve)


@pytest.mark.slow
def test_while_a_clock_leaves_time_the_local_searches_go_on_from_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, int, int]] = []

    def improve(search: LocalSearch, _incumbent: Incumbent, limits: Limits) -> None:
        begun.append((search.name, search.rounds, limits.seed))
        if limits.seed == 9 and search.name == "polish":
            raise KeyboardInterrupt

    for name in ("local", "polish"):
        replace_search(monkeypatch, name, improve)
    for name in ("cpsat", "refute"):
        replace_search(monkeypatch, name, lambda *_: None)
    assert compile_problem(SEVERAL_CHUNKS, SearchSettings(limits=Limits(time_s=600, seed=7))).ended == Ended.INTERRUPTED
    assert begun[-4:] == [("local", 16, 8), ("polish", 16, 8), ("local", 32, 9), ("polish", 32, 9)]
    assert {seed for _, _, seed in begun[:-4]} == {7 + portfolio.AGAIN * number for number in range(5)}


def test_a_local_search_never_has_the_same_seed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, int]] = []
    for name in ("local", "polish", "cpsat", "refute"):
        replace_search(monkeypatch, name, lambda search, _, limits: begun.append((search.name, limits.seed)))
    for limits in (Limits(seed=7), Limits(deterministic=5.0, seed=7)):
        begun.clear()
        compile_problem(SEVERAL_CHUNKS, SearchSettings(limits=limits))
        local = [each for each in begun if each[0] in ("local", "polish")]
        assert len(set(local)) == len(local) == 7
        assert {seed for name, seed in begun if name in ("cpsat", "refute")} | {local[0][1]} == {7}


def test_where_no_search_works_nothing_is_left_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise Unsupported("no")

    for name in ("local", "polish", "cpsat", "refute"):
        replace_search(monkeypatch, name, unsupported)
    assert compile_problem(SEVERAL_CHUNKS, SearchSettings(limits=Limits(time_s=60))).ended == Ended.EXHAUSTED


@pytest.mark.slow
def test_no_more_is_spent_than_the_deterministic_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """CP-SAT looks at its own clock now and then, so that each of its runs may go a little beyond."""
    without_local_search(monkeypatch)
    bound = best_bound(SEVERAL_CHUNKS)
    limits = Limits(deterministic=0.3, workers=2)
    found = solve(SEVERAL_CHUNKS, SearchSettings(limits=limits), bound_ns=bound.value_ns, bound_by=bound.name)
    assert 0 < found.work < 1.4 * 0.3


@pytest.mark.slow
@pytest.mark.parametrize(("search", "kernel"), [("local", "local.local_search"), ("polish", "polish.polish_schedule")])
def test_a_deterministic_limit_ends_local_searches_too(search: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def climb(*arguments: object) -> None:
        given.append(next(each.rounds for each in arguments if isinstance(each, Climbing)))
        raise Unsupported("enough is known")

    monkeypatch.setattr(f"schedc.solvers.search.{kernel}", climb)
    for deterministic in (None, 0.2, 3.0):
        limits = Limits(time_s=30) if deterministic is None else Limits(deterministic=deterministic)
        with pytest.raises(Unsupported):
            compile_problem(SEVERAL_CHUNKS, SearchSettings(method=f"{search}{{rounds=7}}", limits=limits))
    assert given == [7, 1, 3]


def test_bounds_and_methods_without_time_leave_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing has time before there is a schedule, one is made all the same, and what its certificate claims is true."""
    monkeypatch.setattr("schedc.compile.certify.BOUNDS_SHARE", 0.0)
    monkeypatch.setattr("schedc.compile.certify.LEAST_BOUNDS_S", 0.0)
    monkeypatch.setattr("schedc.solvers.driver.portfolio.CONSTRUCTIVE_S", 0.0)
    monkeypatch.setattr("schedc.solvers.driver.portfolio.SMALL_OPS", 0)
    monkeypatch.setattr("schedc.solvers.heuristics.greedy.SMALL_OPS", 0)
    for method in ("auto", "cpsat"):
        compiled = compile_problem(SEVERAL_CHUNKS, SearchSettings(method=method, limits=Limits(time_s=0.0)))
        claims = compiled.plan.certificate
        assert (compiled.plan.made_by.method, compiled.ended) == (ONE_RULE, Ended.OUT_OF_TIME)
        assert check_plan(compiled.plan) == ()
        assert 0 < claims.lower_bound_ns <= best_bound(SEVERAL_CHUNKS).value_ns
        assert claims.bound not in (BoundName.IDLE_GAPS, BoundName.WARM_UP)


def test_of_a_large_problem_one_rule_comes_before_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock may end the choice among rules; then the schedule of one is there."""
    small, large = m70(2, 0.25, microbatches=8), m70(2, 0.25, microbatches=256)
    assert ONE_RULE not in candidate_names(small)
    names = candidate_names(large)
    assert names.index([*TEMPLATES][-1]) < names.index(ONE_RULE) < names.index("greedy")
    rules: list[Rule] = []

    class Counting(ListScheduler):
        def __call__(self, rule: Rule) -> ListSchedule:
            rules.append(rule)
            return super().__call__(rule)

    monkeypatch.setattr(greedy, "ListScheduler", Counting)
    monkeypatch.setattr(greedy, "CHOOSING_BLOCKS", 300)  # as of a problem so large that rules are compared on a part of it
    assert verify_schedule(large, constructive(ONE_RULE)(large)) == ()
    assert len(rules) == 1


def test_a_clock_that_cuts_a_search_short_is_told() -> None:
    compiled = compile_problem(m70(2, 2, microbatches=32, in_flight=6), SearchSettings(method="cpsat", limits=Limits(time_s=0.3)))
    assert not compiled.plan.made_by.reproducible


def test_a_schedule_that_cuts_blocks_gets_no_solver_bound() -> None:
    """One rank would idle for a part of a W: two microbatches, a long way, and W's that fit into the wait only in parts."""
    problem = make_problem(2, 2, costs_ns=[(10, 10, 31), (10, 10, 10)], links={(0, 1): (40, 0), (1, 0): (40, 0)}, in_flight=2)
    compiled = compile_problem(problem)
    if compiled.plan.parts:
        assert compiled.plan.certificate.bound not in ("cpsat", "milp")
        assert compiled.plan.certificate.solver_log_sha256 == ""
    assert (
        compiled.plan.certificate.makespan_ns
        <= compile_problem(problem, SearchSettings(method="cpsat")).plan.certificate.makespan_ns
    )


@pytest.mark.parametrize("method", ["cpsat{threads=2}", "local{rounds=many}", "simulated-annealing"])
def test_wrong_methods_are_told_before_anything_runs(method: str) -> None:
    with pytest.raises(InvalidInput):
        compile_problem(m70(0, 0), SearchSettings(method=method))


def test_polish_starts_from_the_best_of_each_mixture() -> None:
    problem = with_fused_backward(m70(2, 0.25, microbatches=8), 9)
    bound = best_bound(problem)
    incumbent = Incumbent(problem=problem, bound_ns=bound.value_ns, bound_by=bound.name)
    try_methods(incumbent, candidate_names(problem))
    starts = incumbent.starts(6)
    assert starts[0] == incumbent.start
    assert {mixture_of(each) for each in starts[1:3]} | {mixture_of(starts[0])} == {"fused", "split", "mixed"}
    assert len(starts) == len(set(map(hash, starts))) == 6
    assert incumbent.starts(1) == [incumbent.start]
    best_ns: dict[str, int] = {}
    for (_, mixture), (objective_ns, schedule) in incumbent.families.items():
        assert verify_schedule(problem, schedule) == ()
        best_ns[mixture] = min(objective_ns, best_ns.get(mixture, objective_ns))
    assert min(best_ns.values()) == incumbent.whole_ns
    assert [simulate(problem, each).makespan_ns for each in starts[:3]] == sorted(best_ns.values())


@pytest.mark.slow
def test_auto_ends_no_worse_than_polish_alone_with_the_same_work() -> None:
    """Two waves with a slow link and BW cheaper than B and W: it ended above `polish`, which had little time after the others."""
    links = {(1, 2): (38, 9), (2, 1): (38, 9)}
    for in_flight in (4, 8):
        problem = with_fused_backward(
            make_problem(4, 16, placement="wave", chunks=2, costs_ns=(38, 46, 20), in_flight=in_flight, links=links), 9
        )
        limits = Limits(deterministic=2.0, workers=2)
        alone, auto = (
            compile_problem(problem, SearchSettings(method=method, limits=limits)).plan.certificate
            for method in ("polish{rounds=400}", "auto")
        )
        assert auto.makespan_ns <= alone.makespan_ns


def test_who_found_nothing_better_says_what_share_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    without_local_search(monkeypatch)
    for name in ("cpsat", "refute"):
        replace_search(monkeypatch, name, lambda *_: None)
    compiled = compile_problem(SEVERAL_CHUNKS, SearchSettings(limits=Limits(deterministic=8.0)))
    turns = turns_of(SEVERAL_CHUNKS)
    said = [each.why_not for each in compiled.candidates if each.method in {turn.search for turn in turns}]
    assert said == [f"found nothing better in {turn.share:.0%} of what was left: {turn.aim}" for turn in turns]


def test_every_kind_of_problem_has_turns_that_exist() -> None:
    for turns in (*TURNS.values(), AFTERWARDS):
        for turn in turns:
            assert search_of(turn.search).name in turn.search
            assert 0 < turn.share <= 1


@pytest.mark.parametrize("chunks", [1, 2])
def test_those_that_had_a_turn_go_on(chunks: int) -> None:
    placement = "loop" if chunks > 1 else "unidirectional"
    problem = make_problem(2, 4, placement=placement, chunks=chunks, costs_ns=(4, 5, 3))
    cheaper = with_fused_backward(problem, 9)
    for each in (problem, cheaper):
        assert [turn.search for turn in afterwards_of(each)] == ["local", "polish"]


def test_made_by_names_the_method_and_the_seed() -> None:
    compiled = compile_problem(m70(0, 0), SearchSettings(limits=Limits(seed=11)), job_sha256="ab" * 32)
    assert compiled.plan.made_by == MadeBy(schedc="0.1.0", method="zb-h1", seed=11, job_sha256="ab" * 32)
