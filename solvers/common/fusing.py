"""Fused and split backwards: where a problem can gain from mixing both, or from fusing all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.index import tables_of
from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def fusing_saves_time(problem: Problem) -> bool:
    """Whether some BW takes less time than its B and W together, and may be split.

    Elsewhere B followed by W at once does all that BW does, no later; or there is no choice.
    """
    if not problem.split_backward:
        return False
    duration_ns = tables_of(problem).duration_ns
    return bool((duration_ns[Kind.BW] < duration_ns[Kind.B] + duration_ns[Kind.W]).any())


def fusing_frees(problem: Problem) -> bool:
    """Whether some B leaves more held than it found, where memory is limited: W's, until W has run, where BW leaves nothing.

    W right behind B holds no more than BW does; but a method that leaves W for later, as most do, may find no more room.
    """
    return problem.split_backward and any(
        stage.activation_after_input_bytes > stage.activation_bytes and problem.memory_limit_bytes[stage.rank] is not None
        for stage in problem.stages
    )
