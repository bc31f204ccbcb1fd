"""HTML from text: everything that a plan, a trace or a job says is escaped here, once."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that is HTML already; all other text is escaped."""

    __slots__ = ()


class Cell(NamedTuple):
    """A cell of a table: what it shows, and its class, such as `number`, which is set to the right."""

    content: str
    kind: str = ""


def text(content: str) -> Markup:
    """The text as HTML."""
    return content if isinstance(content, Markup) else Markup(escape(content))


def element(name: str, *children: str, **attributes: str) -> Markup:
    """An element; `class_` is its class, and an underscore in the name of an attribute is a hyphen."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{''.join(map(text, children))}</{name}>")


def table(caption: str, headers: Sequence[Cell], rows: Iterable[Sequence[Cell]]) -> Markup:
    """A table with its first column as the headers of the rows; it scrolls by itself where the window is narrow.

    Args:
        caption: what the table is of.
        headers: of the columns.
        rows: their cells.
    """

    def cell(name: str, each: Cell, **attributes: str) -> Markup:
        return element(name, each.content, **attributes, **({"class_": each.kind} if each.kind else {}))

    head = element("thead", element("tr", *(cell("th", header, scope="col") for header in headers)))
    body = [
        element("tr", *(cell("td" if at else "th", each, **({} if at else {"scope": "row"})) for at, each in enumerate(row)))
        for row in rows
    ]
    inner = element("table", element("caption", caption), head, element("tbody", *body))
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)
