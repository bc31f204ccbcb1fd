"""The wires of a pipe as one rank has them: of each wire that begins or ends here, the transport, the sender or the receiver.

Wires carry the plan's channels, one for each directed pair of ranks that exchange anything.

A channel that fails ends the step, but where another can take over. Then the step runs again (PipeMorph 5.3 repeats the
transfer): no weight has changed yet. The rank that finds the failure gives up both wires to this peer, so that the peer knows, and
runs its other ops with zeros in place of what does not come. By its word at the end of the step (`Completion`) all ranks know that
the step does not count. Then `change` connects the two ranks anew; the caller puts back what the step has changed and runs it
again.

Late is not dead: where a rank has only waited too long, the same channel is connected anew, and another takes its place only if
that waits too long as well while the step runs again.
"""

from __future__ import annotations

import warnings
from collections import Counter
from functools import partial
from itertools import permutations
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from schedc.ir import Plan
from schedc.runtime.common.boundary import BoundaryMeta
from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, waiting_failed
from schedc.runtime.common.program import Wire, connecting_order, wires_of
from schedc.runtime.execution.channels import Receiver, Sender
from schedc.runtime.transports.gloo import Completion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.transports.base import ChannelsOf, Ends

ENDING_S = 30.0
"""How long closing waits for all ends."""

Wrap: TypeAlias = "Callable[[Wire, Ends], Ends]"
"""Puts something around them; asked anew for each plan that is laid over them."""


class _Failure(NamedTuple):
    """What a rank has found."""

    ranks: tuple[int, int]
    """The wires between these two have failed, ascending."""
    message: str
    """What to raise if no other channel is left."""
    reason: str
    late: bool
    """Whether it is only that nothing came in time: the peer may have paused. That the peer then finds the connection closed is a
    consequence."""


