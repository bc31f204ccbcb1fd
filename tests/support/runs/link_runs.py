"""What the rank processes of the tests of links run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
import torch.distributed as dist

from schedc.runtime.common.failure import TransferFailed
from schedc.runtime.profiling.pairs import Wires, measure_links

if TYPE_CHECKING:
    from schedc.runtime.profiling.pairs import Agenda, LinkMeasurement


def measure(rank: int, agenda: Agenda, timeout_s: float = 60.0) -> tuple[LinkMeasurement, ...] | str:
    """Measure; what was found, or the failure."""
    control = dist.new_group(backend="gloo")
    try:
        return measure_links(agenda, control=control, backend="gloo", device=torch.device("cpu"), timeout_s=timeout_s)
    except TransferFailed as error:
        return str(error)


def measure_without(rank: int, agenda: Agenda, culprit: int, timeout_s: float) -> tuple[LinkMeasurement, ...] | str:
    """`measure`, with one rank that ends while its pair measures."""
    if rank != culprit:
        return measure(rank, agenda, timeout_s)
    sends = 0

    def send(wires: Wires, message: torch.Tensor) -> dist.Work:
        nonlocal sends
        sends += 1
        if sends > 5:
            os._exit(1)
        return whole(wires, message)

    whole = Wires.send
    with patch.object(Wires, "send", send):
        return measure(rank, agenda, timeout_s)
