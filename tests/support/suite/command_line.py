"""The command line as its users run it, in the process of the test."""

from __future__ import annotations

import shlex
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

import pytest

from schedc.cli.app import main

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Done:
    """What a run left behind."""

    returncode: int
    stdout: str
    stderr: str


def schedc(*arguments: object, width: int = 110) -> Done:
    """Run the command line in this process, on a terminal of this width that shows no colour."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        patch.setenv("COLUMNS", str(width))
        main([str(argument) for argument in arguments])
    code = ended.value.code
    return Done(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def run(command: str) -> int:
    """Run a line as a shell would read it, in this process; what it prints is left to pytest. Its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    return ended.value.code if isinstance(ended.value.code, int) else 0


def content(directory: Path) -> dict[str, bytes | None]:
    """All files with what they hold, hidden ones included; None for what is no regular file."""
    return {str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}
