"""The panels below the timeline: ranks, links, certificate, how the plan was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.attribution.idle import Idle, IdleCause
from schedc.analysis.attribution.waits import SegmentKind
from schedc.ir import KIND_NAMES, Certificate, Scope
from schedc.spelling import counted
from schedc.view.document import Bar, Block, Column, Facts, Fold, Keys, Line, Panel, Table, duration, left, right, size
from schedc.view.report.figures import ALLOWED, Figures
from schedc.view.terminal.edges import EDGE_HEADERS, EDGE_NOTE, edge_rows
from schedc.view.terminal.plan import STAGE_HEADERS, stage_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.compile.plans import OwnLayout


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


def percent(part: float, whole: float, decimals: int = 1) -> str:
    """The share for people; 0 % of nothing."""
    return f"{part / whole * 100 if whole else 0:.{decimals}f}\u00a0%"


def worth(certificate: Certificate | OwnLayout) -> str:
    """What the certificate, or the bound of the layout alone, says in a word or two."""
    return f"{certificate.gap * 100:.2f}\u00a0%" if certificate.gap > 0 else "optimal"


def ranks_panel(figures: Figures) -> Panel:
    """Per rank, its time by cause and its memory against the limit."""
    timeline, limits = figures.timeline, figures.plan.problem.memory_limit_bytes
    whole_ns = timeline.makespan_ns
    most_bytes = max([*figures.peaks_bytes, *(limit for limit in limits if limit is not None), 1])
    rows: list[Sequence[str | Bar]] = []
    for rank, of_rank in enumerate(zip(timeline.busy_ns, figures.idle, figures.peaks_bytes, limits, strict=True)):
        busy_ns, idle, peak, limit = of_rank
        mark = None if limit is None else limit / most_bytes
        rows.append(
            [
                f"rank {rank}",
                _time_bar(busy_ns, idle, whole_ns),
                percent(busy_ns, whole_ns),
                duration(whole_ns - busy_ns),
                _largest(idle),
                Bar((("--memory", peak, size(peak)),), most_bytes, mark),
                size(peak) + ("" if limit is None else f" of {size(limit)}"),
            ]
        )
    times = [Column("time", kind="wide"), *right("computes", "idle"), *left("idle most for")]
    columns = [*left("rank"), *times, Column("memory", kind="half"), *right("peak activations")]
    causes = [cause for cause in CAUSE_COLOURS if cause in figures.idle_by_cause]
    keys = [(COMPUTE_COLOUR, "computes"), *((CAUSE_COLOURS[cause], CAUSE_WORDS[cause]) for cause in causes)]
    keys += [("--memory", "activations held at most")]
    keys += [("--limit", "limit")] if any(limit is not None for limit in limits) else []
    blocks: list[Block] = [
        Keys(keys),
        Table(title="Per rank", columns=columns, rows=rows),
        Fold("Idle time by cause, in numbers", [_causes(figures, causes)]),
    ]
    return Panel("Ranks: idle time by cause, memory against its limit", blocks, identity="figures-of-ranks", long=True)


def _time_bar(busy_ns: int, idle: Sequence[Idle], whole_ns: int) -> Bar:
    parts = [(COMPUTE_COLOUR, busy_ns, f"computes: {duration(busy_ns)}")]
    for cause, colour in CAUSE_COLOURS.items():
        idle_ns = _idle_ns(idle, cause)
        parts.append((colour, idle_ns, f"{CAUSE_WORDS[cause]}: {duration(idle_ns)}"))
    return Bar(tuple(parts), whole_ns)


def _idle_ns(idle: Sequence[Idle], cause: IdleCause) -> int:
    return sum(each.idle_ns for each in idle if each.cause is cause)


def _largest(idle: Sequence[Idle]) -> str:
    """The largest cause in words, with where it is."""
    if not idle:
        return "never idle"
    largest = idle[0]
    at = "" if largest.cause in (IdleCause.WARM_UP, IdleCause.COOL_DOWN) else f" of rank {largest.rank}"
    if largest.destination is not None:
        at = f" of link {largest.rank}>{largest.destination}"
    words = {IdleCause.COMPUTE: "compute", IdleCause.QUEUE: "queue", IdleCause.ALL_GATHER: "all-gather"}
    return f"{words.get(largest.cause, CAUSE_WORDS[largest.cause])}{at}, {duration(largest.idle_ns)}"


def _causes(figures: Figures, causes: Sequence[IdleCause]) -> Table:
    """The idle times of all ranks in numbers."""
    rows = []
    for rank, idle in enumerate(figures.idle):
        of_cause = [_idle_ns(idle, cause) for cause in causes]
        rows.append((f"rank {rank}", *(duration(ns) if ns else "–" for ns in of_cause)))
    columns = [*left("rank"), *right(*(CAUSE_WORDS[cause] for cause in causes))]
    return Table(title="Idle time per rank", columns=columns, rows=rows)


def path_panel(figures: Figures) -> Panel:
    """The critical path by what it is made of."""
    colours = {
        **{SegmentKind(name): f"--{name.lower()}0" for name in KIND_NAMES},
        SegmentKind.TRANSMISSION: "--idle-transmission",
        SegmentKind.LATENCY: "--idle-latency",
        SegmentKind.ALL_GATHER: "--gather",
        SegmentKind.REDUCE_SCATTER: "--scatter",
    }
    whole_ns = figures.timeline.makespan_ns
    pieces_ns = {kind: [segment.length_ns for segment in figures.path if segment.kind is kind] for kind in colours}
    used = {kind: (sum(of_kind), str(len(of_kind))) for kind, of_kind in pieces_ns.items() if of_kind}
    rows = [(kind, duration(ns), percent(ns, whole_ns), pieces) for kind, (ns, pieces) in used.items()]
    said = "Each of its pieces begins when the one before it ends. The step is shorter only if one of them is."
    blocks: list[Block] = [
        Line(said, "quiet"),
        Bar(tuple((colours[kind], ns, kind) for kind, (ns, _) in used.items()), whole_ns),
        Table(title="What it is made of", columns=[*left("what"), *right("takes", "of the step", "pieces")], rows=rows),
    ]
    return Panel("Critical path", blocks)


def links_panel(figures: Figures) -> Panel | None:
    """What each link does, and the delays that it tolerates."""
    whole_ns, longer = figures.timeline.makespan_ns, f"{percent(ALLOWED, 1, 0)} longer"
    computed = all(link.free_ns is not None for link in figures.links)
    rows = []
    for link in sorted(figures.links, key=lambda link: (link.allowed_ns or 0, link.slack_ns, -link.busy_ns)):
        delays = [duration(ns, 2) for ns in (link.slack_ns, link.free_ns, link.allowed_ns) if ns is not None]
        rows.append((f"{link.source}>{link.destination}", str(link.messages), percent(link.busy_ns, whole_ns), *delays))
    headers = ["messages", "busy", "slack", *(["no longer", f"≤ {longer}"] if computed else [])]
    note = "Slack: how much later any one of its messages could leave, with the step no longer. "
    if computed:
        note += "The last two columns: the latency that could be added to all of its messages, with the step no longer, or at most"
        note += f" {longer}. Orders are kept: with others, a plan may tolerate more."
    else:
        note += "What all of them together tolerate is not computed for a plan of this size: schedc explain does."
    table = Table(title="The link that tolerates least first", columns=[*left("link"), *right(*headers)], rows=rows)
    return _with_note("Links: delays that they tolerate", note, table, f"All {len(rows)} links") if rows else None


def stages_panel(figures: Figures) -> Panel | None:
    """Where the stages are, what they hold all the time, and what their ranks can hold."""
    problem = figures.plan.problem
    rows = [row.cells for row in stage_rows(problem, range(len(problem.stages)))]
    first, *others = STAGE_HEADERS
    table = Table(title="Stages that are alike in one row", columns=[*left(first), *right(*others)], rows=rows)
    note = "Static: what a stage holds all the time. Capacity: what its rank can hold in all, static and activations."
    return _with_note("Stages", note, table, f"All {len(problem.stages)} stages") if rows else None


def edges_panel(figures: Figures) -> Panel | None:
    """What stages give each other, where they are a graph."""
    rows = edge_rows(figures.plan.problem)
    columns = [*left(*EDGE_HEADERS[:2]), *right(*EDGE_HEADERS[2:4]), *left(EDGE_HEADERS[4])]
    table = Table(title="Edges of a kind in one row", columns=columns, rows=rows)
    return _with_note("Edges of the graph", EDGE_NOTE, table, f"All {len(rows)} rows") if rows else None


def _with_note(title: str, note: str, table: Table, summary: str) -> Panel:
    """A note and a table, which is folded where it is long."""
    is_long = len(list(table.rows)) > MOST_LINKS
    return Panel(title, [Line(note, "quiet"), Fold(summary, [table]) if is_long else table])


def certificate_panel(figures: Figures) -> Panel:
    """What is proven of the plan."""
    certificate, own = figures.plan.certificate, figures.own_layout
    scope = "every layout that the job leaves open" if certificate.scope is Scope.LAYOUT else "every schedule of this layout"
    scope += f", {certificate.bound.only}" if certificate.bound.only else ""
    rows = [
        ("status", "proven optimal" if certificate.gap <= 0 else "a schedule and a lower bound, with a gap between them"),
        ("minimized", f"{certificate.objective}: {duration(certificate.objective_ns)}"),
        ("lower bound", f"{duration(certificate.lower_bound_ns)}, by {certificate.bound}"),
        ("gap", worth(certificate) if certificate.gap > 0 else "0 %"),
        ("the bound holds for", scope),
        ("bubble ratio", percent(certificate.bubble_ratio, 1, 2)),
    ]
    if own is not None:
        said = f"{worth(own)}{f', {own.bound.name.only}' if own.bound.name.only else ''}"
        rows.append(("in this layout alone", f"{said}: {duration(own.bound.value_ns)}, by {own.bound.name}"))
    if certificate.solver_log_sha256:
        rows.append(("solver's log", f"sha256 {certificate.solver_log_sha256}"))
    return Panel("Certificate", [Facts(rows)])


def made_by_panel(figures: Figures) -> Panel:
    """How the plan came to be."""
    made, problem = figures.plan.made_by, figures.plan.problem
    rows = [
        ("method", made.method),
        ("schedc", made.schedc),
        ("seed", str(made.seed)),
        ("job", f"sha256 {made.job_sha256}" if made.job_sha256 else "not known"),
        ("reproducible", "yes" if made.reproducible else "no: a clock or an interruption ended the search"),
        ("placement", f"{problem.placement}, {counted(len(problem.stages), 'stage')} on {counted(problem.ranks, 'rank')}"),
    ]
    return Panel("How it was made", [Facts(rows), Line("Candidates tried", "bold"), *_candidates(figures)])


def _candidates(figures: Figures) -> list[Block]:
    """The methods that were tried, the best first, then those that found nothing and why."""
    compilation = figures.compilation
    if compilation is None:
        kept = "A plan's file keeps the method that made it, not what else was tried."
        return [Line(f"{kept} Give what compile --json printed as --compiled.", "quiet")]
    solved = [(tried.makespan_ns, tried) for tried in compilation.candidates if tried.makespan_ns is not None]
    solved.sort(key=lambda pair: pair[0])
    best_ns = solved[0][0] if solved else 0
    rows = [(tried.method, duration(ns), f"+{percent(ns - best_ns, best_ns, 2)}", f"{tried.seconds:.2f} s") for ns, tried in solved]
    ended = f"{len(compilation.candidates)} methods in {compilation.seconds:.1f} s; it ended: {compilation.ended}"
    # A report of a plan of a period shows a run of it; what the methods found are periods.
    first = "period" if figures.plan.problem.updates is not None else "makespan"
    table = Table(title=ended, columns=[*left("method"), *right(first, "over best", "took")], rows=rows)
    why_not = [(tried.method, tried.why_not) for tried in compilation.candidates if tried.makespan_ns is None]
    return [table, Fold(f"{len(why_not)} found nothing", [Facts(why_not)])] if why_not else [table]
