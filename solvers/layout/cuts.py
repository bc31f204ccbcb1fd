"""Cuts of microbatches into slices, where these are open: those with a name, and a local search over any.

A cut is the lengths of the slices, in tokens; none: microbatches stay whole. Named cuts are what a person would try: equal tokens,
equal work (equal FLOPs are Seq1F1B's rule, arXiv:2406.03488), and half-way between. The search moves, adds and removes boundaries;
a cut is worth what the best of a few rules of the list scheduler makes of it, within memory.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.lower.problem import problem_of
from schedc.solvers.heuristics.rule_table import RuleTable, table_of_rules
from schedc.solvers.kernel.climb import Climber, climb, climbing_scheduler
from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.layout.layout_arrays import scheduled_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from schedc.ir import Layer, Layout, OpenSlices, Workload
    from schedc.solvers.layout.layout_arrays import ScheduledLayout

Lengths = tuple[int, ...]

WHOLE, WORK = "whole", "equal work"
"""The name of no cut, and how the names of cuts end whose slices take equally long."""
RULES = 12
"""A cut is worth what the best of the first rules of the table makes of it."""
STARTS = 4
"""The search starts from this many cuts, the best of each number of slices; half of it goes to them, the rest to the best then."""
HEAT = 0.002
"""A cut that is worse by this share is taken with a chance of 1 in e at first, and with none at the end."""


def named_cuts(workload: Workload, slices: OpenSlices) -> dict[str, Lengths]:
    """Cuts by name: whole, and of 2, 4, 8 … slices and the most the equal ones; those that are alike under the first name."""
    counts = [count for count in (1 << at for at in range(1, 31)) if slices.least <= count < slices.most]
    counts += [count for count in {slices.least, slices.most} if count > 1 and count not in counts]
    found: dict[Lengths, str] = {(): WHOLE} if slices.least == 1 else {}
    for count in sorted(counts):
        for kind, share in ((WORK, 1.0), ("equal tokens", 0.0), ("between", 0.5)):
            cut = _equal(workload, slices, count, share)
            found.setdefault(cut, f"{count} slices, {kind}")
    return {name: cut for cut, name in found.items()}


def _equal(workload: Workload, slices: OpenSlices, count: int, share: float) -> Lengths:
    """Slices of equal work, for this share, and of equal tokens, for the rest."""
    return _rounded([_between(workload, at / count, share) for at in range(1, count)], slices)


def _between(workload: Workload, part: float, share: float) -> float:
    """Before which share of the sequence this part of the work is, and of the tokens: so much of the one, the rest of the other."""
    square = _square_of(workload)
    slope = 1 - square
    by_work = part if square == 0 else (math.sqrt(slope * slope + 4 * square * part) - slope) / (2 * square)
    return share * by_work + (1 - share) * part


def _square_of(workload: Workload) -> float:
    """The quadratic share of a microbatch's work besides what each slice takes."""
    square = whole = Fraction(0)
    for layer in workload.layers:
        forward, backward = layer.forward_ns[0], layer.backward_input_ns[0]
        square += layer.quadratic[0] * forward + layer.quadratic[1] * backward
        whole += (1 - layer.fixed) * (forward + backward + layer.backward_weight_ns[0])
    return float(square / whole) if whole else 0.0


