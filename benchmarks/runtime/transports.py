"""What the channels cost on the CPU: gloo against the delegate with 1 to 4 queues, between two processes over loopback.

    python benchmarks/runtime/transports.py [--repeats 15]

Latency: one message to and one back, halved. Throughput: 8 messages one way, from the first send to the last that is taken. Then
what Python's lock costs the delegate's helper threads: how long a message takes to a process whose main thread computes meanwhile.
The kinds take turns within one run, and ratios are of medians of that run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.program import Wire
from schedc.runtime.transports.delegate import connect_delegate
from schedc.runtime.transports.gloo import connect_gloo
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from schedc.runtime.transports.base import Ends

SIZES = [1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]
BURST = 8
WAIT_S = 120.0
THERE, BACK = (
    Wire(source=source, destination=1 - source, name="send", receiver_name="recv", transfers=(), messages=()) for source in range(2)
)
WAYS: dict[str, Callable[[Wire, Groups], Ends]] = {
    "gloo": connect_gloo,
    **{f"delegate, {queues}": partial(connect_delegate, queues=queues) for queues in range(1, 5)},
}


class Rank:
    """One of the two processes, with wires of all kinds both ways."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.groups = Groups(WAIT_S)
        self.ends = {way: (connect(THERE, self.groups), connect(BACK, self.groups)) for way, connect in WAYS.items()}

    def close(self) -> None:
        """Close all wires."""
        for there, back in self.ends.values():
            there.close()
            back.close()
        self.groups.close()

    def both(self) -> None:
        """Begin together."""
        self.groups.exchange(0)

    def latency_s(self, way: str, nbytes: int) -> float:
        """There and back, halved."""
        there, back = self.ends[way]
        kind = TensorMeta(torch.uint8, (nbytes,))
        message = torch.ones(nbytes, dtype=torch.uint8)
        self.both()
        if self.rank == 0:
            answer = back.data.receive(kind, 0)
            begun = time.perf_counter()
            sent = there.data.send(message, 0)
            answer.wait(WAIT_S)
            elapsed = time.perf_counter() - begun
            sent.wait(WAIT_S)
            return elapsed / 2
        value = there.data.receive(kind, 0).wait(WAIT_S)
        back.data.send(value, 0).wait(WAIT_S)
        return 0.0

    def throughput(self, way: str, nbytes: int) -> float:
        """Bytes a second of a burst."""
        there, back = self.ends[way]
        kind = TensorMeta(torch.uint8, (nbytes,))
        message = torch.ones(nbytes, dtype=torch.uint8)
        empty = TensorMeta(torch.uint8, (1,))
        self.both()
        if self.rank == 0:
            done = back.control.receive(empty, 1)
            begun = time.perf_counter()
            sent = [there.data.send(message, number) for number in range(BURST)]
            done.wait(WAIT_S)
            elapsed = time.perf_counter() - begun
            for outgoing in sent:
                outgoing.wait(WAIT_S)
            return BURST * nbytes / elapsed
        for incoming in [there.data.receive(kind, number) for number in range(BURST)]:
            incoming.wait(WAIT_S)
        back.control.send(torch.ones(1, dtype=torch.uint8), 1).wait(WAIT_S)
        return 0.0

    def to_busy_s(self, way: str, nbytes: int, load: str) -> float:
        """Until the peer, whose main thread does something else, has read a message."""
        there, _ = self.ends[way]
        kind = TensorMeta(torch.uint8, (nbytes,))
        message = torch.ones(nbytes, dtype=torch.uint8)
        self.both()
        if self.rank == 0:
            time.sleep(0.02)
            begun = time.perf_counter()
            there.data.send(message, 2).wait(WAIT_S)
            return time.perf_counter() - begun
        incoming = there.data.receive(kind, 2)
        until = time.perf_counter() + 0.15
        left = torch.ones(128, 128)
        while time.perf_counter() < until:
            if load == "sleeps":
                time.sleep(0.001)
            elif load == "runs small torch ops":
                left = left @ left / 128
            else:
                sum(range(1000))
        incoming.wait(WAIT_S)
        return 0.0


def serve(rank: int, store: str, connection: Connection) -> None:
    """One process: do what the parent says."""
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    own = Rank(rank)
    while (asked := connection.recv()) is not None:
        name, *arguments = asked
        connection.send(getattr(own, name)(*arguments))
    own.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the channels cost on the CPU.")
    parser.add_argument("--repeats", type=int, default=15, help="runs of each median; the largest messages get a third of them")
    repeats = parser.parse_args().repeats
    if repeats < 3:
        parser.error(f"--repeats {repeats}: expected at least 3")
    context = get_context("spawn")
    pairs = [context.Pipe() for _ in range(2)]
    with tempfile.TemporaryDirectory() as directory:
        children = [
            context.Process(target=serve, args=(rank, f"{directory}/store", child), daemon=True)
            for rank, (_, child) in enumerate(pairs)
        ]
        for process in children:
            process.start()

        def ask(*what: Any) -> float:
            for parent, _ in pairs:
                parent.send(what)
            first, _ = [parent.recv() for parent, _ in pairs]
            return float(first)

        report(ask, repeats)
        for parent, _ in pairs:
            parent.send(None)
        for process in children:
            process.join()


def medians(ask: Callable[..., float], what: str, nbytes: int, repeats: int, *more: Any) -> dict[str, float]:
    """By way, in turns; the first turn is not counted."""
    times = max(3, repeats // 3) if nbytes >= 1 << 24 else repeats
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(times + 1):
        for way, values in found.items():
            value = ask(what, way, nbytes, *more)
            if turn:
                values.append(value)
    return {way: statistics.median(values) for way, values in found.items()}


def report(ask: Callable[..., float], repeats: int) -> None:
    """All tables."""
    head = f"{'size':>8}  {'gloo':>12}" + "".join(f"{way:>14}" for way in list(WAYS)[1:])
    print(f"latency, and how many times gloo's\n{head}")
    for nbytes in SIZES:
        found = medians(ask, "latency_s", nbytes, repeats)
        base = found["gloo"]
        rest = "".join(f"{found[way] / base:>13.2f}×" for way in list(WAYS)[1:])
        print(f"{format_bytes(nbytes):>8}  {base * 1e6:>9.0f} µs{rest}", flush=True)
    print(f"throughput of {BURST} messages, and how many times gloo's\n{head}")
    for nbytes in SIZES:
        found = medians(ask, "throughput", nbytes, repeats)
        base = found["gloo"]
        rest = "".join(f"{found[way] / base:>13.2f}×" for way in list(WAYS)[1:])
        print(f"{format_bytes(nbytes):>8}  {base / 1e9:>7.2f} GB/s{rest}", flush=True)
    print("until a message of 1 MiB is read, while the reader's main thread")
    for load in ("sleeps", "runs small torch ops", "runs Python alone"):
        found = medians(ask, "to_busy_s", 1 << 20, repeats, load)
        shown = ", ".join(f"{way} {seconds * 1e3:.2f} ms" for way, seconds in found.items())
        print(f"  {load}: {shown}", flush=True)


if __name__ == "__main__":
    main()
