"""The tensors that autograd saves in one forward of one stage, so that B can drop those that W does not need.

`torch.autograd.grad(retain_graph=True)` keeps all of them, and a graph's nodes keep each other alive; so the graph saves a `Saved`
instead of the tensor, and after B those are emptied that B read outside the nodes where W begins.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch.utils import checkpoint

if TYPE_CHECKING:
    from torch.autograd.graph import Node
    from torch.utils.hooks import RemovableHandle


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
