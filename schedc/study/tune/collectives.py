"""How long the collectives of data parallelism take, from bytes, replicas and links.

Within a site they are rings: of n devices, each sends (n − 1) / n of the bytes for a reduce-scatter, and as much for an
all-gather, in n − 1 messages. Where replicas of a stage are in several sites, collectives are hierarchical: each site reduces its
own, the sites exchange the parts in a ring of sites, and the all-gather goes the same way back. So between two sites each gradient
crosses once, half for the reduce-scatter and half for the all-gather.

The stages of a pipeline finish at about the same time, so the collectives of all of its ranks share what connects two sites: each
has an equal part of the bandwidth, all the time. What they gain when others are done is not counted.

Experts have replicas of their own: with expert parallelism e, each pipeline has 1/e of them, and what reduces the gradients of one
are replicas ÷ e. The collectives of the others and those of experts follow each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.costs import MessageCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.request import TuneRequest


def ring_ns(link: MessageCost, members: int, size_bytes: int) -> int:
    """A reduce-scatter or an all-gather of this many bytes among this many; a fraction of a nanosecond counts as a whole."""
    steps = members - 1
    if link.bytes_per_second is None or not steps:
        return steps * link.latency_ns
    return steps * link.latency_ns + -(-steps * size_bytes * 1_000_000_000 // (members * link.bytes_per_second))


def one_way_ns(replicas_of_site: Sequence[int], within: MessageCost, between: MessageCost | None, size_bytes: int) -> int:
    """A reduce-scatter, or an all-gather, of this many bytes of one device of a stage among the stage's replicas.

    Args:
        replicas_of_site: for each site that has some.
        within: of one device.
        between: of one rank's devices of all replicas in a site together, for one device of them; None: all are in one site.
        size_bytes: of the device.
    """
    within_ns = ring_ns(within, max(replicas_of_site), size_bytes)
    if between is None:
        return within_ns
    sites = len(replicas_of_site)
    # The slower of the two: what connects the sites, or the devices' own links for their parts.
    part_bytes = -(-size_bytes // min(replicas_of_site))
    own = MessageCost(latency_ns=between.latency_ns, bytes_per_second=within.bytes_per_second)
    return within_ns + max(ring_ns(between, sites, size_bytes), ring_ns(own, sites, part_bytes))


def collectives_ns(request: TuneRequest, candidate: TuneCandidate, others: int, experts: int) -> tuple[int, int]:
    """Reduce-scatter and all-gather of a stage, from the parameters of one device of it, those of experts apart.

    With ZeRO 0 the first is an all-reduce, and there is no second.
    """
    memory, ep = request.file.memory, request.file.model.ep

    def both_ns(bytes_of_each: int) -> int:
        total_ns = _among_ns(request, candidate, 1, others * bytes_of_each)
        return total_ns + (_among_ns(request, candidate, ep, experts * bytes_of_each) if experts else 0)

    reduce_ns, gather_ns = both_ns(memory.gradient_bytes), both_ns(memory.weight_bytes)
    return (reduce_ns, gather_ns) if candidate.zero_stage else (2 * reduce_ns, 0)


def _among_ns(request: TuneRequest, candidate: TuneCandidate, divided: int, size_bytes: int) -> int:
    """Among the replicas of a stage, or of experts that expert parallelism of this size divides.

    Groups of experts' replicas are beside each other, so each has its part of what connects sites.
    """
    between = None
    if len(candidate.replicas_of_site) > 1:
        assert request.between is not None
        between = shared(request.between, candidate.ranks * request.group * divided)
    return one_way_ns([replicas // divided for replicas in candidate.replicas_of_site], request.within, between, size_bytes)


def shared(link: MessageCost, senders: int, own: MessageCost | None = None) -> MessageCost:
    """An equal part of a bandwidth for each of the senders, and no more than a sender's own."""
    if link.bytes_per_second is None:
        return link
    share = max(1, link.bytes_per_second // senders)
    if own is not None and own.bytes_per_second is not None:
        share = min(share, own.bytes_per_second)
    return MessageCost(latency_ns=link.latency_ns, bytes_per_second=share)
