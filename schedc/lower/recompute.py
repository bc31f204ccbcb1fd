"""What stages hold that recompute: between F and its backward the input alone, from which the backward runs the forward again.

The backward takes all activations when it starts; what W still needs of them stays until W has ended (cost model, "Recomputation").
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.problem import Stage


def as_recomputed(stages: Sequence[Stage], paths: Sequence[Sequence[int]]) -> tuple[Stage, ...]:
    """The stages, those that recompute with what they hold, as if none did but for `recompute` and the durations before."""
    input_bytes = [0] * len(stages)
    for path in paths:
        for before, after in pairwise(path):
            input_bytes[after] = stages[before].message_bytes
    return tuple(
        replace(stage, activation_bytes=of_input, recomputed_bytes=stage.activation_bytes) if stage.recompute else stage
        for stage, of_input in zip(stages, input_bytes, strict=True)
    )
