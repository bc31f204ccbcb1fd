"""Which of their channels any two ranks use, and which have failed: imported where one channel can take over from another."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from schedc.runtime.common.failure import TransferFailed

if TYPE_CHECKING:
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire
    from schedc.runtime.transports.base import Channel, ChannelsOf

__all__ = ["Takeover", "ranks_of"]


class _Failure(NamedTuple):
    """What a rank has found."""

    ranks: tuple[int, int]
    """The wires between these two have failed, ascending."""
    message: str
    """What to raise if no other channel is left."""
    reason: str


class Takeover:
    """The channels of all ranks, as one of them knows them."""

    def __init__(self, groups: Groups, channels: ChannelsOf) -> None:
        """Take the ways to connect two ranks; all begin with the first."""
        self._groups = groups
        self._channels = channels
        self._in_use: Counter[tuple[int, int]] = Counter()
        self._failures: list[_Failure] = []

    @property
    def good(self) -> bool:
        """Whether this rank has found no failure since all ranks last exchanged them."""
        return not self._failures

    @property
    def found(self) -> list[str]:
        """The failures that this rank has found since then, as messages."""
        return [failure.message for failure in self._failures]

    def channel(self, wire: Wire) -> Channel:
        """The channel that a wire uses."""
        return self._channels(wire.source, wire.destination)[self._in_use[ranks_of(wire)]]

    def has_failed(self, wire: Wire) -> bool:
        """Whether this rank has found that a wire between the same two ranks has failed."""
        return any(failure.ranks == ranks_of(wire) for failure in self._failures)

    def note(self, wire: Wire, message: str, error: Exception) -> None:
        """Take note that a wire has failed: what to raise if no other channel is left, and what has been found."""
        self._failures.append(_Failure(ranks_of(wire), message, str(error).partition("\n")[0]))

    def change(self) -> list[tuple[int, int]]:
        """Choose other channels for what has failed; all ranks do this together. Warns on the ranks that are concerned.

        Returns:
            The ranks, ascending, between which wires are to be connected anew.

        Raises:
            TransferFailed: no other channel is left, or a rank has ended.
        """
        found: dict[tuple[int, int], _Failure] = {}
        for failures in self._groups.exchange(self._failures):
            for failure in failures:
                found.setdefault(failure.ranks, failure)
        self._failures = []
        changed: list[str] = []
        for ranks, failure in found.items():
            names = [channel.name for channel in self._channels(*ranks)]
            used = self._in_use[ranks]
            if used + 1 < len(names):
                self._in_use[ranks] += 1
                changed.append(
                    f"between ranks {ranks[0]} and {ranks[1]}, {names[used]} has failed ({failure.reason});"
                    f" {names[used + 1]} carries what they exchange from now on"
                    if self._groups.rank in ranks
                    else ""
                )
        if not changed:
            raise TransferFailed(next(iter(found.values())).message)
        if any(changed):
            warnings.warn(f"rank {self._groups.rank}: {'; '.join(filter(None, changed))}", RuntimeWarning, stacklevel=2)
        return list(found)


def ranks_of(wire: Wire) -> tuple[int, int]:
    """The ranks of a wire, ascending."""
    return min(wire.source, wire.destination), max(wire.source, wire.destination)
