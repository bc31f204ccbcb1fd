"""A device's table: the share of its peak that products reach, by shape, and what memory and collectives take.

```json
{"format": "schedc.operators", "version": 1, "device": "h100", "source": "where it was measured",
 "constants": {"memory": 0.82, "move_s": 6e-06},
 "shares": [
  ["matrix", "forward", 1, 4096, 4096, 6144, 0.71]],
 "collectives": [
  ["all-gather", 8, 1048576, 3.1e-05]]}
```
A row of `shares` is engine, phase, the four numbers of a shape (matrices or heads; tokens that each meets; elements in; elements
out) and the share of the 16-bit peak; of `collectives` the kind, the devices of the group, the bytes that one of them sends, and
seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

from msgspec import Meta, json
from msgspec.structs import asdict

from schedc.io.conform import Section, conform
from schedc.io.input_file import read_bytes
from schedc.io.location import Location
from schedc.io.tables import parse_json

if TYPE_CHECKING:
    from pathlib import Path

Above0: TypeAlias = Annotated[float, Meta(gt=0)]
Phase: TypeAlias = Literal["forward", "backward_input", "backward_weight"]
MeasuredEngine: TypeAlias = Literal["matrix", "grouped", "attention"]
ShareRow: TypeAlias = tuple[MeasuredEngine, Phase, Above0, Above0, Above0, Above0, Above0]
CollectiveRow: TypeAlias = tuple[
    Literal["all-gather", "reduce-scatter", "all-to-all", "ring"],
    Annotated[int, Meta(ge=2)],
    Annotated[float, Meta(ge=0)],
    Above0,
]


class Constants(Section, frozen=True, kw_only=True):
    """As of `schedc.costs.efficiency.Efficiency`, which has the meaning and the value of each that is left out."""

    matrix: Above0 | None = None
    attention: Above0 | None = None
    scan: Above0 | None = None
    memory: Above0 | None = None
    permute: Above0 | None = None
    loss: Above0 | None = None
    link: Above0 | None = None
    exchange: Above0 | None = None
    launch_s: Above0 | None = None
    move_s: Above0 | None = None
    collective_s: Above0 | None = None
    sustained: Above0 | None = None

    def given(self) -> dict[str, float]:
        """Those that are not left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class OperatorTable(Section, frozen=True, kw_only=True):
    """The file."""

    format: Literal["schedc.operators"]
    version: Literal[1]
    device: Annotated[str, Meta(description="Whose peaks these are shares of: a known device.")]
    source: Annotated[str, Meta(description="For people.")] = ""
    constants: Constants = Constants()
    shares: tuple[ShareRow, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()


class Product(NamedTuple):
    """One that is to be measured."""

    engine: MeasuredEngine
    shape: tuple[float, float, float, float]
    batch: int
    """Sequences; of attention alone."""
    flops: tuple[float, float, float]
    """In F, B and W; 0: it has no such phase."""


def read_operator_table(path: Path) -> OperatorTable:
    """The table in a file.

    Raises:
        InvalidInput: it is none; says the key, what was found and what is expected.
    """
    return conform(parse_json(read_bytes(path), str(path)), OperatorTable, Location(str(path)))


def operator_table_json(table: OperatorTable) -> str:
    """The text of the file, a line for each row."""

    def rows(each: tuple[ShareRow, ...] | tuple[CollectiveRow, ...]) -> str:
        return "[\n" + ",\n".join(f"  {json.encode(row).decode()}" for row in each) + "\n ]" if each else "[]"

    head = {"format": table.format, "version": table.version, "device": table.device, "source": table.source}
    lines = [f'"{name}": {json.encode(value).decode()}' for name, value in (*head.items(), ("constants", table.constants.given()))]
    lines += [f'"shares": {rows(table.shares)}', f'"collectives": {rows(table.collectives)}']
    return "{\n " + ",\n ".join(lines) + "\n}\n"
