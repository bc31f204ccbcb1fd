"""What B leaves for W: the tensors that autograd has saved and W reads, and the gradients that arrive where W begins.

`torch.autograd.grad(retain_graph=True)` keeps all saved tensors, and a graph's nodes keep each other alive; so the graph saves a
`Saved` instead of the tensor, and after B those are emptied that B read outside the nodes where W begins. Functions of the user's
own find the stage's own weights among what they have saved.

Autograd gives the gradient at a node before the node's tensor hooks if it goes on through the node, and after them if it stops
there. W calls the hooks of nodes that do not run in B, so it needs the gradient before them: `GradientArrivals` adds up what comes
to the node from those before it. At a weight that B is asked for, hooks wait until the gradient is added to `.grad`.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.graph import Node, get_gradient_edge

from schedc.runtime.stage.splitting.checkpoints import of_a_checkpoint, regions_run_twice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch.autograd.function import BackwardCFunction
    from torch.autograd.graph import GradientEdge
    from torch.utils.hooks import RemovableHandle


class Saved:
    """A saved tensor's place in the graph."""

    __slots__ = ("kept", "read", "tensor", "version")

    tensor: torch.Tensor | None
    version: int
    read: bool
    kept: bool


class SavedTensors:
    """What one forward saves. Wrap the forward in `recording()`; after B call `release()`."""

    def __init__(self) -> None:
        self._saved: list[Saved] = []
        self._in_kept_node = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """The context in which the forward runs."""
        with regions_run_twice(), torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield

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
        saved = Saved()  # filled here, as there is one for each tensor of a forward, and a call of Python's costs as much as this
        saved.tensor = tensor.detach()  # detached: a graph that holds its own output never dies
        saved.version = tensor._version
        saved.read = False
        saved.kept = of_a_checkpoint(sys._getframe(1))
        self._saved.append(saved)
        return saved

    def _unpack(self, saved: Saved) -> torch.Tensor:
        tensor = saved.tensor
        if tensor is None:
            raise RuntimeError("autograd reads a tensor in W that only B was to read")
        if tensor._version != saved.version:  # autograd's own check does not see tensors that went through hooks
            raise RuntimeError("a tensor that the backward needs has been changed in place since the forward")
        saved.read = True
        if self._in_kept_node:
            saved.kept = True
        return tensor


@cache
def _fields_of(kind: type[Node]) -> tuple[tuple[str, str], ...]:
    """Of each tensor that nodes of this kind save, the attributes for what is saved and for the tensor."""
    raw = "_raw_saved_"
    return tuple((name, name.replace(raw, "_saved_")) for name in dir(kind) if name.startswith(raw))


_Accumulating: Any = type(get_gradient_edge(torch.empty(0, requires_grad=True)).node)
"""The node of a weight."""


class Reading(NamedTuple):
    """What a node reads, as far as that can be seen before it runs, so that W may call it itself."""

    saved: Sequence[Saved]
    sides: Sequence[torch.Tensor]
    """For each of its sides a tensor whose gradient goes there: a weight, or what the node has saved."""


def read_by(node: Node, sides: Iterable[int]) -> Reading | None:
    """What one of autograd's own nodes has saved, and reads when it runs; it is kept for W.

    Args:
        node: of the graph.
        sides: which of its edges.

    Returns:
        None where it cannot be seen what the node reads, as in a checkpointed region, or where a side has no tensor.
    """
    saved: dict[str, Saved] = {}
    for raw, name in _fields_of(type(node)):
        field = getattr(node, raw)
        packed = getattr(field, "data", field)
        if isinstance(packed, Saved):
            saved[name] = packed
        elif packed is not None and not isinstance(packed, torch.Tensor):  # a number is saved as it is
            return None
    found: list[torch.Tensor] = []
    edges = node.next_functions
    for number in sides if saved else ():
        after: Any
        after, at = edges[number]
        if type(after) is _Accumulating:
            found.append(after.variable)
            continue
        for name in saved:
            one = getattr(node, name)
            if one.grad_fn is after and one.output_nr == at:
                found.append(one)
                break
        else:
            return None
    if not found:
        return None
    for one in saved.values():
        one.kept = True
    return Reading((*saved.values(),), found)


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


Place = tuple["Node", int]
"""A node, and which of its outputs: an edge without what else torch attaches to one."""


def place_of(edge: GradientEdge) -> Place:
    """Where the edge leads to."""
    return edge.node, edge.output_nr


class GradientArrivals:
    """What arrives in one backward at edges whose nodes do not run in it."""

    def __init__(
        self, before: Mapping[Place, Sequence[Place]], roots: Sequence[GradientEdge], seeds: Sequence[torch.Tensor]
    ) -> None:
        """Take the places.

        `before` has the nodes that lead to each, and the number of their edge; the backward begins at the roots, with the seeds.
        """
        self._before = before
        self.found: dict[Place, torch.Tensor | None] = dict.fromkeys(before)
        self._versions: dict[Place, tuple[torch.Tensor, int]] = {}
        self.at: dict[Node, tuple[Sequence[torch.Tensor | None], list[int | None]]] = {}
        """With what gradients the nodes have run that are watched, and how often each had been changed in place."""
        for root, seed in zip(roots, seeds, strict=True):
            if place_of(root) in before:
                self._add(place_of(root), seed)

    def listen(self) -> list[RemovableHandle]:
        """Add up what arrives from now on; remove the handles after the backward."""
        edges: dict[Node, list[tuple[int, Place]]] = {}
        for place, nodes in self._before.items():
            for node, number in nodes:
                edges.setdefault(node, []).append((number, place))
        return [node.register_hook(self._taker(places)) for node, places in edges.items()]

    def watch(self, node: Node, *, after: bool) -> RemovableHandle:
        """Note the gradients with which a node runs, before it does or after; remove the handle after the backward."""

        def note(*arguments: Sequence[torch.Tensor | None]) -> None:
            gradients = arguments[-1]
            self.at[node] = gradients, [None if one is None else one._version for one in gradients]

        return node.register_hook(note) if after else node.register_prehook(note)

    def version(self, place: Place, gradient: torch.Tensor) -> int | None:
        """How often the gradient had been changed in place when it arrived there."""
        node, number = place
        gradients, versions = self.at.get(node, (None, []))
        noted, version = self._versions.get(place, (None, None)) if gradients is None else (gradients[number], versions[number])
        return version if noted is gradient else gradient._version

    def _taker(self, places: Sequence[tuple[int, Place]]) -> Callable[[Sequence[torch.Tensor | None], object], None]:
        def take(gradients: Sequence[torch.Tensor | None], _: object) -> None:
            for number, place in places:
                self._add(place, gradients[number])

        return take

    def _add(self, place: Place, gradient: torch.Tensor | None) -> None:
        before = self.found[place]
        if gradient is not None:
            self.found[place] = found = gradient if before is None else before + gradient
            self._versions[place] = found, found._version


@contextmanager
def without_hooks(weights: Sequence[GradientEdge]) -> Iterator[None]:
    """A context in which the tensor hooks of these weights are not called."""
    off = [hooks for edge in weights if (hooks := edge.node.variable._backward_hooks)]  # type: ignore[attr-defined]
    kept = [dict(hooks) for hooks in off]
    for hooks in off:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, own in zip(off, kept, strict=True):
            hooks.update(own)
