"""Layers in a row as one stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from schedc.runtime.common.boundary import tensors_of
from schedc.runtime.stage.named import taken_by

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


class Layers(nn.Sequential):
    """Layers in a row as one stage: each takes the tensors that the one before gives, as one stage those of another."""

    ties_of_ranks: Mapping[str, str]
    """For `load`. Of weights that layers of other ranks share: the name here by that in the whole model, the same on all ranks."""
    layers_of_model: tuple[str, ...]
    """For `load`. What each layer of the list is that `build_stages` was given."""

    def forward(self, *values: torch.Tensor, **kwargs: Any) -> object:
        """What the last layer gives; each gets those of `kwargs` that it takes."""
        *before, last = self
        for layer in before:
            values = tensors_of(layer(*values, **taken_by(layer, kwargs)), "what a layer gives")
        return last(*values, **taken_by(last, kwargs))
