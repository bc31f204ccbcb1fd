"""The process groups of a pipe: one of two ranks for each wire, one for each set of replicas' ranks, one of all ranks.

Every rank makes all of them in the same order, members or not, as `torch.distributed.new_group` asks.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist

from schedc.errors import InvalidInput
from schedc.runtime.failure import TransferFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Groups"]

T = TypeVar("T")


class Groups:
    """Process groups over gloo, closed together."""

    def __init__(self, timeout_s: float) -> None:
        """Join the default group, or make it from the environment (torchrun) where it is not there yet; make the group of all.

        Raises:
            InvalidInput: there is no default group, and the environment does not say how to make one.
            TransferFailed: another rank does not come.
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
            except RuntimeError as error:
                raise TransferFailed(f"a rank meets the others: {self._absent()}") from error
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        try:
            self.all = self.make(range(self.size))
        except BaseException:
            self.close()
            raise

    def make(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """A group of these ranks; on other ranks a placeholder that nothing may be sent over.

        Raises:
            TransferFailed: another rank does not come.
        """
        try:
            group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=self._timeout, backend="gloo")
        except RuntimeError as error:
            shown = ", ".join(map(str, ranks))
            raise TransferFailed(f"rank {self.rank} connects the ranks {shown}: {self._absent()}") from error
        if self.rank in ranks:
            self._made.append(group)
        return group

    def exchange(self, value: T) -> list[T]:
        """What every rank gives, by rank.

        Raises:
            TransferFailed: another rank does not give anything.
        """
        given = [value] * self.size
        try:
            dist.all_gather_object(given, value, group=self.all)
        except RuntimeError as error:
            raise TransferFailed(f"rank {self.rank} hears what the others have loaded: {self._absent()}") from error
        return given

    def _absent(self) -> str:
        """Why a rank may not have come."""
        limit_s = self._timeout.total_seconds()
        return (
            f"another rank has ended or failed, and its own message says why, or it came more than {limit_s:g} s later, the"
            " timeout_s given to load"
        )

    def close(self) -> None:
        """Close all connections that were made here, at once: peers that wait on them see it. Closing again does nothing."""
        made, self._made = self._made, []
        if not dist.is_initialized():
            return  # the job has already destroyed the default group, and these with it
        while made:
            dist.destroy_process_group(made.pop())
        if self._owns_default:
            dist.destroy_process_group()
