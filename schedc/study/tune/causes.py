"""Where a step's time goes, by cause, and so why one candidate is faster than another.

Per device, in the mean of the ranks: what its blocks take, divided by what they do, the time between them, and what comes before
the first block and behind the last. The causes add up to the step. Of layers that were measured, blocks are computing alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from schedc.compile.plans import time_plan
from schedc.costs.efficiency import PHASES, operator_s
from schedc.costs.operators.operator import CollectiveKind
from schedc.ir import DURATIONS, Kind
from schedc.study.tune.replicas import costs_of, whole_costs_of
from schedc.study.tune.sites import rank_devices, ranks_devices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.costs.operators.operator import Operator
    from schedc.ir import Layer, Plan
    from schedc.study.tune.candidates import TuneCandidate, TuneRow
    from schedc.study.tune.problems import CandidateProblem
    from schedc.study.tune.request import TuneRequest
    from schedc.study.tune.sites import RankDevices

COMPUTING, AGAIN, SHARDING, IDLE = "computing", "computing again", "waiting for sharded weights", "idle in the pipeline"
REPLICAS, OPTIMIZER = "gradients and weights of replicas", "optimizer"
TENSOR, CONTEXT, EXPERTS = "tensor parallelism", "context parallelism", "experts' exchange"
CAUSES = (COMPUTING, AGAIN, TENSOR, CONTEXT, EXPERTS, SHARDING, IDLE, REPLICAS, OPTIMIZER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The best beside another candidate that has a plan."""

    row: TuneRow
    """The other's."""
    best_ns: Mapping[str, float]
    """By cause; all of them together are the step."""
    other_ns: Mapping[str, float]

    @property
    def differences_ns(self) -> dict[str, float]:
        """What the other takes more, by cause; the largest first."""
        found = {cause: self.other_ns[cause] - self.best_ns[cause] for cause in CAUSES}
        return dict(sorted(found.items(), key=lambda each: -abs(each[1])))


def causes_ns(request: TuneRequest, candidate: TuneCandidate, made: CandidateProblem, plan: Plan) -> dict[str, float]:
    """Where the step of a candidate's plan goes, whose steps end."""
    timeline, ranks = time_plan(plan), candidate.ranks
    rows, starts, ends = timeline.ops.tolist(), timeline.starts_ns.tolist(), timeline.ends_ns.tolist()
    blocks = Counter((Kind(kind), stage) for kind, stage, _ in {tuple(row[:3]) for row in rows})  # parts of one are one
    first_of = {devices: rank for rank, devices in reversed(list(enumerate(ranks_devices(request.sites, candidate))))}
    of = {
        devices: (costs_of(request, candidate, rank), whole_costs_of(request, candidate, rank).layers)
        for devices, rank in first_of.items()
    }
    found = dict.fromkeys(CAUSES, 0.0)
    for (kind, stage), count in blocks.items():
        first, last = made.layout.layers_of_stage[stage]
        devices = rank_devices(request.sites, candidate, made.layout.rank_of_stage[stage])
        costs, whole = of[devices]
        for at in range(first, last):
            found[SHARDING] += count * (_block_ns(costs.layers[at], kind) - _block_ns(whole[at], kind))
            if candidate.recompute == "full" and kind in (Kind.B, Kind.BW):
                again = costs.layers[at].forward_again_ns or costs.layers[at].forward_ns
                found[AGAIN] += count * again[0]
            if costs.parts and request.file.model.efficiency is None:
                for cause, took_ns in _exchanged_ns(devices, costs.parts[at].operators, kind):
                    found[cause] += count * took_ns
    busy, begin, end = sum(ends) - sum(starts), min(starts), max(ends)
    found[COMPUTING] = busy - sum(found.values())
    found[IDLE] = ranks * (end - begin) - busy
    behind = plan.certificate.makespan_ns - end
    found[OPTIMIZER] = ranks * min(behind, max(made.optimizer_ns)) * (request.loss is None)
    found[REPLICAS] = ranks * (behind + begin) - found[OPTIMIZER]
    return {cause: found[cause] / ranks for cause in CAUSES}


def _block_ns(layer: Layer, kind: Kind) -> int:
    durations_ns: tuple[int, ...] = getattr(layer, DURATIONS[kind])
    return durations_ns[0]


def _exchanged_ns(devices: RankDevices, operators: Sequence[Operator], kind: Kind) -> list[tuple[str, float]]:
    """What collectives add to a layer's operators in a block, by cause; of replicas that differ, as on the first."""
    device, rates = devices.sites[0].device, devices.sites[0].rates
    assert device is not None
    phases = {Kind.F: PHASES[:1], Kind.B: PHASES[1:2], Kind.W: PHASES[2:]}.get(kind, PHASES[1:])
    alone = replace(rates, link=inf, exchange=inf, collective_s=0.0)
    found = []
    for operator in operators:
        for phase in phases:
            work = getattr(operator, phase)
            if work.link_bytes or work.collectives:
                took_s = operator_s(operator, phase, device, rates)
                cause = (
                    CONTEXT if operator.name == "attention" else EXPERTS if work.collective is CollectiveKind.EXCHANGE else TENSOR
                )
                found.append((cause, 1e9 * (took_s - operator_s(operator, phase, device, alone))))
    return found
