"""The states that links may be in, each with a weight: samples of a distribution, or the states of a link trace.

A state is one of all links together, for a whole step: how links change within a step is not looked at.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.ir.conditions import LinkTrace
    from schedc.ir.problem import Link, Problem
    from schedc.study.robust.distribution import Distribution


@dataclass(frozen=True, slots=True)
class Scenarios:
    """Conditions, and how much each counts."""

    conditions: tuple[Conditions, ...]
    weights: tuple[float, ...]
    """Above 0; of a trace, for how many nanoseconds the state lasts."""

    def __post_init__(self) -> None:
        """Refuse what is no set of states."""
        if not self.conditions or len(self.conditions) != len(self.weights):
            raise ValueError(f"expected states with a weight each, got {len(self.conditions)} and {len(self.weights)}")
        if min(self.weights) <= 0:
            raise ValueError(f"weights must be above 0, got {min(self.weights)}")


def pairs_of(problem: Problem) -> list[tuple[int, int]]:
    """The pairs of ranks that a link joins, the lower rank first, ascending."""
    return sorted({(min(ends), max(ends)) for ends in ((link.source, link.destination) for link in problem.links)})


def drawn_states(problem: Problem, latency: Mapping[tuple[int, int], Distribution], count: int, seed: int) -> Scenarios:
    """This many states: each pair of ranks draws a latency, the same both ways, apart from the other pairs. All weigh the same.

    Args:
        problem: whose links they are.
        latency: by pair of ranks, the lower one first; the links of other pairs are as planned.
        count: how many states, at least 1.
        seed: of the random numbers.
    """
    random = Random(seed)
    drawn = {pair: latency[pair].draw_ns(count, random) for pair in sorted(latency)}
    links = {(link.source, link.destination) for link in problem.links}
    states = []
    for number in range(count):
        state = {}
        for (low, high), latencies_ns in drawn.items():
            for way in ((low, high), (high, low)):
                if way in links:
                    state[way] = LinkState(latency_ns=latencies_ns[number])
        states.append(Conditions(links=state))
    return Scenarios(tuple(states), (1.0,) * count)


def states_of_trace(trace: LinkTrace, most: int) -> Scenarios:
    """The states of a link trace, each weighed by how long it lasts.

    The last one has no end: it counts for as long as the mean of the others. Where there are more than `most` different states,
    those at the middles of `most` equal parts of the trace's time are taken.
    """
    if not trace.entries:
        return Scenarios((AS_PLANNED,), (1.0,))
    times_ns = [time_ns for time_ns, _ in trace.entries]
    before_ns = times_ns[0]
    known_ns = [after - now for now, after in pairwise(times_ns)]
    others_ns = [*known_ns, before_ns] if before_ns else known_ns
    spans = [(before_ns, AS_PLANNED)] if before_ns else []
    last_ns = round(sum(others_ns) / len(others_ns)) if others_ns else 1
    spans += [(span_ns, state) for span_ns, (_, state) in zip([*known_ns, last_ns], trace.entries, strict=True)]
    states = _together(spans)
    if len(states.conditions) <= most:
        return states
    total_ns = sum(span_ns for span_ns, _ in spans)
    return _together([(1, trace.at((2 * part + 1) * total_ns // (2 * most))) for part in range(most)])


def _together(spans: list[tuple[int, Conditions]]) -> Scenarios:
    """States that are equal as one, in the order in which they first come."""
    keys = [tuple(sorted(state.links.items(), key=lambda entry: entry[0])) for _, state in spans]
    weights: Counter[object] = Counter()
    first: dict[object, Conditions] = {}
    for (span_ns, state), key in zip(spans, keys, strict=True):
        weights[key] += span_ns
        first.setdefault(key, state)
    return Scenarios(tuple(first.values()), tuple(float(weights[key]) for key in first))


def shifted(problem: Problem, states: Scenarios, deviations: float) -> Conditions:
    """Every link at its mean latency plus this many standard deviations, and at its mean time per byte.

    The mean is rounded down to whole nanoseconds; with `deviations` 0 no link costs more than its mean over the states.
    """
    named = {ends for state in states.conditions for ends in state.links}
    links = {
        (link.source, link.destination): _shifted(link, states, deviations)
        for link in problem.links
        if (link.source, link.destination) in named
    }
    return Conditions(links=links)


def _shifted(link: Link, states: Scenarios, deviations: float) -> LinkState:
    costs = [state.link(link) for state in states.conditions]
    total = math.fsum(states.weights)
    shares = [weight / total for weight in states.weights]
    mean_ns = math.fsum(share * cost.latency_ns for share, cost in zip(shares, costs, strict=True))
    square = math.fsum(share * (cost.latency_ns - mean_ns) ** 2 for share, cost in zip(shares, costs, strict=True))
    latency_ns = math.floor(mean_ns + deviations * math.sqrt(square) + 1e-6)
    rates = [cost.bytes_per_second for cost in costs]
    if len(set(rates)) == 1:  # as planned, an occupancy that is given outright among them
        return LinkState(latency_ns=latency_ns, bytes_per_second=None if rates[0] == link.bytes_per_second else rates[0])
    # Where some states have a bandwidth and the plan has an occupancy, the mean of those that have one.
    per_byte = math.fsum(share / rate for share, rate in zip(shares, rates, strict=True) if rate)
    per_byte /= math.fsum(share for share, rate in zip(shares, rates, strict=True) if rate)
    return LinkState(latency_ns=latency_ns, bytes_per_second=max(1, math.ceil(1 / per_byte)))
