"""A chunk of a Megatron model as a stage of the runtime: each forward is one call of Megatron's own `forward_step`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.pipeline_parallel.schedules import check_first_val_step, forward_step
from megatron.core.utils import get_model_config
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.ir import Plan


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
        self._is_first, self._is_last = (stage == plan.problem.paths[0][end] for end in (0, -1))
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
        """One microbatch: the output for the next stage, or of a last stage the loss; in all stages in the same order.

        A first stage takes its microbatch from its iterator; what it is called with says its length alone.
        """
        call, microbatch = self._call, self._microbatch
        assert call is not None
        inputs = () if self._is_first else inputs
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
