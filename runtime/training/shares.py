"""A replica's share of a weight, and of what its optimizer keeps of it (ZeRO 1), as part of one tensor of a checkpoint.

torch saves and loads boxes of a tensor, of any number of processes. A share ends anywhere in a weight's elements, laid flat; that
is a few boxes. So a checkpoint has each tensor whole, whoever has had which part of it, and any other job reads what it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from schedc.runtime.replicas.buckets import Shard

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Where it begins in a tensor, and its shape."""


@dataclass(eq=False)
class Share:
    """Elements of a box of a tensor from `start` on, in a flat tensor; torch asks it as it asks its own sharded tensors."""

    values: torch.Tensor
    shape: tuple[int, ...]
    """Of the tensor."""
    start: int
    box: Box
    """All of it; of a DTensor what this process has of it."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor."""
        return self.values.dtype

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        """What of it goes to a file under this name."""
        kind = TensorProperties.create_from_tensor(self.values)
        size = torch.Size(self.shape)
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=kind, size=size),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Its boxes."""
        return [ChunkStorageMetadata(torch.Size(begin), torch.Size(size)) for begin, size in self._boxes()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """The elements of one of them, in its shape."""
        at = 0
        for begin, size in self._boxes():
            if begin == index.offset:
                return self.values[at : at + prod(size)].view(size)
            at += prod(size)
        raise ValueError(f"found no box at {index.offset}")

    def _boxes(self) -> Iterator[Box]:
        first, shape = self.box
        for begin, size in boxes(shape, self.start, self.start + self.values.numel()):
            yield tuple(map(sum, zip(first, begin, strict=True))), size


def boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The boxes of a tensor of this shape that make up its elements [start, stop), laid flat, one after the other."""
    if len(shape) < 2:
        yield ((start,), (stop - start,)) if shape else ((), ())
        return
    size = prod(shape[1:])
    while start < stop:
        row, column = divmod(start, size)
        rows = (stop - start) // size if not column else 0
        end = start + rows * size if rows else min(stop, (row + 1) * size)
        if rows:
            yield (row, *[0] * (len(shape) - 1)), (rows, *shape[1:])
        else:
            for begin, part in boxes(shape[1:], column, column + end - start):
                yield (row, *begin), (1, *part)
        start = end


def shards_by_name(layers: nn.Module, shards: Iterable[Shard]) -> dict[str, Shard]:
    """This process's shards by the names of their weights in a module."""
    names = {weight: name for name, weight in layers.named_parameters()}
    return {names[shard.whole]: shard for shard in shards}


def module_of_shards(shards: Mapping[str, Shard]) -> nn.Module:
    """A module that has the shards' weights under these names; it is not called."""
    found = nn.Module()
    for name, shard in shards.items():
        *path, last = name.split(".")
        at = found
        for part in path:
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at.get_submodule(part)
        at.register_parameter(last, shard.weight)
    return found


def as_share(shard: Shard, values: Any, what: str) -> Any:
    """What the optimizer keeps of a shard, as a share of what there would be for the whole weight; a number stays what it is.

    Raises:
        Unsupported: it has another shape than the shard; `what` it is, for the message.
    """
    if not isinstance(values, torch.Tensor) or not values.dim():
        return values
    if values.shape != shard.weight.shape:
        raise Unsupported(
            f"{what} has the shape {list(values.shape)} for a shard of {shard.weight.numel()} elements (ZeRO 1), expected as many;"
            " save without the optimizer, or take one that keeps a value for each element"
        )
    whole: Any = shard.whole
    shape = tuple(whole.shape)
    box: Box = (0,) * len(shape), shape
    if hasattr(whole, "device_mesh"):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        size, first = compute_local_shape_and_global_offset(shape, whole.device_mesh, whole.placements)
        box = tuple(first), tuple(size)
    return Share(values, shape, shard.start, box)


class SavesShares(DefaultSavePlanner):
    """torch's, which takes shares for sharded tensors when it plans, but not when it looks for their parts."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        """As torch's."""
        found = self.state_dict[index.fqn]
        return found.__get_tensor_shard__(index) if isinstance(found, Share) else super().lookup_object(index)


class LoadsShares(DefaultLoadPlanner):
    """torch's, with shares as in `SavesShares`."""

    def set_up_planner(self, state_dict: dict[str, Any], metadata: Any = None, is_coordinator: bool = False) -> None:
        """As torch's, but for tensors without memory (meta), in whose search shares would be lost."""
        super().set_up_planner({}, metadata, is_coordinator)
        self.original_state_dict = state_dict
        self.state_dict, self.mappings = flatten_state_dict(state_dict)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """As torch's."""
        found = self.state_dict[index.fqn]
        return found.__get_tensor_shard__(index) if isinstance(found, Share) else super().lookup_tensor(index)
