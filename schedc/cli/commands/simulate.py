"""`schedc simulate`: the times of a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from schedc.api import choosing_run, costs_for, simulate_plan
from schedc.cli.options import JsonOption, PlanArgument, PlanJobOption, SetOption, check_set, read_given_job, read_run
from schedc.errors import InvalidInput
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline


def simulate_command(
    plan: PlanArgument,
    job: PlanJobOption = None,
    values: SetOption = None,
    transfers: Annotated[
        Literal["decoupled", "one-queue", "blocking"],
        Option(help="How transfers hold up compute: not at all, in one queue for each rank, or each one."),
    ] = "decoupled",
    choose: Annotated[bool, Option("--choose", help="Each rank chooses its next op by what has come.")] = False,
    links: Annotated[Path | None, Option(metavar="LINKTRACE", help="How links change from 0 on (CSV).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time a plan, under its own costs or a job's: makespan, stage span, bubble, and what each rank computes and holds."""
    from schedc.compile.plans import moved_ops
    from schedc.formats.links import read_link_trace
    from schedc.view.terminal.results import shown_timeline, timeline_json
    from schedc.view.terminal.show import show

    check_set(job, values, "--job JOB")
    changing = choose or links is not None
    if changing and transfers != "decoupled":
        raise InvalidInput(f"--transfers {transfers}: cannot be combined with --choose or --links; leave one out")
    read, loaded = read_run(plan), read_given_job(job, values)
    problem = costs_for(read, loaded)
    if problem.updates is not None:
        problem = replace(problem, name=read.problem.name)  # which says of how many steps this is
    said: dict[str, object] = {"transfers": transfers}
    more = ""
    if changing:
        trace = None if links is None else read_link_trace(links, problem)
        run = choosing_run(read, loaded, links=trace, choose=choose)
        schedule, timeline = run.schedule, run.timeline
        in_order = choosing_run(read, loaded, links=trace, choose=False).timeline if choose else timeline
        moved = moved_ops(read.schedule().orders, schedule.orders)
        said |= {"chooses": choose, "as_planned_ns": in_order.makespan_ns, "moved_ops": moved}
        if choose:
            longer, takes = _against(timeline, in_order)
            more = f"ranks choose by what has come; in the plan's orders it takes {takes}, which choosing changes by {longer}"
            more += f"; {moved} ops run at another place of their rank's order"
    else:
        schedule, timeline = read.schedule(), simulate_plan(read, loaded, transfers=transfers)
        if transfers != "decoupled":
            longer, takes = _against(timeline, simulate_plan(read, loaded))
            more = f"with {transfers} transfers; decoupled ones take {takes}, so these cost {longer}"
    if as_json:
        show({**said, **timeline_json(problem, schedule, timeline)})
    else:
        show([*shown_timeline(problem, schedule, timeline), *([more] if more else [])])


def _against(timeline: Timeline, other: Timeline) -> tuple[str, str]:
    """How much longer it takes than the other, and what that takes."""
    return f"{timeline.makespan_ns / max(1, other.makespan_ns) - 1:+.2%}", format_duration_ns(other.makespan_ns)
