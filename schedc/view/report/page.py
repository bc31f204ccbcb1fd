"""The report as the bytes of one HTML file. The same plan gives the same bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from schedc.spelling import counted
from schedc.view.report.chart import chart_data, planned_step, step_data
from schedc.view.report.comparison import comparison_panels
from schedc.view.report.figures import figures_of
from schedc.view.report.markup import Markup, element, text
from schedc.view.report.measured import measured_step
from schedc.view.report.page_files import filled
from schedc.view.report.sections import sections
from schedc.view.report.summary import cards, headline

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.formats.compiled_json import Compilation
    from schedc.ir.plan import Plan
    from schedc.view.report.figures import Figures, Measured


def report_html(plan: Plan, timeline: Timeline, measured: Measured | None = None, compilation: Compilation | None = None) -> bytes:
    """The page.

    Args:
        plan: a plan that verifies.
        timeline: when the simulator says that it happens.
        measured: a recording of the plan, if there is one.
        compilation: what `schedc compile --json` printed, if it is known.
    """
    figures = figures_of(plan, timeline, measured, compilation)
    problem, made = plan.problem, plan.made_by
    counts = f"{counted(problem.ranks, 'rank')}, {counted(len(problem.stages), 'stage')} ({problem.placement})"
    counts += f", {counted(problem.microbatches, 'microbatch')}"
    ranks, *stacks = sections(figures)
    grouped = [ranks, element("div", *(element("div", *stack) for stack in stacks), class_="columns")]
    steps = [step_data(plan, planned_step(timeline, figures.waits))]
    if measured is not None:
        grouped = [*comparison_panels(measured), *grouped]
        shown = measured.comparison.shown_step
        steps.append(step_data(plan, measured_step(plan, timeline, measured.trace, shown)))
    return filled(
        {
            "title": text(f"{plan.name}: schedc report"),
            "name": text(plan.name),
            "generator": text(f"schedc {made.schedc}"),
            "subtitle": text(f"{counts}, by {made.method}"),
            "headline": headline(figures),
            "cards": cards(figures),
            "chart-label": text(_label(figures)),
            "sections": Markup("\n".join(grouped)),
            "footer": text(f"Made by schedc report from a plan of schedc {made.schedc}. This page needs no network."),
            "data": _json({"chart": chart_data(plan), "steps": steps}),
        }
    ).encode()


def _label(figures: Figures) -> str:
    """What the canvas is, for those who cannot see it."""
    timeline = figures.timeline
    return (
        f"Timeline of {counted(len(timeline.ops), 'op')} on {counted(timeline.ranks, 'rank')}. Arrow keys"
        " move, plus and minus zoom, Enter selects an op,"
        " comma and full stop go to its neighbours, question mark is help. The tables below have the figures."
    )


def _json(value: object) -> Markup:
    """The data inside a script element, which only `</script` or `<!--` could end: no `<` is left."""
    return Markup(json.dumps(value, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c"))
