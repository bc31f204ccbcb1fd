"""`schedc emulate`: runs a plan as real processes with delayed links and shows predicted against measured."""

from __future__ import annotations

import math
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedc.errors import InvalidInput
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table

    from schedc.analysis.comparison.compare import Comparison

FileOption = Path | None
QUEUES = (1, 4)
RUNS, ADAPTING_RUNS = 5, 60


def emulate_command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file (JSON).")],
    scale: Annotated[float, typer.Option(metavar="X", help="Multiplies all times: 2 is half as fast as the plan.")] = 1.0,
    runs: Annotated[int | None, typer.Option(metavar="N", min=1, help="Runs to measure: 5, with --adapt 60.")] = None,
    queues: Annotated[int, typer.Option(metavar="4|1", help="1: all transfers of a rank in one queue.")] = 4,
    links: Annotated[FileOption, typer.Option(metavar="LINKTRACE", help="How links change while it runs (CSV).")] = None,
    choose: Annotated[bool, typer.Option("--choose", help="Each rank chooses its next op by what has come.")] = False,
    adapt: Annotated[bool, typer.Option("--adapt", help="The ranks measure, and move to other plans while links change.")] = False,
    warm_up: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --adapt: runs before, links as planned: 40.")
    ] = None,
    trace: Annotated[FileOption, typer.Option(metavar="FILE", help="Write the runs as a trace, for `schedc compare`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")] = False,
) -> None:
    """Run a plan on this machine: a process per rank, real channels with the links' delays, waiting instead of compute."""
    from rich.text import Text

    from schedc.analysis.comparison.compare import compare
    from schedc.analysis.simulation.engines import Transfers
    from schedc.compile.plans import time_plan
    from schedc.formats.link_trace import read_link_trace
    from schedc.formats.plan.plan_file import read_plan
    from schedc.formats.trace_file import write_trace_file
    from schedc.io.outputs import check_outputs
    from schedc.view.terminal.comparison import comparison_table, print_comparison
    from schedc.view.terminal.results import console, print_json

    if queues not in QUEUES:
        raise InvalidInput(f"--queues: found {queues}, expected 4 (as the plan has them) or 1 (all transfers of a rank in one)")
    if not 0 < scale < math.inf:
        raise InvalidInput(f"--scale: found {scale:g}, expected a number above 0")
    check_outputs({"--trace": trace}, (plan,) if links is None else (plan, links))
    read = read_plan(plan)
    changes = None if links is None else read_link_trace(links, read.problem)
    if warm_up is not None and not adapt:
        raise InvalidInput("--warm-up: is for --adapt; add that, or leave it out")
    if adapt:
        from schedc.runtime.emulation.adapting import WARM_UP, emulate_adapting
        from schedc.view.terminal.adapting import print_replay

        if queues == 1 or trace is not None:
            raise InvalidInput("--adapt: cannot be combined with --queues 1 or --trace; leave them out")
        runs, warm_up = runs or ADAPTING_RUNS, warm_up or WARM_UP
        with _progress(runs, read.certificate.makespan_ns * scale / 1e9, warm_up) as report:
            found = emulate_adapting(read, scale=scale, runs=runs, warm_up=warm_up, choose=choose, links=changes, report=report)
        print_replay(read, changes, found, scale=scale, choose=choose, as_json=as_json)
        return
    runs = runs or RUNS
    if choose:
        from schedc.cli.choosing_run import print_emulated
        from schedc.runtime.emulation.emulate import emulate

        if queues == 1 or trace is not None:
            raise InvalidInput("--choose: cannot be combined with --queues 1 or --trace; leave them out")
        with _progress(runs, read.certificate.makespan_ns * scale / 1e9) as report:
            emulated = emulate(read, scale=scale, runs=runs, choose=True, links=changes, report=report)
        print_emulated(read, changes, emulated, scale=scale, as_json=as_json)
        return
    from schedc.runtime.emulation.emulate import emulate  # loads torch, which takes a while

    timeline = time_plan(read)
    with _progress(runs, read.certificate.makespan_ns * scale / 1e9) as report:
        emulation = emulate(read, scale=scale, runs=runs, queues=queues, links=changes, report=report)
    comparison = compare(read, timeline, emulation.trace)
    if trace is not None:
        write_trace_file(emulation.trace, trace)
    if as_json:
        said = {"queues": queues, "before_others": emulation.before_others, **idle_lists(comparison)}
        if links is not None:
            said["runs_begin_ns"] = list(emulation.begun_ns)
        print_json({**comparison_table(read, emulation.trace, comparison), **said})
        return
    out = console()
    how = "all transfers of a rank in one queue" if queues == 1 else "every channel a queue of its own"
    out.print(Text(f"emulated on this machine at scale {scale:g}, {how}; all times below are the plan's, the scale taken out"))
    if queues == 1:
        queued_ns, measured_ns = time_plan(read, transfers=Transfers.ONE_QUEUE).makespan_ns, comparison.measured.median_ns
        off = f"{measured_ns / max(1, queued_ns) - 1:+.2%}"
        out.print(
            Text(f"simulated with one queue {format_duration_ns(queued_ns)}, measured {format_duration_ns(measured_ns)}, {off}")
        )
    if links is not None:
        out.print(_runs_table(emulation.begun_ns, [taken_ns for _, taken_ns in comparison.steps], read.certificate.makespan_ns))
        out.print()
    if not emulation.before_others:
        out.print(Text("the system did not let the ranks run before other processes, so the machine's load shows in the times"))
    out.print(_idle_table(comparison))
    out.print()
    print_comparison(read, emulation.trace, comparison, [] if trace is None else [("the runs", trace)])


