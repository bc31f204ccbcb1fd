"""A family of plans at work: the best of them for what links and ranks cost at the time, without a solver.

    made = load_family("family")
    path = made.propose(pipe.plan, conditions)               # None: nothing in the family is better
    if path is not None:
        pipe.swap(path)                                      # on every rank, at the same step

Each plan of the family is timed by the simulator under the conditions, so conditions that nobody thought of have an answer, too:
the table in family.json has only those that the plans were made for. It takes some milliseconds for each plan, and the same
conditions give the same path on every rank: a monitor knows those of its own rank alone, so the job gathers them first. When a move
pays is for the caller to say (`Hysteresis`). `adapting(pipe, monitor, known="family")` does all of this for a job.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import CheckFailed, InvalidInput
from schedc.formats.family_file import FAMILY, Family, read_family
from schedc.formats.plan.plan_file import parse_plan
from schedc.io.input_file import MOST_BYTES, read_bytes
from schedc.io.location import one_line
from schedc.ir import Conditions, Plan
from schedc.lower.problem import problem_under
from schedc.verify.plan.checks import verify_plan
from schedc.verify.problem import check_costs, check_pipeline, verify_problem


@dataclass(frozen=True, slots=True)
class LoadedFamily:
    """The table and the plans of a folder."""

    folder: Path
    family: Family
    plans: tuple[Plan, ...]

    def for_job(self, plan: Plan) -> tuple[Plan, ...]:
        """The plans, verified, for a job that was loaded with this plan: nothing but their links differs from what it says.

        Raises:
            InvalidInput: the family is another job's.
            CheckFailed: a plan breaks a rule.
        """
        for entry, each in zip(self.family.plans, self.plans, strict=True):
            path = one_line(str(self.folder / entry.path))
            alike = replace(plan.problem, links=each.problem.links)
            if others := check_pipeline(each, alike) or check_costs(each, alike):
                raise InvalidInput(
                    f"{path}: {others[0].place}: found a plan of another job, expected one of that of plan {plan.name!r}:"
                    f" {others[0].message}, with schedc family"
                )
            if violations := verify_plan(each):
                raise CheckFailed(f"{path}: {violations[0]}")
        return self.plans

    def propose(self, plan: Plan, conditions: Conditions | None) -> Path | None:
        """The file of the best plan under the conditions; None where none is better than the plan that runs.

        Args:
            plan: the one that runs; of the family's stages.
            conditions: what differs from the costs of the family's first plan, the job's; None: nothing has been measured.

        Raises:
            InvalidInput: the plan has other stages, or the conditions make a problem that nobody can plan for.
        """
        if conditions is None:
            return None
        problem = problem_under(self.plans[0].problem, conditions)
        if violations := verify_problem(problem) or check_pipeline(plan, problem):
            raise InvalidInput(f"{one_line(str(self.folder))}: {violations[0]}")
        values_ns = [simulate(problem, each.schedule()).objective_ns(problem.objective) for each in (*self.plans, plan)]
        best = values_ns.index(min(values_ns[:-1]))  # the first of equal ones; the plans' own costs count for nothing
        return self.folder / self.family.plans[best].path if values_ns[best] < values_ns[-1] else None


def load_family(folder: Path | str) -> LoadedFamily:
    """The family that `schedc family` has written into the folder.

    Raises:
        InvalidInput: a file cannot be read or is not what it should be; a plan is another one than the table says.
    """
    folder = Path(folder)
    family = read_family(folder / FAMILY)
    plans: list[Plan] = []
    for entry in family.plans:
        path = folder / entry.path
        content = read_bytes(path, MOST_BYTES)
        found = hashlib.sha256(content).hexdigest()
        if found != entry.sha256:
            raise InvalidInput(
                f"{one_line(str(path))}: found a file with the sha256 {found[:12]}…, expected {entry.sha256[:12]}…, as"
                f" {FAMILY} says; run schedc family again"
            )
        plan = parse_plan(content, str(path))
        if plans and (violations := check_pipeline(plan, plans[0].problem)):
            raise InvalidInput(f"{one_line(str(path))}: {violations[0]}")
        plans.append(plan)
    return LoadedFamily(folder, family, tuple(plans))
