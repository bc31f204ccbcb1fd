"""Injected delays against those asked for (CrossPipe, appendix F.2): latency, occupancy, and a trunk that two senders share.

Processes of this machine over gloo, one for each rank, with the delays that the runtime injects. Latency: ping-pong; the time from
each send to the moment at which its receiver has the message, on the host's one clock. Occupancy: messages of several sizes back to
back over links whose bandwidth makes them last as asked; the time from the first send to the last arrival, by message. Trunk: the
same with two senders, to two receivers. The first line of each kind is the channel alone, without delay: what it takes runs beside
the injected delay, which can be met only where the channel is faster; other cases count as not possible. Latencies are medians of
the rounds. At most 2 % of error are required.

Run it as `python benchmarks/emulation/injection.py [--rounds 20] [--before-others]`; it takes a minute, and exits with status 1 if
the requirement is not met. With `--before-others` the processes run as those of an emulation do, and the machine's load hardly
shows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from schedc.ir.network import Link
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import Problem, Stage

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.transports.base import Transport

MS = 1_000_000
DELAYS_NS = (1 * MS, 3 * MS, 10 * MS, 30 * MS, 100 * MS)
SIZES_BYTES = (4, 1 << 16, 1 << 20)
RANKS = 4
"""0 and 1 send to 2 and 3."""
PAIRS = ((0, 2), (1, 3))
REQUIRED = 0.02
TIMEOUT_S = 120.0


class Case(NamedTuple):
    """One setting."""

    what: str
    size_bytes: int
    """Of one message."""
    asked_ns: int

    @property
    def bytes_per_second(self) -> int | None:
        """The bandwidth that makes a message last as asked, to a byte per second."""
        return round(self.size_bytes * 1e9 / self.asked_ns) if self.what != "latency" and self.asked_ns else None

    @property
    def exactly_ns(self) -> int:
        """What the case asks for, with that bandwidth."""
        rate = self.bytes_per_second
        return -(-self.size_bytes * 1_000_000_000 // rate) if rate else self.asked_ns


def cases() -> list[Case]:
    """All settings."""
    found = [Case("latency", 4, asked_ns) for asked_ns in (0, *DELAYS_NS)]
    for what in ("occupancy", "trunk"):
        found += [Case(what, size_bytes, asked_ns) for size_bytes in SIZES_BYTES for asked_ns in (0, *DELAYS_NS)]
    return found


def problem_of(case: Case) -> Problem:
    """Ranks whose links are what the case asks for, both ways."""
    stage = Stage(
        rank=0,
        forward_ns=(1,),
        backward_input_ns=(1,),
        backward_weight_ns=(1,),
        backward_ns=(2,),
        message_bytes=case.size_bytes,
        gradient_message_bytes=case.size_bytes,
    )
    return Problem(
        name="injection",
        ranks=RANKS,
        microbatches=1,
        stages=(stage,),
        paths=((0,),),
        path_of=(0,),
        links=tuple(
            Link(
                source=source,
                destination=destination,
                latency_ns=case.asked_ns if case.what == "latency" else 0,
                bytes_per_second=case.bytes_per_second,
                trunk="shared" if case.what == "trunk" and source < destination else None,
            )
            for pair in PAIRS
            for source, destination in (pair, pair[::-1])
        ),
        memory_limit_bytes=(None,) * RANKS,
    )


def run_case(case: Case, rounds: int, groups: Groups) -> list[int]:
    """What this rank finds: for latency, when it sent and had each message; else when the first was sent, or each was there."""
    from schedc.runtime.common.program import Message, Wire
    from schedc.runtime.emulation.injected import Injection
    from schedc.runtime.transports.gloo import connect_gloo

    injection = Injection(problem_of(case), groups)
    ends: dict[bool, Transport] = {}
    for pair in PAIRS:
        for source, destination in (pair, pair[::-1]):
            if groups.rank in (source, destination):
                wire = Wire(
                    source=source,
                    destination=destination,
                    name="send",
                    receiver_name="recv",
                    transfers=(Op(Kind.F, 0, 0),),
                    messages=(Message(False, 0, 1, 0, 0),),
                )
                ends[groups.rank == source] = injection.wrap(wire, connect_gloo(wire, groups)).data
    groups.exchange(None)
    if case.what == "latency":
        return ping_pong(ends[False], ends[True], rounds) if groups.rank in PAIRS[0] else []
    if groups.rank in (PAIRS[0] if case.what == "occupancy" else (*PAIRS[0], *PAIRS[1])):
        return back_to_back(ends[False], ends[True], case.size_bytes, rounds, groups.rank < 2)
    return []


def ping_pong(incoming: Transport, outgoing: Transport, rounds: int) -> list[int]:
    """Rank 0 sends first; the times of its sends and takes in turn, of its peer's takes and sends in turn."""
    import torch
    import torch.distributed as dist

    from schedc.runtime.common.boundary import TensorMeta

    begins = dist.get_rank() == 0
    ball, kind, times = torch.zeros(1), TensorMeta(torch.float32, (1,)), []
    for _ in range(rounds):
        expected = incoming.receive(kind, 0)
        if not begins:
            expected.wait(TIMEOUT_S)
            times.append(perf_counter_ns())
        times.append(perf_counter_ns())
        sent = outgoing.send(ball, 0)
        if begins:
            expected.wait(TIMEOUT_S)
            times.append(perf_counter_ns())
        sent.wait(TIMEOUT_S)
    return times


