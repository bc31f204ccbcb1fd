"""The figures of a plan that the page is about: where each rank's time goes, what it holds, what its links tolerate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from schedc.analysis.attribution.critical_path import critical_path
from schedc.analysis.attribution.idle import idle_of
from schedc.analysis.attribution.waits import waits_of
from schedc.analysis.bounds.own_layout import OwnLayout, own_layout
from schedc.analysis.simulation.memory import peak_bytes
from schedc.view.report.links import link_figures

if TYPE_CHECKING:
    from schedc.analysis.attribution.critical_path import Segment
    from schedc.analysis.attribution.idle import Idle, IdleCause
    from schedc.analysis.attribution.waits import Waits
    from schedc.analysis.comparison.compare import Comparison
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.formats.compiled_json import Compilation
    from schedc.ir.plan import Plan
    from schedc.ir.trace import Trace
    from schedc.view.report.links import LinkFigures


class Measured(NamedTuple):
    """A recording of the plan, and what it says."""

    trace: Trace
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All that the page says about a plan."""

    plan: Plan
    timeline: Timeline
    waits: Waits
    idle: tuple[tuple[Idle, ...], ...]
    """Per rank, the largest cause first."""
    peaks_bytes: tuple[int, ...]
    path: tuple[Segment, ...]
    """The critical path."""
    links: tuple[LinkFigures, ...]
    own_layout: OwnLayout | None
    """Where a layout was open, what is known of the plan's own."""
    measured: Measured | None
    compilation: Compilation | None
    """How the plan was made, if that is known."""

    @property
    def idle_by_cause(self) -> dict[IdleCause, int]:
        """Over all ranks, the largest first."""
        total_ns: Counter[IdleCause] = Counter()
        for of_rank in self.idle:
            for idle in of_rank:
                total_ns[idle.cause] += idle.idle_ns
        return dict(total_ns.most_common())


def figures_of(plan: Plan, timeline: Timeline, measured: Measured | None, compilation: Compilation | None) -> Figures:
    """The figures of a plan that verifies.

    Args:
        plan: the plan.
        timeline: when the simulator says that it happens.
        measured: a recording of the plan, if there is one.
        compilation: what `schedc compile --json` printed, if it is known.
    """
    problem, schedule = plan.problem, plan.schedule()
    waits = waits_of(problem, timeline)
    return Figures(
        plan=plan,
        timeline=timeline,
        waits=waits,
        idle=idle_of(problem, schedule, timeline, waits),
        peaks_bytes=peak_bytes(problem, schedule),
        path=critical_path(timeline, waits),
        links=link_figures(plan, timeline, waits),
        own_layout=own_layout(plan),
        measured=measured,
        compilation=compilation,
    )
