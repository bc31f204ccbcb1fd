"""The channels' work on a GPU, with threads for streams: who waits for whom, and for whom nobody waits."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic, sleep
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, strategies as st
from runs.fake_device import FakeDevice, FakeLane, FakeNccl, FakeSide
from suite.example_counts import examples

from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.failure import ConnectionLost, NoAnswer
from schedc.runtime.common.program import Wire
from schedc.runtime.transports.delegate import READ, TAG, DelegateReceiver, DelegateSender
from schedc.runtime.transports.gloo import GlooTransport, hang_up
from schedc.runtime.transports.host_watch import HostWatch
from schedc.runtime.transports.nccl import AHEAD, NcclTransport, _nccl_group, end_with_peer
from schedc.runtime.transports.streams import DeviceStaging

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 100.0
KIND = TensorMeta(torch.float32, (3,))


class Pair:
    """Two ranks with a device each, and the two ends of a wire."""

    def __init__(self) -> None:
        self.devices = FakeDevice(), FakeDevice()
        self.held = threading.Event()
        self.lanes: list[tuple[FakeLane, FakeLane]] = []
        self.ends: tuple[Any, Any] = (None, None)

    def compute(self, rank: int, work: Any) -> None:
        self.devices[rank].compute.put(work)

    def hold(self, rank: int) -> None:
        """Let a rank's compute stop here until `held` is set."""
        self.compute(rank, lambda: self.held.wait(WAIT_S))

    def computed(self, rank: int) -> None:
        """Wait until a rank has computed all."""
        self.devices[rank].compute.mark().synchronize()


@contextmanager
def nccl() -> Iterator[Pair]:
    pair = Pair()
    groups: Any = FakeNccl.pair(*pair.devices)
    sender, receiver = (NcclTransport(*end) for end in zip(groups, map(FakeSide, pair.devices), strict=True))
    pair.ends = sender, receiver
    with _ended(pair):
        yield pair


@contextmanager
def delegate(queues: int = 2) -> Iterator[Pair]:
    pair = Pair()
    pair.lanes = [FakeLane.pair() for _ in range(queues)]
    sending: Any = [lane for lane, _ in pair.lanes]
    receiving: Any = [lane for _, lane in pair.lanes]
    stagings = [DeviceStaging(FakeSide(device)) for device in pair.devices]
    pair.ends = DelegateSender(sending, stagings[0], "sends"), DelegateReceiver(receiving, stagings[1], "receives")
    with _ended(pair):
        yield pair


@contextmanager
def _ended(pair: Pair) -> Iterator[None]:
    try:
        yield
    finally:
        pair.held.set()
        for end in pair.ends:
            end.close()
        for device in pair.devices:
            device.end()


@pytest.mark.parametrize("channel", [nccl, delegate])
@examples(15, deadline=None)
@given(data=st.data())
def test_what_is_computed_before_is_sent_and_what_comes_is_computed_with(channel: Any, data: st.DataObject) -> None:
    """Both ranks issue all of a step without looking at the device, which does it whenever it does."""
    count = data.draw(st.integers(1, 6))
    ahead = data.draw(st.integers(1, count))
    with channel() as pair:
        seen: list[float] = []
        sent = []
        pair.hold(0)
        for number in range(count):
            tensor = torch.zeros(3)
            pair.compute(0, lambda tensor=tensor, number=number: tensor.fill_(number + 1))
            sent.append(pair.ends[0].send(tensor, number))
        incoming = [pair.ends[1].receive(KIND, number) for number in range(ahead)]
        pair.held.set()
        for number in range(count):
            if number + ahead < count:
                incoming.append(pair.ends[1].receive(KIND, number + ahead))
            value = incoming[number].wait(WAIT_S)
            pair.compute(1, lambda value=value: seen.append(value.sum().item()))
        for outgoing in sent:
            outgoing.wait(WAIT_S)
        for rank in range(2):
            pair.computed(rank)
        assert seen == [3.0 * (number + 1) for number in range(count)]


