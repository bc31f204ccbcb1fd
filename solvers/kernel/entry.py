"""The order in which microbatches that differ enter the list scheduler, which takes them by number; kernels, plain or compiled.

An order is tried by giving its positions the durations of the microbatches there; the schedule that comes of it is named back
(`schedc.solvers.common.microbatch_order`). A microbatch keeps a position of its path, and its slices move with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.compiled.kernel import kernel
from schedc.ir import Problem, groups_of
from schedc.solvers.kernel.draws import below

if TYPE_CHECKING:
    from schedc.solvers.kernel.draws import Draws
    from schedc.solvers.kernel.tables import SchedulerState

TIMES = ("forward_ns", "backward_input_ns", "weight_ns", "backward_ns")


class Entry(NamedTuple):
    """What decides which orders there are, and what their ops take; arrays."""

    path: Any
    """By microbatch, the slices of one being one."""
    group: Any
    """By microbatch: the first that is like it."""
    number: Any
    """By microbatch: the how manieth of its path it is."""
    times_ns: Any
    """[position, F, B, W and BW], in the order of the numbers."""


_NONE = np.zeros(0, np.int64)
NO_ENTRY = Entry(_NONE, _NONE, _NONE, np.zeros((0, len(TIMES)), np.int64))
"""Where the order is not open."""


def entry_of(problem: Problem, scheduler: SchedulerState) -> Entry:
    """The problem's, whose scheduler is given as lists."""
    slices = len(problem.slices) or 1
    groups, path = groups_of(problem), np.array(problem.path_of[::slices], np.int64)
    alike = [groups[first : first + slices] for first in range(0, len(groups), slices)]
    number = np.zeros(len(path), np.int64)
    for each in range(len(problem.paths)):
        number[path == each] = np.arange((path == each).sum())
    times_ns = np.array([[getattr(block, name) for name in TIMES] for block in scheduler.blocks], np.int64)
    return Entry(path, np.array([alike.index(each) for each in alike], np.int64), number, times_ns)


@kernel()
def reorder(enter: Any, entry: Entry, two: int, ten: int, draws: Draws) -> None:
    """Two microbatches that differ change places, one goes elsewhere, or a stretch is turned around."""
    path, count, how = entry.path, len(enter), below(ten, draws)
    a, b = below(count, draws), below(count, draws)
    for _ in range(count):
        if path[a] == path[b] and entry.group[enter[a]] != entry.group[enter[b]]:
            break
        b = (b + 1) % count
    if path[a] != path[b]:
        return
    kept = enter[a]
    if how < 5:
        enter[a], enter[b] = enter[b], kept
    elif how < 9:
        at, step = a, 1 if b > a else -1
        while a != b:
            a += step
            if path[a] == path[b]:
                enter[at], at = enter[a], a
        enter[at] = kept
    else:
        a, b = min(a, b), max(a, b)
        on = path[a]
        while a < b:
            enter[a], enter[b] = enter[b], enter[a]
            a, b = a + 1, b - 1
            while path[a] != on:
                a += 1
            while path[b] != on:
                b -= 1


@kernel()
def take(enter: Any, entry: Entry, scheduler: SchedulerState) -> None:
    """Give each position the durations of its microbatch in the order."""
    slices = max(1, scheduler.settings[0].slices)
    for number in range(len(scheduler.lanes)):
        first, last = scheduler.lanes[number].first, scheduler.lanes[number].last
        for position in range(first, last):
            block = scheduler.blocks[position]
            whole, at = block.microbatch // slices, block.microbatch % slices
            source = first + entry.number[enter[whole]] * slices + at
            block.forward_ns, block.backward_input_ns = entry.times_ns[source, 0], entry.times_ns[source, 1]
            block.weight_ns, block.backward_ns = entry.times_ns[source, 2], entry.times_ns[source, 3]
