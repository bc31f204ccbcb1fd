"""Whether a period repeats in the time that its certificate claims, and in no less. Shares nothing with what computes periods.

A timetable repeats every T ns if each op and transfer begins, within the period, late enough after all that it waits for, which may
lie some periods before. Of these differences there is a solution if and only if no cycle of them adds up to more than T per period
that it passes (Bellman, 1958). So T is the least period if T has a solution and T - 1 has none. A link or trunk serves one rank, in
its order; a wire into a rank serves several, in the order in which that takes the messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from schedc.ir import Kind, Link, Op, Plan, Problem, Schedule
from schedc.verify.plan.replay import Replay
from schedc.verify.schedule.updates import period_of_step

if TYPE_CHECKING:
    from collections.abc import Iterator

Place: TypeAlias = tuple[int, int]
"""Rank and index of an op in its order; its transfer is (-1 - rank, index)."""
Wait: TypeAlias = tuple[Place, Place, int, int]
"""What begins at least this many ns after what, of how many periods before."""
ROUNDS = 4
"""So often all may get later before it is looked whether somebody does because of themselves."""


def repeat(plan: Plan) -> Replay:
    """How long the plan of a period takes from one step to the next: what its certificate claims if that is right, else what is."""
    problem, schedule = plan.problem, plan.schedule()
    busy_ns = tuple(
        sum(problem.duration_ns(op.kind, op.stage, 0 if op.kind == Kind.U else op.microbatch) for op in order)
        for order in schedule.orders
    )
    period_ns = plan.certificate.makespan_ns
    if not is_period(problem, schedule, period_ns) or (period_ns and is_period(problem, schedule, period_ns - 1)):
        low_ns, high_ns = -1, sum(time_ns for _, _, time_ns, _ in _waits(problem, schedule))  # one thing after the other
        while high_ns - low_ns > 1:
            middle_ns = (low_ns + high_ns) // 2
            low_ns, high_ns = (low_ns, middle_ns) if is_period(problem, schedule, middle_ns) else (middle_ns, high_ns)
        period_ns = high_ns
    return Replay(makespan_ns=period_ns, stage_span_ns=period_ns, busy_ns=busy_ns, ends_ns=())


def is_period(problem: Problem, schedule: Schedule, period_ns: int) -> bool:
    """Whether all ops can repeat every `period_ns`; never where they wait for each other in a cycle."""
    waiting: dict[Place, list[tuple[Place, int]]] = {}
    within: dict[Place, list[Place]] = {}
    left: dict[Place, int] = {}  # of each that waits for something of its period, for how many
    for before, after, time_ns, periods in _waits(problem, schedule):
        waiting.setdefault(before, []).append((after, time_ns - periods * period_ns))
        waiting.setdefault(after, [])
        if periods <= 0:
            within.setdefault(before, []).append(after)
            left[after] = left.get(after, 0) + 1
    turn = [each for each in waiting if each not in left]  # as one period can go; it grows
    for before in turn:
        for after in within.get(before, ()):
            left[after] -= 1
            if not left[after]:
                turn.append(after)
    turn += [each for each, count in left.items() if count]
    begin = dict.fromkeys(waiting, 0)
    reason: dict[Place, Place] = {}
    moved, rounds = set(waiting), 0
    while moved:
        rounds += 1
        for before in turn:
            if before in moved:
                moved.remove(before)
                for after, gap in waiting[before]:
                    if begin[before] + gap > begin[after]:
                        begin[after], reason[after] = begin[before] + gap, before
                        moved.add(after)
        # A way of reasons without a cycle is no longer than there are places, so one that goes on has a cycle at last.
        if rounds % ROUNDS == 0 and _has_cycle(reason):
            return False
    return True


def _has_cycle(reason: dict[Place, Place]) -> bool:
    """Whether somebody is late because of themselves: then they get later and later."""
    cleared: set[Place] = set()
    for each in reason:
        way: set[Place] = set()
        at: Place | None = each
        while at is not None and at not in cleared:
            if at in way:
                return True
            way.add(at)
            at = reason.get(at)
        cleared |= way
    return False


def _sends_to(problem: Problem, op: Op, microbatch: int) -> tuple[int, Link] | None:
    """The stage on another rank that the op's transfer goes to, with its link; None: it sends none."""
    path = problem.path(microbatch)
    at = path.index(op.stage) + (1 if op.kind == Kind.F else -1) if op.kind in (Kind.F, Kind.B, Kind.BW) else -1
    if not 0 <= at < len(path):
        return None
    source, destination = problem.stages[op.stage].rank, problem.stages[path[at]].rank
    return None if source == destination else (path[at], problem.link(source, destination))


def _occupancy_ns(problem: Problem, op: Op, to: int, link: Link) -> int:
    sender = op.stage if op.kind == Kind.F else to
    size = problem.stages[sender].message_bytes if op.kind == Kind.F else problem.stages[sender].gradient_message_bytes
    return link.occupancy_ns(size)


def _waits(problem: Problem, schedule: Schedule) -> Iterator[Wait]:
    count = problem.microbatches
    receiver: dict[tuple[bool, int, int], tuple[Place, int]] = {}
    for rank, order in enumerate(schedule.orders):
        for index, op in enumerate(order):
            step, microbatch = period_of_step(op, count)
            if op.kind in (Kind.F, Kind.B, Kind.BW):
                receiver[op.kind == Kind.F, op.stage, microbatch] = (rank, index), step
    on_link: dict[object, list[tuple[Place, Place, int, int]]] = {}
    for rank, order in enumerate(schedule.orders):
        for index, op in enumerate(order):
            lasts_ns = problem.duration_ns(op.kind, op.stage, 0 if op.kind == Kind.U else op.microbatch)
            following = (index + 1) % len(order)
            yield (rank, index), (rank, following), lasts_ns, int(following <= index)
            step, microbatch = period_of_step(op, count)
            sent = _sends_to(problem, op, microbatch)
            if sent is None:
                continue
            to, link = sent
            occupancy_ns, transfer = _occupancy_ns(problem, op, to, link), (-1 - rank, index)
            consumer, its_step = receiver[op.kind == Kind.F, to, microbatch]
            yield (rank, index), transfer, lasts_ns, 0
            yield transfer, consumer, occupancy_ns + link.latency_ns, step - its_step
            queue = on_link.setdefault(link.trunk or (rank, link.destination), [])
            queue.append(((rank, index), consumer, occupancy_ns, step - its_step))
    for queue in on_link.values():
        into_one = len({sender[0] for sender, _, _, _ in queue}) > 1
        queue.sort(key=lambda entry: entry[1] if into_one else entry[0])  # as it is taken, or as it is sent
        for number, (sender, _, occupancy_ns, early) in enumerate(queue):
            next_sender, _, _, its_early = queue[(number + 1) % len(queue)]
            later = int(number + 1 == len(queue)) + (early - its_early if into_one else 0)
            yield (-1 - sender[0], sender[1]), (-1 - next_sender[0], next_sender[1]), occupancy_ns, later
