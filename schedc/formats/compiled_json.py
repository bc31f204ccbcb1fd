"""Reads what `schedc compile --json` printed: which methods were tried, which the plan's own file does not keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from schedc.errors import InvalidInput
from schedc.io.input_file import read_bytes, without_mark
from schedc.io.location import Location
from schedc.io.tables import decode
from schedc.ir import Plan

if TYPE_CHECKING:
    from pathlib import Path


class TriedMethod(msgspec.Struct, frozen=True, kw_only=True):
    """One method that was tried."""

    method: str
    seconds: float
    makespan_ns: int | None = None
    objective_ns: int | None = None
    why_not: str = ""
    """Where it found no schedule."""


class Compilation(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan was made; keys that are not here are passed over."""

    makespan_ns: int
    lower_bound_ns: int
    method: str
    seconds: float
    ended: str
    """Why the work ended."""
    candidates: tuple[TriedMethod, ...]


def read_compilation(path: Path, plan: Plan, plan_path: Path) -> Compilation:
    """What was printed when the plan was made.

    Raises:
        InvalidInput: it cannot be read, or is of another plan.
    """
    found = decode(without_mark(read_bytes(path)), Compilation, Location(str(path)))
    certificate = plan.certificate
    of_plan = (certificate.makespan_ns, certificate.lower_bound_ns, plan.made_by.method)
    if (found.makespan_ns, found.lower_bound_ns, found.method) != of_plan:
        raise InvalidInput(
            f"{path}: found a makespan of {found.makespan_ns} ns by {found.method}, expected {of_plan[0]} ns by {of_plan[2]} as in"
            f" {plan_path}; name what schedc compile --json printed for this plan"
        )
    return found
