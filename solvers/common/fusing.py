"""Fused and split backwards: where a problem can gain from mixing both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.index import tables_of
from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

__all__ = ["can_pay"]


def can_pay(problem: Problem) -> bool:
    """Whether some BW takes less time than its B and W together, and may be split.

    Elsewhere B followed by W at once does all that BW does, no later; or there is no choice.
    """
    if not problem.split_backward:
        return False
    duration_ns = tables_of(problem).duration_ns
    return bool((duration_ns[Kind.BW] < duration_ns[Kind.B] + duration_ns[Kind.W]).any())
