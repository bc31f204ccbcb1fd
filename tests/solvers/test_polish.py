"""Local search over orders: never worse, valid on any placement, its clock right, changes never break a need or a limit."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st
from inputs.fused_problems import fused_problem, mixed_problem
from inputs.problems import make_problem, problems, with_fused_backward
from inputs.random_schedules import random_schedules
from inputs.tiny_problems import random_schedule
from oracles.brute_force import SearchTooLarge, optimum
from suite.example_counts import examples

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.index import tables_of
from schedc.ir.ops import BLOCKS, Kind, Op
from schedc.ir.plan import BoundName
from schedc.ir.problem import Objective
from schedc.ir.schedule import Parts, Schedule
from schedc.solvers.common.base import Climbing, Limits, SearchSettings
from schedc.solvers.common.incumbent import Incumbent, mixture_of
from schedc.solvers.driver.registry import constructive
from schedc.solvers.kernel.critical_path import critical_of, trace
from schedc.solvers.kernel.order_evaluator import problem_arrays_of, time_orders, value_of, workspace_of
from schedc.solvers.kernel.tables import NEVER as STRANDED
from schedc.solvers.search.polish import ROUNDS_PER_S, Polish, durations_ns_of, packed_orders, polish_schedule, sampled_of
from schedc.solvers.search.rounds import Found
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


@examples(60)
@given(problems(max_ranks=4, max_microbatches=5), st.integers(0, 5))
def test_never_worse_valid_and_timed_right(problem: Problem, seed: int) -> None:
    try:
        start = constructive("greedy{n_sub=1}")(problem)
    except Unsupported:
        return
    found = polish_schedule(problem, [start], Climbing(evaluations=50, rounds=2, seed=seed))
    assert not verify_schedule(problem, found.schedule)
    assert found.end_ns == simulate(problem, found.schedule).objective_ns(problem.objective)
    assert found.end_ns <= simulate(problem, start).objective_ns(problem.objective)


def test_what_alike_microbatches_are_called_is_no_matter() -> None:
    problem = make_problem(4, 8, costs_ns=[(9, 11, 7), (12, 8, 6), (10, 10, 9), (8, 13, 6)], in_flight=4, links={(1, 2): (9, 4)})
    start = constructive("greedy{n_sub=1}")(problem)
    renamed = Schedule(orders=tuple(tuple(op._replace(microbatch=op.microbatch * 3 % 8) for op in order) for order in start.orders))
    ends_ns = [polish_schedule(problem, [each], Climbing(evaluations=500, rounds=2)).end_ns for each in (start, renamed)]
    assert ends_ns[0] == ends_ns[1] < simulate(problem, start).makespan_ns == simulate(problem, renamed).makespan_ns


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 450), marks=pytest.mark.slow)])
def test_the_clock_is_the_simulators(seeds: range) -> None:
    """Stage span and makespan, with several stages on a rank, all-gathers and reduce-scatters, and trunks shared by all of it."""
    seen: set[tuple[str, bool, bool, bool]] = set()
    for seed in seeds:
        random = Random(seed)
        problem = mixed_problem(random, most_ops=40, data_parallel=seed % 3 > 0)
        schedules = [made for _ in range(3) if (made := random_schedule(random, problem)) is not None]
        slower = replace(problem, links=tuple(replace(link, latency_ns=link.latency_ns + 7) for link in problem.links))
        facts, durations_ns = problem_arrays_of(problem), durations_ns_of(problem)
        room, copies = workspace_of(facts), (problem_arrays_of(problem), durations_ns.copy())
        sampled = sampled_of([problem, slower], (1.0, 3.0), (0, 0), 0.0)
        tables = [tables_of(each) for each in (problem, slower)]
        for schedule in schedules:
            orders = packed_orders(problem, facts, schedule, exchanges=False)
            one_ns, other_ns = (
                simulate(each, schedule, tables=of_each).objective_ns(problem.objective)
                for each, of_each in zip((problem, slower), tables, strict=True)
            )
            assert time_orders(facts, durations_ns, orders, room) == one_ns, seed
            assert value_of(*copies, sampled, orders, room, 1e18) == pytest.approx(one_ns / 4 + other_ns * 3 / 4), seed
            case = problem.data_parallel is not None, problem.objective is Objective.STAGE_SPAN
            seen |= {("several stages", *case, len(problem.stages) > problem.ranks), ("trunk", *case, facts.in_turn)}
    assert len(seen) == 2 * 2**3


def test_it_repairs_an_order_that_is_plainly_bad() -> None:
    """GPipe's order on unequal stages with split backwards: everything can overlap better."""
    problem = make_problem(3, 6, costs_ns=[(3, 4, 5), (5, 3, 4), (4, 5, 3)])
    start = constructive("zb-h1")(problem)
    worse = constructive("zb-h1")(make_problem(3, 6))
    assert start.orders == worse.orders
    found = polish_schedule(problem, [start], Climbing(rounds=4))
    assert found.end_ns < simulate(problem, start).makespan_ns


