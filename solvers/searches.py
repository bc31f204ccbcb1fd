"""The searches by name: each improves an incumbent within limits. They start where the constructive methods ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from schedc.ir.schedule import Schedule
    from schedc.solvers.base import Limits, Solved
    from schedc.solvers.incumbent import Incumbent

__all__ = ["cpsat", "local", "milp"]


def local(incumbent: Incumbent, limits: Limits, *, rounds: int = 40, evaluations: int = 0) -> None:
    """Local search over the rule of a list scheduler; `evaluations` per climb and round, 0: as many as suit the problem's size."""
    from schedc.solvers.local import local_search

    best = local_search(
        incumbent.problem,
        evaluations=evaluations,
        rounds=rounds,
        seed=limits.seed,
        time_s=None if limits.deterministic is not None else limits.time_s,
        good_enough_ns=incumbent.bound_ns,
    )
    if best is not None and incumbent.exceeds_memory(best.schedule) is None:
        incumbent.offer(best.schedule, "local")
    incumbent.cut_short |= best is not None and best.cut_short


def cpsat(incumbent: Incumbent, limits: Limits) -> None:
    """CP-SAT from the best schedule of whole blocks. Workers, seed and limits are the command's."""
    from schedc.solvers.cpsat import solve_cpsat

    solved = solve_cpsat(
        incumbent.problem,
        _start(incumbent),
        limits=limits,
        known_bound_ns=incumbent.bound_ns,
        on_schedule=lambda schedule: _offer(incumbent, schedule, "cpsat"),
    )
    _take(incumbent, solved, "cpsat", limits)


def milp(incumbent: Incumbent, limits: Limits) -> None:
    """HiGHS from the best schedule of whole blocks."""
    from schedc.solvers.milp import solve_milp

    solved = solve_milp(incumbent.problem, _start(incumbent), limits=limits)
    _take(incumbent, solved, "milp", limits)


def _start(incumbent: Incumbent) -> Schedule:
    if incumbent.whole is None:
        raise Unsupported("no schedule of whole blocks is known to start from")
    return incumbent.whole


def _offer(incumbent: Incumbent, schedule: Schedule, found_by: str) -> None:
    if incumbent.exceeds_memory(schedule) is None:
        incumbent.offer(schedule, found_by)


def _take(incumbent: Incumbent, solved: Solved, name: str, limits: Limits) -> None:
    """The solver's last word. Its bound is on schedules of whole blocks, so it says nothing about one that cuts blocks."""
    _offer(incumbent, solved.schedule, name)
    if incumbent.schedule is not None and not incumbent.schedule.parts:
        incumbent.raise_bound(min(solved.lower_bound_ns, incumbent.objective_ns), name, solved.log)
    incumbent.cut_short |= solved.status != "OPTIMAL" and limits.deterministic is None
