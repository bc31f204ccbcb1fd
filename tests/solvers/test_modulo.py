"""Periods: bounds, the list scheduler, and CP-SAT's proofs against brute force over all orders and steps of tiny problems."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.period_problems import as_period, tiny_mixture, tiny_period
from inputs.problems import make_problem
from oracles.modulo_brute_force import least_period
from oracles.period_checks import EQUAL, check_period
from ortools.sat.python.cp_model import INFEASIBLE, OPTIMAL, CpModel, CpSolver

from schedc.analysis.bounds.period import period_bounds
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.period import steady_state
from schedc.errors import Unsupported
from schedc.ir import BoundName, Kind, Op, Versions
from schedc.models.modulo import build_modulo, pairs_of
from schedc.models.modulo_orders import schedule_of_starts
from schedc.solvers.common.base import Limits, SolverStatus
from schedc.solvers.exact.modulo import MOST_PAIRS, solve_modulo
from schedc.solvers.exact.modulo_questions import Known, build, solve
from schedc.solvers.heuristics.steady import SteadyList, rating
from schedc.solvers.heuristics.steady_repeat import repeated, repeats, shorter_step
from schedc.solvers.templates.overlapping import PipeDream, PipeDream2BW, one_by_one, one_f_one_b
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir import Problem

ONE_WORKER = Limits(workers=1, deterministic=60.0)


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_bounds_list_scheduler_and_proofs_hold_against_brute_force(first: int) -> None:
    """As `benchmarks/asynchronous/tiny_periods.py`, which checks as many as one likes."""
    counts = Counter[str]()
    for number in range(first, first + 8):
        assert check_period(number, counts) == [], number
    assert counts["proven optimal"] == 8
    assert counts[EQUAL] >= 2  # of the others the best reach over more steps than brute force tries, or it has too many orders


def test_a_bound_above_brute_force_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oracles.period_checks.least_period", lambda *of, upper, **settings: upper - 1)
    assert [finding.kind for finding in check_period(1, Counter())] == ["the bound is too high"]


@pytest.mark.parametrize(("seed", "least_ns"), [(0, 100), (1, 77), (3, 36), (6, 42), (7, 30)])
def test_where_fused_and_split_backwards_mix_the_least_period_is_what_another_model_proved(seed: int, least_ns: int) -> None:
    """One that placed ops within a rank's period, and let no two microbatches be alike."""
    problem = tiny_mixture(Random(seed))
    bound_ns = max(value_ns for _, value_ns, _ in period_bounds(problem))
    solved = solve_modulo(problem, SteadyList()(problem), limits=Limits(workers=1, deterministic=10.0), known_bound_ns=bound_ns)
    assert verify_schedule(problem, solved.schedule) == ()
    assert solved.lower_bound_ns <= least_ns <= solved.objective_ns
    assert seed > 3 or solved.objective_ns == solved.lower_bound_ns
    assert CpSolver().solve(build_modulo(problem, least_ns).model) != INFEASIBLE


@pytest.mark.parametrize("seed", range(8))
def test_no_difference_of_times_is_under_two_booleans(seed: int) -> None:
    """CP-SAT sees no cycle of such; it moved times round one by nanoseconds for a minute where it now answers at once."""
    model = build_modulo(tiny_mixture(Random(seed)), 60).model.proto
    widest = {at for at, variable in enumerate(model.variables) if variable.domain[-1] - variable.domain[0] > 1}
    differences = [each for each in model.constraints if sum(variable in widest for variable in each.linear.vars) == 2]
    assert differences
    assert all(len(each.enforcement_literal) <= 1 for each in differences)


@pytest.mark.parametrize("seed", range(12))
def test_steady_is_never_worse_than_pipedream(seed: int) -> None:
    random = Random(seed)
    ranks, mode = random.randint(2, 5), random.choice(list(Versions))
    links = {(x, x + 1): (random.randint(0, 40), random.randint(0, 9)) for x in range(ranks - 1)}
    costs = [(random.randint(3, 20), random.randint(3, 20), random.randint(3, 20)) for _ in range(ranks)]
    line = make_problem(ranks, random.randint(1, 6), costs_ns=costs, links=links | {(y, x): both for (x, y), both in links.items()})
    problem = as_period(line, mode, most_delay=1, update_ns=[3] * ranks, version_bytes=[2] * ranks)
    template = (PipeDream2BW if mode is Versions.TWO_BUFFERED else PipeDream)()(problem)
    assert verify_schedule(problem, template) == ()
    schedule = SteadyList()(problem)
    assert verify_schedule(problem, schedule) == ()
    assert rating(problem, schedule)[:2] <= rating(problem, template)[:2]


