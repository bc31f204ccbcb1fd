"""The devices that are known by name, with the numbers of their makers' data sheets.

All are peaks: dense (no sparsity), of one device, in one direction. What share of a peak is reached is `efficiency`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass

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


_T, _G = 1e12, 1e9
_DEVICES = (
    Accelerator(
        name="v100",
        title="NVIDIA V100 SXM2 32 GB",
        flops_per_s=125 * _T,
        tf32_flops_per_s=15.7 * _T,
        memory_bytes=32 * 10**9,
        memory_bytes_per_s=900 * _G,
        link_bytes_per_s=150 * _G,
        group=8,
        network_bytes_per_s=6.25 * _G,
        source="NVIDIA V100 data sheet (January 2020); DGX-1 data sheet: 4 × 100 Gb/s for 8 devices",
    ),
    Accelerator(
        name="a100-40",
        title="NVIDIA A100 SXM4 40 GB",
        flops_per_s=312 * _T,
        tf32_flops_per_s=156 * _T,
        memory_bytes=40 * 10**9,
        memory_bytes_per_s=1555 * _G,
        link_bytes_per_s=300 * _G,
        group=8,
        network_bytes_per_s=25 * _G,
        source="NVIDIA A100 data sheet; DGX A100 data sheet: 8 × 200 Gb/s for 8 devices",
    ),
    Accelerator(
        name="a100",
        title="NVIDIA A100 SXM4 80 GB",
        flops_per_s=312 * _T,
        tf32_flops_per_s=156 * _T,
        memory_bytes=80 * 10**9,
        memory_bytes_per_s=2039 * _G,
        link_bytes_per_s=300 * _G,
        group=8,
        network_bytes_per_s=25 * _G,
        source="NVIDIA A100 data sheet; DGX A100 data sheet: 8 × 200 Gb/s for 8 devices",
    ),
    Accelerator(
        name="h100",
        title="NVIDIA H100 SXM5 80 GB",
        flops_per_s=989.4 * _T,
        tf32_flops_per_s=494.7 * _T,
        memory_bytes=80 * 10**9,
        memory_bytes_per_s=3350 * _G,
        link_bytes_per_s=450 * _G,
        group=8,
        network_bytes_per_s=50 * _G,
        source="NVIDIA H100 data sheet and architecture white paper; DGX H100 data sheet: 8 × 400 Gb/s for 8 devices",
    ),
    Accelerator(
        name="h800",
        title="NVIDIA H800 SXM5 80 GB",
        flops_per_s=989.4 * _T,
        tf32_flops_per_s=494.7 * _T,
        memory_bytes=80 * 10**9,
        memory_bytes_per_s=3350 * _G,
        link_bytes_per_s=200 * _G,
        group=8,
        network_bytes_per_s=50 * _G,
        source="as H100, with NVLink at 400 GB/s in both directions together; 8 × 400 Gb/s for 8 devices (DeepSeek-V3 report)",
    ),
    Accelerator(
        name="h200",
        title="NVIDIA H200 SXM5 141 GB",
        flops_per_s=989.4 * _T,
        tf32_flops_per_s=494.7 * _T,
        memory_bytes=141 * 10**9,
        memory_bytes_per_s=4800 * _G,
        link_bytes_per_s=450 * _G,
        group=8,
        network_bytes_per_s=50 * _G,
        source="NVIDIA H200 data sheet; DGX H200 data sheet: 8 × 400 Gb/s for 8 devices",
    ),
    Accelerator(
        name="gh200",
        title="NVIDIA GH200 96 GB",
        flops_per_s=989.4 * _T,
        tf32_flops_per_s=494.7 * _T,
        memory_bytes=96 * 10**9,
        memory_bytes_per_s=4000 * _G,
        link_bytes_per_s=450 * _G,
        group=4,
        network_bytes_per_s=25 * _G,
        source="NVIDIA GH200 data sheet; the Alps system of CSCS: 4 devices a node, one 200 Gb/s adapter each",
    ),
    Accelerator(
        name="b200",
        title="NVIDIA B200 SXM 180 GB",
        flops_per_s=2250 * _T,
        tf32_flops_per_s=1125 * _T,
        memory_bytes=180 * 10**9,
        memory_bytes_per_s=8000 * _G,
        link_bytes_per_s=900 * _G,
        group=8,
        network_bytes_per_s=50 * _G,
        source="NVIDIA DGX B200 data sheet, for 8: 36 PFLOPS BF16 with sparsity, 1,440 GB, 64 TB/s, NVLink 14.4 TB/s, 8 × 400 Gb/s",
    ),
    Accelerator(
        name="gb200",
        title="NVIDIA GB200 NVL72, one of its 72 devices",
        flops_per_s=2500 * _T,
        tf32_flops_per_s=1250 * _T,
        memory_bytes=186 * 10**9,
        memory_bytes_per_s=8000 * _G,
        link_bytes_per_s=900 * _G,
        group=72,
        network_bytes_per_s=50 * _G,
        source="NVIDIA GB200 NVL72 data sheet, for 72 devices: 360 PFLOPS BF16 with sparsity, 13.4 TB, 576 TB/s, NVLink 130 TB/s",
    ),
    Accelerator(
        name="gb300",
        title="NVIDIA GB300 NVL72, one of its 72 devices",
        flops_per_s=2500 * _T,
        tf32_flops_per_s=1250 * _T,
        memory_bytes=279 * 10**9,
        memory_bytes_per_s=8000 * _G,
        link_bytes_per_s=900 * _G,
        group=72,
        network_bytes_per_s=100 * _G,
        source="NVIDIA GB300 NVL72 data sheet, for 72 devices: 360 PFLOPS BF16 with sparsity, 20 TB, 576 TB/s, NVLink 130 TB/s",
    ),
    Accelerator(
        name="mi300x",
        title="AMD Instinct MI300X 192 GB",
        flops_per_s=1307.4 * _T,
        tf32_flops_per_s=653.7 * _T,
        memory_bytes=192 * 10**9,
        memory_bytes_per_s=5300 * _G,
        link_bytes_per_s=448 * _G,
        group=8,
        network_bytes_per_s=50 * _G,
        source="AMD Instinct MI300X data sheet: 7 links of 128 GB/s both ways; 400 Gb/s a device in AMD's cluster",
    ),
)
RESERVE = 0.06
"""The share of a device's memory that no plan uses unless somebody says otherwise: for the CUDA context, the buffers of NCCL and of
messages, and fragmentation.

PyTorch finds 79.2 GiB on an A100 of 80 GB; 94 % of 80 GB are 0.88 of that. vLLM, which has to leave room for the same, takes 0.9 of
what it finds by default (`gpu_memory_utilization`)."""
DEVICES = {device.name: device for device in _DEVICES}
"""By name."""


def device_named(name: str) -> Accelerator:
    """The device of that name.

    Raises:
        InvalidInput: no such name.
    """
    if name not in DEVICES:
        raise InvalidInput(f"found the device {show(name)}, expected one of {', '.join(DEVICES)}{nearest(name, DEVICES)}")
    return DEVICES[name]
