"""`schedc show`: the picture of a plan in the terminal, with ranks, links, collectives and memory; and the table of its stages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from schedc.analysis.simulation.memory import memory_curve, peak_bytes
from schedc.errors import InvalidInput
from schedc.ir import Plan, Problem, Resource
from schedc.ir.index import tables_of
from schedc.view.document import Block, Column, Line, Picture, Strip, Table, duration, right, size
from schedc.view.terminal.edges import EDGE_HEADERS, edge_rows
from schedc.view.terminal.gantt import (
    Parts,
    Span,
    Window,
    collective_spans,
    counts_of,
    held_spans,
    legend,
    link_spans,
    memory_row,
    rank_spans,
    row_of,
    ruler,
    spread_ranks,
)
from schedc.view.terminal.results import certificate_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from schedc.analysis.simulation.timeline import Timeline

MOST_LINKS, MOST_MEMORY, MOST_STAGES = 8, 4, 16
"""How many rows of each are shown, unless ranks are asked for: a picture is looked at as a whole."""
STAGE_HEADERS = ("stage", "rank", "layers", "recomputes", "static", "capacity")


class _Row(NamedTuple):
    """A line of the picture: the text before it, itself once its width is known, the text after it."""

    label: str
    draw: Callable[[Window], Parts]
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

    The given ranks are shown with all their links, collectives and memory; None: as many of each as fit a picture.
    """
    problem = plan.problem
    rows, left_out = _rows(plan, timeline, shown_ns, ranks)
    title = f" {duration(shown_ns[0])} to {duration(shown_ns[1])} "
    whole = shown_ns == (0, timeline.makespan_ns)
    rows.insert(0, _Row("", lambda window: ruler(window, title), "" if whole else "in this time:"))
    yield Line(f"{plan.name}: {counts_of(problem)}, by {plan.made_by.method}", "bold")
    yield from certificate_lines(plan)
    yield Picture(lambda _: [legend(problem, (timeline,))])
    yield Picture(partial(_drawn, rows, shown_ns))
    stages = stage_rows(problem, [index for index, stage in enumerate(problem.stages) if ranks is None or stage.rank in ranks])
    hidden = stages[MOST_STAGES // 2 : -MOST_STAGES // 2] if ranks is None and len(stages) > MOST_STAGES else []
    cells = [row.cells if row not in hidden else ("…",) for row in stages if row not in hidden[1:]]
    if cells:
        yield Table(columns=right(*STAGE_HEADERS), rows=cells)
    edges = edge_rows(problem, ranks)
    if len(edges) > MOST_STAGES and ranks is None:
        left_out.append(f"{len(edges) - MOST_STAGES} of {len(edges)} rows of edges")
        edges = edges[:MOST_STAGES]
    if edges:
        yield Table(columns=[*right(*EDGE_HEADERS[:-1]), Column(EDGE_HEADERS[-1], wrap="cut")], rows=edges)
    if hidden:
        left_out.append(f"{sum(row.stages for row in hidden)} of {len(problem.stages)} stages")
    if left_out:
        yield Line(f"not shown: {', '.join(left_out)}; --ranks all or --ranks 0-3,8 shows others", "dim")


def _drawn(rows: Sequence[_Row], shown_ns: tuple[int, int], width: int) -> Iterator[Strip]:
    label_width = max(len(label) for label, _, _ in rows) + 1
    tail_width = max(len(tail) for _, _, tail in rows) + 1
    window = Window(*shown_ns, max(20, width - label_width - tail_width))
    for label, draw, tail in rows:
        yield Strip([(label.ljust(label_width), "bold"), *draw(window), (f" {tail}" if tail else "", "dim")], cropped=True)


def _rows(plan: Plan, timeline: Timeline, shown_ns: tuple[int, int], ranks: tuple[int, ...] | None) -> tuple[list[_Row], list[str]]:
    """The rows of the picture, and what it leaves out, in words."""
    problem, schedule = plan.problem, plan.schedule()
    peaks, limits = peak_bytes(problem, schedule), problem.memory_limit_bytes
    links, collectives = link_spans(problem, timeline), collective_spans(problem, timeline)
    resources, shown = tables_of(problem).resources, Window(*shown_ns, 1)
    if ranks is None:
        computing, holding = spread_ranks(problem.ranks), _telling(problem, peaks)
        busiest = sorted(links, key=lambda at: (resources[at].kind != "trunk", -_busy_ns(links[at], shown)))  # trunks first
        crossed = sorted(busiest[:MOST_LINKS])
    else:
        computing = holding = ranks
        crossed = [number for number in links if _touches(problem, resources[number], set(ranks))]
    rows = []
    for rank in computing:
        spans = rank_spans(problem, timeline, rank)
        busy = f"{_busy_ns(spans, shown) / (shown_ns[1] - shown_ns[0]):.1%} busy"
        rows.append(_Row(f"rank {rank}", partial(row_of, spans=spans), busy))
    collecting, held = [rank for rank in holding if rank in collectives], holding if any(peaks) else ()
    rows += [_Row(resources[number].label, partial(row_of, spans=links[number])) for number in crossed]
    rows += [_Row(f"coll {rank}", partial(row_of, spans=collectives[rank])) for rank in collecting]
    for rank in held:
        curve, limit = memory_curve(problem, schedule, timeline, rank), limits[rank]
        most = size(max(held_bytes for *_, held_bytes in held_spans(curve, shown)))
        draw = partial(memory_row, curve=curve, full_bytes=limit or max(peaks))
        rows.append(_Row(f"mem {rank}", draw, most if limit is None else f"{most} of {size(limit)}"))
    counts = (
        (len(computing), problem.ranks, "ranks"),
        (len(crossed), len(links), "links"),
        (len(collecting), len(collectives), "ranks' collectives"),
        (len(held), problem.ranks if held else 0, "ranks' memory"),
    )
    return rows, [f"{whole - some} of {whole} {what}" for some, whole, what in counts if some < whole and ranks is None]


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


def _busy_ns(spans: Iterable[Span], shown: Window) -> int:
    """For how long of the shown time the spans last, together."""
    return sum(max(0, min(span.end_ns, shown.to_ns) - max(span.start_ns, shown.from_ns)) for span in spans)


class StageRun(NamedTuple):
    """A run of stages that are alike."""

    stages: int
    cells: tuple[str, ...]
    """Under the headers: what one of the stages holds all the time, what its rank can hold in all."""


def stage_rows(problem: Problem, stages: Iterable[int]) -> list[StageRun]:
    """The rows of these stages, ascending; none of a chain where no more is known of the problem's than their ranks.

    Stages are alike that follow each other, on the ranks and in the layers, and have the same in all else.
    """
    if problem.is_chain and all(
        stage.layers is None and not stage.recompute and stage.static_bytes is None for stage in problem.stages
    ):
        return []
    capacities = [_capacity_bytes(problem, rank) for rank in range(problem.ranks)]
    runs: list[list[int]] = []
    for index in stages:
        if runs and _continues(problem, capacities, runs[-1], index):
            runs[-1].append(index)
        else:
            runs.append([index])
    return [_row(problem, capacities, run) for run in runs]


def _capacity_bytes(problem: Problem, rank: int) -> int | None:
    """What is for activations, and what the rank's stages hold all the time; None where one of these is not known."""
    sizes = [problem.memory_limit_bytes[rank], *(stage.static_bytes for stage in problem.stages if stage.rank == rank)]
    known = [size for size in sizes if size is not None]
    return sum(known) if 1 < len(known) == len(sizes) else None


def _continues(problem: Problem, capacities: Sequence[int | None], run: Sequence[int], index: int) -> bool:
    """Whether the stage is like those of the run, and follows them."""
    one, other = problem.stages[run[-1]], problem.stages[index]
    step = other.rank - one.rank
    if index != run[-1] + 1 or step not in ((-1, 1) if len(run) == 1 else (one.rank - problem.stages[run[-2]].rank,)):
        return False
    if one.layers is None or other.layers is None:
        follow = one.layers is other.layers
    else:
        follow = one.layers[1] == other.layers[0] and one.layers[1] - one.layers[0] == other.layers[1] - other.layers[0]
    alike = (one.recompute, one.static_bytes, capacities[one.rank]) == (other.recompute, other.static_bytes, capacities[other.rank])
    return follow and alike and _of_head(problem, run[-1]) == _of_head(problem, index)


def _of_head(problem: Problem, index: int) -> str:
    """Which part of a split head the stage is; of the others nothing."""
    behind = len(problem.stages) - 1 - index
    if not problem.has_split_head or behind > problem.ranks:
        return ""
    return f"head, 1/{problem.ranks}" if behind else "join of the head"


def _row(problem: Problem, capacities: Sequence[int | None], run: Sequence[int]) -> StageRun:
    first, last = problem.stages[run[0]], problem.stages[run[-1]]
    layers = "–"
    if first.layers is not None and last.layers is not None:
        each = f", {first.layers[1] - first.layers[0]} each" if len(run) > 1 else ""
        layers = _span(first.layers[0], last.layers[1] - 1) + each
    layers = _of_head(problem, run[0]) + " each" * (len(run) > 1) if _of_head(problem, run[0]) else layers
    sizes = (size(each) for each in (first.static_bytes, capacities[first.rank]))
    cells = (_span(run[0], run[-1]), _span(first.rank, last.rank), layers, "yes" if first.recompute else "no", *sizes)
    return StageRun(len(run), cells)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
