"""Bounds by a pace that none keep: never above the best schedule, and no pace is refuted that microbatches of a schedule keep."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from inputs.problems import make_problem

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.ir import BoundName, Kind, Objective
from schedc.models.cpsat.pace import PARTS, build_pace
from schedc.solvers.common.base import Limits, SearchSettings, SolverStatus
from schedc.solvers.common.incumbent import Incumbent
from schedc.solvers.driver.portfolio import solve
from schedc.solvers.exact.cpsat_solver import run
from schedc.solvers.exact.pace import LEAST_AHEAD, MOST_TICKS, Pace, Paces, pace_solver
from schedc.solvers.heuristics.greedy import Greedy
from schedc.study.bench.pipelines import LinkTimes, both_ways, pipeline
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir import Problem

LIMITS = Limits(workers=1, deterministic=0.05)
AHEAD, MORE_AHEAD = 4, 7


def drawn(seed: int, microbatches: int) -> Problem:
    """A chain with unlike stages, links and limits; every other one in odd nanoseconds and bytes, every third with cheaper BW."""
    random = Random(seed)
    ranks, is_odd = random.randint(2, 4), seed % 2
    unit_ns, byte = (1_000_003, 1 << 20) if is_odd else (1, 1)

    def draw(least: int, most: int, unit: int) -> int:
        return random.randint(least, most) * unit + (random.randint(0, unit // 7) if is_odd and least else 0)

    held = [(draw(2, 6, byte), draw(0, 2, byte)) for _ in range(ranks)]
    links = {
        pair: (draw(0, 30, unit_ns), draw(0, 20, unit_ns) if random.random() < 0.5 else 0)
        for low in range(ranks - 1)
        for pair in ((low, low + 1), (low + 1, low))
        if random.random() < 0.7
    }
    problem = make_problem(
        ranks,
        microbatches,
        costs_ns=[(draw(3, 12, unit_ns), draw(3, 14, unit_ns), draw(1, 9, unit_ns)) for _ in range(ranks)],
        activation=held,
        memory_limit_bytes=[int(random.uniform(2, 5) * whole) for whole, _ in held],
        links=links,
        split_backward=seed % 7 > 0,
    )
    if seed % 3 == 0:
        stages = [replace(each, backward_ns=(each.backward_ns[0] * 4 // 5,)) for each in problem.stages]
        problem = replace(problem, stages=tuple(stages))
    return problem


def refuted(paces: Paces, pace: int, ahead: int) -> bool:
    return run(pace_solver(LIMITS), build_pace(paces.chain, ahead, pace))[0] is SolverStatus.INFEASIBLE


def bound_ns(problem: Problem, objective_ns: int, rank: int) -> int:
    """The largest bound that a few questions about the marks of a rank prove."""
    paces = Paces(problem, (AHEAD,)).marking(rank)
    low, high = 0, paces.pace(2 * objective_ns, AHEAD)
    for _ in range(5):
        asked = (low + high + 1) // 2
        low, high = (asked, high) if refuted(paces, asked, AHEAD) else (low, asked - 1)
    return paces.bound_ns({AHEAD: low})


def check(seed: int) -> int:
    """No pace is refuted that microbatches of a schedule keep; those that they do not keep bound no makespan above its own."""
    problem = drawn(seed, 30)
    first, compared = Paces(problem, (AHEAD, MORE_AHEAD)), 0
    for method in (Greedy(n_sub=1), Greedy(n_sub=4)):
        schedule = method(problem)
        if verify_schedule(problem, schedule):
            continue
        timeline = simulate(problem, schedule)
        ops = list(zip(timeline.ops.tolist(), timeline.starts_ns.tolist(), strict=True))
        for rank, stage_of_rank in enumerate(problem.paths[0]):
            paces = first.marking(rank)
            marks = sorted(
                start_ns for (kind, stage, _, _), start_ns in ops if stage == stage_of_rank and kind in (Kind.B, Kind.BW)
            )
            kept: dict[int, int] = {}
            for ahead in paces.aheads:
                kept_ns = min(
                    max((marks[k + more] - marks[k]) / more for more in range(1, ahead + 1)) for k in range(len(marks) - ahead)
                )
                kept[ahead] = int(kept_ns * PARTS / paces.tick_ns)
                assert not refuted(paces, kept[ahead] + 1, ahead), (seed, rank)
                assert paces.bound_ns({ahead: kept[ahead]}) <= paces.bound_ns(kept) <= timeline.makespan_ns, (seed, rank)
        compared += 1
    return compared


def check_short(seed: int) -> bool:
    problem = drawn(seed, 8)
    known = Greedy(n_sub=1)(problem)
    if verify_schedule(problem, known):
        return False
    best_ns = best_bound(problem).value_ns
    settings = SearchSettings(method="cpsat", limits=LIMITS)
    found = solve(problem, settings, bound_ns=best_ns, bound_by=BoundName.WORK, known=[(known, "greedy")])
    assert all(bound_ns(problem, found.objective_ns, rank) <= found.objective_ns for rank in range(problem.ranks)), seed
    return True


def test_refutes_no_pace_that_a_schedule_keeps() -> None:
    assert sum(map(check, range(8))) >= 8


@pytest.mark.slow
def test_refutes_none_of_more_and_is_above_no_more() -> None:
    assert sum(map(check, range(1000, 1030))) >= 50
    assert sum(map(check_short, range(1000, 1015))) >= 12


def test_is_never_above_the_best_schedule() -> None:
    assert sum(map(check_short, range(100, 104))) >= 3


REPEATS = pipeline("repeats", 3, 40, (76, 93, 41), in_flight=3, slow=both_ways((0,), LinkTimes(76, 38)))


def test_raises_the_bound_of_many_microbatches() -> None:
    assert Paces(REPEATS).aheads == (16, 18, 24)
    known, before = Greedy(n_sub=4)(REPEATS), best_bound(REPEATS)
    settings = SearchSettings(method="pace", limits=LIMITS)
    found = solve(REPEATS, settings, bound_ns=before.value_ns, bound_by=before.name, known=[(known, "greedy")])
    assert before.value_ns < found.bound_ns <= found.objective_ns
    assert found.bound_by is BoundName.CPSAT_CUT
    assert "status INFEASIBLE" in found.solver_log[-1]


@pytest.mark.parametrize(("limits", "cut_short"), [(Limits(time_s=60), True), (LIMITS, False)])
def test_a_question_that_a_clock_ended_is_no_reproducible_answer(
    limits: Limits, cut_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schedc.solvers.exact.pace.run", lambda *asked: (SolverStatus.UNKNOWN, run(*asked)[1]))
    best, incumbent = best_bound(REPEATS), Incumbent(problem=REPEATS, bound_ns=1, bound_by=BoundName.WORK)
    incumbent.offer(Greedy(n_sub=1)(REPEATS), "greedy")
    incumbent.raise_bound(best.value_ns, best.name, ())
    Pace().improve(incumbent, limits)
    assert incumbent.cut_short is cut_short


def test_bounds_of_the_last_are_weaker_without_time_and_never_missing() -> None:
    pairs = []
    for seed in range(8):
        problem = drawn(seed, 30)
        hurried, paces = Paces(problem, until=lambda: True), Paces(problem)
        assert hurried.chain == paces.chain
        pairs.append((hurried.bound_ns({LEAST_AHEAD: MOST_TICKS}), paces.bound_ns({LEAST_AHEAD: MOST_TICKS})))
    assert all(0 < less <= most for less, most in pairs) and any(less < most for less, most in pairs)


@pytest.mark.parametrize(
    ("changed", "why_not"),
    [
        ({"objective": Objective.STAGE_SPAN}, "bounds the makespan"),
        ({"microbatches": 16, "path_of": (0,) * 16}, "a step of more than 16, and of more than 4 times as many"),
        ({"memory_limit_bytes": (None,) * 3}, "1 to 12 microbatches fit the first rank"),
    ],
)
def test_says_what_it_needs(changed: dict[str, Any], why_not: str) -> None:
    assert not Pace.misfit(REPEATS)
    assert why_not in Pace.misfit(replace(REPEATS, **changed))
