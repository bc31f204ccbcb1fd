"""The types of the tables and values in job files: text in the file, integers in memory.

Each quantity carries how its text is parsed and how a schema describes it; `schedc.io.conform` reads the former and
`schedc.frontend.schema` the latter.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from schedc.units import BANDWIDTH_PATTERN, DURATION_PATTERN, SIZE_PATTERN, parse_bandwidth, parse_bytes, parse_duration_ns

Duration: TypeAlias = Annotated[
    int,
    Meta(
        extra={"parse": parse_duration_ns, "expected": 'a duration such as "38 ms"'},
        extra_json_schema={"pattern": DURATION_PATTERN, "examples": ["38 ms"]},
    ),
]
"""Nanoseconds."""

Size: TypeAlias = Annotated[
    int,
    Meta(
        extra={"parse": parse_bytes, "expected": 'a size such as "512 MiB"'},
        extra_json_schema={"pattern": SIZE_PATTERN, "examples": ["512 MiB"]},
    ),
]
"""Bytes."""

Bandwidth: TypeAlias = Annotated[
    int,
    Meta(
        extra={"parse": parse_bandwidth, "expected": 'a bandwidth such as "50 GB/s"'},
        extra_json_schema={"pattern": BANDWIDTH_PATTERN, "examples": ["50 GB/s", "400 Gb/s"]},
    ),
]
"""Bytes per second."""

Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**20)]
"""How many there are of something: at least one, and few enough that a typing mistake does not fill the memory."""

Pair: TypeAlias = Annotated[tuple[int, ...], Meta(min_length=2, max_length=2)]
"""Two ranks, or two sites."""

Durations: TypeAlias = Duration | tuple[Duration, ...]
"""One value for all stages, or one for each."""

BlockDurations: TypeAlias = Duration | tuple[Duration | tuple[Duration, ...], ...]
"""Likewise; instead of a stage's duration there may be a list, one for each microbatch."""

Sizes: TypeAlias = Size | tuple[Size, ...]
"""One value for all stages (or ranks, where the key is about ranks), or one for each."""

Counts: TypeAlias = Count | tuple[Count, ...]
"""One value for all ranks, or one for each."""


def _key(name: str) -> str:
    return "bandwidth" if name == "bytes_per_second" else name.removesuffix("_ns").removesuffix("_bytes")


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=_key):
    """A table of a file. A field's key is its name without the unit, which the file has beside the number."""
