"""Whether autograd saves what a stage has computed from its weights alone, in place of the weights.

Where versions are bounded, the backwards are to read the newest weights, which they find in the weights' own memory. A cast of a
weight, or a weight that is normed or composed of others, is not there: a backward would read it as F has left it. So the first F of
a stage is watched: what it makes of weights without anything of its inputs, and what of that is still held once it has run.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from schedc.errors import Unsupported
from schedc.runtime.stage.autograd import forget_cast_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class _Origins(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What operators make, by the memory that they write to."""

    def __init__(self, weights: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = {_memory(tensor) for tensor in weights}
        self._of_inputs = {_memory(tensor) for tensor in inputs}
        self.made: dict[Any, str] = {}
        """Of weights alone, with the operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and take note."""
        kwargs = kwargs or {}
        given = func(*args, **kwargs)
        read = {_memory(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)}
        written = {_memory(tensor) for tensor in tree_leaves(given) if isinstance(tensor, torch.Tensor)} - self._weights
        if not read.isdisjoint(self._of_inputs):
            self._of_inputs |= written
            for memory in written:
                self.made.pop(memory, None)
        elif not read.isdisjoint(self._weights | self.made.keys()):
            for memory in written - self._of_inputs:
                self.made.setdefault(memory, func.__name__.partition(".")[0])
        return given


@contextmanager
def refusing_copies(stage: int, weights: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]) -> Iterator[None]:
    """A context for a stage's F, whose graph is there when it ends.

    Raises:
        Unsupported: the graph holds something that was made of weights alone.
    """
    origins = _Origins(weights, inputs)
    with origins:
        yield
    forget_cast_weights()
    if any(not memory.expired() for memory in origins.made):
        gc.collect()
    held = [name for memory, name in origins.made.items() if not memory.expired()]
    if held:
        raise Unsupported(
            f"stage {stage} keeps for its backward what {held[0]} has made of its weights, as its forward has read them and not the"
            f" newest; where versions are bounded, load with recompute={{{stage}}}, or compile with versions = 'stash'"
        )


def _memory(tensor: torch.Tensor) -> Any:
    """Its memory, without keeping it; those of one memory are equal, and it is not given to another while this is there."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
