"""What stages hold that recompute: between F and its backward the input alone, from which the backward runs the forward again.

The Problem has one number for what a block holds from F to the end of B, and one for what it holds from there to the end of W. Both
are chosen so that no rank ever holds more than they say (cost model, "Recomputation").
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.problem import Stage

__all__ = ["as_recomputed"]


def as_recomputed(
    stages: Sequence[Stage], paths: Sequence[Sequence[int]], ranks: int, *, split_backward: bool
) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
    """The stages, those that recompute with what they hold; and what each rank must keep free besides, in bytes.

    A rank runs one op at a time, so it needs the activations of one recomputation at a time: of the stage where that is most.

    Args:
        stages: as if none recomputed, but for `recompute` and the durations.
        paths: the stages of each path.
        ranks: how many there are.
        split_backward: whether B and W may run apart; else nothing is held after a backward.
    """
    input_bytes = [0] * len(stages)
    for path in paths:
        for before, after in pairwise(path):
            input_bytes[after] = stages[before].message_bytes
    made: list[Stage] = []
    kept_free = [0] * ranks
    for stage, of_input in zip(stages, input_bytes, strict=True):
        if not stage.recompute:
            made.append(stage)
            continue
        after_input = stage.activation_after_input_bytes if split_backward else 0
        held = max(of_input, after_input)
        kept_free[stage.rank] = max(kept_free[stage.rank], of_input + stage.activation_bytes - held)
        made.append(replace(stage, activation_bytes=held, activation_after_input_bytes=after_input))
    return tuple(made), tuple(kept_free)
