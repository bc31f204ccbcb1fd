"""Causes and delays of a comparison in words, for all who show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import KIND_NAMES, token
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from schedc.analysis.comparison.causes import Cause, Delay


def cause_words(cause: Cause) -> str:
    """A cause for people."""
    op = "" if cause.op is None else token(cause.op)
    if cause.what == "compute" and cause.op is not None:
        return f"{KIND_NAMES[cause.op.kind]} of stage {cause.op.stage} on rank {cause.rank} ({op})"
    if cause.what == "transfer":
        return f"the link {cause.rank} → {cause.destination} ({op})"
    if cause.what == "begin":
        return f"rank {cause.rank} began the step later than the first rank"
    return f"rank {cause.rank} between its ops (before {op})"


def first_words(delay: Delay) -> str:
    """Where a delay came in."""
    if delay.late_ns <= 0:
        return "none, it was in time"
    if delay.first is None:
        return "none, many that add less than a tenth each"
    return f"{cause_words(delay.first)}, {signed_time(delay.first.added_ns)}"


def late_words(late_ns: int) -> str:
    """By how much something ended later or earlier."""
    if late_ns == 0:
        return "as planned"
    return f"{format_duration_ns(abs(late_ns), 2)} {'later' if late_ns > 0 else 'earlier'} than planned"


def signed_time(duration_ns: int) -> str:
    """The duration with its sign."""
    return ("+" if duration_ns >= 0 else "") + format_duration_ns(duration_ns, 2)
