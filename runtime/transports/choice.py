"""Which channels the wires of a pipe have, from what each rank runs on.

    auto       stages on the CPU: gloo. On GPUs: NCCL, with the delegate to fall back to; where both ranks of a wire have the same
               GPU, between which NCCL refuses to connect, the delegate.
    nccl       NCCL alone: the host never waits within a step, and a failure ends it.
    gloo       stages on the CPU only.
    delegate   through the host by helper threads, on CPUs and GPUs.

All ranks take the same choice from the same reports, so that the ends of each wire fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.transports.delegate import connect_delegate
from schedc.runtime.transports.fallback import Fallback
from schedc.runtime.transports.gloo import connect_gloo
from schedc.runtime.transports.host_watch import HostWatch
from schedc.runtime.transports.nccl import connect_nccl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire
    from schedc.runtime.transports.base import Connect, Ends

__all__ = ["Channels", "Hardware", "Wish", "check_wishes", "connection", "hardware_of", "stage_device", "way", "wires_over_nccl"]

Channels: TypeAlias = Literal["auto", "nccl", "gloo", "delegate"]
Way: TypeAlias = Literal["nccl", "nccl or delegate", "gloo", "delegate"]
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
class Wish:
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


def check_wishes(wishes: Sequence[Wish], pairs: Iterable[tuple[int, int]]) -> None:
    """Refuse what cannot be, with the same words on all ranks.

    Args:
        wishes: of all ranks.
        pairs: the ranks that have a wire, (source, destination).

    Raises:
        InvalidInput: there are no such channels, they do not fit the ranks' devices, or the ranks wish for different ones.
        Unsupported: some ranks are on CPUs and some on GPUs, or a rank's PyTorch lacks NCCL.
    """
    channels, queues = wishes[0].channels, wishes[0].queues
    for rank, wish in enumerate(wishes):
        if (wish.channels, wish.queues) != (channels, queues):
            raise InvalidInput(
                f"ranks 0 and {rank} load with channels={channels!r}, queues={queues} and channels={wish.channels!r},"
                f" queues={wish.queues}; give all ranks the same"
            )
    if channels not in get_args(Channels):
        raise InvalidInput(f"channels={channels!r}; expected one of {', '.join(map(repr, get_args(Channels)))}")
    if queues < 1:
        raise InvalidInput(f"queues={queues}; expected at least 1")
    _check_devices(channels, [wish.hardware for wish in wishes], pairs)


def _check_devices(channels: str, ranks: Sequence[Hardware], pairs: Iterable[tuple[int, int]]) -> None:
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


def way(channels: Channels, source: Hardware, destination: Hardware) -> Way:
    """What a wire between two ranks is made of; `check_wishes` has accepted the channels."""
    if channels != "auto":
        return channels
    if source.gpu is None:
        return "gloo"
    return "nccl or delegate" if source.gpu != destination.gpu and source.nccl and destination.nccl else "delegate"


def wires_over_nccl(wishes: Sequence[Wish], rank: int, pairs: Iterable[tuple[int, int]]) -> int:
    """How many of a rank's wires begin on NCCL; arguments as those of `check_wishes`, which has accepted them."""
    ways = (way(wishes[rank].channels, wishes[x].hardware, wishes[y].hardware) for x, y in pairs if rank in (x, y))
    return sum(one in ("nccl", "nccl or delegate") for one in ways)


def connection(wishes: Sequence[Wish], rank: int, device: torch.device) -> Connect:
    """What connects a rank's wires.

    Args:
        wishes: of all ranks; `check_wishes` has accepted them.
        rank: which.
        device: where its stages are.
    """
    channels = wishes[rank].channels
    delegate = partial(connect_delegate, device=device, queues=wishes[rank].queues)
    nccl = partial(connect_nccl, device=device, watch=HostWatch())
    ways: dict[Way, Connect] = {
        "gloo": connect_gloo,
        "delegate": delegate,
        "nccl": nccl,
        "nccl or delegate": Fallback(partial(nccl, confirm=True), delegate, names=("NCCL", "the delegate")),
    }

    def connect(wire: Wire, groups: Groups) -> Ends:
        return ways[way(channels, wishes[wire.source].hardware, wishes[wire.destination].hardware)](wire, groups)

    return connect
