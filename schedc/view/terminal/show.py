"""Shows what a command has found: a document as text, fitted to the terminal, or an object as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from schedc.view.document import Document, Line, Picture, Table, plain

LEAST = 3
"""How many characters of a column that may wrap or be cut are shown at least, before others give way."""


def console(*, stderr: bool = False, piped_width: int | None = None, width: int | None = None, most: int = 10_000) -> Console:
    """Standard output, or standard error. Text is shown as it is: brackets and colons mean nothing.

    Args:
        stderr: whether it is standard error.
        piped_width: columns where it is no terminal and COLUMNS does not say how many there are; None: 80.
        width: columns; None: as many as there are.
        most: columns, if there are more.
    """
    out = Console(highlight=False, soft_wrap=False, markup=False, emoji=False, stderr=stderr)
    if piped_width is not None and not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = piped_width
    out.width = min(out.width, most) if width is None else width
    return out


def show(found: Mapping[str, Any] | Document, out: Console | None = None) -> None:
    """Print what a command has found: an object as JSON, on standard output; a document, there or on the console."""
    if isinstance(found, Mapping):
        sys.stdout.write(json.dumps(plain(found), indent=2) + "\n")
        return
    out = out or console()
    for block in found:
        if isinstance(block, Table):
            _print_table(out, block)
        elif isinstance(block, Picture):
            for strip in block.draw(out.width):
                out.print(Text.assemble(*strip.parts), no_wrap=strip.cropped, overflow="crop" if strip.cropped else None)
        else:
            line = Line(block) if isinstance(block, str) else block
            assert isinstance(line, Line), "other blocks are for pages"
            out.print(Text(line.text, line.style), soft_wrap=line.soft)


def _print_table(out: Console, table: Table) -> None:
    """Print a table; where the terminal is too narrow for it, without some columns, which a line names."""
    if table.title:  # a line of its own: a table's title is wrapped where its columns end
        out.print(table.title, style="italic", soft_wrap=True)
    rows, gone = list(table.rows), list[str]()
    places = list(range(len(table.columns)))
    for header in table.may_go:
        if sum(_needed(table, rows, places)) + 2 * (len(places) - 1) <= out.width:
            break
        gone += [header] * any(table.columns[at].header == header for at in places)
        places = [at for at in places if table.columns[at].header != header]
    while 4 * len(places) - 2 > out.width:  # two characters of each, and two between them
        gone.append(table.columns[places.pop()].header)
    out.print(_drawn(table, rows, places, out.width))
    if gone:
        out.print(f"not shown in {out.width} columns: {', '.join(gone)}", soft_wrap=True)


def _needed(table: Table, rows: Sequence[Sequence[Any]], places: Sequence[int]) -> list[int]:
    """How wide the columns at these places are where there is room."""
    columns = [(table.columns[at], [table.columns[at].header, *(row[at] for row in rows if at < len(row))]) for at in places]
    return [max(column.least, *(cell_len(line) for text in texts for line in text.split("\n"))) for column, texts in columns]


def _drawn(table: Table, rows: Sequence[Sequence[Any]], places: Sequence[int], width: int) -> RichTable:
    """The columns at these places as a table without lines; none vanishes, however narrow the terminal is."""
    drawn = RichTable(box=None, header_style="bold", pad_edge=False)
    columns, needed = [table.columns[at] for at in places], _needed(table, rows, places)
    room = width - 2 * (len(places) - 1)
    least = sum(each if column.wrap == "never" else min(each, LEAST) for column, each in zip(columns, needed, strict=True))
    squeezed = least > room  # columns that do not wrap would leave nothing to the others: the widest give way
    while squeezed and sum(needed) > max(room, len(needed)):
        needed[needed.index(max(needed))] -= 1
    for column, characters in zip(columns, needed, strict=True):
        drawn.add_column(
            column.header,
            justify="right" if column.right else "left",
            no_wrap=column.wrap == "never",
            overflow="fold" if column.wrap == "fold" else "ellipsis",
            min_width=column.least or None,
            width=characters if squeezed else None,
        )
    for number, row in enumerate(rows):
        cells = [
            Text(row[at], overflow="ellipsis", no_wrap=True) if table.columns[at].wrap == "cut" else row[at]
            for at in places
            if at < len(row)
        ]
        drawn.add_row(*cells, style="bold" if number in table.bold else "")
    return drawn
