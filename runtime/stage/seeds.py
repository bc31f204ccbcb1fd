"""The gradients from which the backwards of a step's losses start: each microbatch's share of the mean.

In half precision a share that is no power of two is rounded, and every gradient of the step would have the error of that one number
(1/12 in bfloat16: 0.195 %). Where a scalar of a loss has such a type, the backward starts from a power of two, and what leaves the
loss for the last stage is multiplied by the rest of the share, element by element: each rounds on its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from schedc.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.autograd.graph import Node

__all__ = ["Seeds"]

_HALF = (torch.float16, torch.bfloat16)


class Seeds:
    """The shares of the microbatches of a step."""

    def __init__(self, count: int) -> None:
        """Take how many losses the mean is over."""
        self._count = count
        self._power = 2.0 ** (math.frexp(1 / count)[1] - (0 if count & (count - 1) else 1))
        self._rest = 1 / count / self._power
        self._made: dict[tuple[torch.dtype, torch.device, float], torch.Tensor] = {}

    def loss(self, loss_fn: Callable[[Any, Any], torch.Tensor], output: Any, targets: Any) -> tuple[torch.Tensor, float]:
        """A microbatch's loss, and the gradient from which its backward starts.

        Args:
            loss_fn: the loss function.
            output: what the last stage gives.
            targets: what goes with it.

        Raises:
            InvalidInput: the loss is no scalar.
            Unsupported: the share would be rounded, and the loss has weights of its own.
        """
        border = _Border()
        if self._rest != 1:
            output = border.around(output)
        loss = loss_fn(output, targets)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            found = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise InvalidInput(f"loss_fn must give a scalar tensor, the mean over its microbatch; found {found}")
        if self._rest == 1 or loss.grad_fn is None:
            return loss, 1 / self._count
        half, beside = border.inside(loss.grad_fn)
        if half is None:
            return loss, 1 / self._count
        if beside:
            raise Unsupported(
                f"loss_fn computes a {half} loss and depends on weights other than through the last stage's output;"
                f" 1/{self._count}, a microbatch's share of the step, is not exact in that type; compute the loss in float32"
            )
        border.multiply(self._rest)
        return loss, self._power

    def seed(self, loss: torch.Tensor, value: float) -> torch.Tensor:
        """This number as the gradient of a loss; the same tensor for all microbatches."""
        key = loss.dtype, loss.device, value
        if key not in self._made:
            self._made[key] = torch.full_like(loss, value, requires_grad=False)
        return self._made[key]


class _Border:
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

    def multiply(self, factor: float) -> None:
        """Multiply gradients by this number on their way through the border."""
        self._factor[0] = factor


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
