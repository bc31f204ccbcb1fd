"""What is wrong with tensors that cannot cross a boundary: imported where a step is refused for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.runtime.common.header import TensorMeta

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from schedc.runtime.common.program import Message
    from schedc.runtime.common.values import Value


def difference(value: Value, kinds: tuple[TensorMeta, ...], message: Message) -> str:
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


def not_plain(tensor: torch.Tensor, message: Message) -> str:
    """What is wrong with a tensor that is made of others."""
    return (
        f"{_named(message)} is a {type(tensor).__name__}, which is made of other tensors; give plain ones"
        " (of a DTensor its to_local() or full_tensor())"
    )


def _named(message: Message) -> str:
    return f"microbatch {message.microbatch}: {'the gradient of ' if message.gradient else ''}stage {message.boundary}'s output"


def _listed(kinds: Sequence[str]) -> str:
    return kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})"
