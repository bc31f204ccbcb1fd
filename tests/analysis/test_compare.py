"""A plan compared with a trace: of synthetic traces whose differences are known, the report names exactly these."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, strategies as st
from inputs.graphs import graph_cases, graph_problem, random_order
from inputs.plans import plan_of, plans, small_plan
from inputs.problems import make_problem
from inputs.traces import FIELDS, slower_block, slower_link, slower_stage, trace_of_timelines
from suite.example_counts import examples

from schedc.analysis.attribution.waits import Awaited, waits_of
from schedc.analysis.comparison.causes import delays_of
from schedc.analysis.comparison.compare import compare
from schedc.analysis.comparison.steps import measured_steps
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput
from schedc.ir.ops import BLOCKS, WHOLE, Kind, Op
from schedc.ir.schedule import Schedule
from schedc.ir.trace import RankTrace, StepTrace, Trace

if TYPE_CHECKING:
    from schedc.analysis.comparison.causes import Delay
    from schedc.analysis.comparison.compare import Comparison
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

MUCH_NS = 1000
"""More than any cost of the random problems."""
BOTH = plans() | graph_cases(collectives=False).map(lambda case: plan_of(*case))
APART = plans(shared_trunks=False) | graph_cases(trunks=False).map(lambda case: plan_of(*case))
"""Links share no trunk."""


def planned(plan: Plan, *run: Problem, step: int | None = None, in_turn: bool = False) -> Comparison:
    """The comparison of a plan with steps that went as the simulator says under the costs of `run`."""
    schedule = plan.schedule()
    trace = trace_of_timelines(plan, [simulate(problem, schedule) for problem in run], in_turn=in_turn)
    return compare(plan, simulate(plan.problem, schedule), trace, step)


def delays(comparison: Comparison) -> list[Delay]:
    return [comparison.end, comparison.worst, *(rank.worst for rank in comparison.ranks)]


def block(op: Op | None) -> Op | None:
    return None if op is None else op._replace(part=WHOLE)


@examples(50)
@given(plan=BOTH, in_turn=st.booleans())
def test_a_run_as_planned_shows_no_difference(plan: Plan, in_turn: bool) -> None:
    found = planned(plan, plan.problem, plan.problem, in_turn=in_turn)
    timeline = simulate(plan.problem, plan.schedule())
    assert found.measured.median_ns == found.predicted_ns == found.shown_ns == timeline.makespan_ns
    for delay in delays(found):
        assert (delay.late_ns, delay.first, delay.causes) == (0, None, ())
    for rank, busy_ns in zip(found.ranks, timeline.busy_ns, strict=True):
        assert rank.planned == rank.measured
        assert rank.measured.compute_ns == busy_ns
    assert found.measured_step.timeline.starts_ns.tolist() == timeline.starts_ns.tolist()
    idle_ns = []
    for number in range(timeline.ranks):  # before its first op, from the begin of the step
        starts_ns, ends_ns = timeline.start_ns(number), timeline.end_ns(number)
        idle_ns += [start - end for start, end in zip(starts_ns, [0, *ends_ns[:-1]], strict=True)]
    waits = found.measured_step.waits
    assert waits.idle_ns.tolist() == idle_ns
    message = waits_of(plan.problem, timeline).cause == Awaited.MESSAGE
    assert (waits.cause[message] == Awaited.MESSAGE).all()
    assert (timeline.arrival_ns[waits.awaited[message]] == timeline.starts_ns[message]).all()  # of several, it came last
    others = (waits.cause == Awaited.MESSAGE) & ~message
    assert (timeline.starts_ns[others] == found.measured_step.asked_ns[others]).all() or plan.problem.data_parallel
    for cost in found.blocks:
        assert round(cost.measured.median_ns) == cost.planned_ns
        runs = 2 * sum(plan.problem.path(m).count(cost.stage) for m in range(plan.problem.microbatches))
        runs //= len(plan.problem.slices) or 1
        assert cost.measured.count in {runs} if cost.kind is Kind.F else cost.measured.count <= runs


@examples(50)
@given(plan=BOTH)
def test_compute_waiting_and_idle_add_up_on_every_rank(plan: Plan) -> None:
    """Also where the run is nothing like the plan."""
    worse = slower_stage(plan.problem, len(plan.problem.stages) - 1, Kind.F, 17)
    found = planned(plan, worse)
    for rank in found.ranks:
        for account, whole_ns in ((rank.planned, found.predicted_ns), (rank.measured, found.shown_ns)):
            parts = (account.compute_ns, account.late_ns, account.transfer_ns, account.other_ns, account.idle_ns)
            assert min(parts) >= 0
            assert sum(parts) == whole_ns
            assert account.waiting_ns + account.compute_ns + account.idle_ns == whole_ns


@examples(50)
@given(plan=APART, data=st.data())
def test_one_slow_op_is_named_wherever_its_delay_goes(plan: Plan, data: st.DataObject) -> None:
    whole = [op for rank in plan.ranks for op in rank.compute if op.part == WHOLE]  # parts would share the delay
    assume(whole)
    culprit = data.draw(st.sampled_from(whole))
    found = planned(plan, slower_block(plan.problem, culprit, MUCH_NS))
    assert found.worst.late_ns == MUCH_NS
    assert found.worst.op == culprit
    for delay in delays(found):
        assert sum(cause.added_ns for cause in delay.causes) == delay.late_ns
        if delay.late_ns > 0:
            assert delay.first is not None
            assert delay.first.what == "compute"
            assert delay.first.op == culprit
            assert [cause.op for cause in delay.causes if cause.added_ns > 0] == [culprit]
    most_ns = {cost: max(plan.problem.stages[cost.stage].durations_ns(cost.kind)) for cost in found.blocks}
    slow = {(cost.stage, cost.kind) for cost in found.blocks if cost.measured.high_ns > most_ns[cost]}
    assert slow == {(culprit.stage, culprit.kind)}


@examples(50)
@given(plan=APART, data=st.data())
def test_one_slow_link_is_named_wherever_its_delay_goes(plan: Plan, data: st.DataObject) -> None:
    links = sorted({(rank.rank, channel.peer) for rank in plan.ranks for channel in rank.channels if not channel.receives})
    assume(links)
    source, destination = data.draw(st.sampled_from(links))
    found = planned(plan, slower_link(plan.problem, source, destination, MUCH_NS))
    assert found.worst.late_ns > 0
    for delay in delays(found):
        assert sum(cause.added_ns for cause in delay.causes) == delay.late_ns
        if delay.late_ns > 0:
            assert delay.first is not None
            guilty = [cause for cause in (delay.first, *delay.causes) if cause.added_ns > 0]
            assert {(cause.what, cause.rank, cause.destination) for cause in guilty} == {("transfer", source, destination)}
    for cost in found.links:
        link = (cost.source, cost.destination)
        if cost.measured is not None and plan.problem.data_parallel is None:
            more_ns = MUCH_NS if link == (source, destination) else 0
            if plan.problem.is_chain and not plan.problem.slices:  # messages of one size
                assert (cost.measured.low_ns, cost.measured.high_ns) == (cost.planned_ns + more_ns,) * 2
            assert found.measured_problem.link(*link).latency_ns == plan.problem.link(*link).latency_ns + more_ns
        if link == (source, destination):
            assert cost.measured is not None


@examples(50)
@given(plan=BOTH)
def test_the_causes_of_a_delay_always_add_up_to_it(plan: Plan) -> None:
    """On shared trunks, too, where one delay changes who is first."""
    problem = plan.problem
    for stage in range(len(problem.stages)):
        problem = slower_stage(problem, stage, Kind.F, 3 + stage)
    for delay in delays(planned(plan, problem)):
        assert sum(cause.added_ns for cause in delay.causes) == delay.late_ns


@examples(50)
@given(plan=plans(shared_trunks=False))
def test_the_measured_costs_give_the_measured_time(plan: Plan) -> None:
    """What ran slower than planned in the same way in every microbatch, the simulator says as it was."""
    plan = replace(plan, problem=replace(plan.problem, data_parallel=None))
    problem = plan.problem
    for stage in range(len(problem.stages)):
        for kind in BLOCKS:
            problem = slower_stage(problem, stage, kind, 5 + 2 * stage + kind)
    problem = replace(
        problem, links=tuple(replace(link, latency_ns=link.latency_ns + MUCH_NS) for link in problem.links)
    )  # so slow that every transfer is awaited or of no consequence
    found = planned(plan, problem)
    assume(len(plan.problem.paths) == 1)  # replicas are two stages with one cost
    assume(all(cost.measured is not None for cost in found.links))
    assert found.recosted_ns == found.shown_ns == simulate(problem, plan.schedule()).makespan_ns


def test_each_slice_has_its_measured_cost() -> None:
    """What ran slower than planned by slice, the simulator says as it was: slices of later tokens take longer."""
    for seed in range(40):
        problem = graph_problem(Random(seed), slices=True, memory=False, most_microbatches=4)
        slices = len(problem.slices)
        schedule = random_order(Random(seed), problem)
        assert schedule is not None
        each: list[dict[str, Any]] = [
            {
                FIELDS[kind]: tuple(stage.durations_ns(kind)[0] + 9 * (at % slices) for at in range(problem.microbatches))
                for kind in BLOCKS
            }
            for stage in problem.stages
        ]
        stages = tuple(replace(stage, **times) for stage, times in zip(problem.stages, each, strict=True))
        ran = replace(problem, stages=stages)
        found = planned(plan_of(problem, schedule), ran)
        for cost in found.blocks:
            values = found.measured_problem.stages[cost.stage].durations_ns(cost.kind)
            assert values[cost.slice :: slices] == stages[cost.stage].durations_ns(cost.kind)[cost.slice :: slices]


def two_ranks(*, fused: bool = True) -> Plan:
    """One microbatch over two ranks: F 10, BW 20 each, transfers of 3 + 4."""
    problem = make_problem(2, 1, links={(0, 1): (4, 3), (1, 0): (4, 3)})
    kinds = (Kind.F, Kind.BW) if fused else (Kind.F, Kind.B, Kind.W)
    orders = tuple(tuple(Op(kind, rank, 0) for kind in kinds) for rank in range(2))
    return plan_of(problem, Schedule(orders=orders))


def rank_trace(plan: Plan, rank: int, begin_ns: int, times: list[tuple[int, int, int]], channels: list[list[int]]) -> RankTrace:
    entry = plan.ranks[rank]
    step = StepTrace(
        step=4,
        step_begin_ns=begin_ns,
        step_end_ns=300,
        asked_ns=tuple(asked for asked, _, _ in times),
        begun_ns=tuple(begun for _, begun, _ in times),
        ended_ns=tuple(ended for _, _, ended in times),
        channels_ns=tuple(map(tuple, channels)),
    )
    names = tuple(replace(channel, post_before=()) for channel in entry.channels)
    return RankTrace(rank=rank, clock_offset_ns=0, clock_error_ns=0, compute=entry.compute, channels=names, steps=(step,))


def by_hand(plan: Plan) -> Trace:
    """Rank 1 begins first, rank 0 at 5; F0.0 takes 15; its message is sent at 22 and there at 40; the way back takes 10."""
    zero, one = (
        [[90 if c.receives else 22] for c in plan.ranks[0].channels],
        [[40 if c.receives else 80] for c in plan.ranks[1].channels],
    )
    return Trace(
        plan_name="test",
        plan_sha256="",
        ranks=(
            rank_trace(plan, 0, 5, [(6, 6, 21), (21, 90, 110)], zero),
            rank_trace(plan, 1, 0, [(0, 41, 56), (56, 57, 79)], one),
        ),
    )


def test_accounts_and_causes_of_a_step_by_hand() -> None:
    plan = two_ranks()
    found = compare(plan, simulate(plan.problem, plan.schedule()), by_hand(plan))
    assert (found.predicted_ns, found.shown_ns, found.shown_step) == (74, 110, 4)
    zero, one = (rank.measured for rank in found.ranks)
    assert (zero.compute_ns, zero.late_ns, zero.transfer_ns, zero.other_ns, zero.idle_ns) == (35, 59, 10, 6, 0)
    assert (one.compute_ns, one.late_ns, one.transfer_ns, one.other_ns, one.idle_ns) == (37, 22, 18, 2, 31)
    planned_zero, planned_one = (rank.planned for rank in found.ranks)
    assert (planned_zero.compute_ns, planned_zero.late_ns, planned_zero.transfer_ns, planned_zero.idle_ns) == (30, 37, 7, 0)
    assert (planned_one.compute_ns, planned_one.late_ns, planned_one.transfer_ns, planned_one.idle_ns) == (30, 10, 7, 27)
    assert found.end.op == found.worst.op == Op(Kind.BW, 0, 0)
    assert found.end.late_ns == 110 - 74
    assert [(cause.what, block(cause.op), cause.rank, cause.added_ns) for cause in found.end.causes] == [
        ("transfer", Op(Kind.F, 0, 0), 0, 40 - 21 - 7),
        ("begin", None, 0, 5),  # equal ones in the order of time
        ("compute", Op(Kind.F, 0, 0), 0, 15 - 10),
        ("compute", Op(Kind.F, 1, 0), 1, 15 - 10),
        ("transfer", Op(Kind.BW, 1, 0), 1, 90 - 79 - 7),
        ("rank", Op(Kind.F, 1, 0), 1, 1 + 1),
        ("compute", Op(Kind.BW, 1, 0), 1, 22 - 20),
        ("rank", Op(Kind.F, 0, 0), 0, 1),
    ]
    assert found.end.first is not None
    assert (found.end.first.what, found.end.first.rank) == ("begin", 0)


def test_a_slow_take_of_what_came_long_ago_is_no_transfer() -> None:
    """F1.1 asks 97 after F0.1 was sent, which takes 7, and then needs 9 to take it."""
    problem = make_problem(2, 2, costs_ns=[(10, 5, 5), (107, 5, 5)], links={(0, 1): (4, 3), (1, 0): (4, 3)})
    plan = gpipe(problem)
    timeline = simulate(problem, plan.schedule())
    trace = trace_of_timelines(plan, [timeline])
    assert timeline.start_ns(1)[1] == 20 + 7 + 97
    rank = trace.ranks[1]
    (step,) = rank.steps
    channels_ns = tuple(
        (times_ns[0], (times_ns[1] or 0) + 9) if channel.receives else times_ns
        for channel, times_ns in zip(rank.channels, step.channels_ns, strict=True)
    )
    late = replace(step, begun_ns=(step.begun_ns[0], step.begun_ns[1] + 9, *step.begun_ns[2:]), channels_ns=channels_ns)
    found = compare(plan, timeline, replace(trace, ranks=(trace.ranks[0], replace(rank, steps=(late,)))))
    account = found.ranks[1].measured
    assert (account.late_ns, account.transfer_ns, account.other_ns) == (10, 7, 9)
    (forth, _) = found.links
    assert forth.measured is not None
    assert (forth.measured.count, forth.measured.median_ns, forth.at_most_ns) == (1, 7, 97 + 7 + 9)


def gpipe(problem: Problem) -> Plan:
    ops = [
        tuple(Op(kind, rank, microbatch) for kind in (Kind.F, Kind.BW) for microbatch in range(problem.microbatches))
        for rank in range(problem.ranks)
    ]
    return plan_of(problem, Schedule(orders=tuple(ops)))


def test_a_quick_take_of_what_has_just_come_is_no_waiting() -> None:
    """F1.1 asks 3 after F0.1 came and takes it in 2, where others need 1 to go on."""
    problem = make_problem(2, 2, costs_ns=[(10, 5, 5), (13, 5, 5)], links={(0, 1): (4, 3), (1, 0): (4, 3)})
    plan = gpipe(problem)
    timeline = simulate(problem, plan.schedule())
    trace = trace_of_timelines(plan, [timeline])
    (step,) = trace.ranks[1].steps
    begun_ns = (step.begun_ns[0], step.begun_ns[1] + 2, step.begun_ns[2] + 1, step.begun_ns[3] + 1)
    channels_ns = tuple(
        (times_ns[0], (times_ns[1] or 0) + 2) if channel.receives else times_ns
        for channel, times_ns in zip(trace.ranks[1].channels, step.channels_ns, strict=True)
    )
    ranks = trace.ranks[0], replace(trace.ranks[1], steps=(replace(step, begun_ns=begun_ns, channels_ns=channels_ns),))
    found = compare(plan, timeline, replace(trace, ranks=ranks))
    account = found.ranks[1].measured
    assert (account.late_ns, account.transfer_ns, account.other_ns) == (10, 7, 2 + 1 + 1)
    assert found.links[0].at_most_ns == 7 + 3 + 2


def test_a_transfer_that_queues_behind_a_late_one_is_not_to_blame() -> None:
    """F1.0 is 50 late. F1.1 is in time, as it waits for rank 0, but its transfer finds the link busy for 30 more."""
    problem = make_problem(3, 2, costs_ns=[(100, 1, 1), (10, 1, 1), (10, 1, 1)], links={(1, 2): (0, 80)})
    plan = gpipe(problem)
    timeline = simulate(problem, plan.schedule())
    trace = trace_of_timelines(plan, [simulate(slower_block(problem, Op(Kind.F, 1, 0), 50), plan.schedule())])
    (step,) = measured_steps(plan, timeline, trace)
    (delay,) = delays_of(timeline, step, [timeline.named_ops.index(Op(Kind.F, 2, 1))])
    assert delay.late_ns == 30
    assert delay.first is not None
    assert (delay.first.what, delay.first.op, delay.first.added_ns) == ("compute", Op(Kind.F, 1, 0), 50)


def test_a_delay_that_was_made_up_for_is_not_the_first_cause() -> None:
    """F1.0 is 20 late, but F1.1 need not wait for F0.1 as planned and begins 20 early; then it takes 100 longer."""
    problem = make_problem(2, 2, links={(0, 1): (4, 3), (1, 0): (4, 3)})
    stages = problem.stages
    problem = replace(problem, stages=(replace(stages[0], forward_ns=(10, 50)), stages[1]))
    ran = replace(problem, stages=(stages[0], replace(stages[1], forward_ns=(30, 110))))
    plan = gpipe(problem)
    found = planned(plan, ran)
    assert found.worst.late_ns == 80
    assert found.worst.op == Op(Kind.F, 1, 1)
    assert found.worst.first is not None
    assert (found.worst.first.op, found.worst.first.added_ns) == (Op(Kind.F, 1, 1), 100)


def test_a_boundary_without_gradient_is_no_transfer() -> None:
    plan = two_ranks()
    trace = by_hand(plan)
    steps = [
        replace(
            rank.steps[0],
            channels_ns=tuple(
                (None,) if channel.transfers[0].kind is Kind.BW else times_ns
                for channel, times_ns in zip(rank.channels, rank.steps[0].channels_ns, strict=True)
            ),
        )
        for rank in trace.ranks
    ]
    trace = replace(trace, ranks=tuple(replace(rank, steps=(step,)) for rank, step in zip(trace.ranks, steps, strict=True)))
    found = compare(plan, simulate(plan.problem, plan.schedule()), trace)
    assert [(link.source, link.destination) for link in found.links] == [(0, 1)]
    assert found.measured_problem.link(1, 0) == plan.problem.link(1, 0)
    assert found.ranks[0].measured.late_ns == 0


def test_the_step_is_the_median_or_the_one_asked_for() -> None:
    plan = small_plan(data_parallel=None)
    runs = [slower_block(plan.problem, Op(Kind.F, 0, 0), by_ns) for by_ns in (30, 0, 20, 10)]
    whole_ns = plan.certificate.makespan_ns
    found = planned(plan, *runs)
    assert found.steps == ((0, whole_ns + 30), (1, whole_ns), (2, whole_ns + 20), (3, whole_ns + 10))
    assert (found.shown_step, found.shown_ns) == (3, whole_ns + 10)
    assert (found.measured.median_ns, found.measured.low_ns, found.measured.high_ns) == (whole_ns + 15, whole_ns, whole_ns + 30)
    assert planned(plan, *runs, step=2).shown_ns == whole_ns + 20
    with pytest.raises(InvalidInput, match="step 7 is not in the trace, which has the steps 0 to 3"):
        planned(plan, *runs, step=7)


def test_what_a_stage_has_not_run_is_scaled_from_what_it_has() -> None:
    fused, split = two_ranks(), two_ranks(fused=False)
    measured = planned(fused, slower_stage(fused.problem, 0, Kind.BW, 20)).measured_problem.stages
    assert [stage.backward_ns for stage in measured] == [(40,), (20,)]
    assert [(stage.backward_input_ns, stage.backward_weight_ns) for stage in measured] == [((20,), (20,)), ((10,), (10,))]
    problem = replace(split.problem, stages=tuple(replace(stage, backward_ns=(18,)) for stage in split.problem.stages))
    split = plan_of(problem, split.schedule())  # fused was measured once, and is cheaper than apart
    measured = planned(split, slower_stage(problem, 1, Kind.W, 10)).measured_problem.stages
    assert [(stage.backward_input_ns, stage.backward_weight_ns) for stage in measured] == [((10,), (10,)), ((10,), (20,))]
    assert [stage.backward_ns for stage in measured] == [(18,), (27,)]


def test_replicas_are_measured_together() -> None:
    problem = make_problem(2, 4, placement="bidirectional")
    orders: list[list[Op]] = [[], []]
    for kind in (Kind.F, Kind.BW):
        for microbatch in range(4):
            path = problem.path(microbatch)
            for stage in path if kind is Kind.F else path[::-1]:
                orders[problem.stages[stage].rank].append(Op(kind, stage, microbatch))
    plan = plan_of(problem, Schedule(orders=tuple(map(tuple, orders))))
    twins = [path[0] for path in problem.paths]
    measured = planned(plan, slower_stage(problem, twins[0], Kind.F, 8)).measured_problem.stages
    assert [measured[stage].forward_ns for stage in twins] == [(14,), (14,)]


def test_a_link_faster_than_its_occupancy_loses_its_latency_first() -> None:
    plan = two_ranks()
    fast = replace(plan.problem, links=tuple(replace(link, latency_ns=1, transfer_ns=3) for link in plan.problem.links))
    assert planned(plan, fast).measured_problem.link(0, 1) == fast.link(0, 1)
    faster = replace(plan.problem, links=tuple(replace(link, latency_ns=0, transfer_ns=2) for link in plan.problem.links))
    assert planned(plan, faster).measured_problem.link(0, 1) == faster.link(0, 1)


def test_a_trace_of_another_plan_is_refused() -> None:
    plan = two_ranks()
    timeline = simulate(plan.problem, plan.schedule())
    other = two_ranks(fused=False)
    with pytest.raises(InvalidInput, match=r"rank 0 ran B0\.0 at place 1, expected BW0\.0; the trace is not of this plan"):
        compare(plan, timeline, trace_of_timelines(other, [simulate(other.problem, other.schedule())]))
    trace = trace_of_timelines(plan, [timeline])
    with pytest.raises(InvalidInput, match="the trace has 1 ranks, expected the 2 of the plan"):
        compare(plan, timeline, replace(trace, ranks=trace.ranks[:1]))
    bare = replace(trace.ranks[0], channels=(), steps=(replace(trace.ranks[0].steps[0], channels_ns=()),))
    with pytest.raises(InvalidInput, match=r"rank 0 moved on \w+ nothing more at place 0, expected"):
        compare(plan, timeline, replace(trace, ranks=(bare, trace.ranks[1])))
