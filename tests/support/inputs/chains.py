"""Small chains of layers on three ranks, one stage on each, whose boundaries can all be tried."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir import Conditions, Kind, Layer, Layout, MessageCost
from schedc.ir.network import Network
from schedc.ir.workload import Device, Workload

if TYPE_CHECKING:
    from random import Random

RANKS, LAYERS, STEPS = 3, 9, 100


def workload(random: Random, *, capacity: int | None = None) -> Workload:
    """Layers of any length on three ranks."""
    layers = []
    for position in range(LAYERS):
        forward, gradient, weight = (random.randint(5, 15) * 1000 for _ in range(3))
        layers.append(
            Layer(
                forward_ns=(forward,),
                backward_input_ns=(gradient,),
                backward_weight_ns=(weight,),
                backward_ns=(gradient + weight,),
                activation_bytes=2,
                activation_after_input_bytes=1,
                message_bytes=1,
                gradient_message_bytes=1,
                parameters=(count := random.randint(1, 9)),
                static_bytes=4 * count,
                position=(position, position + 1),
            )
        )
    return Workload(
        name="chain",
        microbatches=4,
        layers=tuple(layers),
        devices=(Device(capacity_bytes=capacity),) * RANKS,
        network=Network(site_of_rank=(0,) * RANKS, within=MessageCost(latency_ns=500, bytes_per_second=10**8)),
    )


def layout(cuts: tuple[int, ...]) -> Layout:
    bounds = tuple(pairwise((0, *cuts, LAYERS)))
    return Layout(
        rank_of_stage=tuple(range(RANKS)), paths=(tuple(range(RANKS)),), layers_of_stage=bounds, placement="unidirectional"
    )


def slow(rank: int, factor: float) -> Conditions:
    return Conditions(slowdown={(rank, kind): factor for kind in (Kind.F, Kind.B, Kind.W)})
