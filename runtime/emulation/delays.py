"""What a transfer meets on its way by the cost model: its occupancy of a link or a trunk, then its latency.

`delay_of` takes a wire and the problem's costs; gives the wire's `WireDelay`. `Reservable` is what transfers occupy, one at a time;
an `OwnLink` is occupied from one process only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from schedc.runtime.execution.channels import TAGS

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.runtime.common.program import Message, Wire

__all__ = ["NO_TAG", "OwnLink", "Reservable", "WireDelay", "delay_of", "same_transfer"]

NO_TAG = -1
"""Of the message before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireDelay:
    """What the transfers of one wire meet: `arrival = max(ready, link free) + occupancy + latency` (cost model, "Transfers")."""

    latency_ns: int
    occupancy_ns: tuple[int, ...]
    """Per transfer of the wire."""
    trunk: str | None = None
    """The trunk that they share with other wires; None: the link is this wire's alone."""


class Reservable(Protocol):
    """What one transfer occupies at a time."""

    def reserve(self, ready_ns: int, occupancy_ns: int) -> int:
        """Occupy it from when it is free, not before `ready_ns`; returns when it is free again."""


class OwnLink:
    """A link that nobody else occupies."""

    def __init__(self) -> None:
        """Free from the beginning of time."""
        self._free_ns = 0

    def reserve(self, ready_ns: int, occupancy_ns: int) -> int:
        """As `Reservable.reserve`."""
        self._free_ns = max(ready_ns, self._free_ns) + occupancy_ns
        return self._free_ns


def same_transfer(before: int, tag: int) -> bool:
    """Whether a message belongs to the same transfer as the one before it on its wire, by their tags.

    The tensors of a transfer follow each other and have rising tags; together they occupy the link once.
    """
    return before // TAGS == tag // TAGS and before < tag


def delay_of(problem: Problem, wire: Wire, scale: float = 1.0) -> WireDelay:
    """The wire's delay by the problem's link and message sizes.

    Args:
        problem: whose costs count; its stages are those of the wire's plan.
        wire: one of a plan's.
        scale: what all times are multiplied by.
    """
    link = problem.link(wire.source, wire.destination)
    return WireDelay(
        latency_ns=round(link.latency_ns * scale),
        occupancy_ns=tuple(round(link.occupancy_ns(_size_bytes(problem, message)) * scale) for message in wire.messages),
        trunk=link.trunk,
    )


def _size_bytes(problem: Problem, message: Message) -> int:
    stage = problem.stages[message.boundary]
    return stage.gradient_message_bytes if message.gradient else stage.message_bytes
