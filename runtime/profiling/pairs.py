"""Measuring the links of a job's ranks, one pair after another so that none disturbs another.

Takes the pairs and the sizes of the messages; gives, on rank 0, a line through the times of each directed link. All ranks call it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist

from schedc.runtime.common.failure import TransferFailed
from schedc.runtime.common.groups import share
from schedc.runtime.measure.clocks import clock_name
from schedc.runtime.profiling.fit import LinkFit, fit_link
from schedc.runtime.profiling.ping import NUMBER_BYTES, Exchange, Wires, follow, lead, one_way_times

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agenda:
    """What is measured."""

    pairs: tuple[tuple[int, int], ...]
    """Each pair of ranks once, the lower one first."""
    sizes: tuple[int, ...]
    """Bytes of the messages, two sizes or more."""
    repeats: int
    warmup: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasurement:
    """A directed link as measured."""

    source: int
    destination: int
    times_ns: dict[int, float]
    """The median of each size."""
    fit: LinkFit
    one_clock: bool
    """Whether the latency is this direction's own; else it is half of both."""


def measure_links(
    agenda: Agenda, *, control: dist.ProcessGroup, backend: str, device: torch.device, timeout_s: float
) -> tuple[LinkMeasurement, ...]:
    """Measure all pairs in turn, both ways.

    Args:
        agenda: the same on all ranks.
        control: all ranks over gloo, to take turns and to collect.
        backend: `gloo` or `nccl`, for the messages.
        device: where the messages are on this rank.
        timeout_s: how long a rank may be silent.

    Returns:
        On rank 0 the links, by pair; nothing on the others.

    Raises:
        TransferFailed: a rank has ended, or is silent for too long.
    """
    rank, found = control.rank(), []
    clocks = _together(control, clock_name())
    sizes = tuple(sorted({max(NUMBER_BYTES, size - size % NUMBER_BYTES) for size in agenda.sizes}))
    for pair in agenda.pairs:
        groups = [_group(pair, backend, timeout_s) for _ in range(2)]  # forth and back; all ranks make them, in the same order
        if rank in pair:
            here = pair.index(rank)
            wires = Wires(to_peer=groups[here], from_peer=groups[1 - here], peer=pair[1 - here], device=device, timeout_s=timeout_s)
            if here == 0:
                one_clock = device.type == "cpu" and clocks[pair[0]] == clocks[pair[1]] != ""
                found += _measured(pair, lead(wires, sizes, agenda.repeats, agenda.warmup), one_clock=one_clock)
            else:
                follow(wires, sizes, agenda.repeats, agenda.warmup)
            for group in groups:
                dist.destroy_process_group(group)
        _together(control, None)
    everything = _together(control, found)
    return tuple(link for links in everything for link in links) if rank == 0 else ()


def _measured(pair: tuple[int, int], exchanges: Sequence[Exchange], *, one_clock: bool) -> list[LinkMeasurement]:
    """Both links of the pair."""
    forth, back = one_way_times(exchanges, one_clock=one_clock)
    return [
        LinkMeasurement(source=source, destination=destination, times_ns=times, fit=fit_link(times), one_clock=one_clock)
        for (source, destination), times in ((pair, forth), (pair[::-1], back))
    ]


def _group(pair: tuple[int, int], backend: str, timeout_s: float) -> dist.ProcessGroup:
    try:
        group: dist.ProcessGroup = dist.new_group(list(pair), backend=backend, timeout=timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise TransferFailed(f"connecting the ranks {pair[0]} and {pair[1]}: {_absent(timeout_s)}") from error
    return group


def _together(control: dist.ProcessGroup, value: T) -> list[T]:
    """What every rank gives, by rank."""
    try:
        return share(control, value)
    except RuntimeError as error:
        raise TransferFailed(f"waiting for the other ranks: {_absent(None)}") from error


def _absent(timeout_s: float | None) -> str:
    late = "" if timeout_s is None else f", or did not come in {timeout_s:g} s"
    return f"another rank has ended or failed, and its own message says why{late}"