class Wiring:
    """The ends of a plan's wires on this rank, by the wire's number."""

    def __init__(
        self,
        plan: Plan,
        groups: Groups,
        timeout_s: float,
        channels: ChannelsOf,
        wrap: Wrap | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Connect the wires, each over the first of its channels that connects. All ranks of the plan do this together.

        Args:
            plan: whose channels they are.
            groups: makes the process groups.
            timeout_s: how long an op waits for another rank.
            channels: the ways to connect two ranks; where there are several, one takes over from another that fails.
            wrap: what is put around the ends of a wire, on both ranks; None: nothing.
            device: where the stages are; None: the CPU.

        Raises:
            TransferFailed: another rank does not come.
        """
        self._groups = groups
        self.rank = groups.rank
        self.timeout_s = timeout_s
        self._channels = channels
        self._wrap = wrap
        self._device = device
        self.retries = any(len(channels(*pair)) > 1 for pair in permutations(range(groups.size), 2))
        """Whether a step may have to run again, as a channel has failed that another can take over from; the same on all ranks."""
        self.patience = 2 if self.retries else 1
        """How many limits to wait for a rank that may have to find out first that a channel has failed."""
        self._in_use: Counter[tuple[int, int]] = Counter()
        """Between which ranks which channel is used now."""
        self._failures: list[_Failure] = []
        """What this rank has found since all ranks last exchanged them."""
        self._renewed: set[tuple[int, int]] = set()
        """Between which ranks the same channel has been connected anew since a step last counted; the same on all ranks."""
        self._ends: dict[tuple[int, int, str], Ends] = {}
        self.senders: dict[int, Sender] = {}
        self.receivers: dict[int, Receiver] = {}
        try:
            self.move(plan)
        except BaseException:
            self.close()
            raise

    def move(self, plan: Plan, boundaries: BoundaryMeta | None = None) -> None:
        """Lay the wires of a plan over the connections that there are, between two steps. All its ranks do this together.

        Where it has a wire that no plan before it had, the two ranks connect it now.

        Args:
            plan: the plan.
            boundaries: what is known of its boundaries; None: nothing, so that its first step begins with headers again.

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
        """Connect what is not connected; where a channel does not connect on both ends, another takes its place."""
        if self.retries:
            self._completion.begin()
        for number, wire in self._wires.items():
            if number not in self.senders and number not in self.receivers:
                try:
                    self._connect_wire(number, wire)
                except (ConnectionLost, NoAnswer) as error:
                    if not self.retries:
                        raise
                    doing = f"rank {self.rank} connects the ranks {wire.source}, {wire.destination}"
                    self._fail(wire, doing, error, late=False)
        if self.retries:
            self._completion.say(good=not self._failures)
            if not self._completion.hear(self._patience_s):
                self.change()

    def _connect_wire(self, number: int, wire: Wire) -> None:
        key = wire.source, wire.destination, wire.name
        if key not in self._ends:
            channel = self._channels(wire.source, wire.destination)[self._in_use[_ranks_of(wire)]]
            self._ends[key] = channel.connect(wire, self._groups)
        ends = self._ends[key] if self._wrap is None else self._wrap(wire, self._ends[key])
        failing = partial(self._failing, wire)
        if self.rank == wire.source:
            self.senders[number] = Sender(wire, ends, self.boundaries, self.timeout_s, failing)
        else:
            self.receivers[number] = Receiver(wire, ends, self.boundaries, self.timeout_s, failing, self._device, self._patience_s)

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

    def all_through(self) -> None:
        """After the last op of a step that has a transfer: say so, if the host knows that all are through.

        Raises:
            TransferFailed: another rank has ended.
        """
        if all(ends.settle is None for ends in self._ends.values()):
            self._completion.say(good=not self._failures)

    def finish(self) -> bool:
        """After a step's last op: wait until all transfers are through.

        Returns:
            Whether all ranks have received all. Otherwise the step does not count: `change`, and run it again.

        Raises:
            TransferFailed: another rank has ended, or does not answer.
        """
        for wire in self._wires.values():
            self._settle(wire)
        self._completion.say(good=not self._failures)
        good = self._completion.hear(self._patience_s)
        if good:
            self._flush()
            self._renewed.clear()
        return good

    def _settle(self, wire: Wire) -> None:
        """Wait until what the device does for a wire is done, unless it has failed."""
        ends = self._ends.get((wire.source, wire.destination, wire.name))
        if ends is not None and ends.settle is not None and not self._has_failed(wire):
            try:
                ends.settle(self.timeout_s)
            except (ConnectionLost, NoAnswer) as error:
                doing = (
                    f"rank {self.rank} waits for the device to end the transfers of rank {wire.source} to rank"
                    f" {wire.destination} on {wire.name}"
                )
                self._failing(wire, doing, error)

    def change(self) -> None:
        """Put other channels in the place of those that have failed, where it `retries`; all ranks of the plan do this together.

        Warns on the ranks that are concerned.

        Raises:
            TransferFailed: there is no other, or a rank has ended.
        """
        for ranks in self._other_channels():
            if self.rank in ranks:
                for number, wire in self._wires.items():
                    if _ranks_of(wire) == ranks:
                        self.senders.pop(number, None)
                        self.receivers.pop(number, None)
                self._close([self._ends.pop(key) for key in [*self._ends] if {*key[:2]} == {*ranks}])
        self._flush()  # what is left has come: its ranks have taken all
        self._connect()

    def _other_channels(self) -> list[tuple[int, int]]:
        """Choose other channels for what has failed; all ranks do this together.

        Returns:
            The ranks, ascending, between which wires are to be connected anew.

        Raises:
            TransferFailed: no other channel is left, or a rank has ended.
        """
        found: dict[tuple[int, int], _Failure] = {}
        for failures in self._groups.exchange(self._failures):
            for failure in failures:
                if failure.late or failure.ranks not in found:
                    found[failure.ranks] = failure
        self._failures = []
        changed: list[str] = []
        for ranks, failure in found.items():
            names = [channel.name for channel in self._channels(*ranks)]
            used, between = self._in_use[ranks], f"between ranks {ranks[0]} and {ranks[1]},"
            if failure.late and ranks not in self._renewed:
                self._renewed.add(ranks)
                said = f"{between} one was late ({failure.reason}); {names[used]} is connected anew, and the step runs again"
            elif used + 1 < len(names):
                self._in_use[ranks] += 1
                said = f"{between} {names[used]} has failed ({failure.reason});"
                said += f" {names[used + 1]} carries what they exchange from now on"
            else:
                continue
            changed.append(said if self.rank in ranks else "")
        if not changed:
            raise TransferFailed(next(iter(found.values())).message)
        if any(changed):
            warnings.warn(f"rank {self.rank}: {'; '.join(filter(None, changed))}", RuntimeWarning, stacklevel=2)
        return list(found)

    def add_notes(self, error: BaseException) -> None:
        """Say with an error which channels had failed before: the ops since then may have worked on zeros."""
        for failure in self._failures:
            error.add_note(f"before that a channel has failed, and zeros came in place of tensors: {failure.message}")

    def _failing(self, wire: Wire, doing: str, error: Exception) -> None:
        """A wire has failed; as `Failing`."""
        if not self.retries:
            raise waiting_failed(doing, error, self.timeout_s, self._peer(wire)) from error
        self._fail(wire, doing, error, late=isinstance(error, NoAnswer))

    def _fail(self, wire: Wire, doing: str, error: Exception, *, late: bool) -> None:
        """Take note that a wire has failed, and let its peer know."""
        if not self._has_failed(wire):
            message = str(waiting_failed(doing, error, self.timeout_s, self._peer(wire)))
            reason = f"no answer in {self.timeout_s:g} s" if late else str(error).partition("\n")[0]
            self._failures.append(_Failure(_ranks_of(wire), message, reason, late))
            for (source, destination, _), ends in self._ends.items():
                if {source, destination} == {wire.source, wire.destination}:
                    ends.give_up()

    def _has_failed(self, wire: Wire) -> bool:
        """Whether this rank has found that a wire between the same two ranks has failed."""
        return any(failure.ranks == _ranks_of(wire) for failure in self._failures)

    @property
    def _patience_s(self) -> float:
        return self.timeout_s * self.patience

    def _flush(self) -> None:
        for sender in self.senders.values():
            sender.flush()

    def _peer(self, wire: Wire) -> int:
        return wire.source + wire.destination - self.rank

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


def _ranks_of(wire: Wire) -> tuple[int, int]:
    """The ranks of a wire, ascending."""
    return min(wire.source, wire.destination), max(wire.source, wire.destination)
