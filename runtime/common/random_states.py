"""The states of the random number generators that a stage may draw from: torch's, Python's and NumPy's global ones.

A generator that a job has made for itself is not among them.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class RandomStates(NamedTuple):
    """The states at one moment."""

    cpu: torch.Tensor
    accelerators: dict[torch.device, torch.Tensor]
    python: Any
    numpy: Any
    """None where nobody has imported NumPy."""

    @classmethod
    def now(cls, devices: Iterable[torch.device]) -> RandomStates:
        """The states now; of these devices, besides the CPU."""
        accelerators = {one: torch.get_device_module(one).get_rng_state(one) for one in devices if one.type != "cpu"}
        numpy = sys.modules.get("numpy")
        return cls(torch.get_rng_state(), accelerators, random.getstate(), None if numpy is None else numpy.random.get_state())

    def restore(self) -> None:
        """Make them the states again."""
        torch.set_rng_state(self.cpu)
        for device, state in self.accelerators.items():
            torch.get_device_module(device).set_rng_state(state, device)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
