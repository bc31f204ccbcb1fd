"""Hanayo and Chimera, which say what goes first instead of listing the order: the list scheduler makes it, in unit times.

The times are those of the template, not of the job: F take one unit of time and BW two, links none.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from schedc.ir import Link, Problem, Schedule
from schedc.solvers.common.method import Template
from schedc.solvers.kernel.list_scheduler import ListSchedule, list_schedule
from schedc.solvers.kernel.scheduler_state import Rule
from schedc.solvers.templates.shape import WAVE, grid_for, two_lines


class Hanayo(Template, frozen=True):
    """Hanayo (Liu et al., 2023): v chunks per rank are v / 2 waves; a rank holds at most p v activations of chunks.

    The paper's unit is p microbatches, drawn with BW twice as long as F. More of them follow here in whichever of three ways is
    shortest in these unit times: at most p microbatches under way, where two ops are ready the backward first or the forward
    first, or (v even) a cap on what each stage holds, the larger the longer its microbatches are away.
    """

    name, place = "hanayo", 70
    summary = "1F1B along v / 2 waves; holds at most p activations of all of a rank's chunks"
    placements = "wave"
    source = "Liu et al., 2023"

    def construct(self, problem: Problem) -> Schedule:
        """The schedule.

        Raises:
            Unsupported: the placement is not a wave.
        """
        grid = grid_for(problem, self.name, WAVE)
        path, positions, chunks = problem.paths[0], grid.positions, grid.chunks
        depth = {stage: index for index, stage in enumerate(path)}
        count = len(path)
        # Of F, BW and W, the smallest first; of equals the lowest microbatch.
        backward_first = tuple((2 * count - depth[stage], depth[stage], 0) for stage in range(count))
        forward_first = ((0, 1, 0),) * count
        under_way = {path[0]: positions}
        ways = [(backward_first, under_way), (forward_first, under_way)]
        if chunks % 2 == 0:
            # A stage at depth d of L waits for 2 (L − d) ops; 2 (L − d) / v, less one on the way down, add up to p v on every rank.
            share = {stage: -(-2 * (count - d) // chunks) - (2 * d < count) for stage, d in depth.items()}
            by_depth = (forward_first, {stage: max(1, cap) for stage, cap in share.items()})
            # On one wave the last way was never the longer one (p up to 10, m up to 29).
            ways = [by_depth] if chunks == 2 else [*ways, by_depth]
        made = (_in_unit_times(problem, priority, cap_of) for priority, cap_of in ways)
        return min(made, key=lambda way: way.end_ns).schedule


class Chimera(Template, frozen=True):
    """Chimera (Li and Hoefler, 2021, section 3.1): 1F1B in both directions at once, a rank's turns where the other one waits.

    p microbatches (p even) are the paper's unit, p/2 in each direction: the outermost ranks hold p/2 + 1 activations, the middle
    ones p. Of more microbatches every rank may hold p (p + 1 the middle one of an odd p), so that they join without a further
    bubble and the paper's ratio (p − 2) / (3m/2 + p − 2) holds for BW = 2F and any multiple m of p.
    """

    name, place = "chimera", 80
    summary = "two pipelines in opposite directions; holds at most p activations (p even)"
    placements = "bidirectional"
    source = "Li and Hoefler, 2021, section 3.1"

    def construct(self, problem: Problem) -> Schedule:
        """The schedule.

        Raises:
            Unsupported: the placement is not bidirectional.
        """
        # A rank's two caps add up to p: 1F1B's p − i in one direction, one less in the other.
        caps = {
            stage: max(1, grid.positions - position - (position < grid.positions // 2))
            for grid in two_lines(problem, self.name)
            for position, (stage,) in enumerate(grid.stages)
        }
        return _in_unit_times(problem, ((0, 1, 0),) * len(problem.stages), caps).schedule


def _in_unit_times(problem: Problem, priority: tuple[tuple[int, int, int], ...], cap_of: dict[int, int]) -> ListSchedule:
    """What the list scheduler makes of the problem in unit times, with free links and all memory that it wants.

    Args:
        problem: only its stages' ranks, its paths and its microbatches matter.
        priority: as of `Rule`.
        cap_of: how many microbatches a stage may have in flight; those without an entry any number.
    """
    stages = tuple(
        replace(stage, forward_ns=(1,), backward_input_ns=(1,), backward_weight_ns=(1,), backward_ns=(2,))
        for stage in problem.stages
    )
    links = tuple(Link(source=source, destination=destination) for source, destination in permutations(range(problem.ranks), 2))
    no_limits = (None,) * problem.ranks
    units = replace(problem, stages=stages, links=links, memory_limit_bytes=no_limits, split_backward=False, data_parallel=None)
    caps = tuple(cap_of.get(stage) for stage in range(len(stages)))
    step = problem.microbatches  # of equal priorities the lowest microbatch goes first
    apart = tuple((step * f, step * b, w) for f, b, w in priority)
    return list_schedule(units, Rule(priority=apart, in_flight=caps, weight_lag=(0,) * len(stages), priority_step=1))
