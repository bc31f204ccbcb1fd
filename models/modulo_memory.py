"""What ranks hold in a modulo schedule: activations and stashed versions, by rounds alone.

A `ModuloModel` goes in, and its limits become constraints. Of a thing that is held from the start of one op to the end of
another of its rank there are, when a third op starts, as many as the rounds of the two differ in which the third runs. What is held
is the most when F starts, when a backward starts that recomputes, and under stash when U makes a version; so it is compared with
the limit then.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from schedc.ir import Kind, Op, Versions
from schedc.models.blocks import unit_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortools.sat.python import cp_model

    from schedc.models.modulo_variables import ModuloModel

MOST_SUM = 1 << 60
"""CP-SAT adds in 64 bits, and refuses a model whose sums may be larger."""
MOST_HELD = 1 << 10
"""Of each thing a rank holds at most that many at once."""
MOST_UNITS = 1 << 30
"""What is held is counted in units, so that a rank holds at most this many."""


def add_memory(built: ModuloModel) -> None:
    """On each rank, what is held never exceeds the limit."""
    problem = built.problem
    updates = problem.updates
    assert updates is not None
    for rank, limit_bytes in enumerate(problem.memory_limit_bytes):
        if limit_bytes is None or rank not in built.ranks:
            continue
        stages = [stage for stage in problem.stages_on(rank) if any(stage in path for path in problem.paths)]
        if updates.versions is Versions.TWO_BUFFERED:
            limit_bytes -= sum(problem.stages[stage].version_bytes for stage in stages)
        if limit_bytes < 0:
            built.model.add_bool_or([])
            continue
        held = _activations(built, stages)
        stashed = [stage for stage in stages if updates.versions is Versions.STASH and problem.stages[stage].version_bytes]
        sizes = [*held.values(), *(problem.stages[stage].version_bytes for stage in stashed)]
        if not sizes:
            continue
        most_bytes = min(limit_bytes, MOST_HELD * sum(sizes))
        unit = unit_bytes(sizes, most_bytes, MOST_UNITS)
        for op in built.ops[rank]:
            recomputes = op.kind is built.backward and problem.stages[op.stage].recomputed_bytes > 0
            if op.kind is Kind.F or recomputes or (op.kind is Kind.U and op.stage in stashed):
                _add_limit(built, op, held, stashed, unit, most_bytes // unit)
        _add_average(built, held, most_bytes)


def _activations(built: ModuloModel, stages: Sequence[int]) -> Mapping[tuple[Op, Op], int]:
    """Bytes from the start of an op to the end of another: of F until B ends, or W does; and of a recomputation from B on."""
    found: dict[tuple[Op, Op], int] = defaultdict(int)
    for stage, microbatch in built.problem.blocks():
        if stage not in stages:
            continue
        costs = built.problem.stages[stage]
        kept = costs.activation_after_input_bytes if built.problem.split_backward else 0
        again = costs.recomputed_bytes
        old = max(0, kept - again)  # of what W needs, what F took
        forward, backward, ended = (Op(kind, stage, microbatch) for kind in (Kind.F, built.backward, built.last))
        found[forward, backward] += costs.activation_bytes - old
        found[forward, ended] += old
        found[backward, backward] += again - kept + old
        found[backward, ended] += kept - old
    return {both: held_bytes for both, held_bytes in found.items() if held_bytes}


def _add_limit(
    built: ModuloModel, now: Op, held: Mapping[tuple[Op, Op], int], stashed: Sequence[int], unit: int, most_units: int
) -> None:
    """What is held when an op starts, itself included.

    Of versions: an F reads that of the last U before it. Those that microbatches under way read follow each other up to the newest,
    or the one before; so beside the newest there are as many as the oldest is older.
    """
    problem, none = built.problem, built.model.new_constant(0)

    def rounds(op: Op, itself: int) -> cp_model.LinearExpr:
        """How many of this op have begun by then, counted from that of step 0."""
        return none + itself if op == now else built.round(op, now)

    total: cp_model.LinearExpr = none + 0
    for (begin, end), held_bytes in held.items():
        total += (held_bytes // unit) * (rounds(begin, 0) - rounds(end, -1))
    for stage in stashed:
        update = Op(Kind.U, stage, 0)
        older = built.model.new_int_var(0, MOST_HELD, "")
        ages: list[cp_model.LinearExpr] = []
        for at, microbatch in problem.blocks():
            if at == stage:
                forward, ended = Op(Kind.F, stage, microbatch), Op(built.last, stage, microbatch)
                # The oldest that is under way is the first that has not ended.
                read = built.round(update, forward) + rounds(ended, -1) + 1
                ages.append(rounds(update, 0) - read)
        if built.is_mixed and not built.is_strict:  # as many as they are read the newest versions
            built.model.add(len(ages) * older >= sum(ages))
        else:
            for age in ages:
                built.model.add(older >= age)
        total += (problem.stages[stage].version_bytes // unit) * older
    built.model.add(total <= most_units)


def _add_average(built: ModuloModel, held: Mapping[tuple[Op, Op], int], limit_bytes: int) -> None:
    """Bytes times time of activations, over a period, are at most the limit times the period: follows, and prunes."""
    period_ns = built.period_ns
    most = MOST_SUM // (8 * MOST_HELD * period_ns)
    if most < 1 << 8 or not held:
        return
    unit = unit_bytes(list(held.values()), limit_bytes, most)
    lives: list[cp_model.LinearExpr] = []
    for (begin, end), held_bytes in held.items():
        lives.append((held_bytes // unit) * (built.time[end] - built.time[begin] + built.least_ns(end)))
    built.model.add(sum(lives) <= limit_bytes // unit * period_ns)
