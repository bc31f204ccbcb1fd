"""The keys of [topology], in the job or in a file of its own: their types, meanings and rules; `topology` puts them to use."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from schedc.io.conform import Bandwidth, Count, Duration, Pair, Rules, Section, key
from schedc.io.location import show


class LinkCost(Section, frozen=True, kw_only=True):
    """What a message costs: it arrives `latency` after it has left the link, which it occupies for bytes / bandwidth."""

    latency_ns: Annotated[Duration | None, key("From leaving the link to arrival. Default: 0.")] = None
    bytes_per_second: Annotated[
        Bandwidth | None,
        key("A message occupies the link for bytes ÷ bandwidth, rounded up to a nanosecond. Default: for no time."),
    ] = None
    transfer_ns: Annotated[
        Duration | None,
        key(
            "The occupancy of one message of any size, instead of `bandwidth`. What else crosses the link (gradients in `assign`,"
            " layers in `repartition`) takes longer in proportion to its size; where messages have no size, or several, a"
            " `bandwidth` is needed."
        ),
    ] = None

    holds_latency: Annotated[
        bool | None,
        key("A message occupies the link for its latency, too, and arrives when it leaves the link. Default: false."),
    ] = None

    def rules(self) -> Rules:
        """One occupancy."""
        if self.bytes_per_second is not None and self.transfer_ns is not None:
            yield "transfer", "both bandwidth and transfer", "one of them"

    @property
    def is_silent(self) -> bool:
        """Whether it says nothing."""
        return self.latency_ns is self.bytes_per_second is self.transfer_ns is self.holds_latency is None


class SiteLinkOverride(LinkCost, frozen=True, kw_only=True):
    """The trunk of two sites; what it does not say holds as in `between`."""

    sites: Annotated[Pair, key("Two sites, counted from 0.")]
    directed: Annotated[bool, key("Only from the first to the second; false: both ways.")] = False

    def rules(self) -> Rules:
        """Two sites, and something that differs."""
        yield from _of_pair("sites", self.sites)
        yield from LinkCost.rules(self)
        if self.is_silent:
            yield _SILENT


class LinkOverride(LinkCost, frozen=True, kw_only=True):
    """The link of two ranks; what it does not say (latency, or bandwidth and transfer) holds as for its sites."""

    ranks: Annotated[Pair, key("Two ranks, counted from 0.")]
    directed: Annotated[bool, key("Only from the first to the second; false: both ways.")] = False
    trunk: Annotated[bool, key("Between sites: share the sites' trunk; false: a line of its own.")] = True

    def rules(self) -> Rules:
        """Two ranks, and something that differs."""
        yield from _of_pair("ranks", self.ranks)
        yield from LinkCost.rules(self)
        if self.is_silent and self.trunk:
            yield _SILENT


_SILENT = ("", "neither latency nor bandwidth nor transfer", "one of them or more")


def _of_pair(name: str, pair: tuple[int, ...]) -> Rules:
    if pair[0] == pair[1]:
        yield name, show(pair), f"two different {name}"


class TopologyFile(Section, frozen=True, kw_only=True):
    """Sites and links: the table [topology], or a file of its own."""

    sites: Annotated[
        tuple[Count, ...] | None,
        key("Ranks per datacenter, in order; they add up to `ranks`. Default: one site.", note="ranks in each site"),
    ] = None
    inbound: Annotated[
        bool,
        key("Each rank receives all messages over one wire, one after the other, whoever sends them. With one site alone."),
    ] = False
    within: Annotated[LinkCost | None, key("Any two ranks of one site. Default: no time.")] = None
    between: Annotated[
        LinkCost | None,
        key(
            "Any two ranks of different sites. For each ordered pair of sites these links share one trunk. Required if transfers"
            " cross sites, unless `site_link` or `link` covers the pair; refused with one site."
        ),
    ] = None
    site_link: Annotated[tuple[SiteLinkOverride, ...], key("Pairs of sites that differ from `between`.")] = ()
    link: Annotated[tuple[LinkOverride, ...], key("Pairs of ranks that differ; overrides all the above.")] = ()


class TopologySection(TopologyFile, frozen=True, kw_only=True):
    """Sites and links."""

    path: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        key("A topology file (TOML) with the other keys, instead of them; relative to the job's directory."),
    ] = None

    def rules(self) -> Rules:
        """Here or in a file."""
        if self.path is not None and self != TopologySection(path=self.path):
            yield "", "other keys beside topology.path", "the topology here or in the file, not in both"
