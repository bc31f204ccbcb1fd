"""DynPipe's planner, section IV.C, equations 4–7 and Algorithm 1: a rival of our own, with an estimate in place of a simulation.

Takes a Workload, whose ranks are DynPipe's N identical workers in their order; gives for each number of stages the layers and the
replicas of each stage, and W, its estimate of the time of an update (a minibatch of the paper is a microbatch here). With the
constants of the theory (`schedc.study.loss.convergence`) also how many updates each number of stages needs, and so Algorithm 1's
choice.

The dynamic program is over (layers, stages, replicas of the last stage, workers): W(l, s, r, i) from W(l', s − 1, r', i − r). It is
exact, as W grows with the W that it is made of. What the paper leaves open, and where it slips:

- Equation 4, case 1, halves the sum c + p₁ + p₂, also where p₁ alone is longer: one worker cannot compute p₁ in less. With c = 0
  all cuts with p₂ ≤ p₁ have the same W: equation 5 cannot tell a balanced partition from one with all layers but one in the first
  stage. By default W is therefore at least that of the first (merged) stage; with free messages it is then the busiest stage's.
  `as_printed` takes the equation as it is.
- Case 2 is p₂ ≥ c + p₁, so both cases are max(p₂, (c + p₁ + p₂) / 2).
- Equation 6 sums to l where M is meant. Its degree of tensor parallelism is 1 here, as a Workload has one time for each layer, and
  p_All-Gather, of tensor parallelism, is 0. p_All-Reduce is a ring over the stage's workers, twice (r − 1)/r of its gradients.
- Equation 7 has no latency. Here one is added for each direction; the paper's case is a network without.
- Equation 3 has 2 S³ for S = 1, too, where nothing is delayed; without `as_printed` D is (S − 1)², of the proof there.
- Memory is not looked at, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from schedc.errors import Infeasible, InvalidInput, Unsupported
from schedc.study.loss.convergence import staleness, updates_needed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from schedc.ir import Workload
    from schedc.study.loss.convergence import ConvergenceConstants, UpdatesNeeded

    Times = NDArray[np.float64]

GRADIENT_BYTES = 4
"""Of one parameter, in an all-reduce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedStages:
    """A partition with replicas, and its estimated time of an update."""

    layers: tuple[tuple[int, int], ...]
    """Of each stage, [first, last)."""
    replicas: tuple[int, ...]
    """Of each stage: workers that divide each microbatch. The workers of a stage follow those of the one before."""
    period_ns: float
    """W."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesToLoss:
    """What Algorithm 1 says of a number of stages."""

    stages: ReplicatedStages
    needed: UpdatesNeeded
    time_ns: float | None
    """Updates × W; None: no number of updates suffices."""


@dataclass(frozen=True, slots=True)
class _State:
    """For all numbers of layers, with a number of stages, replicas of the last one, and workers."""

    period_ns: Times
    """By the number of layers."""
    cut: NDArray[np.int64]
    """By the number of layers: how many the earlier stages have."""
    replicas: NDArray[np.int64]
    """Likewise, of the stage before the last."""


def replicated_stages(
    workload: Workload,
    count: int,
    *,
    workers: int | None = None,
    most_replicas: int | None = None,
    as_printed: bool = False,
    gradient_bytes: int = GRADIENT_BYTES,
) -> ReplicatedStages:
    """W(S) = min over r of W(M, S, r, N), equation 5, and the partition that has it.

    Args:
        workload: a chain of layers; what crosses from stage to stage is what its layers say.
        count: S, of stages.
        workers: N, the first ones of the workload's; None: all. All of them are used.
        most_replicas: of a stage; None: no limit. With 1 and as many workers as stages: a straight pipeline.
        as_printed: take equation 4 as it is.
        gradient_bytes: of one parameter, in the all-reduce of a stage's replicas.

    Raises:
        InvalidInput: there are fewer layers or workers than stages.
        Unsupported: workers differ in speed, or layers are there twice, for two paths.
        Infeasible: no links connect the workers that such stages would need.
    """
    workers = workload.ranks if workers is None else workers
    most = workers if most_replicas is None else most_replicas
    _check(workload, count, workers, most)
    states: dict[tuple[int, int, int], _State] = {}
    nothing = np.zeros(len(workload.layers) + 1, dtype=np.int64)
    costs = _Costs(workload, gradient_bytes)
    for replicas in range(1, min(most, workers - count + 1) + 1):
        states[1, replicas, replicas] = _State(costs.stage_ns(0, replicas)[0], nothing, nothing)
    for stage in range(2, count + 1):
        for used in range(stage, workers - (count - stage) + 1):
            for replicas in range(1, min(most, used - stage + 1) + 1):
                begin = used - replicas
                before = {r: states[stage - 1, r, begin] for r in range(1, most + 1) if (stage - 1, r, begin) in states}
                if before:
                    states[stage, replicas, used] = _extended(costs, before, replicas, used, as_printed=as_printed)
    layers = len(workload.layers)
    ends = {r: states[count, r, workers] for r in range(1, most + 1) if (count, r, workers) in states}
    last = min(ends, key=lambda r: ends[r].period_ns[layers], default=None)
    if last is None or not np.isfinite(ends[last].period_ns[layers]):
        raise Infeasible(f"{workload.name}: no links connect {workers} ranks as {count} stages in their order would need")
    period_ns, found, used = float(ends[last].period_ns[layers]), list[tuple[tuple[int, int], int]](), workers
    replicas = last
    for stage in range(count, 0, -1):
        state = states[stage, replicas, used]
        cut = int(state.cut[layers])
        found.append(((cut, layers), replicas))
        layers, replicas, used = cut, int(state.replicas[layers]), used - replicas
    found.reverse()
    return ReplicatedStages(layers=tuple(at for at, _ in found), replicas=tuple(r for _, r in found), period_ns=period_ns)


def stages_to_loss(
    workload: Workload,
    constants: ConvergenceConstants,
    *,
    learning_rate: float,
    error: float,
    as_printed: bool = False,
    gradient_bytes: int = GRADIENT_BYTES,
) -> tuple[StagesToLoss, ...]:
    """Algorithm 1: for each number of stages its plan, its updates and their product; the shortest time first, those without last.

    Args:
        workload: as of `replicated_stages`.
        constants: of the loss function, as are `learning_rate` and `error` of `updates_needed`.
        learning_rate: η.
        error: ε.
        as_printed: take equations 3 and 4 as they are.
        gradient_bytes: of one parameter, in the all-reduce of a stage's replicas.

    Raises:
        InvalidInput, Unsupported, Infeasible: as of `replicated_stages` and `updates_needed`.
    """
    rows = []
    for count in range(1, min(workload.ranks, len(workload.layers)) + 1):
        stages = replicated_stages(workload, count, as_printed=as_printed, gradient_bytes=gradient_bytes)
        factor = published_staleness(count) if as_printed else staleness(range(count - 1, -1, -1))
        needed = updates_needed(constants, learning_rate=learning_rate, error=error, staleness_factor=factor)
        time_ns = None if needed.updates is None else needed.updates * stages.period_ns
        rows.append(StagesToLoss(stages=stages, needed=needed, time_ns=time_ns))
    return tuple(sorted(rows, key=lambda row: (row.time_ns is None, row.time_ns or 0.0)))


def published_staleness(stages: int) -> float:
    """2 S³, which DynPipe's theorem 1 and equation 3 have in place of D for stages with delays S − 1..0."""
    return 2.0 * stages**3


