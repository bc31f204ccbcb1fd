"""A double of Transformer Engine's linear layers, which need a GPU, as they are built with `delay_wgrad_compute`.

What it does is what TransformerEngine d0067d0 does (`pytorch/module/linear.py`, `base.py`, `_common.py`), and what megatron-core
0.16 adds to it (`core/extensions/transformer_engine.py`), where these are not about GPUs and few digits:

- the backward computes the input's gradient, and puts the rest into the layer's `wgrad_store`; for the weight it gives None, or
  memory with anything in it, where it has said `grad_added_to_main_grad`;
- `backward_dw` takes the oldest entry, or raises where there is none; it adds to `main_grad` where gradients are accumulated there,
  else it sets `.grad`, whatever was in it; a bias gets its gradient only where it has none; then it calls the hooks that
  DistributedDataParallel has registered, in place of those at the weights.
"""

from __future__ import annotations

import queue
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from schedc.runtime.common.hooks import Observer

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.runtime.common.hooks import OpTimes


class WeightGradStore:
    """What the backwards have left to do."""

    taken = 0
    """By all of this process."""

    def __init__(self) -> None:
        self.context: queue.Queue[Any] = queue.Queue()

    def delay_wgrad_compute(self) -> bool:
        return True

    def put(self, tensors: list[torch.Tensor], function: Callable[..., Any]) -> None:
        self.context.put([tensors, function])

    def pop(self) -> Any:
        if self.context.qsize() == 0:
            raise RuntimeError("Pop empty queue")
        WeightGradStore.taken += 1
        tensors, function = self.context.get()
        return function(*tensors), tensors


class Counting(Observer):
    """How often ops of each kind have computed what was delayed."""

    def __init__(self) -> None:
        self.of_kind: Counter[str] = Counter()
        self._before = WeightGradStore.taken

    def op(self, times: OpTimes) -> None:
        self.of_kind[times.op.kind.name] += WeightGradStore.taken - self._before
        self._before = WeightGradStore.taken


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, input: torch.Tensor, bias: torch.Tensor | None, layer: Any) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        ctx.layer, ctx.has_bias, ctx.weight = layer, bias is not None, layer.weight
        output = torch.matmul(input, weight.t())
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        input, weight = ctx.saved_tensors
        layer, own, has_bias = ctx.layer, ctx.weight, ctx.has_bias

        def products(given: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
            given, gradient = given.detach().flatten(0, -2), gradient.flatten(0, -2)
            of_weight = gradient.t().matmul(given)
            if layer.fuse_wgrad_accumulation:
                own.main_grad.add_(of_weight)
            return None if layer.fuse_wgrad_accumulation else of_weight, gradient.sum(dim=0) if has_bias else None

        layer.wgrad_store.put([input, gradient], products)
        dummy = None
        if layer.fuse_wgrad_accumulation and hasattr(own, "grad_added_to_main_grad"):
            own.grad_added_to_main_grad = True
            dummy = torch.full_like(own, torch.nan)
        return dummy, gradient.matmul(weight), None, None


LINEAR: Any = _Linear


class _Delayed:
    """What a linear layer of Megatron becomes."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    config: Any
    skip_bias_add: bool
    input_is_parallel: bool
    wgrad_store: WeightGradStore
    fuse_wgrad_accumulation: bool
    wgrad_accumulation_and_reduce_hooks: list[Callable[[], None]]

    def _forward_impl(self, input: torch.Tensor, weight: torch.Tensor, bias: Any, **_: Any) -> Any:
        return LINEAR.apply(weight, input, bias, self)

    def register_wgrad_accumulation_and_reduce_hooks(self, hook: Callable[[], None]) -> None:
        self.wgrad_accumulation_and_reduce_hooks.append(hook)

    def backward_dw(self) -> None:
        if not self.config.delay_wgrad_compute:
            return
        (of_weight, of_bias), _ = self.wgrad_store.pop()
        if not self.fuse_wgrad_accumulation:
            self.weight.grad = of_weight
        if of_bias is not None:
            assert self.bias is not None
            if self.bias.grad is None:
                self.bias.grad = of_bias
        for hook in self.wgrad_accumulation_and_reduce_hooks:
            hook()


def delay(chunk: Any, *, fuse: bool = False) -> None:
    """Let the linear layers of a chunk's blocks be such; with `fuse` they add to the weights' `main_grad` themselves."""
    chunk.config.delay_wgrad_compute = True
    for layer in chunk.decoder.modules():
        if hasattr(layer, "_forward_impl"):
            layer.__class__ = type("Delayed", (_Delayed, type(layer)), {})
            layer.wgrad_store, layer.fuse_wgrad_accumulation = WeightGradStore(), fuse
            layer.wgrad_accumulation_and_reduce_hooks = []
            # The bias of a row-parallel layer, added after the sum over ranks, and one that is left to others are autograd's.
            adds_bias = not layer.skip_bias_add and not hasattr(layer, "input_is_parallel")
            for weight in layer.parameters(recurse=False) if adds_bias else [layer.weight]:
                weight.skip_backward_post_hook = True
