"""The devices that are known by name.

The file devices.toml beside this one has the numbers of the makers' data sheets. All are peaks: dense (no sparsity), of one device,
in one direction; `efficiency` says which share of them is reached.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from math import gcd

from schedc.errors import InvalidInput
from schedc.io.location import show
from schedc.spelling import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """An accelerator and its links, as the maker describes them."""

    name: str
    title: str
    flops_per_s: float
    """Matrix products of 16-bit numbers (BF16; FP16 on V100), summed in 32 bits."""
    tf32_flops_per_s: float
    """Matrix products of 32-bit numbers as frameworks run them: TF32; FP32 where there is none."""
    memory_mib: int
    """All of it, as the driver says."""
    memory_bytes_per_s: float
    link_bytes_per_s: float
    """To the other devices of its group (NVLink, Infinity Fabric), one direction."""
    group: int
    """How many devices these links connect."""
    network_bytes_per_s: float
    """Out of the group, one direction: the device's share of the network adapters of the maker's system."""
    source: str

    @property
    def memory_bytes(self) -> int:
        """All of it."""
        return self.memory_mib * 2**20


RESERVE = 0.06
"""The share of a device's memory that no plan uses unless somebody says otherwise: for the CUDA context, the buffers of NCCL and of
messages, and fragmentation.

Of the 79.6 GiB of an H100 PyTorch finds 79.2; 94 % are 74.9. vLLM, which has to leave room for the same, takes 0.9 of what it
finds by default (`gpu_memory_utilization`)."""
DEVICES = {
    name: Accelerator(name=name, **entry)
    for name, entry in tomllib.loads(resources.files("schedc.costs").joinpath("devices.toml").read_text(encoding="utf-8")).items()
}
"""By name."""


def members_in_node(members: int, apart: int, node: int) -> int:
    """How many devices of a group a node has; where groups lie differently, of the group that has fewest.

    Args:
        members: of the group.
        apart: places from each of its devices to the next.
        node: devices of a node. A node that no whole number of groups fills, nor is filled by, is used up to its largest power of
            two, as racks of 72 are: Megatron-Bridge's presets have `NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=64` there.
    """
    spans = members * apart
    if node % spans and spans % node:
        node = 1 << (node.bit_length() - 1)
    return members if node % spans == 0 else max(1, gcd(spans, node) // apart)


def device_named(name: str) -> Accelerator:
    """The device of that name.

    Raises:
        InvalidInput: no such name.
    """
    if name not in DEVICES:
        raise InvalidInput(f"found the device {show(name)}, expected one of {', '.join(DEVICES)}{nearest(name, DEVICES)}")
    return DEVICES[name]
