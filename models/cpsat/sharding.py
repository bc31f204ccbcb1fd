"""Sharded weights in CP-SAT: when each stage's weights are there, and until when its gradients are not reduced.

Sets: per stage up to `MOST_STAYS` stays of its weights, in the order of time. Variables: whether there is a stay, when its gather
begins and when it ends; per op, in which of its stage's stays it runs; when the stage's reduction begins. A stay occupies memory
from the begin of its gather on, gradients from the first W or BW to the end of the reduction. A plan issues gathers between two
ops and counts what they hold by op, so the model is a relaxation of it. Where a stage has more ops than stays, its last stay costs
neither time nor memory. So bounds hold, and a schedule's collectives are placed anew.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.ir import DataParallel, Kind, Op, Problem, Resource, Schedule
from schedc.models.cpsat.variables import Stays

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.models.blocks import TimeGrid
    from schedc.models.cpsat.variables import CpSatVariables

MOST_STAYS = 8
"""Of one stage; where an optimum gathers more often, the model does not know it, and its bound may be lower."""


def add_sharding(variables: CpSatVariables, problem: Problem, end: int, shared: dict[Resource, list[cp_model.IntervalVar]]) -> None:
    """Weights are there while an op of their stage runs; the reduction follows all its W and belongs to the makespan."""
    parallel = problem.data_parallel
    assert parallel is not None
    ops: dict[int, list[Op]] = defaultdict(list)
    for op in variables.blocks.duration:
        ops[op.stage].append(op)
    for stage, of_stage in sorted(ops.items()):
        rank = problem.stages[stage].rank
        lane, is_limited = shared[Resource.of_collectives(parallel, rank)], problem.memory_limit_bytes[rank] is not None
        variables.stays[stage] = _Stage(variables, parallel, rank, stage, of_stage, end, lane).add(is_limited=is_limited)


def hint_stays(variables: CpSatVariables, schedule: Schedule, timeline: Timeline, grid: TimeGrid) -> None:
    """Hint the stays with the collectives of a schedule; what is more than the model has is in its last stay."""
    model = variables.model
    spans = {(span.rank, span.collective): grid.ticks(span.start_ns) for span in timeline.collectives}
    for rank, (order, collectives) in enumerate(zip(schedule.orders, schedule.collectives, strict=True)):
        starts, ends = ([grid.ticks(at_ns) for at_ns in of_rank] for of_rank in (timeline.start_ns(rank), timeline.end_ns(rank)))
        for stage in {op.stage for op in order}:
            hints = variables.stays[stage]
            gathers = [each for each in collectives if (each.kind, each.stage) == ("AG", stage)]
            (reduction,) = (each for each in collectives if (each.kind, each.stage) == ("RS", stage))
            model.add_hint(hints.reduction, spans[rank, reduction])
            weights = [at for at, op in enumerate(order) if op.stage == stage and op.kind in (Kind.W, Kind.BW)]
            model.add_hint(hints.first, starts[weights[0]])
            runs_in = {
                order[at]: min(number, len(hints.there) - 1)
                for number, each in enumerate(gathers)
                for at in range(each.before, each.until)
                if order[at].stage == stage
            }
            for op, literals in hints.of_op.items():
                own = op if op in runs_in else op._replace(kind=Kind.BW)
                for number, literal in enumerate(literals):
                    model.add_hint(literal, runs_in.get(own, -1) == number)
            begins = [spans[rank, each] for each in gathers]
            untils = [ends[each.until - 1] for each in gathers]
            last = len(hints.there) - 1
            for number, there in enumerate(hints.there):
                model.add_hint(there, number < len(gathers))
                model.add_hint(hints.begin[number], begins[number] if number < len(gathers) else 0)
                model.add_hint(hints.until[number], untils[-1 if number == last else number] if number < len(gathers) else 0)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage and what its variables and constraints are added to."""

    variables: CpSatVariables
    parallel: DataParallel
    rank: int
    stage: int
    ops: list[Op]
    end: int
    lane: list[cp_model.IntervalVar]
    """Of the rank's collectives."""

    def add(self, *, is_limited: bool) -> Stays:
        """The reduction, and as many stays as a rank needs whose memory is limited or not."""
        first, reduction = self._add_reduction()
        variables, ops, stage = self.variables, self.ops, self.stage
        model, length = variables.model, variables.blocks.gather.get(stage, 0)
        count = min(len(ops), MOST_STAYS) if is_limited else 1
        stays: list[tuple[cp_model.IntVar, cp_model.IntVar, cp_model.IntVar]] = []
        for number in range(count):
            there, begin, until = model.new_bool_var(""), self._moment(), self._moment()
            model.add(until >= begin + length).only_enforce_if(there)
            if stays:
                model.add_implication(there, stays[-1][0])
                model.add(begin >= stays[-1][2]).only_enforce_if(there)
            stays.append((there, begin, until))
            if count < len(ops) and number == count - 1 and count > 1:
                continue  # it stands for all others
            if length:
                self.lane.append(model.new_optional_fixed_size_interval_var(begin, length, there, ""))
            held = model.new_optional_interval_var(begin, self._moment(), until, there, "")
            variables.besides[self.rank].append((held, self.parallel.gathered_bytes[stage]))
        of_op: dict[Op, list[cp_model.IntVar]] = {}
        for op in ops:
            of_op[op] = runs_in = [model.new_bool_var("") for _ in stays]
            for literal, (there, begin, until) in zip(runs_in, stays, strict=True):
                model.add_implication(literal, there)
                model.add(variables.start[op] >= begin + length).only_enforce_if(literal)
                variables.add_after(until, op, only_if=[literal])
            backward = variables.blocks.backward_of(op)
            vanishes = [variables.fused[backward]] if op.kind is Kind.W and backward in variables.fused else []
            model.add_bool_or([*runs_in, *vanishes])
        theres, begins, untils = (list(column) for column in zip(*stays, strict=True))
        return Stays(begin=begins, until=untils, there=theres, of_op=of_op, first=first, reduction=reduction)

    def _add_reduction(self) -> tuple[cp_model.IntVar, cp_model.IntVar]:
        """When gradients are held from, and when the reduction begins."""
        variables, model = self.variables, self.variables.model
        length, begin, first = variables.blocks.scatter.get(self.stage, 0), self._moment(), self._moment()
        if length:
            self.lane.append(model.new_fixed_size_interval_var(begin, length, ""))
        model.add(variables.objective >= begin + length)
        for op in self.ops:
            if op.kind in (Kind.W, Kind.BW):
                variables.add_after(begin, op)
                backward = variables.blocks.backward_of(op)
                split = [~variables.fused[backward]] if backward in variables.fused else []
                model.add(first <= variables.start[op]).only_enforce_if(split)
            elif op in variables.fused:
                variables.add_after(begin, op)
                model.add(first <= variables.start[op]).only_enforce_if(variables.fused[op])
        held = model.new_interval_var(first, self._moment(), begin + length, "")
        variables.besides[self.rank].append((held, self.parallel.gradient_bytes[self.stage]))
        return first, begin

    def _moment(self) -> cp_model.IntVar:
        return self.variables.model.new_int_var(0, self.end, "")
