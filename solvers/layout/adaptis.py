"""AdaPtis's generator (section 4.3 of the paper): the phase of a pipeline that leaves ranks idle most is tuned, again and again.

A workload and what is open go in; a layout with its schedule comes out. It starts from the named layouts (`baselines`). Each turn
asks which phase leaves ranks idle most, and tries the changes of that phase one by one, each with its schedule adjusted; the first
that makes the step shorter is taken, any other is rolled back. Where no change of the phase helps, the phase that is next has its
turn; where none of any phase helps, the search ends. It draws no random numbers.

Where the paper is silent:

- *Which phase is the bottleneck* ("e.g. the phase contributing the largest BubbleTime"). A rank's idle time is what the step takes
  less its work, and its mean over the ranks is split in three: the work of the busiest rank less the mean work is the partition's;
  what a microbatch takes to reach a rank and to come back from it, in the mean, is the placement's; what is left is the
  schedule's, as far as it is above 0.
- *Partition.* Layers move from the stage with the least idle time to the one with the most, one layer at a time. As stages are
  consecutive, all boundaries between the two move by one. A rank may have several stages: the two of a pair of ranks that are
  closest are taken, and a pair that does not help is followed by the one with the next largest difference. As in the paper it ends
  when idle times differ by less than the costliest stage takes for one microbatch.
- *Placement.* Two stages change ranks, or two neighbours on different ranks become four, their halves by turns on the two ranks, so
  that adjacent layers are on different ranks and each rank keeps as many layers, or two stages of a rank with one stage between
  them become one. The paper draws only the second; the other two undo it and reach ranks that are far apart.
- *Schedule.* The list scheduler's rules (`solvers.layout.evaluation`) are the paper's policies. F, B, W in this order as early as
  memory allows, and the orders of the baselines, are priorities with limits in flight. That dependent work is delayed while
  something else can run is what a list scheduler does without look-ahead. That B and W come earlier where memory would overflow is
  what its limit does. A change of another phase is timed under the rule so far and a few others, in turn.
- *Starts.* The paper prunes baselines of low performance and does not say how: tuning starts from the best `STARTS`.

The paper leaves recomputation to future work: stages recompute as the job says. Schedules of the templates that are better than all
of these are kept (S-1F1B, I-1F1B, zero bubble, Hanayo, Mist-like), so that the result is never worse than a baseline.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, TypeAlias

from schedc.errors import NoPlanFound, Unsupported
from schedc.ir import OpenLayout, Workload
from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.layout.baselines import baselines, named_layouts, stage_count
from schedc.solvers.layout.evaluation.evaluate import LayoutEvaluator
from schedc.solvers.layout.layout_arrays import KeptArrays, LayoutArrays, ScheduledLayout, layout_arrays_of
from schedc.solvers.layout.method import LayoutMethod
from schedc.solvers.layout.moves import transferred

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Phase: TypeAlias = Callable[["KeptArrays"], Iterator[tuple[LayoutArrays, list[int]]]]

STARTS = 3
"""Tuning starts from this many of the named layouts."""
START_RULES, TANDEM = 8, 2
"""A start is timed under this many rules, evenly taken from the table; a change of partition or placement under its own, and this
many others of these."""
MOST_CHANGES = 64
"""Of one phase this many changes are tried at most before it is given up."""


class Adaptis(LayoutMethod, frozen=True):
    """The best of the baselines and of what tuning makes of the best named layouts."""

    name, place = "adaptis", 290

    def choose(
        self,
        workload: Workload,
        open_layout: OpenLayout,
        *,
        stop: Callable[[], bool] = lambda: False,
        report: Callable[[int, int], None] = lambda _evaluated, _best_ns: None,
        plain: bool | None = None,
    ) -> ScheduledLayout:
        """As `LayoutMethod.choose`."""
        if open_layout.slices is not None:
            raise Unsupported(f"{workload.name}: adaptis cuts no microbatches into slices; expected them given, or method auto")
        evaluator = LayoutEvaluator(workload, plain=plain)
        generator = _Generator(workload, open_layout, evaluator, stop, report)
        found = list(baselines(workload, open_layout))
        for start in generator.starts():
            if not stop():
                tuned = generator.tuned(start)
                by_rule = evaluator.scheduled(tuned, open_layout.placement_name, self.name)
                found += [] if by_rule is None else [by_rule]
        if not found:
            raise NoPlanFound(f"{workload.name}: no named layout has a schedule within memory; try another method")
        return min(found, key=lambda each: each.objective_ns)


class _Generator:
    """The tuning of one workload."""

    def __init__(
        self,
        workload: Workload,
        open_layout: OpenLayout,
        evaluator: LayoutEvaluator,
        stop: Callable[[], bool],
        report: Callable[[int, int], None],
    ) -> None:
        self._evaluator = evaluator
        self._workload, self._open, self._stop, self._report = workload, open_layout, stop, report
        rules = evaluator.all_rules
        self._some = [int(number) for number in rules[:: max(1, len(rules) // START_RULES)]]
        self._best_ns = NEVER

    def starts(self) -> list[KeptArrays]:
        """The best of the named layouts, the best first."""
        found: dict[LayoutArrays, KeptArrays] = {}
        for layout in named_layouts(self._workload, self._open).values():
            draft = layout_arrays_of(layout)
            if draft not in found and not self._stop():
                found[draft] = self._timed(draft, self._some)
        runnable = [each for each in found.values() if each.value_ns < NEVER]
        return sorted(runnable, key=lambda each: each.value_ns)[:STARTS]

    def tuned(self, now: KeptArrays) -> KeptArrays:
        """The pipeline tuned phase by phase, until no phase makes it better."""
        while not self._stop():
            for phase in self._phases(now):
                after = self._better(now, phase)
                if after is not None:
                    now = after
                    break
            else:
                return now
        return now

    def _phases(self, now: KeptArrays) -> list[Phase]:
        """The phases that are open, the one that leaves ranks idle most first."""
        load = self._evaluator.load(now.draft)
        ranks = range(self._workload.ranks)
        mean_ns = sum(load.work_ns) / len(ranks)
        first = [now.draft.ranks.index(rank) for rank in ranks]
        by_partition_ns = max(load.work_ns) - mean_ns
        by_placement_ns = sum(load.arrive_ns[stage] + load.after_ns[stage] for stage in first) / len(ranks)
        by_schedule_ns = now.value_ns - mean_ns - by_partition_ns - by_placement_ns
        phases: list[tuple[float, Phase]] = [(by_schedule_ns, self._schedules)]
        if self._open.layers_of_stage is None:
            phases.append((by_partition_ns, self._partitions))
        if self._open.placement is None:
            phases.append((by_placement_ns, self._placements))
        return [phase for _, phase in sorted(phases, key=lambda each: -each[0])]

    def _better(self, now: KeptArrays, phase: Phase) -> KeptArrays | None:
        """The first change of the phase that makes the step shorter; None: none does."""
        for draft, rules in islice(phase(now), MOST_CHANGES):
            if self._stop():
                return None
            after = self._timed(draft, rules, now.value_ns)
            if after.value_ns < now.value_ns:
                return after
        return None

    def _schedules(self, now: KeptArrays) -> Iterator[tuple[LayoutArrays, list[int]]]:
        """The same draft under every rule of the table."""
        yield now.draft, [int(number) for number in self._evaluator.all_rules]

    def _partitions(self, now: KeptArrays) -> Iterator[tuple[LayoutArrays, list[int]]]:
        """A layer goes from a rank with little idle time to one with more; what differs most comes first."""
        load, ranks = self._evaluator.load(now.draft), range(self._workload.ranks)
        pairs = sorted((load.work_ns[taker] - load.work_ns[giver], giver, taker) for giver in ranks for taker in ranks)
        for less_ns, giver, taker in pairs:
            if -less_ns < max(load.stage_ns):
                return
            moved = _moved(now.draft, giver, taker)
            if moved is not None:
                yield moved, self._tandem(now.rule)

    def _placements(self, now: KeptArrays) -> Iterator[tuple[LayoutArrays, list[int]]]:
        """Stages interleaved, joined, or on each other's ranks."""
        work_ns = self._evaluator.load(now.draft).work_ns
        is_free = self._open.layers_of_stage is None and stage_count(self._workload, self._open) is None
        for draft in _placed(now.draft, self._open.chunks, busiest=work_ns.index(max(work_ns)), free=is_free):
            yield draft, self._tandem(now.rule)

    def _tandem(self, rule: int) -> list[int]:
        """The rules under which a change is timed: others in turn, so that none is left out for long."""
        at = self._evaluator.evaluated
        return [rule, *(self._some[(at + more) % len(self._some)] for more in range(TANDEM))]

    def _timed(self, draft: LayoutArrays, rules: list[int], refuse_ns: int = NEVER) -> KeptArrays:
        """The draft under these rules; of the best of them, or of the first that is better than `refuse_ns`."""
        value_ns = self._evaluator.value(draft, rules, refuse_ns=refuse_ns, enough_ns=refuse_ns - 1 if refuse_ns < NEVER else 0)
        if value_ns < self._best_ns:
            self._best_ns = value_ns
            self._report(self._evaluator.evaluated, value_ns)
        return KeptArrays(value_ns, draft, max(0, self._evaluator.rule))


