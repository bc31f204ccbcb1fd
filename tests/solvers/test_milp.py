"""HiGHS on the MILP: known optima, bounds, limits, and what happens where it is not installed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pulp
import pytest
from inputs.fused_problems import with_fused
from inputs.problems import make_problem
from inputs.small_problems import small_problem
from oracles.brute_force import optimum

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import Objective
from schedc.ir.schedule import Schedule
from schedc.solvers.common.base import NO_LIMITS, Limits
from schedc.solvers.exact.milp import MOST_TICKS, solve_milp
from schedc.solvers.heuristics.greedy import Greedy
from schedc.verify.schedule.checks import verify_schedule

SLOW_MIDDLE = {(1, 2): (7, 5), (2, 1): (7, 5)}


@pytest.mark.parametrize(
    ("middle_ns", "limit_bytes", "optimum_ns"),
    [(1, 12, 138), (1, 16, 138), (20, 12, 199), (20, 16, 169), (40, 12, 279), (40, 16, 209)],
)
def test_four_stages_and_eight_microbatches(middle_ns: int, limit_bytes: int, optimum_ns: int) -> None:
    """F, B, W of 5, 6, 4, held memory +2, −1, −1, links of 1 but the middle one: optima that CP-SAT proved elsewhere."""
    latency = {(0, 1): 1, (1, 2): middle_ns, (2, 3): 1}
    links = {pair: (ns, 0) for (a, b), ns in latency.items() for pair in ((a, b), (b, a))}
    problem = make_problem(4, 8, costs_ns=(5, 6, 4), memory_limit_bytes=[limit_bytes] * 4, links=links)
    found = solve_milp(problem, Greedy(n_sub=1)(problem), limits=NO_LIMITS)
    assert (found.status, found.objective_ns, found.lower_bound_ns) == ("OPTIMAL", optimum_ns, optimum_ns)
    assert verify_schedule(problem, found.schedule) == ()
    assert simulate(problem, found.schedule).makespan_ns == optimum_ns


def test_improves_a_poor_incumbent_and_reports_what_it_finds() -> None:
    problem = make_problem(3, 4, links=SLOW_MIDDLE, split_backward=False)
    one_by_one = Schedule(orders=tuple(tuple(Op(k, s, m) for m in range(4) for k in (Kind.F, Kind.BW)) for s in range(3)))
    heard: list[Schedule] = []
    bounds_ns: list[int] = []
    found = solve_milp(problem, one_by_one, limits=NO_LIMITS, on_schedule=heard.append, on_bound=bounds_ns.append)
    before_ns = simulate(problem, one_by_one).makespan_ns
    assert found.objective_ns == found.lower_bound_ns < before_ns
    assert heard
    for schedule in heard:
        assert verify_schedule(problem, schedule) == ()
        assert found.objective_ns <= simulate(problem, schedule).makespan_ns < before_ns
    assert bounds_ns == sorted(set(bounds_ns))
    assert all(0 < bound_ns <= found.lower_bound_ns for bound_ns in bounds_ns)


def test_keeps_an_optimal_incumbent() -> None:
    problem = make_problem(3, 4, links=SLOW_MIDDLE)
    best = solve_milp(problem, Greedy(n_sub=1)(problem), limits=NO_LIMITS).schedule
    heard: list[Schedule] = []
    again = solve_milp(problem, best, limits=NO_LIMITS, on_schedule=heard.append)
    assert again.schedule is best
    assert again.objective_ns == again.lower_bound_ns
    assert heard == []


def test_the_seed_decides() -> None:
    problem = small_problem(26)
    runs = [solve_milp(problem, Greedy(n_sub=1)(problem), limits=Limits(seed=7)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_the_log_names_the_model() -> None:
    logs = [solve_milp(small_problem(seed), Greedy(n_sub=1)(small_problem(seed)), limits=NO_LIMITS).log for seed in (26, 26, 27)]
    assert logs[0] == logs[1]
    assert logs[0][0].startswith("solver HiGHS 1.")
    assert "random_seed: 0" in logs[0][1]
    assert logs[0][2] != logs[2][2]
    assert logs[0][3].startswith("status RELAXED, best bound ")  # seconds in odd nanoseconds: its grid is coarser


def test_a_deterministic_limit_gives_the_same_every_time() -> None:
    problem = make_problem(4, 8, costs_ns=(5, 6, 4), memory_limit_bytes=[8] * 4)
    incumbent = Greedy(n_sub=1)(problem)
    runs = [solve_milp(problem, incumbent, limits=Limits(deterministic=0.4)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].status == "FEASIBLE"
    assert runs[0].lower_bound_ns < runs[0].objective_ns


def test_a_gap_is_good_enough() -> None:
    problem = make_problem(4, 8, costs_ns=(5, 6, 4), memory_limit_bytes=[8] * 4)
    found = solve_milp(problem, Greedy(n_sub=1)(problem), limits=Limits(gap=0.5))
    assert found.objective_ns / 2 <= found.lower_bound_ns < found.objective_ns


def test_a_known_bound_ends_the_search() -> None:
    problem = make_problem(3, 4, in_flight=2, links=SLOW_MIDDLE)
    best = solve_milp(problem, Greedy(n_sub=1)(problem), limits=NO_LIMITS)
    again = solve_milp(problem, best.schedule, limits=NO_LIMITS, known_bound_ns=best.objective_ns)
    assert again.lower_bound_ns == best.objective_ns


def test_no_time_at_all_returns_the_incumbent() -> None:
    problem = make_problem(4, 6, in_flight=3, links=SLOW_MIDDLE)
    incumbent = Greedy(n_sub=1)(problem)
    found = solve_milp(problem, incumbent, limits=Limits(time_s=0.0))
    assert found.schedule is incumbent
    assert found.status in ("FEASIBLE", "UNKNOWN")
    assert found.lower_bound_ns <= found.objective_ns == simulate(problem, incumbent).makespan_ns


def test_a_coarse_grid_bounds_the_true_problem() -> None:
    """Durations that share no divisor, of enough nanoseconds that ticks are rounded: the bound stays below, by next to nothing."""
    problem = make_problem(2, 3, costs_ns=(10_000_019, 11_000_027, 9_000_011))
    found = solve_milp(problem, Greedy(n_sub=1)(problem), limits=NO_LIMITS)
    optimum_ns = optimum(problem)
    assert optimum_ns is not None
    assert found.objective_ns == optimum_ns
    assert optimum_ns > MOST_TICKS
    assert 0.999 * optimum_ns < found.lower_bound_ns <= optimum_ns


def test_a_coarse_grid_does_not_bound_the_stage_span() -> None:
    problem = replace(make_problem(2, 3, costs_ns=(10_000_019, 11_000_027, 9_000_011)), objective=Objective.STAGE_SPAN)
    assert solve_milp(problem, Greedy(n_sub=1)(problem), limits=NO_LIMITS).lower_bound_ns == 0


def test_a_bound_where_fused_backwards_are_faster() -> None:
    problem = with_fused(make_problem(2, 2), 11)
    fused = Schedule(orders=tuple(tuple(Op(k, s, m) for m in range(2) for k in (Kind.F, Kind.BW)) for s in range(2)))
    found = solve_milp(problem, fused, limits=NO_LIMITS)
    assert found.objective_ns == found.lower_bound_ns == optimum(problem)
    assert found.objective_ns < simulate(problem, fused).makespan_ns


def test_cut_weights_fill_gaps() -> None:
    """A problem whose gaps are shorter than its W."""
    problem = small_problem(275, may_be_odd=False)
    whole = solve_milp(problem, Greedy(n_sub=1)(problem), limits=NO_LIMITS)
    cut = solve_milp(problem, whole.schedule, limits=NO_LIMITS, weight_parts=2)
    assert cut.status == "OPTIMAL"
    assert verify_schedule(problem, cut.schedule) == ()
    assert simulate(problem, cut.schedule).makespan_ns == cut.objective_ns == cut.lower_bound_ns < whole.objective_ns


def test_missing_highs_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(2, 1)
    incumbent = Greedy(n_sub=1)(problem)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "highspy", None)
        with pytest.raises(Unsupported, match=r"loading highspy failed .*; install them with: pip install pulp 'highspy<1.15'"):
            solve_milp(problem, incumbent, limits=NO_LIMITS)
    with monkeypatch.context() as patched:
        patched.setattr(pulp.HiGHS, "available", lambda _self: False)
        with pytest.raises(Unsupported, match=r"could not load when it was imported; install them with: pip install"):
            solve_milp(problem, incumbent, limits=NO_LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports", ["import pulp; from ortools.sat.python import cp_model", "from ortools.sat.python import cp_model; import pulp"]
)
def test_ortools_and_highs_load_in_one_process(imports: str) -> None:
    code = f"{imports}; import highspy; assert pulp.HiGHS(msg=False).available(); cp_model.CpSolver().solve(cp_model.CpModel())"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_module_needs_no_solver_library() -> None:
    code = "import sys; import schedc.solvers.exact.milp; assert not {'pulp', 'highspy', 'ortools'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("seed", [1, 2, 7, 12, 16, 17, 2002, 2102])
def test_blocks_without_duration(seed: int) -> None:
    """Ops that start and end at one moment keep an order there, which the memory limit can depend on."""
    problem = small_problem(seed)
    stages = tuple(
        replace(stage, backward_input_ns=(0,), backward_weight_ns=(index % 2,), backward_ns=(index % 2,))
        for index, stage in enumerate(problem.stages)
    )
    problem = replace(problem, stages=stages)
    found = solve_milp(problem, Greedy(n_sub=1)(problem), limits=NO_LIMITS)
    assert found.status == ("OPTIMAL" if found.lower_bound_ns == found.objective_ns else "RELAXED")
    assert verify_schedule(problem, found.schedule) == ()
    assert found.lower_bound_ns <= found.objective_ns == simulate(problem, found.schedule).makespan_ns
