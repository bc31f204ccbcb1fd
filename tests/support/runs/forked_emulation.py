"""Emulations whose server begins with torch imported, as the ranks of other tests do; `forked_server` in place of a new program.

Nothing else is different: the server is a process of its own with its arguments, standard input, environment and process group.
"""

from __future__ import annotations

import io
import os
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, BinaryIO

from rank_processes import forking

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


def fork_emulations(patch: pytest.MonkeyPatch) -> None:
    """Have `emulate` fork its server from the process that has torch, instead of starting a program that imports it."""
    patch.setattr("schedc.runtime.emulation.emulate.subprocess", _Subprocess)


class _ForkedServer:
    """What `emulate` uses of a `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        pass_fds: Sequence[int],
        process_group: int,
        env: dict[str, str],
    ) -> None:
        assert command[:2] == [sys.executable, "-c"] and "emulation.rank import serve" in command[2]
        assert command[3:] == [str(fd) for fd in pass_fds]
        assert (stdin, stdout, process_group) == (_Subprocess.PIPE, 2, 0)
        request, asked = os.pipe()
        begun, begins = os.pipe()
        given = [Connection(fd) for fd in (request, begins, *(os.dup(fd) for fd in pass_fds))]
        self._process = forking().Process(target=_serve, args=(given, env), daemon=True)
        self._process.start()
        for connection in given:
            connection.close()
        self.stdin: BinaryIO = io.FileIO(asked, "w")
        assert os.read(begun, 1), "it has a process group of its own now"
        os.close(begun)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def wait(self) -> None:
        self._process.join()


class _Subprocess:
    """What `emulate` uses of the module `subprocess`."""

    PIPE = -1
    Popen = _ForkedServer


def _serve(given: list[Connection], env: dict[str, str]) -> None:
    from schedc.runtime.emulation.rank import serve

    request, begins, *passed = (connection.fileno() for connection in given)
    os.setpgid(0, 0)
    os.write(begins, b"1")
    os.close(begins)
    os.environ.clear()
    os.environ.update(env)
    os.dup2(request, 0)
    sys.stdin = os.fdopen(0)
    serve([str(fd) for fd in passed])
