"""The buffers of replicas, such as batch norm's statistics: each changes its own in a step, and the first one's hold for all.

It is what DistributedDataParallel does. Before a step, an evaluation and a checkpoint they are sent from the first replica to the
others; those that are not saved with a model (tables, masks) are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch.distributed as dist
    from torch import nn


def saved_buffers(module: nn.Module) -> Iterator[torch.Tensor]:
    """The buffers of a module that are saved with it, in its order."""
    for owner in module.modules():
        for name, tensor in owner._buffers.items():
            if tensor is not None and name not in owner._non_persistent_buffers_set:
                yield tensor


class SharedBuffers:
    """Those of one set of replicas, as one process sees it."""

    def __init__(self, modules: Sequence[nn.Module], group: dist.ProcessGroup, first: int = 0) -> None:
        """Take the replicas that this process has, the processes that have some, and the number of the one with the first."""
        self._modules = modules
        self._group = group
        self._first = first
        self._flat: torch.Tensor | None = None
        tensors = (*modules[0].parameters(), *saved_buffers(modules[0]))
        elsewhere = (tensor.device for tensor in tensors if tensor.device.type != "cpu")
        self._device = next(elsewhere, torch.device("cpu"))
        """That of the weights, which the group is for: a stage may have buffers, such as counters, on the CPU besides."""

    @property
    def is_needed(self) -> bool:
        """Whether there are any."""
        return any(True for _ in saved_buffers(self._modules[0]))

    def start(self) -> dist.Work | None:
        """Start to send them; None: there is nothing to wait for."""
        saved = (tensor.detach().to(self._device) for tensor in saved_buffers(self._modules[0]))
        own = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in saved]
        self._flat = torch.cat(own) if own else None
        return None if self._flat is None or self._group.size() == 1 else self._group.broadcast([self._flat], self._options())

    def _options(self) -> dist.BroadcastOptions:
        options = torch.distributed.BroadcastOptions()
        options.rootRank = self._first
        return options

    def finish(self) -> None:
        """Once they have come: take them."""
        flat, self._flat = self._flat, None
        if flat is None:
            return
        with torch.no_grad():
            for module in self._modules[self._group.rank() == self._first :]:
                at = 0
                for tensor in saved_buffers(module):
                    size = tensor.numel() * tensor.element_size()
                    tensor.copy_(flat[at : at + size].clone().view(tensor.dtype).view(tensor.shape))  # cloned: aligned
                    at += size
