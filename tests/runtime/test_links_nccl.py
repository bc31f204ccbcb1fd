"""Measuring a link over NCCL, on the fake device: it connects and measures, and no wait is without a limit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from runs.fake_device import FakeDevice, FakeNccl, FakeSide

from schedc.runtime.common.failure import NoAnswer, TransferFailed
from schedc.runtime.profiling.pairs import Agenda, Exchange, Wires, follow, lead, measured

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S, SHORT_S = 100.0, 0.2
SIZES = (64, 4096)
AGENDA = Agenda(pairs=((0, 1),), sizes=SIZES, repeats=2, warmup=1)


@contextmanager
def wires(timeout_s: float) -> Iterator[tuple[Wires, Wires]]:
    """Both ends of a pair whose connections make their communicators with the first transfer."""
    devices = FakeDevice(), FakeDevice()
    forth, back = (FakeNccl.pair(*devices, creates=True) for _ in range(2))
    connections: Any = (forth[0], back[0]), (back[1], forth[1])
    ends = [
        Wires(to_peer, from_peer, 1 - rank, torch.device("cpu"), timeout_s, FakeSide(devices[rank]))
        for rank, (to_peer, from_peer) in enumerate(connections)
    ]
    try:
        yield ends[0], ends[1]
    finally:
        for group in (*forth, *back):
            group.abort()
        for device in devices:
            device.end()


def connect(first: Wires, second: Wires) -> None:
    """Make the communicators of both ends."""
    with ThreadPoolExecutor(1) as pool:
        joins = pool.submit(second.connect, leads=False)
        first.connect(leads=True)
        joins.result(WAIT_S)


def both(first: Wires, second: Wires) -> tuple[list[Exchange], list[Exchange]]:
    """What each end has noted."""
    with ThreadPoolExecutor(2) as pool:
        follows = pool.submit(measured, second, SIZES, AGENDA, leads=False)
        return measured(first, SIZES, AGENDA, leads=True), follows.result(WAIT_S)


def test_both_connections_are_made_and_measured() -> None:
    """Each end's first call waits for the peer's: they must be on the same connection."""
    with wires(WAIT_S) as ends:
        noted, nothing = both(*ends)
    assert not nothing
    assert [(one.forth_bytes, one.back_bytes) for one in noted[::2]] == [(8, 8), (8, 8), (64, 8), (8, 64), (4096, 8), (8, 4096)]
    assert len(noted) == 12 and all(one.sent_ns < one.came_ns for one in noted)


@pytest.mark.parametrize("leads", [True, False])
def test_a_peer_that_never_connects(leads: bool) -> None:
    """NCCL's own wait has no limit: the communicators are ended, and the line names the peer."""
    with wires(SHORT_S) as ends:
        end: Any = ends[0 if leads else 1]
        with pytest.raises(TransferFailed, match=rf"^the link with rank {end.peer}: no answer in 0.2 s \(--timeout\)$"):
            measured(end, SIZES, AGENDA, leads=leads)
        assert end.to_peer.aborted and end.from_peer.aborted


@pytest.mark.parametrize("leads", [True, False])
def test_a_peer_that_falls_silent(leads: bool) -> None:
    """It is connected, and does nothing more: the host's wait for the device has a limit, too."""
    with wires(WAIT_S) as ends:
        connect(*ends)
        exchange = lead if leads else follow
        with pytest.raises(NoAnswer):
            exchange(replace(ends[0 if leads else 1], timeout_s=SHORT_S), SIZES, 1, 0)


def test_a_peer_that_ends() -> None:
    """What NCCL finds is said at once, not after the limit."""
    with wires(WAIT_S) as ends:
        connect(*ends)
        end: Any = ends[0]
        buffer = torch.zeros(1, dtype=torch.int64)
        coming = end.receive(buffer)
        end.from_peer.error = "remote process exited or there was a network error"
        with pytest.raises(RuntimeError, match="remote process exited"):
            end.finish(coming)
