"""Graphs and slices: the random problems are sound, and the verifiers accept what keeps all rules and refuse what breaks one."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.graphs import graph_problem, random_order
from inputs.plans import plan_of
from inputs.tiny_problems import random_parts
from oracles.brute_force import best_schedule, peaks, timing

from schedc.ir.graph import Edge
from schedc.ir.network import Link
from schedc.ir.ops import WHOLE, Kind, Op, sent_to
from schedc.ir.plan import BoundName, Certificate, Channel, MadeBy, Plan, RankPlan
from schedc.ir.problem import Objective, Problem, Stage
from schedc.ir.schedule import Collective
from schedc.lower.plan import channel_role
from schedc.verify.plan.channels import Need, needs_of
from schedc.verify.plan.checks import verify_plan
from schedc.verify.plan.memory import peaks_of
from schedc.verify.plan.replay import replay
from schedc.verify.problem import verify_problem
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.schedule import Schedule


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_problems_are_sound(first: int) -> None:
    kinds = set()
    for seed in range(first, first + 50):
        random = Random(seed)
        problem = graph_problem(random, may_be_odd=True, collectives=True)
        assert verify_problem(problem) == ()
        kinds.add((bool(problem.edges), bool(problem.slices)))
        schedule = random_order(random, problem, random_parts(random, problem), limited=False)
        assert schedule is not None
    assert kinds == {(True, False), (True, True), (False, True)}


def sound(seed: int, **options: object) -> tuple[Problem, Schedule]:
    """A random problem with a random schedule that keeps all rules."""
    random = Random(seed)
    while True:
        problem = graph_problem(random, **options)  # type: ignore[arg-type]
        schedule = random_order(random, problem, random_parts(random, problem))
        if schedule is not None:
            return problem, schedule


def test_random_schedules_are_accepted() -> None:
    for seed in range(150):
        assert verify_schedule(*sound(seed, may_be_odd=True)) == ()


def op_before(problem: Problem, schedule: Schedule, late: Op, early: Op) -> Schedule:
    """The schedule with the one op moved directly before the other, on their rank."""
    rank = problem.rank_of(late)
    order = [op for op in schedule.orders[rank] if op != late]
    order.insert(order.index(early), late)
    return replace(schedule, orders=tuple(tuple(order) if at == rank else each for at, each in enumerate(schedule.orders)))


@pytest.mark.parametrize("slices", [False, True])
def test_an_op_before_what_it_needs_is_refused(slices: bool) -> None:
    seen = set()
    for seed in range(120):
        problem, schedule = sound(seed, slices=slices, edges=not slices or None)
        position = {op: (rank, index) for rank, order in enumerate(schedule.orders) for index, op in enumerate(order)}
        whole = {op for op in position if op.part == WHOLE}
        needs = [(a, b) for a in whole for b in whole if needed(problem, a, b) and position[a][0] == position[b][0]]
        for before, after in needs[:3]:
            moved = op_before(problem, schedule, after, before)
            places = {violation.rule for violation in verify_schedule(problem, moved)}
            assert "need-order" in places
            seen.add((before.kind, after.kind, before.stage == after.stage))
    assert {(Kind.F, Kind.F, False), (Kind.BW, Kind.BW, False)} <= seen or {
        (Kind.F, Kind.F, True),
        (Kind.BW, Kind.BW, True),
    } <= seen


def needed(problem: Problem, before: Op, after: Op) -> bool:
    """Whether the one needs the other over an edge, or along slices."""
    forward = {before.kind, after.kind} == {Kind.F}
    if not forward and not {before.kind, after.kind} <= {Kind.B, Kind.BW}:
        return False
    if before.microbatch == after.microbatch:
        ends = (before.stage, after.stage) if forward else (after.stage, before.stage)
        return any((edge.source, edge.destination) == ends and (forward or edge.has_gradient) for edge in problem.edges)
    step = after.microbatch - before.microbatch
    count = len(problem.slices)
    same = count and before.stage == after.stage and before.microbatch // count == after.microbatch // count
    return bool(same) and step == (1 if forward else -1)


def test_each_stage_without_edges_in_takes_microbatches_in_order() -> None:
    found = 0
    for seed in range(60):
        random = Random(seed)
        problem = replace(graph_problem(random, slices=False, edges=True, memory=False, most_microbatches=3), in_order=True)
        schedule = random_order(random, problem)
        assert schedule is not None
        assert verify_schedule(problem, schedule) == ()
        entries = set(range(len(problem.stages))) - {edge.destination for edge in problem.edges}
        for stage in entries if problem.microbatches > 1 else ():
            moved = op_before(problem, schedule, Op(Kind.F, stage, 1), Op(Kind.F, stage, 0))
            places = [violation for violation in verify_schedule(problem, moved) if violation.rule == "microbatch-order"]
            assert f"F{stage}.0 is after F{stage}.1" in places[0].message
            found += stage > 0
    assert found > 5


def test_a_transfer_among_the_ops_is_refused() -> None:
    problem, schedule = sound(1, edges=True)
    orders = ((sent_to(Op(Kind.F, 0, 0), 2), *schedule.orders[0]), *schedule.orders[1:])
    found = [violation for violation in verify_schedule(problem, replace(schedule, orders=orders)) if violation.rule == "op-fields"]
    assert "as of the transfer F0.0>2" in found[0].message


def lowered(problem: Problem, schedule: Schedule) -> Plan:
    """A plan of the schedule without the simulator: all is sent in the order of ops and edges, all receives are posted first.

    Its certificate claims what the brute force says.
    """
    makespan_ns, span_ns = timing(problem, schedule)
    busy_ns = sum(schedule.duration_ns(problem, op) for order in schedule.orders for op in order)
    objective_ns = span_ns if problem.objective is Objective.STAGE_SPAN else makespan_ns
    certificate = Certificate(
        makespan_ns=makespan_ns,
        lower_bound_ns=0,
        gap=1.0 if objective_ns else 0.0,
        bound=BoundName.WORK,
        bubble_ratio=1 - busy_ns / (problem.ranks * makespan_ns),
        peak_activation_bytes=tuple(peaks(problem, schedule)),
        stage_span_ns=span_ns,
        objective=problem.objective,
    )
    bare = Plan(
        problem=problem,
        ranks=tuple(RankPlan(rank=rank, compute=order) for rank, order in enumerate(schedule.orders)),
        parts=schedule.parts,
        certificate=certificate,
        made_by=MadeBy(schedc="0", method="test"),
    )
    queues: dict[tuple[int, int], list[Need]] = {}
    for need in sorted(needs_of(bare).values(), key=lambda need: (need.producer, need.place)):
        queues.setdefault((need.source, need.destination), []).append(need)
    channels: list[list[Channel]] = [[] for _ in range(problem.ranks)]
    for (source, destination), needs in queues.items():
        ops = tuple(need.op for need in needs)
        to, of = (channel_role(*pair, problem.ranks) for pair in ((source, destination), (destination, source)))
        channels[source].append(Channel(name=f"send_{to}", peer=destination, transfers=ops))
        channels[destination].append(Channel(name=f"recv_{of}", peer=source, transfers=ops, post_before=(0,) * len(ops)))
    collectives = [_collectives(problem, order) for order in schedule.orders]
    return replace(
        bare,
        ranks=tuple(replace(rank, channels=tuple(channels[rank.rank]), collectives=collectives[rank.rank]) for rank in bare.ranks),
    )


def _collectives(problem: Problem, order: tuple[Op, ...]) -> tuple[Collective, ...]:
    if problem.data_parallel is None:
        return ()
    gathers = dict.fromkeys(op.stage for op in order if op.kind == Kind.F) if problem.data_parallel.all_gather_ns else {}
    scatters = list(dict.fromkeys(op.stage for op in reversed(order) if op.kind in (Kind.W, Kind.BW)))
    return tuple(Collective("AG", stage) for stage in gathers) + tuple(Collective("RS", stage) for stage in reversed(scatters))


@pytest.mark.parametrize("first", range(0, 300, 60))
def test_plans_are_as_the_brute_force_says(first: int) -> None:
    """Times, stage spans and peaks with values that wait, of graphs, slices and both; in small numbers and odd ones."""
    waited = limited = 0
    for seed in range(first, first + 60):
        problem, schedule = sound(seed, collectives=True, may_be_odd=True, most_stages=7)
        plan = lowered(problem, schedule)
        over = [
            rank
            for rank, (peak, limit) in enumerate(
                zip(plan.certificate.peak_activation_bytes, problem.memory_limit_bytes, strict=True)
            )
            if limit is not None and peak > limit
        ]
        found = verify_plan(plan)
        assert [(each.rule, each.place.partition(".")[0]) for each in found] == [
            ("memory-limit", f"ranks[{rank}]") for rank in over
        ]
        limited += bool(over)
        waited += any(peak.waiting_bytes for peak in peaks_of(plan, replay(plan, needs_of(plan))))
    assert waited > 5


def test_the_optimum_by_brute_force_is_reached_and_not_beaten() -> None:
    reached = 0
    for seed in range(40):
        problem = graph_problem(Random(seed), most_ops=14, most_stages=5)
        best_ns, schedule = best_schedule(problem)
        if best_ns is None or schedule is None:
            continue
        plan = lowered(problem, schedule)
        assert verify_plan(plan) == ()
        assert plan.certificate.objective_ns == best_ns
        for number in range(8):
            other = random_order(Random(number), problem)
            beside = None if other is None else lowered(problem, other)
            if beside is not None and not verify_plan(beside):
                assert beside.certificate.objective_ns >= best_ns
                reached += beside.certificate.objective_ns == best_ns
    assert reached > 20


def edited(plan: Plan, rank: int, peer: int, change: Callable[[list[Op]], list[Op]], *, both: bool = True) -> Plan:
    """The plan with another list of transfers from the one rank to the other, at both ends or at the receiver's alone."""
    ranks = []
    for each in plan.ranks:
        channels = []
        for channel in each.channels:
            if (each.rank, channel.peer, channel.receives) in ((rank, peer, False), (peer, rank, True)) and (
                both or channel.receives
            ):
                transfers = tuple(change(list(channel.transfers)))
                posts = (channel.post_before * 2 + (0,))[: len(transfers)] if channel.receives else ()
                channel = replace(channel, transfers=transfers, post_before=posts)
            channels.append(channel)
        ranks.append(replace(each, channels=tuple(channels)))
    return replace(plan, ranks=tuple(ranks))


