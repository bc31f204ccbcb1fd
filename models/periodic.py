"""The cyclic model: a wave of microbatches that repeats indefinitely, and its period as the objective.

Takes a problem in which every rank has one stage and all microbatches are alike, a grid, and how many microbatches a wave has.
Gives a CP-SAT model of all schedules in which microbatch m + K does everything one period after microbatch m. The period is a
variable: as each kind of op runs in microbatch order, every need spans a known number of periods, so all constraints are linear in
the starts and the period. Where BW takes less than B and W, each backward of the wave is fused or split. What is minimal here is
minimal among schedules that repeat every K microbatches, and where memory is short release in microbatch order, no more. Memory is
kept for as many microbatches as the problem has.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir import BLOCKS, Kind, Op, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortools.sat.python import cp_model

    from schedc.models.blocks import TimeGrid

STEPS = 512
"""The period is a multiple of 1 / 512 of its least value (in whole ticks), so that a search does not creep to it."""


@dataclass(slots=True)
class Cycle:
    """The model and the variables that are read back, in ticks."""

    model: cp_model.CpModel
    start: dict[Op, cp_model.IntVar]
    """Per op of the wave; its microbatch counts from 0 to K − 1."""
    steps: cp_model.IntVar
    """The period after which the wave repeats, in steps of `step` ticks."""
    step: int
    duration: dict[Op, int]
    """What B and W take where they are not fused."""
    fused: dict[Op, tuple[int, cp_model.IntVar]]
    """Per B that may be fused: what BW takes, and whether it is. Its W then takes no time, after all W before it."""

    def lengths(self, op: Op) -> list[tuple[int, list[cp_model.BoolVarT]]]:
        """What the op takes at least, and what it takes where the literals hold."""
        ticks, backward = self.duration[op], op._replace(kind=Kind.B)
        if op.kind is Kind.F or backward not in self.fused:
            return [(ticks, [])]
        together, fused = self.fused[backward]
        choices = [(0 if op.kind is Kind.W else together, fused), (ticks, ~fused)]
        least = min(length for length, _ in choices)
        return [(least, []), *((length, [literal]) for length, literal in choices if length > least)]

    def add_after(
        self,
        later: cp_model.LinearExprT,
        start: cp_model.LinearExprT,
        op: Op,
        gap: int = 0,
        only_if: Sequence[cp_model.BoolVarT] = (),
    ) -> None:
        """The moment `later` is at least `gap` ticks after the end of the op, which starts at `start`."""
        for length, literals in self.lengths(op):
            added = self.model.add(later >= start + (length + gap))
            if literals or only_if:
                added.only_enforce_if([*only_if, *literals])


def takes_less_fused(problem: Problem, stage: int) -> bool:
    """Whether a backward of the stage takes less fused than split, and may be either."""
    apart_ns = problem.duration_ns(Kind.B, stage, 0) + problem.duration_ns(Kind.W, stage, 0)
    return problem.split_backward and problem.duration_ns(Kind.BW, stage, 0) < apart_ns


def build_cycle(problem: Problem, grid: TimeGrid, wave: int, longest: int) -> Cycle:
    """The model of all waves of this many microbatches whose period is at most `longest` ticks, or a little more.

    Durations are rounded up to the grid's ticks, where they do not fit it, so that no order is chosen that needs less. On one rank,
    a wave's ops start within as many periods of its first forward as the activations that fit there need, and one more.
    """
    from ortools.sat.python import cp_model  # takes long

    model = cp_model.CpModel()
    kinds = (Kind.F, Kind.B, Kind.W) if problem.split_backward else (Kind.F, Kind.BW)
    path = problem.paths[0]
    duration = {
        Op(kind, stage, j): -(-problem.duration_ns(kind, stage, 0) // grid.tick_ns)
        for stage in path
        for kind in kinds
        for j in range(wave)
    }
    together = {
        stage: -(-problem.duration_ns(Kind.BW, stage, 0) // grid.tick_ns) for stage in path if takes_less_fused(problem, stage)
    }
    busiest = max(wave * _least_work(duration, kinds, stage, together.get(stage)) for stage in path)
    step = max(1, busiest // STEPS)
    steps = model.new_int_var(-(-busiest // step), max(-(-longest // step), -(-busiest // step)), "")
    spans = {stage: _span(problem, stage, wave) for stage in path}
    horizon = (max(spans.values()) + 1) * longest
    start = {op: model.new_int_var(0, horizon, "") for op in duration}
    fused = {Op(Kind.B, stage, j): (ticks, model.new_bool_var("")) for stage, ticks in together.items() for j in range(wave)}
    cycle = Cycle(model, start, steps, step, duration, fused)
    first = Op(Kind.F, path[0], 0)
    model.add(start[first] == 0)
    for stage in path:
        _add_rank(cycle, problem, stage, wave, spans[stage], horizon)
    for before, after in pairwise(path):
        _add_transfers(cycle, problem, grid, (before, after), wave, horizon)
    model.minimize(steps)
    return cycle


def _least_work(duration: dict[Op, int], kinds: Sequence[Kind], stage: int, together: int | None) -> int:
    """What a microbatch takes on the stage at least."""
    apart = sum(duration[Op(kind, stage, 0)] for kind in kinds)
    return apart if together is None else min(apart, duration[Op(Kind.F, stage, 0)] + together)


def held_at_most(problem: Problem, stage: int) -> tuple[int, int, int | None]:
    """What a microbatch holds at most, of it between B and W, and the limit, less what a recomputation adds to the first."""
    costs = problem.stages[stage]
    kept_bytes = costs.activation_after_input_bytes if problem.split_backward else 0
    held_bytes, limit_bytes = max(costs.activation_bytes, kept_bytes), problem.memory_limit_bytes[costs.rank]
    return held_bytes, kept_bytes, None if limit_bytes is None else limit_bytes - (costs.most_bytes - held_bytes)


def _span(problem: Problem, stage: int, wave: int) -> int:
    """In how many periods a wave's ops start on the stage's rank."""
    held_bytes, _, limit_bytes = held_at_most(problem, stage)
    slots = len(problem.paths[0]) if limit_bytes is None or held_bytes == 0 else limit_bytes // held_bytes
    return -(-min(slots, problem.microbatches) // wave) + 1


def _add_rank(cycle: Cycle, problem: Problem, stage: int, wave: int, span: int, horizon: int) -> None:
    """Order, needs and memory of one rank, and one op at a time: this wave's beside those of the next ones."""
    model, start, period = cycle.model, cycle.start, cycle.step * cycle.steps
    kinds = [kind for kind in BLOCKS if Op(kind, stage, 0) in start]
    backward, last = kinds[1], kinds[-1]
    held_bytes, kept_bytes, limit_bytes = held_at_most(problem, stage)

    def at(kind: Kind, microbatch: int) -> cp_model.LinearExpr:
        """The start of an op of the wave, of earlier ones (below 0) or later ones."""
        return start[Op(kind, stage, microbatch % wave)] + (microbatch // wave) * period

    def add_after(later: cp_model.LinearExprT, kind: Kind, microbatch: int, only_if: Sequence[cp_model.BoolVarT] = ()) -> None:
        """It is later than the end of an op of the wave, of earlier or later ones."""
        cycle.add_after(later, at(kind, microbatch), Op(kind, stage, microbatch % wave), only_if=only_if)

    intervals = []
    for kind in kinds:
        for j in range(wave):
            op = Op(kind, stage, j)
            add_after(at(kind, j + 1), kind, j)
            within = model.add(at(kind, j) <= at(Kind.F, 0) + span * period)
            if kind is Kind.W and op._replace(kind=Kind.B) in cycle.fused:
                within.only_enforce_if(~cycle.fused[op._replace(kind=Kind.B)][1])
            for copy in range(span + 1):
                begin = start[op]
                if copy:
                    begin = model.new_int_var(0, 2 * horizon, "")
                    model.add(begin == at(kind, j + copy * wave))
                intervals += _intervals(cycle, op, begin)
    model.add_no_overlap(intervals)
    for j in range(wave):
        add_after(at(backward, j), Kind.F, j)
        if last is not backward:
            add_after(at(last, j), backward, j)
    if limit_bytes is None:
        return
    pairs = held_pairs(held_bytes, kept_bytes, limit_bytes, problem.microbatches)
    for j in range(wave):
        chosen = [model.new_bool_var("") for _ in pairs]
        for literal, (inputs, weights) in zip(chosen, pairs, strict=True):
            for kind, back in ((backward, inputs), (last, weights)):
                if back < problem.microbatches:  # else there is no microbatch so far back
                    add_after(at(Kind.F, j), kind, j - back, [literal])
        model.add_bool_or(chosen)


def held_pairs(whole_bytes: int, kept_bytes: int, limit_bytes: int, most: int) -> list[tuple[int, int]]:
    """When a forward of the steady state may start: the largest pairs (b, w) so that it has room if at most these are held.

    As the ops of a kind run in microbatch order, b microbatches, the forward's own included, may be before the end of their B, and
    w of them before that of their W: b × (whole − kept) + w × kept within the limit, 1 ≤ b ≤ w. One of the pairs must be met, and
    `most` of either, the number of microbatches, means no need.
    """
    pairs: list[tuple[int, int]] = []
    for inputs in range(min(limit_bytes // whole_bytes, most) if whole_bytes else most, 0, -1):
        weights = min(most, (limit_bytes - inputs * (whole_bytes - kept_bytes)) // kept_bytes if kept_bytes else most)
        if not pairs or weights > pairs[-1][1]:
            pairs.append((inputs, weights))
        if weights == most:
            break
    return pairs


def _intervals(cycle: Cycle, op: Op, begin: cp_model.IntVar) -> list[cp_model.IntervalVar]:
    """When the op keeps its rank busy: one interval, or one for each way in which its backward is done."""
    backward, ticks = op._replace(kind=Kind.B), cycle.duration[op]
    if op.kind is Kind.F or backward not in cycle.fused:
        return [cycle.model.new_fixed_size_interval_var(begin, ticks, "")]
    together, fused = cycle.fused[backward]
    split = cycle.model.new_optional_fixed_size_interval_var(begin, ticks, ~fused, "")
    return [split] if op.kind is Kind.W else [split, cycle.model.new_optional_fixed_size_interval_var(begin, together, fused, "")]


def _add_transfers(cycle: Cycle, problem: Problem, grid: TimeGrid, hop: tuple[int, int], wave: int, horizon: int) -> None:
    """The messages of one hop, in both directions. A link serves them in microbatch order, so they need no further constraint."""
    model, start, period = cycle.model, cycle.start, cycle.step * cycle.steps
    before, after = hop
    backward = Kind.B if problem.split_backward else Kind.BW
    for kind, source, destination in ((Kind.F, before, after), (backward, after, before)):
        link = problem.link(problem.stages[source].rank, problem.stages[destination].rank)
        occupancy = -(-link.occupancy_ns(problem.message_bytes(Op(kind, source, 0))) // grid.tick_ns)
        latency = -(-link.latency_ns // grid.tick_ns)
        sends = []
        for j in range(wave):
            producer, consumer = Op(kind, source, j), Op(kind, destination, j)
            if occupancy == 0:
                cycle.add_after(start[consumer], start[producer], producer, latency)
                continue
            send = model.new_int_var(0, horizon, "")
            cycle.add_after(send, start[producer], producer)
            model.add(start[consumer] >= send + occupancy + latency)
            sends.append(send)
        for earlier, later in pairwise(sends):
            model.add(later >= earlier + occupancy)
        if sends:
            model.add(sends[0] + period >= sends[-1] + occupancy)
