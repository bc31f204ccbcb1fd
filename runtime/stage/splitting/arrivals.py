"""The gradients that arrive in B where W is to begin.

Autograd gives the gradient at a node before the node's tensor hooks if it goes on through the node, and after them if it stops
there. W begins at the node itself and calls the hooks, so it needs the gradient before them: `GradientArrivals` adds up what comes
to the node from those before it. At a weight that B is asked for, hooks wait until the gradient is added to `.grad`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from torch.autograd.graph import GradientEdge, Node
    from torch.utils.hooks import RemovableHandle

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

        Args:
            before: the nodes that lead to each, and the number of their edge.
            roots: where the backward begins.
            seeds: with these gradients.
        """
        self._before = before
        self.found: dict[Place, torch.Tensor | None] = dict.fromkeys(before)
        self._versions: dict[torch.Tensor, int] = {}
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

    def watch(self, node: Node) -> RemovableHandle:
        """Note how the gradients are that arrive at a node that runs; remove the handle after the backward."""
        return node.register_prehook(self._note)

    def version(self, gradient: torch.Tensor) -> int:
        """How often the gradient had been changed in place when it first arrived."""
        return self._versions.get(gradient, gradient._version)

    def _note(self, gradients: Sequence[torch.Tensor | None]) -> None:
        for gradient in gradients:
            if gradient is not None:
                self._versions.setdefault(gradient, gradient._version)

    def _taker(self, places: Sequence[tuple[int, Place]]) -> Callable[[Sequence[torch.Tensor | None], object], None]:
        def take(gradients: Sequence[torch.Tensor | None], _: object) -> None:
            for number, place in places:
                self._add(place, gradients[number])

        return take

    def _add(self, place: Place, gradient: torch.Tensor | None) -> None:
        self._note([gradient])
        before = self.found[place]
        self.found[place] = gradient if before is None else before if gradient is None else before + gradient


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
