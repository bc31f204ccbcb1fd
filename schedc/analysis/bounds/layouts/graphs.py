"""What bounds every layout of layers that are a graph, or whose head is split: the path of a microbatch, and the head in parts.

It knows nothing of messages, memory and how layers are divided, so it holds for all layouts.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from schedc.ir import Kind, Objective

if TYPE_CHECKING:
    from schedc.ir import Layer, OpenLayout, Workload


def path_bound(workload: Workload, open_layout: OpenLayout, *, head_parts: int = 1) -> int:
    """No layout has a schedule with a smaller makespan; 0 for the stage span.

    Proof: of one microbatch (or slice), each layer's F follows the F of those that it takes from, and the part of its backward
    before its gradient leaves, at least min(B, BW), follows that of those that take from it and give one back. No layer is computed
    faster than on the fastest rank, but for half a nanosecond of rounding in each block of a stage where speeds are not 1. So the
    makespan is at least the longest such path there and back. In a split head's place there is one of its parts.

    Args:
        workload: a workload that `schedc.verify.workload` accepts.
        open_layout: for the most stages that a layout may have.
        head_parts: into how many parts the last layer is split.
    """
    if workload.objective is not Objective.MAKESPAN:
        return 0
    speeds = [device.speed for device in workload.devices]
    stages = min(open_layout.stages or open_layout.chunks * workload.ranks, len(workload.layers)) + 2
    longest_ns = max((_path_ns(workload, unit, head_parts) for unit in range(workload.microbatches)), default=0)
    return max(0, ceil(longest_ns / max(speeds)) - (0 if all(speed == 1 for speed in speeds) else 2 * stages))


def head_in_parts(workload: Workload, open_layout: OpenLayout) -> tuple[Workload, OpenLayout]:
    """The workload with as many layers in the head's place as there are ranks, each of which takes no more than a part does."""
    *before, head = workload.layers

    def shared(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(value // workload.ranks for value in values)

    part = replace(
        head,
        forward_ns=shared(head.forward_ns),
        backward_input_ns=shared(head.backward_input_ns),
        backward_weight_ns=shared(head.backward_weight_ns),
        backward_ns=shared(head.backward_ns),
        forward_again_ns=None,
    )
    begin, given = len(before), open_layout.layers_of_stage
    parts = tuple((begin + at, begin + at + 1) for at in range(workload.ranks))
    return (
        replace(workload, layers=(*before, *((part,) * workload.ranks))),
        replace(
            open_layout,
            placement=None,
            chunks=open_layout.chunks + 1,
            layers_of_stage=None if given is None else given + parts,
            recompute=(all(open_layout.recompute),),
            heads=(False,),
        ),
    )


def _of(values: tuple[int, ...], unit: int) -> int:
    return values[0] if len(values) == 1 else values[unit]


def _gradient_ns(workload: Workload, layer: Layer, unit: int) -> int:
    """What a backward takes at least before its gradient leaves."""
    gradient, fused = (_of(layer.durations_ns(kind), unit) for kind in (Kind.B, Kind.BW))
    return min(gradient, fused) if workload.split_backward else fused


def _path_ns(workload: Workload, unit: int, head_parts: int) -> int:
    """The longest way of one microbatch there and back."""
    layers, last = workload.layers, len(workload.layers) - 1
    forth_ns = [_of(layer.forward_ns, unit) for layer in layers]
    back_ns = [_gradient_ns(workload, layer, unit) for layer in layers]
    forth_ns[last], back_ns[last] = forth_ns[last] // head_parts, back_ns[last] // head_parts
    pairs = [(edge.source, edge.destination, edge.has_gradient) for edge in workload.edges]
    pairs = pairs or [(layer, layer + 1, True) for layer in range(last)]
    into: list[list[int]] = [[] for _ in layers]
    out: list[list[int]] = [[] for _ in layers]
    for source, destination, has_gradient in pairs:
        into[destination].append(source)
        if has_gradient:
            out[source].append(destination)
    ended_ns = list(forth_ns)
    for layer in range(len(layers)):
        ended_ns[layer] += max((ended_ns[before] for before in into[layer]), default=0)
    returned_ns = [0] * len(layers)
    for layer in reversed(range(len(layers))):
        begun_ns = max((returned_ns[after] for after in out[layer]), default=0)
        returned_ns[layer] = max(begun_ns, ended_ns[layer]) + back_ns[layer]
    return max(returned_ns)
