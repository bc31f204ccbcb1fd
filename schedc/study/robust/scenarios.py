"""The states that links may be in, each with a weight; and what makes one number of a step's ends in all of them.

A state is one of all links together, for a whole step: how links change within a step is not looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir import AS_PLANNED, Conditions, LinkState, LinkTrace, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    found: dict[frozenset[object], tuple[Conditions, int]] = {}
    for span_ns, state in spans:
        key = frozenset(state.links.items())
        first, before_ns = found.get(key, (state, 0))
        found[key] = first, before_ns + span_ns
    return Scenarios(tuple(state for state, _ in found.values()), tuple(float(total_ns) for _, total_ns in found.values()))


def shifted(problem: Problem, states: Scenarios, deviations: float) -> Conditions:
    """Every link at its mean latency plus this many standard deviations, and at its mean time per byte.

    The mean is rounded down to whole nanoseconds; with `deviations` 0 no link costs more than its mean over the states.
    """
    named = {ends for state in states.conditions for ends in state.links}
    total = math.fsum(states.weights)
    shares = [weight / total for weight in states.weights]
    links = {}
    for link in problem.links:
        if (link.source, link.destination) not in named:
            continue
        costs = [state.link(link) for state in states.conditions]
        mean_ns = math.fsum(share * cost.latency_ns for share, cost in zip(shares, costs, strict=True))
        square = math.fsum(share * (cost.latency_ns - mean_ns) ** 2 for share, cost in zip(shares, costs, strict=True))
        rates = [cost.bytes_per_second for cost in costs]
        if len(set(rates)) == 1:  # as planned, an occupancy that is given outright among them
            rate = None if rates[0] == link.bytes_per_second else rates[0]
        else:  # where some states have a bandwidth and the plan has an occupancy, the mean of those that have one
            per_byte = math.fsum(share / each for share, each in zip(shares, rates, strict=True) if each)
            per_byte /= math.fsum(share for share, each in zip(shares, rates, strict=True) if each)
            rate = max(1, math.ceil(1 / per_byte))
        latency_ns = math.floor(mean_ns + deviations * math.sqrt(square) + 1e-6)
        links[link.source, link.destination] = LinkState(latency_ns=latency_ns, bytes_per_second=rate)
    return Conditions(links=links)


def clustered(problem: Problem, states: Scenarios, most: int) -> Scenarios:
    """At most this many of the states, each with the weight of all that are nearest to it.

    A state is the time that the largest message takes over each link. The distance of two is the sum of the differences. States are
    taken one by one, each the one that brings the others nearest to what is taken (the first phase of PAM, Kaufman and Rousseeuw
    1990).
    """
    count = len(states.conditions)
    if count <= most:
        return states
    message_bytes = max(max(stage.message_bytes, stage.gradient_message_bytes) for stage in problem.stages)
    costs_ns = np.zeros((count, len(problem.links)))
    for row, state in enumerate(states.conditions):
        for column, link in enumerate(problem.links):
            cost = state.link(link)
            costs_ns[row, column] = cost.latency_ns + cost.occupancy_ns(message_bytes)
    apart_ns = np.abs(costs_ns[:, None, :] - costs_ns[None, :, :]).sum(axis=2)
    weights = np.array(states.weights)
    nearest_ns = np.full(count, np.inf)
    taken: list[int] = []
    for _ in range(most):
        left_ns = (np.minimum(nearest_ns[None, :], apart_ns) * weights).sum(axis=1)
        taken.append(int(left_ns.argmin()))
        nearest_ns = np.minimum(nearest_ns, apart_ns[taken[-1]])
        if not nearest_ns.any():
            break
    owner = apart_ns[taken].argmin(axis=0)
    shares = [float(weights[owner == number].sum()) for number in range(len(taken))]
    return Scenarios(tuple(states.conditions[number] for number in taken), tuple(shares))


@dataclass(frozen=True, slots=True)
class Criterion:
    """What is minimized."""

    percentile: float | None = None
    """From above 0 to 100; None: the mean."""

    def __post_init__(self) -> None:
        """Refuse a percentile that is none."""
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise ValueError(f"a percentile must be above 0 and at most 100, got {self.percentile}")

    def of(self, values: Sequence[float], weights: Sequence[float]) -> float:
        """The number of these values, each with a weight."""
        if self.percentile is not None:
            return percentile_of(values, weights, self.percentile)
        return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / math.fsum(weights)

    @property
    def text(self) -> str:
        """What it is called."""
        return "mean" if self.percentile is None else f"percentile {self.percentile:g}"


MEAN = Criterion()


def percentile_of(values: Sequence[float], weights: Sequence[float], percentile: float) -> float:
    """The least value by which at least this percentage of the weight lies."""
    wanted, total = percentile / 100 * math.fsum(weights), 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        total += weight
        if total >= wanted * (1 - 1e-12):
            return value
    return max(values)
