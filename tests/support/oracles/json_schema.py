"""Whether a value is as a JSON Schema says, for the keywords that our schemas use."""

from __future__ import annotations

import re
from typing import Any

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
