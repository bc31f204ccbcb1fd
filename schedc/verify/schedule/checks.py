"""What must hold for a Schedule of a Problem. Takes both; gives every violation, none if every rank can run its order to the end.

The problem itself must be sound (`schedc.verify.problem`). Each check is independent: ops that another check refuses (a stage
that does not exist, a missing block) are left out, not reported again. Nothing here is timed: coverage, order, deadlock and the
memory peak of a rank depend on the orders alone, because a rank runs one op at a time.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from schedc.ir import BLOCKS, KIND_NAMES, WHOLE, Kind, Op, Problem, Schedule, token, unit
from schedc.verify.cycles import shortest_cycle
from schedc.verify.schedule.order import ends_of_blocks, first_blocked, needs, waiting_graph
from schedc.verify.schedule.sharding import check_sharding, sharded_along
from schedc.verify.schedule.updates import PERIOD, RUN, run_of, version_bytes_along
from schedc.verify.violation import Checks, Found, Violation

if TYPE_CHECKING:
    from collections.abc import Container


_COMPLETE = ((True, True, True, False), (True, False, False, True))
"""Which kinds of a block there are, one after the other: F, B and W, or F and BW."""
CHECKS: Checks[[Problem, Schedule]] = Checks()


def verify_schedule(problem: Problem, schedule: Schedule) -> tuple[Violation, ...]:
    """Every rule that the schedule breaks, with its place; empty if it is a valid schedule of the problem.

    A period is checked as one, then as a run of steps, whose places the violations name.
    """
    if problem.updates is None or not problem.updates.is_period:
        return CHECKS.broken(problem, schedule) + RUN.broken(problem, schedule)
    if broken := PERIOD.broken(problem, schedule):
        return broken
    run, orders = run_of(problem, schedule)
    steps = run.microbatches // problem.microbatches
    return tuple(
        violation._replace(place=f"a run of {steps} steps: {violation.place}") for violation in verify_schedule(run, orders)
    )


@CHECKS
def check_rank_count(problem: Problem, schedule: Schedule) -> Found:
    """There is one order for each rank."""
    if len(schedule.orders) != problem.ranks:
        yield "ranks", f"expected one order for each of the {problem.ranks} ranks, found {len(schedule.orders)}"


@CHECKS
def check_op_fields(problem: Problem, schedule: Schedule) -> Found:
    """An op's kind, stage, microbatch and part are in range, and its microbatch visits its stage."""
    visited = [frozenset(path) for path in problem.paths]
    on_path = {microbatch: visited[path] for microbatch, path in enumerate(problem.path_of)}
    for rank, order in enumerate(schedule.orders):
        for index, op in enumerate(order):
            if op.kind == Kind.U and 0 <= op.stage < len(problem.stages):
                continue  # the checks of updates look at it
            if op.microbatch in on_path and op.stage in on_path[op.microbatch] and 0 <= op.kind <= Kind.BW and op.part >= WHOLE:
                continue
            if not 0 <= op.kind <= Kind.U:
                found = f"kind {op.kind} does not exist; expected one of {', '.join(KIND_NAMES)}"
            elif op.part < WHOLE:
                found = f"part {op.part} cannot be, as of the transfer {token(op)}; expected {WHOLE} for a whole block, or 0 and up"
            elif op.microbatch not in on_path:
                found = f"{token(op)}: the microbatches are 0 to {problem.microbatches - 1}"
            elif not 0 <= op.stage < len(problem.stages):
                found = f"{token(op)}: the stages are 0 to {len(problem.stages) - 1}"
            else:
                found = f"{token(op)}: microbatch {op.microbatch} does not visit stage {op.stage}"
            yield _place(rank, index), found


@CHECKS
def check_op_rank(problem: Problem, schedule: Schedule) -> Found:
    """An op is in the order of its stage's rank."""
    rank_of = [stage.rank for stage in problem.stages]
    for rank, order in enumerate(schedule.orders):
        for index, op in enumerate(order):
            if 0 <= op.stage < len(rank_of) and rank_of[op.stage] != rank:
                yield _place(rank, index), f"{problem.token(op)} belongs on rank {rank_of[op.stage]}, found on {rank}"


@CHECKS
def check_split_backward(problem: Problem, schedule: Schedule) -> Found:
    """B and W are apart only where the problem allows it."""
    if problem.split_backward:
        return
    for rank, order in enumerate(schedule.orders):
        for index, op in enumerate(order):
            if op.kind in (Kind.B, Kind.W):
                fused = problem.token(op._replace(kind=Kind.BW))
                message = f"{problem.token(op)}: the problem does not split the backward; expected {fused}"
                yield _place(rank, index), message


