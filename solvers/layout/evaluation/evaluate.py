"""What a layout is worth, thousands of times a second: its objective under a small table of rules, without making a Problem.

A draft goes in; the objective of the best schedule that the rules give comes out, which is what the simulator says of that schedule
and of the Problem of the draft. Memory limits are kept by every rule. Where microbatches are many, so that a steady state repeats
itself, a `Screen` estimates it from fewer.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.compiled.compiler import at_hand, compiled
from schedc.ir import Problem, Schedule, Workload
from schedc.lower.split_head import workload_in_parts
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.heuristics.memory import exceeds
from schedc.solvers.kernel.list_scheduler import ListSchedule
from schedc.solvers.kernel.tables import COLUMNS, NEVER, ROW, SchedulerState, example_scheduler
from schedc.solvers.layout.evaluation.kernel import KernelResult, Sketch, evaluate, evaluate_chain
from schedc.solvers.layout.evaluation.tables import costs_of
from schedc.solvers.layout.layout_arrays import LayoutArrays, scheduled_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from schedc.solvers.layout.layout_arrays import KeptArrays, ScheduledLayout

ORDERS = ((1, 0, 2), (0, 1, 2), (0, 2, 1))
"""The places of F, B and W among ops that are ready; 0 goes first."""
IN_FLIGHT = ((1, 0), (2, 1), (0, 0), (1, 1), (1, 2), (2, 3), (3, 0))
"""Activations in flight, and this many more: see `RULE_COLUMNS`."""
LOOK_AHEADS = (0, 5, 10)
"""In 20ths of the longest op."""
FEW, MANY = 2, 10
"""Estimates come from this many microbatches for each rank, and twice as many, where there are at least `MANY` for each rank."""
SLACK = 0.01
"""The first estimate may be this share too high."""


def table_of_rules(*, split: bool) -> NDArray[np.int64]:
    """The rules, with the columns of `RULE_COLUMNS`; fused ones and those that leave W waiting only where B may be alone."""
    kinds = ((0, 0), (1, 0), (0, 1)) if split else ((0, 0),)
    orders = ORDERS if split else ORDERS[:2]
    chosen = product(kinds, LOOK_AHEADS, orders, IN_FLIGHT)
    rows = [(fused, look, *places, cap, more, lag) for (fused, lag), look, places, (cap, more) in chosen]
    return np.array([row for row in rows if not (row[0] and row[4] < 2)], np.int64)  # the place of W counts for nothing if fused


def kernel_of(workload: Workload, *, split_head: bool = False) -> Callable[..., Any]:
    """The form of the kernel that is compiled for the workload."""
    return evaluate if workload.edges or split_head else evaluate_chain


def _with_parts(draft: LayoutArrays, workload: Workload) -> LayoutArrays:
    """The draft with the stages of a split head (`schedc.lower.split_head`)."""
    ranks, begin = workload.ranks, draft.cuts[-1]
    return LayoutArrays(
        draft.cuts + tuple(range(begin + 1, begin + ranks + 2)),
        (*draft.ranks, *range(ranks), draft.ranks[-1]),
        draft.again + (False,) * (ranks + 1),
    )


class Load(NamedTuple):
    """What a draft asks of its ranks, whatever its schedule."""

    work_ns: list[int]
    """By rank: the least work of all microbatches."""
    stage_ns: list[int]
    """By stage, as the next two: of one microbatch, in the mean."""
    arrive_ns: list[int]
    """The soonest that its first F may start."""
    after_ns: list[int]
    """The least time from the end of a fused backward to the end of all."""


class LayoutEvaluator:
    """The kernel at work on one workload, for one thread."""

    def __init__(self, workload: Workload, *, plain: bool | None = None, split_head: bool = False) -> None:
        """Waits until the kernel is compiled, unless it is to run plain.

        Args:
            workload: what is to be laid out, of whole microbatches.
            plain: None: unless the kernel is at hand.
            split_head: whether the head is split over the ranks; drafts then are of the layers before it.

        Raises:
            Unsupported: the numbers are too large.
        """
        self.workload = workload
        self.rules = table_of_rules(split=workload.split_backward)
        """The table of rules, of which `value` takes numbers."""
        self.evaluated = 0
        """How many drafts have been given a value or refused."""
        self.bound_ns = NEVER
        """No schedule of the last draft is better; `NEVER`: it cannot run."""
        self.over_bytes = 0
        """How many bytes too many the ranks of the last draft hold with one microbatch in each stage; -1: it cannot run at all."""
        self.most_work_ns = 0
        """What the busiest rank of the last draft works, if it can run."""
        self.rule = -1
        """The best rule of the last draft; -1: none was run, or none can run it."""
        self.all_rules = np.arange(len(self.rules))
        self._split_head = split_head
        laid_out = workload_in_parts(workload) if split_head else workload
        self._layers, self._edges = len(laid_out.layers), len(laid_out.edges)
        costs, self._resources = costs_of(laid_out)
        form = kernel_of(workload, split_head=split_head)
        self._plain = not at_hand(form) if plain is None else plain
        self._evaluate = form if self._plain else compiled(form)
        self._costs = costs if self._plain else type(costs)(*(np.array(values, np.int64) for values in costs))
        self._table = self.rules.tolist() if self._plain else self.rules
        self._rooms: dict[int, tuple[Sketch, SchedulerState]] = {}
        self._found = KernelResult(*([0] if self._plain else np.zeros(1, np.int64) for _ in KernelResult._fields))

    def value(
        self, draft: LayoutArrays, rules: Sequence[int] | NDArray[np.int64], refuse_ns: int = NEVER, enough_ns: int = 0
    ) -> int:
        """The objective of the draft's best schedule, in nanoseconds; `NEVER` where no rule can run it, or it was refused.

        The draft has a stage on each rank; the rules with these numbers run in this order. None does where a lower bound is
        `refuse_ns` or more; once one gives `enough_ns` or less, no more are run.
        """
        if self._split_head:
            draft = _with_parts(draft, self.workload)
        stages = len(draft.ranks)
        if stages not in self._rooms:
            self._rooms[stages] = self._room(stages)
        sketch, scheduler = self._latest = self._rooms[stages]
        if self._plain:
            sketch = sketch._replace(cuts=list(draft.cuts), rank=list(draft.ranks), again=list(draft.again))
        else:
            sketch.cuts[:], sketch.rank[:], sketch.again[:] = draft
        tried = [int(number) for number in rules] if self._plain else np.ascontiguousarray(rules, np.int64)
        value = int(self._evaluate(self._costs, sketch, scheduler, self._table, tried, refuse_ns, enough_ns, self._found))
        self.evaluated += 1
        self.over_bytes, self.most_work_ns = int(sketch.over[0]), int(max(sketch.work_ns))
        self.bound_ns, self.rule = int(self._found.bound_ns[0]), int(self._found.rule[0])
        return value

    def load(self, draft: LayoutArrays) -> Load:
        """What the draft asks of its ranks.

        Raises:
            ValueError: it cannot run.
        """
        self.value(draft, ())
        if self.bound_ns >= NEVER:
            raise ValueError("the layout cannot run")
        sketch, _ = self._latest
        stage_ns = [sum(map(int, each)) for each in zip(sketch.f_ns, sketch.b_ns, sketch.w_ns, strict=True)]
        return Load(list(map(int, sketch.work_ns)), stage_ns, list(map(int, sketch.arrive_ns)), list(map(int, sketch.after_ns)))

    def schedule(self, draft: LayoutArrays, rule: int) -> Schedule:
        """The schedule that the rule of this number gives.

        Raises:
            ValueError: the rule cannot run the draft.
        """
        if self.value(draft, [rule]) >= NEVER:
            raise ValueError("the rule strands itself, or the layout cannot run")
        _, scheduler = self._latest
        order = list(map(int, scheduler.order))
        if self._plain:
            spans = [(rank.order_from, rank.order_at) for rank in scheduler.ranks]
        else:
            spans = list(zip(scheduler.ranks["order_from"].tolist(), scheduler.ranks["order_at"].tolist(), strict=True))
        return ListSchedule(
            packed=tuple(tuple(order[first:last]) for first, last in spans),
            stages=len(scheduler.lanes),
            width=2,
            parts_of=(1,) * len(scheduler.lanes),
            end_ns=0,
            span_ns=0,
        ).schedule

    def scheduled(self, kept: KeptArrays, placement: str | None, name: str) -> ScheduledLayout | None:
        """The layout with the schedule of its rule; None: that is not within memory. `placement`: as of `LayoutArrays.layout`.

        Where values wait for others in more memory than there is, which rules do not count, with one that keeps room for them.
        """
        layout = replace(kept.draft.layout(placement), split_head=self._split_head)

        def construct(problem: Problem) -> Schedule:
            schedule = self.schedule(kept.draft, kept.rule)
            return Greedy().construct(problem) if exceeds(problem, schedule) else schedule

        return scheduled_layout(self.workload, layout, construct, name)

    def _room(self, stages: int) -> tuple[Sketch, SchedulerState]:
        """Room for drafts of this many stages."""
        ranks, microbatches = self.workload.ranks, self.workload.microbatches
        of_ranks = {"work_ns", "period_ns", "whole_ns", "forward_ns", "held", "waiting", "static", "free", "need"}
        sizes = {name: ranks if name in of_ranks else stages + (name == "cuts") for name in Sketch._fields}
        of_edges = ("carries", "brings", "value_back", "begins", "ends", "forth", "back", "mark", "forth_ns", "back_ns", "hop")
        sizes |= {"over": 1, "edges": 1, "stage_of": self._layers} | dict.fromkeys(of_edges, self._edges)
        joints = ("joints", stages), ("units", stages * microbatches), ("hops", 2 * self._edges), ("occupancy_ns", 2 * self._edges)
        lengths = {
            "lanes": stages,
            "ranks": ranks,
            "blocks": stages * microbatches,
            "reserves": ranks,
            "links": self._resources,
            "left": stages,
            "order": 3 * stages * microbatches,
            "settings": 1,
            "when": ranks,
            **{name: size if self._edges else 1 for name, size in joints},
        }
        if self._plain:
            rows = {name: [ROW[name]() if name in COLUMNS else 0 for _ in range(size)] for name, size in lengths.items()}
            return Sketch(*([0] * sizes[name] for name in Sketch._fields)), SchedulerState(
                held=[[0] * microbatches for _ in range(ranks)], **rows
            )
        like = example_scheduler()
        arrays = {name: np.zeros(size, getattr(like, name).dtype) for name, size in lengths.items()}
        sketch = Sketch(*(np.zeros(sizes[name], np.int64) for name in Sketch._fields))
        return sketch, SchedulerState(held=np.zeros((ranks, microbatches), np.int64), **arrays)


class Screen:
    """Evaluators of one workload, for one thread.

    From k microbatches: all others take at least what the busiest rank works for them. From 2k: they take what the second k took,
    if that is more, as it is where memory or links hold the pipeline up.
    """

    def __init__(self, workload: Workload, *, plain: bool | None = None, split_head: bool = False) -> None:
        """Waits until the kernel is compiled, unless it is to run plain.

        Args:
            workload: what is to be laid out.
            plain: see `LayoutEvaluator`, as for `split_head`.
            split_head: see there.

        Raises:
            Unsupported: the numbers are too large.
        """
        few, self._microbatches = FEW * workload.ranks, workload.microbatches
        durations = (
            each
            for layer in workload.layers
            for each in (layer.forward_ns, layer.backward_ns, layer.backward_weight_ns, layer.backward_input_ns)
        )
        self.is_exact = workload.microbatches < MANY * workload.ranks or any(len(each) > 1 for each in durations)
        """Whether its estimates are the objective itself."""
        self.whole = LayoutEvaluator(workload, plain=plain, split_head=split_head)
        """Of all microbatches."""
        self._parts = (
            ()
            if self.is_exact
            else tuple(
                LayoutEvaluator(replace(workload, microbatches=each), plain=plain, split_head=split_head) for each in (few, 2 * few)
            )
        )
        self.evaluated = 0
        """How many drafts have been given an estimate or refused."""
        self.rule = -1
        """The best rule of the last draft; -1: none was run, or none can run it."""

    @property
    def over_bytes(self) -> int:
        """See `LayoutEvaluator`."""
        return (self.whole if self.is_exact else self._parts[0]).over_bytes

    def value(
        self, draft: LayoutArrays, rules: Sequence[int] | NDArray[np.int64], refuse_ns: int = NEVER, enough_ns: int = 0
    ) -> int:
        """An estimate of the objective of the draft's best schedule; `NEVER` where no rule can run it, or it was refused.

        Args:
            draft: with a stage on each rank.
            rules: the numbers of the rules to run, in this order.
            refuse_ns: what seems to be as much or more need not be run.
            enough_ns: once a rule gives as much or less, no more are run.
        """
        self.evaluated += 1
        if self.is_exact:
            value_ns = self.whole.value(draft, rules, refuse_ns, enough_ns)
            self.rule = self.whole.rule
            return value_ns
        best_ns, self.rule = NEVER, -1
        for rule in rules:
            value_ns = self._estimate(draft, int(rule), min(refuse_ns, best_ns))
            if value_ns < best_ns:
                best_ns, self.rule = value_ns, int(rule)
            if best_ns <= enough_ns or self._parts[0].bound_ns >= NEVER:
                break
        return best_ns

    def _estimate(self, draft: LayoutArrays, rule: int, refuse_ns: int) -> int:
        few, more = self._parts
        count, doubled = few.workload.microbatches, more.workload.microbatches
        few_ns = few.value(draft, (rule,))
        period_ns = few.most_work_ns / count
        if few_ns >= NEVER or few_ns + (self._microbatches - count) * period_ns >= refuse_ns * (1 + SLACK):
            return NEVER
        more_ns = more.value(draft, (rule,))
        if more_ns >= NEVER:
            return NEVER
        period_ns = max(period_ns, (more_ns - few_ns) / count)
        return more_ns + round((self._microbatches - doubled) * period_ns)
