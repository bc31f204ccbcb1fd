"""What a candidate's replicas do together, and what they hold: bytes for each parameter, collectives, the optimizer's step.

How long the collectives of data parallelism take follows from bytes, replicas and links.

Within a site they are rings: of n devices, each sends (n − 1) / n of the bytes for a reduce-scatter, and as much for an
all-gather, in n − 1 messages. Where replicas of a stage are in several sites, collectives are hierarchical: each site reduces its
own, the sites exchange the parts in a ring of sites, and the all-gather goes the same way back. So between two sites each gradient
crosses once, half for the reduce-scatter and half for the all-gather.

The stages of a pipeline finish at about the same time, so the collectives of all of its ranks share what connects two sites: each
has an equal part of the bandwidth, all the time. What they gain when others are done is not counted.

Where steps overlap, the collectives of a stage and the optimizer's step are its update, `U`; its rank computes nothing meanwhile.

Experts have replicas of their own: with expert parallelism e, each pipeline has 1/e of them, and what reduces the gradients of one
are replicas ÷ e. The collectives of the others and those of experts follow each other.

ZeRO 2 and 3 reduce, and gather, layer by layer beside the blocks (`layer_costs`). What is left at the ends of a step is the first
layer's: its weights come before the first forward, its gradients go behind the last backward. Or ZeRO 3 gathers stage by stage,
where the plan says, and reduces a stage's gradients once.

Within a site the devices of a node are those of a tensor parallel group first, then those that share sequences, then replicas; the
ranks of a pipeline come last (Megatron-LM's order). A ring over several nodes has the network of all of its devices in a node.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache, partial
from math import ceil
from typing import TYPE_CHECKING

from schedc.costs.devices import members_in_node
from schedc.costs.efficiency import measured_s
from schedc.costs.operators.operator import CollectiveKind
from schedc.ir import MessageCost
from schedc.study.tune.layer_costs import LayerCosts, sharded
from schedc.study.tune.sites import rank_devices
from schedc.study.tune.unlike import slowest_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.request import TuneRequest
    from schedc.study.tune.sites import SiteDevices


def whole_costs_of(request: TuneRequest, candidate: TuneCandidate, rank: int = 0) -> LayerCosts:
    """The model's layers as a rank of a candidate would have them if weights were whole."""
    devices = rank_devices(request.sites, candidate, rank)
    again, split = candidate.recompute == "selective", candidate.backward == "split"
    return slowest_of(tuple(each.costs(candidate.degrees, candidate.microbatch_size, again, split) for each in devices.sites))


def costs_of(request: TuneRequest, candidate: TuneCandidate, rank: int = 0) -> LayerCosts:
    """The model's layers as a rank of a candidate would have them, with the collectives that run beside their blocks."""
    whole = whole_costs_of(request, candidate, rank)
    if candidate.zero_stage < 2 or candidate.gathers == "plan":
        return whole

    def beside_ns(others: int, experts: int) -> tuple[int, int]:
        reduce_ns, gather_ns = _both_ns(request, candidate, others, experts, rank)
        return reduce_ns, gather_ns if candidate.zero_stage == 3 else 0

    return sharded(whole, beside_ns)


def bytes_per_parameter(request: TuneRequest, candidate: TuneCandidate) -> tuple[float, float]:
    """What a device holds all the time for each parameter, and for one of an expert; ZeRO divides it by replicas, part by part."""
    memory, degrees, pipelines = request.file.memory, candidate.degrees, candidate.data_parallel
    of_stage = (memory.optimizer_bytes, memory.gradient_bytes, memory.weight_bytes)  # divided by ZeRO 1, 2, 3
    divided, whole = (sum(part) for part in (of_stage[: candidate.zero_stage], of_stage[candidate.zero_stage :]))
    return whole + divided / degrees.replicas(pipelines), whole + divided / degrees.expert_replicas(pipelines)


def gathered_bytes(request: TuneRequest, candidate: TuneCandidate, parameters: int) -> int:
    """What a device holds of weights and gradients that are divided, whole while a layer of this many parameters needs them.

    Of two layers: one computes while the next one's weights come, and the gradients of the one before are reduced.
    """
    memory = request.file.memory
    beside = candidate.gathers != "plan"
    weights, gradients = beside and candidate.zero_stage > 2, beside and candidate.zero_stage > 1
    return 2 * parameters * (memory.weight_bytes * weights + memory.gradient_bytes * gradients)


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


def collectives_ns(
    request: TuneRequest,
    candidate: TuneCandidate,
    others: int,
    experts: int,
    first: tuple[int, int] | None = None,
    *,
    rank: int = 0,
    least: bool = False,
) -> tuple[int, int]:
    """Reduce-scatter and all-gather of a stage of a rank, from the parameters of one device of it, those of experts apart.

    With ZeRO 0 the first is an all-reduce, and there is no second. `first` are those of the stage's first layer, which count alone
    for what ZeRO 2 and 3 do layer by layer; None: nothing counts for that. `least`: as of `measured_s`.
    """
    reduce_ns, gather_ns = _both_ns(request, candidate, others, experts, rank, least=least)
    if candidate.zero_stage > 1 and candidate.gathers != "plan":
        of_first = (0, 0) if first is None else _both_ns(request, candidate, *first, rank)
        return of_first[0], gather_ns if candidate.zero_stage == 2 else of_first[1]
    return (reduce_ns, gather_ns) if candidate.zero_stage else (2 * reduce_ns, 0)


