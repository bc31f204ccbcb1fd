"""What a step changes before the optimizer's, kept from its start, so that it can run again as if it had not run.

That is gradients, buffers, and random numbers (torch's, Python's, NumPy's). A gradient that is None at the start costs nothing.
Which buffers change is learnt: all are copied before the first step, later only those that have changed so far.
What a step should not change is not copied, but looked at: weights, and the batch. Where it has changed, the step cannot run again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from schedc.errors import Unsupported
from schedc.runtime.common.hooks import ReplicaHooks, shards_of
from schedc.runtime.stage.recompute import KeptBuffer, RandomStates, kept_buffers, same

GRADIENTS = ("grad", "main_grad")
"""Where gradients of a weight may add up: autograd's, and Megatron's."""


class _Gradient(NamedTuple):
    weight: torch.Tensor
    name: str
    value: torch.Tensor | None
    copy: torch.Tensor | None
    there: bool
    """Whether the weight has this attribute."""


@dataclass(eq=False)
class StepStart:
    """What one rank had at the start of a step."""

    modules: Collection[nn.Module]
    """The stages, and the loss function where it is a module, with their weights and buffers."""
    hooks: ReplicaHooks
    """Whose shards get gradients as well."""
    device: torch.device
    """Of the stages."""

    def __post_init__(self) -> None:
        """Nothing is kept yet."""
        self._shards = tuple(shard.weight for shard in shards_of(self.hooks) or ())
        self._gradients: Sequence[_Gradient] = ()
        self._buffers: Sequence[KeptBuffer] = ()
        self._registered: Sequence[tuple[nn.Module, dict[str, torch.Tensor | None]]] = ()
        """Of each module, which tensors its buffers are."""
        self._versions: Sequence[tuple[str, torch.Tensor, int]] = ()
        """What the step should not change."""
        self._changing: set[tuple[nn.Module, str]] | None = None
        """The buffers that have changed so far, or that a step has made; None: no step has run yet."""
        self._random: RandomStates | None = None

    def keep(self, batch: Any = ()) -> None:
        """Before a step, whose inputs and targets are in `batch`."""
        own = dict.fromkeys(weight for module in self.modules for weight in module.parameters())
        self._gradients = [
            _Gradient(weight, name, value, None if value is None else value.detach().clone(), hasattr(weight, name))
            for weight in dict.fromkeys((*own, *self._shards))
            for name in GRADIENTS
            for value in (getattr(weight, name, None),)
        ]
        self._versions = [
            (what, tensor, tensor._version)
            for what, tensors in (("a weight", tuple(own)), ("the batch", batch))
            for tensor in _tensors(tensors)
        ]
        owners = dict.fromkeys(owner for module in self.modules for owner in module.modules())
        self._registered = [(owner, dict(owner._buffers)) for owner in owners]
        self._buffers = kept_buffers(owners, self._changing)
        self._random = RandomStates.now([self.device])

    def let_go(self) -> None:
        """After a step that counts: its start is not needed any more."""
        first = self._changing is None
        changed = {(one.owner, one.name) for one in self._buffers if one.written() or (first and not same(one.tensor, one.copy))}
        made = {(owner, name) for owner, buffers in self._registered for name in owner._buffers if buffers.get(name) is None}
        self._changing = changed | made | (self._changing or set())
        self._gradients = self._buffers = self._registered = self._versions = ()

    def put_back(self) -> None:
        """Before the step runs again.

        Raises:
            Unsupported: a weight or the batch has changed, or a buffer that no step before had changed.
        """
        for what, tensor, version in self._versions:
            if tensor._version != version:
                raise _cannot_run_again(f"{what} of shape {list(tensor.shape)} has changed in place, which it should not")
        with torch.no_grad():
            for weight, name, value, copy, there in self._gradients:
                if value is not None and copy is not None:
                    value.copy_(copy)
                if there:
                    setattr(weight, name, value)
                elif hasattr(weight, name):
                    delattr(weight, name)
            for owner, buffers in self._registered:
                owner._buffers.clear()
                owner._buffers.update(buffers)
            for one in self._buffers:
                if one.copy is not None:
                    if not same(one.tensor, one.copy):
                        one.tensor.copy_(one.copy)
                elif one.written():
                    kind = type(one.owner).__name__
                    raise _cannot_run_again(f"the buffer {one.name!r} of a {kind} has changed, which no step before had changed")
        assert self._random is not None
        self._random.restore()

    def until_it_counts(
        self,
        run: Callable[[], tuple[torch.Tensor, bool]],
        batch: object,
        end: Callable[[torch.Tensor, bool], torch.Tensor] | None,
        *,
        all_see: Callable[[bool], bool] | None,
        change: Callable[[], None],
    ) -> torch.Tensor:
        """Run a step or an evaluation, and run it again where a channel fails.

        Args:
            run: runs all ops once; gives the loss of this pipeline, and whether it counts here.
            batch: the inputs and targets.
            end: called then, with the loss and whether it counts everywhere; gives the loss of all pipelines.
            all_see: `SwapGroup.all_see`, where there is one.
            change: puts other channels in the place of those that have failed.

        Returns:
            The loss.

        Raises:
            Unsupported: it cannot run again.
        """

        def attempt() -> tuple[torch.Tensor, bool, bool]:
            """The loss, and whether the step counts for this pipeline, and for all."""
            loss, here = run()
            counts = here if all_see is None else all_see(here)
            return (loss, here, counts) if end is None else (end(loss, counts), here, self.hooks.step_counts)

        self.keep(batch)
        loss, here, everywhere = attempt()
        while not everywhere:
            self.put_back()
            if not here:
                change()
            loss, here, everywhere = attempt()
        self.let_go()
        return loss


def _cannot_run_again(why: str) -> Unsupported:
    return Unsupported(f"a channel has failed, and the step cannot run again: {why}; load a checkpoint")


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, whatever they are in, as far as torch counts their changes."""
    if isinstance(batch, torch.Tensor):
        if not batch.is_inference():
            yield batch
    elif isinstance(batch, Mapping):
        yield from _tensors(tuple(batch.values()))
    elif isinstance(batch, (tuple, list)):
        for one in batch:
            yield from _tensors(one)
