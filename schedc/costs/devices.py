"""The devices that are known by name, and how long work takes on one: the roofline, and which share of the peaks is reached.

The file devices.toml beside this one has the numbers of the makers' data sheets. All are peaks: dense (no sparsity), of one device,
in one direction. An operator takes the longer of computing and moving its bytes through the device's memory, then its collectives,
and a fixed time for each launch. Each assumption stands with its reason; docs/measurements/model-costs.md has the ratios of
predicted to measured durations that these constants give.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from math import inf

from schedc.costs.operators.operator import Engine, OperatorWork
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
    memory_bytes: int
    memory_bytes_per_s: float
    link_bytes_per_s: float
    """To the other devices of its group (NVLink, Infinity Fabric), one direction."""
    group: int
    """How many devices these links connect."""
    network_bytes_per_s: float
    """Out of the group, one direction: the device's share of the network adapters of the maker's system."""
    source: str


RESERVE = 0.06
"""The share of a device's memory that no plan uses unless somebody says otherwise: for the CUDA context, the buffers of NCCL and of
messages, and fragmentation.

PyTorch finds 79.2 GiB on an A100 of 80 GB; 94 % of 80 GB are 0.88 of that. vLLM, which has to leave room for the same, takes 0.9 of
what it finds by default (`gpu_memory_utilization`)."""
DEVICES = {
    name: Accelerator(name=name, **entry)
    for name, entry in tomllib.loads(resources.files("schedc.costs").joinpath("devices.toml").read_text(encoding="utf-8")).items()
}
"""By name."""


def device_named(name: str) -> Accelerator:
    """The device of that name.

    Raises:
        InvalidInput: no such name.
    """
    if name not in DEVICES:
        raise InvalidInput(f"found the device {show(name)}, expected one of {', '.join(DEVICES)}{nearest(name, DEVICES)}")
    return DEVICES[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the peaks, and fixed times."""

    matrix: float = 0.7
    """Matrix products of large 16-bit matrices run at 65 to 80 % of the dense peak: cuBLAS near 250 of 312 TFLOPS on A100, and 600
    to 750 of 989 on H100, which lowers its clock at its power limit."""
    attention: float = 0.5
    """Fused attention with a causal mask, for the products that the mask leaves: FlashAttention-2 reaches 50 to 70 % of the peak of
    A100, FlashAttention-3 50 to 65 % of that of H100, less in the backward."""
    scan: float = 0.15
    """The chunked scan of Mamba-2: its products are small (a chunk, a state), and a part of it runs outside the matrix units."""
    memory: float = 0.8
    """Kernels that stream tensors reach 80 to 90 % of the memory's bandwidth."""
    link: float = 0.75
    """Large collectives reach 70 to 80 % of the links' bandwidth (NCCL's bus bandwidth against NVLink's)."""
    launch_s: float = 5e-6
    """Each operator's kernels begin, fill and drain the device: a few microseconds."""
    collective_s: float = 2e-5
    """Each collective synchronizes its devices first: about 20 µs within a node."""


ROOFLINE = Efficiency()
"""The defaults."""


def sustained(share: float) -> Efficiency:
    """One share of the peak for all FLOPs, everything else for nothing: for who knows the throughput that a whole model reaches.

    Args:
        share: of the dense peak, above 0; 500 TFLOPS on H100 is 0.505.
    """
    return Efficiency(matrix=share, attention=share, scan=share, memory=inf, link=inf, launch_s=0.0, collective_s=0.0)


def duration_s(work: OperatorWork, engine: Engine, device: Accelerator, efficiency: Efficiency, *, element_bytes: int = 2) -> float:
    """Seconds: the longer of computing and of moving bytes through the memory, a launch, and the collectives.

    Args:
        work: of one operator in one phase.
        engine: what computes.
        device: its peaks.
        efficiency: which share of them is reached.
        element_bytes: of the numbers that are multiplied: 2, or 4 for TF32.
    """
    if work.is_nothing:
        return 0.0
    peak = device.flops_per_s if element_bytes <= 2 else device.tf32_flops_per_s
    share = {Engine.MATRIX: efficiency.matrix, Engine.ATTENTION: efficiency.attention, Engine.SCAN: efficiency.scan}[engine]
    computing_s = work.flops / (peak * share)
    moving_s = work.memory_bytes / (device.memory_bytes_per_s * efficiency.memory)
    busy_s = max(computing_s, moving_s) + (efficiency.launch_s if work.flops or work.memory_bytes else 0.0)
    links = device.link_bytes_per_s if work.spans <= device.group else device.network_bytes_per_s
    linked_s = work.link_bytes / (links * efficiency.link) + work.collectives * efficiency.collective_s
    return max(busy_s, linked_s) if work.overlapped else busy_s + linked_s
