"""What one glance must say: the sentence and the cards at the top of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.attribution.idle import IdleCause
from schedc.ir.plan import Certificate, Scope
from schedc.ir.problem import Objective
from schedc.units import format_bytes, format_duration_ns
from schedc.view.report.html import Markup, element, text

if TYPE_CHECKING:
    from schedc.compile.plans import OwnLayout
    from schedc.view.report.figures import Figures

CAUSE_WORDS = {
    IdleCause.WARM_UP: "warm-up",
    IdleCause.COOL_DOWN: "cool-down",
    IdleCause.COMPUTE: "compute of other ranks",
    IdleCause.QUEUE: "queues of links",
    IdleCause.TRANSMISSION: "transmission",
    IdleCause.LATENCY: "latency",
    IdleCause.MEMORY: "memory",
    IdleCause.ALL_GATHER: "all-gathers",
}


def percent(part: float, whole: float, decimals: int = 1) -> str:
    """The share for people; 0 % of nothing."""
    return f"{part / whole * 100 if whole else 0:.{decimals}f}\u00a0%"


def worth(certificate: Certificate | OwnLayout) -> str:
    """What the certificate, or the bound of the layout alone, says in a word or two."""
    return f"{certificate.gap * 100:.2f}\u00a0%" if certificate.gap > 0 else "optimal"


def headline(figures: Figures) -> Markup:
    """The plan in two sentences, a measured one in three."""
    certificate, timeline = figures.plan.certificate, figures.timeline
    what = "stage span is" if certificate.objective is Objective.STAGE_SPAN else "step takes"
    others = " of whole blocks" if certificate.solver_log_sha256 else ""
    others += " of any layout that the job leaves open" if certificate.scope is Scope.LAYOUT else ""
    shorter, own = _shorter(certificate.gap), figures.own_layout
    if own is not None:
        shorter += f"; none{' of whole blocks' if own.of_whole_blocks else ''} of this layout is {_shorter(own.gap)}"
    whole_ns = timeline.ranks * timeline.makespan_ns
    causes = [f"{CAUSE_WORDS[cause]} ({percent(ns, whole_ns)})" for cause, ns in list(figures.idle_by_cause.items())[:2]]
    idle = f"Ranks are idle {percent(sum(figures.idle_by_cause.values()), whole_ns)} of the time"
    if causes:
        idle += f"; the largest {'causes are' if len(causes) > 1 else 'cause is'} {' and '.join(causes)}"
    sentences = [
        f"The {what} {element('b', format_duration_ns(certificate.objective_ns))}, and no schedule{others} is {shorter}.",
        text(f"{idle}."),
    ]
    if figures.measured is not None:
        measured = figures.measured.comparison.measured
        sentences.append(f"Measured, it took {element('b', format_duration_ns(measured.median_ns))}.")
    return Markup(" ".join(sentences))


def _shorter(gap: float) -> str:
    return f"more than {gap * 100:.2f}\u00a0% shorter" if gap > 0 else "shorter"


def cards(figures: Figures) -> Markup:
    """A card for each of the most important figures."""
    certificate, timeline = figures.plan.certificate, figures.timeline
    whole_ns = timeline.ranks * timeline.makespan_ns
    span = f"stage span {format_duration_ns(timeline.stage_span_ns)}"
    found = [_card("Makespan", format_duration_ns(timeline.makespan_ns), span)]
    if figures.measured is not None:
        comparison = figures.measured.comparison
        measured_ns, planned_ns = comparison.measured.median_ns, comparison.predicted_ns
        change = f"{(measured_ns / planned_ns - 1) * 100:+.1f} % against the plan; " if planned_ns else ""
        steps = f"median of {comparison.measured.count} steps" if comparison.measured.count > 1 else "one step"
        found.append(_card("Measured", format_duration_ns(measured_ns), change + steps))
    bound = "lower bound" if certificate.gap > 0 else "proven: lower bound"
    bound += f" {format_duration_ns(certificate.lower_bound_ns)}, by {certificate.bound}"
    if figures.own_layout is not None:
        bound += f"; in this layout alone {worth(figures.own_layout)}"
    found.append(_card("Gap to the lower bound", worth(certificate), bound, good=certificate.gap <= 0))
    causes = [f"{CAUSE_WORDS[cause]} {percent(ns, whole_ns)}" for cause, ns in list(figures.idle_by_cause.items())[:3]]
    found.append(_card("Idle", percent(whole_ns - sum(timeline.busy_ns), whole_ns), ", ".join(causes) or "no rank is ever idle"))
    found.append(_memory_card(figures))
    return Markup("\n".join(found))


def _memory_card(figures: Figures) -> Markup:
    """The rank that is nearest to its limit; of ranks without one, the fullest."""
    limits = figures.plan.problem.memory_limit_bytes
    peaks = figures.peaks_bytes
    rank = max(range(len(peaks)), key=lambda rank: (peaks[rank] / limit if (limit := limits[rank]) else 0, peaks[rank], -rank))
    limit = limits[rank]
    if limit:
        note = f"rank {rank}, of {format_bytes(limit)}: the fullest against its limit"
    else:
        note = f"rank {rank}, the fullest; no limit"
    return _card("Peak activations", format_bytes(peaks[rank], 2), note)


def _card(title: str, value: str, note: str, *, good: bool = False) -> Markup:
    shown = element("div", value, class_="value good" if good else "value")
    return element("div", element("h2", title), shown, element("p", note), class_="card")
