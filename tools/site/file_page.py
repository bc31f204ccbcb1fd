"""The page of the files: their keys, from the types that read and write them.

`python tools/site/file_page.py SECTION` prints the table of a section of the job, for pages of docs/.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from markdown_text import code, row, table

from schedc.formats.convergence_file import MeasuredConvergence
from schedc.formats.plan.plan_structs import plan_schema
from schedc.formats.profile_file import ProfileFile
from schedc.formats.trace_file import TraceFile
from schedc.frontend.job_file import JobFile
from schedc.frontend.topology_keys import TopologyFile
from schedc.frontend.tune_file import TuneFile
from schedc.io.conform import schema_of
from schedc.ir import Objective, Semantics
from schedc.study.loss.delay_table import DelayTableFile
from schedc.study.sweep.jobs import SweepFile

_HEAD = """\
# Files

Every key of every file, from the types that read them. [Files and formats](../formats.md) explains them.
`schedc schema job|plan|tune` prints three of these schemas as JSON Schema, for editors.
"""

_KINDS = {"string": "text", "integer": "whole number", "boolean": "true or false", "object": "table"}


def schemas() -> dict[str, dict[str, Any]]:
    """The schema of each file, by its heading."""
    return {
        "The job": schema_of(JobFile, "job"),
        "The topology": schema_of(TopologyFile, "topology"),
        "The profile": schema_of(ProfileFile, "profile"),
        "The plan": plan_schema(),
        "The trace": _written_schema(TraceFile),
        "The sweep": schema_of(SweepFile, "sweep"),
        "The job of tune": schema_of(TuneFile, "tune"),
        "The table of delays": schema_of(DelayTableFile, "delays"),
        "Measured convergence": _written_schema(MeasuredConvergence),
    }


def file_page() -> str:
    """The Markdown of the page."""
    parts = [_HEAD]
    for title, schema in schemas().items():
        parts.append(f"## {title}\n")
        root = schema["$ref"].rpartition("/")[2]
        names = [root, *(name for name in schema["$defs"] if name != root)]
        parts.extend(_section(schema["$defs"][name], name, title, is_root=name == root) for name in names)
    return "\n".join(parts)


def _written_schema(struct: type) -> dict[str, Any]:
    """The schema of a JSON file, where all is as in memory."""
    (reference,), definitions = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    return {**reference, "$defs": definitions}


def _anchor(title: str, name: str) -> str:
    """The name of a section's place; two files may have sections of the same name."""
    return f"{title} {name.lstrip('_')}".lower().replace(" ", "-")


def _section(schema: dict[str, Any], name: str, title: str, *, is_root: bool) -> str:
    described = schema.get("description", "")
    head = f"{described}\n" if is_root else f"### {name.lstrip('_')} {{#{_anchor(title, name)}}}\n\n{described}\n"
    if "properties" not in schema:
        return f"{head}\n{_kind(schema, title)}\n"
    return f"{head}\n{_keys(schema, title)}\n"


def _keys(schema: dict[str, Any], title: str) -> str:
    """The table of a section's keys."""
    needed = schema.get("required", ())
    rows = [
        row(code(key), _kind(value, title), "required" if key in needed else _default(value), value.get("description", ""))
        for key, value in schema["properties"].items()
    ]
    return table(("key", "type", "default", "meaning"), rows)


def _default(schema: dict[str, Any]) -> str:
    return code(msgspec.json.encode(schema["default"]).decode()) if schema.get("default") not in (None, [], {}) else ""


def _kind(schema: dict[str, Any], title: str) -> str:
    """What a value is, in words, with links to the sections of the file of this title, if there is one."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2].lstrip("_")
        named = {"Objective": Objective, "Semantics": Semantics}.get(name)
        if not title:
            return " or ".join(code(f'"{value}"') for value in named) if named else "table"
        return f"[{name}](#{_anchor(title, name)})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one, title) for one in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(code(msgspec.json.encode(value).decode()) for value in schema["enum"])
    if "const" in schema:
        return code(msgspec.json.encode(schema["const"]).decode())
    kind = schema.get("type", "any")
    if kind == "array":
        items = schema.get("items")
        return f"list of ({_kind(items, title)})" if isinstance(items, dict) and items else "list"
    if kind == "string" and "examples" in schema:
        return f"text as {' or '.join(code(example) for example in schema['examples'])}"
    return f"{_KINDS.get(kind, kind)}{_range(schema)}"


def _range(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None or high is None:
        return ""
    return f", {low} to {'2^53' if high == 2**53 - 1 else high}"


if __name__ == "__main__":
    sys.stdout.write(_keys(schema_of(JobFile, "job", links=True)["$defs"][sys.argv[1]], "") + "\n")
