"""Autocast around a pipe's step: it holds for F, which runs in the thread that called `step`, and not for the backwards.

The types of a backward are those of its forward; torch advises against running it under autocast.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache

import torch

_NOTHING = nullcontext()


@cache
def _device_types() -> tuple[str, ...]:
    """The kinds of devices on which a stage may be."""
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def _active() -> list[str]:
    return [kind for kind in _device_types() if torch.is_autocast_enabled(kind)]


def outside_autocast() -> AbstractContextManager[object]:
    """A context without autocast."""
    active = _active()
    if not active:
        return _NOTHING
    contexts = ExitStack()
    for kind in active:
        contexts.enter_context(torch.autocast(kind, enabled=False))
    return contexts


def forget_cast_weights() -> None:
    """Before a step: let autocast cast the weights anew, for an optimizer may have changed them inside the same context."""
    if _active():
        torch.clear_autocast_cache()
