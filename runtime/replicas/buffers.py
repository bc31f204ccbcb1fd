"""What replicas of a stage share besides weights: buffers such as batch norm's statistics, which the first replica gives.

Each replica changes its own in a step, and the first one's hold for all, as with DistributedDataParallel. Before a step, an
evaluation and a checkpoint they are sent from the first replica to the others; those that are not saved with a model (tables,
masks) are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from schedc.runtime.replicas.buckets import Partners


def saved_buffers(module: nn.Module) -> Iterator[torch.Tensor]:
    """The buffers of a module that are saved with it, in its order."""
    for owner in module.modules():
        for name, tensor in owner._buffers.items():
            if tensor is not None and name not in owner._non_persistent_buffers_set:
                yield tensor


class SharedBuffers:
    """Those of one set of replicas, as one process sees it."""

    def __init__(self, modules: Sequence[nn.Module], partners: Partners, doing: str, first: int = 0) -> None:
        """Take the replicas that this process has, the processes that have some, and the number of the one with the first."""
        self._modules = modules
        self._partners = partners
        self._doing = doing
        self._first = first
        tensors = (*modules[0].parameters(), *saved_buffers(modules[0]))
        elsewhere = (tensor.device for tensor in tensors if tensor.device.type != "cpu")
        self._device = next(elsewhere, torch.device("cpu"))
        """That of the weights, which the group is for: a stage may have buffers, such as counters, on the CPU besides."""

    @property
    def is_needed(self) -> bool:
        """Whether there are any."""
        return any(True for _ in saved_buffers(self._modules[0]))

    def share(self) -> None:
        """Send those of the first replica to the others, and take them."""
        saved = (tensor.detach().to(self._device) for tensor in saved_buffers(self._modules[0]))
        own = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in saved]
        if not own:
            return
        flat, group = torch.cat(own), self._partners.group
        if group.size() > 1:
            options = dist.BroadcastOptions()
            options.rootRank = self._first
            self._partners.wait(self._partners.start(lambda: group.broadcast([flat], options), self._doing), self._doing)
        with torch.no_grad():
            for module in self._modules[group.rank() == self._first :]:
                at = 0
                for tensor in saved_buffers(module):
                    size = tensor.numel() * tensor.element_size()
                    tensor.copy_(flat[at : at + size].clone().view(tensor.dtype).view(tensor.shape))  # cloned: aligned
                    at += size