@CHECKS
def check_parts(problem: Problem, schedule: Schedule) -> Found:
    """Parts are declared once, for a kind and stage that exist and may be cut, and no op is a part that is not declared."""
    declared: dict[tuple[int, int], int] = {}
    for index, parts in enumerate(schedule.parts):
        place, block = f"parts[{index}]", f"{Kind(parts.kind).name} of stage {parts.stage}"
        if not 0 <= parts.stage < len(problem.stages):
            yield place, f"stage {parts.stage} does not exist; the stages are 0 to {len(problem.stages) - 1}"
        elif not problem.cut_blocks:
            yield place, f"{block} is cut; the problem does not allow parts"
        elif problem.stages[parts.stage].recompute and parts.kind in (Kind.B, Kind.BW):
            yield place, f"{block} is cut; it runs the forward again, whose activations one block at a time holds"
        elif (parts.kind, parts.stage) in declared:
            yield place, f"{block} is cut by an entry before this one"
        declared.setdefault((parts.kind, parts.stage), len(parts.shares))
    for rank, order in enumerate(schedule.orders):
        for index, op in enumerate(order):
            if op.part >= 0 and op.part >= (count := declared.get((op.kind, op.stage), 0)):
                found = f"{count} parts are declared" if count else "no parts are declared"
                yield _place(rank, index), f"{problem.token(op)}: {found} for {KIND_NAMES[op.kind]} of stage {op.stage}"


@CHECKS
def check_part_order(problem: Problem, schedule: Schedule) -> Found:
    """The parts of a block are in ascending order."""
    for rank, order in enumerate(schedule.orders):
        latest: dict[tuple[int, int, int], int] = {}
        for index, op in enumerate(order):
            if op.part >= 0:
                block = (op.kind, op.stage, op.microbatch)
                if op.part < latest.get(block, 0):
                    last = problem.token(op._replace(part=latest[block]))
                    message = f"{problem.token(op)} is after {last}; parts run in ascending order"
                    yield _place(rank, index), message
                latest[block] = max(op.part, latest.get(block, 0))


@CHECKS
def check_coverage(problem: Problem, schedule: Schedule) -> Found:
    """Every block is in the schedule exactly once, whole or as all its parts: F, and either B and W, or BW."""
    first: dict[tuple[int, int, int, int], tuple[int, int]] = {}
    for rank, order in enumerate(schedule.orders):
        for index, op in enumerate(order):
            if op in first:
                yield _place(rank, index), f"{problem.token(op)} is a duplicate, first at {_place(*first[op])}"
            else:
                first[op] = (rank, index)
    counts = {(parts.kind, parts.stage): len(parts.shares) for parts in reversed(schedule.parts)}
    for stage, microbatch in problem.blocks():
        if not counts and _whole(first, stage, microbatch) in _COMPLETE:
            continue
        place, name = f"ranks[{problem.stages[stage].rank}].compute", f"{stage}.{unit(microbatch, len(problem.slices))}"
        present = set()
        for kind in BLOCKS:
            whole = (kind, stage, microbatch, WHOLE) in first
            count = counts.get((kind, stage), 0)
            missing = [part for part in range(count) if (kind, stage, microbatch, part) not in first]
            if whole and len(missing) < count:
                yield place, f"{kind.name}{name} is whole and in parts; expected one of the two"
            elif not whole and 0 < len(missing) < count:
                yield place, f"{kind.name}{name}/{missing[0]} is missing, but other parts are there"
            if whole or len(missing) < count:
                present.add(kind)
        if Kind.F not in present:
            yield place, f"F{name} is missing"
        if Kind.BW in present:
            for kind in sorted(present & {Kind.B, Kind.W}):
                yield place, f"{kind.name}{name} is beside BW{name}, which contains it"
        elif not present & {Kind.B, Kind.W}:
            yield place, f"BW{name} is missing, or B{name} and W{name}"
        else:
            for kind in sorted({Kind.B, Kind.W} - present):
                yield place, f"{kind.name}{name} is missing"


def _whole(found: Container[tuple[int, int, int, int]], stage: int, microbatch: int) -> tuple[bool, ...]:
    """By kind, whether the block is there whole."""
    return tuple((kind, stage, microbatch, WHOLE) in found for kind in BLOCKS)


@CHECKS
def check_need_order(problem: Problem, schedule: Schedule) -> Found:
    """On one rank, an op is after everything that it needs: F before B before W, along the path or the edges, and along slices."""
    ends = ends_of_blocks(problem, schedule)
    ops = [op for order in schedule.orders for op in order]
    for producer, consumer in needs(problem):
        last, first = ends.last[producer], ends.first[consumer]
        if first < last and first >= 0 and ends.rank[first] == ends.rank[last]:
            rank = ends.rank[first]
            yield (
                _place(rank, first - ends.offset[rank]),
                f"{problem.token(ops[first])} is before {problem.token(ops[last])}, which it needs",
            )


