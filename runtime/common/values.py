"""What crosses a stage boundary: a tuple of tensors, as a stage gives and takes them.

Forward, a tensor that requires grad is one whose gradient comes back; the others (integers, masks, floats without a graph) have
none. Backward, there is a gradient for each tensor that requires one, and None for the others. `()` is nothing at all: what an op
works on that starts from the batch or the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

Value: TypeAlias = tuple[torch.Tensor | None, ...]


def tensors_of(value: object, what: str = "what a stage gives") -> tuple[torch.Tensor, ...]:
    """One tensor or a tuple (or list) of them, as a tuple.

    Args:
        value: the tensors.
        what: what they are, for the message.

    Raises:
        InvalidInput: it is something else.
    """
    if isinstance(value, torch.Tensor):
        return (value,)
    found = type(value).__name__
    if isinstance(value, (tuple, list)):
        wrong = [type(tensor).__name__ for tensor in value if not isinstance(tensor, torch.Tensor)]
        if not wrong:
            return tuple(value)
        found = f"{found} with {wrong[0]}"
    raise InvalidInput(f"{what} must be a tensor or a tuple of tensors; found {found}")


def handed_over(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The tensors without their graph; they require grad as before, so that the next stage knows whose gradient is wanted."""
    return tuple(tensor.detach().requires_grad_() if tensor.requires_grad else tensor.detach() for tensor in tensors)
