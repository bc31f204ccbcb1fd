"""The optimum of problems of up to some 60 ops by a CP-SAT model of its own: the truth that bounds and solvers are held against.

It is written from the text of the cost model and shares no file with `models`, `solvers` and `schedc.analysis`. Nothing is rounded:
times are nanoseconds, memory is a sum of bytes at every op that takes some (no product of bytes and time, so that nothing
overflows), links serve in the order in which messages become ready. Microbatches are ordered only by when they enter the pipeline,
and only those that take the same time everywhere on the same path: renaming one as a whole changes nothing.

Three questions:

- `optimum(problem)`: of all schedules of whole blocks, each timed as the simulator does: whatever starts does so as soon as it can,
  for the stage span, too, where starting late would pay. For the makespan without trunks, waiting is left open: with all orders
  given, starts are the least solution of inequalities. There, a BW that takes no less than B and W is left out: these, one after
  the other, do all that it does, no later.
- `optimum(problem, cut=WEIGHTS)`: of schedules that cut W alone, into parts of one nanosecond, for the makespan. Where links share
  a trunk an op may wait so that another's message goes first.
- `optimum(problem, cut=ALL)`: of whatever a bound speaks of: blocks in parts of one nanosecond, ranks that idle on purpose, links
  that serve in any order. None is above those before it. For problems whose blocks take few nanoseconds in all.

Blocks take at least 1 ns, so that two ops of a rank never end together (`ValueError` otherwise).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ortools.sat.python import cp_model

from oracles.unit_clock import HALF_WORD, Clock, Task
from schedc.ir.ops import BLOCKS, Kind, Op
from schedc.ir.problem import Objective
from schedc.ir.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.network import Link
    from schedc.ir.problem import Problem

WEIGHTS, ALL = frozenset((Kind.W,)), frozenset(BLOCKS)
"""What may be cut."""
MOST_UNITS = 400
"""Blocks of more nanoseconds in all are not cut."""


class Unsettled(Exception):
    """The limit of work ended the search before the optimum was known."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is known of the least objective."""

    least_ns: int | None
    """No schedule has less; None: there is no schedule (below the limit that was asked for)."""
    found_ns: int | None
    """One has this; None: none was found."""
    schedule: Schedule | None
    """The one that has it, where blocks are whole."""

    @property
    def is_settled(self) -> bool:
        """Whether the optimum is known, or that there is none."""
        return self.least_ns == self.found_ns


def optimum(
    problem: Problem, objective: Objective | None = None, *, cut: frozenset[Kind] = frozenset(), work: float = 20
) -> int | None:
    """The least objective of any schedule, in nanoseconds; None if there is no schedule. See `search`.

    Raises:
        Unsettled: the work did not suffice.
    """
    answer = search(problem, objective, cut=cut, work=work)
    if not answer.is_settled:
        raise Unsettled(f"between {answer.least_ns} and {answer.found_ns} ns after {work} units of work")
    return answer.found_ns


def search(
    problem: Problem,
    objective: Objective | None = None,
    *,
    cut: frozenset[Kind] = frozenset(),
    below_ns: int | None = None,
    work: float = 20,
    workers: int = 1,
) -> Answer:
    """What a limited search finds: the same on every machine, as it counts work and no seconds.

    Args:
        problem: what `schedc.verify.problem` accepts, with blocks of at least 1 ns.
        objective: None: the problem's.
        cut: see above.
        below_ns: only schedules with a smaller objective count, and the first of them is the answer: `search(..., below_ns=bound)`
            refutes a bound or agrees with it.
        work: CP-SAT's deterministic time, about seconds.
        workers: of CP-SAT, which take turns.
    """
    asked = _Model(problem, objective or problem.objective, cut, below_ns)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.interleave_search = workers, workers > 1
    solver.parameters.max_deterministic_time = work
    solver.parameters.stop_after_first_solution = below_ns is not None
    if asked.clock.horizon >= HALF_WORD:
        solver.parameters.presolve_inclusion_work_limit = 0
    status = solver.solve(asked.model)
    if status == cp_model.MODEL_INVALID:
        raise ValueError(asked.model.validate())
    if status == cp_model.INFEASIBLE:
        return Answer(least_ns=None, found_ns=None, schedule=None)
    least_ns = int(solver.best_objective_bound)
    if status == cp_model.UNKNOWN:
        return Answer(least_ns=least_ns, found_ns=None, schedule=None)
    schedule = None if cut else asked.schedule(solver)
    return Answer(least_ns=least_ns, found_ns=int(solver.objective_value), schedule=schedule)


