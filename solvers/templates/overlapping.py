"""PipeDream's schedules, in which steps overlap: 1F1B that never drains, with stashed weights or two versions of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from schedc.errors import Unsupported
from schedc.ir import Kind, Op, Problem, Schedule, Versions
from schedc.solvers.common.method import Constructive, Template
from schedc.solvers.templates.shape import LINE, grid_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class OneByOne(Constructive, frozen=True):
    """Every microbatch goes there and back before the next begins, and the updates follow: slow, and there for any problem.

    It keeps every mode's rule. Where a limit has ended the others before there was a plan, it is the plan.
    """

    name, place = "one-by-one", 205
    steps_overlap = True

    def construct(self, problem: Problem) -> Schedule:
        """The period."""
        return one_by_one(problem)


class PipeDream(Template, frozen=True):
    """PipeDream's 1F1B (Narayanan et al., 2019, section 3.2): position i of p has p - i microbatches under way, each step its U.

    Where versions are bounded, no more are under way than let a microbatch see at most that many updates: D n + 1.
    """

    name, place = "pipedream", 200
    steps_overlap = True
    summary = "one forward, one backward, without end; holds p activations, and as many versions"
    placements = "unidirectional"
    source = "Narayanan et al., 2019, section 3.2"
    modes: ClassVar[tuple[Versions, ...]] = (Versions.STASH, Versions.BOUNDED)

    def construct(self, problem: Problem) -> Schedule:
        """The period.

        Raises:
            Unsupported: the placement is not unidirectional, or the versions are others.
        """
        updates = problem.updates
        if updates is None or updates.versions not in self.modes:
            raise Unsupported(f"{self.name} is for versions = {' or '.join(self.modes)}")
        grid = grid_for(problem, self.name, LINE)
        apart = 1 if updates.versions is Versions.TWO_BUFFERED else updates.most_delay
        counts = {}
        for position, (stage,) in enumerate(grid.stages):
            most = grid.positions - position
            counts[stage] = most if apart is None else min(most, apart * problem.microbatches + 1)
        return one_f_one_b(problem, counts)


class PipeDream2BW(PipeDream, frozen=True):
    """PipeDream-2BW (Narayanan et al., 2021, section 3.1): the same order; all of a step reads the weights of two steps before.

    So a forward of step k waits for the update of step k - 2, and no more than n + 1 microbatches are under way.
    """

    name, place = "pipedream-2bw", 201
    summary = "as pipedream; holds at most n + 1 activations, of n microbatches a step, and two versions"
    source = "Narayanan et al., 2021, section 3.1"
    modes: ClassVar[tuple[Versions, ...]] = (Versions.TWO_BUFFERED,)


def one_by_one(problem: Problem) -> Schedule:
    """Each microbatch goes there and back before the next begins, and each update follows the last: nothing is under way longer."""
    orders: list[list[Op]] = [[] for _ in range(problem.ranks)]
    for microbatch in range(problem.microbatches):
        path = problem.path(microbatch)
        for stage in path:
            orders[problem.stages[stage].rank].append(Op(Kind.F, stage, microbatch))
        for stage in reversed(path):
            orders[problem.stages[stage].rank].append(Op(Kind.BW, stage, microbatch))
    for stage, costs in enumerate(problem.stages):
        orders[costs.rank].append(Op(Kind.U, stage, 0))
    return Schedule(orders=tuple(map(tuple, orders)))


def one_f_one_b(problem: Problem, counts: Mapping[int, int], *, later: int = -1) -> Schedule:
    """The period in which each stage, alone on its rank, runs one F, one backward, and U right after the last of a step.

    Args:
        problem: its microbatches are taken in their order.
        counts: per stage, how many microbatches are under way once an F has run.
        later: how many microbatches W comes after B; -1: they are fused.
    """
    orders: list[tuple[Op, ...]] = [()] * problem.ranks
    for stage, count in counts.items():
        orders[problem.stages[stage].rank] = tuple(_stage_order(stage, problem.microbatches, count, later))
    return Schedule(orders=tuple(orders))


def _stage_order(stage: int, microbatches: int, count: int, later: int) -> Iterator[Op]:
    shift = -(-max(later, 0) // microbatches) * microbatches  # so that the least step is 0
    for index in range(shift, shift + microbatches):
        yield Op(Kind.F, stage, index + count - 1)
        yield Op(Kind.BW if later < 0 else Kind.B, stage, index)
        last = index - max(later, 0)
        if later >= 0:
            yield Op(Kind.W, stage, last)
        if (last + 1) % microbatches == 0:
            yield Op(Kind.U, stage, last // microbatches)