def _both_ns(
    request: TuneRequest, candidate: TuneCandidate, others: int, experts: int, rank: int, *, least: bool = False
) -> tuple[int, int]:
    """Reducing and gathering these parameters of a device of a rank, once."""
    memory, devices = request.file.memory, rank_devices(request.sites, candidate, rank)

    def among_ns(kind: CollectiveKind, size_bytes: int, *, experts: bool) -> int:
        of = partial(_among_ns, request, candidate, kind, size_bytes, experts=experts, least=least)
        return max(of(site) for site in devices.sites)

    def of(kind: CollectiveKind, bytes_of_each: int) -> int:
        of_others_ns = among_ns(kind, others * bytes_of_each, experts=False)
        return of_others_ns + (among_ns(kind, experts * bytes_of_each, experts=True) if experts else 0)

    return of(CollectiveKind.SCATTER, memory.gradient_bytes), of(CollectiveKind.GATHER, memory.weight_bytes)


def optimizer_ns(request: TuneRequest, candidate: TuneCandidate, others: int, experts: int, rank: int = 0) -> int:
    """The optimizer's step of a stage of a rank, from the parameters of one device of it, those of experts apart.

    ZeRO 1 leaves each replica its own part of what the step of the parameters takes, but not of what is done to all gradients;
    ZeRO 2 its part of that, too.
    """
    degrees, pipelines, own = candidate.degrees, candidate.data_parallel, Fraction(others + experts)
    every = own
    if candidate.zero_stage:
        own = Fraction(others, degrees.replicas(pipelines)) + Fraction(experts, degrees.expert_replicas(pipelines))
    if candidate.zero_stage > 1:
        every = own
    rates = [site.optimizer for site in rank_devices(request.sites, candidate, rank).sites]
    return max(ceil(each.own * own + each.every * every) for each in rates)


def _among_ns(
    request: TuneRequest,
    candidate: TuneCandidate,
    kind: CollectiveKind,
    size_bytes: int,
    site: SiteDevices,
    *,
    experts: bool,
    least: bool,
) -> int:
    """Among the replicas of a stage's weights, or of its experts, as the devices of a site are that some of them have.

    Groups that have different weights are beside each other, so each has its part of what connects sites. Of neighbours in one site
    the device's table may have it measured.
    """
    degrees = candidate.degrees
    replicas_of = degrees.expert_replicas if experts else degrees.replicas
    apart = degrees.expert * degrees.expert_tensor if experts else degrees.tensor
    between, members = None, [replicas_of(each) for each in candidate.replicas_of_site]
    if len(members) > 1:
        assert request.between is not None
        beside = candidate.ranks * degrees.group * candidate.replicas_of_site[0] // members[0]
        between = shared(request.between, beside)
    within, device, rates = site.within, site.device, site.rates
    if device is not None and request.file.topology.within.bytes_per_second is None:
        sent_bytes = size_bytes * (members[0] - 1) / members[0]
        took_s = measured_s(rates, kind, members[0], sent_bytes, least=least) if between is None and apart == 1 else None
        if took_s is not None:  # rounded as a ring's time is, but for what binary fractions add
            return int(took_s * 1e9) if least else ceil(took_s * 1e9 - 1e-3)
        within = _link(within.latency_ns, round(_ring_rate(site, max(members), apart) * rates.link))
    fixed_ns = round(rates.collective_s * 1e9) if sum(members) > 1 and device is not None else 0
    return fixed_ns + one_way_ns(members, within, between, size_bytes)


@lru_cache(maxsize=1024)
def _link(latency_ns: int, bytes_per_second: int) -> MessageCost:
    return MessageCost(latency_ns=latency_ns, bytes_per_second=bytes_per_second)


def _ring_rate(site: SiteDevices, members: int, apart: int) -> float:
    """What each device of a ring sends at most, in bytes a second; `apart`: its devices have this many from each to the next."""
    device = site.device
    assert device is not None
    near = members_in_node(members, apart, device.group)
    return device.link_bytes_per_s if near == members else min(device.link_bytes_per_s, near * device.network_bytes_per_s)


def shared(link: MessageCost, senders: int, own: MessageCost | None = None) -> MessageCost:
    """An equal part of a bandwidth for each of the senders, and no more than a sender's own."""
    if link.bytes_per_second is None:
        return link
    share = max(1, link.bytes_per_second // senders)
    if own is not None and own.bytes_per_second is not None:
        share = min(share, own.bytes_per_second)
    return MessageCost(latency_ns=link.latency_ns, bytes_per_second=share)
