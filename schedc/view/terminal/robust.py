"""What `compile --robust` and `family` show: what plans take in which state of the links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.formats.family_file import FAMILY
from schedc.spelling import counted
from schedc.study.robust.scenarios import MEAN, percentile_of
from schedc.units import format_duration_ns
from schedc.view.document import Block, Column, Table, right
from schedc.view.terminal.results import certificate_lines, failures_json, written_to
from schedc.view.terminal.show import picked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schedc.study.robust.family import Made
    from schedc.study.robust.robust import OrderOutcome, Robust

PERCENTILES = (5, 25, 50, 75, 95, 100)
_NAMES = {100.0: "the worst state", 50.0: "median"}


def shown_robust(robust: Robust, output: Path) -> Iterator[Block]:
    """The table of three orders in the states, and the certificate."""
    plan = robust.compiled.plan
    objective, states = plan.problem.objective, counted(len(robust.states.conditions), "state")
    columns = [_values(robust, outcome) for outcome in (robust.robust, robust.for_mean, robust.as_planned)]
    yield Table(
        title=f"{plan.name}: {objective} of one order in {states} of its links, each for a whole step",
        columns=[Column("", wrap="never"), *right("robust plan", "plan for the mean", "plan for the job's costs")],
        rows=[(row, *(format_duration_ns(round(column[row])) for column in columns)) for row in columns[0]],
    )
    value, bound = (format_duration_ns(round(ns)) for ns in (robust.value_ns, robust.bound_ns))
    yield f"{robust.aim.text} {value}; no single order has less than {bound}: gap {robust.gap:.2%}"
    for line in certificate_lines(plan):
        yield f"under the mean conditions, whose costs the plan has: {line}" if line.startswith(objective) else line
    yield f"{written_to(output)} in {robust.compiled.seconds:.2f} s: {robust.compiled.ended}"


def _values(robust: Robust, outcome: OrderOutcome) -> dict[str, float]:
    """By the name of the row."""
    ends, weights = outcome.ends_ns, robust.states.weights
    rows: dict[str, float] = {"at the job's costs": outcome.as_planned_ns, "at the mean of the states": outcome.mean_ns}
    rows["mean over the states"] = MEAN.of(ends, weights)
    shown = sorted({*PERCENTILES, robust.aim.percentile or 50})
    return rows | {_NAMES.get(each, f"percentile {each:g}"): percentile_of(ends, weights, each) for each in shown}


def robust_json(robust: Robust) -> dict[str, Any]:
    """The object `robust` of `compile --json`."""
    weights = robust.states.weights

    def outcome_json(outcome: OrderOutcome) -> dict[str, Any]:
        return {
            "as_planned_ns": outcome.as_planned_ns,
            "at_mean_ns": outcome.mean_ns,
            "mean_ns": MEAN.of(outcome.ends_ns, weights),
            "percentiles_ns": {str(each): percentile_of(outcome.ends_ns, weights, each) for each in PERCENTILES},
            "states_ns": outcome.ends_ns,
        }

    return {
        "aim": robust.aim.text,
        "lower_bound_ns": robust.bound_ns,
        **picked(robust, "value_ns gap"),
        "states": len(robust.states.conditions),
        "weights": weights,
        "plan": outcome_json(robust.robust),
        "plan_for_mean": outcome_json(robust.for_mean),
        "plan_as_planned": outcome_json(robust.as_planned),
    }


def shown_family(made: Made, folder: Path) -> Iterator[Block]:
    """A row for each of the conditions."""
    family, rows = made.family, []
    for number, (name, _) in enumerate(family.conditions):
        best = family.best(number)
        least_ns, planned_ns = (family.plans[plan].objective_ns[number] for plan in (best, 0))
        gap = 1 - made.plans[number].certificate.lower_bound_ns / max(1, least_ns)
        longer = planned_ns / max(1, least_ns) - 1
        rows.append((name, format_duration_ns(least_ns), f"{gap:.2%}", f"{longer:+.2%}", family.plans[best].path))
    title = f"{family.name}: {counted(len(family.plans), 'plan')}, each timed under all conditions"
    numbers = right(family.objective, "gap", "as planned takes", "best plan")
    yield Table(title=title, columns=[Column("conditions", wrap="never"), *numbers], rows=rows)
    yield written_to(folder / FAMILY) + (f", {counted(made.kept, 'plan')} kept" if made.kept else "")


def family_json(made: Made) -> dict[str, Any]:
    """The object of `family --json`."""
    family, conditions = made.family, []
    for number, (name, _) in enumerate(family.conditions):
        best = family.best(number)
        conditions.append(
            {
                "name": name,
                "best": best,
                "path": family.plans[best].path,
                "objective_ns": family.plans[best].objective_ns[number],
                "lower_bound_ns": made.plans[number].certificate.lower_bound_ns,
                "as_planned_ns": family.plans[0].objective_ns[number],
            }
        )
    return {"kept": made.kept, "conditions": conditions, "failures": failures_json(made.failures)}
