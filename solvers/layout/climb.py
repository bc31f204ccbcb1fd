"""The search over layouts: simulated annealing over boundaries, the ranks of stages, merges and splits, recomputation and rules.

It begins with the named layouts (`schedc.solvers.layout.baselines`). A candidate is first held against a lower bound, then timed
under the rule of the draft that it comes from and at times under another one (`schedc.solvers.layout.evaluation`), so layouts and
schedules move together. It may end at any moment: what it has found is whole after every candidate.
"""

from __future__ import annotations

import math
import time
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir.workload import Semantics
from schedc.solvers.heuristics.rule_table import rule_table
from schedc.solvers.layout.baselines import baselines, named_layouts, stage_count
from schedc.solvers.layout.draft import Draft, draft_of
from schedc.solvers.layout.evaluation.evaluate import NEVER, Evaluator
from schedc.solvers.layout.laid_out import laid_out
from schedc.solvers.layout.moves import changed, moves_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from schedc.ir.layout import Layout, OpenLayout
    from schedc.ir.workload import Workload
    from schedc.solvers.layout.laid_out import LaidOut

__all__ = ["Kept", "LayoutClimb"]

KEEP = 8
"""This many of the best layouts are kept."""
START_RULES = 12
"""A starting layout is tried under this many rules, evenly taken from the table."""
ROUNDS = ((0, 0.03), (1, 0.03), (0, 0.01), (0, 0.003))
"""The rounds of a climb, of equal length: with which known layout it starts, and how hot: a draft that is worse by this share is
taken with a chance of 1 in e at first, and with none at the end."""
FROM_STARTS = 2
"""This many rounds start with a named layout, the others with one of the best found."""
RULE_ALONE, RULE_BESIDE = 0.1, 0.3
"""How often a candidate is the same draft under another rule; and, on large problems, how often another rule is tried beside its
own."""
CANDIDATE_OPS, MOST_BESIDE = 4000, 12
"""On small ones, other rules are tried until one makes the candidate good enough: about this many ops, at most this many rules."""
LOOK_EVERY = 16
"""The limits are looked at after this many candidates."""


class Kept(NamedTuple):
    """A draft that was found, of the best ones."""

    value_ns: int
    draft: Draft
    rule: int
    """Of the evaluator's table."""


