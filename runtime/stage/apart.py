"""Whether a stage's gradients are right as the runtime computes them: several microbatches at a time, B and W apart, and summed.

DDP and the first FSDP want each forward's backward before the next forward; they are never right here. FSDP2 acts at moments of one
whole backward, and is told when a stage's last one has ended (`replicas.sharded`). Weights that are more than tensors, as DTensors
are, need nothing: B and W run autograd's own nodes, whatever collectives these start, in the same order in all processes that run
the plan. Such stages are found by what they have: their weights, and classes and hooks of torch.distributed.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.nn.modules import module as torch_module

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torch import nn

_ONE_AT_A_TIME = (
    "torch.nn.parallel.",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed._composable.replicate",
)
_FSDP2 = "torch.distributed.fsdp._fully_shard."
_SHARDED = ("torch.distributed.fsdp.", "torch.distributed._composable.fsdp.", "torch.distributed.tensor.")
"""Where torch defines them. Its wrappers for checkpoints of activations, beside these, are harmless."""


def fsdp_roots(module: nn.Module) -> list[nn.Module]:
    """The outermost modules of a stage that FSDP2 is around."""
    if _ancestor(type(module), (_FSDP2,)) is not None:
        return [module]
    return [root for child in module.children() for root in fsdp_roots(child)]


def check_stages(
    stages: Mapping[int, nn.Module], *, split: Collection[int], summed: bool, sharded: Collection[int] | None = None
) -> None:
    """Refuse stages whose gradients would be wrong. Quick enough for every step, as hooks may come at any time.

    Args:
        stages: a rank's.
        split: those whose backward runs as B and W apart.
        summed: whether the runtime sums the gradients of the stages over replicas.
        sharded: those that FSDP2 was around at `load`; None: it is loading.

    Raises:
        Unsupported: names the stage, what it has, and what to do.
    """
    for stage, module in stages.items():
        found = _found(module, _ONE_AT_A_TIME)
        if found is not None:
            raise Unsupported(
                f"stage {stage} has {found}, which takes one microbatch at a time; give load the module without it, and a"
                " data_parallel_group"
            )
        if sharded is not None and stage not in sharded and fsdp_roots(module):
            raise Unsupported(f"stage {stage} has got fully_shard since load, which does not serve it; load again after it")
        special = _special_weight(module, dtensors=False) if summed else None
        if special is not None:
            raise Unsupported(
                f"stage {stage} has {special}, and its gradients are to be summed over replicas; these can be tensors or DTensors"
            )
        old = _old_hook(module)
        if old is not None and stage in split:
            raise Unsupported(
                f"stage {stage} has a backward hook on {old} that would be called with half of the gradients in B and in W;"
                " use register_full_backward_hook instead of register_backward_hook"
            )


def sharded(module: nn.Module) -> str | None:
    """What of FSDP2 or DTensor a stage has, or which weight that is more than a tensor, in words; None: nothing."""
    return _found(module, _SHARDED) or _special_weight(module)


def _found(module: nn.Module, places: tuple[str, ...]) -> str | None:
    """What classes and hooks of these modules of torch a stage has, in words; None: none."""
    for name, own in module.named_modules():
        kind = _ancestor(type(own), places)
        if kind is not None:
            return f"{kind} around {_where(name)}"
        for hook in (*own._forward_pre_hooks.values(), *own._forward_hooks.values()):
            owner = type(hook.__self__) if hasattr(hook, "__self__") else hook
            if str(getattr(owner, "__module__", "")).startswith(places):
                return f"a hook of {owner.__module__} on {_where(name)}"
    return None


def _search(kind: type, places: tuple[str, ...]) -> str | None:
    """The name of the first class from these modules among a class and those that it is derived from."""
    return next((one.__name__ for one in kind.__mro__ if one.__module__.startswith(places)), None)


_ancestor: Callable[[type, tuple[str, ...]], str | None] = cache(_search)


def _special_weight(module: nn.Module, *, dtensors: bool = True) -> str | None:
    """A weight of a stage that is more than a tensor, in words, DTensors among them or not; None: there is none."""
    for name, weight in module.named_parameters():
        plain = type(weight).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        if not plain and (dtensors or not hasattr(weight, "device_mesh")):
            return f"a {type(weight).__name__} as weight {name!r}"
    return None


def _where(name: str) -> str:
    return f"module {name!r}" if name else "its module"


def _old_hook(module: nn.Module) -> str | None:
    """Where a stage has a backward hook of the kind that torch has deprecated; None: nowhere."""
    if torch_module._global_backward_hooks and not torch_module._global_is_full_backward_hook:
        return "all modules"
    for name, own in module.named_modules():
        if own._backward_hooks and not own._is_full_backward_hook:
            return _where(name)
    return None
