"""Which share of a device's peaks is reached, and how long work takes: the roofline.

An operator takes the longer of computing and moving its bytes through the device's memory, then its collectives, and a fixed time
for each launch. Shares of products are constants, or those of a *table of the device*: products measured by shape, of which the
nearest ones count. Each constant stands with its reason; docs/measurements/model-costs.md has the ratios of predicted to measured
durations. Where a table has collectives, they take what was measured of their kind, group and size.

A table is a file (`schedc.formats.operator_table`): a user's, or that of a known device beside this module.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from heapq import nsmallest
from importlib import resources
from math import inf, log2
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from schedc.costs.operators.operator import CollectiveKind, Engine
from schedc.formats.operator_table import read_operator_table
from schedc.io.location import Location, show

if TYPE_CHECKING:
    from schedc.costs.devices import Accelerator
    from schedc.costs.operators.operator import Operator, OperatorWork, ProductShape

PHASES = ("forward", "backward_input", "backward_weight")
NEAREST, SPREAD = 4, 0.25
"""The share of a shape is the mean of those of this many nearest shapes, weighted by 1 / (`SPREAD` + d²); d is the distance of the
logarithms (base 2) of their numbers. Neighbours smooth what single measurements scatter: products that differ by 10 % in one number
differ by up to 40 % in their measured share."""


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
    permute: float = 0.8
    """Of the memory's bandwidth, for rows in another order."""
    loss: float = 0.8
    """The same of a fused loss."""
    link: float = 0.75
    """Large collectives reach 70 to 80 % of the links' bandwidth (NCCL's bus bandwidth against NVLink's)."""
    exchange: float = 0.75
    """The same of an all-to-all."""
    launch_s: float = 5e-6
    """Each operator's kernels begin, fill and drain the device: a few microseconds."""
    move_s: float = 5e-6
    """The same where nothing is computed."""
    collective_s: float = 2e-5
    """Each collective synchronizes its devices first: about 20 µs within a node."""
    sustained: float = 1.0
    """What products keep in a training step of the speed that they reach in a table, where each is measured alone; fitted to steps
    where a table's device has measured ones. The clock under load and what the host takes may be in it; they are not told apart."""
    table: str = ""
    """Which table has the shares of products: a known device's, by its name, or a file's, by its absolute path; empty: none."""

    def product(self, engine: Engine, phase: str, shape: ProductShape | None) -> float:
        """The share of the peak of a product in a phase."""
        if self.table and shape is not None and (found := _nearest(self.table, engine, phase, shape)) is not None:
            return found * self.sustained
        return {Engine.ATTENTION: self.attention, Engine.SCAN: self.scan}.get(engine, self.matrix)


ROOFLINE = Efficiency()
"""The constants, where there is no table."""


class _Table(NamedTuple):
    """One, to look up in."""

    device: str
    constants: dict[str, float]
    shares: dict[tuple[str, str], list[tuple[tuple[float, ...], float]]]
    """By engine and phase: the logarithms of each shape, and its share."""
    collectives: dict[str, dict[int, list[tuple[float, float]]]]
    """By kind and group: bytes and seconds, ascending."""


@cache
def _table(name: str) -> _Table | None:
    """Of a known device, by its name, or in the file of this absolute path; nothing: the device has none."""
    path = Path(name)
    if not path.is_absolute():
        path = Path(str(resources.files("schedc.costs").joinpath(f"operators-{name}.json")))
        if not path.is_file():
            return None
    read = read_operator_table(path)
    shares: dict[tuple[str, str], list[tuple[tuple[float, ...], float]]] = {}
    for engine, phase, *shape, share in read.shares:
        shares.setdefault((engine, phase), []).append((tuple(map(log2, shape)), share))
    collectives: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for kind, group, sent_bytes, took_s in sorted(read.collectives):
        collectives.setdefault(kind, {}).setdefault(group, []).append((sent_bytes, took_s))
    return _Table(read.device, read.constants.given(), shares, collectives)


def efficiency_of(device: str, table: Path | None = None) -> Efficiency:
    """That of a known device: the table's in the file, else that of its own table, else the constants.

    Raises:
        InvalidInput: the file is no table, or one of another device.
    """
    name = device if table is None else str(table.absolute())
    found = _table(name)
    if found is None:
        return ROOFLINE
    if found.device != device:
        raise (Location(str(table)) / "device").refuse(show(found.device), f"{show(device)}, whose costs are asked for")
    return replace(ROOFLINE, **found.constants, table=name)


