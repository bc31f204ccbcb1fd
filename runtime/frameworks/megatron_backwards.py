"""B and W of Megatron's layers, where a plan has them apart.

Megatron's linear layers are one autograd function, which computes the gradients of its input and its weight in one backward. The
runtime runs such a function in B, and W only adds up what B has kept. So the same product is made here of functions whose backward
is B's or W's (`split_linear_layers`). The output is the same bit by bit. Where sequence parallelism gathers a layer's input, the
stage keeps its own part of it, as Megatron does, and W gathers it again.

Transformer Engine's layers have a W of their own where they were built with `delay_wgrad_compute`: their backward puts what the
weights' gradients need into a queue (`wgrad_store`), and `backward_dw` takes the oldest, computes, and sets `.grad` or adds to
`main_grad`. `Apart` calls it in W.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear, linear_with_frozen_weight
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.utils import prepare_input_tensors_for_wgrad_compute

from schedc.ir import WHOLE, Kind
from schedc.runtime.session.pipe import Pipe
from schedc.runtime.stage.splitting.halves import dealt
from schedc.runtime.stage.training import Training

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import nn

    from schedc.runtime.common.boundary import Value
    from schedc.runtime.common.program import Instruction
    from schedc.runtime.stage.batches import Microbatches
    from schedc.runtime.stage.losses import Losses


class Apart(Training):
    """B and W, where modules recompute in their backward, or delay their weights' gradients."""

    def __post_init__(self) -> None:
        """Look at the layers, too."""
        super().__post_init__()
        self._delayed: Mapping[int, Sequence[Any]] = {stage: delayed_layers([module]) for stage, module in self.stages.items()}
        self._due: dict[tuple[int, int], list[int]] = {}

    def begin(self, batch: Microbatches, losses: Losses, shares: Sequence[float] | None = None) -> None:
        """As `Training`; a step that has failed has left nothing in the queues."""
        self._due.clear()
        for layer in (layer for layers in self._delayed.values() for layer in layers):
            layer.wgrad_store.context.queue.clear()
        super().begin(batch, losses, shares)

    def run(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        """The op itself; what it gives to other stages.

        W computes as much as its microbatch has put into a layer's queue; of which microbatches is the same to their sum.
        """
        op = instruction.op
        if op.kind is Kind.F:
            return super().run(instruction, values)
        layers, key = self._delayed[op.stage], (op.stage, op.microbatch)
        before = [layer.wgrad_store.context.qsize() for layer in layers]
        with _recomputing():
            given = super().run(instruction, values)
        if op.kind is not Kind.W and instruction.first:
            self._due[key] = [layer.wgrad_store.context.qsize() - old for layer, old in zip(layers, before, strict=True)]
        if op.kind is not Kind.B:
            self._compute_due(instruction, layers, self._due[key])
            if instruction.last:
                del self._due[key]
        return given

    def _compute_due(self, instruction: Instruction, layers: Sequence[Any], due: list[int]) -> None:
        """The delayed gradients of a BW or a W, or of a part of one: layers are dealt to the parts by the size of their weights.

        One that adds to `main_grad` waits for the part in which autograd sets `.grad`, which Megatron's hook asks for and takes
        away. What is recomputed sets it in B, and W of another microbatch may have taken it away.
        """
        op, numbers = instruction.op, [*range(len(layers))]
        if op.kind is Kind.W and op.part != WHOLE:
            sizes = [sum(weight.numel() for weight in layer.parameters(recurse=False)) for layer in layers]
            until = dealt(sizes, self._shares[Kind.W, op.stage])[: op.part + 1]
            numbers = [number for part in until for number in part if instruction.last or not _without_grad(layers[number])]
        for number in numbers:
            layer = layers[number]
            rest, due[number] = layer.wgrad_store.context.qsize() - due[number], 0
            while layer.wgrad_store.context.qsize() > rest:
                for weight in _without_grad(layer):
                    weight.grad = weight.new_zeros(()).expand_as(weight)
                with _each_alone(_without_main_grad(layer)):  # a layer that runs twice has two of a microbatch
                    layer.backward_dw()


class ApartPipe(Pipe):
    """A pipe for them."""

    training = Apart


def delayed_layers(chunks: Iterable[nn.Module]) -> list[Any]:
    """The layers of Transformer Engine that leave their weights' gradients to `backward_dw`."""
    return [layer for chunk in chunks for layer in chunk.modules() if _delays(layer)]


def split_linear_layers(chunks: Iterable[nn.Module]) -> list[nn.Module]:
    """Let the linear layers of these chunks have backwards that can be split; which layers these are."""
    layers = [layer for chunk in chunks for layer in chunk.modules() if _can_be_split(layer)]
    for layer in layers:
        vars(layer)["_forward_impl"] = _product
    return layers


def layers_of_one_backward(chunks: Iterable[nn.Module]) -> list[str]:
    """The names of the layers that compute all their gradients in one backward, as `split_linear_layers` leaves them alone."""
    return [
        name
        for chunk in chunks
        for name, layer in chunk.named_modules()
        if not _delays(layer)
        and not _can_be_split(layer)
        and (
            isinstance(layer, (ColumnParallelLinear, RowParallelLinear))
            or any(kind.__module__.startswith("transformer_engine.") for kind in type(layer).__mro__)
        )
    ]


def _delays(layer: nn.Module) -> bool:
    store: Any = getattr(layer, "wgrad_store", None)
    return store is not None and bool(store.delay_wgrad_compute())


def _can_be_split(layer: nn.Module) -> bool:
    return any(
        isinstance(layer, kind) and type(layer)._forward_impl is kind._forward_impl
        for kind in (ColumnParallelLinear, RowParallelLinear)
    )


def _without_grad(layer: Any) -> list[nn.Parameter]:
    """The weights whose gradients have been added to `main_grad`, and that have no `.grad` to say so."""
    return [one for one in layer.parameters(recurse=False) if getattr(one, "grad_added_to_main_grad", False) and one.grad is None]


def _without_main_grad(layer: Any) -> list[nn.Parameter]:
    """The weights whose gradients are left in `.grad`."""
    return [weight for weight in layer.parameters(recurse=False) if not hasattr(weight, "main_grad")]


@contextmanager
def _each_alone(weights: Sequence[nn.Parameter]) -> Iterator[None]:
    """A context in which gradients of these weights are alone in `.grad`, which `backward_dw` sets."""
    kept = [(weight, weight.grad) for weight in weights if weight.grad is not None]
    for weight, _ in kept:
        weight.grad = None
    try:
        yield
    finally:
        for weight, gradient in kept:
            weight.grad = gradient if weight.grad is None else gradient.add_(weight.grad)


@contextmanager
def _recomputing() -> Iterator[None]:
    """A context in which modules may recompute in `torch.autograd.grad`.

    Megatron's and Transformer Engine's checkpoints refuse it, as they add the gradients of the weights within to `.grad` whatever
    is asked for. Here these are to be added.
    """
    with patch.object(torch.autograd, "_is_checkpoint_valid", lambda: True):
        yield


def _product(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    allreduce_dgrad: bool,
    sequence_parallel: bool = False,
    tp_group: Any = None,
    **others: Any,
) -> Any:
    """What the layers' `_forward_impl` gives."""
    if not weight.requires_grad:
        return linear_with_frozen_weight(
            input, weight, bias, allreduce_dgrad=allreduce_dgrad, sequence_parallel=sequence_parallel, tp_group=tp_group, **others
        )
    if sequence_parallel:
        product, weights = _GATHERED
        plain = [None if one is None else one.detach() for one in (weight, bias)]
        return product.apply(input, weights.apply(weight, bias, input.detach(), tp_group), *plain, tp_group)
    if allreduce_dgrad:
        input = copy_to_tensor_model_parallel_region(input, group=tp_group)
    output = torch.matmul(input, weight.t())
    return output if bias is None else output + bias


class _GatheredProduct(torch.autograd.Function):
    """The product of an input that is gathered. Its backward, in B, hands the output's gradient on to `weights`, which W runs."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weights: torch.Tensor, weight: torch.Tensor, bias: Any, group: Any) -> Any:
        ctx.save_for_backward(weight)
        ctx.group = group
        output = torch.matmul(gather_from_sequence_parallel_region(input, group=group), weight.t())
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        of_input = reduce_scatter_to_sequence_parallel_region(gradient.matmul(weight), group=ctx.group)
        return of_input, gradient, None, None, None


class _WeightsOfGathered(torch.autograd.Function):
    """Stands for the weights of a `_GatheredProduct`: gives what has no memory and the output's shape; its backward is W's work."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, bias: torch.Tensor | None, input: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.save_for_backward(input)
        ctx.group, ctx.has_bias = group, bias is not None
        length, *others = input.shape[:-1]
        return weight.new_empty(()).expand(length * group.size(), *others, weight.shape[0])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (part,) = ctx.saved_tensors
        whole = gather_from_sequence_parallel_region(part, group=ctx.group)
        gradient, whole = prepare_input_tensors_for_wgrad_compute(gradient, whole)
        return gradient.t().matmul(whole), gradient.sum(dim=0) if ctx.has_bias else None, None, None


_GATHERED: tuple[Any, Any] = _GatheredProduct, _WeightsOfGathered
