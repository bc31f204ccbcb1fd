"""The wires of a pipe as one rank has them: of each wire that begins or ends here, the transport, the sender or the receiver.

Wires stand for the plan's channels, one for each directed pair of ranks that exchange anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from schedc.runtime.channels import Boundaries, Receiver, Sender
from schedc.runtime.program import wires_of
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.runtime.groups import Groups
    from schedc.runtime.program import Wire
    from schedc.runtime.transports.base import Ends

__all__ = ["Connect", "Wiring"]

Connect: TypeAlias = "Callable[[Wire, Groups], Ends]"
"""Makes the ends of one wire on one of its ranks."""


class Wiring:
    """The ends of the plan's wires on this rank, by the wire's number."""

    def __init__(self, plan: Plan, groups: Groups, timeout_s: float, connect: Connect = connect_gloo) -> None:
        """Connect the wires. All ranks of the plan do this together.

        Args:
            plan: whose channels they are.
            groups: makes the process groups.
            timeout_s: how long an op waits for another rank.
            connect: makes the ends of one wire; called on both of its ranks.

        Raises:
            TransferFailed: another rank does not come.
        """
        boundaries = Boundaries()
        self.senders: dict[int, Sender] = {}
        self.receivers: dict[int, Receiver] = {}
        for number, wire in enumerate(wires_of(plan)):
            if groups.rank in (wire.source, wire.destination):
                ends = connect(wire, groups)
                if groups.rank == wire.source:
                    self.senders[number] = Sender(wire, ends, boundaries, timeout_s)
                else:
                    self.receivers[number] = Receiver(wire, ends, boundaries, timeout_s)

    def begin(self) -> None:
        """Before a step's first op: be ready for what is not known yet."""
        for receiver in self.receivers.values():
            receiver.introduce()

    def finish(self) -> None:
        """After a step's last op: wait until all is sent."""
        for sender in self.senders.values():
            sender.flush()

    def close(self) -> None:
        """Let go of all ends."""
        self.senders.clear()
        self.receivers.clear()
