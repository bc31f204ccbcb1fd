"""What `compile` shows while it works, on standard error: what runs, what is known, and how it ends.

A terminal gets one line that changes. Elsewhere, in a log, each line says what is known then, and there are not many of them.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from schedc.units import format_duration_ns
from schedc.view.terminal.results import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.frontend.job import Job
    from schedc.solvers.common.search_settings import Improvement, LayoutsProgress, SearchSettings

LOG_EVERY_S = 5.0
"""A log gets a line no more often than this."""


class Live:
    """What is known now: the method at work, the best schedule and the bound."""

    def __init__(self, begin: Callable[[], None], show: Callable[[str], None]) -> None:
        """`begin` is called when the first method begins: the job is sound; `show` with the line whenever it changes."""
        self._begin, self._show = begin, show
        self._method, self._known, self._layouts = "", "", ""

    def running(self, method: str) -> None:
        """A method begins."""
        if not self._method:
            self._begin()
        self._method = method
        self._show(self._line())

    def improved(self, step: Improvement) -> None:
        """A better schedule or bound is known."""
        self._known = (
            f"{step.objective} {format_duration_ns(step.objective_ns)} by {step.found_by},"
            f" bound {format_duration_ns(step.lower_bound_ns)}, gap {step.gap:.2%}"
        )
        self._show(self._line())

    def layouts(self, known: LayoutsProgress) -> None:
        """Layouts were evaluated."""
        best = "" if known.objective_ns is None else f", best {format_duration_ns(known.objective_ns)}"
        self._layouts = f"; {known.layouts} layouts{best}, bound {format_duration_ns(known.lower_bound_ns)}"
        self._show(self._line())

    def told(self, settings: SearchSettings) -> SearchSettings:
        """The settings of a search that is shown here."""
        return replace(settings, report=self.improved, on_method=self.running, on_layouts=self.layouts)

    def _line(self) -> str:
        return f"{self._known or 'no schedule yet'}{self._layouts}; running {self._method}"


@contextmanager
def live(job: Job, settings: SearchSettings, *, hidden: bool) -> Iterator[Live]:
    """Show the work on a job until it ends."""
    if hidden:
        yield Live(lambda: None, lambda _: None)
        return
    errors = console(stderr=True)
    limits = settings.limits
    limit = f"{limits.time_s:g} s" if limits.deterministic is None else f"{limits.deterministic:g} units of work"
    what = "layout open" if job.open_layout is not None else f"{job.problem.num_ops} compute ops"
    first = f"{job.workload.name}: {what}, method {settings.method}, limit {limit}; Ctrl-C keeps the best plan so far"

    def begin() -> None:
        errors.print(first, soft_wrap=True)

    if not errors.is_terminal:
        write = log_lines(lambda line: errors.print(line, soft_wrap=True))
        yield Live(begin, lambda line: write(lambda: line))
        return
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("computing lower bounds", total=None)
        yield Live(begin, lambda line: bar.update(task, description=line))


def log_lines(write: Callable[[str], None]) -> Callable[[Callable[[], str]], None]:
    """Write a line with the seconds since now, unless the last one is too new."""
    begun = written = time.perf_counter()

    def show(line: Callable[[], str]) -> None:
        nonlocal written
        now = time.perf_counter()
        if now - written >= LOG_EVERY_S:
            written = now
            write(f"{now - begun:6.1f} s  {line()}")

    return show
