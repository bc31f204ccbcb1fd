"""Writing a file whole or not at all: a reader never sees half of it, and a failure leaves what stood there before."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path | str, content: bytes) -> None:
    """Write `content` to `path`, replacing what is there.

    It is written beside its target and then renamed over it, so the two must be on one file system, which the same directory
    guarantees. A symbolic link is followed: its target is replaced, not the link.

    Raises:
        InvalidInput: the directory does not exist, or the path cannot be written; says why.
    """
    target = os.path.realpath(path)
    directory = os.path.dirname(target)
    if not os.path.isdir(directory):
        raise InvalidInput(f"{path}: cannot be written: the directory {directory} does not exist; create it first")
    if os.path.exists(target) and not os.path.isfile(target):
        raise InvalidInput(f"{path}: cannot be written: found something that is not a regular file; expected a file or nothing")
    beside = os.path.join(directory, f".schedc-{secrets.token_hex(8)}.tmp")
    try:
        # os.open and not tempfile: the file is to have the permissions that the user's umask gives every new file
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
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
