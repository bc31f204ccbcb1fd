"""Which steps are measured: all of them where steps are long, else every n-th, so that measuring takes the same share of any step.

All ranks must measure the same steps: who sends on a wire stamps what its receiver expects. So one rank finds n from how long its
steps take, and leaves it in the job's store some steps before it holds; all ranks take it with the same step: with step 16, 32, 64,
128, and with every 256th. That is one question to the store, whose answer is there already.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from schedc.ir import Problem
from schedc.runtime.common.failure import TransferFailed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


GAP_PER_LINK_S = 0.15
"""How much time lies at least between two steps that are measured, for each link of the rank that has the most: measuring one takes
0.3 to 1 ms of CPU in a step, and should take about 0.5 % of it at most. In a pipeline all steps of 0.6 s and more are measured."""
FIRST, LAST = 16, 256
"""The first step with which n is taken, and how often in the end."""
AHEAD = 4
"""This many steps before, n is there. No rank is more than one step behind another, as all wait for the loss."""
TIMED = 5
"""From this many last steps it is found how long one takes."""


class Sampling:
    """One rank's view. A step is numbered as its pipe numbers it."""

    def __init__(self, store: Store, rank: int, least_gap_s: float) -> None:
        """Measure all steps at first.

        The plan's ranks, and they alone, share the store; rank 0 finds n. `least_gap_s` lies between two steps that are measured;
        0: all are.
        """
        self.now = True
        """Whether the step that runs, or runs next, is measured."""
        self.every = 1
        """n."""
        self._store = store
        self._rank = rank
        self._least_gap_s = least_gap_s
        self._ended_ns: deque[int] = deque(maxlen=TIMED + 1)

    def ended(self, step: int, now_ns: int) -> None:
        """A step has ended.

        Raises:
            TransferFailed: the job's store is lost.
        """
        self._ended_ns.append(now_ns)
        try:
            if self._rank == 0 and _takes(step + AHEAD):
                step_ns = median(after - before for before, after in pairwise(self._ended_ns))
                every = max(1, math.ceil(self._least_gap_s * 1e9 / max(1.0, step_ns)))
                self._store.set(_key(step + AHEAD), str(every))
            if _takes(step):
                self.every = int(self._store.get(_key(step)))
        except RuntimeError as error:
            raise TransferFailed(
                f"rank {self._rank} asks in the job's store which steps are measured: the store is lost:"
                f" {str(error).splitlines()[0]}"
            ) from error
        self.now = (step + 1) % self.every == 0


def _takes(step: int) -> bool:
    """Whether n is taken when this step has ended."""
    return step >= FIRST and (step & (step - 1) == 0 if step < LAST else step % LAST == 0)


def _key(step: int) -> str:
    return f"measured-steps/{step}"


def most_links(problem: Problem) -> int:
    """How many links the rank with the most of them has, both directions counted."""
    ends = Counter(rank for link in problem.links for rank in (link.source, link.destination))
    return max(ends.values(), default=0)
