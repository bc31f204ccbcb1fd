"""A plan as a picture in the terminal: rows of ranks, links, collectives and memory, fitted to a width.

A Timeline and the window of time to show go in, rows come out: texts with their styles. A row is legible without colour: an op has
its microbatch where there is room, then the character of its kind and of which of its rank's stages it is of.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Kind, Problem, unit
from schedc.ir.index import tables_of
from schedc.spelling import counted
from schedc.view.document import Strip

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schedc.analysis.simulation.timeline import Timeline

NAMES = {Kind.F: "forward", Kind.B: "backward input", Kind.W: "backward weight", Kind.BW: "backward", Kind.U: "update"}
FILLS = {Kind.F: ">)]}", Kind.B: "<([{", Kind.W: "wvum", Kind.BW: "=#%&", Kind.U: "^$*!"}
"""What an op is filled with, by its kind and by which of its rank's stages it is of, counted modulo four."""
STYLES = {
    Kind.F: ("black on dodger_blue2", "black on sky_blue1"),
    Kind.B: ("black on spring_green3", "black on pale_green1"),
    Kind.W: ("black on gold3", "black on khaki1"),
    Kind.BW: ("black on medium_turquoise", "black on pale_turquoise1"),
    Kind.U: ("black on orange_red1", "black on light_salmon1"),
}
LINK_STYLES = (("dodger_blue2", "sky_blue1"), ("spring_green3", "pale_green1"))
COLLECTIVES = {"AG": ("g", "all-gather"), "RS": ("r", "reduce-scatter")}
COLLECTIVE_STYLE = "orchid"
MOST_RANKS = 16
"""How many rows of ranks are drawn, unless they are asked for: a picture is looked at as a whole."""
BLOCKS = " ▁▂▃▄▅▆▇█"

Parts = list[tuple[str, str]]
"""Texts beside each other, each with its style."""


class Span(NamedTuple):
    """Something that takes time, and how it is drawn."""

    start_ns: int
    end_ns: int
    label: str
    fill: str
    style: str


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of time that is shown, and over how many characters."""

    from_ns: int
    to_ns: int
    width: int

    def cell_of(self, time_ns: int) -> int:
        """The boundary between characters that is nearest to the time: 0 is the left edge, `width` the right one."""
        shown_ns = max(1, self.to_ns - self.from_ns)
        return max(0, min(self.width, round((time_ns - self.from_ns) * self.width / shown_ns)))


def spread_ranks(ranks: int) -> tuple[int, ...]:
    """As many ranks as a picture takes, from the first to the last."""
    count = min(ranks, MOST_RANKS)
    return tuple(at * (ranks - 1) // max(1, count - 1) for at in range(count))


def legend(problem: Problem, timelines: Iterable[Timeline]) -> Strip:
    """What the characters and colours mean, of what the timelines have; `chunk 2` is the second of a rank's stages."""
    kinds: set[int] = set()
    gathered: set[str] = set()
    for timeline in timelines:
        kinds |= set(timeline.ops[:, 0].tolist())
        gathered |= {span.collective.kind for span in timeline.collectives}
    used = [kind for kind in Kind if kind in kinds]
    parts: Parts = []
    for kind in used:
        parts += [(f"3{FILLS[kind][0] * 2}", STYLES[kind][0]), (f" {NAMES[kind]}   ", "")]
    parts.append(("3: microbatch   · idle", "dim"))
    parts += [("\n3:1: slice 1 of microbatch 3", "dim")] if problem.slices else []
    for chunk in range(1, min(4, max(chunk_of_stage(problem)) + 1)):
        parts.append((f"\nchunk {chunk + 1}:", ""))
        for kind in used:
            parts += [(" ", ""), (f"3{FILLS[kind][chunk] * 2}", STYLES[kind][chunk % 2])]
    if gathered:
        zero = problem.data_parallel is not None and problem.data_parallel.zero_stage == 0
        parts.append(("\n", ""))
        for name in sorted(gathered):
            fill, word = COLLECTIVES[name]
            parts += [(f"3{fill * 2}", COLLECTIVE_STYLE), (f" {'all-reduce' if zero else word} of stage 3   ", "")]
    return Strip(parts)


def counts_of(problem: Problem) -> str:
    """What a plan is of, in words: `8 ranks, 16 microbatches in 4 slices`, of unequal ones with their lengths in tokens."""
    lengths = problem.slices
    of = "" if len(set(lengths)) < 2 else f" of {', '.join(map(str, lengths))}"
    of = f" of {min(lengths)} to {max(lengths)}" if len(lengths) > MOST_LENGTHS and of else of
    in_slices = f" in {counted(len(lengths), 'slice')}{of}{' tokens' if of else ''}" if lengths else ""
    return f"{counted(problem.ranks, 'rank')}, {counted(problem.microbatches // (len(lengths) or 1), 'microbatch')}{in_slices}"


MOST_LENGTHS = 8
"""The lengths of more slices are not listed."""


