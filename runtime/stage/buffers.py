"""The buffers of a stage whose forward runs twice: the second run must find what the first found, and leave no trace.

Batch norm's statistics, spectral norm's vectors, counters: a forward that changes them would change them twice, and compute
something else the second time. Most buffers never change (tables, masks); which ones do is looked at once, in the first forward,
so that only these are copied in each.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torch import nn


@dataclass(frozen=True, slots=True, eq=False)
class KeptBuffer:
    """A buffer before a forward."""

    owner: nn.Module
    name: str
    tensor: torch.Tensor
    version: int
    copy: torch.Tensor | None
    """Its values; None where it does not change."""

    def written(self) -> bool:
        """Whether it has been changed since, as far as torch counts."""
        return self.owner._buffers[self.name] is not self.tensor or self.tensor._version != self.version


class Buffers:
    """The buffers of one stage."""

    def __init__(self, module: nn.Module) -> None:
        """Take the stage."""
        self._module = module
        devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
        self.devices = [device for device in devices if device.type != "cpu"]
        """The accelerators that the stage is on, whose random numbers its second run draws again."""
        self.unlike: list[torch.Tensor] = []
        """On accelerators: of each second run since the last `check_alike`, whether it has given something else than the first."""
        self._changing: set[tuple[nn.Module, str]] | None = None
        self._training: list[bool] = []

    def before(self) -> list[KeptBuffer]:
        """What there is before a forward; copies of those that may change."""
        training = [module.training for module in self._module.modules()]
        if training != self._training:
            self._training, self._changing = training, None
        return kept_buffers(self._module.modules(), self._changing)

    def after(self, before: Sequence[KeptBuffer]) -> list[KeptBuffer]:
        """Of what there was before a forward that has now run, what its second run needs.

        Raises:
            RuntimeError: a buffer has been changed that did not change in the first forward.
        """
        if self._changing is None:
            changed = [one for one in before if one.written() or not same(one.tensor, one.copy)]
            self._changing = {(one.owner, one.name) for one in changed}
            return changed
        for one in before:
            if one.copy is None and one.written():
                raise RuntimeError(
                    f"the buffer {one.name!r} of a {type(one.owner).__name__} changes in some forwards only;"
                    " do not recompute its stage"
                )
        return [one for one in before if one.copy is not None]

    @contextmanager
    def as_before(self, kept: Sequence[KeptBuffer]) -> Iterator[None]:
        """A context, once for each forward, in which these buffers are what they were; after it they are what they are now.

        Others take their place, which nobody changes afterwards: a graph may have saved them.
        """
        now = [(one, one.owner._buffers[one.name]) for one in kept]
        for one in kept:
            one.owner._buffers[one.name] = one.copy
        try:
            yield
        finally:
            for one, tensor in now:
                one.owner._buffers[one.name] = tensor


def kept_buffers(modules: Iterable[nn.Module], changing: Collection[tuple[nn.Module, str]] | None) -> list[KeptBuffer]:
    """The own buffers of these modules; with copies of those that may change, None: of all."""
    found = []
    copies: dict[torch.Tensor, torch.Tensor] = {}  # a buffer of several modules is one
    for owner in modules:
        for name, tensor in owner._buffers.items():
            if tensor is None:
                continue
            if (changing is None or (owner, name) in changing) and tensor not in copies:
                copies[tensor] = tensor.detach().clone()
            found.append(KeptBuffer(owner, name, tensor, tensor._version, copies.get(tensor)))
    return found


def same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Whether two tensors of one shape and type are equal bit by bit; NaN is not, which is on the safe side."""
    return other is not None and torch.equal(one, other)
