"""The options of the methods that have some: a frozen dataclass beside each, whose types say what is allowed, read once from text.

`parse_options` takes the text between the braces of `greedy{n_sub=2,in_flight=memory}`; it gives an instance of the method's class.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta

from schedc.io.conform import conform

if TYPE_CHECKING:
    from schedc.io.location import Location

Options = TypeVar("Options")

Ops = Annotated[int, Meta(ge=0, le=10**9)]
"""How many ops, or evaluations, may be spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """Of a method that has none."""


def parse_options(text: str, options: type[Options], location: Location) -> Options:
    """The options in the text, `n_sub=2,in_flight=memory`; what it does not name has its default.

    Raises:
        InvalidInput: an option is unknown or given twice, or its value is of the wrong type or out of range.
    """
    table: dict[str, Any] = {}
    for option in filter(None, map(str.strip, re.split(r",(?=\s*\w+=)", text))):  # a value may be a list with commas
        name, equals, value = option.partition("=")
        if not equals:
            raise location.refuse(f"the option {option!r}", "name=value")
        if name in table:
            raise (location / name).refuse("the option twice", "it once")
        table[name] = _value(value)
    return conform(table, options, location)


def _value(text: str) -> object:
    """A number, a truth value or a list of them where the text reads as one, else the text."""
    if "," in text:
        return [_value(entry) for entry in text.split(",")]
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.strip().lower(), text)
