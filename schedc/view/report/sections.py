"""The panels below the timeline: ranks, links, certificate, how the plan was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.attribution.critical_path import SegmentKind
from schedc.analysis.attribution.idle import IdleCause
from schedc.ir.ops import KIND_NAMES
from schedc.ir.plan import Scope
from schedc.spelling import counted
from schedc.units import format_bytes, format_duration_ns
from schedc.view.report.links import ALLOWED
from schedc.view.report.markup import Cell, Markup, element, table
from schedc.view.report.panels import bar, facts, keys_of_bars, panel
from schedc.view.report.stages import HEADERS, stage_rows
from schedc.view.report.summary import CAUSE_WORDS, percent, worth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.attribution.idle import Idle
    from schedc.view.report.figures import Figures

MOST_LINKS = 40
"""A longer table is folded."""
COMPUTE_COLOUR = "--f0"
CAUSE_COLOURS = {
    IdleCause.LATENCY: "--idle-latency",
    IdleCause.TRANSMISSION: "--idle-transmission",
    IdleCause.QUEUE: "--idle-queue",
    IdleCause.COMPUTE: "--idle-compute",
    IdleCause.MEMORY: "--idle-memory",
    IdleCause.ALL_GATHER: "--gather",
    IdleCause.WARM_UP: "--idle-warm",
    IdleCause.COOL_DOWN: "--idle-cool",
}
"""In the order of the bars."""


def sections(figures: Figures) -> tuple[Markup, list[Markup], list[Markup]]:
    """What follows from the plan alone: the panel of the ranks, and two stacks of panels that are beside each other."""
    return _ranks(figures), [_links(figures), _path(figures)], [_stages(figures), _certificate(figures), _made_by(figures)]


def _ranks(figures: Figures) -> Markup:
    """Per rank, its time by cause and its memory against the limit."""
    timeline, problem = figures.timeline, figures.plan.problem
    whole_ns = timeline.makespan_ns
    most_bytes = max([*figures.peaks_bytes, *(limit for limit in problem.memory_limit_bytes if limit is not None), 1])
    rows = []
    for rank, busy_ns in enumerate(timeline.busy_ns):
        peak_bytes, limit = figures.peaks_bytes[rank], problem.memory_limit_bytes[rank]
        held = bar(
            [("--memory", peak_bytes, format_bytes(peak_bytes))], most_bytes, mark=None if limit is None else limit / most_bytes
        )
        rows.append(
            [
                Cell(f"rank {rank}"),
                Cell(_time_bar(busy_ns, figures.idle[rank], whole_ns)),
                Cell(percent(busy_ns, whole_ns), "number"),
                Cell(format_duration_ns(whole_ns - busy_ns), "number"),
                Cell(_largest(figures.idle[rank])),
                Cell(held),
                Cell(format_bytes(peak_bytes) + ("" if limit is None else f" of {format_bytes(limit)}"), "number"),
            ]
        )
    headers = [
        Cell("rank"),
        Cell("time", "wide"),
        Cell("computes", "number"),
        Cell("idle", "number"),
        Cell("idle most for"),
        Cell("memory", "half"),
        Cell("peak activations", "number"),
    ]
    used = figures.idle_by_cause
    keys = [
        (COMPUTE_COLOUR, "computes"),
        *((colour, CAUSE_WORDS[cause]) for cause, colour in CAUSE_COLOURS.items() if cause in used),
    ]
    keys += [("--memory", "activations held at most")]
    keys += [("--limit", "limit")] if any(limit is not None for limit in problem.memory_limit_bytes) else []
    return panel(
        "Ranks: idle time by cause, memory against its limit",
        keys_of_bars(keys),
        table("Per rank", headers, rows),
        element("details", element("summary", "Idle time by cause, in numbers"), _causes(figures)),
        identity="figures-of-ranks",
        long=True,
    )


def _time_bar(busy_ns: int, idle: Sequence[Idle], whole_ns: int) -> Markup:
    parts = [(COMPUTE_COLOUR, busy_ns, f"computes: {format_duration_ns(busy_ns)}")]
    for cause, colour in CAUSE_COLOURS.items():
        idle_ns = sum(each.idle_ns for each in idle if each.cause is cause)
        parts.append((colour, idle_ns, f"{CAUSE_WORDS[cause]}: {format_duration_ns(idle_ns)}"))
    return bar(parts, whole_ns)


def _largest(idle: Sequence[Idle]) -> str:
    """The largest cause in words, with where it is."""
    if not idle:
        return "never idle"
    largest = idle[0]
    at = "" if largest.cause in (IdleCause.WARM_UP, IdleCause.COOL_DOWN) else f" of rank {largest.rank}"
    if largest.destination is not None:
        at = f" of link {largest.rank}>{largest.destination}"
    words = {IdleCause.COMPUTE: "compute", IdleCause.QUEUE: "queue", IdleCause.ALL_GATHER: "all-gather"}
    return f"{words.get(largest.cause, CAUSE_WORDS[largest.cause])}{at}, {format_duration_ns(largest.idle_ns)}"


def _causes(figures: Figures) -> Markup:
    """The idle times of all ranks in numbers."""
    causes = [cause for cause in CAUSE_COLOURS if cause in figures.idle_by_cause]
    rows = []
    for rank, idle in enumerate(figures.idle):
        of_cause = [sum(each.idle_ns for each in idle if each.cause is cause) for cause in causes]
        rows.append([Cell(f"rank {rank}"), *(Cell(format_duration_ns(ns) if ns else "–", "number") for ns in of_cause)])
    return table("Idle time per rank", [Cell("rank"), *(Cell(CAUSE_WORDS[cause], "number") for cause in causes)], rows)


def _path(figures: Figures) -> Markup:
    """The critical path by what it is made of."""
    colours = {
        **{SegmentKind(name): f"--{name.lower()}0" for name in KIND_NAMES},
        SegmentKind.TRANSMISSION: "--idle-transmission",
        SegmentKind.LATENCY: "--idle-latency",
        SegmentKind.ALL_GATHER: "--gather",
        SegmentKind.REDUCE_SCATTER: "--scatter",
    }
    whole_ns = figures.timeline.makespan_ns
    total_ns = {kind: sum(segment.length_ns for segment in figures.path if segment.kind is kind) for kind in colours}
    used = [kind for kind in colours if total_ns[kind]]
    rows = [
        [
            Cell(kind),
            Cell(format_duration_ns(total_ns[kind]), "number"),
            Cell(percent(total_ns[kind], whole_ns), "number"),
            Cell(str(sum(segment.kind is kind for segment in figures.path)), "number"),
        ]
        for kind in used
    ]
    headers = [Cell("what"), Cell("takes", "number"), Cell("of the step", "number"), Cell("pieces", "number")]
    return panel(
        "Critical path",
        element(
            "p",
            "Each of its pieces begins when the one before it ends. The step is shorter only if one of them is.",
            class_="quiet",
        ),
        bar([(colours[kind], total_ns[kind], kind) for kind in used], whole_ns),
        table("What it is made of", headers, rows),
    )


def _links(figures: Figures) -> Markup:
    """What each link does, and the delays that it tolerates."""
    whole_ns = figures.timeline.makespan_ns
    computed = all(link.free_ns is not None for link in figures.links)
    rows = [
        [
            Cell(f"{link.source}>{link.destination}"),
            Cell(str(link.messages), "number"),
            Cell(percent(link.busy_ns, whole_ns), "number"),
            *(Cell(format_duration_ns(ns, 2), "number") for ns in (link.slack_ns, link.free_ns, link.allowed_ns) if ns is not None),
        ]
        for link in sorted(figures.links, key=lambda link: (link.allowed_ns or 0, link.slack_ns, -link.busy_ns))
    ]
    longer = f"≤ {percent(ALLOWED, 1, 0)} longer"
    headers = [
        "messages",
        "busy",
        "slack",
        *(["no longer", longer] if computed else []),
    ]
    note = "Slack: how much later any one of its messages could leave, with the step no longer. "
    if computed:
        note += "The last two columns: the latency that could be added to all of its messages, with the step no longer, or at most"
        note += f" {percent(ALLOWED, 1, 0)} longer. Orders are kept: with others, a plan may tolerate more."
    else:
        note += "What all of them together tolerate is not computed for a plan of this size: schedc explain does."
    content = table("The link that tolerates least first", [Cell("link"), *(Cell(text, "number") for text in headers)], rows)
    if len(rows) > MOST_LINKS:
        content = element("details", element("summary", f"All {len(rows)} links"), content)
    return panel("Links: delays that they tolerate", element("p", note, class_="quiet"), content) if rows else Markup()


def _stages(figures: Figures) -> Markup:
    """Where the stages are, what they hold all the time, and what their ranks can hold."""
    problem = figures.plan.problem
    rows = [
        [Cell(text, "number" if at else "") for at, text in enumerate(row.cells)]
        for row in stage_rows(problem, range(len(problem.stages)))
    ]
    content = table(
        "Stages that are alike in one row", [Cell(text, "number" if at else "") for at, text in enumerate(HEADERS)], rows
    )
    if len(rows) > MOST_LINKS:
        content = element("details", element("summary", f"All {len(problem.stages)} stages"), content)
    note = "Static: what a stage holds all the time. Capacity: what its rank can hold in all, static and activations."
    return panel("Stages", element("p", note, class_="quiet"), content) if rows else Markup()


def _certificate(figures: Figures) -> Markup:
    certificate, own = figures.plan.certificate, figures.own_layout
    scope = "every layout that the job leaves open" if certificate.scope is Scope.LAYOUT else "every schedule of this layout"
    scope += ", of whole blocks" if certificate.solver_log_sha256 else ""
    rows = [
        ("status", "proven optimal" if certificate.gap <= 0 else "a schedule and a lower bound, with a gap between them"),
        ("minimized", f"{certificate.objective}: {format_duration_ns(certificate.objective_ns)}"),
        ("lower bound", f"{format_duration_ns(certificate.lower_bound_ns)}, by {certificate.bound}"),
        ("gap", worth(certificate) if certificate.gap > 0 else "0 %"),
        ("the bound holds for", scope),
        ("bubble ratio", percent(certificate.bubble_ratio, 1, 2)),
    ]
    if own is not None:
        of_blocks = ", of whole blocks" if own.of_whole_blocks else ""
        rows.append(
            ("in this layout alone", f"{worth(own)}{of_blocks}: {format_duration_ns(own.bound.value_ns)}, by {own.bound.name}")
        )
    if certificate.solver_log_sha256:
        rows.append(("solver's log", f"sha256 {certificate.solver_log_sha256}"))
    return panel("Certificate", facts(rows))


def _made_by(figures: Figures) -> Markup:
    made, problem = figures.plan.made_by, figures.plan.problem
    rows = [
        ("method", made.method),
        ("schedc", made.schedc),
        ("seed", str(made.seed)),
        ("job", f"sha256 {made.job_sha256}" if made.job_sha256 else "not known"),
        ("reproducible", "yes" if made.reproducible else "no: a clock or an interruption ended the search"),
        ("placement", f"{problem.placement}, {counted(len(problem.stages), 'stage')} on {counted(problem.ranks, 'rank')}"),
    ]
    return panel("How it was made", facts(rows), element("h3", "Candidates tried"), _candidates(figures))


def _candidates(figures: Figures) -> Markup:
    """The methods that were tried, the best first, then those that found nothing and why."""
    compilation = figures.compilation
    if compilation is None:
        note = (
            "A plan's file keeps the method that made it, not what else was tried. Give what compile --json printed as --compiled."
        )
        return element("p", note, class_="quiet")
    solved = [tried for tried in compilation.candidates if tried.makespan_ns is not None]
    best_ns = min((tried.makespan_ns or 0 for tried in solved), default=0)
    rows = []
    for tried in sorted(solved, key=lambda tried: tried.makespan_ns or 0):
        makespan_ns = tried.makespan_ns or 0
        against = f"+{percent(makespan_ns - best_ns, best_ns, 2)}"
        cells = [format_duration_ns(makespan_ns), against, f"{tried.seconds:.2f} s"]
        rows.append([Cell(tried.method), *(Cell(text, "number") for text in cells)])
    headers = [Cell("method"), *(Cell(text, "number") for text in ("makespan", "over best", "took"))]
    ended = f"{len(compilation.candidates)} methods in {compilation.seconds:.1f} s; it ended: {compilation.ended}"
    why_not = [(tried.method, tried.why_not) for tried in compilation.candidates if tried.makespan_ns is None]
    others = element("details", element("summary", f"{len(why_not)} found nothing"), facts(why_not)) if why_not else Markup()
    return Markup(table(ended, headers, rows) + others)
