"""What is known of a candidate before its job is made: a lower bound, whether it can fit at all, and how long it will about take.

All follow from sums over the model's layers: whatever the partition, some rank has at least the average.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from schedc.analysis.bounds.period import period_bounds
from schedc.ir import BoundName, Problem, Updates, Versions
from schedc.spelling import counted
from schedc.study.tune.candidates import TuneCandidate, candidates
from schedc.study.tune.replicas import bytes_per_parameter, collectives_ns, costs_of, optimizer_ns, whole_costs_of
from schedc.study.tune.sites import RankDevices, first_ranks, ranks_devices
from schedc.study.tune.unlike import least_of
from schedc.units import format_bytes

if TYPE_CHECKING:
    from schedc.study.tune.layer_costs import Totals
    from schedc.study.tune.request import TuneRequest

ROUNDED_NS = 16
"""More than what the roundings of one rank's collectives add up to."""
MOST_TIMES = 16
"""The largest multiple of the devices that is tried for room."""


def simple_bound_ns(request: TuneRequest, candidate: TuneCandidate, totals: Totals) -> int:
    """No schedule of the candidate has a shorter step: some rank's work or collectives, a microbatch's path, or what memory lets.

    Where steps overlap, a period has a step's work of each rank and its updates: on some rank no less than on average. What updates
    take bends upwards, so the average is no less than that of a rank with the average of the parameters, but for what is rounded.
    """
    work_ns = int(candidate.microbatches * totals.rank_work_ns(candidate))
    if candidate.versions is not None:
        updates_ns = _collectives_ns(request, candidate, totals) + update_bound_ns(request, candidate, totals)
        if totals.of_unlike is not None:  # the rank with the most work need not be that whose updates take longest
            return max(work_ns, updates_ns - ROUNDED_NS, _memory_bound_ns(request, candidate, totals))
        return max(work_ns + max(0, updates_ns - ROUNDED_NS), _memory_bound_ns(request, candidate, totals))
    collectives_ns = _collectives_ns(request, candidate, totals)
    if candidate.ranks == 1:  # nothing runs beside them
        return work_ns + max(0, collectives_ns + update_bound_ns(request, candidate, totals) * (request.loss is None) - ROUNDED_NS)
    return max(work_ns, totals.path_ns(candidate), collectives_ns, _memory_bound_ns(request, candidate, totals))


def _memory_bound_ns(request: TuneRequest, candidate: TuneCandidate, totals: Totals) -> int:
    """What all microbatches' activations hold of bytes × time, over the bytes that all ranks have for them."""
    free_bytes = room_bytes(request, candidate) - int(static_bytes(request, candidate, totals))
    if candidate.recompute == "full" or free_bytes <= 0:
        return 0
    return candidate.microbatches * totals.held_byte_ns // free_bytes


def update_bound_ns(request: TuneRequest, candidate: TuneCandidate, totals: Totals) -> int:
    """What the optimizer's step takes on average of the ranks, were all as fast as the fastest; on some rank it takes no less."""
    of = partial(optimizer_ns, request, candidate, totals.parameters, totals.expert_parameters)
    return max(0, min(map(of, first_ranks(request.sites, candidate))) - 1) // candidate.ranks


def work_bound_ns(problem: Problem) -> int:
    """A lower bound of the step that takes no time: some rank's work, after its first all-gather and before its last collective."""
    parallel, most_ns = problem.data_parallel, 0
    for rank in range(problem.ranks):
        stages = problem.stages_on(rank)
        work_ns = sum(
            forward + min(split + weight, fused)
            for costs in (problem.stages[stage] for stage in stages)
            for forward, split, weight, fused in zip(
                costs.forward_ns, costs.backward_input_ns, costs.backward_weight_ns, costs.backward_ns, strict=True
            )
        )
        around_ns = 0
        if parallel is not None:
            around_ns += min(parallel.reduce_scatter_ns[stage] for stage in stages)
            around_ns += min((parallel.all_gather_ns[stage] for stage in stages), default=0) if parallel.all_gather_ns else 0
        around_ns += sum(problem.stages[stage].update_ns for stage in stages)  # 0 of steps that end
        most_ns = max(most_ns, problem.microbatches * work_ns + around_ns)
    return most_ns


def undelayed_ns(problem: Problem) -> int:
    """Of steps that overlap, a least period of plans without any delay; 0 of steps that end.

    Proof: their forwards and backwards of a step have no update of their stage between them, as where versions are bounded by 0.
    """
    updates = problem.updates
    if updates is None:
        return 0
    none = Updates(versions=Versions.BOUNDED, microbatches=updates.microbatches, is_period=True, most_delay=0)
    return next(value_ns for name, value_ns, _ in period_bounds(replace(problem, updates=none)) if name is BoundName.PATH)


def about_ns(request: TuneRequest, candidate: TuneCandidate, totals: Totals) -> int:
    """The step of 1F1B with equal stages, and collectives that nothing overlaps; only for the order of candidates.

    Where a rank has room for fewer microbatches than it has in flight, it waits for them.
    """
    if candidate.versions is not None:
        return simple_bound_ns(request, candidate, totals)
    rounds = candidate.microbatches + (candidate.ranks - 1) / candidate.chunks
    step_ns = rounds * float(totals.rank_work_ns(candidate))
    if candidate.recompute != "full":
        in_flight = min(candidate.microbatches, candidate.ranks + (candidate.ranks - 1) * (candidate.chunks > 1) / candidate.chunks)
        free_bytes = room_bytes(request, candidate) - static_bytes(request, candidate, totals)
        step_ns *= max(1.0, in_flight * totals.activation_bytes / max(1.0, free_bytes))
    of = partial(
        collectives_ns, request, candidate, totals.parameters // candidate.ranks, totals.expert_parameters // candidate.ranks
    )
    ranks = (0,) if totals.of_unlike is None else first_ranks(request.sites, candidate)  # so no order of sites comes first
    return round(step_ns) + max(sum(of(rank=rank)) for rank in ranks)


