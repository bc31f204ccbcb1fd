"""Which channels the wires of a pipe have, from what each rank runs on (`load` says what each is).

All ranks take the same choice from the same reports, so that the ends of each wire fit. What GPUs need besides is in `gpus`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.transports.base import QUEUES, ChannelsOf, Hardware, P2PChannel
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

Channels: TypeAlias = Literal["auto", "nccl", "gloo", "delegate"]
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportRequest:
    """What one rank gives to `load`, and what it runs on."""

    channels: Channels
    queues: int
    hardware: Hardware


def stage_device(stages: Mapping[int, nn.Module]) -> torch.device:
    """Where a rank's stages are: where their parameters and buffers are; the CPU if they have none.

    Raises:
        Unsupported: on several devices, on one that is neither a CPU nor a CUDA GPU, or on the CPU between the ops on a GPU.
    """
    first: tuple[int, torch.device] | None = None
    for index, stage in stages.items():
        for tensor in (*stage.parameters(), *stage.buffers()):
            if tensor.device.type not in ("cpu", "cuda"):
                raise Unsupported(f"stage {index} is on {tensor.device}; the runtime executes stages on CPUs and CUDA GPUs")
            kind = getattr(getattr(tensor, "device_mesh", None), "device_type", tensor.device.type)
            if kind != tensor.device.type:
                raise Unsupported(
                    f"stage {index} has weights on the {tensor.device.type} that are sharded over devices of {kind}; the"
                    " runtime keeps a stage on one device: use fully_shard without an offload policy"
                )
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
    from schedc.runtime.transports.gpus import serial_setting

    identity = str(torch.cuda.get_device_properties(device).uuid)
    return Hardware(device=str(device), gpu=identity, nccl=dist.is_nccl_available(), serial=serial_setting(os.environ))


def check_requests(requests: Sequence[TransportRequest], pairs: Iterable[tuple[int, int]]) -> None:
    """Refuse what cannot be, with the same words on all ranks.

    Args:
        requests: of all ranks.
        pairs: the ranks that have a wire, (source, destination).

    Raises:
        InvalidInput: there are no such channels or queues, they do not fit the ranks' devices, or the ranks request different ones.
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
    if type(queues) is not int:
        raise InvalidInput(f"queues={queues!r}; expected a whole number, at least 1")
    if queues < 1:
        raise InvalidInput(f"queues={queues}; expected at least 1")
    if queues != QUEUES and channels in ("gloo", "nccl"):
        raise InvalidInput(
            f"queues={queues}: the delegate's, which channels={channels!r} leaves out; leave queues out too, or use 'delegate' or"
            " 'auto'"
        )
    if channels == "nccl" or any(request.hardware.gpu is not None for request in requests):
        from schedc.runtime.transports.gpus import check_devices

        check_devices(channels, [request.hardware for request in requests], pairs)


def ways(channels: Channels, source: Hardware, destination: Hardware) -> tuple[Channels, ...]:
    """What carries tensors between two ranks, each when the one before has failed; `check_requests` has accepted the channels."""
    if channels != "auto":
        return (channels,)
    if source.gpu is None:
        return ("gloo",)
    both = all(one.nccl and one.serial is None for one in (source, destination))
    return ("nccl", "delegate") if source.gpu != destination.gpu and both else ("delegate",)


def connection(requests: Sequence[TransportRequest], rank: int, device: torch.device) -> ChannelsOf:
    """What connects a rank's wires, by requests that `check_requests` accepts; what a way needs is imported where it is used."""

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
