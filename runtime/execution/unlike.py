"""What is wrong with tensors that are not like a boundary's first: imported where a step is refused for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.runtime.common.header import TensorKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.runtime.common.program import Message
    from schedc.runtime.common.values import Value

__all__ = ["difference"]


def difference(value: Value, kinds: tuple[TensorKind, ...], message: Message) -> str:
    """What is wrong with tensors that are not alike."""
    found = ["nothing" if tensor is None else str(TensorKind.of(tensor)) for tensor in value]
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
    what = f"{'the gradient of ' if message.gradient else ''}stage {message.boundary}'s output"
    return (
        f"microbatch {message.microbatch}: {what} is {_listed(found)}, expected {_listed(expected)} as before;"
        f" give all microbatches the same {way}"
    )


def _listed(kinds: Sequence[str]) -> str:
    return kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})"