def no_room(request: TuneRequest, candidate: TuneCandidate, totals: Totals) -> str:
    """Why the ranks together have no room for what is static and for one microbatch, if so; empty: they may have."""
    needed, have_bytes = static_bytes(request, candidate, totals), room_bytes(request, candidate)
    what = "what is static"
    if candidate.recompute != "full" and needed <= have_bytes:
        needed, what = needed + totals.activation_bytes, "what is static and one microbatch"
    if needed <= have_bytes:
        return ""
    each, have = format_bytes(int(needed / candidate.ranks), 1), format_bytes(have_bytes // candidate.ranks, 1)
    return f"a rank needs {each} on average for {what}, and has {have}"


def totals_of(request: TuneRequest, candidate: TuneCandidate) -> Totals:
    """Sums over the layers of a candidate, whatever its partition."""
    firsts = first_ranks(request.sites, candidate)
    if len(firsts) == 1:
        return costs_of(request, candidate).totals
    return least_of([costs_of(request, candidate, rank) for rank in firsts], tuple(firsts.values()))


def room_bytes(request: TuneRequest, candidate: TuneCandidate) -> int:
    """What plans may use, of one device of each rank of a pipeline together."""
    return sum(devices.fullest.room_bytes for devices in ranks_devices(request.sites, candidate))


def static_bytes(request: TuneRequest, candidate: TuneCandidate, totals: Totals) -> float:
    """What one device of each rank of a pipeline holds all the time, all ranks together."""
    each, of_expert = bytes_per_parameter(request, candidate)
    return totals.parameters * each + totals.expert_parameters * of_expert


def _collectives_ns(request: TuneRequest, candidate: TuneCandidate, totals: Totals) -> int:
    """Of a rank with the average of the parameters; some rank's take no less.

    They grow with either kind of parameters and bend upwards, but for two things of experts' collectives: their latencies, which a
    rank without experts does not have, and what rounding adds. Measured ones may bend in any way: where ranks have parts, a line
    below them counts.
    """
    others, experts = totals.parameters // candidate.ranks, totals.expert_parameters // candidate.ranks
    if totals.of_unlike is not None:  # some rank has the average of either, on devices with the least collectives
        alone = partial(collectives_ns, request, candidate, least=True)
        firsts = first_ranks(request.sites, candidate)
        return max(min(sum(alone(*of, rank=rank)) for rank in firsts) for of in ((others, 0), (0, experts)))
    of = partial(collectives_ns, request, candidate, others, least=candidate.ranks > 1)
    least_ns = sum(of(0))
    if experts:
        least_ns += max(0, sum(of(experts)) - sum(of(1)) - ROUNDED_NS)
    return least_ns


def what_fits(request: TuneRequest) -> str:
    """Why no candidate has room, in sums over the cluster, and what would have; empty where the sums alone leave room."""
    choices, devices = request.choices, sum(request.choices.sites)

    def static(each: TuneCandidate) -> float:  # a model's parameters are the same on all devices, so those of a first rank say it
        return static_bytes(request, each, whole_costs_of(request, each).totals)

    least = min(static(each) * each.data_parallel * each.degrees.group for each in {each.alike for each in candidates(choices)})
    have_bytes = sum(size * site.room_bytes for size, site in zip(choices.sites, request.sites, strict=True))
    if least <= have_bytes:
        return ""
    larger = "larger devices"
    # What is divided most has the least, and chains of one stage on a rank exist where others do.
    placements = ("unidirectional",) if "unidirectional" in choices.placements else choices.placements
    few = replace(choices, placements=placements, zero_stages=(max(choices.zero_stages),), gathers=("blocks",), kinds=())
    for times in range(2, MOST_TIMES + 1):  # by how much the cluster would have to be larger
        ranks = choices.ranks and tuple(dict.fromkeys(factor * each for factor in range(1, times + 1) for each in choices.ranks))
        more = replace(few, sites=tuple(times * each for each in choices.sites), ranks=ranks)
        with_room = (each for each in {each.alike for each in candidates(more)} if static(each) <= room_bytes(request, each))
        if any(not no_room(request, each, totals_of(request, each)) for each in with_room):
            larger = f"{times} times as many devices"
            break
    needed, room = format_bytes(int(least), 1), format_bytes(have_bytes, 1)
    smallest = RankDevices(request.sites).fullest
    each, kept = format_bytes(smallest.room_bytes, 1), format_bytes(smallest.reserve_bytes, 1)
    each = each if len(set(request.sites)) == 1 else f"{each} or more"
    have = f"{counted(devices, 'device')} {'has' if devices == 1 else 'have'}"
    return (
        f"weights, gradients and optimizer state take {needed} or more in all, and {have} {room}"
        f" ({each} each, after a reserve of {kept}); {larger} may have room, or fewer bytes for each parameter"
        " (memory.weight, gradient, optimizer)"
    )
