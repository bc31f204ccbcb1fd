"""One stage's work for one microbatch: F, then B and W, or BW, on PyTorch's autograd.

Takes the stage and its input; gives the output, then the input's gradient, then adds the weights' gradients to `.grad`. B computes
no gradient of a weight and W none of an activation; only weights that a stage uses in several places are left to B. Nothing but
public autograd calls: gradient edges, node hooks, saved-tensor hooks. A user's tensor hook that changes the gradient at a layer's
output would act twice, once in B and once in W.

Between B and W the block holds what W reads and the gradients where W begins; after W or BW it holds nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch.autograd.graph import get_gradient_edge

from schedc.errors import InvalidInput
from schedc.runtime.frontier import find_cut
from schedc.runtime.saved import SavedTensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.autograd.graph import GradientEdge

    from schedc.runtime.frontier import Joint

__all__ = ["Block", "differentiable"]

Work: TypeAlias = "tuple[Joint, list[torch.Tensor | None]]"
"""A joint, and the gradient that has arrived at each of its edges."""


def differentiable(dtype: torch.dtype) -> bool:
    """Whether tensors of this type have gradients."""
    return dtype.is_floating_point or dtype.is_complex


class Block:
    """The live state of one stage and microbatch."""

    def __init__(self, work: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor, *, first: bool, split: bool) -> None:
        """Run F.

        Args:
            work: the stage, with the loss after it on a last stage.
            value: the input.
            first: whether the input is the batch itself, which needs no gradient.
            split: whether B and W will run apart.
        """
        self._input = value.detach()
        if not first and differentiable(value.dtype):
            self._input.requires_grad_()
        self._saved = SavedTensors() if split else None
        with torch.enable_grad():
            if self._saved is None:
                output = work(self._input)
            else:
                with self._saved.recording():
                    output = work(self._input)
        if not isinstance(output, torch.Tensor):
            raise InvalidInput(f"a stage must give one tensor, this one gives {type(output).__name__}")
        self._result: torch.Tensor | None = output.detach()
        self._root = get_gradient_edge(output) if output.requires_grad else None
        self._like = output.new_ones(()) if output.dim() == 0 else None
        self._weight_work: list[Work] = []

    def take(self) -> torch.Tensor | None:
        """What the last block has given, which is not held any longer: F's output, or B's or BW's gradient of the input.

        None where the input has no gradient.
        """
        result, self._result = self._result, None
        return result

    def backward(self, gradient: torch.Tensor | None) -> None:
        """Run BW: add all weights' gradients, and give the input's.

        Args:
            gradient: of the output; None where the output is the loss.
        """
        root, value = self._root, self._input
        self._root = None
        if root is not None:
            torch.autograd.backward([root], [self._seed(gradient)])
        if value.requires_grad:
            self._result = torch.zeros_like(value) if value.grad is None else value.grad

    def backward_input(self, gradient: torch.Tensor | None) -> None:
        """Run B: give the gradient of the input, and release what only B needed. The argument is as in `backward`."""
        root, value, saved = self._root, self._input, self._saved
        self._root = None
        source = get_gradient_edge(value) if value.requires_grad else None
        given = None
        if root is not None and saved is not None:
            joints, shared = find_cut(root, source)
            wanted = [edge for joint in joints for edge in joint.edges] + [*shared] + ([] if source is None else [source])
            handles = [handle for joint in joints for handle in saved.keep_for(joint.node)]
            try:
                seeds = [self._seed(gradient)]
                found: list[torch.Tensor | None] = [
                    *torch.autograd.grad([root], wanted, seeds, retain_graph=True, allow_unused=True)
                ]
            finally:
                for handle in handles:
                    handle.remove()
            given = found.pop() if source is not None else None
            for joint in joints:
                self._weight_work.append((joint, found[: len(joint.edges)]))
                del found[: len(joint.edges)]
            _continue(shared, found, retain_graph=True)
            saved.release()
        if source is not None and given is None:
            given = torch.zeros_like(value)
        value.data = value.new_empty(0)  # the graph holds the input's tensor to the end; what W reads of it is kept apart
        self._result = given

    def backward_weight(self, part: int = 0, shares: Sequence[int] = (1,)) -> None:
        """Run W, or one part of it: add the gradients of the weights.

        Args:
            part: which part.
            shares: the relative time of each part; the joints are dealt to the parts by the size of their weights.
        """
        last = part == len(shares) - 1
        roots: list[GradientEdge] = []
        gradients: list[torch.Tensor | None] = []
        for joint, arrived in _dealt(self._weight_work, shares)[part]:
            found = arrived
            if joint.sides:
                edges, values = _given(joint.edges, arrived)
                found = [*torch.autograd.grad(edges, joint.sides, values, retain_graph=True, allow_unused=True)] if edges else []
            roots += (joint.sides or joint.edges)[: len(found)]
            gradients += found
        _continue(roots, gradients, retain_graph=not last)
        if last:
            self._weight_work.clear()

    def _seed(self, gradient: torch.Tensor | None) -> torch.Tensor:
        """The gradient at the root."""
        seed = self._like if gradient is None else gradient
        assert seed is not None
        return seed


def _given(
    edges: Sequence[GradientEdge], gradients: Sequence[torch.Tensor | None]
) -> tuple[list[GradientEdge], list[torch.Tensor]]:
    """Those of the edges at which a gradient has arrived, and these gradients."""
    pairs = [(edge, gradient) for edge, gradient in zip(edges, gradients, strict=True) if gradient is not None]
    return [edge for edge, _ in pairs], [gradient for _, gradient in pairs]


def _continue(edges: Sequence[GradientEdge], gradients: Sequence[torch.Tensor | None], *, retain_graph: bool) -> None:
    """Go on from these edges to all weights behind them, and add to their `.grad`."""
    roots, values = _given(edges, gradients)
    if roots:
        torch.autograd.backward(roots, values, retain_graph=retain_graph)


def _dealt(work: list[Work], shares: Sequence[int]) -> list[list[Work]]:
    """The joints of each part, in order: a joint goes to the part in whose share the middle of its weights lies."""
    ends = list(accumulate(shares))
    total = sum(joint.weights for joint, _ in work)
    parts: list[list[Work]] = [[] for _ in shares]
    before = 0
    for joint, gradients in work:
        middle = (2 * before + joint.weights) * ends[-1]
        parts[min(bisect_left([2 * total * end for end in ends], middle), len(ends) - 1)].append((joint, gradients))
        before += joint.weights
    return parts
