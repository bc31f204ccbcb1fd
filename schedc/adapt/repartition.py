"""Layers that move off a rank that computes slower, or can hold less: a plan and a change in, another layout and its plan out.

A re-planned order cannot help a rank that has too much work or too many weights; fewer layers can. Ranks keep their stages, so
that no pipeline link is new. What is maximized is what the job gains: the time that all steps to come save, less the time that the
move takes. Nothing depends on a clock. There are two searches:

- `transfer` begins with the layout that runs, and gives layers from stage to stage, one at a time: also past others, which then
  pass one on (`solvers.layout.moves.transferred`). It stops where no such change gains more.
- `condensation` tries all boundaries between blocks, each of which ends with one of the layers that take the most time
  (`schedc.adapt.condensation`; DynPipe, section V.B, Algorithm 2).

Where no order of the layers as they are has room, they have to move: both begin with a layout that has (`schedc.adapt.room`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from math import ceil, inf
from typing import TYPE_CHECKING, Literal, get_args

from schedc import __version__
from schedc.adapt.condensation import condensed_layouts
from schedc.adapt.replan import replan
from schedc.adapt.room import limited, with_room
from schedc.analysis.bounds.lower_bounds import simple_bound
from schedc.analysis.bounds.residency import rank_without_room
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.certify import certify
from schedc.errors import InvalidInput, NoPlanFound, Unsupported
from schedc.ir import FREE, Conditions, Kind, Link, MadeBy, Plan, Problem, Schedule, Workload
from schedc.lower.problem import problem_of, problem_under
from schedc.solvers.heuristics.rule_table import RuleTable
from schedc.solvers.layout.layout_arrays import LayoutArrays
from schedc.solvers.layout.moves import transferred
from schedc.units import format_duration_ns
from schedc.verify.layout import verify_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from fractions import Fraction


METHOD = "repartition"
MOST_LAYOUTS = 2_000
"""At most this many layouts are timed."""
RepartitionMethod = Literal["transfer", "condensation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """The best layout found, and what it gains."""

    plan: Plan
    """With the costs of the conditions where layers move or the orders are new; else the plan that was given."""
    moved: dict[int, tuple[int, int]]
    """Of each of the job's layers that moves, the rank that has it and the rank that takes it; empty: the layout stays."""
    running_ns: int
    """The objective under the conditions with the layout and the orders that run."""
    running_fits: bool
    """Whether ranks have room for these orders."""
    stay_ns: int
    """The objective if only the orders change (`schedc.adapt.replan`)."""
    stay_fits: bool
    """Whether ranks have room for such orders; if not, `stay_ns` is `running_ns`, and layers have to move."""
    objective_ns: int
    """The plan's, by the simulator."""
    moved_bytes: int
    """In one pipeline."""
    move_ns: int
    """How long the move takes."""
    gain_ns: int
    """What the job gains until the steps to come have run, with the move; at least 0, where layers do not have to move."""


