"""[memory] made into each rank's limit on activations.

Takes the section and the stages; gives bytes per rank, None where there is no limit. Whether a limit can be met at all is not
judged here: that a stage's activation does not fit is the solvers' to prove.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.frontend.profile import per_stage
from schedc.units import MAX_QUANTITY, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.files.location import Location
    from schedc.frontend.job_file import MemorySection
    from schedc.frontend.placement import Placed
    from schedc.ir.problem import Stage

__all__ = ["memory_limits"]


def memory_limits(
    memory: MemorySection | None, stages: Sequence[Stage], placed: Placed, ranks: int, location: Location
) -> tuple[int | None, ...]:
    """The limit of each rank in bytes; `location` is the place of [memory].

    `in_flight` microbatches hold, on a rank, the activations of all its stages on one path; where there are two paths, those of
    the larger. `capacity` leaves what is not static on the rank's stages.

    Raises:
        InvalidInput: none or several ways to say it, a list of a wrong length, or a capacity below what is static.
    """
    if memory is None:
        return (None,) * ranks
    ways = {"limit": memory.limit_bytes, "in_flight": memory.in_flight, "capacity": memory.capacity_bytes}
    given = [way for way, value in ways.items() if value is not None]
    if len(given) != 1:
        raise location.refuse(" and ".join(given) or "none of the keys", "one of limit, in_flight or capacity with static")
    if memory.static_bytes is not None and memory.capacity_bytes is None:
        raise (location / "static").refuse("a value without memory.capacity", "both, or neither of them")
    if not any(stage.activation_bytes for stage in stages):
        raise (location / given[0]).refuse("a limit on activations of no size", "profile.activation to say what a microbatch holds")
    if memory.limit_bytes is not None:
        return _per_rank(memory.limit_bytes, ranks, location / "limit")
    if memory.in_flight is not None:
        counts = _per_rank(memory.in_flight, ranks, location / "in_flight")
        limits = [count * held for count, held in zip(counts, _microbatch_bytes(stages, placed, ranks), strict=True)]
        return tuple(min(limit, MAX_QUANTITY) for limit in limits)  # no rank holds more than that in all, see job.py
    if memory.capacity_bytes is None or memory.static_bytes is None:
        raise (location / "static").refuse("nothing", 'a size such as "512 MiB" or a list of them, as memory.capacity is given')
    capacities = _per_rank(memory.capacity_bytes, ranks, location / "capacity")
    statics = per_stage(memory.static_bytes, placed, location / "static")
    static_on = [0] * ranks
    for size, stage in zip(statics, stages, strict=True):
        static_on[stage.rank] += size
    for rank, (capacity, static) in enumerate(zip(capacities, static_on, strict=True)):
        if static > capacity:
            at = location / "capacity"
            raise (at if isinstance(memory.capacity_bytes, int) else at / rank).refuse(
                f"{format_bytes(capacity)}", f"at least the {format_bytes(static)} that is static on rank {rank}"
            )
    return tuple(capacity - static for capacity, static in zip(capacities, static_on, strict=True))


def _microbatch_bytes(stages: Sequence[Stage], placed: Placed, ranks: int) -> list[int]:
    """What one microbatch holds on each rank after its forwards there, on the path where that is most."""
    most = [0] * ranks
    for path in placed.paths:
        held = [0] * ranks
        for stage in path:
            held[stages[stage].rank] += stages[stage].activation_bytes
        most = list(map(max, most, held))
    return most


def _per_rank(values: int | tuple[int, ...], ranks: int, location: Location) -> tuple[int, ...]:
    if isinstance(values, int):
        return (values,) * ranks
    if len(values) != ranks:
        raise location.refuse(f"{len(values)} value{'s' * (len(values) != 1)}", f"{ranks}, one per rank")
    return values
