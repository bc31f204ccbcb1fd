"""The runner: instances and methods in, one row for each pair out, one pair after the other, each in a process of its own.

A method that cannot, crashes, or has to be killed is a row that says so, not the end of the run. A process of its own makes
the peak memory the pair's.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.io.child import ChildDied, TookTooLong
from schedc.io.outputs import csv_bytes, write_atomically
from schedc.solvers.common.base import SearchSettings
from schedc.solvers.driver.registry import check_method
from schedc.study.executors import Asker
from schedc.study.task import GRACE_S, CompileRow, CompileTask, ProblemSource, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from schedc.solvers.common.base import Limits
    from schedc.study.bench.instances import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """What one method made of one instance."""

    instance: Instance
    method: str
    answer: CompileRow

    @property
    def ratio(self) -> float | None:
        """The objective over the best comparable published value; None where one of the two is missing."""
        published = self.instance.published_best()
        if published is None or self.answer.objective_ns is None:
            return None
        return self.answer.objective_ns / published[1]


def run(instances: Sequence[Instance], methods: Sequence[str], *, limits: Limits) -> Iterator[BenchRow]:
    """A row for each instance and method, instance by instance, as soon as it is known.

    Raises:
        InvalidInput: a method's name or options are wrong.
    """
    for method in methods:
        check_method(method)
    for instance in instances:
        for method in methods:
            yield BenchRow(instance=instance, method=method, answer=_answer(instance, method, limits))


def split_methods(text: str) -> tuple[str, ...]:
    """The methods of a comma-separated list; commas inside braces belong to a method's options.

    Raises:
        InvalidInput: one of them is empty, or is a duplicate.
    """
    methods = tuple(part.strip() for part in re.split(r",(?![^{]*\})", text))
    if "" in methods:
        raise InvalidInput(f"methods {text!r}: found an empty name; expected names separated by commas, as in 1f1b,auto")
    twice = [method for index, method in enumerate(methods) if method in methods[:index]]
    if twice:
        raise InvalidInput(f"methods {text!r}: {twice[0]} is a duplicate; name each method once")
    return methods


def write_rows(path: Path | str, rows: Iterable[BenchRow]) -> None:
    """Write the rows as CSV: plain numbers, nanoseconds and bytes, an empty field where there is none; there is at least one.

    Raises:
        InvalidInput: the file cannot be written; says why.
    """
    columns: list[dict[str, object]] = []
    for row in rows:
        answer = row.answer
        published_by, published_ns = row.instance.published_best() or ("", None)
        columns.append(
            {
                "instance": row.instance.name,
                "method": row.method,
                "won_by": answer.won_by,
                "objective": row.instance.problem.objective,
                "objective_ns": answer.objective_ns,
                "makespan_ns": answer.makespan_ns,
                "bound_ns": answer.bound_ns,
                "bound": answer.bound,
                "gap": answer.gap,
                "seconds": answer.seconds,
                "peak_memory_bytes": answer.peak_memory_bytes,
                "published_by": published_by,
                "published_ns": published_ns,
                "ratio": row.ratio,
                "why_not": answer.error,
            }
        )
    write_atomically(path, csv_bytes([columns[0], *(each.values() for each in columns)]))


def _answer(instance: Instance, method: str, limits: Limits) -> CompileRow:
    """The row of a fresh process, or how it failed to give one."""
    limit_s = limits.time_s
    kill_after_s = None if limit_s is None else 2 * limit_s + GRACE_S
    source = ProblemSource(problem=instance.problem, settings=SearchSettings(method=method, limits=limits))
    with closing(Asker()) as asker:
        try:
            row = asker.ask(CompileTask(source=source, workers=limits.workers, kill_after_s=kill_after_s))
        except TookTooLong:
            return CompileRow(status=Status.TIMED_OUT, error=f"killed after {kill_after_s:g} s, its time limit being {limit_s:g} s")
        except ChildDied as end:
            return CompileRow(status=Status.CRASHED, error=f"crashed, {end}")
    if row.status is Status.PLANNED:
        return row
    return replace(row, error=row.error.removeprefix(f"{instance.problem.name}: "), seconds=None)  # the row names the instance
