"""`schedc show`: the picture of a plan in the terminal, with ranks, links, collectives and memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from schedc.analysis.simulation.memory import memory_curve, peak_bytes
from schedc.errors import InvalidInput
from schedc.ir.index import tables_of
from schedc.ir.resource import Resource
from schedc.spelling import counted
from schedc.units import format_bytes, format_duration_ns
from schedc.view.document import Block, Line, Picture, Table, right
from schedc.view.report.stages import HEADERS, stage_rows
from schedc.view.terminal.gantt import (
    Span,
    Window,
    collective_spans,
    cropped,
    legend,
    link_spans,
    memory_row,
    rank_row,
    row_of,
    ruler,
    spread_ranks,
)
from schedc.view.terminal.results import certificate_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

MOST_LINKS, MOST_MEMORY, MOST_STAGES = 8, 4, 16
"""How many rows of each are shown, unless ranks are asked for: a picture is looked at as a whole."""


class _Row(NamedTuple):
    """A line of the picture: the text before it, itself once its width is known, the text after it."""

    label: str
    draw: Callable[[Window], Text]
    tail: str = ""


def chosen_ranks(text: str | None, ranks: int) -> tuple[int, ...] | None:
    """The ranks that the option names: `0-3,8`, or `all`; None where it is not given.

    Raises:
        InvalidInput: it cannot be read, or a rank does not exist.
    """
    if text is None or text == "all":
        return None if text is None else tuple(range(ranks))
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) <= 9 for end in ends) or not int(ends[0]) <= int(ends[1]) < ranks:
            raise InvalidInput(f"--ranks: found {text!r}, expected ranks from 0 to {ranks - 1} as in 0-3,8, or all")
        found |= set(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(found))


def shown_plan(
    plan: Plan, timeline: Timeline, shown_ns: tuple[int, int], *, ranks: tuple[int, ...] | None = None
) -> Iterator[Block]:
    """A plan between two times.

    Args:
        plan: the plan.
        timeline: when its ops happen.
        shown_ns: the first moment that is shown, and the last one.
        ranks: the ranks to show, with all their links, collectives and memory; None: as many of each as fit a picture.
    """
    problem = plan.problem
    rows, left_out = _rows(plan, timeline, shown_ns, ranks)
    title = f" {format_duration_ns(shown_ns[0])} to {format_duration_ns(shown_ns[1])} "
    whole = shown_ns == (0, timeline.makespan_ns)
    rows.insert(0, _Row("", lambda window: ruler(window, title), "" if whole else "in this time:"))
    counts = f"{counted(problem.ranks, 'rank')}, {counted(problem.microbatches, 'microbatch')}"
    yield Line(f"{plan.name}: {counts}, by {plan.made_by.method}", "bold")
    yield from certificate_lines(plan)
    yield Picture(lambda _: [legend(problem, (timeline,))])
    yield Picture(partial(_drawn, rows, shown_ns))
    stages = stage_rows(problem, [index for index, stage in enumerate(problem.stages) if ranks is None or stage.rank in ranks])
    hidden = stages[MOST_STAGES // 2 : -MOST_STAGES // 2] if ranks is None and len(stages) > MOST_STAGES else []
    cells = [row.cells if row not in hidden else ("…",) for row in stages if row not in hidden[1:]]
    if cells:
        yield Table(columns=right(*HEADERS), rows=cells)
    if hidden:
        left_out.append(f"{sum(row.stages for row in hidden)} of {len(problem.stages)} stages")
    if left_out:
        yield Line(f"not shown: {', '.join(left_out)}; --ranks all or --ranks 0-3,8 shows others", "dim")


def _drawn(rows: Sequence[_Row], shown_ns: tuple[int, int], width: int) -> Iterator[Text]:
    label_width = max(len(label) for label, _, _ in rows) + 1
    tail_width = max(len(tail) for _, _, tail in rows) + 1
    window = Window(*shown_ns, max(20, width - label_width - tail_width))
    for label, draw, tail in rows:
        yield cropped(Text(label.ljust(label_width), "bold"), draw(window), Text(f" {tail}" if tail else "", "dim"))


def _rows(plan: Plan, timeline: Timeline, shown_ns: tuple[int, int], ranks: tuple[int, ...] | None) -> tuple[list[_Row], list[str]]:
    """The rows of the picture, and what it leaves out, in words."""
    problem, schedule = plan.problem, plan.schedule()
    peaks = peak_bytes(problem, schedule)
    links, collectives = link_spans(problem, timeline), collective_spans(problem, timeline)
    resources = tables_of(problem).resources

    def importance(number: int) -> tuple[bool, int]:
        return resources[number].kind != "trunk", -_busy_ns(links[number], shown_ns)  # trunks first, then the busiest links

    if ranks is None:
        computing, holding = spread_ranks(problem.ranks), _telling(problem, peaks)
        crossed = sorted(sorted(links, key=importance)[:MOST_LINKS])
    else:
        computing = holding = ranks
        crossed = [number for number in links if _touches(problem, resources[number], set(ranks))]
    length_ns = shown_ns[1] - shown_ns[0]
    rows = []
    for rank in computing:
        spans = [Span(*ends, "", "", "") for ends in zip(timeline.start_ns(rank), timeline.end_ns(rank), strict=True)]
        busy = f"{_busy_ns(spans, shown_ns) / length_ns:.1%} busy"
        rows.append(_Row(f"rank {rank}", partial(rank_row, problem=problem, timeline=timeline, rank=rank), busy))
    rows += [_Row(resources[number].label, partial(row_of, spans=links[number])) for number in crossed]
    rows += [_Row(f"coll {rank}", partial(row_of, spans=collectives[rank])) for rank in holding if rank in collectives]
    held = holding if any(peaks) else ()
    for rank in held:
        curve = memory_curve(problem, schedule, timeline, rank)
        limit = problem.memory_limit_bytes[rank]
        rows.append(
            _Row(
                f"mem {rank}",
                partial(memory_row, curve=curve, full_bytes=limit or max(peaks)),
                _of_limit(_peak(curve, shown_ns), limit),
            )
        )
    counts = (
        (len(computing), problem.ranks, "ranks"),
        (len(crossed), len(links), "links"),
        (len([rank for rank in holding if rank in collectives]), len(collectives), "ranks' collectives"),
        (len(held), problem.ranks if held else 0, "ranks' memory"),
    )
    return rows, [] if ranks is not None else [
        f"{whole - shown} of {whole} {what}" for shown, whole, what in counts if shown < whole
    ]


def _telling(problem: Problem, peaks: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks whose memory says most: the first, the last, and of those between them the fullest and the emptiest."""
    if problem.ranks <= MOST_MEMORY:
        return tuple(range(problem.ranks))
    full = [peak / (limit or max(peaks) or 1) for peak, limit in zip(peaks, problem.memory_limit_bytes, strict=True)]
    between = range(1, problem.ranks - 1)
    return tuple(sorted({0, max(between, key=full.__getitem__), min(between, key=full.__getitem__), problem.ranks - 1}))


def _touches(problem: Problem, resource: Resource, ranks: set[int]) -> bool:
    """Whether a link, or one of the links of a trunk, begins or ends at one of the ranks."""
    return any(
        Resource.of_link(link) == resource and not ranks.isdisjoint((link.source, link.destination)) for link in problem.links
    )


def _busy_ns(spans: Iterable[Span], shown_ns: tuple[int, int]) -> int:
    """For how long of the shown time the spans last, together."""
    return sum(max(0, min(span.end_ns, shown_ns[1]) - max(span.start_ns, shown_ns[0])) for span in spans)


def _peak(curve: list[tuple[int, int]], shown_ns: tuple[int, int]) -> int:
    """The most that is held at any moment of the shown time."""
    ends = [*(time_ns for time_ns, _ in curve[1:]), shown_ns[1]]
    return max(
        held for (begin_ns, held), end_ns in zip(curve, ends, strict=True) if begin_ns < shown_ns[1] and end_ns > shown_ns[0]
    )


def _of_limit(peak: int, limit: int | None) -> str:
    return format_bytes(peak) if limit is None else f"{format_bytes(peak)} of {format_bytes(limit)}"
