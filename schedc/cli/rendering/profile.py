"""What `schedc profile` and `schedc model` print: the layers as a table, notes, and the layer at work while one is measured."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from schedc.cli.rendering.results import console, plain_table
from schedc.files.location import one_line
from schedc.files.outputs import is_standard
from schedc.units import format_bytes, format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from schedc.analysis.comparison.times import Times
    from schedc.text.profile_file import LayerEntry

__all__ = ["Row", "print_profile", "telling"]

PIPED_WIDTH = 160
"""Columns where standard output is no terminal: as many as the table needs."""


_COLUMNS = ("layer", "×", "F", "B", "W", "BW", "spread", "activation", "after B", "message", "parameters")


class Row(NamedTuple):
    """A layer and what the profile does not have of it."""

    layer: LayerEntry
    phases: Mapping[str, Times]
    parameters: int | None


@contextmanager
def telling(hidden: bool) -> Iterator[Callable[[str], None]]:
    """The layer that is being measured, on standard error where that is a terminal."""
    errors = console(stderr=True)
    if hidden or not errors.is_terminal:
        yield lambda name: None
        return
    with errors.status("measuring") as status:
        yield lambda name: status.update(Text(one_line(f"measuring {name}")))


def print_profile(rows: Sequence[Row], notes: Sequence[str], title: str, output: Path | None = None) -> None:
    """Print the table of the layers, the notes, and where the profile is.

    Args:
        rows: in the order of the forward.
        notes: one line each.
        title: of the table.
        output: the file that has been written; None: none has.
    """
    table = plain_table(one_line(title))
    table.add_column("layer", overflow="fold")
    without = {"layer"}
    if not any(row.phases for row in rows):
        without.add("spread")
    if all(row.parameters is None for row in rows):
        without.add("parameters")
    headers = [column for column in _COLUMNS if column not in without]
    for header in headers:
        table.add_column(header, justify="right")
    for row in rows:
        cells = dict(zip(_COLUMNS, _cells(row), strict=True))
        table.add_row(cells["layer"], *(cells[header] for header in headers))
    standard = is_standard(output)
    out = console(stderr=standard, piped_width=PIPED_WIDTH)
    out.print(table)
    for note in notes:
        out.print(Text(one_line(f"note: {note}"), "yellow"))
    if output is not None:
        out.print("wrote standard output" if standard else f"wrote {one_line(str(output))}")


def _cells(row: Row) -> tuple[str, ...]:
    layer = row.layer
    spreads = [times.spread for times in row.phases.values()]
    durations = (layer.forward_ns, layer.backward_input_ns, layer.backward_weight_ns, layer.backward_ns)
    sizes = (layer.activation_bytes, layer.activation_after_input_bytes, layer.message_bytes)
    return (
        one_line(layer.name),
        str(layer.repeat),
        *("–" if duration is None else format_duration_ns(duration) for duration in durations),
        f"{max(spreads):.1%}" if spreads else "–",
        *("–" if size is None else format_bytes(size, 1) for size in sizes),
        "–" if row.parameters is None else f"{row.parameters:,}",
    )
