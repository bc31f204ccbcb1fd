"""[pipeline], [data_parallel], [memory] and [devices] read.

That is the placement and which stages recompute; the collectives beside the pipeline; what each rank's device can hold and how fast
it is, and what stages hold all the time. Whether a limit can be met at all is not judged here: that a stage's activation does not
fit is the solvers' to prove.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

from schedc.frontend.job_file import AUTO, PipelineSection
from schedc.frontend.profile import per_stage
from schedc.io.location import Location, show
from schedc.ir import DataParallel, Device, Layer, MessageCost, Placement, Problem, Updates, trunk_name
from schedc.lower.placement import place
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from schedc.frontend.cost_keys import DevicesSection, MemorySection
    from schedc.frontend.job_file import JobFile
    from schedc.frontend.replica_keys import DataParallelSection

_MOST_STAGES = 2**14


def read_placement(pipeline: PipelineSection, location: Location) -> Placement | None:
    """The placement, with `chunks` checked against it, as an explicit one already says how many stages each rank has.

    Returns:
        The placement; None: it is to be chosen.

    Raises:
        InvalidInput: the placement does not exist for these ranks, or has too many stages.
    """
    placement, ranks, chunks = pipeline.placement, pipeline.ranks, pipeline.chunks
    if placement == AUTO:
        return None
    count = ranks * (chunks or 1) if isinstance(placement, str) else len(placement)
    if count > _MOST_STAGES:
        raise location.refuse(f"{count} stages", f"at most {_MOST_STAGES}")
    try:
        placed = place(placement, ranks, chunks or 1)
    except ValueError as error:
        key, found = ("chunks", chunks or 1) if isinstance(placement, str) else ("placement", placement)
        raise (location / key).error(f"found {show(found)}; {error}") from error
    if not isinstance(placement, str) and chunks is not None:
        for rank in range(ranks):
            if placement.count(rank) != chunks:
                raise (location / "chunks").refuse(
                    show(chunks), f"the {placement.count(rank)} stages that pipeline.placement puts on rank {rank}, or no such key"
                )
    return placed


def read_recomputed(pipeline: PipelineSection, placed: Placement | None, location: Location) -> tuple[bool, ...]:
    """Whether each stage recomputes; where the placement is open, perhaps one value for all. Where schedc chooses, none does.

    Raises:
        InvalidInput: a list of a wrong length.
    """
    given = pipeline.recompute
    return per_stage(given == "full" if isinstance(given, str) else given, placed, location / "recompute")


def read_data_parallel(
    section: DataParallelSection | None, placed: Placement | None, trunks: Collection[str | None], location: Location
) -> DataParallel | None:
    """The collectives of each stage, or None where the job has no such section.

    `placed` is None where the placement is open. `trunks` are those that the pipeline's transfers may cross; None among them counts
    for nothing.

    Raises:
        InvalidInput: a list of a wrong length, or a trunk that no transfer crosses.
    """
    if section is None:
        return None
    trunk = None if section.trunk is None else trunk_name(*section.trunk)
    if trunk is not None and trunk not in trunks:
        known = ", ".join(sorted(name for name in trunks if name is not None))
        expected = (
            f"two sites whose trunk the pipeline's transfers cross ({known})" if known else "none, as no transfer crosses one"
        )
        raise (location / "trunk").refuse(show(section.trunk), expected)

    def of_stages(name: str, values: int | tuple[int, ...] | None) -> tuple[int, ...]:
        return () if values is None else per_stage(values, placed, location / name)

    gathered_bytes, gradient_bytes = of_stages("gathered", section.gathered_bytes), of_stages("gradients", section.gradients_bytes)
    scatter_ns, gather_ns = of_stages("reduce_scatter", section.reduce_scatter_ns), of_stages("all_gather", section.all_gather_ns)
    if section.bytes_per_second is not None:  # each replica has its share already
        cost, others = MessageCost(bytes_per_second=section.bytes_per_second, setup_ns=section.latency_ns or 0), section.size - 1
        scatter_ns, gather_ns = (
            tuple(cost.occupancy_ns(ceil(Fraction(size * others, section.size))) for size in sizes)
            for sizes in (gradient_bytes, gathered_bytes)
        )
    return DataParallel(
        size=section.size,
        zero_stage=section.zero_stage,
        reduce_scatter_ns=scatter_ns,
        all_gather_ns=gather_ns,
        trunk=trunk,
        gathered_bytes=gathered_bytes,
        gradient_bytes=gradient_bytes,
    )


def read_updates(job: JobFile, placed: Placement | None, layers: Sequence[Layer], root: Location) -> dict[str, Any]:
    """What a Workload says of steps that overlap; nothing where they do not.

    Raises:
        InvalidInput: a list of a wrong length, or a value for each parameter of layers without any.
    """
    pipeline, memory = job.pipeline, job.memory
    if pipeline.versions is None:
        return {}
    size = None if memory is None else memory.version_bytes
    each = None if memory is None else memory.bytes_per_version_parameter
    if each is not None and not any(layer.parameters for layer in layers):
        raise (root / "memory" / "bytes_per_version_parameter").refuse(
            "a value for layers without parameters", "parameters in the profile.json, or memory.version instead"
        )
    return {
        "updates": Updates(
            versions=pipeline.versions, microbatches=pipeline.microbatches, is_period=True, most_delay=pipeline.most_delay
        ),
        "update_ns": per_stage(pipeline.update_ns or 0, placed, root / "pipeline" / "update"),
        "version_bytes": per_stage(size or 0, placed, root / "memory" / "version"),
        "bytes_per_version_parameter": exactly(each or 0.0),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What [memory] says."""

    devices: tuple[Device, ...]
    """One for each rank."""
    static_bytes: tuple[int, ...] = (0,)
    """Of each stage, or of every one, besides what its layers hold."""
    bytes_per_parameter: Fraction = Fraction(0)
    bytes_per_expert_parameter: Fraction = Fraction(0)

    def held_by(self, layers: Sequence[Layer]) -> tuple[Layer, ...]:
        """The layers with what each holds all the time for its parameters, a fraction of a byte counting as a whole one."""
        if not (self.bytes_per_parameter or self.bytes_per_expert_parameter):
            return tuple(layers)
        return tuple(
            replace(
                layer,
                static_bytes=ceil(
                    self.bytes_per_parameter * (layer.parameters - layer.expert_parameters)
                    + self.bytes_per_expert_parameter * layer.expert_parameters
                ),
            )
            for layer in layers
        )


