"""A plan as a Gantt chart: a row for each rank, ops by kind, microbatch numbers where they fit, transfers as lines between rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from schedc.ir import Kind, Plan, unit
from schedc.view.plot.figure import STYLE, TIMES, legend_above, new_figure, picture, unit_of
from schedc.view.terminal.gantt import chunk_of_stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from schedc.analysis.simulation.timeline import Timeline

COLOURS = {Kind.F: "#4f94cd", Kind.B: "#f4b65e", Kind.W: "#b4b4b4", Kind.BW: "#b5573a", Kind.U: "#6a4f8f"}
"""Apart by lightness alone, so in grey print, too; blue, yellow, grey and brown are apart for all kinds of colour blindness."""
NAMES = {
    Kind.F: "forward (F)",
    Kind.B: "backward, inputs (B)",
    Kind.W: "backward, weights (W)",
    Kind.BW: "backward (BW)",
    Kind.U: "update (U)",
}
TEXT = {Kind.F: "white", Kind.B: "black", Kind.W: "black", Kind.BW: "white", Kind.U: "white"}
COLLECTIVE, ROW, LINE = "#7b4fa3", "#f7f7f7", "#404040"
LIGHTER = (0.0, 0.38, 0.6, 0.75)
"""How much white the colours of a rank's first, second, … stage have."""
HEIGHT, COLLECTIVE_HEIGHT = 0.84, 0.14
"""Of an op, and of a collective below it, in rows."""
ROW_INCHES, MOST_INCHES, AROUND_INCHES = 0.26, 9.0, 0.85
MOST_POINTS, LEAST_POINTS = 7.0, 3.8
"""Of the numbers in ops."""
EDGE_FROM_POINTS = 2.5
"""Narrower ops have no white edge, which would hide them."""
DIGIT_POINTS = 0.62
"""The width of a digit in font sizes."""


