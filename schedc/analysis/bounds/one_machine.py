"""The bounds of one resource: work that must wait before it starts and be followed by something after it ends.

Takes jobs of one resource (a rank, a link, a trunk), each with a head, a duration and a tail; gives the least time in which any
schedule can end, however it orders or interrupts them. Where it is a rank, its backwards are each fused or split: what is split
sends its gradient early, and is more work. Then it is the least time in which any schedule can end, whichever of the backwards it
fuses. Where BW is no less than B + W, splitting costs nothing, and both bounds are the same.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_PRICES = 8
"""For this many relations between what splitting costs and what it brings forward the bound is computed."""


class Task(NamedTuple):
    """Work of one resource. Identical jobs may be one job of their total duration: no better set holds only some of them."""

    head_ns: int
    """It cannot start earlier."""
    duration_ns: int
    tail_ns: int
    """After its end, at least this must pass until everything has ended."""


def one_machine_bound(jobs: Iterable[Task]) -> int:
    """The largest, over all sets of jobs, of least head + total duration + least tail; 0 without jobs.

    Proof that it is a bound: the jobs of any set run one at a time, none before the set's least head, and the last to end is
    followed by at least the set's least tail. Proof that this computes it: Jackson's preemptive rule (always run the released job
    with the longest tail) reaches that value and no schedule with interruptions can beat it (Carlier, 1982, proposition 1).
    """
    waiting = sorted(jobs, reverse=True)
    running: list[tuple[int, int]] = []  # (−tail, remaining)
    now_ns = best_ns = 0
    while waiting or running:
        if not running:
            now_ns = max(now_ns, waiting[-1].head_ns)
        while waiting and waiting[-1].head_ns <= now_ns:
            job = waiting.pop()
            heapq.heappush(running, (-job.tail_ns, job.duration_ns))
        minus_tail_ns, remaining_ns = heapq.heappop(running)
        if waiting and waiting[-1].head_ns < now_ns + remaining_ns:
            heapq.heappush(running, (minus_tail_ns, now_ns + remaining_ns - waiting[-1].head_ns))
            now_ns = waiting[-1].head_ns
        else:
            now_ns += remaining_ns
            best_ns = max(best_ns, now_ns - minus_tail_ns)
    return best_ns


class Backward(NamedTuple):
    """Backwards of one rank that are alike, each of them fused or split. The gradient part is the first min(B, BW) of the work."""

    microbatches: int
    gradient_ns: int
    fused_ns: int
    """BW."""
    split_ns: int
    """B and W together; BW where the backward may not be split."""
    head_ns: int
    """It cannot start earlier."""
    later_head_ns: int
    """What is not its gradient part cannot start earlier."""
    gradient_tail_ns: int
    """After its gradient part, at least this must pass until everything has ended."""
    sent_tail_ns: int
    """After it has sent its gradient, BW or B having ended."""
    after_ns: int | None
    """After all of it has ended. None: its W counts only where it is part of BW."""

    @property
    def rest_ns(self) -> int:
        """What the better of fused and split takes beyond the gradient part; 0 where W does not count."""
        return 0 if self.after_ns is None else min(self.fused_ns, self.split_ns) - self.gradient_ns

    @property
    def price(self) -> tuple[int, int] | None:
        """What splitting brings forward, and what it costs; None where it brings nothing or costs nothing."""
        early_ns, more_ns = self.fused_ns - self.gradient_ns, self.split_ns - self.fused_ns
        return None if self.after_ns is None or early_ns <= 0 or more_ns <= 0 else (early_ns, more_ns)


def mixture_bound(tasks: Iterable[Task | Backward]) -> int:
    """The least, over all choices of fused and split, of what `one_machine_bound` says at least; 0 without tasks.

    Proof. Let x be 0 for a fused backward and 1 for a split one, all sums over backwards. Two kinds of bounds hold for every x:

    - work(x) = least head + F's + Σ (BW + x (B + W − BW)) + least tail for every set of F's and all backwards, as the rank runs one
      block at a time.
    - For a set of F's, gradient parts, and ends of backwards, head and tail being the least of the set: head + F's + gradient parts
      + Σ (BW − gradient part) (1 − x) + tail. Of a fused backward, all of BW has run when the gradient is sent. The best set
      without the last sum is `one_machine_bound` of the gradient parts and rests; with all of it, x being 0, of all fused.

    A schedule is no shorter than any weighted mean of the two. With weights p and q in which no backward gains by being split,
    p (B + W − BW) ≥ q × d, d being what counts as its end in the set, d ≤ BW − gradient part, x = 0 is best. What remains of the
    rest after d counts with what follows the whole backward.

    Where all backwards have the same costs, the number k of split ones decides, for any k alike: the bound is the least over k of
    the larger of work(k) and that of all fused less k × (BW − gradient part), which for fewer than k backwards in a set is no more
    than their gradient parts say.
    """
    given = list(tasks)
    backwards = [task for task in given if isinstance(task, Backward)]
    plain = [task for task in given if isinstance(task, Task)]
    bound_ns = one_machine_bound([*plain, *_pieces(backwards, 0, 1)])
    prices = sorted({price for each in backwards if (price := each.price) is not None})
    if not prices:
        return bound_ns
    work_ns = _least_work_ns(plain, backwards)
    for early_ns, more_ns in prices[:: -(-len(prices) // MOST_PRICES)]:
        fused_ns = one_machine_bound([*plain, *_pieces(backwards, early_ns, more_ns)])
        if len(prices) == 1 and all(each.price for each in backwards):
            fewest = max(0, fused_ns - work_ns) // (early_ns + more_ns)
            least_ns = min(max(work_ns + k * more_ns, fused_ns - k * early_ns) for k in (fewest, fewest + 1))
        else:
            least_ns = work_ns + -(-max(0, fused_ns - work_ns) * more_ns // (early_ns + more_ns))
        bound_ns = max(bound_ns, least_ns)
    return bound_ns


def _least_work_ns(plain: Sequence[Task], backwards: Sequence[Backward]) -> int:
    """The end of all work of a rank, no backward being split: that of the best set of F's, and all backwards.

    F's run as soon as their heads let them until a backward can start; idle time between them is not made up for by any split.
    """
    first_ns = min(each.head_ns for each in backwards)
    now_ns = later_ns = 0
    for task in sorted(plain):
        if task.head_ns < first_ns:
            now_ns = max(now_ns, task.head_ns) + task.duration_ns
        else:
            later_ns += task.duration_ns
    work_ns = sum(each.microbatches * (each.gradient_ns + each.rest_ns) for each in backwards)
    after_ns = min([*(task.tail_ns for task in plain), *(each.after_ns or 0 for each in backwards)])
    return max(now_ns, first_ns) + later_ns + work_ns + after_ns


def _pieces(backwards: Sequence[Backward], early_ns: int, more_ns: int) -> Iterable[Task]:
    """The work of the backwards in which, at this price, none gains by being split; at (0, 1) what holds however they are split."""
    for each in backwards:
        yield Task(each.head_ns, each.microbatches * each.gradient_ns, each.gradient_tail_ns)
        end_ns = 0
        if early_ns and each.price is not None:
            end_ns = min(each.price[0], each.price[1] * early_ns // more_ns)
            yield Task(each.later_head_ns, each.microbatches * end_ns, each.sent_tail_ns)
        rest_ns = each.rest_ns - end_ns
        if rest_ns > 0:
            yield Task(each.later_head_ns, each.microbatches * rest_ns, each.after_ns or 0)
