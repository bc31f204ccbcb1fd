"""The least period by questions that are small: of schedules near the best, which find, and of some ranks, which refute.

What is known goes in and gets better. Near the best: all ranks run ops in its order, but where two are a few places apart; or some
neighbours run theirs in any. Most of these are refuted in no time, and those with an answer have one soon. Of some ranks: what the
others do counts as latency, so that few Booleans are left; what they cannot do is a proof for all.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from schedc.solvers.common.base import SolverStatus
from schedc.solvers.exact.modulo_questions import Near, ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.solvers.exact.modulo_questions import Known

NEAR_SHARE, PART_SHARE = 0.03, 0.015
"""Of what is left of a limit, a question near the best gets at most the first share, one of some ranks the second."""
BUILDS = 0.04
"""A model of all ranks is large if building it takes more than this part of what is left of a limit. Then nothing is asked near the
best schedule."""
HALVINGS = 4
"""How often the periods between one that some ranks refute and the best are halved."""


def climb(known: Known, until: float) -> None:
    """Ask for shorter periods near the best schedule, wider and wider, until this much of the limits is spent."""
    ranks, reach, least_left = known.problem.ranks, 1, known.left.least
    while reach <= max(ranks, 4) and known.build_s() <= BUILDS * least_left:
        best_ns, answers = known.best_ns, 0
        for near in _nears(ranks, reach):
            cut_ns = max(1, (known.best_ns - known.lower_ns) // 8)
            while not known.is_proven and not known.is_over and known.spent < until:
                status = ask(known, known.best_ns - cut_ns, NEAR_SHARE, near=near)
                answers += status is not SolverStatus.UNKNOWN
                if status in (SolverStatus.INFEASIBLE, SolverStatus.UNKNOWN):
                    if cut_ns == 1:
                        break
                    cut_ns = 1
        if known.is_proven or known.is_over or known.spent >= until or not answers:
            return
        reach = reach + 1 if known.best_ns == best_ns else 1


def _nears(ranks: int, reach: int) -> Iterator[Near]:
    """All ranks, and each few neighbours."""
    yield Near(range(ranks), reach + 1)
    for first in range(ranks - reach + 1 if reach < ranks else 0):
        yield Near(range(first, first + reach), 1 << 30)


def ask_of_parts(known: Known, until: float) -> None:
    """Refute periods by few ranks, then by more, until this much of the limits is spent; first those that have refuted some."""
    ranks, good = known.problem.ranks, set[int]()
    for size in range(1, ranks):
        for some in sorted(combinations(range(ranks), size), key=lambda each: (-len(good & set(each)), each[-1] - each[0], each)):
            period_ns, high_ns = known.lower_ns, known.best_ns
            for _ in range(HALVINGS):
                if known.is_proven or known.is_over or known.spent >= until or period_ns >= high_ns:
                    break
                if ask(known, period_ns, PART_SHARE, ranks=some) is SolverStatus.INFEASIBLE:
                    good = set(some)
                else:
                    high_ns = period_ns
                period_ns = (known.lower_ns + high_ns) // 2
