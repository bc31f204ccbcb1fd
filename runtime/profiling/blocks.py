"""The runtime's own blocks, as the profiler uses them: what is measured is what a pipe executes.

This is the one place of the profiler that knows how a `Block` takes and gives its boundaries: tuples of tensors, of which those
that require grad get a gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from schedc.errors import InvalidInput
from schedc.runtime.stage.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Boundary", "LayerBlock", "gradient_bytes", "gradients_for", "moved", "num_bytes"]

Boundary: TypeAlias = tuple[torch.Tensor, ...]
"""What one layer gives to the next."""


class LayerBlock:
    """F of one layer, then B and W, or BW."""

    def __init__(self, work: Callable[..., object], inputs: Boundary, *, split: bool) -> None:
        """Run F.

        Args:
            work: the layer.
            inputs: what it takes; the tensors stay the caller's, their memory is shared.
            split: whether B and W will run apart.
        """
        self._block = Block(work, [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs], split=split)

    def outputs(self) -> Boundary:
        """What F has given; it is not held here any longer."""
        return tuple(tensor for tensor in self._block.take() if tensor is not None)

    def backward_input(self, gradients: Boundary) -> None:
        """Run B.

        Args:
            gradients: one for each output.
        """
        self._block.backward_input(gradients)
        self._block.take()

    def backward_weight(self) -> None:
        """Run W."""
        self._block.backward_weight()

    def backward(self, gradients: Boundary) -> None:
        """Run BW. The argument is as in `backward_input`."""
        self._block.backward(gradients)
        self._block.take()


def gradients_for(outputs: Boundary, *, loss: bool) -> Boundary:
    """Gradients as they might come for these outputs: 1 for a loss, else any numbers. Outputs without a graph do not use theirs."""
    if loss:
        return tuple(map(torch.ones_like, outputs))
    return tuple(torch.randn_like(tensor) if tensor.requires_grad else torch.zeros_like(tensor) for tensor in outputs)


def num_bytes(tensors: Boundary) -> int:
    """What a transfer of them carries."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def gradient_bytes(outputs: Boundary) -> int:
    """What a transfer of their gradients carries."""
    return num_bytes(tuple(tensor for tensor in outputs if tensor.requires_grad))


def moved(tensors: object, device: torch.device, dtype: torch.dtype | None, what: str) -> Boundary:
    """One tensor or several on the device, cast if they are of a floating type and a type is given.

    Raises:
        InvalidInput: there is something else among them.
    """
    given = tuple(tensors) if isinstance(tensors, (tuple, list)) else (tensors,)
    found = []
    for tensor in given:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidInput(f"{what}: found {type(tensor).__name__}, expected a tensor or a tuple of tensors")
        found.append(tensor.detach().to(device, dtype if dtype is not None and tensor.is_floating_point() else None))
    return tuple(found)
