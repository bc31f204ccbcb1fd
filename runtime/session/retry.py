"""What a step changes before the optimizer's, kept from its start, so that it can run again as if it had not run.

That is gradients, buffers, and torch's random numbers, the CPU's and the GPU's. A gradient that is None at the start costs nothing.
Which buffers change is learnt: all are copied before the first step, later only those that have changed so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.stage.buffers import Kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from schedc.runtime.common.hooks import ReplicaHooks

__all__ = ["StepStart"]

GRADIENTS = ("grad", "main_grad")
"""Where gradients of a weight may add up: autograd's, and Megatron's."""


class _Gradient(NamedTuple):
    weight: torch.Tensor
    name: str
    value: torch.Tensor | None
    copy: torch.Tensor | None


class StepStart:
    """What one rank had at the start of a step."""

    def __init__(self, stages: Iterable[nn.Module], hooks: ReplicaHooks, device: torch.device) -> None:
        """Take what may change.

        Args:
            stages: with their weights and buffers.
            hooks: whose shards get gradients as well.
            device: of the stages.
        """
        self._stages = tuple(stages)
        try:
            self._shards = tuple(shard.weight for shard in hooks.shards())
        except InvalidInput:  # nothing is sharded
            self._shards = ()
        self._device = device
        self._gradients: Sequence[_Gradient] = ()
        self._buffers: Sequence[Kept] = ()
        self._changing: set[tuple[nn.Module, str]] | None = None
        """The buffers that have changed so far; None: no step has run yet."""
        self._random: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def keep(self) -> None:
        """Before a step."""
        weights = dict.fromkeys((*(weight for stage in self._stages for weight in stage.parameters()), *self._shards))
        self._gradients = [
            _Gradient(weight, name, value, None if value is None else value.detach().clone())
            for weight in weights
            for name in GRADIENTS
            if hasattr(weight, name)
            for value in (getattr(weight, name),)
        ]
        self._buffers = [
            Kept(owner, name, tensor, tensor._version, tensor.detach().clone() if self._may_change(owner, name) else None)
            for owner in dict.fromkeys(module for stage in self._stages for module in stage.modules())
            for name, tensor in owner._buffers.items()
            if tensor is not None
        ]
        on_gpu = self._device.type == "cuda"
        self._random = torch.get_rng_state(), torch.cuda.get_rng_state(self._device) if on_gpu else None

    def let_go(self) -> None:
        """After a step that counts: its start is not needed any more."""
        first = self._changing is None
        changed = {(one.owner, one.name) for one in self._buffers if one.written() or (first and not _same(one.tensor, one.copy))}
        self._changing = changed | (self._changing or set())
        self._gradients = self._buffers = ()

    def put_back(self) -> None:
        """Before the step runs again.

        Raises:
            Unsupported: a buffer has changed that no step before had changed.
        """
        with torch.no_grad():
            for weight, name, value, copy in self._gradients:
                if value is not None and copy is not None:
                    value.copy_(copy)
                setattr(weight, name, value)
            for one in self._buffers:
                if one.copy is not None:
                    if not _same(one.tensor, one.copy):
                        one.tensor.copy_(one.copy)
                    one.owner._buffers[one.name] = one.tensor
                elif one.written():
                    raise Unsupported(
                        f"a channel has failed, and the step cannot run again: the buffer {one.name!r} of a"
                        f" {type(one.owner).__name__} has changed, which no step before had changed; load a checkpoint"
                    )
        assert self._random is not None
        cpu, gpu = self._random
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu, self._device)

    def _may_change(self, owner: nn.Module, name: str) -> bool:
        return self._changing is None or (owner, name) in self._changing


def _same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Whether two tensors are equal; NaN is not, which is on the safe side."""
    return other is not None and torch.equal(one, other)
