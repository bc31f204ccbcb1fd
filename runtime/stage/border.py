"""Shares of a loss in half precision, where one that is no power of two would be rounded.

Every gradient of the step would have the error of that one number (1/12 in bfloat16: 0.195 %). Where a scalar of a loss has such a
type, the backward starts from a power of two, and what leaves the loss for the last stage is multiplied by the rest of the share,
element by element: each rounds on its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from torch.autograd.graph import Node

_HALF = (torch.float16, torch.bfloat16)


class Border:
    """Where a loss begins: identities of a last stage's outputs, whose gradients are multiplied."""

    def __init__(self) -> None:
        self._factor = [1.0]
        self._nodes: set[Node] = set()

    def around(self, output: Any) -> Any:
        """What the stage gives, for the loss function: a tensor, or a tuple or list of tensors."""
        if isinstance(output, (tuple, list)):
            values = map(self.around, output)
            return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)
        if not isinstance(output, torch.Tensor) or not output.requires_grad:
            return output
        identity: Any = _Multiplied
        same: Any = identity.apply(output, self._factor)
        self._nodes.add(same.grad_fn)
        return same

    def inside(self, root: Node) -> tuple[torch.dtype | None, bool]:
        """Of what lies between the loss and the border: a half type of one of its scalars, and whether it leads to weights."""
        half, beside = None, False
        seen, stack = {root}, [root]
        while stack:
            node = stack.pop()
            if node in self._nodes:
                continue
            if not node.next_functions:
                beside = True
                continue
            for kind in node._input_metadata:
                if kind.dtype in _HALF and math.prod(kind.shape) == 1:
                    half = kind.dtype
            for after, _ in node.next_functions:
                if after is not None and after not in seen:
                    seen.add(after)
                    stack.append(after)
        return half, beside

    def share(self, loss: torch.Tensor, shown: str, rest: float) -> bool:
        """Multiply gradients on their way through the border, where the loss's own type would round its share of the mean.

        Args:
            loss: computed from what `around` gave.
            shown: the share, for messages.
            rest: what to multiply by: the share is this number times a power of two.

        Returns:
            Whether it does: then the backward is to start from the power of two.

        Raises:
            Unsupported: the share would be rounded, and the loss has weights of its own.
        """
        if loss.grad_fn is None:
            return False
        half, beside = self.inside(loss.grad_fn)
        if half is None:
            return False
        if beside:
            raise Unsupported(
                f"loss_fn computes a {half} loss and depends on weights other than through the last stage's output;"
                f" {shown}, a microbatch's share of the step, is not exact in that type; compute the loss in float32"
            )
        self._factor[0] = rest
        return True


class _Multiplied(torch.autograd.Function):
    """An identity, and no view, so that the loss may change what it gets in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: list[float]) -> torch.Tensor:
        ctx.factor = factor
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,), (factor,) = gradients, ctx.factor
        return gradient if factor == 1 else gradient * factor, None
