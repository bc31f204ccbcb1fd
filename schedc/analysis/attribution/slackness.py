"""PipeMorph's rule for the delay that a pair of neighbouring stages tolerates (Theorem 1, and Equation 1 for unequal stages).

The *warm-up count* x of a stage is the number of its forwards before its first backward, and the *slackness* of stages i and i + 1
is x_i - x_(i+1). By Equation 1 a delay c of each message between them, in both directions, does not cascade if and only if

    F_i + B_i + 2 c <= slackness (F_(i+1) + B_(i+1)).

Where all times are t, that is Theorem 1: c <= (slackness - 1) t. The rule looks at the steady phase of one stage on each rank, and
at nothing else in the pipeline; `Tolerance.cascade_free_ns` asks the simulator the same question of a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING

from schedc.ir.index import tables_of
from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Slackness:
    """What the rule says of two neighbouring stages."""

    source: int
    """The rank of the earlier stage; its neighbour's is `destination`."""
    destination: int
    slackness: int
    delay_ns: int
    """How long a message takes now: latency and occupancy, the mean of both directions."""
    tolerated_ns: int
    """The largest delay that does not cascade by Equation 1, rounded down; below 0 where none does."""


def slackness_of(problem: Problem, schedule: Schedule) -> tuple[Slackness, ...]:
    """The rule for each two neighbouring stages; empty where it does not apply: several paths, or several stages on a rank.

    Times are the means over microbatches, the backward's that of B where the stage splits most backwards, else of BW.
    """
    if len(problem.paths) > 1 or len(problem.stages) > problem.ranks:
        return ()
    warm_up = {}
    backward_kind = {}
    for order in schedule.orders:
        for op in order[:1]:
            kinds = [each.kind for each in order]
            first_backward = next((at for at, kind in enumerate(kinds) if kind in (Kind.B, Kind.BW)), len(kinds))
            warm_up[op.stage] = sum(each.kind is Kind.F and each.part <= 0 for each in order[:first_backward])
            backward_kind[op.stage] = Kind.B if kinds.count(Kind.B) >= kinds.count(Kind.BW) else Kind.BW
    tables = tables_of(problem)
    found = []
    for before, after in pairwise(problem.paths[0]):
        round_ns = [
            mean(problem.stages[stage].durations_ns(Kind.F)) + mean(problem.stages[stage].durations_ns(backward_kind[stage]))
            for stage in (before, after)
        ]
        slackness = warm_up[before] - warm_up[after]
        message_ns = tables.latency_ns + tables.occupancy_ns
        found.append(
            Slackness(
                source=problem.stages[before].rank,
                destination=problem.stages[after].rank,
                slackness=slackness,
                delay_ns=int(message_ns[0, 0, before] + message_ns[1, 0, after]) // 2,
                tolerated_ns=int((slackness * round_ns[1] - round_ns[0]) // 2),
            )
        )
    return tuple(found)
