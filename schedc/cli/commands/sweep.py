"""`schedc sweep`: many jobs, one table; goes on where it was ended."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from schedc.cli.options import INTERRUPTED, JsonOption, QuietOption, output_to
from schedc.errors import InvalidInput
from schedc.io.location import one_line
from schedc.io.outputs import check_outputs
from schedc.spelling import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.study.sweep.jobs import Sweep
    from schedc.study.task import CompileRow

WITHOUT_PLAN = 5
"""The exit status where the table is complete, and has rows without a plan."""


def sweep_command(
    sweep: Annotated[Path, Argument(metavar="SWEEP", help="The sweep file (TOML).")],
    output: Annotated[Path, output_to("TABLE", "Where to write the table: .csv or .parquet.")],
    processes: Annotated[
        int | None, Option(metavar="N", min=1, help="Jobs at the same time on this machine. Default: as cores allow.")
    ] = None,
    cluster: Annotated[
        str | None, Option(metavar="ADDRESS", help="Run on the workers of this Dask scheduler, tcp://HOST:PORT.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compile many jobs into one table; run it again to go on after an end of any kind."""
    from schedc.solvers.common.interruption import Interruption

    interruption = Interruption()
    with interruption.listening():  # from here on a signal means that the rows so far are written
        from schedc.study.executors import processes_for
        from schedc.study.sweep.jobs import read_sweep
        from schedc.study.sweep.run import Journal, check_format, journal_path, kept_keys, run, write_table

        if cluster is not None and processes is not None:
            raise InvalidInput("--processes: found it beside --cluster, whose workers are started elsewhere; expected one of them")
        check_format(output)
        read = read_sweep(sweep)
        check_outputs({"-o": output, "the journal": journal_path(output)}, read.files)
        at_once = processes_for(job.task.workers for job in read.jobs) if processes is None else processes
        where = cluster or counted(at_once, "process")
        with Journal(journal_path(output)) as journal:
            kept = len(kept_keys(read, journal))
            begun_s = time.perf_counter()
            try:
                with (
                    _shown(read, journal.answers, kept, where, hidden=quiet or as_json) as show_answers,
                    closing(run(read, journal, processes=at_once, cluster=cluster)) as results,
                ):
                    for answers in results:
                        show_answers([answer for _, answer in answers])
                        if interruption.requested:
                            break
            finally:  # also where the cluster is lost
                rows = sum(job.key in journal.answers for job in read.jobs)
                if rows:
                    write_table(output, read, journal.answers)
            took_s = time.perf_counter() - begun_s
            _print_end(read, journal.answers, rows, kept, took_s, output, as_json=as_json, quiet=quiet)
    if rows < len(read.jobs):
        to = one_line(str(output))
        typer.echo(f"schedc: {rows} of {len(read.jobs)} rows are written to {to}; the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED)
    if any(journal.answers[job.key].makespan_ns is None for job in read.jobs):
        raise typer.Exit(WITHOUT_PLAN)


@contextmanager
def _shown(
    sweep: Sweep, known: dict[str, CompileRow], kept: int, where: str, *, hidden: bool
) -> Iterator[Callable[[list[CompileRow]], None]]:
    """Show on standard error how far the sweep is; called with what came."""
    from schedc.view.terminal.progress import say, working

    total, keys = len(sweep.jobs), {job.key for job in sweep.jobs}
    first = f"{total} jobs on {where}; Ctrl-C keeps the rows so far, and the same command goes on"
    say(first + (f"; {kept} are known" if kept else ""), hidden=hidden)
    if left_out := len(known.keys() - keys):
        say(f"{left_out} rows of the journal belong to no job of this sweep (any more) and are left out", hidden=hidden)
    begun_s, done = time.perf_counter(), 0
    without = sum(known[key].makespan_ns is None for key in keys & known.keys())

    def line() -> str:
        rate = done / max(time.perf_counter() - begun_s, 1e-9)
        return f"{kept + done} of {total} jobs, {without} without a plan, {rate:.1f} jobs/s"

    with working(line(), hidden=hidden, done=kept, total=total) as progress:

        def count(answers: list[CompileRow]) -> None:
            nonlocal done, without
            done += len(answers)
            without += sum(answer.makespan_ns is None for answer in answers)
            progress(line(), kept + done)

        yield count


def _print_end(
    sweep: Sweep, known: dict[str, CompileRow], rows: int, kept: int, took_s: float, output: Path, *, as_json: bool, quiet: bool
) -> None:
    """How many jobs came to what, with the first reason of each kind."""
    from schedc.view.document import Column, Line, Table, left, right
    from schedc.view.terminal.show import show

    by_status: dict[str, list[CompileRow]] = {}
    for job in sweep.jobs:
        if job.key in known:
            by_status.setdefault(known[job.key].status, []).append(known[job.key])
    if as_json:
        counts = {status: len(group) for status, group in by_status.items()}
        show({"jobs": len(sweep.jobs), "rows": rows, "kept": kept, "seconds": took_s, "statuses": counts})
    elif not quiet:
        columns = [*left("status"), *right("jobs"), Column("the first reason", wrap="fold")]
        reasons = {status: next((answer.error for answer in group if answer.error), "") for status, group in by_status.items()}
        table = Table(columns=columns, rows=[(status, str(len(by_status[status])), why) for status, why in reasons.items()])
        new = f"{kept} known before, {rows - kept} in {took_s:.2f} s ({(rows - kept) / max(took_s, 1e-9):.1f} jobs/s)"
        show([table, Line(f"{rows} rows written to {one_line(str(output))}: {new}", soft=True)])
