"""The relaxation's bound: never above the optimum, equal to it where nothing that decides is left out; its log says why."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.problems import make_problem
from inputs.tiny_problems import tiny_problem
from oracles.brute_force import SearchTooLarge, optimum

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.problem import Objective
from schedc.models.blocks import blocks_of, grid_of
from schedc.models.cpsat.model import build_relaxed
from schedc.models.start_windows import windows_of
from schedc.solvers.common.base import Limits, SolverStatus
from schedc.solvers.exact.cpsat_solver import CONFLICTS, one_worker, run
from schedc.solvers.exact.refute import SHARE, Refuted, _Asker, _Counted, refute
from schedc.solvers.heuristics.greedy import Greedy

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedc.ir.problem import Problem

LIMITS = Limits(workers=1)
LINKS = {(0, 1): (5, 20), (1, 0): (5, 20)}
STEP = 4
"""A makespan so much above the bound is a narrow one, in nanoseconds."""
STARVED = make_problem(2, 2, placement="loop", chunks=2, costs_ns=(2, 2, 1), in_flight=1, links=LINKS)
"""Links that carry three messages of every microbatch each way, and memory for one microbatch at a time."""


def refuted(problem: Problem, *, bound_ns: int = 0, limits: Limits = LIMITS) -> Refuted:
    known = simulate(problem, Greedy(n_sub=1)(problem)).makespan_ns
    return refute(problem, bound_ns=bound_ns, objective_ns=known, limits=limits)


@pytest.mark.parametrize("seed", range(60))
def test_never_above_the_optimum(seed: int) -> None:
    problem = replace(tiny_problem(Random(seed), most_ops=14, data_parallel=seed % 3 == 0), objective=Objective.MAKESPAN)
    try:
        least_ns = optimum(problem, most_states=30_000)
        found = refuted(problem)
    except (SearchTooLarge, Unsupported):
        return
    assert least_ns is not None
    assert 0 < found.lower_bound_ns <= least_ns


def test_ranks_for_which_there_was_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bound_ns = refuted(STARVED, limits=replace(LIMITS, time_s=60.0)).lower_bound_ns
    monkeypatch.setattr("schedc.solvers.exact.refute.RANKS_SHARE", 0.0)
    found = refuted(STARVED, limits=replace(LIMITS, time_s=60.0))
    assert found.cut_short
    assert found.lower_bound_ns <= bound_ns


@pytest.mark.parametrize("tick_ns", [1, 3_000_000_007])
def test_never_above_the_optimum_on_a_coarse_grid(tick_ns: int) -> None:
    """Durations of seconds that have no common divisor: a tick is several nanoseconds, and all is rounded down."""
    costs = [(2 * tick_ns + 1, tick_ns, tick_ns + 3), (tick_ns + 7, 3 * tick_ns + 1, tick_ns)]
    problem = make_problem(2, 2, costs_ns=costs, in_flight=1, links={(0, 1): (tick_ns, 5), (1, 0): (3, tick_ns)})
    least_ns = optimum(problem)
    assert least_ns is not None
    found = refuted(problem)
    assert found.lower_bound_ns <= least_ns
    assert found.lower_bound_ns > 0.99 * least_ns


def test_is_the_optimum_where_memory_and_links_decide_all() -> None:
    """Where compute is short, when ranks may do how much is of no account; brute force agrees."""
    known = simulate(STARVED, Greedy(n_sub=1)(STARVED)).makespan_ns
    heard: list[tuple[int, tuple[str, ...]]] = []
    found = refute(STARVED, bound_ns=0, objective_ns=known, limits=LIMITS, on_bound=lambda bound, log: heard.append((bound, log)))
    least_ns = optimum(STARVED)
    assert best_bound(STARVED).value_ns < found.lower_bound_ns == least_ns == 297
    assert not found.cut_short
    assert [bound for bound, _ in heard] == sorted({bound for bound, _ in heard})
    assert heard[-1][0] == found.lower_bound_ns
    assert "of ranks none; memory of ranks 0 only" in heard[-1][1][2]
    assert len({log[3] for _, log in heard}) == len(heard)


def test_counts_the_compute_of_ranks_that_are_crowded() -> None:
    """A wave of short ops over busy links: some F and backward of a rank would have to run at once for less; brute force agrees."""
    links = {(0, 1): (0, 3), (1, 0): (0, 3)}
    problem = make_problem(2, 2, placement="wave", chunks=2, costs_ns=(4, 5, 1), in_flight=2, links=links)
    known = simulate(problem, Greedy(n_sub=1)(problem)).makespan_ns
    heard: list[str] = []
    found = refute(problem, bound_ns=0, objective_ns=known, limits=LIMITS, on_bound=lambda _, log: heard.append(log[2]))
    assert found.lower_bound_ns == optimum(problem)
    assert "of ranks none" in heard[0]
    assert "of ranks none" not in heard[-1].split(";")[0]


def test_a_question_that_takes_long_does_not_displace_one_that_says_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what counts compute is never settled, narrow makespans with the memory of a few ranks say as much as before."""
    ask = _Asker.ask

    def without_compute(asker: _Asker, counted: _Counted, upper: int, share: float = SHARE) -> tuple[SolverStatus, frozenset[int]]:
        is_settled = not counted.computing and (not counted.limited or upper - asker.lower <= STEP)
        return ask(asker, counted, upper, share) if is_settled else (SolverStatus.UNKNOWN, frozenset())

    monkeypatch.setattr(_Asker, "ask", without_compute)
    assert refuted(STARVED).lower_bound_ns == 297


