"""Random problems whose steps overlap."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inputs.problems import make_problem
from schedc.ir import Updates, Versions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from schedc.ir import Problem, Stage


def as_period(
    problem: Problem,
    versions: Versions,
    *,
    most_delay: int | None = None,
    update_ns: Sequence[int] | None = None,
    version_bytes: Sequence[int] | None = None,
) -> Problem:
    """The problem as one step of a run without end; updates and versions cost what is given for each stage, or nothing."""
    stages = tuple(
        replace(stage, update_ns=(update_ns or [0] * 99)[at], version_bytes=(version_bytes or [0] * 99)[at])
        for at, stage in enumerate(problem.stages)
    )
    updates = Updates(
        versions=versions,
        microbatches=problem.microbatches,
        is_period=True,
        most_delay=(most_delay or 0) if versions is Versions.BOUNDED else None,
    )
    return replace(problem, stages=stages, updates=updates)


def tiny_period(random: Random) -> Problem:
    """Two or three ranks, one or two microbatches, in one of the modes; durations from 1 to 9; memory is short."""
    mode = random.choice(list(Versions))
    placement = random.choice([[0, 1], [0, 1], [0, 1], [0, 1, 2], [0, 1, 0]])
    microbatches = 1 if len(placement) > 2 else random.choice([1, 2])
    size = len(placement)
    split = microbatches == 1 and size == max(placement) + 1 and random.random() < 0.5
    problem = _drawn_line(random, placement, microbatches, split=split)
    version_bytes, limits = _drawn_memory(random, problem, mode, most_more=5)
    stages = list(problem.stages)
    for at, stage in enumerate(stages):
        both_ns = stage.backward_ns[0]
        if split and random.random() < 0.5:
            stages[at] = replace(stage, backward_ns=(max(1, both_ns - random.randint(1, 4)),))
        if not split and random.random() < 0.2:
            stages[at] = replace(stage, recompute=True, recomputed_bytes=1, activation_after_input_bytes=0)
            rank = stage.rank
            limits[rank] = None if limits[rank] is None else (limits[rank] or 0) + 1
        if microbatches == 2 and random.random() < 0.15:
            stages[at] = replace(stages[at], forward_ns=(random.randint(1, 9), random.randint(1, 9)))
    return _drawn_period(random, problem, mode, stages, limits, version_bytes)


def tiny_mixture(random: Random) -> Problem:
    """Two or three ranks, two or three microbatches, backwards that take less time fused; memory is short."""
    mode = random.choice(list(Versions))
    placement = random.choice([[0, 1], [0, 1], [0, 1, 0], [0, 1, 2]])
    microbatches = random.choice([2, 2, 3])
    problem = _drawn_line(random, placement, microbatches, split=True)
    version_bytes, limits = _drawn_memory(random, problem, mode, most_more=6)
    stages = list(problem.stages)
    for at, stage in enumerate(stages):
        if random.random() < 0.7:
            stages[at] = replace(stage, backward_ns=(max(1, stage.backward_ns[0] - random.randint(1, 4)),))
        if random.random() < 0.1:
            stages[at] = replace(stages[at], forward_ns=tuple(random.randint(1, 9) for _ in range(microbatches)))
    return _drawn_period(random, problem, mode, stages, limits, version_bytes)


def _drawn_line(random: Random, placement: list[int], microbatches: int, *, split: bool) -> Problem:
    """A chain with these ranks, with links between any two."""
    ranks = max(placement) + 1
    held = [(random.randint(1, 3), random.randint(0, 1)) for _ in placement]
    return make_problem(
        ranks,
        microbatches,
        placement=placement,
        costs_ns=[(random.randint(1, 9), random.randint(1, 9), random.randint(1, 9)) for _ in placement],
        activation=held,
        links={(x, y): (random.randint(0, 9), random.randint(0, 7)) for x in range(ranks) for y in range(ranks) if x != y},
        split_backward=split,
    )


def _drawn_memory(random: Random, problem: Problem, mode: Versions, *, most_more: int) -> tuple[list[int], list[int | None]]:
    """Bytes of a version of each stage, and the limit of each rank: none, or little more than one microbatch and versions take."""
    version_bytes, limits = [random.randint(0, 2) for _ in problem.stages], list[int | None]()
    for rank in range(problem.ranks):
        least = sum(problem.stages[stage].activation_bytes for stage in problem.stages_on(rank))
        least += sum(version_bytes[stage] for stage in problem.stages_on(rank)) * (mode is Versions.TWO_BUFFERED)
        limits.append(None if random.random() < 0.3 else least + random.randint(0, most_more))
    return version_bytes, limits


def _drawn_period(
    random: Random,
    problem: Problem,
    mode: Versions,
    stages: list[Stage],
    limits: list[int | None],
    version_bytes: list[int],
) -> Problem:
    """The problem with these stages and limits as one step of a run without end."""
    problem = replace(problem, stages=tuple(stages), memory_limit_bytes=tuple(limits), in_order=random.random() < 0.3)
    return as_period(
        problem,
        mode,
        most_delay=random.randint(0, 2),
        update_ns=[random.randint(0, 4) for _ in stages],
        version_bytes=version_bytes,
    )
