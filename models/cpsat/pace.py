"""The CP-SAT model of a few microbatches in a row that keep ahead of a pace. Without a solution, no schedule has such microbatches.

Takes a chain of alike microbatches, with one stage on each rank, in ticks. If some schedule whose F and backwards are whole has a
microbatch that is followed by `ahead` others, all of them ahead of the pace, the model has a solution. It is a relaxation: a
solution need not be a schedule.

Numbers. Microbatch k of a stage is its k-th F, its k-th backward and its k-th rest, whichever microbatches these were of: this
loses nothing (`models.blocks`). A backward counts as a *gradient part*, as long as the shorter of B and BW, and a *rest*: what the
shorter of B + W and BW takes longer. The gradient is sent after the gradient part.

Pace. F(r, k) and B(r, k) are the starts of F and gradient part k on rank r. The pace is a time for each microbatch. The *mark* of k
is B(m, k), of one rank m. Microbatches l = 1, …, `ahead` keep ahead of the pace if mark(l) - mark(0) < l × pace, for each of them.
Why B and not F? Much of the model must come after B(m, 0): it frees memory for which later F wait. Ops that need not are free in
the model. For F as the mark these are most; for a rank behind a slow link, also gradients on their way to it. So marks differ.

Ticks. Let B(m, 0) be at time 0, and round all other starts and all durations down to ticks: all needs are still kept, and no mark
grows. The pace is given in finer units than ticks. Marks are whole ticks, so each is at most the last tick before l × pace.

The model has microbatches 0, …, `ahead`, each as an F and a gradient part on every rank, and the needs among these. Microbatches
before 0 are left out. As many F as the first rank's memory holds may come before B(m, 0), at any time.

What each solution keeps to, and so each schedule:

- F(r + 1, k) follows F(r, k), the occupancy of the link and its latency. Message k + l of a link follows message k, and l more
  occupancies. Gradients go the other way in the same manner.
- On a rank, F and gradient parts exclude each other, F(k) comes before F(k + 1), and gradient part k before k + 1.
- Memory of each rank: gradient part k - `slots` has ended when F(k) starts, as no more whole activations fit.
- Memory of the first rank: let F(k) start, and count it. Of the microbatches that have begun, x have not ended their gradient
  parts, and y have not ended their rests. Each of the x holds a whole activation, each of the other y - x what is kept for its
  rest; all these must fit. So either x is one of the few largest possible numbers, and y is at most what this x leaves room for;
  or x is smaller. In the model, x and y are bounded by which gradient part has ended, k - x, and which rest, k - y.
- When gradient part j ends, no more rests can be done than those before j. So rest j ends no sooner than after its own length and
  all F and gradient parts that the rank runs in between. Rests of other ranks do not count, and rests may be cut anywhere.

Variables have bounds. Where an interval without a start is longer than any need, all starts behind it can be earlier. That makes no
mark(l) - mark(0) larger, as B(m, l) comes after B(m, 0). So some solution spans no more than `horizon`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    Starts = dict[tuple[int, int], cp_model.IntVar]
    Orders = dict[tuple[int, int, int], cp_model.IntVar]

MOST_PAIRS = 3
"""For how many of the largest x (memory of the first rank, above) y has a limit of its own."""
PARTS = 16
"""Paces are whole numbers of 1/16 tick per microbatch. Whole ticks are too coarse: over many microbatches a tick each adds up."""


@dataclass(frozen=True, slots=True)
class ChainTicks:
    """What each microbatch takes, in ticks; per rank in the order of the path, between two ranks per link."""

    forward: tuple[int, ...]
    gradient: tuple[int, ...]
    rest: int
    """Of the first rank."""
    forward_hops: tuple[tuple[int, int], ...]
    gradient_hops: tuple[tuple[int, int], ...]
    """Occupancy and latency, of the messages from each rank to the next, and of the gradients to each rank from the next."""
    slots: tuple[int, ...]
    """How many whole activations fit on each rank, no more than on the first."""
    kept: tuple[int, ...]
    """On the first rank, the most y when x is `slots`, `slots` - 1, …, for `MOST_PAIRS` at most; empty: y has no limit."""
    marked: int
    """The rank whose gradient parts are the marks."""


def build_pace(chain: ChainTicks, ahead: int, pace: int) -> cp_model.CpModel:
    """The model of microbatch 0 and `ahead` others that all keep ahead of the pace, which is in 1/`PARTS` ticks per microbatch."""
    from ortools.sat.python import cp_model

    model, slots, ranks, numbers = cp_model.CpModel(), chain.slots[0], range(len(chain.forward)), range(ahead + 1)
    hops = sum((slots + 1) * occupancy + latency for occupancy, latency in chain.forward_hops + chain.gradient_hops)
    longest = sum(chain.forward) + sum(chain.gradient) + hops + len(numbers) * (chain.forward[0] + chain.gradient[0] + chain.rest)
    horizon = longest * 2 * len(ranks) * len(numbers)
    f, b = ({(r, k): model.new_int_var(-horizon, horizon, "") for r in ranks for k in numbers} for _ in "FB")
    model.add(b[chain.marked, 0] == 0)
    for k in numbers:
        model.add(b[ranks[-1], k] >= f[ranks[-1], k] + chain.forward[-1])
        for r in ranks:
            if k < ahead:
                model.add(f[r, k + 1] >= f[r, k] + chain.forward[r])
                model.add(b[r, k + 1] >= b[r, k] + chain.gradient[r])
        for r in ranks[:-1]:
            for starts, source, target, taken, (occupancy, latency) in (
                (f, r, r + 1, chain.forward[r], chain.forward_hops[r]),
                (b, r + 1, r, chain.gradient[r + 1], chain.gradient_hops[r]),
            ):
                for more in range(min(slots, ahead - k) + 1 if occupancy > taken else 1):
                    model.add(starts[target, k + more] >= starts[source, k] + taken + (more + 1) * occupancy + latency)
    before = _compute(model, chain, numbers, f, b)
    for r in ranks:
        for k in numbers[chain.slots[r] :]:
            model.add(f[r, k] >= b[r, k - chain.slots[r]] + chain.gradient[r])
    for k in numbers[slots:]:
        _memory(model, chain, k, f, b, before)
    for k in numbers[1:]:
        model.add(b[chain.marked, k] <= (k * pace - 1) // PARTS)
    return model


def _compute(model: cp_model.CpModel, chain: ChainTicks, numbers: range, f: Starts, b: Starts) -> Orders:
    """F and gradient parts exclude each other. Gives, by (r, j, k), whether gradient part j of rank r precedes F(k), if open."""
    before = {
        (r, j, k): model.new_bool_var("")
        for r in range(len(chain.forward))
        for k in numbers
        for j in range(max(0, k - chain.slots[0] + 1), k)
    }
    for (r, j, k), is_before in before.items():
        model.add(f[r, k] >= b[r, j] + chain.gradient[r]).only_enforce_if(is_before)
        model.add(b[r, j] >= f[r, k] + chain.forward[r]).only_enforce_if(~is_before)
        for weaker in ((r, j - 1, k), (r, j, k + 1), (r + 1, j, k)):
            if weaker in before:
                model.add_implication(is_before, before[weaker])
    return before


def _memory(model: cp_model.CpModel, chain: ChainTicks, k: int, f: Starts, b: Starts, before: Orders) -> None:
    """When F(k) starts, one of the pairs holds that the first rank's limit allows: x is `fewer` below `slots`, or still smaller."""
    pairs = []
    for fewer in range(min(MOST_PAIRS, chain.slots[0] - 1) + 1):
        pairs.append(model.new_bool_var(""))
        if fewer:
            model.add_implication(pairs[-1], before[0, k - chain.slots[0] + fewer, k])
        if fewer >= len(chain.kept) or (0, k - chain.kept[fewer]) not in b:
            continue
        j = k - chain.kept[fewer]
        meanwhile = [
            chain.forward[0] * before.get((0, j, i), 1) + chain.gradient[0] * before.get((0, i, k), 1) for i in range(j + 1, k)
        ]
        least = b[0, j] + chain.gradient[0] + chain.rest + sum(meanwhile)
        model.add(f[0, k] >= least).only_enforce_if(pairs[-1])
    model.add_bool_or(pairs)