def _rounded(shares: list[float], slices: OpenSlices) -> Lengths:
    """The cut nearest to these boundaries; each slice has some tokens."""
    most, at = -(-slices.tokens // slices.granularity), 0
    cuts = []
    for number, share in enumerate(shares):
        at = min(max(at + 1, round(share * slices.tokens / slices.granularity)), most - len(shares) + number)
        cuts.append(at)
    return _lengths(tuple(cuts), slices)


def _lengths(cuts: tuple[int, ...], slices: OpenSlices) -> Lengths:
    """Of boundaries in multiples of the granularity."""
    tokens = [0, *(cut * slices.granularity for cut in cuts), slices.tokens]
    return tuple(end - begin for begin, end in pairwise(tokens)) if cuts else ()


def _stages_as_layers(workload: Workload, layout: Layout) -> tuple[Workload, Layout]:
    """The same with one layer for each stage, where that makes no other problem but for rounding: fewer of them are cut."""
    if workload.edges or workload.ties or layout.split_head:
        return workload, layout
    layers = tuple(_as_one(workload.layers[first:last]) for first, last in layout.layers_of_stage)
    bounds = tuple((at, at + 1) for at in range(len(layers)))
    return replace(workload, layers=layers), replace(layout, layers_of_stage=bounds)


def _as_one(layers: Sequence[Layer]) -> Layer:
    forward, backward, weight, fused, again = (
        sum(values[0] for values in each)
        for each in (
            [layer.forward_ns for layer in layers],
            [layer.backward_input_ns for layer in layers],
            [layer.backward_weight_ns for layer in layers],
            [layer.backward_ns for layer in layers],
            [layer.forward_again_ns or layer.forward_ns for layer in layers],
        )
    )
    quadratic = (
        sum((layer.quadratic[0] * layer.forward_ns[0] for layer in layers), Fraction(0)) / max(1, forward),
        sum((layer.quadratic[1] * layer.backward_input_ns[0] for layer in layers), Fraction(0)) / max(1, backward),
    )
    sums = ("activation_bytes", "activation_after_input_bytes", "static_bytes", "state_gradient_bytes")
    return replace(
        layers[-1],
        forward_ns=(forward,),
        backward_input_ns=(backward,),
        backward_weight_ns=(weight,),
        backward_ns=(fused,),
        forward_again_ns=(again,),
        quadratic=quadratic,
        position=None,
        **{name: sum(getattr(layer, name) for layer in layers) for name in sums},
    )


class CutSearch:
    """The search over the cuts of a workload in one layout; it knows what each cut that it has looked at is worth."""

    def __init__(self, workload: Workload, layout: Layout, slices: OpenSlices, *, seed: int = 0, plain: bool = False) -> None:
        """Nothing is looked at yet. `plain`: the kernel runs plain."""
        self._workload, self._layout, self._slices, self._plain = workload, layout, slices, plain
        self._merged = _stages_as_layers(workload, layout)
        self._random = Random(seed)
        self.known: dict[Lengths, int] = {}
        """What each cut is worth, in ns, but for rounding; `NEVER`: no rule keeps memory."""
        self.looks = 0
        """How often the search has changed a cut, also into one that is known."""

    def value(self, cut: Lengths) -> int:
        """What a cut into two slices or more is worth."""
        if cut not in self.known:
            workload, layout = self._merged
            problem, found = problem_of(workload, replace(layout, slices=cut)), NEVER
            for reserves in (False, True):
                try:
                    scheduler = climbing_scheduler(problem, reserves=reserves)
                except Unsupported:
                    break
                climber = Climber(scheduler, plain=self._plain)
                found = min(climber.run(rule) for rule in table_of_rules(problem, scheduler, RULES))
                if found < NEVER:
                    break
            self.known[cut] = found
        return self.known[cut]

    def begin(self, left: Callable[[], float]) -> None:
        """Look at the named cuts and at slices of equal work of more counts, as long as something is left."""
        cuts, count = list(named_cuts(self._workload, self._slices).values()), max(2, self._slices.least)
        while count <= self._slices.most:
            cuts.append(_equal(self._workload, self._slices, count, 1.0))
            count += max(1, count // 6)
        for cut in cuts:
            if cut and left() > 0:
                self.value(cut)

    def run(self, left: Callable[[], float], report: Callable[[int], None]) -> None:
        """Search from the best cuts known.

        `left` says which share of the search is left, from 1 to 0, its end; `report` is called with what the best is worth, when it
        is better.
        """
        starts: dict[int, Lengths] = {}
        for cut in sorted((cut for cut, value in self.known.items() if value < NEVER and cut), key=self.known.__getitem__):
            starts.setdefault(len(cut), cut)
        chosen = list(starts.values())[:STARTS]
        for number, cut in enumerate(chosen):
            self._climb(cut, left, 1 - 0.5 * (number + 1) / len(chosen), report)
        if chosen:
            self._climb(min(self.known, key=self.known.__getitem__), left, 0.0, report)

    def scheduled(self, most: int) -> Iterator[ScheduledLayout]:
        """The best cuts, at most this many, each of another number of slices, with the schedule of the rule table."""
        counts: set[int] = set()
        for cut in sorted(self.known, key=self.known.__getitem__):
            if cut and self.known[cut] < NEVER and len(cut) not in counts and len(counts) < most:
                counts.add(len(cut))
                layout = replace(self._layout, slices=cut)
                found = scheduled_layout(self._workload, layout, RuleTable().construct, f"{len(cut)} slices, searched")
                if found is not None:
                    yield found

    def _climb(self, cut: Lengths, left: Callable[[], float], until: float, report: Callable[[int], None]) -> None:
        """Change the cut until this share is left."""
        now = self.value(cut)
        best, begun = min(self.known.values()), left()
        while (at := left()) > until:
            other = self._changed(cut)
            self.looks += 1
            if other is None:
                continue
            heat = HEAT * max(0.0, at - until) / max(1e-9, begun - until)
            value = self.value(other)
            if value <= now - int(heat * now * math.log(1 - self._random.random())):
                cut, now = other, value
            if value < best:
                best = value
                report(value)

    def _changed(self, cut: Lengths) -> Lengths | None:
        """One boundary, or several in a row, moved; or another number of slices, spread alike; None: that is no cut."""
        slices, random, at, count = self._slices, self._random, 0, len(cut)
        most, boundaries = -(-slices.tokens // slices.granularity), [0]
        for length in cut:
            at += -(-length // slices.granularity)
            boundaries.append(at)
        what, reach = random.random(), max(1.0, most / (2 * count))
        if what < 0.2:
            wanted = count + random.choice((-1, 1)) * random.randint(1, max(1, count // 8))
            wanted = min(max(wanted, 2, slices.least), slices.most)
            places = [divmod(number * count, wanted) for number in range(1, wanted)]
            inner = [
                boundaries[at] + round((boundaries[min(at + 1, count)] - boundaries[at]) * rest / wanted) for at, rest in places
            ]
        else:
            first = random.randrange(1, count)
            last = first if what < 0.7 else random.randrange(first, count)
            move = round(math.exp(random.random() * math.log(reach))) * random.choice((-1, 1))
            inner = [boundaries[number] + (move if first <= number <= last else 0) for number in range(1, count)]
        if any(a >= b for a, b in pairwise((0, *inner, most))):
            return None
        return _lengths(tuple(inner), slices)


SEARCHED_BY = climb
"""The kernel that the search runs."""
