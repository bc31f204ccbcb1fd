"""A comparison in one line: how far plan and run were apart, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir import KIND_NAMES
from schedc.units import format_bytes, format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.comparison.causes import Cause
    from schedc.analysis.comparison.compare import Comparison
    from schedc.ir import Plan, Problem

MOST_CAUSES = 2
MOST_RANKS = 8


def cause_in_words(problem: Problem, cause: Cause) -> str:
    """What added to a delay."""
    op = "" if cause.op is None else problem.token(cause.op)
    if cause.what == "compute" and cause.op is not None:
        return f"{KIND_NAMES[cause.op.kind]} of stage {cause.op.stage} on rank {cause.rank} ({op})"
    if cause.what == "transfer":
        return f"the link {cause.rank} → {cause.destination} ({op})"
    if cause.what == "begin":
        return f"rank {cause.rank} began the step later than the first rank"
    return f"rank {cause.rank} between its ops (before {op})"


def in_a_line(plan: Plan, comparison: Comparison, memory_bytes: Sequence[int | None] = ()) -> str:
    """How far a plan and the recorded steps of it were apart, and what added most to the median step.

    Args:
        plan: the plan.
        comparison: with its trace.
        memory_bytes: by rank, the most that steps held beside what was there before; None: it is not known. Those furthest above
            the plan's come first; of more than 8, these alone are said.
    """
    measured_ns, planned_ns = comparison.measured.median_ns, comparison.predicted_ns
    apart = f" ({(measured_ns / planned_ns - 1) * 100:+.1f}%)" if planned_ns else ""
    steps = f"{comparison.measured.count} step{'s' * (comparison.measured.count > 1)}"
    line = f"{plan.name}: {format_duration_ns(measured_ns)} over {steps}, planned {format_duration_ns(planned_ns)}{apart}"
    causes = [cause for cause in comparison.end.causes if cause.added_ns > 0][:MOST_CAUSES]
    why = ", ".join(f"{cause_in_words(plan.problem, cause)} +{format_duration_ns(cause.added_ns)}" for cause in causes)
    line += f"; most by {why}" if why else ""
    peaks = plan.certificate.peak_activation_bytes
    known = sorted((peaks[rank] - found, rank, found) for rank, found in enumerate(memory_bytes) if found is not None)
    if known:
        ranks = [f"rank {rank} {format_bytes(found)}, planned {format_bytes(peaks[rank])}" for _, rank, found in known[:MOST_RANKS]]
        line += f"; memory: {'; '.join(ranks)}"
    return line
