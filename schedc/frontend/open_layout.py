"""What of the layout a job leaves open, made of the keys in [pipeline] that are "auto"; and checks of all that may be chosen.

A layout that is given is checked as the problem that it makes (`schedc.frontend.checks`). Where it is open there are many problems,
so the keys are checked here for any of them.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from schedc.frontend.job_file import AUTO, JobFile
from schedc.ir.layout import OpenLayout, Placement
from schedc.ir.problem import MOST_OPS, Link
from schedc.spelling import counted
from schedc.units import MAX_QUANTITY, format_bytes, format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.io.location import Location
    from schedc.ir.workload import Layer, Network, Workload

_DEFAULT_CHUNKS = 4
"""The most stages on a rank where the placement is open and `chunks` says nothing."""


def is_open(job: JobFile) -> bool:
    """Whether something of the layout is to be chosen."""
    return AUTO in (job.pipeline.placement, job.pipeline.partition, job.pipeline.recompute)


def check_open_keys(job: JobFile, root: Location) -> None:
    """Refuse at once what cannot be chosen.

    Raises:
        InvalidInput: the job gives costs by stage, which cannot be divided or placed elsewhere, or two paths.
    """
    pipeline, at = job.pipeline, root / "pipeline"
    if not is_open(job):
        return
    if pipeline.placement == "bidirectional":
        key = "partition" if pipeline.partition == AUTO else "recompute"
        instead = "no such key for the balanced partition" if key == "partition" else '"none", "full" or a list'
        raise (at / key).refuse('"auto" where pipeline.placement is "bidirectional"', f"{instead}, or a placement with one path")
    if pipeline.placement == AUTO and job.profile.path is None:
        raise (at / "placement").refuse(
            '"auto" for costs by stage', "a name or a list, or a profile.json in profile.path, whose layers can be divided"
        )


def read_open_layout(
    job: JobFile,
    placed: Placement | None,
    layers_of_stage: tuple[tuple[int, int], ...] | None,
    recompute: tuple[bool, ...],
    layers: int,
    root: Location,
) -> OpenLayout:
    """What is open, and what is given.

    Where the placement is open and nothing is said of the partition, that is open, too: the balanced one is one of a placement.

    Args:
        job: the file; something in it is to be chosen.
        placed: the placement; None: it is open.
        layers_of_stage: the partition; None: it is open.
        recompute: which stages recompute; one value for all stages or one for each.
        layers: how many there are.
        root: the file.

    Raises:
        InvalidInput: the job's lists are for different numbers of stages, or for more or fewer than there can be.
    """
    pipeline = job.pipeline
    chunks = pipeline.chunks or _DEFAULT_CHUNKS
    if placed is None:
        _check_stages(job, layers, chunks, root)
    return OpenLayout(
        chunks=chunks,
        placement=placed,
        layers_of_stage=layers_of_stage,
        recompute=recompute,
        recompute_is_open=pipeline.recompute == AUTO,
    )


def _check_stages(job: JobFile, layers: int, chunks: int, root: Location) -> None:
    """The lists with one value per stage say how many stages there are; all of them the same, and as many as there can be."""
    ranks, microbatches = job.pipeline.ranks, job.pipeline.microbatches
    counts = [(place, len(values)) for place, values in _lists(job, root)]
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


def _lists(job: JobFile, root: Location) -> Iterator[tuple[Location, tuple[object, ...]]]:
    """The keys that have a list with one value per stage."""
    parallel, memory = job.data_parallel, job.memory
    given: list[tuple[str, str, object]] = [
        ("pipeline", "partition", job.pipeline.partition),
        ("pipeline", "recompute", job.pipeline.recompute),
        ("memory", "static", None if memory is None else memory.static_bytes),
        ("data_parallel", "reduce_scatter", None if parallel is None else parallel.reduce_scatter_ns),
        ("data_parallel", "all_gather", None if parallel is None else parallel.all_gather_ns),
    ]
    for section, key, values in given:
        if isinstance(values, tuple):
            yield root / section / key, values


def check_joined(network: Network, ranks: int, location: Location) -> None:
    """Refuse a topology, whose place is `location`, in which no pipeline can reach every rank; a pair without a link is not used.

    Raises:
        InvalidInput: two groups of ranks that nothing connects both ways.
    """
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


def check_open(workload: Workload, open_layout: OpenLayout, job: JobFile, root: Location) -> None:
    """Refuse what makes layouts that may be chosen wrong: messages without size, sums that are not exact, no room at all.

    Raises:
        InvalidInput: names the key.
    """
    _check_messages(workload, open_layout, job, root / "profile")
    _check_size(workload, open_layout, root / "profile")
    _check_room(workload, root / "memory" / "capacity")


def _check_messages(workload: Workload, open_layout: OpenLayout, job: JobFile, location: Location) -> None:
    """A message of no size would be free on a link with a bandwidth, and take no memory where a stage recomputes."""
    at = location / ("path" if job.profile.path is not None else "message")
    silent = [last - 1 for last in _ends(workload.layers, open_layout) if not workload.layers[last - 1].message_bytes]
    if not silent:
        return
    layer = f"no message size of layer {silent[0]}, which may be the last one of a stage"
    for link in _links(workload, open_layout):
        if link.bytes_per_second is not None:
            where = f"the link from rank {link.source} to rank {link.destination} has a bandwidth"
            raise at.refuse(layer, f"one, as {where}")
    limited = any(
        each is not None for device in workload.devices for each in (device.limit_bytes, device.in_flight, device.capacity_bytes)
    )
    if limited and (open_layout.recompute_is_open or any(open_layout.recompute)):
        raise at.refuse(layer, "one, as a stage that recomputes keeps the message in limited memory")


def _ends(layers: Sequence[Layer], open_layout: OpenLayout) -> Sequence[int]:
    """Behind which layers, counted from 1, a stage may end that sends a message on."""
    if open_layout.layers_of_stage is not None:
        return [last for _, last in open_layout.layers_of_stage[:-1]]
    return range(1, len(layers))


def _links(workload: Workload, open_layout: OpenLayout) -> Iterator[Link]:
    """The links that may be used."""
    ranks = range(workload.ranks)
    pairs = [(a, b) for a in ranks for b in ranks if a != b]
    if open_layout.placement is not None:
        pairs = open_layout.placement.crossed()
    for pair in pairs:
        link = workload.network.link(*pair)
        if link is not None:
            yield link


def _check_size(workload: Workload, open_layout: OpenLayout, location: Location) -> None:
    """A step so long or large that sums of it would no longer be exact everywhere."""
    layers, slowest = workload.layers, min(device.speed for device in workload.devices)
    work_ns = sum(
        max(layer.forward_ns)
        + max(layer.forward_again_ns or layer.forward_ns)
        + max(*layer.backward_ns, max(layer.backward_input_ns) + max(layer.backward_weight_ns))
        for layer in layers
    )
    largest = max(max(layer.message_bytes, layer.gradient_message_bytes) for layer in layers)
    message_ns = max((link.latency_ns + link.occupancy_ns(largest) for link in _links(workload, open_layout)), default=0)
    stages = open_layout.stages or min(len(layers), open_layout.chunks * workload.ranks)
    step_ns = workload.microbatches * (ceil(work_ns / slowest) + 4 * stages + 2 * stages * message_ns)
    if step_ns > MAX_QUANTITY:
        raise location.refuse(
            f"work and transfers of up to {format_duration_ns(step_ns)} in all", f"at most {format_duration_ns(MAX_QUANTITY)}"
        )
    held = workload.microbatches * sum(layer.activation_bytes for layer in layers)
    if held > MAX_QUANTITY:
        raise location.refuse(f"activations of {format_bytes(held)} in all", f"at most {format_bytes(MAX_QUANTITY)}")


def _check_room(workload: Workload, location: Location) -> None:
    """What all stages together hold all the time is no more than what all devices have; `location` is the place of `capacity`."""
    capacities = [device.capacity_bytes for device in workload.devices if device.capacity_bytes is not None]
    if len(capacities) < workload.ranks:
        return
    given = workload.static_bytes
    held = sum(layer.static_bytes for layer in workload.layers)
    held += sum(given) if len(given) > 1 else workload.ranks * given[0]
    if held > sum(capacities):
        raise location.refuse(
            f"{format_bytes(sum(capacities))} on all ranks together", f"at least the {format_bytes(held)} that are static"
        )
