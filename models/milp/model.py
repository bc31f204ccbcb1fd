"""The MILP of a Problem: which constraints it has and what it minimizes.

Sets: the ops, transfers and collectives of `schedc.models.blocks`. Variables: the start of each, continuous, in ticks of the grid,
in its window; for each backward that may be fused, whether it is, a binary; for each pair of tasks on one rank, link or trunk whose
order is open, a binary. Constraints, each in a function of its name: precedence; one op at a time per rank, one transfer at a time
per link or trunk, in the order in which they become ready; microbatch order; memory; collectives. Objective: the makespan or the
stage span, at most the incumbent's.

An op may wait here, and a message of 0 bytes waits for none of another chain: the model is a relaxation in these, as the CP-SAT
model is, and in values that wait for others, which take no memory here. All data are integers, and with the order given the least
starts are longest paths: the optimum is an integer number of ticks.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pulp

from schedc.ir import Kind, Objective, Op, Problem, Resource
from schedc.models.blocks import Blocks, NothingAtMost
from schedc.models.milp.memory import add_memory_limit
from schedc.models.milp.order import OrderedTask, add_no_overlap, add_work_cuts
from schedc.models.milp.variables import Graph, MilpVariables, graph_of, op_name, send_name
from schedc.models.start_windows import Windows, windows_of


def build(problem: Problem, blocks: Blocks, lower: int, upper: int) -> MilpVariables:
    """The model of all schedules whose objective is at most `upper` ticks, where none is known to be below `lower`.

    Raises:
        NothingAtMost: `upper` is below `lower` or what every schedule takes, so that there is no such schedule.
    """
    graph = graph_of(blocks)
    windows = windows_of(problem, blocks, upper)
    lower = max(lower, windows.least)
    if upper < lower:
        raise NothingAtMost(upper, lower)
    model = pulp.LpProblem("schedc")
    start = {op: model.add_variable(op_name(op), windows.earliest[op], windows.latest[op]) for op in blocks.duration}
    variables = MilpVariables(model, blocks, start, model.add_variable("objective", lower, upper))
    variables.fused |= {op: model.add_variable(f"fused:{op_name(op)}", cat=pulp.LpBinary) for op in blocks.fused}
    shared: dict[Resource, list[OrderedTask]] = defaultdict(list)
    begin = add_objective(variables, problem, windows)
    add_precedences(variables)
    add_rank_no_overlap(variables, problem, graph, windows)
    add_transfers(variables, windows, shared)
    add_first_starts(variables, windows, begin)
    add_microbatch_order(variables)
    add_memory_limit(variables, problem)
    add_collectives(variables, problem, windows, shared)
    for tasks in shared.values():
        add_no_overlap(variables, tasks, graph)
    return variables


def add_precedences(variables: MilpVariables) -> None:
    """An op starts after what it needs on its own rank has ended."""
    for before, after in variables.blocks.needs:
        variables.model += variables.start[after] >= variables.end(before)


def add_rank_no_overlap(variables: MilpVariables, problem: Problem, graph: Graph, windows: Windows) -> None:
    """A rank runs one op at a time."""
    tasks: dict[int, list[OrderedTask]] = defaultdict(list)
    tails: dict[str, int] = {}
    for op, length in variables.blocks.duration.items():
        tasks[problem.rank_of(op)].append(_task(variables, windows, op))
        tails[op_name(op)] = windows.tail[op] + variables.blocks.least(op) - max(length, variables.blocks.fused.get(op, 0))
    for rank, on_rank in tasks.items():
        add_no_overlap(variables, on_rank, graph)
        add_work_cuts(variables, on_rank, {task.name: tails[task.name] for task in on_rank}, windows.origin[rank])


def _task(variables: MilpVariables, windows: Windows, op: Op) -> OrderedTask:
    blocks, start, earliest, latest = variables.blocks, variables.start[op], windows.earliest[op], windows.latest[op]
    length, fused = blocks.duration[op], variables.vanishes(op)
    if fused is not None:  # its window is one of a moment
        return OrderedTask(op_name(op), start, length, earliest, latest - length, op, op, vanishes=fused)
    if op not in blocks.fused:
        return OrderedTask(op_name(op), start, length, earliest, latest, op, op)
    least, most_longer = blocks.least(op), abs(blocks.fused[op] - length)
    longer = most_longer * (variables.fused[op] if blocks.fused[op] > length else 1 - variables.fused[op])
    return OrderedTask(op_name(op), start, least, earliest, latest, op, op, longer=longer, most_longer=most_longer)


def add_transfers(variables: MilpVariables, windows: Windows, shared: dict[Resource, list[OrderedTask]]) -> None:
    """A transfer follows its producer, occupies its link or trunk alone, and precedes its consumers by the latency.

    The transfers of a chain to one resource keep its order, as their producers do; those of one producer, that of its edges.
    """
    chain_of = {op: number for number, chain in enumerate(variables.blocks.chains) for op in chain}
    lanes: dict[tuple[int, Resource], list[OrderedTask]] = defaultdict(list)
    for move in variables.blocks.transfers:
        ready, consumers = variables.end(move.producer), [variables.start[op] for op in move.consumers]
        lane = lanes[chain_of[move.producer], move.resource]
        if move.occupancy == 0:
            for consumer in consumers:
                variables.model += consumer >= ready + move.latency
                if lane:  # of a graph, or of slices: it leaves behind what goes before it
                    variables.model += consumer >= lane[-1].start + lane[-1].length + move.latency
            continue
        earliest = windows.earliest[move.producer] + variables.blocks.least(move.producer)
        latest = min(windows.latest[op] for op in move.consumers) - move.latency - move.occupancy
        name = send_name(move.name)
        send = variables.model.add_variable(name, earliest, latest)
        variables.send[move.name] = send
        variables.model += send >= ready
        for consumer in consumers:
            variables.model += consumer >= send + move.occupancy + move.latency
        place = chain_of[move.producer], len(lane)
        task = OrderedTask(name, send, move.occupancy, earliest, latest, move.producer, move.consumers[0], place)
        shared[move.resource].append(task)
        lane.append(task)
    for tasks in lanes.values():
        for first, second in pairwise(tasks):
            variables.model += second.start >= first.start + first.length


def add_microbatch_order(variables: MilpVariables) -> None:
    """The ops of a chain run one after another; this removes the symmetry between alike microbatches."""
    for chain in variables.blocks.chains:
        for before, after in pairwise(chain):
            variables.model += variables.start[after] >= variables.end(before)


def add_collectives(
    variables: MilpVariables, problem: Problem, windows: Windows, shared: dict[Resource, list[OrderedTask]]
) -> None:
    """`AG` ends before the stage's first F; `RS` follows its last W and belongs to the makespan (CrossPipe, figure 7).

    Where the stage span is minimized no `RS` is modelled: it could always come after everything else on its resource.
    """
    parallel = problem.data_parallel
    if parallel is None:
        return
    blocks = variables.blocks
    chains: dict[tuple[int, Kind], list[tuple[Op, ...]]] = defaultdict(list)
    for chain in blocks.chains:
        chains[chain[0].stage, chain[0].kind].append(chain)
    last_kind = Kind.W if problem.split_backward else Kind.BW
    for stage in sorted({op.stage for op in blocks.duration}):
        resource = Resource.of_collectives(parallel, problem.stages[stage].rank)
        if length := blocks.gather.get(stage, 0):
            forwards = [chain[0] for chain in chains[stage, Kind.F]]
            latest = min(windows.latest[forward] for forward in forwards) - length
            task = _collective(variables, f"AG{stage}", length, 0, latest, until=forwards[0])
            for forward in forwards:
                variables.model += variables.start[forward] >= task.start + length
            shared[resource].append(task)
        if (length := blocks.scatter.get(stage, 0)) and problem.objective is Objective.MAKESPAN:
            ends = [chain[-1] for chain in chains[stage, last_kind]]
            earliest = max(windows.earliest[last] + blocks.least(last) for last in ends)
            task = _collective(variables, f"RS{stage}", length, earliest, windows.end - length, after=ends[0])
            for last in ends:
                variables.model += task.start >= variables.end(last)
            variables.model += variables.objective >= task.start + length
            shared[resource].append(task)


def _collective(
    variables: MilpVariables,
    name: str,
    length: int,
    earliest: int,
    latest: int,
    *,
    after: Op | None = None,
    until: Op | None = None,
) -> OrderedTask:
    return OrderedTask(name, variables.model.add_variable(name, earliest, latest), length, earliest, latest, after, until)


def add_objective(variables: MilpVariables, problem: Problem, windows: Windows) -> dict[int, pulp.LpVariable | int]:
    """Minimize the last end on any rank, from 0 or from the rank's first start; returns the latter, a decision where it is open."""
    variables.model += variables.objective
    begin: dict[int, pulp.LpVariable | int] = {}
    for rank, origin in windows.origin.items():
        begin[rank] = variables.model.add_variable(f"begin:{rank}", 0, windows.end) if origin is None else origin
    for chain in variables.blocks.chains:
        rank = problem.rank_of(chain[0])
        if chain[0].kind is Kind.F and windows.origin[rank] is None:
            variables.model += begin[rank] <= variables.start[chain[0]]
        last = chain[-1]  # the tail of one that may be fused is counted from its least end
        end = variables.start[last] + variables.blocks.least(last) if last in variables.fused else variables.end(last)
        variables.model += variables.objective >= end + windows.tail[last] - begin[rank]
    return begin


def add_first_starts(variables: MilpVariables, windows: Windows, begin: dict[int, pulp.LpVariable | int]) -> None:
    """Where a rank's first start is a decision, it is the moment at which one of the ops that may be its first can start.

    That one does then, as the simulator starts it as soon as it can.
    """
    for rank, firsts in windows.firsts.items():
        chosen = []
        for op, move in firsts:
            name = op_name(op if move is None else move.consumers[0])
            if move is not None and move.name != move.producer:  # of a graph, which may have several of them
                name = f"{op_name(op)}:{op_name(move.name)}:{name}"
            chosen.append(variables.model.add_variable(f"begins:{name}", cat=pulp.LpBinary))
            other = windows.end * (1 - chosen[-1])
            arrival = 0
            if move is not None:
                arrival = variables.send.get(move.name, variables.end(move.producer)) + move.occupancy + move.latency
                variables.model += begin[rank] - arrival >= -other
            variables.model += begin[rank] - arrival <= other
            variables.model += variables.start[op] - begin[rank] <= other
        if chosen:
            variables.model += pulp.lpSum(chosen) == 1
