"""The wires of a pipe as one rank has them: of each wire that begins or ends here, the transport, the sender or the receiver.

Wires carry the plan's channels, one for each directed pair of ranks that exchange anything.

When a channel fails and another can take its place, the step runs again (PipeMorph 5.3 repeats the transfer): no weight has changed
yet. The rank that finds the failure gives up both wires to this peer, so that the peer knows, and runs its other ops with zeros in
place of what does not come. By its word at the end of the step (`schedc.runtime.execution.agreement`) all ranks know that the step
does not count. Then `change` connects the two ranks anew; the caller puts back what the step has changed and runs it again.
"""

from __future__ import annotations

from functools import partial
from itertools import permutations
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from schedc.runtime.common.failure import ConnectionLost, NoAnswer, waiting_failed
from schedc.runtime.common.program import connecting_order, wires_of
from schedc.runtime.execution.agreement import Agreement
from schedc.runtime.execution.channels import Boundaries, Receiver, Sender
from schedc.runtime.transports.base import only
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from schedc.ir.plan import Plan
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire
    from schedc.runtime.execution.takeover import Takeover
    from schedc.runtime.transports.base import ChannelsOf, Ends

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
        channels: ChannelsOf | None = None,
        wrap: Wrap = bare,
        device: torch.device | None = None,
    ) -> None:
        """Connect the wires. All ranks of the plan do this together.

        Args:
            plan: whose channels they are.
            groups: makes the process groups.
            timeout_s: how long an op waits for another rank.
            channels: the ways to connect two ranks; None: gloo.
            wrap: what is put around the ends of a wire, on both ranks.
            device: where the stages are; None: the CPU.

        Raises:
            TransferFailed: another rank does not come.
        """
        self._groups = groups
        self._timeout_s = timeout_s
        self._channels = only(connect_gloo) if channels is None else channels
        self._wrap = wrap
        self._device = device
        self._ends: dict[tuple[int, int, str], Ends] = {}
        self.senders: dict[int, Sender] = {}
        self.receivers: dict[int, Receiver] = {}
        self.retries = any(len(self._channels(*pair)) > 1 for pair in permutations(range(groups.size), 2))
        """Whether there is a channel that another can take over from; the same on all ranks."""
        self._patience_s = timeout_s * (2 if self.retries else 1)
        """How long to wait for a rank that may have to find out first that a channel has failed."""
        self._takeover: Takeover | None = None
        if self.retries:
            from schedc.runtime.execution.takeover import Takeover

            self._takeover = Takeover(groups, self._channels)
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
        self._lay(plan, self._boundaries if keep_shapes else Boundaries())

    def _lay(self, plan: Plan, boundaries: Boundaries) -> None:
        self._boundaries = boundaries
        self._wires = wires_of(plan)
        rank = self._groups.rank
        near = {self._peer(wire) for wire in self._wires if rank in (wire.source, wire.destination)}
        peers = set(range(self._groups.size)) - {rank} if self.retries else near
        self._agreement = Agreement(self._groups.all, rank, sorted(peers))
        self.senders.clear()
        self.receivers.clear()
        self._connect()

    def _connect(self) -> None:
        """Connect what is not connected; where a channel does not connect on both ends, another takes its place."""
        rank = self._groups.rank
        order = connecting_order(self._wires)
        if self.retries:
            self._agreement.begin()
        for number in order:
            wire = self._wires[number]
            if rank not in (wire.source, wire.destination) or number in self.senders or number in self.receivers:
                continue
            key = wire.source, wire.destination, wire.name
            if key not in self._ends:
                takeover = self._takeover
                channel = self._channels(wire.source, wire.destination)[0] if takeover is None else takeover.channel(wire)
                try:
                    self._ends[key] = channel.connect(wire, self._groups)
                except (ConnectionLost, NoAnswer) as error:
                    if takeover is None:
                        raise
                    self._failing(wire, f"rank {rank} connects the ranks {wire.source}, {wire.destination}", error)
                    continue
            ends = self._wrap(wire, self._ends[key])
            failing = partial(self._failing, wire)
            if rank == wire.source:
                self.senders[number] = Sender(wire, ends, self._boundaries, self._timeout_s, failing)
            else:
                self.receivers[number] = Receiver(
                    wire, ends, self._boundaries, self._timeout_s, failing, self._device, self._patience_s
                )
        if self.retries:
            self._agreement.say(good=self._good())
            if not self._agreement.hear(self._patience_s):
                self.change()

    def begin(self) -> None:
        """Before a step's first op: be ready for what is not known yet, and for its end.

        Raises:
            TransferFailed: another rank has ended.
        """
        self._agreement.begin()
        for receiver in self.receivers.values():
            receiver.begin()

    def all_through(self) -> None:
        """After the last op of a step that has a transfer: say so, if the host knows that all are through.

        Raises:
            TransferFailed: another rank has ended.
        """
        if all(ends.settle is None for ends in self._ends.values()):
            self._agreement.say(good=self._good())

    def finish(self) -> bool:
        """After a step's last op: wait until all transfers are through.

        Returns:
            Whether all ranks have received all. Otherwise the step does not count: `change`, and run it again.

        Raises:
            TransferFailed: another rank has ended, or does not answer.
        """
        rank = self._groups.rank
        for number, wire in enumerate(self._wires):
            if number in self.senders or number in self.receivers:
                settle = self._ends[wire.source, wire.destination, wire.name].settle
                if settle is not None and not (self._takeover is not None and self._takeover.has_failed(wire)):
                    try:
                        settle(self._timeout_s)
                    except (ConnectionLost, NoAnswer) as error:
                        doing = (
                            f"rank {rank} waits for the device to end the transfers of rank {wire.source} to rank"
                            f" {wire.destination} on {wire.name}"
                        )
                        self._failing(wire, doing, error)
        self._agreement.say(good=self._good())
        good = self._agreement.hear(self._patience_s)
        if good:
            self._flush()
        return good

    def change(self) -> None:
        """Put other channels in the place of those that have failed; all ranks of the plan do this together.

        Raises:
            TransferFailed: there is no other, or a rank has ended.
        """
        assert self._takeover is not None
        for ranks in self._takeover.change():
            if self._groups.rank in ranks:
                self._end(ranks)
        self._flush()  # what is left has come: its ranks have taken all
        self._connect()

    def add_notes(self, error: BaseException) -> None:
        """Say with an error which channels had failed before: the ops since then may have worked on zeros."""
        for found in () if self._takeover is None else self._takeover.found:
            error.add_note(f"before that a channel has failed, and zeros came in place of tensors: {found}")

    def _flush(self) -> None:
        for sender in self.senders.values():
            sender.flush()

    def _failing(self, wire: Wire, doing: str, error: Exception) -> None:
        """Take note that a wire has failed, and let its peer know; as `Failing`."""
        if self._takeover is None:
            raise waiting_failed(doing, error, self._timeout_s, self._peer(wire)) from error
        if not self._takeover.has_failed(wire):
            self._takeover.note(wire, str(waiting_failed(doing, error, self._timeout_s, self._peer(wire))), error)
            for (source, destination, _), ends in self._ends.items():
                if {source, destination} == {wire.source, wire.destination}:
                    ends.give_up()

    def _good(self) -> bool:
        return self._takeover is None or self._takeover.good

    def _peer(self, wire: Wire) -> int:
        return wire.source + wire.destination - self._groups.rank

    def _end(self, ranks: tuple[int, int]) -> None:
        """Close the wires between two ranks."""
        for number, wire in enumerate(self._wires):
            if {wire.source, wire.destination} == {*ranks}:
                self.senders.pop(number, None)
                self.receivers.pop(number, None)
        keys = [key for key in self._ends if {*key[:2]} == {*ranks}]
        self._close([self._ends.pop(key) for key in keys])

    def close(self) -> None:
        """Close all ends, together: some end only when others do."""
        self._close(list(self._ends.values()))
        self._ends.clear()
        self.senders.clear()
        self.receivers.clear()

    def _close(self, all_ends: Sequence[Ends]) -> None:
        for ends in all_ends:
            ends.close()
        until_s = monotonic() + ENDING_S
        for ends in all_ends:
            ends.ended(max(0.0, until_s - monotonic()))
