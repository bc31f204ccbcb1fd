"""Lookups derived from a Problem, as arrays: what the simulator, the memory curve and the searches ask for millions of times.

`tables_of` takes a Problem and gives its `Tables`; they hold nothing that is not in the Problem. Axes: kind (`Kind`'s
values), path, stage, microbatch; -1 is "none".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise, product
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from schedc.ir.costs import DURATIONS
from schedc.ir.graph import share_bytes
from schedc.ir.ops import BLOCKS, Kind, Op
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
    duration_ns = np.empty((len(Kind), len(problem.stages), problem.microbatches), np.int64)
    values = [[getattr(stage, DURATIONS[kind]) for stage in problem.stages] for kind in BLOCKS]
    values.append([(stage.update_ns,) for stage in problem.stages])
    if all(len(each) == 1 for of_kind in values for each in of_kind):  # one call is far faster than many: small problems are many
        duration_ns[:] = values
    else:
        for kind, index in product(Kind, range(len(problem.stages))):
            duration_ns[kind, index] = values[kind][index]
    numbers: dict[Resource, int] = {}
    hops = _hops_of(problem, numbers)
    collective_resource = [
        numbers.setdefault(Resource.of_collectives(problem.data_parallel, rank), len(numbers)) for rank in range(problem.ranks)
    ]
    return Tables(
        duration_ns=duration_ns,
        rank_of_stage=np.array([stage.rank for stage in problem.stages], np.int64),
        path_of=np.array(problem.path_of, np.int64),
        resources=tuple(numbers),
        collective_resource=np.array(collective_resource, np.int64),
        **hops,
    )


Output: TypeAlias = tuple[int, int, int]
"""What a stage gives another: that stage, the size of it for a whole microbatch, and a number that equal values have in common."""


def _outputs_of(problem: Problem) -> tuple[list[list[Output]], ...]:
    """Per direction and path, what each stage gives."""
    made = []
    stages = problem.stages
    for path in problem.paths:
        forth: list[list[Output]] = [[] for _ in stages]
        back: list[list[Output]] = [[] for _ in stages]
        for before, after in pairwise(path if problem.is_chain else ()):
            forth[before].append((after, stages[before].message_bytes, 0))
            back[after].append((before, stages[before].gradient_message_bytes, 0))
        for index, edge in enumerate(problem.edges):
            forth[edge.source].append((edge.destination, edge.message_bytes, edge.value))
            if edge.gradient_message_bytes is not None:
                back[edge.destination].append((edge.source, edge.gradient_message_bytes, index))
        made.append((forth, back))
    return (*(forth for forth, _ in made), *(back for _, back in made))


def _hops_of(problem: Problem, numbers: dict[Resource, int]) -> dict[str, NDArray[np.int64]]:
    """The columns of the hops; resources get the next number of `numbers`."""
    stages, lengths = len(problem.stages), problem.slices or (1,)
    ranks = [stage.rank for stage in problem.stages]
    by_ends = {(link.source, link.destination): link for link in problem.links}
    links: dict[tuple[int, int], tuple[Link, int]] = {}

    def link_of(ends: tuple[int, int]) -> tuple[Link, int]:
        link = by_ends[ends]
        links[ends] = found = link, numbers.setdefault(Resource.of_link(link), len(numbers))
        return found

    for path in () if problem.edges or problem.slices else problem.paths:  # resources of chains are numbered along their paths
        for before, after in pairwise(path):
            ends = ranks[before], ranks[after]
            if ends not in links and ends[0] != ends[1]:
                link_of(ends)
            if ends[::-1] not in links and ends[0] != ends[1]:
                link_of(ends[::-1])
    places = 2 * len(problem.paths) * stages
    inputs, crossing_inputs = [0] * places, [0] * places
    crossing, crossing_begin, crossing_into = list[int](), [0], list[int]()
    begin, to, resource, carrier, latency_ns = [0], list[int](), list[int](), list[int](), list[int]()
    occupancy_ns = list[int]()
    parts, hop = range(len(lengths)), 0
    for at, outputs in enumerate(_outputs_of(problem)):
        for stage, given in enumerate(outputs):
            rank, several, first_crossing = ranks[stage], len(given) > 1, len(crossing)
            first: dict[tuple[int, int], int] = {}
            for target, size_bytes, value in given:
                needs, there = at * stages + target, ranks[target]
                inputs[needs] += 1
                to.append(target)
                carrier.append(first.setdefault((value, there), hop) if several else hop)
                if there == rank:
                    resource.append(-1)
                    latency_ns.append(0)
                    occupancy_ns.extend(0 for _ in parts)
                else:
                    link, number = links.get((rank, there)) or link_of((rank, there))
                    resource.append(number)
                    latency_ns.append(link.latency_ns)
                    if problem.slices:
                        occupancy_ns.extend(link.occupancy_ns(share_bytes(size_bytes, lengths, part)) for part in parts)
                    else:
                        occupancy_ns.append(link.occupancy_ns(size_bytes))
                    crossing.append(hop)
                    crossing_into.append(needs)
                    crossing_inputs[needs] += 1
                hop += 1
            if several and len(crossing) > first_crossing + 1:
                order = sorted(
                    zip(crossing[first_crossing:], crossing_into[first_crossing:], strict=True), key=lambda of: carrier[of[0]]
                )
                crossing[first_crossing:], crossing_into[first_crossing:] = ([each[column] for each in order] for column in (0, 1))
            begin.append(hop)
            crossing_begin.append(len(crossing))
    begins, of_hops, crossings, needed = (  # one call for several columns
        np.array(columns, np.int64)
        for columns in (
            (begin, crossing_begin),
            (to, resource, carrier, latency_ns),
            (crossing, crossing_into),
            (inputs, crossing_inputs),
        )
    )
    return {
        "hop_begin": begins[0],
        "hop_to": of_hops[0],
        "hop_resource": of_hops[1],
        "hop_carrier": of_hops[2],
        "hop_occupancy_ns": np.array(occupancy_ns, np.int64).reshape(-1, len(lengths)),
        "hop_latency_ns": of_hops[3],
        "inputs": needed[0].reshape(2, -1, stages),
        "crossing": crossings[0],
        "crossing_begin": begins[1],
        "crossing_into": crossings[1],
        "crossing_inputs": needed[1],
    }


def ops_array(orders: tuple[tuple[Op, ...], ...]) -> NDArray[np.int64]:
    """All ops of all ranks, rank after rank: one row (kind, stage, microbatch, part) each."""
    count = sum(map(len, orders))
    fields = chain.from_iterable(chain.from_iterable(orders))
    return np.fromiter(fields, np.int64, 4 * count).reshape(count, 4)
