"""The place of a value in a file, and the one-line errors about it.

Every error of the front end has the same form: `FILE: KEY: found WHAT, expected WHAT`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from schedc.errors import InvalidInput

PRINTABLE = r"^(?![\s\S]*[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069])"
"""Text without control characters: it is shown in terminals, whose escape sequences begin with one."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Location:
    """A key of a file; `location / "topology" / "link" / 1` is the place of an inner value."""

    file: str
    keys: tuple[str | int, ...] = ()
    overridden: tuple[tuple[tuple[str | int, ...], str], ...] = ()
    """The path of each value that was set, and who set it, whom errors about it name instead of the file; the last one counts."""

    def __truediv__(self, key: str | int) -> Location:
        """The place of the value under `key`, or at that index of the list."""
        return Location(self.file, (*self.keys, key), self.overridden)

    @property
    def path(self) -> str:
        """The key's path, `topology.link[1].ranks`; empty for the whole file."""
        text = ""
        for key in self.keys:
            if isinstance(key, int):
                text += f"[{key}]"
            else:
                text += ("." if text else "") + (key if _BARE_KEY.fullmatch(key) else show(key))
        return text

    def error(self, message: str) -> InvalidInput:
        """The error `FILE: KEY: message`, for the caller to raise."""
        for keys, source in reversed(self.overridden):
            if self.keys[: len(keys)] == keys:
                return Location(source, self.keys if len(self.keys) > len(keys) else ()).error(message)
        file = one_line(self.file) + (" with values set" if self.overridden else "")
        return InvalidInput(": ".join(part for part in (file, self.path, message) if part))

    def refuse(self, found: str, expected: str) -> InvalidInput:
        """The error `FILE: KEY: found …, expected …`, for the caller to raise."""
        return self.error(f"found {found}, expected {expected}")


def show(value: object) -> str:
    """A value of a file for a one-line message: text quoted and cut, tables named instead of printed."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a table" if value else "an empty table"
    if isinstance(value, bool | str):
        text = json.dumps(value, ensure_ascii=False)
        return one_line(text if len(text) <= _SHOWN else text[:_SHOWN] + '…"')
    if isinstance(value, list | tuple):
        text = f"[{', '.join(show(item) for item in value[:_SHOWN])}]"
        return text if len(text) <= _SHOWN else f"a list of {len(value)} values"
    if isinstance(value, int) and abs(value) >= 10**_SHOWN:
        return "a number of more than 60 digits"
    return str(value)


def one_line(text: str) -> str:
    """The text with every character that could break or garble a line escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
