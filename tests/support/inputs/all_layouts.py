"""Every layout of a tiny workload, and the best objective of any, by trying them all; shares no code with the search."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING

from schedc.ir.layout import Layout, OpenLayout
from schedc.ir.network import Link, Network
from schedc.ir.problem import DataParallel, Objective
from schedc.ir.workload import Device, Layer, Workload
from schedc.lower.problem import problem_of
from schedc.verify.layout import verify_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from schedc.ir.problem import Problem


def all_layouts(workload: Workload, open_layout: OpenLayout) -> Iterator[Layout]:
    """All layouts that are open and that the verifier accepts, symmetric ones too."""
    layers = len(workload.layers)
    for stages in range(1, layers + 1):
        for inner in combinations(range(1, layers), stages - 1):
            bounds = tuple(pairwise((0, *inner, layers)))
            if open_layout.layers_of_stage not in (None, bounds):
                continue
            for ranks in product(range(workload.ranks), repeat=stages):
                given = open_layout.placement
                fits = max(map(ranks.count, ranks)) <= open_layout.chunks if given is None else ranks == given.rank_of_stage
                if not fits or len(open_layout.recompute) not in (1, stages):
                    continue
                given_again = tuple(open_layout.recomputes(stage) for stage in range(stages))
                every = product((False, True), repeat=stages) if open_layout.recompute_is_open else (given_again,)
                for values in every:
                    again = frozenset(stage for stage in range(stages) if values[stage])
                    layout = Layout(rank_of_stage=ranks, paths=(tuple(range(stages)),), layers_of_stage=bounds, recomputed=again)
                    if not verify_layout(workload, layout):
                        yield layout


def best_of_all(workload: Workload, open_layout: OpenLayout, optimum: Callable[[Problem], int | None]) -> int | None:
    """The least optimum of any layout; None if none has a schedule."""
    found = (optimum(problem_of(workload, layout)) for layout in all_layouts(workload, open_layout))
    return min((each for each in found if each is not None), default=None)


def tiny_workload(
    random: Random, *, layers: int, ranks: int, microbatches: int, differ: bool = False, parallel: bool = False
) -> Workload:
    """Unequal layers, devices and links, with and without memory limits; microbatches may `differ`, with `parallel` collectives."""
    split, shares = random.random() < 0.7, random.choice([1.0, 1.0, 0.7])

    values = microbatches if differ and random.random() < 0.4 else 1

    def layer() -> Layer:
        forward, gradient, weight = (tuple(random.randint(2, 7) for _ in range(values)) for _ in range(3))
        size = random.randint(1, 4)
        return Layer(
            forward_ns=forward,
            backward_input_ns=gradient,
            backward_weight_ns=weight,
            backward_ns=tuple(max(2, round(shares * (a + b))) for a, b in zip(gradient, weight, strict=True)),
            activation_bytes=size,
            activation_after_input_bytes=random.randint(0, size),
            message_bytes=random.randint(0, 3),
            gradient_message_bytes=random.randint(0, 3),
            static_bytes=random.randint(0, 3),
        )

    chain = tuple(layer() for _ in range(layers))
    whole = sum(each.activation_bytes for each in chain)
    least = -(-whole // ranks) + max(each.activation_bytes for each in chain)
    kind = random.choice(["none", "none", "limit", "limit", "capacity", "in_flight"])

    def device() -> Device:
        speed = random.choice([Fraction(1), Fraction(1), Fraction(1), Fraction(2), Fraction(7, 10)])
        if kind == "limit":
            return Device(speed=speed, limit_bytes=random.randint(least, 3 * least))
        if kind == "capacity":
            return Device(speed=speed, capacity_bytes=random.randint(least, 3 * least) + 6)
        return Device(speed=speed, in_flight=random.randint(1, 3) if kind == "in_flight" else None)

    collectives = None
    if parallel and random.random() < 0.4:
        gather_ns = random.choice([(), (random.randint(0, 9),)])
        collectives = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(random.randint(0, 9),), all_gather_ns=gather_ns)
    one = device()
    alike = random.random() < 0.5
    links = tuple(
        Link(source=a, destination=b, latency_ns=random.choice([0, 0, 4, 12]), transfer_ns=random.choice([None, 0, 3, 8]))
        for a in range(ranks)
        for b in range(ranks)
        if a != b and random.random() < 0.7
    )
    devices = tuple(one if alike else device() for _ in range(ranks))
    network = Network(site_of_rank=(0,) * ranks, links=random.choice([(), links]))
    if kind != "capacity" or random.choice([True, False]):
        chain = tuple(replace(each, static_bytes=0) for each in chain)
    return Workload(
        name="tiny",
        microbatches=microbatches,
        layers=chain,
        devices=devices,
        network=network,
        data_parallel=collectives,
        split_backward=split,
        objective=random.choice([Objective.MAKESPAN, Objective.MAKESPAN, Objective.STAGE_SPAN]),
    )
