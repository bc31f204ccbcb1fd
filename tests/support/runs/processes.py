"""Processes that are the ranks of a test: started once, given one function after another, ended with the test.

The functions that they run must be in a module of tests/support/runs, so that a child can import them.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import warnings
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext, ForkServerProcess
    from pathlib import Path

DEAD = "dead"
"""The result of a rank whose process has ended."""


class Refusal(str):
    """The result of a rank that has raised an error: its type and message."""

    notes: Sequence[str] = ()


class Ranks:
    """The processes, as the test sees them."""

    def __init__(self, connections: list[Connection], processes: Sequence[ForkServerProcess]) -> None:
        self._connections = connections
        self._processes = processes

    def ended(self) -> dict[int, int]:
        """The exit codes of the processes that have ended, by rank; less than 0: the signal that ended it."""
        return {rank: code for rank, each in enumerate(self._processes) if (code := each.exitcode) is not None}

    def run(
        self, function: Callable[..., Any], *given: Any, limit_s: float = 250, of: Sequence[int] | None = None, **options: Any
    ) -> list[Any]:
        """What `function(rank, *given, **options)` gives on each rank; a `Refusal` of an exception; `DEAD` of a process that ended.

        All ranks run it; `of` says whose results to wait for, None: all.
        """
        for connection in self._connections:
            connection.send((function, given, options))
        results: list[Any] = []
        for rank in range(len(self._connections)) if of is None else of:
            connection = self._connections[rank]
            try:
                came = connection.poll(limit_s)
                assert came, f"rank {rank} gave no result in {limit_s} s, those before it: {results}; ended: {self.ended()}"
                results.append(connection.recv())
            except (EOFError, ConnectionResetError):
                results.append(DEAD)
        return results


def gave_up() -> None:
    """Let a rank that waits `until_others_give_up` go on; for once, as the processes' store keeps it."""
    from torch.distributed.distributed_c10d import _get_default_store

    _get_default_store().set("gave up", "")


def until_others_give_up() -> None:
    """Be stuck for as long as all others wait."""
    from torch.distributed.distributed_c10d import _get_default_store

    _get_default_store().wait(["gave up"], timedelta(seconds=250))


def without_teller(said: str) -> str:
    """A refusal as the rank says it that has found it: where two find it, one may hear it from the other first."""
    return re.sub(r"^(\w+: )rank \d+: ", r"\1", said)


def forking(*others: str) -> ForkServerContext:
    """Where processes begin with torch imported: their server does so once, and has no threads that a fork could lose.

    `others` are further modules for it to import, if it does not run yet.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(
        ["schedc.runtime", "torch.fx.experimental.symbolic_shapes", "torch._dynamo", *others]
    )  # the first backward loads the latter
    return context


@contextmanager
def rank_processes(count: int, directory: Path, *imported: str, port: int | None = None) -> Iterator[Ranks]:
    """So many processes in one gloo group over the loopback interface; `directory` is for their meeting.

    `imported` are modules that they begin with. With a `port` they meet at the TCPStore there, as torchrun's do, and not in a file:
    a process that is killed while it writes leaves half an entry in a file, on which torch's FileStore reads without end.
    """
    context = forking(*imported)
    pairs = [context.Pipe() for _ in range(count)]
    processes = [
        context.Process(target=_serve, args=(rank, count, str(directory / "store"), port, child), daemon=True)
        for rank, (_, child) in enumerate(pairs)
    ]
    try:
        for process, (_, child) in zip(processes, pairs, strict=True):
            process.start()
            child.close()
        yield Ranks([parent for parent, _ in pairs], processes)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _serve(rank: int, count: int, file: str, port: int | None, connection: Connection) -> None:
    warnings.simplefilter("error")
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    gc.freeze()  # what the server has imported
    torch.set_num_threads(1)
    if port is None:
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=count)
    else:
        dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port, is_master=False), rank=rank, world_size=count)
    while True:
        function, given, options = connection.recv()
        try:
            result = function(rank, *given, **options)
        except Exception as error:
            result = Refusal(f"{type(error).__name__}: {error}")
            result.notes = getattr(error, "__notes__", [])
        connection.send(result)
