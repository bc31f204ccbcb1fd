"""The journal: rows that survive any end of the process, torn lines, other files, and two processes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from schedc.errors import InvalidInput
from schedc.study.sweep.run import HEAD, Journal, journal_path
from schedc.study.task import CompileRow, Status

if TYPE_CHECKING:
    from pathlib import Path

ONE = CompileRow(status=Status.PLANNED, won_by="greedy", makespan_ns=5, gap=0.5, reproducible=True)
TWO = CompileRow(status=Status.CRASHED, error='died: "\n" ✗', attempts=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(tmp_path / "table.csv")


def written(path: Path, *answers: tuple[str, CompileRow]) -> bytes:
    with Journal(path) as journal:
        journal.append(answers)
    return path.read_bytes()


def test_what_is_appended_is_there_again(path: Path) -> None:
    assert path.name == "table.csv.journal"
    written(path, ("a", ONE), ("b", TWO))
    written(path, ("b", ONE))
    with Journal(path) as journal:
        assert journal.answers == {"a": ONE, "b": ONE}, "the last one counts"


def test_a_journal_cut_off_anywhere_keeps_its_whole_rows_and_goes_on(path: Path) -> None:
    whole = written(path, ("a", ONE), ("b", TWO))
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for length in {0, 1, *(end + more for end in ends for more in (-2, -1, 0, 1, 40) if end + more <= len(whole))}:
        path.write_bytes(whole[:length])
        with Journal(path) as journal:
            assert len(journal.answers) == max(0, sum(end <= length for end in ends) - 1), length
            journal.append([("c", ONE)])
        with Journal(path) as journal:
            assert journal.answers["c"] == ONE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"something else", "line 1: found no journal of a sweep, expected one that schedc wrote; remove the file"),
        (b"something else\n", "line 1: found no journal of a sweep"),
        (b"\n", "line 1: found no journal of a sweep"),
        (HEAD + b"{}\n", "line 2: found no row (Object missing required field `key`)"),
        (HEAD + b'{"key": "a", "answer": {"status": "fine"}}\n', "line 2: found no row (Invalid enum value 'fine'"),
    ],
)
def test_what_schedc_did_not_write_is_refused_and_kept(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as refused:
        Journal(path)
    assert message in str(refused.value)
    assert path.read_bytes() == content


def test_one_process_at_a_time_has_the_journal(path: Path) -> None:
    with Journal(path), pytest.raises(InvalidInput, match="another schedc sweep is writing it"):
        Journal(path)
    assert not path.exists(), "nothing is known"
    with Journal(path) as journal:
        journal.append([("a", ONE)])
    assert path.exists()


def test_a_journal_that_cannot_be_written_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(InvalidInput, match="cannot be written: Is a directory"):
        Journal(path)
