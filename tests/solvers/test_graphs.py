"""The list scheduler and what stands on it, on graphs and slices: valid, never stranded, one clock, the same plain and compiled."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.graphs import graph_problem, random_order
from inputs.problems import make_problem

from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.driver import compile_problem
from schedc.errors import Unsupported
from schedc.ir.graph import Edge
from schedc.ir.ops import Kind, token
from schedc.ir.problem import Problem, Stage
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.incumbent import Incumbent
from schedc.solvers.common.method import Constructive
from schedc.solvers.common.microbatch_order import entry_order, order_is_open
from schedc.solvers.driver.portfolio import try_methods
from schedc.solvers.driver.registry import constructive, methods
from schedc.solvers.heuristics.warm_up_counts import in_flight_before_first_backward, round_trip_in_flight
from schedc.solvers.kernel.joints import Room, room_for_values, values_wait
from schedc.solvers.kernel.list_kernel import run_rule
from schedc.solvers.kernel.list_scheduler import list_schedule, run_compiled
from schedc.solvers.kernel.order_evaluator import problem_arrays_of, time_orders, workspace_of
from schedc.solvers.kernel.scheduler_state import Rule, depth_by_stage, scheduler_of, set_rule
from schedc.solvers.kernel.tables import NEVER, as_arrays
from schedc.solvers.search.local import Local
from schedc.solvers.search.polish import durations_ns_of, packed_orders
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.schedule import Schedule


def some_problem(random: Random, **given: object) -> Problem:
    return graph_problem(random, most_ops=150, most_microbatches=6, collectives=True, may_be_odd=True, **given)  # type: ignore[arg-type]


def some_rule(random: Random, problem: Problem) -> Rule:
    """Any rule, with caps below what a microbatch has of slices, too."""
    count, foresight = len(problem.stages), random.random() < 0.5
    fused = tuple(tuple(random.random() < 0.5 for _ in range(problem.microbatches)) for _ in range(count))
    return Rule(
        priority=tuple((random.randint(0, 3), random.randint(0, 3), random.randint(0, 3)) for _ in range(count)),
        in_flight=tuple(random.choice([None, random.randint(1, 4)]) for _ in range(count)),
        weight_lag=tuple(random.randint(0, 3) for _ in range(count)),
        fused=random.choice([None, fused]) if problem.split_backward else None,
        look_ahead_ns=random.choice([0, 1, 5]),
        foresight=foresight,
        alternate=random.random() < 0.3,
        priority_step=random.choice([0, 1]),
        n_sub=1 if foresight else random.randint(1, 3),
    )


def by_orders_ns(problem: Problem, schedule: Schedule) -> int:
    """Its end by the evaluator of orders."""
    facts = problem_arrays_of(problem)
    orders = packed_orders(problem, facts, schedule, exchanges=False)
    return int(time_orders(facts, durations_ns_of(problem), orders, workspace_of(facts)))


@pytest.mark.parametrize("seeds", [range(80), pytest.param(range(80, 1000), marks=pytest.mark.slow)])
def test_any_rule_gives_a_valid_schedule(seeds: range) -> None:
    """Its clock is the simulator's, limits hold, values that wait left out unless room is kept, and no rule strands itself."""
    made = 0
    for seed in seeds:
        random = Random(seed)
        problem = some_problem(random)
        rule = some_rule(random, problem)
        for room in (Room(), Room(for_values=True)):
            try:
                found = list_schedule(problem, rule, room=room)
            except Unsupported:
                continue
            assert verify_schedule(problem, found.schedule) == (), seed
            if not (rule.foresight and problem_arrays_of(problem).in_turn):
                timeline = simulate(problem, found.schedule)
                assert (found.end_ns, found.span_ns) == (timeline.makespan_ns, timeline.stage_span_ns), seed
            if room.for_values:
                assert exceeded_limit(problem, found.schedule) is None, seed
            if not found.schedule.parts and not (rule.foresight and problem_arrays_of(problem).in_turn):
                assert by_orders_ns(problem, found.schedule) == found.objective_ns(problem.objective), seed
            made += 1
    assert made > 1.5 * len(seeds)


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 330), marks=pytest.mark.slow)])
@pytest.mark.parametrize("graphs", [True, False])
def test_the_list_scheduler_finds_a_schedule_wherever_one_microbatch_after_another_fits(seeds: range, graphs: bool) -> None:
    """And of slices wherever any schedule does; they are not refused because all that they can hold would be too much at once."""
    found = Counter[str]()
    for seed in seeds:
        random = Random(seed)
        problem = graph_problem(random, most_stages=7, most_microbatches=6, edges=graphs, slices=None if graphs else True)
        limits = [least + random.randint(0, 6) + random.choice([0, least // 2]) for least in minimum_limit_bytes(problem)]
        problem = replace(problem, memory_limit_bytes=tuple(limits))
        fits = exceeded_limit(problem, constructive("sequential")(problem)) is None
        assert fits or graphs or any(stage.recompute for stage in problem.stages), seed
        for name in ("greedy{n_sub=1}", "greedy{by_time=true}", "rule-table") if seed % 5 == 0 else ("greedy{n_sub=1}",):
            try:
                schedule = constructive(name)(problem)
            except Unsupported:
                assert not fits, (seed, name)
                continue
            assert verify_schedule(problem, schedule) == (), (seed, name)
            assert exceeded_limit(problem, schedule) is None, (seed, name)
            found[name] += 1
    assert found["greedy{n_sub=1}"] > 0.3 * len(seeds)


@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 160), marks=pytest.mark.slow)])
def test_methods_give_valid_schedules_or_say_what_they_need(seeds: range) -> None:
    for seed in seeds:
        problem = some_problem(Random(seed), memory=False)
        for name, method in methods(Constructive).items():
            if method.steps_overlap or name in ("sorted", "spread"):
                continue
            if method.misfit(problem):
                with pytest.raises(Unsupported, match=rf"^{name} needs (stages that are a chain|whole microbatches); this job has"):
                    constructive(name)(problem)
            else:
                assert verify_schedule(problem, constructive(name)(problem)) == (), (seed, name)


