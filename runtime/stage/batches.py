"""A batch, cut into the plan's microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from schedc.errors import InvalidInput
from schedc.runtime.common.values import tensors_of

__all__ = ["Batch", "Microbatch", "cut", "inputs_of"]

Microbatch: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]
"""One microbatch: a tensor, or the tensors that the first stage takes."""
Batch: TypeAlias = torch.Tensor | Sequence[Microbatch]
"""A whole batch, its samples along dimension 0, or its microbatches."""


def cut(batch: Batch | None, microbatches: int, name: str, rank: int) -> Sequence[Microbatch]:
    """The microbatches of a batch; `name` and `rank` say whose they are.

    Raises:
        InvalidInput: there is none, or it cannot be cut into that many equal ones.
    """
    if batch is None:
        raise InvalidInput(
            f"rank {rank}: step needs the {name} on this rank; pass the batch, or a list of {microbatches} microbatches"
        )
    if not isinstance(batch, torch.Tensor):
        if len(batch) != microbatches:
            raise InvalidInput(f"rank {rank}: {len(batch)} microbatches of {name} were given, the plan has {microbatches}")
        return batch
    if batch.dim() == 0 or batch.shape[0] % microbatches or not batch.shape[0]:
        raise InvalidInput(
            f"rank {rank}: the {name} have the shape {list(batch.shape)}; dimension 0 must be a multiple of the plan's"
            f" {microbatches} microbatches"
        )
    return batch.chunk(microbatches)


def inputs_of(microbatch: Microbatch) -> tuple[torch.Tensor, ...]:
    """What a first stage takes for one microbatch, without a graph: it is the batch, which needs no gradient.

    Raises:
        InvalidInput: it is neither a tensor nor a tuple of tensors.
    """
    return tuple(tensor.detach() for tensor in tensors_of(microbatch, "a microbatch of inputs"))
