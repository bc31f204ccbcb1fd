"""The head split over all ranks: one stage V on each rank, with a part of the vocabulary, and a join J that computes the loss.

Takes a Workload whose last layer is the head, and a Layout of the other layers; gives a Workload whose layers are a graph, and the
Layout with the stages V and J. The last block's output goes to every V. For each token V sends J the largest of its logits, the sum
of their exponentials, and the target's logit if it has it. From these J has the loss, which autograd takes back: exact, without
a collective (vocabulary parallelism of sail-sg has the same sums as all-reduces).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir import Edge, Layer, Layout
from schedc.ir.layout import SPLIT_HEAD

if TYPE_CHECKING:
    from schedc.ir import Workload


def without_head(workload: Workload) -> Workload:
    """The workload without its last layer, the head: what a layout divides where that is split."""
    last = len(workload.layers) - 1
    edges = tuple(edge for edge in workload.edges if edge.destination < last)
    modules = (*workload.modules[:-1], workload.modules[-1] - 1) if workload.modules else ()
    return replace(workload, layers=workload.layers[:-1], edges=edges, modules=tuple(filter(None, modules)))


def workload_in_parts(workload: Workload) -> Workload:
    """The workload with its head in parts, as every layout with a split head has it."""
    whole = Layout(rank_of_stage=(0,), paths=((0,),), layers_of_stage=((0, len(workload.layers) - 1),))
    return with_split_head(workload, whole)[0]


def with_split_head(workload: Workload, layout: Layout) -> tuple[Workload, Layout]:
    """The workload with its head in as many parts as there are ranks, and the layout with a part on each.

    A part takes its share of the head's durations, rounded up, and holds its share of what the head holds besides the hidden
    states, of which it has all. What of the durations does not depend on the vocabulary (the last norm) is divided, too: far less
    than 1 %.

    Args:
        workload: its last layer is the head, whose `split_message_bytes` V sends J; two layers or more.
        layout: of the layers before the head, with one path and `split_head`.
    """
    *before, head = workload.layers
    ranks, last, begin = workload.ranks, before[-1], len(before)
    states = last.message_bytes
    edges = workload.edges or tuple(
        Edge(
            source=source,
            destination=destination,
            message_bytes=workload.layers[source].message_bytes,
            gradient_message_bytes=workload.layers[source].gradient_message_bytes,
        )
        for source, destination in pairwise(range(begin + 1))
    )
    parts, statistics = range(begin, begin + ranks), head.split_message_bytes
    layers = (*(_part(head, states, ranks) for _ in parts), _JOIN)
    if head.position is not None:
        first = head.position[0]
        layers = tuple(replace(layer, position=(first + at, first + at + 1)) for at, layer in enumerate(layers))
    of_stage = (*layout.rank_of_stage, *range(ranks), layout.rank_of_stage[-1])
    return (
        replace(
            workload,
            layers=(*before, *layers),
            edges=(
                *(edge for edge in edges if edge.destination < begin),
                *(replace(edge, destination=each) for edge in edges if edge.destination == begin for each in parts),
                *(
                    Edge(source=each, destination=begin + ranks, message_bytes=statistics, gradient_message_bytes=statistics)
                    for each in parts
                ),
            ),
        ),
        Layout(
            rank_of_stage=of_stage,
            paths=(tuple(range(len(of_stage))),),
            layers_of_stage=(*layout.layers_of_stage, *((layer, layer + 1) for layer in range(begin, begin + ranks + 1))),
            recomputed=layout.recomputed,
            placement=layout.placement + SPLIT_HEAD,
        ),
    )


def _part(head: Layer, states_bytes: int, ranks: int) -> Layer:
    """What one rank has of the head. `states_bytes`: of the hidden states, which each part keeps for its W."""

    def each(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-value // ranks) for value in values)

    def held(size_bytes: int) -> int:
        kept = min(size_bytes, states_bytes)
        return kept - (kept - size_bytes) // ranks

    return replace(
        head,
        forward_ns=each(head.forward_ns),
        backward_input_ns=each(head.backward_input_ns),
        backward_weight_ns=each(head.backward_weight_ns),
        backward_ns=each(head.backward_ns),
        forward_again_ns=None if head.forward_again_ns is None else each(head.forward_again_ns),
        activation_bytes=held(head.activation_bytes),
        activation_after_input_bytes=held(head.activation_after_input_bytes),
        message_bytes=head.split_message_bytes,
        gradient_message_bytes=head.split_message_bytes,
        parameters=-(-head.parameters // ranks),
        static_bytes=-(-head.static_bytes // ranks),
        split_message_bytes=0,
    )


_JOIN = Layer(forward_ns=(0,), backward_input_ns=(0,), backward_weight_ns=(0,), backward_ns=(0,))
"""What computes the loss of the parts' numbers: next to nothing."""
