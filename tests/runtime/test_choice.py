"""Which channels a pipe gets, from what its ranks run on; and what is refused, in the same words on all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from schedc.errors import InvalidInput, SchedcError, Unsupported
from schedc.runtime.transports.base import Hardware
from schedc.runtime.transports.choice import (
    TransportRequest,
    check_requests,
    connection,
    hardware_of,
    stage_device,
    ways,
)
from schedc.runtime.transports.gpus import missing_settings, serial_setting, warn_of_serial
from schedc.runtime.transports.streams import CudaSide

CPU = Hardware(device="cpu")
FIRST = Hardware(device="cuda:0", gpu="GPU-1", nccl=True)
SAME = Hardware(device="cuda:0", gpu="GPU-1", nccl=True)
SECOND = Hardware(device="cuda:0", gpu="GPU-2", nccl=True)
"""In another process, or on another host, the second may have the first's name."""
BARE = Hardware(device="cuda:1", gpu="GPU-3")
SERIAL = Hardware(device="cuda:0", gpu="GPU-4", nccl=True, serial="CUDA_LAUNCH_BLOCKING=1")


@pytest.mark.parametrize(
    ("source", "destination", "expected"),
    [
        (CPU, CPU, ("gloo",)),
        (FIRST, SECOND, ("nccl", "delegate")),
        (FIRST, SAME, ("delegate",)),
        (FIRST, BARE, ("delegate",)),
        (BARE, FIRST, ("delegate",)),
        (SERIAL, FIRST, ("delegate",)),
        (FIRST, SERIAL, ("delegate",)),
    ],
)
def test_auto(source: Hardware, destination: Hardware, expected: tuple[str, ...]) -> None:
    assert ways("auto", source, destination) == expected


def check(channels: Any, *ranks: Hardware, queues: Any = 2) -> None:
    requests = [TransportRequest(channels=channels, queues=queues, hardware=hardware) for hardware in ranks]
    check_requests(requests, [(0, 1), (1, 0)])


@pytest.mark.parametrize(
    ("channels", "ranks"),
    [
        ("auto", (CPU, CPU)),
        ("gloo", (CPU, CPU)),
        ("delegate", (CPU, CPU)),
        ("auto", (FIRST, SECOND)),
        ("nccl", (FIRST, SECOND)),
        ("nccl", (FIRST, SECOND, SAME)),
        ("delegate", (FIRST, SAME)),
        ("auto", (FIRST, SAME)),
        ("auto", (BARE, BARE)),
        ("auto", (FIRST, SERIAL)),
    ],
)
def test_accepted(channels: str, ranks: tuple[Hardware, ...]) -> None:
    check(channels, *ranks)


@pytest.mark.parametrize(
    ("channels", "ranks", "kind", "said"),
    [
        ("nccl", (CPU, CPU), InvalidInput, "channels='nccl' carries tensors of GPUs, rank 0's stages are on the CPU"),
        ("nccl", (FIRST, SAME), InvalidInput, "ranks 0 and 1 have the same GPU"),
        ("nccl", (FIRST, BARE), Unsupported, "rank 1's PyTorch is built without NCCL"),
        ("nccl", (FIRST, SERIAL), Unsupported, "channels='nccl': rank 1 has CUDA_LAUNCH_BLOCKING=1, with which a receive"),
        ("gloo", (FIRST, SECOND), InvalidInput, "channels='gloo' carries tensors of the CPU, rank 0's stages are on a GPU"),
        ("auto", (FIRST, CPU), Unsupported, "rank 1's stages are on the CPU, rank 0's on a GPU"),
        ("rdma", (CPU, CPU), InvalidInput, "channels='rdma'; expected one of 'auto', 'nccl', 'gloo', 'delegate'"),
    ],
)
def test_refused(channels: str, ranks: tuple[Hardware, ...], kind: type[SchedcError], said: str) -> None:
    with pytest.raises(kind) as error:
        check(channels, *ranks)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("environment", "serial"),
    [
        ({}, None),
        ({"CUDA_LAUNCH_BLOCKING": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}, None),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "CUDA_LAUNCH_BLOCKING=1"),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "CUDA_DEVICE_MAX_CONNECTIONS=1"),  # as Megatron sets it
    ],
)
def test_settings_that_serialize_a_gpu(environment: dict[str, str], serial: str | None) -> None:
    assert serial_setting(environment) == serial
    if serial is not None:
        with pytest.warns(RuntimeWarning, match=f"found {serial}, with which NCCL may deadlock: tensors go through the host"):
            warn_of_serial(serial, stacklevel=1)


def test_each_wire_has_a_stream() -> None:
    requests = [TransportRequest(channels="auto", queues=2, hardware=hardware) for hardware in (FIRST, SECOND)]
    check_requests(requests, [(0, 1)] * 32)
    with pytest.raises(Unsupported, match="rank 0 has 33 wires, each with a CUDA stream of its own, of which PyTorch has 32"):
        check_requests(requests, [(0, 1)] * 33)


