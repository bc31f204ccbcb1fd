"""Pipelines as the papers describe them: one cost for all ranks, cut equally among a rank's chunks, and a few slow links.

Takes the few numbers of such a description and gives the `Problem`; exact, from code alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from schedc.ir.problem import Link, Objective, Problem, Stage
from schedc.lower.placement import place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.ir.layout import Placement

ACTIVATION_BYTES = 1 << 30
"""What one microbatch holds on a rank; half of it from the end of B to the end of W. Only the ratio to the limit counts."""


class LinkTimes(NamedTuple):
    """What one message meets on a link."""

    latency_ns: int
    transfer_ns: int
    """For how long it occupies the link."""
    trunk: str | None = None
    """What the link shares with others, if anything."""


FREE = LinkTimes(0, 0)


def pipeline(
    name: str,
    ranks: int,
    microbatches: int,
    costs_ns: tuple[int, int, int],
    *,
    in_flight: int,
    placement: str = "unidirectional",
    slow: Mapping[tuple[int, int], LinkTimes] | None = None,
    otherwise: LinkTimes = FREE,
    objective: Objective = Objective.MAKESPAN,
) -> Problem:
    """A pipeline whose ranks all cost the same.

    Args:
        name: of the problem.
        ranks: how many there are.
        microbatches: how many there are.
        costs_ns: F, B and W of one microbatch on one rank, all its chunks together; loop and wave have two chunks, each half of it.
        in_flight: the memory limit of every rank, in whole microbatches of its activations.
        placement: `unidirectional`, `loop` or `wave`.
        slow: the cost of single links, by (source, destination).
        otherwise: the cost of every other link.
        objective: of the problem.
    """
    chunks = 1 if placement == "unidirectional" else 2
    placed = place(placement, ranks, chunks)
    forward_ns, backward_input_ns, backward_weight_ns = (cost_ns // chunks for cost_ns in costs_ns)
    stages = tuple(
        Stage(
            rank=rank,
            forward_ns=(forward_ns,),
            backward_input_ns=(backward_input_ns,),
            backward_weight_ns=(backward_weight_ns,),
            backward_ns=(backward_input_ns + backward_weight_ns,),
            activation_bytes=ACTIVATION_BYTES // chunks,
            activation_after_input_bytes=ACTIVATION_BYTES // chunks // 2,
        )
        for rank in placed.rank_of_stage
    )
    return Problem(
        name=name,
        ranks=ranks,
        microbatches=microbatches,
        stages=stages,
        paths=placed.paths,
        path_of=placed.path_of(microbatches),
        links=links_of(placed, slow or {}, otherwise),
        memory_limit_bytes=(in_flight * ACTIVATION_BYTES,) * ranks,
        placement=placement,
        objective=objective,
    )


def links_of(placed: Placement, slow: Mapping[tuple[int, int], LinkTimes], otherwise: LinkTimes = FREE) -> tuple[Link, ...]:
    """A link for each directed pair of ranks that a transfer of the placement crosses, in ascending order."""
    return tuple(
        Link(source=x, destination=y, latency_ns=cost.latency_ns, transfer_ns=cost.transfer_ns, trunk=cost.trunk)
        for x, y in placed.crossed()
        for cost in [slow.get((x, y), otherwise)]
    )


def both_ways(lower_ranks: tuple[int, ...], cost: LinkTimes) -> dict[tuple[int, int], LinkTimes]:
    """The same cost from each of these ranks to the next one, and back."""
    return {pair: cost for rank in lower_ranks for pair in ((rank, rank + 1), (rank + 1, rank))}
