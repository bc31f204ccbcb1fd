"""Each microbatch's share of the step's loss and gradients, where losses are averaged by tokens or scaled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.runtime.common.hooks import ReplicaHooks

Weights: TypeAlias = "Sequence[float] | torch.Tensor"
"""A number for each microbatch of a pipeline."""


class Shares(NamedTuple):
    """The factors of the microbatches' losses."""

    losses: tuple[float, ...]
    """In the loss of this pipeline, of which the mean over the pipelines is the step's."""
    gradients: tuple[float, ...]
    """In what this pipeline differentiates; the gradients are summed over the pipelines."""
    way: tuple[float, float]
    """What the losses are divided by, and the scale: both are to be the same wherever losses are computed."""


def check_weights(weights: Weights | None, divide_by: float | None, scale: float, rank: int, microbatches: int) -> None:
    """Refuse numbers that make no sense; as `weigh`.

    Raises:
        InvalidInput: says which.
    """
    try:
        given = [1.0] * microbatches if weights is None else [float(weight) for weight in weights]
        scale, divide_by = float(scale), None if divide_by is None else float(divide_by)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"rank {rank}: weights, divide_by or scale: {error}; expected numbers, of weights a list") from error
    if len(given) != microbatches:
        raise InvalidInput(f"rank {rank}: {len(given)} weights were given, the plan has {microbatches} microbatches")
    wrong = next((weight for weight in given if not (math.isfinite(weight) and weight >= 0)), None)
    if wrong is not None:
        raise InvalidInput(f"rank {rank}: a microbatch has the weight {wrong:g}; expected a finite number, 0 or more")
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidInput(f"rank {rank}: scale is {scale:g}; expected a finite number above 0")
    if divide_by is not None and not (math.isfinite(divide_by) and divide_by > 0):
        raise InvalidInput(f"rank {rank}: divide_by is {float(divide_by):g}; expected a finite number above 0 to divide by")


def weigh(
    weights: Weights | None,
    divide_by: float | None,
    scale: float,
    rank: int,
    microbatches: int,
    hooks: ReplicaHooks,
) -> Shares:
    """The shares, on a rank with a last stage, of what `check_weights` has let pass.

    No weights: 1 each. The weighted sum of all losses of all pipelines is divided by `divide_by`; None: by the sum of all weights.
    `scale` is of the gradients.

    Raises:
        InvalidInput: the weights of all pipelines are 0.
        TransferFailed: another pipeline is lost, or gives no weights.
    """
    given = [1.0] * microbatches if weights is None else [float(weight) for weight in weights]
    count = hooks.pipelines
    if divide_by is not None:
        total = float(divide_by)
    elif weights is None:
        total = float(microbatches * count)
    else:
        total = float(hooks.total(torch.tensor(math.fsum(given), dtype=torch.float64, device="cpu")))
    if total == 0:
        raise InvalidInput(f"rank {rank}: the weights of all microbatches are 0; expected a finite number above 0 to divide by")
    return Shares(
        losses=tuple(weight * count / total for weight in given),
        gradients=tuple(weight * scale / total for weight in given),
        way=(total, scale),
    )