def _moved(draft: LayoutArrays, giver: int, taker: int) -> LayoutArrays | None:
    """A layer goes from one rank to another: all boundaries between their closest stages move by one; None: none has two layers."""
    pairs = [
        (abs(a - b), a, b)
        for a, rank in enumerate(draft.ranks)
        if rank == giver and draft.cuts[a + 1] - draft.cuts[a] > 1
        for b, other in enumerate(draft.ranks)
        if other == taker
    ]
    if not pairs:
        return None
    _, giving, taking = min(pairs)
    return transferred(draft, giving, taking)


def _placed(draft: LayoutArrays, chunks: int, *, busiest: int, free: bool) -> Iterator[LayoutArrays]:
    """The placements that are one change away; stages of the busiest rank change ranks before others.

    There are at most `chunks` stages on a rank; `free` is whether there may be more or fewer.
    """
    stages = range(len(draft.ranks))
    if free:
        for stage, (one, other) in enumerate(pairwise(draft.ranks)):
            if one != other and max(draft.ranks.count(one), draft.ranks.count(other)) < chunks:
                interleaved = _interleaved(draft, stage)
                if interleaved is not None:
                    yield interleaved
        for stage in stages[2:]:
            if draft.ranks[stage] == draft.ranks[stage - 2]:
                yield _joined(draft, stage)
    pairs = [(a, b) for a in stages for b in stages[a + 1 :] if draft.ranks[a] != draft.ranks[b]]
    for a, b in sorted(pairs, key=lambda pair: busiest not in (draft.ranks[pair[0]], draft.ranks[pair[1]])):
        ranks = list(draft.ranks)
        ranks[a], ranks[b] = ranks[b], ranks[a]
        yield draft._replace(ranks=tuple(ranks))


def _interleaved(draft: LayoutArrays, stage: int) -> LayoutArrays | None:
    """The stage and the next one become four, their halves by turns on the two ranks; None: one has a single layer."""
    first, middle, last = draft.cuts[stage : stage + 3]
    if middle - first < 2 or last - middle < 2:
        return None
    one, other = (middle - first) // 2, (last - middle) // 2
    cuts = (first + one, first + one + other, first + one + other + (middle - first - one))
    ranks, again = draft.ranks[stage : stage + 2], draft.again[stage : stage + 2]
    return draft.with_stages(stage, stage + 2, cuts, 2 * ranks, 2 * again)


def _joined(draft: LayoutArrays, stage: int) -> LayoutArrays:
    """The stage goes into the one two before it, which is on the same rank; the one between comes after both, or before."""
    first, middle, last, end = draft.cuts[stage - 2 : stage + 2]
    cut = first + (middle - first) + (end - last)
    return draft.with_stages(stage - 2, stage + 1, (cut,), draft.ranks[stage - 2 : stage], draft.again[stage - 2 : stage])