def ruler(window: Window, label: str) -> Parts:
    """The scale: where the window begins and ends."""
    return [("├" + label[: window.width - 2].center(window.width - 2, "─") + "┤", "dim")]


def rank_spans(problem: Problem, timeline: Timeline, rank: int) -> list[Span]:
    """The compute ops of one rank."""
    ops, chunks = timeline.ops[timeline.begin[rank] : timeline.begin[rank + 1]].tolist(), chunk_of_stage(problem)
    spans, slices = [], len(problem.slices)
    for (kind, stage, microbatch, _), start_ns, end_ns in zip(ops, timeline.start_ns(rank), timeline.end_ns(rank), strict=True):
        chunk = chunks[stage]
        label = unit(microbatch, slices)
        spans.append(Span(start_ns, end_ns, label, FILLS[Kind(kind)][chunk % 4], STYLES[Kind(kind)][chunk % 2]))
    return spans


def link_spans(problem: Problem, timeline: Timeline) -> dict[int, list[Span]]:
    """By the number of each link or trunk that is ever occupied, what occupies it, by time."""
    spans: dict[int, list[Span]] = {}
    chunks = chunk_of_stage(problem)
    for transfer in timeline.sent.tolist():
        start_ns, left_ns = int(timeline.transfer_start_ns[transfer]), int(timeline.transfer_left_ns[transfer])
        if left_ns > start_ns:
            kind, stage, microbatch, _ = timeline.ops[timeline.sender[transfer]].tolist()
            chunk, backward = chunks[stage], int(kind != Kind.F)
            fill = FILLS[Kind.B if backward else Kind.F][chunk % 4]
            span = Span(start_ns, left_ns, unit(microbatch, len(problem.slices)), fill, LINK_STYLES[backward][chunk % 2])
            spans.setdefault(int(timeline.resource[transfer]), []).append(span)
    for number, collectives in collective_spans(problem, timeline, "trunk").items():
        spans.setdefault(number, []).extend(collectives)
    return {number: sorted(spans[number]) for number in sorted(spans)}


def collective_spans(problem: Problem, timeline: Timeline, kind: str = "collectives") -> dict[int, list[Span]]:
    """The collectives on resources of a kind: by rank those on lanes of their own, by the trunk's number those on trunks."""
    tables = tables_of(problem)
    spans: dict[int, list[Span]] = {}
    for collective, rank, _, start_ns, end_ns in timeline.collectives:
        number = int(tables.collective_resource[rank])
        if tables.resources[number].kind == kind and end_ns > start_ns:
            fill, _ = COLLECTIVES[collective.kind]
            span = Span(start_ns, end_ns, str(collective.stage), fill, COLLECTIVE_STYLE)
            spans.setdefault(rank if kind == "collectives" else number, []).append(span)
    return {at: sorted(found) for at, found in spans.items()}


def chunk_of_stage(problem: Problem) -> list[int]:
    """Per stage, how many stages before it are on the same rank."""
    seen: Counter[int] = Counter()
    chunks = []
    for stage in problem.stages:
        chunks.append(seen[stage.rank])
        seen[stage.rank] += 1
    return chunks


def held_spans(curve: list[tuple[int, int]], window: Window) -> list[tuple[int, int, int]]:
    """Of a memory curve, what is held from when to when, as far as it is in the window."""
    ends_ns = [*(time_ns for time_ns, _ in curve[1:]), window.to_ns]
    spans = [(begin_ns, end_ns, held) for (begin_ns, held), end_ns in zip(curve, ends_ns, strict=True)]
    return [span for span in spans if span[1] > window.from_ns and span[0] < window.to_ns]


def memory_row(window: Window, curve: list[tuple[int, int]], full_bytes: int) -> Parts:
    """A memory curve as eighths of blocks; each character shows the most that is held in its time."""
    levels = [0] * window.width
    for begin_ns, end_ns, held in held_spans(curve, window):
        first = min(window.cell_of(begin_ns), window.width - 1)
        for cell in range(first, max(first + 1, window.cell_of(end_ns))) if end_ns > begin_ns else ():
            levels[cell] = max(levels[cell], held)
    top = len(BLOCKS) - 1
    return [("".join(BLOCKS[-(-level * top // full_bytes) if full_bytes else 0] for level in levels), "medium_purple")]


def row_of(window: Window, spans: Iterable[Span]) -> Parts:
    """The spans, ascending, over a background of idle time."""
    row: Parts = []
    drawn = 0  # characters
    for start_ns, end_ns, label, fill, style in spans:
        if end_ns <= window.from_ns or start_ns >= window.to_ns:
            continue
        first = max(drawn, window.cell_of(start_ns))
        cells = window.cell_of(end_ns) - first
        if cells <= 0:
            continue
        fitting = (text for text in (label, label.partition(":")[0], "") if len(text) < cells)
        text = next(fitting)  # a label leaves room for at least one character that tells the kind
        row += [("·" * (first - drawn), "dim"), (text.ljust(cells, fill), style)]
        drawn = first + cells
    return [*row, ("·" * (window.width - drawn), "dim")]
