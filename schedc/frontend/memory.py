"""[memory] and [devices] read: what each rank's device can hold and how fast it is, and what stages hold all the time.

Whether a limit can be met at all is not judged here: that a stage's activation does not fit is the solvers' to prove.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from schedc.frontend.profile import per_stage
from schedc.ir.workload import Device, Layer
from schedc.spelling import counted
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.frontend.job_file import DevicesSection, MemorySection
    from schedc.io.location import Location
    from schedc.ir.layout import Placement
    from schedc.ir.problem import Problem


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
        InvalidInput: none or several ways to say it, or a list of a wrong length.
    """
    if memory is None:
        return Memory(devices=(Device(),) * ranks)
    ways = {"limit": memory.limit_bytes, "in_flight": memory.in_flight, "capacity": memory.capacity_bytes}
    given = [way for way, value in ways.items() if value is not None]
    if len(given) != 1:
        raise location.refuse(
            " and ".join(given) or "none of the keys", "one of limit, in_flight or capacity with static or bytes_per_parameter"
        )
    static = {"static": memory.static_bytes, "bytes_per_parameter": memory.bytes_per_parameter}
    said = [key for key, value in static.items() if value is not None]
    for key in said or ["reserve"] * (memory.reserve_bytes is not None):
        if memory.capacity_bytes is None:
            raise (location / key).refuse("a value without memory.capacity", "both, or neither of them")
    if memory.bytes_per_expert_parameter is not None and memory.bytes_per_parameter is None:
        raise (location / "bytes_per_expert_parameter").refuse(
            "a value without memory.bytes_per_parameter", "both, or the other alone"
        )
    if not any(layer.activation_bytes for layer in layers):
        raise (location / given[0]).refuse("a limit on activations of no size", "profile.activation to say what a microbatch holds")
    if memory.limit_bytes is not None:
        limits = _per_rank(memory.limit_bytes, ranks, location / "limit")
        return Memory(devices=tuple(Device(limit_bytes=limit) for limit in limits))
    if memory.in_flight is not None:
        counts = _per_rank(memory.in_flight, ranks, location / "in_flight")
        return Memory(devices=tuple(Device(in_flight=count) for count in counts))
    if memory.capacity_bytes is None or not said:
        expected = 'a size such as "512 MiB" or a list of them, or bytes_per_parameter instead, as memory.capacity is given'
        raise (location / "static").refuse("nothing", expected)
    capacities = _per_rank(memory.capacity_bytes, ranks, location / "capacity")
    reserve_bytes = memory.reserve_bytes or 0
    if reserve_bytes > min(capacities):
        raise (location / "reserve").refuse(format_bytes(reserve_bytes), f"at most the capacity, {format_bytes(min(capacities))}")
    devices = tuple(Device(capacity_bytes=capacity - reserve_bytes) for capacity in capacities)
    if len(said) > 1:
        raise (location / "bytes_per_parameter").refuse("a value beside memory.static", "one of the two")
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


def read_speeds(section: DevicesSection, devices: Sequence[Device], location: Location) -> tuple[Device, ...]:
    """The devices with their speeds.

    Raises:
        InvalidInput: a list that has not one for each rank.
    """
    speeds = section.speed
    if speeds is None:
        return tuple(devices)
    if len(speeds) != len(devices):
        raise (location / "speed").refuse(counted(len(speeds), "value"), f"{len(devices)}, one per rank")
    return tuple(replace(device, speed=exactly(speed)) for device, speed in zip(devices, speeds, strict=True))


def check_room(problem: Problem, devices: Sequence[Device], memory: MemorySection, location: Location) -> None:
    """Refuse devices without room for what their ranks' stages hold all the time.

    Args:
        problem: for what is left of each rank's memory.
        devices: one for each rank.
        memory: the section.
        location: its place.

    Raises:
        InvalidInput: a rank needs more than its device has.
    """
    values = memory.capacity_bytes
    for rank, (device, left) in enumerate(zip(devices, problem.memory_limit_bytes, strict=True)):
        if left is not None and left < 0:
            given = device.capacity_bytes or 0
            kept = f" after a reserve of {format_bytes(memory.reserve_bytes)}" if memory.reserve_bytes else ""
            raise (location / "capacity" / rank if isinstance(values, tuple) else location / "capacity").refuse(
                f"{format_bytes(given)}{kept}", f"at least the {format_bytes(given - left)} that is static on rank {rank}"
            )


def exactly(number: float) -> Fraction:
    """The decimal number that the file has, of which the float is the nearest."""
    return Fraction(repr(number))


def _per_rank(values: int | tuple[int, ...], ranks: int, location: Location) -> tuple[int, ...]:
    if isinstance(values, int):
        return (values,) * ranks
    if len(values) != ranks:
        raise location.refuse(counted(len(values), "value"), f"{ranks}, one per rank")
    return values
