"""The layers that come to a rank while it trains: their copy, on which the updates are made that their own rank makes."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from schedc.runtime.adapt.state_transfer.leaving import Key, sums
from schedc.runtime.adapt.state_transfer.pieces import Manifest, restore
from schedc.runtime.common.boundary import TensorMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from schedc.runtime.adapt.state_transfer.stream import Tensors


class Coming:
    """Those from one rank."""

    def __init__(
        self,
        layers: Mapping[int, nn.Module],
        optimizer: torch.optim.Optimizer,
        failed: Callable[[str], None],
        reached: Callable[[Coming, int], None],
    ) -> None:
        """Nothing has come yet.

        `optimizer` is one of this rank's, whose kind and settings are those of the other. `failed` is called with the reason where
        they cannot come, `reached` with the number of a boundary whose updates have been made.
        """
        self._layers, self._optimizer, self._failed, self._reached = layers, optimizer, failed, reached
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        """By their number on the other rank, what makes their updates here."""
        self._weights = {(at, name): one for at, layer in layers.items() for name, one in layer.named_parameters()}
        self.ready = False
        """Whether it has been less than a step behind."""
        self.whole = threading.Event()
        """Set once the last record has come, or none will."""

    def take(self, note: tuple[Any, ...], tensors: Tensors) -> None:
        """A record of `Leaving` has come; in the thread of its connection."""
        try:
            kind, number, *more = note
            if kind == "snapshot":
                self._restore(number, tensors, *more)
            elif kind == "update":
                self._update(self.optimizers[number], tensors, *more)
            elif more[0] is None:
                self._reached(self, number)
            else:
                self._end(tensors, *more)
        except Exception as error:  # said to all ranks, when they meet: nothing has moved
            self._failed(f"{type(error).__name__}: {error}")

    def _restore(self, number: int, tensors: Tensors, weights: Mapping[Key, Any], kinds: Mapping[Key, Any]) -> None:
        pieces = {at: self._layers[at] for at in sorted({key[0] for key in tensors} | {key[0] for key in weights})}
        groups: list[list[nn.Parameter]] = [[] for _ in self._optimizer.param_groups]
        for key, weight in weights.items():
            if weight.group is not None and key in self._weights:
                groups[weight.group].append(self._weights[key])
        made = self.optimizers[number] = like(self._optimizer, groups)
        metas = {key: TensorMeta(value.dtype, tuple(value.shape)) for key, value in tensors.items()}
        restore(pieces, made, Manifest(metas, dict(weights), values=dict(tensors)), self._optimizer)
        for key, dtype in kinds.items():
            if dtype is not None and dtype != self._weights[key].dtype:
                self._weights[key].grad_dtype = dtype

    def _update(self, optimizer: torch.optim.Optimizer, gradients: Tensors, settings: Sequence[Mapping[str, Any]]) -> None:
        for group, options in zip(optimizer.param_groups, settings, strict=True):
            group.update(options)
        for key, gradient in gradients.items():
            self._weights[key].grad = gradient.to(self._weights[key].device)
        optimizer.step()
        optimizer.zero_grad()

    def _end(
        self, tensors: Tensors, expected: Mapping[Key, int], training: Mapping[Key, bool], trained: Mapping[Key, bool]
    ) -> None:
        modules = {(at, name): one for at, layer in self._layers.items() for name, one in layer.named_modules()}
        for key in modules.keys() & training.keys():
            modules[key].training = training[key]
        for key, weight in self._weights.items():
            weight.requires_grad_(trained[key])
        buffers = {(at, name): one for at, layer in self._layers.items() for name, one in layer.named_buffers()}
        with torch.no_grad():
            for key, value in tensors.items():
                buffers[key].copy_(value)
        found = sums(self._weights, self.optimizers.values())
        other = next((key for key, one in expected.items() if found.get(key) != one), None)
        if other is not None:
            self._failed(
                f"{other[1]} of layer {other[0]} is not what the optimizer's steps alone make of it; move it between two steps with"
                " schedc.runtime.adapt.state_transfer.exchange.move"
            )
        self.whole.set()


def like(optimizer: torch.optim.Optimizer, groups: Sequence[list[nn.Parameter]]) -> torch.optim.Optimizer:
    """An optimizer that does the same, of other weights, without state and hooks; of as many groups as are given."""
    made: torch.optim.Optimizer = object.__new__(type(optimizer))
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)  # a schedule of learning rates puts one there that counts the other's steps
    made.state = defaultdict(dict)
    for name, value in optimizer.__dict__.items():
        if name.endswith("_hooks"):
            setattr(made, name, type(value)())
    made.param_groups = [{**group, "params": weights} for group, weights in zip(optimizer.param_groups, groups, strict=False)]
    return made
