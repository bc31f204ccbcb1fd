"""Reading the bytes of an input file, whatever its format: regular files and pipes, up to a size.

Takes a path; gives the bytes. A device, a directory or something endless is refused, so that no path makes the program hang.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.io.location import one_line

if TYPE_CHECKING:
    from pathlib import Path

MOST_TEXT_BYTES = 64 << 20
"""The largest file that a person may have written: a job, a profile, a topology, a CSV."""

MOST_BYTES = 4 << 30
"""The largest file of a program: a plan, a trace."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_bytes(path: Path | str, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """The file's content, or what comes out of a pipe (`/dev/stdin`, or `<(…)` of a shell) until its end.

    Raises:
        InvalidInput: it cannot be read, is no file and no pipe, or has more than `most_bytes`.
    """
    try:
        # Without waiting: a pipe that nobody writes to would else hold the program here for as long as that lasts.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
                raise _refusal(path, "a device")
            os.set_blocking(file.fileno(), True)
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise _refusal(path, f"no readable file ({reason.lower()})") from error
    if not content and stat.S_ISFIFO(mode):
        raise _refusal(path, "a pipe that nobody has written to")
    if len(content) > most_bytes:
        from schedc.units import format_bytes

        raise _refusal(path, f"more than {format_bytes(most_bytes)}", f"at most {format_bytes(most_bytes)}")
    return content


def without_mark(content: bytes) -> bytes:
    """The content without the byte-order mark that some editors put before UTF-8."""
    return content.removeprefix(_BYTE_ORDER_MARK)


def _refusal(path: Path | str, found: str, expected: str = "a file") -> InvalidInput:
    return InvalidInput(f"{one_line(str(path))}: found {found}, expected {expected}")
