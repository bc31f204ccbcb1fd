"""Problems from a few numbers, exact, from code alone: pipelines as the papers describe them, and the `random` set.

A paper's has one cost for all ranks, cut equally among a rank's chunks, and a few slow links. The random ones are heterogeneous
problems by seed, the same bits on every machine and Python version.

The first half is a linear pipeline of 3–8 ranks and 6–32 microbatches (the range in which PipeMorph compares itself with the
optimum), where every stage has its own F, B, W and activation, one or two links are slow, and each rank may hold from p to 2 p of
its own activations. All times are whole milliseconds.

The second half is in the numbers of measured jobs: the same in odd nanoseconds of steps of seconds and odd bytes of GiB, with two
stages on each rank, as a wave or a loop, in two of three, and every other one minimizes the stage span.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Link, Objective, Placement, Problem, Stage
from schedc.lower.placement import place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


ACTIVATION_BYTES = 1 << 30
"""What one microbatch holds on a rank; half of it from the end of B to the end of W. Only the ratio to the limit counts."""
RANDOM_SEEDS = range(60)
FIRST_MEASURED = 30
"""From this seed on, problems are in the numbers of measured jobs."""
PLACEMENTS = ("unidirectional", "wave", "loop")
"""Of measured problems, in turn; the latter two have two stages on a rank."""
MS = 1_000_000
STEP_BYTES = 1 << 27
"""The grain of activations: an eighth of a GiB."""


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

    F, B and W (`costs_ns`) are of one microbatch on one rank, all its chunks together: loop and wave have two, each half of it. The
    memory of every rank holds the activations of `in_flight` whole microbatches. Links cost what `slow` says by (source,
    destination), else `otherwise`.
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


def random_problem(name: str, seed: int) -> Problem:
    """The problem of the seed."""
    # Of the generator only random() is promised to give the same numbers in every Python version, so all is drawn from it.
    source, is_measured = Random(seed), seed >= FIRST_MEASURED

    def draw(least: int, most: int, grain: int = 1) -> int:
        """A multiple of the grain between these multiples; of measured problems any number between."""
        if is_measured:
            return least * grain + int(source.random() * ((most - least) * grain + 1))
        return (least + int(source.random() * (most - least + 1))) * grain

    ranks, microbatches = draw(3, 8), draw(6, 32)
    placement = PLACEMENTS[seed % len(PLACEMENTS)] if is_measured else "unidirectional"
    placed = place(placement, ranks, 1 if placement == "unidirectional" else 2)
    stages = tuple(_stage(rank, draw) for rank in placed.rank_of_stage)
    slow: dict[tuple[int, int], LinkTimes] = {}
    for _ in range(draw(1, 2)):  # the same link may be drawn twice: then one is slow
        before = draw(0, ranks - 2)
        slow |= both_ways((before,), LinkTimes(draw(10, 60, MS), draw(0, 20, MS)))
    held_bytes = [sum(stage.activation_bytes for stage in stages if stage.rank == rank) for rank in range(ranks)]
    return Problem(
        name=name,
        ranks=ranks,
        microbatches=microbatches,
        stages=stages,
        paths=placed.paths,
        path_of=placed.path_of(microbatches),
        links=links_of(placed, slow),
        memory_limit_bytes=tuple(draw(ranks, 2 * ranks, held) for held in held_bytes),
        placement=placement,
        objective=Objective.STAGE_SPAN if is_measured and seed % 2 else Objective.MAKESPAN,
    )


def _stage(rank: int, draw: Callable[..., int]) -> Stage:
    forward_ns, backward_input_ns, backward_weight_ns = (draw(5, 20, MS) for _ in range(3))
    activation_bytes = draw(4, 16, STEP_BYTES)
    return Stage(
        rank=rank,
        forward_ns=(forward_ns,),
        backward_input_ns=(backward_input_ns,),
        backward_weight_ns=(backward_weight_ns,),
        backward_ns=(backward_input_ns + backward_weight_ns,),
        activation_bytes=activation_bytes,
        activation_after_input_bytes=draw(0, activation_bytes // STEP_BYTES // 2, STEP_BYTES),
    )
