"""What commands show while they work, on standard error: what runs, and what is known.

A terminal gets one line that changes. Elsewhere, in a log, each line says what is known then, and there are not many of them.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from schedc.view.document import duration
from schedc.view.terminal.show import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from schedc.frontend.job import Job
    from schedc.solvers.common.base import Improvement, LayoutsProgress, SearchSettings

LOG_EVERY_S = 5.0
"""A log gets a line no more often than this."""


@contextmanager
def working(
    first: str,
    *,
    hidden: bool = False,
    logs: bool = True,
    done: int = 0,
    total: int | None = None,
    errors: Console | None = None,
) -> Iterator[Callable[[str, int], None]]:
    """Show the work until it ends; is called with the line, and how much is done, whenever they change.

    `first` is the line until then; `logs`: whether what is no terminal gets lines. Where `total` is known, there is a bar. `errors`
    is standard error, where the caller prints lines meanwhile.
    """
    errors = errors or console(stderr=True)
    if hidden or not (errors.is_terminal or logs):
        yield lambda line, done: None
        return
    if not errors.is_terminal:
        begun = written = time.perf_counter()

        def log(line: str, done: int) -> None:
            nonlocal written
            now = time.perf_counter()
            if now - written >= LOG_EVERY_S:
                written = now
                errors.print(f"{now - begun:6.1f} s  {line}", soft_wrap=True)

        yield log
        return
    text, elapsed = TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    columns = (SpinnerColumn(), elapsed, text) if total is None else (BarColumn(), text, elapsed, TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task(first, total=total, completed=done)
        yield lambda line, done: bar.update(task, description=line, completed=done)


def say(line: str, *, hidden: bool = False) -> None:
    """A line on standard error before the work."""
    if not hidden:
        console(stderr=True).print(line, soft_wrap=True)


@contextmanager
def live(job: Job, settings: SearchSettings, *, hidden: bool) -> Iterator[SearchSettings]:
    """Show the work on a job until it ends: the method at work, the best schedule and the bound. Gives the settings to search with.

    The first line comes when the first method begins: then the job is sound.
    """
    limits = settings.limits
    limit = f"{limits.time_s:g} s" if limits.deterministic is None else f"{limits.deterministic:g} units of work"
    what = "layout open" if job.open_layout is not None else f"{job.problem.num_ops} compute ops"
    first = f"{job.workload.name}: {what}, method {settings.method}, limit {limit}; Ctrl-C keeps the best plan so far"
    overlap = job.open_layout is None and job.problem.updates is not None
    errors = console(stderr=True)
    errors.quiet = hidden
    method, known, evaluated = "", "no schedule yet", ""
    with working("computing lower bounds", hidden=hidden, errors=errors) as show:

        def update() -> None:
            show(f"{known}{evaluated}; running {method}", 0)

        def running(name: str) -> None:
            nonlocal method
            if not method:
                errors.print(first, soft_wrap=True)
            method = name
            update()

        def improved(step: Improvement) -> None:
            nonlocal known
            best = f"{'period' if overlap else step.objective} {duration(step.objective_ns)} by {step.found_by}"
            known = f"{best}, bound {duration(step.lower_bound_ns)}, gap {step.gap:.2%}"
            update()

        def layouts(found: LayoutsProgress) -> None:
            nonlocal evaluated
            best = "" if found.objective_ns is None else f", best {duration(found.objective_ns)}"
            evaluated = f"; {found.layouts} layouts{best}, bound {duration(found.lower_bound_ns)}"
            update()

        yield replace(settings, report=improved, on_method=running, on_layouts=layouts)
