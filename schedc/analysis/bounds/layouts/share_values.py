"""What one rank may have of a chain, one piece or two: every such share, and the least makespan that each leaves its rank.

Takes a workload and what is open. A share is four cuts: it has layers [cuts[0], cuts[1]) and [cuts[2], cuts[3]). Gives, for a
makespan and the first three cuts, the largest last cut whose share's value is no more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import ceil, floor
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.bounds.clock import TimeUp, check
from schedc.analysis.bounds.layouts.pieces import microbatch_values, pieces_of
from schedc.analysis.bounds.layouts.share_gaps import RankShares, idle_ns
from schedc.ir import Device, Link, OpenLayout, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.analysis.bounds.clock import Until
    from schedc.analysis.bounds.layouts.pieces import Matrix, Pieces

    Vector = NDArray[np.float64]
    Cuts = NDArray[np.int64]

MOST_GAPS = 2**31
"""Above this many shares × microbatches × activations at once, idle gaps are not counted."""
OF_GAPS = 16
"""Valuing a share with its idle gaps is as much work as valuing this many without."""
AT_ONCE, GAPS_AT_ONCE = 2**14, 2**16
"""Shares are looked at in parts of this many, which fit a cache. Where idle gaps are counted, a part has this many pairs of a share
and a microbatch at most."""
SIZE_OF = (0.0, *(2 ** (part / 4 - 6) for part in range(1, 25)))
"""Ends of the ranges of sizes that the largest stage is looked for in: its forwards as a share of the whole chain's."""
EXACT = 1 - 1e-11
"""Floats are this exact."""


@dataclass(frozen=True, slots=True)
class CrossingWay:
    """What of the path's crossings a share must wait for, in ns."""

    before: int = 0
    """Before its first stage, on the way there."""
    before_back: int = 0
    """After its first stage, on the way back."""
    between: int = 0
    """From the first stage to the second one."""
    between_back: int = 0
    behind: int = 0
    """There and back, behind all of its stages."""
    is_apart: bool = False
    """Its two stages are parted by crossings, so that hops beside them do not count."""
    busy: tuple[tuple[int, int], ...] | None = None
    """How long a message, and a gradient, takes its link at the crossings before its stages, between and behind them; at least.
    None: how far apart microbatches come is not counted."""
    largest: int = 0
    """The forward of the largest stage takes at least this."""


