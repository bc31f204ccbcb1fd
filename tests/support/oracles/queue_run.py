"""Whether the queues of a plan run to their end: an executor that knows no times and runs them in a random order.

Of chains, graphs and slices. Shares no code with the verifier, whose rendezvous check says the same of all orders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.ir.ops import Kind, Op, sent_to

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem


def stuck(plan: Plan, random: Random) -> str | None:
    """Run the queues in a random order, whatever the times: an op that cannot run, or a message that is not the one awaited."""
    done: set[Op] = set()
    at = [0] * len(plan.ranks)
    moved: dict[tuple[int, int], int] = {}
    sends = {(rank.rank, channel.peer): channel for rank in plan.ranks for channel in rank.channels if not channel.receives}
    takes = {(channel.peer, rank.rank): channel for rank in plan.ranks for channel in rank.channels if channel.receives}
    arrived: set[tuple[int, Op]] = set()
    last = {op[:3]: op for rank in plan.ranks for op in rank.compute}
    while True:
        able: list[tuple[str, Any]] = []
        for rank in plan.ranks:
            if at[rank.rank] < len(rank.compute) and _may_run(plan, rank.rank, rank.compute[at[rank.rank]], done, arrived, last):
                able.append(("op", rank.rank))
        for pair, channel in sends.items():
            count = moved.get(pair, 0)
            if count < len(channel.transfers) and pair in takes and count < len(takes[pair].transfers):
                posted = count < len(takes[pair].post_before) and takes[pair].post_before[count] <= at[pair[1]]
                if posted and last.get(channel.transfers[count][:3]) in done:
                    able.append(("transfer", pair))
        if not able:
            break
        what, where = random.choice(able)
        if what == "op":
            done.add(plan.ranks[where].compute[at[where]])
            at[where] += 1
        else:
            count = moved.get(where, 0)
            sent, taken = sends[where].transfers[count], takes[where].transfers[count]
            if sent != taken:
                return f"rank {where[1]} takes {taken}, but {sent} comes"
            arrived.add((where[1], sent))
            moved[where] = count + 1
    for rank in plan.ranks:
        if at[rank.rank] < len(rank.compute):
            return f"rank {rank.rank} stops before {rank.compute[at[rank.rank]]}"
    if any(moved.get(pair, 0) < len(channel.transfers) for pair, channel in (*sends.items(), *takes.items())):
        return "a message is never moved"
    return None


def _may_run(plan: Plan, rank: int, op: Op, done: set[Op], arrived: set[tuple[int, Op]], last: dict[Any, Op]) -> bool:
    """Whether what the op needs is there."""
    problem = plan.problem
    if op.kind is Kind.W:
        return last.get((Kind.B, op.stage, op.microbatch)) in done
    if op.kind is not Kind.F and last.get((Kind.F, op.stage, op.microbatch)) not in done:
        return False
    kinds = (Kind.F,) if op.kind is Kind.F else (Kind.B, Kind.BW)
    beside = _slice_beside(problem, op)
    if beside is not None and not any(last.get((kind, op.stage, beside)) in done for kind in kinds):
        return False
    for stage, to in _taken_from(problem, op):
        if problem.stages[stage].rank == rank:
            there = any(last.get((kind, stage, op.microbatch)) in done for kind in kinds)
        else:
            blocks = [Op(kind, stage, op.microbatch) for kind in kinds]
            there = any((rank, sent_to(block, to) if problem.edges else block) in arrived for block in blocks)
        if not there:
            return False
    return True


def _slice_beside(problem: Problem, op: Op) -> int | None:
    """The slice of the same microbatch before which, of a backward behind which, the op must not run on its stage."""
    count = len(problem.slices) or 1
    beside = op.microbatch + (-1 if op.kind is Kind.F else 1)
    return beside if beside >= 0 and beside // count == op.microbatch // count else None


def _taken_from(problem: Problem, op: Op) -> Iterator[tuple[int, int]]:
    """The stages whose outputs or gradients the op takes, each with the stage that its transfer is named by."""
    for edge in problem.edges:
        if op.kind is not Kind.F and edge.source == op.stage and edge.gradient_message_bytes is not None:
            yield edge.destination, op.stage
        if op.kind is Kind.F and edge.destination == op.stage:
            rank = problem.stages[op.stage].rank
            same = [each for each in problem.edges if (each.source, each.value) == (edge.source, edge.value)]
            yield edge.source, next(each.destination for each in same if problem.stages[each.destination].rank == rank)
    if not problem.edges:
        path = problem.path(op.microbatch)
        other = path.index(op.stage) + (-1 if op.kind is Kind.F else 1)
        if 0 <= other < len(path):
            yield path[other], op.stage