def test_memory_that_is_let_go_is_somebody_elses() -> None:
    """What the following tests rest on: at once in the order of its own stream, behind the work of the one it is lent to."""
    device = FakeDevice()
    side, held = FakeSide(device), threading.Event()
    seen: list[float] = []
    try:
        device.compute.put(lambda: held.wait(WAIT_S))
        for lent in (False, True):
            tensor = side.empty(KIND)
            address = device.memory.address(tensor).view(torch.float32)
            tensor.fill_(1.0)
            if lent:
                side.lend(tensor)
            device.compute.put(lambda address=address: seen.append(address.sum().item()))  # type: ignore[misc]
            del tensor
            side.mark().synchronize()
        held.set()
        device.compute.mark().synchronize()
    finally:
        held.set()
        device.end()
    assert str(seen) == "[nan, 3.0]"


@pytest.mark.parametrize("channel", [nccl, delegate])
@pytest.mark.parametrize("lends", [True, False])
def test_what_is_received_may_be_let_go_before_it_is_computed_with(channel: Any, lends: bool, monkeypatch: Any) -> None:
    """The host is far ahead: the device's memory is the compute's until that has read it. Without `lend` it would not be."""
    if not lends:
        monkeypatch.setattr(FakeSide, "lend", lambda self, tensor: None)
    with channel() as pair:
        seen: list[float] = []
        pair.hold(1)
        pair.ends[0].send(torch.ones(3), 0)
        value = pair.ends[1].receive(KIND, 0).wait(WAIT_S)
        address = pair.devices[1].memory.address(value).view(torch.float32)
        pair.compute(1, lambda: seen.append(address.sum().item()))
        del value
        side = pair.ends[1]._side if channel is nccl else pair.ends[1].staging._side
        side.mark().synchronize()
        pair.held.set()
        pair.computed(1)
        assert str(seen) == ("[3.0]" if lends else "[nan]")


@pytest.mark.parametrize("channel", [nccl, delegate])
@pytest.mark.parametrize("holds", [True, False])
def test_what_is_sent_may_be_let_go_before_it_is_read(channel: Any, holds: bool, monkeypatch: Any) -> None:
    """The device is slow to read it. Whoever sends holds the memory until then; without that it would be somebody else's."""
    if not holds:
        leave = DeviceStaging.leave
        monkeypatch.setattr(DeviceStaging, "leave", lambda self, tensor: leave(self, tensor)._replace(source=torch.empty(0)))
    with channel() as pair:
        incoming = pair.ends[1].receive(KIND, 0)
        side = pair.ends[0]._side if channel is nccl else pair.ends[0].staging._side
        side.stream.put(lambda: pair.held.wait(WAIT_S))
        outgoing = pair.ends[0].send(pair.devices[0].computed(2.0, KIND), 0)
        if not holds and channel is nccl:
            del outgoing
        pair.computed(0)  # and what it computes next is in the memory, if it may be
        pair.held.set()
        value = incoming.wait(WAIT_S)
        pair.computed(1)
        assert str(value.tolist()) == ("[2.0, 2.0, 2.0]" if holds else "[nan, nan, nan]")


def test_nccl_frees_what_it_has_sent_behind_the_read() -> None:
    """`wait` does not hold up the host: what is computed from then on, also in the same memory, comes behind it."""
    with nccl() as pair:
        pair.ends[0]._side.stream.put(lambda: pair.held.wait(WAIT_S))
        pair.ends[0].send(pair.devices[0].computed(2.0, KIND), 0).wait(WAIT_S)
        incoming = pair.ends[1].receive(KIND, 0)
        threading.Timer(0.02, pair.held.set).start()
        pair.computed(0)
        value = incoming.wait(WAIT_S)
        pair.computed(1)
        assert value.tolist() == [2.0] * 3


