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

_HALF = (torch.float16, torch.bfloat16)


class Seeds:
    """The share of a microbatch, or of all of them."""

    def __init__(self, share: float, shown: str) -> None:
        """Take a loss's share of the step's, and what a message calls it."""
        mantissa, exponent = math.frexp(share)
        self._share, self._shown = share, shown
        self._power = 2.0 ** (exponent - (mantissa == 0.5))
        self._rest = share / self._power
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
        if self._rest != 1:
            border = Border()
            loss = scalar(loss_fn(border.around(output), targets))
            return loss, self._power if border.share(loss, self._shown, self._rest) else self._share
        return scalar(loss_fn(output, targets)), self._share

    def seed(self, loss: torch.Tensor, value: float) -> torch.Tensor:
        """This number as the gradient of a loss; the same tensor for all microbatches."""
        key = loss.dtype, loss.device, value
        if key not in self._made:
            self._made[key] = torch.full_like(loss, value, requires_grad=False)
        return self._made[key]


def scalar(loss: torch.Tensor) -> torch.Tensor:
    """The loss, if it is one.

    Raises:
        InvalidInput: the loss is no scalar.
    """
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        found = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InvalidInput(f"loss_fn must give a scalar tensor, the mean over its microbatch; found {found}")
    return loss


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
