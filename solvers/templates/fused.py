"""GPipe, 1F1B, with one stage per rank or interleaved on a loop, and one microbatch after another: all with fused backwards."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from schedc.ir import Kind, Op, Problem, Schedule
from schedc.solvers.common.method import Constructive, Template
from schedc.solvers.templates.shape import LINE_OR_LOOP, LOOP, Grid, grid_for, schedule_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class GPipe(Template, frozen=True):
    """GPipe (Huang et al., 2019): all forwards, then all backwards; every rank holds m activations of each of its stages.

    Exists for every placement. A rank with several stages finishes one for all microbatches before it starts the next (the
    breadth-first order of Lamy-Poirier, 2022).
    """

    name, place, graphs, slices = "gpipe", 10, True, True
    summary = "all forwards, then all backwards; holds m activations"
    placements = "any"
    source = "Huang et al., 2019"

    def construct(self, problem: Problem) -> Schedule:
        """The schedule."""
        depth = [{stage: index for index, stage in enumerate(path)} for path in problem.paths]
        orders: list[list[tuple[int, int, int]]] = [[] for _ in range(problem.ranks)]
        slices = len(problem.slices) or 1

        def backward(at: tuple[int, int, int]) -> tuple[int, int, int]:
            return -at[0], at[1] // slices, -at[1]  # the last slice of a microbatch first

        for stage, microbatch in problem.blocks():
            orders[problem.stages[stage].rank].append((depth[problem.path_of[microbatch]][stage], microbatch, stage))
        return Schedule(
            orders=tuple(
                tuple(Op(Kind.F, stage, microbatch) for _, microbatch, stage in sorted(order))
                + tuple(Op(Kind.BW, stage, microbatch) for _, microbatch, stage in sorted(order, key=backward))
                for order in orders
            )
        )


class OneFOneB(Template, frozen=True):
    """1F1B (PipeDream-flush, Narayanan et al., 2021): position i of p holds p − i activations; on a loop, `interleaved`."""

    name, place = "1f1b", 20
    summary = "one forward, one backward; holds at most p activations; on a loop it is interleaved"
    placements = "unidirectional or loop"
    source = "Narayanan et al., 2021"

    def construct(self, problem: Problem) -> Schedule:
        """The schedule.

        Raises:
            Unsupported: the placement is neither unidirectional nor a loop.
        """
        grid = grid_for(problem, self.name, LINE_OR_LOOP)
        if grid.chunks > 1:
            return _interleaved(problem, grid)

        def order(position: int) -> Iterator[Op]:
            (stage,) = grid.stages[position]
            warm_up = min(grid.positions - 1 - position, problem.microbatches)
            for index in range(problem.microbatches + warm_up):
                if index < problem.microbatches:
                    yield Op(Kind.F, stage, index)
                if index >= warm_up:
                    yield Op(Kind.BW, stage, index - warm_up)

        return schedule_of(problem, grid, order)


class Interleaved(Template, frozen=True):
    """Interleaved 1F1B (Narayanan et al., 2021, section 2.2): position i of p, v chunks, warms up with (v−1)g + 2(p−1−i) forwards.

    Microbatches pass each chunk in groups of g. Where p divides m, g = p, as in Megatron-LM. Else the groups share m as equally as
    they can with at least p each, as PyTorch has them where they come out equal; a last group below p, which Megatron-LM refuses,
    would let the ranks wait for each other in a cycle. Should that exceed a memory limit, g = p again, and the last group lacks
    some: slower, but never more than Megatron-LM's (v−1)p + 2(p−1−i) + 1 chunks.
    """

    name, place = "interleaved", 30
    summary = "1F1B over the chunks of a rank; holds at most (v - 1) p + 2 p - 1 activations of chunks"
    placements = "loop"
    source = "Narayanan et al., 2021, section 2.2"

    def construct(self, problem: Problem) -> Schedule:
        """The schedule.

        Raises:
            Unsupported: the placement is not a loop.
        """
        return _interleaved(problem, grid_for(problem, self.name, LOOP))


class Sequential(Constructive, frozen=True):
    """Every microbatch goes there and back, each backward whole, before the next begins: slow, and there where nothing else fits.

    No schedule holds less: each rank's peak is the least limit with which any exists (`minimum_limit_bytes`, and its proof); but of
    graphs, where values may wait for others, and of slices where stages recompute. All slices of a microbatch go there, then
    all come back, each on all stages; where a limit has no room for the gradients of the states of several stages, all on one stage
    after another. A stage of a graph may then turn as soon as it can.
    """

    name, place, graphs, slices = "sequential", 150, True, True

    def construct(self, problem: Problem) -> Schedule:
        """The schedule; it exists for any problem."""
        first = _in_turn(problem, _by_slice)
        if (problem.is_chain and not problem.slices) or not any(limit is not None for limit in problem.memory_limit_bytes):
            return first
        from schedc.analysis.simulation.memory import exceeded_limit  # imports numpy, which the others do not need

        made = (first, *(_in_turn(problem, by_stage) for by_stage in (_at_once, _by_stage)))
        return next((each for each in made if exceeded_limit(problem, each) is None), first)


def _in_turn(problem: Problem, turns: Callable[[Problem, range], list[Op]]) -> Schedule:
    orders: list[list[Op]] = [[] for _ in range(problem.ranks)]
    slices = len(problem.slices) or 1
    for first in range(0, problem.microbatches, slices):
        for op in turns(problem, range(first, first + slices)):
            orders[problem.rank_of(op)].append(op)
    return Schedule(orders=tuple(map(tuple, orders)))


def _by_slice(problem: Problem, own: range) -> list[Op]:
    path = problem.path(own[0])
    there = [Op(Kind.F, stage, microbatch) for microbatch in own for stage in path]
    return there + [Op(Kind.BW, stage, microbatch) for microbatch in reversed(own) for stage in reversed(path)]


def _by_stage(problem: Problem, own: range) -> list[Op]:
    path = problem.path(own[0])
    there = [Op(Kind.F, stage, microbatch) for stage in path for microbatch in own]
    return there + [Op(Kind.BW, stage, microbatch) for stage in reversed(path) for microbatch in reversed(own)]


def _at_once(problem: Problem, own: range) -> list[Op]:
    """By stage, and each backward as soon as all its gradients are there."""
    path, ops = problem.path(own[0]), list[Op]()
    waits_for = {stage: set[int]() for stage in path}
    for edge in problem.edges_of(problem.path_of[own[0]]):
        if edge.has_gradient:
            waits_for[edge.source].add(edge.destination)
    gone, back = list[int](), set[int]()
    for turn in path:
        ops += [Op(Kind.F, turn, microbatch) for microbatch in own]
        gone.insert(0, turn)
        for stage in gone:
            if stage not in back and waits_for[stage] <= back:
                ops += [Op(Kind.BW, stage, microbatch) for microbatch in reversed(own)]
                back.add(stage)
    return ops


def _interleaved(problem: Problem, grid: Grid) -> Schedule:
    from schedc.analysis.simulation.memory import exceeded_limit  # imports numpy, which the others do not need

    count, positions = problem.microbatches, grid.positions
    rounds = max(1, count // positions)
    equal = _with_groups(problem, grid, [count // rounds + (index < count % rounds) for index in range(rounds)])
    if count % positions == 0 or exceeded_limit(problem, equal) is None:
        return equal
    return _with_groups(problem, grid, [positions] * -(-count // positions))


def _with_groups(problem: Problem, grid: Grid, sizes: Sequence[int]) -> Schedule:
    edges = [0, *accumulate(sizes)]
    groups = [range(first, last) for first, last in pairwise(edges)]

    def order(position: int) -> list[Op]:
        forth = grid.stages[position]
        forwards = [Op(Kind.F, stage, microbatch) for group in groups for stage in forth for microbatch in group]
        backwards = [Op(Kind.BW, stage, microbatch) for group in groups for stage in reversed(forth) for microbatch in group]
        warm_up = min((grid.chunks - 1) * sizes[0] + 2 * (grid.positions - 1 - position), len(forwards))
        steady = [op for pair in zip(forwards[warm_up:], backwards, strict=False) for op in pair]
        return forwards[:warm_up] + steady + backwards[len(forwards) - warm_up :]

    return schedule_of(problem, grid, order)
