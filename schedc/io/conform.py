"""The types of tables and values in files, and a plain table made into them or refused in one line: the one validator of all files.

Takes what TOML or JSON gave and a `msgspec.Struct` or a dataclass; gives an instance of it, quantities parsed into integers. The
type of a quantity carries how its text is parsed and how a schema describes it. msgspec's own decoder names neither the value that
it found nor the key that was probably meant, so types are walked here instead; the JSON Schema is generated from the same types.
What several keys of a table may not say together stands below them, as the `rules` of its type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache, reduce
from operator import ge, gt, truediv
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

from schedc.errors import InvalidInput
from schedc.io.location import PRINTABLE, Location, show
from schedc.spelling import nearest
from schedc.units import BANDWIDTH_PATTERN, DURATION_PATTERN, SIZE_PATTERN, parse_bandwidth, parse_bytes, parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

S = TypeVar("S")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
"""Of Markdown; its text alone is for other readers."""
_PYTHON: dict[type, type | tuple[type, ...]] = {
    inspect.IntType: int,
    inspect.StrType: str,
    inspect.VarTupleType: list,
    inspect.TupleType: list,
    inspect.NoneType: type(None),
    inspect.StructType: dict,
    inspect.AnyType: object,
}
"""What a value of each kind is in a plain table."""


class UnknownKey(InvalidInput):
    """A file has a key that does not exist."""


def conform(table: Mapping[str, Any], struct: type[S], location: Location) -> S:
    """The table as an instance of the struct.

    Raises:
        InvalidInput: an unknown or missing key, a value of the wrong type, range or unit, or several that break a rule of their
            table; the first that is found.
    """
    described: type = struct
    kind = _type_info(described)
    made: S = _struct(table, kind, location, kind)
    return made


@cache
def _type_info(struct: type) -> inspect.Type:
    """What msgspec says of the struct; finding it out takes longer than all the rest of reading a job."""
    return inspect.type_info(struct)


def _struct(value: Any, kind: Any, location: Location, root: Any) -> Any:
    if not isinstance(value, dict):
        raise location.refuse(show(value), "a table")
    fields = {field.encode_name: field for field in kind.fields}
    for key in value:
        if key not in fields and (isinstance(kind, inspect.DataclassType) or kind.cls.__struct_config__.forbid_unknown_fields):
            hint = _near(key, fields)
            if not hint:  # the nearest one of this table, or the table that it belongs to
                elsewhere = [path for path in _paths(root) if path.split(".")[-1].removesuffix("[]") == key]
                hint = f"; did you mean {_either(elsewhere)}?" if elsewhere else ""
            expected = f"one of {', '.join(fields)}{hint}" if fields else "none"
            raise UnknownKey(str((location / key).refuse("an unknown key", expected)))
    made = {}
    for name, field in fields.items():
        if name in value and value[name] is None and not field.required:
            raise (location / name).refuse("null", f"{_expected(field.type)}, or no such key")
        if name in value:
            made[field.name] = _value(value[name], field.type, location / name, root)
        elif field.required:
            raise (location / name).refuse("nothing", _expected(field.type))
    table = kind.cls(**made)
    for key, found, expected in table.rules() if isinstance(table, Section) else ():
        raise reduce(truediv, filter(None, key.split(".")), location).refuse(found, expected)
    return table


def _value(value: Any, kind: Any, location: Location, root: Any) -> Any:
    """The value as its type wants it; dispatches on the type's description."""
    if isinstance(kind, inspect.Metadata):
        if kind.extra and "parse" in kind.extra:
            if not isinstance(value, str):
                raise location.refuse(show(value), kind.extra["expected"])
            try:
                return kind.extra["parse"](value)
            except ValueError as error:
                raise location.error(f"found {show(value)}, {error}") from None
        return _value(value, kind.type, location, root)
    if isinstance(kind, inspect.UnionType):
        member = next((member for member in kind.types if _fits(value, member)), None)
        if member is None or not _in_range(value, member):
            literals = [choice for member in kind.types for choice in _choices(member)]
            raise location.refuse(show(value), _expected(kind) + _near(value, literals))
        return _value(value, member, location, root)
    if isinstance(kind, inspect.StructType):
        return _struct(value, kind, location, root)
    if not _fits(value, kind) or not _in_range(value, kind):
        raise location.refuse(show(value), _expected(kind) + _near(value, _choices(kind)))
    if isinstance(kind, inspect.VarTupleType):
        return tuple(_value(item, kind.item_type, location / index, root) for index, item in enumerate(value))
    if isinstance(kind, inspect.TupleType):
        pairs = zip(value, kind.item_types, strict=True)
        return tuple(_value(item, inner, location / index, root) for index, (item, inner) in enumerate(pairs))
    if isinstance(kind, inspect.EnumType):
        return kind.cls(value)
    return float(value) if isinstance(kind, inspect.FloatType) else value


