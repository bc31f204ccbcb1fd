"""A sweep, run: jobs of which nothing final is known go to whoever compiles them, and what comes back goes into the journal.

The journal is beside the table: what came of each job, one line of JSON each, on the disk before the next job's counts. So
whatever ends the command, a row is there whole or not at all. A last line without its end was being written, and is dropped. One
process at a time has the journal.

The table has one row for each job, in the order of the sweep, as CSV or Parquet by the name's ending. Columns: what the sweep says
of the job, then the fields of its `CompileRow`, each of its own type. The column of a setting is one of numbers, of true and false,
or of text. Where values are lists or of several kinds, they are JSON; text stays as it is.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import closing, nullcontext
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import msgspec

from schedc.errors import InvalidInput
from schedc.io.outputs import csv_bytes, write_atomically
from schedc.study.executors import LocalExecutor, Rows, dask_executor, run_tasks
from schedc.study.task import CompileRow, Status

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from schedc.study.sweep.jobs import Sweep

HEAD = b'{"format": "schedc.sweep", "version": 1}\n'
AGAIN = (Status.UNLIKE, Status.CRASHED, Status.TIMED_OUT)
"""What is tried again when the sweep is run again: the machine may have been the reason."""
ENDINGS = (".csv", ".parquet")
_TYPES = {"int | None": "int64", "int": "int64", "float | None": "double", "bool | None": "bool"}
"""By the annotation of an answer's field; text otherwise."""


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

    `processes` jobs run at the same time, on this machine or on the `cluster`, which is the address of Dask's scheduler.

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


def check_format(path: Path) -> None:
    """Refuse a table whose format is unknown.

    Raises:
        InvalidInput: its name has another ending.
    """
    if path.suffix not in ENDINGS:
        raise InvalidInput(f"-o: found {path.name!r}, expected a name that ends with {' or '.join(ENDINGS)}")


def write_table(path: Path, sweep: Sweep, answers: Mapping[str, CompileRow]) -> int:
    """Write the rows of the jobs of which something is known, whole or not at all; the path's ending says the format.

    Returns:
        The number of rows.

    Raises:
        InvalidInput: the file cannot be written.
    """
    known = [(job, answers[job.key]) for job in sweep.jobs if job.key in answers]
    columns = {name: _uniform([job.columns.get(name) for job, _ in known]) for name in sweep.columns}
    columns |= {field.name: [getattr(answer, field.name) for _, answer in known] for field in fields(CompileRow)}
    if path.suffix == ".csv":
        rows = zip(*columns.values(), strict=True)
        cells = ([str(each).lower() if isinstance(each, bool) else each for each in row] for row in rows)
        write_atomically(path, csv_bytes([columns, *cells]))
    else:
        write_atomically(path, _parquet(columns))
    return len(known)


def _uniform(values: Sequence[object]) -> list[Any]:
    """The values, all numbers, all true or false, or all text; None where there is none."""
    kinds = {type(value) for value in values if value is not None}
    if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in values):
        kinds.add(object)  # no column of numbers has room for it
    if len(kinds) <= 1 and kinds <= {bool, int, float, str}:
        return list(values)
    if kinds <= {int, float}:
        return [None if value is None else float(str(value)) for value in values]
    return [value if value is None or isinstance(value, str) else json.dumps(value, default=str) for value in values]


def _parquet(columns: Mapping[str, Sequence[Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    types = {field.name: _TYPES.get(str(field.type), "string") for field in fields(CompileRow)}
    arrays = {
        name: pyarrow.array(values, type=types.get(name) or (None if any(v is not None for v in values) else "string"))
        for name, values in columns.items()
    }
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(arrays), sink)
    return bytes(sink.getvalue())