def test_no_two_wires_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch gives its 32 streams in turn, to whoever asks, so the next may be one that a wire has."""

    class Stream:
        made = 0

        def __init__(self, _: torch.device) -> None:
            self.cuda_stream = Stream.made % 32
            Stream.made += 1

    compute = SimpleNamespace(cuda_stream=99)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: compute)
    device = torch.device("cuda", 7)
    sides = [CudaSide(device) for _ in range(20)]
    Stream.made += 15  # of others
    sides += [CudaSide(device) for _ in range(12)]
    assert len({side._stream.cuda_stream for side in sides}) == 32
    with pytest.raises(Unsupported, match="cuda:7: more than 32 wires"):
        CudaSide(device)
    freed = sides.pop(5)._stream.cuda_stream
    assert CudaSide(device)._stream.cuda_stream == freed


def test_queues() -> None:
    with pytest.raises(InvalidInput, match="queues=0; expected at least 1"):
        check("auto", CPU, CPU, queues=0)
    for given in (2.5, "3", True):
        with pytest.raises(InvalidInput, match=f"queues={given!r}; expected a whole number, at least 1"):
            check("delegate", CPU, CPU, queues=given)
    for channels, ranks in (("gloo", (CPU, CPU)), ("nccl", (FIRST, SECOND))):
        with pytest.raises(
            InvalidInput, match=f"queues=9: the delegate's, which channels='{channels}' leaves out; leave queues out"
        ):
            check(channels, *ranks, queues=9)
    for channels in ("auto", "delegate"):
        check(channels, CPU, CPU, queues=9)


GOOD = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER", "TORCH_NCCL_ENABLE_MONITORING": "0"}


@pytest.mark.parametrize(
    ("environment", "wires", "job_has_nccl", "expected"),
    [
        ({}, 0, True, None),
        (GOOD, 4, True, None),
        ({**GOOD, "CUDA_DEVICE_MAX_CONNECTIONS": "9"}, 4, True, None),
        (
            {**GOOD, "CUDA_DEVICE_MAX_CONNECTIONS": "8"},
            4,
            True,
            "CUDA_DEVICE_MAX_CONNECTIONS=8, expected CUDA_DEVICE_MAX_CONNECTIONS=32;",
        ),
        (
            {**GOOD, "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            1,
            True,
            "CUDA_DEVICE_MAX_CONNECTIONS=1, expected CUDA_DEVICE_MAX_CONNECTIONS=32;",
        ),
        ({**GOOD, "CUDA_DEVICE_MAX_CONNECTIONS": "32"}, 40, True, None),
        ({"CUDA_MODULE_LOADING": "LAZY"}, 2, False, "CUDA_MODULE_LOADING=LAZY, expected CUDA_MODULE_LOADING=EAGER;"),
        ({**GOOD, "TORCH_NCCL_ENABLE_MONITORING": "1"}, 2, False, None),
        ({**GOOD, "TORCH_NCCL_ENABLE_MONITORING": "1", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, 2, True, None),
        (
            {},
            4,
            True,
            "found CUDA_DEVICE_MAX_CONNECTIONS=(not set), CUDA_MODULE_LOADING=(not set), TORCH_NCCL_ENABLE_MONITORING=(not set),"
            " expected CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER TORCH_NCCL_ENABLE_MONITORING=0; set them before",
        ),
    ],
)
def test_what_a_job_over_nccl_should_have_set(environment: Any, wires: int, job_has_nccl: bool, expected: str | None) -> None:
    said = missing_settings(environment, wires, job_has_nccl=job_has_nccl)
    assert said is None if expected is None else said is not None and expected in said and "\n" not in said


def test_wires_over_nccl() -> None:
    """Of a rank's own, those whose ends are on two GPUs; the delegate takes over from each."""
    requests = [TransportRequest(channels="auto", queues=2, hardware=hardware) for hardware in (FIRST, SECOND, SAME, BARE)]
    pairs = [(0, 1), (1, 0), (0, 2), (1, 2), (0, 3)]
    found = []
    for rank in range(4):
        channels = connection(requests, rank, torch.device("cuda", 0))
        names = [tuple(channel.name for channel in channels(*pair)) for pair in pairs if rank in pair]
        assert {*names} <= {("NCCL", "the delegate"), ("the delegate",)}
        found.append(sum(own[0] == "NCCL" for own in names))
    assert found == [2, 3, 1, 0]


def test_where_stages_are() -> None:
    assert stage_device({}) == stage_device({0: nn.Identity()}) == torch.device("cpu")
    assert stage_device({0: nn.Linear(2, 2), 1: nn.BatchNorm1d(2)}) == torch.device("cpu")
    assert hardware_of(torch.device("cpu")) == CPU
    with pytest.raises(Unsupported, match="stage 3 is on meta; the runtime executes stages on CPUs and CUDA GPUs"):
        stage_device({3: nn.Linear(2, 2, device="meta")})
    offloaded = nn.Linear(2, 2)
    vars(offloaded.weight)["device_mesh"] = SimpleNamespace(device_type="cuda")  # as a DTensor's of CPUOffloadPolicy
    with pytest.raises(
        Unsupported, match=r"stage 2 has weights on the cpu that are sharded over devices of cuda; .* offload policy"
    ):
        stage_device({2: offloaded})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_stages_on_a_gpu() -> None:
    own = nn.Linear(2, 2, device="cuda:0")
    assert stage_device({0: nn.Identity(), 1: own}) == torch.device("cuda", 0)
    assert hardware_of(torch.device("cuda", 0)) == hardware_of(own.weight.device)
    with pytest.raises(Unsupported, match=r"stage 0 is on cpu, stage 1 on cuda:0; put all stages of a rank on one device"):
        stage_device({0: nn.Linear(2, 2), 1: own})
