"""Standard output that says in one line that it takes no more (a full disk, say), where Python's own ends in a traceback."""

from __future__ import annotations

import codecs
import os
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING

from schedc.errors import SchedcError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["PLAIN", "OutputLost", "standard_output"]

PLAIN = "schedc-plain"
"""The name of the error handler for characters that a stream's encoding lacks: one plain character stands for each."""

_PLAIN = dict(zip("·─├┤▁▂▃▄▅▆▇█◀→×–…“”µ\u03bc", '.-||.:-=+*#@<>x-.""uu', strict=True))


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error(PLAIN, _plain)


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
    """A text stream to this process's standard output, in place of `sys.stdout`. What it cannot encode becomes plain (`PLAIN`).

    Raises:
        OutputLost: from every write or flush that fails first.
    """
    descriptor, encoding = 1, "utf-8"
    if sys.stdout is not None:
        descriptor, encoding = sys.stdout.fileno(), sys.stdout.encoding
    else:  # closed by the caller: its number is taken, so that no file which is opened later gets what is printed
        os.dup2(os.open(os.devnull, os.O_RDONLY), descriptor)
    raw = _Output(descriptor, "wb", closefd=False)
    return TextIOWrapper(BufferedWriter(raw), encoding, errors=PLAIN, line_buffering=raw.isatty())
