"""A sweep, run: jobs of which nothing final is known go to whoever compiles them, and what comes back goes into the journal.

The journal is beside the table: what came of each job, one line of JSON each, on the disk before the next job's counts. So
whatever ends the command, a row is there whole or not at all. A last line without its end was being written, and is dropped. One
process at a time has the journal.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import closing, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from schedc.errors import InvalidInput
from schedc.study.executors import LocalExecutor, Rows, dask_executor, run_tasks
from schedc.study.task import CompileRow, Status

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path
    from types import TracebackType

    from schedc.study.sweep.jobs import Sweep

HEAD = b'{"format": "schedc.sweep", "version": 1}\n'
AGAIN = (Status.UNLIKE, Status.CRASHED, Status.TIMED_OUT)
"""What is tried again when the sweep is run again: the machine may have been the reason."""


class _Line(msgspec.Struct, frozen=True):
    key: str
    answer: CompileRow


def journal_path(table: Path) -> Path:
    """Where the journal of a table is."""
    return table.with_name(f"{table.name}.journal")


class Journal:
    """What is known of jobs, by key; as a context manager, the file is closed at the end of the block."""

    def __init__(self, path: Path) -> None:
        """Open it, made if it does not exist.

        Raises:
            InvalidInput: it cannot be read or written, is something else, or another process has it.
        """
        self._path = path
        self.answers: dict[str, CompileRow] = {}
        """The last answer of each key."""
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from error
        try:
            self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Journal:
        """The journal itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it, and leave nothing behind if nothing is known."""
        if not self.answers:
            self._path.unlink(missing_ok=True)
        os.close(self._file)

    def append(self, answers: Iterable[tuple[str, CompileRow]]) -> None:
        """Write what came of jobs, on the disk when this returns.

        Raises:
            InvalidInput: it cannot be written.
        """
        answers = tuple(answers)
        lines = b"".join(json.dumps({"key": key, "answer": asdict(answer)}).encode() + b"\n" for key, answer in answers)
        self._write(lines)
        self.answers.update(answers)

    def _read(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidInput(
                f"{self._path}: another schedc sweep is writing it; wait for its end, or name another table"
            ) from error
        with open(self._file, "rb", closefd=False) as file:
            content = file.read()
        *lines, torn = content.split(b"\n")
        if lines[:1] != [HEAD[:-1]] and not (not lines and HEAD.startswith(torn)):
            raise self._not_ours(1, "no journal of a sweep")
        if torn:
            os.ftruncate(self._file, len(content) - len(torn))
        if not lines:
            self._write(HEAD)
        for number, line in enumerate(lines[1:], start=2):
            try:
                read = msgspec.json.decode(line, type=_Line)
            except msgspec.DecodeError as error:
                raise self._not_ours(number, f"no row ({error})") from error
            self.answers[read.key] = read.answer

    def _not_ours(self, number: int, found: str) -> InvalidInput:
        return InvalidInput(
            f"{self._path}: line {number}: found {found}, expected one that schedc wrote; remove the file to begin the sweep anew"
        )

    def _write(self, content: bytes) -> None:
        try:
            while content:
                content = content[os.write(self._file, content) :]
            os.fsync(self._file)
        except OSError as error:
            raise InvalidInput(f"{self._path}: cannot be written: {error.strerror}") from error


def kept_keys(sweep: Sweep, journal: Journal) -> frozenset[str]:
    """The keys of the sweep's jobs that the journal answers for good."""
    rows = journal.answers
    return frozenset(job.key for job in sweep.jobs if job.key in rows and rows[job.key].status not in AGAIN)


def run(sweep: Sweep, journal: Journal, *, processes: int, cluster: str | None = None) -> Generator[Rows]:
    """Run the jobs that are not kept; gives keys and rows once the journal has them, and now and then nothing.

    Args:
        sweep: the jobs.
        journal: what is known of them.
        processes: how many jobs run at the same time on this machine.
        cluster: the address of Dask's scheduler; None: here.

    Raises:
        SchedcError: the cluster cannot be used, or the journal cannot be written.
    """
    kept = kept_keys(sweep, journal)
    tasks = {job.key: job.task for job in sweep.jobs if job.key not in kept}
    if not tasks:
        return
    here = min(processes, len(tasks))
    executing = nullcontext(LocalExecutor(here)) if cluster is None else dask_executor(cluster)
    with executing as executor, closing(run_tasks(tasks, executor)) as results:
        for rows in results:
            if rows:
                journal.append(rows)
            yield rows
