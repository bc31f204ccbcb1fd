"""How far a schedule is from a lower bound: the one definition of the gap that all who show or compare it use.

The verifier does not: it computes a certificate's gap by itself.
"""

from __future__ import annotations

from schedc.errors import Defect


def check_bound(bound_ns: int, objective_ns: int, bound_by: str) -> None:
    """A lower bound is not above the objective of a schedule that it speaks of.

    Raises:
        Defect: it is.
    """
    if bound_ns > objective_ns:
        raise Defect(f"{bound_by}: the lower bound of {bound_ns} ns is above the objective of a known schedule, {objective_ns} ns")


def relative_gap(objective_ns: int, bound_ns: int, bound_by: str) -> float:
    """(objective − bound) / objective, from 0 (proven optimal) to 1; 0 where the objective is 0.

    Args:
        objective_ns: of a known schedule.
        bound_ns: a lower bound on it, at least 0.
        bound_by: whose bound it is.

    Raises:
        Defect: the bound is above the objective.
    """
    check_bound(bound_ns, objective_ns, bound_by)
    return (objective_ns - bound_ns) / objective_ns if objective_ns else 0.0
