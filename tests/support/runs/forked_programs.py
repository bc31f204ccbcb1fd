"""Programs that run on every rank of a job, as a launcher would start them, but in processes that have torch already.

Nothing else is different: each is a process of its own with its arguments, environment, output and exit status.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rank_processes import forking

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
