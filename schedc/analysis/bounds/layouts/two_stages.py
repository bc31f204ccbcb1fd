"""The bound over layouts in which no rank has more than two stages: what one rank may have, and whether such shares can cover all.

Takes a workload and what is open; gives a lower bound on the objective of every layout. For each way in which one rank can have one
or two pieces of the chain (its *share*), there is a least objective; those above an objective T are left out; where the ranks
cannot have all layers with what is left (`may_cover`), no layout has the objective T.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.bounds.clock import TimeUp, Until, check, never
from schedc.analysis.bounds.layouts.cover import RankKind, may_cover
from schedc.analysis.bounds.layouts.share_values import CrossingWay, SharedChain, ShareValues
from schedc.ir import Device, Objective, OpenLayout, Semantics, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

MOST_SHARES = 2**20
"""With more layers than have this many shares, there is no such bound."""
CROSSINGS = 3
"""Costs of crossings count as at most this many different ones."""
PRECISION = 10
"""Objectives are refuted up to 2^-10 of the least that is not."""


def two_stages_bound(workload: Workload, open_layout: OpenLayout, least_ns: int, until: Until = never) -> int:
    """No layout whose ranks have at most two stages has a schedule with a smaller makespan; `least_ns` where it says no more.

    Assumes: makespan; one path; at most two stages on each rank; memory counts unless a stage may recompute.

    Proof. Take a layout and a schedule of makespan T. Each rank has a share, and the shares have each layer once. A share's value
    (`ShareValues`) is no more than T; so `may_cover` does not refute the shares with such values. The result is a T that it
    refutes, plus 1: with less, fewer shares are left.

    With several sites, the path leaves its first site for the first time behind some layer x. All layers before x are on ranks of
    that site. A share there may have both stages before x, and is away for the crossing and its return at least; or one before and
    one behind x, with a crossing more in between; or both behind x. One of another site lies behind x, and waits for the crossing.
    T is refuted if it is for each x and first site.

    Args:
        workload: a chain of layers, without slices.
        open_layout: what may be chosen.
        least_ns: a lower bound that is known; it is the result if the time is up before more is proven.
        until: whether the time is up.
    """
    ranks = None if open_layout.placement is None else open_layout.placement.rank_of_stage
    chunks = open_layout.chunks if ranks is None else max(Counter(ranks).values())
    layers = len(workload.layers)
    is_for = workload.objective is Objective.MAKESPAN and workload.semantics is not Semantics.TORCH
    if not is_for or chunks > 2 or layers**4 // 24 > MOST_SHARES:
        return least_ns
    try:
        covers = _Covers(workload, open_layout, until)
        return _least_refuted_ns(covers, least_ns) if covers.are_linked else least_ns
    except TimeUp:
        return least_ns


def _least_refuted_ns(covers: _Covers, least_ns: int) -> int:
    """The least of what is not refuted of all crossings."""
    best_ns: int | None = None
    for crossing in covers.crossings():
        if best_ns is not None and not covers.may_take(best_ns - 1, crossing):
            continue
        refuted_ns, step_ns = least_ns - 1, max(1, least_ns >> PRECISION)
        most_ns = covers.one_by_one_ns if best_ns is None else best_ns - 1
        while refuted_ns < most_ns and not covers.may_take(min(most_ns, refuted_ns + step_ns), crossing):
            refuted_ns, step_ns = min(most_ns, refuted_ns + step_ns), 2 * step_ns
        if refuted_ns == most_ns:
            continue  # no layout that crosses there has room
        possible_ns = min(most_ns, refuted_ns + step_ns)
        while possible_ns - refuted_ns > max(1, refuted_ns >> PRECISION):
            middle_ns = (refuted_ns + possible_ns) // 2
            if covers.may_take(middle_ns, crossing):
                possible_ns = middle_ns
            else:
                refuted_ns = middle_ns
        best_ns = refuted_ns + 1
        if best_ns <= least_ns:
            break
    return least_ns if best_ns is None else max(least_ns, best_ns)


@dataclass(frozen=True, slots=True)
class _Crossing:
    """The first crossing: behind which layer, from ranks of which site, and what it costs; of one site, none."""

    layer: int
    inside: tuple[int, ...]
    ways: tuple[CrossingWay, ...]
    """Of shares before it, of those parted by it, of those behind it; of one site, of all."""


class _Covers:
    """The crossings that layouts may have, and the shares that ranks may have with each."""

    def __init__(self, workload: Workload, open_layout: OpenLayout, until: Until) -> None:
        self._chain = SharedChain(workload, open_layout, until)
        self._network, self._devices = workload.network, workload.devices
        self.one_by_one_ns = self._chain.one_by_one_ns
        self.are_linked = bool(np.isfinite(self._chain.hops).all())
        """Whether any two ranks have links both ways."""
        self._values: dict[tuple[Device, CrossingWay], ShareValues] = {}

    def crossings(self) -> Iterator[_Crossing]:
        """All first crossings, those in the middle first."""
        sites: dict[int, list[int]] = {}
        known: dict[tuple[int, ...], tuple[Vector, Vector]] = {}
        for rank, site in enumerate(self._network.site_of_rank):
            sites.setdefault(site, []).append(rank)
        if len(sites) == 1:
            yield _Crossing(self._chain.layers, tuple(range(len(self._devices))), (CrossingWay(),))
            return
        for at in sorted(range(1, self._chain.layers), key=lambda layer: abs(2 * layer - self._chain.layers)):
            seen = set()
            for inside in map(tuple, sites.values()):
                outside = [rank for rank in range(len(self._devices)) if rank not in inside]
                if inside not in known:
                    out = self._chain.hops_over([(a, b) for a in inside for b in outside])
                    into = self._chain.hops_over([(b, a) for a in inside for b in outside])
                    known[inside] = _classes(out), into[:, 1:-1].min(axis=1)
                out, (again, again_back) = known[inside]
                forth, back = out[:, at]
                if np.isinf(forth):
                    continue
                both = int(forth + back)
                forth, back = int(forth), int(back)
                again, again_back = (int(each) if np.isfinite(each) else self.one_by_one_ns for each in (again, again_back))
                ways = (
                    CrossingWay(behind=both),
                    CrossingWay(between=forth + again, between_back=back + again_back, is_apart=True),
                    CrossingWay(before=forth, before_back=back),
                )
                devices = [Counter(self._devices[rank] for rank in some) for some in (inside, outside)]
                key = (ways, *(frozenset(each.items()) for each in devices))
                if key not in seen:
                    seen.add(key)
                    yield _Crossing(at, inside, ways)

    def may_take(self, most_ns: int, crossing: _Crossing) -> bool:
        """False only if no layout with this crossing has a schedule of this makespan."""
        first, end, again, last = self._chain.shares
        is_pair, layer = again < last, crossing.layer
        way_of = np.zeros(first.shape, np.int8)
        if len(crossing.ways) > 1:
            way_of = np.where(first >= layer, 2, np.where(np.where(is_pair, last, end) <= layer, 0, 1))
            way_of[(way_of == 1) & ((end > layer) | (again < layer) | ~is_pair)] = 3  # none: it has both what is before and behind
        kinds = []
        for is_inside in (True, False):
            ranks = [rank for rank in range(len(self._devices)) if (rank in crossing.inside) == is_inside]
            for device, number in Counter(self._devices[rank] for rank in ranks).items():
                ways = [*enumerate(crossing.ways)] if is_inside else [(2, crossing.ways[-1])]
                values = [(self._values_of(device, way), way_of == at) for at, way in ways]
                kinds.append(RankKind(number, self._chain.shares[:, self._largest(values, most_ns)]))
        check(self._chain.until)
        return may_cover(self._chain.layers, kinds)

    def _largest(self, values: list[tuple[ShareValues, NDArray[np.bool_]]], most_ns: int) -> NDArray[np.int64]:
        """Of those with the same first three cuts, the largest share whose value is at most this; each in the values that hold."""
        may_be = np.logical_or.reduce([which & known.at_most(most_ns) for known, which in values])
        chosen = np.flatnonzero(may_be)
        largest: NDArray[np.int64] = chosen[np.diff(self._chain.groups[chosen], prepend=-1) != 0]
        return largest

    def _values_of(self, device: Device, way: CrossingWay) -> ShareValues:
        if (device, way) not in self._values:
            self._values[device, way] = ShareValues(self._chain, device, way)
        return self._values[device, way]


def _classes(hops: Vector) -> Vector:
    """The costs of crossings, as few different ones: those of similar cost count as the least of them."""
    found = hops.copy()
    order = 1 + np.argsort(hops[:, 1:-1].sum(axis=0), kind="stable")
    for some in np.array_split(order, CROSSINGS):
        if some.size:
            found[:, some] = hops[:, some].min(axis=1)[:, None]
    return found
