"""A plan as a picture in the terminal: one row per rank, one per link, one per rank's memory, fitted to a width.

A Timeline and the window of time to show go in, `rich.text.Text` rows come out. A row is legible without colour: an op shows its
microbatch where there is room, then its kind's character.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schedc.analysis.timeline import Timeline
    from schedc.ir.resource import Resource

__all__ = ["LEGEND", "Window", "legend", "memory_row", "rank_row", "resource_rows", "ruler"]

LEGEND = {Kind.F: (">", "forward"), Kind.B: ("<", "backward input"), Kind.W: ("w", "backward weight"), Kind.BW: ("=", "backward")}
STYLES = {
    Kind.F: "black on dodger_blue2",
    Kind.B: "black on spring_green3",
    Kind.W: "black on gold3",
    Kind.BW: "black on medium_turquoise",
}
LINK_STYLES = {0: "dodger_blue2", 1: "spring_green3"}
BLOCKS = " ▁▂▃▄▅▆▇█"


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


def legend() -> Text:
    """What the characters and colours mean."""
    text = Text()
    for kind, (fill, name) in LEGEND.items():
        text.append(f"3{fill}{fill}", STYLES[kind]).append(f" {name}   ")
    return text.append("3 is the microbatch   ", "dim").append("· idle", "dim")


def ruler(window: Window, label: str) -> Text:
    """The scale: where the window begins and ends."""
    return Text("├" + label[: window.width - 2].center(window.width - 2, "─") + "┤", "dim")


def rank_row(window: Window, timeline: Timeline, rank: int) -> Text:
    """The compute ops of one rank."""
    kinds = timeline.ops[timeline.begin[rank] : timeline.begin[rank + 1]].tolist()
    spans = (
        (start_ns, end_ns, str(microbatch), LEGEND[Kind(kind)][0], STYLES[Kind(kind)])
        for (kind, _, microbatch, _), start_ns, end_ns in zip(kinds, timeline.start_ns(rank), timeline.end_ns(rank), strict=True)
    )
    return _row(window, spans)


def resource_rows(window: Window, timeline: Timeline, resources: tuple[Resource, ...]) -> list[tuple[str, Text]]:
    """For each link or trunk that is ever occupied: its label and what occupies it."""
    spans: dict[int, list[tuple[int, int, str, str, str]]] = {}
    for op in (timeline.consumer >= 0).nonzero()[0].tolist():
        start_ns, left_ns = int(timeline.transfer_start_ns[op]), int(timeline.transfer_left_ns[op])
        if left_ns > start_ns:
            backward = int(timeline.ops[op, 0] != Kind.F)
            span = (start_ns, left_ns, str(timeline.ops[op, 2]), "<" if backward else ">", LINK_STYLES[backward])
            spans.setdefault(int(timeline.resource[op]), []).append(span)
    return [(resources[resource].label, _row(window, sorted(spans[resource]))) for resource in sorted(spans)]


def memory_row(window: Window, curve: list[tuple[int, int]], full_bytes: int) -> Text:
    """A memory curve as eighths of blocks; each character shows the most that is held in its time."""
    levels = [0] * window.width
    ends = [time_ns for time_ns, _ in curve[1:]] + [window.to_ns]
    for (begin_ns, held), end_ns in zip(curve, ends, strict=True):
        if end_ns <= window.from_ns or begin_ns >= window.to_ns or end_ns == begin_ns:
            continue
        first = min(window.cell_of(begin_ns), window.width - 1)
        for cell in range(first, max(first + 1, window.cell_of(end_ns))):
            levels[cell] = max(levels[cell], held)
    top = len(BLOCKS) - 1
    row = "".join(BLOCKS[-(-level * top // full_bytes) if full_bytes else 0] for level in levels)
    return Text(row, "medium_purple")


def _row(window: Window, spans: Iterable[tuple[int, int, str, str, str]]) -> Text:
    """Spans of (start, end, label, fill character, style), ascending, over a background of idle time."""
    row = Text()
    for start_ns, end_ns, label, fill, style in spans:
        if end_ns <= window.from_ns or start_ns >= window.to_ns:
            continue
        first = max(len(row), window.cell_of(start_ns))
        cells = window.cell_of(end_ns) - first
        if cells <= 0:
            continue
        row.append("·" * (first - len(row)), "dim")
        text = label if len(label) < cells else ""  # a label leaves room for at least one character that tells the kind
        row.append(text.ljust(cells, fill), style)
    return row.append("·" * (window.width - len(row)), "dim")
