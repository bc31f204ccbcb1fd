"""The wires of a pipe as one rank has them: of each wire that begins or ends here, the transport, the sender or the receiver.

Wires stand for the plan's channels, one for each directed pair of ranks that exchange anything.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from schedc.runtime.common.failure import ConnectionLost, NoAnswer, waiting_failed
from schedc.runtime.common.program import connecting_order, wires_of
from schedc.runtime.execution.channels import Boundaries, Receiver, Sender
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.plan import Plan
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire
    from schedc.runtime.transports.base import Connect, Ends

__all__ = ["Wiring", "Wrap", "bare"]

ENDING_S = 30.0
"""How long closing waits for all ends."""

Wrap: TypeAlias = "Callable[[Wire, Ends], Ends]"
"""Puts something around them; asked anew for each plan that is laid over them."""


def bare(wire: Wire, ends: Ends) -> Ends:
    """The ends with nothing around them."""
    return ends


class Wiring:
    """The ends of a plan's wires on this rank, by the wire's number."""

    def __init__(
        self,
        plan: Plan,
        groups: Groups,
        timeout_s: float,
        connect: Connect = connect_gloo,
        wrap: Wrap = bare,
    ) -> None:
        """Connect the wires. All ranks of the plan do this together.

        Args:
            plan: whose channels they are.
            groups: makes the process groups.
            timeout_s: how long an op waits for another rank.
            connect: makes the ends of one wire; called on both of its ranks.
            wrap: what is put around them, on both.

        Raises:
            TransferFailed: another rank does not come.
        """
        self._groups = groups
        self._timeout_s = timeout_s
        self._connect = connect
        self._wrap = wrap
        self._ends: dict[tuple[int, int, str], Ends] = {}
        self.senders: dict[int, Sender] = {}
        self.receivers: dict[int, Receiver] = {}
        try:
            self._lay(plan, Boundaries())
        except BaseException:
            self.close()
            raise

    def move(self, plan: Plan, *, keep_shapes: bool) -> None:
        """Lay the wires of another plan over the same connections, between two steps. All ranks of the plan do this together.

        Where the other plan has a wire that this one has not, its two ranks connect it now.

        Args:
            plan: the other plan.
            keep_shapes: whether what is known of the boundaries holds for it; else its first step begins with headers again.

        Raises:
            TransferFailed: another rank does not come.
        """
        self.senders.clear()
        self.receivers.clear()
        self._lay(plan, self._boundaries if keep_shapes else Boundaries())

    def _lay(self, plan: Plan, boundaries: Boundaries) -> None:
        self._boundaries = boundaries
        rank = self._groups.rank
        wires = wires_of(plan)
        for number in connecting_order(wires):
            wire = wires[number]
            if rank in (wire.source, wire.destination):
                key = wire.source, wire.destination, wire.name
                if key not in self._ends:
                    self._ends[key] = self._connect(wire, self._groups)
                ends = self._wrap(wire, self._ends[key])
                if rank == wire.source:
                    self.senders[number] = Sender(wire, ends, boundaries, self._timeout_s)
                else:
                    self.receivers[number] = Receiver(wire, ends, boundaries, self._timeout_s)

    def begin(self) -> None:
        """Before a step's first op: be ready for what is not known yet, and for its end.

        Raises:
            TransferFailed: another rank has ended.
        """
        for sender in self.senders.values():
            sender.begin()
        for receiver in self.receivers.values():
            receiver.begin()

    def finish(self) -> None:
        """After a step's last op: wait until all transfers are through.

        Raises:
            TransferFailed: another rank has ended, or does not answer.
        """
        for sender in self.senders.values():
            sender.flush()
        for receiver in self.receivers.values():
            receiver.finish()
        rank = self._groups.rank
        for (source, destination, name), ends in self._ends.items():
            try:
                ends.settle(self._timeout_s)
            except (ConnectionLost, NoAnswer) as error:
                doing = f"rank {rank} waits for the device to end the transfers of rank {source} to rank {destination} on {name}"
                peer = destination if rank == source else source
                raise waiting_failed(doing, error, self._timeout_s, peer) from error

    def close(self) -> None:
        """Close all ends, together: some end only when others do."""
        for ends in self._ends.values():
            ends.close()
        until_s = monotonic() + ENDING_S
        for ends in self._ends.values():
            ends.ended(max(0.0, until_s - monotonic()))
        self._ends.clear()
        self.senders.clear()
        self.receivers.clear()
