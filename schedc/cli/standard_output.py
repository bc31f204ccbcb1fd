"""Standard output that says in one line that it takes no more (a full disk, say), where Python's own ends in a traceback."""

from __future__ import annotations

import os
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING

from schedc.errors import SchedcError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["OutputLost", "standard_output"]


class OutputLost(SchedcError):
    """Standard output cannot be written; says why."""


class _Output(FileIO):
    """Writes to a file descriptor. After the first failure everything is thrown away: that one has been told."""

    lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        if not self.lost:
            try:
                return super().write(data)
            except OSError as error:
                self.lost = True
                raise OutputLost(f"standard output: cannot be written: {error.strerror}") from error
        return len(memoryview(data))


def standard_output() -> TextIOWrapper:
    """A text stream to this process's standard output, in place of `sys.stdout`. What it cannot encode becomes a question mark.

    Raises:
        OutputLost: from every write or flush that fails first.
    """
    descriptor, encoding = 1, "utf-8"
    if sys.stdout is not None:
        descriptor, encoding = sys.stdout.fileno(), sys.stdout.encoding
    else:  # closed by the caller: its number is taken, so that no file which is opened later gets what is printed
        os.dup2(os.open(os.devnull, os.O_RDONLY), descriptor)
    raw = _Output(descriptor, "wb", closefd=False)
    return TextIOWrapper(BufferedWriter(raw), encoding, errors="replace", line_buffering=raw.isatty())
