"""What `compile --robust` and `family` print: what plans take in which state of the links, as a table or one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from schedc.formats.family_file import FAMILY
from schedc.io.location import one_line
from schedc.io.outputs import is_standard
from schedc.spelling import counted
from schedc.study.robust.scenarios import MEAN, percentile_of
from schedc.units import format_duration_ns
from schedc.view.terminal.results import certificate_lines, console, plain_table

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.study.robust.family import Made
    from schedc.study.robust.robust import OrderOutcome, Robust

PERCENTILES = (5, 25, 50, 75, 95, 100)


def print_robust(robust: Robust, output: Path) -> None:
    """The table and the certificate; on standard error where the plan is on standard output."""
    plan, stderr = robust.compiled.plan, is_standard(output)
    out, count = console(stderr=stderr), len(robust.states.conditions)
    objective = plan.problem.objective
    table = plain_table(f"{plan.name}: {objective} of one order in {counted(count, 'state')} of its links, each for a whole step")
    table.add_column("", no_wrap=True)
    for header in ("robust plan", "plan for the mean", "plan for the job's costs"):
        table.add_column(header, justify="right")
    columns = [_values(robust, outcome) for outcome in (robust.robust, robust.for_mean, robust.as_planned)]
    for row in columns[0]:
        table.add_row(row, *(format_duration_ns(round(column[row])) for column in columns))
    out.print(table)
    out.print(
        Text(
            f"{robust.aim.text} {format_duration_ns(round(robust.value_ns))}; no single order has less than"
            f" {format_duration_ns(round(robust.bound_ns))}: gap {robust.gap:.2%}"
        )
    )
    for line in certificate_lines(plan):
        out.print(Text(f"under the mean conditions, whose costs the plan has: {line}" if line.startswith(objective) else line))
    where = "standard output" if stderr else one_line(str(output))
    out.print(Text(f"written to {where} in {robust.compiled.seconds:.2f} s: {robust.compiled.ended}"))


def _values(robust: Robust, outcome: OrderOutcome) -> dict[str, float]:
    """By the name of the row."""
    ends, weights = outcome.ends_ns, robust.states.weights
    rows: dict[str, float] = {"at the job's costs": outcome.as_planned_ns, "at the mean of the states": outcome.mean_ns}
    rows["mean over the states"] = MEAN.of(ends, weights)
    names: dict[float, str] = {100: "the worst state", 50: "median"}
    shown = sorted({*PERCENTILES, robust.aim.percentile or 50})
    return rows | {names.get(each, f"percentile {each:g}"): percentile_of(ends, weights, each) for each in shown}


def robust_json(robust: Robust) -> dict[str, Any]:
    """The object `robust` of `compile --json`."""

    def outcome_json(outcome: OrderOutcome) -> dict[str, Any]:
        weights = robust.states.weights
        return {
            "as_planned_ns": outcome.as_planned_ns,
            "at_mean_ns": outcome.mean_ns,
            "mean_ns": MEAN.of(outcome.ends_ns, weights),
            "percentiles_ns": {str(each): percentile_of(outcome.ends_ns, weights, each) for each in PERCENTILES},
            "states_ns": list(outcome.ends_ns),
        }

    return {
        "aim": robust.aim.text,
        "value_ns": robust.value_ns,
        "lower_bound_ns": robust.bound_ns,
        "gap": robust.gap,
        "states": len(robust.states.conditions),
        "weights": list(robust.states.weights),
        "plan": outcome_json(robust.robust),
        "plan_for_mean": outcome_json(robust.for_mean),
        "plan_as_planned": outcome_json(robust.as_planned),
    }


def print_family(made: Made, folder: Path) -> None:
    """A line for each of the conditions."""
    family, out = made.family, console()
    table = plain_table(f"{family.name}: {counted(len(family.plans), 'plan')}, each timed under all conditions")
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
    kept = f", {counted(made.kept, 'plan')} kept" if made.kept else ""
    out.print(Text(f"written to {one_line(str(folder / FAMILY))}{kept}"))


def family_json(made: Made) -> dict[str, Any]:
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