def test_nccl_blocks_nobody() -> None:
    """The host takes what has not been sent, and goes on; the receive waits for no compute of its rank."""
    with nccl() as pair:
        pair.hold(1)
        incoming = pair.ends[1].receive(KIND, 0)
        value = incoming.wait(WAIT_S)
        assert pair.devices[1].lent == [value.data_ptr()]
        pair.ends[0].send(torch.ones(3), 0)
        pair.ends[1].settle(WAIT_S)  # though the compute of rank 1 is blocked
        assert value.tolist() == [1.0] * 3
        pair.ends[0].settle(WAIT_S)


@pytest.mark.parametrize("culprit", [0, 1])
def test_nccl_ends_with_its_peer(culprit: int) -> None:
    """NCCL may leave a rank waiting for one that has given up, or has ended: a connection beside it tells, at once."""
    lines: Any = FakeLane.pair()
    with nccl() as pair:
        for end, line in zip(pair.ends, lines, strict=True):
            end_with_peer(end, line, "wire")
        pair.ends[1 - culprit].receive(KIND, 0)
        hang_up(lines[culprit])
        with pytest.raises(ConnectionLost, match="the other rank has given up this channel, or has ended"):
            pair.ends[1 - culprit].settle(WAIT_S)


def test_nccl_says_what_has_failed() -> None:
    """The device goes on after a failure, with garbage: the end of the step at the latest must tell."""
    with nccl() as pair:
        pair.ends[1].receive(KIND, 0)
        group = pair.ends[1]._group
        group.error = "remote process exited or there was a network error"
        group.aborted = True
        pair.ends[1]._side.mark().synchronize()
        with pytest.raises(ConnectionLost, match="network error"):
            pair.ends[1].settle(WAIT_S)
        with pytest.raises(ConnectionLost, match="aborted"):
            pair.ends[1].receive(KIND, 1)


def test_nccl_gives_up_in_time_and_ends_what_waits() -> None:
    """Closing ends the receive that its peer never sends for; otherwise the streams would not end, and nor would this test."""
    with nccl() as pair:
        pair.ends[1].receive(KIND, 0)
        with pytest.raises(NoAnswer):
            pair.ends[1].settle(0.01)


def test_nccl_closed_by_another_thread_while_the_step_ends() -> None:
    """As when the other end says that it has given up: the wait says so, whenever it happens, and nothing else goes wrong."""
    with nccl() as pair:
        pair.ends[1].receive(KIND, 0)
        mark = pair.ends[1]._pending[0]
        query = mark.query

        def closed_meanwhile() -> bool:
            pair.ends[1].close()
            return bool(query())

        mark.query = closed_meanwhile
        with pytest.raises(ConnectionLost, match="closed"):
            pair.ends[1].settle(WAIT_S)


def test_nccl_ends_its_communicators_together() -> None:
    """One may wait for the kernels of the other, which end when that one does: closing the first must not wait."""
    with nccl() as pair:
        first, second = (end._group for end in pair.ends)
        first.others_abort.clear()
        second.abort = lambda abort=second.abort: (first.others_abort.set(), abort())
        for end in pair.ends:
            end.close()
        for end in pair.ends:
            end.ended(WAIT_S)
        assert first.aborted and second.aborted


def test_nccl_says_which_communicator_does_not_end() -> None:
    with nccl() as pair:
        pair.ends[0]._group.others_abort.clear()
        pair.ends[0].close()
        with pytest.warns(RuntimeWarning, match="NCCL does not end a communicator"):
            pair.ends[0].ended(0.01)
        pair.ends[0]._group.others_abort.set()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), torch.AcceleratorError("device-side assert")])
def test_what_is_wrong_with_this_rank_is_not_said_of_its_peer(error: RuntimeError) -> None:
    with nccl() as pair:

        def fails(*_: Any) -> None:
            raise error

        pair.ends[0]._group.send = fails
        with pytest.raises(type(error), match=str(error)):
            pair.ends[0].send(torch.ones(3), 0)


