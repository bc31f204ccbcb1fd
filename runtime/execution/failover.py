"""Wires of which another channel takes over from one that fails.

Then the step runs again (PipeMorph 5.3 repeats the transfer): no weight has changed yet. The rank that finds the failure gives up
both wires to this peer, so that the peer knows, and runs its other ops with zeros in place of what does not come. By its word at
the end of the step (`Completion`) all ranks know that the step does not count. Then `change` connects the two ranks anew; the
caller puts back what the step has changed and runs it again.

Late is not dead: where a rank has only waited too long, the same channel is connected anew. Another takes its place if that waits
too long as well while the step runs again, and the peer had sent long before: then it is the channel that is slow. A peer that was
slow keeps its channel, and is waited for `RENEWALS` times in a step.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, waiting_failed
from schedc.runtime.execution.wiring import Wiring

if TYPE_CHECKING:
    from schedc.runtime.common.program import Wire
    from schedc.runtime.transports.base import P2PChannel


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
    awaited: tuple[int, int] | None = None
    """The number of the wire and of the transfer that did not come; None: the sending end has found it."""
    found_s: float = 0.0
    """When, in a list that ranks exchange: how long ago."""


_Sent = Mapping[int, Mapping[int, float]]
"""Of a rank's wires by number, how long ago it has sent which transfers."""
RENEWALS = 3
"""How often in a step the same channel is connected anew for a peer that is slow."""


class FailoverWiring(Wiring):
    """As `Wiring`, each wire over the first of its channels that connects."""

    retries = True
    patience = 2

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """As `Wiring`."""
        self._in_use: Counter[tuple[int, int]] = Counter()
        """Between which ranks which channel is used now."""
        self._failures: list[_Failure] = []
        """What this rank has found since all ranks last exchanged them."""
        self._renewed: Counter[tuple[int, int]] = Counter()
        """Between which ranks, and how often, the same channel is connected anew since a step last counted; alike on all ranks."""
        super().__init__(*arguments, **more)

    def _connect(self) -> None:
        """Connect what is not connected; where a channel does not connect on both ends, another takes its place."""
        self._completion.begin()
        for number, wire in self._wires.items():
            if number not in self.senders and number not in self.receivers:
                try:
                    self._connect_wire(number, wire)
                except (ConnectionLost, NoAnswer) as error:
                    doing = f"rank {self.rank} connects the ranks {wire.source}, {wire.destination}"
                    self._fail(wire, doing, error, late=False)
        self._completion.say(good=not self._failures)
        if not self._completion.hear(self.patience_s):
            self.change()

    def _channel(self, wire: Wire) -> P2PChannel:
        return self._channels(wire.source, wire.destination)[self._in_use[_ranks_of(wire)]]

    def finish(self) -> bool:
        """As `Wiring.finish`; where the step does not count, `change`, and run it again."""
        good = super().finish()
        if good:
            self._renewed.clear()
        return good

    def _is_good(self) -> bool:
        return not self._failures

    def _settle(self, wire: Wire) -> None:
        if not self._has_failed(wire):
            super()._settle(wire)

    def change(self) -> None:
        """Put other channels in the place of those that have failed; all ranks of the plan do this together.

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
        now_s = monotonic()
        own = [failure._replace(found_s=now_s - failure.found_s) for failure in self._failures]
        sent = {number: {at: now_s - sent_s for at, sent_s in one.sent_s.items()} for number, one in self.senders.items()}
        said_by_all = self._groups.exchange((own, sent))
        all_sent: _Sent = {number: times for _, wires in said_by_all for number, times in wires.items()}
        slow = set[tuple[int, int]]()
        for failures, _ in said_by_all:
            for failure in failures:
                if failure.late or failure.ranks not in found:
                    found[failure.ranks] = failure
                if self._channel_is_slow(failure, all_sent):
                    slow.add(failure.ranks)
        self._failures = []
        changed: list[str] = []
        for ranks, failure in found.items():
            names = [channel.name for channel in self._channels(*ranks)]
            used, between = self._in_use[ranks], f"between ranks {ranks[0]} and {ranks[1]},"
            if failure.late and self._renewed[ranks] < (1 if ranks in slow else RENEWALS):
                self._renewed[ranks] += 1
                said = f"{between} one was late ({failure.reason}); {names[used]} is connected anew, and the step runs again"
            elif used + 1 < len(names) and (ranks in slow or not failure.late):
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

    def _channel_is_slow(self, failure: _Failure, sent: _Sent) -> bool:
        """Whether what a rank has waited for in vain had been under way for half of that time: its sender was not slow."""
        if not failure.late or failure.awaited is None:
            return False
        wire, transfer = failure.awaited
        return sent.get(wire, {}).get(transfer, -math.inf) > failure.found_s + self.timeout_s / 2

    def add_notes(self, error: BaseException) -> None:
        """Say with an error which channels had failed before: the ops since then may have worked on zeros."""
        for failure in self._failures:
            error.add_note(f"before that a channel has failed, and zeros came in place of tensors: {failure.message}")

    def _failing(self, wire: Wire, doing: str, error: Exception) -> None:
        """A wire has failed; as `Failing`."""
        self._fail(wire, doing, error, late=isinstance(error, NoAnswer))

    def _fail(self, wire: Wire, doing: str, error: Exception, *, late: bool) -> None:
        """Take note that a wire has failed, and let its peer know."""
        if not self._has_failed(wire):
            message = str(waiting_failed(doing, error, self.timeout_s, self._peer(wire)))
            reason = f"no answer in {self.timeout_s:g} s" if late else str(error).partition("\n")[0]
            number = next(number for number, own in self._wires.items() if own is wire)
            receiver = self.receivers.get(number)
            awaited = None if receiver is None else (number, receiver.waited_for)
            self._failures.append(_Failure(_ranks_of(wire), message, reason, late, awaited, monotonic()))
            for (source, destination, _), ends in self._ends.items():
                if {source, destination} == {wire.source, wire.destination}:
                    ends.give_up()

    def _has_failed(self, wire: Wire) -> bool:
        """Whether this rank has found that a wire between the same two ranks has failed."""
        return any(failure.ranks == _ranks_of(wire) for failure in self._failures)


def _ranks_of(wire: Wire) -> tuple[int, int]:
    """The ranks of a wire, ascending."""
    return min(wire.source, wire.destination), max(wire.source, wire.destination)
