"""Which loss of a step is not finite, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from schedc.runtime.common.failure import NonFiniteLoss

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def non_finite(losses: torch.Tensor, total: torch.Tensor, ending: Mapping[int, Sequence[int]], step: int) -> NonFiniteLoss:
    """What to raise for losses of which some are infinite or NaN, so that their mean is, too; it names the first.

    Args:
        losses: of all microbatches of this pipeline.
        total: their mean, or that of all pipelines.
        ending: of each rank that computes losses, the microbatches.
        step: the number of the step.
    """
    remedy = "zero the gradients, which hold this step's, before going on, or give load check_loss=False"
    finite = torch.isfinite(losses)
    if bool(finite.all()):
        return NonFiniteLoss(
            f"step {step}: the loss of another pipeline makes the mean over all pipelines {total.item()}; {remedy}"
        )
    wrong = [microbatch for microbatch, good in enumerate(finite.tolist()) if not good]
    (root,) = (rank for rank, microbatches in ending.items() if wrong[0] in microbatches)
    more = f" (and of {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return NonFiniteLoss(
        f"step {step}: the loss of microbatch {wrong[0]}{more}, computed on rank {root}, is {losses[wrong[0]].item()}; {remedy}"
    )
