"""Where commands write: every output is tried before the work begins, and none may be an input or another output.

Each is written whole or not at all: a reader never sees half of it, and a failure leaves what was there before. One helper for all
programs. `-` is standard output, for the commands whose one result is a file.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STANDARD = Path("-")


def is_standard(path: Path | None) -> bool:
    """Whether the path means standard output; a file of that name needs its absolute path."""
    return path == STANDARD


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Iterable[Path], *, standard: bool = False, as_json: bool = False
) -> None:
    """Refuse outputs that could not be written, or whose writing would destroy something that the command reads or writes.

    Args:
        outputs: what each option names; None: the option was not given.
        inputs: all files that the command reads.
        standard: whether an output may be `-`, standard output.
        as_json: whether the command prints an object on standard output, which then can take nothing else.

    Raises:
        InvalidInput: names the path and what to do.
    """
    given = {option: path for option, path in outputs.items() if path is not None}
    for option, path in given.items():
        if is_standard(path):
            if not standard:
                file = "a file; standard output has the tables (a file of that name needs its absolute path)"
                raise InvalidInput(f"{option}: found -, expected {file}")
            if as_json:
                raise InvalidInput(f"{option}: found - beside --json, and both write to standard output; expected one of them")
    files = {option: path for option, path in given.items() if not is_standard(path)}
    for path in files.values():
        check_target(path)
    for read in inputs:
        for path in files.values():
            if _same(path, read):
                raise InvalidInput(f"{path}: cannot be written: this command reads it as {read}; name another file")
    for (one, path), (other, again) in combinations(files.items(), 2):
        if _same(path, again):
            raise InvalidInput(f"{path}: cannot be written: both {one} and {other} name it; name two files")


def write_output(path: Path, content: bytes) -> None:
    """Write the file, whole or not at all, or to standard output.

    Raises:
        InvalidInput: the file cannot be written.
    """
    if is_standard(path):
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        write_atomically(path, content)


def _same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, through whatever links, or would if it existed."""
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def write_atomically(path: Path | str, content: bytes) -> None:
    """Write `content` to `path`, replacing what is there.

    It is written beside its target and then renamed over it, so the two must be on one file system, which the same directory
    guarantees. A symbolic link is followed: its target is replaced, not the link.

    Raises:
        InvalidInput: the directory does not exist, or the path cannot be written; says why.
    """
    target, beside = _places(path)
    try:
        with open(_create(beside), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException as error:  # an interrupt from the keyboard must not leave the file behind either
        with suppress(OSError):
            os.unlink(beside)
        if isinstance(error, OSError):
            raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from error
        raise


def check_target(path: Path | str) -> None:
    """Try whether `write_atomically` could write to `path`, and leave nothing behind.

    Raises:
        InvalidInput: it could not; says why.
    """
    target, beside = _places(path)
    try:
        if os.path.lexists(target) and not os.access(target, os.W_OK):
            raise InvalidInput(f"{path}: cannot be written: the file is write-protected; name another, or remove it first")
        os.close(_create(beside))
        os.unlink(beside)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from error


def _places(path: Path | str) -> tuple[str, str]:
    """The file that is to be replaced, and a new one beside it."""
    target = os.path.realpath(path)
    directory = os.path.dirname(target)
    if not os.path.isdir(directory):
        what = "is not a directory" if os.path.exists(directory) else "does not exist; create it first"
        raise InvalidInput(f"{path}: cannot be written: the directory {directory} {what}")
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:  # a name too long, say
        raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from error
    if mode is not None and not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "something that is not a regular file"
        raise InvalidInput(f"{path}: cannot be written: found {what}; expected a file or nothing")
    return target, os.path.join(directory, f".schedc-{os.urandom(8).hex()}.tmp")


def _create(path: str) -> int:
    # os.open and not tempfile: the file is to have the permissions that the user's umask gives every new file
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def csv_bytes(rows: Iterable[Iterable[object]]) -> bytes:
    """The rows as CSV, an empty cell for None."""
    import csv  # here, as every command loads this module and few write a table

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
