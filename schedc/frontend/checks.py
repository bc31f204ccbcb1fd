"""What a job may not say although each of its keys is right by itself: too much to be exact, messages that cost nothing, no layout.

A layout that is given is checked as the problem that it makes. Where it is open there are many problems, so keys are checked for
any of them. Each check refuses a job in one line that names the key; `location` is the place of the key, or of the table that it is
in, and `root` that of the job.
"""

from __future__ import annotations

from itertools import permutations
from math import ceil
from typing import TYPE_CHECKING

from schedc.ir import MOST_OPS, BlockCosts, Link, Network, OpenLayout, Placement, Problem, Workload
from schedc.spelling import counted
from schedc.units import MAX_QUANTITY, format_bytes, format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schedc.frontend.cost_keys import ProfileSection
    from schedc.frontend.job_file import JobFile
    from schedc.io.location import Location


def check_placement(job: JobFile, placed: Placement, root: Location) -> None:
    """Refuse at once what is too large to be planned; all paths of a placement are equally long."""
    stages = len(placed.paths[0])
    if 3 * stages * job.units > MOST_OPS:
        slices = job.units // job.pipeline.microbatches
        raise (root / "pipeline" / "microbatches").refuse(
            f"{job.pipeline.microbatches}, which makes {3 * stages * job.units} compute ops",
            f"at most {MOST_OPS // (3 * stages * slices)} for {stages} stages, as a plan has at most {MOST_OPS} compute ops",
        )


def check_stages(job: JobFile, layers: int, chunks: int, root: Location) -> None:
    """Refuse lists with one value per stage, where ranks are open, that say different numbers of stages, or impossible ones."""
    ranks, microbatches = job.pipeline.ranks, job.pipeline.microbatches
    parallel, memory = job.data_parallel, job.memory
    given: list[tuple[str, str, object]] = [
        ("pipeline", "partition", job.pipeline.partition),
        ("pipeline", "recompute", job.pipeline.recompute),
        ("memory", "static", None if memory is None else memory.static_bytes),
        ("data_parallel", "reduce_scatter", None if parallel is None else parallel.reduce_scatter_ns),
        ("data_parallel", "all_gather", None if parallel is None else parallel.all_gather_ns),
    ]
    counts = [(root / section / key, len(values)) for section, key, values in given if isinstance(values, tuple)]
    least, most = ranks, min(layers, chunks * ranks)
    for place, count in counts:
        if count != counts[0][1]:
            raise place.refuse(counted(count, "value"), f"{counts[0][1]}, one per stage, as many as {counts[0][0].path} has")
        if not least <= count <= most:
            raise place.refuse(
                counted(count, "value"),
                f"{least} to {most}, one per stage: each rank has one or more, at most {chunks} (pipeline.chunks)",
            )
    stages = counts[0][1] if counts else most
    if 3 * stages * microbatches > MOST_OPS:
        raise (root / "pipeline" / "microbatches").refuse(
            f"{microbatches}, which makes {3 * stages * microbatches} compute ops with {stages} stages",
            f"at most {MOST_OPS // (3 * stages)}, or a smaller pipeline.chunks, as a plan has at most {MOST_OPS} compute ops",
        )


def check_joined(network: Network, ranks: int, location: Location) -> None:
    """Refuse a topology, whose place is `location`, in which no pipeline reaches every rank; a pair without a link is not used."""
    reached, waiting = {0}, [0]
    while waiting:
        rank = waiting.pop()
        for other in set(range(ranks)) - reached:
            if network.connects(rank, other) and network.connects(other, rank):
                reached.add(other)
                waiting.append(other)
    apart = sorted(set(range(ranks)) - reached)
    if apart:
        raise (location / "between").refuse(
            "nothing", f"a table, or links, as nothing connects rank 0 and those near it both ways to rank {apart[0]}"
        )


def check_messages(problem: Problem, profile: ProfileSection, location: Location) -> None:
    """Refuse messages of no size where they count; `location` is [profile].

    They would silently take no time on a link with a bandwidth, and no memory of a stage that recomputes.
    """
    at, given = location / ("message" if profile.path is None else "path"), profile.message_bytes is not None
    sized = {(link.source, link.destination) for link in problem.links if link.bytes_per_second is not None}
    for edge in (edge for path in range(len(problem.paths)) for edge in problem.edges_of(path) if not edge.message_bytes):
        source, destination = problem.stages[edge.source].rank, problem.stages[edge.destination].rank
        if (source, destination) in sized:
            raise at.refuse(
                f"a message of 0 B from stage {edge.source}" if given else f"no message size of stage {edge.source}",
                f"{'more' if given else 'one'}, as the link from rank {source} to rank {destination} has a bandwidth",
            )
        if problem.stages[edge.destination].recompute and problem.memory_limit_bytes[destination] is not None:
            raise at.refuse(
                f"no message size of stage {edge.source}",
                f"one, as stage {edge.destination} recomputes and keeps the message in limited memory",
            )


