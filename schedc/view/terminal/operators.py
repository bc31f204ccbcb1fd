"""What `schedc costs --operators` prints: FLOPs, bytes, what is kept and durations, for each operator of each kind of layer."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from rich.text import Text

from schedc.costs.efficiency import duration_s
from schedc.costs.layers import parts_of
from schedc.io.location import one_line
from schedc.units import format_bytes, format_duration_ns
from schedc.view.terminal.profile import PIPED_WIDTH
from schedc.view.terminal.results import console, plain_table

if TYPE_CHECKING:
    from schedc.costs.layers import Part
    from schedc.costs.operators.operator import Operator, Operators, OperatorWork
    from schedc.costs.predicted import Predicted

PHASES = ("forward", "backward_input", "backward_weight")
COLUMNS = ("operator", "F GFLOPs", "F memory", "F links", "F", "B", "W", "F to B", "F to W", "B to W", "parameters")


def first_parts(made: Predicted) -> list[Part]:
    """For each entry of the predicted layers, the first of its layers."""
    parts = parts_of(made.architecture, made.setting)
    return [parts[index] for index in accumulate((layer.repeat for layer in made.layers[:-1]), initial=0)]


def operators_json(operators: Operators, made: Predicted) -> list[dict[str, object]]:
    """Operators for machines."""
    return [
        {
            "name": operator.name,
            **{phase: _work_json(getattr(operator, phase), operator, made) for phase in PHASES},
            "parameters": round(operator.parameters),
            "kept_for_input_bytes": round(operator.kept_for_input_bytes),
            "kept_for_weight_bytes": round(operator.kept_for_weight_bytes),
            "gradient_bytes": round(operator.gradient_bytes),
        }
        for operator in operators
    ]


def print_operators(made: Predicted, *, stderr: bool) -> None:
    """A table for each kind of layer.

    Args:
        made: the predicted layers.
        stderr: whether standard output has the profile.
    """
    out = console(stderr=stderr, piped_width=PIPED_WIDTH)
    seen: set[int] = set()
    for layer, part in zip(made.layers, first_parts(made), strict=True):
        if id(part.operators) in seen:  # equal blocks share them
            continue
        seen.add(id(part.operators))
        table = plain_table(one_line(f"{layer.name}: {part.kind}"))
        table.add_column(COLUMNS[0], overflow="fold")
        for header in COLUMNS[1:]:
            table.add_column(header, justify="right")
        for operator in part.operators:
            table.add_row(*_cells(operator, made))
        out.print(table)
    out.print(Text("F to B: bytes kept from F until B; F to W and B to W likewise", "dim"))


def _work_json(work: OperatorWork, operator: Operator, made: Predicted) -> dict[str, int]:
    return {
        "flops": round(work.flops),
        "memory_bytes": round(work.memory_bytes),
        "link_bytes": round(work.link_bytes),
        "duration_ns": _duration_ns(work, operator, made),
    }


def _duration_ns(work: OperatorWork, operator: Operator, made: Predicted) -> int:
    return round(1e9 * duration_s(work, operator.engine, made.device, made.rates, element_bytes=made.setting.element_bytes))


def _cells(operator: Operator, made: Predicted) -> tuple[str, ...]:
    works = (operator.forward, operator.backward_input, operator.backward_weight)
    durations = (_duration_ns(work, operator, made) for work in works)
    sizes = (operator.kept_for_input_bytes, operator.kept_for_weight_bytes, operator.gradient_bytes)
    return (
        operator.name,
        f"{operator.forward.flops / 1e9:,.1f}" if operator.forward.flops else "–",
        *(format_bytes(round(size), 1) if size else "–" for size in (operator.forward.memory_bytes, operator.forward.link_bytes)),
        *(format_duration_ns(duration, 1) if duration else "–" for duration in durations),
        *(format_bytes(round(size), 1) if size else "–" for size in sizes),
        f"{round(operator.parameters):,}" if operator.parameters else "–",
    )
