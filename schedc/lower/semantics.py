"""What the blocks of a stage cost in the runtime that is to execute the plan (`[pipeline] semantics`).

`schedc` has them as they are. `torch` (`torch.distributed.pipelining`, 2.13) cannot split every backward:

- **Its first stage does not split** (`stage.py`, `backward_one_chunk`): B there does nothing, and W is the whole backward, which
  takes what the fused one does.
- **Its B releases no activation**: it keeps the autograd graph for W (`_backward.py`, `stage_backward_input`, `retain_graph=True`),
  on every stage. So all of the activation is held until the end of W.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.problem import Stage


def as_torch_executes(stages: Sequence[Stage], first: int) -> tuple[Stage, ...]:
    """The stages with the costs that they have in torch; `first` is the first of the one path."""
    return tuple(
        replace(
            stage,
            activation_after_input_bytes=stage.activation_bytes,
            backward_input_ns=(0,) * len(stage.backward_ns) if index == first else stage.backward_input_ns,
            backward_weight_ns=stage.backward_ns if index == first else stage.backward_weight_ns,
        )
        for index, stage in enumerate(stages)
    )
