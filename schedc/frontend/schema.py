"""The JSON Schema of the job file, generated from the types that read it; `schedc schema job` prints it, and editors use it.

The types describe values as they are in memory, so two things are put right here: a quantity is text in the file, and an optional
key is left out of it, never null.
"""

from __future__ import annotations

from typing import Any


def job_schema() -> dict[str, Any]:
    """The schema of job.toml, as JSON Schema 2020-12; every key has its description."""
    from schedc.frontend.job_file import JobFile

    return schema_of(JobFile, "schedc job")


def schema_of(struct: type, title: str) -> dict[str, Any]:
    """The schema of a TOML file, of the struct that it becomes."""
    import msgspec

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
