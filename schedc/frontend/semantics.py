"""`[pipeline] semantics`: the stages' costs as the runtime that is to execute the plan really has them.

Takes the stages that the profile says; gives them as they are for `schedc`, and for `torch` (`torch.distributed.pipelining`, 2.13)
with what its split backward cannot do:

- **Its first stage does not split** (`stage.py`, `backward_one_chunk`): B there does nothing, and W is the whole backward, which
  takes what the fused one does.
- **Its B releases no activation**: it keeps the autograd graph for W (`_backward.py`, `stage_backward_input`, `retain_graph=True`),
  on every stage. So all of the activation is held until the end of W.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.files.location import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.files.location import Location
    from schedc.frontend.job_file import PipelineSection
    from schedc.frontend.placement import Placed
    from schedc.ir.problem import Stage

__all__ = ["as_executed"]


def as_executed(stages: Sequence[Stage], pipeline: PipelineSection, placed: Placed, location: Location) -> tuple[Stage, ...]:
    """The stages with the costs that they have under the job's `semantics`; `location` is the place of that key.

    Raises:
        InvalidInput: the runtime cannot execute the placement.
    """
    if pipeline.semantics == "schedc":
        return tuple(stages)
    if len(placed.paths) > 1:
        raise location.refuse(
            f'"torch" where pipeline.placement is {show(pipeline.placement)}',
            "a placement with one path, as torch's stages form one chain",
        )
    first = placed.paths[0][0]
    return tuple(
        replace(
            stage,
            activation_after_input_bytes=stage.activation_bytes,
            backward_input_ns=(0,) * len(stage.backward_ns) if index == first else stage.backward_input_ns,
            backward_weight_ns=stage.backward_ns if index == first else stage.backward_weight_ns,
        )
        for index, stage in enumerate(stages)
    )
