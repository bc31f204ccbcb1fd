"""What `schedc profile` and `schedc costs` print: the layers as a table, notes, and the layer at work while one is measured."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from schedc.io.location import one_line
from schedc.io.outputs import is_standard
from schedc.units import format_bytes, format_duration_ns
from schedc.view.terminal.results import console, plain_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from schedc.analysis.comparison.times import SampledTimes
    from schedc.formats.profile_file import LayerEntry

PIPED_WIDTH = 160
"""Columns where standard output is no terminal: as many as the table needs."""


MOST_ALTERNATING = 8
"""How many kinds of layers are seen to alternate, at most."""

_COLUMNS = ("layer", "×", "F", "B", "W", "BW", "spread", "activation", "after B", "message", "parameters")


class ProfileRow(NamedTuple):
    """A layer and what the profile does not have of it."""

    layer: LayerEntry
    phases: Mapping[str, SampledTimes]
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


def print_profile(rows: Sequence[ProfileRow], notes: Sequence[str], title: str, output: Path | None = None) -> None:
    """Print the table of the layers, those that repeat once, the notes, and where the profile is.

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
    for name, of_row in _folded([_cells(row) for row in rows]):
        cells = dict(zip(_COLUMNS, (name, *of_row), strict=True))
        table.add_row(cells["layer"], *(cells[header] for header in headers))
    standard = is_standard(output)
    out = console(stderr=standard, piped_width=PIPED_WIDTH)
    out.print(table)
    for note in notes:
        out.print(Text(one_line(f"note: {note}"), "yellow"))
    if output is not None:
        out.print("wrote standard output" if standard else f"wrote {one_line(str(output))}")


def _folded(rows: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names, and cells after them: rows that are equal but for their names, or alternate so, are one row for each kind."""
    at = 0
    while at < len(rows):
        covered = {period: _repeats(rows, at, period) * period for period in range(1, MOST_ALTERNATING + 1)}
        period = max(covered, key=lambda each: (covered[each], -each))
        if covered[period] == period:  # nothing repeats
            yield rows[at][0], rows[at][1:]
            at += 1
            continue
        for first in range(at, at + period):
            last = first + covered[period] - period
            every = f", every {period}th" if period > 3 else {1: "", 2: ", every second", 3: ", every third"}[period]
            count = sum(int(row[1]) for row in rows[first : last + 1 : period])
            yield f"{rows[first][0]} to {rows[last][0]}{every}", (str(count), *rows[first][2:])
        at += covered[period]


def _repeats(rows: Sequence[tuple[str, ...]], at: int, period: int) -> int:
    """How often the rows [at, at + period) come one after another, but for their names."""
    end = at + period
    while end < len(rows) and rows[end][1:] == rows[end - period][1:]:
        end += 1
    return max(1, (end - at) // period)


def _cells(row: ProfileRow) -> tuple[str, ...]:
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
