"""[memory] read: what each rank's device can hold, and what stages hold all the time.

Whether a limit can be met at all is not judged here: that a stage's activation does not fit is the solvers' to prove.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.frontend.profile import per_stage
from schedc.ir.workload import Device
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.files.location import Location
    from schedc.frontend.job_file import MemorySection
    from schedc.ir.layout import Placement
    from schedc.ir.workload import Layer

__all__ = ["check_capacity", "read_memory"]


def read_memory(
    memory: MemorySection | None, layers: Sequence[Layer], placed: Placement, ranks: int, location: Location
) -> tuple[tuple[Device, ...], tuple[int, ...]]:
    """The device of each rank, and the static bytes of each stage, or of every one; `location` is the place of [memory].

    Raises:
        InvalidInput: none or several ways to say it, or a list of a wrong length.
    """
    if memory is None:
        return (Device(),) * ranks, (0,)
    ways = {"limit": memory.limit_bytes, "in_flight": memory.in_flight, "capacity": memory.capacity_bytes}
    given = [way for way, value in ways.items() if value is not None]
    if len(given) != 1:
        raise location.refuse(" and ".join(given) or "none of the keys", "one of limit, in_flight or capacity with static")
    if memory.static_bytes is not None and memory.capacity_bytes is None:
        raise (location / "static").refuse("a value without memory.capacity", "both, or neither of them")
    if not any(layer.activation_bytes for layer in layers):
        raise (location / given[0]).refuse("a limit on activations of no size", "profile.activation to say what a microbatch holds")
    if memory.limit_bytes is not None:
        limits = _per_rank(memory.limit_bytes, ranks, location / "limit")
        return tuple(Device(limit_bytes=limit) for limit in limits), (0,)
    if memory.in_flight is not None:
        counts = _per_rank(memory.in_flight, ranks, location / "in_flight")
        return tuple(Device(in_flight=count) for count in counts), (0,)
    if memory.capacity_bytes is None or memory.static_bytes is None:
        raise (location / "static").refuse("nothing", 'a size such as "512 MiB" or a list of them, as memory.capacity is given')
    capacities = _per_rank(memory.capacity_bytes, ranks, location / "capacity")
    return tuple(Device(capacity_bytes=capacity) for capacity in capacities), per_stage(
        memory.static_bytes, placed, location / "static"
    )


def check_capacity(devices: Sequence[Device], static_bytes: Sequence[int], capacity: object, location: Location) -> None:
    """Refuse devices that cannot hold what is static on their ranks.

    Args:
        devices: one for each rank.
        static_bytes: likewise.
        capacity: the value of the key; one for all ranks, or a list.
        location: the place of the key.

    Raises:
        InvalidInput: a rank holds more than its device.
    """
    for rank, (device, static) in enumerate(zip(devices, static_bytes, strict=True)):
        if device.capacity_bytes is not None and static > device.capacity_bytes:
            raise (location if isinstance(capacity, int) else location / rank).refuse(
                format_bytes(device.capacity_bytes), f"at least the {format_bytes(static)} that is static on rank {rank}"
            )


def _per_rank(values: int | tuple[int, ...], ranks: int, location: Location) -> tuple[int, ...]:
    if isinstance(values, int):
        return (values,) * ranks
    if len(values) != ranks:
        raise location.refuse(f"{len(values)} value{'s' * (len(values) != 1)}", f"{ranks}, one per rank")
    return values
