"""The two halves of a block's backward: B, the gradients of its inputs, and W, those of its weights, in one part or several."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge
from torch.utils.checkpoint import GraphExecGroup

from schedc.runtime.stage.autograd import arrived_at, outside_autocast
from schedc.runtime.stage.splitting.frontier import Joint, find_cut
from schedc.runtime.stage.splitting.kept import (
    GradientArrivals,
    Reading,
    SavedTensors,
    give_own_weights,
    read_by,
    without_hooks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.autograd.graph import Node


AT_ONCE = 1 << 25
"""The most elements of weights whose gradients one call of autograd makes in W; until it ends, all of them are in memory. A call
takes the host 40 us; on any device the products for this many elements take longer."""


class WeightWork(NamedTuple):
    """What is left for W at a joint."""

    joint: Joint
    arrived: Sequence[torch.Tensor | None]
    """The gradient at each of its edges; where W calls the node itself, all with which it ran in B."""
    versions: list[int | None]
    """How often each had been changed in place when it arrived."""
    reading: Reading | None
    """What the node reads, where W calls it itself."""


class _FromJoints(torch.autograd.Function):
    """Begins a backward at the sides of joints: its own backward calls their nodes with what has arrived at them.

    Autograd, asked to run them, would look at all that lies behind each of them, the path to the inputs too: of n layers W would
    take n² time. In the backward that this function begins, the path is not reached, so a node that is called in it computes what
    goes to its sides, and nothing else.
    """

    @staticmethod
    def forward(ctx: Any, works: Sequence[WeightWork], *sides: torch.Tensor) -> torch.Tensor:
        ctx.works = works
        return torch.zeros((), device=sides[0].device)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        given: list[torch.Tensor | None] = [None]
        for work in ctx.works:
            found = work.joint.node(*work.arrived)
            given += [found[number] for number in work.joint.sides]
            for one in work.reading.saved:
                one.tensor = None
        return tuple(given)


def backward_of_inputs(
    roots: Sequence[GradientEdge], seeds: Sequence[torch.Tensor], sources: Sequence[GradientEdge], saved: SavedTensors
) -> tuple[list[torch.Tensor | None], list[WeightWork]]:
    """B: leave to W what is W's, and release what only B needed.

    The gradients of the outputs, `seeds`, have arrived at the roots; `sources` are the inputs that get one.

    Returns:
        The gradients of the sources, and what is left for W.
    """
    cut = find_cut(roots, sources)
    if cut.functions:
        give_own_weights(cut.functions)
    arrivals = GradientArrivals(cut.before, roots, seeds)
    seen: dict[Node, Reading] = {}
    handles = arrivals.listen()
    twice = [joint for joint in cut.joints if joint.runs_twice]
    try:
        for node, _, _, _, _, sides in twice:
            reading = read_by(node, sides) if sides else None
            if reading:
                handle = arrivals.watch(node, after=True)
                if len(handle.hooks_dict_ref() or ()) == 1:
                    seen[node] = reading
                    handles.append(handle)
                    continue
                handle.remove()  # there are hooks that are called with what the node gives, and may change it
            handles += arrivals.watch(node, after=False), *saved.keep_for(node)
        certain = seen if sources else {}  # to run in B, on the way to an input
        asking = [joint for joint in cut.joints if joint.ends or (joint.runs_twice and joint.node not in certain)]
        asked = [edge for joint in asking for edge in joint.edges]
        wanted = [*(GradientEdge(*edge) for edge in asked), *cut.shared, *sources]
        if not wanted:
            saved.release()
            return [], []
        with outside_autocast(), without_hooks(cut.shared):
            found: list[torch.Tensor | None] = [
                *torch.autograd.grad(roots, wanted, seeds, retain_graph=bool(twice), allow_unused=True)
            ]
    finally:
        for handle in handles:
            handle.remove()
    arrived = dict(zip(asked, found, strict=False)) | arrivals.found
    works = []
    for joint in cut.joints:
        reading = seen.get(joint.node) if joint.node in arrivals.at else None
        if reading:
            gradients, versions = arrivals.at[joint.node]
        else:
            gradients = [arrived[edge] for edge in joint.edges]
            versions = [
                None if gradient is None else arrivals.version(place, gradient)
                for place, gradient in zip(joint.edges, gradients, strict=True)
            ]
        works.append(WeightWork(joint, gradients, versions, reading))
    edges, values = arrived_at(cut.shared, found[len(asked) : len(asked) + len(cut.shared)])
    if edges:
        torch.autograd.backward(edges, values)
    saved.release()
    return found[len(found) - len(sources) :], works


def backward_of_weights(works: Sequence[WeightWork], part: int, shares: Sequence[int]) -> None:
    """W, or one part of it; the arguments are those of `StageBlock.backward_weight`, and what B has left."""
    if len(shares) > 1:
        works = [works[at] for at in dealt([one.joint.weights for one in works], shares)[part]]
    for work in works:
        if [None if one is None else one._version for one in work.arrived] != work.versions:
            raise RuntimeError(
                "a gradient that B has kept for W has been changed in place before W: a function of the user's own gives"
                " memory that it uses again; let it give new memory, or compile with split_backward = false"
            )
    with outside_autocast(), GraphExecGroup():  # a checkpointed region runs forward once, not once for each joint in it
        for group in _groups([work for work in works if work.reading and work.versions.count(None) < len(work.versions)]):
            sides = [side for work in group if work.reading for side in work.reading.sides]
            begin = _FromJoints.apply(group, *sides)  # type: ignore[no-untyped-call]
            if trained := _trained([leaf for work in group for leaf in work.joint.leaves]):
                torch.autograd.backward(begin, inputs=trained)
        for joint, arrived in [(work.joint, work.arrived) for work in works if not work.reading]:
            edges, values = arrived_at([GradientEdge(*edge) for edge in joint.edges], arrived)
            if edges and (trained := _trained(joint.leaves)):
                # With `inputs`, a node that runs again computes the gradients of these weights alone.
                torch.autograd.backward(edges, values, inputs=trained if joint.runs_twice else None)


def _trained(leaves: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The weights that have not been frozen since F: a fused backward skips those, and autograd refuses to be asked for them."""
    return [leaf for leaf in leaves if leaf.requires_grad]


def _groups(works: Iterable[WeightWork]) -> Iterator[list[WeightWork]]:
    """The works, together while their weights have at most `AT_ONCE` elements; one with more is alone."""
    group, size = list[WeightWork](), 0
    for work in works:
        own = work.joint.weights
        if group and size + own > AT_ONCE:
            yield group
            group, size = [], 0
        group.append(work)
        size += own
    if group:
        yield group


def dealt(weights: Sequence[int], shares: Sequence[int]) -> list[list[int]]:
    """The joints of each part, in order: a joint goes to the part in whose share the middle of its weights lies.

    Args:
        weights: of each joint, how many elements its weights have.
        shares: the relative time of each part.
    """
    ends = list(accumulate(shares))
    total = sum(weights)
    parts: list[list[int]] = [[] for _ in shares]
    before = 0
    for joint, own in enumerate(weights):
        middle = (2 * before + own) * ends[-1]
        parts[min(bisect_left([2 * total * end for end in ends], middle), len(ends) - 1)].append(joint)
        before += own
    return parts
