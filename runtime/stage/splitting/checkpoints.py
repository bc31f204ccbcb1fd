"""Regions of torch's checkpoint in a stage whose B and W are apart: they run again in both."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

from torch.autograd import function
from torch.utils import checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_CHECKPOINT, _FUNCTION = checkpoint.__dict__, function.__dict__
"""What is global in these modules."""


def of_a_checkpoint(frame: FrameType) -> bool:
    """Whether it is torch's checkpoint that saves a tensor here: an argument of its region. No node of the graph has that."""
    if frame.f_globals is _FUNCTION and frame.f_back is not None:  # which lies between in some versions of torch
        frame = frame.f_back
    return frame.f_globals is _CHECKPOINT


class _Thread(threading.local):
    runs_twice = False


_thread = _Thread()


@contextmanager
def regions_run_twice() -> Iterator[None]:
    """A context for F. Where the checkpoint of a region is selective, what it has kept serves B, and W once more."""
    before, _thread.runs_twice = _thread.runs_twice, True
    try:
        yield
    finally:
        _thread.runs_twice = before


def _let_modes_serve_twice() -> None:
    """Have the modes in which such regions run again put back what they take out of their storage, where F has made them.

    Their class stays torch's own, by which it finds what operators do in them.
    """
    kind: Any = checkpoint._CachedTorchDispatchMode
    make, enter, leave = kind.__init__, kind.__enter__, kind.__exit__
    kind.runs_twice = False  # of those that were made before

    def made(mode: Any, *given: Any, **named: Any) -> None:
        make(mode, *given, **named)
        mode.runs_twice = _thread.runs_twice

    def entered(mode: Any) -> Any:
        if mode.runs_twice:
            mode.before = {key: copy(entries) for key, entries in mode.storage.items()}
        return enter(mode)

    def left(mode: Any, *given: Any) -> Any:
        if mode.runs_twice:
            mode.storage.update(mode.before)
        return leave(mode, *given)

    kind.__init__, kind.__enter__, kind.__exit__ = made, entered, left


_let_modes_serve_twice()
