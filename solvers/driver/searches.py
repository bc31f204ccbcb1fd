"""The searches by name: each improves an incumbent within limits. They start where the constructive methods ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Annotated, TypedDict

from msgspec import Meta

from schedc.errors import Unsupported
from schedc.ir.ops import Kind
from schedc.ir.plan import BoundName
from schedc.ir.schedule import Schedule
from schedc.solvers.common.fuse_backwards import fuse_backwards
from schedc.solvers.common.fusing import fusing_saves_time
from schedc.solvers.common.microbatch_order import entry_order, order_is_open, permuted, renamed
from schedc.solvers.common.options import Ops  # noqa: TC001 - the options are read by their annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.problem import Problem
    from schedc.solvers.common.base import Limits, Solved
    from schedc.solvers.common.incumbent import Incumbent


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Of the local searches, `local`, `polish` and `fused-ranges`."""

    rounds: Annotated[int, Meta(ge=1, le=10**6)] = 40
    """Rounds of climbing at most."""
    evaluations: Ops = 0
    """For each climb and round; 0: as many as suit the problem's size."""


def local(incumbent: Incumbent, limits: Limits, *, options: LocalOptions = LocalOptions()) -> None:
    """Local search over the rule of a list scheduler, whose backwards are then fused where that pays."""
    from schedc.solvers.search.local import local_search

    problem, order = _entering(incumbent)
    best = local_search(problem, **_climbing(incumbent, limits, options))
    schedule = _named(best.schedule, order)
    incumbent.offer_valid(schedule, "local")
    incumbent.cut_short |= best.cut_short
    if best.ended_by is None and fusing_saves_time(incumbent.problem):
        incumbent.offer_valid(fuse_backwards(incumbent.problem, schedule, tables=incumbent.tables), "local + mixed")
    _end(best.ended_by)


def fused_ranges(incumbent: Incumbent, limits: Limits, *, options: LocalOptions = LocalOptions()) -> None:
    """Search over the range of microbatches whose backwards each stage fuses, and the rule of a list scheduler around it."""
    from schedc.solvers.search.fused_ranges import search_fused_ranges

    if not fusing_saves_time(incumbent.problem):
        raise Unsupported("no backward that may be split takes less time fused")
    problem, order = _entering(incumbent)
    incumbent.cut_short |= search_fused_ranges(
        problem,
        **_climbing(incumbent, limits, options),
        on_schedule=lambda schedule: incumbent.offer_valid(_named(schedule, order), "fused-ranges"),
    )


def microbatch_order(incumbent: Incumbent, limits: Limits, *, options: LocalOptions = LocalOptions()) -> None:
    """Search over the order in which microbatches enter, and over the rule of a list scheduler."""
    from schedc.solvers.search.microbatch_order import search_microbatch_order

    if not order_is_open(incumbent.problem):
        raise Unsupported("the microbatches are alike, or enter in the given order")
    incumbent.cut_short |= search_microbatch_order(
        incumbent.problem,
        start=entry_order(incumbent.problem, _start(incumbent)),
        **_climbing(incumbent, limits, options),
        on_schedule=lambda schedule: incumbent.offer_valid(schedule, "microbatch-order"),
    )


def polish(incumbent: Incumbent, limits: Limits, *, options: LocalOptions = LocalOptions()) -> None:
    """Local search over the orders of the best schedule of whole blocks: single ops are changed as long as nothing gets worse.

    Where nothing is gained by fusing, every backward is split.
    """
    from schedc.solvers.search.polish import polish_schedule

    start = _start(incumbent)
    if incumbent.problem.split_backward and not fusing_saves_time(incumbent.problem):
        start = _split(start)
    found = polish_schedule(incumbent.problem, start, **_climbing(incumbent, limits, options))
    incumbent.offer_valid(found.schedule, "polish")
    incumbent.cut_short |= found.cut_short
    _end(found.ended_by)


def _entering(incumbent: Incumbent) -> tuple[Problem, Sequence[int]]:
    """The problem for methods that take microbatches by number, and the order that they then take; empty: as they are.

    Where the order is open, it is the best schedule's.
    """
    if incumbent.whole is None or not order_is_open(incumbent.problem):
        return incumbent.problem, ()
    order = entry_order(incumbent.problem, incumbent.whole)
    return permuted(incumbent.problem, order), order


