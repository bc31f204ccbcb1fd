"""A batch, cut into the plan's microbatches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import torch

from schedc.errors import InvalidInput
from schedc.runtime.common.boundary import tensors_of

Microbatch: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]
"""One microbatch: a tensor, or the tensors that the first stage takes."""
Batch: TypeAlias = torch.Tensor | Sequence[Microbatch]
"""A whole batch, its samples along dimension 0, or its microbatches."""


Name: TypeAlias = int | str
"""Of what takes a batch or targets, where stages are a graph: a stage's number, or a module that `build_stages` knows."""
Batches: TypeAlias = Batch | Mapping[int, Batch] | Mapping[str, Batch]
"""A batch for all that take one, or by name."""


class Microbatches(NamedTuple):
    """What a rank has of a batch."""

    inputs: Sequence[Microbatch]
    """Empty where no path begins."""
    targets: Sequence[Microbatch] | None
    """Empty where no path ends; None: only outputs are wanted."""
    inputs_of: Mapping[Name, Sequence[Microbatch]] = MappingProxyType({})
    """Instead of `inputs`, where stages are a graph."""
    targets_of: Mapping[Name, Sequence[Microbatch]] = MappingProxyType({})


def cut(batch: Batches | None, microbatches: int, name: str, rank: int) -> Sequence[Microbatch]:
    """The microbatches of a batch; `name` and `rank` say whose they are.

    Raises:
        InvalidInput: there is none, or it cannot be cut into that many equal ones.
    """
    if batch is None:
        raise InvalidInput(
            f"rank {rank}: step needs the {name} on this rank; pass the batch, or a list of {microbatches} microbatches"
        )
    if isinstance(batch, Mapping):
        raise InvalidInput(f"rank {rank}: the {name} are a dict, which is for stages that are a graph; pass the batch itself")
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


def checked_inputs(
    batch: Batches | None, microbatches: int, rank: int, samples: int | None, what: str = "inputs"
) -> Sequence[Microbatch]:
    """The microbatches of a rank's inputs.

    Args:
        batch: all of them.
        microbatches: how many the plan has.
        rank: this one.
        samples: how many each has along dimension 0; None: any number.
        what: they are, for messages.

    Raises:
        InvalidInput: as `cut`; or one has another number of samples, or is neither a tensor nor a tuple of tensors.
    """
    found = cut(batch, microbatches, what, rank)
    for number, one in enumerate(found):
        first = next(iter(tensors_of(one, f"rank {rank}: a microbatch of {what}")), None)
        if samples is not None and first is not None and first.shape[:1] != (samples,):
            has = first.shape[0] if first.dim() else "no dimension"
            raise InvalidInput(
                f"rank {rank}: microbatch {number} of the inputs has {has} samples along dimension 0, expected {samples} as in the"
                " steps before; leave out a last batch that is smaller (drop_last=True), or evaluate it"
            )
    return found


def same_samples(inputs: Sequence[Microbatch], shapes: Collection[Sequence[int]]) -> int | None:
    """How many samples each microbatch has along dimension 0, if what stages exchange has as many; None: they do not.

    Args:
        inputs: of a step that has run.
        shapes: of the outputs that this rank sends or gets.
    """
    first = next(iter(tensors_of(inputs[0])), None)
    if first is None or not shapes or any(shape[:1] != first.shape[:1] for shape in shapes):
        return None
    return first.shape[0] if first.dim() else None


def inputs_of(microbatch: Microbatch) -> tuple[torch.Tensor, ...]:
    """What a first stage takes for one microbatch, without a graph: it is the batch, which needs no gradient.

    Raises:
        InvalidInput: it is neither a tensor nor a tuple of tensors.
    """
    return tuple(tensor.detach() for tensor in tensors_of(microbatch, "a microbatch of inputs"))
