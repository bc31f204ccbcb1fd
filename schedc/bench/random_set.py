"""The `random` set: heterogeneous problems by seed, the same bits on every machine and Python version.

A linear pipeline of 3–8 ranks and 6–32 microbatches (the range in which PipeMorph compares itself with the optimum), where every
stage has its own F, B, W and activation, one or two links are slow, and each rank may hold from p to 2 p of its own activations.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from schedc.bench.pipelines import LinkTimes, both_ways, links_of
from schedc.ir.problem import Problem, Stage
from schedc.lower.placement import place

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RANDOM_SEEDS", "random_problem"]

RANDOM_SEEDS = range(30)
MS = 1_000_000
STEP_BYTES = 1 << 27
"""The grain of activations: an eighth of a GiB."""


def random_problem(name: str, seed: int) -> Problem:
    """The problem of the seed."""
    # Of the generator only random() is promised to give the same numbers in every Python version, so all is drawn from it.
    source = Random(seed)

    def draw(least: int, most: int) -> int:
        return least + int(source.random() * (most - least + 1))

    ranks, microbatches = draw(3, 8), draw(6, 32)
    stages = tuple(_stage(rank, draw) for rank in range(ranks))
    slow: dict[tuple[int, int], LinkTimes] = {}
    for _ in range(draw(1, 2)):  # the same link may be drawn twice: then one is slow
        before = draw(0, ranks - 2)
        slow |= both_ways((before,), LinkTimes(draw(10, 60) * MS, draw(0, 20) * MS))
    placed = place("unidirectional", ranks)
    return Problem(
        name=name,
        ranks=ranks,
        microbatches=microbatches,
        stages=stages,
        paths=placed.paths,
        path_of=placed.path_of(microbatches),
        links=links_of(placed, slow),
        memory_limit_bytes=tuple(draw(ranks, 2 * ranks) * stage.activation_bytes for stage in stages),
        placement="unidirectional",
    )


def _stage(rank: int, draw: Callable[[int, int], int]) -> Stage:
    forward_ns, backward_input_ns, backward_weight_ns = (draw(5, 20) * MS for _ in range(3))
    steps = draw(4, 16)
    return Stage(
        rank=rank,
        forward_ns=(forward_ns,),
        backward_input_ns=(backward_input_ns,),
        backward_weight_ns=(backward_weight_ns,),
        backward_ns=(backward_input_ns + backward_weight_ns,),
        activation_bytes=steps * STEP_BYTES,
        activation_after_input_bytes=draw(0, steps // 2) * STEP_BYTES,
    )
