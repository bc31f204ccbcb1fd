"""Small tensors straight from rank to rank, so that a slow link is crossed once, and what of them is still under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, connection_lost, waiting_failed
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

LOSSES, AGREEMENT, BEGINNING = range(3)
"""Tags on the group of all ranks."""


class PeerWords:
    """One rank's side of one kind of them. Between two ranks they come in the order in which they were sent."""

    def __init__(self, group: dist.ProcessGroup, tag: int) -> None:
        """Take a group over gloo, and a tag that nothing else has on it."""
        self._group = group
        self._tag = tag
        self._coming: list[tuple[dist.Work, str, int]] = []
        self._sent: list[tuple[dist.Work, str, int]] = []

    def receive(self, tensor: torch.Tensor, peer: int, doing: str) -> None:
        """Begin to receive; `doing` is for messages.

        Raises:
            TransferFailed: the peer has ended.
        """
        try:
            self._coming.append((self._group.recv([tensor], peer, self._tag), doing, peer))
        except RuntimeError as error:
            raise TransferFailed(f"{doing}: {connection_lost(peer)}") from error

    def send(self, tensor: torch.Tensor, peer: int, doing: str) -> None:
        """Begin to send; as `receive`."""
        try:
            self._sent.append((self._group.send([tensor], peer, self._tag), doing, peer))
        except RuntimeError as error:
            raise TransferFailed(f"{doing}: {connection_lost(peer)}") from error

    def hear(self, timeout_s: float) -> None:
        """Wait for all that comes.

        Raises:
            TransferFailed: a peer has ended, or sends nothing in time.
        """
        _finish(self._coming, timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Wait until all that was sent has come; as `hear`."""
        _finish(self._sent, timeout_s)


def _finish(works: list[tuple[dist.Work, str, int]], timeout_s: float) -> None:
    while works:
        work, doing, peer = works.pop(0)
        try:
            finish(work, timeout_s)
        except (ConnectionLost, NoAnswer) as error:
            raise waiting_failed(doing, error, timeout_s, peer) from error