def fork() -> Plan:
    """Stage 0 on rank 0 gives stages 1 and 2 on rank 1 one value, and stage 3 there another; stage 4 there takes of them all."""
    stage = Stage(rank=1, forward_ns=(3,), backward_input_ns=(2,), backward_weight_ns=(2,), backward_ns=(4,), activation_bytes=5)
    edges = [(0, 1, 0), (0, 3, 1), (0, 2, 0), (1, 4, 0), (2, 4, 0), (3, 4, 0)]
    problem = Problem(
        name="fork",
        ranks=2,
        microbatches=2,
        stages=(replace(stage, rank=0), stage, stage, stage, stage),
        paths=((0, 1, 2, 3, 4),),
        path_of=(0, 0),
        edges=tuple(Edge(source=a, destination=b, message_bytes=7, gradient_message_bytes=9, value=value) for a, b, value in edges),
        links=(Link(source=0, destination=1, transfer_ns=2), Link(source=1, destination=0, transfer_ns=2)),
        memory_limit_bytes=(None, None),
    )
    schedule = random_order(Random(3), problem)
    assert schedule is not None
    return lowered(problem, schedule)


FIRST, OTHER = sent_to(Op(Kind.F, 0, 0), 1), sent_to(Op(Kind.F, 0, 0), 3)


