"""The types of the tables and values in job files: text in the file, integers in memory.

Each quantity carries how its text is parsed and how a schema describes it; `schedc.io.conform` reads the former and
`schedc.frontend.job_file` the latter.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from schedc.units import BANDWIDTH_PATTERN, DURATION_PATTERN, SIZE_PATTERN, parse_bandwidth, parse_bytes, parse_duration_ns


def _text(parse: Callable[[str], int], what: str, pattern: str, *examples: str) -> Meta:
    """Text in the file that `parse` makes a number of."""
    expected = f'a {what} such as "{examples[0]}"'
    return Meta(extra={"parse": parse, "expected": expected}, extra_json_schema={"pattern": pattern, "examples": [*examples]})


Duration: TypeAlias = Annotated[int, _text(parse_duration_ns, "duration", DURATION_PATTERN, "38 ms")]
"""Nanoseconds."""

Size: TypeAlias = Annotated[int, _text(parse_bytes, "size", SIZE_PATTERN, "512 MiB")]
"""Bytes."""

Bandwidth: TypeAlias = Annotated[int, _text(parse_bandwidth, "bandwidth", BANDWIDTH_PATTERN, "50 GB/s", "400 Gb/s")]
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


def schema_of(struct: type, title: str) -> dict[str, Any]:
    """The schema of a TOML file, of the struct that it becomes."""
    (reference,), definitions = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **reference,
        "$defs": {name: _as_in_file(schema) for name, schema in definitions.items()},
    }


def _as_in_file(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_as_in_file(item) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    described = {
        key: _as_in_file(value) for key, value in schema.items() if not (key == "default" and isinstance(value, dict | None))
    }
    if described.get("type") == "integer" and "pattern" in described:
        described["type"] = "string"
    if len(described.get("anyOf", ())) == 1:
        described |= described.pop("anyOf")[0]
    return described
