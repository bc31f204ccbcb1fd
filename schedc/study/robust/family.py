"""A family of plans: one for each of several conditions, each timed under all of them.

The folder gets the plans as they are made and, at the end, the table. A plan of the folder that is already the job's, for the same
conditions, is kept, so an interrupted run is resumed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.compile.certify import check_plan
from schedc.compile.driver import compile_problem
from schedc.formats.family_file import FAMILY, Family, FamilyPlan, family_json
from schedc.formats.plan.plan_file import plan_json, read_plan
from schedc.io.outputs import write_atomically
from schedc.ir import AS_PLANNED, Conditions, Plan, Problem
from schedc.lower.problem import checked_under
from schedc.study.robust.robust import ends_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from schedc.solvers.common.base import SearchSettings
    from schedc.solvers.common.incumbent import Failure

AS_PLANNED_NAME = "as planned"
FILE = "plan-{}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A family, its plans, and how they came to be."""

    family: Family
    plans: tuple[Plan, ...]
    kept: int
    """How many plans were in the folder."""
    failures: tuple[Failure, ...]


def with_as_planned(conditions: Sequence[tuple[str, Conditions]]) -> list[tuple[str, Conditions]]:
    """The conditions after those of the job, each once, the first of equal ones."""
    found: list[tuple[str, Conditions]] = [(AS_PLANNED_NAME, AS_PLANNED)]
    for name, each in conditions:
        if all(each != other for _, other in found):
            found.append((name, each))
    return found


def compile_family(
    problem: Problem,
    conditions: Sequence[tuple[str, Conditions]],
    folder: Path,
    *,
    settings: SearchSettings | None = None,
    job_sha256: str = "",
    on_plan: Callable[[int, str], None] = lambda _number, _name: None,
) -> Made:
    """Make the plans and the table, and write them into the folder.

    The first conditions are those of the job (`with_as_planned`); the settings are of each search; `on_plan` is called before each
    plan with its number and the name of its conditions.

    Raises:
        InvalidInput: under one of the conditions the problem contradicts itself, or a file cannot be written.
        Infeasible, NoPlanFound, Defect: as `compile_problem`.
    """
    problems = [checked_under(problem, each, f"under {name}") for name, each in conditions]
    plans: list[Plan] = []
    failures: list[Failure] = []
    kept = 0
    for number, ((name, _), each) in enumerate(zip(conditions, problems, strict=True)):
        path = folder / FILE.format(number)
        if path.exists():  # of an earlier run, perhaps for something else
            plan = read_plan(path)
            is_ours = plan.problem == each and plan.made_by.job_sha256 == job_sha256 and not check_plan(plan)
            # One written by hand or by another version is not kept: the table has the digest of these bytes.
            if is_ours and path.read_bytes() == plan_json(plan):
                kept += 1
                plans.append(plan)
                continue
        on_plan(number, name)
        compiled = compile_problem(each, settings, job_sha256=job_sha256)
        failures += compiled.failures
        write_atomically(path, plan_json(compiled.plan))
        plans.append(compiled.plan)
    family = Family(
        name=problem.name,
        job_sha256=job_sha256,
        objective=problem.objective,
        conditions=tuple(conditions),
        plans=tuple(
            FamilyPlan(
                path=FILE.format(number),
                sha256=hashlib.sha256(plan_json(plan)).hexdigest(),
                objective_ns=ends_of(problems, plan.schedule()),
            )
            for number, plan in enumerate(plans)
        ),
    )
    write_atomically(folder / FAMILY, family_json(family))
    return Made(family=family, plans=tuple(plans), kept=kept, failures=tuple(failures))
