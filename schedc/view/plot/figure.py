"""What all pictures share: matplotlib, where it is installed; a style for print, units of axes, files with the same bytes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png", ".pdf")
STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "schedc",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "path.simplify": False,
}
DOTS_PER_INCH = 200
ROOM_FOR_LEGEND_INCHES = 0.2
"""A higher legend makes the picture higher."""


class AxisUnit(NamedTuple):
    """A unit of an axis, and how many of the table's or the plan's own units it is."""

    name: str
    size: float


TIMES = (AxisUnit("s", 1e9), AxisUnit("ms", 1e6), AxisUnit("µs", 1e3), AxisUnit("ns", 1.0))
BYTES = (AxisUnit("TiB", 2**40), AxisUnit("GiB", 2**30), AxisUnit("MiB", 2**20), AxisUnit("KiB", 2**10), AxisUnit("B", 1.0))
BANDWIDTHS = (AxisUnit("TB/s", 1e12), AxisUnit("GB/s", 1e9), AxisUnit("MB/s", 1e6), AxisUnit("kB/s", 1e3), AxisUnit("B/s", 1.0))


def unit_of(largest: float, units: Sequence[AxisUnit]) -> AxisUnit:
    """The largest unit of which the value has at least one."""
    return next((unit for unit in units if largest >= unit.size), units[-1])


def check_ending(path: Path) -> None:
    """Refuse a picture whose format is unknown, or that cannot be drawn here.

    Raises:
        InvalidInput: its name has another ending, or matplotlib is not installed.
    """
    if path.suffix not in ENDINGS:
        raise InvalidInput(f"-o: found {path.name!r}, expected a name that ends with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InvalidInput("plot needs matplotlib, which is not installed: pip install 'schedc[plot]'") from error


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """An empty figure of that size, in the style for print; it belongs to no window."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        return Figure(figsize=(width_inches, height_inches), layout="constrained")


def legend_above(figure: Figure, handles: Sequence[Any], most_beside: int, *, title: str = "", **style: Any) -> None:
    """Put a legend above the axes; a legend of several lines makes the picture higher.

    At most `most_beside` handles are beside each other, fewer where the width has no room; `style` is of `Figure.legend`.
    """
    for columns in range(min(most_beside, len(handles)), 0, -1):
        legend = figure.legend(handles=handles, title=title or None, loc="outside upper center", ncols=columns, **style)
        extent = legend.get_window_extent()
        if columns == 1 or extent.width <= figure.bbox.width:
            height_inches = extent.height / figure.dpi
            figure.set_figheight(figure.get_figheight() + max(0.0, height_inches - ROOM_FOR_LEGEND_INCHES))
            return
        legend.remove()


def picture(figure: Figure, ending: str) -> bytes:
    """The file's bytes; the same figure gives the same bytes."""
    from matplotlib import rc_context

    out = io.BytesIO()
    metadata: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Software": None}}[ending]
    with rc_context(STYLE):
        figure.savefig(out, format=ending[1:], dpi=DOTS_PER_INCH, metadata=metadata)
    return out.getvalue()
