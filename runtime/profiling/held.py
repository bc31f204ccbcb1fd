"""How much memory stays held: on a GPU as its allocator says, on the CPU, whose allocator keeps no books, by counting.

The count is of storages, each once, whatever views of it there are: those that operators have allocated while the meter was
entered and that are still alive. What was there before (parameters, gradients, tables that a layer computed once) is not in it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Meter(Protocol):
    """Measures within `with`."""

    def __enter__(self) -> object:
        """From here on memory is counted."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> object:
        """Up to here."""

    def held_bytes(self) -> int:
        """What has been allocated since entering and is still held."""


def meter_for(device: torch.device) -> Meter:
    """A meter of this device's memory."""
    return _AllocatorMeter(device) if device.type == "cuda" else _CountingMeter()


class _AllocatorMeter:
    """What a GPU's caching allocator has given out; it rounds sizes up to 512 bytes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def __enter__(self) -> None:
        self._before = self._allocated()

    def __exit__(self, *_: object) -> None:
        pass

    def held_bytes(self) -> int:
        return self._allocated() - self._before

    def _allocated(self) -> int:
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.memory_stats(self._device)["allocated_bytes.all.current"])


class _CountingMeter(TorchDispatchMode):
    """Sees the result of every operator, in the backward too."""

    @cached_property
    def _storages(self) -> WeakSet[torch.UntypedStorage]:
        return WeakSet()

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = _storages((args, kwargs))
        result = function(*args, **(kwargs or {}))
        self._storages.update(_storages(result) - given)  # a view, or what an operator has written into, is nothing new
        return result

    def held_bytes(self) -> int:
        return sum(storage.nbytes() for storage in self._storages)


def _storages(values: object) -> set[torch.UntypedStorage]:
    return {leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}