def combined_ns(first_ns: Times, second_ns: Times, message_ns: Times, *, as_printed: bool) -> Times:
    """Equation 4: the time of an update of two stages, the first of which may be several merged.

    Args:
        first_ns: p₁, forward and backward.
        second_ns: p₂, likewise.
        message_ns: c, both ways.
        as_printed: False: it is not below p₁.
    """
    halved: Times = np.maximum(second_ns, (message_ns + first_ns + second_ns) / 2)
    return halved if as_printed else np.maximum(halved, first_ns)


def _extended(costs: _Costs, before: dict[int, _State], replicas: int, used: int, *, as_printed: bool) -> _State:
    """One stage more, from the states of the stages before it by the replicas of their last one."""
    stage_ns, begin = costs.stage_ns(used - replicas, used), used - replicas
    tried = []
    for earlier, state in before.items():
        message_ns = costs.message_ns(begin - earlier, begin, used)
        period_ns = combined_ns(state.period_ns[:, None], stage_ns, message_ns[:, None], as_printed=as_printed)
        cut = period_ns.argmin(axis=0)
        tried.append((np.take_along_axis(period_ns, cut[None], axis=0)[0], cut, np.full_like(cut, earlier)))
    best = np.stack([period_ns for period_ns, _, _ in tried]).argmin(axis=0)[None]
    period_ns, cuts, earlier_ones = (np.take_along_axis(np.stack(each), best, axis=0)[0] for each in zip(*tried, strict=True))
    return _State(period_ns, cuts, earlier_ones)


