"""Every key of the job's schema is put to use: some value that the schema allows changes what the job states, or is refused.

Keys and values are made from the schema, so a key that was added is here without anybody adding it. A section of its own is not:
it must be in `EVERY_SECTION`, and the first test says so.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from inputs.jobs import M70
from oracles.json_schema import valid

from schedc.compile.settings import search_settings
from schedc.errors import InvalidInput
from schedc.frontend.job import checked_job
from schedc.frontend.job_file import job_schema
from schedc.frontend.job_source import python_override, source_of_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Schema = dict[str, Any]

EVERY_SECTION = f"""
{M70}
[devices]
speed = [1, 1, 1, 1, 1, 1, 1, 2]
[[module]]
name = "vision"
layers = 3
[[module]]
name = "text"
layers = 5
inputs = ["vision"]
[[edge]]
source = "vision.1"
destination = "text.2"
value = "ids"
message = "8 KB"
[[tied]]
first = 0
last = "text"
gradient = "1 GB"
[[topology.site_link]]
sites = [0, 1]
bandwidth = "2 GB/s"
[[topology.link]]
ranks = [3, 4]
latency = "70 ms"
"""
LENGTHS = """
[lengths]
path = "lengths.csv"
profile_length = 100
"""
SLICES = """
[slices]
lengths = [3, 2]
quadratic = 0.2
"""


def document(path: str) -> dict[str, Any]:
    """A job with every section but one of two that are not together: that which the path of a key is not in."""
    return tomllib.loads(EVERY_SECTION + (LENGTHS if path.startswith("lengths") else SLICES))


TEXTS = ("11 ms", "13 MiB", "17 MB/s", "Ett|tt|tt|tt|tt|tt|tt|ttL", "other", "output", "fit.csv")
"""Of each kind of text that a key may have."""


def resolved(schema: Schema) -> list[Schema]:
    """What the schema of a value refers to, or each of the types that the value may have."""
    if "$ref" in schema:
        return resolved(job_schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    return [each for inner in schema["anyOf"] for each in resolved(inner)] if "anyOf" in schema else [schema]


def keys(schema: Schema, path: str = "") -> Iterator[tuple[str, list[Schema]]]:
    """The path of every key of a table that is no table itself, and what its value may be; of a list of tables, the last one's."""
    for name, inner in schema["properties"].items():
        kinds, at = resolved(inner), f"{path}.{name}".lstrip(".")
        items = resolved(kinds[0].get("items", {}))[0]
        if "properties" in kinds[0]:
            yield from keys(kinds[0], at)
        elif "properties" in items:
            yield from keys(items, f"{at}[{len(value_at(document(at), at)) - 1}]")
        else:
            yield at, kinds


def values(kinds: list[Schema]) -> Iterator[object]:
    """Several values of these types; lists of several lengths."""
    for kind in kinds:
        if "enum" in kind:
            yield from kind["enum"]
        elif kind["type"] == "boolean":
            yield from (False, True)
        elif kind["type"] == "string":
            yield from (text for text in TEXTS if re.search(kind.get("pattern", ""), text))
        elif kind["type"] == "array":
            counts = {min(max(count, kind.get("minItems", 0)), kind.get("maxItems", 8)) for count in (2, 8)}
            yield from ([item] * count for count in counts for item in values(resolved(kind["items"])))
            yield [0, 1]  # two of those that exist
        else:
            yield from (each for each in (0, 0.5, 1, 2, 3) if kind["type"] == "number" or isinstance(each, int))


def value_at(table: Any, path: str) -> Any:
    """The value at a path, or None."""
    for name, index in re.findall(r"([a-z_]+)|\[(\d+)\]", path):
        table = table[int(index)] if index else table.get(name)
        if table is None:
            return None
    return table


def what_it_states(directory: Path, path: str, value: object = None) -> object:
    """All that a job states, with the value set where there is one; or why it is refused."""
    overrides = () if value is None else (python_override(path, value),)
    try:
        job = checked_job(source_of_table(document(path), directory=directory, name="every", overrides=overrides))
        limits = {"time_limit_s": None, "gap": None, "seed": None, "deterministic_limit": None}
        settings = search_settings(job, method=None, workers=1, **limits)  # type: ignore[arg-type]
    except InvalidInput as error:
        return str(error)
    return job.workload, job.given_layout, job.open_layout, job.given_problem, settings


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("job")
    (made / "lengths.csv").write_text("length\n" + "\n".join(str(70 + each) for each in range(16)) + "\n", encoding="utf-8")
    (made / "fit.csv").write_text("length,duration\n50,40 ms\n100,100 ms\n", encoding="utf-8")
    return made


def test_the_job_is_good_and_has_every_section(directory: Path) -> None:
    for path in ("lengths", "slices"):
        assert not isinstance(what_it_states(directory, path), str), what_it_states(directory, path)
    for path, _ in keys(job_schema()["$defs"]["JobFile"]):
        section = path.rpartition(".")[0]
        assert not section or value_at(document(path), section) is not None, f"EVERY_SECTION lacks {section}"


@pytest.mark.parametrize(("path", "kinds"), [pytest.param(*each, id=each[0]) for each in keys(job_schema()["$defs"]["JobFile"])])
def test_every_key(path: str, kinds: list[Schema], directory: Path) -> None:
    before, given = what_it_states(directory, path), value_at(document(path), path)
    tried = [value for value in values(kinds) if value != given and any(valid(value, kind, job_schema()) for kind in kinds)]
    assert tried, f"no value of {path} to try"
    assert any(what_it_states(directory, path, value) != before for value in tried), f"nothing uses {path}"
