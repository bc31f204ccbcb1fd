"""The report as the bytes of one HTML file, with what one glance must say at its top. The same plan gives the same bytes."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from schedc.ir import Objective, Plan, Scope
from schedc.spelling import counted
from schedc.view.document import duration, size
from schedc.view.report import sections
from schedc.view.report.chart import chart_data, step_data
from schedc.view.report.figures import Figures, Measured, figures_of
from schedc.view.report.html import Markup, element, html, text
from schedc.view.report.sections import CAUSE_WORDS, percent, worth
from schedc.view.terminal.comparison import accounts_panel, delays_panel, iteration_panel
from schedc.view.terminal.gantt import counts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.formats.compiled_json import Compilation
    from schedc.view.document import Panel

SCRIPTS = "decode units model lanes view colours spans draw overview describe pointer keys main"
"""In this order: each uses those before it."""
_PLACE = re.compile(r"\{\{([a-z-]+)\}\}")


def report_html(plan: Plan, timeline: Timeline, measured: Measured | None = None, compilation: Compilation | None = None) -> bytes:
    """The page of a plan that verifies; `compilation` is what `schedc compile --json` printed, if it is known."""
    figures = figures_of(plan, timeline, measured, compilation)
    problem, made = plan.problem, plan.made_by
    ranks, microbatches = counts_of(problem).split(", ", 1)
    counts = f"{ranks}, {counted(len(problem.stages), 'stage')} ({problem.placement}), {microbatches}"
    stacks = [
        [sections.links_panel(figures), sections.path_panel(figures)],
        [
            sections.stages_panel(figures),
            sections.edges_panel(figures),
            sections.certificate_panel(figures),
            sections.made_by_panel(figures),
        ],
    ]
    columns = element("div", *(element("div", *_panels(stack)) for stack in stacks), class_="columns")
    grouped = [html(sections.ranks_panel(figures)), columns]
    steps = [step_data(plan, "planned", timeline, figures.waits)]
    if measured is not None:
        comparison = measured.comparison
        beside = _panels([iteration_panel(measured.trace, comparison), delays_panel(problem, comparison)])
        grouped = [element("div", *beside, class_="columns"), html(accounts_panel(comparison)), *grouped]
        shown = comparison.measured_step
        steps.append(step_data(plan, "measured", shown.timeline, shown.waits))
    label = (
        f"Timeline of {counted(len(timeline.ops), 'op')} on {counted(timeline.ranks, 'rank')}. Arrow keys"
        " move, plus and minus zoom, Enter selects an op,"
        " comma and full stop go to its neighbours, question mark is help. The tables below have the figures."
    )
    return _filled(
        {
            "title": text(f"{plan.name}: schedc report"),
            "name": text(plan.name),
            "generator": text(f"schedc {made.schedc}"),
            "subtitle": text(f"{counts}, by {made.method}"),
            "headline": _headline(figures),
            "cards": _cards(figures),
            "chart-label": text(label),
            "sections": Markup("\n".join(grouped)),
            "footer": text(f"Made by schedc report from a plan of schedc {made.schedc}. This page needs no network."),
            "data": _json({"chart": chart_data(plan), "steps": steps}),
        }
    ).encode()


def _panels(panels: Iterable[Panel | None]) -> list[Markup]:
    return [html(panel) for panel in panels if panel is not None]


def _json(value: object) -> Markup:
    """The data inside a script element, which only `</script` or `<!--` could end: no `<` is left."""
    return Markup(json.dumps(value, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c"))


def _filled(contents: Mapping[str, str]) -> str:
    """The page with its style and its scripts, and these contents where the template names them; they are HTML already.

    The page's security policy names the digest of its scripts: a browser runs nothing else in it, and loads nothing.
    """
    folder = files("schedc.view.report") / "page"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8").strip()

    script = '\n(() => {\n"use strict";\n\n' + "\n\n".join(read(f"{name}.js") for name in SCRIPTS.split()) + "\n})();\n"
    digest = b64encode(sha256(script.encode()).digest()).decode()
    every = {**contents, "style": read("style.css"), "script": script, "script-hash": f"sha256-{digest}"}
    return _PLACE.sub(lambda place: every[place[1]], read("page.html")) + "\n"


def _headline(figures: Figures) -> Markup:
    """The plan in two sentences, a measured one in three."""
    certificate, timeline = figures.plan.certificate, figures.timeline
    what = "stage span is" if certificate.objective is Objective.STAGE_SPAN else "step takes"
    others = f" {certificate.bound.only}" if certificate.bound.only else ""
    others += " of any layout that the job leaves open" if certificate.scope is Scope.LAYOUT else ""
    shorter, own = _shorter(certificate.gap), figures.own_layout
    if own is not None:
        shorter += f"; none{f' {own.bound.name.only}' if own.bound.name.only else ''} of this layout is {_shorter(own.gap)}"
    whole_ns = timeline.ranks * timeline.makespan_ns
    causes = [f"{CAUSE_WORDS[cause]} ({percent(ns, whole_ns)})" for cause, ns in list(figures.idle_by_cause.items())[:2]]
    idle = f"Ranks are idle {percent(sum(figures.idle_by_cause.values()), whole_ns)} of the time"
    if causes:
        idle += f"; the largest {'causes are' if len(causes) > 1 else 'cause is'} {' and '.join(causes)}"
    sentences = [
        f"The {what} {element('b', duration(certificate.objective_ns))}, and no schedule{others} is {shorter}.",
        text(f"{idle}."),
    ]
    if figures.measured is not None:
        measured = figures.measured.comparison.measured
        sentences.append(f"Measured, it took {element('b', duration(measured.median_ns))}.")
    return Markup(" ".join(sentences))


def _shorter(gap: float) -> str:
    return f"more than {gap * 100:.2f}\u00a0% shorter" if gap > 0 else "shorter"


def _cards(figures: Figures) -> Markup:
    """A card for each of the most important figures."""
    certificate, timeline = figures.plan.certificate, figures.timeline
    whole_ns = timeline.ranks * timeline.makespan_ns
    span = f"stage span {duration(timeline.stage_span_ns)}"
    found = [_card("Makespan", duration(timeline.makespan_ns), span)]
    if figures.measured is not None:
        comparison = figures.measured.comparison
        measured_ns, planned_ns = comparison.measured.median_ns, comparison.predicted_ns
        change = f"{(measured_ns / planned_ns - 1) * 100:+.1f} % against the plan; " if planned_ns else ""
        steps = f"median of {comparison.measured.count} steps" if comparison.measured.count > 1 else "one step"
        found.append(_card("Measured", duration(measured_ns), change + steps))
    bound = "lower bound" if certificate.gap > 0 else "proven: lower bound"
    bound += f" {duration(certificate.lower_bound_ns)}, by {certificate.bound}"
    if figures.own_layout is not None:
        bound += f"; in this layout alone {worth(figures.own_layout)}"
    found.append(_card("Gap to the lower bound", worth(certificate), bound, good=certificate.gap <= 0))
    causes = [f"{CAUSE_WORDS[cause]} {percent(ns, whole_ns)}" for cause, ns in list(figures.idle_by_cause.items())[:3]]
    found.append(_card("Idle", percent(whole_ns - sum(timeline.busy_ns), whole_ns), ", ".join(causes) or "no rank is ever idle"))
    limits, peaks = figures.plan.problem.memory_limit_bytes, figures.peaks_bytes
    full = [(peak / limit if limit else 0, peak) for peak, limit in zip(peaks, limits, strict=True)]
    rank = max(range(len(peaks)), key=lambda rank: (full[rank], -rank))
    note = f", of {size(limits[rank])}: the fullest against its limit" if limits[rank] else ", the fullest; no limit"
    found.append(_card("Peak activations", size(peaks[rank], 2), f"rank {rank}{note}"))
    return Markup("\n".join(found))


def _card(title: str, value: str, note: str, *, good: bool = False) -> Markup:
    shown = element("div", value, class_="value good" if good else "value")
    return element("div", element("h2", title), shown, element("p", note), class_="card")
