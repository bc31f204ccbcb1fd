"""A bound on the period by how soon a microbatch can follow the one before it: a model of the two alone, where memory is short.

Two microbatches that follow each other past a forward: all that the first does behind it, and all that the second does before it.
The model's objective is the time from one to the other. Such a model has few ops, however many a step has, and is soon solved.

Proof: microbatches that are alike pass each op in their order (`schedc.models.modulo`), so the times from each to the next, past a
forward, add up to T over a period. None is less than the least of two alone: fewer ops share ranks and links, fewer bytes are held,
and updates and versions do not count. So T is at least that, times the microbatches of a step. What the first does before the
forward is moved as far ahead as one likes, and what the second does behind it as far behind. For all forwards of the first come
before the backwards of the second, which alone could make room for them; so what fitted still does, unless backwards take memory,
too. The two take no longer than one behind the other, a *span* each. So in some timetable of the same orders the first ends within
two spans behind its forward, and the second begins within two before its own. The model's period is so long that these two never
meet the next two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.gap import check_bound
from schedc.ir import Kind, Op, groups_of
from schedc.models.modulo import build_modulo, pairs_of
from schedc.models.modulo_orders import needs_of
from schedc.solvers.common.base import SolverStatus
from schedc.solvers.exact.cpsat import digest_of, run
from schedc.solvers.exact.modulo_questions import S_PER_PAIR, one_worker
from schedc.solvers.heuristics.steady_repeat import shorter_step

if TYPE_CHECKING:
    from schedc.ir import Problem
    from schedc.models.modulo_variables import ModuloModel
    from schedc.solvers.exact.modulo_questions import Known

WINDOW_SHARE = 0.02
"""Of what is left of a limit, two microbatches get at most this much for each forward."""


def ask_of_windows(known: Known) -> None:
    """Raise the bound by two microbatches, past each forward of a rank with a limit, the last along the path first."""
    problem = known.problem
    if not has_windows(problem):
        return
    for stage in reversed(problem.paths[problem.path_of[0]]):
        if known.is_proven or known.is_over:
            return
        if problem.memory_limit_bytes[problem.stages[stage].rank] is not None:
            _ask(known, stage)


def has_windows(problem: Problem) -> bool:
    """Whether two microbatches alone say something: a rank has a limit, all are alike, and no backward takes memory."""
    short = any(limit is not None for limit in problem.memory_limit_bytes)
    alike = problem.microbatches > 1 and len(set(groups_of(problem))) == 1
    return short and alike and not any(stage.recomputed_bytes for stage in problem.stages)


def build_window(problem: Problem, stage: int) -> ModuloModel:
    """The model of two microbatches whose objective is the time between their forwards on a stage of their path."""
    two = shorter_step(problem, 2)
    offset_ns, span_ns = _chain(two)
    built = build_modulo(two, 10 * span_ns)
    begin, end = (built.time[Op(Kind.F, stage, each)] for each in range(2))
    for op, time in built.time.items():
        behind_ns = 0 if op.kind is Kind.U else offset_ns[op.kind, op.stage] - offset_ns[Kind.F, stage]
        if op.kind is Kind.U:
            built.model.add(time - begin <= 6 * span_ns)
        elif behind_ns and (behind_ns < 0) == (op.microbatch == 0):
            built.model.add(time - (end if op.microbatch else begin) == behind_ns + (2 if op.microbatch else -2) * span_ns)
        elif op.microbatch == 0:
            built.model.add(time - begin <= 2 * span_ns)
        else:
            built.model.add(time - end >= -2 * span_ns)
    built.model.add(end - begin >= 0)
    built.model.add(end - begin <= 2 * span_ns)
    built.model.minimize(end - begin)
    return built


def _chain(problem: Problem) -> tuple[dict[tuple[Kind, int], int], int]:
    """When each op of a microbatch starts if each waits for the one before; and what all take so, at most."""
    ways_ns = {(need.producer.kind, need.producer.stage): need.occupancy_ns + need.latency_ns for need in needs_of(problem)}
    path, starts_ns, now_ns = problem.paths[problem.path_of[0]], dict[tuple[Kind, int], int](), 0
    kinds = ((Kind.B, Kind.BW), (Kind.W,)) if problem.split_backward else ((Kind.BW,),)
    for stages, ways in ((path, (Kind.F,)), *((path[::-1], each) for each in kinds)):
        for stage in stages:
            starts_ns[ways[0], stage] = now_ns
            now_ns += max(problem.duration_ns(kind, stage, 0) for kind in ways) + ways_ns.get((ways[0], stage), 0)
    return starts_ns, max(1, now_ns)


def _ask(known: Known, stage: int) -> None:
    """The bound by one forward; what is solved or not, the solver's own bound on the time counts."""
    built = build_window(known.problem, stage)
    known.work += S_PER_PAIR * pairs_of(built.problem, built.ranks)
    solver = one_worker(known.part(WINDOW_SHARE, is_small=True))
    code, known.ended_by = run(solver, built.model)
    status = SolverStatus(solver.status_name(code))
    known.work += solver.response_proto.deterministic_time
    known.log += [digest_of(built.model), f"two microbatches past F{stage}: status {status}"]
    if status not in (SolverStatus.OPTIMAL, SolverStatus.FEASIBLE):
        return
    lower_ns = known.problem.microbatches * int(solver.best_objective_bound)
    if lower_ns > known.lower_ns:
        known.lower_ns = lower_ns
        check_bound(known.lower_ns, known.best_ns, "modulo")
        known.on_bound(known.lower_ns)
