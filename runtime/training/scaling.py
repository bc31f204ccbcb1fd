"""Scaling of losses for training in float16: a `torch.amp.GradScaler` whose ranks skip the same steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import OptState

from schedc.errors import Unsupported
from schedc.runtime.replicas.buckets import own_part
from schedc.runtime.training.clipping import over_ranks
from schedc.runtime.transports.choice import stage_device

if TYPE_CHECKING:
    from schedc.runtime.session.pipe import Pipe

COMPLEX = 3.0
"""What goes to the other ranks in place of torch's 1 for a gradient that is infinite or NaN, where one is complex."""


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
            Unsupported: a gradient is complex, on this rank or another.
            TransferFailed: another rank has ended, or does not answer.
        """
        if not self.is_enabled():
            return
        weights: list[Any] = [weight for group in optimizer.param_groups for weight in group["params"]]
        given = [weight.grad for weight in weights if weight.grad is not None]
        worst, state = COMPLEX * any(map(torch.is_complex, given)), self._per_optimizer_states[id(optimizer)]
        if not worst:
            super().unscale_(optimizer)
            if not state["found_inf_per_device"]:  # it has no gradients
                state["found_inf_per_device"][torch.device("cpu")] = torch.zeros(1, device="cpu")
            worst = max(tensor.item() for tensor in state["found_inf_per_device"].values())
        own: list[Any] = [weight for module in self._pipe.modules.values() for weight in module.parameters()]  # of which are shards
        for mesh in dict.fromkeys(weight.device_mesh for weight in own if hasattr(weight, "device_mesh")):
            found = torch.tensor(worst, device=mesh.device_type)
            for group in mesh.get_all_groups():  # others have other parts of the same weights
                dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
            worst = found.item()
        worst = over_ranks(self._pipe, worst, "looks for gradients that are not finite", sharded=True, largest=True)
        if self._pipe.swap_group is not None:  # others have other slices, or other experts, of the same model
            worst = max(self._pipe.swap_group.exchange(worst))
        if worst == COMPLEX:
            raise Unsupported("a GradScaler does not unscale gradients that are complex, which a rank has; train without it")
        for tensor in state["found_inf_per_device"].values():
            tensor.fill_(worst)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **more: Any) -> float | None:
        """As torch's: the optimizer's step, unless a gradient of any rank is infinite or NaN."""
        if self.is_enabled() and self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
            self.unscale_(optimizer)  # not in the optimizer, as fused ones would, each by what it sees
        return super().step(optimizer, *args, **more)

    def _unscale_grads_(self, optimizer: Any, *arguments: Any, **more: Any) -> dict[torch.device, torch.Tensor]:
        """As torch's, which takes no DTensors beside tensors, of this process's parts of them."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
        parts = [own_part(weight.grad) for weight in weights]
        own = [part.detach() for part in parts]  # something of the same kind that has each as its `.grad`
        for holder, part in zip(own, parts, strict=True):
            holder.grad = part
        given: Any = SimpleNamespace(param_groups=[{"params": own}])
        return super()._unscale_grads_(given, *arguments, **more)