def back_to_back(incoming: Transport, outgoing: Transport, size_bytes: int, rounds: int, sends: bool) -> list[int]:
    """Send all messages at once, and say when; or take them, and say when each was there."""
    import torch

    from schedc.runtime.common.boundary import TensorMeta

    if sends:
        message = torch.zeros(size_bytes, dtype=torch.uint8)
        begin_ns = perf_counter_ns()
        for sent in [outgoing.send(message, 0) for _ in range(rounds)]:
            sent.wait(TIMEOUT_S)
        return [begin_ns]
    kind, times = TensorMeta(torch.uint8, (size_bytes,)), []
    for expected in [incoming.receive(kind, 0) for _ in range(rounds)]:
        expected.wait(TIMEOUT_S)
        times.append(perf_counter_ns())
    return times


def measured_ns(case: Case, times: list[list[int]]) -> tuple[float, float, float]:
    """The delay found, by what each rank says; and the least and largest of the rounds."""
    if case.what == "latency":
        first, second = times[0], times[2]
        there = [second[at] - first[at] for at in range(0, len(first), 2)]
        back = [first[at] - second[at] for at in range(1, len(first), 2)]
        delays: list[float] = [*there, *back]
        return statistics.median(delays), min(delays), max(delays)
    arrivals = sorted(time_ns for of_rank in times[2:] for time_ns in of_rank)
    begin_ns = min(time_ns for of_rank in times[:2] for time_ns in of_rank)
    gaps = [after - before for before, after in pairwise([begin_ns, *arrivals])]
    return statistics.mean(gaps), min(gaps), max(gaps)


def be_rank(rank: int, store: str, rounds: int, before_others: bool, answers: Connection) -> None:
    """The life of a process."""
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.emulation.waiting import keep_sharp

    torch.set_num_threads(1)
    if before_others:
        keep_sharp()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    for case in cases():
        groups = Groups(TIMEOUT_S)
        found = run_case(case, rounds, groups)
        everybodys = groups.exchange(found)
        groups.close()
        if rank == 0:
            answers.send(everybodys)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Injected delays against those asked for.")
    parser.add_argument("--rounds", type=int, default=20, help="messages of each case")
    parser.add_argument("--before-others", action="store_true", help="run before other processes, where the system allows it")
    arguments = parser.parse_args()
    table = Table(title="Delays, asked for and found", title_justify="left", box=None)
    for header in ("what", "message bytes", "asked ms", "found ms", "least ms", "most ms", "error"):
        table.add_column(header, justify="left" if header == "what" else "right")
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    listener, answers = context.Pipe(duplex=False)
    errors: list[float] = []
    alone_ns = 0.0
    with tempfile.TemporaryDirectory() as directory:
        store = str(Path(directory) / "store")
        processes = [
            context.Process(target=be_rank, args=(rank, store, arguments.rounds, arguments.before_others, answers), daemon=True)
            for rank in range(RANKS)
        ]
        for process in processes:
            process.start()
        answers.close()
        for case in cases():
            found, least, most = measured_ns(case, listener.recv())
            said = ""
            if not case.asked_ns:
                alone_ns = found
            elif case.asked_ns < 2 * alone_ns:
                said = "not possible"
            else:
                errors.append(abs(found / case.exactly_ns - 1))
                said = f"{found / case.exactly_ns - 1:+.2%}"
            table.add_row(
                case.what,
                str(case.size_bytes),
                f"{case.exactly_ns / MS:.3f}" if case.asked_ns else "channel alone",
                *(f"{value / MS:.3f}" for value in (found, least, most)),
                said,
            )
        for process in processes:
            process.join()
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    console.print(table)
    console.print("not possible: the channel alone takes half of the time or more")
    console.print(f"error: mean {statistics.mean(errors):.2%}, largest {max(errors):.2%}; required: at most {REQUIRED:.0%} each")
    sys.exit(int(max(errors) > REQUIRED))


if __name__ == "__main__":
    main()
