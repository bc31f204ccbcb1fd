"""The processes of an emulation: `python -m schedc.runtime.emulation.server TETHER ANSWERS`, started by `schedc.runtime.emulation`.

Standard input: a pickled `RankRequest`. On the pipe whose descriptor is ANSWERS: pickled (rank, what) for each
thing that a rank has to say; what is the number of a run that has ended, a `RankResult`, or a `RankFailure`. This process
loads torch once and forks the ranks. TETHER is the descriptor of a pipe that closes when the caller ends, however it ends; all of
them then end with it.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe, wait
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from schedc.errors import SchedcError
from schedc.runtime.common.failure import TransferFailed
from schedc.runtime.emulation.rank import RankFailure, RankRequest, run_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOPBACK = "127.0.0.1"


def end_with(tether: int) -> None:
    """Kill this process and all that belong to it once nobody holds the other end of the pipe."""
    os.read(tether, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(arguments: Sequence[str]) -> None:
    """Run what standard input asks for."""
    tether, answers = int(arguments[0]), Connection(int(arguments[1]), readable=False)
    request: RankRequest = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    ranks = request.plan.problem.ranks
    listener = socket.create_server((LOOPBACK, 0), backlog=ranks)
    port = listener.getsockname()[1]
    readers = []
    for rank in range(ranks):  # before this process has threads, which a fork would lose
        reader, writer = Pipe(duplex=False)
        if os.fork() == 0:
            listener.close()
            _be_rank(rank, request, port, tether, writer)
        writer.close()
        readers.append(reader)
    threading.Thread(target=end_with, args=(tether,), daemon=True).start()
    store = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    running = set(range(ranks))
    while running:
        ready = wait([readers[rank] for rank in running])
        for rank in [rank for rank in running if readers[rank] in ready]:
            try:
                answer = readers[rank].recv()
            except EOFError:
                answer = RankFailure(reason="its process has ended", follows=False)
            answers.send((rank, answer))
            if not isinstance(answer, int):
                running.remove(rank)
    del store  # which the ranks need as long as one of them runs


def _be_rank(rank: int, request: RankRequest, port: int, tether: int, answers: Connection) -> None:
    """The life of a forked process."""
    threading.Thread(target=end_with, args=(tether,), daemon=True).start()
    warnings.simplefilter("ignore")
    try:
        timeout = timedelta(seconds=request.timeout_s)
        store = TCPStore(LOOPBACK, port, is_master=False, timeout=timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=request.plan.problem.ranks, timeout=timeout)
        answers.send(run_rank(rank, request, answers.send))
    except SchedcError as error:
        answers.send(RankFailure(reason=str(error), follows=isinstance(error, TransferFailed)))
    except Exception as error:  # a mistake of this program
        traceback.print_exc()
        answers.send(RankFailure(reason=f"{type(error).__name__}: {error}", follows=False))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