@CHECKS
def check_deadlock(problem: Problem, schedule: Schedule) -> Found:
    """No op waits, across ranks, for itself. A shortest cycle of ops that wait for each other is reported."""
    ends = ends_of_blocks(problem, schedule)
    waits = ends.waits(problem)
    blocked = first_blocked(schedule, ends, waits)
    if blocked is None:
        return
    nodes, successors = waiting_graph(ends, waits, blocked)
    cycle = shortest_cycle(len(nodes), successors)
    if cycle is None:
        return
    ops = [op for order in schedule.orders for op in order]
    tokens = [problem.token(ops[nodes[index]]) for index in (*cycle, cycle[0])]
    node = nodes[cycle[0]]
    rank = ends.rank[node]
    message = f"each of these ops waits for the one before it, in a cycle: {' -> '.join(tokens)}"
    yield _place(rank, node - ends.offset[rank]), message


@CHECKS
def check_microbatch_order(problem: Problem, schedule: Schedule) -> Found:
    """Where microbatches must enter in the order of their numbers, stages that take from no other run their F in that order.

    That is the first stage of each path; of a graph, each stage without edges in.
    """
    if not problem.in_order:
        return
    entries = [{path[0]} for path in problem.paths]
    if problem.edges:
        entries = [set(problem.paths[0]).difference(edge.destination for edge in problem.edges)]
    latest: dict[tuple[int, int], Op] = {}
    for rank, order in enumerate(schedule.orders):
        for index, op in enumerate(order):
            if op.kind != Kind.F or op.part > 0 or not 0 <= op.microbatch < problem.microbatches:
                continue
            path = problem.path_of[op.microbatch]
            if op.stage not in entries[path]:
                continue
            before = latest.setdefault((path, op.stage), op)
            if op.microbatch < before.microbatch:
                yield (
                    _place(rank, index),
                    f"{problem.token(op)} is after {problem.token(before)}; microbatches enter in the order of their numbers",
                )
            else:
                latest[path, op.stage] = op


CHECKS(check_sharding)


def besides_along(problem: Problem, schedule: Schedule, rank: int) -> list[int]:
    """Per op of the rank, what is held beside activations: versions of weights, gathered weights, gradients; in bytes."""
    order = schedule.orders[rank]
    if problem.updates is not None:
        return list(version_bytes_along(problem, order))
    if problem.is_sharded and rank < len(schedule.collectives):
        return list(sharded_along(problem, order, schedule.collectives[rank]))
    return [0] * len(order)


@CHECKS
def check_memory_limit(problem: Problem, schedule: Schedule) -> Found:
    """No rank ever holds more bytes of activations, and of what else counts (`besides_along`), than its limit.

    Of a graph it may hold more: values that wait depend on times, and are added in the check of a plan.
    """
    counts = {(parts.kind, parts.stage): len(parts.shares) for parts in reversed(schedule.parts)}
    slices = [held_by_slice(problem, index) for index in range(len(problem.slices) or 1)]
    known, number = range(len(problem.stages)), len(slices)
    for rank, (order, limit) in enumerate(zip(schedule.orders, problem.memory_limit_bytes, strict=False)):
        if limit is None:
            continue
        held = peak = 0
        first: tuple[int, Op, int] | None = None
        besides = besides_along(problem, schedule, rank)
        for index, op in enumerate(order):
            kind, stage = op.kind, op.stage
            if stage not in known:
                continue
            begun, again, after, state = slices[op.microbatch % number][stage]
            if kind not in (Kind.W, Kind.U) and op.part <= 0:
                held += begun if kind == Kind.F else again + max(0, state)
            if held + besides[index] > peak:
                peak = held + besides[index]
                if peak > limit and first is None:
                    first = (index, op, peak)
            if kind not in (Kind.F, Kind.U) and (op.part == WHOLE or op.part == counts.get((kind, stage), 0) - 1):
                held -= 0 if kind == Kind.W else begun + again + max(0, -state)
                held += 0 if kind == Kind.BW else after if kind == Kind.B else -after
        if first is not None:
            index, op, bytes_held = first
            message = (
                f"{problem.token(op)} makes the rank hold {bytes_held} bytes, its limit is {limit} bytes, its peak {peak} bytes"
            )
            yield _place(rank, index), message


def held_by_slice(problem: Problem, index: int) -> list[tuple[int, int, int, int]]:
    """Per stage, what this slice of a microbatch holds: activations, what runs again, what is left after B, its state's gradient.

    The last is above 0 of the last slice, whose backward takes it for all slices before it, and below 0 of each of these, whose
    backward gives it back.
    """
    lengths = problem.slices or (1,)
    share = [Fraction(length, sum(lengths)) for length in lengths]
    held = []
    for stage in problem.stages:
        of = [stage.activation_bytes, stage.recomputed_bytes, stage.activation_after_input_bytes]
        begun, again, after = (ceil(size * share[index]) for size in of)
        states = [ceil(stage.state_gradient_bytes * each) for each in share]
        held.append((begun, again, after, sum(states[:-1]) if index == len(lengths) - 1 else -states[index]))
    return held


def _place(rank: int, index: int) -> str:
    return f"ranks[{rank}].compute[{index}]"
