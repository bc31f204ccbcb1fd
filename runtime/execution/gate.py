"""Whether messages of training are under way from this rank, for what goes over the same links when they are idle.

Only what has such traffic imports it: layers that migrate, and files of checkpoints, which may go to another machine. A pipe has
one `TrafficGate` for both, around its senders from the first of them on; while nothing uses it, messages go as before.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from schedc.runtime.transports.base import Outgoing, Transport, UnderWay
from schedc.runtime.transports.gloo import FOREVER_S
from schedc.runtime.transports.helpers import SerialExecutor, result_of

if TYPE_CHECKING:
    from collections.abc import Collection

    import torch

    from schedc.runtime.common.boundary import TensorMeta
    from schedc.runtime.execution.channels import Sender

PATIENCE_S = 1.0
"""What has waited this long for the gate goes in any case, so that a rank that always sends does not stop it."""


class TrafficGate:
    """Open while no message of training is under way from this rank: from when an op hands it over until it is through.

    Messages from device to device do not close it: the host does not know when they are through, and they are not on its network.
    """

    def __init__(self) -> None:
        """Open; nothing uses it."""
        self._changed = threading.Condition()
        self._under_way = 0
        self.users = 0
        """How many wait at it again and again; only with some do messages close it."""

    def watch(self, senders: Collection[Sender]) -> None:
        """Let the messages of these senders close it, between two steps; again where a plan or a channel has changed them."""
        for sender in senders:
            if sender.ends.settle is None and not isinstance(sender.ends.data, _Watched):
                sender.ends = sender.ends._replace(data=_Watched(sender.ends.data, self))

    def use(self, more: int) -> None:
        """Count users that begin to use it, or, below 0, that have ended."""
        with self._changed:
            self.users += more

    def wait(self, limit_s: float = PATIENCE_S) -> bool:
        """Wait until it is open, in another thread than the step's; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, limit_s)

    def count(self, more: int) -> None:
        """So many more messages are under way."""
        with self._changed:
            self._under_way += more
            self._changed.notify_all()


class _Watched:
    """The sending end of a wire for its tensors; a thread waits until each is through, in the order in which they are sent."""

    def __init__(self, inner: Transport, gate: TrafficGate) -> None:
        self.inner = inner
        self._gate = gate
        self._sends = SerialExecutor()

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """As `Transport.send`."""
        outgoing = self.inner.send(tensor, tag)
        if not self._gate.users:
            return outgoing
        self._gate.count(1)
        through = self._sends.submit(partial(outgoing.wait, FOREVER_S))
        through.add_done_callback(lambda _: self._gate.count(-1))
        return UnderWay(partial(result_of, through))

    def receive(self, kind: TensorMeta, tag: int) -> UnderWay:
        """Nothing comes here."""
        raise NotImplementedError