class LayoutClimb:
    """A search over the layouts of one workload."""

    def __init__(
        self, workload: Workload, open_layout: OpenLayout, *, recompute: bool = False, seed: int = 0, plain: bool | None = None
    ) -> None:
        """Prepare; times the named layouts.

        Args:
            workload: what `schedc.verify.workload` accepts.
            open_layout: what may be chosen.
            recompute: whether it may choose which stages recompute, too; then those that `open_layout` names are a start.
            seed: of the random numbers.
            plain: see `Evaluator`.

        Raises:
            Unsupported: the numbers are too large.
        """
        self.workload = workload
        self.best: tuple[Kept, ...] = ()
        """The best layouts, the best first; one for each draft."""
        self._random = Random(seed)
        self._open_layout, self._chunks = open_layout, open_layout.chunks
        self._moves = moves_of(
            partition=open_layout.layers_of_stage is None,
            placement=open_layout.placement is None,
            stages=stage_count(workload, open_layout) is None,
            recompute=recompute and workload.semantics is not Semantics.TORCH,
        )
        self._evaluator = Evaluator(workload, plain=plain)
        rules = self._evaluator.all_rules
        self._starts: list[Kept] = []
        some = rules[:: max(1, len(rules) // START_RULES)]
        for layout in named_layouts(workload, open_layout).values():
            self._start(draft_of(layout), some)
        if not self.best:
            for start in tuple(self._starts):
                self._start(start.draft, rules)
        self._starts.sort(key=lambda kept: kept.value_ns)

    @property
    def evaluated(self) -> int:
        """How many layouts were timed, or refused by a bound."""
        return self._evaluator.evaluated

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The best layouts, the best first."""
        return tuple(kept.draft.layout() for kept in self.best)

    def restart(self) -> None:
        """Forget the layouts found, not those to start with."""
        self.best = ()
        for start in self._starts:
            if start.value_ns < NEVER:
                self._keep(start)

    def run(
        self,
        *,
        evaluations: int | None = None,
        seconds: float | None = None,
        report: Callable[[int, Kept], None] = lambda _evaluated, _best: None,
    ) -> None:
        """Search until this many more layouts were evaluated, or for this long, whichever comes first; or until an exception.

        Args:
            evaluations: the result then depends on nothing but the seed, unless `seconds` end it.
            seconds: of wall-clock time.
            report: is called with how many layouts were evaluated and the best whenever there is a better one.

        Raises:
            ValueError: neither limit is given.
        """
        if evaluations is None and seconds is None:
            raise ValueError("expected a number of evaluations or of seconds")
        if not self._moves or not self._starts:
            return
        begun_s, begun = time.perf_counter(), self.evaluated

        def spent() -> float:
            """The share of the limits that is spent."""
            by_count = 0.0 if evaluations is None else (self.evaluated - begun) / max(1, evaluations)
            return by_count if seconds is None else max(by_count, (time.perf_counter() - begun_s) / seconds)

        for number, (start, heat) in enumerate(ROUNDS):
            known = tuple(self._starts) if number < FROM_STARTS else self.best or tuple(self._starts)
            self._anneal(known[min(start, len(known) - 1)], heat, spent, (number + 1) / len(ROUNDS), report)

    def _anneal(
        self, now: Kept, heat: float, spent: Callable[[], float], until: float, report: Callable[[int, Kept], None]
    ) -> None:
        """Anneal from a draft until this share of the limits is spent."""
        random, evaluator = self._random, self._evaluator
        begun, tries, every = spent(), 0, range(len(evaluator.rules))
        ops = 3 * len(now.draft.ranks) * self.workload.microbatches
        beside = min(MOST_BESIDE, CANDIDATE_OPS // ops)
        part = begun
        while part < until:
            tries += 1
            if tries % LOOK_EVERY == 0:
                part = spent()
            draft: Draft | None = now.draft
            tried = [random.choice(every)]
            if random.random() >= RULE_ALONE:
                draft = changed(now.draft, self._moves, random, self.workload.ranks, self._chunks)
                tried = [now.rule, *random.sample(every, beside)]
                if beside == 0 and random.random() < RULE_BESIDE:
                    tried.append(random.choice(every))
            if draft is None:
                continue
            most_ns = NEVER
            if now.value_ns < NEVER:
                cooled = heat * max(0.0, until - part) / (until - begun)
                most_ns = now.value_ns - int(cooled * now.value_ns * math.log(1 - random.random()))
            enough_ns = most_ns if most_ns < NEVER else 0
            value_ns = evaluator.value(draft, tried, refuse_ns=min(NEVER, most_ns + 1), enough_ns=enough_ns)
            if value_ns <= most_ns:
                now = Kept(value_ns, draft, max(0, evaluator.rule))
                if value_ns < NEVER and self._keep(now):
                    report(evaluator.evaluated, now)

    def finished(self, most: int = KEEP) -> tuple[LaidOut, ...]:
        """The best layouts, each with the schedule of its rule or of `rule_table`, and the baselines; the best first.

        Args:
            most: of this many of the best layouts.
        """
        found = []
        for layout, by_rule in zip(self.layouts[:most], self.scheduled(most), strict=True):
            by_table = laid_out(self.workload, layout, rule_table, "layouts + rule-table")
            both = [each for each in (by_rule, by_table) if each is not None]
            found += sorted(both, key=lambda each: each.objective_ns)[:1]
        found += baselines(self.workload, self._open_layout)
        return tuple(sorted(found, key=lambda each: each.objective_ns))

    def scheduled(self, most: int = KEEP) -> tuple[LaidOut | None, ...]:
        """The best layouts, each with the schedule of its rule; None: that is not within memory.

        Args:
            most: this many of the best layouts.
        """
        return tuple(
            laid_out(
                self.workload, kept.draft.layout(), lambda _, kept=kept: self._evaluator.schedule(kept.draft, kept.rule), "layouts"
            )
            for kept in self.best[:most]
        )

    def _start(self, draft: Draft, rules: NDArray[np.int64]) -> None:
        """Time a draft to start with."""
        value_ns = self._evaluator.value(draft, rules)
        kept = Kept(value_ns, draft, max(0, self._evaluator.rule))
        self._starts.append(kept)
        if value_ns < NEVER:
            self._keep(kept)

    def _keep(self, kept: Kept) -> bool:
        """Keep it among the best, in one assignment; returns whether it is the best."""
        if len(self.best) == KEEP and kept.value_ns >= self.best[-1].value_ns:
            return False
        same = next((other for other in self.best if other.draft == kept.draft), None)
        if same is not None and same.value_ns <= kept.value_ns:
            return False
        others = [other for other in self.best if other is not same]
        self.best = tuple(sorted([*others, kept], key=lambda each: each.value_ns)[:KEEP])
        return self.best[0] is kept
