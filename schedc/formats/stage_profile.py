"""A problem's stages as a profile.json, exactly: one layer for each stage, in the order of the forward.

The front end reads it: a job with this profile and the same placement gets stages
with exactly these costs.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from schedc.formats.profile_file import LayerEntry, profile_json
from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from schedc.ir.problem import Problem, Stage


def stage_profile_json(problem: Problem) -> bytes:
    """The file's bytes; they end with a newline.

    A stage whose microbatches differ gets the median; one that recomputes, the most that it holds between its blocks. Of a
    bidirectional placement's two stages of one piece, the one on the first path counts. Where no backward may be split and the
    problem has no W, nothing is known of B and W apart, and the file says so.
    """
    layers = [_layer(problem.stages[stage], stage, problem.split_backward) for stage in problem.paths[0]]
    return profile_json(layers, model=problem.name, exact=True).encode()


def _layer(stage: Stage, number: int, split: bool) -> LayerEntry:
    time_ns = {kind: round(median(stage.durations_ns(kind))) for kind in Kind}
    is_fused = not split and not any(stage.backward_weight_ns)
    is_sum = time_ns[Kind.BW] == time_ns[Kind.B] + time_ns[Kind.W]
    layers = "" if stage.layers is None else f", layers {stage.layers[0]} to {stage.layers[1] - 1}"
    return LayerEntry(
        name=f"stage {number}{layers}",
        parameters=stage.parameters or None,
        expert_parameters=stage.expert_parameters or None,
        forward_ns=time_ns[Kind.F],
        backward_input_ns=None if is_fused else time_ns[Kind.B],
        backward_weight_ns=None if is_fused else time_ns[Kind.W],
        backward_ns=None if is_sum and not is_fused else time_ns[Kind.BW],
        activation_bytes=max(stage.activation_bytes, stage.activation_after_input_bytes),
        activation_after_input_bytes=None if is_fused else stage.activation_after_input_bytes,
        message_bytes=stage.message_bytes,
        gradient_message_bytes=None if stage.gradient_message_bytes == stage.message_bytes else stage.gradient_message_bytes,
    )