def _fits(value: Any, kind: Any) -> bool:
    """Whether the value's type is the one described; ranges and inner values are not looked at, except for literals."""
    if isinstance(kind, inspect.Metadata):
        return isinstance(value, str) if kind.extra and "parse" in kind.extra else _fits(value, kind.type)
    if isinstance(kind, inspect.LiteralType | inspect.EnumType):
        return any(value == known and type(value) is type(known) for known in _choices(kind))
    if isinstance(value, bool):  # which Python takes for a whole number
        return isinstance(kind, inspect.BoolType | inspect.AnyType)
    if isinstance(kind, inspect.FloatType):
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, _PYTHON.get(type(kind), ()))


def _in_range(value: Any, kind: Any) -> bool:
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        bounds = ((value, ge, kind.ge), (kind.le, ge, value), (value, gt, kind.gt), (kind.lt, gt, value))
        return all(one is None or other is None or holds(one, other) for one, holds, other in bounds)
    if isinstance(kind, inspect.TupleType):
        return len(value) == len(kind.item_types)
    if isinstance(kind, inspect.StrType) and kind.pattern is not None and re.search(kind.pattern, value) is None:
        return False
    if isinstance(kind, inspect.StrType | inspect.VarTupleType):
        long_enough = kind.min_length is None or len(value) >= kind.min_length
        return long_enough and (kind.max_length is None or len(value) <= kind.max_length)
    return True


def _expected(kind: Any) -> str:
    """What a person may write for this type."""
    if isinstance(kind, inspect.Metadata):
        return kind.extra["expected"] if kind.extra and "expected" in kind.extra else _expected(kind.type)
    if isinstance(kind, inspect.UnionType):
        members = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        return " or ".join(
            "a list of them"
            if isinstance(member, inspect.VarTupleType) and getattr(member.item_type, "types", (member.item_type,))[0] in members
            else _expected(member)
            for member in members
        )
    if choices := _choices(kind):
        return _either([show(value) for value in choices])
    if isinstance(kind, inspect.TupleType):
        return f"a list of {len(kind.item_types)}, each {_expected(kind.item_types[0])}"
    if isinstance(kind, inspect.VarTupleType):
        if kind.min_length is not None and kind.min_length == kind.max_length:
            return f"a list of {kind.min_length} whole numbers" if isinstance(kind.item_type, inspect.IntType) else "a list"
        least = f" of at least {kind.min_length}" if kind.min_length else ""
        return f"a list{least}, each {_expected(kind.item_type)}"
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        name = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
        if kind.ge is not None and kind.le is not None:
            return f"{name} from {kind.ge} to {kind.le}"
        bounds = (("of at least", kind.ge), ("above", kind.gt), ("of at most", kind.le), ("below", kind.lt))
        said = " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
        return f"{name} {said}".rstrip()
    if isinstance(kind, inspect.StrType):
        if kind.pattern is not None:
            return "printable text on one line" if kind.pattern == PRINTABLE else f"text that matches {kind.pattern}"
        return "text of at least one character" if kind.min_length else "text"
    return "true or false" if isinstance(kind, inspect.BoolType) else "a table"


def _choices(kind: Any) -> list[object]:
    """The values of a literal type or an enumeration, as the file has them; of other types none."""
    if isinstance(kind, inspect.EnumType):
        return [member.value for member in kind.cls]
    return list(kind.values) if isinstance(kind, inspect.LiteralType) else []


