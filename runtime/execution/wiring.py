"""The wires of a pipe as one rank has them: of each wire that begins or ends here, the transport, the sender or the receiver.

Wires carry the plan's channels, one for each directed pair of ranks that exchange anything. Here a channel that fails ends the
step; in `failover` another takes over.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from schedc.ir import Plan
from schedc.runtime.common.boundary import BoundaryMeta
from schedc.runtime.common.failure import ConnectionLost, NoAnswer, waiting_failed
from schedc.runtime.common.lateness import WAITS
from schedc.runtime.common.program import Wire, connecting_order, wires_of
from schedc.runtime.execution.channels import Receiver, Sender
from schedc.runtime.transports.gloo import Completion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.transports.base import ChannelsOf, Ends, P2PChannel

ENDING_S = 30.0
"""How long closing waits for all ends."""

Wrap: TypeAlias = "Callable[[Wire, Ends], Ends]"
"""Puts something around them; asked anew for each plan that is laid over them."""


class Wiring:
    """The ends of a plan's wires on this rank, by the wire's number."""

    retries = False
    """Whether a step may have to run again, as a channel has failed that another can take over from; the same on all ranks."""
    patience = 1
    """How many limits to wait for a rank that may have to find out first that a channel has failed."""
    recovery_s = 0.0
    """How long at least, where a step may run again."""

    def __init__(
        self,
        plan: Plan,
        groups: Groups,
        timeout_s: float,
        channels: ChannelsOf,
        wrap: Wrap | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Connect the wires, each over the first of its channels. All ranks of the plan do this together.

        `channels` are the ways to connect two ranks; `wrap` is put around the ends of a wire, on both. No device: the CPU.

        Raises:
            TransferFailed: another rank does not come.
        """
        self._groups = groups
        self.rank = groups.rank
        self.timeout_s = timeout_s
        self._channels = channels
        self._wrap = wrap
        self._device = device
        self._ends: dict[tuple[int, int, str], Ends] = {}
        self.senders: dict[int, Sender] = {}
        self.receivers: dict[int, Receiver] = {}
        WAITS.watch(timeout_s)
        self._watched = True
        try:
            self.move(plan)
        except BaseException:
            self.close()
            raise

    def move(self, plan: Plan, boundaries: BoundaryMeta | None = None) -> None:
        """Lay the wires of a plan over the connections that there are, between two steps. All its ranks do this together.

        Where it has a wire that no plan before it had, the two ranks connect it now. Without `boundaries`, headers go again.

        Raises:
            TransferFailed: another rank does not come.
        """
        self._prepared = False
        self.boundaries = BoundaryMeta() if boundaries is None else boundaries
        self._plan = plan
        wires, rank = wires_of(plan), self.rank
        self._wires = {at: wires[at] for at in connecting_order(wires) if rank in (wires[at].source, wires[at].destination)}
        """Those that begin or end here, by number, in the order in which they are connected."""
        partners = {self._peer(wire) for wire in self._wires.values()}
        everybody = range(self._groups.size)  # where a step may not count, each must know
        self._completion = Completion(self._groups.all, everybody if self.retries else partners)
        self.senders.clear()
        self.receivers.clear()
        self._connect()

    def _connect(self) -> None:
        """Connect what is not connected."""
        for number, wire in self._wires.items():
            if number not in self.senders and number not in self.receivers:
                self._connect_wire(number, wire)

    def _connect_wire(self, number: int, wire: Wire) -> None:
        key = wire.source, wire.destination, wire.name
        if key not in self._ends:
            self._ends[key] = self._channel(wire).connect(wire, self._groups)
        ends = self._ends[key] if self._wrap is None else self._wrap(wire, self._ends[key])
        failing = partial(self._failing, wire)
        if self.rank == wire.source:
            self.senders[number] = Sender(wire, ends, self.boundaries, self.timeout_s, failing)
        else:
            self.receivers[number] = Receiver(wire, ends, self.boundaries, self.timeout_s, failing, self._device, self.patience_s)

    def _channel(self, wire: Wire) -> P2PChannel:
        """What is used now between the ranks of a wire."""
        return self._channels(wire.source, wire.destination)[0]

    def limit(self, timeout_s: float) -> None:
        """From now on wait so long for another rank."""
        self.timeout_s = timeout_s
        for sender in self.senders.values():
            sender.timeout_s = timeout_s
        for receiver in self.receivers.values():
            receiver.timeout_s, receiver.shape_timeout_s = timeout_s, self.patience_s

    def renew(self) -> None:
        """Connect all wires anew, after receives were posted for a step that is not going to run; all ranks do this together.

        Raises:
            TransferFailed: another rank does not come.
        """
        self._close([*self._ends.values()])
        self._ends.clear()
        self.move(self._plan, self.boundaries)

    def prepare(self) -> None:
        """Before a step: be ready for its receives.

        Raises:
            TransferFailed: another rank has ended.
        """
        for receiver in self.receivers.values():
            receiver.begin()
        self._prepared = True

    def begin(self) -> None:
        """Before a step's first op: be ready for what is not known yet, and for its end.

        Raises:
            TransferFailed: another rank has ended.
        """
        self._completion.begin()
        if not self._prepared:
            self.prepare()
        self._prepared = False
        for sender in self.senders.values():
            sender.begin()

    def all_through(self) -> None:
        """After the last op of a step that has a transfer: say so, if the host knows that all are through.

        Raises:
            TransferFailed: another rank has ended.
        """
        if all(ends.settle is None for ends in self._ends.values()):
            self._completion.say(good=self._is_good())

    def finish(self) -> bool:
        """After a step's last op: wait until all transfers are through.

        Returns:
            Whether all ranks have received all. Otherwise the step does not count: `change`, and run it again.

        Raises:
            TransferFailed: another rank has ended, or does not answer.
        """
        for wire in self._wires.values():
            self._settle(wire)
        self._completion.say(good=self._is_good())
        good = self._completion.hear(self.patience_s)
        if good:
            self._flush()
        return good

    def _is_good(self) -> bool:
        """Whether all that this rank has waited for so far has come."""
        return True

    def _settle(self, wire: Wire) -> None:
        """Wait until what the device does for a wire is done."""
        ends = self._ends.get((wire.source, wire.destination, wire.name))
        if ends is not None and ends.settle is not None:
            try:
                ends.settle(self.timeout_s)
            except (ConnectionLost, NoAnswer) as error:
                doing = (
                    f"rank {self.rank} waits for the device to end the transfers of rank {wire.source} to rank"
                    f" {wire.destination} on {wire.name}"
                )
                self._failing(wire, doing, error)

    def _failing(self, wire: Wire, doing: str, error: Exception) -> None:
        """A wire has failed; as `Failing`."""
        raise waiting_failed(doing, error, self.timeout_s, self._peer(wire)) from error

    def change(self) -> None:
        """Put other channels in the place of those that have failed; there are none here."""

    def add_notes(self, error: BaseException) -> None:
        """Say with an error which channels had failed before; here a failure is the error."""

    @property
    def patience_s(self) -> float:
        """How long to wait for what a rank says, which may have found first that a channel has failed, or be late."""
        return max(self.timeout_s * self.patience, self.recovery_s if self.retries else 0)

    def _flush(self) -> None:
        for sender in self.senders.values():
            sender.flush()

    def _peer(self, wire: Wire) -> int:
        return wire.source + wire.destination - self.rank

    def close(self) -> None:
        """Close all ends, together: some end only when others do."""
        if self._watched:
            self._watched = False
            WAITS.leave()
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