@pytest.mark.parametrize(
    ("change", "rule", "says"),
    [
        (lambda ops: ops[1:], "transfers", "no channel sends F0.0>1, which rank 1 needs from rank 0"),
        (lambda ops: [*ops, ops[0]], "transfers", "F0.0>1 is a duplicate"),
        (lambda ops: [sent_to(Op(Kind.F, 0, 0), 2), *ops[1:]], "transfers", "F0.0>2 is needed by no other rank"),
        (lambda ops: [sent_to(Op(Kind.F, 0, 0), 4), *ops[1:]], "transfers", "F0.0>4 is needed by no other rank"),
        (lambda ops: [Op(Kind.F, 0, 0), *ops[1:]], "transfers", "F0.0 is needed by no other rank"),
        (lambda ops: [ops[1], ops[0], *ops[2:]], "transfer-order", "F0.0>1 is of an edge before the transfer in front of it"),
        (lambda ops: [ops[2], *ops[:2], *ops[3:]], "transfer-order", "F0.0>1 is produced before the transfer in front of it"),
    ],
)
def test_transfers_of_other_edges_are_refused(change: Callable[[list[Op]], list[Op]], rule: str, says: str) -> None:
    plan = fork()
    assert verify_plan(plan) == ()
    assert [op for channel in plan.ranks[0].channels if not channel.receives for op in channel.transfers][:2] == [FIRST, OTHER]
    found = verify_plan(edited(plan, 0, 1, change))
    assert any(violation.rule == rule and says in violation.message for violation in found), found


def test_a_transfer_in_the_wrong_channel_is_refused() -> None:
    plan = fork()
    back = edited(plan, 1, 0, lambda ops: [FIRST, *ops])
    says = "F0.0>1 goes from rank 0 to rank 1, not from 1 to 0"
    assert any(violation.rule == "transfers" and says in violation.message for violation in verify_plan(back))


def test_a_list_that_only_the_receiver_changes_is_refused() -> None:
    found = verify_plan(edited(fork(), 0, 1, lambda ops: [ops[1], ops[0], *ops[2:]], both=False))
    assert [violation.rule for violation in found][:1] == ["channel-pairs"]


def test_a_receive_that_is_posted_behind_what_waits_for_it_is_refused() -> None:
    """Stages 1 and 2 take one value; the first of their ops in the queue counts."""
    plan = fork()
    queue = plan.ranks[1].compute
    second = max(queue.index(op) for op in (Op(Kind.F, 1, 0), Op(Kind.F, 2, 0)))
    ranks = []
    for rank in plan.ranks:
        channels = [
            replace(channel, post_before=tuple(second for _ in channel.transfers))
            if channel.receives and rank.rank == 1
            else channel
            for channel in rank.channels
        ]
        ranks.append(replace(rank, channels=tuple(channels)))
    found = verify_plan(replace(plan, ranks=tuple(ranks)))
    assert any(violation.rule == "post-before" and "F0.0>1 is posted before op" in violation.message for violation in found)
    assert any(violation.rule == "rendezvous" and " from rank 0 to 1]" in violation.message for violation in found)


@pytest.mark.parametrize("least_ns", [0, 1])
def test_plans_of_the_simulators_times_are_accepted(least_ns: int) -> None:
    for seed in range(150):
        problem, schedule = sound(seed, collectives=True, may_be_odd=True, most_stages=7, least_ns=least_ns)
        assert {violation.rule for violation in verify_plan(plan_of(problem, schedule))} <= {"memory-limit"}
