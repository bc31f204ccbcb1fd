"""What the tensors at each boundary between stages are: learnt from the first microbatch, the same for all others.

Tensors go in; their kinds come out, or one line says what is unlike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.common.header import TensorMeta

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from schedc.runtime.common.program import Message
    from schedc.runtime.common.values import Value


class BoundaryMeta(dict[int, tuple[TensorMeta, ...]]):
    """By stage, what its outputs are; known from the first microbatch on, and the same for all microbatches and steps."""

    def learn(self, value: Value, message: Message) -> tuple[TensorMeta, ...]:
        """Take note of a boundary's tensors, the outputs or their gradients.

        Returns:
            What the outputs are.

        Raises:
            InvalidInput: they are not like the first.
            Unsupported: one is made of other tensors (a DTensor), whose memory is not its own: gloo would end the process.
        """
        if wrapped := [tensor for tensor in value if tensor is not None and hasattr(tensor, "__tensor_flatten__")]:
            raise Unsupported(_not_plain(wrapped[0], message))
        known = self.get(message.boundary)
        if known is None:
            known = self[message.boundary] = tuple(TensorMeta.of(tensor) for tensor in value if tensor is not None)
        elif not _alike(value, known, message.gradient):
            raise InvalidInput(_difference(value, known, message))
        return known


def _alike(value: Value, kinds: tuple[TensorMeta, ...], gradient: bool) -> bool:
    """Whether these are tensors of these kinds, or their gradients."""
    if len(value) != len(kinds):
        return False
    for tensor, kind in zip(value, kinds, strict=True):
        if gradient and not kind.gradient:
            continue
        if tensor is None or tensor.dtype != kind.dtype or tensor.shape != kind.shape:
            return False
        if not gradient and tensor.requires_grad != kind.gradient:
            return False
    return True


def _difference(value: Value, kinds: tuple[TensorMeta, ...], message: Message) -> str:
    """What is wrong with tensors that are not alike."""
    found = ["nothing" if tensor is None else str(TensorMeta.of(tensor)) for tensor in value]
    expected = list(map(str, kinds))
    way = "shape"
    if len(found) != len(expected):
        way = "number of tensors"
    elif found == expected:
        way = "graph"
        found = [
            f"{kind} that {'requires' if tensor.requires_grad else 'does not require'} grad"
            for kind, tensor in zip(found, value, strict=True)
            if tensor is not None
        ]
        expected = [f"{kind} that {'requires' if kind.gradient else 'does not require'} grad" for kind in kinds]
    return f"{_named(message)} is {_listed(found)}, expected {_listed(expected)} as before; give all microbatches the same {way}"


def _not_plain(tensor: torch.Tensor, message: Message) -> str:
    """What is wrong with a tensor that is made of others."""
    return (
        f"{_named(message)} is a {type(tensor).__name__}, which is made of other tensors; give plain ones"
        " (of a DTensor its to_local() or full_tensor())"
    )


def _named(message: Message) -> str:
    return f"microbatch {message.microbatch}: {'the gradient of ' if message.gradient else ''}stage {message.boundary}'s output"


def _listed(kinds: Sequence[str]) -> str:
    return kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})"
