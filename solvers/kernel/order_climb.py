"""Local search over the orders themselves: change them, time them, keep what is no worse; kernels, compiled.

Changes are those of `order_changes`. Orders are timed on one problem, or under many conditions (samples): then the mean of their
ends counts, or a percentile. While a climb is warm it also keeps some worse orders, as in simulated annealing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from schedc.compiled.compiler import compiled
from schedc.compiled.kernel import kernel, variant
from schedc.ir import Problem
from schedc.solvers.kernel.critical_path import Critical, critical_of, trace
from schedc.solvers.kernel.draws import Draws, draw, fraction
from schedc.solvers.kernel.joints import takes_joints
from schedc.solvers.kernel.numbering import Numbering, number_anew, unnumbered
from schedc.solvers.kernel.order_changes import Undo, change_at_random, copy_orders, saved_of, take_back
from schedc.solvers.kernel.order_evaluator import (
    Orders,
    ProblemArrays,
    Sampled,
    Workspace,
    example_facts,
    unsampled,
    value_of,
    workspace_of,
)
from schedc.solvers.kernel.tables import KINDS, NEVER as STRANDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

DRAWS = 16
"""Random numbers that a move takes, at most but for rare cases."""


def _example() -> tuple[Any, ...]:
    facts, row = example_facts(), np.zeros(1, np.int64)
    sampled = unsampled(np.zeros((4, 1, 1), np.int64))
    orders, stop = Orders(np.zeros((1, 1), np.int64), row), np.zeros(1, np.bool_)
    given = facts, sampled.duration[0], sampled
    rooms = workspace_of(facts), saved_of(orders), critical_of(orders), unnumbered(1)
    return *given, orders, orders, orders, *rooms, (0,) * 4, 0, draw(0, 1), 0.0, 0.0, stop


@kernel(_example, lean=True)
def polish(
    facts: ProblemArrays,
    duration: Any,
    sampled: Sampled,
    orders: Orders,
    current: Orders,
    best: Orders,
    scratch: Workspace,
    saved: Undo,
    critical: Critical,
    numbering: Numbering,
    ranges: Any,
    evaluations: int,
    draws: Draws,
    heat: float,
    cooling: float,
    stop: Any,
) -> Any:
    """Change the orders this many times; `orders` becomes the best that is found.

    Where there are samples, the random number that decides about a worse value is drawn before the timing. `value_of` then knows
    the largest value that would be kept, and stops where that is exceeded. Without samples it is drawn only where it decides.

    Args:
        facts: the problem; of samples, changed to each of them.
        duration: how long ops take, [kind, stage, microbatch] as of `time_orders`, in ns; changed likewise.
        sampled: the samples, or none.
        orders: the start, and the best at the end.
        current: room for orders; at the end, those that it would go on from.
        best: room for orders.
        scratch: room for the timing.
        saved: room to undo a change.
        critical: room for the critical path.
        numbering: the numbers of microbatches that are alike.
        ranges: of `change_at_random`.
        evaluations: how many changes.
        draws: random numbers.
        heat: how much worse orders may be that are kept, at first, as a share of the best value.
        cooling: how much that falls until the end.
        stop: one entry; set to true by another thread, it ends the search after the change at hand.

    Returns:
        The value of the best, `value_of`'s, in ns.
    """
    samples = len(sampled.share)
    # Where numbers follow from the order, a B may be fused with the W of any microbatch of its stage.
    again = len(facts.stage_rank) * KINDS * (facts.microbatches if numbering.members.shape[1] == 0 else 1)
    current_ns = value_of(facts, duration, sampled, orders, scratch, 1.0 * STRANDED)
    best_ns = current_ns
    copy_orders(orders, current)
    copy_orders(orders, best)
    if numbering.members.shape[1] > 0 and current_ns < STRANDED:  # where other ranks keep other numbers, each change makes it worse
        for rank in range(len(current.lengths)):
            number_anew(facts, current, rank, numbering)
        current_ns = value_of(facts, duration, sampled, current, scratch, 1.0 * STRANDED)
        if current_ns < best_ns:
            best_ns = current_ns
            copy_orders(current, best)
    if samples == 0:
        trace(facts, duration, current, scratch, critical, True)
    for number in range(evaluations):
        if stop[0]:
            break
        if not change_at_random(facts, current, saved, critical, numbering, ranges, draws, again):
            take_back(current, saved)
            continue
        limit_ns = current_ns
        warm = heat - cooling * number / evaluations
        if samples > 0 and warm > 0:
            limit_ns = current_ns - warm * best_ns * math.log(1.0 - fraction(draws))
        moved_ns = value_of(facts, duration, sampled, current, scratch, limit_ns)
        if moved_ns <= limit_ns or (
            samples == 0
            and moved_ns < STRANDED
            and warm > 0
            and fraction(draws) < math.exp((current_ns - moved_ns) / (warm * best_ns))
        ):
            current_ns = moved_ns
            if samples == 0:
                # Where links are slow, now the one path leads further, now the other.
                trace(facts, duration, current, scratch, critical, number % 2 == 0)
            if moved_ns < best_ns:
                best_ns = moved_ns
                copy_orders(current, best)
        else:
            take_back(current, saved)
    copy_orders(best, orders)
    return best_ns


polish_chain = variant(polish, "polish_chain", without=("GRAPHS",))
"""`polish` for chains of whole microbatches."""


def polish_kernel(problem: Problem) -> Callable[..., Any]:
    """The form of `polish` that is compiled for the problem."""
    return polish if takes_joints(problem) else polish_chain


class OrderClimber:
    """The compiled kernel at work on one problem, or on its samples, for one thread."""

    def __init__(
        self,
        facts: ProblemArrays,
        sampled: Sampled,
        numbering: Numbering,
        ranges: tuple[int, int, int],
        warmth: float = 1.0,
        cooling: float = math.inf,
    ) -> None:
        """Waits until the kernel is compiled.

        The problem and its samples, or how long its ops take (`unsampled`), stay as they are; `ranges` are those of
        `change_at_random`, without the 2; `warmth` multiplies every heat, which falls by `cooling` in each climb, at most to 0.
        """
        own = facts._replace(latency=facts.latency.copy(), occupancy=facts.occupancy.copy())
        self._given = own, sampled.duration[0].copy(), sampled._replace(ends_ns=sampled.ends_ns.copy())
        self._numbering = Numbering(*(each.copy() for each in numbering))
        self._ranges, self._room, self._heat = (2, *ranges), workspace_of(facts), (warmth, cooling)
        self._polish = compiled(polish if facts.slices else polish_chain)
        self.reached: Orders  # where the last climb ended, which may be later than its best

    def climb(self, orders: Orders, evaluations: int, seed: int, heat: float, stop: NDArray[np.bool_]) -> float:
        """Make that many changes of the orders, which become the best found; gives the value of these, in ns."""
        draws = draw(seed, DRAWS * evaluations)
        self.reached, (warmth, cooling) = orders.copy(), self._heat
        rooms = self.reached, orders.copy(), self._room, saved_of(orders), critical_of(orders), self._numbering, self._ranges
        given: tuple[Any, ...] = *self._given, orders, *rooms, evaluations, draws, warmth * heat, min(warmth * heat, cooling), stop
        value_ns: float = self._polish(*given)
        return value_ns
