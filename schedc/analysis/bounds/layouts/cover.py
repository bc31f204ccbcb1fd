"""Whether some ranks can have all layers between them, each rank one of its shares: refuted by prices of layers.

Takes shares as arrays; gives a yes or a no. A no is proven in whole numbers; a yes says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Cuts = NDArray[np.int64]

MOST_PIVOTS = 10_000
"""What is not refuted after this many steps counts as possible."""
SCALE, NOTHING = 2**24, 1e-9
"""Prices are rounded down to a 2^-24; a float below `NOTHING` is rounding."""
UNEVEN = 1e-7
"""By how much right-hand sides differ, so that no two steps tie; what is proven does not depend on them."""


class RankKind(NamedTuple):
    """Ranks that may have the same shares."""

    ranks: int
    cuts: Cuts
    """[4, shares]: a share has the layers [cuts[0], cuts[1]) and [cuts[2], cuts[3]). Sorted by cuts[0]."""


def may_cover(layers: int, kinds: Sequence[RankKind]) -> bool:
    """False only if no choice of a share for each rank has every layer once.

    Proof of a no: let each layer have a price ≥ 0, and no share of kind k cost more than p_k. If all prices together are more than
    the sum of ranks × p_k, whatever the ranks have, some layer is left over.

    Prices are the duals of a linear program: cover the most of the layers with shares that may be divided among ranks. The simplex
    method begins without shares, and adds the dearest ones when those it has give no better prices. How prices are found proves
    nothing: only the check of them, in whole numbers, counts.
    """
    if any(kind.cuts.shape[1] == 0 for kind in kinds):
        return False
    size = layers + len(kinds)
    counts = np.array([kind.ranks for kind in kinds], np.float64)
    inverse = np.eye(size)  # rows: layers that are not covered, ranks that have nothing yet
    values = np.concatenate([np.ones(layers), counts]) + UNEVEN * np.linspace(1, 2, size)
    costs = np.concatenate([np.ones(layers), np.zeros(len(kinds))])
    # Columns: this layer may be left over, or this rank have nothing; two ranks may have this layer; shares.
    columns, of_column = np.concatenate([np.eye(size), -np.eye(size)[:, :layers]], axis=1), np.append(costs, np.zeros(layers))
    for _ in range(MOST_PIVOTS):
        duals = costs @ inverse
        gains = duals @ columns - of_column
        enters = int(gains.argmax())
        if gains[enters] <= NOTHING:
            prices = np.maximum(duals[:layers], 0)
            sums = np.concatenate([[0.0], np.cumsum(prices)])
            dearest = [_dearest(sums, kind) for kind in kinds]
            most = np.array([cost.max() for cost, _ in dearest])
            if prices.sum() - counts @ most > NOTHING and _is_proof(prices, kinds):
                return False
            found = [
                _column(size, layers + at, kind.cuts[:, share])
                for at, (kind, (cost, shares)) in enumerate(zip(kinds, dearest, strict=True))
                for share in shares[cost + duals[layers + at] > NOTHING]
            ]
            if not found or costs @ values <= layers * size * UNEVEN:
                return True  # these are the best prices
            columns = np.concatenate([columns, np.transpose(found)], axis=1)
            of_column = np.append(of_column, np.zeros(len(found)))
            continue
        step = inverse @ columns[:, enters]
        ratios = np.divide(values, step, out=np.full(size, np.inf), where=step > NOTHING)
        leaves = int(ratios.argmin())
        if np.isinf(ratios[leaves]):
            return True
        pivot = inverse[leaves] / step[leaves]
        values[leaves], step[leaves] = ratios[leaves], 0
        others = np.arange(size) != leaves
        values[others] -= step[others] * ratios[leaves]
        inverse -= np.outer(step, pivot)
        inverse[leaves] = pivot
        costs[leaves] = of_column[enters]
    return True


def _dearest(sums: Vector, kind: RankKind) -> tuple[Vector, NDArray[np.int64]]:
    """Per first layer, what the dearest share that begins there costs, and which share it is."""
    cost = _of_shares(sums, kind)
    begins = np.flatnonzero(np.diff(kind.cuts[0], prepend=-1))
    most = np.maximum.reduceat(cost, begins)
    which = np.flatnonzero(cost == np.repeat(most, np.diff(begins, append=cost.size)))
    return most, which[np.searchsorted(which, begins)]


def _column(size: int, row: int, cuts: Cuts) -> Vector:
    column = np.zeros(size)
    column[cuts[0] : cuts[1]] = column[cuts[2] : cuts[3]] = column[row] = 1
    return column


def _of_shares(sums: NDArray[Any], kind: RankKind) -> NDArray[Any]:
    """What each share costs, from what the first n layers cost together."""
    cuts = kind.cuts
    cost: NDArray[Any] = sums[cuts[1]] - sums[cuts[0]] + sums[cuts[3]] - sums[cuts[2]]
    return cost


def _is_proof(prices: Vector, kinds: Sequence[RankKind]) -> bool:
    """Whether these prices, rounded down, leave a layer over."""
    whole = np.floor(prices * SCALE).astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(whole)])
    return int(sums[-1]) > sum(int(_of_shares(sums, kind).max()) * kind.ranks for kind in kinds)