def repartition(
    plan: Plan,
    workload: Workload,
    conditions: Conditions,
    *,
    steps: int,
    memory_limits: Mapping[int, int] | None = None,
    pause_ns: int = 0,
    bytes_per_parameter: Fraction | None = None,
    method: RepartitionMethod = "transfer",
    top_k: int | None = None,
) -> Repartition:
    """Other layers for the ranks, where that gains more than the move takes.

    Arguments are those of `schedc.repartition_plan`, but for the job's workload (`Job.workload`): a plan knows the costs of stages
    only, this knows those of layers, and the memory of ranks. Its layers are what can move: a job with costs by stage has none. No
    `bytes_per_parameter`: all that a layer holds all the time counts. No `top_k`: as many as make at most `MOST_LAYOUTS` layouts.

    Raises:
        InvalidInput: the plan is none of the workload, a number is too small, there is no such method, `top_k` is another's or
            makes too many layouts, or a link has a `transfer` that says nothing of layers.
        Unsupported: the plan has two paths.
        Infeasible: no boundaries of the stages have room.
        NoPlanFound: no layout that has room was found.
    """
    if steps < 0 or pause_ns < 0:
        raise InvalidInput(f"steps and pause_ns: found {steps} and {pause_ns}, expected numbers of at least 0")
    if method not in get_args(RepartitionMethod):
        raise InvalidInput(f"method: found {method!r}, expected {' or '.join(get_args(RepartitionMethod))}")
    if top_k is not None and (method != "condensation" or top_k < 1):
        raise InvalidInput(f"top_k: found {top_k} with method {method}, expected a number of at least 1 with method condensation")
    start, placement, workload = _draft(plan, workload), plan.problem.placement, limited(workload, memory_limits or {})
    moving = [
        layer.static_bytes if bytes_per_parameter is None else ceil(bytes_per_parameter * layer.parameters)
        for layer in workload.layers
    ]
    message_bytes = plan.problem.one_message_bytes
    links = _links(workload, conditions, bool(message_bytes) or not any(moving))
    own = problem_of(workload, start.layout(placement))
    if own != plan.problem:  # the conditions differ from the job's costs
        plan = replace(plan, problem=replace(own, data_parallel=plan.problem.data_parallel))
    stays = _stays(plan, conditions)
    stay_ns = stays.stay_ns

    def sizes_of(draft: LayoutArrays) -> dict[tuple[int, int], int]:
        """How many bytes move from each rank to each other."""
        sizes: dict[tuple[int, int], int] = defaultdict(int)
        for layer, (source, destination) in _moved(start, draft).items():
            sizes[source, destination] += moving[layer]
        return sizes

    best, best_gain_ns, made, seen = start, 0.0, None, {start}

    def most_gain_ns(draft: LayoutArrays) -> tuple[int, int, Problem] | None:
        """What it gains at most, what of that the move costs, and its problem; None: there is no room for its weights."""
        layout, move_ns = draft.layout(placement), _sending_ns(sizes_of(draft), links, message_bytes) + pause_ns
        if verify_layout(workload, layout):
            return None
        problem = problem_under(problem_of(workload, layout), conditions)
        return steps * (stay_ns - _most_work_ns(problem)) - move_ns, move_ns, problem

    def timed(draft: LayoutArrays, move_ns: int, problem: Problem) -> bool:
        """Take it if it gains more than the best one; whether it does."""
        nonlocal best, best_gain_ns, made
        found = _schedule(problem, RuleTable(climb_ops=0))
        if found is None or steps * (stay_ns - found[1]) - move_ns <= best_gain_ns:
            return False
        best, best_gain_ns, made = draft, float(steps * (stay_ns - found[1]) - move_ns), (problem, *found)
        return True

    def neighbours(now: LayoutArrays) -> Iterator[LayoutArrays]:
        """One stage has a layer less, one a layer more."""
        for giver, taker in permutations(range(len(now.ranks)), 2):
            draft = transferred(now, giver, taker)
            if draft is not None and draft not in seen and len(seen) < MOST_LAYOUTS:
                seen.add(draft)
                yield draft

    if not stays.stay_fits:
        best, best_gain_ns = with_room(workload, start, placement), -inf
        seen.add(best)
        if (bounded := most_gain_ns(best)) is not None:
            timed(best, *bounded[1:])
    better = method == "transfer"
    while better and len(seen) < MOST_LAYOUTS:
        better = False
        for draft in neighbours(best):
            bounded = most_gain_ns(draft)
            if bounded is not None and bounded[0] > best_gain_ns:
                better |= timed(draft, *bounded[1:])
    if method == "condensation":
        every = condensed_layouts(start, workload, conditions, list(links.values()), top_k, MOST_LAYOUTS)
        known = [(bounded, draft) for draft in every if draft != start and (bounded := most_gain_ns(draft)) is not None]
        for bounded, draft in sorted(known, key=lambda entry: -entry[0][0]):
            if bounded[0] <= best_gain_ns:  # and so it is of all that follow
                break
            timed(draft, *bounded[1:])
    if made is None and not stays.stay_fits:
        raise NoPlanFound(f"{workload.name}: no schedule was found for which all ranks have room")
    if made is None:
        return stays
    problem, schedule, objective_ns = made
    climbed = _schedule(problem, RuleTable())
    if climbed is not None and climbed[1] < objective_ns:
        schedule, objective_ns = climbed
    made_by = MadeBy(schedc=__version__, method=METHOD, job_sha256=plan.made_by.job_sha256)
    sizes = sizes_of(best)
    move_ns = _sending_ns(sizes, links, message_bytes) + pause_ns
    return replace(
        stays,
        plan=certify(problem, schedule, made_by, bounds=(simple_bound(problem),)),  # ranks wait for it: as of `replan`
        moved=_moved(start, best),
        objective_ns=objective_ns,
        moved_bytes=sum(sizes.values()),
        move_ns=move_ns,
        gain_ns=steps * (stay_ns - objective_ns) - move_ns,
    )


def _stays(plan: Plan, conditions: Conditions) -> Repartition:
    """What is best if no layer moves; where ranks have room for no order, the plan that runs."""
    problem, schedule = problem_under(plan.problem, conditions), plan.schedule()
    running_fits = stay_fits = exceeded_limit(problem, schedule) is None
    if running_fits:
        proposal = replan(plan, conditions)
        plan, running_ns, stay_ns = proposal.plan, proposal.running_ns, proposal.objective_ns
    else:
        running_ns = stay_ns = simulate(problem, schedule).objective_ns(problem.objective)
        found = None if rank_without_room(problem) else _schedule(problem, RuleTable())
        stay_fits = found is not None
        if found is not None:
            made_by = MadeBy(schedc=__version__, method=METHOD, job_sha256=plan.made_by.job_sha256)
            plan, stay_ns = certify(problem, found[0], made_by, bounds=(simple_bound(problem),)), found[1]
    return Repartition(
        plan=plan,
        moved={},
        running_ns=running_ns,
        running_fits=running_fits,
        stay_ns=stay_ns,
        stay_fits=stay_fits,
        objective_ns=stay_ns,
        moved_bytes=0,
        move_ns=0,
        gain_ns=0,
    )