def read_memory(
    memory: MemorySection | None, layers: Sequence[Layer], placed: Placement | None, ranks: int, location: Location
) -> Memory:
    """What each rank can hold, and what stages hold all the time; `location` is the place of [memory].

    Raises:
        InvalidInput: a limit on nothing, a value for each parameter of layers without any, or a list of a wrong length.
    """
    if memory is None:
        return Memory(devices=(Device(),) * ranks)
    ((way, value),) = memory.ways.items()
    values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,) * ranks
    if not any(layer.activation_bytes for layer in layers):
        raise (location / way).refuse("a limit on activations of no size", "profile.activation to say what a microbatch holds")
    if memory.in_flight is not None:
        return Memory(devices=tuple(Device(in_flight=count) for count in values))
    if memory.limit_bytes is not None:
        return Memory(devices=tuple(Device(limit_bytes=limit) for limit in values))
    reserves = memory.reserve_bytes if isinstance(memory.reserve_bytes, tuple) else (memory.reserve_bytes or 0,) * ranks
    devices = tuple(Device(capacity_bytes=capacity - kept) for capacity, kept in zip(values, reserves, strict=True))
    if memory.static_bytes is not None:
        return Memory(devices=devices, static_bytes=per_stage(memory.static_bytes, placed, location / "static"))
    if not any(layer.parameters for layer in layers):
        raise (location / "bytes_per_parameter").refuse(
            "a value for layers without parameters", "parameters in the profile.json, or memory.static instead"
        )
    each, of_expert = memory.bytes_per_parameter or 0.0, memory.bytes_per_expert_parameter
    if of_expert is not None and not any(layer.expert_parameters for layer in layers):
        raise (location / "bytes_per_expert_parameter").refuse(
            "a value for layers without experts", "expert_parameters in the profile.json, or no such value"
        )
    return Memory(
        devices=devices,
        bytes_per_parameter=exactly(each),
        bytes_per_expert_parameter=exactly(each if of_expert is None else of_expert),
    )


def read_speeds(section: DevicesSection, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices with their speeds."""
    if section.speed is None:
        return tuple(devices)
    return tuple(replace(device, speed=exactly(speed)) for device, speed in zip(devices, section.speed, strict=True))


def check_room(problem: Problem, devices: Sequence[Device], memory: MemorySection, location: Location) -> None:
    """Refuse devices without room for what their ranks' stages hold all the time.

    Raises:
        InvalidInput: a rank needs more than its device has.
    """
    values, reserve = memory.capacity_bytes, memory.reserve_bytes
    for rank, (device, left) in enumerate(zip(devices, problem.memory_limit_bytes, strict=True)):
        if left is not None and left < 0:
            given = device.capacity_bytes or 0
            own = reserve[rank] if isinstance(reserve, tuple) else reserve
            kept = f" after a reserve of {format_bytes(own)}" if own else ""
            raise (location / "capacity" / rank if isinstance(values, tuple) else location / "capacity").refuse(
                f"{format_bytes(given)}{kept}",
                f"at least the {format_bytes(given - left)} that is static on rank {rank}; more ranks, or less for each parameter",
            )


def exactly(number: float) -> Fraction:
    """The decimal number that the file has, of which the float is the nearest."""
    return Fraction(repr(number))