class _Costs:
    """Equations 6 and 7 on a workload."""

    def __init__(self, workload: Workload, gradient_bytes: int) -> None:
        layers, speed = workload.layers, float(workload.devices[0].speed)
        self._workload = workload
        self._work_ns = np.cumsum([0.0, *((fmean(layer.forward_ns) + fmean(layer.backward_ns)) / speed for layer in layers)])
        self._gradient_bytes = gradient_bytes * np.cumsum([0.0, *(layer.parameters for layer in layers)])
        self._sent_bytes = np.array([0.0, *(layer.message_bytes for layer in layers)])
        self._back_bytes = np.array([0.0, *(layer.gradient_message_bytes for layer in layers)])

    def stage_ns(self, begin: int, end: int) -> Times:
        """Equation 6 for the workers [begin, end): by first and last layer; infinite where the first is not below the last."""
        replicas, width = end - begin, len(self._work_ns)
        time_ns: Times = (self._work_ns[None, :] - self._work_ns[:, None]) / replicas
        if replicas > 1:
            ring = [(begin + at, begin + (at + 1) % replicas) for at in range(replicas)]
            part_bytes = (self._gradient_bytes[None, :] - self._gradient_bytes[:, None]) / replicas
            time_ns = time_ns + 2 * (replicas - 1) * self._slowest_ns(ring, part_bytes, None)
        return np.where(np.tri(width, dtype=bool), np.inf, time_ns)

    def message_ns(self, begin: int, middle: int, end: int) -> Times:
        """Equation 7 from the workers [begin, middle) to [middle, end) and back: by the number of layers before."""
        pairs = [(source, destination) for source in range(begin, middle) for destination in range(middle, end)]
        there = self._slowest_ns(pairs, self._sent_bytes / len(pairs), 1 / len(pairs))
        back = [(destination, source) for source, destination in pairs]
        return there + self._slowest_ns(back, self._back_bytes / len(pairs), 1 / len(pairs))

    def _slowest_ns(self, pairs: Sequence[tuple[int, int]], size_bytes: Times, part: float | None) -> Times:
        """So many bytes over each of the links, the longest time; infinite where there is no link.

        `part` is how much of a message they are; None: they are none.
        """
        links = {self._workload.network.link(source, destination) for source, destination in pairs}
        costs = {None if link is None else (link.latency_ns, link.transfer_ns, link.bytes_per_second) for link in links}
        longest: Times = np.zeros_like(size_bytes)
        for cost in costs:
            if cost is None:
                return np.full_like(size_bytes, np.inf)
            latency_ns, transfer_ns, bytes_per_second = cost
            if transfer_ns is not None and part is None:
                raise Unsupported(
                    f"{self._workload.name}: a link has the time of a message instead of a bandwidth, so replicas' all-reduce is"
                    " not known; give links a bandwidth, or allow one replica of a stage"
                )
            if transfer_ns is not None:
                time_ns = np.full_like(size_bytes, transfer_ns * (part or 0.0))
            else:
                time_ns = size_bytes * (0.0 if bytes_per_second is None else 1e9 / bytes_per_second)
            longest = np.maximum(longest, latency_ns + time_ns)
        return longest


def _check(workload: Workload, count: int, workers: int, most_replicas: int) -> None:
    if not 1 <= workers <= workload.ranks:
        raise InvalidInput(f"{workload.name}: found {workers} workers, expected 1 to {workload.ranks}, the ranks")
    least, layers = -(-workers // max(1, most_replicas)), len(workload.layers)
    if not least <= count <= min(workers, layers):
        limits = f"{least} to {min(workers, layers)} for {layers} layers and {workers} workers"
        raise InvalidInput(f"{workload.name}: found {count} stages, expected {limits} with at most {most_replicas} in a stage")
    if len({device.speed for device in workload.devices[:workers]}) > 1:
        raise Unsupported(f"{workload.name}: DynPipe's planner takes workers of one speed, and these differ")
    known = [layer.position for layer in workload.layers if layer.position is not None]
    if len(set(known)) < len(known):
        raise Unsupported(f"{workload.name}: DynPipe's planner takes a chain of layers, and some are there for each of two paths")
