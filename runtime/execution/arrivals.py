"""What has come to a rank, known without waiting for it: a thread waits for the receives of a wire, one after the other.

Activations and gradients on one wire have a thread each, as neither comes in an order with the other.

gloo does not say whether a receive has ended unless someone waits for it, so someone does. A thread runs only while its wire has
receives that are posted; it ends when the last has come, or failed, as all do when the wire is closed.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.runtime.execution.channels import TAGS
from schedc.runtime.transports.base import Ends, Outgoing, Transport, UnderWay
from schedc.runtime.transports.gloo import FOREVER_S
from schedc.runtime.transports.helpers import SerialExecutor, result_of

if TYPE_CHECKING:
    import torch

    from schedc.runtime.common.boundary import TensorMeta
    from schedc.runtime.common.program import Wire
    from schedc.runtime.execution.wiring import Wrap


class Arrivals:
    """The wires of one rank that are watched, and what has come on them."""

    def __init__(self) -> None:
        """None yet."""
        self.changed = threading.Condition()
        """Notified when something has come; held while it is asked what has."""
        self.expired = False
        """Whether the rank has waited as long as it may: who takes what has not come waits no more."""
        self._ends: dict[tuple[int, int, str], _Watched] = {}

    def around(self, wrap: Wrap | None) -> Wrap:
        """For a Wiring: what `wrap` puts around the ends of a wire, and around that the watching.

        Raises:
            Unsupported: tensors come to a device, where the host does not know what has.
        """

        def watched(wire: Wire, ends: Ends) -> Ends:
            inner = ends if wrap is None else wrap(wire, ends)
            if inner.settle is not None:
                raise Unsupported(
                    f"rank {wire.source} sends to rank {wire.destination} from device to device, and the host does not see what has"
                    " come; ranks choose inside a step with stages on the CPU only"
                )
            data = self._ends[_key(wire)] = _Watched(inner.data, self, wire)
            return inner._replace(data=data)

        return watched

    def has_come(self, wire: Wire, at: int) -> bool:
        """Whether all of a transfer has come, whose receives are posted; also if it has failed."""
        return self._ends[_key(wire)].pending[at] == 0


def _key(wire: Wire) -> tuple[int, int, str]:
    return wire.source, wire.destination, wire.name


class _Watched:
    """The end of a wire for its tensors, with tags as channels give them."""

    def __init__(self, inner: Transport, arrivals: Arrivals, wire: Wire) -> None:
        self._inner = inner
        self._arrivals = arrivals
        self._messages = wire.messages
        self._receives = SerialExecutor(), SerialExecutor()
        self.pending: Counter[int] = Counter()
        """By place of the transfer in the wire, how many of its tensors have been asked for and have not come."""

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """As `Transport.send`."""
        return self._inner.send(tensor, tag)

    def receive(self, kind: TensorMeta, tag: int) -> UnderWay:
        """As `Transport.receive`."""
        incoming, at = self._inner.receive(kind, tag), tag // TAGS
        with self._arrivals.changed:
            self.pending[at] += 1
        come = self._receives[self._messages[at].gradient].submit(partial(incoming.wait, FOREVER_S))
        come.add_done_callback(lambda _: self._note(at))  # after it: what counts as come is there at once
        return UnderWay(lambda timeout_s: result_of(come, 0 if self._arrivals.expired else timeout_s))

    def _note(self, at: int) -> None:
        """A tensor has come, or has failed."""
        with self._arrivals.changed:
            self.pending[at] -= 1
            self._arrivals.changed.notify_all()
