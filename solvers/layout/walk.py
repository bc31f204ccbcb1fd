"""One walk of simulated annealing from layout to layout, for one thread."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.layout.evaluation.screen import Screen
from schedc.solvers.layout.moves import changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from schedc.ir.workload import Workload
    from schedc.solvers.layout.layout_arrays import LayoutArrays
    from schedc.solvers.layout.moves import Move

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


class KeptArrays(NamedTuple):
    """A draft that was found, of the best ones."""

    value_ns: int
    draft: LayoutArrays
    rule: int
    """Of the evaluator's table."""


def best_of(found: Iterable[KeptArrays]) -> tuple[KeptArrays, ...]:
    """The best of these, the best first, one for each draft."""
    best: dict[LayoutArrays, KeptArrays] = {}
    for kept in sorted(found, key=lambda each: each.value_ns):
        best.setdefault(kept.draft, kept)
    return tuple(best.values())[:KEEP]


class Walk:
    """An annealer of its own, with its own random numbers and what it has found."""

    def __init__(self, workload: Workload, moves: Sequence[Move], chunks: int, seed: int, *, plain: bool | None = None) -> None:
        """Prepare.

        Args:
            workload: what is to be laid out.
            moves: what may change.
            chunks: at most this many stages on a rank.
            seed: of the random numbers.
            plain: see `LayoutEvaluator`.
        """
        self.screen = Screen(workload, plain=plain)
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
            self.best = best_of([*self.best, kept._replace(value_ns=value_ns)])

    def anneal(self, start: KeptArrays, heat: float, spent: Callable[[], float], until: float) -> None:
        """Anneal from a draft until this share of the limits is spent, and keep the best.

        Until a draft can run, the walk goes to where ranks hold fewer bytes too many.

        Args:
            start: with an estimate, or the objective.
            heat: a draft that is worse by this share is taken with a chance of 1 in e at first, and with none at the end.
            spent: the share of the limits that is spent; is called now and then.
            until: 1 ends with the limits.
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
