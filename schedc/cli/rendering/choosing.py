"""What `schedc simulate --choose` and `--links` print: a run in which ranks choose inside the step, or links change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.frontend.job import Job
    from schedc.ir.plan import Plan

__all__ = ["print_run"]


def print_run(plan: Plan, job: Job | None, links: Path | None, *, choose: bool, as_json: bool) -> None:
    """Time the plan and print it, beside the time in the plan's orders.

    Args:
        plan: the plan.
        job: whose costs count; None: the plan's own.
        links: the link trace, as a file; None: links do not change.
        choose: whether the ranks choose.
        as_json: whether to print one JSON object.
    """
    from schedc.api import choosing_run, costs_for
    from schedc.cli.rendering.results import console, print_json, print_timeline, timeline_json
    from schedc.text.link_trace import read_link_trace

    problem = costs_for(plan, job)
    changes = None if links is None else read_link_trace(links, problem)
    run = choosing_run(plan, job, links=changes, choose=choose)
    in_order = choosing_run(plan, job, links=changes, choose=False) if choose else run
    both = [zip(*orders, strict=True) for orders in zip(run.schedule.orders, plan.schedule().orders, strict=True)]
    moved = sum(ran != planned for rank in both for ran, planned in rank)
    if as_json:
        said = {"transfers": "decoupled", "chooses": choose, "as_planned_ns": in_order.timeline.makespan_ns, "moved_ops": moved}
        print_json({**said, **timeline_json(problem, run.schedule, run.timeline)})
        return
    print_timeline(problem, run.schedule, run.timeline)
    if choose:
        planned_ns = in_order.timeline.makespan_ns
        less, planned = run.timeline.makespan_ns / max(1, planned_ns) - 1, format_duration_ns(planned_ns)
        console().print(
            f"ranks choose by what has come; in the plan's orders it takes {planned}, which choosing changes by"
            f" {less:+.2%}; {moved} ops run at another place of their rank's order"
        )
