"""The bound over layouts in which no rank has more than two stages: what one rank may have, and whether such shares can cover all.

Takes a workload and what is open; gives a lower bound on the objective of every layout. For each way in which one rank can have one
or two pieces of the chain (its *share*), there is a least objective; those above an objective T are left out; where the ranks
cannot have all layers with what is left (`may_cover`), no layout has the objective T.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.bounds.clock import TimeUp, Until, never
from schedc.analysis.bounds.layouts.cover import RankKind, may_cover
from schedc.analysis.bounds.layouts.share_values import SIZE_OF, CrossingWay, SharedChain, ShareValues
from schedc.ir import Device, Objective, OpenLayout, Semantics, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

MOST_LAYERS = 160
"""With more layers, there is no such bound."""
CELLS, OF_BOX = 64, 2**14
"""Looking at this many cuts counts as valuing one share; a box of sizes, as this many more."""
MOST_WORK, MOST_WORK_APART = 2**24, 2**22
"""At most this many shares are valued, which takes some seconds; and this many where how far apart microbatches come counts."""
SIZES = len(SIZE_OF) - 1
CROSSINGS = 3
"""Costs of crossings count as at most this many different ones."""
FIRST_STEP, PRECISION = 6, 10
"""The first objective that is tried is 2^-6 above what is known. The search ends where a refuted one and one that is not are closer
than 2^-10."""


def two_stages_bound(workload: Workload, open_layout: OpenLayout, least_ns: int, until: Until = never) -> int:
    """No layout whose ranks have at most two stages has a schedule with a smaller makespan; `least_ns` where it says no more.

    Assumes: makespan; one path; at most two stages on each rank; memory counts unless a stage is to recompute.

    Proof. Take a layout and a schedule of makespan T. Each rank has a share, and the shares have each layer once. The value of each
    share (`ShareValues`) is at most T. So if `may_cover` is given all shares with such values, and maybe more, it refutes nothing.
    The result is a T that it refutes, plus 1: a smaller T leaves fewer shares.

    With several sites, take the one in which the path begins. The path leaves it, or comes back, at n crossings, behind layers
    x_1 < … < x_n; in between it is on ranks of this site and of others in turn. Of the crossings, i lie before a rank's first
    stage, j between its stages, and k = n - i - j behind both. As both stages are on one rank, j is even; i is even for ranks of
    the first site, and odd for others. The rank's first stage waits for i crossings, its second one for j more; between its last
    activation and the gradient lie k, there and back. Each crossing costs what it costs at the cheapest place where it may lie.

    T is refuted if it is for each first site, each n, and all places of the crossings. Places are looked at in boxes [first, last]
    of each x; a box that is not refuted is halved. Before n crossings, it is asked whether n or more, wherever they lie, with any
    i, j and k, are refuted: if so, no larger n need be looked at.

    A T that is not refuted is asked for again, with how far apart microbatches come. One stage is the largest, by the sum of
    its layers' forwards. T is refuted if it is for each range of what this may be (`SIZE_OF`): shares with a larger stage are left
    out, and that stage's forward takes no less. It is that of every microbatch, before any gradient part of it. A range that is not
    refuted is halved where all crossings have one place.

    Args:
        workload: a chain of layers, without slices.
        open_layout: what may be chosen.
        least_ns: a lower bound that is known.
        until: whether the time is up. What is proven by then is the result; so it is when the work that may be is done.
    """
    ranks = None if open_layout.placement is None else open_layout.placement.rank_of_stage
    chunks = open_layout.chunks if ranks is None else max(Counter(ranks).values())
    is_for = workload.objective is Objective.MAKESPAN and workload.semantics is not Semantics.TORCH
    if not is_for or chunks > 2 or len(workload.layers) > MOST_LAYERS:
        return least_ns
    refuted_ns, covers = least_ns - 1, _Covers(workload, open_layout, until)
    for are_apart in (False, True) if covers.are_linked else ():
        covers.begin(are_apart=are_apart)
        possible_ns, step_ns = covers.one_by_one_ns, max(1, least_ns >> (FIRST_STEP + 2 * are_apart))
        try:
            while possible_ns - refuted_ns > max(1, refuted_ns >> PRECISION):
                middle_ns = min(refuted_ns + step_ns, (refuted_ns + possible_ns) // 2)
                if covers.may_take(middle_ns):
                    possible_ns = middle_ns
                else:
                    refuted_ns, step_ns = middle_ns, 2 * step_ns
        except TimeUp:
            pass
    return refuted_ns + 1


@dataclass(frozen=True, slots=True)
class _Crossings:
    """Where the path leaves its first site or comes back: a box of places."""

    inside: tuple[int, ...]
    """The ranks of the site."""
    first: tuple[int, ...] = ()
    """Per crossing, how many layers lie before it at least."""
    last: tuple[int, ...] = ()
    """The same at most."""
    are_all: bool = True
    """False: there may be more crossings, and they may lie anywhere."""
    sizes: tuple[int, int] | None = None
    """The least and the most that the forward of the largest stage takes, as places in `SIZE_OF`. None: how far apart
    microbatches come is not counted."""

    def halves(self) -> Iterator[_Crossings]:
        """The two boxes that this one has, halved where it is widest; none if each crossing has one place."""
        wide = max(range(len(self.first)), key=lambda at: self.last[at] - self.first[at], default=None)
        if wide is None or self.first[wide] == self.last[wide]:
            if self.sizes is not None and self.sizes[1] - self.sizes[0] > 1:
                least, most = self.sizes
                yield replace(self, sizes=(least, (least + most) // 2))
                yield replace(self, sizes=((least + most) // 2, most))
            return
        middle = (self.first[wide] + self.last[wide]) // 2
        for first, last in ((self.first[wide], middle), (middle + 1, self.last[wide])):
            firsts, lasts = [*self.first[:wide], first, *self.first[wide + 1 :]], [*self.last[:wide], last, *self.last[wide + 1 :]]
            for at in range(wide + 1, len(firsts)):
                firsts[at] = max(firsts[at], firsts[at - 1] + 1)
            for at in reversed(range(wide)):
                lasts[at] = min(lasts[at], lasts[at + 1] - 1)
            yield replace(self, first=tuple(firsts), last=tuple(lasts))


class _Covers:
    """The crossings that layouts may have, and the shares that ranks may have with each."""

    def __init__(self, workload: Workload, open_layout: OpenLayout, until: Until) -> None:
        self._chain = SharedChain(workload, open_layout, until)
        self._devices = self._chain.workload.devices
        self.one_by_one_ns = self._chain.one_by_one_ns
        self.are_linked = bool(np.isfinite(self._chain.hops).all())
        """Whether any two ranks have links both ways."""
        self._values: dict[tuple[Device, CrossingWay], ShareValues] = {}
        self._most = min(open_layout.stages or 2 * workload.ranks, self._chain.layers) - 1
        sites: dict[int, list[int]] = {}
        for rank, site in enumerate(workload.network.site_of_rank):
            sites.setdefault(site, []).append(rank)
        self._sites = [tuple(ranks) for ranks in sites.values()]
        self._hops: dict[tuple[int, ...], list[Vector]] = {}
        every = [(a, b) for inside in self._sites for a in inside for b in range(workload.ranks) if b not in inside]
        self._busy_ns = self._chain.busy_over(every)
        for inside in self._sites:
            pairs = [(a, b) for a in inside for b in range(workload.ranks) if b not in inside]
            ways = (self._chain.hops_over(pairs), self._chain.hops_over([(b, a) for a, b in pairs]))
            self._hops[inside] = [_classes(np.where(np.isfinite(hops), hops, self.one_by_one_ns)) for hops in ways]
        self._may: _Crossings | None = None  # what was not refuted last
        self._sizes: tuple[int, int] | None = None

    def begin(self, *, are_apart: bool) -> None:
        """Ask anew, with how far apart microbatches come or without; work is counted anew, too."""
        self._may, self._sizes = None, (0, SIZES) if are_apart else None
        self._chain.begin(MOST_WORK_APART if are_apart else MOST_WORK)

    def may_take(self, most_ns: int) -> bool:
        """False only if no layout has a schedule of this makespan."""
        if self._may is not None and self._may_cross(most_ns, self._may):
            return True
        if len(self._sites) == 1:
            return self._may_be(most_ns, _Crossings(self._sites[0], sizes=self._sizes))
        return any(self._may_from(most_ns, inside) for inside in self._sites)

    def _may_from(self, most_ns: int, inside: tuple[int, ...]) -> bool:
        layers = self._chain.layers
        for number in range(1, self._most + 1):
            box = tuple(range(1, number + 1)), tuple(range(layers - number, layers))
            if not self._may_cross(most_ns, _Crossings(inside, *box, are_all=False, sizes=self._sizes)):
                return False
            if self._may_be(most_ns, _Crossings(inside, *box, sizes=self._sizes)):
                return True
        return False

    def _may_be(self, most_ns: int, crossings: _Crossings) -> bool:
        """Whether a layout may cross in some place of this box."""
        self._chain.spend(0 if crossings.sizes is None else OF_BOX)
        if not self._may_cross(most_ns, crossings):
            return False
        halves = [*crossings.halves()]
        if not halves:
            self._may = crossings
        return not halves or any(self._may_be(most_ns, half) for half in halves)

    def _may_cross(self, most_ns: int, crossings: _Crossings) -> bool:
        kinds = []
        for is_inside in (True, False):
            ranks = [rank for rank in range(len(self._devices)) if (rank in crossings.inside) == is_inside]
            for device, number in Counter(self._devices[rank] for rank in ranks).items():
                kinds.append(RankKind(number, self._shares(most_ns, device, crossings, 0 if is_inside else 1)))
        return may_cover(self._chain.layers, kinds)

    def _shares(self, most_ns: int, device: Device, crossings: _Crossings, odd: int) -> NDArray[np.int64]:
        """The largest shares that ranks with this device may have; `odd` is 0 for ranks of the first site, 1 for others."""
        count, layers = len(crossings.first), self._chain.layers
        first, last = (0, *crossings.first), (*crossings.last, layers)
        ends = np.zeros((layers + 1,) * 3, np.int64)
        for i, j in product(range(count + 1), repeat=2):
            if i + j > count or (crossings.are_all and (i % 2 != odd or j % 2)):
                continue
            self._chain.spend((layers + 1) ** 3 / CELLS)
            known = self._values_of(device, self._way(crossings, i, j)).ends(most_ns)
            # Stages between crossings i and i + 1, and i + j and i + j + 1; one stage alone lies so if nothing is between.
            a, b, c = slice(first[i], last[i]), slice(first[i] + 1, last[i] + 1), slice(first[i + j], last[i + j])
            may = np.minimum(known[a, b, c], last[i + j])
            may = np.where(may > np.arange(layers + 1)[c], may, 0)
            ends[a, b, c] = np.maximum(ends[a, b, c], may)
            if not j:
                ends[a, b, layers] = np.maximum(ends[a, b, layers], known[a, b, layers])
        if crossings.sizes is not None:
            fits = self._chain.stages_within(crossings.sizes[1])
            ends = np.where(np.arange(layers + 1)[:, None] <= fits[:, None, None], np.minimum(ends, fits), 0)
        return _largest(ends)

    def _way(self, crossings: _Crossings, before: int, between: int) -> CrossingWay:
        """What a share waits for that has this many of the crossings before it, and between its stages."""
        busy, least_ns = None, 0
        if crossings.sizes is not None:
            parts = (range(before), range(before, before + between), range(before + between, len(crossings.first)))
            busy = tuple(self._busy_ns if part else (0, 0) for part in parts)
            least_ns = self._chain.size_ns(crossings.sizes[0])
        if not crossings.first:
            return CrossingWay(busy=busy, largest=least_ns)
        costs = np.array(
            [
                self._hops[crossings.inside][at % 2][:, first : last + 1].min(axis=1)
                for at, (first, last) in enumerate(zip(crossings.first, crossings.last, strict=True))
            ],
            np.int64,
        )
        if not crossings.are_all or len(costs) > 2:  # few different ones
            costs[:] = np.min([hops[:, 1:-1].min(axis=1) for hops in self._hops[crossings.inside]], axis=0)
        on, back = costs.cumsum(axis=0).T
        sums = [np.append(0, each)[[before, before + between, len(costs)]] for each in (on, back)]
        (before_ns, second_ns, all_ns), (before_back_ns, second_back_ns, all_back_ns) = (map(int, each) for each in sums)
        return CrossingWay(
            before=before_ns,
            before_back=before_back_ns,
            between=second_ns - before_ns,
            between_back=second_back_ns - before_back_ns,
            behind=all_ns - second_ns + all_back_ns - second_back_ns,
            is_apart=between > 0,
            busy=busy,
            largest=least_ns,
        )

    def _values_of(self, device: Device, way: CrossingWay) -> ShareValues:
        if (device, way) not in self._values:
            least = None
            if way != CrossingWay():
                least = self._values_of(device, replace(way, busy=None, largest=0) if way.busy is not None else CrossingWay())
            self._values[device, way] = ShareValues(self._chain, device, way, least)
        return self._values[device, way]


def _largest(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """[4, shares]: those that lie in no other share, from the largest last cut by the first three."""
    is_in = np.zeros(ends.shape, bool)
    is_in[1:] |= ends[:-1] >= ends[1:]
    is_in[:, :-1] |= ends[:, 1:] >= ends[:, :-1]
    is_in[:, :, 1:] |= ends[:, :, :-1] >= ends[:, :, 1:]
    first, end, again = np.nonzero((ends > 0) & ~is_in)
    return np.array([first, end, again, ends[first, end, again]])


def _classes(hops: Vector) -> Vector:
    """The costs of crossings, as few different ones: those of similar cost count as the least of them."""
    found = hops.copy()
    order = 1 + np.argsort(hops[:, 1:-1].sum(axis=0), kind="stable")
    for some in np.array_split(order, CROSSINGS):
        if some.size:
            found[:, some] = hops[:, some].min(axis=1)[:, None]
    return found
