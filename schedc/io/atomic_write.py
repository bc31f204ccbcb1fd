"""Writing a file whole or not at all: a reader never sees half of it, and a failure leaves what was there before."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path


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
    return target, os.path.join(directory, f".schedc-{secrets.token_hex(8)}.tmp")


def _create(path: str) -> int:
    # os.open and not tempfile: the file is to have the permissions that the user's umask gives every new file
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
