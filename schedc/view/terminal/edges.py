"""The table of a graph's edges, for `show` and the report: what stages give each other, and in which transfers it goes."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Kind, Op, sent_to
from schedc.spelling import ranges
from schedc.view.document import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schedc.ir import Edge, Problem

EDGE_HEADERS = ("from", "to", "forward", "gradient", "transfers")
EDGE_NOTE = "Sizes are a whole microbatch's. Of equal values a rank gets one, in the transfer of the first edge."


class _Group(NamedTuple):
    """Edges of one source with equal values and sizes to ranks that are others, or to its own; or runs of those with one each."""

    sources: list[int]
    edges: list[Edge]
    crosses: bool
    sizes: tuple[int, int | None]


def edge_rows(problem: Problem, ranks: Iterable[int] | None = None) -> list[tuple[str, ...]]:
    """The rows under `EDGE_HEADERS`, by source; none for a chain. Edges that follow each other in the same way are one row.

    Args:
        problem: with edges.
        ranks: only what begins or ends on these; None: all.
    """
    on = range(problem.ranks) if ranks is None else set(ranks)
    rank_of = [stage.rank for stage in problem.stages]
    shown = [edge for edge in problem.edges if rank_of[edge.source] in on or rank_of[edge.destination] in on]

    def likeness(edge: Edge) -> tuple[int, ...]:
        crosses, gradient = rank_of[edge.source] != rank_of[edge.destination], edge.gradient_message_bytes
        return edge.source, edge.value, edge.message_bytes, -1 if gradient is None else gradient, crosses

    groups: list[_Group] = []
    for (source, _, message, _, crosses), alike in groupby(sorted(shown, key=likeness), key=likeness):
        edges = list(alike)
        group = _Group([source], edges, bool(crosses), (message, edges[0].gradient_message_bytes))
        last = next((each for each in reversed(groups) if each[2:] == group[2:] and each.sources[-1] == source - 1), None)
        if last is None or len(edges) > 1 or not _follows(last, edges[0]):
            groups.append(group)
        else:
            last.sources.append(source)
            last.edges.append(edges[0])
    return [_row(problem, rank_of, group) for group in groups]


def _follows(run: _Group, edge: Edge) -> bool:
    """Whether it goes on as the run's edges do: all to one stage, or each to the next."""
    if len(run.edges) > len(run.sources):
        return False
    to = [each.destination for each in run.edges]
    steps = (0, 1) if len(to) == 1 else (to[-1] - to[-2],)
    return edge.destination - to[-1] in steps


def _row(problem: Problem, rank_of: Sequence[int], group: _Group) -> tuple[str, ...]:
    sources, edges, crosses, (forward, gradient) = group
    to = sorted({edge.destination for edge in edges})
    sizes = size(forward), "none" if gradient is None else size(gradient)
    return ", ".join(ranges(sources)), ", ".join(ranges(to)), *sizes, _transfers(problem, rank_of, edges) if crosses else "–"


def _transfers(problem: Problem, rank_of: Sequence[int], edges: Sequence[Edge]) -> str:
    """The names of the transfers of microbatch 0, and for whom they are where that is several stages."""
    served: dict[int, list[int]] = {}
    for edge in edges:
        first = next(
            each
            for each in problem.edges
            if (each.source, each.value, rank_of[each.destination]) == (edge.source, edge.value, rank_of[edge.destination])
        )
        served.setdefault(problem.edges.index(first), []).append(edge.destination)
    names = []
    for at, takers in served.items():
        first = problem.edges[at]
        alone = takers == [first.destination]
        name = problem.token(sent_to(Op(Kind.F, first.source, 0), first.destination))
        names.append(name if alone else f"{name} for {', '.join(map(str, takers))}")
    return ", ".join(names) if len(names) < 4 else f"{names[0]} to {names[-1]}"
