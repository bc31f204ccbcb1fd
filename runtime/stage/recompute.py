"""Running a stage's forward twice: once for its output, keeping nothing but its input, and again when its backward is due.

The first run builds a graph like any other, so that a stage takes the same way through its code both times (some modules look
whether grad is enabled), but what it saves is dropped at once. The second run draws the same random numbers and finds the same
buffers.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from schedc.runtime.stage.buffers import Buffers, Kept

__all__ = ["Replay", "saving_nothing"]


def saving_nothing() -> torch.autograd.graph.saved_tensors_hooks:
    """A context for a forward whose graph is not going to be used."""
    return torch.autograd.graph.saved_tensors_hooks(_drop, _unused)


def _drop(_tensor: torch.Tensor) -> None:
    return None


def _unused(_nothing: None) -> NoReturn:
    raise RuntimeError("a graph whose forward is to run again was used; a stage that is recomputed must not differentiate itself")


class Replay:
    """What a second run of a forward needs, to be like the first."""

    def __init__(self, work: Callable[..., object], inputs: Sequence[torch.Tensor], buffers: Buffers) -> None:
        """Take note, right before the first run.

        Args:
            work: the forward.
            inputs: what it takes.
            buffers: what it may change.
        """
        self.work = work
        self._buffers = buffers
        self._kept: Sequence[Kept] = buffers.before()
        self._versions = [tensor._version for tensor in inputs]
        self._random = _random_states(buffers.devices)

    def ran(self) -> None:
        """Take note, right after the first run."""
        self._kept = self._buffers.after(self._kept)

    @contextmanager
    def as_before(self, inputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """A context for the second run; after it all is as if it had not run.

        Raises:
            RuntimeError: the inputs are not what they were.
        """
        if [tensor._version for tensor in inputs] != self._versions:
            raise RuntimeError("the input of a stage that is recomputed has been changed in place since its forward")
        now = _random_states(self._buffers.devices)
        _restore(self._random)
        try:
            with self._buffers.as_before(self._kept):
                yield
        finally:
            _restore(now)


def _random_states(devices: Sequence[torch.device]) -> dict[torch.device, torch.Tensor]:
    """The states of the random number generators: the CPU's and those of the accelerators given."""
    states = {device: torch.get_device_module(device).get_rng_state(device) for device in devices}
    return {torch.device("cpu"): torch.get_rng_state(), **states}


def _restore(states: Mapping[torch.device, torch.Tensor]) -> None:
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
