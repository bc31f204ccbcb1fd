"""Options with units: the text of one as a number, or refused in one line that names the option."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.units import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable


def option_value(option: str, text: str, parse: Callable[[str], int] = parse_duration_ns) -> int:
    """What the parser of a unit makes of an option's text: nanoseconds, if none is given.

    Raises:
        InvalidInput: the text is none of that unit.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidInput(f"{option}: found {text!r}, {error}") from None
