"""What it costs to know what has come without waiting for it: ping-pong between two processes, watched for and waited for.

A rank that chooses has a thread of each wire that waits for its receives, and is woken by it (`schedc.runtime.execution.arrivals`).
Half of a round trip, the least of two medians; and the processor time of a process while it waits for a message for a second.

Run it as `python benchmarks/runtime/arrivals.py [--rounds 300]`; it takes half a minute. Exit status 1: waiting costs more than 5 %
of a core, or the thread adds more than a millisecond.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from schedc.ir.ops import Kind, Op
from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.program import Message, Wire
from schedc.runtime.execution.arrivals import Arrivals
from schedc.runtime.execution.channels import TAGS
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SIZES = (4 << 10, 64 << 10, 1 << 20)
IDLE_S = 1.0


def wire_of(source: int, rounds: int) -> Wire:
    """A wire from this rank to the other."""
    ops = tuple(Op(Kind.F, source, at) for at in range(rounds))
    messages = tuple(Message(False, source, 1 - source, at, source) for at in range(rounds))
    return Wire(source=source, destination=1 - source, name="send", receiver_name="recv", transfers=ops, messages=messages)


def ping_pong(rank: int, nbytes: int, rounds: int, watched: bool, groups: Groups) -> tuple[float, float]:
    """Half of a round trip in µs, the median; the processor time of this process while one message takes `IDLE_S`, in seconds."""
    arrivals, kind, ends = Arrivals(), TensorMeta(torch.uint8, (nbytes,)), {}
    for source in (0, 1):
        wire = wire_of(source, rounds + 1)
        plain = connect_gloo(wire, groups)
        ends[source] = arrivals.around(None)(wire, plain) if watched else plain
    into, there, back = wire_of(1 - rank, rounds + 1), ends[rank].data, ends[1 - rank].data
    tensor, took_us, spent_s = torch.zeros(nbytes, dtype=torch.uint8), [], 0.0

    def take(at: int) -> None:
        incoming = back.receive(kind, at * TAGS)
        if watched:
            with arrivals.changed:
                assert arrivals.changed.wait_for(lambda: arrivals.has_come(into, at), 60)
        incoming.wait(60)

    for at in range(rounds + 1):
        groups.exchange(None)
        begun_s, busy_s = time.perf_counter(), time.process_time()
        if rank == 1:
            take(at)
            time.sleep(IDLE_S if at == rounds else 0)
        sent = there.send(tensor, at * TAGS)
        if rank == 0:
            take(at)
        sent.wait(60)
        took_us.append((time.perf_counter() - begun_s) / 2 * 1e6)
        spent_s = time.process_time() - busy_s
    return statistics.median(took_us[:-1]), spent_s


def be_rank(rank: int, store: str, rounds: int, answers: Connection) -> None:
    """One of the two."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    groups = Groups(60)
    found: list[Any] = []
    for nbytes in SIZES:
        found.append([ping_pong(rank, nbytes, rounds, watched, groups) for watched in (False, True, False, True)])
    groups.exchange(None)
    answers.send(found)
    groups.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What it costs to watch for arrivals.")
    parser.add_argument("--rounds", type=int, default=300, help="round trips of each row")
    rounds = parser.parse_args().rounds
    context = get_context("spawn")
    answers, theirs = context.Pipe(duplex=False)
    silent, unheard = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        pair = [context.Process(target=be_rank, args=(rank, store, rounds, (theirs, unheard)[rank])) for rank in (0, 1)]
        for process in pair:
            process.start()
        found = answers.recv()
        silent.recv()
        for process in pair:
            process.join()
    bad = False
    print("message    waited for   watched      adds   processor time while it waits")
    for nbytes, runs in zip(SIZES, found, strict=True):
        plain, watched = (min(run[0] for run in runs[at::2]) for at in (0, 1))
        spent = min(run[1] for run in runs[1::2]) / IDLE_S
        bad |= spent > 0.05 or watched - plain > 1000
        print(f"{nbytes >> 10:4d} KiB  {plain:8.0f} µs  {watched:8.0f} µs  {watched - plain:+5.0f} µs   {spent:.2%} of a core")
    sys.exit(bad)


if __name__ == "__main__":
    main()
