"""A plan's layout as options of Megatron-LM, whose stages are on the ranks in a loop. Megatron decides the order of ops itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.formats.layouts.model_layers import layers_of_stages
from schedc.formats.megatron_layout import ModelLayer, format_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan

_NAMES = {
    ModelLayer.EMBEDDING: "embedding",
    ModelLayer.BLOCK: "decoder",
    ModelLayer.FURTHER_TOKEN: "mtp",
    ModelLayer.HEAD: "loss",
}
"""What layers are called in the list form."""


def megatron_options(plan: Plan, layers: Sequence[ModelLayer]) -> str:
    """The options of Megatron-LM for a plan's layout, one for each line, then the layout as a list in a comment.

    Args:
        plan: the plan.
        layers: what each of its model's layers is.

    Raises:
        Unsupported: Megatron cannot express the layout; says why.
    """
    problem = plan.problem
    stages = layers_of_stages(plan, layers)
    if [stage.rank for stage in problem.stages] != [index % problem.ranks for index in range(len(stages))]:
        why = f"the placement is {problem.placement}, and Megatron's stages are on the ranks in a loop"
        raise Unsupported(f"{plan.name}: Megatron cannot express this layout: {why}; compile with placement unidirectional or loop")
    if len(stages) % problem.ranks:
        raise Unsupported(f"{plan.name}: {len(stages)} stages are not a multiple of {problem.ranks} ranks, as Megatron needs them")
    if sum(ModelLayer.FURTHER_TOKEN in stage for stage in stages) > 1:
        why = "its modules for further tokens are in several stages, and Megatron has all of them in one"
        raise Unsupported(f"{plan.name}: Megatron cannot express this layout: {why}")
    named = [[_NAMES[layer] for layer in stage] for stage in stages]
    return (
        f"--pipeline-model-parallel-size {problem.ranks}\n"
        f"--pipeline-model-parallel-layout '{format_layout(stages)}'\n"
        f"# as a list: pipeline_model_parallel_layout = {named}\n"
    )
