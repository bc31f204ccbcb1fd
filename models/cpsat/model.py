"""The CP-SAT model of a Problem: which constraints it has and what it minimizes.

Sets: the ops, transfers and collectives of `schedc.models.blocks`. Variables: the start of each, in ticks of the grid, in its
window; for each backward that may be fused, whether it is. Constraints, each in a function of its name: precedence; one op at a
time per rank, one transfer at a time per link or trunk; microbatch order; memory; collectives. Objective: the makespan or the
stage span, at most the incumbent's.

An op may wait here, which can make a stage span shorter (`models.start_windows`), let a value wait less for others
(`models.cpsat.memory`), and let the message of another rank go first on a trunk; and a message of 0 bytes waits for none of another
chain. The model is a relaxation in these, so its bounds hold for schedules of whole blocks, and a schedule that it finds is timed
again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from schedc.ir import Kind, Objective, Op, Problem, Resource
from schedc.models.cpsat.memory import add_memory_limit
from schedc.models.cpsat.sharding import add_sharding
from schedc.models.cpsat.variables import CpSatVariables, variables_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ortools.sat.python import cp_model

    from schedc.models.blocks import Blocks, BlockTransfer
    from schedc.models.start_windows import Windows


def build(problem: Problem, blocks: Blocks, windows: Windows, lower: int, upper: int) -> CpSatVariables:
    """The model of all schedules whose objective is at most `upper` ticks, for which the windows are; none is below `lower`.

    Raises:
        NothingAtMost: `upper` is below `lower` or what every schedule takes, so that there is no such schedule.
    """
    variables = variables_of(blocks, windows, lower, upper)
    model = variables.model
    shared: dict[Resource, list[cp_model.IntervalVar]] = defaultdict(list)
    add_precedences(variables)
    add_rank_no_overlap(variables, problem, blocks.duration)
    add_transfers(variables, windows, shared)
    add_ready_order(variables, problem)
    add_microbatch_order(variables)
    if problem.is_sharded:
        add_sharding(variables, problem, windows.end, shared)
    else:
        add_collectives(variables, problem, windows.end, shared)
    add_memory_limit(variables, problem, windows.end)
    for intervals in shared.values():
        model.add_no_overlap(intervals)
    add_objective(variables, problem, windows)
    return variables


def build_relaxed(
    problem: Problem,
    blocks: Blocks,
    windows: Windows,
    lower: int,
    upper: int,
    *,
    computing: Collection[int],
    limited: Collection[int],
) -> CpSatVariables:
    """The model of all relaxed schedules with a makespan of at most `upper` ticks, for which the windows are.

    Ranks compute any number of ops at once, but those of `computing` one F or backward at a time, beside any W. Memory limits are
    those of the ranks of `limited`. Precedences, links and trunks and microbatch order stay. So every schedule whose F and
    backwards are whole is a solution, and where there is none, no such schedule ends in time. Where links are busy and ranks hold
    several chunks, this is settled long before the whole model is.

    It minimizes the makespan, though what is asked is mostly whether there is any: CP-SAT refutes far faster with an objective.

    Raises:
        NothingAtMost: `upper` is below `lower` or what every schedule takes.
    """
    variables = variables_of(blocks, windows, lower, upper)
    model = variables.model
    shared: dict[Resource, list[cp_model.IntervalVar]] = defaultdict(list)
    add_precedences(variables)
    whole = [op for op in blocks.duration if op.kind is not Kind.W and problem.rank_of(op) in computing]
    add_rank_no_overlap(variables, problem, whole)
    add_transfers(variables, windows, shared)
    add_microbatch_order(variables)
    for intervals in shared.values():
        model.add_no_overlap(intervals)
    limits = tuple(limit if rank in limited else None for rank, limit in enumerate(problem.memory_limit_bytes))
    add_memory_limit(variables, replace(problem, memory_limit_bytes=limits), upper)
    add_objective(variables, problem, windows)
    return variables


def add_precedences(variables: CpSatVariables) -> None:
    """An op starts after what it needs on its own rank has ended."""
    for before, after in variables.blocks.needs:
        variables.add_after(variables.start[after], before)


def add_rank_no_overlap(variables: CpSatVariables, problem: Problem, ops: Iterable[Op]) -> None:
    """A rank runs one of these ops at a time."""
    intervals: dict[int, list[cp_model.IntervalVar]] = defaultdict(list)
    model, blocks = variables.model, variables.blocks
    for op in ops:
        length = blocks.duration[op]
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


def add_transfers(variables: CpSatVariables, windows: Windows, shared: dict[Resource, list[cp_model.IntervalVar]]) -> None:
    """A transfer follows its producer, occupies its link or trunk alone, and precedes its consumers by the latency.

    The transfers of a chain to one resource keep its order, as their producers do; those of one producer, that of its edges.
    """
    model, start = variables.model, variables.start
    chain_of = {op: number for number, chain in enumerate(variables.blocks.chains) for op in chain}
    lanes: dict[tuple[int, Resource], list[tuple[cp_model.IntVar, int]]] = defaultdict(list)
    for move in variables.blocks.transfers:
        lane = lanes[chain_of[move.producer], move.resource]
        if move.occupancy == 0:
            for op in move.consumers:
                variables.add_after(start[op], move.producer, move.latency)
                if lane:  # of a graph, or of slices: it leaves behind what goes before it
                    model.add(start[op] >= lane[-1][0] + lane[-1][1] + move.latency)
            continue
        earliest = windows.earliest[move.producer] + variables.blocks.least(move.producer)
        latest = min(windows.latest[op] for op in move.consumers) - move.latency - move.occupancy
        send = model.new_int_var(earliest, latest, "")
        variables.send[move.name] = send
        variables.add_after(send, move.producer)
        for op in move.consumers:
            model.add(start[op] >= send + move.occupancy + move.latency)
        shared[move.resource].append(model.new_fixed_size_interval_var(send, move.occupancy, ""))
        lane.append((send, move.occupancy))
    for lane in lanes.values():
        for (first, occupancy), (second, _) in pairwise(lane):
            model.add(second >= first + occupancy)


def add_ready_order(variables: CpSatVariables, problem: Problem) -> None:
    """A link or trunk serves transfers of different chains in the order in which they become ready; of equals, either is first."""
    model, blocks = variables.model, variables.blocks
    chain_of = {op: number for number, chain in enumerate(blocks.chains) for op in chain}
    queues: dict[Resource, list[BlockTransfer]] = defaultdict(list)
    for move in blocks.transfers:
        if move.occupancy:
            queues[move.resource].append(move)
    for queue in queues.values():
        for first, second in combinations(queue, 2):
            if chain_of[first.producer] == chain_of[second.producer]:
                continue
            order = model.new_bool_var("")
            for a, b, literal in ((first, second, order), (second, first, ~order)):
                model.add(variables.send[b.name] >= variables.send[a.name] + a.occupancy).only_enforce_if(literal)
                later = blocks.later.get(b.producer, 0) if problem.rank_of(a.producer) != problem.rank_of(b.producer) else 0
                model.add(variables.end(a.producer) <= variables.end(b.producer) + later).only_enforce_if(literal)


def add_microbatch_order(variables: CpSatVariables) -> None:
    """The ops of a chain run one after another; this removes the symmetry between alike microbatches."""
    for chain in variables.blocks.chains:
        for before, after in pairwise(chain):
            variables.add_after(variables.start[after], before)


def add_collectives(
    variables: CpSatVariables, problem: Problem, end: int, shared: dict[Resource, list[cp_model.IntervalVar]]
) -> None:
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
            begin = model.new_int_var(0, end, "")
            shared[resource].append(model.new_fixed_size_interval_var(begin, length, ""))
            for chain in chains[stage, Kind.F]:
                model.add(variables.start[chain[0]] >= begin + length)
        length = blocks.scatter.get(stage, 0)
        if (
            length and problem.objective is Objective.MAKESPAN
        ):  # the stage span ends with compute, and what follows can always come last
            begin = model.new_int_var(0, end, "")
            shared[resource].append(model.new_fixed_size_interval_var(begin, length, ""))
            for chain in chains[stage, last_kind]:
                variables.add_after(begin, chain[-1])
            model.add(variables.objective >= begin + length)


def add_objective(variables: CpSatVariables, problem: Problem, windows: Windows) -> None:
    """Minimize the last end on any rank, from 0 or from the rank's first start.

    Where that is a decision, it is the moment at which one of the ops that may be the rank's first can start, and that one does.
    """
    model, chains = variables.model, variables.blocks.chains
    begin = {rank: model.new_int_var(0, windows.end, "") for rank, origin in windows.origin.items() if origin is None}
    for chain in chains:
        rank = problem.rank_of(chain[0])
        if chain[0].kind is Kind.F and rank in begin:
            model.add(variables.start[chain[0]] >= begin[rank])
        variables.add_after(variables.objective + begin.get(rank, 0), chain[-1])
    for rank, firsts in windows.firsts.items():
        if firsts:
            model.add_bool_or([_begins_with(variables, begin[rank], op, move) for op, move in firsts])
    model.minimize(variables.objective)


def _begins_with(variables: CpSatVariables, begin: cp_model.IntVar, op: Op, move: BlockTransfer | None) -> cp_model.IntVar:
    """A literal that is true only where a rank begins with this op as the message arrives; None: at 0."""
    model, chosen = variables.model, variables.model.new_bool_var("")
    arrival: cp_model.LinearExprT = 0
    if move is not None:
        queued, producer = variables.send.get(move.name), move.producer
        sent = variables.start[producer] + variables.blocks.duration[producer] if queued is None else queued + 0
        arrival = sent + (move.occupancy + move.latency)
    model.add(begin == arrival).only_enforce_if(chosen)
    model.add(begin == variables.start[op]).only_enforce_if(chosen)
    return chosen
