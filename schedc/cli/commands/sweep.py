"""`schedc sweep`: many jobs, one table; goes on where it was ended."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.study.sweep.jobs import Sweep
    from schedc.study.task import CompileRow

SweepArgument = Annotated[Path, typer.Argument(metavar="SWEEP", help="The sweep file (TOML).")]
TableOption = Annotated[Path, typer.Option("-o", "--output", metavar="TABLE", help="Where to write the table: .csv or .parquet.")]

WITHOUT_PLAN = 5
"""The exit status where the table is complete, and has rows without a plan."""
INTERRUPTED = 130
"""The exit status after an interruption, as of the other commands."""


def sweep_command(
    sweep: SweepArgument,
    output: TableOption,
    processes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Jobs at the same time on this machine. Default: as cores allow.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on the workers of this Dask scheduler, tcp://HOST:PORT.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
) -> None:
    """Compile many jobs into one table; run it again to go on after an end of any kind."""
    from schedc.solvers.common.interruption import Interruption

    interruption = Interruption()
    with interruption.listening():  # from here on a signal means that the rows so far are written
        from schedc.errors import InvalidInput
        from schedc.io.location import one_line
        from schedc.io.outputs import check_outputs
        from schedc.study.executors import processes_for
        from schedc.study.sweep.jobs import read_sweep
        from schedc.study.sweep.journal import Journal, journal_path
        from schedc.study.sweep.run import kept_keys, run
        from schedc.study.sweep.table import check_format, write_table

        if cluster is not None and processes is not None:
            raise InvalidInput("--processes: found it beside --cluster, whose workers are started elsewhere; expected one of them")
        check_format(output)
        read = read_sweep(sweep)
        check_outputs({"-o": output, "the journal": journal_path(output)}, read.files)
        at_once = processes_for(job.task.options.workers or 1 for job in read.jobs) if processes is None else processes
        with Journal(journal_path(output)) as journal:
            kept = len(kept_keys(read, journal))
            begun_s = time.perf_counter()
            try:
                with (
                    _shown(
                        read, journal.answers, kept, cluster or f"{at_once} process{'es' * (at_once > 1)}", hidden=quiet or as_json
                    ) as show,
                    closing(run(read, journal, processes=at_once, cluster=cluster)) as results,
                ):
                    for answers in results:
                        show([answer for _, answer in answers])
                        if interruption.requested:
                            break
            finally:  # also where the cluster is lost
                rows = sum(job.key in journal.answers for job in read.jobs)
                if rows:
                    write_table(output, read, journal.answers)
            took_s = time.perf_counter() - begun_s
            _print_end(read, journal.answers, rows, kept, took_s, output, as_json=as_json, quiet=quiet)
    if rows < len(read.jobs):
        where = one_line(str(output))
        typer.echo(f"schedc: {rows} of {len(read.jobs)} rows are written to {where}; the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED)
    if any(journal.answers[job.key].makespan_ns is None for job in read.jobs):
        raise typer.Exit(WITHOUT_PLAN)


@contextmanager
def _shown(
    sweep: Sweep, known: dict[str, CompileRow], kept: int, where: str, *, hidden: bool
) -> Iterator[Callable[[list[CompileRow]], None]]:
    """Show on standard error how far the sweep is; called with what came."""
    if hidden:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from schedc.view.terminal.progress import log_lines
    from schedc.view.terminal.results import console

    errors, total, keys = console(stderr=True), len(sweep.jobs), {job.key for job in sweep.jobs}
    first = f"{total} jobs on {where}; Ctrl-C keeps the rows so far, and the same command goes on"
    errors.print(first + (f"; {kept} are known" if kept else ""), soft_wrap=True)
    if left_out := len(known.keys() - keys):
        errors.print(f"{left_out} rows of the journal belong to no job of this sweep (any more) and are left out", soft_wrap=True)
    begun_s, done = time.perf_counter(), 0
    without = sum(known[key].makespan_ns is None for key in keys & known.keys())

    def line() -> str:
        rate = done / max(time.perf_counter() - begun_s, 1e-9)
        return f"{kept + done} of {total} jobs, {without} without a plan, {rate:.1f} jobs/s"

    def count(answers: list[CompileRow]) -> None:
        nonlocal done, without
        done += len(answers)
        without += sum(answer.makespan_ns is None for answer in answers)

    if not errors.is_terminal:
        write = log_lines(lambda text: errors.print(text, soft_wrap=True))

        def log(answers: list[CompileRow]) -> None:
            count(answers)
            write(line)

        yield log
        return
    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task(line(), total=total, completed=kept)

        def advance(answers: list[CompileRow]) -> None:
            count(answers)
            bar.update(task, completed=kept + done, description=line())

        yield advance


def _print_end(
    sweep: Sweep, known: dict[str, CompileRow], rows: int, kept: int, took_s: float, output: Path, *, as_json: bool, quiet: bool
) -> None:
    """How many jobs came to what, with the first reason of each kind."""
    from schedc.io.location import one_line
    from schedc.view.terminal.results import console, plain_table, print_json

    answers = [known[job.key] for job in sweep.jobs if job.key in known]
    by_status: dict[str, list[CompileRow]] = {}
    for answer in answers:
        by_status.setdefault(answer.status, []).append(answer)
    if as_json:
        counts = {status: len(group) for status, group in by_status.items()}
        print_json({"jobs": len(sweep.jobs), "rows": rows, "kept": kept, "seconds": took_s, "statuses": counts})
        return
    if quiet:
        return
    out = console()
    table = plain_table()
    table.add_column("status")
    table.add_column("jobs", justify="right")
    table.add_column("the first reason", overflow="fold")
    for status, group in by_status.items():
        table.add_row(status, str(len(group)), next((answer.error for answer in group if answer.error), ""))
    out.print(table)
    done = rows - kept
    out.print(
        f"{rows} rows written to {one_line(str(output))}: {kept} known before, {done} in {took_s:.2f} s"
        f" ({done / max(took_s, 1e-9):.1f} jobs/s)",
        soft_wrap=True,
    )
