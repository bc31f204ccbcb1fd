"""Standard output and standard error that may be full or closed, where Python's own end in a traceback.

Standard output then says so in one line; standard error is silent.
"""

from __future__ import annotations

import codecs
import os
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from schedc.errors import SchedcError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PLAIN = "schedc-plain"
"""The name of the error handler for characters that a stream's encoding lacks: one plain character replaces each."""

_PLAIN = dict(zip("·─├┤▁▂▃▄▅▆▇█◀→×–…“”µ\u03bc", '.-||.:-=+*#@<>x-.""uu', strict=True))


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error(PLAIN, _plain)


class OutputLost(SchedcError):
    """Standard output cannot be written; says why."""


class _Output(FileIO):
    """Writes to a file descriptor. After the first failure everything is thrown away: that one has been reported."""

    lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        if not self.lost:
            try:
                return super().write(data)
            except OSError as error:
                self.lost = True
                self._fail(error)
        return len(memoryview(data))

    def _fail(self, error: OSError) -> None:
        raise OutputLost(f"standard output: cannot be written: {error.strerror}") from error


class _Errors(_Output):
    """Where no message can be shown, the exit status has to do: a message is no reason to lose the work."""

    def _fail(self, error: OSError) -> None:
        pass


def standard_output() -> TextIOWrapper:
    """A text stream to this process's standard output, in place of `sys.stdout`. What it cannot encode becomes plain (`PLAIN`).

    Raises:
        OutputLost: from every write or flush that fails first.
    """
    return _stream(_Output, sys.stdout, 1)


def standard_error() -> TextIOWrapper:
    """The same for standard error, in place of `sys.stderr`; where that is closed or full, what is written is thrown away."""
    return _stream(_Errors, sys.stderr, 2)


def _stream(kind: type[_Output], stream: TextIO | None, descriptor: int) -> TextIOWrapper:
    encoding = "utf-8"
    if stream is not None:
        descriptor, encoding = stream.fileno(), stream.encoding
    else:  # closed by the caller: its number is taken, so that no file which is opened later gets what is printed
        os.dup2(os.open(os.devnull, os.O_RDONLY), descriptor)
    raw = kind(descriptor, "wb", closefd=False)
    return TextIOWrapper(BufferedWriter(raw), encoding, errors=PLAIN, line_buffering=raw.isatty() or kind is _Errors)
