"""What a layout is worth, estimated from fewer microbatches where there are many: the steady state repeats itself.

A draft goes in; an estimate of its objective comes out, or the objective itself where microbatches are few or differ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.layout.evaluation.evaluate import LayoutEvaluator

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from schedc.ir.schedule import Schedule
    from schedc.ir.workload import Workload
    from schedc.solvers.layout.layout_arrays import LayoutArrays

FEW, MANY = 2, 10
"""Estimates come from this many microbatches for each rank, and twice as many, where there are at least `MANY` for each rank."""
SLACK = 0.01
"""The first estimate may be this share too high."""


class Screen:
    """Evaluators of one workload, for one thread.

    From k microbatches: all others take at least what the busiest rank works for them. From 2k: they take what the second k took,
    if that is more, as it is where memory or links hold the pipeline up.
    """

    def __init__(self, workload: Workload, *, plain: bool | None = None) -> None:
        """Waits until the kernel is compiled, unless it is to run plain.

        Args:
            workload: what is to be laid out.
            plain: see `LayoutEvaluator`.

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
        self.whole = LayoutEvaluator(workload, plain=plain)
        """Of all microbatches."""
        self._parts = (
            ()
            if self.is_exact
            else tuple(LayoutEvaluator(replace(workload, microbatches=each), plain=plain) for each in (few, 2 * few))
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

    def schedule(self, draft: LayoutArrays, rule: int) -> Schedule:
        """See `LayoutEvaluator`."""
        return self.whole.schedule(draft, rule)

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
