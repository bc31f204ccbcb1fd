"""Megatron's linear layers with backwards that can be split.

They are one autograd function, which computes the gradients of its input and its weight in one backward. The runtime runs such a
function in B, and W only adds up what B has kept. Where a plan has B and W apart, the same product is made here of functions of
PyTorch's own, so that W computes the weights' gradients. The output is the same bit by bit.

Where sequence parallelism gathers a layer's input, the function gathers it once more in the backward; functions of PyTorch's own
would keep all of it. Such layers stay what they are, as do those of Transformer Engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear, linear_with_frozen_weight
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn


def split_linear_layers(chunks: Iterable[nn.Module]) -> list[nn.Module]:
    """Let the linear layers of these chunks have backwards that can be split; which layers these are."""
    layers = [layer for chunk in chunks for layer in chunk.modules() if _can_be_split(layer)]
    for layer in layers:
        layer._forward_impl = _product  # type: ignore[assignment]
    return layers


def join_linear_layers(layers: Iterable[nn.Module]) -> None:
    """Give such layers back what they were."""
    for layer in layers:
        vars(layer).pop("_forward_impl", None)


def layers_of_one_backward(chunks: Iterable[nn.Module]) -> list[str]:
    """The names of the layers that compute all their gradients in one backward, as `split_linear_layers` leaves them alone."""
    return [
        name
        for chunk in chunks
        for name, layer in chunk.named_modules()
        if any(kind.__module__.startswith("transformer_engine.") for kind in type(layer).__mro__)
        or (isinstance(layer, (ColumnParallelLinear, RowParallelLinear)) and not _can_be_split(layer))
    ]


def _can_be_split(layer: nn.Module) -> bool:
    if isinstance(layer, ColumnParallelLinear):
        gathers = layer.sequence_parallel and not layer.explicit_expert_comm
        return type(layer)._forward_impl is ColumnParallelLinear._forward_impl and not gathers
    return isinstance(layer, RowParallelLinear) and type(layer)._forward_impl is RowParallelLinear._forward_impl


def _product(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    allreduce_dgrad: bool,
    tp_group: Any = None,
    **others: Any,
) -> Any:
    """What the layers' `_forward_impl` gives."""
    if not weight.requires_grad:
        return linear_with_frozen_weight(input, weight, bias, allreduce_dgrad=allreduce_dgrad, tp_group=tp_group, **others)
    if allreduce_dgrad:
        input = copy_to_tensor_model_parallel_region(input, group=tp_group)
    output = torch.matmul(input, weight.t())
    return output if bias is None else output + bias
