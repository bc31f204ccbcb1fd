"""The Family: plans made before for a set of conditions, and what each takes under every one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedc.ir.conditions import Conditions
    from schedc.ir.problem import Objective

__all__ = ["Family", "FamilyPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyPlan:
    """One of the plans."""

    path: str
    """Of its file, relative to the family's."""
    sha256: str
    """Of its file."""
    objective_ns: tuple[int, ...]
    """Under each of the conditions, by the simulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A plan for each of several conditions: the first of both is for the job's own costs."""

    name: str
    """The job's."""
    job_sha256: str
    objective: Objective
    conditions: tuple[tuple[str, Conditions], ...]
    """By name; what differs from the job's costs."""
    plans: tuple[FamilyPlan, ...]
    """Made for the conditions, in their order."""

    def __post_init__(self) -> None:
        """Refuse a table with holes."""
        count = len(self.conditions)
        if not count or len(self.plans) != count or any(len(plan.objective_ns) != count for plan in self.plans):
            raise ValueError(f"expected a plan for each of {count} conditions, with an objective under each")

    def best(self, condition: int) -> int:
        """The plan that takes least under this one of the conditions; of equal ones the one made for it, then the first."""
        return min(range(len(self.plans)), key=lambda plan: (self.plans[plan].objective_ns[condition], plan != condition))
