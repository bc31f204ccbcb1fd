"""Greedy on links made busier than they are: part of a link's latency counts as occupancy while the order is chosen.

A Problem goes in, a Schedule comes out.

A link with occupancy o' ≥ o and latency l' = l − (o' − o) delivers nothing earlier than the link with o and l, so an order's
makespan on the busier links is an upper bound of its true one. But messages then leave such a link evenly spread, not in bursts,
and so do the ops that wait for them; greedy's orders are often better for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.analysis.simulation.simulate import simulate
from schedc.ir.ops import Kind
from schedc.solvers.heuristics.greedy import GreedyOptions, Parts, greedy

if TYPE_CHECKING:
    from schedc.ir.problem import Link, Problem
    from schedc.ir.schedule import Schedule

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadOptions:
    """Of `spread`."""

    n_sub: Parts = 4


def spread(problem: Problem, options: SpreadOptions = SpreadOptions()) -> Schedule:
    """The best of greedy's schedules on the problem's links and on links made busier by shares of the busiest rank's work.

    Args:
        problem: any problem that greedy takes.
        options: of greedy.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    variants = dict.fromkeys(spread_problem(problem, share) for share in SHARES)
    schedules = (greedy(variant, GreedyOptions(n_sub=options.n_sub)) for variant in variants)
    return min(schedules, key=lambda schedule: simulate(problem, schedule).objective_ns(problem.objective))


def spread_problem(problem: Problem, share: float) -> Problem:
    """The problem with each link's occupancy raised, out of its latency, to this share of the busiest rank's mean work."""
    kinds = (Kind.F, Kind.B, Kind.W) if problem.split_backward else (Kind.F, Kind.BW)
    work_ns = [0] * problem.ranks
    for stage, microbatch in problem.blocks():
        work_ns[problem.stages[stage].rank] += sum(problem.duration_ns(kind, stage, microbatch) for kind in kinds)
    interval_ns = int(share * max(work_ns) / problem.microbatches)
    largest_bytes = max(max(stage.message_bytes, stage.gradient_message_bytes) for stage in problem.stages)
    return replace(problem, links=tuple(_spread_link(link, interval_ns, largest_bytes) for link in problem.links))


def _spread_link(link: Link, interval_ns: int, largest_bytes: int) -> Link:
    occupancy_ns = link.occupancy_ns(largest_bytes)
    if link.latency_ns == 0 or occupancy_ns >= interval_ns:
        return link
    spread_ns = min(interval_ns, occupancy_ns + link.latency_ns)
    return replace(link, transfer_ns=spread_ns, latency_ns=link.latency_ns - (spread_ns - occupancy_ns))
