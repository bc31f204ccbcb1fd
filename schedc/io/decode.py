"""The large files of programs, plans and traces: msgspec decodes them, and `conform` says what is wrong with one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from schedc.io.location import one_line

if TYPE_CHECKING:
    from schedc.io.location import Location

S = TypeVar("S", bound=msgspec.Struct)


def decode(content: bytes, struct: type[S], location: Location) -> S:
    """The JSON text as an instance of the struct.

    Raises:
        InvalidInput: it is not UTF-8 or not JSON, or a key or value is not as the struct says.
    """
    try:
        content.decode()  # msgspec skips text that it does not need, and would accept anything there
        return msgspec.json.decode(content, type=struct)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        from schedc.io.conform import conform
        from schedc.io.tables import parse_json

        conform(parse_json(content, location.file), struct, location)
        raise location.refuse(f"text that is not JSON ({one_line(str(error))})", "JSON") from error
