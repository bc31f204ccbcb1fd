"""A batch, cut into the plan's microbatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils._pytree import tree_map

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
    kwargs: Mapping[int, Sequence[Mapping[str, Any]]] = MappingProxyType({})
    """By stage, what it gets by name."""
    loss_kwargs: Sequence[Mapping[str, Any]] = ()
    """What loss functions get by name; empty: nothing."""
    outputs: MutableMapping[int, Any] | None = None
    """Gets what a last stage gives, by microbatch, of several losses by name; None: nobody wants it."""

    def kwargs_of(self, stage: int, microbatch: int) -> Mapping[str, Any]:
        """What a stage gets by name."""
        return self.kwargs[stage][microbatch] if stage in self.kwargs else {}

    def with_kwargs(self, loss_fn: Any, microbatch: int) -> Callable[[Any, Any], torch.Tensor]:
        """A loss function with what it gets by name."""
        return partial(loss_fn, **self.loss_kwargs[microbatch]) if self.loss_kwargs else loss_fn

    def keep(self, microbatch: int, output: Any, name: Name | None = None) -> None:
        """Take note of what a last stage gives; under a `name`, where there are several losses."""
        if self.outputs is not None and name is None:
            self.outputs[microbatch] = _detached(output)
        elif self.outputs is not None:
            self.outputs.setdefault(microbatch, {})[name] = _detached(output)


def _detached(output: Any) -> Any:
    return tree_map(lambda one: one.detach() if isinstance(one, torch.Tensor) else one, output)


def merged(outputs: Mapping[int, Any], slices: int = 1, sequence_dim: int = 1) -> Any:
    """What a last stage has given for a whole batch, of what it has given by microbatch.

    Outputs are tensors, or nests of them, of one form, samples along dimension 0; `slices` of them, one behind the other along
    `sequence_dim`, are a microbatch.
    """

    def joined(dim: int, *parts: Any) -> Any:
        if not isinstance(parts[0], torch.Tensor):
            return [*parts]
        return torch.cat(parts, dim) if parts[0].dim() > dim else torch.stack(parts)

    whole = [each for _, each in sorted(outputs.items())]
    if slices > 1:
        whole = [tree_map(partial(joined, sequence_dim), *whole[at : at + slices]) for at in range(0, len(whole), slices)]
    return tree_map(partial(joined, 0), *whole) if whole else None


def samples_of(batch: Batches | None, microbatches: int) -> list[int]:
    """How many samples of a batch each microbatch gets, as even as possible, the first ones more; -1: as its list of them says.

    Of fewer samples than microbatches each of those left over gets none: it runs on the last sample, and counts nothing.
    """
    if not isinstance(batch, torch.Tensor):
        return [-1] * microbatches
    some, more = divmod(batch.shape[0], microbatches)
    return [some + 1] * more + [some] * (microbatches - more)


def cut(
    batch: Batches | None, microbatches: int, name: str, rank: int, samples: Sequence[int] | None = None, *, even: bool = True
) -> Sequence[Microbatch]:
    """The microbatches of a batch; `name` and `rank` say whose they are.

    `samples`: of which of the inputs' samples each is, as `samples_of`; None: as this batch has them. `even`: whether all are to
    have as many.

    Raises:
        InvalidInput: there is none, or it cannot be cut so.
    """
    if batch is None:
        raise InvalidInput(
            f"rank {rank}: step needs the {name} on this rank; pass the batch, or a list of {microbatches} microbatches"
        )
    if isinstance(batch, Mapping):
        raise InvalidInput(f"rank {rank}: the {name} are a dict, which is for stages that are a graph; pass the batch itself")
    if not isinstance(batch, torch.Tensor):
        if not isinstance(batch, Sequence):
            expected = f"a tensor or a list of {microbatches} microbatches"
            raise InvalidInput(f"rank {rank}: the {name} are of type {type(batch).__name__}, expected {expected}")
        if len(batch) != microbatches:
            raise InvalidInput(f"rank {rank}: {len(batch)} microbatches of {name} were given, the plan has {microbatches}")
        return batch
    if batch.dim() == 0 or not batch.shape[0] or (even and batch.shape[0] % microbatches):
        expected = f"a multiple of the plan's {microbatches} microbatches" if even else "1 or more"
        raise InvalidInput(f"rank {rank}: the {name} have the shape {list(batch.shape)}; dimension 0 must be {expected}")
    sizes, times = samples_of(batch, microbatches), 1
    if samples is not None and samples[0] >= 0:
        check_size(batch, sum(samples), microbatches, name, rank)
        if sum(samples) % microbatches:
            sizes, times = list(samples), batch.shape[0] // sum(samples)
    parts = torch.split(batch, [size * times for size in sizes])
    return [part if size else batch[-times:] for part, size in zip(parts, sizes, strict=True)]


def goes_with(samples: int, inputs: int, microbatches: int) -> bool:
    """Whether targets of this many samples can be cut as inputs of this many."""
    return samples % (inputs if inputs % microbatches else microbatches) == 0


def check_size(batch: torch.Tensor, inputs: int, microbatches: int, name: str, rank: int) -> None:
    """Refuse a rank's targets, or what they are called, that cannot be cut as the samples of `inputs` are.

    Raises:
        InvalidInput: says so.
    """
    if batch.dim() and inputs and not goes_with(batch.shape[0], inputs, microbatches):
        raise InvalidInput(
            f"rank {rank}: the {name} have the shape {list(batch.shape)}, and the inputs {inputs} samples; expected as many, or"
            " a multiple, along dimension 0"
        )


def check_dict(given: object, what: str, rank: int, expected: str = "a dict by name", kind: type = Mapping) -> None:
    """Refuse what is neither None nor a dict, of this `kind`; `what` it is and the rank, for messages.

    Raises:
        InvalidInput: says so.
    """
    if not isinstance(given, kind | None):
        raise InvalidInput(f"rank {rank}: {what} of type {type(given).__name__}, expected {expected}")


def shape_of(microbatch: Microbatch, what: str) -> tuple[object, ...]:
    """The types and shapes of a microbatch's tensors.

    Raises:
        InvalidInput: it is something else, which `what` names.
    """
    return tuple((tensor.dtype, tensor.shape) for tensor in tensors_of(microbatch, what))


def inputs_of(microbatch: Microbatch) -> tuple[torch.Tensor, ...]:
    """What a first stage takes for one microbatch, without a graph: it is the batch, which needs no gradient.

    Raises:
        InvalidInput: it is neither a tensor nor a tuple of tensors.
    """
    return tuple(tensor.detach() for tensor in tensors_of(microbatch, "a microbatch of inputs"))