@pytest.mark.slow
def test_it_beats_the_best_peer_on_a_v_with_little_memory() -> None:
    """Zero-bubble's 1.5B profile on 8 ranks, 24 microbatches, V, memory p: the best of the peers' generators takes 1188.5 ms."""
    from schedc.study.bench.instances import instances

    problem = next(instance.problem for instance in instances("zero-bubble") if instance.name == "zb-1.5B-p8-n24-V-p")
    found = polish_schedule(problem, [constructive("zb-v")(problem)], Climbing(rounds=10))
    assert simulate(problem, found.schedule).makespan_ns < 1_188_500_000


def test_the_same_seed_gives_the_same_schedule() -> None:
    problem = make_problem(
        4, 8, placement="wave", chunks=2, costs_ns=(3, 4, 5), in_flight=4, links={(1, 2): (9, 3), (2, 1): (9, 3)}
    )
    start = constructive("greedy{n_sub=1}")(problem)
    climbing = Climbing(rounds=2, seed=4)
    assert polish_schedule(problem, [start], climbing) == polish_schedule(problem, [start], climbing)


def test_where_a_clock_ends_it_it_cools_in_the_rounds_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(2, 4)
    incumbent = Incumbent(problem=problem, bound_ns=0, bound_by=BoundName.WORK, settings=SearchSettings())
    incumbent.offer(constructive("gpipe")(problem), "gpipe")
    planned: list[int] = []

    def polished(problem: Problem, starts: list[Schedule], climbing: Climbing) -> Found:
        planned.append(climbing.rounds)
        return Found(starts[0], 0, cut_short=False)

    monkeypatch.setattr("schedc.solvers.search.polish.polish_schedule", polished)
    for limits in (Limits(time_s=2), Limits(time_s=0.01), Limits(time_s=1_000), Limits(deterministic=3), Limits()):
        Polish(rounds=30).improve(incumbent, limits)
    Polish(rounds=30, evaluations=50).improve(incumbent, Limits(time_s=0.01))
    assert planned == [2 * ROUNDS_PER_S, 1, 30, 3, 30, 30]
    assert incumbent.cut_short


def test_anew_it_starts_from_what_other_methods_found() -> None:
    problem = make_problem(2, 6, in_flight=2)
    incumbent = Incumbent(problem=problem, bound_ns=0, bound_by=BoundName.WORK, settings=SearchSettings())
    best, other = constructive("greedy")(problem), constructive("1f1b")(problem)
    incumbent.offer(best, "polish{rounds=8}")
    assert incumbent.starts(1, besides="polish") == [best]  # nothing else is known
    incumbent.offer(other, "1f1b")
    assert incumbent.starts(1) == [best] != [other]
    assert incumbent.starts(9, besides="polish") == [other]


@examples(60)
@given(st.data())
def test_a_mixture_is_timed_right_and_its_memory_kept(data: st.DataObject) -> None:
    problem = data.draw(problems(max_ranks=3, max_microbatches=4))
    problem = with_fused_backward(problem, *data.draw(st.sampled_from([(1, 2), (9, 10), (1, 1), (11, 10)])))
    start = data.draw(random_schedules(problem, whole=True))
    facts = problem_arrays_of(problem)
    orders = packed_orders(problem, facts, start, exchanges=True)
    timed_ns = time_orders(facts, durations_ns_of(problem), orders, workspace_of(facts))
    limits = problem.memory_limit_bytes
    fits = all(limit is None or peak <= limit for peak, limit in zip(peak_bytes(problem, start), limits, strict=True))
    if not fits:
        assert timed_ns >= STRANDED
        return
    assert timed_ns == simulate(problem, start).objective_ns(problem.objective)
    found = polish_schedule(problem, [start], Climbing(evaluations=200, rounds=2, seed=data.draw(st.integers(0, 5))))
    assert not verify_schedule(problem, found.schedule)
    assert found.end_ns == simulate(problem, found.schedule).objective_ns(problem.objective)
    assert found.end_ns <= timed_ns


