"""The runtime's own blocks, as the profiler uses them: what is measured is what a pipe executes.

This is the one place of the profiler that knows how a `StageBlock` takes and gives its boundaries: tuples of tensors, of which
those that require grad get a gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from schedc.errors import InvalidInput
from schedc.runtime.common.values import tensors_of
from schedc.runtime.stage.block import StageBlock

if TYPE_CHECKING:
    from collections.abc import Callable

Boundary: TypeAlias = tuple[torch.Tensor, ...]
"""What one layer gives to the next."""


def block_of(work: Callable[..., object], inputs: Boundary, *, split: bool) -> StageBlock:
    """Run F of one layer.

    Args:
        work: the layer.
        inputs: what it takes; the tensors stay the caller's, their memory is shared.
        split: whether B and W will run apart.
    """
    return StageBlock(work, [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs], split=split)


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
        InvalidInput: there is something else among them, or they are on the meta device.
    """
    if any(tensor.is_meta for tensor in tensors_of(tensors, what)):
        raise InvalidInput(f"{what}: found a tensor on the meta device, expected one with values")
    return tuple(
        tensor.detach().to(device, dtype if dtype is not None and tensor.is_floating_point() else None)
        for tensor in tensors_of(tensors, what)
    )
