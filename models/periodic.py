"""The cyclic model: a wave of microbatches that repeats indefinitely, and its period as the objective.

Takes a problem in which every rank has one stage and all microbatches are alike, a grid, and how many microbatches a wave has.
Gives a CP-SAT model of all schedules in which microbatch m + K does everything one period after microbatch m. The period is a
variable: as each kind of op runs in microbatch order, every need spans a known number of periods, so all constraints are linear in
the starts and the period. What is minimal here is minimal among schedules that repeat every K microbatches, no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ortools.sat.python import cp_model

from schedc.ir.ops import Kind, Op
from schedc.models.cpsat.memory import release_pairs

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.models.grid import TimeGrid

__all__ = ["Cycle", "build_cycle"]

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


def build_cycle(problem: Problem, grid: TimeGrid, wave: int, longest: int) -> Cycle:
    """The model of all waves of this many microbatches whose period is at most `longest` ticks, or a little more.

    Durations are rounded up to the grid's ticks, where they do not fit it, so that no order is chosen that needs less. On one rank,
    a wave's ops start within as many periods of its first forward as the activations that fit there need, and one more.
    """
    model = cp_model.CpModel()
    kinds = (Kind.F, Kind.B, Kind.W) if problem.split_backward else (Kind.F, Kind.BW)
    path = problem.paths[0]
    duration = {
        Op(kind, stage, j): -(-problem.duration_ns(kind, stage, 0) // grid.tick_ns)
        for stage in path
        for kind in kinds
        for j in range(wave)
    }
    busiest = max(wave * sum(duration[Op(kind, stage, 0)] for kind in kinds) for stage in path)
    step = max(1, busiest // STEPS)
    steps = model.new_int_var(-(-busiest // step), max(-(-longest // step), -(-busiest // step)), "")
    spans = {stage: _span(problem, stage, wave) for stage in path}
    horizon = (max(spans.values()) + 1) * longest
    start = {op: model.new_int_var(0, horizon, "") for op in duration}
    cycle = Cycle(model, start, steps, step, duration)
    first = Op(Kind.F, path[0], 0)
    model.add(start[first] == 0)
    for stage in path:
        _add_rank(cycle, problem, stage, wave, spans[stage], horizon)
    for before, after in pairwise(path):
        _add_transfers(cycle, problem, grid, (before, after), wave, horizon)
    model.minimize(steps)
    return cycle


def _span(problem: Problem, stage: int, wave: int) -> int:
    """In how many periods a wave's ops start on the stage's rank."""
    costs, limit_bytes = problem.stages[stage], problem.memory_limit_bytes[problem.stages[stage].rank]
    slots = len(problem.paths[0]) if limit_bytes is None or costs.activation_bytes == 0 else limit_bytes // costs.activation_bytes
    return -(-min(slots, problem.microbatches) // wave) + 1


def _add_rank(cycle: Cycle, problem: Problem, stage: int, wave: int, span: int, horizon: int) -> None:
    """Order, needs and memory of one rank, and one op at a time: this wave's beside those of the next ones."""
    model, start, period = cycle.model, cycle.start, cycle.step * cycle.steps
    kinds = [kind for kind in Kind if Op(kind, stage, 0) in start]
    backward, last = kinds[1], kinds[-1]
    limit_bytes = problem.memory_limit_bytes[problem.stages[stage].rank]

    def at(kind: Kind, microbatch: int) -> cp_model.LinearExpr:
        """The start of an op of the wave, of earlier ones (below 0) or later ones."""
        return start[Op(kind, stage, microbatch % wave)] + (microbatch // wave) * period

    def end(kind: Kind, microbatch: int) -> cp_model.LinearExpr:
        return at(kind, microbatch) + cycle.duration[Op(kind, stage, 0)]

    intervals = []
    for kind in kinds:
        length = cycle.duration[Op(kind, stage, 0)]
        for j in range(wave):
            model.add(at(kind, j + 1) >= end(kind, j))
            model.add(at(kind, j) <= at(Kind.F, 0) + span * period)
            for copy in range(span + 1):
                begin = start[Op(kind, stage, j)]
                if copy:
                    begin = model.new_int_var(0, 2 * horizon, "")
                    model.add(begin == at(kind, j + copy * wave))
                intervals.append(model.new_fixed_size_interval_var(begin, length, ""))
    model.add_no_overlap(intervals)
    for j in range(wave):
        model.add(at(backward, j) >= end(Kind.F, j))
        if last is not backward:
            model.add(at(last, j) >= end(backward, j))
    if limit_bytes is None:
        return
    costs = problem.stages[stage]
    kept_bytes = costs.activation_after_input_bytes if problem.split_backward else 0
    if costs.activation_bytes == 0:
        return
    # Far enough into the steady state, the releases that a forward waits for lie as far back as they ever do.
    far = 2 * limit_bytes // min(value for value in (kept_bytes, costs.activation_bytes - kept_bytes) if value) + 2
    pairs = release_pairs(far, costs.activation_bytes, kept_bytes, limit_bytes)
    for j in range(wave):
        chosen = [model.new_bool_var("") for _ in pairs]
        for literal, (inputs, weights) in zip(chosen, pairs, strict=True):
            for kind, released in ((backward, inputs), (last, weights)):
                if released:
                    model.add(at(Kind.F, j) >= end(kind, j - far + released - 1)).only_enforce_if(literal)
        model.add_bool_or(chosen)


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
            ready = start[producer] + cycle.duration[producer]
            if occupancy == 0:
                model.add(start[consumer] >= ready + latency)
                continue
            send = model.new_int_var(0, horizon, "")
            model.add(send >= ready)
            model.add(start[consumer] >= send + occupancy + latency)
            sends.append(send)
        for earlier, later in pairwise(sends):
            model.add(later >= earlier + occupancy)
        if sends:
            model.add(sends[0] + period >= sends[-1] + occupancy)
