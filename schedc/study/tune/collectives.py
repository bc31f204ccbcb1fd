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

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.ir.costs import MessageCost

if TYPE_CHECKING:
    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.request import TuneRequest


def ring_ns(link: MessageCost, members: int, size_bytes: int) -> int:
    """A reduce-scatter or an all-gather of this many bytes among this many; a fraction of a nanosecond counts as a whole."""
    steps = members - 1
    if link.bytes_per_second is None or not steps:
        return steps * link.latency_ns
    return steps * link.latency_ns + -(-steps * size_bytes * 1_000_000_000 // (members * link.bytes_per_second))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Among the replicas of one stage: those of one device of the stage, with its share of what connects sites."""

    replicas_of_site: tuple[int, ...]
    within: MessageCost
    """Of one device."""
    between: MessageCost | None
    """Of one rank's devices of all replicas in a site together, for one device of them; None: the replicas are in one site."""

    def one_way_ns(self, size_bytes: int) -> int:
        """A reduce-scatter, or an all-gather, of this many bytes of each device."""
        most = max(self.replicas_of_site)
        within_ns = ring_ns(self.within, most, size_bytes)
        if self.between is None:
            return within_ns
        sites = len(self.replicas_of_site)
        # The slower of the two: what connects the sites, or the devices' own links for their parts.
        part_bytes = -(-size_bytes // min(self.replicas_of_site))
        own = MessageCost(latency_ns=self.between.latency_ns, bytes_per_second=self.within.bytes_per_second)
        return within_ns + max(ring_ns(self.between, sites, size_bytes), ring_ns(own, sites, part_bytes))


def collectives_ns(request: TuneRequest, candidate: TuneCandidate, others: int, experts: int) -> tuple[int, int]:
    """Reduce-scatter and all-gather of a stage, from the parameters of one device of it, those of experts apart.

    With ZeRO 0 the first is an all-reduce, and there is no second.
    """
    memory = request.file.memory
    groups = [(_among(request, candidate, 1), others)]
    if experts:
        groups.append((_among(request, candidate, request.file.model.ep), experts))
    reduce_ns, gather_ns = (
        sum(collectives.one_way_ns(count * each) for collectives, count in groups)
        for each in (memory.gradient_bytes, memory.weight_bytes)
    )
    return (reduce_ns, gather_ns) if candidate.zero_stage else (2 * reduce_ns, 0)


def _among(request: TuneRequest, candidate: TuneCandidate, divided: int) -> Collectives:
    """Those among the replicas of a stage, or of experts that expert parallelism of this size divides.

    Groups of experts' replicas are beside each other, so each has its part of what connects sites.
    """
    between = None
    if len(candidate.replicas_of_site) > 1:
        assert request.between is not None
        between = shared(request.between, candidate.ranks * request.group * divided)
    return Collectives(
        replicas_of_site=tuple(replicas // divided for replicas in candidate.replicas_of_site),
        within=request.within,
        between=between,
    )


def shared(link: MessageCost, senders: int, own: MessageCost | None = None) -> MessageCost:
    """An equal part of a bandwidth for each of the senders, and no more than a sender's own."""
    if link.bytes_per_second is None:
        return link
    share = max(1, link.bytes_per_second // senders)
    if own is not None and own.bytes_per_second is not None:
        share = min(share, own.bytes_per_second)
    return MessageCost(latency_ns=link.latency_ns, bytes_per_second=share)