def _named(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """The schedule of the incumbent's problem that one of `_entering`'s problem is."""
    return renamed(schedule, order) if order else schedule


class _Climbing(TypedDict):
    """What a local search takes beside its problem."""

    evaluations: int
    rounds: int
    seed: int
    time_s: float | None
    good_enough_ns: int


def _climbing(incumbent: Incumbent, limits: Limits, options: LocalOptions) -> _Climbing:
    """What the options and limits say. Of a limit of work a unit admits one round, which takes a second or two on one core."""
    work = limits.deterministic
    return {
        "evaluations": options.evaluations,
        "rounds": options.rounds if work is None else min(options.rounds, max(1, ceil(work))),
        "seed": limits.seed,
        "time_s": limits.clock_s,
        "good_enough_ns": incumbent.bound_ns,
    }


def _split(schedule: Schedule) -> Schedule:
    """Each fused backward as B and W, one after the other."""
    return Schedule(
        orders=tuple(
            tuple(
                each
                for op in order
                for each in ([op] if op.kind is not Kind.BW else [op._replace(kind=Kind.B), op._replace(kind=Kind.W)])
            )
            for order in schedule.orders
        )
    )


def periodic(incumbent: Incumbent, limits: Limits) -> None:
    """Periodic schedules: one wave of microbatches, solved with its period as objective and repeated."""
    from schedc.solvers.search.periodic import periodic as repeat

    timed = limits.deterministic is None
    incumbent.work += limits.deterministic or 0.0  # it does not tell what it spent of it
    given = limits if timed else replace(limits, time_s=None)
    repeat(incumbent.problem, limits=given, on_schedule=lambda schedule: incumbent.offer_valid(schedule, "periodic"))
    incumbent.cut_short |= timed and incumbent.found_by == "periodic"


def cpsat(incumbent: Incumbent, limits: Limits) -> None:
    """CP-SAT from the best schedule of whole blocks. Workers, seed and limits are the command's."""
    from schedc.solvers.exact.cpsat import solve_cpsat

    solved = solve_cpsat(
        incumbent.problem,
        _start(incumbent),
        limits=limits,
        known_bound_ns=incumbent.bound_ns,
        on_schedule=lambda schedule: incumbent.offer_valid(schedule, "cpsat"),
        on_bound=lambda bound_ns: incumbent.raise_bound(bound_ns, BoundName.CPSAT, ()),
    )
    _take(incumbent, solved, BoundName.CPSAT, limits)


def refute(incumbent: Incumbent, limits: Limits) -> None:
    """A better bound alone: CP-SAT refutes makespans for a model without the ranks' compute. Nothing comes of cut blocks."""
    from schedc.solvers.exact.refute import refute as refute_makespans

    start = _start(incumbent)
    if incumbent.schedule is not start:
        return  # what is best cuts blocks, and bounds for whole blocks do not speak of it
    found = refute_makespans(
        incumbent.problem,
        bound_ns=incumbent.bound_ns,
        objective_ns=incumbent.objective_ns,
        limits=limits,
        on_bound=lambda bound_ns, log: incumbent.raise_bound(bound_ns, BoundName.CPSAT, log),
    )
    incumbent.work += found.work
    incumbent.cut_short |= found.cut_short and limits.deterministic is None


def milp(incumbent: Incumbent, limits: Limits) -> None:
    """HiGHS from the best schedule of whole blocks."""
    from schedc.solvers.exact.milp import solve_milp

    solved = solve_milp(
        incumbent.problem,
        _start(incumbent),
        limits=limits,
        known_bound_ns=incumbent.bound_ns,
        on_schedule=lambda schedule: incumbent.offer_valid(schedule, "milp"),
    )
    _take(incumbent, solved, BoundName.MILP, limits)


def _start(incumbent: Incumbent) -> Schedule:
    if incumbent.whole is None:
        raise Unsupported("no schedule of whole blocks is known to start from")
    return incumbent.whole


def _take(incumbent: Incumbent, solved: Solved, name: BoundName, limits: Limits) -> None:
    """The solver's last word."""
    incumbent.work += solved.work
    incumbent.offer_valid(solved.schedule, name)
    incumbent.raise_bound(solved.lower_bound_ns, name, solved.log)
    if limits.deterministic is None and (not solved.status.is_final or incumbent.found_by == name):
        incumbent.cut_short = True  # threads raced for what was found, or a clock ended them
    _end(solved.ended_by)


def _end(interruption: BaseException | None) -> None:
    """Let the interruption that ended a search end what comes after it, too, now that what the search found is kept."""
    if interruption is not None:
        raise interruption