def _draft(plan: Plan, workload: Workload) -> LayoutArrays:
    """The plan's layout, in the workload's layers: those where the model's layers are that the plan's stages have."""
    problem = plan.problem
    if len(problem.paths) > 1:
        raise Unsupported(f"plan {plan.name!r} has two paths; layers can move where there is one")
    if problem.is_sharded:
        raise Unsupported(f"plan {plan.name!r} gathers and releases weights within the step; layers can move where they are whole")
    begins = {layer.position[0]: index for index, layer in enumerate(workload.layers) if layer.position is not None}
    known, end = [stage.layers for stage in problem.stages if stage.layers is not None], workload.layers[-1].position
    cuts = tuple(begins[first] for first, _ in known if first in begins)
    if (
        end is None
        or problem.ranks != workload.ranks
        or problem.paths != (tuple(range(len(problem.stages))),)
        or len(cuts) != len(problem.stages)
        or [last for _, last in known] != [*(first for first, _ in known[1:]), end[1]]
        or cuts != (0, *sorted({*cuts[1:]}))
    ):
        raise InvalidInput(
            f"plan {plan.name!r} is not in the layers of job {workload.name!r}; give the plan's job, with the costs of layers"
            " (a profile.json with layers)"
        )
    return LayoutArrays(
        cuts=(*cuts, len(workload.layers)),
        ranks=tuple(stage.rank for stage in problem.stages),
        again=tuple(stage.recompute for stage in problem.stages),
    )


def _schedule(problem: Problem, rule_table: RuleTable) -> tuple[Schedule, int] | None:
    """The rule table's schedule with its objective; None: it is not within memory."""
    try:
        schedule = rule_table(problem)
    except Unsupported:  # a rank has no room for one microbatch
        return None
    if exceeded_limit(problem, schedule) is not None:
        return None
    return schedule, simulate(problem, schedule).objective_ns(problem.objective)


def _most_work_ns(problem: Problem) -> int:
    """What the rank with the most work computes in a step: no objective is less."""
    work = [0] * problem.ranks
    for stage, microbatch in problem.blocks():
        apart_ns = problem.duration_ns(Kind.B, stage, microbatch) + problem.duration_ns(Kind.W, stage, microbatch)
        fused_ns = problem.duration_ns(Kind.BW, stage, microbatch)
        least_ns = min(apart_ns, fused_ns) if problem.split_backward else fused_ns
        work[problem.stages[stage].rank] += problem.duration_ns(Kind.F, stage, microbatch) + least_ns
    return max(work)


def _moved(before: LayoutArrays, after: LayoutArrays) -> dict[int, tuple[int, int]]:
    """Of each layer that moves, the rank before and after."""
    ranks = (
        [rank for rank, (first, last) in zip(draft.ranks, pairwise(draft.cuts), strict=True) for _ in range(first, last)]
        for draft in (before, after)
    )
    return {layer: pair for layer, pair in enumerate(zip(*ranks, strict=True)) if pair[0] != pair[1]}


def _links(workload: Workload, conditions: Conditions, has_size: bool) -> dict[tuple[int, int], Link]:
    """What layers may move over, under the conditions.

    Raises:
        InvalidInput: a link has a `transfer`, the time of one message, and not `has_size`: nothing to scale it by.
    """
    found = {}
    for pair in permutations(range(workload.ranks), 2):
        given = workload.network.link(*pair)
        if given is None:
            continue
        link = found[pair] = conditions.link(given)
        if link.transfer_ns and not has_size:
            raise InvalidInput(
                f"job {workload.name!r}: topology: found a transfer of {format_duration_ns(link.transfer_ns)} between ranks"
                f" {pair[0]} and {pair[1]}, expected a bandwidth: layers cross the link too, and messages have no size, or several"
            )
    return found


def _sending_ns(sizes: Mapping[tuple[int, int], int], links: Mapping[tuple[int, int], Link], message_bytes: int) -> int:
    """How long the bytes take: ranks work beside each other; each sends, and receives, one after the other."""
    took_ns: dict[tuple[str, int], int] = defaultdict(int)
    for (source, destination), size_bytes in sizes.items():
        link = links.get((source, destination), FREE)
        for end in (("sends", source), ("receives", destination)):
            took_ns[end] += link.latency_ns + link.payload_ns(size_bytes, message_bytes)
    return max(took_ns.values(), default=0)