@pytest.mark.slow
def test_plain_and_compiled_are_the_same() -> None:
    for seed in range(25):
        random = Random(seed)
        problem = some_problem(random)
        rule = some_rule(random, problem)
        try:
            scheduler = scheduler_of(problem, rule.n_sub)
        except Unsupported:
            continue
        arrays = as_arrays(scheduler)
        set_rule(scheduler, problem, rule)
        from_arrays = run_compiled(scheduler, arrays)
        run_rule(*scheduler)
        assert (from_arrays.ranks, from_arrays.order, from_arrays.settings) == (
            scheduler.ranks,
            scheduler.order,
            scheduler.settings,
        )


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 330), marks=pytest.mark.slow)])
def test_orders_that_break_a_need_or_a_limit_are_stranded(seeds: range) -> None:
    """Of random orders two neighbours change places; the evaluator says the same as the verifier."""
    seen: set[tuple[bool, bool]] = set()
    for seed in seeds:
        random = Random(seed)
        problem = graph_problem(random, most_ops=60)
        schedule = random_order(random, problem)
        if schedule is None:
            continue
        for _ in range(10):
            orders = [list(order) for order in schedule.orders]
            order = random.choice([order for order in orders if len(order) > 1])
            at = random.randrange(len(order) - 1)
            order[at : at + 2] = order[at : at + 2][::-1]
            changed = type(schedule)(orders=tuple(map(tuple, orders)))
            broken = verify_schedule(problem, changed) != ()
            assert (by_orders_ns(problem, changed) >= NEVER) == broken, seed
            seen.add((bool(problem.slices), broken))
    assert len(seen) == 4


