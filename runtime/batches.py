"""A batch, cut into the plan's microbatches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from schedc.errors import InvalidInput

__all__ = ["Batch", "cut"]

Batch = torch.Tensor | Sequence[torch.Tensor]
"""A whole batch, its samples along dimension 0, or its microbatches."""


def cut(batch: Batch | None, microbatches: int, name: str, rank: int) -> Sequence[torch.Tensor]:
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
