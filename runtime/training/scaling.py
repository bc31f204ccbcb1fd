"""Scaling of losses for training in float16: a `torch.amp.GradScaler` whose ranks skip the same steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import OptState

from schedc.errors import Unsupported
from schedc.runtime.training.clipping import over_ranks
from schedc.runtime.transports.choice import stage_device

if TYPE_CHECKING:
    from schedc.runtime.session.pipe import Pipe

REFUSED: dict[float, str] = {2: "DTensors", 3: "complex"}
"""By the number that goes to the other ranks in place of torch's 1 for a gradient that is infinite or NaN."""


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
            Unsupported: a gradient is a DTensor or complex, on this rank or another.
            TransferFailed: another rank has ended, or does not answer.
        """
        if not self.is_enabled():
            return
        worst, state = float(self._refused(optimizer)), self._per_optimizer_states[id(optimizer)]
        if not worst:
            super().unscale_(optimizer)
            if not state["found_inf_per_device"]:  # it has no gradients
                state["found_inf_per_device"][torch.device("cpu")] = torch.zeros(1, device="cpu")
            worst = max(tensor.item() for tensor in state["found_inf_per_device"].values())
        worst = over_ranks(self._pipe, worst, "looks for gradients that are not finite", sharded=True, largest=True)
        if self._pipe.swap_group is not None:  # others have other slices, or other experts, of the same model
            worst = max(self._pipe.swap_group.exchange(worst))
        if worst in REFUSED:
            raise Unsupported(
                f"a GradScaler does not unscale gradients that are {REFUSED[worst]}, which a rank has; train without it"
            )
        for tensor in state["found_inf_per_device"].values():
            tensor.fill_(worst)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **more: Any) -> float | None:
        """As torch's: the optimizer's step, unless a gradient of any rank is infinite or NaN."""
        if self.is_enabled() and self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
            self.unscale_(optimizer)  # not in the optimizer, as fused ones would, each by what it sees
        return super().step(optimizer, *args, **more)

    @staticmethod
    def _refused(optimizer: torch.optim.Optimizer) -> int:
        """What of `REFUSED` this rank's gradients are; 0: nothing."""
        given = [weight.grad for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
        if any(hasattr(gradient, "device_mesh") for gradient in given):
            return 2
        return 3 if any(gradient.is_complex() for gradient in given) else 0
