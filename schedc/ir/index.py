"""Lookups derived from a Problem, as arrays: what the simulator, the memory curve and the searches ask for millions of times.

`tables_of` takes a Problem and gives its `Tables`; they hold nothing that is not in the Problem. Axes: kind (`Kind`'s
values), path, stage, microbatch; -1 is "none".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir.ops import Kind, Op
from schedc.ir.resource import Resource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.ir.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The lookups of one problem."""

    duration_ns: NDArray[np.int64]
    """[kind, stage, microbatch]."""
    rank_of_stage: NDArray[np.int64]
    path_of: NDArray[np.int64]
    next_stage: NDArray[np.int64]
    """[path, stage]."""
    previous_stage: NDArray[np.int64]
    """[path, stage]."""
    occupancy_ns: NDArray[np.int64]
    """[0 forward | 1 backward, path, stage]: of the transfer that the stage sends; 0 where it sends none."""
    latency_ns: NDArray[np.int64]
    """The same shape."""
    resource: NDArray[np.int64]
    """The same shape: the link's or trunk's number, or -1 where the stage sends no transfer."""
    resources: tuple[Resource, ...]
    """By number."""
    collective_resource: NDArray[np.int64]
    """Per rank: the resource on which its collectives queue."""


def tables_of(problem: Problem) -> Tables:
    """The lookups of the problem.

    Raises:
        KeyError: a link that a transfer needs is missing (`schedc.verify.problem` reports it with its place).
    """
    stages, paths = len(problem.stages), len(problem.paths)
    duration_ns = np.empty((len(Kind), stages, problem.microbatches), np.int64)
    for kind in Kind:
        for index, stage in enumerate(problem.stages):
            duration_ns[kind, index] = stage.durations_ns(kind)
    next_stage = np.full((paths, stages), -1, np.int64)
    previous_stage = next_stage.copy()
    shape = (2, paths, stages)
    occupancy_ns, latency_ns, resource = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
    numbers: dict[Resource, int] = {}
    links = {(link.source, link.destination): link for link in problem.links}
    for number, path in enumerate(problem.paths):
        for before, after in pairwise(path):
            next_stage[number, before], previous_stage[number, after] = after, before
            for direction, kind, sender, receiver in ((0, Kind.F, before, after), (1, Kind.B, after, before)):
                source, destination = problem.stages[sender].rank, problem.stages[receiver].rank
                if source == destination:
                    continue
                link = links[source, destination]
                if kind is Kind.F:
                    size_bytes = problem.stages[before].message_bytes
                else:
                    size_bytes = problem.stages[before].gradient_message_bytes
                occupancy_ns[direction, number, sender] = link.occupancy_ns(size_bytes)
                latency_ns[direction, number, sender] = link.latency_ns
                resource[direction, number, sender] = numbers.setdefault(Resource.of_link(link), len(numbers))
    collective_resource = [
        numbers.setdefault(Resource.of_collectives(problem.data_parallel, rank), len(numbers)) for rank in range(problem.ranks)
    ]
    return Tables(
        duration_ns=duration_ns,
        rank_of_stage=np.array([stage.rank for stage in problem.stages], np.int64),
        path_of=np.array(problem.path_of, np.int64),
        next_stage=next_stage,
        previous_stage=previous_stage,
        occupancy_ns=occupancy_ns,
        latency_ns=latency_ns,
        resource=resource,
        resources=tuple(numbers),
        collective_resource=np.array(collective_resource, np.int64),
    )


def ops_array(orders: tuple[tuple[Op, ...], ...]) -> NDArray[np.int64]:
    """All ops of all ranks, rank after rank: one row (kind, stage, microbatch, part) each."""
    count = sum(map(len, orders))
    fields = chain.from_iterable(chain.from_iterable(orders))
    return np.fromiter(fields, np.int64, 4 * count).reshape(count, 4)
