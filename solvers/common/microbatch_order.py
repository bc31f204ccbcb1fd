"""The order in which microbatches enter: read from a Schedule, and put on a Problem before a method that takes them by number.

An *order* has one entry for each position: the microbatch there. Position and microbatch have the same path, so paths stay as they
are, and each path's microbatches enter its first stage in the order of their positions. Slices stay together, in their order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.ir import Kind, Problem, Schedule, are_alike

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def order_is_open(problem: Problem) -> bool:
    """Whether microbatches differ and may enter in any order."""
    return not problem.in_order and not are_alike(problem)


def entry_order(problem: Problem, schedule: Schedule) -> tuple[int, ...]:
    """The order in which the schedule's microbatches enter; of slices, in which the first of each does."""
    entered: list[list[int]] = [[] for _ in problem.paths]
    slices = len(problem.slices) or 1
    first_stage = [path[0] for path in problem.paths]
    for order in schedule.orders:
        for op in order:
            is_first = op.part <= 0 and op.microbatch % slices == 0
            if op.kind is Kind.F and is_first and op.stage == first_stage[problem.path_of[op.microbatch]]:
                entered[problem.path_of[op.microbatch]] += range(op.microbatch, op.microbatch + slices)
    return by_position(problem, entered)


def by_position(problem: Problem, of_paths: Sequence[Iterable[int]]) -> tuple[int, ...]:
    """The order in which each path's microbatches come as given."""
    waiting = [iter(microbatches) for microbatches in of_paths]
    return tuple(next(waiting[path]) for path in problem.path_of)


def permuted(problem: Problem, order: Sequence[int]) -> Problem:
    """The problem whose microbatch of each number costs what the one at that position of the order does."""

    def moved(values: tuple[int, ...]) -> tuple[int, ...]:
        return values if len(values) == 1 else tuple(values[microbatch] for microbatch in order)

    stages = tuple(
        replace(
            stage,
            forward_ns=moved(stage.forward_ns),
            backward_input_ns=moved(stage.backward_input_ns),
            backward_weight_ns=moved(stage.backward_weight_ns),
            backward_ns=moved(stage.backward_ns),
        )
        for stage in problem.stages
    )
    return replace(problem, stages=stages)


def renamed(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """The schedule of the problem itself that one of the permuted problem is."""
    orders = tuple(tuple(op._replace(microbatch=order[op.microbatch]) for op in each) for each in schedule.orders)
    return Schedule(orders=orders, parts=schedule.parts)


def known_orders(problem: Problem) -> Iterator[tuple[int, ...]]:
    """The given order; by work: the shortest first, the longest first, short at both ends, long at both ends, by turns.

    Of each path's microbatches by themselves, which keep their positions.
    """
    slices = len(problem.slices) or 1
    work_ns = [0] * problem.microbatches
    kinds = (Kind.F, Kind.B, Kind.W) if problem.split_backward else (Kind.F, Kind.BW)
    for stage, microbatch in problem.blocks():
        work_ns[microbatch // slices * slices] += sum(problem.duration_ns(kind, stage, microbatch) for kind in kinds)
    of_paths = [
        [m for m, path in enumerate(problem.path_of) if path == number and m % slices == 0] for number in range(len(problem.paths))
    ]

    def order(firsts: list[list[int]]) -> tuple[int, ...]:
        return by_position(problem, [[m + at for m in each for at in range(slices)] for each in firsts])

    shortest_first = [sorted(microbatches, key=lambda m: (work_ns[m], m)) for microbatches in of_paths]
    yield tuple(range(problem.microbatches))
    yield order(shortest_first)
    yield order([each[::-1] for each in shortest_first])
    yield order([each[::2] + each[1::2][::-1] for each in shortest_first])
    yield order([each[::-2][: (len(each) + 1) // 2] + each[::-1][1::2][::-1] for each in shortest_first])
    yield order([[each[at // 2] if at % 2 == 0 else each[-1 - at // 2] for at in range(len(each))] for each in shortest_first])
