"""How long a piece of work takes on a device: the roofline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.costs.operators.operator import Engine

if TYPE_CHECKING:
    from schedc.costs.devices import Accelerator
    from schedc.costs.efficiency import Efficiency
    from schedc.costs.operators.operator import OperatorWork


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
