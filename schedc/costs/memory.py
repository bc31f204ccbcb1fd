"""What a device of a stage holds besides weights, gradients, optimizer state and what F keeps: buffers, and what B works with.

A backward goes through the operators from the last to the first. While one runs it holds what F kept for it and for those before
it, the gradients of its output and input, and in a block the gradient of the residual stream. What all of this is above the
activations of the whole microbatch is the stage's working set; it is there once for each rank, as one backward runs at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.costs.architecture import Setting
    from schedc.costs.layers import Part


class Besides(NamedTuple):
    """What a device of a stage holds."""

    buffers_bytes: int
    """For as long as it trains."""
    working_bytes: int
    """At the peak of a backward, above the activations of a microbatch."""
    moment: str
    """When that is: the operator whose backward runs; empty: nothing comes on top of the activations."""

    @property
    def total_bytes(self) -> int:
        """Both."""
        return self.buffers_bytes + self.working_bytes


def besides(parts: Sequence[Part], setting: Setting, hidden: int, *, split_backward: bool) -> Besides:
    """What a device holds besides for a stage of these layers, in the order of the forward.

    `hidden`: elements of the residual stream. With `split_backward` B keeps gradients for W.
    """
    residual = setting.own_tokens * hidden * setting.element_bytes
    held = sum(each.kept_for_input_bytes + each.kept_for_weight_bytes for part in parts for each in part.operators)
    whole = sum(max(*_kept(part, split_backward)) for part in parts)
    most, moment = 0.0, ""
    for part in reversed(parts):
        for operator in reversed(part.operators):
            above = held + operator.working_bytes + (residual if part.kind not in ("embedding", "head") else 0.0) - whole
            if above > most:
                most, moment = above, f"backward of {operator.name}, {part.name}"
            held -= operator.kept_for_input_bytes
            held += operator.gradient_bytes if split_backward else -operator.kept_for_weight_bytes
    return Besides(buffers_bytes=_buffers_bytes(parts, setting), working_bytes=round(most), moment=moment)


def _kept(part: Part, split_backward: bool) -> tuple[float, float]:
    """Of a layer: behind F, and behind B."""
    kept = sum(each.kept_for_input_bytes + each.kept_for_weight_bytes for each in part.operators)
    after = sum(each.kept_for_weight_bytes + each.gradient_bytes for each in part.operators)
    return kept, after if split_backward else 0.0


def _buffers_bytes(parts: Sequence[Part], setting: Setting) -> int:
    """Of Transformer Engine; nothing without it. The head's matrix is not Transformer Engine's.

    Where products add to the sum of gradients, autograd gets an empty gradient, of which one for each shape of a weight stays
    (`get_dummy_wgrad`, module/base.py).
    """
    if not setting.is_megatron:
        return 0
    shapes = {
        (each.shape.inner, each.shape.outer)
        for part in parts
        if part.kind != "head"
        for each in part.operators
        if each.shape is not None and each.parameters
    }
    return round(sum(inner * outer for inner, outer in shapes) * setting.element_bytes)
