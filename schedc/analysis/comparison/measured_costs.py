"""What blocks and transfers cost in recorded steps, and the plan's Problem with these costs in place of its own.

A block's time is the sum of its parts'. A transfer's time on its link is from when it was sent, or by the plan's costs had the link
for itself, to when it was taken; it is known where the op that took it was there before it, else that is the most it can be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from schedc.analysis.comparison.steps import transfers_of_links
from schedc.analysis.comparison.times import Spread, spread_of
from schedc.ir import BLOCKS, DURATIONS, Kind, Link, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.analysis.comparison.steps import Step
    from schedc.analysis.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """The blocks of one kind of one stage, of one slice if there are some, over all recorded steps and microbatches."""

    stage: int
    kind: Kind
    slice: int = 0
    planned_ns: int
    """Where the microbatches differ, the median."""
    measured: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTransfers:
    """The transfers of one link, over all recorded steps."""

    source: int
    destination: int
    planned_ns: int
    """Occupancy and latency of one message; where messages differ, the median."""
    measured: Spread | None
    """From having the link to taken, of the transfers that were awaited; None: none was."""
    at_most_ns: int | None
    """The least of the bounds that the other transfers give; None: there are no others."""
    latency_ns: int
    """What a message takes beyond its occupancy in the plan: the median of those awaited. Where none was, the plan's latency, or
    the most that the bounds leave of it."""
    occupancy_share: float
    """1, or below it where messages take less than their occupancy in the plan: then they take this share of it, and no latency."""


def block_costs(problem: Problem, timeline: Timeline, steps: Sequence[Step]) -> tuple[BlockCost, ...]:
    """The costs of each stage's kinds of blocks that were run."""
    blocks, block_of = np.unique(timeline.ops[:, [1, 0, 2]], axis=0, return_inverse=True)  # by stage, kind, microbatch
    took_ns = [np.bincount(block_of.reshape(-1), step.timeline.ends_ns - step.timeline.starts_ns) for step in steps]
    result = []
    of_slice = blocks[:, 2] % (len(problem.slices) or 1)
    for stage, kind, part in np.unique(np.column_stack([blocks[:, :2], of_slice]), axis=0).tolist():
        of_kind = np.flatnonzero((blocks[:, 0] == stage) & (blocks[:, 1] == kind) & (of_slice == part))
        planned_ns = [problem.duration_ns(Kind(kind), stage, microbatch) for microbatch in blocks[of_kind, 2].tolist()]
        measured = spread_of(int(time_ns) for times_ns in took_ns for time_ns in times_ns[of_kind])
        block = BlockCost(stage=stage, kind=Kind(kind), slice=part, planned_ns=round(median(planned_ns)), measured=measured)
        result.append(block)
    return tuple(result)


def link_costs(timeline: Timeline, steps: Sequence[Step]) -> tuple[LinkTransfers, ...]:
    """The costs of each link that transfers crossed, by source and destination."""
    found = []
    for (source, destination), transfers in transfers_of_links(timeline).items():
        start_ns = np.array([step.timeline.transfer_start_ns[transfers] for step in steps])  # by step and transfer, as all here
        moved = np.array([step.timeline.resource[transfers] >= 0 for step in steps])
        awaited = np.array([step.awaited[transfers] for step in steps])
        if not moved.any():
            continue
        time_ns = np.array([step.taken_ns[transfers] for step in steps]) - start_ns
        in_plan = (each[transfers] for each in (timeline.transfer_start_ns, timeline.transfer_left_ns, timeline.arrival_ns))
        begin_ns, left_ns, arrival_ns = (np.broadcast_to(each, moved.shape) for each in in_plan)
        occupancy_ns, planned_ns, bounds = left_ns - begin_ns, arrival_ns - begin_ns, moved & ~awaited
        known = awaited if awaited.any() else bounds
        if awaited.any():
            latency_ns, share = round(np.median((time_ns - occupancy_ns)[awaited])), 1.0
        else:
            typical_ns = round(np.median((planned_ns - occupancy_ns)[moved]))
            latency_ns, share = min(typical_ns, int((time_ns - occupancy_ns)[bounds].min())), 1.0
        if latency_ns < 0:
            shares = time_ns[known & (occupancy_ns > 0)] / occupancy_ns[known & (occupancy_ns > 0)]
            latency_ns, share = 0, min(1.0, float(np.median(shares) if awaited.any() else shares.min()))
        found.append(
            LinkTransfers(
                source=source,
                destination=destination,
                planned_ns=round(np.median(planned_ns[moved])),
                measured=spread_of(time_ns[awaited].tolist()) if awaited.any() else None,
                at_most_ns=int(time_ns[bounds].min()) if bounds.any() else None,
                latency_ns=latency_ns,
                occupancy_share=share,
            )
        )
    return tuple(found)


