"""What `simulate --choose` and `--links`, and `emulate --choose` print: ranks that choose inside the step, links that change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.frontend.job import Job
    from schedc.ir.conditions import LinkTrace
    from schedc.ir.plan import Plan
    from schedc.runtime.emulation.emulate import Emulation


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
    from schedc.formats.link_trace import read_link_trace
    from schedc.view.terminal.results import console, print_json, print_timeline, timeline_json

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


def print_emulated(plan: Plan, links: LinkTrace | None, emulated: Emulation, *, scale: float, as_json: bool) -> None:
    """Print each run beside what the simulator says of it, choosing and in the plan's order.

    Args:
        plan: the plan.
        links: how the links changed; None: they did not.
        emulated: the runs.
        scale: theirs.
        as_json: whether to print one JSON object.
    """
    from schedc.api import choosing_run
    from schedc.view.terminal.results import console, plain_table, print_json

    simulated_ns, planned_ns = (
        [
            choosing_run(plan, links=None if links is None else links.since(begun_ns), choose=choose).timeline.makespan_ns
            for begun_ns in emulated.begun_ns
        ]
        for choose in (True, False)
    )
    planned = [rank.compute for rank in plan.ranks]
    moved = [
        sum(after != before for ran, order in zip(orders, planned, strict=True) for after, before in zip(ran, order, strict=True))
        for orders in emulated.orders
    ]
    if as_json:
        lists = {"runs_ns": list(emulated.runs_ns), "runs_begin_ns": list(emulated.begun_ns), "simulated_ns": simulated_ns}
        print_json(
            {**lists, "as_planned_ns": planned_ns, "moved_ops": moved, "before_others": emulated.before_others, "scale": scale}
        )
        return
    out = console()
    out.print(
        f"emulated on this machine at scale {scale:g}, ranks choose by what has come; all times are the plan's, the scale taken out"
    )
    if not emulated.before_others:
        out.print("the system did not let the ranks run before other processes, so the machine's load shows in the times")
    headers = ("run", "begins at", "takes", "simulated", "off", "in the plan's order", "ops moved")
    table = plain_table(right=headers)
    for run, (begin_ns, taken_ns) in enumerate(zip(emulated.begun_ns, emulated.runs_ns, strict=True)):
        table.add_row(
            str(run + 1),
            *(format_duration_ns(ns, 2) for ns in (begin_ns, taken_ns, simulated_ns[run])),
            f"{taken_ns / max(1, simulated_ns[run]) - 1:+.2%}",
            format_duration_ns(planned_ns[run], 2),
            str(moved[run]),
        )
    out.print(table)
