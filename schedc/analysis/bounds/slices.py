"""What a rank waits for slices: the first one of a microbatch, or a longer one behind it, and its gradient's way back.

Takes a problem whose microbatches are in slices, on one chain of stages; gives a lower bound on the makespan for each rank. It is
`cuts_bound` (`schedc.analysis.bounds.layouts.cuts`, with the proof) for slices that are given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schedc.ir import Kind, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Table = NDArray[np.int64]


def waits_for_slices(problem: Problem) -> Iterator[tuple[int, str]]:
    """Per rank, no schedule has a smaller makespan. Nothing of graphs, whole microbatches, and two paths."""
    if not problem.slices or problem.edges or len(problem.paths) > 1:
        return
    path, slices = problem.paths[0], len(problem.slices)
    forward, gradient, fused, weight = (
        np.array([np.broadcast_to(problem.stages[at].durations_ns(kind), problem.microbatches) for at in path], np.int64)
        for kind in (Kind.F, Kind.B, Kind.BW, Kind.W)
    )
    backward = np.minimum(gradient + weight, fused) if problem.split_backward else fused
    gradient = np.minimum(gradient, fused) if problem.split_backward else fused
    ranks = [problem.stages[at].rank for at in path]
    hops, back = (_hops(problem, ranks, forth=forth) for forth in (True, False))
    for rank in range(problem.ranks):
        own = [place for place, its in enumerate(ranks) if its == rank]
        first = own[0]
        if first == 0:
            continue
        there_ns = _waits_ns(forward, hops, own, slices)
        back_ns = _waits_ns(gradient, back, own, slices)
        forwards_ns = int(forward[own].sum())
        work_ns = max(forwards_ns + int(backward[own].sum()), forwards_ns + int(gradient[own].sum()) + back_ns)
        yield there_ns + work_ns, f"rank {rank}, for a slice"


def _waits_ns(durations: Table, hops: Table, own: list[int], slices: int) -> int:
    """How long a rank waits for a slice at least, with nothing to do but slices before it: of all slices, the longest.

    Durations and hops, to the next place, are by place on the path and microbatch (each slice is one); `own` has the rank's places.
    """
    first = own[0]
    ways = (durations[:first].sum(axis=0) + hops[:first].sum(axis=0)).reshape(-1, slices).min(axis=0)
    more = np.maximum(durations[own].sum(axis=0) - durations[:first].min(axis=0), 0).reshape(-1, slices).sum(axis=0)
    before = np.cumsum(more) - more
    return max(0, int((ways - before).max()))


def _hops(problem: Problem, ranks: list[int], *, forth: bool) -> Table:
    """By place and microbatch, what the message to the next place takes, or the gradient from there."""
    rows, lengths = [], range(len(problem.slices))
    for place, edge in enumerate(problem.edges_of(0)):
        ends = (ranks[place], ranks[place + 1]) if forth else (ranks[place + 1], ranks[place])
        size_bytes = (edge.message_bytes if forth else edge.gradient_message_bytes) or 0
        link = None if ends[0] == ends[1] else problem.link(*ends)
        of_slices = [
            0 if link is None else link.latency_ns + link.occupancy_ns(problem.share_bytes(size_bytes, at)) for at in lengths
        ]
        rows.append(np.tile(np.array(of_slices, np.int64), problem.microbatches // len(problem.slices)))
    return np.array(rows, np.int64).reshape(len(ranks) - 1, problem.microbatches)
