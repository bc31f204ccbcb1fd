"""`schedc report`: a plan as one HTML page that needs no network; with a trace, planned and measured one above the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedc.cli.commands.compare import check_same_plan, step_number
from schedc.errors import CheckFailed, InvalidInput

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.view.report.figures import Measured

PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file (JSON).")]
OutputOption = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write the page (HTML).")]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", metavar="TRACE", help="A trace file, recorded from this plan: what was measured.")
]
CompiledOption = Annotated[
    Path | None, typer.Option("--compiled", metavar="FILE", help="What `compile --json` printed for this plan: the methods tried.")
]


def report_command(
    plan: PlanArgument,
    output: OutputOption,
    trace: TraceOption = None,
    step: Annotated[str, typer.Option(metavar="N|median", help="The recorded step of the trace to show.")] = "median",
    compiled: CompiledOption = None,
) -> None:
    """Write a plan as one HTML page: the step over time with zoom, what each op waited for, memory, idle time, certificate."""
    from schedc.compile.certify import MOST_BOUNDED_OPS, check_plan
    from schedc.compile.plans import time_plan
    from schedc.formats.compiled_json import read_compilation
    from schedc.formats.plan.plan_file import read_plan
    from schedc.io.outputs import check_outputs, write_atomically
    from schedc.view.report.page import report_html

    number = step_number(step)
    if trace is None and step != "median":
        raise InvalidInput("--step: found it without --trace, expected both; the plan alone has one step")
    check_outputs({"-o": output}, [path for path in (plan, trace, compiled) if path is not None])
    read = read_plan(plan)
    violations = check_plan(read, with_bounds=read.problem.num_ops <= MOST_BOUNDED_OPS)  # of large plans bounds take long
    if violations:
        first, others = violations[0], len(violations) - 1
        more = f", and {others} more" if others else ""
        raise CheckFailed(f"{plan}: {first.place}: {first.message}{more}; a report shows only what holds: see schedc verify {plan}")
    timeline = time_plan(read)
    measured = None if trace is None else _measured(read, timeline, plan, trace, number)
    compilation = None if compiled is None else read_compilation(compiled, read, plan)
    write_atomically(output, report_html(read, timeline, measured, compilation))


def _measured(plan: Plan, timeline: Timeline, plan_path: Path, trace_path: Path, step: int | None) -> Measured:
    from schedc.analysis.comparison.compare import compare
    from schedc.formats.trace_file import read_trace
    from schedc.view.report.figures import Measured

    trace = read_trace(trace_path)
    check_same_plan(plan, trace, plan_path, trace_path)
    try:
        return Measured(trace=trace, comparison=compare(plan, timeline, trace, step))
    except InvalidInput as error:
        raise InvalidInput(f"{trace_path}: {error}") from error
