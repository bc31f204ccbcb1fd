"""What a command or a page shows, without a medium: lines, tables, names with values, bars, pictures; or an object of JSON.

A result becomes a document here and nowhere else. `view.terminal.show` prints one, `view.report.html` makes HTML of one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from schedc.ir import Kind, Op, token
from schedc.units import format_bytes, format_duration_ns


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text."""

    text: str
    style: str = ""
    """`bold`, `dim`; of a page `quiet`."""
    soft: bool = False
    """Left to the terminal to wrap, so that a line that is copied is one line."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    header: str
    right: bool = False
    """Set to the right, as numbers are."""
    wrap: Literal["words", "fold", "never", "cut"] = "words"
    """What becomes of cells that are too wide: they go on in another line after a word, or anywhere; are not; end with …"""
    least: int = 0
    """How many characters it has at least."""
    kind: str = ""
    """Of a page: `wide`, `half` or `text`, how much room it gets."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A cell of a page: parts of a whole, beside each other."""

    parts: tuple[tuple[str, int, str], ...]
    """Of each its colour, its length, and what it is."""
    whole: int
    mark: float | None = None
    """A line across it, at this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; its title is above it."""

    title: str = ""
    columns: Sequence[Column]
    rows: Iterable[Sequence[str | Bar]]
    bold: Collection[int] = ()
    """The places of rows that stand out."""
    may_go: Sequence[str] = ()
    """Headers of columns that a narrow terminal does without, in the order in which they go."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Keys:
    """What the colours of bars mean: colour and words."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Strip:
    """A line of a picture."""

    parts: Sequence[tuple[str, str]]
    """Text and its style."""
    cropped: bool = False
    """Ends where the terminal does; else it goes on in another line."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Lines that are drawn for a width."""

    draw: Callable[[int], Iterable[Strip]]


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that a page opens when they are asked for."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of a page, under a heading."""

    title: str
    blocks: Sequence[Block]
    identity: str = ""
    long: bool = False


Block = str | Line | Table | Facts | Keys | Bar | Picture | Fold
Document = Iterator[Block] | Sequence[Block]


def left(*headers: str) -> list[Column]:
    """Columns of text."""
    return [Column(header) for header in headers]


def right(*headers: str, wrap: Literal["words", "never"] = "words") -> list[Column]:
    """Columns of numbers."""
    return [Column(header, right=True, wrap=wrap) for header in headers]


def duration(duration_ns: int | None, decimals: int = 3) -> str:
    """A duration for people; what is not known is a dash."""
    return "–" if duration_ns is None else format_duration_ns(duration_ns, decimals)


def size(size_bytes: int | None, decimals: int = 3) -> str:
    """A size for people; what is not known is a dash."""
    return "–" if size_bytes is None else format_bytes(size_bytes, decimals)


def number(value: float | None, pattern: str = ".2%") -> str:
    """A number for people, by default a share as a percentage; what is not known is a dash."""
    return "–" if value is None else format(value, pattern)


def plain(value: Any) -> Any:
    """The value as JSON has it: the fields of a dataclass that its `repr` has, or of a named tuple; ops and kinds by name."""
    if isinstance(value, Op):
        return token(value)
    if isinstance(value, Kind):
        return value.name
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.repr}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    raise TypeError(f"found {value!r}, expected what JSON has")


def picked(value: object, names: str) -> dict[str, Any]:
    """These attributes of it, for an object of JSON; the names have spaces between them."""
    return {name: getattr(value, name) for name in names.split()}
