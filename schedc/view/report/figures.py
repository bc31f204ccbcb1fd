"""The figures of a plan that the page is about: where each rank's time goes, what it holds, what its links tolerate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from schedc.analysis.attribution.idle import Idle, IdleCause, idle_of
from schedc.analysis.attribution.slack import slacks_of
from schedc.analysis.attribution.tolerance import Tolerance, lengthened_ns
from schedc.analysis.attribution.waits import Segment, Waits, critical_path, waits_of
from schedc.analysis.simulation.memory import peak_bytes
from schedc.compile.plans import OwnLayout, own_layout
from schedc.ir import Plan, Trace

if TYPE_CHECKING:
    from schedc.analysis.comparison.compare import Comparison
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.formats.compiled_json import Compilation


ALLOWED = 0.01
"""By which share the step may be longer, for the second tolerated delay."""
MOST_SIMULATED, MOST_BISECTED = 100_000, 20_000
"""Tolerated delays are found by simulating the plan again and again: up to this many ops times links, which takes a few seconds.
Where links share trunks, each takes more simulations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """One link that messages cross."""

    source: int
    destination: int
    messages: int
    busy_ns: int
    """For how long its messages occupy it, or its trunk."""
    slack_ns: int
    """How much later one of its messages could leave, whichever, so that the step ends no later."""
    free_ns: int | None
    """The latency that can be added to all of its messages so that the step ends no later. None: not computed."""
    allowed_ns: int | None
    """The same so that the step becomes at most `ALLOWED` longer."""


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
    """The figures of a plan that verifies; `compilation` is what `schedc compile --json` printed, if it is known."""
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


def link_figures(plan: Plan, timeline: Timeline, waits: Waits) -> tuple[LinkFigures, ...]:
    """The links that messages cross, by source and destination."""
    slacks = slacks_of(timeline, waits).of_links(timeline)
    busy_ns: dict[tuple[int, int], int] = dict.fromkeys(slacks, 0)
    messages = busy_ns.copy()
    occupied = timeline.transfer_left_ns - timeline.transfer_start_ns
    for link, occupied_ns in zip(timeline.links, occupied.tolist(), strict=True):
        busy_ns[link] += occupied_ns
        messages[link] += 1
    tolerance = Tolerance(plan.problem, plan.schedule())
    computed = len(timeline.ops) * len(slacks) <= (MOST_SIMULATED if tolerance.exact else MOST_BISECTED)
    longer_ns = lengthened_ns(timeline.makespan_ns, ALLOWED)
    found = []
    for link, slack_ns in slacks.items():
        free_ns = tolerance.extra_latency_ns(link) if computed and slack_ns else 0
        found.append(
            LinkFigures(
                source=link[0],
                destination=link[1],
                messages=messages[link],
                busy_ns=busy_ns[link],
                slack_ns=slack_ns,
                free_ns=free_ns if computed else None,
                allowed_ns=tolerance.extra_latency_ns(link, longer_ns) if computed else None,
            )
        )
    return tuple(found)
