"""The two halves of a block's backward: B, the gradients of its inputs, and W, those of its weights, in one part or several."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils.checkpoint import GraphExecGroup

from schedc.runtime.stage.autograd import arrived_at, outside_autocast
from schedc.runtime.stage.splitting.frontier import Joint, find_cut
from schedc.runtime.stage.splitting.kept import GradientArrivals, SavedTensors, give_own_weights, place_of, without_hooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.autograd.graph import GradientEdge


class WeightWork(NamedTuple):
    """What is left for W at a joint."""

    joint: Joint
    arrived: list[torch.Tensor | None]
    """The gradient at each of its edges."""
    versions: list[int | None]
    """How often each had been changed in place when it arrived."""


def backward_of_inputs(
    roots: Sequence[GradientEdge], seeds: Sequence[torch.Tensor], sources: Sequence[GradientEdge], saved: SavedTensors
) -> tuple[list[torch.Tensor | None], list[WeightWork]]:
    """B: leave to W what is W's, and release what only B needed.

    Args:
        roots: where gradients of the outputs have arrived.
        seeds: these.
        sources: the inputs that get a gradient.
        saved: what the forward has saved.

    Returns:
        The gradients of the sources, and what is left for W.
    """
    cut = find_cut(roots, sources)
    if cut.functions:
        give_own_weights(cut.functions)
    asked = [edge for joint in cut.joints if joint.runs_twice or joint.ends for edge in joint.edges]
    wanted = [*asked, *cut.shared, *sources]
    if not wanted:
        saved.release()
        return [], []
    arrivals = GradientArrivals(cut.before, roots, seeds)
    twice = [joint.node for joint in cut.joints if joint.runs_twice]
    handles = [*arrivals.listen(), *(handle for node in twice for handle in (arrivals.watch(node), *saved.keep_for(node)))]
    try:
        with outside_autocast(), without_hooks(cut.shared):
            found: list[torch.Tensor | None] = [
                *torch.autograd.grad(roots, wanted, seeds, retain_graph=bool(twice), allow_unused=True)
            ]
    finally:
        for handle in handles:
            handle.remove()
    arrived = dict(zip(map(place_of, asked), found, strict=False)) | arrivals.found
    works = []
    for joint in cut.joints:
        gradients = [arrived[place_of(edge)] for edge in joint.edges]
        versions = [None if gradient is None else arrivals.version(gradient) for gradient in gradients]
        works.append(WeightWork(joint, gradients, versions))
    edges, values = arrived_at(cut.shared, found[len(asked) : len(asked) + len(cut.shared)])
    if edges:
        torch.autograd.backward(edges, values)
    saved.release()
    return found[len(found) - len(sources) :], works


def backward_of_weights(works: Sequence[WeightWork], part: int, shares: Sequence[int]) -> None:
    """W, or one part of it; the arguments are those of `StageBlock.backward_weight`, and what B has left."""
    if len(shares) > 1:
        works = [works[at] for at in _dealt([one.joint.weights for one in works], shares)[part]]
    with outside_autocast(), GraphExecGroup():  # a checkpointed region runs forward once, not once for each joint in it
        for joint, arrived, versions in works:
            if [None if one is None else one._version for one in arrived] != versions:
                raise RuntimeError(
                    "a gradient that B has kept for W has been changed in place before W: a function of the user's own gives"
                    " memory that it uses again; let it give new memory, or compile with split_backward = false"
                )
            edges, values = arrived_at(joint.edges, arrived)
            if edges:
                # With `inputs`, a node that runs again computes the gradients of these weights alone.
                torch.autograd.backward(edges, values, inputs=joint.leaves if joint.runs_twice else None)


def _dealt(weights: Sequence[int], shares: Sequence[int]) -> list[list[int]]:
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
