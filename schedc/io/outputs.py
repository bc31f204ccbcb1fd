"""Where commands write: every output is tried before the work begins, and none may be an input or another output.

One helper for all programs. `-` is standard output, for the commands whose one result is a file.
"""

from __future__ import annotations

import os
import sys
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.io.atomic_write import check_target, write_atomically

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
