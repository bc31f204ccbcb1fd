"""The weights of one stage by version, in one run of steps that overlap; whose gradients add up in which step.

A stage's parameters are what its ops read: between two ops they get other memory (`parameter.data`), that of the version that the
next op reads, so that whatever the stage is made of, it finds its weights. Autograd saves a parameter itself, or views of its
memory, which are then those of the version that F has read. The optimizer has *aliases* of the parameters during the run: other
parameters, which share the memory of the newest version. An update is made in copies of it, so that the version before stays as it
is while something reads it, and in its own memory where nothing does.

Where versions are bounded the memory is always the same, and an update changes it while autograd has saved it: the backwards are to
read the newest. Autograd does not object, since the alias that is changed counts its changes by itself. That holds for what is
saved as the weight itself or a view of it (linear layers and convolutions, norms, embeddings, attention). A stage that saves
something computed from weights alone would keep what F has read, and is refused (`copies`): casts of autocast, weight and spectral
norm and other parametrizations. A stage that is recomputed has no such copies, as its forward runs again on the newest.

With a cache (`cache`), versions are on the host while nothing needs them. Their storages are emptied, so a run has its own from the
start: what the job holds of the parameters' memory before the run is the job's.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from schedc.ir import Kind, Versions
from schedc.runtime.stage.autograd import forget_cast_weights

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Iterator, Mapping, Sequence

    from schedc.ir import Op, Updates
    from schedc.runtime.asynchronous.cache import VersionCache
    from schedc.runtime.asynchronous.corrections import Correction

Tensors = list[torch.Tensor]
NONE = -1


class StageWeights:
    """Those of one stage; from `begin` to `end` of a run its parameters and its optimizers are this object's."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        updates: Updates,
        delay: int,
        corrections: Sequence[Correction],
        number: int,
        *,
        stage: int = 0,
        cache: VersionCache | None = None,
    ) -> None:
        """Begin a run.

        Args:
            optimizers: of all weights of the stage that require grad, each of which has one; frozen ones have no gradient here.
            updates: of the plan.
            delay: of the stage, in updates; the parameter groups have it as `delay` until `end`.
            corrections: of the delay.
            number: of the run's first update.
            stage: its number.
            cache: which versions are on the device; None: all.
        """
        self._optimizers, self._updates, self._delay, self._corrections = optimizers, updates, delay, corrections
        self._number = number
        self.stage, self._cache = stage, cache
        given: list[nn.Parameter] = [weight for group in self._groups() for weight in group["params"]]
        self._weights = [weight for weight in given if weight.requires_grad]
        self._ahead = any(each.reads_ahead for each in corrections)
        self._newest = -1
        self._masters: Tensors = []
        for weight in self._weights:
            if cache is not None:
                weight.data = weight.data.clone()
            self._masters.append(weight.data)
        self._versions: dict[int, Tensors] = {-1: self._predicted([*self._masters])}
        """What ops read, by version."""
        self._reads: dict[int, int] = {}
        """Of the microbatches under way, the version that their F has read."""
        self._there = self._masters
        """What the parameters have."""
        self._gradients: dict[int, list[torch.Tensor | None]] = {}
        """By step, of those that are not in `.grad`."""
        self._adding = NONE
        """The step whose gradients are in `.grad`, or `NONE`."""
        self._aliases = [_alias(weight) for weight in self._weights]
        self._replace(dict(zip(self._weights, self._aliases, strict=True)))
        for group in self._groups():
            group["delay"] = delay
        for weight in given:
            weight.grad = None
        self._settle()

    @property
    def versions(self) -> int:
        """How many there are."""
        return len(self._versions)

    def names_of(self, memory: Tensors) -> tuple[list[int], bool]:
        """Which versions these tensors are, and whether the next update is made of them."""
        return [version for version, each in self._versions.items() if each is memory], memory is self._masters

    def read(self, op: Op) -> None:
        """Before an op, or a part of one, but U: let it find the weights that it reads, and the gradients that it adds to."""
        mode, step = self._updates.versions, op.microbatch // self._updates.microbatches
        if mode is Versions.TWO_BUFFERED:
            version = max(step - 2, -1)
        elif mode is Versions.BOUNDED or op.kind is Kind.F:
            version = self._newest
        else:
            version = self._reads[op.microbatch]
        if op.kind is Kind.F:
            self._reads.setdefault(op.microbatch, version)  # a later part of it has nothing to do
        elif step != self._adding:
            if self._adding != NONE:
                self._gradients[self._adding] = [weight.grad for weight in self._weights]
            self._adding = step
            for weight, gradient in zip(self._weights, self._gradients.pop(step, [None] * len(self._weights)), strict=True):
                weight.grad = gradient
        if self._cache is not None:
            self._cache.need(self._versions[version])
        self._show(self._versions[version])

    def ended(self, microbatch: int) -> None:
        """The last backward of a microbatch has ended."""
        version = self._reads.pop(microbatch)
        if self._updates.versions is Versions.STASH and version != self._newest and version not in self._reads.values():
            self._forget(version)

    def gradients(self, step: int) -> list[torch.Tensor | None]:
        """Those of a step, in the order of the optimizer's weights."""
        return [weight.grad for weight in self._weights] if step == self._adding else self._gradients[step]

    def take(self, step: int) -> dict[nn.Parameter, torch.Tensor | None]:
        """Take out those of a step, which are whole, by weight."""
        gradients = dict(zip(self._weights, self.gradients(step), strict=True))
        if step == self._adding:
            self._adding = NONE
            for weight in self._weights:
                weight.grad = None
        else:
            del self._gradients[step]
        return gradients

    def give(self, step: int, gradients: Mapping[nn.Parameter, torch.Tensor | None]) -> None:
        """Put back what was taken out, or what has become of it."""
        self._gradients[step] = [gradients[weight] for weight in self._weights]

    def update(self, step: int, factor: float | None) -> None:
        """Make a version of a step whose gradients are whole, times the factor; None: it is like the one before."""
        gradients = [*self.take(step).values()]
        before, mode = self._versions[self._newest], self._updates.versions
        if mode is Versions.TWO_BUFFERED:
            self._forget(*(version for version in self._versions if version < step - 1))
        if factor is None:
            self._versions[step] = before
        else:  # several versions may be one memory, where an update was not made
            unread = mode is Versions.STASH and all(self._versions[version] is not before for version in self._reads.values())
            self._make(step, gradients, factor, in_place=unread or mode is Versions.BOUNDED)
        if mode is Versions.BOUNDED or (mode is Versions.STASH and self._newest not in self._reads.values()):
            self._forget(self._newest)
        self._newest = step
        self._number += 1
        self._settle()

    def end(self) -> None:
        """End the run, whole or not: the parameters are the newest weights, and the optimizer has them again."""
        if self._aliases:
            if self._cache is not None:
                self._cache.need(self._masters)
                self._cache.keep(self, ())
            self._show(self._masters)
            for weight in self._weights:
                weight.grad = None
            self._replace(dict(zip(self._aliases, self._weights, strict=True)))
            for group in self._groups():
                group.pop("delay", None)
            self._aliases.clear()
            self._versions.clear()
            self._gradients.clear()

    def _make(self, step: int, gradients: Sequence[torch.Tensor | None], factor: float, *, in_place: bool) -> None:
        """The optimizers' steps."""
        before = self._masters
        in_place = in_place and not self._ahead
        if self._cache is not None:
            written = [self._versions[self._newest]] if self._updates.versions is Versions.BOUNDED else []
            self._cache.need(before, *written, copies=(not in_place) + (self._ahead and not written))
        self._masters = before if in_place else [each.clone() for each in before]
        if self._cache is not None:  # the copy counts from here on
            self._cache.add(self, self._masters)
        for alias, memory, gradient in zip(self._aliases, self._masters, gradients, strict=True):
            alias.data = memory
            alias.grad = gradient if gradient is None or factor == 1 else gradient.mul_(factor)
        for optimizer in self._optimizers:
            with self._corrected_rates(optimizer):
                optimizer.step()
        for alias in self._aliases:
            alias.grad = None
        read = self._predicted(before)
        if self._ahead and self._updates.versions is Versions.BOUNDED:  # what autograd has saved is to be the newest
            for memory, value in zip(self._versions[self._newest], read, strict=True):
                memory.copy_(value)
            read = self._versions[self._newest]
        self._versions[step] = read
        forget_cast_weights()

    @contextmanager
    def _corrected_rates(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """A context for an optimizer's step; its hooks after the step find its own learning rates, as a schedule sets the next."""
        groups = [group for group in optimizer.param_groups if "lr" in group] if self._corrections else []
        rates = [group["lr"] for group in groups]

        def restore(*_: object) -> None:
            while rates:
                groups[len(rates) - 1]["lr"] = rates.pop()

        for group in groups:
            for each in self._corrections:
                group["lr"] = each.learning_rate(group["lr"], self._delay, self._number)
        hook = optimizer.register_step_post_hook(restore)
        cast("OrderedDict[int, object]", optimizer._optimizer_step_post_hooks).move_to_end(hook.id, last=False)
        try:
            yield
        finally:
            hook.remove()
            restore()

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _replace(self, others: Mapping[torch.Tensor, nn.Parameter]) -> None:
        """Let the optimizers go on with other parameters, but for frozen ones."""
        for group in self._groups():
            group["params"][:] = [others.get(weight, weight) for weight in group["params"]]
        for optimizer in self._optimizers:
            entries = [(others.get(key, key), entry) for key, entry in optimizer.state.items()]
            optimizer.state.clear()
            optimizer.state.update(entries)

    def _predicted(self, before: Tensors) -> Tensors:
        """What ops read of the newest version: itself, or where a correction reads ahead, other tensors."""
        if not self._ahead:
            return self._masters
        read = self._masters
        with torch.no_grad():
            for each in self._corrections:
                read = [each.weights(*pair, self._delay) for pair in zip(read, before, strict=True)]
        return [value.clone() if value is master else value for value, master in zip(read, self._masters, strict=True)]

    def _show(self, memory: Tensors) -> None:
        if self._there is not memory:
            self._there = memory
            for weight, tensor in zip(self._weights, memory, strict=True):
                weight.data = tensor
            forget_cast_weights()

    def _settle(self) -> None:
        """Let the cache know which versions there are."""
        if self._cache is not None:
            there = [self._masters, *self._versions.values()]
            for memory in there:
                self._cache.add(self, memory)
            self._cache.keep(self, there)

    def _forget(self, *versions: int) -> None:
        for version in versions:
            memory = self._versions.pop(version)
            if memory is self._there and all(memory is not other for other in self._versions.values()):
                self._show(self._masters)
        self._settle()


def _alias(weight: nn.Parameter) -> nn.Parameter:
    """Another parameter in the same memory, with what the job has noted at it, which counts its changes by itself."""
    alias = nn.Parameter(weight.data, requires_grad=weight.requires_grad)
    alias.__dict__.update(weight.__dict__)
    if getattr(weight, "grad_dtype", weight.dtype) != weight.dtype:
        alias.grad_dtype = weight.grad_dtype
    return alias