@pytest.mark.parametrize("placement", ["loop", "wave", "bidirectional"])
@pytest.mark.parametrize("mode", list(Versions))
def test_several_stages_on_a_rank_reach_the_bound_where_nothing_is_short(placement: str, mode: Versions) -> None:
    problem = as_period(
        make_problem(3, 4, placement=placement, chunks=1 + (placement != "bidirectional"), costs_ns=(3, 5, 2)), mode, most_delay=3
    )
    schedule = SteadyList()(problem)
    assert verify_schedule(problem, schedule) == ()
    assert steady_state(problem, schedule).period_ns <= 1.2 * max(value_ns for _, value_ns, _ in period_bounds(problem))


@pytest.mark.parametrize("mode", list(Versions))
@pytest.mark.parametrize("fewer", [1, 2])
def test_a_period_of_few_microbatches_is_repeated_at_its_pace(mode: Versions, fewer: int) -> None:
    costs = [(3, 5, 2), (4, 4, 3), (2, 6, 1)]
    problem = as_period(make_problem(3, 4, costs_ns=costs, in_flight=4), mode, most_delay=2, version_bytes=[1] * 3)
    short = shorter_step(problem, fewer)
    planned = SteadyList()(short)
    schedule = repeated(problem, fewer, planned)
    assert {violation.rule for violation in verify_schedule(problem, schedule)} <= {"memory-limit"}
    assert steady_state(problem, schedule).period_ns <= 4 // fewer * steady_state(short, planned).period_ns
    assert any(not verify_schedule(problem, each) for each in repeats(problem, SteadyList()))


def test_memory_is_kept_and_costs_time() -> None:
    problem = as_period(make_problem(4, 2, costs_ns=(5, 7, 3), in_flight=2), Versions.BOUNDED, most_delay=9)
    schedule = SteadyList()(problem)
    assert exceeded_limit(problem, schedule) is None
    without = as_period(make_problem(4, 2, costs_ns=(5, 7, 3)), Versions.BOUNDED, most_delay=9)
    assert steady_state(problem, schedule).period_ns > steady_state(without, SteadyList()(without)).period_ns == 30


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (BoundName.WORK, as_period(make_problem(2, 3, costs_ns=(5, 7, 3)), Versions.STASH, update_ns=[4, 1])),
        (BoundName.LINK, as_period(make_problem(2, 3, links={(1, 0): (3, 20)}, costs_ns=(5, 7, 3)), Versions.STASH)),
        (
            BoundName.RESIDENCY,
            as_period(make_problem(2, 1, links={(0, 1): (41, 0)}, in_flight=1, split_backward=False), Versions.STASH),
        ),
        (BoundName.PATH, as_period(make_problem(2, 1, links={(0, 1): (41, 0)}), Versions.TWO_BUFFERED, update_ns=[5, 0])),
    ],
)
def test_each_bound_is_the_optimum_of_a_problem_where_it_alone_is_the_largest(name: BoundName, problem: Problem) -> None:
    values = {of: value_ns for of, value_ns, _ in period_bounds(problem)}
    assert all(values[name] > value_ns for of, value_ns in values.items() if of is not name)
    solved = solve_modulo(problem, one_by_one(problem), limits=ONE_WORKER, known_bound_ns=values[name])
    assert solved.objective_ns == values[name]


