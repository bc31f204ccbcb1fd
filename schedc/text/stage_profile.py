"""A problem's stages as a profile.json, exactly: one layer for each stage, in the order of the forward.

The front end reads it (`schedc.frontend.profile_file` has the format): a job with this profile and the same placement gets stages
with exactly these costs.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from schedc.files.atomic_write import write_atomically
from schedc.files.pretty_json import pretty_json
from schedc.ir.ops import Kind
from schedc.units import format_bytes, format_duration_ns, parse_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.files.pretty_json import JsonValue
    from schedc.ir.problem import Problem, Stage

__all__ = ["stage_profile_json", "write_stage_profile"]


def stage_profile_json(problem: Problem) -> bytes:
    """The file's bytes; they end with a newline.

    A stage whose microbatches differ gets the median. Of a bidirectional placement's two stages of one piece, the one on the first
    path counts.
    """
    layers: list[JsonValue] = [_layer(problem.stages[stage], stage) for stage in problem.paths[0]]
    return pretty_json({"format": "schedc.profile", "version": 1, "model": problem.name, "layers": layers}).encode()


def write_stage_profile(problem: Problem, path: Path | str) -> None:
    """Write the file, whole or not at all.

    Raises:
        InvalidInput: the directory does not exist, or the file cannot be written.
    """
    write_atomically(path, stage_profile_json(problem))


def _layer(stage: Stage, number: int) -> dict[str, JsonValue]:
    time_ns = {kind: round(median(stage.durations_ns(kind))) for kind in Kind}
    layers = "" if stage.layers is None else f", layers {stage.layers[0]} to {stage.layers[1] - 1}"
    layer: dict[str, JsonValue] = {
        "name": f"stage {number}{layers}",
        "forward": _exact_time(time_ns[Kind.F]),
        "backward_input": _exact_time(time_ns[Kind.B]),
        "backward_weight": _exact_time(time_ns[Kind.W]),
    }
    if time_ns[Kind.BW] != time_ns[Kind.B] + time_ns[Kind.W]:
        layer["backward"] = _exact_time(time_ns[Kind.BW])
    layer |= {
        "activation": _exact_size(stage.activation_bytes),
        "activation_after_input": _exact_size(stage.activation_after_input_bytes),
        "message": _exact_size(stage.message_bytes),
    }
    if stage.gradient_message_bytes != stage.message_bytes:
        layer["gradient_message"] = _exact_size(stage.gradient_message_bytes)
    return layer


def _exact_time(duration_ns: int) -> str:
    return format_duration_ns(duration_ns, 9)


def _exact_size(size_bytes: int) -> str:
    """In the largest unit that needs no more than three digits after the point, so that people can read it."""
    text = format_bytes(size_bytes)
    return text if parse_bytes(text) == size_bytes else f"{size_bytes} B"
