"""The layers that leave a rank for another one while it trains: a copy, then the gradients of each step, at last what is left."""

from __future__ import annotations

import weakref
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn

    from schedc.runtime.adapt.state_transfer.pieces import Manifest
    from schedc.runtime.adapt.state_transfer.stream import Outlet, Tensors

Key = tuple[int, str]
"""A layer's number, and the name of a weight or buffer in it."""


class Leaving:
    """Those for one rank. A record is about `snapshot`, `update` and the number of the optimizer, or `boundary` and its number."""

    def __init__(
        self,
        layers: Mapping[int, nn.Module],
        outlet: Outlet,
        optimizers: Sequence[torch.optim.Optimizer],
        described: Sequence[Manifest],
        failed: Callable[[str], None],
    ) -> None:
        """Send a copy of them, and from now on what their optimizers see.

        `described` is what each optimizer has with all its layers; `failed` is called with the reason where they cannot go.
        """
        self._layers, self.outlet, self._optimizers, self._failed = layers, outlet, optimizers, failed
        self._weights = {(at, name): one for at, layer in layers.items() for name, one in layer.named_parameters()}
        self._hooks = []
        self._used: dict[Key, tuple[weakref.ref[torch.Tensor], int]] = {}
        """Of each weight, the gradient that the last step of its optimizer has used, and how often it had been changed then."""
        keys = {weight: key for key, weight in self._weights.items()}
        for number, (optimizer, manifest) in enumerate(zip(optimizers, described, strict=True)):
            weights = {key: weight for key, weight in manifest.weights.items() if key[0] in layers}
            kinds = {key: getattr(self._weights[key], "grad_dtype", None) for key, one in weights.items() if one.requires_grad}
            tensors = {key: value for key, value in manifest.values.items() if key[0] in layers}
            if weights or tensors:
                outlet.put(("snapshot", number, weights, kinds), tensors)
            places = [
                (group, place, keys[weight])
                for group, options in enumerate(optimizer.param_groups)
                for place, weight in enumerate(options["params"])
                if weight in keys
            ]
            if places:
                self._hooks.append(optimizer.register_step_pre_hook(partial(self._sees, number, places)))
                self._hooks.append(optimizer.register_step_post_hook(self._has_used))

    def _sees(
        self, number: int, places: Sequence[tuple[int, int, Key]], optimizer: Any, given: Sequence[Any], options: Mapping[str, Any]
    ) -> None:
        """Before an optimizer's step, whose weights may be others in the same places: those of a run of steps that overlap."""
        if any(one is not None and one is not optimizer for one in (*given, *options.values())):
            self._failed("an optimizer's step was called with arguments, which cannot be repeated on another rank")
        settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        gradients: Tensors = {}
        for group, place, key in places:
            gradient = optimizer.param_groups[group]["params"][place].grad
            if gradient is not None and gradient.layout is not torch.strided:
                self._failed(f"{key[1]} of layer {key[0]} has sparse gradients; such layers do not migrate")
            elif gradient is not None:
                gradients[key] = gradient
        self.outlet.put(("update", number, settings), gradients, counted=number)

    def _has_used(self, *_: object) -> None:
        """After an optimizer's step, which may have changed gradients."""
        gradients = ((key, weight.grad) for key, weight in self._weights.items())
        self._used = {key: (weakref.ref(one), one._version) for key, one in gradients if one is not None}

    def boundary(self, number: int, *, last: bool) -> None:
        """After a step; the last one goes with buffers, modes, and sums of what must be there by now."""
        if not last:
            self.outlet.put(("boundary", number, None), {})
            return
        unused = next((key for key in self._weights if self._has_more(key)), None)
        if unused is not None:
            self._failed(
                f"{unused[1]} of layer {unused[0]} has a gradient that no step of the optimizer has used; call between_steps after"
                " optimizer.step(), or optimizer.zero_grad() before it"
            )
        buffers = {(at, name): one for at, layer in self._layers.items() for name, one in layer.named_buffers()}
        training = {(at, name): one.training for at, layer in self._layers.items() for name, one in layer.named_modules()}
        trained = {key: weight.requires_grad for key, weight in self._weights.items()}
        self.outlet.put(("boundary", number, sums(self._weights, self._optimizers), training, trained), buffers)

    def _has_more(self, key: Key) -> bool:
        """Whether a gradient has come since the optimizer's step."""
        gradient = self._weights[key].grad
        if gradient is None:
            return False
        used, version = self._used.get(key, (None, 0))
        return (used is None or used() is not gradient or version != gradient._version) and bool(gradient.any())

    @property
    def behind(self) -> int:
        """Of how many steps the gradients are not there yet, of the optimizer of which they are the most."""
        numbers = range(len(self._optimizers))
        return max((self.outlet.put_in[number] - self.outlet.through[number] for number in numbers), default=0)

    def end(self) -> None:
        """See nothing more."""
        for hook in self._hooks:
            hook.remove()


def sums(weights: Mapping[Key, nn.Parameter], optimizers: Iterable[torch.optim.Optimizer]) -> dict[Key, int]:
    """Of each weight, a sum of its bytes and of those of its optimizer's state."""
    states: dict[torch.Tensor, Any] = {weight: state for one in optimizers for weight, state in one.state.items()}
    found = {}
    for key, weight in weights.items():
        value = 0
        for tensor in (weight, *(one for _, one in sorted(states.get(weight, {}).items()) if isinstance(one, torch.Tensor))):
            memory: Any = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
            value = zlib.crc32(memory, value)
        found[key] = value
    return found
