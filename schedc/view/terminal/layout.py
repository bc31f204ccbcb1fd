"""What `compile` says of the layout: notes, with the table of stages where a note is about the partition; and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.units import format_bytes, format_duration_ns
from schedc.view.terminal.results import console, plain_table

if TYPE_CHECKING:
    from schedc.ir.layout import Layout
    from schedc.lower.layout_report import LayoutReport

MOST_ROWS = 64


def print_layout(report: LayoutReport, *, stderr: bool, is_chosen: bool = False) -> None:
    """The notes, if there are any; the table where the layout was chosen, or its partition is far from balanced."""
    out = console(stderr=stderr)
    if (is_chosen or report.balanced is not None) and len(report.stages) <= MOST_ROWS:
        table = plain_table(right=("stage", "rank", "layers", "work", "share", "activations", "static", ""))
        total_ns = sum(row.work_ns for row in report.stages)
        for stage, row in enumerate(report.stages):
            table.add_row(
                str(stage),
                str(row.rank),
                "" if row.layers is None else f"{row.layers[0]} to {row.layers[1] - 1}",
                format_duration_ns(row.work_ns),
                f"{row.work_ns / max(1, total_ns):.1%}",
                format_bytes(row.activation_bytes),
                format_bytes(row.static_bytes),
                "recomputes" if row.recomputes else "",
            )
        out.print(table)
    for note in report.notes:
        out.print(f"note: {note}")


def layout_json(report: LayoutReport, layout: Layout) -> dict[str, Any]:
    """The keys `layout` and `notes` of `compile --json`."""
    bounds = [layout.layers_of_stage[stage] for stage in layout.paths[0]]
    return {
        "layout": {
            "partition": [last - first for first, last in bounds],
            "placement": layout.placement if layout.placement != "explicit" else list(layout.rank_of_stage),
            "recompute": [stage in layout.recomputed for stage in range(len(layout.rank_of_stage))],
            "balanced_partition": None if report.balanced is None else list(report.balanced),
            "stages": [
                {
                    "rank": row.rank,
                    "layers": None if row.layers is None else list(row.layers),
                    "work_ns": row.work_ns,
                    "activation_bytes": row.activation_bytes,
                    "static_bytes": row.static_bytes,
                }
                for row in report.stages
            ],
        },
        "notes": list(report.notes),
    }
