"""`schedc report`: a plan as one HTML page that needs no network; with a trace, planned and measured one above the other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from schedc.cli.commands.compare import compared, step_number
from schedc.cli.options import PlanArgument, output_to, read_run
from schedc.errors import CheckFailed, InvalidInput
from schedc.io.outputs import check_outputs, write_atomically

FileOption = Path | None


def report_command(
    plan: PlanArgument,
    output: Annotated[Path, output_to("FILE", "Where to write the page (HTML).")],
    trace: Annotated[FileOption, Option(metavar="TRACE", help="A trace file, recorded from this plan: what was measured.")] = None,
    step: Annotated[str, Option(metavar="N|median", help="The recorded step of the trace to show.")] = "median",
    compiled: Annotated[
        FileOption, Option(metavar="FILE", help="What `compile --json` printed for this plan: the methods tried.")
    ] = None,
) -> None:
    """Write a plan as one HTML page: the step over time with zoom, what each op waited for, memory, idle time, certificate."""
    from schedc.compile.certify import MOST_BOUNDED_OPS, check_plan
    from schedc.compile.plans import time_plan
    from schedc.formats.compiled_json import read_compilation
    from schedc.formats.plan.plan_file import read_plan
    from schedc.view.report.figures import Measured
    from schedc.view.report.page import report_html

    number = step_number(step)
    if trace is None and step != "median":
        raise InvalidInput("--step: found it without --trace, expected both; the plan alone has one step")
    check_outputs({"-o": output}, [path for path in (plan, trace, compiled) if path is not None])
    read = read_run(plan)
    violations = check_plan(read, with_bounds=read.problem.num_ops <= MOST_BOUNDED_OPS)  # of large plans bounds take long
    if violations:
        first, others = violations[0], len(violations) - 1
        more = f", and {others} more" if others else ""
        raise CheckFailed(f"{plan}: {first.place}: {first.message}{more}; a report shows only what holds: see schedc verify {plan}")
    timeline = time_plan(read)
    measured = None if trace is None else Measured(*compared(read, timeline, plan, [trace], number))
    printed_for = read if read.problem.updates is None else read_plan(plan)  # the period, where the page shows a run of it
    compilation = None if compiled is None else read_compilation(compiled, printed_for, plan)
    write_atomically(output, report_html(read, timeline, measured, compilation))
