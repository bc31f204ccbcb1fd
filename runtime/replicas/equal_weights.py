"""Whether stages that hold the same weights start with equal ones, by digests that their ranks exchange."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from schedc.errors import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

__all__ = ["check_equal", "weights_digest"]


def weights_digest(stage: nn.Module) -> str:
    """A digest of the stage's parameters, in their order: types, shapes and values."""
    digest = hashlib.sha256()
    for parameter in stage.parameters():
        digest.update(f"{parameter.dtype} {tuple(parameter.shape)} {parameter.requires_grad}\n".encode())
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_equal(replicas: Sequence[Sequence[int]], digests: Mapping[int, str]) -> None:
    """Refuse replicas that do not start equal.

    Args:
        replicas: the sets of stages with the same weights.
        digests: of each of these stages.

    Raises:
        CheckFailed: names the first two that differ.
    """
    for first, *others in replicas:
        for other in others:
            if digests[first] != digests[other]:
                raise CheckFailed(
                    f"stages {first} and {other} are replicas, but their weights differ;"
                    " build both from the same seed or checkpoint"
                )
