"""The report as the bytes of one HTML file. The same plan gives the same bytes."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from schedc.spelling import counted
from schedc.view.report import comparison, sections
from schedc.view.report.chart import chart_data, planned_step, step_data
from schedc.view.report.figures import Measured, figures_of
from schedc.view.report.html import Markup, element, html, text
from schedc.view.report.measured import measured_step
from schedc.view.report.summary import cards, headline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.formats.compiled_json import Compilation
    from schedc.ir.plan import Plan
    from schedc.view.document import Panel

SCRIPTS = "decode units model lanes view colours spans draw overview describe pointer keys main"
"""In this order: each uses those before it."""
_PLACE = re.compile(r"\{\{([a-z-]+)\}\}")


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
    stacks = [
        [sections.links_panel(figures), sections.path_panel(figures)],
        [sections.stages_panel(figures), sections.certificate_panel(figures), sections.made_by_panel(figures)],
    ]
    columns = element("div", *(element("div", *_panels(stack)) for stack in stacks), class_="columns")
    grouped = [html(sections.ranks_panel(figures)), columns]
    steps = [step_data(plan, planned_step(timeline, figures.waits))]
    if measured is not None:
        beside = _panels([comparison.iteration_panel(measured), comparison.delays_panel(measured)])
        grouped = [element("div", *beside, class_="columns"), html(comparison.accounts_panel(measured)), *grouped]
        shown = measured.comparison.shown_step
        steps.append(step_data(plan, measured_step(plan, timeline, measured.trace, shown)))
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
            "headline": headline(figures),
            "cards": cards(figures),
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
