"""The plan file: JSON that is written by the compiler, reviewed by people and executed by training jobs (formats, "The plan").

`plan_json` and `write_plan` take a Plan, `parse_plan` and `read_plan` give the equal one back. The same plan gives the same bytes.
A training job reads plans and writes none: what writes them is imported where it is used. Reading checks the file's shape alone;
whether the plan holds what it promises is for `schedc.verify.plan.checks`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.files.decode import decode
from schedc.files.input_file import MOST_BYTES, read_bytes, without_mark
from schedc.files.location import Location
from schedc.text.plan.plan_from_file import plan_of_file
from schedc.text.plan.plan_structs import PlanFile

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan

__all__ = ["parse_plan", "plan_json", "plan_sha256", "read_plan", "write_plan"]


def plan_json(plan: Plan) -> bytes:
    """The plan file's bytes, laid out for review; they end with a newline."""
    from schedc.files.pretty_json import pretty_json
    from schedc.text.plan.plan_to_file import table_of_plan

    return pretty_json(table_of_plan(plan)).encode()


def plan_sha256(plan: Plan) -> str:
    """The digest of the plan file's bytes, by which traces know the plan."""
    return hashlib.sha256(plan_json(plan)).hexdigest()


def write_plan(plan: Plan, path: Path | str) -> None:
    """Write the plan file, whole or not at all.

    Raises:
        InvalidInput: the directory does not exist, or the file cannot be written.
    """
    from schedc.files.atomic_write import write_atomically

    write_atomically(path, plan_json(plan))


def read_plan(path: Path | str) -> Plan:
    """The plan in the file.

    Raises:
        InvalidInput: names the file, the place in it, what was found and what was expected.
    """
    return parse_plan(read_bytes(path, MOST_BYTES), str(path))


def parse_plan(content: bytes, name: str) -> Plan:
    """The plan that the bytes of a plan file hold; `name` is what messages call the file.

    Raises:
        InvalidInput: names the file, the place in it, what was found and what was expected.
    """
    location, content = Location(name), without_mark(content)
    try:
        file = decode(content, PlanFile, location)
    except InvalidInput:
        from schedc.text.plan.no_plan import check_header

        check_header(content, location)
        raise
    return plan_of_file(file, location)
