"""Lookups derived from a Problem, as arrays: what the simulator, the memory curve and the searches ask for millions of times.

`tables_of` takes a Problem and gives its `Tables`; they hold nothing that is not in the Problem. Axes: kind (`Kind`'s
values), path, stage, microbatch; -1 is "none".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise, product
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir.graph import share_bytes
from schedc.ir.ops import Kind, Op
from schedc.ir.resource import Resource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.ir.network import Link
    from schedc.ir.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The lookups of one problem."""

    duration_ns: NDArray[np.int64]
    """[kind, stage, microbatch]."""
    rank_of_stage: NDArray[np.int64]
    path_of: NDArray[np.int64]
    next_stage: NDArray[np.int64]
    """[path, stage]. This and the next four are of chains of whole microbatches, and empty elsewhere."""
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
    hop_begin: NDArray[np.int64]
    """[(direction × paths + path) × stages + stage]: the first of the hops from F (0) or from the backward (1) of the stage to
    others; one more entry at the end. Of a stage they are in the order of the edges."""
    hop_to: NDArray[np.int64]
    """Per hop, the stage whose F or backward needs it."""
    hop_resource: NDArray[np.int64]
    """Per hop, the number of the link or trunk of its transfer, or -1 where it stays on its rank."""
    hop_carrier: NDArray[np.int64]
    """Per hop, the one whose transfer brings its value: itself, or an earlier one of its stage to the same rank."""
    hop_occupancy_ns: NDArray[np.int64]
    """[hop, slice]; one slice where microbatches are whole."""
    hop_latency_ns: NDArray[np.int64]
    """Per hop."""
    inputs: NDArray[np.int64]
    """[direction, path, stage]: how many hops F, or the backward, of the stage needs."""
    crossing: NDArray[np.int64]
    """The hops between ranks, by `hop_carrier`: those that one transfer serves follow each other."""
    crossing_begin: NDArray[np.int64]
    """As `hop_begin`, which has the same places, into `crossing`."""
    crossing_into: NDArray[np.int64]
    """Per entry of `crossing`, the place, as in `hop_begin`, that needs it."""
    crossing_inputs: NDArray[np.int64]
    """Per place, how many of them it needs."""
    collective_resource: NDArray[np.int64]
    """Per rank: the resource on which its collectives queue."""


def tables_of(problem: Problem) -> Tables:
    """The lookups of the problem.

    Raises:
        KeyError: a link that a transfer needs is missing (`schedc.verify.problem` reports it with its place).
    """
    stages, paths = len(problem.stages), len(problem.paths)
    plain = problem.is_chain and not problem.slices
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
    for number, path in enumerate(problem.paths if plain else ()):
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
    if not plain:
        next_stage = previous_stage = np.empty((0, 0), np.int64)
        occupancy_ns = latency_ns = resource = np.empty((0, 0, 0), np.int64)
    hops = _hops_of(problem, numbers, links)
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
        **hops,
    )


def _hops_of(problem: Problem, numbers: dict[Resource, int], links: dict[tuple[int, int], Link]) -> dict[str, NDArray[np.int64]]:
    """The columns of the hops; resources that `numbers` does not have yet get the next number."""
    stages, paths, lengths = len(problem.stages), len(problem.paths), problem.slices or (1,)
    ranks = [stage.rank for stage in problem.stages]
    inputs = np.zeros((2, paths, stages), np.int64)
    crossing, crossing_begin, crossing_into, crossing_inputs = list[int](), [0], list[int](), [0] * (2 * paths * stages)
    begin, latency_ns = [0], list[int]()
    to, resource, carrier = list[int](), list[int](), list[int]()
    occupancy_ns: list[list[int]] = []
    for direction, path in product((0, 1), range(paths)):
        out: list[list[tuple[int, int, int]]] = [[] for _ in range(stages)]
        for index, edge in enumerate(problem.edges_of(path)):
            if direction == 0:
                out[edge.source].append((edge.destination, edge.message_bytes, edge.value))
            elif edge.gradient_message_bytes is not None:
                out[edge.destination].append((edge.source, edge.gradient_message_bytes, -1 - index))
        for stage, hops in enumerate(out):
            first: dict[tuple[int, int], int] = {}
            served: list[tuple[int, int, int]] = []
            for target, size_bytes, value in hops:
                link = links[ranks[stage], ranks[target]] if ranks[stage] != ranks[target] else None
                to.append(target)
                carrier.append(first.setdefault((value, ranks[target]), len(carrier)))
                resource.append(-1 if link is None else numbers.setdefault(Resource.of_link(link), len(numbers)))
                latency_ns.append(0 if link is None else link.latency_ns)
                occupancy_ns.append(
                    [link.occupancy_ns(share_bytes(size_bytes, lengths, at)) if link else 0 for at in range(len(lengths))]
                )
                inputs[direction, path, target] += 1
                if link is not None:
                    needs = (direction * paths + path) * stages + target
                    served.append((carrier[-1], len(to) - 1, needs))
                    crossing_inputs[needs] += 1
            if len(served) > 1:
                served.sort()
            crossing += [hop for _, hop, _ in served]
            crossing_into += [needs for _, _, needs in served]
            begin.append(len(to))
            crossing_begin.append(len(crossing))
    return {
        "hop_begin": np.array(begin, np.int64),
        "hop_to": np.array(to, np.int64),
        "hop_resource": np.array(resource, np.int64),
        "hop_carrier": np.array(carrier, np.int64),
        "hop_occupancy_ns": np.array(occupancy_ns, np.int64).reshape(-1, len(lengths)),
        "hop_latency_ns": np.array(latency_ns, np.int64),
        "inputs": inputs,
        "crossing": np.array(crossing, np.int64),
        "crossing_begin": np.array(crossing_begin, np.int64),
        "crossing_into": np.array(crossing_into, np.int64),
        "crossing_inputs": np.array(crossing_inputs, np.int64),
    }


def ops_array(orders: tuple[tuple[Op, ...], ...]) -> NDArray[np.int64]:
    """All ops of all ranks, rank after rank: one row (kind, stage, microbatch, part) each."""
    count = sum(map(len, orders))
    fields = chain.from_iterable(chain.from_iterable(orders))
    return np.fromiter(fields, np.int64, 4 * count).reshape(count, 4)
