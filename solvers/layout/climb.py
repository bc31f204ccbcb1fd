"""The search over layouts: simulated annealing over boundaries, the ranks of stages, merges and splits, recomputation and rules.

It begins with the named layouts (`schedc.solvers.layout.baselines`). A candidate is first held against a lower bound, then timed
under the rule of the draft that it comes from and at times under another one (`schedc.solvers.layout.evaluation`), so layouts and
schedules move together. Where there are many microbatches, candidates are timed with fewer, and only what seems best with all.
It may end at any moment: what it has found is whole after every candidate.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from threading import Event
from typing import TYPE_CHECKING

from schedc.ir import OpenLayout, Semantics, Workload
from schedc.lower.split_head import without_head
from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.layout.baselines import named_layouts, stage_count
from schedc.solvers.layout.evaluation.evaluate import Screen
from schedc.solvers.layout.layout_arrays import KeptArrays, LayoutArrays, layout_arrays_of
from schedc.solvers.layout.moves import changed, moves_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from schedc.solvers.layout.layout_arrays import ScheduledLayout
    from schedc.solvers.layout.moves import Move

START_RULES, ALL_RULES = 12, 4
"""A starting layout is tried under this many rules, evenly taken from the table; this many of the best starts under all of them."""
ROUNDS = ((True, 0.03), (True, 0.03), (False, 0.01), (False, 0.003))
"""The rounds of a climb, of equal length: whether they start with a named layout, one after the other, or with the best found; and
how hot: a draft that is worse by this share is taken with a chance of 1 in e at first, and with none at the end."""
KEEP = 8
"""This many of the best layouts are kept."""
RULE_ALONE, RULE_BESIDE = 0.1, 0.3
"""How often a candidate is the same draft under another rule; and, on large problems, how often another rule is tried beside its
own."""
CANDIDATE_OPS, MOST_BESIDE = 4000, 12
"""On small ones, other rules are tried until one makes the candidate good enough: about this many ops, at most this many rules."""
UPHILL = 0.03
"""While no draft can run: how often one is taken whose ranks hold even more bytes too many."""
LOOK_EVERY = 16
"""The limits are looked at after this many candidates."""


def _best_of(found: Iterable[KeptArrays]) -> tuple[KeptArrays, ...]:
    """The best of these, the best first, one for each draft."""
    best: dict[LayoutArrays, KeptArrays] = {}
    for kept in sorted(found, key=lambda each: each.value_ns):
        best.setdefault(kept.draft, kept)
    return tuple(best.values())[:KEEP]


class LayoutClimb:
    """A search over the layouts of one workload."""

    def __init__(
        self,
        workload: Workload,
        open_layout: OpenLayout,
        *,
        seed: int = 0,
        plain: bool | None = None,
        workers: int = 1,
    ) -> None:
        """Prepare; times the named layouts.

        Args:
            workload: what `schedc.verify.workload` accepts, of whole microbatches.
            open_layout: what may be chosen; whether the head is split is given.
            seed: of the random numbers.
            plain: see `LayoutEvaluator`.
            workers: this many walks beside each other, each in a thread.

        Raises:
            Unsupported: the numbers are too large.
        """
        self._name = open_layout.placement_name
        (split_head,) = open_layout.heads
        self._moves = moves_of(
            without_head(workload) if split_head else workload,
            partition=open_layout.layers_of_stage is None,
            placement=open_layout.placement is None,
            stages=stage_count(workload, open_layout) is None,
            recompute=open_layout.recompute_is_open and workload.semantics is not Semantics.TORCH,
        )
        self._walks = [
            _Walk(workload, self._moves, open_layout.chunks, seed + 1_000_003 * number, plain=plain, split_head=split_head)
            for number in range(workers)
        ]
        first = self._walks[0]
        rules = range(len(first.screen.whole.rules))
        drafts = list(dict.fromkeys(layout_arrays_of(layout) for layout in named_layouts(workload, open_layout).values()))
        some = rules[:: max(1, len(rules) // START_RULES)]
        starts = sorted((first.start(draft, some) for draft in drafts), key=lambda each: each.value_ns)
        tuned = [first.start(start.draft, rules) for start in starts[:ALL_RULES]]
        for start in tuned:
            first.keep(start)
        self._named = first.best
        self._starts = sorted((*tuned, *starts[ALL_RULES:]), key=lambda each: each.value_ns)
        self._reported_ns = self.best[0].value_ns if self.best else NEVER

    @property
    def best(self) -> tuple[KeptArrays, ...]:
        """The best layouts, the best first; one for each draft."""
        return _best_of(kept for walk in self._walks for kept in walk.best)

    @property
    def evaluated(self) -> int:
        """How many layouts were timed, or refused by a bound."""
        return sum(walk.screen.evaluated for walk in self._walks)

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

    def scheduled(self, most: int = KEEP) -> list[ScheduledLayout]:
        """This many of the best layouts, each with the schedule of its rule; those for which that is within memory."""
        evaluator = self._walks[0].screen.whole
        made = (evaluator.scheduled(kept, self._name, "layouts") for kept in self.best[:most])
        return [each for each in made if each is not None]


class _Walk:
    """An annealer of its own, with its own random numbers and what it has found."""

    def __init__(
        self,
        workload: Workload,
        moves: Sequence[Move],
        chunks: int,
        seed: int,
        *,
        plain: bool | None = None,
        split_head: bool = False,
    ) -> None:
        """Prepare.

        Args:
            workload: what is to be laid out.
            moves: what may change.
            chunks: at most this many stages on a rank.
            seed: of the random numbers.
            plain: see `LayoutEvaluator`, as for `split_head`.
            split_head: see there.
        """
        self.screen = Screen(workload, plain=plain, split_head=split_head)
        self.best: tuple[KeptArrays, ...] = ()
        """The best layouts, with their objectives, not estimates; the best first."""
        self._random, self._workload, self._moves, self._chunks = Random(seed), workload, tuple(moves), chunks

    def start(self, draft: LayoutArrays, rules: Sequence[int]) -> KeptArrays:
        """An estimate of a draft to start with, under the best of these rules."""
        value_ns = self.screen.value(draft, rules)
        return KeptArrays(value_ns, draft, max(0, self.screen.rule))

    def keep(self, kept: KeptArrays) -> None:
        """Time it with all microbatches, and keep it if it is among the best: in one assignment."""
        value_ns = kept.value_ns if self.screen.is_exact else self.screen.whole.value(kept.draft, [kept.rule])
        if value_ns < NEVER and (len(self.best) < KEEP or value_ns < self.best[-1].value_ns):
            self.best = _best_of([*self.best, kept._replace(value_ns=value_ns)])

    def anneal(self, start: KeptArrays, heat: float, spent: Callable[[], float], until: float) -> None:
        """Anneal from a draft until this share of the limits is spent, and keep the best.

        Until a draft can run, the walk goes to where ranks hold fewer bytes too many. `start` has an estimate, or the objective. A
        draft that is worse by the share `heat` is taken with a chance of 1 in e at first, and with none at the end. `spent` gives
        the share of the limits that is spent; they end at 1.
        """
        random, screen = self._random, self.screen
        every = range(len(screen.whole.rules))
        now = self.start(start.draft, [start.rule, *every] if start.value_ns >= NEVER or not screen.is_exact else [start.rule])
        over_bytes, record_ns = screen.over_bytes, now.value_ns
        self.keep(now)
        ops = 3 * len(now.draft.ranks) * self._workload.microbatches
        beside = min(MOST_BESIDE, CANDIDATE_OPS // ops)
        begun, tries = spent(), 0
        part = begun
        while part < until:
            tries += 1
            if tries % LOOK_EVERY == 0:
                part = spent()
            draft: LayoutArrays | None = now.draft
            tried = [random.choice(every)]
            if random.random() >= RULE_ALONE:
                draft = changed(now.draft, self._moves, random, self._workload.ranks, self._chunks)
                tried = [now.rule, *random.sample(every, beside)]
                if beside == 0 and random.random() < RULE_BESIDE:
                    tried.append(random.choice(every))
            if draft is None:
                continue
            most_ns = NEVER
            if now.value_ns < NEVER:
                cooled = heat * max(0.0, until - part) / (until - begun)
                most_ns = now.value_ns - int(cooled * now.value_ns * math.log(1 - random.random()))
            value_ns = screen.value(draft, tried, min(NEVER, most_ns + 1), most_ns if most_ns < NEVER else 0)
            if value_ns > most_ns:
                continue
            if value_ns == NEVER and (screen.over_bytes < 0 or (screen.over_bytes > over_bytes and random.random() >= UPHILL)):
                continue
            now, over_bytes = KeptArrays(value_ns, draft, max(0, screen.rule)), screen.over_bytes
            if value_ns < NEVER and (screen.is_exact or value_ns < record_ns):
                record_ns = min(record_ns, value_ns)
                self.keep(now)
        if not screen.is_exact:
            self.keep(now)
