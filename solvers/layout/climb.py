"""The search over layouts: simulated annealing over boundaries, the ranks of stages, merges and splits, recomputation and rules.

It begins with the named layouts (`schedc.solvers.layout.baselines`). A candidate is first held against a lower bound, then timed
under the rule of the draft that it comes from and at times under another one (`schedc.solvers.layout.evaluation`), so layouts and
schedules move together. Where there are many microbatches, candidates are timed with fewer, and only what seems best with all.
It may end at any moment: what it has found is whole after every candidate.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from schedc.ir.workload import Semantics
from schedc.solvers.heuristics.rule_table import rule_table
from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.layout.baselines import baselines, named_layouts, stage_count
from schedc.solvers.layout.layout_arrays import layout_arrays_of
from schedc.solvers.layout.moves import moves_of
from schedc.solvers.layout.scheduled_layout import scheduled_layout
from schedc.solvers.layout.walk import KEEP, KeptArrays, Walk, best_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.layout import Layout, OpenLayout
    from schedc.ir.workload import Workload
    from schedc.solvers.layout.scheduled_layout import ScheduledLayout

START_RULES, ALL_RULES = 12, 4
"""A starting layout is tried under this many rules, evenly taken from the table; this many of the best starts under all of them."""
ROUNDS = ((True, 0.03), (True, 0.03), (False, 0.01), (False, 0.003))
"""The rounds of a climb, of equal length: whether they start with a named layout, one after the other, or with the best found; and
how hot: a draft that is worse by this share is taken with a chance of 1 in e at first, and with none at the end."""


class LayoutClimb:
    """A search over the layouts of one workload."""

    def __init__(
        self,
        workload: Workload,
        open_layout: OpenLayout,
        *,
        recompute: bool = False,
        seed: int = 0,
        plain: bool | None = None,
        workers: int = 1,
    ) -> None:
        """Prepare; times the named layouts.

        Args:
            workload: what `schedc.verify.workload` accepts.
            open_layout: what may be chosen.
            recompute: whether it may choose which stages recompute, too; then those that `open_layout` names are a start.
            seed: of the random numbers.
            plain: see `LayoutEvaluator`.
            workers: this many walks beside each other, each in a thread.

        Raises:
            Unsupported: the numbers are too large.
        """
        self.workload = workload
        self._open_layout = open_layout
        self._moves = moves_of(
            workload,
            partition=open_layout.layers_of_stage is None,
            placement=open_layout.placement is None,
            stages=stage_count(workload, open_layout) is None,
            recompute=recompute and workload.semantics is not Semantics.TORCH,
        )
        self._walks = [
            Walk(workload, self._moves, open_layout.chunks, seed + 1_000_003 * number, plain=plain) for number in range(workers)
        ]
        first = self._walks[0]
        rules = range(len(first.screen.whole.rules))
        drafts = list(dict.fromkeys(layout_arrays_of(layout) for layout in named_layouts(workload, open_layout).values()))
        starts = sorted((first.start(draft, rules[:: max(1, len(rules) // START_RULES)]) for draft in drafts), key=_value_ns)
        tuned = [first.start(start.draft, rules) for start in starts[:ALL_RULES]]
        for start in tuned:
            first.keep(start)
        self._named = first.best
        self._starts = sorted((*tuned, *starts[ALL_RULES:]), key=_value_ns)
        self._reported_ns = self.best[0].value_ns if self.best else NEVER

    @property
    def best(self) -> tuple[KeptArrays, ...]:
        """The best layouts, the best first; one for each draft."""
        return best_of(kept for walk in self._walks for kept in walk.best)

    @property
    def evaluated(self) -> int:
        """How many layouts were timed, or refused by a bound."""
        return sum(walk.screen.evaluated for walk in self._walks)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The best layouts, the best first."""
        return tuple(kept.draft.layout(self._open_layout.placement_name) for kept in self.best)

    def restart(self) -> None:
        """Forget the layouts found, not those to start with."""
        for walk in self._walks:
            walk.best = ()
        self._walks[0].best = self._named
        self._reported_ns = self.best[0].value_ns if self.best else NEVER

    def run(
        self,
        *,
        evaluations: int | None = None,
        seconds: float | None = None,
        report: Callable[[int, KeptArrays], None] = lambda _evaluated, _best: None,
    ) -> None:
        """Search until this many more layouts were evaluated, or for this long, whichever comes first; or until an exception.

        Args:
            evaluations: the result then depends on nothing but the seed and the number of workers, unless `seconds` end it.
            seconds: of wall-clock time.
            report: is called with how many layouts were evaluated and the best when there is a better one; in the caller's thread.

        Raises:
            ValueError: neither limit is given.
        """
        if evaluations is None and seconds is None:
            raise ValueError("expected a number of evaluations or of seconds")
        if not self._moves or not self._starts:
            return
        begun_s, begun, stop = time.perf_counter(), [walk.screen.evaluated for walk in self._walks], Event()

        def spent(number: int) -> float:
            """The share of the limits that is spent, as one of the walks sees it."""
            if stop.is_set():
                return 2.0
            if number == 0:
                self._report(report)
            count = self._walks[number].screen.evaluated - begun[number]
            by_count = 0.0 if evaluations is None else count * len(self._walks) / max(1, evaluations)
            return by_count if seconds is None else max(by_count, (time.perf_counter() - begun_s) / seconds)

        with ThreadPoolExecutor(len(self._walks)) as threads:
            try:
                for at, (named, heat) in enumerate(ROUNDS):
                    known, tasks = self.best, []
                    for number, walk in reversed(tuple(enumerate(self._walks))):
                        start = self._starts[min(at * len(self._walks) + number, len(self._starts) - 1)]
                        anneal = partial(walk.anneal, start if named or not known else known[0], heat, partial(spent, number))
                        if number > 0:
                            tasks.append(threads.submit(anneal, (at + 1) / len(ROUNDS)))
                        else:
                            anneal((at + 1) / len(ROUNDS))
                    for task in tasks:
                        task.result()
            finally:
                stop.set()
        self._report(report)

    def _report(self, report: Callable[[int, KeptArrays], None]) -> None:
        """Call `report` if there is a better one."""
        best = self.best
        if best and best[0].value_ns < self._reported_ns:
            self._reported_ns = best[0].value_ns
            report(self.evaluated, best[0])

    def finished(self, most: int = KEEP) -> tuple[ScheduledLayout, ...]:
        """The best layouts, each with the schedule of its rule or of `rule_table`, and the baselines; the best first.

        Args:
            most: of this many of the best layouts.
        """
        found = []
        for layout, by_rule in zip(self.layouts[:most], self.scheduled(most), strict=True):
            by_table = scheduled_layout(self.workload, layout, rule_table, "layouts + rule-table")
            both = [each for each in (by_rule, by_table) if each is not None]
            found += sorted(both, key=lambda each: each.objective_ns)[:1]
        found += baselines(self.workload, self._open_layout)
        return tuple(sorted(found, key=lambda each: each.objective_ns))

    def scheduled(self, most: int = KEEP) -> tuple[ScheduledLayout | None, ...]:
        """The best layouts, each with the schedule of its rule; None: that is not within memory.

        Args:
            most: this many of the best layouts.
        """
        screen = self._walks[0].screen

        def made(kept: KeptArrays) -> ScheduledLayout | None:
            layout = kept.draft.layout(self._open_layout.placement_name)
            return scheduled_layout(self.workload, layout, lambda _: screen.schedule(kept.draft, kept.rule), "layouts")

        return tuple(made(kept) for kept in self.best[:most])


def _value_ns(kept: KeptArrays) -> int:
    return kept.value_ns
