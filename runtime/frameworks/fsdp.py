"""FSDP2 (`fully_shard`) around a stage whose backward runs once for each microbatch, and with B and W apart.

FSDP by itself reduces gradients at the end of each backward, and lets go of the weights there. Here it keeps the weights from the
first forward to the end of the stage's last backward, lets gradients add up, and reduces them once, then. This is what
`torch.distributed.pipelining` does with FSDP, by the same calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.fsdp import FSDPModule, fully_shard

if TYPE_CHECKING:
    import torch
    from torch import nn


class ShardedStage:
    """The FSDP modules of one stage, of which its module is the root."""

    def __init__(self, module: FSDPModule) -> None:
        """Take the stage's module."""
        self._module = module
        self._state: Any = fully_shard.state(module)  # type: ignore[attr-defined]
        self._watched: set[int] = set()

    @classmethod
    def around(cls, module: nn.Module) -> ShardedStage | None:
        """What serves a stage's module; None: FSDP is not around it."""
        return cls(module) if isinstance(module, FSDPModule) else None

    def begin_step(self) -> None:
        """From now on gradients add up, and weights stay."""
        self._now(last=False)

    def ran(self) -> None:
        """After a forward: let gradients add up in the type of the reduction, where this is not the weights'.

        FSDP does so at the end of a backward; W ends none.
        """
        for group in self._groups():
            for weight in group.fsdp_params:
                if id(weight) not in self._watched and hasattr(weight, "_unsharded_param"):
                    self._watched.add(id(weight))
                    if weight.reduce_dtype is not None and weight.unsharded_param.requires_grad:
                        weight.unsharded_param.register_post_accumulate_grad_hook(_Adding(weight))

    def reduce(self) -> None:
        """After the last backward of a step: the gradients over all replicas go into `.grad`, and the weights go."""
        self._now(last=True)
        for group in self._groups():
            group.post_backward()
        self._state._root_post_backward_final_callback()

    def _now(self, *, last: bool) -> None:
        self._module.set_is_last_backward(last)
        self._module.set_reshard_after_backward(last)
        self._module.set_requires_gradient_sync(last)

    def _groups(self) -> list[Any]:
        return [group for state in self._state._state_ctx.all_states for group in state._fsdp_param_groups]


class _Adding:
    """Adds a weight's gradient to the sum that FSDP reduces later."""

    def __init__(self, weight: Any) -> None:
        """Take FSDP's own object for the weight."""
        self._weight = weight

    def __call__(self, _gathered: torch.Tensor) -> None:
        """The gradient has been added to `.grad` of the gathered weight."""
        self._weight.accumulate_unsharded_grad_if_needed()
        self._weight.to_accumulated_grad_if_needed()
