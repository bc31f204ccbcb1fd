"""The gradients from which the backwards of a step's losses start: each microbatch's share of the mean."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable


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
            from schedc.runtime.stage.border import Border

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
