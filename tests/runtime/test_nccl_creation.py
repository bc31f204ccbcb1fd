"""A communicator that is ended while NCCL makes it, on the fake device: the host goes on, and nothing of it is left."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from runs.fake_device import FakeDevice, FakeLane, FakeNccl, FakeSide

from schedc.runtime.common.failure import ConnectionLost
from schedc.runtime.common.program import Wire
from schedc.runtime.transports import nccl
from schedc.runtime.transports.host_watch import HostWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.runtime.transports.base import Ends

WAIT_S, SHORT_S = 100.0, 0.05
WIRE = Wire(source=0, destination=1, name="send_next", receiver_name="recv_prev", transfers=(), messages=())


class Job:
    """A rank that connects, and the group of its peer, which is not there unless a test plays it."""

    def __init__(self, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.devices = FakeDevice(), FakeDevice()
        pair: Any = FakeNccl.pair(*self.devices, creates=True)
        self.own, self.peer = pair[rank], pair[1 - rank]
        self.lanes = [FakeLane.pair() for _ in range(2)]
        self.rank = rank
        self.watch = HostWatch()
        monkeypatch.setattr(nccl, "_nccl_group", lambda wire, groups: self.own)
        monkeypatch.setattr(nccl, "CudaSide", lambda _: FakeSide(self.devices[rank]))

    def connect(self, timeout_s: float) -> Ends:
        lanes = iter(self.lanes)
        groups: Any = SimpleNamespace(rank=self.rank, timeout_s=timeout_s, make=lambda _: next(lanes)[self.rank])
        return nccl.connect_nccl(WIRE, groups, device=torch.device("cpu"), watch=self.watch)


@pytest.fixture(params=[0, 1], ids=["sends", "receives"])
def job(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """At the end none of its threads is left: not the watch's, not one that ends a communicator, no stream."""
    before = set(threading.enumerate())
    job = Job(request.param, monkeypatch)
    yield job
    for group in (job.own, job.peer):
        group.abort()
    for device in job.devices:
        device.end()
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)
        assert not thread.is_alive(), thread.name


def test_a_communicator_whose_peer_comes_is_made(job: Job) -> None:
    """What the tests below rest on."""
    tensor = torch.zeros(nccl.HANDSHAKE.shape, dtype=nccl.HANDSHAKE.dtype)
    move: Callable[..., object] = job.peer.recv if job.rank == 0 else job.peer.send
    peer = threading.Thread(target=move, args=([tensor], job.rank, 0))
    peer.start()
    ends = job.connect(WAIT_S)
    peer.join(WAIT_S)
    assert not job.own.aborted
    ends.close()
    ends.ended(WAIT_S)
    assert job.own.aborted


def test_an_abort_ends_the_making_of_a_communicator(job: Job) -> None:
    """The first transfer waits for a peer that does not come, without a limit of NCCL's: the watch ends that within two of ours."""
    with pytest.raises(ConnectionLost, match="aborted"):
        job.connect(SHORT_S)
    assert job.own.begun.is_set() and job.own.aborted and not job.peer.begun.is_set()
    assert not job.watch._ends


def test_a_communicator_that_another_thread_closes_while_it_is_made(job: Job) -> None:
    """As when the pipe is closed: who makes it gets an error, and so does who uses it afterwards."""
    end = nccl.NcclTransport(job.own, FakeSide(job.devices[job.rank]))
    found: list[BaseException] = []

    def begin() -> None:
        try:
            end.receive(nccl.HANDSHAKE, 0)
        except ConnectionLost as error:
            found.append(error)

    making = threading.Thread(target=begin)
    making.start()
    assert job.own.begun.wait(WAIT_S) and end.under_way()
    end.close("the pipe is closed")
    making.join(WAIT_S)
    end.ended(WAIT_S)
    assert [str(error) for error in found] == ["NCCL communicator was aborted"]
    assert not end.under_way() and not end._pending
    with pytest.raises(ConnectionLost, match="the pipe is closed"):
        end.receive(nccl.HANDSHAKE, 0)


def test_an_abort_that_does_not_return_while_a_communicator_is_made(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host does not wait for it longer than for any: it warns, and goes on with what has failed."""
    monkeypatch.setattr(nccl, "ENDING_S", SHORT_S)
    job.own.others_abort.clear()
    with pytest.warns(RuntimeWarning, match="NCCL does not end a communicator"), pytest.raises(ConnectionLost, match="aborted"):
        job.connect(SHORT_S)
    job.own.others_abort.set()
