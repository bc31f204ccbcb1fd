"""Zero bubble with one stage per rank: ZB-H1 and ZB-H2, which run B and W apart. A Problem in, a Schedule out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.solvers.templates.shape import line, need_split, schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


def zb_h1(problem: Problem) -> Schedule:
    """ZB-H1 (Qi et al., 2023, section 2.3): the order of 1F1B, W as late as p activations on every rank allow.

    Raises:
        Unsupported: the placement is not unidirectional, or B and W cannot run apart.
    """
    return _zero_bubble(problem, "zb-h1", warm_up_of_next=1)


def zb_h2(problem: Problem) -> Schedule:
    """ZB-H2 (Qi et al., 2023, section 2.3): twice the warm-up of 1F1B, so that no rank waits; 2p − 1 activations on every rank.

    Raises:
        Unsupported: the placement is not unidirectional, or B and W cannot run apart.
    """
    return _zero_bubble(problem, "zb-h2", warm_up_of_next=2)


def _zero_bubble(problem: Problem, template: str, warm_up_of_next: int) -> Schedule:
    """One more F for every position behind, `warm_up_of_next` times; every position delays W until all hold as many activations."""
    need_split(problem, template)
    grid = line(problem, template)
    count = problem.microbatches

    def order(position: int) -> Iterator[Op]:
        (stage,) = grid.stages[position]
        warm_up = min(warm_up_of_next * (grid.positions - 1 - position), count)
        lag = warm_up_of_next * position
        yield from (Op(Kind.F, stage, microbatch) for microbatch in range(warm_up))
        for microbatch in range(count):
            if microbatch + warm_up < count:
                yield Op(Kind.F, stage, microbatch + warm_up)
            yield Op(Kind.B, stage, microbatch)
            if microbatch >= lag:
                yield Op(Kind.W, stage, microbatch - lag)
        yield from (Op(Kind.W, stage, microbatch) for microbatch in range(max(count - lag, 0), count))

    return schedule_of(problem, grid, order)
