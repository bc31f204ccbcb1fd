"""What blocks and transfers cost in recorded steps, and the plan's Problem with these costs in place of its own.

A block's time is the sum of its parts'. A transfer's time on its link is from when it was sent, or by the plan's costs had the link
for itself, to when it was taken; it is known where the op that took it was there before it, else that is the most it can be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from schedc.analysis.comparison.link_model import on_links
from schedc.analysis.comparison.spread import Spread, spread_of
from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.analysis.comparison.step_times import StepTimes
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.problem import Link, Problem, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """The blocks of one kind of one stage, over all recorded steps and microbatches."""

    stage: int
    kind: Kind
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


def block_costs(problem: Problem, timeline: Timeline, steps: Sequence[StepTimes]) -> tuple[BlockCost, ...]:
    """The costs of each stage's kinds of blocks that were run."""
    found_ns: dict[tuple[int, Kind], list[int]] = {}
    planned_ns: dict[tuple[int, Kind], list[int]] = {}
    for times in steps:
        of_block: dict[tuple[int, Kind, int], int] = {}
        for op, begun_ns, ended_ns in zip(timeline.named_ops, times.begun_ns, times.ended_ns, strict=True):
            block = op.stage, op.kind, op.microbatch
            of_block[block] = of_block.get(block, 0) + ended_ns - begun_ns
        for (stage, kind, microbatch), time_ns in of_block.items():
            found_ns.setdefault((stage, kind), []).append(time_ns)
            planned_ns.setdefault((stage, kind), []).append(problem.duration_ns(kind, stage, microbatch))
    result = []
    for (stage, kind), values_ns in sorted(found_ns.items()):
        measured = spread_of(values_ns)
        assert measured is not None
        planned = round(median(planned_ns[stage, kind]))
        result.append(BlockCost(stage=stage, kind=kind, planned_ns=planned, measured=measured))
    return tuple(result)


def link_costs(timeline: Timeline, steps: Sequence[StepTimes]) -> tuple[LinkTransfers, ...]:
    """The costs of each link that transfers crossed, by source and destination."""
    planned: dict[tuple[int, int], list[_Passage]] = {}
    known: dict[tuple[int, int], list[_Passage]] = {}
    bounds: dict[tuple[int, int], list[_Passage]] = {}
    for times in steps:
        for transfer, on_link in on_links(timeline, times).items():
            link, (_, taken_ns) = timeline.links[transfer], times.moved(transfer) or (0, 0)
            occupancy_ns = on_link.left_ns - on_link.start_ns
            planned_ns = int(timeline.arrival_ns[transfer]) - int(timeline.transfer_start_ns[transfer])
            planned.setdefault(link, []).append(_Passage(planned_ns, occupancy_ns))
            side = known if transfer in times.awaited else bounds
            side.setdefault(link, []).append(_Passage(max(0, taken_ns - on_link.start_ns), occupancy_ns))
    return tuple(_link_cost(pair, planned[pair], known.get(pair, []), bounds.get(pair, [])) for pair in sorted(planned))


class _Passage(NamedTuple):
    """One message over a link."""

    time_ns: int
    occupancy_ns: int
    """In the plan."""

    @property
    def latency_ns(self) -> int:
        return self.time_ns - self.occupancy_ns


def _link_cost(
    pair: tuple[int, int], planned: Sequence[_Passage], known: Sequence[_Passage], bounds: Sequence[_Passage]
) -> LinkTransfers:
    typical = round(median(passage.latency_ns for passage in planned))
    share = 1.0
    if known:
        latency_ns = round(median(passage.latency_ns for passage in known))
    else:
        latency_ns = min([typical, *(passage.latency_ns for passage in bounds)])
    if latency_ns < 0:
        shares = [passage.time_ns / passage.occupancy_ns for passage in known or bounds if passage.occupancy_ns]
        latency_ns, share = 0, min(1.0, median(shares) if known else min(shares))
    return LinkTransfers(
        source=pair[0],
        destination=pair[1],
        planned_ns=round(median(passage.time_ns for passage in planned)),
        measured=spread_of(passage.time_ns for passage in known),
        at_most_ns=min((passage.time_ns for passage in bounds), default=None),
        latency_ns=latency_ns,
        occupancy_share=share,
    )


def measured_problem(problem: Problem, blocks: Sequence[BlockCost], links: Sequence[LinkTransfers]) -> Problem:
    """The problem with measured costs: one duration for all microbatches of a block, sizes and limits as they are.

    Of the backwards a stage may have run B and W apart, or BW, or both; what it has not run is the plan's, scaled as that which it
    has. Stages of two paths with the same weights are measured together, weighted by their microbatches, as a profile has one
    entry for both. Links keep their occupancy, as messages of one size do not tell it from latency: what they took more or less is
    put on the latency, and only where that would fall below nothing on the occupancy.
    """
    found = {(block.stage, block.kind): block.measured for block in blocks}
    stages = list(problem.stages)
    for path in problem.paths:
        for place, stage in enumerate(path):
            twins = [other[place] for other in problem.paths if len(other) == len(path)]
            times_ns = {}
            for kind in Kind:
                spreads = [found[twin, kind] for twin in twins if (twin, kind) in found]
                if spreads:
                    total = sum(spread.count for spread in spreads)
                    times_ns[kind] = round(sum(spread.median_ns * spread.count for spread in spreads) / total)
            stages[stage] = _measured_stage(problem.stages[stage], times_ns)
    costs = {(cost.source, cost.destination): cost for cost in links}
    measured = (
        _measured_link(link, cost) if (cost := costs.get((link.source, link.destination))) is not None else link
        for link in problem.links
    )
    return replace(problem, stages=tuple(stages), links=tuple(measured))


def _measured_stage(stage: Stage, times_ns: Mapping[Kind, int]) -> Stage:
    planned_ns = {kind: round(median(stage.durations_ns(kind))) for kind in Kind}
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
    return replace(
        stage,
        forward_ns=(made[Kind.F],),
        backward_input_ns=(made[Kind.B],),
        backward_weight_ns=(made[Kind.W],),
        backward_ns=(made[Kind.BW],),
    )


def _measured_link(link: Link, cost: LinkTransfers) -> Link:
    transfer_ns, bytes_per_second = link.transfer_ns, link.bytes_per_second
    if transfer_ns is not None:
        transfer_ns = round(transfer_ns * cost.occupancy_share)
    elif bytes_per_second is not None:
        bytes_per_second = round(bytes_per_second / cost.occupancy_share) if cost.occupancy_share else None
    return replace(link, latency_ns=cost.latency_ns, transfer_ns=transfer_ns, bytes_per_second=bytes_per_second)