@pytest.mark.parametrize(("seed", "cut_short"), [(17, True), (20, True), (26, False)])
def test_is_the_optimum_of_what_counts_all_where_nothing_cut_it_short(seed: int, cut_short: bool) -> None:
    """Each row of relaxations goes by the crowded ranks of its own: with those of the other row, all three answers were wrong."""
    random, pairs = Random(seed), [(low, high) for low in range(3) for high in range(3) if low != high]
    links = {pair: (random.randint(0, 9), random.randint(0, 20)) for pair in pairs}
    f, b, w, held = (random.randint(3, 9), random.randint(3, 9), random.randint(3, 9), random.choice([2, 3]))
    problem = make_problem(3, 5, placement="loop", chunks=2, costs_ns=(f, b, w), links=links, in_flight=held)
    found, known = refuted(problem, bound_ns=best_bound(problem).value_ns), simulate(problem, Greedy(n_sub=1)(problem)).makespan_ns
    blocks, solver = blocks_of(problem, grid_of(problem, known)), one_worker(LIMITS)
    windows, tick_ns = windows_of(problem, blocks, grid_of(problem, known).ticks(known)), grid_of(problem, known).tick_ns
    whole = build_relaxed(problem, blocks, windows, 0, known // tick_ns, computing=range(3), limited=range(3))
    assert run(solver, whole.model)[0] is SolverStatus.OPTIMAL
    assert found.cut_short is cut_short
    assert cut_short or found.lower_bound_ns == solver.best_objective_bound * tick_ns


def test_starts_from_the_bound_that_is_known() -> None:
    assert refuted(STARVED, bound_ns=270).lower_bound_ns == 297
    known = simulate(STARVED, Greedy(n_sub=1)(STARVED)).makespan_ns
    assert refute(STARVED, bound_ns=known, objective_ns=known, limits=LIMITS) == Refuted(lower_bound_ns=known, cut_short=False)


def test_limits_end_it() -> None:
    assert refuted(STARVED, limits=replace(LIMITS, time_s=0.0)) == Refuted(lower_bound_ns=0, cut_short=True)
    deterministic = replace(LIMITS, deterministic=1e-4)
    assert refuted(STARVED, limits=deterministic) == refuted(STARVED, limits=deterministic)
    whole = replace(LIMITS, deterministic=60.0)
    assert refuted(STARVED, limits=replace(whole, time_s=-1.0)) == refuted(STARVED, limits=whole), "no clock ends it beside work"
    assert refuted(STARVED, limits=whole).lower_bound_ns == 297


def test_work_is_kept_where_cpsat_counts_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """In odd nanoseconds it moves times on one by one: thousands of conflicts, a few hundredths of its units."""
    asked: list[tuple[int, float]] = []

    def counted(solver: cp_model.CpSolver, model: cp_model.CpModel) -> tuple[SolverStatus, BaseException | None]:
        answer = run(solver, model)
        asked.append((solver.num_conflicts, solver.response_proto.deterministic_time))
        return answer

    costs = (
        ((3683568296, 6022961603, 15793886854), (3484833967, 15753021672, 3279291046), (12534535217, 18493920248, 18087246708)),
        ((12261646380, 18034135637, 9409567014), (9119599117, 6917534367, 9950100039), (12036893837, 15428840151, 15496533678)),
    )
    problem = make_problem(1, 3, placement="loop", chunks=2, activation=[(4, 1), (1, 1)], memory_limit_bytes=[5])
    stages = tuple(
        replace(stage, forward_ns=f, backward_input_ns=b, backward_weight_ns=w, backward_ns=tuple(map(sum, zip(b, w, strict=True))))
        for stage, (f, b, w) in zip(problem.stages, costs, strict=True)
    )
    monkeypatch.setattr("schedc.solvers.exact.refute.run", counted)
    found = refuted(replace(problem, stages=stages), limits=replace(LIMITS, deterministic=0.4))
    conflicts, work = (sum(each) for each in zip(*asked, strict=True))
    assert work < 0.2
    assert CONFLICTS / 10 < conflicts <= CONFLICTS * found.work
    assert found.work < 0.5
    assert found.cut_short


def test_speaks_only_of_makespans() -> None:
    with pytest.raises(Unsupported, match="the objective is stage-span"):
        refuted(replace(STARVED, objective=Objective.STAGE_SPAN))
