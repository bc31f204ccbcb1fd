"""Random workloads with a layout each, over everything that the two can say.

Drawn by `Random`, not by a strategy: that is some thirty times faster, and the small numbers need no shrinking.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from schedc.ir.costs import MessageCost
from schedc.ir.layout import Layout
from schedc.ir.network import Link, Network, SiteLink
from schedc.ir.problem import DataParallel, Objective
from schedc.ir.workload import Device, Layer, Semantics, TiedWeight, Workload
from schedc.lower.placement import place

if TYPE_CHECKING:
    from random import Random

    from schedc.ir.layout import Placement

DEVICES = (Device(), Device(limit_bytes=200), Device(in_flight=2), Device(capacity_bytes=10**4))
SPEEDS = (Fraction(1), Fraction(1), Fraction(7, 10), Fraction(3, 2))


def random_workload(random: Random) -> tuple[Workload, Layout]:
    """A sound workload, and a sound layout of it."""
    ranks, microbatches = random.randint(1, 4), random.randint(1, 4)
    placed = _placement(random, ranks)
    stages, count = len(placed.rank_of_stage), placed.pieces + random.randint(0, 4)
    width = random.randint(1, 3)  # of a layer, in layers of the model
    known = len(placed.paths) > 1 or random.random() < 0.5
    positions = [(index * width, (index + 1) * width) if known else None for index in range(count)]
    copies = random.randint(1, len(placed.paths))  # two: the stages of the second path have costs of their own
    semantics = random.choice(list(Semantics)) if len(placed.paths) == 1 else Semantics.SCHEDC
    recomputes = semantics is Semantics.SCHEDC and random.random() < 0.5
    zero = random.choice([None, 0, 1])

    def for_stages(most: int) -> tuple[int, ...]:
        return tuple(random.randint(0, most) for _ in range(random.choice([1, stages])))

    workload = Workload(
        name="random",
        microbatches=microbatches,
        layers=tuple(_layer(random, microbatches, position) for position in positions * copies),
        devices=tuple(replace(random.choice(DEVICES), speed=random.choice(SPEEDS)) for _ in range(ranks)),
        network=_network(random, ranks),
        static_bytes=for_stages(5),
        data_parallel=None
        if zero is None
        else DataParallel(size=2, zero_stage=zero, reduce_scatter_ns=for_stages(9), all_gather_ns=for_stages(9) if zero else ()),
        split_backward=random.random() < 0.5,
        semantics=semantics,
        objective=random.choice(list(Objective)),
        in_order=random.random() < 0.5,
    )
    cuts = [0, *sorted(random.sample(range(1, count), placed.pieces - 1)), count]
    first = {stage: count * (copies - 1) * index for index, path in enumerate(placed.paths) for stage in path}
    pieces = enumerate(placed.piece_of_stage)
    layers_of_stage = tuple((first[stage] + cuts[piece], first[stage] + cuts[piece + 1]) for stage, piece in pieces)
    if len(placed.paths) == 1 and count > 1 and random.random() < 0.3:
        rank_of = [placed.rank_of_stage[stage] for stage, (first, last) in enumerate(layers_of_stage) for _ in range(first, last)]
        layers = sorted(random.sample(range(count), 2))
        ends = rank_of[layers[0]], rank_of[layers[1]]
        if ends[0] == ends[1] or all(workload.network.link(*each) is not None for each in (ends, ends[::-1])):
            tie = TiedWeight(layers=(layers[0], layers[1]), gradient_bytes=random.randint(0, 9))
            workload = replace(workload, ties=(tie,))
    return workload, Layout(
        layers_of_stage=layers_of_stage,
        rank_of_stage=placed.rank_of_stage,
        paths=placed.paths,
        recomputed=frozenset(stage for stage in range(stages) if recomputes and random.random() < 0.5),
    )


def _placement(random: Random, ranks: int) -> Placement:
    """Up to three stages more than ranks, in any order; or two paths."""
    if random.random() < 0.4:
        return place("bidirectional", ranks)
    rank_of_stage = [*range(ranks), *(random.randrange(ranks) for _ in range(random.randint(0, 3)))]
    random.shuffle(rank_of_stage)
    return place(rank_of_stage, ranks)


def _layer(random: Random, microbatches: int, position: tuple[int, int] | None) -> Layer:
    """One layer, whose durations are the same for all microbatches or differ."""

    def durations_ns() -> tuple[int, ...]:
        return tuple(random.randint(0, 9) for _ in range(random.choice([1, 1, microbatches])))

    activation = random.randint(0, 9)
    return Layer(
        forward_ns=durations_ns(),
        backward_input_ns=durations_ns(),
        backward_weight_ns=durations_ns(),
        backward_ns=durations_ns(),
        activation_bytes=activation,
        activation_after_input_bytes=random.randint(0, activation),
        message_bytes=random.randint(0, 9),
        gradient_message_bytes=random.randint(0, 9),
        forward_again_ns=random.choice([None, durations_ns()]),
        parameters=random.randint(0, 9),
        static_bytes=random.randint(0, 99),
        position=position,
    )


def _network(random: Random, ranks: int) -> Network:
    """Sites of consecutive ranks, all connected, with pairs of sites and of ranks that differ."""
    site_of_rank = tuple(sorted(random.randint(0, 2) for _ in range(ranks)))
    count = max(site_of_rank) + 1
    sites = [(x, y) for x in range(count) for y in range(count) if x != y]
    pairs = [(x, y) for x in range(ranks) for y in range(ranks) if x != y]
    between = random.choice([None, _cost(random)])
    of_sites = sites if between is None else random.sample(sites, random.randint(0, len(sites)))
    of_ranks = random.sample(pairs, random.randint(0, len(pairs)))
    return Network(
        site_of_rank=site_of_rank,
        within=_cost(random),
        between=between,
        site_links=tuple(SiteLink(source=x, destination=y, cost=_cost(random)) for x, y in of_sites),
        links=tuple(Link.of(x, y, _cost(random), random.choice([None, "site0>site1", "east"])) for x, y in of_ranks),
    )


def _cost(random: Random) -> MessageCost:
    transfer_ns, bytes_per_second = random.choice([None, random.randint(0, 9)]), random.choice([None, random.randint(1, 10**10)])
    return MessageCost(latency_ns=random.randint(0, 9), transfer_ns=transfer_ns, bytes_per_second=bytes_per_second)
