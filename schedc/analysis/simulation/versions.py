"""Which weights ops read where steps overlap, and what follows: how many versions a rank holds, and each stage's delay.

A run of steps (`Updates.is_period` is not set) and its Schedule go in. Version k of a stage is what its `U` of step k made, -1 what
it began with. What an op reads follows from the order of its rank alone, by the mode (`Versions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.analysis.simulation.unroll import shown
from schedc.ir import WHOLE, Kind, Versions

if TYPE_CHECKING:
    from schedc.ir import Problem, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a run reads and holds."""

    delays: tuple[int, ...]
    """Per stage, the largest number of updates between the weights that a gradient's forward read and the update that takes it."""
    versions: tuple[int, ...]
    """Per stage, the most versions at once, the newest included."""
    more: tuple[tuple[int, ...], ...]
    """Per rank and op of its order, what versions other than the newest of each stage take from its start on, in bytes."""


def versions_of(problem: Problem, schedule: Schedule) -> Held:
    """What the run reads and holds; of a period, a run of it that shows everything. A schedule that `schedc.verify` accepts.

    Stashed weights stay until the microbatch's last backward has ended. An update takes the place of the newest version, unless a
    microbatch that is under way still reads that.
    """
    updates = problem.updates
    assert updates is not None
    if updates.is_period:
        return versions_of(*shown(problem, schedule))
    stages = len(problem.stages)
    newest, delays, most = [-1] * stages, [0] * stages, [1] * stages
    read: list[dict[int, int]] = [{} for _ in range(stages)]  # per stage, the microbatches under way with what they read
    last_part = {(parts.kind, parts.stage): len(parts.shares) - 1 for parts in schedule.parts}
    more = []
    for order in schedule.orders:
        kept: dict[int, int] = {}  # per stage of the rank, bytes
        taken = []
        ended: tuple[int, int] | None = None
        for kind, stage, number, part in order:
            if ended is not None:
                del read[ended[0]][ended[1]]
                kept[ended[0]] = _kept(read[ended[0]], newest[ended[0]], updates.versions) * problem.stages[ended[0]].version_bytes
                ended = None
            if kind is Kind.U:
                newest[stage] = number
            elif kind is Kind.F and part <= 0:
                step = number // updates.microbatches
                version = newest[stage] if updates.versions is not Versions.TWO_BUFFERED else max(step - 2, -1)
                read[stage][number] = version
                delays[stage] = max(delays[stage], step - 1 - version)
            elif kind in (Kind.W, Kind.BW) and part in (WHOLE, last_part.get((kind, stage))):
                ended = stage, number
            others = _kept(read[stage], newest[stage], updates.versions)
            most[stage] = max(most[stage], 1 + others)
            kept[stage] = others * problem.stages[stage].version_bytes
            taken.append(sum(kept.values()))
        more.append(tuple(taken))
    return Held(delays=tuple(delays), versions=tuple(most), more=tuple(more))


def _kept(read: dict[int, int], newest: int, mode: Versions) -> int:
    """How many versions beside the newest are held: those that microbatches under way read, or the one before."""
    if mode is Versions.BOUNDED:
        return 0
    if mode is Versions.TWO_BUFFERED:
        return int(newest >= 0)
    return len(set(read.values()) - {newest})
