"""A chunk of a Megatron model as a stage of the runtime: each forward is one call of Megatron's own `forward_step`.

Megatron's linear layers are one autograd function, which computes the gradients of its input and its weight in one backward. The
runtime runs such a function in B, and W only adds up what B has kept. Where a plan has B and W apart, the same product is made here
of functions of PyTorch's own, so that W computes the weights' gradients (`split_linear_layers`). The output is the same bit by bit.
Where sequence parallelism gathers a layer's input, the function gathers it once more in the backward; functions of PyTorch's own
would keep all of it. Such layers stay what they are, as do those of Transformer Engine.

Where Megatron recomputes by itself, no backward can be split: a `FusedPipe` runs a plan that has B and W apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.pipeline_parallel.schedules import check_first_val_step, forward_step
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear, linear_with_frozen_weight
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region
from megatron.core.utils import get_model_config
from torch import nn

from schedc.ir import Kind, Plan
from schedc.runtime.session.pipe import Pipe
from schedc.runtime.stage.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from schedc.runtime.common.boundary import Value
    from schedc.runtime.common.program import Instruction, Program


@dataclass
class Call:
    """One call of the forward and backward function, for all chunks of a rank."""

    forward_step_func: Callable[..., Any]
    iterators: Sequence[Any]
    """One for each chunk."""
    num_microbatches: int
    device: torch.device
    forward_only: bool
    collect_non_loss_data: bool
    first_val_step: bool | None
    store: list[Any] = field(default_factory=list)
    """What the loss function gives to be reported, by microbatch; empty without a last stage."""
    tokens: torch.Tensor = field(init=False)
    """How many tokens the loss functions have counted, an integer on the device."""

    def __post_init__(self) -> None:
        """Begin to count."""
        self.tokens = torch.zeros([], dtype=torch.int, device=self.device)


class MegatronStage(nn.Module):
    """A chunk, called with what the stage before gives."""

    def __init__(self, plan: Plan, stage: int, number: int, chunks: Sequence[nn.Module], cp_size: int) -> None:
        """Take the chunk `number` of those of this rank, which is `stage` of the plan; `cp_size` processes share a sequence."""
        super().__init__()
        self.chunk = chunks[number]
        self._number = number
        self._chunks = len(chunks)
        self._is_last = stage == plan.problem.paths[0][-1]
        self._cp_size = cp_size
        self._call: Call | None = None
        self._microbatch = 0

    def begin(self, call: Call) -> None:
        """Before a step."""
        self._call, self._microbatch = call, 0

    def end(self) -> None:
        """After a step: let go of what belongs to it."""
        self._call = None

    def forward(self, *inputs: torch.Tensor) -> Any:
        """One microbatch: the output for the next stage, or of a last stage the loss; in all stages in the same order."""
        call, microbatch = self._call, self._microbatch
        assert call is not None
        self._microbatch += 1
        output, tokens = forward_step(
            forward_step_func=call.forward_step_func,
            data_iterator=call.iterators[self._number],
            model=self.chunk,
            num_microbatches=call.num_microbatches,
            input_tensor=[*inputs] if len(inputs) > 1 else next(iter(inputs), None),
            forward_data_store=call.store,
            config=get_model_config(self.chunk),
            cp_group_size=self._cp_size,
            collect_non_loss_data=call.collect_non_loss_data,
            is_first_microbatch=check_first_val_step(call.first_val_step, call.forward_only, microbatch == 0),
            current_microbatch=microbatch,
            vp_stage=self._number if self._chunks > 1 else None,
            is_last_stage=self._is_last,
        )
        call.tokens += tokens
        return output[0] if len(inputs) > 1 else output


class Fused(Training):
    """Where a plan has B and W apart, B computes all gradients and W nothing."""

    def __init__(self, plan: Plan, program: Program, *arguments: Any, **more: Any) -> None:
        """As `Training`."""
        super().__init__(plan, replace(program, split=frozenset()), *arguments, **more)

    def run(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        """The op itself; what it gives to other stages."""
        if instruction.op.kind is Kind.W:
            return ()
        if instruction.op.kind is Kind.B:
            instruction = replace(instruction, op=instruction.op._replace(kind=Kind.BW))
        return super().run(instruction, values)


class FusedPipe(Pipe):
    """A pipe whose plan has B and W apart, and runs fused."""

    training = Fused


def split_linear_layers(chunks: Iterable[nn.Module]) -> list[nn.Module]:
    """Let the linear layers of these chunks have backwards that can be split; which layers these are."""
    layers = [layer for chunk in chunks for layer in chunk.modules() if _can_be_split(layer)]
    for layer in layers:
        layer._forward_impl = _product  # type: ignore[assignment]
    return layers


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
