"""Pieces of Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def code(text: str) -> str:
    """The text as code in a line."""
    return f"`{text}`"


def row(*cells: str) -> str:
    """A row of a table; a bar in a cell does not end it."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def table(names: Sequence[str], rows: Iterable[str]) -> str:
    """A table of such rows."""
    return "\n".join([row(*names), f"|{'---|' * len(names)}", *rows])
