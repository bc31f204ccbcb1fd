"""A bound on the period where memory is short: how soon one microbatch can follow another, in a model of these two alone.

The model has two microbatches that follow each other. Its objective is their least *distance* on one stage: the time between their
forwards there, as memory may make the second wait. Such a model has few ops, however many microbatches a step has, and is soon
solved.

Proof that the period T is at least n times the model's bound, for a step of n microbatches.

1. Microbatches that are alike pass each op in the order of their numbers (`schedc.models.modulo`). So on the stage, each period has
   n distances, each from a forward to the next. They add up to T. It remains to show that none is less than the bound.
2. Take any schedule and two microbatches that follow each other, the *first* and the *second*, and leave out all else: other
   microbatches, updates, and versions. Fewer ops share ranks and links, and fewer bytes are held. So what was feasible still is.
3. What matters is what the first does after its forward on the stage, and the second before its own. The rest must not be in the
   way: all that the first does before goes as far ahead as one likes, all that the second does after as far behind. This keeps the
   memory limits: what goes ahead takes memory earlier, and what goes behind gives it back later. Only forwards take memory (no
   backward recomputes), and all forwards of the first come before the backwards of the second. So none waits for memory that the
   second gives back.
4. A *span* is the time of one microbatch whose ops run one after another. No chain of waits among the two takes more than two
   spans. So with the same orders there is a timetable in which the first ends within two spans after its forward, and the second
   begins within two spans before its own.
5. The model is periodic, and its period is ten spans. All ops of 3 and 4 lie within this, so these two never meet the next two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir import Kind, Op, groups_of
from schedc.models.modulo import build_modulo, pairs_of
from schedc.models.modulo_orders import needs_of
from schedc.solvers.common.base import SolverStatus
from schedc.solvers.exact.modulo_questions import S_PER_PAIR, one_worker
from schedc.solvers.heuristics.steady_repeat import shorter_step

if TYPE_CHECKING:
    from schedc.ir import Problem
    from schedc.models.modulo_variables import ModuloModel
    from schedc.solvers.exact.modulo_questions import Known

DISTANCE_SHARE = 0.02
"""Of what is left of a limit, two microbatches get at most this much for each stage."""


def ask_of_distances(known: Known) -> None:
    """Raise the bound by the distance of two microbatches, for each stage on a rank with a limit, the last of the path first."""
    problem = known.problem
    if not has_distance_bound(problem):
        return
    for stage in reversed(problem.paths[problem.path_of[0]]):
        if known.is_proven or known.is_over:
            return
        if problem.memory_limit_bytes[problem.stages[stage].rank] is not None:
            _ask(known, stage)


def has_distance_bound(problem: Problem) -> bool:
    """Whether two microbatches alone say something: a rank has a limit, all are alike, and no backward takes memory (proof, 3)."""
    is_short = any(limit is not None for limit in problem.memory_limit_bytes)
    are_alike = problem.microbatches > 1 and len(set(groups_of(problem))) == 1
    return is_short and are_alike and not any(stage.recomputed_bytes for stage in problem.stages)


def build_distance(problem: Problem, stage: int) -> ModuloModel:
    """The model of two microbatches whose objective is their distance on a stage of their path, in ns."""
    two = shorter_step(problem, 2)
    starts_ns, span_ns = _chain(two)
    built = build_modulo(two, 10 * span_ns)
    first, second = (built.time[Op(Kind.F, stage, microbatch)] for microbatch in range(2))
    for op, time in built.time.items():
        if op.kind is Kind.U:  # behind all of the second, which ends within five spans
            built.model.add(time - first <= 6 * span_ns)
            continue
        after_ns = starts_ns[op.kind, op.stage] - starts_ns[Kind.F, stage]
        if op.microbatch == 0 and after_ns < 0:
            built.model.add(time - first == after_ns - 2 * span_ns)
        elif op.microbatch == 0:
            built.model.add(time - first <= 2 * span_ns)
        elif after_ns > 0:
            built.model.add(time - second == after_ns + 2 * span_ns)
        else:
            built.model.add(time - second >= -2 * span_ns)
    built.model.add(second - first >= 0)
    built.model.add(second - first <= 2 * span_ns)
    built.model.minimize(second - first)
    return built


def _chain(problem: Problem) -> tuple[dict[tuple[Kind, int], int], int]:
    """By kind and stage, when each op of a microbatch starts if each waits for the one before; and the span of all (proof, 4); ns.

    Where fused and split backwards mix, B takes the longer of B and BW.
    """
    ways_ns = {(need.producer.kind, need.producer.stage): need.occupancy_ns + need.latency_ns for need in needs_of(problem)}
    path, starts_ns, now_ns = problem.paths[problem.path_of[0]], dict[tuple[Kind, int], int](), 0
    kinds = ((Kind.B, Kind.BW), (Kind.W,)) if problem.split_backward else ((Kind.BW,),)
    for stages, ways in ((path, (Kind.F,)), *((path[::-1], each) for each in kinds)):
        for stage in stages:
            starts_ns[ways[0], stage] = now_ns
            now_ns += max(problem.duration_ns(kind, stage, 0) for kind in ways) + ways_ns.get((ways[0], stage), 0)
    return starts_ns, max(1, now_ns)


def _ask(known: Known, stage: int) -> None:
    """Raise the bound by the distance on one stage. Where the least distance is not proven, the solver's bound on it counts."""
    built = build_distance(known.problem, stage)
    known.work += S_PER_PAIR * pairs_of(built.problem, built.ranks)
    solver = one_worker(known.part(DISTANCE_SHARE, is_small=True))
    status = known.run(solver, built.model, f"two microbatches past F{stage}")
    if status in (SolverStatus.OPTIMAL, SolverStatus.FEASIBLE):
        known.raise_bound(known.problem.microbatches * int(solver.best_objective_bound))
