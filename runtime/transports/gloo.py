"""Tensors in the host's memory over gloo: a process group of two ranks for each wire, so that no wire waits for another.

When a connection is lost, gloo (of torch 2.13) ends the waits of receives of which nothing has come yet, and of sends that the peer
is not ready for; other waits run into their time limit. So behind a large tensor goes a byte, for which its receiver waits.
Who waits for a send should know that it has come; where it does not, let the peer say so.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from schedc.runtime.common.failure import ConnectionLost, NoAnswer
from schedc.runtime.transports.base import Ends

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch.distributed as dist

    from schedc.runtime.common.boundary import TensorMeta
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire

FOREVER_S = 1e8
"""The limit of a wait that others end, by `hang_up`: gloo closes a group whose wait runs out of time."""
LARGE_BYTES = 1 << 16
"""Less comes in one piece, but for rare cases, and the time for a byte behind it would be felt."""
BEHIND, NOBODY_SENDS = 2**29, 2**30
"""Tags: of the byte behind a large tensor, added to the tensor's own; of nothing."""


def connect_gloo(wire: Wire, groups: Groups) -> Ends:
    """Connect a wire over gloo. Both of its ranks do this together."""
    group = groups.make((wire.source, wire.destination))
    end = GlooTransport(group)
    return Ends(end, end, give_up=lambda: hang_up(group), close=lambda: hang_up(group))


def finish(work: dist.Work, timeout_s: float) -> None:
    """Wait for what was started on a gloo group.

    Raises:
        ConnectionLost: the peer is gone.
        NoAnswer: it has not done its part in time.
    """
    try:
        work.wait(timedelta(seconds=timeout_s))
    except RuntimeError as error:
        late = any(words in str(error).lower() for words in ("timed out", "timeout"))
        raise (NoAnswer if late else ConnectionLost)(str(error)) from error


def hang_up(group: dist.ProcessGroup) -> None:
    """Close the connections of a group of two or more ranks at once: all waits on it fail, in all threads here, and at the peers.

    gloo does that to a group whose wait runs out of time; its own `shutdown` and `abort` leave threads waiting.
    """
    with suppress(RuntimeError):
        group.recv([torch.empty(1, dtype=torch.uint8, device="cpu")], (group.rank() + 1) % group.size(), NOBODY_SENDS).wait(
            timedelta(milliseconds=1)
        )


class GlooTransfer:
    """A send or receive, and that of the byte behind it; once the last is through, so are all. It keeps all of it alive."""

    __slots__ = ("_tensor", "_works")

    def __init__(self, works: Sequence[dist.Work], tensor: torch.Tensor) -> None:
        """Take what was started, and the tensor."""
        self._works = works
        self._tensor = tensor

    def wait(self, timeout_s: float) -> torch.Tensor:
        """As `Outgoing.wait` and `Incoming.wait`."""
        finish(self._works[-1], timeout_s)
        return self._tensor


class GlooTransport:
    """One end of a wire on its own group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Take a group of this rank and its peer."""
        self._group = group
        self._peer = 1 - group.rank()
        self._byte, self._heard = torch.zeros(2, 1, dtype=torch.uint8, device="cpu")  # what goes behind, and where it comes

    def send(self, tensor: torch.Tensor, tag: int) -> GlooTransfer:
        """As `Transport.send`. The group is called directly: `dist.isend` checks its arguments for longer than gloo takes."""
        return self._start(self._group.send, tensor, self._byte, tag)

    def receive(self, kind: TensorMeta, tag: int) -> GlooTransfer:
        """As `Transport.receive`."""
        return self.receive_into(torch.empty(kind.shape, dtype=kind.dtype, device="cpu"), tag)

    def receive_into(self, buffer: torch.Tensor, tag: int) -> GlooTransfer:
        """As `receive`, into memory that is there."""
        return self._start(self._group.recv, buffer, self._heard, tag)

    def _start(
        self, transfer: Callable[[list[torch.Tensor], int, int], dist.Work], tensor: torch.Tensor, behind: torch.Tensor, tag: int
    ) -> GlooTransfer:
        try:
            works = [transfer([tensor], self._peer, tag)]
            if tensor.nbytes >= LARGE_BYTES:
                works.append(transfer([behind], self._peer, BEHIND + tag))
        except RuntimeError as error:
            raise ConnectionLost(str(error)) from error
        return GlooTransfer(works, tensor)
