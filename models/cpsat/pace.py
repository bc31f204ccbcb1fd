"""The CP-SAT model of a few microbatches in a row that pass the first rank sooner than at some pace; where there are none, none do.

Takes a chain of alike microbatches, one stage on each rank, in ticks; gives a model that has a solution if some microbatch of some
schedule, with F and backward whole, is followed by others that all keep ahead of the pace.

The k-th F, backward and rest (W, or what a fused backward takes longer than B) of a stage belong to the k-th microbatch, whichever
ran (`models.blocks`: this loses nothing). F(r, k) and B(r, k) are their starts, and the *mark* of k is F(0, k) + B(0, k). For
`ahead` microbatches l = 1, 2, … behind microbatch 0: mark(l) - mark(0) < l × pace. With F(0, 0) at 0, other starts rounded down to
ticks, and durations, too, all needs are kept, and mark(l) - mark(0) is less by that, or more by less than a tick: so it is at most
l × pace here. Those before 0, as many as the first rank holds,
are in the model with all they need; had there been fewer, others may be thought before them, of which all is done.

What each solution keeps to, and so each schedule:

- F(r + 1, k) is behind F(r, k), the transfer and the latency; the (k + l)-th of a link's messages is behind the k-th and l more.
  Backwards the same way back, as if each sent its gradient after the gradient part, the least of B and BW.
- On a rank, F and gradient parts exclude each other, F(k) comes before F(k + 1), and backwards likewise.
- Memory: of the microbatches that have begun when F(k) starts, itself among them, the backwards of x have not ended, and the rests
  of y are not done: x whole activations and y - x times what is kept fit. So x is one of the largest few numbers and y no more than
  that leaves, or x is smaller still. Then backward k - x has ended, and rest k - y.
- Rest j ends no sooner than its length, and all F and gradient parts that the rank runs meanwhile, after its gradient part: until
  that ended, no more than the rests before it were done. Only the first rank's rests count, all of them cut as one likes.

A bounded span is enough: where no start lies in an interval longer than any need, all that comes after it can start sooner. No
mark(l) - mark(0) grows by that, as F(0, l) and B(0, l) come after F(0, 0) and B(0, 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    Starts = dict[tuple[int, int], cp_model.IntVar]
    Orders = dict[tuple[int, int, int], cp_model.IntVar]

PAIRS = 3
"""So many pairs of whole and kept activations are told apart."""


@dataclass(frozen=True, slots=True)
class Way:
    """What each microbatch takes, in ticks; per rank in the order of the way, between ranks per link."""

    forward: tuple[int, ...]
    gradient: tuple[int, ...]
    rest: int
    """Of the first rank."""
    there: tuple[tuple[int, int], ...]
    """Occupancy and latency of the forward messages from each rank to the next."""
    back: tuple[tuple[int, int], ...]
    """The same of the gradients to each rank from the next."""
    slots: tuple[int, ...]
    """How many activations fit on each rank, no more than on the first."""
    kept: tuple[int | None, ...]
    """On the first rank, how many rests may not be done when 0, 1, … fewer than `slots` hold a whole activation; None: any."""


def build_pace(way: Way, ahead: int, twice_pace: int) -> cp_model.CpModel:
    """The model: `ahead` microbatches that all keep ahead of the pace, of which twice is given, in ticks per microbatch."""
    from ortools.sat.python import cp_model

    model, slots, ranks = cp_model.CpModel(), way.slots[0], range(len(way.forward))
    numbers = range(-slots, ahead + 1)
    hops = sum((slots + 1) * occupancy + latency for occupancy, latency in way.there + way.back)
    longest = sum(way.forward) + sum(way.gradient) + hops + len(numbers) * (way.forward[0] + way.gradient[0] + way.rest)
    horizon = longest * 2 * len(ranks) * len(numbers)
    f, b = ({(r, k): model.new_int_var(-horizon, horizon, "") for r in ranks for k in numbers} for _ in "FB")
    model.add(f[0, 0] == 0)
    for k in numbers:
        model.add(b[ranks[-1], k] >= f[ranks[-1], k] + way.forward[-1])
        for r in ranks:
            if k < ahead:
                model.add(f[r, k + 1] >= f[r, k] + way.forward[r])
                model.add(b[r, k + 1] >= b[r, k] + way.gradient[r])
        for r in ranks[:-1]:
            for starts, source, target, taken, (occupancy, latency) in (
                (f, r, r + 1, way.forward[r], way.there[r]),
                (b, r + 1, r, way.gradient[r + 1], way.back[r]),
            ):
                for more in range(min(slots, ahead - k) + 1 if occupancy > taken else 1):
                    model.add(starts[target, k + more] >= starts[source, k] + taken + (more + 1) * occupancy + latency)
    returned = _compute(model, way, numbers, f, b)
    for r in ranks:
        for k in numbers[slots:]:
            model.add(f[r, k] >= b[r, k - way.slots[r]] + way.gradient[r])
    for k in numbers[slots:]:
        _memory(model, way, k, f, b, returned)
    for more in range(1, ahead + 1):
        model.add(f[0, more] + b[0, more] - b[0, 0] <= more * twice_pace)
    return model


def _compute(model: cp_model.CpModel, way: Way, numbers: range, f: Starts, b: Starts) -> Orders:
    """F and gradient parts exclude each other; whether on rank r backward j comes before F(k), where either may."""
    before = {
        (r, j, k): model.new_bool_var("")
        for r in range(len(way.forward))
        for k in numbers
        for j in range(max(numbers[0], k - way.slots[0] + 1), k)
    }
    for (r, j, k), is_before in before.items():
        model.add(f[r, k] >= b[r, j] + way.gradient[r]).only_enforce_if(is_before)
        model.add(b[r, j] >= f[r, k] + way.forward[r]).only_enforce_if(~is_before)
        for weaker in ((r, j - 1, k), (r, j, k + 1), (r + 1, j, k)):
            if weaker in before:
                model.add_implication(is_before, before[weaker])
    return before


def _memory(model: cp_model.CpModel, way: Way, k: int, f: Starts, b: Starts, before: Orders) -> None:
    """The pairs that the first rank's limit leaves when F(k) starts."""
    pairs = []
    for fewer in range(min(PAIRS, way.slots[0] - 1) + 1):
        pairs.append(model.new_bool_var(""))
        if fewer:
            model.add_implication(pairs[-1], before[0, k - way.slots[0] + fewer, k])
        kept = way.kept[fewer] if fewer < min(PAIRS, len(way.kept)) else None
        if kept is None or (0, k - kept) not in b:
            continue
        j = k - kept
        meanwhile = [
            way.forward[0] * before.get((0, j, i), 1) + way.gradient[0] * before.get((0, i, k), 1) for i in range(j + 1, k)
        ]
        least = b[0, j] + way.gradient[0] + way.rest + sum(meanwhile)
        model.add(f[0, k] >= least).only_enforce_if(pairs[-1])
    model.add_bool_or(pairs)
