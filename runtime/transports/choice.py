"""Which channels the wires of a pipe have, from what each rank runs on (`load` says what each is).

All ranks take the same choice from the same reports, so that the ends of each wire fit. NCCL needs settings besides (docs/gpu.md
says why). CUDA and PyTorch read them when they begin, which is before `load`: it can only say what is missing.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.transports.base import ChannelsOf, P2PChannel
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

Channels: TypeAlias = Literal["auto", "nccl", "gloo", "delegate"]
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What one rank runs on."""

    device: str
    """`cpu`, or the GPU's name in its process: `cuda:0`."""
    gpu: str | None = None
    """The GPU's identity, the same in all processes; None for a CPU."""
    nccl: bool = False
    """Whether its PyTorch has NCCL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportRequest:
    """What one rank gives to `load`, and what it runs on."""

    channels: Channels
    queues: int
    hardware: Hardware


def stage_device(stages: Mapping[int, nn.Module]) -> torch.device:
    """Where a rank's stages are: where their parameters and buffers are; the CPU if they have none.

    Raises:
        Unsupported: on several devices, or on one that is neither a CPU nor a CUDA GPU.
    """
    first: tuple[int, torch.device] | None = None
    for index, stage in stages.items():
        for tensor in (*stage.parameters(), *stage.buffers()):
            if tensor.device.type not in ("cpu", "cuda"):
                raise Unsupported(f"stage {index} is on {tensor.device}; the runtime executes stages on CPUs and CUDA GPUs")
            if first is None:
                first = index, tensor.device
            elif tensor.device != first[1]:
                where = f"stage {first[0]} is on {first[1]}, " if index != first[0] else f"a part of it is on {first[1]}, "
                raise Unsupported(f"{where}stage {index} on {tensor.device}; put all stages of a rank on one device")
    return CPU if first is None else first[1]


def hardware_of(device: torch.device) -> Hardware:
    """The report of this rank."""
    if device.type == "cpu":
        return Hardware(device="cpu")
    identity = str(torch.cuda.get_device_properties(device).uuid)
    return Hardware(device=str(device), gpu=identity, nccl=dist.is_nccl_available())


DEFAULT_CONNECTIONS, MAX_CONNECTIONS = 8, 32
"""CUDA's hardware queues: without CUDA_DEVICE_MAX_CONNECTIONS, and at most."""


def check_requests(requests: Sequence[TransportRequest], pairs: Iterable[tuple[int, int]]) -> None:
    """Refuse what cannot be, with the same words on all ranks.

    Args:
        requests: of all ranks.
        pairs: the ranks that have a wire, (source, destination).

    Raises:
        InvalidInput: there are no such channels, they do not fit the ranks' devices, or the ranks request for different ones.
        Unsupported: some ranks are on CPUs and some on GPUs, or a rank's PyTorch lacks NCCL.
    """
    channels, queues = requests[0].channels, requests[0].queues
    for rank, request in enumerate(requests):
        if (request.channels, request.queues) != (channels, queues):
            raise InvalidInput(
                f"ranks 0 and {rank} load with channels={channels!r}, queues={queues} and channels={request.channels!r},"
                f" queues={request.queues}; give all ranks the same"
            )
    if channels not in get_args(Channels):
        raise InvalidInput(f"channels={channels!r}; expected one of {', '.join(map(repr, get_args(Channels)))}")
    if queues < 1:
        raise InvalidInput(f"queues={queues}; expected at least 1")
    if channels == "nccl" or any(request.hardware.gpu is not None for request in requests):
        _check_devices(channels, [request.hardware for request in requests], pairs)