@lru_cache(maxsize=4096)
def _nearest(name: str, engine: Engine, phase: str, shape: ProductShape) -> float | None:
    """The share of the nearest measured shapes; None: none of the kind was measured."""
    table, at = _table(name), tuple(map(log2, shape))
    known = () if table is None else table.shares.get((engine, phase), ())
    near = nsmallest(NEAREST, ((sum((a - b) ** 2 for a, b in zip(at, other, strict=True)), share) for other, share in known))
    weights = [1 / (SPREAD + square) for square, _ in near]
    return sum(weight * share for weight, (_, share) in zip(weights, near, strict=True)) / sum(weights) if near else None


def measured_s(efficiency: Efficiency, kind: CollectiveKind, group: int, sent_bytes: float, *, least: bool = False) -> float | None:
    """Seconds of a collective in which each of the group sends this much, by the table; None: it has none such.

    Between the sizes that were measured it interpolates; below the least a collective takes as long as that one, above the largest
    the last rate goes on. `least`: at the highest rate in the table instead, so that no number of collectives that send as much
    together take less.
    """
    table = _table(efficiency.table) if efficiency.table else None
    known = None if table is None else table.collectives.get(kind, {}).get(group)
    if not known:
        return None
    last = len(known) - 1
    at = last if least else min(max(bisect_left([size for size, _ in known], sent_bytes), 1), last)
    (low, low_s), (high, high_s) = known[max(0, at - 1)], known[at]
    rate = (high_s - low_s) / (high - low) if high > low else high_s / high if high else 0.0
    if least:
        return sent_bytes * max(0.0, min([rate, *(took_s / size for size, took_s in known if size)]))
    return max(known[0][1], low_s + rate * (sent_bytes - low))


def collective_s(work: OperatorWork, device: Accelerator, efficiency: Efficiency) -> float:
    """Seconds of a phase's collectives: as measured, else by bandwidths, their share, and a fixed time for each.

    Links within a node and its adapters work at the same time; the slower ones count.
    """
    if work.collectives:
        each_s = measured_s(efficiency, work.collective, work.spans, work.link_bytes / work.collectives)
        if each_s is not None:
            return work.collectives * each_s
    within_bytes, reached = work.link_bytes, efficiency.link
    if work.collective is CollectiveKind.EXCHANGE:
        within_bytes, reached = within_bytes - work.network_bytes, efficiency.exchange
    busy_s = max(within_bytes / device.link_bytes_per_s, work.network_bytes / device.network_bytes_per_s)
    return busy_s / reached + work.collectives * efficiency.collective_s


def sustained(share: float) -> Efficiency:
    """One share of the peak for all FLOPs, everything else for nothing: for who knows the throughput that a whole model reaches.

    Args:
        share: of the dense peak, above 0; 500 TFLOPS on H100 is 0.505.
    """
    moved = Efficiency(memory=inf, permute=inf, loss=inf, link=inf, exchange=inf, launch_s=0.0, move_s=0.0, collective_s=0.0)
    return replace(moved, matrix=share, attention=share, scan=share)


def operator_s(operator: Operator, phase: str, device: Accelerator, efficiency: Efficiency, *, element_bytes: int = 2) -> float:
    """Seconds: the longer of computing and of moving bytes through the memory, a launch, and the collectives.

    `phase` is one of `PHASES`; the numbers that are multiplied have `element_bytes`: 2, or 4 for TF32.
    """
    work: OperatorWork = getattr(operator, phase)
    streamed = {Engine.PERMUTE: efficiency.permute, Engine.LOSS: efficiency.loss}.get(operator.engine, efficiency.memory)
    busy_s = work.memory_bytes / (device.memory_bytes_per_s * streamed)
    if work.flops:
        peak = device.flops_per_s if element_bytes <= 2 else device.tf32_flops_per_s
        share = efficiency.product(operator.engine, phase, operator.shape)
        busy_s = max(busy_s, work.flops / (peak * share)) + efficiency.launch_s
    elif work.memory_bytes:
        busy_s += efficiency.move_s
    linked_s = collective_s(work, device, efficiency)
    return max(busy_s, linked_s) if work.overlapped else busy_s + linked_s