def gantt(plan: Plan, timeline: Timeline, ending: str, *, width_inches: float, transfers: bool, title: str) -> bytes:
    """The picture of a plan; `ending`, of the file, says its format. Transfers are drawn from their start to their arrival."""
    from matplotlib import rc_context
    from matplotlib.patches import Patch

    unit = unit_of(timeline.makespan_ns, TIMES)
    height_inches = min(MOST_INCHES, AROUND_INCHES + ROW_INCHES * timeline.ranks)
    figure = new_figure(width_inches, height_inches)
    with rc_context(STYLE):
        axes = figure.add_subplot()
        end = max(timeline.makespan_ns / unit.size, 1e-9)
        axes.set_xlim(0, end)
        axes.set_ylim(timeline.ranks - 0.5, -0.5)
        for rank in range(timeline.ranks):
            axes.axhspan(rank - HEIGHT / 2, rank + HEIGHT / 2, color=ROW, linewidth=0, zorder=0)
        points = width_inches * 72 * 0.9 / end  # of one unit of time
        row_points = (height_inches - AROUND_INCHES) * 72 / timeline.ranks
        kinds = _draw_ops(axes, plan, timeline, unit.size, points, row_points)
        if transfers:
            _draw_transfers(axes, timeline, unit.size)
        for span in timeline.collectives:  # a thin bar at the bottom of its rank's row
            bar = (span.start_ns / unit.size, (span.end_ns - span.start_ns) / unit.size)
            bottom = span.rank + HEIGHT / 2 - COLLECTIVE_HEIGHT
            axes.broken_barh([bar], (bottom, COLLECTIVE_HEIGHT), color=COLLECTIVE, linewidth=0, zorder=5)
        axes.set_xlabel(f"time ({unit.name})")
        axes.set_ylabel("rank")
        step = max(1, -(-timeline.ranks // max(1, int((height_inches - AROUND_INCHES) * 72 / 10))))
        axes.set_yticks(range(0, timeline.ranks, step))
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        handles: list[Any] = [Patch(facecolor=COLOURS[kind], label=NAMES[kind]) for kind in kinds]
        if any(len(plan.problem.stages_on(rank)) > 1 for rank in range(timeline.ranks)):
            handles.append(Patch(facecolor=_lighter(kinds[0], 1), label="lighter: later stages of a rank"))
        handles += [Patch(facecolor=COLLECTIVE, label="collective")] if timeline.collectives else []
        handles.append(Patch(facecolor=ROW, edgecolor="#c0c0c0", linewidth=0.5, label="idle"))
        legend_above(figure, handles, len(handles), handlelength=1.2, columnspacing=1.4)
        if title:
            axes.set_title(title, fontsize=9, parse_math=False)
    return picture(figure, ending)


def _draw_ops(axes: Axes, plan: Plan, timeline: Timeline, size: float, points: float, row_points: float) -> list[Kind]:
    """Draw all ops; gives the kinds that there are."""
    from matplotlib.collections import PolyCollection

    chunks, rows = np.minimum(chunk_of_stage(plan.problem), len(LIGHTER) - 1), timeline.rank_of
    starts, ends = timeline.starts_ns / size, timeline.ends_ns / size
    kinds, stages = timeline.ops[:, 0], timeline.ops[:, 1]
    microbatches, widths = timeline.ops[:, 2], (ends - starts) * points
    longest = unit(int(microbatches.max(initial=0)), len(plan.problem.slices))
    fonts = {kind: _font(longest, widths[kinds == kind], row_points) for kind in Kind}
    smallest = min((font for font in fonts.values() if font), default=0.0)  # one size looks calm
    for kind in Kind:
        of_kind = np.flatnonzero(kinds == kind)
        font = smallest if fonts[kind] else 0.0
        for chunk, white in enumerate(LIGHTER):
            which = of_kind[chunks[stages[of_kind]] == chunk]
            if not len(which):
                continue
            x0, x1, y = starts[which], ends[which], rows[which]
            corners = [(x0, y - HEIGHT / 2), (x1, y - HEIGHT / 2), (x1, y + HEIGHT / 2), (x0, y + HEIGHT / 2)]
            boxes = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
            edges = np.where((x1 - x0) * points > EDGE_FROM_POINTS, 0.4, 0.0)
            axes.add_collection(
                PolyCollection(list(boxes), facecolors=[_lighter(kind, chunk)], edgecolors="white", linewidths=edges, zorder=2)
            )
            text_colour = "black" if white > 0.3 else TEXT[kind]
            for op in which.tolist():
                label = unit(int(timeline.ops[op, 2]), len(plan.problem.slices))
                if font and widths[op] >= 0.99 * _width(label, font):
                    x = (starts[op] + ends[op]) / 2
                    axes.text(x, rows[op], label, ha="center", va="center_baseline", fontsize=font, color=text_colour, zorder=4)
    return [kind for kind in Kind if (kinds == kind).any()]


def _lighter(kind: Kind, chunk: int) -> tuple[float, float, float]:
    """The colour of a kind on a rank's stage of this number."""
    from matplotlib.colors import to_rgb

    red, green, blue = (part + (1 - part) * LIGHTER[chunk] for part in to_rgb(COLOURS[kind]))
    return red, green, blue


def _font(longest: str, widths: NDArray[np.float64], row_points: float) -> float:
    """The size at which the longest label fits into most ops of a kind, so that few lack one; 0: too small to be read."""
    if not len(widths):
        return 0.0
    most = float(np.median(widths)) / _width(longest, 1.0)
    font = min(MOST_POINTS, 0.62 * row_points, most)
    return font if font >= LEAST_POINTS else 0.0


def _width(label: str, font: float) -> float:
    """What a number needs, in points."""
    return (len(label) + 0.4) * DIGIT_POINTS * font


def _draw_transfers(axes: Axes, timeline: Timeline, size: float) -> None:
    """Draw each transfer as a line from the row of its source, at its start, to that of its destination, at its arrival."""
    from matplotlib.collections import LineCollection

    lines = []
    for transfer in timeline.transfers:
        down = HEIGHT / 2 if transfer.destination > transfer.source else -HEIGHT / 2
        begin = (transfer.start_ns / size, transfer.source + down)
        lines.append((begin, (transfer.arrival_ns / size, transfer.destination - down)))
    axes.add_collection(LineCollection(lines, colors=LINE, linewidths=0.45, alpha=0.75, zorder=3))