@pytest.mark.parametrize("mode", list(Versions))
def test_microbatches_that_would_wait_for_each_other_are_not_counted_at_once(mode: Versions) -> None:
    """Rank 0 has room for two on its first stage, of which neither could go on to its second: one enters as another leaves."""
    costs, links = [(5, 7, 3), (2, 1, 1), (5, 7, 3)], {(0, 1): (18, 0), (1, 0): (9, 0)}
    line = make_problem(2, 2, placement=[0, 1, 0], costs_ns=costs, activation=[(1, 0), (1, 0), (2, 0)], links=links)
    problem = as_period(replace(line, memory_limit_bytes=(3, None), split_backward=False), mode, most_delay=3)
    on_first_there_ns, on_both_ns, on_first_back_ns = 5 + 18 + 2 + 9, 5 + 7 + 3, 18 + 2 + 9 + 7 + 3
    bound_ns = 2 * (max(on_first_there_ns, on_first_back_ns) + on_both_ns)
    assert (BoundName.RESIDENCY, bound_ns, "rank 0") in period_bounds(problem)
    solved = solve_modulo(problem, one_by_one(problem), limits=ONE_WORKER, known_bound_ns=bound_ns)
    assert solved.objective_ns == bound_ns


def test_small_activations_beside_large_weights_are_counted_at_once() -> None:
    """Five microbatches read five versions, of which one is not counted; room for activations alone is for 10^10 of them."""
    problem = make_problem(2, 1, links={(0, 1): (41, 0)}, costs_ns=(5, 7, 3), activation=(1, 0), split_backward=False)
    problem = replace(problem, memory_limit_bytes=(10**10, None))
    problem = as_period(problem, Versions.STASH, version_bytes=[2 * 10**9, 0])
    return_ns = 5 + 41 + (5 + 10) + 10
    assert (BoundName.RESIDENCY, -(-return_ns // 5), "rank 0") in period_bounds(problem)


def test_least_delays_are_found_at_the_least_period() -> None:
    problem = as_period(make_problem(3, 1, costs_ns=(5, 7, 3), links={(0, 1): (9, 4), (1, 0): (9, 4)}), Versions.STASH)
    template = PipeDream()(problem)
    before = rating(problem, template)
    solved = solve_modulo(problem, SteadyList()(problem), limits=ONE_WORKER, known_bound_ns=15)
    assert solved.objective_ns == 15 < before[0]
    most = [
        rating(problem, one_f_one_b(problem, counts, later=0))
        for counts in ({0: a, 1: b, 2: 1} for a in range(1, 8) for b in (1, 2) if a >= b)
    ]
    assert rating(problem, solved.schedule)[1] <= min(delay for period_ns, delay, _ in most if period_ns == 15)


def test_a_link_that_serves_messages_as_they_come_is_built_in_turn() -> None:
    """Two paths share a link: the model lets one message pass another, which the link does not."""
    problem = as_period(make_problem(2, 2, placement=[0, 1, 0, 1], links={(0, 1): (1, 9), (1, 0): (1, 3)}), Versions.TWO_BUFFERED)
    bound_ns = max(value_ns for _, value_ns, _ in period_bounds(problem))
    solved = solve_modulo(problem, SteadyList()(problem), limits=ONE_WORKER, known_bound_ns=bound_ns)
    assert solved.status is SolverStatus.OPTIMAL
    assert steady_state(problem, solved.schedule).period_ns == solved.lower_bound_ns


def test_a_period_in_odd_nanoseconds_is_refuted_in_little_work() -> None:
    """A cycle that takes a nanosecond too long is one conflict; times do not creep round it."""
    line = make_problem(
        6,
        1,
        costs_ns=[(7_000_003 + 999_983 * each, 9_000_011, 5_000_017) for each in range(6)],
        links={(x, y): (3_000_029, 1_000_033) for x in range(6) for y in (x - 1, x + 1) if 0 <= y < 6},
    )
    problem = as_period(line, Versions.TWO_BUFFERED, update_ns=[1_000_081] * 6)
    best = solve_modulo(problem, SteadyList()(problem), limits=ONE_WORKER)
    assert best.status is SolverStatus.OPTIMAL
    assert best.lower_bound_ns == best.objective_ns == steady_state(problem, best.schedule).period_ns
    assert best.work < 5


def test_a_hint_that_the_first_propagation_refutes_ends_no_process() -> None:
    """CP-SAT 9.15 aborted at the first question here: one worker refutes it as it loads, others go on to try the hint."""
    costs = [(2800698, 4401022, 1600144), (2800864, 1600639, 3600754), (5601124, 3600667, 2000878)]
    costs += [(2400872, 2400600, 3600770), (5200404, 5200455, 2000423), (2000679, 2000769, 4400342)]
    there = [(400016, 5223723), (412490, 8835970), (720587, 6883420), (6800160, 1014740), (362956, 6525262)]
    back = [(8000187, 861277), (170466, 2843585), (232996, 6516355), (9200214, 2363419), (826516, 2726941)]
    links = {(x, x + 1): there[x] for x in range(5)} | {(x + 1, x): back[x] for x in range(5)}
    line = make_problem(6, 1, costs_ns=costs, links=links)
    fused_ns = (5401050, 4681254, 5601545, 5401233, 6480791, 5761000)
    line = replace(line, stages=tuple(replace(stage, backward_ns=(ns,)) for stage, ns in zip(line.stages, fused_ns, strict=True)))
    problem = as_period(line, Versions.BOUNDED, most_delay=3, update_ns=[1200072, 800091, 1200113, 1200031, 400042, 49])
    bound_ns = max(value_ns for _, value_ns, _ in period_bounds(problem))
    limits = Limits(deterministic=3.0, workers=8)
    solved = solve_modulo(problem, SteadyList()(problem), limits=limits, known_bound_ns=bound_ns)
    assert solved.status is SolverStatus.OPTIMAL
    assert solved.work < 2 * 3.0


def test_one_worker_is_asked_before_several_that_take_turns() -> None:
    """Five ranks, some with room for two or three microbatches: in ten times as much work eight workers had no answer."""
    costs = [(4, 14, 5), (8, 5, 10), (13, 13, 13), (12, 5, 8), (12, 10, 4)]
    held, versions = [(103, 52), (228, 0), (252, 126), (215, 215), (267, 267)], [120, 75, 54, 189, 51]
    links = {(x, y): (500_003, 2_500_001) for x in range(5) for y in (x - 1, x + 1) if 0 <= y < 5}
    costs_ns = [(1_000_003 * forward, 1_000_003 * backward, 1_000_003 * weights) for forward, backward, weights in costs]
    line = make_problem(5, 4, costs_ns=costs_ns, activation=held, links=links)
    line = replace(line, memory_limit_bytes=(997, 835, 1786, 620, 1539))
    problem = as_period(line, Versions.STASH, update_ns=[17, 39, 2_000_031, 11, 3_000_067], version_bytes=versions)
    bound_ns = max(value_ns for _, value_ns, _ in period_bounds(problem))
    limits = Limits(deterministic=0.6, workers=8)
    solved = solve_modulo(problem, one_by_one(problem), limits=limits, known_bound_ns=bound_ns)
    assert solved.status is SolverStatus.OPTIMAL
    assert solved.objective_ns == bound_ns < steady_state(problem, SteadyList()(problem)).period_ns


@pytest.mark.parametrize(("workers", "share", "asked"), [(8, 1.0, [1, 8]), (8, 0.5, [1]), (1, 1.0, [1])])
def test_no_worker_is_asked_twice(workers: int, share: float, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody has an answer: the last question goes to all workers after the one, if there are more."""
    problem, found = tiny_period(Random(0)), list[int]()
    schedule = SteadyList()(problem)
    limits = Limits(deterministic=1.0, workers=workers)
    period_ns = steady_state(problem, schedule).period_ns
    known = Known(problem, limits, schedule, period_ns, 1, lambda _: None, lambda _: None)

    def run(solver: CpSolver, model: CpModel) -> tuple[object, None]:
        found.append(solver.parameters.num_workers)
        solver.parameters.max_deterministic_time = 0.0
        return SolverStatus(solver.status_name(solver.solve(model))), None

    monkeypatch.setattr("schedc.solvers.exact.modulo_questions.run", run)
    assert solve(known, build(known, period_ns), share) == (SolverStatus.UNKNOWN, None)
    assert found == asked
    assert next(line for line in known.log if "worker" in line).endswith("ns, 1 worker: status UNKNOWN")


@pytest.mark.parametrize(("microbatches", "limits"), [(120, ONE_WORKER), (4, Limits(workers=1, deterministic=1e-4))])
def test_no_model_is_built_that_is_too_large_or_for_which_too_little_is_left(microbatches: int, limits: Limits) -> None:
    problem = as_period(make_problem(3, microbatches, costs_ns=(5, 7, 3)), Versions.STASH)
    known = one_by_one(problem)
    solved = solve_modulo(problem, known, limits=limits, known_bound_ns=15 * microbatches)
    assert solved.schedule == known
    assert solved.lower_bound_ns == 15 * microbatches < solved.objective_ns
    assert solved.status is SolverStatus.FEASIBLE
    assert (pairs_of(problem, range(problem.ranks)) > MOST_PAIRS) is (microbatches == 120)
    assert not solved.work and not any("sha256" in line for line in solved.log)


def test_synchronous_problems_are_refused() -> None:
    problem = make_problem(2, 2)
    for method in (PipeDream(), PipeDream2BW(), SteadyList()):
        with pytest.raises(Unsupported):
            method(problem)


def test_a_slow_link_into_a_wire_makes_no_period_impossible() -> None:
    # Rank 0 takes messages of ranks 1 and 2 over one wire, in one order: those of rank 1 wait as long as rank 2's take.
    latency_ns, period_ns = 300, 20
    line = make_problem(
        3,
        1,
        placement=[0, 1] * 3 + [0, 2, 0],
        costs_ns=(1, 1, 1),
        links={(2, 0): (latency_ns, 0)},
        trunks={(1, 0): "into 0", (2, 0): "into 0"},
        split_backward=False,
    )
    problem = as_period(line, Versions.STASH)
    places = len(problem.stages)
    chain = [Op(Kind.F, stage, 0) for stage in range(places)] + [Op(Kind.BW, stage, 0) for stage in reversed(range(places))]
    starts: dict[Op, int] = {}
    busy: set[tuple[int, int]] = set()
    now_ns = 0
    for before, op in zip([None, *chain], chain, strict=False):
        rank = problem.rank_of(op)
        now_ns += latency_ns if before is not None and problem.rank_of(before) != rank == 0 else 0
        while any((rank, (now_ns + each) % period_ns) in busy for each in range(problem.duration_ns(op.kind, op.stage, 0))):
            now_ns += 1
        starts[op] = now_ns
        busy |= {(rank, (now_ns + each) % period_ns) for each in range(problem.duration_ns(op.kind, op.stage, 0))}
        now_ns += problem.duration_ns(op.kind, op.stage, 0)
    starts |= {Op(Kind.U, stage, 0): starts[Op(Kind.BW, stage, 0)] + 2 for stage in range(places)}
    known = schedule_of_starts(problem, starts, period_ns)
    assert verify_schedule(problem, known) == ()
    assert steady_state(problem, known).period_ns <= period_ns
    built = build_modulo(problem, period_ns)
    for op, time in built.time.items():
        built.model.add(time == starts[op] - starts[built.ops[0][0]])
    assert CpSolver().solve(built.model) == OPTIMAL


def test_an_update_that_takes_no_time_may_be_before_a_weight_gradient_at_the_same_time() -> None:
    """2BW's two periods are the round trip exactly, so W of the fused backward, which takes nothing then, is at the time of U."""
    tiny = tiny_period(Random(780203))
    least_ns = least_period(tiny, depth=1, upper=20)
    assert least_ns == 12
    for ranks in (None, [0], [1]):
        assert CpSolver().solve(build_modulo(tiny, 12, ranks).model) != INFEASIBLE


def test_ops_that_take_no_time_are_in_an_order() -> None:
    problem = as_period(make_problem(1, 1, placement=[0] * 4, costs_ns=(1, 1, 1)), Versions.STASH)
    built = build_modulo(problem, 100)
    one, other, third = (Op(Kind.U, stage, 0) for stage in (1, 2, 3))
    for earlier, later in ((one, other), (other, third), (third, one)):
        built.model.add(built.round(earlier, later) == 0)
    assert CpSolver().solve(built.model) == INFEASIBLE


@pytest.mark.parametrize("mode", list(Versions))
def test_steady_plans_what_takes_no_time(mode: Versions) -> None:
    for ranks, latency_ns in ((1, 0), (3, 0), (2, 7)):
        line = make_problem(ranks, 2, costs_ns=(0, 0, 0), links={(0, 1): (latency_ns, 0)})
        problem = as_period(line, mode, most_delay=1)
        schedule = SteadyList()(problem)
        assert verify_schedule(problem, schedule) == ()
        assert steady_state(problem, schedule).period_ns <= latency_ns