def _paths(kind: Any, prefix: str = "") -> list[str]:
    """The paths of all keys that a type has, `topology.link[].ranks`."""
    if isinstance(kind, inspect.Metadata):
        return _paths(kind.type, prefix)
    if isinstance(kind, inspect.UnionType):
        return [path for member in kind.types for path in _paths(member, prefix)]
    if isinstance(kind, inspect.VarTupleType):
        return _paths(kind.item_type, f"{prefix}[]")
    if not isinstance(kind, inspect.StructType):
        return []
    joined = [(f"{prefix}.{field.encode_name}".lstrip("."), field.type) for field in kind.fields]
    return [path for name, inner in joined for path in (name, *_paths(inner, name))]


def _near(value: Any, known: Iterable[object]) -> str:
    """`; did you mean …?` for text that is close to a known one, whatever its case; else nothing."""
    return nearest(value.lower(), [name for name in known if isinstance(name, str)]) if isinstance(value, str) else ""


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _text(parse: Callable[[str], int], what: str, pattern: str, *examples: str) -> Meta:
    """Text in the file that `parse` makes a number of."""
    expected = f'a {what} such as "{examples[0]}"'
    return Meta(extra={"parse": parse, "expected": expected}, extra_json_schema={"pattern": pattern, "examples": [*examples]})


Duration: TypeAlias = Annotated[int, _text(parse_duration_ns, "duration", DURATION_PATTERN, "38 ms")]
"""Nanoseconds."""

Size: TypeAlias = Annotated[int, _text(parse_bytes, "size", SIZE_PATTERN, "512 MiB")]
"""Bytes."""

Bandwidth: TypeAlias = Annotated[int, _text(parse_bandwidth, "bandwidth", BANDWIDTH_PATTERN, "50 GB/s", "400 Gb/s")]
"""Bytes per second."""

Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**20)]
"""How many there are of something: at least one, and few enough that a typing mistake does not fill the memory."""

Pair: TypeAlias = Annotated[tuple[int, ...], Meta(min_length=2, max_length=2)]
"""Two ranks, or two sites."""

Durations: TypeAlias = Duration | tuple[Duration, ...]
"""One value for all stages, or one for each."""

BlockDurations: TypeAlias = Duration | tuple[Duration | tuple[Duration, ...], ...]
"""Likewise; instead of a stage's duration there may be a list, one for each microbatch."""

Sizes: TypeAlias = Size | tuple[Size, ...]
"""One value for all stages (or ranks, where the key is about ranks), or one for each."""

Counts: TypeAlias = Count | tuple[Count, ...]
"""One value for all ranks, or one for each."""


def _key(name: str) -> str:
    return "bandwidth" if name == "bytes_per_second" else name.removesuffix("_ns").removesuffix("_bytes")


Rules: TypeAlias = Iterator[tuple[str, str, str]]
"""Of each rule that is broken: the key (a path from the table; empty: the table itself), what was found, what is expected."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=_key):
    """A table of a file. A field's key is its name without the unit, which the file has beside the number."""

    def rules(self) -> Rules:
        """What the values may not be together, although each is right by itself."""
        yield from ()


def key(meaning: str, *, example: str = "", note: str = "") -> Meta:
    """What a key means, in one place.

    Args:
        meaning: Markdown, with links from docs/; the schema has it without them.
        example: a value as the file has it, with which `schedc init` names the key in a comment.
        note: a few words beside the key in what `schedc init` writes.
    """
    return Meta(description=meaning, extra={"example": example, "note": note})


def schema_of(struct: type, title: str, *, links: bool = False) -> dict[str, Any]:
    """The schema of a TOML file, of the struct that it becomes; with links only for pages of docs/."""
    (reference,), definitions = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **reference,
        "$defs": {name: _as_in_file(schema, links=links) for name, schema in definitions.items()},
    }


def _as_in_file(schema: Any, *, links: bool) -> Any:
    if isinstance(schema, list):
        return [_as_in_file(item, links=links) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    described = {
        key: _as_in_file(value, links=links)
        for key, value in schema.items()
        if not (key == "default" and isinstance(value, dict | None))
    }
    if not links and isinstance(described.get("description"), str):
        described["description"] = _LINK.sub(r"\1", described["description"])
    if described.get("type") == "integer" and "pattern" in described:
        described["type"] = "string"
    if len(described.get("anyOf", ())) == 1:
        described |= described.pop("anyOf")[0]
    return described