def _check_devices(channels: str, ranks: Sequence[Hardware], pairs: Iterable[tuple[int, int]]) -> None:
    """Refuse channels that the devices cannot have; as `check_requests`."""
    on_cpu = [rank for rank, hardware in enumerate(ranks) if hardware.gpu is None]
    on_gpu = [rank for rank, hardware in enumerate(ranks) if hardware.gpu is not None]
    if on_cpu and on_gpu:
        raise Unsupported(
            f"rank {on_cpu[0]}'s stages are on the CPU, rank {on_gpu[0]}'s on a GPU; put all ranks' stages on devices of one kind"
        )
    if channels == "gloo" and on_gpu:
        raise InvalidInput(f"channels='gloo' carries tensors of the CPU, rank {on_gpu[0]}'s stages are on a GPU; use 'auto'")
    if channels != "nccl":
        return
    if on_cpu:
        raise InvalidInput(f"channels='nccl' carries tensors of GPUs, rank {on_cpu[0]}'s stages are on the CPU; use 'auto'")
    lacking = next((rank for rank, hardware in enumerate(ranks) if not hardware.nccl), None)
    if lacking is not None:
        raise Unsupported(f"channels='nccl': rank {lacking}'s PyTorch is built without NCCL; use 'delegate', or another build")
    for source, destination in pairs:
        if ranks[source].gpu == ranks[destination].gpu:
            raise InvalidInput(
                f"channels='nccl': ranks {source} and {destination} have the same GPU, which NCCL does not connect; use 'auto'"
            )


def ways(channels: Channels, source: Hardware, destination: Hardware) -> tuple[Channels, ...]:
    """What carries tensors between two ranks, each when the one before has failed; `check_requests` has accepted the channels."""
    if channels != "auto":
        return (channels,)
    if source.gpu is None:
        return ("gloo",)
    return ("nccl", "delegate") if source.gpu != destination.gpu and source.nccl and destination.nccl else ("delegate",)


def connection(requests: Sequence[TransportRequest], rank: int, device: torch.device) -> ChannelsOf:
    """What connects a rank's wires; what each way needs is imported where it is used.

    Args:
        requests: of all ranks; `check_requests` has accepted them.
        rank: which.
        device: where its stages are.
    """

    @cache
    def channel(way: Channels) -> P2PChannel:
        if way == "gloo":
            return P2PChannel("gloo", connect_gloo)
        if way == "delegate":
            from schedc.runtime.transports.delegate import connect_delegate

            return P2PChannel("the delegate", partial(connect_delegate, device=device, queues=requests[rank].queues))
        from schedc.runtime.transports.host_watch import HostWatch
        from schedc.runtime.transports.nccl import connect_nccl

        return P2PChannel("NCCL", partial(connect_nccl, device=device, watch=HostWatch()))

    def channels(source: int, destination: int) -> tuple[P2PChannel, ...]:
        found = ways(requests[rank].channels, requests[source].hardware, requests[destination].hardware)
        return tuple(map(channel, found))

    return channels


def warn_of_settings(wires: int, *, stacklevel: int) -> None:
    """Warn of what is missing for this many wires of this process over NCCL; `stacklevel` as that of `warnings.warn`."""
    job_has_nccl = any("nccl" in str(backends) for backends in _world.pg_backend_config.values())
    missing = missing_settings(os.environ, wires, job_has_nccl=job_has_nccl)
    if missing is not None:
        warnings.warn(missing, RuntimeWarning, stacklevel=stacklevel)


def missing_settings(environment: Mapping[str, str], wires: int, *, job_has_nccl: bool) -> str | None:
    """What to set, in one line; None: nothing is missing.

    Args:
        environment: the process's.
        wires: how many of its wires are over NCCL.
        job_has_nccl: whether the job has made a process group over NCCL before.
    """
    if not wires:
        return None
    wanted: dict[str, str] = {}
    streams = 1 + 2 * wires  # the compute's; of each wire ours and NCCL's
    given = environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    if (int(given) if given.isdecimal() else DEFAULT_CONNECTIONS) < min(streams, MAX_CONNECTIONS):
        wanted["CUDA_DEVICE_MAX_CONNECTIONS"] = str(MAX_CONNECTIONS)
    if environment.get("CUDA_MODULE_LOADING") != "EAGER":
        wanted["CUDA_MODULE_LOADING"] = "EAGER"
    if job_has_nccl and "0" not in (environment.get("TORCH_NCCL_ENABLE_MONITORING"), environment.get("TORCH_NCCL_DUMP_ON_TIMEOUT")):
        wanted["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    if not wanted:
        return None
    found = ", ".join(f"{name}={environment.get(name, '(not set)')}" for name in wanted)
    expected = " ".join(f"{name}={value}" for name, value in wanted.items())
    return (
        f"channels over NCCL: found {found}, expected {expected}; set them before the processes start,"
        " or a step may deadlock and a failure end the process (docs/gpu.md)"
    )
