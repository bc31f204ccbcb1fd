"""Processes that begin with torch imported, as the ranks of other tests do: programs on every rank of a job, and emulations.

Nothing else is different: each is a process of its own with its arguments, standard input and output, environment and exit status.
"""

from __future__ import annotations

import io
import os
import runpy
import socket
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, BinaryIO

from runs.processes import forking

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest


@dataclass(frozen=True, slots=True)
class Done:
    """How a process ended, and what it printed."""

    status: int
    stdout: str
    stderr: str


def run_on_ranks(
    program: str, arguments: Sequence[str], ranks: int, directory: Path, *, folder: Path | None = None, limit_s: float = 240
) -> list[Done]:
    """Run a program with a process for each rank; what became of each.

    Args:
        program: the name of a module that `python -m` runs, or the path of a script, which ends in `.py`.
        arguments: those of the program.
        ranks: how many, in the variables that torch reads.
        directory: where the processes' output goes, to files.
        folder: the current directory of the processes; None: any.
        limit_s: after how many seconds they are ended; a process that was has a negative status.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outputs = [[directory / f"{name}-{port}-{rank}.txt" for name in ("stdout", "stderr")] for rank in range(ranks)]
    context = forking()
    processes = [
        context.Process(target=_run, args=(program, list(arguments), rank, ranks, port, outputs[rank], folder), daemon=True)
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(limit_s)
    finally:
        for process in processes:
            process.kill()
            process.join()
    texts = [[path.read_text(encoding="utf-8") for path in paths] for paths in outputs]
    for path in (path for paths in outputs for path in paths):
        path.unlink()
    return [Done(process.exitcode or 0, *said) for process, said in zip(processes, texts, strict=True)]


def _run(program: str, arguments: list[str], rank: int, ranks: int, port: int, outputs: list[Path], folder: Path | None) -> None:
    if folder is not None:
        os.chdir(folder)
    for stream, path in ((1, outputs[0]), (2, outputs[1])):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream)
        os.close(file)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


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