@pytest.mark.parametrize("start", ["1f1b", "zb-h1"])
def test_it_mixes_where_the_fused_backward_is_cheaper(start: str) -> None:
    """From a schedule that fuses all, and from one that splits all."""
    problem = with_fused_backward(make_problem(3, 6, costs_ns=(30, 40, 30), in_flight=3), 9, 10)
    found = polish_schedule(problem, [constructive(start)(problem)], Climbing(rounds=4))
    kinds = {op.kind for order in found.schedule.orders for op in order}
    assert kinds == set(BLOCKS)
    assert found.end_ns < min(
        simulate(problem, constructive(method)(problem)).makespan_ns for method in ("1f1b", "zb-h1", "greedy")
    )


def test_the_start_that_leads_furthest_need_not_be_the_best() -> None:
    """4 ranks, wave, a slow link: Hanayo, all fused, is worse than greedy, all split, and leads further."""
    links = {(1, 2): (38, 20), (2, 1): (38, 20)}
    problem = with_fused_backward(
        make_problem(4, 16, placement="wave", chunks=2, costs_ns=(38, 46, 20), in_flight=6, links=links), 121, 134
    )
    better, worse = (constructive(method)(problem) for method in ("greedy{n_sub=1}", "hanayo"))
    assert [mixture_of(better), mixture_of(worse)] == ["split", "fused"]
    ends_ns = {name: simulate(problem, start).makespan_ns for name, start in (("better", better), ("worse", worse))}
    assert ends_ns["better"] < ends_ns["worse"]
    climbing = Climbing(evaluations=2000, rounds=4)
    alone, both = polish_schedule(problem, [better], climbing), polish_schedule(problem, [worse, better], climbing)
    assert both.end_ns < alone.end_ns < ends_ns["better"]


def test_where_fusing_cannot_pay_no_backward_is_fused_or_split() -> None:
    problem = make_problem(3, 5, costs_ns=[(3, 4, 5), (5, 3, 4), (4, 5, 3)])
    start = constructive("1f1b")(problem)
    found = polish_schedule(problem, [start], Climbing(rounds=3))
    assert sorted(op for order in found.schedule.orders for op in order) == sorted(op for order in start.orders for op in order)


def test_durations_that_differ_by_microbatch_count() -> None:
    problem = make_problem(2, 3, costs_ns=(5, 6, 4))
    stages = tuple(replace(stage, forward_ns=(5, 9, 2), backward_ns=(9, 7, 12)) for stage in problem.stages)
    problem = replace(problem, stages=stages)
    found = polish_schedule(problem, [constructive("1f1b")(problem)], Climbing(rounds=2))
    assert not verify_schedule(problem, found.schedule)
    assert found.end_ns == simulate(problem, found.schedule).makespan_ns


def test_blocks_that_are_cut_are_refused() -> None:
    problem = make_problem(2, 3, costs_ns=(10, 10, 31), links={(0, 1): (40, 0), (1, 0): (40, 0)})
    cut = Parts(kind=Kind.W, stage=0, shares=(1, 1))
    orders = tuple(
        tuple(
            part
            for op in order
            for part in ([op._replace(part=0), op._replace(part=1)] if op.kind is Kind.W and op.stage == 0 else [op])
        )
        for order in constructive("zb-h1")(problem).orders
    )
    with pytest.raises(ValueError, match="whole block"):
        polish_schedule(problem, [Schedule(orders=orders, parts=(cut,))], Climbing())


@pytest.mark.parametrize("seeds", [range(16), pytest.param(range(16, 60), marks=pytest.mark.slow)])
def test_it_reaches_the_best_mixture_of_tiny_problems(seeds: range) -> None:
    """Against brute force over all mixtures and orders, from greedy's best with all backwards split and with some fused."""
    compared = 0
    for seed in seeds:
        problem = fused_problem(seed)

        def reached_ns(schedule: Schedule, problem: Problem = problem) -> int:
            return simulate(problem, schedule).objective_ns(problem.objective)

        try:
            best_ns = optimum(problem, most_states=1_000)
            starts = [constructive(f"greedy{{n_sub=1,fused={which}}}")(problem) for which in ("none", "first", "steady")]
        except (SearchTooLarge, Unsupported):
            continue
        start = min(starts, key=reached_ns)
        found = polish_schedule(problem, [start], Climbing(evaluations=300, rounds=4, seed=seed))
        assert not verify_schedule(problem, found.schedule)
        assert reached_ns(found.schedule) == best_ns
        compared += 1
    assert compared > len(seeds) // 2


