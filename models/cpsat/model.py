"""The CP-SAT model of a Problem: which constraints it has and what it minimizes.

Sets: the ops, transfers and collectives of `schedc.models.blocks`. Variables: the start of each, in ticks of the grid, in its
window; for each backward that may be fused, whether it is. Constraints, each in a function of its name: precedence; one op at a
time per rank, one transfer at a time per link or trunk; microbatch order; memory; collectives. Objective: the makespan or the
stage span, at most the incumbent's.

A link serves its transfers in any order here, where the simulator serves them in order of ready time: the model is a relaxation
in this, so its bounds hold, and a schedule that it finds is timed again.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from ortools.sat.python import cp_model

from schedc.ir.ops import Kind
from schedc.ir.problem import Objective
from schedc.ir.resource import Resource
from schedc.models.blocks import NothingAtMost
from schedc.models.cpsat.memory import add_memory_limit
from schedc.models.cpsat.variables import Variables

if TYPE_CHECKING:
    from schedc.ir.ops import Op
    from schedc.ir.problem import Problem
    from schedc.models.blocks import Blocks
    from schedc.models.start_windows import Windows

__all__ = ["build", "variables_of"]


def build(problem: Problem, blocks: Blocks, windows: Windows, lower: int, upper: int) -> Variables:
    """The model of all schedules whose objective is at most `upper` ticks, where none is known to be below `lower`.

    Raises:
        NothingAtMost: `upper` is below `lower` or the longest path, so that there is no such schedule.
    """
    variables = variables_of(blocks, windows, lower, upper)
    model = variables.model
    shared: dict[Resource, list[cp_model.IntervalVar]] = defaultdict(list)
    add_precedences(variables)
    add_rank_no_overlap(variables, problem)
    add_transfers(variables, windows, upper, shared)
    add_microbatch_order(variables)
    add_memory_limit(variables, problem, upper + max(windows.origin.values()))
    add_collectives(variables, problem, upper, shared)
    for intervals in shared.values():
        model.add_no_overlap(intervals)
    add_objective(variables, problem, windows)
    return variables


def variables_of(blocks: Blocks, windows: Windows, lower: int, upper: int) -> Variables:
    """A model without constraints: when each op starts, in its window, and the objective, from `lower` to `upper` ticks.

    Raises:
        NothingAtMost: `upper` is below `lower` or the longest path.
    """
    lower = max(lower, windows.path)
    if upper < lower:
        raise NothingAtMost(upper, lower)
    model = cp_model.CpModel()
    start = {
        op: model.new_int_var(windows.head[op], upper - windows.tail[op] - blocks.least(op), f"{Kind(op.kind).name}{op[1:]}")
        for op in blocks.duration
    }
    fused = {op: model.new_bool_var("") for op in blocks.fused}
    return Variables(model, blocks, start, {}, fused, model.new_int_var(lower, upper, "objective"))


def add_precedences(variables: Variables) -> None:
    """An op starts after what it needs on its own rank has ended."""
    for before, after in variables.blocks.needs:
        variables.add_after(variables.start[after], before)


def add_rank_no_overlap(variables: Variables, problem: Problem) -> None:
    """A rank runs one op at a time."""
    intervals: dict[int, list[cp_model.IntervalVar]] = defaultdict(list)
    model, blocks = variables.model, variables.blocks
    for op, length in blocks.duration.items():
        start, on_rank = variables.start[op], intervals[problem.rank_of(op)]
        if op in blocks.fused:
            fused = variables.fused[op]
            on_rank.append(model.new_optional_fixed_size_interval_var(start, length, ~fused, ""))
            on_rank.append(model.new_optional_fixed_size_interval_var(start, blocks.fused[op], fused, ""))
        elif blocks.may_vanish(op):
            split = ~variables.fused[blocks.backward_of(op)]
            on_rank.append(model.new_optional_fixed_size_interval_var(start, length, split, ""))
        else:
            on_rank.append(model.new_fixed_size_interval_var(start, length, ""))
    for on_rank in intervals.values():
        variables.model.add_no_overlap(on_rank)


def add_transfers(variables: Variables, windows: Windows, upper: int, shared: dict[Resource, list[cp_model.IntervalVar]]) -> None:
    """A transfer follows its producer, occupies its link or trunk alone, and precedes its consumer by the latency.

    The transfers of a chain keep its order, as their producers do.
    """
    model, start = variables.model, variables.start
    chain_of = {op: number for number, chain in enumerate(variables.blocks.chains) for op in chain}
    lanes: dict[int, list[tuple[cp_model.IntVar, int]]] = defaultdict(list)
    for move in variables.blocks.transfers:
        consumer = start[move.consumer]
        if move.occupancy == 0:
            variables.add_after(consumer, move.producer, move.latency)
            continue
        earliest = windows.head[move.producer] + variables.blocks.least(move.producer)
        consumer_length = variables.blocks.least(move.consumer)
        latest = upper - windows.tail[move.consumer] - consumer_length - move.latency - move.occupancy
        send = model.new_int_var(earliest, latest, "")
        variables.send[move.producer] = send
        variables.add_after(send, move.producer)
        model.add(consumer >= send + move.occupancy + move.latency)
        shared[move.resource].append(model.new_fixed_size_interval_var(send, move.occupancy, ""))
        lanes[chain_of[move.producer]].append((send, move.occupancy))
    for lane in lanes.values():
        for (first, occupancy), (second, _) in pairwise(lane):
            model.add(second >= first + occupancy)


def add_microbatch_order(variables: Variables) -> None:
    """The ops of a chain run one after another; this removes the symmetry between alike microbatches."""
    for chain in variables.blocks.chains:
        for before, after in pairwise(chain):
            variables.add_after(variables.start[after], before)


def add_collectives(variables: Variables, problem: Problem, upper: int, shared: dict[Resource, list[cp_model.IntervalVar]]) -> None:
    """`AG` ends before the stage's first F; `RS` follows its last W and belongs to the makespan (CrossPipe, figure 7)."""
    parallel = problem.data_parallel
    if parallel is None:
        return
    model, blocks = variables.model, variables.blocks
    chains: dict[tuple[int, Kind], list[tuple[Op, ...]]] = defaultdict(list)
    for chain in blocks.chains:
        chains[chain[0].stage, chain[0].kind].append(chain)
    last_kind = Kind.W if problem.split_backward else Kind.BW
    for stage in sorted({op.stage for op in blocks.duration}):
        resource = Resource.of_collectives(parallel, problem.stages[stage].rank)
        if length := blocks.gather.get(stage, 0):
            begin = model.new_int_var(0, upper, "")
            shared[resource].append(model.new_fixed_size_interval_var(begin, length, ""))
            for chain in chains[stage, Kind.F]:
                model.add(variables.start[chain[0]] >= begin + length)
        length = blocks.scatter.get(stage, 0)
        if (
            length and problem.objective is Objective.MAKESPAN
        ):  # the stage span ends with compute, and what follows can always come last
            begin = model.new_int_var(0, upper, "")
            shared[resource].append(model.new_fixed_size_interval_var(begin, length, ""))
            for chain in chains[stage, last_kind]:
                variables.add_after(begin, chain[-1])
            model.add(variables.objective >= begin + length)


def add_objective(variables: Variables, problem: Problem, windows: Windows) -> None:
    """Minimize the last end on any rank, from 0 or from the rank's first start.

    The simulator starts a rank's first op as soon as it can. So does this model where a span begins with it; otherwise a span could
    be shortened by starting late.
    """
    for op in windows.first_ops:
        variables.model.add(variables.start[op] == windows.head[op])
    for chain in variables.blocks.chains:
        origin = windows.origin[problem.rank_of(chain[-1])]
        variables.add_after(variables.objective + origin, chain[-1])
    variables.model.minimize(variables.objective)
