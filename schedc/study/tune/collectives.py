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


@dataclass(frozen=True, slots=True)
class Path:
    """What a device of a ring sends over."""

    latency_ns: int
    bytes_per_second: int | None
    """None: sending takes no time but the latency."""

    def ring_ns(self, members: int, size_bytes: int) -> int:
        """A reduce-scatter or an all-gather of this many bytes among this many; a fraction of a nanosecond counts as a whole."""
        if members == 1:
            return 0
        steps = members - 1
        if self.bytes_per_second is None:
            return steps * self.latency_ns
        return steps * self.latency_ns + -(-steps * size_bytes * 1_000_000_000 // (members * self.bytes_per_second))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Among the replicas of one stage: those of one device of the stage, with its share of what connects sites."""

    replicas_of_site: tuple[int, ...]
    within: Path
    """Of one device."""
    between: Path | None
    """Of one rank's devices of all replicas in a site together, for one device of them; None: the replicas are in one site."""

    def one_way_ns(self, size_bytes: int) -> int:
        """A reduce-scatter, or an all-gather, of this many bytes of each device."""
        most = max(self.replicas_of_site)
        within_ns = self.within.ring_ns(most, size_bytes)
        if self.between is None:
            return within_ns
        sites = len(self.replicas_of_site)
        # The slower of the two: what connects the sites, or the devices' own links for their parts.
        part_bytes = -(-size_bytes // min(self.replicas_of_site))
        own = Path(self.between.latency_ns, self.within.bytes_per_second)
        return within_ns + max(self.between.ring_ns(sites, size_bytes), own.ring_ns(sites, part_bytes))
