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

MOST_PIVOTS = 600
"""What is not refuted after this many steps counts as possible."""
SCALE, NOTHING = 2**24, 1e-9
"""Prices are rounded down to a 2^-24; a float below `NOTHING` is rounding."""
UNEVEN = 1e-7
"""By how much right-hand sides differ, so that no two steps tie; what is proven does not depend on them."""


class RankKind(NamedTuple):
    """Ranks that may have the same shares."""

    ranks: int
    cuts: Cuts
    """[4, shares]: a share has the layers [cuts[0], cuts[1]) and [cuts[2], cuts[3])."""


def may_cover(layers: int, kinds: Sequence[RankKind]) -> bool:
    """False only if no choice of a share for each rank has every layer once.

    Proof of a no: let each layer have a price ≥ 0, and no share of kind k cost more than p_k. If all prices together are more than
    the sum of ranks × p_k, whatever the ranks have, some layer is left over. Prices are the duals of covering the most of
    the layers with shares that may be divided among ranks (simplex, by columns); only the check of them, in whole numbers, counts.
    """
    if any(kind.cuts.shape[1] == 0 for kind in kinds):
        return False
    size = layers + len(kinds)
    counts = np.array([kind.ranks for kind in kinds], np.float64)
    inverse = np.eye(size)  # rows: layers that are not covered, ranks that have nothing yet
    values = np.concatenate([np.ones(layers), counts]) + UNEVEN * np.linspace(1, 2, size)
    costs = np.concatenate([np.ones(layers), np.zeros(len(kinds))])
    of_slack = costs.copy()
    for _ in range(MOST_PIVOTS):
        duals = costs @ inverse
        column, cost = np.zeros(size), 0.0
        surplus, slack = int(np.argmin(duals[:layers])), int(np.argmax(duals - of_slack))
        if duals[surplus] < -NOTHING:
            column[surplus] = -1  # two ranks may have this layer
        elif duals[slack] - of_slack[slack] > NOTHING:
            column[slack], cost = 1, of_slack[slack]  # this layer may be left over, or this rank have nothing
        else:
            prices, most = np.maximum(duals[:layers], 0), np.zeros(len(kinds))
            sums = np.concatenate([[0.0], np.cumsum(prices)])
            best = (NOTHING, -1, -1)
            for at, kind in enumerate(kinds):
                of_share = _of_shares(sums, kind)
                dearest = int(of_share.argmax())
                most[at] = of_share[dearest]
                best = max(best, (float(most[at] + duals[layers + at]), at, dearest))
            if prices.sum() - counts @ most > NOTHING and _is_proof(prices, kinds):
                return False
            _, at, dearest = best
            if at < 0:
                return True  # these are the best prices
            first, end, again, last = kinds[at].cuts[:, dearest]
            column[first:end] = column[again:last] = column[layers + at] = 1
        step = inverse @ column
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
        costs[leaves] = cost
    return True


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
