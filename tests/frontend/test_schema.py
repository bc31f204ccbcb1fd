"""The job's JSON Schema says of a file what the reader says, as far as a schema can."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from inputs.jobs import M70
from oracles.json_schema import valid

from schedc.frontend.job_file import job_schema

EXAMPLES = Path(__file__).parents[2] / "examples"


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
