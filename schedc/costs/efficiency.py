"""Which share of a device's peaks is reached: the assumptions behind every predicted duration, named, each with its reason.

An operator takes the longer of computing and moving its bytes through the device's memory, then its collectives, and a fixed time
for each launch. docs/measurements/model-costs.md has the ratios of predicted to measured durations that these constants give.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

MATRIX = 0.7
"""Matrix products of large 16-bit matrices run at 65 to 80 % of the dense peak: cuBLAS near 250 of 312 TFLOPS on A100, and 600 to
750 of 989 on H100, which lowers its clock at its power limit."""
ATTENTION = 0.5
"""Fused attention with a causal mask, for the products that the mask leaves: FlashAttention-2 reaches 50 to 70 % of the peak of
A100, FlashAttention-3 50 to 65 % of that of H100, less in the backward."""
SCAN = 0.15
"""The chunked scan of Mamba-2: its products are small (a chunk, a state), and a part of it runs outside the matrix units."""
MEMORY = 0.8
"""Kernels that stream tensors reach 80 to 90 % of the memory's bandwidth."""
LINK = 0.75
"""Large collectives reach 70 to 80 % of the links' bandwidth (NCCL's bus bandwidth against NVLink's)."""
LAUNCH_S = 5e-6
"""Each operator's kernels begin, fill and drain the device: a few microseconds."""
COLLECTIVE_S = 2e-5
"""Each collective synchronizes its devices first: about 20 µs within a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the peaks, and fixed times."""

    matrix: float = MATRIX
    attention: float = ATTENTION
    scan: float = SCAN
    memory: float = MEMORY
    link: float = LINK
    launch_s: float = LAUNCH_S
    collective_s: float = COLLECTIVE_S


ROOFLINE = Efficiency()
"""The defaults."""


def sustained(share: float) -> Efficiency:
    """One share of the peak for all FLOPs, everything else for nothing: for who knows the throughput that a whole model reaches.

    Args:
        share: of the dense peak, above 0; 500 TFLOPS on H100 is 0.505.
    """
    return Efficiency(matrix=share, attention=share, scan=share, memory=inf, link=inf, launch_s=0.0, collective_s=0.0)