def measured_problem(problem: Problem, blocks: Sequence[BlockCost], links: Sequence[LinkTransfers]) -> Problem:
    """The problem with measured costs: one duration for all microbatches of a block, sizes and limits as they are.

    Of microbatches in slices each slice has its own.

    Of the backwards a stage may have run B and W apart, or BW, or both; what it has not run is the plan's, scaled as that which it
    has. Stages of two paths with the same weights are measured together, weighted by their microbatches, as a profile has one
    entry for both. Links keep their occupancy, as messages of one size do not tell it from latency: what they took more or less is
    put on the latency, and only where that would fall below nothing on the occupancy.
    """
    found = {(block.stage, block.kind, block.slice): block.measured for block in blocks}
    stages = list(problem.stages)
    for path in problem.paths:
        for place, stage in enumerate(path):
            twins = [other[place] for other in problem.paths if len(other) == len(path)]
            made: dict[Kind, list[int]] = {kind: [] for kind in BLOCKS}
            for part in range(len(problem.slices) or 1):
                times_ns = {}
                for kind in BLOCKS:
                    spreads = [found[twin, kind, part] for twin in twins if (twin, kind, part) in found]
                    if spreads:
                        total = sum(spread.count for spread in spreads)
                        times_ns[kind] = round(sum(spread.median_ns * spread.count for spread in spreads) / total)
                for kind, time_ns in _measured_blocks(problem, stage, part, times_ns).items():
                    made[kind].append(time_ns)
            again = problem.microbatches // len(problem.slices) if problem.slices else 1
            measured_ns: dict[str, Any] = {DURATIONS[kind]: tuple(times_ns * again) for kind, times_ns in made.items()}
            stages[stage] = replace(problem.stages[stage], **measured_ns)
    costs = {(cost.source, cost.destination): cost for cost in links}
    measured = (
        _measured_link(link, cost) if (cost := costs.get((link.source, link.destination))) is not None else link
        for link in problem.links
    )
    return replace(problem, stages=tuple(stages), links=tuple(measured))


def _measured_blocks(problem: Problem, stage: int, part: int, times_ns: Mapping[Kind, int]) -> dict[Kind, int]:
    """What all kinds of blocks of a stage take, of one slice if there are some; `times_ns`: of those that were run."""
    of_slice = range(part, problem.microbatches, len(problem.slices) or 1)
    planned_ns = {kind: round(median(problem.duration_ns(kind, stage, each) for each in of_slice)) for kind in BLOCKS}
    split_ns = planned_ns[Kind.B] + planned_ns[Kind.W]
    made = dict(times_ns)
    if Kind.BW not in made and Kind.B in made:
        split = made[Kind.B] + made[Kind.W]
        made[Kind.BW] = round(planned_ns[Kind.BW] * split / split_ns) if split_ns else split
    if Kind.B not in made and Kind.BW in made:
        fused_ns = planned_ns[Kind.BW]
        if fused_ns and split_ns:
            made |= {kind: round(planned_ns[kind] * made[Kind.BW] / fused_ns) for kind in (Kind.B, Kind.W)}
        else:
            made |= {Kind.B: made[Kind.BW], Kind.W: 0}
    return made


def _measured_link(link: Link, cost: LinkTransfers) -> Link:
    transfer_ns, bytes_per_second = link.transfer_ns, link.bytes_per_second
    if transfer_ns is not None:
        transfer_ns = round(transfer_ns * cost.occupancy_share)
    elif bytes_per_second is not None:
        bytes_per_second = round(bytes_per_second / cost.occupancy_share) if cost.occupancy_share else None
    return replace(link, latency_ns=cost.latency_ns, transfer_ns=transfer_ns, bytes_per_second=bytes_per_second)
