"""A plan as the commands that write it in another tool's format take it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan


def read_sound_plan(path: Path) -> Plan:
    """The plan in the file.

    Raises:
        CheckFailed: its verifier refuses it.
    """
    from schedc.compile.certify import check_plan
    from schedc.errors import CheckFailed
    from schedc.formats.plan.plan_file import read_plan

    read = read_plan(path)
    violations = check_plan(read)
    if violations:
        raise CheckFailed(f"{path}: {violations[0]} (`schedc verify` lists all {len(violations)})")
    return read
