"""Emulating a plan whose ranks choose their next op by what has come: as `emulate`, but what it gives is no trace of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.runtime.emulation.emulate import check_request, request_of, results_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.conditions import LinkTrace
    from schedc.ir.ops import Op
    from schedc.ir.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosingRuns:
    """What came of it, the scale taken out."""

    runs_ns: tuple[int, ...]
    """What each run took: from the begin of all ranks to the end of the last op."""
    begun_ns: tuple[int, ...]
    """When each began, on the clock of the link trace."""
    orders: tuple[tuple[tuple[Op, ...], ...], ...]
    """Per run and rank, the ops in the order in which they ran."""
    before_others: bool
    """As of `Emulation`."""


def emulate_choosing(
    plan: Plan,
    *,
    scale: float = 1.0,
    runs: int = 5,
    delegate: bool = False,
    links: LinkTrace | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> ChoosingRuns:
    """Run the plan as `emulate` does, with ranks that choose inside the step; arguments and errors are the same.

    Raises:
        Unsupported: the plan has collectives, whose all-gathers the emulated compute waits for where it should choose.
    """
    check_request(plan, scale, runs)
    if plan.problem.data_parallel is not None:
        raise Unsupported(f"plan {plan.name!r} has data-parallel collectives, with which ranks that choose are not emulated")
    results = results_of(request_of(plan, scale, runs, links, delegate=delegate, choose=True), report)
    by_run = list(zip(*(result.record.steps for result in results), strict=True))
    return ChoosingRuns(
        runs_ns=tuple(
            round((max(times.ended_ns for step in run for times in step.ops) - min(step.begin_ns for step in run)) / scale)
            for run in by_run
        ),
        begun_ns=results[0].begun_ns,
        orders=tuple(tuple(tuple(times.op for times in step.ops) for step in run) for run in by_run),
        before_others=all(result.before_others for result in results),
    )
