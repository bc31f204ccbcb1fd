"""What panels are made of: headings, names with values, bars and the keys of their colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.view.report.markup import Markup, element

if TYPE_CHECKING:
    from collections.abc import Iterable


def panel(title: str, *content: str, identity: str = "", long: bool = False) -> Markup:
    """A panel with a heading."""
    attributes = {"class_": "panel long" if long else "panel"} | ({"id": identity} if identity else {})
    return element("section", element("h2", title), *content, **attributes)


def facts(rows: Iterable[tuple[str, str]]) -> Markup:
    """Names and values."""
    return element("dl", *(Markup(element("dt", name) + element("dd", value)) for name, value in rows), class_="facts")


def bar(parts: Iterable[tuple[str, int, str]], whole: int, *, mark: float | None = None) -> Markup:
    """A bar of parts, (colour, length, what it is), of this whole; the mark is a share of it."""
    pieces = [
        element("i", style=f"width:{length / whole * 100:.3f}%;background:var({colour})", title=what)
        for colour, length, what in parts
        if whole and length
    ]
    if mark is not None:
        pieces.append(element("span", class_="mark", style=f"left:calc({mark * 100:.3f}% - 2px)"))
    return element("div", *pieces, class_="bar", aria_hidden="true")


def keys_of_bars(keys: Iterable[tuple[str, str]]) -> Markup:
    """What the colours of bars mean."""
    return element(
        "ul",
        *(element("li", element("i", style=f"background:var({colour})"), words) for colour, words in keys),
        class_="keys-of-bars",
    )
