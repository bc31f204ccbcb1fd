"""A channel that fails on purpose, as a network card may: on one end or both, before or after its tensor has come."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schedc.runtime.common.failure import ConnectionLost, NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from schedc.runtime.common.boundary import TensorMeta
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire
    from schedc.runtime.transports.base import Ends, Incoming, Outgoing


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong with which calls of a wire's end, counted from 0."""

    send: dict[int, str] = field(default_factory=dict)
    """`raise`: it fails at once. `lose`: nothing is sent from here on, and waits succeed. `late`: it is sent, its wait says that it
    was not. `lost`: it is sent, its wait fails."""
    receive: dict[int, str] = field(default_factory=dict)
    """`raise`: it fails at once. `late`: it comes, but its wait gives up first. `lost`: it comes, and its wait fails."""
    connect: bool = False
    """Whether it does not connect at all."""
    wires: frozenset[tuple[int, int]] | None = None
    """The wires on which this happens, (source, destination); None: all."""
    times: int | None = None
    """After how many connections a wire that is connected again is sound; None: never."""


def faulty(connect: Callable[[Wire, Groups], Ends], faults: Faults) -> Callable[[Wire, Groups], Ends]:
    """A way to connect that fails so."""
    seen = Counter[tuple[int, int, str]]()

    def connected(wire: Wire, groups: Groups) -> Ends:
        ends = connect(wire, groups)
        key = wire.source, wire.destination, wire.name
        if faults.times is not None and seen[key] >= faults.times:
            return ends
        seen[key] += 1
        if faults.wires is not None and (wire.source, wire.destination) not in faults.wires:
            return ends
        if faults.connect:  # not closed, as the peer may be connecting still
            raise ConnectionLost("no way to the other rank")
        return ends._replace(data=_Faulty(ends, faults))

    return connected


class _Gone:
    def wait(self, timeout_s: float) -> None:
        pass


class _Fails:
    def __init__(self, inner: Any, how: str) -> None:
        self._inner = inner
        self._how = how

    def wait(self, timeout_s: float) -> Any:
        if self._how == "late":
            time.sleep(0.05)
            raise NoAnswer("nothing in 0.05 s")
        self._inner.wait(timeout_s)
        raise ConnectionLost("the card is gone")


class _Faulty:
    def __init__(self, ends: Ends, faults: Faults) -> None:
        self._inner = ends.data
        self._faults = faults
        self._sent = 0
        self._silent = False
        self._received = 0

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        how = self._faults.send.get(self._sent)
        self._sent += 1
        if how == "raise":
            raise ConnectionLost("the card is gone")
        self._silent = self._silent or how == "lose"
        if self._silent:
            return _Gone()
        outgoing = self._inner.send(tensor, tag)
        return outgoing if how is None else _Fails(outgoing, how)

    def receive(self, kind: TensorMeta, tag: int) -> Incoming:
        how = self._faults.receive.get(self._received)
        self._received += 1
        if how == "raise":
            raise ConnectionLost("the card is gone")
        incoming = self._inner.receive(kind, tag)
        return incoming if how is None else _Fails(incoming, how)
