"""The command line as its users run it, in the process of the test."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO

import pytest

from schedc.cli.app import main

__all__ = ["Done", "schedc"]


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
