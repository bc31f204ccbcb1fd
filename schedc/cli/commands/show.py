"""`schedc show`: the picture of a plan in the terminal."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from schedc.cli.options import PlanArgument, option_value, read_run
from schedc.errors import InvalidInput


def show_command(
    plan: PlanArgument,
    begin: Annotated[str, Option("--from", metavar="TIME", help="Show from this time on, as in 200ms.")] = "0 ns",
    end: Annotated[str | None, Option("--to", metavar="TIME", help="Show up to this time.")] = None,
    ranks: Annotated[
        str | None, Option(metavar="RANKS", help="Show these ranks, as in 0-3,8, or all. Default: some of many.")
    ] = None,
    width: Annotated[int | None, Option(metavar="N", min=40, max=10_000, help="Columns. Default: the terminal's.")] = None,
) -> None:
    """Draw a plan in the terminal: ranks, links, collectives and memory over time."""
    from schedc.compile.plans import time_plan
    from schedc.view.terminal.plan import chosen_ranks, shown_plan
    from schedc.view.terminal.show import console, show

    from_ns, to_ns = option_value("--from", begin), None if end is None else option_value("--to", end)
    read = read_run(plan)
    timeline = time_plan(read)
    plan_ns = max(1, timeline.makespan_ns)  # a plan of durations of 0 takes no time, and can be shown
    to_ns = plan_ns if to_ns is None else min(to_ns, plan_ns)
    if not from_ns < to_ns:
        raise InvalidInput(f"--from: found {begin!r}, expected a time before --to and before the plan's end")
    show(shown_plan(read, timeline, (from_ns, to_ns), ranks=chosen_ranks(ranks, read.problem.ranks)), console(width=width))
