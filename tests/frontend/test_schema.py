"""The job's JSON Schema says of a file what the reader says, as far as a schema can."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from inputs.jobs import M70

from schedc.frontend.schema import job_schema

EXAMPLES = Path(__file__).parents[2] / "examples"
TYPES = {"string": str, "integer": int, "number": int | float, "boolean": bool, "array": list, "object": dict}
KNOWN = {
    "$ref", "anyOf", "type", "enum", "pattern", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "title", "description", "default", "examples",
}  # fmt: skip


def valid(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """A reading of those keywords of JSON Schema that the job's schema uses, and of no others."""
    assert set(schema) - {"$schema", "$defs"} <= KNOWN, schema
    if "$ref" in schema and not valid(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root):
        return False
    if "anyOf" in schema and not any(valid(value, inner, root) for inner in schema["anyOf"]):
        return False
    if "type" in schema and (
        not isinstance(value, TYPES[schema["type"]]) or isinstance(value, bool) != (schema["type"] == "boolean")
    ):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str):
        return re.search(schema.get("pattern", ""), value) is not None and len(value) >= schema.get("minLength", 0)
    if isinstance(value, list):
        enough = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return enough and ("items" not in schema or all(valid(item, schema["items"], root) for item in value))
    if isinstance(value, dict):
        known = schema.get("properties", {})
        closed = schema.get("additionalProperties", True) or set(value) <= set(known)
        complete = set(schema.get("required", ())) <= set(value)
        return closed and complete and all(valid(item, known[key], root) for key, item in value.items() if key in known)
    low, high = schema.get("minimum", value), schema.get("maximum", value)
    return bool(low <= value <= high and value < schema.get("exclusiveMaximum", value + 1))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/job.toml")), ids=lambda path: path.parent.name)
def test_examples_are_valid(path: Path) -> None:
    schema = job_schema()
    assert valid(tomllib.loads(path.read_text(encoding="utf-8")), schema, schema)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ranks = 8", "rank = 8"),
        ("ranks = 8", "ranks = 0"),
        ("ranks = 8", "ranks = true"),
        ("ranks = 8", ""),
        ('forward = "38 ms"', "forward = 38"),
        ('forward = "38 ms"', 'forward = "38 MB"'),
        ('forward = "38 ms"', 'forward = ["38 ms", "38"]'),
        ("ranks = [1, 2]", "ranks = [1]"),
        ("gap = 0.0", "gap = 1.0"),
        ('"makespan"', '"span"'),
        ("zero_stage = 1", "zero_stage = 2"),
        ('"50 GB/s"', '"50 GB"'),
    ],
)
def test_bad_jobs_are_not(old: str, new: str) -> None:
    schema = job_schema()
    assert valid(tomllib.loads(M70), schema, schema)
    assert not valid(tomllib.loads(M70.replace(old, new, 1)), schema, schema)


def test_every_key_is_described() -> None:
    schema = job_schema()
    for name, section in schema["$defs"].items():
        for key, value in section.get("properties", {}).items():  # an enumeration has none
            assert "description" in value or "$ref" in value or key == "seed", f"{name}.{key}"
    assert "null" not in str(schema)
    assert "None" not in str(schema)
