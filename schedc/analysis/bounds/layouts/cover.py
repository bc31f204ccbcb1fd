"""Whether some ranks can have all layers between them, each rank one of its shares: refuted by prices of layers, or found.

Takes shares as arrays; gives a yes or a no. A no is proven in whole numbers; a yes says nothing. Or a choice of shares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Cuts = NDArray[np.int64]

MOST_PIVOTS = 10_000
"""What is not refuted after this many steps counts as possible."""
SCALE, NOTHING = 2**24, 1e-9
"""Prices are rounded down to a 2^-24; a float below `NOTHING` is rounding."""
UNEVEN = 1e-7
"""By how much right-hand sides differ, so that no two steps tie; what is proven does not depend on them."""


BRANCHES, MOST_DIVES = 4, 48
"""For a layer this many shares are tried, and in all this many choices, where a choice of shares is sought."""

FEWER = 7 / 8
"""Prices of layers, for a choice of shares, are those which refute that this part of the ranks is enough."""


class RankKind(NamedTuple):
    """Ranks that may have the same shares."""

    ranks: int
    cuts: Cuts
    """[4, shares]: a share has the layers [cuts[0], cuts[1]) and [cuts[2], cuts[3]). Sorted by cuts[0]."""


def cover_of(work: Vector, kinds: Sequence[RankKind], spend: Callable[[int], None]) -> list[tuple[int, Cuts]] | None:
    """Shares that have all layers between them, with the number of each one's kind; they may overlap. None: none is found.

    A layer is given to one of the shares whose layers that are left are the dearest, at prices at which fewer ranks could not have
    all, or else by their work; and so on. What cannot be completed is taken back.

    Args:
        work: of each layer, in any unit.
        kinds: of ranks, with their shares.
        spend: is called before every choice, with how many shares there are; may raise.
    """
    choices = 0

    def completed(left: NDArray[np.bool_], counts: tuple[int, ...]) -> list[tuple[int, Cuts]] | None:
        nonlocal choices
        if not left.any():
            return []
        spend(sum(kind.cuts.shape[1] for kind in kinds))
        choices += 1
        ranks = [kind._replace(ranks=count) for kind, count in zip(kinds, counts, strict=True) if count]
        if choices > MOST_DIVES or not ranks or not may_cover(left, ranks):
            return None
        having = np.zeros(left.size + 1, np.int64)
        for kind in ranks:
            for at, sign in enumerate((1, -1, 1, -1)):
                np.add.at(having, kind.cuts[at], sign)
        layer = int(np.where(left, having.cumsum()[:-1], np.iinfo(np.int64).max).argmin())
        prices = _refuting_prices(left, ranks, FEWER)
        sums = np.concatenate([[0.0], np.cumsum(work * left if prices is None else prices)])
        found: dict[tuple[int, float], tuple[float, int, Cuts]] = {}
        for at, kind in enumerate(kinds):
            (a, b, c, d), of_shares = kind.cuts, _of_shares(sums, kind)
            has = np.flatnonzero(((a <= layer) & (layer < b)) | ((c <= layer) & (layer < d))) if counts[at] else np.array([], int)
            for share in has[np.argsort(-of_shares[has], kind="stable")[: 8 * BRANCHES]]:
                found.setdefault((at, of_shares[share]), (of_shares[share], at, kind.cuts[:, share]))
        for _, at, cuts in sorted(found.values(), key=lambda each: -each[0])[:BRANCHES]:
            others = left.copy()
            others[cuts[0] : cuts[1]] = others[cuts[2] : cuts[3]] = False
            rest = completed(others, tuple(count - (at == kind) for kind, count in enumerate(counts)))
            if rest is not None:
                return [(at, cuts), *rest]
        return None

    return completed(np.ones(work.size, bool), tuple(kind.ranks for kind in kinds))


def may_cover(needed: NDArray[np.bool_], kinds: Sequence[RankKind]) -> bool:
    """False only if no choice of a share for each rank has every layer that is needed.

    Proof of a no: let each layer have a price ≥ 0, which is 0 where it is not needed, and no share of kind k cost more than p_k. If
    all prices together are more than the sum of ranks × p_k, whatever the ranks have, some layer is left over.

    Prices are the duals of a linear program: cover the most of the layers with shares that may be divided among ranks. The simplex
    method begins without shares, and adds the dearest ones when those it has give no better prices. How prices are found proves
    nothing: only the check of them, in whole numbers, counts.
    """
    return _refuting_prices(needed, kinds, 1.0) is None


def _refuting_prices(needed: NDArray[np.bool_], kinds: Sequence[RankKind], part: float) -> Vector | None:
    """Prices which refute that this part of the ranks can have all that is needed; None: there are none, or none are found."""
    if any(kind.cuts.shape[1] == 0 for kind in kinds):
        return np.zeros(needed.size)
    layers = needed.size
    size = layers + len(kinds)
    counts = part * np.array([kind.ranks for kind in kinds], np.float64)
    inverse = np.eye(size)  # rows: layers that are not covered, ranks that have nothing yet
    values = np.concatenate([np.ones(layers), counts]) + UNEVEN * np.linspace(1, 2, size)
    costs = np.concatenate([needed, np.zeros(len(kinds))])
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
            if prices.sum() - counts @ most > NOTHING and _is_proof(prices, kinds, part):
                return prices
            found = [
                _column(size, layers + at, kind.cuts[:, share])
                for at, (kind, (cost, shares)) in enumerate(zip(kinds, dearest, strict=True))
                for share in shares[cost + duals[layers + at] > NOTHING]
            ]
            if not found or costs @ values <= layers * size * UNEVEN:
                return None  # these are the best prices
            columns = np.concatenate([columns, np.transpose(found)], axis=1)
            of_column = np.append(of_column, np.zeros(len(found)))
            continue
        step = inverse @ columns[:, enters]
        ratios = np.divide(values, step, out=np.full(size, np.inf), where=step > NOTHING)
        leaves = int(ratios.argmin())
        if np.isinf(ratios[leaves]):
            return None
        pivot = inverse[leaves] / step[leaves]
        values[leaves], step[leaves] = ratios[leaves], 0
        others = np.arange(size) != leaves
        values[others] -= step[others] * ratios[leaves]
        inverse -= np.outer(step, pivot)
        inverse[leaves] = pivot
        costs[leaves] = of_column[enters]
    return None


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


def _is_proof(prices: Vector, kinds: Sequence[RankKind], part: float) -> bool:
    """Whether these prices, rounded down, leave a layer over."""
    whole = np.floor(prices * SCALE).astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(whole)])
    return int(sums[-1]) > part * sum(int(_of_shares(sums, kind).max()) * kind.ranks for kind in kinds)
