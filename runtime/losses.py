"""The step's loss, brought from the ranks that have a last stage to all ranks.

It is sent when the last loss is known, long before the other ranks have ended their backwards, so that nobody waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from schedc.runtime.failure import TransferFailed, connection_lost, waiting_failed
from schedc.runtime.transports.base import ConnectionLost, NoAnswer
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch.distributed as dist

__all__ = ["Losses"]


class Losses:
    """The losses of one step."""

    def __init__(self, group: dist.ProcessGroup, rank: int, expected: Mapping[int, int], timeout_s: float) -> None:
        """Post the receives.

        Args:
            group: of all ranks.
            rank: this one.
            expected: of each rank that computes losses, how many.
            timeout_s: how long to wait.

        Raises:
            TransferFailed: a connection is lost.
        """
        self._group = group
        self._rank = rank
        self._timeout_s = timeout_s
        self._missing = expected.get(rank, 0)
        self._sums = {root: torch.zeros((), dtype=torch.float64) for root in sorted(expected)}
        self._work: list[tuple[dist.Work, str, int]] = []
        for root, total in self._sums.items():
            if root != rank:
                self._start(group.recv, total, root, f"rank {rank} waits for the loss from rank {root}")

    def add(self, loss: torch.Tensor) -> None:
        """Count one microbatch's share of the loss; after the last of this rank's, send their sum to all ranks."""
        total = self._sums[self._rank]
        total += loss
        self._missing -= 1
        if self._missing == 0:
            for peer in range(self._group.size()):
                if peer != self._rank:
                    self._start(self._group.send, total, peer, f"rank {self._rank} sends the loss to rank {peer}")

    def total(self) -> torch.Tensor:
        """The step's loss: the sum of all microbatches' shares, in float64, the same on all ranks.

        Raises:
            TransferFailed: a part of it does not come.
        """
        while self._work:
            work, doing, peer = self._work.pop(0)
            try:
                finish(work, self._timeout_s)
            except (ConnectionLost, NoAnswer) as error:
                raise waiting_failed(doing, error, self._timeout_s, peer) from error
        return torch.stack(list(self._sums.values())).sum()

    def _start(
        self, transfer: Callable[[list[torch.Tensor], int, int], dist.Work], tensor: torch.Tensor, peer: int, doing: str
    ) -> None:
        try:
            work = transfer([tensor], peer, 0)
        except RuntimeError as error:
            raise TransferFailed(f"{doing}: {connection_lost(peer)}") from error
        self._work.append((work, doing, peer))
