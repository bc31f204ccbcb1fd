"""Which ranks of a workload are interchangeable: swapping two of them changes no cost.

Takes a workload; gives its ranks in classes. Bounds and searches over layouts look at one rank of each class where any will do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedc.ir.problem import Link
    from schedc.ir.workload import Network, Workload


def rank_kinds(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """The ranks, those that are interchangeable together; ascending in each class, and the classes by their first.

    Ranks a and b are interchangeable if they have the same device, the link from a to b is the one from b to a (cost, and trunk if
    it has one), and for every other rank x, the link from a to x is the one from b to x, and that from x to a the one from x to b.

    Proof that a layout may then swap them, also several such pairs: with a and b renamed, the problem of the one layout becomes
    that of the other, op for op, link for link and trunk for trunk, as no cost depends on anything else of a rank. Collectives
    depend on the stage alone. So every schedule of the one is one of the other, with the same times. The relation is transitive, as
    swapping a and c is swapping a and b, then b and c, then a and b; so the first member of a class can stand for all of it.
    """
    kinds: list[list[int]] = []
    for rank in range(workload.ranks):
        for kind in kinds:
            if _interchangeable(workload, kind[0], rank):
                kind.append(rank)
                break
        else:
            kinds.append([rank])
    return tuple(map(tuple, kinds))


def _interchangeable(workload: Workload, a: int, b: int) -> bool:
    network, others = workload.network, [x for x in range(workload.ranks) if x not in (a, b)]
    return (
        workload.devices[a] == workload.devices[b]
        and _cost(network, a, b) == _cost(network, b, a)
        and all(_cost(network, a, x) == _cost(network, b, x) and _cost(network, x, a) == _cost(network, x, b) for x in others)
    )


def _cost(network: Network, source: int, destination: int) -> Link | None:
    """The link, without the names of its ends."""
    link = network.link(source, destination)
    return None if link is None else replace(link, source=0, destination=1)
