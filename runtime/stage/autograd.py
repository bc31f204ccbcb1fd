"""How blocks call autograd: where gradients have arrived, and outside autocast.

Autocast around a pipe's step holds for F, which runs in the thread that called `step`, and not for the backwards: the types of a
backward are those of its forward, and torch advises against running it under autocast.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

if TYPE_CHECKING:
    from collections.abc import Sequence


def arrived_at(
    edges: Sequence[GradientEdge | None], gradients: Sequence[torch.Tensor | None]
) -> tuple[list[GradientEdge], list[torch.Tensor]]:
    """Those of the edges at which a gradient has arrived, and these gradients."""
    roots, values = [], []
    for edge, gradient in zip(edges, gradients, strict=bool(gradients)):
        if edge is not None and gradient is not None:
            roots.append(edge)
            values.append(gradient)
    return roots, values


def edge_of(tensor: torch.Tensor) -> GradientEdge | None:
    """As torch's `get_gradient_edge`, which takes longer; None where no gradient goes to the tensor."""
    node = tensor.grad_fn
    if node is not None and not isinstance(node, torch._C._FunctionBase):
        return GradientEdge(node, tensor.output_nr)
    return get_gradient_edge(tensor) if tensor.requires_grad else None


NOTHING = nullcontext()


@cache
def _device_types() -> tuple[str, ...]:
    """The kinds of devices on which a stage may be."""
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def _active() -> list[str]:
    return [kind for kind in _device_types() if torch.is_autocast_enabled(kind)]


def outside_autocast() -> AbstractContextManager[object]:
    """A context without autocast."""
    if not torch._C._is_any_autocast_enabled():
        return NOTHING
    contexts = ExitStack()
    for kind in _active():
        contexts.enter_context(torch.autocast(kind, enabled=False))
    return contexts


def forget_cast_weights() -> None:
    """Before a step: let autocast cast the weights anew, for an optimizer may have changed them inside the same context."""
    if _active():
        torch.clear_autocast_cache()