def test_nccl_lets_the_host_run_only_so_far_ahead() -> None:
    """Each receive that the device has not come to holds a buffer: the host takes `AHEAD` of them and then waits for the device."""
    with nccl() as pair:
        pair.hold(1)
        for number in range(AHEAD + 1):
            pair.ends[0].send(torch.ones(3), number)
        for number in range(AHEAD):
            pair.ends[1].receive(KIND, number).wait(WAIT_S)
        with pytest.raises(NoAnswer):
            pair.ends[1].receive(KIND, AHEAD).wait(0.01)
        pair.held.set()
        assert pair.ends[1].receive(KIND, AHEAD + 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The watch's: it stands still but for what a test lets pass."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr("schedc.runtime.transports.host_watch.monotonic", lambda: clock.now_s)
    return clock


def test_a_host_that_is_blocked_by_the_device(clock: SimpleNamespace) -> None:
    """Nothing that has a limit is called: the watch ends the wires, so that the device goes on, and the next call says why."""
    watch = HostWatch()
    with nccl() as pair:
        pair.ends[1].watch(watch, 0.05)
        clock.now_s = 1.0  # between two steps
        while watch._heard_s < 1.0:
            sleep(0.001)
        incoming = pair.ends[1].receive(KIND, 0)
        incoming.wait(WAIT_S)
        clock.now_s = 2.0
        pair.computed(1)  # blocked: the compute waits for the receive
        with pytest.raises(ConnectionLost, match="in CUDA or in a stage"):
            pair.ends[1].settle(WAIT_S)


def test_a_host_that_is_blocked_while_it_connects(clock: SimpleNamespace) -> None:
    """NCCL waits for the peer without a limit, in the first call; ending the communicator ends that."""
    watch = HostWatch()
    with nccl() as pair:
        group = pair.ends[1]._group
        ended = threading.Event()
        group.abort = ended.set

        def connects(*_: Any) -> None:
            clock.now_s = 1.0
            assert ended.wait(WAIT_S)
            raise RuntimeError("ncclCommInitRank was aborted")

        group.recv = connects
        pair.ends[1].watch(watch, 0.05)
        with pytest.raises(ConnectionLost, match="was aborted"):
            pair.ends[1].receive(KIND, 0)
        with pytest.raises(ConnectionLost, match="in CUDA or in a stage"):
            pair.ends[1].receive(KIND, 0)


def test_a_host_that_waits_is_not_blocked(clock: SimpleNamespace) -> None:
    """Whenever the watch looks, ten limits have passed, and the host is heard again before it decides."""
    watch, looks = HostWatch(), 0
    with nccl() as pair:
        under_way = pair.ends[1].under_way

        def looked_at() -> bool:
            nonlocal looks
            looks += 1
            clock.now_s = float(looks)
            until_s = monotonic() + WAIT_S
            while watch._heard_s < looks and under_way() and monotonic() < until_s:
                sleep(0.001)
            if looks == 5:
                pair.ends[0].send(torch.ones(3), 0)
            return bool(under_way())

        incoming = pair.ends[1].receive(KIND, 0)
        pair.ends[1].under_way = looked_at
        pair.ends[1].watch(watch, 0.1)
        pair.ends[1].settle(WAIT_S)
        assert incoming.wait(WAIT_S).tolist() == [1.0] * 3
        assert looks >= 5


@pytest.mark.parametrize("rank", [3, 5])
def test_nccl_groups_leave_the_process_alone_and_the_compute_its_blocks(rank: int, monkeypatch: Any) -> None:
    """What they are made with is what `ProcessGroupNCCL` reads in its constructor; afterwards the job's own is there again."""
    made: list[Any] = []

    class Made:
        """Of PyTorch's, what its constructor is given."""

        class Options:
            def __init__(self) -> None:
                self.config = SimpleNamespace()

        def __init__(self, *given: Any) -> None:
            made.extend((given, {name: value for name, value in os.environ.items() if name.startswith("TORCH_NCCL_")}))

    monkeypatch.setattr(torch._C._distributed_c10d, "ProcessGroupNCCL", Made, raising=False)
    monkeypatch.setenv("TORCH_NCCL_ENABLE_MONITORING", "1")
    monkeypatch.delenv("TORCH_NCCL_DUMP_ON_TIMEOUT", raising=False)
    groups: Any = SimpleNamespace(rank=rank, store_of=lambda ranks: f"store of {ranks}")
    _nccl_group(Wire(source=5, destination=3, name="send", receiver_name="recv", transfers=(), messages=()), groups)
    (store, place, size, options), found = made
    assert (store, place, size) == ("store of (5, 3)", int(rank == 5), 2)
    assert options.config.max_ctas == 4 and options.is_high_priority_stream
    assert set(found.values()) == {"0"}
    assert {"ENABLE_MONITORING", "DUMP_ON_TIMEOUT", "RETHROW_CUDA_ERRORS", "ASYNC_ERROR_HANDLING"} <= {name[11:] for name in found}
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "1"
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in os.environ


def test_nothing_is_sent_for_a_tensor_without_elements() -> None:
    empty = TensorMeta(torch.bool, (0, 3))
    with nccl() as pair:
        incoming = pair.ends[1].receive(empty, 0)
        assert tuple(incoming.wait(WAIT_S).shape) == (0, 3)
        pair.ends[1].settle(WAIT_S)


def test_queues_overtake_each_other() -> None:
    """The first queue is blocked: what is in the second comes and is taken; then the first."""
    with delegate() as pair:
        pair.lanes[0][0].open.clear()
        incoming = [pair.ends[1].receive(KIND, number) for number in range(2)]
        sent = [pair.ends[0].send(torch.full((3,), number + 1.0), number) for number in range(2)]
        value = incoming[1].wait(WAIT_S)
        pair.computed(1)
        assert value.tolist() == [2.0] * 3
        with pytest.raises(NoAnswer):
            sent[0].wait(0.01)
        sent[1].wait(WAIT_S)
        pair.lanes[0][0].open.set()
        value = incoming[0].wait(WAIT_S)
        pair.computed(1)
        assert value.tolist() == [1.0] * 3


def test_the_delegate_reads_one_message_more_than_was_asked_for() -> None:
    """For each queue: so much of it is held without having been asked for, and no more; until something behind it is waited for."""
    with delegate(queues=2) as pair:
        sent = [pair.ends[0].send(torch.full((3,), float(number)), number) for number in range(8)]
        for outgoing in sent[:2]:
            outgoing.wait(WAIT_S)
        for outgoing in sent[2:]:
            with pytest.raises(NoAnswer):
                outgoing.wait(0.02)
        assert len(pair.ends[1]._arrived) == 2
        value = pair.ends[1].receive(KIND, 6).wait(WAIT_S)
        pair.computed(1)
        assert value.tolist() == [6.0] * 3


def test_the_delegate_sends_nothing_that_is_not_computed() -> None:
    with delegate() as pair:
        pair.hold(0)
        tensor = torch.zeros(3)
        pair.compute(0, lambda: tensor.fill_(4.0))
        pair.ends[0].send(tensor, 0)
        incoming = pair.ends[1].receive(KIND, 0)
        with pytest.raises(NoAnswer):
            incoming.wait(0.05)
        pair.held.set()
        value = incoming.wait(WAIT_S)
        pair.computed(1)
        assert value.tolist() == [4.0] * 3


def test_the_delegate_waits_for_no_compute() -> None:
    """What has come is on its way to the device though the compute there is blocked, and the host goes on."""
    with delegate() as pair:
        pair.hold(1)
        incoming = pair.ends[1].receive(KIND, 0)
        pair.ends[0].send(torch.ones(3), 0).wait(WAIT_S)
        value = incoming.wait(WAIT_S)
        landed = pair.ends[1].staging._side.mark()
        landed.synchronize()
        assert value.tolist() == [1.0] * 3
        assert pair.devices[1].lent == [value.data_ptr()]


def test_a_message_of_another_size() -> None:
    """The pipe has no such messages; if there were one, it would not be taken for a tensor."""
    with delegate() as pair:
        pair.ends[0].send(torch.ones(4), 0)
        with pytest.raises(Exception, match=r"the peer sent 16 bytes, expected 12, those of float32\[3\]"):
            pair.ends[1].receive(KIND, 0).wait(WAIT_S)


def test_closing_the_delegate_ends_all_waits() -> None:
    with delegate() as pair:
        incoming = pair.ends[1].receive(KIND, 0)
        pair.ends[1].close()
        with pytest.raises(ConnectionLost):
            incoming.wait(WAIT_S)
        with pytest.raises(ConnectionLost):
            pair.ends[1].receive(KIND, 1)
        pair.lanes[0][0].closed.wait(WAIT_S)
        with pytest.raises(ConnectionLost):
            pair.ends[0].send(torch.ones(3), 0).wait(WAIT_S)


@pytest.mark.parametrize("error", [torch.AcceleratorError("device-side assert"), ConnectionLost("the cable is cut")])
def test_the_delegates_threads_say_what_they_have_found(error: RuntimeError, monkeypatch: Any) -> None:
    """To whoever waits: a lost connection with its cause, and as such nothing that is not one."""

    def fails(*_: Any) -> None:
        raise error

    receive = GlooTransport.receive_into
    lanes = iter([fails])
    of_tag: dict[int, Any] = {
        READ: lambda: fails,
        TAG: lambda: next(lanes, receive),
    }  # the first queue that is read; all that are sent
    monkeypatch.setattr(
        GlooTransport, "receive_into", lambda end, buffer, tag: of_tag.get(tag, lambda: receive)()(end, buffer, tag)
    )
    with delegate(queues=1 if isinstance(error, ConnectionLost) else 2) as pair:
        for number in range(2):  # while it happens, and afterwards
            for rank in range(2):
                with pytest.raises(type(error), match=str(error)) as raised:
                    (pair.ends[1].receive(KIND, number) if rank else pair.ends[0].send(torch.ones(3), number)).wait(WAIT_S)
                assert error in (raised.value, raised.value.__cause__)


def test_the_fake_closes_as_gloo_does() -> None:
    """A wait that runs out of time closes the connection on both ends."""
    first, second = FakeLane.pair()
    with pytest.raises(RuntimeError, match="Timed out"):
        first.recv([torch.zeros(1)], 1, 0).wait(timedelta(milliseconds=2))
    with pytest.raises(RuntimeError, match="closed"):
        second.recv([torch.zeros(1)], 0, 0).wait(timedelta(seconds=9))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_staging_on_a_gpu() -> None:
    """Out and in again, on real streams: the bytes that come are those that were computed last."""
    from schedc.runtime.transports.streams import CudaSide

    device = torch.device("cuda", 0)
    staging = DeviceStaging(CudaSide(device))
    kind = TensorMeta(torch.bfloat16, (1024, 1024))
    for number in range(20):
        tensor = torch.randn(2048, 2048, device=device)
        for _ in range(10):
            tensor = tensor @ tensor / 2048
        tensor = torch.full(kind.shape, float(number), dtype=kind.dtype, device=device)
        parcel = staging.leave(tensor)
        del tensor
        assert parcel.ready is not None
        parcel.ready.synchronize()
        arrived = staging.landing(parcel.bytes.numel())
        arrived.copy_(parcel.bytes)
        value = staging.land(arrived, kind)()
        assert bool((value == number).all())
