"""A plan for torchtitan without code of ours: its options, the modules of each stage, and a CSV that it loads.

Module names are those of its language models: `tok_embeddings`, `layers.i`, `norm`, then the head, `lm_head` (once `output`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.formats.layouts.model_layers import layers_of_stages
from schedc.formats.megatron_layout import ModelLayer
from schedc.formats.torch_csv.stage_map import torchtitan_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan


def modules_of_stages(plan: Plan, layers: Sequence[ModelLayer], head: str = "lm_head") -> list[list[str]]:
    """The names of the modules of each stage.

    Raises:
        Unsupported: the plan's stages do not have these layers, or torchtitan has no such layer.
    """
    modules, blocks = [], 0
    for stage in layers_of_stages(plan, layers):
        names = []
        for layer in stage:
            if layer is ModelLayer.FURTHER_TOKEN:
                raise Unsupported(f"{plan.name}: torchtitan's models have no module for further tokens")
            if layer is ModelLayer.BLOCK:
                names.append(f"layers.{blocks}")
                blocks += 1
            else:
                names += ["tok_embeddings"] if layer is ModelLayer.EMBEDDING else ["norm", head]
        modules.append(names)
    return modules


def torchtitan_lines(plan: Plan, layers: Sequence[ModelLayer], csv_name: str, head: str = "lm_head") -> str:
    """The options of torchtitan 0.3, one for each line, then the modules as a line of Python for its configuration, in a comment.

    Args:
        plan: one that torch can run.
        layers: what each of its model's layers is.
        csv_name: what `pipeline_parallel_schedule_csv` names.
        head: the name of the head's module.

    Raises:
        Unsupported: torchtitan cannot place the stages so, or has no such layers.
    """
    found = torchtitan_options(plan, csv_name, "compute_only")
    if found["options"] is None:
        raise Unsupported(f"{plan.name}: {found['why_not']}")
    modules = modules_of_stages(plan, layers, head)
    lines = (
        *found["options"],
        "--parallelism.pipeline_parallel_microbatch_size=1",
        f"--training.local_batch_size={plan.problem.microbatches}",
        "--training.disable_cuda_graphs",  # they and pipelines exclude each other
        f"# parallelism.module_fqns_per_model_part = {modules}",
        "# for larger microbatches multiply pipeline_parallel_microbatch_size and local_batch_size by the same number",
    )
    return "".join(f"{line}\n" for line in lines)
