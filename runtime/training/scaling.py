"""Scaling of losses for training in float16: a `torch.amp.GradScaler` whose ranks skip the same steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import OptState

from schedc.errors import Unsupported
from schedc.runtime.training.owned import over_ranks
from schedc.runtime.transports.wishes import stage_device

if TYPE_CHECKING:
    from schedc.runtime.session.pipe import Pipe

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """Infinite or NaN gradients on any rank make all ranks of all pipelines skip the optimizer's step, and lower the scale.

    Give `pipe.step` `scale=scaler.get_scale()` in place of `scaler.scale(loss).backward()`; the rest is as in torch. All processes
    call `unscale_`, or `step`, together, each once for each of its optimizers, of which all have as many.
    """

    def __init__(self, pipe: Pipe, **options: Any) -> None:
        """Take the pipe; `options` go to `torch.amp.GradScaler`."""
        device = stage_device(pipe.stages)
        super().__init__(device.type, **options)
        self._pipe = pipe
        if self.is_enabled():
            self._lazy_init_scale_growth_tracker(device)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """As torch's; then all ranks agree on whether a gradient of any is infinite or NaN.

        Raises:
            Unsupported: a gradient is a DTensor.
            TransferFailed: another rank has ended, or does not answer.
        """
        if not self.is_enabled():
            return
        if any(hasattr(weight.grad, "device_mesh") for group in optimizer.param_groups for weight in group["params"]):
            raise Unsupported("a GradScaler does not unscale gradients that are DTensors; train in bfloat16, without it")
        super().unscale_(optimizer)
        state = self._per_optimizer_states[id(optimizer)]
        if not state["found_inf_per_device"]:  # it has no gradients
            state["found_inf_per_device"][torch.device("cpu")] = torch.zeros(1)
        found = state["found_inf_per_device"].values()
        worst = max(tensor.item() for tensor in found)
        worst = over_ranks(self._pipe, worst, "looks for gradients that are not finite", sharded=True, largest=True)
        for tensor in found:
            tensor.fill_(worst)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **more: Any) -> float | None:
        """As torch's: the optimizer's step, unless a gradient of any rank is infinite or NaN."""
        if self.is_enabled() and self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
            self.unscale_(optimizer)  # not in the optimizer, as fused ones would, each by what it sees
        return super().step(optimizer, *args, **more)