@pytest.mark.parametrize("slow_ns", [11, 90])
@pytest.mark.parametrize("fused", [False, True])
def test_what_takes_longer_on_the_critical_path_makes_all_end_later(fused: bool, slow_ns: int) -> None:
    """An op of the path takes 1 ns more, and the simulator ends later; another one's nanosecond often goes unnoticed.

    So does that of an op of the path whose message waits for a slow link: the one before it is what counts.
    """
    unnoticed = waiting = 0
    for seed in range(12):
        links = {(0, 1): (9, 3), (1, 2): (0, slow_ns)}
        problem = make_problem(3, 4, placement="wave", chunks=2, costs_ns=(30 + seed, 41, 17), links=links)
        problem = with_fused_backward(problem, 9, 10) if fused else problem
        schedule = constructive("hanayo" if fused else "greedy{n_sub=1}")(problem)
        facts, room = problem_arrays_of(problem), workspace_of(problem_arrays_of(problem))
        orders = packed_orders(problem, facts, schedule, exchanges=False)
        end_ns, critical = time_orders(facts, durations_ns_of(problem), orders, room), critical_of(orders)
        trace(facts, durations_ns_of(problem), orders, room, critical, over_links=True)
        places, timeline = critical.place[: critical.count[0]].tolist(), simulate(problem, schedule)
        late = set(timeline.sender[timeline.transfer_start_ns > timeline.ends_ns[timeline.sender]].tolist())
        for rank, order in enumerate(schedule.orders):
            for at, op in enumerate(order):
                later_ns = simulate(_slower(problem, op), schedule).makespan_ns
                assert end_ns <= later_ns
                if rank * orders.codes.shape[1] + at in places:
                    waits = timeline.begin[rank] + at in late
                    assert later_ns > end_ns or waits, (seed, op)
                    waiting += waits
                else:
                    unnoticed += later_ns == end_ns
    assert unnoticed > 100 and (waiting > 20) == (slow_ns == 90)


@pytest.mark.parametrize("shared", [False, True])
def test_the_critical_path_begins_when_all_begins(shared: bool) -> None:
    """A loop over two sites, where messages wait for slow links, or for trunks that two ranks share."""
    differ, pairs = 0, {(1, 2): "out", (0, 3): "out", (2, 1): "back", (3, 0): "back"}
    for microbatches, occupancy_ns in product((8, 12, 16), (20, 60, 110, 200)):
        problem = make_problem(
            4,
            microbatches,
            placement="loop",
            chunks=2,
            costs_ns=(30, 41, 17),
            links=dict.fromkeys(pairs, (9, occupancy_ns)),
            trunks=pairs if shared else None,
        )
        facts, room = problem_arrays_of(problem), workspace_of(problem_arrays_of(problem))
        orders = packed_orders(problem, facts, constructive("greedy{n_sub=1}")(problem), exchanges=False)
        time_orders(facts, durations_ns_of(problem), orders, room)
        critical = critical_of(orders)
        trace(facts, durations_ns_of(problem), orders, room, critical, over_links=True)
        over_links = critical.count[0]
        rank, at = divmod(int(critical.place[critical.count[0] - 1]), orders.codes.shape[1])
        assert (rank, at, room.ends_ns[rank, at]) == (0, 0, 30) and facts.in_turn is shared
        trace(facts, durations_ns_of(problem), orders, room, critical, over_links=False)
        differ += critical.count[0] != over_links
    assert (differ > 0) is not shared


def _slower(problem: Problem, op: Op) -> Problem:
    """The problem where this op takes 1 ns more."""

    def more(durations_ns: tuple[int, ...]) -> tuple[int, ...]:
        every = durations_ns * (problem.microbatches // len(durations_ns))
        return tuple(each_ns + (at == op.microbatch) for at, each_ns in enumerate(every))

    name = {Kind.F: "forward_ns", Kind.B: "backward_input_ns", Kind.W: "backward_weight_ns", Kind.BW: "backward_ns"}[op.kind]
    stages = list(problem.stages)
    slower: dict[str, Any] = {name: more(getattr(stages[op.stage], name))}
    stages[op.stage] = replace(stages[op.stage], **slower)
    return replace(problem, stages=tuple(stages))
