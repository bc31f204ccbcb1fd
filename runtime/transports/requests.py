"""What a rank runs on, and which channels it requests for: what ranks report to each other before they choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
import torch.distributed as dist

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

Channels: TypeAlias = Literal["auto", "nccl", "gloo", "delegate"]
QUEUES = 2
"""How many tensors of a wire the delegate has under way at once, unless `load` is given another number. Two: a queue's tag and its
tensor take two trips, and the next queue's tensor travels meanwhile."""
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
