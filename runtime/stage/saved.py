"""The tensors that autograd saves in one forward of one stage, so that B can drop those that W does not need.

`torch.autograd.grad(retain_graph=True)` keeps all of them, and a graph's nodes keep each other alive; so the graph saves a `Saved`
instead of the tensor, and after B those are emptied that B read outside the nodes where W begins.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import get_gradient_edge
from torch.utils import checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.autograd.function import BackwardCFunction
    from torch.autograd.graph import Node
    from torch.utils.hooks import RemovableHandle

__all__ = ["SavedTensors", "give_own_weights"]


class Saved:
    """A saved tensor's place in the graph."""

    __slots__ = ("kept", "read", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor.detach()  # detached: a graph that holds its own output never dies
        self.version = tensor._version
        self.read = False
        self.kept = False


class SavedTensors:
    """What one forward saves. Wrap the forward in `recording()`, then B in `marking(...)`, then call `release()`."""

    def __init__(self) -> None:
        self._saved: list[Saved] = []
        self._in_kept_node = False

    def recording(self) -> torch.autograd.graph.saved_tensors_hooks:
        """The context in which the forward runs."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def keep_for(self, node: Node) -> tuple[RemovableHandle, RemovableHandle]:
        """Keep what `node` reads while it runs; remove the handles after B."""
        return node.register_prehook(self._enter), node.register_hook(self._leave)

    def release(self) -> None:
        """Let go of all tensors that have been read since the forward.

        But for those read by the nodes of `keep_for`, and for the arguments of checkpointed regions: whichever node of a region
        runs first reads them, and W needs them again.
        """
        for saved in self._saved:
            if saved.read and not saved.kept:
                saved.tensor = None
        self._saved.clear()

    def _enter(self, _gradients: object) -> None:
        self._in_kept_node = True

    def _leave(self, _inputs: object, _outputs: object) -> None:
        self._in_kept_node = False

    def _pack(self, tensor: torch.Tensor) -> Saved:
        saved = Saved(tensor)
        saved.kept = _of_a_checkpoint()
        self._saved.append(saved)
        return saved

    def _unpack(self, saved: Saved) -> torch.Tensor:
        if saved.tensor is None:
            raise RuntimeError("autograd reads a tensor in W that only B was to read")
        if saved.tensor._version != saved.version:  # autograd's own check does not see tensors that went through hooks
            raise RuntimeError("a tensor that the backward needs has been changed in place since the forward")
        saved.read = True
        saved.kept = saved.kept or self._in_kept_node
        return saved.tensor


def _of_a_checkpoint() -> bool:
    """Whether it is torch's checkpoint that saves a tensor now: an argument of its region. No node of the graph has that."""
    frame = sys._getframe(2)
    for _ in range(2):  # in some versions of torch one of `autograd.Function` lies between
        if frame.f_globals is checkpoint.__dict__:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def give_own_weights(functions: Iterable[Node]) -> None:
    """Let the backwards of these functions of the user's own find the stage's weights themselves in `ctx.saved_tensors`.

    Without hooks autograd gives a saved weight as it is; through hooks it gives another tensor with the same elements, which has
    none of the weight's attributes. Megatron's layers add to `weight.main_grad`.
    """
    for function in functions:
        if not isinstance(function, _WithOwnWeights):
            function.__class__ = _with_own_weights(type(function))


class _WithOwnWeights:
    """A function whose saved weights are the stage's."""

    @property
    def saved_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """As autograd has them, but for the weights."""
        return tuple(map(_own, super().saved_tensors))  # type: ignore[misc]


@cache
def _with_own_weights(kind: type[BackwardCFunction]) -> type:
    return type(kind.__name__, (_WithOwnWeights, kind), {})


def _own(saved: torch.Tensor | None) -> torch.Tensor | None:
    """The weight of which this is what autograd has saved; another tensor as it is."""
    if saved is not None and saved.requires_grad and saved.is_leaf:
        weight = get_gradient_edge(saved).node.variable  # type: ignore[attr-defined]
        if isinstance(weight, torch.nn.Parameter):
            return weight
    return saved