class _Model:
    def __init__(self, problem: Problem, objective: Objective, cut: frozenset[Kind], below_ns: int | None) -> None:
        self.problem, self.is_span = problem, objective is Objective.STAGE_SPAN
        kinds = (Kind.F, Kind.B, Kind.W, Kind.BW) if problem.split_backward else (Kind.F, Kind.BW)
        self.length = {Op(k, s, m): problem.duration_ns(k, s, m) for s, m in problem.blocks() for k in kinds}
        if cut == WEIGHTS and self.is_span:
            raise ValueError("schedules that cut W alone are sought for the makespan")
        if min(self.length.values(), default=1) < 1 or sum(self.length[op] for op in self.length if op.kind in cut) > MOST_UNITS:
            raise ValueError(f"blocks must take at least 1 ns, and at most {MOST_UNITS} ns in all to be cut")
        self.links = {(link.source, link.destination): link for link in problem.links}
        horizon = self._horizon(below_ns)
        trunks = {link.trunk for link in problem.links if link.trunk is not None}
        self.clock = Clock(horizon, cut, may_wait=bool(cut) or not (self.is_span or trunks))
        self.model = self.clock.model
        self.queues: dict[object, list[Task]] = {}
        self.task: dict[Op, Task] = {}
        self.on_rank: list[list[Task]] = [[] for _ in range(problem.ranks)]
        self._add_ops()
        self._add_needs()
        self._add_entry_order()
        ends = self._add_collectives()
        for queue in self.queues.values():
            self.clock.add_queue(queue)
        self._add_memory()
        self.clock.add_causes()
        self.objective = self.model.new_int_var(0, horizon if below_ns is None else below_ns - 1, "")
        self._add_objective(ends)
        self.model.minimize(self.objective)

    def _horizon(self, below_ns: int | None) -> int:
        """By then all is done, in some schedule with the least objective, or in all that are sought.

        For the stage span: up to its last B a microbatch lies in the span of the rank where its path begins, and what else a rank
        does in its own. So spans hang together, from the end of the all-gathers on: of the ranks where paths begin, of a rank
        between any two of these, and of the last. Reduce-scatters follow.
        """
        if below_ns is None:
            return self._total()
        if not self.is_span:
            return min(self._total(), below_ns - 1)
        parallel = self.problem.data_parallel
        return min(
            self._total(),
            self._gathers() + 2 * len(self._entries()) * below_ns + sum(parallel.reduce_scatter_ns if parallel else ()),
        )

    def _entries(self) -> set[int]:
        """The ranks where paths begin."""
        return {self.problem.stages[self.problem.path(microbatch)[0]].rank for microbatch in range(self.problem.microbatches)}

    def _gathers(self) -> int:
        parallel = self.problem.data_parallel
        return sum(parallel.all_gather_ns) if parallel else 0

    def _total(self) -> int:
        """By then all is done, whatever the orders: nothing waits unless something else is under way."""
        total = sum(self.length.values())
        for microbatch in range(self.problem.microbatches):
            for a, b in pairwise(self.problem.path(microbatch)):
                for link, size in (self._message(a, b, True), self._message(a, b, False)):
                    total += 0 if link is None else link.occupancy_ns(size) + link.latency_ns
        parallel = self.problem.data_parallel
        return total + (sum(parallel.all_gather_ns) + sum(parallel.reduce_scatter_ns) if parallel else 0)

    def _message(self, stage: int, after: int, forward: bool) -> tuple[Link | None, int]:
        """What carries the message between two neighbours on a path, None on one rank, and its size."""
        stages = self.problem.stages
        a, b = stages[stage].rank, stages[after].rank
        size = stages[stage].message_bytes if forward else stages[stage].gradient_message_bytes
        return None if a == b else self.links[(a, b) if forward else (b, a)], size

    def _add_ops(self) -> None:
        """Each backward is B and W, or BW; what does not happen is at 0."""
        busy: list[list[cp_model.IntervalVar]] = [[] for _ in range(self.problem.ranks)]
        for (stage, microbatch), rank in {block: self.problem.stages[block[0]].rank for block in self.problem.blocks()}.items():
            fused = self.model.new_bool_var("")
            present = {Kind.F: None, Kind.B: ~fused, Kind.W: ~fused, Kind.BW: fused if self.problem.split_backward else None}
            apart = [self.length[op] for op in (Op(Kind.B, stage, microbatch), Op(Kind.W, stage, microbatch)) if op in self.length]
            is_dearer = bool(apart) and self.length[Op(Kind.BW, stage, microbatch)] >= sum(apart)
            if is_dearer and self.clock.may_wait and not self.clock.units:
                self.model.add(fused == 0)
            for op in (op for op in self.length if op[1:3] == (stage, microbatch)):
                self.task[op], when = self.clock.op(op, rank, self.length[op], present[op.kind])
                self.clock.add_wait(self.task[op], 0)
                busy[rank] += when
                self.on_rank[rank].append(self.task[op])
                if (literal := present[op.kind]) is not None:
                    self.model.add(self.task[op].start == 0).only_enforce_if(~literal)
        for tasks, intervals in zip(self.on_rank, busy, strict=True):
            self.clock.add_rank(tasks, intervals)

    def _add_needs(self) -> None:
        for microbatch in range(self.problem.microbatches):
            path = self.problem.path(microbatch)
            forward = {stage: [self.task[Op(Kind.F, stage, microbatch)]] for stage in path}
            backward = {stage: [self.task[op] for op in self._backwards(stage, microbatch)] for stage in path}
            for stage in path:
                self._send(forward[stage], backward[stage], (None, 0))
                if self.problem.split_backward:
                    self._send(backward[stage][:1], [self.task[Op(Kind.W, stage, microbatch)]], (None, 0))
            for a, b in pairwise(path):
                self._send(forward[a], forward[b], self._message(a, b, True))
                self._send(backward[b], backward[a], self._message(a, b, False))

    def _backwards(self, stage: int, microbatch: int) -> list[Op]:
        """What may send the gradient."""
        return [op for op in (Op(Kind.B, stage, microbatch), Op(Kind.BW, stage, microbatch)) if op in self.length]

    def _send(self, producers: Sequence[Task], consumers: Sequence[Task], message: tuple[Link | None, int]) -> None:
        """Each consumer waits for the producer that happens, and for its message."""
        link, size = message
        for producer in producers:
            arrival = producer.end
            if link is not None:
                sent = self.clock.task(link.occupancy_ns(size), producer.rank, producer.end, producer.op, producer.present)
                self.queues.setdefault(link.trunk or (link.source, link.destination), []).append(sent)
                arrival = sent.end + link.latency_ns
            for consumer in consumers:
                self.clock.add_wait(consumer, arrival, producer.present)

    def _add_entry_order(self) -> None:
        """Microbatches that cost the same everywhere enter in the order of their numbers, or all of a path where they must."""
        last: dict[object, Task] = {}
        for microbatch in range(self.problem.microbatches):
            path = self.problem.path(microbatch)
            costs = tuple(self.problem.duration_ns(kind, stage, microbatch) for stage in path for kind in BLOCKS)
            group = path if self.problem.in_order else (path, costs)
            forward = self.task[Op(Kind.F, path[0], microbatch)]
            if group in last:
                self.model.add(forward.start >= last[group].start + 1)
            last[group] = forward

    def _add_collectives(self) -> list[cp_model.LinearExprT]:
        """All-gathers before everything, reduce-scatters as they become ready; when these end, where that counts."""
        parallel = self.problem.data_parallel
        if parallel is None:
            return []
        gathers: dict[object, list[tuple[Task, cp_model.LinearExprT]]] = {}
        ends: list[cp_model.LinearExprT] = []
        for stage in sorted({stage for stage, _ in self.problem.blocks()}, key=lambda stage: self.problem.stages[stage].rank):
            rank = self.problem.stages[stage].rank
            resource: object = parallel.trunk or ("collectives", rank)
            mine = [task for op, task in self.task.items() if op.stage == stage]
            forwards = [task for op, task in self.task.items() if op.stage == stage and op.kind is Kind.F]
            if parallel.all_gather_ns:
                first, gather = self.clock.moment(), self.clock.task(parallel.all_gather_ns[stage], rank, 0)
                self.model.add_min_equality(first, [task.start for task in forwards])
                gathers.setdefault(resource, []).append((gather, first))
                for forward in forwards:
                    self.clock.add_wait(forward, gather.end)
            ready = self.clock.moment()
            self.model.add_max_equality(ready, [task.end for task in mine])
            scatter = self.clock.task(parallel.reduce_scatter_ns[stage], rank, ready)
            self.queues.setdefault(resource, []).append(scatter)
            ends.append(scatter.end)
        for resource, of_resource in gathers.items():
            self.clock.add_gathers(of_resource)
            for gather, _ in of_resource:
                for task in self.queues.get(resource, ()):
                    self.clock.add_wait(task, gather.end)
        return ends

    def _add_memory(self) -> None:
        """What each F finds on its rank when it starts, and each backward that recomputes, fits with what it takes itself."""
        for rank, limit_bytes in enumerate(self.problem.memory_limit_bytes):
            blocks = [(s, m) for s, m in self.problem.blocks() if self.problem.stages[s].rank == rank]
            if limit_bytes is None:
                continue
            takers = [Op(Kind.F, *block) for block in blocks]
            takers += [op for s, m in blocks if self.problem.stages[s].recomputed_bytes for op in self._backwards(s, m)]
            for taker in takers:
                own = self.problem.stages[taker.stage]
                most = limit_bytes - own.activation_bytes - (0 if taker.kind is Kind.F else own.recomputed_bytes)
                held: list[tuple[int, cp_model.BoolVarT]] = []
                for stage, microbatch in (block for block in blocks if block != taker[1:3]):
                    costs, other = self.problem.stages[stage], Op(Kind.F, stage, microbatch)
                    kept = costs.activation_after_input_bytes if self.problem.split_backward else 0
                    again = costs.recomputed_bytes
                    held.append((costs.activation_bytes, self._has_started(other, taker)))
                    held += [(again, self._has_started(op, taker)) for op in self._backwards(stage, microbatch) if again]
                    held.append((kept - costs.activation_bytes - again, self._has_released(Kind.B, other, taker)))
                    held.append((-kept, self._has_released(Kind.W, other, taker)))
                present = self.task[taker].present
                if present is not None:
                    held.append((-own.most_bytes - sum(max(0, size) for size, _ in held), ~present))
                self.clock.add_at_most(held, most)

    def _has_started(self, other: Op, forward: Op) -> cp_model.BoolVarT:
        if (other, forward) in self.clock.first:
            return self.clock.first[other, forward]
        started = self.model.new_bool_var("")
        present = self.task[other].present
        literals = [~started] if present is None else [~started, present]
        self.model.add(self.task[other].start >= self.task[forward].start + 1).only_enforce_if(literals)
        return started

    def _has_released(self, kind: Kind, other: Op, forward: Op) -> cp_model.BoolVarT:
        """True only where B or W of the other's block, or the BW in their place, has ended."""
        released = self.model.new_bool_var("")
        for op in (other._replace(kind=kind), other._replace(kind=Kind.BW)):
            if (task := self.task.get(op)) is not None:
                literals = [released] if task.present is None else [released, task.present]
                self.model.add(self.task[forward].start >= task.end).only_enforce_if(literals)
                if (op, forward) in self.clock.first:
                    self.model.add_bool_or([*(~literal for literal in literals), self.clock.first[op, forward]])
        return released

    def _add_objective(self, ends: Sequence[cp_model.LinearExprT]) -> None:
        if not self.is_span:
            for end in ends:
                self.model.add(self.objective >= end)
            for task in self.task.values():
                self.model.add(self.objective >= task.end).only_enforce_if([] if task.present is None else [task.present])
        for rank, tasks in enumerate(self.on_rank if self.is_span else ()):
            begin = self.clock.moment()
            if self._entries() == {rank}:  # all else follows its first op, and all can be moved to begin after the all-gathers
                self.model.add(begin <= self._gathers())
            forwards = [task.start for task in tasks if task.op and task.op.kind is Kind.F]
            self.model.add_min_equality(begin, forwards or [0])
            for task in tasks:
                after = self.model.add(self.objective + begin >= task.end)
                if task.present is not None:
                    after.only_enforce_if(task.present)

    def schedule(self, solver: cp_model.CpSolver) -> Schedule:
        """The orders of the solution."""
        orders: list[tuple[Op, ...]] = []
        for tasks in self.on_rank:
            there = [task for task in tasks if task.present is None or solver.boolean_value(task.present)]
            orders.append(tuple(task.op for task in sorted(there, key=lambda task: solver.value(task.start)) if task.op))
        return Schedule(orders=tuple(orders))