def sliced_line(ranks: int, microbatches: int, slices: int) -> Problem:
    """Equal stages and slices, free links."""
    problem = make_problem(ranks, microbatches * slices, split_backward=False, costs_ns=(10, 10, 10))
    return type(problem)(**{name: getattr(problem, name) for name in problem.__slots__} | {"slices": (1,) * slices})


def test_one_rule_is_seq1f1b() -> None:
    """With F first and the round trip's caps, slices take turns forth and back; before it rank i of p runs F of p - i + n - 1."""
    problem = sliced_line(3, 4, 2)
    caps = round_trip_in_flight(problem, whole_period=False)
    assert caps == (4, 3, 2)
    assert in_flight_before_first_backward(problem) == (8, 5, 2)
    made = list_schedule(problem, Rule(priority=((0, 1, 2),) * 3, in_flight=caps, weight_lag=(0, 0, 0)))
    last = " ".join(map(token, made.schedule.orders[2]))
    assert last.startswith("F2.0 F2.1 BW2.1 F2.2 BW2.0 F2.3 BW2.3 F2.4 BW2.2")
    first = made.schedule.orders[0]
    assert [op.kind for op in first[:5]] == [Kind.F] * 4 + [Kind.BW]


def test_depth_on_a_graph_is_by_what_follows() -> None:
    """An encoder of one stage beside a decoder of three, whose last it feeds."""
    stage = Stage(rank=0, forward_ns=(1,), backward_input_ns=(1,), backward_weight_ns=(1,), backward_ns=(2,), activation_bytes=1)
    edges = tuple(Edge(source=a, destination=b, message_bytes=5, gradient_message_bytes=3) for a, b in ((0, 1), (1, 3), (2, 3)))
    problem = Problem(
        name="graph",
        ranks=1,
        microbatches=4,
        stages=(stage,) * 4,
        paths=((0, 1, 2, 3),),
        path_of=(0,) * 4,
        edges=edges,
        memory_limit_bytes=(60,),
    )
    assert depth_by_stage(problem) == [0, 1, 1, 2]
    assert values_wait(problem)
    assert room_for_values(problem, [4], [60]) == (4, [40])  # values of 1 and 2 wait at 3: 10 for each in flight
    assert room_for_values(problem, [4], [40]) == (2, [20])  # of four microbatches there must be room for what they hold, 16


@pytest.mark.parametrize("seed", range(6))
def test_compile_of_a_graph_made_by_hand_gives_a_verified_plan(seed: int) -> None:
    """By all that works on it, with a bound; `compile` itself refuses a plan that its verifiers do not accept."""
    problem = graph_problem(Random(seed), most_ops=40, slices=seed % 2 > 0, memory=False)
    found = {}
    for method in ("auto", "greedy", "rule-table", "sequential", "local", "polish", "cpsat"):
        compiled = compile_problem(problem, SearchSettings(method=method, limits=Limits(deterministic=2)))
        assert compiled.failures == ()
        found[method] = compiled.plan.certificate
    assert found["auto"].gap <= min(found[method].gap for method in ("greedy", "rule-table", "sequential"))


def test_microbatches_whose_encoder_differs_get_an_order() -> None:
    """The search for it keeps slices together, and finds no worse than the order that is given."""
    for seed in range(8):
        problem = replace(graph_problem(Random(seed), most_ops=150, most_microbatches=6, memory=False), in_order=False)
        if not order_is_open(problem):
            continue
        incumbent = Incumbent(problem=problem)
        try_methods(incumbent, ("sequential", "greedy{n_sub=1}"))
        before_ns = incumbent.objective_ns
        Local(evaluations=50, rounds=2).improve(incumbent, Limits())
        assert incumbent.objective_ns <= before_ns
        order = entry_order(problem, incumbent.start)
        slices = len(problem.slices) or 1
        assert sorted(order) == list(range(problem.microbatches))
        assert all(m % slices == at % slices for at, m in enumerate(order))
        assert verify_schedule(problem, incumbent.start) == ()
