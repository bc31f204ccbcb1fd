"""Whether messages of training are under way from this rank, for what goes over the same links when they are idle.

Only what has such traffic imports it (layers that migrate): it puts a `TrafficGate` around the senders of a pipe.
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


class TrafficGate:
    """Open while no message of training is under way from this rank: from when an op hands it over until it is through.

    Messages from device to device do not close it: the host does not know when they are through, and they are not on its network.
    """

    def __init__(self) -> None:
        """Open."""
        self._changed = threading.Condition()
        self._under_way = 0

    def watch(self, senders: Collection[Sender]) -> None:
        """Let the messages of these senders close the gate, between two steps; again where a plan or a channel has changed them."""
        for sender in senders:
            if sender.ends.settle is None and not isinstance(sender.ends.data, _Watched):
                sender.ends = sender.ends._replace(data=_Watched(sender.ends.data, self))

    def release(self, senders: Collection[Sender]) -> None:
        """Let them be as before, between two steps."""
        for sender in senders:
            if isinstance(sender.ends.data, _Watched):
                sender.ends = sender.ends._replace(data=sender.ends.data.inner)

    def wait(self, limit_s: float) -> bool:
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
        self._gate.count(1)
        through = self._sends.submit(partial(outgoing.wait, FOREVER_S))
        through.add_done_callback(lambda _: self._gate.count(-1))
        return UnderWay(partial(result_of, through))

    def receive(self, kind: TensorMeta, tag: int) -> UnderWay:
        """Nothing comes here."""
        raise NotImplementedError