class SharedChain:
    """What is known of a workload's layers, ranks and shares."""

    def __init__(self, workload: Workload, open_layout: OpenLayout, until: Until) -> None:
        self._until, self._work, self._most_work, again = until, 0, 0, all(open_layout.recompute)
        if any(open_layout.recompute):  # memory does not count then
            workload = replace(workload, devices=tuple(Device(speed=each.speed) for each in workload.devices))
        self.workload = replace(workload, static_bytes=(min(workload.static_bytes),))
        self.given = open_layout.layers_of_stage
        self.all_alike = replace(
            open_layout, placement=None, layers_of_stage=None, recompute=(again,), recompute_is_open=open_layout.recompute_is_open
        )
        self.layers, self.ranks = len(workload.layers), workload.ranks
        self._of_device: dict[Device, Pieces] = {}
        values = [microbatch_values(workload, layer, recompute=again) for layer in workload.layers]
        forward = [min(each[0] for each in of_layer) for of_layer in values]
        split = workload.split_backward
        gradient = [min(min(each[1], each[3]) if split else each[3] for each in of_layer) for of_layer in values]
        self._sums = [np.array([0, *accumulate(durations)], np.float64) for durations in (forward, gradient)]
        self._longest = np.zeros((2, self.layers + 1, self.layers + 1))
        for of_kind, durations in zip(self._longest, (forward, gradient), strict=True):
            for layer, duration in enumerate(durations):
                of_kind[: layer + 1, layer + 1 :] = np.maximum(of_kind[: layer + 1, layer + 1 :], duration)
        self._fastest = float(max(device.speed for device in workload.devices))
        self._slack = 0.0 if all(device.speed == 1 for device in workload.devices) else 0.5
        every = range(workload.ranks)
        self.hops = self.hops_over([(a, b) for a in every for b in every if a != b])
        slowest = min(device.speed for device in workload.devices)
        all_ns = sum(max(sum(each) for each in of_layer) for of_layer in values) / slowest
        links = [link for a in every for b in every if a != b and (link := workload.network.link(a, b)) is not None]
        most = max((max(layer.message_bytes, layer.gradient_message_bytes) for layer in workload.layers), default=0)
        hop_ns = max((link.latency_ns + link.occupancy_ns(most) for link in links), default=0)
        self.one_by_one_ns = workload.microbatches * ceil(all_ns + 4 * self.ranks * (2 + hop_ns))
        """No less than the makespan of one microbatch after another, in any layout."""

    def begin(self, most_work: int) -> None:
        """Count work anew, up to this much."""
        self._work, self._most_work = 0, most_work

    def spend(self, work: float) -> None:
        """Count work, in shares that are valued; raises TimeUp where the time is up, or all that may be is done."""
        check(self._until)
        self._work += ceil(work)
        if self._work > self._most_work:
            raise TimeUp

    def passed_ns(self, kind: int, first: Cuts | int, last: Cuts | int) -> Vector:
        """What all layers from the one to the other take at least, of forwards (0) or gradient parts (1)."""
        sums = self._sums[kind]
        blocks = np.minimum(np.subtract(last, first), 2 * self.ranks)
        passed: Vector = np.maximum(0, (sums[last] - sums[first]) / self._fastest - self._slack * blocks)
        return passed

    def size_ns(self, size: int) -> int:
        """What a stage takes at least whose forwards are this size (`SIZE_OF`) of the whole chain's."""
        return max(0, floor(float(self._sums[0][-1]) * SIZE_OF[size] * EXACT / self._fastest - self._slack))

    def stages_within(self, size: int) -> Cuts:
        """Per first layer, the end of the largest stage whose forwards are no more than this size of the whole chain's."""
        sums = self._sums[0]
        ends: Cuts = np.searchsorted(sums * EXACT, sums + sums[-1] * SIZE_OF[size], side="right") - 1
        return ends

    def longest_ns(self, kind: int, first: Cuts | int, last: Cuts | int) -> Vector:
        """What the longest layer from the one to the other takes at least, of forwards (0) or gradient parts (1)."""
        longest: Vector = np.maximum(0, self._longest[kind, first, last] / self._fastest - self._slack)
        return longest

    def busy_over(self, pairs: list[tuple[int, int]]) -> tuple[int, int]:
        """How long any message takes its link at least, and any gradient the link back."""
        network, layers = self.workload.network, self.workload.layers[:-1]
        links = [(there, again) for a, b in pairs if (there := network.link(a, b)) and (again := network.link(b, a))]
        on = [there.occupancy_ns(layer.message_bytes) for there, _ in links for layer in layers]
        back = [again.occupancy_ns(layer.gradient_message_bytes) for _, again in links for layer in layers]
        return min(on, default=0), min(back, default=0)

    def hops_over(self, pairs: list[tuple[int, int]]) -> Vector:
        """[2, layers + 1]: what a message behind n layers and its gradient take over the best of the links; 0 at the ends."""
        layers, network = self.workload.layers, self.workload.network
        best = np.zeros((2, len(layers) + 1))
        best[:, 1:-1] = np.inf
        links: set[tuple[Link, ...]] = set()
        for a, b in pairs:
            there, again = network.link(a, b), network.link(b, a)
            if there is not None and again is not None:
                links.add(tuple(replace(link, source=0, destination=1, trunk=None) for link in (there, again)))
        for there, again in links:
            on = [there.latency_ns + there.occupancy_ns(layer.message_bytes) for layer in layers[:-1]]
            back = [again.latency_ns + again.occupancy_ns(layer.gradient_message_bytes) for layer in layers[:-1]]
            best[:, 1:-1] = np.minimum(best[:, 1:-1], [on, back])
        return best

    @cached_property
    def begins(self) -> Cuts:
        """[3, shares]: the first three cuts of all shares; of one stage, the last of them is the end."""
        first, end, again = np.ogrid[: self.layers + 1, : self.layers + 1, : self.layers + 1]
        return np.array(np.nonzero((first < end) & (end <= again)))

    def pieces(self, device: Device) -> Pieces:
        """What layers cost as a stage on a rank with this device."""
        if device not in self._of_device:
            self._of_device[device] = pieces_of(self.workload, self.all_alike, device, 0)
        return self._of_device[device]


