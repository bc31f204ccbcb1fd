"""The JSON Schema of the plan file."""

from __future__ import annotations

from typing import Any

import msgspec

from schedc.formats.plan.plan_structs import PlanFile


def plan_schema() -> dict[str, Any]:
    """The JSON Schema of the plan file, generated from the types of `plan_structs`."""
    schema = msgspec.json.schema(PlanFile)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A plan of schedc", **schema}
    as_json: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(whole))  # a default of () becomes [], as in any JSON
    return as_json
