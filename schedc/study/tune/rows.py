"""What became of each candidate: a row of the table, and the table as CSV."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from schedc.io.outputs import csv_bytes
from schedc.study.tune.candidates import TuneCandidate

if TYPE_CHECKING:
    from collections.abc import Iterable


class CandidateState(StrEnum):
    """How far the work on a candidate came."""

    BEST = "best"
    PLANNED = "planned"
    BOUNDED = "bounded"
    """Its lower bound is not below the best step: not searched."""
    NO_ROOM = "no room"
    """A rank cannot hold what it must."""
    NO_PLAN = "no plan"
    """No method tried found a schedule within the memory."""
    TOO_LARGE = "too large"
    """More compute ops than are searched."""
    NOT_REACHED = "not reached"
    """The time was up, or somebody interrupted the work."""


@dataclass(slots=True, kw_only=True)
class TuneRow:
    """One candidate; filled in while it is worked on."""

    candidate: TuneCandidate
    state: CandidateState
    method: str = ""
    """What made the plan."""
    step_ns: int | None = None
    """The plan's makespan: the training step, with the collectives."""
    stage_span_ns: int | None = None
    """The longest time from the first to the last op of a rank: collectives do not count."""
    collectives_ns: int | None = None
    """Of the rank where they take longest, if nothing overlapped them."""
    tokens_per_s: float | None = None
    peak_bytes: int | None = None
    """Of the rank that holds most: all that it holds all the time, and activations."""
    bound_ns: int | None = None
    """No schedule of this candidate has a shorter step."""
    gap: float | None = None
    seconds: float = 0.0
    why_not: str = ""


def rows_csv(rows: Iterable[TuneRow]) -> bytes:
    """The table: a column for each field, nanoseconds and bytes, an empty cell where there is none."""
    of_candidate = [field.name for field in fields(TuneCandidate)]
    others = [field.name for field in fields(TuneRow) if field.name != "candidate"]
    table: list[list[object]] = [[*of_candidate, *others]]
    for row in rows:
        values = [getattr(row.candidate, name) for name in of_candidate]
        values = [" ".join(map(str, each)) if isinstance(each, tuple) else each for each in values]  # of sites
        table.append(values + [getattr(row, name) for name in others])
    return csv_bytes(table)