def check_open(workload: Workload, open_layout: OpenLayout, job: JobFile, root: Location) -> None:
    """Refuse what makes layouts that may be chosen wrong: messages without size, sums that are not exact, no room at all."""
    layers, placed, bounds = workload.layers, open_layout.placement, open_layout.layers_of_stage
    pairs = permutations(range(workload.ranks), 2) if placed is None else placed.crossed()
    links = [link for pair in pairs if (link := workload.network.link(*pair)) is not None]
    at = root / "profile" / ("path" if job.profile.path is not None else "message")
    ends = range(1, len(layers)) if bounds is None else [last for _, last in bounds[:-1]]
    silent = [last - 1 for last in ends if not layers[last - 1].message_bytes]
    if silent:  # a message of no size would be free on a link with a bandwidth, and take no memory where a stage recomputes
        layer = f"no message size of layer {silent[0]}, which may be the last one of a stage"
        for link in links:
            if link.bytes_per_second is not None:
                where = f"the link from rank {link.source} to rank {link.destination} has a bandwidth"
                raise at.refuse(layer, f"one, as {where}")
        if job.memory is not None and (open_layout.recompute_is_open or any(open_layout.recompute)):
            raise at.refuse(layer, "one, as a stage that recomputes keeps the message in limited memory")
    stages = open_layout.stages or min(len(layers), open_layout.chunks * workload.ranks)
    slices = 1 if open_layout.slices is None else open_layout.slices.most
    if 3 * stages * workload.microbatches * slices > MOST_OPS:
        made = f"which makes {3 * stages * workload.microbatches * slices} compute ops with {stages} stages"
        raise (root / "slices").refuse(f"up to {slices} slices, {made}", f"fewer, as a plan has at most {MOST_OPS} compute ops")
    work_ns = sum(
        (max(layer.forward_again_ns or layer.forward_ns) + _work_ns(layer)) * (1 + (slices - 1) * layer.fixed) for layer in layers
    )
    passed_ns = 2 * stages * slices * (2 + _message_ns(links, layers)) + 4 * (slices - 1) * len(layers)
    step_ns = workload.microbatches * (ceil(work_ns / min(device.speed for device in workload.devices)) + passed_ns)
    held_bytes = workload.microbatches * sum(layer.activation_bytes for layer in layers)
    _check_sums(step_ns, held_bytes, root / "profile", up_to="up to ")
    capacities = [device.capacity_bytes for device in workload.devices if device.capacity_bytes is not None]
    given = workload.static_bytes
    static = sum(layer.static_bytes for layer in layers) + (sum(given) if len(given) > 1 else workload.ranks * given[0])
    if len(capacities) == workload.ranks and static > sum(capacities):
        raise (root / "memory" / "capacity").refuse(
            f"{format_bytes(sum(capacities))} on all ranks together", f"at least the {format_bytes(static)} that are static"
        )


def check_size(problem: Problem, location: Location) -> None:
    """Refuse a step so long or large that sums of it would no longer be exact everywhere (JSON, 64-bit evaluators)."""
    # More than the transfers of one microbatch take: each stage's larger message over the slowest link, there and back.
    of_edges = [max(edge.message_bytes, edge.gradient_message_bytes or 0) for edge in problem.edges]
    transfers_ns = 2 * max(len(problem.stages), len(of_edges)) * _message_ns(problem.links, problem.stages, of_edges)
    step_ns = problem.microbatches * (sum(map(_work_ns, problem.stages)) + transfers_ns)
    held = [0] * problem.ranks
    for stage in problem.stages:
        held[stage.rank] += problem.microbatches * stage.most_bytes
    _check_sums(step_ns, max(held), location, where=f" on rank {held.index(max(held))}")


def _check_sums(step_ns: int, held_bytes: int, location: Location, *, up_to: str = "", where: str = "") -> None:
    most_ns, most_bytes = format_duration_ns(MAX_QUANTITY), format_bytes(MAX_QUANTITY)
    if step_ns > MAX_QUANTITY:
        raise location.refuse(f"work and transfers of {up_to}{format_duration_ns(step_ns)} in all", f"at most {most_ns}")
    if held_bytes > MAX_QUANTITY:
        raise location.refuse(f"activations of {format_bytes(held_bytes)}{where} in all", f"at most {most_bytes}")


def _work_ns(costs: BlockCosts) -> int:
    """What the blocks of a microbatch take at most."""
    backward_ns = max(*costs.backward_ns, max(costs.backward_input_ns) + max(costs.backward_weight_ns))
    return max(costs.forward_ns) + backward_ns


def _message_ns(links: Iterable[Link], costs: Sequence[BlockCosts], others: Sequence[int] = ()) -> int:
    """What the largest message, of stages or of other sizes, takes on the slowest link."""
    largest = max([*(max(each.message_bytes, each.gradient_message_bytes) for each in costs), *others])
    return max((link.latency_ns + link.occupancy_ns(largest) for link in links), default=0)
