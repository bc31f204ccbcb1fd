"""The process groups of a pipe: one of two ranks for each wire, one for each set of replicas' ranks, one of all ranks.

Every rank makes all of them in the same order, members or not, as `torch.distributed.new_group` asks.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Groups"]


class Groups:
    """Process groups over gloo, closed together."""

    def __init__(self, timeout_s: float) -> None:
        """Join the default group, or make it from the environment (torchrun) where it is not there yet; make the group of all.

        Raises:
            InvalidInput: there is no default group, and the environment does not say how to make one.
        """
        self._timeout = timedelta(seconds=timeout_s)
        self._made: list[dist.ProcessGroup] = []
        self._owns_default = not dist.is_initialized()
        if self._owns_default:
            try:
                dist.init_process_group("gloo", timeout=self._timeout)
            except ValueError as error:
                raise InvalidInput(
                    f"no process group: {error}; start with torchrun, or call torch.distributed.init_process_group before load"
                ) from error
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.all = self.make(range(self.size))

    def make(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """A group of these ranks; on other ranks a placeholder that nothing may be sent over."""
        group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=self._timeout, backend="gloo")
        if self.rank in ranks:
            self._made.append(group)
        return group

    def close(self) -> None:
        """Close all connections that were made here, at once: peers that wait on them see it. Closing again does nothing."""
        made, self._made = self._made, []
        if not dist.is_initialized():
            return  # the job has already destroyed the default group, and these with it
        while made:
            dist.destroy_process_group(made.pop())
        if self._owns_default:
            dist.destroy_process_group()
