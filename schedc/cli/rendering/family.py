"""What `schedc family` prints: of each of the conditions, its plan and the best one; or one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from schedc.cli.rendering.results import console, plain_table
from schedc.files.location import one_line
from schedc.text.family_file import FAMILY
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.prepared.family import Made

__all__ = ["family_lines", "print_family"]


def print_family(made: Made, folder: Path) -> None:
    """A line for each of the conditions."""
    family, out = made.family, console()
    table = plain_table(f"{family.name}: {len(family.plans)} plans, each timed under all conditions")
    table.add_column("conditions", no_wrap=True)
    for header in (str(family.objective), "gap", "as planned takes", "best plan"):
        table.add_column(header, justify="right")
    for number, (name, _) in enumerate(family.conditions):
        best = family.best(number)
        least_ns, planned_ns = (family.plans[plan].objective_ns[number] for plan in (best, 0))
        table.add_row(
            name,
            format_duration_ns(least_ns),
            f"{1 - made.plans[number].certificate.lower_bound_ns / max(1, least_ns):.2%}",
            f"{planned_ns / max(1, least_ns) - 1:+.2%}",
            family.plans[best].path,
        )
    out.print(table)
    kept = f", {made.kept} plans kept" if made.kept else ""
    out.print(Text(f"written to {one_line(str(folder / FAMILY))}{kept}"))


def family_lines(made: Made) -> dict[str, Any]:
    """The object of `family --json`."""
    family = made.family
    return {
        "kept": made.kept,
        "conditions": [
            {
                "name": name,
                "best": family.best(number),
                "path": family.plans[family.best(number)].path,
                "objective_ns": family.plans[family.best(number)].objective_ns[number],
                "lower_bound_ns": made.plans[number].certificate.lower_bound_ns,
                "as_planned_ns": family.plans[0].objective_ns[number],
            }
            for number, (name, _) in enumerate(family.conditions)
        ],
        "failures": [
            {"method": failure.method, "error": failure.error, "message": failure.message, "place": failure.place}
            for failure in made.failures
        ],
    }
