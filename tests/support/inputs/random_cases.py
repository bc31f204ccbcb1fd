"""Random small problems, with or without trunks and collectives, each with a random schedule."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from inputs.problems import problems
from inputs.random_schedules import random_schedules
from schedc.ir.ops import Kind
from schedc.ir.problem import DataParallel, Problem

if TYPE_CHECKING:
    from schedc.ir.schedule import Schedule


def at_least(problem: Problem, occupancy_ns: int) -> Problem:
    """The problem with no link's occupancy below that."""
    links = (dataclasses.replace(link, transfer_ns=max(occupancy_ns, link.transfer_ns or 0)) for link in problem.links)
    return dataclasses.replace(problem, links=tuple(links))


@st.composite
def cases(
    draw: st.DrawFn, *, collectives: bool = True, trunks: bool = True, least_ns: int = 1, least_occupancy_ns: int = 1
) -> tuple[Problem, Schedule]:
    """A small problem and a random valid schedule of it.

    Args:
        draw: Hypothesis's.
        collectives: whether there may be some.
        trunks: whether links may share some.
        least_ns: no op and no collective takes less.
        least_occupancy_ns: of transfers, where links share trunks.
    """
    shared = trunks and draw(st.booleans())
    problem = draw(problems(shared_trunks=shared, max_time_ns=9, max_microbatches=4, min_duration_ns=least_ns))
    if shared:
        problem = at_least(problem, least_occupancy_ns)
    if collectives and draw(st.booleans()):
        count = len(problem.stages)
        times = st.lists(st.integers(least_ns, 9), min_size=count, max_size=count).map(tuple)
        names = sorted({link.trunk for link in problem.links if link.trunk})
        parallel = DataParallel(
            size=2,
            zero_stage=1,
            reduce_scatter_ns=draw(times),
            all_gather_ns=draw(times),
            trunk=draw(st.sampled_from([None, *names])),
        )
        problem = dataclasses.replace(problem, data_parallel=parallel)
    schedule = draw(random_schedules(problem))
    if draw(st.booleans()):
        cut = {parts.stage for parts in schedule.parts if parts.kind in (Kind.B, Kind.BW)}
        again = [0 if stage in cut else draw(st.integers(0, 4)) for stage in range(len(problem.stages))]
        stages = tuple(
            dataclasses.replace(
                stage,
                recompute=size > 0,
                recomputed_bytes=size,
                activation_after_input_bytes=draw(st.integers(0, max(size, stage.activation_after_input_bytes))),
            )
            for stage, size in zip(problem.stages, again, strict=True)
        )
        problem = dataclasses.replace(problem, stages=stages)
    return problem, schedule
