"""A document as HTML. Everything that a plan, a trace or a job says is escaped here, once."""

from __future__ import annotations

from html import escape

from schedc.view.document import Bar, Block, Column, Facts, Fold, Keys, Line, Panel, Table

TAGS = {"": "p", "quiet": "p", "bold": "h3"}
"""What becomes of a line, by its style."""


class Markup(str):
    """Text that is HTML already; all other text is escaped."""

    __slots__ = ()


def text(content: str) -> Markup:
    """The text as HTML."""
    return content if isinstance(content, Markup) else Markup(escape(content))


def element(name: str, *children: str, **attributes: str) -> Markup:
    """An element; `class_` is its class, and an underscore in the name of an attribute is a hyphen. Empty ones are left out."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value}
    written = "".join(f' {key}="{escape(value)}"' for key, value in given.items())
    return Markup(f"<{name}{written}>{''.join(map(text, children))}</{name}>")


def html(block: Block | Panel) -> Markup:
    """A block as HTML."""
    if isinstance(block, Panel):
        kind = "panel long" if block.long else "panel"
        return element("section", element("h2", block.title), *map(html, block.blocks), class_=kind, id=block.identity)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Bar):
        return _bar(block)
    if isinstance(block, Facts):
        rows = (Markup(element("dt", name) + element("dd", value)) for name, value in block.rows)
        return element("dl", *rows, class_="facts")
    if isinstance(block, Keys):
        keys = (element("li", element("i", style=f"background:var({colour})"), words) for colour, words in block.rows)
        return element("ul", *keys, class_="keys-of-bars")
    if isinstance(block, Fold):
        return element("details", element("summary", block.summary), *map(html, block.blocks))
    line = Line(block) if isinstance(block, str) else block
    assert isinstance(line, Line), "a picture is for terminals"
    return element(TAGS[line.style], line.text, class_=line.style if line.style == "quiet" else "")


def _table(table: Table) -> Markup:
    """A table with its first column as the headers of the rows; it scrolls by itself where the window is narrow."""

    def kind(column: Column) -> str:
        return "number" if column.right else column.kind

    def cell(at: int, content: str | Bar) -> Markup:
        shown = html(content) if isinstance(content, Bar) else content
        return element("td" if at else "th", shown, scope="" if at else "row", class_=kind(table.columns[at]))

    heads = (element("th", column.header, scope="col", class_=kind(column)) for column in table.columns)
    rows = (element("tr", *(cell(at, each) for at, each in enumerate(row))) for row in table.rows)
    head = element("thead", element("tr", *heads))
    inner = element("table", element("caption", table.title), head, element("tbody", *rows))
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=table.title)


def _bar(bar: Bar) -> Markup:
    pieces = [
        element("i", style=f"width:{length / bar.whole * 100:.3f}%;background:var({colour})", title=what)
        for colour, length, what in bar.parts
        if bar.whole and length
    ]
    if bar.mark is not None:
        pieces.append(element("span", class_="mark", style=f"left:calc({bar.mark * 100:.3f}% - 2px)"))
    return element("div", *pieces, class_="bar", aria_hidden="true")
