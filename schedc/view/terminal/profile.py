"""What `schedc profile` and `schedc costs` show: the layers as a table, notes, and what each operator costs."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import asdict

from schedc.costs.efficiency import PHASES, operator_s
from schedc.costs.layers import Part, parts_of
from schedc.io.location import one_line
from schedc.io.outputs import is_standard
from schedc.view.document import Block, Column, Line, Table, duration, number, picked, right, size
from schedc.view.terminal.show import console

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from schedc.analysis.comparison.times import SampledTimes
    from schedc.costs.operators.operator import Operator, Operators
    from schedc.costs.predicted import Predicted
    from schedc.formats.profile_file import LayerEntry

PIPED_WIDTH = 160
"""Columns where standard output is no terminal: as many as the table needs."""
MOST_ALTERNATING = 8
"""How many kinds of layers are seen to alternate, at most."""
_COLUMNS = ("layer", "×", "F", "B", "W", "BW", "spread", "activation", "after B", "message", "parameters")
_OF_OPERATORS = ("F GFLOPs", "F memory", "F links", "F", "B", "W", "F to B", "F to W", "B to W", "parameters")


class ProfileRow(NamedTuple):
    """A layer and what the profile does not have of it."""

    layer: LayerEntry
    phases: Mapping[str, SampledTimes]
    parameters: int | None
    held_bytes: int | None = None


def console_beside(output: Path | None) -> Console:
    """Where the tables go: to standard error if standard output has the profile."""
    return console(stderr=is_standard(output), piped_width=PIPED_WIDTH)


def shown_profile(rows: Sequence[ProfileRow], notes: Sequence[str], title: str, output: Path | None = None) -> Iterator[Block]:
    """The table of the layers, those that repeat once, the notes, and where the profile is, if it has been written."""
    known = {"spread": any(row.phases for row in rows), "parameters": any(row.parameters is not None for row in rows)}
    kept = [at for at, header in enumerate(_COLUMNS) if known.get(header, True)]
    columns = [Column("layer", wrap="fold"), *right(*(_COLUMNS[at] for at in kept[1:]))]
    folded = [[cells[at] for at in kept] for cells in _folded([_cells(row) for row in rows])]
    yield Table(title=one_line(title), columns=columns, rows=folded)
    yield from (Line(one_line(f"note: {note}"), "yellow") for note in notes)
    if output is not None:
        yield "wrote standard output" if is_standard(output) else f"wrote {one_line(str(output))}"


def measured_json(rows: Sequence[ProfileRow], notes: Sequence[str]) -> dict[str, Any]:
    """The keys `layers` and `warnings` of `profile --json`."""
    layers = [
        {
            **entry_json(row.layer),
            "spread": {phase: times.spread for phase, times in row.phases.items()},
            "samples": {phase: len(times.samples_ns) for phase, times in row.phases.items()},
            **({} if row.held_bytes is None else {"held_bytes": row.held_bytes}),
        }
        for row in rows
    ]
    return {"layers": layers, "warnings": notes}


def entry_json(layer: LayerEntry) -> dict[str, Any]:
    """A layer of a profile; what is not known is left out."""
    known = {name: value for name in layer.__struct_fields__ if (value := getattr(layer, name)) not in (None, "")}
    return known if layer.quadratic is None else {**known, "quadratic": asdict(layer.quadratic)}


def first_parts(made: Predicted) -> list[Part]:
    """For each entry of the predicted layers, the first of its layers."""
    parts = parts_of(made.architecture, made.setting)
    return [parts[index] for index in accumulate((layer.repeat for layer in made.layers[:-1]), initial=0)]


def operators_json(operators: Operators, made: Predicted) -> list[dict[str, Any]]:
    """The key `operators` of a layer of `costs --json`."""

    def rounded(value: object, names: str) -> dict[str, int]:
        return {name: round(each) for name, each in picked(value, names).items()}

    found = []
    for operator in operators:
        works = zip(PHASES, _durations_ns(operator, made), strict=True)
        phases = {
            phase: {**rounded(getattr(operator, phase), "flops memory_bytes link_bytes"), "duration_ns": duration_ns}
            for phase, duration_ns in works
        }
        kept = rounded(operator, "parameters kept_for_input_bytes kept_for_weight_bytes gradient_bytes")
        found.append({"name": operator.name, **phases, **kept})
    return found


def shown_operators(made: Predicted) -> Iterator[Block]:
    """A table for each kind of layer."""
    seen: set[int] = set()
    for layer, part in zip(made.layers, first_parts(made), strict=True):
        if id(part.operators) in seen:  # equal blocks share them
            continue
        seen.add(id(part.operators))
        rows = [_cells_of_operator(operator, made) for operator in part.operators]
        columns = [Column("operator", wrap="fold"), *right(*_OF_OPERATORS)]
        yield Table(title=one_line(f"{layer.name}: {part.kind}"), columns=columns, rows=rows)
    yield Line("F to B: bytes kept from F until B; F to W and B to W likewise", "dim")


def _durations_ns(operator: Operator, made: Predicted) -> list[int]:
    """Of its phases."""
    return [
        round(1e9 * operator_s(operator, phase, made.device, made.rates, element_bytes=made.setting.element_bytes))
        for phase in PHASES
    ]


def _cells_of_operator(operator: Operator, made: Predicted) -> tuple[str, ...]:
    forward = operator.forward
    kept = (operator.kept_for_input_bytes, operator.kept_for_weight_bytes, operator.gradient_bytes)
    return (
        operator.name,
        number(forward.flops / 1e9 or None, ",.1f"),
        *(size(round(each) if each else None, 1) for each in (forward.memory_bytes, forward.link_bytes)),
        *(duration(each or None, 1) for each in _durations_ns(operator, made)),
        *(size(round(each) if each else None, 1) for each in kept),
        number(round(operator.parameters) if operator.parameters else None, ","),
    )


def _folded(rows: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Rows that are equal but for their names, or alternate so, are one row for each kind."""
    at = 0
    while at < len(rows):
        covered = {period: _repeats(rows, at, period) * period for period in range(1, MOST_ALTERNATING + 1)}
        period = max(covered, key=lambda each: (covered[each], -each))
        for first in range(at, at + period) if covered[period] > period else ():
            last = first + covered[period] - period
            every = f", every {period}th" if period > 3 else {1: "", 2: ", every second", 3: ", every third"}[period]
            count = sum(int(row[1]) for row in rows[first : last + 1 : period])
            until = " to " if rows[first][1] == "1" else " … "  # a row of several layers has a name with "to"
            yield f"{rows[first][0]}{until}{rows[last][0]}{every}", str(count), *rows[first][2:]
        if covered[period] == period:  # nothing repeats
            yield rows[at]
        at += covered[period] if covered[period] > period else 1


def _repeats(rows: Sequence[tuple[str, ...]], at: int, period: int) -> int:
    """How often the rows [at, at + period) come one after another, but for their names."""
    end = at + period
    while end < len(rows) and rows[end][1:] == rows[end - period][1:]:
        end += 1
    return max(1, (end - at) // period)


def _cells(row: ProfileRow) -> tuple[str, ...]:
    layer = row.layer
    durations = (layer.forward_ns, layer.backward_input_ns, layer.backward_weight_ns, layer.backward_ns)
    sizes = (layer.activation_bytes, layer.activation_after_input_bytes, layer.message_bytes)
    return (
        one_line(layer.name),
        str(layer.repeat),
        *map(duration, durations),
        number(max((times.spread for times in row.phases.values()), default=None), ".1%"),
        *(size(each, 1) for each in sizes),
        number(row.parameters, ","),
    )