def idle_lists(comparison: Comparison) -> dict[str, list[int]]:
    """By rank, the time without compute: as planned, and in the run that is looked at."""
    return {
        name: [account.waiting_ns + account.idle_ns for account in accounts]
        for name, accounts in (
            ("predicted_idle_ns", [rank.planned for rank in comparison.ranks]),
            ("measured_idle_ns", [rank.measured for rank in comparison.ranks]),
        )
    }


def _runs_table(begun_ns: Sequence[int], runs_ns: Sequence[int], predicted_ns: int) -> Table:
    """Of each run, when it began on the link trace's clock, and what it took."""
    from schedc.view.terminal.results import plain_table

    table = plain_table("runs while the links change", right=("run", "begins at", "takes", "against the plan"))
    for run, (begin_ns, taken_ns) in enumerate(zip(begun_ns, runs_ns, strict=True), start=1):
        off = f"{taken_ns / max(1, predicted_ns) - 1:+.1%}"
        table.add_row(str(run), format_duration_ns(begin_ns, 2), format_duration_ns(taken_ns, 2), off)
    return table


def _idle_table(comparison: Comparison) -> Table:
    """Of each rank, predicted against measured."""
    from schedc.view.terminal.results import plain_table

    table = plain_table("time without compute", right=("rank", "predicted", "measured"))
    lists = idle_lists(comparison)
    for rank, (predicted_ns, measured_ns) in enumerate(zip(*lists.values(), strict=True)):
        table.add_row(str(rank), format_duration_ns(predicted_ns, 2), format_duration_ns(measured_ns, 2))
    return table


@contextmanager
def _progress(runs: int, predicted_s: float, warm_up: int = 1) -> Iterator[Callable[[int], None]]:
    """A line on standard error, where that is a terminal; yields what is called after each run."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from schedc.view.terminal.results import console

    errors = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(f"starting; each run takes about {predicted_s:.2g} s")

        def report(ended: int) -> None:
            bar.update(task, description=f"run {ended} of {runs} has ended" if ended else "the warm-up has ended")

        yield report
