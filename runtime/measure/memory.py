"""What the ops of a rank hold, by counting: of the CPU, whose allocator keeps no books.

    meter = MemoryMeter()
    with schedc.runtime.load(plan, stages=stages, observe=[Recorder(), meter]) as pipe:
        ...  # train
        print(pipe.summary())  # all ranks; meter.peak_bytes is this rank's

The count is of storages, each once, whatever views of it there are: those that operators have allocated while they were counted and
that are still alive. It looks at the result of every operator, which takes time.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from schedc.runtime.common.hooks import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from schedc.runtime.common.boundary import Value
    from schedc.runtime.common.program import Instruction

    Run = Callable[[Instruction, Sequence[Value]], Sequence[Value]]


class CountingMeter(TorchDispatchMode):
    """Sees the result of every operator while it is entered, in the backward too."""

    @cached_property
    def _storages(self) -> WeakSet[torch.UntypedStorage]:
        return WeakSet()

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, and count what it has allocated."""
        given = storages_of((args, kwargs))
        result = function(*args, **(kwargs or {}))
        self._storages.update(storages_of(result) - given)  # a view, or what an operator has written into, is nothing new
        return result

    def count(self, values: object) -> None:
        """Count these tensors too, which were made elsewhere."""
        self._storages.update(storages_of(values))

    def forget(self) -> None:
        """Begin again: what is alive now is not counted."""
        self._storages.clear()

    def held_bytes(self, without: object = ()) -> int:
        """What is alive of it, but not these tensors."""
        left_out = storages_of(without)
        return sum(storage.nbytes() for storage in self._storages if storage not in left_out)


class MemoryMeter(Observer):
    """Counts what the ops of one rank on the CPU hold: between them, as the plan does, not what an op lets go of before it ends.

    In it is what an op takes from other ranks, as in a measured profile. Not in it are weights, their `.grad`, the batch, and what
    hooks and replicas hold. Beside the plan's it has tensors that are under way to other ranks, and, of steps that overlap, what
    updates leave. On a GPU it does nothing: the allocator knows more.
    """

    peak_bytes: int | None = None
    """The most in all steps of the plan that runs, but the first, in which layers fill tables, if there are more; None: no step has
    begun, or the rank is on a GPU."""

    def __init__(self) -> None:
        """Count nothing yet; give it to `load` as `observe`."""
        self._counted = CountingMeter()
        self._begun = 0

    def use(self, run: Run, modules: Sequence[nn.Module]) -> None:
        """From now on, count what `run` does, an op of a plan, with the gradients of these modules left out."""
        self._run, self._modules = run, modules
        self._begun, self.peak_bytes = 0, None

    def begin_step(self, step: int, now_ns: int) -> None:
        """Forget what earlier steps have left."""
        self._counted.forget()
        if self._begun < 2:
            self.peak_bytes = None
        self._begun += 1

    def run(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        """Run an op, and look at what is held after it."""
        self._counted.count(values)
        with self._counted:
            given = self._run(instruction, values)
        gradients = [weight.grad for module in self._modules for weight in module.parameters()]
        self.peak_bytes = max(self.peak_bytes or 0, self._counted.held_bytes(without=gradients))
        return given


def storages_of(values: object) -> set[torch.UntypedStorage]:
    """Where the tensors in this nest are; of one that wraps others, as DTensor does, where those are."""
    return {part.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) for part in _parts(leaf)}


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    else:
        yield tensor
