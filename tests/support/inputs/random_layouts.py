"""Random layouts of those that a job leaves open, symmetric ones too; shares no code with the search over them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir.layout import Layout

if TYPE_CHECKING:
    from random import Random

    from schedc.ir.layout import OpenLayout
    from schedc.ir.workload import Workload


def random_layout(random: Random, workload: Workload, open_layout: OpenLayout) -> Layout:
    """One of them; it may be one that the verifier refuses."""
    placed, bounds, again = open_layout.placement, open_layout.layers_of_stage, open_layout.recompute
    layers, ranks = len(workload.layers), workload.ranks
    if placed is not None:
        of_stage = placed.rank_of_stage
    else:
        most = min(layers, open_layout.chunks * ranks)
        stages = len(bounds) if bounds is not None else len(again) if len(again) > 1 else random.randint(ranks, most)
        order = [*range(ranks)]
        while len(order) < stages:
            order.append(random.choice([rank for rank in range(ranks) if order.count(rank) < open_layout.chunks]))
        random.shuffle(order)
        of_stage = tuple(order)
    if bounds is None:
        cuts = sorted(random.sample(range(1, layers), len(of_stage) - 1))
        bounds = tuple(pairwise((0, *cuts, layers)))
    recomputed = [
        random.random() < 0.5 if open_layout.recompute_is_open else open_layout.recomputes(stage) for stage in range(len(of_stage))
    ]
    return Layout(
        layers_of_stage=bounds,
        rank_of_stage=of_stage,
        paths=(tuple(range(len(of_stage))),),
        recomputed=frozenset(stage for stage, recomputes in enumerate(recomputed) if recomputes),
    )
