"""Curves from a table: an objective over a setting, one curve for each value of the others, and the lower bound below each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.view.plot.figure import STYLE, legend_above, new_figure, picture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes as Drawing

    from schedc.view.plot.table import Axes, PlotColumn

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, which all kinds of colour blindness keep apart."""
MARKERS = "osD^vP*"
RATIO = 0.56
"""Height to width."""
LOG_FROM = 20.0
"""An axis of positive numbers is logarithmic if its largest is this many times its smallest."""
MOST_BESIDE = 4
"""Entries of the legend beside each other."""

VAGUE = ("limit", "capacity", "size", "path", "speed")
"""Names that say too little without the table that they are in."""

Points = dict[float, float]


def points_of(axes: Axes) -> tuple[dict[tuple[str, ...], Points], dict[tuple[str, ...], Points]]:
    """Per curve, its points (x to y), and those of its bound; of several rows with one x, the least y and its bound.

    Rows without x or y, as of jobs without a plan, are left out.
    """
    curves: dict[tuple[str, ...], Points] = {}
    bounds: dict[tuple[str, ...], Points] = {}
    bound_numbers = axes.bound.numbers if axes.bound is not None else None
    for at, (x, y) in enumerate(zip(axes.x.numbers or (), axes.y.numbers or (), strict=True)):
        if x is None or y is None:
            continue
        key = tuple(column.texts[at] for column in axes.by)
        curve = curves.setdefault(key, {})
        if x not in curve or y < curve[x]:
            curve[x] = y
            bound = None if bound_numbers is None else bound_numbers[at]
            if bound is not None:
                bounds.setdefault(key, {})[x] = bound
    return curves, bounds


def curves(axes: Axes, ending: str, *, width_inches: float, title: str) -> bytes:
    """The picture of a table; `ending`, of the file, says its format."""
    from matplotlib import rc_context
    from matplotlib.lines import Line2D

    found, bounds = points_of(axes)
    figure = new_figure(width_inches, width_inches * RATIO)
    with rc_context(STYLE):
        drawing = figure.add_subplot()
        handles: list[Any] = []
        for number, (key, points) in enumerate(found.items()):
            style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
            label = ", ".join(_value(column, text) for column, text in zip(axes.by, key, strict=True)) or axes.y.name
            line: dict[str, Any] = {"linestyle": "none" if axes.is_cloud else "-", "markersize": 4, "linewidth": 1.2}
            _line(drawing, axes, points, **line, **style)
            handles.append(Line2D([], [], label=label, **line, **style))
            if key in bounds:
                _line(drawing, axes, bounds[key], linestyle=(0, (3, 2)), linewidth=0.9, color=style["color"])
        if axes.is_cloud:
            style = dict[str, Any]({"drawstyle": "steps-post", "linewidth": 0.9, "color": "#404040"})
            _line(drawing, axes, frontier(found), **style)
            handles.append(Line2D([], [], **style, label=f"least {_short(axes.y.name)} with as much"))
        if bounds:
            handles.append(Line2D([], [], linestyle=(0, (3, 2)), linewidth=0.9, color="#404040", label="lower bound"))
        _scale(drawing, [x for points in found.values() for x in points], axes.x.unit.size)
        drawing.set_xlabel(_axis(axes.x))
        drawing.set_ylabel(_axis(axes.y, axes.objective))
        drawing.grid(visible=True, color="#e4e4e4", linewidth=0.5)
        drawing.set_axisbelow(True)
        drawing.set_ylim(bottom=_bottom(found, bounds, axes.y.unit.size))
        if len(handles) > 1:
            legend = ", ".join(_short(column.name) for column in axes.by)
            legend_above(figure, handles, MOST_BESIDE, title=legend, handlelength=2.2)
        if title:
            drawing.set_title(title, fontsize=9, parse_math=False)
    return picture(figure, ending)


def frontier(curves: Mapping[Any, Points]) -> Points:
    """Of all points those to whose left none is as low."""
    least: Points = {}
    for x, y in sorted(point for points in curves.values() for point in points.items()):
        if not least or y < min(least.values()):
            least[x] = y
    return least


def _line(drawing: Drawing, axes: Axes, points: Mapping[float, float], **style: Any) -> None:
    xs = sorted(points)
    drawing.plot([x / axes.x.unit.size for x in xs], [points[x] / axes.y.unit.size for x in xs], **style)


def _scale(drawing: Drawing, xs: list[float], size: float) -> None:
    """A logarithmic axis where the values ask for one, and their own ticks where there are few."""
    values = sorted({x / size for x in xs})
    if len(values) > 2 and values[0] > 0 and values[-1] / values[0] >= LOG_FROM:
        drawing.set_xscale("log")
    if 1 < len(values) <= 8:
        drawing.set_xticks(values, [f"{value:g}" for value in values])
        drawing.minorticks_off()


def _bottom(found: Mapping[Any, Points], bounds: Mapping[Any, Points], size: float) -> float | None:
    """From 0 where that costs less than half of the picture: a difference looks as large as it is."""
    values = [y for points in (*found.values(), *bounds.values()) for y in points.values()]
    return 0.0 if min(values) < max(values) / 2 else None


def _axis(column: PlotColumn, name: str = "") -> str:
    unit = column.unit.name
    return f"{name or _short(column.name)} ({unit})" if unit else name or _short(column.name)


def _short(name: str) -> str:
    """`topology.between.latency` is `latency`, `memory.limit` is `memory limit`, `makespan_ns` is `makespan`."""
    parts = name.split(".")
    last = parts[-1].removesuffix("_ns").removesuffix("_bytes").replace("_", " ")
    return f"{parts[-2]} {last}" if last in VAGUE and len(parts) > 1 else last


def _value(column: PlotColumn, text: str) -> str:
    """A value in a legend: text and quantities as they are, a number with its column's name."""
    plain = column.numbers is not None and not column.unit.name
    return f"{_short(column.name)} {text}" if plain else text
