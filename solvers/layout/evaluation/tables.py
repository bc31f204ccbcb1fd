"""A Workload as tables of sums over layers, from which a kernel computes what any stage of any layout costs."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from schedc.errors import Unsupported
from schedc.ir import MessageCost, Objective, Resource, Semantics, Workload
from schedc.solvers.kernel.tables import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence


NUMBERS = ("microbatches", "split", "torch", "span")
"""The entries of `LayoutCosts.numbers`."""


class LayoutCosts(NamedTuple):
    """Tables of a workload; lists, or arrays for the compiled kernel. Times in nanoseconds, sizes in bytes."""

    forward: Any
    """[layer, n]: the sum over the layers before this one, for each n of the microbatches, or for n = 0 where they are alike; so
    the next four."""
    backward_input: Any
    backward_weight: Any
    backward: Any
    forward_again: Any
    activation: Any
    """[layer]: the sum over the layers before this one; so the next two."""
    after_input: Any
    layer_static: Any
    message: Any
    """[layer]: what F sends on after it."""
    occupancy_on: Any
    """[cost, layer]: how long what F sends on after this layer occupies a link of this cost."""
    occupancy_back: Any
    """The same for the gradient that comes back to it."""
    latency: Any
    """[cost]"""
    cost: Any
    """[source, destination]: the cost of the link between two ranks, -1: there is none."""
    resource: Any
    """[source, destination]: the link or trunk between two ranks, -1: there is none."""
    collectives: Any
    """[rank]: on what its collectives queue."""
    speed_numerator: Any
    """[rank], as the next four."""
    speed_denominator: Any
    capacity: Any
    """`NEVER`: not said; so the next two."""
    limit: Any
    in_flight: Any
    static: Any
    """[stage], or one for all; so the next two."""
    scatter: Any
    """-1: there are no collectives of this kind."""
    gather: Any
    tie_one: Any
    """[tie]: a layer, as the next: the two hold one weight."""
    tie_other: Any
    tie_ns: Any
    """[cost, tie]: how long its gradient takes over a link of this cost."""
    setup: Any
    """[cost], of layers that are a graph, as all that follows but `numbers`: see `MessageCost`."""
    transfer: Any
    """-1: not given."""
    bandwidth: Any
    """0: none."""
    edge_source: Any
    """[edge]: a layer, as the next; none: the layers are a chain."""
    edge_destination: Any
    edge_same: Any
    """[edge]: the edge before it that carries the same value of the layer, -1: there is none."""
    edge_bytes: Any
    edge_back: Any
    """-1: no gradient comes back."""
    edge_mark: Any
    """Numbers, by value, that have no equal sums."""
    numbers: Any
    """See `NUMBERS`."""


def costs_of(workload: Workload) -> tuple[LayoutCosts, int]:
    """The tables of the workload, as lists, and how many resources there are.

    Raises:
        Unsupported: its numbers are too large for the kernel's integers.
    """
    layers, ranks = workload.layers, range(workload.ranks)
    again = [layer.forward_ns if layer.forward_again_ns is None else layer.forward_again_ns for layer in layers]
    durations = (
        [layer.forward_ns for layer in layers],
        [layer.backward_input_ns for layer in layers],
        [layer.backward_weight_ns for layer in layers],
        [layer.backward_ns for layer in layers],
        again,
    )
    width = max(len(values) for kind in durations for values in kind)
    sums = [_duration_sums(kind, width) for kind in durations]
    layer_static = _sums([layer.static_bytes for layer in layers])
    speeds = [device.speed.as_integer_ratio() for device in workload.devices]
    largest = max(max(up_to[-1]) for up_to in sums) * 4 * max(max(speed) for speed in speeds) * workload.microbatches
    if max(largest, layer_static[-1]) >= NEVER:
        raise Unsupported("the durations, speeds or static bytes are too large to search over layouts; use coarser ones")
    parallel = workload.data_parallel
    resources: dict[Resource, int] = {}
    kinds: dict[MessageCost, int] = {}
    cost, resource = [[-1 for _ in ranks] for _ in ranks], [[-1 for _ in ranks] for _ in ranks]
    for source in ranks:
        for destination in ranks:
            link = workload.network.link(source, destination) if source != destination else None
            if link is not None:
                resource[source][destination] = resources.setdefault(Resource.of_link(link), len(resources))
                cost[source][destination] = kinds.setdefault(_cost_alone(link), len(kinds))
    edges = workload.edges
    latest: dict[tuple[int, int], int] = {}
    same = [-1] * len(edges)
    for at, edge in enumerate(edges):
        same[at] = latest.get((edge.source, edge.value), -1)
        latest[edge.source, edge.value] = at
    marks = Random(len(latest))
    mark_of = {value: marks.getrandbits(44) for value in latest}  # sums of them are alike by chance alone, and mislead an estimate
    collectives = [resources.setdefault(Resource.of_collectives(parallel, rank), len(resources)) for rank in ranks]
    costs = LayoutCosts(
        sums[0],
        sums[1],
        sums[2],
        sums[3],
        sums[4],
        _sums([layer.activation_bytes for layer in layers]),
        _sums([layer.activation_after_input_bytes for layer in layers]),
        layer_static,
        [layer.message_bytes for layer in layers],
        [[kind.occupancy_ns(layer.message_bytes) for layer in layers] for kind in kinds] or [[0]],
        [[kind.occupancy_ns(layer.gradient_message_bytes) for layer in layers] for kind in kinds] or [[0]],
        [kind.latency_ns for kind in kinds] or [0],
        cost,
        resource,
        collectives,
        [numerator for numerator, _ in speeds],
        [denominator for _, denominator in speeds],
        [_or_never(device.capacity_bytes) for device in workload.devices],
        [_or_never(device.limit_bytes) for device in workload.devices],
        [_or_never(device.in_flight) for device in workload.devices],
        list(workload.static_bytes),
        [-1] if parallel is None else list(parallel.reduce_scatter_ns),
        [-1] if parallel is None or not parallel.all_gather_ns else list(parallel.all_gather_ns),
        [tie.layers[0] for tie in workload.ties],
        [tie.layers[1] for tie in workload.ties],
        [[kind.occupancy_ns(tie.gradient_bytes) + kind.latency_ns for tie in workload.ties] for kind in kinds] or [[0]],
        [kind.setup_ns for kind in kinds] or [0],
        [-1 if kind.transfer_ns is None else kind.transfer_ns for kind in kinds] or [0],
        [kind.bytes_per_second or 0 for kind in kinds] or [0],
        [edge.source for edge in edges],
        [edge.destination for edge in edges],
        same,
        [edge.message_bytes for edge in edges],
        [-1 if edge.gradient_message_bytes is None else edge.gradient_message_bytes for edge in edges],
        [mark_of[edge.source, edge.value] for edge in edges],
        [
            workload.microbatches,
            int(workload.split_backward),
            int(workload.semantics is Semantics.TORCH),
            int(workload.objective is Objective.STAGE_SPAN),
        ],
    )
    return costs, len(resources)


def _cost_alone(link: MessageCost) -> MessageCost:
    return MessageCost(
        latency_ns=link.latency_ns, transfer_ns=link.transfer_ns, bytes_per_second=link.bytes_per_second, setup_ns=link.setup_ns
    )


def _sums(values: Sequence[int]) -> list[int]:
    return [0, *accumulate(values)]


def _duration_sums(durations_ns: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """[layer, n]: the sums over the layers before."""
    rows = [[0] * width]
    for values in durations_ns:
        spread = values if len(values) == width else [values[0]] * width
        rows.append([before + value for before, value in zip(rows[-1], spread, strict=True)])
    return rows


def _or_never(value: int | None) -> int:
    return NEVER if value is None else min(value, NEVER)
