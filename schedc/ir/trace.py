"""The Trace: when every op and transfer of recorded steps happened, on all ranks, on one clock. A recording makes it.

A trace belongs to one plan and repeats the names of its queues, so that it can be drawn without the plan. Times are nanoseconds
from the earliest begin of a recorded step, on rank 0's clock. Sequences per op follow the rank's `compute`, those per transfer
its channels' `transfers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedc.ir.ops import Op
    from schedc.ir.plan import Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """One step of one rank."""

    step: int
    """Its number in the run."""
    step_begin_ns: int
    step_end_ns: int
    """When the step was over for the rank, losses and collectives included."""
    asked_ns: tuple[int, ...]
    """Per op, when the rank was free for it."""
    begun_ns: tuple[int, ...]
    """Per op, when its work began: what it waited for had come."""
    ended_ns: tuple[int, ...]
    channels_ns: tuple[tuple[int | None, ...], ...]
    """Per channel and transfer, when it was handed to the channel where this rank sends, and when an op had taken it where it
    receives, which may be later than it came. None: nothing was transferred (a boundary whose type has no gradient)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """The recorded steps of one rank."""

    rank: int
    clock_offset_ns: int
    """What was added to the rank's own clock; already in all its times."""
    clock_error_ns: int
    """By how much that may be wrong either way: half of the shortest round trip to rank 0."""
    compute: tuple[Op, ...]
    channels: tuple[Channel, ...]
    """As in its plan, but for `post_before`, which a trace does not have."""
    steps: tuple[StepTrace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Recorded steps of a plan: the same steps on every rank, ascending."""

    plan_name: str
    plan_sha256: str
    """Of the plan file's bytes as `schedc compile` writes them."""
    scale: float = 1.0
    """How much slower than the plan's costs the run was made to be (an emulation may be); already taken out of all times."""
    ranks: tuple[RankTrace, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of the recorded steps."""
        return tuple(step.step for step in self.ranks[0].steps) if self.ranks else ()
