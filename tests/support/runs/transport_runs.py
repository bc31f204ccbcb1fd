"""What rank processes run in the tests of transports and links: one wire between ranks 0 and 1, and measured pairs."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from runs import pipeline_runs
from schedc.ir.ops import Kind, Op
from schedc.runtime.common.boundary import BoundaryMeta, TensorMeta
from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.program import Message, Wire
from schedc.runtime.execution.channels import Receiver, Sender
from schedc.runtime.profiling.pairs import Wires, measure_links
from schedc.runtime.session import loading
from schedc.runtime.training.beside import Writer
from schedc.runtime.transports.base import Ends, only
from schedc.runtime.transports.delegate import connect_delegate
from schedc.runtime.transports.gloo import Completion, GlooTransport, connect_gloo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from schedc.ir.plan import Plan
    from schedc.runtime.profiling.pairs import Agenda, LinkMeasurement
    from schedc.runtime.transports.base import Connect

WIRE = Wire(source=0, destination=1, name="send_next", receiver_name="recv_prev", transfers=(), messages=())
WAIT_S = 100.0


def connect(way: str, groups: Groups, queues: int = 2) -> Ends:
    """The ends of the wire."""
    ways: dict[str, Connect] = {"gloo": connect_gloo, "delegate": partial(connect_delegate, queues=queues)}
    return ways[way](WIRE, groups)


def connecting_timeouts(rank: int, timeout_s: float) -> list[tuple[float, float]]:
    """Of each group, the last that of checkpoints beside steps: the timeout that gloo connects with, and that of later waits."""
    real: Any = dist.ProcessGroupGloo
    given = list[tuple[Any, float]]()

    class Noted(real):  # type: ignore[misc]
        def __init__(self, store: Any, own: int, size: int, timeout: timedelta) -> None:
            super().__init__(store, own, size, timeout)
            given.append((self, timeout.total_seconds()))

    with patch.object(dist, "ProcessGroupGloo", Noted), patch.object(distributed_c10d, "ProcessGroupGloo", Noted):
        groups = Groups(timeout_s)
        groups.make((0, 1))
        writer = Writer(timeout_s)
    times = [(connecting_s, group.options._timeout.total_seconds()) for group, connecting_s in given]
    writer.close()
    groups.close()
    return times


@contextmanager
def wired(way: str, queues: int = 2, timeout_s: float = WAIT_S) -> Iterator[Ends]:
    """The ends, closed afterwards, when both ranks are through; no thread is left."""
    before = set(threading.enumerate())
    groups = Groups(timeout_s)
    ends = connect(way, groups, queues)
    try:
        yield ends
        groups.exchange(0)
    finally:
        ends.close()
        groups.close()
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not left, f"threads are left: {left}"


def payload(number: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """What transfer `number` carries."""
    return (torch.arange(torch.Size(shape).numel()).reshape(tuple(shape)) + 7 * number).to(dtype)


def exchange(
    rank: int,
    way: str,
    transfers: Sequence[tuple[int, torch.dtype, tuple[int, ...]]],
    script: Sequence[Sequence[tuple[str, int, float]]],
    queues: int = 2,
    wait_s: float = WAIT_S,
) -> list[Any]:
    """Send and receive by a script.

    Args:
        rank: which.
        way: the kind of channel.
        transfers: tag, dtype and shape of each.
        script: of each rank, what it does: ("send" | "done" | "post" | "take" | "sleep", transfer, seconds).
        queues: of the delegate.
        wait_s: the limit of each wait.

    Returns:
        The transfers that came wrong.
    """
    wrong = []
    with wired(way, queues) as ends:
        under_way: dict[int, Any] = {}
        for what, number, seconds in script[rank]:
            if what == "sleep":
                time.sleep(seconds)
                continue
            tag, dtype, shape = transfers[number]
            if what == "send":
                under_way[number] = ends.data.send(payload(number, dtype, shape), tag)
            elif what == "done":
                under_way.pop(number).wait(wait_s)
            elif what == "post":
                under_way[number] = ends.data.receive(TensorMeta(dtype, shape), tag)
            else:
                value = under_way.pop(number).wait(wait_s)
                expected = payload(number, dtype, shape)
                if value.dtype != dtype or not torch.equal(value, expected):
                    wrong.append(number)
    return wrong


def end_in_the_middle(rank: int, way: str, how: str, culprit: int, timeout_s: float) -> list[Any]:
    """One rank ends, closes or stops while the other goes on: its first error, at which transfer, and how long that took.

    `timeout_s` is that of the waits from then on.
    """
    said: list[Any] = []
    groups = Groups(WAIT_S)
    ends = connect(way, groups)
    kind = TensorMeta(torch.float32, (4,))
    if rank == 0:
        first: Any = ends.data.send(torch.ones(4), 0)
    else:
        first = ends.data.receive(kind, 0)
    first.wait(WAIT_S)
    groups.exchange(0)
    if rank == culprit:
        if how in pipeline_runs.ENDS:
            pipeline_runs.ENDS[how]()
        ends.close()
        groups.close()
        return []
    for number in range(1, 9):
        begun = time.monotonic()
        try:
            large = torch.ones(1 << 22)  # more than the system takes before its receiver is there
            waits: Any = ends.data.send(large, number) if rank == 0 else ends.data.receive(kind, number)
            waits.wait(timeout_s)
        except (ConnectionLost, NoAnswer) as error:
            said = [type(error).__name__, number, time.monotonic() - begun]
            break
    ends.close()
    groups.close()
    return said


def die_in_a_transfer(rank: int, way: str, culprit: int) -> str:
    """One rank is killed while a large tensor is under way: what the other says.

    Rank 0 sends two and waits as at the end of a step; the boundary's shape is known when the second goes.
    """
    transfers = tuple(Op(Kind.F, 0, microbatch) for microbatch in range(2))
    messages = tuple(Message(False, 0, 1, microbatch, 0) for microbatch in range(2))
    wire = replace(WIRE, transfers=transfers, messages=messages)
    groups = Groups(600.0)
    ends = connect(way, groups)
    sender, receiver = Sender(wire, ends, BoundaryMeta(), 600.0), Receiver(wire, ends, BoundaryMeta(), 600.0)
    completion = Completion(groups.all, [1 - rank])
    large = torch.ones(1 << 25)

    def transfer(at: int) -> None:
        if rank == 0:
            sender.send(at, (large,))
            groups.store.set(f"sent {at}", "")
        else:
            receiver.take(at, Op(Kind.F, 1, at))

    def die() -> None:
        groups.store.wait(["sent 1"])
        time.sleep(0.02)
        pipeline_runs.ENDS["kill"]()

    completion.begin()
    if rank == 1:
        receiver.begin()
    transfer(0)
    groups.exchange(0)
    if rank == culprit:
        threading.Thread(target=die, daemon=True).start()
    said = "nothing"
    try:
        transfer(1)
        completion.hear(600.0)
    except TransferFailed as error:
        said = str(error)
    ends.close()
    groups.close()
    return said


def train_without_tags(rank: int, plan: Plan) -> dict[str, Any]:
    """`pipeline_runs.train` over gloo that, like NCCL, matches sends and receives by their order alone."""

    def connection(*_: object) -> Any:
        def connected(wire: Wire, groups: Groups) -> Ends:
            ends = connect_gloo(wire, groups)
            return ends._replace(data=_Untagged(groups.make((wire.source, wire.destination))))

        return only(connected)

    with patch.object(loading, "connection", connection):
        return pipeline_runs.train(rank, plan)


class _Untagged(GlooTransport):
    """All tensors have the same tag."""

    def send(self, tensor: torch.Tensor, tag: int) -> Any:
        return super().send(tensor, 0)

    def receive(self, kind: TensorMeta, tag: int) -> Any:
        return super().receive(kind, 0)


def measure(rank: int, agenda: Agenda, timeout_s: float = 60.0) -> tuple[LinkMeasurement, ...]:
    """Measure the links of the agenda's pairs."""
    control = dist.new_group(backend="gloo")
    return measure_links(agenda, control=control, backend="gloo", device=torch.device("cpu"), timeout_s=timeout_s)


def measure_without(rank: int, agenda: Agenda, culprit: int, timeout_s: float) -> tuple[LinkMeasurement, ...]:
    """`measure`, with one rank that ends while its pair measures."""
    if rank != culprit:
        return measure(rank, agenda, timeout_s)
    sends = 0

    def send(wires: Wires, message: torch.Tensor) -> dist.Work:
        nonlocal sends
        sends += 1
        if sends > 5:
            os._exit(1)
        return whole(wires, message)

    whole = Wires.send
    with patch.object(Wires, "send", send):
        return measure(rank, agenda, timeout_s)