class ShareValues:
    """Per share on a rank with this device, the least makespan that its rank leaves; what memory makes it idle, where it matters.

    Proof. The rank's steps for a microbatch are the forwards of its stages and their gradient parts in the other order; heads and
    tails of these are the least times of the path, all other layers on the fastest rank. For steps p ≤ q, all work lies behind p's
    head and before q's tail, but some of earlier steps before the one, and of later steps and of rests behind the other
    (`one_machine`). Of earlier steps that is no more than what microbatches bring that have come by then: each passes, one by one
    in any order, every layer and every crossing's link before the step, so that the j-th comes j − 1 times the longest of these
    after the first one might. So, backwards in time, of later steps. Memory: `residency_bound_of_rank`, and the idle time of gaps
    (`idle_ns`) besides the rank's work.
    """

    def __init__(self, chain: SharedChain, device: Device, way: CrossingWay, least: ShareValues | None = None) -> None:
        """Nothing is valued yet; `least` has values of the same shares that are no larger, as without crossings."""
        self._chain, self._pieces, self._way, self._least = chain, chain.pieces(device), way, least
        self._capacity, self._in_flight = device.capacity_bytes, device.in_flight
        self._is_limited = (device.capacity_bytes, device.in_flight, device.limit_bytes) != (None, None, None)
        self._known: dict[int, Cuts] = {}

    def ends(self, most_ns: int) -> Cuts:
        """[first, end, again]: the largest last cut with which the share's value is at most this; 0: there is none.

        A last cut is sought downwards. It is at most what was found for a longer makespan, else the last one with which the work
        alone does not take too long; and at most what `least` says. It is at least what was found for a shorter makespan.
        """
        if most_ns not in self._known:
            first, end, again = self._chain.begins
            size, less = self._chain.layers, [each for each in self._known if each < most_ns]
            more = [each for each in self._known if each > most_ns]
            known = self._known[max(less)][first, end, again] if less else np.zeros_like(first)
            last = self._known[min(more)][first, end, again] if more else self._last_by_work(most_ns)
            if self._least is not None:
                last = np.minimum(last, self._least.ends(most_ns)[first, end, again])
            last = np.where(last < np.minimum(again + 1, size), 0, last)
            left, at_once = np.flatnonzero(last > known), 1
            while left.size:  # the next few last cuts at a time, as few shares take nearly as long as many
                failed, steps = [], np.arange(at_once)
                for begin in range(0, left.size, max(1, AT_ONCE // at_once)):
                    part = left[begin : begin + max(1, AT_ONCE // at_once)]
                    lasts = last[part, None] - steps
                    may = (lasts > known[part, None]) & ((steps == 0) | (lasts > again[part, None]))
                    which, step = np.nonzero(may)
                    some = part[which]
                    may[which, step] = self._may_take(np.array([first[some], end[some], again[some], lasts[which, step]]), most_ns)
                    last[part] = np.where(may.any(axis=1), lasts[np.arange(part.size), may.argmax(axis=1)], last[part] - at_once)
                    failed.append(part[~may.any(axis=1)])
                left, at_once = np.concatenate(failed), 4 * at_once
                last[left] = np.where(last[left] > again[left], last[left], 0)
                left = left[last[left] > known[left]]
            found = np.zeros((size + 1,) * 3, np.int64)
            found[first, end, again] = np.maximum(last, known)
            self._known[most_ns] = found
        return self._known[most_ns]

    def _last_by_work(self, most_ns: int) -> Cuts:
        """The last cut of the largest share whose work, after the forwards before it, takes no longer."""
        first, end, again = self._chain.begins
        work = self._pieces.forwards_ns + self._pieces.backwards_ns
        left = most_ns / EXACT - self._chain.passed_ns(0, 0, first) - work[first, end]
        last, step = again.copy(), 1 << self._chain.layers.bit_length()
        while step:
            farther = np.minimum(last + step, self._chain.layers)
            last = np.where(work[again, farther] <= left, farther, last)
            step //= 2
        return np.where(left >= 0, last, 0)

    def _may_take(self, cuts: Cuts, most_ns: int) -> NDArray[np.bool_]:
        """Which shares have a value of at most this."""
        self._chain.spend(cuts.shape[1])
        share, number = _Share(self, cuts), self._chain.workload.microbatches
        may = self._without_gaps_ns(share) * EXACT <= most_ns
        if self._is_limited:
            # Gaps are counted for what memory adds. Where all microbatches fit at once, it makes none wait.
            keeps_out = may & (share.room_bytes < number * sum(share.bytes))
            for has_two in (False, True):
                left = np.flatnonzero(keeps_out & (share.has_two == has_two))
                for some in np.array_split(left, number * left.size // GAPS_AT_ONCE + 1):
                    if some.size:
                        self._chain.spend(OF_GAPS * some.size)
                        may[some] = self._with_gaps_ns(_Share(self, cuts[:, some])) * EXACT <= most_ns
        return may

    def _without_gaps_ns(self, share: _Share) -> Vector:
        number = self._chain.workload.microbatches
        work_ns, rests_ns, begin_ns, tail_ns = share.work_ns, share.rests_ns, share.begin_ns, share.tail_ns
        found, whole_ns, all_rests_ns = np.zeros_like(share.away_ns), sum(work_ns) + sum(rests_ns), sum(rests_ns)
        before_ns, after_ns = share.outside_ns(number)
        for p in range(4):
            counts = np.full(found.shape, True) if p in (0, 3) else share.has_two
            rests_before_ns = rests_ns[0] if p == 3 else 0
            idle_ns = np.zeros_like(found)
            for q in range(p, 4):
                here = tail_ns[q] - after_ns[q] - (all_rests_ns - rests_before_ns)
                idle_ns = np.where(share.has_two | (q in (0, 3)), np.maximum(idle_ns, here), idle_ns)
            here = begin_ns[p] + whole_ns - before_ns[p] - rests_before_ns + idle_ns
            found = np.where(counts, np.maximum(found, here), found)
        if self._is_limited:
            room, head_ns, after_ns = np.maximum(share.room_bytes, 1), begin_ns[0], tail_ns[3]
            stays = [end - begin for end, begin in zip(share.end_ns[:1:-1], begin_ns[:2], strict=True)]
            byte_ns = np.zeros_like(found)
            for size, stay_ns in zip(share.bytes, stays, strict=True):
                slots = np.clip(np.floor_divide(room, size, out=np.full(room.shape, float(number)), where=size > 0), 1, number)
                found = np.where(size > 0, np.maximum(found, head_ns + np.ceil(number / slots) * stay_ns + after_ns), found)
                byte_ns += number * size * stay_ns
            of_rests = sum(k * ns for k, ns in zip(share.by_rest_bytes, rests_ns[::-1], strict=True))
            stays_ns = np.maximum(byte_ns / room + after_ns, (byte_ns + of_rests) / room)
            found = np.maximum(found, np.where(np.isfinite(room), head_ns + stays_ns, 0))
        allowed = share.is_possible & (sum(share.bytes) <= share.room_bytes)
        least_ns: Vector = np.where(allowed, found, np.inf)
        return least_ns

    def _with_gaps_ns(self, share: _Share) -> Vector:
        number = self._chain.workload.microbatches
        slots = number if not share.bytes[0].all() else min(number, int((share.room_bytes / share.bytes[0]).max(initial=0)) + 1)
        if self._chain.begins.shape[1] * number * number * slots > MOST_GAPS:
            return np.zeros_like(share.away_ns)
        pick, has_two = share.pick, bool(share.has_two.any())
        pieces = self._pieces
        gaps = RankShares(
            has_two=has_two,
            room_bytes=share.room_bytes,
            forward_ns=pick(pieces.most_forward_ns),
            gradient_ns=pick(pieces.most_gradient_ns),
            rest_ns=pick(pieces.most_rest_ns),
            by_gradient_bytes=pick(pieces.by_gradient_bytes),
            by_rest_bytes=share.by_rest_bytes,
            begin_ns=share.begin_ns,
            end_ns=share.end_ns,
            tail_ns=share.tail_ns,
        )
        least_ns: Vector = idle_ns(gaps, number) + sum(share.work_ns) + sum(share.rests_ns)
        return least_ns


class _Share:
    """Times and bytes of some shares: per step, forwards of the stages, then gradient parts in the other order."""

    def __init__(self, values: ShareValues, cuts: Cuts) -> None:
        chain, pieces, way = values._chain, values._pieces, values._way
        self._cuts = a, b, c, d = cuts
        self._way, self._chain = way, chain
        self.has_two: NDArray[np.bool_] = c < d
        pick = self.pick
        (forward, forward_2), (gradient, gradient_2) = pick(pieces.forward_ns), pick(pieces.gradient_ns)
        self.is_possible = np.isfinite(forward) & np.isfinite(forward_2)
        blocks = (forward, forward_2, gradient, gradient_2)
        forward, forward_2, gradient, gradient_2 = (np.where(self.is_possible, each, 0) for each in blocks)
        hop, hop_back = chain.hops
        here = 0 if way.before or way.before_back else 1  # the hop to the first stage may be the crossing
        head = chain.passed_ns(0, 0, a) + here * hop[a] + way.before
        after = chain.passed_ns(1, 0, a) + here * hop_back[a] + way.before_back
        leaves = (b < c) & (not way.is_apart)
        between = chain.passed_ns(0, b, c) + np.where(leaves, hop[b] + hop[c], 0) + way.between
        between_back = chain.passed_ns(1, b, c) + np.where(leaves, hop_back[b] + hop_back[c], 0) + way.between_back
        last = np.where(self.has_two, d, b)
        here = 0 if way.behind else 1
        behind = chain.passed_ns(0, last, chain.layers) + chain.passed_ns(1, last, chain.layers)
        self.away_ns: Vector = behind + here * (hop[last] + hop_back[last]) + way.behind
        zero = np.zeros_like(head)
        between, between_back = (np.where(self.has_two, each, 0) for each in (between, between_back))
        begins, ends = [head], [head + forward]
        for way_ns, block_ns in ((between, forward_2), (self.away_ns, gradient_2), (between_back, gradient)):
            begins.append(ends[-1] + way_ns)
            ends.append(begins[-1] + block_ns)
        self.begin_ns, self.end_ns = begins, ends
        self.tail_ns = [ends[-1] - end + after for end in ends]
        forwards, gradients, backwards = (pick(each) for each in (pieces.forwards_ns, pieces.gradients_ns, pieces.backwards_ns))
        self.work_ns = [*forwards, *gradients[::-1]]
        self.rests_ns = [zero + whole - part for whole, part in zip(backwards[::-1], gradients[::-1], strict=True)]
        self._most_ns = (*pick(pieces.most_forward_ns), *pick(pieces.most_gradient_ns)[::-1])
        self.by_rest_bytes = pick(pieces.by_rest_bytes)
        self.bytes = pick(pieces.activation_bytes)
        room, room_2 = (pieces.room_bytes[a, b], pieces.room_bytes[c, d])
        self.room_bytes: Vector = room
        if values._capacity is not None:
            self.room_bytes = np.where(self.has_two, room + room_2 - values._capacity, room)
        elif values._in_flight is not None:
            self.room_bytes = np.where(self.has_two, room + room_2, room)
        if chain.given is not None:
            given = np.zeros((chain.layers + 1, chain.layers + 1), bool)
            given[tuple(zip(*chain.given, strict=True))] = True
            self.is_possible &= given[a, b] & (given[c, d] | ~self.has_two)

    def outside_ns(self, number: int) -> tuple[list[Vector], list[Vector]]:
        """Per step, the most work done of those before it when it first begins, and left of those after it when it last ends."""
        work, way, longest_ns = self.work_ns, self._way, self._chain.longest_ns
        zero = np.zeros_like(work[0])
        if way.busy is None:
            return [sum(work[:p], zero) for p in range(4)], [sum(work[q + 1 :], zero) for q in range(4)]
        a, b, c, d = self._cuts
        parts = ((0, a), (b, c), (np.where(self.has_two, d, b), self._chain.layers))
        (to, over, on), (off, under, back) = (
            [np.maximum(longest_ns(kind, *part), busy[kind]) for part, busy in zip(parts, way.busy, strict=True)] for kind in (0, 1)
        )
        over, under = (np.where(self.has_two, each, 0) for each in (over, under))
        first, second, second_back, first_back = (end - begin for begin, end in zip(self.begin_ns, self.end_ns, strict=True))
        turn = np.maximum(on, back)
        come = (to, np.maximum(first, over), np.maximum(np.maximum(second, turn), way.largest), np.maximum(second_back, under))
        go = (np.maximum(second, over), np.maximum(second_back, turn), np.maximum(first_back, under), off)
        there, home = list(accumulate(come, np.maximum)), list(accumulate(go[::-1], np.maximum))[::-1]
        begin_ns, tail_ns = self.begin_ns, self.tail_ns
        before = [sum((self._within(begin_ns[p] - begin_ns[s], there[s], s, number) for s in range(p)), zero) for p in range(4)]
        after = [sum((self._within(tail_ns[q] - tail_ns[s], home[s], s, number) for s in range(q + 1, 4)), zero) for q in range(4)]
        return before, after

    def _within(self, time_ns: Vector, apart_ns: Vector, step: int, number: int) -> Vector:
        """The most work of a step in this time, of microbatches that come this far apart, the first of them at once."""
        most_ns, apart_ns = self._most_ns[step], np.maximum(apart_ns, 1e-3)  # not 0: what comes together fills the time in any case
        come = np.clip(np.ceil(time_ns / apart_ns), 0, number)
        whole = np.clip(np.floor((time_ns - most_ns) / apart_ns) + 1, 0, come)
        cut = come - whole  # of these, only what lies between their coming and the end
        part = cut * (time_ns - apart_ns * (whole + come - 1) / 2)
        work_ns: Vector = np.minimum(self.work_ns[step], whole * most_ns + part)
        return work_ns

    def pick(self, matrix: Matrix) -> tuple[Vector, Vector]:
        """Of the first stage and of the second one; 0 where there is none."""
        a, b, c, d = self._cuts
        return matrix[a, b], np.where(self.has_two, matrix[c, d], 0)
